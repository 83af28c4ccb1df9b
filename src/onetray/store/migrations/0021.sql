-- Submits of one kind and key that share a job within a window of time: debounced or throttled ones. It names the job that
-- was submitted last; a debounced job owns its window until it is claimed.
CREATE TABLE onetray.submit_window (
    kind integer NOT NULL,
    mode text NOT NULL,
    key text NOT NULL,
    job bigint NOT NULL,
    opened_at bigint NOT NULL,
    until_at bigint NOT NULL,
    -- How many submits have replaced the payload of the job.
    replaced integer NOT NULL,
    PRIMARY KEY (kind, mode, key)
) {without_rowid};

CREATE INDEX submit_window_job ON onetray.submit_window (job);
