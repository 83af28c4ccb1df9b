-- What is hidden of jobs when they are shown.

-- name: redacting_policies
-- A policy is kept as the JSON of its fields, without blanks: this one has a path in its list.
SELECT key, body FROM onetray.policy WHERE replace(body, :mark, '') <> body

-- name: redacting_kinds
SELECT DISTINCT k.name
FROM onetray.dead_letter AS d JOIN onetray.task AS t ON t.key = d.task JOIN onetray.kind AS k ON k.key = t.kind
WHERE k.name {in:kinds:text} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})

-- name: redacted_tasks
SELECT t.job, CAST(t.id AS text), t.policy, k.policy, t.payload, t.input, t.result
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind
WHERE t.key {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
UNION ALL
SELECT t.job, CAST(t.id AS text), t.policy, k.policy, t.payload, t.input, t.result
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
WHERE s.job {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
LIMIT :limit

-- name: redacted_sizes
-- Of the same tasks: the bytes that would be read.
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
FROM onetray.task AS t JOIN onetray.kind AS k ON k.key = t.kind
WHERE t.key {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
UNION ALL
SELECT t.job, octet_length(t.payload) + coalesce(octet_length(t.input), 0) + coalesce(octet_length(t.result), 0)
FROM onetray.stage AS s JOIN onetray.task AS t ON t.stage = s.key JOIN onetray.kind AS k ON k.key = t.kind
WHERE s.job {in:jobs:bigint} AND (t.policy {in:policies:integer} OR k.policy {in:policies:integer})
LIMIT :limit
