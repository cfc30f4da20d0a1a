-- end_holds: ends holds as completed (1), failed (2), revoked (3) or expired (4), and gives stock back.
--
-- Locking: rows of *holds* in the order of users, then rows of *occurrences* in their order; see hold_users. Whoever
-- deletes the row of a hold owns its end: if two transactions end it at the same time, the later one finds no row.
-- The DELETE needs the count of the locked rows, which Postgres computes first. So all these rows are locked before
-- one is deleted. Last are the *offers* that this ends, in id order and in the same way: all of them before one is
-- changed. An offer that was opened for another attempt during the wait stays open.
--
-- A user cannot end an assignment whose offer was taken from its task run (the run was cancelled, the task run
-- overridden): the reaper revokes it (Store::withdraw_offers, which has the same rule, as give has). If the attempt has
-- ended on its own, the offer is closed, and its holds wait for the next attempt. The offer of a task run that was cleared
-- has the attempt 0, which is never in *running*: nothing waits for its holds, whether it was closed or not.
WITH asked AS (
    SELECT * FROM UNNEST($1::uuid[], $2::text[], $3::smallint[], $4::text[]) AS a (id, uid, state, result)
),
locked AS MATERIALIZED (
    SELECT h.id FROM heddle.holds h WHERE h.uid = ANY ($2) ORDER BY h.uid FOR UPDATE
),
gone AS (
    DELETE FROM heddle.holds h USING asked a
     WHERE h.uid = ANY (ARRAY[a.uid]) AND h.id = ANY (ARRAY[a.id]) AND (SELECT count(*) FROM locked) >= 0
       AND (a.state > 2 OR (
            SELECT o.run IS NULL
                OR CASE WHEN o.enabled OR o.attempt = 0
                        THEN EXISTS (SELECT FROM heddle.running r
                                      WHERE r.run = ANY (ARRAY[o.run]) AND r.task = o.task AND r.item = o.item
                                        AND r.attempt = o.attempt AND r.lease = 0)
                        ELSE EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = ANY (ARRAY[o.run])) END
              FROM heddle.offers o WHERE o.id = h.offer_id LIMIT 1))
    RETURNING h.*, a.state, a.result
),
judged AS MATERIALIZED (
    SELECT g.*, o.name, o.run, o.task, o.item, o.attempt, o.stock, o.enabled, o.audience AS offered_to,
           g.state IN (3, 4) OR (g.state = 2 AND (o.return_failed OR o.run IS NOT NULL)) AS returned
      FROM gone g JOIN heddle.offers o ON o.id = g.offer_id
),
recorded AS (
    INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at,
                                    result)
    SELECT id, offer_id, version, uid, audience, occurrence, state, assigned_at, greatest($5, assigned_at), result
      FROM judged
),
counted AS (
    INSERT INTO heddle.occurrences AS c (offer_id, occurrence, taken, granted, completed, failed)
    SELECT offer_id, occurrence, count(*) FILTER (WHERE returned), 0, count(*) FILTER (WHERE state = 1),
           count(*) FILTER (WHERE state = 2)
      FROM judged GROUP BY offer_id, occurrence ORDER BY offer_id, occurrence
    ON CONFLICT (offer_id, occurrence) DO UPDATE
       SET taken = greatest(0, c.taken - excluded.taken), completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed
    RETURNING offer_id, occurrence, completed
),
-- Stock that comes back with a failed assignment is noted here, and any node announces it. What operators and the
-- clock take back, the caller announces. Stock comes back to the audience that the offer has now. When the assignment
-- was given, the offer may have had another one.
came_back AS (
    INSERT INTO heddle.stock_returns (audience) SELECT DISTINCT offered_to FROM judged WHERE returned AND state = 2
),
events AS (
    INSERT INTO heddle.events (kind, at, data)
    SELECT (ARRAY['assignment.completed', 'assignment.failed', 'assignment.revoked', 'assignment.expired'])[state],
           greatest($5, assigned_at),
           jsonb_build_object('assignment_id', id, 'offer', name, 'uid', uid, 'audience', audience,
               'occurrence', heddle.moment(occurrence), 'assigned_at', heddle.moment(assigned_at),
               'params', (SELECT v.params FROM heddle.offer_versions v
                           WHERE v.offer_id = judged.offer_id AND v.version = judged.version),
               'result', result::jsonb)
      FROM judged ORDER BY uid
),
-- Task runs whose offer is completed, or has failed with a user, or has nobody left to take it. Whether an offer to
-- each member of a user group is completed, only close_offers can say: it sees what this statement has recorded.
settled AS (
    SELECT j.offer_id, j.run, j.task, j.item, j.attempt,
           min(CASE WHEN j.state = 4 THEN 'user ' || j.uid || ' held it for too long'
                    WHEN j.state = 3 THEN 'the assignment of user ' || j.uid || ' was revoked'
                    WHEN j.state = 2 THEN 'user ' || j.uid || ' failed'
                         || coalesce(': ' || left(nullif(j.result, 'null'), 2000), '')
               END) FILTER (WHERE j.state = 2 OR (j.state IN (3, 4) AND j.audience LIKE 'uid\_%')) AS error,
           max(c.completed) AS completed, min(coalesce(j.stock, 0)) AS stock, min(j.audience) AS audience
      FROM judged j JOIN counted c ON c.offer_id = j.offer_id AND c.occurrence = j.occurrence
     WHERE j.run IS NOT NULL AND j.enabled
     GROUP BY j.offer_id, j.run, j.task, j.item, j.attempt
),
ending AS MATERIALIZED (
    SELECT s.* FROM settled s
     WHERE s.error IS NOT NULL
        OR CASE WHEN s.stock > 0 THEN s.completed >= s.stock ELSE s.audience LIKE 'uid\_%' AND s.completed >= 1 END
),
locked_offers AS MATERIALIZED (
    SELECT o.id FROM heddle.offers o WHERE o.id = ANY (ARRAY(SELECT e.offer_id FROM ending e))
     ORDER BY o.id FOR NO KEY UPDATE
),
closed AS (
    UPDATE heddle.offers o SET enabled = false, overdue_at = NULL
      FROM ending s
     WHERE o.id = s.offer_id AND o.attempt = s.attempt AND (SELECT count(*) FROM locked_offers) >= 0
    RETURNING s.*
),
noted AS (
    INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt, error_kind, error)
    SELECT offer_id, run, task, item, attempt, CASE WHEN error IS NOT NULL THEN 0 END, error FROM closed
)
SELECT j.id AS "id!", j.offer_id AS "offer_id!", j.name AS "offer!", j.uid AS "uid!", j.audience AS "audience!",
       j.occurrence AS "occurrence!", j.state AS "state!", j.assigned_at AS "assigned_at!",
       greatest($5, j.assigned_at) AS "finished_at!", j.result, v.params AS "params!", j.returned AS "returned!",
       j.run IS NOT NULL AS "of_task!", j.offered_to AS "offered_to!",
       j.run IS NOT NULL AND j.stock IS NULL AND j.state = 1 AND j.audience NOT LIKE 'uid\_%' AS "of_each!"
  FROM judged j JOIN heddle.offer_versions v ON v.offer_id = j.offer_id AND v.version = j.version
