"""Everything that an engine writes beside its commands: whoever loses the answer to a COMMIT is told the truth."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import onetray
from onetray import Onetray, failpoints
from onetray.domain.clock import SECOND
from onetray.domain.commands import Beat
from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.errors import Unavailable
from onetray.domain.lifecycle import AUDIT_TYPES
from onetray.domain.policy import Policy
from onetray.domain.schedule import ScheduleSpec
from onetray.domain.task import Assignment, Verdict
from onetray.domain.token import hash_of, parts_of
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.engine.http_keys import HeldKey
from onetray.engine.retention import Retention
from onetray.engine.statistics import StatisticsCounter
from onetray.engine.tally import RENEWALS
from onetray.store import old_events, open_store
from onetray.store.schema import migrations
from tests.support import version_12
from tests.support.cluster import Server
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import wait_until
from tests.support.proxy import LOSE_ANSWER, LOSE_REQUEST, Proxy
from tests.support.tasks import submit, take

POLICY = Policy(max_attempts=7)


class Commits:
    """Counts the transactions that come to their COMMIT, and loses the n-th on its way."""

    def __init__(self, proxy: Proxy, lost: str, n: int) -> None:
        self._proxy, self._lost, self._n = proxy, lost, n
        self.seen = 0

    def __call__(self, point: str) -> None:
        if point == "committing":
            self.seen += 1
            if self.seen == self._n:
                self._proxy.arm(self._lost, commits_only=True)


@contextmanager
def losing(proxy: Proxy, lost: str, n: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commits]:
    commits = Commits(proxy, lost, n)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", commits)
        yield commits


@pytest.fixture(scope="module")
def engines(postgres: Server) -> Iterator[tuple[Engine, Engine, Proxy]]:
    """An engine whose line can be cut, and another that sees what is in the same database."""
    with postgres.database() as url, engine_on(url) as direct, Proxy(url) as proxy, engine_on(proxy.url) as engine:
        yield engine, direct, proxy


def paused_by(engine: Engine, queue: str) -> str | None:
    return {row.name: row.paused_by for row in engine.queues()}.get(queue)


def beat(name: str) -> WorkerBeat:
    return WorkerBeat(
        name=name, host="h", pid=1, version="1", queues=("default",), kinds=("k",), concurrency=1, running=0,
        claimed=0, state="running", ttl_s=60,
    )  # fmt: skip


def workers(engine: Engine) -> list[str]:
    return [worker.name for worker in engine.workers()]


def breaker(engine: Engine, kind: str) -> str | None:
    return {b.kind: b.state for b in engine.breakers()}.get(kind)


Steps = Generator[Callable[[Engine], Any], Any, None]
Case = Callable[[Engine, str], Steps]
"""What comes before; the call under a cut, whose answer is sent in; what must be in the database then."""


def ended(engine: Engine, namespace: str) -> Assignment:
    submit(engine, namespace=namespace)
    a = take(engine, namespace=namespace)
    engine.succeed(a)
    submit(engine)  # The newest event of a database is never removed.
    return a


def audited(engine: Engine, **about: str) -> list[str]:
    """The events about a queue, a kind or a token."""
    events = [e for e in engine.feed.read(0, 10_000).events if e.type in AUDIT_TYPES]
    return [e.type for e in events if about.items() <= e.payload.items()]


def pause_queue(direct: Engine, n: str) -> Steps:
    submit(direct, queue=f"q{n}")
    yield lambda engine: engine.pause_queue(f"q{n}", by="ann")
    assert paused_by(direct, f"q{n}") == "ann"
    assert audited(direct, queue=f"q{n}") == ["queue.paused"]


def resume_queue(direct: Engine, n: str) -> Steps:
    direct.pause_queue(f"r{n}", by="ann")
    yield lambda engine: engine.resume_queue(f"r{n}")
    assert paused_by(direct, f"r{n}") is None
    assert audited(direct, queue=f"r{n}") == ["queue.paused", "queue.resumed"]


def open_breaker(direct: Engine, n: str) -> Steps:
    yield lambda engine: engine.open_breaker(f"b{n}", for_s=60)
    assert breaker(direct, f"b{n}") == "open"
    assert audited(direct, kind=f"b{n}") == ["breaker.opened"]


def close_breaker(direct: Engine, n: str) -> Steps:
    direct.open_breaker(f"c{n}", for_s=60)
    yield lambda engine: engine.close_breaker(f"c{n}")
    assert breaker(direct, f"c{n}") == "closed"
    assert audited(direct, kind=f"c{n}") == ["breaker.opened", "breaker.closed"]


def numbers(engine: Engine, kind: str) -> list[tuple[str, int, bool, str | None]]:
    return [(limit.what, limit.most, limit.counting, limit.set_by) for limit in engine.limits(kind=kind)]


def put_into_force(engine: Engine) -> None:
    """As the janitor does for a limit whose process has not learnt that it was written."""
    engine.do_due()


def set_limit(direct: Engine, n: str) -> Steps:
    yield lambda engine: engine.set_limit(kind=f"l{n}", concurrency=3, by="ann")
    put_into_force(direct)
    assert numbers(direct, f"l{n}") == [("concurrency", 3, False, "ann")]
    assert audited(direct, limit=f"concurrency of kind l{n}") == ["limit.set"]


def reset_limit(direct: Engine, n: str) -> Steps:
    direct.configure(f"rl{n}", Policy(concurrency=5))
    limit = direct.set_limit(kind=f"rl{n}", concurrency=3, by="ann")
    yield lambda engine: engine.reset_limit(limit)
    assert numbers(direct, f"rl{n}") == [("concurrency", 5, False, None)]
    assert audited(direct, limit=f"concurrency of kind rl{n}") == ["limit.set", "limit.set", "limit.reset"]


def remove_limit(direct: Engine, n: str) -> Steps:
    limit = direct.set_limit(kind=f"gone{n}", concurrency=3)
    yield lambda engine: engine.remove_limit(limit)
    assert numbers(direct, f"gone{n}") == []
    assert audited(direct, limit=f"concurrency of kind gone{n}") == ["limit.set", "limit.removed"]


def set_weight(direct: Engine, n: str) -> Steps:
    direct.configure(f"fair{n}", Policy(fair_by="tenant"))
    yield lambda engine: engine.set_weight(f"fair{n}", '"a"', 2.0)
    assert audited(direct, kind=f"fair{n}") == ["weight.set"]


def declare_limits(direct: Engine, n: str) -> Steps:
    yield lambda engine: engine.configure(f"dl{n}", Policy(concurrency=4, rate="9/m"))
    put_into_force(direct)
    assert numbers(direct, f"dl{n}") == [("concurrency", 4, False, None), ("rate", 9, False, None)]


def submit_to_new_lane(direct: Engine, n: str) -> Steps:
    direct.configure(f"lane{n}", Policy(fair_by="tenant"))
    direct.store.names.refresh()
    yield lambda engine: engine.submit(f"lane{n}", {"tenant": n}, queue=f"lane{n}")
    assert len(direct.claim(f"lane{n}", worker="w", limit=9)) == 1


def configure(direct: Engine, n: str) -> Steps:
    yield lambda engine: engine.configure(f"k{n}", POLICY, namespace=f"space{n}")
    direct.store.names.refresh()
    assert direct.policy_of(f"k{n}", namespace=f"space{n}") == POLICY


def declare(direct: Engine, n: str) -> Steps:
    yield lambda engine: engine.declare({f"d{n}": POLICY})
    direct.store.names.refresh()
    assert direct.policy_of(f"d{n}") == POLICY


def declare_keeping_redaction(direct: Engine, n: str) -> Steps:
    direct.configure(f"r{n}", POLICY.with_(redact=("card",)))
    declared = POLICY.with_(max_attempts=POLICY.max_attempts + 1)
    kept = yield lambda engine: engine.declare_keeping_redaction({f"r{n}": declared})
    direct.store.names.refresh()
    assert kept == {f"r{n}": ["card"]}
    assert direct.policy_of(f"r{n}") == declared.with_(redact=("card",))


def create_token(direct: Engine, n: str) -> Steps:
    new = yield lambda engine: engine.tokens.create(f"t{n}", ["read"])
    (found,) = [token for token in direct.tokens.list() if token.name == f"t{n}"]
    parts = parts_of(new.text)
    assert parts is not None
    assert (found, found.hash) == (new.token, hash_of(parts.secret))
    assert audited(direct, token=found.id) == ["token.created"]


def revoke_token(direct: Engine, n: str) -> Steps:
    id_ = direct.tokens.create("t", ["read"]).token.id
    revoked = yield lambda engine: engine.tokens.revoke(id_)
    assert revoked.revoked_at is not None
    assert direct.tokens.get(id_)[0] == revoked  # type: ignore[index]
    assert audited(direct, token=id_) == ["token.created", "token.revoked"]


def use_token(direct: Engine, n: str) -> Steps:
    id_ = direct.tokens.create("t", ["read"]).token.id
    yield lambda engine: engine.tokens.mark_used(id_)
    assert direct.tokens.get(id_)[0].used_at is not None  # type: ignore[index]


def begun(engine: Engine, n: str) -> HeldKey:
    return engine.http_keys.begin("ann", n, route="r", body_hash="h")


def begin_request(direct: Engine, n: str) -> Steps:
    mine = yield lambda engine: begun(engine, f"begin{n}")
    assert mine.status is None
    direct.http_keys.answer(mine, 200, "done")
    assert begun(direct, f"begin{n}").answer == "done"


def answer_request(direct: Engine, n: str) -> Steps:
    mine = begun(direct, f"answer{n}")
    yield lambda engine: engine.http_keys.answer(mine, 200, "done")
    assert begun(direct, f"answer{n}").answer == "done"


def drop_request(direct: Engine, n: str) -> Steps:
    mine = begun(direct, f"drop{n}")
    yield lambda engine: engine.http_keys.drop(mine)
    assert begun(direct, f"drop{n}").held_at > mine.held_at


def renew_request(direct: Engine, n: str) -> Steps:
    mine = begun(direct, f"renew{n}").also_at(direct.now())
    renewed = yield lambda engine: engine.http_keys.renew(mine)
    assert renewed is not None
    direct.http_keys.answer(renewed, 200, "done")
    assert begun(direct, f"renew{n}").answer == "done"


def undo_claim(direct: Engine, n: str) -> Steps:
    submit(direct, namespace=f"undo{n}")
    a = take(direct, namespace=f"undo{n}")
    yield lambda engine: engine.undo_claim([a], "gone")
    task = direct.task(a.id, namespace=f"undo{n}")
    assert (task.state, task.attempts) == ("queued", 0)


def reserve_key(direct: Engine, n: str) -> Steps:
    given = {"caller": "ann", "key": f"reserve{n}", "route": "r", "ttl_s": 60.0}
    mine = yield lambda engine: engine.http_keys.reserve(body_hash="h", **given)
    assert mine
    assert not direct.http_keys.reserve(body_hash="other", **given)


def worker_beat(direct: Engine, n: str) -> Steps:
    yield lambda engine: engine.worker_beat(beat(f"w{n}"))
    assert workers(direct).count(f"w{n}") == 1


def worker_leave(direct: Engine, n: str) -> Steps:
    direct.worker_beat(beat(f"l{n}"))
    yield lambda engine: engine.worker_leave(f"l{n}")
    assert f"l{n}" not in workers(direct)


def declared(n: str, kind: str = "k") -> FlowDeclaration:
    return FlowDeclaration(name=f"f{n}", stages=[StageDeclaration(name="a", kind=kind)])


def declare_flow(direct: Engine, n: str) -> Steps:
    direct.declare_flow(declared(n))
    yield lambda engine: engine.declare_flow(declared(n, "new"))
    assert direct.declared_flow(f"f{n}").stages[0].kind == "new"
    assert direct.declared_flow(f"f{n}").other_version is not None


def forget_flow(direct: Engine, n: str) -> Steps:
    direct.declare_flow(declared(n))
    yield lambda engine: engine.forget_flow(f"f{n}")
    assert f"f{n}" not in [flow.name for flow in direct.declared_flows()]


def prune(direct: Engine, n: str) -> Steps:
    a = ended(direct, f"prune{n}")
    removed = yield lambda engine: engine.prune(0, namespace=f"prune{n}")
    assert removed == [a.key]
    assert direct.tasks(namespace=f"prune{n}") == []


def delete_job(direct: Engine, n: str) -> Steps:
    namespace = f"delete{n}"
    a = ended(direct, namespace)
    yield lambda engine: engine.delete_job(a.id, namespace=namespace)
    assert direct.tasks(namespace=namespace) == []
    assert [e.type for e in direct.feed.read(0, 10_000, namespace=namespace).events] == ["job.deleted"]


def prune_jobs(direct: Engine, n: str) -> Steps:
    namespace = f"prune_jobs{n}"
    a = ended(direct, namespace)
    removed = yield lambda engine: engine.prune_jobs(ended_before=engine.now() + 1, namespace=namespace)
    assert removed == [a.id]
    assert direct.tasks(namespace=namespace) == []
    assert [e.type for e in direct.feed.read(0, 10_000, namespace=namespace).events] == ["job.deleted"]


def prune_notes(direct: Engine, n: str) -> Steps:
    submit(direct, namespace=f"notes{n}")
    a = take(direct, namespace=f"notes{n}")
    direct.cancel(a.id, namespace=f"notes{n}")
    note = direct.events(a.id, namespace=f"notes{n}")[-1].type
    submit(direct)
    yield lambda engine: engine.prune_notes([note], 0)
    assert note not in [event.type for event in direct.events(a.id, namespace=f"notes{n}")]


def write_tally(direct: Engine, n: str) -> Steps:
    def count_and_write(engine: Engine) -> None:
        engine.tally.count([Beat(task=1, namespace=f"tally{n}")] * 3, [Verdict()] * 3)
        engine.tally.write()
        # What could not be written is written the next time.
        engine.tally.write()

    yield count_and_write
    assert direct.tally.totals(f"tally{n}") == {RENEWALS: 3}


def expire_leases(direct: Engine, n: str) -> Steps:
    submit(direct, namespace=f"leases{n}")
    a = take(direct, namespace=f"leases{n}")
    taken = yield lambda engine: engine.expire_leases(now=a.lease_expires_at + 1)
    assert a.key in taken
    assert direct.task(a.id, namespace=f"leases{n}").state == "queued"


def delayed(engine: Engine, namespace: str) -> str:
    """A task whose time has come since it was submitted."""
    id_, due_at = "", 0
    # On a busy machine it may be due at once.
    while not id_ or engine.task(id_, namespace=namespace).created_at >= due_at:
        due_at = engine.now() + SECOND // 10
        id_ = submit(engine, run_at=due_at, namespace=namespace)
    wait_until(lambda: engine.now() > due_at)
    return id_


def do_due(direct: Engine, n: str) -> Steps:
    id_ = delayed(direct, f"due{n}")
    done = yield lambda engine: engine.do_due()
    assert done == 1
    assert id_ in [a.id for a in direct.claim(worker="w", limit=100, namespace=f"due{n}")]


def retention_step(direct: Engine, n: str) -> Steps:
    a = ended(direct, f"retention{n}")
    ns = direct.store.names.namespace(f"retention{n}")
    removed = yield lambda engine: Retention(engine.store, 0.0, lambda: ns).step()
    assert removed == 1
    assert direct.tasks(namespace=a.namespace) == []


def start_bulk(direct: Engine, n: str) -> Steps:
    submit(direct, namespace=f"start{n}")
    yield lambda engine: engine.start_bulk("cancel", {}, namespace=f"start{n}")
    assert [bulk.state for bulk in direct.bulks(namespace=f"start{n}")] == ["running"]


def stop_bulk(direct: Engine, n: str) -> Steps:
    submit(direct, namespace=f"stop{n}")
    bulk = direct.start_bulk("cancel", {}, namespace=f"stop{n}")
    yield lambda engine: engine.stop_bulk(bulk.id, namespace=f"stop{n}")
    types = [event.type for event in direct.feed.read(0, 10_000, namespace=f"stop{n}").events]
    assert (direct.bulk(bulk.id, namespace=f"stop{n}").state, types.count("bulk.stopped")) == ("stopped", 1)


def bulk_step(direct: Engine, n: str) -> Steps:
    for running in direct.bulks(limit=100):
        direct.stop_bulk(running.id)
    ids = [submit(direct, namespace=f"step{n}") for _ in range(3)]
    bulk = direct.start_bulk("cancel", {}, namespace=f"step{n}")

    def carry_out(engine: Engine) -> None:
        steps = engine.bulk_steps()
        while direct.bulk(bulk.id, namespace=f"step{n}").state == "running":
            # A step that was not written is carried out the next time.
            with suppress(Unavailable):
                steps.step()

    yield carry_out
    assert direct.bulk(bulk.id, namespace=f"step{n}").done == 3
    cancelled = [[e.type for e in direct.events(id_, namespace=f"step{n}")].count("task.cancelled") for id_ in ids]
    assert cancelled == [1, 1, 1]


def count_statistics(direct: Engine, n: str) -> Steps:
    submit(direct, namespace=f"statistics{n}")

    def count(engine: Engine) -> None:
        # What could not be written is counted the next time.
        for _ in range(2):
            with suppress(Unavailable):
                StatisticsCounter(engine.store).count_window()

    yield count
    now = direct.now()
    counted = direct.statistics(since=now - 60 * SECOND, until=now + SECOND, namespace=f"statistics{n}")
    assert sum(bucket.submitted for bucket in counted.buckets) == 1


def schedule_events(direct: Engine, n: str) -> list[str]:
    return audited(direct, schedule=f"s{n}")


def put_schedule(direct: Engine, n: str) -> Steps:
    n = f"put_schedule{n}"
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600)
    yield lambda engine: engine.put_schedule(f"s{n}", kind="k", every_s=7_200)
    assert direct.schedule(f"s{n}").every_s == 7_200
    assert schedule_events(direct, n) == ["schedule.created", "schedule.changed"]


def declare_schedules(direct: Engine, n: str) -> Steps:
    n = f"declare_schedules{n}"
    yield lambda engine: engine.declare_schedules([ScheduleSpec(name=f"s{n}", kind="k", every_s=3_600)], app=n)
    assert schedule_events(direct, n) == ["schedule.created"]


def orphan_schedules(direct: Engine, n: str) -> Steps:
    n = f"orphan_schedules{n}"
    direct.declare_schedules([ScheduleSpec(name=f"s{n}", kind="k", every_s=3_600)], app=n)
    long_ago = "UPDATE onetray.schedule SET seen_at = 1 WHERE name = :name RETURNING 1"
    direct.store.write(lambda tx: tx.fetch(long_ago, {"name": f"s{n}"}))
    yield lambda engine: engine.declare_schedules([], app=n)
    assert schedule_events(direct, n) == ["schedule.created", "schedule.orphaned"]


def pause_schedule(direct: Engine, n: str) -> Steps:
    n = f"pause_schedule{n}"
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600)
    yield lambda engine: engine.pause_schedule(f"s{n}")
    assert direct.schedule(f"s{n}").state == "paused"
    assert schedule_events(direct, n) == ["schedule.created", "schedule.paused"]


def resume_schedule(direct: Engine, n: str) -> Steps:
    n = f"resume_schedule{n}"
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600)
    direct.pause_schedule(f"s{n}")
    yield lambda engine: engine.resume_schedule(f"s{n}")
    assert direct.schedule(f"s{n}").state == "active"
    assert schedule_events(direct, n) == ["schedule.created", "schedule.paused", "schedule.resumed"]


def remove_schedule(direct: Engine, n: str) -> Steps:
    n = f"remove_schedule{n}"
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600)
    yield lambda engine: engine.remove_schedule(f"s{n}")
    assert f"s{n}" not in [line.name for line in direct.schedules()]
    assert schedule_events(direct, n) == ["schedule.created", "schedule.removed"]


def trigger_schedule(direct: Engine, n: str) -> Steps:
    n = f"trigger_schedule{n}"
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600)
    fire = yield lambda engine: engine.trigger_schedule(f"s{n}")
    assert [job.id for job in direct.jobs(labels={"schedule": f"s{n}"}).jobs] == [fire.job]
    assert schedule_events(direct, n) == ["schedule.created", "schedule.triggered"]


def backfill_schedule(direct: Engine, n: str) -> Steps:
    n = f"backfill_schedule{n}"
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600)
    span = {"since": direct.now() - 3 * 3_600 * SECOND, "until": direct.now()}
    done = yield lambda engine: engine.backfill_schedule(f"s{n}", **span)
    assert sorted(job.id for job in direct.jobs(labels={"schedule": f"s{n}"}).jobs) == sorted(done.jobs)
    assert (done.submitted, schedule_events(direct, n)) == (3, ["schedule.created", "schedule.backfilled"])


def due_schedule(direct: Engine, n: str, **fields: Any) -> None:
    """A schedule whose fire time has come."""
    direct.put_schedule(f"s{n}", kind="k", every_s=3_600, catch_up="all", **fields)
    due = "UPDATE onetray.schedule SET next_fire_at = :at, look_at = :at WHERE name = :name RETURNING 1"
    at = direct.now() // (3_600 * SECOND) * 3_600 * SECOND
    direct.store.write(lambda tx: tx.fetch(due, {"name": f"s{n}", "at": at}))


def fire_schedules(direct: Engine, n: str) -> Steps:
    n = f"fire_schedules{n}"
    due_schedule(direct, n)

    def fire(engine: Engine) -> None:
        # What was not written is fired the next time.
        for _ in range(3):
            with suppress(Unavailable):
                engine.fire_schedules()

    yield fire
    (done,) = direct.schedule_fires(f"s{n}")
    assert [job.id for job in direct.jobs(labels={"schedule": f"s{n}"}).jobs] == [done.job]


def pause_itself(direct: Engine, n: str) -> Steps:
    n = f"pause_itself{n}"
    due_schedule(direct, n, pause_after_failures=1)
    failed = "UPDATE onetray.schedule SET failures = 1 WHERE name = :name RETURNING 1"
    direct.store.write(lambda tx: tx.fetch(failed, {"name": f"s{n}"}))

    def fire(engine: Engine) -> None:
        for _ in range(3):
            with suppress(Unavailable):
                engine.fire_schedules()

    yield fire
    assert direct.schedule(f"s{n}").state == "paused"
    assert schedule_events(direct, n) == ["schedule.created", "schedule.paused"]


CASES: dict[Case, tuple[str, ...]] = {
    put_schedule: ("put_schedule",),
    declare_schedules: ("_declare",),
    orphan_schedules: ("declare_schedules",),
    pause_schedule: ("_change",),
    resume_schedule: ("_change",),
    remove_schedule: ("remove_schedule",),
    trigger_schedule: (),
    backfill_schedule: (),
    # Postpones a schedule that cannot be fired: if that is lost, it is tried again at once.
    fire_schedules: ("_postpone",),
    pause_itself: ("_pause_itself",),
    start_bulk: ("start_bulk",),
    stop_bulk: ("_change",),
    bulk_step: (),
    count_statistics: ("count_window",),
    pause_queue: ("_set_paused",),
    resume_queue: ("_set_paused",),
    open_breaker: ("open_breaker",),
    close_breaker: ("close_breaker",),
    set_limit: ("set_limit", "count_new"),
    reset_limit: ("reset_limit",),
    remove_limit: ("remove_limit",),
    set_weight: ("set_weight",),
    declare_limits: ("declare_limits", "count_new"),
    submit_to_new_lane: ("intern", "intern_queue"),
    configure: ("_write",),
    declare: ("_write",),
    declare_keeping_redaction: ("replace_policy",),
    create_token: ("create",),
    revoke_token: ("revoke",),
    use_token: ("mark_used",),
    begin_request: ("begin",),
    answer_request: ("answer",),
    drop_request: ("drop",),
    renew_request: ("renew",),
    undo_claim: ("undo_claim",),
    reserve_key: ("reserve",),
    worker_beat: ("worker_beat",),
    worker_leave: ("worker_leave",),
    declare_flow: ("declare_flow",),
    forget_flow: ("forget_flow",),
    prune: ("prune",),
    prune_jobs: ("prune_jobs", "_delete"),
    prune_notes: ("remove",),
    write_tally: ("write",),
    delete_job: ("run",),
    # One by one is how either of them goes on after a batch that broke: the same work, in smaller parts.
    expire_leases: ("expire_leases", "_expire_one_by_one"),
    do_due: ("do_due", "_handle_due_one_by_one"),
    retention_step: ("_remove",),
}
"""Each way to write that is no command, and the functions of the source that it comes through."""


ONCE = (expire_leases, do_due, retention_step, use_token)
"""Whoever does these comes again by himself."""


@pytest.mark.parametrize("lost", [LOSE_REQUEST, LOSE_ANSWER])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_whatever_is_written_is_written_once_and_answered_though_a_commit_is_lost(
    case: Case, lost: str, engines: tuple[Engine, Engine, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, direct, proxy = engines
    for nth in itertools.count(1):
        steps = case(direct, f"-{nth}-{lost[9]}")
        call = next(steps)
        with losing(proxy, lost, nth, monkeypatch) as commits:
            if case in ONCE and lost == LOSE_REQUEST and nth == 1:
                with pytest.raises(Unavailable):
                    call(engine)
            answer = call(engine)
        with suppress(StopIteration):
            steps.send(answer)
        if commits.seen < nth:
            # Every COMMIT of the call was lost once.
            assert nth > 1
            break


def test_migrations_go_on_after_a_lost_commit(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(pg_url) as proxy:
        store = open_store(proxy.url)
        try:
            with losing(proxy, LOSE_ANSWER, 1, monkeypatch):
                assert store.migrate() == list(migrations())
            assert proxy.cuts == 1
            store.check_version()
        finally:
            store.close()


@pytest.mark.parametrize("lost", [LOSE_REQUEST, LOSE_ANSWER])
def test_old_events_are_moved_once_though_a_commit_is_lost(
    pg_url: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_events, "STEP", 200)
    before = version_12.make(pg_url)
    with Proxy(pg_url) as proxy:
        store = open_store(proxy.url, migrate=False)
        try:
            # The first COMMIT is that of a migration; the next ones move events.
            with losing(proxy, lost, 3, monkeypatch) as commits:
                store.migrate()
            assert (proxy.cuts, commits.seen > 3) == (1, True)
        finally:
            store.close()
    with engine_on(pg_url) as engine:
        assert [e.id for e in engine.feed.read(0, 10_000).events] == [event["id"] for event in before]
        must_verify(engine)


def test_a_worker_that_loses_answers_while_it_registers_goes_on(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(migrated_url) as proxy, Onetray(proxy.url) as app:

        @app.task
        def work() -> int:
            return 1

        # The namespace, the policy, the kind, and the worker's own row.
        for nth in range(1, 6):
            with losing(proxy, LOSE_ANSWER, nth, monkeypatch) as commits, app.worker() as worker:
                assert [w.name for w in app.engine.workers()] == [worker.name]
                assert work.submit().result(timeout_s=30) == 1
            assert commits.seen >= nth
        assert proxy.cuts == 5


def callers(method: str, sources: list[Path]) -> set[str]:
    """The functions in which this method of a store is called."""
    found = set()
    for path in sources:
        text = path.read_text()
        for function in ast.walk(ast.parse(text)) if f"store.{method}(" in text else ():
            if isinstance(function, ast.FunctionDef) and f"store.{method}(" in ast.unparse(function):
                found.add(function.name)
    return found


def test_nothing_is_written_in_another_way() -> None:
    """A COMMIT is resolved in one place: by `store.write`, by the committer, whose batches are in batch.py, or by a
    step of a bulk operation or a fire of a schedule, which the next step repeats."""
    sources = list(Path(onetray.__file__).parent.rglob("*.py"))
    assert callers("transaction", sources) == {"_run_one", "_run_plain_successes", "_run_commands", "run_beside"}
    of_cases = {function for functions in CASES.values() for function in functions}
    assert callers("write", sources) == of_cases | {"move_old_events"}, "the last one has a test of its own"
