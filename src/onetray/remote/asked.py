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

from onetray.engine import Engine
from onetray.errors import InvalidInput, shown
from onetray.fields import flag, listed, seconds
from onetray.fleet import Breaker, WorkerInfo
from onetray.flowmodel import Context, Flow, Progress, Stage
from onetray.listmodel import DeadGroup, DeadLine, JobPage, Located, Member, QueueDepth
from onetray.model import Blocker, DeadLetter, Event, Holding, LogLine, Policy, Task, TaskProgress

VEILED = "Onetray-Veiled"
"""A header of who wants to be shown no more than others are, whatever the token allows."""
OWNED = frozenset({"self", "namespace", "actor", "by", "raw"})


@dataclass(frozen=True, slots=True)
class Asked:
    """One read: what it gives, and whether a worker needs it for what it runs."""

    gives: Any
    of_workers: bool = False


READS: dict[str, Asked] = {
    "breakers": Asked(list[Breaker]),
    "context": Asked(Context | None, of_workers=True),
    "contexts": Asked(list[Context], of_workers=True),
    "dead_groups": Asked(list[DeadGroup]),
    "dead_letters": Asked(list[DeadLetter]),
    "dead_lines": Asked(list[DeadLine]),
    "events": Asked(list[Event]),
    "events_by_correlation": Asked(list[Event]),
    "explain": Asked(list[Blocker]),
    "flow": Asked(Flow, of_workers=True),
    "flow_events": Asked(list[Event]),
    "flows": Asked(list[Flow]),
    "held": Asked(list[Holding], of_workers=True),
    "inputs": Asked(Any, of_workers=True),
    "job_key": Asked(int),
    "jobs": Asked(JobPage),
    "last_checkpoint": Asked(Any, of_workers=True),
    "locate": Asked(Located),
    "logs": Asked(list[LogLine]),
    "members": Asked(list[Member]),
    "now": Asked(int, of_workers=True),
    "policy_of": Asked(Policy | None, of_workers=True),
    "position": Asked(int | None),
    "progress": Asked(Progress),
    "progress_of": Asked(TaskProgress | None),
    "queues": Asked(list[QueueDepth]),
    "stage": Asked(Stage, of_workers=True),
    "stage_results": Asked(list[tuple[int, str, str | None, str, Any]], of_workers=True),
    "stage_tasks": Asked(list[Task]),
    "stages": Asked(list[Stage], of_workers=True),
    "task": Asked(Task, of_workers=True),
    "tasks": Asked(list[Task]),
    "workers": Asked(list[WorkerInfo]),
}
ACTS = ("close_breaker", "open_breaker", "pause_queue", "resume_queue")
"""What operators do that is no transition of a task."""


def _text(value: object, field: str) -> object:
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text, not {shown(value)}", field=field)
    return value


def _whole(value: object, field: str) -> object:
    if type(value) is not int:
        raise InvalidInput(f"{field} must be a whole number, not {shown(value)}", field=field)
    return value


def _names(value: object, field: str) -> object:
    return [_text(name, field) for name in listed(value, field, 0, 1_000)]


def _numbers(value: object, field: str) -> object:
    return [_whole(number, field) for number in listed(value, field, 0, 10_000)]


def _labels(value: object, field: str) -> object:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise InvalidInput(f"{field} must be texts by their names, not {shown(value)}", field=field)
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
        raise InvalidInput(f"{name} takes its parameters by their names, not {shown(given)}", field=name)
    for field in given:
        if field not in known:
            raise InvalidInput(
                f"{name} has no {shown(field)}; it has: {', '.join(known) or 'none'}", field=str(field)[:100]
            )
    for field, (_, _, needed) in known.items():
        if needed and field not in given:
            raise InvalidInput(f"{name} needs {field}", field=field)
    return {field: _checked(known[field], value, field) for field, value in given.items()}


def _checked(rule: tuple[Callable[[object, str], object], bool, bool], value: object, field: str) -> object:
    check, may_be_none, _ = rule
    return None if value is None and may_be_none else check(value, field)


__all__ = ["ACTS", "READS", "VEILED", "Asked", "checked", "parameters"]
