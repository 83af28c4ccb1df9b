"""The worker: claims tasks, runs their handlers, reports their outcomes.

Connects the parts, and stops them in order:

    claimer ─▶ executor (event loop, threads, processes) ─▶ reporter ─▶ engine
       ▲                    ▲
     wake-up              heartbeat: leases, cancels, lost tasks, a blocked loop

Each part has its own threads, so that none delays another: a blocked event loop loses no lease, an unavailable
database stops no handler.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Unpack

from uuid_utils import uuid4

from onetray import __version__
from onetray.app.flow_declaration import declaration_of_flow
from onetray.app.rules import WorkerRules
from onetray.app.schedules import register_schedules
from onetray.app.tasks import PROCESS
from onetray.config import WorkerTuning
from onetray.domain.commands import Claim, Fail, Release, Report, Start, Succeed
from onetray.domain.errors import (
    Conflict,
    DatabaseMoved,
    DatabaseReplaced,
    InvalidInput,
    NotFound,
    OnetrayError,
    Unavailable,
)
from onetray.domain.task import Assignment, Verdict
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.store.retry_transaction import Outage, retry_transaction
from onetray.worker.attempt import LOST, STOPPING, Attempt
from onetray.worker.attempt_batch import BatchGatherer
from onetray.worker.call_handler import invalid_outcome, is_invalid_outcome
from onetray.worker.claimer import Claimer
from onetray.worker.executor import Executor
from onetray.worker.heartbeat import REGISTER_INTERVAL_S, Heartbeat
from onetray.worker.leases import HeldLeases
from onetray.worker.process_pool import ProcessPool
from onetray.worker.process_tuning import ProcessTuning
from onetray.worker.reporter import PendingReport, Reporter
from onetray.worker.stop_signals import stop_on_signals
from onetray.worker.task_log import TaskLog, log_banner
from onetray.worker.worker_config import WorkerConfig as WorkerConfig
from onetray.worker.worker_config import claim_source, worker_config

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.engine.janitor import Janitor

logger = logging.getLogger("onetray.worker")

CANCEL_TIMEOUT_S = 2.0
"""How long a stopped handler may take to end. After that the worker releases its task while it still runs."""

DEREGISTER_TIMEOUT_S = 5.0
RENEW_FLOWS_S, RENEW_SCHEDULES_S = 600.0, 60.0
"""How often a worker says that it still has the flows, and the schedules, that it declared."""
FILE_CHECK_INTERVAL_S = 0.5
HURRIED_TIMEOUT_S = 0.5
"""How long each step of a stop may take after a second request to stop."""


class Worker:
    """Runs the tasks of one app in this process."""

    def __init__(self, app: Onetray, *, path: str | None = None, **settings: Unpack[WorkerRules]) -> None:
        self.app, self.config, self.tuning = app, worker_config(settings), WorkerTuning()
        self.name = self.config.name or f"{socket.gethostname()}-{os.getpid()}-{str(uuid4())[:8]}"
        self.sources = tuple(map(claim_source, self.config.queues))
        self.held = HeldLeases()
        self._process_pool = ProcessPool(path, app)
        self._state, self._stop_requested, self._hurry = "running", False, False
        self._process_tuning = ProcessTuning()
        self._file_error: DatabaseMoved | None = None
        # SimpleQueue.put is safe in a signal handler. Event.set is not: the interrupted code may hold its lock.
        self._stop_requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed, self._closing = False, threading.Lock()

    def start(self) -> None:
        """Start claiming. Returns at once; `stop` ends it."""
        self.app.load_included()
        if not self.app.tasks:
            raise InvalidInput("the app has no tasks: declare one with @app.task, or see app.include", field="app")
        # Before the database is opened: if that fails, it says which.
        log_banner(self.name, self.app, self.config)
        engine = self.app.engine
        # A database that goes away meanwhile must not end a worker that would outlast it a moment later.
        retry_transaction(self._declare, engine.config.call_timeout_s)
        self._prepare_tasks()
        self._log = TaskLog(engine)
        outage = engine.store.outage if isinstance(engine, Engine) else Outage()
        if isinstance(engine, Engine):
            engine.store.expect_writes()
        self.reporter = Reporter(engine, self._handle_verdict, self._handle_accepted, self.tuning)
        self.executor = Executor(self.app, self.config.concurrency, self._process_pool, self._report_outcomes)
        self._heartbeat = Heartbeat(
            engine, self.app.namespace, self.held, self.executor, self.reporter, self._lose, self._register,
            self._log.tick, outage,
        )  # fmt: skip
        self._gatherers = [
            BatchGatherer(task, self.executor, self._release)
            for task in self.app.tasks.values() if task.batch is not None
        ]  # fmt: skip
        self._claimers = [*self._new_claimer(outage), *(self._new_batch_claimer(g, outage) for g in self._gatherers)]
        self._janitor = self._new_janitor() if self.config.janitor else None
        self.executor.open()
        try:
            retry_transaction(self._register, engine.config.call_timeout_s)
        except BaseException:
            self.executor.close()
            raise
        self.reporter.start()
        self._heartbeat.start()
        if self._janitor is not None:
            self._janitor.start()
        for start in [part.start for part in self._gatherers] + [part.start for part in self._claimers]:
            start()
        logger.info("worker %s claims from %s", self.name, ", ".join(self.config.queues))
        self._warn_of_other_queues()
        self._log_overridden_limits()

    def _new_claimer(self, outage: Outage) -> list[Claimer]:
        """The claimer of all kinds whose handlers get a single task; none if there is no such kind."""
        if not self._single_kinds():
            return []
        return [Claimer(
            self.app.engine, self.executor, self.held, self._claim_command,
            self.app.namespace, self.sources, self._accept_claim, self._release, self.reporter.waiting_successes,
            self.tuning, outage,
        )]  # fmt: skip

    def _new_batch_claimer(self, gatherer: BatchGatherer, outage: Outage) -> Claimer:
        # Not piggybacked: a claim must not take more than the batch has room for.
        return Claimer(
            self.app.engine, gatherer, self.held, partial(self._claim_command, kind=gatherer.kind),
            self.app.namespace, self.sources, partial(self._accept_into, gatherer), self._release,
            self.reporter.waiting_successes, replace(self.tuning, piggyback=False), outage,
        )  # fmt: skip

    def _single_kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind, task in self.app.tasks.items() if task.batch is None)

    def _warn_of_other_queues(self) -> None:
        """Say which tasks of the app this worker will not run."""
        claimed = [source.queue for source in self.sources]
        others = sorted({task.queue for task in self.app.tasks.values()} - set(claimed))
        if others:
            logger.info(
                "the app also has tasks of the queues %s, which do not run here: to run them, pass --queues %s",
                ", ".join(others), ",".join([*self.config.queues, *others]),
            )  # fmt: skip

    def _log_overridden_limits(self) -> None:
        """Say which limits of the code are not in force, because an operator has set other numbers."""
        app = self.app
        limited = [kind for kind, policy in app.policies.items() if policy.concurrency or policy.rate]
        for limit in app.engine.limits(namespace=app.namespace) if limited or app.queue_limits else ():
            if limit.declared_numbers and (limit.kind in limited or (limit.queue, limit.what) in app.queue_limits):
                logger.info(
                    "the %s is %s: %s has set it in place of %s; `onetray limits reset %d` returns to that",
                    limit.name, limit.numbers, limit.set_by, limit.declared_numbers, limit.id,
                )  # fmt: skip

    def _declare(self) -> None:
        self.app.engine.declare(self.app.policies, namespace=self.app.namespace)
        for limit in self.app.queue_limits.values():
            assert limit.queue is not None
            self.app.engine.declare_limit(limit.queue, **limit.as_arguments(), namespace=self.app.namespace)
        self._declare_flows()
        self._declare_schedules()

    def _declare_schedules(self, renew: bool = False) -> None:
        self._renew_schedules_at = time.monotonic() + RENEW_SCHEDULES_S
        register_schedules(self.app, self.name, renew)

    def _declare_flows(self, renew: bool = False) -> None:
        """Register the app's flows, so that they can be submitted by name. The worker runs without that, too."""
        for flow in self.app.flows.values():
            if not flow.stages:
                continue
            try:
                declaration = declaration_of_flow(flow)
                self.app.engine.declare_flow(declaration, worker=self.name, renew=renew, namespace=self.app.namespace)
            except Unavailable:
                raise
            except Exception as e:
                # Types and functions of users may raise anything, and a server may be too old to know declarations.
                logger.warning("the flow %s cannot be submitted by name: %s", flow.name, e)
        self._renew_flows_at = time.monotonic() + RENEW_FLOWS_S

    def _prepare_tasks(self) -> None:
        """Build the argument checks now: the first call must not block the loop. Child processes build their own."""
        for task in self.app.tasks.values():
            if task.isolation != PROCESS:
                try:
                    task.signature.prepare()
                except Exception as e:
                    # User types may raise anything, and the app's other tasks must still run.
                    logger.error("tasks of %s will fail: %s", task.kind, e)

    def _new_janitor(self) -> Janitor | None:
        engine, retention_s = self.app.engine, self.config.retention_s
        if isinstance(engine, Engine):
            return engine.janitor(retention_s=retention_s, namespace=self.app.namespace)
        if retention_s is not None:
            raise InvalidInput("a remote worker deletes no jobs: set the retention on the server", field="retention_s")
        return None

    def run(self) -> None:
        """Run until a stop is requested, and tune this process for it (garbage collection, memory, thread switches).

        In the main thread SIGTERM, SIGINT and SIGHUP request a stop, unless the program has its own handlers for them.
        Those handlers, and other threads, call `ask_to_stop`.

        Raises DatabaseReplaced if the SQLite file was replaced by another one: restart the process.
        """
        with stop_on_signals(self.ask_to_stop), self._process_tuning:
            self.start()
            try:
                while not self._stop_requested:
                    # With a timeout: a signal just before the call does not interrupt it.
                    with contextlib.suppress(queue.Empty):
                        self._stop_requests.get(timeout=FILE_CHECK_INTERVAL_S)
                    self._check_database_file()
            finally:
                self.stop()

    def _check_database_file(self) -> None:
        """Wait for a database file that was moved. Raise if it was replaced, and still is at the next check."""
        engine, was = self.app.engine, self._file_error
        try:
            if isinstance(engine, Engine):
                engine.store.check_file()
            self._file_error = None
            if was is not None:
                logger.info("the database file is back: the worker continues")
        except DatabaseReplaced as e:
            self._file_error = e
            if isinstance(was, DatabaseReplaced) and not self._stop_requested:
                # The held tasks are in the other file: there is nowhere to report to.
                self._hurry = True
                raise
        except DatabaseMoved as e:
            self._file_error = e
            if was is None:
                logger.error("the worker waits for its database file: %s", e)

    def ask_to_stop(self) -> None:
        """Request a graceful stop; a second call requests an immediate one. Safe in a signal handler."""
        self._hurry, self._stop_requested = self._stop_requested, True
        self._stop_requests.put(None)

    def stop(self, *, hurry: bool = False) -> None:
        """Stop claiming, let handlers end, release the rest (which costs no attempt), and send all reports."""
        self._hurry, self._stop_requested = self._hurry or hurry, True
        with self._closing:
            if not self._closed:
                self._shut_down()
                self._closed = True

    def _shut_down(self) -> None:
        until = time.monotonic() + self.config.drain_s
        self._state = "stopping"
        logger.info(
            "worker %s is stopping: it waits up to %g s for %d handlers; a second signal stops at once",
            self.name, self.config.drain_s, len(self.executor.running),
        )  # fmt: skip
        for claimer in self._claimers:
            claimer.stop()
        self._join_claimers(1.0)
        for gatherer in self._gatherers:
            self._release(gatherer.stop(), STOPPING)
        self._release(self.executor.withdraw(), STOPPING)
        self._heartbeat.register_soon()
        while not self._hurry and not self.executor.wait_until_idle(min(until, time.monotonic() + 0.2)):
            if time.monotonic() >= until:
                break
        self._stop_handlers()
        self.wait_for(lambda: self._join_claimers(5.0), 5.0)
        self._release(self.executor.withdraw(), STOPPING)
        if not self.wait_for(self.reporter.close, max(5.0, self.config.drain_s)):
            logger.error("some reports were not answered: their tasks return to the queue when their leases expire")
        self.reporter.give_up()
        self.wait_for(self._deregister, DEREGISTER_TIMEOUT_S)
        self._process_pool.close()
        self.executor.close()
        self._log.close()
        logger.info("worker %s has stopped", self.name)

    def _join_claimers(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for claimer in self._claimers:
            claimer.join(max(0.0, until - time.monotonic()))

    def _deregister(self) -> None:
        self._heartbeat.stop()
        if self._janitor is not None:
            self._janitor.stop()
        try:
            self.app.engine.worker_leave(self.name, namespace=self.app.namespace)
        except OnetrayError as e:
            logger.warning("this worker could not be removed from the list of workers: %s", e)

    def wait_for(self, step: Callable[[], object], timeout_s: float) -> bool:
        """Run a step of the stop in a thread, with a timeout: an unavailable database must not block the stop."""
        thread = threading.Thread(target=step, name="onetray-stop", daemon=True)
        thread.start()
        until = time.monotonic() + timeout_s
        while thread.is_alive() and time.monotonic() < until:
            if self._hurry:
                until = min(until, time.monotonic() + HURRIED_TIMEOUT_S)
            thread.join(0.02)
        return not thread.is_alive()

    def _stop_handlers(self) -> None:
        """Stop running handlers. Release the tasks of those that do not end, so that another worker can claim them."""
        if not self.executor.running:
            return
        for attempt in list(self.executor.running):
            attempt.ask_to_stop(STOPPING)
        if not self.executor.wait_until_idle(time.monotonic() + (0.2 if self._hurry else CANCEL_TIMEOUT_S)):
            running = list(self.executor.running)
            left = [attempt for work in running for attempt in work.members if not attempt.has_ended]
            logger.warning("released while the handler still runs: %s", ", ".join(map(repr, left)))
            for attempt in left:
                attempt.stop_reason = LOST
            self._release(left, f"{STOPPING}, its handler did not end")

    def _release(self, attempts: list[Attempt], reason: str) -> None:
        for attempt in attempts:
            attempt.has_ended = True
            self.reporter.put(attempt, Release(reason=reason, **attempt.ticket()))

    # Callbacks of the parts.

    def _claim_command(self, queue: str, limit: int, request_key: str, kind: str | None = None) -> Claim:
        kinds = self._single_kinds() if kind is None else (kind,)
        return Claim(
            queue=queue, worker=self.name, limit=limit, request_key=request_key, kinds=kinds,
            namespace=self.app.namespace,
        )  # fmt: skip

    def _hold(self, claimed: list[Assignment], sent_at: float) -> list[Attempt]:
        tasks, engine, reporter = self.app.tasks, self.app.engine, self.reporter
        attempts = [Attempt(a, tasks[a.kind], reporter, engine) for a in claimed]
        self.held.add(attempts, sent_at)
        self._process_tuning.adjust_gc(len(self.held))
        return attempts

    def _accept_into(self, gatherer: BatchGatherer, claimed: list[Assignment], sent_at: float) -> None:
        attempts = self._hold(claimed, sent_at)
        if gatherer.add(attempts):
            self._log.received(attempts)
        else:
            self._release(attempts, STOPPING)

    def _accept_claim(self, claimed: list[Assignment], sent_at: float) -> None:
        attempts = self._hold(claimed, sent_at)
        if self._state == "stopping":
            self._release(attempts, STOPPING)
            return
        self.executor.admit(attempts)
        self._log.received(attempts)

    def _report_outcomes(self, ended: Sequence[tuple[Attempt, Report | None]]) -> None:
        outcomes = []
        for attempt, report in ended:
            if attempt.stop_reason == LOST:
                logger.warning("the report of %r is dropped: %s", attempt, LOST)
                self.held.drop((attempt,))
            elif report is not None:
                outcomes.append((attempt, report))
        if outcomes:
            self.reporter.put_outcomes(outcomes)

    def _lose(self, attempt: Attempt, reason: str) -> None:
        if attempt.stop_reason != LOST:
            logger.warning("%r is lost: %s. Its handler is stopped, its report will be dropped", attempt, reason)
            attempt.ask_to_stop(LOST)
        if attempt.began_at is None:
            self.held.drop((attempt,))
        else:
            self.held.lose(attempt)

    def _handle_accepted(self, succeeded: list[PendingReport], ended: list[tuple[PendingReport, Verdict]]) -> None:
        self.held.drop([pending.attempt for pending in succeeded])
        self._log.succeeded(succeeded)
        for pending, verdict in ended:
            self.held.drop((pending.attempt,))
            self._log.ended(pending.attempt, pending.command, verdict)

    def _handle_verdict(self, attempt: Attempt, command: Report, verdict: Verdict) -> None:
        error = verdict.error
        if isinstance(command, Succeed | Fail) or command.verb in ("release", "pause"):
            if isinstance(error, InvalidInput) and not is_invalid_outcome(command):
                # The outcome cannot be stored: fail the task instead of waiting for its lease to expire.
                self.reporter.put(attempt, invalid_outcome(error, attempt.ticket()))
                return
            self.held.drop((attempt,))
        if error is None:
            return
        if isinstance(command, Start) and isinstance(error, Conflict | NotFound):
            # If the handler has ended, its outcome may have been recorded before the start.
            if not attempt.has_ended:
                self._lose(attempt, str(error))
        else:
            logger.warning("%s of %r was refused: %s", command.verb, attempt, attempt.redacted(error))

    def _register(self) -> None:
        ttl_s = 4 * REGISTER_INTERVAL_S
        self.app.engine.worker_beat(
            WorkerBeat(
                name=self.name, host=socket.gethostname(), pid=os.getpid(), version=__version__,
                queues=self.config.queues, kinds=tuple(self.app.tasks),
                concurrency=self.config.concurrency, running=len(self.executor.running), claimed=len(self.held),
                state=self._state, ttl_s=ttl_s,
            ),
            namespace=self.app.namespace,
        )  # fmt: skip

        if time.monotonic() >= self._renew_flows_at:
            self._declare_flows(renew=True)
        if time.monotonic() >= self._renew_schedules_at:
            self._declare_schedules(renew=True)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
