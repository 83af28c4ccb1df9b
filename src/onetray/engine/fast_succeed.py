"""Write successes without a look at their tasks first.

Owns the hot path: most reports are successes of single tasks by the worker that holds them. The guard of the UPDATE
asks what a look would: the version from the claim, the fence, the owner, the lease. If it does not hold for every one,
nothing is written, and the batch is carried out the careful way.
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
from onetray.store.base import Tx

_FROM = {started: TASK.path(TASK.succeed, RUNNING if started else ASSIGNED) for started in (False, True)}


def plain_successes(commands: Sequence[Command]) -> list[Succeed] | None:
    """The successes of a batch that has nothing else but claims, if each of them says all that is needed; else None.

    In the order of their keys, as locks are taken everywhere.
    """
    found: dict[int, Succeed] = {}
    for c in commands:
        if type(c) is Succeed:
            if not c.version or not c.lease or c.more is not None or c.fence is None or c.worker is None:
                return None
            if type(c.task) is not int or c.task in found:
                return None
            found[c.task] = c
        elif type(c) is not Claim:
            return None
    return [found[key] for key in sorted(found)] if found else None


def succeed_without_reading(tx: Tx, successes: list[Succeed], ns: dict[str, int | None]) -> None:
    """Write them, or raise GuardFailed because one of them has to be looked at."""
    leases = {c.lease for c in successes}
    until: dict[int, int] = dict(tx.query("expiries", keys=sorted(leases)))
    if None in ns.values() or any(until.get(lease, 0) < tx.now for lease in leases):
        raise GuardFailed("not all of them are held")
    for started in (False, True):
        some = [c for c in successes if c.started is started]
        if some:
            tx.move(_FROM[started], _columns(some, ns, tx.now, started), held=True)


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


def succeeded(command: Succeed) -> Verdict:
    """The answer to a success that was written."""
    return _succeeded(command.fence or 0, command.version + 2)


@lru_cache(maxsize=1024)
def _succeeded(fence: int, version: int) -> Verdict:
    # Most tasks succeed at their first attempt: they share one answer.
    return Verdict(Receipt(None, SUCCEEDED, fence, version, WORKER))
