"""State machines: states, transitions, and the checks that every lifecycle must pass when it loads.

Knows no state by name: see domain/lifecycle.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

USER, WORKER, SYSTEM = "user", "worker", "system"
ACTORS = (USER, WORKER, SYSTEM)


class BadLifecycle(Exception):
    """A transition table is inconsistent. The message says how."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One declared change of state."""

    name: str
    sources: tuple[str, ...]
    target: str
    by: frozenset[str]
    event: str
    fenced: bool = False
    reopens: bool = False
    """Returns the entity to its first state, and so increments the fence."""
    implies: str | None = None
    """A transition to record first, in the same transaction, if the entity has not made it yet."""

    @property
    def creates(self) -> bool:
        return not self.sources

    @property
    def entity(self) -> str:
        """The entity type: the prefix of the event's name."""
        return self.event.partition(".")[0]


@dataclass(frozen=True, slots=True)
class WayOut:
    """What ends an open state: a lease, a deadline, or a named owner."""

    means: str
    note: str


@dataclass(frozen=True)
class Machine:
    """A lifecycle: its states with their ranks, its transitions, and each open state's way out."""

    entity: str
    ranks: Mapping[str, int]
    terminal: frozenset[str]
    ways_out: Mapping[str, WayOut]
    transitions: tuple[Transition, ...]
    fenced: bool = True
    """Whether the entity has a fence. One without a fence may return to a lower rank."""

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def by_name(self) -> Mapping[str, Transition]:
        return MappingProxyType({t.name: t for t in self.transitions})

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.ranks)

    @property
    def open_states(self) -> tuple[str, ...]:
        return tuple(s for s in self.ranks if s not in self.terminal)

    @cached_property
    def pairs(self) -> frozenset[tuple[str | None, str]]:
        """Every (from, to) that an event may record; from is None for a creation."""
        created = {(None, t.target) for t in self.transitions if t.creates}
        return frozenset(created | {(s, t.target) for t in self.transitions for s in t.sources})

    def __getattr__(self, name: str) -> Transition:
        if not name.startswith("_"):
            for transition in self.transitions:
                if transition.name == name:
                    return transition
        raise AttributeError(f"the {self.entity} lifecycle has no transition {name!r}")

    def actions(self, state: str, actor: str = USER) -> tuple[str, ...]:
        """The names of the transitions that this actor may make from this state."""
        return self._actions.get((state, actor), ())

    def path(self, transition: Transition, state: str) -> tuple[Transition, ...]:
        """The transitions to record, implied ones first; empty if the transition is not possible from this state."""
        return self._paths.get((transition.name, state), ())

    # Tables, not cached functions: the hash of all transitions would cost more than the answer.

    @cached_property
    def _actions(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        return {
            (state, actor): tuple(t.name for t in self.transitions if actor in t.by and self.path(t, state))
            for state in self.ranks
            for actor in ACTORS
        }

    @cached_property
    def _paths(self) -> Mapping[tuple[str, str], tuple[Transition, ...]]:
        return {(last.name, state): self._path(last, state) for last in self.transitions for state in self.ranks}

    def _path(self, last: Transition, state: str) -> tuple[Transition, ...]:
        if state in last.sources:
            return (last,)
        for first in self.transitions:
            if first.name == last.implies and state in first.sources:
                return (first, last)
        return ()


def check(machine: Machine) -> None:
    """Raise BadLifecycle if a name is unknown, a state cannot be reached, or an open state cannot be left."""
    for fault in faults(machine):
        raise BadLifecycle(f"{machine.entity}: {fault}")


def faults(machine: Machine) -> Iterable[str]:
    yield from _bad_names(machine)
    yield from _unreachable(machine)
    yield from _immortal(machine)
    yield from _backward(machine)


def _bad_names(machine: Machine) -> Iterable[str]:
    names = [t.name for t in machine.transitions]
    yield from (f"two transitions are called {n!r}" for n in set(names) if names.count(n) > 1)
    for t in machine.transitions:
        for state in (*t.sources, t.target):
            if state not in machine.ranks:
                yield f"{t.name!r} names the unknown state {state!r}"
        if t.implies is not None and t.implies not in names:
            yield f"{t.name!r} implies the unknown transition {t.implies!r}"
        if t.entity != machine.entity:
            yield f"the event of {t.name!r} must be named {machine.entity}.…, not {t.event!r}"
        if (t.fenced or t.reopens) and not machine.fenced:
            yield f"{t.name!r} needs a fence, and a {machine.entity} has none"
        if not t.by or not t.by <= set(ACTORS):
            yield f"{t.name!r} must declare its actors, out of {', '.join(ACTORS)}"
    for state in set(machine.terminal) | set(machine.ways_out):
        if state not in machine.ranks:
            yield f"the unknown state {state!r} is declared"


def _unreachable(machine: Machine) -> Iterable[str]:
    reached = {t.target for t in machine.transitions if t.creates}
    if not reached:
        yield "nothing creates an entity"
    has_grown = True
    while has_grown:
        targets = {t.target for t in machine.transitions if reached & set(t.sources)}
        has_grown = not targets <= reached
        reached |= targets
    yield from (f"no transition reaches {s!r}" for s in machine.ranks if s not in reached)


def _immortal(machine: Machine) -> Iterable[str]:
    left = {s for t in machine.transitions for s in t.sources}
    for state in machine.ranks:
        if state in machine.terminal:
            if state in left:
                yield f"{state!r} is terminal but a transition leaves it"
            if state in machine.ways_out:
                yield f"{state!r} is terminal but declares a way out"
        else:
            if state not in left:
                yield f"no transition leaves the open state {state!r}"
            if state not in machine.ways_out:
                yield f"the open state {state!r} declares no way out"


def _backward(machine: Machine) -> Iterable[str]:
    """(fence, rank) never decreases: only a transition that reopens may go to a lower rank."""
    for t in machine.transitions if machine.fenced else ():
        for source in t.sources:
            if not t.reopens and machine.ranks[t.target] <= machine.ranks[source]:
                yield f"{t.name!r} moves back from {source!r} to {t.target!r} without raising the fence"
