-- What there is to know of users who poll: their groups, what they have finished last, and what they have had since.
--
-- The tables of assignments have an index by id, for the ranges that keep look-ups to a day's partition or two, and one
-- by user. A partition that was last analysed while it was empty (tomorrow's, at midnight) makes the planner believe that
-- a user has a hundredth of it, so that it is worth while to read everybody's ids besides; or that the whole of any other
-- index is as cheap as one row. So the plan is fixed: every part wants its rows in an order that one index alone has, and
-- nothing may be sorted or collected to get it. (An equality would make the order worth nothing: two inequalities.) That
-- holds for these statements and no others, so it is said of this function, whose plans are its own.
CREATE FUNCTION heddle.users_had(uids text[], reach timestamptz, first_id uuid, end_id uuid)
    RETURNS TABLE (uid text, audiences text[], last_finished timestamptz, offers bigint[], occurrences timestamptz[])
    LANGUAGE plpgsql STABLE
    SET enable_sort = off
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT u.uid,
           ARRAY(SELECT m.audience FROM heddle.members m
                  WHERE m.uid >= u.uid AND m.uid <= u.uid ORDER BY m.uid LIMIT 1000),
           w.last_finished, d.offers, d.occurrences
      FROM UNNEST(uids) AS u (uid)
      LEFT JOIN LATERAL (
          SELECT a.occurrence AS last_finished FROM heddle.assignments a
           WHERE a.uid = u.uid AND a.state IN (1, 2) AND a.occurrence >= reach AND a.id >= first_id AND a.id < end_id
           ORDER BY a.occurrence DESC LIMIT 1
      ) w ON true
      LEFT JOIN LATERAL (
          SELECT array_agg(a.offer_id) AS offers, array_agg(a.occurrence) AS occurrences FROM (
              SELECT a.offer_id, a.occurrence FROM heddle.assignments a
               WHERE a.uid = u.uid AND a.occurrence >= greatest(w.last_finished, reach)
                 AND a.id >= first_id AND a.id < end_id
               ORDER BY a.occurrence LIMIT 500
          ) a
      ) d ON true;
END
$$;
