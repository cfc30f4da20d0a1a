-- Runs that were never begun because an earlier one was active (overlap: skip), or too many waited (max_waiting), say so:
-- 1 overlap, 2 max_waiting. They stand among the ended runs as cancelled ones. The check is not made of rows that were
-- there before, so that nobody waits for history to be read: the column is new, and empty in all of them.
ALTER TABLE heddle.runs_done ADD COLUMN skipped smallint;
ALTER TABLE heddle.runs_done ADD CONSTRAINT runs_done_skipped CHECK (skipped IN (1, 2)) NOT VALID;
