"""The transaction of fires: of one schedule, or of many that are due at the same time.

Owns what is written together: the rows of the fire times, which are unique, the submits of their jobs, and the next
fire times. schedule_steps.py decides what is due, schedule_submits.py submits for people.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.commands import Command
from onetray.domain.errors import OnetrayError
from onetray.domain.machine import SYSTEM
from onetray.domain.schedule import ACTOR_NAME, REFUSED, SUBMITTED
from onetray.domain.task import Verdict
from onetray.engine.batch import run_beside
from onetray.engine.pending_writes import actor, record_change
from onetray.store.base import Store, Tx
from onetray.store.shown_rows import ScheduleRow

SCHEDULE_ACTOR = actor(SYSTEM, ACTOR_NAME)
WHY_CHARS = 500


class FireTaken(Exception):
    """Another transaction has written a fire with the same time."""


class _OthersChanged(Exception):
    """Some schedules of a batch have changed, or another transaction works on them."""

    def __init__(self, locked: set[int]) -> None:
        super().__init__()
        self.locked = locked


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


@dataclass(slots=True)
class Fires:
    """What a transaction writes for one schedule."""

    row: ScheduleRow
    """As it was read: nothing is written if it has changed since."""
    new: Sequence[NewFire]
    submissions: Sequence[Submission]
    cancels: Sequence[Command] = ()
    is_watched: int = 0
    """1: its jobs are open until a janitor has seen that they have ended."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Of the submissions, once they are submitted."""

    @property
    def commands(self) -> list[Command]:
        return [*self.cancels, *(s.command for s in self.submissions if s.command is not None)]

    @property
    def refused(self) -> int:
        return sum(verdict.error is not None for verdict in self.verdicts)

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Take the verdicts of its commands."""
        answers = iter(verdicts[len(self.cancels) :])
        self.verdicts = [Verdict(error=s.refusal) if s.command is None else next(answers) for s in self.submissions]


class FireWriter:
    """Writes fires and submits their jobs."""

    def __init__(self, store: Store, config: EngineConfig, rng: random.Random) -> None:
        self._store, self._config, self._rng = store, config, rng

    def write(
        self,
        together: Sequence[Fires],
        end: Callable[[Tx, Sequence[Fires]], None],
        *,
        by: str = SCHEDULE_ACTOR,
        statement: str = "insert_fires",
    ) -> Sequence[Fires]:
        """Write the fires of schedules in one transaction, which `end` closes.

        Returns those that were written, with their verdicts: not those of schedules that have changed. Raises FireTaken
        if one of the fires is there already.
        """
        while together:
            try:
                return together if self._write(together, end, by, statement) else []
            except _OthersChanged as e:
                # Without their commands: those were prepared before the transaction.
                together = [fires for fires in together if fires.row.key in e.locked]
        return []

    def _write(
        self, together: Sequence[Fires], end: Callable[[Tx, Sequence[Fires]], None], by: str, statement: str
    ) -> bool:
        def begin(tx: Tx) -> bool:
            locked = _lock(tx, together)
            if locked and len(locked) < len(together):
                raise _OthersChanged(locked)
            if locked:
                failpoints.hit("schedule_locked")
                _write_new(tx, together, by, statement)
            return bool(locked)

        def finish(tx: Tx, verdicts: list[Verdict]) -> None:
            for fires in together:
                count = len(fires.commands)
                fires.answer(verdicts[:count])
                verdicts = verdicts[count:]
            _write_outcomes(tx, together)
            end(tx, together)
            failpoints.hit("schedule_fired")

        commands = [command for fires in together for command in fires.commands]
        config = self._config
        done = run_beside(self._store, commands, self._rng, config.names_ttl_s, config.limits, begin, finish)
        return done is not None


def _lock(tx: Tx, together: Sequence[Fires]) -> set[int]:
    """Lock the schedules, without waiting. Returns the keys of those that nobody has changed or works on."""
    columns = {"key": [fires.row.key for fires in together], "turn": [fires.row.turn for fires in together]}
    return {key for (key,) in tx.batch("lock_schedules", columns)}


def _write_new(tx: Tx, together: Sequence[Fires], by: str, statement: str) -> None:
    new = [(fires.row.key, fire) for fires in together for fire in fires.new]
    if not new:
        return
    columns = {
        "schedule": [schedule for schedule, _ in new], "fire_at": [fire.key.fire_at for _, fire in new],
        "manual": [fire.key.manual for _, fire in new], "outcome": [fire.outcome for _, fire in new], "actor": by,
        "at": tx.now, "why": [fire.why for _, fire in new], "missed": [fire.missed for _, fire in new],
        "open": [fire.open for _, fire in new],
    }  # fmt: skip
    if len(tx.batch(statement, columns)) != len(new):
        raise FireTaken("a fire time of a schedule is there already")


def _write_outcomes(tx: Tx, together: Sequence[Fires]) -> None:
    """Write the jobs of the fires, or why they have none."""
    written = [
        (fires, submission, verdict)
        for fires in together
        for submission, verdict in zip(fires.submissions, fires.verdicts, strict=True)
    ]
    if not written:
        return
    tx.batch("set_fires", {
        "schedule": [fires.row.key for fires, _, _ in written], "fire_at": [s.key.fire_at for _, s, _ in written],
        "manual": [s.key.manual for _, s, _ in written],
        "outcome": [REFUSED if v.error else SUBMITTED for _, _, v in written],
        "job_id": [None if v.error else v.value.id for _, _, v in written],
        "why": [s.why if v.error is None else str(v.error)[:WHY_CHARS] for _, s, v in written],
        "open": [0 if v.error else fires.is_watched for fires, _, v in written],
    })  # fmt: skip


def record_schedule(tx: Tx, ns: int, name: str, type_: str, by: str, cause: str | None, **facts: Any) -> None:
    """Write the event of a change of a schedule."""
    record_change(tx, ns, type_, by, cause, about=("schedule", name), **facts)
