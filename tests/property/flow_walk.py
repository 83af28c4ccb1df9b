"""Walks through flows: made from numbers that hypothesis draws, so that what fails shrinks to a short walk.

Owns what a walk may do, and to whom. What has to hold is in flow_twins.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from onetray.domain.flow import Approval, More, StageSpec, TaskSpec
from onetray.domain.lifecycle import HELD, OPEN, PAUSED
from onetray.domain.policy import Policy

T = TypeVar("T")

_PLAIN = Policy(max_attempts=2, jitter=False, backoff_base_s=1, lease_s=8, cancel_grace_s=3)
POLICIES = (
    _PLAIN.with_(max_attempts=1),
    _PLAIN,
    _PLAIN.with_(max_attempts=1, on_exhaustion="fail", lease_s=3),
    _PLAIN.with_(queue_ttl_s=6),
    _PLAIN.with_(deadline_s=15),
    _PLAIN.with_(timeout_s=2, queue_ttl_s=9),
)
KINDS, QUEUES, WORKERS = ("work", "other"), ("default", "default", "default", "slow"), ("wes", "wyn")
FORM = {"type": "object", "required": ["n"]}
APPROVALS = (
    None,
    Approval(),
    Approval(deadline_s=10, on_deadline="approve"),
    Approval(deadline_s=10, on_deadline="reject"),
    Approval(deadline_s=10, on_deadline="skip"),
    Approval(deadline_s=10, on_deadline="cancel"),
    Approval(form=FORM),
    Approval(owner="editor"),
)
REPORTS = ("start", "succeed", "fail", "release", "pause", "beat")
CONTROLS = ("resume", "cancel", "redrive", "set_priority", "reschedule")
OF_FLOWS = (
    "add_stage", "open_flow", "pause_flow", "resume_flow", "cancel_flow", "seal_flow", "retry_flow", "append_context",
)  # fmt: skip
OF_STAGES = ("add_tasks", "seal_stage", "wait_stage", "approve_stage", "reject_stage", "skip_stage")
BESIDE = ("jump", "sweep", "prune")
WEIGHTS = {
    "nothing": 1, "claim": 16, "succeed": 12, "start": 4, "fail": 6, "release": 2, "pause": 3, "beat": 1, "jump": 4,
    "sweep": 5, "resume": 3, "cancel": 2, "redrive": 3, "set_priority": 1, "reschedule": 2, "add_stage": 3,
    "open_flow": 2, "pause_flow": 3, "resume_flow": 4, "cancel_flow": 2, "seal_flow": 2, "retry_flow": 2,
    "append_context": 1, "add_tasks": 4, "seal_stage": 2, "wait_stage": 3, "approve_stage": 5, "reject_stage": 2,
    "skip_stage": 2, "prune": 1,
}  # fmt: skip
VERBS = tuple(verb for verb, weight in WEIGHTS.items() for _ in range(weight))
SUITS = {
    "approve_stage": ("waiting",), "reject_stage": ("waiting",), "skip_stage": ("created", "waiting"),
    "wait_stage": ("created", "pending", "running"), "add_tasks": ("created", "waiting", "pending", "running"),
    "seal_stage": ("created", "waiting", "pending", "running"),
    "open_flow": ("created",), "pause_flow": ("pending", "running", "waiting"), "resume_flow": ("paused",),
    "retry_flow": ("succeeded", "partial", "failed", "cancelled"),
    "resume": PAUSED, "cancel": OPEN, "set_priority": ("queued",), "reschedule": ("queued",),
    "redrive": ("failed", "dead_lettered", "cancelled"),
}  # fmt: skip
"""The states in which a verb has something to do: most are sent there, and some anywhere."""


class Digits:
    """A number as a row of choices. Zero is the first of each: whatever shrinks becomes plain."""

    def __init__(self, number: int) -> None:
        self._left = number

    def pick(self, some: Sequence[T]) -> T:
        self._left, at = divmod(self._left, len(some))
        return some[at]

    def rarely(self, times: int) -> bool:
        return self.pick((False,) * (times - 1) + (True,))


numbers = st.integers(0, 2**40)
stages = st.tuples(numbers, st.lists(numbers, max_size=5))
flows = st.tuples(numbers, st.lists(stages, max_size=4))
single = st.tuples(st.sampled_from(VERBS), numbers)
steps = st.one_of(
    st.lists(single, min_size=1, max_size=1),
    st.lists(single, min_size=1, max_size=1),
    st.lists(single, min_size=1, max_size=1),
    st.lists(single, min_size=2, max_size=5),
)
walks = st.tuples(st.lists(flows, min_size=1, max_size=2), st.lists(steps, min_size=24, max_size=70))
Flow = tuple[int, list[tuple[int, list[int]]]]
Walk = tuple[list[Flow], list[list[tuple[str, int]]]]


class Cmd(NamedTuple):
    """A command: its verb, the key of what it is about, and its fields."""

    verb: str
    about: int | None
    args: dict[str, Any]


class Known(NamedTuple):
    """What there is, as (key, state), the oldest first; of tasks also the fence and the owner, of stages the name."""

    flows: list[tuple[int, str]]
    stages: list[tuple[int, str, str]]
    tasks: list[tuple[int, str, int, str | None, str | None]]


class Guide:
    """Turns the numbers of a walk into commands about what there is."""

    def __init__(self) -> None:
        self.named = 0

    def flow(self, plan: Flow) -> Cmd:
        number, stage_plans = plan
        n = Digits(number)
        args: dict[str, Any] = {
            "name": "flow", "roll_up": n.pick(("strict", "drain", "mixed")),
            "sealed": n.pick((None, None, True, False)), "start": not n.rarely(6),
            "deadline_s": n.pick((None, None, None, None, None, 25.0)), "context": n.pick((None, {"c": 1})),
        }  # fmt: skip
        names: list[str] = []
        args["stages"] = [self.stage(p, names, f"s{i}") for i, p in enumerate(stage_plans)]
        return Cmd("submit_flow", None, args)

    def stage(self, plan: tuple[int, list[int]], names: list[str], name: str) -> StageSpec:
        number, task_plans = plan
        n = Digits(number)
        control = TaskSpec("when", policy=n.pick(POLICIES[:4])) if n.rarely(5) else None
        return StageSpec(
            name, [self.task(p, names) for p in task_plans], on_failure=n.pick(("stop", "continue", "ignore")),
            sealed=n.pick((None, None, None, True, False)), when=control,
            approval=n.pick(APPROVALS) if n.rarely(3) else None, start_as_waiting=n.rarely(8),
            takes_more=not n.rarely(5), collect=n.pick(("list", "list", "one", "none")),
            compensate=TaskSpec("undo", policy=POLICIES[1]) if n.rarely(4) else None,
        )  # fmt: skip

    def task(self, number: int, names: list[str]) -> TaskSpec:
        """One of a flow's tasks. It may depend on those that were named before it."""
        n = Digits(number)
        policy, delay_s = n.pick(POLICIES), n.pick((None, None, None, None, 2.0))
        needs = {n.pick(names[-4:]) for _ in range(n.pick((0, 0, 1, 2)))} if names else set()
        self.named += 1
        name = f"t{self.named}" if not n.rarely(4) else None
        if name is not None:
            names.append(name)
        return TaskSpec(
            n.pick(KINDS), self.named, policy=policy, delay_s=delay_s, queue=n.pick(QUEUES), priority=n.pick((0, 0, 1)),
            name=name, depends_on=tuple(sorted(needs)),
        )  # fmt: skip

    def command(self, step: tuple[str, int], known: Known) -> Cmd | None:
        verb, number = step
        n = Digits(number)
        if verb == "nothing":
            return None
        if verb in BESIDE:
            return Cmd(verb, None, self._beside(verb, n))
        if verb == "claim":
            return Cmd(verb, None, {
                "limit": n.pick((5, 1, 2)), "worker": n.pick(WORKERS), "queue": n.pick(QUEUES),
                "kinds": n.pick((None, None, None, ["work", "when"], ["other"])),
            })  # fmt: skip
        those = self._those(verb, known)
        suited = [e for e in those if e[1] in SUITS[verb]] if verb in SUITS else those
        if verb in REPORTS:
            suited = [e for e in known.tasks if e[1] in HELD]
        among = those if not suited or n.rarely(6) else suited
        if not among:
            return None
        about = n.pick(among)
        return Cmd(verb, about[0], self._fields(verb, n, about, known))

    def _those(self, verb: str, known: Known) -> Sequence[Any]:
        return known.flows if verb in OF_FLOWS else known.stages if verb in OF_STAGES else known.tasks

    def _beside(self, verb: str, n: Digits) -> dict[str, Any]:
        if verb == "jump":
            return {"us": n.pick((1_000_000, 2_000_000, 3_500_000, 9_000_000, 11_000_000, 1))}
        if verb == "sweep":
            return {"what": n.pick(("sweep", "sweep", "expire_leases", "do_due")), "limit": n.pick((500, 500, 1, 2))}
        return {"older_than_s": n.pick((5.0, 0.0))}

    def _fields(self, verb: str, n: Digits, about: Any, known: Known) -> dict[str, Any]:
        match verb:
            case "start" | "beat":
                return self._held(n, about)
            case "succeed":
                return {**self._held(n, about), "result": n.pick((1, None, False)), "more": self._more(n, known)}
            case "fail":
                return {
                    **self._held(n, about), "message": "no", "retryable": n.pick((None, False, True)),
                    "reason_code": n.pick((None, None, "parse_error")), "retry_after_s": n.pick((None, None, 2.0)),
                }  # fmt: skip
            case "release":
                return {**self._held(n, about), "delay_s": n.pick((0.0, 2.0))}
            case "pause":
                return {**self._held(n, about), "owner": "ann", "reason": "asks", "state": n.pick(PAUSED)}
            case "cancel":
                return {"hard": n.pick((False, True))}
            case "set_priority":
                return {"priority": n.pick((5, 0, -1))}
            case "redrive":
                return {"delay_s": n.pick((0.0, 2.0)), "keep_attempts": n.rarely(4)}
            case "reschedule":
                return {"delay_s": n.pick((0.0, 2.0))}
            case "add_stage":
                plan = n.pick(range(2**16)), [n.pick(range(2**10)) for _ in range(n.pick((1, 0, 2)))]
                self.named += 1
                return {"stage": self.stage(plan, [], n.pick((f"added{self.named}",) * 5 + ("s0",)))}
            case "add_tasks":
                names = [t[4] for t in known.tasks if t[4] is not None][-3:]
                return {"tasks": [self.task(n.pick(range(2**10)), names) for _ in range(n.pick((1, 2, 3)))]}
            case "cancel_flow":
                return {"hard": n.pick((False, True))}
            case "retry_flow":
                return {"from_stage": n.pick((None, None, None, "s0", "s1"))}
            case "append_context":
                return {"payload": {"c": 2}}
            case "wait_stage":
                return {"approval": n.pick(APPROVALS), **self._answering(n)}
            case "approve_stage":
                return {"input": n.pick(({"n": 1}, {"n": 1}, None)), **self._answering(n)}
            case "reject_stage" | "skip_stage":
                return self._answering(n)
        return {}

    def _answering(self, n: Digits) -> dict[str, Any]:
        """Who answers: the one that an approval may name, a member of that group, or somebody else."""
        return {"actor_name": n.pick(("editor", "ann", "bob")), "actor_groups": n.pick(((), (), ("editor",)))}

    def _held(self, n: Digits, task: Any) -> dict[str, Any]:
        fence, owner = task[2], task[3]
        return {
            "fence": n.pick((fence, fence, fence, None, max(1, fence - 1))), "worker": n.pick((owner, owner, None)),
            "flow": n.pick(("its", "its", None, 0)),
        }  # fmt: skip

    def _more(self, n: Digits, known: Known) -> More | None:
        if not n.rarely(3):
            return None
        more = More(partial=n.pick((False, True)), metrics=n.pick((None, {"n": 1})), context=n.pick((None, {"c": 3})))
        if n.pick((True, False)):
            names = [t[4] for t in known.tasks if t[4] is not None][-3:] if n.rarely(3) else []
            stage = n.pick(sorted({s[2] for s in known.stages}) or ["s0"])
            more.spawn = {stage: [self.task(n.pick(range(2**10)), names) for _ in range(n.pick((1, 2)))]}
        return more
