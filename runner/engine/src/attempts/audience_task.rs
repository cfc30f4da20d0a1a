//! Tasks of the executor `audience`: an attempt becomes an offer. The end of the offer is the end of the attempt.
//!
//! The offer belongs to the task run, not to the attempt. (The task run of an item is its number and its value: when a map is
//! expanded again, and the number has got another value, the attempt makes another offer.) When a user fails, the attempt
//! fails and uses up a retry, but what others have completed or still hold stays. The next attempt opens the offer again,
//! also for the users who did not complete it. The row in *running* has lease 0, as for sub-runs. When it is gone (a cancel,
//! an override), nobody is given the offer any more, and the reaper withdraws it.

use std::sync::Arc;

use heddle_domain::bounded::or_trouble;
use heddle_domain::dispatch::{Offer, OfferSpec, check_params, check_user};
use heddle_domain::run::AttemptKey;
use heddle_domain::run::offer_name::name_of_task_run;
use heddle_domain::schema::Schema;
use heddle_domain::spec::{AudienceSpec, NESTING_MAX};
use heddle_domain::template::Scope;
use heddle_domain::{Faults, Time, framed};
use heddle_store::live::EndedAttempt;
use heddle_store::offer::{TaskOffer, written_out};
use serde_json::{Map, Value, json};

use super::Attempts;
use crate::runs::ending::{Ending, Step};
use crate::{EngineError, RunContext};

/// The offer of an attempt.
fn offer_of(asked: &AudienceSpec, audience: &str, params: Map<String, Value>, now: Time) -> Result<Offer, Faults> {
    let spec = json!({
        "kind": "once",
        "audience": audience,
        "starts_at": now.to_rfc3339(),
        "template": asked.template,
        "params": params,
        "dispatch_times": asked.dispatch_times.clone().unwrap_or(json!(1)),
        "mode": asked.mode.as_deref().unwrap_or("single"),
        "max_hold": asked.max_hold,
    });
    Offer::compile(heddle_domain::spec::read::<OfferSpec>(&spec)?, now)
}

impl Attempts {
    /// What an attempt of an audience task offers, and to whom.
    pub(crate) async fn prepare_offer(
        &self,
        asked: &AudienceSpec,
        scope: &Scope,
        params: Map<String, Value>,
    ) -> Step<Offer> {
        let invalid = |said: String| -> Step<Offer> { Err(Ending::invalid(said).into()) };
        let audience = match or_trouble(|| self.templates.render(&asked.audience, scope))? {
            Ok(Value::String(audience)) => audience,
            Ok(other) => return invalid(format!("audience: {other} is not an audience")),
            Err(error) => return invalid(format!("audience: {error}")),
        };
        if let Err(detail) = check_user(&audience) {
            return invalid(format!("audience: {detail}"));
        }
        // The database gives offers back as values, with the bound that an offer over HTTP has: its params are one level below.
        if framed::is_deeper(&params, NESTING_MAX - 1) {
            return invalid(format!("params: nested more than {} levels deep", NESTING_MAX - 1));
        }
        if let Err(detail) = check_params(&params) {
            return invalid(detail);
        }
        if let Some(template) = &asked.template {
            let Some(found) = self.node.store.template(template.as_str()).await? else {
                return invalid(format!("there is no template `{template}`"));
            };
            let params = Value::Object(params.clone());
            match or_trouble(|| Schema::compile(&found.schema).map(|schema| schema.check(&params)))? {
                Ok(faults) if faults.is_empty() => {}
                Ok(faults) => return invalid(format!("params: {faults}")),
                Err(error) => return invalid(format!("template `{template}`: {error}")),
            }
        }
        match offer_of(asked, &audience, params, self.node.now()) {
            Ok(offer) => Ok(offer),
            Err(faults) => invalid(format!("audience: {faults}")),
        }
    }

    /// Gives an attempt to its offer. From then on the offer holds the attempt, and this node reports nothing.
    pub(crate) async fn hand_to_offer(
        self: &Arc<Self>,
        context: &RunContext,
        at: AttemptKey,
        offer: Offer,
        item_hash: Option<Vec<u8>>,
    ) -> Result<(), EngineError> {
        let now = self.node.now();
        let run = context.facts.id;
        let task = &context.revision.plan.tasks[at.key.task as usize];
        let handed = TaskOffer {
            ended: EndedAttempt {
                run,
                at,
                lease: self.node.lease(),
            },
            name: name_of_task_run(run, at.key),
            spec: written_out(&offer),
            item_hash,
            overdue_at: task
                .timeout
                .and_then(|timeout| Some(now + chrono::TimeDelta::from_std(timeout).ok()?)),
            offer,
        };
        if self.node.store.hand_to_offer(&handed, now).await? {
            self.audiences.changed(&handed.offer.audience);
        }
        Ok(())
    }
}
