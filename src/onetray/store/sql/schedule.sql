-- Schedules, and what their fire times have come to.

-- name: due_schedules
-- row: ScheduleRow
{select_schedule} WHERE c.look_at <= :now ORDER BY c.look_at, c.key LIMIT :limit

-- name: next_look
SELECT min(look_at) FROM onetray.schedule WHERE look_at IS NOT NULL

-- name: schedule_by_name
-- row: ScheduleRow
{select_schedule} WHERE n.name = :namespace AND c.name = :schedule

-- name: list_schedules
-- row: ScheduleRow
{select_schedule} WHERE n.name = :namespace AND c.name > :after ORDER BY c.name LIMIT :limit

-- name: schedules_of_app
-- row: ScheduleRow
{select_schedule} WHERE c.ns = :ns AND c.app = :app

-- name: count_schedules
SELECT count(*) FROM onetray.schedule WHERE ns = :ns

-- name: lock_schedule
-- Nothing if it has changed, or another transaction works on it.
SELECT c.turn FROM onetray.schedule AS c WHERE c.key = :key AND c.turn = :turn {skip_locked_keys}

-- name: lock_schedules
-- Only those that have not changed, and that no other transaction works on.
SELECT c.key FROM onetray.schedule AS c {join_batch} c.key = b.key AND c.turn = b.turn ORDER BY c.key {skip_locked_c}

-- name: wait_for_schedule
-- row: ScheduleRow
{select_schedule} WHERE c.ns = :ns AND c.name = :schedule {for_update_of_schedule}

-- name: insert_schedule
INSERT INTO onetray.schedule (key, ns, name, body, version, source, app, turn, next_fire_at, look_at, failures, fires,
    kept_from, seen_at, version_seen_at, created_at, created_by, updated_at)
VALUES (:key, :ns, :schedule, :body, :version, :source, :app, 1, :next_fire_at, :look_at, 0, 0, 0, :seen_at, :seen_at, :at, :by,
    :at)
ON CONFLICT (ns, name) DO NOTHING RETURNING 1

-- name: define_schedule
UPDATE onetray.schedule SET body = :body, version = :version, next_fire_at = :next_fire_at, look_at = :look_at,
    version_seen_at = :seen_at, updated_at = :at, turn = turn + 1
WHERE key = :key

-- name: see_schedule
-- In the code of its app. Returns it to work if it was orphaned.
UPDATE onetray.schedule SET seen_at = :at, version_seen_at = CASE WHEN version = :version THEN :at ELSE version_seen_at END,
    app = :app, orphaned_at = NULL, look_at = :look_at, turn = turn + CASE WHEN orphaned_at IS NULL THEN 0 ELSE 1 END
WHERE key = :key

-- name: orphan_schedule
UPDATE onetray.schedule SET orphaned_at = :at, look_at = NULL, turn = turn + 1 WHERE key = :key

-- name: pause_schedule
UPDATE onetray.schedule SET paused_at = :at, paused_by = :by, paused_why = :why, next_fire_at = NULL, look_at = NULL,
    failures = :failures, updated_at = :at, turn = turn + 1
WHERE key = :key

-- name: resume_schedule
UPDATE onetray.schedule SET paused_at = NULL, paused_by = NULL, paused_why = NULL, failures = 0,
    next_fire_at = :next_fire_at, look_at = :look_at, updated_at = :at, turn = turn + 1
WHERE key = :key

-- name: advance_schedules
UPDATE onetray.schedule SET next_fire_at = b.next_fire_at, last_fire_at = coalesce(b.last_fire_at, schedule.last_fire_at),
    look_at = b.look_at, failures = b.failures, fires = schedule.fires + b.fires, turn = schedule.turn + 1 {from_batch}
WHERE schedule.key = b.key

-- name: note_triggered
UPDATE onetray.schedule SET turn = turn + 1 WHERE key = :key

-- name: postpone_schedule
UPDATE onetray.schedule SET look_at = :look_at WHERE key = :key AND turn = :turn AND look_at IS NOT NULL

-- name: forget_fires
-- All but the newest, and those that overlap rules still need. Returns what is gone.
DELETE FROM onetray.schedule_fire WHERE schedule = :key AND open = 0 AND fire_at <= (
    SELECT o.fire_at FROM onetray.schedule_fire AS o WHERE o.schedule = :key ORDER BY o.fire_at DESC LIMIT 1 OFFSET :keep)
RETURNING fire_at

-- name: keep_fires_from
UPDATE onetray.schedule SET kept_from = :kept_from WHERE key = :key

-- name: delete_schedule
DELETE FROM onetray.schedule WHERE key = :key

-- name: delete_fires
DELETE FROM onetray.schedule_fire WHERE schedule = :key

-- name: insert_fires
INSERT INTO onetray.schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, why, missed, open)
SELECT b.schedule, b.fire_at, b.manual, b.outcome, NULL, b.actor, b.at, b.why, b.missed, b.open {from_batch} WHERE true
ON CONFLICT (schedule, fire_at, manual) DO NOTHING RETURNING fire_at

-- name: insert_or_take_fires
-- Those that were skipped before are taken.
INSERT INTO onetray.schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, why, missed, open)
SELECT b.schedule, b.fire_at, b.manual, b.outcome, NULL, b.actor, b.at, b.why, b.missed, b.open {from_batch} WHERE true
ON CONFLICT (schedule, fire_at, manual) DO UPDATE SET outcome = excluded.outcome, actor = excluded.actor, at = excluded.at,
    why = excluded.why, missed = excluded.missed, open = excluded.open
WHERE schedule_fire.job_id IS NULL
RETURNING fire_at

-- name: set_fires
-- What became of the submits of a transaction.
UPDATE onetray.schedule_fire SET outcome = b.outcome, job_id = b.job_id, why = b.why, open = b.open {from_batch}
WHERE schedule_fire.schedule = b.schedule AND schedule_fire.fire_at = b.fire_at AND schedule_fire.manual = b.manual

-- name: close_fires
UPDATE onetray.schedule_fire SET open = 0 {from_batch}
WHERE schedule_fire.schedule = b.schedule AND schedule_fire.fire_at = b.fire_at AND schedule_fire.manual = b.manual

-- name: open_fires
-- row: ScheduleFireRow
{select_fire} WHERE x.schedule = :key AND x.open = 1 ORDER BY x.fire_at, x.manual LIMIT :limit

-- name: open_fires_of_all
-- row: ScheduleFireRow
-- So many of each schedule, oldest first.
{select_fire} WHERE x.open = 1 AND (x.schedule, x.fire_at, x.manual) IN (
    SELECT o.schedule, o.fire_at, o.manual FROM (
        SELECT y.schedule, y.fire_at, y.manual, row_number() OVER (PARTITION BY y.schedule ORDER BY y.fire_at, y.manual) AS place
        FROM onetray.schedule_fire AS y WHERE y.open = 1 AND y.schedule {in:keys:bigint}) AS o
    WHERE o.place <= :limit)
ORDER BY x.schedule, x.fire_at, x.manual

-- name: last_fires
-- row: ScheduleFireRow
{select_fire} WHERE x.schedule = :key ORDER BY x.fire_at DESC, x.manual DESC LIMIT :limit

-- name: newest_fires
-- row: ScheduleFireRow
-- The last fire times of these schedules, without those that somebody has triggered.
{select_fire} JOIN onetray.schedule AS c ON c.key = x.schedule AND c.last_fire_at = x.fire_at AND x.manual = 0
WHERE c.key {in:keys:bigint}

-- name: fire_there
-- row: ScheduleFireRow
{select_fire} WHERE x.schedule = :key AND x.fire_at = :fire_at AND x.manual = :manual

-- name: fired_between
-- Those that have, or have had, a job.
SELECT x.fire_at FROM onetray.schedule_fire AS x
WHERE x.schedule = :key AND x.manual = 0 AND x.fire_at >= :since AND x.fire_at <= :until
    AND (x.job_id IS NOT NULL OR x.outcome = :waiting)

-- word: select_schedule
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM onetray.schedule AS c JOIN onetray.namespace AS n ON n.key = c.ns

-- word: select_fire
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM onetray.schedule_fire AS x LEFT JOIN onetray.task AS t ON t.id = x.job_id
    LEFT JOIN onetray.flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL
