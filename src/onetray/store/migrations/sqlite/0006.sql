-- The policy that a flow was submitted under: it says what of the flow is redacted. Flows from before have none.
ALTER TABLE flow ADD COLUMN policy INTEGER;
