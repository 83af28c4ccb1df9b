-- Aliases: ids that callers have chosen.

-- name: insert_aliases
-- Only free ones. The next statement reads the holders of the others: this one does not see the rows of a transaction
-- that it waited for.
INSERT INTO onetray.alias (ns, alias, entity, key) SELECT b.ns, b.alias, b.entity, b.key {from_batch} WHERE true
ON CONFLICT (ns, alias) DO NOTHING

-- name: alias_holders
-- row: AliasHolderRow
SELECT a.ns, a.alias, a.entity, a.key, {id_of_alias} AS id
FROM onetray.alias AS a {holder_of_alias} {join_batch} a.ns = b.ns AND a.alias = b.alias

-- name: free_aliases
DELETE FROM onetray.alias {using_batch} alias.ns = b.ns AND alias.alias = b.alias

-- name: hand_on_aliases
-- To the successors of tasks and flows, or between new ones of a batch.
UPDATE onetray.alias SET key = b.successor {from_batch} WHERE alias.key = b.key

-- name: entities_by_alias
-- row: Alias
SELECT a.alias, a.entity, {id_of_alias} AS id,
    coalesce(CASE WHEN t.job = t.key THEN CAST(t.id AS text) END, CAST(f.id AS text)) AS job_id
FROM onetray.alias AS a JOIN onetray.namespace AS n ON n.key = a.ns {holder_of_alias}
WHERE n.name = :namespace AND a.alias {in:aliases:text} AND f.deleted_at IS NULL

-- name: aliases_of_ids
-- row: Alias
-- From each entity to its alias: a join could begin with all aliases of the namespace.
SELECT (SELECT i.alias FROM onetray.alias AS i WHERE i.key = t.key) AS alias, 'task' AS entity,
    CAST(t.id AS text) AS id, CASE WHEN t.job = t.key THEN CAST(t.id AS text)
        ELSE (SELECT CAST(g.id AS text) FROM onetray.flow AS g WHERE g.key = t.job) END AS job_id
FROM onetray.task AS t JOIN onetray.namespace AS n ON n.key = t.ns WHERE t.id {in:ids:uuid} AND n.name = :namespace
UNION ALL
SELECT (SELECT i.alias FROM onetray.alias AS i WHERE i.key = f.key), 'flow', CAST(f.id AS text), CAST(f.id AS text)
FROM onetray.flow AS f JOIN onetray.namespace AS n ON n.key = f.ns
WHERE f.id {in:ids:uuid} AND n.name = :namespace AND f.deleted_at IS NULL
UNION ALL
SELECT (SELECT i.alias FROM onetray.alias AS i WHERE i.key = c.key), 'context', CAST(c.id AS text),
    (SELECT CAST(g.id AS text) FROM onetray.flow AS g WHERE g.key = c.job)
FROM onetray.context AS c JOIN onetray.namespace AS n ON n.key = c.ns WHERE c.id {in:ids:uuid} AND n.name = :namespace

-- word: id_of_alias
coalesce(CAST(t.id AS text), CAST(c.id AS text), CAST(f.id AS text))

-- word: holder_of_alias
LEFT JOIN onetray.task AS t ON t.key = a.key LEFT JOIN onetray.context AS c ON c.key = a.key
    LEFT JOIN onetray.flow AS f ON f.key = coalesce(t.job, c.job, a.key)
