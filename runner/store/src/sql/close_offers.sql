-- close_offers: ends those offers of task runs ($1: their ids) whose stock is completed, and notes their task runs
-- for settlement.
--
-- Locking: the rows of offers that end, in id order and before one is changed, and nothing after them. Whoever closes an
-- offer a second time finds it closed. An offer that was opened again during the wait has another version, and is left
-- alone. If two transactions complete the last two shares of an offer at the same time, the later one sees the share
-- of the other: the end of a hold locks the row of its occurrence until its commit, and this statement comes after that
-- commit.
--
-- An offer to each member of a user group has no stock: it ends when every present member has completed it. Counts
-- alone do not show that, because some of those who completed it may have left the group, and others joined. The
-- members are compared only if there are at least as many completions as members.
WITH complete AS MATERIALIZED (
    SELECT o.id, o.version
      FROM heddle.offers o
      JOIN (SELECT c.offer_id, sum(c.completed) AS completed FROM heddle.occurrences c
             WHERE c.offer_id = ANY ($1) GROUP BY c.offer_id) c ON c.offer_id = o.id
     WHERE o.id = ANY ($1) AND o.run IS NOT NULL AND o.deleted_at IS NULL AND o.enabled
       AND CASE WHEN o.stock IS NOT NULL THEN c.completed >= o.stock
                WHEN o.audience LIKE 'uid\_%' THEN c.completed >= 1
                WHEN c.completed >= (SELECT greatest(1, count(*)) FROM heddle.members m WHERE m.audience = o.audience)
                THEN NOT EXISTS (SELECT m.uid FROM heddle.members m WHERE m.audience = o.audience
                                 EXCEPT
                                 SELECT a.uid FROM heddle.assignments a WHERE a.offer_id = o.id AND a.state = 1)
                ELSE false END
),
locked AS MATERIALIZED (
    SELECT o.id FROM heddle.offers o WHERE o.id = ANY (ARRAY(SELECT c.id FROM complete c))
     ORDER BY o.id FOR NO KEY UPDATE
),
done AS (
    UPDATE heddle.offers o SET enabled = false, overdue_at = NULL
      FROM complete c
     WHERE o.id = ANY ($1) AND o.id = c.id AND o.version = c.version AND o.deleted_at IS NULL AND o.enabled
       AND (SELECT count(*) FROM locked) >= 0
    RETURNING o.id, o.run, o.task, o.item, o.attempt
)
INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt)
SELECT id, run, task, item, attempt FROM done
