"""Ways to damage a database, and the checks that each of them breaks.

`@name` stands for the key of the task of that name in tests/support/task_samples.py, or of the first task of the flow
of that name in tests/support/flow_samples.py; `$name` for the key of the flow, `$name.2` for that of its second stage.
Every check must be broken by one. Each event has a row of its own (tests/support/single_rows.py).
"""

from typing import NamedTuple

NOTE = """
INSERT INTO onetray.event_batch (id, size, entity, ts, ns, fence, attempts, type, actor)
SELECT {id}, 1, key, updated_at, ns, fence, attempts, '{type}', 'user:ann'
FROM onetray.task WHERE key = @{name}
"""
MOVE = """
INSERT INTO onetray.event_batch (id, size, entity, ts, ns, version, fence, attempts, type, was, state, actor)
SELECT {id}, 1, {entity}, updated_at, ns, {version}, fence, attempts, '{type}', {was}, state, '{actor}'
FROM onetray.task WHERE key = @{name}
"""
FIRE = """
INSERT INTO onetray.schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, missed, open)
SELECT {key}, {at}, 0, '{outcome}', {job}, 'system:schedule', 1, 0, 0
"""
THE_SCHEDULE = "(SELECT key FROM onetray.schedule)"
NOBODY = 777777
LAST = 10**15


class Damage(NamedTuple):
    what: str
    sql: str
    breaks: set[str]


def task(name: str, change: str, *breaks: str) -> Damage:
    return Damage(f"{name}: {change}", f"UPDATE onetray.task SET {change} WHERE key = @{name}", set(breaks))


def event(name: str, version: int, change: str, *breaks: str) -> Damage:
    sql = f"UPDATE onetray.event_batch SET {change} WHERE entity = @{name} AND version = {version}"
    return Damage(f"{name} event {version}: {change}", sql, set(breaks))


def lease(name: str, change: str, *breaks: str) -> Damage:
    sql = f"UPDATE onetray.lease SET {change} WHERE worker = 'worker-of-{name}'"
    return Damage(f"lease of {name}: {change}", sql, set(breaks))


def letter(name: str, change: str, *breaks: str) -> Damage:
    return Damage(
        f"letter of {name}: {change}", f"UPDATE onetray.dead_letter SET {change} WHERE task = @{name}", set(breaks)
    )


def sql(what: str, text: str, *breaks: str) -> Damage:
    return Damage(what, text, set(breaks))


def flow(name: str, change: str, *breaks: str) -> Damage:
    return Damage(f"flow {name}: {change}", f"UPDATE onetray.flow SET {change} WHERE key = ${name}", set(breaks))


def stage(name: str, ord_: int, change: str, *breaks: str) -> Damage:
    sql = f"UPDATE onetray.stage SET {change} WHERE key = ${name}.{ord_}"
    return Damage(f"stage {name}.{ord_}: {change}", sql, set(breaks))


def told_last(what: str, type_: str, entity: str, *breaks: str) -> Damage:
    """Put an event at the end of the log. It must be the last one of its entity."""
    sql = f"UPDATE onetray.event_batch SET id = {LAST} WHERE entity = {entity} AND type = '{type_}'"
    return Damage(what, sql, {*breaks, "13 event_found", "13 event_listed", "13 flow_batch", "13 flow_lists"})


TASK_DAMAGES = [
    task("assigned", "owner = NULL, lease = NULL", "1 held"),
    task("queued", "owner = 'x', lease = (SELECT min(key) FROM onetray.lease)",
        "1 held", "1 lease_of_owner", "1 lease_lists"),
    sql("no lease", "DELETE FROM onetray.lease WHERE worker = 'worker-of-assigned'", "1 lease_there"),
    lease("assigned", "worker = 'thief'", "1 lease_of_owner"),
    lease("assigned", "tasks = '[1]'", "1 lease_lists"),
    lease("assigned", "tasks = 'nonsense'", "1 lease_lists", "12 lease_readable"),
    sql("fence from 2", "UPDATE onetray.event_batch SET fence = 2 WHERE entity = @done; "
        "UPDATE onetray.task SET fence = 2 WHERE key = @done", "2 fence_steps"),
    sql("reopened under the old fence", "UPDATE onetray.event_batch SET fence = 1 WHERE entity = @released; "
        "UPDATE onetray.task SET fence = 1 WHERE key = @released", "2 fence_steps", "2 never_back"),
    task("done", "fence = 2", "2 fence_of_row"),
    sql("note of the future", "UPDATE onetray.event_batch SET fence = 9 WHERE type = 'task.priority_set'",
        "2 note_fence"),
    sql("lost event", "DELETE FROM onetray.event_batch WHERE entity = @done AND version = 2", "3 contiguous",
        "3 version_of_row", "13 event_found"),
    sql("lost last event", "DELETE FROM onetray.event_batch WHERE entity = @blocked AND version = 3",
        "3 version_of_row", "13 event_found"),
    sql("lost first event", "DELETE FROM onetray.event_batch WHERE entity = @done AND version = 1", "3 contiguous",
        "3 version_of_row", "13 event_found"),
    task("done", "version = 9", "3 version_of_row"),
    task("done", "events = 'nonsense'", "13 event_listed"),
    sql("page of nobody", f"INSERT INTO onetray.event_page (entity, version, events) VALUES ({NOBODY}, 1, '1')",
        "12 page_known"),
    sql("page of another", "INSERT INTO onetray.event_page (entity, version, events) SELECT key, 1, '7' "
        "FROM onetray.task WHERE key = @done", "13 event_found", "13 event_listed"),
    task("done", "events = events || ',7'", "13 event_found"),
    task("queued", "events = (SELECT min(o.events) FROM onetray.task AS o WHERE o.correlation_id = 'timed')",
        "13 event_found", "13 event_listed"),
    sql("a version twice", MOVE.format(id=LAST, entity="key", version="version", type="task.submitted", was="NULL",
        actor="user:ann", name="queued"), "3 one_version", "3 version_of_row", "13 event_listed"),
    sql("transition as note", NOTE.format(id=LAST, type="task.claimed", name="queued"), "3 shape"),
    event("timed", 1, "state = NULL", "3 shape", "4 declared", "4 state_of_row"),
    sql("no events", "DELETE FROM onetray.event_batch WHERE entity = @queued AND version IS NOT NULL",
        "3 unrecorded", "13 event_found"),
    event("blocked", 3, "was = 'running'", "4 follows"),
    event("failed", 4, "type = 'task.succeeded'", "4 declared", "16 folded"),
    event("done", 4, "actor = 'user:ann'", "4 actor"),
    event("done", 2, "actor = 'worker'", "4 actor"),
    event("done", 2, "actor = 'er:w'", "4 actor"),
    task("done", "state = 'failed'", "4 state_of_row"),
    task("cancelled", "state = 'odd'", "4 known_state", "4 state_of_row", "5 one_end", "8 finished"),
    sql("ended twice", MOVE.format(id=LAST, entity="key", version="version + 1", type="task.succeeded",
        was="state", actor="worker:w", name="done") + "; UPDATE onetray.task SET version = 5 WHERE key = @done",
        "4 declared", "5 after_end", "5 one_end", "13 event_listed"),
    event("second", 3, "ts = ts - 100000000", "8 time_back"),
    task("done", "created_at = created_at - 1", "8 created_at"),
    task("done", "started_at = created_at", "8 started_at"),
    task("running", "started_at = NULL", "8 started_at"),
    task("done", "finished_at = finished_at + 1", "8 finished_at"),
    task("done", "created_at = finished_at + 1", "8 created_at", "8 times"),
    task("done", "finished_at = NULL", "8 finished", "8 finished_at"),
    task("queued", "finished_at = run_at", "8 finished", "8 finished_at"),
    task("done", "run_at = finished_at + 1", "9 claimed_early"),
    sql("not rescheduled", "DELETE FROM onetray.event_batch WHERE entity = @moved AND type = 'task.rescheduled'",
        "9 claimed_before_retry"),
    sql("rescheduled", """UPDATE onetray.event_batch SET payload = '{"run_at":9000000000000000}'
        WHERE entity = @moved AND type = 'task.rescheduled'""", "9 claimed_before_rescheduled"),
    sql("cancel before the claim", NOTE.format(id=-1, type="task.cancel_requested", name="assigned"),
        "9 claimed_after_cancel", "16 cancel_at"),
    task("asked", "cancel_at = NULL", "16 cancel_at"),
    task("queued", "cancel_at = run_at", "9 cancelled_yet_waiting"),
    task("blocked", "cancel_at = run_at", "9 cancelled_yet_waiting"),
    sql("key of nobody", f"UPDATE onetray.idempotency SET job = {NOBODY}", "10 key_of_job"),
    sql("key of another kind", "UPDATE onetray.idempotency SET kind = kind + 1", "10 key_of_job"),
    sql("no body hash", "UPDATE onetray.idempotency SET body_hash = ''", "10 body_hash"),
    sql("unique key of nobody", f"UPDATE onetray.unique_key SET job = {NOBODY} WHERE job = @quick", "12 unique_known"),
    sql("unique key of another kind", "UPDATE onetray.unique_key SET kind = kind + 1 WHERE job = @quick",
        "12 unique_known"),
    sql("window of nobody", f"UPDATE onetray.submit_window SET job = {NOBODY}", "12 window_known"),
    sql("window of another kind", "UPDATE onetray.submit_window SET kind = kind + 1", "12 window_known"),
    sql("window with more submits", "UPDATE onetray.submit_window SET replaced = replaced + 1", "16 window_replaced"),
    sql("label of nobody", f"UPDATE onetray.label SET job = {NOBODY} WHERE job = @quick", "12 label_known"),
    sql("label of another namespace", "UPDATE onetray.label SET ns = 99 WHERE job = @quick", "12 label_known"),
    sql("alias of nobody", f"UPDATE onetray.alias SET key = {NOBODY} WHERE key = @quick", "12 alias_known"),
    sql("alias of another namespace", "UPDATE onetray.alias SET ns = 99 WHERE key = @quick", "12 alias_known"),
    sql("alias of another entity", "UPDATE onetray.alias SET entity = 'flow' WHERE key = @quick", "12 alias_known"),
    sql("letter of the living", """INSERT INTO onetray.dead_letter (task, ns, created_at, reason_code, stage,
        last_error, attempts, correlation_id, payload_hash) SELECT @cancelled, ns, created_at, reason_code, stage,
        last_error, attempts, 'cancelled', payload_hash FROM onetray.dead_letter WHERE task = @unclaimed;
        UPDATE onetray.task SET payload = (SELECT payload FROM onetray.task WHERE key = @unclaimed)
        WHERE key = @cancelled""", "11 letter_of_dead"),
    sql("no letter", "DELETE FROM onetray.dead_letter WHERE task = @unclaimed", "11 letter_missing"),
    letter("dead", "reason_code = 'bad luck'", "11 reason_code"),
    letter("dead", "stage = 'left'", "11 reason_code"),
    letter("dead", "attempts = 9", "11 letter_facts"),
    letter("dead", "correlation_id = ''", "11 letter_facts"),
    letter("dead", "last_error = ''", "11 letter_facts"),
    letter("dead", "payload_hash = ''", "11 payload_hash"),
    task("dead", "payload = '{}'", "11 payload_hash"),
    letter("dead", "last_owner = NULL", "11 last_owner"),
    letter("dead", "last_owner = 'other'", "11 last_owner"),
    letter("dead", "last_lease_expires_at = NULL", "11 last_owner"),
    letter("unclaimed", "last_owner = 'w'", "11 last_owner"),
    *(task("done", f"{name} = 999", "12 names") for name in ("queue", "kind", "policy")),
    sql("ready of nobody", f"INSERT INTO onetray.ready (queue, rank, task, kind) VALUES (1, 0, {NOBODY}, 1)",
        "12 ready_known"),
    sql("log of nobody", "INSERT INTO onetray.log (task, cursor, ts, attempt, level, line) "
        f"VALUES ({NOBODY}, 1, 1, 1, 'info', 'x')", "12 log_known"),
    sql("due for nobody", f"INSERT INTO onetray.due (at, task, what, fence) VALUES (1, {NOBODY}, 'run', 1)",
        "12 due_known"),
    sql("due for what", "INSERT INTO onetray.due (at, task, what, fence) VALUES (1, @queued, 'odd', 1)",
        "12 due_known"),
    sql("due too early", "INSERT INTO onetray.due (at, task, what, fence) VALUES (1, @queued, 'run', 9)",
        "12 due_fence"),
    sql("progress of nobody", f"INSERT INTO onetray.progress (task, at, attempt, done) VALUES ({NOBODY}, 1, 1, 1)",
        "12 progress_known"),
    sql("checkpoint of nobody", "INSERT INTO onetray.checkpoint (task, at, attempt, body) "
        f"VALUES ({NOBODY}, 1, 1, '1')", "12 checkpoint_known"),
    sql("breaker of nobody", f"INSERT INTO onetray.breaker (kind, recent) VALUES ({NOBODY}, '[]')", "12 breaker_known"),
    sql("breaker that never ends", "INSERT INTO onetray.breaker (kind, recent, opened_at, why, opened_by) "
        "SELECT min(key), '[]', 1, 'x', 'ann' FROM onetray.kind", "15 breaker_ends"),
    sql("breaker that ends before it begins", "INSERT INTO onetray.breaker (kind, recent, opened_at, open_until, why, "
        "opened_by) SELECT min(key), '[]', 2, 1, 'x', 'ann' FROM onetray.kind", "15 breaker_ends"),
    lease("done", f"tasks = '[{NOBODY}]'", "12 lease_known"),
    lease("done", "tasks = '{\"a\":1}'", "12 lease_readable"),
    sql("event of nobody", MOVE.format(id=LAST, entity=NOBODY, version=1, type="task.submitted", was="NULL",
        actor="user:x", name="queued"), "13 unknown_entity"),
    sql("deleted and still there", NOTE.format(id=LAST, type="job.deleted", name="queued"), "13 deleted_gone"),
    sql("a pause of a task", NOTE.format(id=LAST, type="queue.paused", name="queued"), "13 audit_facts"),
    sql("a pause of nothing", "INSERT INTO onetray.event_batch (id, size, entity, ts, ns, fence, attempts, type, "
        f"actor, payload) SELECT {LAST}, 1, 0, 1, min(key), 0, 0, 'queue.paused', 'user:ann', '{{}}' "
        "FROM onetray.namespace",
        "13 audit_facts"),
    event("done", 2, "job = 1", "13 belongs"),
    event("done", 2, "ns = 99", "13 belongs"),
    event("done", 3, "id = -id", "13 id_order", "13 event_found", "13 event_listed"),
    task("done", "max_attempts = 0", "15 budget"),
    task("retried", "max_attempts = attempts", "15 budget"),
    task("queued", "spared = 6", "15 spared"),
    task("blocked", "held_by = NULL", "15 held_by"),
    task("queued", "held_by = 'ann'", "15 held_by"),
    sql("ready of a done task", "INSERT INTO onetray.ready (queue, rank, task, kind) "
        "SELECT queue, -priority, key, kind FROM onetray.task WHERE key = @done", "15 ready_matches"),
    sql("ready as another kind", "UPDATE onetray.ready SET kind = 99 WHERE task = @released", "15 ready_matches"),
    sql("ready out of order", "UPDATE onetray.ready SET rank = 5 WHERE task = @released",
        "15 ready_matches", "15 stuck"),
    sql("not ready", "DELETE FROM onetray.ready WHERE task = @released", "15 stuck"),
    sql("not due", "DELETE FROM onetray.due WHERE task = @delayed", "15 stuck"),
    sql("due for the last attempt", "UPDATE onetray.due SET fence = 1 WHERE task = @retried", "15 stuck"),
    sql("ready early", "INSERT INTO onetray.ready (queue, rank, task, kind) "
        "SELECT queue, -priority, key, kind FROM onetray.task WHERE key = @delayed", "15 ready_early"),
    *(sql(f"no {what} timer", f"DELETE FROM onetray.due WHERE task = @{name} AND what = '{what}'",
        f"15 {what}_timer")
        for name, what in (("asked", "cancel"), ("running", "timeout"), ("timed", "queue_ttl"),
            ("running", "deadline"), ("timed", "deadline"))),
    sql("another owner", "UPDATE onetray.task SET owner = 'thief' WHERE key = @assigned; "
        "UPDATE onetray.lease SET worker = 'thief' WHERE worker = 'worker-of-assigned'", "16 owner"),
    task("done", "updated_at = updated_at + 1", "16 updated_at"),
    task("blocked", "held_why = 'another reason'", "16 folded"),
    task("dead", "error = '{}'", "16 folded"),
    task("done", "attempts = 0", "16 attempts_of_row"),
    sql("attempts in steps of two", "UPDATE onetray.event_batch SET attempts = 2 WHERE entity = @done AND version > 1; "
        "UPDATE onetray.task SET attempts = 2 WHERE key = @done", "16 attempts_step"),
]  # fmt: skip

FLOW_DAMAGES = [
    task("done", f"stage = {NOBODY}", "6 member_of"),
    stage("going", 3, "state = 'skipped'",
        "4 state_of_parent", "5 one_end_of_parent", "6 left_behind", "7 flow_counts"),
    sql("dependency met too late", "UPDATE onetray.task SET unmet = 2 WHERE unmet = 1", "6 unmet"),
    sql("dependency met too soon", "UPDATE onetray.task SET unmet = 0 WHERE unmet = 1", "6 unmet", "15 stuck"),
    stage("going", 2, "total = total + 1, cancelled = cancelled + 1", "6 stage_counts"),
    stage("gate", 1, "blocked = 1", "6 stage_counts"),
    stage("whole", 1, "ns = 99", "6 stage_of_flow", "6 member_of", "13 belongs"),
    stage("grows", 1, "sealed = 2", "6 done_yet_open"),
    stage("whole", 1, "partly = 1", "6 stage_counts", "7 stage_decided"),
    flow("whole", "stages = stages + 1, skipped = skipped + 1", "7 flow_counts"),
    flow("stopping", "cancelled = 1, stages_open = 0", "7 flow_counts"),
    stage("whole", 2, "ord = 5", "6 stage_orders"),
    flow("going", "current = $going.1", "7 current"),
    flow("grown", "sealed = 2", "7 flow_state"),
    flow("never", "ending = NULL", "7 flow_end"),
    told_last("opened before the one before ended", "stage.succeeded", "$going.1", "6 in_order"),
    stage("whole", 1, "state = 'failed'", "4 state_of_parent", "6 in_order", "7 flow_counts", "7 stage_decided"),
    told_last("claimed before its stage opened", "stage.opened", "$early.1", "6 claimed_early_in_flow"),
    told_last("claimed after the pause", "task.claimed", "@paused", "9 claimed_while_paused"),
    told_last("claimed after the wait", "task.claimed", "@gate", "9 claimed_while_waiting"),
    told_last("claimed after the flow's cancel", "task.claimed", "@stopping", "9 claimed_after_flow_cancel",
        "9 claimed_after_cancel"),
    sql("no flow_deadline timer", "DELETE FROM onetray.due WHERE what = 'flow_deadline'", "15 flow_deadline_timer"),
    sql("no approval timer", "DELETE FROM onetray.due WHERE what = 'approval'", "15 approval_timer"),
    sql("approval timer at another time", "UPDATE onetray.due SET at = at + 1 WHERE what = 'approval'",
        "15 approval_timer"),
    stage("going", 3, "ending = 'skipped'", "15 cascade_timer"),
    stage("early", 1, "opened_to = 0", "15 opening_timer"),
    flow("never", "deleted_at = 1", "15 deletion_timer"),
    sql("ready before its turn", "INSERT INTO onetray.ready (queue, rank, task, kind) "
        "SELECT queue, -priority, key, kind FROM onetray.task WHERE stage = $going.3", "9 held_back"),
    sql("ready while its flow is paused", "INSERT INTO onetray.ready (queue, rank, task, kind) "
        "SELECT queue, -priority, key, kind FROM onetray.task WHERE stage = $paused.1 AND state = 'queued'",
        "9 held_back"),
    sql("not ready in its turn", "DELETE FROM onetray.ready WHERE task IN "
        "(SELECT key FROM onetray.task WHERE stage = $going.2)", "15 stuck"),
    flow("whole", f"context = {NOBODY}", "12 context_there"),
    sql("context of another namespace", "UPDATE onetray.context SET ns = 99", "12 context_known"),
    sql("context before its parent", "UPDATE onetray.context SET parent = key", "12 context_parent"),
    sql("context without its parent", f"UPDATE onetray.context SET parent = {NOBODY}", "12 context_parent"),
    sql("context of a task that is nobody's", f"UPDATE onetray.task SET context = {NOBODY} WHERE stage = $whole.1",
        "12 context_of_task"),
    sql("context of nobody", f"UPDATE onetray.context SET job = {NOBODY}", "12 context_known", "12 context_there",
        "12 context_of_task"),
    sql("compensates nothing", "UPDATE onetray.flow SET compensates = NULL", "12 compensation_linked"),
    sql("dependency of single tasks", "INSERT INTO onetray.dependency (needs, task) VALUES (@done, @quick)",
        "12 dependency_known"),
    sql("dependency on nobody", f"INSERT INTO onetray.dependency (needs, task) VALUES ({NOBODY}, @whole)",
        "12 dependency_known"),
    stage("whole", 2, "version = 9", "3 version_of_parent"),
    sql("lost event of a stage", "DELETE FROM onetray.event_batch WHERE entity = $whole.1 AND version = 1",
        "3 contiguous", "3 version_of_parent", "13 event_found", "13 flow_batch"),
    sql("no events of a flow", "DELETE FROM onetray.event_batch WHERE entity = $never AND version IS NOT NULL",
        "3 unrecorded_parent", "13 event_found", "13 flow_batch"),
    sql("no events of a stage", "DELETE FROM onetray.event_batch WHERE entity = $going.3", "3 unrecorded_parent",
        "13 event_found", "13 flow_batch"),
    stage("going", 3, "state = 'waiting'", "4 state_of_parent", "12 waiting_listed"),
    sql("no longer listed as waiting", "DELETE FROM onetray.waiting WHERE key = @blocked", "12 waiting_listed"),
    sql("listed as waiting for another state", "UPDATE onetray.waiting SET state = 'x' WHERE key = $gate.1",
        "12 waiting_listed"),
    sql("counted, but not in the log", "INSERT INTO onetray.statistic (ns, span, at, type, bucket, number) "
        "VALUES (1, 60, 1740000000000000, 'task.claimed', 0, 1), (1, 3600, 1740000000000000, 'task.claimed', 0, 1)",
        "18 counted_once"),
    sql("in the log, but not counted", "UPDATE onetray.statistic_cursor SET removed_at = 0, "
        "upto = (SELECT min(id) FROM onetray.event_batch)", "18 counted_once"),
    task("done", "slots = ',1,'", "20 slots_held"),
    task("slotted", "slots = NULL", "20 slots_counted"),
    task("laned", f"lane = {NOBODY}", "12 lane_known", "15 ready_matches", "15 stuck"),
    sql("a slot of nobody", "UPDATE onetray.limit_bucket SET running = 2", "20 slots_counted", "20 limit_kept"),
    sql("more than the limit", "UPDATE onetray.limit_rule SET most = 0", "20 limit_kept"),
    sql("blocked by a limit that has room", "UPDATE onetray.limit_rule SET most = 2", "20 lane_blocked"),
    sql("a lane that nobody serves", "UPDATE onetray.lane SET state = 0, blocked_on = NULL", "20 lane_open"),
    sql("a lane out of order", "UPDATE onetray.lane SET rank = 5", "20 lane_open"),
    sql("a limit that claims do not look at", "UPDATE onetray.queue SET limited = 0", "20 lane_limited",
        "20 limit_marked"),
    sql("a limit that is never in force", "UPDATE onetray.limit_rule SET counted = 0", "20 limit_in_force"),
    sql("an hour without its minutes", "INSERT INTO onetray.statistic (ns, span, at, type, bucket, number) "
        "VALUES (1, 3600, 1740000000000000, 'run_time', 80, 1)", "18 hours_add_up"),
    sql("a schedule that nobody looks at", "UPDATE onetray.schedule SET look_at = NULL", "19 schedule_looks"),
    sql("a fire of no schedule", FIRE.format(key=NOBODY, at=1, outcome="queued", job="NULL"), "19 fire_known"),
    sql("a submitted fire without a job", FIRE.format(key=THE_SCHEDULE, at=1, outcome="submitted", job="NULL"),
        "19 fire_job"),
    sql("two fires with one job", FIRE.format(key=THE_SCHEDULE, at="n.n", outcome="submitted",
        job="(SELECT id FROM onetray.task WHERE key = @done)") + " FROM (SELECT 1 AS n UNION ALL SELECT 2) AS n",
        "19 fire_once"),
    sql("a fire that is still to come", FIRE.format(key=THE_SCHEDULE, outcome="skipped_missed", job="NULL",
        at="(SELECT next_fire_at FROM onetray.schedule)"), "19 fire_ahead"),
    flow("never", "state = 'failed'", "4 state_of_parent"),
    sql("flow ended twice", f"""INSERT INTO onetray.event_batch (id, size, entity, ts, ns, version, fence, attempts,
        type, was, state, actor) SELECT {LAST}, 1, key, updated_at, ns, version + 1, 0, 0, 'flow.cancelled',
        state, state, 'user:ann' FROM onetray.flow WHERE key = $never;
        UPDATE onetray.flow SET version = version + 1 WHERE key = $never""",
        "4 declared", "5 after_end", "5 one_end_of_parent", "13 event_listed", "13 flow_lists"),
    stage("whole", 1, "finished_at = finished_at + 1", "8 finished_parent"),
    flow("whole", "updated_at = updated_at + 1", "16 updated_parent"),
    stage("whole", 1, "started_at = NULL", "16 started_parent"),
    flow("whole", "created_at = created_at - 1", "8 created_at"),
    sql("fence of a stage", "UPDATE onetray.event_batch SET fence = 1 WHERE entity = $whole.1 AND version = 1",
        "2 fence_steps"),
    sql("started by a user", "UPDATE onetray.event_batch SET actor = 'user:ann' WHERE entity = $whole AND version = 3",
        "4 actor"),
    sql("keys of a flow of another kind", "UPDATE onetray.flow SET kind = kind + 1 WHERE key = $whole", "10 key_of_job",
        "12 unique_known"),
    sql("label of a member", "UPDATE onetray.label SET job = @whole WHERE job = $whole", "12 label_known"),
]  # fmt: skip

DAMAGES = TASK_DAMAGES + FLOW_DAMAGES
