//! The ends of offers that task runs have made: the end of an offer is the end of its attempt.

use std::sync::Arc;

use heddle_domain::run::JOINED_OUTPUT_BYTES_MAX;
use heddle_domain::state::ErrorKind;
use heddle_store::offer::OfferSettlement;

use super::Dispatch;
use crate::EngineError;
use crate::node::signals::Signal;
use crate::runs::ending::{Applied, End, Ending};

impl Dispatch {
    /// Ends the attempts whose offers have ended; returns how many.
    pub(super) async fn settle_offers(self: &Arc<Self>) -> Result<usize, EngineError> {
        let mut completion = self.node.completion("settle_offers").await?;
        let settlements = completion.take_offer_settlements().await?;
        let mut runs: Vec<_> = settlements.iter().map(|settlement| settlement.ended.run).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = self.runs.contexts.of(&runs).await?;
        let count = settlements.len();
        let mut outcomes = Vec::with_capacity(count);
        for settlement in settlements {
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
