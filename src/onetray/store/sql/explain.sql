-- Why a task does not run. One statement each, for a consistent view.

-- name: explain
-- row: TaskFacts
-- Finds the ready row where a claim would, and the due row where the janitor would.
SELECT t.state, t.fence, t.attempts, t.max_attempts, t.run_at, t.created_at, t.finished_at, t.owner,
    l.expires_at AS lease_expires_at, t.cancel_at, t.held_by, t.held_why, q.name AS queue, q.paused_at, q.paused_by,
    p.body AS policy_body,
    EXISTS (SELECT 1 FROM onetray.ready AS r
        WHERE r.queue = t.queue AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind)
        AS ready,
    EXISTS (SELECT 1 FROM onetray.due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :run AND d.fence = t.fence) AS due,
    (SELECT eb.type FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) AS last_event,
    EXISTS (SELECT 1 FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence) AS rescheduled,
    (SELECT e.payload FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :cancel_requested
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS cancel_request,
    t.key, t.control, t.unmet, f.state AS flow_state, f.ending AS flow_ending, f.ending_why AS flow_ending_why,
    s.name AS stage, s.ord AS stage_ord, s.state AS stage_state, s.ending AS stage_ending, s.opened_to, s.deciding,
    s.approval, s.due_at AS stage_due_at, c.name AS current, c.ord AS current_ord, c.state AS current_state,
    CASE WHEN f.state IS NULL THEN NULL ELSE (SELECT {entry:actor} FROM {event_ids:f} JOIN {batch_of_i}
        WHERE eb.type = :flow_paused ORDER BY i.value DESC LIMIT 1) END AS flow_paused_by,
    k.name AS kind, br.opened_at AS breaker_opened_at, br.open_until AS breaker_until, br.probing AS breaker_probing,
    br.why AS breaker_why, br.opened_by AS breaker_by, {clock} AS now
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.policy AS p ON p.key = t.policy LEFT JOIN onetray.lease AS l ON l.key = t.lease
    LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
    LEFT JOIN onetray.stage AS c ON c.key = f.current
    JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.breaker AS br ON br.kind = t.kind
WHERE t.id = :id AND n.name = :namespace

-- name: explain_flow
-- row: FlowFacts
SELECT f.key, f.state, f.ending, f.ending_why, f.stages, f.stages_open, f.finished_at, CAST(c.id AS text) AS current,
    n.name AS namespace
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns LEFT JOIN onetray.stage AS c ON c.key = f.current
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL

-- name: explain_stage
-- row: StageFacts
SELECT s.key, s.name, s.ord, s.state, s.ending, s.ending_why, s.total, s.open,
    s.blocked + s.waiting_input AS paused, CAST(t.id AS text) AS deciding, s.approval, s.due_at, s.finished_at,
    c.name AS current, c.state AS current_state, CASE WHEN c.key = s.key THEN 1 ELSE 0 END AS is_current
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns
    LEFT JOIN onetray.stage AS c ON c.key = f.current LEFT JOIN onetray.task AS t ON t.key = s.deciding
WHERE s.id = :id AND n.name = :namespace

-- name: unmet_of
-- row: UnmetRow
-- The tasks that a task still waits for.
SELECT CAST(t.id AS text) AS id, t.name, t.state FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs
WHERE d.task = :task AND t.state <> :met ORDER BY t.key LIMIT :limit

-- name: paused_in_stage
-- row: PausedMemberRow
SELECT CAST(t.id AS text) AS id, t.name, t.state, t.held_by, t.held_why FROM onetray.task AS t
WHERE t.stage = :stage AND t.state IN ({task.paused}) ORDER BY t.stage, t.key LIMIT :limit

-- name: paused_by
SELECT {entry:actor}, {entry_ts} FROM onetray.flow AS f CROSS JOIN {event_ids:f} JOIN {batch_of_i}
WHERE f.key = :flow AND eb.type = :type ORDER BY i.value DESC LIMIT 1

-- name: position
-- How many tasks are before this one in its queue, counted up to a limit.
SELECT (SELECT count(*) FROM (
    SELECT 1 FROM onetray.ready AS f
    WHERE f.queue = r.queue AND (f.rank, f.task) < (r.rank, r.task) LIMIT :most) AS before)
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
    JOIN onetray.ready AS r ON r.queue = t.queue AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind
WHERE t.id = :id AND n.name = :namespace
