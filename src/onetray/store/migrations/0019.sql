-- What is submitted at which times. Any janitor fires the schedules whose `look_at` has come.
CREATE TABLE onetray.schedule (
    key bigint PRIMARY KEY,
    ns integer NOT NULL,
    name text NOT NULL,
    -- The definition, as JSON, and its hash.
    body text NOT NULL,
    version text NOT NULL,
    -- `code` with the name of its app, or `operator`.
    source text NOT NULL,
    app text,
    -- Rises with every change: whoever has read an older one writes nothing.
    turn bigint NOT NULL,
    -- Null while it is paused, and after its end.
    next_fire_at bigint,
    last_fire_at bigint,
    -- When a janitor looks at it next.
    look_at bigint,
    failures integer NOT NULL,
    fires bigint NOT NULL,
    -- Fire times before this one are forgotten.
    kept_from bigint NOT NULL,
    paused_at bigint,
    paused_by text,
    paused_why text,
    orphaned_at bigint,
    -- When the app was last seen to declare it, and to declare this version of it.
    seen_at bigint,
    version_seen_at bigint,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    updated_at bigint NOT NULL,
    UNIQUE (ns, name),
    CONSTRAINT schedule_rests CHECK (look_at IS NULL OR (paused_at IS NULL AND orphaned_at IS NULL))
) {strict};

CREATE INDEX schedule_look ON onetray.schedule (look_at) WHERE look_at IS NOT NULL;

-- What each fire time has come to. The row is written in the transaction that submits: so a fire time has one job.
CREATE TABLE onetray.schedule_fire (
    schedule bigint NOT NULL,
    fire_at bigint NOT NULL,
    -- 1: triggered by a person, outside of the calendar.
    manual integer NOT NULL,
    outcome text NOT NULL,
    job_id uuid,
    actor text NOT NULL,
    at bigint NOT NULL,
    why text,
    -- How many further fire times it stands for.
    missed bigint NOT NULL,
    -- 1: waits for its turn, or its job has not been seen to have ended.
    open integer NOT NULL,
    PRIMARY KEY (schedule, fire_at, manual)
) {without_rowid};

CREATE INDEX schedule_fire_open ON onetray.schedule_fire (schedule, fire_at) WHERE open = 1;

-- With the types of schedules.
DROP INDEX onetray.event_batch_audit;

CREATE INDEX event_batch_audit ON onetray.event_batch (id)
WHERE coalesce(substr(actor, 1, 5), 'user:') = 'user:' AND CASE type
    WHEN 'task.submitted' THEN cause IS NOT NULL OR replace(varied, '"cause":', '') <> varied
    WHEN 'flow.submitted' THEN cause IS NOT NULL OR replace(varied, '"cause":', '') <> varied
    WHEN 'task.cancelled' THEN true WHEN 'task.cancel_requested' THEN true WHEN 'task.resumed' THEN true
    WHEN 'task.priority_set' THEN true WHEN 'task.rescheduled' THEN true WHEN 'stage.waiting' THEN true
    WHEN 'stage.approved' THEN true WHEN 'stage.rejected' THEN true WHEN 'stage.skipped' THEN true
    WHEN 'stage.cancelled' THEN true WHEN 'flow.paused' THEN true WHEN 'flow.resumed' THEN true
    WHEN 'flow.cancelled' THEN true WHEN 'flow.cancel_requested' THEN true WHEN 'flow.priority_set' THEN true
    WHEN 'queue.paused' THEN true WHEN 'queue.resumed' THEN true WHEN 'breaker.opened' THEN true
    WHEN 'breaker.closed' THEN true WHEN 'token.created' THEN true WHEN 'token.revoked' THEN true
    WHEN 'job.deleted' THEN true WHEN 'bulk.started' THEN true WHEN 'bulk.resumed' THEN true
    WHEN 'bulk.stopped' THEN true WHEN 'bulk.finished' THEN true WHEN 'schedule.created' THEN true
    WHEN 'schedule.changed' THEN true WHEN 'schedule.paused' THEN true WHEN 'schedule.resumed' THEN true
    WHEN 'schedule.triggered' THEN true WHEN 'schedule.backfilled' THEN true WHEN 'schedule.removed' THEN true
    WHEN 'schedule.orphaned' THEN true ELSE false END;
