"""Metrics, the request log and trace context."""
