"""The keys of namespaces, queues, kinds and policies, cached in memory.

Owns that cache. A key never changes its meaning, so the cache stays valid. Only a kind's current policy may change:
callers say how old it may be. A kind that nothing has used for long is deleted, days after new tasks stopped to get it
(engine/unused_kinds.py): a lookup reads the kinds again if the cache is older than MAX_AGE_S.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from onetray.domain.policy import Policy
from onetray.store.lanes import InternedLanes

if TYPE_CHECKING:
    from onetray.store.base import Store, Tx
    from onetray.store.rows import NameRow


MAX_AGE_S = 60.0


class InternedNames:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.lanes = InternedLanes(store)
        self._swapping = threading.Lock()
        self._namespaces: dict[str, int] = {}
        self._namespace_names: dict[int, str] = {}
        self._queues: dict[tuple[int, str], int] = {}
        self._kinds: dict[tuple[int, str], int] = {}
        self._retired: set[int] = set()
        """Kinds that new tasks must not have."""
        self._kind_policy: dict[int, int] = {}
        self._policies: dict[int, Policy] = {}
        self._policy_keys: dict[str, int] = {}
        self._queue_names: dict[int, str] = {}
        self._queue_places: dict[int, tuple[str, str]] = {}
        self._kind_places: dict[int, tuple[int, str]] = {}
        self._read_at = self._read_at_wall = float("-inf")
        self._turns = itertools.count(1)
        self._turn = 0

    def refresh(self) -> None:
        """Read everything again. The refresh that began last wins: a slow one must not replace newer data."""
        turn = next(self._turns)
        began, began_wall = time.monotonic(), time.time()
        # Without a lock: in a memory database a read waits for a transaction, whose thread may call refresh, too.
        rows: list[NameRow] = self._store.read_within("names")
        namespaces, queues, kinds, policies = ([row for row in rows if row.sort == sort] for sort in range(4))
        with self._swapping:
            for policy in policies:
                if policy.key not in self._policies:
                    self._policies[policy.key] = Policy.from_body(policy.name)
                    self._policy_keys[policy.name] = policy.key
            if turn < self._turn:
                return
            self._turn = turn
            # Replaced as a whole: readers in other threads see the old dicts or the new ones.
            self._namespaces = {space.name: space.key for space in namespaces}
            self._queue_names = {queue.key: queue.name for queue in queues}
            self._queues = {(queue.ns, queue.name): queue.key for queue in queues}
            self._namespace_names = spaces = {space.key: space.name for space in namespaces}
            # In a damaged database a queue may have no namespace: the verifier reports it.
            self._queue_places = {queue.key: (spaces[queue.ns], queue.name) for queue in queues if queue.ns in spaces}
            self._kind_policy = {kind.key: kind.policy for kind in kinds}
            self._kind_places = {kind.key: (kind.ns, kind.name) for kind in kinds}
            self._kinds = {(kind.ns, kind.name): kind.key for kind in kinds}
            self._retired = {kind.key for kind in kinds if kind.retired_at is not None}
            self._read_at, self._read_at_wall = began, began_wall

    def namespace(self, name: str) -> int | None:
        key = self._namespaces.get(name)
        if key is None:
            self.refresh()
            key = self._namespaces.get(name)
        return key

    def namespace_name(self, key: int) -> str | None:
        name = self._namespace_names.get(key)
        if name is None:
            self.refresh()
            name = self._namespace_names.get(key)
        return name

    def queue(self, ns: int, name: str) -> int | None:
        key = self._queues.get((ns, name))
        if key is None:
            self.refresh()
            key = self._queues.get((ns, name))
        return key

    def kind(self, ns: int, name: str) -> int | None:
        key = self._kinds.get((ns, name))
        # By two clocks: the monotonic one stands still while the machine sleeps.
        now, wall = time.monotonic(), time.time()
        if key is None or now - self._read_at > MAX_AGE_S or abs(wall - self._read_at_wall) > MAX_AGE_S:
            self.refresh()
            key = self._kinds.get((ns, name))
        return key

    def policy(self, key: int) -> Policy:
        if key not in self._policies:
            self.refresh()
        return self._policies[key]

    def known_policies(self) -> dict[int, Policy]:
        """Those that this process has read so far, by key."""
        return self._policies

    def kind_name(self, key: int) -> str:
        return self.place_of_kind(key)[1]

    def place_of_kind(self, key: int) -> tuple[int, str]:
        """The key of its namespace, and its name."""
        if key not in self._kind_places:
            self.refresh()
        return self._kind_places[key]

    def queue_name(self, key: int) -> str:
        if key not in self._queue_names:
            self.refresh()
        return self._queue_names[key]

    def place(self, queue: int) -> tuple[str, str]:
        """The namespace and the name of a queue."""
        if queue not in self._queue_places:
            self.refresh()
        return self._queue_places[queue]

    def queue_keys(self, places: Collection[tuple[str, str]]) -> dict[int, tuple[str, str]]:
        """The existing queues among these, by key."""
        keys = self._known_queues(places)
        if len(keys) < len(places):
            self.refresh()
            keys = self._known_queues(places)
        return keys

    def _known_queues(self, places: Collection[tuple[str, str]]) -> dict[int, tuple[str, str]]:
        spaces, queues = self._namespaces, self._queues
        keys = ((place, queues.get((spaces.get(place[0], -1), place[1]))) for place in places)
        return {key: place for place, key in keys if key is not None}

    def policy_of_kind(self, kind: int, no_older_than_s: float) -> int:
        if time.monotonic() - self._read_at > no_older_than_s:
            self.refresh()
        return self._kind_policy[kind]

    def intern_namespace(self, name: str) -> int:
        key = self.namespace(name)
        if key is None:
            self._write("add_namespace", name=name)
            key = self._namespaces[name]
        return key

    def intern_queue(self, ns: int, name: str) -> int:
        key = self.queue(ns, name)
        if key is None:

            def add(tx: Tx) -> None:
                tx.query("share_namespace", ns=ns)
                tx.query("add_queue", ns=ns, name=name)

            self._store.write(add)
            self.refresh()
            key = self._queues[(ns, name)]
        return key

    def intern_kind(self, ns: int, name: str) -> int:
        key = self.kind(ns, name)
        if key is None or key in self._retired:
            self._write("add_kind", ns=ns, name=name, policy=self.intern_policy(Policy()))
            key = self._kinds[(ns, name)]
        return key

    def intern_policy(self, policy: Policy) -> int:
        key = self._policy_keys.get(policy.body)
        if key is None:
            self._write("add_policy", body=policy.body)
            key = self._policy_keys[policy.body]
        return key

    def configure(self, ns: int, name: str, policy: Policy) -> None:
        """Set the policy for the kind's next tasks."""
        key, policy_key = self.intern_kind(ns, name), self.intern_policy(policy)
        self._write("set_kind_policy", key=key, policy=policy_key)

    def replace_policy(self, kind: int, was: int, policy: Policy) -> bool:
        """Set a kind's policy if it is still `was`. Returns whether the kind has the new policy now."""
        key = self.intern_policy(policy)
        if key == was:
            return True
        replaced = self._store.write(lambda tx: tx.query("replace_kind_policy", key=kind, was=was, policy=key))
        self.refresh()
        return bool(replaced)

    def _write(self, statement: str, **params: object) -> None:
        # In its own transaction: a key from a transaction that is rolled back must not be cached.
        self._store.write(lambda tx: tx.query(statement, **params))
        self.refresh()
