-- The schema of version 6 as six migrations once made it on this database. Never changed.
-- The dictionaries: what repeats in every task is kept once and named by a small number.
CREATE TABLE namespace (
    key INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE queue (
    key INTEGER PRIMARY KEY,
    ns INTEGER NOT NULL REFERENCES namespace,
    name TEXT NOT NULL,
    paused_at INTEGER,
    paused_by TEXT,
    UNIQUE (ns, name)
) STRICT;

-- A policy never changes: a task keeps the one it was submitted under.
CREATE TABLE policy (
    key INTEGER PRIMARY KEY,
    body TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE kind (
    key INTEGER PRIMARY KEY,
    ns INTEGER NOT NULL REFERENCES namespace,
    name TEXT NOT NULL,
    policy INTEGER NOT NULL REFERENCES policy,
    UNIQUE (ns, name)
) STRICT;

-- Tasks, stages and flows draw their keys from one counter, so that an event can name any of them. A key is
-- never used again, also after a prune.
CREATE TABLE counter (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
INSERT INTO counter VALUES ('entity_key', 0), ('lease_key', 0);

CREATE TABLE task (
    key INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    ns INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    policy INTEGER NOT NULL,
    version INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    spared INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    lease INTEGER,
    cancel_at INTEGER,
    state TEXT NOT NULL,
    owner TEXT,
    held_by TEXT,
    held_why TEXT,
    result TEXT,
    error TEXT,
    input TEXT,
    retry_of INTEGER,
    id TEXT NOT NULL,
    correlation_id TEXT,
    trace TEXT,
    payload TEXT NOT NULL,
    CONSTRAINT task_state_known CHECK (state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input', 'succeeded', 'failed', 'cancelled', 'dead_lettered')),
    CONSTRAINT task_held_has_owner CHECK (
        (state IN ('assigned', 'running')) = (owner IS NOT NULL) AND (owner IS NULL) = (lease IS NULL)
    ),
    CONSTRAINT task_finished_is_terminal CHECK ((state IN ('succeeded', 'failed', 'cancelled', 'dead_lettered')) = (finished_at IS NOT NULL)),
    CONSTRAINT task_times_in_order CHECK (
        created_at <= coalesce(started_at, created_at)
        AND coalesce(started_at, created_at) <= coalesce(finished_at, started_at, created_at)
    ),
    CONSTRAINT task_attempts_in_budget CHECK (attempts BETWEEN 0 AND max_attempts),
    CONSTRAINT task_queued_has_attempt CHECK (state <> 'queued' OR attempts < max_attempts),
    CONSTRAINT task_counts_up CHECK (version >= 1 AND fence >= 1)
) STRICT;

CREATE UNIQUE INDEX task_id ON task (id);

-- A queued task is claimable exactly when it has a row here. rank is the priority turned round: lowest first.
CREATE TABLE ready (
    queue INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    task INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, task)
) WITHOUT ROWID, STRICT;

CREATE INDEX ready_kind ON ready (queue, kind, rank, task);

-- One row for each claim: what is renewed is one row, however many tasks were claimed together.
CREATE TABLE lease (
    key INTEGER PRIMARY KEY,
    ns INTEGER NOT NULL,
    worker TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    length INTEGER NOT NULL,
    tasks TEXT NOT NULL,
    request_key TEXT,
    part INTEGER NOT NULL
) STRICT;

CREATE INDEX lease_expires_at ON lease (expires_at);
CREATE UNIQUE INDEX lease_request ON lease (ns, worker, request_key, part) WHERE request_key IS NOT NULL;

-- What the janitor has to look at, and when. A row whose fence has passed is dropped unread.
CREATE TABLE due (
    at INTEGER NOT NULL,
    task INTEGER NOT NULL,
    what TEXT NOT NULL,
    fence INTEGER NOT NULL,
    PRIMARY KEY (at, task, what)
) WITHOUT ROWID, STRICT;

CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    entity INTEGER NOT NULL,
    job INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    ns INTEGER NOT NULL,
    version INTEGER,
    fence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    type TEXT NOT NULL,
    was TEXT,
    state TEXT,
    actor TEXT NOT NULL,
    correlation_id TEXT,
    cause TEXT,
    trace TEXT,
    payload TEXT,
    CONSTRAINT event_transition_or_note CHECK ((version IS NULL) = (state IS NULL))
) STRICT;

CREATE UNIQUE INDEX event_entity_version ON event (entity, version);
CREATE INDEX event_type_ts ON event (type, ts);
-- A single task is its own job and is found by entity: only members of a flow need this one.
CREATE INDEX event_job_ts ON event (job, ts) WHERE job <> entity;
-- All events of a job share its correlation id: the first one finds the job, the job finds the rest.
CREATE INDEX event_correlation ON event (correlation_id) WHERE version = 1 AND correlation_id IS NOT NULL;

CREATE TABLE idempotency (
    kind INTEGER NOT NULL,
    key TEXT NOT NULL,
    job INTEGER NOT NULL,
    body_hash TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID, STRICT;

CREATE INDEX idempotency_job ON idempotency (job);

CREATE TABLE dead_letter (
    task INTEGER PRIMARY KEY,
    ns INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    reason_code TEXT NOT NULL,
    stage TEXT NOT NULL,
    last_error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_owner TEXT,
    last_lease_expires_at INTEGER,
    correlation_id TEXT NOT NULL,
    trace_id TEXT,
    payload_hash TEXT NOT NULL,
    successor INTEGER
) STRICT;

CREATE TABLE log (
    task INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    level TEXT NOT NULL,
    line TEXT NOT NULL,
    data TEXT,
    PRIMARY KEY (task, cursor)
) WITHOUT ROWID, STRICT;

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
    CONSTRAINT flow_state_known CHECK (state IN ('created', 'pending', 'paused', 'waiting', 'running', 'succeeded', 'partial', 'failed', 'cancelled')),
    CONSTRAINT flow_finished_is_terminal CHECK ((state IN ('succeeded', 'partial', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
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
    CONSTRAINT stage_state_known CHECK (state IN ('created', 'waiting', 'pending', 'running', 'succeeded', 'partial', 'failed', 'skipped', 'cancelled')),
    CONSTRAINT stage_finished_is_terminal CHECK ((state IN ('succeeded', 'partial', 'failed', 'skipped', 'cancelled')) = (finished_at IS NOT NULL)),
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

-- How far a running task says that it is.
CREATE TABLE progress (
    task INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    done REAL NOT NULL CHECK (done >= 0),
    total REAL CHECK (total >= 0),
    message TEXT
) STRICT;

-- What a task wants to find again on its next attempt.
CREATE TABLE checkpoint (
    task INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

-- What workers say about themselves. Nothing is decided from it.
CREATE TABLE worker (
    ns INTEGER NOT NULL,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    beat_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    running INTEGER NOT NULL,
    claimed INTEGER NOT NULL,
    queues TEXT NOT NULL,
    kinds TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (ns, name)
) WITHOUT ROWID, STRICT;

-- A row for each kind whose attempts have failed under a policy that counts them. It is never removed, so that it can
-- be locked.
CREATE TABLE breaker (
    kind INTEGER PRIMARY KEY,
    recent TEXT NOT NULL,
    opened_at INTEGER,
    open_until INTEGER,
    probing INTEGER NOT NULL DEFAULT 0,
    why TEXT,
    opened_by TEXT,
    CHECK ((opened_at IS NULL) = (open_until IS NULL) AND (why IS NULL) = (open_until IS NULL)
        AND (opened_by IS NULL) = (open_until IS NULL)),
    CHECK (probing = 0 OR open_until IS NOT NULL),
    CHECK (opened_at <= open_until)
) STRICT;

-- Empty while no breaker is open: what every claim looks at.
CREATE INDEX breaker_open ON breaker (open_until) WHERE open_until IS NOT NULL;

-- What a job can be found by. Written only for jobs that have labels: a task without any stays one row.
CREATE TABLE label (
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    ns INTEGER NOT NULL,
    PRIMARY KEY (job, name)
) WITHOUT ROWID, STRICT;

CREATE INDEX label_value ON label (ns, name, value, job);

-- The job that was submitted last under a unique key. Nothing frees it: whoever wants the key looks at that job.
CREATE TABLE unique_key (
    kind INTEGER NOT NULL,
    key TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID, STRICT;

CREATE INDEX unique_key_job ON unique_key (job);

-- Who may call a server, and for what. The token itself is shown once and kept nowhere: this is its hash.
CREATE TABLE token (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at INTEGER
) WITHOUT ROWID, STRICT;

-- A request to a server under a key of its caller's: what it was, and how it was answered. One that has no answer yet
-- is under way, or its server has died.
CREATE TABLE request (
    caller TEXT NOT NULL,
    key TEXT NOT NULL,
    route TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    status INTEGER,
    answer TEXT,
    PRIMARY KEY (caller, key),
    CONSTRAINT request_answered_whole CHECK ((status IS NULL) = (answer IS NULL))
) WITHOUT ROWID, STRICT;

CREATE INDEX request_expires_at ON request (expires_at);

-- The policy that a flow was submitted under: it says what of the flow is redacted. Flows from before have none.
ALTER TABLE flow ADD COLUMN policy INTEGER;
