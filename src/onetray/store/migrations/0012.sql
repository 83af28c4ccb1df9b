-- Whether an attempt counts that ends because this lease expires before its task was started.
ALTER TABLE onetray.lease ADD COLUMN expiry_counts integer NOT NULL DEFAULT 0;
