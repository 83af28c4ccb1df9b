"""Submits inside the transaction of an asynchronous connection, whose loop must go on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Claim, Submit
from onetray.domain.errors import InvalidInput, KeyReused
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.engine import Engine
from onetray.store.caller_connection import submit_on_connection
from tests.support.binaries import has_system_postgres
from tests.support.engines import engine_on
from tests.support.tasks import counts, submit

PATIENCE_S = 60
Own = psycopg.AsyncConnection[Any]


@pytest.fixture(params=["migrated_url", *(["system_url"] if has_system_postgres() else [])])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(url: str, clock: VirtualClock) -> Iterator[Engine]:
    with engine_on(url, clock) as running:
        yield running


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Own]:
    async with await psycopg.AsyncConnection.connect(url, **options) as own:
        yield own


def keyed(key: str = "k", payload: Any = None) -> Submit:
    return Submit(kind="mail", payload=payload, idempotency_key=key)


async def until_it_waits(engine: Engine, own: Own) -> None:
    """Look, in the loop itself, until the connection waits for another one's lock."""
    sql, give_up_at = "SELECT cardinality(pg_blocking_pids(CAST(:pid AS integer)))", time.monotonic() + PATIENCE_S
    while not (await asyncio.to_thread(engine.store.read_sql, sql, pid=own.info.backend_pid))[0][0]:
        assert time.monotonic() < give_up_at, "it does not wait"


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_what_was_submitted_is_there_exactly_after_the_commit(engine: Engine, url: str, ends: str) -> None:
    async def story() -> list[Verdict]:
        async with connected(url, row_factory=dict_row) as own:
            flow = SubmitFlow(name="f", stages=[StageSpec("a", [TaskSpec("x")])])
            verdicts = await submit_on_connection(engine, own, [Submit(kind="mail", labels={"a": "b"}), flow])
            assert counts(engine)["task"] == 0
            await getattr(own, ends)()
            return verdicts

    task, flow = (v.unwrap() for v in asyncio.run(story()))
    assert {t.job_id for t in engine.tasks()} == ({task.id, flow.id} if ends == "commit" else set())


def test_the_loop_goes_on_while_a_submit_waits(engine: Engine, url: str) -> None:
    with psycopg.connect(url) as first:
        holder = engine.submit("mail", idempotency_key="k", connection=first)

        async def story() -> Verdict:
            async with connected(url) as own:
                waiting = asyncio.create_task(submit_on_connection(engine, own, [keyed()]))
                await until_it_waits(engine, own)
                assert not waiting.done()
                first.commit()
                return (await asyncio.wait_for(waiting, PATIENCE_S))[0]

        said = asyncio.run(story()).unwrap()
    assert (said.id, said.repeated) == (holder.id, True)


def test_a_submit_that_is_cancelled_while_it_waits_leaves_its_transaction_usable(engine: Engine, url: str) -> None:
    with psycopg.connect(url) as first:
        engine.submit("mail", idempotency_key="k", connection=first)

        async def story() -> str:
            async with connected(url) as own:
                (kept,) = await submit_on_connection(engine, own, [Submit(kind="mail", payload="kept")])
                waiting = asyncio.create_task(submit_on_connection(engine, own, [Submit(kind="mail"), keyed()]))
                await until_it_waits(engine, own)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(waiting, PATIENCE_S)
                assert own.info.transaction_status == TransactionStatus.INTRANS
                await own.commit()
                return str(kept.unwrap().id)

        kept = asyncio.run(story())
        first.rollback()
    assert [t.id for t in engine.tasks()] == [kept]


def test_a_refusal_leaves_the_transaction_usable(engine: Engine, url: str) -> None:
    first = submit(engine, payload=1, idempotency_key="k")

    async def story() -> list[Verdict]:
        async with connected(url) as own:
            said = await submit_on_connection(engine, own, [keyed(payload=2), keyed("other")])
            await own.commit()
            return said

    refused, good = asyncio.run(story())
    assert isinstance(refused.error, KeyReused)
    assert {t.id for t in engine.tasks()} == {first, good.unwrap().id}


def test_connections_that_do_not_fit_are_refused(engine: Engine, url: str) -> None:
    async def story() -> None:
        async with connected(url) as own:
            with pytest.raises(InvalidInput, match="submit_on_connection"):
                engine.submit("mail", connection=own)
            with pytest.raises(InvalidInput, match="only submit"):
                await submit_on_connection(engine, own, [Claim(worker="w")])
        async with connected(url, autocommit=True) as own:
            with pytest.raises(InvalidInput, match="begin a transaction"):
                await submit_on_connection(engine, own, [keyed()])
        with psycopg.connect(url) as of_threads, pytest.raises(InvalidInput, match="AsyncConnection"):
            await submit_on_connection(engine, of_threads, [keyed()])  # type: ignore[arg-type]

    asyncio.run(story())
    assert counts(engine)["task"] == 0
