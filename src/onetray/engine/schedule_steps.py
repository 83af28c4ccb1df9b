"""Fire schedules. Any number of processes may do so at once: none is special.

Owns the transaction of a fire: the row of the fire time, which is unique, the submit of its job, and the next fire time
are written together. domain/schedule_plan.py decides what a fire time comes to; schedule_api.py changes schedules.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from onetray import failpoints
from onetray.domain.clock import SECOND, utc_text
from onetray.domain.commands import Cancel, Command
from onetray.domain.errors import OnetrayError, Unavailable
from onetray.domain.flow_commands import CancelFlow
from onetray.domain.lifecycle import FLOW, SCHEDULE_PAUSED
from onetray.domain.machine import SYSTEM
from onetray.domain.schedule import ACTOR_NAME, QUEUED, REFUSED, SUBMITTED, ScheduleSpec, spec_of, submit_command
from onetray.domain.schedule_plan import STEP, OpenFire, Plan, plan
from onetray.domain.task import Verdict
from onetray.domain.verbs import check_command
from onetray.engine.batch import run_beside
from onetray.engine.declared_flow_api import DeclaredFlowApi
from onetray.engine.pending_writes import actor, record_change
from onetray.store.base import Tx
from onetray.store.retry_transaction import ROLLED_BACK
from onetray.store.shown_rows import ScheduleRow

logger = logging.getLogger("onetray.janitor")

SCHEDULE_ACTOR = actor(SYSTEM, ACTOR_NAME)
WATCHED = 500
"""How many open jobs of a schedule a step looks at."""
AFTER_ERROR_US = 60 * SECOND
"""When to look again at a schedule that could not be fired."""
KEPT, FORGET_EVERY = 10_000, 500
"""How many fire times of a schedule are kept, and after how many new ones the oldest are forgotten."""
WHY_CHARS = 500


class CancelBySchedule(Cancel):
    """The cancel of a task that would overlap the next one of its schedule."""

    actor: ClassVar[str] = SYSTEM


class FireTaken(Exception):
    """Another transaction has written a fire with the same time."""


class FireKey(NamedTuple):
    """A fire time of a schedule; triggered ones are beside the calendar."""

    fire_at: int
    manual: int = 0


class Submission(NamedTuple):
    """A fire that is submitted."""

    key: FireKey
    command: Command | None
    refusal: OnetrayError | None
    """Why there is no command."""
    why: str | None = None
    """Is written with the fire, unless it is refused."""


class NewFire(NamedTuple):
    """The row of a fire that is not written yet."""

    key: FireKey
    outcome: str
    why: str | None
    missed: int
    open: int


class ScheduleSteps:
    """Fires the schedules of a database, for a loop."""

    def __init__(self, flows: DeclaredFlowApi, rng: random.Random) -> None:
        self._flows, self._rng = flows, rng
        self._store, self._config = flows.store, flows.config

    def step(self, limit: int = STEP) -> int:
        """Look at the schedules that are due. Returns how many of them this call has changed."""
        return sum(self._look(row) for row in self._store.read("due_schedules", now=self._store.now(), limit=limit))

    def _look(self, row: ScheduleRow) -> bool:
        try:
            return self.look(row)
        except Exception as e:
            if isinstance(e, Unavailable) or getattr(e, "sqlstate", None) in ROLLED_BACK:
                raise
            # The others must not wait for it.
            logger.exception("the schedule %s of %s cannot be fired", row.name, row.namespace)
            later = {"key": row.key, "turn": row.turn, "look_at": self._store.now() + AFTER_ERROR_US}
            self._store.write(lambda tx: tx.query("postpone_schedule", **later), again=False)
            return False

    def look(self, row: ScheduleRow) -> bool:
        """Do what is due for a schedule. Returns whether this call did: another process may have, or do so now."""
        spec, now = spec_of(row.body), self._store.now()
        watched = self._store.read("open_fires", key=row.key, limit=WATCHED)
        made = plan(spec, row.next_fire_at, row.failures, watched, now)
        if made.pause_why is not None:
            return self._pause_itself(row, made, made.pause_why)
        submissions = self._submissions(spec, row, made)
        cancels = [_cancel(fire, row) for fire in made.cancelled]
        is_watched = int(spec.watches_jobs)
        new = [
            NewFire(FireKey(d.fire_at), d.outcome, d.why, d.missed, _stays_open(d.outcome, is_watched))
            for d in made.decisions
        ]

        def end(tx: Tx, refused: int) -> None:
            _close(tx, row.key, made.closed)
            last = max((d.fire_at for d in made.decisions), default=None)
            tx.query(
                "advance_schedule", key=row.key, next_fire_at=made.next_fire_at, last_fire_at=last,
                look_at=made.look_at, failures=made.failures + refused, fires=len(new),
            )  # fmt: skip
            if row.fires // FORGET_EVERY != (row.fires + len(new)) // FORGET_EVERY:
                _forget(tx, row.key)

        return self.submit(row, new, submissions, end, cancels, is_watched=is_watched) is not None

    def _submissions(self, spec: ScheduleSpec, row: ScheduleRow, made: Plan) -> list[Submission]:
        times = [d.fire_at for d in made.decisions if d.outcome == SUBMITTED]
        due = [self.submission(spec, row, FireKey(fire_at)) for fire_at in times]
        if made.released is None:
            return due
        return [self.submission(spec, row, FireKey(made.released.fire_at), why="it has waited for its turn"), *due]

    def submission(
        self, spec: ScheduleSpec, row: ScheduleRow, key: FireKey, cause: str = "", why: str | None = None
    ) -> Submission:
        """The command of a fire, checked; or why it is refused."""
        cause = cause or f"schedule {row.name}, fire time {utc_text(key.fire_at)}"
        command = submit_command(spec, key.fire_at, row.namespace, cause)
        try:
            check_command(command, self._config.limits)
            return Submission(key, self._resolved(command) if spec.flow is not None else command, None, why)
        except Unavailable:
            raise
        except OnetrayError as e:
            return Submission(key, None, e)

    def _resolved(self, command: Command) -> Command:
        """The submit of the stages of a declared flow. Raises an error if the flow is unknown or its config invalid."""
        resolved, refused = self._flows.resolve([command])
        for verdict in refused.values():
            verdict.unwrap()
        check_command(resolved[0], self._config.limits)
        return resolved[0]

    def submit(
        self,
        row: ScheduleRow,
        new: Sequence[NewFire],
        submissions: Sequence[Submission],
        end: Callable[[Tx, int], None],
        cancels: Sequence[Command] = (),
        *,
        by: str = SCHEDULE_ACTOR,
        is_watched: int = 0,
        statement: str = "insert_fires",
    ) -> list[Verdict] | None:
        """Write the rows of fires and submit their jobs, in one transaction, which `end` closes.

        Returns the verdicts of the submits; None if the schedule has changed. Raises FireTaken if one of the fires is
        there already.
        """
        sent = [submission.command for submission in submissions if submission.command is not None]

        outcomes: list[Verdict] = []

        def begin(tx: Tx) -> bool:
            outcomes.clear()
            if not tx.query("lock_schedule", key=row.key, turn=row.turn):
                return False
            failpoints.hit("schedule_locked")
            if new:
                _write_fires(tx, row.key, new, by, statement)
            return True

        def finish(tx: Tx, verdicts: list[Verdict]) -> None:
            answers = iter(verdicts[len(cancels) :])
            outcomes.extend(Verdict(error=s.refusal) if s.command is None else next(answers) for s in submissions)
            refused = _write_outcomes(tx, row.key, submissions, outcomes, is_watched)
            end(tx, refused)
            failpoints.hit("schedule_fired")

        done = run_beside(
            self._store, [*cancels, *sent], self._rng, self._config.names_ttl_s, self._config.limits, begin, finish
        )
        return None if done is None else outcomes

    def _pause_itself(self, row: ScheduleRow, made: Plan, why: str) -> bool:
        def pause(tx: Tx) -> bool:
            if not tx.query("lock_schedule", key=row.key, turn=row.turn):
                return False
            _close(tx, row.key, made.closed)
            tx.query("pause_schedule", key=row.key, at=tx.now, by=SCHEDULE_ACTOR, why=why, failures=made.failures)
            record_schedule(tx, row.ns, row.name, SCHEDULE_PAUSED, SCHEDULE_ACTOR, why, failures=made.failures)
            return True

        paused = self._store.write(pause, again=False)
        if paused:
            logger.warning("the schedule %s of %s has paused itself: %s", row.name, row.namespace, why)
        return paused


def _stays_open(outcome: str, is_watched: int) -> int:
    return 1 if outcome == QUEUED or (outcome == SUBMITTED and is_watched) else 0


def _cancel(fire: OpenFire, row: ScheduleRow) -> Command:
    fields: dict[str, Any] = {
        "namespace": row.namespace, "actor_name": ACTOR_NAME, "cause": f"the next fire time of the schedule {row.name}",
    }  # fmt: skip
    if fire.entity == FLOW.entity:
        return CancelFlow(fire.job_id or "", actor=SYSTEM, **fields)
    return CancelBySchedule(task=fire.job_id or "", **fields)


def _write_fires(tx: Tx, schedule: int, new: Sequence[NewFire], by: str, statement: str) -> None:
    columns = {
        "schedule": schedule, "fire_at": [fire.key.fire_at for fire in new],
        "manual": [fire.key.manual for fire in new], "outcome": [fire.outcome for fire in new], "actor": by,
        "at": tx.now, "why": [fire.why for fire in new], "missed": [fire.missed for fire in new],
        "open": [fire.open for fire in new],
    }  # fmt: skip
    if len(tx.batch(statement, columns)) != len(new):
        raise FireTaken(f"a fire time of the schedule {schedule} is there already")


def _write_outcomes(
    tx: Tx, schedule: int, submissions: Sequence[Submission], verdicts: Sequence[Verdict], is_watched: int
) -> int:
    """Write the jobs of the fires. Returns how many submits were refused."""
    if not submissions:
        return 0
    errors = [verdict.error for verdict in verdicts]
    tx.batch("set_fires", {
        "schedule": schedule, "fire_at": [s.key.fire_at for s in submissions],
        "manual": [s.key.manual for s in submissions], "outcome": [REFUSED if e else SUBMITTED for e in errors],
        "job_id": [None if v.error else v.value.id for v in verdicts],
        "why": [s.why if e is None else str(e)[:WHY_CHARS] for s, e in zip(submissions, errors, strict=True)],
        "open": [0 if e else is_watched for e in errors],
    })  # fmt: skip
    return sum(e is not None for e in errors)


def _close(tx: Tx, schedule: int, fires: Sequence[OpenFire]) -> None:
    """Note that the jobs of these fires have ended."""
    if fires:
        tx.batch("close_fires", {
            "schedule": schedule, "fire_at": [fire.fire_at for fire in fires], "manual": [fire.manual for fire in fires]
        })  # fmt: skip


def _forget(tx: Tx, schedule: int) -> None:
    """Delete the oldest fires."""
    gone = [fire_at for (fire_at,) in tx.query("forget_fires", key=schedule, keep=KEPT)]
    if gone:
        tx.query("keep_fires_from", key=schedule, kept_from=max(gone) + 1)


def record_schedule(tx: Tx, ns: int, name: str, type_: str, by: str, cause: str | None, **facts: Any) -> None:
    """Write the event of a change of a schedule."""
    record_change(tx, ns, type_, by, cause, about=("schedule", name), **facts)
