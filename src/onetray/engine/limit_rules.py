"""Limits as data: create, change, count and remove them.

A new limit is inert at first: claims take nothing of its scope until the tasks that workers hold already are counted.
Any janitor does that, so a process may die in between. limited_claim.py applies limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import orjson

from onetray import failpoints
from onetray.domain.lifecycle import HELD, LIMIT_REMOVED, LIMIT_RESET, LIMIT_SET
from onetray.domain.limits import CONCURRENCY, Limit, limits_of_kind, value_json
from onetray.domain.policy import Policy
from onetray.engine.pending_writes import ENGINE, record_change
from onetray.engine.slots import COUNT_LIMIT, open_rule, write_buckets
from onetray.store.base import Store, Tx
from onetray.store.limit_rows import BucketRow, RuleRow
from onetray.store.rows import TaskRow

UNDER_WAY_US = 20_000
"""How soon to look again whether the claims have ended that a new limit waits for."""


class LimitScope(NamedTuple):
    """What a limit is for, by numbers."""

    ns: int
    queue: int
    kind: int
    name: str
    """The name of the queue or the kind."""


class NewRule(NamedTuple):
    """A limit that is not in force yet, and when its due row was written."""

    key: int
    at: int


class Numbers(NamedTuple):
    most: int
    period: int | None
    smooth: int


def _numbers(limit: Limit) -> Numbers:
    return Numbers(limit.most, limit.period_us, int(limit.smooth))


def declare_limits(store: Store, place: LimitScope, limits: Sequence[Limit]) -> None:
    """Make the code's limits of a queue or a kind those of the database. Operators' numbers stay in force.

    Limits of a kind that the code no longer declares are removed, unless an operator has set them.
    """

    def change(tx: Tx) -> list[NewRule]:
        new = [made for limit in limits if (made := _declare(tx, place, limit)) is not None]
        declared = {(limit.key or "", limit.what) for limit in limits}
        for rule in tx.query("rules_of_namespace", ns=place.ns, limit=10_000) if place.kind else ():
            if rule.kind == place.kind and rule.declared is not None and (rule.path, rule.what) not in declared:
                _forget(tx, place, rule)
        return new

    count_new(store, store.write(change))


def declare_policy(store: Store, ns: int, kind: str, policy: Policy, names_ttl_s: float) -> None:
    """Make the limits of a policy those of its kind. Before the policy is stored: if this process dies in between, the
    next declaration does it again."""
    names = store.names
    key = names.intern_kind(ns, kind)
    was = names.policy(names.policy_of_kind(key, names_ttl_s))
    if (was.concurrency, was.rate) != (policy.concurrency, policy.rate):
        declare_limits(store, LimitScope(ns, 0, key, kind), limits_of_kind(kind, policy.concurrency, policy.rate))


def _declare(tx: Tx, place: LimitScope, limit: Limit) -> NewRule | None:
    """Write a limit that the code declares. Returns it if it is new."""
    rule = _find(tx, place, limit)
    numbers = _numbers(limit)
    declared = orjson.dumps(list(numbers)).decode()
    if rule is None:
        _record(tx, place, limit, LIMIT_SET, ENGINE, "declared in code", None)
        return _add(tx, place, limit, declared, None)
    if rule.declared != declared:
        in_force = numbers if rule.set_by is None else Numbers(rule.most, rule.period, rule.smooth)
        if rule.set_by is None:
            _record(tx, place, limit, LIMIT_SET, ENGINE, "declared in code", rule.most)
        _change(tx, rule, in_force, declared, rule.set_by, rule.set_at)
    return None


def _forget(tx: Tx, place: LimitScope, rule: RuleRow) -> None:
    """The code no longer declares this limit."""
    if rule.set_by is None:
        remove_rule(tx, rule)
        record_removal(tx, place, rule, ENGINE, "no longer declared in code")
    else:
        _change(tx, rule, Numbers(rule.most, rule.period, rule.smooth), None, rule.set_by, rule.set_at)


def set_rule(tx: Tx, place: LimitScope, limit: Limit, by: str, actor: str, reason: str | None) -> NewRule:
    """Set the numbers of a limit in place of the code's. Returns it; with the time 0 if it is not new."""
    rule, numbers = _find(tx, place, limit), _numbers(limit)
    if rule is None:
        _record(tx, place, limit, LIMIT_SET, actor, reason, None)
        return _add(tx, place, limit, None, by)
    if (rule.most, rule.period, rule.smooth, rule.set_by) != (*numbers, by):
        _record(tx, place, limit, LIMIT_SET, actor, reason, rule.most)
        _change(tx, rule, numbers, rule.declared, by, tx.now)
    return NewRule(rule.key, 0)


def reset_rule(tx: Tx, place: LimitScope, rule: RuleRow, actor: str, reason: str | None) -> None:
    """Return to the numbers that the code declares."""
    numbers = Numbers(*orjson.loads(rule.declared or "null"))
    record_change(tx, place.ns, LIMIT_RESET, actor, reason, about=("limit", _title(place, rule.path, rule.what)),
                  was=rule.most, most=numbers.most)  # fmt: skip
    _change(tx, rule, numbers, rule.declared, None, None)


def remove_rule(tx: Tx, rule: RuleRow) -> None:
    """Delete a limit and its counters. Slots of tasks that name them are ignored from then on."""
    tx.query("lock_namespace", ns=rule.ns)
    # Claims hold the counters on which they block lanes, so none blocks another lane after this.
    buckets = [key for (key,) in tx.query("delete_buckets_of_rule", rule=rule.key)]
    tx.query("open_lanes_of_buckets", keys=buckets)
    tx.query("delete_rule", key=rule.key)
    unlimit_queues(tx, rule.ns)
    tx.work.anywhere = True


def unlimit_queues(tx: Tx, ns: int) -> None:
    """Let plain claims take from the queues of a namespace that have neither a limit nor a lane now."""
    keys = [key for (key,) in tx.query("lock_limited_queues", ns=ns)]
    if keys:
        tx.query("unlimit_queues", keys=keys)


def record_removal(tx: Tx, place: LimitScope, rule: RuleRow, actor: str, reason: str | None) -> None:
    title = _title(place, rule.path, rule.what)
    record_change(tx, place.ns, LIMIT_REMOVED, actor, reason, about=("limit", title), was=rule.most)


def _find(tx: Tx, place: LimitScope, limit: Limit) -> RuleRow | None:
    scope = {"ns": place.ns, "queue": place.queue, "kind": place.kind, "path": limit.key or "", "what": limit.what}
    found: list[RuleRow] = tx.query("find_rule", **scope)
    if not found:
        # Two processes may add the same limit; and a queue that is added meanwhile must be marked.
        tx.query("lock_namespace", ns=place.ns)
        found = tx.query("find_rule", **scope)
    return found[0] if found else None


def _add(tx: Tx, place: LimitScope, limit: Limit, declared: str | None, by: str | None) -> NewRule:
    key, bucket = tx.new_keys(2)
    numbers = _numbers(limit)
    tx.query(
        "add_rule", key=key, ns=place.ns, queue=place.queue, kind=place.kind, path=limit.key or "", what=limit.what,
        **numbers._asdict(), declared=declared, set_by=by, set_at=None if by is None else tx.now,
    )  # fmt: skip
    if limit.key is None:
        tx.batch("add_buckets", {"key": [bucket], "rule": [key], "value": [""]})
    if place.kind:
        tx.query("limit_queues", ns=place.ns)
    else:
        tx.query("limit_queue", key=place.queue)
    tx.batch("insert_due", {"at": [tx.now], "key": [key], "what": [COUNT_LIMIT], "fence": [0]})
    failpoints.hit("limit_added")
    return NewRule(key, tx.now)


def _change(
    tx: Tx, rule: RuleRow, numbers: Numbers, declared: str | None, set_by: str | None, set_at: int | None
) -> None:
    lowered = numbers.most < rule.most or (numbers.period or 0) > (rule.period or 0)
    tx.query(
        "change_rule", key=rule.key, **numbers._asdict(), declared=declared, set_by=set_by, set_at=set_at,
        lowered_at=tx.now if lowered else None,
    )  # fmt: skip
    if numbers != (rule.most, rule.period, rule.smooth):
        # Claims that it has turned away try again.
        tx.work.anywhere = True
        open_rule(tx, rule.key)


def _title(place: LimitScope, path: str, what: str) -> str:
    of = f"kind {place.name}" if place.kind else f"queue {place.name}"
    return f"{what} of {of}" + (f" by {path}" if path else "")


def _record(
    tx: Tx, place: LimitScope, limit: Limit, type_: str, actor: str, reason: str | None, was: int | None
) -> None:
    record_change(
        tx, place.ns, type_, actor, reason, about=("limit", _title(place, limit.key or "", limit.what)), was=was,
        most=limit.most, per_s=limit.per_s, smooth=limit.smooth or None,
    )  # fmt: skip


def count_new(store: Store, rules: Sequence[NewRule]) -> None:
    """Count the tasks that are held already, for new limits. What still waits for a claim is left to the janitor."""

    def count(tx: Tx, rule: NewRule) -> None:
        count_held(tx, rule.key)
        tx.batch("delete_due", {"at": [rule.at], "key": [rule.key], "what": [COUNT_LIMIT]})

    failpoints.hit("limit_committed")
    for rule in rules:
        store.write(partial(count, rule=rule))


def count_held(tx: Tx, key: int) -> None:
    """Put a new limit into force: see COUNT_LIMIT.

    Claims that began before the limit was committed may not know it: they end first. Later ones wait for this.
    """
    rules = tx.query("rule_by_key", key=key)
    if not rules or rules[0].counted:
        return
    (rule,) = rules
    under_way = {claim for (claim,) in tx.query("claims_under_way")}
    if rule.waits_for is not None:
        under_way &= set(orjson.loads(rule.waits_for))
    if under_way:
        tx.query("await_claims", key=key, waits_for=orjson.dumps(sorted(under_way)).decode())
        tx.batch("insert_due", {"at": [tx.now + UNDER_WAY_US], "key": [key], "what": [COUNT_LIMIT], "fence": [0]})
        return
    over = rule.what == CONCURRENCY and _count(tx, rule)
    tx.query("rule_is_counted", key=key, lowered_at=tx.now if over else None)
    tx.work.anywhere = True


def _count(tx: Tx, rule: RuleRow) -> bool:
    """Give slots to the tasks that workers hold. Returns whether more run than the limit allows."""
    keys = [key for (key,) in tx.query("held_in_scope", ns=rule.ns, queue=rule.queue, kind=rule.kind)]
    held = [row for row in (tx.lock(keys) if keys else []) if row.state in HELD]
    values = _values(tx, rule, held)
    buckets = _buckets(tx, rule, sorted(set(values.values())))
    running = {bucket.value: bucket.running for bucket in buckets}
    for value in values.values():
        running[value] += 1
    counted = [(key, bucket_key) for key, value in values.items() for bucket_key in [_key(buckets, value)]]
    if counted:
        tx.batch("add_slots", {"key": [key for key, _ in counted], "slots": [str(bucket) for _, bucket in counted]})
    write_buckets(tx, [bucket._replace(running=running[bucket.value]) for bucket in buckets])
    return any(number > rule.most for number in running.values())


def _values(tx: Tx, rule: RuleRow, held: list[TaskRow]) -> dict[int, str]:
    """By task: the value of the limit's key. Tasks that were submitted before it had the key have none."""
    if not rule.path:
        return {row.key: "" for row in held}
    lanes = sorted({row.lane for row in held if row.lane is not None})
    values = {key: orjson.loads(value) for key, value in tx.query("values_of_lanes", keys=lanes)}
    return {
        row.key: value_json(values[row.lane][rule.path])
        for row in held
        if row.lane is not None and rule.path in values.get(row.lane, ())
    }


def _buckets(tx: Tx, rule: RuleRow, values: list[str]) -> list[BucketRow]:
    """The counters of these values, locked."""
    if not values:
        return []
    tx.batch("add_buckets", {"key": tx.new_keys(len(values)), "rule": rule.key, "value": values})
    found = tx.batch("buckets_of_values", {"rule": [rule.key] * len(values), "value": values})
    return tx.query("lock_buckets", keys=sorted(bucket.key for bucket in found))


def _key(buckets: list[BucketRow], value: str) -> int:
    return next(bucket.key for bucket in buckets if bucket.value == value)
