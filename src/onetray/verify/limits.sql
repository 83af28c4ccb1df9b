-- Limits: counters count what workers hold, and nothing waits for a slot that is free.

-- pass: slots
-- where: limits
-- check: 20 slots_held: only a task that a worker holds has slots of limits
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.slots, true AS slots_held
FROM onetray.task AS t WHERE t.slots IS NOT NULL AND t.state NOT IN ({task.held})

-- pass: counters
-- where: limits
-- check: 20 slots_counted: a counter of a limit counts the held tasks that name it
-- check: 20 limit_kept: no counter is above its limit, unless the limit was lowered
SELECT k.key AS counter, k.rule, k.value, k.running, coalesce(h.held, 0) AS held, r.most, r.what, r.lowered_at,
    k.running <> coalesce(h.held, 0) AS slots_counted,
    r.what = 'concurrency' AND k.running > r.most AND r.lowered_at IS NULL AS limit_kept
FROM onetray.limit_bucket AS k JOIN onetray.limit_rule AS r ON r.key = k.rule LEFT JOIN (
    SELECT j.value AS key, count(*) AS held FROM onetray.task AS t CROSS JOIN {slots_in}
    WHERE t.slots IS NOT NULL GROUP BY j.value
) AS h ON h.key = k.key

-- pass: lanes
-- where: lanes
-- check: 20 lane_open: a lane with ready tasks is open or blocked, in the place of its first task
-- check: 20 lane_blocked: a blocked lane waits for a counter that is full, or for a due row
-- check: 20 lane_limited: a queue with a lane is marked, so that claims look at its lanes
SELECT l.key AS lane, l.queue, l.kind, l.value, l.state, l.rank, h.rank AS first_rank, l.blocked_on, k.running, r.most,
    h.rank IS NOT NULL AND (l.state = 0 OR l.rank > h.rank) AND NOT EXISTS (
        SELECT 1 FROM onetray.due AS d WHERE d.task = l.key AND d.what = {due:open_lane}) AS lane_open,
    l.state = 2 AND (r.key IS NULL OR CASE WHEN r.what = 'concurrency' THEN k.running < r.most ELSE r.most > 0 END)
        AND NOT EXISTS (SELECT 1 FROM onetray.due AS d WHERE d.task = k.key AND d.what = {due:open_limit})
        AND NOT EXISTS (SELECT 1 FROM onetray.due AS d WHERE d.task = r.key AND d.what = {due:open_rule}) AS lane_blocked,
    q.limited = 0 AS lane_limited
FROM onetray.lane AS l JOIN onetray.queue AS q ON q.key = l.queue
    LEFT JOIN (SELECT g.queue, min(g.rank) AS rank FROM onetray.ready AS g WHERE g.queue < 0 GROUP BY g.queue) AS h
        ON h.queue = -l.key
    LEFT JOIN onetray.limit_bucket AS k ON k.key = l.blocked_on LEFT JOIN onetray.limit_rule AS r ON r.key = k.rule

-- pass: limits
-- where: limits
-- check: 20 limit_marked: the queues that a limit covers are marked, so that claims look at it
-- check: 20 limit_in_force: a new limit has a due row until it is in force
SELECT r.key AS limit_id, r.ns, r.queue, r.kind, r.path, r.what, q.name AS queue_name,
    q.limited = 0 AS limit_marked,
    r.counted = 0 AND NOT EXISTS (
        SELECT 1 FROM onetray.due AS d WHERE d.task = r.key AND d.what = {due:count_limit}) AS limit_in_force
FROM onetray.limit_rule AS r JOIN onetray.queue AS q ON q.ns = r.ns AND (r.kind <> 0 OR q.key = r.queue)

-- pass: tasks_in_lanes
-- where: lanes
-- check: 12 lane_known: a task that has not ended refers to an existing lane of its queue and kind
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.lane, t.queue, t.kind, true AS lane_known
FROM onetray.task AS t LEFT JOIN onetray.lane AS l ON l.key = t.lane
WHERE t.lane IS NOT NULL AND t.state IN ({task.unended}) AND (l.key IS NULL OR l.queue <> t.queue OR l.kind <> t.kind)
