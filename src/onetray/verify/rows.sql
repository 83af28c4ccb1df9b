-- Rules for a task's row by itself, and with its lease.

-- pass: tasks
-- check: 1 held: a task has an owner and a lease exactly while it is assigned or running
-- check: 4 known_state: every state is a declared one
-- check: 8 times: created_at, started_at and finished_at are in this order
-- check: 8 finished: finished_at is set exactly on terminal tasks
-- check: 9 cancelled_yet_waiting: a task whose cancel was requested is not queued, blocked or waiting
-- check: 12 names: a task's namespace, queue, kind and policy exist and belong together
-- check: 12 key_known: a task's key was assigned by the database
-- check: 15 budget: attempts stay within max_attempts, and a queued task has one left
-- check: 15 spared: a claim that was never started gives its attempt back only a limited number of times in a row
-- check: 15 held_by: a task has held_by exactly while it is blocked or waits for input
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.version, t.fence, t.owner, t.lease, t.attempts,
    t.max_attempts, t.spared AS row_spared, t.created_at, t.started_at, t.finished_at, t.cancel_at,
    t.held_by AS row_held_by, t.ns, t.queue, t.kind, t.policy,
    (t.state IN ({task.held})) <> (t.owner IS NOT NULL) OR (t.state IN ({task.held})) <> (t.lease IS NOT NULL) AS held,
    t.state NOT IN ({task.states}) AS known_state,
    t.started_at < t.created_at OR t.finished_at < coalesce(t.started_at, t.created_at)
        OR t.updated_at < t.created_at AS times,
    (t.state IN ({task.terminal})) <> (t.finished_at IS NOT NULL) AS finished,
    t.cancel_at IS NOT NULL AND t.state IN ({task.state:queued}, {task.paused}) AS cancelled_yet_waiting,
    n.key IS NULL OR q.key IS NULL OR k.key IS NULL OR p.key IS NULL AS names,
    t.key > {last_key} AS key_known,
    t.attempts NOT BETWEEN 0 AND t.max_attempts OR t.state = {task.state:queued} AND t.attempts >= t.max_attempts AS budget,
    t.spared NOT BETWEEN 0 AND {max_spared} AS spared,
    (t.state IN ({task.paused})) <> (coalesce(t.held_by, '') <> '') AS held_by
FROM onetray.task AS t LEFT JOIN onetray.namespace AS n ON n.key = t.ns
    LEFT JOIN onetray.queue AS q ON q.key = t.queue AND q.ns = t.ns
    LEFT JOIN onetray.kind AS k ON k.key = t.kind AND k.ns = t.ns
    LEFT JOIN onetray.policy AS p ON p.key = t.policy

-- pass: leases_of_tasks
-- check: 1 lease_there: the lease of a held task exists
-- check: 1 lease_of_owner: a lease has the owner and the namespace of its tasks
-- check: 1 lease_lists: a lease lists the tasks that are held under it
-- check: 16 owner: a task's owner is the worker that claimed it last
WITH listed AS (
    SELECT l.key AS lease, j.value AS task FROM onetray.lease AS l, {keys_in:l.tasks}
)
SELECT t.key AS task, CAST(t.id AS text) AS id, t.state, t.fence, t.owner AS row_owner, t.lease, l.worker, l.tasks,
    c.actor AS claimed_by,
    l.key IS NULL AS lease_there,
    l.worker <> t.owner OR l.ns <> t.ns AS lease_of_owner,
    l.key IS NOT NULL AND m.task IS NULL AS lease_lists,
    t.state IN ({task.held}) AND 'worker:' || t.owner IS DISTINCT FROM c.actor AND c.actor IS NOT NULL AS owner
FROM onetray.task AS t LEFT JOIN onetray.lease AS l ON l.key = t.lease
    LEFT JOIN listed AS m ON m.lease = t.lease AND m.task = t.key
    LEFT JOIN event_rows AS c ON c.entity = t.key AND c.version BETWEEN 1 AND t.version AND c.fence = t.fence
        AND c.type = {event:claim}
WHERE t.lease IS NOT NULL
