"""Plain submits that are written with one statement: the same rows, events and answers as by the normal path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from onetray import failpoints
from onetray.domain import commands as c
from onetray.domain.policy import Policy
from onetray.domain.task import Verdict
from onetray.engine import Engine, batch
from onetray.store.event_log import ROW_CHARS
from onetray.store.postgres import PostgresStore
from tests.support.engines import engine_on

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALIKE: list[dict[str, Any]] = [{"payload": {"n": n}} for n in range(5)]
MIXED: list[dict[str, Any]] = [
    {"payload": 'back\\slash, "quotes", {braces}, NULL, ä, \u2028'},
    {"kind": "sms", "queue": "slow", "priority": 7, "max_attempts": 9},
    {"correlation_id": 'order "7"', "trace": TRACE, "cause": "a\nreason", "actor": "system", "actor_name": "cron"},
    {"namespace": "other", "payload": None, "policy": Policy(timeout_s=3.0)},
    {"kind": "sms", "payload": [], "priority": -2},
]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[list[Verdict] | None]:
    """What became of each attempt to write several tasks at once: None if they took the normal path."""
    answers: list[list[Verdict] | None] = []
    several = batch.submit_several

    def noted(*given: Any) -> list[Verdict] | None:
        answers.append(several(*given))
        return answers[-1]

    monkeypatch.setattr(batch, "submit_several", noted)
    return answers


def commands(fields: list[dict[str, Any]]) -> list[c.Submit]:
    return [c.Submit(**{"kind": "mail", **each}) for each in fields]


def ids_of(verdicts: list[Verdict]) -> list[str]:
    return [verdict.unwrap().id for verdict in verdicts]


def seen(engine: Engine, command: c.Submit, id_: str) -> dict[str, Any]:
    """What readers see of a new task and its event, without ids, which are its own."""
    (event,) = engine.events(id_, namespace=command.namespace)
    facts = {**asdict(event), "task": asdict(engine.task(id_, namespace=command.namespace)), "id": None}
    del facts["task"]["key"]
    return {name: repr(value).replace(id_, "its id") for name, value in facts.items()}


@pytest.mark.parametrize("fields", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_readers_see_no_difference_to_the_normal_path(
    fields: list[dict[str, Any]], engine: Engine, fast: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_one_statement = engine.run(commands(fields))
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", lambda point: None)
        by_the_normal_path = engine.run(commands(fields))
    assert fast == ([by_one_statement, None] if engine.store.takes_several else [None, None])
    for command, one, other in zip(commands(fields), by_one_statement, by_the_normal_path, strict=True):
        assert one.unwrap()._replace(id=None) == other.unwrap()._replace(id=None)
        assert seen(engine, command, one.unwrap().id) == seen(engine, command, other.unwrap().id)


@pytest.fixture
def pg_engine(pg_url: str) -> Iterator[Engine]:
    with engine_on(pg_url) as running:
        yield running


@pytest.mark.parametrize("fields", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_keys_with_gaps_between_them_are_listed_in_the_log(
    fields: list[dict[str, Any]], pg_engine: Engine, fast: list[Any]
) -> None:
    store = pg_engine.store
    assert isinstance(store, PostgresStore)
    with store.connection() as connection:
        connection.execute("ALTER SEQUENCE onetray.entity_key INCREMENT 3")
    ids = ids_of(pg_engine.run(commands(fields)))
    assert fast[-1] is not None
    for command, id_ in zip(commands(fields), ids, strict=True):
        assert [event.type for event in pg_engine.events(id_, namespace=command.namespace)] == ["task.submitted"]
    ((entity, varied),) = store.read_sql("SELECT entity, varied FROM onetray.event_batch")
    assert (entity, '"entity"' in varied) == (None, True)


def test_reasons_that_one_row_of_the_log_cannot_take_are_written_by_the_normal_path(
    engine: Engine, fast: list[Any]
) -> None:
    ids = ids_of(engine.run(commands([{"cause": f"{n:04}" * 500} for n in range(ROW_CHARS // 2_000 + 1)])))
    assert fast == [None]
    assert [engine.events(id_)[0].cause for id_ in ids[:3]] == [f"{n:04}" * 500 for n in range(3)]


def test_they_are_claimed_by_priority_then_in_their_order(engine: Engine) -> None:
    ids = ids_of(engine.run(commands([{"priority": n % 3} for n in range(30)])))
    by_rank = [ids[n] for priority in (2, 1, 0) for n in range(30) if n % 3 == priority]
    assert [a.id for a in engine.claim(worker="w", limit=30)] == by_rank


def test_they_are_claimed_after_those_of_earlier_batches(engine: Engine) -> None:
    batches = [ids_of(engine.run(commands(ALIKE))) for _ in range(3)]
    claimed = [engine.claim(worker="w", limit=4) for _ in range(4)]
    assert [a.id for some in claimed for a in some] == [id_ for ids in batches for id_ in ids]


@pytest.mark.parametrize(
    "more",
    [
        {"idempotency_key": "k"}, {"unique_key": "k"}, {"delay_s": 60.0}, {"run_at": 1}, {"labels": {"a": "b"}},
        {"alias": "a"}, {"metadata": {"a": 1}}, {"throttle_s": 60.0}, {"policy": Policy(deadline_s=60.0)},
        {"policy": Policy(queue_ttl_s=60.0)},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_a_batch_with_a_submit_that_writes_more_takes_the_normal_path(
    more: dict[str, Any], engine: Engine, fast: list[Any]
) -> None:
    verdicts = engine.run(commands([{}, more, {}]))
    assert len(set(ids_of(verdicts))) == 3
    assert fast == [None]
