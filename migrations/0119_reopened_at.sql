-- When somebody last continued a run after it had ended. Its duration counts from then: nothing ran in between. NULL: never,
-- or before this column, or a node older than it ended the run.
ALTER TABLE heddle.runs_live ADD COLUMN reopened_at timestamptz;
ALTER TABLE heddle.runs_done ADD COLUMN reopened_at timestamptz;
