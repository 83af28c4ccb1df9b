-- Rules for flows, their stages and their tasks (members).

-- pass: members
-- check: 6 member_of: a task of a flow belongs to a stage of that flow, in its namespace
-- check: 6 left_behind: a stage that has ended has no queued, blocked or waiting task
-- check: 6 unmet: a queued task's unmet is the number of its dependencies that have not succeeded
-- check: 12 context_of_task: the context of a task exists and belongs to its flow
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.job, t.stage, s.job AS stage_job, s.state AS stage_state,
    t.unmet AS row_unmet, d.unmet AS counted, t.context,
    s.key IS NULL OR s.job <> t.job OR s.ns <> t.ns OR f.key IS NULL AS member_of,
    s.state IN ({stage.terminal}) AND t.state IN ({task.state:queued}, {task.paused}) AS left_behind,
    t.state = {task.state:queued} AND t.unmet <> coalesce(d.unmet, 0) AS unmet,
    t.context IS NOT NULL AND c.key IS NULL AS context_of_task
FROM onetray.task AS t LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = t.job
    LEFT JOIN onetray.context AS c ON c.key = t.context AND c.job = t.job
    LEFT JOIN (
        SELECT d.task, sum(CASE WHEN n.state = {task.state:succeeded} THEN 0 ELSE 1 END) AS unmet
        FROM onetray.dependency AS d LEFT JOIN onetray.task AS n ON n.key = d.needs GROUP BY d.task
    ) AS d ON d.task = t.key
WHERE t.stage IS NOT NULL OR t.job <> t.key

-- pass: stages
-- where: flows
-- where: stages
-- check: 6 stage_counts: a stage's counters are the real counts of its tasks
-- check: 6 stage_of_flow: a stage belongs to a flow, in its namespace
-- check: 6 done_yet_open: a pending or running stage has an open task, or may get more tasks
-- check: 7 stage_decided: a stage ended as its flow's policy requires
WITH redone AS (
    SELECT DISTINCT o.key FROM onetray.task AS n JOIN onetray.task AS o ON o.key = n.retry_of AND o.stage = n.stage
),
counted AS (
    SELECT t.stage, count(*) AS total, sum(CASE WHEN t.state IN ({task.unended}) THEN 1 ELSE 0 END) AS open,
        sum(CASE WHEN t.state = {task.state:blocked} THEN 1 ELSE 0 END) AS blocked,
        sum(CASE WHEN t.state = {task.state:waiting_input} THEN 1 ELSE 0 END) AS waiting_input,
        sum(CASE WHEN t.state = {task.state:succeeded} AND r.key IS NULL THEN 1 ELSE 0 END) AS succeeded,
        sum(CASE WHEN t.state = {task.state:failed} AND r.key IS NULL THEN 1 ELSE 0 END) AS failed,
        sum(CASE WHEN t.state = {task.state:dead_lettered} AND r.key IS NULL THEN 1 ELSE 0 END) AS dead_lettered,
        sum(CASE WHEN t.state = {task.state:cancelled} AND r.key IS NULL THEN 1 ELSE 0 END) AS cancelled,
        sum(CASE WHEN r.key IS NOT NULL THEN 1 ELSE 0 END) AS redriven,
        sum(CASE WHEN t.state IN ({task.unended}) AND t.attempts - CASE WHEN t.state IN ({task.held}) THEN 1 ELSE 0 END > 0
            THEN 1 ELSE 0 END) AS retrying
    FROM onetray.task AS t LEFT JOIN redone AS r ON r.key = t.key
    WHERE t.stage IS NOT NULL AND t.control = 0 GROUP BY t.stage
)
SELECT s.key AS stage, CAST(s.id AS text) AS id, s.name, s.state, s.total AS tasks, s.open, s.blocked, s.waiting_input, s.succeeded,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.sealed, s.ending, f.roll_up,
    -- A deleted flow is removed in steps.
    f.deleted_at IS NULL AND (s.total <> coalesce(c.total, 0) OR s.open <> coalesce(c.open, 0) OR s.blocked <> coalesce(c.blocked, 0)
        OR s.waiting_input <> coalesce(c.waiting_input, 0) OR s.succeeded <> coalesce(c.succeeded, 0)
        OR s.failed <> coalesce(c.failed, 0) OR s.dead_lettered <> coalesce(c.dead_lettered, 0)
        OR s.cancelled <> coalesce(c.cancelled, 0) OR s.redriven <> coalesce(c.redriven, 0)
        OR s.retrying <> coalesce(c.retrying, 0) OR s.error_count < s.failed + s.dead_lettered + s.partly) AS stage_counts,
    f.key IS NULL OR f.ns <> s.ns AS stage_of_flow,
    s.state IN ({stage.state:pending}, {stage.state:running}) AND s.open = 0 AND (s.sealed = 2 OR s.sealed = 1 AND s.total > 0)
        AS done_yet_open,
    s.carried_from IS NULL AND s.ending IS NULL AND (
        s.state = {stage.state:succeeded} AND s.failed + s.dead_lettered + s.partly > 0
        OR s.state = {stage.state:partial} AND s.succeeded = 0
        OR s.state = {stage.state:failed} AND s.failed + s.dead_lettered = 0) AS stage_decided
FROM onetray.stage AS s LEFT JOIN onetray.flow AS f ON f.key = s.job LEFT JOIN counted AS c ON c.stage = s.key

-- pass: flows
-- where: flows
-- where: stages
-- check: 7 flow_counts: a flow's counters are the real counts of its stages
-- check: 6 stage_orders: a flow's stages are numbered from 1 without a gap
-- check: 7 current: the current stage of an opened flow is its first one that has not ended
-- check: 7 flow_state: a flow's state is the roll-up of its stages, its pause and its cancel
-- check: 7 flow_end: a flow ended as its policy requires
WITH counted AS (
    SELECT s.job, count(*) AS stages, max(s.ord) AS last_ord, min(s.ord) AS first_ord,
        sum(CASE WHEN s.state IN ({stage.terminal}) THEN 0 ELSE 1 END) AS open,
        min(CASE WHEN s.state IN ({stage.terminal}) THEN NULL ELSE s.ord END) AS first_open,
        min(CASE WHEN s.state IN ({stage.terminal}) OR s.ending IS NOT NULL THEN NULL ELSE s.ord END) AS first_lasting,
        sum(CASE WHEN s.state = {stage.state:succeeded} THEN 1 ELSE 0 END) AS succeeded,
        sum(CASE WHEN s.state = {stage.state:partial} THEN 1 ELSE 0 END) AS partial,
        sum(CASE WHEN s.state = {stage.state:skipped} THEN 1 ELSE 0 END) AS skipped,
        sum(CASE WHEN s.state = {stage.state:failed} AND s.on_failure <> 'ignore' THEN 1 ELSE 0 END) AS failed,
        sum(CASE WHEN s.state = {stage.state:cancelled} AND (s.on_failure <> 'ignore' OR s.ending = s.state AND s.ending_how IS NULL)
            THEN 1 ELSE 0 END) AS cancelled,
        sum(CASE WHEN s.state IN ({stage.state:failed}, {stage.state:cancelled}) AND s.on_failure = 'ignore'
            AND (s.state = {stage.state:failed} OR s.ending IS DISTINCT FROM s.state OR s.ending_how IS NOT NULL) THEN 1 ELSE 0 END)
            AS ignored
    FROM onetray.stage AS s GROUP BY s.job
)
SELECT f.key AS flow, CAST(f.id AS text) AS id, f.state, f.roll_up, f.sealed, f.ending, f.stages, f.stages_open, f.succeeded,
    f.partial, f.failed, f.cancelled, f.skipped, f.ignored, f.started_at, k.ord AS current_ord, k.state AS current_state,
    c.first_open,
    f.deleted_at IS NULL AND (f.stages <> coalesce(c.stages, 0) OR f.stages_open <> coalesce(c.open, 0)
        OR f.succeeded <> coalesce(c.succeeded, 0) OR f.partial <> coalesce(c.partial, 0)
        OR f.failed <> coalesce(c.failed, 0) OR f.cancelled <> coalesce(c.cancelled, 0)
        OR f.skipped <> coalesce(c.skipped, 0) OR f.ignored <> coalesce(c.ignored, 0)) AS flow_counts,
    f.deleted_at IS NULL AND (c.first_ord <> 1 OR c.last_ord <> c.stages) AS stage_orders,
    f.state <> {flow.state:created} AND f.state NOT IN ({flow.terminal}) AND f.ending IS NULL AND c.first_lasting IS NOT NULL
        AND k.ord IS DISTINCT FROM c.first_open AS current,
    f.state NOT IN ({flow.terminal}, {flow.state:created}, {flow.state:paused}) AND f.ending IS NULL AND (
        f.stages_open = 0 AND (f.sealed = 2 OR f.sealed = 1 AND f.stages > 0)
        OR (f.state = {flow.state:waiting}) <> coalesce(k.state = {stage.state:waiting}
            OR k.state NOT IN ({stage.terminal}) AND k.open > 0 AND k.open = k.blocked + k.waiting_input, false)
        OR f.state = {flow.state:pending} AND coalesce(k.started_at, f.started_at) IS NOT NULL
        OR f.state = {flow.state:running} AND f.started_at IS NULL) AS flow_state,
    f.state IN ({flow.terminal}) AND (f.stages_open > 0 OR f.ending IS NULL AND f.state <> CASE
        WHEN f.failed > 0 AND f.roll_up = 'mixed' AND f.succeeded + f.partial > 0 THEN {flow.state:partial}
        WHEN f.failed > 0 THEN {flow.state:failed}
        WHEN f.cancelled > 0 AND f.roll_up = 'mixed' AND f.succeeded + f.partial > 0 THEN {flow.state:partial}
        WHEN f.cancelled > 0 THEN {flow.state:cancelled}
        WHEN f.partial > 0 THEN {flow.state:partial} ELSE {flow.state:succeeded} END) AS flow_end
FROM onetray.flow AS f LEFT JOIN counted AS c ON c.job = f.key LEFT JOIN onetray.stage AS k ON k.key = f.current

-- pass: turns
-- where: flows
-- where: stages
-- check: 6 in_order: a stage opens only after the stage before it has ended in a way that its policy accepts
WITH opened AS (
    SELECT o.entity, min(o.id) AS id FROM event_rows AS o
    WHERE o.version > 0 AND o.type IN ({event:stage.open}, {event:stage.approve}) GROUP BY o.entity
)
SELECT s.key AS stage, s.ord, s.name, s.state, p.name AS before, p.state AS before_state, p.on_failure,
    true AS in_order
FROM onetray.stage AS s JOIN onetray.stage AS p ON p.job = s.job AND p.ord = s.ord - 1
    LEFT JOIN opened AS o ON o.entity = s.key
    LEFT JOIN event_rows AS e ON e.entity = p.key AND e.version = p.version
WHERE s.opened_at IS NOT NULL AND (p.state NOT IN ({stage.terminal})
    OR p.state IN ({stage.state:failed}, {stage.state:cancelled}) AND p.on_failure = 'stop'
    -- By the log: the clock may have been set back between the two.
    OR o.id < e.id)

-- pass: claims_in_turn
-- where: flows
-- where: stages
-- check: 6 claimed_early_in_flow: no task is claimed before its stage was opened or approved
SELECT c.entity AS task, c.id AS event, t.stage, s.name, true AS claimed_early_in_flow
FROM event_rows AS c JOIN onetray.task AS t ON t.key = c.entity JOIN onetray.stage AS s ON s.key = t.stage
WHERE c.type = {event:claim} AND t.control = 0 AND NOT EXISTS (
    SELECT 1 FROM event_rows AS o WHERE o.entity = s.key AND o.version > 0
        AND o.type IN ({event:stage.open}, {event:stage.approve}) AND o.id < c.id)

-- pass: claims_while_held
-- where: flows
-- where: stages
-- check: 9 claimed_while_paused: no task is claimed between a pause and the resume of its flow
-- check: 9 claimed_while_waiting: no task is claimed while its stage waits for approval
-- check: 9 claimed_after_flow_cancel: no task is claimed after the cancel of its flow was requested
WITH stops AS (
    SELECT p.entity, p.id, p.type, min(r.id) AS until
    FROM event_rows AS p LEFT JOIN event_rows AS r ON r.entity = p.entity AND r.version > p.version
        AND r.type IN ({event:flow.resume}, {event:stage.approve})
    WHERE p.type IN ({event:flow.pause}, {event:stage.wait}) AND p.version IS NOT NULL
    GROUP BY p.entity, p.id, p.type
    UNION ALL SELECT n.entity, n.id, n.type, CAST(NULL AS bigint) FROM event_rows AS n
    WHERE n.type = 'flow.cancel_requested' AND n.version IS NULL
),
stopped AS (
    SELECT s.key AS stage, stops.id, stops.type, stops.until FROM stops JOIN onetray.stage AS s ON s.job = stops.entity
    UNION ALL SELECT s.key, stops.id, stops.type, stops.until FROM stops JOIN onetray.stage AS s ON s.key = stops.entity
)
SELECT c.entity AS task, c.id AS event, t.job, t.stage, st.id AS stopped, st.until,
    st.type = {event:flow.pause} AS claimed_while_paused,
    st.type = {event:stage.wait} AND t.control = 0 AS claimed_while_waiting,
    st.type = 'flow.cancel_requested' AS claimed_after_flow_cancel
FROM stopped AS st JOIN onetray.task AS t ON t.stage = st.stage
    JOIN event_rows AS c ON c.entity = t.key AND c.version > 0 AND c.type = {event:claim}
WHERE c.id > st.id AND c.id < coalesce(st.until, c.id + 1)

-- pass: flow_timers
-- where: flows
-- where: stages
-- check: 15 flow_deadline_timer: an open flow with a deadline has a due row for it
-- check: 15 approval_timer: a stage that waits for approval with a deadline has a due row for it
-- check: 15 cascade_timer: an ending stage has no tasks left to cancel, or a due row for the rest
-- check: 15 opening_timer: an open stage has opened to all its tasks, or has a due row for the rest
-- check: 15 deletion_timer: a deleted flow that is not gone has a due row for the rest
SELECT n.entity, n.what, n.what = {due:flow_deadline} AS flow_deadline_timer, n.what = {due:approval} AS approval_timer,
    n.what = {due:cascade} AS cascade_timer, n.what = {due:open_stage} AS opening_timer,
    n.what = {due:delete} AS deletion_timer
FROM (
    SELECT f.key AS entity, {due:flow_deadline} AS what, f.deadline_at AS at FROM onetray.flow AS f
    WHERE f.deadline_at IS NOT NULL AND f.state NOT IN ({flow.terminal}) AND coalesce(f.ending, '') <> {flow.state:failed}
    UNION ALL SELECT s.key, {due:approval}, s.due_at FROM onetray.stage AS s
    WHERE s.due_at IS NOT NULL AND s.state = {stage.state:waiting} AND s.ending IS NULL
    UNION ALL SELECT DISTINCT s.job, {due:cascade}, CAST(NULL AS bigint) FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job
        LEFT JOIN (SELECT DISTINCT t.stage FROM onetray.task AS t
            WHERE t.stage IS NOT NULL AND t.state IN ({task.unended}) AND t.cancel_at IS NULL) AS u ON u.stage = s.key
    WHERE s.ending IS NOT NULL AND s.state NOT IN ({stage.terminal})
        AND (coalesce(f.ending_how, s.ending_how, '') <> 'soft' OR u.stage IS NOT NULL OR s.open = 0)
    UNION ALL SELECT s.key, {due:open_stage}, CAST(NULL AS bigint) FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job
    WHERE s.state IN ({stage.state:pending}, {stage.state:running}) AND s.opened_to < {last_member} AND s.ending IS NULL
        AND f.state NOT IN ({flow.terminal}, {flow.state:paused}) AND f.ending IS NULL
    UNION ALL SELECT f.key, {due:delete}, CAST(NULL AS bigint) FROM onetray.flow AS f WHERE f.deleted_at IS NOT NULL
) AS n
WHERE NOT EXISTS (SELECT 1 FROM onetray.due AS d WHERE d.task = n.entity AND d.what = n.what AND (n.at IS NULL OR d.at = n.at))

-- pass: links
-- where: flows
-- where: stages
-- check: 12 context_there: a flow's current context exists and belongs to it
-- check: 12 compensation_linked: a flow and its compensating flow name each other
SELECT f.key AS flow, CAST(f.id AS text) AS id, f.context, f.compensates, f.compensation,
    f.deleted_at IS NULL AND f.context IS NOT NULL AND c.key IS NULL AS context_there,
    f.compensation IS NOT NULL AND u.key IS NOT NULL AND u.compensates IS DISTINCT FROM f.key AS compensation_linked
FROM onetray.flow AS f LEFT JOIN onetray.context AS c ON c.key = f.context AND c.job = f.key
    LEFT JOIN onetray.flow AS u ON u.key = f.compensation

-- pass: dependencies
-- check: 12 dependency_known: a dependency is between two tasks of one flow
SELECT d.task, d.needs, t.job, n.job AS needs_job, true AS dependency_known
FROM onetray.dependency AS d LEFT JOIN onetray.task AS t ON t.key = d.task LEFT JOIN onetray.task AS n ON n.key = d.needs
WHERE t.job IS NULL OR n.job IS NULL OR t.job <> n.job OR t.job = t.key

-- pass: contexts
-- check: 12 context_known: a context belongs to an existing flow of its namespace
-- check: 12 context_parent: the parent of a context is an earlier one of the same flow
SELECT c.key AS context, CAST(c.id AS text) AS id, c.job, c.parent, f.key IS NULL OR f.ns <> c.ns AS context_known,
    c.parent IS NOT NULL AND f.deleted_at IS NULL AND (p.key IS NULL OR p.key >= c.key) AS context_parent
FROM onetray.context AS c LEFT JOIN onetray.flow AS f ON f.key = c.job
    LEFT JOIN onetray.context AS p ON p.key = c.parent AND p.job = c.job
