-- Delete one job. What is deleted with each entity is in janitor.sql.

-- name: job_to_delete
-- row: JobToDelete
-- flow_id is that of a task's flow, if it has one.
SELECT 'task' AS entity, t.key, CAST(t.id AS text) AS id, t.state, k.name AS kind,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id,
    (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) AS flow_id
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind WHERE t.id = :id AND t.ns = :ns
UNION ALL
SELECT 'flow', f.key, CAST(f.id AS text), f.state, k.name, f.correlation_id, CAST(NULL AS text)
FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind WHERE f.id = :id AND f.ns = :ns

-- name: any_open_member
-- Tasks of a failed strict stage may still run.
SELECT 1 FROM onetray.stage AS s WHERE s.job = :job AND s.open > 0 LIMIT 1

-- name: open_compensation
SELECT CAST(c.id AS text) FROM onetray.flow AS f JOIN onetray.flow AS c ON c.key = f.compensation
WHERE f.key = :job AND c.finished_at IS NULL

-- name: mark_deleted
UPDATE onetray.flow SET deleted_at = :at WHERE key = :key

-- name: members_to_delete
SELECT t.key FROM onetray.task AS t WHERE {all_in_stage} ORDER BY t.stage, t.key LIMIT :limit

-- name: contexts_to_delete
SELECT c.key FROM onetray.context AS c WHERE c.job = :job LIMIT :limit

-- name: notes_to_delete
-- The flow keeps its transitions until it goes itself.
SELECT e.id FROM onetray.event_batch AS e
WHERE e.entity = :job AND e.state IS NULL AND e.type <> 'job.deleted' LIMIT :limit

-- name: stages_to_delete
SELECT s.key FROM onetray.stage AS s WHERE s.job = :job ORDER BY s.job, s.ord LIMIT :limit

-- name: prune_dependencies_on
DELETE FROM onetray.dependency WHERE needs {in:keys:bigint}

-- name: prune_contexts_by_key
DELETE FROM onetray.context WHERE key {in:keys:bigint}

-- name: prune_notes_by_key
DELETE FROM onetray.event_batch WHERE id {in:keys:bigint}

-- name: ids_of_tasks
SELECT key, CAST(id AS text) FROM onetray.task WHERE key {in:keys:bigint}

-- name: ended_tasks
-- Single tasks that ended before a time, and to which no idempotency key points any more. By a subquery with max: without
-- statistics PostgreSQL would read the whole table of keys.
SELECT t.key, CAST(t.id AS text) FROM onetray.task AS t
WHERE t.key > :after AND t.key <= :upto AND t.ns = :ns AND t.job = t.key AND t.finished_at < :before
    AND (CAST(:any_state AS integer) = 1 OR t.state {in:states:text}) AND t.kind = coalesce(CAST(:kind AS integer), t.kind)
    AND coalesce((SELECT max(i.expires_at) FROM onetray.idempotency AS i WHERE i.job = t.key), 0) <= :now
ORDER BY t.key LIMIT :limit

-- name: ended_flows
SELECT f.key, CAST(f.id AS text) FROM onetray.flow AS f
WHERE f.key > :after AND f.key <= :upto AND f.ns = :ns AND f.finished_at < :before AND f.deleted_at IS NULL
    AND (CAST(:any_state AS integer) = 1 OR f.state {in:states:text}) AND f.kind = coalesce(CAST(:kind AS integer), f.kind)
    AND coalesce((SELECT max(i.expires_at) FROM onetray.idempotency AS i WHERE i.job = f.key), 0) <= :now
ORDER BY f.key LIMIT :limit
