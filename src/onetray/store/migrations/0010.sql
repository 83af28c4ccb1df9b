-- The errors of a stage's tasks: how many, and the first ones.
ALTER TABLE onetray.stage ADD COLUMN error_count integer NOT NULL DEFAULT 0;

ALTER TABLE onetray.stage ADD COLUMN errors text;

UPDATE onetray.stage SET error_count = failed + dead_lettered + partly;

-- Log lines and progress of the tasks of a flow have numbers in the order of the flow. Single tasks have none.
ALTER TABLE onetray.log ADD COLUMN job bigint;

ALTER TABLE onetray.log ADD COLUMN seq bigint;

UPDATE onetray.log SET job = n.job, seq = n.seq
FROM (
    SELECT l.task, l.cursor, t.job, row_number() OVER (PARTITION BY t.job ORDER BY l.ts, l.task, l.cursor) AS seq
    FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task WHERE t.stage IS NOT NULL
) AS n
WHERE log.task = n.task AND log.cursor = n.cursor;

CREATE UNIQUE INDEX log_job ON onetray.log (job, seq) WHERE job IS NOT NULL;

ALTER TABLE onetray.progress ADD COLUMN job bigint;

ALTER TABLE onetray.progress ADD COLUMN seq bigint;

UPDATE onetray.progress SET job = n.job, seq = n.seq
FROM (
    SELECT p.task, t.job, coalesce((SELECT max(l.seq) FROM onetray.log AS l WHERE l.job = t.job), 0)
        + row_number() OVER (PARTITION BY t.job ORDER BY p.at, p.task) AS seq
    FROM onetray.progress AS p JOIN onetray.task AS t ON t.key = p.task WHERE t.stage IS NOT NULL
) AS n
WHERE progress.task = n.task;

CREATE UNIQUE INDEX progress_job ON onetray.progress (job, seq) WHERE job IS NOT NULL;
