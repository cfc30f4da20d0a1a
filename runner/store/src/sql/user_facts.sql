-- user_facts: what is known about users who poll: what they hold, their groups, the last occurrence that they have
-- finished, and what they have had within their window.
--
-- Locking: none. `give` judges again whatever is given because of it. Every part is an index look-up for one user.
-- LIMIT keeps it so: a join could be planned as a scan of the rows of all users. See the function (migration 0018).
SELECT u.uid AS "uid!", h.id AS "id?", h.offer_id AS "offer_id?", o.name AS "offer?", h.audience AS "audience?",
       h.occurrence AS "occurrence?", h.assigned_at AS "assigned_at?", v.params AS "params?",
       u.audiences AS "audiences!", u.last_finished AS "last_finished?", u.offers AS "had_offers?",
       u.occurrences AS "had_occurrences?"
  FROM heddle.users_had($1, $2, $3, $4) AS u
  LEFT JOIN LATERAL (SELECT * FROM heddle.holds h WHERE h.uid = u.uid LIMIT 1) h ON true
  LEFT JOIN heddle.offers o ON o.id = h.offer_id
  LEFT JOIN heddle.offer_versions v ON v.offer_id = h.offer_id AND v.version = h.version
