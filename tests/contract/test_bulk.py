"""Many tasks at once: the same rows as one by one, whatever their payloads say."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.config import EngineConfig, Limits
from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, TooLarge
from onetray.domain.policy import Policy
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from onetray.store.pg_copy import CopyBuffer
from onetray.store.postgres_tx import COPY_FROM
from tests.support.cases import each_case
from tests.support.engines import engine_on

MANY = COPY_FROM + 10
ODD = (
    "tab\tand\ttab", "line\nline", "\r\n", "back\\slash", "\\", "\\N", "\\.", "\\t", "a\\", "\N{SNOWMAN} é 漢字 🎈",
    "\x01\x0b\x0c\x7f\x85\u2028", "'\"", "{}", "NULL", " ",
)  # fmt: skip


def many(engine: Engine, payloads: list[Any], **fields: Any) -> list[str]:
    ids: list[str] = engine.call(SubmitMany(like=c.Submit(kind="mail", **fields), payloads=payloads))
    return ids


@pytest.mark.parametrize("count", [1, MANY])
def test_many_at_once_are_written_as_one_by_one(engine: Engine, count: int) -> None:
    policy = Policy(queue_ttl_s=60, deadline_s=600, max_attempts=7)
    fields: dict[str, Any] = {
        "queue": "q", "priority": 3, "policy": policy, "correlation_id": "corr", "cause": "why", "actor_name": "ann",
        "trace": f"00-{'a' * 32}-{'b' * 16}-01",
    }  # fmt: skip
    payloads = [{"n": n} for n in range(count)]
    many(engine, payloads, **fields)
    engine.run([c.Submit(kind="mail", payload=p, **fields) for p in payloads])
    for table, order in (("task", "key"), ("ready", "task"), ("event", "entity"), ("due", "task, at")):
        found = written(engine, table, order)
        assert len(found) == 2 * count * (2 if table == "due" else 1)
        assert found[: len(found) // 2] == found[len(found) // 2 :]


def written(engine: Engine, table: str, order: str) -> list[dict[str, Any]]:
    """The rows of a table without what tells one task from another."""
    own = {"task": {"key", "job", "id", "events"}, "event": {"id", "entity", "job", "batch", "place"}}.get(
        table, {"task"}
    )
    with engine.store.snapshot() as snapshot:
        rows = snapshot.select(f"SELECT * FROM onetray.{table} ORDER BY {order}")
    return [{name: value for name, value in row.items() if name not in own} for row in rows]


def test_they_are_answered_and_queued_in_their_order(engine: Engine) -> None:
    ids = many(engine, list(range(MANY)))
    claimed = engine.claim("default", worker="w", limit=MANY)
    assert [a.id for a in claimed] == ids
    assert [a.payload for a in claimed] == list(range(MANY))


def test_delayed_ones_are_claimable_when_their_time_has_come(engine: Engine, clock: VirtualClock) -> None:
    many(engine, list(range(MANY)), delay_s=30)
    assert engine.claim("default", worker="w") == []
    clock.advance(30)
    while engine.sweep():
        pass
    assert len(engine.claim("default", worker="w", limit=MANY)) == MANY


@each_case("at_once", [True, False])
def test_every_text_comes_back_as_it_was(engine: Engine, at_once: bool) -> None:
    texts = [f"{odd}{end}" for end in ("", "|") for odd in ODD] * 2
    payloads = [{"text": t, t: [t, None, ""]} for t in texts]
    if at_once:
        ids = many(engine, payloads, correlation_id=ODD[0], cause=ODD[5], actor_name="a\tb\\N")
        told = [(ODD[0], ODD[5], "user:a\tb\\N")] * len(texts)
    else:
        submits = [
            c.Submit(kind="mail", payload=p, correlation_id=t, cause=t, actor_name=t)
            for p, t in zip(payloads, texts, strict=True)
        ]
        ids = [v.unwrap().id for v in engine.run(submits)]
        told = [(t, t, f"user:{t}") for t in texts]
    assert len(ids) >= COPY_FROM
    for id_, payload, (correlation, cause, actor) in zip(ids, payloads, told, strict=True):
        task, (event,) = engine.task(id_), engine.events(id_)
        assert task.payload == payload
        assert task.correlation_id == event.correlation_id == correlation
        assert (event.cause, event.actor) == (cause, actor)


def test_nothing_is_not_the_same_as_an_empty_text() -> None:
    names, text = CopyBuffer().of({"a": ["", None, "\\N"], "b": [1, None, 3], "c": "x\ty", "d": None, "e": ""})
    assert names == ["a", "b", "c", "e"]
    assert text == "\t1\tx\\ty\t\n\\N\t\\N\tx\\ty\t\n\\\\N\t3\tx\\ty\t\n"


def test_columns_of_unequal_length_are_no_batch() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        CopyBuffer().of({"a": [1, 2], "b": [1], "c": 0})


@each_case(
    "bad",
    [{"a": "x\0y"}, "\0", {"\0": 1}, float("nan"), [1, float("inf")], "\ud800", object(), {1: 2}, 2**70],
    ids=["nul", "bare nul", "nul in a name", "nan", "inf", "surrogate", "object", "number as name", "too many bits"],
)
def test_of_many_none_is_written_when_one_payload_is_refused(engine: Engine, bad: object) -> None:
    with pytest.raises(InvalidInput) as raised:
        many(engine, [{"n": n} for n in range(MANY)] + [bad])
    assert raised.value.field == "payload"
    assert engine.tasks() == []


def test_what_looks_like_nothing_or_nul_is_taken_as_it_is(engine: Engine) -> None:
    payloads: list[Any] = [None, {"a": None}, "null", "\\u0000", "\\\\u0000", "", [], {}, False]
    assert [engine.task(id_).payload for id_ in many(engine, payloads)] == payloads


def test_one_payload_past_the_limit_refuses_all(database_url: str, clock: VirtualClock) -> None:
    with engine_on(database_url, clock, config=EngineConfig(limits=Limits(payload_bytes=20, batch=5))) as engine:
        with pytest.raises(TooLarge):
            many(engine, ["a", "b" * 19])
        with pytest.raises(InvalidInput, match="payloads must be a list of 1 to 5"):
            many(engine, ["a"] * 6)
        with pytest.raises(InvalidInput, match="payloads must be a list of 1 to 5"):
            many(engine, [])
        assert engine.tasks() == []
        assert len(many(engine, ["a", "b" * 18])) == 2


@each_case("field", ["idempotency_key", "unique_key", "alias", "labels"])
def test_what_is_said_of_one_task_is_not_said_of_many(engine: Engine, field: str) -> None:
    value: Any = {"a": "b"} if field == "labels" else "k"
    with pytest.raises(InvalidInput, match="use submit for it"):
        many(engine, [1, 2], **{field: value})
    with pytest.raises(InvalidInput, match="like must be a Submit"):
        engine.call(SubmitMany(like="mail", payloads=[1]))  # type: ignore[arg-type]


def test_many_share_a_batch_with_other_commands(engine: Engine) -> None:
    like = c.Submit(kind="mail")
    verdicts = engine.run(
        [c.Submit(kind="sms"), SubmitMany(like=like, payloads=[1, 2]), c.Submit(kind="fax"), c.Submit(kind="")]
    )
    assert [v.ok for v in verdicts] == [True, True, True, False]
    assert len(engine.tasks()) == 4
