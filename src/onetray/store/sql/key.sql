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

-- name: lock_windows
-- Inserts missing windows without a job, and locks the others without changing them. The next statement reads them.
INSERT INTO onetray.submit_window (kind, mode, key, job, opened_at, until_at, replaced)
SELECT b.kind, b.mode, b.key, 0, 0, 0, 0 {from_batch} WHERE true
ON CONFLICT (kind, mode, key) DO UPDATE SET job = excluded.job WHERE false

-- name: windows_held
-- row: WindowRow
SELECT w.kind, w.mode, w.key, w.job, w.opened_at, w.until_at, w.replaced, CAST(t.id AS text) AS id, t.state, t.fence, t.version
FROM onetray.submit_window AS w LEFT JOIN onetray.task AS t ON t.key = w.job
    {join_batch} w.kind = b.kind AND w.mode = b.mode AND w.key = b.key

-- name: save_window
UPDATE onetray.submit_window SET job = b.job, opened_at = b.opened_at, until_at = b.until_at, replaced = b.replaced {from_batch}
WHERE submit_window.kind = b.kind AND submit_window.mode = b.mode AND submit_window.key = b.key

-- name: drop_window
-- One that was only inserted to lock it.
DELETE FROM onetray.submit_window {using_batch} submit_window.kind = b.kind AND submit_window.mode = b.mode
    AND submit_window.key = b.key

-- name: debounced_job
-- row: DebouncedRow
SELECT w.until_at, w.replaced FROM onetray.submit_window AS w WHERE w.job = :job AND w.mode = :mode

-- name: insert_label
INSERT INTO onetray.label (job, name, value, ns) SELECT b.job, b.name, b.value, b.ns {from_batch}

-- name: copy_labels
INSERT INTO onetray.label (job, name, value, ns)
SELECT :to, name, value, ns FROM onetray.label WHERE job = :of
