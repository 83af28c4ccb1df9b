"""Jobnik's states and transitions beside ours. It is data: the lifecycle decides what a job may do."""

from onetray.dialects.kit import StateTable
from onetray.domain import lifecycle as native

JOB_STATES = {
    native.CREATED: "CREATED", native.PENDING: "PENDING", native.RUNNING: "IN_PROGRESS", native.WAITING: "IN_PROGRESS",
    native.FLOW_PAUSED: "PAUSED", native.SUCCEEDED: "COMPLETED", native.PARTIAL: "COMPLETED", native.FAILED: "FAILED",
    native.CANCELLED: "ABORTED",
}  # fmt: skip
"""A job that waits for the approval of its first stage is PENDING."""
STAGE_STATES = {
    native.CREATED: "CREATED", native.WAITING: "WAITING", native.PENDING: "PENDING", native.RUNNING: "IN_PROGRESS",
    native.SUCCEEDED: "COMPLETED", native.PARTIAL: "COMPLETED", native.FAILED: "FAILED", native.SKIPPED: "ABORTED",
    native.CANCELLED: "ABORTED",
}  # fmt: skip
TASK_STATES = {
    native.QUEUED: "PENDING", native.ASSIGNED: "IN_PROGRESS", native.RUNNING: "IN_PROGRESS", native.BLOCKED: "CREATED",
    native.WAITING_INPUT: "CREATED", native.SUCCEEDED: "COMPLETED", native.FAILED: "FAILED",
    native.DEAD_LETTERED: "FAILED", native.CANCELLED: "FAILED",
}  # fmt: skip
RETRIED = "RETRIED"
"""The state of a queued task with a failed attempt behind it."""

DEADLINE, LAST_TASK = "the deadline of a native flow", "its last task ended while it was paused"
TAKEN_OVER = "a retried flow takes it over from the first one"
WORKER = "a worker in Python does this; Jobnik's cannot"
STATE_TABLES = (
    StateTable(
        "flow", {**JOB_STATES, native.WAITING: ("PENDING", "IN_PROGRESS")},
        (
            (None, "CREATED"), ("CREATED", "PENDING"), ("PENDING", "IN_PROGRESS"), ("IN_PROGRESS", "COMPLETED"),
            ("IN_PROGRESS", "FAILED"), ("PENDING", "PAUSED"), ("IN_PROGRESS", "PAUSED"), ("PAUSED", "PENDING"),
            *((state, "ABORTED") for state in ("CREATED", "PENDING", "IN_PROGRESS", "PAUSED")),
        ),
        "job", ("start",),
        {
            ("CREATED", "FAILED"): DEADLINE,
            ("PENDING", "FAILED"): f"{DEADLINE}, or its first stage was rejected",
            ("PENDING", "COMPLETED"): "all its stages were skipped",
            ("PAUSED", "COMPLETED"): LAST_TASK,
            ("PAUSED", "FAILED"): f"{LAST_TASK}, or {DEADLINE}",
            ("IN_PROGRESS", "PENDING"): "a stage was approved, and none of its tasks has started",
        },
    ),
    StateTable(
        "stage", STAGE_STATES,
        (
            (None, "CREATED"), ("CREATED", "PENDING"), ("WAITING", "PENDING"), ("PENDING", "IN_PROGRESS"),
            ("IN_PROGRESS", "COMPLETED"), ("IN_PROGRESS", "FAILED"),
            *((state, "WAITING") for state in ("CREATED", "PENDING", "IN_PROGRESS")),
            *((state, "ABORTED") for state in ("CREATED", "WAITING", "PENDING", "IN_PROGRESS")),
        ),
        "stage", (),
        {
            ("CREATED", "COMPLETED"): TAKEN_OVER,
            ("WAITING", "FAILED"): "it was rejected, or a task failed while it waited",
        },
    ),
    StateTable(
        "task", {**TASK_STATES, native.QUEUED: ("PENDING", RETRIED)},
        (
            (None, "PENDING"), ("PENDING", "IN_PROGRESS"), ("IN_PROGRESS", "COMPLETED"), ("IN_PROGRESS", "FAILED"),
            ("IN_PROGRESS", RETRIED), (RETRIED, "IN_PROGRESS"),
        ),
        "task", ("retry", "expire"),
        {
            **dict.fromkeys(((state, "FAILED") for state in ("CREATED", "PENDING", RETRIED)), "its job was aborted"),
            **dict.fromkeys((("IN_PROGRESS", "PENDING"), ("IN_PROGRESS", "CREATED")), WORKER),
            **dict.fromkeys((("CREATED", "PENDING"), ("CREATED", RETRIED)), "a user resumed it"),
            **dict.fromkeys((("PENDING", "COMPLETED"), (RETRIED, "COMPLETED")), TAKEN_OVER),
        },
    ),
)  # fmt: skip
"""What a Jobnik client may see. Departures from what Jobnik declares have a reason."""
