//! The speed of the sandbox, compared with the bare wasm loop of the same engine.
//!
//! `cargo run --release -p heddle-sandbox --example bare_loop [component.wasm] [params]`: for two seconds each, runs
//! instantiate + call + drop without the sandbox, on one thread and on two, and then the same script through
//! `Sandbox::start`. The component must be for the world `heddle:task/task`, and must not need host functions other
//! than WASI's. A script that is text (`.js`, `.ts`, `.py`) has no bare loop: it is measured only through the sandbox,
//! from its upload on.

use bytes::Bytes;
use heddle_domain::state::Trigger;
use heddle_domain::{Clock, Time};
use heddle_sandbox::{
    AttemptRequest, CompilerCommand, Context, Grants, HostServices, Interval, Language, Limits, Outcome, Sandbox,
    SandboxConfig, bare_engine,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};
use wasmtime::{Engine, Store, UpdateDeadline};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{WasiCtxBuilder, WasiCtxView, WasiView};

/// How long each figure is measured.
const MEASURED: Duration = Duration::from_secs(2);
/// How many attempts run at once in the sandbox.
const IN_FLIGHT: usize = 64;

/// A component that returns its params: what remains is the cost of an attempt itself.
const ECHO: &str = r#"(component
  (import "heddle:task/types@1.0.0" (instance $types
    (type $f (variant (case "retryable" string) (case "retry-after" (tuple u64 string))
                      (case "fatal" string) (case "skip" string)))
    (export "failure" (type (eq $f)))))
  (alias export $types "failure" (type $failure))
  (core module $main
    (memory (export "memory") 17)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 65536))
    (data (i32.const 1024) "{}")
    (func (export "run") (param i32 i32) (result i32)
      (i32.store (i32.const 520) (local.get 0))
      (i32.store (i32.const 524) (local.get 1))
      (i32.const 512))
    (func (export "describe") (result i32)
      (i32.store (i32.const 512) (i32.const 1024))
      (i32.store (i32.const 516) (i32.const 2))
      (i32.const 512)))
  (core instance $i (instantiate $main))
  (func (export "run") (param "params" string) (result (result string (error $failure)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
  (func (export "describe") (result string)
    (canon lift (core func $i "describe") (memory (core memory $i "memory")) (realloc (core func $i "realloc")))))"#;

struct State(WasiP1Ctx);

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.0.ctx()
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("compile-wasm") {
        return heddle_sandbox::compile_child_main();
    }
    let wasm = std::env::args()
        .nth(1)
        .map_or(ECHO.as_bytes().to_vec(), |path| std::fs::read(path).expect("the file"));
    let params = std::env::args()
        .nth(2)
        .unwrap_or_else(|| r#"{"rows": [1, 2, 3], "day": "2013-07-01"}"#.into());
    let language = std::env::args().nth(1).and_then(|path| Language::of_file(&path));
    for threads in [1, 2] {
        if language.is_none() {
            println!(
                "bare loop, {threads} threads: {:.0} runs/s",
                bare(&wasm, &params, threads)
            );
        }
    }
    tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(sandboxed(wasm.into(), language, params));
    ExitCode::SUCCESS
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn bare(wasm: &[u8], params: &str, threads: usize) -> f64 {
    let engine = bare_engine().expect("the engine");
    let component = Component::new(&engine, wasm).expect("the component");
    let mut linker = Linker::<State>::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker).expect("WASI");
    add_silent_host(&engine, &component, &mut linker).expect("the rest");
    let pre = linker.instantiate_pre(&component).expect("the imports");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                futures::executor::block_on(async {
                    while !stop.load(Ordering::Relaxed) {
                        bare_run(&engine, &pre, params).await.expect("a run");
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        while began.elapsed() < MEASURED {
            std::thread::sleep(Duration::from_millis(1));
            engine.increment_epoch();
        }
        stop.store(true, Ordering::Relaxed);
    });
    count.into_inner() as f64 / began.elapsed().as_secs_f64()
}

/// Heddle's imports, without effect. (Those that must return something fail.)
fn add_silent_host(engine: &Engine, component: &Component, linker: &mut Linker<State>) -> wasmtime::Result<()> {
    for (name, import) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(interface) = import.ty else {
            continue;
        };
        if !name.starts_with("heddle:") {
            continue;
        }
        let mut instance = linker.instance(name)?;
        for (function, export) in interface.exports(engine) {
            if matches!(export.ty, ComponentItem::ComponentFunc(_)) {
                instance.func_new(function, |_, _, _, results| {
                    if results.is_empty() {
                        Ok(())
                    } else {
                        Err(wasmtime::format_err!("nobody answers"))
                    }
                })?;
            }
        }
    }
    Ok(())
}

async fn bare_run(
    engine: &Engine,
    pre: &wasmtime::component::InstancePre<State>,
    params: &str,
) -> wasmtime::Result<()> {
    let mut store = Store::new(engine, State(WasiCtxBuilder::new().build_p1()));
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
    let instance = pre.instantiate_async(&mut store).await?;
    let run = instance.get_func(&mut store, "run").expect("run");
    // The type of its failures is not declared here: any result is accepted.
    let mut results = [wasmtime::component::Val::Bool(false)];
    run.call_async(
        &mut store,
        &[wasmtime::component::Val::String(params.to_owned())],
        &mut results,
    )
    .await?;
    Ok(())
}

#[derive(Debug)]
struct RealClock;

impl Clock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the time")]
    fn now(&self) -> Time {
        chrono::Utc::now()
    }
}

/// An attempt without anything.
struct Nothing;

impl HostServices for Nothing {}

/// The script's key in the sandbox.
async fn uploaded(sandbox: &Sandbox, code: Bytes, language: Option<Language>) -> String {
    let Some(language) = language else {
        return sandbox.compile(code).await.expect("the script").digest;
    };
    // The first upload compiles the interpreter; the second one, of another text, finds it.
    let other: Bytes = [&code[..], b"\n"].concat().into();
    for (what, code) in [("first upload", other), ("upload", code.clone())] {
        let began = now();
        sandbox.compile_source(language, code).await.expect("the script");
        println!("{what}: {:?}", began.elapsed());
    }
    let compiled = sandbox.compile_source(language, code).await.expect("the script");
    compiled.key()
}

async fn sandboxed(code: Bytes, language: Option<Language>, params: String) {
    let cache = tempfile::tempdir().expect("a directory");
    let compiler = CompilerCommand {
        program: std::env::current_exe().expect("this program"),
        args: vec!["compile-wasm".into()],
        env: Vec::new(),
    };
    let config = SandboxConfig::new(cache.path().to_owned(), compiler);
    let threads = config.threads;
    let sandbox = Sandbox::new(config, Arc::new(RealClock)).expect("the sandbox");
    let digest = uploaded(&sandbox, code, language).await;
    let script = sandbox
        .load(&digest, async { Err::<Bytes, _>(()) })
        .await
        .expect("the script");
    let at = RealClock.now();
    let host: Arc<dyn HostServices> = Arc::new(Nothing);
    let request = || AttemptRequest {
        context: Context {
            run: uuid::Uuid::nil(),
            group: "group".into(),
            task: "task".into(),
            attempt: 1,
            trigger: Trigger::Manual,
            logical_time: at,
            data_interval: Interval { start: at, end: at },
            deadline: None,
            item: None,
            idempotency_key: "key".into(),
        },
        params: params.clone(),
        batch: None,
        limits: Limits::default(),
        grants: Grants::default(),
        host: Arc::clone(&host),
    };
    for in_flight in [1, IN_FLIGHT] {
        // The sandbox reports each end without waiting; there are never more than are running.
        let (send, mut ended) = tokio::sync::mpsc::channel(IN_FLIGHT);
        let start = || {
            let send = send.clone();
            let done = Box::new(move |result| drop(send.try_send(result)));
            sandbox.start(&script, request(), done);
        };
        let (began, mut count) = (now(), 0_u64);
        let (mut cpu, mut memory, mut durations) = (Duration::ZERO, 0, Vec::new());
        (0..in_flight).for_each(|_| start());
        while began.elapsed() < MEASURED {
            let result: heddle_sandbox::AttemptResult = ended.recv().await.expect("a result");
            assert!(matches!(result.outcome, Outcome::Succeeded(_)), "{result:?}");
            count += 1;
            cpu += result.cpu;
            memory = memory.max(result.memory_bytes);
            durations.push(result.duration);
            start();
        }
        let rate = count as f64 / began.elapsed().as_secs_f64();
        durations.sort();
        let at = |part: f64| durations[(durations.len() as f64 * part) as usize];
        println!(
            "Sandbox::start, {threads} guest threads, {in_flight} in flight: {rate:.0} runs/s; a run p50 {:?}, p99 {:?}, \
             processor {:?}, memory {} KiB",
            at(0.5),
            at(0.99),
            cpu / u32::try_from(count.max(1)).unwrap_or(u32::MAX),
            memory >> 10,
        );
        for _ in 0..in_flight {
            ended.recv().await;
        }
    }
}
