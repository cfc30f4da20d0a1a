//! How claims end: outcomes gather during a transaction, and the next one records all of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{AttemptState, ErrorKind, RunState};
use heddle_domain::{Faults, Time};
use heddle_store::live::{ClaimKey, ClaimReport, ClaimStatus, Locked};
use uuid::Uuid;

use super::{ASKS_MAX, Queues};
use crate::node::Node;
use crate::node::group_commit::{Answered, Asked, Commits, Committed, Halves, Met, Policy, answer, chunks};
use crate::runs::contexts::Contexts;
use crate::runs::create::batch_run::check_batch_output;
use crate::runs::ending::{Applied, Ending, applied, message_kept};
use crate::runs::waiters::queued::millis;
use crate::{EngineError, RunContext};

/// The pause before a failed transaction is tried again, and the maximum number of tries.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
const TRIES_MAX: u32 = 5;

/// How a worker ends a claim.
#[derive(Clone, Debug)]
pub enum ClaimEnd {
    /// With an output, as JSON text.
    Completed(String),
    /// The worker reports a failure.
    Failed {
        /// Shown to people; nothing is decided by it.
        message: String,
        /// Whether the failure is final.
        fatal: bool,
        /// The minimum time until the next attempt.
        retry_after: Option<Duration>,
    },
    /// Returned: another worker shall do it.
    Released,
}

/// What a worker sends to keep its claim.
#[derive(Clone, Debug)]
pub struct Beat {
    pub claim: ClaimKey,
    /// How long the claim holds now; `None`: as long as at its last extension.
    pub lease: Option<Duration>,
    /// What else it reports; the limit of its log is filled in here.
    pub report: ClaimReport,
}

/// Why a claim was not ended or extended.
#[derive(Debug)]
pub enum ClaimRefused {
    /// The token is wrong or old; the reason in a sentence.
    Old(String),
    /// The output has more bytes than the task allows.
    TooLarge(usize),
    /// The output does not have the required form.
    Invalid(Faults),
    /// An error that the caller did not cause.
    Engine(EngineError),
}

impl From<EngineError> for ClaimRefused {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// Receives the answer for a claim; or the reason why it is refused at once.
type Begun = Result<Answered<Settled>, ClaimRefused>;

/// What became of a request to end a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Settled {
    /// It has ended the claim.
    Ended,
    /// There is no such claim. If a commit of this request was cut off before, it may itself have ended the claim: then the
    /// attempt has this state.
    Missing { ended_as: Option<AttemptState> },
}

/// A claim that ends.
pub(crate) struct Settling {
    claim: ClaimKey,
    ending: Ending,
    /// Its queue, if the run is known and the claim does not return to the queue.
    queue: Option<Arc<str>>,
    /// A commit of it was cut off: it may be recorded already.
    cut_off: bool,
}

impl Settling {
    fn settled(&self, accepted: &HashSet<(RunId, AttemptKey)>) -> Settled {
        if accepted.contains(&(self.claim.run, self.claim.at)) {
            return Settled::Ended;
        }
        let ended_as = match &self.ending {
            Ending::Succeeded(_) => Some(AttemptState::Succeeded),
            Ending::Failed { .. } => Some(AttemptState::Failed),
            _ => None,
        };
        Settled::Missing {
            ended_as: ended_as.filter(|_| self.cut_off),
        }
    }
}

/// Ends claims; each answer says whether the caller held the claim.
pub(crate) struct Settlements(pub(super) Arc<Queues>);

impl Commits for Settlements {
    type Request = Settling;
    type Answer = Settled;
    type Then = ();
    const POLICY: Policy = Policy {
        what: "ends of claims",
        queue_max: ASKS_MAX,
        batch_max: 1_000,
        // Two workers are slower: batches are smaller, and items of one run wait for each other's lock. A mapped task then
        // ends 8,400 items a second instead of 16,000.
        workers: 1,
        tries_max: Some(TRIES_MAX),
        again_after: AGAIN_AFTER,
        // A claim that was recorded does not exist any more. Then the state of its attempt says by whom (`Queues::ended`).
        repeatable: true,
    };

    fn node(&self) -> &Node {
        &self.0.node
    }

    fn batches(&self, gathered: Vec<Asked<Self>>) -> Vec<Vec<Asked<Self>>> {
        // If two requests end the same claim, one is a repeat or has the wrong token. They go into two batches, and the
        // database decides which of them ends the claim.
        let mut seen = HashSet::with_capacity(gathered.len());
        let (first, repeats): (Vec<_>, Vec<_>) = gathered
            .into_iter()
            .partition(|asked| seen.insert((asked.request.claim.run, asked.request.claim.at)));
        let mut batches = chunks(first, Self::POLICY.batch_max);
        batches.extend(repeats.into_iter().map(|asked| vec![asked]));
        batches
    }

    async fn commit(&self, batch: &mut [Settling]) -> Committed<Self> {
        let ends: Vec<(ClaimKey, Ending)> = batch
            .iter()
            .map(|settling| (settling.claim, settling.ending.clone()))
            .collect();
        let accepted = match self.0.settle(&ends, false, None).await {
            Ok(accepted) => accepted,
            Err(error) => {
                if Met::of(&error) == Met::NoDatabase {
                    batch.iter_mut().for_each(|settling| settling.cut_off = true);
                }
                return Err(error);
            }
        };
        let settled: Vec<Settled> = batch.iter().map(|settling| settling.settled(&accepted)).collect();
        for (settling, settled) in batch.iter().zip(&settled) {
            if let (Settled::Ended, Some(queue)) = (settled, &settling.queue) {
                self.0.ended.count(queue);
            }
        }
        Ok((settled, ()))
    }
}

impl Queues {
    /// Ends claims; returns after the commits, with answers in the order of the claims.
    pub(crate) async fn end_claims(&self, ends: Vec<(ClaimKey, ClaimEnd)>) -> Vec<Result<(), ClaimRefused>> {
        let count = ends.len();
        match self.begin_to_end(ends).await {
            Ok(waiting) => {
                let mut answers = Vec::with_capacity(count);
                for (claim, waiting) in waiting {
                    answers.push(match waiting {
                        Ok(answered) => self.ended(&claim, answered).await,
                        Err(refused) => Err(refused),
                    });
                }
                answers
            }
            Err(error) => {
                // The error is the answer for all.
                (0..count).map(|_| Err(error.clone().into())).collect()
            }
        }
    }

    /// Sends claims to the settler in one piece, so that they end in one transaction.
    async fn begin_to_end(&self, ends: Vec<(ClaimKey, ClaimEnd)>) -> Result<Vec<(ClaimKey, Begun)>, EngineError> {
        let contexts = self
            .runs
            .contexts
            .of_all(ends.iter().map(|(claim, _)| claim.run))
            .await?;
        let (mut waiting, mut settlings) = (Vec::with_capacity(ends.len()), Vec::with_capacity(ends.len()));
        for (claim, end) in ends {
            let context = contexts.get(&claim.run);
            match ending_of(&self.node, context.map(|context| &**context), &claim, end).await {
                Ok(ending) => {
                    settlings.push(Settling {
                        queue: context.and_then(|context| queue_of(context, claim.at, &ending)),
                        claim,
                        ending,
                        cut_off: false,
                    });
                    waiting.push((claim, None));
                }
                Err(refused) => waiting.push((claim, Some(refused))),
            }
        }
        let mut answered = self.ends.send_all(settlings)?.into_iter();
        let begun = waiting.into_iter().map(|(claim, refused)| {
            let begun = match refused {
                Some(refused) => Err(refused),
                None => answered.next().ok_or(ClaimRefused::Engine(EngineError::Stopping)),
            };
            (claim, begun)
        });
        Ok(begun.collect())
    }

    async fn ended(&self, claim: &ClaimKey, answered: Answered<Settled>) -> Result<(), ClaimRefused> {
        let Settled::Missing { ended_as } = answer(answered).await? else {
            return Ok(());
        };
        let status = self.status(claim).await?;
        match ended_as {
            // Who has the token of an attempt ends it only once in this way: this was the commit that was cut off.
            Some(state) if status.attempt == Some(state) => Ok(()),
            _ => Err(ClaimRefused::Old(reason(&status))),
        }
    }

    async fn status(&self, claim: &ClaimKey) -> Result<ClaimStatus, EngineError> {
        Ok(self.node.store.claim_status(claim).await?)
    }

    /// Extends claims, each by the given time or by the time given before, and stores what workers report. Returns when
    /// each claim expires now.
    pub(crate) async fn heartbeat(&self, beats: Vec<Beat>) -> Result<Vec<Result<Time, ClaimRefused>>, EngineError> {
        let keys: Vec<ClaimKey> = beats.iter().map(|beat| beat.claim).collect();
        let leases: Vec<Option<i64>> = beats.iter().map(|beat| beat.lease.map(millis)).collect();
        let mut reports: Vec<ClaimReport> = Vec::new();
        if beats.iter().any(|beat| beat.report != ClaimReport::default()) {
            let contexts = self.runs.contexts.of_all(keys.iter().map(|key| key.run)).await?;
            reports = beats.into_iter().map(|beat| beat.report).collect();
            for (report, key) in reports.iter_mut().zip(&keys) {
                report.log_bytes_max = contexts.get(&key.run).map_or(0, |context| log_max(context, key.at)) as i64;
            }
        }
        // The store repeats both after a conflict.
        let (store, now) = (&self.node.store, self.node.now());
        let extended = match reports.is_empty() {
            true => store.heartbeat_claims(&keys, &leases).await?,
            false => store.report_claims(&keys, &leases, &reports, now).await?,
        };
        let extended: HashMap<_, _> = extended.into_iter().collect();
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            answers.push(match extended.get(&key.id) {
                Some(&until) => Ok(until),
                None => Err(ClaimRefused::Old(reason(&self.status(&key).await?))),
            });
        }
        Ok(answers)
    }
}

/// The maximum bytes of an attempt's log, as for scripts.
fn log_max(context: &RunContext, at: AttemptKey) -> usize {
    let task = context.revision.plan.task(at.key.task);
    let own = task.and_then(|task| task.spec.max_log).map(|size| size.0 as usize);
    own.unwrap_or_else(|| heddle_sandbox::Limits::default().log_bytes)
}

/// The queue that a task run leaves for good with this ending.
fn queue_of(context: &RunContext, at: AttemptKey, ending: &Ending) -> Option<Arc<str>> {
    let task = context.revision.plan.task(at.key.task)?;
    match ending {
        Ending::Succeeded(_) | Ending::Failed { .. } => task.spec.queue.as_ref().map(|queue| Arc::from(queue.as_str())),
        _ => None,
    }
}

/// The maximum bytes of a task's output.
fn output_max(context: &RunContext, at: AttemptKey) -> usize {
    let task = context.revision.plan.task(at.key.task);
    let own = task.and_then(|task| task.spec.max_output).map(|size| size.0 as usize);
    own.unwrap_or_else(|| heddle_sandbox::Limits::default().output_bytes)
}

/// Why a token is not valid, for the worker.
fn reason(status: &ClaimStatus) -> String {
    match status {
        ClaimStatus { run: None, .. } => "the token is wrong, or its run has been deleted".to_owned(),
        ClaimStatus {
            expired_at: Some(at), ..
        } => {
            let at = at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
            format!("the token is no longer valid: its lease expired at {at}")
        }
        ClaimStatus {
            attempt: Some(AttemptState::Cancelled),
            run: Some(RunState::Cancelled),
            ..
        } => "the run was cancelled".to_owned(),
        ClaimStatus {
            attempt: Some(AttemptState::Cancelled),
            ..
        } => "the attempt was cancelled or released".to_owned(),
        ClaimStatus {
            attempt: Some(AttemptState::Lost),
            ..
        } => "the token is no longer valid: its lease expired, and the attempt is lost".to_owned(),
        ClaimStatus {
            attempt: Some(AttemptState::TimedOut),
            ..
        } => "the token is no longer valid: the attempt has timed out".to_owned(),
        ClaimStatus {
            attempt: Some(state), ..
        } => format!("the attempt has already ended: it is {state}"),
        ClaimStatus {
            run: Some(RunState::Cancelled),
            ..
        } => "the run was cancelled".to_owned(),
        ClaimStatus { .. } => "the token is wrong".to_owned(),
    }
}

/// A worker's report as an outcome; refused if it is too large or unreadable. Without a context, the run is not
/// live, and neither is the claim.
async fn ending_of(
    node: &Node,
    context: Option<&RunContext>,
    claim: &ClaimKey,
    end: ClaimEnd,
) -> Result<Ending, ClaimRefused> {
    Ok(match end {
        ClaimEnd::Completed(output) => {
            if let Some(context) = context {
                let bytes_max = output_max(context, claim.at);
                if output.len() > bytes_max {
                    return Err(ClaimRefused::TooLarge(bytes_max));
                }
                check_batch_output(node, context, claim, &output)
                    .await?
                    .map_err(ClaimRefused::Invalid)?;
            }
            Ending::Succeeded(output)
        }
        ClaimEnd::Failed {
            message,
            fatal,
            retry_after,
        } => Ending::Failed {
            kind: if fatal { ErrorKind::Fatal } else { ErrorKind::Failed },
            message: message_kept(&message),
            trace: None,
            retry_after,
            fatal,
        },
        ClaimEnd::Released => Ending::Released,
    })
}

impl Queues {
    /// Ends claims that no worker will end. If the database does not take their ends now, the claims are noted, and given
    /// back as soon as it does (`unheld.rs`). `unseen`: the queue of claims that no worker has seen, which do not count for
    /// its rate limit.
    pub(super) async fn give_back(self: &Arc<Self>, claims: Vec<(ClaimKey, Ending)>, unseen: Option<&str>) {
        let ids: Vec<Uuid> = claims.iter().map(|(claim, _)| claim.id).collect();
        let count = ids.len();
        if let Err(error) = self.settle_each(claims, unseen).await {
            // Those that have ended already are not found any more.
            self.unheld.note(ids, self.node.clock.elapsed());
            tracing::warn!(error = %Chain(&error), claims = count, "cannot release claims; trying again");
        }
    }

    /// Ends claims, together if that is possible. One whose end is refused keeps none of the others, and waits for the end
    /// of its lease: then the reaper gives its run up. `Err`: an error that may pass.
    pub(super) async fn settle_each(
        self: &Arc<Self>,
        claims: Vec<(ClaimKey, Ending)>,
        unseen: Option<&str>,
    ) -> Result<(), EngineError> {
        let mut halves = Halves::of(claims);
        while let Some(batch) = halves.take().filter(|batch| !batch.is_empty()) {
            let result = self.settle(&batch, false, unseen).await.map(drop);
            if let Some(((claim, _), error)) = halves.done(batch, result)? {
                tracing::warn!(error = %Chain(&error), run = %claim.run, "cannot release a claim; its lease expires by \
                    itself");
            }
        }
        Ok(())
    }

    /// Ends claims in one transaction; returns which of them existed.
    pub(super) async fn settle(
        self: &Arc<Self>,
        ends: &[(ClaimKey, Ending)],
        expired: bool,
        unseen: Option<&str>,
    ) -> Result<HashSet<(RunId, AttemptKey)>, EngineError> {
        let contexts = self.runs.contexts.of_all(ends.iter().map(|end| end.0.run)).await?;
        let keys: Vec<ClaimKey> = ends.iter().map(|end| end.0).collect();
        let outcomes = ends
            .iter()
            .map(|(key, ending)| applied(key.run, key.at, key.lease, ending))
            .collect();
        let mut completion = self.node.completion("settle_claims").await?;
        let locked = completion.lock_claims(&keys, expired).await?;
        if let Some(queue) = unseen {
            completion.refund_queue(queue, locked.owned.len()).await?;
        }
        self.finish_claims(completion, &contexts, outcomes, locked).await
    }

    pub(super) async fn finish_claims(
        self: &Arc<Self>,
        mut completion: heddle_store::live::Completion,
        contexts: &Contexts,
        outcomes: Vec<Applied>,
        locked: Locked,
    ) -> Result<HashSet<(RunId, AttemptKey)>, EngineError> {
        let mut after = self
            .runs
            .apply_locked(&mut completion, contexts, outcomes, locked, &mut self.runs.grant())
            .await?;
        completion.commit().await?;
        let accepted = std::mem::take(&mut after.accepted).into_iter().collect();
        self.runs.acted(after);
        Ok(accepted)
    }
}
