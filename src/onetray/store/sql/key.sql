-- Idempotency keys and unique keys of submits, labels of jobs.

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

-- name: link_key
-- A submit whose unique key is taken creates no job: its idempotency key then refers to the holder of the unique key.
UPDATE onetray.idempotency SET job = b.job {from_batch} WHERE idempotency.kind = b.kind AND idempotency.key = b.key

-- name: free_key
-- A rejected submit leaves no key: it can be sent again.
DELETE FROM onetray.idempotency {using_batch} idempotency.kind = b.kind AND idempotency.key = b.key

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
