-- give: judges holds that this transaction has just written ($1: their ids), and takes stock for those that may stay.
--
-- Locking: the caller has the users' holds, so nobody else gives these users anything. The statement is newer than
-- these holds, so it sees everything that the users have finished before. Rows of *occurrences* are locked in their
-- order. The update sees the newest `taken`, so stock is never oversold. The caller deletes the holds that are
-- refused.
--
-- What a user has had is read in the order of the index by user alone, in a transaction whose plans neither sort nor
-- collect (`Store::take`). Otherwise, a partition that was analysed while it was empty would be read by the ids of
-- all users, once for each user. An equality would make that order useless to the planner, so an occurrence is
-- compared by two inequalities. `+ 0` keeps the planner from the index by offer, which has an entry for each user who
-- was given the occurrence.
--
-- An offer of a task run is given only while its attempt goes on: the transaction that ends the attempt (a cancel, an
-- override, a deadline) deletes its row in *running* and does not know the offer, which the reaper withdraws afterwards.
-- `Store::withdraw_offers`, `Store::offers_of_audience` and end_holds have the same rule.
--
-- The verdicts: 0 given, 1 the offer has changed, 2 the user is not a member, 3 not due, 4 the user's window has
-- moved on, 5 the user has had it, 6 no stock.
WITH new_holds AS MATERIALIZED (
    SELECT h.id, h.uid, h.offer_id, h.version, h.audience, h.occurrence, h.assigned_at, a.ordinal
      FROM UNNEST($1::uuid[]) WITH ORDINALITY AS a (id, ordinal)
      JOIN heddle.holds h ON h.id = ANY (ARRAY[a.id])
),
judged AS MATERIALIZED (
    SELECT h.*, o.name, o.stock,
           CASE WHEN NOT o.enabled OR o.deleted_at IS NOT NULL OR o.version <> h.version OR o.audience <> h.audience THEN 1
                WHEN o.run IS NOT NULL
                     AND NOT EXISTS (SELECT FROM heddle.running r
                                      WHERE r.run = ANY (ARRAY[o.run]) AND r.task = o.task AND r.item = o.item
                                        AND r.attempt = o.attempt AND r.lease = 0) THEN 1
                WHEN h.audience <> 'uid_' || h.uid AND m.member IS NULL THEN 2
                WHEN h.occurrence > clock_timestamp() THEN 3
                WHEN o.run IS NULL AND h.occurrence < clock_timestamp() - $2::bigint * interval '1 microsecond' THEN 3
                WHEN o.run IS NULL AND later.later THEN 4
                WHEN o.run IS NULL AND NOT o.repeats AND had.had THEN 5
                WHEN o.run IS NOT NULL AND NOT o.repeats AND did.did THEN 5
                ELSE 0 END AS verdict
      FROM new_holds h
      JOIN heddle.offers o ON o.id = h.offer_id
      LEFT JOIN LATERAL (
          SELECT true AS member FROM heddle.members m WHERE m.audience = h.audience AND m.uid = h.uid LIMIT 1
      ) m ON true
      LEFT JOIN LATERAL (
          SELECT true AS later FROM heddle.assignments a
           WHERE a.uid = h.uid AND a.occurrence > h.occurrence AND a.state IN (1, 2) AND a.id >= $3 AND a.id < $4
           ORDER BY a.occurrence DESC LIMIT 1
      ) later ON true
      LEFT JOIN LATERAL (
          SELECT true AS had FROM heddle.assignments a
           WHERE a.uid = h.uid AND a.occurrence >= h.occurrence AND a.occurrence <= h.occurrence
             AND a.offer_id + 0 = h.offer_id AND a.id >= $3 AND a.id < $4
           ORDER BY a.occurrence LIMIT 1
      ) had ON true
      LEFT JOIN LATERAL (
          SELECT true AS did FROM heddle.assignments a
           WHERE o.run IS NOT NULL
             AND a.uid = h.uid AND a.occurrence >= h.occurrence AND a.occurrence <= h.occurrence
             AND a.offer_id + 0 = h.offer_id
             -- A new attempt is offered again to users who did not complete the last one.
             AND (a.state = 1 OR a.finished_at >= o.updated_at)
           ORDER BY a.occurrence LIMIT 1
      ) did ON true
),
wanted AS (
    SELECT offer_id, occurrence, least(count(*), min(coalesce(stock, 2147483647)))::integer AS count
      FROM judged WHERE verdict = 0 GROUP BY offer_id, occurrence
),
stocked AS (
    INSERT INTO heddle.occurrences AS c (offer_id, occurrence, taken, granted)
    SELECT offer_id, occurrence, count, count FROM wanted ORDER BY offer_id, occurrence
    ON CONFLICT (offer_id, occurrence) DO UPDATE
       SET granted = greatest(0, least(excluded.granted, (
               SELECT coalesce(o.stock, 2147483647) FROM heddle.offers o WHERE o.id = excluded.offer_id) - c.taken)),
           taken = c.taken + greatest(0, least(excluded.granted, (
               SELECT coalesce(o.stock, 2147483647) FROM heddle.offers o WHERE o.id = excluded.offer_id) - c.taken))
    RETURNING offer_id, occurrence, granted
),
-- First come, first served. The granted numbers are appended to the holds, not joined with them: a batch may be about
-- as many occurrences as holds, and a join might read all of the one for each of the other.
served AS MATERIALIZED (
    SELECT r.*, r.verdict = 0 AND r.nth <= r.granted AS given
      FROM (SELECT b.*, max(b.grants) OVER (PARTITION BY b.offer_id, b.occurrence) AS granted,
                   row_number() OVER (PARTITION BY b.offer_id, b.occurrence, b.verdict ORDER BY b.ordinal) AS nth
              FROM (SELECT id, uid, name, audience, offer_id, version, occurrence, assigned_at, ordinal, verdict,
                           NULL::integer AS grants
                      FROM judged
                     UNION ALL
                    SELECT NULL, NULL, NULL, NULL, offer_id, NULL, occurrence, NULL, NULL, NULL, granted FROM stocked)
                   AS b) AS r
     WHERE r.id IS NOT NULL
),
events AS (
    INSERT INTO heddle.events (kind, at, data)
    SELECT 'assignment.dispatched', assigned_at, jsonb_build_object(
               'assignment_id', id, 'offer', name, 'uid', uid, 'audience', audience,
               'occurrence', heddle.moment(occurrence),
               'params', (SELECT v.params FROM heddle.offer_versions v
                           WHERE v.offer_id = served.offer_id AND v.version = served.version))
      FROM served WHERE given ORDER BY ordinal
)
SELECT id AS "id!", CASE WHEN given THEN 0 WHEN verdict = 0 THEN 6 ELSE verdict END AS "verdict!" FROM served
