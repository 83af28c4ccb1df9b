-- What to hide from readers of a job.

-- name: redacting_policies
-- A policy is stored as JSON without blanks. The mark is in the body of those with a non-empty list of paths.
SELECT key, body FROM onetray.policy WHERE replace(body, :mark, '') <> body

-- name: redacting_kinds
SELECT DISTINCT k.name
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
LEFT JOIN onetray.flow AS f ON f.key = t.job LEFT JOIN onetray.kind AS n ON n.key = f.kind
WHERE k.name {in:kinds:text} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer}
    OR f.policy {in:policies:integer} OR n.policy {in:policies:integer})

-- name: origins_of_flows
-- The flows that these retry or compensate, recursively; NULL for a pruned one.
WITH RECURSIVE chain (job, origin) AS (
    SELECT f.key, f.key FROM onetray.flow AS f WHERE f.key {in:jobs:bigint}
    UNION
    SELECT c.job, CASE way.number WHEN 1 THEN f.retry_of ELSE f.compensates END
    FROM chain AS c JOIN onetray.flow AS f ON f.key = c.origin
        JOIN (SELECT 1 AS number UNION ALL SELECT 2) AS way
        ON CASE way.number WHEN 1 THEN f.retry_of ELSE f.compensates END IS NOT NULL
)
SELECT c.job, f.key FROM chain AS c LEFT JOIN onetray.flow AS f ON f.key = c.origin WHERE c.origin <> c.job

-- name: redacting_policy_of_flow
-- A policy that redacts the flow or any of its tasks.
SELECT f.policy FROM onetray.flow AS f WHERE f.key = :job AND f.policy {in:policies:integer}
UNION ALL
SELECT k.policy FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind
WHERE f.key = :job AND k.policy {in:policies:integer}
UNION ALL
SELECT CASE WHEN t.policy {in:policies:integer} THEN t.policy ELSE k.policy END
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
WHERE s.job = :job AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
LIMIT 1

-- name: redacting_flows
-- row: RedactingFlowRow
SELECT f.key, f.policy, k.policy AS kind_policy
FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind
WHERE f.key {in:jobs:bigint} AND (f.policy {in:policies:integer} OR k.policy {in:policies:integer})

-- name: redacted_tasks
-- row: RedactedTaskRow
SELECT t.job, CAST(t.id AS text) AS id, t.policy, k.policy AS kind_policy, t.payload, t.input, t.result,
    c.body AS checkpoint
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE t.key {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
UNION ALL
SELECT t.job, CAST(t.id AS text) AS id, t.policy, k.policy AS kind_policy, t.payload, t.input, t.result,
    c.body AS checkpoint
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE s.job {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
LIMIT :limit

-- name: redacted_sizes
-- The number of bytes that redacted_tasks would read.
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
    + coalesce(octet_length(c.body), 0)
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE t.key {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
UNION ALL
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
    + coalesce(octet_length(c.body), 0)
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
LEFT JOIN onetray.checkpoint AS c ON c.task = t.key
WHERE s.job {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
LIMIT :limit

-- name: flow_inputs
-- row: FlowInputRow
-- The inputs of a flow besides those of its tasks: its data, its stages' data, answers to approvals, contexts.
SELECT f.key AS job, f.data, f.metadata, NULL AS answer FROM onetray.flow AS f WHERE f.key {in:jobs:bigint}
UNION ALL
SELECT s.job, s.data, s.metadata, s.answer FROM onetray.stage AS s WHERE s.job {in:jobs:bigint}
UNION ALL
SELECT c.job, NULL, c.payload, NULL FROM onetray.context AS c WHERE c.job {in:jobs:bigint}
LIMIT :limit

-- name: flow_input_sizes
-- The number of bytes that flow_inputs would read.
SELECT f.key, octet_length(f.data) + coalesce(octet_length(f.metadata), 0) FROM onetray.flow AS f WHERE f.key {in:jobs:bigint}
UNION ALL
SELECT s.job, octet_length(s.data) + coalesce(octet_length(s.metadata), 0) + coalesce(octet_length(s.answer), 0)
FROM onetray.stage AS s WHERE s.job {in:jobs:bigint}
UNION ALL
SELECT c.job, octet_length(c.payload) FROM onetray.context AS c WHERE c.job {in:jobs:bigint}
LIMIT :limit

-- name: kinds_of_ids
SELECT CAST(t.id AS text), k.name FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind WHERE t.id {in:ids:uuid}
UNION ALL
SELECT CAST(f.id AS text), k.name FROM onetray.flow AS f JOIN onetray.kind AS k ON k.key = f.kind WHERE f.id {in:ids:uuid}
