-- generated: tools/rendered_sql.py postgres
-- Every statement, as postgres gets it. In psql: \set key 7, and \set keys '''{1,2}''' for a list.

-- name: redrive_facts
-- row: RedriveFacts(key, state, control, spawned_by, job, stage, ord, stage_state, stage_ending, redriven, opened_at, flow_state, flow_ending, roll_up, compensation, successor)
SELECT t.key, t.state, t.control, t.spawned_by, t.job, t.stage, s.ord, s.state AS stage_state, s.ending AS stage_ending,
    s.redriven, s.opened_at, f.state AS flow_state, f.ending AS flow_ending, f.roll_up, f.compensation,
    (SELECT u.key FROM onetray.dead_letter AS d JOIN onetray.task AS u ON u.key = d.successor WHERE d.task = t.key)
    AS successor
FROM onetray.task AS t LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
WHERE t.key = ANY(:keys::bigint[]);

-- name: states_of_needs
-- row: NeedRow(task, key, stage, state)
SELECT d.task, d.needs AS key, (SELECT t.stage FROM onetray.task AS t WHERE t.key = d.needs) AS stage,
    (SELECT o.state FROM onetray.task AS o WHERE o.key = d.needs) AS state
FROM onetray.dependency AS d WHERE d.task = ANY(:keys::bigint[]) ORDER BY d.task, d.needs;

-- name: spawner
-- row: SpawnerRow(key, stage, state, spawned_by, cancel_at, ord, ended_by)
SELECT t.key, t.stage, t.state, t.spawned_by, t.cancel_at, s.ord,
    (SELECT coalesce(eb.actor, CAST(CAST(eb.varied AS json) -> 'actor' ->> CAST(i.value - eb.id AS integer) AS text)) FROM (SELECT CAST(split_part(t.events, ',', -1) AS bigint) AS value) AS i JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true) AS ended_by
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage WHERE t.key = :key;

-- name: retry_facts
-- row: RetryFacts(key, is_taken, has_carried, compensation)
SELECT f.key, CASE WHEN f.compensates IS NULL THEN (
        SELECT count(*) FROM onetray.unique_key AS u JOIN onetray.flow AS g ON g.key = u.job
        WHERE u.kind = f.kind AND u.key = :singleton AND g.finished_at IS NULL) ELSE 0 END AS is_taken,
    (SELECT count(s.carried_from) FROM onetray.stage AS s WHERE s.job = f.key) AS has_carried, f.compensation
FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[]);

-- name: insert_aliases
INSERT INTO onetray.alias (ns, alias, entity, key) SELECT b.ns, b.alias, b.entity, b.key FROM unnest(:ns::integer[], :alias::text[], :entity::text[], :key::bigint[]) AS b(ns, alias, entity, key) WHERE true
ON CONFLICT (ns, alias) DO NOTHING;

-- name: alias_holders
-- row: AliasHolderRow(ns, alias, entity, key, id)
SELECT a.ns, a.alias, a.entity, a.key, coalesce(CAST(t.id AS text), CAST(c.id AS text), CAST(f.id AS text)) AS id
FROM onetray.alias AS a LEFT JOIN onetray.task AS t ON t.key = a.key LEFT JOIN onetray.context AS c ON c.key = a.key
    LEFT JOIN onetray.flow AS f ON f.key = coalesce(t.job, c.job, a.key) JOIN unnest(:ns::integer[], :alias::text[]) AS b(ns, alias) ON a.ns = b.ns AND a.alias = b.alias;

-- name: free_aliases
DELETE FROM onetray.alias WHERE alias.ctid = ANY(ARRAY(SELECT (SELECT alias.ctid FROM onetray.alias WHERE alias.ns = b.ns AND alias.alias = b.alias) FROM unnest(:ns::integer[], :alias::text[]) AS b(ns, alias)));

-- name: hand_on_aliases
UPDATE onetray.alias SET key = b.successor FROM unnest(:successor::bigint[], :key::bigint[]) AS b(successor, key) WHERE alias.key = b.key;

-- name: entities_by_alias
-- row: Alias(alias, entity, id, job_id)
SELECT a.alias, a.entity, coalesce(CAST(t.id AS text), CAST(c.id AS text), CAST(f.id AS text)) AS id,
    coalesce(CASE WHEN t.job = t.key THEN CAST(t.id AS text) END, CAST(f.id AS text)) AS job_id
FROM onetray.alias AS a JOIN onetray.namespace AS n ON n.key = a.ns LEFT JOIN onetray.task AS t ON t.key = a.key LEFT JOIN onetray.context AS c ON c.key = a.key
    LEFT JOIN onetray.flow AS f ON f.key = coalesce(t.job, c.job, a.key)
WHERE n.name = :namespace AND a.alias = ANY(:aliases::text[]) AND f.deleted_at IS NULL;

-- name: aliases_of_ids
-- row: Alias(alias, entity, id, job_id)
SELECT (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias, 'task' AS entity,
    CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(g.id AS text) FROM onetray.flow AS g WHERE g.key = t.job) END AS job_id
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns WHERE t.id = ANY(:ids::uuid[]) AND n.name = :namespace
UNION ALL
SELECT (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key), 'flow', CAST(f.id AS text), CAST(f.id AS text)
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id = ANY(:ids::uuid[]) AND n.name = :namespace AND f.deleted_at IS NULL
UNION ALL
SELECT (SELECT i.alias FROM onetray.alias AS i WHERE i.key = c.key), 'context', CAST(c.id AS text),
    (SELECT CAST(g.id AS text) FROM onetray.flow AS g WHERE g.key = c.job)
FROM onetray.context AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE c.id = ANY(:ids::uuid[]) AND n.name = :namespace;

-- name: audited_batches
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied FROM onetray.event_batch AS eb
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
SELECT t.key, t.created_at FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]) AND t.retry_of IS NOT NULL
UNION ALL SELECT f.key, f.created_at FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[]) AND f.retry_of IS NOT NULL;

-- name: kinds_past_breakers
SELECT k.key, br.open_until FROM onetray.kind AS k LEFT JOIN onetray.breaker AS br ON br.kind = k.key
WHERE EXISTS (SELECT 1 FROM onetray.breaker AS o WHERE o.open_until IS NOT NULL) AND k.ns = :ns
    AND EXISTS (SELECT 1 FROM onetray.ready AS r WHERE r.queue = :queue AND r.kind = k.key);

-- name: breakers_of_kinds
SELECT kind, open_until FROM onetray.breaker WHERE open_until IS NOT NULL AND kind = ANY(:kinds::integer[]);

-- name: lock_breakers_to_try
SELECT kind FROM onetray.breaker WHERE kind = ANY(:kinds::integer[]) AND open_until <= :now ORDER BY kind FOR UPDATE SKIP LOCKED;

-- name: try_breaker
UPDATE onetray.breaker SET probing = 1, open_until = b.open_until FROM unnest(:open_until::bigint[], :kind::integer[]) AS b(open_until, kind) WHERE breaker.kind = b.kind;

-- name: add_breaker
INSERT INTO onetray.breaker (kind, recent) SELECT b.kind, '[]' FROM unnest(:kind::integer[]) AS b(kind) WHERE true ON CONFLICT DO NOTHING;

-- name: lock_breakers
-- row: BreakerRow(kind, recent, opened_at, open_until, probing, why, opened_by)
SELECT kind, recent, opened_at, open_until, probing, why, opened_by FROM onetray.breaker
WHERE kind = ANY(:kinds::integer[]) AND (probing = 1 OR kind = ANY(:failed::integer[])) ORDER BY kind FOR UPDATE;

-- name: set_breaker
UPDATE onetray.breaker SET recent = b.recent, opened_at = b.opened_at, open_until = b.open_until, probing = b.probing,
    why = b.why, opened_by = b.opened_by FROM unnest(:recent::text[], :opened_at::bigint[], :open_until::bigint[], :probing::integer[], :why::text[], :opened_by::text[], :kind::integer[]) AS b(recent, opened_at, open_until, probing, why, opened_by, kind) WHERE breaker.kind = b.kind;

-- name: lock_open_breakers
SELECT kind FROM onetray.breaker WHERE kind = ANY(:kinds::integer[]) AND open_until IS NOT NULL ORDER BY kind FOR UPDATE;

-- name: breaker_opened
SELECT kind FROM onetray.breaker WHERE kind = :kind AND opened_at >= :since AND opened_by = :by AND why = :why;

-- name: close_breakers
UPDATE onetray.breaker SET recent = '[]', opened_at = NULL, open_until = NULL, probing = 0, why = NULL, opened_by = NULL
WHERE kind = ANY(:kinds::integer[]);

-- name: open_breaker
INSERT INTO onetray.breaker (kind, recent, opened_at, open_until, probing, why, opened_by)
VALUES (:kind, '[]', :at, :until, 0, :why, :by)
ON CONFLICT (kind) DO UPDATE SET opened_at = excluded.opened_at, open_until = excluded.open_until, probing = 0,
    why = excluded.why, opened_by = excluded.opened_by;

-- name: breakers
-- row: BreakerDetails(kind, recent, opened_at, open_until, probing, why, opened_by, policy, seen_at)
SELECT k.name AS kind, br.recent, br.opened_at, br.open_until, br.probing, br.why, br.opened_by, p.body AS policy,
    coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at
FROM onetray.breaker AS br JOIN onetray.kind AS k ON k.key = br.kind JOIN onetray.namespace AS n ON n.key = k.ns
    JOIN onetray.policy AS p ON p.key = k.policy
WHERE n.name = :namespace ORDER BY k.name LIMIT :limit;

-- name: insert_bulk
INSERT INTO onetray.bulk (id, ns, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at,
    most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
VALUES (:id, :ns, :action, :filters, :options, :reason, :state, :at, :by, :at, NULL, :most, :canary, :place, 0, 0, 0, 0,
    '[]', '[]')
ON CONFLICT (id) DO NOTHING RETURNING 1;

-- name: prune_bulks
DELETE FROM onetray.bulk WHERE ns = :ns AND finished_at IS NOT NULL AND created_at < (
    SELECT min(o.created_at) FROM (
        SELECT x.created_at FROM onetray.bulk AS x WHERE x.ns = :ns ORDER BY x.created_at DESC LIMIT :keep) AS o);

-- name: bulk_by_id
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM onetray.bulk AS o JOIN onetray.namespace AS n ON n.key = o.ns WHERE o.id = :id AND n.name = :namespace;

-- name: list_bulks
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM onetray.bulk AS o JOIN onetray.namespace AS n ON n.key = o.ns WHERE n.name = :namespace AND (CAST(:unfinished AS integer) = 0 OR o.finished_at IS NULL)
ORDER BY o.created_at DESC, o.id DESC LIMIT :limit;

-- name: next_bulk
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM onetray.bulk AS o JOIN onetray.namespace AS n ON n.key = o.ns WHERE o.finished_at IS NULL AND o.state = :state ORDER BY o.updated_at, o.id LIMIT 1;

-- name: lock_bulk
SELECT o.place FROM onetray.bulk AS o WHERE o.id = :id AND o.state = :state AND o.place = :place AND o.done = :done
    AND o.refused = :refused
FOR UPDATE SKIP LOCKED;

-- name: wait_for_bulk
-- row: BulkRow(id, ns, namespace, action, filters, options, reason, state, created_at, created_by, updated_at, finished_at, most, canary, place, done, repeated, refused, skipped, refusals, canary_ids)
SELECT CAST(o.id AS text) AS id, o.ns, n.name AS namespace, o.action, o.filters, o.options, o.reason, o.state, o.created_at,
    o.created_by, o.updated_at, o.finished_at, o.most, o.canary, o.place, o.done, o.repeated, o.refused, o.skipped,
    o.refusals, o.canary_ids
FROM onetray.bulk AS o JOIN onetray.namespace AS n ON n.key = o.ns WHERE o.id = :id AND o.ns = :ns FOR UPDATE OF o;

-- name: advance_bulk
UPDATE onetray.bulk SET place = :place, done = done + :done, repeated = repeated + :repeated, refused = refused + :refused,
    skipped = skipped + :skipped, refusals = :refusals, canary_ids = :canary_ids, state = :state, updated_at = :at,
    finished_at = :finished_at
WHERE id = :id;

-- name: set_bulk_state
UPDATE onetray.bulk SET state = :state, updated_at = :at, finished_at = :finished_at WHERE id = :id;

-- name: states_of_tasks
SELECT t.state FROM onetray.task AS t WHERE t.id = ANY(:ids::uuid[]);

-- name: insert_dead_letter
INSERT INTO onetray.dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern)
SELECT b.key, b.ns, b.at, b.reason_code, b.stage, b.last_error, b.attempts, b.last_owner, b.last_lease_expires_at,
    b.correlation_id, b.trace_id, b.payload_hash, b.kind, b.error_class, b.pattern FROM unnest(:key::bigint[], :ns::integer[], :at::bigint[], :reason_code::text[], :stage::text[], :last_error::text[], :attempts::integer[], :last_owner::text[], :last_lease_expires_at::bigint[], :correlation_id::text[], :trace_id::text[], :payload_hash::text[], :kind::integer[], :error_class::text[], :pattern::text[]) AS b(key, ns, at, reason_code, stage, last_error, attempts, last_owner, last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern);

-- name: copy_letters
INSERT INTO onetray.dead_letter (task, ns, created_at, reason_code, stage, last_error, attempts, last_owner,
    last_lease_expires_at, correlation_id, trace_id, payload_hash, kind, error_class, pattern)
SELECT b.key, d.ns, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner, d.last_lease_expires_at,
    d.correlation_id, d.trace_id, d.payload_hash, d.kind, d.error_class, d.pattern
FROM onetray.dead_letter AS d JOIN unnest(:key::bigint[], :task::bigint[]) AS b(key, task) ON d.task = b.task;

-- name: facts_for_dead_letter
-- row: LetterFactsRow(key, id, correlation_id, trace, payload)
SELECT key, CAST(id AS text) AS id, correlation_id, trace, payload FROM onetray.task WHERE key = ANY(:keys::bigint[]);

-- name: last_holders
SELECT t.key, coalesce(eb.payload, CAST(CAST(eb.varied AS json) -> 'payload' ->> CAST(i.value - eb.id AS integer) AS text)) FROM onetray.task AS t CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[])) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE t.key = ANY(:keys::bigint[]) AND coalesce(eb.was, CAST(CAST(eb.varied AS json) -> 'was' ->> CAST(i.value - eb.id AS integer) AS text)) = ANY(:held::text[]) AND coalesce(eb.payload, CAST(CAST(eb.varied AS json) -> 'payload' ->> CAST(i.value - eb.id AS integer) AS text)) IS NOT NULL
ORDER BY t.key, i.value;

-- name: lock_letter
SELECT successor FROM onetray.dead_letter WHERE task = :key FOR UPDATE;

-- name: set_successor
UPDATE onetray.dead_letter SET successor = b.successor FROM unnest(:successor::bigint[], :key::bigint[]) AS b(successor, key) WHERE dead_letter.task = b.key;

-- name: dead_letters
-- row: DeadLetter(task_id, created_at, reason_code, stage, last_error, attempts, last_owner, last_lease_expires_at, correlation_id, trace_id, payload_hash, successor_id)
SELECT CAST(t.id AS text) AS task_id, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner,
    d.last_lease_expires_at, d.correlation_id, d.trace_id, d.payload_hash, CAST(s.id AS text) AS successor_id
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task
    JOIN onetray.namespace AS n ON n.key = +d.ns
    LEFT JOIN onetray.task AS s ON s.key = d.successor WHERE n.name = :namespace ORDER BY d.task DESC LIMIT :limit;

-- name: dead_letter_of_task
-- row: DeadLetter(task_id, created_at, reason_code, stage, last_error, attempts, last_owner, last_lease_expires_at, correlation_id, trace_id, payload_hash, successor_id)
SELECT CAST(t.id AS text) AS task_id, d.created_at, d.reason_code, d.stage, d.last_error, d.attempts, d.last_owner,
    d.last_lease_expires_at, d.correlation_id, d.trace_id, d.payload_hash, CAST(s.id AS text) AS successor_id
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task
    JOIN onetray.namespace AS n ON n.key = +d.ns
    LEFT JOIN onetray.task AS s ON s.key = d.successor WHERE t.id = :id AND n.name = :namespace;

-- name: spec_of
-- row: TaskToCopy(key, id, queue, kind, policy, priority, max_attempts, correlation_id, trace, payload, name, spawned_by, metadata, tracestate, context, idempotency_key)
SELECT t.key, CAST(t.id AS text) AS id, t.queue, t.kind, t.policy, t.priority, t.max_attempts, t.correlation_id, t.trace,
    t.payload, t.name, t.spawned_by, t.metadata, t.tracestate, t.context, t.idempotency_key
FROM onetray.task AS t WHERE t.key = :key;

-- name: declared_flow
-- row: DeclaredFlowRow(name, version, declared_at, declared_by, seen_at, other_version, other_seen_at, body)
SELECT d.name, d.version, d.declared_at, d.declared_by, d.seen_at, d.other_version, d.other_seen_at, d.body
FROM onetray.declared_flow AS d JOIN onetray.namespace AS n ON n.key = d.ns
WHERE n.name = :namespace AND d.name = :flow;

-- name: declared_flows
-- row: DeclaredFlowSummary(name, version, stages, declared_at, declared_by, seen_at, other_version, other_seen_at)
SELECT d.name, d.version, d.stages, d.declared_at, d.declared_by, d.seen_at, d.other_version, d.other_seen_at
FROM onetray.declared_flow AS d JOIN onetray.namespace AS n ON n.key = d.ns
WHERE n.name = :namespace ORDER BY d.name LIMIT :limit;

-- name: declare_flow
INSERT INTO onetray.declared_flow (ns, name, version, stages, declared_at, declared_by, seen_at, body)
VALUES (:ns, :name, :version, :stages, :at, :by, :at, :body)
ON CONFLICT (ns, name) DO UPDATE SET version = excluded.version, stages = excluded.stages,
    declared_at = excluded.declared_at, declared_by = excluded.declared_by, seen_at = excluded.seen_at,
    other_version = CASE WHEN declared_flow.version = excluded.version THEN declared_flow.other_version
        ELSE declared_flow.version END,
    other_seen_at = CASE WHEN declared_flow.version = excluded.version THEN declared_flow.other_seen_at
        ELSE declared_flow.seen_at END, body = excluded.body
WHERE declared_flow.version <> excluded.version OR declared_flow.body <> excluded.body;

-- name: renew_flow
UPDATE onetray.declared_flow SET
    seen_at = CASE WHEN version = :version THEN :at ELSE seen_at END,
    other_version = CASE WHEN version = :version THEN other_version ELSE :version END,
    other_seen_at = CASE WHEN version = :version THEN other_seen_at ELSE :at END
WHERE ns = :ns AND name = :name;

-- name: forget_flow
DELETE FROM onetray.declared_flow WHERE ns = :ns AND name = :name RETURNING name;

-- name: job_to_delete
-- row: JobToDelete(entity, key, id, state, kind, correlation_id, flow_id)
SELECT 'task' AS entity, t.key, CAST(t.id AS text) AS id, t.state, k.name AS kind,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id,
    (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) AS flow_id
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind WHERE t.id = :id AND t.ns = :ns
UNION ALL
SELECT 'flow', f.key, CAST(f.id AS text), f.state, k.name, f.correlation_id, CAST(NULL AS text)
FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind WHERE f.id = :id AND f.ns = :ns;

-- name: any_open_member
SELECT 1 FROM onetray.stage AS s WHERE s.job = :job AND s.open > 0 LIMIT 1;

-- name: open_compensation
SELECT CAST(c.id AS text) FROM onetray.flow AS f JOIN onetray.flow AS c ON c.key = f.compensation
WHERE f.key = :job AND c.finished_at IS NULL;

-- name: mark_deleted
UPDATE onetray.flow SET deleted_at = :at WHERE key = :key;

-- name: members_to_delete
SELECT t.key FROM onetray.task AS t WHERE t.stage >= :stage AND t.stage <= :stage ORDER BY t.stage, t.key LIMIT :limit;

-- name: contexts_to_delete
SELECT c.key FROM onetray.context AS c WHERE c.job = :job LIMIT :limit;

-- name: notes_to_delete
SELECT e.id FROM onetray.event_batch AS e
WHERE e.entity = :job AND e.state IS NULL AND e.type <> 'job.deleted' LIMIT :limit;

-- name: stages_to_delete
SELECT s.key FROM onetray.stage AS s WHERE s.job = :job ORDER BY s.job, s.ord LIMIT :limit;

-- name: prune_dependencies_on
DELETE FROM onetray.dependency WHERE needs = ANY(:keys::bigint[]);

-- name: prune_contexts_by_key
DELETE FROM onetray.context WHERE key = ANY(:keys::bigint[]);

-- name: prune_notes_by_key
DELETE FROM onetray.event_batch WHERE id = ANY(:keys::bigint[]);

-- name: ids_of_tasks
SELECT key, CAST(id AS text) FROM onetray.task WHERE key = ANY(:keys::bigint[]);

-- name: ended_tasks
SELECT t.key, CAST(t.id AS text) FROM onetray.task AS t
WHERE t.key > :after AND t.key <= :upto AND t.ns = :ns AND t.job = t.key AND t.finished_at < :before
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[])) AND t.kind = coalesce(CAST(:kind AS integer), t.kind)
    AND coalesce((SELECT max(i.expires_at) FROM onetray.idempotency AS i WHERE i.job = t.key), 0) <= :now
ORDER BY t.key LIMIT :limit;

-- name: ended_flows
SELECT f.key, CAST(f.id AS text) FROM onetray.flow AS f
WHERE f.key > :after AND f.key <= :upto AND f.ns = :ns AND f.finished_at < :before AND f.deleted_at IS NULL
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[])) AND f.kind = coalesce(CAST(:kind AS integer), f.kind)
    AND coalesce((SELECT max(i.expires_at) FROM onetray.idempotency AS i WHERE i.job = f.key), 0) <= :now
ORDER BY f.key LIMIT :limit;

-- name: insert_event_batch
INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
VALUES (coalesce(:event::bigint, currval('onetray.event_id')) + :place, :size, :ts, :ns, :type, :was, :state, :actor, :entity, :job, :version, :fence, :attempts, :cause,
    :trace, :payload, :varied);

-- name: insert_flow_events
INSERT INTO onetray.flow_event (job, batch) SELECT b.job, coalesce(:event::bigint, currval('onetray.event_id')) + :place FROM unnest(:job::bigint[]) AS b(job);

-- name: insert_note
WITH at AS (SELECT nextval('onetray.event_id') AS id) INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT CAST(CAST(at.id + b.place - 1 AS text) AS bigint), 1, greatest(b.at, task.updated_at), task.ns, b.type, NULL, NULL, b.actor, task.key,
    CASE WHEN task.stage IS NULL THEN NULL ELSE task.job END, NULL, task.fence, task.attempts, b.cause, b.trace, b.payload, NULL
FROM at, unnest(:at::bigint[], :type::text[], :actor::text[], :cause::text[], :trace::text[], :payload::text[], :key::bigint[]) WITH ORDINALITY AS b(at, type, actor, cause, trace, payload, key, place) JOIN onetray.task ON task.key = b.key;

-- name: insert_flow_note
WITH at AS (SELECT nextval('onetray.event_id') AS id) INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT CAST(CAST(at.id + b.place - 1 AS text) AS bigint), 1, greatest(b.at, flow.updated_at), flow.ns, b.type, NULL, NULL, b.actor, flow.key, NULL,
    NULL, 0, 0, b.cause, b.trace, b.payload, NULL
FROM at, unnest(:at::bigint[], :type::text[], :actor::text[], :cause::text[], :trace::text[], :payload::text[], :key::bigint[]) WITH ORDINALITY AS b(at, type, actor, cause, trace, payload, key, place) JOIN onetray.flow ON flow.key = b.key;

-- name: insert_notes_of_flows
INSERT INTO onetray.flow_event (job, batch)
SELECT coalesce(n.job, n.entity), n.id FROM onetray.event_batch AS n
WHERE n.id >= coalesce(:event::bigint, currval('onetray.event_id')) AND n.id < coalesce(:event::bigint, currval('onetray.event_id')) + :size AND n.state IS NULL
    AND (n.job IS NOT NULL OR CAST(:of_flows AS integer) = 1);

-- name: batches_of_task
-- row: TaskEventRow(event, id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied, correlation_id, task_trace, flow_id)
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied, t.correlation_id, t.trace AS task_trace,
    CASE WHEN t.job <> t.key THEN (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS flow_id
FROM onetray.task AS t JOIN onetray.namespace AS o ON o.key = t.ns CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[]) || ARRAY(SELECT n.id FROM onetray.event_batch AS n WHERE n.entity = t.key AND n.state IS NULL)) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE t.id = :id AND o.name = :namespace AND i.value > :after ORDER BY i.value LIMIT :limit;

-- name: last_batches_of_task
-- row: TaskEventRow(event, id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied, correlation_id, task_trace, flow_id)
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied, t.correlation_id, t.trace AS task_trace,
    CASE WHEN t.job <> t.key THEN (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS flow_id
FROM onetray.task AS t JOIN onetray.namespace AS o ON o.key = t.ns CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[]) || ARRAY(SELECT n.id FROM onetray.event_batch AS n WHERE n.entity = t.key AND n.state IS NULL)) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE t.id = :id AND o.name = :namespace AND i.value > :after AND i.value < :before ORDER BY i.value DESC LIMIT :limit;

-- name: batches_of_entities
-- row: EntityEventRow(event, id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT i.value AS event, eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence,
    eb.attempts, eb.cause, eb.trace, eb.payload, eb.varied
FROM (
    SELECT s.key, s.events FROM onetray.stage AS s WHERE s.key = ANY(:keys::bigint[])
    UNION ALL SELECT f.key, f.events FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[])
    UNION ALL SELECT k.key, k.events FROM onetray.task AS k WHERE k.key = ANY(:keys::bigint[])
) AS t CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[]) || ARRAY(SELECT n.id FROM onetray.event_batch AS n WHERE n.entity = t.key AND n.state IS NULL)) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE i.value > :after ORDER BY i.value LIMIT :limit;

-- name: batches_of_flows
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied
FROM (
    SELECT DISTINCT r.batch FROM onetray.flow_event AS r WHERE r.job = ANY(:keys::bigint[]) AND r.batch <= :upto
        AND r.batch >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0)
) AS r JOIN onetray.event_batch AS eb ON eb.id = r.batch
WHERE CAST(:every AS integer) = 1 OR eb.type = ANY(:types::text[])
ORDER BY r.batch LIMIT :limit;

-- name: last_batches_of_flow
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied
FROM onetray.flow_event AS r JOIN onetray.event_batch AS eb ON eb.id = r.batch
WHERE r.job = :job AND r.batch < :before ORDER BY r.batch DESC LIMIT :limit;

-- name: batches_after
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied
FROM (
    SELECT * FROM onetray.event_batch AS w
    WHERE w.id >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0)
    ORDER BY w.id LIMIT :scan
) AS eb
WHERE eb.id <= :upto AND (CAST(:every AS integer) = 1 OR eb.type = ANY(:types::text[]))
    AND (CAST(:ns AS integer) IS NULL OR eb.ns IS NULL OR eb.ns = :ns)
ORDER BY eb.id LIMIT :limit;

-- name: end_of_window
SELECT max(w.id + w.size - 1) FROM (
    SELECT eb.id, eb.size FROM onetray.event_batch AS eb
    WHERE eb.id >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0)
    ORDER BY eb.id LIMIT :scan
) AS w WHERE w.id <= :upto;

-- name: tasks_of_events
-- row: EventEntityRow(key, id, correlation_id, trace, kind)
SELECT t.key, CAST(t.id AS text) AS id, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.kind
FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]);

-- name: parents_of_events
-- row: EventEntityRow(key, id, correlation_id, trace, kind)
SELECT f.key, CAST(f.id AS text) AS id, f.correlation_id, f.trace, f.kind FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[])
UNION ALL SELECT s.key, CAST(s.id AS text), s.correlation_id, s.trace, 0 FROM onetray.stage AS s WHERE s.key = ANY(:keys::bigint[]);

-- name: keys_by_correlation
-- row: CorrelatedRow(key, is_flow)
SELECT t.key, 0 AS is_flow FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.correlation_id = :correlation_id AND t.stage IS NULL AND n.name = :namespace
UNION ALL SELECT own.key, 0 FROM onetray.task AS own JOIN onetray.namespace AS m ON m.key = own.ns
WHERE own.id = :id AND own.correlation_id IS NULL AND m.name = :namespace
UNION ALL SELECT f.key, 1 FROM onetray.flow AS f JOIN onetray.namespace AS o ON o.key = f.ns
WHERE f.correlation_id = :correlation_id AND o.name = :namespace;

-- name: first_starts
SELECT t.key, min((eb.ts - coalesce(CAST(CAST(eb.varied AS json) -> 'ts' ->> CAST(i.value - eb.id AS integer) AS bigint), 0))) FROM onetray.task AS t CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[])) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE t.key = ANY(:keys::bigint[]) AND eb.type = :started GROUP BY t.key;

-- name: last_event_id
SELECT coalesce(max(eb.id + eb.size - 1), 0) FROM (
    SELECT n.id, n.size FROM onetray.event_batch AS n ORDER BY n.id DESC LIMIT 1
) AS eb;

-- name: events_of_entities
SELECT t.key, t.events FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[])
UNION ALL SELECT s.key, s.events FROM onetray.stage AS s WHERE s.key = ANY(:keys::bigint[])
UNION ALL SELECT f.key, f.events FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[])
UNION ALL SELECT p.entity, p.events FROM onetray.event_page AS p WHERE p.entity = ANY(:keys::bigint[]);

-- name: lock_batches_of_events
-- row: EventBatch(id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, payload, varied)
SELECT eb.id, eb.size, eb.ts, eb.ns, eb.type, eb.was, eb.state, eb.actor, eb.entity, eb.job, eb.version, eb.fence, eb.attempts, eb.cause,
    eb.trace, eb.payload, eb.varied FROM onetray.event_batch AS eb WHERE eb.id = ANY(ARRAY(SELECT (SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= i.value) FROM unnest(:events::bigint[]) AS i(value))) ORDER BY eb.id FOR UPDATE;

-- name: remove_entries
UPDATE onetray.event_batch SET entity = NULL, varied = b.varied FROM unnest(:varied::text[], :key::bigint[]) AS b(varied, key) WHERE event_batch.id = b.key;

-- name: delete_batches
DELETE FROM onetray.event_batch WHERE id = ANY(:keys::bigint[]);

-- name: prune_notes_of
DELETE FROM onetray.event_batch WHERE state IS NULL AND entity = ANY(:keys::bigint[]) AND type <> 'job.deleted';

-- name: prune_flow_events
DELETE FROM onetray.flow_event WHERE job = ANY(:keys::bigint[]);

-- name: list_events_of_task
UPDATE onetray.task SET events = CASE WHEN task.events = '' THEN b.events ELSE task.events || ',' || b.events END
FROM unnest(:events::text[], :key::bigint[]) AS b(events, key) WHERE task.key = ANY (ARRAY[b.key]);

-- name: list_events_of_stage
UPDATE onetray.stage SET events = CASE WHEN stage.events = '' THEN b.events ELSE stage.events || ',' || b.events END
FROM unnest(:events::text[], :key::bigint[]) AS b(events, key) WHERE stage.key = ANY (ARRAY[b.key]);

-- name: list_events_of_flow
UPDATE onetray.flow SET events = CASE WHEN flow.events = '' THEN b.events ELSE flow.events || ',' || b.events END
FROM unnest(:events::text[], :key::bigint[]) AS b(events, key) WHERE flow.key = ANY (ARRAY[b.key]);

-- name: prune_event_pages
DELETE FROM onetray.event_page WHERE entity = ANY(:keys::bigint[]);

-- name: page_events_of_task
INSERT INTO onetray.event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST(CAST(split_part(t.events, ',', -1) AS bigint) AS text)) - 1)
FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]);

-- name: trim_events_of_task
UPDATE onetray.task AS t SET events = CAST(CAST(split_part(t.events, ',', -1) AS bigint) AS text) WHERE t.key = ANY(:keys::bigint[]);

-- name: page_events_of_stage
INSERT INTO onetray.event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST(CAST(split_part(t.events, ',', -1) AS bigint) AS text)) - 1)
FROM onetray.stage AS t WHERE t.key = ANY(:keys::bigint[]);

-- name: trim_events_of_stage
UPDATE onetray.stage AS t SET events = CAST(CAST(split_part(t.events, ',', -1) AS bigint) AS text) WHERE t.key = ANY(:keys::bigint[]);

-- name: page_events_of_flow
INSERT INTO onetray.event_page (entity, version, events)
SELECT t.key, t.version, substr(t.events, 1, length(t.events) - length(CAST(CAST(split_part(t.events, ',', -1) AS bigint) AS text)) - 1)
FROM onetray.flow AS t WHERE t.key = ANY(:keys::bigint[]);

-- name: trim_events_of_flow
UPDATE onetray.flow AS t SET events = CAST(CAST(split_part(t.events, ',', -1) AS bigint) AS text) WHERE t.key = ANY(:keys::bigint[]);

-- name: explain
-- row: TaskFacts(state, fence, attempts, max_attempts, run_at, created_at, finished_at, owner, lease_expires_at, cancel_at, held_by, held_why, queue, paused_at, paused_by, policy_body, ready, due, last_event, last_actor, last_cause, rescheduled_by, rescheduled_why, cancel_request, key, control, unmet, flow_state, flow_ending, flow_ending_why, stage, stage_ord, stage_state, stage_ending, opened_to, deciding, approval, stage_due_at, current, current_ord, current_state, flow_paused_by, kind, breaker_opened_at, breaker_until, breaker_probing, breaker_why, breaker_by, error, reason_code, successor, flow, id, now)
SELECT t.state, t.fence, t.attempts, t.max_attempts, t.run_at, t.created_at, t.finished_at, t.owner,
    l.expires_at AS lease_expires_at, t.cancel_at, t.held_by, t.held_why, q.name AS queue, q.paused_at, q.paused_by,
    p.body AS policy_body,
    EXISTS (SELECT 1 FROM onetray.ready AS r
        WHERE r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind)
        AS ready,
    EXISTS (SELECT 1 FROM onetray.due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :run AND d.fence = t.fence) AS due,
    (SELECT eb.type FROM (SELECT CAST(split_part(t.events, ',', -1) AS bigint) AS value) AS i JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true) AS last_event,
    (SELECT coalesce(eb.actor, CAST(CAST(eb.varied AS json) -> 'actor' ->> CAST(i.value - eb.id AS integer) AS text)) FROM (SELECT CAST(split_part(t.events, ',', -1) AS bigint) AS value) AS i JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true) AS last_actor,
    (SELECT coalesce(eb.cause, CAST(CAST(eb.varied AS json) -> 'cause' ->> CAST(i.value - eb.id AS integer) AS text)) FROM (SELECT CAST(split_part(t.events, ',', -1) AS bigint) AS value) AS i JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true) AS last_cause,
    (SELECT e.actor FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS rescheduled_by,
    (SELECT e.cause FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :rescheduled
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS rescheduled_why,
    (SELECT e.payload FROM onetray.event_batch AS e WHERE e.entity = t.key AND e.state IS NULL AND e.type = :cancel_requested
        AND e.fence = t.fence ORDER BY e.id DESC LIMIT 1) AS cancel_request,
    t.key, t.control, t.unmet, f.state AS flow_state, f.ending AS flow_ending, f.ending_why AS flow_ending_why,
    s.name AS stage, s.ord AS stage_ord, s.state AS stage_state, s.ending AS stage_ending, s.opened_to, s.deciding,
    s.approval, s.due_at AS stage_due_at, c.name AS current, c.ord AS current_ord, c.state AS current_state,
    CASE WHEN f.state IS NULL THEN NULL ELSE (SELECT coalesce(eb.actor, CAST(CAST(eb.varied AS json) -> 'actor' ->> CAST(i.value - eb.id AS integer) AS text)) FROM unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = f.key), '') || f.events), ',') AS bigint[])) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
        WHERE eb.type = :flow_paused ORDER BY i.value DESC LIMIT 1) END AS flow_paused_by,
    k.name AS kind, br.opened_at AS breaker_opened_at, br.open_until AS breaker_until, br.probing AS breaker_probing,
    br.why AS breaker_why, br.opened_by AS breaker_by, t.error, d.reason_code, CAST(u.id AS text) AS successor,
    CAST(f.id AS text) AS flow, CAST(t.id AS text) AS id, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS now
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.policy AS p ON p.key = t.policy LEFT JOIN onetray.lease AS l ON l.key = t.lease
    LEFT JOIN onetray.stage AS s ON s.key = t.stage LEFT JOIN onetray.flow AS f ON f.key = s.job
    LEFT JOIN onetray.stage AS c ON c.key = f.current
    JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.breaker AS br ON br.kind = t.kind
    LEFT JOIN onetray.dead_letter AS d ON d.task = t.key LEFT JOIN onetray.task AS u ON u.key = d.successor
WHERE t.id = :id AND n.name = :namespace;

-- name: explain_flow
-- row: FlowFacts(key, state, ending, ending_why, stages, stages_open, finished_at, current, namespace, id, error)
SELECT f.key, f.state, f.ending, f.ending_why, f.stages, f.stages_open, f.finished_at, CAST(c.id AS text) AS current,
    n.name AS namespace, CAST(f.id AS text) AS id, f.error
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns LEFT JOIN onetray.stage AS c ON c.key = f.current
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: explain_stage
-- row: StageFacts(key, name, ord, state, ending, ending_why, total, open, paused, deciding, approval, due_at, finished_at, current, current_state, is_current, namespace, job, flow, flow_state)
SELECT s.key, s.name, s.ord, s.state, s.ending, s.ending_why, s.total, s.open,
    s.blocked + s.waiting_input AS paused, CAST(t.id AS text) AS deciding, s.approval, s.due_at, s.finished_at,
    c.name AS current, c.state AS current_state, CASE WHEN c.key = s.key THEN 1 ELSE 0 END AS is_current, n.name AS namespace,
    s.job, CAST(f.id AS text) AS flow, f.state AS flow_state
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns
    LEFT JOIN onetray.stage AS c ON c.key = f.current LEFT JOIN onetray.task AS t ON t.key = s.deciding
WHERE s.id = :id AND n.name = :namespace;

-- name: failed_stages
-- row: FailedStageRow(key, name, state, on_failure, errors, error)
SELECT s.key, s.name, s.state, s.on_failure, s.errors, s.error FROM onetray.stage AS s
WHERE s.job = :job AND (s.errors IS NOT NULL OR s.error IS NOT NULL) ORDER BY s.ord;

-- name: error_of_task
SELECT t.state, t.error FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: unmet_of
-- row: UnmetRow(id, name, state)
SELECT CAST(t.id AS text) AS id, t.name, t.state FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs
WHERE d.task = :task AND t.state <> :met ORDER BY t.key LIMIT :limit;

-- name: paused_in_stage
-- row: PausedMemberRow(id, name, state, held_by, held_why)
SELECT CAST(t.id AS text) AS id, t.name, t.state, t.held_by, t.held_why FROM onetray.task AS t
WHERE t.stage = :stage AND t.state IN ('blocked', 'waiting_input') ORDER BY t.stage, t.key LIMIT :limit;

-- name: paused_by
SELECT coalesce(eb.actor, CAST(CAST(eb.varied AS json) -> 'actor' ->> CAST(i.value - eb.id AS integer) AS text)), (eb.ts - coalesce(CAST(CAST(eb.varied AS json) -> 'ts' ->> CAST(i.value - eb.id AS integer) AS bigint), 0)) FROM onetray.flow AS f CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = f.key), '') || f.events), ',') AS bigint[])) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE f.key = :flow AND eb.type = :type ORDER BY i.value DESC LIMIT 1;

-- name: kinds_in_stage
-- row: StageKindRow(queue, kind, control)
SELECT DISTINCT q.name AS queue, k.name AS kind, w.control
FROM (
    SELECT t.queue, t.kind, t.control, t.state FROM onetray.task AS t WHERE t.stage >= :stage AND t.stage <= :stage
    ORDER BY t.stage DESC, t.key DESC LIMIT :scan
) AS w JOIN onetray.queue AS q ON q.key = w.queue JOIN onetray.kind AS k ON k.key = w.kind
WHERE w.state IN ('queued') ORDER BY 1, 2, 3 LIMIT :limit;

-- name: ready_kinds
SELECT q.name AS queue, k.name AS kind FROM onetray.queue AS q JOIN onetray.namespace AS n ON n.key = q.ns
    JOIN onetray.kind AS k ON k.ns = q.ns
WHERE n.name = :namespace AND q.paused_at IS NULL
    AND (EXISTS (SELECT 1 FROM onetray.ready AS r WHERE r.queue = q.key AND r.kind = k.key)
    OR EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.queue = q.key AND l.kind = k.key AND l.state = 1))
ORDER BY q.name, k.name LIMIT :limit;

-- name: workers_by_sort
-- row: WorkerSortRow(queues, kinds, state, alive, stopped, workers, slots, free, beat_at, name, seen_at)
SELECT w.queues, w.kinds, w.state, w.alive, w.stopped, count(*) AS workers, sum(w.slots) AS slots, sum(w.free) AS free,
    max(w.beat_at) AS beat_at, max(w.name) AS name, max(w.seen_at) AS seen_at
FROM (
    SELECT x.queues, x.kinds, x.state, x.name, x.beat_at, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at, x.concurrency AS slots,
        CASE WHEN x.running < x.concurrency THEN 1 ELSE 0 END AS free,
        CASE WHEN x.expires_at > x.beat_at THEN 0 ELSE 1 END AS stopped,
        CASE WHEN x.expires_at > coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) THEN 1 ELSE 0 END AS alive
    FROM onetray.worker AS x JOIN onetray.namespace AS n ON n.key = x.ns WHERE n.name = :namespace
) AS w
GROUP BY w.queues, w.kinds, w.state, w.alive, w.stopped ORDER BY w.alive DESC, max(w.beat_at) DESC LIMIT :limit;

-- name: longest_running
-- row: RunningRow(id, kind, started_at, queues, kinds)
SELECT CAST(t.id AS text) AS id, k.name AS kind, t.started_at, l.queues, l.kinds
FROM (
    SELECT x.key, x.tasks, w.queues, w.kinds FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
        JOIN onetray.lease AS x ON x.ns = w.ns AND x.worker = w.name
    WHERE n.name = :namespace AND w.expires_at > coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) ORDER BY x.key LIMIT :leases
) AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value) JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
    JOIN onetray.kind AS k ON k.key = t.kind
WHERE t.state = :running ORDER BY t.started_at LIMIT :limit;

-- name: any_worker_alive
SELECT w.state, 1 AS alive FROM onetray.worker AS w WHERE w.expires_at > coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AND w.state = :running LIMIT 1;

-- name: unregistered_claims
-- row: UnregisteredClaimRow(worker, at)
SELECT l.worker, l.at
FROM (
    SELECT substr(coalesce(eb.actor, CAST(CAST(eb.varied AS json) -> 'actor' ->> CAST(i.value - eb.id AS integer) AS text)), 8) AS worker, eb.ts AS at,
        (SELECT t.queue FROM onetray.task AS t WHERE t.key = coalesce(eb.entity, CAST(CAST(eb.varied AS json) -> 'entity' ->> CAST(i.value - eb.id AS integer) AS bigint))) AS queue
    FROM (
        SELECT c.id AS value FROM onetray.event_batch AS c WHERE c.type = :claimed AND c.ts >= :since
        ORDER BY c.ts DESC LIMIT :scan
    ) AS i JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
) AS l JOIN onetray.queue AS q ON q.key = l.queue JOIN onetray.namespace AS n ON n.key = q.ns
WHERE n.name = :namespace AND q.name = :queue
    AND (SELECT count(*) FROM onetray.worker AS w WHERE w.ns = n.key AND w.name = l.worker) = 0
ORDER BY l.at DESC LIMIT 1;

-- name: position
SELECT (SELECT count(*) FROM (
    SELECT 1 FROM onetray.ready AS f
    WHERE f.queue = r.queue AND (f.rank, f.task) < (r.rank, r.task) LIMIT :most) AS before)
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
    JOIN onetray.ready AS r ON r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key AND r.kind = t.kind
WHERE t.id = :id AND n.name = :namespace;

-- name: flows_of_ids
-- row: KeyRow(id, key, job)
SELECT CAST(id AS text) AS id, key, key AS job FROM onetray.flow WHERE id = ANY(:ids::uuid[]);

-- name: flows_of_stages
-- row: KeyRow(id, key, job)
SELECT CAST(id AS text) AS id, key, job FROM onetray.stage WHERE id = ANY(:ids::uuid[]);

-- name: flows_of_tasks
SELECT DISTINCT job FROM onetray.task WHERE key = ANY(:keys::bigint[]) AND job <> key;

-- name: lock_flows
-- row: FlowRow(key, ns, kind, id, state, version, roll_up, sealed, started_at, current, ending, ending_how, ending_why, ending_by, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, context, compensates, correlation_id, trace, priority, deleted_at, updated_at, seen_at)
SELECT l.*, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM (SELECT flow.key, flow.ns, flow.kind, CAST(flow.id AS text) AS id, flow.state, flow.version, flow.roll_up, flow.sealed,
    flow.started_at, flow.current, flow.ending, flow.ending_how, flow.ending_why, flow.ending_by, flow.stages,
    flow.stages_open, flow.succeeded, flow.partial, flow.failed, flow.cancelled, flow.skipped, flow.ignored,
    flow.chained, flow.amends, flow.context, flow.compensates, flow.correlation_id, flow.trace, flow.priority,
    flow.deleted_at, flow.updated_at
FROM onetray.flow WHERE flow.key = ANY(:keys::bigint[]) ORDER BY flow.key FOR NO KEY UPDATE) AS l;

-- name: lock_free_flows
-- row: FlowRow(key, ns, kind, id, state, version, roll_up, sealed, started_at, current, ending, ending_how, ending_why, ending_by, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, context, compensates, correlation_id, trace, priority, deleted_at, updated_at, seen_at)
SELECT l.*, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM (SELECT flow.key, flow.ns, flow.kind, CAST(flow.id AS text) AS id, flow.state, flow.version, flow.roll_up, flow.sealed,
    flow.started_at, flow.current, flow.ending, flow.ending_how, flow.ending_why, flow.ending_by, flow.stages,
    flow.stages_open, flow.succeeded, flow.partial, flow.failed, flow.cancelled, flow.skipped, flow.ignored,
    flow.chained, flow.amends, flow.context, flow.compensates, flow.correlation_id, flow.trace, flow.priority,
    flow.deleted_at, flow.updated_at
FROM onetray.flow WHERE flow.key = ANY(:keys::bigint[]) ORDER BY flow.key FOR NO KEY UPDATE SKIP LOCKED) AS l;

-- name: running_stages
SELECT s.key FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job
WHERE s.key = ANY(:keys::bigint[]) AND s.state = :running AND f.state = :running;

-- name: stages_of_tasks
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s WHERE s.key IN (SELECT t.stage FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]));

-- name: stages_by_key
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s WHERE s.key = ANY(:keys::bigint[]);

-- name: stages_of_flow
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s WHERE s.job = :job ORDER BY s.ord;

-- name: unended_stages
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s WHERE s.job = :job AND s.state IN ('created', 'waiting', 'pending', 'running') ORDER BY s.ord;

-- name: next_stage
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s WHERE s.job = :job AND s.ord > :ord AND s.state IN ('created', 'waiting', 'pending', 'running') ORDER BY s.ord LIMIT 1;

-- name: any_started
SELECT 1 FROM onetray.stage AS s WHERE s.job = :job AND s.started_at IS NOT NULL LIMIT 1;

-- name: stage_by_name
-- row: StageRow(key, job, ns, ord, id, name, state, version, on_failure, sealed, takes_more, gate, started_at, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, conditional, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, collect, metrics, trace, error_count, updated_at)
SELECT s.key, s.job, s.ns, s.ord, CAST(s.id AS text) AS id, s.name, s.state, s.version, s.on_failure, s.sealed, s.takes_more,
    s.gate, s.started_at, s.opened_to, s.opened_at, s.due_at, s.ending, s.ending_why, s.ending_how, s.deciding,
    CASE WHEN s.condition IS NULL THEN 0 ELSE 1 END AS conditional, s.total, s.open, s.blocked, s.waiting_input, s.succeeded, s.partly,
    s.failed, s.dead_lettered, s.cancelled, s.redriven, s.retrying, s.collect, s.metrics, s.trace, s.error_count,
    s.updated_at
FROM onetray.stage AS s WHERE s.job = :job AND s.name = :name;

-- name: names_of_stages
SELECT s.name FROM onetray.stage AS s WHERE s.job = :job;

-- name: insert_flow
WITH at AS (SELECT nextval('onetray.event_id') AS id) INSERT INTO onetray.flow (key, job, ns, kind, version, sealed, created_at, updated_at, deadline_at, stages,
    stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, state, roll_up, context,
    retry_of, compensates, policy, id, correlation_id, trace, tracestate, priority, data, metadata, events)
SELECT b.key, b.key, b.ns, b.kind, 1, b.sealed, b.at, b.at, b.deadline_at, b.stages, b.stages, 0, 0, 0, 0, 0, 0, b.chained,
    b.amends, b.state, b.roll_up, b.context, b.retry_of, b.compensates,
    coalesce(b.policy, (SELECT f.policy FROM onetray.flow AS f WHERE f.key = coalesce(b.retry_of, b.compensates))),
    b.id, b.correlation_id, b.trace, b.tracestate, b.priority, b.data, b.metadata, CAST(at.id + b.place - 1 AS text) FROM at, unnest(:key::bigint[], :ns::integer[], :kind::integer[], :sealed::integer[], :at::bigint[], :deadline_at::bigint[], :stages::integer[], :chained::integer[], :amends::integer[], :state::text[], :roll_up::text[], :context::bigint[], :retry_of::bigint[], :compensates::bigint[], :policy::integer[], :id::uuid[], :correlation_id::text[], :trace::text[], :tracestate::text[], :priority::integer[], :data::text[], :metadata::text[]) WITH ORDINALITY AS b(key, ns, kind, sealed, at, deadline_at, stages, chained, amends, state, roll_up, context, retry_of, compensates, policy, id, correlation_id, trace, tracestate, priority, data, metadata, place);

-- name: insert_stage
WITH at AS (SELECT nextval('onetray.event_id') AS id) INSERT INTO onetray.stage (key, job, ns, ord, version, sealed, takes_more, gate, created_at, updated_at, carried_from,
    total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, state, name,
    on_failure, collect, condition, compensate, approval, id, correlation_id, trace, tracestate, type, data, metadata,
    result, metrics, events)
SELECT b.key, b.job, b.ns, b.ord, 1, b.sealed, b.takes_more, b.gate, b.at, b.at, b.carried_from, b.total, b.total, 0, 0, 0, 0,
    0, 0, 0, 0, b.state, b.name, b.on_failure, b.collect, b.condition, b.compensate, b.approval, b.id, b.correlation_id,
    b.trace, b.tracestate, b.type, b.data, b.metadata, b.result, b.metrics, CAST(at.id + b.place - 1 AS text) FROM at, unnest(:key::bigint[], :job::bigint[], :ns::integer[], :ord::integer[], :sealed::integer[], :takes_more::integer[], :gate::integer[], :at::bigint[], :carried_from::bigint[], :total::integer[], :state::text[], :name::text[], :on_failure::text[], :collect::text[], :condition::text[], :compensate::text[], :approval::text[], :id::uuid[], :correlation_id::text[], :trace::text[], :tracestate::text[], :type::text[], :data::text[], :metadata::text[], :result::text[], :metrics::text[]) WITH ORDINALITY AS b(key, job, ns, ord, sealed, takes_more, gate, at, carried_from, total, state, name, on_failure, collect, condition, compensate, approval, id, correlation_id, trace, tracestate, type, data, metadata, result, metrics, place);

-- name: save_stage
UPDATE onetray.stage SET sealed = b.sealed, opened_to = b.opened_to, opened_at = b.opened_at, due_at = b.due_at,
    ending = b.ending,
    ending_why = b.ending_why, ending_how = b.ending_how, deciding = b.deciding, total = b.total, open = b.open, blocked = b.blocked,
    waiting_input = b.waiting_input, succeeded = b.succeeded, partly = b.partly, failed = b.failed,
    dead_lettered = b.dead_lettered, cancelled = b.cancelled, redriven = b.redriven, retrying = b.retrying,
    metrics = b.metrics, error_count = b.error_count
FROM unnest(:sealed::integer[], :opened_to::bigint[], :opened_at::bigint[], :due_at::bigint[], :ending::text[], :ending_why::text[], :ending_how::text[], :deciding::bigint[], :total::integer[], :open::integer[], :blocked::integer[], :waiting_input::integer[], :succeeded::integer[], :partly::integer[], :failed::integer[], :dead_lettered::integer[], :cancelled::integer[], :redriven::integer[], :retrying::integer[], :metrics::text[], :error_count::integer[], :key::bigint[]) AS b(sealed, opened_to, opened_at, due_at, ending, ending_why, ending_how, deciding, total, open, blocked, waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, retrying, metrics, error_count, key) WHERE stage.key = b.key;

-- name: errors_of_stages
SELECT key, errors FROM onetray.stage WHERE key = ANY(:keys::bigint[]);

-- name: set_errors
UPDATE onetray.stage SET errors = b.errors FROM unnest(:errors::text[], :key::bigint[]) AS b(errors, key) WHERE stage.key = b.key;

-- name: names_of_tasks
-- row: TaskNameRow(key, id, name)
SELECT t.key, CAST(t.id AS text) AS id, t.name FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]);

-- name: set_answer
UPDATE onetray.stage SET answer = b.answer FROM unnest(:answer::text[], :key::bigint[]) AS b(answer, key) WHERE stage.key = b.key;

-- name: save_flow
UPDATE onetray.flow SET sealed = b.sealed, current = b.current, ending = b.ending, ending_how = b.ending_how,
    ending_why = b.ending_why, ending_by = b.ending_by, stages = b.stages, stages_open = b.stages_open,
    succeeded = b.succeeded, partial = b.partial, failed = b.failed, cancelled = b.cancelled, skipped = b.skipped,
    ignored = b.ignored, chained = b.chained, amends = b.amends, context = b.context, priority = b.priority
FROM unnest(:sealed::integer[], :current::bigint[], :ending::text[], :ending_how::text[], :ending_why::text[], :ending_by::text[], :stages::integer[], :stages_open::integer[], :succeeded::integer[], :partial::integer[], :failed::integer[], :cancelled::integer[], :skipped::integer[], :ignored::integer[], :chained::integer[], :amends::integer[], :context::bigint[], :priority::integer[], :key::bigint[]) AS b(sealed, current, ending, ending_how, ending_why, ending_by, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, chained, amends, context, priority, key) WHERE flow.key = b.key;

-- name: set_flow_metadata
UPDATE onetray.flow SET metadata = b.metadata FROM unnest(:metadata::text[], :key::bigint[]) AS b(metadata, key) WHERE flow.key = b.key;

-- name: set_stage_metadata
UPDATE onetray.stage SET metadata = b.metadata FROM unnest(:metadata::text[], :key::bigint[]) AS b(metadata, key) WHERE stage.key = b.key;

-- name: set_priorities
UPDATE onetray.task SET priority = :priority
WHERE task.stage IN (SELECT s.key FROM onetray.stage AS s WHERE s.job = :job) AND task.state IN ('queued');

-- name: set_ranks
UPDATE onetray.ready SET rank = -CAST(:priority AS integer)
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage
WHERE s.job = :job AND t.state IN ('queued')
    AND ready.queue = coalesce(-t.lane, t.queue) AND ready.rank = -t.priority AND ready.task = t.key AND ready.kind = t.kind
RETURNING ready.queue, ready.task;

-- name: set_compensation
UPDATE onetray.flow SET compensation = b.compensation FROM unnest(:compensation::bigint[], :key::bigint[]) AS b(compensation, key) WHERE flow.key = b.key;

-- name: next_to_open
SELECT count(*), max(n.key) FROM (
    SELECT t.key FROM onetray.task AS t WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage ORDER BY t.stage, t.key LIMIT :limit
) AS n;

-- name: open_ready
-- row: OpenedRow(queue, rank, task)
INSERT INTO onetray.ready (queue, rank, task, kind)
SELECT coalesce(-t.lane, t.queue), -t.priority, t.key, t.kind FROM onetray.task AS t
WHERE (t.stage, t.key) > (:stage, :after) AND (t.stage, t.key) <= (:stage, :upto) AND t.key > :after AND t.key <= :upto AND t.stage IS NOT NULL AND t.state IN ('queued') AND t.unmet = 0
    AND t.control = 0 AND t.run_at <= :at
ON CONFLICT DO NOTHING
RETURNING queue, rank, task;

-- name: open_due
INSERT INTO onetray.due (at, task, what, fence)
SELECT t.run_at, t.key, :what, t.fence FROM onetray.task AS t
WHERE (t.stage, t.key) > (:stage, :after) AND (t.stage, t.key) <= (:stage, :upto) AND t.key > :after AND t.key <= :upto AND t.stage IS NOT NULL AND t.state IN ('queued') AND t.unmet = 0
    AND t.control = 0 AND t.run_at > :at AND NOT EXISTS (SELECT 1 FROM onetray.due AS d
        WHERE d.at = t.run_at AND d.task = t.key AND d.what = :what AND d.fence = t.fence)
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence;

-- name: due_there
SELECT 1 FROM onetray.due AS d WHERE d.at = :at AND d.task = :key AND d.what = :what AND d.fence = :fence;

-- name: policies_of_stage
SELECT DISTINCT t.policy FROM onetray.task AS t
WHERE (t.stage, t.key) > (:stage, :after) AND (t.stage, t.key) <= (:stage, :upto) AND t.key > :after AND t.key <= :upto AND t.stage IS NOT NULL AND t.state IN ('queued');

-- name: open_ttl
INSERT INTO onetray.due (at, task, what, fence)
SELECT greatest(t.run_at, :at) + :ttl, t.key, :what, t.fence FROM onetray.task AS t
WHERE (t.stage, t.key) > (:stage, :after) AND (t.stage, t.key) <= (:stage, :upto) AND t.key > :after AND t.key <= :upto AND t.stage IS NOT NULL AND t.state IN ('queued') AND t.unmet = 0
    AND t.control = 0 AND t.policy = :policy
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence;

-- name: queued_of_stage
-- row: ReadyRow(key, queue, rank, kind)
SELECT t.key, coalesce(-t.lane, t.queue) AS queue, -t.priority AS rank, t.kind FROM onetray.task AS t
WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage AND t.state IN ('queued') AND t.unmet = 0 AND t.control <= :most
ORDER BY t.stage, t.key LIMIT :limit;

-- name: unheld_tasks
SELECT t.key FROM onetray.task AS t
WHERE t.stage >= :stage AND t.stage <= :stage AND t.state IN ('queued', 'blocked', 'waiting_input') ORDER BY t.stage, t.key LIMIT :limit;

-- name: unended_tasks
SELECT t.key FROM onetray.task AS t
WHERE t.stage >= :stage AND t.stage <= :stage AND t.state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input') ORDER BY t.stage, t.key LIMIT :limit;

-- name: tasks_without_cancel
SELECT t.key FROM onetray.task AS t
WHERE t.stage >= :stage AND t.stage <= :stage AND t.state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input') AND t.cancel_at IS NULL ORDER BY t.stage, t.key LIMIT :limit;

-- name: dependents
-- row: DependentRow(needs, task, id)
SELECT d.needs, d.task, CAST(t.id AS text) AS id FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs
WHERE d.needs = ANY(:keys::bigint[]);

-- name: meet
UPDATE onetray.task SET unmet = task.unmet - b.met FROM unnest(:met::integer[], :key::bigint[]) AS b(met, key) WHERE task.key = ANY (ARRAY[b.key]);

-- name: insert_dependency
INSERT INTO onetray.dependency (needs, task) SELECT b.needs, b.task FROM unnest(:needs::bigint[], :task::bigint[]) AS b(needs, task) WHERE true ON CONFLICT DO NOTHING;

-- name: members_named
-- row: NamedMemberRow(key, name, id, state, ord)
SELECT t.key, t.name, CAST(t.id AS text) AS id, t.state, s.ord FROM onetray.task AS t
    JOIN onetray.stage AS s ON s.key = t.stage
WHERE t.job = :job AND t.name = ANY(:names::text[]) AND t.control = 0
UNION SELECT t.key, t.name, CAST(t.id AS text), t.state, s.ord FROM onetray.task AS t
    JOIN onetray.stage AS s ON s.key = t.stage
WHERE t.id = ANY(:ids::uuid[]) AND t.job = :job AND t.control = 0;

-- name: results_of_stage
-- row: ResultRow(key, id, name, state, result)
SELECT t.key, CAST(t.id AS text) AS id, t.name, t.state, t.result FROM onetray.task AS t
WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage AND t.control = 0 ORDER BY t.stage, t.key LIMIT :limit;

-- name: size_of_results
SELECT coalesce(sum(length(t.result)), 0) FROM onetray.task AS t WHERE t.stage = :stage AND t.control = 0;

-- name: size_before
SELECT coalesce(sum(length(s.result)), 0) FROM onetray.stage AS s WHERE s.job = :job AND s.ord < :ord;

-- name: results_before
SELECT s.name, s.result FROM onetray.stage AS s
WHERE s.job = :job AND s.ord < :ord AND s.state IN ('succeeded', 'partial', 'failed', 'skipped', 'cancelled') ORDER BY s.ord;

-- name: results_needed
-- row: NeededResultRow(id, name, result)
SELECT CAST(t.id AS text) AS id, t.name, t.result FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs
WHERE d.task = :task ORDER BY t.key;

-- name: specs_of_stage
-- row: StageSpecsRow(condition, approval, answer)
SELECT condition, approval, answer FROM onetray.stage WHERE key = :key;

-- name: data_of_flow
SELECT data FROM onetray.flow WHERE key = :key;

-- name: to_compensate
-- row: CompensationRow(id, name, compensate, result)
SELECT CAST(s.id AS text) AS id, s.name, s.compensate, s.result FROM onetray.stage AS s
WHERE s.job = :job AND s.compensate IS NOT NULL AND (s.succeeded > 0 OR s.carried_from IS NOT NULL) ORDER BY s.ord DESC;

-- name: successor_in_stage
-- row: MemberRow(key, stage, id, name, state)
SELECT t.key, t.stage, CAST(t.id AS text) AS id, t.name, t.state FROM onetray.task AS t
WHERE t.stage = :stage AND t.retry_of = :key;

-- name: members_to_copy
-- row: TaskToCopy(key, id, queue, kind, policy, priority, max_attempts, correlation_id, trace, payload, name, spawned_by, metadata, tracestate, context, idempotency_key)
SELECT t.key, CAST(t.id AS text) AS id, t.queue, t.kind, t.policy, t.priority, t.max_attempts, t.correlation_id, t.trace,
    t.payload, t.name, t.spawned_by, t.metadata, t.tracestate, t.context, t.idempotency_key
FROM onetray.task AS t WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage AND t.control = 0
    AND NOT EXISTS (SELECT 1 FROM onetray.task AS o WHERE o.key = t.retry_of AND o.stage = t.stage)
    AND NOT EXISTS (SELECT 1 FROM onetray.task AS p JOIN onetray.stage AS ps ON ps.key = p.stage
        WHERE p.key = t.spawned_by AND ps.ord >= :ord)
ORDER BY t.stage, t.key LIMIT :limit;

-- name: outcomes_of_members
-- row: MemberOutcomeRow(key, id, state, attempts, cancel_at, error, ended_by)
SELECT t.key, CAST(t.id AS text) AS id, t.state, t.attempts, t.cancel_at, t.error,
    CASE WHEN t.state = :cancelled THEN (SELECT coalesce(eb.actor, CAST(CAST(eb.varied AS json) -> 'actor' ->> CAST(i.value - eb.id AS integer) AS text)) FROM (SELECT CAST(split_part(t.events, ',', -1) AS bigint) AS value) AS i JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true) END
    AS ended_by
FROM onetray.task AS t WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage AND t.control = 0 ORDER BY t.stage, t.key;

-- name: told_by_successes
SELECT t.key, coalesce(eb.payload, CAST(CAST(eb.varied AS json) -> 'payload' ->> CAST(i.value - eb.id AS integer) AS text)) FROM onetray.task AS t CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[])) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE t.key = ANY(:keys::bigint[]) AND eb.state = :succeeded AND coalesce(eb.payload, CAST(CAST(eb.varied AS json) -> 'payload' ->> CAST(i.value - eb.id AS integer) AS text)) IS NOT NULL;

-- name: spawned_in_stage
SELECT t.key FROM onetray.task AS t WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage AND t.spawned_by IS NOT NULL ORDER BY t.stage, t.key;

-- name: needs_of
SELECT d.task, d.needs FROM onetray.dependency AS d WHERE d.task = ANY(:keys::bigint[]) ORDER BY d.task, d.needs;

-- name: needed_by
-- row: MemberRow(key, stage, id, name, state)
SELECT t.key, t.stage, CAST(t.id AS text) AS id, t.name, t.state
FROM onetray.dependency AS d JOIN onetray.task AS t ON t.key = d.needs WHERE d.task = :task ORDER BY d.needs;

-- name: dependencies_of
-- row: Dependency(task_id, needs_id, needs_alias)
SELECT CAST(t.id AS text) AS task_id, CAST(o.id AS text) AS needs_id,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = o.key) AS needs_alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.dependency AS d ON d.task = t.key
    JOIN onetray.task AS o ON o.key = d.needs
WHERE t.id = ANY(:ids::uuid[]) AND n.name = :namespace;

-- name: stages_to_copy
-- row: StageToCopy(key, ord, name, state, on_failure, sealed, takes_more, gate, collect, condition, compensate, approval, data, metadata, result, metrics, succeeded, carried_from, type, trace, tracestate)
SELECT s.key, s.ord, s.name, s.state, s.on_failure, s.sealed, s.takes_more, s.gate, s.collect, s.condition, s.compensate,
    s.approval, s.data, s.metadata, s.result, s.metrics, s.succeeded, s.carried_from, s.type, s.trace, s.tracestate
FROM onetray.stage AS s WHERE s.job = :job ORDER BY s.ord;

-- name: stage_carried_from
-- row: CarriedStageRow(key, carried_from, gate, condition, compensate)
SELECT s.key, s.carried_from, s.gate, s.condition, s.compensate
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL WHERE s.key = :key;

-- name: successors_in_stage
-- row: SuccessorRow(key, retry_of, name)
SELECT t.key, t.retry_of, t.name FROM onetray.task AS t JOIN onetray.task AS o ON o.key = t.retry_of AND o.stage = t.stage
WHERE t.stage = :stage AND t.key > 0 ORDER BY t.stage, t.key;

-- name: clear_task_name
UPDATE onetray.task SET name = NULL WHERE key = :key;

-- name: flow_to_copy
-- row: FlowToCopy(ns, kind, roll_up, sealed, correlation_id, trace, data, metadata, context, deadline_us, compensates, compensation, priority, tracestate)
SELECT f.ns, f.kind, f.roll_up, f.sealed, f.correlation_id, f.trace, f.data, f.metadata, c.payload AS context,
    f.deadline_at - f.created_at AS deadline_us, f.compensates, f.compensation, f.priority, f.tracestate
FROM onetray.flow AS f LEFT JOIN onetray.context AS c ON c.key = f.context WHERE f.key = :key;

-- name: insert_context
INSERT INTO onetray.context (key, job, ns, task, parent, created_at, scope, label, id, payload)
SELECT b.key, b.job, b.ns, b.task, b.parent, b.at, b.scope, b.label, b.id, b.payload FROM unnest(:key::bigint[], :job::bigint[], :ns::integer[], :task::bigint[], :parent::bigint[], :at::bigint[], :scope::text[], :label::text[], :id::uuid[], :payload::text[]) AS b(key, job, ns, task, parent, at, scope, label, id, payload);

-- name: context_in_flow
SELECT c.key FROM onetray.context AS c WHERE c.job = :job AND c.key IN (
    SELECT i.key FROM onetray.context AS i WHERE i.id = :id
    UNION SELECT a.key FROM onetray.alias AS a WHERE a.ns = :ns AND a.alias = :alias
);

-- name: context_by_id
-- row: Context(key, id, flow_id, task_id, scope, parent_id, label, payload, created_at, alias)
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = c.key) AS alias
FROM onetray.context AS c JOIN onetray.flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN onetray.namespace AS n ON n.key = c.ns
    LEFT JOIN onetray.task AS t ON t.key = c.task LEFT JOIN onetray.context AS p ON p.key = c.parent WHERE n.name = :namespace AND c.key IN (
    SELECT i.key FROM onetray.context AS i WHERE i.id = :id
    UNION SELECT a.key FROM onetray.alias AS a JOIN onetray.namespace AS m ON m.key = a.ns
        WHERE m.name = :namespace AND a.alias = :alias
);

-- name: contexts_of_flow
-- row: Context(key, id, flow_id, task_id, scope, parent_id, label, payload, created_at, alias)
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = c.key) AS alias
FROM onetray.context AS c JOIN onetray.flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN onetray.namespace AS n ON n.key = c.ns
    LEFT JOIN onetray.task AS t ON t.key = c.task LEFT JOIN onetray.context AS p ON p.key = c.parent WHERE f.id = :id AND n.name = :namespace AND c.key > :after ORDER BY c.key LIMIT :limit;

-- name: current_context
-- row: Context(key, id, flow_id, task_id, scope, parent_id, label, payload, created_at, alias)
SELECT c.key, CAST(c.id AS text) AS id, CAST(f.id AS text) AS flow_id, CAST(t.id AS text) AS task_id, c.scope,
    CAST(p.id AS text) AS parent_id, c.label, c.payload, c.created_at,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = c.key) AS alias
FROM onetray.context AS c JOIN onetray.flow AS f ON f.key = c.job AND f.deleted_at IS NULL JOIN onetray.namespace AS n ON n.key = c.ns
    LEFT JOIN onetray.task AS t ON t.key = c.task LEFT JOIN onetray.context AS p ON p.key = c.parent WHERE f.id = :id AND n.name = :namespace AND c.key = f.context;

-- name: key_of_flow
SELECT f.key FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
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
    (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM onetray.context AS x WHERE x.key = f.context) AS context_id
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind LEFT JOIN onetray.stage AS s ON s.key = f.current LEFT JOIN onetray.flow AS o ON o.key = f.retry_of
    LEFT JOIN onetray.flow AS c ON c.key = f.compensates LEFT JOIN onetray.flow AS u ON u.key = f.compensation WHERE f.id = :id AND n.name = :namespace;

-- name: flows_by_keys
-- row: FlowDetails(key, id, namespace, name, state, version, roll_up, sealed, created_at, updated_at, started_at, finished_at, deadline_at, ending, ending_how, current_stage, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, retry_of, compensates, compensation, correlation_id, trace, tracestate, priority, data, metadata, error, labels, alias, context_id)
SELECT f.key, CAST(f.id AS text) AS id, n.name AS namespace, k.name, f.state, f.version, f.roll_up, f.sealed,
    f.created_at, f.updated_at, f.started_at, f.finished_at, f.deadline_at,
    CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    CASE WHEN f.finished_at IS NULL THEN f.ending_how END AS ending_how, s.name AS current_stage, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, CAST(o.id AS text) AS retry_of,
    CAST(c.id AS text) AS compensates, CAST(u.id AS text) AS compensation, f.correlation_id, f.trace, f.tracestate,
    f.priority, f.data, f.metadata, f.error,
    (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM onetray.context AS x WHERE x.key = f.context) AS context_id
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind LEFT JOIN onetray.stage AS s ON s.key = f.current LEFT JOIN onetray.flow AS o ON o.key = f.retry_of
    LEFT JOIN onetray.flow AS c ON c.key = f.compensates LEFT JOIN onetray.flow AS u ON u.key = f.compensation WHERE f.key = ANY(:keys::bigint[]);

-- name: flows_newest
-- row: FlowDetails(key, id, namespace, name, state, version, roll_up, sealed, created_at, updated_at, started_at, finished_at, deadline_at, ending, ending_how, current_stage, stages, stages_open, succeeded, partial, failed, cancelled, skipped, ignored, retry_of, compensates, compensation, correlation_id, trace, tracestate, priority, data, metadata, error, labels, alias, context_id)
SELECT f.key, CAST(f.id AS text) AS id, n.name AS namespace, k.name, f.state, f.version, f.roll_up, f.sealed,
    f.created_at, f.updated_at, f.started_at, f.finished_at, f.deadline_at,
    CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    CASE WHEN f.finished_at IS NULL THEN f.ending_how END AS ending_how, s.name AS current_stage, f.stages,
    f.stages_open, f.succeeded, f.partial, f.failed, f.cancelled, f.skipped, f.ignored, CAST(o.id AS text) AS retry_of,
    CAST(c.id AS text) AS compensates, CAST(u.id AS text) AS compensation, f.correlation_id, f.trace, f.tracestate,
    f.priority, f.data, f.metadata, f.error,
    (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = f.key)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias,
    (SELECT CAST(x.id AS text) FROM onetray.context AS x WHERE x.key = f.context) AS context_id
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind LEFT JOIN onetray.stage AS s ON s.key = f.current LEFT JOIN onetray.flow AS o ON o.key = f.retry_of
    LEFT JOIN onetray.flow AS c ON c.key = f.compensates LEFT JOIN onetray.flow AS u ON u.key = f.compensation WHERE n.name = :namespace AND f.key < :before ORDER BY f.key DESC LIMIT :limit;

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
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns LEFT JOIN onetray.stage AS w ON w.key = s.carried_from WHERE s.id = :id AND n.name = :namespace;

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
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns LEFT JOIN onetray.stage AS w ON w.key = s.carried_from WHERE f.id = :id AND n.name = :namespace ORDER BY s.ord;

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
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns LEFT JOIN onetray.stage AS w ON w.key = s.carried_from WHERE s.job = ANY(:keys::bigint[]) ORDER BY s.job, s.ord;

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
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns LEFT JOIN onetray.stage AS w ON w.key = s.carried_from WHERE f.id = ANY(:ids::uuid[]) AND n.name = :namespace ORDER BY s.job, s.ord;

-- name: held_in_stages
-- row: HeldInStageRow(stage, held, retried, progress)
SELECT h.stage, count(*) AS held, sum(CASE WHEN h.attempts > 1 THEN 1 ELSE 0 END) AS retried, coalesce(sum((
    SELECT CASE WHEN p.done < p.total THEN p.done / p.total ELSE 1.0 END FROM onetray.progress AS p
    WHERE p.task = h.task AND p.total > 0 AND p.attempt = h.attempts
)), 0) AS progress
FROM (
    SELECT j.value AS task,
        (SELECT t.stage FROM onetray.task AS t WHERE t.key = j.value AND t.lease = l.key AND t.control = 0) AS stage,
        (SELECT t.attempts FROM onetray.task AS t WHERE t.key = j.value) AS attempts
    FROM onetray.lease AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value)
) AS h
WHERE h.stage = ANY(:stages::bigint[]) GROUP BY h.stage;

-- name: tasks_of_stage
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage ORDER BY t.stage, t.key LIMIT :limit;

-- name: tasks_of_stages
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.stage = ANY(:stages::bigint[]) AND n.name = :namespace AND t.control = 0
ORDER BY t.stage, t.key LIMIT :limit;

-- name: members_to_fold
-- row: FlowMemberRow(key, stage, control, retry_of, name)
SELECT t.key, t.stage, t.control, t.retry_of, t.name FROM onetray.task AS t WHERE t.stage = ANY(:stages::bigint[])
ORDER BY t.stage, t.key LIMIT :limit;

-- name: tasks_of_flow
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease JOIN onetray.stage AS s ON s.key = t.stage
WHERE s.job = :job AND (s.ord, t.key) > (:ord, :after) ORDER BY s.ord, t.key LIMIT :limit;

-- name: place_of_task
-- row: PlaceRow(key, job, ord)
SELECT t.key, t.job, s.ord FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage
    JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: due_now
-- row: DueRow(at, task, what, fence)
SELECT at, task, what, fence FROM onetray.due WHERE at <= :now AND what = ANY(:known::text[])
ORDER BY at, task, what LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: delete_due
DELETE FROM onetray.due WHERE due.ctid = ANY(ARRAY(SELECT (SELECT due.ctid FROM onetray.due WHERE due.at = b.at AND due.task = b.key AND due.what = b.what) FROM unnest(:at::bigint[], :key::bigint[], :what::text[]) AS b(at, key, what)));

-- name: next_due
SELECT min(at) FROM onetray.due WHERE what = ANY(:known::text[]);

-- name: next_expiry
SELECT min(expires_at) FROM onetray.lease;

-- name: prunable_jobs
SELECT t.key FROM onetray.task AS t
WHERE t.key > :after AND t.key <= :upto AND t.created_at <= :before AND t.finished_at IS NOT NULL AND t.finished_at <= :before
    AND t.key = t.job AND (CAST(:ns AS integer) IS NULL OR t.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM onetray.idempotency AS i WHERE i.job = t.key AND i.expires_at > :now)
ORDER BY t.key LIMIT :limit FOR UPDATE OF t SKIP LOCKED;

-- name: prunable_flows
SELECT f.key FROM onetray.flow AS f
WHERE f.key > :after AND f.key <= :upto AND f.created_at <= :before AND f.finished_at IS NOT NULL AND f.finished_at <= :before
    AND (CAST(:ns AS integer) IS NULL OR f.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM onetray.idempotency AS i WHERE i.job = f.key AND i.expires_at > :now)
    AND NOT EXISTS (SELECT 1 FROM onetray.stage AS s WHERE s.job = f.key AND s.open > 0)
    AND NOT EXISTS (SELECT 1 FROM onetray.flow AS c WHERE c.key = f.compensation AND c.finished_at IS NULL)
ORDER BY f.key LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: next_tasks
SELECT max(n.key), min(n.created_at)
FROM (SELECT key, created_at FROM onetray.task WHERE key > :after ORDER BY key LIMIT :span) AS n;

-- name: next_flows
SELECT max(n.key), min(n.created_at)
FROM (SELECT key, created_at FROM onetray.flow WHERE key > :after ORDER BY key LIMIT :span) AS n;

-- name: turn_to_prune
SELECT pg_try_advisory_xact_lock(7136211506);

-- name: sizes_of_flows
SELECT job, CAST(sum(total) AS bigint) FROM onetray.stage WHERE job = ANY(:keys::bigint[]) GROUP BY job;

-- name: stage_keys_of_flows
SELECT key FROM onetray.stage WHERE job = ANY(:keys::bigint[]);

-- name: members_of_stages
SELECT key FROM onetray.task WHERE stage = ANY(:keys::bigint[]);

-- name: prune_dependencies
DELETE FROM onetray.dependency WHERE task = ANY(:keys::bigint[]);

-- name: prune_contexts
DELETE FROM onetray.context WHERE job = ANY(:keys::bigint[]);

-- name: prune_stages
DELETE FROM onetray.stage WHERE key = ANY(:keys::bigint[]);

-- name: prune_flows
DELETE FROM onetray.flow WHERE key = ANY(:keys::bigint[]);

-- name: jobs_of_idempotency
SELECT job FROM onetray.idempotency WHERE job = ANY(:keys::bigint[]);

-- name: lock_jobs_of_idempotency
SELECT job FROM onetray.idempotency WHERE job = ANY(:keys::bigint[]) FOR UPDATE SKIP LOCKED;

-- name: jobs_of_unique_keys
SELECT job FROM onetray.unique_key WHERE job = ANY(:keys::bigint[]);

-- name: lock_jobs_of_unique_keys
SELECT job FROM onetray.unique_key WHERE job = ANY(:keys::bigint[]) FOR UPDATE SKIP LOCKED;

-- name: jobs_of_submit_windows
SELECT job FROM onetray.submit_window WHERE job = ANY(:keys::bigint[]);

-- name: lock_jobs_of_submit_windows
SELECT job FROM onetray.submit_window WHERE job = ANY(:keys::bigint[]) FOR UPDATE SKIP LOCKED;

-- name: prune_submit_windows
DELETE FROM onetray.submit_window WHERE job = ANY(:keys::bigint[]);

-- name: prune_idempotency
DELETE FROM onetray.idempotency WHERE job = ANY(:keys::bigint[]);

-- name: prune_unique_keys
DELETE FROM onetray.unique_key WHERE job = ANY(:keys::bigint[]);

-- name: prune_labels
DELETE FROM onetray.label WHERE job = ANY(:keys::bigint[]);

-- name: prune_aliases
DELETE FROM onetray.alias WHERE key = ANY(:keys::bigint[]);

-- name: prune_aliases_of_contexts
DELETE FROM onetray.alias WHERE key IN (SELECT c.key FROM onetray.context AS c WHERE c.job = ANY(:keys::bigint[]));

-- name: prune_dead_letters
DELETE FROM onetray.dead_letter WHERE task = ANY(:keys::bigint[]);

-- name: prune_logs
DELETE FROM onetray.log WHERE task = ANY(:keys::bigint[]);

-- name: prune_tasks
DELETE FROM onetray.task WHERE key = ANY(:keys::bigint[]);

-- name: prune_deletions
DELETE FROM onetray.event_batch WHERE id IN (
    SELECT e.id FROM onetray.event_batch AS e WHERE e.type = :type AND e.ts <= :before
        AND (CAST(:ns AS integer) IS NULL OR e.ns = :ns)
    ORDER BY e.ts LIMIT :limit
)
RETURNING id;

-- name: prune_notes
WITH old AS MATERIALIZED (
    SELECT e.id FROM onetray.event_batch AS e WHERE e.state IS NULL AND e.type = ANY(:types::text[]) AND e.ts < :before
    LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM onetray.event_batch WHERE id IN (SELECT o.id FROM old AS o)
RETURNING coalesce(job, entity), id;

-- name: prune_flow_events_by_id
DELETE FROM onetray.flow_event WHERE flow_event.ctid = ANY(ARRAY(SELECT (SELECT flow_event.ctid FROM onetray.flow_event WHERE flow_event.job = b.job AND flow_event.batch = b.key) FROM unnest(:job::bigint[], :key::bigint[]) AS b(job, key)));

-- name: take_key
INSERT INTO onetray.idempotency (kind, key, job, body_hash, expires_at)
SELECT b.kind, b.key, b.job, b.body_hash, b.expires_at FROM unnest(:kind::integer[], :key::text[], :job::bigint[], :body_hash::text[], :expires_at::bigint[]) AS b(kind, key, job, body_hash, expires_at) WHERE true
ON CONFLICT (kind, key) DO UPDATE SET job = excluded.job, body_hash = excluded.body_hash,
    expires_at = excluded.expires_at
WHERE idempotency.expires_at <= :now;

-- name: keys_taken
-- row: KeyHolderRow(kind, key, job, body_hash, finished_at, id, state, fence, version, single)
SELECT i.kind, i.key, i.job, i.body_hash, coalesce(t.finished_at, f.finished_at) AS finished_at, coalesce(CAST(t.id AS text), CAST(f.id AS text)) AS id,
    coalesce(t.state, f.state) AS state, coalesce(t.fence, 0) AS fence, coalesce(t.version, f.version) AS version,
    CASE WHEN t.key IS NULL THEN 0 ELSE 1 END AS single
FROM onetray.idempotency AS i LEFT JOIN onetray.task AS t ON t.key = i.job
    LEFT JOIN onetray.flow AS f ON f.key = i.job JOIN unnest(:kind::integer[], :key::text[]) AS b(kind, key) ON i.kind = b.kind AND i.key = b.key;

-- name: link_key
UPDATE onetray.idempotency SET job = b.job FROM unnest(:job::bigint[], :kind::integer[], :key::text[]) AS b(job, kind, key) WHERE idempotency.kind = b.kind AND idempotency.key = b.key;

-- name: free_key
DELETE FROM onetray.idempotency WHERE idempotency.ctid = ANY(ARRAY(SELECT (SELECT idempotency.ctid FROM onetray.idempotency WHERE idempotency.kind = b.kind AND idempotency.key = b.key) FROM unnest(:kind::integer[], :key::text[]) AS b(kind, key)));

-- name: lock_unique
INSERT INTO onetray.unique_key (kind, key, job) SELECT b.kind, b.key, b.job FROM unnest(:kind::integer[], :key::text[], :job::bigint[]) AS b(kind, key, job) WHERE true
ON CONFLICT (kind, key) DO UPDATE SET job = excluded.job WHERE false;

-- name: unique_held
-- row: KeyHolderRow(kind, key, job, body_hash, finished_at, id, state, fence, version, single)
SELECT u.kind, u.key, u.job, '' AS body_hash, coalesce(t.finished_at, f.finished_at) AS finished_at, coalesce(CAST(t.id AS text), CAST(f.id AS text)) AS id,
    coalesce(t.state, f.state) AS state, coalesce(t.fence, 0) AS fence, coalesce(t.version, f.version) AS version,
    CASE WHEN t.key IS NULL THEN 0 ELSE 1 END AS single
FROM onetray.unique_key AS u LEFT JOIN onetray.task AS t ON t.key = u.job
    LEFT JOIN onetray.flow AS f ON f.key = u.job JOIN unnest(:kind::integer[], :key::text[]) AS b(kind, key) ON u.kind = b.kind AND u.key = b.key;

-- name: take_unique
UPDATE onetray.unique_key SET job = b.job FROM unnest(:job::bigint[], :kind::integer[], :key::text[]) AS b(job, kind, key) WHERE unique_key.kind = b.kind AND unique_key.key = b.key;

-- name: lock_windows
INSERT INTO onetray.submit_window (kind, mode, key, job, opened_at, until_at, replaced)
SELECT b.kind, b.mode, b.key, 0, 0, 0, 0 FROM unnest(:kind::integer[], :mode::text[], :key::text[]) AS b(kind, mode, key) WHERE true
ON CONFLICT (kind, mode, key) DO UPDATE SET job = excluded.job WHERE false;

-- name: windows_held
-- row: WindowRow(kind, mode, key, job, opened_at, until_at, replaced, id, state, fence, version)
SELECT w.kind, w.mode, w.key, w.job, w.opened_at, w.until_at, w.replaced, CAST(t.id AS text) AS id, t.state, t.fence, t.version
FROM onetray.submit_window AS w LEFT JOIN onetray.task AS t ON t.key = w.job
    JOIN unnest(:kind::integer[], :mode::text[], :key::text[]) AS b(kind, mode, key) ON w.kind = b.kind AND w.mode = b.mode AND w.key = b.key;

-- name: save_window
UPDATE onetray.submit_window SET job = b.job, opened_at = b.opened_at, until_at = b.until_at, replaced = b.replaced FROM unnest(:job::bigint[], :opened_at::bigint[], :until_at::bigint[], :replaced::integer[], :kind::integer[], :mode::text[], :key::text[]) AS b(job, opened_at, until_at, replaced, kind, mode, key)
WHERE submit_window.kind = b.kind AND submit_window.mode = b.mode AND submit_window.key = b.key;

-- name: drop_window
DELETE FROM onetray.submit_window WHERE submit_window.ctid = ANY(ARRAY(SELECT (SELECT submit_window.ctid FROM onetray.submit_window WHERE submit_window.kind = b.kind AND submit_window.mode = b.mode
    AND submit_window.key = b.key) FROM unnest(:kind::integer[], :mode::text[], :key::text[]) AS b(kind, mode, key)));

-- name: debounced_job
-- row: DebouncedRow(until_at, replaced)
SELECT w.until_at, w.replaced FROM onetray.submit_window AS w WHERE w.job = :job AND w.mode = :mode;

-- name: insert_label
INSERT INTO onetray.label (job, name, value, ns) SELECT b.job, b.name, b.value, b.ns FROM unnest(:job::bigint[], :name::text[], :value::text[], :ns::integer[]) AS b(job, name, value, ns);

-- name: copy_labels
INSERT INTO onetray.label (job, name, value, ns)
SELECT :to, name, value, ns FROM onetray.label WHERE job = :of;

-- name: find_lanes
SELECT l.value, l.key FROM onetray.lane AS l
WHERE l.queue = :queue AND l.kind = :kind AND l.value = ANY(:values::text[]) AND l.retired_at IS NULL;

-- name: add_lane
INSERT INTO onetray.lane (key, ns, queue, kind, value, fair, weight)
SELECT b.key, :ns, :queue, :kind, b.value, b.fair,
    coalesce((SELECT w.weight FROM onetray.lane_weight AS w WHERE w.kind = :kind AND w.value = b.fair), 1) FROM unnest(:key::bigint[], :value::text[], :fair::text[]) AS b(key, value, fair)
WHERE true ON CONFLICT (queue, kind, value) DO UPDATE SET retired_at = NULL;

-- name: set_weight
INSERT INTO onetray.lane_weight (kind, value, weight) VALUES (:kind, :value, :weight)
ON CONFLICT (kind, value) DO UPDATE SET weight = excluded.weight;

-- name: lanes_to_weigh
SELECT key FROM onetray.lane WHERE kind = :kind AND fair = :value ORDER BY key FOR NO KEY UPDATE;

-- name: weigh_lanes
UPDATE onetray.lane SET weight = :weight WHERE key = ANY(:keys::integer[]);

-- name: weight_of
SELECT value, weight FROM onetray.lane_weight WHERE kind = :kind AND value = :value;

-- name: share_lanes
-- row: LaneEntryRow(key, queue, kind, fair, state, rank, turn, retired_at)
SELECT key, queue, kind, fair, state, rank, turn, retired_at FROM onetray.lane WHERE key = ANY(:keys::integer[])
ORDER BY key FOR KEY SHARE;

-- name: lock_lanes_to_open
-- row: LaneEntryRow(key, queue, kind, fair, state, rank, turn, retired_at)
SELECT key, queue, kind, fair, state, rank, turn, retired_at FROM onetray.lane WHERE key = ANY(:keys::integer[])
ORDER BY key FOR NO KEY UPDATE;

-- name: first_turns
SELECT b.key, (SELECT l.turn FROM onetray.lane AS l WHERE l.state = 1 AND l.queue = b.queue AND l.kind = b.kind
    AND l.rank = b.rank ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT 1) FROM unnest(:key::bigint[], :queue::integer[], :kind::integer[], :rank::integer[]) AS b(key, queue, kind, rank);

-- name: enter_lanes
UPDATE onetray.lane SET state = b.lane_state, rank = b.rank, turn = b.turn, retired_at = NULL FROM unnest(:lane_state::integer[], :rank::integer[], :turn::bigint[], :key::bigint[]) AS b(lane_state, rank, turn, key)
WHERE lane.key = b.key;

-- name: set_lanes
UPDATE onetray.lane SET state = b.lane_state, rank = b.rank, turn = b.turn, blocked_on = b.blocked_on,
    blocked_at = b.blocked_at, retired_at = NULL FROM unnest(:lane_state::integer[], :rank::integer[], :turn::bigint[], :blocked_on::bigint[], :blocked_at::bigint[], :key::bigint[]) AS b(lane_state, rank, turn, blocked_on, blocked_at, key) WHERE lane.key = b.key;

-- name: open_lane_kinds
WITH RECURSIVE k(kind) AS (
    SELECT min(l.kind) FROM onetray.lane AS l WHERE l.queue = :queue AND l.state = 1
    UNION ALL SELECT (SELECT min(l.kind) FROM onetray.lane AS l WHERE l.queue = :queue AND l.state = 1 AND l.kind > k.kind)
    FROM k WHERE k.kind IS NOT NULL
) SELECT k.kind FROM k WHERE k.kind IS NOT NULL;

-- name: ready_kinds_of_queue
WITH RECURSIVE k(kind) AS (
    SELECT min(r.kind) FROM onetray.ready AS r WHERE r.queue = :queue
    UNION ALL SELECT (SELECT min(r.kind) FROM onetray.ready AS r WHERE r.queue = :queue AND r.kind > k.kind)
    FROM k WHERE k.kind IS NOT NULL
) SELECT k.kind FROM k WHERE k.kind IS NOT NULL;

-- name: heads_of_open_lanes
-- row: OpenLaneRow(rank, turn, key)
SELECT l.rank, l.turn, l.key FROM onetray.lane AS l WHERE l.queue = :queue AND l.kind = :kind AND l.state = 1
    AND NOT l.key = ANY(:but::integer[])
ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT :limit;

-- name: lock_open_lanes
-- row: LaneRow(key, queue, kind, value, fair, weight, rank, turn)
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM onetray.lane AS l WHERE l.queue = :queue AND l.kind = :kind AND l.state = 1 AND NOT l.key = ANY(:but::integer[])
ORDER BY l.queue, l.kind, l.rank, l.turn, l.key LIMIT :limit FOR NO KEY UPDATE OF l SKIP LOCKED;

-- name: lock_open_lane
-- row: LaneRow(key, queue, kind, value, fair, weight, rank, turn)
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM onetray.lane AS l WHERE l.key = :key AND l.state = 1 FOR NO KEY UPDATE OF l;

-- name: lock_lanes_by_key
-- row: LaneRow(key, queue, kind, value, fair, weight, rank, turn)
SELECT l.key, l.queue, l.kind, l.value, l.fair, l.weight, l.rank, l.turn FROM onetray.lane AS l WHERE l.key = ANY(:keys::integer[]) AND l.state = 1 ORDER BY l.key FOR NO KEY UPDATE OF l SKIP LOCKED;

-- name: lock_blocked_lanes
-- row: BlockedLaneRow(key, queue, kind, fair, rank, turn, blocked_on, value, weight)
SELECT l.key, l.queue, l.kind, l.fair, l.rank, l.turn, i.value AS blocked_on, l.value, l.weight FROM unnest(:keys::bigint[], :limits::bigint[]) AS i(value, n) CROSS JOIN LATERAL (SELECT x.key, x.queue, x.kind, x.fair, x.rank, x.turn, x.value, x.weight FROM onetray.lane AS x WHERE x.state = 2 AND x.blocked_on = i.value ORDER BY x.blocked_on, x.rank, x.turn, x.key LIMIT i.n FOR NO KEY UPDATE OF x SKIP LOCKED) AS l;

-- name: still_blocked
SELECT i.value FROM unnest(:keys::bigint[]) AS i(value)
WHERE EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = i.value);

-- name: blocked_of_rule
SELECT l.blocked_on, l.key FROM onetray.limit_bucket AS k JOIN onetray.lane AS l ON l.state = 2 AND l.blocked_on = k.key
WHERE k.rule = :rule LIMIT :limit;

-- name: open_lanes_of_buckets
UPDATE onetray.lane SET state = 1, blocked_on = NULL, blocked_at = NULL WHERE state = 2 AND blocked_on = ANY(:keys::bigint[]);

-- name: claim_lanes
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at FROM unnest(:keys::bigint[], :limits::bigint[]) AS i(value, n) CROSS JOIN LATERAL (SELECT x.rank, x.task FROM onetray.ready AS x WHERE x.queue = CAST(-i.value AS integer) ORDER BY x.queue, x.rank, x.task LIMIT i.n FOR UPDATE OF x SKIP LOCKED) AS r JOIN onetray.task AS t ON t.key = ANY (ARRAY[r.task]) FOR UPDATE OF t SKIP LOCKED;

-- name: first_keys_of_lanes
SELECT json_object_agg(i.value, CAST((SELECT json_agg(json_build_array(f.rank, f.task)) FROM (SELECT r.rank, r.task FROM onetray.ready AS r
    WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT :limit) AS f) AS text)) FROM unnest(:lanes::integer[]) AS i(value);

-- name: claim_tasks
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT -t.priority AS rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at FROM unnest(:keys::bigint[]) AS i(value) JOIN onetray.task AS t ON t.key = i.value;

-- name: heads_of_lanes
-- row: LaneHeadRow(key, rank, task)
SELECT i.value AS key, (SELECT r.rank FROM onetray.ready AS r WHERE r.queue = -i.value
        ORDER BY r.queue, r.rank, r.task LIMIT 1) AS rank,
    (SELECT r.task FROM onetray.ready AS r WHERE r.queue = -i.value ORDER BY r.queue, r.rank, r.task LIMIT 1) AS task
FROM unnest(:lanes::integer[]) AS i(value);

-- name: lock_empty_lanes
SELECT l.key FROM onetray.lane AS l WHERE l.key = ANY(:keys::integer[]) ORDER BY l.key FOR UPDATE OF l SKIP LOCKED;

-- name: values_of_lanes
SELECT l.key, l.value FROM onetray.lane AS l WHERE l.key = ANY(:keys::integer[]);

-- name: idle_lanes
SELECT l.key FROM onetray.lane AS l
WHERE l.key > :after AND l.state = 0 AND (CAST(:ns AS integer) IS NULL OR l.ns = :ns) ORDER BY l.key LIMIT :limit;

-- name: lanes_of_tasks
SELECT DISTINCT lane FROM onetray.task WHERE key > :after AND key <= :upto AND lane IS NOT NULL AND finished_at IS NULL;

-- name: retire_lanes
UPDATE onetray.lane SET retired_at = :at WHERE key = ANY(:keys::integer[]) AND state = 0 AND retired_at IS NULL;

-- name: delete_lanes
DELETE FROM onetray.lane WHERE key = ANY(:keys::integer[]) AND state = 0 AND retired_at <= :before RETURNING ns, kind;

-- name: lock_idle_buckets
SELECT k.key FROM onetray.limit_rule AS r JOIN onetray.limit_bucket AS k ON k.rule = r.key
WHERE r.kind = ANY(:kinds::integer[]) AND r.path <> '' AND k.running = 0 AND k.due_at IS NULL AND (k.starts = '[]' OR k.next_at < :now - r.period)
    AND NOT EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key) LIMIT :limit FOR UPDATE OF k SKIP LOCKED;

-- name: delete_idle_buckets
DELETE FROM onetray.limit_bucket WHERE key IN (
    SELECT k.key FROM onetray.limit_rule AS r JOIN onetray.limit_bucket AS k ON k.rule = r.key
    WHERE k.key = ANY(:keys::bigint[]) AND r.path <> '' AND k.running = 0 AND k.due_at IS NULL AND (k.starts = '[]' OR k.next_at < :now - r.period)
    AND NOT EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key));

-- name: insert_lease
INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
SELECT b.key, b.ns, b.worker, b.expires_at, b.length, b.tasks, b.request_key, b.part, b.expiry_counts FROM unnest(:key::bigint[], :ns::integer[], :worker::text[], :expires_at::bigint[], :length::bigint[], :tasks::text[], :request_key::text[], :part::integer[], :expiry_counts::integer[]) AS b(key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts);

-- name: leases_of_request
-- row: LeaseRow(key, tasks, expires_at, length)
SELECT key, tasks, expires_at, length FROM onetray.lease
WHERE ns = :ns AND worker = :worker AND request_key = :request_key ORDER BY part;

-- name: clear_request_keys
UPDATE onetray.lease SET request_key = NULL WHERE key = ANY(:keys::bigint[]);

-- name: claimed_again
-- row: ReclaimedRow(key, id, kind, policy, fence, attempts, payload, input, correlation_id, trace, lease, state, queue, job, idempotency_key)
SELECT t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.fence, t.attempts, t.payload, t.input, t.correlation_id,
    t.trace, t.lease, t.state, t.queue, t.job, t.idempotency_key
FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]) ORDER BY t.key;

-- name: lock_leases
SELECT key FROM onetray.lease WHERE key = ANY(:keys::bigint[]) ORDER BY key FOR UPDATE;

-- name: renew_lease
-- row: RenewedRow(key, expires_at, tasks)
UPDATE onetray.lease SET expires_at = greatest(lease.expires_at, b.at + coalesce(b.length, lease.length)) FROM unnest(:at::bigint[], :length::bigint[], :key::bigint[]) AS b(at, length, key)
WHERE lease.key = b.key AND lease.expires_at >= b.at
RETURNING lease.key, lease.expires_at, lease.tasks;

-- name: expired_leases
SELECT key, tasks FROM onetray.lease WHERE expires_at < :before AND (CAST(:ns AS integer) IS NULL OR ns = :ns)
ORDER BY expires_at, key LIMIT :limit;

-- name: still_expired
SELECT key FROM onetray.lease WHERE key = ANY(:keys::bigint[]) AND expires_at < :before ORDER BY key FOR UPDATE;

-- name: leases_by_key
-- row: LeaseNowRow(key, expires_at, expiry_counts)
SELECT key, expires_at, expiry_counts FROM onetray.lease WHERE key = ANY(:keys::bigint[]);

-- name: expiries
SELECT key, expires_at FROM onetray.lease WHERE key = ANY(:keys::bigint[]);

-- name: held_tasks
-- row: Holding(key, id, lease, cancel_at, state)
SELECT key, CAST(id AS text) AS id, lease, cancel_at, state FROM onetray.task WHERE key = ANY(:keys::bigint[]) ORDER BY key;

-- name: held_in_namespace
-- row: Holding(key, id, lease, cancel_at, state)
SELECT key, CAST(id AS text) AS id, lease, cancel_at, state FROM onetray.task
WHERE key = ANY(:keys::bigint[]) AND ns = :ns ORDER BY key;

-- name: delete_leases
DELETE FROM onetray.lease WHERE key = ANY(:keys::bigint[]);

-- name: lock_namespace
SELECT key FROM onetray.namespace WHERE key = :ns FOR UPDATE;

-- name: share_namespace
SELECT key FROM onetray.namespace WHERE key = :ns FOR KEY SHARE;

-- name: rules_of_claim
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM onetray.limit_rule WHERE ns = :ns AND queue IN (0, :queue) ORDER BY key;

-- name: rules_of_namespace
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM onetray.limit_rule WHERE ns = :ns ORDER BY key LIMIT :limit;

-- name: rule_by_key
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM onetray.limit_rule WHERE key = :key FOR UPDATE;

-- name: rule_now
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM onetray.limit_rule WHERE key = :key;

-- name: find_rule
-- row: RuleRow(key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at)
SELECT key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at, counted, waits_for, lowered_at
FROM onetray.limit_rule WHERE ns = :ns AND kind = :kind AND queue = :queue AND path = :path AND what = :what FOR UPDATE;

-- name: add_rule
INSERT INTO onetray.limit_rule (key, ns, queue, kind, path, what, most, period, smooth, declared, set_by, set_at)
VALUES (:key, :ns, :queue, :kind, :path, :what, :most, :period, :smooth, :declared, :set_by, :set_at);

-- name: change_rule
UPDATE onetray.limit_rule SET most = :most, period = :period, smooth = :smooth, declared = :declared, set_by = :set_by,
    set_at = :set_at, lowered_at = coalesce(:lowered_at, lowered_at) WHERE key = :key;

-- name: await_claims
UPDATE onetray.limit_rule SET waits_for = :waits_for WHERE key = :key;

-- name: rule_is_counted
UPDATE onetray.limit_rule SET counted = 1, waits_for = NULL, lowered_at = coalesce(:lowered_at, lowered_at)
WHERE key = :key;

-- name: delete_rule
DELETE FROM onetray.limit_rule WHERE key = :key RETURNING key;

-- name: delete_buckets_of_rule
DELETE FROM onetray.limit_bucket WHERE rule = :rule RETURNING key;

-- name: claim_begins
SELECT r.task FROM onetray.ready AS r WHERE r.queue = 0 AND r.rank = 0 AND r.task = 0 FOR UPDATE OF r SKIP LOCKED;

-- name: claims_under_way
SELECT DISTINCT p.virtualtransaction FROM pg_locks AS p WHERE p.relation = CAST('onetray.ready' AS regclass) AND p.mode = 'RowShareLock' AND p.pid <> pg_backend_pid() AND p.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());

-- name: share_queue
SELECT key FROM onetray.queue WHERE key = :key FOR KEY SHARE;

-- name: limit_queue
UPDATE onetray.queue SET limited = 1 WHERE key = :key AND limited = 0;

-- name: limit_queues
UPDATE onetray.queue SET limited = 1 WHERE ns = :ns AND limited = 0;

-- name: lock_limited_queues
SELECT key FROM onetray.queue WHERE ns = :ns AND limited = 1 ORDER BY key FOR UPDATE;

-- name: unlimit_queues
UPDATE onetray.queue SET limited = 0 WHERE key = ANY(:keys::integer[])
    AND NOT EXISTS (SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = queue.ns AND (r.kind <> 0 OR r.queue = queue.key))
    AND NOT EXISTS (SELECT 1 FROM onetray.lane AS l WHERE l.queue = queue.key);

-- name: claim_gates
-- row: GatesRow(paused, limited, breakers)
SELECT CASE WHEN q.paused_at IS NULL THEN 0 ELSE 1 END AS paused, q.limited,
    CASE WHEN EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL) THEN 1 ELSE 0 END AS breakers
FROM onetray.queue AS q WHERE q.key = :queue;

-- name: held_in_scope
SELECT t.key FROM onetray.lease AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value) JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
WHERE l.ns = :ns AND (t.queue = :queue OR t.kind = :kind) ORDER BY t.key;

-- name: slots_of_tasks
SELECT key, slots FROM onetray.task WHERE key = ANY(:keys::bigint[]) AND slots IS NOT NULL;

-- name: add_slots
UPDATE onetray.task SET slots = coalesce(task.slots, ',') || b.slots || ',' FROM unnest(:slots::text[], :key::bigint[]) AS b(slots, key) WHERE task.key = ANY (ARRAY[b.key]);

-- name: add_buckets
INSERT INTO onetray.limit_bucket (key, rule, value) SELECT b.key, b.rule, b.value FROM unnest(:key::bigint[], :rule::bigint[], :value::text[]) AS b(key, rule, value) WHERE true
ON CONFLICT DO NOTHING;

-- name: peek_buckets
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM onetray.limit_bucket AS k JOIN onetray.limit_rule AS r ON r.key = k.rule
WHERE r.ns = :ns AND r.queue IN (0, :queue) AND r.path = '';

-- name: buckets_of_values
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM onetray.limit_bucket AS k JOIN unnest(:rule::bigint[], :value::text[]) AS b(rule, value) ON k.rule = b.rule AND k.value = b.value;

-- name: lock_buckets
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT l.*, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM (
    SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters FROM onetray.limit_bucket AS k WHERE k.key = ANY(:keys::bigint[]) ORDER BY k.key FOR UPDATE OF k
) AS l;

-- name: lock_free_buckets
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT l.*, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM (
    SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters FROM onetray.limit_bucket AS k WHERE k.key = ANY(:keys::bigint[]) ORDER BY k.key FOR UPDATE OF k SKIP LOCKED
) AS l;

-- name: set_buckets
UPDATE onetray.limit_bucket SET running = b.running, starts = b.starts, next_at = b.next_at, due_at = b.due_at,
    waiters = b.waiters FROM unnest(:running::integer[], :starts::text[], :next_at::bigint[], :due_at::bigint[], :waiters::text[], :key::bigint[]) AS b(running, starts, next_at, due_at, waiters, key) WHERE limit_bucket.key = b.key;

-- name: buckets_of_rule
-- row: ShownBucketRow(key, rule, value, running, starts, next_at, due_at, waiters, blocked, blocked_since, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, (SELECT count(*) FROM (SELECT 1 FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key
        ORDER BY l.blocked_on, l.rank, l.turn, l.key LIMIT 1000) AS n) AS blocked,
    (SELECT min(n.blocked_at) FROM (SELECT l.blocked_at FROM onetray.lane AS l WHERE l.state = 2 AND l.blocked_on = k.key
        ORDER BY l.blocked_on, l.rank, l.turn, l.key LIMIT 1000) AS n) AS blocked_since, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at
FROM onetray.limit_bucket AS k WHERE k.rule = :rule AND k.key > :after AND (CAST(:value AS text) IS NULL OR k.value = :value)
ORDER BY k.key LIMIT :limit;

-- name: used_of_rules
-- row: RuleUseRow(rule, running, blocked)
SELECT r.key AS rule, CAST(coalesce(sum(k.running), 0) AS bigint) AS running, (SELECT count(*) FROM (
    SELECT 1 FROM onetray.limit_bucket AS x JOIN onetray.lane AS l ON l.state = 2 AND l.blocked_on = x.key
    WHERE x.rule = r.key LIMIT 1000) AS n) AS blocked
FROM onetray.limit_rule AS r LEFT JOIN onetray.limit_bucket AS k ON k.rule = r.key
WHERE r.key = ANY(:rules::bigint[]) GROUP BY r.key;

-- name: holders_of_bucket
-- row: HolderRow(task, job, kind, queue, worker, state, claimed_at, lease_expires_at)
SELECT CAST(t.id AS text) AS task, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job, k.name AS kind,
    q.name AS queue, t.owner AS worker, t.state, t.updated_at AS claimed_at, l.expires_at AS lease_expires_at
FROM onetray.lease AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value) JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.queue AS q ON q.key = t.queue
WHERE l.ns = :ns AND strpos(t.slots, :slot) > 0 ORDER BY t.key LIMIT :limit OFFSET :skip;

-- name: weights_of_namespace
-- row: WeightRow(kind, value, weight)
SELECT k.name AS kind, w.value, w.weight FROM onetray.lane_weight AS w JOIN onetray.kind AS k ON k.key = w.kind
WHERE k.ns = :ns AND (CAST(:kind AS text) IS NULL OR k.name = :kind) ORDER BY k.name, w.value LIMIT :limit;

-- name: unkeyed_counters
-- row: BucketRow(key, rule, value, running, starts, next_at, due_at, waiters, seen_at)
SELECT k.key, k.rule, k.value, k.running, k.starts, k.next_at, k.due_at, k.waiters, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM onetray.limit_bucket AS k JOIN onetray.limit_rule AS r ON r.key = k.rule
WHERE r.ns = :ns AND r.path = '';

-- name: held_back_by_values
SELECT count(*) FROM (
    SELECT 1 FROM onetray.limit_bucket AS b JOIN onetray.lane AS l ON l.state = 2 AND l.blocked_on = b.key CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r
    WHERE b.rule = :rule LIMIT :most
) AS c;

-- name: ready_in_queue
SELECT count(*) FROM (
    SELECT 1 FROM onetray.ready AS r WHERE r.queue = :queue
    UNION ALL
    SELECT 1 FROM onetray.lane AS l CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r WHERE l.queue = :queue AND l.state <> 0
    LIMIT :most
) AS c;

-- name: ready_of_kind
SELECT count(*) FROM (
    SELECT 1 FROM onetray.queue AS q CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = q.key AND x.kind = :kind ORDER BY x.queue, x.kind, x.rank, x.task LIMIT :most) AS r WHERE q.ns = :ns
    UNION ALL
    SELECT 1 FROM onetray.queue AS q JOIN onetray.lane AS l ON l.queue = q.key AND l.kind = :kind AND l.state <> 0
        CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r
    WHERE q.ns = :ns
    LIMIT :most
) AS c;

-- name: lane_of_task
-- row: LaneFacts(ns, queue, kind, limited, value, fair, weight, state, blocked_on, blocked_at, open_lanes, lanes_before)
SELECT t.ns, t.queue, t.kind, q.limited, l.value, l.fair, l.weight, coalesce(l.state, 0) AS state, l.blocked_on,
    l.blocked_at,
    (SELECT count(*) FROM (SELECT 1 FROM onetray.lane AS o WHERE o.queue = t.queue AND o.kind = t.kind AND o.state = 1
        LIMIT :most) AS c) AS open_lanes,
    (SELECT count(*) FROM (SELECT 1 FROM onetray.lane AS o WHERE o.queue = t.queue AND o.kind = t.kind AND o.state = 1
        AND (o.rank, o.turn, o.key) < (l.rank, l.turn, l.key) LIMIT :most) AS c) AS lanes_before
FROM onetray.task AS t JOIN onetray.queue AS q ON q.key = t.queue LEFT JOIN onetray.lane AS l ON l.key = t.lane
WHERE t.key = :task;

-- name: newest_before
SELECT n.key, n.created_at FROM (
    SELECT * FROM (SELECT t.key, t.created_at FROM onetray.task AS t WHERE t.key <= :upto ORDER BY t.key DESC LIMIT 1) AS a
    UNION ALL
    SELECT * FROM (SELECT f.key, f.created_at FROM onetray.flow AS f WHERE f.key <= :upto ORDER BY f.key DESC LIMIT 1) AS b
) AS n ORDER BY n.key DESC LIMIT 1;

-- name: newest_stage
SELECT s.key, s.created_at FROM onetray.stage AS s WHERE s.key <= :upto ORDER BY s.key DESC LIMIT 1;

-- name: newest_task
SELECT t.key, t.created_at FROM onetray.task AS t WHERE t.key <= :upto ORDER BY t.key DESC LIMIT 1;

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
FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns LEFT JOIN onetray.stage AS w ON w.key = s.carried_from WHERE s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state = ANY(:states::text[]))
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type)
ORDER BY s.key DESC LIMIT :limit;

-- name: total_stages
SELECT count(*) FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns WHERE s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state = ANY(:states::text[]))
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type);

-- name: nth_stage
SELECT s.key FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job AND f.deleted_at IS NULL
    JOIN onetray.namespace AS n ON n.key = s.ns WHERE s.key > :after AND s.key <= :upto AND n.name = :namespace
    AND s.created_at >= :since AND s.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR s.state = ANY(:states::text[]))
    AND (CAST(:type AS text) IS NULL OR coalesce(s.type, s.name) = :type) ORDER BY s.key DESC LIMIT 1 OFFSET :offset;

-- name: find_tasks
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type))
ORDER BY t.key DESC LIMIT :limit;

-- name: total_tasks
SELECT count(*) FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind WHERE t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type));

-- name: nth_task
SELECT t.key FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind WHERE t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type)) ORDER BY t.key DESC LIMIT 1 OFFSET :offset;

-- name: find_tasks_of_stage
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type))
ORDER BY t.key DESC LIMIT :limit;

-- name: total_tasks_of_stage
SELECT count(*) FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type));

-- name: nth_task_of_stage
SELECT t.key FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind WHERE t.stage = :stage AND t.key > :after AND t.key <= :upto AND n.name = :namespace AND t.control = 0
    AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:attempted AS integer) IS NULL OR (t.attempts > 0) = (CAST(:attempted AS integer) = 1))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind)
    AND (CAST(:type AS text) IS NULL OR t.stage IN (
        SELECT s.key FROM onetray.stage AS s WHERE s.key = t.stage AND coalesce(s.type, s.name) = :type)) ORDER BY t.key DESC LIMIT 1 OFFSET :offset;

-- name: list_jobs
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs
SELECT count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job
SELECT j.key FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: list_jobs_of_correlation
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs_of_correlation
SELECT count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job_of_correlation
SELECT j.key FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs_of_correlation
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT a.key FROM onetray.task AS a WHERE a.correlation_id = :correlation_id AND a.stage IS NULL
    UNION SELECT c.key FROM onetray.flow AS c WHERE c.correlation_id = :correlation_id
    UNION SELECT own.key FROM onetray.task AS own WHERE own.id = :id AND own.correlation_id IS NULL) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: list_jobs_labelled
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs_labelled
SELECT count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job_labelled
SELECT j.key FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs_labelled
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job > :after AND l.job <= :upto) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: span_labelled
SELECT l.job FROM onetray.label AS l
WHERE l.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND l.name = :label AND l.value = :labelled
    AND l.job <= :upto
ORDER BY l.job DESC LIMIT 1 OFFSET :size;

-- name: list_jobs_of_keys
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key = ANY(:keys::bigint[]) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
    ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key = ANY(:keys::bigint[]) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto
    ORDER BY f.key DESC LIMIT :limit
) AS b
ORDER BY 1 DESC LIMIT :limit;

-- name: total_jobs_of_keys
SELECT count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key = ANY(:keys::bigint[]) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key = ANY(:keys::bigint[]) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j;

-- name: nth_job_of_keys
SELECT j.key FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key = ANY(:keys::bigint[]) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key = ANY(:keys::bigint[]) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j ORDER BY j.key DESC LIMIT 1 OFFSET :offset;

-- name: states_of_jobs_of_keys
SELECT j.state, count(*) FROM (SELECT t.key, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key = ANY(:keys::bigint[]) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.key > :after AND t.key <= :upto
UNION ALL
SELECT f.key, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key = ANY(:keys::bigint[]) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.key > :after AND f.key <= :upto) AS j GROUP BY j.state;

-- name: jobs_of_ids
SELECT t.job FROM onetray.task AS t WHERE t.id = ANY(:ids::uuid[])
UNION SELECT f.key FROM onetray.flow AS f WHERE f.id = ANY(:ids::uuid[]);

-- name: jobs_of_id_range
SELECT * FROM (
    SELECT t.job FROM onetray.task AS t WHERE t.id >= :low AND t.id <= :high AND t.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace)
    ORDER BY t.id DESC LIMIT :limit) AS a
UNION SELECT * FROM (
    SELECT f.key FROM onetray.flow AS f WHERE f.id >= :low AND f.id <= :high AND f.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace)
    ORDER BY f.id DESC LIMIT :limit) AS b;

-- name: jobs_of_name
SELECT * FROM (
    SELECT t.key FROM onetray.task AS t WHERE t.correlation_id = :text AND t.stage IS NULL AND t.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) LIMIT :limit
) AS a
UNION SELECT * FROM (
    SELECT f.key FROM onetray.flow AS f WHERE f.correlation_id = :text AND f.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) LIMIT :limit) AS b
UNION SELECT coalesce((SELECT m.job FROM onetray.task AS m WHERE m.key = i.key), i.key) FROM onetray.alias AS i
    WHERE i.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND i.alias = :text;

-- name: kinds_with_text
SELECT k.key FROM onetray.kind AS k JOIN onetray.namespace AS n ON n.key = k.ns
WHERE n.name = :namespace AND replace(lower(k.name), lower(:text), '') <> lower(k.name) ORDER BY k.key LIMIT :limit;

-- name: sorted_jobs
-- row: JobSummary(key, entity, id, namespace, kind, queue, state, attempts, max_attempts, stages, stages_open, created_at, updated_at, started_at, finished_at, owner, correlation_id, priority, ending, alias)
SELECT * FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.updated_at >= :updated_since AND t.updated_at < :updated_until
    UNION ALL SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.updated_at >= :updated_since AND f.updated_at < :updated_until
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
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.key IN (SELECT l.job FROM onetray.label AS l JOIN onetray.namespace AS m ON m.key = l.ns
    WHERE m.name = :namespace AND l.name = :label AND l.value = :labelled) AND t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND t.updated_at >= :updated_since AND t.updated_at < :updated_until
    UNION ALL SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE f.key IN (SELECT l.job FROM onetray.label AS l JOIN onetray.namespace AS m ON m.key = l.ns
    WHERE m.name = :namespace AND l.name = :label AND l.value = :labelled) AND n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted) AND f.updated_at >= :updated_since AND f.updated_at < :updated_until
) AS j WHERE CAST(:aliased AS integer) IS NULL OR CASE WHEN j.alias IS NULL THEN 0 ELSE 1 END = :aliased
ORDER BY CAST(:sign AS integer) * CASE WHEN CAST(:by_update AS integer) = 1 THEN j.updated_at ELSE j.created_at END,
    CAST(:sign AS integer) * j.key LIMIT :limit OFFSET :offset;

-- name: count_jobs
SELECT j.state, count(*) FROM (
    SELECT t.key AS key, 'task' AS entity, CAST(t.id AS text) AS id, n.name AS namespace, k.name AS kind, q.name AS queue,
    t.state AS state, t.attempts AS attempts, t.max_attempts AS max_attempts, 0 AS stages, 0 AS stages_open,
    t.created_at AS created_at, t.updated_at AS updated_at, t.started_at AS started_at, t.finished_at AS finished_at,
    t.owner AS owner, coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.priority AS priority,
    CAST(NULL AS text) AS ending, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE t.job = t.key AND n.name = :namespace AND t.created_at >= :since AND t.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'task') AND (CAST(:priority AS integer) IS NULL OR t.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND (CAST(:any_kind AS integer) = 1 OR t.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = t.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted)
    UNION ALL SELECT f.key AS key, 'flow' AS entity, CAST(f.id AS text) AS id, n.name AS namespace, k.name AS kind,
    CAST(NULL AS text) AS queue, f.state AS state, 0 AS attempts, 0 AS max_attempts, f.stages AS stages,
    f.stages_open AS stages_open, f.created_at AS created_at, f.updated_at AS updated_at, f.started_at AS started_at,
    f.finished_at AS finished_at, CAST(NULL AS text) AS owner, f.correlation_id AS correlation_id,
    f.priority AS priority, CASE WHEN f.finished_at IS NULL THEN f.ending END AS ending,
    (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key) AS alias
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns AND f.deleted_at IS NULL
    JOIN onetray.kind AS k ON k.key = f.kind WHERE n.name = :namespace AND f.created_at >= :since AND f.created_at <= :until
    AND (CAST(:entity AS text) IS NULL OR :entity = 'flow') AND (CAST(:priority AS integer) IS NULL OR f.priority = :priority)
    AND (CAST(:any_state AS integer) = 1 OR f.state = ANY(:states::text[]))
    AND (CAST(:kind AS text) IS NULL OR k.name = :kind) AND CAST(:queue AS text) IS NULL
    AND (CAST(:any_kind AS integer) = 1 OR f.kind = ANY(:kinds::integer[]))
    AND (CAST(:labels_wanted AS integer) = 0 OR (SELECT count(*) FROM onetray.label AS w
        WHERE w.job = f.key AND w.name || CAST(:between AS text) || w.value = ANY(:labels::text[])) = :labels_wanted)
) AS j GROUP BY j.state;

-- name: labels_of_jobs
-- row: JobLabel(id, name, value)
SELECT CAST(t.id AS text) AS id, l.name, l.value FROM onetray.task AS t JOIN onetray.label AS l ON l.job = t.key
WHERE t.id = ANY(:ids::uuid[]) AND t.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace)
UNION ALL SELECT CAST(f.id AS text), l.name, l.value FROM onetray.flow AS f JOIN onetray.label AS l ON l.job = f.key
WHERE f.id = ANY(:ids::uuid[]) AND f.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) ORDER BY 1, 2;

-- name: key_of_job
SELECT t.key FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns WHERE t.id = :id AND n.name = :namespace
UNION ALL
SELECT f.key FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: entity_of_id
SELECT 'task', t.key FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace
UNION ALL SELECT 'stage', s.key FROM onetray.stage AS s JOIN onetray.namespace AS n ON n.key = s.ns
WHERE s.id = :id AND n.name = :namespace
UNION ALL SELECT 'flow', f.key FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id = :id AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: ids_newest
-- row: IdRow(entity, id, name, state)
SELECT * FROM (
    SELECT 'task' AS entity, CAST(t.id AS text) AS id, k.name, t.state FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
        JOIN onetray.kind AS k ON k.key = t.kind
    WHERE n.name = :namespace ORDER BY t.key DESC LIMIT :limit
) AS a
UNION ALL SELECT * FROM (
    SELECT 'stage', CAST(s.id AS text), s.name, s.state FROM onetray.stage AS s
        JOIN onetray.namespace AS n ON n.key = s.ns
    WHERE n.name = :namespace ORDER BY s.key DESC LIMIT :limit
) AS b
UNION ALL SELECT * FROM (
    SELECT 'flow', CAST(f.id AS text), k.name, f.state FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
        JOIN onetray.kind AS k ON k.key = f.kind
    WHERE n.name = :namespace ORDER BY f.key DESC LIMIT :limit
) AS c;

-- name: list_members
-- row: MemberSummary(key, id, stage, name, kind, queue, state, attempts, max_attempts, created_at, started_at, finished_at, owner, error)
SELECT t.key, CAST(t.id AS text) AS id, s.name AS stage, t.name, k.name AS kind, q.name AS queue, t.state, t.attempts,
    t.max_attempts, t.created_at, t.started_at, t.finished_at, t.owner, t.error
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE s.job = :job AND (s.ord, t.key) > (:ord, :after)
    AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
ORDER BY s.ord, t.key LIMIT :limit;

-- name: list_members_of_stage
-- row: MemberSummary(key, id, stage, name, kind, queue, state, attempts, max_attempts, created_at, started_at, finished_at, owner, error)
SELECT t.key, CAST(t.id AS text) AS id, s.name AS stage, t.name, k.name AS kind, q.name AS queue, t.state, t.attempts,
    t.max_attempts, t.created_at, t.started_at, t.finished_at, t.owner, t.error
FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.queue AS q ON q.key = t.queue WHERE (t.stage, t.key) > (:stage, :after) AND t.stage <= :stage AND (CAST(:any_state AS integer) = 1 OR t.state = ANY(:states::text[]))
ORDER BY t.stage, t.key LIMIT :limit;

-- name: key_of_stage
SELECT s.key FROM onetray.stage AS s JOIN onetray.namespace AS n ON n.key = s.ns
WHERE s.id = :id AND s.job = :job AND n.name = :namespace;

-- name: place_of_member
SELECT s.ord, t.key FROM onetray.task AS t JOIN onetray.stage AS s ON s.key = t.stage WHERE t.id = :id AND t.job = :job;

-- name: list_queues
-- row: QueueDepth(name, paused_at, paused_by, ready, delayed, held, oldest_ready_at, limited)
SELECT q.name, q.paused_at, q.paused_by, coalesce(r.ready, 0) AS ready, coalesce(w.waiting, 0) AS delayed,
    coalesce(h.held, 0) AS held, o.run_at AS oldest_ready_at, CASE WHEN q.limited = 0 THEN 0 ELSE (SELECT count(*) FROM (
        SELECT 1 FROM unnest(:full_queues::integer[]) AS i(value) CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = i.value ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r WHERE i.value = q.key
        UNION ALL
        SELECT 1 FROM unnest(:full_kinds::integer[]) AS i(value) CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = q.key AND x.kind = i.value ORDER BY x.queue, x.kind, x.rank, x.task LIMIT :most) AS r WHERE NOT q.key = ANY(:full_queues::integer[])
        UNION ALL
        SELECT 1 FROM onetray.lane AS l CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r
        WHERE l.queue = q.key AND (l.state = 2 OR l.state = 1 AND (q.key = ANY(:full_queues::integer[]) OR l.kind = ANY(:full_kinds::integer[])))
        LIMIT :most
    ) AS c) END AS limited
FROM onetray.queue AS q JOIN onetray.namespace AS n ON n.key = q.ns
    LEFT JOIN (
        SELECT coalesce(v.queue, g.queue) AS queue, CAST(sum(g.ready) AS bigint) AS ready, min(g.oldest) AS oldest FROM (
            SELECT queue, count(*) AS ready, min(task) AS oldest FROM onetray.ready GROUP BY queue
        ) AS g LEFT JOIN onetray.lane AS v ON v.key = -g.queue GROUP BY coalesce(v.queue, g.queue)
    ) AS r ON r.queue = q.key
    LEFT JOIN onetray.task AS o ON o.key = r.oldest
    LEFT JOIN (
        SELECT t.queue, count(*) AS waiting FROM onetray.due AS d JOIN onetray.task AS t ON t.key = d.task
        WHERE d.what = :run AND d.fence = t.fence AND d.at = t.run_at AND t.state IN ('queued')
            AND NOT EXISTS (SELECT 1 FROM onetray.ready AS y
                WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) GROUP BY t.queue
    ) AS w ON w.queue = q.key
    LEFT JOIN (
        SELECT t.queue, count(*) AS held FROM onetray.lease AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value)
            JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
        GROUP BY t.queue
    ) AS h ON h.queue = q.key
WHERE n.name = :namespace ORDER BY q.name LIMIT :limit;

-- name: list_kinds
SELECT k.name FROM onetray.kind AS k JOIN onetray.namespace AS n ON n.key = k.ns
WHERE n.name = :namespace AND (
    k.key NOT IN (SELECT f.kind FROM (SELECT x.kind FROM onetray.flow AS x ORDER BY x.key DESC LIMIT :scan) AS f)
    OR k.key IN (SELECT t.kind FROM (SELECT x.kind FROM onetray.task AS x ORDER BY x.key DESC LIMIT :scan) AS t)
) ORDER BY k.name LIMIT :limit;

-- name: retried_jobs
SELECT CAST(t.id AS text) AS id FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = ANY(:ids::uuid[]) AND n.name = :namespace AND t.key IN (
    SELECT r.retry_of FROM onetray.task AS r
    WHERE r.stage IS NULL AND r.retry_of IS NOT NULL AND r.correlation_id IN (
        SELECT coalesce(o.correlation_id, CAST(o.id AS text)) FROM onetray.task AS o WHERE o.id = ANY(:ids::uuid[])))
UNION ALL
SELECT CAST(f.id AS text) FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id = ANY(:ids::uuid[]) AND n.name = :namespace AND f.key IN (
    SELECT r.retry_of FROM onetray.flow AS r WHERE r.retry_of IS NOT NULL AND r.correlation_id IN (
        SELECT o.correlation_id FROM onetray.flow AS o WHERE o.id = ANY(:ids::uuid[])));

-- name: dead_groups
-- row: DeadGroup(kind, reason_code, error_class, message, count, oldest_at, newest_at, redriven, example_id)
SELECT k.name AS kind, g.reason_code, nullif(g.error_class, '') AS error_class, nullif(g.pattern, '') AS message, g.count,
    g.oldest_at, g.newest_at, g.redriven, (SELECT CAST(t.id AS text) FROM onetray.task AS t WHERE t.key = g.example) AS example_id FROM (
    SELECT d.kind, d.reason_code, d.error_class, d.pattern, count(*) AS count, min(d.created_at) AS oldest_at,
        max(d.created_at) AS newest_at, count(d.successor) AS redriven, min(d.task) AS example
    FROM onetray.dead_letter AS d WHERE d.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace)
    AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM onetray.kind AS w WHERE w.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) GROUP BY d.kind, d.reason_code, d.error_class, d.pattern
) AS g JOIN onetray.kind AS k ON k.key = g.kind ORDER BY g.count DESC, k.name, g.reason_code, g.error_class, g.pattern LIMIT :limit;

-- name: dead_groups_with_text
-- row: DeadGroup(kind, reason_code, error_class, message, count, oldest_at, newest_at, redriven, example_id)
SELECT k.name AS kind, g.reason_code, nullif(g.error_class, '') AS error_class, nullif(g.pattern, '') AS message, g.count,
    g.oldest_at, g.newest_at, g.redriven, (SELECT CAST(t.id AS text) FROM onetray.task AS t WHERE t.key = g.example) AS example_id FROM (
    SELECT d.kind, d.reason_code, d.error_class, d.pattern, count(*) AS count, min(d.created_at) AS oldest_at,
        max(d.created_at) AS newest_at, count(d.successor) AS redriven, min(d.task) AS example
    FROM onetray.dead_letter AS d WHERE d.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace)
    AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM onetray.kind AS w WHERE w.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND replace((CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message')), :error, '') <> (CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message')) GROUP BY d.kind, d.reason_code, d.error_class, d.pattern
) AS g JOIN onetray.kind AS k ON k.key = g.kind ORDER BY g.count DESC, k.name, g.reason_code, g.error_class, g.pattern LIMIT :limit;

-- name: list_letters
-- row: DeadLetterSummary(key, id, kind, reason_code, error_class, message, attempts, created_at, successor_id, flow_id, flow_finished_at)
SELECT d.task AS key, CAST(t.id AS text) AS id, k.name AS kind, d.reason_code, CAST(d.last_error AS jsonb) ->> 'class' AS error_class,
    CAST(d.last_error AS jsonb) ->> 'message' AS message, d.attempts, d.created_at,
    (SELECT CAST(s.id AS text) FROM onetray.task AS s WHERE s.key = d.successor) AS successor_id,
    CAST(f.id AS text) AS flow_id, f.finished_at AS flow_finished_at
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.namespace AS n ON n.key = +d.ns LEFT JOIN onetray.flow AS f ON f.key = t.job WHERE d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task = ANY(:keys::bigint[]))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM onetray.kind AS w WHERE w.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name = ANY(:kinds::text[])) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM onetray.queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message')), :error, '') <> (CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message'))) ORDER BY d.task LIMIT :limit OFFSET :offset;

-- name: list_letters_alike
-- row: DeadLetterSummary(key, id, kind, reason_code, error_class, message, attempts, created_at, successor_id, flow_id, flow_finished_at)
SELECT d.task AS key, CAST(t.id AS text) AS id, k.name AS kind, d.reason_code, CAST(d.last_error AS jsonb) ->> 'class' AS error_class,
    CAST(d.last_error AS jsonb) ->> 'message' AS message, d.attempts, d.created_at,
    (SELECT CAST(s.id AS text) FROM onetray.task AS s WHERE s.key = d.successor) AS successor_id,
    CAST(f.id AS text) AS flow_id, f.finished_at AS flow_finished_at
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.namespace AS n ON n.key = +d.ns LEFT JOIN onetray.flow AS f ON f.key = t.job WHERE d.ns = :group_ns AND d.kind = :group_kind AND d.reason_code = :group_reason AND d.error_class = :group_class
    AND d.pattern = :group_pattern AND d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task = ANY(:keys::bigint[]))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM onetray.kind AS w WHERE w.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name = ANY(:kinds::text[])) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM onetray.queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message')), :error, '') <> (CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message'))) ORDER BY d.task LIMIT :limit OFFSET :offset;

-- name: count_letters
SELECT count(*) FROM (SELECT d.task FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.namespace AS n ON n.key = +d.ns WHERE d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task = ANY(:keys::bigint[]))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM onetray.kind AS w WHERE w.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name = ANY(:kinds::text[])) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM onetray.queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message')), :error, '') <> (CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message'))) LIMIT :most) AS c;

-- name: count_letters_alike
SELECT count(*) FROM (
    SELECT d.task FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
    JOIN onetray.namespace AS n ON n.key = +d.ns WHERE d.ns = :group_ns AND d.kind = :group_kind AND d.reason_code = :group_reason AND d.error_class = :group_class
    AND d.pattern = :group_pattern AND d.task > :after AND n.name = :namespace AND (CAST(:redriven AS integer) = 1 OR d.successor IS NULL) AND d.created_at <= :until
    AND (CAST(:any_key AS integer) = 1 OR d.task = ANY(:keys::bigint[]))
    AND (CAST(:kind AS text) IS NULL OR d.kind = (SELECT w.key FROM onetray.kind AS w WHERE w.ns = (SELECT o.key FROM onetray.namespace AS o WHERE o.name = :namespace) AND w.name = :kind)) AND (CAST(:reason AS text) IS NULL OR d.reason_code = :reason)
    AND (CAST(:any_kind AS integer) = 1 OR k.name = ANY(:kinds::text[])) AND (CAST(:job AS bigint) IS NULL OR t.job = :job)
    AND (CAST(:queue AS text) IS NULL OR t.queue IN (SELECT w.key FROM onetray.queue AS w WHERE w.ns = d.ns AND w.name = :queue))
    AND (CAST(:error AS text) IS NULL OR replace((CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message')), :error, '') <> (CAST(d.last_error AS jsonb) ->> 'class' || ': ' || (CAST(d.last_error AS jsonb) ->> 'message'))) LIMIT :most) AS c;

-- name: group_of_letter
-- row: LetterGroupRow(ns, kind, reason_code, error_class, pattern)
SELECT d.ns, d.kind, d.reason_code, d.error_class, d.pattern FROM onetray.dead_letter AS d
    JOIN onetray.task AS t ON t.key = d.task JOIN onetray.namespace AS n ON n.key = d.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: count_prunable
-- row: Prunable(tasks, flows)
SELECT (SELECT count(*) FROM onetray.task AS t WHERE t.created_at <= :before AND t.finished_at IS NOT NULL AND t.finished_at <= :before
    AND t.key = t.job AND (CAST(:ns AS integer) IS NULL OR t.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM onetray.idempotency AS i WHERE i.job = t.key AND i.expires_at > :now)) AS tasks,
    (SELECT count(*) FROM onetray.flow AS f WHERE f.created_at <= :before AND f.finished_at IS NOT NULL AND f.finished_at <= :before
    AND (CAST(:ns AS integer) IS NULL OR f.ns = :ns)
    AND NOT EXISTS (SELECT 1 FROM onetray.idempotency AS i WHERE i.job = f.key AND i.expires_at > :now)
    AND NOT EXISTS (SELECT 1 FROM onetray.stage AS s WHERE s.job = f.key AND s.open > 0)
    AND NOT EXISTS (SELECT 1 FROM onetray.flow AS c WHERE c.key = f.compensation AND c.finished_at IS NULL)) AS flows;

-- name: last_report_numbers
SELECT f.key, greatest(coalesce((SELECT max(l.seq) FROM onetray.log AS l WHERE l.job = f.key), 0),
    coalesce((SELECT max(p.seq) FROM onetray.progress AS p WHERE p.job = f.key), 0))
FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[]);

-- name: reports_of_flow
-- row: MemberReport(cursor, ts, stage, task, name, attempt, level, line, data, done, total, message)
SELECT r.seq AS cursor, r.ts, s.name AS stage, CAST(t.id AS text) AS task, t.name, r.attempt, r.level, r.line, r.data,
    r.done, r.total, r.message
FROM (
    SELECT * FROM (
        SELECT l.seq, l.task, l.ts, l.attempt, l.level, l.line, l.data, CAST(NULL AS double precision) AS done,
            CAST(NULL AS double precision) AS total, CAST(NULL AS text) AS message
        FROM onetray.log AS l WHERE l.job = :job AND l.seq > :after ORDER BY l.seq LIMIT :limit
    ) AS lines
    UNION ALL
    SELECT * FROM (
        SELECT p.seq, p.task, p.at, p.attempt, NULL, NULL, NULL, p.done, p.total, p.message
        FROM onetray.progress AS p WHERE p.job = :job AND p.seq > :after ORDER BY p.seq LIMIT :limit
    ) AS latest
) AS r JOIN onetray.task AS t ON t.key = r.task JOIN onetray.stage AS s ON s.key = t.stage
ORDER BY r.seq LIMIT :limit;

-- name: last_reports_of_flow
-- row: MemberReport(cursor, ts, stage, task, name, attempt, level, line, data, done, total, message)
SELECT r.seq AS cursor, r.ts, s.name AS stage, CAST(t.id AS text) AS task, t.name, r.attempt, r.level, r.line, r.data,
    r.done, r.total, r.message
FROM (
    SELECT * FROM (
        SELECT l.seq, l.task, l.ts, l.attempt, l.level, l.line, l.data, CAST(NULL AS double precision) AS done,
            CAST(NULL AS double precision) AS total, CAST(NULL AS text) AS message
        FROM onetray.log AS l WHERE l.job = :job AND l.seq > :after AND l.seq < :before ORDER BY l.seq DESC LIMIT :limit
    ) AS lines
    UNION ALL
    SELECT * FROM (
        SELECT p.seq, p.task, p.at, p.attempt, NULL, NULL, NULL, p.done, p.total, p.message
        FROM onetray.progress AS p WHERE p.job = :job AND p.seq > :after AND p.seq < :before ORDER BY p.seq DESC LIMIT :limit
    ) AS latest
) AS r JOIN onetray.task AS t ON t.key = r.task JOIN onetray.stage AS s ON s.key = t.stage
ORDER BY r.seq DESC LIMIT :limit;

-- name: last_cursor
SELECT task, max(cursor) FROM onetray.log WHERE task = ANY(:keys::bigint[]) GROUP BY task;

-- name: insert_log
INSERT INTO onetray.log (task, cursor, ts, attempt, level, line, data, job, seq)
SELECT b.key, b.cursor, b.at, b.attempt, b.level, b.line, b.data, b.job, b.seq FROM unnest(:key::bigint[], :cursor::integer[], :at::bigint[], :attempt::integer[], :level::text[], :line::text[], :data::text[], :job::bigint[], :seq::bigint[]) AS b(key, cursor, at, attempt, level, line, data, job, seq);

-- name: logs_of
-- row: LogLine(cursor, ts, attempt, level, line, data)
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after ORDER BY l.cursor LIMIT :limit;

-- name: last_logs_of
-- row: LogLine(cursor, ts, attempt, level, line, data)
SELECT l.cursor, l.ts, l.attempt, l.level, l.line, l.data
FROM onetray.log AS l JOIN onetray.task AS t ON t.key = l.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace AND l.cursor > :after AND l.cursor < :before ORDER BY l.cursor DESC LIMIT :limit;

-- name: first_lines
-- row: LogRow(task, cursor, ts, attempt, level, line, data)
SELECT l.task, l.cursor, l.ts, l.attempt, l.level, l.line, l.data FROM onetray.log AS l
WHERE l.task = ANY(:keys::bigint[]) AND l.cursor <= :most ORDER BY l.task, l.cursor;

-- name: count_events
-- row: EventCountRow(namespace, type, kind, reason, number)
SELECT n.name AS namespace, e.type, k.name AS kind, e.reason, count(*) AS number
FROM (
    SELECT v.ns, v.type, (SELECT t.kind FROM onetray.task AS t WHERE t.key = v.entity) AS kind, CASE WHEN v.type = :dead THEN
        (SELECT d.reason_code FROM onetray.dead_letter AS d WHERE d.task = v.entity) END AS reason
    FROM (
    SELECT v.entity, v.ns, v.type FROM onetray.event AS v
    WHERE v.batch >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0) AND v.batch <= :upto
        AND v.id > :after AND v.id <= :upto
) AS v
) AS e
    JOIN onetray.namespace AS n ON n.key = e.ns
    LEFT JOIN onetray.kind AS k ON k.key = e.kind
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
FROM onetray.task AS t
    JOIN onetray.namespace AS n ON n.key = t.ns
    JOIN onetray.kind AS k ON k.key = t.kind
WHERE t.key = ANY(ARRAY(SELECT e.entity FROM (
    SELECT v.entity, v.ns, v.type FROM onetray.event AS v
    WHERE v.batch >= coalesce((SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= :after), 0) AND v.batch <= :upto
        AND v.id > :after AND v.id <= :upto
) AS e WHERE e.type = ANY(:ends::text[]))) AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL
GROUP BY 1, 2, 3;

-- name: count_events_after
SELECT CAST(coalesce(sum(eb.size), 0) AS bigint) FROM onetray.event_batch AS eb WHERE eb.id > :after AND eb.id <= :upto;

-- name: count_first_events
SELECT CAST(coalesce(sum(r.size), 0) AS bigint)
FROM (SELECT eb.size FROM onetray.event_batch AS eb ORDER BY eb.id LIMIT :rows) AS r;

-- name: add_tally
INSERT INTO onetray.tally (ns, name, value) SELECT b.ns, b.name, b.value FROM unnest(:ns::integer[], :name::text[], :value::bigint[]) AS b(ns, name, value) WHERE true
ON CONFLICT (ns, name) DO UPDATE SET value = tally.value + excluded.value;

-- name: tallies
SELECT y.name, y.value FROM onetray.tally AS y JOIN onetray.namespace AS n ON n.key = y.ns WHERE n.name = :namespace;

-- name: count_workers
SELECT count(*) FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);

-- name: tasks_of_workers
-- row: WorkerTasksRow(name, running, claimed)
SELECT w.name, w.running, w.claimed FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
UNION ALL
SELECT l.worker, sum(CASE WHEN t.state = :running THEN 1 ELSE 0 END), count(*)
FROM onetray.lease AS l JOIN onetray.namespace AS o ON o.key = l.ns CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value)
    JOIN onetray.task AS t ON t.key = j.value AND t.lease = l.key
WHERE o.name = :namespace AND NOT EXISTS (SELECT 1 FROM onetray.worker AS r
    WHERE r.ns = l.ns AND r.name = l.worker AND r.expires_at > coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint))
GROUP BY l.worker ORDER BY 1 LIMIT :limit;

-- name: names
-- row: NameRow(sort, key, ns, name, policy, retired_at)
SELECT 0 AS sort, key, 0 AS ns, name, 0 AS policy, CAST(NULL AS bigint) AS retired_at FROM onetray.namespace
UNION ALL SELECT 1, key, ns, name, 0, NULL FROM onetray.queue
UNION ALL SELECT 2, key, ns, name, policy, retired_at FROM onetray.kind
UNION ALL SELECT 3, key, 0, body, 0, NULL FROM onetray.policy;

-- name: queues
-- row: QueueRow(key, ns, name)
SELECT key, ns, name FROM onetray.queue;

-- name: add_namespace
INSERT INTO onetray.namespace (name) VALUES (:name) ON CONFLICT DO NOTHING;

-- name: add_queue
INSERT INTO onetray.queue (ns, name, limited) VALUES (:ns, :name, CASE WHEN EXISTS (
    SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = :ns AND r.kind <> 0) THEN 1 ELSE 0 END) ON CONFLICT DO NOTHING;

-- name: add_policy
INSERT INTO onetray.policy (body) VALUES (:body) ON CONFLICT DO NOTHING;

-- name: add_kind
INSERT INTO onetray.kind (ns, name, policy) VALUES (:ns, :name, :policy)
ON CONFLICT (ns, name) DO UPDATE SET retired_at = NULL WHERE kind.retired_at IS NOT NULL;

-- name: set_kind_policy
UPDATE onetray.kind SET policy = :policy, retired_at = NULL WHERE key = :key;

-- name: replace_kind_policy
UPDATE onetray.kind SET policy = :policy, retired_at = NULL WHERE key = :key AND policy = :was RETURNING key;

-- name: plain_kinds
-- row: PlainKindRow(key, retired_at)
SELECT k.key, k.retired_at FROM onetray.kind AS k
WHERE k.key > :after AND (CAST(:ns AS integer) IS NULL OR k.ns = :ns) AND k.policy IN (SELECT p.key FROM onetray.policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM onetray.breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key)
ORDER BY k.key LIMIT :limit;

-- name: kinds_of_tasks
SELECT DISTINCT kind FROM onetray.task WHERE key > :after AND key <= :upto;

-- name: kinds_of_flows
SELECT DISTINCT kind FROM onetray.flow WHERE key > :after AND key <= :upto;

-- name: retire_kinds
UPDATE onetray.kind SET retired_at = :at
WHERE retired_at IS NULL AND key IN (SELECT k.key FROM onetray.kind AS k WHERE k.key = ANY(:keys::bigint[]) AND k.policy IN (SELECT p.key FROM onetray.policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM onetray.breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key));

-- name: delete_kinds
DELETE FROM onetray.kind
WHERE retired_at <= :before AND key IN (SELECT k.key FROM onetray.kind AS k WHERE k.key = ANY(:keys::bigint[]) AND k.policy IN (SELECT p.key FROM onetray.policy AS p WHERE p.body = :body)
    AND NOT EXISTS (SELECT 1 FROM onetray.breaker AS b WHERE b.kind = k.key)
    AND NOT EXISTS (SELECT 1 FROM onetray.limit_rule AS r WHERE r.ns = k.ns AND r.kind = k.key));

-- name: take_back_kinds
UPDATE onetray.kind SET retired_at = NULL WHERE retired_at IS NOT NULL AND key = ANY(:keys::bigint[]);

-- name: queues_with_work
SELECT q.key FROM onetray.queue AS q
WHERE q.key = ANY(:keys::bigint[]) AND q.paused_at IS NULL AND ((
    SELECT r.task FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.rank, r.task LIMIT 1
) IS NOT NULL OR (SELECT l.key FROM onetray.lane AS l WHERE l.queue = q.key AND l.state = 1 LIMIT 1) IS NOT NULL);

-- name: pause_queue
UPDATE onetray.queue SET paused_at = :at, paused_by = :by WHERE key = :key AND paused_at IS NULL RETURNING key;

-- name: resume_queue
UPDATE onetray.queue SET paused_at = NULL, paused_by = NULL WHERE key = :key AND paused_at IS NOT NULL RETURNING key;

-- name: count_queues
-- row: QueueCountRow(key, name, paused_at, paused_by, ready, oldest_ready_at, limited)
SELECT q.key, q.name, q.paused_at, q.paused_by,
    (SELECT count(*) FROM (
        SELECT 1 FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.queue, r.rank, r.task LIMIT :most
    ) AS c) + (SELECT count(*) FROM (
        SELECT 1 FROM onetray.lane AS l CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r WHERE l.queue = q.key AND l.state <> 0 LIMIT :most
    ) AS c) AS ready,
    (SELECT t.run_at FROM onetray.task AS t WHERE t.key = (SELECT min(o.task) FROM (
        SELECT * FROM (SELECT r.task FROM onetray.ready AS r WHERE r.queue = q.key ORDER BY r.queue, r.rank, r.task LIMIT :most) AS p
        UNION ALL SELECT * FROM (SELECT r.task FROM onetray.lane AS l CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r
            WHERE l.queue = q.key AND l.state <> 0 LIMIT :most) AS v
    ) AS o)) AS oldest_ready_at, CASE WHEN q.limited = 0 THEN 0 ELSE (SELECT count(*) FROM (
        SELECT 1 FROM unnest(:full_queues::integer[]) AS i(value) CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = i.value ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r WHERE i.value = q.key
        UNION ALL
        SELECT 1 FROM unnest(:full_kinds::integer[]) AS i(value) CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = q.key AND x.kind = i.value ORDER BY x.queue, x.kind, x.rank, x.task LIMIT :most) AS r WHERE NOT q.key = ANY(:full_queues::integer[])
        UNION ALL
        SELECT 1 FROM onetray.lane AS l CROSS JOIN LATERAL (SELECT x.task FROM onetray.ready AS x WHERE x.queue = -l.key ORDER BY x.queue, x.rank, x.task LIMIT :most) AS r
        WHERE l.queue = q.key AND (l.state = 2 OR l.state = 1 AND (q.key = ANY(:full_queues::integer[]) OR l.kind = ANY(:full_kinds::integer[])))
        LIMIT :most
    ) AS c) END AS limited
FROM onetray.queue AS q WHERE q.ns = :ns ORDER BY q.name LIMIT :limit;

-- name: count_delayed
SELECT w.queue, count(*) FROM (
    SELECT (SELECT t.queue FROM onetray.task AS t WHERE t.key = d.task AND t.ns = :ns AND d.what = :run AND d.fence = t.fence AND d.at = t.run_at AND t.state IN ('queued')
            AND NOT EXISTS (SELECT 1 FROM onetray.ready AS y
                WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind)) AS queue
    FROM (SELECT n.at, n.task, n.what, n.fence FROM onetray.due AS n ORDER BY n.at, n.task, n.what LIMIT :most) AS d
) AS w WHERE w.queue IS NOT NULL GROUP BY w.queue;

-- name: count_scanned
SELECT (SELECT count(*) FROM (SELECT 1 FROM onetray.due AS n LIMIT :due) AS d), (SELECT count(*) FROM (SELECT j.value FROM onetray.lease AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value) WHERE l.ns = :ns ORDER BY l.expires_at DESC LIMIT :most) AS h);

-- name: held_now
-- row: HeldTaskRow(owner, id, kind, queue, state, started_at)
SELECT t.owner, CAST(t.id AS text) AS id, k.name AS kind, q.name AS queue, t.state, t.started_at
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.queue AS q ON q.key = t.queue
WHERE t.key = ANY(ARRAY(SELECT j.value FROM onetray.lease AS l CROSS JOIN unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value) WHERE l.ns = :ns ORDER BY l.expires_at DESC LIMIT :most)) AND t.ns = :ns AND t.state IN ('assigned', 'running')
ORDER BY CASE WHEN t.state = :running THEN 0 ELSE 1 END, t.started_at, t.key;

-- name: last_pauses
SELECT eb.payload, eb.cause FROM onetray.event_batch AS eb
WHERE eb.type = :paused AND eb.ts >= :since AND eb.ns = :ns ORDER BY eb.ts DESC LIMIT :limit;

-- name: number_of_queues
SELECT count(*) FROM (SELECT 1 FROM onetray.queue AS q WHERE q.ns = :ns LIMIT :most) AS c;

-- name: set_progress
INSERT INTO onetray.progress (task, at, attempt, done, total, message, job, seq)
SELECT b.key, b.at, b.attempt, b.done, b.out_of, b.message, b.job, b.seq FROM unnest(:key::bigint[], :at::bigint[], :attempt::integer[], :done::double precision[], :out_of::double precision[], :message::text[], :job::bigint[], :seq::bigint[]) AS b(key, at, attempt, done, out_of, message, job, seq) WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, done = excluded.done,
    total = excluded.total, message = excluded.message, job = excluded.job, seq = excluded.seq;

-- name: progress_of
-- row: TaskProgress(at, attempt, done, total, message)
SELECT p.at, p.attempt, p.done, p.total, p.message
FROM onetray.progress AS p JOIN onetray.task AS t ON t.key = p.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: shares_of_tasks
-- row: TaskShareRow(id, state, attempts, reported_on, done, out_of)
SELECT CAST(t.id AS text) AS id, t.state, t.attempts,
    (SELECT p.attempt FROM onetray.progress AS p WHERE p.task = t.key) AS reported_on,
    (SELECT p.done FROM onetray.progress AS p WHERE p.task = t.key) AS done,
    (SELECT p.total FROM onetray.progress AS p WHERE p.task = t.key) AS out_of
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = ANY(:ids::uuid[]) AND n.name = :namespace;

-- name: shares_of_stages
-- row: StageShareRow(flow_id, flow_state, key, state, total, open, succeeded)
SELECT CAST(f.id AS text) AS flow_id, f.state AS flow_state, s.key, s.state, s.total, s.open, s.succeeded
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns LEFT JOIN onetray.stage AS s ON s.job = f.key
WHERE f.id = ANY(:ids::uuid[]) AND n.name = :namespace AND f.deleted_at IS NULL;

-- name: set_checkpoint
INSERT INTO onetray.checkpoint (task, at, attempt, body)
SELECT b.key, b.at, b.attempt, b.body FROM unnest(:key::bigint[], :at::bigint[], :attempt::integer[], :body::text[]) AS b(key, at, attempt, body) WHERE true
ON CONFLICT (task) DO UPDATE SET at = excluded.at, attempt = excluded.attempt, body = excluded.body;

-- name: copy_checkpoints
INSERT INTO onetray.checkpoint (task, at, attempt, body)
SELECT b.key, c.at, 0, c.body FROM onetray.checkpoint AS c JOIN unnest(:key::bigint[], :task::bigint[]) AS b(key, task) ON c.task = b.task
WHERE EXISTS (SELECT 1 FROM onetray.task AS o WHERE o.key = c.task AND o.state <> :succeeded);

-- name: checkpoint_of
SELECT c.body
FROM onetray.checkpoint AS c JOIN onetray.task AS t ON t.key = c.task JOIN onetray.namespace AS n ON n.key = t.ns
WHERE t.id = :id AND n.name = :namespace;

-- name: prune_progress
DELETE FROM onetray.progress WHERE task = ANY(:keys::bigint[]);

-- name: prune_checkpoints
DELETE FROM onetray.checkpoint WHERE task = ANY(:keys::bigint[]);

-- name: log_and_progress
-- row: LogAndProgressRow(key, last_line, progress_at, done)
SELECT t.key, (SELECT max(l.cursor) FROM onetray.log AS l WHERE l.task = t.key) AS last_line,
    (SELECT p.at FROM onetray.progress AS p WHERE p.task = t.key) AS progress_at,
    (SELECT p.done FROM onetray.progress AS p WHERE p.task = t.key) AS done
FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[])
UNION ALL
SELECT f.key, (SELECT max(l.seq) FROM onetray.log AS l WHERE l.job = f.key),
    (SELECT max(p.seq) FROM onetray.progress AS p WHERE p.job = f.key), NULL
FROM onetray.flow AS f WHERE f.key = ANY(:keys::bigint[]);

-- name: redacting_policies
SELECT key, body FROM onetray.policy WHERE replace(body, :mark, '') <> body;

-- name: redacting_kinds
SELECT DISTINCT k.name
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
LEFT JOIN onetray.flow AS f ON f.key = t.job LEFT JOIN onetray.kind AS n ON n.key = f.kind
WHERE k.name = ANY(:kinds::text[]) AND (t.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[])
    OR f.policy = ANY(:policies::integer[]) OR n.policy = ANY(:policies::integer[]));

-- name: origins_of_flows
WITH RECURSIVE chain (job, origin) AS (
    SELECT f.key, f.key FROM onetray.flow AS f WHERE f.key = ANY(:jobs::bigint[])
    UNION
    SELECT c.job, CASE way.number WHEN 1 THEN f.retry_of ELSE f.compensates END
    FROM chain AS c JOIN onetray.flow AS f ON f.key = c.origin
        JOIN (SELECT 1 AS number UNION ALL SELECT 2) AS way
        ON CASE way.number WHEN 1 THEN f.retry_of ELSE f.compensates END IS NOT NULL
)
SELECT c.job, f.key FROM chain AS c LEFT JOIN onetray.flow AS f ON f.key = c.origin WHERE c.origin <> c.job;

-- name: redacting_policy_of_flow
SELECT f.policy FROM onetray.flow AS f WHERE f.key = :job AND f.policy = ANY(:policies::integer[])
UNION ALL
SELECT k.policy FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind
WHERE f.key = :job AND k.policy = ANY(:policies::integer[])
UNION ALL
SELECT CASE WHEN t.policy = ANY(:policies::integer[]) THEN t.policy ELSE k.policy END
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
WHERE s.job = :job AND (t.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[]))
LIMIT 1;

-- name: redacting_flows
-- row: RedactingFlowRow(key, policy, kind_policy)
SELECT f.key, f.policy, k.policy AS kind_policy
FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind
WHERE f.key = ANY(:jobs::bigint[]) AND (f.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[]));

-- name: redacted_tasks
-- row: RedactedTaskRow(job, id, policy, kind_policy, payload, input, result, checkpoint)
SELECT t.job, CAST(t.id AS text) AS id, t.policy, k.policy AS kind_policy, t.payload, t.input, t.result,
    c.body AS checkpoint
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE t.key = ANY(:jobs::bigint[]) AND (t.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[]))
UNION ALL
SELECT t.job, CAST(t.id AS text) AS id, t.policy, k.policy AS kind_policy, t.payload, t.input, t.result,
    c.body AS checkpoint
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE s.job = ANY(:jobs::bigint[]) AND (t.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[]))
LIMIT :limit;

-- name: redacted_sizes
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
    + coalesce(octet_length(c.body), 0)
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE t.key = ANY(:jobs::bigint[]) AND (t.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[]))
UNION ALL
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
    + coalesce(octet_length(c.body), 0)
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE s.job = ANY(:jobs::bigint[]) AND (t.policy = ANY(:policies::integer[]) OR k.policy = ANY(:policies::integer[]))
LIMIT :limit;

-- name: flow_inputs
-- row: FlowInputRow(job, data, metadata, answer)
SELECT f.key AS job, f.data, f.metadata, NULL AS answer FROM onetray.flow AS f WHERE f.key = ANY(:jobs::bigint[])
UNION ALL
SELECT s.job, s.data, s.metadata, s.answer FROM onetray.stage AS s WHERE s.job = ANY(:jobs::bigint[])
UNION ALL
SELECT c.job, NULL, c.payload, NULL FROM onetray.context AS c WHERE c.job = ANY(:jobs::bigint[])
LIMIT :limit;

-- name: flow_input_sizes
SELECT f.key, octet_length(f.data) + coalesce(octet_length(f.metadata), 0) FROM onetray.flow AS f WHERE f.key = ANY(:jobs::bigint[])
UNION ALL
SELECT s.job, octet_length(s.data) + coalesce(octet_length(s.metadata), 0) + coalesce(octet_length(s.answer), 0)
FROM onetray.stage AS s WHERE s.job = ANY(:jobs::bigint[])
UNION ALL
SELECT c.job, octet_length(c.payload) FROM onetray.context AS c WHERE c.job = ANY(:jobs::bigint[])
LIMIT :limit;

-- name: kinds_of_ids
SELECT CAST(t.id AS text), k.name FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind WHERE t.id = ANY(:ids::uuid[])
UNION ALL
SELECT CAST(f.id AS text), k.name FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind WHERE f.id = ANY(:ids::uuid[]);

-- name: take_request
INSERT INTO onetray.request (caller, key, route, body_hash, began_at, expires_at)
VALUES (:caller, :key, :route, :body_hash, :at, :expires_at)
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :at OR (request.status IS NULL AND request.began_at <= :died_before
    AND request.route = excluded.route AND request.body_hash = excluded.body_hash)
RETURNING began_at;

-- name: request_of
-- row: RequestRow(route, body_hash, status, answer, began_at)
SELECT route, body_hash, status, answer, began_at FROM onetray.request WHERE caller = :caller AND key = :key;

-- name: renew_request
UPDATE onetray.request SET began_at = :at
WHERE caller = :caller AND key = :key AND began_at = ANY(:held_at::bigint[]) AND status IS NULL
RETURNING began_at;

-- name: answer_request
UPDATE onetray.request SET status = :status, answer = :answer
WHERE caller = :caller AND key = :key AND began_at = ANY(:held_at::bigint[]) AND status IS NULL;

-- name: drop_request
DELETE FROM onetray.request
WHERE caller = :caller AND key = :key AND began_at = ANY(:held_at::bigint[]) AND status IS NULL;

-- name: delete_expired_requests
WITH old AS MATERIALIZED (
    SELECT caller, key FROM onetray.request WHERE expires_at <= :at ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM onetray.request WHERE (caller, key) IN (SELECT caller, key FROM old);

-- name: reserve_request
INSERT INTO onetray.request (caller, key, route, body_hash, began_at, expires_at)
VALUES (:caller, :key, :route, :body_hash, :at, :expires_at)
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :at;

-- name: reserve_requests
INSERT INTO onetray.request (caller, key, route, body_hash, began_at, expires_at)
SELECT b.caller, b.key, b.route, b.body_hash, :now, b.expires_at FROM unnest(:caller::text[], :key::text[], :route::text[], :body_hash::text[], :expires_at::bigint[]) AS b(caller, key, route, body_hash, expires_at) WHERE true
ON CONFLICT (caller, key) DO UPDATE SET route = excluded.route, body_hash = excluded.body_hash,
    began_at = excluded.began_at, expires_at = excluded.expires_at, status = NULL, answer = NULL
WHERE request.expires_at <= :now;

-- name: reserved_requests
-- row: ReservedRow(caller, key, body_hash)
SELECT r.caller, r.key, r.body_hash FROM onetray.request AS r JOIN unnest(:caller::text[], :key::text[]) AS b(caller, key) ON r.caller = b.caller AND r.key = b.key;

-- name: reserved_request
SELECT body_hash FROM onetray.request WHERE caller = :caller AND key = :key;

-- name: due_schedules
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM onetray.schedule AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE c.look_at <= :now ORDER BY c.look_at, c.key LIMIT :limit;

-- name: next_look
SELECT min(look_at) FROM onetray.schedule WHERE look_at IS NOT NULL;

-- name: schedule_by_name
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM onetray.schedule AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE n.name = :namespace AND c.name = :schedule;

-- name: list_schedules
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM onetray.schedule AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE n.name = :namespace AND c.name > :after ORDER BY c.name LIMIT :limit;

-- name: schedules_of_app
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM onetray.schedule AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE c.ns = :ns AND c.app = :app;

-- name: count_schedules
SELECT count(*) FROM onetray.schedule WHERE ns = :ns;

-- name: lock_schedule
SELECT c.turn FROM onetray.schedule AS c WHERE c.key = :key AND c.turn = :turn FOR UPDATE SKIP LOCKED;

-- name: lock_schedules
SELECT c.key FROM onetray.schedule AS c JOIN unnest(:key::bigint[], :turn::bigint[]) AS b(key, turn) ON c.key = b.key AND c.turn = b.turn ORDER BY c.key FOR UPDATE OF c SKIP LOCKED;

-- name: wait_for_schedule
-- row: ScheduleRow(key, ns, namespace, name, body, version, source, app, turn, next_fire_at, last_fire_at, look_at, failures, fires, kept_from, paused_at, paused_by, paused_why, orphaned_at, seen_at, version_seen_at, created_at, created_by, updated_at)
SELECT c.key, c.ns, n.name AS namespace, c.name, c.body, c.version, c.source, c.app, c.turn, c.next_fire_at, c.last_fire_at,
    c.look_at, c.failures, c.fires, c.kept_from, c.paused_at, c.paused_by, c.paused_why, c.orphaned_at, c.seen_at,
    c.version_seen_at, c.created_at, c.created_by, c.updated_at
FROM onetray.schedule AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE c.ns = :ns AND c.name = :schedule FOR UPDATE OF c;

-- name: insert_schedule
INSERT INTO onetray.schedule (key, ns, name, body, version, source, app, turn, next_fire_at, look_at, failures, fires,
    kept_from, seen_at, version_seen_at, created_at, created_by, updated_at)
VALUES (:key, :ns, :schedule, :body, :version, :source, :app, 1, :next_fire_at, :look_at, 0, 0, 0, :seen_at, :seen_at, :at, :by,
    :at)
ON CONFLICT (ns, name) DO NOTHING RETURNING 1;

-- name: define_schedule
UPDATE onetray.schedule SET body = :body, version = :version, next_fire_at = :next_fire_at, look_at = :look_at,
    version_seen_at = :seen_at, updated_at = :at, turn = turn + 1
WHERE key = :key;

-- name: see_schedule
UPDATE onetray.schedule SET seen_at = :at, version_seen_at = CASE WHEN version = :version THEN :at ELSE version_seen_at END,
    app = :app, orphaned_at = NULL, look_at = :look_at, turn = turn + CASE WHEN orphaned_at IS NULL THEN 0 ELSE 1 END
WHERE key = :key;

-- name: orphan_schedule
UPDATE onetray.schedule SET orphaned_at = :at, look_at = NULL, turn = turn + 1 WHERE key = :key;

-- name: pause_schedule
UPDATE onetray.schedule SET paused_at = :at, paused_by = :by, paused_why = :why, next_fire_at = NULL, look_at = NULL,
    failures = :failures, updated_at = :at, turn = turn + 1
WHERE key = :key;

-- name: resume_schedule
UPDATE onetray.schedule SET paused_at = NULL, paused_by = NULL, paused_why = NULL, failures = 0,
    next_fire_at = :next_fire_at, look_at = :look_at, updated_at = :at, turn = turn + 1
WHERE key = :key;

-- name: advance_schedules
UPDATE onetray.schedule SET next_fire_at = b.next_fire_at, last_fire_at = coalesce(b.last_fire_at, schedule.last_fire_at),
    look_at = b.look_at, failures = b.failures, fires = schedule.fires + b.fires, turn = schedule.turn + 1 FROM unnest(:next_fire_at::bigint[], :last_fire_at::bigint[], :look_at::bigint[], :failures::integer[], :fires::bigint[], :key::bigint[]) AS b(next_fire_at, last_fire_at, look_at, failures, fires, key)
WHERE schedule.key = b.key;

-- name: note_triggered
UPDATE onetray.schedule SET turn = turn + 1 WHERE key = :key;

-- name: postpone_schedule
UPDATE onetray.schedule SET look_at = :look_at WHERE key = :key AND turn = :turn AND look_at IS NOT NULL;

-- name: forget_fires
DELETE FROM onetray.schedule_fire WHERE schedule = :key AND open = 0 AND fire_at <= (
    SELECT o.fire_at FROM onetray.schedule_fire AS o WHERE o.schedule = :key ORDER BY o.fire_at DESC LIMIT 1 OFFSET :keep)
RETURNING fire_at;

-- name: keep_fires_from
UPDATE onetray.schedule SET kept_from = :kept_from WHERE key = :key;

-- name: delete_schedule
DELETE FROM onetray.schedule WHERE key = :key;

-- name: delete_fires
DELETE FROM onetray.schedule_fire WHERE schedule = :key;

-- name: insert_fires
INSERT INTO onetray.schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, why, missed, open)
SELECT b.schedule, b.fire_at, b.manual, b.outcome, NULL, b.actor, b.at, b.why, b.missed, b.open FROM unnest(:schedule::bigint[], :fire_at::bigint[], :manual::integer[], :outcome::text[], :actor::text[], :at::bigint[], :why::text[], :missed::bigint[], :open::integer[]) AS b(schedule, fire_at, manual, outcome, actor, at, why, missed, open) WHERE true
ON CONFLICT (schedule, fire_at, manual) DO NOTHING RETURNING fire_at;

-- name: insert_or_take_fires
INSERT INTO onetray.schedule_fire (schedule, fire_at, manual, outcome, job_id, actor, at, why, missed, open)
SELECT b.schedule, b.fire_at, b.manual, b.outcome, NULL, b.actor, b.at, b.why, b.missed, b.open FROM unnest(:schedule::bigint[], :fire_at::bigint[], :manual::integer[], :outcome::text[], :actor::text[], :at::bigint[], :why::text[], :missed::bigint[], :open::integer[]) AS b(schedule, fire_at, manual, outcome, actor, at, why, missed, open) WHERE true
ON CONFLICT (schedule, fire_at, manual) DO UPDATE SET outcome = excluded.outcome, actor = excluded.actor, at = excluded.at,
    why = excluded.why, missed = excluded.missed, open = excluded.open
WHERE schedule_fire.job_id IS NULL
RETURNING fire_at;

-- name: set_fires
UPDATE onetray.schedule_fire SET outcome = b.outcome, job_id = b.job_id, why = b.why, open = b.open FROM unnest(:outcome::text[], :job_id::uuid[], :why::text[], :open::integer[], :schedule::bigint[], :fire_at::bigint[], :manual::integer[]) AS b(outcome, job_id, why, open, schedule, fire_at, manual)
WHERE schedule_fire.schedule = b.schedule AND schedule_fire.fire_at = b.fire_at AND schedule_fire.manual = b.manual;

-- name: close_fires
UPDATE onetray.schedule_fire SET open = 0 FROM unnest(:schedule::bigint[], :fire_at::bigint[], :manual::integer[]) AS b(schedule, fire_at, manual)
WHERE schedule_fire.schedule = b.schedule AND schedule_fire.fire_at = b.fire_at AND schedule_fire.manual = b.manual;

-- name: open_fires
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM onetray.schedule_fire AS x LEFT JOIN onetray.task AS t ON t.id = x.job_id
    LEFT JOIN onetray.flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.schedule = :key AND x.open = 1 ORDER BY x.fire_at, x.manual LIMIT :limit;

-- name: open_fires_of_all
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM onetray.schedule_fire AS x LEFT JOIN onetray.task AS t ON t.id = x.job_id
    LEFT JOIN onetray.flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.open = 1 AND (x.schedule, x.fire_at, x.manual) IN (
    SELECT o.schedule, o.fire_at, o.manual FROM (
        SELECT y.schedule, y.fire_at, y.manual, row_number() OVER (PARTITION BY y.schedule ORDER BY y.fire_at, y.manual) AS place
        FROM onetray.schedule_fire AS y WHERE y.open = 1 AND y.schedule = ANY(:keys::bigint[])) AS o
    WHERE o.place <= :limit)
ORDER BY x.schedule, x.fire_at, x.manual;

-- name: last_fires
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM onetray.schedule_fire AS x LEFT JOIN onetray.task AS t ON t.id = x.job_id
    LEFT JOIN onetray.flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.schedule = :key ORDER BY x.fire_at DESC, x.manual DESC LIMIT :limit;

-- name: newest_fires
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM onetray.schedule_fire AS x LEFT JOIN onetray.task AS t ON t.id = x.job_id
    LEFT JOIN onetray.flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL JOIN onetray.schedule AS c ON c.key = x.schedule AND c.last_fire_at = x.fire_at AND x.manual = 0
WHERE c.key = ANY(:keys::bigint[]);

-- name: fire_there
-- row: ScheduleFireRow(schedule, fire_at, manual, outcome, job_id, job_state, entity, actor, at, why, missed)
SELECT x.schedule, x.fire_at, x.manual, x.outcome, CAST(x.job_id AS text) AS job_id, coalesce(t.state, f.state) AS job_state,
    CASE WHEN t.key IS NOT NULL THEN 'task' WHEN f.key IS NOT NULL THEN 'flow' END AS entity, x.actor, x.at, x.why, x.missed
FROM onetray.schedule_fire AS x LEFT JOIN onetray.task AS t ON t.id = x.job_id
    LEFT JOIN onetray.flow AS f ON f.id = x.job_id AND f.deleted_at IS NULL WHERE x.schedule = :key AND x.fire_at = :fire_at AND x.manual = :manual;

-- name: fired_between
SELECT x.fire_at FROM onetray.schedule_fire AS x
WHERE x.schedule = :key AND x.manual = 0 AND x.fire_at >= :since AND x.fire_at <= :until
    AND (x.job_id IS NOT NULL OR x.outcome = :waiting);

-- name: statistic_cursor
-- row: StatisticCursorRow(since, upto, counted_at, removed_at)
SELECT c.since, c.upto, c.counted_at, c.removed_at FROM onetray.statistic_cursor AS c;

-- name: end_of_count
SELECT max(w.id + w.size - 1) FROM (
    SELECT eb.id, eb.size FROM onetray.event_batch AS eb WHERE eb.id > :after ORDER BY eb.id LIMIT :scan
) AS w WHERE w.id <= :upto;

-- name: count_log
-- row: LogCountRow(ns, at, type, number, batches)
SELECT eb.ns, eb.ts / 60000000 * 60000000 AS at, eb.type, CAST(sum(eb.size) AS bigint) AS number, count(*) AS batches
FROM onetray.event_batch AS eb
WHERE eb.id > :after AND eb.id <= :upto AND NOT (eb.ns IS NULL OR strpos(coalesce(eb.varied, ''), '"ts":[') > 0) GROUP BY 1, 2, 3;

-- name: varied_log
-- row: VariedLogRow(size, ts, ns, type, varied)
SELECT eb.size, eb.ts, eb.ns, eb.type, eb.varied FROM onetray.event_batch AS eb
WHERE eb.id > :after AND eb.id <= :upto AND (eb.ns IS NULL OR strpos(coalesce(eb.varied, ''), '"ts":[') > 0);

-- name: sample_ended
-- row: EndedBatchRow(ns, size, entity, varied)
SELECT e.ns, e.size, e.entity, e.varied FROM (
    SELECT eb.ns, eb.size, eb.entity, CASE WHEN eb.entity IS NULL OR eb.ns IS NULL THEN eb.varied END AS varied,
        row_number() OVER (PARTITION BY eb.ns ORDER BY eb.id) AS nth
    FROM onetray.event_batch AS eb WHERE eb.id > :after AND eb.id <= :upto AND eb.type = ANY(:ends::text[])
) AS e
WHERE (e.nth - 1) / :step * :step = e.nth - 1;

-- name: times_of_tasks
-- row: TaskTimesRow(key, ns, claimable_at, started_at, finished_at)
SELECT t.key, t.ns, greatest(t.run_at, coalesce((SELECT s.opened_at FROM onetray.stage AS s WHERE s.key = t.stage), 0))
    AS claimable_at, t.started_at, t.finished_at
FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]) AND t.started_at IS NOT NULL AND t.finished_at IS NOT NULL;

-- name: add_statistics
INSERT INTO onetray.statistic (ns, span, at, type, bucket, number)
SELECT b.ns, b.span, b.at, b.type, b.bucket, b.number FROM unnest(:ns::integer[], :span::integer[], :at::bigint[], :type::text[], :bucket::integer[], :number::bigint[]) AS b(ns, span, at, type, bucket, number) WHERE true
ON CONFLICT (ns, span, at, type, bucket) DO UPDATE SET number = statistic.number + excluded.number;

-- name: move_statistic_cursor
UPDATE onetray.statistic_cursor SET upto = :upto, counted_at = :at WHERE upto = :after RETURNING upto;

-- name: note_removed
UPDATE onetray.statistic_cursor SET removed_at = :at WHERE removed_at < :at;

-- name: prune_statistics
WITH old AS MATERIALIZED (
    SELECT t.ns, t.span, t.at, t.type, t.bucket FROM onetray.namespace AS n CROSS JOIN onetray.statistic AS t
    WHERE t.ns = n.key AND t.span = :span AND t.at < :before LIMIT :limit FOR UPDATE OF t SKIP LOCKED
)
DELETE FROM onetray.statistic WHERE (ns, span, at, type, bucket) IN (SELECT o.ns, o.span, o.at, o.type, o.bucket FROM old AS o)
RETURNING number;

-- name: statistics
-- row: StatisticRow(slot, type, bucket, number)
SELECT CAST(-1 AS bigint) AS slot, '' AS type, 0 AS bucket, c.upto AS number FROM onetray.statistic_cursor AS c
UNION ALL
SELECT (s.at - :since) / :width, s.type, s.bucket, CAST(sum(s.number) AS bigint)
FROM onetray.statistic AS s WHERE s.ns = :ns AND s.span = :span AND s.at >= :since AND s.at < :until GROUP BY 1, 2, 3;

-- name: keys_of
-- row: KeyRow(id, key, job)
SELECT CAST(id AS text) AS id, key, job FROM onetray.task WHERE id = ANY(:ids::uuid[]);

-- name: lock_tasks
-- row: TaskRow(key, ns, state, version, fence, owner, lease, lease_expires_at, expiry_counts, attempts, max_attempts, spared, queue, kind, policy, priority, run_at, cancel_at, job, stage, unmet, control, updated_at, lane, slots, seen_at)
SELECT l.*, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at FROM (
    SELECT task.key, task.ns, task.state, task.version, task.fence, task.owner, task.lease,
        lease.expires_at AS lease_expires_at, lease.expiry_counts, task.attempts, task.max_attempts, task.spared,
        task.queue, task.kind, task.policy, task.priority, task.run_at, task.cancel_at, task.job, task.stage,
        task.unmet, task.control, task.updated_at, task.lane, task.slots
    FROM onetray.task LEFT JOIN onetray.lease ON lease.key = task.lease
    WHERE task.key = ANY(:keys::bigint[])
    ORDER BY task.key FOR NO KEY UPDATE OF task
) AS l;

-- name: claim_any
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at FROM onetray.ready AS r JOIN onetray.task AS t ON t.key = ANY (ARRAY[r.task]) WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM onetray.queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
    AND (r.xmax = 0 OR CAST(r.xmax AS text) <> ALL (ARRAY(SELECT CAST(CAST(CAST(x AS text) AS bigint) & 4294967295 AS text) FROM pg_snapshot_xip(pg_current_snapshot()) AS x)))
ORDER BY r.queue, r.rank, r.task LIMIT :limit FOR UPDATE OF r, t SKIP LOCKED;

-- name: claim_head
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at
FROM (
    SELECT r.rank, r.task FROM onetray.ready AS r
    WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM onetray.queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
    AND (r.xmax = 0 OR CAST(r.xmax AS text) <> ALL (ARRAY(SELECT CAST(CAST(CAST(x AS text) AS bigint) & 4294967295 AS text) FROM pg_snapshot_xip(pg_current_snapshot()) AS x)))
    ORDER BY r.queue, r.rank, r.task LIMIT :limit FOR UPDATE OF r SKIP LOCKED
) AS r JOIN onetray.task AS t ON t.key = ANY (ARRAY[r.task]) FOR UPDATE OF t SKIP LOCKED;

-- name: claim_kind
-- row: ClaimedRow(rank, key, id, kind, policy, version, fence, attempts, payload, input, correlation_id, trace, job, stage, control, idempotency_key, lane, seen_at)
SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at FROM onetray.ready AS r JOIN onetray.task AS t ON t.key = ANY (ARRAY[r.task]) WHERE r.queue = :queue AND r.kind = :kind AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM onetray.queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
    AND (r.xmax = 0 OR CAST(r.xmax AS text) <> ALL (ARRAY(SELECT CAST(CAST(CAST(x AS text) AS bigint) & 4294967295 AS text) FROM pg_snapshot_xip(pg_current_snapshot()) AS x)))
ORDER BY r.queue, r.kind, r.rank, r.task LIMIT :limit FOR UPDATE OF r, t SKIP LOCKED;

-- name: texts_of_tasks
-- row: TaskTextsRow(key, payload, input)
SELECT t.key, t.payload, t.input FROM onetray.task AS t WHERE t.key = ANY(:keys::bigint[]);

-- name: heads_of_queue
SELECT r.task FROM onetray.ready AS r WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT :limit;

-- name: head_of_queue
SELECT r.rank, r.task FROM onetray.ready AS r WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT 1;

-- name: heads_of_kind
SELECT r.rank, r.task FROM onetray.ready AS r
WHERE r.queue = :queue AND r.kind = :kind
ORDER BY r.queue, r.kind, r.rank, r.task LIMIT :limit;

-- name: insert_task
WITH at AS (SELECT nextval('onetray.event_id') AS id) INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, events) SELECT b.key, b.id, b.job, b.ns, b.queue, b.kind, b.policy, b.version, b.fence, b.priority, b.attempts, b.max_attempts, b.spared, b.created_at, b.updated_at,
    b.run_at, b.state, b.retry_of, b.idempotency_key, b.correlation_id, b.trace, b.lane, b.payload, CAST(at.id + b.place - 1 AS text) FROM at, unnest(:key::bigint[], :id::uuid[], :job::bigint[], :ns::integer[], :queue::integer[], :kind::integer[], :policy::integer[], :version::integer[], :fence::integer[], :priority::integer[], :attempts::integer[], :max_attempts::integer[], :spared::integer[], :created_at::bigint[], :updated_at::bigint[], :run_at::bigint[], :state::text[], :retry_of::bigint[], :idempotency_key::text[], :correlation_id::text[], :trace::text[], :lane::integer[], :payload::text[]) WITH ORDINALITY AS b(key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at, run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, place);

-- name: insert_member
WITH at AS (SELECT nextval('onetray.event_id') AS id) INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, stage, name, unmet, control, context, spawned_by, events)
SELECT b.key, b.id, b.job, b.ns, b.queue, b.kind, b.policy, b.version, b.fence, b.priority, b.attempts, b.max_attempts, b.spared, b.created_at, b.updated_at,
    b.run_at, b.state, b.retry_of, b.idempotency_key, b.correlation_id, b.trace, b.lane, b.payload, b.stage, b.name, b.unmet, b.control, b.context, b.spawned_by, CAST(at.id + b.place - 1 AS text) FROM at, unnest(:key::bigint[], :id::uuid[], :job::bigint[], :ns::integer[], :queue::integer[], :kind::integer[], :policy::integer[], :version::integer[], :fence::integer[], :priority::integer[], :attempts::integer[], :max_attempts::integer[], :spared::integer[], :created_at::bigint[], :updated_at::bigint[], :run_at::bigint[], :state::text[], :retry_of::bigint[], :idempotency_key::text[], :correlation_id::text[], :trace::text[], :lane::integer[], :payload::text[], :stage::bigint[], :name::text[], :unmet::integer[], :control::integer[], :context::bigint[], :spawned_by::bigint[]) WITH ORDINALITY AS b(key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at, run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, stage, name, unmet, control, context, spawned_by, place);

-- name: insert_ready
INSERT INTO onetray.ready (queue, rank, task, kind) SELECT b.queue, b.rank, b.key, b.kind FROM unnest(:queue::integer[], :rank::integer[], :key::bigint[], :kind::integer[]) AS b(queue, rank, key, kind);

-- name: delete_ready
DELETE FROM onetray.ready WHERE ready.ctid = ANY(ARRAY(SELECT (SELECT ready.ctid FROM onetray.ready WHERE ready.queue = b.queue AND ready.rank = b.rank AND ready.task = b.key
    AND ready.kind = b.kind) FROM unnest(:queue::integer[], :rank::integer[], :key::bigint[], :kind::integer[]) AS b(queue, rank, key, kind)));

-- name: insert_due
INSERT INTO onetray.due (at, task, what, fence) SELECT b.at, b.key, b.what, b.fence FROM unnest(:at::bigint[], :key::bigint[], :what::text[], :fence::integer[]) AS b(at, key, what, fence) WHERE true
ON CONFLICT (at, task, what) DO UPDATE SET fence = excluded.fence;

-- name: set_priority
UPDATE onetray.task SET priority = b.priority FROM unnest(:priority::integer[], :key::bigint[]) AS b(priority, key) WHERE task.key = b.key;

-- name: set_metadata
UPDATE onetray.task SET metadata = b.metadata FROM unnest(:metadata::text[], :key::bigint[]) AS b(metadata, key) WHERE task.key = b.key;

-- name: describe_tasks
UPDATE onetray.task SET metadata = b.metadata, tracestate = b.tracestate FROM unnest(:metadata::text[], :tracestate::text[], :key::bigint[]) AS b(metadata, tracestate, key) WHERE task.key = b.key;

-- name: set_run_at
UPDATE onetray.task SET run_at = b.run_at FROM unnest(:run_at::bigint[], :key::bigint[]) AS b(run_at, key) WHERE task.key = b.key;

-- name: replace_payload
UPDATE onetray.task SET payload = b.payload, run_at = b.run_at, lane = b.lane FROM unnest(:payload::text[], :run_at::bigint[], :lane::integer[], :key::bigint[]) AS b(payload, run_at, lane, key) WHERE task.key = b.key;

-- name: set_cancel_at
UPDATE onetray.task SET cancel_at = b.at FROM unnest(:at::bigint[], :key::bigint[]) AS b(at, key) WHERE task.key = b.key;

-- name: outcomes_of_attempt
-- row: OutcomeRow(type, state, fence, payload)
SELECT eb.type, eb.state, coalesce(eb.fence, CAST(CAST(eb.varied AS json) -> 'fence' ->> CAST(i.value - eb.id AS integer) AS integer)) AS fence, coalesce(eb.payload, CAST(CAST(eb.varied AS json) -> 'payload' ->> CAST(i.value - eb.id AS integer) AS text)) AS payload
FROM onetray.task AS t CROSS JOIN unnest(CAST(string_to_array((coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events), ',') AS bigint[])) AS i(value) JOIN LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value ORDER BY x.id DESC LIMIT 1) AS eb ON true
WHERE t.key = :key AND coalesce(eb.fence, CAST(CAST(eb.varied AS json) -> 'fence' ->> CAST(i.value - eb.id AS integer) AS integer)) IN (:fence, :fence + 1) ORDER BY i.value;

-- name: task_by_id
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.id = :id AND n.name = :namespace;

-- name: task_by_key
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.key = :key;

-- name: tasks_by_ids
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.id = ANY(:ids::uuid[]) AND n.name = :namespace;

-- name: tasks_by_keys
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.key = ANY(:keys::bigint[]);

-- name: tasks_newest
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE n.name = :namespace AND t.key < :before ORDER BY t.key DESC LIMIT :limit;

-- name: take_ready
DELETE FROM onetray.ready WHERE ready.ctid = ANY(ARRAY(SELECT (SELECT ready.ctid FROM onetray.ready WHERE ready.queue = b.queue AND ready.rank = b.rank AND ready.task = b.key
    AND ready.kind = b.kind) FROM unnest(:queue::integer[], :rank::integer[], :key::bigint[], :kind::integer[]) AS b(queue, rank, key, kind)))
RETURNING ready.task;

-- name: promote_ready
INSERT INTO onetray.ready (queue, rank, task, kind) SELECT b.queue, b.rank, b.key, b.kind FROM unnest(:queue::integer[], :rank::integer[], :key::bigint[], :kind::integer[]) AS b(queue, rank, key, kind) WHERE true
ON CONFLICT DO NOTHING;

-- name: pending_tasks
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.key IN (
    SELECT r.task FROM onetray.ready AS r WHERE r.queue IN (
        SELECT w.key FROM onetray.queue AS w JOIN onetray.namespace AS m ON m.key = w.ns WHERE m.name = :namespace
        UNION ALL SELECT -v.key FROM onetray.lane AS v JOIN onetray.namespace AS m ON m.key = v.ns WHERE m.name = :namespace)
    UNION SELECT d.task FROM onetray.due AS d WHERE d.what = :run AND d.at <= :ready_by
) AND n.name = :namespace AND t.control = 0 AND t.state IN ('queued') AND t.run_at <= :ready_by
    AND (CAST(:any_kind AS integer) = 1 OR k.name = ANY(:kinds::text[])) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND ((SELECT count(*) FROM onetray.ready AS y
            WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) > 0
        OR (SELECT count(*) FROM onetray.due AS z
            WHERE z.at = t.run_at AND z.task = t.key AND z.what = :run AND z.fence = t.fence) > 0
        AND (t.stage IS NULL OR t.unmet = 0 AND (
            SELECT count(*) FROM onetray.stage AS g JOIN onetray.flow AS h ON h.key = g.job
            WHERE g.key = t.stage AND g.ending IS NULL AND h.ending IS NULL AND t.key <= g.opened_to
                AND g.state = ANY(:going_stages::text[]) AND h.state = ANY(:going_flows::text[])) > 0)) ORDER BY t.priority DESC, t.key LIMIT :limit OFFSET :offset;

-- name: pending_tasks_of_flow
-- row: TaskDetails(key, id, job_id, namespace, queue, kind, state, version, fence, priority, attempts, max_attempts, created_at, updated_at, run_at, started_at, finished_at, owner, lease, lease_expires_at, cancel_requested_at, held_by, held_why, retry_of, correlation_id, trace, payload, input, result, error, policy, stage_id, name, unmet, control, context_id, metadata, tracestate, labels, alias, redacts)
SELECT t.key, CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job) END AS job_id, n.name AS namespace,
    q.name AS queue, k.name AS kind, t.state, t.version, t.fence, t.priority, t.attempts, t.max_attempts, t.created_at,
    t.updated_at, t.run_at, t.started_at, t.finished_at, t.owner, t.lease, l.expires_at AS lease_expires_at,
    t.cancel_at AS cancel_requested_at, t.held_by, t.held_why,
    (SELECT CAST(o.id AS text) FROM onetray.task AS o WHERE o.key = t.retry_of) AS retry_of,
    coalesce(t.correlation_id, CAST(t.id AS text)) AS correlation_id, t.trace, t.payload, t.input, t.result, t.error,
    p.body AS policy, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = t.stage) AS stage_id, t.name,
    t.unmet, t.control, (SELECT CAST(c.id AS text) FROM onetray.context AS c WHERE c.key = t.context) AS context_id,
    t.metadata, t.tracestate, (SELECT CAST(json_object_agg(a.name, a.value ORDER BY a.name) AS text) FROM onetray.label AS a WHERE a.job = t.job)
    AS labels, (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias,
    CASE WHEN t.job = t.key AND NOT EXISTS (SELECT 1 FROM onetray.policy AS h WHERE h.key IN (t.policy, k.policy)
        AND replace(h.body, '"redact":["', '') <> h.body) THEN 0 ELSE 1 END AS redacts
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns JOIN onetray.queue AS q ON q.key = t.queue
    JOIN onetray.kind AS k ON k.key = t.kind JOIN onetray.policy AS p ON p.key = t.policy
    LEFT JOIN onetray.lease AS l ON l.key = t.lease WHERE t.stage = ANY(:stages::bigint[]) AND n.name = :namespace AND t.control = 0 AND t.state IN ('queued') AND t.run_at <= :ready_by
    AND (CAST(:any_kind AS integer) = 1 OR k.name = ANY(:kinds::text[])) AND (CAST(:queue AS text) IS NULL OR q.name = :queue)
    AND ((SELECT count(*) FROM onetray.ready AS y
            WHERE y.queue = coalesce(-t.lane, t.queue) AND y.rank = -t.priority AND y.task = t.key AND y.kind = t.kind) > 0
        OR (SELECT count(*) FROM onetray.due AS z
            WHERE z.at = t.run_at AND z.task = t.key AND z.what = :run AND z.fence = t.fence) > 0
        AND (t.stage IS NULL OR t.unmet = 0 AND (
            SELECT count(*) FROM onetray.stage AS g JOIN onetray.flow AS h ON h.key = g.job
            WHERE g.key = t.stage AND g.ending IS NULL AND h.ending IS NULL AND t.key <= g.opened_to
                AND g.state = ANY(:going_stages::text[]) AND h.state = ANY(:going_flows::text[])) > 0)) ORDER BY t.priority DESC, t.key LIMIT :limit OFFSET :offset;

-- name: add_token
INSERT INTO onetray.token (id, hash, name, namespace, scopes, member_of, created_at, expires_at)
VALUES (:id, :hash, :name, :namespace, :scopes, :member_of, :created_at, :expires_at)
ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE token.hash = excluded.hash;

-- name: tokens
-- row: TokenRow(id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, seen_at)
SELECT id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at
FROM onetray.token WHERE CAST(:of_namespace AS text) IS NULL OR namespace = :of_namespace
ORDER BY created_at DESC, id LIMIT :limit;

-- name: tokens_by_id
-- row: TokenRow(id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, seen_at)
SELECT id, name, namespace, scopes, created_at, expires_at, revoked_at, used_at, hash, member_of, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at
FROM onetray.token WHERE id = ANY(:ids::text[]);

-- name: any_token
SELECT 1 FROM onetray.token LIMIT 1;

-- name: revoke_token
UPDATE onetray.token SET revoked_at = :at WHERE id = :id AND revoked_at IS NULL RETURNING id;

-- name: use_token
UPDATE onetray.token SET used_at = :at WHERE id = :id AND (used_at IS NULL OR used_at <= :before);

-- name: insert_waiting
INSERT INTO onetray.waiting (key, ns, state, at) SELECT b.key, b.ns, b.state, b.at FROM unnest(:key::bigint[], :ns::integer[], :state::text[], :at::bigint[]) AS b(key, ns, state, at);

-- name: delete_waiting
DELETE FROM onetray.waiting WHERE key = ANY(:keys::bigint[]);

-- name: count_waiting
SELECT count(*), min(w.at) FROM (
    SELECT x.at FROM onetray.waiting AS x WHERE x.ns = :ns AND x.state = :state ORDER BY x.at LIMIT :most
) AS w;

-- name: first_waiting_tasks
-- row: WaitingItem(id, job_id, name, at)
SELECT CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name, w.at
FROM (
    SELECT x.key, x.at FROM onetray.waiting AS x WHERE x.ns = :ns AND x.state = :state ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN onetray.task AS t ON t.key = w.key JOIN onetray.kind AS k ON k.key = t.kind ORDER BY w.at, w.key;

-- name: count_approvals
-- row: ApprovalCountRow(waiting, open, oldest_at)
SELECT count(*) AS waiting, count(w.open_at) AS open, min(w.open_at) AS oldest_at FROM (
    SELECT CASE WHEN x.key = (SELECT f.current FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job WHERE s.key = x.key) THEN x.at END AS open_at FROM (SELECT v.key, v.at FROM onetray.waiting AS v WHERE v.ns = :ns AND v.state = :state ORDER BY v.at, v.key LIMIT :most) AS x
) AS w;

-- name: first_approvals
-- row: WaitingItem(id, job_id, name, at)
SELECT CAST(s.id AS text) AS id, CAST(f.id AS text) AS job_id, s.name, w.at
FROM (
    SELECT x.key, x.at FROM (SELECT v.key, v.at FROM onetray.waiting AS v WHERE v.ns = :ns AND v.state = :state ORDER BY v.at, v.key LIMIT :most) AS x WHERE x.key = (SELECT f.current FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job WHERE s.key = x.key) ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN onetray.stage AS s ON s.key = w.key JOIN onetray.flow AS f ON f.key = s.job ORDER BY w.at, w.key;

-- name: waiting_tasks_after
-- row: WaitingRow(key, id, job_id, kind, name, at, is_next)
SELECT w.key, CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name AS kind, t.name, w.at, 1 AS is_next
FROM (
    SELECT x.key, x.at FROM onetray.waiting AS x
    WHERE x.ns = :ns AND x.state = :state AND (x.at, x.key) > (:since, :after) ORDER BY x.at, x.key LIMIT :limit
) AS w JOIN onetray.task AS t ON t.key = w.key JOIN onetray.kind AS k ON k.key = t.kind ORDER BY w.at, w.key;

-- name: waiting_stages_after
-- row: WaitingRow(key, id, job_id, kind, name, at, is_next)
SELECT x.key, (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = x.key) AS id,
    (SELECT CAST(f.id AS text) FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job WHERE s.key = x.key) AS job_id,
    (SELECT (SELECT k.name FROM onetray.kind AS k WHERE k.key = f.kind) FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job WHERE s.key = x.key) AS kind,
    (SELECT s.name FROM onetray.stage AS s WHERE s.key = x.key) AS name, x.at,
    CASE WHEN x.key = (SELECT f.current FROM onetray.stage AS s JOIN onetray.flow AS f ON f.key = s.job WHERE s.key = x.key) THEN 1 ELSE 0 END AS is_next
FROM (
    SELECT v.key, v.at FROM onetray.waiting AS v
    WHERE v.ns = :ns AND v.state = :state AND (v.at, v.key) > (:since, :after) ORDER BY v.at, v.key LIMIT :limit
) AS x ORDER BY x.at, x.key;

-- name: count_open_letters
SELECT count(*), min(o.created_at) FROM (
    SELECT d.created_at FROM onetray.dead_letter AS d WHERE d.ns = :ns AND d.successor IS NULL ORDER BY d.task LIMIT :most
) AS o;

-- name: first_open_letters
-- row: WaitingItem(id, job_id, name, at)
SELECT CAST(t.id AS text) AS id, coalesce((SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = t.job),
    CAST(t.id AS text)) AS job_id, k.name, o.created_at AS at
FROM (
    SELECT d.task, d.created_at FROM onetray.dead_letter AS d WHERE d.ns = :ns AND d.successor IS NULL
    ORDER BY d.task LIMIT :limit
) AS o JOIN onetray.task AS t ON t.key = o.task JOIN onetray.kind AS k ON k.key = t.kind ORDER BY o.task;

-- name: worker_beat
INSERT INTO onetray.worker (ns, name, host, pid, version, started_at, beat_at, expires_at, concurrency, running, claimed,
    queues, kinds, state)
VALUES (:ns, :name, :host, :pid, :version, :at, :at, :expires_at, :concurrency, :at_work, :claimed, :queues, :kinds,
    :state)
ON CONFLICT (ns, name) DO UPDATE SET host = excluded.host, pid = excluded.pid, version = excluded.version,
    started_at = CASE WHEN worker.host = excluded.host AND worker.pid = excluded.pid
        AND worker.expires_at > worker.beat_at THEN worker.started_at ELSE excluded.started_at END,
    beat_at = greatest(worker.beat_at, excluded.beat_at), expires_at = excluded.expires_at,
    concurrency = excluded.concurrency, running = excluded.running, claimed = excluded.claimed,
    queues = excluded.queues, kinds = excluded.kinds, state = excluded.state;

-- name: delete_expired_workers
DELETE FROM onetray.worker WHERE (ns, name) IN (
    SELECT ns, name FROM onetray.worker WHERE expires_at < :before FOR UPDATE SKIP LOCKED
);

-- name: worker_leave
UPDATE onetray.worker SET beat_at = greatest(beat_at, :at), expires_at = greatest(beat_at, :at), running = 0, claimed = 0
WHERE ns = :ns AND name = :name AND expires_at > beat_at;

-- name: workers
-- row: WorkerRow(name, host, pid, version, started_at, beat_at, expires_at, concurrency, running, claimed, queues, kinds, state, seen_at)
SELECT w.name, w.host, w.pid, w.version, w.started_at, w.beat_at, w.expires_at, w.concurrency, w.running, w.claimed,
    w.queues, w.kinds, w.state, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS seen_at
FROM onetray.worker AS w JOIN onetray.namespace AS n ON n.key = w.ns
WHERE n.name = :namespace AND w.expires_at > w.beat_at ORDER BY w.started_at DESC, w.name LIMIT :limit;

-- move: claim
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'assigned', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), attempts = task.attempts + 1, owner = b.worker, lease = b.lease FROM at, unnest(:at::bigint[], :worker::text[], :lease::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, worker, lease, key, version, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: claim, start
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'running', version = task.version + 2, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text) || ',' || CAST(at.id + :size::bigint + b.place - 1 AS text), attempts = task.attempts + 1, owner = b.worker, lease = b.lease, started_at = b.at FROM at, unnest(:at::bigint[], :worker::text[], :lease::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, worker, lease, key, version, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: start
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'running', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), started_at = b.at FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :fence::integer[]) WITH ORDINALITY AS b(at, key, version, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned') AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: succeed
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'succeeded', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, result = b.result, error = NULL FROM at, unnest(:at::bigint[], :result::text[], :key::bigint[], :version::integer[], :fence::integer[]) WITH ORDINALITY AS b(at, result, key, version, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('running') AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: start, succeed
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'succeeded', version = task.version + 2, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text) || ',' || CAST(at.id + :size::bigint + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, result = b.result, error = NULL,
    started_at = b.began FROM at, unnest(:at::bigint[], :result::text[], :began::bigint[], :key::bigint[], :version::integer[], :fence::integer[]) WITH ORDINALITY AS b(at, result, began, key, version, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned') AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: fail
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'failed', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, error = b.error FROM at, unnest(:at::bigint[], :error::text[], :key::bigint[], :version::integer[], :was::text[], :fence::integer[]) WITH ORDINALITY AS b(at, error, key, version, was, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: retry
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, error = b.error, spared = 0 FROM at, unnest(:at::bigint[], :run_at::bigint[], :error::text[], :key::bigint[], :version::integer[], :fence::integer[]) WITH ORDINALITY AS b(at, run_at, error, key, version, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('running') AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: release
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - 1, spared = 0 FROM at, unnest(:at::bigint[], :run_at::bigint[], :key::bigint[], :version::integer[], :was::text[], :fence::integer[]) WITH ORDINALITY AS b(at, run_at, key, version, was, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: expire
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - b.given_back, spared = b.spared FROM at, unnest(:at::bigint[], :run_at::bigint[], :given_back::integer[], :spared::integer[], :key::bigint[], :version::integer[], :was::text[], :fence::integer[]) WITH ORDINALITY AS b(at, run_at, given_back, spared, key, version, was, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: block
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'blocked', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - 1, held_by = b.held_by, held_why = b.held_why FROM at, unnest(:at::bigint[], :held_by::text[], :held_why::text[], :key::bigint[], :version::integer[], :was::text[], :fence::integer[]) WITH ORDINALITY AS b(at, held_by, held_why, key, version, was, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: wait_for_input
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'waiting_input', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), owner = NULL, lease = NULL, slots = NULL, attempts = task.attempts - 1, held_by = b.held_by, held_why = b.held_why FROM at, unnest(:at::bigint[], :held_by::text[], :held_why::text[], :key::bigint[], :version::integer[], :was::text[], :fence::integer[]) WITH ORDINALITY AS b(at, held_by, held_why, key, version, was, fence, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('assigned', 'running') AND task.state = b.was AND task.fence = b.fence RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: resume
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'queued', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), fence = task.fence + 1, run_at = b.run_at, owner = NULL, lease = NULL, slots = NULL, held_by = NULL, held_why = NULL, spared = 0,
    input = coalesce(b.input, task.input) FROM at, unnest(:at::bigint[], :run_at::bigint[], :input::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, run_at, input, key, version, was, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('blocked', 'waiting_input') AND task.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: cancel
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'cancelled', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, held_by = NULL, held_why = NULL FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued', 'assigned', 'running', 'blocked', 'waiting_input') AND task.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: time_out
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'failed', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, held_by = NULL, held_why = NULL, error = b.error FROM at, unnest(:at::bigint[], :error::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, error, key, version, was, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued', 'blocked', 'waiting_input') AND task.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: dead_letter
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'dead_lettered', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, error = b.error FROM at, unnest(:at::bigint[], :error::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, error, key, version, was, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued', 'assigned', 'running') AND task.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: carry_over
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'succeeded', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, attempts = b.attempts,
    result = (SELECT o.result FROM onetray.task AS o WHERE o.key = b.carried_from) FROM at, unnest(:at::bigint[], :attempts::integer[], :carried_from::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, attempts, carried_from, key, version, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: carry_over_failed
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'failed', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, attempts = b.attempts, error = b.error FROM at, unnest(:at::bigint[], :attempts::integer[], :error::text[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, attempts, error, key, version, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: carry_over_dead
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.task SET state = 'dead_lettered', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, owner = NULL, lease = NULL, slots = NULL, attempts = b.attempts, error = b.error FROM at, unnest(:at::bigint[], :attempts::integer[], :error::text[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, attempts, error, key, version, place) WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.open
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'pending', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('created') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.wait
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'waiting', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), approval = b.approval FROM at, unnest(:at::bigint[], :approval::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, approval, key, version, was, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('created', 'pending', 'running') AND stage.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.approve
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'pending', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), answer = b.answer FROM at, unnest(:at::bigint[], :answer::text[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, answer, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('waiting') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.start
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'running', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), started_at = coalesce(stage.started_at, b.at) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('pending') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.succeed
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'succeeded', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, result = b.result FROM at, unnest(:at::bigint[], :result::text[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, result, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('running') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.end_partly
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'partial', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, result = b.result, error = b.error FROM at, unnest(:at::bigint[], :result::text[], :error::text[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, result, error, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('running') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.fail
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'failed', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, result = b.result, error = b.error FROM at, unnest(:at::bigint[], :result::text[], :error::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, result, error, key, version, was, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('running', 'waiting') AND stage.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.reject
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'failed', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, error = b.error FROM at, unnest(:at::bigint[], :error::text[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, error, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('waiting') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.skip
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'skipped', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('created', 'waiting') AND stage.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.carry_over
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'succeeded', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('created') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: stage.cancel
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.stage SET state = 'cancelled', version = stage.version + 1, updated_at = b.at, events = stage.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, result = b.result FROM at, unnest(:at::bigint[], :result::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, result, key, version, was, place) WHERE stage.key = ANY (ARRAY[b.key]) AND stage.version = b.version AND stage.state IN ('created', 'waiting', 'pending', 'running') AND stage.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.open
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'pending', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('created') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.start
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'running', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text), started_at = coalesce(flow.started_at, b.at) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('pending') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.wait
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'waiting', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('pending', 'running') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.proceed
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'pending', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('waiting') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.pause
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'paused', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('pending', 'running', 'waiting') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.resume
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'pending', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text) FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[]) WITH ORDINALITY AS b(at, key, version, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('paused') RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.succeed
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'succeeded', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('running', 'paused', 'waiting') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.end_partly
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'partial', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('running', 'paused', 'waiting') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.fail
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'failed', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, error = b.error FROM at, unnest(:at::bigint[], :error::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, error, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('running', 'paused', 'waiting') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.time_out
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'failed', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at, error = b.error FROM at, unnest(:at::bigint[], :error::text[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, error, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('created', 'pending', 'running', 'paused', 'waiting') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- move: flow.cancel
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (UPDATE onetray.flow SET state = 'cancelled', version = flow.version + 1, updated_at = b.at, events = flow.events || ',' || CAST(at.id + b.place - 1 AS text), finished_at = b.at FROM at, unnest(:at::bigint[], :key::bigint[], :version::integer[], :was::text[]) WITH ORDINALITY AS b(at, key, version, was, place) WHERE flow.key = ANY (ARRAY[b.key]) AND flow.version = b.version AND flow.state IN ('created', 'pending', 'running', 'paused', 'waiting') AND flow.state = b.was RETURNING 1) SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM moved;

-- name: submit_one
WITH at AS (
    SELECT nextval('onetray.event_id') AS id
    FROM (SELECT pg_current_xact_id() AS xid OFFSET 0) AS x WHERE x.xid IS NOT NULL
), new AS (
    INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, events)
    SELECT b.key, :id::uuid, b.job, :ns::integer, :queue::integer, :kind::integer, :policy::integer, :version::integer, :fence::integer, :priority::integer, :attempts::integer, :max_attempts::integer, :spared::integer, b.created_at, b.updated_at,
    b.run_at, :state::text, :retry_of::bigint, :idempotency_key::text, :correlation_id::text, :trace::text, :lane::integer, :payload::text, CAST(at.id AS text) FROM at, (
        SELECT n.key, n.key AS job, n.at AS created_at, n.at AS updated_at, n.at AS run_at
        FROM (SELECT nextval('onetray.entity_key') AS key, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS at) AS n
    ) AS b
    RETURNING key, created_at
), listed AS (
    INSERT INTO onetray.ready (queue, rank, task, kind) SELECT :queue, -:priority::integer, key, :kind FROM new
)
INSERT INTO onetray.event_batch (id, size, entity, ts, ns, type, state, actor, version, fence, attempts, cause)
SELECT at.id, 1, b.key, b.created_at, :ns::integer, :type::text, :state::text, :actor::text, :version::integer, :fence::integer, :attempts::integer, :cause::text
FROM at, new AS b
RETURNING entity, CASE WHEN :notify THEN pg_notify('onetray', :news)::text END;

-- name: submit_several
WITH at AS (
    SELECT nextval('onetray.event_id') AS id, coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS now
    FROM (SELECT pg_current_xact_id() AS xid OFFSET 0) AS x WHERE x.xid IS NOT NULL
), b AS MATERIALIZED (
    SELECT n.*, n.key AS job, at.now AS created_at, at.now AS updated_at, at.now AS run_at
    FROM at, (SELECT nextval('onetray.entity_key') AS key, u.* FROM unnest(:id::uuid[], :payload::text[], :ns::integer[], :queue::integer[], :kind::integer[], :policy::integer[], :max_attempts::integer[], :priority::integer[], :correlation_id::text[], :trace::text[]) WITH ORDINALITY AS u(id, payload, ns, queue, kind, policy, max_attempts, priority, correlation_id, trace, place)) AS n
), keys AS (
    SELECT count(*) AS size, min(b.key) AS first, min(b.key - b.place) = max(b.key - b.place) AS follow_each_other,
        string_agg(CAST(b.key AS text), ',' ORDER BY b.place) AS list
    FROM b
), new AS (
    INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, updated_at,
    run_at, state, retry_of, idempotency_key, correlation_id, trace, lane, payload, events)
    SELECT b.key, b.id, b.job, b.ns, b.queue, b.kind, b.policy, :version::integer, :fence::integer, b.priority, :attempts::integer, b.max_attempts, :spared::integer, b.created_at, b.updated_at,
    b.run_at, :state::text, :retry_of::bigint, :idempotency_key::text, b.correlation_id, b.trace, :lane::integer, b.payload, CAST(at.id + b.place - 1 AS text) FROM at, b
), listed AS (
    INSERT INTO onetray.ready (queue, rank, task, kind)
    SELECT b.queue, -b.priority, b.key, b.kind FROM b
), logged AS (
    INSERT INTO onetray.event_batch (id, size, entity, ts, ns, type, state, actor, version, fence, attempts, cause,
        varied)
    SELECT at.id, k.size, CASE WHEN k.follow_each_other THEN k.first END, at.now, :event_ns::integer, :type::text,
        :state::text, :event_actor::text, :version::integer, :fence::integer, :attempts::integer, :event_cause::text,
        CASE WHEN k.follow_each_other THEN :varied::text
        ELSE '{"entity":[' || k.list || ']' || coalesce(',' || substr(:varied::text, 2), '}') END
    FROM at, keys AS k
)
SELECT first, CASE WHEN :notify THEN pg_notify('onetray', :news)::text END FROM keys;

-- name: claim_one
WITH picked AS MATERIALIZED (
    SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at, r.place, clock_timestamp() - statement_timestamp() AS took
    FROM (
        SELECT r.rank, r.task, r.ctid AS place FROM onetray.ready AS r
        WHERE r.queue = :queue AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM onetray.queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
        ORDER BY r.queue, r.rank, r.task LIMIT 2 FOR UPDATE OF r SKIP LOCKED
    ) AS r JOIN onetray.task AS t ON t.key = ANY (ARRAY[r.task]) FOR UPDATE OF t SKIP LOCKED
), lone AS MATERIALIZED (
    SELECT p.key, p.version, p.fence, p.attempts, p.seen_at AS at, p.place, y.length,
        nextval('onetray.lease_key') AS lease, nextval('onetray.event_id') AS event
    FROM picked AS p JOIN unnest(:policies::integer[], :lengths::bigint[]) AS y(policy, length) ON y.policy = p.policy
    WHERE (SELECT count(*) FROM picked) = 1 AND p.stage IS NULL AND p.lane IS NULL AND p.version + 1 < 64
        AND (:kinds::integer[] IS NULL OR p.kind = ANY(:kinds::integer[]))
        AND NOT EXISTS (SELECT 1 FROM onetray.lease WHERE lease.ns = :ns AND lease.worker = :worker
            AND lease.request_key = :request_key)
        AND pg_try_advisory_xact_lock(hashtextextended(:request, :ns))
), moved AS (UPDATE onetray.task SET state = 'assigned', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(b.event AS text), attempts = task.attempts + 1, owner = :worker::text, lease = b.lease FROM lone AS b WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1), leased AS (
    INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
    SELECT b.lease, :ns, :worker, b.at + b.length, b.length, '[' || b.key || ']', :request_key, 0, :expiry_counts
    FROM lone AS b
), deleted AS (
    DELETE FROM onetray.ready WHERE ready.ctid = ANY(ARRAY(SELECT b.place FROM lone AS b)) RETURNING 1
), logged AS (
    INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, version, fence, attempts)
    SELECT b.event, 1, b.at, :ns, 'task.claimed', 'queued', 'assigned', :actor, b.key,
        b.version + 1, b.fence, b.attempts + 1
    FROM lone AS b
)
SELECT p.rank, p.key, p.id, p.kind, p.policy, p.version, p.fence, p.attempts, p.payload, p.input, p.correlation_id, p.trace, p.job, p.stage, p.control, p.idempotency_key, p.lane, p.seen_at, l.lease, l.length, date_part('epoch', p.took), 1 / CASE WHEN (SELECT count(*) FROM moved) = (SELECT count(*) FROM lone)
        AND (SELECT count(*) FROM deleted) = (SELECT count(*) FROM lone) THEN 1 ELSE 0 END
FROM picked AS p LEFT JOIN lone AS l ON l.key = p.key;

-- name: claim_full
WITH picked AS MATERIALIZED (
    SELECT r.rank, t.key, CAST(t.id AS text) AS id, t.kind, t.policy, t.version, t.fence, t.attempts, t.payload, t.input,
    t.correlation_id, t.trace, t.job, t.stage, t.control, t.idempotency_key, t.lane, greatest(coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint), t.run_at, t.updated_at) AS seen_at, r.place
    FROM (
        SELECT r.rank, r.task, r.ctid AS place FROM onetray.ready AS r
        WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND (:past_breakers = 1 OR NOT EXISTS (SELECT 1 FROM onetray.breaker AS br WHERE br.open_until IS NOT NULL)) AND EXISTS (SELECT 1 FROM onetray.queue AS q WHERE q.key = :queue AND q.paused_at IS NULL AND q.limited <= :past_breakers)
            AND (r.xmax = 0 OR CAST(r.xmax AS text) <> ALL (ARRAY(SELECT CAST(CAST(CAST(x AS text) AS bigint) & 4294967295 AS text) FROM pg_snapshot_xip(pg_current_snapshot()) AS x)))
        ORDER BY r.queue, r.rank, r.task LIMIT :limit FOR UPDATE OF r SKIP LOCKED
    ) AS r JOIN onetray.task AS t ON t.key = ANY (ARRAY[r.task]) FOR UPDATE OF t SKIP LOCKED
), numbered AS MATERIALIZED (
    SELECT p.key, p.place, p.kind, p.version, p.fence, p.attempts, p.stage, p.lane, p.seen_at,
        row_number() OVER (ORDER BY p.rank, p.key) - 1 AS nth,
        (:lengths::bigint[])[array_position(:policies::integer[], p.policy)] AS length
    FROM picked AS p
), alike AS MATERIALIZED (
    SELECT min(n.version) AS version, min(n.fence) AS fence, min(n.attempts) AS attempts, min(n.length) AS length,
        greatest(max(n.seen_at), :since) AS at, min(n.key) AS first, min(n.key - n.nth) = max(n.key - n.nth) AS in_row,
        string_agg(CAST(n.key AS text), ',' ORDER BY n.nth) AS keys,
        nextval('onetray.lease_key') AS lease, nextval('onetray.event_id') AS event
    FROM numbered AS n
    HAVING count(*) = :limit AND count(n.length) = :limit AND count(n.stage) = 0 AND count(n.lane) = 0
        AND min(n.length) = max(n.length) AND min(n.version) = max(n.version) AND max(n.version) + 1 < 64
        AND min(n.fence) = max(n.fence) AND min(n.attempts) = max(n.attempts)
        AND (:kinds::integer[] IS NULL OR bool_and(n.kind = ANY(:kinds::integer[])))
        AND NOT EXISTS (SELECT 1 FROM onetray.lease WHERE lease.ns = :ns AND lease.worker = :worker
            AND lease.request_key = :request_key)
), batch AS MATERIALIZED (
    SELECT n.key, n.place, a.version, a.at, a.lease, a.event + n.nth AS event FROM alike AS a, numbered AS n
), moved AS (UPDATE onetray.task SET state = 'assigned', version = task.version + 1, updated_at = b.at, events = task.events || ',' || CAST(b.event AS text), attempts = task.attempts + 1, owner = :worker::text, lease = b.lease FROM batch AS b WHERE task.key = ANY (ARRAY[b.key]) AND task.version = b.version AND task.state IN ('queued') RETURNING 1), leased AS (
    INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
    SELECT a.lease, :ns, :worker, a.at + a.length, a.length, '[' || a.keys || ']', :request_key, 0, :expiry_counts
    FROM alike AS a
), deleted AS (
    DELETE FROM onetray.ready WHERE ready.ctid = ANY(ARRAY(SELECT b.place FROM batch AS b)) RETURNING 1
), logged AS (
    INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, version, fence, attempts,
        varied)
    SELECT a.event, :limit, a.at, :ns, 'task.claimed', 'queued', 'assigned', :actor, CASE WHEN a.in_row THEN a.first END, a.version + 1, a.fence,
        a.attempts + 1, CASE WHEN NOT a.in_row THEN '{"entity":[' || a.keys || ']}' END
    FROM alike AS a
)
SELECT p.rank, p.key, p.id, p.kind, p.policy, p.version, p.fence, p.attempts, p.payload, p.input, p.correlation_id, p.trace, p.job, p.stage, p.control, p.idempotency_key, p.lane, p.seen_at, CASE WHEN p.key = a.first THEN concat_ws(',', a.lease, a.length, a.at, 1 / CASE WHEN (SELECT count(*) FROM moved) = (SELECT count(*) FROM batch)
        AND (SELECT count(*) FROM deleted) = (SELECT count(*) FROM batch) THEN 1 ELSE 0 END) END
FROM picked AS p LEFT JOIN alike AS a ON true;
