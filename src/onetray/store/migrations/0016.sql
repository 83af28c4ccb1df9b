-- The groups of a token's owner, as a JSON list: who approves for a group.
ALTER TABLE onetray.token ADD COLUMN member_of text NOT NULL DEFAULT '[]';

-- What handlers pass to systems that must not act twice: the key of the submit, or the id of the first task of a chain of
-- retries. Null: the id of the task.
ALTER TABLE onetray.task ADD COLUMN idempotency_key text;

-- What has happened without an event, summed up over all processes.
CREATE TABLE onetray.tally (
    ns integer NOT NULL,
    name text NOT NULL,
    value bigint NOT NULL,
    PRIMARY KEY (ns, name)
) {without_rowid};
