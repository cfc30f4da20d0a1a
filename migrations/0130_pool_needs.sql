-- What a task run needs of pools, as one number. Of task runs with the same need, the first one that has to wait makes all
-- others wait. So an admission looks at the first ones of each need, and however many wait for slots that they cannot get,
-- they hide none that needs something else. Nodes from before this column insert rows without naming it.
--
-- It is a hash: a need may name 100 pools, and that is more than an index takes. If two needs have the same hash, they are
-- looked at as one; what is given out is decided by the needs themselves.
ALTER TABLE heddle.ready_pooled
    ADD COLUMN need bigint GENERATED ALWAYS AS (hash_array_extended(pools, hash_array_extended(slots, 0))) STORED;
CREATE INDEX ready_pooled_need ON heddle.ready_pooled (need, priority DESC, turn, run);

-- The first of those that wait with the same need. Its plan is fixed, as that of heddle.queue_front (migration 0019), and for
-- the same reason: the planner would rather collect all of them and sort them.
CREATE FUNCTION heddle.pooled_front(wanted bigint, most bigint)
    RETURNS TABLE (run uuid, task smallint, item integer, priority smallint, turn bigint, pools text[], slots integer[])
    LANGUAGE plpgsql STABLE ROWS 10
    SET enable_sort = off
    SET enable_bitmapscan = off
    SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r.run, r.task, r.item, r.priority, r.turn, r.pools, r.slots
      FROM heddle.ready_pooled r
     WHERE r.need = wanted
     ORDER BY r.priority DESC, r.turn, r.run
     LIMIT most;
END
$$;

SELECT heddle.keys_first();
