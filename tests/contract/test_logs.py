"""Log lines: append-only, numbered without a gap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import LeaseLost, NotFound
from onetray.engine import Engine
from tests.support.tasks import UNKNOWN_ID, running, submit, take


def test_lines_are_kept_in_order_with_all_they_say(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    assert engine.log(held, "one", ("warning", "two", {"n": 2})) == 2
    clock.advance(1)
    assert engine.log(held, "") == 3
    start = clock.now() - SECOND
    lines = [(x.cursor, x.ts, x.attempt, x.level, x.line, x.data) for x in engine.logs(id_)]
    assert lines == [
        (1, start, 1, "info", "one", None),
        (2, start, 1, "warning", "two", {"n": 2}),
        (3, clock.now(), 1, "info", "", None),
    ]


def test_lines_of_all_attempts_stand_in_one_log(engine: Engine) -> None:
    id_ = submit(engine)
    engine.log(take(engine), "first")
    held = take_again(engine, id_)
    engine.log(held, "second")
    assert [(x.cursor, x.attempt, x.line) for x in engine.logs(id_)] == [(1, 1, "first"), (2, 2, "second")]


def take_again(engine: Engine, id_: str) -> object:
    engine.fail(id_, "no", retry_after_s=0)
    return take(engine)


def test_a_log_is_read_from_a_cursor_on(engine: Engine) -> None:
    id_ = submit(engine)
    held = running(engine)
    engine.log(held, *[f"line {n}" for n in range(10)])
    assert [x.cursor for x in engine.logs(id_, after=7)] == [8, 9, 10]
    assert [x.cursor for x in engine.logs(id_, after=2, limit=3)] == [3, 4, 5]
    assert engine.logs(id_, after=10) == []


def test_several_logs_of_one_task_in_one_batch(engine: Engine) -> None:
    id_ = submit(engine)
    ticket = c.ticket(running(engine))
    verdicts = engine.run([c.Log(lines=(f"{n}a", f"{n}b"), **ticket) for n in range(4)])
    assert [v.unwrap() for v in verdicts] == [2, 4, 6, 8]
    assert [x.line for x in engine.logs(id_)] == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"]


def test_lines_of_many_threads_leave_no_gap(engine: Engine) -> None:
    id_ = submit(engine)
    held = running(engine)
    with ThreadPoolExecutor(8) as pool:
        last = list(pool.map(lambda n: engine.log(held, f"{n} a", f"{n} b"), range(40)))
    lines = engine.logs(id_)
    assert [x.cursor for x in lines] == list(range(1, 81))
    assert sorted(last) == list(range(2, 81, 2))
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert all((a.line[:-1], a.line[-1], b.line[-1]) == (b.line[:-1], "a", "b") for a, b in pairs)


def test_only_the_holder_may_log(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    clock.advance(61)
    with pytest.raises(LeaseLost):
        engine.log(held, "late")
    assert engine.logs(id_) == []


def test_a_log_changes_no_state_and_writes_no_event(engine: Engine) -> None:
    id_ = submit(engine)
    held = running(engine)
    before, events = engine.task(id_), engine.events(id_)
    engine.log(held, "x")
    assert engine.task(id_) == before
    assert engine.events(id_) == events


def test_the_log_of_an_unknown_task_is_not_empty_but_an_error(engine: Engine) -> None:
    id_ = submit(engine)
    with pytest.raises(NotFound):
        engine.logs(UNKNOWN_ID)
    with pytest.raises(NotFound):
        engine.logs(id_, namespace="other")
    assert engine.logs(id_) == []
