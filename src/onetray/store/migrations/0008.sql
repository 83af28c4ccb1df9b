-- Set while a deleted flow is being removed in steps: nobody finds it any more.
ALTER TABLE onetray.flow ADD COLUMN deleted_at bigint;
