-- Logs of tasks, and what all tasks of a flow report.

-- name: last_report_numbers
-- The last number of what the tasks of each flow have reported: log lines and progress are numbered together.
SELECT f.key, {greatest}(coalesce((SELECT max(l.seq) FROM onetray.log AS l WHERE l.job = f.key), 0),
    coalesce((SELECT max(p.seq) FROM onetray.progress AS p WHERE p.job = f.key), 0))
FROM onetray.flow AS f WHERE f.key {in:keys:bigint}

-- name: reports_of_flow
-- row: MemberReport
SELECT r.seq AS cursor, r.ts, s.name AS stage, CAST(t.id AS text) AS task, t.name, r.attempt, r.level, r.line, r.data,
    r.done, r.total, r.message
FROM (
    SELECT * FROM (
        SELECT l.seq, l.task, l.ts, l.attempt, l.level, l.line, l.data, CAST(NULL AS double precision) AS done,
            CAST(NULL AS double precision) AS total, CAST(NULL AS text) AS message
        FROM onetray.log AS l WHERE l.job = :job AND l.seq > :after ORDER BY l.seq LIMIT :limit
    ) AS lines
    UNION ALL
    SELECT * FROM (
        SELECT p.seq, p.task, p.at, p.attempt, NULL, NULL, NULL, p.done, p.total, p.message
        FROM onetray.progress AS p WHERE p.job = :job AND p.seq > :after ORDER BY p.seq LIMIT :limit
    ) AS latest
) AS r JOIN onetray.task AS t ON t.key = r.task JOIN onetray.stage AS s ON s.key = t.stage
ORDER BY r.seq LIMIT :limit

-- name: last_reports_of_flow
-- row: MemberReport
SELECT r.seq AS cursor, r.ts, s.name AS stage, CAST(t.id AS text) AS task, t.name, r.attempt, r.level, r.line, r.data,
    r.done, r.total, r.message
FROM (
    SELECT * FROM (
        SELECT l.seq, l.task, l.ts, l.attempt, l.level, l.line, l.data, CAST(NULL AS double precision) AS done,
            CAST(NULL AS double precision) AS total, CAST(NULL AS text) AS message
        FROM onetray.log AS l WHERE l.job = :job AND l.seq > :after AND l.seq < :before ORDER BY l.seq DESC LIMIT :limit
    ) AS lines
    UNION ALL
    SELECT * FROM (
        SELECT p.seq, p.task, p.at, p.attempt, NULL, NULL, NULL, p.done, p.total, p.message
        FROM onetray.progress AS p WHERE p.job = :job AND p.seq > :after AND p.seq < :before ORDER BY p.seq DESC LIMIT :limit
    ) AS latest
) AS r JOIN onetray.task AS t ON t.key = r.task JOIN onetray.stage AS s ON s.key = t.stage
ORDER BY r.seq DESC LIMIT :limit

-- name: last_cursor
SELECT task, max(cursor) FROM onetray.log WHERE task {in:keys:bigint} GROUP BY task

-- name: insert_log
INSERT INTO onetray.log (task, cursor, ts, attempt, level, line, data, job, seq)
SELECT b.key, b.cursor, b.at, b.attempt, b.level, b.line, b.data, b.job, b.seq {from_batch}

-- name: logs_of
-- row: LogLine
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after ORDER BY l.cursor LIMIT :limit

-- name: last_logs_of
-- row: LogLine
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after AND l.cursor < :before ORDER BY l.cursor DESC LIMIT :limit

-- name: first_lines
-- row: LogRow
-- The lines of a task's log are numbered from 1, without gaps.
SELECT l.task, l.cursor, l.ts, l.attempt, l.level, l.line, l.data FROM onetray.log AS l
WHERE l.task {in:keys:bigint} AND l.cursor <= :most ORDER BY l.task, l.cursor
