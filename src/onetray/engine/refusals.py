"""Which ended tasks and flows the engine would not run again, read without carrying anything out.

Owns the same decisions as flows/retry.py, for the lists of actions. Reads only what the state does not tell, and of
single tasks only dead letters: most tasks cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onetray.domain.actions import REDRIVE, RETRY
from onetray.domain.flow_commands import SINGLETON
from onetray.domain.lifecycle import DEAD_LETTERED, FLOW, STAGE, SUCCEEDED, TASK
from onetray.domain.rollup import STRICT
from onetray.engine.flows.carry_over import stays
from onetray.engine.flows.copy_flow import is_undone
from onetray.engine.flows.retry import first_stage_to_run
from onetray.store.copied_rows import StageToCopy
from onetray.store.explain_rows import RedriveFacts, RetryFacts, SpawnerRow

Query = Callable[..., list[Any]]
"""`store.read`, or `tx.query` in a transaction."""
NO_RETRY, NO_REDRIVE = (RETRY,), (RETRY, REDRIVE)


def is_uncertain(state: str, is_member: bool) -> bool:
    """Whether the state of a task does not tell if it can be redriven."""
    return state == DEAD_LETTERED or (is_member and state in TASK.terminal)


def refuse_redrive(query: Query, keys: Sequence[int]) -> set[int]:
    """Of these ended tasks, those that a redrive would refuse, or for which it would only return the successor."""
    rows: list[RedriveFacts] = query("redrive_facts", keys=list(keys)) if keys else []
    refused = {row.key for row in rows if row.successor is not None or (row.stage is not None and _is_settled(row))}
    members = [row for row in rows if row.stage is not None and row.key not in refused]
    refused |= {row.key for row in members if row.redriven and _successor(query, row.stage or 0, row.key)}
    members = [row for row in members if row.key not in refused]
    refused |= _with_unmet_needs(query, members)
    members = [row for row in members if row.key not in refused and row.flow_state in FLOW.terminal]
    flows = refuse_retry(query, {row.job for row in members}, with_carried=False)
    return refused | {row.key for row in members if row.job in flows or _cannot_be_copied(query, row)}


def _is_settled(row: RedriveFacts) -> bool:
    """Whether the task, its stage and its flow alone decide that it cannot run again."""
    if row.control:
        return True
    if row.flow_state in FLOW.terminal:
        return False
    is_over = row.stage_state in STAGE.terminal or row.stage_ending is not None or row.flow_ending is not None
    return row.state == SUCCEEDED or is_over


def _successor(query: Query, stage: int, key: int) -> Any:
    return next(iter(query("successor_in_stage", stage=stage, key=key)), None)


def _with_unmet_needs(query: Query, members: list[RedriveFacts]) -> set[int]:
    """The tasks that depend on one that has not succeeded, nor has its last successor."""
    asked = [row.key for row in members if row.flow_state not in FLOW.terminal or row.roll_up != STRICT]
    unmet = set()
    for need in query("states_of_needs", keys=asked) if asked else ():
        last = need
        while _has_failed(last.state) and (later := _successor(query, last.stage, last.key)) is not None:
            last = later
        if _has_failed(last.state):
            unmet.add(need.task)
    return unmet


def _has_failed(state: str) -> bool:
    return state in TASK.terminal and state != SUCCEEDED


def _cannot_be_copied(query: Query, row: RedriveFacts) -> bool:
    """Whether the retried flow would have no copy of the task, because its spawner runs again; or an origin is gone."""
    assert row.ord is not None
    stages: list[StageToCopy] = query("stages_to_copy", job=row.job)
    undone = [s.ord for s in stages if row.compensation is not None and s.ord <= row.ord and is_undone(s)]
    start = min([row.ord, *undone])
    if _origin_is_gone(query, stages, start):
        return True
    is_carried = row.opened_at is not None and not undone
    return _spawner_runs_again(query, row, start, is_carried)


def _spawner_runs_again(query: Query, row: RedriveFacts, start: int, is_carried: bool) -> bool:
    key = row.spawned_by
    while key is not None:
        spawners: list[SpawnerRow] = query("spawner", key=key)
        if not spawners or spawners[0].ord < start:
            return False
        if not is_carried:
            return True
        last = spawner = spawners[0]
        while row.redriven and (later := _successor(query, last.stage, last.key)) is not None:
            (last,) = query("spawner", key=later.key)
        if last.key == row.key or not stays(last, row.roll_up or STRICT):
            return True
        key = spawner.spawned_by
    return False


def refuse_retry(query: Query, keys: Iterable[int], with_carried: bool = True) -> set[int]:
    """Of these ended flows, those that a retry would refuse."""
    wanted = sorted(keys)
    rows: list[RetryFacts] = query("retry_facts", keys=wanted, singleton=SINGLETON) if wanted else []
    return {row.key for row in rows if row.is_taken or (with_carried and row.has_carried and _is_stranded(query, row))}


def _is_stranded(query: Query, row: RetryFacts) -> bool:
    """Whether a stage that would run again was carried over from a flow that was deleted."""
    stages: list[StageToCopy] = query("stages_to_copy", job=row.key)
    return _origin_is_gone(query, stages, first_stage_to_run(stages, None, is_compensated=row.compensation is not None))


def _origin_is_gone(query: Query, stages: list[StageToCopy], start: int) -> bool:
    for stage in stages:
        key = stage.carried_from if stage.ord >= start else None
        while key is not None:
            rows = query("stage_carried_from", key=key)
            if not rows:
                return True
            key = rows[0].carried_from
    return False
