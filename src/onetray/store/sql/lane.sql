-- Lanes: tasks of a queue and a kind with the same values of the keys of its limits, and of what the kind is fair by.
-- Their ready rows have minus the key of the lane in place of the queue.

-- word: line
-- Where the ready row of the task t stands.
coalesce(-t.lane, t.queue)

-- name: find_lanes
-- A retired lane is taken back by add_lane.
SELECT l.value, l.key FROM onetray.lane AS l
WHERE l.queue = :queue AND l.kind = :kind AND l.value {in:values:text} AND l.retired_at IS NULL

-- name: add_lane
INSERT INTO onetray.lane (key, ns, queue, kind, value, fair, weight)
SELECT b.key, :ns, :queue, :kind, b.value, b.fair,
    coalesce((SELECT w.weight FROM onetray.lane_weight AS w WHERE w.kind = :kind AND w.value = b.fair), 1) {from_batch}
WHERE true ON CONFLICT (queue, kind, value) DO UPDATE SET retired_at = NULL

-- name: set_weight
INSERT INTO onetray.lane_weight (kind, value, weight) VALUES (:kind, :value, :weight)
ON CONFLICT (kind, value) DO UPDATE SET weight = excluded.weight

-- name: lanes_to_weigh
SELECT key FROM onetray.lane WHERE kind = :kind AND fair = :value ORDER BY key {for_no_key_update}

-- name: weigh_lanes
UPDATE onetray.lane SET weight = :weight WHERE key {in:keys:integer}

-- name: weight_of
SELECT value, weight FROM onetray.lane_weight WHERE kind = :kind AND value = :value

-- name: share_lanes
-- row: LaneEntryRow
-- After the ready rows are inserted: who finds a lane empty locks it against this, and looks again.
SELECT key, queue, kind, fair, state, rank, turn, retired_at FROM onetray.lane WHERE key {in:keys:integer}
ORDER BY key {for_key_share}

-- name: lock_lanes_to_open
-- row: LaneEntryRow
SELECT key, queue, kind, fair, state, rank, turn, retired_at FROM onetray.lane WHERE key {in:keys:integer}
ORDER BY key {for_no_key_update}

-- name: first_turns
-- The turn of the lane that is served next, of the same queue, kind and rank.
SELECT b.key, (SELECT l.turn FROM onetray.lane AS l WHERE l.state = 1 AND l.queue = b.queue AND l.kind = b.kind
    AND l.rank = b.rank ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT 1) {from_batch}

-- name: enter_lanes
-- A blocked lane stays blocked.
UPDATE onetray.lane SET state = b.lane_state, rank = b.rank, turn = b.turn, retired_at = NULL {from_batch}
WHERE lane.key = b.key

-- name: set_lanes
UPDATE onetray.lane SET state = b.lane_state, rank = b.rank, turn = b.turn, blocked_on = b.blocked_on,
    blocked_at = b.blocked_at, retired_at = NULL {from_batch} WHERE lane.key = b.key

-- name: open_lane_kinds
-- The kinds with open lanes in a queue, by one look at the index for each.
WITH RECURSIVE k(kind) AS (
    SELECT min(l.kind) FROM onetray.lane AS l WHERE l.queue = :queue AND l.state = 1
    UNION ALL SELECT (SELECT min(l.kind) FROM onetray.lane AS l WHERE l.queue = :queue AND l.state = 1 AND l.kind > k.kind)
    FROM k WHERE k.kind IS NOT NULL
) SELECT k.kind FROM k WHERE k.kind IS NOT NULL

-- name: ready_kinds_of_queue
-- The kinds with ready tasks in a queue, but not in its lanes.
WITH RECURSIVE k(kind) AS (
    SELECT min(r.kind) FROM onetray.ready AS r WHERE r.queue = :queue
    UNION ALL SELECT (SELECT min(r.kind) FROM onetray.ready AS r WHERE r.queue = :queue AND r.kind > k.kind)
    FROM k WHERE k.kind IS NOT NULL
) SELECT k.kind FROM k WHERE k.kind IS NOT NULL

-- name: heads_of_open_lanes
-- row: OpenLaneRow
SELECT l.rank, l.turn, l.key FROM onetray.lane AS l WHERE l.queue = :queue AND l.kind = :kind AND l.state = 1
    AND NOT l.key {in:but:integer}
ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT :limit

-- name: lock_open_lanes
-- row: LaneRow
{select_lane} WHERE l.queue = :queue AND l.kind = :kind AND l.state = 1 AND NOT l.key {in:but:integer}
ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT :limit {skip_locked_l}

-- name: lock_open_lane
-- row: LaneRow
-- Waits for the claim that serves it. By its key: of several, PostgreSQL would keep those locked that are no longer open.
{select_lane} WHERE l.key = :key AND l.state = 1 {for_no_key_update_of_l}

-- name: lock_lanes_by_key
-- row: LaneRow
{select_lane} WHERE l.key {in:keys:integer} AND l.state = 1 ORDER BY l.key {skip_locked_l}

-- word: select_lane
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM onetray.lane AS l

-- name: lock_blocked_lanes
-- row: BlockedLaneRow
-- The first lanes that each of these counters blocks.
SELECT l.key, l.queue, l.kind, l.fair, l.rank, l.turn, i.value AS blocked_on, l.value, l.weight {blocked_by_each}

-- name: still_blocked
SELECT i.value FROM {ids:keys:bigint}
WHERE EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = i.value)

-- name: blocked_of_rule
SELECT l.blocked_on, l.key FROM onetray.limit_bucket AS k JOIN onetray.lane AS l ON l.state = 2 AND l.blocked_on = k.key
WHERE k.rule = :rule LIMIT :limit

-- name: open_lanes_of_buckets
-- Of counters that are gone.
UPDATE onetray.lane SET state = 1, blocked_on = NULL, blocked_at = NULL WHERE state = 2 AND blocked_on {in:keys:bigint}

-- name: claim_lanes
-- row: ClaimedRow
-- The first tasks of each lane.
{claimable_of_lanes}

-- name: first_keys_of_lanes
-- The ranks and keys of the first tasks of each lane: one JSON object of texts, which are JSON.
SELECT {json_object}(i.value, CAST((SELECT {json_pairs} FROM (SELECT r.rank, r.task FROM onetray.ready AS r
    WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT :limit) AS f) AS text)) FROM {ids:lanes:integer}

-- name: claim_tasks
-- row: ClaimedRow
-- By their keys: the rank of a ready row is that of its task.
SELECT -t.priority AS rank, {rest_of_claimable} FROM {ids:keys:bigint} JOIN onetray.task AS t ON t.key = i.value

-- name: heads_of_lanes
-- row: LaneHeadRow
SELECT i.value AS key, (SELECT r.rank FROM onetray.ready AS r WHERE r.queue = -i.value
        ORDER BY r.queue, r.rank, r.task LIMIT 1) AS rank,
    (SELECT r.task FROM onetray.ready AS r WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT 1) AS task
FROM {ids:lanes:integer}

-- name: lock_empty_lanes
-- Skips lanes that a transaction has just put tasks into.
SELECT l.key FROM onetray.lane AS l WHERE l.key {in:keys:integer} ORDER BY l.key {skip_locked_empty}

-- name: values_of_lanes
SELECT l.key, l.value FROM onetray.lane AS l WHERE l.key {in:keys:integer}

-- name: idle_lanes
SELECT l.key FROM onetray.lane AS l
WHERE l.key > :after AND l.state = 0 AND (CAST(:ns AS integer) IS NULL OR l.ns = :ns) ORDER BY l.key LIMIT :limit

-- name: lanes_of_tasks
SELECT DISTINCT lane FROM onetray.task WHERE key > :after AND key <= :upto AND lane IS NOT NULL AND finished_at IS NULL

-- name: retire_lanes
UPDATE onetray.lane SET retired_at = :at WHERE key {in:keys:integer} AND state = 0 AND retired_at IS NULL

-- name: delete_lanes
DELETE FROM onetray.lane WHERE key {in:keys:integer} AND state = 0 AND retired_at <= :before RETURNING ns, kind

-- name: lock_idle_buckets
-- Counters of values that no task has. Skips those that a claim has locked: it may be about to take a slot.
SELECT k.key FROM onetray.limit_rule AS r JOIN onetray.limit_bucket AS k ON k.rule = r.key
WHERE r.kind {in:kinds:integer} AND {is_idle_k} LIMIT :limit {skip_locked_k}

-- word: is_idle_k
r.path <> '' AND k.running = 0 AND k.due_at IS NULL AND (k.starts = '[]' OR k.next_at < :now - r.period)
    AND NOT EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key)

-- name: delete_idle_buckets
-- After they are locked: a claim may have changed them, or blocked a lane, since lock_idle_buckets has looked. One that is
-- needed again is added again.
DELETE FROM onetray.limit_bucket WHERE key IN (
    SELECT k.key FROM onetray.limit_rule AS r JOIN onetray.limit_bucket AS k ON k.rule = r.key
    WHERE k.key {in:keys:bigint} AND {is_idle_k})
