-- Rows that are kept for the overview: what waits for a person, and the numbers of the statistics.

-- pass: waiting_rows
-- check: 12 waiting_listed: a task or a stage is listed as waiting exactly while it waits for a person
SELECT x.key AS task, x.ns, x.state, sum(x.waits) AS waits, sum(x.listed) AS listed, true AS waiting_listed
FROM (
    SELECT t.key, t.ns, t.state, 1 AS waits, 0 AS listed FROM onetray.task AS t WHERE t.state IN ({task.paused})
    UNION ALL SELECT s.key, s.ns, s.state, 1, 0 FROM onetray.stage AS s WHERE s.state = {stage.state:waiting}
    UNION ALL SELECT w.key, w.ns, w.state, 0, 1 FROM onetray.waiting AS w
) AS x
GROUP BY x.key, x.ns, x.state HAVING sum(x.waits) <> sum(x.listed)

-- pass: statistics
-- check: 18 counted_once: the numbers of a minute are those of the log, unless some of it was deleted
-- Notes may be deleted alone: of these there may be fewer in the log.
SELECT c.at, c.ns, c.type, c.counted, c.logged, true AS counted_once
FROM (
    SELECT u.ns, u.at, u.type, sum(u.counted) AS counted, sum(u.logged) AS logged FROM (
        SELECT s.ns, s.at, s.type, s.number AS counted, 0 AS logged
        FROM onetray.statistic AS s CROSS JOIN onetray.statistic_cursor AS k
        WHERE s.span = 60 AND s.type NOT IN ({histograms}) AND s.at > k.removed_at
        UNION ALL
        SELECT e.ns, e.ts / 60000000 * 60000000, e.type, 0, count(*)
        FROM event_rows AS e CROSS JOIN onetray.statistic_cursor AS k
        WHERE e.id > k.since AND e.id <= k.upto AND e.ts / 60000000 * 60000000 > k.removed_at GROUP BY 1, 2, 3
    ) AS u GROUP BY 1, 2, 3
) AS c
WHERE c.counted < c.logged OR c.counted > c.logged AND c.type IN ({events})

-- pass: statistics_by_hour
-- check: 18 hours_add_up: the numbers of an hour are those of its minutes
SELECT c.at, c.ns, c.type, c.bucket, c.of_minutes, c.of_hour, true AS hours_add_up
FROM (
    SELECT u.ns, u.at, u.type, u.bucket, sum(u.of_minutes) AS of_minutes, sum(u.of_hour) AS of_hour FROM (
        SELECT s.ns, s.at / 3600000000 * 3600000000 AS at, s.type, s.bucket,
            CASE WHEN s.span = 60 THEN s.number ELSE 0 END AS of_minutes,
            CASE WHEN s.span = 60 THEN 0 ELSE s.number END AS of_hour
        FROM onetray.statistic AS s
    ) AS u CROSS JOIN onetray.statistic_cursor AS k WHERE u.at > k.removed_at GROUP BY 1, 2, 3, 4
) AS c
WHERE c.of_minutes <> c.of_hour
