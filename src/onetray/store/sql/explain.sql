-- Why a task does not run. Each is one statement, so that what it reads belongs to one moment.

-- name: explain
-- The ready row is looked for where the claim would find it; the due row where the promoter would.
SELECT t.state, t.fence, t.attempts, t.max_attempts, t.run_at, t.created_at, t.finished_at, t.owner, l.expires_at,
    t.cancel_at, t.held_by, t.held_why, q.name, q.paused_at, q.paused_by, p.body,
    EXISTS (SELECT 1 FROM onetray.ready AS r WHERE r.queue = t.queue AND r.rank = -t.priority AND r.task = t.key),
    EXISTS (SELECT 1 FROM onetray.due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :run AND d.fence = t.fence),
    (SELECT e.type FROM onetray.event AS e WHERE e.entity = t.key AND e.version = t.version),
    EXISTS (SELECT 1 FROM onetray.event AS e WHERE e.entity = t.key AND e.version IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence),
    (SELECT e.payload FROM onetray.event AS e WHERE e.entity = t.key AND e.version IS NULL AND e.type = :asked
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1),
    {clock}
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.policy AS p ON p.key = t.policy LEFT JOIN onetray.lease AS l ON l.key = t.lease
WHERE t.id = :id AND n.name = :namespace

-- name: position
-- How many tasks a claim would take before this one. Counted up to a bound: a long queue is not walked to its end.
SELECT (SELECT count(*) FROM (
    SELECT 1 FROM onetray.ready AS f
    WHERE f.queue = r.queue AND (f.rank, f.task) < (r.rank, r.task) LIMIT :most) AS before)
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
    JOIN onetray.ready AS r ON r.queue = t.queue AND r.rank = -t.priority AND r.task = t.key
WHERE t.id = :id AND n.name = :namespace
