"""Long walks through the lifecycle, each from a seed: what a short example cannot reach lies many attempts deep.

Owns the choice of the next step. The same seed makes the same walk.
"""

from __future__ import annotations

import random
from typing import Any

from onetray.domain.policy import Policy
from tests.property.model import HELD, PAUSED, Cmd, Task
from tests.property.twins import Twins

POLICIES = (
    Policy(max_attempts=1, jitter=False, lease_s=5),
    Policy(max_attempts=2, backoff_base_s=2, backoff_max_s=3, lease_s=5, idempotency_ttl_s=4),
    Policy(max_attempts=3, jitter=False, backoff_base_s=0, on_exhaustion="fail", lease_s=3),
    Policy(max_attempts=3, deadline_s=12, jitter=False, lease_s=5, cancel_grace_s=2),
    Policy(max_attempts=2, queue_ttl_s=4, jitter=False, backoff_base_s=1, lease_s=5, idempotency_ttl_s=4),
    Policy(max_attempts=2, timeout_s=2, jitter=False, backoff_base_s=1, lease_s=5, on_exhaustion="fail"),
    Policy(max_attempts=3, timeout_s=2, queue_ttl_s=3, deadline_s=9, backoff_base_s=1, lease_s=4, cancel_grace_s=1),
    Policy(max_attempts=2, retry_on=("Error", "Boom"), no_retry_on=("Boom",), jitter=False, lease_s=5),
    Policy(max_attempts=3, timeout_s=3, queue_ttl_s=6, backoff_base_s=1, backoff_max_s=9, lease_s=8),
)
WORKERS, QUEUES, KINDS, KEYS = ("wes", "wyn"), ("default", "slow"), ("mail", "scan"), ("a", "b")
ERRORS = ("Error", "Error", "Error", "Boom", "ValidationError", "HTTP 404", "HTTP 503")
REASONS = (None, None, None, None, "parse_error")
DELAYS = (0.0, 0.0, 1.0, 2.5)
PRIORITIES = (-1, 0, 0, 5)
LIMITS = ("deadline", "queue_ttl", "timeout")
CARRYING_ON = ("start", "start", "beat", "fail", "fail", "release", "pause", "log", "succeed")
CONTROLS = ("resume", "cancel", "set_priority", "reschedule", "reschedule", "redrive")
BY_ITSELF = ("expire", "time_out", "promote", "end_cancel", "dead_letter")


class Walk:
    def __init__(self, twins: Twins, seed: int, tasks_at_most: int = 12) -> None:
        self.twins, self.chance, self.most = twins, random.Random(seed), tasks_at_most
        self.trail: list[Any] = []

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        weights = {self._claim: 5, self._about_one: 8, self._batch: 4, self._wait: 4, self._sweep: 4, self._pause: 1}
        is_open = [t for t in self.twins.model.tasks if t.state in ("queued", *HELD, *PAUSED)]
        if len(is_open) < self.most:
            weights[self._submit] = 3 if is_open else 30
        (step,) = self.chance.choices(list(weights), list(weights.values()))
        step()

    def _run(self, *batch: Cmd) -> None:
        self.trail.append(batch)
        self.twins.run(list(batch))

    def _submit(self) -> None:
        self._run(*(self._new() for _ in range(self.chance.randint(1, 3))))

    def _claim(self) -> None:
        self._run(self._request())

    def _about_one(self) -> None:
        if self.twins.model.tasks:
            self._run(self._about())

    def _batch(self) -> None:
        pick = self.chance.choice
        some = [self._about(alone=False) for _ in range(pick([2, 4, 8]))] if self.twins.model.tasks else []
        some += [self._request() for _ in range(pick([0, 1, 2]))] + [self._new() for _ in range(pick([0, 0, 2]))]
        self.chance.shuffle(some)
        if some:
            self._run(*some)

    def _wait(self) -> None:
        """Half of the time to the very edge of something."""
        timers, us = self.twins.model.timers(), self.chance.choice([1, 500_000, 1_000_000, 2_500_000, 9_000_000])
        if timers and self.chance.random() < 0.5:
            at = self.chance.choice(timers[:4]) + self.chance.choice([-1, 0, 0, 1])
            us = max(0, at - self.twins.clock.now())
        self.trail.append(("wait", us))
        self.twins.jump(us)

    def _sweep(self) -> None:
        sweep = self.chance.choice([self.twins.expire_leases, self.twins.do_due])
        self.trail.append(sweep.__name__)
        sweep()

    def _pause(self) -> None:
        queue, paused = self.chance.choice(QUEUES), self.chance.random() < 0.4
        self.trail.append(("set_paused", queue, paused))
        self.twins.set_paused(queue, paused)

    def _new(self) -> Cmd:
        pick = self.chance.choice
        policy = pick(POLICIES)
        args = {
            "kind": pick(KINDS), "queue": pick(QUEUES), "payload": pick([None, {"n": 1}]), "priority": pick(PRIORITIES),
            "policy": policy if pick([True, False]) else policy.with_(max_attempts=pick([1, 2, 3])),
            "delay_s": pick(DELAYS), "idempotency_key": pick([None, None, None, *KEYS]),
        }  # fmt: skip
        return Cmd("submit", args=args)

    def _request(self) -> Cmd:
        pick = self.chance.choice
        args = {
            "queue": pick(QUEUES), "worker": pick(WORKERS), "limit": pick([1, 2, 10]),
            "kinds": pick([None, None, None, ["mail"], ["scan", "mail"], []]), "lease_s": pick([None, None, 2.0]),
            "request_key": pick([None, None, None, "r1", "r2"]),
        }  # fmt: skip
        return Cmd("claim", args=args)

    def _about(self, alone: bool = True) -> Cmd:
        """A command that makes sense, mostly; sometimes anything about anybody."""
        pick, tasks = self.chance.choice, self.twins.model.tasks
        among = pick([[t for t in tasks if t.state in HELD], tasks[-10:], tasks]) or tasks
        t = pick(among)
        verbs = CARRYING_ON if t.state in HELD else CONTROLS
        verb = pick(pick([verbs, verbs, verbs, CARRYING_ON, CONTROLS, BY_ITSELF]))
        return Cmd(verb, t.number, self._fields(verb, t, alone))

    def _fields(self, verb: str, t: Task, alone: bool) -> dict[str, Any]:
        pick = self.chance.choice
        fence = pick([t.fence, t.fence, t.fence, t.fence, None, max(1, t.fence - 1), t.fence + 1])
        if verb in BY_ITSELF:
            more = {"time_out": {"limit": pick(LIMITS)}, "dead_letter": {"reason_code": "policy_violation"}}
            return {"fence": fence, **more.get(verb, {})}
        if verb in CONTROLS:
            return self._control(verb)
        # What a task is not moved by is asked for in other units in a batch: leave its length alone there.
        more = {
            "beat": {"lease_s": pick([None, 0.5, 9.0]) if alone else None},
            "succeed": {"result": pick([None, 1])},
            "fail": {
                "message": "no", "error_class": pick(ERRORS), "reason_code": pick(REASONS),
                "retryable": pick([None, None, True, False]), "retry_after_s": pick([None, None, 0.0, 2.0]),
            },
            "release": {"delay_s": pick(DELAYS)},
            "pause": {"owner": "ann", "reason": "asks", "state": pick(PAUSED)},
            "log": {"lines": ("one", "two")},
        }  # fmt: skip
        worker = pick([t.owner, t.owner, t.owner, None, *WORKERS])
        return {"fence": fence, "worker": worker, **more.get(verb, {})}

    def _control(self, verb: str) -> dict[str, Any]:
        pick = self.chance.choice
        if verb == "reschedule" and pick([True, False, False]):
            return {"run_at": 0}
        return {
            "cancel": {"hard": pick([True, False, False]), "grace_s": pick([None, 0.0, 1.5])},
            "set_priority": {"priority": pick(PRIORITIES)},
            "reschedule": {"delay_s": pick(DELAYS)},
            "redrive": {"delay_s": pick(DELAYS)},
        }.get(verb, {})
