"""What may be asked of an engine that is elsewhere: a closed table of reads, and of the few acts that are no commands.

Owns the names, what each gives, and what its parameters may be. The parameters are those of the engine's own methods,
but the namespace and the name of the caller: those are the token's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onetray.domain.checks import flag, listed, seconds
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.flow import Context, Flow, Progress, Stage
from onetray.domain.listing import DeadGroup, DeadLetterSummary, JobPage, Located, MemberSummary, QueueDepth
from onetray.domain.policy import Policy
from onetray.domain.task import Blocker, DeadLetter, Event, Holding, LogLine, Task, TaskProgress
from onetray.domain.worker import Breaker, WorkerInfo
from onetray.engine import Engine

VEILED = "Onetray-Veiled"
"""A header of who wants to be shown no more than others are, whatever the token allows."""
OWNED = frozenset({"self", "namespace", "actor", "by", "raw"})


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """One read: what it gives, and whether a worker needs it for what it runs."""

    gives: Any
    of_workers: bool = False


READS: dict[str, RemoteRead] = {
    "breakers": RemoteRead(list[Breaker]),
    "context": RemoteRead(Context | None, of_workers=True),
    "contexts": RemoteRead(list[Context], of_workers=True),
    "dead_groups": RemoteRead(list[DeadGroup]),
    "dead_letters": RemoteRead(list[DeadLetter]),
    "dead_lines": RemoteRead(list[DeadLetterSummary]),
    "events": RemoteRead(list[Event]),
    "events_by_correlation": RemoteRead(list[Event]),
    "explain": RemoteRead(list[Blocker]),
    "flow": RemoteRead(Flow, of_workers=True),
    "flow_events": RemoteRead(list[Event]),
    "flows": RemoteRead(list[Flow]),
    "held": RemoteRead(list[Holding], of_workers=True),
    "inputs": RemoteRead(Any, of_workers=True),
    "job_key": RemoteRead(int),
    "jobs": RemoteRead(JobPage),
    "last_checkpoint": RemoteRead(Any, of_workers=True),
    "locate": RemoteRead(Located),
    "logs": RemoteRead(list[LogLine]),
    "members": RemoteRead(list[MemberSummary]),
    "now": RemoteRead(int, of_workers=True),
    "policy_of": RemoteRead(Policy | None, of_workers=True),
    "position": RemoteRead(int | None),
    "progress": RemoteRead(Progress),
    "progress_of": RemoteRead(TaskProgress | None),
    "queues": RemoteRead(list[QueueDepth]),
    "stage": RemoteRead(Stage, of_workers=True),
    "stage_results": RemoteRead(list[tuple[int, str, str | None, str, Any]], of_workers=True),
    "stage_tasks": RemoteRead(list[Task]),
    "stages": RemoteRead(list[Stage], of_workers=True),
    "task": RemoteRead(Task, of_workers=True),
    "tasks": RemoteRead(list[Task]),
    "workers": RemoteRead(list[WorkerInfo]),
}
ACTS = ("close_breaker", "open_breaker", "pause_queue", "resume_queue")
"""What operators do that is no transition of a task."""


def _text(value: object, field: str) -> object:
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text, not {short_repr(value)}", field=field)
    return value


def _whole(value: object, field: str) -> object:
    if type(value) is not int:
        raise InvalidInput(f"{field} must be a whole number, not {short_repr(value)}", field=field)
    return value


def _names(value: object, field: str) -> object:
    return [_text(name, field) for name in listed(value, field, 0, 1_000)]


def _numbers(value: object, field: str) -> object:
    return [_whole(number, field) for number in listed(value, field, 0, 10_000)]


def _labels(value: object, field: str) -> object:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise InvalidInput(f"{field} must be texts by their names, not {short_repr(value)}", field=field)
    return value


CHECKS: dict[str, Callable[[object, str], object]] = {
    "str": _text, "int": _whole, "float": seconds, "bool": flag, "Sequence[str]": _names, "Sequence[int]": _numbers,
    "Mapping[str, str]": _labels,
}  # fmt: skip
"""What a parameter may be, by its annotation. Its limits are the engine's to check."""


@lru_cache
def parameters(name: str) -> dict[str, tuple[Callable[[object, str], object], bool, bool]]:
    """The parameters of a read or an act: how each is checked, whether it may be None, whether it must be given."""
    found = {}
    for p in inspect.signature(getattr(Engine, name)).parameters.values():
        if p.name not in OWNED:
            plain = str(p.annotation).removesuffix(" | None")
            found[p.name] = CHECKS[plain], plain != p.annotation, p.default is p.empty
    return found


def checked(name: str, given: object) -> dict[str, Any]:
    """The parameters that came with a question, if they are such."""
    known = parameters(name)
    if not isinstance(given, dict):
        raise InvalidInput(f"{name} takes its parameters by their names, not {short_repr(given)}", field=name)
    for field in given:
        if field not in known:
            raise InvalidInput(
                f"{name} has no {short_repr(field)}; it has: {', '.join(known) or 'none'}", field=str(field)[:100]
            )
    for field, (_, _, needed) in known.items():
        if needed and field not in given:
            raise InvalidInput(f"{name} needs {field}", field=field)
    return {field: _checked(known[field], value, field) for field, value in given.items()}


def _checked(rule: tuple[Callable[[object, str], object], bool, bool], value: object, field: str) -> object:
    check, may_be_none, _ = rule
    return None if value is None and may_be_none else check(value, field)


__all__ = ["ACTS", "READS", "VEILED", "RemoteRead", "checked", "parameters"]
