"""Commits that wait for a standby: what is acknowledged is there after a failover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import psycopg
import pytest

from onetray.domain import commands as c
from onetray.domain.errors import OutcomeUnknown
from onetray.engine import Engine
from tests.support.cluster import Cluster
from tests.support.engines import must_verify, open_migrated
from tests.support.fleet import wait_until

WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'onetray'"
IN_SYNC = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


def ask(cluster: Cluster, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A primary whose commits wait for its standby."""
    with Cluster.start() as primary, primary.standby() as standby:
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: ask(primary, IN_SYNC) == [(1,)], 60)
        yield primary, standby


def interrupted(primary: Cluster, function: str, call: Callable[[], Any]) -> Future[Any]:
    """Begin a call, and end its wait for the standby."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as e:
            answer.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    wait_until(lambda: ask(primary, f"SELECT count(*) {WAITING}") == [(1,)], 60)
    ask(primary, f"SELECT {function}(pid) {WAITING}")
    return answer


def submit_two(engine: Engine, name: str) -> list[Any]:
    """Two jobs in one transaction: the way of a batch."""
    commands = [c.Submit(kind="k", payload=f"{name} {n}") for n in (1, 2)]
    return [verdict.unwrap() for verdict in engine.run(commands)]


def payloads(url: str) -> set[str]:
    with Engine.open(url) as engine:
        must_verify(engine)
        return {task.payload for task in engine.tasks()}


def test_what_is_acknowledged_survives_a_failover_though_the_wait_for_the_standby_was_ended(
    pair: tuple[Cluster, Cluster],
) -> None:
    primary, standby = pair
    url = primary.create_database()
    with open_migrated(url) as engine:
        # Names are written in transactions of their own: here, so that a call is one transaction below.
        engine.submit("k", "before")
        standby.halt()
        call = interrupted(primary, "pg_terminate_backend", lambda: engine.submit("k", "back in time"))
        standby.start_again()
        # The standby is back before the caller's patience is over: it has what was written.
        assert call.result(60).state == "queued"
        wait_until(lambda: ask(primary, IN_SYNC) == [(1,)], 60)
        standby.halt()
        engine.store.patience_s = 0.3  # type: ignore[attr-defined]
        calls = []
        for function in ("pg_terminate_backend", "pg_cancel_backend"):
            for call_it in (
                partial(engine.submit, "k", function),
                partial(submit_two, engine, function),
                # The second time it repeats what is there already, on this server alone.
                partial(engine.submit, "k", "under a key", idempotency_key="once"),
                partial(engine.tokens.create, "t", ["read"]),
            ):
                calls.append(interrupted(primary, function, call_it))
                wait([calls[-1]], 60)
        assert {"pg_terminate_backend", "pg_cancel_backend 2", "under a key"} < payloads(url)
    primary.kill()
    standby.start_again()
    standby.promote()
    kept = payloads(url.replace(f":{primary.port}/", f":{standby.port}/"))
    assert kept == {"before", "back in time"}
    # So nobody may have been told that the others are safe.
    assert [type(call.exception(0)) for call in calls] == [OutcomeUnknown] * 8
