"""Upkeep of one namespace: expired leases and ended jobs, by ids."""

from __future__ import annotations

import threading

import pytest

from onetray import Engine, InvalidInput, NotFound, StageSpec, TaskSpec
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.lifecycle import ASSIGNED, DEAD_LETTERED, QUEUED
from onetray.domain.policy import Policy
from onetray.engine import deletion, upkeep_api
from tests.support.cases import each_case
from tests.support.tasks import in_state, state, submit, take

HOUR = 3600 * SECOND


def test_expired_tasks_of_one_namespace_are_answered_by_id(engine: Engine, clock: VirtualClock) -> None:
    ours = [submit(engine) for _ in range(3)]
    theirs = submit(engine, namespace="north")
    for namespace in ("default", "default", "default", "north"):
        engine.claim(worker="w", namespace=namespace, lease_s=0.01)
    assert engine.expire_tasks() == []
    clock.advance(0.010001)
    assert engine.expire_tasks(namespace="nobody") == []
    assert engine.expire_tasks(limit=2) == ours[:2]
    assert engine.expire_tasks() == ours[2:]
    assert engine.expire_tasks() == []
    assert engine.task(theirs, namespace="north").state == ASSIGNED
    assert engine.expire_tasks(namespace="north") == [theirs]


def test_expiry_as_of_a_later_time_also_ends_what_has_no_attempt_left(engine: Engine, clock: VirtualClock) -> None:
    kept, ended = submit(engine), submit(engine, policy=Policy(max_attempts=1))
    for _ in range(2):
        take(engine, expiry_counts=True)
    assert engine.expire_tasks(now=clock.now() + 60 * SECOND) == []
    assert sorted(engine.expire_tasks(now=clock.now() + 61 * SECOND)) == sorted([kept, ended])
    assert (state(engine, kept), state(engine, ended)) == (QUEUED, DEAD_LETTERED)


def test_many_that_expire_at_once_are_answered_once_each(engine: Engine, clock: VirtualClock) -> None:
    ids = {submit(engine) for _ in range(60)}
    for _ in range(6):
        engine.claim(worker="w", limit=10)
    clock.advance(61)
    together, answered = threading.Barrier(4), list[str]()

    def expire() -> None:
        together.wait(10)
        while expired := engine.expire_tasks(limit=7):
            answered.extend(expired)

    threads = [threading.Thread(target=expire) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (sorted(answered), len(answered)) == (sorted(ids), 60)


def test_ended_jobs_are_pruned_by_time_state_and_namespace(engine: Engine, clock: VirtualClock) -> None:
    done, failed, open_ = (in_state(engine, s).id for s in ("succeeded", "failed", "queued"))
    theirs = submit(engine, namespace="north")
    engine.cancel(theirs, namespace="north", hard=True)
    clock.advance(60)
    before = clock.now()
    flow = engine.submit_flow("run", [StageSpec("all", [TaskSpec("mail", queue="other")])])
    engine.succeed(take(engine, queue="other"))
    assert engine.prune_jobs(ended_before=0) == []
    assert engine.prune_jobs(ended_before=before, states=["cancelled"]) == []
    assert engine.prune_jobs(ended_before=before, states=["failed", "dead_lettered"], by="ann", reason="old") == [
        failed
    ]
    notes = [e for e in engine.feed.read(0, 1000).events if e.type == "job.deleted" and e.entity_id == failed]
    assert [(e.actor, e.cause) for e in notes] == [("user:ann", "old")]
    assert engine.prune_jobs(ended_before=before) == [done]
    assert engine.prune_jobs(ended_before=clock.now()) == []
    clock.advance(1)
    assert engine.prune_jobs(ended_before=clock.now(), entity="task") == []
    assert engine.prune_jobs(ended_before=clock.now()) == [flow.id]
    for gone in (done, failed):
        with pytest.raises(NotFound):
            engine.task(gone)
    assert (state(engine, open_), engine.task(theirs, namespace="north").state) == (QUEUED, "cancelled")
    assert engine.prune_jobs(ended_before=clock.now(), namespace="nobody") == []


def test_a_prune_has_a_limit_and_goes_on_with_the_oldest(engine: Engine, clock: VirtualClock) -> None:
    flows = [engine.submit_flow("run", sealed=True).id for _ in range(3)]
    ids = [in_state(engine, "succeeded").id for _ in range(5)]
    clock.advance(1)
    assert engine.prune_jobs(ended_before=clock.now(), limit=2) == flows[:2]
    assert engine.prune_jobs(ended_before=clock.now(), limit=4) == [flows[2], *ids[:3]]
    assert engine.prune_jobs(ended_before=clock.now(), limit=4) == ids[3:]


def test_a_prune_of_many_goes_in_steps(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_api, "SCAN", 3)
    monkeypatch.setattr(upkeep_api, "STEP", 2)
    ids = [submit(engine) for n in range(14)]
    for n, id_ in enumerate(ids):
        if n % 4 != 3:
            engine.cancel(id_)
    clock.advance(1)
    pruned = engine.prune_jobs(ended_before=clock.now())
    assert pruned == [id_ for n, id_ in enumerate(ids) if n % 4 != 3]


def test_a_large_flow_is_pruned_whole(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "STEP", 5)
    flow = engine.submit_flow("run", [StageSpec("all", [TaskSpec("mail") for _ in range(20)])])
    engine.cancel_flow(flow.id)
    clock.advance(1)
    assert engine.prune_jobs(ended_before=clock.now(), entity="flow") == [flow.id]
    assert engine.store.read_sql("SELECT key FROM onetray.task") == []


def test_what_is_still_needed_is_not_pruned(engine: Engine, clock: VirtualClock) -> None:
    keyed = submit(engine, idempotency_key="k")
    engine.cancel(keyed)
    flow = engine.submit_flow("run", [StageSpec("all", [TaskSpec("mail"), TaskSpec("mail")])])
    failing, running = engine.claim(worker="w", limit=2)
    engine.fail(failing, "no", retryable=False)
    clock.advance(1)
    assert engine.flow(flow.id).state == "failed"
    assert engine.prune_jobs(ended_before=clock.now()) == []
    engine.succeed(running)
    clock.advance(86_401)
    assert engine.prune_jobs(ended_before=clock.now()) == [flow.id, keyed]


@each_case(
    ("call", "fields", "field"),
    [
        ("expire_tasks", {"limit": 0}, "limit"), ("expire_tasks", {"limit": 10_001}, "limit"),
        ("expire_tasks", {"now": -1}, "now"), ("expire_tasks", {"now": "soon"}, "now"),
        ("expire_tasks", {"namespace": ""}, "namespace"), ("prune_jobs", {"ended_before": -1}, "ended_before"),
        ("prune_jobs", {"ended_before": 1.5}, "ended_before"), ("prune_jobs", {"ended_before": True}, "ended_before"),
        ("prune_jobs", {"ended_before": 1, "states": ["queued"]}, "states"),
        ("prune_jobs", {"ended_before": 1, "states": "failed"}, "states"),
        ("prune_jobs", {"ended_before": 1, "entity": "stage"}, "entity"),
        ("prune_jobs", {"ended_before": 1, "limit": 0}, "limit"),
        ("prune_jobs", {"ended_before": 1, "by": ""}, "by"),
        ("prune_jobs", {"ended_before": 1, "reason": ""}, "reason"),
        ("prune_jobs", {"ended_before": 1, "namespace": 5}, "namespace"),
    ],
)  # fmt: skip
def test_bad_input_is_named(engine: Engine, call: str, fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        getattr(engine, call)(**fields)
    assert refused.value.field == field
