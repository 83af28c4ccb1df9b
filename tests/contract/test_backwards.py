"""Events, log lines and reports read backwards: the last ones before a cursor, page by page, are all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine

NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"
LAST = 2**62


def pages(read: Callable[..., list[Any]], cursor: str, limit: int) -> list[Any]:
    """Everything, read from the end in pages of this size."""
    found: list[Any] = []
    while page := read(before=getattr(found[0], cursor) if found else LAST, limit=limit):
        assert len(page) <= limit
        found = [*page, *found]
    return found


def log_of_two_tasks(engine: Engine) -> str:
    flow = engine.submit_flow("flow", [StageSpec("a", [TaskSpec("work") for _ in range(7)])])
    held = engine.claim(worker="w", limit=7)
    for i in range(4):
        engine.run([c.Log(lines=(f"line {i}", f"more {i}"), **c.ticket(task)) for task in held])
    engine.run([c.Progress(done=1, total=3, **c.ticket(task)) for task in held])
    engine.run([c.Succeed(**c.ticket(task)) for task in held[:5]])
    return flow.id


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_pages_from_the_end_are_all_there_is(engine: Engine, limit: int) -> None:
    flow = log_of_two_tasks(engine)
    other = engine.submit_flow("other", [StageSpec("a", [TaskSpec("work", queue="other")])]).id
    task = engine.members(flow)[0].id
    for read, cursor in ((engine.events, "id"), (engine.logs, "cursor")):
        whole = read(task)
        assert len(whole) >= 4
        assert pages(lambda read=read, **kw: read(task, **kw), cursor, limit) == whole
    for read, cursor in ((engine.flow_events, "id"), (engine.member_reports, "cursor")):
        whole = read(flow)
        assert len(whole) > 20
        assert pages(lambda read=read, **kw: read(flow, **kw), cursor, limit) == whole
    assert {event.job_id for event in engine.flow_events(other, before=LAST)} == {other}


def test_both_ends_of_a_page_can_be_given(engine: Engine) -> None:
    flow = log_of_two_tasks(engine)
    task = engine.members(flow)[0].id
    events, lines = engine.flow_events(flow), engine.logs(task)
    assert engine.flow_events(flow, after=events[2].id, before=events[5].id) == events[3:5]
    assert engine.logs(task, after=2, before=5) == lines[2:4]


def test_the_end_of_what_is_not_there_is_an_error(engine: Engine) -> None:
    flow = log_of_two_tasks(engine)
    task = engine.members(flow)[0].id
    for read, id_ in (
        (engine.events, task), (engine.logs, task), (engine.flow_events, flow), (engine.member_reports, flow)
    ):  # fmt: skip
        with pytest.raises(NotFound):
            read(NOBODY, before=10)
        with pytest.raises(InvalidInput, match="before"):
            read(id_, before=-1)
