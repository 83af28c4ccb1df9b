-- What decides whether something ended can run again, besides its state.

-- name: redrive_facts
-- row: RedriveFacts
SELECT t.key, t.state, t.control, t.spawned_by, t.job, t.stage, s.ord, s.state AS stage_state, s.ending AS stage_ending,
    s.redriven, s.opened_at, f.state AS flow_state, f.ending AS flow_ending, f.roll_up, f.compensation, u.key AS successor
FROM onetray.task AS t LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
    LEFT JOIN onetray.dead_letter AS d ON d.task = t.key LEFT JOIN onetray.task AS u ON u.key = d.successor
WHERE t.key {in:keys:bigint}

-- name: unmet_needs
-- row: UnmetNeedRow
-- What tasks depend on that has ended, but not well.
SELECT d.task, t.key, t.stage, s.redriven
FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs JOIN onetray.stage AS s ON s.key = t.stage
WHERE d.task {in:keys:bigint} AND t.state IN ({task.terminal}) AND t.state <> :met

-- name: spawner
-- row: SpawnerRow
SELECT t.key, t.stage, t.state, t.spawned_by, t.cancel_at, s.ord,
    (SELECT {entry:actor} FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) AS ended_by
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage WHERE t.key = :key

-- name: retry_facts
-- row: RetryFacts
-- Whether another flow of its name is open and only one may be, and whether a stage of it was carried over.
SELECT f.key, CASE WHEN f.compensates IS NULL AND EXISTS (
        SELECT 1 FROM onetray.unique_key AS u JOIN onetray.flow AS g ON g.key = u.job
        WHERE u.kind = f.kind AND u.key = :singleton AND g.finished_at IS NULL) THEN 1 ELSE 0 END AS is_taken,
    CASE WHEN EXISTS (SELECT 1 FROM onetray.stage AS s WHERE s.job = f.key AND s.carried_from IS NOT NULL)
        THEN 1 ELSE 0 END AS has_carried, f.compensation
FROM onetray.flow AS f WHERE f.key {in:keys:bigint}
