-- What decides whether something ended can run again, besides its state.

-- name: redrive_facts
-- row: RedriveFacts
SELECT t.key, t.state, t.control, t.spawned_by, t.job, t.stage, s.ord, s.state AS stage_state, s.ending AS stage_ending,
    s.redriven, s.opened_at, f.state AS flow_state, f.ending AS flow_ending, f.roll_up, f.compensation,
    (SELECT u.key FROM onetray.dead_letter AS d JOIN onetray.task AS u ON u.key = d.successor WHERE d.task = t.key)
    AS successor
FROM onetray.task AS t LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
WHERE t.key {in:keys:bigint}

-- name: states_of_needs
-- row: NeedRow
-- What tasks depend on. With a subquery for each column: for a join PostgreSQL may read all tasks.
SELECT d.task, d.needs AS key, (SELECT t.stage FROM onetray.task AS t WHERE t.key = d.needs) AS stage,
    (SELECT o.state FROM onetray.task AS o WHERE o.key = d.needs) AS state
FROM onetray.dependency AS d WHERE d.task {in:keys:bigint} ORDER BY d.task, d.needs

-- name: spawner
-- row: SpawnerRow
SELECT t.key, t.stage, t.state, t.spawned_by, t.cancel_at, s.ord,
    (SELECT {entry:actor} FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) AS ended_by
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage WHERE t.key = :key

-- name: retry_facts
-- row: RetryFacts
-- Whether another flow of its name is open and only one may be, and whether a stage of it was carried over.
-- Subqueries that count cannot be turned into scans of whole tables, as EXISTS can.
SELECT f.key, CASE WHEN f.compensates IS NULL THEN (
        SELECT count(*) FROM onetray.unique_key AS u JOIN onetray.flow AS g ON g.key = u.job
        WHERE u.kind = f.kind AND u.key = :singleton AND g.finished_at IS NULL) ELSE 0 END AS is_taken,
    (SELECT count(s.carried_from) FROM onetray.stage AS s WHERE s.job = f.key) AS has_carried, f.compensation
FROM onetray.flow AS f WHERE f.key {in:keys:bigint}
