//! Claims: from the requests of workers to the engine's types. A token is 34 bytes in base64: the fence, and the
//! attempt, so that nothing must be looked up before the claim's rows are taken.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_api::Claim;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_engine::{Beat, ClaimEnd, ClaimRefused, ClaimRequest, Engine};
use heddle_store::live::ClaimKey;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Refusal;

/// What a worker does with a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClaimAction {
    /// Extends it, by what it says or by what the claim said, with a report.
    Heartbeat {
        /// What to extend it by.
        lease: Option<Duration>,
        /// How far the worker has come, and lines for the log.
        report: heddle_store::live::ClaimReport,
    },
    /// It is done, with an output.
    Complete(Value),
    Fail {
        /// The error message that people read.
        message: String,
        /// No retry, whatever the task's policy.
        fatal: bool,
        /// The next attempt starts no earlier than after this duration.
        retry_after: Option<Duration>,
    },
    /// Another worker shall do it.
    Release,
}

/// A claim that a worker speaks of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimCall {
    pub(crate) id: Uuid,
    pub(crate) token: String,
    pub(crate) action: ClaimAction,
}

/// The length of a token, before its encoding.
const TOKEN_BYTES: usize = 34;

fn token_of(claim: &ClaimKey) -> String {
    let mut bytes = Vec::with_capacity(TOKEN_BYTES);
    bytes.extend_from_slice(&claim.lease.to_be_bytes());
    bytes.extend_from_slice(claim.run.0.as_bytes());
    bytes.extend_from_slice(&claim.at.key.task.to_be_bytes());
    bytes.extend_from_slice(&claim.at.key.item_number().to_be_bytes());
    bytes.extend_from_slice(&claim.at.attempt.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn key_of(id: Uuid, token: &str) -> Option<ClaimKey> {
    let bytes: [u8; TOKEN_BYTES] = URL_SAFE_NO_PAD.decode(token).ok()?.try_into().ok()?;
    let (lease, rest) = bytes.split_first_chunk::<8>()?;
    let (run, rest) = rest.split_first_chunk::<16>()?;
    let (task, rest) = rest.split_first_chunk::<2>()?;
    let (item, rest) = rest.split_first_chunk::<4>()?;
    let attempt = rest.first_chunk::<4>()?;
    let lease = i64::from_be_bytes(*lease);
    let key = TaskKey::from_numbers(i16::from_be_bytes(*task), i32::from_be_bytes(*item));
    let at = AttemptKey {
        key,
        attempt: u32::from_be_bytes(*attempt),
    };
    // Nodes' leases are positive: no token of a worker is one.
    (lease < 0).then_some(ClaimKey {
        id,
        run: RunId(Uuid::from_bytes(*run)),
        at,
        lease,
    })
}

pub(crate) async fn claim(engine: &Engine, request: &ClaimRequest) -> Result<Vec<Claim<Box<RawValue>>>, Refusal> {
    let claims = engine.claim(request).await?;
    Ok(claims
        .into_iter()
        .map(|claim| Claim {
            id: claim.claim.id,
            token: token_of(&claim.claim),
            run: claim.claim.run.0,
            group: claim.group,
            task: claim.task,
            item: claim.claim.at.key.item,
            attempt: claim.claim.at.attempt,
            params: claim.params,
            context: claim.context,
            lease_expires_at: claim.lease_expires_at.into(),
        })
        .collect())
}

fn refusal(refused: ClaimRefused) -> Refusal {
    match refused {
        ClaimRefused::Old(detail) => Refusal::Conflict { detail, existing: None },
        ClaimRefused::TooLarge(bytes_max) => Refusal::TooLarge {
            what: "output",
            bytes_max,
        },
        ClaimRefused::Invalid(faults) => Refusal::Invalid(faults),
        ClaimRefused::Engine(error) => error.into(),
    }
}

fn wrong() -> Refusal {
    Refusal::Conflict {
        detail: "the token is wrong".into(),
        existing: None,
    }
}

/// For a caller with a limited token: which claims belong to other queues, by the database; claims that are gone belong
/// to nobody.
async fn forbidden(engine: &Engine, keys: &[ClaimKey], queues: &[String]) -> Result<HashMap<Uuid, String>, Refusal> {
    if queues.is_empty() {
        return Ok(HashMap::new());
    }
    let found = engine.store().queues_of_claims(keys).await?;
    Ok(found.into_iter().filter(|(_, queue)| !queues.contains(queue)).collect())
}

pub(crate) async fn on_claims(
    engine: &Engine,
    calls: Vec<ClaimCall>,
    queues: Vec<String>,
) -> Result<Vec<Result<Option<Time>, Refusal>>, Refusal> {
    let count = calls.len();
    let keyed: Vec<(usize, ClaimKey, ClaimAction)> = calls
        .into_iter()
        .enumerate()
        .filter_map(|(index, call)| Some((index, key_of(call.id, &call.token)?, call.action)))
        .collect();
    let keys: Vec<ClaimKey> = keyed.iter().map(|call| call.1).collect();
    let forbidden = forbidden(engine, &keys, &queues).await?;
    let mut answers: Vec<Result<Option<Time>, Refusal>> = (0..count).map(|_| Err(wrong())).collect();
    let (mut beats, mut ends) = (Vec::new(), Vec::new());
    for (index, key, action) in keyed {
        if let Some(queue) = forbidden.get(&key.id) {
            answers[index] = Err(Refusal::Forbidden(format!("this token is not for the queue `{queue}`")));
            continue;
        }
        match action {
            ClaimAction::Heartbeat { lease, report } => {
                let claim = key;
                beats.push((index, Beat { claim, lease, report }));
            }
            ClaimAction::Complete(output) => ends.push((index, (key, ClaimEnd::Completed(output.to_string())))),
            ClaimAction::Fail {
                message,
                fatal,
                retry_after,
            } => {
                ends.push((
                    index,
                    (
                        key,
                        ClaimEnd::Failed {
                            message,
                            fatal,
                            retry_after,
                        },
                    ),
                ));
            }
            ClaimAction::Release => ends.push((index, (key, ClaimEnd::Released))),
        }
    }
    if !beats.is_empty() {
        let (indexes, beats): (Vec<usize>, Vec<_>) = beats.into_iter().unzip();
        for (index, answer) in indexes.into_iter().zip(engine.heartbeat(beats).await?) {
            answers[index] = answer.map(Some).map_err(refusal);
        }
    }
    if !ends.is_empty() {
        let (indexes, ends): (Vec<usize>, Vec<_>) = ends.into_iter().unzip();
        for (index, answer) in indexes.into_iter().zip(engine.end_claims(ends).await) {
            answers[index] = answer.map(|()| None).map_err(refusal);
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_its_claim() {
        for (item, lease) in [(None, -1), (Some(9_999), i64::MIN)] {
            let at = AttemptKey {
                key: TaskKey { task: 17, item },
                attempt: 3,
            };
            let claim = ClaimKey {
                id: Uuid::from_u128(1),
                run: RunId(Uuid::from_u128(7)),
                at,
                lease,
            };
            assert_eq!(key_of(claim.id, &token_of(&claim)), Some(claim));
        }
        for wrong in ["", "x", "hdl_", &"A".repeat(43), &"_".repeat(44)] {
            assert_eq!(key_of(Uuid::from_u128(1), wrong), None, "{wrong}");
        }
    }
}
