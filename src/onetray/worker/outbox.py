"""Send what was done: reports in batches, soon, and again until they are answered.

Owns the thread that reports. A start is sent only for what lasts: a handler that ends sooner has it recorded together
with its outcome. Reports that could not be sent are kept and repeated; the engine knows a repeated one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onetray.commands import Fail, Pause, Release, Report, Start, Succeed
from onetray.errors import Conflict, InvalidInput, NotFound, OnetrayError, Unavailable
from onetray.model import Verdict

if TYPE_CHECKING:
    from onetray.engine import Engine
    from onetray.worker.run import Run

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


class Letter(NamedTuple):
    run: Run
    command: Report
    told: Callable[[Verdict], None] | None


class Outbox:
    def __init__(
        self,
        engine: Engine,
        answered: Callable[[Run, Report, Verdict], None],
        ended: Callable[[list[Run]], None] = lambda runs: None,
    ) -> None:
        self._engine, self._answered, self._ended = engine, answered, ended
        self._letters: deque[Letter] = deque()
        self._saying: dict[int, Run] = {}
        self._say_at = 0.0
        self._starts: deque[Run] = deque()
        self._ticks = False
        self._ready = threading.Condition()
        self._closing = self._given_up = False
        self.beats_wanted: set[Run] = set()
        self._thread = threading.Thread(target=self._work, name="onetray-outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, run: Run, command: Report, told: Callable[[Verdict], None] | None = None) -> None:
        """Have a report sent."""
        self.put_all([Letter(run, command, told)])

    def put_all(self, letters: list[Letter]) -> None:
        with self._ready:
            self._letters.extend(letters)
            self._ready.notify()

    def began(self, run: Run) -> None:
        """Its start is sent if it lasts."""
        # Without the lock, for most tasks are over before anybody looks.
        self._starts.append(run)
        if not self._ticks:
            with self._ready:
                self._ticks = True
                self._ready.notify()

    def say(self, run: Run) -> None:
        """Its log or its progress has something new."""
        with self._ready:
            if not self._saying:
                self._say_at = time.monotonic() + SAY_AFTER_S
                self._ready.notify()
            self._saying[id(run)] = run

    @property
    def waits(self) -> bool:
        return bool(self._letters)

    def wants_a_beat(self, run: Run) -> None:
        self.beats_wanted.add(run)

    def close(self) -> None:
        """Send what is left, and wait until all of it was answered."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()

    def give_up(self) -> None:
        """Do not send again what is not answered now."""
        self._given_up = True

    def _work(self) -> None:
        busy = False
        while True:
            if busy and len(self._letters) < ENOUGH and not self._closing:
                # Reports come faster than they are written: a larger batch costs little more than a small one.
                time.sleep(GATHER_S)
            batch = self._next()
            if not batch:
                return
            busy = len(batch) >= BUSY
            self._send(batch)

    def _next(self) -> list[Letter]:
        with self._ready:
            while True:
                batch = self._gather()
                if batch or self._closing:
                    return batch
                self._ready.wait(self._until_next())

    def _until_next(self) -> float | None:
        self._ticks = bool(self._starts)
        times = [(self._starts[0].began or 0.0) + START_AFTER_S] if self._ticks else []
        if self._saying:
            times.append(self._say_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _gather(self) -> list[Letter]:
        """What has to be sent now: starts that are due, then what handlers said, then how they ended."""
        now, batch = time.monotonic(), []
        lasting = now - START_AFTER_S
        while self._starts and (self._starts[0].over or (self._starts[0].began or now) <= lasting):
            run = self._starts.popleft()
            if not run.over and not run.start_sent and run.stop is None:
                run.start_sent = True
                batch.append(Letter(run, Start(**run.ticket()), None))
        saying: dict[int, Run] = {}
        if self._letters or self._closing or now >= self._say_at:
            saying, self._saying = self._saying, saying
        for run in saying.values():
            batch += [Letter(run, command, None) for command in run.to_say()]
            if run.has_more_to_say:
                self._saying[id(run)] = run
        while self._letters and len(batch) < AT_ONCE:
            letter = self._letters.popleft()
            if id(letter.run) in self._saying:
                # A flood of lines: its end is told after the last of them.
                self._letters.appendleft(letter)
                break
            command, run = letter.command, letter.run
            if isinstance(command, DATED) and run.began is not None:
                command.ran_s = now - run.began
                if run.started and isinstance(command, Succeed):
                    command.started = True
            batch.append(letter)
        return batch

    def _send(self, batch: list[Letter]) -> None:
        """Send a batch until all of it is answered."""
        wait, away, tries = 0.05, False, 0
        while batch:
            verdicts = self._run(batch)
            again: list[Letter] = []
            ended: list[Run] = []
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

    def _run(self, batch: list[Letter]) -> list[Verdict]:
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

    def _tell(self, letter: Letter, verdict: Verdict) -> None:
        try:
            if letter.told is not None:
                letter.told(verdict)
            else:
                self._answered(letter.run, letter.command, verdict)
        except Exception:
            logger.exception("the answer to %s of %r could not be taken", letter.command.verb, letter.run)


class Outboxes:
    """Several outboxes, so that as many batches are written at once. All about one task goes through the same."""

    def __init__(self, outboxes: Sequence[Outbox]) -> None:
        self.all = outboxes

    def of(self, run: Run) -> Outbox:
        return self.all[run.assignment.key % len(self.all)]

    def put(self, run: Run, command: Report) -> None:
        self.of(run).put(run, command)

    def put_all(self, letters: list[Letter]) -> None:
        if len(self.all) == 1:
            self.all[0].put_all(letters)
            return
        for n, outbox in enumerate(self.all):
            own = [letter for letter in letters if letter.run.assignment.key % len(self.all) == n]
            if own:
                outbox.put_all(own)

    def waits(self) -> bool:
        """Whether reports are about to be sent."""
        return any(outbox.waits for outbox in self.all)

    def start(self) -> None:
        for outbox in self.all:
            outbox.start()

    def close(self) -> None:
        for outbox in self.all:
            outbox.close()

    def give_up(self) -> None:
        for outbox in self.all:
            outbox.give_up()

    def beats_wanted(self) -> set[Run]:
        """Those whose handlers have asked for a heartbeat since the last time."""
        wanted: set[Run] = set()
        for outbox in self.all:
            if outbox.beats_wanted:
                wanted |= outbox.beats_wanted
                outbox.beats_wanted = set()
        return wanted
