//! The settings of a node's sandbox.

use crate::outgoing::requests_of_files;
use std::path::PathBuf;
use std::time::Duration;

/// The command of the compiling child process: a program that calls [`crate::compile_child_main`].
#[derive(Clone, Debug)]
pub struct CompilerCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Its environment; nothing of ours is passed on.
    pub env: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// The directory for compiled artefacts; created if needed. Whoever can write there can run code in the node.
    pub cache_dir: PathBuf,
    /// The directory for the compiled interpreters of text scripts, if not `cache_dir`. The same holds for it;
    /// sandboxes that live only for a short time may share one.
    pub interpreter_dir: Option<PathBuf>,
    /// The compiling child process.
    pub compiler: CompilerCommand,
    /// How long one compilation may take.
    pub compile_timeout: Duration,
    /// How much address space one compilation may take.
    pub compile_memory_bytes: u64,
    /// The largest script, binary or text.
    pub max_wasm_bytes: usize,
    /// Guest threads of the short lane.
    pub threads: usize,
    /// Guest threads of the long lane.
    pub long_threads: usize,
    /// How many attempts may have an instance at once.
    pub max_instances: u32,
    /// The largest `memory` that a task may request.
    pub max_memory_bytes: u64,
    /// How much linear memory all attempts together may have.
    pub total_memory_bytes: u64,
    /// The maximum bytes of linked scripts in memory.
    pub max_loaded_bytes: u64,
    /// The maximum of HTTP requests that all scripts together have under way.
    pub max_requests: usize,
    /// Private host names, addresses and networks (CIDR) that may be reached all the same.
    pub private_hosts: Vec<String>,
}

impl SandboxConfig {
    /// Settings for this machine's number of cores and memory.
    pub fn new(cache_dir: PathBuf, compiler: CompilerCommand) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            cache_dir,
            interpreter_dir: None,
            compiler,
            compile_timeout: Duration::from_secs(60),
            compile_memory_bytes: 2 << 30,
            max_wasm_bytes: 64 << 20,
            threads: cores,
            long_threads: cores,
            max_instances: 1_000,
            max_memory_bytes: 1 << 30,
            total_memory_bytes: physical_memory_bytes().map_or(4 << 30, |all| all / 4 * 3),
            max_loaded_bytes: 1 << 30,
            max_requests: requests_of_files(open_files_max().unwrap_or(0)),
            private_hosts: Vec::new(),
        }
    }
}

/// How many files this process may open.
fn open_files_max() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live rlimit.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    known.then_some(limit.rlim_cur)
}

/// The memory of the machine, or the part of it that the container may use.
fn physical_memory_bytes() -> Option<u64> {
    // SAFETY: sysconf has no preconditions.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let machine = u64::try_from(pages).ok()?.checked_mul(u64::try_from(page).ok()?)?;
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Some(container.map_or(machine, |limit: u64| limit.min(machine)))
}
