"""Bad values for every field of the commands about flows, and of what flows are made from."""

from __future__ import annotations

from typing import Any

from onetray.domain.flow import Approval, More, StageSpec, TaskSpec
from tests.contract.bad_values import (
    ALIAS,
    HUGE,
    JSON,
    LABELS,
    LONG,
    MB2,
    NAN,
    NUL,
    SECONDS,
    SURROGATE,
    SWITCH,
    TEXT,
    TRACE,
    WHOLE,
)
from tests.support.tasks import UNKNOWN_ID

ACTOR = (None, "cat", 5, ["user"], NUL)
ID = (None, "", "abc", 0, True, 1.5, [UNKNOWN_ID], HUGE, UNKNOWN_ID + "0", UNKNOWN_ID[:-1] + "g", NUL)
OPTIONAL_ID = ID[1:]
LISTS = (None, 5, "text", {"a": 1}, [5], [None], ["a"])
NEEDS = (None, 5, "a", {"a": 1}, [5], [""], [NUL], [SURROGATE], [LONG], ["x"] * 10_001)

OF_FLOWS: dict[str, tuple[Any, ...]] = {
    "flow": ID,
    "namespace": (None, *TEXT),
    "actor": ACTOR,
    "actor_name": (None, *TEXT),
    "cause": TEXT,
    "trace": TRACE,
}
GROUPS = (None, 5, "editor", [5], [""], [NUL], ["x"] * 101)
OF_ANSWERS = {**OF_FLOWS, "note": TEXT, "actor_groups": GROUPS}
APPROVALS = (5, "ann", {"owner": "ann"}, Approval(owner=""))

FLOW_FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "submit_flow": {
        "name": (None, *TEXT),
        "stages": (*LISTS, [StageSpec("a"), StageSpec("a")], [StageSpec("a")] * 1001),
        "data": JSON,
        "metadata": JSON,
        "priority": (None, *WHOLE, 2**31, -(2**31)),
        "roll_up": (None, "loose", 5, ["strict"], NUL),
        "sealed": SWITCH,
        "as_declared": (None, *SWITCH),
        "singleton": (None, *SWITCH),
        "start": (None, *SWITCH),
        "deadline_s": SECONDS,
        "context": JSON,
        "redact": (None, 5, "password", [5], [""], ["a..b"], [NUL], ["a" * 201], ["a"] * 101),
        "namespace": (None, *TEXT),
        "idempotency_key": TEXT,
        "unique_key": TEXT,
        "alias": ALIAS,
        "labels": LABELS,
        "correlation_id": TEXT,
        "trace": TRACE,
        "tracestate": TEXT,
        "cause": TEXT,
        "actor": ACTOR,
        "actor_name": (None, *TEXT),
    },
    "add_stage": {
        **OF_FLOWS,
        "stage": (None, 5, "a", {"name": "a"}, [StageSpec("a")], StageSpec("")),
        "open": (None, *SWITCH),
    },
    "add_tasks": {
        **OF_FLOWS,
        "tasks": (*LISTS, (), [TaskSpec("x")] * 10_001),
        "spawned_by": OPTIONAL_ID,
        "open": (None, *SWITCH),
    },
    "open_flow": OF_FLOWS,
    "pause_flow": OF_FLOWS,
    "resume_flow": OF_FLOWS,
    "cancel_flow": {**OF_FLOWS, "hard": (None, *SWITCH)},
    "set_flow_metadata": {**OF_FLOWS, "metadata": JSON},
    "set_flow_priority": {**OF_FLOWS, "priority": (None, *WHOLE, 2**31, -(2**31))},
    "set_stage_metadata": {**OF_FLOWS, "metadata": JSON},
    "cancel_stage": {**OF_FLOWS, "hard": (None, *SWITCH)},
    "seal_flow": OF_FLOWS,
    "retry_flow": {**OF_FLOWS, "from_stage": TEXT},
    "append_context": {
        **OF_FLOWS,
        "payload": JSON,
        "scope": (None, "world", 5, NUL),
        "task": OPTIONAL_ID,
        "parent": TEXT,
        "label": TEXT,
        "alias": ALIAS,
    },
    "seal_stage": OF_FLOWS,
    "wait_stage": {**OF_FLOWS, "approval": APPROVALS, "actor_groups": GROUPS},
    "approve_stage": {**OF_ANSWERS, "input": JSON},
    "reject_stage": OF_ANSWERS,
    "skip_stage": OF_ANSWERS,
}
_OF_STAGES = ("stages", "data", "roll_up", "sealed", "as_declared", "singleton", "context", "redact")
FLOW_FIELDS["submit_declared"] = {"config": JSON} | {
    name: values for name, values in FLOW_FIELDS["submit_flow"].items() if name not in _OF_STAGES
}

FLOW_GOOD: dict[str, dict[str, Any]] = {
    "submit_flow": {"name": "f"},
    "submit_declared": {"name": "f"},
    "add_stage": {"stage": StageSpec("a")},
    "add_tasks": {"tasks": [TaskSpec("x")]},
    "append_context": {"payload": 1},
    "set_flow_metadata": {"metadata": 1},
    "set_stage_metadata": {"metadata": 1},
    "set_flow_priority": {"priority": 5},
}

_CONTROL = (5, "x", {"kind": "x"}, TaskSpec(""), TaskSpec("x", name="a"), TaskSpec("x", depends_on=("a",)))
TASK_SPEC: dict[str, tuple[Any, ...]] = {
    "kind": (None, *TEXT),
    "payload": JSON,
    "queue": (None, *TEXT),
    "priority": (*WHOLE, 2**31, -(2**31)),
    "delay_s": SECONDS,
    "run_at": (*WHOLE, -1, 2**63),
    "max_attempts": (*WHOLE, 0, -1, 10**7),
    "policy": (5, {"max_attempts": 3}, "default"),
    "name": TEXT,
    "alias": ALIAS,
    "depends_on": NEEDS,
    "context_id": TEXT,
    "metadata": JSON,
    "trace": TRACE,
    "tracestate": TEXT,
}
STAGE_SPEC: dict[str, tuple[Any, ...]] = {
    "name": (None, *TEXT),
    "type": TEXT,
    "trace": TRACE,
    "tracestate": TEXT,
    "tasks": (*LISTS, [TaskSpec("x")] * 10_001),
    "on_failure": (None, "explode", 5, NUL),
    "start_as_waiting": (None, *SWITCH),
    "approval": APPROVALS,
    "when": (*_CONTROL, TaskSpec("x", NAN)),
    "compensate": (*_CONTROL, TaskSpec("x", NAN)),
    "takes_more": (None, *SWITCH),
    "sealed": SWITCH,
    "collect": (None, "all", 5, NUL),
    "data": JSON,
    "metadata": JSON,
}
APPROVAL: dict[str, tuple[Any, ...]] = {
    "owner": (None, *TEXT),
    "reason": (None, *TEXT),
    "form": (5, "text", [1], {"type": "nothing"}, {"pattern": "["}, {"const": NAN}, {"const": MB2}, {"title": NUL}),
    "deadline_s": SECONDS,
    "on_deadline": (None, "explode", 5, NUL),
}
_SPAWN: tuple[Any, ...] = (
    None,
    5,
    "a",
    ["a"],
    {5: []},
    {"": []},
    {NUL: []},
    {"a": None},
    {"a": TaskSpec("x")},
    {"a": [5]},
)
MORE: dict[str, tuple[Any, ...]] = {
    "partial": (None, *SWITCH),
    "errors": JSON,
    "metrics": (*JSON, 5, "text", [1]),
    "spawn": (*_SPAWN, {"a": [TaskSpec("")]}, {"a": [TaskSpec("x", NAN)]}),
    "context": JSON,
    "context_label": TEXT,
}
MORE_VALUES = (5, "more", {"partial": True}, [More()])

SPECS: dict[type, dict[str, tuple[Any, ...]]] = {
    TaskSpec: TASK_SPEC,
    StageSpec: STAGE_SPEC,
    Approval: APPROVAL,
    More: MORE,
}
