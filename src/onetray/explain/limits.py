"""Explain what limits hold back: which are used up, how many ready tasks wait for them, and why one task does.

Reads only: the claim decides again, with the counters locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any, NamedTuple

import orjson

from onetray.domain.clock import duration, utc_text
from onetray.domain.limits import RateState, numbers_text, value_json
from onetray.domain.task import Blocker
from onetray.store.base import Store
from onetray.store.limit_rows import BucketRow, LaneFacts, RuleRow, ShownBucketRow

CONCURRENCY_REACHED, RATE_REACHED = "concurrency_reached", "rate_reached"
COUNTING, OPENING = "limit_counting", "lane_opening"
TAKES_TURNS = "takes_turns"
"""Keeps no claim from returning the task."""
BLOCKED = 2
"""The state of a lane that a counter blocks."""
MAX_RULES = 10_000
MOST_COUNTED = 1_000
"""Where counting tasks or lanes ends."""
MAX_HOLDERS = 20
"""How many tasks that hold slots are named in the facts, and in the message:"""
NAMED_HOLDERS = 3

Counter = BucketRow | ShownBucketRow


class FullScopes(NamedTuple):
    """The queues and kinds of which no task may start, because a limit without a key is used up."""

    full_queues: list[int]
    full_kinds: list[int]


def rate_of(rule: RuleRow, counter: Counter, now: int | None = None) -> RateState:
    """The rate of a counter at a time; by default when it was read."""
    starts, at = orjson.loads(counter.starts), counter.seen_at if now is None else now
    return RateState(rule.most, rule.period or 1, bool(rule.smooth), starts, counter.next_at, at)


def _is_full(rule: RuleRow, counter: Counter | None) -> bool:
    if not rule.counted:
        return True
    if counter is None:
        return rule.most == 0
    return rate_of(rule, counter).allowed() <= 0 if rule.period is not None else counter.running >= rule.most


def full_scopes(store: Store, ns: int) -> FullScopes:
    """What the limits without a key hold back, and those that are still being counted."""
    rules: list[RuleRow] = store.read("rules_of_namespace", ns=ns, limit=MAX_RULES)
    if not rules:
        return FullScopes([], [])
    counters = {counter.rule: counter for counter in store.read("unkeyed_counters", ns=ns)}
    full = [rule for rule in rules if (not rule.path or not rule.counted) and _is_full(rule, counters.get(rule.key))]
    return FullScopes([rule.queue for rule in full if rule.queue], [rule.kind for rule in full if rule.kind])


def held_back_by(store: Store, rule: RuleRow) -> int:
    """How many ready tasks this limit holds back, counted up to MOST_COUNTED."""
    if rule.path and rule.counted:
        ((number,),) = store.read("held_back_by_values", rule=rule.key, most=MOST_COUNTED)
        return int(number)
    found = store.read("buckets_of_rule", rule=rule.key, after=0, value=None, limit=1)
    if not _is_full(rule, found[0] if found else None):
        return 0
    if rule.queue:
        ((number,),) = store.read("ready_in_queue", queue=rule.queue, most=MOST_COUNTED)
    else:
        ((number,),) = store.read("ready_of_kind", ns=rule.ns, kind=rule.kind, most=MOST_COUNTED)
    return int(number)


def limit_blockers(store: Store, task: int) -> Iterator[Blocker]:
    """Why limits hold a ready task back; or, if none does, with whom it takes turns."""
    for lane in store.read("lane_of_task", task=task, most=MOST_COUNTED) or ():
        if not lane.limited:
            return
        found = [blocker for rule in _rules(store, lane) for blocker in _of_rule(store, rule, lane)]
        yield from found
        if lane.state == BLOCKED and not found:
            message = "a limit has held its lane back; a slot is free again, and the janitor opens the lane"
            yield Blocker(OPENING, message, held_by="janitor", facts={"since": lane.blocked_at})
        elif lane.fair is not None and not found:
            yield _takes_turns(store, lane)


def _rules(store: Store, lane: LaneFacts) -> list[RuleRow]:
    """The limits that apply to a task: of its queue, of its kind, and of the values of its lane."""
    values = _values(lane)
    rules: list[RuleRow] = store.read("rules_of_claim", ns=lane.ns, queue=lane.queue)
    return [r for r in rules if r.queue or (r.kind == lane.kind and (not r.path or r.path in values or not r.counted))]


def _values(lane: LaneFacts) -> dict[str, Any]:
    return orjson.loads(lane.value) if lane.value else {}


def _of_rule(store: Store, rule: RuleRow, lane: LaneFacts) -> Iterator[Blocker]:
    name, numbers = _name(store, rule), numbers_text(rule.most, _per_s(rule), bool(rule.smooth))
    facts: dict[str, Any] = {"limit": rule.key, "name": name, "most": rule.most, "per_s": _per_s(rule)}
    if not rule.counted:
        message = f"the limit {name!r} is new: the tasks that run already are still being counted"
        yield Blocker(COUNTING, message, held_by="janitor", facts=facts)
        return
    value = value_json(_values(lane)[rule.path]) if rule.path else ""
    counters = store.read("buckets_of_rule", rule=rule.key, after=0, value=value, limit=1)
    if not _is_full(rule, counters[0] if counters else None):
        return
    facts |= {"value": orjson.loads(value)} if value else {}
    whose = f" for {rule.path} = {value}" if value else ""
    command = facts["command"] = _command(store, rule)
    change = f"`{command}` changes it"
    if not rule.most:
        by = rule.set_by or "the code"
        message = f"the limit {name!r} lets no task start: {by} has set it to 0; {change}"
        yield Blocker(CONCURRENCY_REACHED if rule.period is None else RATE_REACHED, message, by, None, facts)
    elif rule.period is not None:
        yield _rate_reached(rule, counters[0], f"the limit {name!r} of {numbers}{whose} is used up", change, facts)
    else:
        yield _concurrency_reached(store, rule, counters[0], f"the limit {name!r}{whose} is reached", change, facts)


def _rate_reached(rule: RuleRow, counter: Counter, what: str, change: str, facts: dict[str, Any]) -> Blocker:
    rate = rate_of(rule, counter)
    at = rate.next_start_at()
    facts["started"] = sum(number for _, number in rate.starts)
    when = "" if at is None else f": the next task may start at {utc_text(at)}, in {duration(max(at - rate.now, 0))}"
    return Blocker(RATE_REACHED, f"{what}{when}; {change}", None, at, facts)


def _concurrency_reached(
    store: Store, rule: RuleRow, counter: Counter, what: str, change: str, facts: dict[str, Any]
) -> Blocker:
    holders = store.read("holders_of_bucket", ns=rule.ns, slot=f",{counter.key},", skip=0, limit=MAX_HOLDERS)
    facts |= {
        "running": counter.running,
        "holders": [
            {"task": h.task, "kind": h.kind, "worker": h.worker, "state": h.state, "since": h.claimed_at,
             "lease_expires_at": h.lease_expires_at}
            for h in holders
        ],
    }  # fmt: skip
    ages = [f"{h.task} on {h.worker}, {duration(max(counter.seen_at - h.claimed_at, 0))}" for h in holders]
    more = counter.running - NAMED_HOLDERS
    named = "; ".join(ages[:NAMED_HOLDERS]) + (f"; and {more:,} more" if more > 0 else "")
    message = f"{what}: {counter.running:,} of {rule.most:,} run" + (f" ({named})" if named else "") + f"; {change}"
    return Blocker(CONCURRENCY_REACHED, message, holders[0].worker if len(holders) == 1 else None, None, facts)


def _takes_turns(store: Store, lane: LaneFacts) -> Blocker:
    policy_key = store.names.policy_of_kind(lane.kind, 0)
    path = store.names.policy(policy_key).fair_by or "a value"
    others, before = max(lane.open_lanes - 1, 0), lane.lanes_before
    message = f"its {path}, {lane.fair}, takes turns with {others:,} others in the queue; {before:,} are before it"
    facts = {"fair_by": path, "value": orjson.loads(lane.fair or "null"), "weight": lane.weight, "others": others}
    return Blocker(TAKES_TURNS, message, facts={**facts, "before": before})


def _per_s(rule: RuleRow) -> float | None:
    return None if rule.period is None else rule.period / 1e6


def _name(store: Store, rule: RuleRow) -> str:
    names = store.names
    scope = f"queue {names.queue_name(rule.queue)}" if rule.queue else f"kind {names.kind_name(rule.kind)}"
    return f"{rule.what} of {scope}" + (f" by {rule.path}" if rule.path else "")


def _command(store: Store, rule: RuleRow) -> str:
    names = store.names
    scope = (
        f"--queue {quote(names.queue_name(rule.queue))}"
        if rule.queue
        else f"--kind {quote(names.kind_name(rule.kind))}"
    )
    key = f" --key {quote(rule.path)}" if rule.path else ""
    return f"onetray limits set {scope}{key} --{rule.what} {'N' if rule.period is None else 'N/PERIOD'}"
