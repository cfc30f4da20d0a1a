-- due_logs: ended runs of a range of ids (from $4, below $5) whose logs still exist, and have been kept for long
-- enough; at most $7.
--
-- Locking: as in due_runs. A run that is being restarted is not among them.
SELECT d.id
  FROM heddle.runs_done d
  JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
    ON every.group_id = 0 AND every.state = d.state
  LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
    ON own.group_id = d.group_id AND own.state = d.state
 WHERE d.id >= $4 AND d.id < $5
   AND d.finished_at < $6::timestamptz - coalesce(own.keep, every.keep) * interval '1 microsecond'
   AND EXISTS (SELECT FROM heddle.logs l WHERE l.run = d.id)
 LIMIT $7
   FOR UPDATE OF d SKIP LOCKED
