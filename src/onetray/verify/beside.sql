-- Rows that belong to tasks: idempotency and unique keys, windows of submits, labels, dead letters, logs, progress, checkpoints, due rows,
-- leases, breakers.

-- pass: counts
-- Finds no violations: counts the rows that are checked.
SELECT (SELECT count(*) FROM onetray.task) AS tasks, (SELECT count(*) FROM event_rows) AS events,
    (SELECT count(*) FROM onetray.ready) AS ready, (SELECT count(*) FROM onetray.due) AS due,
    (SELECT count(*) FROM onetray.lease) AS leases, (SELECT count(*) FROM onetray.idempotency) AS idempotency_keys,
    (SELECT count(*) FROM onetray.dead_letter) AS dead_letters, (SELECT count(*) FROM onetray.flow) AS flows,
    (SELECT count(*) FROM onetray.stage) AS stages, (SELECT count(*) FROM onetray.limit_rule) AS limits,
    (SELECT count(*) FROM onetray.lane) AS lanes

-- pass: keys
-- check: 10 key_of_job: an idempotency key names an existing job of its kind
-- check: 10 body_hash: an idempotency key has the hash of its body
SELECT i.job AS task, i.kind, i.key, i.body_hash AS hash, coalesce(t.kind, f.kind) AS row_kind,
    coalesce(t.kind, f.kind) IS DISTINCT FROM i.kind AS key_of_job,
    length(i.body_hash) <> 64 AS body_hash
FROM onetray.idempotency AS i LEFT JOIN onetray.task AS t ON t.key = i.job LEFT JOIN onetray.flow AS f ON f.key = i.job

-- pass: unique_keys
-- check: 12 unique_known: a unique key names an existing job of its kind
SELECT u.job AS task, u.kind, u.key, coalesce(t.kind, f.kind) AS row_kind, true AS unique_known
FROM onetray.unique_key AS u LEFT JOIN onetray.task AS t ON t.key = u.job LEFT JOIN onetray.flow AS f ON f.key = u.job
WHERE coalesce(t.kind, f.kind) IS DISTINCT FROM u.kind

-- pass: submit_windows
-- check: 12 window_known: a window of debounced or throttled submits names an existing task of its kind
-- check: 16 window_replaced: a debounced task has an event for each payload that was replaced
SELECT w.job AS task, w.kind, w.key, w.mode, w.replaced, t.kind AS row_kind, t.kind IS DISTINCT FROM w.kind AS window_known,
    t.kind = w.kind AND w.replaced <> coalesce(n.notes, 0) AS window_replaced
FROM onetray.submit_window AS w LEFT JOIN onetray.task AS t ON t.key = w.job
    -- A note is a row of its own: the log need not be decoded.
    LEFT JOIN (SELECT e.entity, count(*) AS notes FROM onetray.event_batch AS e
        WHERE e.type = 'task.debounced' AND e.state IS NULL GROUP BY e.entity) AS n ON n.entity = w.job

-- pass: labels
-- check: 12 label_known: a label belongs to an existing job of its namespace
SELECT a.job AS task, a.name, a.value, a.ns, true AS label_known
FROM onetray.label AS a LEFT JOIN onetray.task AS t ON t.key = a.job AND t.job = t.key
    LEFT JOIN onetray.flow AS f ON f.key = a.job
WHERE coalesce(t.ns, f.ns) IS DISTINCT FROM a.ns

-- pass: aliases
-- check: 12 alias_known: an alias belongs to an existing task, flow or context of its namespace
SELECT i.key AS task, i.alias, i.entity, i.ns, coalesce(t.ns, f.ns, c.ns) AS row_ns, true AS alias_known
FROM onetray.alias AS i LEFT JOIN onetray.task AS t ON t.key = i.key AND i.entity = 'task'
    LEFT JOIN onetray.flow AS f ON f.key = i.key AND i.entity = 'flow' AND f.deleted_at IS NULL
    LEFT JOIN onetray.context AS c ON c.key = i.key AND i.entity = 'context'
WHERE coalesce(t.ns, f.ns, c.ns) IS DISTINCT FROM i.ns

-- pass: letters
-- check: 11 letter_of_dead: a dead letter belongs to a dead-lettered task
-- check: 11 one_letter: a task has at most one dead letter
-- check: 11 reason_code: a dead letter has a known reason code and stage
-- check: 11 letter_facts: a dead letter has its task's namespace, attempts, correlation id and error
-- check: 11 payload_hash: a dead letter has the hash of its task's payload
-- check: 11 last_owner: a dead letter has the task's last owner and lease expiry, unless it was never claimed
WITH claims AS (
    SELECT c.entity, max(c.version) AS version FROM onetray.dead_letter AS d
        JOIN event_rows AS c ON c.entity = d.task AND c.version > 0
    WHERE c.type = {event:claim} GROUP BY c.entity
)
SELECT d.task, CAST(t.id AS text) AS id, t.state, d.reason_code AS reason, d.stage, d.last_error, d.attempts,
    t.attempts AS row_attempts, d.last_owner AS letter_owner, d.last_lease_expires_at, c.actor AS claimed_by,
    d.correlation_id, d.payload_hash AS hash,
    t.state IS DISTINCT FROM {task.state:dead_lettered} AS letter_of_dead,
    count(*) OVER (PARTITION BY d.task) > 1 AS one_letter,
    d.reason_code NOT IN ({reason_codes}) OR d.stage NOT IN ({dead_stages}) AS reason_code,
    d.ns <> t.ns OR d.attempts <> t.attempts OR d.correlation_id <> coalesce(t.correlation_id, CAST(t.id AS text))
        OR d.last_error = '' OR d.created_at > t.finished_at AS letter_facts,
    d.payload_hash <> {sha256:t.payload} AS payload_hash,
    -- A letter that was carried over names the owner of the task's predecessor.
    ((d.last_owner IS NULL) <> (c.actor IS NULL) OR (d.last_lease_expires_at IS NULL) <> (c.actor IS NULL)
        OR 'worker:' || d.last_owner <> c.actor) AND NOT EXISTS (SELECT 1 FROM event_rows AS o
            WHERE o.entity = d.task AND o.version = t.version AND o.type = {event:carry_over_dead}) AS last_owner
FROM onetray.dead_letter AS d LEFT JOIN onetray.task AS t ON t.key = d.task
    LEFT JOIN claims ON claims.entity = d.task
    LEFT JOIN event_rows AS c ON c.entity = claims.entity AND c.version = claims.version

-- pass: unlettered
-- check: 11 letter_missing: a dead-lettered task has a dead letter
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.finished_at, true AS letter_missing
FROM onetray.task AS t
WHERE t.state = {task.state:dead_lettered} AND NOT EXISTS (SELECT 1 FROM onetray.dead_letter AS d WHERE d.task = t.key)

-- pass: logs
-- check: 12 log_known: log lines belong to an existing task, and those of a flow's task are numbered in the flow
SELECT l.task, l.lines, l.job, true AS log_known
FROM (SELECT task, job, count(*) AS lines FROM onetray.log GROUP BY task, job) AS l
    LEFT JOIN onetray.task AS t ON t.key = l.task
WHERE t.key IS NULL OR l.job IS DISTINCT FROM CASE WHEN t.stage IS NOT NULL THEN t.job END

-- pass: kept
-- check: 12 progress_known: progress belongs to an existing task, and that of a flow's task is numbered in the flow
SELECT p.task, p.at, p.attempt, p.job, true AS progress_known
FROM onetray.progress AS p LEFT JOIN onetray.task AS t ON t.key = p.task
WHERE t.key IS NULL OR p.job IS DISTINCT FROM CASE WHEN t.stage IS NOT NULL THEN t.job END

-- pass: checkpoints
-- check: 12 checkpoint_known: a checkpoint belongs to an existing task
SELECT c.task, c.at, c.attempt, true AS checkpoint_known
FROM onetray.checkpoint AS c LEFT JOIN onetray.task AS t ON t.key = c.task WHERE t.key IS NULL

-- pass: due
-- check: 12 due_known: a due row names a key that was assigned, and a known action
-- check: 12 due_fence: a due row has no fence that its task has not reached
-- A deleted task leaves its due rows behind: the janitor deletes them when they are due.
SELECT d.task, d.at, d.what, d.fence, t.fence AS row_fence,
    d.task > {last_key} AND d.what <> {due:open_lane} OR d.what NOT IN ({due_words}) AS due_known,
    d.fence > t.fence AS due_fence
FROM onetray.due AS d LEFT JOIN onetray.task AS t ON t.key = d.task

-- pass: leases
-- check: 12 lease_readable: a lease has a valid list of task keys
SELECT l.key AS lease, l.worker, l.tasks, NOT {key_list:l.tasks} AS lease_readable FROM onetray.lease AS l

-- pass: leases_known
-- check: 12 lease_known: a lease lists only keys that were assigned
SELECT l.key AS lease, l.worker, j.value AS task, true AS lease_known
FROM onetray.lease AS l, {keys_in:l.tasks}
WHERE j.value > {last_key}

-- pass: breakers
-- check: 12 breaker_known: a breaker belongs to an existing kind
-- check: 15 breaker_ends: an open breaker has its start, end, reason and actor; a closed one has none of them
SELECT br.kind, br.opened_at, br.open_until, br.probing, br.why, br.opened_by, k.key IS NULL AS breaker_known,
    CASE WHEN br.open_until IS NULL
        THEN br.opened_at IS NOT NULL OR br.why IS NOT NULL OR br.opened_by IS NOT NULL OR br.probing <> 0
        ELSE br.opened_at IS NULL OR br.why IS NULL OR br.opened_by IS NULL OR br.probing NOT IN (0, 1)
            OR br.opened_at > br.open_until END AS breaker_ends
FROM onetray.breaker AS br LEFT JOIN onetray.kind AS k ON k.key = br.kind
