"""Reads about the past: a job as it was after an event, and the states of a job over time. Both come from the log.

Owns which rows and events are read, and that they fit together. fold.py and fold_flows.py rebuild the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple, NoReturn, TypeVar

from onetray.domain.checks import FAR_US, whole
from onetray.domain.errors import Busy, NotFound
from onetray.domain.flow import Flow, Stage
from onetray.domain.lifecycle import FLOW, HELD, MACHINES, STAGE, TASK
from onetray.domain.past import Interval, PastJob, Timeline
from onetray.domain.task import Task
from onetray.engine.flow_api import FlowApi, tasks_of_rows
from onetray.engine.fold import FoldedTask, TaskParts, fold_task, worker_of
from onetray.engine.fold_flows import FlowFold, FoldedFlow, Members, fold_members
from onetray.engine.reads import DatabaseReads, read
from onetray.engine.task_api import TaskApi
from onetray.feed.history import LAST, batch_of
from onetray.redaction.answers import of_past, plain
from onetray.store.event_log import Entry, decode_batch, entry_at
from onetray.store.rows import FlowMemberRow

T = TypeVar("T")

MAX_TASKS = 1_000
"""How many tasks of a flow one answer contains."""
MAX_MEMBERS, MAX_MOVES = 100_000, 400_000
"""How many tasks of a flow, and transitions of them, are read to count its tasks by state."""
MAX_INTERVALS = 10_000
PAGE = 1_000
TRIES = 10
_MOVES = [transition.event for transition in TASK.transitions]


class PastApi(DatabaseReads):
    """The engine's reads about the past of jobs, on a database."""

    def __init__(self, tasks: TaskApi, flows: FlowApi) -> None:
        super().__init__(tasks.store, tasks.config, tasks.must_not_have_forked)
        self._tasks, self._flows = tasks, flows

    @read(of_past)
    def at(self, job: str, event: int, *, tasks: int = 100, namespace: str = "default") -> PastJob:
        """A task, or a flow with its stages and the first of its tasks, as it was right after one of its events.

        Of a flow, the event may also be one of its stages or tasks. `unknown` lists the fields that the log does not
        tell. Nothing can be done in the past: `actions` are empty.
        """
        whole(event, "event", 1, FAR_US)
        whole(tasks, "tasks", 0, MAX_TASKS)
        found = self._job(job, namespace)
        return self._task_at(found, event) if isinstance(found, Task) else self._flow_at(found, event, tasks)

    @read(plain)
    def timeline(self, job: str, *, tasks: int = 100, namespace: str = "default") -> Timeline:
        """The open states of a job over time: of a task; or of a flow, its stages and the first of its tasks."""
        whole(tasks, "tasks", 0, MAX_TASKS)
        found = self._job(job, namespace)
        if isinstance(found, Flow):
            lines, cut = self._lines(found, tasks)
        else:
            lines, cut = [_Line(TASK.entity, found.key, found.id, found.name or found.kind, None)], False
        by_entity: dict[int, list[Entry]] = {line.key: [] for line in lines}
        for entry in self._entries(list(by_entity)):
            if entry.version is not None:
                by_entity[entry.entity].append(entry)
        intervals = [interval for line in lines for interval in _intervals(line, by_entity[line.key])]
        return Timeline(
            FLOW.entity if isinstance(found, Flow) else TASK.entity, found.id, found.created_at, found.finished_at,
            self.store.now(), tuple(intervals[:MAX_INTERVALS]), cut or len(intervals) > MAX_INTERVALS,
        )  # fmt: skip

    def _job(self, job: str, namespace: str) -> Task | Flow:
        try:
            return self._tasks.task(job, namespace=namespace)
        except NotFound:
            pass
        try:
            return self._flows.flow(job, namespace=namespace)
        except NotFound:
            raise NotFound(f"there is no job {job}; with a deleted job its history is gone", job=job) from None

    # A task.

    def _task_at(self, found: Task, event: int) -> PastJob:
        def rows() -> tuple[Task, TaskParts]:
            now = self._tasks.task(found.id, namespace=found.namespace)
            return now, self._parts_of(now, event) if now.stage_id else TaskParts()

        own = self._entries([found.key])
        entry = _entry(own, event) or _not_its_event(TASK.entity, found.id, event, own)
        entries, (now, parts) = self._settled([found.key], rows)
        task, unknown = fold_task(now, entries, event, parts, self.config.note_types)
        return PastJob(event, entry.ts, entry.type, TASK.entity, task, None, unknown=_by_id([(task.id, unknown)]))

    def _parts_of(self, task: Task, event: int) -> TaskParts:
        """What of its flow decides about a task."""
        flow = self._flows.flow(task.job_id, namespace=task.namespace, raw=True)
        stage = self._flows.stage(str(task.stage_id), namespace=task.namespace, raw=True)
        needs = [row.key for row in self.store.read("needed_by", task=task.key)]
        past = [e for e in self._entries(needs) if e.id <= event] if needs else []
        met = {e.entity for e in past if e.type in (TASK.succeed.event, TASK.carry_over.event)}
        members = self.store.read("members_to_fold", stages=[stage.key], limit=MAX_MEMBERS)
        successor = _successors(members).get(task.key)
        name = None
        if successor is not None and self._entries([successor.key])[0].id > event:
            name = _last_name(members, task.key)
        return TaskParts(self._entries([flow.key]), needs, met, name)

    # A flow.

    def _flow_at(self, found: Flow, event: int, limit: int) -> PastJob:
        entry = self._entry_of_flow(found, event)
        stage_keys = [stage.key for stage in self._flows.stages(found.id, namespace=found.namespace, raw=True)]
        members = self._members(found.key, stage_keys, event)
        shown = list(members.found)[:limit]

        def rows() -> tuple[Flow, list[Stage], list[Task]]:
            return (
                self._flows.flow(found.id, namespace=found.namespace),
                self._flows.stages(found.id, namespace=found.namespace),
                tasks_of_rows(self.store, self.store.read("tasks_by_keys", keys=shown)) if shown else [],
            )

        entries, (flow, stages, tasks) = self._settled([found.key, *stage_keys, *shown], rows)
        known = {found.key, *stage_keys}
        of_flow = [e for e in entries if e.entity in known]
        stages = [stage for stage in stages if stage.key in known]
        folded = FlowFold(flow, stages, of_flow, members, entry, self.config.note_types).fold()
        by_key = {task.key: task for task in tasks}
        past = self._fold_tasks([by_key[key] for key in shown if key in by_key], entries, members, found.key, event)
        return _past_flow(entry, folded, past, len(members.found) > limit)

    def _entry_of_flow(self, flow: Flow, event: int) -> Entry:
        rows = self.store.read(
            "batches_of_flows", keys=[flow.key], after=event - 1, upto=event, limit=PAGE, every=1, types=[]
        )
        found = [e for row in rows for e in decode_batch(row) if e.id == event and e.job == flow.key]
        return found[0] if found else _not_its_event(FLOW.entity, flow.id, event, self._entries([flow.key]))

    def _members(self, flow: int, stages: list[int], event: int) -> Members:
        """The tasks of a flow as they were. A very large flow is not counted."""
        rows = self.store.read("members_to_fold", stages=stages, limit=MAX_MEMBERS + 1) if stages else []
        moves: list[Entry] = []
        for entry in self._moves_of_tasks(flow):
            moves.append(entry)
            if len(moves) > MAX_MOVES:
                break
        is_whole = len(rows) <= MAX_MEMBERS and len(moves) <= MAX_MOVES
        return fold_members(rows, moves, event, is_whole)

    def _moves_of_tasks(self, flow: int) -> Iterator[Entry]:
        """The transitions of all tasks of a flow, in order."""
        after = 0
        while True:
            rows = self.store.read(
                "batches_of_flows", keys=[flow], after=after, upto=LAST, limit=PAGE, every=0, types=_MOVES
            )
            for row in rows:
                yield from (e for e in decode_batch(row) if e.job == flow and e.id > after)
            if len(rows) < PAGE:
                return
            after = rows[-1].id + rows[-1].size - 1

    def _fold_tasks(
        self, tasks: Sequence[Task], entries: Sequence[Entry], members: Members, flow: int, event: int
    ) -> list[FoldedTask]:
        logs: dict[int, list[Entry]] = {task.key: [] for task in tasks}
        for e in entries:
            if e.entity in logs:
                logs[e.entity].append(e)
        flow_log = [e for e in entries if e.entity == flow]
        needs = self._needs([task.id for task in tasks], tasks[0].namespace) if tasks else {}
        met = members.met if members.is_whole else None
        redriven = members.redriven
        folded = []
        for task in tasks:
            # Its successor has its name now.
            name = None if task.key in redriven else _last_name(members.rows, task.key)
            parts = TaskParts(flow_log, needs.get(task.id, ()), met, name)
            folded.append(fold_task(task, logs[task.key], event, parts, self.config.note_types))
        return folded

    def _needs(self, ids: list[str], namespace: str) -> dict[str, list[int]]:
        """The tasks that these depend on, by their ids."""
        rows = self.store.read("dependencies_of", ids=ids, namespace=namespace)
        needed = sorted({row.needs_id for row in rows})
        keys = {row.id: row.key for row in self.store.read("keys_of", ids=needed)} if needed else {}
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(row.task_id, []).append(keys[row.needs_id])
        return found

    # The log.

    def _entries(self, keys: Sequence[int]) -> list[Entry]:
        """The events of tasks, stages and flows, notes included, in order."""
        found: list[Entry] = []
        while True:
            after = found[-1].id if found else 0
            rows = self.store.read("batches_of_entities", keys=list(keys), after=after, limit=PAGE)
            found += [entry_at(batch_of(row), row.event) for row in rows]
            if len(rows) < PAGE:
                return found

    def _settled(self, keys: Sequence[int], rows: Callable[[], T]) -> tuple[list[Entry], T]:
        """The events of entities, and rows about them that are as new as these events."""
        entries = self._entries(keys)
        for _ in range(TRIES):
            found, before = rows(), entries
            entries = self._entries(keys)
            if len(entries) == len(before):
                return entries, found
        raise Busy("the job changes while it is read: try again")

    def _lines(self, flow: Flow, limit: int) -> tuple[list[_Line], bool]:
        """The flow, its stages, each followed by its tasks; and whether there are more tasks."""
        stages = self._flows.stages(flow.id, namespace=flow.namespace, raw=True)
        rows = self.store.read("list_members", job=flow.key, ord=0, after=0, any_state=1, states=[], limit=limit + 1)
        lines = [_Line(FLOW.entity, flow.key, flow.id, flow.name, None)]
        for stage in stages:
            lines.append(_Line(STAGE.entity, stage.key, stage.id, stage.name, None))
            lines += [
                _Line(TASK.entity, row.key, row.id, row.name or row.kind, stage.id)
                for row in rows[:limit] if row.stage == stage.name
            ]  # fmt: skip
        return lines, len(rows) > limit


class _Line(NamedTuple):
    """A flow, a stage or a task of a timeline."""

    entity: str
    key: int
    id: str
    label: str
    stage: str | None


def _intervals(line: _Line, moves: Sequence[Entry]) -> Iterator[Interval]:
    """The open states of an entity, from its transitions. A state that lasted no time is left out."""
    lasting = [move for i, move in enumerate(moves) if i + 1 == len(moves) or moves[i + 1].ts > move.ts]
    claims = [move for move in moves if move.type == TASK.claim.event]
    for move, then in zip_longest(lasting, lasting[1:]):
        state = str(move.state)
        if state in MACHINES[line.entity].terminal:
            continue
        is_held = line.entity == TASK.entity and state in HELD
        claim = next(e for e in reversed(claims) if e.id <= move.id) if is_held else None
        yield Interval(
            line.entity, line.id, line.label, line.stage, state, move.ts, then.ts if then else None,
            move.attempts if is_held else None, worker_of(claim) if claim else None, move.id,
            then.state if then else None,
        )  # fmt: skip


def _past_flow(entry: Entry, folded: FoldedFlow, tasks: Sequence[FoldedTask], cut: bool) -> PastJob:
    unknown = [(folded.flow.id, folded.unknown)]
    unknown += [(stage.id, names) for stage, names in folded.stages]
    unknown += [(task.id, names) for task, names in tasks]
    return PastJob(
        entry.id, entry.ts, entry.type, FLOW.entity, None, folded.flow, tuple(stage for stage, _ in folded.stages),
        tuple(task for task, _ in tasks), cut, _by_id(unknown),
    )  # fmt: skip


def _by_id(unknown: Sequence[tuple[str, list[str]]]) -> dict[str, list[str]]:
    return {id_: names for id_, names in unknown if names}


def _entry(entries: Sequence[Entry], event: int) -> Entry | None:
    return next((e for e in entries if e.id == event), None)


def _not_its_event(entity: str, id_: str, event: int, own: Sequence[Entry]) -> NoReturn:
    first = own[0].id if own else 0
    if event < first:
        raise NotFound(
            f"the {entity} {id_} was submitted by event {first}: it did not exist at event {event}",
            event=event, first_event=first,
        )  # fmt: skip
    raise NotFound(
        f"event {event} is none of the {entity} {id_}, or it was a note that has been deleted: list its events with "
        f"`onetray jobs events {id_}`",
        event=event, first_event=first,
    )  # fmt: skip


def _successors(rows: Sequence[FlowMemberRow]) -> dict[int, FlowMemberRow]:
    """By the key of a task, the one that has replaced it in its stage."""
    stage_of = {row.key: row.stage for row in rows}
    return {row.retry_of: row for row in rows if row.retry_of is not None and stage_of.get(row.retry_of) == row.stage}


def _last_name(rows: Sequence[FlowMemberRow], key: int) -> str | None:
    """The name that a redriven task has given to its successors."""
    successors, name = _successors(rows), None
    while key in successors:
        key, name = successors[key].key, successors[key].name or name
    return name
