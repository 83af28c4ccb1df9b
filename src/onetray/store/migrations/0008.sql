-- Set while a deleted flow is being removed in steps: nobody finds it any more.
ALTER TABLE onetray.flow ADD COLUMN deleted_at bigint;

-- Since when nothing uses the kind. A submit takes it back; else the row goes later.
ALTER TABLE onetray.kind ADD COLUMN retired_at bigint;
