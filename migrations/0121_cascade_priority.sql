-- The priority that a backfill was given, for the runs of its dependants. NULL: it was given none, or it is older than this
-- column; then these runs are below the others of their groups, as its own are.
ALTER TABLE heddle.cascades ADD COLUMN priority smallint;
