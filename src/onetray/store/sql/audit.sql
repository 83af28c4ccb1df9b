-- What people have done.

-- name: audited_batches
-- row: EventBatch
-- What people have done, newest first. With the condition of the index event_batch_audit, word for word.
{select_batch} FROM onetray.event_batch AS eb
WHERE {audited} AND eb.id < :before ORDER BY eb.id DESC LIMIT :limit

-- word: audited
coalesce(substr(eb.actor, 1, 5), 'user:') = 'user:' AND CASE eb.type
    WHEN 'task.submitted' THEN eb.cause IS NOT NULL OR replace(eb.varied, '"cause":', '') <> eb.varied
    WHEN 'flow.submitted' THEN eb.cause IS NOT NULL OR replace(eb.varied, '"cause":', '') <> eb.varied
    WHEN 'task.cancelled' THEN true WHEN 'task.cancel_requested' THEN true WHEN 'task.resumed' THEN true
    WHEN 'task.priority_set' THEN true WHEN 'task.rescheduled' THEN true WHEN 'stage.waiting' THEN true
    WHEN 'stage.approved' THEN true WHEN 'stage.rejected' THEN true WHEN 'stage.skipped' THEN true
    WHEN 'stage.cancelled' THEN true WHEN 'flow.paused' THEN true WHEN 'flow.resumed' THEN true
    WHEN 'flow.cancelled' THEN true WHEN 'flow.cancel_requested' THEN true WHEN 'flow.priority_set' THEN true
    WHEN 'queue.paused' THEN true WHEN 'queue.resumed' THEN true WHEN 'breaker.opened' THEN true
    WHEN 'breaker.closed' THEN true WHEN 'token.created' THEN true WHEN 'token.revoked' THEN true
    WHEN 'job.deleted' THEN true WHEN 'bulk.started' THEN true WHEN 'bulk.resumed' THEN true
    WHEN 'bulk.stopped' THEN true WHEN 'bulk.finished' THEN true WHEN 'schedule.created' THEN true
    WHEN 'schedule.changed' THEN true WHEN 'schedule.paused' THEN true WHEN 'schedule.resumed' THEN true
    WHEN 'schedule.triggered' THEN true WHEN 'schedule.backfilled' THEN true WHEN 'schedule.removed' THEN true
    WHEN 'schedule.orphaned' THEN true WHEN 'limit.set' THEN true WHEN 'limit.reset' THEN true
    WHEN 'limit.removed' THEN true WHEN 'weight.set' THEN true ELSE false END

-- name: copies_among
-- The tasks and flows among these that run an earlier one again, and since when.
SELECT t.key, t.created_at FROM onetray.task AS t WHERE t.key {in:keys:bigint} AND t.retry_of IS NOT NULL
UNION ALL SELECT f.key, f.created_at FROM onetray.flow AS f WHERE f.key {in:keys:bigint} AND f.retry_of IS NOT NULL
