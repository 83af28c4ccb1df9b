-- The log of events. What its columns mean is in the migration 0013; event_log.py encodes and decodes its rows.

-- name: insert_event_batch
INSERT INTO onetray.event_batch ({batch_row})
VALUES ({new_event} + :place, :size, :ts, :ns, :type, :was, :state, :actor, :entity, :job, :version, :fence, :attempts, :cause,
    :trace, :payload, :varied)

-- word: batch_row
id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied

-- word: select_batch
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied

-- name: insert_flow_events
INSERT INTO onetray.flow_event (job, batch) SELECT b.job, {new_event} + :place {from_batch}

-- name: insert_note
-- A note has no version: it records no transition. It is a row of its own.
INSERT INTO onetray.event_batch ({batch_row})
SELECT CAST({event_id} AS bigint), 1, {greatest}(b.at, task.updated_at), task.ns, b.type, NULL, NULL, b.actor, task.key,
    CASE WHEN task.stage IS NULL THEN NULL ELSE task.job END, NULL, task.fence, task.attempts, b.cause, b.trace, b.payload, NULL
{from_batch} JOIN onetray.task ON task.key = b.key

-- name: insert_flow_note
INSERT INTO onetray.event_batch ({batch_row})
SELECT CAST({event_id} AS bigint), 1, {greatest}(b.at, flow.updated_at), flow.ns, b.type, NULL, NULL, b.actor, flow.key, NULL,
    NULL, 0, 0, b.cause, b.trace, b.payload, NULL
{from_batch} JOIN onetray.flow ON flow.key = b.key

-- name: insert_notes_of_flows
-- Of the notes that were just written, those of flows and of their tasks.
INSERT INTO onetray.flow_event (job, batch)
SELECT coalesce(n.job, n.entity), n.id FROM onetray.event_batch AS n
WHERE n.id >= {new_event} AND n.id < {new_event} + :size AND n.state IS NULL
    AND (n.job IS NOT NULL OR CAST(:of_flows AS integer) = 1)

-- name: batches_of_task
-- row: TaskEventRow
-- The events of a task, its transitions, which its row lists, and its notes, with what they show of the task.
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied, t.correlation_id, t.trace AS task_trace,
    CASE WHEN t.job <> t.key THEN (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS flow_id
FROM onetray.task AS t JOIN onetray.namespace AS o ON o.key = t.ns CROSS JOIN {events_and_notes:t} JOIN {batch_of_i}
WHERE t.id = :id AND o.name = :namespace AND i.value > :after ORDER BY i.value LIMIT :limit

-- name: last_batches_of_task
-- row: TaskEventRow
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied, t.correlation_id, t.trace AS task_trace,
    CASE WHEN t.job <> t.key THEN (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS flow_id
FROM onetray.task AS t JOIN onetray.namespace AS o ON o.key = t.ns CROSS JOIN {events_and_notes:t} JOIN {batch_of_i}
WHERE t.id = :id AND o.name = :namespace AND i.value > :after AND i.value < :before ORDER BY i.value DESC LIMIT :limit

-- name: batches_of_entities
-- row: EntityEventRow
-- The same for stages and flows. They are written under the flow's lock, so no barrier is needed.
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied
FROM (
    SELECT s.key, s.events FROM onetray.stage AS s WHERE s.key {in:keys:bigint}
    UNION ALL SELECT f.key, f.events FROM onetray.flow AS f WHERE f.key {in:keys:bigint}
    UNION ALL SELECT k.key, k.events FROM onetray.task AS k WHERE k.key {in:keys:bigint}
) AS t CROSS JOIN {events_and_notes:t} JOIN {batch_of_i}
WHERE i.value > :after ORDER BY i.value LIMIT :limit

-- name: batches_of_flows
-- row: EventBatch
-- The rows about flows, their stages and their tasks from the one on that contains the event after the cursor. A row may
-- have entries of other jobs, too.
{select_batch}
FROM (
    SELECT DISTINCT r.batch FROM onetray.flow_event AS r WHERE r.job {in:keys:bigint} AND r.batch <= :upto
        AND r.batch >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0)
) AS r JOIN onetray.event_batch AS eb ON eb.id = r.batch
WHERE CAST(:every AS integer) = 1 OR eb.type {in:types:text}
ORDER BY r.batch LIMIT :limit

-- name: last_batches_of_flow
-- row: EventBatch
-- The rows about a flow, its stages and its tasks that begin before an event, the last one first.
{select_batch}
FROM onetray.flow_event AS r JOIN onetray.event_batch AS eb ON eb.id = r.batch
WHERE r.job = :job AND r.batch < :before ORDER BY r.batch DESC LIMIT :limit

-- name: batches_after
-- row: EventBatch
-- From the row on that contains the event after the cursor. The upper bound is outside of the window: with two bounds and
-- no statistics PostgreSQL expects few rows, and reads and sorts the whole log.
{select_batch}
FROM (
    SELECT * FROM onetray.event_batch AS w
    WHERE w.id >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0)
    ORDER BY w.id LIMIT :scan
) AS eb
WHERE eb.id <= :upto AND (CAST(:every AS integer) = 1 OR eb.type {in:types:text})
    AND (CAST(:ns AS integer) IS NULL OR eb.ns IS NULL OR eb.ns = :ns)
ORDER BY eb.id LIMIT :limit

-- name: end_of_window
-- The id of the last event that batches_after reads.
SELECT max(w.id + w.size - 1) FROM (
    SELECT eb.id, eb.size FROM onetray.event_batch AS eb
    WHERE eb.id >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0)
    ORDER BY eb.id LIMIT :scan
) AS w WHERE w.id <= :upto

-- name: tasks_of_events
-- row: EventEntityRow
-- What events show of the tasks that they are about.
SELECT t.key, CAST(t.id AS text) AS id, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.kind
FROM onetray.task AS t WHERE t.key {in:keys:bigint}

-- name: parents_of_events
-- row: EventEntityRow
-- The same of stages and flows.
SELECT f.key, CAST(f.id AS text) AS id, f.correlation_id, f.trace, f.kind FROM onetray.flow AS f WHERE f.key {in:keys:bigint}
UNION ALL SELECT s.key, CAST(s.id AS text), s.correlation_id, s.trace, 0 FROM onetray.stage AS s WHERE s.key {in:keys:bigint}

-- name: keys_by_correlation
-- row: CorrelatedRow
-- Single tasks and flows. A task without a correlation id is found by its own id.
SELECT t.key, 0 AS is_flow FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.correlation_id = :correlation_id AND t.stage IS NULL AND n.name = :namespace
UNION ALL SELECT own.key, 0 FROM onetray.task AS own JOIN onetray.namespace AS m ON m.key = own.ns
WHERE own.id = :id AND own.correlation_id IS NULL AND m.name = :namespace
UNION ALL SELECT f.key, 1 FROM onetray.flow AS f JOIN onetray.namespace AS o ON o.key = f.ns
WHERE f.correlation_id = :correlation_id AND o.name = :namespace

-- name: first_starts
SELECT t.key, min({entry_ts}) FROM onetray.task AS t CROSS JOIN {event_ids:t} JOIN {batch_of_i}
WHERE t.key {in:keys:bigint} AND eb.type = :started GROUP BY t.key

-- name: last_event_id
SELECT coalesce(max(eb.id + eb.size - 1), 0) FROM (
    SELECT n.id, n.size FROM onetray.event_batch AS n ORDER BY n.id DESC LIMIT 1
) AS eb

-- name: events_of_entities
-- The lists of the transitions of tasks, stages and flows.
SELECT t.key, t.events FROM onetray.task AS t WHERE t.key {in:keys:bigint}
UNION ALL SELECT s.key, s.events FROM onetray.stage AS s WHERE s.key {in:keys:bigint}
UNION ALL SELECT f.key, f.events FROM onetray.flow AS f WHERE f.key {in:keys:bigint}
UNION ALL SELECT p.entity, p.events FROM onetray.event_page AS p WHERE p.entity {in:keys:bigint}

-- name: lock_batches_of_events
-- row: EventBatch
-- The rows that contain these events, sorted, so that two transactions that remove entries cannot deadlock.
{select_batch} FROM onetray.event_batch AS eb WHERE eb.id {in_query:batches_of_events} ORDER BY eb.id {for_update}

-- word: batches_of_events
SELECT (SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= i.value) FROM {ids:events:bigint}

-- name: remove_entries
UPDATE onetray.event_batch SET entity = NULL, varied = b.varied {from_batch} WHERE event_batch.id = b.key

-- name: delete_batches
DELETE FROM onetray.event_batch WHERE id {in:keys:bigint}

-- name: prune_notes_of
-- The note of a deletion outlives its job.
DELETE FROM onetray.event_batch WHERE state IS NULL AND entity {in:keys:bigint} AND type <> 'job.deleted'

-- name: prune_flow_events
DELETE FROM onetray.flow_event WHERE job {in:keys:bigint}

-- name: list_events_of_task
UPDATE onetray.task SET events = CASE WHEN task.events = '' THEN b.events ELSE task.events || ',' || b.events END
{from_batch} WHERE task.key = {key_of_b}

-- name: list_events_of_stage
UPDATE onetray.stage SET events = CASE WHEN stage.events = '' THEN b.events ELSE stage.events || ',' || b.events END
{from_batch} WHERE stage.key = {key_of_b}

-- name: list_events_of_flow
UPDATE onetray.flow SET events = CASE WHEN flow.events = '' THEN b.events ELSE flow.events || ',' || b.events END
{from_batch} WHERE flow.key = {key_of_b}

-- name: prune_event_pages
DELETE FROM onetray.event_page WHERE entity {in:keys:bigint}

-- name: page_events_of_task
-- All but the last event of the list.
INSERT INTO onetray.event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST({last_event:t} AS text)) - 1)
FROM onetray.task AS t WHERE t.key {in:keys:bigint}

-- name: trim_events_of_task
UPDATE onetray.task AS t SET events = CAST({last_event:t} AS text) WHERE t.key {in:keys:bigint}

-- name: page_events_of_stage
-- All but the last event of the list.
INSERT INTO onetray.event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST({last_event:t} AS text)) - 1)
FROM onetray.stage AS t WHERE t.key {in:keys:bigint}

-- name: trim_events_of_stage
UPDATE onetray.stage AS t SET events = CAST({last_event:t} AS text) WHERE t.key {in:keys:bigint}

-- name: page_events_of_flow
-- All but the last event of the list.
INSERT INTO onetray.event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST({last_event:t} AS text)) - 1)
FROM onetray.flow AS t WHERE t.key {in:keys:bigint}

-- name: trim_events_of_flow
UPDATE onetray.flow AS t SET events = CAST({last_event:t} AS text) WHERE t.key {in:keys:bigint}
