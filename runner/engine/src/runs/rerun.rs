//! Runs like others: a rerun is a submission with the terms of a run that was there before.
//!
//! It goes through the same group commit as all submissions (`submit.rs`), so many reruns share their transactions: what
//! makes many of them cheap is that they are on their way together.

use std::collections::{BTreeMap, HashMap};

use heddle_domain::Faults;
use heddle_domain::bounded::or_trouble;
use heddle_domain::framed;
use heddle_domain::id::RunId;
use heddle_domain::message::{KEY_BYTES_MAX, check_key_within};
use heddle_domain::state::Trigger;
use heddle_store::live::{Audited, GroupNeed};
use heddle_store::run::{RunFilter, RunRow, RunTerms};
use serde_json::{Map, Value, json};

use crate::node::catalog::Revision;
use crate::runs::controlled::{Answers, ControlError, is_of_the_run};
use crate::runs::create::batch_run::check_again;
use crate::runs::create::check::check_params;
use crate::runs::create::submit::{LAYOUTS_MAX, Layout, Request, finish, is_outdated, open_group};
use crate::{EngineError, Runs, SubmitError};

/// What the key of one of many runs has more than the key of the call: `/` and an id. In bytes.
const KEY_MORE_BYTES: usize = 37;

/// How a run is repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rerun {
    /// With the scripts that are active now, not with those of the run.
    pub active_scripts: bool,
    /// Also while its group is disabled.
    pub force: bool,
    /// The new run's key; of many runs, what their keys begin with. A run is not repeated if its group has a run with the key.
    pub key: Option<String>,
}

impl Rerun {
    /// Checks the key, for one run or for many.
    pub fn check(&self, many: bool) -> Result<(), Faults> {
        let mut faults = Faults::default();
        let more = if many { KEY_MORE_BYTES } else { 0 };
        if let Some(Err(detail)) = self
            .key
            .as_deref()
            .map(|key| check_key_within(key, KEY_BYTES_MAX - more))
        {
            faults.add("/key", detail);
        }
        faults.or(())
    }

    /// The key of the run that repeats this one, of many.
    fn key_of(&self, run: RunId) -> Option<String> {
        self.key.as_ref().map(|key| format!("{key}/{run}"))
    }
}

impl Runs {
    /// Creates a run like an ended or live one; the audit entry is in the same commit.
    pub(crate) async fn rerun(&self, row: &RunRow, rerun: &Rerun, actor: &str) -> Result<RunId, SubmitError> {
        rerun.check(false)?;
        let mut tries = 1;
        loop {
            let made = self.rerun_once(row, rerun, rerun.key.clone(), actor).await;
            if tries == LAYOUTS_MAX || !is_outdated(&made) {
                return made;
            }
            tries += 1;
        }
    }

    async fn rerun_once(
        &self,
        row: &RunRow,
        rerun: &Rerun,
        key: Option<String>,
        actor: &str,
    ) -> Result<RunId, SubmitError> {
        let request = self.like(row, rerun, key, actor).await?;
        let (id, context) = (request.run.id, request.context.clone());
        let answered = self.requests.submissions.send(request)?;
        Ok(finish(id, &context, answered).await?.0)
    }
}

/// The refusal of a rerun as an answer of a control of many runs; `Err`: an error that the caller did not cause, and that
/// concerns more than this run.
fn refused(error: SubmitError) -> Result<ControlError, EngineError> {
    match error {
        SubmitError::Engine(error) if is_of_the_run(&error) => Ok(ControlError::Engine(error)),
        SubmitError::Engine(error) => Err(error),
        SubmitError::Exists(run) => Ok(ControlError::Made(run)),
        error => Ok(ControlError::Refused(error.to_string())),
    }
}

/// What the run was given for single tasks.
fn task_params_of(row: &RunRow) -> Result<BTreeMap<String, Map<String, Value>>, SubmitError> {
    let Some(text) = &row.terms.task_params else {
        return Ok(BTreeMap::new());
    };
    framed::read(text)
        .map_err(|error| SubmitError::Refused(format!("the task_params of run {} cannot be read: {error}", row.id)))
}

impl Runs {
    /// Whether runs of a group can be repeated: they carry no batches of messages, and the group has not been deleted,
    /// and is enabled unless `force` is given.
    async fn check_rerun(&self, group_id: i64, name: &str, force: bool) -> Result<(), SubmitError> {
        check_again(name).map_err(SubmitError::Refused)?;
        open_group(&self.node, name, Some(group_id), force).await.map(drop)
    }

    /// Whether runs of a revision can be repeated, as an answer of a control of many runs.
    pub(super) async fn try_rerun(&self, revision: &Revision, rerun: &Rerun) -> Result<(), ControlError> {
        let checked = self.check_rerun(revision.group_id, &revision.group_name, rerun.force);
        match checked.await {
            Ok(()) => Ok(()),
            Err(error) => Err(refused(error)?),
        }
    }

    /// A run like another one, laid out. It is refused if the params of the other one cannot be read: it would fail like that.
    /// If it gets other scripts, the params have to fit these, as those of a submission.
    async fn like(
        &self,
        row: &RunRow,
        rerun: &Rerun,
        key: Option<String>,
        actor: &str,
    ) -> Result<Request, SubmitError> {
        self.check_rerun(row.group_id, &row.group_name, rerun.force).await?;
        let params = framed::read_params(&row.terms.params)
            .map_err(|error| SubmitError::Refused(format!("the params of run {} cannot be read: {error}", row.id)))?;
        let revision = self.node.catalog.revision(row.revision_id).await?;
        let resolution = match row.resolution_id {
            Some(id) if !rerun.active_scripts => self.node.catalog.resolution(id, &revision).await?,
            _ => {
                let resolution = self.node.catalog.resolve(&revision).await?;
                let task_params = task_params_of(row)?;
                or_trouble(|| check_params(&revision.plan, &resolution, &params, &task_params))
                    .map_err(EngineError::from)??;
                resolution
            }
        };
        let terms = RunTerms {
            trigger: Trigger::Rerun,
            key,
            source: Some(row.id),
            created_by: Some(actor.to_owned()),
            ..row.terms.clone()
        };
        let (mut run, context) = self.lay_out(&revision, &resolution, Layout::of_terms(terms), self.now());
        run.needs = GroupNeed::of(rerun.force);
        run.audited = Some(Audited {
            action: "rerun",
            after: json!({"rerun_of": row.id}),
        });
        Ok(Request { run, context })
    }

    /// The rows of runs, in one statement. If one of them cannot be read, they are read one by one, and it gets its answer.
    async fn rows_of(&self, runs: &[RunId], answers: &mut Answers) -> Result<HashMap<RunId, RunRow>, EngineError> {
        match self.read_rows(runs).await {
            Err(error) if is_of_the_run(&error) => {}
            others => return others,
        }
        let mut found = HashMap::with_capacity(runs.len());
        for &run in runs {
            match self.read_rows(&[run]).await {
                Ok(one) => found.extend(one),
                Err(error) if is_of_the_run(&error) => drop(answers.insert(run, Err(error.into()))),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    async fn read_rows(&self, runs: &[RunId]) -> Result<HashMap<RunId, RunRow>, EngineError> {
        let filter = RunFilter {
            ids: runs.iter().map(|run| run.0).collect(),
            ..RunFilter::default()
        };
        let found = self.node.store.runs(&filter, runs.len() as i64).await?;
        Ok(found.items.into_iter().map(|row| (RunId(row.id), row)).collect())
    }

    /// Repeats many runs, which are read in one statement; returns an answer for each. `Err` says what stopped it: some
    /// may be repeated already, so it must not be tried again here. With a key, the caller may.
    pub(super) async fn rerun_all(&self, runs: &[RunId], rerun: &Rerun, actor: &str) -> Result<Answers, EngineError> {
        let mut answers = Answers::with_capacity(runs.len());
        let rows = self.rows_of(runs, &mut answers).await?;
        let mut sent = Vec::with_capacity(runs.len());
        for &run in runs {
            let Some(row) = rows.get(&run) else {
                answers.entry(run).or_insert(Err(ControlError::NotFound("run")));
                continue;
            };
            match self.like(row, rerun, rerun.key_of(run), actor).await {
                Ok(request) => {
                    let (id, context) = (request.run.id, request.context.clone());
                    let answered = self.requests.submissions.send_patiently(request).await?;
                    sent.push((run, id, context, answered));
                }
                Err(error) => drop(answers.insert(run, Err(refused(error)?))),
            }
        }
        for (run, id, context, answered) in sent {
            let mut made = finish(id, &context, answered).await.map(|(id, _)| id);
            if is_outdated(&made)
                && let Some(row) = rows.get(&run)
            {
                made = self.rerun_once(row, rerun, rerun.key_of(run), actor).await;
            }
            let answer = match made {
                Ok(_) => Ok(()),
                Err(error) => Err(refused(error)?),
            };
            answers.insert(run, answer);
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_room_for_an_id() {
        let run = RunId(uuid::Uuid::max());
        let with = |bytes: usize| Rerun {
            active_scripts: false,
            force: false,
            key: Some("k".repeat(bytes)),
        };
        let longest = with(KEY_BYTES_MAX - KEY_MORE_BYTES);
        assert!(longest.check(true).is_ok());
        assert_eq!(longest.key_of(run).map(|key| key.len()), Some(KEY_BYTES_MAX));
        assert!(with(KEY_BYTES_MAX - KEY_MORE_BYTES + 1).check(true).is_err());
        assert!(with(KEY_BYTES_MAX).check(false).is_ok());
        for bytes in [0, KEY_BYTES_MAX + 1] {
            assert!(with(bytes).check(false).is_err(), "{bytes}");
        }
    }
}
