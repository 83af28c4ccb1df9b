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
