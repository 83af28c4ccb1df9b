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
