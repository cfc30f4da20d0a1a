-- What pages ask for, of runs that failed: there are few of them among millions, and people look at them first.
CREATE INDEX runs_done_failed ON heddle.runs_done (id) WHERE state = 4;

SELECT heddle.keys_first();
