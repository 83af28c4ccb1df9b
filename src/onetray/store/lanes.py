"""The lanes of new tasks: found by the values of their keys, added if they are new, cached in memory.

Owns that cache, of limited size. engine/slots.py opens lanes, engine/limited_claim.py serves them. A lane that nothing
has used for long is deleted: see engine/unused_lanes.py.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import orjson

from onetray.domain.limits import value_json

if TYPE_CHECKING:
    from onetray.store.base import Store, Tx

CACHED = 50_000
MAX_AGE_S = 3600.0
"""A lane is deleted days after it was retired: a process must look again whether it is before it writes one."""
STEP = 1_000
"""How many lanes one transaction adds."""


class CounterKeys(dict[tuple[int, str], int]):
    """The keys of counters, by limit and value. Neither changes: a limit that is added again has another key."""

    def keep(self, found: dict[tuple[int, str], int]) -> None:
        if len(self) > CACHED:
            self.clear()
        self.update(found)

    def forget(self, keys: set[int]) -> None:
        for place in [place for place, key in list(self.items()) if key in keys]:
            self.pop(place, None)


class InternedLanes:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.counters = CounterKeys()
        self._lock = threading.Lock()
        self._keys: OrderedDict[tuple[int, int, str], tuple[int, float]] = OrderedDict()
        """By queue, kind and value, with the time of the read; the last used ones last."""

    def intern(self, ns: int, queue: int, kind: int, fair_by: str | None, values: list[str]) -> dict[str, int]:
        """The lanes of these values. New ones are added in their own transaction: see InternedNames."""
        lanes = self._cached(queue, kind, values)
        missing = [value for value in values if value not in lanes]
        for start in range(0, len(missing), STEP):
            some = missing[start : start + STEP]
            found = dict(self._store.read("find_lanes", queue=queue, kind=kind, values=some))
            new = sorted(value for value in some if value not in found)
            if new:
                add = partial(add_lanes_in, ns=ns, queue=queue, kind=kind, fair_by=fair_by, values=new)
                found |= self._store.write(add)
            lanes |= found
            self._keep(queue, kind, found)
        return lanes

    def _cached(self, queue: int, kind: int, values: list[str]) -> dict[str, int]:
        lanes: dict[str, int] = {}
        with self._lock:
            for value in values:
                key, read_at = self._keys.get((queue, kind, value), (0, 0.0))
                if key and abs(time.time() - read_at) < MAX_AGE_S:
                    self._keys.move_to_end((queue, kind, value))
                    lanes[value] = key
        return lanes

    def _keep(self, queue: int, kind: int, found: dict[str, int]) -> None:
        with self._lock:
            for value, key in found.items():
                self._keys[queue, kind, value] = key, time.time()
            while len(self._keys) > CACHED:
                self._keys.popitem(last=False)

    def forget(self, lanes: Iterable[int]) -> None:
        """Forget lanes that were deleted."""
        gone = set(lanes)
        with self._lock:
            self._keys = OrderedDict((place, read) for place, read in self._keys.items() if read[0] not in gone)


def add_lanes_in(tx: Tx, ns: int, queue: int, kind: int, fair_by: str | None, values: list[str]) -> dict[str, int]:
    """Find the lanes of these values, and add those that are missing, with the counters of their limits."""
    found: dict[str, int] = dict(tx.query("find_lanes", queue=queue, kind=kind, values=values))
    new = [value for value in values if value not in found]
    if not new:
        return found
    tx.query("share_queue", key=queue)
    tx.query("limit_queue", key=queue)
    contents = [orjson.loads(value) for value in new]
    fair = [None if fair_by is None else value_json(content[fair_by]) for content in contents]
    tx.batch("add_lane", {"key": tx.new_lanes(len(new)), "value": new, "fair": fair}, ns=ns, queue=queue, kind=kind)
    counters = sorted(
        {
            (rule.key, value_json(content[rule.path]))
            for rule in tx.query("rules_of_claim", ns=ns, queue=queue)
            for content in contents
            if rule.kind == kind and rule.path in content
        }
    )
    if counters:
        tx.batch("add_buckets", {
            "key": tx.new_keys(len(counters)), "rule": [rule for rule, _ in counters],
            "value": [value for _, value in counters],
        })  # fmt: skip
    return dict(tx.query("find_lanes", queue=queue, kind=kind, values=values))
