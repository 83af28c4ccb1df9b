"""Carry out bulk operations in short steps, beside other work. Any number of processes may do so at once.

Owns the steps: what a step reads, and that its effects, its counts and the place where the next one continues are
written in one transaction. If the process dies, another one continues there. bulk_api.py starts and stops operations.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from onetray.domain.bulk import (
    DEFAULT_STATES,
    DONE,
    PAUSED,
    REDRIVE,
    RETRY,
    RUNNING,
    STOPPED,
    BulkOptions,
    belongs_to_ended_flow,
    command_for,
    redrive_command,
)
from onetray.domain.commands import Command
from onetray.domain.errors import OnetrayError, Unavailable
from onetray.domain.lifecycle import BULK_FINISHED, BULK_STOPPED
from onetray.domain.task import Verdict
from onetray.domain.verbs import check_command
from onetray.engine.batch import run_beside
from onetray.engine.dead_letter_api import DeadLetterApi
from onetray.engine.list_api import ListApi
from onetray.engine.list_scan import walk_jobs
from onetray.engine.pending_writes import ENGINE, record_change
from onetray.store.base import Tx
from onetray.store.retry_transaction import ROLLED_BACK
from onetray.store.shown_rows import BulkRow

logger = logging.getLogger("onetray.janitor")

BATCH = 250
"""How many jobs a step acts on at most: on SQLite, all other writers wait for it."""
SEARCH_S = 0.1
"""How long a step searches for matching jobs."""
IDLE_S = 2.0
"""How often to look for operations of other processes."""
REFUSALS = 20
"""How many refused jobs an operation names."""


class Item(NamedTuple):
    """A job of a step: its id, its command, and where the next step continues if this job is the last one."""

    id: str
    command: Command
    place: int


@dataclass(slots=True)
class Step:
    """A part of an operation."""

    items: list[Item]
    place: int
    """Where the next step continues."""
    is_last: bool
    repeated: int = 0
    skipped: int = 0
    refusals: Sequence[tuple[str, str]] = ()
    """Jobs that are refused without a command."""


class BulkSteps:
    """The steps of all running operations of a database, for a loop: after each, wait for `rest_s`."""

    def __init__(self, lists: ListApi, letters: DeadLetterApi, rng: random.Random) -> None:
        self._lists, self._dead_letters, self._rng = lists, letters, rng
        self._store, self._config = lists.store, lists.config
        self.rest_s = 0.0

    def step(self) -> int:
        """Carry out the next part of the operation that has waited longest. Returns on how many jobs it acted."""
        self.rest_s = IDLE_S
        began = time.monotonic()
        rows: list[BulkRow] = self._store.read("next_bulk", state=RUNNING)
        if not rows:
            return 0
        acted = self._carry_out(rows[0])
        # As long as the step took: other writers waited for it.
        self.rest_s = min(IDLE_S, time.monotonic() - began)
        return acted

    def _carry_out(self, row: BulkRow) -> int:
        try:
            step = self._next_step(row)
        except Unavailable:
            raise
        except OnetrayError as e:
            # The filters name something that is gone.
            logger.warning("the bulk operation %s is stopped: %s", row.id, e)
            stopped = Step([], row.place, is_last=True, refusals=[(row.id, str(e))])
            self._write(row, stopped, STOPPED)
            return 0
        try:
            return self._write(row, step)
        except Exception as e:
            if isinstance(e, Unavailable) or getattr(e, "sqlstate", None) in ROLLED_BACK or not step.items:
                raise
            logger.error("a step of the bulk operation %s failed, its jobs follow one by one: %s", row.id, e)
            return self._one_by_one(row, step.items)

    def _one_by_one(self, row: BulkRow, items: list[Item]) -> int:
        acted = 0
        for item in items:
            for current in self._store.read("bulk_by_id", id=row.id, namespace=row.namespace):
                acted += self._write_one(current, item) if current.state == RUNNING else 0
        return acted

    def _write_one(self, row: BulkRow, item: Item) -> int:
        """Act on one job. If that fails, the job counts as refused."""
        try:
            return self._write(row, Step([item], item.place, is_last=False))
        except Exception as e:
            if isinstance(e, Unavailable) or getattr(e, "sqlstate", None) in ROLLED_BACK:
                raise
            logger.error("the bulk operation %s cannot act on %s, run `onetray verify`: %s", row.id, item.id, e)
            return self._write(row, Step([], item.place, is_last=False, refusals=[(item.id, type(e).__name__)]))

    def _next_step(self, row: BulkRow) -> Step:
        filters, limit = orjson.loads(row.filters), self._room(row)
        if not limit:
            return Step([], row.place, is_last=True)
        return self._letters(row, filters, limit) if row.action == REDRIVE else self._jobs(row, filters, limit)

    def _room(self, row: BulkRow) -> int:
        """On how many jobs the next step may act."""
        bounds = [BATCH]
        if row.most is not None:
            bounds.append(row.most - row.done)
        if row.canary is not None and row.done < row.canary:
            bounds.append(row.canary - row.done)
        return max(min(bounds), 0)

    def _jobs(self, row: BulkRow, filters: dict[str, Any], limit: int) -> Step:
        filters["states"] = filters.get("states") or DEFAULT_STATES[row.action]
        # Jobs that were submitted later are not meant, the retried ones among them.
        filters["until"] = min(filters.get("until", row.created_at), row.created_at)
        jobs, place = walk_jobs(self._lists, row.namespace, row.place, limit, within_s=SEARCH_S, **filters)
        done_before: set[str] = set()
        if row.action == RETRY and jobs:
            done_before = set(self._lists.retried([job.id for job in jobs], namespace=row.namespace))
        options, fields = BulkOptions(**orjson.loads(row.options)), _fields(row)
        items = [
            Item(job.id, command_for(row.action, job, options, **fields), job.key)
            for job in jobs
            if job.id not in done_before
        ]
        return Step(items, row.place if place is None else place, place is None, repeated=len(done_before))

    def _letters(self, row: BulkRow, filters: dict[str, Any], limit: int) -> Step:
        # What is set aside later is not meant: a redriven task that fails again among it.
        letters = self._dead_letters.dead_lines(
            **filters, until=row.created_at, after=row.place, limit=limit, namespace=row.namespace
        )
        options, fields = BulkOptions(**orjson.loads(row.options)), _fields(row)
        items = [
            Item(letter.id, redrive_command(letter, options, **fields), letter.key)
            for letter in letters
            if not belongs_to_ended_flow(letter)
        ]
        place, skipped = letters[-1].key if letters else row.place, len(letters) - len(items)
        return Step(items, place, len(letters) < limit, skipped=skipped)

    def _write(self, row: BulkRow, step: Step, ending: str = DONE) -> int:
        """Carry out a step in one transaction. Returns 0 if another process has carried it out, or does so now."""
        for item in step.items:
            check_command(item.command, self._config.limits)
        acted = 0

        def begin(tx: Tx) -> bool:
            seen = {"place": row.place, "done": row.done, "refused": row.refused, "state": RUNNING}
            return bool(tx.query("lock_bulk", id=row.id, **seen))

        def end(tx: Tx, verdicts: list[Verdict]) -> None:
            nonlocal acted
            acted = _advance(tx, row, step, verdicts, ending)

        run_beside(
            self._store, [item.command for item in step.items], self._rng, self._config.names_ttl_s,
            self._config.limits, begin, end,
        )  # fmt: skip
        return acted


def _fields(row: BulkRow) -> dict[str, Any]:
    return {"namespace": row.namespace, "actor_name": row.created_by, "cause": row.reason or f"bulk {row.id}"}


def _advance(tx: Tx, row: BulkRow, step: Step, verdicts: list[Verdict], ending: str) -> int:
    """Write the counts of a step, and the end of the operation if it is the last one. Returns how many were done."""
    refusals = [
        *step.refusals,
        *((item.id, str(v.error)) for item, v in zip(step.items, verdicts, strict=True) if v.error is not None),
    ]
    accepted = [v.value for v in verdicts if v.error is None]
    done = [value for value in accepted if not getattr(value, "repeated", False)]
    named = orjson.loads(row.refusals) + [{"id": id_, "error": why} for id_, why in refusals]
    canary_ids, state = orjson.loads(row.canary_ids), RUNNING
    if row.canary is not None and row.done < row.canary:
        canary_ids += [value.id for value in done]
        state = PAUSED if row.done + len(done) >= row.canary else RUNNING
    if step.is_last or (row.most is not None and row.done + len(done) >= row.most):
        state = ending
    tx.query(
        "advance_bulk", id=row.id, place=step.place, done=len(done), refused=len(refusals), skipped=step.skipped,
        repeated=step.repeated + len(accepted) - len(done), state=state, at=tx.now,
        finished_at=tx.now if state == ending else None, refusals=orjson.dumps(named[:REFUSALS]).decode(),
        canary_ids=orjson.dumps(canary_ids).decode(),
    )  # fmt: skip
    if state == ending:
        record_end(tx, row, BULK_FINISHED if ending == DONE else BULK_STOPPED, ENGINE, len(done))
    return len(done) + len(refusals)


def record_end(tx: Tx, row: BulkRow, type_: str, by: str, done: int = 0, reason: str | None = None) -> None:
    """Write the event of the end of an operation."""
    record_change(tx, row.ns, type_, by, reason, about=("bulk", row.id), action=row.action, done=row.done + done)
