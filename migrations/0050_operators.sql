-- A run that waits, for upstreams or its turn, may be paused before it has begun. (NOT VALID: no row of today breaks it,
-- since it allows more than what stood here before.)
ALTER TABLE heddle.runs_live
    DROP CONSTRAINT runs_live_started,
    ADD CONSTRAINT runs_live_started CHECK (state IN (0, 2) OR started_at IS NOT NULL) NOT VALID;

-- The worker whose claim it was; null for what a node ran, and for what was recorded before.
ALTER TABLE heddle.attempts ADD COLUMN worker text;
