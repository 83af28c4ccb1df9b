-- Limits and their counters. lane.sql has the lanes of tasks that wait for them.

-- name: lock_namespace
SELECT key FROM onetray.namespace WHERE key = :ns {for_update}

-- name: share_namespace
-- Before a queue is added: a limit of a kind marks all queues of its namespace.
SELECT key FROM onetray.namespace WHERE key = :ns {for_key_share}

-- word: select_rule
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM onetray.limit_rule

-- name: rules_of_claim
-- row: RuleRow
{select_rule} WHERE ns = :ns AND queue IN (0, :queue) ORDER BY key

-- name: rules_of_namespace
-- row: RuleRow
{select_rule} WHERE ns = :ns ORDER BY key LIMIT :limit

-- name: rule_by_key
-- row: RuleRow
{select_rule} WHERE key = :key {for_update}

-- name: rule_now
-- row: RuleRow
{select_rule} WHERE key = :key

-- name: find_rule
-- row: RuleRow
{select_rule} WHERE ns = :ns AND kind = :kind AND queue = :queue AND path = :path AND what = :what {for_update}

-- name: add_rule
INSERT INTO onetray.limit_rule (key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at)
VALUES (:key, :ns, :queue, :kind, :path, :what, :most, :period, :smooth, :declared, :set_by, :set_at)

-- name: change_rule
UPDATE onetray.limit_rule SET most = :most, period = :period, smooth = :smooth, declared = :declared, set_by = :set_by,
    set_at = :set_at, lowered_at = coalesce(:lowered_at, lowered_at) WHERE key = :key

-- name: await_claims
UPDATE onetray.limit_rule SET waits_for = :waits_for WHERE key = :key

-- name: rule_is_counted
UPDATE onetray.limit_rule SET counted = 1, waits_for = NULL, lowered_at = coalesce(:lowered_at, lowered_at)
WHERE key = :key

-- name: delete_rule
DELETE FROM onetray.limit_rule WHERE key = :key RETURNING key

-- name: delete_buckets_of_rule
DELETE FROM onetray.limit_bucket WHERE rule = :rule RETURNING key

-- name: claim_begins
-- Locks the table, and no row: see claims_under_way.
SELECT r.task FROM onetray.ready AS r WHERE r.queue = 0 AND r.rank = 0 AND r.task = 0 {skip_locked_r}

-- name: claims_under_way
-- The transactions that may have picked tasks before a limit was committed. A claim locks the table before it takes its
-- snapshot. SQLite has one writer.
{claims_under_way}

-- name: share_queue
-- Before a lane is added: see unlimit_queues.
SELECT key FROM onetray.queue WHERE key = :key {for_key_share}

-- name: limit_queue
UPDATE onetray.queue SET limited = 1 WHERE key = :key AND limited = 0

-- name: limit_queues
UPDATE onetray.queue SET limited = 1 WHERE ns = :ns AND limited = 0

-- name: lock_limited_queues
SELECT key FROM onetray.queue WHERE ns = :ns AND limited = 1 ORDER BY key {for_update}

-- name: unlimit_queues
-- After they are locked: who adds a lane marks the queue first.
UPDATE onetray.queue SET limited = 0 WHERE key {in:keys:integer}
    AND NOT EXISTS (SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = queue.ns AND (r.kind <> 0 OR r.queue = queue.key))
    AND NOT EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.queue = queue.key)

-- name: claim_gates
-- row: GatesRow
-- What keeps a plain claim from this queue: it is paused, it is limited, a breaker is open.
SELECT CASE WHEN q.paused_at IS NULL THEN 0 ELSE 1 END AS paused, q.limited,
    CASE WHEN EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL) THEN 1 ELSE 0 END AS breakers
FROM onetray.queue AS q WHERE q.key = :queue

-- name: held_in_scope
-- The tasks that workers hold, of a queue or a kind.
SELECT t.key FROM onetray.lease AS l CROSS JOIN {lease_tasks} JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
WHERE l.ns = :ns AND (t.queue = :queue OR t.kind = :kind) ORDER BY t.key

-- name: slots_of_tasks
SELECT key, slots FROM onetray.task WHERE key {in:keys:bigint} AND slots IS NOT NULL

-- name: add_slots
UPDATE onetray.task SET slots = coalesce(task.slots, ',') || b.slots || ',' {from_batch} WHERE task.key = {key_of_b}

-- name: add_buckets
INSERT INTO onetray.limit_bucket (key, rule, value) SELECT b.key, b.rule, b.value {from_batch} WHERE true
ON CONFLICT DO NOTHING

-- name: peek_buckets
-- row: BucketRow
-- Of the limits without a key of a claim.
SELECT {bucket_columns}, {clock} AS seen_at FROM onetray.limit_bucket AS k JOIN onetray.limit_rule AS r ON r.key = k.rule
WHERE r.ns = :ns AND r.queue IN (0, :queue) AND r.path = ''

-- word: bucket_columns
k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters

-- name: buckets_of_values
-- row: BucketRow
SELECT {bucket_columns}, {clock} AS seen_at FROM onetray.limit_bucket AS k {join_batch} k.rule = b.rule AND k.value = b.value

-- name: lock_buckets
-- row: BucketRow
-- Sorted, so that two batches cannot deadlock. The outer query reads the clock after the locks are taken.
SELECT l.*, {clock} AS seen_at FROM (
    SELECT {bucket_columns} FROM onetray.limit_bucket AS k WHERE k.key {in:keys:bigint} ORDER BY k.key {for_update_of_k}
) AS l

-- name: lock_free_buckets
-- row: BucketRow
SELECT l.*, {clock} AS seen_at FROM (
    SELECT {bucket_columns} FROM onetray.limit_bucket AS k WHERE k.key {in:keys:bigint} ORDER BY k.key {skip_locked_k}
) AS l

-- name: set_buckets
UPDATE onetray.limit_bucket SET running = b.running, starts = b.starts, next_at = b.next_at, due_at = b.due_at,
    waiters = b.waiters {from_batch} WHERE limit_bucket.key = b.key

-- name: buckets_of_rule
-- row: ShownBucketRow
SELECT {bucket_columns}, (SELECT count(*) FROM (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key
        ORDER BY l.blocked_on, l.rank, l.turn, l.key LIMIT 1000) AS n) AS blocked,
    (SELECT min(n.blocked_at) FROM (SELECT l.blocked_at FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key
        ORDER BY l.blocked_on, l.rank, l.turn, l.key LIMIT 1000) AS n) AS blocked_since, {clock} AS seen_at
FROM onetray.limit_bucket AS k WHERE k.rule = :rule AND k.key > :after AND (CAST(:value AS text) IS NULL OR k.value = :value)
ORDER BY k.key LIMIT :limit

-- name: used_of_rules
-- row: RuleUseRow
SELECT r.key AS rule, CAST(coalesce(sum(k.running), 0) AS bigint) AS running, (SELECT count(*) FROM (
    SELECT 1 FROM onetray.limit_bucket AS x JOIN onetray.lane AS l ON l.state = 2 AND l.blocked_on = x.key
    WHERE x.rule = r.key LIMIT 1000) AS n) AS blocked
FROM onetray.limit_rule AS r LEFT JOIN onetray.limit_bucket AS k ON k.rule = r.key
WHERE r.key {in:rules:bigint} GROUP BY r.key

-- name: holders_of_bucket
-- row: HolderRow
SELECT CAST(t.id AS text) AS task, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job, k.name AS kind,
    q.name AS queue, t.owner AS worker, t.state, t.updated_at AS claimed_at, l.expires_at AS lease_expires_at
FROM onetray.lease AS l CROSS JOIN {lease_tasks} JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.queue AS q ON q.key = t.queue
WHERE l.ns = :ns AND {position}(t.slots, :slot) > 0 ORDER BY t.key LIMIT :limit OFFSET :skip
