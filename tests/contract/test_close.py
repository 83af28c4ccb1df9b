"""Closing an engine while others still read from it."""

import threading
from pathlib import Path

import pytest

from onetray.errors import Unavailable
from onetray.store import open_store


def test_a_store_can_be_closed_while_another_thread_reads(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    reading = threading.Event()
    ended: list[BaseException] = []

    def read_for_long() -> None:
        endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
        store.read("namespaces")
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
        store.read("namespaces")
