//! The runs at the instants of a group: the last one of each, and the one that is registered.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use uuid::Uuid;

use super::BackfillRound;
use crate::{Store, StoreError};

/// What exists at an instant.
#[derive(Clone, Copy, Debug)]
pub struct Occupancy {
    pub at: Time,
    /// The last run that was created for it and was not skipped, with its state and script versions.
    pub last: Option<(RunId, RunState, Option<i64>)>,
    /// The run that is registered for it, which may be gone.
    pub registered: Option<Uuid>,
}

/// The same, as both statements return it.
///
/// They pass over runs that were skipped: these never began. The run before such a run is the last one then; if there is
/// none, the instant is as free as one without a run. A run that began counts, also if `cancel_previous` has cancelled it.
struct OccupancyRow {
    at: Time,
    id: Option<Uuid>,
    state: Option<i16>,
    resolution_id: Option<i64>,
    registered: Option<Uuid>,
}

impl OccupancyRow {
    fn read(self) -> Result<Occupancy, StoreError> {
        let last = match self.id {
            Some(run) => {
                // No state: the instant is registered, and its run has not ended.
                let state = self.state.map_or(Ok(RunState::Running), |state| {
                    StoreError::known(RunState::from_number, state, ("runs", "state"), run)
                })?;
                Some((RunId(run), state, self.resolution_id))
            }
            None => None,
        };
        Ok(Occupancy {
            at: self.at,
            last,
            registered: self.registered,
        })
    }
}

impl Store {
    /// What exists at the instants of a group between two; free instants are left out.
    pub async fn occupancies_between(&self, group_id: i64, from: Time, to: Time) -> Result<Vec<Occupancy>, StoreError> {
        let rows = sqlx::query_as!(
            OccupancyRow,
            r#"SELECT coalesce(r.logical_time, i.logical_time) AS "at!", r.id AS "id?", r.state AS "state?",
                      r.resolution_id AS "resolution_id?", i.run AS "registered?"
                 FROM (SELECT DISTINCT ON (logical_time) logical_time, id, state, resolution_id
                         FROM (SELECT logical_time, id, state, resolution_id FROM heddle.runs_live
                                WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3
                                  AND logical_time <> created_at AND trigger <> 4
                               UNION ALL
                               SELECT logical_time, id, state, resolution_id FROM heddle.runs_done
                                WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3
                                  AND logical_time <> created_at AND trigger <> 4 AND skipped IS NULL) AS runs
                        ORDER BY logical_time, id DESC) AS r
                 FULL JOIN (SELECT logical_time, run FROM heddle.run_instants
                             WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3) AS i
                   ON i.logical_time = r.logical_time"#,
            group_id,
            from,
            to
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(OccupancyRow::read).collect()
    }
}

impl BackfillRound {
    /// What exists at these instants, one entry for each, in their order.
    pub async fn occupancies(&mut self, instants: &[Time]) -> Result<Vec<Occupancy>, StoreError> {
        let rows = sqlx::query_as!(
            OccupancyRow,
            r#"SELECT w.at AS "at!", r.id AS "id?", r.state AS "state?", r.resolution_id AS "resolution_id?",
                      i.run AS "registered?"
                 FROM UNNEST($2::timestamptz[]) WITH ORDINALITY AS w (at, ordinal)
                 LEFT JOIN heddle.run_instants i ON i.group_id = $1 AND i.logical_time = w.at
                 LEFT JOIN LATERAL (
                      SELECT id, state, resolution_id
                        FROM (SELECT id, state, resolution_id FROM heddle.runs_live
                               WHERE group_id = $1 AND logical_time = w.at
                                 AND logical_time <> created_at AND trigger <> 4
                              UNION ALL
                              SELECT id, state, resolution_id FROM heddle.runs_done
                               WHERE group_id = $1 AND logical_time = w.at
                                 AND logical_time <> created_at AND trigger <> 4 AND skipped IS NULL) AS runs
                       ORDER BY id DESC LIMIT 1) AS r ON true
                ORDER BY w.ordinal"#,
            self.row.group_id,
            instants
        )
        .fetch_all(&mut *self.tx)
        .await?;
        rows.into_iter().map(OccupancyRow::read).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// Words with single spaces between them.
    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The files below a directory.
    fn files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files(&path, found),
                false => found.push(path),
            }
        }
    }

    /// Statements decide which run stands at its instant as the indexes do: with other words they could not use these.
    #[test]
    fn which_run_stands_at_its_instant_is_said_alike() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut migrations = Vec::new();
        files(&here.join("../../migrations"), &mut migrations);
        migrations.sort();
        let schema: String = migrations
            .iter()
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        let rule_of = |index: &str| {
            // The last one counts.
            let (_, created) = schema.rsplit_once(&format!("CREATE INDEX {index} ON")).unwrap();
            let (created, _) = created.split_once(';').unwrap();
            words(created.split_once("WHERE ").unwrap().1)
        };
        let rule = rule_of("runs_live_instant");
        assert_eq!(rule_of("runs_done_instant"), rule);
        let mut sources = Vec::new();
        files(&here.join("src"), &mut sources);
        let mut count = 0;
        for path in sources {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (at, begin) in text.match_indices("logical_time <> ") {
                let before = text[..at].rsplit(|one: char| one.is_whitespace() || one == '(').next();
                let alias = before.unwrap_or_default();
                let said = match alias {
                    "" => words(&text[at..]),
                    alias => words(&text[at..]).replace(alias, ""),
                };
                assert!(said.starts_with(&rule), "{}: {alias}{begin}", path.display());
                count += 1;
            }
            let triggers = text.matches("trigger <> 4").count();
            assert_eq!(triggers, text.matches("logical_time <> ").count(), "{}", path.display());
        }
        assert!(count >= 7, "only {count} statements say it");
    }
}
