-- Of two indexes that the planner believes to cost the same it takes the one that was made last. That it believes so of
-- the key of a table that work passes through, and of an index that has the key behind other columns, happens: the
-- table was analysed while it was empty, and then all of an index is as cheap as one row of it. With the wrong one, a look
-- at a run's row read all live runs' (200 ms for a batch of a thousand). So the keys are made last.
--
-- A dump that is restored makes them first again: heddle.keys_first() is called after that (docs/operations.md).
CREATE FUNCTION heddle.keys_first() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.conrelid::regclass AS made_of, c.conname, pg_get_constraintdef(c.oid) AS definition
          FROM pg_constraint c
         WHERE c.contype = 'p' AND c.connamespace = 'heddle'::regnamespace
           AND c.conrelid = ANY (ARRAY['heddle.runs_live', 'heddle.ready', 'heddle.ready_pooled', 'heddle.queue_ready',
                                       'heddle.waits']::regclass[])
           AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.conrelid AND i.indexrelid > c.conindid)
         ORDER BY c.conrelid
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %I %s', one.made_of, one.conname, one.conname,
                       one.definition);
    END LOOP;
END
$$;

SELECT heddle.keys_first();
