"""64 claimers at once, with everything that may happen to a task happening around them."""

from __future__ import annotations

from tests.support.storms import run_storm

# Processes, threads of each, and tasks.
SHAPES = {"sqlite": (8, 8, 150), "postgresql": (8, 8, 200)}


def shape_of(url: str) -> tuple[int, int, int]:
    return SHAPES[url.split(":")[0]]


def test_64_claimers_never_get_the_same_attempt_and_every_task_ends_in_one_tray(database_url: str) -> None:
    processes, threads, tasks = shape_of(database_url)
    weather = run_storm(database_url, tasks=tasks, processes=processes, threads=threads)
    assert not weather.faults, weather.faults[:20]
    seen = weather.found.types
    for type_ in ("claimed", "succeeded", "retried", "released", "lease_expired", "cancelled"):
        assert seen[f"task.{type_}"] > 0, f"the storm was too calm: no task was {type_}"


def test_1000_jobs_under_load_leave_one_event_for_each_transition_and_expired_leases_requeue(database_url: str) -> None:
    weather = run_storm(database_url, tasks=1000, processes=2, threads=8, calm=True)
    assert not weather.faults, weather.faults[:20]
    found = weather.found
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
