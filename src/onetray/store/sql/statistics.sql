-- Numbers for charts, added up from the log. engine/statistics.py says what they mean.

-- name: statistic_cursor
-- row: StatisticCursorRow
SELECT c.since, c.upto, c.counted_at, c.removed_at FROM onetray.statistic_cursor AS c

-- name: end_of_count
-- The last event of the next rows of the log.
SELECT max(w.id + w.size - 1) FROM (
    SELECT eb.id, eb.size FROM onetray.event_batch AS eb WHERE eb.id > :after ORDER BY eb.id LIMIT :scan
) AS w WHERE w.id <= :upto

-- name: count_log
-- row: LogCountRow
-- Events by namespace, minute and type, and in how many rows of the log they are. Without the rows of varied_log.
SELECT eb.ns, eb.ts / 60000000 * 60000000 AS at, eb.type, CAST(sum(eb.size) AS bigint) AS number, count(*) AS batches
FROM onetray.event_batch AS eb
WHERE eb.id > :after AND eb.id <= :upto AND NOT {counted_singly} GROUP BY 1, 2, 3

-- name: varied_log
-- row: VariedLogRow
-- The rows whose events differ in their time or their namespace.
SELECT eb.size, eb.ts, eb.ns, eb.type, eb.varied FROM onetray.event_batch AS eb
WHERE eb.id > :after AND eb.id <= :upto AND {counted_singly}

-- word: counted_singly
(eb.ns IS NULL OR {position}(coalesce(eb.varied, ''), '"ts":[') > 0)

-- name: sample_ended
-- row: EndedBatchRow
-- Every so many rows of the log with ends of tasks, at least one of each namespace.
SELECT e.ns, e.size, e.entity, e.varied FROM (
    SELECT eb.ns, eb.size, eb.entity, CASE WHEN eb.entity IS NULL OR eb.ns IS NULL THEN eb.varied END AS varied,
        row_number() OVER (PARTITION BY eb.ns ORDER BY eb.id) AS nth
    FROM onetray.event_batch AS eb WHERE eb.id > :after AND eb.id <= :upto AND eb.type {in:ends:text}
) AS e
WHERE (e.nth - 1) / :step * :step = e.nth - 1

-- name: times_of_tasks
-- row: TaskTimesRow
-- When tasks became claimable for their last attempt: those of a stage not before it has opened.
SELECT t.key, t.ns, {greatest}(t.run_at, coalesce((SELECT s.opened_at FROM onetray.stage AS s WHERE s.key = t.stage), 0))
    AS claimable_at, t.started_at, t.finished_at
FROM onetray.task AS t WHERE t.key {in:keys:bigint} AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL

-- name: add_statistics
INSERT INTO onetray.statistic (ns, span, at, type, bucket, number)
SELECT b.ns, b.span, b.at, b.type, b.bucket, b.number {from_batch} WHERE true
ON CONFLICT (ns, span, at, type, bucket) DO UPDATE SET number = statistic.number + excluded.number

-- name: move_statistic_cursor
-- Moves only from where the events were read: whoever comes second writes nothing.
UPDATE onetray.statistic_cursor SET upto = :upto, counted_at = :at WHERE upto = :after RETURNING upto

-- name: note_removed
UPDATE onetray.statistic_cursor SET removed_at = :at WHERE removed_at < :at

-- name: prune_statistics
-- CROSS JOIN: SQLite keeps this order, and searches the numbers of each namespace by their key. WITH: see
-- delete_expired_requests.
WITH old AS MATERIALIZED (
    SELECT t.ns, t.span, t.at, t.type, t.bucket FROM onetray.namespace AS n CROSS JOIN onetray.statistic AS t
    WHERE t.ns = n.key AND t.span = :span AND t.at < :before LIMIT :limit {skip_locked_t}
)
DELETE FROM onetray.statistic WHERE (ns, span, at, type, bucket) IN (SELECT o.ns, o.span, o.at, o.type, o.bucket FROM old AS o)
RETURNING number

-- name: statistics
-- row: StatisticRow
-- The numbers in slots of one width. In the same statement, as slot -1, up to which event they count.
SELECT CAST(-1 AS bigint) AS slot, '' AS type, 0 AS bucket, c.upto AS number FROM onetray.statistic_cursor AS c
UNION ALL
SELECT (s.at - :since) / :width, s.type, s.bucket, CAST(sum(s.number) AS bigint)
FROM onetray.statistic AS s WHERE s.ns = :ns AND s.span = :span AND s.at >= :since AND s.at < :until GROUP BY 1, 2, 3
