"""64 claimers at once, with everything that may happen to a task happening around them."""

from __future__ import annotations

from tests.support.claim_load import run_claim_load

# Processes, threads of each, and tasks.
SHAPES = {"sqlite": (8, 8, 150), "postgresql": (8, 8, 200)}


def shape_of(url: str) -> tuple[int, int, int]:
    return SHAPES[url.split(":")[0]]


def test_64_claimers_never_get_the_same_attempt_and_every_task_ends_in_one_tray(database_url: str) -> None:
    processes, threads, tasks = shape_of(database_url)
    outcome = run_claim_load(database_url, tasks=tasks, processes=processes, threads=threads)
    assert not outcome.faults, outcome.faults[:20]
    seen = outcome.found.types
    for type_ in ("claimed", "succeeded", "retried", "released", "lease_expired", "cancelled"):
        assert seen[f"task.{type_}"] > 0, f"too little happened: no task was {type_}"


def test_1000_jobs_under_load_leave_one_event_for_each_transition_and_expired_leases_requeue(database_url: str) -> None:
    outcome = run_claim_load(database_url, tasks=1000, processes=2, threads=8, calm=True)
    assert not outcome.faults, outcome.faults[:20]
    found = outcome.found
    assert found.states == {"succeeded": 1000}
    expired = found.types["task.lease_expired"]
    assert expired > 0
    assert found.types == {
        "task.submitted": 1000,
        "task.claimed": 1000 + expired,
        "task.lease_expired": expired,
        "task.started": 1000,
        "task.succeeded": 1000,
    }
