-- The offers of task runs whose assignments and occurrences retention must keep: those that are open, and those that a
-- restart of their run may open again. A restart asks only the users who did not complete the offer, and the results of the
-- others are a part of the task's output. A run that has succeeded (3) is not restarted. The offer of a task run that was
-- cleared (its attempt is 0) is never opened again.
--
-- CASE keeps the planner from reading the partial index of offers of runs to its end for one id, and looks for the run only
-- if that decides. OFFSET keeps each of the two a look-up by key, and so does the sum: no partial index by state fits it.
CREATE VIEW heddle.needed_offers AS
SELECT o.id, o.created_at, o.deleted_at
  FROM heddle.offers o
 WHERE CASE
           WHEN o.run IS NULL THEN false
           WHEN o.deleted_at IS NULL THEN true
           WHEN o.attempt = 0 THEN false
           ELSE EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = o.run OFFSET 0)
                OR EXISTS (SELECT FROM heddle.runs_done d WHERE d.id = o.run AND d.state + 0 IN (4, 5) OFFSET 0)
       END;
