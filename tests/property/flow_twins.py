"""One engine on each store, sent on the same walk through flows and compared after each step.

Owns what has to agree between the stores, that nothing but a refusal goes wrong, and that every flow can be brought
to its end.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any
from unittest.mock import patch

from onetray.domain.commands import Command
from onetray.domain.errors import Conflict, InvalidInput, NotApprover, NotFound
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import FlowCommand
from onetray.domain.lifecycle import FLOW, PAUSED, TASK
from onetray.domain.task import Beaten, Receipt, Verdict
from onetray.domain.verbs import VERBS
from onetray.engine import Engine
from onetray.verify import _violations
from onetray.verify.checks import EVENTS as DECODED
from onetray.verify.checks import passes
from tests.property.flow_walk import BESIDE, REPORTS, Cmd, Guide, Known, Walk
from tests.property.twins import Hand
from tests.support.engines import must_verify

NOW = ("flows", "stages", "members", "queued", "ready", "timers", "flow_timers", "turns", "due")
"""What says how things stand is asked after each step; what reads the whole log is asked now and then."""

FLOWS = """
SELECT f.key, CAST(f.id AS text), f.state, f.version, f.sealed, f.current, f.ending, f.ending_how, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, f.context, f.retry_of,
    f.compensates, f.compensation, f.created_at, f.started_at, f.finished_at, f.updated_at
FROM onetray.flow AS f ORDER BY f.key
"""
STAGES = """
SELECT s.key, CAST(s.id AS text), s.state, s.version, s.job, s.ord, s.name, s.sealed, s.ending, s.opened_to,
    s.opened_at, s.due_at, s.deciding, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed,
    s.dead_lettered, s.cancelled, s.redriven, s.result, s.metrics, s.created_at, s.started_at, s.finished_at
FROM onetray.stage AS s ORDER BY s.key
"""
TASKS = """
SELECT t.key, CAST(t.id AS text), t.state, t.version, t.fence, t.owner, t.name, t.job, t.stage, t.attempts, t.unmet,
    t.run_at, t.priority, t.cancel_at, t.retry_of, t.spawned_by, t.context, t.created_at, t.started_at, t.finished_at,
    CASE WHEN r.task IS NULL THEN 0 ELSE 1 END
FROM onetray.task AS t LEFT JOIN onetray.ready AS r ON r.queue = t.queue AND r.rank = -t.priority AND r.task = t.key
ORDER BY t.key
"""
EVENTS = """
SELECT e.job, e.entity, e.version, e.type, e.was, e.state, e.ts, e.actor, e.id FROM onetray.event AS e
WHERE e.id > :after ORDER BY e.id
"""
DUE = "SELECT at, task, what, fence FROM onetray.due ORDER BY at, task, what"
CLAIMED_EARLY = """
SELECT c.entity, d.needs FROM onetray.event AS c JOIN onetray.dependency AS d ON d.task = c.entity
WHERE c.type = :claimed AND NOT EXISTS (
    SELECT 1 FROM onetray.event AS s WHERE s.entity = d.needs AND s.type IN (:succeeded, :carried) AND s.id < c.id)
"""
ROUNDS = 200


class Side:
    """One engine, and what was seen of it."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.ids: dict[int, str] = {}
        self.jobs: dict[int, int] = {}
        self.last_event = 0
        self.flows: list[tuple[Any, ...]] = []
        self.stages: list[tuple[Any, ...]] = []
        self.tasks: list[tuple[Any, ...]] = []

    def look(self) -> tuple[Any, ...]:
        """All that the stores have to agree on, without what chance has made."""
        read = self.engine.store.read_sql
        self.flows, self.stages, self.tasks = read(FLOWS), read(STAGES), read(TASKS)
        self.ids = {r[0]: r[1] for rows in (self.flows, self.stages, self.tasks) for r in rows}
        self.jobs = {r[0]: r[7] for r in self.tasks}
        events = read(EVENTS, after=self.last_event)
        self.last_event = events[-1][-1] if events else self.last_event
        by_job: dict[int, list[Any]] = {}
        for job, *rest, _ in events:
            by_job.setdefault(job, []).append(rest)
        rows = [[(r[0], *r[2:]) for r in rows] for rows in (self.flows, self.stages, self.tasks)]
        return (*rows, {job: _in_order(events) for job, events in by_job.items()}, read(DUE))

    def known(self) -> Known:
        return Known(
            [(r[0], r[2]) for r in self.flows],
            [(r[0], r[2], r[6]) for r in self.stages],
            [(r[0], r[2], r[4], r[5], r[6]) for r in self.tasks],
        )

    def command(self, c: Cmd) -> Command:
        args = copy.deepcopy(c.args)
        if c.about is not None:
            if args.get("flow") == "its":
                args["flow"] = self.jobs[c.about]
            by_key = c.verb in REPORTS and args.get("flow") is not None
            # Those who claimed it know its key, everybody else its id.
            args["flow" if issubclass(VERBS[c.verb], FlowCommand) else "task"] = (
                c.about if by_key else self.ids[c.about]
            )
        return VERBS[c.verb](**args)

    def run(self, batch: list[Cmd]) -> list[Any]:
        verdicts = self.engine.run([self.command(c) for c in batch])
        return [self._answer(c, v) for c, v in zip(batch, verdicts, strict=True)]

    def _answer(self, c: Cmd, verdict: Verdict) -> Any:
        if verdict.error is not None:
            if not isinstance(verdict.error, Conflict | NotFound | NotApprover | InvalidInput):
                raise AssertionError(f"{self.name}: {c} was answered {verdict.error!r}") from verdict.error
            return verdict.error.code
        value = verdict.value
        if isinstance(value, Receipt):
            return value.state, value.fence, value.version, value.repeated
        if isinstance(value, Placed):
            return value.entity, value.state, value.version, value.repeated, len(value.stages), len(value.tasks)
        if isinstance(value, list):
            return [(a.key, a.fence, a.attempt, a.lease_expires_at, a.payload is None) for a in value]
        return value.lease_expires_at if isinstance(value, Beaten) else None

    def beside(self, c: Cmd) -> Any:
        if c.verb == "prune":
            return self.engine.prune(c.args["older_than_s"])
        match c.args["what"]:
            case "sweep":
                return self.engine.sweep()
            case "expire_leases":
                return self.engine.expire_leases(limit=c.args["limit"])
            case _:
                return self.engine.do_due(limit=c.args["limit"])


class Trip:
    """A walk on all sides at once."""

    def __init__(self, sides: list[Side], clock: Hand, verify_every: int = 1) -> None:
        self.sides, self.clock, self.verify_every = sides, clock, verify_every
        self.guide, self.trail = Guide(), list[Any]()
        self.log: dict[int, list[Any]] = {}

    def go(self, walk: Walk) -> None:
        first, steps = walk
        for plan in first:
            self.do([self.guide.flow(plan)])
        for step in steps:
            known = self.sides[0].known()
            batch = [c for c in (self.guide.command(single, known) for single in step) if c is not None]
            aside = [c for c in batch if c.verb in BESIDE]
            self.do([c for c in batch if c.verb not in BESIDE])
            for c in aside:
                self.beside(c)

    def do(self, batch: list[Cmd]) -> list[Any]:
        if not batch:
            return []
        self.trail.append(batch)
        answers = [side.run(batch) for side in self.sides]
        assert all(a == answers[0] for a in answers), _differing(answers)
        self.compare()
        return answers[0]

    def beside(self, c: Cmd) -> Any:
        self.trail.append(c)
        if c.verb == "jump":
            self.clock.set(self.clock.now() + c.args["us"])
            return None
        answers = [side.beside(c) for side in self.sides]
        assert all(a == answers[0] for a in answers), _differing(answers)
        self.compare()
        return answers[0]

    def compare(self) -> None:
        seen = [side.look() for side in self.sides]
        for other in seen[1:]:
            for mine, theirs in zip(seen[0], other, strict=True):
                assert theirs == mine, _differing([mine, theirs])
        # They are equal by now, but each is read by its own SQL: in turn.
        side = self.sides[len(self.trail) % len(self.sides)]
        if len(self.trail) % 16 == 0:
            must_verify(side.engine)
        elif len(self.trail) % self.verify_every == 0:
            must_stand(side.engine)

    def finish(self) -> None:
        """Bring everything to its end, as good people and good workers would."""
        idle = 0
        for _ in range(ROUNDS):
            before = self._stands()
            self._people()
            self._workers()
            while self.beside(Cmd("sweep", None, {"what": "sweep", "limit": 500})):
                pass
            if not self._open():
                break
            idle = idle + 1 if self._stands() == before else 0
            assert idle < 4, f"stuck: {self._open()}"
            if idle:
                self.beside(Cmd("jump", None, {"us": 20_000_000}))
        assert not self._open(), f"not at its end: {self._open()}"
        for side in self.sides:
            must_verify(side.engine)
            found = side.engine.store.read_sql(
                CLAIMED_EARLY, claimed=TASK.claim.event, succeeded=TASK.succeed.event, carried=TASK.carry_over.event
            )
            assert not found

    def _stands(self) -> Any:
        side = self.sides[0]
        return [[(r[0], r[3]) for r in rows] for rows in (side.flows, side.stages, side.tasks)]

    def _open(self) -> list[Any]:
        side = self.sides[0]
        flows = [r for r in side.flows if r[2] not in FLOW.terminal]
        return flows + [r for r in side.tasks if r[2] not in TASK.terminal]

    def _people(self) -> None:
        side = self.sides[0]
        for key, _, state, *_ in side.flows:
            if state not in FLOW.terminal:
                self.do([Cmd("open_flow", key, {}), Cmd("seal_flow", key, {}), Cmd("resume_flow", key, {})])
        for key, _, state, *_ in side.stages:
            if state == "waiting":
                self.do([Cmd("approve_stage", key, {"input": {"n": 1}, "actor_name": "editor"})])
        paused = [Cmd("resume", key, {}) for key, _, state, *_ in side.tasks if state in PAUSED]
        self.do(paused)

    def _workers(self) -> None:
        for queue in ("default", "slow"):
            for _ in range(ROUNDS):
                (claimed,) = self.do([Cmd("claim", None, {"worker": "end", "queue": queue, "limit": 50})])
                if not claimed:
                    break
                self.do(
                    [Cmd("succeed", key, {"fence": fence, "result": 1, "flow": "its"}) for key, fence, *_ in claimed]
                )
            else:
                raise AssertionError("work without an end")


def _in_order(events: list[Any]) -> list[Any]:
    """A flow's events. Those of tasks that one statement has moved stand in no order of their own: sort them."""
    ordered: list[Any] = []
    for is_of_task, some in groupby(events, lambda e: e[2].startswith("task.")):
        stretch = list(some)
        ordered += sorted(stretch, key=lambda e: e[0]) if is_of_task else stretch
    return ordered


def must_stand(engine: Engine) -> None:
    with engine.store.snapshot() as snapshot:
        snapshot.decode_events(DECODED)
        for one in passes(engine.store.dialect):
            if one.name in NOW:
                found = _violations(snapshot, one, 20)
                assert not found, found


def _differing(answers: list[Any]) -> str:
    return "the stores differ:\n" + "\n".join(map(repr, answers))


@contextmanager
def small_steps(most: int | None) -> Iterator[None]:
    """Have cascades, and whatever is read in pages, go in steps of so many tasks."""
    if most is None:
        yield
        return
    engine = "onetray.engine"
    with patch(f"{engine}.flows.advance.STEP", most), patch(f"{engine}.flows.bulk.OPEN_STEP", most), \
            patch(f"{engine}.flows.bulk.PAGE", most), patch(f"{engine}.flows.copy_flow.PAGE", most):  # fmt: skip
        yield


__all__ = ["Side", "Trip", "small_steps"]
