"""How many tasks a commit has made claimable, by queue.

Owns how a transaction counts them, and the message to other processes. It is a hint: another claimer may have taken the
tasks, and waiters also poll without it.
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
ANYWHERE = "*"


class NewWork(Generic[Q]):
    """New work by queue. A store identifies queues by their keys, the rest of the program by their names."""

    __slots__ = ("anywhere", "counted", "uncounted")

    def __init__(self, counted: Mapping[Q, int] | None = None, uncounted: Iterable[Q] = (), anywhere: bool = False):
        self.counted: dict[Q, int] = dict(counted or {})
        """Queues, and how many of their tasks became claimable."""
        self.uncounted: set[Q] = set(uncounted)
        """Queues with an unknown number of claimable tasks, such as a resumed queue."""
        self.anywhere = anywhere
        """Whether there may be work in any queue."""

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.counted or self.uncounted)

    def count(self, queue: Q | list[Q], number: int) -> None:
        """Add tasks: this number in one queue, or one for each item of a list of queues."""
        if isinstance(queue, list):
            for each in queue:
                self.counted[each] = self.counted.get(each, 0) + 1
        elif number:
            self.counted[queue] = self.counted.get(queue, 0) + number

    def add(self, other: NewWork[Q]) -> None:
        for queue, number in other.counted.items():
            self.count(queue, number)
        self.uncounted |= other.uncounted
        self.anywhere |= other.anywhere

    def clear(self) -> None:
        self.counted.clear()
        self.uncounted.clear()
        self.anywhere = False

    def named(self, name: Callable[[Q], R]) -> NewWork[R]:
        """A copy with the queues renamed."""
        counted = {name(queue): number for queue, number in self.counted.items()}
        return NewWork(counted, map(name, self.uncounted), self.anywhere)

    @property
    def queues(self) -> set[Q]:
        return self.counted.keys() | self.uncounted


def everywhere() -> NewWork[Any]:
    """An unknown amount of work in any queue."""
    return NewWork(anywhere=True)


def count_statement(work: NewWork[int], name: str, params: Mapping[str, Any]) -> None:
    """Add the tasks that a statement makes claimable."""
    if name in ("insert_ready", "promote_ready"):
        work.count(params["queue"], len(params["key"]))
    elif name == "resume_queue":
        work.uncounted.add(params["key"])
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
            if number == "?":
                work.uncounted.add(int(queue))
            else:
                work.count(int(queue), int(number))
    except ValueError:
        return everywhere()
    return work
