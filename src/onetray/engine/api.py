"""The methods of every engine: verbs, reads, and the few acts that are not commands.

`Engine` uses a database, `RemoteEngine` a server; `RedactedEngine` hides the fields that kinds redact. Owns the verbs:
each is a command for `run`. The reads are declared at their implementations and listed here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, ParamSpec, TypeVar

from onetray.config import EngineConfig
from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.errors import InvalidInput, OnetrayError, TooLarge, Unavailable
from onetray.domain.flow import Approval, More, Placed, Progress, StageSpec, TaskSpec
from onetray.domain.lifecycle import SUCCEEDED
from onetray.domain.system_commands import DeadLetterIt
from onetray.domain.task import Assignment, Receipt, Verdict
from onetray.domain.verbs import check_command, command_of
from onetray.engine.audit_api import AuditApi
from onetray.engine.bulk_api import BulkApi
from onetray.engine.caller_tx import require_submits
from onetray.engine.committer import CommandExecutor
from onetray.engine.dead_letter_api import DeadLetterApi
from onetray.engine.declared_flow_api import DeclaredFlowApi
from onetray.engine.event_api import EventApi
from onetray.engine.flow_api import FlowApi
from onetray.engine.job_details import JobApi
from onetray.engine.kind_api import KindApi
from onetray.engine.limit_api import LimitApi
from onetray.engine.list_api import ListApi
from onetray.engine.overview_api import OverviewApi
from onetray.engine.past_api import PastApi
from onetray.engine.piggyback import Piggyback, PiggybackClaim
from onetray.engine.reads import ApiMethod
from onetray.engine.schedule_api import ScheduleApi
from onetray.engine.schedule_reads import ScheduleReads
from onetray.engine.schedule_submits import ScheduleSubmits
from onetray.engine.statistics_api import StatisticsApi
from onetray.engine.task_api import TaskApi
from onetray.engine.upkeep_api import UpkeepApi
from onetray.engine.worker_api import WorkerApi
from onetray.notify.wake import Wake

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound="EngineApi")

_MORE = tuple(field.name for field in dataclass_fields(More))


class EngineApi(ABC):
    """The verbs and reads of an engine. Safe to use from any thread."""

    config: EngineConfig

    def __init__(self, committer: CommandExecutor, wake: Wake) -> None:
        self._committer, self.wake = committer, wake
        self.piggyback = Piggyback()

    @abstractmethod
    def bind(self, method: ApiMethod[P, R]) -> Callable[P, R]:
        """This engine's implementation of a read or an act: `engine.task` is `engine.bind(TaskApi.task)`."""

    @property
    @abstractmethod
    def redacted(self) -> EngineApi:
        """The same engine with redacted answers."""

    @property
    def has_janitor(self) -> bool:
        """Whether expired leases and due tasks are somebody else's business: those of a server are the server's."""
        return True

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: E) -> E:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, commands: Sequence[c.Command], *, connection: Any = None) -> list[Verdict]:
        """Run commands in as few transactions as possible. Returns their verdicts, in the same order.

        With a psycopg connection of yours, submits (and no other commands) run inside its transaction.
        """
        limits = self.config.limits
        if not isinstance(commands, Sequence):
            raise InvalidInput(f"commands must be a list, not {type(commands).__name__}", field="commands")
        if len(commands) > limits.batch:
            raise TooLarge(
                f"a batch has at most {limits.batch} commands, not {len(commands)}", field="batch", limit=limits.batch
            )
        if connection is not None:
            require_submits(commands)
        refused: dict[int, Verdict] = {}
        for i, command in enumerate(commands):
            try:
                check_command(command, limits)
            except OnetrayError as e:
                refused[i] = Verdict(error=e)
        accepted = [c for i, c in enumerate(commands) if i not in refused] if refused else commands
        verdicts = self._commit(accepted) if connection is None else self._submit_within(connection, accepted)
        for i, verdict in refused.items():
            verdicts.insert(i, verdict)
        return verdicts

    def _commit(self, commands: Sequence[c.Command]) -> list[Verdict]:
        chunk = self.config.chunk
        verdicts: list[Verdict] = []
        for start in range(0, len(commands), chunk):
            part = commands[start : start + chunk]
            claim = self.piggyback.take(part) if self.piggyback else None
            verdicts += self._committer.execute(part) if claim is None else self._commit_with(claim, part)
        return verdicts

    def _commit_with(self, piggyback: PiggybackClaim, commands: Sequence[c.Command]) -> list[Verdict]:
        answer = Verdict(error=Unavailable("the claim was not run"))
        # Somebody may wait for an outcome, but hardly for the news that a job was submitted and claimed.
        with self.wake.claiming(urgent=not isinstance(commands[0], c.Submit)):
            try:
                *verdicts, answer = self._committer.execute([*commands, piggyback.claim])
                return verdicts
            finally:
                piggyback.claimer.deliver(piggyback, answer)

    @abstractmethod
    def _submit_within(self, connection: object, commands: Sequence[c.Command]) -> list[Verdict]:
        """Run submits inside the caller's transaction."""

    def call(self, command: c.Command, *, connection: Any = None) -> Any:
        """Run one command. Returns its value or raises its error."""
        return self.run([command], connection=connection)[0].unwrap()

    def do(self, verb: str, **fields: Any) -> Any:
        """Run a command by the name of its verb."""
        return self.call(command_of(verb, fields))

    # The verbs, for one command each. For many at once: `run`.

    def submit(self, kind: str, payload: Any = None, *, connection: Any = None, **fields: Any) -> Receipt:
        """Submit a task. With a psycopg connection of yours, it exists exactly if your transaction commits."""
        return _receipt(self.call(c.Submit(kind=kind, payload=payload, **fields), connection=connection))

    def claim(self, queue: str = "default", *, worker: str, limit: int = 1, **fields: Any) -> list[Assignment]:
        claimed: list[Assignment] = self.call(c.Claim(queue=queue, worker=worker, limit=limit, **fields))
        return claimed

    def start(self, task: Assignment | int | str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Start(**_ticket_of(task, fields))), task)

    def beat(self, task: Assignment | int | str, **fields: Any) -> Any:
        return self.call(c.Beat(**_ticket_of(task, fields)))

    def succeed(self, task: Assignment | int | str, result: Any = None, **fields: Any) -> Receipt:
        more = {name: fields.pop(name) for name in _MORE if name in fields}
        if more:
            fields["more"] = More(**more)
        return _receipt(self.call(c.Succeed(result=result, **_ticket_of(task, fields))), task)

    def fail(self, task: Assignment | int | str, message: str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Fail(message=message, **_ticket_of(task, fields))), task)

    def release(self, task: Assignment | int | str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Release(**_ticket_of(task, fields))), task)

    def pause(self, task: Assignment | int | str, *, owner: str, reason: str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Pause(owner=owner, reason=reason, **_ticket_of(task, fields))), task)

    def log(self, task: Assignment | int | str, *lines: Any, **fields: Any) -> int:
        return int(self.call(c.Log(lines=lines, **_ticket_of(task, fields))))

    def resume(self, task: int | str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Resume(task=task, **fields)), task)

    def cancel(self, task: int | str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Cancel(task=task, **fields)), task)

    def redrive(self, task: int | str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Redrive(task=task, **fields)))

    def set_metadata(self, task: int | str, metadata: Any, **fields: Any) -> Receipt:
        return _receipt(self.call(c.SetMetadata(task=task, metadata=metadata, **fields)), task)

    def set_priority(self, task: int | str, priority: int, **fields: Any) -> Receipt:
        return _receipt(self.call(c.SetPriority(task=task, priority=priority, **fields)), task)

    def reschedule(self, task: int | str, **fields: Any) -> Receipt:
        return _receipt(self.call(c.Reschedule(task=task, **fields)), task)

    def dead_letter(self, task: int | str, reason_code: str, message: str = "", **fields: Any) -> Receipt:
        return _receipt(self.call(DeadLetterIt(task=task, reason_code=reason_code, message=message, **fields)), task)

    def say_progress(
        self,
        task: Assignment | int | str,
        done: float,
        total: float | None = None,
        message: str | None = None,
        **fields: Any,
    ) -> Receipt:
        """Report the progress of a task that the caller holds."""
        progress = c.Progress(done=done, total=total, message=message, **_ticket_of(task, fields))
        return _receipt(self.call(progress), task)

    def checkpoint(self, task: Assignment | int | str, body: Any, **fields: Any) -> Receipt:
        """Store a value for the next attempt of a task that the caller holds."""
        return _receipt(self.call(c.Checkpoint(body=body, **_ticket_of(task, fields))), task)

    def submit_flow(
        self, name: str, stages: Sequence[StageSpec] = (), *, connection: Any = None, **fields: Any
    ) -> Placed:
        """Submit a flow. Stages can be added later. With a psycopg connection of yours, inside its transaction."""
        return _placed(self.call(f.SubmitFlow(name=name, stages=list(stages), **fields), connection=connection))

    def submit_declared(self, name: str, config: Any = None, *, connection: Any = None, **fields: Any) -> Placed:
        """Submit a flow that a worker has declared, by its name."""
        return _placed(self.call(f.SubmitDeclared(name=name, config=config, **fields), connection=connection))

    def add_stage(self, flow: str, stage: StageSpec, **fields: Any) -> Placed:
        return _placed(self.call(f.AddStage(flow, stage=stage, **fields)))

    def add_tasks(self, stage: str, tasks: Sequence[TaskSpec], **fields: Any) -> Placed:
        return _placed(self.call(f.AddTasks(stage, tasks=list(tasks), **fields)))

    def open_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.OpenFlow(flow, **fields)))

    def pause_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.PauseFlow(flow, **fields)))

    def resume_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.ResumeFlow(flow, **fields)))

    def set_flow_metadata(self, flow: str, metadata: Any, **fields: Any) -> Placed:
        return _placed(self.call(f.SetFlowMetadata(flow, metadata=metadata, **fields)))

    def set_flow_priority(self, flow: str, priority: int, **fields: Any) -> Placed:
        return _placed(self.call(f.SetFlowPriority(flow, priority=priority, **fields)))

    def set_stage_metadata(self, stage: str, metadata: Any, **fields: Any) -> Placed:
        return _placed(self.call(f.SetStageMetadata(stage, metadata=metadata, **fields)))

    def cancel_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.CancelStage(stage, **fields)))

    def cancel_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.CancelFlow(flow, **fields)))

    def seal_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.SealFlow(flow, **fields)))

    def retry_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.RetryFlow(flow, **fields)))

    def seal_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.SealStage(stage, **fields)))

    def wait_stage(self, stage: str, approval: Approval | None = None, **fields: Any) -> Placed:
        return _placed(self.call(f.WaitStage(stage, approval=approval, **fields)))

    def approve_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.ApproveStage(stage, **fields)))

    def reject_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.RejectStage(stage, **fields)))

    def skip_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.SkipStage(stage, **fields)))

    def append_context(self, flow: str, payload: Any, **fields: Any) -> str:
        """Append a context to a flow. Returns its id."""
        return str(self.call(f.AppendContext(flow, payload=payload, **fields)))

    # Settings and registrations.

    configure = KindApi.configure
    declare = KindApi.declare
    declare_flow = DeclaredFlowApi.declare_flow
    declare_schedules = ScheduleApi.declare_schedules
    worker_beat = WorkerApi.worker_beat
    worker_leave = WorkerApi.worker_leave

    # Reads and acts: see engine/reads.py.

    aliases_of = JobApi.aliases_of
    at = PastApi.at
    audit = AuditApi.audit
    backfill_schedule = ScheduleSubmits.backfill_schedule
    breakers = WorkerApi.breakers
    bulk = BulkApi.bulk
    bulks = BulkApi.bulks
    by_alias = JobApi.by_alias
    close_breaker = WorkerApi.close_breaker
    context = FlowApi.context
    context_by_id = FlowApi.context_by_id
    contexts = FlowApi.contexts
    count_by_state = ListApi.count_by_state
    dead_groups = DeadLetterApi.dead_groups
    dead_letters = TaskApi.dead_letters
    dead_lines = DeadLetterApi.dead_lines
    declare_limit = LimitApi.declare_limit
    declared_flow = DeclaredFlowApi.declared_flow
    declared_flows = DeclaredFlowApi.declared_flows
    delete_job = JobApi.delete_job
    dependencies = TaskApi.dependencies
    events = TaskApi.events
    events_by_correlation = TaskApi.events_by_correlation
    events_since = EventApi.events_since
    expire_tasks = UpkeepApi.expire_tasks
    explain = TaskApi.explain
    explain_schedule = ScheduleReads.explain_schedule
    find_aliases = JobApi.find_aliases
    find_stages = ListApi.find_stages
    find_tasks = ListApi.find_tasks
    tasks_by_id = TaskApi.tasks_by_id
    flow = FlowApi.flow
    flow_errors = FlowApi.flow_errors
    flow_events = FlowApi.flow_events
    flows = FlowApi.flows
    forget_flow = DeclaredFlowApi.forget_flow
    held = WorkerApi.held
    inputs = FlowApi.inputs
    job_counts = ListApi.job_counts
    job_details = JobApi.job_details
    job_key = ListApi.job_key
    job_status = JobApi.job_status
    jobs = ListApi.jobs
    kinds = ListApi.kinds
    labels_of = JobApi.labels_of
    last_checkpoint = WorkerApi.last_checkpoint
    limit = LimitApi.limit
    limit_holders = LimitApi.limit_holders
    limit_values = LimitApi.limit_values
    limits = LimitApi.limits
    locate = ListApi.locate
    logs = TaskApi.logs
    member_reports = FlowApi.member_reports
    members = ListApi.members
    now = WorkerApi.now
    open_breaker = WorkerApi.open_breaker
    overview = OverviewApi.overview
    own_events = JobApi.own_events
    pause_queue = KindApi.pause_queue
    pause_schedule = ScheduleApi.pause_schedule
    pending_tasks = TaskApi.pending_tasks
    percentages = FlowApi.percentages
    policy_of = KindApi.policy_of
    position = TaskApi.position
    preview_bulk = BulkApi.preview_bulk
    preview_schedule = ScheduleReads.preview_schedule
    progress = FlowApi.progress
    progress_of = WorkerApi.progress_of
    prune_jobs = UpkeepApi.prune_jobs
    put_schedule = ScheduleApi.put_schedule
    queues = ListApi.queues
    remove_limit = LimitApi.remove_limit
    reset_limit = LimitApi.reset_limit
    remove_schedule = ScheduleApi.remove_schedule
    resume_bulk = BulkApi.resume_bulk
    resume_queue = KindApi.resume_queue
    resume_schedule = ScheduleApi.resume_schedule
    retried = ListApi.retried
    schedule = ScheduleReads.schedule
    schedule_fires = ScheduleReads.schedule_fires
    schedules = ScheduleReads.schedules
    set_limit = LimitApi.set_limit
    set_weight = LimitApi.set_weight
    sorted_jobs = ListApi.sorted_jobs
    stage = FlowApi.stage
    stage_members = ListApi.stage_members
    stage_results = FlowApi.stage_results
    stage_tasks = FlowApi.stage_tasks
    statistics = StatisticsApi.statistics
    stages_of_flows = FlowApi.stages_of_flows
    tasks_of_stages = FlowApi.tasks_of_stages
    stages = FlowApi.stages
    start_bulk = BulkApi.start_bulk
    stop_bulk = BulkApi.stop_bulk
    task = TaskApi.task
    tasks = TaskApi.tasks
    timeline = PastApi.timeline
    trigger_schedule = ScheduleSubmits.trigger_schedule
    waiting = OverviewApi.waiting
    weights = LimitApi.weights
    workers = WorkerApi.workers

    def task_progress(self, task: str, *, namespace: str = "default") -> Progress:
        """The progress of a single task, in the same form as that of a flow (`progress`)."""
        found, reported = self.task(task, namespace=namespace), self.progress_of(task, namespace=namespace)
        while found.finished_at is None and (now := self.task(task, namespace=namespace)).version != found.version:
            found, reported = now, self.progress_of(task, namespace=namespace)
        return Progress.of_task(found, reported)

    def all_results(self, stage: str, *, namespace: str = "default") -> list[Any]:
        """The results of all succeeded tasks of a stage, in order."""
        results: list[Any] = []
        after = 0
        while page := self.stage_results(stage, namespace=namespace, after=after):
            results += [row.result for row in page if row.state == SUCCEEDED]
            after = page[-1].key
        return results


METHODS = {name: method for name, method in vars(EngineApi).items() if isinstance(method, ApiMethod) and method.scopes}
READS = {name: method for name, method in METHODS.items() if not method.writes}
"""Reads that a server offers at /api/v1/reads/{name}."""
ACTS = {name: method for name, method in METHODS.items() if method.writes}
"""Acts that a server offers at /api/v1/acts/{name}."""


def _ticket_of(task: Assignment | int | str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**(c.ticket(task) if isinstance(task, Assignment) else {"task": task}), **fields}


def _receipt(value: Any, task: Assignment | int | str | None = None) -> Receipt:
    """The receipt of one call, with the task's id if the caller passed an id or an assignment."""
    assert isinstance(value, Receipt)
    if value.id is not None or task is None or isinstance(task, int):
        return value
    return value._replace(id=task.id if isinstance(task, Assignment) else task.lower())


def _placed(value: Any) -> Placed:
    assert isinstance(value, Placed)
    return value
