//! What a run costs in each language, beside a process for each task: `cargo bench -p heddle-tests --bench scripts`.
//!
//! A node (`heddle serve`, release build) and a Postgres with fsync and `synchronous_commit` share this machine with the
//! client that measures. In each language there is a script that does next to nothing: it greets somebody and writes a
//! line to the log. In those that are text there is another one that writes, reads and counts JSON. What they stand beside
//! is the same work in a process for each task, as other schedulers have it: `node -e` and `python3 -c`, with the params on
//! standard input and the output on standard output; nobody records what these did. Go, Zig, C and AssemblyScript are the
//! templates of `heddle script new`, built before anything is measured, if their compilers are there or can be installed
//! in time; Rust is the example that the program carries.
//!
//! Nothing is asserted but that every run succeeds; `docs/scripts.md` keeps what was measured. `HEDDLE_PROGRAM` names
//! another program than the one that Cargo has built, `HEDDLE_BENCH_FEW=1` takes each figure a few times only, to see that
//! all of it works.

mod languages;
mod process;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_client::Client;
use heddle_tests::TOKEN;
use heddle_tests::bench::{Fixture, Program, now, once, percentile, program};
use serde_json::{Value, json};

use languages::{Language, changed, languages};
use table::{Table, both, bytes, ms};

/// How often each figure is taken.
struct Counts {
    uploads: usize,
    invocations: usize,
    runs: usize,
    heavy: usize,
    processes: usize,
    /// Runs by which it is guessed how many are to be measured for a rate.
    guess: usize,
    /// How long a rate is measured, about.
    rate_for: Duration,
}

const MANY: Counts = Counts {
    uploads: 5,
    invocations: 1_000,
    runs: 300,
    heavy: 30,
    processes: 100,
    guess: 500,
    rate_for: Duration::from_secs(5),
};

const FEW: Counts = Counts {
    uploads: 2,
    invocations: 10,
    runs: 10,
    heavy: 3,
    processes: 5,
    guess: 20,
    rate_for: Duration::from_secs(1),
};

fn counts() -> &'static Counts {
    if std::env::var_os("HEDDLE_BENCH_FEW").is_some() {
        &FEW
    } else {
        &MANY
    }
}

/// The most runs that one request submits.
const BATCH: usize = 5_000;
/// How long Python may take to be made ready.
const PYTHON_WITHIN: Duration = Duration::from_secs(90);

/// What the empty scripts are given, and the other ones.
fn name() -> Value {
    json!({"name": "Ada"})
}

fn rows() -> Value {
    json!({"rows": 1_000})
}

const SIZE: &str = "what is uploaded";
const KEPT: &str = "what a node keeps of it on disk; of the first of the language";
const UPLOAD: &str = "upload; the first of the language";
const FIRST: &str = "the first `invoke` behind an upload";
const INVOKE: &str = "`invoke` by HTTP; a process (p50 / p99)";
const GROUP: &str = "a recorded run, POST to end (p50 / p99)";
const CPU: &str = "processor time of the script (p50)";
const NODE_CPU: &str = "processor time of the whole node for a recorded run, without Postgres; of a process";
const MEMORY: &str = "linear memory of a run; resident memory of a process";
const RATE: &str = "recorded runs a second, with Postgres on the same processors; processes";
const JSON: &str = "1,000 rows written and read as JSON: `invoke`; a process (p50)";

/// All files below a directory, with their bytes.
fn files(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(facts) if facts.is_dir() => found.extend(files(&entry.path())),
            Ok(facts) => drop(found.insert(entry.path(), facts.len())),
            Err(_) => {}
        }
    }
    found
}

#[tokio::main]
async fn main() {
    let fixture = Fixture::new().await;
    let languages = languages(fixture.directory());
    let data = fixture.directory().join("node");
    let began = now();
    let node = fixture.serve();
    let is_base = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| !name.starts_with('.') && name.contains(".base-"))
    };
    let mut prepared = true;
    while prepared && !files(&data.join("artefacts")).keys().any(is_base) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        prepared = began.elapsed() < PYTHON_WITHIN;
    }
    let python = match prepared {
        true => format!("Python is ready after {:.1} s", began.elapsed().as_secs_f64()),
        false => "Python is not".to_owned(),
    };
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "A new node serves after {:.1} s, and {python}.",
        node.started_in().as_secs_f64()
    );
    println!("{processors} processors; {}.", program().display());
    println!("The first upload in JavaScript compiles the interpreter, which TypeScript has too.\n");
    let bench = Bench {
        client: Client::new(node.url(), Some(TOKEN)).expect("a client"),
        sql: fixture.sql().await,
        node,
        data,
    };
    let mut table = Table::default();
    for language in &languages {
        bench.measure(language, &mut table).await;
    }
    for process in process::all() {
        process::measure(&process, &mut table);
    }
    table.print();
    drop(bench);
    fixture.end().await;
}

struct Bench {
    client: Client,
    sql: tokio_postgres::Client,
    node: Program,
    data: PathBuf,
}

impl Bench {
    async fn measure(&self, language: &Language, table: &mut Table) {
        let title = language.title;
        table.put(SIZE, title, bytes(language.empty.len() as u64));
        let name = title.to_ascii_lowercase();
        let artefacts = || files(&self.data.join("artefacts"));
        let added = |before: &BTreeMap<PathBuf, u64>| -> u64 {
            let all = artefacts();
            let new = all.iter().filter(|(path, _)| !before.contains_key(*path));
            new.map(|(_, size)| size).sum()
        };
        // The first of all brings its interpreter along.
        let before = artefacts();
        let first = self.upload(&name, language, &language.empty).await;
        let first_kept = added(&before);
        let (mut uploads, mut firsts, mut kept) = (Vec::new(), Vec::new(), 0);
        for number in 0..counts().uploads {
            let before = artefacts();
            uploads.push(self.upload(&name, language, &changed(language, number)).await);
            kept = added(&before);
            firsts.push(self.invoke(&name, &self::name()).await.0);
        }
        table.put(KEPT, title, format!("{}; {}", bytes(kept), bytes(first_kept)));
        table.put(
            UPLOAD,
            title,
            format!("{}; {}", ms(percentile(&mut uploads, 0.5)), ms(first)),
        );
        table.put(FIRST, title, ms(percentile(&mut firsts, 0.5)));
        let (mut samples, mut memory) = (Vec::new(), 0);
        for _ in 0..counts().invocations {
            let (took, used) = self.invoke(&name, &self::name()).await;
            samples.push(took);
            memory = used;
        }
        table.put(INVOKE, title, both(&mut samples));
        let tasks = json!({"tasks": {"t": {"script": name, "params": self::name()}}});
        self.client.put_group(&name, &tasks, None).await.expect("a group");
        let mut samples = Vec::new();
        for _ in 0..counts().runs {
            samples.push(once(&self.client, &name).await);
        }
        table.put(GROUP, title, both(&mut samples));
        let (rate, cpu) = self.rate(&name).await;
        table.put(RATE, title, format!("{rate:.0}"));
        table.put(CPU, title, ms(self.cpu_of_attempts(&name).await));
        table.put(NODE_CPU, title, ms(cpu));
        table.put(MEMORY, title, bytes(memory));
        if let Some(heavy) = language.heavy {
            self.upload(&name, language, heavy.as_bytes()).await;
            let mut samples = Vec::new();
            for _ in 0..counts().heavy {
                samples.push(self.invoke(&name, &rows()).await.0);
            }
            table.put(JSON, title, ms(percentile(&mut samples, 0.5)));
        }
    }

    async fn upload(&self, name: &str, language: &Language, script: &[u8]) -> f64 {
        let began = now();
        let made = self
            .client
            .put_script_as(name, language.media_type, script.to_vec(), true);
        made.await.expect("upload");
        began.elapsed().as_secs_f64()
    }

    /// How long an invocation takes, and its memory.
    async fn invoke(&self, name: &str, params: &Value) -> (f64, u64) {
        let began = now();
        let done: Value = self
            .client
            .post(&["v1", "scripts", name, "invoke"])
            .json(&json!({"params": params}))
            .send()
            .await
            .expect("an answer");
        assert_eq!(done["state"], "succeeded", "{done}");
        (
            began.elapsed().as_secs_f64(),
            done["memory_bytes"].as_u64().unwrap_or_default(),
        )
    }

    async fn ended(&self) -> usize {
        let stats: Value = self.client.get(&["v1", "stats"]).send().await.expect("stats");
        stats["node"]["runs_ended"].as_u64().expect("a number") as usize
    }

    /// Submits so many runs and waits for their end; the seconds that takes.
    async fn batch(&self, group: &str, count: usize) -> f64 {
        let until = self.ended().await + count;
        let began = now();
        let mut left = count;
        while left > 0 {
            let some = left.min(BATCH);
            let accepted: Value = self
                .client
                .post(&["v1", "groups", group, "runs", "batch"])
                .json(&json!({"runs": vec![json!({}); some]}))
                .timeout(Duration::from_secs(120))
                .send()
                .await
                .expect("accepted");
            assert_eq!(accepted["accepted"], some);
            left -= some;
        }
        while self.ended().await < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        began.elapsed().as_secs_f64()
    }

    /// Runs a second, and the node's processor time for one.
    async fn rate(&self, group: &str) -> (f64, f64) {
        let few = counts().guess;
        let took = self.batch(group, few).await;
        let count = ((few as f64 / took * counts().rate_for.as_secs_f64()) as usize).max(few);
        let cpu = self.node.processor_time();
        let took = self.batch(group, count).await;
        (count as f64 / took, (self.node.processor_time() - cpu) / count as f64)
    }

    /// The processor time of the group's attempts themselves, in seconds.
    async fn cpu_of_attempts(&self, group: &str) -> f64 {
        let median = "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a.cpu_micros)::double precision
             FROM heddle.attempts a JOIN heddle.runs_done r ON r.id = a.run JOIN heddle.groups g ON g.id = r.group_id
             WHERE g.name = $1";
        let row = self.sql.query_one(median, &[&group]).await.expect("the attempts");
        row.get::<_, f64>(0) / 1e6
    }
}
