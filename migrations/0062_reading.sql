-- no-transaction
-- Indexes by which lists reach what they show, however much is kept: runs that failed or were cancelled, of all groups and
-- of one; runs that took longer than an hour; runs by key; groups by the queues, scripts and labels of their specs.
--
-- One statement, which commits after each index: while one is made its table takes no writes, and of the history only one
-- day at a time waits for that. Runs that succeeded soon stand in none of these, so their ends write no more than before.
-- It may be begun again after it was interrupted.
DO $$
DECLARE
    one record;
    day record;
    part text;
BEGIN
    FOR one IN
        SELECT * FROM (VALUES ('runs_done_ill', '(state, id) WHERE state > 3'),
                              ('runs_done_group_ill', '(group_id, state, id) WHERE state > 3'),
                              ('runs_done_long', $i$(id) WHERE finished_at - created_at > interval '1 hour'$i$))
             AS i (name, definition)
    LOOP
        EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON ONLY heddle.runs_done %s', one.name, one.definition);
        COMMIT;
        -- Days that are made from here on have it from the start.
        FOR day IN
            SELECT c.oid::regclass AS of, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'heddle.runs_done'::regclass
               AND NOT EXISTS (SELECT FROM pg_index x JOIN pg_inherits p ON p.inhrelid = x.indexrelid
                                WHERE x.indrelid = c.oid AND p.inhparent = ('heddle.' || one.name)::regclass)
             ORDER BY c.relname DESC
        LOOP
            -- Days that are too old are dropped meanwhile, but for the one at hand.
            LOCK TABLE ONLY heddle.runs_done IN ACCESS SHARE MODE;
            CONTINUE WHEN to_regclass(format('heddle.%I', day.relname)) IS NULL;
            part := day.relname || substr(one.name, length('runs_done') + 1);
            EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s %s', part, day.of, one.definition);
            EXECUTE format('ALTER INDEX heddle.%I ATTACH PARTITION heddle.%I', one.name, part);
            COMMIT;
        END LOOP;
    END LOOP;
    -- The first of them has what this one had.
    DROP INDEX IF EXISTS heddle.runs_done_failed;
    COMMIT;
    CREATE INDEX IF NOT EXISTS run_keys_key ON heddle.run_keys USING hash (key);
    COMMIT;
    -- Names of groups that were deleted, whose runs are kept.
    CREATE INDEX IF NOT EXISTS groups_gone ON heddle.groups (name) WHERE deleted_at IS NOT NULL;
    COMMIT;
    CREATE INDEX IF NOT EXISTS revisions_queues ON heddle.revisions
        USING gin (jsonb_path_query_array(spec, '$.tasks.*.queue'));
    COMMIT;
    CREATE INDEX IF NOT EXISTS revisions_scripts ON heddle.revisions
        USING gin (jsonb_path_query_array(spec, '$.tasks.*.script'));
    COMMIT;
    CREATE INDEX IF NOT EXISTS revisions_labels ON heddle.revisions USING gin ((spec -> 'labels') jsonb_path_ops);
    COMMIT;
    CREATE INDEX IF NOT EXISTS revisions_queued ON heddle.revisions (group_id)
        WHERE jsonb_path_exists(spec, '$.tasks.*.queue');
    COMMIT;
    -- The past in spans, the latest first, in which somebody who wants the newest runs of a group looks one after the other
    -- until there are enough: each has its days' partitions to itself. (Who looks at all of them at once begins with a
    -- look into each day that is kept.) What is made by a clock that is far ahead comes last.
    CREATE OR REPLACE VIEW heddle.look_back AS
        SELECT coalesce(heddle.uuid_floor(first), '00000000-0000-0000-0000-000000000000') AS first,
               coalesce(heddle.uuid_floor(after), 'ffffffff-ffff-ffff-ffff-ffffffffffff') AS after
          FROM (SELECT s.place, CASE WHEN s.place = 10 THEN now() + interval '1 hour' ELSE today - s.since * interval '1 day' END,
                       CASE WHEN s.place = 1 THEN now() + interval '1 hour' WHEN s.place < 10 THEN today - s.until * interval '1 day' END
                  FROM (SELECT date_trunc('day', now(), 'UTC') AS today) AS d,
                       (VALUES (1, 0, 0), (2, 1, 0), (3, 3, 1), (4, 7, 3), (5, 15, 7), (6, 31, 15), (7, 63, 31), (8, 127, 63),
                               (9, NULL, 127), (10, NULL, NULL)) AS s (place, since, until)
                OFFSET 0) AS spans (place, first, after);
END
$$;
