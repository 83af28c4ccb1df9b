"""Explain why a task, a stage or a flow does not progress: what it waits for, who can act, and until when."""
