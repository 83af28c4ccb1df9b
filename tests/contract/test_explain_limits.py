"""Why a limit holds a task back: the limit, its numbers, who holds its slots, when the next task may start."""

from __future__ import annotations

from typing import Any

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.limits import Concurrency, Rate
from onetray.domain.policy import Policy
from onetray.domain.task import Blocker
from onetray.engine import Engine
from onetray.explain.tasks import is_claimable
from tests.support.tasks import submit

BY_TENANT = Policy(concurrency=(Concurrency(2, key="tenant"),))


def reasons(engine: Engine, task: str) -> list[Blocker]:
    """Without those about workers: these tests register none."""
    return [reason for reason in engine.explain(task) if not reason.code.startswith("no_worker")]


def only(engine: Engine, task: str) -> Blocker:
    (reason,) = reasons(engine, task)
    return reason


def sent(engine: Engine, tenant: Any, number: int = 1, kind: str = "send") -> list[str]:
    return [submit(engine, kind, payload={"tenant": tenant}) for _ in range(number)]


def test_a_task_behind_a_limit_of_its_queue_names_who_holds_the_slots(engine: Engine, clock: VirtualClock) -> None:
    limit = engine.set_limit(queue="mail", concurrency=1)
    first, second = submit(engine, queue="mail"), submit(engine, queue="mail")
    assert reasons(engine, second) == []
    (held,) = engine.claim("mail", worker="w1", limit=2)
    assert held.id == first
    clock.advance(12)
    reason = only(engine, second)
    assert (reason.code, reason.held_by, reason.ends_at) == ("concurrency_reached", "w1", None)
    assert reason.message == (
        f"the limit 'concurrency of queue mail' is reached: 1 of 1 run ({first} on w1, 12 s); "
        "`onetray limits set --queue mail --concurrency N` changes it"
    )
    assert (reason.facts["limit"], reason.facts["most"], reason.facts["running"]) == (limit, 1, 1)
    assert [(h["task"], h["worker"], h["state"]) for h in reason.facts["holders"]] == [(first, "w1", "assigned")]
    engine.succeed(held)
    assert reasons(engine, second) == []
    assert [t.id for t in engine.claim("mail", worker="w1")] == [second]


def test_a_task_behind_a_limit_of_its_key_names_the_value(engine: Engine) -> None:
    engine.configure("send", BY_TENANT)
    tasks, (other,) = sent(engine, "acme", 5), sent(engine, "bill")
    held = engine.claim(worker="w1", limit=10)
    assert sorted(t.id for t in held) == sorted([*tasks[:2], other])
    (another,) = sent(engine, "bill")
    assert reasons(engine, another) == []
    reason = only(engine, tasks[4])
    assert reason.facts["value"] == "acme"
    assert {h["task"] for h in reason.facts["holders"]} == set(tasks[:2])
    assert "'concurrency of kind send by tenant' for tenant = \"acme\" is reached: 2 of 2 run (" in reason.message
    assert reason.held_by is None


def test_many_holders_are_counted_not_listed(engine: Engine) -> None:
    engine.set_limit(kind="mail", concurrency=30)
    tasks = [submit(engine, "mail") for _ in range(31)]
    engine.claim(worker="w1", limit=31)
    reason = only(engine, tasks[30])
    assert len(reason.facts["holders"]) == 20
    assert "30 of 30 run (" in reason.message
    assert "; and 27 more); " in reason.message


def test_a_lowered_limit_says_how_many_still_run(engine: Engine) -> None:
    engine.set_limit(kind="mail", concurrency=3)
    tasks = [submit(engine, "mail") for _ in range(4)]
    engine.claim(worker="w1", limit=4)
    engine.set_limit(kind="mail", concurrency=1)
    assert "3 of 1 run (" in only(engine, tasks[3]).message


def test_a_limit_of_none_says_who_has_set_it(engine: Engine) -> None:
    engine.set_limit(kind="mail", concurrency=0, by="ann")
    reason = only(engine, submit(engine, "mail"))
    assert (reason.code, reason.held_by) == ("concurrency_reached", "ann")
    assert "lets no task start: ann has set it to 0; " in reason.message


def test_a_rate_says_when_the_next_task_may_start(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("send", Policy(rate=(Rate(2, 60, key="tenant"),)))
    tasks = sent(engine, "acme", 3)
    began = engine.store.now()
    assert len(engine.claim(worker="w1", limit=3)) == 2
    clock.advance(20)
    reason = only(engine, tasks[2])
    assert (reason.code, reason.facts["started"], reason.facts["value"]) == ("rate_reached", 2, "acme")
    assert reason.ends_at is not None
    assert 60 * SECOND <= reason.ends_at - began <= 61 * SECOND
    assert "the limit 'rate of kind send by tenant' of 2/m for tenant = \"acme\" is used up: the next" in reason.message
    clock.advance(42)
    assert only(engine, tasks[2]).code == "lane_opening"
    engine.do_due()
    assert reasons(engine, tasks[2]) == []
    assert [t.id for t in engine.claim(worker="w1")] == [tasks[2]]


def test_a_fair_task_says_with_how_many_it_takes_turns(engine: Engine) -> None:
    engine.configure("send", Policy(fair_by="tenant"))
    sent(engine, "acme", 3)
    (task,) = sent(engine, "bill")
    sent(engine, None)
    reason = only(engine, task)
    assert reason.code == "takes_turns"
    assert is_claimable([reason])
    assert (reason.facts["fair_by"], reason.facts["value"], reason.facts["others"]) == ("tenant", "bill", 2)
    assert reason.message.startswith('its tenant, "bill", takes turns with 2 others in the queue; ')


def test_a_paused_queue_and_an_open_breaker_come_first(engine: Engine) -> None:
    engine.set_limit(kind="mail", concurrency=0)
    task = submit(engine, "mail")
    engine.pause_queue("default")
    engine.open_breaker("mail", for_s=60, by="ann", why="x")
    assert [r.code for r in reasons(engine, task)] == ["queue_paused", "breaker_open", "concurrency_reached"]


def test_a_removed_limit_holds_nothing_back(engine: Engine) -> None:
    limit = engine.set_limit(kind="mail", concurrency=0)
    task = submit(engine, "mail")
    engine.remove_limit(limit)
    assert reasons(engine, task) == []


def test_queues_and_limits_count_what_is_held_back(engine: Engine) -> None:
    engine.configure("send", BY_TENANT)
    engine.set_limit(kind="mail", concurrency=1)
    sent(engine, "acme", 5), sent(engine, "bill", 2)
    for _ in range(3):
        submit(engine, "mail")
    submit(engine, "plain"), submit(engine, "plain", queue="other")
    oldest = engine.store.now()
    engine.claim(worker="w1", limit=100)
    engine.claim(worker="w1", limit=100)
    waits = {limit.kind: limit.waiting for limit in engine.limits()}
    assert waits == {"send": 3, "mail": 2}
    (depth, other), (seen, _) = engine.queues(), engine.overview().queues
    assert (depth.ready, depth.limited, depth.held) == (seen.ready, seen.limited, seen.held) == (5, 5, 6)
    assert (other.ready, other.limited) == (1, 0)
    assert depth.oldest_ready_at == seen.oldest_ready_at
    assert depth.oldest_ready_at is not None
    assert depth.oldest_ready_at <= oldest


def test_a_full_queue_holds_back_all_that_is_ready_in_it(engine: Engine) -> None:
    engine.configure("send", Policy(fair_by="tenant"))
    limit = engine.set_limit(queue="default", concurrency=1)
    sent(engine, "acme", 2), sent(engine, "bill", 2)
    submit(engine, "mail")
    assert engine.queues()[0].limited == 0
    engine.claim(worker="w1", limit=10)
    (depth,) = engine.queues()
    assert (depth.ready, depth.limited, engine.limit(limit).waiting) == (4, 4, 4)
