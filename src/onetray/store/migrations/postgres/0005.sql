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
