-- user_facts: what there is to know of users who poll: what they hold, their groups, what they have finished last, and what
-- they have had within their window.
--
-- Locking: none; whatever is given because of it is judged again by `give`. Every part is an index lookup for one
-- user (LIMIT keeps it one: a join could be planned as a scan of all users' rows); see the function (migration 0018).
SELECT u.uid AS "uid!", h.id AS "id?", h.offer_id AS "offer_id?", o.name AS "offer?", h.audience AS "audience?",
       h.occurrence AS "occurrence?", h.assigned_at AS "assigned_at?", v.params AS "params?",
       u.audiences AS "audiences!", u.last_finished AS "last_finished?", u.offers AS "had_offers?",
       u.occurrences AS "had_occurrences?"
  FROM heddle.users_had($1, $2, $3, $4) AS u
  LEFT JOIN LATERAL (SELECT * FROM heddle.holds h WHERE h.uid = u.uid LIMIT 1) h ON true
  LEFT JOIN heddle.offers o ON o.id = h.offer_id
  LEFT JOIN heddle.offer_versions v ON v.offer_id = h.offer_id AND v.version = h.version
