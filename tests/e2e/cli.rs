//! The command line against a node: what people type, what they see, and exit codes for scripts of theirs.

use std::process::Output;

use heddle_tests::{Node, TOKEN, World, run_program};
use serde_json::{Value, json};

use crate::{fails, one, sleeps};

/// What commands end with.
const DONE: i32 = 0;
const REFUSED: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;

fn heddle(node: &Node, arguments: &[&str]) -> Output {
    run_program(arguments, &[("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)])
}

/// A command that ends with this code; its stdout, and stderr if it fails.
#[track_caller]
fn ends(node: &Node, code: i32, arguments: &[&str]) -> String {
    let output = heddle(node, arguments);
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{said}\n{complained}");
    assert!(!complained.contains("panicked"), "{complained}");
    if code == DONE {
        said.into_owned()
    } else {
        format!("{said}{complained}")
    }
}

/// The same with `-o json`.
#[track_caller]
fn json_of(node: &Node, arguments: &[&str]) -> Value {
    let said = ends(node, DONE, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?} gives no JSON ({error}): {said}"))
}

#[tokio::test]
async fn scripts() {
    let world = World::new().await;
    let node = world.node().await;
    let file = world.directory().join("hello.wasm");
    std::fs::write(&file, heddle_scripts::get("hello").unwrap()).unwrap();
    let file = file.to_string_lossy().into_owned();
    let pushed = json_of(&node, &["script", "push", "mine", &file]);
    assert_eq!((&pushed["name"], &pushed["version"]), (&json!("mine"), &json!(1)));
    assert!(ends(&node, DONE, &["script", "list"]).contains("mine"));
    assert!(
        ends(&node, DONE, &["script", "show", "mine"]).contains(pushed["digest"].as_str().unwrap().get(..8).unwrap())
    );
    let tried = json_of(&node, &["script", "test", "mine", "--param", "name=you"]);
    assert_eq!(tried["output"]["greeting"], "Hello, you!");
    // A file runs without a server.
    let alone = run_program(
        &["script", "test", &file, "-p", r#"{"name": "me"}"#, "-o", "json"],
        &[("HEDDLE_URL", "http://127.0.0.1:1")],
    );
    assert_eq!(
        alone.status.code(),
        Some(DONE),
        "{}",
        String::from_utf8_lossy(&alone.stderr)
    );
    let alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!(alone["output"]["greeting"], "Hello, me!");
    let failed = ends(&node, REFUSED, &["script", "test", "flaky", "--param", "kind=fatal"]);
    assert!(failed.contains("as asked"), "{failed}");
    let broken = world.directory().join("broken.wasm");
    std::fs::write(&broken, b"MZ").unwrap();
    ends(&node, REFUSED, &["script", "push", "broken", &broken.to_string_lossy()]);
    ends(&node, USAGE, &["script", "push", "broken", "/no/such/file.wasm"]);
    ends(&node, DONE, &["script", "rm", "mine"]);
    ends(&node, REFUSED, &["script", "show", "mine"]);
}

#[tokio::test]
async fn specs() {
    let world = World::new().await;
    let node = world.node().await;
    let file = world.directory().join("groups.yaml");
    let write = |name: &str| {
        let text = format!(
            "kind: group\nname: one\nspec:\n  tasks:\n    t: {{script: hello, params: {{name: {name}}}}}\n---\n\
             kind: group\nname: two\ntasks:\n  t: {{group: one}}\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let path = file.to_string_lossy().into_owned();
    write("first");
    assert!(
        ends(&node, REFUSED, &["diff", "-f", &path]).contains("one"),
        "everything is new"
    );
    ends(&node, DONE, &["apply", "--dry-run", "-f", &path]);
    assert_eq!(node.all("/v1/groups").await.len(), 0);
    ends(&node, DONE, &["apply", "-f", &path]);
    ends(&node, DONE, &["apply", "-f", &path]);
    ends(&node, DONE, &["diff", "-f", &path]);
    assert_eq!(node.get("/v1/groups/one").await.expect_status(200)["revision"], 1);
    write("second");
    let changed = ends(&node, REFUSED, &["diff", "-f", &path]);
    assert!(changed.contains("first") && changed.contains("second"), "{changed}");
    ends(&node, DONE, &["apply", "-f", &path]);
    assert_eq!(node.get("/v1/groups/one").await.expect_status(200)["revision"], 2);
    // What was exported is what there is.
    let exported = ends(&node, DONE, &["export"]);
    let copy = world.directory().join("copy.yaml");
    std::fs::write(&copy, &exported).unwrap();
    ends(&node, DONE, &["diff", "-f", &copy.to_string_lossy()]);
    assert!(ends(&node, DONE, &["group", "list"]).contains("two"));
    assert_eq!(json_of(&node, &["group", "show", "one"])["name"], "one");
    assert!(ends(&node, DONE, &["group", "graph", "two"]).contains('t'));
    ends(&node, DONE, &["group", "disable", "one"]);
    ends(&node, REFUSED, &["run", "start", "one"]);
    ends(&node, DONE, &["group", "enable", "one"]);
    std::fs::write(&file, "kind: group\nname: bad\ntasks: {t: {script: nope}}\n").unwrap();
    let refused = ends(&node, REFUSED, &["apply", "-f", &path]);
    assert!(refused.contains("/tasks/t/script"), "the place is named: {refused}");
    std::fs::write(&file, "kind: [").unwrap();
    ends(&node, USAGE, &["apply", "-f", &path]);
    ends(&node, REFUSED, &["group", "rm", "one"]);
    ends(&node, DONE, &["group", "rm", "two"]);
}

#[tokio::test]
async fn runs() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group("good", one(json!({"script": "hello"}))).await;
    node.put_group("bad", one(fails())).await;
    node.put_group("slow", one(sleeps(3600.0))).await;
    let run = json_of(&node, &["run", "start", "good", "--param", "name=you"]);
    let id = heddle_tests::id(&run);
    let watched = ends(&node, DONE, &["run", "watch", &id]);
    assert!(watched.contains("succeeded"), "{watched}");
    let shown = json_of(&node, &["run", "show", &id]);
    assert_eq!(heddle_tests::task(&shown, "t")["output"]["greeting"], "Hello, you!");
    assert!(ends(&node, DONE, &["run", "show", &id]).contains("succeeded"));
    assert!(ends(&node, DONE, &["run", "logs", &id]).contains("Hello, you!"));
    assert!(ends(&node, DONE, &["run", "logs", &id, "t", "--follow"]).contains("Hello, you!"));
    assert!(ends(&node, DONE, &["run", "list", "-g", "good"]).contains(&id));
    ends(&node, REFUSED, &["run", "restart", &id]);
    // One that fails.
    let id = heddle_tests::id(&json_of(&node, &["run", "start", "bad"]));
    let watched = ends(&node, REFUSED, &["run", "watch", &id]);
    assert!(watched.contains("failed"), "{watched}");
    ends(&node, DONE, &["run", "restart", &id]);
    ends(&node, REFUSED, &["run", "watch", &id]);
    // One that is steered.
    let id = heddle_tests::id(&json_of(&node, &["run", "start", "slow"]));
    ends(&node, DONE, &["run", "pause", &id]);
    assert_eq!(json_of(&node, &["run", "show", &id])["state"], "paused");
    ends(&node, DONE, &["run", "resume", &id]);
    ends(&node, DONE, &["run", "cancel", &id]);
    assert_eq!(json_of(&node, &["run", "show", &id])["state"], "cancelled");
    ends(&node, REFUSED, &["run", "cancel", &id]);
}

/// Helpful errors and their exit codes.
#[tokio::test]
async fn errors() {
    let world = World::new().await;
    let node = world.node().await;
    ends(&node, REFUSED, &["run", "start", "nope"]);
    ends(&node, USAGE, &["run", "start"]);
    ends(&node, USAGE, &["no-such-command"]);
    ends(&node, USAGE, &["run", "start", "g", "-p", "{"]);
    let away = run_program(
        &["run", "list"],
        &[("HEDDLE_URL", "http://127.0.0.1:1"), ("HEDDLE_TOKEN", TOKEN)],
    );
    assert_eq!(away.status.code(), Some(UNREACHABLE));
    assert!(String::from_utf8_lossy(&away.stderr).contains("127.0.0.1:1"));
    let stranger = run_program(&["run", "list"], &[("HEDDLE_URL", node.base())]);
    assert_eq!(stranger.status.code(), Some(REFUSED));
    assert!(
        String::from_utf8_lossy(&stranger.stderr)
            .to_lowercase()
            .contains("token")
    );
    let nowhere = run_program(&["serve", "--listen", "127.0.0.1:0"], &[]);
    assert_eq!(nowhere.status.code(), Some(USAGE));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("--database-url"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(ends(&node, DONE, &["completions", shell]).contains("heddle"));
    }
    // To migrate what is up to date changes nothing.
    let migrated = run_program(&["migrate", "--database-url", world.url()], &[]);
    assert_eq!(
        migrated.status.code(),
        Some(DONE),
        "{}",
        String::from_utf8_lossy(&migrated.stderr)
    );
}
