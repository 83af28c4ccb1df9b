"""What a table of transitions must be to load. Each fault is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onetray.domain.lifecycle import TASK
from onetray.domain.machine import SYSTEM, USER, WORKER, BadLifecycle, Machine, Transition, WayOut
from onetray.store.sql_template import POSTGRES, SQLITE
from onetray.store.statements import every_transition_has_a_statement, statements_for
from tests.support.cases import each_case

BY = frozenset({USER})
MAKE = Transition("make", (), "new", BY, "lamp.made")
LIGHT = Transition("light", ("new",), "lit", BY, "lamp.lit")
BREAK = Transition("break_", ("new", "lit"), "broken", BY, "lamp.broken")
RENEW = Transition("renew", ("lit",), "new", BY, "lamp.renewed", reopens=True)
OWNER = WayOut("owner", "whoever bought it")


def lamp(**changes: Any) -> Machine:
    """A small sound lifecycle, with changes that may make it unsound."""
    parts: dict[str, Any] = {
        "entity": "lamp",
        "ranks": {"new": 0, "lit": 1, "broken": 2},
        "terminal": frozenset({"broken"}),
        "ways_out": {"new": OWNER, "lit": OWNER},
        "transitions": (MAKE, LIGHT, BREAK, RENEW),
    }
    return Machine(**{**parts, **changes})


def with_(*more: Transition) -> tuple[Transition, ...]:
    return (MAKE, LIGHT, BREAK, RENEW, *more)


def test_a_sound_table_loads() -> None:
    assert lamp().states == ("new", "lit", "broken")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unreachable state": (
        {"ranks": {"new": 0, "lit": 1, "dim": 1, "broken": 2}, "ways_out": {"new": OWNER, "lit": OWNER, "dim": OWNER}},
        "no transition reaches 'dim'",
    ),
    "an open state without a declared way out": ({"ways_out": {"new": OWNER}}, "'lit' declares no way out"),
    "an open state that nothing leaves": (
        {"terminal": frozenset(), "ways_out": {"new": OWNER, "lit": OWNER, "broken": OWNER}},
        "no transition leaves the open state 'broken'",
    ),
    "a terminal state with a way out": (
        {"ways_out": {"new": OWNER, "lit": OWNER, "broken": OWNER}},
        "'broken' is terminal but declares a way out",
    ),
    "a terminal state that a transition leaves": (
        {"transitions": with_(Transition("mend", ("broken",), "new", BY, "lamp.mended", reopens=True))},
        "'broken' is terminal but a transition leaves it",
    ),
    "an unknown source": (
        {"transitions": with_(Transition("dim", ("glowing",), "lit", BY, "lamp.dimmed"))},
        "'dim' names the unknown state 'glowing'",
    ),
    "an unknown target": (
        {"transitions": with_(Transition("dim", ("lit",), "glowing", BY, "lamp.dimmed"))},
        "'dim' names the unknown state 'glowing'",
    ),
    "an unknown terminal state": ({"terminal": frozenset({"broken", "gone"})}, "the unknown state 'gone' is declared"),
    "a way out of an unknown state": (
        {"ways_out": {"new": OWNER, "lit": OWNER, "gone": OWNER}},
        "the unknown state 'gone' is declared",
    ),
    "an unknown actor": (
        {"transitions": with_(Transition("dim", ("new",), "lit", frozenset({"cat"}), "lamp.dimmed"))},
        "'dim' must declare its actors",
    ),
    "nobody who may make it": (
        {"transitions": with_(Transition("dim", ("new",), "lit", frozenset(), "lamp.dimmed"))},
        "'dim' must declare its actors",
    ),
    "an unknown implied transition": (
        {"transitions": with_(Transition("dim", ("new",), "lit", BY, "lamp.dimmed", implies="glow"))},
        "'dim' implies the unknown transition 'glow'",
    ),
    "two transitions of one name": ({"transitions": with_(LIGHT)}, "two transitions are called 'light'"),
    "a backward move that does not raise the fence": (
        {"transitions": (MAKE, LIGHT, BREAK, replace(RENEW, reopens=False))},
        "'renew' moves back from 'lit' to 'new' without raising the fence",
    ),
    "a move to the same rank that does not raise the fence": (
        {"transitions": with_(Transition("polish", ("lit",), "lit", BY, "lamp.polished"))},
        "'polish' moves back from 'lit' to 'lit' without raising the fence",
    ),
    "nothing that creates": ({"transitions": (LIGHT, BREAK, RENEW)}, "nothing creates an entity"),
}


@each_case("fault", FAULTS)
def test_a_table_does_not_load_with(fault: str) -> None:
    changes, words = FAULTS[fault]
    with pytest.raises(BadLifecycle, match="lamp: ") as refused:
        lamp(**changes)
    assert words in str(refused.value)


@each_case("missing", [t.name for t in TASK.transitions if not t.creates])
def test_a_transition_without_a_statement_does_not_load(missing: str) -> None:
    moves = {name: move for name, move in statements_for(SQLITE).moves.items() if name != missing}
    with pytest.raises(BadLifecycle, match=f"'{missing}' has no statement"):
        every_transition_has_a_statement(TASK, moves)


@each_case("dialect", [SQLITE, POSTGRES])
def test_every_transition_has_a_statement_on_each_database(dialect: str) -> None:
    every_transition_has_a_statement(TASK, statements_for(dialect).moves)


def test_an_implied_transition_is_a_hop_of_its_own() -> None:
    assert [t.name for t in TASK.path(TASK.succeed, "assigned")] == ["start", "succeed"]
    assert [t.name for t in TASK.path(TASK.succeed, "running")] == ["succeed"]
    assert TASK.path(TASK.succeed, "queued") == ()


def test_an_unknown_transition_has_no_name() -> None:
    with pytest.raises(AttributeError, match="the task lifecycle has no transition 'explode'"):
        _ = TASK.explode


def test_actions_are_those_of_the_actor_who_asks() -> None:
    machine = lamp(transitions=(MAKE, LIGHT, BREAK, replace(RENEW, by=frozenset({SYSTEM, WORKER}))))
    assert machine.actions("lit", USER) == ("break_",)
    assert machine.actions("lit", SYSTEM) == ("renew",)
    assert machine.actions("broken", USER) == ()
