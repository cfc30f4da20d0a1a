//! Scripts: compiling, fetching, trying out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use heddle_api::{Failure, Invocation, InvocationLog};
use heddle_domain::bounded::or_trouble;
use heddle_domain::state::{AttemptState, ErrorKind, LogLevel};
use heddle_domain::{Clock, Fault, Name, Time};
use heddle_engine::scripts::{
    AttemptHandle, AttemptRequest, BoxFuture, CompileError, Compiled, Context, Grants, HostServices, Interval,
    Language, Limits, LogLine, MAX_SOURCE_BYTES, Outcome, Uploaded, digest_of,
};
use heddle_engine::{Engine, EngineError, ScriptFacts, outbound};
use heddle_store::StoreError;
use heddle_store::change::{By, Put};
use heddle_store::script::{ScriptRow, ScriptVersionRow, ScriptWrite};
use parking_lot::Mutex;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use url::Url;

use super::Refusal;
use super::not_found;
use super::streams::fields_of;

/// A script to be run once, without a run.
#[derive(Clone, Debug)]
pub(crate) struct InvokeSpec {
    pub(crate) script: String,
    pub(crate) version: i32,
    /// Script defaults below these.
    pub(crate) params: Value,
    /// How long it may take.
    pub(crate) timeout: Duration,
}

/// How long an address may take to give a script.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

fn invalid(pointer: &str, detail: impl Into<String>) -> Refusal {
    Refusal::Invalid(Fault::at(pointer, detail).into())
}

/// `at`: when these bytes were uploaded for the first time, which may be now.
pub(crate) async fn compile(
    engine: &Engine,
    bytes: Bytes,
    at: Time,
    language: Option<Language>,
    actor: String,
) -> Result<Compiled, Refusal> {
    let compiled = match language {
        Some(language) => {
            engine
                .sandbox()
                .compile_uploaded(language, Uploaded { bytes, at })
                .await
        }
        None => engine.sandbox().compile_for(Some(&actor), bytes).await,
    };
    if let (Ok(_), Some(language)) = (&compiled, language) {
        // Before there is a version that names it.
        engine.keep_runtime(language).await?;
    }
    compiled.map_err(not_compiled)
}

/// Stores a compiled script as a version of this name.
pub(crate) async fn put(
    engine: &Engine,
    by: By<'_>,
    name: &Name,
    bytes: &[u8],
    compiled: Compiled,
    activate: bool,
) -> Result<Put<(ScriptRow, ScriptVersionRow)>, StoreError> {
    let runtime = compiled.runtime.as_ref();
    let shown = runtime.map(ToString::to_string);
    let defaults = Value::Object(compiled.defaults);
    let write = ScriptWrite {
        name,
        digest: compiled.digest.trim_start_matches("sha256:"),
        bytes,
        world: compiled.world.as_str(),
        runtime: shown.as_deref(),
        runtime_tag: runtime.map(|runtime| runtime.tag.as_str()),
        exports: &compiled.exports,
        params_schema: compiled.params_schema.as_ref(),
        defaults: &defaults,
        description: compiled.description.as_deref().unwrap_or_default(),
        activate,
    };
    engine.store().put_script(by, write).await
}

fn not_compiled(error: CompileError) -> Refusal {
    match error {
        CompileError::TooLarge(bytes_max) => Refusal::TooLarge {
            what: "body",
            bytes_max,
        },
        CompileError::NotNow(stopped) => EngineError::from(stopped).into(),
        CompileError::Source(fault) => Refusal::Source(fault),
        CompileError::Internal(detail) => Refusal::Internal(detail.into()),
        error => invalid("", error.to_string()),
    }
}

/// Waits until a text of this language needs no other compilation than its own.
pub(crate) async fn prepare(engine: &Engine, language: Language) -> Result<(), Refusal> {
    let prepared = engine.sandbox().prepare_interpreter(language).await;
    prepared.map_err(not_compiled)
}

/// Whether a text of which nobody knows what it exports takes batches of messages.
pub(crate) async fn consumes(engine: &Engine, script: &str, version: i32) -> Result<bool, Refusal> {
    let facts = engine
        .catalog()
        .script(script, Some(version))
        .await?
        .ok_or_else(|| not_found("script", script))?;
    let loaded = engine.load_script(&facts).await?;
    Ok(loaded.map_err(|why| invalid("/script", why))?.consumes())
}

/// The media type that a `Content-Type` names, without its parameters, in lower case; empty if there is none.
pub(crate) fn media_type(content_type: Option<&HeaderValue>) -> String {
    let text = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Downloads a script, and tells its language: that of the answer's media type, or of the end of the URL's path, because
/// many servers give source as plain text.
pub(crate) async fn fetch(engine: &Engine, url: String, sha256: String) -> Result<(Bytes, Option<Language>), Refusal> {
    let parsed: Url = url
        .parse()
        .map_err(|error| invalid("/url", format!("{url}: {error}")))?;
    let policy = engine.sandbox().outbound();
    policy.check_url(&parsed).map_err(|refused| refusal_of(&refused))?;
    let client = policy
        .redirecting_client()
        .map_err(|error| Refusal::Internal(error.into()))?;
    let response = client
        .get(parsed.clone())
        .timeout(FETCH_TIMEOUT)
        .send()
        .await
        .map_err(|error| match outbound::refusal(&error) {
            Some(refused) => refusal_of(refused),
            None => invalid("/url", format!("{url} could not be fetched: {error}")),
        })?;
    if !response.status().is_success() {
        return Err(invalid("/url", format!("{url} answered {}", response.status())));
    }
    let language = match media_type(response.headers().get(CONTENT_TYPE)).as_str() {
        "application/wasm" => None,
        sent => Language::of_media_type(sent).or_else(|| Language::of_file(parsed.path())),
    };
    let bytes_max = match language {
        Some(_) => MAX_SOURCE_BYTES,
        None => heddle_store::blob::BLOB_BYTES_MAX,
    };
    let bytes = outbound::read_bounded(response, bytes_max)
        .await
        .map_err(|error| invalid("/url", format!("{url} could not be read: {error}")))?
        .ok_or(Refusal::TooLarge {
            what: "body",
            bytes_max,
        })?;
    let found = digest_of(&bytes);
    let wanted = format!("sha256:{}", sha256.trim_start_matches("sha256:").to_ascii_lowercase());
    if found != wanted {
        return Err(invalid(
            "/sha256",
            format!("the content of the URL has another digest: {found}"),
        ));
    }
    Ok((bytes, language))
}

/// What the policy forbids is 403; an address that does not exist is an error of the caller.
fn refusal_of(refused: &outbound::Refused) -> Refusal {
    match refused {
        outbound::Refused::Private { .. } | outbound::Refused::Port { .. } => Refusal::Forbidden(refused.to_string()),
        _ => invalid("/url", refused.to_string()),
    }
}

/// The services of an attempt without a run: it can log, everything else is refused.
struct Console {
    lines: Mutex<Vec<LogLine>>,
}

impl HostServices for Console {
    fn refusal(&self, what: &str) -> String {
        format!("{what}: not available in an invocation without a run")
    }

    fn state_get(&self, _key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn log(&self, line: LogLine) {
        self.lines.lock().push(line);
    }
}

pub(crate) async fn invoke(engine: &Engine, spec: InvokeSpec) -> Result<Invocation, Refusal> {
    let facts = engine
        .catalog()
        .script(&spec.script, Some(spec.version))
        .await?
        .ok_or_else(|| not_found("script", &spec.script))?;
    let params = params_of(&facts, spec.params)?;
    let script = engine.load_script(&facts).await?.map_err(|why| invalid("", why))?;
    let console = Arc::new(Console {
        lines: Mutex::default(),
    });
    let request = AttemptRequest {
        context: context_of(engine, &spec.script, spec.timeout),
        params: params.to_string(),
        batch: None,
        limits: Limits {
            timeout: Some(spec.timeout),
            ..Limits::default()
        },
        grants: Grants::default(),
        host: console.clone(),
    };
    let (done, ended) = tokio::sync::oneshot::channel();
    let handle = engine.sandbox().start(
        &script,
        request,
        Box::new(move |result| {
            let _ = done.send(result);
        }),
    );
    // A caller that goes away takes its invocation along.
    let guard = Guard(Some(handle));
    let result = ended.await.map_err(|error| Refusal::Internal(error.into()))?;
    drop(guard);
    let (state, output, error) = match result.outcome {
        Outcome::Succeeded(output) => {
            let output = serde_json::from_str(&output).unwrap_or(Value::String(output));
            (AttemptState::Succeeded, Some(output), None)
        }
        Outcome::Skipped(why) => {
            console.log(LogLine {
                at: engine.clock().now(),
                level: LogLevel::Info,
                message: format!("skipped: {why}"),
                fields: None,
            });
            (AttemptState::Succeeded, None, None)
        }
        Outcome::Failed {
            kind, message, trace, ..
        } => {
            let state = match kind {
                ErrorKind::Timeout => AttemptState::TimedOut,
                _ => AttemptState::Failed,
            };
            let failure = Failure {
                kind,
                message,
                trace: trace.map(|trace| facts.trace(trace)),
                omitted: None,
                task: None,
                item: None,
            };
            (state, None, Some(failure))
        }
        Outcome::Cancelled => (AttemptState::Cancelled, None, None),
    };
    let lines = std::mem::take(&mut *console.lines.lock());
    Ok(Invocation {
        state,
        output,
        error,
        logs: lines.into_iter().map(shown).collect(),
        duration_ms: result.duration.as_micros() as f64 / 1_000.0,
        memory_bytes: result.memory_bytes,
    })
}

/// The given params over the script's defaults, as its schema requires.
fn params_of(facts: &ScriptFacts, given: Value) -> Result<Value, Refusal> {
    let Value::Object(given) = given else {
        return Err(invalid("/params", "params must be a JSON object"));
    };
    let mut merged = facts.defaults.clone();
    merged.extend(given);
    let mut params = Value::Object(merged);
    let Some(schema) = &facts.schema else {
        return Ok(params);
    };
    let faults = or_trouble(|| {
        let faults = schema.check(&params);
        if faults.is_empty() {
            schema.write_integers(&mut params);
        }
        faults
    });
    let faults = faults.map_err(EngineError::from)?;
    if faults.is_empty() {
        return Ok(params);
    }
    let faults = faults.0.into_iter().map(|fault| fault.below("/params")).collect();
    Err(Refusal::Invalid(heddle_domain::Faults(faults)))
}

/// The context of an attempt without a run.
fn context_of(engine: &Engine, script: &str, timeout: Duration) -> Context {
    let now = engine.clock().now();
    let id = heddle_domain::id::uuid_v7(now, engine.chance().bits());
    Context {
        run: id,
        group: script.to_owned(),
        task: script.to_owned(),
        attempt: 1,
        trigger: heddle_domain::state::Trigger::Manual,
        logical_time: now,
        data_interval: Interval { start: now, end: now },
        deadline: chrono::TimeDelta::from_std(timeout).ok().map(|timeout| now + timeout),
        item: None,
        idempotency_key: format!("{id}/{script}"),
    }
}

fn shown(line: LogLine) -> InvocationLog {
    InvocationLog {
        level: line.level.as_str().to_owned(),
        message: line.message,
        fields: line.fields.map(fields_of),
    }
}

/// Cancels what it holds when it is dropped; an attempt that has ended does not mind.
struct Guard(Option<AttemptHandle>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take() {
            handle.cancel();
        }
    }
}
