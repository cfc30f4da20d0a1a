//! What a script waits for: timers, requests, queries, answers of the node.
//!
//! Each runs elsewhere, and any number of them at once. While the script cannot continue, the attempt waits until the
//! first of them ends.

use super::answer::Answer;
use super::fetch::{self, Fetch};
use super::under_way::{Raw, Timer};
use crate::effects::Entry;
use crate::guest::{Guest, HostSide};
use crate::imports::elsewhere;
use crate::rehearsal::{SqlAnswer, SqlStatement};
use crate::services::{BoxFuture, HostServices};
use crate::texts::well_formed;
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{Caller, Store};

/// For how many things a script may wait at once.
const MAX_PENDING: usize = 1_000;
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

/// A call of a guest that does nothing until it has the answer.
pub(super) async fn wait(caller: &mut Caller<'_, Guest>, message: &str) -> String {
    let future = begun(caller.data(), message).and_then(|begun| future_of(caller.data(), begun.call));
    let result = match future {
        Ok(future) => future.await,
        Err(error) => Err(error),
    };
    let result = result.and_then(|raw| laid_over(&mut caller.data_mut().host, raw));
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
    let future = future_of(guest, begun.call)?;
    guest.source.pending.add(begun.id, begun.idle, future);
    Ok(())
}

/// Calls the node's services, on the node's runtime.
fn ask<T: Send + 'static>(
    host: &HostSide,
    call: impl for<'a> FnOnce(&'a dyn HostServices) -> BoxFuture<'a, Result<T, String>> + Send + 'static,
) -> BoxFuture<'static, Result<T, String>> {
    let (services, node) = (Arc::clone(&host.services), host.node.clone());
    Box::pin(async move { elsewhere(&node, async move { call(services.as_ref()).await }).await })
}

fn future_of(guest: &Guest, call: Call) -> Result<BoxFuture<'static, Result<Raw, String>>, String> {
    let host = &guest.host;
    Ok(match call {
        Call::Timer { ms } => {
            let (io, wait) = (host.io.clone(), wait_for(host, timer_of(ms)));
            Box::pin(async move {
                elsewhere(&io, async move {
                    wait.await;
                    Ok(Raw::Value(Value::Null))
                })
                .await
            })
        }
        Call::Fetch(request) => {
            let (io, web) = (host.io.clone(), guest.web());
            Box::pin(async move {
                let sent = async move { fetch::send(&web, request).await };
                elsewhere(&io, sent).await.map(Raw::Value)
            })
        }
        Call::Upstream { task } => {
            let output = ask(host, move |services| {
                Box::pin(async move { services.upstream(&task).await })
            });
            Box::pin(async move { Ok(Raw::Value(json!(output.await?))) })
        }
        Call::Secret { name } => {
            host.check_secret(&name)?;
            let secret = ask(host, move |services| {
                Box::pin(async move { services.secret(&name).await })
            });
            Box::pin(async move { Ok(Raw::Value(json!(secret.await?))) })
        }
        Call::StateGet { key } => {
            let stored = stored(host, &key)?;
            Box::pin(async move {
                Ok(Raw::Seen {
                    key,
                    stored: stored.await?,
                })
            })
        }
        Call::StateCompareAndSet { key, expected, value } => {
            let stored = stored(host, &key)?;
            Box::pin(async move {
                let stored = stored.await?;
                Ok(Raw::Compared {
                    key,
                    expected,
                    value,
                    stored,
                })
            })
        }
        Call::Query {
            connection,
            statement,
            params,
        } => sql(host, connection, statement, params, true)?,
        Call::Execute {
            connection,
            statement,
            params,
        } => sql(host, connection, statement, params, false)?,
    })
}

fn stored(host: &HostSide, key: &str) -> Result<BoxFuture<'static, Result<Entry, String>>, String> {
    crate::effects::check_key(key)?;
    let key = key.to_owned();
    Ok(ask(host, move |services| {
        Box::pin(async move { services.state_get(&key).await })
    }))
}

fn sql(
    host: &HostSide,
    connection: String,
    statement: String,
    params: String,
    rows: bool,
) -> Result<BoxFuture<'static, Result<Raw, String>>, String> {
    let answer = host.begin_statement(SqlStatement {
        connection,
        statement,
        params,
        rows,
    })?;
    Ok(Box::pin(async move {
        Ok(Raw::Value(match answer.await? {
            SqlAnswer::Rows(rows) => json!(rows),
            SqlAnswer::Count(count) => json!(count),
        }))
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
            continue;
        };
        let guest = store.data_mut();
        if guest.source.pending.handles.remove(&id).is_none() {
            continue;
        }
        let result = result.and_then(|raw| laid_over(&mut guest.host, raw));
        return Some(Answer::new(Some(id), result).text());
    }
}

/// Reads see the attempt's own writes.
fn laid_over(host: &mut HostSide, raw: Raw) -> Result<Value, String> {
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
