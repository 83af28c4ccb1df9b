"""A small database with a task in every state, reached in many ways. Each is called by its correlation id."""

from __future__ import annotations

from typing import Any

from onetray.domain.clock import VirtualClock
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine

HOUR = 3600.0
TIMED = Policy(timeout_s=10 * HOUR, deadline_s=20 * HOUR, queue_ttl_s=30 * HOUR, lease_s=HOUR)
LONG = Policy(lease_s=HOUR, jitter=False)


def fill(engine: Engine, clock: VirtualClock) -> None:
    """Leave tasks in every state, with what belongs to them. The clock stands still where it does not matter."""
    for name in ("pruned", "done", "quick", "failed", "retried", "second", "released", "expired", "dead", "unclaimed",
                 "blocked", "waiting", "resumed", "cancelled", "asked", "assigned", "running", "keyed", "queued",
                 "exhausted", "moved"):  # fmt: skip
        policy = TIMED if name in ("pruned", "running") else Policy(lease_s=1) if name == "expired" else LONG
        key = "k" if name == "keyed" else None
        most = 1 if name == "exhausted" else None
        named: dict[str, Any] = (
            {"unique_key": "u", "alias": "q", "labels": {"team": "a", "tier": "b"}} if name == "quick" else {}
        )
        if name == "queued":
            named["throttle_s"] = HOUR
        _submit(engine, name, policy=policy, idempotency_key=key, max_attempts=most, **named)
    _submit(engine, "delayed", policy=LONG, delay_s=HOUR)
    _submit(engine, "timed", policy=TIMED)
    engine.submit("mail", {"anonymous": True}, queue="nameless", policy=LONG)
    engine.succeed(_claim(engine, "pruned"))
    _claim(engine, "assigned")
    engine.prune(0)
    clock.advance(1)
    _end(engine)
    _wait(engine, clock)
    _hold(engine)
    _limit(engine)


def _limit(engine: Engine) -> None:
    """Of two tasks under a limit, one is held, and one waits. In a namespace of their own: a limit marks its queues."""
    engine.configure("mail", LONG.with_(concurrency=(Concurrency(1, key="tenant"),)), namespace="limited")
    for name in ("slotted", "laned"):
        engine.submit("mail", {"tenant": "a"}, correlation_id=name, namespace="limited")
    engine.claim(worker="worker-of-slotted", limit=2, namespace="limited")


def _submit(engine: Engine, name: str, **fields: object) -> str:
    receipt = engine.submit("mail", {"name": name}, queue=name, correlation_id=name, **fields)
    assert receipt.id is not None
    return receipt.id


def _claim(engine: Engine, name: str) -> Assignment:
    (claimed,) = engine.claim(name, worker=f"worker-of-{name}")
    return claimed


def _end(engine: Engine) -> None:
    done = _claim(engine, "done")
    engine.start(done)
    engine.succeed(done, {"sent": 1})
    engine.succeed(_claim(engine, "quick"), ran_s=0.5)
    engine.fail(_claim(engine, "failed"), "no", retryable=False)
    dead = _claim(engine, "dead")
    engine.start(dead)
    engine.fail(dead, "no", reason_code="policy_violation")
    engine.redrive(dead.id)
    engine.fail(_claim(engine, "exhausted"), "no")
    (unclaimed,) = engine.events_by_correlation("unclaimed")
    engine.dead_letter(unclaimed.entity_id, "validation_failed")
    (cancelled,) = engine.events_by_correlation("cancelled")
    engine.cancel(cancelled.entity_id)


def _wait(engine: Engine, clock: VirtualClock) -> None:
    _claim(engine, "expired")
    second, moved = _claim(engine, "second"), _claim(engine, "moved")
    clock.advance(2)
    engine.fail(second, "again", retry_after_s=5)
    engine.fail(moved, "again", retry_after_s=HOUR)
    engine.reschedule(moved.id, delay_s=5)
    clock.advance(6)
    engine.sweep()
    engine.release(_claim(engine, "moved"))
    engine.release(_claim(engine, "released"), reason="not now")
    engine.fail(_claim(engine, "retried"), "again", retry_after_s=HOUR)
    for name, state in (("blocked", "blocked"), ("waiting", "waiting_input"), ("resumed", "blocked")):
        engine.pause(_claim(engine, name), state=state, owner="ann", reason="needs a human")
    engine.resume(engine.events_by_correlation("resumed")[0].entity_id, input={"yes": True})


def _hold(engine: Engine) -> None:
    for name in ("running", "second", "asked"):
        held = _claim(engine, name)
        engine.start(held)
        engine.log(held, "working")
        engine.beat(held)
    engine.cancel(held.id, grace_s=HOUR)
    engine.set_priority(engine.events_by_correlation("queued")[0].entity_id, 7)
