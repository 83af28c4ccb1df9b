"""The worker's claims: in its own transactions, and piggybacked on those of submits and reports."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import pytest

from onetray import Job, Onetray
from onetray.config import WorkerTuning
from onetray.domain.commands import Claim, Succeed
from onetray.domain.errors import OutcomeUnknown
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.task import Assignment, Verdict
from onetray.engine.piggyback import PiggybackClaim
from onetray.notify.wake import Wake
from onetray.store.retry_transaction import Outage
from onetray.worker.claimer import Claimer, ClaimSource
from onetray.worker.leases import HeldLeases
from tests.support.fleet import wait_until

WAIT_S = 60.0


@pytest.fixture
def own_claims(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, workers make only piggyback claims: a claim of their own would use up the capacity."""
    allowed, claim = threading.Event(), Claimer._claim
    monkeypatch.setattr(Claimer, "_claim", lambda self: allowed.is_set() and claim(self))
    return allowed


@pytest.mark.usefixtures("own_claims")
def test_a_task_that_is_submitted_in_this_process_is_claimed_by_its_submit(either_app: Onetray) -> None:
    @either_app.task
    async def work() -> None: ...

    with either_app.worker():
        job = work.submit()
        assert job.wait(WAIT_S) == "succeeded"
    assert [e.type for e in job.events()] == ["task.submitted", "task.claimed", "task.started", "task.succeeded"]


@pytest.mark.usefixtures("own_claims")
def test_a_claim_whose_answer_was_lost_is_repeated_under_its_request_key(
    either_app: Onetray, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, lost = [], []
    deliver = Claimer.deliver

    def lose_first(self: Claimer, piggyback: PiggybackClaim, verdict: Verdict) -> None:
        if not lost:
            lost.append(verdict.unwrap())
            verdict = Verdict(error=OutcomeUnknown("the line was cut"))
        deliver(self, piggyback, verdict)

    monkeypatch.setattr(Claimer, "deliver", lose_first)

    @either_app.task
    async def work() -> None:
        runs.append(1)

    with either_app.worker():
        job = work.submit()
        assert job.wait(WAIT_S) == "succeeded"
    assert len(lost[0]) == len(runs) == 1
    assert [e.type for e in job.events()].count("task.claimed") == 1


def claims_of_new_tasks(monkeypatch: pytest.MonkeyPatch, runs: list[int]) -> list[Claim]:
    """Make a worker believe that its queues are empty once a task has run. Returns its claims of new tasks."""
    claims: list[Claim] = []
    next_claim = Claimer.next_claim

    def kept(self: Claimer, command: Any) -> PiggybackClaim | None:
        piggyback = next_claim(self, command)
        if piggyback is not None and piggyback.claim.only_new:
            claims.append(piggyback.claim)
        return piggyback

    monkeypatch.setattr(Claimer, "next_claim", kept)
    monkeypatch.setattr(Claimer, "_is_known_empty", lambda self, source: bool(runs))
    return claims


def capacity_returned(monkeypatch: pytest.MonkeyPatch, own_claims: threading.Event) -> threading.Event:
    """Set when the capacity that a claim reserved is free again. The first tasks end the worker's own claims."""
    returned, accept_all, return_reserved = threading.Event(), Claimer._accept_all, Claimer._return_reserved

    def accept(self: Claimer, claimed: list[Assignment], *args: Any) -> int:
        if claimed:
            # In the claiming thread, if the claim is its own: no other one follows.
            own_claims.clear()
            returned.clear()
        return accept_all(self, claimed, *args)

    def give_back(self: Claimer, queue: str, limit: int) -> None:
        return_reserved(self, queue, limit)
        returned.set()

    monkeypatch.setattr(Claimer, "_accept_all", accept)
    monkeypatch.setattr(Claimer, "_return_reserved", give_back)
    return returned


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_the_report_that_ends_a_stage_claims_the_next_one(
    either_app: Onetray, monkeypatch: pytest.MonkeyPatch, own_claims: threading.Event, lost: bool
) -> None:
    runs: list[int] = []
    monkeypatch.setattr(Wake, "poll_s", 3600.0)
    claims, returned = claims_of_new_tasks(monkeypatch, runs), capacity_returned(monkeypatch, own_claims)
    deliver, to_lose = Claimer.deliver, [1] if lost else []

    def lose_first(self: Claimer, piggyback: PiggybackClaim, verdict: Verdict) -> None:
        if verdict.value and to_lose:
            to_lose.clear()
            verdict = Verdict(error=OutcomeUnknown("the line was cut"))
        deliver(self, piggyback, verdict)

    monkeypatch.setattr(Claimer, "deliver", lose_first)

    @either_app.task
    def work(number: int) -> None:
        runs.append(number)
        # A report that overtook it would find no capacity, and carry no claim.
        assert returned.wait(WAIT_S)

    stages = [StageSpec(f"stage {n}", [TaskSpec(work.kind, {"number": n})]) for n in range(4)]
    flow = either_app.engine.submit_flow("post", stages).id
    own_claims.set()
    with either_app.worker():
        wait_until(lambda: either_app.engine.flow(flow).state == "succeeded")
    assert runs == [0, 1, 2, 3]
    assert len(claims) == 4
    assert not to_lose


def test_a_report_that_waits_for_its_flow_does_not_keep_the_worker_from_other_tasks(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other, gate, reporting = Onetray(migrated_url), Onetray(migrated_url), threading.Event(), threading.Event()
    next_claim = Claimer.next_claim

    def noted(self: Claimer, command: Any) -> PiggybackClaim | None:
        piggyback = next_claim(self, command)
        if piggyback is not None and piggyback.claim.only_new:
            reporting.set()
        return piggyback

    monkeypatch.setattr(Claimer, "next_claim", noted)

    @app.task
    def first() -> None:
        assert gate.wait(WAIT_S)

    @app.task
    async def work() -> None: ...

    read = app.engine.store.read_sql
    flow = app.engine.submit_flow("post", [StageSpec(kind, [TaskSpec(kind)]) for kind in (first.kind, work.kind)]).id
    with app.worker(concurrency=2):
        wait_until(lambda: ("running",) in read("SELECT state FROM onetray.task"))
        with app.engine.store.transaction() as tx:
            tx.lock_flows([key for (key,) in read("SELECT key FROM onetray.flow")])
            gate.set()
            # Its claim has reserved all that this worker can take.
            assert reporting.wait(WAIT_S)
            jobs = [other.engine.submit(work.kind).id for _ in range(5)]
            wait_until(lambda: all(app.engine.task(id_).state == "succeeded" for id_ in jobs))
            assert app.engine.flow(flow).state == "running"
        wait_until(lambda: app.engine.flow(flow).state == "succeeded")
    other.close()
    app.close()


@pytest.mark.usefixtures("own_claims")
def test_a_piggyback_claim_is_released_if_the_worker_is_stopping(
    either_app: Onetray, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving, gate = threading.Event(), threading.Event()
    deliver = Claimer.deliver

    def delayed(self: Claimer, piggyback: PiggybackClaim, verdict: Verdict) -> None:
        arriving.set()
        assert gate.wait(WAIT_S)
        deliver(self, piggyback, verdict)

    monkeypatch.setattr(Claimer, "deliver", delayed)

    @either_app.task
    async def work() -> None: ...

    worker = either_app.worker()
    with worker:
        jobs: list[Job[None]] = []
        submitter = threading.Thread(target=lambda: jobs.append(work.submit()))
        submitter.start()
        assert arriving.wait(WAIT_S)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        wait_until(lambda: worker._state == "stopping")
        gate.set()
        stopping.join(WAIT_S)
        submitter.join(WAIT_S)
    (job,) = jobs
    assert job.state == "queued"
    assert [e.type for e in job.events()] == ["task.submitted", "task.claimed", "task.released"]


def test_piggyback_claims_stay_within_the_concurrency(either_app: Onetray, own_claims: threading.Event) -> None:
    gate = threading.Event()

    @either_app.task
    def work() -> None:
        assert gate.wait(WAIT_S)

    with either_app.worker(concurrency=2) as worker:
        jobs = [work.submit() for _ in range(5)]
        wait_until(lambda: len(worker.executor.running) == 2)
        assert sorted(str(job.state) for job in jobs).count("queued") == 3
        own_claims.set()
        gate.set()
        for job in jobs:
            assert job.wait(WAIT_S) == "succeeded"


@pytest.mark.usefixtures("own_claims")
@pytest.mark.parametrize("room", [{"concurrency": 2}, {"concurrency": 8, "queues": "default:2"}], ids=["all", "queue"])
def test_a_claim_leaves_room_for_those_that_are_under_way(
    either_app: Onetray, monkeypatch: pytest.MonkeyPatch, room: dict[str, Any]
) -> None:
    under_way, gate, deliver = threading.Event(), threading.Event(), Claimer.deliver

    def hold_the_first(self: Claimer, claim: PiggybackClaim, verdict: Verdict) -> None:
        if not under_way.is_set():
            under_way.set()
            assert gate.wait(WAIT_S)
        deliver(self, claim, verdict)

    monkeypatch.setattr(Claimer, "deliver", hold_the_first)

    @either_app.task
    async def work() -> None: ...

    with either_app.worker(**room):
        # It takes all the room there is, however little it finds.
        first = threading.Thread(target=work.submit)
        first.start()
        assert under_way.wait(WAIT_S)
        others = [work.submit() for _ in range(3)]
        states = [job.state for job in others]
        gate.set()
        first.join(WAIT_S)
    assert states == ["queued"] * 3


class Unlimited(threading.Condition):
    """Waits without a time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited.set()
        return super().wait()


class FakeExecutor:
    """Has as many tasks as it can run."""

    concurrency = 10

    def __init__(self) -> None:
        self.running, self.waiting, self.finished = set(range(self.concurrency)), deque[Any](), 0
        self.changed = Unlimited()

    def oldest_claimed_at(self) -> float:
        return math.inf


def claimer_of(app: Onetray, executor: Any, accepted: list[Assignment]) -> Claimer:
    return Claimer(
        app.engine, executor, HeldLeases(), lambda queue, limit, _: Claim(worker="w", queue=queue, limit=limit),
        "default", (ClaimSource("default"),), lambda claimed, _: accepted.extend(claimed), lambda *_: None, lambda: 0,
        WorkerTuning(), Outage(),
    )  # fmt: skip


@pytest.mark.parametrize("limits", [{}, {"concurrency": 100}], ids=["without limits", "with a limit"])
def test_only_a_queue_with_limits_is_claimed_from_again_when_tasks_have_ended(
    either_app: Onetray, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @either_app.task(**limits)
    async def work() -> None: ...

    either_app.engine.declare(either_app.policies)
    monkeypatch.setattr(Wake, "poll_s", 3600.0)
    monkeypatch.setattr(Claimer, "_prefetch", lambda _: 100)
    accepted: list[Assignment] = []
    executor = FakeExecutor()
    claimer = claimer_of(either_app, executor, accepted)
    for _ in range(3):
        work.submit()
    report = Succeed(task=1)
    first = claimer.next_claim(report)
    assert first is not None
    assert first.claim.limited_limit == 0
    claimer.deliver(first, either_app.engine.run([first.claim])[0])
    # Tasks under a limit were not claimed ahead of need. All others were, so that there are no more.
    assert len(accepted) == (0 if limits else 3)
    executor.running.clear()
    second = claimer.next_claim(report)
    assert (second is not None) is bool(limits)


def test_the_first_ends_after_idleness_decide_how_much_is_claimed_ahead(either_app: Onetray) -> None:
    executor = FakeExecutor()
    claimer = claimer_of(either_app, executor, [])
    # The usual time of a measurement is not over, however slow this machine is.
    claimer._measured_at += 3600.0
    executor.finished = 99
    assert claimer._prefetch() == 0
    executor.finished = 100
    assert claimer._prefetch() == WorkerTuning().max_prefetch


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_the_claiming_thread_continues_when_a_piggyback_claim_that_had_all_the_capacity_ends(
    either_app: Onetray, lost: bool
) -> None:
    @either_app.task
    async def work() -> None: ...

    executor, accepted = FakeExecutor(), list[Assignment]()
    executor.running.clear()
    claimer = claimer_of(either_app, executor, accepted)
    piggyback = claimer.next_claim(Succeed(task=1))
    assert piggyback is not None
    claimer.start()
    assert executor.changed.is_awaited.wait(WAIT_S)
    work.submit()
    claimer.deliver(piggyback, Verdict(error=OutcomeUnknown("the line was cut")) if lost else Verdict([]))
    wait_until(lambda: len(accepted) == 1)
    claimer.stop()
    claimer.join(WAIT_S)
