"""Long walks through limits, fairness, debounced submits and schedules, each from a seed.

Owns the choice of the next step, and what has to hold after it: no limit is exceeded, a claim leaves nothing behind
that may start, submits of one window share a job, each fire time has one job; at the end, nothing is stuck. Rules
change while tasks run; transactions break off at named points, and workers lose their leases.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import orjson

from onetray import failpoints
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import OnetrayError
from onetray.domain.lifecycle import HELD
from onetray.domain.limits import Concurrency, LimitDetails, Rate
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine

QUEUES, TENANTS, WORKERS = ("default", "slow"), ("a", "b", "c", None), ("wes", "wyn")
PERIOD_S = 10
USUAL = Policy(lease_s=5, max_attempts=3, backoff_base_s=1, jitter=False, cancel_grace_s=1, queue_ttl_s=300)
POLICIES = {
    "plain": USUAL,
    "few": USUAL.with_(concurrency=2),
    "keyed": USUAL.with_(concurrency=(Concurrency(4), Concurrency(1, key="tenant"))),
    "fair": USUAL.with_(fair_by="tenant", rate=(Rate(5, PERIOD_S),)),
    "all": USUAL.with_(
        concurrency=(Concurrency(2, key="tenant"),), rate=(Rate(3, PERIOD_S, key="tenant"),), fair_by="tenant"
    ),
}
KEYED = ("keyed", "fair", "all")
POINTS = (
    "begun", "locked", "moving", "moved", "claimed", "committing", *failpoints.SCHEDULE_POINTS, "lanes_shared",
    "lanes_locked", "slots_locked", "slots_taken", "limit_added",
)  # fmt: skip
OPEN = """
SELECT t.key, CAST(t.id AS text), q.name, k.name, t.payload, t.state, CASE WHEN r.task IS NULL THEN 0 ELSE 1 END
FROM onetray.task AS t JOIN onetray.queue AS q ON q.key = t.queue JOIN onetray.kind AS k ON k.key = t.kind
    LEFT JOIN onetray.ready AS r ON r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key
WHERE t.finished_at IS NULL ORDER BY t.key
"""
RULES = "SELECT key, most, period, smooth FROM onetray.limit_rule"
EVERY, SKIPPING = "every two seconds", "every three seconds"


class BrokenOff(Exception):
    """What a test breaks a transaction off with."""


class Open(NamedTuple):
    """A task that has not ended."""

    key: int
    id: str
    queue: str
    kind: str
    tenant: str | None
    state: str
    is_ready: bool

    def value_for(self, rule: LimitDetails) -> object:
        return self.tenant if rule.key is not None else "all"

    def is_under(self, rule: LimitDetails) -> bool:
        return self.queue == rule.queue if rule.kind is None else self.kind == rule.kind


class Start(NamedTuple):
    at: int
    task: Open


class LimitWalk:
    def __init__(self, engine: Engine, clock: VirtualClock, seed: int) -> None:
        self.engine, self.clock, self.chance = engine, clock, random.Random(seed)
        self.trail: list[object] = []
        self._held: list[Assignment] = []
        self._starts: list[Start] = []
        self._in_force: dict[tuple[object, ...], tuple[int, int]] = {}
        """Since when each rule has had its numbers, and how many tasks had started before."""
        self._windows: dict[tuple[str, str, str], tuple[str, int]] = {}
        """By kind, mode and key: the last job, and until when it is throttled."""
        self._paused: set[str] = set()
        self._expected: set[int] = set()
        """The fire times of EVERY so far."""
        self._fired_upto: int | None = None
        for kind, policy in POLICIES.items():
            engine.configure(kind, policy)
        engine.put_schedule(EVERY, kind="few", payload={"tenant": "a"}, every_s=2, catch_up="all")
        engine.put_schedule(SKIPPING, kind="all", payload={"tenant": "b"}, every_s=3, overlap="skip")
        self._fired_upto = clock.now()
        self._watch_rules()

    def go(self, steps: int) -> None:
        weights: dict[Callable[[], None], int] = {
            self._submit: 6, self._submit_in_window: 3, self._claim: 8, self._report: 8, self._wait: 4, self._sweep: 5,
            self._claim_all: 2, self._set_limit: 2, self._return_limit: 1, self._deploy: 1, self._weigh: 1,
            self._pause_queue: 1, self._cancel: 2, self._schedule: 2,
        }  # fmt: skip
        for _ in range(steps):
            (step,) = self.chance.choices(list(weights), list(weights.values()))
            self.trail.append(step.__name__)
            with self._break_off():
                step()
            self._watch_rules()

    # Steps.

    def _submit(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.engine.submit(*self._what(), queue=self._queue(), priority=self.chance.choice([0, 0, 0, 5]))

    def _what(self) -> tuple[str, dict[str, Any]]:
        tenant = self.chance.choice(TENANTS)
        return self.chance.choice(list(POLICIES)), {} if tenant is None else {"tenant": tenant}

    def _queue(self) -> str:
        return self.chance.choice(QUEUES)

    def _submit_in_window(self) -> None:
        """The last payload of a debounced job wins, until it is claimed; the first job of a throttled one."""
        mode, key = self.chance.choice(["debounce", "debounce", "throttle"]), self.chance.choice("xy")
        kind, (_, payload) = self.chance.choice(["plain", "few"]), self._what()
        last, until = self._windows.get((kind, mode, key), (None, 0))
        joins = last is not None and (self.clock.now() < until if mode == "throttle" else self._is_unclaimed(last))
        told = self.engine.submit(kind, payload, **{f"{mode}_s": 3.0, f"{mode}_key": key})
        assert told.repeated == joins, (kind, mode, key, told, last, until)
        if joins:
            assert told.id == last
        else:
            self._windows[kind, mode, key] = told.id, self.clock.now() + 3 * SECOND
        if mode == "debounce":
            assert self.engine.task(told.id).payload == payload

    def _is_unclaimed(self, job: str) -> bool:
        task = self.engine.task(job)
        return task.state == "queued" and task.fence == 1

    def _claim(self) -> None:
        kinds = self.chance.choice([None, None, ["few"], ["all", "plain"], list(KEYED)])
        self._take(self._queue(), kinds, self.chance.choice([1, 2, 10]), self.chance.choice([None, None, 1]))

    def _take(
        self, queue: str, kinds: list[str] | None = None, limit: int = 100, limited_limit: int | None = None
    ) -> list[Assignment]:
        """Claim, and compare with the limits what runs then."""
        worker = self.chance.choice(WORKERS)
        found = self.engine.claim(queue, worker=worker, kinds=kinds, limit=limit, limited_limit=limited_limit)
        self._held += found
        ids = {a.id for a in found}
        now_open = self._open()
        started = [task for task in now_open if task.id in ids]
        assert len(started) == len(found)
        assert not found or queue not in self._paused
        self._starts += [Start(self.clock.now(), task) for task in started]
        for rule in self.engine.limits():
            self._must_hold(rule, started, now_open)
        return found

    def _must_hold(self, rule: LimitDetails, started: list[Open], now_open: list[Open]) -> None:
        values = {task.value_for(rule) for task in started if task.is_under(rule)}
        assert not (values and rule.counting), rule
        used = self._used(rule, now_open)
        for value in values:
            assert used[value] <= rule.most, f"{rule.name} allows {rule.numbers}: {used[value]} of {value}"

    def _used(self, rule: LimitDetails, now_open: list[Open], more: float = 1.0) -> Counter[object]:
        """How many tasks run or, of a rate, have started within its period; by value of its key."""
        if rule.per_s is None:
            return Counter(t.value_for(rule) for t in now_open if t.is_under(rule) and t.state in HELD)
        _, before = self._in_force[_numbers(rule)]
        after = self.clock.now() - int(rule.per_s * more * SECOND)
        return Counter(s.task.value_for(rule) for s in self._starts[before:] if s.task.is_under(rule) and s.at > after)

    def _claim_all(self) -> None:
        """After a claim of everything, each task that is left has a limit that holds it back."""
        self._sweep_all()
        queue = self._queue()
        while self._take(queue):
            pass
        if queue in self._paused:
            return
        now_open, rules = self._open(), self.engine.limits()
        for task in now_open:
            if task.queue == queue and task.is_ready:
                assert any(self._holds_back(rule, task, now_open) for rule in rules), (task, rules)

    def _holds_back(self, rule: LimitDetails, task: Open, now_open: list[Open]) -> bool:
        # Times of starts are kept to a hundredth of the period, rounded to the safe side; a rate that was changed may
        # count starts from before.
        used = self._used(rule, now_open, 1.02)[task.value_for(rule)]
        is_full = used >= rule.most
        if rule.per_s is not None and not is_full:
            is_full = rule.smooth or self.clock.now() - self._in_force[_numbers(rule)][0] < 2 * rule.per_s * SECOND
        return task.is_under(rule) and is_full

    def _report(self) -> None:
        if not self._held:
            return
        a = self._held.pop(self.chance.randrange(len(self._held)))
        engine = self.engine
        report: Callable[[], object] = self.chance.choice([
            lambda: engine.succeed(a), lambda: engine.succeed(a), lambda: engine.fail(a, "no"),
            lambda: engine.fail(a, "no", retryable=False), lambda: engine.release(a, delay_s=0.5),
            lambda: engine.pause(a, owner="ann", reason="asks"), lambda: engine.start(a),
        ])  # fmt: skip
        with suppress(OnetrayError):  # Its lease is over, or it was cancelled.
            report()
        if engine.task(a.id).fence == a.fence and engine.task(a.id).state in HELD:
            self._held.append(a)

    def _cancel(self) -> None:
        now_open = self._open()
        if now_open:
            task = self.chance.choice(now_open)
            if task.state in ("blocked", "waiting_input"):
                self.engine.resume(task.id)
            else:
                self.engine.cancel(task.id, hard=self.chance.random() < 0.5)

    def _wait(self) -> None:
        self.clock.advance(self.chance.choice([0.1, 0.5, 1.0, 2.5, 6.0, PERIOD_S]))

    def _sweep(self) -> None:
        self.chance.choice([self.engine.expire_leases, self.engine.do_due, self._fire])()

    def _fire(self) -> None:
        """One that skips overlaps submits nothing while a job of it is open."""
        before = [fire for fire in self.engine.schedule_fires(SKIPPING, limit=1_000) if fire.outcome == "submitted"]
        open_ids = {task.id for task in self._open()}
        self.engine.fire_schedules()
        after = [fire for fire in self.engine.schedule_fires(SKIPPING, limit=1_000) if fire.outcome == "submitted"]
        if any(fire.job in open_ids for fire in before):
            assert len(after) == len(before), (after[0], before[0])

    def _sweep_all(self) -> None:
        while self.engine.sweep():
            pass

    def _set_limit(self) -> None:
        number = self.chance.choice([0, 1, 1, 2, 3, 5])
        amount: dict[str, Any] = {"concurrency": number}
        if self.chance.random() < 0.4:
            amount = {"rate": f"{max(number, 1)}/{PERIOD_S}s", "smooth": self.chance.random() < 0.3}
        kind = self.chance.choice([None, *POLICIES])
        if kind is None:
            self.engine.set_limit(queue=self._queue(), **amount)
        else:
            key = "tenant" if kind in KEYED and self.chance.random() < 0.5 else None
            self.engine.set_limit(kind=kind, key=key, **amount)

    def _return_limit(self) -> None:
        rules = self.engine.limits()
        if rules:
            rule = self.chance.choice(rules)
            if rule.declared is not None:
                self.engine.reset_limit(rule.id)
            else:
                self.engine.remove_limit(rule.id)

    def _deploy(self) -> None:
        """The same keys with other numbers."""
        kind = self.chance.choice(["few", "keyed", "all"])
        policy = POLICIES[kind]
        other = tuple(Concurrency(self.chance.randint(1, 4), key=c.key) for c in policy.concurrency)
        self.engine.configure(kind, policy.with_(concurrency=other))

    def _weigh(self) -> None:
        value = orjson.dumps(self.chance.choice(TENANTS)).decode()
        self.engine.set_weight(self.chance.choice(["fair", "all"]), value, self.chance.choice([0.1, 1, 3]))

    def _pause_queue(self) -> None:
        queue = self._queue()
        if queue in self._paused:
            self.engine.resume_queue(queue)
            self._paused.discard(queue)
        else:
            self.engine.pause_queue(queue)
            self._paused.add(queue)

    def _schedule(self) -> None:
        """A pause drops what is due, so fire first; it is not caught up."""
        line = self.engine.schedule(EVERY)
        if line.paused_at is not None:
            self.engine.resume_schedule(EVERY)
            self._fired_upto = self.clock.now()
        elif self.chance.random() < 0.5:
            while self.engine.fire_schedules():
                pass
            self._count_fires()
            self.engine.pause_schedule(EVERY)
            self._fired_upto = None
        else:
            self.engine.trigger_schedule(self.chance.choice([EVERY, SKIPPING]))

    def _count_fires(self) -> None:
        if self._fired_upto is not None:
            now, step = self.clock.now(), 2 * SECOND
            self._expected.update(range((self._fired_upto // step + 1) * step, now + 1, step))
            self._fired_upto = now

    # What is looked at.

    def _open(self) -> list[Open]:
        rows = self.engine.store.read_sql(OPEN)
        return [
            Open(key, id_, queue, kind, (orjson.loads(payload or "{}") or {}).get("tenant"), state, bool(ready))
            for key, id_, queue, kind, payload, state, ready in rows
        ]

    def _watch_rules(self) -> None:
        # Not by `limits`, which also counts what each of them holds back: that took a third of a walk.
        rules = {
            (key, most, None if period is None else period / SECOND, bool(smooth))
            for key, most, period, smooth in self.engine.store.read_sql(RULES)
        }
        self._in_force = {rule: self._in_force.get(rule, (self.clock.now(), len(self._starts))) for rule in rules}

    @contextmanager
    def _break_off(self) -> Any:
        """In some steps, a transaction breaks off at some point: nothing of it must be left."""
        left = [self.chance.randint(1, 3)] if self.chance.random() < 0.15 else [0]
        point = self.chance.choice(POINTS)

        def hook(at: str) -> None:
            left[0] -= at == point
            if at == point and left[0] == 0:
                raise BrokenOff(point)

        failpoints.hook = hook if left[0] else None
        try:
            yield
        except BrokenOff:
            self.trail.append(f"broken off at {point}")
        finally:
            failpoints.hook = None

    def finish(self) -> None:
        """With all limits that allow anything in force, everything ends."""
        for queue in self._paused:
            self.engine.resume_queue(queue)
        self._paused.clear()
        for rule in self.engine.limits():
            if rule.most == 0:
                self.engine.set_limit(queue=rule.queue, kind=rule.kind, key=rule.key, concurrency=1)
        for name in (EVERY, SKIPPING):
            while self.engine.fire_schedules():
                pass
            if name == EVERY:
                self._count_fires()
            self.engine.pause_schedule(name)
        for rounds in range(1_000):
            self._watch_rules()
            left = self._open()
            if not left:
                break
            for task in left:
                if task.state in ("blocked", "waiting_input"):
                    self.engine.resume(task.id)
            self._sweep_all()
            for queue in QUEUES:
                for a in self._take(queue):
                    self.engine.succeed(a)
            self.clock.advance(PERIOD_S / 2)
            assert rounds < 999, f"stuck: {left}"
        assert [rule.running for rule in self.engine.limits()] == [0] * len(self.engine.limits())
        self._must_have_fired()

    def _must_have_fired(self) -> None:
        found = defaultdict(list)
        for fire in self.engine.schedule_fires(EVERY, limit=10_000):
            if not fire.is_triggered:
                found[fire.fire_at].append(fire.outcome)
        assert found == {at: ["submitted"] for at in self._expected}


def _numbers(rule: LimitDetails) -> tuple[object, ...]:
    return rule.id, rule.most, rule.per_s, rule.smooth
