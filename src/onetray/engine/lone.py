"""A submit that is alone in its batch, and says nothing that needs a second statement.

Owns which submits those are. All others go the way of batches: see submit.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from uuid_utils import uuid7

from onetray import points
from onetray.commands import Command, Submit
from onetray.engine.moves import actor
from onetray.engine.submit import numbers_of
from onetray.lifecycle import QUEUED, TASK
from onetray.model import Receipt, Verdict
from onetray.store.base import Store


def submit_lone(store: Store, commands: Sequence[Command], names_ttl_s: float) -> list[Verdict] | None:
    """Carry out a single plain submit in one statement, where the store can; None when it is not such a one."""
    if len(commands) != 1 or not store.takes_one or points.hook is not None:
        return None
    c = commands[0]
    if type(c) is not Submit or c.delay_s is not None or c.run_at is not None:
        return None
    if c.idempotency_key is not None or c.unique_key is not None or c.labels:
        return None
    numbers = numbers_of(store.names, c, c.namespace, names_ttl_s)
    policy = store.names.policy(numbers.policy)
    if policy.queue_ttl_s is not None or policy.deadline_s is not None:
        return None
    id_ = str(uuid7())
    store.submit_one({
        **numbers._asdict(), "id": id_, "priority": c.priority, "payload": c.payload_json, "state": QUEUED,
        "type": TASK.submit.event, "actor": actor(c.actor, c.actor_name), "correlation_id": c.correlation_id,
        "cause": c.cause, "trace": c.trace,
    })  # fmt: skip
    return [Verdict(Receipt(id_, QUEUED, 1, 1, c.actor))]
