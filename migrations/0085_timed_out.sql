-- no-transaction
-- Attempts that timed out, which the overview counts by script: there are few of them among millions. As in
-- `0062_reading.sql`: a day at a time, and it may be begun again after it was interrupted.
DO $$
DECLARE
    day record;
    part text;
BEGIN
    CREATE INDEX IF NOT EXISTS attempts_timed_out ON ONLY heddle.attempts (run) WHERE state = 3;
    COMMIT;
    -- Days that are made from here on have it from the start.
    FOR day IN
        SELECT c.oid::regclass AS of, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'heddle.attempts'::regclass
           AND NOT EXISTS (SELECT FROM pg_index x JOIN pg_inherits p ON p.inhrelid = x.indexrelid
                            WHERE x.indrelid = c.oid AND p.inhparent = 'heddle.attempts_timed_out'::regclass)
         ORDER BY c.relname DESC
    LOOP
        -- Days that are too old are dropped meanwhile, but for the one at hand.
        LOCK TABLE ONLY heddle.attempts IN ACCESS SHARE MODE;
        CONTINUE WHEN to_regclass(format('heddle.%I', day.relname)) IS NULL;
        part := day.relname || '_timed_out';
        EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (run) WHERE state = 3', part, day.of);
        EXECUTE format('ALTER INDEX heddle.attempts_timed_out ATTACH PARTITION heddle.%I', part);
        COMMIT;
    END LOOP;
END
$$;
