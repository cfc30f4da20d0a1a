-- due_runs_default: as due_runs, for the partition of those days that have no partition of their own.
--
-- Locking: as in due_runs.
SELECT d.id
  FROM heddle.runs_done_default d
  JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
    ON every.group_id = 0 AND every.state = d.state
  LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
    ON own.group_id = d.group_id AND own.state = d.state
 WHERE d.finished_at < $4::timestamptz - coalesce(own.keep, every.keep) * interval '1 microsecond'
 LIMIT $5
   FOR UPDATE OF d SKIP LOCKED
