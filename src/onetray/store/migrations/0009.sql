-- The flows that workers have declared: what is needed to submit one by its name.
CREATE TABLE onetray.declared_flow (
    ns integer NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    stages integer NOT NULL,
    declared_at bigint NOT NULL,
    declared_by text NOT NULL,
    seen_at bigint NOT NULL,
    other_version text,
    other_seen_at bigint,
    body text NOT NULL,
    PRIMARY KEY (ns, name)
) {strict};
