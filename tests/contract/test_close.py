"""Closing an engine while others still read from it."""

import threading
from pathlib import Path

import pytest

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.commands import Submit
from onetray.domain.errors import MigrationNeeded, Unavailable
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.store import open_store
from tests.support.engines import engine_on


def test_a_store_can_be_closed_while_another_thread_reads(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    reading = threading.Event()
    ended: list[BaseException] = []

    def read_for_long() -> None:
        endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
        store.read("names")
        reading.set()
        try:
            store.read_sql(endless)
        except BaseException as e:
            ended.append(e)

    thread = threading.Thread(target=read_for_long)
    thread.start()
    assert reading.wait(10)
    store.close()
    thread.join(10)
    assert [type(e) for e in ended] == [Unavailable]


def test_a_closed_store_says_so(database_url: str) -> None:
    store = open_store(database_url)
    store.close()
    with pytest.raises(Unavailable):
        store.read("names")


def test_every_call_on_a_closed_engine_says_so(database_url: str) -> None:
    with engine_on(database_url) as engine:
        id_ = engine.submit("mail").id
        assert id_ is not None
    for call in (
        lambda: engine.submit("mail"),
        lambda: engine.sweep(),
        lambda: engine.prune(1),
        lambda: engine.task(id_),
        lambda: engine.pause_queue("default"),
        lambda: engine.configure("mail", Policy()),
        lambda: engine.feed.read(0),
    ):
        with pytest.raises(Unavailable, match="closed"):
            call()


def test_closing_during_a_long_call_does_not_lose_the_verdicts_that_it_has(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(database_url, config=EngineConfig(chunk=1)) as engine:
        engine.submit("mail")
        closing = threading.Thread(target=engine._committer.close)
        monkeypatch.setattr(failpoints, "hook", lambda point: _begin(closing) if point == "committed" else None)
        first, second = engine.run([Submit(kind="mail"), Submit(kind="mail")])
        closing.join(10)
        assert first.ok
        assert isinstance(second.error, Unavailable)
        assert len(engine.tasks()) == 2


def _begin(closing: threading.Thread) -> None:
    """Begin to close, and give it the time to say so: it then waits for the thread that calls this."""
    closing.start()
    closing.join(0.2)


def test_a_janitor_that_was_never_started_can_be_stopped(database_url: str) -> None:
    with engine_on(database_url) as engine:
        engine.janitor().stop()


def test_an_engine_that_cannot_be_opened_leaves_nothing_open(pg_url: str) -> None:
    before = {t.name for t in threading.enumerate()}
    with pytest.raises(MigrationNeeded):
        Engine.open(pg_url)
    assert {t.name for t in threading.enumerate() if t.name.startswith("onetray")} <= before
