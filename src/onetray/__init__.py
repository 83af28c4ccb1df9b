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
    from onetray.clock import SystemClock, VirtualClock
    from onetray.config import EngineConfig, Limits
    from onetray.engine import Engine
    from onetray.errors import (
        Conflict,
        DependencyCycle,
        GuardFailed,
        IllegalTransition,
        InvalidInput,
        KeyReused,
        LeaseConflictError,
        LeaseLost,
        MigrationNeeded,
        MissingExtra,
        NameTaken,
        NotFound,
        OnetrayError,
        OutcomeUnknown,
        PermanentError,
        StoreError,
        TaskError,
        TooLarge,
        TransientError,
        Unavailable,
        UnknownVerb,
        ValidationError,
    )
    from onetray.fleet import Breaker, Worker, WorkerBeat
    from onetray.flowmodel import Approval, Context, Counts, Flow, More, Placed, Progress, Stage, StageSpec, TaskSpec
    from onetray.model import Assignment, DeadLetter, Event, LogLine, Policy, Receipt, Task, TaskProgress, Verdict

__version__ = "0.1.0"

_HOME = {
    "onetray.clock": "SystemClock VirtualClock",
    "onetray.config": "EngineConfig Limits",
    "onetray.engine": "Engine",
    "onetray.errors": "Conflict DependencyCycle GuardFailed IllegalTransition InvalidInput KeyReused "
    "LeaseConflictError LeaseLost MigrationNeeded MissingExtra NameTaken NotFound OnetrayError OutcomeUnknown "
    "PermanentError StoreError TaskError TooLarge TransientError Unavailable UnknownVerb ValidationError",
    "onetray.fleet": "Breaker Worker WorkerBeat",
    "onetray.flowmodel": "Approval Context Counts Flow More Placed Progress Stage StageSpec TaskSpec",
    "onetray.model": "Assignment DeadLetter Event LogLine Policy Receipt Task TaskProgress Verdict",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Approval",
    "Assignment",
    "Breaker",
    "Conflict",
    "Context",
    "Counts",
    "DeadLetter",
    "DependencyCycle",
    "Engine",
    "EngineConfig",
    "Event",
    "Flow",
    "GuardFailed",
    "IllegalTransition",
    "InvalidInput",
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
    "OnetrayError",
    "OutcomeUnknown",
    "PermanentError",
    "Placed",
    "Policy",
    "Progress",
    "Receipt",
    "Stage",
    "StageSpec",
    "StoreError",
    "SystemClock",
    "Task",
    "TaskError",
    "TaskProgress",
    "TaskSpec",
    "TooLarge",
    "TransientError",
    "Unavailable",
    "UnknownVerb",
    "ValidationError",
    "Verdict",
    "VirtualClock",
    "Worker",
    "WorkerBeat",
    "__version__",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'onetray' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
