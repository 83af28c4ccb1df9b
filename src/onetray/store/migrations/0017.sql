-- Numbers for charts: events and times of a namespace by minute and by hour, added up from the log.
-- `type` is that of an event, and `bucket` 0; or queue_time or run_time, and `bucket` is one of a histogram: see
-- engine/statistics.py.
CREATE TABLE onetray.statistic (
    ns integer NOT NULL,
    -- In seconds: 60 or 3,600.
    span integer NOT NULL,
    at bigint NOT NULL,
    type text NOT NULL,
    bucket integer NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (ns, span, at, type, bucket)
) {without_rowid};

-- One row: the events after `since` up to `upto` are in the numbers. The log of before is not counted.
CREATE TABLE onetray.statistic_cursor (
    since bigint NOT NULL,
    upto bigint NOT NULL,
    counted_at bigint NOT NULL,
    -- Up to this time the log and the numbers may differ: some of either was deleted.
    removed_at bigint NOT NULL
) {strict};

INSERT INTO onetray.statistic_cursor (since, upto, counted_at, removed_at)
SELECT e.last, e.last, 0, 0 FROM (
    SELECT coalesce(max(b.id + b.size - 1), 0) AS last
    FROM (SELECT id, size FROM onetray.event_batch ORDER BY id DESC LIMIT 1) AS b
) AS e;

-- The tasks and stages that wait for a person: in these states they have a row here. An index over a state would cost
-- every task.
CREATE TABLE onetray.waiting (
    key bigint PRIMARY KEY,
    ns integer NOT NULL,
    state text NOT NULL,
    at bigint NOT NULL
) {strict};

CREATE INDEX waiting_state ON onetray.waiting (ns, state, at, key);

INSERT INTO onetray.waiting (key, ns, state, at)
SELECT key, ns, state, updated_at FROM onetray.task WHERE state IN ('blocked', 'waiting_input');

INSERT INTO onetray.waiting (key, ns, state, at)
SELECT key, ns, state, updated_at FROM onetray.stage WHERE state = 'waiting';

-- Dead letters that nobody has redriven.
CREATE INDEX dead_letter_open ON onetray.dead_letter (ns, task) WHERE successor IS NULL;

-- What people have done: these rows of the log, not those of plain jobs. First the actor: workers write most rows. A submit
-- has a cause if it runs a job again.
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
    WHEN 'bulk.stopped' THEN true WHEN 'bulk.finished' THEN true ELSE false END;
