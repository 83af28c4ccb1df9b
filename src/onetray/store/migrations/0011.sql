-- Whether an attempt counts that ends because this lease expires before its task was started.
ALTER TABLE onetray.lease ADD COLUMN expiry_counts integer NOT NULL DEFAULT 0;

-- The id that a caller chose for a snapshot of a flow's context.
ALTER TABLE onetray.context ADD COLUMN own_id text;

CREATE UNIQUE INDEX context_own_id ON onetray.context (ns, own_id) WHERE own_id IS NOT NULL;
