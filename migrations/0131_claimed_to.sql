-- How far nodes have come in *ready*: the highest position that this node knows to be claimed. New rows get positions after
-- it, so all nodes must count from about the same one: otherwise rows of a node that has claimed nothing for long stand before
-- all others. Heartbeats say it and read it. A node from before this column says nothing.
ALTER TABLE heddle.nodes ADD COLUMN claimed_to bigint NOT NULL DEFAULT 0;
