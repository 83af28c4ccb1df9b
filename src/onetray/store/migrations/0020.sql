-- Limits: how many tasks of a queue, of a kind or of a value in the payload run at once, or start within a period.
-- Fairness: tasks of a kind take turns by a value in the payload.

-- 1: claims from this queue look at limits and lanes. It has a limit or a lane, or its namespace limits a kind.
ALTER TABLE onetray.queue ADD COLUMN limited integer NOT NULL DEFAULT 0;

-- The lane that the task waits in; null: in its queue.
ALTER TABLE onetray.task ADD COLUMN lane integer;

-- While a worker holds the task: the keys of the counters in which it is counted, each between commas: `,7,12,`.
ALTER TABLE onetray.task ADD COLUMN slots text;

-- A limit. Of queue and kind, one is 0. `path` names a value in the payload: each value has a counter of its own.
CREATE TABLE onetray.limit_rule (
    key bigint PRIMARY KEY,
    ns integer NOT NULL,
    queue integer NOT NULL,
    kind integer NOT NULL,
    path text NOT NULL,
    what text NOT NULL,
    -- The numbers in force. Those that the code declares; and who has set others instead.
    most integer NOT NULL CHECK (most >= 0),
    period bigint,
    smooth integer NOT NULL DEFAULT 0,
    declared text,
    set_by text,
    set_at bigint,
    -- 0: the tasks that are held already are not counted yet, and no task of its scope is claimable.
    counted integer NOT NULL DEFAULT 0,
    -- The claims that are waited for before that.
    waits_for text,
    -- When it was last lowered: more tasks may run than it allows, until they end.
    lowered_at bigint,
    UNIQUE (ns, kind, queue, path, what),
    CHECK ((queue = 0) <> (kind = 0) AND (path = '' OR kind <> 0)),
    CHECK (what IN ('concurrency', 'rate') AND (what = 'rate') = (period IS NOT NULL))
) {strict};

-- The counter of a limit, of one value of its key.
CREATE TABLE onetray.limit_bucket (
    key bigint PRIMARY KEY,
    rule bigint NOT NULL,
    value text NOT NULL,
    running integer NOT NULL DEFAULT 0 CHECK (running >= 0),
    -- Of a rate: recent starts, as a JSON list of [time, number], and the earliest time of the next one if they are smooth.
    starts text NOT NULL DEFAULT '[]',
    next_at bigint NOT NULL DEFAULT 0,
    -- When the janitor opens what waits for this counter.
    due_at bigint,
    -- The queues of claims that it has turned away, as a JSON list.
    waiters text NOT NULL DEFAULT '[]',
    UNIQUE (rule, value)
) {strict} {fillfactor:50};

-- Tasks of one queue and kind with the same values of the keys of its limits, and of what it is fair by. Their ready rows
-- stand under minus the key of the lane, so that plain claims never see them.
CREATE TABLE onetray.lane (
    key integer PRIMARY KEY,
    ns integer NOT NULL,
    queue integer NOT NULL,
    kind integer NOT NULL,
    -- A JSON object: the value of each path.
    value text NOT NULL,
    -- The value that it is fair by, as JSON.
    fair text,
    weight double precision NOT NULL DEFAULT 1,
    -- 0: it has no ready tasks. 1: open. 2: blocked by the counter `blocked_on`.
    state integer NOT NULL DEFAULT 0,
    rank integer NOT NULL DEFAULT 0,
    -- Lanes of the same rank are served in this order: virtual time if it is fair, else the key of its first task.
    turn bigint NOT NULL DEFAULT 0,
    blocked_on bigint,
    blocked_at bigint,
    retired_at bigint,
    UNIQUE (queue, kind, value),
    CHECK (state IN (0, 1, 2) AND (state = 2) = (blocked_on IS NOT NULL))
) {strict} {fillfactor:50};

CREATE INDEX lane_open ON onetray.lane (queue, kind, rank, turn, key) WHERE state = 1;

CREATE INDEX lane_blocked ON onetray.lane (blocked_on, rank, turn, key) WHERE state = 2;

-- only: postgres
CREATE SEQUENCE onetray.lane_key AS integer;

-- only: sqlite
INSERT INTO onetray.counter VALUES ('lane_key', 0);

-- The shares of values, other than 1, that operators have set.
CREATE TABLE onetray.lane_weight (
    kind integer NOT NULL,
    value text NOT NULL,
    weight double precision NOT NULL,
    PRIMARY KEY (kind, value)
) {without_rowid};

-- The same condition as before, with changes of limits.
DROP INDEX onetray.event_batch_audit;

CREATE INDEX event_batch_audit ON onetray.event_batch (id)
WHERE coalesce(substr(actor, 1, 5), 'user:') = 'user:' AND CASE type
    WHEN 'task.submitted' THEN cause IS NOT NULL OR replace(varied, '"cause":', '') <> varied
    WHEN 'flow.submitted' THEN cause IS NOT NULL OR replace(varied, '"cause":', '') <> varied
    WHEN 'task.cancelled' THEN true WHEN 'task.cancel_requested' THEN true WHEN 'task.resumed' THEN true
    WHEN 'task.priority_set' THEN true WHEN 'task.rescheduled' THEN true WHEN 'stage.waiting' THEN true
    WHEN 'stage.approved' THEN true WHEN 'stage.rejected' THEN true WHEN 'stage.skipped' THEN true
    WHEN 'stage.cancelled' THEN true WHEN 'flow.paused' THEN true WHEN 'flow.resumed' THEN true
    WHEN 'flow.cancelled' THEN true WHEN 'flow.cancel_requested' THEN true WHEN 'flow.priority_set' THEN true
    WHEN 'queue.paused' THEN true WHEN 'queue.resumed' THEN true WHEN 'breaker.opened' THEN true
    WHEN 'breaker.closed' THEN true WHEN 'token.created' THEN true WHEN 'token.revoked' THEN true
    WHEN 'job.deleted' THEN true WHEN 'bulk.started' THEN true WHEN 'bulk.resumed' THEN true
    WHEN 'bulk.stopped' THEN true WHEN 'bulk.finished' THEN true
    WHEN 'schedule.created' THEN true WHEN 'schedule.changed' THEN true WHEN 'schedule.paused' THEN true
    WHEN 'schedule.resumed' THEN true WHEN 'schedule.triggered' THEN true WHEN 'schedule.backfilled' THEN true
    WHEN 'schedule.removed' THEN true WHEN 'schedule.orphaned' THEN true
    WHEN 'limit.set' THEN true WHEN 'limit.reset' THEN true WHEN 'limit.removed' THEN true
    WHEN 'weight.set' THEN true ELSE false END;
