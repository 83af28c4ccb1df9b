"""Many jobs with what belongs to them: each read is one statement, however many jobs it is about.

Owns nothing but the statements: whoever asks has the keys from a list of the right namespace.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from onetray.domain.flow import Flow, Stage
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import USER
from onetray.domain.task import LogLine, Task
from onetray.engine.flow_api import _flow, _stage, task_of_row
from onetray.store.base import Store


def tasks_by_keys(store: Store, keys: Sequence[int]) -> list[Task]:
    return [task_of_row(r, USER) for r in store.read("tasks_by_keys", keys=list(keys))] if keys else []


def flows_by_keys(store: Store, keys: Sequence[int]) -> list[Flow]:
    return [_flow(r, USER) for r in store.read("flows_by_keys", keys=list(keys))] if keys else []


def stages_of_flows(store: Store, keys: Sequence[int]) -> list[Stage]:
    """The stages of flows that have ended, in their order: none of them holds a task any more."""
    return [_stage(r, 0, USER, raw=False) for r in store.read("stages_of_flows", keys=list(keys))] if keys else []


def first_lines(store: Store, keys: Sequence[int], most: int) -> dict[int, list[LogLine]]:
    """The first lines of the logs of these tasks."""
    found: dict[int, list[LogLine]] = {}
    for row in store.read("first_lines", keys=list(keys), most=most) if keys and most else ():
        data = None if row.data is None else orjson.loads(row.data)
        line = LogLine(row.cursor, row.ts, row.attempt, row.level, row.line, data)
        found.setdefault(row.task, []).append(line)
    return found


def first_starts(store: Store, keys: Sequence[int]) -> dict[int, int]:
    """When these tasks were started first. A task itself knows when it was started last."""
    rows = store.read("first_starts", keys=list(keys), started=TASK.start.event) if keys else ()
    return {key: int(at) for key, at in rows}
