-- Rules for the event log, and that the rows agree with it.

-- pass: steps
-- Compares each event with the one before it. If that is missing, it compares nothing, so that a lost event is reported
-- as one violation, not as five.
-- check: 2 fence_steps: the fence starts at 1, rises by one when the task returns to its queue, and stays otherwise
-- check: 2 never_back: (fence, rank of the state) never falls
-- check: 3 contiguous: the versions of an entity's events have no gap
-- check: 4 follows: each event starts from the state that the one before reached
-- check: 4 declared: each event's type, from and to are a declared transition
-- check: 4 actor: each event was caused by an actor that is allowed to make its transition
-- check: 5 after_end: no event leaves a terminal state
-- check: 8 time_back: the times of a task's events never fall
-- check: 8 created_at: the row's created_at is the time of its first event
-- check: 9 claimed_early: no task is claimed before its run_at
-- check: 13 id_order: the ids of a task's events rise with their versions
-- check: 16 attempts_step: a claim counts one attempt, only a release, a pause or an expiry may give it back, and only a successor begins with some
WITH lawful(type, was, state, actors, reopens) AS (VALUES {transitions})
SELECT e.entity AS task, e.id AS event, e.version, e.ts, e.type, e.was, e.state, e.fence, e.attempts,
    e.actor AS caused_by, p.state AS prev_state, p.fence AS prev_fence, p.attempts AS prev_attempts, p.ts AS prev_ts,
    coalesce(t.created_at, s.created_at, f.created_at) AS row_created_at, t.run_at AS row_run_at, t.fence AS row_fence,
    CASE WHEN NOT {of_task:e.type} THEN e.fence <> 0 WHEN e.version = 1 THEN e.fence <> 1
        ELSE e.fence <> p.fence + l.reopens END AS fence_steps,
    {of_task:e.type} AND (e.fence, {rank:e.state}) < (p.fence, {rank:p.state}) AS never_back,
    e.version <> 1 AND p.version IS NULL AS contiguous,
    e.version = 1 AND e.was IS NOT NULL OR p.version IS NOT NULL AND e.was IS DISTINCT FROM p.state AS follows,
    l.type IS NULL AS declared,
    {position}(l.actors, ',' || substr(e.actor, 1, {position}(e.actor, ':')) || ',') = 0 AS actor,
    p.state IN ({ends}) AS after_end,
    e.ts < p.ts AS time_back,
    e.version = 1 AND e.ts <> coalesce(t.created_at, s.created_at, f.created_at) AS created_at,
    -- The row has the run_at of its current fence only. The passes below check earlier fences.
    e.type = {event:claim} AND e.fence = t.fence AND e.ts < t.run_at AS claimed_early,
    e.id <= p.id AS id_order,
    CASE WHEN e.version = 1 THEN e.attempts < 0 OR e.attempts > 0 AND t.retry_of IS NULL
        WHEN e.type IN ({event:carry_over}, {event:carry_over_failed}, {event:carry_over_dead}) THEN e.attempts < 0
        WHEN e.type = {event:claim} THEN e.attempts <> p.attempts + 1
        WHEN e.type IN ({event:release}, {event:block}, {event:wait_for_input}) THEN e.attempts <> p.attempts - 1
        WHEN e.type = {event:expire} THEN e.attempts NOT IN (p.attempts, p.attempts - 1)
        ELSE e.attempts <> p.attempts END AS attempts_step
FROM event_rows AS e LEFT JOIN event_rows AS p ON p.entity = e.entity AND p.version = e.version - 1
    LEFT JOIN onetray.task AS t ON t.key = e.entity LEFT JOIN onetray.stage AS s ON s.key = e.entity
    LEFT JOIN onetray.flow AS f ON f.key = e.entity
    LEFT JOIN lawful AS l ON l.type = e.type AND l.was = coalesce(e.was, '') AND l.state = e.state
WHERE e.version IS NOT NULL

-- pass: histories
-- check: 3 version_of_row: a task has as many events as its version, and the last one has that version
-- check: 2 fence_of_row: the row's fence is that of its last event
-- check: 4 state_of_row: the row's state is that of its last event
-- check: 5 one_end: a terminal task has exactly one terminal event, an open one has none
-- check: 8 started_at: the row's started_at is the time of its last start
-- check: 8 finished_at: the row's finished_at is the time of its terminal event
-- check: 16 updated_at: the row's updated_at is the time of its last event
-- check: 16 attempts_of_row: the row's attempts are those of its last event
WITH history AS (
    SELECT e.entity, count(*) AS events, sum(CASE WHEN e.state IN ({task.terminal}) THEN 1 ELSE 0 END) AS ends,
        max(CASE WHEN e.type = {event:start} THEN e.ts END) AS last_started
    FROM event_rows AS e WHERE e.version IS NOT NULL GROUP BY e.entity
)
SELECT t.key AS task, CAST(t.id AS text) AS id, h.events, h.ends, h.last_started, l.id AS last_event, l.ts, l.state,
    l.fence, l.attempts, t.version AS row_version, t.state AS row_state, t.fence AS row_fence,
    t.attempts AS row_attempts, t.started_at AS row_started_at, t.finished_at AS row_finished_at,
    t.updated_at AS row_updated_at,
    h.events <> t.version OR l.id IS NULL AS version_of_row,
    l.fence <> t.fence AS fence_of_row,
    l.id IS NOT NULL AND l.state IS DISTINCT FROM t.state AS state_of_row,
    h.ends <> CASE WHEN t.state IN ({task.terminal}) THEN 1 ELSE 0 END AS one_end,
    h.last_started IS DISTINCT FROM t.started_at AS started_at,
    l.id IS NOT NULL AND CASE WHEN l.state IN ({task.terminal}) THEN l.ts END IS DISTINCT FROM t.finished_at AS finished_at,
    l.ts <> t.updated_at AS updated_at,
    l.attempts <> t.attempts AS attempts_of_row
FROM history AS h JOIN onetray.task AS t ON t.key = h.entity
    LEFT JOIN event_rows AS l ON l.entity = t.key AND l.version = t.version

-- pass: histories_of_parents
-- where: flows
-- where: stages
-- check: 3 version_of_parent: a stage or flow has as many events as its version, and the last one has that version
-- check: 4 state_of_parent: a stage's or flow's state is that of its last event
-- check: 5 one_end_of_parent: a terminal stage or flow has exactly one terminal event, an open one has none
-- check: 8 finished_parent: a stage's or flow's finished_at is the time of its terminal event
-- check: 16 updated_parent: a stage's or flow's updated_at is the time of its last event
-- check: 16 started_parent: a stage's or flow's started_at is the time of its first start
WITH parent AS (
    SELECT s.key, CAST(s.id AS text) AS id, s.state, s.version, s.started_at, s.finished_at, s.updated_at FROM onetray.stage AS s
    UNION ALL SELECT f.key, CAST(f.id AS text), f.state, f.version, f.started_at, f.finished_at, f.updated_at
    FROM onetray.flow AS f
),
history AS (
    SELECT e.entity, count(*) AS events, sum(CASE WHEN e.state IN ({ends}) THEN 1 ELSE 0 END) AS ends,
        min(CASE WHEN e.type IN ({event:stage.start}, {event:flow.start}) THEN e.ts END) AS first_started
    FROM event_rows AS e JOIN parent ON parent.key = e.entity WHERE e.version IS NOT NULL GROUP BY e.entity
)
SELECT p.key AS parent, p.id, h.events, h.ends, h.first_started, l.id AS last_event, l.ts, l.state,
    p.version AS row_version, p.state AS row_state, p.started_at AS row_started_at, p.finished_at AS row_finished_at,
    p.updated_at AS row_updated_at,
    h.events <> p.version OR l.id IS NULL AS version_of_parent,
    l.id IS NOT NULL AND l.state IS DISTINCT FROM p.state AS state_of_parent,
    h.ends <> CASE WHEN p.state IN ({ends}) THEN 1 ELSE 0 END AS one_end_of_parent,
    l.id IS NOT NULL AND CASE WHEN l.state IN ({ends}) THEN l.ts END IS DISTINCT FROM p.finished_at AS finished_parent,
    l.ts <> p.updated_at AS updated_parent,
    h.first_started IS DISTINCT FROM p.started_at AS started_parent
FROM history AS h JOIN parent AS p ON p.key = h.entity
    LEFT JOIN event_rows AS l ON l.entity = p.key AND l.version = p.version

-- pass: events
-- check: 13 unknown_entity: every event belongs to an existing entity
-- check: 13 deleted_gone: a deleted job is gone, or is being removed
-- check: 13 audit_facts: an event about a queue, a breaker or a token has no entity, a known namespace, and names what has changed
-- check: 13 belongs: an event has the job and the namespace of its entity
-- check: 3 shape: a transition has a version and a state; a note has neither, and not the type of a transition
-- check: 2 note_fence: no note has a fence that its task has not reached
SELECT e.entity AS task, e.id AS event, e.version, e.type, e.state, e.fence, e.job, e.ns,
    coalesce(t.job, s.job, f.job) AS row_job, coalesce(t.ns, s.ns, f.ns) AS row_ns, t.fence AS row_fence,
    t.key IS NULL AND s.key IS NULL AND f.key IS NULL AND e.type <> 'job.deleted'
        AND NOT (e.entity = {no_entity} AND e.type IN ({audit_types})) AS unknown_entity,
    e.type = 'job.deleted' AND coalesce(t.key, s.key, f.key) IS NOT NULL AND f.deleted_at IS NULL AS deleted_gone,
    e.type IN ({audit_types}) AND (e.entity <> {no_entity} OR e.version IS NOT NULL OR e.payload IS NULL
        OR substr(e.payload, 1, 6) <> '{"id":' OR NOT EXISTS (SELECT 1 FROM onetray.namespace AS n WHERE n.key = e.ns)) AS audit_facts,
    e.job <> coalesce(t.job, s.job, f.job) OR e.ns <> coalesce(t.ns, s.ns, f.ns) AS belongs,
    (e.version IS NULL) <> (e.state IS NULL) OR e.version IS NULL AND e.type IN ({events}) AS shape,
    e.version IS NULL AND e.fence > t.fence AS note_fence
FROM event_rows AS e LEFT JOIN onetray.task AS t ON t.key = e.entity
    LEFT JOIN onetray.stage AS s ON s.key = e.entity LEFT JOIN onetray.flow AS f ON f.key = e.entity

-- pass: unrecorded_parents
-- where: flows
-- where: stages
-- check: 3 unrecorded_parent: every stage and flow has events
SELECT p.key AS parent, p.id, p.state, true AS unrecorded_parent
FROM (
    SELECT s.key, CAST(s.id AS text) AS id, s.state FROM onetray.stage AS s
    UNION ALL SELECT f.key, CAST(f.id AS text), f.state FROM onetray.flow AS f
) AS p
WHERE NOT EXISTS (SELECT 1 FROM event_rows AS e WHERE e.entity = p.key AND e.version IS NOT NULL)

-- pass: unrecorded
-- check: 3 unrecorded: every task has events
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.version, true AS unrecorded
FROM onetray.task AS t
WHERE NOT EXISTS (SELECT 1 FROM event_rows AS e WHERE e.entity = t.key AND e.version IS NOT NULL)

-- pass: retried
-- check: 9 claimed_before_retry: no task is claimed before the run_at of its retry
SELECT r.entity AS task, r.id AS retried, {told_run_at:r.payload} AS run_at, c.id AS event, c.ts, c.fence,
    true AS claimed_before_retry
FROM event_rows AS r JOIN event_rows AS c ON c.entity = r.entity AND c.version = r.version + 1
    JOIN onetray.task AS t ON t.key = r.entity
WHERE r.type = {event:retry} AND c.type = {event:claim} AND c.fence <> t.fence AND c.ts < {told_run_at:r.payload}
    AND NOT EXISTS (SELECT 1 FROM event_rows AS n WHERE n.entity = r.entity AND n.version IS NULL
        AND n.type IN ('task.rescheduled', 'task.debounced') AND n.fence = c.fence)

-- pass: rescheduled
-- check: 9 claimed_before_rescheduled: no rescheduled task is claimed before its last run_at
SELECT n.entity AS task, n.id AS note, {told_run_at:n.payload} AS run_at, c.id AS event, c.ts, c.fence,
    true AS claimed_before_rescheduled
FROM event_rows AS n JOIN event_rows AS c ON c.entity = n.entity AND c.version > 0 AND c.fence = n.fence
WHERE n.type IN ('task.rescheduled', 'task.debounced') AND n.version IS NULL
    AND c.type = {event:claim} AND c.id > n.id AND c.ts < {told_run_at:n.payload}
    AND NOT EXISTS (SELECT 1 FROM event_rows AS m WHERE m.entity = n.entity AND m.version IS NULL
        AND m.type IN ('task.rescheduled', 'task.debounced') AND m.id > n.id AND m.id < c.id)

-- pass: cancelled
-- check: 9 claimed_after_cancel: no task is claimed after its cancel was requested
SELECT n.entity AS task, n.id AS note, n.ts AS requested_at, c.id AS event, c.ts, c.fence,
    true AS claimed_after_cancel
FROM event_rows AS n JOIN event_rows AS c ON c.entity = n.entity AND c.version > 0
WHERE n.type = 'task.cancel_requested' AND n.version IS NULL AND c.type = {event:claim} AND c.id > n.id

-- pass: cancel_forgotten
-- check: 16 cancel_at: a task whose cancel was requested has cancel_at
SELECT n.entity AS task, n.id AS note, n.ts AS requested_at, t.state, true AS cancel_at
FROM event_rows AS n JOIN onetray.task AS t ON t.key = n.entity
WHERE n.type = 'task.cancel_requested' AND n.version IS NULL AND t.cancel_at IS NULL

-- pass: listed
-- check: 3 one_version: no two events of an entity have the same version
SELECT e.entity AS task, e.version, min(e.id) AS event, count(*) > 1 AS one_version
FROM event_rows AS e WHERE e.version IS NOT NULL GROUP BY e.entity, e.version

-- pass: unlisted
-- check: 13 event_listed: the row of a task, stage or flow lists the events of its transitions, in order
WITH {listed_events}
SELECT e.entity AS task, e.id AS event, e.version, true AS event_listed
FROM event_rows AS e JOIN entity AS k ON k.key = e.entity
    LEFT JOIN item AS i ON i.key = e.entity AND i.n = e.version AND i.id = e.id
WHERE e.version IS NOT NULL AND i.key IS NULL

-- pass: lists
-- check: 13 event_found: an event that a row lists is in the log
WITH {listed_events}
SELECT i.key AS task, i.id AS event, i.n AS version, true AS event_found
FROM item AS i LEFT JOIN event_rows AS e ON e.id = i.id AND e.entity = i.key AND e.version = i.n
WHERE e.id IS NULL

-- pass: pages
-- check: 12 page_known: the earlier part of a list belongs to a task, a stage or a flow that has come further
SELECT p.entity AS task, p.version, true AS page_known
FROM onetray.event_page AS p LEFT JOIN onetray.task AS t ON t.key = p.entity LEFT JOIN onetray.stage AS s ON s.key = p.entity
    LEFT JOIN onetray.flow AS f ON f.key = p.entity
WHERE coalesce(t.version, s.version, f.version, 0) < p.version

-- pass: flow_lists
-- where: flows
-- check: 13 flow_lists: a row of the log that is about a flow is listed for it
SELECT e.job AS flow, e.batch, min(e.id) AS event, true AS flow_lists
FROM event_rows AS e JOIN onetray.flow AS f ON f.key = e.job LEFT JOIN onetray.flow_event AS l ON l.job = e.job AND l.batch = e.batch
WHERE l.job IS NULL AND e.type <> 'job.deleted' GROUP BY e.job, e.batch

-- pass: flow_batches
-- check: 13 flow_batch: what is listed for a flow is in the log, and is about it
SELECT l.job AS flow, l.batch, true AS flow_batch
FROM onetray.flow_event AS l LEFT JOIN onetray.flow AS f ON f.key = l.job
WHERE f.deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM event_rows AS e WHERE e.batch = l.batch AND e.job = l.job)
