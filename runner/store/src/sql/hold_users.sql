-- hold_users: writes the holds of users who are about to be given something. Who holds something already gets none.
--
-- Locking: first of a take. Holds come before occurrences, in the order of the users, in takes and completions alike,
-- so none of them waits in a circle. The primary key waits for another take or completion of the same user to end.
INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at, expires_at)
SELECT h.uid, h.id, h.offer_id, h.version, h.audience, h.occurrence, $7::timestamptz,
       $7::timestamptz + o.max_hold * interval '1 microsecond'
  FROM UNNEST($1::text[], $2::uuid[], $3::bigint[], $4::integer[], $5::text[], $6::timestamptz[])
    AS h (uid, id, offer_id, version, audience, occurrence)
  JOIN heddle.offers o ON o.id = h.offer_id
 ORDER BY h.uid
ON CONFLICT DO NOTHING
RETURNING id
