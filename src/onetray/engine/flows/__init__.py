"""Flows inside the engine: how they are created, locked, advanced, ended, retried and compensated."""
