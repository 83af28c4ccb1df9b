-- What waits for a person: tasks and stages in certain states, dead letters.

-- name: insert_waiting
INSERT INTO onetray.waiting (key, ns, state, at) SELECT b.key, b.ns, b.state, b.at {from_batch}

-- name: delete_waiting
DELETE FROM onetray.waiting WHERE key {in:keys:bigint}

-- name: count_waiting
-- How many wait, counted up to a limit, and since when the first.
SELECT count(*), min(w.at) FROM (
    SELECT x.at FROM onetray.waiting AS x WHERE x.ns = :ns AND x.state = :state ORDER BY x.at LIMIT :most
) AS w

-- name: first_waiting_tasks
-- row: WaitingItem
SELECT CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name, w.at
FROM (
    SELECT x.key, x.at FROM onetray.waiting AS x WHERE x.ns = :ns AND x.state = :state ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN onetray.task AS t ON t.key = w.key JOIN onetray.kind AS k ON k.key = t.kind ORDER BY w.at, w.key

-- name: count_approvals
-- row: ApprovalCountRow
-- Of the stages that wait: how many there are, how many can be answered now, and since when the first of these. With a
-- subquery: for a join PostgreSQL may read all stages.
SELECT count(*) AS waiting, count(w.open_at) AS open, min(w.open_at) AS oldest_at FROM (
    SELECT CASE WHEN {is_turn} THEN x.at END AS open_at FROM ({first_that_wait}) AS x
) AS w

-- name: first_approvals
-- row: WaitingItem
SELECT CAST(s.id AS text) AS id, CAST(f.id AS text) AS job_id, s.name, w.at
FROM (
    SELECT x.key, x.at FROM ({first_that_wait}) AS x WHERE {is_turn} ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN onetray.stage AS s ON s.key = w.key JOIN onetray.flow AS f ON f.key = s.job ORDER BY w.at, w.key

-- word: first_that_wait
SELECT v.key, v.at FROM onetray.waiting AS v WHERE v.ns = :ns AND v.state = :state ORDER BY v.at, v.key LIMIT :most

-- word: is_turn
x.key = (SELECT f.current {flow_of_stage})

-- name: waiting_tasks_after
-- row: WaitingRow
SELECT w.key, CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name AS kind, t.name, w.at, 1 AS is_next
FROM (
    SELECT x.key, x.at FROM onetray.waiting AS x
    WHERE x.ns = :ns AND x.state = :state AND (x.at, x.key) > (:since, :after) ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN onetray.task AS t ON t.key = w.key JOIN onetray.kind AS k ON k.key = t.kind ORDER BY w.at, w.key

-- name: waiting_stages_after
-- row: WaitingRow
-- With subqueries: for a join PostgreSQL may read all stages.
SELECT x.key, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = x.key) AS id,
    (SELECT CAST(f.id AS text) {flow_of_stage}) AS job_id,
    (SELECT (SELECT k.name FROM onetray.kind AS k WHERE k.key = f.kind) {flow_of_stage}) AS kind,
    (SELECT s.name FROM onetray.stage AS s WHERE s.key = x.key) AS name, x.at,
    CASE WHEN {is_turn} THEN 1 ELSE 0 END AS is_next
FROM (
    SELECT v.key, v.at FROM onetray.waiting AS v
    WHERE v.ns = :ns AND v.state = :state AND (v.at, v.key) > (:since, :after) ORDER BY v.at, v.key LIMIT :limit
) AS x ORDER BY x.at, x.key

-- word: flow_of_stage
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job WHERE s.key = x.key

-- name: count_open_letters
-- Dead letters that nobody has redriven, counted up to a limit, and since when the first.
SELECT count(*), min(o.created_at) FROM (
    SELECT d.created_at FROM onetray.dead_letter AS d WHERE d.ns = :ns AND d.successor IS NULL ORDER BY d.task LIMIT :most
) AS o

-- name: first_open_letters
-- row: WaitingItem
SELECT CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name, o.created_at AS at
FROM (
    SELECT d.task, d.created_at FROM onetray.dead_letter AS d WHERE d.ns = :ns AND d.successor IS NULL
    ORDER BY d.task LIMIT :limit
) AS o JOIN onetray.task AS t ON t.key = o.task JOIN onetray.kind AS k ON k.key = t.kind ORDER BY o.task
