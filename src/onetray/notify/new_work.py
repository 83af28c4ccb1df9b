"""What there may be to claim after a commit: so many tasks, in these queues.

Owns how that is counted in a transaction and written for other processes. It is a hint: a queue may hold less by the
time somebody looks, and whoever waits looks from time to time without one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
R = TypeVar("R", bound=Hashable)

Queue = tuple[str, str]
"""A namespace, and the name of a queue in it."""

MOST_QUEUES = 100
"""More queues than these are not named to other processes: they look everywhere instead."""
ANYWHERE = "*"


class NewWork(Generic[Q]):
    """New work by queue. Queues are numbers in a store, and names outside of it."""

    __slots__ = ("anywhere", "counted", "uncounted")

    def __init__(self, counted: Mapping[Q, int] | None = None, uncounted: Iterable[Q] = (), anywhere: bool = False):
        self.counted: dict[Q, int] = dict(counted or {})
        """Queues, and how many of their tasks became claimable."""
        self.uncounted: set[Q] = set(uncounted)
        """Queues of which nobody knows how many: one that was resumed, for example."""
        self.anywhere = anywhere
        """Whether it may be in any queue."""

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.counted or self.uncounted)

    def count(self, queue: Q | list[Q], many: int) -> None:
        """Add tasks: all in one queue, or each in its own."""
        if isinstance(queue, list):
            for one in queue:
                self.counted[one] = self.counted.get(one, 0) + 1
        elif many:
            self.counted[queue] = self.counted.get(queue, 0) + many

    def add(self, other: NewWork[Q]) -> None:
        for queue, many in other.counted.items():
            self.count(queue, many)
        self.uncounted |= other.uncounted
        self.anywhere |= other.anywhere

    def clear(self) -> None:
        self.counted.clear()
        self.uncounted.clear()
        self.anywhere = False

    def named(self, name: Callable[[Q], R]) -> NewWork[R]:
        """The same with other names for the queues."""
        counted = {name(queue): many for queue, many in self.counted.items()}
        return NewWork(counted, map(name, self.uncounted), self.anywhere)

    @property
    def queues(self) -> set[Q]:
        return self.counted.keys() | self.uncounted


def everywhere() -> NewWork[Any]:
    """Nobody knows what was written, and where."""
    return NewWork(anywhere=True)


def count_statement(work: NewWork[int], name: str, given: Mapping[str, Any]) -> None:
    """Note what a statement makes claimable."""
    if name in ("insert_ready", "promote_ready"):
        work.count(given["queue"], len(given["key"]))
    elif name == "pause_queue":
        if given["at"] is None:
            work.uncounted.add(given["key"])
    elif name == "close_breakers":
        # A breaker is one of a kind, whose tasks may be in any queue.
        work.anywhere = True


def format_new_work(work: NewWork[int], sender: str) -> str:
    """For other processes: who sends it, and the queues by their numbers, `3=2,8=?`; `*` for any, nothing for none."""
    if work.anywhere or len(work.queues) > MOST_QUEUES:
        return f"{sender} {ANYWHERE}"
    parts = [f"{queue}={'?' if queue in work.uncounted else work.counted[queue]}" for queue in sorted(work.queues)]
    return f"{sender} {','.join(parts)}"


def parse_new_work(text: str, sender: str) -> NewWork[int] | None:
    """What another process has written; None for what this one has. What cannot be understood may be anything."""
    by, _, said = text.partition(" ")
    if by == sender and sender:
        return None
    if not text or text.endswith(" "):
        return NewWork()
    work: NewWork[int] = NewWork()
    try:
        for part in said.split(","):
            queue, _, many = part.partition("=")
            if many == "?":
                work.uncounted.add(int(queue))
            else:
                work.count(int(queue), int(many))
    except ValueError:
        return everywhere()
    return work
