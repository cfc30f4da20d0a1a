//! `heddle script test FILE`: runs a script's file here, in a sandbox of its own, without a server.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use heddle_domain::state::Trigger;
use heddle_domain::{Chance, Clock, Span};
use heddle_engine::{NodeClock, SystemChance};
use heddle_sandbox::{
    AttemptRequest, BoxFuture, CompilerCommand, ConnectionTarget, Context, Grants, HostServices, Interval, Language,
    Limits, LogLine, Outcome, Sandbox, SandboxConfig, code_key,
};
use serde_json::{Map, Value, json};

use super::done;
use crate::exit::{NO, usage};
use crate::output::Format;

/// How long a run may take unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The services of an attempt that has no server behind it: it can log and report progress.
struct Terminal;

fn none<T: Send + 'static>(what: &str) -> BoxFuture<'static, Result<T, String>> {
    let why = format!("{what}: there is none in a local test; push the script and run it in a group");
    Box::pin(async move { Err(why) })
}

impl HostServices for Terminal {
    fn upstream(&self, _task: &str) -> BoxFuture<'_, Result<String, String>> {
        none("upstream")
    }

    fn state_get(&self, _key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn secret(&self, _name: &str) -> BoxFuture<'_, Result<String, String>> {
        none("secret")
    }

    fn connection(&self, _name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        none("sql connection")
    }

    fn log(&self, line: LogLine) {
        let fields = line.fields.map(|fields| format!(" {fields}")).unwrap_or_default();
        eprintln!("{:<5} {}{fields}", line.level.as_str(), line.message);
    }

    fn progress(&self, fraction: f64, note: String) {
        eprintln!("progress {:.0}% {note}", fraction * 100.0);
    }
}

/// Whether a script is named by its file.
pub(crate) fn is_file(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "wasm" || extension == "wat")
        || (Language::of_file(name).is_some() && Path::new(name).is_file())
}

/// Compiles and runs a file.
pub(crate) async fn test(
    out: Format,
    file: &str,
    params: Map<String, Value>,
    timeout: Option<&str>,
) -> Result<ExitCode> {
    let wasm = std::fs::read(file).map_err(|error| usage(format!("cannot read {file}: {error}")))?;
    let timeout = match timeout {
        Some(text) => text
            .parse::<Span>()
            .map_err(|error| usage(format!("--timeout {text}: {error}")))?
            .std(),
        None => TIMEOUT,
    };
    let cache = tempfile::tempdir().context("no directory for compiled scripts")?;
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let compiler = CompilerCommand {
        program,
        args: vec!["compile-wasm".into()],
        env: Vec::new(),
    };
    let bounded = CompilerCommand {
        args: vec!["bounded-work".into()],
        ..compiler.clone()
    };
    heddle_sandbox::bound_by_children(bounded)?;
    let clock = Arc::new(NodeClock::default());
    let sandbox = Sandbox::new(SandboxConfig::new(cache.path().to_owned(), compiler), clock.clone())?;
    let compiled = match Language::of_file(file) {
        Some(language) => sandbox.compile_source(language, wasm.into()).await,
        None => sandbox.compile(wasm.into()).await,
    };
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => return Err(usage(format!("{file}: {error}"))),
    };
    let mut merged = compiled.defaults;
    merged.extend(params);
    let mut params = Value::Object(merged);
    if let Some(schema) = &compiled.params_schema {
        let schema = heddle_domain::schema::Schema::compile(schema)
            .map_err(|error| usage(format!("{file}: its params schema: {error}")))?;
        let faults = schema.check(&params);
        if !faults.is_empty() {
            return Err(usage(format!("params: {faults}")));
        }
        schema.write_integers(&mut params);
    }
    let script = sandbox
        .load(&code_key(&compiled.digest, compiled.world.as_str()), async {
            Err::<bytes::Bytes, _>("it was compiled just now".to_owned())
        })
        .await
        .map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
    let now = clock.now();
    let name = Path::new(file)
        .file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let id = heddle_domain::id::uuid_v7(now, SystemChance.bits());
    let request = AttemptRequest {
        context: Context {
            run: id,
            group: name.clone(),
            task: name.clone(),
            attempt: 1,
            trigger: Trigger::Manual,
            logical_time: now,
            data_interval: Interval { start: now, end: now },
            deadline: chrono::TimeDelta::from_std(timeout).ok().map(|timeout| now + timeout),
            item: None,
            idempotency_key: format!("{id}/{name}"),
        },
        params: params.to_string(),
        batch: None,
        limits: Limits {
            timeout: Some(timeout),
            ..Limits::default()
        },
        grants: Grants::default(),
        host: Arc::new(Terminal),
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    sandbox.start(
        &script,
        request,
        Box::new(move |result| {
            let _ = sender.send(result);
        }),
    );
    let result = receiver.await.context("the run did not end")?;
    let error =
        |kind: &str, message: String, trace: Option<String>| json!({"kind": kind, "message": message, "trace": trace});
    let (state, output, error) = match result.outcome {
        Outcome::Succeeded(output) => (
            "succeeded",
            serde_json::from_str::<Value>(&output).unwrap_or(Value::String(output)),
            Value::Null,
        ),
        Outcome::Skipped(why) => ("skipped", Value::Null, json!({"message": why})),
        Outcome::Failed {
            kind, message, trace, ..
        } => ("failed", Value::Null, error(kind.as_str(), message, trace)),
        Outcome::Cancelled => ("cancelled", Value::Null, Value::Null),
    };
    let good = matches!(state, "succeeded" | "skipped");
    let duration_ms = result.duration.as_micros() as f64 / 1e3;
    let told = json!({
        "state": state, "output": output, "error": error,
        "duration_ms": duration_ms, "memory_bytes": result.memory_bytes,
    });
    out.print(&told, |told| {
        let shown = if state == "succeeded" {
            &told["output"]
        } else {
            &told["error"]
        };
        let shown = serde_json::to_string_pretty(shown).unwrap_or_default();
        format!(
            "{shown}\n{state} in {duration_ms:.1} ms, {} KiB",
            result.memory_bytes / 1024
        )
    })?;
    if good { done() } else { Ok(ExitCode::from(NO)) }
}
