"""Any actor, any verb, any fence, at any time: both stores and the model must agree on every answer and every row."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from onetray.domain.policy import Policy
from tests.property.model import HELD, Cmd, Task
from tests.property.twins import Pair, Twins
from tests.property.walk import DELAYS, ERRORS, KEYS, KINDS, LIMITS, POLICIES, PRIORITIES, QUEUES, REASONS, WORKERS

SHORT, PRIORITY = st.sampled_from(DELAYS), st.sampled_from(PRIORITIES)
WHICH = st.tuples(st.sampled_from(["held", "held", "any", "last"]), st.integers(0, 30))
FENCE = st.sampled_from(["right", "right", "right", "none", "older", "newer"])
WORKER = st.sampled_from(["owner", "owner", "none", "wes", "wyn"])


def of(verb: str, **args: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(verb), st.fixed_dictionaries(args))


SUBMITS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "queue": st.sampled_from(QUEUES),
        "policy": st.tuples(st.sampled_from(range(len(POLICIES))), st.sampled_from([None, None, 1, 2, 3])),
        "payload": st.sampled_from([None, {"n": 1}]),
        "priority": PRIORITY,
        "delay_s": st.sampled_from([0.0, 0.0, 0.0, 3.0]),
        "idempotency_key": st.sampled_from([None, None, None, *KEYS]),
    }
)
CLAIMS = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(QUEUES),
        "worker": st.sampled_from(WORKERS),
        "limit": st.sampled_from([1, 1, 2, 10]),
        "kinds": st.sampled_from([None, None, None, ["mail"], ["scan", "mail"], []]),
        "lease_s": st.sampled_from([None, None, 2.0]),
        "request_key": st.sampled_from([None, None, None, "r1", "r2"]),
    }
)
REPORTED = st.one_of(
    of("start"),
    of("succeed", result=st.sampled_from([None, 1])),
    of("fail", message=st.just("no"), error_class=st.sampled_from(ERRORS), reason_code=st.sampled_from(REASONS),
       retryable=st.sampled_from([None, None, True, False]), retry_after_s=st.sampled_from([None, None, 0.0, 2.0])),
    of("release", delay_s=SHORT),
    of("pause", owner=st.just("ann"), reason=st.just("asks"), state=st.sampled_from(["blocked", "waiting_input"])),
    of("beat"),
    of("log", lines=st.just(("one", "two"))),
)  # fmt: skip
CONTROLS = st.one_of(
    of("resume"),
    of("cancel", hard=st.booleans(), grace_s=st.sampled_from([None, 0.0, 1.5])),
    of("set_priority", priority=PRIORITY),
    of("reschedule", delay_s=SHORT),
    of("reschedule", run_at=st.just(0)),
    of("redrive", delay_s=SHORT),
)
SYSTEM = st.one_of(
    of("expire"),
    of("time_out", limit=st.sampled_from(LIMITS)),
    of("promote"),
    of("end_cancel"),
    of("dead_letter", reason_code=st.just("policy_violation")),
)
ABOUT = st.tuples(st.one_of(REPORTED, REPORTED, CONTROLS, SYSTEM), WHICH, FENCE, WORKER)


def shared(number: int, most: int | None) -> Policy:
    """The same object for the same policy."""
    policy = POLICIES[number]
    return policy if most is None else _SHARED.setdefault((policy, most), policy.with_(max_attempts=most))


_SHARED: dict[tuple[Policy, int], Policy] = {}


class Lifecycle(RuleBasedStateMachine):
    both: Pair
    """Set by the test before the machine runs."""
    twins: Twins

    @initialize()
    def begin(self) -> None:
        self.twins = self.both.fresh()

    @property
    def tasks(self) -> list[Task]:
        return self.twins.model.tasks

    def some(self) -> bool:
        return bool(self.tasks)

    @rule(many=st.lists(SUBMITS, min_size=1, max_size=3))
    def submit(self, many: list[dict[str, Any]]) -> None:
        self.twins.run([self._submit(args) for args in many])

    @precondition(some)
    @rule(args=CLAIMS)
    def claim(self, args: dict[str, Any]) -> None:
        self.twins.run([Cmd("claim", args=args)])

    @precondition(some)
    @rule(args=CLAIMS)
    def claim_plainly(self, args: dict[str, Any]) -> None:
        self.twins.run([Cmd("claim", args={"queue": args["queue"], "worker": args["worker"], "limit": 10})])

    @precondition(some)
    @rule(command=REPORTED, which=WHICH, fence=FENCE, worker=WORKER)
    def report(self, command: tuple[str, dict[str, Any]], which: Any, fence: str, worker: str) -> None:
        self.twins.run([self._about((command, which, fence, worker))])

    @precondition(some)
    @rule(command=st.one_of(CONTROLS, SYSTEM), which=WHICH, fence=FENCE)
    def control(self, command: tuple[str, dict[str, Any]], which: Any, fence: str) -> None:
        self.twins.run([self._about((command, which, fence, "none"))])

    @precondition(some)
    @rule(lease_s=st.sampled_from([0.5, 2.0, 9.0]), which=WHICH)
    def beat_for(self, lease_s: float, which: Any) -> None:
        self.twins.run([self._about((("beat", {"lease_s": lease_s}), which, "right", "owner"))])

    @precondition(some)
    @rule(
        about=st.lists(ABOUT, min_size=1, max_size=6),
        new=st.lists(SUBMITS, max_size=2),
        claims=st.lists(CLAIMS, max_size=2),
    )
    def batch(self, about: list[Any], new: list[dict[str, Any]], claims: list[dict[str, Any]]) -> None:
        mixed = [self._about(a) for a in about] + [Cmd("claim", args=args) for args in claims]
        self.twins.run(mixed + [self._submit(args) for args in new])

    @precondition(some)
    @rule(which=st.sampled_from(["unknown", "elsewhere"]), command=st.one_of(REPORTED, CONTROLS, SYSTEM))
    def ask_about_nobody(self, which: str, command: tuple[str, dict[str, Any]]) -> None:
        verb, args = command
        if which == "unknown":
            self.twins.run([Cmd(verb, None, args)])
        else:
            self.twins.run([Cmd(verb, 0, {**args, "namespace": "elsewhere"})])

    @precondition(some)
    @rule(us=st.sampled_from([1, 500_000, 1_000_000, 2_000_000, 5_000_000, 15_000_000]))
    def wait(self, us: int) -> None:
        self.twins.jump(us)

    @precondition(some)
    @rule(pick=st.integers(0, 5), off=st.sampled_from([-1, 0, 0, 1]))
    def wait_for_an_edge(self, pick: int, off: int) -> None:
        timers = self.twins.model.timers()
        if timers:
            self.twins.jump(max(0, timers[pick % len(timers)] + off - self.twins.clock.now()))

    @precondition(some)
    @rule()
    def expire_leases(self) -> None:
        self.twins.expire_leases()

    @precondition(some)
    @rule()
    def do_due(self) -> None:
        self.twins.do_due()

    @precondition(some)
    @rule(queue=st.sampled_from(QUEUES), paused=st.sampled_from([True, False, False]))
    def pause_or_resume_queue(self, queue: str, paused: bool) -> None:
        self.twins.set_paused(queue, paused)

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.twins.finish()

    def _submit(self, args: dict[str, Any]) -> Cmd:
        return Cmd("submit", args={**args, "policy": shared(*args["policy"])})

    def _about(self, about: Any) -> Cmd:
        (verb, args), (where, n), fence, worker = about
        held = [t for t in self.tasks if t.state in HELD]
        among = self.tasks[-3:] if where == "last" else held if where == "held" and held else self.tasks
        t = among[n % len(among)]
        said: dict[str, Any] = {}
        if verb in ("start", "beat", "succeed", "fail", "release", "pause", "log"):
            said["worker"] = {"owner": t.owner, "none": None}.get(worker, worker)
            said["fence"] = {"right": t.fence, "older": max(1, t.fence - 1), "newer": t.fence + 1}.get(fence)
        elif verb in ("expire", "time_out", "promote", "end_cancel", "dead_letter"):
            said["fence"] = {"right": t.fence, "older": max(1, t.fence - 1), "newer": t.fence + 1}.get(fence)
        return Cmd(verb, t.number, {**args, **said})


def examples() -> int:
    """A plain run is short, the long walks go deeper; a thorough profile asks for more."""
    return settings().max_examples if settings().max_examples > 100 else 30


def test_both_stores_do_what_the_model_says(both: Pair) -> None:
    class Machine(Lifecycle):
        pass

    Machine.both = both
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=examples(),
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
