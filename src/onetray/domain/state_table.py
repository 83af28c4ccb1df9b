"""The states of another system beside ours, as data: what a dialect maps, and what is tested and documented of it.

Owns the comparison of two lifecycles. The dialect's own code uses the same map of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from onetray.domain.lifecycle import MACHINES

Pair = tuple[str | None, str]
"""Two states of one transition. The first one is None for a creation."""


def has_started(value: Any) -> bool:
    """Whether a task, stage or flow was ever started."""
    return value.started_at is not None


@dataclass(frozen=True)
class StateTable:
    """One of our lifecycles as another system shows it."""

    entity: str
    """`task`, `stage` or `flow`."""
    states: Mapping[str, str | tuple[str, str]]
    """For each of our states, the other system's. If there are two, `second_after` says when the second one counts."""
    transitions: tuple[Pair, ...]
    """All transitions that the other system declares."""
    shown_as: str = "job"
    """What the other system calls the entity."""
    second_after: tuple[str, ...] = ()
    """The names of our transitions after which the second state of a pair counts, for ever."""
    departures: Mapping[Pair, str] = field(default_factory=dict)
    """Transitions that clients may see although the other system does not declare them, each with the reason."""
    is_second: Callable[[Any], bool] = has_started
    """Whether the second state of a pair counts for a task, stage or flow."""

    @classmethod
    def read(cls, entity: str, shown_as: str, text: str, **options: Any) -> StateTable:
        """A table from a text. A line of it has states, or transitions, or departures with their reason:

        queued = open; running = open/busy; succeeded, failed = done
        new → open → busy → done
        open, busy → gone: an operator has deleted it
        """
        states: dict[str, str | tuple[str, str]] = {}
        transitions: list[Pair] = []
        departures: dict[Pair, str] = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            chain, _, reason = line.partition(": ")
            if "→" not in line:
                mapped = _read_states(line)
                if twice := states.keys() & mapped.keys():
                    raise ValueError(f"{', '.join(sorted(twice))}: mapped twice")
                states |= mapped
            elif reason:
                departures |= dict.fromkeys(read_transitions(chain), reason)
            else:
                transitions += read_transitions(line)
        return cls(entity, states, tuple(dict.fromkeys(transitions)), shown_as, departures=departures, **options)

    def __iter__(self) -> Iterator[str]:
        """Our states."""
        return iter(self.states)

    def state(self, native: str, second: bool = False) -> str:
        """The other system's state."""
        names = self.states[native]
        return names if isinstance(names, str) else names[second]

    def show(self, value: Any, state: str | None = None) -> str:
        """The other system's state of a task, stage or flow; `state`: as if this was its state."""
        names = self.states[state or value.state]
        return names if isinstance(names, str) else names[self.is_second(value)]

    def of_error(self, error: Any) -> str:
        """The other system's state that a rejected transition would have left; of two, the second one."""
        return self.state(error.facts["from"], second=True)

    def natives(self, shown: str | None) -> list[str]:
        """Our states that may be shown as this one, for a filter. None: no filter."""
        return [native for native in self if shown in (self.state(native), self.state(native, second=True))]

    def steps(self) -> dict[Pair, list[str]]:
        """What clients of the other system may see, and the names of our transitions that cause it.

        A pair of equal states: these clients do not notice the transition.
        """
        found: dict[Pair, list[str]] = {}
        for name, pair in self._walk():
            names = found.setdefault(pair, [])
            if name not in names:
                names.append(name)
        return found

    def _walk(self) -> Iterator[tuple[str, Pair]]:
        """Every transition from every situation that an entity can be in."""
        transitions = MACHINES[self.entity].transitions
        reached: set[tuple[str, bool]] = set()
        waiting = []
        for t in transitions:
            if t.creates:
                yield t.name, (None, self.state(t.target))
                waiting.append((t.target, False))
        while waiting:
            situation = state, second = waiting.pop(0)
            if situation in reached:
                continue
            reached.add(situation)
            for t in transitions:
                if state in t.sources:
                    then = second or t.name in self.second_after
                    yield t.name, (self.state(state, second), self.state(t.target, then))
                    waiting.append((t.target, then))

    def faults(self) -> Iterator[str]:
        """Where the table is incomplete, or shows something that the other system does not declare."""
        states = set(MACHINES[self.entity].states)
        for state in sorted(states ^ set(self.states)):
            yield f"{state}: {'not mapped' if state in states else f'not a state of a {self.entity}'}"
        if states != set(self.states):
            return
        steps = self.steps()
        for pair, names in steps.items():
            if pair[0] != pair[1] and pair not in self.transitions and pair not in self.departures:
                yield f"{pair[0]} → {pair[1]} by {', '.join(names)}: {self.shown_as} has no such transition"
        for pair in self.departures:
            if pair in self.transitions or pair not in steps:
                yield f"{pair[0]} → {pair[1]}: declared, or never seen: it is no departure"

    def markdown(self) -> Iterator[str]:
        """Both lifecycles as two tables."""
        yield f"| {self.entity} | {self.shown_as} |"
        yield "|---|---|"
        after = " or ".join(f"`{name}`" for name in self.second_after)
        for native, names in self.states.items():
            first, second = (names, names) if isinstance(names, str) else names
            yield f"| `{native}` | `{first}`{'' if first == second else f'; `{second}` after {after}'} |"
        yield ""
        yield f"| transition of the {self.shown_as} | transitions of the {self.entity} |"
        yield "|---|---|"
        steps = self.steps()
        unseen = sorted({name for pair, names in steps.items() if pair[0] == pair[1] for name in names})
        for pair in self.transitions:
            yield f"| {_arrow(pair)} | {_names(steps.get(pair, [])) or 'never'} |"
        for pair, reason in self.departures.items():
            yield f"| {_arrow(pair)}, not declared: {reason} | {_names(steps[pair])} |"
        yield f"| none | {_names(unseen)} |"


def read_transitions(*chains: str) -> tuple[Pair, ...]:
    """The transitions in chains such as `new → open → done, dropped`: from each of the states to each of the next."""
    pairs: list[Pair] = []
    for chain in chains:
        for sources, targets in pairwise(chain.split("→")):
            pairs += product((None if name == "new" else name for name in _words(sources)), _words(targets))
    return tuple(pairs)


def _read_states(line: str) -> dict[str, str | tuple[str, str]]:
    states: dict[str, str | tuple[str, str]] = {}
    for part in line.split(";"):
        natives, _, names = part.partition("=")
        first, _, second = names.strip().partition("/")
        states |= dict.fromkeys(_words(natives), (first, second) if second else first)
        if not first:
            raise ValueError(f"{line!r} is neither states, such as queued = open, nor transitions: open → done")
    return states


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _arrow(pair: Pair) -> str:
    return f"{f'`{pair[0]}`' if pair[0] else 'new'} → `{pair[1]}`"


def _names(transitions: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in transitions)
