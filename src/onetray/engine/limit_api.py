"""Limits and weights: what limits there are, how much of them is used and by whom, and changes of them by operators."""

from __future__ import annotations

from typing import Any

import orjson

from onetray.domain.checks import MAX_ROWS, json_text, optional_text, text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.lifecycle import WEIGHT_SET
from onetray.domain.limits import (
    CONCURRENCY,
    VALUE_BYTES,
    Limit,
    LimitDetails,
    LimitHolder,
    LimitValue,
    Weight,
    check_weight,
    parse_rate,
    value_json,
)
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, WORK
from onetray.engine.limit_rules import (
    LimitScope,
    count_new,
    declare_limits,
    record_removal,
    remove_rule,
    reset_rule,
    set_rule,
)
from onetray.engine.pending_writes import actor, record_change
from onetray.engine.reads import DatabaseReads, act, act_for, read
from onetray.explain.limits import held_back_by, rate_of
from onetray.redaction.answers import plain
from onetray.store.base import Tx
from onetray.store.limit_rows import RuleRow, RuleUseRow, ShownBucketRow


class LimitApi(DatabaseReads):
    """The engine's methods about limits and weights, on a database."""

    @read(plain, READ, WORK)
    def limits(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        namespace: str = "default",
        limit: int = 1000,
    ) -> list[LimitDetails]:
        """The limits of a namespace, of one queue or of one kind, oldest first."""
        self.check(limit=limit)
        optional_text(queue, "queue", self.config.limits.name_chars)
        optional_text(kind, "kind", self.config.limits.name_chars)
        ns = self._namespace(namespace)
        rules = [] if ns is None else self.store.read("rules_of_namespace", ns=ns, limit=MAX_ROWS)
        shown = [rule for rule in rules if self._is_of(rule, queue, kind)][:limit]
        used = {use.rule: use for use in self.store.read("used_of_rules", rules=[rule.key for rule in shown])}
        return [self._details(rule, used[rule.key]) for rule in shown if rule.key in used]

    @read(plain)
    def limit(self, limit_id: int, *, namespace: str = "default") -> LimitDetails:
        """One limit, by its id."""
        rule = self._rule(limit_id, namespace)
        for use in self.store.read("used_of_rules", rules=[rule.key]):
            return self._details(rule, use)
        raise NotFound(f"there is no limit {limit_id}", limit=limit_id)

    @read(plain)
    def weights(self, *, kind: str | None = None, namespace: str = "default", limit: int = 1000) -> list[Weight]:
        """The weights that operators have set, by kind and value."""
        self.check(limit=limit)
        optional_text(kind, "kind", self.config.limits.name_chars)
        ns = self._namespace(namespace)
        rows = [] if ns is None else self.store.read("weights_of_namespace", ns=ns, kind=kind, limit=limit)
        return [Weight(row.kind, orjson.loads(row.value), row.weight) for row in rows]

    def _is_of(self, rule: RuleRow, queue: str | None, kind: str | None) -> bool:
        names = self.store.names
        return (queue is None or (rule.queue != 0 and names.queue_name(rule.queue) == queue)) and (
            kind is None or (rule.kind != 0 and names.kind_name(rule.kind) == kind)
        )

    def _details(self, rule: RuleRow, use: RuleUseRow) -> LimitDetails:
        queue, kind = self._names(rule)
        per_s = None if rule.period is None else rule.period / SECOND
        declared = None
        if rule.declared is not None:
            most, period, smooth = orjson.loads(rule.declared)
            declared = Limit(
                most, queue, kind, rule.path or None, None if period is None else period / SECOND, bool(smooth)
            )
        next_start_at = None
        if rule.period is not None and not rule.path:
            for bucket in self._buckets(rule.key, limit=1):
                next_start_at = rate_of(rule, bucket).next_start_at()
        return LimitDetails(
            rule.key, rule.what, queue, kind, rule.path or None, rule.most, per_s, bool(rule.smooth), declared,
            rule.set_by, rule.set_at, not rule.counted, use.running, use.blocked,
            held_back_by(self.store, rule), next_start_at,
        )  # fmt: skip

    def _names(self, rule: RuleRow) -> tuple[str | None, str | None]:
        names = self.store.names
        return (
            names.queue_name(rule.queue) if rule.queue else None,
            names.kind_name(rule.kind) if rule.kind else None,
        )

    def _buckets(
        self, rule: int, *, after: int = 0, value: str | None = None, limit: int = 100
    ) -> list[ShownBucketRow]:
        found: list[ShownBucketRow] = self.store.read(
            "buckets_of_rule", rule=rule, after=after, value=value, limit=limit
        )
        return found

    @read(plain)
    def limit_values(
        self, limit_id: int, *, after: int = 0, limit: int = 100, namespace: str = "default"
    ) -> list[LimitValue]:
        """The values of the key of a limit that have been used, each with how much of the limit it uses.

        `after`: the `cursor` of the last one, for the next page. A limit without a key has one value, None.
        """
        self.check(limit=limit, after=after)
        rule = self._rule(limit_id, namespace)
        return [_value(rule, bucket) for bucket in self._buckets(rule.key, after=after, limit=limit)]

    @read(plain)
    def limit_holders(
        self,
        limit_id: int,
        *,
        value: str | None = None,
        after: int = 0,
        limit: int = 100,
        namespace: str = "default",
    ) -> list[LimitHolder]:
        """The tasks that hold slots of a limit; of a key, those of one value, which is given as JSON (`"\\"acme\\""`).

        `after`: how many to skip.
        """
        self.check(limit=limit, after=after)
        rule = self._rule(limit_id, namespace)
        if rule.path and value is None:
            raise InvalidInput(f"the limit has the key {rule.path!r}: pass a value of it, as JSON", field="value")
        buckets = self._buckets(rule.key, value=value_json(_parsed(value)) if rule.path else "", limit=1)
        if not buckets:
            return []
        rows = self.store.read("holders_of_bucket", ns=rule.ns, slot=f",{buckets[0].key},", skip=after, limit=limit)
        return [LimitHolder(*row) for row in rows]

    @act
    def set_limit(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        smooth: bool = False,
        reason: str | None = None,
        by: str = "anonymous",
        namespace: str = "default",
    ) -> int:
        """Limit a queue or a kind: how many tasks run at once (`concurrency`) or start within a period (`rate`).

        With a `key`, each value that this path has in the payload has the limit for itself: the kind must declare it
        in code, by a limit with that key or by `fair_by`. This takes effect at once and has precedence over what code
        declares, until `reset_limit`. A lowered limit stops no task that runs. 0 holds all tasks back. The event
        `limit.set` records it. Returns the id of the limit.
        """
        names, chars = self.store.names, self.config.limits.name_chars
        text(by, "by", chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)
        wanted = _limit_of(queue, kind, key, concurrency, rate, smooth)
        ns = names.intern_namespace(text(namespace, "namespace", chars))
        if key is not None and kind is not None:
            self._must_have_key(kind, key, namespace)
        place = self._place(ns, queue, kind)

        made = self.store.write(lambda tx: set_rule(tx, place, wanted, by, actor(USER, by), reason))
        count_new(self.store, [made] if made.at else [])
        return made.key

    @act
    def reset_limit(
        self, limit_id: int, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Return to the numbers that the code declares. The event `limit.reset` records it."""
        self._check_change(by, reason)
        rule = self._rule(limit_id, namespace)
        if rule.declared is None:
            raise Conflict("the code declares no such limit: remove it with remove_limit", limit=limit_id)
        place = self._place_of(rule)

        def change(tx: Tx) -> None:
            for now in tx.query("rule_by_key", key=rule.key):
                if now.set_by is not None and now.declared is not None:
                    reset_rule(tx, place, now, actor(USER, by), reason)

        self.store.write(change)

    @act
    def remove_limit(
        self, limit_id: int, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Remove a limit that an operator has added. The event `limit.removed` records it.

        One that the code of a kind declares goes when a worker starts without it; set other numbers meanwhile.
        """
        self._check_change(by, reason)
        rule = self._rule(limit_id, namespace)
        if rule.declared is not None and rule.kind:
            raise Conflict(
                "the code declares this limit: remove it there, or set another number with set_limit", limit=limit_id
            )
        place = self._place_of(rule)

        def change(tx: Tx) -> None:
            for now in tx.query("rule_by_key", key=rule.key):
                remove_rule(tx, now)
                record_removal(tx, place, now, actor(USER, by), reason)

        self.store.write(change)

    @act
    def set_weight(
        self,
        kind: str,
        value: str,
        weight: float,
        *,
        reason: str | None = None,
        by: str = "anonymous",
        namespace: str = "default",
    ) -> None:
        """Set the share of one value, given as JSON, of what a kind is fair by. The default is 1; 2 is twice as much.

        The event `weight.set` records it.
        """
        self._check_change(by, reason)
        names = self.store.names
        check_weight(weight)
        ns = names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        key = names.intern_kind(ns, text(kind, "kind", self.config.limits.name_chars))
        policy = names.policy(names.policy_of_kind(key, self.config.names_ttl_s))
        if policy.fair_by is None:
            raise InvalidInput(f"the kind {kind} is not fair by anything: declare fair_by= in code", field="kind")
        normal = value_json(_parsed(value))

        def change(tx: Tx) -> None:
            was = dict(tx.query("weight_of", kind=key, value=normal)).get(normal, 1.0)
            if was == weight:
                return
            tx.query("set_weight", kind=key, value=normal, weight=float(weight))
            lanes = [lane for (lane,) in tx.query("lanes_to_weigh", kind=key, value=normal)]
            tx.query("weigh_lanes", keys=lanes, weight=float(weight))
            record_change(
                tx, ns, WEIGHT_SET, actor(USER, by), reason, about=("kind", kind), value=normal, was=was,
                weight=float(weight),
            )  # fmt: skip

        self.store.write(change)

    @act_for(WORK, OPERATE)
    def declare_limit(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        smooth: bool = False,
        namespace: str = "default",
    ) -> None:
        """Declare a limit of a queue, as code does: numbers that an operator has set stay in force."""
        wanted = _limit_of(queue, None, None, concurrency, rate, smooth)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        declare_limits(self.store, self._place(ns, queue, None), [wanted])

    def _namespace(self, namespace: str) -> int | None:
        self.must_not_have_forked()
        return self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))

    def _check_change(self, by: str, reason: str | None) -> None:
        text(by, "by", self.config.limits.name_chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)

    def _place(self, ns: int, queue: str | None, kind: str | None) -> LimitScope:
        names, chars = self.store.names, self.config.limits.name_chars
        if queue is not None:
            return LimitScope(ns, names.intern_queue(ns, text(queue, "queue", chars)), 0, queue)
        assert kind is not None
        return LimitScope(ns, 0, names.intern_kind(ns, text(kind, "kind", chars)), kind)

    def _place_of(self, rule: RuleRow) -> LimitScope:
        queue, kind = self._names(rule)
        return LimitScope(rule.ns, rule.queue, rule.kind, queue or kind or "")

    def _rule(self, limit_id: int, namespace: str) -> RuleRow:
        whole(limit_id, "limit_id", 1, 2**63 - 1)
        rules: list[RuleRow] = self.store.read("rule_now", key=limit_id)
        if not rules or rules[0].ns != self._namespace(namespace):
            raise NotFound(f"there is no limit {limit_id}", limit=limit_id)
        return rules[0]

    def _must_have_key(self, kind: str, key: str, namespace: str) -> None:
        names = self.store.names
        ns = names.intern_namespace(namespace)
        kind_key = names.kind(ns, text(kind, "kind", self.config.limits.name_chars))
        policy = Policy() if kind_key is None else names.policy(names.policy_of_kind(kind_key, 0))
        if key not in policy.lane_paths:
            known = ", ".join(policy.lane_paths) or "none"
            raise InvalidInput(
                f"the kind {kind} has no key {key!r} (it has: {known}): declare it in code, with "
                f'concurrency=Concurrency(…, key="{key}"), rate=Rate(…, key="{key}") or fair_by="{key}"',
                field="key",
            )


def _limit_of(
    queue: str | None, kind: str | None, key: str | None, concurrency: int | None, rate: str | None, smooth: bool
) -> Limit:
    if (concurrency is None) == (rate is None):
        raise InvalidInput("set a concurrency or a rate: one of the two", field="concurrency")
    if rate is None:
        assert concurrency is not None
        return Limit(concurrency, queue, kind, key, None, smooth)
    count, per_s = parse_rate(rate)
    return Limit(count, queue, kind, key, per_s, smooth)


def _parsed(value: str | None) -> Any:
    text(value, "value", VALUE_BYTES)
    try:
        parsed = orjson.loads(value or "")
    except orjson.JSONDecodeError:
        raise InvalidInput(f'value must be JSON, as "acme" with its quotes or 17, not {value}', field="value") from None
    json_text(parsed, "value", VALUE_BYTES)
    return parsed


def _value(rule: RuleRow, bucket: ShownBucketRow) -> LimitValue:
    running, next_start_at = bucket.running, None
    if rule.what != CONCURRENCY:
        rate = rate_of(rule, bucket)
        running, next_start_at = sum(count for _, count in rate.starts), rate.next_start_at()
    value = orjson.loads(bucket.value) if bucket.value else None
    return LimitValue(bucket.key, value, running, bucket.blocked, bucket.blocked_since, next_start_at)
