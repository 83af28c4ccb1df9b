"""onetray: a durable job engine with an explicit, enforced state machine.

    from onetray import Onetray

    app = Onetray("sqlite:///jobs.db")

    @app.task(retries=3)
    def send_mail(to: str) -> None: ...

    job = send_mail.submit(to="ann@example.org")

`Onetray` declares tasks and flows, submits them, and runs workers; `Job` is what a submit returns. `Engine` is the
layer below, for programs that submit, claim and report by themselves.

Owns the public names. Each is loaded when it is first asked for, so that `import onetray` stays cheap and needs no
database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onetray.app.async_api import AsyncJob
    from onetray.app.batch import BatchItem
    from onetray.app.context import TaskContext, ctx
    from onetray.app.flows import FlowDefinition, StageDefinition
    from onetray.app.job import Job
    from onetray.app.job_parts import Children
    from onetray.app.onetray import Onetray
    from onetray.app.tasks import TaskDefinition
    from onetray.config import EngineConfig, Limits
    from onetray.domain.clock import SystemClock, VirtualClock
    from onetray.domain.declared_flow import DeclaredFlow, DeclaredFlowSummary, DeclaredStage
    from onetray.domain.errors import (
        AliasTaken,
        AlreadyOpen,
        AnswerNotKept,
        BodyTooLarge,
        Busy,
        Conflict,
        DatabaseMoved,
        DatabaseReplaced,
        DeclaredInCode,
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
        NoAttemptsLeft,
        NoDatabase,
        NotApprover,
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
    from onetray.domain.fire_times import FireTime
    from onetray.domain.flow import (
        Approval,
        Context,
        Counts,
        Flow,
        FlowError,
        More,
        Placed,
        Progress,
        Stage,
        StageSpec,
        TaskSpec,
    )
    from onetray.domain.limits import Concurrency, Limit, LimitDetails, LimitHolder, LimitValue, Rate
    from onetray.domain.listing import Alias, JobSummary, MemberSummary
    from onetray.domain.policy import Policy
    from onetray.domain.schedule import Backfill, Schedule, ScheduledFire, ScheduleExplanation, ScheduleSpec
    from onetray.domain.task import (
        Assignment,
        Blocker,
        DeadLetter,
        Event,
        LogLine,
        Receipt,
        Task,
        TaskProgress,
        Verdict,
    )
    from onetray.domain.worker import Breaker, WorkerBeat, WorkerInfo
    from onetray.engine import Engine
    from onetray.worker import Worker

__version__ = "0.1.0"

_HOME = {
    "onetray.app.onetray": "Onetray",
    "onetray.app.async_api": "AsyncJob",
    "onetray.app.batch": "BatchItem",
    "onetray.app.job_parts": "Children",
    "onetray.app.flows": "FlowDefinition StageDefinition",
    "onetray.app.job": "Job",
    "onetray.app.tasks": "TaskDefinition",
    "onetray.domain.clock": "SystemClock VirtualClock",
    "onetray.config": "EngineConfig Limits",
    "onetray.app.context": "TaskContext ctx",
    "onetray.engine": "Engine",
    "onetray.domain.errors": "AliasTaken AlreadyOpen AnswerNotKept BodyTooLarge Busy Conflict DatabaseMoved "
    "DatabaseReplaced DeclaredInCode DependencyCycle Forbidden GuardFailed IllegalTransition InProgress InvalidInput "
    "JobFailed KeyReused LeaseConflictError LeaseLost MigrationNeeded MissingExtra NameTaken NoAttemptsLeft NoDatabase "
    "NotApprover NotFound NotJson NotLocal NotYet OnetrayError OutcomeUnknown PermanentError SlowBody "
    "StoreError TaskCancelled TaskError "
    "TooDeep TooLarge TooManyRequests TooManyStreams TransientError Unauthorized Unavailable UnknownVerb "
    "ValidationError WrongHost WrongOrigin",
    "onetray.domain.declared_flow": "DeclaredFlow DeclaredFlowSummary DeclaredStage",
    "onetray.domain.worker": "Breaker WorkerBeat WorkerInfo",
    "onetray.domain.flow": "Approval Context Counts Flow FlowError More Placed Progress Stage StageSpec TaskSpec",
    "onetray.domain.listing": "Alias JobSummary MemberSummary",
    "onetray.domain.limits": "Concurrency Limit LimitDetails LimitHolder LimitValue Rate",
    "onetray.domain.policy": "Policy",
    "onetray.domain.fire_times": "FireTime",
    "onetray.domain.schedule": "Backfill Schedule ScheduleExplanation ScheduleSpec ScheduledFire",
    "onetray.domain.task": "Assignment Blocker DeadLetter Event LogLine Receipt Task TaskProgress Verdict",
    "onetray.worker": "Worker",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Alias",
    "AliasTaken",
    "AlreadyOpen",
    "AnswerNotKept",
    "Approval",
    "Assignment",
    "AsyncJob",
    "Backfill",
    "BatchItem",
    "Blocker",
    "BodyTooLarge",
    "Breaker",
    "Busy",
    "Children",
    "Concurrency",
    "Conflict",
    "Context",
    "Counts",
    "DatabaseMoved",
    "DatabaseReplaced",
    "DeadLetter",
    "DeclaredFlow",
    "DeclaredFlowSummary",
    "DeclaredInCode",
    "DeclaredStage",
    "DependencyCycle",
    "Engine",
    "EngineConfig",
    "Event",
    "FireTime",
    "Flow",
    "FlowDefinition",
    "FlowError",
    "Forbidden",
    "GuardFailed",
    "IllegalTransition",
    "InProgress",
    "InvalidInput",
    "Job",
    "JobFailed",
    "JobSummary",
    "KeyReused",
    "LeaseConflictError",
    "LeaseLost",
    "Limit",
    "LimitDetails",
    "LimitHolder",
    "LimitValue",
    "Limits",
    "LogLine",
    "MemberSummary",
    "MigrationNeeded",
    "MissingExtra",
    "More",
    "NameTaken",
    "NoAttemptsLeft",
    "NoDatabase",
    "NotApprover",
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
    "Rate",
    "Receipt",
    "Schedule",
    "ScheduleExplanation",
    "ScheduleSpec",
    "ScheduledFire",
    "SlowBody",
    "Stage",
    "StageDefinition",
    "StageSpec",
    "StoreError",
    "SystemClock",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskDefinition",
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
