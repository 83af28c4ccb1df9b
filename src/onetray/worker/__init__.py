"""The worker: claims tasks, runs their handlers, reports how they ended.

Owns how the parts stand together, and the order in which they stop:

    claimer ─▶ floor (loop, threads, children) ─▶ outbox ─▶ engine
       ▲                    ▲
     wake-up              pulse: heartbeats, cancels, lost leases, a blocked loop

Each part has threads of its own, so that none can hold up another: a blocked loop loses no lease, a database that
is away stops no handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid4

from onetray import __version__
from onetray.app.tasks import PROCESS
from onetray.config import LEAST_RETENTION_S
from onetray.domain.checks import seconds, whole
from onetray.domain.commands import Claim, Fail, Release, Report, Start, Succeed
from onetray.domain.errors import Conflict, DatabaseMoved, DatabaseReplaced, InvalidInput, NotFound, OnetrayError
from onetray.domain.task import Assignment, Verdict
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.worker.attempt import LOST, STOPPING, Attempt
from onetray.worker.call_handler import says_unkept, unkept
from onetray.worker.claimer import Claimer, ClaimSource
from onetray.worker.executor import Executor
from onetray.worker.heartbeat import REGISTER_S, Heartbeat
from onetray.worker.leases import HeldLeases
from onetray.worker.process_pool import ProcessPool
from onetray.worker.reporter import Reporter
from onetray.worker.supervisor import stop_on_signals

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.engine.janitor import Janitor

logger = logging.getLogger("onetray.worker")

CANCEL_S = 2.0
"""How long a handler that was told to stop is waited for before its task is given back without it."""

_M_ARENA_MAX = -8
SWITCH_S = 0.001
GARBAGE = 2000
LEAVE_S = 5.0
LOOK_AT_FILE_S = 0.5
HURRY_S = 0.5
"""How long each step of a stop is waited for once it was asked for a second time."""


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker works. Defaults stand here and nowhere else."""

    concurrency: int = 10
    queues: tuple[str, ...] = ("default",)
    """Queues to claim from; `name:5` holds at most five tasks of it at once."""
    name: str = ""
    drain_s: float = 30.0
    """How long running handlers may go on after a stop was asked for."""
    janitor: bool = True
    """Whether it also looks after time: expired leases, retries, deadlines. One process at least has to."""
    retention_s: float | None = None
    """Its janitor removes jobs of the app's namespace so long after their end; None keeps them."""


class Worker:
    """Runs the tasks of one app in this process."""

    def __init__(self, app: Onetray, *, path: str | None = None, **settings: Any) -> None:
        self.app, self.config = app, _config(settings)
        self.name = self.config.name or f"{socket.gethostname()}-{os.getpid()}-{str(uuid4())[:8]}"
        self.sources = tuple(_source(text) for text in self.config.queues)
        self.held = HeldLeases()
        self._children = ProcessPool(path, app)
        self._state = "running"
        self._asked = self._hurry = False
        self._misplaced: DatabaseMoved | None = None
        # Its put takes no lock that the code which a signal has interrupted may hold: an Event's set does.
        self._asks: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()

    def start(self) -> None:
        """Start claiming. Returns at once; `stop` ends it."""
        engine = self.app.engine
        # Python's own 5 ms is how long a busy loop may keep a thread that has heard from the database waiting.
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        if not self.app.tasks:
            raise InvalidInput("the app has no tasks: declare one with @app.task", field="app")
        engine.declare(self.app.policies, namespace=self.app.namespace)
        self._prepare_tasks()
        self.outbox = Reporter(engine, self._answered, self.held.drop, helpers=1)
        self.floor = Executor(self.app, self.config.concurrency, self._children, self._ended)
        self._pulse = Heartbeat(
            engine, self.app.namespace, self.held, self.floor, self.outbox, self._lose, self._register
        )
        self._claimer = Claimer(
            engine, self.floor, self.held, self._claim, self.app.namespace, self.sources, self._take, self._give_back,
            self.outbox.waits,
        )  # fmt: skip
        self._janitor = self._new_janitor() if self.config.janitor else None
        self.floor.open()
        try:
            self._register()
        except BaseException:
            self.floor.close()
            raise
        self.outbox.start()
        self._pulse.start()
        if self._janitor is not None:
            self._janitor.start()
        self._claimer.start()
        logger.info("worker %s takes tasks from %s", self.name, ", ".join(self.config.queues))

    def _prepare_tasks(self) -> None:
        """Load what handlers need before the first of them holds up the loop for it. Child processes load their own."""
        for task in self.app.tasks.values():
            if task.isolation != PROCESS:
                try:
                    task.signature.prepare()
                except Exception as e:
                    # Types are the app's: whatever they raise must not keep the worker from its other tasks.
                    logger.error("tasks of %s will fail: %s", task.kind, e)

    def _new_janitor(self) -> Janitor | None:
        engine, retention_s = self.app.engine, self.config.retention_s
        if isinstance(engine, Engine):
            return engine.janitor(retention_s=retention_s, namespace=self.app.namespace)
        if retention_s is not None:
            raise InvalidInput("old jobs are removed by the server: give the retention to that", field="retention_s")
        return None

    def run(self) -> None:
        """Work until a stop is asked for. This process is a worker from now on.

        In the main thread SIGTERM and SIGINT ask for it, unless the program has handlers of its own for them. Those,
        and other threads, call `ask_to_stop`.

        Raises DatabaseReplaced when another SQLite file was put in the place of its own: start the process again.
        """
        # Most of what a job leaves is gone before it is worth a search for cycles.
        _share_memory()
        gc.freeze()
        gc.set_threshold(max(GARBAGE, gc.get_threshold()[0]), *gc.get_threshold()[1:])
        with stop_on_signals(self.ask_to_stop):
            self.start()
            try:
                while not self._asked:
                    # Not for ever: a signal that comes just before the wait does not end it.
                    with contextlib.suppress(queue.Empty):
                        self._asks.get(timeout=LOOK_AT_FILE_S)
                    self._look_at_file()
            finally:
                self.stop()

    def _look_at_file(self) -> None:
        """Wait for a database that was moved; give up on one that was replaced, unless that is being undone."""
        engine, was = self.app.engine, self._misplaced
        try:
            if isinstance(engine, Engine):
                engine.store.check_file()
            self._misplaced = None
            if was is not None:
                logger.info("the database is back, and the worker goes on")
        except DatabaseReplaced as e:
            self._misplaced = e
            if isinstance(was, DatabaseReplaced) and not self._asked:
                # What it holds is in the other file: there is nobody to report it to.
                self._hurry = True
                raise
        except DatabaseMoved as e:
            self._misplaced = e
            if was is None:
                logger.error("the worker waits for its database: %s", e)

    def ask_to_stop(self) -> None:
        """Stop gracefully; asked a second time, at once. Safe in a signal handler."""
        self._hurry, self._asked = self._asked, True
        self._asks.put(None)

    def stop(self, *, hurry: bool = False) -> None:
        """Stop claiming, let handlers end, give back the rest unharmed, and report all of it."""
        self._hurry, self._asked = self._hurry or hurry, True
        with self._closing:
            if not self._closed:
                self._shut_down()
                self._closed = True

    def _shut_down(self) -> None:
        until = time.monotonic() + self.config.drain_s
        self._state = "stopping"
        logger.info("worker %s was asked to stop", self.name)
        self._claimer.stop()
        self._claimer.join(1.0)
        self._give_back(self.floor.take_back(), "its worker stops")
        self._pulse.register_soon()
        while not self._hurry and not self.floor.wait_until_idle(min(until, time.monotonic() + 0.2)):
            if time.monotonic() >= until:
                break
        self._stop_handlers()
        self.wait_for(lambda: self._claimer.join(5.0), 5.0)
        self._give_back(self.floor.take_back(), "its worker stops")
        if not self.wait_for(self.outbox.close, max(5.0, self.config.drain_s)):
            logger.error("some reports were not answered: their leases will run out")
        self.outbox.give_up()
        self.wait_for(self._leave, LEAVE_S)
        self._children.close()
        self.floor.close()
        logger.info("worker %s has stopped", self.name)

    def _leave(self) -> None:
        self._pulse.stop()
        if self._janitor is not None:
            self._janitor.stop()
        try:
            self.app.engine.worker_leave(self.name, namespace=self.app.namespace)
        except OnetrayError as e:
            logger.warning("operators could not be told that this worker has stopped: %s", e)

    def wait_for(self, step: Callable[[], object], patience_s: float) -> bool:
        """Take a step of the stop, and wait for so long at most: a database that is away must not hold it up."""
        taken = threading.Thread(target=step, name="onetray-stop", daemon=True)
        taken.start()
        until = time.monotonic() + patience_s
        while taken.is_alive() and time.monotonic() < until:
            if self._hurry:
                until = min(until, time.monotonic() + HURRY_S)
            taken.join(0.02)
        return not taken.is_alive()

    def _stop_handlers(self) -> None:
        """Tell what still runs to stop; give back what does not, so that another worker may have it at once."""
        if not self.floor.running:
            return
        for run in list(self.floor.running):
            run.ask_to_stop(STOPPING)
        if not self.floor.wait_until_idle(time.monotonic() + (0.2 if self._hurry else CANCEL_S)):
            left = [run for run in list(self.floor.running) if not run.over]
            logger.warning("given back while the handler still runs: %s", ", ".join(map(repr, left)))
            for run in left:
                run.stop = LOST
            self._give_back(left, "its worker stops, its handler did not")

    def _give_back(self, runs: list[Attempt], reason: str) -> None:
        for run in runs:
            run.over = True
            self.outbox.put(run, Release(reason=reason, **run.ticket()))

    # What the parts tell each other.

    def _claim(self, queue: str, limit: int, request_key: str) -> Claim:
        return Claim(
            queue=queue, worker=self.name, limit=limit, request_key=request_key, kinds=tuple(self.app.tasks),
            namespace=self.app.namespace,
        )  # fmt: skip

    def _take(self, claimed: list[Assignment], asked_at: float) -> None:
        tasks, engine, outbox = self.app.tasks, self.app.engine, self.outbox
        runs = [Attempt(a, tasks[a.kind], outbox, engine) for a in claimed]
        self.held.take(runs, asked_at)
        if self._state == "stopping":
            self._give_back(runs, "its worker stops")
            return
        self.floor.admit(runs)

    def _ended(self, ended: Sequence[tuple[Attempt, Report | None]]) -> None:
        ends = []
        for run, report in ended:
            if run.stop == LOST:
                logger.warning("%r has ended, and nobody wants to know: %s", run, LOST)
                self.held.drop((run,))
            elif report is not None:
                ends.append((run, report))
        if ends:
            self.outbox.put_ends(ends)

    def _lose(self, run: Attempt, why: str) -> None:
        if run.stop != LOST:
            logger.warning("%r is not ours any more: %s. Its handler is told to stop, its report is dropped", run, why)
            run.ask_to_stop(LOST)
        if run.began is None:
            self.held.drop((run,))
        else:
            self.held.lose(run)

    def _answered(self, run: Attempt, command: Report, verdict: Verdict) -> None:
        error = verdict.error
        if isinstance(command, Succeed | Fail) or command.verb in ("release", "pause"):
            if isinstance(error, InvalidInput) and not says_unkept(command):
                # What the handler gave cannot be kept: say so, instead of leaving the task to its lease.
                self.outbox.put(run, unkept(error, run.ticket()))
                return
            self.held.drop((run,))
        if error is None:
            return
        if isinstance(command, Start) and isinstance(error, Conflict | NotFound):
            # One that has ended meanwhile may have reported that first.
            if not run.over:
                self._lose(run, str(error))
        else:
            logger.warning("%s of %r was refused: %s", command.verb, run, run.redacted(error))

    def _register(self) -> None:
        ttl_s = 4 * REGISTER_S
        self.app.engine.worker_beat(
            WorkerBeat(
                name=self.name, host=socket.gethostname(), pid=os.getpid(), version=__version__,
                queues=self.config.queues, kinds=tuple(self.app.tasks),
                concurrency=self.config.concurrency, running=len(self.floor.running), claimed=len(self.held),
                state=self._state, ttl_s=ttl_s,
            ),
            namespace=self.app.namespace,
        )  # fmt: skip

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _share_memory() -> None:
    """Have threads share two heaps. The C library gives one to each of them, and what one has freed helps no other."""
    with contextlib.suppress(OSError, AttributeError):  # A C library without such a thing.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _config(settings: dict[str, Any]) -> WorkerConfig:
    known = WorkerConfig.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise InvalidInput(f"a worker has no setting {name!r}; it has: {', '.join(known)}", field=name)
    queues = settings.get("queues", WorkerConfig.queues)
    config = WorkerConfig(**{**settings, "queues": tuple(queues.split(",") if isinstance(queues, str) else queues)})
    whole(config.concurrency, "concurrency", 1, 10_000)
    seconds(config.drain_s, "drain_s")
    if config.retention_s is not None:
        seconds(config.retention_s, "retention_s", LEAST_RETENTION_S)
        if not config.janitor:
            raise InvalidInput("retention_s needs the janitor: leave out janitor=False", field="retention_s")
    if not config.queues:
        raise InvalidInput("a worker needs a queue to claim from", field="queues")
    return config


def _source(text: str) -> ClaimSource:
    queue, colon, most = text.strip().partition(":")
    if not queue or (colon and (not most.isdecimal() or int(most) < 1)):
        raise InvalidInput(f"{text!r}: write a queue's name, or name:5 for at most five of it at once", field="queues")
    return ClaimSource(queue, int(most) if most else None)
