-- Actions on all jobs that match filters. Any janitor carries them out, step by step.
CREATE TABLE onetray.bulk (
    id uuid PRIMARY KEY,
    ns integer NOT NULL,
    action text NOT NULL,
    filters text NOT NULL,
    options text NOT NULL,
    reason text,
    state text NOT NULL,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    updated_at bigint NOT NULL,
    finished_at bigint,
    most bigint,
    canary bigint,
    -- The key from which the next step continues.
    place bigint NOT NULL,
    done bigint NOT NULL,
    repeated bigint NOT NULL,
    refused bigint NOT NULL,
    skipped bigint NOT NULL,
    refusals text NOT NULL,
    canary_ids text NOT NULL
) {strict};

CREATE INDEX bulk_newest ON onetray.bulk (ns, created_at);
CREATE INDEX bulk_unfinished ON onetray.bulk (updated_at) WHERE finished_at IS NULL;

-- What dead letters are grouped by. In the pattern of a message, numbers and ids are masked; not in those of letters that
-- are older than this column.
ALTER TABLE onetray.dead_letter ADD COLUMN kind integer NOT NULL DEFAULT 0;
ALTER TABLE onetray.dead_letter ADD COLUMN error_class text NOT NULL DEFAULT '';
ALTER TABLE onetray.dead_letter ADD COLUMN pattern text NOT NULL DEFAULT '';

-- only: postgres
UPDATE onetray.dead_letter SET kind = t.kind, error_class = substr(coalesce(CAST(last_error AS jsonb) ->> 'class', ''), 1, 200),
    pattern = substr(coalesce(CAST(last_error AS jsonb) ->> 'message', ''), 1, 80)
FROM onetray.task AS t WHERE t.key = dead_letter.task;

-- only: sqlite
UPDATE onetray.dead_letter SET kind = t.kind, error_class = substr(coalesce(last_error ->> 'class', ''), 1, 200),
    pattern = substr(coalesce(last_error ->> 'message', ''), 1, 80)
FROM onetray.task AS t WHERE t.key = dead_letter.task;

CREATE INDEX dead_letter_group ON onetray.dead_letter (ns, kind, reason_code, error_class, pattern, task, successor, created_at);
