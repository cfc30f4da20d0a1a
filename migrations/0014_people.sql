-- What the pruner removes of offers, occurrences and backfills, and that a task's beginning is told once.

CREATE INDEX occurrences_at ON heddle.occurrences (occurrence);
CREATE INDEX offers_deleted ON heddle.offers (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX backfills_finished ON heddle.backfills (finished_at) WHERE finished_at IS NOT NULL;

-- Tasks whose beginning somebody wanted to hear of and has been told of: whoever inserts the row writes the notice, so an
-- attempt that is lost before it told leaves that to the next, and one that is lost after it does not. Rows go with their
-- runs.
CREATE TABLE heddle.told_starts (
    run  uuid     NOT NULL,
    task smallint NOT NULL,
    PRIMARY KEY (run, task)
);
