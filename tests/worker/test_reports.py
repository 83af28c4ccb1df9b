"""Reports: one that fails affects no other, and the worker keeps nothing of reported tasks."""

from __future__ import annotations

import gc
import threading
from dataclasses import fields, replace
from typing import Any

import pytest

from onetray import Onetray, ctx
from onetray.config import Limits
from onetray.domain.commands import Claim, Start, Submit, Succeed, ticket
from onetray.domain.errors import InvalidInput, OnetrayError, StoreError, TooLarge, Unavailable
from onetray.domain.flow import More
from onetray.domain.task import Assignment, Verdict
from onetray.engine import batch
from onetray.worker.attempt import Attempt, success_of
from onetray.worker.reporter import MAX_TRIES
from tests.support.fleet import wait_until

WAIT_S = 60.0


@pytest.mark.parametrize("issued", ["", "1-0-1-2-1-01234567"], ids=["of this process", "of a server"])
@pytest.mark.parametrize("more", [None, More(spawn={})], ids=["plain", "with more"])
def test_a_success_of_an_assignment_is_the_one_that_its_ticket_makes(
    either_app: Onetray, issued: str, more: More | None
) -> None:
    assignment = replace(_claimed(either_app), ticket=issued)
    quick, usual = success_of(assignment, {"n": 1}, more), Succeed(result={"n": 1}, more=more, **ticket(assignment))
    assert quick == usual
    for success in (quick, usual):
        success.check(Limits())
    apart = {"is_of_claim"}
    assert {f.name: getattr(quick, f.name) for f in fields(quick) if f.name not in apart} == {
        f.name: getattr(usual, f.name) for f in fields(usual) if f.name not in apart
    }
    assert quick.result_json == '{"n":1}'


def test_a_success_of_an_assignment_is_still_checked_for_what_the_handler_returned(either_app: Onetray) -> None:
    assignment = _claimed(either_app)
    with pytest.raises(TooLarge):
        either_app.engine.call(success_of(assignment, "x" * 2_000_000))
    with pytest.raises(InvalidInput):
        either_app.engine.call(success_of(assignment, object()))
    traced = success_of(assignment, None)
    traced.trace = "not a traceparent"
    with pytest.raises(InvalidInput):
        either_app.engine.call(traced)
    assert either_app.engine.call(success_of(assignment, 7)).state == "succeeded"


def _claimed(app: Onetray) -> Assignment:
    app.engine.call(Submit(kind="work"))
    (assignment,) = app.engine.call(Claim(worker="w"))
    assert isinstance(assignment, Assignment)
    return assignment


def test_a_report_that_the_database_rejects_affects_no_other_and_its_task_is_retried(
    either_app: Onetray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, refused = either_app, _break_success(monkeypatch)

    @app.task(lease_s=0.6, retries=50, backoff_base_s=0.0)
    async def work(n: int) -> int:
        return n

    jobs = work.submit_many([{"n": n} for n in range(20)])
    with app.worker(concurrency=20):
        for job in jobs[1:]:
            assert job.wait(WAIT_S) == "succeeded"
        wait_until(lambda: "was refused" in caplog.text)
        refused.clear()
        assert jobs[0].wait(WAIT_S) == "succeeded"


def _break_success(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Fail every transaction that writes a success of one of these tasks, by their keys."""
    succeed, refused = batch.HANDLERS["succeed"], {1}

    def breaking(scope: Any, work: list[tuple[int, Any, Any]]) -> None:
        succeed(scope, work)
        if any(row.key in refused for _, _, row in work):
            raise RuntimeError("a trigger rejects this row")

    monkeypatch.setitem(batch.HANDLERS, "succeed", breaking)
    monkeypatch.setattr(batch, "_run_plain_successes", lambda *_: None)
    return refused


def test_an_error_in_a_start_does_not_stop_the_handler(app: Onetray, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    @app.task
    def work() -> bool:
        assert gate.wait(WAIT_S)
        return ctx.cancelled

    broken = _fail_first(app, monkeypatch, Start, StoreError("the disk is full"))
    job = work.submit()
    with app.worker():
        assert broken.wait(WAIT_S)
        gate.set()
        assert job.result(WAIT_S) is False


@pytest.mark.parametrize(("times", "fence"), [(1, 1), (MAX_TRIES, 2)])
def test_reports_that_crash_the_engine_are_retried_and_then_dropped(
    app: Onetray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int, fence: int
) -> None:
    @app.task
    def work() -> int:
        return ctx.fence

    broken = _fail_first(app, monkeypatch, Succeed, None, times)
    job = work.submit()
    with app.worker() as worker:
        assert broken.wait(WAIT_S)
        wait_until(lambda: len(worker.held) == 0)
        if times == MAX_TRIES:
            app.engine.expire_leases(now=app.engine.store.now() + 3600 * 1_000_000)
        assert job.result(WAIT_S) == fence
    assert caplog.text.count("the engine failed on") == times


def test_a_report_is_retried_until_the_database_is_back(app: Onetray, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work() -> int:
        return ctx.fence

    _fail_first(app, monkeypatch, Succeed, Unavailable("the database is away"), MAX_TRIES + 1)
    job = work.submit()
    with app.worker():
        assert job.result(WAIT_S) == 1


def test_a_stop_waits_until_the_last_report_is_answered(app: Onetray, monkeypatch: pytest.MonkeyPatch) -> None:
    run, reporting, gate, left = app.engine.run, threading.Event(), threading.Event(), threading.Event()

    def hold(commands: list[Any], **how: Any) -> list[Any]:
        if any(isinstance(c, Succeed) for c in commands):
            reporting.set()
            assert gate.wait(WAIT_S)
        return run(commands, **how)

    @app.task
    def work() -> None: ...

    monkeypatch.setattr(app.engine, "run", hold)
    job, worker = work.submit(), app.worker()
    deregister = worker._deregister
    monkeypatch.setattr(worker, "_deregister", lambda: (left.set(), deregister()))
    with worker:
        assert reporting.wait(WAIT_S)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        # The absence of an event can only be waited for.
        assert not left.wait(1.0)
        gate.set()
        stopping.join(WAIT_S)
    assert left.is_set()
    assert job.state == "succeeded"


def _fail_first(
    app: Onetray, monkeypatch: pytest.MonkeyPatch, verb: type, error: OnetrayError | None, times: int = 1
) -> threading.Event:
    """Answer the first commands of this type with an error, or raise if there is none. The event is set then."""
    run, broken, left = app.engine.run, threading.Event(), [times]

    def failing(commands: list[Any], **how: Any) -> list[Any]:
        if not left[0] or not any(isinstance(c, verb) for c in commands):
            return run(commands, **how)
        left[0] -= 1
        broken.set()
        if error is None:
            raise MemoryError("out of memory")
        verdicts = run([c for c in commands if not isinstance(c, verb)])
        for i, command in enumerate(commands):
            if isinstance(command, verb):
                verdicts.insert(i, Verdict(error=error))
        return verdicts

    monkeypatch.setattr(app.engine, "run", failing)
    return broken


def test_more_than_one_report_is_in_flight_only_while_a_backlog_waits(
    app: Onetray, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate, sending = app.engine.run, threading.Event(), set[int]()
    ended: list[int] = []

    def hold(commands: list[Any], **how: Any) -> list[Any]:
        if any(isinstance(c, Succeed) for c in commands):
            sending.add(threading.get_ident())
            assert gate.wait(WAIT_S)
        return run(commands, **how)

    @app.task
    async def work(n: int) -> None:
        ended.append(n)

    monkeypatch.setattr(app.engine, "run", hold)
    worker = app.worker(concurrency=100)
    # With piggyback claims, the claiming thread would leave the other tasks to the reports that are held.
    worker.tuning = replace(worker.tuning, report_batch=5, backlog=30, helpers=2, stuck_s=2 * WAIT_S, piggyback=False)
    jobs = work.submit_many([{"n": n} for n in range(20)])
    worker.start()
    try:
        wait_until(lambda: len(ended) == 20 and len(sending) > 0)
        assert 15 <= worker.reporter.waiting_successes() < 30
        assert len(sending) == 1
        jobs += work.submit_many([{"n": n} for n in range(20, 80)])
        wait_until(lambda: len(sending) == 3)
    finally:
        gate.set()
        worker.stop()
    assert [job.wait(WAIT_S) for job in jobs] == ["succeeded"] * 80


def test_a_report_that_waits_for_a_lock_keeps_no_other_waiting(migrated_url: str) -> None:
    app, running, gate = Onetray(migrated_url), threading.Event(), threading.Event()

    @app.task
    def first() -> None:
        running.set()
        assert gate.wait(WAIT_S)

    @app.task
    async def work() -> None: ...

    locked = first.submit()
    with app.worker(concurrency=2):
        assert running.wait(WAIT_S)
        with app.engine.store.transaction() as tx:
            tx.lock([app.engine.task(locked.id).key])
            gate.set()
            # More than can run at once: a worker claims no others while it has to report what it has done.
            jobs = [work.submit() for _ in range(5)]
            assert [job.wait(WAIT_S / 2) for job in jobs] == ["succeeded"] * 5
            assert locked.state != "succeeded"
        assert locked.wait(WAIT_S) == "succeeded"
    app.close()


def test_five_thousand_jobs_leave_nothing_behind_in_the_worker(app: Onetray) -> None:
    @app.task
    async def on_loop(n: int) -> None: ...

    @app.task
    def in_thread(n: int) -> None:
        if n % 100 == 0:
            ctx.log("a line")
            ctx.progress(1)

    for task in (on_loop, in_thread):
        for start in range(0, 2_500, 500):
            task.submit_many([{"n": n} for n in range(start, start + 500)])
    with app.worker(concurrency=8) as worker:
        wait_until(lambda: app.engine.store.read_sql(_LEFT)[0][0] == 0, 60)
        wait_until(lambda: len(worker.held) == 0)
        executor, reporter = worker.executor, worker.reporter
        assert (executor.running, list(executor.waiting)) == (set(), [])
        wait_until(lambda: not executor.async_executor.open)
        assert (
            list(reporter._pending),
            list(reporter._plain_successes),
            reporter._unsent_output,
            reporter._heartbeat_requests,
        ) == ([], [], {}, set())
        wait_until(lambda: not reporter._starts)
        assert (worker.held.leases(), worker.held.of_queue("default")) == ([], 0)
        assert len(executor._threads) <= 8
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith(_ITS_THREADS)])
    gc.collect()
    attempts = [o for o in gc.get_objects() if isinstance(o, Attempt)]
    assert [a for a in attempts if a.task in (on_loop, in_thread)] == []


_ITS_THREADS = tuple(f"onetray-{part}" for part in ("loop", "handler", "claimer", "reporter", "heartbeat", "watch"))
_LEFT = "SELECT count(*) FROM onetray.task WHERE finished_at IS NULL"


def test_a_stopped_worker_has_closed_its_loop_and_ended_its_threads(app: Onetray) -> None:
    @app.task(durable_start=True)
    async def work() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("asyncio_")]

    before = set(threading.enumerate())
    job = work.submit()
    with app.worker() as worker:
        names = job.result(WAIT_S)
        helpers = [t for t in threading.enumerate() if t.name in names and t not in before]
        assert helpers
    assert worker.executor.loop.is_closed()
    assert not any(t.is_alive() for t in helpers)
