-- Metadata and trace state of tasks, the type of a stage, the priority of a flow, and how many tasks of a stage are being
-- retried.
ALTER TABLE onetray.task ADD COLUMN metadata text;

ALTER TABLE onetray.task ADD COLUMN tracestate text;

-- The stage's name, unless it was given a type of its own.
ALTER TABLE onetray.stage ADD COLUMN type text;

ALTER TABLE onetray.stage ADD COLUMN tracestate text;

-- Open tasks that have a failed attempt behind them.
ALTER TABLE onetray.stage ADD COLUMN retrying integer NOT NULL DEFAULT 0;

UPDATE onetray.stage SET retrying = (
    SELECT count(*) FROM onetray.task AS t
    WHERE t.stage = stage.key AND t.control = 0 AND (t.state IN ('queued', 'blocked', 'waiting_input') AND t.attempts > 0
        OR t.state IN ('assigned', 'running') AND t.attempts > 1)
);

-- Set while a user cancels this stage alone: hard or soft.
ALTER TABLE onetray.stage ADD COLUMN ending_how text;

ALTER TABLE onetray.flow ADD COLUMN priority integer NOT NULL DEFAULT 0;

ALTER TABLE onetray.flow ADD COLUMN tracestate text;
