-- Lists, groups and counts for people. Each statement returns few rows.

-- name: newest_before
-- The newest job up to a key, so that a scan can skip a range of pruned keys.
SELECT n.key, n.created_at FROM (
    SELECT * FROM (SELECT t.key, t.created_at FROM onetray.task AS t WHERE t.key <= :upto ORDER BY t.key DESC LIMIT 1) AS a
    UNION ALL
    SELECT * FROM (SELECT f.key, f.created_at FROM onetray.flow AS f WHERE f.key <= :upto ORDER BY f.key DESC LIMIT 1) AS b
) AS n ORDER BY n.key DESC LIMIT 1

-- name: newest_stage
SELECT s.key, s.created_at FROM onetray.stage AS s WHERE s.key <= :upto ORDER BY s.key DESC LIMIT 1

-- name: newest_task
SELECT t.key, t.created_at FROM onetray.task AS t WHERE t.key <= :upto ORDER BY t.key DESC LIMIT 1

-- name: find_stages
-- row: StageDetails
-- Stages of any flows, between two keys.
{select_stage} WHERE {stage_wanted}
ORDER BY s.key DESC LIMIT :limit

-- name: total_stages
SELECT count(*) {from_stages} WHERE {stage_wanted}

-- name: nth_stage
SELECT s.key {from_stages} WHERE {stage_wanted} ORDER BY s.key DESC LIMIT 1 OFFSET :offset

-- word: from_stages
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns

-- word: stage_wanted
s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state {in:states:text})
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type)

-- name: find_tasks
-- row: TaskDetails
-- Tasks of any jobs, between two keys.
{select_task} WHERE {task_wanted}
ORDER BY t.key DESC LIMIT :limit

-- name: total_tasks
SELECT count(*) {from_tasks} WHERE {task_wanted}

-- name: nth_task
SELECT t.key {from_tasks} WHERE {task_wanted} ORDER BY t.key DESC LIMIT 1 OFFSET :offset

-- name: find_tasks_of_stage
-- row: TaskDetails
{select_task} WHERE t.stage = :stage AND {task_wanted}
ORDER BY t.key DESC LIMIT :limit

-- name: total_tasks_of_stage
SELECT count(*) {from_tasks} WHERE t.stage = :stage AND {task_wanted}

-- name: nth_task_of_stage
SELECT t.key {from_tasks} WHERE t.stage = :stage AND {task_wanted} ORDER BY t.key DESC LIMIT 1 OFFSET :offset

-- word: from_tasks
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind

-- word: task_wanted
t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state {in:states:text})
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type))

-- name: list_jobs
-- row: JobSummary
-- Single tasks and flows between two keys: a scan of all jobs consists of short reads.
SELECT * FROM (
    {select_job_task} WHERE {job_task_wanted} AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    {select_job_flow} WHERE {job_flow_wanted} AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit

-- name: total_jobs
SELECT count(*) FROM ({keys_of_jobs}) AS j

-- name: nth_job
SELECT j.key FROM ({keys_of_jobs}) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset

-- name: states_of_jobs
SELECT j.state, count(*) FROM ({keys_of_jobs}) AS j GROUP BY j.state

-- word: keys_of_jobs
SELECT t.key, t.state {from_job_tasks} WHERE {job_task_wanted} AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state {from_job_flows} WHERE {job_flow_wanted} AND f.key > :after AND f.key <= :upto

-- name: list_jobs_of_correlation
-- row: JobSummary
-- By the indexes on correlation ids. A task without one is found by its own id.
SELECT * FROM (
    {select_job_task} WHERE t.key IN ({correlated}) AND {job_task_wanted} AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    {select_job_flow} WHERE f.key IN ({correlated}) AND {job_flow_wanted} AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit

-- name: total_jobs_of_correlation
SELECT count(*) FROM ({keys_of_jobs_of_correlation}) AS j

-- name: nth_job_of_correlation
SELECT j.key FROM ({keys_of_jobs_of_correlation}) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset

-- name: states_of_jobs_of_correlation
SELECT j.state, count(*) FROM ({keys_of_jobs_of_correlation}) AS j GROUP BY j.state

-- word: keys_of_jobs_of_correlation
SELECT t.key, t.state {from_job_tasks} WHERE t.key IN ({correlated}) AND {job_task_wanted} AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state {from_job_flows} WHERE f.key IN ({correlated}) AND {job_flow_wanted} AND f.key > :after AND f.key <= :upto

-- name: list_jobs_labelled
-- row: JobSummary
-- By the index on one label; the other labels are compared for each job.
SELECT * FROM (
    {select_job_task} WHERE t.key IN ({labelled_in_span}) AND {job_task_wanted} AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    {select_job_flow} WHERE f.key IN ({labelled_in_span}) AND {job_flow_wanted} AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit

-- name: total_jobs_labelled
SELECT count(*) FROM ({keys_of_jobs_labelled}) AS j

-- name: nth_job_labelled
SELECT j.key FROM ({keys_of_jobs_labelled}) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset

-- name: states_of_jobs_labelled
SELECT j.state, count(*) FROM ({keys_of_jobs_labelled}) AS j GROUP BY j.state

-- name: span_labelled
-- The key before the span of so many jobs with a label, up to a key. None if there are no more than that.
SELECT l.job FROM onetray.label AS l
WHERE l.ns = {ns_of_name} AND l.name = :label AND l.value = :labelled
    AND l.job <= :upto
ORDER BY l.job DESC LIMIT 1 OFFSET :size

-- word: keys_of_jobs_labelled
SELECT t.key, t.state {from_job_tasks} WHERE t.key IN ({labelled_in_span}) AND {job_task_wanted} AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state {from_job_flows} WHERE f.key IN ({labelled_in_span}) AND {job_flow_wanted} AND f.key > :after AND f.key <= :upto

-- word: labelled_in_span
SELECT l.job FROM onetray.label AS l
WHERE l.ns = {ns_of_name} AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto

-- name: list_jobs_of_keys
-- row: JobSummary
SELECT * FROM (
    {select_job_task} WHERE t.key {in:keys:bigint} AND {job_task_wanted} AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    {select_job_flow} WHERE f.key {in:keys:bigint} AND {job_flow_wanted} AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit

-- name: total_jobs_of_keys
SELECT count(*) FROM ({keys_of_jobs_of_keys}) AS j

-- name: nth_job_of_keys
SELECT j.key FROM ({keys_of_jobs_of_keys}) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset

-- name: states_of_jobs_of_keys
SELECT j.state, count(*) FROM ({keys_of_jobs_of_keys}) AS j GROUP BY j.state

-- word: keys_of_jobs_of_keys
SELECT t.key, t.state {from_job_tasks} WHERE t.key {in:keys:bigint} AND {job_task_wanted} AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state {from_job_flows} WHERE f.key {in:keys:bigint} AND {job_flow_wanted} AND f.key > :after AND f.key <= :upto

-- name: jobs_of_ids
-- The jobs of these tasks and flows.
SELECT t.job FROM onetray.task AS t WHERE t.id {in:ids:uuid}
UNION SELECT f.key FROM onetray.flow AS f WHERE f.id {in:ids:uuid}

-- name: jobs_of_id_range
-- The newest jobs of the tasks and flows with ids in a range.
SELECT * FROM (
    SELECT t.job FROM onetray.task AS t WHERE t.id >= :low AND t.id <= :high AND t.ns = {ns_of_name}
    ORDER BY t.id DESC LIMIT :limit) AS a
UNION SELECT * FROM (
    SELECT f.key FROM onetray.flow AS f WHERE f.id >= :low AND f.id <= :high AND f.ns = {ns_of_name}
    ORDER BY f.id DESC LIMIT :limit) AS b

-- name: jobs_of_name
-- The jobs with this correlation id, or with this alias.
SELECT * FROM (
    SELECT t.key FROM onetray.task AS t WHERE t.correlation_id = :text AND t.stage IS NULL AND t.ns = {ns_of_name} LIMIT :limit
) AS a
UNION SELECT * FROM (
    SELECT f.key FROM onetray.flow AS f WHERE f.correlation_id = :text AND f.ns = {ns_of_name} LIMIT :limit) AS b
UNION SELECT coalesce((SELECT m.job FROM onetray.task AS m WHERE m.key = i.key), i.key) FROM onetray.alias AS i
    WHERE i.ns = {ns_of_name} AND i.alias = :text

-- word: ns_of_name
(SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace)

-- name: kinds_with_text
-- The kinds and flows whose names contain a text.
SELECT k.key FROM onetray.kind AS k JOIN onetray.namespace AS n ON n.key = k.ns
WHERE n.name = :namespace AND replace(lower(k.name), lower(:text), '') <> lower(k.name) ORDER BY k.key LIMIT :limit

-- word: correlated
SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL

-- word: labelled
SELECT l.job FROM onetray.label AS l JOIN onetray.namespace AS m ON m.key = l.ns
    WHERE m.name = :namespace AND l.name = :label AND l.value = :labelled

-- name: sorted_jobs
-- row: JobSummary
-- The sign turns the order round.
SELECT * FROM (
    {select_job_task} WHERE {job_task_wanted} AND {task_updated}
    UNION ALL {select_job_flow} WHERE {job_flow_wanted} AND {flow_updated}
) AS j {in_order}

-- name: sorted_jobs_labelled
-- row: JobSummary
SELECT * FROM (
    {select_job_task} WHERE t.key IN ({labelled}) AND {job_task_wanted} AND {task_updated}
    UNION ALL {select_job_flow} WHERE f.key IN ({labelled}) AND {job_flow_wanted} AND {flow_updated}
) AS j {in_order}

-- word: task_updated
t.updated_at >= :updated_since AND t.updated_at < :updated_until

-- word: flow_updated
f.updated_at >= :updated_since AND f.updated_at < :updated_until

-- word: in_order
WHERE CAST(:aliased AS integer) IS NULL OR CASE WHEN j.alias IS NULL THEN 0 ELSE 1 END = :aliased
ORDER BY CAST(:sign AS integer) * CASE WHEN CAST(:by_update AS integer) = 1 THEN j.updated_at ELSE j.created_at END,
    CAST(:sign AS integer) * j.key LIMIT :limit OFFSET :offset

-- name: count_jobs
SELECT j.state, count(*) FROM (
    {select_job_task} WHERE {job_task_wanted}
    UNION ALL {select_job_flow} WHERE {job_flow_wanted}
) AS j GROUP BY j.state

-- word: select_job_task
SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
{from_job_tasks}

-- word: from_job_tasks
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue

-- word: select_job_flow
SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
{from_job_flows}

-- word: from_job_flows
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind

-- word: job_task_wanted
t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state {in:states:text})
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind {in:kinds:integer})
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value {in:labels:text}) = :labels_wanted)

-- word: job_flow_wanted
n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state {in:states:text})
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind {in:kinds:integer})
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value {in:labels:text}) = :labels_wanted)

-- name: labels_of_jobs
-- row: JobLabel
SELECT CAST(t.id AS text) AS id, l.name, l.value FROM onetray.task AS t JOIN onetray.label AS l ON l.job = t.key
WHERE t.id {in:ids:uuid} AND t.ns = {ns_of_name}
UNION ALL SELECT CAST(f.id AS text), l.name, l.value FROM onetray.flow AS f JOIN onetray.label AS l ON l.job = f.key
WHERE f.id {in:ids:uuid} AND f.ns = {ns_of_name} ORDER BY 1, 2

-- name: key_of_job
-- The key from which a list continues.
SELECT t.key FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns WHERE t.id = :id AND n.name = :namespace
UNION ALL
SELECT f.key FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL

-- name: entity_of_id
SELECT 'task', t.key FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace
UNION ALL SELECT 'stage', s.key FROM onetray.stage AS s JOIN onetray.namespace AS n ON n.key = s.ns
WHERE s.id = :id AND n.name = :namespace
UNION ALL SELECT 'flow', f.key FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL

-- name: ids_newest
-- row: IdRow
SELECT * FROM (
    SELECT 'task' AS entity, CAST(t.id AS text) AS id, k.name, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
        JOIN onetray.kind AS k ON k.key = t.kind
    WHERE n.name = :namespace ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT 'stage', CAST(s.id AS text), s.name, s.state FROM onetray.stage AS s
        JOIN onetray.namespace AS n ON n.key = s.ns
    WHERE n.name = :namespace ORDER BY s.key DESC LIMIT :limit
) AS b
UNION ALL SELECT * FROM (
    SELECT 'flow', CAST(f.id AS text), k.name, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
        JOIN onetray.kind AS k ON k.key = f.kind
    WHERE n.name = :namespace ORDER BY f.key DESC LIMIT :limit
) AS c

-- name: list_members
-- row: MemberSummary
-- The tasks of a flow, in the order of its stages.
{select_member} WHERE s.job = :job AND (s.ord, t.key) > (:ord, :after)
    AND (CAST(:any_state AS integer) = 1 OR t.state {in:states:text})
ORDER BY s.ord, t.key LIMIT :limit

-- name: list_members_of_stage
-- row: MemberSummary
{select_member} WHERE {after_in_stage} AND (CAST(:any_state AS integer) = 1 OR t.state {in:states:text})
ORDER BY t.stage, t.key LIMIT :limit

-- name: key_of_stage
SELECT s.key FROM onetray.stage AS s JOIN onetray.namespace AS n ON n.key = s.ns
WHERE s.id = :id AND s.job = :job AND n.name = :namespace

-- name: place_of_member
SELECT s.ord, t.key FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage WHERE t.id = :id AND t.job = :job

-- word: select_member
SELECT t.key, CAST(t.id AS text) AS id, s.name AS stage, t.name, k.name AS kind, q.name AS queue, t.state, t.attempts,
    t.max_attempts, t.created_at, t.started_at, t.finished_at, t.owner, t.error
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue

-- name: list_queues
-- row: QueueDepth
-- A worker holds the held tasks; delayed tasks have a due row. The oldest ready task is the one with the lowest key.
SELECT q.name, q.paused_at, q.paused_by, coalesce(r.ready, 0) AS ready, coalesce(w.waiting, 0) AS delayed,
    coalesce(h.held, 0) AS held, o.run_at AS oldest_ready_at, {held_back_in_q} AS limited
FROM onetray.queue AS q JOIN onetray.namespace AS n ON n.key = q.ns
    LEFT JOIN (
        SELECT coalesce(v.queue, g.queue) AS queue, CAST(sum(g.ready) AS bigint) AS ready, min(g.oldest) AS oldest FROM (
            SELECT queue, count(*) AS ready, min(task) AS oldest FROM onetray.ready GROUP BY queue
        ) AS g LEFT JOIN onetray.lane AS v ON v.key = -g.queue GROUP BY coalesce(v.queue, g.queue)
    ) AS r ON r.queue = q.key
    LEFT JOIN onetray.task AS o ON o.key = r.oldest
    LEFT JOIN (
        SELECT t.queue, count(*) AS waiting FROM onetray.due AS d JOIN onetray.task AS t ON t.key = d.task
        WHERE {is_delayed} GROUP BY t.queue
    ) AS w ON w.queue = q.key
    LEFT JOIN (
        SELECT t.queue, count(*) AS held FROM onetray.lease AS l CROSS JOIN {lease_tasks}
            JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
        GROUP BY t.queue
    ) AS h ON h.queue = q.key
WHERE n.name = :namespace ORDER BY q.name LIMIT :limit

-- word: is_delayed
d.what = :run AND d.fence = t.fence AND d.at = t.run_at AND t.state IN ({task.first})
            AND NOT EXISTS (SELECT 1 FROM onetray.ready AS y
                WHERE y.queue = {line} AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind)

-- name: list_kinds
-- Flows have kinds, too: those that the newest flows have and the newest tasks do not are left out.
SELECT k.name FROM onetray.kind AS k JOIN onetray.namespace AS n ON n.key = k.ns
WHERE n.name = :namespace AND (
    k.key NOT IN (SELECT f.kind FROM (SELECT x.kind FROM onetray.flow AS x ORDER BY x.key DESC LIMIT :scan) AS f)
    OR k.key IN (SELECT t.kind FROM (SELECT x.kind FROM onetray.task AS x ORDER BY x.key DESC LIMIT :scan) AS t)
) ORDER BY k.name LIMIT :limit

-- name: retried_jobs
-- A job and its retry have the same correlation id; a task without one is its own. By the indexes on correlation ids.
SELECT CAST(t.id AS text) AS id FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id {in:ids:uuid} AND n.name = :namespace AND t.key IN (
    SELECT r.retry_of FROM onetray.task AS r
    WHERE r.stage IS NULL AND r.retry_of IS NOT NULL AND r.correlation_id IN (
        SELECT coalesce(o.correlation_id, CAST(o.id AS text)) FROM onetray.task AS o WHERE o.id {in:ids:uuid}))
UNION ALL
SELECT CAST(f.id AS text) FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id {in:ids:uuid} AND n.name = :namespace AND f.key IN (
    SELECT r.retry_of FROM onetray.flow AS r WHERE r.retry_of IS NOT NULL AND r.correlation_id IN (
        SELECT o.correlation_id FROM onetray.flow AS o WHERE o.id {in:ids:uuid}))

-- name: dead_groups
-- row: DeadGroup
-- By an index that has all columns of the groups.
{select_groups} {from_grouped} {by_group} {in_order_of_size}

-- name: dead_groups_with_text
-- row: DeadGroup
{select_groups} {from_grouped} AND replace({letter_text}, :error, '') <> {letter_text} {by_group} {in_order_of_size}

-- word: select_groups
SELECT k.name AS kind, g.reason_code, nullif(g.error_class, '') AS error_class, nullif(g.pattern, '') AS message, g.count,
    g.oldest_at, g.newest_at, g.redriven, (SELECT CAST(t.id AS text) FROM onetray.task AS t WHERE t.key = g.example) AS example_id

-- word: from_grouped
FROM (
    SELECT d.kind, d.reason_code, d.error_class, d.pattern, count(*) AS count, min(d.created_at) AS oldest_at,
        max(d.created_at) AS newest_at, count(d.successor) AS redriven, min(d.task) AS example
    FROM onetray.dead_letter AS d WHERE {group_wanted}

-- word: by_group
    GROUP BY d.kind, d.reason_code, d.error_class, d.pattern
) AS g JOIN onetray.kind AS k ON k.key = g.kind

-- word: in_order_of_size
ORDER BY g.count DESC, k.name, g.reason_code, g.error_class, g.pattern LIMIT :limit

-- word: group_wanted
d.ns = {ns_of_name}
    AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:kind AS text) IS NULL OR d.kind = {kind_of_name})

-- word: kind_of_name
(SELECT w.key FROM onetray.kind AS w WHERE w.ns = {ns_of_name} AND w.name = :kind)

-- name: list_letters
-- row: DeadLetterSummary
{select_letter} WHERE d.task > :after AND {letter_wanted} ORDER BY d.task LIMIT :limit OFFSET :offset

-- name: list_letters_alike
-- row: DeadLetterSummary
{select_letter} WHERE {letter_alike} AND d.task > :after AND {letter_wanted} ORDER BY d.task LIMIT :limit OFFSET :offset

-- name: count_letters
SELECT count(*) FROM (SELECT d.task {from_letters} WHERE d.task > :after AND {letter_wanted} LIMIT :most) AS c

-- name: count_letters_alike
SELECT count(*) FROM (
    SELECT d.task {from_letters} WHERE {letter_alike} AND d.task > :after AND {letter_wanted} LIMIT :most) AS c

-- name: group_of_letter
-- row: LetterGroupRow
SELECT d.ns, d.kind, d.reason_code, d.error_class, d.pattern FROM onetray.dead_letter AS d
    JOIN onetray.task AS t ON t.key = d.task JOIN onetray.namespace AS n ON n.key = d.ns
WHERE t.id = :id AND n.name = :namespace

-- word: letter_alike
d.ns = :group_ns AND d.kind = :group_kind AND d.reason_code = :group_reason AND d.error_class = :group_class
    AND d.pattern = :group_pattern

-- word: select_letter
SELECT d.task AS key, CAST(t.id AS text) AS id, k.name AS kind, d.reason_code, {letter_error} ->> 'class' AS error_class,
    {letter_error} ->> 'message' AS message, d.attempts, d.created_at,
    (SELECT CAST(s.id AS text) FROM onetray.task AS s WHERE s.key = d.successor) AS successor_id,
    CAST(f.id AS text) AS flow_id, f.finished_at AS flow_finished_at
{from_letters} LEFT JOIN onetray.flow AS f ON f.key = t.job

-- word: from_letters
-- The sign keeps the planner from the index of the groups: these statements go by key.
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.namespace AS n ON n.key = +d.ns

-- word: letter_wanted
n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task {in:keys:bigint})
    AND (CAST(:kind AS text) IS NULL OR d.kind = {kind_of_name}) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name {in:kinds:text}) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM onetray.queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace({letter_text}, :error, '') <> {letter_text})

-- name: count_prunable
-- row: Prunable
SELECT (SELECT count(*) FROM onetray.task AS t WHERE {task_prunable}) AS tasks,
    (SELECT count(*) FROM onetray.flow AS f WHERE {flow_prunable}) AS flows
