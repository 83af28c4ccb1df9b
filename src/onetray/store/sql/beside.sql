-- Progress and checkpoints of tasks, workers, breakers of kinds.

-- name: set_progress
INSERT INTO onetray.progress (task, at, attempt, done, total, message)
SELECT b.key, b.at, b.attempt, b.done, b.out_of, b.message {from_batch} WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, done = excluded.done,
    total = excluded.total, message = excluded.message

-- name: progress_of
-- row: TaskProgress
SELECT p.at, p.attempt, p.done, p.total, p.message
FROM onetray.progress AS p JOIN onetray.task AS t ON t.key = p.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace

-- name: set_checkpoint
INSERT INTO onetray.checkpoint (task, at, attempt, body)
SELECT b.key, b.at, b.attempt, b.body {from_batch} WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, body = excluded.body

-- name: checkpoint_of
SELECT c.body
FROM onetray.checkpoint AS c JOIN onetray.task AS t ON t.key = c.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace

-- name: prune_progress
DELETE FROM onetray.progress WHERE task {in:keys:bigint}

-- name: prune_checkpoints
DELETE FROM onetray.checkpoint WHERE task {in:keys:bigint}

-- name: worker_beat
-- If another process uses the same name, started_at begins again.
INSERT INTO onetray.worker (ns, name, host, pid, version, started_at, beat_at, expires_at, concurrency, running, claimed,
    queues, kinds, state)
VALUES (:ns, :name, :host, :pid, :version, :at, :at, :expires_at, :concurrency, :at_work, :claimed, :queues, :kinds,
    :state)
ON CONFLICT (ns, name) DO UPDATE SET host = excluded.host, pid = excluded.pid, version = excluded.version,
    started_at = CASE WHEN worker.host = excluded.host AND worker.pid = excluded.pid THEN worker.started_at
        ELSE excluded.started_at END,
    beat_at = {greatest}(worker.beat_at, excluded.beat_at), expires_at = excluded.expires_at,
    concurrency = excluded.concurrency, running = excluded.running, claimed = excluded.claimed,
    queues = excluded.queues, kinds = excluded.kinds, state = excluded.state

-- name: forget_workers
-- Skips rows that a heartbeat has locked.
DELETE FROM onetray.worker WHERE (ns, name) IN (
    SELECT ns, name FROM onetray.worker WHERE expires_at < :before {skip_locked_due}
)

-- name: worker_leave
DELETE FROM onetray.worker WHERE ns = :ns AND name = :name

-- name: workers
-- row: WorkerRow
SELECT w.name, w.host, w.pid, w.version, w.started_at, w.beat_at, w.expires_at, w.concurrency, w.running, w.claimed,
    w.queues, w.kinds, w.state, {clock} AS seen_at
FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace ORDER BY w.started_at DESC, w.name LIMIT :limit

-- word: past_breakers
(:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL))

-- name: kinds_past_breakers
-- The kinds with ready tasks in the queue, and until when their breakers are open. Empty if no breaker is open.
SELECT k.key, br.open_until FROM onetray.kind AS k LEFT JOIN onetray.breaker AS br ON br.kind = k.key
WHERE EXISTS (SELECT 1 FROM onetray.breaker AS o WHERE o.open_until IS NOT NULL) AND k.ns = :ns
    AND EXISTS (SELECT 1 FROM onetray.ready AS r WHERE r.queue = :queue AND r.kind = k.key)

-- name: lock_breakers_to_try
SELECT kind FROM onetray.breaker WHERE kind {in:kinds:integer} AND open_until <= :now ORDER BY kind {skip_locked_due}

-- name: try_breaker
UPDATE onetray.breaker SET probing = 1, open_until = b.open_until {from_batch} WHERE breaker.kind = b.kind

-- name: add_breaker
INSERT INTO onetray.breaker (kind, recent) SELECT b.kind, '[]' {from_batch} WHERE true ON CONFLICT DO NOTHING

-- name: lock_breakers
-- row: BreakerRow
SELECT kind, recent, opened_at, open_until, probing, why, opened_by FROM onetray.breaker
WHERE kind {in:kinds:integer} AND (probing = 1 OR kind {in:failed:integer}) ORDER BY kind {for_update}

-- name: set_breaker
UPDATE onetray.breaker SET recent = b.recent, opened_at = b.opened_at, open_until = b.open_until, probing = b.probing,
    why = b.why, opened_by = b.opened_by {from_batch} WHERE breaker.kind = b.kind

-- name: close_breakers
UPDATE onetray.breaker SET recent = '[]', opened_at = NULL, open_until = NULL, probing = 0, why = NULL, opened_by = NULL
WHERE kind {in:kinds:integer}

-- name: open_breaker
INSERT INTO onetray.breaker (kind, recent, opened_at, open_until, probing, why, opened_by)
VALUES (:kind, '[]', :at, :until, 0, :why, :by)
ON CONFLICT (kind) DO UPDATE SET opened_at = excluded.opened_at, open_until = excluded.open_until, probing = 0,
    why = excluded.why, opened_by = excluded.opened_by

-- name: breakers
-- row: BreakerDetails
SELECT k.name AS kind, br.recent, br.opened_at, br.open_until, br.probing, br.why, br.opened_by, p.body AS policy,
    {clock} AS seen_at
FROM onetray.breaker AS br JOIN onetray.kind AS k ON k.key = br.kind JOIN onetray.namespace AS n ON n.key = k.ns
    JOIN onetray.policy AS p ON p.key = k.policy
WHERE n.name = :namespace ORDER BY k.name LIMIT :limit

-- name: said_beside
-- row: LogAndProgressRow
-- What tasks have reported without an event: the number of their log lines, and their progress.
SELECT t.key, (SELECT max(l.cursor) FROM onetray.log AS l WHERE l.task = t.key) AS last_line,
    (SELECT p.at FROM onetray.progress AS p WHERE p.task = t.key) AS progress_at,
    (SELECT p.done FROM onetray.progress AS p WHERE p.task = t.key) AS done
FROM onetray.task AS t WHERE t.key {in:keys:bigint}
