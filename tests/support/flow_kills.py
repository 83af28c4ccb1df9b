"""What follows for a flow from one call, and processes that are killed in the middle of it.

Owns the cases, each with what stands there before and after, and the kills at every named point that a case reaches.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onetray import failpoints
from onetray.domain.clock import VirtualClock
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.engine.flows import advance
from onetray.verify import verify
from tests.support import fleet
from tests.support.dying_processes import die_at
from tests.support.fleet import Ledger

KILLED = -signal.SIGKILL
TABLES = (
    "flow", "stage", "task", "event", "ready", "due", "lease", "dependency", "context", "dead_letter", "idempotency",
)  # fmt: skip
Step = Callable[[], Any]
Kill = tuple[str, int]
"""A point, and how often it is reached before the process is killed there."""


@dataclass(frozen=True)
class Case:
    """A call, what stands there before and after it, and how all flows end when others go on."""

    prepare: Callable[[Engine], Any]
    act: Callable[[Engine], Step]
    """Looks up what the call needs, and answers the call itself."""
    before: str
    after: str
    end: str
    go_on: Callable[[Engine], Any] = lambda engine: None
    """What somebody has to do after the call, if nobody else will go on."""


def held(engine: Engine) -> list[Assignment]:
    """What the parent has claimed in the victim's name."""
    return engine.claim(worker="victim", limit=1, request_key="held")


def oldest(engine: Engine) -> str:
    return engine.flows()[-1].id


def stage_of(engine: Engine, name: str) -> str:
    return next(stage.id for stage in engine.stages(oldest(engine)) if stage.name == name)


def tasks(count: int) -> list[TaskSpec]:
    return [TaskSpec("mail", n) for n in range(count)]


def _one_is_left(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", tasks(2)), StageSpec("b", tasks(2))])
    engine.succeed(engine.claim(worker="w")[0], "done")
    held(engine)


def _two_are_held(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", tasks(4)), StageSpec("b", tasks(2)), StageSpec("c", tasks(1))])
    held(engine)
    engine.start(engine.claim(worker="w")[0])


def _paused(engine: Engine) -> None:
    _two_are_held(engine)
    engine.pause_flow(oldest(engine))


def _asked_to_stop(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", tasks(2)), StageSpec("b", tasks(1))])
    held(engine)
    engine.cancel_flow(oldest(engine))


def _gated(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", tasks(1)), StageSpec("b", tasks(2), approval=Approval(owner="ann"))])
    engine.succeed(engine.claim(worker="w")[0])


def _something_to_undo(engine: Engine) -> None:
    undo = TaskSpec("undo")
    engine.submit_flow("f", [StageSpec("a", tasks(1), compensate=undo), StageSpec("b", tasks(2)), StageSpec("c")])
    engine.succeed(engine.claim(worker="w")[0], {"sent": 1})
    held(engine)


def _failed(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", tasks(1)), StageSpec("b", tasks(2)), StageSpec("c", tasks(1))])
    engine.succeed(engine.claim(worker="w")[0])
    engine.fail(engine.claim(worker="w")[0], "no", retryable=False)


def _set_aside(engine: Engine) -> None:
    two = [TaskSpec("mail", n, alias=f"mail {n}") for n in range(2)]
    engine.submit_flow("f", [StageSpec("a", two), StageSpec("b", tasks(1))], roll_up="drain", alias="flow")
    engine.succeed(engine.claim(worker="w")[0], "done")
    engine.fail(engine.claim(worker="w")[0], "no", reason_code="parse_error")


def _redrive(engine: Engine) -> Step:
    (letter,) = engine.dead_letters()
    return lambda: engine.redrive(letter.task_id, delay_s=1)


def _ended(engine: Engine) -> None:
    # Its names are known to the database: a submit that has to make them known does so in a transaction before.
    engine.submit_flow("f", [StageSpec("a", tasks(1))])
    engine.succeed(engine.claim(worker="w")[0])


def _chained(engine: Engine) -> None:
    named = [TaskSpec("mail", name=name) for name in ("one", "two")]
    engine.submit_flow("f", [StageSpec("a", [*named, TaskSpec("mail", depends_on=("one", "two"))])])
    engine.succeed(engine.claim(worker="w")[0])
    held(engine)


def _succeed(engine: Engine) -> Step:
    (assignment,) = held(engine)
    return lambda: engine.succeed(assignment, "done")


def _fail(engine: Engine) -> Step:
    (assignment,) = held(engine)
    return lambda: engine.fail(assignment, "no", retryable=False)


def _approve(engine: Engine) -> Step:
    stage = stage_of(engine, "b")
    return lambda: engine.approve_stage(stage, note="fine", actor_name="ann")


def _submit(engine: Engine) -> Step:
    stages = [StageSpec("a", tasks(2)), StageSpec("b", tasks(1))]
    return lambda: engine.submit_flow("f", stages, context={"n": 1}, deadline_s=3600, alias="flow")


def _of_flow(verb: str, **fields: Any) -> Callable[[Engine], Step]:
    def act(engine: Engine) -> Step:
        flow = oldest(engine)
        return lambda: getattr(engine, verb)(flow, **fields)

    return act


CASES = {
    "the last success of a stage": Case(
        _one_is_left, _succeed,
        before="running a:running b:created | 1 assigned, 2 queued, 1 succeeded | 0 ready",
        after="running a:succeeded b:pending | 2 queued, 2 succeeded | 2 ready",
        end="succeeded a:succeeded b:succeeded",
    ),
    "the last of two dependencies": Case(
        _chained, _succeed,
        before="running a:running | 1 assigned, 1 queued, 1 succeeded | 0 ready",
        after="running a:running | 1 queued, 2 succeeded | 1 ready",
        end="succeeded a:succeeded",
    ),
    "a strict failure": Case(
        _two_are_held, _fail,
        before="running a:running b:created c:created | 1 assigned, 5 queued, 1 running | 2 ready",
        after="failed a:failed b:skipped c:skipped | 5 cancelled, 1 failed, 1 running | 0 ready",
        end="failed a:failed b:skipped c:skipped",
    ),
    "a hard cancel": Case(
        _two_are_held, _of_flow("cancel_flow", hard=True),
        before="running a:running b:created c:created | 1 assigned, 5 queued, 1 running | 2 ready",
        after="cancelled a:cancelled b:cancelled c:cancelled | 7 cancelled | 0 ready",
        end="cancelled a:cancelled b:cancelled c:cancelled",
    ),
    "a soft cancel": Case(
        _two_are_held, _of_flow("cancel_flow"),
        before="running a:running b:created c:created | 1 assigned, 5 queued, 1 running | 2 ready",
        after="running a:running b:cancelled c:cancelled | 1 assigned, 5 cancelled, 1 running | 0 ready",
        end="cancelled a:cancelled b:cancelled c:cancelled",
    ),
    "the last success after a soft cancel": Case(
        _asked_to_stop, _succeed,
        before="pending a:pending b:cancelled | 1 assigned, 2 cancelled | 0 ready",
        after="cancelled a:cancelled b:cancelled | 2 cancelled, 1 succeeded | 0 ready",
        end="cancelled a:cancelled b:cancelled",
    ),
    "a pause": Case(
        _two_are_held, _of_flow("pause_flow"),
        before="running a:running b:created c:created | 1 assigned, 5 queued, 1 running | 2 ready",
        after="paused a:running b:created c:created | 1 assigned, 5 queued, 1 running | 0 ready",
        end="succeeded a:succeeded b:succeeded c:succeeded",
        go_on=lambda engine: engine.resume_flow(oldest(engine)),
    ),
    "a resume": Case(
        _paused, _of_flow("resume_flow"),
        before="paused a:running b:created c:created | 1 assigned, 5 queued, 1 running | 0 ready",
        after="running a:running b:created c:created | 1 assigned, 5 queued, 1 running | 2 ready",
        end="succeeded a:succeeded b:succeeded c:succeeded",
    ),
    "an approval": Case(
        _gated, _approve,
        before="waiting a:succeeded b:waiting | 2 queued, 1 succeeded | 0 ready",
        after="running a:succeeded b:pending | 2 queued, 1 succeeded | 2 ready",
        end="succeeded a:succeeded b:succeeded",
    ),
    "an end with a compensation": Case(
        _something_to_undo, _fail,
        before="running a:succeeded b:pending c:created | 1 assigned, 1 queued, 1 succeeded | 1 ready",
        after="failed a:succeeded b:failed c:skipped; pending a:pending | "
        "1 cancelled, 1 failed, 1 queued, 1 succeeded | 1 ready",
        end="failed a:succeeded b:failed c:skipped; succeeded a:succeeded",
    ),
    "a retry of a flow": Case(
        _failed, _of_flow("retry_flow"),
        before="failed a:succeeded b:failed c:skipped | 2 cancelled, 1 failed, 1 succeeded | 0 ready",
        after="failed a:succeeded b:failed c:skipped; pending a:succeeded b:pending c:created | "
        "2 cancelled, 1 failed, 3 queued, 1 succeeded | 2 ready",
        end="failed a:succeeded b:failed c:skipped; succeeded a:succeeded b:succeeded c:succeeded",
    ),
    "a redrive of one task of an ended flow": Case(
        _set_aside, _redrive,
        before="failed a:failed b:skipped | 1 cancelled, 1 dead_lettered, 1 succeeded | 0 ready",
        after="failed a:failed b:skipped; pending a:pending b:created | 1 cancelled, 1 dead_lettered, 2 queued, "
        "2 succeeded | 0 ready",
        end="failed a:failed b:skipped; succeeded a:succeeded b:succeeded",
    ),
    "a submit": Case(
        _ended, _submit,
        before="succeeded a:succeeded | 1 succeeded | 0 ready",
        after="succeeded a:succeeded; pending a:pending b:created | 3 queued, 1 succeeded | 2 ready",
        end="succeeded a:succeeded; succeeded a:succeeded b:succeeded",
    ),
}  # fmt: skip


def flows_of(engine: Engine) -> str:
    """Every flow's state and its stages', the oldest first."""
    return "; ".join(
        " ".join([flow.state, *(f"{stage.name}:{stage.state}" for stage in engine.stages(flow.id))])
        for flow in reversed(engine.flows())
    )


def shape(engine: Engine) -> str:
    """Flows and stages, how many tasks are in which state, and how many can be claimed."""
    states = Counter(state for (state,) in engine.store.read_sql("SELECT state FROM onetray.task"))
    counted = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    ready = engine.store.read_sql("SELECT count(*) FROM onetray.ready")[0][0]
    return f"{flows_of(engine)} | {counted} | {ready} ready"


def everything(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Every row there is."""
    return {table: sorted(engine.store.read_sql(f"SELECT * FROM onetray.{table}"), key=repr) for table in TABLES}


def finish(engine: Engine, clock: VirtualClock) -> None:
    """Let the janitor take back what the dead held, and another worker do what is left."""
    for _ in range(20):
        clock.advance(61)
        while engine.sweep():
            pass
        for assignment in engine.claim(worker="heir", limit=20):
            engine.succeed(assignment)
        if all(flow.state in FLOW.terminal for flow in engine.flows()):
            return


def call_and_die(url: str, now: int, case: str, point: str, hits: int) -> None:
    """Make the call of a case, and die in it."""
    engine = Engine.open(url, clock=VirtualClock(now))
    engine.store.names.refresh()
    call = CASES[case].act(engine)
    die_at(point, hits)
    call()
    raise AssertionError(f"{case} never came to {point!r} for the {hits}. time")


def cancel_in_steps_and_die(url: str, now: int, step: int, flow: str | None, point: str) -> None:
    """Cancel a flow in small steps, or go on with that, and die in the first one."""
    advance.STEP = step
    engine = Engine.open(url, clock=VirtualClock(now))
    engine.store.names.refresh()
    die_at(point)
    if flow is not None:
        engine.cancel_flow(flow, hard=True)
    else:
        engine.do_due()
    raise AssertionError(f"the step never came to {point!r}")


def note_points(url: str, now: int, case: str, path: str) -> None:
    """Make the call of a case, note every point on the way, and die before anything is committed."""
    engine = Engine.open(url, clock=VirtualClock(now))
    engine.store.names.refresh()
    call = CASES[case].act(engine)
    ledger = Ledger(path)

    def hook(name: str) -> None:
        ledger.write(name)
        if name == "committing":
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook
    call()


def way_of(url: str, now: int, case: str) -> list[str]:
    """The points that the call of a case comes to, in their order, up to its commit."""
    with tempfile.TemporaryDirectory(prefix="onetray-way-") as folder:
        path = Path(folder) / "way"
        fleet.end_all([fleet.start(note_points, url, now, case, str(path))], 60, exitcode=KILLED)
        return [name for (name,) in Ledger.read(path)]


def every_point(way: list[str]) -> list[Kill]:
    """Kill the last time that each point is reached: what was committed too early is there by then."""
    return list(Counter(way).items())


def every_time(way: list[str]) -> list[Kill]:
    """Kill each time that any point is reached."""
    return [(point, n) for point, hits in Counter(way).items() for n in range(1, hits + 1)]


def before_the_commit(way: list[str]) -> list[Kill]:
    """Kill nowhere else: whoever found out the way was killed before it committed anything."""
    return []


@dataclass
class Killed:
    """What came of the kills of a case."""

    way: list[str]
    kills: int
    faults: list[str]


def kill_in(
    engine: Engine, clock: VirtualClock, url: str, case: str, where: Callable[[list[str]], list[Kill]]
) -> Killed:
    """Kill processes in the call of a case, at one point after the other, the last one after the commit; then go on.

    The engine's own verification at its end is the last word.
    """
    the = CASES[case]
    the.prepare(engine)
    faults = _differs(f"{case}: before", the.before, shape(engine))
    rows = everything(engine)
    way = way_of(url, clock.now(), case)
    faults += _changed(engine, rows, f"{case}: killed before the commit")
    kills = where(way)
    for point, hits in kills:
        _kill(url, clock, case, point, hits)
        faults += _changed(engine, rows, f"{case}: killed at {point} ({hits})")
    _kill(url, clock, case, "committed", 1)
    faults += _differs(f"{case}: after", the.after, shape(engine))
    faults += [str(violation) for violation in verify(engine.store).violations]
    the.go_on(engine)
    finish(engine, clock)
    faults += _differs(f"{case}: in the end", the.end, flows_of(engine))
    return Killed(way, len(kills) + 2, faults)


def _kill(url: str, clock: VirtualClock, case: str, point: str, hits: int) -> None:
    fleet.end_all([fleet.start(call_and_die, url, clock.now(), case, point, hits)], 60, exitcode=KILLED)


def _changed(engine: Engine, rows: object, when: str) -> list[str]:
    return [] if everything(engine) == rows else [f"{when}: {shape(engine)}, but nothing was committed"]


def _differs(what: str, wanted: str, found: str) -> list[str]:
    return [] if wanted == found else [f"{what}: {found}, not {wanted}"]
