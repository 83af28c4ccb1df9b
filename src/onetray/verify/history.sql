-- What the log must look like, and that the rows are what it says.

-- pass: steps
-- check: 2 fence_steps: the fence starts at 1, rises by one when the task is opened again, and else stays
-- check: 2 never_back: (fence, rank of the state) never falls
-- check: 2 fence_of_row: the row's fence is the last event's
-- check: 3 contiguous: the versions of a task's events are 1, 2, 3, without gap or double
-- check: 3 version_of_row: the row's version is the last event's
-- check: 4 follows: each event leaves the state that the one before reached
-- check: 4 declared: each event's type, from and to are a transition of the table
-- check: 4 actor: each event was caused by somebody who may make its transition
-- check: 4 state_of_row: the row's state is the last event's
-- check: 5 after_end: no event leaves a terminal state
-- check: 5 one_end: a terminal task has exactly one terminal event, an open one has none
-- check: 8 time_back: the times of a task's events never fall
-- check: 8 created_at: the row was created at the time of its first event
-- check: 8 started_at: the row was started at the time of its last start
-- check: 8 finished_at: the row was finished at the time of its terminal event
-- check: 9 claimed_early: no task is claimed before its run_at
-- check: 13 id_order: the ids of a task's events rise with their versions
-- check: 16 updated_at: the row was updated at the time of its last event
-- check: 16 attempts_of_row: the row's attempts are the last event's
-- check: 16 attempts_step: a claim costs one attempt, and only what gives a task up may give it back
WITH lawful(type, was, state, actors, reopens) AS (VALUES {transitions}),
step AS (
    SELECT e.entity, e.id, e.version, e.ts, e.type, e.was, e.state, e.fence, e.attempts, e.actor,
        lag(e.version) OVER w AS prev_version, lag(e.state) OVER w AS prev_state, lag(e.fence) OVER w AS prev_fence,
        lag(e.attempts) OVER w AS prev_attempts, lag(e.ts) OVER w AS prev_ts, lag(e.id) OVER w AS prev_id,
        lag(CASE WHEN e.type = {event:retry} THEN {told_run_at:e.payload} END) OVER w AS told_run_at,
        lead(e.version) OVER w AS next_version,
        max(CASE WHEN e.type = {event:start} THEN e.ts END) OVER w AS last_started,
        sum(CASE WHEN e.state IN ({terminal}) THEN 1 ELSE 0 END) OVER w AS ends
    FROM onetray.event AS e WHERE e.version IS NOT NULL
    WINDOW w AS (PARTITION BY e.entity ORDER BY e.version)
)
-- Across a gap nothing is compared but what must hold there too: a lost event is one violation, not five.
SELECT s.entity AS task, s.id AS event, s.version, s.ts, s.type, s.was, s.state, s.fence, s.attempts,
    s.actor AS caused_by, s.prev_state, s.prev_fence, t.state AS row_state, t.version AS row_version, t.fence AS row_fence,
    t.attempts AS row_attempts, t.created_at AS row_created_at, t.started_at AS row_started_at,
    t.finished_at AS row_finished_at, t.updated_at AS row_updated_at, t.run_at AS row_run_at,
    CASE WHEN s.prev_version IS NULL THEN s.version = 1 AND s.fence <> 1
        ELSE s.version = s.prev_version + 1 AND s.fence <> s.prev_fence + l.reopens END AS fence_steps,
    (s.fence, {rank:s.state}) < (s.prev_fence, {rank:s.prev_state}) AS never_back,
    s.next_version IS NULL AND s.fence <> t.fence AS fence_of_row,
    s.version <> coalesce(s.prev_version, 0) + 1 AS contiguous,
    s.next_version IS NULL AND s.version <> t.version AS version_of_row,
    s.version = coalesce(s.prev_version, 0) + 1 AND s.was IS DISTINCT FROM s.prev_state AS follows,
    l.type IS NULL AS declared,
    {position}(l.actors, ',' || substr(s.actor, 1, {position}(s.actor, ':')) || ',') = 0 AS actor,
    s.next_version IS NULL AND s.state IS DISTINCT FROM t.state AND t.key IS NOT NULL AS state_of_row,
    s.prev_state IN ({terminal}) AS after_end,
    s.next_version IS NULL AND s.ends <> CASE WHEN t.state IN ({terminal}) THEN 1 ELSE 0 END AND t.key IS NOT NULL
        AS one_end,
    s.ts < s.prev_ts AS time_back,
    s.version = 1 AND s.ts <> t.created_at AS created_at,
    s.next_version IS NULL AND s.last_started IS DISTINCT FROM t.started_at AND t.key IS NOT NULL AS started_at,
    s.next_version IS NULL AND t.key IS NOT NULL
        AND CASE WHEN s.state IN ({terminal}) THEN s.ts END IS DISTINCT FROM t.finished_at AS finished_at,
    -- The run_at that was in force is on the row for its last fence. For an earlier one the retry has told it,
    -- unless the task was rescheduled since: see the pass over the notes.
    s.type = {event:claim} AND (s.fence = t.fence AND s.ts < t.run_at
        OR s.fence <> t.fence AND s.ts < s.told_run_at AND NOT EXISTS (
            SELECT 1 FROM onetray.event AS n WHERE n.entity = s.entity AND n.version IS NULL AND n.fence = s.fence
                AND n.type = 'task.rescheduled')) AS claimed_early,
    s.id <= s.prev_id AS id_order,
    s.next_version IS NULL AND s.ts <> t.updated_at AS updated_at,
    s.next_version IS NULL AND s.attempts <> t.attempts AS attempts_of_row,
    s.version = coalesce(s.prev_version, 0) + 1 AND NOT CASE
        WHEN s.prev_version IS NULL THEN s.attempts = 0
        WHEN s.type = {event:claim} THEN s.attempts = s.prev_attempts + 1
        WHEN s.type IN ({event:release}, {event:block}, {event:wait_for_input}) THEN s.attempts = s.prev_attempts - 1
        WHEN s.type = {event:expire} THEN s.attempts IN (s.prev_attempts, s.prev_attempts - 1)
        ELSE s.attempts = s.prev_attempts END AS attempts_step
FROM step AS s LEFT JOIN onetray.task AS t ON t.key = s.entity
    LEFT JOIN lawful AS l ON l.type = s.type AND l.was = coalesce(s.was, '') AND l.state = s.state

-- pass: events
-- check: 13 unknown_entity: no event is about something that is not there
-- check: 13 belongs: an event has its task's job, namespace and correlation id
-- check: 3 shape: a transition has a version and a state, a note has neither and no transition's type
-- check: 2 note_fence: no note names a fence that its task has not reached
SELECT e.entity AS task, e.id AS event, e.version, e.type, e.state, e.fence, e.job, e.ns, e.correlation_id,
    t.job AS row_job, t.ns AS row_ns, t.correlation_id AS row_correlation_id, t.fence AS row_fence,
    t.key IS NULL AS unknown_entity,
    t.key IS NOT NULL AND (e.job <> t.job OR e.ns <> t.ns OR e.correlation_id IS DISTINCT FROM t.correlation_id)
        AS belongs,
    (e.version IS NULL) <> (e.state IS NULL) OR e.version IS NULL AND e.type IN ({events}) AS shape,
    e.version IS NULL AND e.fence > t.fence AS note_fence
FROM onetray.event AS e LEFT JOIN onetray.task AS t ON t.key = e.entity

-- pass: unrecorded
-- check: 3 unrecorded: every task has events
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.version, true AS unrecorded
FROM onetray.task AS t
WHERE NOT EXISTS (SELECT 1 FROM onetray.event AS e WHERE e.entity = t.key AND e.version IS NOT NULL)

-- pass: rescheduled
-- check: 9 claimed_before_rescheduled: a rescheduled task is not claimed before the time it was given last
SELECT n.entity AS task, n.id AS note, {told_run_at:n.payload} AS run_at, c.id AS event, c.ts, c.fence,
    true AS claimed_before_rescheduled
FROM onetray.event AS n JOIN onetray.event AS c ON c.entity = n.entity AND c.version > 0 AND c.fence = n.fence
WHERE n.type = 'task.rescheduled' AND n.version IS NULL
    AND c.type = {event:claim} AND c.id > n.id AND c.ts < {told_run_at:n.payload}
    AND NOT EXISTS (SELECT 1 FROM onetray.event AS m WHERE m.entity = n.entity AND m.version IS NULL
        AND m.type = 'task.rescheduled' AND m.id > n.id AND m.id < c.id)

-- pass: cancelled
-- check: 9 claimed_after_cancel: no task is claimed after its cancel was requested
SELECT n.entity AS task, n.id AS note, n.ts AS requested_at, c.id AS event, c.ts, c.fence,
    true AS claimed_after_cancel
FROM onetray.event AS n JOIN onetray.event AS c ON c.entity = n.entity AND c.version > 0
WHERE n.type = 'task.cancel_requested' AND n.version IS NULL AND c.type = {event:claim} AND c.id > n.id

-- pass: cancel_forgotten
-- check: 16 cancel_at: a cancel that was requested stands on the row
SELECT n.entity AS task, n.id AS note, n.ts AS requested_at, t.state, true AS cancel_at
FROM onetray.event AS n JOIN onetray.task AS t ON t.key = n.entity
WHERE n.type = 'task.cancel_requested' AND n.version IS NULL AND t.cancel_at IS NULL
