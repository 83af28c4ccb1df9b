"""JSON goes in and comes out the same on both stores; what is not JSON, or cannot be kept, is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.domain.errors import InvalidInput, TooLarge
from onetray.domain.task import RawJson
from onetray.engine import Engine
from tests.property.twins import Pair
from tests.support.cases import each_case

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
TRICKY = (
    "\\u0000", "\\", '"', "\u2028", "\ufeff", "\x7f\x1f", "e\u0301", "\U0001d11e", "\U0001f469\u200d\U0001f467",
    "\U0010ffff", 2**53 + 1, 2**64 - 1, -(2**63), 0.1, 5e-324, 1.7976931348623157e308, -0.0, 1e22, [], {}, [[[[[[]]]]]],
    {"": {"": ""}}, {"a": None}, "null", "'; DROP", "%s %(x)s :x b.key {in:keys:bigint}", False, "",
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Equal as text: 1 and 1.0, or 0.0 and -0.0, are not the same."""
    return bool(orjson.dumps(a, option=orjson.OPT_SORT_KEYS) == orjson.dumps(b, option=orjson.OPT_SORT_KEYS))


def goes_round(engine: Engine, values: list[Any]) -> None:
    """As a payload to the worker, as a result back, and both as anybody reads them."""
    ids = [v.unwrap().id for v in engine.run([Submit(kind="mail", payload=value) for value in values])]
    (verdict,) = engine.run([Claim(worker="w", limit=len(values))])
    claimed = {a.id: a for a in verdict.unwrap()}
    given_back = [Succeed(result=claimed[id_].payload, **ticket(claimed[id_])) for id_ in ids]
    assert all(v.ok for v in engine.run(list(given_back)))
    for id_, value in zip(ids, values, strict=True):
        task = engine.task(id_)
        assert same(claimed[id_].payload, value)
        assert same(task.payload, value)
        assert same(task.result, value)


@settings(max_examples=60)
@given(values=st.lists(VALUES, min_size=1, max_size=60))
def test_any_json_comes_back_as_it_went_in(both: Pair, values: list[Any]) -> None:
    both.fresh()
    for engine in both.engines.values():
        goes_round(engine, values)


def test_tricky_json_comes_back_as_it_went_in_by_either_way_of_writing(engine: Engine) -> None:
    goes_round(engine, list(TRICKY))
    # Past fifty tasks PostgreSQL is written to by COPY, which escapes in its own way.
    goes_round(engine, list(TRICKY) * 2)
    goes_round(engine, [{key: key} for key in TRICKY if isinstance(key, str)])


def test_raw_json_is_kept_as_it_was_written(engine: Engine) -> None:
    raw = b'{"b": 1.10, "a": [1e2,  "\\u00e9"], "big": 12345678901234567890}'
    task = engine.submit("mail", RawJson(raw)).id or ""
    assert engine.claim(worker="w")[0].payload_json == raw.decode()
    assert engine.task(task).payload["a"] == [100.0, "é"]


REFUSED = (
    "\0", ["a\0"], {"a\0": 1}, "\ud800", {"k": "\udfff"}, 2**64, -(2**63) - 1, {1, 2}, object(), {1: 2}, b"bytes", 1j,
    float("nan"), [float("inf")], {"a": float("-inf")}, RawJson(b"{"), RawJson(b""), RawJson(b"NaN"),
    RawJson(b'"\\u0000"'), RawJson(b'"\\\\\\u0000"'), RawJson(b"\xff"),
    RawJson(b'{"big": 123456789012345678901234567890}'),
)  # fmt: skip


@each_case("which", range(len(REFUSED)))
def test_what_cannot_be_kept_is_refused_and_nothing_is_written(engine: Engine, which: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.submit("mail", REFUSED[which])
    assert caught.value.field == "payload"
    assert engine.tasks() == []


def test_nesting_beyond_reason_is_refused(engine: Engine) -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(InvalidInput):
        engine.submit("mail", deep)
    with pytest.raises(InvalidInput):
        engine.submit("mail", RawJson(b"[" * 5000 + b"]" * 5000))


def test_the_limit_of_a_payload_is_exact(engine: Engine) -> None:
    most = engine.config.limits.payload_bytes
    task = engine.submit("mail", "x" * (most - 2)).id or ""
    assert len(engine.task(task).payload) == most - 2
    with pytest.raises(TooLarge):
        engine.submit("mail", "x" * (most - 1))


@settings(max_examples=30)
@given(payload=VALUES, key=TEXT.filter(bool).map(lambda t: t[:200]))
def test_the_same_body_under_the_same_key_is_the_same_job(both: Pair, payload: Any, key: str) -> None:
    both.fresh()
    for engine in both.engines.values():
        first = engine.submit("mail", payload, idempotency_key=key)
        again = engine.submit("mail", _turned(payload), idempotency_key=key)
        assert (again.id, again.repeated) == (first.id, True)


def _turned(value: Any) -> Any:
    """The same value with its keys in another order."""
    if isinstance(value, dict):
        return {k: _turned(v) for k, v in reversed(value.items())}
    return [_turned(v) for v in value] if isinstance(value, list) else value
