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
    CONSTRAINT task_state_known CHECK (state IN ({task.states})),
    CONSTRAINT task_held_has_owner CHECK (
        (state IN ({task.held})) = (owner IS NOT NULL) AND (owner IS NULL) = (lease IS NULL)
    ),
    CONSTRAINT task_finished_is_terminal CHECK ((state IN ({task.terminal})) = (finished_at IS NOT NULL)),
    CONSTRAINT task_times_in_order CHECK (
        created_at <= coalesce(started_at, created_at)
        AND coalesce(started_at, created_at) <= coalesce(finished_at, started_at, created_at)
    ),
    CONSTRAINT task_attempts_in_budget CHECK (attempts BETWEEN 0 AND max_attempts),
    CONSTRAINT task_queued_has_attempt CHECK (state <> {task.first} OR attempts < max_attempts),
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
