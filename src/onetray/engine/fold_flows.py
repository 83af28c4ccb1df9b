"""Fold the log of a flow: the flow and its stages as they were right after an event.

Owns which of their fields the log determines, and the counts of tasks and stages by state. fold.py folds tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from onetray.domain.actions import actions_by_state
from onetray.domain.flow import Counts, Flow, Stage
from onetray.domain.lifecycle import (
    BLOCKED,
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    FLOW,
    HELD,
    PARTIAL,
    STAGE,
    SUCCEEDED,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.rollup import SEALED, STOP, counts_as, goes_on
from onetray.engine.fold import FLOW_PRIORITY_SET, SUCCEEDS, Log, Unknown, facts_of
from onetray.engine.pending_writes import ENGINE
from onetray.store.event_log import Entry
from onetray.store.rows import FlowMemberRow

APPROVED = "approved"
FLOW_CANCEL_REQUESTED = "flow.cancel_requested"
FLOW_SEALED, STAGE_SEALED = "flow.sealed", "stage.sealed"
FLOW_METADATA_SET, STAGE_METADATA_SET = "flow.metadata_set", "stage.metadata_set"
CONTEXT_APPENDED, COMPENSATION_SUBMITTED = "flow.context_appended", "flow.compensation_submitted"
_STAGE_ENDS = frozenset(t.event for t in STAGE.transitions if t.target in STAGE.terminal)
_OPENS = (STAGE.open.event, STAGE.approve.event)
_FAILURES = frozenset({
    TASK.fail.event, TASK.time_out.event, TASK.dead_letter.event, TASK.carry_over_failed.event,
    TASK.carry_over_dead.event,
})  # fmt: skip


@dataclass(slots=True)
class Member:
    """A task of a flow as it was, as far as its stage counts it."""

    row: FlowMemberRow
    state: str
    attempts: int
    partly: bool = False
    failed: bool = False
    """Whether it had ended with errors."""
    metrics: bool = False


@dataclass(slots=True)
class Members:
    """The tasks of a flow as they were, in the order of stages and keys; and in which stages what came later."""

    rows: Sequence[FlowMemberRow]
    """All tasks of today."""
    found: dict[int, Member] = field(default_factory=dict)
    errors_later: set[int] = field(default_factory=set)
    metrics_later: set[int] = field(default_factory=set)
    is_whole: bool = True
    """Whether all events of the tasks were read."""

    @property
    def met(self) -> set[int]:
        """Those that had succeeded."""
        return {key for key, member in self.found.items() if member.state == SUCCEEDED}

    @property
    def redriven(self) -> set[int]:
        """Those that had a successor in their stage."""
        stage_of = {key: member.row.stage for key, member in self.found.items()}
        return {
            m.row.retry_of for m in self.found.values()
            if m.row.retry_of is not None and stage_of.get(m.row.retry_of) == m.row.stage
        }  # fmt: skip


def fold_members(rows: Sequence[FlowMemberRow], moves: Iterable[Entry], upto: int, is_whole: bool) -> Members:
    """The tasks of a flow that existed after the event `upto`, from the transitions of all of them."""
    members, by_key = Members(rows, is_whole=is_whole), {row.key: row for row in rows}
    found: dict[int, Member] = {}
    for e in moves:
        row = by_key.get(e.entity)
        if row is None:
            continue
        facts = facts_of(e) if e.type in SUCCEEDS else {}
        has_failed = e.type in _FAILURES or bool(facts.get("partial"))
        if e.id > upto:
            if has_failed or (e.version == 1 and row.retry_of in by_key):
                members.errors_later.add(row.stage)
            if "metrics" in facts:
                members.metrics_later.add(row.stage)
            continue
        member = found.setdefault(e.entity, Member(row, str(e.state), e.attempts))
        member.state, member.attempts = str(e.state), e.attempts
        member.partly, member.failed, member.metrics = bool(facts.get("partial")), has_failed, "metrics" in facts
    members.found = {row.key: found[row.key] for row in rows if row.key in found}
    return members


def _counts(members: Sequence[Member], redriven: int, is_opened: bool) -> Counts:
    """How a stage counts its tasks, without those that were redriven, of which it has only the number."""
    by_state: dict[str, int] = defaultdict(int)
    for member in members:
        by_state[member.state] += 1
    held = [m for m in members if m.state in HELD]
    open_ = sum(n for state, n in by_state.items() if state not in TASK.terminal)
    retrying = sum(m.attempts - (m.state in HELD) > 0 for m in members if m.state not in TASK.terminal)
    waiting = open_ - len(held)
    retried = min(max(retrying - sum(m.attempts > 1 for m in held), 0), waiting)
    created = 0 if is_opened else waiting
    return Counts(
        total=len(members) + redriven, queued=waiting - by_state[BLOCKED] - by_state[WAITING_INPUT], held=len(held),
        blocked=by_state[BLOCKED], waiting_input=by_state[WAITING_INPUT], succeeded=by_state[SUCCEEDED],
        partly=sum(m.partly for m in members), failed=by_state[FAILED], dead_lettered=by_state[DEAD_LETTERED],
        cancelled=by_state[CANCELLED], redriven=redriven, retrying=retrying, created=created,
        pending=waiting - retried - created, retried=retried,
    )  # fmt: skip


class FoldedStage(NamedTuple):
    stage: Stage
    unknown: list[str]


class FoldedFlow(NamedTuple):
    flow: Flow
    stages: list[FoldedStage]
    unknown: list[str]


class FlowFold:
    """Folds a flow and its stages. `entries` are their events and the notes of the flow, without those of tasks."""

    def __init__(
        self, flow: Flow, stages: Sequence[Stage], entries: Iterable[Entry], members: Members, event: Entry,
        pruned: Collection[str],
    ) -> None:  # fmt: skip
        upto, self.ts = event.id, event.ts
        self.now, self.log, self.members, self.pruned = flow, Log(entries, upto), members, pruned
        self.logs: Mapping[int, Log] = {
            key: Log([e for e in self.log.entries if e.entity == key], upto)
            for key in (flow.key, *(stage.key for stage in stages))
        }
        self.own = self.logs[flow.key]
        self.own.require_whole(FLOW.entity, flow.id, flow.version)
        for stage in stages:
            self.logs[stage.key].require_whole(STAGE.entity, stage.id, stage.version)
        self.stages = [stage for stage in stages if self.logs[stage.key].moves]
        self.state = str(self.own.moves[-1].state)

    def fold(self) -> FoldedFlow:
        stages = [self._stage(stage) for stage in self.stages]
        last, start = self.own.moves[-1], next((e for e in self.own.past if e.type == FLOW.start.event), None)
        has_ended = self.state in FLOW.terminal
        values: dict[str, Any] = {
            "state": self.state, "version": last.version, "updated_at": last.ts,
            "started_at": start.ts if start else None, "finished_at": last.ts if has_ended else None,
            "error": self.now.error if has_ended else None,
            "compensation": self.now.compensation if self.own.last(COMPENSATION_SUBMITTED) else None,
            "not_now": actions_by_state(FLOW.entity, self.state, self.now.actor),
            **self._stage_counts(),
        }  # fmt: skip
        found, unknown = _found({
            "sealed": self._sealed, "priority": self._priority, "metadata": self._metadata,
            "current_stage": self._current_stage, "ending": lambda: self._ending()[0],
            "ending_how": lambda: self._ending()[1], "context_id": self._context_id,
        }, self.pruned)  # fmt: skip
        return FoldedFlow(replace(self.now, **values | found), stages, unknown)

    # The flow.

    def _is_latest(self) -> bool:
        """Whether the flow and its stages have no later events."""
        return not self.log.later

    def _context_id(self) -> str | None:
        current = [e for e in self.own.past if e.type == CONTEXT_APPENDED and facts_of(e).get("scope") == "run"]
        return facts_of(current[-1])["context"] if current else None

    def _sealed(self) -> int:
        if self.now.sealed != SEALED or self.own.last(FLOW_SEALED) or self._stopped(self.log.past):
            return self.now.sealed
        if self.own.next(FLOW_SEALED) or self._stopped(self.log.later):
            raise Unknown
        return self.now.sealed

    def _stopped(self, entries: Iterable[Entry]) -> bool:
        """Whether a stage has ended in a way that stops the flow, which then takes no more stages."""
        on_failure = {stage.key: stage.on_failure for stage in self.stages}
        ends = (e for e in entries if e.type in _STAGE_ENDS)
        return any(not goes_on(str(e.state), on_failure.get(e.entity, STOP)) for e in ends)

    def _priority(self) -> int:
        setter, later = self.own.last(FLOW_PRIORITY_SET), self.own.next(FLOW_PRIORITY_SET)
        if later is None:
            return self.now.priority
        return int(facts_of(setter)["priority"] if setter else facts_of(later)["was"])

    def _metadata(self) -> Any:
        if self.own.next(FLOW_METADATA_SET):
            raise Unknown
        return self.now.metadata

    def _stage_counts(self) -> dict[str, int]:
        counts = dict.fromkeys((SUCCEEDED, PARTIAL, FAILED, CANCELLED, "skipped", "ignored"), 0)
        for stage in self.stages:
            end = self.logs[stage.key].last(*_STAGE_ENDS)
            if end is not None:
                counts[_counter(end, stage.on_failure)] += 1
        return {"stages": len(self.stages), "stages_open": len(self.stages) - sum(counts.values()), **counts}

    def _current_stage(self) -> str | None:
        """Follow the flow from stage to stage."""
        if self._is_latest():
            return self.now.current_stage
        order = {stage.key: stage for stage in self.stages}
        ended: set[int] = set()
        added: list[Stage] = []
        current: Stage | None = None
        is_open = is_ending = False
        for e in self.log.past:
            stage = order.get(e.entity)
            if e.type == FLOW.open.event:
                is_open, current = True, _first(added, ended, 0) or current
            elif e.type == FLOW_CANCEL_REQUESTED:
                is_ending = True
            elif stage is not None and e.type == STAGE.add.event:
                was_done = len(ended) == len(added)
                added.append(stage)
                current = stage if is_open and was_done else current
            elif stage is not None and e.type in _STAGE_ENDS:
                ended.add(stage.key)
                if stage is current and not is_ending and goes_on(str(e.state), stage.on_failure):
                    if self._ends_unannounced:
                        # It may have ended, or was skipped, because the flow was ending: then no other stage follows.
                        raise Unknown
                    current = _first(added, ended, stage.order) or current
        return current.name if current else None

    @property
    def _ends_unannounced(self) -> bool:
        """Whether the flow was ended by a deadline: no event says when its end began."""
        entries = self.own.entries
        announced = any(e.type == FLOW_CANCEL_REQUESTED for e in entries)
        ends = {e.type for e in entries if e.state in FLOW.terminal}
        is_ending = self.now.ending is not None or FLOW.cancel.event in ends
        return FLOW.time_out.event in ends or self.now.ending == FAILED or (is_ending and not announced)

    def _ending(self) -> tuple[str | None, str | None]:
        if self.state in FLOW.terminal:
            return None, None
        if self._is_latest():
            return self.now.ending, self.now.ending_how
        if self._ends_unannounced:
            raise Unknown
        request = self.own.last(FLOW_CANCEL_REQUESTED)
        if request is None:
            return None, None
        return CANCELLED, "hard" if facts_of(request).get("hard") else "soft"

    # A stage.

    def _stage(self, now: Stage) -> FoldedStage:
        log = self.logs[now.key]
        last, start = log.moves[-1], next((e for e in log.past if e.type == STAGE.start.event), None)
        state = str(last.state)
        has_ended = state in STAGE.terminal
        redriven = self.members.redriven
        of_stage = [m for m in self.members.found.values() if m.row.stage == now.key and not m.row.control]
        kept = [m for m in of_stage if m.row.key not in redriven]
        values: dict[str, Any] = {
            "state": state, "version": last.version, "updated_at": last.ts, "started_at": start.ts if start else None,
            "finished_at": last.ts if has_ended else None,
            "result": now.result if has_ended or now.carried_from else None, "error": now.error if has_ended else None,
            "counts": _counts(kept, len(of_stage) - len(kept), bool(log.last(*_OPENS))),
            "not_now": actions_by_state(STAGE.entity, state, now.actor), "reported_progress": 0.0,
        }  # fmt: skip
        found, unknown = _found({
            "sealed": lambda: self._sealed_stage(now), "due_at": lambda: self._due_at(now, log, state),
            "ending": lambda: self._ending_of(now, state)[0], "ending_how": lambda: self._ending_of(now, state)[1],
            "metadata": lambda: self._metadata_of(now), "metrics": lambda: self._metrics(now),
            "approval": lambda: _approval(now, log), "answer": lambda: self._answer(now, log, state),
            "errors": lambda: self._errors(now)[0], "error_count": lambda: self._errors(now)[1],
        }, self.pruned)  # fmt: skip
        if any(m.state in HELD for m in of_stage):
            unknown.append("reported_progress")
        if not self.members.is_whole:
            values["counts"] = Counts()
            unknown.append("counts")
        return FoldedStage(replace(now, **values | found), sorted(unknown))

    def _sealed_stage(self, now: Stage) -> int:
        added = self.logs[now.key].past[0].id

        def seals(e: Entry) -> bool:
            return e.id > added and (
                e.type == FLOW_SEALED or (e.type == STAGE_SEALED and facts_of(e).get("stage") == now.id)
            )

        if now.sealed == SEALED and any(map(seals, self.own.later)) and not any(map(seals, self.own.past)):
            raise Unknown
        return now.sealed

    def _due_at(self, now: Stage, log: Log, state: str) -> int | None:
        """The deadline of an approval begins when the turn of the stage comes, without an event."""
        if state in STAGE.terminal or self._is_latest():
            return now.due_at
        if state == WAITING and (_approval(now, log) or {}).get("deadline_s") is not None:
            raise Unknown
        return None

    def _ending_of(self, now: Stage, state: str) -> tuple[str | None, str | None]:
        if state in STAGE.terminal:
            return None, None
        if self._is_latest() or (now.state not in STAGE.terminal and now.ending is None):
            return now.ending, now.ending_how
        of_flow = self._ending()
        if of_flow[0] is not None:
            return of_flow
        if now.state in (SUCCEEDED, PARTIAL) and not self.own.next(FLOW_CANCEL_REQUESTED):
            return None, None
        raise Unknown

    def _metadata_of(self, now: Stage) -> Any:
        if any(e.type == STAGE_METADATA_SET and facts_of(e).get("stage") == now.id for e in self.own.later):
            raise Unknown
        return now.metadata

    def _metrics(self, now: Stage) -> Any:
        if now.metrics is None:
            return None
        self._require_whole()
        if now.key not in self.members.metrics_later:
            return now.metrics
        if any(m.metrics for m in self.members.found.values() if m.row.stage == now.key) or now.carried_from:
            raise Unknown
        return None

    def _errors(self, now: Stage) -> tuple[Any, int]:
        self._require_whole()
        of_stage = [m for m in self.members.found.values() if m.row.stage == now.key]
        if not any(m.failed for m in of_stage):
            return (), 0
        if now.key in self.members.errors_later:
            raise Unknown
        return now.errors, now.error_count

    def _require_whole(self) -> None:
        if not self.members.is_whole:
            raise Unknown

    def _answer(self, now: Stage, log: Log, state: str) -> Any:
        if state in STAGE.terminal or self._is_latest():
            return now.answer
        if now.answer is not None and now.answer["verdict"] != APPROVED and now.answer["at"] <= self.ts:
            # A rejection is stored before the stage ends: no event says when.
            raise Unknown
        approved = log.last(STAGE.approve.event)
        if approved is not None:
            return facts_of(approved)
        if now.answer is not None and self.now.retry_of is not None:
            # The answer to the same stage of the original flow may have been carried over.
            raise Unknown
        return None


def _found(finders: Mapping[str, Callable[[], Any]], pruned: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of fields, and the names of those that the log does not tell."""
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for name, find in finders.items():
        try:
            if any(type_ in pruned for type_ in _NOTES_OF_FIELDS.get(name, ())):
                raise Unknown
            values[name] = find()
        except Unknown:
            values[name] = _EMPTY.get(name)
            unknown.append(name)
    return values, unknown


_NOTES_OF_FIELDS = {
    "sealed": (FLOW_SEALED, STAGE_SEALED), "priority": (FLOW_PRIORITY_SET,),
    "metadata": (FLOW_METADATA_SET, STAGE_METADATA_SET), "context_id": (CONTEXT_APPENDED,),
    **dict.fromkeys(("current_stage", "ending", "ending_how"), (FLOW_CANCEL_REQUESTED,)),
}  # fmt: skip
"""The notes that tell a field. If the janitor deletes them, it is unknown."""
_EMPTY: dict[str, Any] = {"sealed": 0, "priority": 0, "errors": (), "error_count": 0}
"""The values of unknown fields that cannot be None."""


def _first(stages: Sequence[Stage], ended: set[int], order: int) -> Stage | None:
    """The first stage after this place that has not ended."""
    return next((s for s in sorted(stages, key=lambda s: s.order) if s.order > order and s.key not in ended), None)


def _counter(end: Entry, on_failure: str) -> str:
    """The flow's counter that the end of a stage adds to. Older versions have not written whether it was ignored."""
    outcome = str(end.state)
    ignored = facts_of(end).get("ignored", counts_as(outcome, on_failure) != outcome)
    return "ignored" if ignored else outcome


def _approval(now: Stage, log: Log) -> Any:
    later = log.next(STAGE.wait.event)
    if later is None:
        return now.approval
    waiting = log.last(STAGE.wait.event)
    if waiting is None and later.actor != ENGINE:
        # A user may have set another one with the wait.
        raise Unknown
    return facts_of(waiting or later).get("approval")
