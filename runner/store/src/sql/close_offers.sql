-- close_offers: ends offers of task runs whose stock is completed, and has the task runs settled.
--
-- Locking: the rows of offers that are done, and nothing after them; whoever closes one a second time finds it closed.
-- Of two that complete the last two shares of an offer at once, the later sees the other's: an end holds the row of its
-- occurrence until its commit, and this is a statement after it.
--
-- "each" means every member once, of those who are members now: not as many as there are members, since some of those
-- who have completed it may have left, and others joined. Who that is, is asked only once there are enough.
WITH done AS (
    UPDATE heddle.offers o SET enabled = false, overdue_at = NULL
      FROM (SELECT c.offer_id, sum(c.completed) AS completed FROM heddle.occurrences c
             WHERE c.offer_id = ANY ($1) GROUP BY c.offer_id) c
     WHERE o.id = ANY ($1) AND c.offer_id = o.id AND o.run IS NOT NULL AND o.deleted_at IS NULL AND o.enabled
       AND CASE WHEN o.stock IS NOT NULL THEN c.completed >= o.stock
                WHEN o.audience LIKE 'uid\_%' THEN c.completed >= 1
                WHEN c.completed >= (SELECT greatest(1, count(*)) FROM heddle.members m WHERE m.audience = o.audience)
                THEN NOT EXISTS (SELECT m.uid FROM heddle.members m WHERE m.audience = o.audience
                                 EXCEPT
                                 SELECT a.uid FROM heddle.assignments a WHERE a.offer_id = o.id AND a.state = 1)
                ELSE false END
    RETURNING o.id, o.run, o.task, o.item, o.attempt
)
INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt)
SELECT id, run, task, item, attempt FROM done
