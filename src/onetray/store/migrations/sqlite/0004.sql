-- What a job can be found by. Written only for jobs that have labels: a task without any stays one row.
CREATE TABLE label (
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    ns INTEGER NOT NULL,
    PRIMARY KEY (job, name)
) WITHOUT ROWID, STRICT;

CREATE INDEX label_value ON label (ns, name, value, job);

-- The job that was submitted last under a unique key. Nothing frees it: whoever wants the key looks at that job.
CREATE TABLE unique_key (
    kind INTEGER NOT NULL,
    key TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID, STRICT;

CREATE INDEX unique_key_job ON unique_key (job);
