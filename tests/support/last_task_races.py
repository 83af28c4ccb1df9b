"""Stages whose siblings are reported at the same time, each by a claimer of its own: the race of the last tasks.

Every sibling has a queue of its own, so that the claimers come to the same stage together. In most races one of them
does something to the flow at that moment: cancels it, pauses it, fails its task, adds one, vanishes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from onetray.config import EngineConfig
from onetray.domain.commands import Command, Succeed, ticket
from onetray.domain.errors import Conflict
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.lifecycle import FLOW, STAGE, TASK
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine import Engine
from onetray.store import open_store
from onetray.verify import verify
from tests.support import fleet
from tests.support.audit import deadlocks

SIBLINGS, STAGES = 8, 2
PROCESSES = 4
HELD_AT_ONCE = 4
RACES = (
    "plain", "cancel_soft", "cancel_hard", "expire", "fail_strict", "fail_drain", "add_tasks", "pause", "depend",
)  # fmt: skip
POLICY = Policy(max_attempts=50, backoff_base_s=0.01, backoff_max_s=0.02, cancel_grace_s=0.05, lease_s=30)
FLEETING = Policy(max_attempts=50, backoff_base_s=0.01, backoff_max_s=0.02, lease_s=0.3)
_UNENDED = "SELECT 1 FROM onetray.flow WHERE finished_at IS NULL LIMIT 1"
_FLOWS = """SELECT k.name, f.state, count(*) FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind
GROUP BY k.name, f.state"""
_STAGES = """SELECT k.name, s.state, count(*) FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job
JOIN onetray.kind AS k ON k.key = f.kind GROUP BY k.name, s.state"""
_TASKS = """SELECT k.name, t.state, count(*) FROM onetray.task AS t JOIN onetray.flow AS f ON f.key = t.job
JOIN onetray.kind AS k ON k.key = f.kind GROUP BY k.name, t.state"""
_COUNTED = {"flows": (FLOW, _FLOWS), "stages": (STAGE, _STAGES), "tasks": (TASK, _TASKS)}
States = dict[str, dict[str, Counter[str]]]
"""How many flows, stages and tasks of each race are in each state."""


@dataclass
class Told:
    """What one process has to tell."""

    reports: int = 0
    refused: int = 0
    run_again: int = 0
    """Batches that lost a deadlock."""
    acts: dict[str, int] = field(default_factory=dict)
    """What was done to flows of each race besides, and accepted."""
    errors: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of some races."""

    took_s: float
    states: States
    reports: int
    refused: int
    run_again: int
    acts: Counter[str]
    deadlocks: int
    faults: list[str]

    def __str__(self) -> str:
        ended = sum(self.states["stages"].values(), Counter[str]())
        states = ", ".join(f"{n} {state}" for state, n in sorted(ended.items()))
        return (
            f"{ended.total()} stages of {SIBLINGS} ({states}) in {self.took_s:.1f} s; {self.reports} reports accepted, "
            f"{self.refused} refused, {self.acts.total()} acts besides; {self.stuck} stages stuck, "
            f"{self.deadlocks} deadlocks, {self.run_again} batches run again"
        )

    @property
    def stuck(self) -> int:
        return sum(n for states in self.states["stages"].values() for s, n in states.items() if s not in STAGE.terminal)


def run_races(url: str, races: Sequence[str], stages: int, *, seed: int = 1, limit_s: float = 120.0) -> Outcome:
    """Let the claimers loose on a fresh PostgreSQL database, with so many stages for each race, until all end."""
    store = open_store(url)
    store.migrate()
    store.close()
    before = deadlocks(url)
    with Engine.open(url) as engine:
        prepare(engine, races, -(-stages // STAGES))
        began = time.time()
        plans = [(url, number, seed, began + limit_s) for number in range(PROCESSES)]
        answers = [Told(**answer) for answer in fleet.run_all(claimers, plans, limit_s + 30)]
        took_s = time.time() - began
        states = {what: _counted(engine, sql) for what, (_, sql) in _COUNTED.items()}
        faults = [str(violation) for violation in verify(engine.store).violations]
    outcome = Outcome(
        took_s, states, sum(a.reports for a in answers), sum(a.refused for a in answers),
        sum(a.run_again for a in answers), sum((Counter(a.acts) for a in answers), Counter[str]()),
        deadlocks(url) - before, faults + [e for a in answers for e in a.errors],
    )  # fmt: skip
    outcome.faults += _left_open(states)
    if outcome.deadlocks or outcome.run_again:
        outcome.faults.append(f"{outcome.deadlocks} deadlocks, {outcome.run_again} batches run again")
    return outcome


def _counted(engine: Engine, sql: str) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for race, state, n in engine.store.read_sql(sql):
        counted[race][state] = int(n)
    return counted


def _left_open(states: States) -> list[str]:
    return [
        f"{race}: {n} {what} are still {state}"
        for what, (machine, _) in _COUNTED.items()
        for race, found in states[what].items()
        for state, n in found.items()
        if state not in machine.terminal
    ]


def prepare(engine: Engine, races: Sequence[str], flows: int) -> None:
    """Submit the flows of all races in turn."""
    new = [flow_of(race, n) for n in range(flows) for race in races]
    for start in range(0, len(new), 100):
        for verdict in engine.run(new[start : start + 100]):
            verdict.unwrap()


def flow_of(race: str, number: int) -> SubmitFlow:
    stages = [StageSpec(f"stage-{k}", _siblings(race, number, k)) for k in range(STAGES)]
    return SubmitFlow(name=race, stages=stages, roll_up="drain" if race == "fail_drain" else "strict")


def _siblings(race: str, number: int, stage: int) -> list[TaskSpec]:
    place = {"race": race, "flow": number, "stage": stage}
    policy = FLEETING if race == "expire" else POLICY
    names = [f"{stage}-{i}" for i in range(SIBLINGS)]
    tasks = [TaskSpec("sibling", place, queue=queue_of(i), name=name, policy=policy) for i, name in enumerate(names)]
    if race == "depend":
        # All the others come first, and the last two of them end together.
        tasks[-1].depends_on = tuple(names[:-1])
    return tasks


def queue_of(sibling: int) -> str:
    return f"sibling-{sibling}"


def claimers(url: str, number: int, seed: int, until: float) -> dict[str, Any]:
    """One process: the claimers of some of the siblings, each with an engine of its own, and a janitor."""
    told = Told()
    mine = range(number, SIBLINGS, PROCESSES)
    threads = [threading.Thread(target=_claim_all, args=(url, i, seed, until, told)) for i in mine]
    with Engine.open(url, config=EngineConfig(committers=1)) as engine:
        engine.janitor(every_s=0.02).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return asdict(told)


def _claim_all(url: str, sibling: int, seed: int, until: float, told: Told) -> None:
    try:
        with Engine.open(url, config=EngineConfig(committers=1)) as engine:
            Claimer(engine, sibling, random.Random(f"{seed}/{sibling}"), told).run(until)
    except Exception as e:
        told.errors.append(f"claimer {sibling}: {type(e).__name__}: {e}")


class Claimer:
    """Has one sibling of every stage to itself."""

    def __init__(self, engine: Engine, sibling: int, chance: random.Random, told: Told) -> None:
        self.engine, self.sibling, self.chance, self.told = engine, sibling, chance, told
        count_what_is_run_again(engine, told)

    def run(self, until: float) -> None:
        while time.time() < until:
            seen = self.engine.wake.generation
            held = self.engine.claim(queue_of(self.sibling), worker=f"w{self.sibling}", limit=HELD_AT_ONCE)
            if held:
                self._treat(held)
            elif self.engine.store.read_sql(_UNENDED):
                self.engine.wake.wait(seen, 0.02)  # Another sibling has to end first.
            else:
                return

    def _treat(self, held: list[Assignment]) -> None:
        """Report what it holds, together or one by one, before or after what it does to flows."""
        self.chance.shuffle(held)
        mine = [a for a in held if self._is_to_act(a)]
        plain = [a for a in held if a not in mine]
        together = self.chance.random() < 0.5
        steps: list[Callable[[], None]] = [partial(ACTS[a.payload["race"]], self, a) for a in mine]
        reports = [partial(self._report, some) for some in ([plain] if together else [[a] for a in plain])]
        for step in [*steps, *reports] if self.chance.random() < 0.5 else [*reports, *steps]:
            step()

    def _is_to_act(self, a: Assignment) -> bool:
        """One claimer, in one of a flow's stages, in three flows of four, the first time."""
        flow, stage = a.payload["flow"], a.payload["stage"]
        if a.payload["race"] not in ACTS or a.fence > 1 or flow % 4 == 3:
            return False
        return bool(flow % STAGES == stage and flow % SIBLINGS == self.sibling)

    def _report(self, held: list[Assignment]) -> None:
        commands: list[Command] = [Succeed(**ticket(a), result=self.sibling) for a in held]
        for verdict in self.engine.run(commands):
            with self._refusable():
                verdict.unwrap()
                self.told.reports += 1

    @contextmanager
    def _refusable(self) -> Iterator[None]:
        # A refusal is an answer: the flow was cancelled, or the lease had run out.
        try:
            yield
        except Conflict:
            self.told.refused += 1

    def _act(self, a: Assignment, verb: Callable[..., Any], *args: Any, **fields: Any) -> None:
        with self._refusable():
            verb(*args, **fields)
            self._acted(a)

    def _acted(self, a: Assignment) -> None:
        race = a.payload["race"]
        self.told.acts[race] = self.told.acts.get(race, 0) + 1

    def cancel_soft(self, a: Assignment) -> None:
        self._act(a, self.engine.cancel_flow, a.correlation_id)
        self._report([a])

    def cancel_hard(self, a: Assignment) -> None:
        self._act(a, self.engine.cancel_flow, a.correlation_id, hard=True)
        self._report([a])

    def fail(self, a: Assignment) -> None:
        self._act(a, self.engine.fail, a, "no luck", retryable=False)

    def vanish(self, a: Assignment) -> None:
        self._acted(a)

    def add_tasks(self, a: Assignment) -> None:
        stage = self.engine.stages(a.correlation_id)[a.payload["stage"]].id
        more = TaskSpec("sibling", {**a.payload, "race": "plain"}, queue=queue_of(self.sibling))
        if self.chance.random() < 0.5:
            self._report([a])  # Then it is too late if the others were as quick.
            self._act(a, self.engine.add_tasks, stage, [more])
        else:
            self._act(a, self.engine.add_tasks, stage, [more])
            self._report([a])

    def pause(self, a: Assignment) -> None:
        self._act(a, self.engine.pause_flow, a.correlation_id)
        self._report([a])
        with self._refusable():
            self.engine.resume_flow(a.correlation_id)


ACTS: dict[str, Callable[[Claimer, Assignment], None]] = {
    "cancel_soft": Claimer.cancel_soft,
    "cancel_hard": Claimer.cancel_hard,
    "expire": Claimer.vanish,
    "fail_strict": Claimer.fail,
    "fail_drain": Claimer.fail,
    "add_tasks": Claimer.add_tasks,
    "pause": Claimer.pause,
}


def count_what_is_run_again(engine: Engine, told: Told) -> None:
    """The committer runs a batch that lost a deadlock again and tells nobody: count them."""
    committer = engine._committer
    work = committer._run_batch

    def counting(commands: Sequence[Command]) -> list[Verdict]:
        try:
            return work(commands)
        except Exception as e:
            told.run_again += getattr(e, "sqlstate", None) in ("40P01", "40001")
            raise

    committer._run_batch = counting
