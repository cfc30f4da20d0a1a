-- Whether a node still compiles the scripts of the enabled groups: until then, it leaves task runs to nodes that have them.
-- A node from before this column takes task runs as soon as it starts, so it counts as one that has them.
ALTER TABLE heddle.nodes ADD COLUMN warming boolean NOT NULL DEFAULT false;
