"""Delete kinds that nothing uses any more: programs that make up kinds would leave a million of them.

Owns which kinds are unused, and when they go. No index covers the kind of a task: a pass reads all tasks and flows in
short steps, at most once an hour, and only if there are many kinds. Configured kinds stay.

Processes cache the keys of kinds, and must not write one that is gone. So a pass first retires an unused kind: its row
stays, and a submit of the kind takes it back. A later pass deletes what was retired KEEP_RETIRED_S ago. A process
reads the kinds again far more often than that before it writes one (store/interned.py).
"""

from __future__ import annotations

from onetray.domain.clock import SECOND
from onetray.domain.policy import Policy
from onetray.store.base import Store, Tx

MANY = 1_000
"""Fewer kinds than these cost nothing: they stay."""
PASS_S = 3600
"""A pass begins at most this often."""
PASS_KINDS = 100_000
"""How many kinds one pass checks at most."""
SPAN = 20_000
"""How many tasks or flows a step reads."""
BATCH = 1_000
"""How many kinds a step retires or deletes."""
KEEP_RETIRED_S = 7 * 86_400


class UnusedKinds:
    """One pass after the other. `step` reads; `remove` writes what a whole pass has found."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unused: set[int] = set()
        self._used: set[int] = set()
        self._tables: list[str] = []
        """The tables that this pass has still to read."""
        self._after, self._last_kind = 0, 0
        self._next_pass_at = 0

    @property
    def found(self) -> bool:
        """Whether a pass has read everything, and has kinds to retire, to delete or to take back."""
        return not self._tables and bool(self._unused or self._used)

    def step(self, ns: int | None) -> bool:
        """Read a part. Returns False if there is nothing to do before the next pass."""
        if self.found:
            return True
        if not self._tables and not self._begin(ns):
            return False
        table = self._tables[0]
        ((upto, _),) = self._store.read(f"next_{table}", after=self._after, span=SPAN)
        if upto is None:
            self._tables.pop(0)
            self._after = 0
            return True
        used = {kind for (kind,) in self._store.read(f"kinds_of_{table}", after=self._after, upto=upto)}
        self._after = upto
        self._used |= used & self._unused
        self._unused -= used
        return True

    def _begin(self, ns: int | None) -> bool:
        now = self._store.now()
        if now < self._next_pass_at:
            return False
        self._next_pass_at = now + PASS_S * SECOND
        rows = self._store.read("plain_kinds", after=self._last_kind, ns=ns, body=Policy().body, limit=PASS_KINDS)
        is_first, self._last_kind = not self._last_kind, rows[-1].key if len(rows) == PASS_KINDS else 0
        if not rows or (is_first and len(rows) < MANY):
            return False
        self._unused, self._used = {row.key for row in rows}, set()
        self._tables = ["tasks", "flows"]
        return True

    def remove(self, tx: Tx) -> None:
        """Delete unused kinds that were retired long ago, retire the others, and take back those that are used."""
        unused, used = sorted(self._unused)[:BATCH], sorted(self._used)[:BATCH]
        if unused:
            tx.query("delete_kinds", keys=unused, before=tx.now - KEEP_RETIRED_S * SECOND, body=Policy().body)
            tx.query("retire_kinds", keys=unused, at=tx.now, body=Policy().body)
        if used:
            tx.query("take_back_kinds", keys=used)
        self._unused.difference_update(unused)
        self._used.difference_update(used)
