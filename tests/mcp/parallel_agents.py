"""Agents that share out runs by the tools of parallel-mcp, each test with a kind of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uuid_utils import uuid4

from tests.mcp.agents import Agent
from tests.support.waits import wait_until

Record = dict[str, Any]


@dataclass
class Crew:
    """An agent, and a kind that no other test uses: no claim of one test gets a task of another."""

    agent: Agent
    kind: str

    @property
    def call(self) -> Any:
        return self.agent.call

    @property
    def refusal(self) -> Any:
        return self.agent.refusal

    def run(self, **fields: Any) -> str:
        return str(self.call("create_run", **fields)["run"]["id"])

    def task(self, run: str, **fields: Any) -> Record:
        task: Record = self.call("enqueue_task", **{"runId": run, "kind": self.kind, **fields})["task"]
        return task

    def claim(self, worker: str = "w", **fields: Any) -> Record | None:
        claim: Record | None = self.call(
            "claim_next_task", **{"workerId": worker, "kinds": [self.kind], "leaseMs": 60_000, **fields}
        )["claim"]
        return claim

    def take(self, worker: str = "w", **fields: Any) -> Record:
        """The fields that name a claimed task in reports."""
        claim = self.claim(worker, **fields)
        assert claim is not None
        return {"taskId": claim["task"]["id"], "leaseId": claim["lease"]["id"], "workerId": worker}

    def report(self, tool: str, held: Record, **fields: Any) -> Record:
        task: Record = self.call(tool, **held, **fields)["task"]
        return task

    def status(self, run: str) -> str:
        return str(self.call("get_run", runId=run)["run"]["status"])

    def get(self, task: str) -> Record:
        found: Record = self.call("get_task", taskId=task)["task"]
        return found

    def expire(self, held: Record) -> None:
        """Wait for the end of a short lease, and until it was swept."""
        for _ in range(500):
            time.sleep(0.02)
            self.call("expire_leases")
            if self.get(held["taskId"])["leaseId"] != held["leaseId"]:
                return
        raise AssertionError("the lease does not expire")

    def die(self, run: str, **fields: Any) -> Record:
        """A dead task: its one attempt was used up."""
        task = self.task(run, maxAttempts=1, **fields)
        self.expire(self.take(leaseMs=10))
        return self.get(task["id"])

    def log(self, run: str, last: str, times: int = 1) -> list[Record]:
        """The events of a run, once there are so many of this type.

        The feed ends before an event while an older transaction is open, for example the janitor's.
        """
        events: list[Record] = []

        def has_come() -> bool:
            events[:] = self.call("list_run_events", runId=run)["events"]
            return _types(events).count(last) >= times

        wait_until(has_come)
        return events

    def events(self, run: str, last: str, times: int = 1) -> list[str]:
        """The types of the events of a run, once there are so many of the last."""
        return _types(self.log(run, last, times))


def _types(events: list[Record]) -> list[str]:
    return [event["eventType"] for event in events]


def crew_of(agent: Agent) -> Crew:
    return Crew(agent, f"kind-{uuid4()}")


def own_id(name: str = "own") -> str:
    return f"{name}/{uuid4()}"


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it does not happen")
