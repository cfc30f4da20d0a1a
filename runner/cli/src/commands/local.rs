//! Scripts run here, in a sandbox of this process, without a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use heddle_domain::schema::Schema;
use heddle_domain::state::{ErrorKind, Trigger};
use heddle_domain::{Chance, Clock, Span, Time};
use heddle_engine::{NodeClock, SystemChance};
use heddle_sandbox::{
    AttemptRequest, BoxFuture, CompileError, Compiled, ConnectionTarget, Context, Effect, Grants, HostPattern,
    HostServices, Interval, Language, Limits, LogLine, MAX_ROWS, MapItem, Outcome, Rehearsal, RuntimeId, Sandbox,
    SandboxConfig, Script,
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::exit::usage;
use crate::output::Format;
use crate::terminal::tell;

/// How long a run may take unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a compiler may take; the user can interrupt it. Go's 4 MB take seconds, or minutes on a busy machine.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum of open connections to a database.
const MAX_CONNECTIONS: u32 = 4;

/// The values that a case gives, instead of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubles {
    pub upstream: Map<String, Value>,
    pub secrets: BTreeMap<String, String>,
    pub state: Map<String, Value>,
}

/// The services of an attempt without a server: it can log and report progress, and gets the values of a test case.
struct Terminal {
    doubles: Doubles,
    stage: Stage,
    /// The log lines of a test case. Otherwise, lines are printed as they arrive.
    lines: Option<Mutex<Vec<LogLine>>>,
}

impl Terminal {
    /// The values that a test case gives.
    fn given<T: Send + 'static>(&self, value: Option<T>, what: &str) -> BoxFuture<'static, Result<T, String>> {
        Box::pin(std::future::ready(value.ok_or_else(|| self.refusal(what))))
    }
}

impl HostServices for Terminal {
    fn refusal(&self, what: &str) -> String {
        format!("{what}: not available in a local test; push the script and run it in a group")
    }

    fn upstream(&self, task: &str) -> BoxFuture<'_, Result<String, String>> {
        let output = self.doubles.upstream.get(task).map(ToString::to_string);
        self.given(output, &format!("upstream `{task}`"))
    }

    fn state_get(&self, key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        let value = self.doubles.state.get(key).map(|value| (value.to_string(), 1));
        self.given(Some(value), "state")
    }

    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        self.given(self.doubles.secrets.get(name).cloned(), &format!("secret `{name}`"))
    }

    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        let target = self.stage.connections.get(name).map(|url| ConnectionTarget {
            id: url.clone(),
            url: url.clone(),
            statement_timeout: TIMEOUT,
            max_rows: MAX_ROWS,
            max_connections: MAX_CONNECTIONS,
            read_only: false,
        });
        self.given(target, &format!("sql connection `{name}`"))
    }

    fn rehearsal(&self) -> Option<Rehearsal> {
        Some(self.stage.rehearsal.clone())
    }

    fn log(&self, line: LogLine) {
        match &self.lines {
            Some(lines) => lines.lock().unwrap_or_else(PoisonError::into_inner).push(line),
            None => {
                let fields = line.fields.map(|fields| format!(" {fields}")).unwrap_or_default();
                tell!("{:<5} {}{fields}", line.level.as_str(), line.message);
            }
        }
    }

    fn progress(&self, fraction: f64, note: String) {
        if self.lines.is_none() {
            tell!("progress {:.0}% {note}", fraction * 100.0);
        }
    }
}

/// The substitutes for time, chance and the world; and how much of the real world is reachable.
#[derive(Default)]
pub(super) struct Stage {
    pub rehearsal: Rehearsal,
    pub allow_hosts: Vec<HostPattern>,
    /// The URLs of databases, by the name of the connection.
    pub connections: BTreeMap<String, String>,
}

/// The input of a local attempt.
pub(super) struct Given {
    pub params: Map<String, Value>,
    pub doubles: Doubles,
    pub item: Option<Value>,
    pub logical_time: Option<Time>,
    pub stage: Stage,
    pub timeout: Duration,
    /// Its log is collected, not printed.
    pub quiet: bool,
}

/// How a run ended.
pub(super) struct Ended {
    pub outcome: Outcome,
    pub effects: Vec<Effect>,
    pub log: Vec<String>,
    duration: Duration,
    cpu: Duration,
    memory_bytes: u64,
}

/// The sandbox of one command.
pub(super) struct Local {
    sandbox: Sandbox,
    clock: Arc<NodeClock>,
    _cache: tempfile::TempDir,
}

/// A file that was accepted.
pub(super) struct Loaded {
    name: String,
    /// The name of the script's module in traces, and the name of its file here.
    module: Option<(&'static str, String)>,
    script: Script,
    defaults: Map<String, Value>,
    schema: Option<Schema>,
}

/// The directory in which compiled interpreters are kept from one command to the next: CPython's takes ten seconds to
/// compile.
fn interpreter_dir() -> Option<PathBuf> {
    Some(super::tools::cache_dir()?.join("interpreters"))
}

impl Local {
    pub fn new() -> Result<Self> {
        Self::allowing(&[])
    }

    /// The same, with some private addresses that may be reached.
    pub fn allowing(private_hosts: &[String]) -> Result<Self> {
        let cache = tempfile::tempdir().context("cannot create a directory for compiled scripts")?;
        let compiler = crate::node::start_children()?;
        let clock = Arc::new(NodeClock::default());
        let config = || SandboxConfig {
            compile_timeout: COMPILE_TIMEOUT,
            private_hosts: private_hosts.to_vec(),
            ..SandboxConfig::new(cache.path().to_owned(), compiler.clone())
        };
        let keeping = SandboxConfig {
            interpreter_dir: interpreter_dir(),
            ..config()
        };
        // Without such a directory, interpreters are compiled each time.
        let sandbox = Sandbox::new(keeping, clock.clone()).or_else(|_| Sandbox::new(config(), clock.clone()))?;
        Ok(Self {
            sandbox,
            clock,
            _cache: cache,
        })
    }

    /// Checks and compiles a script.
    pub async fn compile(&self, language: Option<Language>, script: Bytes) -> Result<Compiled, CompileError> {
        match language {
            Some(language) => self.sandbox.compile_source(language, script).await,
            None => self.sandbox.compile(script).await,
        }
    }

    /// The runtime of this program for a language.
    pub async fn own_runtime(&self, language: Language) -> Result<&'static RuntimeId> {
        Ok(self.sandbox.own_runtime(language).await?)
    }

    pub async fn load(&self, file: &str) -> Result<Loaded> {
        let bytes = std::fs::read(file).map_err(|error| usage(format!("cannot read {file}: {error}")))?;
        let compiled = self.compile(Language::of_file(file), bytes.into()).await;
        let compiled = compiled.map_err(|error| usage(format!("{file}: {error}")))?;
        let schema = match &compiled.params_schema {
            Some(schema) => {
                Some(Schema::compile(schema).map_err(|error| usage(format!("{file}: its params schema: {error}")))?)
            }
            None => None,
        };
        let key = compiled.key();
        let there = async { Err::<bytes::Bytes, _>("it was compiled just now".to_owned()) };
        let script = self.sandbox.load(&key, there).await;
        let shown = Path::new(file)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        Ok(Loaded {
            module: Language::of_file(file).map(Language::file).zip(shown),
            name: Path::new(file)
                .file_stem()
                .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
            script: script.map_err(|error| anyhow::anyhow!("{file}: {error}"))?,
            defaults: compiled.defaults,
            schema,
        })
    }

    /// Runs it once. Params that its schema does not admit are an error, as for a run.
    pub async fn run(&self, loaded: &Loaded, given: Given) -> Result<Ended> {
        let params = params_of(loaded, given.params)?;
        let Rehearsal { now, seed, .. } = given.stage.rehearsal;
        let now = now.unwrap_or_else(|| self.clock.now());
        let logical_time = given.logical_time.unwrap_or(now);
        let id = heddle_domain::id::uuid_v7(now, seed.map_or_else(|| SystemChance.bits(), bits_of));
        let item = given
            .item
            .map(|item| serde_json::value::to_raw_value(&item))
            .transpose()?;
        let deadline = chrono::TimeDelta::from_std(given.timeout).ok();
        let host = Arc::new(Terminal {
            lines: given.quiet.then(Mutex::default),
            doubles: given.doubles,
            stage: given.stage,
        });
        let request = AttemptRequest {
            context: Context {
                run: id,
                group: loaded.name.clone(),
                task: loaded.name.clone(),
                attempt: 1,
                trigger: Trigger::Manual,
                logical_time,
                data_interval: Interval {
                    start: logical_time,
                    end: logical_time,
                },
                deadline: deadline.map(|timeout| now + timeout),
                item: item.map(|item| MapItem {
                    item,
                    index: 0,
                    count: 1,
                }),
                idempotency_key: format!("{id}/{}", loaded.name),
            },
            params: params.to_string(),
            batch: None,
            limits: Limits {
                timeout: Some(given.timeout),
                ..Limits::default()
            },
            grants: Grants {
                secrets: host.doubles.secrets.keys().cloned().collect(),
                sql: host.stage.connections.keys().cloned().collect(),
                allow_hosts: host.stage.allow_hosts.clone(),
            },
            host: host.clone(),
        };
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.sandbox.start(
            &loaded.script,
            request,
            Box::new(move |result| {
                let _ = sender.send(result);
            }),
        );
        let result = receiver.await.context("the run did not end")?;
        let lines = host
            .lines
            .as_ref()
            .map(|lines| std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner)));
        let mut outcome = result.outcome;
        if let (Outcome::Failed { trace: Some(trace), .. }, Some((module, shown))) = (&mut outcome, &loaded.module) {
            *trace = heddle_sandbox::trace_of_file(trace, module, shown);
        }
        Ok(Ended {
            outcome,
            effects: result.effects,
            log: lines.into_iter().flatten().map(|line| line.message).collect(),
            duration: result.duration,
            cpu: result.cpu,
            memory_bytes: result.memory_bytes,
        })
    }
}

/// The effective params: the defaults, overridden by what is given.
fn params_of(loaded: &Loaded, given: Map<String, Value>) -> Result<Value> {
    let mut merged = loaded.defaults.clone();
    merged.extend(given);
    let mut params = Value::Object(merged);
    if let Some(schema) = &loaded.schema {
        let faults = schema.check(&params);
        if !faults.is_empty() {
            return Err(usage(format!("params: {faults}")));
        }
        schema.write_integers(&mut params);
    }
    Ok(params)
}

/// The randomness of a run, from the seed of its case.
fn bits_of(seed: u64) -> u128 {
    let digest = Sha256::digest(format!("run {seed}"));
    digest
        .iter()
        .take(16)
        .fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

impl Ended {
    pub fn is_good(&self) -> bool {
        matches!(self.outcome, Outcome::Succeeded(_) | Outcome::Skipped(_))
    }

    pub fn duration_ms(&self) -> f64 {
        self.duration.as_micros() as f64 / 1e3
    }

    pub fn print(self, out: Format) -> Result<()> {
        let (cpu_ms, duration_ms) = (self.cpu.as_micros() as f64 / 1e3, self.duration_ms());
        let error = |kind: ErrorKind, message: String, trace: Option<String>| json!({"kind": kind.as_str(), "message": message, "trace": trace});
        let (state, output, error) = match self.outcome {
            Outcome::Succeeded(output) => (
                "succeeded",
                serde_json::from_str::<Value>(&output).unwrap_or(Value::String(output)),
                Value::Null,
            ),
            Outcome::Skipped(why) => ("skipped", Value::Null, json!({"message": why})),
            Outcome::Failed {
                kind, message, trace, ..
            } => ("failed", Value::Null, error(kind, message, trace)),
            Outcome::Cancelled => ("cancelled", Value::Null, Value::Null),
        };
        let memory_bytes = self.memory_bytes;
        let summary = json!({
            "state": state, "output": output, "error": error,
            "duration_ms": duration_ms, "cpu_ms": cpu_ms, "memory_bytes": memory_bytes,
        });
        out.print(&summary, |summary| {
            let error = &summary["error"];
            let shown = match (state, error["trace"].as_str()) {
                ("succeeded", _) => serde_json::to_string_pretty(&summary["output"]).unwrap_or_default(),
                // A trace is readable text, and begins with the message.
                (_, Some(trace)) => format!("{}: {trace}", error["kind"].as_str().unwrap_or_default()),
                _ => serde_json::to_string_pretty(error).unwrap_or_default(),
            };
            format!(
                "{shown}\n{state} in {duration_ms:.1} ms, {cpu_ms:.1} ms of processor time, {} KiB",
                memory_bytes / 1024
            )
        })
    }
}

/// Whether an argument names a script by its file.
pub(crate) fn is_file(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "wasm" || extension == "wat")
        || (Language::of_file(name).is_some() && Path::new(name).is_file())
}

pub(super) fn timeout_of(text: Option<&str>) -> Result<Duration> {
    match text {
        Some(text) => Ok(text
            .parse::<Span>()
            .map_err(|error| usage(format!("--timeout {text}: {error}")))?
            .std()),
        None => Ok(TIMEOUT),
    }
}
