//! How much of their languages the interpreters support: Test262 for JavaScript, CPython's own tests for Python.
//!
//! ```sh
//! cargo run --release -p heddle-sandbox --example conformance -- javascript DIR [PART]   # a checkout of tc39/test262
//! cargo run --release -p heddle-sandbox --example conformance -- python DIR [MODULE...]  # the directory `Lib/test` of CPython
//! ```
//!
//! Each test of Test262, and each file of CPython's tests, is a run in the sandbox, within the bounds of an attempt.
//! Neither is in this repository; `docs/scripts.md` says which versions were last used, and the results.
//!
//! Scripts are modules, so tests of Test262 are run once, as strict code. Tests are not counted if they need what
//! scripts do not have by design: `eval` and `Function`, sloppy mode, other realms, threads; nor are tests of modules
//! themselves, since a script is one module. A group is two directories below `test`; a feature is what a test names in
//! its head.

use bytes::Bytes;
use futures::StreamExt;
use heddle_domain::state::Trigger;
use heddle_domain::{Clock, Time};
use heddle_sandbox::{
    AttemptRequest, BoxFuture, CompilerCommand, Context, Grants, HostServices, Interval, Language, Limits, LogLine,
    Outcome, Sandbox, SandboxConfig, Script,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many runs are executed at once.
const AT_ONCE: usize = 4;
/// The limits of one run.
const LIMITS: Limits = Limits {
    memory_bytes: 512 << 20,
    output_bytes: 16 << 20,
    log_bytes: 64 << 20,
    timeout: Some(Duration::from_secs(20)),
    cpu: None,
};
/// The timeout for a file of CPython's tests.
const FILE_TIMEOUT: Duration = Duration::from_secs(900);
/// How many tests of one file may abort the whole run before it is given up.
const ENDED_MAX: usize = 25;
/// How many of the failures of a group are shown.
const SHOWN: usize = 5;

/// What scripts import most.
const PYTHON_TESTS: &[&str] = &[
    "test_json",
    "test_datetime",
    "test_re",
    "test_csv",
    "test_statistics",
    "test_decimal",
    "test_itertools",
    "test_hashlib",
    "test_zoneinfo",
    "test_dataclasses",
    "test_logging",
    "test_collections",
    "test_functools",
    "test_math",
    "test_random",
    "test_string",
    "test_textwrap",
    "test_base64",
    "test_struct",
    "test_uuid",
    "test_enum",
    "test_typing",
    "test_urlparse",
    "test_html",
    "test_bisect",
    "test_heapq",
    "test_copy",
    "test_fractions",
    "test_calendar",
    "test_time",
    "test_unicodedata",
    "test_zlib",
    "test_gzip",
    "test_ipaddress",
    "test_difflib",
    "test_contextlib",
    "test_graphlib",
    "test_hmac",
    "test_secrets",
    "test_shlex",
    "test_tomllib",
    "test_configparser",
    "test_xml_etree",
    "test_list",
    "test_dict",
    "test_set",
    "test_int",
    "test_float",
    "test_bytes",
    "test_fstring",
    "test_generators",
    "test_exceptions",
    "test_class",
    "test_patma",
    "test_sqlite3",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let work: BoxFuture<'_, ()> = match words.as_slice() {
        ["compile-wasm", ..] => return heddle_sandbox::compile_child_main(),
        ["javascript", directory, rest @ ..] => Box::pin(javascript(Path::new(directory), rest.first().copied())),
        ["python", directory, rest @ ..] => Box::pin(python(Path::new(directory), rest)),
        _ => {
            eprintln!("conformance javascript DIR [PART] | python DIR [MODULE...]");
            return ExitCode::FAILURE;
        }
    };
    tokio::runtime::Runtime::new().expect("a runtime").block_on(work);
    ExitCode::SUCCESS
}

#[derive(Debug)]
struct RealClock;

impl Clock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the time")]
    fn now(&self) -> Time {
        chrono::Utc::now()
    }
}

/// Keeps the last line of the log.
#[derive(Default)]
struct Last(Mutex<String>);

impl HostServices for Last {
    fn log(&self, line: LogLine) {
        if let Some(test) = line.message.strip_prefix("begins ") {
            *self.0.lock().expect("no panic") = test.to_owned();
        }
    }
}

fn sandbox() -> (Sandbox, tempfile::TempDir) {
    let cache = tempfile::tempdir().expect("a directory");
    let compiler = CompilerCommand {
        program: std::env::current_exe().expect("this program"),
        args: vec!["compile-wasm".into()],
        env: Vec::new(),
    };
    let mut config = SandboxConfig::new(cache.path().to_owned(), compiler);
    // Interpreters may be kept from one call of this program to the next.
    config.interpreter_dir = std::env::var_os("CONFORMANCE_INTERPRETERS").map(PathBuf::from);
    (Sandbox::new(config, Arc::new(RealClock)).expect("the sandbox"), cache)
}

async fn run(sandbox: &Sandbox, script: &Script, params: &Value, timeout: Duration, host: &Arc<Last>) -> Outcome {
    let at = RealClock.now();
    let request = AttemptRequest {
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
        params: params.to_string(),
        batch: None,
        limits: Limits {
            timeout: Some(timeout),
            ..LIMITS
        },
        grants: Grants::default(),
        host: Arc::clone(host) as Arc<dyn HostServices>,
    };
    let (send, ended) = tokio::sync::oneshot::channel();
    sandbox.start(script, request, Box::new(move |result| drop(send.send(result.outcome))));
    ended.await.expect("an end")
}

/// How many tests passed, and the results of the others.
#[derive(Default)]
struct Share {
    passed: usize,
    failed: Vec<(String, String)>,
    not_counted: usize,
}

impl Share {
    fn line(&self, name: &str) {
        let all = self.passed + self.failed.len();
        let percent = 100.0 * self.passed as f64 / all.max(1) as f64;
        println!(
            "| {name} | {} of {all} | {percent:.1} % | {} |",
            self.passed, self.not_counted
        );
    }
}

// ---- JavaScript ----------------------------------------------------------------------------------------------------

/// The head of a test, as far as it is needed here.
#[derive(Default)]
struct Head {
    flags: Vec<String>,
    includes: Vec<String>,
    features: Vec<String>,
    /// The type of the error with which it must end.
    negative: Option<String>,
}

impl Head {
    /// The head is YAML in a simple form: `key: [a, b]`, or a list with one item per line.
    fn of(text: &str) -> Self {
        let mut head = Self::default();
        let Some((_, rest)) = text.split_once("/*---") else {
            return head;
        };
        let yaml = rest.split_once("---*/").map_or("", |(yaml, _)| yaml);
        let (mut key, mut inner) = (String::new(), Vec::new());
        let put = |key: &str, items: Vec<String>, head: &mut Self| match key {
            "flags" => head.flags.extend(items),
            "includes" => head.includes.extend(items),
            "features" => head.features.extend(items),
            _ => {}
        };
        for line in yaml.lines().chain(["end:"]) {
            let is_top = !line.starts_with([' ', '\t', '-']) && line.contains(':');
            if is_top {
                put(&key, std::mem::take(&mut inner), &mut head);
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                key = name.trim().to_owned();
                let listed = value.trim().trim_start_matches('[').trim_end_matches(']').split(',');
                inner.extend(listed.map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()));
            } else if let Some(item) = line.trim().strip_prefix("- ") {
                inner.push(item.trim().to_owned());
            } else if key == "negative"
                && let Some(name) = line.trim().strip_prefix("type:")
            {
                head.negative = Some(name.trim().to_owned());
            } else if !key.is_empty() {
                // A list that continues in the next line.
                let listed = line.trim().trim_start_matches('[').trim_end_matches(']').split(',');
                inner.extend(listed.map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()));
            }
        }
        head
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

/// Whether a test needs something that scripts do not have by design.
fn is_foreign(head: &Head, text: &str) -> bool {
    let code = text.split_once("---*/").map_or(text, |(_, code)| code);
    let word = |word: &str| {
        code.match_indices(word).any(|(at, _)| {
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
            !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part)
        })
    };
    let constructs = [
        "Function(",
        "GeneratorFunction",
        "AsyncFunction",
        "AsyncGeneratorFunction",
    ];
    ["noStrict", "raw", "module", "CanBlockIsFalse"]
        .iter()
        .any(|flag| head.has(flag))
        || word("eval")
        || word("new Function")
        || constructs.iter().any(|one| code.contains(one))
        || code.contains("$262.createRealm")
        || code.contains("$262.agent")
        || head.includes.iter().any(|name| {
            [
                "atomicsHelper.js",
                "wellKnownIntrinsicObjects.js",
                "hidden-constructors.js",
                "fnGlobalObject.js",
            ]
            .contains(&name.as_str())
        })
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "js")
            && !path.to_string_lossy().contains("_FIXTURE")
        {
            found.push(path);
        }
    }
}

async fn javascript(directory: &Path, part: Option<&str>) {
    let mut harness = serde_json::Map::new();
    for entry in std::fs::read_dir(directory.join("harness"))
        .expect("the harness")
        .flatten()
    {
        if let Ok(text) = std::fs::read_to_string(entry.path()) {
            harness.insert(entry.file_name().to_string_lossy().into_owned(), text.into());
        }
    }
    let main = format!(
        "const HARNESS = {};\n{}",
        Value::Object(harness),
        include_str!("test262.js")
    );
    let (sandbox, _cache) = sandbox();
    let script = sandbox
        .javascript_with_main(&main)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let mut tests = Vec::new();
    for root in ["language", "built-ins"] {
        files(&directory.join("test").join(root), &mut tests);
    }
    tests.retain(|path| part.is_none_or(|part| path.to_string_lossy().contains(part)));
    let ended = futures::stream::iter(tests)
        .map(|path| {
            let (sandbox, script) = (sandbox.clone(), script.clone());
            async move {
                // Some are not UTF-8, which a script may not be either.
                let text = std::fs::read_to_string(&path);
                let is_text = text.is_ok();
                let text = text.unwrap_or_default();
                let head = Head::of(&text);
                let verdict = match !is_text || is_foreign(&head, &text) {
                    true => None,
                    false => Some(test262(&sandbox, &script, &head, &text).await),
                };
                (path, head.features, verdict)
            }
        })
        .buffer_unordered(AT_ONCE);
    let ended: Vec<_> = ended.collect().await;
    let (mut groups, mut features) = (BTreeMap::<String, Share>::new(), BTreeMap::<String, Share>::new());
    for (path, named, verdict) in ended {
        let name = path
            .strip_prefix(directory.join("test"))
            .unwrap_or(&path)
            .display()
            .to_string();
        let group: Vec<&str> = name.split('/').take(2).collect();
        let root = group[0].to_owned();
        for group in [group.join("/"), root] {
            count(groups.entry(group).or_default(), &name, verdict.as_ref());
        }
        for feature in named {
            count(features.entry(feature).or_default(), &name, verdict.as_ref());
        }
    }
    report(&groups, &features, if part.is_some() { usize::MAX } else { SHOWN });
}

/// Tables, and for each group at most `shown` failed tests.
fn report(groups: &BTreeMap<String, Share>, features: &BTreeMap<String, Share>, shown: usize) {
    println!("| group | passed | | not counted |\n|---|---|---|---|");
    for (name, share) in groups
        .iter()
        .filter(|(name, share)| !name.contains('/') || !share.failed.is_empty())
    {
        share.line(name);
    }
    println!("\n| feature | passed | | not counted |\n|---|---|---|---|");
    for (name, share) in features.iter().filter(|(_, share)| !share.failed.is_empty()) {
        share.line(name);
    }
    println!();
    for (name, share) in groups.iter().filter(|(name, _)| name.contains('/')) {
        for (test, why) in share.failed.iter().take(shown) {
            println!("{name}: {test}: {why:.200}");
        }
    }
}

fn count(share: &mut Share, name: &str, verdict: Option<&Result<(), String>>) {
    match verdict {
        None => share.not_counted += 1,
        Some(Ok(())) => share.passed += 1,
        Some(Err(why)) => share.failed.push((name.to_owned(), why.clone())),
    }
}

async fn test262(sandbox: &Sandbox, script: &Script, head: &Head, text: &str) -> Result<(), String> {
    let is_async = head.has("async");
    let params = json!({"text": format!("\"use strict\";\n{text}"), "includes": head.includes, "isAsync": is_async});
    let timeout = LIMITS.timeout.unwrap_or_default();
    let thrown = match run(sandbox, script, &params, timeout, &Arc::default()).await {
        Outcome::Succeeded(output) => serde_json::from_str::<Value>(&output).map_err(|error| error.to_string())?,
        Outcome::Failed { kind, message, .. } => return Err(format!("{kind}: {message}")),
        other => return Err(format!("{other:?}")),
    };
    match (&head.negative, thrown["name"].as_str()) {
        (None, None) => Ok(()),
        (Some(wanted), Some(name)) if wanted == name => Ok(()),
        (Some(wanted), None) => Err(format!("throws no {wanted}")),
        (_, Some(name)) => Err(format!("{name}: {}", thrown["message"].as_str().unwrap_or_default())),
    }
}

// ---- Python --------------------------------------------------------------------------------------------------------

/// The texts of a package's modules, by their names.
fn modules(directory: &Path, package: &str, texts: &mut serde_json::Map<String, Value>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            modules(&path, &format!("{package}.{name}"), texts);
        } else if let Some(module) = name.strip_suffix(".py")
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            let name = match module {
                "__init__" => package.to_owned(),
                _ => format!("{package}.{module}"),
            };
            texts.insert(name, text.into());
        }
    }
}

async fn python(directory: &Path, wanted: &[&str]) {
    let (sandbox, _cache) = sandbox();
    let text = Bytes::from_static(include_bytes!("cpython.py"));
    let compiled = sandbox
        .compile_source(Language::Python, text)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let key = compiled.key();
    let script = sandbox
        .load(&key, async { Err::<Bytes, _>(()) })
        .await
        .expect("the script");
    let mut common = serde_json::Map::new();
    common.insert("test".into(), "".into());
    modules(&directory.join("support"), "test.support", &mut common);
    for own in [
        "list_tests",
        "seq_tests",
        "mapping_tests",
        "string_tests",
        "pickletester",
        "test_contextlib",
    ] {
        if let Ok(text) = std::fs::read_to_string(directory.join(format!("{own}.py"))) {
            common.insert(format!("test.{own}"), text.into());
        }
    }
    let names = if wanted.is_empty() { PYTHON_TESTS } else { wanted };
    println!("| file | passed | | skipped by itself |\n|---|---|---|---|");
    let (mut whole, mut said) = (Share::default(), Vec::new());
    for name in names {
        let mut texts = common.clone();
        let path = directory.join(format!("{name}.py"));
        match std::fs::read_to_string(&path) {
            Ok(text) => drop(texts.insert(format!("test.{name}"), text.into())),
            Err(_) => modules(&directory.join(name), &format!("test.{name}"), &mut texts),
        }
        // Some are files next to the ones that load them.
        for beside in [
            "datetimetester",
            "re_tests",
            "enumtester",
            "ann_module",
            "ann_module2",
            "ann_module3",
        ] {
            if let Ok(text) = std::fs::read_to_string(directory.join(format!("{beside}.py"))) {
                texts.insert(format!("test.{beside}"), text.into());
            }
        }
        let share = cpython(&sandbox, &script, name, &texts).await;
        share.line(name);
        whole.passed += share.passed;
        whole.not_counted += share.not_counted;
        said.extend(
            share
                .failed
                .iter()
                .map(|(test, why)| format!("{test}: {}", why.replace('\n', " "))),
        );
        whole.failed.extend(share.failed);
    }
    whole.line("all");
    println!();
    said.iter().for_each(|line| println!("{line:.260}"));
}

/// One file. A test that aborts the whole run is left out of the next try.
async fn cpython(sandbox: &Sandbox, script: &Script, name: &str, texts: &serde_json::Map<String, Value>) -> Share {
    let mut share = Share::default();
    let mut ended = BTreeSet::new();
    loop {
        let host = Arc::new(Last::default());
        let ids: Vec<&String> = ended.iter().collect();
        let params = json!({"texts": texts, "test": format!("test.{name}"), "ended": ids});
        let why = match run(sandbox, script, &params, FILE_TIMEOUT, &host).await {
            Outcome::Succeeded(output) => {
                let result: Value = serde_json::from_str(&output).unwrap_or_default();
                let number = |field: &str| result[field].as_u64().unwrap_or_default() as usize;
                (share.passed, share.not_counted) = (number("passed"), number("skipped"));
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let wrong = result["wrong"].as_array().into_iter().flatten();
                share.failed.extend(wrong.map(|one| (text(&one[0]), text(&one[1]))));
                if let Some(whole) = result["whole"].as_str() {
                    share.failed.push((format!("test.{name}"), whole.to_owned()));
                }
                return share;
            }
            Outcome::Failed { kind, message, .. } => format!("{kind}: {message}"),
            other => format!("{other:?}"),
        };
        let last = host.0.lock().expect("no panic").clone();
        if last.is_empty() || ended.len() == ENDED_MAX || !ended.insert(last.clone()) {
            share.failed.push((format!("test.{name}"), why));
            return share;
        }
        share.failed.push((last, why));
    }
}
