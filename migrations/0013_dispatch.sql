-- Pull dispatch: two things that were not safe, and one that was slow.

-- The order of the feed. A row was numbered by its transaction, and that number is given out when a transaction begins
-- to write: one that began early may have waited for another's commit and then tell of what follows from it (takes of
-- many users ride in one transaction). So a row carries the number of its transaction or of the last one that had been
-- decided when its statement began, whichever is greater: what it follows from was committed by then, and has a lower
-- number, or the same one and an earlier id. Numbers only become greater by this, so that a reader who stops below the
-- oldest open transaction still misses nothing.
ALTER TABLE heddle.events ALTER COLUMN xid
    SET DEFAULT greatest(pg_current_xact_id(), (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8);

-- Audiences whose stock has come back with failed assignments, until the nodes have been told by the log of changes.
-- Written with the end itself: whichever node is there tells, also when the one that took the end is gone.
CREATE TABLE heddle.stock_returns (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    audience text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Whom a user group's assignments went to, newest first: without it, a list of a small group's reads everybody's.
CREATE INDEX assignments_audience ON heddle.assignments (audience, id);
