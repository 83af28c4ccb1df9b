"""Snapshots of a flow's context: write one, find one by its id or its alias. A snapshot never changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from uuid_utils import uuid7

from onetray.domain.checks import id_or_none
from onetray.domain.errors import NotFound
from onetray.engine.pending_writes import ENGINE
from onetray.engine.submit import Spec
from onetray.store.rows import FlowRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext


def write_context(
    batch: BatchContext,
    flow: FlowRow,
    key: int,
    payload: str,
    scope: str,
    task: int | None,
    parent: int | None,
    label: str | None,
    id_: str | None = None,
    *,
    by: str = ENGINE,
    cause: str | None = None,
    trace: str | None = None,
) -> str:
    """Write a snapshot and its note. Returns its id."""
    id_ = id_ or str(uuid7())
    batch.tx.batch("insert_context", {
        "key": [key], "job": [flow.key], "ns": [flow.ns], "task": [task], "parent": [parent], "at": [batch.tx.now],
        "scope": [scope], "label": [label], "id": [id_], "payload": [payload],
    })  # fmt: skip
    batch.locked.note_flow(
        flow.key, "flow.context_appended", by, cause=cause, trace=trace, context=id_, scope=scope, label=label
    )
    return id_


def context_key(batch: BatchContext, flow: FlowRow, id_: str) -> int:
    """The key of a snapshot of this flow, by its id or its alias. Raises NotFound."""
    for (key,) in batch.tx.query("context_in_flow", id=id_or_none(id_), alias=id_, ns=flow.ns, job=flow.key):
        return int(key)
    raise NotFound(f"the flow has no context {id_!r}", context=id_)


def find_contexts(batch: BatchContext, flow: FlowRow, specs: Iterable[Spec]) -> None:
    """Set the snapshots that new tasks name. The others get the current one."""
    known: dict[str, int] = {}
    for spec in specs:
        if spec.context_id is not None:
            if spec.context_id not in known:
                known[spec.context_id] = context_key(batch, flow, spec.context_id)
            spec.context = known[spec.context_id]
