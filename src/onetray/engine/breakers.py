"""Breakers: a kind whose attempts keep failing is left alone for a while, then tried with one task.

Owns what opens and closes a breaker, and how a claim goes past the open ones. A breaker rewrites no task: what is
ready stays ready, and claims look elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.policy import Policy
from onetray.engine.pending_writes import ENGINE
from onetray.store.base import Tx
from onetray.store.rows import ClaimedRow, TaskRow


class _Breaker(NamedTuple):
    """A row of the table. Closed: all but the kind and the recent failures is empty."""

    kind: int
    recent: list[int]
    opened_at: int | None = None
    open_until: int | None = None
    probing: int = 0
    why: str | None = None
    opened_by: str | None = None


class Outcomes:
    """How the attempts of one batch went, by kind: gathered here, and written once, after all its tasks."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._failed: dict[int, list[tuple[Policy, str]]] = {}
        self._succeeded: set[int] = set()

    def failed(self, row: TaskRow, error_class: str) -> None:
        """An attempt failed that is tried again, or was the last one."""
        policy = self._tx.names.policy(row.policy)
        if policy.breaker_failures is not None:
            self._failed.setdefault(row.kind, []).append((policy, error_class))

    def succeeded(self, rows: Sequence[TaskRow]) -> None:
        # The hot path: most batches have one policy, and it has no breaker.
        counted = {p for p in {row.policy for row in rows} if self._tx.names.policy(p).breaker_failures is not None}
        if counted:
            self._succeeded |= {row.kind for row in rows if row.policy in counted}

    def write(self) -> None:
        """Count what failed, and close what was tried with success. A kind that did both has failed."""
        if not self._failed and not self._succeeded:
            return
        tx, failed = self._tx, sorted(self._failed)
        if failed:
            tx.batch("add_breaker", {"kind": failed})
        # All at once and sorted, so that two batches cannot wait for each other. Of those that only succeeded none but
        # the ones being tried: a sound kind's reports do not queue up behind one row.
        rows = tx.query("lock_breakers", kinds=sorted({*failed, *self._succeeded}), failed=failed)
        found = [_Breaker(**row._asdict() | {"recent": orjson.loads(row.recent)}) for row in rows]
        changed = [self._after(breaker) for breaker in found]
        if changed:
            # Only what was held back becomes claimable: a failure that is counted, or opens one, is no work.
            tx.work.anywhere |= any(
                before.open_until is not None and after.open_until is None
                for before, after in zip(found, changed, strict=True)
            )
            tx.batch("set_breaker", {
                **{name: [getattr(b, name) for b in changed] for name in _Breaker._fields},
                "recent": [orjson.dumps(b.recent).decode() for b in changed],
            })  # fmt: skip
        self._failed, self._succeeded = {}, set()

    def _after(self, breaker: _Breaker) -> _Breaker:
        failures = self._failed.get(breaker.kind)
        if failures is None:
            return _Breaker(breaker.kind, [])
        for policy, error_class in failures:
            breaker = _counted(breaker, policy, error_class, self._tx.now)
        return breaker


def _counted(breaker: _Breaker, policy: Policy, error_class: str, now: int) -> _Breaker:
    """The breaker after one more failure. While it is open, stragglers are noted and change nothing."""
    most, window_us = policy.breaker_failures or 1, int(policy.breaker_window_s * SECOND)
    # Sorted: two processes may write in another order than they read the clock.
    breaker = breaker._replace(recent=sorted([*breaker.recent, now])[-most:])
    if breaker.probing:
        return _opened(breaker, policy, now, f"it was tried again, and failed with {error_class}")
    if breaker.open_until is None and len(breaker.recent) == most and now - breaker.recent[0] <= window_us:
        why = f"{most} attempts failed within {policy.breaker_window_s:g} s, the last with {error_class}"
        return _opened(breaker, policy, now, why)
    return breaker


def _opened(breaker: _Breaker, policy: Policy, now: int, why: str) -> _Breaker:
    until = now + int(policy.breaker_open_s * SECOND)
    return breaker._replace(opened_at=now, open_until=until, probing=0, why=why, opened_by=ENGINE)


def pick_past_breakers(tx: Tx, ns: int, queue: int, kinds: list[int] | None, limit: int) -> list[ClaimedRow]:
    """What a claim may have while breakers are open: of closed kinds anything, of those to be tried one task each."""
    there: dict[int, int | None] = dict(tx.query("kinds_past_breakers", ns=ns, queue=queue))
    wanted = there if kinds is None else {kind: there[kind] for kind in kinds if kind in there}
    most = {kind: limit for kind, until in wanted.items() if until is None}
    due = [kind for kind, until in wanted.items() if until is not None and until <= tx.now]
    # What another claim is about to try is skipped, and asked again under the lock: nobody waits, and one is sent.
    to_try = [kind for (kind,) in tx.query("lock_breakers_to_try", kinds=due, now=tx.now)] if due else []
    picked = _merged(tx, queue, most | dict.fromkeys(to_try, 1), limit)
    _send_out(tx, [row for row in picked if row.kind in to_try])
    return picked


def _merged(tx: Tx, queue: int, most: dict[int, int], limit: int) -> list[ClaimedRow]:
    """The first tasks of all these kinds, of each as many as it may give."""
    # Seen first and then locked: what is not taken stays free for others.
    heads = sorted(
        (rank, task, kind)
        for kind, some in most.items()
        for rank, task in tx.query("heads_of_kind", queue=queue, kind=kind, limit=some)
    )
    of_kind = Counter(kind for _, _, kind in heads[:limit])
    return sorted(row for kind, n in of_kind.items() for row in tx.pick(queue, [kind], n, past_breakers=True))


def _send_out(tx: Tx, probes: list[ClaimedRow]) -> None:
    """Let nothing more through until the probe has said something, or its time is over too.

    Under a policy that counts no failures nobody would wait for what it says: then the breaker is closed by it.
    """
    policies = {probe.kind: tx.names.policy(probe.policy) for probe in probes}
    judged = {kind: policy for kind, policy in policies.items() if policy.breaker_failures is not None}
    if judged:
        until = [tx.now + int(policy.breaker_open_s * SECOND) for policy in judged.values()]
        tx.batch("try_breaker", {"kind": list(judged), "open_until": until})
    over = [kind for kind in policies if kind not in judged]
    if over:
        tx.query("close_breakers", kinds=over)
