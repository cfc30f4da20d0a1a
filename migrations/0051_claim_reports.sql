-- What a worker says of a claim with its heartbeats: how far it has come, and how much of a log it has written. No index
-- names any of it, so a heartbeat stays an update in place.
ALTER TABLE heddle.queue_claims
    ADD COLUMN progress  double precision CHECK (progress BETWEEN 0 AND 1),
    ADD COLUMN note      text,
    ADD COLUMN log_lines integer NOT NULL DEFAULT 0,
    -- More than the task's limit: the log has been cut, and says so.
    ADD COLUMN log_bytes bigint  NOT NULL DEFAULT 0;
