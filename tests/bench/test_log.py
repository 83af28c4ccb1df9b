"""`./go bench log`: the same history in every encoding, and what is read of it."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import log
from benchmarks.log_shapes import ENCODINGS, ROWS
from benchmarks.log_sqlite import SqliteLog
from benchmarks.log_writes import Log

JOBS = 30
BATCHED = [name for name in ENCODINGS if name != ROWS]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in [("BATCH", 5), ("AHEAD", 15), ("PAGE", 20), ("PAGES", 3), ("HISTORIES", 3)]:
        monkeypatch.setattr(log, name, size)


@pytest.fixture
def drained(tmp_path: Path) -> Iterator[Callable[[str, str], Log]]:
    """A database with the history of a drain, the same for all encodings."""
    opened: list[Log] = []

    def drain(name: str, order: str) -> Log:
        made = SqliteLog(f"sqlite:///{tmp_path / name}.db", ENCODINGS[name])
        opened.append(made)
        log.submit(made, JOBS, order, random.Random(1))
        log.drain(made, order, random.Random(1))
        return made

    yield drain
    for one in opened:
        one.close()


def told(events: list[Any]) -> list[Any]:
    return [(e.version, e.type, e.was, e.state, e.actor, e.fence, e.attempts, e.namespace) for e in events]


@pytest.mark.parametrize("order", log.ORDERS)
@pytest.mark.parametrize("name", BATCHED)
def test_every_encoding_tells_the_same_history_as_a_row_for_each_event(
    name: str, order: str, drained: Callable[[str, str], Log]
) -> None:
    rows, batches = drained(ROWS, order), drained(name, order)
    for key in (1, 7, JOBS):
        assert told(batches.history(key)) == told(rows.history(key))
        assert len({event.entity_id for event in batches.history(key)}) == 1


@pytest.mark.parametrize("order", log.ORDERS)
@pytest.mark.parametrize("name", BATCHED)
def test_pages_have_every_event_once_and_agree_with_the_histories(
    name: str, order: str, drained: Callable[[str, str], Log]
) -> None:
    made = drained(name, order)
    found, after = [], 0
    while page := made.page(after, 7):
        found += page
        after = page[-1].id
    assert [event.id for event in found] == list(range(1, 4 * JOBS + 1))
    history = made.history(11)
    assert [event for event in found if event.entity_id == history[0].entity_id] == history


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_each_encoding_is_set_beside_a_row_for_each_event(store: str, run: Callable[..., Any]) -> None:
    found = run("log", "--store", store, "--events", 4 * JOBS, "--rounds", 1)["log"][store]
    assert tuple(found) == log.ORDERS
    for figures in found.values():
        assert tuple(figures) == tuple(ENCODINGS)
        assert {v for k, v in figures[ROWS].items() if k.startswith("x_")} == {1.0}
        assert figures["shared"]["log_bytes"] < figures[ROWS]["log_bytes"]


def test_encodings_and_orders_can_be_chosen(run: Callable[..., Any]) -> None:
    found = run(
        "log", "--store", "sqlite", "--encoding", "shared", "--order", "shuffled", "--events", 40, "--rounds", 1
    )
    (figures,) = found["log"]["sqlite"]["shuffled"].values()
    assert not [name for name in figures if name.startswith("x_")]


@pytest.mark.parametrize("wrong", [("--events", "0"), ("--encoding", "xml"), ("--order", "any")])
def test_arguments_out_of_range_are_refused(wrong: tuple[str, str], refused: Callable[..., str]) -> None:
    assert wrong[0] in refused("log", *wrong)
