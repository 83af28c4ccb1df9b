-- name: due_now
-- row: DueRow
-- Only the types that this version knows: a newer version handles the others.
SELECT at, task, what, fence FROM onetray.due WHERE at <= :now AND what {in:known:text}
ORDER BY at, task, what LIMIT :limit {skip_locked_due}

-- name: delete_due
DELETE FROM onetray.due {using_batch} due.at = b.at AND due.task = b.key AND due.what = b.what

-- name: next_due
SELECT min(at) FROM onetray.due WHERE what {in:known:text}

-- name: next_expiry
SELECT min(expires_at) FROM onetray.lease

-- name: prunable_jobs
-- By key, oldest first.
SELECT t.key FROM onetray.task AS t
WHERE t.key > :after AND t.key <= :upto AND {task_prunable}
ORDER BY t.key LIMIT :limit {skip_locked_t}

-- name: prunable_flows
-- Whole flows. A flow stays while one of its tasks runs, as it may in a failed strict stage.
SELECT f.key FROM onetray.flow AS f
WHERE f.key > :after AND f.key <= :upto AND {flow_prunable}
ORDER BY f.key LIMIT :limit {skip_locked_f}

-- name: next_tasks
-- The last key of the next tasks, and when the first of them was created.
SELECT max(n.key), min(n.created_at)
FROM (SELECT key, created_at FROM onetray.task WHERE key > :after ORDER BY key LIMIT :span) AS n

-- name: next_flows
SELECT max(n.key), min(n.created_at)
FROM (SELECT key, created_at FROM onetray.flow WHERE key > :after ORDER BY key LIMIT :span) AS n

-- name: turn_to_prune
SELECT {turn_to_prune}

-- name: sizes_of_flows
SELECT job, CAST(sum(total) AS bigint) FROM onetray.stage WHERE job {in:keys:bigint} GROUP BY job

-- word: task_prunable
t.created_at <= :before AND t.finished_at IS NOT NULL AND t.finished_at <= :before
    AND t.key = t.job AND (CAST(:ns AS integer) IS NULL OR t.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM onetray.idempotency AS i WHERE i.job = t.key AND i.expires_at > :now)

-- word: flow_prunable
f.created_at <= :before AND f.finished_at IS NOT NULL AND f.finished_at <= :before
    AND (CAST(:ns AS integer) IS NULL OR f.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM onetray.idempotency AS i WHERE i.job = f.key AND i.expires_at > :now)
    AND NOT EXISTS (SELECT 1 FROM onetray.stage AS s WHERE s.job = f.key AND s.open > 0)
    AND NOT EXISTS (SELECT 1 FROM onetray.flow AS c WHERE c.key = f.compensation AND c.finished_at IS NULL)

-- name: stage_keys_of_flows
SELECT key FROM onetray.stage WHERE job {in:keys:bigint}

-- name: members_of_stages
SELECT key FROM onetray.task WHERE stage {in:keys:bigint}

-- name: prune_dependencies
DELETE FROM onetray.dependency WHERE task {in:keys:bigint}

-- name: prune_contexts
DELETE FROM onetray.context WHERE job {in:keys:bigint}

-- name: prune_stages
DELETE FROM onetray.stage WHERE key {in:keys:bigint}

-- name: prune_flows
DELETE FROM onetray.flow WHERE key {in:keys:bigint}

-- name: jobs_of_idempotency
SELECT job FROM onetray.idempotency WHERE job {in:keys:bigint}

-- name: lock_jobs_of_idempotency
SELECT job FROM onetray.idempotency WHERE job {in:keys:bigint} {skip_locked_keys}

-- name: jobs_of_unique_keys
SELECT job FROM onetray.unique_key WHERE job {in:keys:bigint}

-- name: lock_jobs_of_unique_keys
SELECT job FROM onetray.unique_key WHERE job {in:keys:bigint} {skip_locked_keys}

-- name: jobs_of_submit_windows
SELECT job FROM onetray.submit_window WHERE job {in:keys:bigint}

-- name: lock_jobs_of_submit_windows
SELECT job FROM onetray.submit_window WHERE job {in:keys:bigint} {skip_locked_keys}

-- name: prune_submit_windows
DELETE FROM onetray.submit_window WHERE job {in:keys:bigint}

-- name: prune_idempotency
DELETE FROM onetray.idempotency WHERE job {in:keys:bigint}

-- name: prune_unique_keys
DELETE FROM onetray.unique_key WHERE job {in:keys:bigint}

-- name: prune_labels
DELETE FROM onetray.label WHERE job {in:keys:bigint}

-- name: prune_aliases
DELETE FROM onetray.alias WHERE key {in:keys:bigint}

-- name: prune_aliases_of_contexts
DELETE FROM onetray.alias WHERE key IN (SELECT c.key FROM onetray.context AS c WHERE c.job {in:keys:bigint})

-- name: prune_dead_letters
DELETE FROM onetray.dead_letter WHERE task {in:keys:bigint}

-- name: prune_logs
DELETE FROM onetray.log WHERE task {in:keys:bigint}

-- name: prune_tasks
DELETE FROM onetray.task WHERE key {in:keys:bigint}

-- name: prune_deletions
-- Notes that belong to no job.
DELETE FROM onetray.event_batch WHERE id IN (
    SELECT e.id FROM onetray.event_batch AS e WHERE e.type = :type AND e.ts <= :before
        AND (CAST(:ns AS integer) IS NULL OR e.ns = :ns)
    ORDER BY e.ts LIMIT :limit
)
RETURNING id

-- name: prune_notes
-- Skips notes that another janitor is deleting. WITH: see delete_expired_requests.
WITH old AS MATERIALIZED (
    SELECT e.id FROM onetray.event_batch AS e WHERE e.state IS NULL AND e.type {in:types:text} AND e.ts < :before
    LIMIT :limit {skip_locked_due}
)
DELETE FROM onetray.event_batch WHERE id IN (SELECT o.id FROM old AS o)
RETURNING coalesce(job, entity), id

-- name: prune_flow_events_by_id
-- Of notes that are gone. Those of single tasks have none.
DELETE FROM onetray.flow_event {using_batch} flow_event.job = b.job AND flow_event.batch = b.key
