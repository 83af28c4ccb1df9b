-- name: events_after
{select_event} WHERE e.id > :after AND e.id <= :upto AND (CAST(:namespace AS text) IS NULL OR n.name = :namespace)
ORDER BY e.id LIMIT :limit

-- name: events_of_task
-- By entity: one task's history, in order, without the feed's barrier.
{select_event} WHERE e.entity = :key AND e.id > :after ORDER BY e.id LIMIT :limit

-- name: events_by_correlation
{select_event} WHERE e.entity IN (
    SELECT f.entity FROM onetray.event AS f WHERE f.correlation_id = :correlation_id AND f.version = 1
) AND n.name = :namespace AND e.id > :after ORDER BY e.id LIMIT :limit

-- name: last_event_id
SELECT coalesce(max(id), 0) FROM onetray.event

-- word: select_event
SELECT e.id, (SELECT CAST(j.id AS text) FROM onetray.task AS j WHERE j.key = e.job), CAST(t.id AS text), e.type, e.ts,
    e.actor, coalesce(e.correlation_id, CAST(t.id AS text)), e.cause, e.trace, e.payload, e.version, e.was, e.state,
    e.fence, e.attempts, n.name
FROM onetray.event AS e JOIN onetray.task AS t ON t.key = e.entity JOIN onetray.namespace AS n ON n.key = e.ns
