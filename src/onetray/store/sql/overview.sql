-- The state of a namespace at a glance. Every count ends at a limit, so that it is fast however many tasks there are.

-- name: count_queues
-- row: QueueCountRow
-- The oldest ready task is the one with the lowest key among those that are claimed next.
SELECT q.key, q.name, q.paused_at, q.paused_by,
    (SELECT count(*) FROM (
        SELECT 1 FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.queue, r.rank, r.task LIMIT :most
    ) AS c) + (SELECT count(*) FROM (
        SELECT 1 FROM onetray.lane AS l {ready_of_l} WHERE l.queue = q.key AND l.state <> 0 LIMIT :most
    ) AS c) AS ready,
    (SELECT t.run_at FROM onetray.task AS t WHERE t.key = (SELECT min(o.task) FROM (
        SELECT * FROM (SELECT r.task FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.queue, r.rank, r.task LIMIT :most) AS p
        UNION ALL SELECT * FROM (SELECT r.task FROM onetray.lane AS l {ready_of_l}
            WHERE l.queue = q.key AND l.state <> 0 LIMIT :most) AS v
    ) AS o)) AS oldest_ready_at, {held_back_in_q} AS limited
FROM onetray.queue AS q WHERE q.ns = :ns ORDER BY q.name LIMIT :limit

-- name: count_delayed
-- The delayed tasks of each queue among those that are due next. With a subquery: for a join PostgreSQL may read all tasks.
SELECT w.queue, count(*) FROM (
    SELECT (SELECT t.queue FROM onetray.task AS t WHERE t.key = d.task AND t.ns = :ns AND {is_delayed}) AS queue
    FROM (SELECT n.at, n.task, n.what, n.fence FROM onetray.due AS n ORDER BY n.at, n.task, n.what LIMIT :most) AS d
) AS w WHERE w.queue IS NOT NULL GROUP BY w.queue

-- name: count_scanned
-- How many due rows and leased tasks the counts have seen: as many as the limit if there are more.
SELECT (SELECT count(*) FROM (SELECT 1 FROM onetray.due AS n LIMIT :due) AS d), (SELECT count(*) FROM ({leased}) AS h)

-- word: leased
SELECT j.value FROM onetray.lease AS l CROSS JOIN {lease_tasks} WHERE l.ns = :ns ORDER BY l.expires_at DESC LIMIT :most

-- name: held_now
-- row: HeldTaskRow
-- The tasks that workers hold, those that run the longest first.
SELECT t.owner, CAST(t.id AS text) AS id, k.name AS kind, q.name AS queue, t.state, t.started_at
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.queue AS q ON q.key = t.queue
WHERE t.key {in_query:leased} AND t.ns = :ns AND t.state IN ({task.held})
ORDER BY CASE WHEN t.state = :running THEN 0 ELSE 1 END, t.started_at, t.key

-- name: last_pauses
-- Why queues were paused, the last pause first.
SELECT eb.payload, eb.cause FROM onetray.event_batch AS eb
WHERE eb.type = :paused AND eb.ts >= :since AND eb.ns = :ns ORDER BY eb.ts DESC LIMIT :limit

-- name: number_of_queues
SELECT count(*) FROM (SELECT 1 FROM onetray.queue AS q WHERE q.ns = :ns LIMIT :most) AS c
