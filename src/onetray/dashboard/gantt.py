"""The timeline of a job: a lane for the job, for each stage and for tasks, with their states over time.

Owns which lanes are shown of many, and the scale. A lane is SVG; labels and the axis are HTML, which does not stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from onetray.dashboard.charts import svg
from onetray.dashboard.render import length_of_time
from onetray.domain.clock import SECOND, utc_text
from onetray.domain.flow import Stage
from onetray.domain.lifecycle import (
    BLOCKED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    FLOW_PAUSED,
    HELD,
    PARTIAL,
    PENDING,
    QUEUED,
    RUNNING,
    STAGE,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.listing import MemberSummary
from onetray.domain.past import Interval, Timeline

WIDTH, HEIGHT, LEAST = 1000, 16, 2
"""Of a lane, in units of its drawing, and the least width of a span that can be seen."""
QUARTERS = 4
MAX_LANES, MIN_OF_STAGE = 40, 3
"""How many tasks are shown in all, and at least of each stage."""
MAX_ATTEMPTS = 20
COLOURS = {PENDING: QUEUED, CREATED: QUEUED, BLOCKED: WAITING, WAITING_INPUT: WAITING, FLOW_PAUSED: WAITING}
BAD = (FAILED, DEAD_LETTERED, PARTIAL)
MS, MINUTE, HOUR, DAY = 1_000, 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
STEPS = (
    *(n * MS for n in (1, 2, 5, 10, 25, 50, 100, 250, 500)), *(n * SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)), *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 7, 14, 30, 90, 365)),
)  # fmt: skip
"""Lengths of a quarter of the axis."""


class LaneSpan(NamedTuple):
    """A stretch of a lane in one state."""

    state: str
    from_at: int
    until_at: int
    note: str = ""


class Lane(NamedTuple):
    """One row of the timeline."""

    id: str
    label: str
    state: str
    """The last one, also an end."""
    spans: tuple[LaneSpan, ...]
    entity: str = TASK.entity

    @property
    def busy_us(self) -> int:
        """How long workers have held it."""
        return sum(span.until_at - span.from_at for span in self.spans if span.state in HELD)

    @property
    def took_us(self) -> int:
        return self.spans[-1].until_at - self.spans[0].from_at if self.spans else 0


class Group(NamedTuple):
    """A stage with those of its tasks that are shown."""

    lane: Lane
    tasks: tuple[Lane, ...]
    more: int
    """How many tasks of it are not shown."""
    is_open: bool


class Gantt(NamedTuple):
    """A timeline to draw."""

    from_at: int
    length_us: int
    job: Lane
    attempts: tuple[Lane, ...]
    groups: tuple[Group, ...]

    @property
    def ticks(self) -> list[str]:
        return ["0", *(tick(self.length_us * i // QUARTERS) for i in range(1, QUARTERS + 1))]

    @property
    def legend(self) -> list[list[str]]:
        """The states that occur, together those of one colour."""
        lanes = (self.job, *self.attempts, *(lane for g in self.groups for lane in (g.lane, *g.tasks)))
        by_colour: dict[str, list[str]] = {}
        for state in dict.fromkeys(span.state for lane in lanes for span in lane.spans):
            by_colour.setdefault(COLOURS.get(state, state), []).append(state)
        return list(by_colour.values())

    def draw(self, lane: Lane) -> Markup:
        """The SVG of a lane, over the whole time of the job."""
        grid = [
            Markup('<line x1="{0}" x2="{0}" y1="0" y2="{1}"/>').format(WIDTH * i // QUARTERS, HEIGHT)
            for i in range(1, QUARTERS)
        ]
        body = Markup("").join([*grid, *(self._span(span) for span in lane.spans)])
        return svg(body, WIDTH, HEIGHT, title=f"{lane.label}: {_words(lane)}", cls="chart lane")

    def _span(self, span: LaneSpan) -> Markup:
        left = (span.from_at - self.from_at) / self.length_us * WIDTH
        width = max((span.until_at - span.from_at) / self.length_us * WIDTH, LEAST)
        title = f"{span.state.replace('_', ' ')}, {length_of_time(span.until_at - span.from_at)}{span.note}\nfrom "
        return Markup('<g><title>{}</title><rect class="s-{}" x="{}" y="0" width="{}" height="{}"/></g>').format(
            title + utc_text(span.from_at), span.state, f"{min(left, WIDTH - LEAST):.2f}", f"{width:.2f}", HEIGHT
        )


def _words(lane: Lane) -> str:
    """A lane in words, for those who do not see it. A long one is cut."""
    words = [f"{s.state.replace('_', ' ')} {length_of_time(s.until_at - s.from_at)}" for s in lane.spans[-10:]]
    return ", ".join(words) or "no time"


def tick(us: int) -> str:
    """A length of time on the axis, in its largest unit."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s")):
        if us >= unit:
            return f"{us / unit:g} {name}"
    return f"{us / MS:g} ms"


def axis_length(elapsed_us: int) -> int:
    """The length of the axis: a round one, so that it need not change with every look at a running job."""
    for step in STEPS:
        if step * QUARTERS >= elapsed_us:
            return step * QUARTERS
    return -(-elapsed_us // (QUARTERS * DAY)) * QUARTERS * DAY


def gantt_of(
    timeline: Timeline, stages: Sequence[Stage], members: Sequence[MemberSummary] = (), *, upto: int | None = None
) -> Gantt:
    """The drawing of a timeline. `members`: those of a flow that is too large for a timeline with its tasks.

    `upto`: only what had happened by then.
    """
    end = min(x for x in (timeline.until_at, upto, timeline.now_at) if x is not None)
    by_id: dict[str, list[Interval]] = {}
    for interval in timeline.intervals:
        if interval.from_at <= end:
            by_id.setdefault(interval.id, []).append(interval)
    lanes = {id_: _lane(intervals, end) for id_, intervals in by_id.items()}
    job = lanes.get(timeline.id) or Lane(timeline.id, "", "", (), timeline.entity)
    length = axis_length(end - timeline.from_at)
    if timeline.entity == TASK.entity:
        return Gantt(timeline.from_at, length, job, _attempts(by_id.get(timeline.id, ()), end), ())
    of_stage = _members_by_stage(members, stages, end) if members else _tasks_by_stage(lanes, timeline.intervals)
    groups = tuple(_group(stage, lanes, of_stage.get(stage.id, []), len(stages)) for stage in stages)
    return Gantt(timeline.from_at, length, job, (), tuple(g for g in groups if g.lane.spans or g.tasks))


def _lane(intervals: Sequence[Interval], end: int) -> Lane:
    last = intervals[-1]
    spans = tuple(_cut(i, end) for i in intervals)
    is_past = last.until_at is not None and last.until_at <= end
    return Lane(last.id, last.label, (last.next_state if is_past else None) or last.state, spans, last.entity)


def _cut(interval: Interval, end: int) -> LaneSpan:
    note = "" if interval.attempt is None else f", attempt {interval.attempt} by {interval.worker}"
    return LaneSpan(interval.state, interval.from_at, min(interval.until_at or end, end), note)


def _attempts(intervals: Sequence[Interval], end: int) -> tuple[Lane, ...]:
    """A lane for each of the last attempts, if there are several."""
    found: list[list[Interval]] = []
    for interval in intervals:
        if interval.attempt is None:
            continue
        if found and found[-1][-1].until_at == interval.from_at and found[-1][0].attempt == interval.attempt:
            found[-1].append(interval)
        else:
            found.append([interval])
    lanes = [
        Lane(f"attempt-{held[0].event}", f"Attempt {held[0].attempt}", _lane(held, end).state, _lane(held, end).spans)
        for held in found
    ]
    return tuple(lanes[-MAX_ATTEMPTS:]) if len(lanes) > 1 else ()


def _tasks_by_stage(lanes: dict[str, Lane], intervals: Iterable[Interval]) -> dict[str, list[Lane]]:
    stage_of = {i.id: i.stage for i in intervals if i.stage is not None and i.id in lanes}
    found: dict[str, list[Lane]] = {}
    for id_, stage in stage_of.items():
        found.setdefault(str(stage), []).append(lanes[id_])
    return found


def _members_by_stage(members: Iterable[MemberSummary], stages: Sequence[Stage], end: int) -> dict[str, list[Lane]]:
    """Lanes from the times of the last attempts: a look at a large flow reads no events of its tasks."""
    ids, found = {stage.name: stage.id for stage in stages}, {stage.id: list[Lane]() for stage in stages}
    for m in members:
        if m.created_at <= end:
            found[ids[m.stage]].append(Lane(m.id, m.name or m.kind, m.state, tuple(_spans_of_member(m, end))))
    return found


def _spans_of_member(m: MemberSummary, end: int) -> Iterable[LaneSpan]:
    over = min(m.finished_at or end, end)
    begun = min(m.started_at or over, over)
    if begun > m.created_at:
        yield LaneSpan(QUEUED, m.created_at, begun)
    if over > begun:
        note = f", attempt {m.attempts}" + (f" by {m.owner}" if m.owner else "")
        yield LaneSpan(RUNNING, begun, over, note)


def _group(stage: Stage, lanes: dict[str, Lane], tasks: list[Lane], stages: int) -> Group:
    lane = lanes.get(stage.id) or Lane(stage.id, stage.name, stage.state, (), STAGE.entity)
    most = max(MIN_OF_STAGE, MAX_LANES // stages)
    # Failed ones first, then those that go on, then the slowest.
    ordered = sorted(tasks, key=lambda t: (t.state not in BAD, t.state in TASK.terminal, -t.busy_us, -t.took_us))
    is_open = lane.state in BAD or lane.state not in STAGE.terminal or stages <= QUARTERS
    return Group(lane, tuple(ordered[:most]), max(stage.counts.total - most, 0) if tasks else 0, is_open)
