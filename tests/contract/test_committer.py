"""The committer: whose commands share a transaction."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from onetray.domain.commands import Claim, Command
from onetray.domain.task import Verdict
from onetray.engine import committer as committers
from onetray.engine.committer import Committer
from tests.support.waits import wait_until

PATIENCE_S = 60.0
CALLERS = 16


class Batches:
    """Records the sizes of batches. The first one ends only when it is let go."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.first_may_end = threading.Event()
        self.in_third: Callable[[], object] = lambda: None

    def run(self, commands: Sequence[Command]) -> list[Verdict]:
        self.sizes.append(len(commands))
        if len(self.sizes) == 1:
            assert self.first_may_end.wait(PATIENCE_S)
        if len(self.sizes) == 3:
            self.in_third()
        return [Verdict(command) for command in commands]


@contextmanager
def opened(batches: Batches) -> Iterator[Committer]:
    committer = Committer(batches.run, 1, 500, PATIENCE_S, "committer")
    try:
        yield committer
    finally:
        batches.first_may_end.set()
        committer.close()


def call_from_threads(committer: Committer, calls: int, number: int = CALLERS) -> list[threading.Thread]:
    def caller() -> None:
        for _ in range(calls):
            command = Claim(worker="w")
            [verdict] = committer.execute([command])
            assert verdict.value is command

    threads = [threading.Thread(target=caller) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(PATIENCE_S)
    return not any(thread.is_alive() for thread in threads)


def share_a_batch(committer: Committer, batches: Batches, calls: int) -> list[threading.Thread]:
    """Have one caller run alone, while all others wait and then share the second batch."""
    alone = call_from_threads(committer, calls=1, number=1)
    wait_until(lambda: batches.sizes == [1], PATIENCE_S)
    others = call_from_threads(committer, calls)
    wait_until(lambda: len(committer._waiting) == CALLERS, PATIENCE_S)
    batches.first_may_end.set()
    return alone + others


def test_callers_that_shared_a_batch_share_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for constant in ("GATHER_STEP_S", "GATHER_S"):
        monkeypatch.setattr(committers, constant, PATIENCE_S)
    batches = Batches()
    batches.in_third = lambda: monkeypatch.setattr(committers, "GATHER_S", 0.0)
    with opened(batches) as committer:
        assert joined(share_a_batch(committer, batches, calls=2))
    assert batches.sizes == [1, CALLERS, CALLERS]


def test_a_caller_does_not_wait_for_others_that_do_not_come_back() -> None:
    batches = Batches()
    with opened(batches) as committer:
        assert joined(share_a_batch(committer, batches, calls=1))
        assert joined(call_from_threads(committer, calls=3, number=1))
    assert sum(batches.sizes) == 1 + CALLERS + 3


def test_a_closed_committer_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for constant in ("GATHER_STEP_S", "GATHER_S"):
        monkeypatch.setattr(committers, constant, PATIENCE_S)
    batches = Batches()
    with opened(batches) as committer:
        assert joined(share_a_batch(committer, batches, calls=1))
        threads = call_from_threads(committer, calls=1, number=1)
        wait_until(lambda: bool(committer._waiting), PATIENCE_S)
        committer.close()
        assert joined(threads)


def test_many_callers_on_several_writers_all_get_their_answers() -> None:
    committer = Committer(lambda commands: [Verdict(command) for command in commands], 3, 500, PATIENCE_S, "committer")
    assert joined(call_from_threads(committer, calls=50, number=64))
    committer.close()
