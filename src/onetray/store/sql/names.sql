-- Namespaces, queues, kinds and policies.

-- name: names
-- row: NameRow
-- In one statement: a process that begins reads them for each name that is new to it.
SELECT 0 AS sort, key, 0 AS ns, name, 0 AS policy, CAST(NULL AS bigint) AS retired_at FROM onetray.namespace
UNION ALL SELECT 1, key, ns, name, 0, NULL FROM onetray.queue
UNION ALL SELECT 2, key, ns, name, policy, retired_at FROM onetray.kind
UNION ALL SELECT 3, key, 0, body, 0, NULL FROM onetray.policy

-- name: queues
-- row: QueueRow
SELECT key, ns, name FROM onetray.queue

-- name: add_namespace
INSERT INTO onetray.namespace (name) VALUES (:name) ON CONFLICT DO NOTHING

-- name: add_queue
-- After share_namespace.
INSERT INTO onetray.queue (ns, name, limited) VALUES (:ns, :name, CASE WHEN EXISTS (
    SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = :ns AND r.kind <> 0) THEN 1 ELSE 0 END) ON CONFLICT DO NOTHING

-- name: add_policy
INSERT INTO onetray.policy (body) VALUES (:body) ON CONFLICT DO NOTHING

-- name: add_kind
-- A retired kind is taken back.
INSERT INTO onetray.kind (ns, name, policy) VALUES (:ns, :name, :policy)
ON CONFLICT (ns, name) DO UPDATE SET retired_at = NULL WHERE kind.retired_at IS NOT NULL

-- name: set_kind_policy
UPDATE onetray.kind SET policy = :policy, retired_at = NULL WHERE key = :key

-- name: replace_kind_policy
UPDATE onetray.kind SET policy = :policy, retired_at = NULL WHERE key = :key AND policy = :was RETURNING key

-- name: plain_kinds
-- row: PlainKindRow
-- Kinds that nobody has configured and that have neither a breaker nor a limit.
SELECT k.key, k.retired_at FROM onetray.kind AS k
WHERE k.key > :after AND (CAST(:ns AS integer) IS NULL OR k.ns = :ns) AND {plain_kind}
ORDER BY k.key LIMIT :limit

-- word: plain_kind
k.policy IN (SELECT p.key FROM onetray.policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM onetray.breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key)

-- name: kinds_of_tasks
SELECT DISTINCT kind FROM onetray.task WHERE key > :after AND key <= :upto

-- name: kinds_of_flows
SELECT DISTINCT kind FROM onetray.flow WHERE key > :after AND key <= :upto

-- name: retire_kinds
UPDATE onetray.kind SET retired_at = :at
WHERE retired_at IS NULL AND key IN (SELECT k.key FROM onetray.kind AS k WHERE k.key {in:keys:bigint} AND {plain_kind})

-- name: delete_kinds
DELETE FROM onetray.kind
WHERE retired_at <= :before AND key IN (SELECT k.key FROM onetray.kind AS k WHERE k.key {in:keys:bigint} AND {plain_kind})

-- name: take_back_kinds
UPDATE onetray.kind SET retired_at = NULL WHERE retired_at IS NOT NULL AND key {in:keys:bigint}

-- name: queues_with_work
-- The queues among these with a claimable task. Not by EXISTS: PostgreSQL may scan all of ready for the join.
SELECT q.key FROM onetray.queue AS q
WHERE q.key {in:keys:bigint} AND q.paused_at IS NULL AND ((
    SELECT r.task FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.rank, r.task LIMIT 1
) IS NOT NULL OR (SELECT l.key FROM onetray.lane AS l WHERE l.queue = q.key AND l.state = 1 LIMIT 1) IS NOT NULL)

-- name: pause_queue
UPDATE onetray.queue SET paused_at = :at, paused_by = :by WHERE key = :key AND paused_at IS NULL RETURNING key

-- name: resume_queue
UPDATE onetray.queue SET paused_at = NULL, paused_by = NULL WHERE key = :key AND paused_at IS NOT NULL RETURNING key
