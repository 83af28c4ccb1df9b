"""Processes that lock the same tasks or flows, named in any order: without one order of locks they would deadlock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from onetray.config import EngineConfig
from onetray.domain.commands import Beat, Cancel, Claim, Command, Fail, Release, Reschedule, SetPriority, Start, Submit
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import AddTasks, CancelFlow, PauseFlow, ResumeFlow, SubmitFlow
from onetray.domain.policy import Policy
from onetray.engine import Engine

TASKS = 60
FLOWS, MEMBERS = 6, 10
POLICY = Policy(max_attempts=1000, backoff_base_s=0.001, backoff_max_s=0.005, lease_s=0.05, cancel_grace_s=0.005)
Round = Callable[[Engine, random.Random], None]


def prepare(engine: Engine) -> None:
    engine.configure("rival", POLICY)
    for verdict in engine.run([Submit(kind="rival", payload=n) for n in range(TASKS)]):
        verdict.unwrap()


def prepare_flows(engine: Engine) -> None:
    engine.configure("rival", POLICY)
    for verdict in engine.run([_flow() for _ in range(FLOWS)]):
        verdict.unwrap()


def _flow() -> SubmitFlow:
    """It goes on for as long as somebody wants something of it."""
    return SubmitFlow(name="f", stages=[StageSpec("a", [TaskSpec("rival")] * MEMBERS, sealed=False)], roll_up="drain")


def compete(url: str, what: str, number: int, seconds: float) -> list[Any]:
    """Do one thing again and again; answers how many rounds it did and which errors are no refusals."""
    engine = Engine.open(url, config=EngineConfig(committers=2))
    chance, rounds, until = random.Random(number), 0, time.monotonic() + seconds
    with engine:
        while time.monotonic() < until:
            ROUNDS[what](engine, chance)
            rounds += 1
    return [what, rounds]


def _some(chance: random.Random, count: int = 20) -> list[int]:
    """Keys of tasks in any order: it is the engine that has to sort them."""
    return chance.sample(range(1, TASKS + 1), count)


def _run(engine: Engine, commands: list[Any]) -> None:
    """Refusals do not matter here; an error that is none does."""
    for verdict in engine.run(commands):
        if verdict.error is not None and verdict.error.status >= 500:
            raise verdict.error


def _set_priorities(engine: Engine, chance: random.Random) -> None:
    _run(engine, [SetPriority(task=k, priority=chance.randint(-3, 3)) for k in _some(chance)])


def _cancel_and_submit(engine: Engine, chance: random.Random) -> None:
    newest = engine.store.read_sql("SELECT max(key) FROM onetray.task")[0][0]
    keys = chance.sample(range(max(1, newest - 100), newest + 1), 10)
    commands: list[Command] = [Cancel(task=k, hard=chance.random() < 0.5) for k in keys]
    _run(engine, commands + [Submit(kind="rival", payload=None) for _ in keys])


def _claim_and_report(engine: Engine, chance: random.Random) -> None:
    # Some leases run out while they are spoken of, some are sure to last for that on a busy machine, too.
    held = engine.claim(worker="rival", limit=10, lease_s=chance.choice((0.05, 2.0)))
    tickets: list[dict[str, Any]] = [{"task": a.key, "fence": a.fence, "worker": a.worker} for a in held]
    chance.shuffle(tickets)
    _run(engine, [Start(**t) for t in tickets])
    _run(engine, [Beat(**t) for t in tickets])
    verbs = [Release, lambda **t: Fail(message="no", **t), Beat]
    _run(engine, [chance.choice(verbs)(**t) for t in tickets])


def _claim(engine: Engine, chance: random.Random) -> None:
    _run(engine, [Claim(worker="rival", limit=chance.randint(1, 10), lease_s=0.02)])


def _claim_and_start(engine: Engine, chance: random.Random) -> None:
    """Start tasks with their claim, beside reports of others, and let them go again."""
    held = engine.claim(worker="rival", limit=chance.randint(1, 10), lease_s=2.0, start=True)
    reports: list[Command] = [Release(task=a.key, fence=a.fence, worker=a.worker) for a in held]
    _run(engine, [*reports, Claim(worker="rival", lease_s=0.02, start=True)])


def _expire(engine: Engine, chance: random.Random) -> None:
    engine.expire_leases()
    engine.do_due()


def _put_off(engine: Engine, chance: random.Random) -> None:
    commands: list[Command] = [Reschedule(task=k, delay_s=0.002) for k in _some(chance, 10)]
    _run(engine, commands + [Cancel(task=k, grace_s=0.002) for k in _some(chance, 1)])


def _beat_for_others(engine: Engine, chance: random.Random) -> None:
    """Renew leases that several claims share, in any order."""
    _run(engine, [Beat(task=k, lease_s=0.05) for k in _some(chance)])


def _open_flows(engine: Engine, chance: random.Random) -> list[tuple[str, str]]:
    """Flows that have not ended, each with its stage, in any order."""
    found = engine.store.read_sql(
        "SELECT CAST(f.id AS text), CAST(s.id AS text) FROM onetray.flow AS f JOIN onetray.stage AS s ON s.job = f.key "
        "WHERE f.finished_at IS NULL"
    )
    chance.shuffle(found)
    return [(flow, stage) for flow, stage in found]


def _cancel_flows(engine: Engine, chance: random.Random) -> None:
    """Cancel two, and see to it that there are enough."""
    flows = _open_flows(engine, chance)
    commands: list[Command] = [CancelFlow(flow, hard=chance.random() < 0.5) for flow, _ in flows[:2]]
    _run(engine, commands + [_flow() for _ in range(FLOWS - len(flows) + 2)])


def _pause_flows(engine: Engine, chance: random.Random) -> None:
    flows = [flow for flow, _ in _open_flows(engine, chance)[:3]]
    _run(engine, [PauseFlow(flow) for flow in flows])
    chance.shuffle(flows)
    _run(engine, [ResumeFlow(flow) for flow in flows])


def _touch_two_flows(engine: Engine, chance: random.Random) -> None:
    """One batch about the tasks of one flow and the stage of another, in any order."""
    commands: list[Command] = [
        AddTasks(stage, tasks=[TaskSpec("rival", delay_s=chance.choice((0.0, 0.005)))])
        for _, stage in _open_flows(engine, chance)[:2]
    ]
    newest = engine.store.read_sql("SELECT max(key) FROM onetray.task")[0][0]
    commands += [SetPriority(task=newest - chance.randint(0, 60), priority=chance.randint(-3, 3)) for _ in range(5)]
    chance.shuffle(commands)
    _run(engine, commands)


ROUNDS: dict[str, Round] = {
    "set_priority": _set_priorities,
    "cancel": _cancel_and_submit,
    "report": _claim_and_report,
    "claim": _claim,
    "claim_and_start": _claim_and_start,
    "expire": _expire,
    "put_off": _put_off,
    "beat": _beat_for_others,
    "cancel_flow": _cancel_flows,
    "pause_flow": _pause_flows,
    "touch_flows": _touch_two_flows,
}
