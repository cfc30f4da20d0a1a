-- Which functions a version has that Heddle calls: `run` for tasks, `handle` for the messages of a topic. What a text has is
-- known once it was evaluated. Null: a text that was uploaded by a build that did not write this; a node writes it when it
-- starts.
ALTER TABLE heddle.script_versions ADD COLUMN exports text[] CHECK (exports <@ ARRAY['run', 'handle']);
UPDATE heddle.script_versions
   SET exports = CASE world WHEN 'heddle:task/consumer' THEN ARRAY['handle'] ELSE ARRAY['run'] END
 WHERE world NOT LIKE 'source/%';
