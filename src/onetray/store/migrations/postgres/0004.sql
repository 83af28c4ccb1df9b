-- What a job can be found by. Written only for jobs that have labels: a task without any stays one row.
CREATE TABLE onetray.label (
    job bigint NOT NULL,
    name text NOT NULL,
    value text NOT NULL,
    ns integer NOT NULL,
    PRIMARY KEY (job, name)
);

CREATE INDEX label_value ON onetray.label (ns, name, value, job);

-- The job that was submitted last under a unique key. Nothing frees it: whoever wants the key looks at that job.
CREATE TABLE onetray.unique_key (
    kind integer NOT NULL,
    key text NOT NULL,
    job bigint NOT NULL,
    PRIMARY KEY (kind, key)
);

CREATE INDEX unique_key_job ON onetray.unique_key (job);
