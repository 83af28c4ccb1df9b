-- Logs of tasks.

-- name: last_cursor
SELECT task, max(cursor) FROM onetray.log WHERE task {in:keys:bigint} GROUP BY task

-- name: insert_log
INSERT INTO onetray.log (task, cursor, ts, attempt, level, line, data)
SELECT b.key, b.cursor, b.at, b.attempt, b.level, b.line, b.data {from_batch}

-- name: logs_of
-- row: LogLine
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after ORDER BY l.cursor LIMIT :limit

-- name: first_lines
-- row: LogRow
-- The lines of a task's log are numbered from 1, without gaps.
SELECT l.task, l.cursor, l.ts, l.attempt, l.level, l.line, l.data FROM onetray.log AS l
WHERE l.task {in:keys:bigint} AND l.cursor <= :most ORDER BY l.task, l.cursor
