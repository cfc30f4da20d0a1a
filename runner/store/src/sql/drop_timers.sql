-- drop_timers: deletes timers whose time will not come any more.
--
-- Locking: the caller holds their runs. A timer that is being taken (take_timers) is skipped, for whoever takes it may be
-- waiting for one of these runs. It is due, so it does not stay: it goes with the transaction that takes it, or, if that is
-- given up, with the next look at what is due. Nothing comes of it, since its attempt is not the one that waits any more.
DELETE FROM heddle.timers t
 WHERE t.ctid = ANY (ARRAY(
       SELECT t.ctid
         FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::smallint[]) AS d (run, task, item, kind)
         JOIN heddle.timers t ON t.run = ANY (ARRAY[d.run]) AND t.task = d.task AND t.item = d.item AND t.kind = d.kind
          FOR UPDATE OF t SKIP LOCKED))
