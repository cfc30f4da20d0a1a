//! The beginnings that `heddle script new` writes, in every language: written, built, uploaded and run. And the bridge to
//! Kafka, which users copy: it is in Python, and its client library comes the same way.
//!
//! The toolchains come from PyPI and npm, into directories of their own under the target directory, once. On a machine
//! that has no Python or Node.js, or does not reach these registries, what is tested instead is what an author sees
//! there: a build that fails and says what to install.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use heddle_tests::{Node, TOKEN, World, run_program};
use serde_json::json;

/// Where toolchains and what they compile are kept from one run to the next.
const TOOLS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/languages");

/// How a language's toolchain is had, and what a build names when it is missing.
struct Toolchain {
    language: &'static str,
    /// Makes the toolchain in a directory that holds the template's files.
    install: fn(&Path) -> bool,
    /// What of it lies in the sources' directory.
    part: &'static str,
    needed: &'static str,
    /// Whether params are checked against a schema, of the world `task`; commands have none.
    describes: bool,
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

/// The version that the template's README tells to install.
fn pinned(dir: &Path, package: &str) -> String {
    let readme = std::fs::read_to_string(dir.join("README.md")).expect("a README");
    let start = readme
        .find(&format!("{package}=="))
        .expect("the README names the version");
    let pinned = readme[start..].split_whitespace().next().expect("a word");
    pinned.trim_end_matches([';', ',', '`']).to_owned()
}

/// Installs a toolchain, unless this very one is there already. `None`: it is not to be had here.
fn toolchain(toolchain: &Toolchain, sources: &Path) -> Option<PathBuf> {
    let kept = Path::new(TOOLS).join(toolchain.language);
    let recipe: String = ["README.md", "requirements.txt", "package.json"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(sources.join(name)).ok())
        .collect();
    let installed = kept.join("installed");
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == recipe) {
        return Some(kept.join(toolchain.part));
    }
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::create_dir_all(&kept).expect("a directory");
    for entry in std::fs::read_dir(sources).expect("the sources").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), kept.join(entry.file_name())).expect("a copy");
        }
    }
    if !(toolchain.install)(&kept) {
        return None;
    }
    std::fs::write(&installed, recipe).expect("a file");
    Some(kept.join(toolchain.part))
}

#[track_caller]
fn heddle(node: &Node, arguments: &[&str]) -> Output {
    let target = format!("{TOOLS}/rust");
    run_program(
        arguments,
        &[
            ("HEDDLE_URL", node.base()),
            ("HEDDLE_TOKEN", TOKEN),
            ("CARGO_TARGET_DIR", &target),
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

/// Uploads what lies in the directory and has a run greet somebody.
async fn greets(node: &Node, name: &str, dir: &Path, describes: bool) {
    let said = succeeds(node, &["script", "push", name, &dir.to_string_lossy()]);
    assert!(said.contains(name), "{said}");
    let script = node.get(&format!("/v1/scripts/{name}")).await.expect_status(200);
    assert_eq!(script["params_schema"].is_object(), describes, "{script:#}");
    let spec = json!({"tasks": {"t": {"script": name, "params": {"name": "Ada"}}}});
    node.put_group(name, spec).await;
    let run = node.start(name, json!({})).await;
    let run = node.ended(&run).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["tasks"][0]["output"], json!({"greeting": "Hello, Ada!"}));
    let id = heddle_tests::id(&run);
    let logs = succeeds(node, &["run", "logs", &id]);
    assert!(logs.to_lowercase().contains("ada"), "{logs}");
}

/// A node that a busy machine may take its time on: 18 MB of Python are compiled by a compiler that is not optimised.
async fn patient(world: &World) -> Node {
    world.options().env("HEDDLE_COMPILE_TIMEOUT", "10m").start().await
}

async fn check(tools: Toolchain) {
    let world = World::new().await;
    let node = patient(&world).await;
    let name = format!("hello-{}", tools.language);
    let dir = world.directory().join(&name);
    let place = dir.to_string_lossy().into_owned();
    succeeds(&node, &["script", "new", &name, "--lang", tools.language, &place]);
    let Some(part) = toolchain(&tools, &dir) else {
        eprintln!("no toolchain for {} here: only the refusal is tested", tools.language);
        let output = run_program(&["script", "build", &place], &[("PATH", "/nonexistent")]);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(tools.needed), "{said}");
        return;
    };
    std::os::unix::fs::symlink(part, dir.join(tools.part)).expect("a link");
    greets(&node, &name, &dir, tools.describes).await;
}

#[tokio::test]
async fn rust() {
    let world = World::new().await;
    let node = world.node().await;
    let dir = world.directory().join("hello-rust");
    let place = dir.to_string_lossy().into_owned();
    let sdk = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest-sdk");
    succeeds(
        &node,
        &["script", "new", "hello-rust", "--lang", "rust", "--sdk", sdk, &place],
    );
    greets(&node, "hello-rust", &dir, true).await;
}

#[tokio::test]
async fn python() {
    check(Toolchain {
        language: "python-component",
        install: |dir| virtual_environment(dir, &["-r", "requirements.txt"]),
        part: ".venv",
        needed: "componentize-py",
        describes: true,
    })
    .await;
}

#[tokio::test]
async fn javascript() {
    check(Toolchain {
        language: "javascript-component",
        install: |dir| {
            done(
                Command::new("npm")
                    .args(["install", "--no-audit", "--no-fund"])
                    .current_dir(dir),
            )
        },
        part: "node_modules",
        needed: "Node.js",
        describes: true,
    })
    .await;
}

#[tokio::test]
async fn c() {
    check(Toolchain {
        language: "c",
        install: |dir| virtual_environment(dir, &[&pinned(dir, "ziglang")]),
        part: ".venv",
        needed: "WASI SDK",
        describes: false,
    })
    .await;
}

/// The bridge from the feed of events to Kafka, as `test_bridge.py` plays with it. The broker is the strict small one beside
/// that, the client library is the real one.
#[tokio::test]
async fn kafka_bridge() {
    let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/languages/kafka"));
    let tools = Toolchain {
        language: "kafka",
        install: |dir| virtual_environment(dir, &["-r", "requirements.txt"]),
        part: ".venv",
        needed: "confluent-kafka",
        describes: false,
    };
    let Some(environment) = toolchain(&tools, sources) else {
        eprintln!("no {} here: the bridge is not tested", tools.needed);
        return;
    };
    let world = World::new().await;
    let node = world.node().await;
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
