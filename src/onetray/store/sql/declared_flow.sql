-- Flows that workers have declared.

-- name: declared_flow
-- row: DeclaredFlowRow
SELECT d.name, d.version, d.declared_at, d.declared_by, d.seen_at, d.other_version, d.other_seen_at, d.body
FROM onetray.declared_flow AS d JOIN onetray.namespace AS n ON n.key = d.ns
WHERE n.name = :namespace AND d.name = :flow

-- name: declared_flows
-- row: DeclaredFlowSummary
SELECT d.name, d.version, d.stages, d.declared_at, d.declared_by, d.seen_at, d.other_version, d.other_seen_at
FROM onetray.declared_flow AS d JOIN onetray.namespace AS n ON n.key = d.ns
WHERE n.name = :namespace ORDER BY d.name LIMIT :limit

-- name: declare_flow
-- The newest declaration replaces another one, which stays visible by its version. One of the same version has its
-- fields in another order.
INSERT INTO onetray.declared_flow (ns, name, version, stages, declared_at, declared_by, seen_at, body)
VALUES (:ns, :name, :version, :stages, :at, :by, :at, :body)
ON CONFLICT (ns, name) DO UPDATE SET version = excluded.version, stages = excluded.stages,
    declared_at = excluded.declared_at, declared_by = excluded.declared_by, seen_at = excluded.seen_at,
    other_version = CASE WHEN declared_flow.version = excluded.version THEN declared_flow.other_version
        ELSE declared_flow.version END,
    other_seen_at = CASE WHEN declared_flow.version = excluded.version THEN declared_flow.other_seen_at
        ELSE declared_flow.seen_at END, body = excluded.body
WHERE declared_flow.version <> excluded.version OR declared_flow.body <> excluded.body

-- name: renew_flow
-- Changes no declaration: a worker that has run for long must not replace what a newer one has declared.
UPDATE onetray.declared_flow SET
    seen_at = CASE WHEN version = :version THEN :at ELSE seen_at END,
    other_version = CASE WHEN version = :version THEN other_version ELSE :version END,
    other_seen_at = CASE WHEN version = :version THEN other_seen_at ELSE :at END
WHERE ns = :ns AND name = :name

-- name: forget_flow
DELETE FROM onetray.declared_flow WHERE ns = :ns AND name = :name RETURNING name
