"""The fast path for successes: they are written without reading their tasks first.

Most reports are successes of single tasks by the worker that holds them. The guard of the UPDATE checks what a read
would: the version from the claim, the fence, the owner, the lease. If it fails for one task, nothing is written, and
the batch takes the normal path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from onetray.domain.clock import SECOND
from onetray.domain.commands import Claim, Command, Succeed
from onetray.domain.errors import GuardFailed
from onetray.domain.lifecycle import ASSIGNED, RUNNING, SUCCEEDED, TASK
from onetray.domain.machine import WORKER
from onetray.domain.task import Receipt, Verdict
from onetray.engine.pending_writes import actor, once
from onetray.engine.slots import LimitChanges
from onetray.store.base import Tx

_PATH = {started: TASK.path(TASK.succeed, RUNNING if started else ASSIGNED) for started in (False, True)}


def plain_successes(commands: Sequence[Command]) -> list[Succeed] | None:
    """The successes of a batch that contains nothing else but claims, sorted by key, as all locks are taken.

    None if another command is among them, or if one lacks a field that the guard checks.
    """
    by_key: dict[int, Succeed] = {}
    for c in commands:
        if type(c) is Succeed:
            if (
                not c.version
                or not c.lease
                or not c.attempt
                or c.more is not None
                or c.fence is None
                or c.worker is None
            ):
                return None
            if type(c.task) is not int or c.task in by_key:
                return None
            if c.lease_id is not None or c.metadata is not None:
                return None
            by_key[c.task] = c
        elif type(c) is not Claim or c.start:
            return None
    return [by_key[key] for key in sorted(by_key)] if by_key else None


def succeed_without_reading(
    tx: Tx, successes: list[Succeed], ns: dict[str, int | None], limits: LimitChanges
) -> None:  # fmt: skip
    """Write the successes. Raises GuardFailed if one of them needs the normal path."""
    leases = {c.lease for c in successes}
    # The guard compares them: a new limit may add slots meanwhile.
    slots = tx.query_later("slots_of_tasks", keys=[c.task for c in successes]) if tx.limited else []
    expires_at: dict[int, int] = dict(tx.query("expiries", keys=sorted(leases)))
    if None in ns.values() or any(expires_at.get(lease, 0) < tx.now for lease in leases):
        raise GuardFailed("not all tasks are held")
    held: dict[int | str, str] = dict(slots)
    for started in (False, True):
        for limited in (False, True) if held else (False,):
            group = [c for c in successes if c.started is started and (c.task in held) is limited]
            if group:
                more = {"slots": [held[c.task] for c in group]} if limited else {}
                tx.move(_PATH[started], _columns(group, ns, tx.now, started) | more, held=True)
    limits.give_back_all(held.values())


def _columns(group: list[Succeed], ns: dict[str, int | None], now: int, started: bool) -> dict[str, Any]:
    """The columns of the move. A value that is the same for all tasks is passed once."""
    worker = once([c.worker for c in group])
    return {
        "key": [c.task for c in group],
        "version": once([c.version + started for c in group]),
        "fence": once([c.fence for c in group]),
        "attempts": once([c.attempt for c in group]),
        "ns": once([ns[c.namespace] for c in group]),
        "worker": worker,
        "lease": once([c.lease for c in group]),
        "result": once([c.result_json for c in group]),
        "began": once([now - int(c.ran_s * SECOND) for c in group]),
        "actor": [actor(WORKER, w) for w in worker] if isinstance(worker, list) else actor(WORKER, worker),
        "trace": once([c.trace for c in group]),
        "at": now, "job": None, "cause": None, "detail": None,
    }  # fmt: skip


@lru_cache(maxsize=1024)
def success_verdict(fence: int, version: int) -> Verdict:
    # Most tasks succeed at their first attempt, so they share one verdict.
    return Verdict(Receipt(None, SUCCEEDED, fence, version, WORKER))
