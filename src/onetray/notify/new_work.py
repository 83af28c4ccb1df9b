"""How many tasks a commit has made claimable, by queue.

Owns how that is counted in a transaction, and the message to other processes. It is a hint: another claimer may have
taken the tasks meanwhile, and waiters poll without it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
R = TypeVar("R", bound=Hashable)

Queue = tuple[str, str]
"""A namespace, and the name of a queue in it."""

MAX_QUEUES = 100
"""A message names so many queues at most. Above that it says "anywhere"."""
ANYWHERE = "*"


class NewWork(Generic[Q]):
    """New work by queue. A store knows queues by their keys, the rest of the program by their names."""

    __slots__ = ("anywhere", "counted", "uncounted")

    def __init__(self, counted: Mapping[Q, int] | None = None, uncounted: Iterable[Q] = (), anywhere: bool = False):
        self.counted: dict[Q, int] = dict(counted or {})
        """Queues, and how many of their tasks became claimable."""
        self.uncounted: set[Q] = set(uncounted)
        """Queues with an unknown number of claimable tasks: a queue that was resumed, for example."""
        self.anywhere = anywhere
        """Whether there may be work in any queue."""

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.counted or self.uncounted)

    def count(self, queue: Q | list[Q], many: int) -> None:
        """Add tasks: all in one queue, or one in each queue of a list."""
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
        """A copy with the queues renamed."""
        counted = {name(queue): many for queue, many in self.counted.items()}
        return NewWork(counted, map(name, self.uncounted), self.anywhere)

    @property
    def queues(self) -> set[Q]:
        return self.counted.keys() | self.uncounted


def everywhere() -> NewWork[Any]:
    """An unknown amount of work in any queue."""
    return NewWork(anywhere=True)


def count_statement(work: NewWork[int], name: str, given: Mapping[str, Any]) -> None:
    """Count what a statement makes claimable."""
    if name in ("insert_ready", "promote_ready"):
        work.count(given["queue"], len(given["key"]))
    elif name == "pause_queue":
        if given["at"] is None:
            work.uncounted.add(given["key"])
    elif name == "close_breakers":
        # A breaker belongs to a kind, whose tasks may be in any queue.
        work.anywhere = True


def format_new_work(work: NewWork[int], sender: str) -> str:
    """The message to other processes: the sender, then queues by key, `3=2,8=?`; `*` for any, nothing for none."""
    if work.anywhere or len(work.queues) > MAX_QUEUES:
        return f"{sender} {ANYWHERE}"
    parts = [f"{queue}={'?' if queue in work.uncounted else work.counted[queue]}" for queue in sorted(work.queues)]
    return f"{sender} {','.join(parts)}"


def parse_new_work(text: str, sender: str) -> NewWork[int] | None:
    """Read a message; None if this process has sent it. A malformed message stands for work anywhere."""
    by, _, queues = text.partition(" ")
    if by == sender and sender:
        return None
    if not text or text.endswith(" "):
        return NewWork()
    work: NewWork[int] = NewWork()
    try:
        for part in queues.split(","):
            queue, _, many = part.partition("=")
            if many == "?":
                work.uncounted.add(int(queue))
            else:
                work.count(int(queue), int(many))
    except ValueError:
        return everywhere()
    return work
