"""Agents that share out a run by the tools of parallel-mcp, and are killed at random.

Owns what must hold then: each task has one outcome, the one that an agent was told was accepted, and all tasks end.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from onetray.engine import Engine
from onetray.verify import verify
from tests.mcp.agents import Agent, agent_at
from tests.support import fleet
from tests.support.servers import ServerProcess
from tests.support.waits import wait_until

LEASE_MS = 1_500
STATUS_OF = {"complete_task": "completed", "fail_task": "failed"}


@dataclass
class Campaign:
    """What was done, and what went wrong."""

    tasks: int
    kills: int = 0
    accepted: int = 0
    attempts: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.tasks:,} tasks in {self.attempts:,} attempts, {self.kills} agents killed, "
            f"{self.accepted:,} outcomes accepted, {self.seconds:.1f} s"
        )


def kill_agents(
    database: str, folder: Path, *, tasks: int, every: int, seed: int, limit_s: float, say: Callable[[str], None]
) -> Campaign:
    """Let two agents do the tasks of a run, kill one of them again and again, and compare what they were told.

    One is killed after about `every` outcomes: by the clock, a busy machine would start agents only to kill them.
    """
    chance, done, began = random.Random(seed), Campaign(tasks), time.monotonic()
    with ServerProcess(database) as server, agent_at(server.url) as boss:
        run = str(boss.call("create_run")["run"]["id"])
        for n in range(tasks):
            boss.call("enqueue_task", runId=run, kind="work", id=f"{run}-{n}", input=n)
        agents = [_start(server.url, folder, f"agent-{n}") for n in range(2)]
        try:
            while _comes_to(chance.randint(1, 2 * every) + len(_journals(folder)), boss, run, folder, limit_s):
                victim = chance.randrange(len(agents))
                agents[victim].kill()
                agents[victim].join()
                done.kills += 1
                agents[victim] = _start(server.url, folder, f"agent-{len(agents)}-{done.kills}")
                if done.kills % 50 == 0:
                    say(f"{done.kills} killed, {len(_journals(folder))} outcomes")
        finally:
            for each in agents:
                each.kill()
                each.join()
        _compare(boss, run, _journals(folder), done)
    with Engine.open(database) as engine:
        wait_until(lambda: not engine.sweep(), 60.0)
        done.faults += [str(violation) for violation in verify(engine.store).violations]
    done.seconds = time.monotonic() - began
    return done


def _comes_to(outcomes: int, boss: Agent, run: str, folder: Path, limit_s: float) -> bool:
    """Wait for so many outcomes; False if the run ends before."""

    def is_active() -> bool:
        return bool(boss.call("get_run", runId=run)["run"]["status"] == "active")

    wait_until(lambda: len(_journals(folder)) >= outcomes or not is_active(), limit_s)
    return is_active()


def _start(url: str, folder: Path, name: str) -> BaseProcess:
    return fleet.start(work, url, str(folder / name), name)


def work(url: str, journal: str, name: str) -> None:
    """An agent: claims, sometimes thinks it over, reports, and writes down what was accepted."""
    chance = random.Random(name)
    ledger = fleet.Ledger(journal)
    with agent_at(url) as agent:
        while True:
            claim = agent.call(
                "claim_next_task", workerId=name, leaseMs=LEASE_MS, clientToken=f"{name}-{chance.random()}"
            )
            if claim["claim"] is None:
                time.sleep(0.1)
                continue
            _do(agent, name, claim["claim"], chance, ledger)


def _do(agent: Agent, name: str, claim: dict[str, Any], chance: random.Random, ledger: fleet.Ledger) -> None:
    held = {"taskId": claim["task"]["id"], "leaseId": claim["lease"]["id"], "workerId": name}
    lot = chance.random()
    if lot < 0.1:
        agent.call("release_task", **held, reason="not now")
        return
    if lot < 0.5:
        agent.call("mark_task_running", **held)
    if lot < 0.2:
        agent.call("heartbeat_lease", **held, leaseMs=LEASE_MS)
    tool, fields = ("fail_task", {"error": name}) if lot > 0.95 else ("complete_task", {"output": name})
    # Sent twice, as if the first answer was lost.
    for _ in range(2 if lot > 0.9 else 1):
        found = agent.result(tool, **held, **fields, clientToken=f"{name}-{lot}")
    if not found.is_error:
        ledger.write(held["taskId"], STATUS_OF[tool], name)


def _journals(folder: Path) -> list[list[str]]:
    """What agents were told was accepted: task, status and agent."""
    return [line for path in folder.iterdir() for line in fleet.Ledger.read(path)]


def _compare(boss: Agent, run: str, told: list[list[str]], done: Campaign) -> None:
    tasks = {task["id"]: task for task in boss.call("list_run_tasks", runId=run)["tasks"]}
    done.accepted, done.attempts = len(told), sum(task["attemptCount"] for task in tasks.values())
    twice = [task for task, count in Counter(task for task, _, _ in told).items() if count > 1]
    done.faults += [f"{task}: more than one outcome was accepted" for task in twice]
    for task, status, name in told:
        found = tasks[task]
        if (found["status"], found["output"] or found["error"]) != (status, name):
            done.faults.append(f"{task}: {name} was told {status}, but it is {found['status']}")
    open_ = [task["id"] for task in tasks.values() if task["status"] not in STATUS_OF.values()]
    done.faults += [f"{task} has not ended" for task in open_]
    if len(tasks) != done.tasks:
        done.faults.append(f"the run has {len(tasks)} tasks, not {done.tasks}")
    ends, cursor = Counter[str](), 0
    while page := boss.call("list_events_since", runId=run, afterId=cursor, limit=1000)["events"]:
        ends.update(e["taskId"] for e in page if e["eventType"] in ("task.completed", "task.failed"))
        cursor = page[-1]["id"]
    done.faults += [f"{task} ended {ends[task]} times" for task in tasks if ends[task] != 1 and task not in open_]
