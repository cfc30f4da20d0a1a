-- hold_users: writes the holds of users who are about to be given something. A user who already holds something gets
-- none.
--
-- Locking: the first locks of a take. Rows of *holds* come before rows of *occurrences*, in the order of users, in
-- takes and ends alike, so there is no circle of waits. The primary key waits until another take or end of the same
-- user is over.
INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at, expires_at)
SELECT h.uid, h.id, h.offer_id, h.version, h.audience, h.occurrence, $7::timestamptz,
       $7::timestamptz + o.max_hold * interval '1 microsecond'
  FROM UNNEST($1::text[], $2::uuid[], $3::bigint[], $4::integer[], $5::text[], $6::timestamptz[])
    AS h (uid, id, offer_id, version, audience, occurrence)
  JOIN heddle.offers o ON o.id = h.offer_id
 ORDER BY h.uid
ON CONFLICT DO NOTHING
RETURNING id
