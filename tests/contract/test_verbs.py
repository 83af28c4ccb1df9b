"""Every verb in every state: what it leads to, or how it is refused. Each cell is a test of its own.

A cell is the task's state after the verb, or the error's code. `EVENTS` says what an accepted verb records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import OnetrayError
from onetray.domain.machine import SYSTEM, USER, WORKER
from onetray.domain.system_commands import (
    DeadLetterIt,
    EndCancel,
    Expire,
    Promote,
    SystemCommand,
    TimeOut,
)
from onetray.domain.verbs import VERBS
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import STATES, UNKNOWN_ID, Made, in_state, take, types, written, written_about

ILLEGAL, NOT_DUE = "illegal_transition", "not_due"
SAME, AGAIN, NOTHING = "same", "again", "nothing"
"""Accepted without a change of state; accepted as a repetition; an empty answer."""

_X, _N, _D = ILLEGAL, NOT_DUE, "dead_lettered"
_0 = NOTHING
# fmt: off
TABLE: dict[str, tuple[str, ...]] = {
    # verb            queued        assigned     running      blocked   waiting_input succeeded failed  cancelled dead
    "start":          (_X,          "running",   AGAIN,       _X,        _X,          _X,       _X,       _X,     _X),
    "beat":           (_X,          SAME,        SAME,        _X,        _X,          _X,       _X,       _X,     _X),
    "succeed":        (_X,          "succeeded", "succeeded", _X,        _X,          AGAIN,    _X,       _X,     _X),
    "fail":           (_X,          "queued",    "queued",    _X,        _X,          _X,       AGAIN,    _X,    AGAIN),
    "fail_for_good":  (_X,          "failed",    "failed",    _X,        _X,          _X,       AGAIN,    _X,    AGAIN),
    "fail_hopeless":  (_X,          _D,          _D,          _X,        _X,          _X,       AGAIN,    _X,    AGAIN),
    "release":        (_X,          "queued",    "queued",    _X,        _X,          _X,       _X,       _X,     _X),
    "block":          (_X,          "blocked",   "blocked",   AGAIN,     _X,          _X,       _X,       _X,     _X),
    "wait_for_input": (_X,     "waiting_input", "waiting_input", _X,     AGAIN,       _X,       _X,       _X,     _X),
    "log":            (_X,          SAME,        SAME,        _X,        _X,          _X,       _X,       _X,     _X),
    "progress":       (_X,          SAME,        SAME,        _X,        _X,          _X,       _X,       _X,     _X),
    "checkpoint":     (_X,          SAME,        SAME,        _X,        _X,          _X,       _X,       _X,     _X),
    "resume":         (_X,          _X,          _X,          "queued",  "queued",    _X,       _X,       _X,     _X),
    "cancel_soft":    ("cancelled", SAME,        SAME,        "cancelled", "cancelled", _X,     _X,       _X,     _X),
    "cancel_hard":    ("cancelled", "cancelled", "cancelled", "cancelled", "cancelled", _X,     _X,       _X,     _X),
    "redrive":        (_X,          _X,          _X,          _X,        _X,          SAME,     SAME,     SAME,   SAME),
    "set_priority":   (SAME,        SAME,        SAME,        SAME,      SAME,        _X,       _X,       _X,     _X),
    "set_metadata":   (SAME,        SAME,        SAME,        SAME,      SAME,        SAME,     SAME,     SAME,   SAME),
    "reschedule":     (SAME,        _X,          _X,          _X,        _X,          _X,       _X,       _X,     _X),
    "expire":         (_X,          _N,          _N,          _X,        _X,          _X,       _X,       _X,     _X),
    "expire_late":    (_X,          "queued",    "queued",    _X,        _X,          _X,       _X,       _X,     _X),
    "deadline":       ("failed",    "failed",    "failed",    "failed",  "failed",    _X,       _X,       _X,     _X),
    "queue_ttl":      ("failed",    _N,          _N,          _N,        _N,          _X,       _X,       _X,     _X),
    "timeout":        (_N,          _N,          "queued",    _N,        _N,          _X,       _X,       _X,     _X),
    "promote":        (SAME,        _N,          _N,          _N,        _N,          _N,       _N,       _N,     _N),
    "end_cancel":     (_N,          _N,          _N,          _N,        _N,          _N,       _N,       _N,     _N),
    "dead_letter":    (_D,          _D,          _D,          _X,        _X,          _X,       _X,       _X,     _X),
    "claim":          ("assigned",  _0,          _0,          _0,        _0,          _0,       _0,       _0,     _0),
}
EVENTS: dict[str, dict[str, list[str]]] = {
    "start": {"assigned": ["started"]},
    "succeed": {"assigned": ["started", "succeeded"], "running": ["succeeded"]},
    "fail": {"assigned": ["started", "retried"], "running": ["retried"]},
    "fail_for_good": {"assigned": ["started", "failed"], "running": ["failed"]},
    "fail_hopeless": {"assigned": ["started", "dead_lettered"], "running": ["dead_lettered"]},
    "release": {"*": ["released"]},
    "block": {"*": ["blocked"]},
    "wait_for_input": {"*": ["waiting_input"]},
    "resume": {"*": ["resumed"]},
    "cancel_soft": {"assigned": ["cancel_requested"], "running": ["cancel_requested"], "*": ["cancelled"]},
    "cancel_hard": {"*": ["cancelled"]},
    "set_priority": {"*": ["priority_set"]},
    "set_metadata": {"*": ["metadata_set"]},
    "reschedule": {"*": ["rescheduled"]},
    "expire_late": {"*": ["lease_expired"]},
    "deadline": {"assigned": ["lease_expired", "timed_out"], "running": ["failed"], "*": ["timed_out"]},
    "queue_ttl": {"*": ["timed_out"]},
    "timeout": {"*": ["retried"]},
    "dead_letter": {"*": ["dead_lettered"]},
    "claim": {"*": ["claimed"]},
}
# fmt: on
NOTES = {"cancel_requested", "metadata_set", "priority_set", "rescheduled"}

ALLOWED: dict[str, dict[str, list[str]]] = {
    WORKER: {
        "queued": ["claim"],
        "assigned": ["start", "succeed", "fail", "release", "block", "wait_for_input"],
        "running": ["succeed", "fail", "release", "block", "wait_for_input"],
    },
    USER: {
        "queued": ["cancel"],
        "assigned": ["cancel"],
        "running": ["cancel"],
        "blocked": ["resume", "cancel"],
        "waiting_input": ["resume", "cancel"],
        **{state: ["retry", "redrive"] for state in ("succeeded", "failed", "cancelled", "dead_lettered")},
    },
    SYSTEM: {
        "queued": ["cancel", "time_out", "dead_letter", "carry_over", "carry_over_failed", "carry_over_dead"],
        "assigned": ["fail", "retry", "expire", "cancel", "dead_letter"],
        "running": ["fail", "retry", "expire", "cancel", "dead_letter"],
        "blocked": ["resume", "cancel", "time_out"],
        "waiting_input": ["resume", "cancel", "time_out"],
    },
}

REPORTS: dict[str, Callable[[dict[str, Any]], c.Command]] = {
    "start": lambda t: c.Start(**t),
    "beat": lambda t: c.Beat(**t),
    "succeed": lambda t: c.Succeed(result=1, **t),
    "fail": lambda t: c.Fail(message="no", **t),
    "fail_for_good": lambda t: c.Fail(message="no", retryable=False, **t),
    "fail_hopeless": lambda t: c.Fail(message="no", reason_code="parse_error", **t),
    "release": lambda t: c.Release(**t),
    "block": lambda t: c.Pause(state="blocked", owner="ann", reason="why", **t),
    "wait_for_input": lambda t: c.Pause(state="waiting_input", owner="ann", reason="why", **t),
    "log": lambda t: c.Log(lines=("a line",), **t),
    "progress": lambda t: c.Progress(done=1, **t),
    "checkpoint": lambda t: c.Checkpoint(body=1, **t),
}
CONTROLS: dict[str, Callable[[str], c.Command]] = {
    "resume": lambda task: c.Resume(task),
    "cancel_soft": lambda task: c.Cancel(task),
    "cancel_hard": lambda task: c.Cancel(task, hard=True),
    "redrive": lambda task: c.Redrive(task),
    "set_priority": lambda task: c.SetPriority(task, priority=7),
    "set_metadata": lambda task: c.SetMetadata(task, metadata={"m": 1}),
    "reschedule": lambda task: c.Reschedule(task, delay_s=5),
}
SYSTEMS: dict[str, Callable[[str], c.Command]] = {
    "expire": lambda task: Expire(task),
    "expire_late": lambda task: Expire(task),
    "deadline": lambda task: TimeOut(task, limit="deadline"),
    "queue_ttl": lambda task: TimeOut(task, limit="queue_ttl"),
    "timeout": lambda task: TimeOut(task, limit="timeout"),
    "promote": lambda task: Promote(task),
    "end_cancel": lambda task: EndCancel(task),
    "dead_letter": lambda task: DeadLetterIt(task, reason_code="policy_violation"),
}


def command(verb: str, made: Made) -> c.Command:
    if verb in REPORTS:
        return REPORTS[verb](made.ticket)
    if verb == "claim":
        return c.Claim(worker="w", queue=made.queue)
    return CONTROLS[verb](made.id) if verb in CONTROLS else SYSTEMS[verb](made.id)


def actor(verb: str) -> str:
    return WORKER if verb in REPORTS else USER if verb in CONTROLS else SYSTEM


def test_the_table_has_every_verb_of_the_engine() -> None:
    made = Made(UNKNOWN_ID, {"task": UNKNOWN_ID}, "default")
    assert {command(verb, made).verb for verb in TABLE} == {
        v for v, kind in VERBS.items() if issubclass(kind, c.TaskCommand | c.Claim)
    }
    assert all(len(cells) == len(STATES) for cells in TABLE.values())


CELLS = [(verb, state, cell) for verb, cells in TABLE.items() for state, cell in zip(STATES, cells, strict=True)]


@each_case(("verb", "state", "cell"), CELLS, ids=[f"{v}-in-{s}" for v, s, _ in CELLS])
def test_a_verb_in_a_state(shared_engine: Engine, verb: str, state: str, cell: str) -> None:
    engine, clock = shared_engine, shared_engine.store.clock
    assert isinstance(clock, VirtualClock)
    made = in_state(engine, state, queue=f"{verb} in {state}")
    if verb == "expire_late":
        clock.advance(61)
    before, task, log = written_about(engine, made.id), engine.task(made.id), types(engine, made.id)
    verdict = engine.run([command(verb, made)])[0]
    if cell in (ILLEGAL, NOT_DUE):
        must_be_refused(verdict.error, cell, verb, state)
        assert written_about(engine, made.id) == before
        return
    value = verdict.unwrap()
    if cell in (AGAIN, NOTHING):
        assert value == [] if cell == NOTHING else value.repeated
        assert written_about(engine, made.id) == before
        return
    after = engine.task(made.id)
    by_state = EVENTS.get(verb, {})
    expected = by_state.get(state, by_state.get("*", []))
    assert after.state == (state if cell == SAME else cell)
    assert types(engine, made.id) == log + expected
    assert after.version == task.version + sum(e not in NOTES for e in expected)
    assert after.fence == task.fence + (after.state == "queued" and cell != SAME) + (
        verb == "deadline" and state == "assigned"
    )
    if hasattr(value, "actions") and verb != "redrive":
        assert (value.state, value.fence, value.version) == (after.state, after.fence, after.version)


def must_be_refused(error: OnetrayError | None, code: str, verb: str, state: str) -> None:
    assert error is not None
    assert error.code == code
    if code == ILLEGAL:
        said = error.as_dict()
        names = {"fail_for_good": "fail", "fail_hopeless": "fail", "block": "pause", "wait_for_input": "pause",
            "cancel_soft": "cancel", "cancel_hard": "cancel", "expire_late": "expire", "deadline": "time_out",
            "queue_ttl": "time_out", "timeout": "time_out"}  # fmt: skip
        assert said["from"] == state
        assert said["attempted"] == names.get(verb, verb)
        assert said["allowed"] == ALLOWED[actor(verb)].get(state, [])


WRONG = {
    "older-fence": "lease_lost",
    "newer-fence": "lease_lost",
    "wrong-worker": "lease_lost",
    "expired-lease": "lease_lost",
    "wrong-namespace": "not_found",
    "unknown-id": "not_found",
    "unknown-key": "not_found",
}


@each_case("state", ["assigned", "running"])
@each_case("wrong", WRONG)
def test_a_report_by_somebody_else_changes_nothing(engine: Engine, clock: VirtualClock, state: str, wrong: str) -> None:
    ticket = dict(in_state(engine, state).ticket)
    match wrong:
        case "older-fence":
            clock.advance(61)
            engine.expire_leases()
            clock.advance(61)
            engine.sweep()
            take(engine, worker="w")
        case "newer-fence":
            ticket["fence"] = 2
        case "wrong-worker":
            ticket["worker"] = "another"
        case "expired-lease":
            clock.advance(60.000001)
        case "wrong-namespace":
            ticket["namespace"] = "elsewhere"
        case "unknown-id":
            ticket["task"] = UNKNOWN_ID
        case "unknown-key":
            ticket["task"] = 999_999
    before = written(engine)
    for verb, report in REPORTS.items():
        assert refusal(engine, report(ticket)) == WRONG[wrong], verb
    assert written(engine) == before


@each_case("verb", REPORTS)
def test_a_report_without_fence_and_worker_means_the_current_attempt(engine: Engine, verb: str) -> None:
    made = in_state(engine, "assigned")
    assert engine.run([REPORTS[verb]({"task": made.id})])[0].ok


@each_case("wrong", ["namespace", "id"])
def test_a_command_about_an_unknown_task_changes_nothing(engine: Engine, wrong: str) -> None:
    made = in_state(engine, "queued")
    before = written(engine)
    for verb in (*CONTROLS, *SYSTEMS):
        order = command(verb, made)
        assert isinstance(order, c.TaskCommand)
        if wrong == "namespace":
            order.namespace = "elsewhere"
        else:
            order.task = UNKNOWN_ID
        assert refusal(engine, order) == "not_found", verb
    assert written(engine) == before


def refusal(engine: Engine, order: c.Command) -> str | None:
    error = engine.run([order])[0].error
    return error and error.code


def test_a_system_command_for_an_earlier_attempt_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    in_state(engine, "assigned")
    clock.advance(61)
    engine.expire_leases()
    again = take(engine)
    engine.start(again)
    clock.advance(61)
    before = written(engine)
    for verb, make in SYSTEMS.items():
        order = make(again.id)
        assert isinstance(order, SystemCommand)
        order.fence = 1
        assert refusal(engine, order) == NOT_DUE, verb
    assert written(engine) == before
