-- Dead letters and their redrive.

-- name: insert_dead_letter
INSERT INTO onetray.dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern)
SELECT b.key, b.ns, b.at, b.reason_code, b.stage, b.last_error, b.attempts, b.last_owner, b.last_lease_expires_at,
    b.correlation_id, b.trace_id, b.payload_hash, b.kind, b.error_class, b.pattern {from_batch}

-- name: copy_letters
-- For tasks that were carried over to another flow.
INSERT INTO onetray.dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern)
SELECT b.key, d.ns, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner, d.last_lease_expires_at,
    d.correlation_id, d.trace_id, d.payload_hash, d.kind, d.error_class, d.pattern
FROM onetray.dead_letter AS d {join_batch} d.task = b.task

-- name: facts_for_dead_letter
-- row: LetterFactsRow
SELECT key, CAST(id AS text) AS id, correlation_id, trace, payload FROM onetray.task WHERE key {in:keys:bigint}

-- name: last_holders
-- The payload of the last transition of a held task contains its last owner.
SELECT t.key, {entry:payload} FROM onetray.task AS t CROSS JOIN {event_ids:t} JOIN {batch_of_i}
WHERE t.key {in:keys:bigint} AND {entry:was} {in:held:text} AND {entry:payload} IS NOT NULL
ORDER BY t.key, i.value

-- name: lock_letter
SELECT successor FROM onetray.dead_letter WHERE task = :key {for_update}

-- name: set_successor
UPDATE onetray.dead_letter SET successor = b.successor {from_batch} WHERE dead_letter.task = b.key

-- name: dead_letters
-- row: DeadLetter
{select_dead_letter} WHERE n.name = :namespace ORDER BY d.task DESC LIMIT :limit

-- name: dead_letter_of_task
-- row: DeadLetter
{select_dead_letter} WHERE t.id = :id AND n.name = :namespace

-- word: select_dead_letter
SELECT CAST(t.id AS text) AS task_id, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner,
    d.last_lease_expires_at, d.correlation_id, d.trace_id, d.payload_hash, CAST(s.id AS text) AS successor_id
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task
    JOIN onetray.namespace AS n ON n.key = +d.ns
    LEFT JOIN onetray.task AS s ON s.key = d.successor

-- name: spec_of
-- row: TaskToCopy
{select_task_to_copy} WHERE t.key = :key

-- word: select_task_to_copy
SELECT t.key, CAST(t.id AS text) AS id, t.queue, t.kind, t.policy, t.priority, t.max_attempts, t.correlation_id, t.trace,
    t.payload, t.name, t.spawned_by, t.metadata, t.tracestate, t.context, t.idempotency_key
FROM onetray.task AS t
