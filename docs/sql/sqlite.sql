-- generated: tools/rendered_sql.py sqlite
-- Every statement, as sqlite gets it. In sqlite3: .parameter set :keys '[1,2]'. Lists and batches are JSON.

-- name: redrive_facts
-- row: RedriveFacts(key, state, control, spawned_by, job, stage, ord, stage_state, stage_ending, redriven, opened_at, flow_state, flow_ending, roll_up, compensation, successor)
SELECT t.key, t.state, t.control, t.spawned_by, t.job, t.stage, s.ord, s.state AS stage_state, s.ending AS stage_ending,
    s.redriven, s.opened_at, f.state AS flow_state, f.ending AS flow_ending, f.roll_up, f.compensation,
    (SELECT u.key FROM dead_letter AS d JOIN task AS u ON u.key = d.successor WHERE d.task = t.key)
    AS successor
FROM task AS t LEFT JOIN stage AS s ON s.key = t.stage LEFT JOIN flow AS f ON f.key = s.job
WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: states_of_needs
-- row: NeedRow(task, key, stage, state)
SELECT d.task, d.needs AS key, (SELECT t.stage FROM task AS t WHERE t.key = d.needs) AS stage,
    (SELECT o.state FROM task AS o WHERE o.key = d.needs) AS state
FROM dependency AS d WHERE d.task IN (SELECT value FROM json_each(:keys)) ORDER BY d.task, d.needs;

-- name: spawner
-- row: SpawnerRow(key, stage, state, spawned_by, cancel_at, ord, ended_by)
SELECT t.key, t.stage, t.state, t.spawned_by, t.cancel_at, s.ord,
    (SELECT coalesce(eb.actor, json_extract(eb.varied, '$.actor[' || (i.value - eb.id) || ']')) FROM (SELECT json_extract('[' || t.events || ']', '$[#-1]') AS value) AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)) AS ended_by
FROM task AS t JOIN stage AS s ON s.key = t.stage WHERE t.key = :key;

-- name: retry_facts
-- row: RetryFacts(key, is_taken, has_carried, compensation)
SELECT f.key, CASE WHEN f.compensates IS NULL THEN (
        SELECT count(*) FROM unique_key AS u JOIN flow AS g ON g.key = u.job
        WHERE u.kind = f.kind AND u.key = :singleton AND g.finished_at IS NULL) ELSE 0 END AS is_taken,
    (SELECT count(s.carried_from) FROM stage AS s WHERE s.job = f.key) AS has_carried, f.compensation
FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys));

-- name: insert_aliases
INSERT INTO alias (ns, alias, entity, key) SELECT b.ns, b.alias, b.entity, b.key FROM (SELECT value ->> 0 AS ns, value ->> 1 AS alias, value ->> 2 AS entity, value ->> 3 AS key FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (ns, alias) DO NOTHING;

-- name: alias_holders
-- row: AliasHolderRow(ns, alias, entity, key, id)
SELECT a.ns, a.alias, a.entity, a.key, coalesce(CAST(t.id AS text), CAST(c.id AS text), CAST(f.id AS text)) AS id
FROM alias AS a LEFT JOIN task AS t ON t.key = a.key LEFT JOIN context AS c ON c.key = a.key
    LEFT JOIN flow AS f ON f.key = coalesce(t.job, c.job, a.key) JOIN (SELECT value ->> 0 AS ns, value ->> 1 AS alias FROM json_each(:batch)) AS b ON a.ns = b.ns AND a.alias = b.alias;

-- name: free_aliases
DELETE FROM alias WHERE (alias.ns, alias.alias) IN (SELECT b.ns, b.alias FROM (SELECT value ->> 0 AS ns, value ->> 1 AS alias FROM json_each(:batch)) AS b);

-- name: hand_on_aliases
UPDATE alias SET key = b.successor FROM (SELECT value ->> 0 AS successor, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE alias.key = b.key;

-- name: entities_by_alias
-- row: Alias(alias, entity, id, job_id)
SELECT a.alias, a.entity, coalesce(CAST(t.id AS text), CAST(c.id AS text), CAST(f.id AS text)) AS id,
    coalesce(CASE WHEN t.job = t.key THEN CAST(t.id AS text) END, CAST(f.id AS text)) AS job_id
FROM alias AS a JOIN namespace AS n ON n.key = a.ns LEFT JOIN task AS t ON t.key = a.key LEFT JOIN context AS c ON c.key = a.key
    LEFT JOIN flow AS f ON f.key = coalesce(t.job, c.job, a.key)
WHERE n.name = :namespace AND a.alias IN (SELECT value FROM json_each(:aliases)) AND f.deleted_at IS NULL;

-- name: aliases_of_ids
-- row: Alias(alias, entity, id, job_id)
SELECT (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias, 'task' AS entity,
    CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(g.id AS text) FROM flow AS g WHERE g.key = t.job) END AS job_id
FROM task AS t JOIN namespace AS n ON n.key = t.ns WHERE t.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace
UNION ALL
SELECT (SELECT i.alias FROM alias AS i WHERE i.key = f.key), 'flow', CAST(f.id AS text), CAST(f.id AS text)
FROM flow AS f JOIN namespace AS n ON n.key = f.ns
WHERE f.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace AND f.deleted_at IS NULL
UNION ALL
SELECT (SELECT i.alias FROM alias AS i WHERE i.key = c.key), 'context', CAST(c.id AS text),
    (SELECT CAST(g.id AS text) FROM flow AS g WHERE g.key = c.job)
FROM context AS c JOIN namespace AS n ON n.key = c.ns WHERE c.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace;

-- name: audited_batches
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied FROM event_batch AS eb
WHERE coalesce(substr(eb.actor, 1, 5), 'user:') = 'user:' AND CASE eb.type
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
    WHEN 'limit.removed' THEN true WHEN 'weight.set' THEN true ELSE false END AND eb.id < :before ORDER BY eb.id DESC LIMIT :limit;

-- name: copies_among
SELECT t.key, t.created_at FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys)) AND t.retry_of IS NOT NULL
UNION ALL SELECT f.key, f.created_at FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys)) AND f.retry_of IS NOT NULL;

-- name: kinds_past_breakers
SELECT k.key, br.open_until FROM kind AS k LEFT JOIN breaker AS br ON br.kind = k.key
WHERE EXISTS (SELECT 1 FROM breaker AS o WHERE o.open_until IS NOT NULL) AND k.ns = :ns
    AND EXISTS (SELECT 1 FROM ready AS r WHERE r.queue = :queue AND r.kind = k.key);

-- name: breakers_of_kinds
SELECT kind, open_until FROM breaker WHERE open_until IS NOT NULL AND kind IN (SELECT value FROM json_each(:kinds));

-- name: lock_breakers_to_try
SELECT kind FROM breaker WHERE kind IN (SELECT value FROM json_each(:kinds)) AND open_until <= :now ORDER BY kind;

-- name: try_breaker
UPDATE breaker SET probing = 1, open_until = b.open_until FROM (SELECT value ->> 0 AS open_until, value ->> 1 AS kind FROM json_each(:batch)) AS b WHERE breaker.kind = b.kind;

-- name: add_breaker
INSERT INTO breaker (kind, recent) SELECT b.kind, '[]' FROM (SELECT value AS kind FROM json_each(:batch)) AS b WHERE true ON CONFLICT DO NOTHING;

-- name: lock_breakers
-- row: BreakerRow(kind, recent, opened_at, open_until, probing, why, opened_by)
SELECT kind, recent, opened_at, open_until, probing, why, opened_by FROM breaker
WHERE kind IN (SELECT value FROM json_each(:kinds)) AND (probing = 1 OR kind IN (SELECT value FROM json_each(:failed))) ORDER BY kind;

-- name: set_breaker
UPDATE breaker SET recent = b.recent, opened_at = b.opened_at, open_until = b.open_until, probing = b.probing,
    why = b.why, opened_by = b.opened_by FROM (SELECT value ->> 0 AS recent, value ->> 1 AS opened_at, value ->> 2 AS open_until, value ->> 3 AS probing, value ->> 4 AS why, value ->> 5 AS opened_by, value ->> 6 AS kind FROM json_each(:batch)) AS b WHERE breaker.kind = b.kind;

-- name: lock_open_breakers
SELECT kind FROM breaker WHERE kind IN (SELECT value FROM json_each(:kinds)) AND open_until IS NOT NULL ORDER BY kind;

-- name: breaker_opened
SELECT kind FROM breaker WHERE kind = :kind AND opened_at >= :since AND opened_by = :by AND why = :why;

-- name: close_breakers
UPDATE breaker SET recent = '[]', opened_at = NULL, open_until = NULL, probing = 0, why = NULL, opened_by = NULL
WHERE kind IN (SELECT value FROM json_each(:kinds));

-- name: open_breaker
INSERT INTO breaker (kind, recent, opened_at, open_until, probing, why, opened_by)
VALUES (:kind, '[]', :at, :until, 0, :why, :by)
ON CONFLICT (kind) DO UPDATE SET opened_at = excluded.opened_at, open_until = excluded.open_until, probing = 0,
    why = excluded.why, opened_by = excluded.opened_by;

-- name: breakers
-- row: BreakerDetails(kind, recent, opened_at, open_until, probing, why, opened_by, policy, seen_at)
SELECT k.name AS kind, br.recent, br.opened_at, br.open_until, br.probing, br.why, br.opened_by, p.body AS policy,
    :now AS seen_at
FROM breaker AS br JOIN kind AS k ON k.key = br.kind JOIN namespace AS n ON n.key = k.ns
    JOIN policy AS p ON p.key = k.policy
WHERE n.name = :namespace ORDER BY k.name LIMIT :limit;

-- name: insert_bulk
INSERT INTO bulk (id, ns, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at,
    most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
VALUES (:id, :ns, :action, :filters, :options, :reason, :state, :at, :by, :at, NULL, :most, :canary, :place, 0, 0, 0, 0,
    '[]', '[]')
ON CONFLICT (id) DO NOTHING RETURNING 1;

-- name: prune_bulks
DELETE FROM bulk WHERE ns = :ns AND finished_at IS NOT NULL AND created_at < (
    SELECT min(o.created_at) FROM (
        SELECT x.created_at FROM bulk AS x WHERE x.ns = :ns ORDER BY x.created_at DESC LIMIT :keep) AS o);

-- name: bulk_by_id
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM bulk AS o JOIN namespace AS n ON n.key = o.ns WHERE o.id = :id AND n.name = :namespace;

-- name: list_bulks
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM bulk AS o JOIN namespace AS n ON n.key = o.ns WHERE n.name = :namespace AND (CAST(:unfinished AS integer) = 0 OR o.finished_at IS NULL)
ORDER BY o.created_at DESC, o.id DESC LIMIT :limit;

-- name: next_bulk
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM bulk AS o JOIN namespace AS n ON n.key = o.ns WHERE o.finished_at IS NULL AND o.state = :state ORDER BY o.updated_at, o.id LIMIT 1;

-- name: lock_bulk
SELECT o.place FROM bulk AS o WHERE o.id = :id AND o.state = :state AND o.place = :place AND o.done = :done
    AND o.refused = :refused
;

-- name: wait_for_bulk
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM bulk AS o JOIN namespace AS n ON n.key = o.ns WHERE o.id = :id AND o.ns = :ns;

-- name: advance_bulk
UPDATE bulk SET place = :place, done = done + :done, repeated = repeated + :repeated, refused = refused + :refused,
    skipped = skipped + :skipped, refusals = :refusals, canary_ids = :canary_ids, state = :state, updated_at = :at,
    finished_at = :finished_at
WHERE id = :id;

-- name: set_bulk_state
UPDATE bulk SET state = :state, updated_at = :at, finished_at = :finished_at WHERE id = :id;

-- name: states_of_tasks
SELECT t.state FROM task AS t WHERE t.id IN (SELECT value FROM json_each(:ids));

-- name: insert_dead_letter
INSERT INTO dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern)
SELECT b.key, b.ns, b.at, b.reason_code, b.stage, b.last_error, b.attempts, b.last_owner, b.last_lease_expires_at,
    b.correlation_id, b.trace_id, b.payload_hash, b.kind, b.error_class, b.pattern FROM (SELECT value ->> 0 AS key, value ->> 1 AS ns, value ->> 2 AS at, value ->> 3 AS reason_code, value ->> 4 AS stage, value ->> 5 AS last_error, value ->> 6 AS attempts, value ->> 7 AS last_owner, value ->> 8 AS last_lease_expires_at, value ->> 9 AS correlation_id, value ->> 10 AS trace_id, value ->> 11 AS payload_hash, value ->> 12 AS kind, value ->> 13 AS error_class, value ->> 14 AS pattern FROM json_each(:batch)) AS b;

-- name: copy_letters
INSERT INTO dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern)
SELECT b.key, d.ns, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner, d.last_lease_expires_at,
    d.correlation_id, d.trace_id, d.payload_hash, d.kind, d.error_class, d.pattern
FROM dead_letter AS d JOIN (SELECT value ->> 0 AS key, value ->> 1 AS task FROM json_each(:batch)) AS b ON d.task = b.task;

-- name: facts_for_dead_letter
-- row: LetterFactsRow(key, id, correlation_id, trace, payload)
SELECT key, CAST(id AS text) AS id, correlation_id, trace, payload FROM task WHERE key IN (SELECT value FROM json_each(:keys));

-- name: last_holders
SELECT t.key, coalesce(eb.payload, json_extract(eb.varied, '$.payload[' || (i.value - eb.id) || ']')) FROM task AS t CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE t.key IN (SELECT value FROM json_each(:keys)) AND coalesce(eb.was, json_extract(eb.varied, '$.was[' || (i.value - eb.id) || ']')) IN (SELECT value FROM json_each(:held)) AND coalesce(eb.payload, json_extract(eb.varied, '$.payload[' || (i.value - eb.id) || ']')) IS NOT NULL
ORDER BY t.key, i.value;

-- name: lock_letter
SELECT successor FROM dead_letter WHERE task = :key;

-- name: set_successor
UPDATE dead_letter SET successor = b.successor FROM (SELECT value ->> 0 AS successor, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE dead_letter.task = b.key;

-- name: dead_letters
-- row: DeadLetter(task_id, created_at, reason_code, stage, last_error, attempts, last_owner, last_lease_expires_at, correlation_id, trace_id, payload_hash, successor_id)
SELECT CAST(t.id AS text) AS task_id, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner,
    d.last_lease_expires_at, d.correlation_id, d.trace_id, d.payload_hash, CAST(s.id AS text) AS successor_id
FROM dead_letter AS d JOIN task AS t ON t.key = d.task
    JOIN namespace AS n ON n.key = +d.ns
    LEFT JOIN task AS s ON s.key = d.successor WHERE n.name = :namespace ORDER BY d.task DESC LIMIT :limit;

-- name: dead_letter_of_task
-- row: DeadLetter(task_id, created_at, reason_code, stage, last_error, attempts, last_owner, last_lease_expires_at, correlation_id, trace_id, payload_hash, successor_id)
SELECT CAST(t.id AS text) AS task_id, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner,
    d.last_lease_expires_at, d.correlation_id, d.trace_id, d.payload_hash, CAST(s.id AS text) AS successor_id
FROM dead_letter AS d JOIN task AS t ON t.key = d.task
    JOIN namespace AS n ON n.key = +d.ns
    LEFT JOIN task AS s ON s.key = d.successor WHERE t.id = :id AND n.name = :namespace;

-- name: spec_of
-- row: TaskToCopy(key, id, queue, kind, policy, priority, max_attempts, correlation_id, trace, payload, name, spawned_by, metadata, tracestate, context, idempotency_key)
SELECT t.key, CAST(t.id AS text) AS id, t.queue, t.kind, t.policy, t.priority, t.max_attempts, t.correlation_id, t.trace,
    t.payload, t.name, t.spawned_by, t.metadata, t.tracestate, t.context, t.idempotency_key
FROM task AS t WHERE t.key = :key;

-- name: declared_flow
-- row: DeclaredFlowRow(name, version, declared_at, declared_by, seen_at, other_version, other_seen_at, body)
SELECT d.name, d.version, d.declared_at, d.declared_by, d.seen_at, d.other_version, d.other_seen_at, d.body
FROM declared_flow AS d JOIN namespace AS n ON n.key = d.ns
WHERE n.name = :namespace AND d.name = :flow;

-- name: declared_flows
-- row: DeclaredFlowSummary(name, version, stages, declared_at, declared_by, seen_at, other_version, other_seen_at)
SELECT d.name, d.version, d.stages, d.declared_at, d.declared_by, d.seen_at, d.other_version, d.other_seen_at
FROM declared_flow AS d JOIN namespace AS n ON n.key = d.ns
WHERE n.name = :namespace ORDER BY d.name LIMIT :limit;

-- name: declare_flow
INSERT INTO declared_flow (ns, name, version, stages, declared_at, declared_by, seen_at, body)
VALUES (:ns, :name, :version, :stages, :at, :by, :at, :body)
ON CONFLICT (ns, name) DO UPDATE SET version = excluded.version, stages = excluded.stages,
    declared_at = excluded.declared_at, declared_by = excluded.declared_by, seen_at = excluded.seen_at,
    other_version = CASE WHEN declared_flow.version = excluded.version THEN declared_flow.other_version
        ELSE declared_flow.version END,
    other_seen_at = CASE WHEN declared_flow.version = excluded.version THEN declared_flow.other_seen_at
        ELSE declared_flow.seen_at END, body = excluded.body
WHERE declared_flow.version <> excluded.version OR declared_flow.body <> excluded.body;

-- name: renew_flow
UPDATE declared_flow SET
    seen_at = CASE WHEN version = :version THEN :at ELSE seen_at END,
    other_version = CASE WHEN version = :version THEN other_version ELSE :version END,
    other_seen_at = CASE WHEN version = :version THEN other_seen_at ELSE :at END
WHERE ns = :ns AND name = :name;

-- name: forget_flow
DELETE FROM declared_flow WHERE ns = :ns AND name = :name RETURNING name;

-- name: job_to_delete
-- row: JobToDelete(entity, key, id, state, kind, correlation_id, flow_id)
SELECT 'task' AS entity, t.key, CAST(t.id AS text) AS id, t.state, k.name AS kind,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id,
    (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) AS flow_id
FROM task AS t JOIN kind AS k ON k.key = t.kind WHERE t.id = :id AND t.ns = :ns
UNION ALL
SELECT 'flow', f.key, CAST(f.id AS text), f.state, k.name, f.correlation_id, CAST(NULL AS text)
FROM flow AS f JOIN kind AS k ON k.key = f.kind WHERE f.id = :id AND f.ns = :ns;

-- name: any_open_member
SELECT 1 FROM stage AS s WHERE s.job = :job AND s.open > 0 LIMIT 1;

-- name: open_compensation
SELECT CAST(c.id AS text) FROM flow AS f JOIN flow AS c ON c.key = f.compensation
WHERE f.key = :job AND c.finished_at IS NULL;

-- name: mark_deleted
UPDATE flow SET deleted_at = :at WHERE key = :key;

-- name: members_to_delete
SELECT t.key FROM task AS t WHERE t.stage = :stage ORDER BY t.stage, t.key LIMIT :limit;

-- name: contexts_to_delete
SELECT c.key FROM context AS c WHERE c.job = :job LIMIT :limit;

-- name: notes_to_delete
SELECT e.id FROM event_batch AS e
WHERE e.entity = :job AND e.state IS NULL AND e.type <> 'job.deleted' LIMIT :limit;

-- name: stages_to_delete
SELECT s.key FROM stage AS s WHERE s.job = :job ORDER BY s.job, s.ord LIMIT :limit;

-- name: prune_dependencies_on
DELETE FROM dependency WHERE needs IN (SELECT value FROM json_each(:keys));

-- name: prune_contexts_by_key
DELETE FROM context WHERE key IN (SELECT value FROM json_each(:keys));

-- name: prune_notes_by_key
DELETE FROM event_batch WHERE id IN (SELECT value FROM json_each(:keys));

-- name: ids_of_tasks
SELECT key, CAST(id AS text) FROM task WHERE key IN (SELECT value FROM json_each(:keys));

-- name: ended_tasks
SELECT t.key, CAST(t.id AS text) FROM task AS t
WHERE t.key > :after AND t.key <= :upto AND t.ns = :ns AND t.job = t.key AND t.finished_at < :before
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states))) AND t.kind = coalesce(CAST(:kind AS integer), t.kind)
    AND coalesce((SELECT max(i.expires_at) FROM idempotency AS i WHERE i.job = t.key), 0) <= :now
ORDER BY t.key LIMIT :limit;

-- name: ended_flows
SELECT f.key, CAST(f.id AS text) FROM flow AS f
WHERE f.key > :after AND f.key <= :upto AND f.ns = :ns AND f.finished_at < :before AND f.deleted_at IS NULL
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states))) AND f.kind = coalesce(CAST(:kind AS integer), f.kind)
    AND coalesce((SELECT max(i.expires_at) FROM idempotency AS i WHERE i.job = f.key), 0) <= :now
ORDER BY f.key LIMIT :limit;

-- name: insert_event_batch
INSERT INTO event_batch (id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
VALUES (:event + :place, :size, :ts, :ns, :type, :was, :state, :actor, :entity, :job, :version, :fence, :attempts, :cause,
    :trace, :payload, :varied);

-- name: insert_flow_events
INSERT INTO flow_event (job, batch) SELECT b.job, :event + :place FROM (SELECT value AS job FROM json_each(:batch)) AS b;

-- name: insert_note
INSERT INTO event_batch (id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT CAST(CAST(:event + b.place AS text) AS bigint), 1, max(b.at, task.updated_at), task.ns, b.type, NULL, NULL, b.actor, task.key,
    CASE WHEN task.stage IS NULL THEN NULL ELSE task.job END, NULL, task.fence, task.attempts, b.cause, b.trace, b.payload, NULL
FROM (SELECT value ->> 0 AS at, value ->> 1 AS type, value ->> 2 AS actor, value ->> 3 AS cause, value ->> 4 AS trace, value ->> 5 AS payload, value ->> 6 AS key, key AS place FROM json_each(:batch)) AS b JOIN task ON task.key = b.key;

-- name: insert_flow_note
INSERT INTO event_batch (id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT CAST(CAST(:event + b.place AS text) AS bigint), 1, max(b.at, flow.updated_at), flow.ns, b.type, NULL, NULL, b.actor, flow.key, NULL,
    NULL, 0, 0, b.cause, b.trace, b.payload, NULL
FROM (SELECT value ->> 0 AS at, value ->> 1 AS type, value ->> 2 AS actor, value ->> 3 AS cause, value ->> 4 AS trace, value ->> 5 AS payload, value ->> 6 AS key, key AS place FROM json_each(:batch)) AS b JOIN flow ON flow.key = b.key;

-- name: insert_notes_of_flows
INSERT INTO flow_event (job, batch)
SELECT coalesce(n.job, n.entity), n.id FROM event_batch AS n
WHERE n.id >= :event AND n.id < :event + :size AND n.state IS NULL
    AND (n.job IS NOT NULL OR CAST(:of_flows AS integer) = 1);

-- name: batches_of_task
-- row: TaskEventRow(event, id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied, correlation_id, task_trace, flow_id)
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied, t.correlation_id, t.trace AS task_trace,
    CASE WHEN t.job <> t.key THEN (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS flow_id
FROM task AS t JOIN namespace AS o ON o.key = t.ns CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || coalesce((SELECT ',' || group_concat(n.id) FROM event_batch AS n WHERE n.entity = t.key AND n.state IS NULL), '') || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE t.id = :id AND o.name = :namespace AND i.value > :after ORDER BY i.value LIMIT :limit;

-- name: last_batches_of_task
-- row: TaskEventRow(event, id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied, correlation_id, task_trace, flow_id)
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied, t.correlation_id, t.trace AS task_trace,
    CASE WHEN t.job <> t.key THEN (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS flow_id
FROM task AS t JOIN namespace AS o ON o.key = t.ns CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || coalesce((SELECT ',' || group_concat(n.id) FROM event_batch AS n WHERE n.entity = t.key AND n.state IS NULL), '') || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE t.id = :id AND o.name = :namespace AND i.value > :after AND i.value < :before ORDER BY i.value DESC LIMIT :limit;

-- name: batches_of_entities
-- row: EntityEventRow(event, id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied
FROM (
    SELECT s.key, s.events FROM stage AS s WHERE s.key IN (SELECT value FROM json_each(:keys))
    UNION ALL SELECT f.key, f.events FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys))
    UNION ALL SELECT k.key, k.events FROM task AS k WHERE k.key IN (SELECT value FROM json_each(:keys))
) AS t CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || coalesce((SELECT ',' || group_concat(n.id) FROM event_batch AS n WHERE n.entity = t.key AND n.state IS NULL), '') || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE i.value > :after ORDER BY i.value LIMIT :limit;

-- name: batches_of_flows
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied
FROM (
    SELECT DISTINCT r.batch FROM flow_event AS r WHERE r.job IN (SELECT value FROM json_each(:keys)) AND r.batch <= :upto
        AND r.batch >= coalesce((SELECT max(x.id) FROM event_batch AS x WHERE x.id <= :after), 0)
) AS r JOIN event_batch AS eb ON eb.id = r.batch
WHERE CAST(:every AS integer) = 1 OR eb.type IN (SELECT value FROM json_each(:types))
ORDER BY r.batch LIMIT :limit;

-- name: last_batches_of_flow
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied
FROM flow_event AS r JOIN event_batch AS eb ON eb.id = r.batch
WHERE r.job = :job AND r.batch < :before ORDER BY r.batch DESC LIMIT :limit;

-- name: batches_after
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied
FROM (
    SELECT * FROM event_batch AS w
    WHERE w.id >= coalesce((SELECT max(x.id) FROM event_batch AS x WHERE x.id <= :after), 0)
    ORDER BY w.id LIMIT :scan
) AS eb
WHERE eb.id <= :upto AND (CAST(:every AS integer) = 1 OR eb.type IN (SELECT value FROM json_each(:types)))
    AND (CAST(:ns AS integer) IS NULL OR eb.ns IS NULL OR eb.ns = :ns)
ORDER BY eb.id LIMIT :limit;

-- name: end_of_window
SELECT max(w.id + w.size - 1) FROM (
    SELECT eb.id, eb.size FROM event_batch AS eb
    WHERE eb.id >= coalesce((SELECT max(x.id) FROM event_batch AS x WHERE x.id <= :after), 0)
    ORDER BY eb.id LIMIT :scan
) AS w WHERE w.id <= :upto;

-- name: tasks_of_events
-- row: EventEntityRow(key, id, correlation_id, trace, kind)
SELECT t.key, CAST(t.id AS text) AS id, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.kind
FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: parents_of_events
-- row: EventEntityRow(key, id, correlation_id, trace, kind)
SELECT f.key, CAST(f.id AS text) AS id, f.correlation_id, f.trace, f.kind FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys))
UNION ALL SELECT s.key, CAST(s.id AS text), s.correlation_id, s.trace, 0 FROM stage AS s WHERE s.key IN (SELECT value FROM json_each(:keys));

-- name: keys_by_correlation
-- row: CorrelatedRow(key, is_flow)
SELECT t.key, 0 AS is_flow FROM task AS t JOIN namespace AS n ON n.key = t.ns
WHERE t.correlation_id = :correlation_id AND t.stage IS NULL AND n.name = :namespace
UNION ALL SELECT own.key, 0 FROM task AS own JOIN namespace AS m ON m.key = own.ns
WHERE own.id = :id AND own.correlation_id IS NULL AND m.name = :namespace
UNION ALL SELECT f.key, 1 FROM flow AS f JOIN namespace AS o ON o.key = f.ns
WHERE f.correlation_id = :correlation_id AND o.name = :namespace;

-- name: first_starts
SELECT t.key, min((eb.ts - coalesce(json_extract(eb.varied, '$.ts[' || (i.value - eb.id) || ']'), 0))) FROM task AS t CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE t.key IN (SELECT value FROM json_each(:keys)) AND eb.type = :started GROUP BY t.key;

-- name: last_event_id
SELECT coalesce(max(eb.id + eb.size - 1), 0) FROM (
    SELECT n.id, n.size FROM event_batch AS n ORDER BY n.id DESC LIMIT 1
) AS eb;

-- name: events_of_entities
SELECT t.key, t.events FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys))
UNION ALL SELECT s.key, s.events FROM stage AS s WHERE s.key IN (SELECT value FROM json_each(:keys))
UNION ALL SELECT f.key, f.events FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys))
UNION ALL SELECT p.entity, p.events FROM event_page AS p WHERE p.entity IN (SELECT value FROM json_each(:keys));

-- name: lock_batches_of_events
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied FROM event_batch AS eb WHERE eb.id IN (SELECT (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value) FROM json_each(:events) AS i) ORDER BY eb.id;

-- name: remove_entries
UPDATE event_batch SET entity = NULL, varied = b.varied FROM (SELECT value ->> 0 AS varied, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE event_batch.id = b.key;

-- name: delete_batches
DELETE FROM event_batch WHERE id IN (SELECT value FROM json_each(:keys));

-- name: prune_notes_of
DELETE FROM event_batch WHERE state IS NULL AND entity IN (SELECT value FROM json_each(:keys)) AND type <> 'job.deleted';

-- name: prune_flow_events
DELETE FROM flow_event WHERE job IN (SELECT value FROM json_each(:keys));

-- name: list_events_of_task
UPDATE task SET events = CASE WHEN task.events = '' THEN b.events ELSE task.events || ',' || b.events END
FROM (SELECT value ->> 0 AS events, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: list_events_of_stage
UPDATE stage SET events = CASE WHEN stage.events = '' THEN b.events ELSE stage.events || ',' || b.events END
FROM (SELECT value ->> 0 AS events, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE stage.key = b.key;

-- name: list_events_of_flow
UPDATE flow SET events = CASE WHEN flow.events = '' THEN b.events ELSE flow.events || ',' || b.events END
FROM (SELECT value ->> 0 AS events, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE flow.key = b.key;

-- name: prune_event_pages
DELETE FROM event_page WHERE entity IN (SELECT value FROM json_each(:keys));

-- name: page_events_of_task
INSERT INTO event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST(json_extract('[' || t.events || ']', '$[#-1]') AS text)) - 1)
FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: trim_events_of_task
UPDATE task AS t SET events = CAST(json_extract('[' || t.events || ']', '$[#-1]') AS text) WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: page_events_of_stage
INSERT INTO event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST(json_extract('[' || t.events || ']', '$[#-1]') AS text)) - 1)
FROM stage AS t WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: trim_events_of_stage
UPDATE stage AS t SET events = CAST(json_extract('[' || t.events || ']', '$[#-1]') AS text) WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: page_events_of_flow
INSERT INTO event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST(json_extract('[' || t.events || ']', '$[#-1]') AS text)) - 1)
FROM flow AS t WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: trim_events_of_flow
UPDATE flow AS t SET events = CAST(json_extract('[' || t.events || ']', '$[#-1]') AS text) WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: explain
-- row: TaskFacts(state, fence, attempts, max_attempts, run_at, created_at, finished_at, owner, lease_expires_at, cancel_at, held_by, held_why, queue, paused_at, paused_by, policy_body, ready, due, last_event, last_actor, last_cause, rescheduled_by, rescheduled_why, cancel_request, key, control, unmet, flow_state, flow_ending, flow_ending_why, stage, stage_ord, stage_state, stage_ending, opened_to, deciding, approval, stage_due_at, current, current_ord, current_state, flow_paused_by, kind, breaker_opened_at, breaker_until, breaker_probing, breaker_why, breaker_by, error, reason_code, successor, flow, id, now)
SELECT t.state, t.fence, t.attempts, t.max_attempts, t.run_at, t.created_at, t.finished_at, t.owner,
    l.expires_at AS lease_expires_at, t.cancel_at, t.held_by, t.held_why, q.name AS queue, q.paused_at, q.paused_by,
    p.body AS policy_body,
    EXISTS (SELECT 1 FROM ready AS r
        WHERE r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind)
        AS ready,
    EXISTS (SELECT 1 FROM due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :run AND d.fence = t.fence) AS due,
    (SELECT eb.type FROM (SELECT json_extract('[' || t.events || ']', '$[#-1]') AS value) AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)) AS last_event,
    (SELECT coalesce(eb.actor, json_extract(eb.varied, '$.actor[' || (i.value - eb.id) || ']')) FROM (SELECT json_extract('[' || t.events || ']', '$[#-1]') AS value) AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)) AS last_actor,
    (SELECT coalesce(eb.cause, json_extract(eb.varied, '$.cause[' || (i.value - eb.id) || ']')) FROM (SELECT json_extract('[' || t.events || ']', '$[#-1]') AS value) AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)) AS last_cause,
    (SELECT e.actor FROM event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS rescheduled_by,
    (SELECT e.cause FROM event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS rescheduled_why,
    (SELECT e.payload FROM event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :cancel_requested
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS cancel_request,
    t.key, t.control, t.unmet, f.state AS flow_state, f.ending AS flow_ending, f.ending_why AS flow_ending_why,
    s.name AS stage, s.ord AS stage_ord, s.state AS stage_state, s.ending AS stage_ending, s.opened_to, s.deciding,
    s.approval, s.due_at AS stage_due_at, c.name AS current, c.ord AS current_ord, c.state AS current_state,
    CASE WHEN f.state IS NULL THEN NULL ELSE (SELECT coalesce(eb.actor, json_extract(eb.varied, '$.actor[' || (i.value - eb.id) || ']')) FROM json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = f.key), '') || f.events) || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
        WHERE eb.type = :flow_paused ORDER BY i.value DESC LIMIT 1) END AS flow_paused_by,
    k.name AS kind, br.opened_at AS breaker_opened_at, br.open_until AS breaker_until, br.probing AS breaker_probing,
    br.why AS breaker_why, br.opened_by AS breaker_by, t.error, d.reason_code, CAST(u.id AS text) AS successor,
    CAST(f.id AS text) AS flow, CAST(t.id AS text) AS id, :now AS now
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN policy AS p ON p.key = t.policy LEFT JOIN lease AS l ON l.key = t.lease
    LEFT JOIN stage AS s ON s.key = t.stage LEFT JOIN flow AS f ON f.key = s.job
    LEFT JOIN stage AS c ON c.key = f.current
    JOIN kind AS k ON k.key = t.kind LEFT JOIN breaker AS br ON br.kind = t.kind
    LEFT JOIN dead_letter AS d ON d.task = t.key LEFT JOIN task AS u ON u.key = d.successor
WHERE t.id = :id AND n.name = :namespace;

-- name: explain_flow
-- row: FlowFacts(key, state, ending, ending_why, stages, stages_open, finished_at, current, namespace, id, error)
SELECT f.key, f.state, f.ending, f.ending_why, f.stages, f.stages_open, f.finished_at, CAST(c.id AS text) AS current,
    n.name AS namespace, CAST(f.id AS text) AS id, f.error
FROM flow AS f JOIN namespace AS n ON n.key = f.ns LEFT JOIN stage AS c ON c.key = f.current
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: explain_stage
-- row: StageFacts(key, name, ord, state, ending, ending_why, total, open, paused, deciding, approval, due_at, finished_at, current, current_state, is_current, namespace, job, flow, flow_state)
SELECT s.key, s.name, s.ord, s.state, s.ending, s.ending_why, s.total, s.open,
    s.blocked + s.waiting_input AS paused, CAST(t.id AS text) AS deciding, s.approval, s.due_at, s.finished_at,
    c.name AS current, c.state AS current_state, CASE WHEN c.key = s.key THEN 1 ELSE 0 END AS is_current, n.name AS namespace,
    s.job, CAST(f.id AS text) AS flow, f.state AS flow_state
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns
    LEFT JOIN stage AS c ON c.key = f.current LEFT JOIN task AS t ON t.key = s.deciding
WHERE s.id = :id AND n.name = :namespace;

-- name: failed_stages
-- row: FailedStageRow(key, name, state, on_failure, errors, error)
SELECT s.key, s.name, s.state, s.on_failure, s.errors, s.error FROM stage AS s
WHERE s.job = :job AND (s.errors IS NOT NULL OR s.error IS NOT NULL) ORDER BY s.ord;

-- name: error_of_task
SELECT t.state, t.error FROM task AS t JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: unmet_of
-- row: UnmetRow(id, name, state)
SELECT CAST(t.id AS text) AS id, t.name, t.state FROM dependency AS d JOIN task AS t ON t.key = d.needs
WHERE d.task = :task AND t.state <> :met ORDER BY t.key LIMIT :limit;

-- name: paused_in_stage
-- row: PausedMemberRow(id, name, state, held_by, held_why)
SELECT CAST(t.id AS text) AS id, t.name, t.state, t.held_by, t.held_why FROM task AS t
WHERE t.stage = :stage AND t.state IN ('blocked', 'waiting_input') ORDER BY t.stage, t.key LIMIT :limit;

-- name: paused_by
SELECT coalesce(eb.actor, json_extract(eb.varied, '$.actor[' || (i.value - eb.id) || ']')), (eb.ts - coalesce(json_extract(eb.varied, '$.ts[' || (i.value - eb.id) || ']'), 0)) FROM flow AS f CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = f.key), '') || f.events) || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE f.key = :flow AND eb.type = :type ORDER BY i.value DESC LIMIT 1;

-- name: kinds_in_stage
-- row: StageKindRow(queue, kind, control)
SELECT DISTINCT q.name AS queue, k.name AS kind, w.control
FROM (
    SELECT t.queue, t.kind, t.control, t.state FROM task AS t WHERE t.stage = :stage
    ORDER BY t.stage DESC, t.key DESC LIMIT :scan
) AS w JOIN queue AS q ON q.key = w.queue JOIN kind AS k ON k.key = w.kind
WHERE w.state IN ('queued') ORDER BY 1, 2, 3 LIMIT :limit;

-- name: ready_kinds
SELECT q.name AS queue, k.name AS kind FROM queue AS q JOIN namespace AS n ON n.key = q.ns
    JOIN kind AS k ON k.ns = q.ns
WHERE n.name = :namespace AND q.paused_at IS NULL
    AND (EXISTS (SELECT 1 FROM ready AS r WHERE r.queue = q.key AND r.kind = k.key)
    OR EXISTS (SELECT 1 FROM lane AS l WHERE l.queue = q.key AND l.kind = k.key AND l.state = 1))
ORDER BY q.name, k.name LIMIT :limit;

-- name: workers_by_sort
-- row: WorkerSortRow(queues, kinds, state, alive, stopped, workers, slots, free, beat_at, name, seen_at)
SELECT w.queues, w.kinds, w.state, w.alive, w.stopped, count(*) AS workers, sum(w.slots) AS slots, sum(w.free) AS free,
    max(w.beat_at) AS beat_at, max(w.name) AS name, max(w.seen_at) AS seen_at
FROM (
    SELECT x.queues, x.kinds, x.state, x.name, x.beat_at, :now AS seen_at, x.concurrency AS slots,
        CASE WHEN x.running < x.concurrency THEN 1 ELSE 0 END AS free,
        CASE WHEN x.expires_at > x.beat_at THEN 0 ELSE 1 END AS stopped,
        CASE WHEN x.expires_at > :now THEN 1 ELSE 0 END AS alive
    FROM worker AS x JOIN namespace AS n ON n.key = x.ns WHERE n.name = :namespace
) AS w
GROUP BY w.queues, w.kinds, w.state, w.alive, w.stopped ORDER BY w.alive DESC, max(w.beat_at) DESC LIMIT :limit;

-- name: longest_running
-- row: RunningRow(id, kind, started_at, queues, kinds)
SELECT CAST(t.id AS text) AS id, k.name AS kind, t.started_at, l.queues, l.kinds
FROM (
    SELECT x.key, x.tasks, w.queues, w.kinds FROM worker AS w JOIN namespace AS n ON n.key = w.ns
        JOIN lease AS x ON x.ns = w.ns AND x.worker = w.name
    WHERE n.name = :namespace AND w.expires_at > :now ORDER BY x.key LIMIT :leases
) AS l CROSS JOIN json_each(l.tasks) AS j JOIN task AS t ON t.key = j.value AND t.lease = l.key
    JOIN kind AS k ON k.key = t.kind
WHERE t.state = :running ORDER BY t.started_at LIMIT :limit;

-- name: any_worker_alive
SELECT w.state, 1 AS alive FROM worker AS w WHERE w.expires_at > :now AND w.state = :running LIMIT 1;

-- name: unregistered_claims
-- row: UnregisteredClaimRow(worker, at)
SELECT l.worker, l.at
FROM (
    SELECT substr(coalesce(eb.actor, json_extract(eb.varied, '$.actor[' || (i.value - eb.id) || ']')), 8) AS worker, eb.ts AS at,
        (SELECT t.queue FROM task AS t WHERE t.key = coalesce(eb.entity, json_extract(eb.varied, '$.entity[' || (i.value - eb.id) || ']'))) AS queue
    FROM (
        SELECT c.id AS value FROM event_batch AS c WHERE c.type = :claimed AND c.ts >= :since
        ORDER BY c.ts DESC LIMIT :scan
    ) AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
) AS l JOIN queue AS q ON q.key = l.queue JOIN namespace AS n ON n.key = q.ns
WHERE n.name = :namespace AND q.name = :queue
    AND (SELECT count(*) FROM worker AS w WHERE w.ns = n.key AND w.name = l.worker) = 0
ORDER BY l.at DESC LIMIT 1;

-- name: position
SELECT (SELECT count(*) FROM (
    SELECT 1 FROM ready AS f
    WHERE f.queue = r.queue AND (f.rank, f.task) < (r.rank, r.task) LIMIT :most) AS before)
FROM task AS t JOIN namespace AS n ON n.key = t.ns
    JOIN ready AS r ON r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind
WHERE t.id = :id AND n.name = :namespace;

-- name: flows_of_ids
-- row: KeyRow(id, key, job)
SELECT CAST(id AS text) AS id, key, key AS job FROM flow WHERE id IN (SELECT value FROM json_each(:ids));

-- name: flows_of_stages
-- row: KeyRow(id, key, job)
SELECT CAST(id AS text) AS id, key, job FROM stage WHERE id IN (SELECT value FROM json_each(:ids));

-- name: flows_of_tasks
SELECT DISTINCT job FROM task WHERE key IN (SELECT value FROM json_each(:keys)) AND job <> key;

-- name: lock_flows
-- row: FlowRow(key, ns, kind, id, state, version, roll_up, sealed, started_at, current, ending, ending_how, ending_why, ending_by, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, context, compensates, correlation_id, trace, priority, deleted_at, updated_at, seen_at)
SELECT l.*, :now AS seen_at FROM (SELECT flow.key, flow.ns, flow.kind, CAST(flow.id AS text) AS id, flow.state, flow.version, flow.roll_up, flow.sealed,
    flow.started_at, flow.current, flow.ending, flow.ending_how, flow.ending_why, flow.ending_by, flow.stages,
    flow.stages_open, flow.succeeded, flow.partial, flow.failed, flow.cancelled, flow.skipped, flow.ignored,
    flow.chained, flow.amends, flow.context, flow.compensates, flow.correlation_id, flow.trace, flow.priority,
    flow.deleted_at, flow.updated_at
FROM flow WHERE flow.key IN (SELECT value FROM json_each(:keys)) ORDER BY flow.key ) AS l;

-- name: lock_free_flows
-- row: FlowRow(key, ns, kind, id, state, version, roll_up, sealed, started_at, current, ending, ending_how, ending_why, ending_by, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, context, compensates, correlation_id, trace, priority, deleted_at, updated_at, seen_at)
SELECT l.*, :now AS seen_at FROM (SELECT flow.key, flow.ns, flow.kind, CAST(flow.id AS text) AS id, flow.state, flow.version, flow.roll_up, flow.sealed,
    flow.started_at, flow.current, flow.ending, flow.ending_how, flow.ending_why, flow.ending_by, flow.stages,
    flow.stages_open, flow.succeeded, flow.partial, flow.failed, flow.cancelled, flow.skipped, flow.ignored,
    flow.chained, flow.amends, flow.context, flow.compensates, flow.correlation_id, flow.trace, flow.priority,
    flow.deleted_at, flow.updated_at
FROM flow WHERE flow.key IN (SELECT value FROM json_each(:keys)) ORDER BY flow.key ) AS l;

-- name: running_stages
SELECT s.key FROM stage AS s JOIN flow AS f ON f.key = s.job
WHERE s.key IN (SELECT value FROM json_each(:keys)) AND s.state = :running AND f.state = :running;

-- name: stages_of_tasks
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM stage AS s WHERE s.key IN (SELECT t.stage FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys)));

-- name: stages_by_key
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM stage AS s WHERE s.key IN (SELECT value FROM json_each(:keys));

-- name: stages_of_flow
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM stage AS s WHERE s.job = :job ORDER BY s.ord;

-- name: unended_stages
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM stage AS s WHERE s.job = :job AND s.state IN ('created', 'waiting', 'pending', 'running') ORDER BY s.ord;

-- name: next_stage
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM stage AS s WHERE s.job = :job AND s.ord > :ord AND s.state IN ('created', 'waiting', 'pending', 'running') ORDER BY s.ord LIMIT 1;

-- name: any_started
SELECT 1 FROM stage AS s WHERE s.job = :job AND s.started_at IS NOT NULL LIMIT 1;

-- name: stage_by_name
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM stage AS s WHERE s.job = :job AND s.name = :name;

-- name: names_of_stages
SELECT s.name FROM stage AS s WHERE s.job = :job;

-- name: insert_flow
INSERT INTO flow (key, job, ns, kind, version, sealed, created_at, updated_at, deadline_at, stages,
    stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, state, roll_up, context,
    retry_of, compensates, policy, id, correlation_id, trace, tracestate, priority, data, metadata, events)
SELECT b.key, b.key, b.ns, b.kind, 1, b.sealed, b.at, b.at, b.deadline_at, b.stages, b.stages, 0, 0, 0, 0, 0, 0, b.chained,
    b.amends, b.state, b.roll_up, b.context, b.retry_of, b.compensates,
    coalesce(b.policy, (SELECT f.policy FROM flow AS f WHERE f.key = coalesce(b.retry_of, b.compensates))),
    b.id, b.correlation_id, b.trace, b.tracestate, b.priority, b.data, b.metadata, CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS key, value ->> 1 AS ns, value ->> 2 AS kind, value ->> 3 AS sealed, value ->> 4 AS at, value ->> 5 AS deadline_at, value ->> 6 AS stages, value ->> 7 AS chained, value ->> 8 AS amends, value ->> 9 AS state, value ->> 10 AS roll_up, value ->> 11 AS context, value ->> 12 AS retry_of, value ->> 13 AS compensates, value ->> 14 AS policy, value ->> 15 AS id, value ->> 16 AS correlation_id, value ->> 17 AS trace, value ->> 18 AS tracestate, value ->> 19 AS priority, value ->> 20 AS data, value ->> 21 AS metadata, key AS place FROM json_each(:batch)) AS b;

-- name: insert_stage
INSERT INTO stage (key, job, ns, ord, version, sealed, takes_more, gate, created_at, updated_at, carried_from,
    total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, state, name,
    on_failure, collect, condition, compensate, approval, id, correlation_id, trace, tracestate, type, data, metadata,
    result, metrics, events)
SELECT b.key, b.job, b.ns, b.ord, 1, b.sealed, b.takes_more, b.gate, b.at, b.at, b.carried_from, b.total, b.total, 0, 0, 0, 0,
    0, 0, 0, 0, b.state, b.name, b.on_failure, b.collect, b.condition, b.compensate, b.approval, b.id, b.correlation_id,
    b.trace, b.tracestate, b.type, b.data, b.metadata, b.result, b.metrics, CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS key, value ->> 1 AS job, value ->> 2 AS ns, value ->> 3 AS ord, value ->> 4 AS sealed, value ->> 5 AS takes_more, value ->> 6 AS gate, value ->> 7 AS at, value ->> 8 AS carried_from, value ->> 9 AS total, value ->> 10 AS state, value ->> 11 AS name, value ->> 12 AS on_failure, value ->> 13 AS collect, value ->> 14 AS condition, value ->> 15 AS compensate, value ->> 16 AS approval, value ->> 17 AS id, value ->> 18 AS correlation_id, value ->> 19 AS trace, value ->> 20 AS tracestate, value ->> 21 AS type, value ->> 22 AS data, value ->> 23 AS metadata, value ->> 24 AS result, value ->> 25 AS metrics, key AS place FROM json_each(:batch)) AS b;

-- name: save_stage
UPDATE stage SET sealed = b.sealed, opened_to = b.opened_to, opened_at = b.opened_at, due_at = b.due_at,
    ending = b.ending,
    ending_why = b.ending_why, ending_how = b.ending_how, deciding = b.deciding, total = b.total, open = b.open, blocked = b.blocked,
    waiting_input = b.waiting_input, succeeded = b.succeeded, partly = b.partly, failed = b.failed,
    dead_lettered = b.dead_lettered, cancelled = b.cancelled, redriven = b.redriven, retrying = b.retrying,
    metrics = b.metrics, error_count = b.error_count
FROM (SELECT value ->> 0 AS sealed, value ->> 1 AS opened_to, value ->> 2 AS opened_at, value ->> 3 AS due_at, value ->> 4 AS ending, value ->> 5 AS ending_why, value ->> 6 AS ending_how, value ->> 7 AS deciding, value ->> 8 AS total, value ->> 9 AS open, value ->> 10 AS blocked, value ->> 11 AS waiting_input, value ->> 12 AS succeeded, value ->> 13 AS partly, value ->> 14 AS failed, value ->> 15 AS dead_lettered, value ->> 16 AS cancelled, value ->> 17 AS redriven, value ->> 18 AS retrying, value ->> 19 AS metrics, value ->> 20 AS error_count, value ->> 21 AS key FROM json_each(:batch)) AS b WHERE stage.key = b.key;

-- name: errors_of_stages
SELECT key, errors FROM stage WHERE key IN (SELECT value FROM json_each(:keys));

-- name: set_errors
UPDATE stage SET errors = b.errors FROM (SELECT value ->> 0 AS errors, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE stage.key = b.key;

-- name: names_of_tasks
-- row: TaskNameRow(key, id, name)
SELECT t.key, CAST(t.id AS text) AS id, t.name FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: set_answer
UPDATE stage SET answer = b.answer FROM (SELECT value ->> 0 AS answer, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE stage.key = b.key;

-- name: save_flow
UPDATE flow SET sealed = b.sealed, current = b.current, ending = b.ending, ending_how = b.ending_how,
    ending_why = b.ending_why, ending_by = b.ending_by, stages = b.stages, stages_open = b.stages_open,
    succeeded = b.succeeded, partial = b.partial, failed = b.failed, cancelled = b.cancelled, skipped = b.skipped,
    ignored = b.ignored, chained = b.chained, amends = b.amends, context = b.context, priority = b.priority
FROM (SELECT value ->> 0 AS sealed, value ->> 1 AS current, value ->> 2 AS ending, value ->> 3 AS ending_how, value ->> 4 AS ending_why, value ->> 5 AS ending_by, value ->> 6 AS stages, value ->> 7 AS stages_open, value ->> 8 AS succeeded, value ->> 9 AS partial, value ->> 10 AS failed, value ->> 11 AS cancelled, value ->> 12 AS skipped, value ->> 13 AS ignored, value ->> 14 AS chained, value ->> 15 AS amends, value ->> 16 AS context, value ->> 17 AS priority, value ->> 18 AS key FROM json_each(:batch)) AS b WHERE flow.key = b.key;

-- name: set_flow_metadata
UPDATE flow SET metadata = b.metadata FROM (SELECT value ->> 0 AS metadata, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE flow.key = b.key;

-- name: set_stage_metadata
UPDATE stage SET metadata = b.metadata FROM (SELECT value ->> 0 AS metadata, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE stage.key = b.key;

-- name: set_priorities
UPDATE task SET priority = :priority
WHERE task.stage IN (SELECT s.key FROM stage AS s WHERE s.job = :job) AND task.state IN ('queued');

-- name: set_ranks
UPDATE ready SET rank = -CAST(:priority AS integer)
FROM task AS t JOIN stage AS s ON s.key = t.stage
WHERE s.job = :job AND t.state IN ('queued')
    AND ready.queue = coalesce(-t.lane, t.queue) AND ready.rank = -t.priority AND ready.task = t.key AND ready.kind = t.kind
RETURNING ready.queue, ready.task;

-- name: set_compensation
UPDATE flow SET compensation = b.compensation FROM (SELECT value ->> 0 AS compensation, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE flow.key = b.key;

-- name: next_to_open
SELECT count(*), max(n.key) FROM (
    SELECT t.key FROM task AS t WHERE t.stage = :stage AND t.key > :after ORDER BY t.stage, t.key LIMIT :limit
) AS n;

-- name: open_ready
-- row: OpenedRow(queue, rank, task)
INSERT INTO ready (queue, rank, task, kind)
SELECT coalesce(-t.lane, t.queue), -t.priority, t.key, t.kind FROM task AS t
WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND t.state IN ('queued') AND t.unmet = 0
    AND t.control = 0 AND t.run_at <= :at
ON CONFLICT DO NOTHING
RETURNING queue, rank, task;

-- name: open_due
INSERT INTO due (at, task, what, fence)
SELECT t.run_at, t.key, :what, t.fence FROM task AS t
WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND t.state IN ('queued') AND t.unmet = 0
    AND t.control = 0 AND t.run_at > :at AND NOT EXISTS (SELECT 1 FROM due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :what AND d.fence = t.fence)
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence;

-- name: due_there
SELECT 1 FROM due AS d WHERE d.at = :at AND d.task = :key AND d.what = :what AND d.fence = :fence;

-- name: policies_of_stage
SELECT DISTINCT t.policy FROM task AS t
WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND t.state IN ('queued');

-- name: open_ttl
INSERT INTO due (at, task, what, fence)
SELECT max(t.run_at, :at) + :ttl, t.key, :what, t.fence FROM task AS t
WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND t.state IN ('queued') AND t.unmet = 0
    AND t.control = 0 AND t.policy = :policy
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence;

-- name: queued_of_stage
-- row: ReadyRow(key, queue, rank, kind)
SELECT t.key, coalesce(-t.lane, t.queue) AS queue, -t.priority AS rank, t.kind FROM task AS t
WHERE t.stage = :stage AND t.key > :after AND t.state IN ('queued') AND t.unmet = 0 AND t.control <= :most
ORDER BY t.stage, t.key LIMIT :limit;

-- name: unheld_tasks
SELECT t.key FROM task AS t
WHERE t.stage = :stage AND t.state IN ('queued', 'blocked', 'waiting_input') ORDER BY t.stage, t.key LIMIT :limit;

-- name: unended_tasks
SELECT t.key FROM task AS t
WHERE t.stage = :stage AND t.state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input') ORDER BY t.stage, t.key LIMIT :limit;

-- name: tasks_without_cancel
SELECT t.key FROM task AS t
WHERE t.stage = :stage AND t.state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input') AND t.cancel_at IS NULL ORDER BY t.stage, t.key LIMIT :limit;

-- name: dependents
-- row: DependentRow(needs, task, id)
SELECT d.needs, d.task, CAST(t.id AS text) AS id FROM dependency AS d JOIN task AS t ON t.key = d.needs
WHERE d.needs IN (SELECT value FROM json_each(:keys));

-- name: meet
UPDATE task SET unmet = task.unmet - b.met FROM (SELECT value ->> 0 AS met, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: insert_dependency
INSERT INTO dependency (needs, task) SELECT b.needs, b.task FROM (SELECT value ->> 0 AS needs, value ->> 1 AS task FROM json_each(:batch)) AS b WHERE true ON CONFLICT DO NOTHING;

-- name: members_named
-- row: NamedMemberRow(key, name, id, state, ord)
SELECT t.key, t.name, CAST(t.id AS text) AS id, t.state, s.ord FROM task AS t
    JOIN stage AS s ON s.key = t.stage
WHERE t.job = :job AND t.name IN (SELECT value FROM json_each(:names)) AND t.control = 0
UNION SELECT t.key, t.name, CAST(t.id AS text), t.state, s.ord FROM task AS t
    JOIN stage AS s ON s.key = t.stage
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND t.job = :job AND t.control = 0;

-- name: results_of_stage
-- row: ResultRow(key, id, name, state, result)
SELECT t.key, CAST(t.id AS text) AS id, t.name, t.state, t.result FROM task AS t
WHERE t.stage = :stage AND t.key > :after AND t.control = 0 ORDER BY t.stage, t.key LIMIT :limit;

-- name: size_of_results
SELECT coalesce(sum(length(t.result)), 0) FROM task AS t WHERE t.stage = :stage AND t.control = 0;

-- name: size_before
SELECT coalesce(sum(length(s.result)), 0) FROM stage AS s WHERE s.job = :job AND s.ord < :ord;

-- name: results_before
SELECT s.name, s.result FROM stage AS s
WHERE s.job = :job AND s.ord < :ord AND s.state IN ('succeeded', 'partial', 'failed', 'skipped', 'cancelled') ORDER BY s.ord;

-- name: results_needed
-- row: NeededResultRow(id, name, result)
SELECT CAST(t.id AS text) AS id, t.name, t.result FROM dependency AS d JOIN task AS t ON t.key = d.needs
WHERE d.task = :task ORDER BY t.key;

-- name: specs_of_stage
-- row: StageSpecsRow(condition, approval, answer)
SELECT condition, approval, answer FROM stage WHERE key = :key;

-- name: data_of_flow
SELECT data FROM flow WHERE key = :key;

-- name: to_compensate
-- row: CompensationRow(id, name, compensate, result)
SELECT CAST(s.id AS text) AS id, s.name, s.compensate, s.result FROM stage AS s
WHERE s.job = :job AND s.compensate IS NOT NULL AND (s.succeeded > 0 OR s.carried_from IS NOT NULL) ORDER BY s.ord DESC;

-- name: successor_in_stage
-- row: MemberRow(key, stage, id, name, state)
SELECT t.key, t.stage, CAST(t.id AS text) AS id, t.name, t.state FROM task AS t
WHERE t.stage = :stage AND t.retry_of = :key;

-- name: members_to_copy
-- row: TaskToCopy(key, id, queue, kind, policy, priority, max_attempts, correlation_id, trace, payload, name, spawned_by, metadata, tracestate, context, idempotency_key)
SELECT t.key, CAST(t.id AS text) AS id, t.queue, t.kind, t.policy, t.priority, t.max_attempts, t.correlation_id, t.trace,
    t.payload, t.name, t.spawned_by, t.metadata, t.tracestate, t.context, t.idempotency_key
FROM task AS t WHERE t.stage = :stage AND t.key > :after AND t.control = 0
    AND NOT EXISTS (SELECT 1 FROM task AS o WHERE o.key = t.retry_of AND o.stage = t.stage)
    AND NOT EXISTS (SELECT 1 FROM task AS p JOIN stage AS ps ON ps.key = p.stage
        WHERE p.key = t.spawned_by AND ps.ord >= :ord)
ORDER BY t.stage, t.key LIMIT :limit;

-- name: outcomes_of_members
-- row: MemberOutcomeRow(key, id, state, attempts, cancel_at, error, ended_by)
SELECT t.key, CAST(t.id AS text) AS id, t.state, t.attempts, t.cancel_at, t.error,
    CASE WHEN t.state = :cancelled THEN (SELECT coalesce(eb.actor, json_extract(eb.varied, '$.actor[' || (i.value - eb.id) || ']')) FROM (SELECT json_extract('[' || t.events || ']', '$[#-1]') AS value) AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)) END
    AS ended_by
FROM task AS t WHERE t.stage = :stage AND t.key > :after AND t.control = 0 ORDER BY t.stage, t.key;

-- name: told_by_successes
SELECT t.key, coalesce(eb.payload, json_extract(eb.varied, '$.payload[' || (i.value - eb.id) || ']')) FROM task AS t CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE t.key IN (SELECT value FROM json_each(:keys)) AND eb.state = :succeeded AND coalesce(eb.payload, json_extract(eb.varied, '$.payload[' || (i.value - eb.id) || ']')) IS NOT NULL;

-- name: spawned_in_stage
SELECT t.key FROM task AS t WHERE t.stage = :stage AND t.key > :after AND t.spawned_by IS NOT NULL ORDER BY t.stage, t.key;

-- name: needs_of
SELECT d.task, d.needs FROM dependency AS d WHERE d.task IN (SELECT value FROM json_each(:keys)) ORDER BY d.task, d.needs;

-- name: needed_by
-- row: MemberRow(key, stage, id, name, state)
SELECT t.key, t.stage, CAST(t.id AS text) AS id, t.name, t.state
FROM dependency AS d JOIN task AS t ON t.key = d.needs WHERE d.task = :task ORDER BY d.needs;

-- name: dependencies_of
-- row: Dependency(task_id, needs_id, needs_alias)
SELECT CAST(t.id AS text) AS task_id, CAST(o.id AS text) AS needs_id,
    (SELECT i.alias FROM alias AS i WHERE i.key = o.key) AS needs_alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN dependency AS d ON d.task = t.key
    JOIN task AS o ON o.key = d.needs
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace;

-- name: stages_to_copy
-- row: StageToCopy(key, ord, name, state, on_failure, sealed, takes_more, gate, collect, condition, compensate, approval, data, metadata, result, metrics, succeeded, carried_from, type, trace, tracestate)
SELECT s.key, s.ord, s.name, s.state, s.on_failure, s.sealed, s.takes_more, s.gate, s.collect, s.condition, s.compensate,
    s.approval, s.data, s.metadata, s.result, s.metrics, s.succeeded, s.carried_from, s.type, s.trace, s.tracestate
FROM stage AS s WHERE s.job = :job ORDER BY s.ord;

-- name: stage_carried_from
-- row: CarriedStageRow(key, carried_from, gate, condition, compensate)
SELECT s.key, s.carried_from, s.gate, s.condition, s.compensate
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL WHERE s.key = :key;

-- name: successors_in_stage
-- row: SuccessorRow(key, retry_of, name)
SELECT t.key, t.retry_of, t.name FROM task AS t JOIN task AS o ON o.key = t.retry_of AND o.stage = t.stage
WHERE t.stage = :stage AND t.key > 0 ORDER BY t.stage, t.key;

-- name: clear_task_name
UPDATE task SET name = NULL WHERE key = :key;

-- name: flow_to_copy
-- row: FlowToCopy(ns, kind, roll_up, sealed, correlation_id, trace, data, metadata, context, deadline_us, compensates, compensation, priority, tracestate)
SELECT f.ns, f.kind, f.roll_up, f.sealed, f.correlation_id, f.trace, f.data, f.metadata, c.payload AS context,
    f.deadline_at - f.created_at AS deadline_us, f.compensates, f.compensation, f.priority, f.tracestate
FROM flow AS f LEFT JOIN context AS c ON c.key = f.context WHERE f.key = :key;

-- name: insert_context
INSERT INTO context (key, job, ns, task, parent, created_at, scope, label, id, payload)
SELECT b.key, b.job, b.ns, b.task, b.parent, b.at, b.scope, b.label, b.id, b.payload FROM (SELECT value ->> 0 AS key, value ->> 1 AS job, value ->> 2 AS ns, value ->> 3 AS task, value ->> 4 AS parent, value ->> 5 AS at, value ->> 6 AS scope, value ->> 7 AS label, value ->> 8 AS id, value ->> 9 AS payload FROM json_each(:batch)) AS b;

-- name: context_in_flow
SELECT c.key FROM context AS c WHERE c.job = :job AND c.key IN (
    SELECT i.key FROM context AS i WHERE i.id = :id
    UNION SELECT a.key FROM alias AS a WHERE a.ns = :ns AND a.alias = :alias
);

-- name: context_by_id
-- row: Context(key, id, flow_id, task_id, scope, parent_id, label, payload, created_at, alias)
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM alias AS i WHERE i.key = c.key) AS alias
FROM context AS c JOIN flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN namespace AS n ON n.key = c.ns
    LEFT JOIN task AS t ON t.key = c.task LEFT JOIN context AS p ON p.key = c.parent WHERE n.name = :namespace AND c.key IN (
    SELECT i.key FROM context AS i WHERE i.id = :id
    UNION SELECT a.key FROM alias AS a JOIN namespace AS m ON m.key = a.ns
        WHERE m.name = :namespace AND a.alias = :alias
);

-- name: contexts_of_flow
-- row: Context(key, id, flow_id, task_id, scope, parent_id, label, payload, created_at, alias)
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM alias AS i WHERE i.key = c.key) AS alias
FROM context AS c JOIN flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN namespace AS n ON n.key = c.ns
    LEFT JOIN task AS t ON t.key = c.task LEFT JOIN context AS p ON p.key = c.parent WHERE f.id = :id AND n.name = :namespace AND c.key > :after ORDER BY c.key LIMIT :limit;

-- name: current_context
-- row: Context(key, id, flow_id, task_id, scope, parent_id, label, payload, created_at, alias)
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM alias AS i WHERE i.key = c.key) AS alias
FROM context AS c JOIN flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN namespace AS n ON n.key = c.ns
    LEFT JOIN task AS t ON t.key = c.task LEFT JOIN context AS p ON p.key = c.parent WHERE f.id = :id AND n.name = :namespace AND c.key = f.context;

-- name: key_of_flow
SELECT f.key FROM flow AS f JOIN namespace AS n ON n.key = f.ns
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: flow_by_id
-- row: FlowDetails(key, id, namespace, name, state, version, roll_up, sealed, created_at, updated_at, started_at, finished_at, deadline_at, ending, ending_how, current_stage, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, retry_of, compensates, compensation, correlation_id, trace, tracestate, priority, data, metadata, error, labels, alias, context_id)
SELECT f.key, CAST(f.id AS text) AS id, n.name AS namespace, k.name, f.state, f.version, f.roll_up, f.sealed,
    f.created_at, f.updated_at, f.started_at, f.finished_at, f.deadline_at,
    CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    CASE WHEN f.finished_at IS NULL THEN f.ending_how END AS ending_how, s.name AS current_stage, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, CAST(o.id AS text) AS retry_of,
    CAST(c.id AS text) AS compensates, CAST(u.id AS text) AS compensation, f.correlation_id, f.trace, f.tracestate,
    f.priority, f.data, f.metadata, f.error,
    (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM context AS x WHERE x.key = f.context) AS context_id
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind LEFT JOIN stage AS s ON s.key = f.current LEFT JOIN flow AS o ON o.key = f.retry_of
    LEFT JOIN flow AS c ON c.key = f.compensates LEFT JOIN flow AS u ON u.key = f.compensation WHERE f.id = :id AND n.name = :namespace;

-- name: flows_by_keys
-- row: FlowDetails(key, id, namespace, name, state, version, roll_up, sealed, created_at, updated_at, started_at, finished_at, deadline_at, ending, ending_how, current_stage, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, retry_of, compensates, compensation, correlation_id, trace, tracestate, priority, data, metadata, error, labels, alias, context_id)
SELECT f.key, CAST(f.id AS text) AS id, n.name AS namespace, k.name, f.state, f.version, f.roll_up, f.sealed,
    f.created_at, f.updated_at, f.started_at, f.finished_at, f.deadline_at,
    CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    CASE WHEN f.finished_at IS NULL THEN f.ending_how END AS ending_how, s.name AS current_stage, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, CAST(o.id AS text) AS retry_of,
    CAST(c.id AS text) AS compensates, CAST(u.id AS text) AS compensation, f.correlation_id, f.trace, f.tracestate,
    f.priority, f.data, f.metadata, f.error,
    (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM context AS x WHERE x.key = f.context) AS context_id
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind LEFT JOIN stage AS s ON s.key = f.current LEFT JOIN flow AS o ON o.key = f.retry_of
    LEFT JOIN flow AS c ON c.key = f.compensates LEFT JOIN flow AS u ON u.key = f.compensation WHERE f.key IN (SELECT value FROM json_each(:keys));

-- name: flows_newest
-- row: FlowDetails(key, id, namespace, name, state, version, roll_up, sealed, created_at, updated_at, started_at, finished_at, deadline_at, ending, ending_how, current_stage, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, retry_of, compensates, compensation, correlation_id, trace, tracestate, priority, data, metadata, error, labels, alias, context_id)
SELECT f.key, CAST(f.id AS text) AS id, n.name AS namespace, k.name, f.state, f.version, f.roll_up, f.sealed,
    f.created_at, f.updated_at, f.started_at, f.finished_at, f.deadline_at,
    CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    CASE WHEN f.finished_at IS NULL THEN f.ending_how END AS ending_how, s.name AS current_stage, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, CAST(o.id AS text) AS retry_of,
    CAST(c.id AS text) AS compensates, CAST(u.id AS text) AS compensation, f.correlation_id, f.trace, f.tracestate,
    f.priority, f.data, f.metadata, f.error,
    (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM context AS x WHERE x.key = f.context) AS context_id
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind LEFT JOIN stage AS s ON s.key = f.current LEFT JOIN flow AS o ON o.key = f.retry_of
    LEFT JOIN flow AS c ON c.key = f.compensates LEFT JOIN flow AS u ON u.key = f.compensation WHERE n.name = :namespace AND f.key < :before ORDER BY f.key DESC LIMIT :limit;

-- name: stage_by_id
-- row: StageDetails(key, id, flow_id, namespace, ord, name, state, version, on_failure, sealed, takes_more, created_at, updated_at, started_at, finished_at, due_at, ending, ending_how, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, data, metadata, result, metrics, error, approval, answer, carried_from, type, trace, tracestate, error_count, errors, opened_at, own_ending_how, deciding, is_current, flow_state, flow_ending)
SELECT s.key, CAST(s.id AS text) AS id, CAST(f.id AS text) AS flow_id, n.name AS namespace, s.ord, s.name, s.state,
    s.version, s.on_failure, s.sealed, s.takes_more, s.created_at, s.updated_at, s.started_at, s.finished_at, s.due_at,
    CASE WHEN s.finished_at IS NULL THEN s.ending END AS ending,
    CASE WHEN s.finished_at IS NULL THEN coalesce(f.ending_how, s.ending_how) END AS ending_how, s.total, s.open,
    s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.data,
    s.metadata, s.result, s.metrics, s.error, s.approval, s.answer, CAST(w.id AS text) AS carried_from,
    coalesce(s.type, s.name) AS type, s.trace, s.tracestate, s.error_count, s.errors, s.opened_at,
    s.ending_how AS own_ending_how, s.deciding, CASE WHEN f.current = s.key THEN 1 ELSE 0 END AS is_current,
    f.state AS flow_state, f.ending AS flow_ending
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns LEFT JOIN stage AS w ON w.key = s.carried_from WHERE s.id = :id AND n.name = :namespace;

-- name: stages_of
-- row: StageDetails(key, id, flow_id, namespace, ord, name, state, version, on_failure, sealed, takes_more, created_at, updated_at, started_at, finished_at, due_at, ending, ending_how, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, data, metadata, result, metrics, error, approval, answer, carried_from, type, trace, tracestate, error_count, errors, opened_at, own_ending_how, deciding, is_current, flow_state, flow_ending)
SELECT s.key, CAST(s.id AS text) AS id, CAST(f.id AS text) AS flow_id, n.name AS namespace, s.ord, s.name, s.state,
    s.version, s.on_failure, s.sealed, s.takes_more, s.created_at, s.updated_at, s.started_at, s.finished_at, s.due_at,
    CASE WHEN s.finished_at IS NULL THEN s.ending END AS ending,
    CASE WHEN s.finished_at IS NULL THEN coalesce(f.ending_how, s.ending_how) END AS ending_how, s.total, s.open,
    s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.data,
    s.metadata, s.result, s.metrics, s.error, s.approval, s.answer, CAST(w.id AS text) AS carried_from,
    coalesce(s.type, s.name) AS type, s.trace, s.tracestate, s.error_count, s.errors, s.opened_at,
    s.ending_how AS own_ending_how, s.deciding, CASE WHEN f.current = s.key THEN 1 ELSE 0 END AS is_current,
    f.state AS flow_state, f.ending AS flow_ending
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns LEFT JOIN stage AS w ON w.key = s.carried_from WHERE f.id = :id AND n.name = :namespace ORDER BY s.ord;

-- name: stages_of_flows
-- row: StageDetails(key, id, flow_id, namespace, ord, name, state, version, on_failure, sealed, takes_more, created_at, updated_at, started_at, finished_at, due_at, ending, ending_how, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, data, metadata, result, metrics, error, approval, answer, carried_from, type, trace, tracestate, error_count, errors, opened_at, own_ending_how, deciding, is_current, flow_state, flow_ending)
SELECT s.key, CAST(s.id AS text) AS id, CAST(f.id AS text) AS flow_id, n.name AS namespace, s.ord, s.name, s.state,
    s.version, s.on_failure, s.sealed, s.takes_more, s.created_at, s.updated_at, s.started_at, s.finished_at, s.due_at,
    CASE WHEN s.finished_at IS NULL THEN s.ending END AS ending,
    CASE WHEN s.finished_at IS NULL THEN coalesce(f.ending_how, s.ending_how) END AS ending_how, s.total, s.open,
    s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.data,
    s.metadata, s.result, s.metrics, s.error, s.approval, s.answer, CAST(w.id AS text) AS carried_from,
    coalesce(s.type, s.name) AS type, s.trace, s.tracestate, s.error_count, s.errors, s.opened_at,
    s.ending_how AS own_ending_how, s.deciding, CASE WHEN f.current = s.key THEN 1 ELSE 0 END AS is_current,
    f.state AS flow_state, f.ending AS flow_ending
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns LEFT JOIN stage AS w ON w.key = s.carried_from WHERE s.job IN (SELECT value FROM json_each(:keys)) ORDER BY s.job, s.ord;

-- name: stages_of_ids
-- row: StageDetails(key, id, flow_id, namespace, ord, name, state, version, on_failure, sealed, takes_more, created_at, updated_at, started_at, finished_at, due_at, ending, ending_how, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, data, metadata, result, metrics, error, approval, answer, carried_from, type, trace, tracestate, error_count, errors, opened_at, own_ending_how, deciding, is_current, flow_state, flow_ending)
SELECT s.key, CAST(s.id AS text) AS id, CAST(f.id AS text) AS flow_id, n.name AS namespace, s.ord, s.name, s.state,
    s.version, s.on_failure, s.sealed, s.takes_more, s.created_at, s.updated_at, s.started_at, s.finished_at, s.due_at,
    CASE WHEN s.finished_at IS NULL THEN s.ending END AS ending,
    CASE WHEN s.finished_at IS NULL THEN coalesce(f.ending_how, s.ending_how) END AS ending_how, s.total, s.open,
    s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.data,
    s.metadata, s.result, s.metrics, s.error, s.approval, s.answer, CAST(w.id AS text) AS carried_from,
    coalesce(s.type, s.name) AS type, s.trace, s.tracestate, s.error_count, s.errors, s.opened_at,
    s.ending_how AS own_ending_how, s.deciding, CASE WHEN f.current = s.key THEN 1 ELSE 0 END AS is_current,
    f.state AS flow_state, f.ending AS flow_ending
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns LEFT JOIN stage AS w ON w.key = s.carried_from WHERE f.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace ORDER BY s.job, s.ord;

-- name: held_in_stages
-- row: HeldInStageRow(stage, held, retried, progress)
SELECT h.stage, count(*) AS held, sum(CASE WHEN h.attempts > 1 THEN 1 ELSE 0 END) AS retried, coalesce(sum((
    SELECT CASE WHEN p.done < p.total THEN p.done / p.total ELSE 1.0 END FROM progress AS p
    WHERE p.task = h.task AND p.total > 0 AND p.attempt = h.attempts
)), 0) AS progress
FROM (
    SELECT j.value AS task,
        (SELECT t.stage FROM task AS t WHERE t.key = j.value AND t.lease = l.key AND t.control = 0) AS stage,
        (SELECT t.attempts FROM task AS t WHERE t.key = j.value) AS attempts
    FROM lease AS l CROSS JOIN json_each(l.tasks) AS j
) AS h
WHERE h.stage IN (SELECT value FROM json_each(:stages)) GROUP BY h.stage;

-- name: tasks_of_stage
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.stage = :stage AND t.key > :after ORDER BY t.stage, t.key LIMIT :limit;

-- name: tasks_of_stages
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.stage IN (SELECT value FROM json_each(:stages)) AND n.name = :namespace AND t.control = 0
ORDER BY t.stage, t.key LIMIT :limit;

-- name: members_to_fold
-- row: FlowMemberRow(key, stage, control, retry_of, name)
SELECT t.key, t.stage, t.control, t.retry_of, t.name FROM task AS t WHERE t.stage IN (SELECT value FROM json_each(:stages))
ORDER BY t.stage, t.key LIMIT :limit;

-- name: tasks_of_flow
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease JOIN stage AS s ON s.key = t.stage
WHERE s.job = :job AND (s.ord, t.key) > (:ord, :after) ORDER BY s.ord, t.key LIMIT :limit;

-- name: place_of_task
-- row: PlaceRow(key, job, ord)
SELECT t.key, t.job, s.ord FROM task AS t JOIN stage AS s ON s.key = t.stage
    JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: due_now
-- row: DueRow(at, task, what, fence)
SELECT at, task, what, fence FROM due WHERE at <= :now AND what IN (SELECT value FROM json_each(:known))
ORDER BY at, task, what LIMIT :limit;

-- name: delete_due
DELETE FROM due WHERE (due.at, due.task, due.what) IN (SELECT b.at, b.key, b.what FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS what FROM json_each(:batch)) AS b);

-- name: next_due
SELECT min(at) FROM due WHERE what IN (SELECT value FROM json_each(:known));

-- name: next_expiry
SELECT min(expires_at) FROM lease;

-- name: prunable_jobs
SELECT t.key FROM task AS t
WHERE t.key > :after AND t.key <= :upto AND t.created_at <= :before AND t.finished_at IS NOT NULL AND t.finished_at <= :before
    AND t.key = t.job AND (CAST(:ns AS integer) IS NULL OR t.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM idempotency AS i WHERE i.job = t.key AND i.expires_at > :now)
ORDER BY t.key LIMIT :limit;

-- name: prunable_flows
SELECT f.key FROM flow AS f
WHERE f.key > :after AND f.key <= :upto AND f.created_at <= :before AND f.finished_at IS NOT NULL AND f.finished_at <= :before
    AND (CAST(:ns AS integer) IS NULL OR f.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM idempotency AS i WHERE i.job = f.key AND i.expires_at > :now)
    AND NOT EXISTS (SELECT 1 FROM stage AS s WHERE s.job = f.key AND s.open > 0)
    AND NOT EXISTS (SELECT 1 FROM flow AS c WHERE c.key = f.compensation AND c.finished_at IS NULL)
ORDER BY f.key LIMIT :limit;

-- name: next_tasks
SELECT max(n.key), min(n.created_at)
FROM (SELECT key, created_at FROM task WHERE key > :after ORDER BY key LIMIT :span) AS n;

-- name: next_flows
SELECT max(n.key), min(n.created_at)
FROM (SELECT key, created_at FROM flow WHERE key > :after ORDER BY key LIMIT :span) AS n;

-- name: turn_to_prune
SELECT 1;

-- name: sizes_of_flows
SELECT job, CAST(sum(total) AS bigint) FROM stage WHERE job IN (SELECT value FROM json_each(:keys)) GROUP BY job;

-- name: stage_keys_of_flows
SELECT key FROM stage WHERE job IN (SELECT value FROM json_each(:keys));

-- name: members_of_stages
SELECT key FROM task WHERE stage IN (SELECT value FROM json_each(:keys));

-- name: prune_dependencies
DELETE FROM dependency WHERE task IN (SELECT value FROM json_each(:keys));

-- name: prune_contexts
DELETE FROM context WHERE job IN (SELECT value FROM json_each(:keys));

-- name: prune_stages
DELETE FROM stage WHERE key IN (SELECT value FROM json_each(:keys));

-- name: prune_flows
DELETE FROM flow WHERE key IN (SELECT value FROM json_each(:keys));

-- name: jobs_of_idempotency
SELECT job FROM idempotency WHERE job IN (SELECT value FROM json_each(:keys));

-- name: lock_jobs_of_idempotency
SELECT job FROM idempotency WHERE job IN (SELECT value FROM json_each(:keys));

-- name: jobs_of_unique_keys
SELECT job FROM unique_key WHERE job IN (SELECT value FROM json_each(:keys));

-- name: lock_jobs_of_unique_keys
SELECT job FROM unique_key WHERE job IN (SELECT value FROM json_each(:keys));

-- name: jobs_of_submit_windows
SELECT job FROM submit_window WHERE job IN (SELECT value FROM json_each(:keys));

-- name: lock_jobs_of_submit_windows
SELECT job FROM submit_window WHERE job IN (SELECT value FROM json_each(:keys));

-- name: prune_submit_windows
DELETE FROM submit_window WHERE job IN (SELECT value FROM json_each(:keys));

-- name: prune_idempotency
DELETE FROM idempotency WHERE job IN (SELECT value FROM json_each(:keys));

-- name: prune_unique_keys
DELETE FROM unique_key WHERE job IN (SELECT value FROM json_each(:keys));

-- name: prune_labels
DELETE FROM label WHERE job IN (SELECT value FROM json_each(:keys));

-- name: prune_aliases
DELETE FROM alias WHERE key IN (SELECT value FROM json_each(:keys));

-- name: prune_aliases_of_contexts
DELETE FROM alias WHERE key IN (SELECT c.key FROM context AS c WHERE c.job IN (SELECT value FROM json_each(:keys)));

-- name: prune_dead_letters
DELETE FROM dead_letter WHERE task IN (SELECT value FROM json_each(:keys));

-- name: prune_logs
DELETE FROM log WHERE task IN (SELECT value FROM json_each(:keys));

-- name: prune_tasks
DELETE FROM task WHERE key IN (SELECT value FROM json_each(:keys));

-- name: prune_deletions
DELETE FROM event_batch WHERE id IN (
    SELECT e.id FROM event_batch AS e WHERE e.type = :type AND e.ts <= :before
        AND (CAST(:ns AS integer) IS NULL OR e.ns = :ns)
    ORDER BY e.ts LIMIT :limit
)
RETURNING id;

-- name: prune_notes
WITH old AS MATERIALIZED (
    SELECT e.id FROM event_batch AS e WHERE e.state IS NULL AND e.type IN (SELECT value FROM json_each(:types)) AND e.ts < :before
    LIMIT :limit
)
DELETE FROM event_batch WHERE id IN (SELECT o.id FROM old AS o)
RETURNING coalesce(job, entity), id;

-- name: prune_flow_events_by_id
DELETE FROM flow_event WHERE (flow_event.job, flow_event.batch) IN (SELECT b.job, b.key FROM (SELECT value ->> 0 AS job, value ->> 1 AS key FROM json_each(:batch)) AS b);

-- name: take_key
INSERT INTO idempotency (kind, key, job, body_hash, expires_at)
SELECT b.kind, b.key, b.job, b.body_hash, b.expires_at FROM (SELECT value ->> 0 AS kind, value ->> 1 AS key, value ->> 2 AS job, value ->> 3 AS body_hash, value ->> 4 AS expires_at FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (kind, key) DO UPDATE SET job = excluded.job, body_hash = excluded.body_hash,
    expires_at = excluded.expires_at
WHERE idempotency.expires_at <= :now;

-- name: keys_taken
-- row: KeyHolderRow(kind, key, job, body_hash, finished_at, id, state, fence, version, single)
SELECT i.kind, i.key, i.job, i.body_hash, coalesce(t.finished_at, f.finished_at) AS finished_at, coalesce(CAST(t.id AS text), CAST(f.id AS text)) AS id,
    coalesce(t.state, f.state) AS state, coalesce(t.fence, 0) AS fence, coalesce(t.version, f.version) AS version,
    CASE WHEN t.key IS NULL THEN 0 ELSE 1 END AS single
FROM idempotency AS i LEFT JOIN task AS t ON t.key = i.job
    LEFT JOIN flow AS f ON f.key = i.job JOIN (SELECT value ->> 0 AS kind, value ->> 1 AS key FROM json_each(:batch)) AS b ON i.kind = b.kind AND i.key = b.key;

-- name: link_key
UPDATE idempotency SET job = b.job FROM (SELECT value ->> 0 AS job, value ->> 1 AS kind, value ->> 2 AS key FROM json_each(:batch)) AS b WHERE idempotency.kind = b.kind AND idempotency.key = b.key;

-- name: free_key
DELETE FROM idempotency WHERE (idempotency.kind, idempotency.key) IN (SELECT b.kind, b.key FROM (SELECT value ->> 0 AS kind, value ->> 1 AS key FROM json_each(:batch)) AS b);

-- name: lock_unique
INSERT INTO unique_key (kind, key, job) SELECT b.kind, b.key, b.job FROM (SELECT value ->> 0 AS kind, value ->> 1 AS key, value ->> 2 AS job FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (kind, key) DO UPDATE SET job = excluded.job WHERE false;

-- name: unique_held
-- row: KeyHolderRow(kind, key, job, body_hash, finished_at, id, state, fence, version, single)
SELECT u.kind, u.key, u.job, '' AS body_hash, coalesce(t.finished_at, f.finished_at) AS finished_at, coalesce(CAST(t.id AS text), CAST(f.id AS text)) AS id,
    coalesce(t.state, f.state) AS state, coalesce(t.fence, 0) AS fence, coalesce(t.version, f.version) AS version,
    CASE WHEN t.key IS NULL THEN 0 ELSE 1 END AS single
FROM unique_key AS u LEFT JOIN task AS t ON t.key = u.job
    LEFT JOIN flow AS f ON f.key = u.job JOIN (SELECT value ->> 0 AS kind, value ->> 1 AS key FROM json_each(:batch)) AS b ON u.kind = b.kind AND u.key = b.key;

-- name: take_unique
UPDATE unique_key SET job = b.job FROM (SELECT value ->> 0 AS job, value ->> 1 AS kind, value ->> 2 AS key FROM json_each(:batch)) AS b WHERE unique_key.kind = b.kind AND unique_key.key = b.key;

-- name: lock_windows
INSERT INTO submit_window (kind, mode, key, job, opened_at, until_at, replaced)
SELECT b.kind, b.mode, b.key, 0, 0, 0, 0 FROM (SELECT value ->> 0 AS kind, value ->> 1 AS mode, value ->> 2 AS key FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (kind, mode, key) DO UPDATE SET job = excluded.job WHERE false;

-- name: windows_held
-- row: WindowRow(kind, mode, key, job, opened_at, until_at, replaced, id, state, fence, version)
SELECT w.kind, w.mode, w.key, w.job, w.opened_at, w.until_at, w.replaced, CAST(t.id AS text) AS id, t.state, t.fence, t.version
FROM submit_window AS w LEFT JOIN task AS t ON t.key = w.job
    JOIN (SELECT value ->> 0 AS kind, value ->> 1 AS mode, value ->> 2 AS key FROM json_each(:batch)) AS b ON w.kind = b.kind AND w.mode = b.mode AND w.key = b.key;

-- name: save_window
UPDATE submit_window SET job = b.job, opened_at = b.opened_at, until_at = b.until_at, replaced = b.replaced FROM (SELECT value ->> 0 AS job, value ->> 1 AS opened_at, value ->> 2 AS until_at, value ->> 3 AS replaced, value ->> 4 AS kind, value ->> 5 AS mode, value ->> 6 AS key FROM json_each(:batch)) AS b
WHERE submit_window.kind = b.kind AND submit_window.mode = b.mode AND submit_window.key = b.key;

-- name: drop_window
DELETE FROM submit_window WHERE (submit_window.kind, submit_window.mode, submit_window.key) IN (SELECT b.kind, b.mode, b.key FROM (SELECT value ->> 0 AS kind, value ->> 1 AS mode, value ->> 2 AS key FROM json_each(:batch)) AS b);

-- name: debounced_job
-- row: DebouncedRow(until_at, replaced)
SELECT w.until_at, w.replaced FROM submit_window AS w WHERE w.job = :job AND w.mode = :mode;

-- name: insert_label
INSERT INTO label (job, name, value, ns) SELECT b.job, b.name, b.value, b.ns FROM (SELECT value ->> 0 AS job, value ->> 1 AS name, value ->> 2 AS value, value ->> 3 AS ns FROM json_each(:batch)) AS b;

-- name: copy_labels
INSERT INTO label (job, name, value, ns)
SELECT :to, name, value, ns FROM label WHERE job = :of;

-- name: find_lanes
SELECT l.value, l.key FROM lane AS l
WHERE l.queue = :queue AND l.kind = :kind AND l.value IN (SELECT value FROM json_each(:values)) AND l.retired_at IS NULL;

-- name: add_lane
INSERT INTO lane (key, ns, queue, kind, value, fair, weight)
SELECT b.key, :ns, :queue, :kind, b.value, b.fair,
    coalesce((SELECT w.weight FROM lane_weight AS w WHERE w.kind = :kind AND w.value = b.fair), 1) FROM (SELECT value ->> 0 AS key, value ->> 1 AS value, value ->> 2 AS fair FROM json_each(:batch)) AS b
WHERE true ON CONFLICT (queue, kind, value) DO UPDATE SET retired_at = NULL;

-- name: set_weight
INSERT INTO lane_weight (kind, value, weight) VALUES (:kind, :value, :weight)
ON CONFLICT (kind, value) DO UPDATE SET weight = excluded.weight;

-- name: lanes_to_weigh
SELECT key FROM lane WHERE kind = :kind AND fair = :value ORDER BY key;

-- name: weigh_lanes
UPDATE lane SET weight = :weight WHERE key IN (SELECT value FROM json_each(:keys));

-- name: weight_of
SELECT value, weight FROM lane_weight WHERE kind = :kind AND value = :value;

-- name: share_lanes
-- row: LaneEntryRow(key, queue, kind, fair, state, rank, turn, retired_at)
SELECT key, queue, kind, fair, state, rank, turn, retired_at FROM lane WHERE key IN (SELECT value FROM json_each(:keys))
ORDER BY key;

-- name: lock_lanes_to_open
-- row: LaneEntryRow(key, queue, kind, fair, state, rank, turn, retired_at)
SELECT key, queue, kind, fair, state, rank, turn, retired_at FROM lane WHERE key IN (SELECT value FROM json_each(:keys))
ORDER BY key;

-- name: first_turns
SELECT b.key, (SELECT l.turn FROM lane AS l WHERE l.state = 1 AND l.queue = b.queue AND l.kind = b.kind
    AND l.rank = b.rank ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT 1) FROM (SELECT value ->> 0 AS key, value ->> 1 AS queue, value ->> 2 AS kind, value ->> 3 AS rank FROM json_each(:batch)) AS b;

-- name: enter_lanes
UPDATE lane SET state = b.lane_state, rank = b.rank, turn = b.turn, retired_at = NULL FROM (SELECT value ->> 0 AS lane_state, value ->> 1 AS rank, value ->> 2 AS turn, value ->> 3 AS key FROM json_each(:batch)) AS b
WHERE lane.key = b.key;

-- name: set_lanes
UPDATE lane SET state = b.lane_state, rank = b.rank, turn = b.turn, blocked_on = b.blocked_on,
    blocked_at = b.blocked_at, retired_at = NULL FROM (SELECT value ->> 0 AS lane_state, value ->> 1 AS rank, value ->> 2 AS turn, value ->> 3 AS blocked_on, value ->> 4 AS blocked_at, value ->> 5 AS key FROM json_each(:batch)) AS b WHERE lane.key = b.key;

-- name: open_lane_kinds
WITH RECURSIVE k(kind) AS (
    SELECT min(l.kind) FROM lane AS l WHERE l.queue = :queue AND l.state = 1
    UNION ALL SELECT (SELECT min(l.kind) FROM lane AS l WHERE l.queue = :queue AND l.state = 1 AND l.kind > k.kind)
    FROM k WHERE k.kind IS NOT NULL
) SELECT k.kind FROM k WHERE k.kind IS NOT NULL;

-- name: ready_kinds_of_queue
WITH RECURSIVE k(kind) AS (
    SELECT min(r.kind) FROM ready AS r WHERE r.queue = :queue
    UNION ALL SELECT (SELECT min(r.kind) FROM ready AS r WHERE r.queue = :queue AND r.kind > k.kind)
    FROM k WHERE k.kind IS NOT NULL
) SELECT k.kind FROM k WHERE k.kind IS NOT NULL;

-- name: heads_of_open_lanes
-- row: OpenLaneRow(rank, turn, key)
SELECT l.rank, l.turn, l.key FROM lane AS l WHERE l.queue = :queue AND l.kind = :kind AND l.state = 1
    AND NOT l.key IN (SELECT value FROM json_each(:but))
ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT :limit;

-- name: lock_open_lanes
-- row: LaneRow(key, queue, kind, value, fair, weight, rank, turn)
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM lane AS l WHERE l.queue = :queue AND l.kind = :kind AND l.state = 1 AND NOT l.key IN (SELECT value FROM json_each(:but))
ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT :limit;

-- name: lock_open_lane
-- row: LaneRow(key, queue, kind, value, fair, weight, rank, turn)
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM lane AS l WHERE l.key = :key AND l.state = 1;

-- name: lock_lanes_by_key
-- row: LaneRow(key, queue, kind, value, fair, weight, rank, turn)
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM lane AS l WHERE l.key IN (SELECT value FROM json_each(:keys)) AND l.state = 1 ORDER BY l.key;

-- name: lock_blocked_lanes
-- row: BlockedLaneRow(key, queue, kind, fair, rank, turn, blocked_on, value, weight)
SELECT l.key, l.queue, l.kind, l.fair, l.rank, l.turn, i.value AS blocked_on, l.value, l.weight FROM json_each(:keys) AS i JOIN lane AS l ON l.key IN (SELECT x.key FROM lane AS x WHERE x.state = 2 AND x.blocked_on = i.value ORDER BY x.blocked_on, x.rank, x.turn, x.key LIMIT :limit);

-- name: still_blocked
SELECT i.value FROM json_each(:keys) AS i
WHERE EXISTS (SELECT 1 FROM lane AS l WHERE l.state = 2 AND l.blocked_on = i.value);

-- name: blocked_of_rule
SELECT l.blocked_on, l.key FROM limit_bucket AS k JOIN lane AS l ON l.state = 2 AND l.blocked_on = k.key
WHERE k.rule = :rule LIMIT :limit;

-- name: open_lanes_of_buckets
UPDATE lane SET state = 1, blocked_on = NULL, blocked_at = NULL WHERE state = 2 AND blocked_on IN (SELECT value FROM json_each(:keys));

-- name: claim_lanes
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT -t.priority AS rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, max(:now, t.run_at, t.updated_at) AS seen_at FROM json_each(:keys) AS i JOIN task AS t ON t.key IN (SELECT r.task FROM ready AS r WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT :limit);

-- name: first_keys_of_lanes
SELECT json_group_object(i.value, CAST((SELECT json_group_array(json_array(f.rank, f.task)) FROM (SELECT r.rank, r.task FROM ready AS r
    WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT :limit) AS f) AS text)) FROM json_each(:lanes) AS i;

-- name: claim_tasks
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT -t.priority AS rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, max(:now, t.run_at, t.updated_at) AS seen_at FROM json_each(:keys) AS i JOIN task AS t ON t.key = i.value;

-- name: heads_of_lanes
-- row: LaneHeadRow(key, rank, task)
SELECT i.value AS key, (SELECT r.rank FROM ready AS r WHERE r.queue = -i.value
        ORDER BY r.queue, r.rank, r.task LIMIT 1) AS rank,
    (SELECT r.task FROM ready AS r WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT 1) AS task
FROM json_each(:lanes) AS i;

-- name: lock_empty_lanes
SELECT l.key FROM lane AS l WHERE l.key IN (SELECT value FROM json_each(:keys)) ORDER BY l.key;

-- name: values_of_lanes
SELECT l.key, l.value FROM lane AS l WHERE l.key IN (SELECT value FROM json_each(:keys));

-- name: idle_lanes
SELECT l.key FROM lane AS l
WHERE l.key > :after AND l.state = 0 AND (CAST(:ns AS integer) IS NULL OR l.ns = :ns) ORDER BY l.key LIMIT :limit;

-- name: lanes_of_tasks
SELECT DISTINCT lane FROM task WHERE key > :after AND key <= :upto AND lane IS NOT NULL AND finished_at IS NULL;

-- name: retire_lanes
UPDATE lane SET retired_at = :at WHERE key IN (SELECT value FROM json_each(:keys)) AND state = 0 AND retired_at IS NULL;

-- name: delete_lanes
DELETE FROM lane WHERE key IN (SELECT value FROM json_each(:keys)) AND state = 0 AND retired_at <= :before RETURNING ns, kind;

-- name: lock_idle_buckets
SELECT k.key FROM limit_rule AS r JOIN limit_bucket AS k ON k.rule = r.key
WHERE r.kind IN (SELECT value FROM json_each(:kinds)) AND r.path <> '' AND k.running = 0 AND k.due_at IS NULL AND (k.starts = '[]' OR k.next_at < :now - r.period)
    AND NOT EXISTS (SELECT 1 FROM lane AS l WHERE l.state = 2 AND l.blocked_on = k.key) LIMIT :limit;

-- name: delete_idle_buckets
DELETE FROM limit_bucket WHERE key IN (
    SELECT k.key FROM limit_rule AS r JOIN limit_bucket AS k ON k.rule = r.key
    WHERE k.key IN (SELECT value FROM json_each(:keys)) AND r.path <> '' AND k.running = 0 AND k.due_at IS NULL AND (k.starts = '[]' OR k.next_at < :now - r.period)
    AND NOT EXISTS (SELECT 1 FROM lane AS l WHERE l.state = 2 AND l.blocked_on = k.key));

-- name: insert_lease
INSERT INTO lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
SELECT b.key, b.ns, b.worker, b.expires_at, b.length, b.tasks, b.request_key, b.part, b.expiry_counts FROM (SELECT value ->> 0 AS key, value ->> 1 AS ns, value ->> 2 AS worker, value ->> 3 AS expires_at, value ->> 4 AS length, value ->> 5 AS tasks, value ->> 6 AS request_key, value ->> 7 AS part, value ->> 8 AS expiry_counts FROM json_each(:batch)) AS b;

-- name: leases_of_request
-- row: LeaseRow(key, tasks, expires_at, length)
SELECT key, tasks, expires_at, length FROM lease
WHERE ns = :ns AND worker = :worker AND request_key = :request_key ORDER BY part;

-- name: clear_request_keys
UPDATE lease SET request_key = NULL WHERE key IN (SELECT value FROM json_each(:keys));

-- name: claimed_again
-- row: ReclaimedRow(key, id, kind, policy, fence, attempts, payload, input, correlation_id, trace, lease, state, queue, job, idempotency_key)
SELECT t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.fence, t.attempts, t.payload, t.input, t.correlation_id,
    t.trace, t.lease, t.state, t.queue, t.job, t.idempotency_key
FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys)) ORDER BY t.key;

-- name: lock_leases
SELECT key FROM lease WHERE key IN (SELECT value FROM json_each(:keys)) ORDER BY key;

-- name: renew_lease
-- row: RenewedRow(key, expires_at, tasks)
UPDATE lease SET expires_at = max(lease.expires_at, b.at + coalesce(b.length, lease.length)) FROM (SELECT value ->> 0 AS at, value ->> 1 AS length, value ->> 2 AS key FROM json_each(:batch)) AS b
WHERE lease.key = b.key AND lease.expires_at >= b.at
RETURNING lease.key, lease.expires_at, lease.tasks;

-- name: expired_leases
SELECT key, tasks FROM lease WHERE expires_at < :before AND (CAST(:ns AS integer) IS NULL OR ns = :ns)
ORDER BY expires_at, key LIMIT :limit;

-- name: still_expired
SELECT key FROM lease WHERE key IN (SELECT value FROM json_each(:keys)) AND expires_at < :before ORDER BY key;

-- name: leases_by_key
-- row: LeaseNowRow(key, expires_at, expiry_counts)
SELECT key, expires_at, expiry_counts FROM lease WHERE key IN (SELECT value FROM json_each(:keys));

-- name: expiries
SELECT key, expires_at FROM lease WHERE key IN (SELECT value FROM json_each(:keys));

-- name: held_tasks
-- row: Holding(key, id, lease, cancel_at, state)
SELECT key, CAST(id AS text) AS id, lease, cancel_at, state FROM task WHERE key IN (SELECT value FROM json_each(:keys)) ORDER BY key;

-- name: held_in_namespace
-- row: Holding(key, id, lease, cancel_at, state)
SELECT key, CAST(id AS text) AS id, lease, cancel_at, state FROM task
WHERE key IN (SELECT value FROM json_each(:keys)) AND ns = :ns ORDER BY key;

-- name: delete_leases
DELETE FROM lease WHERE key IN (SELECT value FROM json_each(:keys));

-- name: lock_namespace
SELECT key FROM namespace WHERE key = :ns;

-- name: share_namespace
SELECT key FROM namespace WHERE key = :ns;

-- name: rules_of_claim
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM limit_rule WHERE ns = :ns AND queue IN (0, :queue) ORDER BY key;

-- name: rules_of_namespace
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM limit_rule WHERE ns = :ns ORDER BY key LIMIT :limit;

-- name: rule_by_key
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM limit_rule WHERE key = :key;

-- name: rule_now
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM limit_rule WHERE key = :key;

-- name: find_rule
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM limit_rule WHERE ns = :ns AND kind = :kind AND queue = :queue AND path = :path AND what = :what;

-- name: add_rule
INSERT INTO limit_rule (key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at)
VALUES (:key, :ns, :queue, :kind, :path, :what, :most, :period, :smooth, :declared, :set_by, :set_at);

-- name: change_rule
UPDATE limit_rule SET most = :most, period = :period, smooth = :smooth, declared = :declared, set_by = :set_by,
    set_at = :set_at, lowered_at = coalesce(:lowered_at, lowered_at) WHERE key = :key;

-- name: await_claims
UPDATE limit_rule SET waits_for = :waits_for WHERE key = :key;

-- name: rule_is_counted
UPDATE limit_rule SET counted = 1, waits_for = NULL, lowered_at = coalesce(:lowered_at, lowered_at)
WHERE key = :key;

-- name: delete_rule
DELETE FROM limit_rule WHERE key = :key RETURNING key;

-- name: delete_buckets_of_rule
DELETE FROM limit_bucket WHERE rule = :rule RETURNING key;

-- name: claim_begins
SELECT r.task FROM ready AS r WHERE r.queue = 0 AND r.rank = 0 AND r.task = 0;

-- name: claims_under_way
SELECT '' WHERE 0;

-- name: share_queue
SELECT key FROM queue WHERE key = :key;

-- name: limit_queue
UPDATE queue SET limited = 1 WHERE key = :key AND limited = 0;

-- name: limit_queues
UPDATE queue SET limited = 1 WHERE ns = :ns AND limited = 0;

-- name: lock_limited_queues
SELECT key FROM queue WHERE ns = :ns AND limited = 1 ORDER BY key;

-- name: unlimit_queues
UPDATE queue SET limited = 0 WHERE key IN (SELECT value FROM json_each(:keys))
    AND NOT EXISTS (SELECT 1 FROM limit_rule AS r WHERE r.ns = queue.ns AND (r.kind <> 0 OR r.queue = queue.key))
    AND NOT EXISTS (SELECT 1 FROM lane AS l WHERE l.queue = queue.key);

-- name: claim_gates
-- row: GatesRow(paused, limited, breakers)
SELECT CASE WHEN q.paused_at IS NULL THEN 0 ELSE 1 END AS paused, q.limited,
    CASE WHEN EXISTS (SELECT 1 FROM breaker AS br WHERE br.open_until IS NOT NULL) THEN 1 ELSE 0 END AS breakers
FROM queue AS q WHERE q.key = :queue;

-- name: held_in_scope
SELECT t.key FROM lease AS l CROSS JOIN json_each(l.tasks) AS j JOIN task AS t ON t.key = j.value AND t.lease = l.key
WHERE l.ns = :ns AND (t.queue = :queue OR t.kind = :kind) ORDER BY t.key;

-- name: slots_of_tasks
SELECT key, slots FROM task WHERE key IN (SELECT value FROM json_each(:keys)) AND slots IS NOT NULL;

-- name: add_slots
UPDATE task SET slots = coalesce(task.slots, ',') || b.slots || ',' FROM (SELECT value ->> 0 AS slots, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: add_buckets
INSERT INTO limit_bucket (key, rule, value) SELECT b.key, b.rule, b.value FROM (SELECT value ->> 0 AS key, value ->> 1 AS rule, value ->> 2 AS value FROM json_each(:batch)) AS b WHERE true
ON CONFLICT DO NOTHING;

-- name: peek_buckets
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, :now AS seen_at FROM limit_bucket AS k JOIN limit_rule AS r ON r.key = k.rule
WHERE r.ns = :ns AND r.queue IN (0, :queue) AND r.path = '';

-- name: buckets_of_values
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, :now AS seen_at FROM limit_bucket AS k JOIN (SELECT value ->> 0 AS rule, value ->> 1 AS value FROM json_each(:batch)) AS b ON k.rule = b.rule AND k.value = b.value;

-- name: lock_buckets
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT l.*, :now AS seen_at FROM (
    SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters FROM limit_bucket AS k WHERE k.key IN (SELECT value FROM json_each(:keys)) ORDER BY k.key
) AS l;

-- name: lock_free_buckets
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT l.*, :now AS seen_at FROM (
    SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters FROM limit_bucket AS k WHERE k.key IN (SELECT value FROM json_each(:keys)) ORDER BY k.key
) AS l;

-- name: set_buckets
UPDATE limit_bucket SET running = b.running, starts = b.starts, next_at = b.next_at, due_at = b.due_at,
    waiters = b.waiters FROM (SELECT value ->> 0 AS running, value ->> 1 AS starts, value ->> 2 AS next_at, value ->> 3 AS due_at, value ->> 4 AS waiters, value ->> 5 AS key FROM json_each(:batch)) AS b WHERE limit_bucket.key = b.key;

-- name: buckets_of_rule
-- row: ShownBucketRow(key, rule, value, running, starts, next_at, due_at, waiters, blocked, blocked_since, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, (SELECT count(*) FROM (SELECT 1 FROM lane AS l WHERE l.state = 2 AND l.blocked_on = k.key
        ORDER BY l.blocked_on, l.rank, l.turn, l.key LIMIT 1000) AS n) AS blocked,
    (SELECT min(n.blocked_at) FROM (SELECT l.blocked_at FROM lane AS l WHERE l.state = 2 AND l.blocked_on = k.key
        ORDER BY l.blocked_on, l.rank, l.turn, l.key LIMIT 1000) AS n) AS blocked_since, :now AS seen_at
FROM limit_bucket AS k WHERE k.rule = :rule AND k.key > :after AND (CAST(:value AS text) IS NULL OR k.value = :value)
ORDER BY k.key LIMIT :limit;

-- name: used_of_rules
-- row: RuleUseRow(rule, running, blocked)
SELECT r.key AS rule, CAST(coalesce(sum(k.running), 0) AS bigint) AS running, (SELECT count(*) FROM (
    SELECT 1 FROM limit_bucket AS x JOIN lane AS l ON l.state = 2 AND l.blocked_on = x.key
    WHERE x.rule = r.key LIMIT 1000) AS n) AS blocked
FROM limit_rule AS r LEFT JOIN limit_bucket AS k ON k.rule = r.key
WHERE r.key IN (SELECT value FROM json_each(:rules)) GROUP BY r.key;

-- name: holders_of_bucket
-- row: HolderRow(task, job, kind, queue, worker, state, claimed_at, lease_expires_at)
SELECT CAST(t.id AS text) AS task, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job, k.name AS kind,
    q.name AS queue, t.owner AS worker, t.state, t.updated_at AS claimed_at, l.expires_at AS lease_expires_at
FROM lease AS l CROSS JOIN json_each(l.tasks) AS j JOIN task AS t ON t.key = j.value AND t.lease = l.key
    JOIN kind AS k ON k.key = t.kind JOIN queue AS q ON q.key = t.queue
WHERE l.ns = :ns AND instr(t.slots, :slot) > 0 ORDER BY t.key LIMIT :limit OFFSET :skip;

-- name: weights_of_namespace
-- row: WeightRow(kind, value, weight)
SELECT k.name AS kind, w.value, w.weight FROM lane_weight AS w JOIN kind AS k ON k.key = w.kind
WHERE k.ns = :ns AND (CAST(:kind AS text) IS NULL OR k.name = :kind) ORDER BY k.name, w.value LIMIT :limit;

-- name: unkeyed_counters
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, :now AS seen_at FROM limit_bucket AS k JOIN limit_rule AS r ON r.key = k.rule
WHERE r.ns = :ns AND r.path = '';

-- name: held_back_by_values
SELECT count(*) FROM (
    SELECT 1 FROM limit_bucket AS b JOIN lane AS l ON l.state = 2 AND l.blocked_on = b.key CROSS JOIN ready AS r ON r.queue = -l.key
    WHERE b.rule = :rule LIMIT :most
) AS c;

-- name: ready_in_queue
SELECT count(*) FROM (
    SELECT 1 FROM ready AS r WHERE r.queue = :queue
    UNION ALL
    SELECT 1 FROM lane AS l CROSS JOIN ready AS r ON r.queue = -l.key WHERE l.queue = :queue AND l.state <> 0
    LIMIT :most
) AS c;

-- name: ready_of_kind
SELECT count(*) FROM (
    SELECT 1 FROM queue AS q CROSS JOIN ready AS r ON r.queue = q.key AND r.kind = :kind WHERE q.ns = :ns
    UNION ALL
    SELECT 1 FROM queue AS q JOIN lane AS l ON l.queue = q.key AND l.kind = :kind AND l.state <> 0
        CROSS JOIN ready AS r ON r.queue = -l.key
    WHERE q.ns = :ns
    LIMIT :most
) AS c;

-- name: lane_of_task
-- row: LaneFacts(ns, queue, kind, limited, value, fair, weight, state, blocked_on, blocked_at, open_lanes, lanes_before)
SELECT t.ns, t.queue, t.kind, q.limited, l.value, l.fair, l.weight, coalesce(l.state, 0) AS state, l.blocked_on,
    l.blocked_at,
    (SELECT count(*) FROM (SELECT 1 FROM lane AS o WHERE o.queue = t.queue AND o.kind = t.kind AND o.state = 1
        LIMIT :most) AS c) AS open_lanes,
    (SELECT count(*) FROM (SELECT 1 FROM lane AS o WHERE o.queue = t.queue AND o.kind = t.kind AND o.state = 1
        AND (o.rank, o.turn, o.key) < (l.rank, l.turn, l.key) LIMIT :most) AS c) AS lanes_before
FROM task AS t JOIN queue AS q ON q.key = t.queue LEFT JOIN lane AS l ON l.key = t.lane
WHERE t.key = :task;

-- name: newest_before
SELECT n.key, n.created_at FROM (
    SELECT * FROM (SELECT t.key, t.created_at FROM task AS t WHERE t.key <= :upto ORDER BY t.key DESC LIMIT 1) AS a
    UNION ALL
    SELECT * FROM (SELECT f.key, f.created_at FROM flow AS f WHERE f.key <= :upto ORDER BY f.key DESC LIMIT 1) AS b
) AS n ORDER BY n.key DESC LIMIT 1;

-- name: newest_stage
SELECT s.key, s.created_at FROM stage AS s WHERE s.key <= :upto ORDER BY s.key DESC LIMIT 1;

-- name: newest_task
SELECT t.key, t.created_at FROM task AS t WHERE t.key <= :upto ORDER BY t.key DESC LIMIT 1;

-- name: find_stages
-- row: StageDetails(key, id, flow_id, namespace, ord, name, state, version, on_failure, sealed, takes_more, created_at, updated_at, started_at, finished_at, due_at, ending, ending_how, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, data, metadata, result, metrics, error, approval, answer, carried_from, type, trace, tracestate, error_count, errors, opened_at, own_ending_how, deciding, is_current, flow_state, flow_ending)
SELECT s.key, CAST(s.id AS text) AS id, CAST(f.id AS text) AS flow_id, n.name AS namespace, s.ord, s.name, s.state,
    s.version, s.on_failure, s.sealed, s.takes_more, s.created_at, s.updated_at, s.started_at, s.finished_at, s.due_at,
    CASE WHEN s.finished_at IS NULL THEN s.ending END AS ending,
    CASE WHEN s.finished_at IS NULL THEN coalesce(f.ending_how, s.ending_how) END AS ending_how, s.total, s.open,
    s.blocked, s.waiting_input, s.succeeded, s.partly, s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.data,
    s.metadata, s.result, s.metrics, s.error, s.approval, s.answer, CAST(w.id AS text) AS carried_from,
    coalesce(s.type, s.name) AS type, s.trace, s.tracestate, s.error_count, s.errors, s.opened_at,
    s.ending_how AS own_ending_how, s.deciding, CASE WHEN f.current = s.key THEN 1 ELSE 0 END AS is_current,
    f.state AS flow_state, f.ending AS flow_ending
FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns LEFT JOIN stage AS w ON w.key = s.carried_from WHERE s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type)
ORDER BY s.key DESC LIMIT :limit;

-- name: total_stages
SELECT count(*) FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns WHERE s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type);

-- name: nth_stage
SELECT s.key FROM stage AS s JOIN flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN namespace AS n ON n.key = s.ns WHERE s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type) ORDER BY s.key DESC LIMIT 1 OFFSET :offset;

-- name: find_tasks
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type))
ORDER BY t.key DESC LIMIT :limit;

-- name: total_tasks
SELECT count(*) FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind WHERE t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type));

-- name: nth_task
SELECT t.key FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind WHERE t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type)) ORDER BY t.key DESC LIMIT 1 OFFSET :offset;

-- name: find_tasks_of_stage
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type))
ORDER BY t.key DESC LIMIT :limit;

-- name: total_tasks_of_stage
SELECT count(*) FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type));

-- name: nth_task_of_stage
SELECT t.key FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type)) ORDER BY t.key DESC LIMIT 1 OFFSET :offset;

-- name: list_jobs
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs
SELECT count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job
SELECT j.key FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: list_jobs_of_correlation
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs_of_correlation
SELECT count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job_of_correlation
SELECT j.key FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs_of_correlation
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: list_jobs_labelled
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs_labelled
SELECT count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job_labelled
SELECT j.key FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs_labelled
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: span_labelled
SELECT l.job FROM label AS l
WHERE l.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job <= :upto
ORDER BY l.job DESC LIMIT 1 OFFSET :size;

-- name: list_jobs_of_keys
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT value FROM json_each(:keys)) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT value FROM json_each(:keys)) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs_of_keys
SELECT count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT value FROM json_each(:keys)) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT value FROM json_each(:keys)) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job_of_keys
SELECT j.key FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT value FROM json_each(:keys)) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT value FROM json_each(:keys)) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs_of_keys
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT value FROM json_each(:keys)) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT value FROM json_each(:keys)) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: jobs_of_ids
SELECT t.job FROM task AS t WHERE t.id IN (SELECT value FROM json_each(:ids))
UNION SELECT f.key FROM flow AS f WHERE f.id IN (SELECT value FROM json_each(:ids));

-- name: jobs_of_id_range
SELECT * FROM (
    SELECT t.job FROM task AS t WHERE t.id >= :low AND t.id <= :high AND t.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace)
    ORDER BY t.id DESC LIMIT :limit) AS a
UNION SELECT * FROM (
    SELECT f.key FROM flow AS f WHERE f.id >= :low AND f.id <= :high AND f.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace)
    ORDER BY f.id DESC LIMIT :limit) AS b;

-- name: jobs_of_name
SELECT * FROM (
    SELECT t.key FROM task AS t WHERE t.correlation_id = :text AND t.stage IS NULL AND t.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) LIMIT :limit
) AS a
UNION SELECT * FROM (
    SELECT f.key FROM flow AS f WHERE f.correlation_id = :text AND f.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) LIMIT :limit) AS b
UNION SELECT coalesce((SELECT m.job FROM task AS m WHERE m.key = i.key), i.key) FROM alias AS i
    WHERE i.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND i.alias = :text;

-- name: kinds_with_text
SELECT k.key FROM kind AS k JOIN namespace AS n ON n.key = k.ns
WHERE n.name = :namespace AND replace(lower(k.name), lower(:text), '') <> lower(k.name) ORDER BY k.key LIMIT :limit;

-- name: sorted_jobs
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.updated_at >= :updated_since AND t.updated_at < :updated_until
    UNION ALL SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.updated_at >= :updated_since AND f.updated_at < :updated_until
) AS j WHERE CAST(:aliased AS integer) IS NULL OR CASE WHEN j.alias IS NULL THEN 0 ELSE 1 END = :aliased
ORDER BY CAST(:sign AS integer) * CASE WHEN CAST(:by_update AS integer) = 1 THEN j.updated_at ELSE j.created_at END,
    CAST(:sign AS integer) * j.key LIMIT :limit OFFSET :offset;

-- name: sorted_jobs_labelled
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM label AS l JOIN namespace AS m ON m.key = l.ns
    WHERE m.name = :namespace AND l.name = :label AND l.value = :labelled) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND t.updated_at >= :updated_since AND t.updated_at < :updated_until
    UNION ALL SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM label AS l JOIN namespace AS m ON m.key = l.ns
    WHERE m.name = :namespace AND l.name = :label AND l.value = :labelled) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted) AND f.updated_at >= :updated_since AND f.updated_at < :updated_until
) AS j WHERE CAST(:aliased AS integer) IS NULL OR CASE WHEN j.alias IS NULL THEN 0 ELSE 1 END = :aliased
ORDER BY CAST(:sign AS integer) * CASE WHEN CAST(:by_update AS integer) = 1 THEN j.updated_at ELSE j.created_at END,
    CAST(:sign AS integer) * j.key LIMIT :limit OFFSET :offset;

-- name: count_jobs
SELECT j.state, count(*) FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted)
    UNION ALL SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM alias AS i WHERE i.key = f.key) AS alias
FROM flow AS f JOIN namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state IN (SELECT value FROM json_each(:states)))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind IN (SELECT value FROM json_each(:kinds)))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value IN (SELECT value FROM json_each(:labels))) = :labels_wanted)
) AS j GROUP BY j.state;

-- name: labels_of_jobs
-- row: JobLabel(id, name, value)
SELECT CAST(t.id AS text) AS id, l.name, l.value FROM task AS t JOIN label AS l ON l.job = t.key
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND t.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace)
UNION ALL SELECT CAST(f.id AS text), l.name, l.value FROM flow AS f JOIN label AS l ON l.job = f.key
WHERE f.id IN (SELECT value FROM json_each(:ids)) AND f.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) ORDER BY 1, 2;

-- name: key_of_job
SELECT t.key FROM task AS t JOIN namespace AS n ON n.key = t.ns WHERE t.id = :id AND n.name = :namespace
UNION ALL
SELECT f.key FROM flow AS f JOIN namespace AS n ON n.key = f.ns WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: entity_of_id
SELECT 'task', t.key FROM task AS t JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace
UNION ALL SELECT 'stage', s.key FROM stage AS s JOIN namespace AS n ON n.key = s.ns
WHERE s.id = :id AND n.name = :namespace
UNION ALL SELECT 'flow', f.key FROM flow AS f JOIN namespace AS n ON n.key = f.ns
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: ids_newest
-- row: IdRow(entity, id, name, state)
SELECT * FROM (
    SELECT 'task' AS entity, CAST(t.id AS text) AS id, k.name, t.state FROM task AS t JOIN namespace AS n ON n.key = t.ns
        JOIN kind AS k ON k.key = t.kind
    WHERE n.name = :namespace ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT 'stage', CAST(s.id AS text), s.name, s.state FROM stage AS s
        JOIN namespace AS n ON n.key = s.ns
    WHERE n.name = :namespace ORDER BY s.key DESC LIMIT :limit
) AS b
UNION ALL SELECT * FROM (
    SELECT 'flow', CAST(f.id AS text), k.name, f.state FROM flow AS f JOIN namespace AS n ON n.key = f.ns
        JOIN kind AS k ON k.key = f.kind
    WHERE n.name = :namespace ORDER BY f.key DESC LIMIT :limit
) AS c;

-- name: list_members
-- row: MemberSummary(key, id, stage, name, kind, queue, state, attempts, max_attempts, created_at, started_at, finished_at, owner, error)
SELECT t.key, CAST(t.id AS text) AS id, s.name AS stage, t.name, k.name AS kind, q.name AS queue, t.state, t.attempts,
    t.max_attempts, t.created_at, t.started_at, t.finished_at, t.owner, t.error
FROM task AS t JOIN stage AS s ON s.key = t.stage JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE s.job = :job AND (s.ord, t.key) > (:ord, :after)
    AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
ORDER BY s.ord, t.key LIMIT :limit;

-- name: list_members_of_stage
-- row: MemberSummary(key, id, stage, name, kind, queue, state, attempts, max_attempts, created_at, started_at, finished_at, owner, error)
SELECT t.key, CAST(t.id AS text) AS id, s.name AS stage, t.name, k.name AS kind, q.name AS queue, t.state, t.attempts,
    t.max_attempts, t.created_at, t.started_at, t.finished_at, t.owner, t.error
FROM task AS t JOIN stage AS s ON s.key = t.stage JOIN kind AS k ON k.key = t.kind
    JOIN queue AS q ON q.key = t.queue WHERE t.stage = :stage AND t.key > :after AND (CAST(:any_state AS integer) = 1 OR t.state IN (SELECT value FROM json_each(:states)))
ORDER BY t.stage, t.key LIMIT :limit;

-- name: key_of_stage
SELECT s.key FROM stage AS s JOIN namespace AS n ON n.key = s.ns
WHERE s.id = :id AND s.job = :job AND n.name = :namespace;

-- name: place_of_member
SELECT s.ord, t.key FROM task AS t JOIN stage AS s ON s.key = t.stage WHERE t.id = :id AND t.job = :job;

-- name: list_queues
-- row: QueueDepth(name, paused_at, paused_by, ready, delayed, held, oldest_ready_at, limited)
SELECT q.name, q.paused_at, q.paused_by, coalesce(r.ready, 0) AS ready, coalesce(w.waiting, 0) AS delayed,
    coalesce(h.held, 0) AS held, o.run_at AS oldest_ready_at, CASE WHEN q.limited = 0 THEN 0 ELSE (SELECT count(*) FROM (
        SELECT 1 FROM json_each(:full_queues) AS i CROSS JOIN ready AS r ON r.queue = i.value WHERE i.value = q.key
        UNION ALL
        SELECT 1 FROM json_each(:full_kinds) AS i CROSS JOIN ready AS r ON r.queue = q.key AND r.kind = i.value WHERE NOT q.key IN (SELECT value FROM json_each(:full_queues))
        UNION ALL
        SELECT 1 FROM lane AS l CROSS JOIN ready AS r ON r.queue = -l.key
        WHERE l.queue = q.key AND (l.state = 2 OR l.state = 1 AND (q.key IN (SELECT value FROM json_each(:full_queues)) OR l.kind IN (SELECT value FROM json_each(:full_kinds))))
        LIMIT :most
    ) AS c) END AS limited
FROM queue AS q JOIN namespace AS n ON n.key = q.ns
    LEFT JOIN (
        SELECT coalesce(v.queue, g.queue) AS queue, CAST(sum(g.ready) AS bigint) AS ready, min(g.oldest) AS oldest FROM (
            SELECT queue, count(*) AS ready, min(task) AS oldest FROM ready GROUP BY queue
        ) AS g LEFT JOIN lane AS v ON v.key = -g.queue GROUP BY coalesce(v.queue, g.queue)
    ) AS r ON r.queue = q.key
    LEFT JOIN task AS o ON o.key = r.oldest
    LEFT JOIN (
        SELECT t.queue, count(*) AS waiting FROM due AS d JOIN task AS t ON t.key = d.task
        WHERE d.what = :run AND d.fence = t.fence AND d.at = t.run_at AND t.state IN ('queued')
            AND NOT EXISTS (SELECT 1 FROM ready AS y
                WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) GROUP BY t.queue
    ) AS w ON w.queue = q.key
    LEFT JOIN (
        SELECT t.queue, count(*) AS held FROM lease AS l CROSS JOIN json_each(l.tasks) AS j
            JOIN task AS t ON t.key = j.value AND t.lease = l.key
        GROUP BY t.queue
    ) AS h ON h.queue = q.key
WHERE n.name = :namespace ORDER BY q.name LIMIT :limit;

-- name: list_kinds
SELECT k.name FROM kind AS k JOIN namespace AS n ON n.key = k.ns
WHERE n.name = :namespace AND (
    k.key NOT IN (SELECT f.kind FROM (SELECT x.kind FROM flow AS x ORDER BY x.key DESC LIMIT :scan) AS f)
    OR k.key IN (SELECT t.kind FROM (SELECT x.kind FROM task AS x ORDER BY x.key DESC LIMIT :scan) AS t)
) ORDER BY k.name LIMIT :limit;

-- name: retried_jobs
SELECT CAST(t.id AS text) AS id FROM task AS t JOIN namespace AS n ON n.key = t.ns
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace AND t.key IN (
    SELECT r.retry_of FROM task AS r
    WHERE r.stage IS NULL AND r.retry_of IS NOT NULL AND r.correlation_id IN (
        SELECT coalesce(o.correlation_id, CAST(o.id AS text)) FROM task AS o WHERE o.id IN (SELECT value FROM json_each(:ids))))
UNION ALL
SELECT CAST(f.id AS text) FROM flow AS f JOIN namespace AS n ON n.key = f.ns
WHERE f.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace AND f.key IN (
    SELECT r.retry_of FROM flow AS r WHERE r.retry_of IS NOT NULL AND r.correlation_id IN (
        SELECT o.correlation_id FROM flow AS o WHERE o.id IN (SELECT value FROM json_each(:ids))));

-- name: dead_groups
-- row: DeadGroup(kind, reason_code, error_class, message, count, oldest_at, newest_at, redriven, example_id)
SELECT k.name AS kind, g.reason_code, nullif(g.error_class, '') AS error_class, nullif(g.pattern, '') AS message, g.count,
    g.oldest_at, g.newest_at, g.redriven, (SELECT CAST(t.id AS text) FROM task AS t WHERE t.key = g.example) AS example_id FROM (
    SELECT d.kind, d.reason_code, d.error_class, d.pattern, count(*) AS count, min(d.created_at) AS oldest_at,
        max(d.created_at) AS newest_at, count(d.successor) AS redriven, min(d.task) AS example
    FROM dead_letter AS d WHERE d.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace)
    AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM kind AS w WHERE w.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) GROUP BY d.kind, d.reason_code, d.error_class, d.pattern
) AS g JOIN kind AS k ON k.key = g.kind ORDER BY g.count DESC, k.name, g.reason_code, g.error_class, g.pattern LIMIT :limit;

-- name: dead_groups_with_text
-- row: DeadGroup(kind, reason_code, error_class, message, count, oldest_at, newest_at, redriven, example_id)
SELECT k.name AS kind, g.reason_code, nullif(g.error_class, '') AS error_class, nullif(g.pattern, '') AS message, g.count,
    g.oldest_at, g.newest_at, g.redriven, (SELECT CAST(t.id AS text) FROM task AS t WHERE t.key = g.example) AS example_id FROM (
    SELECT d.kind, d.reason_code, d.error_class, d.pattern, count(*) AS count, min(d.created_at) AS oldest_at,
        max(d.created_at) AS newest_at, count(d.successor) AS redriven, min(d.task) AS example
    FROM dead_letter AS d WHERE d.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace)
    AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM kind AS w WHERE w.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND replace((d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message')), :error, '') <> (d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message')) GROUP BY d.kind, d.reason_code, d.error_class, d.pattern
) AS g JOIN kind AS k ON k.key = g.kind ORDER BY g.count DESC, k.name, g.reason_code, g.error_class, g.pattern LIMIT :limit;

-- name: list_letters
-- row: DeadLetterSummary(key, id, kind, reason_code, error_class, message, attempts, created_at, successor_id, flow_id, flow_finished_at)
SELECT d.task AS key, CAST(t.id AS text) AS id, k.name AS kind, d.reason_code, d.last_error ->> 'class' AS error_class,
    d.last_error ->> 'message' AS message, d.attempts, d.created_at,
    (SELECT CAST(s.id AS text) FROM task AS s WHERE s.key = d.successor) AS successor_id,
    CAST(f.id AS text) AS flow_id, f.finished_at AS flow_finished_at
FROM dead_letter AS d JOIN task AS t ON t.key = d.task JOIN kind AS k ON k.key = t.kind
    JOIN namespace AS n ON n.key = +d.ns LEFT JOIN flow AS f ON f.key = t.job WHERE d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task IN (SELECT value FROM json_each(:keys)))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM kind AS w WHERE w.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name IN (SELECT value FROM json_each(:kinds))) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message')), :error, '') <> (d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message'))) ORDER BY d.task LIMIT :limit OFFSET :offset;

-- name: list_letters_alike
-- row: DeadLetterSummary(key, id, kind, reason_code, error_class, message, attempts, created_at, successor_id, flow_id, flow_finished_at)
SELECT d.task AS key, CAST(t.id AS text) AS id, k.name AS kind, d.reason_code, d.last_error ->> 'class' AS error_class,
    d.last_error ->> 'message' AS message, d.attempts, d.created_at,
    (SELECT CAST(s.id AS text) FROM task AS s WHERE s.key = d.successor) AS successor_id,
    CAST(f.id AS text) AS flow_id, f.finished_at AS flow_finished_at
FROM dead_letter AS d JOIN task AS t ON t.key = d.task JOIN kind AS k ON k.key = t.kind
    JOIN namespace AS n ON n.key = +d.ns LEFT JOIN flow AS f ON f.key = t.job WHERE d.ns = :group_ns AND d.kind = :group_kind AND d.reason_code = :group_reason AND d.error_class = :group_class
    AND d.pattern = :group_pattern AND d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task IN (SELECT value FROM json_each(:keys)))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM kind AS w WHERE w.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name IN (SELECT value FROM json_each(:kinds))) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message')), :error, '') <> (d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message'))) ORDER BY d.task LIMIT :limit OFFSET :offset;

-- name: count_letters
SELECT count(*) FROM (SELECT d.task FROM dead_letter AS d JOIN task AS t ON t.key = d.task JOIN kind AS k ON k.key = t.kind
    JOIN namespace AS n ON n.key = +d.ns WHERE d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task IN (SELECT value FROM json_each(:keys)))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM kind AS w WHERE w.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name IN (SELECT value FROM json_each(:kinds))) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message')), :error, '') <> (d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message'))) LIMIT :most) AS c;

-- name: count_letters_alike
SELECT count(*) FROM (
    SELECT d.task FROM dead_letter AS d JOIN task AS t ON t.key = d.task JOIN kind AS k ON k.key = t.kind
    JOIN namespace AS n ON n.key = +d.ns WHERE d.ns = :group_ns AND d.kind = :group_kind AND d.reason_code = :group_reason AND d.error_class = :group_class
    AND d.pattern = :group_pattern AND d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task IN (SELECT value FROM json_each(:keys)))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM kind AS w WHERE w.ns = (SELECT o.key FROM namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name IN (SELECT value FROM json_each(:kinds))) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message')), :error, '') <> (d.last_error ->> 'class' || ': ' || (d.last_error ->> 'message'))) LIMIT :most) AS c;

-- name: group_of_letter
-- row: LetterGroupRow(ns, kind, reason_code, error_class, pattern)
SELECT d.ns, d.kind, d.reason_code, d.error_class, d.pattern FROM dead_letter AS d
    JOIN task AS t ON t.key = d.task JOIN namespace AS n ON n.key = d.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: count_prunable
-- row: Prunable(tasks, flows)
SELECT (SELECT count(*) FROM task AS t WHERE t.created_at <= :before AND t.finished_at IS NOT NULL AND t.finished_at <= :before
    AND t.key = t.job AND (CAST(:ns AS integer) IS NULL OR t.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM idempotency AS i WHERE i.job = t.key AND i.expires_at > :now)) AS tasks,
    (SELECT count(*) FROM flow AS f WHERE f.created_at <= :before AND f.finished_at IS NOT NULL AND f.finished_at <= :before
    AND (CAST(:ns AS integer) IS NULL OR f.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM idempotency AS i WHERE i.job = f.key AND i.expires_at > :now)
    AND NOT EXISTS (SELECT 1 FROM stage AS s WHERE s.job = f.key AND s.open > 0)
    AND NOT EXISTS (SELECT 1 FROM flow AS c WHERE c.key = f.compensation AND c.finished_at IS NULL)) AS flows;

-- name: last_report_numbers
SELECT f.key, max(coalesce((SELECT max(l.seq) FROM log AS l WHERE l.job = f.key), 0),
    coalesce((SELECT max(p.seq) FROM progress AS p WHERE p.job = f.key), 0))
FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys));

-- name: reports_of_flow
-- row: MemberReport(cursor, ts, stage, task, name, attempt, level, line, data, done, total, message)
SELECT r.seq AS cursor, r.ts, s.name AS stage, CAST(t.id AS text) AS task, t.name, r.attempt, r.level, r.line, r.data,
    r.done, r.total, r.message
FROM (
    SELECT * FROM (
        SELECT l.seq, l.task, l.ts, l.attempt, l.level, l.line, l.data, CAST(NULL AS double precision) AS done,
            CAST(NULL AS double precision) AS total, CAST(NULL AS text) AS message
        FROM log AS l WHERE l.job = :job AND l.seq > :after ORDER BY l.seq LIMIT :limit
    ) AS lines
    UNION ALL
    SELECT * FROM (
        SELECT p.seq, p.task, p.at, p.attempt, NULL, NULL, NULL, p.done, p.total, p.message
        FROM progress AS p WHERE p.job = :job AND p.seq > :after ORDER BY p.seq LIMIT :limit
    ) AS latest
) AS r JOIN task AS t ON t.key = r.task JOIN stage AS s ON s.key = t.stage
ORDER BY r.seq LIMIT :limit;

-- name: last_reports_of_flow
-- row: MemberReport(cursor, ts, stage, task, name, attempt, level, line, data, done, total, message)
SELECT r.seq AS cursor, r.ts, s.name AS stage, CAST(t.id AS text) AS task, t.name, r.attempt, r.level, r.line, r.data,
    r.done, r.total, r.message
FROM (
    SELECT * FROM (
        SELECT l.seq, l.task, l.ts, l.attempt, l.level, l.line, l.data, CAST(NULL AS double precision) AS done,
            CAST(NULL AS double precision) AS total, CAST(NULL AS text) AS message
        FROM log AS l WHERE l.job = :job AND l.seq > :after AND l.seq < :before ORDER BY l.seq DESC LIMIT :limit
    ) AS lines
    UNION ALL
    SELECT * FROM (
        SELECT p.seq, p.task, p.at, p.attempt, NULL, NULL, NULL, p.done, p.total, p.message
        FROM progress AS p WHERE p.job = :job AND p.seq > :after AND p.seq < :before ORDER BY p.seq DESC LIMIT :limit
    ) AS latest
) AS r JOIN task AS t ON t.key = r.task JOIN stage AS s ON s.key = t.stage
ORDER BY r.seq DESC LIMIT :limit;

-- name: last_cursor
SELECT task, max(cursor) FROM log WHERE task IN (SELECT value FROM json_each(:keys)) GROUP BY task;

-- name: insert_log
INSERT INTO log (task, cursor, ts, attempt, level, line, data, job, seq)
SELECT b.key, b.cursor, b.at, b.attempt, b.level, b.line, b.data, b.job, b.seq FROM (SELECT value ->> 0 AS key, value ->> 1 AS cursor, value ->> 2 AS at, value ->> 3 AS attempt, value ->> 4 AS level, value ->> 5 AS line, value ->> 6 AS data, value ->> 7 AS job, value ->> 8 AS seq FROM json_each(:batch)) AS b;

-- name: logs_of
-- row: LogLine(cursor, ts, attempt, level, line, data)
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM log AS l JOIN task AS t ON t.key = l.task JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after ORDER BY l.cursor LIMIT :limit;

-- name: last_logs_of
-- row: LogLine(cursor, ts, attempt, level, line, data)
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM log AS l JOIN task AS t ON t.key = l.task JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after AND l.cursor < :before ORDER BY l.cursor DESC LIMIT :limit;

-- name: first_lines
-- row: LogRow(task, cursor, ts, attempt, level, line, data)
SELECT l.task, l.cursor, l.ts, l.attempt, l.level, l.line, l.data FROM log AS l
WHERE l.task IN (SELECT value FROM json_each(:keys)) AND l.cursor <= :most ORDER BY l.task, l.cursor;

-- name: count_events
-- row: EventCountRow(namespace, type, kind, reason, number)
SELECT n.name AS namespace, e.type, k.name AS kind, e.reason, count(*) AS number
FROM (
    SELECT v.ns, v.type, (SELECT t.kind FROM task AS t WHERE t.key = v.entity) AS kind, CASE WHEN v.type = :dead THEN
        (SELECT d.reason_code FROM dead_letter AS d WHERE d.task = v.entity) END AS reason
    FROM (
    SELECT v.entity, v.ns, v.type FROM event AS v
    WHERE v.batch >= coalesce((SELECT max(x.id) FROM event_batch AS x WHERE x.id <= :after), 0) AND v.batch <= :upto
        AND v.id > :after AND v.id <= :upto
) AS v
) AS e
    JOIN namespace AS n ON n.key = e.ns
    LEFT JOIN kind AS k ON k.key = e.kind
GROUP BY 1, 2, 3, 4;

-- name: times_of_ended
-- row: DurationRow(namespace, kind, bucket, number, us)
SELECT n.name AS namespace, k.name AS kind, CASE
        WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 5000 THEN 0 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 10000 THEN 1 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 25000 THEN 2 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 50000 THEN 3
        WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 100000 THEN 4 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 250000 THEN 5 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 500000 THEN 6 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 1000000 THEN 7
        WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 2500000 THEN 8 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 5000000 THEN 9 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 10000000 THEN 10
        WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 60000000 THEN 11 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 600000000 THEN 12 WHEN CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END <= 3600000000 THEN 13 ELSE 14 END AS bucket,
    count(*) AS number, sum(CASE WHEN CAST(:ran AS integer) = 1 THEN t.finished_at - t.started_at
    WHEN t.started_at > t.run_at THEN t.started_at - t.run_at ELSE 0 END) AS us
FROM task AS t
    JOIN namespace AS n ON n.key = t.ns
    JOIN kind AS k ON k.key = t.kind
WHERE t.key IN (SELECT e.entity FROM (
    SELECT v.entity, v.ns, v.type FROM event AS v
    WHERE v.batch >= coalesce((SELECT max(x.id) FROM event_batch AS x WHERE x.id <= :after), 0) AND v.batch <= :upto
        AND v.id > :after AND v.id <= :upto
) AS e WHERE e.type IN (SELECT value FROM json_each(:ends))) AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL
GROUP BY 1, 2, 3;

-- name: count_events_after
SELECT CAST(coalesce(sum(eb.size), 0) AS bigint) FROM event_batch AS eb WHERE eb.id > :after AND eb.id <= :upto;

-- name: count_first_events
SELECT CAST(coalesce(sum(r.size), 0) AS bigint)
FROM (SELECT eb.size FROM event_batch AS eb ORDER BY eb.id LIMIT :rows) AS r;

-- name: add_tally
INSERT INTO tally (ns, name, value) SELECT b.ns, b.name, b.value FROM (SELECT value ->> 0 AS ns, value ->> 1 AS name, value ->> 2 AS value FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (ns, name) DO UPDATE SET value = tally.value + excluded.value;

-- name: tallies
SELECT y.name, y.value FROM tally AS y JOIN namespace AS n ON n.key = y.ns WHERE n.name = :namespace;

-- name: count_workers
SELECT count(*) FROM worker AS w JOIN namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > :now;

-- name: tasks_of_workers
-- row: WorkerTasksRow(name, running, claimed)
SELECT w.name, w.running, w.claimed FROM worker AS w JOIN namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > :now
UNION ALL
SELECT l.worker, sum(CASE WHEN t.state = :running THEN 1 ELSE 0 END), count(*)
FROM lease AS l JOIN namespace AS o ON o.key = l.ns CROSS JOIN json_each(l.tasks) AS j
    JOIN task AS t ON t.key = j.value AND t.lease = l.key
WHERE o.name = :namespace AND NOT EXISTS (SELECT 1 FROM worker AS r
    WHERE r.ns = l.ns AND r.name = l.worker AND r.expires_at > :now)
GROUP BY l.worker ORDER BY 1 LIMIT :limit;

-- name: names
-- row: NameRow(sort, key, ns, name, policy, retired_at)
SELECT 0 AS sort, key, 0 AS ns, name, 0 AS policy, CAST(NULL AS bigint) AS retired_at FROM namespace
UNION ALL SELECT 1, key, ns, name, 0, NULL FROM queue
UNION ALL SELECT 2, key, ns, name, policy, retired_at FROM kind
UNION ALL SELECT 3, key, 0, body, 0, NULL FROM policy;

-- name: queues
-- row: QueueRow(key, ns, name)
SELECT key, ns, name FROM queue;

-- name: add_namespace
INSERT INTO namespace (name) VALUES (:name) ON CONFLICT DO NOTHING;

-- name: add_queue
INSERT INTO queue (ns, name, limited) VALUES (:ns, :name, CASE WHEN EXISTS (
    SELECT 1 FROM limit_rule AS r WHERE r.ns = :ns AND r.kind <> 0) THEN 1 ELSE 0 END) ON CONFLICT DO NOTHING;

-- name: add_policy
INSERT INTO policy (body) VALUES (:body) ON CONFLICT DO NOTHING;

-- name: add_kind
INSERT INTO kind (ns, name, policy) VALUES (:ns, :name, :policy)
ON CONFLICT (ns, name) DO UPDATE SET retired_at = NULL WHERE kind.retired_at IS NOT NULL;

-- name: set_kind_policy
UPDATE kind SET policy = :policy, retired_at = NULL WHERE key = :key;

-- name: replace_kind_policy
UPDATE kind SET policy = :policy, retired_at = NULL WHERE key = :key AND policy = :was RETURNING key;

-- name: plain_kinds
-- row: PlainKindRow(key, retired_at)
SELECT k.key, k.retired_at FROM kind AS k
WHERE k.key > :after AND (CAST(:ns AS integer) IS NULL OR k.ns = :ns) AND k.policy IN (SELECT p.key FROM policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key)
ORDER BY k.key LIMIT :limit;

-- name: kinds_of_tasks
SELECT DISTINCT kind FROM task WHERE key > :after AND key <= :upto;

-- name: kinds_of_flows
SELECT DISTINCT kind FROM flow WHERE key > :after AND key <= :upto;

-- name: retire_kinds
UPDATE kind SET retired_at = :at
WHERE retired_at IS NULL AND key IN (SELECT k.key FROM kind AS k WHERE k.key IN (SELECT value FROM json_each(:keys)) AND k.policy IN (SELECT p.key FROM policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key));

-- name: delete_kinds
DELETE FROM kind
WHERE retired_at <= :before AND key IN (SELECT k.key FROM kind AS k WHERE k.key IN (SELECT value FROM json_each(:keys)) AND k.policy IN (SELECT p.key FROM policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key));

-- name: take_back_kinds
UPDATE kind SET retired_at = NULL WHERE retired_at IS NOT NULL AND key IN (SELECT value FROM json_each(:keys));

-- name: queues_with_work
SELECT q.key FROM queue AS q
WHERE q.key IN (SELECT value FROM json_each(:keys)) AND q.paused_at IS NULL AND ((
    SELECT r.task FROM ready AS r WHERE r.queue = q.key ORDER BY r.rank, r.task LIMIT 1
) IS NOT NULL OR (SELECT l.key FROM lane AS l WHERE l.queue = q.key AND l.state = 1 LIMIT 1) IS NOT NULL);

-- name: pause_queue
UPDATE queue SET paused_at = :at, paused_by = :by WHERE key = :key AND paused_at IS NULL RETURNING key;

-- name: resume_queue
UPDATE queue SET paused_at = NULL, paused_by = NULL WHERE key = :key AND paused_at IS NOT NULL RETURNING key;

-- name: count_queues
-- row: QueueCountRow(key, name, paused_at, paused_by, ready, oldest_ready_at, limited)
SELECT q.key, q.name, q.paused_at, q.paused_by,
    (SELECT count(*) FROM (
        SELECT 1 FROM ready AS r WHERE r.queue = q.key ORDER BY r.queue, r.rank, r.task LIMIT :most
    ) AS c) + (SELECT count(*) FROM (
        SELECT 1 FROM lane AS l CROSS JOIN ready AS r ON r.queue = -l.key WHERE l.queue = q.key AND l.state <> 0 LIMIT :most
    ) AS c) AS ready,
    (SELECT t.run_at FROM task AS t WHERE t.key = (SELECT min(o.task) FROM (
        SELECT * FROM (SELECT r.task FROM ready AS r WHERE r.queue = q.key ORDER BY r.queue, r.rank, r.task LIMIT :most) AS p
        UNION ALL SELECT * FROM (SELECT r.task FROM lane AS l CROSS JOIN ready AS r ON r.queue = -l.key
            WHERE l.queue = q.key AND l.state <> 0 LIMIT :most) AS v
    ) AS o)) AS oldest_ready_at, CASE WHEN q.limited = 0 THEN 0 ELSE (SELECT count(*) FROM (
        SELECT 1 FROM json_each(:full_queues) AS i CROSS JOIN ready AS r ON r.queue = i.value WHERE i.value = q.key
        UNION ALL
        SELECT 1 FROM json_each(:full_kinds) AS i CROSS JOIN ready AS r ON r.queue = q.key AND r.kind = i.value WHERE NOT q.key IN (SELECT value FROM json_each(:full_queues))
        UNION ALL
        SELECT 1 FROM lane AS l CROSS JOIN ready AS r ON r.queue = -l.key
        WHERE l.queue = q.key AND (l.state = 2 OR l.state = 1 AND (q.key IN (SELECT value FROM json_each(:full_queues)) OR l.kind IN (SELECT value FROM json_each(:full_kinds))))
        LIMIT :most
    ) AS c) END AS limited
FROM queue AS q WHERE q.ns = :ns ORDER BY q.name LIMIT :limit;

-- name: count_delayed
SELECT w.queue, count(*) FROM (
    SELECT (SELECT t.queue FROM task AS t WHERE t.key = d.task AND t.ns = :ns AND d.what = :run AND d.fence = t.fence AND d.at = t.run_at AND t.state IN ('queued')
            AND NOT EXISTS (SELECT 1 FROM ready AS y
                WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind)) AS queue
    FROM (SELECT n.at, n.task, n.what, n.fence FROM due AS n ORDER BY n.at, n.task, n.what LIMIT :most) AS d
) AS w WHERE w.queue IS NOT NULL GROUP BY w.queue;

-- name: count_scanned
SELECT (SELECT count(*) FROM (SELECT 1 FROM due AS n LIMIT :due) AS d), (SELECT count(*) FROM (SELECT j.value FROM lease AS l CROSS JOIN json_each(l.tasks) AS j WHERE l.ns = :ns ORDER BY l.expires_at DESC LIMIT :most) AS h);

-- name: held_now
-- row: HeldTaskRow(owner, id, kind, queue, state, started_at)
SELECT t.owner, CAST(t.id AS text) AS id, k.name AS kind, q.name AS queue, t.state, t.started_at
FROM task AS t JOIN kind AS k ON k.key = t.kind JOIN queue AS q ON q.key = t.queue
WHERE t.key IN (SELECT j.value FROM lease AS l CROSS JOIN json_each(l.tasks) AS j WHERE l.ns = :ns ORDER BY l.expires_at DESC LIMIT :most) AND t.ns = :ns AND t.state IN ('assigned', 'running')
ORDER BY CASE WHEN t.state = :running THEN 0 ELSE 1 END, t.started_at, t.key;

-- name: last_pauses
SELECT eb.payload, eb.cause FROM event_batch AS eb
WHERE eb.type = :paused AND eb.ts >= :since AND eb.ns = :ns ORDER BY eb.ts DESC LIMIT :limit;

-- name: number_of_queues
SELECT count(*) FROM (SELECT 1 FROM queue AS q WHERE q.ns = :ns LIMIT :most) AS c;

-- name: set_progress
INSERT INTO progress (task, at, attempt, done, total, message, job, seq)
SELECT b.key, b.at, b.attempt, b.done, b.out_of, b.message, b.job, b.seq FROM (SELECT value ->> 0 AS key, value ->> 1 AS at, value ->> 2 AS attempt, value ->> 3 AS done, value ->> 4 AS out_of, value ->> 5 AS message, value ->> 6 AS job, value ->> 7 AS seq FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, done = excluded.done,
    total = excluded.total, message = excluded.message, job = excluded.job, seq = excluded.seq;

-- name: progress_of
-- row: TaskProgress(at, attempt, done, total, message)
SELECT p.at, p.attempt, p.done, p.total, p.message
FROM progress AS p JOIN task AS t ON t.key = p.task JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: shares_of_tasks
-- row: TaskShareRow(id, state, attempts, reported_on, done, out_of)
SELECT CAST(t.id AS text) AS id, t.state, t.attempts,
    (SELECT p.attempt FROM progress AS p WHERE p.task = t.key) AS reported_on,
    (SELECT p.done FROM progress AS p WHERE p.task = t.key) AS done,
    (SELECT p.total FROM progress AS p WHERE p.task = t.key) AS out_of
FROM task AS t JOIN namespace AS n ON n.key = t.ns
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace;

-- name: shares_of_stages
-- row: StageShareRow(flow_id, flow_state, key, state, total, open, succeeded)
SELECT CAST(f.id AS text) AS flow_id, f.state AS flow_state, s.key, s.state, s.total, s.open, s.succeeded
FROM flow AS f JOIN namespace AS n ON n.key = f.ns LEFT JOIN stage AS s ON s.job = f.key
WHERE f.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: set_checkpoint
INSERT INTO checkpoint (task, at, attempt, body)
SELECT b.key, b.at, b.attempt, b.body FROM (SELECT value ->> 0 AS key, value ->> 1 AS at, value ->> 2 AS attempt, value ->> 3 AS body FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, body = excluded.body;

-- name: copy_checkpoints
INSERT INTO checkpoint (task, at, attempt, body)
SELECT b.key, c.at, 0, c.body FROM checkpoint AS c JOIN (SELECT value ->> 0 AS key, value ->> 1 AS task FROM json_each(:batch)) AS b ON c.task = b.task
WHERE EXISTS (SELECT 1 FROM task AS o WHERE o.key = c.task AND o.state <> :succeeded);

-- name: checkpoint_of
SELECT c.body
FROM checkpoint AS c JOIN task AS t ON t.key = c.task JOIN namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: prune_progress
DELETE FROM progress WHERE task IN (SELECT value FROM json_each(:keys));

-- name: prune_checkpoints
DELETE FROM checkpoint WHERE task IN (SELECT value FROM json_each(:keys));

-- name: log_and_progress
-- row: LogAndProgressRow(key, last_line, progress_at, done)
SELECT t.key, (SELECT max(l.cursor) FROM log AS l WHERE l.task = t.key) AS last_line,
    (SELECT p.at FROM progress AS p WHERE p.task = t.key) AS progress_at,
    (SELECT p.done FROM progress AS p WHERE p.task = t.key) AS done
FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys))
UNION ALL
SELECT f.key, (SELECT max(l.seq) FROM log AS l WHERE l.job = f.key),
    (SELECT max(p.seq) FROM progress AS p WHERE p.job = f.key), NULL
FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:keys));

-- name: redacting_policies
SELECT key, body FROM policy WHERE replace(body, :mark, '') <> body;

-- name: redacting_kinds
SELECT DISTINCT k.name
FROM dead_letter AS d JOIN task AS t ON t.key = d.task JOIN kind AS k ON k.key = t.kind
LEFT JOIN flow AS f ON f.key = t.job LEFT JOIN kind AS n ON n.key = f.kind
WHERE k.name IN (SELECT value FROM json_each(:kinds)) AND (t.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies))
    OR f.policy IN (SELECT value FROM json_each(:policies)) OR n.policy IN (SELECT value FROM json_each(:policies)));

-- name: origins_of_flows
WITH RECURSIVE chain (job, origin) AS (
    SELECT f.key, f.key FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:jobs))
    UNION
    SELECT c.job, CASE way.number WHEN 1 THEN f.retry_of ELSE f.compensates END
    FROM chain AS c JOIN flow AS f ON f.key = c.origin
        JOIN (SELECT 1 AS number UNION ALL SELECT 2) AS way
        ON CASE way.number WHEN 1 THEN f.retry_of ELSE f.compensates END IS NOT NULL
)
SELECT c.job, f.key FROM chain AS c LEFT JOIN flow AS f ON f.key = c.origin WHERE c.origin <> c.job;

-- name: redacting_policy_of_flow
SELECT f.policy FROM flow AS f WHERE f.key = :job AND f.policy IN (SELECT value FROM json_each(:policies))
UNION ALL
SELECT k.policy FROM flow AS f JOIN kind AS k ON k.key = f.kind
WHERE f.key = :job AND k.policy IN (SELECT value FROM json_each(:policies))
UNION ALL
SELECT CASE WHEN t.policy IN (SELECT value FROM json_each(:policies)) THEN t.policy ELSE k.policy END
FROM stage AS s JOIN task AS t ON t.stage = s.key JOIN kind AS k ON k.key = t.kind
WHERE s.job = :job AND (t.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies)))
LIMIT 1;

-- name: redacting_flows
-- row: RedactingFlowRow(key, policy, kind_policy)
SELECT f.key, f.policy, k.policy AS kind_policy
FROM flow AS f JOIN kind AS k ON k.key = f.kind
WHERE f.key IN (SELECT value FROM json_each(:jobs)) AND (f.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies)));

-- name: redacted_tasks
-- row: RedactedTaskRow(job, id, policy, kind_policy, payload, input, result, checkpoint)
SELECT t.job, CAST(t.id AS text) AS id, t.policy, k.policy AS kind_policy, t.payload, t.input, t.result,
    c.body AS checkpoint
FROM task AS t JOIN kind AS k ON k.key = t.kind LEFT JOIN checkpoint AS c ON c.task = t.key
WHERE t.key IN (SELECT value FROM json_each(:jobs)) AND (t.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies)))
UNION ALL
SELECT t.job, CAST(t.id AS text) AS id, t.policy, k.policy AS kind_policy, t.payload, t.input, t.result,
    c.body AS checkpoint
FROM stage AS s JOIN task AS t ON t.stage = s.key JOIN kind AS k ON k.key = t.kind
LEFT JOIN checkpoint AS c ON c.task = t.key
WHERE s.job IN (SELECT value FROM json_each(:jobs)) AND (t.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies)))
LIMIT :limit;

-- name: redacted_sizes
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
    + coalesce(octet_length(c.body), 0)
FROM task AS t JOIN kind AS k ON k.key = t.kind LEFT JOIN checkpoint AS c ON c.task = t.key
WHERE t.key IN (SELECT value FROM json_each(:jobs)) AND (t.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies)))
UNION ALL
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
    + coalesce(octet_length(c.body), 0)
FROM stage AS s JOIN task AS t ON t.stage = s.key JOIN kind AS k ON k.key = t.kind
LEFT JOIN checkpoint AS c ON c.task = t.key
WHERE s.job IN (SELECT value FROM json_each(:jobs)) AND (t.policy IN (SELECT value FROM json_each(:policies)) OR k.policy IN (SELECT value FROM json_each(:policies)))
LIMIT :limit;

-- name: flow_inputs
-- row: FlowInputRow(job, data, metadata, answer)
SELECT f.key AS job, f.data, f.metadata, NULL AS answer FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:jobs))
UNION ALL
SELECT s.job, s.data, s.metadata, s.answer FROM stage AS s WHERE s.job IN (SELECT value FROM json_each(:jobs))
UNION ALL
SELECT c.job, NULL, c.payload, NULL FROM context AS c WHERE c.job IN (SELECT value FROM json_each(:jobs))
LIMIT :limit;

-- name: flow_input_sizes
SELECT f.key, octet_length(f.data) + coalesce(octet_length(f.metadata), 0) FROM flow AS f WHERE f.key IN (SELECT value FROM json_each(:jobs))
UNION ALL
SELECT s.job, octet_length(s.data) + coalesce(octet_length(s.metadata), 0) + coalesce(octet_length(s.answer), 0)
FROM stage AS s WHERE s.job IN (SELECT value FROM json_each(:jobs))
UNION ALL
SELECT c.job, octet_length(c.payload) FROM context AS c WHERE c.job IN (SELECT value FROM json_each(:jobs))
LIMIT :limit;

-- name: kinds_of_ids
SELECT CAST(t.id AS text), k.name FROM task AS t JOIN kind AS k ON k.key = t.kind WHERE t.id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT CAST(f.id AS text), k.name FROM flow AS f JOIN kind AS k ON k.key = f.kind WHERE f.id IN (SELECT value FROM json_each(:ids));

-- name: take_request
INSERT INTO request (caller, key, route, body_hash, began_at, expires_at)
VALUES (:caller, :key, :route, :body_hash, :at, :expires_at)
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :at OR (request.status IS NULL AND request.began_at <= :died_before
    AND request.route = excluded.route AND request.body_hash = excluded.body_hash)
RETURNING began_at;

-- name: request_of
-- row: RequestRow(route, body_hash, status, answer, began_at)
SELECT route, body_hash, status, answer, began_at FROM request WHERE caller = :caller AND key = :key;

-- name: renew_request
UPDATE request SET began_at = :at
WHERE caller = :caller AND key = :key AND began_at IN (SELECT value FROM json_each(:held_at)) AND status IS NULL
RETURNING began_at;

-- name: answer_request
UPDATE request SET status = :status, answer = :answer
WHERE caller = :caller AND key = :key AND began_at IN (SELECT value FROM json_each(:held_at)) AND status IS NULL;

-- name: drop_request
DELETE FROM request
WHERE caller = :caller AND key = :key AND began_at IN (SELECT value FROM json_each(:held_at)) AND status IS NULL;

-- name: delete_expired_requests
WITH old AS MATERIALIZED (
    SELECT caller, key FROM request WHERE expires_at <= :at ORDER BY expires_at LIMIT :limit
)
DELETE FROM request WHERE (caller, key) IN (SELECT caller, key FROM old);

-- name: reserve_request
INSERT INTO request (caller, key, route, body_hash, began_at, expires_at)
VALUES (:caller, :key, :route, :body_hash, :at, :expires_at)
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :at;

-- name: reserve_requests
INSERT INTO request (caller, key, route, body_hash, began_at, expires_at)
SELECT b.caller, b.key, b.route, b.body_hash, :now, b.expires_at FROM (SELECT value ->> 0 AS caller, value ->> 1 AS key, value ->> 2 AS route, value ->> 3 AS body_hash, value ->> 4 AS expires_at FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :now;

-- name: reserved_requests
-- row: ReservedRow(caller, key, body_hash)
SELECT r.caller, r.key, r.body_hash FROM request AS r JOIN (SELECT value ->> 0 AS caller, value ->> 1 AS key FROM json_each(:batch)) AS b ON r.caller = b.caller AND r.key = b.key;

-- name: reserved_request
SELECT body_hash FROM request WHERE caller = :caller AND key = :key;

-- name: due_schedules
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM schedule AS c JOIN namespace AS n ON n.key = c.ns WHERE c.look_at <= :now ORDER BY c.look_at, c.key LIMIT :limit;

-- name: next_look
SELECT min(look_at) FROM schedule WHERE look_at IS NOT NULL;

-- name: schedule_by_name
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM schedule AS c JOIN namespace AS n ON n.key = c.ns WHERE n.name = :namespace AND c.name = :schedule;

-- name: list_schedules
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM schedule AS c JOIN namespace AS n ON n.key = c.ns WHERE n.name = :namespace AND c.name > :after ORDER BY c.name LIMIT :limit;

-- name: schedules_of_app
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM schedule AS c JOIN namespace AS n ON n.key = c.ns WHERE c.ns = :ns AND c.app = :app;

-- name: count_schedules
SELECT count(*) FROM schedule WHERE ns = :ns;

-- name: lock_schedule
SELECT c.turn FROM schedule AS c WHERE c.key = :key AND c.turn = :turn;

-- name: lock_schedules
SELECT c.key FROM schedule AS c JOIN (SELECT value ->> 0 AS key, value ->> 1 AS turn FROM json_each(:batch)) AS b ON c.key = b.key AND c.turn = b.turn ORDER BY c.key;

-- name: wait_for_schedule
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM schedule AS c JOIN namespace AS n ON n.key = c.ns WHERE c.ns = :ns AND c.name = :schedule;

-- name: insert_schedule
INSERT INTO schedule (key, ns, name, body, version, source, app, turn, next_fire_at, look_at, failures, fires,
    kept_from, seen_at, version_seen_at, created_at, created_by, updated_at)
VALUES (:key, :ns, :schedule, :body, :version, :source, :app, 1, :next_fire_at, :look_at, 0, 0, 0, :seen_at, :seen_at, :at, :by,
    :at)
ON CONFLICT (ns, name) DO NOTHING RETURNING 1;

-- name: define_schedule
UPDATE schedule SET body = :body, version = :version, next_fire_at = :next_fire_at, look_at = :look_at,
    version_seen_at = :seen_at, updated_at = :at, turn = turn + 1
WHERE key = :key;

-- name: see_schedule
UPDATE schedule SET seen_at = :at, version_seen_at = CASE WHEN version = :version THEN :at ELSE version_seen_at END,
    app = :app, orphaned_at = NULL, look_at = :look_at, turn = turn + CASE WHEN orphaned_at IS NULL THEN 0 ELSE 1 END
WHERE key = :key;

-- name: orphan_schedule
UPDATE schedule SET orphaned_at = :at, look_at = NULL, turn = turn + 1 WHERE key = :key;

-- name: pause_schedule
UPDATE schedule SET paused_at = :at, paused_by = :by, paused_why = :why, next_fire_at = NULL, look_at = NULL,
    failures = :failures, updated_at = :at, turn = turn + 1
WHERE key = :key;

-- name: resume_schedule
UPDATE schedule SET paused_at = NULL, paused_by = NULL, paused_why = NULL, failures = 0,
    next_fire_at = :next_fire_at, look_at = :look_at, updated_at = :at, turn = turn + 1
WHERE key = :key;

-- name: advance_schedules
UPDATE schedule SET next_fire_at = b.next_fire_at, last_fire_at = coalesce(b.last_fire_at, schedule.last_fire_at),
    look_at = b.look_at, failures = b.failures, fires = schedule.fires + b.fires, turn = schedule.turn + 1 FROM (SELECT value ->> 0 AS next_fire_at, value ->> 1 AS last_fire_at, value ->> 2 AS look_at, value ->> 3 AS failures, value ->> 4 AS fires, value ->> 5 AS key FROM json_each(:batch)) AS b
WHERE schedule.key = b.key;

-- name: note_triggered
UPDATE schedule SET turn = turn + 1 WHERE key = :key;

-- name: postpone_schedule
UPDATE schedule SET look_at = :look_at WHERE key = :key AND turn = :turn AND look_at IS NOT NULL;

-- name: forget_fires
DELETE FROM schedule_fire WHERE schedule = :key AND open = 0 AND fire_at <= (
    SELECT o.fire_at FROM schedule_fire AS o WHERE o.schedule = :key ORDER BY o.fire_at DESC LIMIT 1 OFFSET :keep)
RETURNING fire_at;

-- name: keep_fires_from
UPDATE schedule SET kept_from = :kept_from WHERE key = :key;

-- name: delete_schedule
DELETE FROM schedule WHERE key = :key;

-- name: delete_fires
DELETE FROM schedule_fire WHERE schedule = :key;

-- name: insert_fires
INSERT INTO schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, why, missed, open)
SELECT b.schedule, b.fire_at, b.manual, b.outcome, NULL, b.actor, b.at, b.why, b.missed, b.open FROM (SELECT value ->> 0 AS schedule, value ->> 1 AS fire_at, value ->> 2 AS manual, value ->> 3 AS outcome, value ->> 4 AS actor, value ->> 5 AS at, value ->> 6 AS why, value ->> 7 AS missed, value ->> 8 AS open FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (schedule, fire_at, manual) DO NOTHING RETURNING fire_at;

-- name: insert_or_take_fires
INSERT INTO schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, why, missed, open)
SELECT b.schedule, b.fire_at, b.manual, b.outcome, NULL, b.actor, b.at, b.why, b.missed, b.open FROM (SELECT value ->> 0 AS schedule, value ->> 1 AS fire_at, value ->> 2 AS manual, value ->> 3 AS outcome, value ->> 4 AS actor, value ->> 5 AS at, value ->> 6 AS why, value ->> 7 AS missed, value ->> 8 AS open FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (schedule, fire_at, manual) DO UPDATE SET outcome = excluded.outcome, actor = excluded.actor, at = excluded.at,
    why = excluded.why, missed = excluded.missed, open = excluded.open
WHERE schedule_fire.job_id IS NULL
RETURNING fire_at;

-- name: set_fires
UPDATE schedule_fire SET outcome = b.outcome, job_id = b.job_id, why = b.why, open = b.open FROM (SELECT value ->> 0 AS outcome, value ->> 1 AS job_id, value ->> 2 AS why, value ->> 3 AS open, value ->> 4 AS schedule, value ->> 5 AS fire_at, value ->> 6 AS manual FROM json_each(:batch)) AS b
WHERE schedule_fire.schedule = b.schedule AND schedule_fire.fire_at = b.fire_at AND schedule_fire.manual = b.manual;

-- name: close_fires
UPDATE schedule_fire SET open = 0 FROM (SELECT value ->> 0 AS schedule, value ->> 1 AS fire_at, value ->> 2 AS manual FROM json_each(:batch)) AS b
WHERE schedule_fire.schedule = b.schedule AND schedule_fire.fire_at = b.fire_at AND schedule_fire.manual = b.manual;

-- name: open_fires
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM schedule_fire AS x LEFT JOIN task AS t ON t.id = x.job_id
    LEFT JOIN flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.schedule = :key AND x.open = 1 ORDER BY x.fire_at, x.manual LIMIT :limit;

-- name: open_fires_of_all
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM schedule_fire AS x LEFT JOIN task AS t ON t.id = x.job_id
    LEFT JOIN flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.open = 1 AND (x.schedule, x.fire_at, x.manual) IN (
    SELECT o.schedule, o.fire_at, o.manual FROM (
        SELECT y.schedule, y.fire_at, y.manual, row_number() OVER (PARTITION BY y.schedule ORDER BY y.fire_at, y.manual) AS place
        FROM schedule_fire AS y WHERE y.open = 1 AND y.schedule IN (SELECT value FROM json_each(:keys))) AS o
    WHERE o.place <= :limit)
ORDER BY x.schedule, x.fire_at, x.manual;

-- name: last_fires
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM schedule_fire AS x LEFT JOIN task AS t ON t.id = x.job_id
    LEFT JOIN flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.schedule = :key ORDER BY x.fire_at DESC, x.manual DESC LIMIT :limit;

-- name: newest_fires
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM schedule_fire AS x LEFT JOIN task AS t ON t.id = x.job_id
    LEFT JOIN flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL JOIN schedule AS c ON c.key = x.schedule AND c.last_fire_at = x.fire_at AND x.manual = 0
WHERE c.key IN (SELECT value FROM json_each(:keys));

-- name: fire_there
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM schedule_fire AS x LEFT JOIN task AS t ON t.id = x.job_id
    LEFT JOIN flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.schedule = :key AND x.fire_at = :fire_at AND x.manual = :manual;

-- name: fired_between
SELECT x.fire_at FROM schedule_fire AS x
WHERE x.schedule = :key AND x.manual = 0 AND x.fire_at >= :since AND x.fire_at <= :until
    AND (x.job_id IS NOT NULL OR x.outcome = :waiting);

-- name: statistic_cursor
-- row: StatisticCursorRow(since, upto, counted_at, removed_at)
SELECT c.since, c.upto, c.counted_at, c.removed_at FROM statistic_cursor AS c;

-- name: end_of_count
SELECT max(w.id + w.size - 1) FROM (
    SELECT eb.id, eb.size FROM event_batch AS eb WHERE eb.id > :after ORDER BY eb.id LIMIT :scan
) AS w WHERE w.id <= :upto;

-- name: count_log
-- row: LogCountRow(ns, at, type, number, batches)
SELECT eb.ns, eb.ts / 60000000 * 60000000 AS at, eb.type, CAST(sum(eb.size) AS bigint) AS number, count(*) AS batches
FROM event_batch AS eb
WHERE eb.id > :after AND eb.id <= :upto AND NOT (eb.ns IS NULL OR instr(coalesce(eb.varied, ''), '"ts":[') > 0) GROUP BY 1, 2, 3;

-- name: varied_log
-- row: VariedLogRow(size, ts, ns, type, varied)
SELECT eb.size, eb.ts, eb.ns, eb.type, eb.varied FROM event_batch AS eb
WHERE eb.id > :after AND eb.id <= :upto AND (eb.ns IS NULL OR instr(coalesce(eb.varied, ''), '"ts":[') > 0);

-- name: sample_ended
-- row: EndedBatchRow(ns, size, entity, varied)
SELECT e.ns, e.size, e.entity, e.varied FROM (
    SELECT eb.ns, eb.size, eb.entity, CASE WHEN eb.entity IS NULL OR eb.ns IS NULL THEN eb.varied END AS varied,
        row_number() OVER (PARTITION BY eb.ns ORDER BY eb.id) AS nth
    FROM event_batch AS eb WHERE eb.id > :after AND eb.id <= :upto AND eb.type IN (SELECT value FROM json_each(:ends))
) AS e
WHERE (e.nth - 1) / :step * :step = e.nth - 1;

-- name: times_of_tasks
-- row: TaskTimesRow(key, ns, claimable_at, started_at, finished_at)
SELECT t.key, t.ns, max(t.run_at, coalesce((SELECT s.opened_at FROM stage AS s WHERE s.key = t.stage), 0))
    AS claimable_at, t.started_at, t.finished_at
FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys)) AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL;

-- name: add_statistics
INSERT INTO statistic (ns, span, at, type, bucket, number)
SELECT b.ns, b.span, b.at, b.type, b.bucket, b.number FROM (SELECT value ->> 0 AS ns, value ->> 1 AS span, value ->> 2 AS at, value ->> 3 AS type, value ->> 4 AS bucket, value ->> 5 AS number FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (ns, span, at, type, bucket) DO UPDATE SET number = statistic.number + excluded.number;

-- name: move_statistic_cursor
UPDATE statistic_cursor SET upto = :upto, counted_at = :at WHERE upto = :after RETURNING upto;

-- name: note_removed
UPDATE statistic_cursor SET removed_at = :at WHERE removed_at < :at;

-- name: prune_statistics
WITH old AS MATERIALIZED (
    SELECT t.ns, t.span, t.at, t.type, t.bucket FROM namespace AS n CROSS JOIN statistic AS t
    WHERE t.ns = n.key AND t.span = :span AND t.at < :before LIMIT :limit
)
DELETE FROM statistic WHERE (ns, span, at, type, bucket) IN (SELECT o.ns, o.span, o.at, o.type, o.bucket FROM old AS o)
RETURNING number;

-- name: statistics
-- row: StatisticRow(slot, type, bucket, number)
SELECT CAST(-1 AS bigint) AS slot, '' AS type, 0 AS bucket, c.upto AS number FROM statistic_cursor AS c
UNION ALL
SELECT (s.at - :since) / :width, s.type, s.bucket, CAST(sum(s.number) AS bigint)
FROM statistic AS s WHERE s.ns = :ns AND s.span = :span AND s.at >= :since AND s.at < :until GROUP BY 1, 2, 3;

-- name: keys_of
-- row: KeyRow(id, key, job)
SELECT CAST(id AS text) AS id, key, job FROM task WHERE id IN (SELECT value FROM json_each(:ids));

-- name: lock_tasks
-- row: TaskRow(key, ns, state, version, fence, owner, lease, lease_expires_at, expiry_counts, attempts, max_attempts, spared, queue, kind, policy, priority, run_at, cancel_at, job, stage, unmet, control, updated_at, lane, slots, seen_at)
SELECT l.*, :now AS seen_at FROM (
    SELECT task.key, task.ns, task.state, task.version, task.fence, task.owner, task.lease,
        lease.expires_at AS lease_expires_at, lease.expiry_counts, task.attempts, task.max_attempts, task.spared,
        task.queue, task.kind, task.policy, task.priority, task.run_at, task.cancel_at, task.job, task.stage,
        task.unmet, task.control, task.updated_at, task.lane, task.slots
    FROM task LEFT JOIN lease ON lease.key = task.lease
    WHERE task.key IN (SELECT value FROM json_each(:keys))
    ORDER BY task.key
) AS l;

-- name: claim_any
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, max(:now, t.run_at, t.updated_at) AS seen_at FROM ready AS r JOIN task AS t ON t.key = r.task WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
    AND TRUE
ORDER BY r.queue, r.rank, r.task LIMIT :limit;

-- name: claim_head
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, max(:now, t.run_at, t.updated_at) AS seen_at
FROM (
    SELECT r.rank, r.task FROM ready AS r
    WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
    AND TRUE
    ORDER BY r.queue, r.rank, r.task LIMIT :limit
) AS r JOIN task AS t ON t.key = r.task;

-- name: claim_kind
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, max(:now, t.run_at, t.updated_at) AS seen_at FROM ready AS r JOIN task AS t ON t.key = r.task WHERE r.queue = :queue AND r.kind = :kind AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
    AND TRUE
ORDER BY r.queue, r.kind, r.rank, r.task LIMIT :limit;

-- name: texts_of_tasks
-- row: TaskTextsRow(key, payload, input)
SELECT t.key, t.payload, t.input FROM task AS t WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: heads_of_queue
SELECT r.task FROM ready AS r WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT :limit;

-- name: head_of_queue
SELECT r.rank, r.task FROM ready AS r WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT 1;

-- name: heads_of_kind
SELECT r.rank, r.task FROM ready AS r
WHERE r.queue = :queue AND r.kind = :kind
ORDER BY r.queue, r.kind, r.rank, r.task LIMIT :limit;

-- name: insert_task
INSERT INTO task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, events) SELECT b.key, b.id, b.job, b.ns, b.queue, b.kind, b.policy, b.version, b.fence, b.priority, b.attempts, b.max_attempts, b.spared, b.created_at, b.updated_at,
    b.run_at, b.state, b.retry_of, b.idempotency_key, b.correlation_id, b.trace, b.lane, b.payload, CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS key, value ->> 1 AS id, value ->> 2 AS job, value ->> 3 AS ns, value ->> 4 AS queue, value ->> 5 AS kind, value ->> 6 AS policy, value ->> 7 AS version, value ->> 8 AS fence, value ->> 9 AS priority, value ->> 10 AS attempts, value ->> 11 AS max_attempts, value ->> 12 AS spared, value ->> 13 AS created_at, value ->> 14 AS updated_at, value ->> 15 AS run_at, value ->> 16 AS state, value ->> 17 AS retry_of, value ->> 18 AS idempotency_key, value ->> 19 AS correlation_id, value ->> 20 AS trace, value ->> 21 AS lane, value ->> 22 AS payload, key AS place FROM json_each(:batch)) AS b;

-- name: insert_member
INSERT INTO task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, stage, name, unmet, control, context, spawned_by, events)
SELECT b.key, b.id, b.job, b.ns, b.queue, b.kind, b.policy, b.version, b.fence, b.priority, b.attempts, b.max_attempts, b.spared, b.created_at, b.updated_at,
    b.run_at, b.state, b.retry_of, b.idempotency_key, b.correlation_id, b.trace, b.lane, b.payload, b.stage, b.name, b.unmet, b.control, b.context, b.spawned_by, CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS key, value ->> 1 AS id, value ->> 2 AS job, value ->> 3 AS ns, value ->> 4 AS queue, value ->> 5 AS kind, value ->> 6 AS policy, value ->> 7 AS version, value ->> 8 AS fence, value ->> 9 AS priority, value ->> 10 AS attempts, value ->> 11 AS max_attempts, value ->> 12 AS spared, value ->> 13 AS created_at, value ->> 14 AS updated_at, value ->> 15 AS run_at, value ->> 16 AS state, value ->> 17 AS retry_of, value ->> 18 AS idempotency_key, value ->> 19 AS correlation_id, value ->> 20 AS trace, value ->> 21 AS lane, value ->> 22 AS payload, value ->> 23 AS stage, value ->> 24 AS name, value ->> 25 AS unmet, value ->> 26 AS control, value ->> 27 AS context, value ->> 28 AS spawned_by, key AS place FROM json_each(:batch)) AS b;

-- name: insert_ready
INSERT INTO ready (queue, rank, task, kind) SELECT b.queue, b.rank, b.key, b.kind FROM (SELECT value ->> 0 AS queue, value ->> 1 AS rank, value ->> 2 AS key, value ->> 3 AS kind FROM json_each(:batch)) AS b;

-- name: delete_ready
DELETE FROM ready WHERE (ready.queue, ready.rank, ready.task, ready.kind) IN (SELECT b.queue, b.rank, b.key, b.kind FROM (SELECT value ->> 0 AS queue, value ->> 1 AS rank, value ->> 2 AS key, value ->> 3 AS kind FROM json_each(:batch)) AS b);

-- name: insert_due
INSERT INTO due (at, task, what, fence) SELECT b.at, b.key, b.what, b.fence FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS what, value ->> 3 AS fence FROM json_each(:batch)) AS b WHERE true
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence;

-- name: set_priority
UPDATE task SET priority = b.priority FROM (SELECT value ->> 0 AS priority, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: set_metadata
UPDATE task SET metadata = b.metadata FROM (SELECT value ->> 0 AS metadata, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: describe_tasks
UPDATE task SET metadata = b.metadata, tracestate = b.tracestate FROM (SELECT value ->> 0 AS metadata, value ->> 1 AS tracestate, value ->> 2 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: set_run_at
UPDATE task SET run_at = b.run_at FROM (SELECT value ->> 0 AS run_at, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: replace_payload
UPDATE task SET payload = b.payload, run_at = b.run_at, lane = b.lane FROM (SELECT value ->> 0 AS payload, value ->> 1 AS run_at, value ->> 2 AS lane, value ->> 3 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: set_cancel_at
UPDATE task SET cancel_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key FROM json_each(:batch)) AS b WHERE task.key = b.key;

-- name: outcomes_of_attempt
-- row: OutcomeRow(type, state, fence, payload)
SELECT eb.type, eb.state, coalesce(eb.fence, json_extract(eb.varied, '$.fence[' || (i.value - eb.id) || ']')) AS fence, coalesce(eb.payload, json_extract(eb.varied, '$.payload[' || (i.value - eb.id) || ']')) AS payload
FROM task AS t CROSS JOIN json_each('[' || (coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM event_page AS p WHERE p.entity = t.key), '') || t.events) || ']') AS i JOIN event_batch AS eb ON eb.id = (SELECT max(x.id) FROM event_batch AS x WHERE x.id <= i.value)
WHERE t.key = :key AND coalesce(eb.fence, json_extract(eb.varied, '$.fence[' || (i.value - eb.id) || ']')) IN (:fence, :fence + 1) ORDER BY i.value;

-- name: task_by_id
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.id = :id AND n.name = :namespace;

-- name: task_by_key
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.key = :key;

-- name: tasks_by_ids
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.id IN (SELECT value FROM json_each(:ids)) AND n.name = :namespace;

-- name: tasks_by_keys
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.key IN (SELECT value FROM json_each(:keys));

-- name: tasks_newest
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE n.name = :namespace AND t.key < :before ORDER BY t.key DESC LIMIT :limit;

-- name: take_ready
DELETE FROM ready WHERE (ready.queue, ready.rank, ready.task, ready.kind) IN (SELECT b.queue, b.rank, b.key, b.kind FROM (SELECT value ->> 0 AS queue, value ->> 1 AS rank, value ->> 2 AS key, value ->> 3 AS kind FROM json_each(:batch)) AS b)
RETURNING ready.task;

-- name: promote_ready
INSERT INTO ready (queue, rank, task, kind) SELECT b.queue, b.rank, b.key, b.kind FROM (SELECT value ->> 0 AS queue, value ->> 1 AS rank, value ->> 2 AS key, value ->> 3 AS kind FROM json_each(:batch)) AS b WHERE true
ON CONFLICT DO NOTHING;

-- name: pending_tasks
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.key IN (
    SELECT r.task FROM ready AS r WHERE r.queue IN (
        SELECT w.key FROM queue AS w JOIN namespace AS m ON m.key = w.ns WHERE m.name = :namespace
        UNION ALL SELECT -v.key FROM lane AS v JOIN namespace AS m ON m.key = v.ns WHERE m.name = :namespace)
    UNION SELECT d.task FROM due AS d WHERE d.what = :run AND d.at <= :ready_by
) AND n.name = :namespace AND t.control = 0 AND t.state IN ('queued') AND t.run_at <= :ready_by
    AND (CAST(:any_kind AS integer) = 1 OR k.name IN (SELECT value FROM json_each(:kinds))) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND ((SELECT count(*) FROM ready AS y
            WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) > 0
        OR (SELECT count(*) FROM due AS z
            WHERE z.at = t.run_at AND z.task = t.key AND z.what = :run AND z.fence = t.fence) > 0
        AND (t.stage IS NULL OR t.unmet = 0 AND (
            SELECT count(*) FROM stage AS g JOIN flow AS h ON h.key = g.job
            WHERE g.key = t.stage AND g.ending IS NULL AND h.ending IS NULL AND t.key <= g.opened_to
                AND g.state IN (SELECT value FROM json_each(:going_stages)) AND h.state IN (SELECT value FROM json_each(:going_flows))) > 0)) ORDER BY t.priority DESC, t.key LIMIT :limit OFFSET :offset;

-- name: pending_tasks_of_flow
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_group_object(a.name, a.value ORDER BY a.name) AS text) FROM label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM task AS t JOIN namespace AS n ON n.key = t.ns JOIN queue AS q ON q.key = t.queue
    JOIN kind AS k ON k.key = t.kind JOIN policy AS p ON p.key = t.policy
    LEFT JOIN lease AS l ON l.key = t.lease WHERE t.stage IN (SELECT value FROM json_each(:stages)) AND n.name = :namespace AND t.control = 0 AND t.state IN ('queued') AND t.run_at <= :ready_by
    AND (CAST(:any_kind AS integer) = 1 OR k.name IN (SELECT value FROM json_each(:kinds))) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND ((SELECT count(*) FROM ready AS y
            WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) > 0
        OR (SELECT count(*) FROM due AS z
            WHERE z.at = t.run_at AND z.task = t.key AND z.what = :run AND z.fence = t.fence) > 0
        AND (t.stage IS NULL OR t.unmet = 0 AND (
            SELECT count(*) FROM stage AS g JOIN flow AS h ON h.key = g.job
            WHERE g.key = t.stage AND g.ending IS NULL AND h.ending IS NULL AND t.key <= g.opened_to
                AND g.state IN (SELECT value FROM json_each(:going_stages)) AND h.state IN (SELECT value FROM json_each(:going_flows))) > 0)) ORDER BY t.priority DESC, t.key LIMIT :limit OFFSET :offset;

-- name: add_token
INSERT INTO token (id, hash, name, namespace, scopes, member_of, created_at, expires_at)
VALUES (:id, :hash, :name, :namespace, :scopes, :member_of, :created_at, :expires_at)
ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE token.hash = excluded.hash;

-- name: tokens
-- row: TokenRow(id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, seen_at)
SELECT id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, :now AS seen_at
FROM token WHERE CAST(:of_namespace AS text) IS NULL OR namespace = :of_namespace
ORDER BY created_at DESC, id LIMIT :limit;

-- name: tokens_by_id
-- row: TokenRow(id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, seen_at)
SELECT id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, :now AS seen_at
FROM token WHERE id IN (SELECT value FROM json_each(:ids));

-- name: any_token
SELECT 1 FROM token LIMIT 1;

-- name: revoke_token
UPDATE token SET revoked_at = :at WHERE id = :id AND revoked_at IS NULL RETURNING id;

-- name: use_token
UPDATE token SET used_at = :at WHERE id = :id AND (used_at IS NULL OR used_at <= :before);

-- name: insert_waiting
INSERT INTO waiting (key, ns, state, at) SELECT b.key, b.ns, b.state, b.at FROM (SELECT value ->> 0 AS key, value ->> 1 AS ns, value ->> 2 AS state, value ->> 3 AS at FROM json_each(:batch)) AS b;

-- name: delete_waiting
DELETE FROM waiting WHERE key IN (SELECT value FROM json_each(:keys));

-- name: count_waiting
SELECT count(*), min(w.at) FROM (
    SELECT x.at FROM waiting AS x WHERE x.ns = :ns AND x.state = :state ORDER BY x.at LIMIT :most
) AS w;

-- name: first_waiting_tasks
-- row: WaitingItem(id, job_id, name, at)
SELECT CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name, w.at
FROM (
    SELECT x.key, x.at FROM waiting AS x WHERE x.ns = :ns AND x.state = :state ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN task AS t ON t.key = w.key JOIN kind AS k ON k.key = t.kind ORDER BY w.at, w.key;

-- name: count_approvals
-- row: ApprovalCountRow(waiting, open, oldest_at)
SELECT count(*) AS waiting, count(w.open_at) AS open, min(w.open_at) AS oldest_at FROM (
    SELECT CASE WHEN x.key = (SELECT f.current FROM stage AS s JOIN flow AS f ON f.key = s.job WHERE s.key = x.key) THEN x.at END AS open_at FROM (SELECT v.key, v.at FROM waiting AS v WHERE v.ns = :ns AND v.state = :state ORDER BY v.at, v.key LIMIT :most) AS x
) AS w;

-- name: first_approvals
-- row: WaitingItem(id, job_id, name, at)
SELECT CAST(s.id AS text) AS id, CAST(f.id AS text) AS job_id, s.name, w.at
FROM (
    SELECT x.key, x.at FROM (SELECT v.key, v.at FROM waiting AS v WHERE v.ns = :ns AND v.state = :state ORDER BY v.at, v.key LIMIT :most) AS x WHERE x.key = (SELECT f.current FROM stage AS s JOIN flow AS f ON f.key = s.job WHERE s.key = x.key) ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN stage AS s ON s.key = w.key JOIN flow AS f ON f.key = s.job ORDER BY w.at, w.key;

-- name: waiting_tasks_after
-- row: WaitingRow(key, id, job_id, kind, name, at, is_next)
SELECT w.key, CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name AS kind, t.name, w.at, 1 AS is_next
FROM (
    SELECT x.key, x.at FROM waiting AS x
    WHERE x.ns = :ns AND x.state = :state AND (x.at, x.key) > (:since, :after) ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN task AS t ON t.key = w.key JOIN kind AS k ON k.key = t.kind ORDER BY w.at, w.key;

-- name: waiting_stages_after
-- row: WaitingRow(key, id, job_id, kind, name, at, is_next)
SELECT x.key, (SELECT CAST(s.id AS text) FROM stage AS s WHERE s.key = x.key) AS id,
    (SELECT CAST(f.id AS text) FROM stage AS s JOIN flow AS f ON f.key = s.job WHERE s.key = x.key) AS job_id,
    (SELECT (SELECT k.name FROM kind AS k WHERE k.key = f.kind) FROM stage AS s JOIN flow AS f ON f.key = s.job WHERE s.key = x.key) AS kind,
    (SELECT s.name FROM stage AS s WHERE s.key = x.key) AS name, x.at,
    CASE WHEN x.key = (SELECT f.current FROM stage AS s JOIN flow AS f ON f.key = s.job WHERE s.key = x.key) THEN 1 ELSE 0 END AS is_next
FROM (
    SELECT v.key, v.at FROM waiting AS v
    WHERE v.ns = :ns AND v.state = :state AND (v.at, v.key) > (:since, :after) ORDER BY v.at, v.key LIMIT :limit
) AS x ORDER BY x.at, x.key;

-- name: count_open_letters
SELECT count(*), min(o.created_at) FROM (
    SELECT d.created_at FROM dead_letter AS d WHERE d.ns = :ns AND d.successor IS NULL ORDER BY d.task LIMIT :most
) AS o;

-- name: first_open_letters
-- row: WaitingItem(id, job_id, name, at)
SELECT CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name, o.created_at AS at
FROM (
    SELECT d.task, d.created_at FROM dead_letter AS d WHERE d.ns = :ns AND d.successor IS NULL
    ORDER BY d.task LIMIT :limit
) AS o JOIN task AS t ON t.key = o.task JOIN kind AS k ON k.key = t.kind ORDER BY o.task;

-- name: worker_beat
INSERT INTO worker (ns, name, host, pid, version, started_at, beat_at, expires_at, concurrency, running, claimed,
    queues, kinds, state)
VALUES (:ns, :name, :host, :pid, :version, :at, :at, :expires_at, :concurrency, :at_work, :claimed, :queues, :kinds,
    :state)
ON CONFLICT (ns, name) DO UPDATE SET host = excluded.host, pid = excluded.pid, version = excluded.version,
    started_at = CASE WHEN worker.host = excluded.host AND worker.pid = excluded.pid
        AND worker.expires_at > worker.beat_at THEN worker.started_at ELSE excluded.started_at END,
    beat_at = max(worker.beat_at, excluded.beat_at), expires_at = excluded.expires_at,
    concurrency = excluded.concurrency, running = excluded.running, claimed = excluded.claimed,
    queues = excluded.queues, kinds = excluded.kinds, state = excluded.state;

-- name: delete_expired_workers
DELETE FROM worker WHERE (ns, name) IN (
    SELECT ns, name FROM worker WHERE expires_at < :before
);

-- name: worker_leave
UPDATE worker SET beat_at = max(beat_at, :at), expires_at = max(beat_at, :at), running = 0, claimed = 0
WHERE ns = :ns AND name = :name AND expires_at > beat_at;

-- name: workers
-- row: WorkerRow(name, host, pid, version, started_at, beat_at, expires_at, concurrency, running, claimed, queues, kinds, state, seen_at)
SELECT w.name, w.host, w.pid, w.version, w.started_at, w.beat_at, w.expires_at, w.concurrency, w.running, w.claimed,
    w.queues, w.kinds, w.state, :now AS seen_at
FROM worker AS w JOIN namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > w.beat_at ORDER BY w.started_at DESC, w.name LIMIT :limit;

-- move: claim
UPDATE task SET state = 'assigned', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), attempts = task.attempts + 1, owner = b.worker, lease = b.lease FROM (SELECT value ->> 0 AS at, value ->> 1 AS worker, value ->> 2 AS lease, value ->> 3 AS key, value ->> 4 AS version, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued');

-- move: claim, start
UPDATE task SET state = 'running', version = task.version + 2, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text) || ',' || CAST(:event + :size + b.place AS text), attempts = task.attempts + 1, owner = b.worker, lease = b.lease, started_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS worker, value ->> 2 AS lease, value ->> 3 AS key, value ->> 4 AS version, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued');

-- move: start
UPDATE task SET state = 'running', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), started_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned') AND task.fence = b.fence;

-- move: succeed
UPDATE task SET state = 'succeeded', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, result = b.result, error = NULL FROM (SELECT value ->> 0 AS at, value ->> 1 AS result, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('running') AND task.fence = b.fence;

-- move: start, succeed
UPDATE task SET state = 'succeeded', version = task.version + 2, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text) || ',' || CAST(:event + :size + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, result = b.result, error = NULL,
    started_at = b.began FROM (SELECT value ->> 0 AS at, value ->> 1 AS result, value ->> 2 AS began, value ->> 3 AS key, value ->> 4 AS version, value ->> 5 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned') AND task.fence = b.fence;

-- move: fail
UPDATE task SET state = 'failed', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS error, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, value ->> 5 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence;

-- move: retry
UPDATE task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, error = b.error, spared = 0 FROM (SELECT value ->> 0 AS at, value ->> 1 AS run_at, value ->> 2 AS error, value ->> 3 AS key, value ->> 4 AS version, value ->> 5 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('running') AND task.fence = b.fence;

-- move: release
UPDATE task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - 1, spared = 0 FROM (SELECT value ->> 0 AS at, value ->> 1 AS run_at, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, value ->> 5 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence;

-- move: expire
UPDATE task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - b.given_back, spared = b.spared FROM (SELECT value ->> 0 AS at, value ->> 1 AS run_at, value ->> 2 AS given_back, value ->> 3 AS spared, value ->> 4 AS key, value ->> 5 AS version, value ->> 6 AS was, value ->> 7 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence;

-- move: block
UPDATE task SET state = 'blocked', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - 1, held_by = b.held_by, held_why = b.held_why FROM (SELECT value ->> 0 AS at, value ->> 1 AS held_by, value ->> 2 AS held_why, value ->> 3 AS key, value ->> 4 AS version, value ->> 5 AS was, value ->> 6 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence;

-- move: wait_for_input
UPDATE task SET state = 'waiting_input', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - 1, held_by = b.held_by, held_why = b.held_why FROM (SELECT value ->> 0 AS at, value ->> 1 AS held_by, value ->> 2 AS held_why, value ->> 3 AS key, value ->> 4 AS version, value ->> 5 AS was, value ->> 6 AS fence, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence;

-- move: resume
UPDATE task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, held_by = NULL, held_why = NULL, spared = 0,
    input = coalesce(b.input, task.input) FROM (SELECT value ->> 0 AS at, value ->> 1 AS run_at, value ->> 2 AS input, value ->> 3 AS key, value ->> 4 AS version, value ->> 5 AS was, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('blocked', 'waiting_input') AND task.state = b.was;

-- move: cancel
UPDATE task SET state = 'cancelled', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, held_by = NULL, held_why = NULL FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input') AND task.state = b.was;

-- move: time_out
UPDATE task SET state = 'failed', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, held_by = NULL, held_why = NULL, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS error, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued', 'blocked', 'waiting_input') AND task.state = b.was;

-- move: dead_letter
UPDATE task SET state = 'dead_lettered', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS error, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued', 'assigned', 'running') AND task.state = b.was;

-- move: carry_over
UPDATE task SET state = 'succeeded', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, attempts = b.attempts,
    result = (SELECT o.result FROM task AS o WHERE o.key = b.carried_from) FROM (SELECT value ->> 0 AS at, value ->> 1 AS attempts, value ->> 2 AS carried_from, value ->> 3 AS key, value ->> 4 AS version, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued');

-- move: carry_over_failed
UPDATE task SET state = 'failed', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, attempts = b.attempts, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS attempts, value ->> 2 AS error, value ->> 3 AS key, value ->> 4 AS version, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued');

-- move: carry_over_dead
UPDATE task SET state = 'dead_lettered', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, attempts = b.attempts, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS attempts, value ->> 2 AS error, value ->> 3 AS key, value ->> 4 AS version, key AS place FROM json_each(:batch)) AS b WHERE task.key = b.key AND task.version = b.version AND task.state IN ('queued');

-- move: stage.open
UPDATE stage SET state = 'pending', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('created');

-- move: stage.wait
UPDATE stage SET state = 'waiting', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), approval = b.approval FROM (SELECT value ->> 0 AS at, value ->> 1 AS approval, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('created', 'pending', 'running') AND stage.state = b.was;

-- move: stage.approve
UPDATE stage SET state = 'pending', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), answer = b.answer FROM (SELECT value ->> 0 AS at, value ->> 1 AS answer, value ->> 2 AS key, value ->> 3 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('waiting');

-- move: stage.start
UPDATE stage SET state = 'running', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), started_at = coalesce(stage.started_at, b.at) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('pending');

-- move: stage.succeed
UPDATE stage SET state = 'succeeded', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, result = b.result FROM (SELECT value ->> 0 AS at, value ->> 1 AS result, value ->> 2 AS key, value ->> 3 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('running');

-- move: stage.end_partly
UPDATE stage SET state = 'partial', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, result = b.result, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS result, value ->> 2 AS error, value ->> 3 AS key, value ->> 4 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('running');

-- move: stage.fail
UPDATE stage SET state = 'failed', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, result = b.result, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS result, value ->> 2 AS error, value ->> 3 AS key, value ->> 4 AS version, value ->> 5 AS was, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('running', 'waiting') AND stage.state = b.was;

-- move: stage.reject
UPDATE stage SET state = 'failed', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS error, value ->> 2 AS key, value ->> 3 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('waiting');

-- move: stage.skip
UPDATE stage SET state = 'skipped', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('created', 'waiting') AND stage.state = b.was;

-- move: stage.carry_over
UPDATE stage SET state = 'succeeded', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('created');

-- move: stage.cancel
UPDATE stage SET state = 'cancelled', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, result = b.result FROM (SELECT value ->> 0 AS at, value ->> 1 AS result, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, key AS place FROM json_each(:batch)) AS b WHERE stage.key = b.key AND stage.version = b.version AND stage.state IN ('created', 'waiting', 'pending', 'running') AND stage.state = b.was;

-- move: flow.open
UPDATE flow SET state = 'pending', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('created');

-- move: flow.start
UPDATE flow SET state = 'running', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text), started_at = coalesce(flow.started_at, b.at) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('pending');

-- move: flow.wait
UPDATE flow SET state = 'waiting', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('pending', 'running') AND flow.state = b.was;

-- move: flow.proceed
UPDATE flow SET state = 'pending', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('waiting');

-- move: flow.pause
UPDATE flow SET state = 'paused', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('pending', 'running', 'waiting') AND flow.state = b.was;

-- move: flow.resume
UPDATE flow SET state = 'pending', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text) FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('paused');

-- move: flow.succeed
UPDATE flow SET state = 'succeeded', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text), finished_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('running', 'paused', 'waiting') AND flow.state = b.was;

-- move: flow.end_partly
UPDATE flow SET state = 'partial', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text), finished_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('running', 'paused', 'waiting') AND flow.state = b.was;

-- move: flow.fail
UPDATE flow SET state = 'failed', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS error, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('running', 'paused', 'waiting') AND flow.state = b.was;

-- move: flow.time_out
UPDATE flow SET state = 'failed', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text), finished_at = b.at, error = b.error FROM (SELECT value ->> 0 AS at, value ->> 1 AS error, value ->> 2 AS key, value ->> 3 AS version, value ->> 4 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('created', 'pending', 'running', 'paused', 'waiting') AND flow.state = b.was;

-- move: flow.cancel
UPDATE flow SET state = 'cancelled', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(:event + b.place AS text), finished_at = b.at FROM (SELECT value ->> 0 AS at, value ->> 1 AS key, value ->> 2 AS version, value ->> 3 AS was, key AS place FROM json_each(:batch)) AS b WHERE flow.key = b.key AND flow.version = b.version AND flow.state IN ('created', 'pending', 'running', 'paused', 'waiting') AND flow.state = b.was;
