-- What is said beside the lifecycle: progress and checkpoints of tasks, workers, breakers of kinds.

-- name: set_progress
INSERT INTO onetray.progress (task, at, attempt, done, total, message)
SELECT b.key, b.at, b.attempt, b.done, b.out_of, b.message {from_batch} WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, done = excluded.done,
    total = excluded.total, message = excluded.message

-- name: progress_of
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
-- A name that is used again by another process begins anew.
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
-- Those that another beat has its hand on are left to it: nobody waits here.
DELETE FROM onetray.worker WHERE (ns, name) IN (
    SELECT ns, name FROM onetray.worker WHERE expires_at < :before {skip_locked_due}
)

-- name: worker_leave
DELETE FROM onetray.worker WHERE ns = :ns AND name = :name

-- name: workers
SELECT w.name, w.host, w.pid, w.version, w.started_at, w.beat_at, w.expires_at, w.concurrency, w.running, w.claimed,
    w.queues, w.kinds, w.state, {clock}
FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace ORDER BY w.started_at DESC, w.name LIMIT :limit
