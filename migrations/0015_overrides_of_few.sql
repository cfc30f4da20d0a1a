-- The few groups that keep their runs for longer or shorter than the others: nobody reads a million definitions for them.
CREATE INDEX revisions_retention ON heddle.revisions (id) WHERE jsonb_typeof(spec -> 'retention') = 'object';
