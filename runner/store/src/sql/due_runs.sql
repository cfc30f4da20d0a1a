-- due_runs: ended runs of a range of ids (from $4, below $5) that have been kept for long enough; at most $7.
--
-- Locking: the runs' rows. Rows that a control (a restart, an override, a deletion) or the pruner of another node has
-- locked are skipped: whoever holds a row decides what happens with its run. Nothing is locked before these rows, and
-- all data of the runs is removed under these locks.
SELECT d.id
  FROM heddle.runs_done d
  JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
    ON every.group_id = 0 AND every.state = d.state
  LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
    ON own.group_id = d.group_id AND own.state = d.state
 WHERE d.id >= $4 AND d.id < $5
   AND d.finished_at < $6::timestamptz - coalesce(own.keep, every.keep) * interval '1 microsecond'
 LIMIT $7
   FOR UPDATE OF d SKIP LOCKED
