"""Write successes without a look at their tasks first.

Owns the hot path: most reports are successes of single tasks by the worker that holds them. The guard of the UPDATE
asks what a look would: the version from the claim, the fence, the owner, the lease. If it does not hold for every one,
nothing is written, and the batch is carried out the careful way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeGuard

from onetray.clock import SECOND
from onetray.commands import Command, Succeed
from onetray.engine.moves import actor, once
from onetray.errors import GuardFailed
from onetray.lifecycle import ASSIGNED, RUNNING, SUCCEEDED, TASK
from onetray.machine import WORKER
from onetray.model import Receipt, Verdict
from onetray.store.base import Store

_FROM = {started: TASK.path(TASK.succeed, RUNNING if started else ASSIGNED) for started in (False, True)}


def are_plain(commands: Sequence[Command]) -> TypeGuard[Sequence[Succeed]]:
    """Whether all of them are successes that say all that is needed, each of another task."""
    for c in commands:
        if type(c) is not Succeed or not c.version or not c.lease or c.more is not None or c.fence is None:
            return False
        if c.worker is None or type(c.task) is not int:
            return False
    return len({c.task for c in commands}) == len(commands)  # type: ignore[attr-defined]


def succeed_unseen(store: Store, commands: Sequence[Succeed]) -> list[Verdict] | None:
    """The verdicts, or None when one of them has to be looked at."""
    ns = {name: store.names.namespace(name) for name in {c.namespace for c in commands}}
    if None in ns.values():
        return None
    # In the order of their keys, as locks are taken everywhere.
    ordered = sorted(commands, key=_key)
    try:
        with store.transaction() as tx:
            leases = {c.lease for c in ordered}
            until: dict[int, int] = dict(tx.query("expiries", keys=sorted(leases)))
            if any(until.get(lease, 0) < tx.now for lease in leases):
                return None
            for started in (False, True):
                some = [c for c in ordered if c.started is started]
                if some:
                    tx.move(_FROM[started], _columns(some, ns, tx.now, started), held=True)
    except GuardFailed:
        return None
    return [_succeeded(c.fence, c.version + 2) for c in commands]


def _key(command: Succeed) -> int:
    assert isinstance(command.task, int)
    return command.task


def _columns(some: list[Succeed], ns: dict[str, int | None], now: int, started: bool) -> dict[str, Any]:
    """Whole columns, and what is the same for all tasks only once."""
    worker = once([c.worker for c in some])
    return {
        "key": [c.task for c in some],
        "version": once([c.version + started for c in some]),
        "fence": once([c.fence for c in some]),
        "ns": once([ns[c.namespace] for c in some]),
        "worker": worker,
        "lease": once([c.lease for c in some]),
        "result": once([c.result_json for c in some]),
        "began": once([now - int(c.ran_s * SECOND) for c in some]),
        "actor": [actor(WORKER, w) for w in worker] if isinstance(worker, list) else actor(WORKER, worker),
        "trace": once([c.trace for c in some]),
        "at": now, "cause": None, "detail": None,
    }  # fmt: skip


@lru_cache(maxsize=1024)
def _succeeded(fence: int, version: int) -> Verdict:
    # Most tasks succeed at their first attempt: they share one answer.
    return Verdict(Receipt(None, SUCCEEDED, fence, version, WORKER))
