-- due_runs_of: as due_runs, for one group ($4) and ids below $5, by the index on (group_id, id).
--
-- Locking: as in due_runs.
SELECT d.id
  FROM heddle.runs_done d
  JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
    ON every.group_id = 0 AND every.state = d.state
  LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
    ON own.group_id = d.group_id AND own.state = d.state
 WHERE d.group_id = $4 AND d.id < $5
   AND d.finished_at < $6::timestamptz - coalesce(own.keep, every.keep) * interval '1 microsecond'
 LIMIT $7
   FOR UPDATE OF d SKIP LOCKED
