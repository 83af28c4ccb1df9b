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
