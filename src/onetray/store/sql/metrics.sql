-- name: count_events
-- What came into the log past a place: how often, of which kind. Dead letters by their reason. The window's end is cut
-- off outside, as in events_after.
SELECT n.name, e.type, k.name, CASE WHEN e.type = :dead THEN d.reason_code END, count(*)
FROM (SELECT * FROM onetray.event WHERE id > :after ORDER BY id LIMIT :scan) AS e
    JOIN onetray.namespace AS n ON n.key = e.ns
    LEFT JOIN onetray.task AS t ON t.key = e.entity
    LEFT JOIN onetray.kind AS k ON k.key = t.kind
    LEFT JOIN onetray.dead_letter AS d ON d.task = t.key
WHERE e.id <= :upto
GROUP BY 1, 2, 3, 4

-- name: times_of_ended
-- How long the tasks that have ended since waited for their last attempt (0), and how long it ran (1): how many are in
-- each bucket, and their sum. A task that was never begun has neither.
WITH ended AS (
    SELECT e.ns, t.kind, t.run_at, t.started_at, t.finished_at
    FROM (SELECT * FROM onetray.event WHERE id > :after ORDER BY id LIMIT :scan) AS e
        JOIN onetray.task AS t ON t.key = e.entity
    WHERE e.id <= :upto AND e.type {in:ends:text} AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL
), took AS (
    SELECT ns, kind, 0 AS what, CASE WHEN started_at > run_at THEN started_at - run_at ELSE 0 END AS us FROM ended
    UNION ALL SELECT ns, kind, 1, finished_at - started_at FROM ended
)
SELECT n.name, k.name, w.what, CASE
        WHEN w.us <= 5000 THEN 0 WHEN w.us <= 10000 THEN 1 WHEN w.us <= 25000 THEN 2 WHEN w.us <= 50000 THEN 3
        WHEN w.us <= 100000 THEN 4 WHEN w.us <= 250000 THEN 5 WHEN w.us <= 500000 THEN 6 WHEN w.us <= 1000000 THEN 7
        WHEN w.us <= 2500000 THEN 8 WHEN w.us <= 5000000 THEN 9 WHEN w.us <= 10000000 THEN 10
        WHEN w.us <= 60000000 THEN 11 WHEN w.us <= 600000000 THEN 12 WHEN w.us <= 3600000000 THEN 13 ELSE 14 END,
    count(*), sum(w.us)
FROM took AS w JOIN onetray.namespace AS n ON n.key = w.ns JOIN onetray.kind AS k ON k.key = w.kind
GROUP BY 1, 2, 3, 4
