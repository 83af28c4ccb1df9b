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
