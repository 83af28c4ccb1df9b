"""Bad input: an error that names the field, and nothing written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.errors import InvalidInput, NotFound, TooLarge, UnknownVerb
from onetray.domain.task import RawJson
from onetray.domain.verbs import VERBS
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from tests.contract.bad_flows import FLOW_FIELDS, FLOW_GOOD, MORE_VALUES
from tests.contract.bad_values import (
    ALIAS,
    AMOUNTS,
    JSON,
    LABELS,
    LONG,
    MB2,
    NAN,
    NUL,
    SECONDS,
    SURROGATE,
    SWITCH,
    TASK,
    TEXT,
    TRACE,
    WHOLE,
    WORDS,
    label,
)
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, in_state, written

OF_TASKS: dict[str, tuple[Any, ...]] = {"task": TASK, "namespace": TEXT}
OF_REPORTS = {
    **OF_TASKS,
    "fence": (*WHOLE, 0, -1, 2**31),
    "worker": TEXT,
    "trace": TRACE,
    "flow": (*WHOLE, -1, 2**63),
    "lease": (None, *WHOLE, -1, 2**63),
    "version": (None, *WHOLE, -1, 2**31),
    "attempt": (None, *WHOLE, -1, 2**31),
    "ticket": TEXT,
    "lease_id": TEXT,
}
OF_CONTROLS = {**OF_TASKS, "actor_name": TEXT, "cause": TEXT, "trace": TRACE}
OF_SYSTEM = {**OF_CONTROLS, "fence": (*WHOLE, 0, -1, 2**31)}

FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "submit": {
        "kind": (None, *TEXT),
        "payload": JSON,
        "queue": (None, *TEXT),
        "namespace": (None, *TEXT),
        "priority": (None, *WHOLE, 2**31, -(2**31)),
        "delay_s": SECONDS,
        "run_at": (*WHOLE, -1, 2**63),
        "max_attempts": (*WHOLE, 0, -1, 10**7),
        "policy": (5, {"max_attempts": 3}, "default"),
        "idempotency_key": TEXT,
        "unique_key": TEXT,
        "debounce_s": (*SECONDS, 0),
        "debounce_key": TEXT,
        "debounce_max_s": (*SECONDS, 0),
        "throttle_s": (*SECONDS, 0),
        "throttle_key": TEXT,
        "alias": ALIAS,
        "labels": LABELS,
        "metadata": JSON,
        "correlation_id": TEXT,
        "trace": TRACE,
        "tracestate": TEXT,
        "cause": TEXT,
        "actor": (None, "cat", 5, ["user"], NUL),
        "actor_name": (None, *TEXT),
        "reserves": (5, "key", {"key": "k"}),
        "tells_written": (None, *SWITCH),
    },
    "claim": {
        "worker": (None, *TEXT),
        "queue": (None, *TEXT),
        "kinds": (5, "mail", {"mail": 1}, [5], [""], [NUL], [SURROGATE], [LONG], ["x"] * 1001),
        "limit": (None, *WHOLE, 0, -1, 10_001),
        "lease_s": (*SECONDS, 0),
        "request_key": TEXT,
        "start": (None, *SWITCH),
        "expiry_counts": (None, *SWITCH),
        "limited_limit": (*WHOLE, -1, 10_001),
        "namespace": (None, *TEXT),
    },
    "start": OF_REPORTS,
    "beat": {**OF_REPORTS, "lease_s": (*SECONDS, 0)},
    "succeed": {
        **OF_REPORTS,
        "result": JSON,
        "ran_s": SECONDS,
        "more": MORE_VALUES,
        "started": (None, *SWITCH),
        "metadata": JSON,
    },
    "fail": {
        **OF_REPORTS,
        "message": (None, *WORDS),
        "error_class": (None, *TEXT),
        "retryable": SWITCH,
        "reason_code": ("bored", 5, "", NUL, ["timeout"]),
        "stage": (None, "nowhere", 5, NUL),
        "detail": JSON,
        "retry_after_s": SECONDS,
        "metadata": JSON,
        "ran_s": (None, *SECONDS),
    },
    "release": {**OF_REPORTS, "reason": TEXT, "delay_s": (None, *SECONDS)},
    "pause": {
        **OF_REPORTS,
        "state": (None, "running", 5, NUL),
        "owner": (None, *TEXT),
        "reason": (None, *TEXT),
    },
    "log": {
        **OF_REPORTS,
        "lines": (None, 5, "text", (), [5], [NUL], [SURROGATE], [LONG], [("info", "a")], ["x"] * 10_001),
    },
    "progress": {**OF_REPORTS, "done": (None, *AMOUNTS), "total": AMOUNTS, "message": TEXT},
    "checkpoint": {**OF_REPORTS, "body": JSON},
    "resume": {**OF_CONTROLS, "input": JSON},
    "cancel": {**OF_CONTROLS, "hard": (None, *SWITCH), "grace_s": SECONDS},
    "redrive": {
        **OF_CONTROLS,
        "delay_s": (None, *SECONDS),
        "run_at": (*WHOLE, -1, 2**63),
        "keep_attempts": (None, *SWITCH),
    },
    "set_metadata": {**OF_CONTROLS, "metadata": JSON},
    "set_priority": {**OF_CONTROLS, "priority": (None, *WHOLE, 2**31, -(2**31))},
    "reschedule": {**OF_CONTROLS, "run_at": (*WHOLE, -1, 2**63), "delay_s": SECONDS},
    "expire": {**OF_SYSTEM, "lease": (*WHOLE, 0, -1), "as_of": (*WHOLE, -1)},
    "time_out": {**OF_SYSTEM, "limit": (None, "never", 5)},
    "promote": OF_SYSTEM,
    "end_cancel": OF_SYSTEM,
    "dead_letter": {
        **OF_SYSTEM,
        "reason_code": (None, "bored", 5),
        "message": (None, *WORDS),
        "stage": (None, "nowhere", 5),
    },
    "submit_many": {
        "like": (None, 5, {"kind": "mail"}, c.Submit(kind="mail", unique_key="u")),
        "payloads": (None, 5, "text", {"a": 1}, [], [1] * 10_001),
    },
    **FLOW_FIELDS,
}
GOOD: dict[str, dict[str, Any]] = {
    "submit": {"kind": "mail"},
    "claim": {"worker": "w"},
    "submit_many": {"like": c.Submit(kind="mail"), "payloads": [1]},
    "fail": {"message": "no"},
    "pause": {"owner": "ann", "reason": "sign"},
    "log": {"lines": ("a line",)},
    "progress": {"done": 1},
    "checkpoint": {"body": 1},
    "set_metadata": {"metadata": 1},
    "set_priority": {"priority": 5},
    "reschedule": {"delay_s": 5},
    "dead_letter": {"reason_code": "timeout"},
    **FLOW_GOOD,
}


def test_every_field_of_every_command_is_in_the_table() -> None:
    assert set(FIELDS) == set(VERBS)
    for verb, kind in VERBS.items():
        names = {f.name for f in dataclasses.fields(kind) if f.init}
        assert names == set(FIELDS[verb]), verb


CASES = [(verb, field) for verb, fields in FIELDS.items() for field in fields]


@each_case(("verb", "field"), CASES, ids=[f"{v}-{f}" for v, f in CASES])
def test_a_command_refuses_by_the_name_of_the_field(verb: str, field: str) -> None:
    """The checks need no database: one engine's limits stand for all."""
    from onetray.config import Limits

    for value in FIELDS[verb][field]:
        command = made(verb, field, value)
        with pytest.raises(InvalidInput) as refused:
            command.check(Limits())
        assert named(verb, refused.value.field) == field, label(value)


def named(verb: str, field: str) -> str:
    """The command's field that an error is about: what a stage or an approval has is named below it."""
    first = field.split(".")[0]
    of_stage = verb in FLOW_FIELDS and getattr(VERBS[verb], "of_stage", False)
    return "flow" if of_stage and first == "stage" else first


def made(verb: str, field: str, value: object) -> c.Command:
    fields = {**GOOD.get(verb, {}), field: value}
    if (verb, field) == ("reschedule", "run_at"):
        del fields["delay_s"]
    for id_ in ("task", "flow"):
        if id_ in FIELDS[verb] and not (
            (verb, id_) == ("append_context", "task") or (id_ == "flow" and verb not in FLOW_FIELDS)
        ):
            fields.setdefault(id_, UNKNOWN_ID)
    return VERBS[verb](**fields)


@each_case("verb", FIELDS)
def test_a_refused_command_writes_nothing(engine: Engine, verb: str) -> None:
    """All bad values of all fields at once, with a good command between them that must not suffer."""
    in_state(engine, "running")
    bad = [made(verb, field, value) for field, values in FIELDS[verb].items() for value in values]
    before = written(engine)
    verdicts = engine.run([*bad[:3], c.Cancel(UNKNOWN_ID), *bad[3:]])
    assert isinstance(verdicts.pop(3).error, NotFound)
    assert [label(b) for b, v in zip(bad, verdicts, strict=True) if not isinstance(v.error, InvalidInput)] == []
    assert all(v.error is not None and v.error.as_dict()["field"] for v in verdicts)
    assert written(engine) == before


@each_case(
    ("verb", "field", "value"),
    [
        ("submit", "payload", MB2),
        ("submit", "kind", LONG),
        ("submit", "idempotency_key", LONG),
        ("succeed", "result", MB2),
        ("fail", "message", LONG),
        ("resume", "input", MB2),
        ("log", "lines", [LONG]),
    ],
)
def test_what_is_too_large_is_told_its_limit(engine: Engine, verb: str, field: str, value: object) -> None:
    error = engine.run([made(verb, field, value)])[0].error
    assert isinstance(error, TooLarge)
    assert (error.field, error.status) == (field, 413)
    assert error.limit > 0


def test_an_unknown_verb_is_told_the_known_ones(engine: Engine) -> None:
    before = written(engine)
    for verb in ("explode", "", "Submit", None, 5, ["submit"]):
        with pytest.raises(UnknownVerb, match="submit, claim, start") as refused:
            engine.do(verb)  # type: ignore[arg-type]
        assert refused.value.field == "verb"
    for command in ("submit", None, c.Command(), {"verb": "submit"}):
        assert isinstance(engine.run([command])[0].error, UnknownVerb)  # type: ignore[list-item]
    assert written(engine) == before


def test_an_unknown_or_missing_field_is_named(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="colour"):
        engine.do("submit", kind="mail", colour="red")
    with pytest.raises(InvalidInput, match="kind"):
        engine.do("submit")
    with pytest.raises(InvalidInput, match="task"):
        engine.do("cancel")


def test_a_delay_and_a_time_together_are_refused(engine: Engine) -> None:
    for fields in ({"delay_s": 1, "run_at": 5},):
        with pytest.raises(InvalidInput) as refused:
            engine.submit("mail", **fields)
        assert refused.value.field == "delay_s"
    for fields in ({}, {"delay_s": 1, "run_at": 5}):
        with pytest.raises(InvalidInput) as refused:
            engine.reschedule(UNKNOWN_ID, **fields)
        assert refused.value.field == "run_at"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"labels": {"team": 5}}, "the value of 'team' in labels must be text, not int"),
        ({"labels": {5: "a"}}, "a name in labels must be text, not int"),
        ({"labels": {"team": "a\nb"}}, "the value of 'team' in labels must be printable"),
        ({"labels": ["team"]}, 'labels must be an object of texts, as {"team": "a"}'),
        (
            {"run_at": "tomorrow"},
            "run_at must be microseconds since the epoch, not 'tomorrow'; an app also takes an aware datetime",
        ),
    ],
)
def test_labels_and_times_say_what_they_must_be(shared_engine: Engine, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        shared_engine.submit("mail", **fields)
    assert (refused.value.field, says in str(refused.value)) == (next(iter(fields)), True)


def test_the_level_and_the_data_of_a_line_are_named(engine: Engine) -> None:
    made_ = in_state(engine, "running")
    for line, field in ((("x" * 21, "a", None), "lines.level"), (("info", "a", NAN), "lines.data")):
        with pytest.raises(InvalidInput) as refused:
            engine.log(made_.id, line)
        assert refused.value.field == field


EDGES: list[Any] = [
    None, 0, -1, 1.5, True, "", "ü€😀", "a\\u0000", "\\", {"": {"": []}}, [None, None], {"a": None, "b": "null"},
    2**63 - 1, -(2**63), "\x01\x7f", "x" * 999_000,
]  # fmt: skip


def test_what_json_knows_comes_back_as_it_went_in(engine: Engine) -> None:
    for value in EDGES:
        id_ = engine.submit("mail", value).id or ""
        held = engine.claim(worker="w")[0]
        assert held.payload == value
        engine.succeed(held, value)
        task = engine.task(id_)
        assert (task.payload, task.result) == (value, value)


def test_text_that_is_already_json_is_kept_as_it_is(engine: Engine) -> None:
    raw = RawJson(b'{"b": 1,  "a": [1.50, "\\u00fc", "\\\\u0000"]}')
    engine.submit("mail", raw)
    held = engine.claim(worker="w")[0]
    assert held.payload_json == raw.decode()
    assert held.payload == {"b": 1, "a": [1.5, "ü", "\\u0000"]}


READS: dict[str, Callable[[Engine, str, dict[str, Any]], object]] = {
    "task": lambda e, id_, f: e.task(id_, **f),
    "events": lambda e, id_, f: e.events(id_, **f),
    "logs": lambda e, id_, f: e.logs(id_, **f),
    "dead_letters": lambda e, id_, f: e.dead_letters(id_, **f),
    "progress": lambda e, id_, f: e.progress_of(id_, **f),
    "checkpoint": lambda e, id_, f: e.last_checkpoint(id_, **f),
}


@each_case("read", READS)
def test_a_read_refuses_by_the_name_of_the_field(engine: Engine, read: str) -> None:
    made_ = in_state(engine, "succeeded")
    for task in ("abc", "", NUL, 5):
        with pytest.raises(InvalidInput) as refused:
            READS[read](engine, task, {})  # type: ignore[arg-type]
        assert refused.value.field == "task"
    fields: dict[str, tuple[Any, ...]] = {"namespace": TEXT}
    if read in ("events", "logs", "dead_letters"):
        fields["limit"] = (-1, "5", 2**70, None)
    for field, values in fields.items():
        for value in values:
            with pytest.raises(InvalidInput) as refused:
                READS[read](engine, made_.id, {field: value})
            assert refused.value.field == field


@each_case("read", ["task", "events", "logs", "progress", "checkpoint"])
def test_a_read_of_an_unknown_task_says_so(engine: Engine, read: str) -> None:
    made_ = in_state(engine, "succeeded")
    for id_, fields in ((UNKNOWN_ID, {}), (made_.id, {"namespace": "other"})):
        with pytest.raises(NotFound):
            READS[read](engine, id_, fields)
    assert READS[read](engine, made_.id.upper(), {}) == READS[read](engine, made_.id, {})


def test_a_search_by_correlation_refuses_what_cannot_be_one(engine: Engine) -> None:
    for value in TEXT:
        with pytest.raises(InvalidInput) as refused:
            engine.events_by_correlation(value)
        assert refused.value.field == "correlation_id"


A_STAGE = StageDeclaration(name="a", kind="k")
A_FLOW = FlowDeclaration(name="f", stages=[A_STAGE])
BEAT = WorkerBeat(name="w", host="h", pid=1, version="1")
STEPS: dict[str, tuple[str, Callable[[Engine, str], object]]] = {
    "explain, namespace": ("namespace", lambda e, id_: e.explain(id_, namespace=NUL)),
    "explain, no text": ("namespace", lambda e, id_: e.explain(id_, namespace=5)),  # type: ignore[arg-type]
    "position, namespace": ("namespace", lambda e, id_: e.position(id_, namespace=NUL)),
    "position, most": ("most", lambda e, id_: e.position(id_, most=-1)),
    "task, actor": ("actor", lambda e, id_: e.task(id_, actor="boss")),
    "tasks, limit": ("limit", lambda e, id_: e.tasks(limit=10_001)),
    "events, limit": ("limit", lambda e, id_: e.events(id_, limit=10_001)),
    "prune, limit": ("limit", lambda e, id_: e.prune(1, limit=-1)),
    "prune, namespace": ("namespace", lambda e, id_: e.prune(1, namespace=NUL)),
    "prune_notes, types": ("types", lambda e, id_: e.prune_notes("task.heartbeat", 1)),
    "prune_notes, type": ("types", lambda e, id_: e.prune_notes([NUL], 1)),
    "expire_leases, limit": ("limit", lambda e, id_: e.expire_leases(limit=0)),
    "expire_leases, now": ("now", lambda e, id_: e.expire_leases(now="soon")),  # type: ignore[arg-type]
    "do_due, limit": ("limit", lambda e, id_: e.do_due(limit=None)),  # type: ignore[arg-type]
    "pause_queue, by": ("by", lambda e, id_: e.pause_queue("default", by=NUL)),
    "delete_job, job": ("job", lambda e, id_: e.delete_job("x")),
    "delete_job, reason": ("reason", lambda e, id_: e.delete_job(id_, reason=NUL)),
    "delete_job, by": ("by", lambda e, id_: e.delete_job(id_, by="")),
    "worker_beat, no beat": ("beat", lambda e, id_: e.worker_beat({"name": "w"})),  # type: ignore[arg-type]
    "worker_beat, namespace": ("namespace", lambda e, id_: e.worker_beat(BEAT, namespace=NUL)),
    "worker_leave, name": ("name", lambda e, id_: e.worker_leave("")),
    "worker_leave, namespace": ("namespace", lambda e, id_: e.worker_leave("w", namespace=NUL)),
    "declare_flow, no declaration": ("flow", lambda e, id_: e.declare_flow("f")),  # type: ignore[arg-type]
    "declare_flow, no stages": ("stages", lambda e, id_: e.declare_flow(FlowDeclaration(name="f", stages=[]))),
    "declare_flow, name": ("name", lambda e, id_: e.declare_flow(FlowDeclaration(name=NUL, stages=[A_STAGE]))),
    "declare_flow, worker": ("worker", lambda e, id_: e.declare_flow(A_FLOW, worker="")),
    "declare_flow, namespace": ("namespace", lambda e, id_: e.declare_flow(A_FLOW, namespace=NUL)),
    "declared_flow, name": ("name", lambda e, id_: e.declared_flow(NUL)),
    "declared_flow, namespace": ("namespace", lambda e, id_: e.declared_flow("f", namespace=NUL)),
    "declared_flows, limit": ("limit", lambda e, id_: e.declared_flows(limit=10_001)),
    "forget_flow, name": ("name", lambda e, id_: e.forget_flow("")),
    "forget_flow, namespace": ("namespace", lambda e, id_: e.forget_flow("f", namespace=NUL)),
    "kinds, namespace": ("namespace", lambda e, id_: e.kinds(namespace=NUL)),
    "kinds, limit": ("limit", lambda e, id_: e.kinds(limit=10_001)),
    "retried, ids": ("ids", lambda e, id_: e.retried(["x"])),
    "retried, namespace": ("namespace", lambda e, id_: e.retried([id_], namespace=NUL)),
    "workers, namespace": ("namespace", lambda e, id_: e.workers(namespace=NUL)),
    "workers, limit": ("limit", lambda e, id_: e.workers(limit=10_001)),
    "open_breaker, kind": ("kind", lambda e, id_: e.open_breaker(NUL, for_s=1)),
    "open_breaker, for_s": ("for_s", lambda e, id_: e.open_breaker("mail", for_s=0)),
    "open_breaker, endless": ("for_s", lambda e, id_: e.open_breaker("mail", for_s=float("inf"))),
    "open_breaker, by": ("by", lambda e, id_: e.open_breaker("mail", for_s=1, by="")),
    "open_breaker, why": ("why", lambda e, id_: e.open_breaker("mail", for_s=1, why=LONG)),
    "open_breaker, namespace": ("namespace", lambda e, id_: e.open_breaker("mail", for_s=1, namespace=NUL)),
    "close_breaker, kind": ("kind", lambda e, id_: e.close_breaker("")),
    "close_breaker, namespace": ("namespace", lambda e, id_: e.close_breaker("mail", namespace=NUL)),
    "breakers, namespace": ("namespace", lambda e, id_: e.breakers(namespace=NUL)),
    "breakers, limit": ("limit", lambda e, id_: e.breakers(limit=-1)),
    "run, commands": ("commands", lambda e, id_: e.run(c.Submit(kind="mail"))),  # type: ignore[arg-type]
}


@each_case("step", STEPS)
def test_what_is_no_command_refuses_by_the_name_of_the_field(engine: Engine, step: str) -> None:
    made = in_state(engine, "queued")
    before = written(engine)
    field, call = STEPS[step]
    with pytest.raises(InvalidInput) as refused:
        call(engine, made.id)
    assert refused.value.field == field
    assert written(engine) == before


def test_json_that_is_too_deep_is_refused_before_it_is_written(engine: Engine) -> None:
    for key in (None, "once"):
        with pytest.raises(InvalidInput) as refused:
            engine.submit("mail", RawJson(b"[" * 300 + b"]" * 300), idempotency_key=key)
        assert refused.value.field == "payload"


def test_the_detail_of_a_failure_may_be_text_that_is_already_json(engine: Engine) -> None:
    made = in_state(engine, "running")
    engine.fail(**made.ticket, message="no", detail=RawJson(b'{"a": 1}'), retryable=False)
    error = engine.task(made.id).error
    assert error is not None
    assert error["detail"] == {"a": 1}


@dataclasses.dataclass
class Measured:
    value: float


def test_a_dataclass_with_a_nan_in_it_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="NaN"):
        engine.submit("mail", {"m": [Measured(NAN)]})
