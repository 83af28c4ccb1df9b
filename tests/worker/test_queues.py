"""What a worker claims: from which queues, of which kinds, and how many tasks ahead."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest

from onetray import Onetray, ctx
from onetray.domain.commands import Claim, Command
from onetray.domain.task import Verdict
from onetray.notify.wake import Wake
from onetray.worker.heartbeat import POLL_INTERVAL_S
from tests.support.fleet import wait_until
from tests.support.waits import yield_once

WAIT_S = 60.0


def test_a_worker_never_holds_more_tasks_of_a_queue_than_its_limit(either_app: Onetray) -> None:
    app, lock = either_app, threading.Lock()
    now: Counter[str] = Counter()
    highest: Counter[str] = Counter()

    async def note(queue: str) -> None:
        with lock:
            now[queue] += 1
            highest[queue] = max(highest[queue], now[queue])
        for _ in range(3):
            await yield_once()
        with lock:
            now[queue] -= 1

    a = app.task(kind="a", queue="a")(note)
    jobs = a.submit_many([{"queue": "a"}] * 30) + a.options(queue="b").submit_many([{"queue": "b"}] * 30)
    held: list[int] = []
    with app.worker(concurrency=20, queues="a,b:5") as worker:
        wait_until(lambda: held.append(worker.held.of_queue("b")) or all(job.over for job in jobs), 40)
    assert [job.state for job in jobs] == ["succeeded"] * 60
    assert max(held) <= 5
    assert highest["b"] <= 5 < highest["a"]


def test_workers_at_the_limit_of_a_queue_do_not_wake_each_other_for_ever(
    app: Onetray, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, wakeups, wake_next = threading.Event(), [0], Wake.wake_next

    def count(wake: Wake, *args: Any, **kwargs: Any) -> None:
        wakeups[0] += 1
        wake_next(wake, *args, **kwargs)

    monkeypatch.setattr(Wake, "wake_next", count)

    @app.task(queue="mail")
    def hold() -> None:
        go_on.wait(WAIT_S)

    @app.task
    def answer() -> int:
        return 1

    with app.worker(queues="mail:1,default"), app.worker(queues="mail:1,default"):
        jobs = hold.submit_many([{}] * 2)
        wait_until(lambda: [job.state for job in jobs] == ["running"] * 2, WAIT_S)
        jobs.append(hold.submit())
        assert [answer.submit().result(WAIT_S) for _ in range(20)] == [1] * 20
        go_on.set()
        for job in jobs:
            job.wait(WAIT_S)
    assert wakeups[0] < 300


def test_no_task_of_a_paused_queue_is_claimed_until_it_is_resumed(either_app: Onetray) -> None:
    @either_app.task(queue="mail")
    def send() -> int:
        return 1

    either_app.engine.pause_queue("mail")
    paused, other = send.submit(), send.options(queue="default").submit()
    with either_app.worker(queues="mail,default"):
        assert other.result(WAIT_S) == 1
        assert paused.state == "queued"
        either_app.engine.resume_queue("mail")
        assert paused.result(WAIT_S) == 1


def test_a_worker_does_not_claim_kinds_that_its_app_does_not_have(either_app: Onetray) -> None:
    @either_app.task
    def known() -> int:
        return 1

    unknown = either_app.engine.submit("strange")
    job = known.submit()
    with either_app.worker():
        assert job.result(WAIT_S) == 1
    assert unknown.id is not None
    view = either_app.engine.task(unknown.id)
    assert (view.state, view.version) == ("queued", 1)


def test_two_workers_share_slow_tasks_also_after_many_short_ones(app: Onetray) -> None:
    """A worker that has just run many short tasks must not prefetch slow ones that the other could begin."""
    running, lock, gate = Counter[str](), threading.Lock(), threading.Event()

    @app.task
    async def short() -> None: ...

    @app.task
    def slow() -> str:
        with lock:
            running[ctx.worker] += 1
        assert gate.wait(WAIT_S)
        return ctx.worker

    quick = short.submit_many([{}] * 400)
    with app.worker(concurrency=5, name="one"):
        wait_until(lambda: quick[-1].over, 40)
        jobs = slow.submit_many([{}] * 10)
        with app.worker(concurrency=5, name="two"):
            wait_until(lambda: running["one"] == running["two"] == 5)
            gate.set()
            assert Counter(job.result(WAIT_S) for job in jobs) == {"one": 5, "two": 5}


def test_an_idle_worker_does_not_claim_all_the_time(either_app: Onetray) -> None:
    """Its own writes cause wake-ups: an empty claim, a heartbeat or a full queue must not make it claim at once."""
    app, claims, gate = either_app, [0], threading.Event()

    @app.task(queue="b", lease_s=0.9)
    def hold() -> None:
        assert gate.wait(WAIT_S)

    run = app.engine.run

    def counted(commands: list[Claim], **how: Any) -> object:
        claims[0] += sum(isinstance(c, Claim) for c in commands)
        return run(commands, **how)

    app.engine.run = counted  # type: ignore[method-assign, assignment]
    hold.submit_many([{}] * 3)
    with app.worker(queues="a,b:2") as worker:
        wait_until(lambda: len(worker.executor.running) == 2)
        before = claims[0]
        time.sleep(1.0)
        during = claims[0] - before
        gate.set()
        wait_until(lambda: worker.held.of_queue("b") == 0)
    assert during < 30, f"{during} claims in a second"


@pytest.mark.parametrize(("slow", "fence"), [("request", 1), ("answer", 2)])
def test_a_claim_that_is_answered_late_is_confirmed_before_its_tasks_begin(
    app: Onetray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: str, fence: int
) -> None:
    """After a slow request the lease is fresh, after a slow answer it may have expired. A worker cannot tell."""
    began: list[int] = []
    sent: list[str] = []

    @app.task(lease_s=4.0)
    async def work() -> None:
        assert sent[:2] == ["claim", "beat"]
        began.append(ctx.fence)

    def last_a_quarter_of_the_lease() -> None:
        time.sleep(1.1)

    run = app.engine.run

    def delayed(commands: list[Command], **how: Any) -> list[Verdict]:
        is_late = isinstance(commands[0], Claim) and not sent
        sent.append(commands[0].verb)
        if is_late and slow == "request":
            last_a_quarter_of_the_lease()
        verdicts = run(commands, **how)
        if is_late and slow == "answer":
            last_a_quarter_of_the_lease()
            app.engine.expire_leases(now=app.engine.store.now() + 3600 * 1_000_000)
        return verdicts

    job = work.submit()
    monkeypatch.setattr(app.engine, "run", delayed)
    with app.worker():
        assert job.wait(WAIT_S) == "succeeded"
    assert began == [fence]
    assert "is lost" not in caplog.text


def test_a_stop_releases_prefetched_tasks_at_once_while_handlers_go_on(app: Onetray) -> None:
    began, gate = threading.Event(), threading.Event()

    @app.task
    def hold() -> int:
        began.set()
        assert gate.wait(WAIT_S)
        return 1

    with app.worker(concurrency=1) as worker:
        first = hold.submit()
        assert began.wait(WAIT_S)
        ahead = hold.submit()
        worker._accept_claim(app.engine.call(worker._claim_command("default", 1, "k")), time.monotonic())
        assert ahead.state == "assigned"
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        wait_until(lambda: ahead.state == "queued")
        assert stopping.is_alive()
        gate.set()
        stopping.join(WAIT_S)
    assert first.result(0) == 1
    assert (ahead.state, app.engine.task(ahead.id).attempts) == ("queued", 0)


def test_short_leases_are_checked_more_often(app: Onetray) -> None:
    started, go = threading.Event(), threading.Event()

    @app.task(lease_s=2.1)
    def short() -> None:
        started.set()
        go.wait(WAIT_S)

    with app.worker() as worker:
        assert worker._heartbeat.poll_interval_s == POLL_INTERVAL_S
        job = short.submit()
        assert started.wait(WAIT_S)
        assert worker._heartbeat.poll_interval_s == pytest.approx(0.35)
        go.set()
        assert job.wait(WAIT_S) == "succeeded"


def test_every_queue_gets_its_turn_while_reports_keep_coming(app: Onetray) -> None:
    order: list[str] = []

    @app.task
    async def long(n: int) -> None:
        order.append("long")

    @app.task(queue="short")
    async def short(n: int) -> None:
        order.append("short")

    long.submit_many([{"n": n} for n in range(3_000)])
    short.submit_many([{"n": n} for n in range(1_000)])
    with app.worker(concurrency=50, queues="default,short"):
        wait_until(lambda: len(order) == 4_000, WAIT_S)
    assert "short" in order[:1_500]
    assert "long" in order[:1_500]


def test_tasks_of_queues_that_are_not_claimed_are_named(either_app: Onetray, caplog: pytest.LogCaptureFixture) -> None:
    @either_app.task(queue="mail")
    def send() -> None: ...

    with caplog.at_level("INFO", "onetray.worker"), either_app.worker():
        pass
    assert "do not run here: to run them, pass --queues default,mail" in caplog.text


def test_a_worker_logs_which_of_its_limits_an_operator_has_changed(
    app: Onetray, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(kind="send", concurrency=3)(lambda: None)
    app.task(kind="sync", rate="10/s")(lambda: None)
    app.limit(queue="default", concurrency=10)
    caplog.set_level(logging.INFO, "onetray.worker")
    with app.worker():
        pass
    assert "has set it in place of" not in caplog.text
    changed = app.engine.set_limit(kind="send", concurrency=7, by="ann")
    app.engine.set_limit(queue="default", concurrency=1, by="ann")
    app.engine.set_limit(kind="other", concurrency=1, by="ann")
    with app.worker():
        pass
    assert "the concurrency of kind send is 7 at once: ann has set it in place of 3 at once; " in caplog.text
    assert f"`onetray limits reset {changed}` returns to that" in caplog.text
    assert "the concurrency of queue default is 1 at once: ann has set it in place of 10 at once" in caplog.text
    assert caplog.text.count("has set it in place of") == 2
