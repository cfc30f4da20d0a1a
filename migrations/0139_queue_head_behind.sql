-- The head of a queue, for a new row: a waiting row whose tags it has as well. If there is none, the last row that waits,
-- so that a node that has claimed nothing yet puts nothing before it. Both are null if nothing waits. One is enough: if a
-- head is returned, `last` has no meaning.
--
-- The first 64 rows are looked at one after the other. Before this migration, the rows behind them were not looked at: if
-- 64 rows with other tags waited in front (no worker with their tags came), the runs of a node that had just started
-- overtook all that waited behind these. Now a row is looked for between the 64th and the last one, by halving, at most 64
-- times. Rows that nobody takes stay in front, and the others are behind them, so this finds the first one, unless they are
-- mixed. Then it finds another one that waits, or none, and a new row comes later than it could, but never before all of
-- the others.
--
-- Its plans are fixed, see migration 0138. It returns the same columns as before: the statements of older nodes use it too.
CREATE OR REPLACE FUNCTION heddle.queue_head(wanted text, level smallint, carried text[], OUT head bigint, OUT last bigint)
    LANGUAGE plpgsql STABLE
    SET enable_sort = off
    SET enable_bitmapscan = off
    SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    waiting record;
    passed integer := 0;
    low bigint;
    high bigint;
    middle bigint;
BEGIN
    FOR waiting IN
        SELECT r.turn, r.tags
          FROM heddle.queue_ready r
         WHERE r.queue = wanted AND r.priority = level
         ORDER BY r.turn
         LIMIT 64
    LOOP
        last := waiting.turn;
        passed := passed + 1;
        IF waiting.tags <@ carried THEN
            head := waiting.turn;
            RETURN;
        END IF;
    END LOOP;
    IF passed < 64 THEN
        RETURN;
    END IF;

    low := last;
    SELECT r.turn, r.tags INTO waiting
      FROM heddle.queue_ready r
     WHERE r.queue = wanted AND r.priority = level
     ORDER BY r.turn DESC
     LIMIT 1;
    last := waiting.turn;
    IF waiting.tags <@ carried THEN
        head := waiting.turn;
    END IF;
    -- What is between `low` and `high` has not been looked at. Each look leaves half of it, so it ends.
    high := last;
    WHILE high - low > 1 LOOP
        middle := low + (high - low) / 2;
        SELECT r.turn, r.tags INTO waiting
          FROM heddle.queue_ready r
         WHERE r.queue = wanted AND r.priority = level AND r.turn >= middle AND r.turn < high
         ORDER BY r.turn
         LIMIT 1;
        IF NOT FOUND THEN
            high := middle;
        ELSIF waiting.tags <@ carried THEN
            head := waiting.turn;
            high := middle;
        ELSE
            low := waiting.turn;
        END IF;
    END LOOP;
END
$$;
