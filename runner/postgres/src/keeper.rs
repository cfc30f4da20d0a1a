//! The thread that starts the server, waits for it, and starts it again should it die.
//!
//! It must be a separate thread that lives as long as the server is needed: on Linux the kernel stops the server when
//! the *thread* that started it ends, so that a node killed with SIGKILL ends its server too.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::binaries::Binaries;
use crate::cluster::{Cluster, PidFile};
use crate::wait_until;

/// The pause between two checks whether the server is ready.
const READY_STEP: Duration = Duration::from_millis(4);
/// 10 minutes: a server that was killed replays up to `max_wal_size` of its log before it is ready.
const READY_STEPS: u32 = 150_000;
/// Children of a killed server hold its shared memory until they notice, within some seconds.
const MEMORY_IN_USE_TRIES: u32 = 50;
/// The pause before a server that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
const STOP_STEP: Duration = Duration::from_millis(5);
/// 60 s for a clean shutdown, then one without a checkpoint.
const FAST_STOP_STEPS: u32 = 12_000;
/// 10 s for that, then SIGKILL.
const HARD_STOP_STEPS: u32 = 2_000;
/// A log file that has grown past this is set aside, one former file is kept.
const MAX_LOG_BYTES: u64 = 8 << 20;
/// Lines of the log that are kept for error messages.
const RECENT_LINES: usize = 20;

/// A server that is kept running until this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Set once the first start has succeeded: from then on a server that dies is started again.
    established: AtomicBool,
    recent: Mutex<VecDeque<String>>,
}

#[derive(Debug, Default)]
struct State {
    /// The running server. Cleared before its number is given back, so that a signal never hits a stranger.
    process: Option<Pid>,
    stopping: bool,
    failed: Option<String>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.recent.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = self.state().process {
            let _ = rustix::process::kill_process(process, signal);
        }
    }

    /// Sleeps unless a stop is asked for; tells whether it is.
    fn pause(&self, for_: Duration) -> bool {
        let state = self.state();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, for_, |state| !state.stopping)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        state.stopping
    }
}

impl Keeper {
    /// Starts the server and returns when it accepts connections.
    pub(crate) fn start(cluster: &Cluster, binaries: &Binaries) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let commands = {
            // The thread needs no borrow of the cluster: the descriptors in a command stay open for as long as the
            // EmbeddedPostgres that owns both, and that drops the keeper first.
            let command = cluster.server(binaries);
            let log_file = cluster.log_file();
            let shared = Arc::clone(&shared);
            move || keep(command, &log_file, &shared)
        };
        let thread = std::thread::Builder::new()
            .name("postgres-keeper".into())
            .spawn(commands)
            .context("cannot start the thread that keeps Postgres")?;
        let keeper = Self {
            shared,
            thread: Some(thread),
        };
        keeper.await_ready(cluster.data())?;
        keeper.shared.established.store(true, Ordering::Release);
        Ok(keeper)
    }

    fn await_ready(&self, data: &Path) -> Result<()> {
        wait_until("starting the database server", READY_STEP, READY_STEPS, || {
            let state = self.shared.state();
            if let Some(failed) = &state.failed {
                bail!("{failed}");
            }
            let Some(process) = state.process else { return Ok(false) };
            let ready =
                PidFile::read(data).is_some_and(|file| file.ready && file.process == process.as_raw_nonzero().get());
            Ok(ready)
        })
    }

    /// The server's process, unless it is being started again.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.shared.state().process.map(|pid| pid.as_raw_nonzero().get() as u32)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.state().stopping = true;
        self.shared.changed.notify_all();
        for (signal, steps) in [
            (Signal::INT, FAST_STOP_STEPS),
            (Signal::QUIT, HARD_STOP_STEPS),
            (Signal::KILL, 1),
        ] {
            self.shared.signal(signal);
            if wait_until("stopping", STOP_STEP, steps, || Ok(thread.is_finished())).is_ok() {
                break;
            }
            tracing::warn!(?signal, "the database server did not stop");
        }
        let _ = thread.join();
    }
}

/// Runs the server until a stop is asked for, or until its first start has failed.
fn keep(mut command: Command, log_file: &Path, shared: &Arc<Shared>) {
    let mut memory_in_use = 0;
    loop {
        let ended = run_once(&mut command, log_file, shared);
        if shared.state().stopping {
            return;
        }
        let said = shared.recent().iter().cloned().collect::<Vec<_>>().join("\n");
        // See MEMORY_IN_USE_TRIES; a client's mistake in the log must not be taken for it.
        let waits_for_memory = said.contains("shared memory block") && memory_in_use < MEMORY_IN_USE_TRIES;
        if waits_for_memory {
            memory_in_use += 1;
        } else if !shared.established.load(Ordering::Acquire) {
            let how = match ended {
                Ok(how) => format!("the database server ended during its start ({how}):\n{said}"),
                Err(error) => format!("{error:#}"),
            };
            shared.state().failed = Some(how);
            return;
        } else {
            tracing::error!("the database server ended ({ended:?}); starting it again. Its output:\n{said}");
        }
        if shared.pause(RESTART_PAUSE) {
            return;
        }
    }
}

/// Spawns the server and waits for its end.
fn run_once(command: &mut Command, log_file: &Path, shared: &Arc<Shared>) -> Result<String> {
    shared.recent().clear();
    let mut child = {
        let mut state = shared.state();
        if state.stopping {
            return Ok("not started".into());
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
        state.process = Some(Pid::from_child(&child));
        child
    };
    let logger = child.stderr.take().map(|stderr| {
        let (log_file, shared) = (log_file.to_owned(), Arc::clone(shared));
        std::thread::Builder::new()
            .name("postgres-log".into())
            .spawn(move || copy_log(stderr, &log_file, &shared))
    });
    let how = reap(&mut child, shared)?;
    // The server's children may hold its log open for a moment longer, so a live server's log is not waited for.
    if shared.established.load(Ordering::Acquire) {
        return Ok(how);
    }
    if let Some(Ok(logger)) = logger {
        let _ = wait_until("the log's end", STOP_STEP, 200, || Ok(logger.is_finished()));
    }
    Ok(how)
}

fn reap(child: &mut Child, shared: &Shared) -> Result<String> {
    let process = Pid::from_child(child);
    // First without giving the number back.
    while let Err(error) = rustix::process::waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    {
        if error != rustix::io::Errno::INTR {
            break;
        }
    }
    shared.state().process = None;
    let status = child.wait().context("waiting for the database server failed")?;
    Ok(status.to_string())
}

/// Copies what the server says to a file of bounded size.
fn copy_log(stderr: ChildStderr, path: &Path, shared: &Shared) {
    let mut log = Log::open(path.to_owned());
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).into_owned();
        tracing::debug!(target: "heddle_postgres::server", "{line}");
        log.write(&line);
        let mut recent = shared.recent();
        if recent.len() == RECENT_LINES {
            recent.pop_front();
        }
        recent.push_back(line);
    }
}

struct Log {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
}

impl Log {
    fn open(path: PathBuf) -> Self {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .ok();
        let bytes = file
            .as_ref()
            .and_then(|file| file.metadata().ok())
            .map_or(0, |found| found.len());
        Self { path, file, bytes }
    }

    fn write(&mut self, line: &str) {
        if self.bytes > MAX_LOG_BYTES {
            let _ = std::fs::rename(&self.path, self.path.with_extension("1"));
            *self = Self::open(std::mem::take(&mut self.path));
        }
        if let Some(file) = &mut self.file {
            // A full disk must not take the server's log pump, and so the server, along.
            let _ = writeln!(file, "{line}");
            self.bytes += line.len() as u64 + 1;
        }
    }
}
