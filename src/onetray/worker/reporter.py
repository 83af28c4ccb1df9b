"""Send what was done: reports in batches, soon, and again until they are answered.

Owns the threads that report. One sends all there is, in order; the others help with successes of tasks that have said
nothing before, so that two batches are under way while many tasks end. A start is sent only for what lasts: a handler
that ends sooner has it recorded together with its outcome. Reports that could not be sent are kept and repeated; the
engine knows a repeated one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onetray.domain.commands import Fail, Pause, Release, Report, Start, Succeed
from onetray.domain.errors import Conflict, InvalidInput, NotFound, OnetrayError, Unavailable
from onetray.domain.task import Verdict

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi
    from onetray.worker.attempt import Attempt

logger = logging.getLogger("onetray.worker")

START_AFTER_S = 0.05
"""A handler that runs for longer has its start sent by itself."""
SAY_AFTER_S = 0.1
"""What a handler says while it runs waits for so long at most."""
AT_ONCE = 499
"""One less than the engine writes at once, so that a claim has its place in the same transaction."""
BUSY = 50
"""From so many reports at once on, the next are let gather."""
GATHER_S = 0.005
ENOUGH = 250
LONGEST_WAIT_S = 2.0
TRIES = 5
"""How often a report is sent that the database refuses for a reason of its own."""


OUTCOMES = (Succeed, Fail, Release, Pause)
"""What ends an attempt. Most reports are such, and are accepted."""
DATED = (Succeed, Fail)
"""What says how long ago its handler began."""


class PendingReport(NamedTuple):
    run: Attempt
    command: Report
    told: Callable[[Verdict], None] | None


def _dated(letter: PendingReport, now: float) -> PendingReport:
    run, command = letter.run, letter.command
    if isinstance(command, DATED) and run.began is not None:
        command.ran_s = now - run.began
        if run.started and isinstance(command, Succeed):
            command.started = True
    return letter


class Reporter:
    def __init__(
        self,
        engine: EngineApi,
        answered: Callable[[Attempt, Report, Verdict], None],
        ended: Callable[[list[Attempt]], None] = lambda runs: None,
        helpers: int = 0,
    ) -> None:
        self._engine, self._answered, self._ended = engine, answered, ended
        self._letters: deque[PendingReport] = deque()
        self._plain: deque[PendingReport] = deque()
        """Successes of tasks about which nothing else is sent: in any order, by whichever thread is free."""
        self._saying: dict[int, Attempt] = {}
        self._say_at = 0.0
        self._starts: deque[Attempt] = deque()
        self._ticks = False
        self._ready = threading.Condition()
        self._closing = self._given_up = False
        self._beats: set[Attempt] = set()
        self._helpers = helpers
        works = [lambda: self._work(self._gather), *[self._help] * helpers]
        self._threads = [threading.Thread(target=work, name="onetray-outbox", daemon=True) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, run: Attempt, command: Report, told: Callable[[Verdict], None] | None = None) -> None:
        """Have a report sent."""
        self.put_all([PendingReport(run, command, told)])

    def put_all(self, letters: list[PendingReport]) -> None:
        with self._ready:
            self._letters.extend(letters)
            self._ready.notify_all()

    def put_ends(self, ends: Sequence[tuple[Attempt, Report]]) -> None:
        """Have sent how these have ended."""
        plain = [PendingReport(run, end, None) for run, end in ends if type(end) is Succeed and not run.spoke]
        others = [PendingReport(run, end, None) for run, end in ends if type(end) is not Succeed or run.spoke]
        with self._ready:
            self._plain.extend(plain)
            self._letters.extend(others)
            if others:
                self._ready.notify_all()
            else:
                self._ready.notify()

    def began(self, run: Attempt) -> None:
        """Its start is sent if it lasts."""
        # Without the lock, for most tasks are over before anybody looks.
        self._starts.append(run)
        if not self._ticks:
            with self._ready:
                self._ticks = True
                self._ready.notify_all()

    def say(self, run: Attempt) -> None:
        """Its log or its progress has something new."""
        with self._ready:
            if not self._saying:
                self._say_at = time.monotonic() + SAY_AFTER_S
                self._ready.notify_all()
            self._saying[id(run)] = run

    def waits(self) -> bool:
        """Whether reports are about to be sent."""
        return bool(self._plain)

    def wants_a_beat(self, run: Attempt) -> None:
        self._beats.add(run)

    def beats_wanted(self) -> set[Attempt]:
        """Those whose handlers have asked for a heartbeat since the last time."""
        wanted, self._beats = self._beats, set()
        return wanted

    def close(self) -> None:
        """Send what is left, and wait until all of it was answered."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def give_up(self) -> None:
        """Do not send again what is not answered now."""
        self._given_up = True

    def _help(self) -> None:
        try:
            self._work(self._gather_plain)
        finally:
            with self._ready:
                self._helpers -= 1
                self._ready.notify_all()

    def _work(self, gather: Callable[[], list[PendingReport]]) -> None:
        busy = False
        while True:
            if busy and len(self._plain) < ENOUGH and not self._closing:
                # Reports come faster than they are written: a larger batch costs little more than a small one.
                time.sleep(GATHER_S)
            batch = self._next(gather)
            if not batch:
                return
            busy = len(batch) >= BUSY
            self._send(batch)

    def _next(self, gather: Callable[[], list[PendingReport]]) -> list[PendingReport]:
        with self._ready:
            while True:
                batch, main = gather(), gather == self._gather
                # The first one stays to the last: what the others are told may have to be answered.
                if batch or (self._closing and not (main and self._helpers)):
                    return batch
                self._ready.wait(self._until_next() if main else None)

    def _until_next(self) -> float | None:
        self._ticks = bool(self._starts)
        times = [(self._starts[0].began or 0.0) + START_AFTER_S] if self._ticks else []
        if self._saying:
            times.append(self._say_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _gather(self) -> list[PendingReport]:
        """What has to be sent now: starts that are due, then what handlers said, then how they ended."""
        now, batch = time.monotonic(), []
        lasting = now - START_AFTER_S
        while self._starts and (self._starts[0].over or (self._starts[0].began or now) <= lasting):
            run = self._starts.popleft()
            if not run.over and not run.start_sent and run.stop is None:
                run.spoke = run.start_sent = True
                batch.append(PendingReport(run, Start(**run.ticket()), None))
        saying: dict[int, Attempt] = {}
        if self._letters or self._closing or now >= self._say_at:
            saying, self._saying = self._saying, saying
        for run in saying.values():
            batch += [PendingReport(run, command, None) for command in run.to_say()]
            if run.has_more_to_say:
                self._saying[id(run)] = run
        while self._letters and len(batch) < AT_ONCE:
            letter = self._letters.popleft()
            if id(letter.run) in self._saying:
                # A flood of lines: its end is told after the last of them.
                self._letters.appendleft(letter)
                break
            batch.append(_dated(letter, now))
        return batch + self._gather_plain(AT_ONCE - len(batch))

    def _gather_plain(self, most: int = AT_ONCE) -> list[PendingReport]:
        now, plain = time.monotonic(), self._plain
        return [_dated(plain.popleft(), now) for _ in range(min(most, len(plain)))]

    def _send(self, batch: list[PendingReport]) -> None:
        """Send a batch until all of it is answered."""
        wait, away, tries = 0.05, False, 0
        while batch:
            verdicts = self._run(batch)
            again: list[PendingReport] = []
            ended: list[Attempt] = []
            tries += 1
            for letter, verdict in zip(batch, verdicts, strict=True):
                if verdict.error is None and type(letter.command) in OUTCOMES:
                    ended.append(letter.run)
                elif verdict.error is None and type(letter.command) is Start:
                    letter.run.started = True
                elif self._may_work_later(verdict.error, tries):
                    again.append(letter)
                else:
                    self._tell(letter, verdict)
            self._ended(ended)
            if again and not away:
                away = True
                logger.warning("%d reports have to wait: %s", len(again), verdicts[-1].error)
            elif away and not again:
                logger.info("the reports that had to wait were sent")
            batch = again
            if batch:
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_S)

    def _run(self, batch: list[PendingReport]) -> list[Verdict]:
        """Successes by themselves, after all else: the engine writes those without a look at each."""
        commands = [letter.command for letter in batch]
        successes = [c for c in commands if type(c) is Succeed]
        if not successes or len(successes) == len(commands):
            return self._carry_out(commands)
        others = iter(self._carry_out([c for c in commands if type(c) is not Succeed]))
        verdicts = [None if type(c) is Succeed else next(others) for c in commands]
        away = next((v for v in verdicts if v is not None and isinstance(v.error, Unavailable)), None)
        # What a task has to say comes before its end.
        rest = iter(self._carry_out(successes) if away is None else [away] * len(successes))
        return [next(rest) if v is None else v for v in verdicts]

    def _carry_out(self, batch: Sequence[Report]) -> list[Verdict]:
        try:
            return self._engine.run(batch)
        except Exception as e:
            logger.exception("%d reports broke the engine", len(batch))
            return [Verdict(error=OnetrayError(f"the engine broke: {e!r}"))] * len(batch)

    def _may_work_later(self, error: OnetrayError | None, tries: int) -> bool:
        """Whether to send a report again: the database is away, or refused it for a reason that may pass."""
        if error is None or self._given_up or isinstance(error, InvalidInput | Conflict | NotFound):
            return False
        return isinstance(error, Unavailable) or tries < TRIES

    def _tell(self, letter: PendingReport, verdict: Verdict) -> None:
        try:
            if letter.told is not None:
                letter.told(verdict)
            else:
                self._answered(letter.run, letter.command, verdict)
        except Exception:
            logger.exception("the answer to %s of %r could not be taken", letter.command.verb, letter.run)
