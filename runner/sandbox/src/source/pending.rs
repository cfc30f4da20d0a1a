//! What a script waits for: timers, requests, queries, answers of the node.
//!
//! Each runs elsewhere, and many of them at once. While the script cannot continue, the attempt waits until the first of
//! them ends. What a call sends, and its answer, count for the attempt until the script takes the answer.

use super::answer::Answer;
use super::fetch::{self, Fetch};
use super::under_way::{Arrived, Ending, Raw, Timer};
use crate::effects::{Entry, check_key, check_value};
use crate::guest::{Guest, HostSide};
use crate::imports::elsewhere;
use crate::memory::Held;
use crate::rehearsal::{SqlAnswer, SqlStatement};
use crate::services::{BoxFuture, HostServices};
use crate::sql::check_size;
use crate::texts::well_formed;
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{Caller, Store};

/// For how many things a script may wait at once.
const MAX_PENDING: usize = 1_000;
/// Before a call with as many bytes, all that cancelled ones hold is given back.
const LARGE_CALL_BYTES: usize = 64 << 10;
/// The longest timer: longer than any attempt.
const MAX_TIMER: Duration = Duration::from_secs(30 * 24 * 3_600);

#[derive(Deserialize)]
struct Begun {
    id: u64,
    /// Older runtimes send it with timers of `AbortSignal.timeout`.
    #[serde(default)]
    idle: bool,
    #[serde(flatten)]
    call: Call,
}

#[derive(Deserialize)]
#[serde(tag = "op")]
enum Call {
    #[serde(rename = "timer")]
    Timer { ms: f64 },
    #[serde(rename = "fetch")]
    Fetch(Fetch),
    #[serde(rename = "upstream")]
    Upstream { task: String },
    #[serde(rename = "secret")]
    Secret { name: String },
    #[serde(rename = "state.get")]
    StateGet { key: String },
    #[serde(rename = "state.compareAndSet")]
    StateCompareAndSet {
        key: String,
        expected: Option<u64>,
        value: String,
    },
    #[serde(rename = "sql.query")]
    Query {
        connection: String,
        statement: String,
        params: String,
    },
    #[serde(rename = "sql.execute")]
    Execute {
        connection: String,
        statement: String,
        params: String,
    },
}

fn begun(guest: &Guest, message: &str) -> Result<Begun, String> {
    if guest.source.loading.is_some() {
        return Err("not available at the top level; call it in `run`".into());
    }
    serde_json::from_str(&well_formed(message)).map_err(|error| format!("the value cannot be sent: {error}"))
}

/// Refuses a call that is wrong in itself, before anything is kept of it.
fn check(host: &HostSide, call: &Call) -> Result<(), String> {
    match call {
        Call::StateGet { key } => check_key(key),
        Call::StateCompareAndSet { key, value, .. } => {
            check_key(key)?;
            check_value(value)
        }
        Call::Query { statement, params, .. } | Call::Execute { statement, params, .. } => {
            check_size(statement, params)
        }
        Call::Secret { name } => host.check_secret(name),
        Call::Timer { .. } | Call::Fetch(_) | Call::Upstream { .. } => Ok(()),
    }
}

/// The end of a call that was sent as this message.
fn ending_of(guest: &Guest, call: Call, message: &str) -> Result<Ending, String> {
    check(&guest.host, &call)?;
    let held = guest.guard.hold(message.len())?;
    future_of(guest, call, held)
}

/// A call of a guest that does nothing until it has the answer.
pub(super) async fn wait(caller: &mut Caller<'_, Guest>, message: &str) -> String {
    let future = begun(caller.data(), message).and_then(|begun| ending_of(caller.data(), begun.call, message));
    let result = match future {
        Ok(future) => future.await,
        Err(error) => Err(error),
    };
    let result = result.and_then(|arrived| laid_over(&mut caller.data_mut().host, arrived));
    Answer::new(None, result).text()
}

/// Begins a call. An error is thrown at the place of the call.
pub(super) fn start(guest: &mut Guest, message: &str) -> Result<(), String> {
    let begun = begun(guest, message)?;
    let pending = &guest.source.pending;
    if pending.handles.len() + pending.timers.len() >= MAX_PENDING {
        return Err(format!(
            "a script may wait for at most {MAX_PENDING} operations at the same time"
        ));
    }
    if let (Call::Timer { ms }, Some(stage)) = (&begun.call, &guest.host.stage) {
        let timer = Timer {
            until_nanos: stage.nanos().saturating_add(nanos(timer_of(*ms))),
            id: begun.id,
            idle: begun.idle,
        };
        guest.source.pending.timers.push(timer);
        return Ok(());
    }
    if message.len() >= LARGE_CALL_BYTES {
        guest.source.pending.forget_cancelled();
    }
    let future = ending_of(guest, begun.call, message)?;
    guest.source.pending.add(begun.id, begun.idle, future);
    Ok(())
}

/// Calls the node's services, on the node's runtime, and holds the answer; `bytes` is its size.
fn ask<T: Send + 'static>(
    host: &HostSide,
    mut held: Held,
    bytes: fn(&T) -> usize,
    call: impl for<'a> FnOnce(&'a dyn HostServices) -> BoxFuture<'a, Result<T, String>> + Send + 'static,
) -> BoxFuture<'static, Result<(T, Held), String>> {
    let (services, node) = (Arc::clone(&host.services), host.node.clone());
    Box::pin(async move {
        let asked = async move {
            let answer = call(services.as_ref()).await?;
            held.grow(bytes(&answer))?;
            Ok((answer, held))
        };
        elsewhere(&node, asked).await
    })
}

fn future_of(guest: &Guest, call: Call, mut held: Held) -> Result<Ending, String> {
    let host = &guest.host;
    Ok(match call {
        Call::Timer { ms } => {
            let (io, wait) = (host.io.clone(), wait_for(host, timer_of(ms)));
            Box::pin(async move {
                let waited = async move {
                    wait.await;
                    Ok(())
                };
                elsewhere(&io, waited).await?;
                Ok(Arrived::value(Value::Null, held))
            })
        }
        Call::Fetch(request) => {
            let (io, web) = (host.io.clone(), guest.web());
            Box::pin(async move {
                let sent = async move {
                    let answer = fetch::send(&web, request, &mut held).await?;
                    Ok(Arrived::value(answer, held))
                };
                elsewhere(&io, sent).await
            })
        }
        Call::Upstream { task } => text_of(ask(host, held, String::len, move |services| {
            Box::pin(async move { services.upstream(&task).await })
        })),
        Call::Secret { name } => text_of(ask(host, held, String::len, move |services| {
            Box::pin(async move { services.secret(&name).await })
        })),
        Call::StateGet { key } => {
            let stored = stored(host, held, &key);
            Box::pin(async move {
                let (stored, held) = stored.await?;
                let raw = Raw::Seen { key, stored };
                Ok(Arrived { raw, held })
            })
        }
        Call::StateCompareAndSet { key, expected, value } => {
            let stored = stored(host, held, &key);
            Box::pin(async move {
                let (stored, held) = stored.await?;
                let raw = Raw::Compared {
                    key,
                    expected,
                    value,
                    stored,
                };
                Ok(Arrived { raw, held })
            })
        }
        Call::Query {
            connection,
            statement,
            params,
        } => sql(host, held, asked(connection, statement, params, true))?,
        Call::Execute {
            connection,
            statement,
            params,
        } => sql(host, held, asked(connection, statement, params, false))?,
    })
}

/// An answer that is a text.
fn text_of(answer: BoxFuture<'static, Result<(String, Held), String>>) -> Ending {
    Box::pin(async move {
        let (text, held) = answer.await?;
        Ok(Arrived::value(Value::String(text), held))
    })
}

fn stored(host: &HostSide, held: Held, key: &str) -> BoxFuture<'static, Result<(Entry, Held), String>> {
    let key = key.to_owned();
    let bytes = |entry: &Entry| entry.as_ref().map_or(0, |(value, _)| value.len());
    ask(host, held, bytes, move |services| {
        Box::pin(async move { services.state_get(&key).await })
    })
}

fn asked(connection: String, statement: String, params: String, rows: bool) -> SqlStatement {
    SqlStatement {
        connection,
        statement,
        params,
        rows,
    }
}

/// A statement. Its rows are held as soon as they are complete; until then, their number is bounded by that of the
/// connections.
fn sql(host: &HostSide, mut held: Held, asked: SqlStatement) -> Result<Ending, String> {
    let (answer, io) = (host.begin_statement(asked)?, host.io.clone());
    // In a rehearsal, an answer that is already there comes at once, so that the order of answers is always the same.
    let apart = host.exchanges.is_none();
    Ok(Box::pin(async move {
        let answered = async move {
            let value = match answer.await? {
                SqlAnswer::Rows(rows) => {
                    held.grow(rows.len())?;
                    Value::String(rows)
                }
                SqlAnswer::Count(count) => json!(count),
            };
            Ok(Arrived::value(value, held))
        };
        match apart {
            true => elsewhere(&io, answered).await,
            false => answered.await,
        }
    }))
}

fn timer_of(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1_000.0)
        .unwrap_or_default()
        .min(MAX_TIMER)
}

/// Waits by the attempt's clock.
pub(super) fn wait_for(host: &HostSide, wait: Duration) -> impl Future<Output = ()> + Send + use<> {
    let stage = host.stage.clone();
    async move {
        match stage {
            Some(stage) => {
                let until = stage.nanos().saturating_add(nanos(wait));
                stage.wait_until(until).await;
            }
            None => tokio::time::sleep(wait).await,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits for the next end, and returns it in the form for the script's `event`. `None`: nothing will end.
pub(super) async fn next(store: &mut Store<Guest>) -> Option<String> {
    loop {
        let pending = &mut store.data_mut().source.pending;
        if !pending.is_awaited() {
            return None;
        }
        if pending.handles.is_empty()
            && let Some(timer) = pending.take_timer()
        {
            let host = &store.data().host;
            if let Some(stage) = host.stage.clone() {
                let _ = elsewhere(&host.io, async move {
                    stage.wait_until(timer.until_nanos).await;
                    Ok::<(), String>(())
                })
                .await;
            }
            return Some(Answer::new(Some(timer.id), Ok(Value::Null)).text());
        }
        let futures = pending.futures.as_mut()?;
        // The end of a cancelled one is not reported.
        let Ok((id, result)) = futures.next().await? else {
            pending.cancelled = pending.cancelled.saturating_sub(1);
            continue;
        };
        let guest = store.data_mut();
        if guest.source.pending.handles.remove(&id).is_none() {
            continue;
        }
        let result = result.and_then(|arrived| laid_over(&mut guest.host, arrived));
        return Some(Answer::new(Some(id), result).text());
    }
}

/// Reads see the attempt's own writes.
fn laid_over(host: &mut HostSide, arrived: Arrived) -> Result<Value, String> {
    let Arrived { raw, held: _held } = arrived;
    match raw {
        Raw::Value(value) => Ok(value),
        Raw::Seen { key, stored } => Ok(match host.effects.seen(&key, stored) {
            Some((value, version)) => json!({"value": value, "version": version}),
            None => Value::Null,
        }),
        Raw::Compared {
            key,
            expected,
            value,
            stored,
        } => {
            let seen = host.effects.seen(&key, stored);
            host.effects.compare_and_set(key, expected, value, &seen)?;
            Ok(Value::Null)
        }
    }
}

/// The operations that are messages.
#[cfg(test)]
pub(super) fn operations() -> Vec<String> {
    named::<Call>()
}

/// The names of all variants of a message, from serde's error.
#[cfg(test)]
pub(super) fn named<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let error = serde_json::from_str::<T>(r#"{"op": "?"}"#)
        .map(drop)
        .unwrap_err()
        .to_string();
    let (_, known) = error.split_once("expected one of").unwrap();
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
