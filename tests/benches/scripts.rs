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

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heddle_client::{Client, NewToken, Role};
use heddle_postgres::{EmbeddedPostgres, Options};
use serde_json::{Value, json};
use tokio_postgres::NoTls;

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
/// How long the building of all languages may take, with the compilers that are not there yet.
const BUILT_WITHIN: Duration = Duration::from_secs(150);
/// How long Python may take to be made ready.
const PYTHON_WITHIN: Duration = Duration::from_secs(90);

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// A language, with its two scripts.
struct Language {
    title: &'static str,
    media_type: &'static str,
    empty: Vec<u8>,
    /// None where there is no such script.
    heavy: Option<&'static str>,
}

const JS_EMPTY: &str = "export default (params) => {
  const greeting = `Hello, ${params.name}!`;
  console.log(greeting);
  return { greeting };
};
";
const JS_HEAVY: &str = "export default (params) => {
  const rows = [];
  for (let n = 0; n < params.rows; n++) rows.push({ id: n, city: `city ${n % 17}`, amount: n * 1.5 });
  const totals = {};
  for (const row of JSON.parse(JSON.stringify(rows))) totals[row.city] = (totals[row.city] ?? 0) + row.amount;
  return totals;
};
";
const TS_EMPTY: &str = "export default (params: { name: string }) => {
  const greeting = `Hello, ${params.name}!`;
  console.log(greeting);
  return { greeting };
};
";
const TS_HEAVY: &str = "interface Row { id: number; city: string; amount: number }
export default (params: { rows: number }) => {
  const rows: Row[] = [];
  for (let n = 0; n < params.rows; n++) rows.push({ id: n, city: `city ${n % 17}`, amount: n * 1.5 });
  const totals: Record<string, number> = {};
  for (const row of JSON.parse(JSON.stringify(rows)) as Row[]) totals[row.city] = (totals[row.city] ?? 0) + row.amount;
  return totals;
};
";
const PY_EMPTY: &str = "def run(params, ctx):
    greeting = f\"Hello, {params['name']}!\"
    print(greeting)
    return {'greeting': greeting}
";
const PY_HEAVY: &str = "import json

def run(params, ctx):
    rows = [{'id': n, 'city': f'city {n % 17}', 'amount': n * 1.5} for n in range(params['rows'])]
    totals = {}
    for row in json.loads(json.dumps(rows)):
        totals[row['city']] = totals.get(row['city'], 0) + row['amount']
    return totals
";

/// The program that is measured.
fn program() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_heddle-under-test"));
    std::env::var_os("HEDDLE_PROGRAM").map_or_else(built, PathBuf::from)
}

/// The template of a language, written and built by the program. An error says why there is none.
fn built(language: &str, directory: &Path, until: Instant) -> Result<Vec<u8>, String> {
    let name = format!("bench-{language}");
    let directory = directory.join(&name);
    let step = |arguments: &[&str]| {
        let said = directory.with_extension("log");
        let log = std::fs::File::create(&said).expect("a log");
        let mut child = Command::new(program())
            .args(arguments)
            .arg(&directory)
            // Where the tests of languages have theirs: neither installs what the other one has.
            .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/languages"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program");
        loop {
            match child.try_wait().expect("a child") {
                Some(status) if status.success() => return Ok(()),
                Some(_) => {
                    let said = std::fs::read_to_string(&said).unwrap_or_default();
                    return Err(said.lines().last().unwrap_or("it says nothing").to_owned());
                }
                None if now() > until => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("not built within {} s", BUILT_WITHIN.as_secs()));
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    step(&["script", "new", &name, "--lang", language])?;
    step(&["script", "build"])?;
    let wasm = directory.join(format!("{name}.wasm"));
    std::fs::read(&wasm).map_err(|error| format!("{}: {error}", wasm.display()))
}

fn languages(directory: &Path) -> Vec<Language> {
    let text = |title, media_type, empty: &str, heavy| Language {
        title,
        media_type,
        empty: empty.into(),
        heavy: Some(heavy),
    };
    let mut languages = vec![
        Language {
            title: "Rust",
            media_type: "application/wasm",
            empty: heddle_scripts::get("hello").expect("the script").to_vec(),
            heavy: None,
        },
        text("JavaScript", "text/javascript", JS_EMPTY, JS_HEAVY),
        text("TypeScript", "text/typescript", TS_EMPTY, TS_HEAVY),
        text("Python", "text/x-python", PY_EMPTY, PY_HEAVY),
    ];
    let until = now() + BUILT_WITHIN;
    for (title, language) in [
        ("AssemblyScript", "assemblyscript"),
        ("Go", "go"),
        ("Zig", "zig"),
        ("C", "c"),
    ] {
        match built(language, directory, until) {
            Ok(empty) => languages.push(Language {
                title,
                media_type: "application/wasm",
                empty,
                heavy: None,
            }),
            Err(why) => println!("{title} is not measured: {why}\n"),
        }
    }
    languages
}

/// The same as a process: program, the option before a text, and what makes a process of a script.
struct AsProcess {
    title: &'static str,
    program: &'static str,
    option: &'static str,
    empty: String,
    heavy: String,
    /// Added to a script, it writes the most memory that the process has had to standard error, in kB. (The kernel's own
    /// figure for children counts what their parent had when it made them.)
    peak: &'static str,
}

fn processes() -> [AsProcess; 2] {
    // The log is written to standard error, since the output is on standard output.
    let node = |script: &str| {
        let script = script
            .replace("export default", "const run =")
            .replace("console.log", "console.error");
        format!("{script}\nconsole.log(JSON.stringify(run(JSON.parse(require('fs').readFileSync(0, 'utf8')))))")
    };
    let python = |script: &str| {
        let script = script.replace("print(greeting)", "print(greeting, file=sys.stderr)");
        format!("import json, sys\n{script}\nprint(json.dumps(run(json.load(sys.stdin), None)))")
    };
    [
        AsProcess {
            title: "`node -e`",
            program: "node",
            option: "-e",
            empty: node(JS_EMPTY),
            heavy: node(JS_HEAVY),
            peak: "console.error(require('fs').readFileSync('/proc/self/status', 'utf8').match(/VmHWM:\\s*(\\d+)/)[1])",
        },
        AsProcess {
            title: "`python3 -c`",
            program: "python3",
            option: "-c",
            empty: python(PY_EMPTY),
            heavy: python(PY_HEAVY),
            peak: "[print(line.split()[1], file=sys.stderr) for line in open('/proc/self/status') if 'VmHWM' in line]",
        },
    ]
}

/// What the empty scripts are given, and the other ones.
fn name() -> Value {
    json!({"name": "Ada"})
}

fn rows() -> Value {
    json!({"rows": 1_000})
}

/// The figures: rows by their titles, in the order in which they were first put, with a column for each language.
#[derive(Default)]
struct Table {
    columns: Vec<&'static str>,
    rows: Vec<(&'static str, BTreeMap<&'static str, String>)>,
}

impl Table {
    fn put(&mut self, row: &'static str, column: &'static str, figure: String) {
        if !self.columns.contains(&column) {
            self.columns.push(column);
        }
        let at = self.rows.iter().position(|(title, _)| *title == row);
        let at = at.unwrap_or_else(|| {
            self.rows.push((row, BTreeMap::new()));
            self.rows.len() - 1
        });
        self.rows[at].1.insert(column, figure);
    }

    fn print(&self) {
        println!("| | {} |", self.columns.join(" | "));
        println!("|---|{}", "---|".repeat(self.columns.len()));
        for (title, figures) in &self.rows {
            let figures = self
                .columns
                .iter()
                .map(|column| figures.get(column).map_or("", String::as_str));
            println!("| {title} | {} |", figures.collect::<Vec<_>>().join(" | "));
        }
    }
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

fn ms(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1e3),
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} bytes"),
        10_000..10_000_000 => format!("{} kB", count / 1_000),
        _ => format!("{} MB", count / 1_000_000),
    }
}

fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() as f64 * share) as usize).min(samples.len() - 1)]
}

fn both(samples: &mut [f64]) -> String {
    format!("{} / {}", ms(percentile(samples, 0.5)), ms(percentile(samples, 0.99)))
}

/// A node, killed when dropped.
struct Node {
    child: Child,
    url: String,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(program())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.next().expect("a line").expect("text");
        let url = line.rsplit(' ').next().expect("an address").to_owned();
        Self { child, url }
    }

    /// Processor time so far, in seconds.
    fn cpu(&self) -> f64 {
        cpu_of(&self.child.id().to_string(), 11)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two fields of a process's `stat`, in seconds: its own time from the 11th on, that of children that have ended from the
/// 13th on.
fn cpu_of(process: &str, field: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number of ticks");
    (ticks(field) + ticks(field + 1)) / 100.0
}

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
    let directory = tempfile::tempdir().expect("a directory");
    let languages = languages(directory.path());
    let options = Options::new(directory.path().join("serve"));
    let postgres = EmbeddedPostgres::start(options).await.expect("Postgres");
    postgres.create_database("heddle").await.expect("a database");
    let url = postgres.url("heddle");
    let token = NewToken {
        name: "bench".into(),
        role: Role::Admin,
        ..NewToken::default()
    };
    let token = heddle_cli::node::create_token(&url, &token).await.expect("a token");
    let data = directory.path().join("node");
    let data_text = data.to_str().expect("a path");
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--database-url",
        &url,
        "--data-dir",
        data_text,
    ];
    let began = now();
    let node = Node::start(&arguments);
    let ready = began.elapsed();
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
    println!("A new node serves after {:.1} s, and {python}.", ready.as_secs_f64());
    println!("{processors} processors; {}.", program().display());
    println!("The first upload in JavaScript compiles the interpreter, which TypeScript has too.\n");
    let client = Client::new(&node.url, Some(&token)).expect("a client");
    let (sql, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    let bench = Bench {
        client,
        sql,
        node,
        data,
    };
    let mut table = Table::default();
    for language in &languages {
        bench.measure(language, &mut table).await;
    }
    for process in processes() {
        measure_process(&process, &mut table);
    }
    table.print();
    drop(bench);
    postgres.stop().await.expect("stopped");
}

struct Bench {
    client: Client,
    sql: tokio_postgres::Client,
    node: Node,
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
            samples.push(self.once(&name).await);
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

    /// From POST to the end as a long poll sees it.
    async fn once(&self, group: &str) -> f64 {
        let began = now();
        let run: Value = self
            .client
            .post(&["v1", "groups", group, "runs"])
            .json(&json!({}))
            .send()
            .await
            .expect("a run");
        let id = run["id"].as_str().expect("an id").to_owned();
        let run: Value = self
            .client
            .get(&["v1", "runs", &id])
            .query("wait", "60s")
            .timeout(Duration::from_secs(70))
            .send()
            .await
            .expect("its end");
        assert_eq!(run["state"], "succeeded", "{run}");
        began.elapsed().as_secs_f64()
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
        let cpu = self.node.cpu();
        let took = self.batch(group, count).await;
        (count as f64 / took, (self.node.cpu() - cpu) / count as f64)
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

/// The empty script as a text, or bytes, that no node has seen.
fn changed(language: &Language, number: usize) -> Vec<u8> {
    let mut script = language.empty.clone();
    match language.media_type {
        // A custom section: its id, its length, its name's length, its name.
        "application/wasm" => script.extend_from_slice(&[0, 2, 1, b'0' + number as u8]),
        "text/x-python" => script.extend_from_slice(format!("# {number}\n").as_bytes()),
        _ => script.extend_from_slice(format!("// {number}\n").as_bytes()),
    }
    script
}

fn measure_process(process: &AsProcess, table: &mut Table) {
    let title = process.title;
    let known = Command::new(process.program).arg("--version").output();
    let Ok(version) = known else {
        table.put(INVOKE, title, format!("there is no {}", process.program));
        return;
    };
    table.put(SIZE, title, String::from_utf8_lossy(&version.stdout).trim().to_owned());
    // `python3` may be a script that looks for the program.
    let program = resolved(process.program);
    let once = |text: &str, params: &Value| spawn(&program, process.option, text, params);
    let cpu = || cpu_of("self", 13);
    let before = cpu();
    let mut took: Vec<f64> = (0..counts().processes)
        .map(|_| once(&process.empty, &name()).0)
        .collect();
    table.put(NODE_CPU, title, ms((cpu() - before) / counts().processes as f64));
    table.put(INVOKE, title, both(&mut took));
    let mut took: Vec<f64> = (0..counts().heavy).map(|_| once(&process.heavy, &rows()).0).collect();
    table.put(JSON, title, ms(percentile(&mut took, 0.5)));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let began = now();
    let done: Vec<usize> = std::thread::scope(|scope| {
        let work = || {
            let mut count = 0;
            while began.elapsed() < counts().rate_for {
                once(&process.empty, &name());
                count += 1;
            }
            count
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let rate = done.iter().sum::<usize>() as f64 / began.elapsed().as_secs_f64();
    table.put(RATE, title, format!("{rate:.0}"));
    let (_, said) = once(&format!("{}\n{}", process.empty, process.peak), &name());
    let kilobytes: u64 = said
        .lines()
        .last()
        .and_then(|line| line.trim().parse().ok())
        .expect("a number");
    table.put(MEMORY, title, bytes(kilobytes << 10));
}

/// The program itself, where the name is that of a script that finds it.
fn resolved(program: &str) -> String {
    let ask: &[&str] = match program {
        "python3" => &["-c", "import sys; print(sys.executable)"],
        _ => &["-p", "process.execPath"],
    };
    let said = Command::new(program).args(ask).output().expect("the program");
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

/// Runs it once, in a process; the seconds from its start to its end, and what it wrote to standard error.
fn spawn(program: &str, option: &str, text: &str, params: &Value) -> (f64, String) {
    let params = params.to_string();
    let began = now();
    let mut child = Command::new(program)
        .args([option, text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(params.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let took = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && serde_json::from_slice::<Value>(&output.stdout).is_ok(),
        "{said}"
    );
    (took, said)
}
