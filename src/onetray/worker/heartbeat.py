"""Keep what is held: renew leases, hear of cancels, notice what was lost, and say that this worker is alive.

Owns two threads. One talks to the database. The other only looks at the clock: it drops what is not sure to be ours
any more, also while the database does not answer, and it tells when the event loop is blocked.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onetray.app.tasks import ASYNC
from onetray.domain.checks import MOST_ROWS
from onetray.domain.commands import Beat, ticket
from onetray.domain.errors import Conflict, NotFound, OnetrayError, Unavailable
from onetray.domain.lifecycle import HELD
from onetray.worker.attempt import CANCEL

if TYPE_CHECKING:
    from onetray.domain.task import Assignment, Holding, Verdict
    from onetray.engine.api import EngineApi
    from onetray.worker.attempt import Attempt
    from onetray.worker.executor import Executor
    from onetray.worker.leases import HeldLeases, Lease
    from onetray.worker.reporter import Reporter

logger = logging.getLogger("onetray.worker")

LOOK_S = 0.4
"""How often held tasks are looked at: a cancel reaches its handler within a second."""
SOONEST_S = 0.02
REGISTER_S = 5.0
BLOCKED_S = 1.0
REFUSED = (Conflict, NotFound)
"""The task is not ours any more, or has ended: that says nothing about the other tasks of its claim."""


def renew_claims(engine: EngineApi, claims: Sequence[Sequence[Assignment]]) -> list[list[Verdict]]:
    """Renew each claim by a heartbeat for its first task, all in one call; where that is refused, for each of its
    other tasks, in one more. Answers the verdicts of each claim, in the order of its tasks."""
    answers = [[verdict] for verdict in engine.run([Beat(**ticket(claim[0])) for claim in claims])]
    rest = [
        (verdicts, assignment)
        for claim, verdicts in zip(claims, answers, strict=True)
        if isinstance(verdicts[0].error, REFUSED)
        for assignment in claim[1:]
    ]
    if rest:
        for (verdicts, _), verdict in zip(rest, engine.run([Beat(**ticket(a)) for _, a in rest]), strict=True):
            verdicts.append(verdict)
    return answers


class Heartbeat:
    def __init__(
        self, engine: EngineApi, namespace: str, held: HeldLeases, floor: Executor, outbox: Reporter,
        lose: Callable[[Attempt, str], None], register: Callable[[], None],
    ) -> None:  # fmt: skip
        self._engine, self._namespace = engine, namespace
        self._held, self._floor, self._outbox = held, floor, outbox
        self._lose, self._register = lose, register
        self._stopping = threading.Event()
        self._registered_at = float("-inf")
        self._pinged_at: float | None = None
        self._told_blocked = False
        self._threads = [
            threading.Thread(target=self._loop, args=(self._beat,), name="onetray-heartbeat", daemon=True),
            threading.Thread(target=self._loop, args=(self._watch,), name="onetray-watch", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def register_soon(self) -> None:
        """Have operators told what this worker does, with the next heartbeat."""
        self._registered_at = float("-inf")

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2.0)

    @property
    def look_s(self) -> float:
        """How long to wait between two looks: a short lease is looked at several times in its length."""
        return max(SOONEST_S, min(LOOK_S, self._held.shortest_s() / 6))

    def _loop(self, step: Callable[[], None]) -> None:
        is_away = False
        while not self._stopping.wait(self.look_s):
            try:
                step()
                is_away = False
            except Unavailable as e:
                # Once for each time that it goes away: it may last.
                logger.log(logging.DEBUG if is_away else logging.WARNING, "heartbeats wait for the database: %s", e)
                is_away = True
            except Exception:
                logger.exception("a heartbeat failed")

    # With the database.

    def _beat(self) -> None:
        now = time.monotonic()
        wanted = self._outbox.beats_wanted()
        due = [
            (lease, runs)
            for lease, runs in self._held.leases()
            if runs and (now >= lease.beat_at or not wanted.isdisjoint(runs))
        ]
        if due:
            self._renew(due, now)
        self._look()
        if now - self._registered_at >= REGISTER_S:
            self._registered_at = now
            self._register()

    def _renew(self, due: list[tuple[Lease, list[Attempt]]], now: float) -> None:
        # First those whose report is not under way: that would end before the heartbeat.
        claims = [(lease, sorted(runs, key=lambda run: run.over)) for lease, runs in due]
        answers = renew_claims(self._engine, [[run.assignment for run in runs] for _, runs in claims])
        failed: list[OnetrayError] = []
        for (lease, runs), verdicts in zip(claims, answers, strict=True):
            gone: dict[str, str] = {}
            for run, verdict in zip(runs, verdicts, strict=False):
                if verdict.error is None:
                    lease.sure_until, lease.beat_at = now + lease.length_s, now + lease.length_s / 3
                    gone |= dict.fromkeys(verdict.value.lost, "the engine has given it to somebody else or ended it")
                elif isinstance(verdict.error, REFUSED):
                    gone[run.assignment.id] = str(verdict.error)
                else:
                    failed.append(verdict.error)
            for run in runs:
                if run.assignment.id in gone and not run.over:
                    self._lose(run, gone[run.assignment.id])
        if failed:
            logger.warning("%d leases could not be renewed, and are tried again: %s", len(failed), failed[0])

    def _look(self) -> None:
        """See which of the tasks should stop, and which are not ours any more."""
        runs = {run.assignment.key: run for run in self._held.runs() if not run.over}
        if not runs:
            return
        found = self._held_now(sorted(runs))
        for key, run in runs.items():
            row = found.get(key)
            if row is None or row.lease != run.assignment.lease or row.state not in HELD:
                if not run.over:
                    self._lose(run, "it was taken back, cancelled or timed out")
            elif row.cancel_at is not None and run.stop is None:
                logger.info("a cancel of %r was asked for", run)
                run.ask_to_stop(CANCEL)

    def _held_now(self, keys: list[int]) -> dict[int, Holding]:
        engine, namespace = self._engine, self._namespace
        pages = (keys[start : start + MOST_ROWS] for start in range(0, len(keys), MOST_ROWS))
        return {row.key: row for page in pages for row in engine.held(page, namespace=namespace)}

    # With the clock alone.

    def _watch(self) -> None:
        now = time.monotonic()
        for lease, runs in self._held.leases():
            if now > lease.sure_until:
                for run in runs:
                    if not run.over:
                        self._lose(run, f"no heartbeat got through for {lease.length_s:g} s")
        self._watch_loop(now)

    def _watch_loop(self, now: float) -> None:
        if self._pinged_at is None:
            self._pinged_at, self._told_blocked = now, False
            self._floor.loop.call_soon_threadsafe(self._pong)
        elif now - self._pinged_at > BLOCKED_S and not self._told_blocked:
            self._told_blocked = True
            begun = [run for run in list(self._floor.running) if run.task.isolation == ASYNC and run.began is not None]
            logger.warning(
                "the event loop is blocked, by one of: %s. Do blocking work in a task that is not async. It is at:\n%s",
                ", ".join(map(repr, begun)) or "no task of ours", self._where(),
            )  # fmt: skip

    def _pong(self) -> None:
        assert self._pinged_at is not None
        if self._told_blocked:
            logger.warning("the event loop was blocked for %.1f s", time.monotonic() - self._pinged_at)
        self._pinged_at = None

    def _where(self) -> str:
        frame = sys._current_frames().get(self._floor.loop_ident)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(no frame)"
