"""The log in batches: one row for what one move moves, and every event in it as if it had a row of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Fail, Submit, Succeed, ticket
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.task import Assignment, Event
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from onetray.feed import history
from onetray.store.base import Store
from onetray.store.event_log import (
    BLOCK,
    LONG,
    PAGE,
    ROW_CHARS,
    SHARED,
    Entry,
    decode_batch,
    encode_batch,
    entry_at,
    rows_of,
    without,
)
from onetray.store.event_rows import EventBatch
from tests.support.engines import must_verify
from tests.support.listening import register

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
KEYS = st.lists(st.integers(1, 2**60), min_size=1, max_size=30, unique=True)
NUMBERS = st.integers(0, 2**31 - 1)
TEXTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
VALUES = {
    "ns": NUMBERS, "was": TEXTS, "actor": st.text(max_size=9), "version": NUMBERS, "fence": NUMBERS,
    "attempts": NUMBERS, "cause": TEXTS, "trace": TEXTS, "payload": TEXTS, "ts": st.integers(0, 2**53),
}  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Events of any entities; each column one value for all of them, or one for each."""
    run = st.tuples(st.integers(1, 2**60), st.integers(1, 30)).map(lambda r: list(range(r[0], r[0] + r[1])))
    entities = draw(KEYS | run)
    columns = {
        name: draw(values | st.lists(values, min_size=len(entities), max_size=len(entities)))
        for name, values in VALUES.items()
    }
    jobs = draw(st.sampled_from([None, 7, list(entities), [7] * len(entities), [*entities[:-1], 7]]))
    return {**columns, "entity": entities, "job": jobs, "type": "task.claimed", "state": "assigned"}


def row_of(events: dict[str, Any], id_: int = 100) -> EventBatch:
    return EventBatch(**encode_batch(events), id=id_)


def each(events: dict[str, Any], name: str) -> list[Any]:
    values = events[name]
    return values if isinstance(values, list) else [values] * len(events["entity"])


@given(batches())
def test_what_was_encoded_is_decoded(events: dict[str, Any]) -> None:
    row = row_of(events)
    entries = list(decode_batch(row))
    assert [e.id for e in entries] == list(range(100, 100 + len(events["entity"])))
    for name in ("entity", "ts", "type", "state", *SHARED):
        assert [getattr(e, name) for e in entries] == each(events, name), name
    jobs = [job or entity for job, entity in zip(each(events, "job"), events["entity"], strict=True)]
    assert [e.job for e in entries] == jobs
    assert [entry_at(row, e.id) for e in entries] == entries


@given(batches(), st.data())
def test_entries_can_be_removed_and_the_others_stay_where_they_are(events: dict[str, Any], data: st.DataObject) -> None:
    row = row_of(events)
    gone = data.draw(st.sets(st.sampled_from(events["entity"]), min_size=1))
    left = without(row, gone)
    expected = [e for e in decode_batch(row) if e.entity not in gone]
    if left is None:
        assert expected == []
        return
    assert list(decode_batch(row._replace(entity=None, varied=left))) == expected
    assert without(row._replace(entity=None, varied=left), set(events["entity"])) is None


@given(st.lists(st.integers(0, ROW_CHARS * 2), min_size=1, max_size=12))
def test_long_payloads_are_spread_over_rows(lengths: list[int]) -> None:
    entities = list(range(1, len(lengths) + 1))
    common = dict.fromkeys(SHARED) | {"job": None, "type": "task.failed", "state": "failed", "ts": 1}
    rows = list(rows_of({**common, "entity": entities, "payload": ["x" * n for n in lengths]}, place=3))
    decoded = [e for r in rows for e in decode_batch(EventBatch(**r.columns, id=1_000 + r.place))]
    assert [(e.id, e.entity, len(e.payload or "")) for e in decoded] == [
        (1_003 + i, i + 1, n) for i, n in enumerate(lengths)
    ]
    for row in rows:
        texts = [e.payload or "" for e in decode_batch(EventBatch(**row.columns, id=1))]
        assert len(texts) == 1 or sum(map(len, texts)) <= ROW_CHARS
    assert set(LONG) < set(SHARED)


def rows_in_log(engine: Engine) -> list[EventBatch]:
    found = engine.store.read_sql(f"SELECT {', '.join(EventBatch._fields)} FROM onetray.event_batch ORDER BY id")
    return [EventBatch._make(row) for row in found]


def many(engine: Engine, count: int, **fields: Any) -> list[Assignment]:
    engine.run([SubmitMany(like=Submit(kind="mail", **fields), payloads=list(range(count)))])
    return engine.claim(worker="w", limit=count)


def mixed(engine: Engine, clock: VirtualClock) -> None:
    """Tasks that differ in every column of their events, members of flows and notes among them."""
    tasks = many(engine, 40, trace=TRACE, correlation_id="c")
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail") for _ in range(5)]), StageSpec("b", [TaskSpec("mail")])])
    clock.advance(1)
    engine.run([Succeed(ran_s=0.01 * n, trace=None if n % 2 else TRACE, **ticket(a)) for n, a in enumerate(tasks[:20])])
    engine.run([Fail(message=f"no {n}" if n % 3 else "no", **ticket(a)) for n, a in enumerate(tasks[20:30])])
    engine.run([Submit(kind="mail", actor_name=f"user {n}", cause=None if n else "why") for n in range(3)])
    engine.set_priority(tasks[35].id, 5)
    clock.advance(10)
    engine.sweep()
    again = engine.claim(worker="other", limit=30)
    engine.run([Succeed(**ticket(a)) for a in again])
    for a in tasks[30:33]:
        engine.cancel(a.id, hard=True, cause="enough")


def test_the_view_shows_what_the_rows_say(engine: Engine, clock: VirtualClock) -> None:
    mixed(engine, clock)
    decoded = [e for row in rows_in_log(engine) for e in decode_batch(row)]
    columns = [name for name in decoded[0]._fields if name != "trace"]
    shown = engine.store.read_sql(f"SELECT {', '.join(columns)} FROM onetray.event ORDER BY id")
    assert shown == [tuple(getattr(e, name) for name in columns) for e in decoded]
    assert len(decoded) > 2 * len(rows_in_log(engine))
    traces = dict(engine.store.read_sql("SELECT id, trace FROM onetray.event"))
    assert {e.id: e.trace for e in engine.feed.read(0, 10_000).events} == traces


def test_the_feed_and_the_histories_have_the_same_events(engine: Engine, clock: VirtualClock) -> None:
    mixed(engine, clock)
    events = engine.feed.read(0, 10_000).events
    for job in {e.job_id for e in events}:
        own = engine.events(job) if engine.job_status(job).entity == "task" else engine.flow_events(job)
        assert own == [e for e in events if e.job_id == job]
    assert engine.events_by_correlation("c") == [e for e in events if e.correlation_id == "c"]
    for limit in (1, 7):
        cursor, read = 0, []
        while (page := engine.feed.read(cursor, limit)).next_cursor != cursor:
            cursor = page.next_cursor
            read += page.events
        assert read == events


def test_many_flows_of_one_correlation_id_take_a_few_statements(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(engine, 2, correlation_id="c")
    for _ in range(8):
        engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail")])], correlation_id="c")
    engine.run([Succeed(**ticket(a)) for a in engine.claim(worker="w", limit=100)])
    events = engine.feed.read(0, 1_000).events
    reads: list[str] = []
    read = engine.store.read

    def counted(name: str, /, **params: Any) -> Any:
        reads.append(name)
        return read(name, **params)

    monkeypatch.setattr(engine.store, "read", counted)
    assert engine.events_by_correlation("c") == events
    assert len(reads) <= 7
    for after in (events[5].id, events[-2].id):
        assert engine.events_by_correlation("c", after=after, limit=9) == [e for e in events if e.id > after][:9]


def test_a_move_is_one_row(engine: Engine) -> None:
    tasks = many(engine, 50)
    engine.run([Succeed(**ticket(a)) for a in tasks])
    assert [(row.type, row.size, row.varied) for row in rows_in_log(engine)] == [
        (f"task.{type_}", 50, None) for type_ in ("submitted", "claimed", "started", "succeeded")
    ]


def test_a_long_history_is_put_away_page_by_page(engine: Engine, clock: VirtualClock) -> None:
    """Every move writes the list of a task's events again: it must not grow with each."""
    engine.submit("mail")
    for _ in range(PAGE):
        (task,) = engine.claim(worker="w")
        engine.release(task)
    ((events,),) = engine.store.read_sql("SELECT events FROM onetray.task")
    assert len(events.split(",")) <= PAGE
    assert engine.store.read_sql("SELECT version FROM onetray.event_page ORDER BY version") == [(PAGE,), (2 * PAGE,)]
    history = engine.events(task.id)
    assert [e.version for e in history] == list(range(1, 2 * PAGE + 2))
    assert history == engine.feed.read(0, 1_000).events
    assert engine.events(task.id, after=history[-3].id) == history[-2:]
    register(engine)
    assert engine.explain(task.id) == []
    (last,) = engine.claim(worker="w")
    engine.succeed(last)
    assert engine.succeed(last).repeated
    must_verify(engine)
    clock.advance(100)
    assert len(engine.prune(10)) == 1
    assert engine.store.read_sql("SELECT count(*) FROM onetray.event_page") == [(0,)]
    assert rows_in_log(engine) == []


def test_a_flow_that_is_paused_again_and_again_has_pages_too(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail")])])
    for _ in range(PAGE):
        engine.pause_flow(flow.id)
        engine.resume_flow(flow.id)
    events = [e for e in engine.flow_events(flow.id) if e.entity_id == flow.id]
    assert [e.version for e in events] == list(range(1, len(events) + 1))
    assert engine.own_events(flow.id)[-1] == events[-1]
    assert len(engine.store.read_sql("SELECT version FROM onetray.event_page")) >= 2


def test_more_than_a_row_takes_is_several_rows(engine: Engine) -> None:
    size = 2 * BLOCK + 10
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail")] * size)])
    engine.cancel_flow(flow.id)
    while engine.flow(flow.id).state != "cancelled":
        engine.sweep()
    events = engine.flow_events(flow.id, limit=10_000)
    assert len([e for e in events if e.type == "task.submitted"]) == size
    assert len([e for e in events if e.type == "task.cancelled"]) == size
    assert [e.id for e in events] == sorted({e.id for e in events})
    assert all(row.size <= BLOCK for row in rows_in_log(engine))


@pytest.mark.parametrize("way", ["prune", "delete"])
def test_a_removed_job_leaves_the_row_that_it_shares(engine: Engine, clock: VirtualClock, way: str) -> None:
    tasks = many(engine, 10)
    engine.run([Succeed(**ticket(a)) for a in tasks[:6]])
    clock.advance(20)
    kept = {a.id: engine.events(a.id) for a in tasks[6:]}
    if way == "prune":
        assert len(engine.prune(10)) == 6
    else:
        for a in tasks[:6]:
            engine.delete_job(a.id)
    gone = {a.id for a in tasks[:6]}
    assert {a.id: engine.events(a.id) for a in tasks[6:]} == kept
    events = engine.feed.read(0, 100).events
    assert [e for e in events if e.type != "job.deleted"] == sorted(
        (e for events in kept.values() for e in events), key=lambda e: e.id
    )
    assert {e.entity_id for e in events if e.type == "job.deleted"} == (gone if way == "delete" else set())
    for cursor in range(45):
        assert engine.feed.read(cursor, 100).events == [e for e in events if e.id > cursor]
    assert all(v.ok for v in engine.run([Succeed(**ticket(a)) for a in tasks[6:]]))
    clock.advance(20)
    assert len(engine.prune(10)) == 4
    assert rows_in_log(engine) == []


@pytest.mark.parametrize("types", [None, ["task.submitted"]])
def test_a_job_that_is_deleted_while_the_feed_is_read_hides_no_other(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, types: list[str] | None
) -> None:
    tasks = many(engine, 6)
    engine.succeed(tasks[1])
    clock.advance(20)
    expected = [e.id for e in engine.feed.read(0, types=types).events if e.job_id != tasks[1].id]
    show, deletes = history.show_events, iter([True])

    def slow(store: Store, entries: list[Entry]) -> list[Event]:
        if next(deletes, False):
            assert len(engine.prune(10)) == 1
        return show(store, entries)

    monkeypatch.setattr(history, "show_events", slow)
    cursor, read = 0, []
    while (page := engine.feed.read(cursor, 4, types=types)).next_cursor != cursor:
        cursor = page.next_cursor
        read += [e.id for e in page.events]
    assert read == expected


def test_the_secrets_of_a_removed_job_are_not_kept(engine: Engine, clock: VirtualClock) -> None:
    tasks = many(engine, 4)
    engine.run([Fail(message=f"secret {n}", retryable=False, **ticket(a)) for n, a in enumerate(tasks)])
    engine.delete_job(tasks[1].id)
    texts = [f"{row.payload} {row.varied}" for row in rows_in_log(engine)]
    assert any("secret 2" in text for text in texts)
    assert not any("secret 1" in text for text in texts)


def test_long_errors_of_a_batch_are_read_one_by_one(engine: Engine) -> None:
    tasks = many(engine, 20)
    engine.run([Fail(message=f"{n}{'x' * 15_000}", retryable=False, **ticket(a)) for n, a in enumerate(tasks)])
    rows = [row for row in rows_in_log(engine) if row.type == "task.failed"]
    assert len(rows) > 3
    assert sum(row.size for row in rows) == 20
    for n, a in enumerate(tasks):
        *_, last = engine.events(a.id)
        assert last.payload["error"]["message"].startswith(f"{n}x")
    assert [dataclasses.astuple(e)[0] for e in engine.feed.read(0, 1_000).events] == sorted(
        e.id for a in tasks for e in engine.events(a.id)
    )
