-- Registrations of workers.

-- name: worker_beat
-- If another process uses the same name, or the worker had stopped, started_at begins again.
INSERT INTO onetray.worker (ns, name, host, pid, version, started_at, beat_at, expires_at, concurrency, running, claimed,
    queues, kinds, state)
VALUES (:ns, :name, :host, :pid, :version, :at, :at, :expires_at, :concurrency, :at_work, :claimed, :queues, :kinds,
    :state)
ON CONFLICT (ns, name) DO UPDATE SET host = excluded.host, pid = excluded.pid, version = excluded.version,
    started_at = CASE WHEN worker.host = excluded.host AND worker.pid = excluded.pid
        AND worker.expires_at > worker.beat_at THEN worker.started_at ELSE excluded.started_at END,
    beat_at = {greatest}(worker.beat_at, excluded.beat_at), expires_at = excluded.expires_at,
    concurrency = excluded.concurrency, running = excluded.running, claimed = excluded.claimed,
    queues = excluded.queues, kinds = excluded.kinds, state = excluded.state

-- name: delete_expired_workers
-- Skips rows that a heartbeat has locked.
DELETE FROM onetray.worker WHERE (ns, name) IN (
    SELECT ns, name FROM onetray.worker WHERE expires_at < :before {skip_locked_due}
)

-- name: worker_leave
-- A registration that expires with its last heartbeat is that of a worker that has stopped. It is kept to be explained.
UPDATE onetray.worker SET beat_at = {greatest}(beat_at, :at), expires_at = {greatest}(beat_at, :at), running = 0, claimed = 0
WHERE ns = :ns AND name = :name AND expires_at > beat_at

-- name: workers
-- row: WorkerRow
SELECT w.name, w.host, w.pid, w.version, w.started_at, w.beat_at, w.expires_at, w.concurrency, w.running, w.claimed,
    w.queues, w.kinds, w.state, {clock} AS seen_at
FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > w.beat_at ORDER BY w.started_at DESC, w.name LIMIT :limit
