-- An offer of a task run is opened again when its run is restarted, also after it was withdrawn with the run's end.
CREATE INDEX offers_of_runs ON heddle.offers (run, task, item, id) WHERE run IS NOT NULL;
