-- Bulk operations: actions on all jobs that match filters.

-- name: insert_bulk
INSERT INTO onetray.bulk (id, ns, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at,
    most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
VALUES (:id, :ns, :action, :filters, :options, :reason, :state, :at, :by, :at, NULL, :most, :canary, :place, 0, 0, 0, 0,
    '[]', '[]')
ON CONFLICT (id) DO NOTHING RETURNING 1

-- name: prune_bulks
-- Finished ones past the newest of a namespace.
DELETE FROM onetray.bulk WHERE ns = :ns AND finished_at IS NOT NULL AND created_at < (
    SELECT min(o.created_at) FROM (
        SELECT x.created_at FROM onetray.bulk AS x WHERE x.ns = :ns ORDER BY x.created_at DESC LIMIT :keep) AS o)

-- name: bulk_by_id
-- row: BulkRow
{select_bulk} WHERE o.id = :id AND n.name = :namespace

-- name: list_bulks
-- row: BulkRow
{select_bulk} WHERE n.name = :namespace AND (CAST(:unfinished AS integer) = 0 OR o.finished_at IS NULL)
ORDER BY o.created_at DESC, o.id DESC LIMIT :limit

-- name: next_bulk
-- row: BulkRow
-- The one that has waited longest.
{select_bulk} WHERE o.finished_at IS NULL AND o.state = :state ORDER BY o.updated_at, o.id LIMIT 1

-- name: lock_bulk
-- Nothing if it has changed, or another transaction works on it.
SELECT o.place FROM onetray.bulk AS o WHERE o.id = :id AND o.state = :state AND o.place = :place AND o.done = :done
    AND o.refused = :refused
{skip_locked_keys}

-- name: wait_for_bulk
-- row: BulkRow
{select_bulk} WHERE o.id = :id AND o.ns = :ns {for_update_of_bulk}

-- name: advance_bulk
UPDATE onetray.bulk SET place = :place, done = done + :done, repeated = repeated + :repeated, refused = refused + :refused,
    skipped = skipped + :skipped, refusals = :refusals, canary_ids = :canary_ids, state = :state, updated_at = :at,
    finished_at = :finished_at
WHERE id = :id

-- name: set_bulk_state
UPDATE onetray.bulk SET state = :state, updated_at = :at, finished_at = :finished_at WHERE id = :id

-- word: select_bulk
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM onetray.bulk AS o JOIN onetray.namespace AS n ON n.key = o.ns

-- name: states_of_tasks
SELECT t.state FROM onetray.task AS t WHERE t.id {in:ids:uuid}
