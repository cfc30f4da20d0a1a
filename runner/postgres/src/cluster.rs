//! The cluster on disk: its lock, its making, its settings, and what a former node left of it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use sha2::{Digest, Sha256};

use crate::binaries::{self, Binaries};
use crate::owner::{self, Owner};
use crate::{Options, ROLE, tail, wait_until};

/// The longest socket directory: `sun_path` has 108 bytes on Linux, 104 elsewhere, and the socket's own name takes 18.
const MAX_SOCKET_DIR_BYTES: usize = 104 - 18;
/// How many names are tried for a socket directory outside of the data directory.
const SOCKET_DIR_NAMES: u32 = 8;

/// Another process runs on the data directory.
#[derive(Debug)]
pub struct InUse {
    pub data_dir: PathBuf,
    /// The process that holds it, if it has said so.
    pub holder: Option<u32>,
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the data directory {} is in use by ", self.data_dir.display())?;
        match self.holder {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

impl std::error::Error for InUse {}

/// A prepared cluster. Holds the lock, and open directories for a server that runs as another user.
#[derive(Debug)]
pub(crate) struct Cluster {
    root: PathBuf,
    data: ServerDir,
    socket: ServerDir,
    owner: Option<Owner>,
    _lock: File,
}

/// A directory, and the name under which the server knows it.
#[derive(Debug)]
pub(crate) struct ServerDir {
    path: PathBuf,
    /// Open where the server could perhaps not reach the path: it inherits this.
    inherited: Option<OwnedFd>,
}

impl ServerDir {
    fn new(path: PathBuf, owner: Option<&Owner>) -> Result<Self> {
        // Only Linux has names for open directories that can be walked through; elsewhere the path must do.
        if owner.is_none() || !cfg!(target_os = "linux") {
            return Ok(Self { path, inherited: None });
        }
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd =
            rustix::fs::open(&path, flags, Mode::empty()).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self {
            path,
            inherited: Some(fd),
        })
    }

    /// The arguments of the server.
    pub(crate) fn name(&self) -> PathBuf {
        match &self.inherited {
            Some(fd) => PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
            None => self.path.clone(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The major version that made the cluster of a data directory; `None` if there is none yet.
pub(crate) fn major_of(data_dir: &Path) -> Result<Option<u32>> {
    let file = data_dir.join("postgres").join("data").join("PG_VERSION");
    match std::fs::read_to_string(&file) {
        Ok(text) => match binaries::major_in(&text) {
            Some(major) => Ok(Some(major)),
            None => bail!("{} does not contain a version of PostgreSQL", file.display()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

impl Cluster {
    /// Takes the lock, makes the cluster if there is none, writes its settings and clears what a former node left.
    pub(crate) fn prepare(options: &Options, binaries: &Binaries) -> Result<Self> {
        create_private_dir(&options.data_dir)?;
        let data_dir = options
            .data_dir
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", options.data_dir.display()))?;
        let root = data_dir.join("postgres");
        create_private_dir(&root)?;
        let lock = lock(&root, &data_dir)?;

        let data = root.join("data");
        let owner = owner::choose(&data)?;
        if !data.join("PG_VERSION").exists() {
            create(&root, &data, owner.as_ref(), binaries, options.for_tests)?;
        }
        settle_former_server(&data)?;
        write_settings(&data, owner.as_ref(), &settings(options.for_tests, options.stock))?;
        let socket_dir = socket_dir(&root, &data_dir, owner.as_ref())?;
        for leftover in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
            // Ours alone, since we hold the lock; a stale one with a reused process number would stop the server.
            let _ = std::fs::remove_file(socket_dir.join(leftover));
        }
        Ok(Self {
            data: ServerDir::new(data, owner.as_ref())?,
            socket: ServerDir::new(socket_dir, owner.as_ref())?,
            root,
            owner,
            _lock: lock,
        })
    }

    /// Where the server logs to.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.root.join("log")
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    pub(crate) fn socket_dir(&self) -> &Path {
        self.socket.path()
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// The server's command line; whoever spawns it must outlive it.
    pub(crate) fn server(&self, binaries: &Binaries) -> Command {
        let inherited = [&self.data, &self.socket];
        let mut command = program(binaries, "postgres", self.owner.as_ref(), &inherited);
        command
            .arg("-D")
            .arg(self.data.name())
            .args(["-c", "listen_addresses=", "-c"])
            .arg(format!("unix_socket_directories={}", self.socket.name().display()));
        command
    }
}

fn create_private_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))
}

/// Takes the lock that one process per data directory holds, and writes into it who that is.
fn lock(root: &Path, data_dir: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = (&file).take(32).read_to_string(&mut text);
            let holder = text.trim().parse().ok();
            return Err(InUse {
                data_dir: data_dir.to_owned(),
                holder,
            }
            .into());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// A program of the server's, as the server's user, that ends with the thread that spawns it.
fn program(binaries: &Binaries, name: &str, owner: Option<&Owner>, inherited: &[&ServerDir]) -> Command {
    let mut command = Command::new(binaries.program(name));
    // PG* and LC_* of our parent's environment must not affect the cluster; TZ and the like come from its settings.
    command
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    // Its own process group: otherwise Ctrl-C in a terminal would stop the database before the node has drained. The
    // working directory must be one that every user can enter.
    command.current_dir("/").process_group(0);
    if let Some(owner) = owner {
        // The standard library drops supplementary groups along with root.
        command.gid(owner.gid).uid(owner.uid);
    }
    let fds: Vec<RawFd> = inherited
        .iter()
        .filter_map(|dir| dir.inherited.as_ref())
        .map(|fd| fd.as_fd().as_raw_fd())
        .collect();
    let parent = std::process::id();
    // SAFETY: only async-signal-safe system calls between fork and exec, and no allocation; the descriptors are open,
    // since the Cluster that owns them is borrowed by whoever spawns.
    unsafe {
        command.pre_exec(move || before_exec(&fds, parent));
    }
    command
}

/// Runs in the child, after the change of user (which would clear the death signal).
fn before_exec(fds: &[RawFd], parent: u32) -> std::io::Result<()> {
    for fd in fds {
        // SAFETY: see `program`.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) };
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_parent_process_death_signal(Some(Signal::INT))?;
        // The parent may have died before that; then nobody would send the signal.
        if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32) != Some(parent) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = parent;
    Ok(())
}

/// Makes a new cluster under another name and renames it when it is complete.
fn create(root: &Path, data: &Path, owner: Option<&Owner>, binaries: &Binaries, for_tests: bool) -> Result<()> {
    let making = root.join("data.new");
    for leftover in [&making, &data.to_owned()] {
        if leftover.exists() {
            // `data` without PG_VERSION is empty or not ours.
            if leftover == data && std::fs::read_dir(data)?.next().is_some() {
                bail!(
                    "{} is not empty and not a Postgres cluster; move it to another place",
                    data.display()
                );
            }
            std::fs::remove_dir_all(leftover).with_context(|| format!("cannot remove {}", leftover.display()))?;
        }
    }
    create_private_dir(&making)?;
    give_to(&making, owner)?;
    let dir = ServerDir::new(making.clone(), owner)?;
    let mut command = program(binaries, "initdb", owner, &[&dir]);
    command.arg("-D").arg(dir.name());
    // Only who may enter the socket's directory (its owner and root) can connect at all, so the socket itself trusts.
    command.args([
        "--username",
        ROLE,
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale=C",
    ]);
    if for_tests {
        command.arg("--no-sync");
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", binaries.program("initdb").display()))?;
    if !output.status.success() {
        bail!("initdb failed ({}):\n{}", output.status, tail(&output.stderr, 10));
    }
    std::fs::rename(&making, data).with_context(|| format!("cannot rename {}", making.display()))?;
    Ok(())
}

fn give_to(path: &Path, owner: Option<&Owner>) -> Result<()> {
    match owner {
        Some(owner) => std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid))
            .with_context(|| format!("cannot give {} to the user {}", path.display(), owner.name)),
        None => Ok(()),
    }
}

/// Writes `postgresql.conf` again if it is not as wanted. `local.conf` next to it, and ALTER SYSTEM, override it.
fn write_settings(data: &Path, owner: Option<&Owner>, wanted: &str) -> Result<()> {
    let path = data.join("postgresql.conf");
    if std::fs::read_to_string(&path).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    let making = data.join("postgresql.conf.new");
    let _ = std::fs::remove_file(&making);
    // `create_new` does not follow a link that the server's user might have left here for root to write through.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&making)
        .with_context(|| format!("cannot write {}", making.display()))?;
    file.write_all(wanted.as_bytes())?;
    file.sync_all()?;
    give_to(&making, owner)?;
    std::fs::rename(&making, &path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// The content of Debian's `postgresql.conf` for a new cluster; all else is Postgres' default.
const STOCK: &str = "# Written by heddle's tests at each start: a server as Debian ships it.\n\
     max_connections = 100\n\
     shared_buffers = 128MB\n\
     dynamic_shared_memory_type = posix\n\
     max_wal_size = 1GB\n\
     min_wal_size = 80MB\n\
     unix_socket_permissions = 0700\n\
     timezone = 'Etc/UTC'\n\
     log_timezone = 'Etc/UTC'\n\
     datestyle = 'iso, mdy'\n\
     lc_messages = 'C'\n\
     default_text_search_config = 'pg_catalog.english'\n";

fn settings(for_tests: bool, stock: bool) -> String {
    if stock {
        return STOCK.to_owned();
    }
    let durability = if for_tests {
        "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\nmax_connections = 400\nautovacuum = on\n"
    } else {
        // An accepted run survives a power cut: that is a promise, so commits wait for the disk.
        "fsync = on\nfull_page_writes = on\nsynchronous_commit = on\nmax_connections = 200\nautovacuum = on\n"
    };
    format!(
        "# Written by heddle at each start. Put what you want different into local.conf beside this file.\n\
         {durability}\
         shared_buffers = 128MB\n\
         wal_level = logical\n\
         wal_compression = on\n\
         max_wal_size = 2GB\n\
         min_wal_size = 128MB\n\
         checkpoint_timeout = 15min\n\
         checkpoint_completion_target = 0.9\n\
         autovacuum_naptime = 10s\n\
         jit = off\n\
         unix_socket_permissions = 0700\n\
         password_encryption = 'scram-sha-256'\n\
         timezone = 'UTC'\n\
         log_timezone = 'UTC'\n\
         datestyle = 'iso, ymd'\n\
         lc_messages = 'C'\n\
         logging_collector = off\n\
         log_checkpoints = off\n\
         log_autovacuum_min_duration = -1\n\
         log_min_messages = warning\n\
         include_if_exists = 'local.conf'\n"
    )
}

/// A directory for the socket that only the server's user (and root) may enter: in the data directory, or, where that
/// makes too long a path for a socket, in the user's runtime directory or /tmp.
fn socket_dir(root: &Path, data_dir: &Path, owner: Option<&Owner>) -> Result<PathBuf> {
    let inside = root.join("socket");
    if inside.as_os_str().len() <= MAX_SOCKET_DIR_BYTES {
        create_private_dir(&inside)?;
        give_to(&inside, owner)?;
        return Ok(inside);
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute() && dir.is_dir() && dir.as_os_str().len() + 32 <= MAX_SOCKET_DIR_BYTES);
    let base = runtime.unwrap_or_else(|| PathBuf::from("/tmp"));
    let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    for number in 0..SOCKET_DIR_NAMES {
        let path = base.join(format!("heddle-{hash}-{number}"));
        if claim_outside(&path, owner)? {
            return Ok(path);
        }
    }
    bail!(
        "cannot create a private directory for the socket of the database in {}",
        base.display()
    )
}

/// Makes a directory where others may write, too, or takes it up again if nobody else can have tampered with it.
fn claim_outside(path: &Path, owner: Option<&Owner>) -> Result<bool> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = path
                .symlink_metadata()
                .with_context(|| format!("cannot read {}", path.display()))?;
            let ours = rustix::process::geteuid().as_raw();
            let trusted = found.uid() == ours || owner.is_some_and(|owner| owner.uid == found.uid());
            if !found.is_dir() || !trusted || found.permissions().mode() & 0o077 != 0 {
                return Ok(false);
            }
        }
        Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
    }
    give_to(path, owner)?;
    Ok(true)
}

/// The content of a server's `postmaster.pid`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PidFile {
    pub(crate) process: i32,
    pub(crate) ready: bool,
}

impl PidFile {
    pub(crate) fn read(data: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let mut lines = text.lines();
        let process = lines.next()?.trim().parse().ok()?;
        // The eighth line is the state; `pg_ctl` waits for the same word.
        let ready = lines.nth(6).is_some_and(|state| state.trim() == "ready");
        Some(Self { process, ready })
    }
}

/// Waits for, or stops, the server of a dead node: ours cannot start while it runs.
fn settle_former_server(data: &Path) -> Result<()> {
    const STEP: Duration = Duration::from_millis(20);
    const FAST: u32 = 1_500; // 30 s for a clean shutdown
    const HARD: u32 = 500; // 10 s more for one without a checkpoint
    let mut steps = 0;
    wait_until(
        "stopping the database server of an earlier node",
        STEP,
        FAST + HARD,
        || {
            let Some(found) = PidFile::read(data) else {
                return Ok(true);
            };
            let Some(pid) = Pid::from_raw(found.process) else {
                return Ok(true);
            };
            // EPERM means that it lives, as somebody else.
            if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
                return Ok(true);
            }
            if !serves(pid, data) {
                // The number was given to another process since; the server would take that for its former self.
                std::fs::remove_file(data.join("postmaster.pid")).context("cannot remove a stale postmaster.pid")?;
                return Ok(true);
            }
            match steps {
                0 => {
                    tracing::info!(
                        process = found.process,
                        "waiting until the database server of an earlier node has stopped"
                    );
                    let _ = rustix::process::kill_process(pid, Signal::INT);
                }
                FAST => {
                    let _ = rustix::process::kill_process(pid, Signal::QUIT);
                }
                _ => {}
            }
            steps += 1;
            Ok(false)
        },
    )
}

/// Whether a process is a Postgres server on this very directory: its working directory is its data directory.
#[cfg(target_os = "linux")]
fn serves(pid: Pid, data: &Path) -> bool {
    let there = std::fs::metadata(format!("/proc/{}/cwd", pid.as_raw_nonzero()));
    match (there, data.metadata()) {
        (Ok(there), Ok(ours)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

/// Whether a process is a Postgres server; the file that named it says on which directory.
#[cfg(not(target_os = "linux"))]
fn serves(pid: Pid, _data: &Path) -> bool {
    let number = pid.as_raw_nonzero().to_string();
    Command::new("ps")
        .args(["-o", "comm=", "-p", &number])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("postgres"))
}
