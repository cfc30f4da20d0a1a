-- look: what there is to know of users who poll: what they hold, their groups, what they have finished last, and what
-- they have had within their window.
--
-- Locking: none; whatever is given because of it is judged again by `give`. Every part is an index lookup for one
-- user (LIMIT keeps it one: a join could be planned as a scan of all users' rows).
SELECT u.uid AS "uid!", h.id AS "id?", h.offer_id AS "offer_id?", o.name AS "offer?", h.audience AS "audience?",
       h.occurrence AS "occurrence?", h.assigned_at AS "assigned_at?", v.params AS "params?",
       ARRAY(SELECT m.audience FROM heddle.members m WHERE m.uid = u.uid ORDER BY m.audience LIMIT 1000) AS "audiences!",
       w.last_finished AS "last_finished?", d.offers AS "had_offers?", d.occurrences AS "had_occurrences?"
  FROM UNNEST($1::text[]) AS u (uid)
  LEFT JOIN LATERAL (SELECT * FROM heddle.holds h WHERE h.uid = u.uid LIMIT 1) h ON true
  LEFT JOIN heddle.offers o ON o.id = h.offer_id
  LEFT JOIN heddle.offer_versions v ON v.offer_id = h.offer_id AND v.version = h.version
  LEFT JOIN LATERAL (
      SELECT a.occurrence AS last_finished FROM heddle.assignments a
       WHERE a.uid = u.uid AND a.state IN (1, 2) AND a.occurrence >= $2 AND a.id >= $3 AND a.id < $4
       ORDER BY a.occurrence DESC LIMIT 1
  ) w ON true
  LEFT JOIN LATERAL (
      SELECT array_agg(a.offer_id) AS offers, array_agg(a.occurrence) AS occurrences FROM (
          SELECT a.offer_id, a.occurrence FROM heddle.assignments a
           WHERE a.uid = u.uid AND a.occurrence >= greatest(w.last_finished, $2) AND a.id >= $3 AND a.id < $4
           ORDER BY a.occurrence LIMIT 500
      ) a
  ) d ON true
