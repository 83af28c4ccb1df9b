-- name: keys_of
-- row: KeyRow
SELECT CAST(id AS text) AS id, key, job FROM onetray.task WHERE id {in:ids:uuid}

-- name: lock_tasks
-- row: TaskRow
-- Sorted, so that two batches cannot deadlock. The outer query reads the clock after the locks are taken.
SELECT l.*, {clock} AS seen_at FROM (
    SELECT task.key, task.ns, task.state, task.version, task.fence, task.owner, task.lease,
        lease.expires_at AS lease_expires_at, lease.expiry_counts, task.attempts, task.max_attempts, task.spared,
        task.queue, task.kind, task.policy, task.priority, task.run_at, task.cancel_at, task.job, task.stage,
        task.unmet, task.control, task.updated_at, task.lane, task.slots
    FROM onetray.task LEFT JOIN onetray.lease ON lease.key = task.lease
    WHERE task.key {in:keys:bigint}
    ORDER BY task.key {for_update_of_task}
) AS l

-- name: claim_any
-- row: ClaimedRow
-- seen_at is never before run_at and the last move: a process whose clock is ahead may have made the task claimable.
-- Returns nothing while any breaker is open, or if the queue has limits: the claim then reads claim_gates.
{select_claimable} WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND {past_breakers} AND {unlimited}
    AND {unlocked_r}
ORDER BY r.queue, r.rank, r.task LIMIT :limit {skip_locked}

-- name: claim_head
-- row: ClaimedRow
-- The same, but it locks the ready rows first: those that other claims have locked cost no look at their tasks. A task that
-- is locked without its ready row is left out, and not replaced by the next one.
{columns_of_claimable}
FROM (
    SELECT r.rank, r.task FROM onetray.ready AS r
    WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND {past_breakers} AND {unlimited}
    AND {unlocked_r}
    ORDER BY r.queue, r.rank, r.task LIMIT :limit {skip_locked_r}
) AS r JOIN onetray.task AS t ON t.key = {task_of_r} {skip_locked_t}

-- name: claim_kind
-- row: ClaimedRow
{select_claimable} WHERE r.queue = :queue AND r.kind = :kind AND {past_breakers} AND {unlimited}
    AND {unlocked_r}
ORDER BY r.queue, r.kind, r.rank, r.task LIMIT :limit {skip_locked}

-- word: unlimited
EXISTS (SELECT 1 FROM onetray.queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)

-- word: select_claimable
{columns_of_claimable} FROM onetray.ready AS r JOIN onetray.task AS t ON t.key = {task_of_r}

-- word: columns_of_claimable
SELECT r.rank, {rest_of_claimable}

-- word: rest_of_claimable
t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, {greatest}({clock}, t.run_at, t.updated_at) AS seen_at

-- name: texts_of_tasks
-- row: TaskTextsRow
SELECT t.key, t.payload, t.input FROM onetray.task AS t WHERE t.key {in:keys:bigint}

-- name: heads_of_queue
SELECT r.task FROM onetray.ready AS r WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT :limit

-- name: head_of_queue
SELECT r.rank, r.task FROM onetray.ready AS r WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT 1

-- name: heads_of_kind
-- A claim of several kinds merges these before it locks any task.
SELECT r.rank, r.task FROM onetray.ready AS r
WHERE r.queue = :queue AND r.kind = :kind
ORDER BY r.queue, r.kind, r.rank, r.task LIMIT :limit

-- name: insert_task
INSERT INTO onetray.task ({task_columns}, events) SELECT {b.task_columns}, {event_id} {from_batch}

-- word: task_columns
key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload

-- name: insert_member
-- A task of a flow's stage.
INSERT INTO onetray.task ({task_columns}, {member_columns}, events)
SELECT {b.task_columns}, {b.member_columns}, {event_id} {from_batch}

-- word: member_columns
stage, name, unmet, control, context, spawned_by

-- name: insert_ready
INSERT INTO onetray.ready (queue, rank, task, kind) SELECT b.queue, b.rank, b.key, b.kind {from_batch}

-- name: delete_ready
-- The kind is redundant, but makes both indexes usable: PostgreSQL may choose either.
DELETE FROM onetray.ready {using_batch} ready.queue = b.queue AND ready.rank = b.rank AND ready.task = b.key
    AND ready.kind = b.kind

-- name: insert_due
INSERT INTO onetray.due (at, task, what, fence) SELECT b.at, b.key, b.what, b.fence {from_batch} WHERE true
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence

-- name: set_priority
UPDATE onetray.task SET priority = b.priority {from_batch} WHERE task.key = b.key

-- name: set_metadata
UPDATE onetray.task SET metadata = b.metadata {from_batch} WHERE task.key = b.key

-- name: describe_tasks
-- After the insert: most tasks have neither.
UPDATE onetray.task SET metadata = b.metadata, tracestate = b.tracestate {from_batch} WHERE task.key = b.key

-- name: set_run_at
UPDATE onetray.task SET run_at = b.run_at {from_batch} WHERE task.key = b.key

-- name: replace_payload
UPDATE onetray.task SET payload = b.payload, run_at = b.run_at, lane = b.lane {from_batch} WHERE task.key = b.key

-- name: set_cancel_at
UPDATE onetray.task SET cancel_at = b.at {from_batch} WHERE task.key = b.key

-- name: outcomes_of_attempt
-- row: OutcomeRow
-- The events that ended the attempt with this fence, or began the next one.
SELECT eb.type, eb.state, {entry:fence} AS fence, {entry:payload} AS payload
FROM onetray.task AS t CROSS JOIN {event_ids:t} JOIN {batch_of_i}
WHERE t.key = :key AND {entry:fence} IN (:fence, :fence + 1) ORDER BY i.value

-- name: task_by_id
-- row: TaskDetails
{select_task} WHERE t.id = :id AND n.name = :namespace

-- name: task_by_key
-- row: TaskDetails
{select_task} WHERE t.key = :key

-- name: tasks_by_ids
-- row: TaskDetails
{select_task} WHERE t.id {in:ids:uuid} AND n.name = :namespace

-- name: tasks_by_keys
-- row: TaskDetails
{select_task} WHERE t.key {in:keys:bigint}

-- name: tasks_newest
-- row: TaskDetails
{select_task} WHERE n.name = :namespace AND t.key < :before ORDER BY t.key DESC LIMIT :limit

-- word: select_task
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST({json_object}(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease

-- name: take_ready
-- Like delete_ready, but returns the tasks that had a row.
DELETE FROM onetray.ready {using_batch} ready.queue = b.queue AND ready.rank = b.rank AND ready.task = b.key
    AND ready.kind = b.kind
RETURNING ready.task

-- name: promote_ready
-- Two janitors may promote the same task.
INSERT INTO onetray.ready (queue, rank, task, kind) SELECT b.queue, b.rank, b.key, b.kind {from_batch} WHERE true
ON CONFLICT DO NOTHING

-- name: pending_tasks
-- row: TaskDetails
-- By the small tables of what is claimable and of what is due: their sizes do not depend on ended tasks.
{select_task} WHERE t.key IN (
    SELECT r.task FROM onetray.ready AS r WHERE r.queue IN (
        SELECT w.key FROM onetray.queue AS w JOIN onetray.namespace AS m ON m.key = w.ns WHERE m.name = :namespace
        UNION ALL SELECT -v.key FROM onetray.lane AS v JOIN onetray.namespace AS m ON m.key = v.ns WHERE m.name = :namespace)
    UNION SELECT d.task FROM onetray.due AS d WHERE d.what = :run AND d.at <= :ready_by
) AND {task_pending} {order_of_claims}

-- name: pending_tasks_of_flow
-- row: TaskDetails
{select_task} WHERE t.stage {in:stages:bigint} AND {task_pending} {order_of_claims}

-- word: order_of_claims
ORDER BY t.priority DESC, t.key LIMIT :limit OFFSET :offset

-- word: task_pending
-- Subqueries that count cannot be turned into scans of whole tables, as EXISTS can.
n.name = :namespace AND t.control = 0 AND t.state IN ({task.first}) AND t.run_at <= :ready_by
    AND (CAST(:any_kind AS integer) = 1 OR k.name {in:kinds:text}) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND ((SELECT count(*) FROM onetray.ready AS y
            WHERE y.queue = {line} AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) > 0
        OR (SELECT count(*) FROM onetray.due AS z
            WHERE z.at = t.run_at AND z.task = t.key AND z.what = :run AND z.fence = t.fence) > 0
        AND (t.stage IS NULL OR t.unmet = 0 AND (
            SELECT count(*) FROM onetray.stage AS g JOIN onetray.flow AS h ON h.key = g.job
            WHERE g.key = t.stage AND g.ending IS NULL AND h.ending IS NULL AND t.key <= g.opened_to
                AND g.state {in:going_stages:text} AND h.state {in:going_flows:text}) > 0))
