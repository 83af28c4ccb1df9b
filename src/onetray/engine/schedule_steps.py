"""Fire the schedules that are due. Any number of processes may do so at once: none is special.

Owns which schedules share a transaction, and that one that cannot be fired does not hold up the others.
domain/schedule_plan.py decides what a fire time comes to; schedule_fires.py writes it.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from onetray.domain.clock import SECOND, utc_text
from onetray.domain.commands import Cancel, Command
from onetray.domain.errors import OnetrayError, Unavailable
from onetray.domain.flow_commands import CancelFlow, SubmitFlow
from onetray.domain.lifecycle import FLOW, SCHEDULE_PAUSED
from onetray.domain.machine import SYSTEM
from onetray.domain.schedule import ACTOR_NAME, QUEUED, SUBMITTED, ScheduleSpec, spec_of, submit_command
from onetray.domain.schedule_plan import STEP, OpenFire, Plan, plan
from onetray.domain.verbs import check_command
from onetray.engine.declared_flow_api import DeclaredFlowApi
from onetray.engine.schedule_fires import (
    SCHEDULE_ACTOR,
    FireKey,
    Fires,
    FireWriter,
    NewFire,
    Submission,
    record_schedule,
)
from onetray.store.base import Tx
from onetray.store.retry_transaction import ROLLED_BACK
from onetray.store.shown_rows import ScheduleFireRow, ScheduleRow

logger = logging.getLogger("onetray.janitor")

WATCHED = 500
"""How many open jobs of a schedule a step looks at."""
AFTER_ERROR_US = 60 * SECOND
"""When to look again at a schedule that could not be fired."""
KEPT, FORGET_EVERY = 10_000, 500
"""How many fire times of a schedule are kept, and after how many new ones the oldest are forgotten."""


class CancelBySchedule(Cancel):
    """The cancel of a task that would overlap the next one of its schedule."""

    actor: ClassVar[str] = SYSTEM


class Look(NamedTuple):
    """What a look at a schedule has found to do."""

    made: Plan
    fires: Fires

    @property
    def row(self) -> ScheduleRow:
        return self.fires.row


class ScheduleSteps:
    """Fires the schedules of a database, for a loop."""

    def __init__(self, flows: DeclaredFlowApi, rng: random.Random) -> None:
        self._flows, self._store, self._config = flows, flows.store, flows.config
        self.writer = FireWriter(flows.store, flows.config, rng)

    def step(self, limit: int = STEP) -> int:
        """Look at the schedules that are due. Returns how many of them this call has changed."""
        rows: list[ScheduleRow] = self._store.read("due_schedules", now=self._store.now(), limit=limit)
        return sum(self._look_at_all(rows[start : start + STEP]) for start in range(0, len(rows), STEP))

    def _look_at_all(self, rows: list[ScheduleRow]) -> int:
        """Look at schedules, and fire them together."""
        open_fires = self._open_fires(rows)
        looks = [look for row in rows if (look := self._plan_or_postpone(row, open_fires[row.key])) is not None]
        # Each alone: that is rare.
        pausing = [[look] for look in looks if look.made.pause_why is not None]
        firing = [look for look in looks if look.made.pause_why is None]
        return sum(self._fire_or_one_by_one(together) for together in (*pausing, *_bounded(firing)))

    def _plan_or_postpone(self, row: ScheduleRow, open_fires: Sequence[OpenFire]) -> Look | None:
        try:
            return self._plan(row, open_fires)
        except Exception as e:
            self._postpone(row, e)
            return None

    def _fire_or_one_by_one(self, together: Sequence[Look]) -> int:
        try:
            return self._fire(together)
        except Exception as e:
            if len(together) == 1:
                self._postpone(together[0].row, e)
                return 0
            if _is_temporary(e):
                raise
            return sum(self._fire_or_one_by_one([look]) for look in together)

    def _postpone(self, row: ScheduleRow, e: Exception) -> None:
        """Look at a schedule later, after an error: the others must not wait for it."""
        if _is_temporary(e):
            raise e
        logger.error("the schedule %s of %s cannot be fired", row.name, row.namespace, exc_info=e)
        later = {"key": row.key, "turn": row.turn, "look_at": self._store.now() + AFTER_ERROR_US}
        self._store.write(lambda tx: tx.query("postpone_schedule", **later), again=False)

    def look(self, row: ScheduleRow) -> bool:
        """Do what is due for a schedule. Returns whether this call did: another process may have, or do so now."""
        return bool(self._fire([self._plan(row, self._open_fires([row])[row.key])]))

    def _open_fires(self, rows: Sequence[ScheduleRow]) -> dict[int, list[ScheduleFireRow]]:
        """The open fires of schedules, oldest first, by the keys of the schedules."""
        found: dict[int, list[ScheduleFireRow]] = defaultdict(list)
        for fire in self._store.read("open_fires_of_all", keys=[row.key for row in rows], limit=WATCHED):
            found[fire.schedule].append(fire)
        return found

    def _plan(self, row: ScheduleRow, open_fires: Sequence[OpenFire]) -> Look:
        spec = spec_of(row.body)
        made = plan(spec, row.next_fire_at, row.failures, open_fires, self._store.now())
        is_watched = int(spec.watches_jobs)
        new = [
            NewFire(FireKey(d.fire_at), d.outcome, d.why, d.missed, _stays_open(d.outcome, is_watched))
            for d in made.decisions
        ]
        cancels = [_cancel(fire, row) for fire in made.cancelled]
        return Look(made, Fires(row, new, self._submissions(spec, row, made), cancels, is_watched))

    def _fire(self, together: Sequence[Look]) -> int:
        """Fire schedules in one transaction. Returns how many: others have changed since they were read."""
        if (why := together[0].made.pause_why) is not None:
            return int(self._pause_itself(together[0], why))
        plans = {look.row.key: look.made for look in together}

        def end(tx: Tx, written: Sequence[Fires]) -> None:
            done = [Look(plans[fires.row.key], fires) for fires in written]
            _close(tx, done)
            _advance(tx, done)
            for look in done:
                # Not all schedules that fire together at once.
                count = look.row.fires + look.row.key
                if count // FORGET_EVERY != (count + len(look.fires.new)) // FORGET_EVERY:
                    _forget(tx, look.row.key)

        return len(self.writer.write([look.fires for look in together], end))

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

    def _pause_itself(self, look: Look, why: str) -> bool:
        row, failures = look.row, look.made.failures

        def pause(tx: Tx) -> bool:
            if not tx.query("lock_schedule", key=row.key, turn=row.turn):
                return False
            _close(tx, [look])
            tx.query("pause_schedule", key=row.key, at=tx.now, by=SCHEDULE_ACTOR, why=why, failures=failures)
            record_schedule(tx, row.ns, row.name, SCHEDULE_PAUSED, SCHEDULE_ACTOR, why, failures=failures)
            return True

        paused = self._store.write(pause, again=False)
        if paused:
            logger.warning("the schedule %s of %s has paused itself: %s", row.name, row.namespace, why)
        return paused


def _is_temporary(e: Exception) -> bool:
    """Whether a retry may succeed: the database was unavailable, or the transaction lost a deadlock."""
    return isinstance(e, Unavailable) or getattr(e, "sqlstate", None) in ROLLED_BACK


def _bounded(looks: Sequence[Look]) -> Iterator[list[Look]]:
    """Those that share a transaction, which submits no more than about STEP tasks."""
    together: list[Look] = []
    size = 0
    for look in looks:
        count = max(1, sum(_tasks_of(command) for command in look.fires.commands))
        if together and size + count > STEP:
            yield together
            together, size = [], 0
        together.append(look)
        size += count
    if together:
        yield together


def _tasks_of(command: Command) -> int:
    return sum(max(1, len(stage.tasks)) for stage in command.stages) if isinstance(command, SubmitFlow) else 1


def _stays_open(outcome: str, is_watched: int) -> int:
    return 1 if outcome == QUEUED or (outcome == SUBMITTED and is_watched) else 0


def _cancel(fire: OpenFire, row: ScheduleRow) -> Command:
    fields: dict[str, Any] = {
        "namespace": row.namespace, "actor_name": ACTOR_NAME, "cause": f"the next fire time of the schedule {row.name}",
    }  # fmt: skip
    if fire.entity == FLOW.entity:
        return CancelFlow(fire.job_id or "", actor=SYSTEM, **fields)
    return CancelBySchedule(task=fire.job_id or "", **fields)


def _close(tx: Tx, looks: Sequence[Look]) -> None:
    """Note that the jobs of earlier fires have ended."""
    closed = [(look.row.key, fire) for look in looks for fire in look.made.closed]
    if closed:
        tx.batch("close_fires", {
            "schedule": [schedule for schedule, _ in closed], "fire_at": [fire.fire_at for _, fire in closed],
            "manual": [fire.manual for _, fire in closed],
        })  # fmt: skip


def _advance(tx: Tx, looks: Sequence[Look]) -> None:
    """Write the next fire times."""
    tx.batch("advance_schedules", {
        "key": [look.row.key for look in looks], "next_fire_at": [look.made.next_fire_at for look in looks],
        "last_fire_at": [max((d.fire_at for d in look.made.decisions), default=None) for look in looks],
        "look_at": [look.made.look_at for look in looks],
        "failures": [look.made.failures + look.fires.refused for look in looks],
        "fires": [len(look.fires.new) for look in looks],
    })  # fmt: skip


def _forget(tx: Tx, schedule: int) -> None:
    """Delete the oldest fires."""
    gone = [fire_at for (fire_at,) in tx.query("forget_fires", key=schedule, keep=KEPT)]
    if gone:
        tx.query("keep_fires_from", key=schedule, kept_from=max(gone) + 1)
