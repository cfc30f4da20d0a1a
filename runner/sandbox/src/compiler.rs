//! Compiles in a child process that may be killed.
//!
//! Compiling is an attack surface: a small text can take minutes and gigabytes. So the node never parses or compiles a
//! script itself. It starts a child with an empty environment, writes one line of JSON ([`Order`]) and the script to
//! its standard input, and reads one line of JSON ([`Answer`]) and the artefact from its standard output. The child
//! limits its own address space and processor time before it reads the script, and dies with its parent; the parent
//! kills it after the timeout.
//!
//! For the kernel, the parent of a child is the thread that started it, and threads of tokio may end at any time: a
//! worker that blocks is replaced, and ends after being idle for a while. So children are started by a thread that does
//! nothing else and lives as long as the compiler. If a child is killed by SIGKILL all the same, somebody else did it,
//! for example the kernel because of a lack of memory: that says nothing about the script.

use crate::artefact::{Artefact, Code};
use crate::bounds::{self, Kind};
use crate::config::{CompilerCommand, SandboxConfig};
use crate::engine::code_config;
use crate::fair_slots::{FairSlot, FairSlots};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use wasmtime::Engine;

/// The largest artefact that is read, in bytes.
const MAX_ARTEFACT_BYTES: u64 = 1 << 30;
/// How much of it is read at once.
const PART_BYTES: u64 = 1 << 20;
/// The longest first line of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// How much of a reason is in it; as JSON that may have six times as many.
const MAX_WHY_BYTES: usize = 8 << 10;
/// How much of a child's standard error is read.
const MAX_STDERR_BYTES: u64 = 64 << 10;
/// The niceness of a compiling child, and of one for whose work nobody waits yet.
const CHILD_NICE: libc::c_int = 10;
const AHEAD_NICE: libc::c_int = 19;
/// How many threads it has.
const CHILD_THREADS: usize = 4;
/// How many children may wait to be started; beyond that, callers wait.
const STARTS_MAX: usize = 16;
/// A child that exceeds its processor time is told so by SIGXCPU; after this much more it is killed.
const CPU_GRACE_SECONDS: u64 = 10;
/// How readily the kernel kills a child when the machine's memory is used up, of 1,000: before the node and the
/// database.
const OOM_SCORE: &str = "1000";

/// For whom something is compiled: this decides whose slot it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum For<'a> {
    /// For a person who uploads a script.
    Uploader(&'a str),
    /// For runs, and for uploads without a person.
    Runs,
    /// For everybody: our own code, compiled once. It takes no slot of scripts.
    All,
    /// The same, before anybody needs it.
    Ahead,
}

impl For<'_> {
    fn nice(self) -> libc::c_int {
        match self {
            Self::Uploader(_) | Self::Runs | Self::All => CHILD_NICE,
            Self::Ahead => AHEAD_NICE,
        }
    }

    /// If nobody waits for it, it leaves half of the processors to others.
    fn threads(self) -> usize {
        match self {
            Self::Uploader(_) | Self::Runs | Self::All => CHILD_THREADS,
            Self::Ahead => (cores() / 2).clamp(1, CHILD_THREADS),
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Order {
    nice: libc::c_int,
    max_address_space_bytes: u64,
    max_cpu_seconds: u64,
    max_wasm_bytes: usize,
    max_memory_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Compiled(Kind),
    /// Why the script is refused.
    Refused(String),
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum NotCompiled {
    /// The script cannot be compiled, for this reason.
    Refused(String),
    /// It took too long.
    Timeout(Duration),
    /// The machine cannot do it at the moment.
    NotNow(String),
    /// Heddle itself failed; the script did not cause it.
    Internal(String),
}

/// A child to be started, and the runtime that waits for it.
struct Start {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<std::io::Result<Child>>,
}

/// The thread that starts the children. It ends with the compiler.
struct Starter(mpsc::Sender<Start>);

impl Starter {
    fn new() -> std::io::Result<Self> {
        let (starts, mut wanted) = mpsc::channel::<Start>(STARTS_MAX);
        std::thread::Builder::new().name("compilers".into()).spawn(move || {
            while let Some(Start {
                mut command,
                runtime,
                reply,
            }) = wanted.blocking_recv()
            {
                let _inside = runtime.enter();
                // The caller may be gone; the child then ends at once.
                let _ = reply.send(command.spawn());
            }
        })?;
        Ok(Self(starts))
    }

    async fn start(&self, command: Command) -> std::io::Result<Child> {
        let gone = || std::io::Error::other("it was not started");
        let (reply, started) = oneshot::channel();
        let start = Start {
            command,
            runtime: Handle::current(),
            reply,
        };
        self.0.send(start).await.map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

/// Starts compiling children, a few at a time.
pub(crate) struct Compiler {
    command: CompilerCommand,
    order: Order,
    slots: Arc<FairSlots>,
    starter: Starter,
    /// Our own code, one at a time.
    own: Arc<Semaphore>,
    /// Where large artefacts are written while they come.
    directory: PathBuf,
}

/// A slot of either kind.
enum Held {
    Script(#[expect(dead_code, reason = "held until the child has ended")] FairSlot),
    Own(#[expect(dead_code, reason = "the same")] OwnedSemaphorePermit),
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Compiler {
    /// A compiler that writes large artefacts to files without a name in this directory.
    pub fn new(config: &SandboxConfig, directory: PathBuf) -> std::io::Result<Self> {
        // One uploader gets half of them. There are at least two, however small the machine: otherwise an upload would
        // wait for any slow script that is being compiled.
        let children = cores().div_ceil(2).max(2);
        Ok(Self {
            command: config.compiler.clone(),
            order: Order {
                nice: CHILD_NICE,
                max_address_space_bytes: config.compile_memory_bytes,
                max_cpu_seconds: 0,
                max_wasm_bytes: config.max_wasm_bytes,
                max_memory_bytes: config.max_memory_bytes,
            },
            slots: FairSlots::new(children, children / 2),
            own: Arc::new(Semaphore::new(1)),
            starter: Starter::new()?,
            directory,
        })
    }

    /// Whether nothing is being compiled.
    pub fn is_idle(&self) -> bool {
        self.slots.is_idle() && self.own.available_permits() > 0
    }

    /// What the end of a child says about its input.
    fn not_compiled(&self, status: std::process::ExitStatus, words: &[u8]) -> NotCompiled {
        let words = String::from_utf8_lossy(words);
        let words = words.trim();
        if words.contains("memory allocation of") {
            let limit = self.order.max_address_space_bytes;
            NotCompiled::Refused(format!("cannot be compiled within {limit} bytes of memory"))
        } else if status.signal() == Some(libc::SIGKILL) {
            NotCompiled::NotNow("the compiler was killed; perhaps the machine has no memory left".into())
        } else if status.signal().is_some() {
            NotCompiled::Refused(format!(
                "made the compiler fail ({status}), because it is nested too deeply or too large"
            ))
        } else {
            let words = crate::journal::cut(words, 1_024);
            NotCompiled::Internal(format!("the compiler ended with {status}: {words}"))
        }
    }

    /// Compiles in a child process, when there is a slot for `whom`.
    pub async fn compile(&self, wasm: Bytes, whom: For<'_>, timeout: Duration) -> Result<Artefact, NotCompiled> {
        let internal = |error: &dyn std::fmt::Display| NotCompiled::Internal(format!("the compiler: {error}"));
        let slot = match whom {
            // The number of waiting uploads is bounded where they come in.
            For::Uploader(uploader) => self.slots.take(uploader, usize::MAX).await.map(Held::Script),
            For::Runs => self.slots.take_for_all().await.map(Held::Script),
            For::All | For::Ahead => Arc::clone(&self.own).acquire_owned().await.ok().map(Held::Own),
        };
        let _slot = slot.ok_or_else(|| internal(&"there are no slots"))?;
        let mut command = Command::new(&self.command.program);
        command
            .args(&self.command.args)
            .env_clear()
            // Arenas reserve address space per thread, and the address space is limited.
            .env("MALLOC_ARENA_MAX", "2")
            .env("RAYON_NUM_THREADS", whom.threads().to_string())
            // The component text of versions until 2026 is accepted too.
            .env("WAST_STRICT_COMPONENT_INDICES", "0")
            .envs(self.command.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let started = self.starter.start(command).await;
        let mut child = started.map_err(|error| match error.kind() {
            // The limit of processes, or memory.
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => {
                NotCompiled::NotNow(format!("the compiler cannot be started: {error}"))
            }
            _ => internal(&error),
        })?;
        let mut stdin = child.stdin.take().ok_or_else(|| internal(&"no stdin"))?;
        let stdout = child.stdout.take().ok_or_else(|| internal(&"no stdout"))?;
        let stderr = child.stderr.take().ok_or_else(|| internal(&"no stderr"))?;
        let order = Order {
            nice: whom.nice(),
            // For all its threads together, and never the first limit to be reached.
            max_cpu_seconds: timeout.as_secs().saturating_add(1) * CHILD_THREADS as u64,
            ..self.order
        };
        let mut order = serde_json::to_vec(&order).map_err(|error| internal(&error))?;
        order.push(b'\n');
        let work = async {
            let write = async {
                // A child that refuses early does not read all of its input.
                if stdin.write_all(&order).await.is_ok() && stdin.write_all(&wasm).await.is_ok() {
                    let _ = stdin.shutdown().await;
                }
                drop(stdin);
            };
            let mut words = Vec::new();
            let mut stderr = stderr.take(MAX_STDERR_BYTES);
            let read = read_answer(stdout, &self.directory);
            let ((), answer, _) = tokio::join!(write, read, stderr.read_to_end(&mut words));
            let answer = answer.map_err(|error| internal(&error))?;
            let status = child.wait().await.map_err(|error| internal(&error))?;
            Ok((answer, words, status))
        };
        let ((line, code), words, status) = match tokio::time::timeout(timeout, work).await {
            Ok(done) => done?,
            Err(_) => return Err(NotCompiled::Timeout(timeout)),
        };
        if !status.success() {
            return Err(self.not_compiled(status, &words));
        }
        if !line.ends_with(b"\n") {
            return Err(internal(&"no answer"));
        }
        match serde_json::from_slice(&line).map_err(|error| internal(&error))? {
            Answer::Compiled(kind) => Ok(Artefact {
                kind,
                note: Vec::new(),
                code,
            }),
            Answer::Refused(why) => Err(NotCompiled::Refused(why)),
        }
    }
}

/// Reads the line of a child's answer, and the artefact after it.
async fn read_answer(stdout: ChildStdout, directory: &Path) -> std::io::Result<(Vec<u8>, Code)> {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    (&mut stdout)
        .take(MAX_ANSWER_BYTES)
        .read_until(b'\n', &mut line)
        .await?;
    let mut stdout = stdout.take(MAX_ARTEFACT_BYTES);
    let mut code = Code::Held(Vec::new());
    loop {
        let mut part = Vec::new();
        (&mut stdout).take(PART_BYTES).read_to_end(&mut part).await?;
        if part.is_empty() {
            return Ok((line, code));
        }
        let directory = directory.to_owned();
        // A disk may be slow.
        let extended = tokio::task::spawn_blocking(move || code.extended(&part, &directory));
        code = extended.await.map_err(std::io::Error::other)??;
    }
}

/// The main function of a compiling child. Call it first in a process that [`CompilerCommand`] starts, and exit with
/// its result.
pub fn compile_child_main() -> ExitCode {
    match serve_order() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_order() -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stdin = std::io::stdin().lock();
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        stdin.read_exact(&mut byte).map_err(text)?;
        if byte[0] == b'\n' {
            break;
        }
        if line.len() as u64 >= MAX_ANSWER_BYTES {
            return Err("the order is too long".into());
        }
        line.push(byte[0]);
    }
    let order: Order = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
    limit_self(&order).map_err(text)?;
    let mut wasm = Vec::new();
    stdin
        .take(order.max_wasm_bytes as u64 + 1)
        .read_to_end(&mut wasm)
        .map_err(text)?;
    let (answer, code) = match compile(&wasm, &order) {
        Ok((kind, code)) => (Answer::Compiled(kind), code),
        Err(why) => (
            Answer::Refused(crate::journal::cut(&why, MAX_WHY_BYTES).to_owned()),
            Vec::new(),
        ),
    };
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &answer).map_err(|error| error.to_string())?;
    stdout
        .write_all(b"\n")
        .and_then(|()| stdout.write_all(&code))
        .and_then(|()| stdout.flush())
        .map_err(text)
}

fn compile(wasm: &[u8], order: &Order) -> Result<(Kind, Vec<u8>), String> {
    if wasm.len() > order.max_wasm_bytes {
        return Err(format!("has more than the maximum of {} bytes", order.max_wasm_bytes));
    }
    if wasm.is_empty() {
        return Err("is empty".into());
    }
    if !wasm.starts_with(b"\0asm") && wat::Detect::from_bytes(wasm) != wat::Detect::WasmText {
        return Err(crate::bounds::NOT_WASM.into());
    }
    let binary = wat::parse_bytes(wasm).map_err(|error| format!("is not valid WebAssembly text: {error}"))?;
    let kind = bounds::check(&binary, order.max_memory_bytes)?;
    let engine = Engine::new(&code_config()).map_err(|error| format!("{error:#}"))?;
    let code = match kind {
        Kind::Module | Kind::Image => engine.precompile_module(&binary),
        Kind::Component => engine.precompile_component(&binary),
    };
    Ok((
        kind,
        code.map_err(|error| format!("is not valid WebAssembly: {error:#}"))?,
    ))
}

fn limit_self(order: &Order) -> std::io::Result<()> {
    let limit = |resource, value: u64, grace: u64| {
        let limit = libc::rlimit {
            rlim_cur: value,
            rlim_max: value.saturating_add(grace),
        };
        // SAFETY: the pointer is to a live rlimit.
        if unsafe { libc::setrlimit(resource, &limit) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    limit(libc::RLIMIT_AS, order.max_address_space_bytes, 0)?;
    limit(libc::RLIMIT_CPU, order.max_cpu_seconds, CPU_GRACE_SECONDS)?;
    limit(libc::RLIMIT_CORE, 0, 0)?;
    // Where this fails, the kernel judges by size, which usually has the same result.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    crate::child::settle_in(order.nice);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a script whose compiler does this.
    async fn end(does: &str) -> NotCompiled {
        let command = CompilerCommand {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), does.into()],
            env: Vec::new(),
        };
        let compiler = Compiler::new(&SandboxConfig::new("unused".into(), command), "unused".into()).unwrap();
        let text = Bytes::from_static(b"(module)");
        let done = compiler.compile(text, For::Runs, Duration::from_secs(60)).await;
        done.map(|artefact| artefact.kind).unwrap_err()
    }

    #[tokio::test]
    async fn a_script_is_not_blamed_for_what_others_do_to_its_compiler() {
        for signal in ["SEGV", "ABRT", "XCPU"] {
            let end = end(&format!("kill -{signal} $$")).await;
            assert!(matches!(end, NotCompiled::Refused(_)), "{signal}: {end:?}");
        }
        // The kernel does this on a machine without memory, and may not do it again.
        let killed = end("kill -KILL $$").await;
        assert!(matches!(killed, NotCompiled::NotNow(_)), "{killed:?}");
        let failed = end("exit 3").await;
        assert!(matches!(failed, NotCompiled::Internal(_)), "{failed:?}");
    }
}
