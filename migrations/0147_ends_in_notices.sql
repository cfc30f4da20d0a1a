-- The notice of a callback holds the end of its run: whom to call, and what can be said of the end without the run. A run may be
-- deleted, or be restarted, before the notice is turned into a notification. Notices that older nodes write have none.
ALTER TABLE heddle.notices ADD COLUMN ended jsonb;

-- What people wait for is read before callbacks, however many of these there are.
CREATE INDEX notices_told ON heddle.notices (id) WHERE event <> 'callback';
