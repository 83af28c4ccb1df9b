"""The rows of limits, of their counters, and of lanes."""

from __future__ import annotations

from typing import NamedTuple


class RuleRow(NamedTuple):
    """A limit."""

    key: int
    ns: int
    queue: int
    """0: of a kind."""
    kind: int
    """0: of a queue."""
    path: str
    """The path of its key; empty without one."""
    what: str
    most: int
    period: int | None
    smooth: int
    declared: str | None
    """The numbers that the code declares, as JSON."""
    set_by: str | None
    set_at: int | None
    counted: int
    """0: the tasks that workers hold already are not counted yet."""
    waits_for: str | None
    lowered_at: int | None


class BucketRow(NamedTuple):
    """A counter of a limit: of one value of its key."""

    key: int
    rule: int
    value: str
    running: int
    starts: str
    next_at: int
    due_at: int | None
    waiters: str
    seen_at: int


class ShownBucketRow(NamedTuple):
    """A counter, and the lanes that it blocks."""

    key: int
    rule: int
    value: str
    running: int
    starts: str
    next_at: int
    due_at: int | None
    waiters: str
    blocked: int
    blocked_since: int | None
    seen_at: int


class RuleUseRow(NamedTuple):
    """How much of a limit is used, over all values of its key."""

    rule: int
    running: int
    blocked: int


class HolderRow(NamedTuple):
    """A task that is counted by a counter."""

    task: str
    job: str
    kind: str
    queue: str
    worker: str
    state: str
    claimed_at: int
    lease_expires_at: int


class LaneEntryRow(NamedTuple):
    """A lane that tasks are put into."""

    key: int
    queue: int
    kind: int
    fair: str | None
    state: int
    rank: int
    turn: int
    retired_at: int | None


class LaneRow(NamedTuple):
    """An open lane, locked by a claim."""

    key: int
    queue: int
    kind: int
    value: str
    fair: str | None
    weight: float
    rank: int
    turn: int


class BlockedLaneRow(NamedTuple):
    """A lane that a counter blocks."""

    key: int
    queue: int
    kind: int
    fair: str | None
    rank: int
    turn: int
    blocked_on: int
    value: str
    weight: float


class GatesRow(NamedTuple):
    """What keeps plain claims from a queue."""

    paused: int
    limited: int
    breakers: int


class LaneHeadRow(NamedTuple):
    """The first ready task of a lane, if it has one."""

    key: int
    rank: int | None
    task: int | None


class OpenedRow(NamedTuple):
    """A new ready row of a task whose stage has opened."""

    queue: int
    """Of a task in a lane: minus the key of the lane."""
    rank: int
    task: int


class OpenLaneRow(NamedTuple):
    """The place of an open lane in the order of claims."""

    rank: int
    turn: int
    key: int


class WeightRow(NamedTuple):
    """A weight that an operator has set."""

    kind: str
    value: str
    weight: float


class LaneFacts(NamedTuple):
    """Where a ready task stands: what explains that a limit holds it back, or that it takes turns."""

    ns: int
    queue: int
    kind: int
    limited: int
    value: str | None
    """The values of its lane; None if it waits in its queue."""
    fair: str | None
    weight: float | None
    state: int
    blocked_on: int | None
    blocked_at: int | None
    open_lanes: int
    lanes_before: int
