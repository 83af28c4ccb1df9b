"""A task is explained exactly as it can be claimed: no reason given means that a claim hands it out now."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.commands import (
    Cancel,
    Claim,
    Command,
    Fail,
    Pause,
    Release,
    Reschedule,
    Resume,
    SetPriority,
    Start,
    Submit,
    Succeed,
    ticket,
)
from onetray.domain.errors import NotFound
from onetray.domain.policy import Policy
from onetray.domain.system_commands import DeadLetterIt
from onetray.domain.task import Assignment, Blocker
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.databases import Databases
from tests.support.engines import engine_on
from tests.support.listening import register

PLAIN = Policy(jitter=False, backoff_base_s=10, lease_s=60)
POLICIES = (
    PLAIN,
    Policy(max_attempts=1, lease_s=20, breaker_failures=30, breaker_window_s=20, breaker_open_s=10),
    Policy(queue_ttl_s=30, lease_s=20, backoff_base_s=5),
    Policy(deadline_s=150, timeout_s=10, lease_s=20, on_exhaustion="fail"),
)
QUEUES, KINDS = ("a", "b", "c", "d"), ("mail", "scan")
WALKS, TASKS_EACH = 5, 2_000 if settings().max_examples > 1000 else 400


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """Somebody listens. What is explained if nobody does: tests/contract/test_explain_workers.py."""
    register(engine, "default", *QUEUES)
    return engine


def only(blockers: list[Blocker]) -> Blocker:
    (blocker,) = blockers
    return blocker


def codes(blockers: list[Blocker]) -> list[str]:
    return [b.code for b in blockers]


def submitted(engine: Engine, policy: Policy = PLAIN, delay_s: float = 0.0) -> str:
    return engine.submit("mail", policy=policy, delay_s=delay_s).id or ""


# One test for each reason.


def test_a_claimable_task_has_no_blocker(engine: Engine) -> None:
    assert engine.explain(submitted(engine)) == []


def test_an_assigned_task_names_its_worker_and_when_the_lease_ends(engine: Engine, clock: VirtualClock) -> None:
    task = submitted(engine)
    engine.claim(worker="wes")
    found = only(engine.explain(task))
    assert (found.code, found.held_by, found.ends_at) == ("assigned", "wes", clock.now() + 60 * SECOND)
    assert not found.facts["lease_expired"]


def test_a_running_task_says_when_its_lease_has_run_out_unswept(engine: Engine, clock: VirtualClock) -> None:
    task = submitted(engine)
    engine.start(engine.claim(worker="wes")[0])
    ends_at = clock.now() + 60 * SECOND
    clock.advance(60)
    assert not only(engine.explain(task)).facts["lease_expired"]
    clock.advance(1)
    found = only(engine.explain(task))
    assert (found.code, found.held_by, found.ends_at) == ("running", "wes", ends_at)
    assert found.facts["lease_expired"]
    assert "has expired" in found.message


def test_a_soft_cancel_is_named_beside_the_worker_with_the_end_of_its_grace(
    engine: Engine, clock: VirtualClock
) -> None:
    task = submitted(engine)
    engine.claim(worker="wes")
    engine.cancel(task, grace_s=7)
    _, asked = engine.explain(task)
    assert (asked.code, asked.held_by, asked.ends_at) == ("cancel_requested", "wes", clock.now() + 7 * SECOND)


def test_without_the_note_of_a_cancel_the_policy_says_how_long_the_grace_is(
    engine: Engine, clock: VirtualClock
) -> None:
    task, ends_at = submitted(engine), clock.now() + 30 * SECOND
    engine.claim(worker="wes")
    engine.cancel(task, grace_s=7)
    clock.advance(1)
    submitted(engine)
    engine.prune_notes(["task.cancel_requested"], older_than_s=0)
    assert engine.explain(task)[1].ends_at == ends_at


@each_case("state", ["blocked", "waiting_input"])
def test_a_paused_task_names_who_has_to_resume_it(engine: Engine, clock: VirtualClock, state: str) -> None:
    task, due = submitted(engine, PLAIN.with_(deadline_s=500)), clock.now() + 500 * SECOND
    engine.pause(engine.claim(worker="wes")[0], owner="ann", reason="which colour?", state=state)
    found = only(engine.explain(task))
    assert (found.code, found.held_by, found.ends_at) == (state, "ann", due)
    command = f"onetray jobs resume {task}{' --input JSON' if state == 'waiting_input' else ''}"
    assert found.facts == {"reason": "which colour?", "command": command}
    clock.advance(500)
    assert only(engine.explain(task)).facts["overdue"]


def test_a_paused_task_without_a_deadline_ends_nobody_knows_when(engine: Engine) -> None:
    task = submitted(engine)
    engine.pause(engine.claim(worker="wes")[0], owner="ann", reason="asks")
    assert only(engine.explain(task)).ends_at is None


def test_a_task_that_is_over_says_so(engine: Engine) -> None:
    ends = {
        "succeeded": lambda a: engine.succeed(a),
        "failed": lambda a: engine.fail(a, "no", retryable=False),
        "cancelled": lambda a: engine.cancel(a.id, hard=True),
        "dead_lettered": lambda a: engine.fail(a, "no", reason_code="parse_error"),
    }
    for state, end in ends.items():
        task = submitted(engine)
        end(engine.claim(worker="wes")[0])
        found = only(engine.explain(task))
        assert (found.code, found.held_by, found.ends_at) == (state, None, None)


def test_a_delayed_task_says_when_it_may_run(engine: Engine, clock: VirtualClock) -> None:
    task = submitted(engine, delay_s=30)
    assert only(engine.explain(task)).code == "delayed"
    assert only(engine.explain(task)).ends_at == clock.now() + 30 * SECOND


def test_a_task_backs_off_after_a_failed_attempt(engine: Engine, clock: VirtualClock) -> None:
    task = submitted(engine)
    engine.fail(engine.claim(worker="wes")[0], "no")
    found = only(engine.explain(task))
    assert (found.code, found.ends_at) == ("backing_off", clock.now() + 10 * SECOND)
    engine.reschedule(task, delay_s=99)
    assert only(engine.explain(task)).code == "delayed"


def test_a_released_task_is_delayed_not_backing_off(engine: Engine) -> None:
    task = submitted(engine)
    engine.release(engine.claim(worker="wes")[0], delay_s=5)
    assert only(engine.explain(task)).code == "delayed"


def test_a_task_whose_time_has_come_waits_for_the_janitor(engine: Engine, clock: VirtualClock) -> None:
    task = submitted(engine, delay_s=30)
    clock.advance(30)
    assert only(engine.explain(task)).code == "not_promoted"
    engine.do_due()
    assert engine.explain(task) == []


def test_a_paused_queue_is_named_with_who_paused_it_and_since_when(engine: Engine, clock: VirtualClock) -> None:
    task, later = submitted(engine), submitted(engine, delay_s=9)
    engine.pause_queue("default", by="ann")
    found = only(engine.explain(task))
    assert (found.code, found.held_by, found.facts["since"]) == ("queue_paused", "ann", clock.now())
    assert codes(engine.explain(later)) == ["delayed", "queue_paused"]
    engine.resume_queue("default")
    assert engine.explain(task) == []


def test_an_open_breaker_is_named_with_its_reason_and_its_end(engine: Engine, clock: VirtualClock) -> None:
    task, later = submitted(engine), submitted(engine, delay_s=500)
    engine.open_breaker("mail", for_s=60, by="ann", why="the server is down")
    found = only(engine.explain(task))
    assert (found.code, found.held_by, found.ends_at) == ("breaker_open", "ann", clock.now() + 60 * SECOND)
    assert found.facts == {
        "kind": "mail", "since": clock.now(), "probing": False, "why": "the server is down",
        "command": "onetray breakers close mail",
    }  # fmt: skip
    assert codes(engine.explain(later)) == ["delayed", "breaker_open"]
    engine.close_breaker("mail")
    assert engine.explain(task) == []


def test_a_breaker_that_may_be_tried_blocks_nobody_and_one_that_is_being_tried_all_others(
    engine: Engine, clock: VirtualClock
) -> None:
    tasks = [submitted(engine, PLAIN.with_(breaker_failures=1, breaker_open_s=7)) for _ in range(2)]
    engine.open_breaker("mail", for_s=60)
    clock.advance(60)
    assert [engine.explain(t) for t in tasks] == [[], []]
    assert [a.id for a in engine.claim(worker="wes", limit=9)] == tasks[:1]
    found = only(engine.explain(tasks[1]))
    assert (found.code, found.ends_at, found.facts["probing"]) == ("breaker_open", clock.now() + 7 * SECOND, True)
    assert codes(engine.explain(tasks[0])) == ["assigned"]
    clock.advance(7)
    assert engine.explain(tasks[1]) == []


def test_a_queued_task_that_is_neither_ready_nor_due_is_held(database_url: str, clock: VirtualClock) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(engine_on(database_url, clock))
        register(engine)
        task = engine.task(submitted(engine))
        sql = "SELECT queue, kind FROM onetray.task WHERE key = :key"
        ((queue, kind),) = engine.store.read_sql(sql, key=task.key)
        place = {"queue": [queue], "rank": [0], "key": [task.key], "kind": [kind]}
        with engine.store.transaction() as tx:
            tx.batch("delete_ready", place)
        assert only(engine.explain(task.id)).code == "held"
        # A broken database on purpose: mended before it is verified.
        with engine.store.transaction() as tx:
            tx.batch("insert_ready", place)


def test_nobody_is_explained_who_does_not_exist(engine: Engine) -> None:
    task = submitted(engine)
    with pytest.raises(NotFound):
        engine.explain(task, namespace="elsewhere")
    with pytest.raises(NotFound):
        engine.explain(task[:-4] + ("0000" if task[-4:] != "0000" else "1111"))


def test_the_position_counts_what_is_claimed_before(engine: Engine) -> None:
    first, second = submitted(engine), submitted(engine)
    urgent = engine.submit("mail", priority=5).id or ""
    assert [engine.position(t) for t in (urgent, first, second)] == [0, 1, 2]
    assert engine.position(second, most=1) == 1
    assert engine.position(submitted(engine, delay_s=5)) is None


# Ten thousand states on each store.


@pytest.fixture(params=["sqlite", "postgres"])
def several(request: pytest.FixtureRequest, databases: Databases) -> Iterator[list[tuple[Engine, VirtualClock]]]:
    with ExitStack() as stack:
        engines = []
        for _ in range(WALKS):
            url = "sqlite://:memory:" if request.param == "sqlite" else stack.enter_context(databases.database())
            clock = VirtualClock()
            engines.append((stack.enter_context(engine_on(url, clock)), clock))
            register(engines[-1][0], *QUEUES)
        yield engines


def test_thousands_of_tasks_are_explained_exactly_as_they_can_be_claimed(
    several: list[tuple[Engine, VirtualClock]],
) -> None:
    seen: Counter[str] = Counter()
    for seed, (engine, clock) in enumerate(several):
        ids = wander(engine, clock, random.Random(seed))
        found = {task: codes(engine.explain(task)) for task in ids}
        seen.update(code for some in found.values() for code in some or ["claimable"])
        assert {task for task, some in found.items() if not some} == claim_everything(engine, by_kind=seed % 2 == 1)
    assert set(seen) == {
        "claimable", "assigned", "running", "cancel_requested", "blocked", "waiting_input", "succeeded", "failed",
        "cancelled", "dead_lettered", "delayed", "backing_off", "not_promoted", "queue_paused",
        "breaker_open",
    }  # fmt: skip
    assert min(seen.values()) >= 10, seen


def wander(engine: Engine, clock: VirtualClock, chance: random.Random) -> list[str]:
    """Bring many tasks into all kinds of states: whole batches of verbs, half of them refused."""
    ids: list[str] = []
    held: list[Assignment] = []
    while len(ids) < TASKS_EACH:
        new = [_new(chance) for _ in range(200)]
        ids += [v.unwrap().id for v in engine.run(new)]
        for verdict in engine.run([Claim(queue=q, worker=chance.choice("xy"), limit=40) for q in QUEUES]):
            held += verdict.unwrap()
        held = held[-400:]
        engine.run([_report(chance, a) for a in chance.sample(held, min(len(held), 120))])
        engine.run([_control(chance, task) for task in chance.sample(ids, min(len(ids), 60))])
        clock.advance(chance.choice([0, 1, 7, 15]))
        if chance.random() < 0.5:
            engine.expire_leases()
        if chance.random() < 0.5:
            engine.do_due()
        (engine.pause_queue if chance.random() < 0.3 else engine.resume_queue)(chance.choice(QUEUES))
        if chance.random() < 0.2:
            engine.open_breaker(chance.choice(KINDS), for_s=chance.choice([0.5, 20]))
    engine.pause_queue(chance.choice(QUEUES), by="ann")
    # None that may be tried: of such a kind every task might be the one, and a claim takes one.
    for kind in KINDS:
        engine.close_breaker(kind)
    if chance.random() < 0.6:
        engine.open_breaker(chance.choice(KINDS), for_s=60)
    return ids


def _new(chance: random.Random) -> Command:
    delay_s = chance.choice([0, 0, 0, 3, 20, 60])
    return Submit(
        kind=chance.choice(KINDS), queue=chance.choice(QUEUES), policy=chance.choice(POLICIES), delay_s=delay_s,
        priority=chance.choice([0, 0, 3]),
    )  # fmt: skip


def _report(chance: random.Random, a: Assignment) -> Command:
    t = ticket(a)
    return chance.choice(
        [
            Start(**t), Start(**t), Start(**t), Succeed(**t), Fail(message="no", **t),
            Fail(message="no", retryable=False, **t),
            Fail(message="no", reason_code="timeout", **t), Release(delay_s=chance.choice([0, 9]), **t),
            Pause(owner="ann", reason="asks", **t), Pause(owner="ann", reason="asks", state="waiting_input", **t),
        ]
    )  # fmt: skip


def _control(chance: random.Random, task: str) -> Command:
    return chance.choice(
        [
            Cancel(task=task, grace_s=9), Cancel(task=task), Resume(task=task), SetPriority(task=task, priority=1),
            Reschedule(task=task, delay_s=chance.choice([0, 5, 50])), DeadLetterIt(task=task, reason_code="timeout"),
        ]
    )  # fmt: skip


def claim_everything(engine: Engine, by_kind: bool) -> set[str]:
    """What claims hand out when they ask for all there is, in one sweep."""
    wanted = [(kind,) for kind in KINDS] if by_kind else [None]
    claims: list[Command] = [Claim(queue=q, worker="z", kinds=k, limit=10_000) for q in QUEUES for k in wanted]
    return {a.id for verdict in engine.run(claims) for a in verdict.unwrap()}
