-- drop_timers: deletes timers that have become useless.
--
-- Locking: the caller holds their runs. A timer that is being taken (take_timers) is skipped, because whoever takes
-- it may be waiting for one of these runs. Such a timer is due, so it does not stay: the transaction that takes it
-- deletes it, or, if that transaction is rolled back, the next one that takes due timers. It has no effect, because
-- its attempt is not the one that waits any more.
DELETE FROM heddle.timers t
 WHERE t.ctid = ANY (ARRAY(
       SELECT t.ctid
         FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::smallint[]) AS d (run, task, item, kind)
         JOIN heddle.timers t ON t.run = ANY (ARRAY[d.run]) AND t.task = d.task AND t.item = d.item AND t.kind = d.kind
          FOR UPDATE OF t SKIP LOCKED))
