-- Which of these groups take no runs: they are deleted or disabled. Until the end of the caller's transaction, none of the
-- others is deleted or stopped: whoever does that waits for the lock that is shared here, and then sees the new runs.
--
-- A function, because its second statement reads what was committed while the first one waited; a statement by itself would
-- read what there was before the wait. Not a lock of the group's row: those who share it may keep a writer waiting for as
-- long as new ones come, and each share of a row is a write.
--
-- wait_ms: if given, the longest wait of the transaction for any lock from now on.
CREATE FUNCTION heddle.closed_groups(groups bigint[], wait_ms integer) RETURNS TABLE (id bigint, deleted boolean)
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', wait_ms::text, true);
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('heddle/group/' || one.of, 0))
       FROM (SELECT unnest(groups) AS of ORDER BY 1) AS one;
    RETURN QUERY
        SELECT one.of, g.id IS NULL
          FROM unnest(groups) AS one (of)
          LEFT JOIN heddle.groups g ON g.id = one.of AND g.deleted_at IS NULL
         WHERE g.id IS NULL OR NOT g.enabled;
END $$;
