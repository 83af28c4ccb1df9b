-- Namespaces, queues, kinds and policies.

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
