-- Events that were restored from a dump have the transaction numbers of their former cluster, and those of a new cluster
-- begin low: readers stop below the oldest open transaction, so they did not see these events until its numbers had come so
-- far. So heddle.keys_first(), which is called after a restore anyway (docs/operations.md), gives them the last number that
-- this cluster has given out; among each other, they stay in the order of their ids.
--
-- Only numbers are changed that the cluster had not given out yet when the UPDATE began: what it sees of the cluster's own
-- events was committed before, so the function moves nothing in a database that works. It compares with its own snapshot:
-- one that was taken earlier, before the function waited for a lock, would not know the numbers of events from meanwhile.
CREATE OR REPLACE FUNCTION heddle.keys_first() RETURNS void LANGUAGE plpgsql AS $$
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
    -- A transaction that has a number may have begun after the snapshot, and have written events that nobody sees yet.
    UPDATE heddle.events SET xid = (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8
     WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
END
$$;
