-- HTTP requests with an idempotency key.

-- name: take_request
-- Takes the key if it is new or expired, or if its server has not renewed the same request for so long that the server
-- must have died.
INSERT INTO onetray.request (caller, key, route, body_hash, began_at, expires_at)
VALUES (:caller, :key, :route, :body_hash, :at, :expires_at)
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :at OR (request.status IS NULL AND request.began_at <= :died_before
    AND request.route = excluded.route AND request.body_hash = excluded.body_hash)
RETURNING began_at

-- name: request_of
-- row: RequestRow
SELECT route, body_hash, status, answer, began_at FROM onetray.request WHERE caller = :caller AND key = :key

-- name: renew_request
UPDATE onetray.request SET began_at = :at
WHERE caller = :caller AND key = :key AND began_at {in:held_at:bigint} AND status IS NULL
RETURNING began_at

-- name: answer_request
UPDATE onetray.request SET status = :status, answer = :answer
WHERE caller = :caller AND key = :key AND began_at {in:held_at:bigint} AND status IS NULL

-- name: drop_request
DELETE FROM onetray.request
WHERE caller = :caller AND key = :key AND began_at {in:held_at:bigint} AND status IS NULL

-- name: delete_expired_requests
-- Skips rows that another transaction has locked. WITH: PostgreSQL may run a subquery again for each row, and with locks
-- and a limit it then finds more rows each time.
WITH old AS MATERIALIZED (
    SELECT caller, key FROM onetray.request WHERE expires_at <= :at ORDER BY expires_at LIMIT :limit {skip_locked_due}
)
DELETE FROM onetray.request WHERE (caller, key) IN (SELECT caller, key FROM old)

-- name: reserve_request
-- Replaces an expired request; another one stays unchanged.
INSERT INTO onetray.request (caller, key, route, body_hash, began_at, expires_at)
VALUES (:caller, :key, :route, :body_hash, :at, :expires_at)
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :at

-- name: reserve_requests
-- The same for keys that submits reserve in their own transaction.
INSERT INTO onetray.request (caller, key, route, body_hash, began_at, expires_at)
SELECT b.caller, b.key, b.route, b.body_hash, :now, b.expires_at {from_batch} WHERE true
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :now

-- name: reserved_requests
-- row: ReservedRow
SELECT r.caller, r.key, r.body_hash FROM onetray.request AS r {join_batch} r.caller = b.caller AND r.key = b.key

-- name: reserved_request
SELECT body_hash FROM onetray.request WHERE caller = :caller AND key = :key
