"""A worker without a database of its own: it behaves as one that has one, also when the server goes away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onetray import InvalidInput, Job, Onetray, ctx
from tests.remote.conftest import at_work
from tests.support.engines import migrated_sqlite
from tests.support.fleet import wait_until
from tests.support.server_kills import attack
from tests.support.servers import served

WAIT_S = 60.0


def test_a_flow_runs_on_a_remote_worker_with_what_its_stages_give_each_other(app: Onetray) -> None:
    flow = app.flow("sums")

    @flow.stage
    def numbers(config: dict[str, int]) -> list[int]:
        return list(range(config["upto"]))

    @flow.stage(each=numbers)
    async def double(item: int) -> int:
        ctx.progress(1, 1)
        return 2 * item

    @flow.stage(when=lambda config: config["upto"] > 1)
    def total(double: list[int]) -> int:
        ctx.log("adding")
        return sum(double)

    with app.worker(concurrency=5):
        job = flow.submit({"upto": 4})
        assert job.result(WAIT_S) == {"numbers": [0, 1, 2, 3], "double": [0, 2, 4, 6], "total": 12}
    assert job.progress().percentage == 100


def test_a_person_answers_the_jobs_of_a_server(either_app: Onetray) -> None:
    app = either_app

    @app.task
    def child() -> None: ...

    @app.task
    def ask() -> Any:
        ctx.progress(1, 4, "asking")
        child.submit()
        return ctx.wait_for_input("ann", "size?")

    flow = app.flow("pay")
    flow.stage(name="size")(lambda: ctx.wait_for_input("ann", "size?"))
    flow.stage(name="send", approve="ann")(lambda approval: approval["input"])

    def until(job: Job[Any], state: str) -> None:
        assert next(found for found in job.states(WAIT_S) if found == state)

    async def approve(id_: str) -> str:
        job = await app.aio.job(id_)
        assert [stage.name for stage in (await job.children()).stages] == ["size", "send"]
        return await job.approve(input=3, by="ann")

    with app.worker():
        job, paid, refused = ask.submit(), flow.submit(), flow.submit()
        until(job, "waiting_input")
        assert [j.kind for j in job.children().jobs] == ["child"]
        job.answer("M")
        for each in (paid, refused):
            wait_until(lambda each=each: each.progress().counts.waiting_input == 1)
            assert each.answer("L") == "queued"
            until(each, "waiting")
        assert asyncio.run(approve(paid.id)) == "pending"
        assert refused.reject(note="no") == "failed"
        assert (job.result(WAIT_S), job.progress().percentage) == ("M", 100)
        assert paid.result(WAIT_S) == {"size": "L", "send": 3}
        again = refused.retry(from_stage="size")
        wait_until(lambda: again.progress().counts.waiting_input == 1)
    assert app.engine.percentages([job.id, paid.id, refused.id]) == {job.id: 100, paid.id: 100, refused.id: 50}


def test_the_asynchronous_client_waits_and_follows(app: Onetray) -> None:
    @app.task
    async def say(word: str) -> str:
        ctx.log(word)
        return word.upper()

    async def use() -> None:
        jobs = await asyncio.gather(*(say.aio.submit(word=f"w{n}") for n in range(5)))
        assert [await job.result(WAIT_S) for job in jobs] == [f"W{n}" for n in range(5)]
        assert [line.line async for line in jobs[0].logs(follow=True)] == ["w0"]
        assert [event.type async for event in jobs[0].events(follow=True)][-1] == "task.succeeded"

    with app.worker():
        asyncio.run(use())


def test_a_remote_worker_has_no_janitor_and_says_who_removes_old_jobs(app: Onetray) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="on the server"):
        app.worker(retention_s=60.0).start()
    with app.worker() as worker:
        assert worker._janitor is None
        assert [w.name for w in app.engine.workers()] == [worker.name]
    assert app.engine.workers() == []


def test_what_ends_while_the_server_is_away_is_reported_when_it_is_back(tmp_path: Path) -> None:
    with at_work(migrated_sqlite(tmp_path)) as (own, first), Onetray(first.url) as app:
        away = asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        @app.task
        async def work() -> int:
            loops.append(asyncio.get_running_loop())
            await away.wait()
            return 7

        worker = app.worker()
        worker.start()
        job = own.submit("work").id
        assert job is not None
        wait_until(lambda: own.task(job).state == "running")
        first.end()
        loops[0].call_soon_threadsafe(away.set)
        with served(own, first.port):
            wait_until(lambda: own.task(job).state == "succeeded")
            worker.stop()
        assert [e.type for e in own.events(job)][-2:] == ["task.started", "task.succeeded"]


def test_lost_requests_and_answers_cost_no_job_and_make_none(tmp_path: Path) -> None:
    seen = attack(migrated_sqlite(tmp_path), clients=4, submits=8, lose=0.2)
    assert (seen.faults, seen.unanswered) == ([], 0)
    assert len(seen.fates) == 5


def test_every_submit_that_a_killed_server_acknowledged_is_there_once(migrated_url: str) -> None:
    seen = attack(migrated_url, clients=32, submits=4, kills=1, every_s=0.1)
    assert (seen.faults, seen.unanswered, seen.kills) == ([], 0, 1)


def test_a_remote_worker_gathers_tasks_for_one_call(app: Onetray) -> None:
    calls: list[int] = []

    @app.task(batch=3, batch_s=3600)
    async def double(items: list[dict[str, int]]) -> list[int]:
        calls.append(len(items))
        return [2 * item["n"] for item in items]

    jobs = [double.submit(n=n) for n in range(6)]
    with app.worker():
        assert [job.result(WAIT_S) for job in jobs] == [0, 2, 4, 6, 8, 10]
    assert calls == [3, 3]
