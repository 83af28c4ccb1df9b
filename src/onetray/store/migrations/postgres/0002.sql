-- Flows: jobs that have stages. Added to what is there; a single task stays one row.
CREATE TABLE onetray.flow (
    key bigint PRIMARY KEY,
    job bigint NOT NULL,
    ns integer NOT NULL,
    kind integer NOT NULL,
    version integer NOT NULL,
    sealed integer NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    started_at bigint,
    finished_at bigint,
    deadline_at bigint,
    current bigint,
    stages integer NOT NULL,
    stages_open integer NOT NULL,
    succeeded integer NOT NULL,
    partial integer NOT NULL,
    failed integer NOT NULL,
    cancelled integer NOT NULL,
    skipped integer NOT NULL,
    ignored integer NOT NULL,
    chained integer NOT NULL,
    amends integer NOT NULL,
    state text NOT NULL,
    roll_up text NOT NULL,
    ending text,
    ending_how text,
    ending_why text,
    ending_by text,
    context bigint,
    retry_of bigint,
    compensates bigint,
    compensation bigint,
    id uuid NOT NULL,
    correlation_id text NOT NULL,
    trace text,
    data text NOT NULL,
    metadata text,
    error text,
    CONSTRAINT flow_state_known CHECK (state IN ({flow.states})),
    CONSTRAINT flow_finished_is_terminal CHECK ((state IN ({flow.terminal})) = (finished_at IS NOT NULL)),
    CONSTRAINT flow_times_in_order CHECK (
        created_at <= coalesce(started_at, created_at)
        AND coalesce(started_at, created_at) <= coalesce(finished_at, started_at, created_at)
    ),
    CONSTRAINT flow_counts CHECK (
        stages = stages_open + succeeded + partial + failed + cancelled + skipped + ignored AND stages_open >= 0
    ),
    CONSTRAINT flow_counts_up CHECK (version >= 1 AND job = key)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX flow_id ON onetray.flow (id);

CREATE TABLE onetray.stage (
    key bigint PRIMARY KEY,
    job bigint NOT NULL,
    ns integer NOT NULL,
    ord integer NOT NULL,
    version integer NOT NULL,
    sealed integer NOT NULL,
    takes_more integer NOT NULL,
    gate integer NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    started_at bigint,
    finished_at bigint,
    opened_to bigint,
    opened_at bigint,
    due_at bigint,
    deciding bigint,
    carried_from bigint,
    total integer NOT NULL,
    open integer NOT NULL,
    blocked integer NOT NULL,
    waiting_input integer NOT NULL,
    succeeded integer NOT NULL,
    partly integer NOT NULL,
    failed integer NOT NULL,
    dead_lettered integer NOT NULL,
    cancelled integer NOT NULL,
    redriven integer NOT NULL,
    state text NOT NULL,
    name text NOT NULL,
    on_failure text NOT NULL,
    collect text NOT NULL,
    ending text,
    ending_why text,
    condition text,
    compensate text,
    approval text,
    answer text,
    id uuid NOT NULL,
    correlation_id text NOT NULL,
    trace text,
    data text NOT NULL,
    metadata text,
    result text,
    metrics text,
    error text,
    CONSTRAINT stage_state_known CHECK (state IN ({stage.states})),
    CONSTRAINT stage_finished_is_terminal CHECK ((state IN ({stage.terminal})) = (finished_at IS NOT NULL)),
    CONSTRAINT stage_times_in_order CHECK (
        created_at <= coalesce(started_at, created_at)
        AND coalesce(started_at, created_at) <= coalesce(finished_at, started_at, created_at)
    ),
    CONSTRAINT stage_counts CHECK (
        total = open + succeeded + failed + dead_lettered + cancelled + redriven AND open >= blocked + waiting_input
        AND blocked >= 0 AND waiting_input >= 0 AND succeeded >= partly
    ),
    CONSTRAINT stage_counts_up CHECK (version >= 1 AND ord >= 1)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX stage_id ON onetray.stage (id);
-- Two stages that are added at once never get the same place.
CREATE UNIQUE INDEX stage_order ON onetray.stage (job, ord);

ALTER TABLE onetray.task ADD COLUMN stage bigint;
ALTER TABLE onetray.task ADD COLUMN name text;
ALTER TABLE onetray.task ADD COLUMN unmet integer NOT NULL DEFAULT 0 CHECK (unmet >= 0);
ALTER TABLE onetray.task ADD COLUMN control integer NOT NULL DEFAULT 0;
ALTER TABLE onetray.task ADD COLUMN context bigint;
ALTER TABLE onetray.task ADD COLUMN spawned_by bigint;

-- Neither covers a column that changes: updates stay HOT.
CREATE INDEX task_stage ON onetray.task (stage, key) WHERE stage IS NOT NULL;
CREATE UNIQUE INDEX task_name ON onetray.task (job, name) WHERE name IS NOT NULL;

-- task runs only after needs has succeeded.
CREATE TABLE onetray.dependency (
    needs bigint NOT NULL,
    task bigint NOT NULL,
    PRIMARY KEY (needs, task)
);

CREATE INDEX dependency_task ON onetray.dependency (task);

CREATE TABLE onetray.context (
    key bigint PRIMARY KEY,
    job bigint NOT NULL,
    ns integer NOT NULL,
    task bigint,
    parent bigint,
    created_at bigint NOT NULL,
    scope text NOT NULL,
    label text,
    id uuid NOT NULL,
    payload text NOT NULL
);

CREATE UNIQUE INDEX context_id ON onetray.context (id);
CREATE INDEX context_job ON onetray.context (job, key);
