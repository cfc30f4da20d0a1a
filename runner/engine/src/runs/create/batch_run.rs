//! Runs that bring batches of messages to a queue's workers.
//!
//! A topic that sends to a queue has its own group, which Heddle keeps ([`heddle_domain::topic::group_name`]). A batch
//! becomes a run of it, with a key made of the batch's id; its params are `{topic, messages}`. This module contains what is
//! special about such a run: its worker does not get messages that were cancelled while it waited, and may say which
//! messages failed.

use std::borrow::Cow;
use std::collections::HashSet;

use heddle_domain::id::RunId;
use heddle_domain::run::runs_again;
use heddle_domain::state::Trigger;
use heddle_domain::topic::{Topic, topic_of};
use heddle_domain::{Fault, Faults};
use heddle_store::live::ClaimKey;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::node::Node;
use crate::{EngineError, RunContext};

/// The spec of the group of a topic that sends to a queue.
pub fn topic_group(name: &str, topic: &Topic) -> Value {
    let timeout = format!("{}ms", topic.spec.timeout.millis());
    json!({
        "description": format!("Carries the batches of the topic {name}. Created by Heddle."),
        "tasks": {"batch": {"queue": topic.spec.queue, "timeout": timeout}},
    })
}

/// Refuses to repeat a run of this group if it contains a batch of messages ([`runs_again`]).
pub(crate) fn check_again(group: &str) -> Result<(), String> {
    match runs_again(group) {
        true => Ok(()),
        false => Err(
            "the run carries a batch of messages of a topic, so it does not run again; the topic sends failed \
             messages again by itself, according to its `retry`"
                .into(),
        ),
    }
}

/// Refuses to set the state of a task run of this group by hand if its run contains a batch of messages. A success would
/// say of all messages that they were sent, whatever the output says, and what counts as sent is never sent again.
pub(crate) fn check_set_by_hand(group: &str) -> Result<(), String> {
    match runs_again(group) {
        true => Ok(()),
        false => Err(
            "the run carries a batch of messages of a topic, so the state of its task run cannot be set: only the \
             worker knows which messages were sent. To end the batch, cancel the run; the topic then sends its \
             messages again, according to its `retry`"
                .into(),
        ),
    }
}

/// A batch in the form of params, with messages of any form.
#[derive(Serialize, Deserialize)]
pub(crate) struct BatchParams<'a, M> {
    #[serde(borrow)]
    pub(crate) topic: Cow<'a, str>,
    pub(crate) messages: Vec<M>,
}

#[derive(Deserialize)]
struct MessageId {
    id: Uuid,
}

/// Params of a run without the messages that are not in `kept`; `None`: nothing changes.
fn without_others(run: RunId, params: &str, kept: &[Uuid]) -> Result<Option<String>, EngineError> {
    let unreadable = |error: serde_json::Error| EngineError::unreadable_in(format!("the params of run {run}"), error);
    let batch: BatchParams<'_, &RawValue> = serde_json::from_str(params).map_err(unreadable)?;
    if batch.messages.len() == kept.len() {
        return Ok(None);
    }
    let kept: HashSet<&Uuid> = kept.iter().collect();
    let mut messages = Vec::with_capacity(kept.len());
    for message in batch.messages {
        let MessageId { id } = serde_json::from_str(message.get()).map_err(unreadable)?;
        if kept.contains(&id) {
            messages.push(message);
        }
    }
    let cut = BatchParams {
        topic: batch.topic,
        messages,
    };
    serde_json::to_string(&cut).map(Some).map_err(unreadable)
}

/// Which messages failed, by a worker's output: an object's `failed`. Nothing else in the output is interpreted: a
/// message that is wrongly taken as sent is never tried again.
pub(crate) fn failed_of(output: &Value) -> Result<Vec<Uuid>, Faults> {
    const SHAPE: &str = "the output must name the failed messages as `{failed: [id]}`";
    let named = match output {
        Value::Object(fields) => match fields.get("failed") {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids,
            Some(_) => return Err(Fault::at("/output/failed", SHAPE).into()),
        },
        Value::Array(_) => return Err(Fault::at("/output", SHAPE).into()),
        _ => return Ok(Vec::new()),
    };
    let mut faults = Faults::default();
    let mut failed = Vec::with_capacity(named.len());
    for (index, id) in named.iter().enumerate() {
        match id.as_str().map(Uuid::parse_str) {
            Some(Ok(id)) => failed.push(id),
            _ => faults.add(format!("/output/failed/{index}"), "expected the id of a message"),
        }
    }
    faults.or(failed)
}

/// The messages that a worker's output names as failed.
fn named_in(output: &str) -> Result<Vec<Uuid>, Faults> {
    let output: Value = serde_json::from_str(output).map_err(|error| Fault::at("/output", error.to_string()))?;
    failed_of(&output)
}

/// The messages of a batch with these params.
fn messages_in(params: &str) -> Result<Vec<Uuid>, Faults> {
    let batch: BatchParams<'_, MessageId> = serde_json::from_str(params).map_err(|error| {
        let why = format!("the messages of this batch are not known, because the run's params cannot be read: {error}");
        Fault::at("/output/failed", why)
    })?;
    Ok(batch.messages.into_iter().map(|message| message.id).collect())
}

/// Refuses messages that are not among those of the batch.
fn check_named(failed: &[Uuid], messages: &[Uuid]) -> Result<(), Faults> {
    let messages: HashSet<&Uuid> = messages.iter().collect();
    let mut faults = Faults::default();
    for (index, _) in failed.iter().enumerate().filter(|(_, id)| !messages.contains(id)) {
        faults.add(
            format!("/output/failed/{index}"),
            "this batch has no message with this id",
        );
    }
    faults.or(())
}

/// The topic and the batch that a run carries, if a node has made it for one. (A user's group may have a topic's name: it is
/// from before these names were reserved.)
fn batch_of(context: &RunContext) -> Option<(i32, Uuid)> {
    let facts = &context.facts;
    if facts.trigger != Trigger::Task || facts.has_parent {
        return None;
    }
    Some((
        topic_of(&context.revision.group_name)?,
        facts.key.as_deref()?.parse().ok()?,
    ))
}

/// The params that a worker gets: of a batch of messages, without those that were cancelled while it waited in the queue.
/// `None`: no message is left. If they cannot be read, this is an error: the worker must not get messages that were
/// cancelled.
pub(crate) async fn cut_batch(
    node: &Node,
    context: &RunContext,
    params: String,
) -> Result<Option<String>, EngineError> {
    let Some((topic, batch)) = batch_of(context) else {
        return Ok(Some(params));
    };
    // A batch exists before its run, and until its messages have ended. So without it nothing is to be sent: they were
    // cancelled, or sent in another way, after a node had died that could not note the run; or their topic was deleted just
    // when a node put the batch into the queue, so nobody cancelled its run.
    let Some(kept) = node.store.cut_queue_batch(topic, batch).await? else {
        return Ok(None);
    };
    Ok(match kept.is_empty() {
        true => None,
        false => Some(without_others(context.facts.id, &params, &kept)?.unwrap_or(params)),
    })
}

/// Refuses the output of a worker for a batch if it cannot be read, or if it names messages that the worker does not have.
/// It may name failed messages: these would count as sent, and be lost. The run's params also contain messages that were
/// cancelled before the claim, so the batch itself says which messages the worker has.
pub(crate) async fn check_batch_output(
    node: &Node,
    context: &RunContext,
    claim: &ClaimKey,
    output: &str,
) -> Result<Result<(), Faults>, EngineError> {
    let Some((topic, batch)) = batch_of(context) else {
        return Ok(Ok(()));
    };
    let failed = match named_in(output) {
        Ok(failed) if failed.is_empty() => return Ok(Ok(())),
        Ok(failed) => failed,
        Err(faults) => return Ok(Err(faults)),
    };
    let messages = match node.store.held_of_queue_batch(topic, batch, claim).await? {
        Some(held) => Ok(held),
        // The worker does not hold the batch any more, which is said when its claim is to end.
        None => messages_in(&context.facts.params),
    };
    Ok(messages.and_then(|messages| check_named(&failed, &messages)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_read_or_refused() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let params = json!({"topic": "t", "messages": [{"id": one, "payload": 1}, {"id": other, "payload": 2}]});
        let messages = messages_in(&params.to_string()).expect("messages");
        let check = |output: Value, pointers: &[&str]| {
            let checked = named_in(&output.to_string()).and_then(|failed| check_named(&failed, &messages));
            let found = match checked {
                Ok(()) => Vec::new(),
                Err(faults) => faults.0.into_iter().map(|fault| fault.pointer).collect(),
            };
            assert_eq!(found, pointers, "{output}");
        };
        for fine in [
            json!(null),
            json!("done"),
            json!({}),
            json!({"sent": 2}),
            json!({"failed": null}),
            json!({"failed": []}),
            json!({"failed": [one, one.to_string().to_uppercase(), other]}),
        ] {
            check(fine, &[]);
        }
        check(json!([one]), &["/output"]);
        check(json!([]), &["/output"]);
        check(json!({"failed": true}), &["/output/failed"]);
        check(json!({"failed": {one.to_string(): "why"}}), &["/output/failed"]);
        check(json!({"failed": [one, {"id": other}]}), &["/output/failed/1"]);
        check(json!({"failed": [1, "x"]}), &["/output/failed/0", "/output/failed/1"]);
        check(json!({"failed": [one, Uuid::from_u128(3)]}), &["/output/failed/1"]);
        let faults = messages_in("{}").unwrap_err();
        assert_eq!(faults.0[0].pointer, "/output/failed", "the params are unreadable");
    }

    #[test]
    fn what_was_cancelled_is_cut_out() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let params =
            json!({"topic": "t", "messages": [{"id": one, "payload": [1e300]}, {"id": other, "payload": "é"}]});
        let text = params.to_string();
        let run = RunId(Uuid::from_u128(7));
        let cut = |params: &str, kept: &[Uuid]| without_others(run, params, kept);
        assert_eq!(cut(&text, &[one, other]).unwrap(), None);
        let left: Value = serde_json::from_str(&cut(&text, &[other]).unwrap().unwrap()).unwrap();
        assert_eq!(left, json!({"topic": "t", "messages": [{"id": other, "payload": "é"}]}));
        // The order of the fields does not matter, nor how the name is written.
        let stored = r#"{"messages":[],"topic":"\u0074"}"#;
        let left: Value = serde_json::from_str(&cut(stored, &[one]).unwrap().unwrap()).unwrap();
        assert_eq!(left, json!({"topic": "t", "messages": []}));
        for unreadable in [
            "{}",
            "",
            r#"{"topic": "t", "messages": 1}"#,
            r#"{"topic": "t", "messages": [{"id": 1}, 2]}"#,
        ] {
            let error = cut(unreadable, &[one]).expect_err(unreadable);
            let told = heddle_domain::Chain(&error).to_string();
            assert!(told.contains(&format!("the params of run {run}")), "{told}");
        }
    }
}
