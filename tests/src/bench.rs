//! What benchmarks share: real time, a Postgres that keeps its promises, the released program, and figures of samples.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heddle_postgres::{EmbeddedPostgres, Options};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::world::{connect, migrate};

/// Names another program to measure than the one that Cargo has built.
const PROGRAM: &str = "HEDDLE_PROGRAM";

/// The name of a fixture's own database.
const DATABASE: &str = "heddle";

/// The real time: the subject of a benchmark.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// The smallest sample that is not exceeded by this share of all samples. Sorts them.
pub fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() as f64 * share) as usize).min(samples.len() - 1)]
}

/// The sample in the middle.
pub fn median(mut samples: Vec<f64>) -> f64 {
    percentile(&mut samples, 0.5)
}

/// The program that is measured.
pub fn program() -> PathBuf {
    std::env::var_os(PROGRAM).map_or_else(crate::program, PathBuf::from)
}

/// From POST to the end of a run as a long poll sees it, in seconds.
pub async fn once(client: &heddle_client::Client, group: &str) -> f64 {
    let began = now();
    let run: Value = client
        .post(&["v1", "groups", group, "runs"])
        .json(&json!({}))
        .send()
        .await
        .expect("a run");
    let id = run["id"].as_str().expect("an id").to_owned();
    let run: Value = client
        .get(&["v1", "runs", &id])
        .query("wait", "60s")
        .timeout(Duration::from_secs(70))
        .send()
        .await
        .expect("its end");
    assert_eq!(run["state"], "succeeded", "{run}");
    began.elapsed().as_secs_f64()
}

/// Processor time of a process so far, in seconds, without its children.
pub fn processor_time(process: u32) -> f64 {
    ticks(&process.to_string(), 11) / 100.0
}

/// Processor time of all children of this process that have ended, in seconds.
pub fn processor_time_of_children() -> f64 {
    ticks("self", 13) / 100.0
}

/// The resident memory of a process in megabytes: now, and at most so far.
pub fn memory(process: u32) -> (f64, f64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("status");
    let field = |name: &str| -> f64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        let kilobytes = line.split_whitespace().nth(1).expect("a number");
        kilobytes.parse::<f64>().expect("a number") / 1e3
    };
    (field("VmRSS"), field("VmHWM"))
}

/// The sum of two neighbouring fields of a process's `stat`, counted from the end of its name: time of the user and of the
/// system, in hundredths of a second.
fn ticks(process: &str, field: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number of ticks");
    ticks(field) + ticks(field + 1)
}

/// The parts of a benchmark that its command line names.
#[derive(Debug)]
pub struct Parts(Vec<String>);

impl Parts {
    /// Reads this process's command line.
    pub fn asked() -> Self {
        // Cargo adds `--bench` of its own.
        Self(std::env::args().skip(1).filter(|part| !part.starts_with('-')).collect())
    }

    /// Whether this part is measured: it is named, or none is.
    pub fn contain(&self, part: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|one| one == part)
    }
}

/// A directory, a Postgres with durable commits in it, and a migrated database that knows [`crate::TOKEN`].
#[derive(Debug)]
pub struct Fixture {
    url: String,
    /// Nothing where the database is somebody else's.
    postgres: Option<EmbeddedPostgres>,
    // The last one to be dropped: the others write into it.
    directory: TempDir,
}

impl Fixture {
    /// A fixture with a Postgres of its own.
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options::new(directory.path().join("cluster"));
        let postgres = EmbeddedPostgres::start(options).await.expect("Postgres");
        let fixture = Self {
            url: postgres.url(DATABASE),
            postgres: Some(postgres),
            directory,
        };
        fixture.database(DATABASE).await;
        fixture
    }

    /// A fixture with a database that is there.
    pub async fn at(url: String) -> Self {
        migrate(&url).await.expect("a database that knows the token");
        Self {
            url,
            postgres: None,
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    /// Makes one more database like the first; its address.
    pub async fn database(&self, name: &str) -> String {
        let url = self.empty_database(name).await;
        migrate(&url).await.expect("a database that knows the token");
        url
    }

    /// Makes a database with nothing in it; its address.
    pub async fn empty_database(&self, name: &str) -> String {
        let postgres = self.postgres.as_ref().expect("a Postgres of its own");
        postgres.create_database(name).await.expect("a database");
        postgres.url(name)
    }

    /// The address of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The directory, which is removed with the fixture.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A connection to the database.
    pub async fn sql(&self) -> Client {
        connect(&self.url).await
    }

    /// A node of the database: `heddle serve`, with its data in the directory. It has nothing left to compile.
    pub fn serve(&self) -> Program {
        let data_dir = self.directory.path().join("node");
        let program = Program::serve(&self.url, &data_dir, &[]);
        until_python_is_ready(&data_dir);
        program
    }

    /// Stops Postgres, whose last words are then on disk.
    pub async fn end(self) {
        if let Some(postgres) = self.postgres {
            postgres.stop().await.expect("stopped");
        }
    }
}

/// Waits until the memory that scripts in Python begin with is among a node's artefacts: a node that is idle begins by
/// compiling Python, in a process of its own, beside which nothing should be measured.
pub fn until_python_is_ready(data_dir: &Path) {
    let entries = |directory: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(directory).map_or_else(|_| Vec::new(), |all| all.flatten().map(|one| one.path()).collect())
    };
    let is_base = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| !name.starts_with('.') && name.contains(".base-"))
    };
    let is_ready = || {
        let engines = entries(&data_dir.join("artefacts"));
        engines.iter().any(|engine| entries(engine).iter().any(is_base))
    };
    while !is_ready() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A program that says where it listens when it is ready; killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    url: String,
    started_in: Duration,
}

impl Program {
    /// Starts a program. Its first line ends with its address.
    pub fn start(command: &mut Command) -> Self {
        let began = now();
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.next().expect("a line").expect("text");
        let url = line.rsplit(' ').next().expect("an address").to_owned();
        Self {
            child,
            url,
            started_in: began.elapsed(),
        }
    }

    /// A node of a database, with more arguments behind those that every node needs.
    pub fn serve(database: &str, data_dir: &Path, more: &[&str]) -> Self {
        Self::start(
            Command::new(program())
                .args(["serve", "--listen", "127.0.0.1:0", "--database-url", database])
                .arg("--data-dir")
                .arg(data_dir)
                .args(more),
        )
    }

    /// Where it listens, such as `http://127.0.0.1:7777`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same as host and port.
    pub fn address(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or(&self.url)
    }

    /// The time from its start until it was ready.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Its processor time so far, in seconds.
    pub fn processor_time(&self) -> f64 {
        processor_time(self.child.id())
    }

    /// Its resident memory in megabytes: now, and at most so far.
    pub fn memory(&self) -> (f64, f64) {
        memory(self.child.id())
    }

    /// Ends it as its operator would, and waits for that.
    pub fn stop(mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
