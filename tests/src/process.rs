//! The program as a process: started, watched, frozen, killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::PATIENCE;

/// The program that these tests are about: Cargo puts it beside them.
pub fn program() -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    let beside = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = beside.join("heddle-under-test");
    assert!(
        program.exists(),
        "{} has not been built: `cargo build -p heddle-tests`",
        program.display()
    );
    program
}

/// Runs the program to its end, as on a command line, without the variables that it reads from this process's
/// environment.
pub fn run_program(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    command(&program(), arguments, environment)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// The same where stderr cannot be written; its exit code.
pub fn run_unheard(arguments: &[&str], environment: &[(&str, &str)]) -> Option<i32> {
    let mut command = command(&program(), arguments, environment);
    let output = command.stdin(Stdio::null()).stderr(full_disk()).output();
    output.expect("the program starts").status.code()
}

/// A file that cannot be written, as on a full disk.
fn full_disk() -> Stdio {
    let file = std::fs::File::options().write(true).open("/dev/full");
    file.expect("/dev/full").into()
}

/// Creates a token in a database: `heddle token create`.
pub fn create_token(database_url: &str, name: &str, role: &str) -> Output {
    let words = format!("token create --database-url {database_url} --name {name} --role {role} -o json");
    run_program(&words.split(' ').collect::<Vec<_>>(), &[])
}

/// The same; its exit code, and all that it says.
pub fn heddle(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = run_program(arguments, environment);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.code(), said.concat())
}

/// The same for a command that has to succeed: what it writes to standard output.
#[track_caller]
pub fn heddle_succeeds(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = run_program(arguments, environment);
    let [text, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{arguments:?}: {text}{said}");
    text
}

/// A program that goes on, and what it says.
pub struct Spoken {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: String,
}

impl Spoken {
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = command(&program(), arguments, &[])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (send, lines) = unread();
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let streams: [Box<dyn std::io::Read + Send>; 2] = [Box::new(stdout), Box::new(stderr)];
        for stream in streams {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        Self {
            child,
            lines,
            said: String::new(),
        }
    }

    /// What it has said, as far as somebody has waited for it.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// The next line that it says until then.
    fn next(&mut self, until: tokio::time::Instant) -> Result<String, mpsc::RecvTimeoutError> {
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        let line = self.lines.recv_timeout(left)?;
        self.said.push_str(&line);
        self.said.push('\n');
        Ok(line)
    }

    /// Waits for a line, from here on, that has these words.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.next(until) {
                Ok(line) if line.contains(words) => return,
                Ok(_) => {}
                Err(error) => panic!("it does not say `{words}` ({error}):\n{}", self.said),
            }
        }
    }

    /// Waits for its end; its exit code, and all that it has said.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.next(until) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not end:\n{}", self.said),
            }
        }
        let code = self.child.wait().expect("it ends").code();
        (code, std::mem::take(&mut self.said))
    }

    /// Ends it by SIGINT, as Ctrl-C does; its exit code.
    pub fn interrupt(mut self) -> Option<i32> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).expect("it goes on");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program under test must not wait until a test reads what it printed"
)]
fn unread() -> (mpsc::Sender<String>, mpsc::Receiver<String>) {
    mpsc::channel()
}

fn command(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HEDDLE_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(environment.iter().copied());
    command
}

/// Lets this process open as many files as the system allows, for tests with a thousand connections.
pub fn allow_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("more open files");
}

/// A process that ends with this.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    log: PathBuf,
}

impl Process {
    /// Starts the program; its log goes to a file.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)], log: PathBuf) -> Self {
        Self::start_from(&program(), arguments, environment, log)
    }

    /// The same from another file.
    pub fn start_from(program: &Path, arguments: &[&str], environment: &[(&str, &str)], log: PathBuf) -> Self {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a file for the log");
        let mut command = command(program, arguments, environment);
        command.stderr(file);
        Self::of(command, log)
    }

    /// The same when its log cannot be written; `log` is a file that there will not be.
    pub fn start_unheard(program: &Path, arguments: &[&str], environment: &[(&str, &str)], log: PathBuf) -> Self {
        let mut command = command(program, arguments, environment);
        command.stderr(full_disk());
        Self::of(command, log)
    }

    /// Starts another program; what it says on stderr goes where its command says, `log` is shown if a test fails.
    pub fn of(mut command: Command, log: PathBuf) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: the call is one that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().expect("the program starts");
        let stdout = child.stdout.take().expect("its stdout");
        let (sender, lines) = unread();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines, log }
    }

    /// Waits for the line that tells the address, and answers the address.
    pub async fn ready(&mut self) -> String {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.lines.try_recv() {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("Heddle is ready at ") {
                        return address.trim().to_owned();
                    }
                }
                Err(mpsc::TryRecvError::Disconnected) => {
                    panic!(
                        "the program ended ({:?}) before it was ready:\n{}",
                        self.child.wait(),
                        self.log()
                    )
                }
                Err(mpsc::TryRecvError::Empty) => {
                    assert!(
                        tokio::time::Instant::now() < until,
                        "the program is not ready:\n{}",
                        self.log()
                    );
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    /// The next line that it prints with these words in it, which has to come.
    pub async fn says(&mut self, words: &str) -> String {
        crate::eventually(&format!("line with `{words}`"), async || {
            std::iter::from_fn(|| self.lines.try_recv().ok()).find(|line| line.contains(words))
        })
        .await
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id");
        // One that has ended already is what some callers want.
        let _ = kill_process(pid, signal);
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// SIGSTOP: it lives, and does nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT: it goes on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM, as an operator does to stop it.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGINT, as Ctrl-C sends it.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    /// Waits for the end.
    pub async fn end(&mut self) -> std::process::ExitStatus {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                tokio::time::Instant::now() < until,
                "the program does not end:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
            let shown: Vec<&str> = log.lines().skip(skipped).collect();
            eprintln!(
                "--- log of process {} ({skipped} lines left out)\n{}\n---",
                self.child.id(),
                shown.join("\n")
            );
        }
    }
}

/// How many lines of a log a failed test shows.
const LOG_LINES_SHOWN: usize = 60;
