"""Jobnik's states and transitions beside ours. It is data: the lifecycle decides what a job may do."""

from onetray.dialects.kit import StateTable

JOB_STATES = StateTable.read("flow", "job", """
    created = CREATED; pending = PENDING; running = IN_PROGRESS; waiting = PENDING/IN_PROGRESS; paused = PAUSED
    succeeded, partial = COMPLETED; failed = FAILED; cancelled = ABORTED
    new → CREATED → PENDING → IN_PROGRESS → COMPLETED, FAILED
    PENDING, IN_PROGRESS → PAUSED → PENDING
    CREATED, PENDING, IN_PROGRESS, PAUSED → ABORTED
    CREATED → FAILED: the deadline of a native flow
    PENDING → FAILED: the deadline of a native flow, or its first stage was rejected
    PENDING → COMPLETED: all its stages were skipped
    PAUSED → COMPLETED: its last task ended while it was paused
    PAUSED → FAILED: its last task ended while it was paused, or the deadline of a native flow
    IN_PROGRESS → PENDING: a stage was approved, and none of its tasks has started
""", second_after=("start",))  # fmt: skip
STAGE_STATES = StateTable.read("stage", "stage", """
    created = CREATED; waiting = WAITING; pending = PENDING; running = IN_PROGRESS; succeeded, partial = COMPLETED
    failed = FAILED; skipped, cancelled = ABORTED
    new → CREATED → PENDING
    WAITING → PENDING → IN_PROGRESS → COMPLETED, FAILED
    CREATED, PENDING, IN_PROGRESS → WAITING
    CREATED, WAITING, PENDING, IN_PROGRESS → ABORTED
    CREATED → COMPLETED: a retried flow takes it over from the first one
    WAITING → FAILED: it was rejected, or a task failed while it waited
""")  # fmt: skip
TASK_STATES = StateTable.read("task", "task", """
    queued = PENDING/RETRIED; assigned, running = IN_PROGRESS; blocked, waiting_input = CREATED
    succeeded = COMPLETED; failed, dead_lettered, cancelled = FAILED
    new → PENDING → IN_PROGRESS → COMPLETED, FAILED
    IN_PROGRESS → RETRIED → IN_PROGRESS
    CREATED, PENDING, RETRIED → FAILED: its job was aborted
    IN_PROGRESS → PENDING, CREATED: a worker in Python does this; Jobnik's cannot
    CREATED → PENDING, RETRIED: a user resumed it
""", second_after=("retry", "expire"), is_second=lambda task: task.attempts > 0)  # fmt: skip
