-- Progress and checkpoints of tasks.

-- name: set_progress
INSERT INTO onetray.progress (task, at, attempt, done, total, message, job, seq)
SELECT b.key, b.at, b.attempt, b.done, b.out_of, b.message, b.job, b.seq {from_batch} WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, done = excluded.done,
    total = excluded.total, message = excluded.message, job = excluded.job, seq = excluded.seq

-- name: progress_of
-- row: TaskProgress
SELECT p.at, p.attempt, p.done, p.total, p.message
FROM onetray.progress AS p JOIN onetray.task AS t ON t.key = p.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace

-- name: shares_of_tasks
-- row: TaskShareRow
-- With subqueries: for a join PostgreSQL would read the progress of all tasks.
SELECT CAST(t.id AS text) AS id, t.state, t.attempts,
    (SELECT p.attempt FROM onetray.progress AS p WHERE p.task = t.key) AS reported_on,
    (SELECT p.done FROM onetray.progress AS p WHERE p.task = t.key) AS done,
    (SELECT p.total FROM onetray.progress AS p WHERE p.task = t.key) AS out_of
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id {in:ids:uuid} AND n.name = :namespace

-- name: shares_of_stages
-- row: StageShareRow
SELECT CAST(f.id AS text) AS flow_id, f.state AS flow_state, s.key, s.state, s.total, s.open, s.succeeded
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns LEFT JOIN onetray.stage AS s ON s.job = f.key
WHERE f.id {in:ids:uuid} AND n.name = :namespace AND f.deleted_at IS NULL

-- name: set_checkpoint
INSERT INTO onetray.checkpoint (task, at, attempt, body)
SELECT b.key, b.at, b.attempt, b.body {from_batch} WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, body = excluded.body

-- name: copy_checkpoints
-- The successor of a task that has not succeeded goes on where that one was.
INSERT INTO onetray.checkpoint (task, at, attempt, body)
SELECT b.key, c.at, 0, c.body FROM onetray.checkpoint AS c {join_batch} c.task = b.task
WHERE EXISTS (SELECT 1 FROM onetray.task AS o WHERE o.key = c.task AND o.state <> :succeeded)

-- name: checkpoint_of
SELECT c.body
FROM onetray.checkpoint AS c JOIN onetray.task AS t ON t.key = c.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace

-- name: prune_progress
DELETE FROM onetray.progress WHERE task {in:keys:bigint}

-- name: prune_checkpoints
DELETE FROM onetray.checkpoint WHERE task {in:keys:bigint}

-- name: log_and_progress
-- row: LogAndProgressRow
-- What tasks, and the tasks of flows, have reported without an event: the number of their log lines, and their progress.
SELECT t.key, (SELECT max(l.cursor) FROM onetray.log AS l WHERE l.task = t.key) AS last_line,
    (SELECT p.at FROM onetray.progress AS p WHERE p.task = t.key) AS progress_at,
    (SELECT p.done FROM onetray.progress AS p WHERE p.task = t.key) AS done
FROM onetray.task AS t WHERE t.key {in:keys:bigint}
UNION ALL
SELECT f.key, (SELECT max(l.seq) FROM onetray.log AS l WHERE l.job = f.key),
    (SELECT max(p.seq) FROM onetray.progress AS p WHERE p.job = f.key), NULL
FROM onetray.flow AS f WHERE f.key {in:keys:bigint}
