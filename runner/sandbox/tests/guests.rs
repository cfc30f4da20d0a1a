//! The guests of the tests, and their host.

use bytes::Bytes;
use heddle_domain::state::Trigger;
use heddle_domain::{Clock, Time};
use heddle_sandbox::{
    AttemptHandle, AttemptRequest, AttemptResult, BoxFuture, CompilerCommand, ConnectionTarget, Context, Grants,
    HostServices, Interval, Limits, LogLine, Rehearsal, Sandbox, SandboxConfig, Script,
};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug)]
pub struct RealClock;

impl Clock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the time")]
    fn now(&self) -> Time {
        chrono::Utc::now()
    }
}

/// Answers from tables, and keeps what it is told.
#[derive(Default)]
pub struct Tables {
    pub upstream: HashMap<String, String>,
    pub state: HashMap<String, (String, u64)>,
    pub secrets: HashMap<String, String>,
    pub connections: HashMap<String, ConnectionTarget>,
    pub log: Mutex<Vec<LogLine>>,
    pub progress: Mutex<Vec<(f64, String)>>,
    pub rehearsal: Option<Rehearsal>,
}

impl Tables {
    pub fn messages(&self) -> Vec<String> {
        self.log
            .lock()
            .unwrap()
            .iter()
            .map(|line| line.message.clone())
            .collect()
    }
}

fn answer<T: Send + 'static>(value: Option<T>) -> BoxFuture<'static, Result<T, String>> {
    Box::pin(async move { value.ok_or_else(|| "not available".to_owned()) })
}

impl HostServices for Tables {
    fn upstream(&self, task: &str) -> BoxFuture<'_, Result<String, String>> {
        answer(self.upstream.get(task).cloned())
    }

    fn state_get(&self, key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        answer(Some(self.state.get(key).cloned()))
    }

    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        answer(self.secrets.get(name).cloned())
    }

    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        answer(self.connections.get(name).cloned())
    }

    fn log(&self, line: LogLine) {
        self.log.lock().unwrap().push(line);
    }

    fn progress(&self, fraction: f64, note: String) {
        self.progress.lock().unwrap().push((fraction, note));
    }

    fn rehearsal(&self) -> Option<Rehearsal> {
        self.rehearsal.clone()
    }
}

/// The variable with the file to which each compiling child appends a byte.
pub const COUNTED_IN: &str = "SANDBOX_TESTS_COMPILED";

/// Called in a compiling child.
pub fn count_compilation() {
    if let Some(path) = std::env::var_os(COUNTED_IN) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        std::io::Write::write_all(&mut file.unwrap(), b"1").unwrap();
    }
}

/// A sandbox with an empty cache, and the input of an attempt unless the test changes it.
pub struct Bench {
    pub sandbox: Sandbox,
    pub cache: tempfile::TempDir,
    pub limits: Limits,
    pub grants: Grants,
    pub params: String,
}

pub fn config(cache: &std::path::Path) -> SandboxConfig {
    let compiler = CompilerCommand {
        program: std::env::current_exe().unwrap(),
        args: vec!["compile-wasm".into()],
        env: Vec::new(),
    };
    SandboxConfig {
        compile_timeout: Duration::from_secs(120),
        ..SandboxConfig::new(cache.to_owned(), compiler)
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut SandboxConfig)) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let mut config = config(cache.path());
        change(&mut config);
        Self {
            sandbox: Sandbox::new(config, Arc::new(RealClock)).unwrap(),
            cache,
            limits: Limits {
                timeout: Some(Duration::from_secs(120)),
                ..Limits::default()
            },
            grants: Grants::default(),
            params: "{}".into(),
        }
    }

    /// A script that must be accepted.
    pub async fn script(&self, wasm: impl Into<Bytes>) -> Script {
        let compiled = self
            .sandbox
            .compile(wasm.into())
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(self.sandbox.is_ready(&compiled.digest));
        self.sandbox
            .load(&compiled.digest, async { unreachable!() as Result<Bytes, Infallible> })
            .await
            .unwrap()
    }

    pub fn start(
        &self,
        script: &Script,
        tables: &Arc<Tables>,
    ) -> (AttemptHandle, tokio::sync::oneshot::Receiver<AttemptResult>) {
        let (send, receive) = tokio::sync::oneshot::channel();
        let start = "2013-07-01T00:00:00Z".parse::<Time>().unwrap();
        let request = AttemptRequest {
            context: Context {
                run: uuid::Uuid::nil(),
                group: "group".into(),
                task: "task".into(),
                attempt: 1,
                trigger: Trigger::Manual,
                logical_time: start,
                data_interval: Interval { start, end: start },
                deadline: None,
                item: None,
                idempotency_key: "key".into(),
            },
            params: self.params.clone(),
            batch: None,
            limits: self.limits,
            grants: self.grants.clone(),
            host: Arc::clone(tables) as Arc<dyn HostServices>,
        };
        let done = Box::new(move |result| drop(send.send(result)));
        (self.sandbox.start(script, request, done), receive)
    }

    pub async fn run_with(&self, script: &Script, tables: &Arc<Tables>) -> AttemptResult {
        self.start(script, tables).1.await.unwrap()
    }

    pub async fn run(&self, script: &Script) -> AttemptResult {
        self.run_with(script, &Arc::default()).await
    }

    /// Runs a p1 command whose `_start` has this body.
    pub async fn run_command(&self, body: &str) -> AttemptResult {
        let script = self.script(command(body)).await;
        self.run(&script).await
    }
}

/// A WASI command as text. It may call `$write fd ptr len`, `$read ptr len -> count`, `$exit code`.
pub fn command(body: &str) -> String {
    command_with("", body)
}

/// The same with more fields in the module.
pub fn command_with(fields: &str, body: &str) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (func $write (param $fd i32) (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $read (param $ptr i32) (param $len i32) (result i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.load (i32.const 8)))
  {fields}
  (func (export "_start") {body}))"#
    )
}

/// A component for `heddle:task/task` as text. `imports` are component imports, `lower` makes core functions of them
/// (with `$libc`'s memory and realloc), `with` passes them to the core module as the instance `h`, which `fields` may
/// import from. `run` has the params as locals 0 and 1 and returns a pointer to the result.
pub fn component(imports: &str, lower: &str, with: &str, fields: &str, run: &str, describe: &str) -> String {
    let described = describe.replace('"', "\\\"");
    let length = describe.len();
    format!(
        r#"(component
  (import "heddle:task/types@1.0.0" (instance $types
    (type $f (variant (case "retryable" string) (case "retry-after" (tuple u64 string))
                      (case "fatal" string) (case "skip" string)))
    (export "failure" (type (eq $f)))))
  (alias export $types "failure" (type $failure))
  {imports}
  (core module $libc_module
    (memory (export "memory") 2)
    (global $heap (mut i32) (i32.const 65536))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $p i32)
      (local.set $p (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
      (global.set $heap (i32.add (local.get $p) (local.get 3)))
      (local.get $p)))
  (core instance $libc (instantiate $libc_module))
  {lower}
  (core module $main
    (import "libc" "memory" (memory 2))
    {fields}
    (data (i32.const 1024) "{described}")
    (func $ok (param $ptr i32) (param $len i32) (result i32)
      (i32.store (i32.const 512) (i32.const 0))
      (i32.store (i32.const 520) (local.get $ptr))
      (i32.store (i32.const 524) (local.get $len))
      (i32.const 512))
    (func $fail (param $kind i32) (param $ptr i32) (param $len i32) (result i32)
      (i32.store (i32.const 512) (i32.const 1))
      (i32.store (i32.const 520) (local.get $kind))
      (i32.store (i32.const 528) (local.get $ptr))
      (i32.store (i32.const 532) (local.get $len))
      (i32.const 512))
    (func (export "run") (param i32 i32) (result i32) {run})
    (func (export "describe") (result i32)
      (i32.store (i32.const 512) (i32.const 1024))
      (i32.store (i32.const 516) (i32.const {length}))
      (i32.const 512)))
  (core instance $i (instantiate $main (with "libc" (instance $libc)) {with}))
  (func (export "run") (param "params" string) (result (result string (error $failure)))
    (canon lift (core func $i "run") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (func (export "describe") (result string)
    (canon lift (core func $i "describe") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc")))))"#
    )
}

/// A component without imports, with this `run`.
pub fn plain_component(run: &str) -> String {
    component("", "", "", "", run, "{}")
}
