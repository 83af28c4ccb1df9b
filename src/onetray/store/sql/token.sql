-- API tokens of a server.

-- name: add_token
-- A repeated write, after its outcome was unknown, updates the times to those that the caller returns.
INSERT INTO onetray.token (id, hash, name, namespace, scopes, member_of, created_at, expires_at)
VALUES (:id, :hash, :name, :namespace, :scopes, :member_of, :created_at, :expires_at)
ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE token.hash = excluded.hash

-- word: select_token
SELECT id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, {clock} AS seen_at
FROM onetray.token

-- name: tokens
-- row: TokenRow
{select_token} WHERE CAST(:of_namespace AS text) IS NULL OR namespace = :of_namespace
ORDER BY created_at DESC, id LIMIT :limit

-- name: tokens_by_id
-- row: TokenRow
{select_token} WHERE id {in:ids:text}

-- name: any_token
SELECT 1 FROM onetray.token LIMIT 1

-- name: revoke_token
-- A second revocation does not change the time.
UPDATE onetray.token SET revoked_at = :at WHERE id = :id AND revoked_at IS NULL RETURNING id

-- name: use_token
UPDATE onetray.token SET used_at = :at WHERE id = :id AND (used_at IS NULL OR used_at <= :before)
