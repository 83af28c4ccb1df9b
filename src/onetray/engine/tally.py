"""Counts of what leaves no event, over all processes of a database: accepted heartbeats, rejected reports.

Owns when a process adds its counts to those of the others: with each registration of a worker, by the janitor, when
metrics are read, and at the end. Not with each heartbeat: all of them would wait for one row. A process that is killed
loses the counts of its last seconds.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from threading import Lock

from onetray.domain.commands import Beat, Command
from onetray.domain.errors import LeaseLost, OnetrayError, OutcomeUnknown
from onetray.domain.task import Verdict
from onetray.store.base import Store, Tx

logger = logging.getLogger("onetray.engine")

RENEWALS, CONFLICTS = "lease_renewals", "claim_conflicts"
WRITE_EVERY_S = 5.0
"""How often the janitor adds the counts of its process."""


class Tally:
    """The counts of one process, until they are added to the table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: Counter[tuple[str, str]] = Counter()
        """By namespace and name."""
        self._lock = Lock()
        self._written_at = time.monotonic()

    def count(self, commands: Sequence[Command], verdicts: Sequence[Verdict]) -> None:
        """Count a batch that was committed. Most have nothing to count: two looks at the speed of C."""
        errors = [verdict.error for verdict in verdicts]
        if errors.count(None) < len(errors):
            self._add(CONFLICTS, [c for c, e in zip(commands, errors, strict=True) if isinstance(e, LeaseLost)])
        if Beat in map(type, commands):
            beats = zip(commands, errors, strict=True)
            self._add(RENEWALS, [c for c, e in beats if e is None and type(c) is Beat])

    def _add(self, name: str, commands: list[Command]) -> None:
        with self._lock:
            for command in commands:
                self._counts[str(getattr(command, "namespace", "default")), name] += 1

    def step(self) -> int:
        """Write, if it is time for it. Returns 0: for the loop of the janitor there is nothing left to do."""
        if self._counts and time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self.write()
        return 0

    def write(self) -> None:
        """Add the counts to the table. What cannot be written is kept for the next time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        self._written_at = time.monotonic()
        if not counts:
            return
        try:
            ns_of = {namespace: self._store.names.intern_namespace(namespace) for namespace, _ in counts}
            # Sorted, so that two processes cannot deadlock.
            rows = sorted((ns_of[namespace], name, number) for (namespace, name), number in counts.items())
            columns = dict(zip(("ns", "name", "value"), map(list, zip(*rows, strict=True)), strict=True))
            self._store.write(lambda tx: _add_rows(tx, columns), again=False)
        except OutcomeUnknown as e:
            # Rather too few than twice.
            logger.debug("some counts of this process may be lost: %s", e)
        except OnetrayError as e:
            logger.debug("the counts of this process are written later: %s", e)
            with self._lock:
                self._counts.update(counts)

    def totals(self, namespace: str) -> dict[str, int]:
        """The counts of all processes, by name, since the database was created."""
        return {name: int(value) for name, value in self._store.read("tallies", namespace=namespace)}


def _add_rows(tx: Tx, columns: dict[str, list[object]]) -> None:
    tx.batch("add_tally", columns)
