-- day_needed: whether a run of a range of ids (from $4, below $5) is live, or has to be kept for longer.
--
-- Locking: none of its own. Whoever drops a day asks again while it holds the day's tables alone.
SELECT EXISTS (SELECT FROM heddle.runs_live l WHERE l.id >= $4 AND l.id < $5)
    OR EXISTS (
SELECT
  FROM heddle.runs_done d
  JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
    ON every.group_id = 0 AND every.state = d.state
  LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
    ON own.group_id = d.group_id AND own.state = d.state
 WHERE d.id >= $4 AND d.id < $5
   AND d.finished_at >= $6::timestamptz - coalesce(own.keep, every.keep) * interval '1 microsecond'
) AS "needed!"
