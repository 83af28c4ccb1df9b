-- The schema of version 6 as six migrations once made it on this database. Never changed.
-- The dictionaries: what repeats in every task is kept once and named by a small number.
CREATE TABLE onetray.namespace (
    key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE onetray.queue (
    key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns integer NOT NULL REFERENCES onetray.namespace,
    name text NOT NULL,
    paused_at bigint,
    paused_by text,
    UNIQUE (ns, name)
);

-- A policy never changes: a task keeps the one it was submitted under.
CREATE TABLE onetray.policy (
    key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body text NOT NULL UNIQUE
);

CREATE TABLE onetray.kind (
    key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns integer NOT NULL REFERENCES onetray.namespace,
    name text NOT NULL,
    policy integer NOT NULL REFERENCES onetray.policy,
    UNIQUE (ns, name)
);

-- Tasks, stages and flows draw their keys from one sequence, so that an event can name any of them.
CREATE SEQUENCE onetray.entity_key;
CREATE SEQUENCE onetray.lease_key;
-- CACHE 1: the feed's barrier reads last_value and must see every number that was handed out.
CREATE SEQUENCE onetray.event_id CACHE 1;

CREATE TABLE onetray.task (
    key bigint PRIMARY KEY,
    job bigint NOT NULL,
    ns integer NOT NULL,
    queue integer NOT NULL,
    kind integer NOT NULL,
    policy integer NOT NULL,
    version integer NOT NULL,
    fence integer NOT NULL,
    priority integer NOT NULL,
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    spared integer NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    run_at bigint NOT NULL,
    started_at bigint,
    finished_at bigint,
    lease bigint,
    cancel_at bigint,
    state text NOT NULL,
    owner text,
    held_by text,
    held_why text,
    result text,
    error text,
    input text,
    retry_of bigint,
    id uuid NOT NULL,
    correlation_id text,
    trace text,
    payload text NOT NULL,
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
-- Room on the page for a second version of every row: a claim may take all rows of a page at once. No index covers a
-- changing column, so updates stay HOT.
) WITH (fillfactor = 45);

CREATE UNIQUE INDEX task_id ON onetray.task (id);

-- A queued task is claimable exactly when it has a row here. rank is the priority turned round: lowest first.
CREATE TABLE onetray.ready (
    queue integer NOT NULL,
    rank integer NOT NULL,
    task bigint NOT NULL,
    kind integer NOT NULL,
    PRIMARY KEY (queue, rank, task)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX ready_kind ON onetray.ready (queue, kind, rank, task);

-- One row for each claim: what is renewed is one row, however many tasks were claimed together.
CREATE TABLE onetray.lease (
    key bigint PRIMARY KEY,
    ns integer NOT NULL,
    worker text NOT NULL,
    expires_at bigint NOT NULL,
    length bigint NOT NULL,
    tasks text NOT NULL,
    request_key text,
    part integer NOT NULL
);

CREATE INDEX lease_expires_at ON onetray.lease (expires_at);
CREATE UNIQUE INDEX lease_request ON onetray.lease (ns, worker, request_key, part) WHERE request_key IS NOT NULL;

-- What the janitor has to look at, and when. A row whose fence has passed is dropped unread.
CREATE TABLE onetray.due (
    at bigint NOT NULL,
    task bigint NOT NULL,
    what text NOT NULL,
    fence integer NOT NULL,
    PRIMARY KEY (at, task, what)
);

CREATE TABLE onetray.event (
    id bigint PRIMARY KEY DEFAULT nextval('onetray.event_id'),
    entity bigint NOT NULL,
    job bigint NOT NULL,
    ts bigint NOT NULL,
    ns integer NOT NULL,
    version integer,
    fence integer NOT NULL,
    attempts integer NOT NULL,
    type text NOT NULL,
    was text,
    state text,
    actor text NOT NULL,
    correlation_id text,
    cause text,
    trace text,
    payload text,
    CONSTRAINT event_transition_or_note CHECK ((version IS NULL) = (state IS NULL))
);

CREATE UNIQUE INDEX event_entity_version ON onetray.event (entity, version);
CREATE INDEX event_type_ts ON onetray.event (type, ts);
-- A single task is its own job and is found by entity: only members of a flow need this one.
CREATE INDEX event_job_ts ON onetray.event (job, ts) WHERE job <> entity;
-- All events of a job share its correlation id: the first one finds the job, the job finds the rest.
CREATE INDEX event_correlation ON onetray.event (correlation_id) WHERE version = 1 AND correlation_id IS NOT NULL;

CREATE TABLE onetray.idempotency (
    kind integer NOT NULL,
    key text NOT NULL,
    job bigint NOT NULL,
    body_hash text NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (kind, key)
);

CREATE INDEX idempotency_job ON onetray.idempotency (job);

CREATE TABLE onetray.dead_letter (
    task bigint PRIMARY KEY,
    ns integer NOT NULL,
    created_at bigint NOT NULL,
    reason_code text NOT NULL,
    stage text NOT NULL,
    last_error text NOT NULL,
    attempts integer NOT NULL,
    last_owner text,
    last_lease_expires_at bigint,
    correlation_id text NOT NULL,
    trace_id text,
    payload_hash text NOT NULL,
    successor bigint
);

CREATE TABLE onetray.log (
    task bigint NOT NULL,
    cursor integer NOT NULL,
    ts bigint NOT NULL,
    attempt integer NOT NULL,
    level text NOT NULL,
    line text NOT NULL,
    data text,
    PRIMARY KEY (task, cursor)
);

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

-- How far a running task says that it is.
CREATE TABLE onetray.progress (
    task bigint PRIMARY KEY,
    at bigint NOT NULL,
    attempt integer NOT NULL,
    done double precision NOT NULL CHECK (done >= 0),
    total double precision CHECK (total >= 0),
    message text
);

-- What a task wants to find again on its next attempt.
CREATE TABLE onetray.checkpoint (
    task bigint PRIMARY KEY,
    at bigint NOT NULL,
    attempt integer NOT NULL,
    body text NOT NULL
);

-- What workers say about themselves. Nothing is decided from it.
CREATE TABLE onetray.worker (
    ns integer NOT NULL,
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    started_at bigint NOT NULL,
    beat_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    concurrency integer NOT NULL,
    running integer NOT NULL,
    claimed integer NOT NULL,
    queues text NOT NULL,
    kinds text NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (ns, name)
);

-- A row for each kind whose attempts have failed under a policy that counts them. It is never removed, so that it can
-- be locked.
CREATE TABLE onetray.breaker (
    kind integer PRIMARY KEY,
    recent text NOT NULL,
    opened_at bigint,
    open_until bigint,
    probing integer NOT NULL DEFAULT 0,
    why text,
    opened_by text,
    CHECK ((opened_at IS NULL) = (open_until IS NULL) AND (why IS NULL) = (open_until IS NULL)
        AND (opened_by IS NULL) = (open_until IS NULL)),
    CHECK (probing = 0 OR open_until IS NOT NULL),
    CHECK (opened_at <= open_until)
);

-- Empty while no breaker is open: what every claim looks at.
CREATE INDEX breaker_open ON onetray.breaker (open_until) WHERE open_until IS NOT NULL;

-- What a job can be found by. Written only for jobs that have labels: a task without any stays one row.
CREATE TABLE onetray.label (
    job bigint NOT NULL,
    name text NOT NULL,
    value text NOT NULL,
    ns integer NOT NULL,
    PRIMARY KEY (job, name)
);

CREATE INDEX label_value ON onetray.label (ns, name, value, job);

-- The job that was submitted last under a unique key. Nothing frees it: whoever wants the key looks at that job.
CREATE TABLE onetray.unique_key (
    kind integer NOT NULL,
    key text NOT NULL,
    job bigint NOT NULL,
    PRIMARY KEY (kind, key)
);

CREATE INDEX unique_key_job ON onetray.unique_key (job);

-- Who may call a server, and for what. The token itself is shown once and kept nowhere: this is its hash.
CREATE TABLE onetray.token (
    id text PRIMARY KEY,
    hash text NOT NULL UNIQUE,
    name text NOT NULL,
    namespace text NOT NULL,
    scopes text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    used_at bigint
);

-- A request to a server under a key of its caller's: what it was, and how it was answered. One that has no answer yet
-- is under way, or its server has died.
CREATE TABLE onetray.request (
    caller text NOT NULL,
    key text NOT NULL,
    route text NOT NULL,
    body_hash text NOT NULL,
    began_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    status integer,
    answer text,
    PRIMARY KEY (caller, key),
    CONSTRAINT request_answered_whole CHECK ((status IS NULL) = (answer IS NULL))
);

CREATE INDEX request_expires_at ON onetray.request (expires_at);

-- The policy that a flow was submitted under: it says what of the flow is redacted. Flows from before have none.
ALTER TABLE onetray.flow ADD COLUMN policy integer;
