"""A request to a dialect, with its caller and the engine; routes that are methods (method_routes.py) use it.

Also for dialects that know flows only: a task without a flow is shown as a flow of one stage, both with its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from onetray.dialects.paging import Found
from onetray.domain.checks import MAX_ROWS
from onetray.domain.commands import Cancel, Claim, Command, Report
from onetray.domain.errors import IllegalTransition, InvalidInput, NotFound
from onetray.domain.flow import Counts, Flow, Stage
from onetray.domain.flow_commands import ApproveStage, CancelFlow, OpenFlow, PauseFlow, ResumeFlow
from onetray.domain.lifecycle import (
    ASSIGNED,
    BLOCKED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    HELD,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.listing import JobSummary
from onetray.domain.policy import Policy
from onetray.domain.rollup import STOP, STRICT
from onetray.domain.task import Task, Verdict
from onetray.engine.api import EngineApi
from onetray.http.auth.scopes import Principal
from onetray.http.observe.tracing import carry
from onetray.http.services import HttpConfig, Services

T = TypeVar("T")
Verb = Callable[..., Command]


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its caller, and the engine. Reads are redacted."""

    services: Services
    principal: Principal

    @property
    def engine(self) -> EngineApi:
        return self.services.engine

    @property
    def config(self) -> HttpConfig:
        return self.services.config

    @property
    def namespace(self) -> str:
        return self.principal.namespace

    def read(self, read: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a read of the engine in the caller's namespace."""
        return read(*args, namespace=self.namespace, **options)

    def run(self, verb: Verb, *args: Any, **fields: Any) -> Any:
        """Carry out a command in the caller's name. Returns its value or raises its error."""
        return self.services.unredacted.call(self._command(verb, *args, **fields))

    def policy_of(self, kind: str, default: Policy) -> Policy:
        """The policy that a worker has declared for a kind, if it is any other than onetray's own default."""
        declared = self.read(self.engine.policy_of, kind)
        return default if declared in (None, Policy()) else declared

    def run_for(self, flow: Flow, verb: Verb, of_single: Verb | None, **fields: Any) -> Any:
        """Carry out a command about a flow, or its counterpart for a task that is shown as one."""
        if not isinstance(flow, SingleFlow):
            return self.run(verb, flow.id, **fields)
        if of_single is None:
            raise IllegalTransition("a task without a flow cannot do this")
        return self.run(of_single, flow.id, **fields)

    def resume(self, flow: Flow) -> None:
        """Open a flow that has not been started, or resume a paused one."""
        self._change(flow, OpenFlow if flow.state == CREATED else ResumeFlow, None)

    def pause(self, flow: Flow) -> None:
        self._change(flow, PauseFlow, None)

    def abort(self, flow: Flow) -> None:
        """Cancel a flow at once, without waiting for its workers."""
        self._change(flow, CancelFlow, Cancel, hard=True)

    def approve(self, stage: str) -> None:
        """Approve a stage that waits. A pending one needs no approval; IllegalTransition is raised for a later one."""
        placed = self.run(ApproveStage, stage)
        if placed.repeated and placed.was != PENDING:
            raise IllegalTransition("the stage is already approved", **{"from": placed.was})

    def _change(self, flow: Flow, verb: Verb, of_single: Verb | None, **fields: Any) -> None:
        """Carry out a command. Raises IllegalTransition also if it changes nothing: the engine takes a repetition."""
        if self.run_for(flow, verb, of_single, **fields).repeated:
            raise IllegalTransition("this is already done")

    def find_flow(self, id_: str) -> Flow:
        """A flow by its id, or a task without one as a flow."""
        try:
            return self.read(self.engine.flow, id_)
        except NotFound:
            return single_flow(self._single(id_, "job"))

    def find_stage(self, id_: str) -> Stage:
        """A stage by its id, or a task without a flow as a stage."""
        try:
            return self.read(self.engine.stage, id_)
        except NotFound:
            return single_stage(self._single(id_, "stage"))

    def _single(self, id_: str, entity: str) -> Task:
        for task in self.read(self.engine.tasks_by_id, [id_]):
            if task.stage_id is None:
                return task
        raise NotFound(f"there is no {entity} {id_}")

    def stages_of(self, flow: Flow) -> list[Stage]:
        """The stages of a flow, in order."""
        return [self.find_stage(flow.id)] if isinstance(flow, SingleFlow) else self.read(self.engine.stages, flow.id)

    def with_stages(self, flow: Flow, wanted: bool) -> tuple[Flow, list[Stage] | None]:
        """A flow, with its stages if these are wanted."""
        return flow, self.stages_of(flow) if wanted else None

    def list_flows(self, with_stages: bool = False, **filters: Any) -> Found:
        """A list of flows, each with its stages if these are wanted. Filters: see `engine.jobs`."""
        return Found(partial(self.read, self.engine.jobs, **filters), partial(self._flows_of, with_stages))

    def _flows_of(self, with_stages: bool, jobs: Sequence[JobSummary]) -> list[tuple[Flow, list[Stage] | None]]:
        """Costs the same for any number of jobs."""
        found = self.read(self.engine.job_details, [job.key for job in jobs], lines=0) if jobs else []
        flows = [each.flow or single_flow(each.task) for each in found]  # type: ignore[arg-type]
        if not with_stages:
            return [(flow, None) for flow in flows]
        stages: dict[str, list[Stage]] = {each.task.id: [single_stage(each.task)] for each in found if each.task}
        for stage in self.read(self.engine.stages_of_flows, [each.flow.id for each in found if each.flow]):
            stages.setdefault(stage.flow_id, []).append(stage)
        return [(flow, stages.get(flow.id, [])) for flow in flows]

    def list_stages(self, flow: str | None = None, with_tasks: bool = False, **filters: Any) -> Found:
        """A list of stages: of one flow in order, or of all, newest first. Filters: see `engine.find_stages`."""
        details = partial(self.with_tasks, wanted=with_tasks)
        if flow is None:
            return Found(partial(self.read, self.engine.find_stages, **filters), details)
        type_, states = filters.get("type"), filters.get("states")
        stages = self.stages_of(self.find_flow(flow))
        some = [stage for stage in stages if type_ in (None, stage.type) and (not states or stage.state in states)]
        return Found(some, details)

    def list_tasks(self, stage: str | None = None, **filters: Any) -> Found:
        """A list of tasks: of one stage, or of all, newest first. Filters: see `engine.find_tasks`."""
        if stage is not None and isinstance(self.find_stage(stage), SingleStage):
            return Found(self.read(self.engine.tasks_by_id, [stage]))
        return Found(partial(self.read, self.engine.find_tasks, stage=stage, **filters))

    def with_tasks(self, stages: Sequence[Stage], wanted: bool) -> list[tuple[Stage, list[Task] | None]]:
        """Stages, each with all its tasks if these are wanted."""
        tasks = self._tasks_of(stages) if wanted else {}
        return [(stage, tasks.get(stage.id)) for stage in stages]

    def _tasks_of(self, stages: Sequence[Stage]) -> dict[str, list[Task]]:
        """By the ids of the stages."""
        found = self.read(self.engine.tasks_of_stages, [stage.key for stage in stages], limit=MAX_ROWS)
        if len(found) == MAX_ROWS:
            raise InvalidInput(f"these stages have {MAX_ROWS:,} tasks or more: list the tasks by pages", field="page")
        found += self.read(self.engine.tasks_by_id, [stage.id for stage in stages if isinstance(stage, SingleStage)])
        tasks: dict[str, list[Task]] = {stage.id: [] for stage in stages}
        for task in found:
            tasks[task.stage_id or task.id].append(task)
        return tasks

    async def claim(self, **fields: Any) -> Task | None:
        """Claim one task and start it. Not redacted: a worker needs its whole input."""
        command = self._command(Claim, start=True, **fields)
        verdict, task = await self.services.gather(_run_about_tasks, command, beside="claims")
        verdict.unwrap()
        return task

    async def report(self, verb: Callable[..., Report], task: str, **fields: Any) -> tuple[Verdict, Task | None]:
        """Report about the current attempt of a task. Returns the verdict, and the task as it is then."""
        return await self.services.gather(_run_about_tasks, self._command(verb, task, **fields))

    def _command(self, verb: Verb, *args: Any, **fields: Any) -> Any:
        if "actor_name" in verb.__dataclass_fields__:  # type: ignore[attr-defined]
            fields["actor_name"] = self.principal.name
        if "actor_groups" in verb.__dataclass_fields__:  # type: ignore[attr-defined]
            fields["actor_groups"] = self.principal.groups
        command = verb(*args, namespace=self.namespace, **fields)
        carry([command])
        return command


def _run_about_tasks(services: Services, commands: list[Claim | Report]) -> list[tuple[Verdict, Task | None]]:
    """Run claims of one task each, and reports, in one transaction. Returns each verdict with its task."""
    verdicts = services.unredacted.run(commands)
    ids = [_task_of(command, verdict) for command, verdict in zip(commands, verdicts, strict=True)]
    tasks = _read_tasks(services, commands, ids)
    return [
        (verdict, tasks.get((isinstance(command, Claim), command.namespace, id_)))
        for command, verdict, id_ in zip(commands, verdicts, ids, strict=True)
    ]


def _task_of(command: Claim | Report, verdict: Verdict) -> str:
    if isinstance(command, Claim):
        return str(verdict.value[0].id) if verdict.value else ""
    return str(command.task).lower()


def _read_tasks(
    services: Services, commands: Sequence[Claim | Report], ids: list[str]
) -> dict[tuple[bool, str, str], Task]:
    """The tasks by whether they were claimed, namespace and id. What reporters get is redacted."""
    wanted: dict[str, list[tuple[bool, str]]] = {}
    for command, id_ in zip(commands, ids, strict=True):
        if id_:
            wanted.setdefault(command.namespace, []).append((isinstance(command, Claim), id_))
    found: dict[tuple[bool, str, str], Task] = {}
    for namespace, some in wanted.items():
        tasks = services.unredacted.tasks_by_id([id_ for _, id_ in some], namespace=namespace, raw=True)
        reported = {id_ for claimed, id_ in some if not claimed}
        found |= {(True, namespace, task.id): task for task in tasks}
        redacted = services.engine.redact([task for task in tasks if task.id in reported])
        found |= {(False, namespace, task.id): task for task in redacted}
    return found


STATE_OF_SINGLE = {
    QUEUED: PENDING, ASSIGNED: RUNNING, RUNNING: RUNNING, BLOCKED: WAITING, WAITING_INPUT: WAITING,
    SUCCEEDED: SUCCEEDED, FAILED: FAILED, DEAD_LETTERED: FAILED, CANCELLED: CANCELLED,
}  # fmt: skip
"""The state of the flow, and of the stage, as which a task without a flow is shown."""


class SingleFlow(Flow):
    """A task without a flow, shown as a flow."""


class SingleStage(Stage):
    """A task without a flow, shown as the stage of a flow."""


def single_flow(task: Task) -> SingleFlow:
    state = STATE_OF_SINGLE[task.state]
    is_open = task.finished_at is None
    return SingleFlow(
        key=task.key, id=task.id, namespace=task.namespace, name=task.kind, state=state, version=task.version,
        roll_up=STRICT, sealed=1, created_at=task.created_at, updated_at=task.updated_at, started_at=task.started_at,
        finished_at=task.finished_at, deadline_at=None, ending=None, ending_how=None,
        current_stage=task.kind if is_open else None,
        stages=1, stages_open=int(is_open), succeeded=int(state == SUCCEEDED), partial=0, failed=int(state == FAILED),
        cancelled=int(state == CANCELLED), skipped=0, ignored=0, retry_of=task.retry_of, compensates=None,
        compensation=None, correlation_id=task.correlation_id, trace=task.trace, tracestate=task.tracestate,
        priority=task.priority, data=task.payload, metadata=task.metadata, error=task.error, labels=task.labels,
    )  # fmt: skip


def single_stage(task: Task) -> SingleStage:
    return SingleStage(
        key=task.key, id=task.id, flow_id=task.id, namespace=task.namespace, order=1, name=task.kind,
        state=STATE_OF_SINGLE[task.state], version=task.version, on_failure=STOP, sealed=1, takes_more=False,
        created_at=task.created_at, updated_at=task.updated_at, started_at=task.started_at,
        finished_at=task.finished_at, due_at=None, ending=None, ending_how=None, counts=_counts(task), data=None,
        metadata=None,
        result=None, metrics=None, error=task.error, approval=None, answer=None, carried_from=None, type=task.kind,
        trace=task.trace, tracestate=task.tracestate,
    )  # fmt: skip


def _counts(task: Task) -> Counts:
    state = "held" if task.state in HELD else task.state
    waits = "retried" if task.attempts else "pending"
    return Counts(total=1, **{state: 1}, **({} if task.state in (*HELD, *TASK.terminal) else {waits: 1}))
