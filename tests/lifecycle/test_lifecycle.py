"""The task's lifecycle: every state and every move that the specification names, and no other."""

from __future__ import annotations

from onetray.domain.lifecycle import FLOW, HELD, MACHINES, OPEN, PAUSED, STAGE, TASK
from onetray.domain.machine import SYSTEM, USER, WORKER
from tests.support.cases import each_case

SPECIFIED_STATES = ("queued", "assigned", "running", "succeeded", "failed", "cancelled", "dead_lettered")
SPECIFIED = {
    "claim": [("queued", "assigned")],
    "start": [("assigned", "running")],
    "succeed": [("running", "succeeded")],
    "fail": [("assigned", "failed"), ("running", "failed")],
    "cancel": [("queued", "cancelled"), ("assigned", "cancelled"), ("running", "cancelled")],
    "dead_letter": [
        ("queued", "dead_lettered"),
        ("assigned", "dead_lettered"),
        ("running", "dead_lettered"),
    ],
    # Ownership is lost: "the job returns to queued".
    "expire": [("assigned", "queued"), ("running", "queued")],
    "retry": [("running", "queued")],
}
ADDED = {
    "release": [("assigned", "queued"), ("running", "queued")],
    "block": [("assigned", "blocked"), ("running", "blocked")],
    "wait_for_input": [("assigned", "waiting_input"), ("running", "waiting_input")],
    "resume": [("blocked", "queued"), ("waiting_input", "queued")],
    "cancel": [("blocked", "cancelled"), ("waiting_input", "cancelled")],
    "time_out": [("queued", "failed"), ("blocked", "failed"), ("waiting_input", "failed")],
    "carry_over": [("queued", "succeeded")],
    "carry_over_failed": [("queued", "failed")],
    "carry_over_dead": [("queued", "dead_lettered")],
}
PAIRS = [(name, *pair) for table in (SPECIFIED, ADDED) for name, pairs in table.items() for pair in pairs]


@each_case("state", [*SPECIFIED_STATES, "blocked", "waiting_input"])
def test_the_table_has_the_state(state: str) -> None:
    assert state in TASK.states


def test_the_table_has_no_other_state() -> None:
    assert set(TASK.states) == {*SPECIFIED_STATES, "blocked", "waiting_input"}


@each_case(("name", "source", "target"), PAIRS, ids=[f"{n}-{s}-{t}" for n, s, t in PAIRS])
def test_the_table_has_the_transition(name: str, source: str, target: str) -> None:
    transition = TASK.by_name[name]
    assert source in transition.sources
    assert transition.target == target


def test_the_table_has_no_other_transition() -> None:
    declared = {(t.name, s, t.target) for t in TASK.transitions for s in t.sources}
    assert declared == set(PAIRS)
    assert [t.name for t in TASK.transitions if t.creates] == ["submit"]


def test_events_record_exactly_the_declared_pairs() -> None:
    assert TASK.pairs == {(s, t) for _, s, t in PAIRS} | {(None, "queued")}


def test_terminal_states_absorb() -> None:
    assert TASK.terminal == {"succeeded", "failed", "cancelled", "dead_lettered"}
    assert all(not set(t.sources) & TASK.terminal for t in TASK.transitions)


def test_no_transition_goes_back_but_into_the_queue_with_a_new_fence() -> None:
    back = [t for t in TASK.transitions if any(TASK.ranks[t.target] <= TASK.ranks[s] for s in t.sources)]
    assert {t.name for t in back} == {"retry", "release", "expire", "resume"}
    assert all(t.reopens and t.target == "queued" for t in back)


def test_what_a_holder_says_is_fenced() -> None:
    fenced = {"start", "succeed", "fail", "retry", "release", "expire", "block", "wait_for_input"}
    assert {t.name for t in TASK.transitions if t.fenced} == fenced


def test_the_groups_of_states_are_those_of_the_table() -> None:
    assert TASK.open_states == OPEN
    assert HELD == ("assigned", "running")
    assert PAUSED == ("blocked", "waiting_input")
    assert MACHINES == {"task": TASK, "stage": STAGE, "flow": FLOW}


def test_every_open_state_says_what_ends_it() -> None:
    means = {state: way.means for state, way in TASK.ways_out.items()}
    assert means == {
        "queued": "deadline",
        "assigned": "lease",
        "running": "lease",
        "blocked": "owner",
        "waiting_input": "owner",
    }


MAKERS = {
    "submit": {USER, WORKER, SYSTEM},
    "claim": {WORKER},
    "start": {WORKER},
    "succeed": {WORKER},
    "fail": {WORKER, SYSTEM},
    "retry": {SYSTEM},
    "release": {WORKER},
    "expire": {SYSTEM},
    "block": {WORKER},
    "wait_for_input": {WORKER},
    "resume": {USER, SYSTEM},
    "cancel": {USER, SYSTEM},
    "time_out": {SYSTEM},
    "dead_letter": {SYSTEM},
    "carry_over": {SYSTEM},
    "carry_over_failed": {SYSTEM},
    "carry_over_dead": {SYSTEM},
}


@each_case("name", MAKERS)
def test_who_may_make_a_transition(name: str) -> None:
    assert TASK.by_name[name].by == MAKERS[name]


EVENTS = {
    "submit": "task.submitted",
    "claim": "task.claimed",
    "start": "task.started",
    "succeed": "task.succeeded",
    "fail": "task.failed",
    "retry": "task.retried",
    "release": "task.released",
    "expire": "task.lease_expired",
    "block": "task.blocked",
    "wait_for_input": "task.waiting_input",
    "resume": "task.resumed",
    "cancel": "task.cancelled",
    "time_out": "task.timed_out",
    "dead_letter": "task.dead_lettered",
    "carry_over": "task.carried_over",
    "carry_over_failed": "task.carried_over_failed",
    "carry_over_dead": "task.carried_over_dead",
}


def test_each_transition_has_its_own_event() -> None:
    assert {t.name: t.event for t in TASK.transitions} == EVENTS


ACTIONS = {
    ("queued", USER): ("cancel",),
    ("queued", WORKER): ("claim",),
    ("queued", SYSTEM): (
        "cancel",
        "time_out",
        "dead_letter",
        "carry_over",
        "carry_over_failed",
        "carry_over_dead",
    ),
    ("assigned", USER): ("cancel",),
    ("assigned", WORKER): ("start", "succeed", "fail", "release", "block", "wait_for_input"),
    ("assigned", SYSTEM): ("fail", "retry", "expire", "cancel", "dead_letter"),
    ("running", USER): ("cancel",),
    ("running", WORKER): ("succeed", "fail", "release", "block", "wait_for_input"),
    ("running", SYSTEM): ("fail", "retry", "expire", "cancel", "dead_letter"),
    ("blocked", USER): ("resume", "cancel"),
    ("blocked", WORKER): (),
    ("blocked", SYSTEM): ("resume", "cancel", "time_out"),
    ("waiting_input", USER): ("resume", "cancel"),
    ("waiting_input", WORKER): (),
    ("waiting_input", SYSTEM): ("resume", "cancel", "time_out"),
    **{(state, actor): () for state in TASK.terminal for actor in (USER, WORKER, SYSTEM)},
}


@each_case(("state", "actor"), sorted(ACTIONS))
def test_the_actions_in_a_state(state: str, actor: str) -> None:
    assert TASK.actions(state, actor) == ACTIONS[state, actor]
