-- Idempotency keys, unique keys, labels, dead letters, logs, queues, kinds.

-- name: take_key
-- Inserts new keys and replaces expired ones; others stay unchanged.
INSERT INTO onetray.idempotency (kind, key, job, body_hash, expires_at)
SELECT b.kind, b.key, b.job, b.body_hash, b.expires_at {from_batch} WHERE true
ON CONFLICT (kind, key) DO UPDATE SET job = excluded.job, body_hash = excluded.body_hash,
    expires_at = excluded.expires_at
WHERE idempotency.expires_at <= :now

-- name: keys_taken
-- row: KeyHolderRow
SELECT i.kind, i.key, i.job, i.body_hash, {holder_of_key}
FROM onetray.idempotency AS i LEFT JOIN onetray.task AS t ON t.key = i.job
    LEFT JOIN onetray.flow AS f ON f.key = i.job {join_batch} i.kind = b.kind AND i.key = b.key

-- word: holder_of_key
coalesce(t.finished_at, f.finished_at) AS finished_at, coalesce(CAST(t.id AS text), CAST(f.id AS text)) AS id,
    coalesce(t.state, f.state) AS state, coalesce(t.fence, 0) AS fence, coalesce(t.version, f.version) AS version,
    CASE WHEN t.key IS NULL THEN 0 ELSE 1 END AS single

-- name: point_key
-- A submit whose unique key is taken creates no job: its idempotency key then refers to the holder of the unique key.
UPDATE onetray.idempotency SET job = b.job {from_batch} WHERE idempotency.kind = b.kind AND idempotency.key = b.key

-- name: lock_unique
-- Inserts free keys, and locks the others without changing them. The next statement reads their holders: this one does
-- not see the job of a transaction that it waited for.
INSERT INTO onetray.unique_key (kind, key, job) SELECT b.kind, b.key, b.job {from_batch} WHERE true
ON CONFLICT (kind, key) DO UPDATE SET job = excluded.job WHERE false

-- name: unique_held
-- row: KeyHolderRow
SELECT u.kind, u.key, u.job, '' AS body_hash, {holder_of_key}
FROM onetray.unique_key AS u LEFT JOIN onetray.task AS t ON t.key = u.job
    LEFT JOIN onetray.flow AS f ON f.key = u.job {join_batch} u.kind = b.kind AND u.key = b.key

-- name: take_unique
-- Under the lock, from a job that has ended or was pruned.
UPDATE onetray.unique_key SET job = b.job {from_batch} WHERE unique_key.kind = b.kind AND unique_key.key = b.key

-- name: insert_label
INSERT INTO onetray.label (job, name, value, ns) SELECT b.job, b.name, b.value, b.ns {from_batch}

-- name: copy_labels
INSERT INTO onetray.label (job, name, value, ns)
SELECT :to, name, value, ns FROM onetray.label WHERE job = :of

-- name: insert_dead_letter
INSERT INTO onetray.dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash)
SELECT b.key, b.ns, b.at, b.reason_code, b.stage, b.last_error, b.attempts, b.last_owner, b.last_lease_expires_at,
    b.correlation_id, b.trace_id, b.payload_hash {from_batch}

-- name: facts_for_dead_letter
-- row: LetterFactsRow
SELECT key, CAST(id AS text) AS id, correlation_id, trace, payload FROM onetray.task WHERE key {in:keys:bigint}

-- name: last_holders
-- The payload of the last transition of a held task contains its last owner.
SELECT e.entity, e.payload FROM onetray.event AS e
WHERE e.entity {in:keys:bigint} AND e.version IS NOT NULL AND e.was {in:held:text} AND e.payload IS NOT NULL
ORDER BY e.entity, e.version

-- name: lock_letter
SELECT successor FROM onetray.dead_letter WHERE task = :key {for_update}

-- name: set_successor
UPDATE onetray.dead_letter SET successor = b.successor {from_batch} WHERE dead_letter.task = b.key

-- name: dead_letters
-- row: DeadLetter
SELECT CAST(t.id AS text) AS task_id, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner,
    d.last_lease_expires_at, d.correlation_id, d.trace_id, d.payload_hash, CAST(s.id AS text) AS successor_id
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task
    JOIN onetray.namespace AS n ON n.key = d.ns
    LEFT JOIN onetray.task AS s ON s.key = d.successor
WHERE n.name = :namespace AND (CAST(:id AS text) IS NULL OR CAST(t.id AS text) = :id) ORDER BY d.task DESC LIMIT :limit

-- name: spec_of
-- row: TaskToCopy
{select_task_to_copy} WHERE t.key = :key

-- word: select_task_to_copy
SELECT t.key, CAST(t.id AS text) AS id, t.queue, t.kind, t.policy, t.priority, t.max_attempts, t.correlation_id, t.trace,
    t.payload, t.name, t.spawned_by
FROM onetray.task AS t

-- name: last_cursor
SELECT task, max(cursor) FROM onetray.log WHERE task {in:keys:bigint} GROUP BY task

-- name: insert_log
INSERT INTO onetray.log (task, cursor, ts, attempt, level, line, data)
SELECT b.key, b.cursor, b.at, b.attempt, b.level, b.line, b.data {from_batch}

-- name: logs_of
-- row: LogLine
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after ORDER BY l.cursor LIMIT :limit

-- name: first_lines
-- row: LogRow
-- The lines of a task's log are numbered from 1, without gaps.
SELECT l.task, l.cursor, l.ts, l.attempt, l.level, l.line, l.data FROM onetray.log AS l
WHERE l.task {in:keys:bigint} AND l.cursor <= :most ORDER BY l.task, l.cursor

-- name: namespaces
SELECT key, name FROM onetray.namespace

-- name: queues
-- row: QueueRow
SELECT key, ns, name FROM onetray.queue

-- name: kinds
-- row: KindRow
SELECT key, ns, name, policy FROM onetray.kind

-- name: policies
SELECT key, body FROM onetray.policy

-- name: add_namespace
INSERT INTO onetray.namespace (name) VALUES (:name) ON CONFLICT DO NOTHING

-- name: add_queue
INSERT INTO onetray.queue (ns, name) VALUES (:ns, :name) ON CONFLICT DO NOTHING

-- name: add_policy
INSERT INTO onetray.policy (body) VALUES (:body) ON CONFLICT DO NOTHING

-- name: add_kind
INSERT INTO onetray.kind (ns, name, policy) VALUES (:ns, :name, :policy) ON CONFLICT DO NOTHING

-- name: set_kind_policy
UPDATE onetray.kind SET policy = :policy WHERE key = :key

-- name: replace_kind_policy
UPDATE onetray.kind SET policy = :policy WHERE key = :key AND policy = :was RETURNING key

-- name: queues_with_work
-- The queues among these with a claimable task. Not by EXISTS: PostgreSQL may scan all of ready for the join.
SELECT q.key FROM onetray.queue AS q
WHERE q.key {in:keys:bigint} AND q.paused_at IS NULL AND (
    SELECT r.task FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.rank, r.task LIMIT 1
) IS NOT NULL

-- name: pause_queue
UPDATE onetray.queue SET paused_at = :at, paused_by = :by WHERE key = :key
