-- Why a task does not run. One statement each, for a consistent view.

-- name: explain
-- row: TaskFacts
-- Finds the ready row where a claim would, and the due row where the janitor would.
SELECT t.state, t.fence, t.attempts, t.max_attempts, t.run_at, t.created_at, t.finished_at, t.owner,
    l.expires_at AS lease_expires_at, t.cancel_at, t.held_by, t.held_why, q.name AS queue, q.paused_at, q.paused_by,
    p.body AS policy_body,
    EXISTS (SELECT 1 FROM onetray.ready AS r
        WHERE r.queue = {line} AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind)
        AS ready,
    EXISTS (SELECT 1 FROM onetray.due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :run AND d.fence = t.fence) AS due,
    (SELECT eb.type FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) AS last_event,
    (SELECT {entry:actor} FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) AS last_actor,
    (SELECT {entry:cause} FROM (SELECT {last_event:t} AS value) AS i JOIN {batch_of_i}) AS last_cause,
    (SELECT e.actor FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS rescheduled_by,
    (SELECT e.cause FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS rescheduled_why,
    (SELECT e.payload FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :cancel_requested
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS cancel_request,
    t.key, t.control, t.unmet, f.state AS flow_state, f.ending AS flow_ending, f.ending_why AS flow_ending_why,
    s.name AS stage, s.ord AS stage_ord, s.state AS stage_state, s.ending AS stage_ending, s.opened_to, s.deciding,
    s.approval, s.due_at AS stage_due_at, c.name AS current, c.ord AS current_ord, c.state AS current_state,
    CASE WHEN f.state IS NULL THEN NULL ELSE (SELECT {entry:actor} FROM {event_ids:f} JOIN {batch_of_i}
        WHERE eb.type = :flow_paused ORDER BY i.value DESC LIMIT 1) END AS flow_paused_by,
    k.name AS kind, br.opened_at AS breaker_opened_at, br.open_until AS breaker_until, br.probing AS breaker_probing,
    br.why AS breaker_why, br.opened_by AS breaker_by, t.error, d.reason_code, CAST(u.id AS text) AS successor,
    CAST(f.id AS text) AS flow, CAST(t.id AS text) AS id, {clock} AS now
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.policy AS p ON p.key = t.policy LEFT JOIN onetray.lease AS l ON l.key = t.lease
    LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
    LEFT JOIN onetray.stage AS c ON c.key = f.current
    JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.breaker AS br ON br.kind = t.kind
    LEFT JOIN onetray.dead_letter AS d ON d.task = t.key LEFT JOIN onetray.task AS u ON u.key = d.successor
WHERE t.id = :id AND n.name = :namespace

-- name: explain_flow
-- row: FlowFacts
SELECT f.key, f.state, f.ending, f.ending_why, f.stages, f.stages_open, f.finished_at, CAST(c.id AS text) AS current,
    n.name AS namespace, CAST(f.id AS text) AS id, f.error
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns LEFT JOIN onetray.stage AS c ON c.key = f.current
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL

-- name: explain_stage
-- row: StageFacts
SELECT s.key, s.name, s.ord, s.state, s.ending, s.ending_why, s.total, s.open,
    s.blocked + s.waiting_input AS paused, CAST(t.id AS text) AS deciding, s.approval, s.due_at, s.finished_at,
    c.name AS current, c.state AS current_state, CASE WHEN c.key = s.key THEN 1 ELSE 0 END AS is_current, n.name AS namespace,
    s.job, CAST(f.id AS text) AS flow, f.state AS flow_state
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns
    LEFT JOIN onetray.stage AS c ON c.key = f.current LEFT JOIN onetray.task AS t ON t.key = s.deciding
WHERE s.id = :id AND n.name = :namespace

-- name: failed_stages
-- row: FailedStageRow
-- The stages of a flow that have errors of their own or of their tasks, in order.
SELECT s.key, s.name, s.state, s.on_failure, s.errors, s.error FROM onetray.stage AS s
WHERE s.job = :job AND (s.errors IS NOT NULL OR s.error IS NOT NULL) ORDER BY s.ord

-- name: error_of_task
SELECT t.state, t.error FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace

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

-- name: kinds_in_stage
-- row: StageKindRow
-- The queues and kinds of the tasks that wait in a stage, found among its newest ones: older tasks are claimed first.
SELECT DISTINCT q.name AS queue, k.name AS kind, w.control
FROM (
    SELECT t.queue, t.kind, t.control, t.state FROM onetray.task AS t WHERE {all_in_stage}
    ORDER BY t.stage DESC, t.key DESC LIMIT :scan
) AS w JOIN onetray.queue AS q ON q.key = w.queue JOIN onetray.kind AS k ON k.key = w.kind
WHERE w.state IN ({task.first}) ORDER BY 1, 2, 3 LIMIT :limit

-- name: ready_kinds
-- The queues with claimable tasks, and the kinds of these. Without paused queues: nobody would claim from them.
SELECT q.name AS queue, k.name AS kind FROM onetray.queue AS q JOIN onetray.namespace AS n ON n.key = q.ns
    JOIN onetray.kind AS k ON k.ns = q.ns
WHERE n.name = :namespace AND q.paused_at IS NULL
    AND (EXISTS (SELECT 1 FROM onetray.ready AS r WHERE r.queue = q.key AND r.kind = k.key)
    OR EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.queue = q.key AND l.kind = k.key AND l.state = 1))
ORDER BY q.name, k.name LIMIT :limit

-- name: workers_by_sort
-- row: WorkerSortRow
-- The workers of a namespace, those with the same queues, kinds and state in one row, with the name of one of them.
SELECT w.queues, w.kinds, w.state, w.alive, w.stopped, count(*) AS workers, sum(w.slots) AS slots, sum(w.free) AS free,
    max(w.beat_at) AS beat_at, max(w.name) AS name, max(w.seen_at) AS seen_at
FROM (
    SELECT x.queues, x.kinds, x.state, x.name, x.beat_at, {clock} AS seen_at, x.concurrency AS slots,
        CASE WHEN x.running < x.concurrency THEN 1 ELSE 0 END AS free,
        CASE WHEN x.expires_at > x.beat_at THEN 0 ELSE 1 END AS stopped,
        CASE WHEN x.expires_at > {clock} THEN 1 ELSE 0 END AS alive
    FROM onetray.worker AS x JOIN onetray.namespace AS n ON n.key = x.ns WHERE n.name = :namespace
) AS w
GROUP BY w.queues, w.kinds, w.state, w.alive, w.stopped ORDER BY w.alive DESC, max(w.beat_at) DESC LIMIT :limit

-- name: longest_running
-- row: RunningRow
-- The running tasks of registered workers, the oldest first, found in their oldest leases.
SELECT CAST(t.id AS text) AS id, k.name AS kind, t.started_at, l.queues, l.kinds
FROM (
    SELECT x.key, x.tasks, w.queues, w.kinds FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
        JOIN onetray.lease AS x ON x.ns = w.ns AND x.worker = w.name
    WHERE n.name = :namespace AND w.expires_at > {clock} ORDER BY x.key LIMIT :leases
) AS l CROSS JOIN {lease_tasks} JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
    JOIN onetray.kind AS k ON k.key = t.kind
WHERE t.state = :running ORDER BY t.started_at LIMIT :limit

-- name: any_worker_alive
-- In any namespace.
SELECT w.state, 1 AS alive FROM onetray.worker AS w WHERE w.expires_at > {clock} AND w.state = :running LIMIT 1

-- name: unregistered_claims
-- row: UnregisteredClaimRow
-- The last claim from a queue by a worker that has not registered, if it is among the last claims of all. Agents, and
-- workers in other languages, claim without a registration.
SELECT l.worker, l.at
FROM (
    SELECT substr({entry:actor}, 8) AS worker, eb.ts AS at,
        (SELECT t.queue FROM onetray.task AS t WHERE t.key = {entry:entity}) AS queue
    FROM (
        SELECT c.id AS value FROM onetray.event_batch AS c WHERE c.type = :claimed AND c.ts >= :since
        ORDER BY c.ts DESC LIMIT :scan
    ) AS i JOIN {batch_of_i}
) AS l JOIN onetray.queue AS q ON q.key = l.queue JOIN onetray.namespace AS n ON n.key = q.ns
WHERE n.name = :namespace AND q.name = :queue
    AND (SELECT count(*) FROM onetray.worker AS w WHERE w.ns = n.key AND w.name = l.worker) = 0
ORDER BY l.at DESC LIMIT 1

-- name: position
-- How many tasks are before this one in its queue or its lane, counted up to a limit.
SELECT (SELECT count(*) FROM (
    SELECT 1 FROM onetray.ready AS f
    WHERE f.queue = r.queue AND (f.rank, f.task) < (r.rank, r.task) LIMIT :most) AS before)
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
    JOIN onetray.ready AS r ON r.queue = {line} AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind
WHERE t.id = :id AND n.name = :namespace
