-- name: events_after
-- row: Event
-- The filters apply to a window of the log, so that a read stays short if nearly nothing matches. The upper bound is
-- outside of it: with two bounds and no statistics PostgreSQL expects few rows, and reads and sorts the whole log.
SELECT {shown_event} FROM (
    SELECT * FROM onetray.event WHERE id > :after ORDER BY id LIMIT :scan
) AS e {event_joins}
WHERE e.id <= :upto AND (CAST(:namespace AS text) IS NULL OR n.name = :namespace)
    AND (CAST(:every AS integer) = 1 OR e.type {in:types:text})
ORDER BY e.id LIMIT :limit

-- name: end_of_window
SELECT max(w.id) FROM (
    SELECT e.id FROM onetray.event AS e WHERE e.id > :after ORDER BY e.id LIMIT :scan
) AS w WHERE w.id <= :upto

-- name: events_of_task
-- row: Event
-- One task's history, in order, without the feed's barrier. + 0 avoids a scan of the whole log by id.
{select_event} WHERE e.entity = :key AND e.id + 0 > :after ORDER BY e.id + 0 LIMIT :limit

-- name: events_of_flow_and_stages
-- row: Event
-- Without those of the tasks. They are written under the flow's lock, so no barrier is needed.
{select_event} WHERE e.entity {in:keys:bigint} AND e.id + 0 > :after ORDER BY e.id + 0 LIMIT :limit

-- name: first_starts
SELECT e.entity, min(e.ts) FROM onetray.event AS e WHERE e.entity {in:keys:bigint} AND e.type = :started GROUP BY e.entity

-- name: kinds_of_ids
SELECT CAST(t.id AS text), k.name FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind WHERE t.id {in:ids:uuid}
UNION ALL
SELECT CAST(f.id AS text), k.name FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind WHERE f.id {in:ids:uuid}

-- name: events_by_correlation
-- row: Event
-- A task without a correlation id is found by its own id.
{select_event} WHERE e.entity IN (
    SELECT f.entity FROM onetray.event AS f WHERE f.correlation_id = :correlation_id AND f.version = 1
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL
) AND n.name = :namespace AND e.id + 0 > :after ORDER BY e.id + 0 LIMIT :limit

-- name: last_event_id
SELECT coalesce(max(id), 0) FROM onetray.event

-- word: select_event
SELECT {shown_event} FROM onetray.event AS e {event_joins}

-- word: shown_event
e.id, CASE WHEN e.job = t.key THEN CAST(t.id AS text) ELSE coalesce(
        (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = e.job), {deleted_id}) END AS job_id,
    CASE WHEN t.key IS NOT NULL THEN CAST(t.id AS text) ELSE coalesce(
        (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = e.entity),
        (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = e.entity), {deleted_id}) END AS entity_id,
    e.type, e.ts, e.actor, coalesce(e.correlation_id, CAST(t.id AS text)) AS correlation_id, e.cause, e.trace, e.payload,
    e.version, e.was, e.state, e.fence, e.attempts, n.name AS namespace

-- word: deleted_id
CASE WHEN e.type = 'job.deleted' THEN {event_payload} ->> 'id' END

-- word: event_joins
LEFT JOIN onetray.task AS t ON t.key = e.entity JOIN onetray.namespace AS n ON n.key = e.ns
