-- Ids that callers have chosen for tasks, flows and contexts, beside the engine's own. Most have none.
CREATE TABLE onetray.alias (
    ns integer NOT NULL,
    alias text NOT NULL,
    entity text NOT NULL,
    key bigint NOT NULL,
    PRIMARY KEY (ns, alias)
) {without_rowid};

CREATE UNIQUE INDEX alias_key ON onetray.alias (key);
