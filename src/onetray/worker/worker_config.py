"""The settings of a worker: their defaults and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onetray.app.rules import WorkerRules, known
from onetray.config import LEAST_RETENTION_S, Limits
from onetray.domain.checks import flag, seconds, text, whole
from onetray.domain.errors import InvalidInput
from onetray.worker.claimer import ClaimSource


@dataclass(frozen=True)
class WorkerConfig:
    """A worker's settings and their defaults."""

    concurrency: int = 10
    queues: tuple[str, ...] = ("default",)
    """Queues to claim from. `name:5` limits this worker to five held tasks of that queue."""
    name: str = ""
    drain_s: float = 30.0
    """How long running handlers may continue after a request to stop."""
    janitor: bool = True
    """Whether to run a janitor (expired leases, retries, deadlines). At least one process needs one."""
    retention_s: float | None = None
    """The janitor deletes jobs of the app's namespace this long after their end. None keeps them."""


def worker_config(settings: WorkerRules) -> WorkerConfig:
    known(settings, WorkerRules, "setting", "a worker")
    fields: dict[str, Any] = {**settings, "queues": _queue_names(settings.get("queues", WorkerConfig.queues))}
    config = WorkerConfig(**fields)
    whole(config.concurrency, "concurrency", 1, 10_000)
    seconds(config.drain_s, "drain_s")
    text(config.name, "name", Limits().name_chars, least=0)
    flag(config.janitor, "janitor")
    if config.retention_s is not None:
        seconds(config.retention_s, "retention_s", LEAST_RETENTION_S)
        if not config.janitor:
            raise InvalidInput("retention_s needs the janitor: leave out janitor=False", field="retention_s")
    if not config.queues:
        raise InvalidInput("no queues: name at least one queue to claim from", field="queues")
    return config


def _queue_names(queues: object) -> tuple[str, ...]:
    names = queues.split(",") if isinstance(queues, str) else queues
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in found):
        raise InvalidInput("queues must be a list of names, or one text with commas", field="queues")
    return found


def claim_source(text: str) -> ClaimSource:
    queue, colon, limit = text.strip().partition(":")
    if not queue or (colon and (not limit.isdecimal() or int(limit) < 1)):
        raise InvalidInput(f"bad queue {text!r}: write name, or name:5 to hold at most 5 of its tasks", field="queues")
    return ClaimSource(queue, int(limit) if limit else None)
