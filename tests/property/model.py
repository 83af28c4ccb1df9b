"""The lifecycle of tasks a second time: small, in plain Python, written from the design and not from the engine.

It says for every command whether it is accepted, and what the task is then. No SQL, no rows, no timers in tables:
a task knows its own times. Whatever this and an engine disagree on is a bug in one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onetray.domain.policy import Policy

SECOND = 1_000_000
HELD = ("assigned", "running")
PAUSED = ("blocked", "waiting_input")
OPEN = ("queued", *HELD, *PAUSED)
REPORTS = ("start", "beat", "succeed", "fail", "release", "pause", "log")
SPARED_AT_MOST = 5


class Cmd(NamedTuple):
    """A command: its verb, the task it is about (by number), and its fields."""

    verb: str
    task: int | None = None
    args: dict[str, Any] = {}  # noqa: RUF012  never changed


class Answer(NamedTuple):
    """What a command is answered: accepted with how the task stands, or a refusal's code."""

    ok: bool
    code: str | None = None
    state: str | None = None
    version: int | None = None
    fence: int | None = None
    repeated: bool = False
    value: Any = None
    """For submit and redrive the task's number, for a claim what was handed out, for a beat the new expiry."""


class Refused(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Repeated(Exception):
    """The same report was accepted before."""


@dataclass
class Lease:
    worker: str
    length: int
    expires_at: int
    tasks: list[int]
    request_key: str | None


@dataclass
class Task:
    number: int
    kind: str
    queue: str
    policy: Policy
    payload: Any
    priority: int
    created_at: int
    run_at: int
    entered_at: int
    state: str = "queued"
    version: int = 1
    fence: int = 1
    attempts: int = 0
    spared: int = 0
    ready: bool = False
    owner: str | None = None
    lease: Lease | None = None
    cancel_at: int | None = None
    grace_at: int | None = None
    timeout_at: int | None = None
    held_by: str | None = None
    reason_code: str | None = None
    successor: int | None = None
    run_between: tuple[int, int] | None = None
    """After a jittered backoff: between these, by chance."""
    said: dict[int, str] = field(default_factory=dict)
    """The outcome that each attempt's holder reported."""

    @property
    def deadline_at(self) -> int | None:
        return None if self.policy.deadline_s is None else self.created_at + int(self.policy.deadline_s * SECOND)

    @property
    def ttl_at(self) -> int | None:
        """A task may wait in its queue so long after the time from which it could have run."""
        ttl_s = self.policy.queue_ttl_s
        return None if ttl_s is None else max(self.run_at, self.entered_at) + int(ttl_s * SECOND)


class Model:
    def __init__(self, now: int) -> None:
        self.now = now
        self.tasks: list[Task] = []
        self.keys: dict[tuple[str, str], tuple[Any, int, int]] = {}
        self.requests: dict[tuple[str, str], list[Lease]] = {}
        self.paused: set[str] = set()

    # A batch: one command for each task at a time, in order of arrival; then the submits; then the claims.

    def run(self, batch: list[Cmd]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        left = [(i, c) for i, c in enumerate(batch) if c.verb not in ("submit", "claim")]
        while left:
            seen: set[int | None] = set()
            later = []
            for i, c in left:
                if c.task in seen and c.task is not None:
                    later.append((i, c))
                else:
                    seen.add(c.task)
                    answers[i] = self._one(c)
            left = later
        for verb in ("submit", "claim"):
            answers.update({i: self._one(c) for i, c in enumerate(batch) if c.verb == verb})
        return [answers[i] for i in range(len(batch))]

    def _one(self, c: Cmd) -> Answer:
        if c.verb in ("submit", "claim"):
            return getattr(self, c.verb)(**c.args)  # type: ignore[no-any-return]
        if c.task is None or c.args.get("namespace", "default") != "default":
            return Answer(False, "not_found")
        t, args = self.tasks[c.task], {k: v for k, v in c.args.items() if k != "namespace"}
        try:
            if c.verb in REPORTS:
                self._must_hold(t, c.verb, args.pop("fence", None), args.pop("worker", None), args)
            found = getattr(self, c.verb)(t, **args)
        except Refused as e:
            return Answer(False, e.code)
        except Repeated:
            return self._stands(t)._replace(repeated=True)
        return found if isinstance(found, Answer) else self._stands(t)

    def _stands(self, t: Task) -> Answer:
        return Answer(True, None, t.state, t.version, t.fence)

    # Submitting and claiming.

    def submit(
        self, kind: str, queue: str, policy: Policy, payload: Any, priority: int = 0, delay_s: float = 0.0,
        idempotency_key: str | None = None,
    ) -> Answer:  # fmt: skip
        if idempotency_key is not None:
            body, number, until = self.keys.get((kind, idempotency_key), (None, -1, 0))
            if until > self.now:
                if body != (queue, payload):
                    return Answer(False, "key_reused")
                return self._stands(self.tasks[number])._replace(repeated=True, value=number)
            until = self.now + int(policy.idempotency_ttl_s * SECOND)
            self.keys[kind, idempotency_key] = (queue, payload), len(self.tasks), until
        return self._new(kind, queue, policy, payload, priority, delay_s)

    def _new(self, kind: str, queue: str, policy: Policy, payload: Any, priority: int, delay_s: float) -> Answer:
        t = Task(len(self.tasks), kind, queue, policy, payload, priority, self.now, 0, self.now)
        self.tasks.append(t)
        self._may_run(t, self.now + int(delay_s * SECOND))
        return self._stands(t)._replace(value=t.number)

    def _may_run(self, t: Task, run_at: int) -> None:
        t.run_at, t.entered_at, t.run_between = run_at, self.now, None
        t.ready = run_at <= self.now

    def claimable(self, queue: str, kinds: list[str] | None = None) -> list[Task]:
        """Highest priority first, then oldest."""
        if queue in self.paused:
            return []
        waiting = [t for t in self.tasks if t.state == "queued" and t.ready and t.queue == queue]
        wanted = [t for t in waiting if kinds is None or t.kind in kinds]
        return sorted(wanted, key=lambda t: (-t.priority, t.number))

    def claim(
        self, queue: str, worker: str, limit: int = 1, kinds: list[str] | None = None, lease_s: float | None = None,
        request_key: str | None = None,
    ) -> Answer:  # fmt: skip
        if request_key is not None:
            before = self.requests.get((worker, request_key), [])
            if any(lease.expires_at >= self.now for lease in before):
                return Answer(True, value=self._still_held(before))
        taken = self.claimable(queue, kinds)[:limit]
        leases: dict[int, Lease] = {}
        for t in taken:
            length = int((t.policy.lease_s if lease_s is None else lease_s) * SECOND)
            fresh = Lease(worker, length, self.now + length, [], request_key)
            t.lease = leases.setdefault(length, fresh)
            t.lease.tasks.append(t.number)
            t.owner, t.attempts, t.ready = worker, t.attempts + 1, False
            self._to(t, "assigned")
        if request_key is not None and taken:
            self.requests[worker, request_key] = list(leases.values())
        return Answer(True, value=[self._ticket(t) for t in taken])

    def _ticket(self, t: Task) -> tuple[int, int, int, int]:
        assert t.lease is not None
        return t.number, t.fence, t.attempts, t.lease.expires_at

    def _still_held(self, leases: list[Lease]) -> list[tuple[int, int, int, int]]:
        alive = [lease for lease in leases if lease.expires_at >= self.now]
        mine = [self.tasks[n] for lease in alive for n in lease.tasks if self.tasks[n].lease is lease]
        return [self._ticket(t) for t in sorted(mine, key=lambda t: t.number)]

    # Moves.

    def _to(self, t: Task, state: str) -> None:
        t.state, t.version = state, t.version + 1
        if state not in HELD:
            t.owner = t.lease = None
        if state != "queued":
            t.ready = False
        if state not in PAUSED:
            t.held_by = None

    def _reopen(self, t: Task, wait: int, given_back: int = 0, spared: int = 0) -> None:
        """Back to the queue: the next attempt opens."""
        self._to(t, "queued")
        t.fence += 1
        t.attempts -= given_back
        t.spared = spared
        t.timeout_at = t.grace_at = None
        self._may_run(t, self.now + wait)

    def _back_off(self, t: Task) -> None:
        p = t.policy
        usual = p.backoff_base_s * p.backoff_factor ** (t.attempts - 1)
        low, high = (min(p.backoff_max_s, usual * j) for j in ((0.5, 1.5) if p.jitter else (1.0, 1.0)))
        self._reopen(t, int(low * SECOND))
        if p.jitter:
            t.run_between = self.now + int(low * SECOND), self.now + int(high * SECOND) + 1

    def _dead_letter(self, t: Task, reason: str) -> None:
        self._to(t, "dead_lettered")
        t.reason_code = reason

    def _attempt_failed(self, t: Task, reason: str, wait_s: float | None = None) -> None:
        if t.attempts < t.policy.max_attempts:
            if wait_s is None:
                self._back_off(t)
            else:
                self._reopen(t, int(wait_s * SECOND))
        elif t.policy.on_exhaustion == "fail":
            self._to(t, "failed")
        else:
            self._dead_letter(t, reason)

    # What the holder reports.

    def _must_hold(self, t: Task, verb: str, fence: int | None, worker: str | None, args: dict[str, Any]) -> None:
        fence = t.fence if fence is None else fence
        others = t.owner is not None and worker not in (None, t.owner)
        if fence == t.fence and t.state in HELD and not others:
            assert t.lease is not None
            if self.now > t.lease.expires_at:
                raise Refused("lease_lost")
            return
        outcome = args.get("state", "blocked") if verb == "pause" else verb
        if t.said.get(fence) == outcome:
            raise Repeated
        raise Refused("illegal_transition" if fence == t.fence and not others else "lease_lost")

    def start(self, t: Task) -> None:
        if t.state == "running":
            raise Repeated
        self._to(t, "running")
        if t.policy.timeout_s is not None:
            t.timeout_at = self.now + int(t.policy.timeout_s * SECOND)

    def succeed(self, t: Task, result: Any = None) -> None:
        t.said[t.fence] = "succeed"
        if t.state == "assigned":
            self._to(t, "running")
        self._to(t, "succeeded")

    def _cancelled_instead(self, t: Task, outcome: str) -> bool:
        """After a soft cancel whatever is not a success ends as cancelled."""
        t.said[t.fence] = outcome
        if t.cancel_at is not None:
            self._to(t, "cancelled")
        return t.cancel_at is not None

    def fail(
        self, t: Task, message: str, error_class: str = "Error", retryable: bool | None = None,
        reason_code: str | None = None, retry_after_s: float | None = None,
    ) -> None:  # fmt: skip
        if self._cancelled_instead(t, "fail"):
            return
        if t.state == "assigned":
            self._to(t, "running")
        if reason_code is not None and not retryable:
            self._dead_letter(t, reason_code)
        elif not may_retry(t.policy, error_class, retryable):
            self._to(t, "failed")
        else:
            self._attempt_failed(t, reason_code or "exhausted_retries", retry_after_s)

    def release(self, t: Task, delay_s: float = 0.0) -> None:
        if not self._cancelled_instead(t, "release"):
            self._reopen(t, int(delay_s * SECOND), given_back=1)

    def pause(self, t: Task, owner: str, reason: str, state: str = "blocked") -> None:
        if not self._cancelled_instead(t, state):
            self._to(t, state)
            t.attempts -= 1
            t.held_by = owner

    def beat(self, t: Task, lease_s: float | None = None) -> Answer:
        assert t.lease is not None
        length = t.lease.length if lease_s is None else int(lease_s * SECOND)
        t.lease.expires_at = max(t.lease.expires_at, self.now + length)
        return Answer(True, value=t.lease.expires_at)

    def log(self, t: Task, lines: tuple[str, ...]) -> Answer:
        return Answer(True)

    # What somebody else may do.

    def resume(self, t: Task) -> None:
        if t.state not in PAUSED:
            raise Refused("illegal_transition")
        self._reopen(t, 0)

    def cancel(self, t: Task, hard: bool = False, grace_s: float | None = None) -> None:
        if t.state not in OPEN:
            raise Refused("illegal_transition")
        if hard or t.state not in HELD:
            self._to(t, "cancelled")
        elif t.cancel_at is not None:
            raise Repeated
        else:
            t.cancel_at = self.now
            t.grace_at = self.now + int((t.policy.cancel_grace_s if grace_s is None else grace_s) * SECOND)

    def set_priority(self, t: Task, priority: int) -> None:
        if t.state not in OPEN:
            raise Refused("illegal_transition")
        if t.priority == priority:
            raise Repeated
        t.priority = priority

    def reschedule(self, t: Task, delay_s: float | None = None, run_at: int | None = None) -> None:
        if t.state != "queued":
            raise Refused("illegal_transition")
        self._may_run(t, self.now + int((delay_s or 0) * SECOND) if run_at is None else max(run_at, self.now))

    def redrive(self, t: Task, delay_s: float = 0.0) -> Answer:
        if t.state in OPEN:
            raise Refused("illegal_transition")
        if t.successor is not None:
            return self._stands(self.tasks[t.successor])._replace(repeated=True, value=t.successor)
        answer = self._new(t.kind, t.queue, t.policy, t.payload, t.priority, delay_s)
        if t.state == "dead_lettered":
            t.successor = answer.value
        return answer

    # What the engine does by itself.

    def _meant(self, t: Task, fence: int | None) -> None:
        if fence is not None and fence != t.fence:
            raise Refused("not_due")

    def expire(self, t: Task, fence: int | None = None) -> None:
        if t.state not in HELD:
            raise Refused("illegal_transition")
        self._meant(t, fence)
        assert t.lease is not None
        if self.now <= t.lease.expires_at:
            raise Refused("not_due")
        if t.cancel_at is not None:
            self._to(t, "cancelled")
        elif t.state == "assigned" and t.spared == SPARED_AT_MOST:
            self._dead_letter(t, "infrastructure_failure")
        elif t.state == "assigned":
            self._reopen(t, 0, given_back=1, spared=t.spared + 1)
        else:
            self._attempt_failed(t, "exhausted_retries")

    def time_out(self, t: Task, limit: str, fence: int | None = None) -> None:
        if t.state not in OPEN:
            raise Refused("illegal_transition")
        self._meant(t, fence)
        waits = t.state == "queued" and (t.ttl_at is None or self.now >= t.ttl_at)
        if (limit == "queue_ttl" and not waits) or (limit == "timeout" and t.state != "running"):
            raise Refused("not_due")
        if limit != "queue_ttl" and t.cancel_at is not None:
            self._to(t, "cancelled")
        elif limit == "timeout":
            self._attempt_failed(t, "timeout")
        else:
            if t.state == "assigned":
                self._reopen(t, 0, given_back=1, spared=min(t.spared + 1, SPARED_AT_MOST))
            self._to(t, "failed")

    def promote(self, t: Task, fence: int | None = None) -> None:
        if t.state != "queued" or t.run_at > self.now:
            raise Refused("not_due")
        self._meant(t, fence)
        t.ready = True

    def end_cancel(self, t: Task, fence: int | None = None) -> None:
        if t.state not in HELD or t.cancel_at is None:
            raise Refused("not_due")
        self._meant(t, fence)
        self._to(t, "cancelled")

    def dead_letter(self, t: Task, reason_code: str, fence: int | None = None) -> None:
        if t.state not in ("queued", *HELD):
            raise Refused("illegal_transition")
        self._meant(t, fence)
        self._dead_letter(t, reason_code)

    def expire_leases(self) -> None:
        for t in self.tasks:
            if t.lease is not None and t.lease.expires_at < self.now:
                self.expire(t)

    def do_due(self) -> None:
        """All that is due, one kind of thing after the other."""
        for t in self.tasks:
            if t.state == "queued" and t.run_at <= self.now:
                t.ready = True
        for t in self.tasks:
            if t.state in HELD and t.grace_at is not None and t.grace_at <= self.now:
                self.end_cancel(t)
        for t in self.tasks:
            if t.state == "queued" and t.ttl_at is not None and t.ttl_at <= self.now:
                self.time_out(t, "queue_ttl")
        for t in self.tasks:
            if t.state in OPEN and t.deadline_at is not None and t.deadline_at <= self.now:
                self.time_out(t, "deadline")
        for t in self.tasks:
            if t.state == "running" and t.timeout_at is not None and t.timeout_at <= self.now:
                self.time_out(t, "timeout")

    def timers(self) -> list[int]:
        """Every moment at which something becomes due: the edges are where bugs live."""
        leases = [t.lease.expires_at for t in self.tasks if t.lease is not None]
        held = [at for t in self.tasks if t.state in HELD for at in (t.grace_at, t.timeout_at)]
        waiting = [at for t in self.tasks if t.state == "queued" for at in (t.run_at, t.ttl_at)]
        deadlines = [t.deadline_at for t in self.tasks if t.state in OPEN]
        keys = [until for _, _, until in self.keys.values()]
        return sorted({at for at in (*leases, *held, *waiting, *deadlines, *keys) if at is not None and at > self.now})


def may_retry(policy: Policy, error_class: str, said: bool | None) -> bool:
    """The reporter's word first, then the policy's lists, then what everybody agrees on."""
    if said is not None:
        return said
    if error_class in policy.no_retry_on:
        return False
    if policy.retry_on:
        return error_class in policy.retry_on
    return error_class not in ("ValidationError", "PermanentError", "HTTP 404")
