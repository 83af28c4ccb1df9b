-- name: insert_lease
INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
SELECT b.key, b.ns, b.worker, b.expires_at, b.length, b.tasks, b.request_key, b.part, b.expiry_counts {from_batch}

-- name: leases_of_request
-- row: LeaseRow
SELECT key, tasks, expires_at, length FROM onetray.lease
WHERE ns = :ns AND worker = :worker AND request_key = :request_key ORDER BY part

-- name: clear_request_keys
-- Frees the request key of leases that have expired, or whose claim got no answer.
UPDATE onetray.lease SET request_key = NULL WHERE key {in:keys:bigint}

-- name: claimed_again
-- row: ReclaimedRow
-- The tasks that a repeated claim still holds.
SELECT t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.fence, t.attempts, t.payload, t.input, t.correlation_id,
    t.trace, t.lease, t.state, t.queue, t.job, t.idempotency_key
FROM onetray.task AS t WHERE t.key {in:keys:bigint} ORDER BY t.key

-- name: lock_leases
SELECT key FROM onetray.lease WHERE key {in:keys:bigint} ORDER BY key {for_update}

-- name: renew_lease
-- row: RenewedRow
-- A lease is valid up to and including its expiry, and cannot be renewed later.
UPDATE onetray.lease SET expires_at = {greatest}(lease.expires_at, b.at + coalesce(b.length, lease.length)) {from_batch}
WHERE lease.key = b.key AND lease.expires_at >= b.at
RETURNING lease.key, lease.expires_at, lease.tasks

-- name: expired_leases
SELECT key, tasks FROM onetray.lease WHERE expires_at < :before AND (CAST(:ns AS integer) IS NULL OR ns = :ns)
ORDER BY expires_at, key LIMIT :limit

-- name: still_expired
-- Read again after the tasks are locked: a heartbeat may have renewed the lease.
SELECT key FROM onetray.lease WHERE key {in:keys:bigint} AND expires_at < :before ORDER BY key {for_update}

-- name: leases_by_key
-- row: LeaseNowRow
SELECT key, expires_at, expiry_counts FROM onetray.lease WHERE key {in:keys:bigint}

-- name: expiries
SELECT key, expires_at FROM onetray.lease WHERE key {in:keys:bigint}

-- name: held_tasks
-- row: Holding
SELECT key, CAST(id AS text) AS id, lease, cancel_at, state FROM onetray.task WHERE key {in:keys:bigint} ORDER BY key

-- name: held_in_namespace
-- row: Holding
SELECT key, CAST(id AS text) AS id, lease, cancel_at, state FROM onetray.task
WHERE key {in:keys:bigint} AND ns = :ns ORDER BY key

-- name: delete_leases
DELETE FROM onetray.lease WHERE key {in:keys:bigint}
