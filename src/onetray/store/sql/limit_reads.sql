-- Reads about limits for people: weights, what limits hold back, and why one task is held back.

-- name: weights_of_namespace
-- row: WeightRow
SELECT k.name AS kind, w.value, w.weight FROM onetray.lane_weight AS w JOIN onetray.kind AS k ON k.key = w.kind
WHERE k.ns = :ns AND (CAST(:kind AS text) IS NULL OR k.name = :kind) ORDER BY k.name, w.value LIMIT :limit

-- name: unkeyed_counters
-- row: BucketRow
SELECT {bucket_columns}, {clock} AS seen_at FROM onetray.limit_bucket AS k JOIN onetray.limit_rule AS r ON r.key = k.rule
WHERE r.ns = :ns AND r.path = ''

-- name: held_back_by_values
-- How many ready tasks wait in the lanes that a limit with a key blocks, counted up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM onetray.limit_bucket AS b JOIN onetray.lane AS l ON l.state = 2 AND l.blocked_on = b.key {ready_of_l}
    WHERE b.rule = :rule LIMIT :most
) AS c

-- name: ready_in_queue
-- How many tasks of a queue are ready, counted up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM onetray.ready AS r WHERE r.queue = :queue
    UNION ALL
    SELECT 1 FROM onetray.lane AS l {ready_of_l} WHERE l.queue = :queue AND l.state <> 0
    LIMIT :most
) AS c

-- name: ready_of_kind
-- The same of a kind, in all queues.
SELECT count(*) FROM (
    SELECT 1 FROM onetray.queue AS q {ready_of_kind} WHERE q.ns = :ns
    UNION ALL
    SELECT 1 FROM onetray.queue AS q JOIN onetray.lane AS l ON l.queue = q.key AND l.kind = :kind AND l.state <> 0
        {ready_of_l}
    WHERE q.ns = :ns
    LIMIT :most
) AS c

-- word: held_back_in_q
-- How many ready tasks of the queue q are held back: in blocked lanes, or by limits without a key that are used up. Kind by
-- kind: of a kind that is not limited, a million may be ready.
CASE WHEN q.limited = 0 THEN 0 ELSE (SELECT count(*) FROM (
        SELECT 1 FROM {ids:full_queues:integer} {ready_of_full_queue} WHERE i.value = q.key
        UNION ALL
        SELECT 1 FROM {ids:full_kinds:integer} {ready_of_full_kind} WHERE NOT q.key {in:full_queues:integer}
        UNION ALL
        SELECT 1 FROM onetray.lane AS l {ready_of_l}
        WHERE l.queue = q.key AND (l.state = 2 OR l.state = 1 AND (q.key {in:full_queues:integer} OR l.kind {in:full_kinds:integer}))
        LIMIT :most
    ) AS c) END

-- name: lane_of_task
-- row: LaneFacts
-- Where a ready task stands.
SELECT t.ns, t.queue, t.kind, q.limited, l.value, l.fair, l.weight, coalesce(l.state, 0) AS state, l.blocked_on,
    l.blocked_at,
    (SELECT count(*) FROM (SELECT 1 FROM onetray.lane AS o WHERE o.queue = t.queue AND o.kind = t.kind AND o.state = 1
        LIMIT :most) AS c) AS open_lanes,
    (SELECT count(*) FROM (SELECT 1 FROM onetray.lane AS o WHERE o.queue = t.queue AND o.kind = t.kind AND o.state = 1
        AND (o.rank, o.turn, o.key) < (l.rank, l.turn, l.key) LIMIT :most) AS c) AS lanes_before
FROM onetray.task AS t JOIN onetray.queue AS q ON q.key = t.queue LEFT JOIN onetray.lane AS l ON l.key = t.lane
WHERE t.key = :task
