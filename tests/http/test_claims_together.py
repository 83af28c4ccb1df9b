"""Claims of several clients that a server carries out in one batch: each client has its own tasks and its own lease."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Claim, Command
from onetray.domain.lifecycle import ASSIGNED, QUEUED
from onetray.engine import Engine
from tests.support.live import Live, serving
from tests.support.tasks import last, settle, state, submit
from tests.support.waits import wait_until

WAIT_S = 30.0


class HeldRuns:
    """The batches of an engine. The first waits until it is let go, so that the next requests gather."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Sequence[Command]] = []
        self.go = threading.Event()
        self._run = engine.run
        monkeypatch.setattr(engine, "run", self.run)

    def run(self, commands: Sequence[Command]) -> Any:
        self.batches.append(commands)
        if len(self.batches) == 1:
            assert self.go.wait(WAIT_S)
        return self._run(commands)


def claim(live: Live, worker: str, queue: str = "default") -> Any:
    answer = httpx2.post(f"{live.url}/api/v1/tasks/claim", json={"worker": worker, "queue": queue}, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["tasks"]


def claim_together(live: Live, runs: HeldRuns, workers: Sequence[str]) -> list[Any]:
    """What each of these workers is given, whose claims are one batch."""
    with ThreadPoolExecutor(len(workers) + 1) as clients:
        first = clients.submit(claim, live, "first", "empty")
        wait_until(lambda: len(runs.batches) == 1)
        found = []
        for n, worker in enumerate(workers, 1):
            found.append(clients.submit(claim, live, worker))
            wait_until(lambda n=n: live.on_loop(lambda: len(live.services.commands()._waiting)) == n)  # type: ignore[misc]
        runs.go.set()
        assert first.result(WAIT_S) == []
        return [future.result(WAIT_S) for future in found]


def test_claims_of_many_clients_are_one_batch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [submit(engine) for _ in range(4)]
    runs = HeldRuns(engine, monkeypatch)
    with serving(engine) as live:
        found = claim_together(live, runs, ["a", "b", "a", "c", "d"])
    assert [[type(command) for command in batch] for batch in runs.batches] == [[Claim], [Claim] * 5]
    assert [[task["id"] for task in given] for given in found] == [[id_] for id_ in tasks] + [[]]
    assert [last(engine, id_).actor for id_ in tasks] == ["worker:a", "worker:b", "worker:a", "worker:c"]


def test_the_task_of_a_dead_client_is_not_kept_by_the_heartbeat_of_another(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same name, and claimed in the same transaction."""
    submit(engine)
    submit(engine)
    runs = HeldRuns(engine, monkeypatch)
    with serving(engine) as live:
        (dead,), (alive,) = claim_together(live, runs, ["w", "w"])
        ticket = {"fence": alive["fence"], "worker": "w"}
        clock.advance(alive["lease_s"] - 1)
        assert httpx2.post(f"{live.url}/api/v1/tasks/{alive['id']}/beat", json=ticket).status_code == 200
        clock.advance(2)
        settle(engine)
        assert (state(engine, dead["id"]), state(engine, alive["id"])) == (QUEUED, ASSIGNED)
        assert httpx2.post(f"{live.url}/api/v1/tasks/{alive['id']}/succeed", json=ticket).status_code == 200
