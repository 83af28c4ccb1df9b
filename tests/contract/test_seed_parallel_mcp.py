"""parallel-mcp's task states, run statuses, invariants and events, one test or more for each row, in native terms.

A run is a flow with one stage that drains. leased is assigned, completed is succeeded; a run that is active is pending
until its first task starts, then running.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from onetray import failpoints
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import DependencyCycle, IllegalTransition, LeaseLost, NotFound, OnetrayError
from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.domain.lifecycle import (
    ASSIGNED,
    BLOCKED,
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Event
from onetray.engine import Engine
from tests.support import fleet
from tests.support.cases import each_case
from tests.support.drive import all_states, events_of, finish_flows, flow_state, run, stage_states, task_states
from tests.support.engines import engine_on
from tests.support.seeds import row, ticked_off
from tests.support.tasks import facts, last, running, settle, state, take, types

FINAL = Policy(on_exhaustion="fail", max_attempts=1)
"""As its tasks are by default: one attempt, and no dead letter."""


class Run(NamedTuple):
    flow: Placed
    stage: str
    tasks: tuple[str, ...]


def new_run(engine: Engine, *tasks: TaskSpec, **fields: Any) -> Run:
    """A run with these tasks. It ends with the last of them."""
    flow = engine.submit_flow("run", roll_up="drain", **fields)
    added = engine.add_stage(flow.id, StageSpec("tasks", tasks))
    return Run(flow, added.id, added.tasks)


def one(engine: Engine, start: str, policy: Policy | None = None) -> tuple[Run, Assignment | None]:
    """A run with one task in this state, and the claim that brought it there."""
    made = new_run(engine, TaskSpec("x", policy=policy))
    if start == QUEUED:
        return made, None
    held = take(engine)
    if start != ASSIGNED:
        engine.start(held)
    if start in (BLOCKED, WAITING_INPUT):
        engine.pause(held, state=start, owner="ann", reason="asks")
    assert state(engine, made.tasks[0]) == start
    return made, held


class Move(NamedTuple):
    start: str
    act: str
    end: str
    policy: Policy | None = None


MOVES = {
    "[*] → queued: enqueueTask": Move(QUEUED, "nothing", QUEUED),
    "queued → leased: claimNextTask": Move(QUEUED, "claim", ASSIGNED),
    "leased → running: markTaskRunning": Move(ASSIGNED, "start", RUNNING),
    "leased → queued: lease expires": Move(ASSIGNED, "expire", QUEUED),
    "leased → queued: releaseTask": Move(ASSIGNED, "release", QUEUED),
    "running → queued: lease expires": Move(RUNNING, "expire", QUEUED),
    "running → queued: releaseTask": Move(RUNNING, "release", QUEUED),
    "leased → blocked: pauseTask": Move(ASSIGNED, "block", BLOCKED),
    "leased → waiting_input: pauseTask": Move(ASSIGNED, "ask", WAITING_INPUT),
    "running → blocked: pauseTask": Move(RUNNING, "block", BLOCKED),
    "running → waiting_input: pauseTask": Move(RUNNING, "ask", WAITING_INPUT),
    "blocked → queued: resumeTask": Move(BLOCKED, "resume", QUEUED),
    "waiting_input → queued: resumeTask": Move(WAITING_INPUT, "resume", QUEUED),
    "leased → completed: completeTask": Move(ASSIGNED, "succeed", SUCCEEDED),
    "running → completed: completeTask": Move(RUNNING, "succeed", SUCCEEDED),
    "leased → failed: failTask": Move(ASSIGNED, "fail", FAILED),
    "leased → failed: maxAttempts exceeded": Move(ASSIGNED, "fail again", FAILED, FINAL),
    "running → failed: failTask": Move(RUNNING, "fail", FAILED),
    "running → failed: maxAttempts exceeded": Move(RUNNING, "expire", FAILED, FINAL),
    "queued → cancelled: cancelRun": Move(QUEUED, "cancel run", CANCELLED),
    "leased → cancelled: cancelRun": Move(ASSIGNED, "cancel run", CANCELLED),
    "running → cancelled: cancelRun": Move(RUNNING, "cancel run", CANCELLED),
    "blocked → cancelled: cancelRun": Move(BLOCKED, "cancel run", CANCELLED),
    "waiting_input → cancelled: cancelRun": Move(WAITING_INPUT, "cancel run", CANCELLED),
}
ENDS = {
    "completed → [*]": Move(RUNNING, "succeed", SUCCEEDED),
    "failed → [*]": Move(RUNNING, "fail", FAILED),
    "cancelled → [*]": Move(RUNNING, "cancel run", CANCELLED),
}


def nothing(*_: object) -> None:
    """Stay where it is."""


ACTS: dict[str, Callable[[Engine, Run, Any], object]] = {
    "nothing": nothing,
    "claim": lambda e, r, a: take(e),
    "start": lambda e, r, a: e.start(a),
    "expire": nothing,  # Time alone does it.
    "release": lambda e, r, a: e.release(a),
    "block": lambda e, r, a: e.pause(a, state=BLOCKED, owner="ann", reason="asks"),
    "ask": lambda e, r, a: e.pause(a, state=WAITING_INPUT, owner="ann", reason="asks"),
    "resume": lambda e, r, a: e.resume(r.tasks[0]),
    "succeed": lambda e, r, a: e.succeed(a),
    "fail": lambda e, r, a: e.fail(a, "no", retryable=False),
    "fail again": lambda e, r, a: e.fail(a, "no", retryable=True),
    "cancel run": lambda e, r, a: e.cancel_flow(r.flow.id, hard=True),
}


def act(engine: Engine, clock: VirtualClock, move: Move) -> tuple[Run, Assignment | None]:
    made, held = one(engine, move.start, move.policy)
    ACTS[move.act](engine, made, held)
    if move.act == "expire":
        clock.advance(61)
        engine.expire_leases()
    return made, held


STATUSES = (
    "run is pending: no tasks yet",
    "run is active: a task is queued, leased or running",
    "run is waiting: none active, one blocked or waiting for input",
    "run is completed: all completed or cancelled, one completed at least",
    "run is failed: none active or waiting, one failed at least",
    "run is cancelled: it was cancelled and no task is held",
    "run is cancelled: all tasks are cancelled",
    "run status is recomputed after every task transition",
    "cancelRun flips the run at once",
)
INVARIANTS = (
    "invariant: nothing leaves completed, failed or cancelled",
    "invariant: every claim counts an attempt",
    "invariant: who holds a task has a lease, and only then",
    "invariant: only a requeue sets a time before which it is not run",
)
EVENTS = {
    "run.created": "flow.submitted",
    "run.cancelled": "flow.cancelled",
    "run.status.changed": "flow.waiting",
    "task.enqueued": "task.submitted",
    "task.claimed": "task.claimed",
    "task.running": "task.started",
    "task.released": "task.released",
    "task.completed": "task.succeeded",
    "task.failed": "task.failed",
    "task.paused": "task.waiting_input",
    "task.resumed": "task.resumed",
    "task.lease_expired": "task.lease_expired",
    "task.heartbeat": "task.heartbeat",
    "context_snapshot.appended": "flow.context_appended",
}
LOG = (
    "log: every state change appends one row",
    "log: a listener gets the stored record",
    "log: a listener that raises breaks no write",
    "log: listEventsSince is paged by a cursor",
)
RULES = (
    "rule: claims by priority, then by age",
    "rule: a lease is valid up to and including its expiry",
    "rule: leases of a few milliseconds are accepted",
    "rule: backoff doubles and is capped",
    "rule: a claim is replayed for its own worker while the lease lives",
    "rule: a completion and a failure are replayed",
    "rule: a task inherits the run's current snapshot",
    "rule: nextContext moves the run's pointer",
    "rule: an append in the scope of a task does not",
    "rule: a run completes after its last task and refuses more",
    "rule: a run that was created open-ended does not",
    "rule: a cycle of dependencies is refused",
    "rule: a task waits for those it depends on",
    "rule: a dead task is queued again with no attempt behind it",
    "rule: only terminal runs are pruned",
)
FAULTS = (
    "fault: a release or a pause eats an attempt",
    "fault: dependents of a failed task hang",
    "fault: a cancel overwrites a completed run",
    "fault: listeners see events that were rolled back",
    "fault: a timeout never retries",
    "fault: updates are lost under four processes",
)
ROWS = (*MOVES, *ENDS, *INVARIANTS, *STATUSES, *EVENTS, *LOG, *RULES, *FAULTS)


@row(*MOVES)
@each_case("move", MOVES)
def test_task_moves(engine: Engine, clock: VirtualClock, move: str) -> None:
    made, _ = act(engine, clock, MOVES[move])
    event = last(engine, made.tasks[0])
    assert state(engine, made.tasks[0]) == event.state == MOVES[move].end
    assert (event.was, event.state) in TASK.pairs


AFTERWARDS: dict[str, Callable[[Engine, Run, Any], object]] = {
    "start": lambda e, r, a: e.start(a),
    "release": lambda e, r, a: e.release(a),
    "pause": lambda e, r, a: e.pause(a, owner="ann", reason="asks"),
    "beat": lambda e, r, a: e.beat(a),
    "resume": lambda e, r, a: e.resume(r.tasks[0]),
    "cancel": lambda e, r, a: e.cancel(r.tasks[0], hard=True),
    "dead_letter": lambda e, r, a: e.dead_letter(r.tasks[0], "policy_violation"),
}


@row(*ENDS)
@each_case("end", ENDS)
def test_task_ends(engine: Engine, clock: VirtualClock, end: str) -> None:
    made, _ = act(engine, clock, ENDS[end])
    assert ENDS[end].end in TASK.terminal
    assert TASK.actions(ENDS[end].end, "worker") == TASK.actions(ENDS[end].end, "system") == ()
    assert engine.task(made.tasks[0]).finished_at == clock.now()


@row("invariant: nothing leaves completed, failed or cancelled")
@each_case("end", ENDS)
def test_invariant_no_verb_moves_a_task_that_has_ended(engine: Engine, clock: VirtualClock, end: str) -> None:
    made, held = act(engine, clock, ENDS[end])
    before = engine.flow_events(made.flow.id)
    for verb in AFTERWARDS.values():
        with pytest.raises(IllegalTransition):
            verb(engine, made, held)
    clock.advance(3600)
    settle(engine)
    assert engine.flow_events(made.flow.id) == before


@row("invariant: every claim counts an attempt")
def test_invariant_every_claim_counts_an_attempt(engine: Engine, clock: VirtualClock) -> None:
    made = new_run(engine, TaskSpec("x", max_attempts=9, policy=Policy(backoff_base_s=0)))
    for n in (1, 2, 3):
        held = take(engine)
        assert (held.attempt, engine.task(made.tasks[0]).attempts) == (n, n)
        engine.fail(held, "again")
    claims = [e.attempts for e in engine.events(made.tasks[0]) if e.type == "task.claimed"]
    assert claims == [1, 2, 3]


LEASE = ("lease", "owner", "lease_expires_at")


@row("invariant: who holds a task has a lease, and only then")
@each_case("move", MOVES)
def test_invariant_a_lease_is_there_exactly_while_the_task_is_held(
    engine: Engine, clock: VirtualClock, move: str
) -> None:
    made, _ = act(engine, clock, MOVES[move])
    there = [value is not None for value in facts(engine.task(made.tasks[0]), *LEASE)]
    assert there == [MOVES[move].end in (ASSIGNED, RUNNING)] * 3


@row("invariant: only a requeue sets a time before which it is not run")
def test_invariant_a_fresh_task_may_run_at_once_and_a_requeued_one_later(engine: Engine, clock: VirtualClock) -> None:
    made = new_run(engine, TaskSpec("x", policy=Policy(backoff_base_s=8, jitter=False)))
    assert engine.task(made.tasks[0]).run_at == clock.now()
    engine.release(take(engine), delay_s=3)
    assert engine.task(made.tasks[0]).run_at == clock.now() + 3 * SECOND
    clock.advance(3)
    settle(engine)
    running(engine)
    clock.advance(61)
    engine.expire_leases()
    assert engine.task(made.tasks[0]).run_at == clock.now() + 8 * SECOND
    assert engine.claim(worker="w") == []


@row("run is pending: no tasks yet")
def test_run_status_pending(engine: Engine) -> None:
    made = new_run(engine)
    assert (flow_state(engine, made.flow), engine.progress(made.flow.id).counts.total) == (PENDING, 0)
    settle(engine)
    assert flow_state(engine, made.flow) == PENDING


@row("run is active: a task is queued, leased or running")
@each_case(
    ("start", "status"),
    [(QUEUED, PENDING), (ASSIGNED, PENDING), (RUNNING, RUNNING)],
    ids=["queued", "leased", "running"],
)
def test_run_status_active(engine: Engine, start: str, status: str) -> None:
    made, _ = one(engine, start)
    counts = engine.progress(made.flow.id).counts
    assert (flow_state(engine, made.flow), counts.queued + counts.held) == (status, 1)


@row("run is active: a task is queued, leased or running")
def test_run_status_active_beside_a_task_that_waits(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), TaskSpec("x"))
    engine.pause(running(engine), owner="ann", reason="asks")
    assert flow_state(engine, made.flow) == RUNNING


@row("run is waiting: none active, one blocked or waiting for input")
@each_case("paused", [BLOCKED, WAITING_INPUT])
@each_case("other", ["none", SUCCEEDED, FAILED, CANCELLED])
def test_run_status_waiting(engine: Engine, paused: str, other: str) -> None:
    made = new_run(engine, *[TaskSpec("x")] * (1 if other == "none" else 2))
    engine.pause(running(engine), state=paused, owner="ann", reason="asks")
    if other == CANCELLED:
        engine.cancel(made.tasks[1])
    else:
        run(engine, fail={"x"} if other == FAILED else ())
    assert flow_state(engine, made.flow) == WAITING


@row("run is completed: all completed or cancelled, one completed at least")
@each_case("others", [0, 1, 2], ids=["all completed", "one cancelled", "two cancelled"])
def test_run_status_completed(engine: Engine, others: int) -> None:
    made = new_run(engine, *[TaskSpec("x")] * 3)
    for task in made.tasks[:others]:
        engine.cancel(task)
    run(engine)
    assert all_states(engine, made.flow) == (
        SUCCEEDED,
        [SUCCEEDED],
        [CANCELLED] * others + [SUCCEEDED] * (3 - others),
    )


@row("run is failed: none active or waiting, one failed at least")
@each_case("how", [FAILED, DEAD_LETTERED])
@each_case("other", ["none", SUCCEEDED, CANCELLED])
def test_run_status_failed(engine: Engine, how: str, other: str) -> None:
    made = new_run(engine, *[TaskSpec("x")] * (1 if other == "none" else 2))
    engine.fail(running(engine), "no", retryable=False, reason_code="parse_error" if how == DEAD_LETTERED else None)
    if other != "none":
        assert flow_state(engine, made.flow) == RUNNING
    if other == CANCELLED:
        engine.cancel(made.tasks[1])
    run(engine)
    assert (flow_state(engine, made.flow), stage_states(engine, made.flow)) == (FAILED, [FAILED])


@row("run is cancelled: it was cancelled and no task is held")
@each_case("start", ["no tasks", QUEUED, BLOCKED, WAITING_INPUT])
def test_run_status_cancelled_when_nothing_is_held(engine: Engine, start: str) -> None:
    made = new_run(engine) if start == "no tasks" else one(engine, start)[0]
    assert engine.cancel_flow(made.flow.id).state == CANCELLED
    assert set(task_states(engine, made.stage)) <= {CANCELLED}


@row("run is cancelled: it was cancelled and no task is held")
@each_case("start", [ASSIGNED, RUNNING])
def test_run_status_cancelled_once_what_is_held_is_given_up(engine: Engine, start: str) -> None:
    made, held = one(engine, start)
    assert engine.cancel_flow(made.flow.id).state not in (CANCELLED, SUCCEEDED)
    assert held is not None
    engine.release(held)
    assert all_states(engine, made.flow) == (CANCELLED, [CANCELLED], [CANCELLED])


@row("run is cancelled: all tasks are cancelled")
def test_run_status_cancelled_with_its_last_task(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), TaskSpec("x"))
    engine.cancel(made.tasks[0])
    assert flow_state(engine, made.flow) == PENDING
    engine.cancel(made.tasks[1])
    assert all_states(engine, made.flow) == (CANCELLED, [CANCELLED], [CANCELLED] * 2)


@row("run status is recomputed after every task transition")
def test_run_status_follows_every_transition_of_its_task(engine: Engine) -> None:
    made = new_run(engine)
    seen = [flow_state(engine, made.flow)]

    def then(_: object) -> None:
        seen.append(flow_state(engine, made.flow))

    (task,) = engine.add_tasks(made.stage, [TaskSpec("x")]).tasks
    then(held := take(engine))
    then(engine.start(held))
    then(engine.pause(held, owner="ann", reason="asks"))
    then(engine.resume(task))
    then(held := take(engine))
    then(engine.start(held))
    then(engine.succeed(held))
    assert seen == [PENDING, PENDING, RUNNING, WAITING, RUNNING, RUNNING, RUNNING, SUCCEEDED]


@row("cancelRun flips the run at once")
@each_case("start", [ASSIGNED, RUNNING])
def test_a_hard_cancel_flips_the_run_at_once_and_it_never_flips_back(engine: Engine, start: str) -> None:
    made, held = one(engine, start)
    assert engine.cancel_flow(made.flow.id, hard=True).state == CANCELLED
    version = engine.flow(made.flow.id).version
    assert held is not None
    with pytest.raises(IllegalTransition):
        engine.succeed(held)
    assert all_states(engine, made.flow) == (CANCELLED, [CANCELLED], [CANCELLED])
    assert engine.flow(made.flow.id).version == version


def eventful(engine: Engine, clock: VirtualClock) -> dict[str, Event]:
    """Two runs in which everything happens that the log has a name for; the last event of each type."""
    policy = Policy(backoff_base_s=0, record_heartbeats=True)
    made = new_run(engine, TaskSpec("x", policy=policy), context={"n": 1})
    engine.release(take(engine))
    engine.pause(running(engine), state=WAITING_INPUT, owner="ann", reason="asks")
    engine.resume(made.tasks[0])
    engine.beat(running(engine))
    clock.advance(61)
    settle(engine)
    engine.succeed(running(engine))
    other = new_run(engine, TaskSpec("x"), TaskSpec("x"))
    engine.fail(running(engine), "no", retryable=False)
    engine.cancel_flow(other.flow.id)
    events = engine.flow_events(made.flow.id) + engine.flow_events(other.flow.id)
    return {e.type: e for e in events}


@row(*EVENTS)
@each_case("name", EVENTS)
def test_event_types(engine: Engine, clock: VirtualClock, name: str) -> None:
    event = eventful(engine, clock)[EVENTS[name]]
    of_run = name.startswith(("run.", "context"))
    assert (event.entity_id == event.job_id) == of_run
    assert (event.version is None) == (name in ("task.heartbeat", "context_snapshot.appended"))


@row("log: every state change appends one row")
def test_log_every_state_change_appends_one_row(engine: Engine, clock: VirtualClock) -> None:
    eventful(engine, clock)
    for flow in engine.flows():
        found = [e for e in engine.flow_events(flow.id) if e.version is not None]
        tasks = [t for s in engine.stages(flow.id) for t in engine.stage_tasks(s.id)]
        versions = {flow.id: flow.version}
        versions |= {s.id: s.version for s in engine.stages(flow.id)} | {t.id: t.version for t in tasks}
        for entity, version in versions.items():
            own = [e for e in found if e.entity_id == entity]
            assert [e.version for e in own] == list(range(1, version + 1))
            assert [e.was for e in own[1:]] == [e.state for e in own[:-1]]


PATIENCE_S = 60


class Heard:
    """What a listener was told, and a way to wait for it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.events: list[Event] = []
        self._error, self._more = error, threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._more:
            self.events.append(event)
            self._more.notify_all()
        if self._error is not None:
            raise self._error

    def up_to(self, event: Event) -> list[Event]:
        with self._more:
            assert self._more.wait_for(lambda: event in self.events, PATIENCE_S)
            return list(self.events)


@row("log: a listener gets the stored record")
def test_log_a_listener_gets_what_is_stored(engine: Engine) -> None:
    heard = Heard()
    engine.on_event(heard)
    made = new_run(engine, TaskSpec("x"))
    run(engine)
    stored = engine.flow_events(made.flow.id)
    assert heard.up_to(stored[-1]) == stored


@row("log: a listener that raises breaks no write")
def test_log_a_listener_that_raises_breaks_no_write(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard(ValueError("boom"))
    engine.on_event(heard)
    with caplog.at_level(logging.CRITICAL, "onetray.feed"):
        made = new_run(engine, TaskSpec("x"))
        run(engine)
        stored = engine.flow_events(made.flow.id)
        assert heard.up_to(stored[-1]) == stored
    assert flow_state(engine, made.flow) == SUCCEEDED


@row("log: listEventsSince is paged by a cursor")
def test_log_events_since_a_cursor_are_read_page_by_page(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), TaskSpec("x"))
    run(engine)
    stored = engine.flow_events(made.flow.id)
    found: list[Event] = []
    while page := engine.flow_events(made.flow.id, after=found[-1].id if found else 0, limit=4):
        assert len(page) <= 4
        found += page
    assert found == stored
    through_the_feed = engine.feed.read(0)
    assert through_the_feed.events == stored
    assert engine.feed.read(through_the_feed.next_cursor).next_cursor == through_the_feed.next_cursor


@row("rule: claims by priority, then by age")
def test_rule_claims_go_by_priority_then_by_age(engine: Engine) -> None:
    made = new_run(engine, *[TaskSpec("x", priority=p) for p in (0, 2, 1, 2, 0)])
    order = [take(engine).id for _ in made.tasks]
    assert [made.tasks.index(id_) for id_ in order] == [1, 3, 2, 0, 4]


@row("rule: a lease is valid up to and including its expiry")
def test_rule_a_lease_is_valid_up_to_and_including_its_expiry(engine: Engine, clock: VirtualClock) -> None:
    new_run(engine, TaskSpec("x"), TaskSpec("x"))
    first, second = engine.claim(worker="w", limit=2, lease_s=10)
    clock.advance(10)
    assert engine.expire_leases() == []
    engine.succeed(first)
    clock.advance(0.000001)
    with pytest.raises(LeaseLost):
        engine.succeed(second)
    assert engine.expire_leases() == [second.key]


@row("rule: leases of a few milliseconds are accepted")
def test_rule_a_lease_may_be_a_few_milliseconds_long(engine: Engine, clock: VirtualClock) -> None:
    made = new_run(engine, TaskSpec("x"))
    held = take(engine, lease_s=0.005)
    assert held.lease_expires_at == clock.now() + 5_000
    clock.advance(0.006)
    settle(engine)
    assert state(engine, made.tasks[0]) == QUEUED


@row("rule: backoff doubles and is capped")
def test_rule_backoff_doubles_with_each_attempt_and_is_capped(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(backoff_base_s=2, backoff_max_s=10, jitter=False, max_attempts=9)
    made = new_run(engine, TaskSpec("x", policy=policy))
    waits = []
    for _ in range(4):
        engine.fail(running(engine), "again")
        waits.append((engine.task(made.tasks[0]).run_at - clock.now()) // SECOND)
        clock.advance(waits[-1])
        settle(engine)
    assert waits == [2, 4, 8, 10]


@row("rule: a claim is replayed for its own worker while the lease lives")
def test_rule_a_claim_with_the_same_token_is_answered_again(engine: Engine, clock: VirtualClock) -> None:
    new_run(engine, TaskSpec("x"), TaskSpec("x"))
    first = take(engine, request_key="k")
    assert take(engine, request_key="k") == first
    assert take(engine, worker="other", request_key="k").id != first.id
    clock.advance(61)
    settle(engine)
    assert take(engine, request_key="k").fence == 2


@row("rule: a completion and a failure are replayed")
def test_rule_the_same_report_again_is_accepted_without_an_event(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), TaskSpec("x"))
    done, broken = engine.claim(worker="w", limit=2)
    engine.succeed(done, 1)
    engine.fail(broken, "no", retryable=False)
    before = engine.flow_events(made.flow.id)
    assert engine.succeed(done, 1).repeated
    assert engine.fail(broken, "no", retryable=False).repeated
    assert engine.flow_events(made.flow.id) == before
    with pytest.raises(IllegalTransition):
        engine.fail(done, "on second thoughts")


def context_of(engine: Engine, flow: Placed) -> Any:
    current = engine.context(flow.id)
    assert current is not None
    return current


@row("rule: a task inherits the run's current snapshot")
def test_rule_a_task_keeps_the_context_that_was_current_when_it_came(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), context={"n": 1})
    first = context_of(engine, made.flow)
    second = engine.append_context(made.flow.id, {"n": 2})
    (late,) = engine.add_tasks(made.stage, [TaskSpec("x")]).tasks
    assert [engine.task(t).context_id for t in (*made.tasks, late)] == [first.id, second]


@row("rule: nextContext moves the run's pointer")
def test_rule_the_next_context_of_a_success_becomes_the_runs(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), TaskSpec("x"), context={"n": 1})
    first = context_of(engine, made.flow)
    engine.succeed(running(engine), context={"n": 2}, context_label="after x")
    now = context_of(engine, made.flow)
    assert (now.payload, now.label, now.parent_id, now.task_id) == ({"n": 2}, "after x", first.id, made.tasks[0])


@row("rule: an append in the scope of a task does not")
def test_rule_a_context_in_the_scope_of_a_task_leaves_the_runs_alone(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), context={"n": 1})
    own = engine.append_context(made.flow.id, {"n": 2}, scope="task", task=made.tasks[0])
    assert context_of(engine, made.flow).payload == {"n": 1}
    assert [c.id for c in engine.contexts(made.flow.id)][-1] == own


@row("rule: a run completes after its last task and refuses more")
def test_rule_a_run_completes_after_its_last_task_and_refuses_more(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"))
    run(engine)
    assert flow_state(engine, made.flow) == SUCCEEDED
    with pytest.raises(IllegalTransition, match="succeeded"):
        engine.add_tasks(made.stage, [TaskSpec("x")])
    assert len(task_states(engine, made.stage)) == 1


@row("rule: a run that was created open-ended does not")
def test_rule_an_open_ended_run_takes_tasks_until_it_is_sealed(engine: Engine) -> None:
    flow = engine.submit_flow("run", [StageSpec("tasks", sealed=False)], roll_up="drain", sealed=False)
    for _ in range(2):
        engine.add_tasks(flow.stages[0], [TaskSpec("x")])
        assert run(engine) == ["x"]
        assert flow_state(engine, flow) == RUNNING
    engine.seal_flow(flow.id)
    assert all_states(engine, flow) == (SUCCEEDED, [SUCCEEDED], [SUCCEEDED] * 2)


@row("rule: a cycle of dependencies is refused")
def test_rule_tasks_that_wait_for_each_other_are_refused_and_nothing_is_written(engine: Engine) -> None:
    made = new_run(engine)
    egg, hen = TaskSpec("x", name="egg", depends_on=("hen",)), TaskSpec("x", name="hen", depends_on=("egg",))
    with pytest.raises(DependencyCycle) as refused:
        engine.add_tasks(made.stage, [egg, hen])
    assert set(refused.value.cycle) == {"egg", "hen"}
    assert task_states(engine, made.stage) == []


@row("rule: a task waits for those it depends on")
def test_rule_a_task_is_claimed_after_all_that_it_depends_on(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x"), TaskSpec("y"))
    engine.add_tasks(made.stage, [TaskSpec("z", depends_on=made.tasks)])
    x, y = engine.claim(worker="w", limit=9)
    engine.succeed(x)
    assert engine.claim(worker="w") == []
    engine.succeed(y)
    assert run(engine) == ["z"]
    assert flow_state(engine, made.flow) == SUCCEEDED


@row("rule: a dead task is queued again with no attempt behind it")
def test_rule_the_successor_of_a_dead_task_is_queued_with_all_its_attempts(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("x", {"n": 1}, max_attempts=1), TaskSpec("x"))
    engine.fail(running(engine), "no")
    assert state(engine, made.tasks[0]) == DEAD_LETTERED
    new = engine.task(engine.redrive(made.tasks[0]).id or "")
    assert (new.state, new.attempts, new.payload, new.retry_of) == (QUEUED, 0, {"n": 1}, made.tasks[0])
    run(engine)
    assert flow_state(engine, made.flow) == SUCCEEDED


@row("rule: only terminal runs are pruned")
def test_rule_only_runs_that_have_ended_are_pruned(engine: Engine, clock: VirtualClock) -> None:
    ended = new_run(engine, TaskSpec("x"))
    run(engine)
    empty, active, waiting = new_run(engine), one(engine, RUNNING)[0], one(engine, BLOCKED)[0]
    clock.advance(10)
    assert len(engine.prune(1)) == 1
    assert {f.id for f in engine.flows()} == {r.flow.id for r in (empty, active, waiting)}
    with pytest.raises(NotFound):
        engine.flow(ended.flow.id)


@row("fault: a release or a pause eats an attempt")
@each_case("verb", ["release", "block", "ask"])
@each_case("start", [ASSIGNED, RUNNING], ids=["leased", "running"])
def test_fault_a_release_or_a_pause_gives_the_attempt_back(engine: Engine, start: str, verb: str) -> None:
    made = new_run(engine, TaskSpec("x", max_attempts=1))
    for _ in range(3):
        held = take(engine)
        assert held.attempt == 1
        if start == RUNNING:
            engine.start(held)
        ACTS[verb](engine, made, held)
        assert engine.task(made.tasks[0]).attempts == 0
        if verb != "release":
            engine.resume(made.tasks[0])
    engine.succeed(take(engine))
    assert flow_state(engine, made.flow) == SUCCEEDED


@row("fault: dependents of a failed task hang")
def test_fault_dependents_of_a_failed_task_are_cancelled_and_the_run_ends(engine: Engine) -> None:
    tasks = [
        TaskSpec("bad", name="first"),
        TaskSpec("x", name="second", depends_on=("first",)),
        TaskSpec("x", depends_on=("second",)),
    ]
    made = new_run(engine, *tasks)
    assert run(engine, fail={"bad"}) == ["bad"]
    assert all_states(engine, made.flow) == (FAILED, [FAILED], [FAILED, CANCELLED, CANCELLED])
    assert last(engine, made.tasks[2]).cause == "dependency_failed"


@row("fault: dependents of a failed task hang")
def test_fault_what_is_added_after_its_dependency_failed_does_not_hang_either(engine: Engine) -> None:
    made = new_run(engine, TaskSpec("bad", name="first"), TaskSpec("x"))
    run(engine, fail={"bad"}, most=1)
    (late,) = engine.add_tasks(made.stage, [TaskSpec("x", depends_on=("first",))]).tasks
    assert (state(engine, late), types(engine, late)) == (CANCELLED, ["submitted", "cancelled"])
    run(engine)
    assert flow_state(engine, made.flow) == FAILED


@row("fault: a cancel overwrites a completed run")
@each_case("ended", [SUCCEEDED, FAILED, CANCELLED])
@each_case("hard", [False, True], ids=["soft", "hard"])
def test_fault_a_run_that_has_ended_is_not_cancelled(
    engine: Engine, clock: VirtualClock, ended: str, hard: bool
) -> None:
    (move,) = (m for m in ENDS.values() if m.end == ended)
    made, _ = act(engine, clock, move)
    before = engine.flow_events(made.flow.id)
    with pytest.raises(IllegalTransition):
        engine.cancel_flow(made.flow.id, hard=hard)
    assert flow_state(engine, made.flow) == ended
    assert engine.flow_events(made.flow.id) == before


class Broken(Exception):
    """What a test breaks a transaction with."""


@row("fault: listeners see events that were rolled back")
@pytest.mark.parametrize("point", ["moved", "cascading", "settled"])
def test_fault_a_listener_never_sees_what_was_rolled_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    heard = Heard()
    engine.on_event(heard)
    made, held = one(engine, RUNNING)
    assert held is not None

    def break_there(reached: str) -> None:
        if reached == point:
            raise Broken(reached)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", break_there)
        with pytest.raises(OnetrayError, match=f"Broken: {point}"):
            engine.succeed(held)
    assert all_states(engine, made.flow) == (RUNNING, [RUNNING], [RUNNING])
    engine.succeed(held)
    stored = engine.flow_events(made.flow.id)
    assert heard.up_to(stored[-1]) == stored
    assert events_of(engine, made.flow).count("task.succeeded") == 1


@row("fault: a timeout never retries")
def test_fault_a_task_that_runs_too_long_is_tried_again(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(timeout_s=5, backoff_base_s=0, max_attempts=2, on_exhaustion="fail")
    made = new_run(engine, TaskSpec("x", policy=policy))
    for end in (QUEUED, FAILED):
        running(engine)
        clock.advance(5)
        settle(engine)
        assert state(engine, made.tasks[0]) == end
    assert types(engine, made.tasks[0]).count("retried") == 1
    assert flow_state(engine, made.flow) == FAILED


@row("fault: updates are lost under four processes")
def test_fault_four_processes_share_runs_and_lose_no_update(database_url: str) -> None:
    with engine_on(database_url) as engine:
        runs = [new_run(engine, *[TaskSpec("x")] * 30) for _ in range(3)]
        flows = [r.flow.id for r in runs]
        told = fleet.run_all(finish_flows, [(database_url, f"w{n}", flows) for n in range(4)], 60)
        done = [id_ for ids in told for id_ in ids]
        assert sorted(done) == sorted(t for r in runs for t in r.tasks)
        for made in runs:
            ended = engine.stage(made.stage)
            assert (flow_state(engine, made.flow), ended.counts.succeeded) == (SUCCEEDED, 30)
            assert events_of(engine, made.flow).count("flow.succeeded") == 1


def test_every_row_has_a_test() -> None:
    assert ticked_off(globals()) == list(ROWS)
    assert len(ROWS) == 24 + 3 + 4 + 9 + 14 + 4 + 15 + 6
