-- The same conditions, in a cheaper form: SQLite builds a table for a list of more than two values, and looks it up for each
-- row. These lists took a third of the time of each UPDATE of a task.

-- only: sqlite
ALTER TABLE onetray.task DROP CONSTRAINT task_state_known;
ALTER TABLE onetray.task ADD CONSTRAINT task_state_known CHECK (
    CASE state WHEN 'succeeded' THEN 1 WHEN 'assigned' THEN 1 WHEN 'queued' THEN 1 WHEN 'running' THEN 1
        WHEN 'failed' THEN 1 WHEN 'cancelled' THEN 1 WHEN 'dead_lettered' THEN 1 WHEN 'blocked' THEN 1
        WHEN 'waiting_input' THEN 1 ELSE 0 END
);
ALTER TABLE onetray.task DROP CONSTRAINT task_finished_is_terminal;
ALTER TABLE onetray.task ADD CONSTRAINT task_finished_is_terminal CHECK (
    CASE state WHEN 'succeeded' THEN finished_at IS NOT NULL WHEN 'failed' THEN finished_at IS NOT NULL
        WHEN 'cancelled' THEN finished_at IS NOT NULL WHEN 'dead_lettered' THEN finished_at IS NOT NULL
        ELSE finished_at IS NULL END
);

-- only: sqlite
ALTER TABLE onetray.flow DROP CONSTRAINT flow_state_known;
ALTER TABLE onetray.flow ADD CONSTRAINT flow_state_known CHECK (
    CASE state WHEN 'running' THEN 1 WHEN 'succeeded' THEN 1 WHEN 'pending' THEN 1 WHEN 'created' THEN 1
        WHEN 'waiting' THEN 1 WHEN 'paused' THEN 1 WHEN 'partial' THEN 1 WHEN 'failed' THEN 1
        WHEN 'cancelled' THEN 1 ELSE 0 END
);
ALTER TABLE onetray.flow DROP CONSTRAINT flow_finished_is_terminal;
ALTER TABLE onetray.flow ADD CONSTRAINT flow_finished_is_terminal CHECK (
    CASE state WHEN 'succeeded' THEN finished_at IS NOT NULL WHEN 'partial' THEN finished_at IS NOT NULL
        WHEN 'failed' THEN finished_at IS NOT NULL WHEN 'cancelled' THEN finished_at IS NOT NULL
        ELSE finished_at IS NULL END
);

-- only: sqlite
ALTER TABLE onetray.stage DROP CONSTRAINT stage_state_known;
ALTER TABLE onetray.stage ADD CONSTRAINT stage_state_known CHECK (
    CASE state WHEN 'running' THEN 1 WHEN 'succeeded' THEN 1 WHEN 'created' THEN 1 WHEN 'pending' THEN 1
        WHEN 'waiting' THEN 1 WHEN 'partial' THEN 1 WHEN 'failed' THEN 1 WHEN 'skipped' THEN 1
        WHEN 'cancelled' THEN 1 ELSE 0 END
);
ALTER TABLE onetray.stage DROP CONSTRAINT stage_finished_is_terminal;
ALTER TABLE onetray.stage ADD CONSTRAINT stage_finished_is_terminal CHECK (
    CASE state WHEN 'succeeded' THEN finished_at IS NOT NULL WHEN 'partial' THEN finished_at IS NOT NULL
        WHEN 'failed' THEN finished_at IS NOT NULL WHEN 'skipped' THEN finished_at IS NOT NULL
        WHEN 'cancelled' THEN finished_at IS NOT NULL ELSE finished_at IS NULL END
);
