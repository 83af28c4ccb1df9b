-- All events are in batches now: see old_events.py, which moves them there between the migrations 13 and 14.
DROP TABLE onetray.old_event;

-- only: postgres
CREATE VIEW onetray.event AS
SELECT b.id + p.place AS id, coalesce(b.entity + p.place, p.entity) AS entity,
    coalesce(b.job, p.job, b.entity + p.place, p.entity) AS job, b.ts - coalesce(p.earlier, 0) AS ts,
    coalesce(b.ns, p.ns) AS ns, coalesce(b.version, p.version) AS version, coalesce(b.fence, p.fence) AS fence,
    coalesce(b.attempts, p.attempts) AS attempts, b.type, coalesce(b.was, p.was) AS was, b.state,
    coalesce(b.actor, p.actor) AS actor, coalesce(
        (SELECT t.correlation_id FROM onetray.task AS t WHERE t.key = coalesce(b.entity + p.place, p.entity)),
        (SELECT f.correlation_id FROM onetray.flow AS f WHERE f.key = coalesce(b.job, p.job, b.entity + p.place, p.entity))
    ) AS correlation_id, coalesce(b.cause, p.cause) AS cause, coalesce(b.trace, p.trace,
        (SELECT t.trace FROM onetray.task AS t WHERE t.key = coalesce(b.entity + p.place, p.entity)),
        (SELECT s.trace FROM onetray.stage AS s WHERE s.key = coalesce(b.entity + p.place, p.entity)),
        (SELECT f.trace FROM onetray.flow AS f WHERE f.key = coalesce(b.entity + p.place, p.entity))
    ) AS trace, coalesce(b.payload, p.payload) AS payload, b.id AS batch, p.place
FROM onetray.event_batch AS b CROSS JOIN LATERAL (
    SELECT g.place, CAST(NULL AS bigint) AS entity, CAST(NULL AS bigint) AS job, CAST(NULL AS bigint) AS earlier,
        CAST(NULL AS integer) AS ns, CAST(NULL AS integer) AS version, CAST(NULL AS integer) AS fence,
        CAST(NULL AS integer) AS attempts, CAST(NULL AS text) AS was, CAST(NULL AS text) AS actor,
        CAST(NULL AS text) AS cause, CAST(NULL AS text) AS trace, CAST(NULL AS text) AS payload
    FROM generate_series(0, b.size - 1) AS g(place) WHERE b.varied IS NULL
    UNION ALL
    SELECT g.place, CAST(g.entity AS bigint), CAST(g.job AS bigint), CAST(g.ts AS bigint), CAST(g.ns AS integer),
        CAST(g.version AS integer), CAST(g.fence AS integer), CAST(g.attempts AS integer), g.was, g.actor, g.cause,
        g.trace, g.payload
    FROM ROWS FROM (
        generate_series(0, b.size - 1), json_array_elements_text(CAST(b.varied AS json) -> 'entity'),
        json_array_elements_text(CAST(b.varied AS json) -> 'job'), json_array_elements_text(CAST(b.varied AS json) -> 'ts'),
        json_array_elements_text(CAST(b.varied AS json) -> 'ns'),
        json_array_elements_text(CAST(b.varied AS json) -> 'version'),
        json_array_elements_text(CAST(b.varied AS json) -> 'fence'),
        json_array_elements_text(CAST(b.varied AS json) -> 'attempts'),
        json_array_elements_text(CAST(b.varied AS json) -> 'was'),
        json_array_elements_text(CAST(b.varied AS json) -> 'actor'),
        json_array_elements_text(CAST(b.varied AS json) -> 'cause'),
        json_array_elements_text(CAST(b.varied AS json) -> 'trace'),
        json_array_elements_text(CAST(b.varied AS json) -> 'payload')
    ) AS g(place, entity, job, ts, ns, version, fence, attempts, was, actor, cause, trace, payload)
    WHERE b.varied IS NOT NULL
) AS p
WHERE coalesce(b.entity, p.entity) IS NOT NULL;

-- only: sqlite
CREATE VIEW onetray.event AS
SELECT e.id, e.entity, coalesce(e.job, e.entity) AS job, e.ts, e.ns, e.version, e.fence, e.attempts, e.type, e.was, e.state,
    e.actor, coalesce((SELECT t.correlation_id FROM onetray.task AS t WHERE t.key = e.entity),
        (SELECT f.correlation_id FROM onetray.flow AS f WHERE f.key = coalesce(e.job, e.entity))) AS correlation_id, e.cause,
    coalesce(e.trace, (SELECT t.trace FROM onetray.task AS t WHERE t.key = e.entity),
        (SELECT s.trace FROM onetray.stage AS s WHERE s.key = e.entity),
        (SELECT f.trace FROM onetray.flow AS f WHERE f.key = e.entity)) AS trace, e.payload, e.batch, e.place
FROM (
    SELECT b.id + p.n AS id, coalesce(b.entity + p.n, json_extract(b.varied, '$.entity[' || p.n || ']')) AS entity,
        coalesce(b.job, json_extract(b.varied, '$.job[' || p.n || ']')) AS job,
        b.ts - coalesce(json_extract(b.varied, '$.ts[' || p.n || ']'), 0) AS ts,
        coalesce(b.ns, json_extract(b.varied, '$.ns[' || p.n || ']')) AS ns,
        coalesce(b.version, json_extract(b.varied, '$.version[' || p.n || ']')) AS version,
        coalesce(b.fence, json_extract(b.varied, '$.fence[' || p.n || ']')) AS fence,
        coalesce(b.attempts, json_extract(b.varied, '$.attempts[' || p.n || ']')) AS attempts, b.type,
        coalesce(b.was, json_extract(b.varied, '$.was[' || p.n || ']')) AS was, b.state,
        coalesce(b.actor, json_extract(b.varied, '$.actor[' || p.n || ']')) AS actor,
        coalesce(b.cause, json_extract(b.varied, '$.cause[' || p.n || ']')) AS cause,
        coalesce(b.trace, json_extract(b.varied, '$.trace[' || p.n || ']')) AS trace,
        coalesce(b.payload, json_extract(b.varied, '$.payload[' || p.n || ']')) AS payload, b.id AS batch, p.n AS place
    FROM onetray.event_batch AS b JOIN onetray.event_place AS p ON p.n < b.size
) AS e
WHERE e.entity IS NOT NULL;
