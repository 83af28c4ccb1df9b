"""onetray: a durable job engine with an explicit, enforced state machine.

    from onetray import Engine

    with Engine.open("sqlite:///jobs.db") as engine:
        engine.submit("mail", {"to": "ann"})

Owns the public names. Each is loaded when it is first asked for, so that `import onetray` stays cheap and needs no
database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onetray.app import Onetray
    from onetray.client.aio import AsyncJob
    from onetray.client.job import Job
    from onetray.clock import SystemClock, VirtualClock
    from onetray.config import EngineConfig, Limits
    from onetray.context import TaskContext, ctx
    from onetray.engine import Engine
    from onetray.errors import (
        AnswerNotKept,
        BodyTooLarge,
        Busy,
        Conflict,
        DatabaseMoved,
        DatabaseReplaced,
        DependencyCycle,
        Forbidden,
        GuardFailed,
        IllegalTransition,
        InProgress,
        InvalidInput,
        JobFailed,
        KeyReused,
        LeaseConflictError,
        LeaseLost,
        MigrationNeeded,
        MissingExtra,
        NameTaken,
        NotFound,
        NotJson,
        NotLocal,
        NotYet,
        OnetrayError,
        OutcomeUnknown,
        PermanentError,
        SlowBody,
        StoreError,
        TaskCancelled,
        TaskError,
        TooDeep,
        TooLarge,
        TooManyRequests,
        TooManyStreams,
        TransientError,
        Unauthorized,
        Unavailable,
        UnknownVerb,
        ValidationError,
        WrongHost,
        WrongOrigin,
    )
    from onetray.fleet import Breaker, WorkerBeat, WorkerInfo
    from onetray.flowmodel import Approval, Context, Counts, Flow, More, Placed, Progress, Stage, StageSpec, TaskSpec
    from onetray.model import Assignment, DeadLetter, Event, LogLine, Policy, Receipt, Task, TaskProgress, Verdict
    from onetray.worker import Worker

__version__ = "0.1.0"

_HOME = {
    "onetray.app": "Onetray",
    "onetray.client.aio": "AsyncJob",
    "onetray.client.job": "Job",
    "onetray.clock": "SystemClock VirtualClock",
    "onetray.config": "EngineConfig Limits",
    "onetray.context": "TaskContext ctx",
    "onetray.engine": "Engine",
    "onetray.errors": "AnswerNotKept BodyTooLarge Busy Conflict DatabaseMoved DatabaseReplaced DependencyCycle "
    "Forbidden GuardFailed IllegalTransition InProgress InvalidInput JobFailed KeyReused LeaseConflictError LeaseLost "
    "MigrationNeeded MissingExtra NameTaken NotFound NotJson NotLocal NotYet OnetrayError OutcomeUnknown "
    "PermanentError SlowBody StoreError TaskCancelled TaskError TooDeep TooLarge TooManyRequests TooManyStreams "
    "TransientError Unauthorized Unavailable UnknownVerb ValidationError WrongHost WrongOrigin",
    "onetray.fleet": "Breaker WorkerBeat WorkerInfo",
    "onetray.flowmodel": "Approval Context Counts Flow More Placed Progress Stage StageSpec TaskSpec",
    "onetray.model": "Assignment DeadLetter Event LogLine Policy Receipt Task TaskProgress Verdict",
    "onetray.worker": "Worker",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "AnswerNotKept",
    "Approval",
    "Assignment",
    "AsyncJob",
    "BodyTooLarge",
    "Breaker",
    "Busy",
    "Conflict",
    "Context",
    "Counts",
    "DatabaseMoved",
    "DatabaseReplaced",
    "DeadLetter",
    "DependencyCycle",
    "Engine",
    "EngineConfig",
    "Event",
    "Flow",
    "Forbidden",
    "GuardFailed",
    "IllegalTransition",
    "InProgress",
    "InvalidInput",
    "Job",
    "JobFailed",
    "KeyReused",
    "LeaseConflictError",
    "LeaseLost",
    "Limits",
    "LogLine",
    "MigrationNeeded",
    "MissingExtra",
    "More",
    "NameTaken",
    "NotFound",
    "NotJson",
    "NotLocal",
    "NotYet",
    "Onetray",
    "OnetrayError",
    "OutcomeUnknown",
    "PermanentError",
    "Placed",
    "Policy",
    "Progress",
    "Receipt",
    "SlowBody",
    "Stage",
    "StageSpec",
    "StoreError",
    "SystemClock",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskError",
    "TaskProgress",
    "TaskSpec",
    "TooDeep",
    "TooLarge",
    "TooManyRequests",
    "TooManyStreams",
    "TransientError",
    "Unauthorized",
    "Unavailable",
    "UnknownVerb",
    "ValidationError",
    "Verdict",
    "VirtualClock",
    "Worker",
    "WorkerBeat",
    "WorkerInfo",
    "WrongHost",
    "WrongOrigin",
    "__version__",
    "ctx",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'onetray' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
