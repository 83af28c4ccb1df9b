-- Schedules: each fire time has at most one job, and none is forgotten.

-- pass: schedules
-- check: 19 schedule_looks: a schedule that has a next fire time, and is neither paused nor orphaned, is looked at
SELECT c.key AS schedule, c.name, c.next_fire_at, c.look_at, c.paused_at, c.orphaned_at,
    c.look_at IS NULL AND c.next_fire_at IS NOT NULL AND c.paused_at IS NULL AND c.orphaned_at IS NULL AS schedule_looks
FROM onetray.schedule AS c

-- pass: schedule_fires
-- check: 19 fire_known: a fire belongs to an existing schedule
-- check: 19 fire_job: a fire that was submitted has a job of its schedule's namespace, unless it was deleted; others have none
-- check: 19 fire_once: a job belongs to one fire
-- check: 19 fire_ahead: no fire of the calendar is at or after the next fire time
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, c.next_fire_at, c.ns,
    c.key IS NULL AS fire_known,
    (x.outcome = 'submitted') <> (x.job_id IS NOT NULL) OR coalesce(t.ns, f.ns, c.ns) IS DISTINCT FROM c.ns AS fire_job,
    x.job_id IS NOT NULL AND count(*) OVER (PARTITION BY x.job_id) > 1 AS fire_once,
    x.manual = 0 AND c.next_fire_at IS NOT NULL AND x.fire_at >= c.next_fire_at AS fire_ahead
FROM onetray.schedule_fire AS x LEFT JOIN onetray.schedule AS c ON c.key = x.schedule
    LEFT JOIN onetray.task AS t ON t.id = x.job_id LEFT JOIN onetray.flow AS f ON f.id = x.job_id
