-- When the last message of a bucket ended: a day of instants is drained before it is over, and says since when. Of buckets
-- that ended before this migration it is not known.
ALTER TABLE heddle.message_outcomes ADD COLUMN last_at timestamptz;
ALTER TABLE heddle.message_outcomes ALTER COLUMN last_at SET DEFAULT clock_timestamp();
