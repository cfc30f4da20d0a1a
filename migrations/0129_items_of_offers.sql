-- The SHA-256 of the value of the item that an offer of a mapped task asks about, as JSON text. After a restart, a map can be
-- expanded again, and the number of an item then stands for another value: the answers for the former one do not count for it.
-- Null: the task is not mapped, or a node from before this column has made the offer. It counts as the offer of any value.
ALTER TABLE heddle.offers ADD COLUMN item_hash bytea;
