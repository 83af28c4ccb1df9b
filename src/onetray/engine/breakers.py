"""Breakers: claims skip a kind whose attempts keep failing for a while, then try one task (a probe).

Owns when a breaker opens and closes, and which tasks a claim may take while one is open. A breaker changes no task:
ready rows stay, and claims skip them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.lifecycle import BREAKER_CLOSED, BREAKER_OPENED
from onetray.domain.policy import Policy
from onetray.engine.pending_writes import ENGINE, record_change
from onetray.store.base import Tx
from onetray.store.rows import ClaimedRow, TaskRow


class _Breaker(NamedTuple):
    """A row of the table. A closed breaker has only a kind and recent failures."""

    kind: int
    recent: list[int]
    opened_at: int | None = None
    open_until: int | None = None
    probing: int = 0
    why: str | None = None
    opened_by: str | None = None


class Outcomes:
    """Outcomes of the attempts of one batch, by kind. They are written once, after all tasks."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._failed: dict[int, list[tuple[Policy, str]]] = {}
        self._succeeded: set[int] = set()

    def failed(self, row: TaskRow, error_class: str) -> None:
        """Count a failed attempt, whether or not a retry follows."""
        policy = self._tx.names.policy(row.policy)
        if policy.breaker_failures is not None:
            self._failed.setdefault(row.kind, []).append((policy, error_class))

    def succeeded(self, rows: Sequence[TaskRow]) -> None:
        # The hot path: most batches have one policy, and it has no breaker.
        counted = {p for p in {row.policy for row in rows} if self._tx.names.policy(p).breaker_failures is not None}
        if counted:
            self._succeeded |= {row.kind for row in rows if row.policy in counted}

    def write(self) -> None:
        """Count failures, and close breakers whose probe succeeded. A kind with both has failed."""
        if not self._failed and not self._succeeded:
            return
        tx, failed = self._tx, sorted(self._failed)
        if failed:
            tx.batch("add_breaker", {"kind": failed})
        # All at once and sorted, so that two batches cannot deadlock. Of kinds that only succeeded, only those with a
        # probe are locked: reports of a healthy kind must not queue for one row.
        rows = tx.query("lock_breakers", kinds=sorted({*failed, *self._succeeded}), failed=failed)
        breakers = [_Breaker(**row._asdict() | {"recent": orjson.loads(row.recent)}) for row in rows]
        changed = [self._after(breaker) for breaker in breakers]
        if changed:
            # Only a breaker that closes makes tasks claimable.
            tx.work.anywhere |= any(
                before.open_until is not None and after.open_until is None
                for before, after in zip(breakers, changed, strict=True)
            )
            tx.batch("set_breaker", {
                **{name: [getattr(b, name) for b in changed] for name in _Breaker._fields},
                "recent": [orjson.dumps(b.recent).decode() for b in changed],
            })  # fmt: skip
            for before, after in zip(breakers, changed, strict=True):
                _record_change(tx, before, after)
        self._failed, self._succeeded = {}, set()

    def _after(self, breaker: _Breaker) -> _Breaker:
        failures = self._failed.get(breaker.kind)
        if failures is None:
            return _Breaker(breaker.kind, [])
        for policy, error_class in failures:
            breaker = _count_failure(breaker, policy, error_class, self._tx.now)
        return breaker


def _count_failure(breaker: _Breaker, policy: Policy, error_class: str, now: int) -> _Breaker:
    """The breaker after one more failure. While it is open, further failures are counted without effect."""
    max_failures, window_us = policy.breaker_failures or 1, int(policy.breaker_window_s * SECOND)
    # Sorted: two processes may write in a different order than they read the clock.
    breaker = breaker._replace(recent=sorted([*breaker.recent, now])[-max_failures:])
    if breaker.probing:
        return _open(breaker, policy, now, f"it was tried again, and failed with {error_class}")
    if breaker.open_until is None and len(breaker.recent) == max_failures and now - breaker.recent[0] <= window_us:
        why = f"{max_failures} attempts failed within {policy.breaker_window_s:g} s, the last with {error_class}"
        return _open(breaker, policy, now, why)
    return breaker


def _record_change(tx: Tx, before: _Breaker, after: _Breaker) -> None:
    if after.open_until is None and before.open_until is not None:
        record_closed(tx, before.kind, ENGINE)
    elif after.open_until is not None and after.opened_at != before.opened_at:
        record_opened(tx, after.kind, ENGINE, str(after.why), after.open_until)


def record_opened(tx: Tx, kind: int, by: str, why: str, until: int) -> None:
    ns, name = tx.names.place_of_kind(kind)
    record_change(tx, ns, BREAKER_OPENED, by, why, about=("kind", name), open_until=until)


def record_closed(tx: Tx, kind: int, by: str, reason: str | None = None) -> None:
    ns, name = tx.names.place_of_kind(kind)
    record_change(tx, ns, BREAKER_CLOSED, by, reason, about=("kind", name))


def close_breakers(tx: Tx, kinds: Sequence[int], by: str, reason: str | None = None) -> None:
    """Close breakers, and reset the failures that they have counted."""
    was_open = [kind for (kind,) in tx.query("lock_open_breakers", kinds=list(kinds))]
    tx.query("close_breakers", kinds=list(kinds))
    for kind in was_open:
        record_closed(tx, kind, by, reason)


def _open(breaker: _Breaker, policy: Policy, now: int, why: str) -> _Breaker:
    until = now + int(policy.breaker_open_s * SECOND)
    return breaker._replace(opened_at=now, open_until=until, probing=0, why=why, opened_by=ENGINE)


def pick_past_breakers(tx: Tx, ns: int, queue: int, kinds: list[int] | None, limit: int) -> list[ClaimedRow]:
    """Pick tasks while breakers are open: any of kinds with a closed breaker, one probe of each kind that is due."""
    open_until: dict[int, int | None] = dict(tx.query("kinds_past_breakers", ns=ns, queue=queue))
    wanted = open_until if kinds is None else {kind: open_until[kind] for kind in kinds if kind in open_until}
    limits, to_try = past_breakers(tx, wanted, limit)
    picked = pick_by_kind(tx, queue, limits, limit)
    mark_probes(tx, [row for row in picked if row.kind in to_try])
    return picked


def past_breakers(tx: Tx, open_until: dict[int, int | None], limit: int) -> tuple[dict[int, int], list[int]]:
    """How many tasks of each kind a claim may take: of a kind whose breaker is due, one probe. And the kinds of these.

    `open_until`: until when the breaker of each kind is open.
    """
    limits = {kind: limit for kind, until in open_until.items() if until is None}
    due = [kind for kind, until in open_until.items() if until is not None and until <= tx.now]
    # Skips breakers that another claim has locked, and checks again under the lock: no claim waits, one probe runs.
    to_try = [kind for (kind,) in tx.query("lock_breakers_to_try", kinds=due, now=tx.now)] if due else []
    return limits | dict.fromkeys(to_try, 1), to_try


def pick_by_kind(tx: Tx, queue: int, limits: dict[int, int], limit: int) -> list[ClaimedRow]:
    """The first tasks of these kinds, up to the limit of each kind and of all."""
    # Read first, then lock only the tasks to be claimed: others stay free for other claims.
    heads = sorted(
        (rank, task, kind)
        for kind, kind_limit in limits.items()
        for rank, task in tx.query("heads_of_kind", queue=queue, kind=kind, limit=kind_limit)
    )
    of_kind = Counter(kind for _, _, kind in heads[:limit])
    return sorted(row for kind, n in of_kind.items() for row in tx.pick(queue, [kind], n, past_breakers=True))


def mark_probes(tx: Tx, probes: list[ClaimedRow]) -> None:
    """Keep these breakers open until their probes end, or their time is over.

    A probe whose policy has no breaker closes it at once: its outcome would not be counted.
    """
    policies = {probe.kind: tx.names.policy(probe.policy) for probe in probes}
    with_breaker = {kind: policy for kind, policy in policies.items() if policy.breaker_failures is not None}
    if with_breaker:
        until = [tx.now + int(policy.breaker_open_s * SECOND) for policy in with_breaker.values()]
        tx.batch("try_breaker", {"kind": list(with_breaker), "open_until": until})
    to_close = [kind for kind in policies if kind not in with_breaker]
    if to_close:
        close_breakers(tx, sorted(to_close), ENGINE)
