-- The log of events, in batches: one row for what one move moves, not one for each event.
--
-- A column has the value that all entries of the row share. Where they differ it is null, and `varied`, a JSON object, has
-- a list under the name of the column. Two columns have a meaning of their own there: `entity` is the first of consecutive
-- keys, and a list has all of them (null: an entry that was removed); `ts` is the latest time, and a list says by how many
-- microseconds each entry is earlier. The event at place p of a row has the id of the row plus p.
ALTER TABLE onetray.event RENAME TO old_event;

CREATE TABLE onetray.event_batch (
    id bigint PRIMARY KEY,
    ts bigint NOT NULL,
    entity bigint,
    -- Null if each entity is its own job.
    job bigint,
    size integer NOT NULL CHECK (size BETWEEN 1 AND 1024),
    ns integer,
    version integer,
    fence integer,
    attempts integer,
    type text NOT NULL,
    was text,
    -- Null for a note.
    state text,
    actor text,
    cause text,
    trace text,
    payload text,
    varied text,
    CHECK (state IS NOT NULL OR size = 1)
) {strict};

CREATE INDEX event_batch_type_ts ON onetray.event_batch (type, ts);
-- An entity's own row lists the events of its transitions. Only notes are found by this.
CREATE INDEX event_batch_note ON onetray.event_batch (entity, id) WHERE state IS NULL;

-- The rows of the log that are about a flow, its stages and its tasks.
CREATE TABLE onetray.flow_event (
    job bigint NOT NULL,
    batch bigint NOT NULL,
    PRIMARY KEY (job, batch)
) {without_rowid};

-- only: postgres
-- Each number that the sequence hands out stands for 1,024 ids: as many as a row can have entries.
ALTER SEQUENCE onetray.event_id OWNED BY NONE INCREMENT BY 1024;
ALTER TABLE onetray.old_event ALTER COLUMN id DROP DEFAULT;

-- only: sqlite
INSERT INTO onetray.counter SELECT 'event_id', coalesce(max(id), 0) FROM onetray.old_event;

-- only: sqlite
-- The places of a row's entries, to join them with.
CREATE TABLE onetray.event_place (n integer PRIMARY KEY) {strict};
WITH RECURSIVE place(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM place WHERE n < 1023)
INSERT INTO onetray.event_place SELECT n FROM place;

-- The ids of the events of its transitions, in order, separated by commas.
ALTER TABLE onetray.task ADD COLUMN events text NOT NULL DEFAULT '';

ALTER TABLE onetray.stage ADD COLUMN events text NOT NULL DEFAULT '';

ALTER TABLE onetray.flow ADD COLUMN events text NOT NULL DEFAULT '';

-- The earlier part of a long list, up to but without the event of this version: a list would be written again, whole, with
-- every transition.
CREATE TABLE onetray.event_page (
    entity bigint NOT NULL,
    version integer NOT NULL,
    events text NOT NULL,
    PRIMARY KEY (entity, version)
) {without_rowid};

-- A job is found by its correlation id, and leads to its events.
CREATE INDEX task_correlation ON onetray.task (correlation_id) WHERE correlation_id IS NOT NULL AND stage IS NULL;
CREATE INDEX flow_correlation ON onetray.flow (correlation_id);
