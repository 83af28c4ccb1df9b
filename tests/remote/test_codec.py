"""Everything that crosses the wire arrives as it was sent."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onetray.domain import commands as c
from onetray.domain import errors
from onetray.domain.errors import InvalidInput, OnetrayError, UnknownVerb
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import RawJson
from onetray.domain.verbs import SubmitMany
from onetray.engine.api import READS
from onetray.http.problems import of_error
from onetray.http.routes.commands import SCOPE_OF
from onetray.remote.command_codec import ANSWERS, DERIVED, OWNED, SENT, decode_command, encode_command
from onetray.remote.value_codec import decode, dumps, known_fields, of_problem, raised
from tests.support.cases import each_case

GIVEN = {str(kind): kind for kind in (*ANSWERS.values(), *(read.answer_type for read in READS.values()))}
KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, OnetrayError)]
WHO = {"namespace": "theirs", "actor_name": "ann"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
POLICIES = st.builds(
    Policy, max_attempts=st.integers(1, 9), retry_on=st.lists(st.just("ValueError")).map(tuple), jitter=st.booleans(),
    lease_s=st.floats(0.01, 100.0),
)  # fmt: skip
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**62), 2**62), str: st.text(max_size=10), float: st.floats(0, 1e9), bool: st.booleans(),
    Any: JSON, type(None): st.none(), Policy: POLICIES,
}  # fmt: skip


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as its annotations describe it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return st.builds(kind, **{name: values(own) for name, own in known_fields(kind).items()})
    if origin is list:
        return st.lists(values(inner[0]), max_size=2)
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), values(inner[1]), max_size=2)
    return st.one_of(*map(values, inner))


def same(value: Any) -> Any:
    """A value as it can be compared: what JSON has one word for is one thing."""
    if isinstance(value, Policy):
        return value.body
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), {f.name: same(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [same(v) for v in value]
    return {k: same(v) for k, v in value.items()} if isinstance(value, dict) else value


def sent_fields(kind: type[c.Command]) -> dict[str, Any]:
    return {name: own for name, own in known_fields(kind).items() if name not in OWNED | DERIVED}


@settings(max_examples=4)
@pytest.mark.parametrize("verb", [verb for verb in SENT if verb != SubmitMany.verb])
@given(data=st.data())
def test_every_command_arrives_as_it_was_sent_but_in_the_callers_name(verb: str, data: st.DataObject) -> None:
    kind = SENT[verb]
    drawn = {name: data.draw(values(own), name) for name, own in sent_fields(kind).items()}
    if issubclass(kind, c.Report):
        drawn |= {"fence": 3, "worker": "w"}
    arrived = decode_command(orjson.loads(dumps(encode_command(kind(**drawn)))), WHO)
    assert type(arrived) is kind
    assert same(arrived) == same(kind(**drawn, **{name: WHO[name] for name in WHO if hasattr(arrived, name)}))


@given(like=st.builds(c.Submit, kind=st.text(max_size=5), policy=POLICIES | st.none()), payloads=st.lists(JSON))
@settings(max_examples=20)
def test_many_tasks_arrive_as_they_were_sent(like: c.Submit, payloads: list[Any]) -> None:
    arrived = decode_command(orjson.loads(dumps(encode_command(SubmitMany(like=like, payloads=payloads)))), WHO)
    assert isinstance(arrived, SubmitMany)
    assert (arrived.payloads, arrived.like.kind, arrived.like.policy) == (payloads, like.kind, like.policy)
    assert (arrived.like.namespace, arrived.like.actor_name) == ("theirs", "ann")


@settings(max_examples=3)
@pytest.mark.parametrize("gives", GIVEN.values(), ids=GIVEN)
@given(data=st.data())
def test_every_value_arrives_as_it_was_given(gives: Any, data: st.DataObject) -> None:
    value = data.draw(values(gives))
    arrived = decode(gives, orjson.loads(dumps(value)))
    assert same(arrived) == same(value)
    assert type(arrived) is type(value)


@each_case("kind", KINDS)
def test_every_error_arrives_as_the_same_class_with_its_facts(kind: type[OnetrayError]) -> None:
    error = kind("what to do", task="t", allowed=["cancel"], **{"from": "queued"})
    arrived = raised(**of_problem(orjson.loads(dumps(of_error(error)))))
    if error.status >= 500 and error.status != 503:
        # What broke there is told to its log alone.
        assert type(arrived) is OnetrayError
        assert "what to do" not in str(arrived)
    else:
        assert (type(arrived), arrived.as_dict()) == (kind, error.as_dict())


def test_every_verb_that_can_be_sent_has_a_scope_and_those_of_the_engines_own_have_none() -> None:
    assert set(SCOPE_OF) == set(SENT) == set(ANSWERS)
    assert not set(SENT) & {"expire", "time_out", "promote", "end_cancel", "dead_letter"}


@each_case("verb", ["expire", "time_out", "promote", "end_cancel", "dead_letter", "no", None, 5, ["x"]])
def test_what_is_no_verb_for_others_is_not_known(verb: Any) -> None:
    with pytest.raises(UnknownVerb):
        decode_command({"verb": verb, "task": 1}, WHO)


@each_case(
    ("said", "field"),
    [
        ("submit", "commands"),
        ({"verb": "submit"}, "Submit"),
        ({"verb": "submit", "kind": "k", "payload_json": "1"}, "payload_json"),
        ({"verb": "submit", "kind": "k", "policy": {"max_attempts": 0}}, "policy.max_attempts"),
        ({"verb": "submit_flow", "name": "f", "stages": [{"name": "s", "stray": 1}]}, "stray"),
        ({"verb": "submit_flow", "name": "f", "stages": [5]}, "StageSpec"),
        ({"verb": "succeed", "task": 1, "worker": "w"}, "fence"),
        ({"verb": "succeed", "task": 1, "fence": 1}, "fence"),
        ({"verb": "submit_many", "payloads": [1], "like": {"verb": "submit"}}, "Submit"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused_by_the_name_of_what_is_wrong(said: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_command(said, WHO)
    assert refused.value.field == field


def test_a_payload_that_looks_like_a_value_of_ours_stays_what_it_is() -> None:
    payload = {"verb": "cancel", "kind": "x", "max_attempts": 0, "$": "Policy"}
    arrived = decode_command(orjson.loads(dumps(encode_command(c.Submit(kind="k", payload=payload)))), WHO)
    assert isinstance(arrived, c.Submit)
    assert arrived.payload == payload


def test_json_that_is_text_already_is_sent_as_it_is() -> None:
    arrived = decode_command(orjson.loads(dumps(encode_command(c.Submit(kind="k", payload=RawJson(b'{"a": 1}'))))), WHO)
    assert isinstance(arrived, c.Submit)
    assert arrived.payload == {"a": 1}


def test_what_a_newer_server_says_besides_is_left_out() -> None:
    stage = orjson.loads(dumps(StageSpec("s", [TaskSpec("k")])))
    assert decode(StageSpec, {**stage, "of_tomorrow": 1}) == StageSpec("s", (TaskSpec("k"),))
