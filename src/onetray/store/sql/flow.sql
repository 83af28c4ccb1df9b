-- Flows and stages. A transaction that changes a flow, its stages or their tasks holds the flow's lock, except a claim,
-- which skips locked tasks.

-- name: flows_of_ids
-- row: KeyRow
SELECT CAST(id AS text) AS id, key, key AS job FROM onetray.flow WHERE id {in:ids:uuid}

-- name: flows_of_stages
-- row: KeyRow
SELECT CAST(id AS text) AS id, key, job FROM onetray.stage WHERE id {in:ids:uuid}

-- name: flows_of_tasks
-- Needs no lock: a task never changes its flow.
SELECT DISTINCT job FROM onetray.task WHERE key {in:keys:bigint} AND job <> key

-- name: lock_flows
-- row: FlowRow
SELECT l.*, {clock} AS seen_at FROM ({select_flow_row} {for_no_key_update}) AS l

-- name: lock_free_flows
-- row: FlowRow
-- Those that no other transaction has locked: a claim, which holds tasks already, must not wait.
SELECT l.*, {clock} AS seen_at FROM ({select_flow_row} {skip_locked_flow}) AS l

-- word: select_flow_row
SELECT flow.key, flow.ns, flow.kind, CAST(flow.id AS text) AS id, flow.state, flow.version, flow.roll_up, flow.sealed,
    flow.started_at, flow.current, flow.ending, flow.ending_how, flow.ending_why, flow.ending_by, flow.stages,
    flow.stages_open, flow.succeeded, flow.partial, flow.failed, flow.cancelled, flow.skipped, flow.ignored,
    flow.chained, flow.amends, flow.context, flow.compensates, flow.correlation_id, flow.trace, flow.priority,
    flow.deleted_at, flow.updated_at
FROM onetray.flow WHERE flow.key {in:keys:bigint} ORDER BY flow.key

-- name: running_stages
-- Those that run, as their flows do. Needs no lock of the flow for the stage of a task that a claim has locked: who ends a
-- stage, or makes it wait, deletes the ready rows of its tasks, and so waits for the claim.
SELECT s.key FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job
WHERE s.key {in:keys:bigint} AND s.state = :running AND f.state = :running

-- name: stages_of_tasks
-- row: StageRow
{select_stage_row} WHERE s.key IN (SELECT t.stage FROM onetray.task AS t WHERE t.key {in:keys:bigint})

-- name: stages_by_key
-- row: StageRow
{select_stage_row} WHERE s.key {in:keys:bigint}

-- name: stages_of_flow
-- row: StageRow
{select_stage_row} WHERE s.job = :job ORDER BY s.ord

-- name: unended_stages
-- row: StageRow
{select_stage_row} WHERE s.job = :job AND s.state IN ({stage.unended}) ORDER BY s.ord

-- name: next_stage
-- row: StageRow
{select_stage_row} WHERE s.job = :job AND s.ord > :ord AND s.state IN ({stage.unended}) ORDER BY s.ord LIMIT 1

-- name: any_started
SELECT 1 FROM onetray.stage AS s WHERE s.job = :job AND s.started_at IS NOT NULL LIMIT 1

-- name: stage_by_name
-- row: StageRow
{select_stage_row} WHERE s.job = :job AND s.name = :name

-- name: names_of_stages
SELECT s.name FROM onetray.stage AS s WHERE s.job = :job

-- word: select_stage_row
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s

-- name: insert_flow
-- A retry or a compensation has the redaction policy of its original.
INSERT INTO onetray.flow (key, job, ns, kind, version, sealed, created_at, updated_at, deadline_at, stages,
    stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, state, roll_up, context,
    retry_of, compensates, policy, id, correlation_id, trace, tracestate, priority, data, metadata, events)
SELECT b.key, b.key, b.ns, b.kind, 1, b.sealed, b.at, b.at, b.deadline_at, b.stages, b.stages, 0, 0, 0, 0, 0, 0, b.chained,
    b.amends, b.state, b.roll_up, b.context, b.retry_of, b.compensates,
    coalesce(b.policy, (SELECT f.policy FROM onetray.flow AS f WHERE f.key = coalesce(b.retry_of, b.compensates))),
    b.id, b.correlation_id, b.trace, b.tracestate, b.priority, b.data, b.metadata, {event_id} {from_batch}

-- name: insert_stage
INSERT INTO onetray.stage (key, job, ns, ord, version, sealed, takes_more, gate, created_at, updated_at, carried_from,
    total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, state, name,
    on_failure, collect, condition, compensate, approval, id, correlation_id, trace, tracestate, type, data, metadata,
    result, metrics, events)
SELECT b.key, b.job, b.ns, b.ord, 1, b.sealed, b.takes_more, b.gate, b.at, b.at, b.carried_from, b.total, b.total, 0, 0, 0, 0,
    0, 0, 0, 0, b.state, b.name, b.on_failure, b.collect, b.condition, b.compensate, b.approval, b.id, b.correlation_id,
    b.trace, b.tracestate, b.type, b.data, b.metadata, b.result, b.metrics, {event_id} {from_batch}

-- name: save_stage
-- All columns of a stage that change, except its state.
UPDATE onetray.stage SET sealed = b.sealed, opened_to = b.opened_to, opened_at = b.opened_at, due_at = b.due_at,
    ending = b.ending,
    ending_why = b.ending_why, ending_how = b.ending_how, deciding = b.deciding, total = b.total, open = b.open, blocked = b.blocked,
    waiting_input = b.waiting_input, succeeded = b.succeeded, partly = b.partly, failed = b.failed,
    dead_lettered = b.dead_lettered, cancelled = b.cancelled, redriven = b.redriven, retrying = b.retrying,
    metrics = b.metrics, error_count = b.error_count
{from_batch} WHERE stage.key = b.key

-- name: errors_of_stages
SELECT key, errors FROM onetray.stage WHERE key {in:keys:bigint}

-- name: set_errors
UPDATE onetray.stage SET errors = b.errors {from_batch} WHERE stage.key = b.key

-- name: names_of_tasks
-- row: TaskNameRow
SELECT t.key, CAST(t.id AS text) AS id, t.name FROM onetray.task AS t WHERE t.key {in:keys:bigint}

-- name: set_answer
UPDATE onetray.stage SET answer = b.answer {from_batch} WHERE stage.key = b.key

-- name: save_flow
UPDATE onetray.flow SET sealed = b.sealed, current = b.current, ending = b.ending, ending_how = b.ending_how,
    ending_why = b.ending_why, ending_by = b.ending_by, stages = b.stages, stages_open = b.stages_open,
    succeeded = b.succeeded, partial = b.partial, failed = b.failed, cancelled = b.cancelled, skipped = b.skipped,
    ignored = b.ignored, chained = b.chained, amends = b.amends, context = b.context, priority = b.priority
{from_batch} WHERE flow.key = b.key

-- name: set_flow_metadata
UPDATE onetray.flow SET metadata = b.metadata {from_batch} WHERE flow.key = b.key

-- name: set_stage_metadata
UPDATE onetray.stage SET metadata = b.metadata {from_batch} WHERE stage.key = b.key

-- name: set_priorities
-- The queued tasks of a flow. Those that are held keep their place: a claim has taken them.
UPDATE onetray.task SET priority = :priority
WHERE task.stage IN (SELECT s.key FROM onetray.stage AS s WHERE s.job = :job) AND task.state IN ({task.first})

-- name: set_ranks
-- Of those of them that are claimable. The flow is locked: nobody adds to these meanwhile.
UPDATE onetray.ready SET rank = -CAST(:priority AS integer)
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage
WHERE s.job = :job AND t.state IN ({task.first})
    AND ready.queue = {line} AND ready.rank = -t.priority AND ready.task = t.key AND ready.kind = t.kind
RETURNING ready.queue, ready.task

-- name: set_compensation
UPDATE onetray.flow SET compensation = b.compensation {from_batch} WHERE flow.key = b.key

-- name: next_to_open
-- The range of tasks that the next step opens.
SELECT count(*), max(n.key) FROM (
    SELECT t.key FROM onetray.task AS t WHERE {after_in_stage} ORDER BY t.stage, t.key LIMIT :limit
) AS n

-- name: open_ready
-- row: OpenedRow
-- Make the tasks of a stage claimable that have no other hold.
INSERT INTO onetray.ready (queue, rank, task, kind)
SELECT {line}, -t.priority, t.key, t.kind FROM onetray.task AS t
WHERE {in_span} AND t.state IN ({task.first}) AND t.unmet = 0
    AND t.control = 0 AND t.run_at <= :at
ON CONFLICT DO NOTHING
RETURNING queue, rank, task

-- name: open_due
-- Skips existing rows: a janitor may have locked one and wait for the flow.
INSERT INTO onetray.due (at, task, what, fence)
SELECT t.run_at, t.key, :what, t.fence FROM onetray.task AS t
WHERE {in_span} AND t.state IN ({task.first}) AND t.unmet = 0
    AND t.control = 0 AND t.run_at > :at AND NOT EXISTS (SELECT 1 FROM onetray.due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :what AND d.fence = t.fence)
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence

-- name: due_there
SELECT 1 FROM onetray.due AS d WHERE d.at = :at AND d.task = :key AND d.what = :what AND d.fence = :fence

-- name: policies_of_stage
SELECT DISTINCT t.policy FROM onetray.task AS t
WHERE {in_span} AND t.state IN ({task.first})

-- name: open_ttl
INSERT INTO onetray.due (at, task, what, fence)
SELECT {greatest}(t.run_at, :at) + :ttl, t.key, :what, t.fence FROM onetray.task AS t
WHERE {in_span} AND t.state IN ({task.first}) AND t.unmet = 0
    AND t.control = 0 AND t.policy = :policy
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence

-- name: queued_of_stage
-- row: ReadyRow
-- Tasks that may have a ready row to delete. Due rows stay: a janitor may have locked them and wait for the flow.
SELECT t.key, {line} AS queue, -t.priority AS rank, t.kind FROM onetray.task AS t
WHERE {after_in_stage} AND t.state IN ({task.first}) AND t.unmet = 0 AND t.control <= :most
ORDER BY t.stage, t.key LIMIT :limit

-- name: unheld_tasks
-- Open tasks of a stage that no worker holds.
SELECT t.key FROM onetray.task AS t
WHERE {all_in_stage} AND t.state IN ({task.unheld}) ORDER BY t.stage, t.key LIMIT :limit

-- name: unended_tasks
SELECT t.key FROM onetray.task AS t
WHERE {all_in_stage} AND t.state IN ({task.unended}) ORDER BY t.stage, t.key LIMIT :limit

-- name: tasks_without_cancel
-- Open tasks of a stage without a cancel request.
SELECT t.key FROM onetray.task AS t
WHERE {all_in_stage} AND t.state IN ({task.unended}) AND t.cancel_at IS NULL ORDER BY t.stage, t.key LIMIT :limit

-- name: dependents
-- row: DependentRow
SELECT d.needs, d.task, CAST(t.id AS text) AS id FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs
WHERE d.needs {in:keys:bigint}

-- name: meet
UPDATE onetray.task SET unmet = task.unmet - b.met {from_batch} WHERE task.key = {key_of_b}

-- name: insert_dependency
INSERT INTO onetray.dependency (needs, task) SELECT b.needs, b.task {from_batch} WHERE true ON CONFLICT DO NOTHING

-- name: members_named
-- row: NamedMemberRow
-- Tasks of a flow, by name or id, that a new task can depend on.
SELECT t.key, t.name, CAST(t.id AS text) AS id, t.state, s.ord FROM onetray.task AS t
    JOIN onetray.stage AS s ON s.key = t.stage
WHERE t.job = :job AND t.name {in:names:text} AND t.control = 0
UNION SELECT t.key, t.name, CAST(t.id AS text), t.state, s.ord FROM onetray.task AS t
    JOIN onetray.stage AS s ON s.key = t.stage
WHERE t.id {in:ids:uuid} AND t.job = :job AND t.control = 0

-- name: results_of_stage
-- row: ResultRow
-- In the order of the tasks' keys.
SELECT t.key, CAST(t.id AS text) AS id, t.name, t.state, t.result FROM onetray.task AS t
WHERE {after_in_stage} AND t.control = 0 ORDER BY t.stage, t.key LIMIT :limit

-- name: size_of_results
SELECT coalesce(sum(length(t.result)), 0) FROM onetray.task AS t WHERE t.stage = :stage AND t.control = 0

-- name: size_before
SELECT coalesce(sum(length(s.result)), 0) FROM onetray.stage AS s WHERE s.job = :job AND s.ord < :ord

-- name: results_before
-- The results of all earlier stages.
SELECT s.name, s.result FROM onetray.stage AS s
WHERE s.job = :job AND s.ord < :ord AND s.state IN ({stage.terminal}) ORDER BY s.ord

-- name: results_needed
-- row: NeededResultRow
SELECT CAST(t.id AS text) AS id, t.name, t.result FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs
WHERE d.task = :task ORDER BY t.key

-- name: specs_of_stage
-- row: StageSpecsRow
SELECT condition, approval, answer FROM onetray.stage WHERE key = :key

-- name: data_of_flow
SELECT data FROM onetray.flow WHERE key = :key

-- name: to_compensate
-- row: CompensationRow
-- The stages to compensate, the last one first.
SELECT CAST(s.id AS text) AS id, s.name, s.compensate, s.result FROM onetray.stage AS s
WHERE s.job = :job AND s.compensate IS NOT NULL AND (s.succeeded > 0 OR s.carried_from IS NOT NULL) ORDER BY s.ord DESC

-- name: successor_in_stage
-- row: MemberRow
SELECT t.key, t.stage, CAST(t.id AS text) AS id, t.name, t.state FROM onetray.task AS t
WHERE t.stage = :stage AND t.retry_of = :key

-- name: members_to_copy
-- row: TaskToCopy
-- The tasks of a stage that a retry copies: not those that were redriven or spawned from a task that it copies.
{select_task_to_copy} WHERE {after_in_stage} AND t.control = 0
    AND NOT EXISTS (SELECT 1 FROM onetray.task AS o WHERE o.key = t.retry_of AND o.stage = t.stage)
    AND NOT EXISTS (SELECT 1 FROM onetray.task AS p JOIN onetray.stage AS ps ON ps.key = p.stage
        WHERE p.key = t.spawned_by AND ps.ord >= :ord)
ORDER BY t.stage, t.key LIMIT :limit

-- name: outcomes_of_members
-- row: MemberOutcomeRow
-- How the tasks of a stage ended, and who cancelled those that were cancelled.
SELECT t.key, CAST(t.id AS text) AS id, t.state, t.attempts, t.cancel_at, t.error,
    CASE WHEN t.state = :cancelled THEN (SELECT {entry:actor} FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) END
    AS ended_by
FROM onetray.task AS t WHERE {after_in_stage} AND t.control = 0 ORDER BY t.stage, t.key

-- name: told_by_successes
SELECT t.key, {entry:payload} FROM onetray.task AS t CROSS JOIN {event_ids:t} JOIN {batch_of_i}
WHERE t.key {in:keys:bigint} AND eb.state = :succeeded AND {entry:payload} IS NOT NULL

-- name: spawned_in_stage
SELECT t.key FROM onetray.task AS t WHERE {after_in_stage} AND t.spawned_by IS NOT NULL ORDER BY t.stage, t.key

-- name: needs_of
SELECT d.task, d.needs FROM onetray.dependency AS d WHERE d.task {in:keys:bigint} ORDER BY d.task, d.needs

-- name: needed_by
-- row: MemberRow
SELECT t.key, t.stage, CAST(t.id AS text) AS id, t.name, t.state
FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs WHERE d.task = :task ORDER BY d.needs

-- name: dependencies_of
-- row: Dependency
SELECT CAST(t.id AS text) AS task_id, CAST(o.id AS text) AS needs_id,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = o.key) AS needs_alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.dependency AS d ON d.task = t.key
    JOIN onetray.task AS o ON o.key = d.needs
WHERE t.id {in:ids:uuid} AND n.name = :namespace

-- name: stages_to_copy
-- row: StageToCopy
SELECT s.key, s.ord, s.name, s.state, s.on_failure, s.sealed, s.takes_more, s.gate, s.collect, s.condition, s.compensate,
    s.approval, s.data, s.metadata, s.result, s.metrics, s.succeeded, s.carried_from, s.type, s.trace, s.tracestate
FROM onetray.stage AS s WHERE s.job = :job ORDER BY s.ord

-- name: stage_carried_from
-- row: CarriedStageRow
-- The origin of a carried-over stage: it has the tasks, the condition and the approval.
SELECT s.key, s.carried_from, s.gate, s.condition, s.compensate
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL WHERE s.key = :key

-- name: successors_in_stage
-- row: SuccessorRow
-- Tasks that replace others of the same stage.
SELECT t.key, t.retry_of, t.name FROM onetray.task AS t JOIN onetray.task AS o ON o.key = t.retry_of AND o.stage = t.stage
WHERE t.stage = :stage AND t.key > 0 ORDER BY t.stage, t.key

-- name: clear_task_name
UPDATE onetray.task SET name = NULL WHERE key = :key

-- name: flow_to_copy
-- row: FlowToCopy
SELECT f.ns, f.kind, f.roll_up, f.sealed, f.correlation_id, f.trace, f.data, f.metadata, c.payload AS context,
    f.deadline_at - f.created_at AS deadline_us, f.compensates, f.compensation, f.priority, f.tracestate
FROM onetray.flow AS f LEFT JOIN onetray.context AS c ON c.key = f.context WHERE f.key = :key

-- name: insert_context
INSERT INTO onetray.context (key, job, ns, task, parent, created_at, scope, label, id, payload)
SELECT b.key, b.job, b.ns, b.task, b.parent, b.at, b.scope, b.label, b.id, b.payload {from_batch}

-- name: context_in_flow
-- By its id or its alias.
SELECT c.key FROM onetray.context AS c WHERE c.job = :job AND c.key IN (
    SELECT i.key FROM onetray.context AS i WHERE i.id = :id
    UNION SELECT a.key FROM onetray.alias AS a WHERE a.ns = :ns AND a.alias = :alias
)

-- name: context_by_id
-- row: Context
{select_context} WHERE n.name = :namespace AND c.key IN (
    SELECT i.key FROM onetray.context AS i WHERE i.id = :id
    UNION SELECT a.key FROM onetray.alias AS a JOIN onetray.namespace AS m ON m.key = a.ns
        WHERE m.name = :namespace AND a.alias = :alias
)

-- name: contexts_of_flow
-- row: Context
{select_context} WHERE f.id = :id AND n.name = :namespace AND c.key > :after ORDER BY c.key LIMIT :limit

-- name: current_context
-- row: Context
{select_context} WHERE f.id = :id AND n.name = :namespace AND c.key = f.context

-- word: select_context
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = c.key) AS alias
FROM onetray.context AS c JOIN onetray.flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN onetray.namespace AS n ON n.key = c.ns
    LEFT JOIN onetray.task AS t ON t.key = c.task LEFT JOIN onetray.context AS p ON p.key = c.parent

-- name: key_of_flow
SELECT f.key FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL

-- name: flow_by_id
-- row: FlowDetails
{select_flow} WHERE f.id = :id AND n.name = :namespace

-- name: flows_by_keys
-- row: FlowDetails
{select_flow} WHERE f.key {in:keys:bigint}

-- name: flows_newest
-- row: FlowDetails
{select_flow} WHERE n.name = :namespace AND f.key < :before ORDER BY f.key DESC LIMIT :limit

-- word: select_flow
SELECT f.key, CAST(f.id AS text) AS id, n.name AS namespace, k.name, f.state, f.version, f.roll_up, f.sealed,
    f.created_at, f.updated_at, f.started_at, f.finished_at, f.deadline_at,
    CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    CASE WHEN f.finished_at IS NULL THEN f.ending_how END AS ending_how, s.name AS current_stage, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, CAST(o.id AS text) AS retry_of,
    CAST(c.id AS text) AS compensates, CAST(u.id AS text) AS compensation, f.correlation_id, f.trace, f.tracestate,
    f.priority, f.data, f.metadata, f.error,
    (SELECT CAST({json_object}(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM onetray.context AS x WHERE x.key = f.context) AS context_id
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind LEFT JOIN onetray.stage AS s ON s.key = f.current LEFT JOIN onetray.flow AS o ON o.key = f.retry_of
    LEFT JOIN onetray.flow AS c ON c.key = f.compensates LEFT JOIN onetray.flow AS u ON u.key = f.compensation

-- name: stage_by_id
-- row: StageDetails
{select_stage} WHERE s.id = :id AND n.name = :namespace

-- name: stages_of
-- row: StageDetails
{select_stage} WHERE f.id = :id AND n.name = :namespace ORDER BY s.ord

-- name: stages_of_flows
-- row: StageDetails
{select_stage} WHERE s.job {in:keys:bigint} ORDER BY s.job, s.ord

-- name: stages_of_ids
-- row: StageDetails
{select_stage} WHERE f.id {in:ids:uuid} AND n.name = :namespace ORDER BY s.job, s.ord

-- word: select_stage
SELECT s.key, CAST(s.id AS text) AS id, CAST(f.id AS text) AS flow_id, n.name AS namespace, s.ord, s.name, s.state,
    s.version, s.on_failure, s.sealed, s.takes_more, s.created_at, s.updated_at, s.started_at, s.finished_at, s.due_at,
    CASE WHEN s.finished_at IS NULL THEN s.ending END AS ending,
    CASE WHEN s.finished_at IS NULL THEN coalesce(f.ending_how, s.ending_how) END AS ending_how, s.total, s.open,
    s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.data,
    s.metadata, s.result, s.metrics, s.error, s.approval, s.answer, CAST(w.id AS text) AS carried_from,
    coalesce(s.type, s.name) AS type, s.trace, s.tracestate, s.error_count, s.errors, s.opened_at,
    s.ending_how AS own_ending_how, s.deciding, CASE WHEN f.current = s.key THEN 1 ELSE 0 END AS is_current,
    f.state AS flow_state, f.ending AS flow_ending
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns LEFT JOIN onetray.stage AS w ON w.key = s.carried_from

-- name: held_in_stages
-- row: HeldInStageRow
-- How many tasks of each stage a worker holds, and the progress that they have reported on this attempt, each from 0 to 1.
-- Read from the leases: they are few. With a subquery for each task: for a join PostgreSQL would read all tasks of the
-- stage.
SELECT h.stage, count(*) AS held, sum(CASE WHEN h.attempts > 1 THEN 1 ELSE 0 END) AS retried, coalesce(sum((
    SELECT CASE WHEN p.done < p.total THEN p.done / p.total ELSE 1.0 END FROM onetray.progress AS p
    WHERE p.task = h.task AND p.total > 0 AND p.attempt = h.attempts
)), 0) AS progress
FROM (
    SELECT j.value AS task,
        (SELECT t.stage FROM onetray.task AS t WHERE t.key = j.value AND t.lease = l.key AND t.control = 0) AS stage,
        (SELECT t.attempts FROM onetray.task AS t WHERE t.key = j.value) AS attempts
    FROM onetray.lease AS l CROSS JOIN {lease_tasks}
) AS h
WHERE h.stage {in:stages:bigint} GROUP BY h.stage

-- name: tasks_of_stage
-- row: TaskDetails
{select_task} WHERE {after_in_stage} ORDER BY t.stage, t.key LIMIT :limit

-- name: tasks_of_stages
-- row: TaskDetails
{select_task} WHERE t.stage {in:stages:bigint} AND n.name = :namespace AND t.control = 0
ORDER BY t.stage, t.key LIMIT :limit

-- name: members_to_fold
-- row: FlowMemberRow
SELECT t.key, t.stage, t.control, t.retry_of, t.name FROM onetray.task AS t WHERE t.stage {in:stages:bigint}
ORDER BY t.stage, t.key LIMIT :limit

-- name: tasks_of_flow
-- row: TaskDetails
{select_task} JOIN onetray.stage AS s ON s.key = t.stage
WHERE s.job = :job AND (s.ord, t.key) > (:ord, :after) ORDER BY s.ord, t.key LIMIT :limit

-- name: place_of_task
-- row: PlaceRow
SELECT t.key, t.job, s.ord FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage
    JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace
