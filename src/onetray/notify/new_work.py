"""How many tasks a commit has made claimable, by queue, and when its first due row is due.

Owns how a transaction counts them, and the message to other processes. It is a hint: another claimer may have taken the
tasks, and waiters and janitors also poll without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
R = TypeVar("R", bound=Hashable)

Queue = tuple[str, str]
"""A namespace, and the name of a queue in it."""

MAX_QUEUES = 100
"""A message names at most this number of queues. For more, it is `*`."""
ANYWHERE, DUE = "*", "@"
SOON_US = 1_000_000
"""Only rows that are due this soon are worth a wake-up: a janitor looks for later ones in time by itself."""


class NewWork(Generic[Q]):
    """New work by queue. A store identifies queues by their keys, the rest of the program by their names."""

    __slots__ = ("announced", "anywhere", "counted", "due_at", "uncounted")

    def __init__(
        self, counted: Mapping[Q, int] | None = None, uncounted: Iterable[Q] = (), anywhere: bool = False,
        due_at: int | None = None,
    ) -> None:  # fmt: skip
        self.counted: dict[Q, int] = dict(counted or {})
        """Queues, and how many of their tasks became claimable."""
        self.uncounted: set[Q] = set(uncounted)
        """Queues with an unknown number of claimable tasks, such as a resumed queue."""
        self.anywhere = anywhere
        """Whether there may be work in any queue."""
        self.due_at = due_at
        """When a janitor has to handle the first of the new due rows, in the database's time. None: none is soon."""
        self.announced = False
        """Whether other processes were notified of it before the commit."""

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.counted or self.uncounted or self.due_at is not None)

    def count(self, queue: Q | list[Q], number: int) -> None:
        """Add tasks: this number in one queue, or one for each item of a list of queues."""
        if isinstance(queue, list):
            for each in queue:
                self.counted[each] = self.counted.get(each, 0) + 1
        elif number:
            self.counted[queue] = self.counted.get(queue, 0) + number

    def due(self, at: int) -> None:
        """Add a due row."""
        self.due_at = at if self.due_at is None else min(at, self.due_at)

    def add(self, other: NewWork[Q]) -> None:
        for queue, number in other.counted.items():
            self.count(queue, number)
        self.uncounted |= other.uncounted
        self.anywhere |= other.anywhere
        if other.due_at is not None:
            self.due(other.due_at)

    def claimable(self) -> tuple[dict[Q, int], set[Q], bool]:
        """A copy of what it says of claimable tasks."""
        return dict(self.counted), set(self.uncounted), self.anywhere

    def clear(self) -> None:
        """Forget the claimable tasks. Due rows stay."""
        self.counted.clear()
        self.uncounted.clear()
        self.anywhere = False

    def named(self, name: Callable[[Q], R]) -> NewWork[R]:
        """A copy with the queues renamed."""
        counted = {name(queue): number for queue, number in self.counted.items()}
        return NewWork(counted, map(name, self.uncounted), self.anywhere, self.due_at)

    @property
    def queues(self) -> set[Q]:
        return self.counted.keys() | self.uncounted


def everywhere() -> NewWork[Any]:
    """An unknown amount of work in any queue."""
    return NewWork(anywhere=True)


def count_statement(work: NewWork[int], name: str, params: Mapping[str, Any]) -> None:
    """Add the tasks that a statement makes claimable."""
    if name in ("insert_ready", "promote_ready"):
        # Those in lanes, which have minus their lane in place of their queue, are counted when their lanes open.
        queue = params["queue"]
        if isinstance(queue, list):
            work.count([each for each in queue if each > 0], 0)
        elif queue > 0:
            work.count(queue, len(params["key"]))
    elif name == "resume_queue":
        work.uncounted.add(params["key"])
    elif name == "close_breakers":
        # A breaker belongs to a kind, whose tasks may be in any queue.
        work.anywhere = True


def count_due(work: NewWork[int], times: int | list[int], now: int) -> None:
    """Add new due rows, if the first of them is due soon."""
    first = min(times) if isinstance(times, list) else times
    if first < now + SOON_US:
        work.due(first)


def format_new_work(work: NewWork[int], sender: str) -> str:
    """The message to other processes: the sender, then queues by key, `3=2,8=?`; `*` for any, nothing for none.

    The last part is the time of the first due row, `@1700000000000000`. Versions that do not know it search all queues.
    """
    if work.anywhere or len(work.queues) > MAX_QUEUES:
        parts = [ANYWHERE]
    else:
        parts = [f"{queue}={'?' if queue in work.uncounted else work.counted[queue]}" for queue in sorted(work.queues)]
    if work.due_at is not None:
        parts.append(f"{DUE}{work.due_at}")
    return f"{sender} {','.join(parts)}"


def parse_new_work(text: str, sender: str) -> NewWork[int] | None:
    """Parse a message; None if this process has sent it. A malformed message counts as work in any queue."""
    by, _, queues = text.partition(" ")
    if by == sender and sender:
        return None
    if not text or text.endswith(" "):
        return NewWork()
    work: NewWork[int] = NewWork()
    try:
        for part in queues.split(","):
            queue, _, number = part.partition("=")
            if part == ANYWHERE:
                work.anywhere = True
            elif part.startswith(DUE):
                work.due(int(part[1:]))
            elif number == "?":
                work.uncounted.add(int(queue))
            else:
                work.count(int(queue), int(number))
    except ValueError:
        return everywhere()
    return work
