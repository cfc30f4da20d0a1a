//! Bounded work: child processes that compute with input from strangers, and are killed when that takes too much.
//!
//! `heddle_domain::bounded` says what is computed so, and why not in the node. This module has the children: a few
//! processes of the same program, started when first needed and kept for further work. A child limits its own address
//! space. The thread that owns it gives it one work at a time and watches its processor time, by the child's own clock,
//! so that work does not fail because the machine is busy. A child that exceeds a limit is killed and replaced: the
//! computation has ended before its caller is told. Children have a low priority, so that light runs go first.
//!
//! Callers wait on their own thread. A thread of tokio is told so (`block_in_place`), so that its other async tasks
//! continue elsewhere; the number of callers that wait is bounded.
//!
//! Work that was stopped a few times is refused for a while without a try: sixty items of a map with one impossible
//! template cost three tries, not sixty.

use crate::config::CompilerCommand;
use heddle_domain::bounded::{Bounds, Input, Stopped};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};

/// The processor time of one work. Without optimisation everything takes longer.
const CPU_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 100 });
/// The address space of a child in addition to what it starts with, in MiB.
const MEMORY_MAX_MIB: u64 = 64;
/// Added to both for each MiB of input: a long input takes long to read.
const CPU_PER_MIB: Duration = Duration::from_millis(if cfg!(debug_assertions) { 4_000 } else { 100 });
/// The same for a text. YAML of a group with 10,000 tasks takes 0.3 to 0.5 s for each MiB, and 0.8 s if it has little but
/// short items. The bound of a body (4 MiB) bounds the whole.
const CPU_PER_MIB_OF_TEXT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 20_000 } else { 1_000 });
const MEMORY_PER_MIB: u64 = 24;
/// How long one work may take in all, on a machine that is too busy for it.
const WALL_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 10 });
/// How long a child may take to start.
const START_MAX: Duration = Duration::from_secs(20);
/// How long an idle child is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How often the clock of a working child is read.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// At most this many children work at a time, on at most half of the processors. However low its priority, a thread
/// that has a processor to itself keeps it for a moment when others wake up, and what light runs wait for (a guest's
/// thread, the database) may have another group or priority in the kernel. With free processors left, they do not have
/// to wait.
const CHILDREN_MAX: usize = 4;
/// How many works may wait, each on a thread: more than a node has requests and attempts in preparation.
const WAITING_MAX: usize = 1_536;
/// How many blocking threads a runtime needs whose async tasks wait for bounded work.
pub const BLOCKED_THREADS_MAX: usize = 2_048;
/// After how many works a child is replaced.
const SERVED_MAX: u32 = 10_000;
/// The niceness of a child: behind the guests of light runs.
const CHILD_NICE: libc::c_int = 19;
/// The longest work, and the longest answer.
const FRAME_MAX_BYTES: usize = 256 << 20;
/// After how many kills a key is refused, and for how long.
const STOPS_MAX: u32 = 3;
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// How many such keys are remembered.
const KEYS_MAX: usize = 1_024;

/// The messages of a child: it is ready; it has passed the part for which a work's key stands; an answer follows.
const READY: u8 = b'r';
const BEGUN: u8 = b'b';
const ANSWER: u8 = b'a';

#[expect(
    clippy::disallowed_methods,
    reason = "how long a process takes is real time, whatever the node's clock says"
)]
fn now() -> Instant {
    Instant::now()
}

/// The processor time for a work with this many bytes of input.
fn cpu_max(bytes: usize, input: Input) -> Duration {
    let per_mib = match input {
        Input::Values => CPU_PER_MIB,
        Input::Text => CPU_PER_MIB_OF_TEXT,
    };
    CPU_MAX + per_mib * (bytes >> 10) as u32 / 1_024
}

fn memory_max_mib(bytes: usize) -> u64 {
    MEMORY_MAX_MIB + MEMORY_PER_MIB * (bytes as u64 >> 10) / 1_024
}

/// From now on, bounded work of this process is done by children of this command, which is a program that calls
/// [`bounded_child_main`].
pub fn bound_by_children(command: CompilerCommand) -> std::io::Result<()> {
    heddle_domain::bounded::install(Box::new(Children::start(command)?));
    Ok(())
}

struct Job {
    work: Vec<u8>,
    input: Input,
    key: u64,
    reply: SyncSender<Result<Vec<u8>, Stopped>>,
}

/// Waiting works, by owner. Owners are served round-robin, so that an owner with many works does not delay the others.
#[derive(Default)]
struct Queue {
    waiting: usize,
    /// Owners of waiting works, in the order in which they are served.
    owners: VecDeque<u64>,
    jobs: HashMap<u64, VecDeque<Job>>,
}

impl Queue {
    fn push(&mut self, owner: u64, job: Job) {
        self.waiting += 1;
        let jobs = self.jobs.entry(owner).or_default();
        if jobs.is_empty() {
            self.owners.push_back(owner);
        }
        jobs.push_back(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let owner = self.owners.pop_front()?;
        let jobs = self.jobs.get_mut(&owner)?;
        let job = jobs.pop_front()?;
        self.waiting -= 1;
        match jobs.is_empty() {
            true => drop(self.jobs.remove(&owner)),
            false => self.owners.push_back(owner),
        }
        Some(job)
    }
}

struct Stops {
    count: u32,
    last: Instant,
    why: Stopped,
}

struct Shared {
    command: CompilerCommand,
    queue: Mutex<Queue>,
    wake: Condvar,
    stops: Mutex<HashMap<u64, Stops>>,
}

/// The threads that own the children.
struct Children {
    shared: Arc<Shared>,
}

impl Children {
    fn start(command: CompilerCommand) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            command,
            queue: Mutex::default(),
            wake: Condvar::new(),
            stops: Mutex::default(),
        });
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for number in 0..(cores / 2).clamp(1, CHILDREN_MAX) {
            let shared = Arc::clone(&shared);
            // Each child has its own thread: it dies with the thread that started it.
            std::thread::Builder::new()
                .name(format!("bounded-{number}"))
                .spawn(move || shared.serve())?;
        }
        Ok(Self { shared })
    }
}

impl Bounds for Children {
    fn compute(&self, work: Vec<u8>, input: Input, key: u64, owner: u64) -> Result<Vec<u8>, Stopped> {
        if let Some(why) = self.shared.refused(key) {
            return Err(why);
        }
        if work.len() > FRAME_MAX_BYTES {
            return Err(Stopped::Memory(MEMORY_MAX_MIB));
        }
        let (reply, answer) = sync_channel(1);
        {
            let mut queue = self.shared.queue.lock();
            if queue.waiting >= WAITING_MAX {
                return Err(Stopped::Trouble("too many requests at the same time".into()));
            }
            let job = Job {
                work,
                input,
                key,
                reply,
            };
            queue.push(owner, job);
        }
        self.shared.wake.notify_one();
        let wait = || {
            answer
                .recv()
                .unwrap_or_else(|_| Err(Stopped::Trouble("no worker process".into())))
        };
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            _ => wait(),
        }
    }
}

impl Shared {
    /// Why a work is not tried: works with its key were stopped too often recently.
    fn refused(&self, key: u64) -> Option<Stopped> {
        let stops = self.stops.lock();
        let stop = stops.get(&key)?;
        (stop.count >= STOPS_MAX && stop.last.elapsed() < REFUSED_FOR).then(|| stop.why.clone())
    }

    fn remember(&self, key: u64, why: &Stopped) {
        let last = now();
        let mut stops = self.stops.lock();
        if stops.len() >= KEYS_MAX && !stops.contains_key(&key) {
            stops.retain(|_, stop| stop.last.elapsed() < REFUSED_FOR);
            if stops.len() >= KEYS_MAX {
                return;
            }
        }
        let stop = stops.entry(key).or_insert_with(|| Stops {
            count: 0,
            last,
            why: why.clone(),
        });
        if stop.last.elapsed() >= REFUSED_FOR {
            stop.count = 0;
        }
        stop.count += 1;
        stop.last = last;
        stop.why = why.clone();
    }

    /// What each thread does.
    fn serve(&self) {
        let mut worker = None;
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    match queue.pop() {
                        Some(job) => break job,
                        None if worker.is_some() => {
                            if self.wake.wait_for(&mut queue, IDLE_MAX).timed_out() && queue.waiting == 0 {
                                worker = None;
                            }
                        }
                        None => self.wake.wait(&mut queue),
                    }
                }
            };
            // Another work with its key may have been stopped while this one waited.
            let result = match self.refused(job.key) {
                Some(why) => Err(why),
                None => self.compute(&mut worker, &job),
            };
            // The caller may be gone.
            let _ = job.reply.send(result);
        }
    }

    fn compute(&self, worker: &mut Option<Worker>, job: &Job) -> Result<Vec<u8>, Stopped> {
        let trouble = |error: std::io::Error| Stopped::Trouble(format!("the worker process failed: {error}"));
        loop {
            let (mut current, fresh) = match worker.take() {
                Some(current) => (current, false),
                None => (Worker::start(&self.command).map_err(trouble)?, true),
            };
            let cpu_max = cpu_max(job.work.len(), job.input);
            let why = match current.ask(&job.work, cpu_max).map_err(trouble)? {
                Said::Answer(answer) => {
                    current.served += 1;
                    *worker = Some(current).filter(|current| current.served < SERVED_MAX);
                    return Ok(answer);
                }
                // The memory of earlier works counts too, and somebody may have killed the child while it was idle.
                Said::Died { .. } if !fresh => continue,
                Said::Died { signal: None } => {
                    return Err(Stopped::Trouble("the worker process ended".into()));
                }
                Said::Died { signal: Some(_) } => Stopped::Memory(memory_max_mib(job.work.len())),
                Said::Late => {
                    tracing::warn!(
                        "a worker process got no processor time for {WALL_MAX:?}; the machine is overloaded"
                    );
                    return Err(Stopped::Trouble("the machine is too busy".into()));
                }
                Said::TooLong => Stopped::Time(cpu_max.as_millis() as u64),
            };
            if !current.begun {
                self.remember(job.key, &why);
            }
            return Err(why);
        }
    }
}

/// The result of a work.
enum Said {
    Answer(Vec<u8>),
    Died { signal: Option<i32> },
    TooLong,
    Late,
}

/// A child and our ends of its pipes. It is killed on drop.
struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    served: u32,
    /// Whether the last work passed the part for which its key stands.
    begun: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(command: &CompilerCommand) -> std::io::Result<Self> {
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .env_clear()
            // Freed memory is returned at once, because the address space is limited.
            .env("MALLOC_ARENA_MAX", "1")
            .env("_RJEM_MALLOC_CONF", "narenas:1,retain:false")
            .envs(command.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (stdin, stdout) = match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => (stdin, stdout),
            _ => return Err(std::io::Error::other("no pipes")),
        };
        let mut worker = Self {
            child,
            stdin,
            stdout,
            served: 0,
            begun: false,
        };
        let began = now();
        while !readable(worker.stdout.as_raw_fd(), POLL_EVERY)? {
            if began.elapsed() > START_MAX {
                return Err(std::io::Error::other("it did not start"));
            }
        }
        let mut said = [0];
        worker.stdout.read_exact(&mut said)?;
        if said != [READY] {
            return Err(std::io::Error::other("it did not report that it is ready"));
        }
        Ok(worker)
    }

    /// Gives it a work, which may take this much processor time.
    fn ask(&mut self, work: &[u8], cpu_max: Duration) -> std::io::Result<Said> {
        self.begun = false;
        let (began, cpu) = (now(), self.cpu());
        let written = self
            .stdin
            .write_all(&(work.len() as u32).to_le_bytes())
            .and_then(|()| self.stdin.write_all(work));
        if written.is_err() {
            return self.died();
        }
        let mut heard = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        loop {
            while !readable(self.stdout.as_raw_fd(), POLL_EVERY)? {
                if self.cpu().saturating_sub(cpu) > cpu_max {
                    return Ok(Said::TooLong);
                }
                if began.elapsed() > WALL_MAX {
                    return Ok(Said::Late);
                }
            }
            let count = self.stdout.read(&mut chunk)?;
            if count == 0 {
                return self.died();
            }
            heard.extend_from_slice(&chunk[..count]);
            if heard.first() == Some(&BEGUN) {
                self.begun = true;
                heard.remove(0);
            }
            let Some((head, rest)) = heard.split_first_chunk::<5>() else {
                continue;
            };
            let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if head[0] != ANSWER || length > FRAME_MAX_BYTES {
                return Err(std::io::Error::other("its answer is not valid"));
            }
            if rest.len() >= length {
                return Ok(Said::Answer(rest[..length].to_vec()));
            }
        }
    }

    fn died(&mut self) -> std::io::Result<Said> {
        // It has closed its end of the pipe: it has ended, or is about to.
        let _ = self.child.kill();
        let signal = self.child.wait()?.signal();
        Ok(Said::Died { signal })
    }

    /// The processor time that it has used so far.
    fn cpu(&self) -> Duration {
        let mut clock: libc::clockid_t = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both pointers are to live values; the child has not been waited for, so that its id is its own.
        let known = unsafe {
            libc::clock_getcpuclockid(self.child.id() as libc::pid_t, &mut clock) == 0
                && libc::clock_gettime(clock, &mut time) == 0
        };
        match known {
            true => Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32),
            false => Duration::ZERO,
        }
    }
}

/// Waits until there is something to read, or the other end is closed.
fn readable(fd: RawFd, patience: Duration) -> std::io::Result<bool> {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one live pollfd.
    match unsafe { libc::poll(&mut poll, 1, patience.as_millis() as libc::c_int) } {
        -1 => match std::io::Error::last_os_error() {
            error if error.kind() == std::io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        ready => Ok(ready > 0),
    }
}

/// The main function of a child: call it first in a process that was started for [`bound_by_children`], and exit with
/// its result.
pub fn bounded_child_main() -> ExitCode {
    // A library may panic when a size exceeds what can be addressed. That is the input's fault, not ours: the child dies by
    // a signal, as it does when it gets no more memory.
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    match serve_works() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve_works() -> std::io::Result<()> {
    let own = limit_self()?;
    let mut stdin = std::io::stdin().lock();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&[READY])?;
    stdout.flush()?;
    loop {
        let mut length = [0; 4];
        match stdin.read_exact(&mut length) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let length = u32::from_le_bytes(length) as usize;
        limit(libc::RLIMIT_AS, own + (memory_max_mib(length) << 20))?;
        let mut work = vec![0; length];
        stdin.read_exact(&mut work)?;
        let mut sent = Ok(());
        let answer = heddle_domain::bounded::answer(&work, &mut || {
            sent = stdout.write_all(&[BEGUN]).and_then(|()| stdout.flush());
        });
        sent?;
        let mut head = vec![ANSWER];
        head.extend((answer.len() as u32).to_le_bytes());
        stdout.write_all(&head)?;
        stdout.write_all(&answer)?;
        stdout.flush()?;
    }
}

/// Sets a limit, as far as the system's own limit allows.
fn limit(resource: libc::__rlimit_resource_t, value: u64) -> std::io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointers are to a live rlimit.
    let set = unsafe {
        libc::getrlimit(resource, &mut limit) == 0 && {
            limit.rlim_cur = value.min(limit.rlim_max);
            libc::setrlimit(resource, &limit) == 0
        }
    };
    match set {
        true => Ok(()),
        false => Err(std::io::Error::last_os_error()),
    }
}

/// Returns the address space of the program itself, which depends on the build: the limit is for what is added.
fn limit_self() -> std::io::Result<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")?
        .split_whitespace()
        .next()
        .and_then(|pages| pages.parse().ok())
        .ok_or_else(|| std::io::Error::other("/proc/self/statm cannot be understood"))?;
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.unsigned_abs();
    limit(libc::RLIMIT_CORE, 0)?;
    crate::child::settle_in(CHILD_NICE);
    Ok(pages * page)
}
