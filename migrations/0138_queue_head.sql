-- The head of a queue, for a new row: the first waiting row whose tags it has as well, and the last of those that were
-- looked at until then, 64 at most. Both are null if nothing waits.
--
-- Its plan is fixed, as that of heddle.queue_front (migration 0019), and for the same reason: if the planner knows of many
-- short queues, it takes a long one for short too, and would rather collect all of it and sort it, for each row that comes.
-- A loop asks for a few rows at a time, so a head at the very front costs no look at the other ones.
CREATE FUNCTION heddle.queue_head(wanted text, level smallint, carried text[], OUT head bigint, OUT last bigint)
    LANGUAGE plpgsql STABLE
    SET enable_sort = off
    SET enable_bitmapscan = off
    SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    waiting record;
BEGIN
    FOR waiting IN
        SELECT r.turn, r.tags
          FROM heddle.queue_ready r
         WHERE r.queue = wanted AND r.priority = level
         ORDER BY r.turn
         LIMIT 64
    LOOP
        last := waiting.turn;
        IF waiting.tags <@ carried THEN
            head := waiting.turn;
            RETURN;
        END IF;
    END LOOP;
END
$$;
