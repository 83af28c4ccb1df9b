-- Nothing is stuck: every waiting task is claimable, or a due row will make it claimable or end it.

-- pass: ready
-- check: 12 ready_known: a ready row belongs to an existing task
-- check: 15 ready_matches: a ready row belongs to a queued task and has its queue or lane, kind and priority
SELECT r.task, r.queue, r.rank, r.kind, t.state, t.queue AS row_queue, t.lane, t.priority, t.kind AS row_kind,
    t.key IS NULL AS ready_known,
    t.state <> {task.state:queued} OR coalesce(-t.lane, t.queue) <> r.queue OR t.kind <> r.kind OR t.priority <> -r.rank AS ready_matches
FROM onetray.ready AS r LEFT JOIN onetray.task AS t ON t.key = r.task

-- pass: queued
-- check: 15 stuck: a queued task has a ready row, or a due row that will create it at its run_at
-- check: 15 ready_early: a task whose run_at has not come has no ready row
-- check: 9 held_back: a task that its flow or its stage holds back has no ready row
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.fence, t.run_at, t.updated_at, d.fence AS due_fence,
    r.task IS NULL AND d.fence IS DISTINCT FROM t.fence AND NOT {held_back} AS stuck,
    r.task IS NOT NULL AND {held_back} AS held_back,
    -- The promotion of a task deletes its due row. With both rows, and run_at after the last change of the task, it
    -- became claimable too soon. Compares no clock: it may have been set back since.
    -- When a stage opens or a flow resumes, a task becomes claimable and keeps its due row.
    r.task IS NOT NULL AND d.fence = t.fence AND t.run_at > t.updated_at AND t.run_at > coalesce(s.opened_at, 0)
        AND t.run_at > coalesce(f.updated_at, 0)
        AND NOT EXISTS (
        SELECT 1 FROM event_rows AS n WHERE n.entity = t.key AND n.version IS NULL AND n.fence = t.fence
            AND n.type IN ('task.rescheduled', 'task.debounced') AND n.ts >= t.run_at) AS ready_early
FROM onetray.task AS t
    LEFT JOIN onetray.ready AS r ON r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key
    LEFT JOIN onetray.due AS d ON d.at = t.run_at AND d.task = t.key AND d.what = {due:run}
    LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
WHERE t.state = {task.state:queued}

-- pass: timers
-- check: 15 cancel_timer: a held task whose cancel was requested has a due row for the end of its grace period
-- check: 15 timeout_timer: a running task whose policy has timeout_s has a due row for it
-- check: 15 queue_ttl_timer: a queued task whose policy has queue_ttl_s has a due row for it
-- check: 15 deadline_timer: an open task whose policy has deadline_s has a due row for it
WITH timed AS (
    SELECT p.key, p.body LIKE '%"timeout_s":%' AND p.body NOT LIKE '%"timeout_s":null%' AS timeout,
        p.body LIKE '%"queue_ttl_s":%' AND p.body NOT LIKE '%"queue_ttl_s":null%' AS queue_ttl,
        p.body LIKE '%"deadline_s":%' AND p.body NOT LIKE '%"deadline_s":null%' AS deadline
    FROM onetray.policy AS p
),
needed AS (
    SELECT t.key AS task, {due:cancel} AS what, t.fence FROM onetray.task AS t
    WHERE t.cancel_at IS NOT NULL AND t.state IN ({task.held})
    UNION ALL SELECT t.key, {due:timeout}, t.fence FROM onetray.task AS t JOIN timed ON timed.key = t.policy
    WHERE timed.timeout AND t.state = {task.state:running}
    UNION ALL SELECT t.key, {due:queue_ttl}, t.fence FROM onetray.task AS t JOIN timed ON timed.key = t.policy
        LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
    WHERE timed.queue_ttl AND t.state = {task.state:queued} AND NOT {held_back}
    UNION ALL SELECT t.key, {due:deadline}, 0 FROM onetray.task AS t JOIN timed ON timed.key = t.policy
    WHERE timed.deadline AND t.state IN ({task.unended})
)
SELECT n.task, n.what, n.fence, n.what = {due:cancel} AS cancel_timer, n.what = {due:timeout} AS timeout_timer,
    n.what = {due:queue_ttl} AS queue_ttl_timer, n.what = {due:deadline} AS deadline_timer
FROM needed AS n LEFT JOIN (SELECT DISTINCT task, what, fence FROM onetray.due) AS d
    ON d.task = n.task AND d.what = n.what AND d.fence = n.fence
WHERE d.task IS NULL
