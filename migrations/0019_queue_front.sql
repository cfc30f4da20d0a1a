-- What comes next on a queue, locked for who claims it; what others are claiming is passed over.
--
-- The planner does not know how many rows are wanted, and reckons with a tenth of the queue: for so many it would rather
-- collect the whole queue and sort it, with each claim, than follow the index that has them in order. So the plan is
-- fixed: nothing may be sorted or collected, which leaves the index, whatever the statistics say. That holds for this
-- statement and no others, so it is said of this function, whose plans are its own (as that of 0018).
CREATE FUNCTION heddle.queue_front(wanted text, carried text[], most bigint)
    RETURNS TABLE (place tid, run uuid, task smallint, item integer, priority smallint, turn bigint, bytes integer)
    LANGUAGE plpgsql VOLATILE ROWS 100
    SET enable_sort = off
    SET enable_bitmapscan = off
    SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r.ctid, r.run, r.task, r.item, r.priority, r.turn, octet_length(r.params)
      FROM heddle.queue_ready r
     WHERE r.queue = wanted AND r.tags <@ carried AND (r.expires_at IS NULL OR r.expires_at > clock_timestamp())
     ORDER BY r.priority DESC, r.turn, r.run
     LIMIT most
       FOR UPDATE SKIP LOCKED;
END
$$;
