-- Timers of kind 3: the `queue_timeout` of an attempt that waits for something else than a worker, that is for pools, for a
-- node, or for a user of its audience. An attempt that stands in queue_ready has its `expires_at` there.
--
-- NOT VALID: rows that stand there are of the kinds that the old constraint knew, and are not read while the table is locked.
ALTER TABLE heddle.timers
    DROP CONSTRAINT timers_kind_check,
    ADD CONSTRAINT timers_kind_check CHECK (kind IN (0, 1, 2, 3)) NOT VALID;
