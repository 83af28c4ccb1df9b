"""Registrations of workers that claim nothing: so that somebody listens, or nobody does."""

from __future__ import annotations

from typing import Any

from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine


def register(engine: Engine, *queues: str, name: str = "listener", namespace: str = "default", **fields: Any) -> None:
    """Register a worker that claims from these queues, every kind unless it names some, and stays alive for a year."""
    given = {"host": "h1", "pid": 7, "version": "0.1.0", "ttl_s": 365 * 86_400.0, **fields}
    engine.worker_beat(WorkerBeat(name=name, queues=queues or ("default",), **given), namespace=namespace)
