-- name: count_events
-- row: EventCountRow
-- New events by type and kind, dead letters by reason. PostgreSQL expects far too many events: to join them with tasks it
-- would read all tasks.
SELECT n.name AS namespace, e.type, k.name AS kind, e.reason, count(*) AS number
FROM (
    SELECT v.ns, v.type, (SELECT t.kind FROM onetray.task AS t WHERE t.key = v.entity) AS kind, CASE WHEN v.type = :dead THEN
        (SELECT d.reason_code FROM onetray.dead_letter AS d WHERE d.task = v.entity) END AS reason
    FROM {new_events} AS v
) AS e
    JOIN onetray.namespace AS n ON n.key = e.ns
    LEFT JOIN onetray.kind AS k ON k.key = e.kind
GROUP BY 1, 2, 3, 4

-- name: times_of_ended
-- row: DurationRow
-- A histogram of newly ended tasks: how long they waited for their last attempt or, with `ran`, how long it took.
-- Tasks that never started are not counted.
SELECT n.name AS namespace, k.name AS kind, CASE
        WHEN {us} <= 5000 THEN 0 WHEN {us} <= 10000 THEN 1 WHEN {us} <= 25000 THEN 2 WHEN {us} <= 50000 THEN 3
        WHEN {us} <= 100000 THEN 4 WHEN {us} <= 250000 THEN 5 WHEN {us} <= 500000 THEN 6 WHEN {us} <= 1000000 THEN 7
        WHEN {us} <= 2500000 THEN 8 WHEN {us} <= 5000000 THEN 9 WHEN {us} <= 10000000 THEN 10
        WHEN {us} <= 60000000 THEN 11 WHEN {us} <= 600000000 THEN 12 WHEN {us} <= 3600000000 THEN 13 ELSE 14 END AS bucket,
    count(*) AS number, sum({us}) AS us
FROM onetray.task AS t
    JOIN onetray.namespace AS n ON n.key = t.ns
    JOIN onetray.kind AS k ON k.key = t.kind
WHERE t.key {in_query:newly_ended} AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL
GROUP BY 1, 2, 3

-- word: newly_ended
SELECT e.entity FROM {new_events} AS e WHERE e.type {in:ends:text}

-- word: us
CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END

-- word: new_events
(
    SELECT v.entity, v.ns, v.type FROM onetray.event AS v
    WHERE v.batch >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0) AND v.batch <= :upto
        AND v.id > :after AND v.id <= :upto
)

-- name: count_events_after
SELECT CAST(coalesce(sum(eb.size), 0) AS bigint) FROM onetray.event_batch AS eb WHERE eb.id > :after AND eb.id <= :upto

-- name: count_first_events
-- How many events the first rows of the log have.
SELECT CAST(coalesce(sum(r.size), 0) AS bigint)
FROM (SELECT eb.size FROM onetray.event_batch AS eb ORDER BY eb.id LIMIT :rows) AS r

-- name: add_tally
INSERT INTO onetray.tally (ns, name, value) SELECT b.ns, b.name, b.value {from_batch} WHERE true
ON CONFLICT (ns, name) DO UPDATE SET value = tally.value + excluded.value

-- name: tallies
SELECT y.name, y.value FROM onetray.tally AS y JOIN onetray.namespace AS n ON n.key = y.ns WHERE n.name = :namespace

-- name: count_workers
-- The workers that are alive.
SELECT count(*) FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > {clock}

-- name: tasks_of_workers
-- row: WorkerTasksRow
-- How many tasks each worker holds: as it says itself, or if it does not register, as its leases say.
SELECT w.name, w.running, w.claimed FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > {clock}
UNION ALL
SELECT l.worker, sum(CASE WHEN t.state = :running THEN 1 ELSE 0 END), count(*)
FROM onetray.lease AS l JOIN onetray.namespace AS o ON o.key = l.ns CROSS JOIN {lease_tasks}
    JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
WHERE o.name = :namespace AND NOT EXISTS (SELECT 1 FROM onetray.worker AS r
    WHERE r.ns = l.ns AND r.name = l.worker AND r.expires_at > {clock})
GROUP BY l.worker ORDER BY 1 LIMIT :limit
