"""The committer: many calls in few transactions, and an own, true answer for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from onetray import failpoints
from onetray.config import Limits
from onetray.domain.commands import Cancel, Command, Fail, Start, Submit, Succeed
from onetray.domain.errors import IllegalTransition, LeaseLost, NotFound, OnetrayError, Unavailable
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from tests.support.engines import engine_on
from tests.support.fleet import wait_until


@dataclass(slots=True, kw_only=True)
class Unwritable(Submit):
    """A submit that passes its check and that the database itself refuses."""

    def check(self, limits: Limits) -> None:
        Submit.check(self, limits)
        self.payload_json = None  # type: ignore[assignment]


@dataclass(slots=True, kw_only=True)
class TooBig(Submit):
    """A submit whose number does not fit into any column."""

    def check(self, limits: Limits) -> None:
        Submit.check(self, limits)
        self.priority = 2**70


class Gate:
    """Holds every transaction at its beginning until it is opened, and counts commits."""

    def __init__(self) -> None:
        self.held = 0
        self.commits = 0
        self._open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            self.commits += point == "committed"
            self.held += point == "begun"
        if point == "begun":
            assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def calls() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(80) as pool:
        yield pool


@pytest.fixture
def gate(engine: Engine, calls: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Every committer thread is held in a transaction of its own: what is called now gathers."""
    engine.submit("mail", "so that the names are known")
    gate = Gate()
    monkeypatch.setattr(failpoints, "hook", gate)
    for n in range(engine.store.writers):
        calls.submit(engine.submit, "mail", "held")
        wait_until(lambda n=n: gate.held == n + 1)  # type: ignore[misc]
    yield gate
    gate.open()


def gathered(engine: Engine, count: int) -> None:
    wait_until(lambda: len(engine._committer._waiting) == count)


def payloads(engine: Engine) -> list[Any]:
    return [t.payload for t in engine.tasks(limit=1000)]


def answers(futures: list[Future[Any]]) -> list[Any]:
    return [f.exception(timeout=60) or f.result() for f in futures]


def test_64_single_calls_become_few_transactions_and_each_gets_its_own_answer(
    engine: Engine, gate: Gate, calls: ThreadPoolExecutor
) -> None:
    futures = [calls.submit(engine.submit, "mail", n) for n in range(64)]
    gathered(engine, 64)
    gate.open()
    for n, future in enumerate(futures):
        assert engine.task(future.result(60).id).payload == n
    assert gate.commits <= 2 * engine.store.writers


def test_commands_for_many_tasks_do_not_make_one_transaction_too_large(
    engine: Engine, gate: Gate, calls: ThreadPoolExecutor
) -> None:
    many = [SubmitMany(like=Submit(kind="mail"), payloads=[n] * 200) for n in range(5)]
    futures = [calls.submit(engine.call, command) for command in many]
    gathered(engine, 5)
    gate.open()
    assert [len(ids) for ids in answers(futures)] == [200] * 5
    # Two of 200 fit into 500 commands, three do not.
    wait_until(lambda: gate.commits >= engine.store.writers + 3)


def test_many_that_the_database_refuses_harm_no_neighbour(
    engine: Engine, gate: Gate, calls: ThreadPoolExecutor
) -> None:
    commands = [SubmitMany(like=kind(kind="mail"), payloads=[1, 2]) for kind in (Submit, TooBig, Submit)]
    futures = [calls.submit(engine.call, command) for command in commands]
    gathered(engine, 3)
    gate.open()
    first, refused, last = answers(futures)
    assert "submit_many could not be written" in str(refused)
    assert sorted(engine.task(id_).payload for id_ in first + last) == [1, 1, 2, 2]
    assert len(payloads(engine)) == 1 + engine.store.writers + 4


@pytest.mark.parametrize("bad", [Unwritable, TooBig])
def test_a_call_that_the_database_refuses_never_harms_its_neighbours(
    engine: Engine, gate: Gate, calls: ThreadPoolExecutor, bad: Callable[..., Command]
) -> None:
    commands = [bad(kind="mail") if n == 7 else Submit(kind="mail", payload=n) for n in range(16)]
    futures = [calls.submit(engine.call, command) for command in commands]
    gathered(engine, 16)
    gate.open()
    told = answers(futures)
    assert isinstance(told[7], OnetrayError)
    assert "submit could not be written" in str(told[7])
    assert [engine.task(r.id).payload for n, r in enumerate(told) if n != 7] == [n for n in range(16) if n != 7]
    assert sorted(p for p in payloads(engine) if isinstance(p, int)) == [n for n in range(16) if n != 7]


def test_a_refused_command_inside_one_batch_leaves_the_others_of_the_batch_alone(engine: Engine) -> None:
    (a,) = submitted_and_claimed(engine, 1)
    ticket = {"task": a.key, "fence": a.fence, "worker": a.worker}
    verdicts = engine.run([Submit(kind="mail", payload=1), Unwritable(kind="mail"), Succeed(result=2, **ticket)])
    assert [v.ok for v in verdicts] == [True, False, True]
    assert engine.task(a.id).state == "succeeded"
    assert len(engine.tasks()) == 2


def submitted_and_claimed(engine: Engine, count: int) -> list[Any]:
    for n in range(count):
        engine.submit("mail", n)
    return engine.claim(worker="w", limit=count)


def test_a_batch_may_name_the_same_task_again_and_again(engine: Engine) -> None:
    (a,) = submitted_and_claimed(engine, 1)
    ticket = {"task": a.key, "fence": a.fence, "worker": a.worker}
    started, succeeded, again, failed, cancelled = engine.run(
        [Start(**ticket), Succeed(**ticket), Succeed(**ticket), Fail(message="no", **ticket), Cancel(task=a.id)]
    )
    assert (started.value.state, started.value.version) == ("running", 3)
    assert (succeeded.value.state, succeeded.value.version, succeeded.value.repeated) == ("succeeded", 4, False)
    assert (again.value.version, again.value.repeated) == (4, True)
    assert isinstance(failed.error, IllegalTransition)
    assert isinstance(cancelled.error, IllegalTransition)


def test_each_caller_of_a_shared_transaction_gets_its_own_refusal(
    engine: Engine, gate: Gate, calls: ThreadPoolExecutor
) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    (task,) = engine.tasks(limit=1)
    futures = [
        calls.submit(engine.cancel, nobody),
        calls.submit(engine.submit, "mail", "fine"),
        calls.submit(engine.succeed, task.id, fence=9),
    ]
    gathered(engine, 3)
    gate.open()
    missing, receipt, late = answers(futures)
    assert isinstance(missing, NotFound)
    assert receipt.state == "queued"
    assert isinstance(late, LeaseLost)


def test_close_finishes_what_was_handed_over_and_refuses_what_comes_after(
    engine: Engine, gate: Gate, calls: ThreadPoolExecutor
) -> None:
    futures = [calls.submit(engine.submit, "mail", n) for n in range(10)]
    gathered(engine, 10)
    closing = calls.submit(engine._committer.close)
    wait_until(lambda: engine._committer._closed)
    with pytest.raises(Unavailable, match="closed"):
        engine.submit("mail", "late")
    gate.open()
    closing.result(60)
    assert sorted(engine.task(f.result(60).id).payload for f in futures) == list(range(10))
    assert "late" not in payloads(engine)


def test_the_same_claim_made_twice_at_once_by_two_processes_is_one_claim(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second used to find nothing, because it skipped what the first had locked: the work lay with nobody."""
    with engine_on(migrated_url) as first, engine_on(migrated_url) as second:
        id_ = first.submit("mail").id
        again: list[str] = []

        def ask_again() -> None:
            again.extend(a.id for a in second.claim(worker="w", request_key="r"))

        asking = threading.Thread(target=ask_again)

        def meanwhile(point: str) -> None:
            if point == "claimed" and asking.ident is None:
                asking.start()
                asking.join(0.5)

        monkeypatch.setattr(failpoints, "hook", meanwhile)
        assert [a.id for a in first.claim(worker="w", request_key="r")] == [id_]
        asking.join(60)
        assert again == [id_]


def test_what_is_no_command_waits_for_a_database_that_is_away_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction, tries = engine.store.transaction, iter(range(100))

    def away() -> Any:
        if next(tries) < 3:
            raise Unavailable("away")
        return transaction()

    engine.submit("mail", queue="q")
    monkeypatch.setattr(engine.store, "transaction", away)
    engine.pause_queue("q")
    assert next(tries) > 3
