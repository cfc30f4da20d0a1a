//! The ends of offers that task runs have made: the end of an offer is the end of its attempt.
//!
//! Many are settled in one transaction. If one of them cannot be (its run's progress cannot be read, say), those of its run
//! are set aside and tried again later, so that those of other runs do not wait for it: see `runs/inbox/aside.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_domain::id::RunId;
use heddle_domain::run::JOINED_OUTPUT_BYTES_MAX;
use heddle_domain::state::ErrorKind;
use heddle_store::live::Take;
use heddle_store::offer::OfferSettlement;

use super::Dispatch;
use crate::EngineError;
use crate::node::group_commit::{Halves, is_passing};
use crate::node::signals::Signal;
use crate::runs::ending::{Applied, End, Ending};
use crate::runs::inbox::aside::Kind;

impl Dispatch {
    /// Ends the attempts whose offers have ended, except those that cannot be ended; returns how many.
    pub(super) async fn settle_offers(self: &Arc<Self>) -> Result<usize, EngineError> {
        let rows_aside = &self.runs.pending.aside;
        let aside = rows_aside.of(Kind::Offers);
        let mut settled = 0;
        for (run, ()) in aside.due(self.node.clock.elapsed()) {
            match self.settle_some(Take::Only(&[run]), &mut BTreeSet::new()).await {
                Ok(count) => {
                    settled += count;
                    rows_aside.done(Kind::Offers, run);
                }
                Err(error) if is_passing(&error) => return Err(error),
                // The error was logged when they were set aside.
                Err(_) => {}
            }
        }
        let mut taken = BTreeSet::new();
        let passed_over = aside.keys();
        let error = match self.settle_some(Take::AllBut(&passed_over), &mut taken).await {
            Err(error) if !is_passing(&error) && !taken.is_empty() => error,
            other => return other.map(|count| settled + count),
        };
        let mut whole = Some(error);
        let mut halves = Halves::of(Vec::from_iter(taken));
        while let Some(runs) = halves.take() {
            let result = match whole.take() {
                Some(error) => Err(error),
                None => self.settle_some(Take::Only(&runs), &mut BTreeSet::new()).await,
            };
            let result = result.map(|count| settled += count);
            if let Some((run, error)) = halves.done(runs, result)? {
                rows_aside.add(&self.node, Kind::Offers, run, &error);
            }
        }
        Ok(settled)
    }

    /// One transaction; `taken` gets the runs whose settlements it took.
    async fn settle_some(self: &Arc<Self>, take: Take<'_>, taken: &mut BTreeSet<RunId>) -> Result<usize, EngineError> {
        let mut completion = self.node.completion("settle_offers").await?;
        let settlements = completion.take_offer_settlements(take).await?;
        if settlements.is_empty() {
            return Ok(0);
        }
        taken.extend(settlements.iter().map(|(run, _)| *run));
        let runs: Vec<RunId> = taken.iter().copied().collect();
        let contexts = self.runs.contexts.of(&runs).await?;
        let count = settlements.len();
        let mut outcomes = Vec::with_capacity(count);
        for (_, settlement) in settlements {
            let settlement = settlement?;
            let ended = settlement.ended;
            // A run that has ended in the meantime has nothing to settle.
            if contexts.contains_key(&ended.run) {
                outcomes.push(Applied {
                    ended,
                    end: End::plain(self.ending(settlement).await?),
                    finished_at: None,
                    node: None,
                });
            }
        }
        let after = self
            .runs
            .apply(&mut completion, &contexts, outcomes, &mut self.runs.grant())
            .await?;
        completion.commit().await?;
        self.runs.acted(after);
        self.node.signals.raise(Signal::Inbox);
        Ok(count)
    }

    async fn ending(&self, settlement: OfferSettlement) -> Result<Ending, EngineError> {
        if let Some((kind, message)) = settlement.error {
            return Ok(Ending::failed(kind, message));
        }
        // Asked first: millions of users may have answered, and each with many bytes.
        let bytes = self.node.store.offer_results_bytes(settlement.offer_id).await?;
        if bytes > JOINED_OUTPUT_BYTES_MAX as i64 {
            let said = format!("the results have {bytes} bytes together; the maximum is {JOINED_OUTPUT_BYTES_MAX}");
            return Ok(Ending::fatal(ErrorKind::Output, said));
        }
        let results = self.node.store.offer_results(settlement.offer_id).await?;
        let mut output = String::from("[");
        for (index, result) in results.iter().enumerate() {
            if index > 0 {
                output.push(',');
            }
            output.push_str(result.as_deref().unwrap_or("null"));
        }
        output.push(']');
        Ok(Ending::Succeeded(output))
    }
}
