-- The first version of a key of a group's state, if the statement gives none: the time in microseconds. Each write adds one
-- and takes longer than that. So a key that was deleted and written again has a version that it never had before, and a
-- compare-and-set with the old version is lost. Keys that are there keep their versions.
ALTER TABLE heddle.script_state
    ALTER COLUMN version SET DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
