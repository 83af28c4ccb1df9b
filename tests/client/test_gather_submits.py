"""Calls of one event loop that share a batch: each caller gets the answers to its own items."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from onetray.app import gather_submits
from onetray.app.gather_submits import Gathering

Batches = list[list[int]]


def doubling(batches: Batches) -> Callable[[list[int]], Sequence[int]]:
    def work(items: list[int]) -> list[int]:
        batches.append(items)
        if 0 in items:
            raise ValueError("no zeros")
        return [2 * item for item in items]

    return work


def test_callers_of_one_turn_share_a_batch_and_get_their_own_answers() -> None:
    batches: Batches = []

    async def main() -> list[Sequence[int]]:
        gathering = Gathering(doubling(batches), limit=100)
        return await asyncio.gather(gathering.put([1, 2]), gathering.put([3]), gathering.put([]), gathering.put([4]))

    assert asyncio.run(main()) == [[2, 4], [6], [], [8]]
    assert batches == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("units", "batches"),
    [
        ([[1, 2], [3], [4]], [[1, 2, 3], [4]]),
        ([[1, 2], [3, 4], [5]], [[1, 2], [3, 4, 5]]),
        ([[1, 2, 3, 4, 5], [6]], [[1, 2, 3, 4, 5], [6]]),
    ],
    ids=["whole batches", "a caller that does not fit", "a caller with more than a batch"],
)
def test_a_batch_is_limited_but_never_takes_a_part_of_a_caller(units: Batches, batches: Batches) -> None:
    seen: Batches = []

    async def main() -> None:
        gathering = Gathering(doubling(seen), limit=3)
        answers = await asyncio.gather(*(gathering.put(unit) for unit in units))
        assert [list(answer) for answer in answers] == [[2 * item for item in unit] for unit in units]

    asyncio.run(main())
    assert seen == batches


def test_after_a_large_batch_the_next_one_waits_until_its_callers_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_STEP_S", "GATHER_S"):
        monkeypatch.setattr(gather_submits, name, 60.0)
    batches: Batches = []

    async def caller(gathering: Gathering[int, int], number: int) -> None:
        for _ in range(3):
            assert await gathering.call(number) == 2 * number
            for _ in range(number):
                await asyncio.sleep(0)

    async def main() -> None:
        gathering = Gathering(doubling(batches), limit=100)
        await asyncio.gather(*(caller(gathering, n) for n in range(1, 17)))

    asyncio.run(main())
    assert [len(batch) for batch in batches] == [16, 16, 16]


def test_a_caller_waits_only_shortly_for_those_who_do_not_come_back() -> None:
    batches: Batches = []

    async def main() -> None:
        gathering = Gathering(doubling(batches), limit=100)
        await asyncio.gather(*(gathering.call(n) for n in range(1, 17)))
        assert await asyncio.wait_for(gathering.call(5), 60) == 10
        assert await asyncio.wait_for(gathering.call(6), 60) == 12

    asyncio.run(main())
    assert batches[1:] == [[5], [6]]


def test_an_error_reaches_all_callers_of_its_batch_and_no_later_one() -> None:
    async def main() -> None:
        gathering = Gathering(doubling([]), limit=100)
        found = await asyncio.gather(gathering.put([0]), gathering.put([1]), return_exceptions=True)
        assert [type(error) for error in found] == [ValueError, ValueError]
        assert await gathering.call(2) == 4

    asyncio.run(main())


def test_a_caller_that_gives_up_leaves_the_others_their_answers() -> None:
    started, go_on = threading.Event(), threading.Event()

    def work(items: list[int]) -> list[int]:
        started.set()
        assert go_on.wait(20)
        return [2 * item for item in items]

    async def main() -> None:
        gathering = Gathering(work, limit=100)
        given_up, other = asyncio.ensure_future(gathering.call(1)), gathering.put([2, 3])
        await asyncio.to_thread(started.wait, 20)
        given_up.cancel()
        go_on.set()
        assert list(await other) == [4, 6]
        assert given_up.cancelled()

    asyncio.run(main())
