"""Delete one ended job by its id, with everything that belongs to it.

Owns which jobs may be deleted, the event that records it, and the steps. A task or a small flow goes in one
transaction. A large flow is marked in the first one: from then on nobody finds it. Its tasks, contexts and stages
follow in steps, then the flow itself. If the process dies meanwhile, the janitor continues, and so does another call.
"""

from __future__ import annotations

import time

from onetray.domain.actions import actions_by_state
from onetray.domain.clock import SECOND
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
from onetray.domain.lifecycle import FLOW, MACHINES
from onetray.domain.machine import USER
from onetray.domain.refusal import refusal_text
from onetray.engine.pending_writes import DELETE, actor, event_detail
from onetray.engine.retention import JOB_DELETED, TASK_TABLES, delete_keys, remove_events, remove_rows
from onetray.store.base import Store, Tx
from onetray.store.event_log import NOTE
from onetray.store.rows import FlowRow, JobToDelete

STEP = 1_000
"""How many tasks, contexts, notes and stages of a flow one transaction deletes."""
JANITOR_AFTER_S = 60
"""When the janitor takes over a deletion that has not finished."""


class Deletion:
    """One call: the job, and who deletes it why."""

    def __init__(self, id_: str, ns: int | None, by: str, reason: str | None) -> None:
        self._id, self._ns, self._by, self._reason = id_, ns, by, reason
        self._has_begun = False

    def run(self, store: Store, is_done: bool = False) -> None:
        while not is_done:
            began = time.monotonic()
            is_done = store.write(self.step)
            if not is_done:
                # As long as the step took: on SQLite all other writers waited for it.
                time.sleep(time.monotonic() - began)

    def step(self, tx: Tx) -> bool:
        """Delete the job, or the next part of a large flow. Returns whether all of it is gone."""
        rows: list[JobToDelete] = tx.query("job_to_delete", id=self._id, ns=self._ns)
        if not rows and self._has_begun:
            # The janitor has finished it, or the answer to the last COMMIT was lost.
            return True
        if not rows:
            raise NotFound(f"there is no job {self._id}", job=self._id)
        job = rows[0]
        is_done = self._delete_flow(tx, job) if job.entity == FLOW.entity else self._delete_task(tx, job)
        self._has_begun = True
        return is_done

    def _delete_task(self, tx: Tx, job: JobToDelete) -> bool:
        if job.flow_id is not None:
            raise Conflict(
                f"this task belongs to the flow {job.flow_id}: delete the flow", task=self._id, flow=job.flow_id
            )
        self._require_ended(job)
        if tx.lock([job.key]):
            self._record(tx, job)
            remove_events(tx, [job.key])
            remove_rows(tx, [job.key], "labels", *TASK_TABLES)
        return True

    def _delete_flow(self, tx: Tx, job: JobToDelete) -> bool:
        self._require_ended(job)
        for flow in tx.lock_flows([job.key]):
            if flow.deleted_at is not None:
                return delete_step(tx, flow)
            self._require_deletable(tx, flow)
            self._record(tx, job)
            return delete_step(tx, flow) or self._mark(tx, flow)
        return True

    def _require_ended(self, job: JobToDelete) -> None:
        machine = MACHINES[job.entity]
        if job.state not in machine.terminal:
            raise IllegalTransition(
                f"{refusal_text(job.entity, job.state, 'delete')}: cancel it, or wait until it has ended",
                **{"from": job.state, "attempted": "delete", "allowed": list(actions_by_state(job.entity, job.state))},
            )

    def _require_deletable(self, tx: Tx, flow: FlowRow) -> None:
        if tx.query("any_open_member", job=flow.key):
            raise Conflict("a worker still runs a task of this flow: delete it when the task has ended", job=self._id)
        for (id_,) in tx.query("open_compensation", job=flow.key):
            raise Conflict(f"its compensation {id_} has not ended: delete it then", job=self._id, compensation=id_)

    def _record(self, tx: Tx, job: JobToDelete) -> None:
        """Write the event, free the keys and the alias."""
        if not delete_keys(tx, [job.key]):
            raise Conflict("a submit is using a key of this job: try again", job=self._id)
        remove_rows(tx, [job.key], "aliases")
        detail = event_detail(
            id=job.id, entity=job.entity, kind=job.kind, state=job.state, correlation_id=job.correlation_id
        )
        tx.record({
            "entity": [job.key], "job": None, "ts": tx.now, "ns": self._ns, "fence": 0, "attempts": 0, "trace": None,
            "type": JOB_DELETED, "actor": actor(USER, self._by), "cause": self._reason, "payload": detail, **NOTE,
        })  # fmt: skip

    def _mark(self, tx: Tx, flow: FlowRow) -> bool:
        tx.query("mark_deleted", key=flow.key, at=tx.now)
        later = tx.now + JANITOR_AFTER_S * SECOND
        tx.batch("insert_due", {"at": [later], "key": [flow.key], "what": [DELETE], "fence": [0]})
        return False


def delete_step(tx: Tx, flow: FlowRow) -> bool:
    """Delete the next part of a locked flow. Returns whether it is gone."""
    left = _delete_stages(tx, flow, STEP)
    for part in ("contexts", "notes"):
        if left > 0:
            keys = [key for (key,) in tx.query(f"{part}_to_delete", job=flow.key, limit=left)]
            remove_rows(tx, keys, *(("aliases",) if part == "contexts" else ()), f"{part}_by_key")
            left -= len(keys)
    if left <= 0:
        return False
    remove_events(tx, [flow.key])
    remove_rows(tx, [flow.key], "flow_events", "labels", "flows")
    return True


def _delete_stages(tx: Tx, flow: FlowRow, left: int) -> int:
    """Delete the first stages with their tasks, or a part of them. Returns how much of the step is left."""
    members: list[int] = []
    emptied: list[int] = []
    for (stage,) in tx.query("stages_to_delete", job=flow.key, limit=left):
        found = [key for (key,) in tx.query("members_to_delete", stage=stage, limit=left)]
        members += found
        left -= len(found) + 1
        if left <= 0:
            break
        emptied.append(stage)
    remove_events(tx, members + emptied)
    remove_rows(tx, members, "dependencies", "dependencies_on", *TASK_TABLES)
    remove_rows(tx, emptied, "stages")
    return left
