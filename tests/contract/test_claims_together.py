"""Several claims in one batch: one write for all, and leases, events and answers of its own for each."""

from __future__ import annotations

from typing import Any

from onetray.config import EngineConfig, Limits
from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import ASSIGNED, DEAD_LETTERED, QUEUED, RUNNING, TASK
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.engines import engine_on, must_verify
from tests.support.flows import history, how
from tests.support.tasks import last, settle, state, submit, types


def together(engine: Engine, *claims: c.Claim) -> list[list[Assignment]]:
    """What each of the claims of one batch is given."""
    return [verdict.unwrap() for verdict in engine.run(claims)]


def ids(found: list[list[Assignment]]) -> list[list[str]]:
    return [[a.id for a in assignments] for assignments in found]


def rows_of_the_log(engine: Engine, type_: str) -> list[int]:
    """How many events each row of the log has."""
    sql = "SELECT size FROM onetray.event_batch WHERE type = :type ORDER BY id"
    return [size for (size,) in engine.store.read_sql(sql, type=type_)]


def test_each_claim_has_its_own_worker_lease_and_event(engine: Engine) -> None:
    for _ in range(10):
        submit(engine)
    found = together(engine, *(c.Claim(worker=f"w{n}") for n in range(10)))
    held = [a for (a,) in found]
    assert [a.worker for a in held] == [f"w{n}" for n in range(10)]
    assert len({a.lease for a in held}) == 10
    assert rows_of_the_log(engine, TASK.claim.event) == [10]
    for a in held:
        task, event = engine.task(a.id), last(engine, a.id)
        assert (task.state, task.owner, task.lease, task.attempts) == (ASSIGNED, a.worker, a.lease, 1)
        assert (event.type, event.actor, event.version, event.fence) == ("task.claimed", f"worker:{a.worker}", 2, 1)
    leases = {key: (worker, tasks) for key, worker, tasks in engine.store.read_sql(
        "SELECT key, worker, tasks FROM onetray.lease")}  # fmt: skip
    assert leases == {a.lease: (a.worker, f"[{a.key}]") for a in held}
    must_verify(engine)


def test_claims_under_one_name_have_leases_of_their_own(engine: Engine, clock: VirtualClock) -> None:
    """Two clients may have the same name. The task of one that has died is not kept by the other's heartbeat."""
    submit(engine)
    submit(engine)
    (dead,), (alive,) = together(engine, c.Claim(worker="w"), c.Claim(worker="w"))
    clock.advance(50)
    assert engine.beat(alive).lease_expires_at == clock.now() + 60 * SECOND
    clock.advance(11)
    settle(engine)
    assert (state(engine, dead.id), state(engine, alive.id)) == (QUEUED, ASSIGNED)
    engine.succeed(alive)
    assert types(engine, dead.id) == ["submitted", "claimed", "lease_expired"]


def test_a_heartbeat_renews_all_tasks_of_its_claim_and_no_others(engine: Engine, clock: VirtualClock) -> None:
    tasks = [submit(engine) for _ in range(6)]
    first, second = together(engine, c.Claim(worker="a", limit=3), c.Claim(worker="b", limit=3))
    clock.advance(30)
    engine.beat(first[0])
    later, sooner = clock.now() + 60 * SECOND, clock.now() + 30 * SECOND
    assert [engine.task(id_).lease_expires_at for id_ in tasks] == [later] * 3 + [sooner] * 3
    assert ids([first, second]) == [tasks[:3], tasks[3:]]


def test_each_claim_may_ask_for_a_length_and_a_price_of_its_own(engine: Engine, clock: VirtualClock) -> None:
    once = Policy(max_attempts=1)
    counted, spared, long = (submit(engine, policy=once) for _ in range(3))
    found = together(
        engine,
        c.Claim(worker="a", lease_s=5, expiry_counts=True),
        c.Claim(worker="b", lease_s=5),
        c.Claim(worker="c", lease_s=500),
    )
    assert ids(found) == [[counted], [spared], [long]]
    assert [a.lease_s for (a,) in found] == [5, 5, 500]
    clock.advance(6)
    settle(engine)
    assert [state(engine, id_) for id_ in (counted, spared, long)] == [DEAD_LETTERED, QUEUED, ASSIGNED]


def test_the_policies_decide_the_leases_of_each_claim(engine: Engine, clock: VirtualClock) -> None:
    for lease_s in (10, 20, 10, 20, 20):
        submit(engine, policy=Policy(lease_s=lease_s))
    mixed, alike = together(engine, c.Claim(worker="a", limit=3), c.Claim(worker="b", limit=3))
    assert [a.lease_s for a in mixed + alike] == [10, 20, 10, 20, 20]
    assert [a.lease_expires_at - clock.now() for a in mixed] == [10 * SECOND, 20 * SECOND, 10 * SECOND]
    assert mixed[0].lease == mixed[2].lease
    assert len({a.lease for a in mixed + alike}) == 3
    must_verify(engine)


def test_the_first_claims_are_served_first_when_there_are_too_few(engine: Engine) -> None:
    tasks = [submit(engine, priority=n) for n in range(5)][::-1]
    found = together(engine, *(c.Claim(worker=f"w{limit}", limit=limit) for limit in (1, 3, 2, 1)))
    assert ids(found) == [tasks[:1], tasks[1:4], tasks[4:], []]
    assert together(engine, c.Claim(worker="a"), c.Claim(worker="b", limit=9)) == [[], []]
    assert len(engine.store.read_sql("SELECT key FROM onetray.lease")) == 3


def test_claims_of_other_kinds_queues_and_namespaces_keep_to_their_own(engine: Engine) -> None:
    mail, sms, fax = (submit(engine, kind) for kind in ("mail", "sms", "fax"))
    there, elsewhere = submit(engine, queue="there"), submit(engine, namespace="else")
    found = together(
        engine,
        c.Claim(worker="a", kinds=("sms",)),
        c.Claim(worker="b", queue="there"),
        c.Claim(worker="c", kinds=("sms",)),
        c.Claim(worker="d", kinds=("fax", "mail")),
        c.Claim(worker="e", namespace="else", limit=9),
        c.Claim(worker="f", kinds=("unknown",)),
        c.Claim(worker="g", kinds=("fax", "mail"), limit=2),
        c.Claim(worker="h", queue="nowhere"),
        c.Claim(worker="i", kinds=()),
        c.Claim(worker="j", namespace="nowhere"),
    )
    assert ids(found) == [[sms], [there], [], [mail], [elsewhere], [], [fax], [], [], []]
    must_verify(engine)


@each_case("kinds", [None, ("mail",), ("mail", "sms")])
def test_nothing_is_given_from_a_paused_queue(engine: Engine, kinds: tuple[str, ...] | None) -> None:
    tasks = [submit(engine) for _ in range(3)]
    claims = [c.Claim(worker=f"w{n}", kinds=kinds, limit=2) for n in range(2)]
    engine.pause_queue("default")
    assert together(engine, *claims) == [[], []]
    engine.resume_queue("default")
    assert ids(together(engine, *claims)) == [tasks[:2], tasks[2:]]


def test_a_claim_with_a_request_key_is_repeated_among_others(engine: Engine) -> None:
    tasks = [submit(engine) for _ in range(5)]
    keyed = c.Claim(worker="a", request_key="k")
    first = together(engine, c.Claim(worker="b"), keyed, c.Claim(worker="c"), keyed)
    assert ids(first) == [[tasks[0]], [tasks[2]], [tasks[1]], [tasks[2]]]
    assert first[1][0].lease == first[3][0].lease
    again = together(engine, keyed, c.Claim(worker="b"), c.Claim(worker="a", request_key="other"))
    assert ids(again) == [[tasks[2]], [tasks[3]], [tasks[4]]]


def test_one_probe_is_given_while_a_breaker_is_due_and_other_kinds_as_ever(engine: Engine, clock: VirtualClock) -> None:
    fragile = Policy(breaker_failures=1, breaker_open_s=30, max_attempts=9)
    for _ in range(3):
        submit(engine, "fragile", policy=fragile)
    sound = [submit(engine, "sound") for _ in range(2)]
    (broken,) = engine.claim(worker="w", kinds=["fragile"])
    engine.fail(broken, "no", retry_after_s=0)
    claims = [c.Claim(worker=f"w{n}") for n in range(4)]
    assert ids(together(engine, *claims[:1])) == [sound[:1]]
    clock.advance(31)
    found = together(engine, *claims)
    assert [[a.kind for a in assignments] for assignments in found] == [["fragile"], ["sound"], [], []]
    engine.succeed(found[0][0])
    assert [len(assignments) for assignments in together(engine, *claims)] == [1, 1, 0, 0]


def test_claims_that_start_begin_their_stages_once(engine: Engine, clock: VirtualClock) -> None:
    flows = [engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2)]) for _ in range(2)]
    single = submit(engine, "x", policy=Policy(timeout_s=30, max_attempts=1))
    found = together(engine, *(c.Claim(worker=f"w{n}", start=True) for n in range(6)))
    assert ids(found) == [[id_] for flow in flows for id_ in flow.tasks] + [[single], []]
    assert [a.state for assignments in found for a in assignments] == [RUNNING] * 5
    assert [how(engine, flow) for flow in flows] == [[RUNNING, RUNNING]] * 2
    for n, flow in enumerate(flows):
        told = [(e.type, e.actor) for e in history(engine, flow)]
        assert [told.count((type_, "system:engine")) for type_ in ("flow.started", "stage.started")] == [1, 1]
        workers = [actor for type_, actor in told if type_ == "task.started"]
        assert workers == [f"worker:w{2 * n}", f"worker:w{2 * n + 1}"]
    assert rows_of_the_log(engine, TASK.start.event) == [5]
    must_verify(engine)
    clock.advance(31)
    settle(engine)
    assert [state(engine, id_) for id_ in (single, flows[0].tasks[0])] == [DEAD_LETTERED, RUNNING]


def test_claims_with_and_without_a_start_are_kept_apart(engine: Engine) -> None:
    for _ in range(4):
        submit(engine)
    found = together(engine, *(c.Claim(worker="w", start=n % 2 == 1) for n in range(4)))
    assert [a.state for (a,) in found] == [ASSIGNED, RUNNING, ASSIGNED, RUNNING]


def test_claims_share_a_transaction_with_reports_and_submits(engine: Engine) -> None:
    submit(engine)
    submit(engine)
    (one,), (two,) = together(engine, c.Claim(worker="a"), c.Claim(worker="b"))
    verdicts = engine.run(
        [c.Succeed(**c.ticket(one)), c.Claim(worker="a"), c.Submit(kind="mail"), c.Claim(worker="b"),
         c.Succeed(**c.ticket(two))]
    )  # fmt: skip
    values: list[Any] = [v.unwrap() for v in verdicts]
    assert [a.id for a in values[1]] == [values[2].id]
    assert (values[3], values[0].state, values[4].state) == ([], "succeeded", "succeeded")
    # On the fast path, too: nothing but successes and claims.
    again = [submit(engine), submit(engine)]
    found = engine.run([c.Succeed(**c.ticket(values[1][0])), c.Claim(worker="c"), c.Claim(worker="d")])
    assert [[a.id for a in v.unwrap()] for v in found[1:]] == [[id_] for id_ in again]
    must_verify(engine)


def test_claims_for_more_tasks_than_a_batch_may_have_are_served_in_order(
    database_url: str, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock, config=EngineConfig(limits=Limits(batch=5))) as engine:
        tasks = [submit(engine) for _ in range(9)]
        found = together(engine, *(c.Claim(worker=f"w{n}", limit=limit) for n, limit in enumerate((3, 2, 5))))
        assert ids(found) == [tasks[:3], tasks[3:5], tasks[5:]]
        assert rows_of_the_log(engine, TASK.claim.event) == [5, 4]
