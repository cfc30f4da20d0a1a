-- A thousand schedules a second write and delete a thousand rows a second in each of these: they are vacuumed early, as
-- the other tables that rows pass through, so that a look at an empty one does not step over what was there.
ALTER TABLE heddle.waits SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE heddle.turnstiles SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE heddle.needs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
