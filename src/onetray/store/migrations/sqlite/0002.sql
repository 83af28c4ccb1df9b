-- Flows: jobs that have stages. Added to what is there; a single task stays one row.
CREATE TABLE flow (
    key INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    ns INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    version INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    deadline_at INTEGER,
    current INTEGER,
    stages INTEGER NOT NULL,
    stages_open INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    partial INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    ignored INTEGER NOT NULL,
    chained INTEGER NOT NULL,
    amends INTEGER NOT NULL,
    state TEXT NOT NULL,
    roll_up TEXT NOT NULL,
    ending TEXT,
    ending_how TEXT,
    ending_why TEXT,
    ending_by TEXT,
    context INTEGER,
    retry_of INTEGER,
    compensates INTEGER,
    compensation INTEGER,
    id TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    trace TEXT,
    data TEXT NOT NULL,
    metadata TEXT,
    error TEXT,
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
) STRICT;

CREATE UNIQUE INDEX flow_id ON flow (id);

CREATE TABLE stage (
    key INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    ns INTEGER NOT NULL,
    ord INTEGER NOT NULL,
    version INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    takes_more INTEGER NOT NULL,
    gate INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    opened_to INTEGER,
    opened_at INTEGER,
    due_at INTEGER,
    deciding INTEGER,
    carried_from INTEGER,
    total INTEGER NOT NULL,
    open INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    waiting_input INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    partly INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    redriven INTEGER NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    on_failure TEXT NOT NULL,
    collect TEXT NOT NULL,
    ending TEXT,
    ending_why TEXT,
    condition TEXT,
    compensate TEXT,
    approval TEXT,
    answer TEXT,
    id TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    trace TEXT,
    data TEXT NOT NULL,
    metadata TEXT,
    result TEXT,
    metrics TEXT,
    error TEXT,
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
) STRICT;

CREATE UNIQUE INDEX stage_id ON stage (id);
-- Two stages that are added at once never get the same place.
CREATE UNIQUE INDEX stage_order ON stage (job, ord);

ALTER TABLE task ADD COLUMN stage INTEGER;
ALTER TABLE task ADD COLUMN name TEXT;
ALTER TABLE task ADD COLUMN unmet INTEGER NOT NULL DEFAULT 0 CHECK (unmet >= 0);
ALTER TABLE task ADD COLUMN control INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN context INTEGER;
ALTER TABLE task ADD COLUMN spawned_by INTEGER;

CREATE INDEX task_stage ON task (stage, key) WHERE stage IS NOT NULL;
CREATE UNIQUE INDEX task_name ON task (job, name) WHERE name IS NOT NULL;

-- task runs only after needs has succeeded.
CREATE TABLE dependency (
    needs INTEGER NOT NULL,
    task INTEGER NOT NULL,
    PRIMARY KEY (needs, task)
) WITHOUT ROWID, STRICT;

CREATE INDEX dependency_task ON dependency (task);

CREATE TABLE context (
    key INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    ns INTEGER NOT NULL,
    task INTEGER,
    parent INTEGER,
    created_at INTEGER NOT NULL,
    scope TEXT NOT NULL,
    label TEXT,
    id TEXT NOT NULL,
    payload TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX context_id ON context (id);
CREATE INDEX context_job ON context (job, key);
