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
from onetray.domain.fields import public_fields
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.limits import Limit
from onetray.domain.policy import Policy
from onetray.domain.system_commands import SystemCommand
from onetray.domain.task import Assignment, RawJson, Receipt
from onetray.domain.token import OPERATE, SUBMIT, WORK
from onetray.domain.verbs import VERBS, SubmitMany, sendable_verbs
from onetray.engine.api import READS
from onetray.http.problems import of_error
from onetray.http.views import answer_view
from onetray.remote.command_codec import decode_answer, decode_command, decode_report, encode_command, encode_report
from onetray.remote.value_codec import decode, dumps, error_of, known_fields
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID

GIVEN = {str(read.answer_type): read.answer_type for read in READS.values()}
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
LIMITS = st.builds(Limit, most=st.integers(0, 9), kind=st.text(max_size=9), per_s=st.none() | st.floats(1, 100))
TIMES = st.integers(0, 2**55)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**62), 2**62), str: st.text(max_size=10), float: st.floats(0, 1e9), bool: st.booleans(),
    Any: JSON, type(None): st.none(), Policy: POLICIES, Limit: LIMITS,
}  # fmt: skip


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as its annotations describe it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return st.builds(kind, **{name: of_field(name, own) for name, own in known_fields(kind).items()})
    if origin is list:
        return st.lists(values(inner[0]), max_size=2)
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), values(inner[1]), max_size=2)
    return st.one_of(*map(values, inner))


def of_field(name: str, kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field: a time is known by its name. Whose view it is, the reader knows himself."""
    if name.endswith("_at") or name in ("ts", "at"):
        return TIMES | st.none() if type(None) in get_args(kind) else TIMES
    return st.just("user") if name == "actor" else values(kind)


def same(value: Any) -> Any:
    """A value as it can be compared: what JSON has one word for is one thing."""
    if isinstance(value, Policy):
        return value.body
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), {f.name: same(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [same(v) for v in value]
    return {k: same(v) for k, v in value.items()} if isinstance(value, dict) else value


def draw(kind: type[c.Command], data: st.DataObject) -> dict[str, Any]:
    """Values for all that somebody may say with a command."""
    hints = known_fields(kind)
    drawn = {f.name: data.draw(of_field(f.name, hints[f.name]), f.name) for f in public_fields(kind).values()}
    drawn |= {name: UNKNOWN_ID for name in ("task",) if name in drawn}
    return {**drawn, "fence": 3, "worker": "w", "ticket": None} if issubclass(kind, c.Report) else drawn


def sent(command: c.Command) -> Any:
    """A command as the server reads it."""
    return orjson.loads(orjson.dumps(encode_command(command)))


@settings(max_examples=4)
@pytest.mark.parametrize("verb", sendable_verbs())
@given(data=st.data())
def test_every_command_arrives_as_it_was_sent_but_in_the_callers_name(verb: str, data: st.DataObject) -> None:
    kind = VERBS[verb]
    drawn = draw(kind, data)
    arrived = decode_command(sent(kind(**drawn)), WHO)
    assert type(arrived) is kind
    assert same(arrived) == same(kind(**drawn, **{name: WHO[name] for name in WHO if hasattr(arrived, name)}))


REPORTS = [verb for verb, kind in VERBS.items() if issubclass(kind, c.Report)]


@settings(max_examples=4)
@pytest.mark.parametrize("verb", REPORTS)
@given(data=st.data())
def test_every_report_of_a_child_process_arrives_under_the_ticket_of_its_parent(verb: str, data: st.DataObject) -> None:
    kind = VERBS[verb]
    drawn = {**draw(kind, data), "trace": None, "lease_id": None}
    ticket = {"task": 7, "fence": 5, "worker": "parent", "namespace": "n", "lease": 3, "version": 2, "flow": 0}
    report = kind(**{**drawn, "fence": 9, "worker": "child"})
    assert isinstance(report, c.Report)
    arrived = decode_report(orjson.loads(orjson.dumps(encode_report(report))), ticket)
    assert same(arrived) == same(kind(**{**drawn, **ticket}))


@each_case(
    "end",
    [{"verb": "expire", "fields": {}}, {"verb": "cancel", "fields": {}}, {"verb": "succeed", "fields": {"fence": 9}},
     {"verb": "succeed", "fields": {"lease": 9}}, {"verb": "fail", "fields": {}}],
)  # fmt: skip
def test_a_child_process_reports_nothing_that_is_not_declared(end: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        decode_report(end, {"task": 7, "fence": 5, "worker": "parent"})


def test_a_claimed_task_arrives_with_all_that_a_worker_reckons_with() -> None:
    claimed = Assignment(
        key=2**40, id=UNKNOWN_ID, kind="k", queue="q", namespace="n", worker="w", fence=3, attempt=2, lease=77,
        lease_expires_at=1_763_285_400_000_001, payload_json='{"a":[1,null]}', input_json='"x"', correlation_id="c",
        trace=None, policy=Policy(max_attempts=7), lease_s=5.0, state="assigned", flow=9, version=4,
        idempotency_key="order-7",
    )  # fmt: skip
    command = c.Claim(worker="w")
    (arrived,) = decode_answer(command, orjson.loads(orjson.dumps(answer_view(c.Claim, [claimed]))))
    assert arrived.ticket
    arrived.ticket = ""
    assert arrived == claimed


@each_case("verb", [verb for verb in VERBS if VERBS[verb].declared.answer is Receipt and verb in sendable_verbs()])
def test_an_answer_says_what_may_be_done_next_by_whoever_asked(verb: str) -> None:
    kind = VERBS[verb]
    given = Receipt(UNKNOWN_ID, "assigned", 1, 2, "worker" if issubclass(kind, c.Report) else "user")
    command = object.__new__(kind)
    assert decode_answer(command, orjson.loads(orjson.dumps(answer_view(kind, given)))) == given


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
    arrived = error_of(orjson.loads(dumps(of_error(error))))
    if error.status >= 500 and error.status != 503:
        # What broke there is told to its log alone.
        assert type(arrived) is OnetrayError
        assert "what to do" not in str(arrived)
    else:
        assert (type(arrived), arrived.as_dict()) == (kind, error.as_dict())


NEEDS = {
    SUBMIT: "submit submit_flow submit_declared add_stage add_tasks open_flow seal_flow seal_stage append_context",
    WORK: "claim start beat succeed fail release pause log progress checkpoint",
    OPERATE: "resume cancel redrive set_priority set_metadata reschedule pause_flow resume_flow cancel_flow retry_flow "
    "set_flow_metadata set_flow_priority set_stage_metadata cancel_stage wait_stage approve_stage reject_stage "
    "skip_stage",
}
"""The scope of each verb, once more: a declaration changed by mistake gives a token more than it should have."""


def test_every_verb_needs_the_scope_that_is_written_here() -> None:
    written = {verb: scope for scope, verbs in NEEDS.items() for verb in verbs.split()}
    assert {verb: kind.declared.scope for verb, kind in sendable_verbs().items()} == written


def test_every_verb_that_can_be_sent_has_a_scope_and_those_of_the_engines_own_have_none() -> None:
    for verb, kind in VERBS.items():
        own = issubclass(kind, SystemCommand | SubmitMany)
        assert (kind.declared.scope in (SUBMIT, WORK, OPERATE)) is not own, verb
        assert (verb in sendable_verbs()) is not own, verb
        assert kind.declared.summary, verb


@each_case("verb", ["expire", "time_out", "promote", "end_cancel", "dead_letter", "submit_many", "no", None, 5, ["x"]])
def test_what_is_no_verb_for_others_is_not_known(verb: Any) -> None:
    with pytest.raises(UnknownVerb):
        decode_command({"verb": verb, "task": 1}, WHO)


@each_case(
    ("said", "field"),
    [
        ("submit", "commands"),
        ({"verb": "submit"}, "kind"),
        ({"verb": "submit", "kind": "k", "namespace": "theirs"}, "namespace"),
        ({"verb": "submit", "kind": "k", "actor": "system"}, "actor"),
        ({"verb": "submit", "kind": "k", "run_at": 5}, "run_at"),
        ({"verb": "submit", "kind": "k", "run_at": "2026-11-16T09:30:00"}, "run_at"),
        ({"verb": "submit", "kind": "k", "policy": {"stray": 1}}, "policy.stray"),
        ({"verb": "cancel", "task": 1}, "task"),
        ({"verb": "cancel", "task": UNKNOWN_ID, "cause": "it is called reason"}, "cause"),
        ({"verb": "submit", "kind": "k", "payload_json": "1"}, "payload_json"),
        ({"verb": "submit", "kind": "k", "policy": {"max_attempts": 0}}, "policy.max_attempts"),
        ({"verb": "submit_flow", "name": "f", "stages": [{"name": "s", "stray": 1}]}, "stray"),
        ({"verb": "submit_flow", "name": "f", "stages": [5]}, "stages"),
        ({"verb": "succeed", "task": UNKNOWN_ID, "worker": "w"}, "fence"),
        ({"verb": "succeed", "task": UNKNOWN_ID, "fence": 1}, "worker"),
        ({"verb": "succeed", "task": 1, "fence": 1, "worker": "w"}, "task"),
        ({"verb": "succeed", "task": UNKNOWN_ID, "fence": 1, "worker": "w", "lease": 3}, "lease"),
        ({"verb": "succeed", "task": UNKNOWN_ID, "fence": 1, "worker": "w", "ticket": "x"}, "ticket"),
        ({"verb": "succeed", "task": UNKNOWN_ID, "fence": 1, "worker": "w", "ticket": "1-0-1-2-00000001"}, "ticket"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused_by_the_name_of_what_is_wrong(said: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_command(said, WHO)
    assert refused.value.field == field


def test_a_payload_that_looks_like_a_value_of_ours_stays_what_it_is() -> None:
    payload = {"verb": "cancel", "kind": "x", "max_attempts": 0, "$": "Policy"}
    arrived = decode_command(sent(c.Submit(kind="k", payload=payload)), WHO)
    assert isinstance(arrived, c.Submit)
    assert arrived.payload == payload


def test_json_that_is_text_already_is_sent_as_it_is() -> None:
    arrived = decode_command(sent(c.Submit(kind="k", payload=RawJson(b'{"a": 1}'))), WHO)
    assert isinstance(arrived, c.Submit)
    assert arrived.payload == {"a": 1}


def test_what_a_newer_server_says_besides_is_left_out() -> None:
    stage = orjson.loads(dumps(StageSpec("s", [TaskSpec("k")])))
    assert decode(StageSpec, {**stage, "of_tomorrow": 1}) == StageSpec("s", (TaskSpec("k"),))
