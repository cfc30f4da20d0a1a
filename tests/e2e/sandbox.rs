//! The sandbox: each limit with its own kind of error, and nobody suffers for another.

use heddle_tests::{Node, World, task};
use serde_json::{Value, json};

use crate::{one, with};

const OUTPUT_BYTES_MAX: u64 = 256 * 1024;
/// The quotes of a JSON string.
const QUOTES: u64 = 2;

async fn hostile(node: &Node, params: Value, more: Value) -> Value {
    node.put_group("g", one(with(json!({"script": "hostile", "params": params}), more)))
        .await;
    node.run("g", json!({})).await
}

fn check(run: &Value, kind: &str) {
    let found = task(run, "t");
    assert_eq!(
        (&found["state"], &found["error"]["kind"]),
        (&json!("failed"), &json!(kind)),
        "{found:#}"
    );
    assert!(!found["error"]["message"].as_str().unwrap_or_default().is_empty());
}

/// Exactly the limit is fine, a byte more is an error of kind `output`, never a truncation.
#[tokio::test]
async fn output() {
    let (_world, node) = World::with_node().await;
    let fits = OUTPUT_BYTES_MAX - QUOTES;
    let run = hostile(&node, json!({"mode": "output", "count": fits}), json!({})).await;
    assert_eq!(run["state"], "succeeded", "{}", run["error"]);
    assert_eq!(task(&run, "t")["output"].as_str().map(str::len), Some(fits as usize));
    let run = hostile(&node, json!({"mode": "output", "count": fits + 1}), json!({})).await;
    check(&run, "output");
    assert_eq!(task(&run, "t")["output"], Value::Null);
    let run = hostile(&node, json!({"mode": "output", "count": 10_000_000}), json!({})).await;
    check(&run, "output");
    let limit = json!({"max_output": "1KiB"});
    check(
        &hostile(&node, json!({"mode": "output", "count": 1023}), limit.clone()).await,
        "output",
    );
    assert_eq!(
        hostile(&node, json!({"mode": "output", "count": 1022}), limit).await["state"],
        "succeeded"
    );
    let limit = json!({"max_output": "1MiB"});
    let run = hostile(&node, json!({"mode": "output", "count": 1_000_000}), limit).await;
    assert_eq!(task(&run, "t")["output"].as_str().map(str::len), Some(1_000_000));
}

#[tokio::test]
async fn memory() {
    let (_world, node) = World::with_node().await;
    check(&hostile(&node, json!({"mode": "memory"}), json!({})).await, "memory");
    let id = heddle_tests::id(&hostile(&node, json!({"mode": "memory"}), json!({"memory": "16MiB"})).await);
    let attempt = node.attempts(&id, "t").await.remove(0);
    assert_eq!(attempt["error"]["kind"], "memory");
    let bytes = attempt["memory_bytes"].as_u64().unwrap();
    assert!((8 << 20..=16 << 20).contains(&bytes), "it took {bytes} bytes of 16 MiB");
}

#[tokio::test]
async fn recursion_and_traps() {
    let (_world, node) = World::with_node().await;
    for mode in ["recursion", "trap", "panic"] {
        let run = hostile(&node, json!({"mode": mode}), json!({})).await;
        check(&run, "trap");
        let id = heddle_tests::id(&run);
        let attempt = node.attempts(&id, "t").await.remove(0);
        assert!(
            !attempt["error"]["trace"].as_str().unwrap_or_default().is_empty(),
            "{mode} has no trace: {attempt:#}"
        );
    }
    // The node is as it was.
    node.put_group("light", one(json!({"script": "hello"}))).await;
    assert_eq!(node.run("light", json!({})).await["state"], "succeeded");
}

/// A log is cut at its limit, and says so; the script goes on.
#[tokio::test]
async fn log() {
    let (_world, node) = World::with_node().await;
    for (mode, count) in [
        ("log_flood", 100_000),
        ("stderr_flood", 100_000),
        ("log_line", 3_000_000),
    ] {
        let run = hostile(
            &node,
            json!({"mode": mode, "count": count}),
            json!({"max_log": "64KiB"}),
        )
        .await;
        assert_eq!(run["state"], "succeeded", "{mode}: {}", run["error"]);
        let lines = node.log_lines(&heddle_tests::id(&run), "t").await;
        let bytes: usize = lines
            .iter()
            .filter_map(|line| line["message"].as_str())
            .map(str::len)
            .sum();
        assert!(bytes <= 65 << 10, "{mode}: {bytes} bytes are kept of 64 KiB");
        let last = lines.last().map(Value::to_string).unwrap_or_default();
        assert!(
            last.contains("cut") || last.contains("limit"),
            "{mode}: the log does not say that it was cut: {last}"
        );
    }
    let run = hostile(&node, json!({"mode": "log_line", "count": 2_000_000}), json!({})).await;
    let lines = node.log_lines(&heddle_tests::id(&run), "t").await;
    let bytes: usize = lines
        .iter()
        .filter_map(|line| line["message"].as_str())
        .map(str::len)
        .sum();
    assert!(bytes <= (1 << 20) + 1024, "{bytes} bytes are kept of 1 MiB");
}

/// Floods of host calls end, or fail, and hurt nobody.
#[tokio::test]
async fn floods() {
    let (_world, node) = World::with_node().await;
    for (mode, count) in [
        ("host_flood", 200_000),
        ("progress_flood", 200_000),
        ("state_flood", 100_000),
        ("failure", 10_000_000),
    ] {
        let run = hostile(&node, json!({"mode": mode, "count": count}), json!({"timeout": "10s"})).await;
        let found = task(&run, "t");
        assert!(
            matches!(found["state"].as_str(), Some("succeeded" | "failed")),
            "{mode}: {found:#}"
        );
        let message = found["error"]["message"].as_str().unwrap_or_default().len();
        assert!(message < 64 << 10, "{mode}: a message of {message} bytes is kept");
    }
}

/// Nothing of one instance is left in the next.
#[tokio::test]
async fn nothing_leaks_into_the_next() {
    let (_world, node) = World::with_node().await;
    let text = r#"(module
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (global $count (mut i32) (i32.const 0))
        (func (export "_start")
            ;; The digit at 100 counts up in memory, the global besides; fresh instances both begin anew.
            (i32.store8 (i32.const 100) (i32.add (i32.load8_u (i32.const 100)) (i32.const 1)))
            (global.set $count (i32.add (global.get $count) (i32.const 1)))
            (i32.store8 (i32.const 8) (i32.add (i32.const 48)
                (i32.add (i32.load8_u (i32.const 100)) (global.get $count))))
            (i32.store (i32.const 0) (i32.const 8))
            (i32.store (i32.const 4) (i32.const 1))
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"#;
    node.put_bytes("/v1/scripts/counter", "text/plain", text)
        .await
        .expect_status(201);
    node.put_group("g", one(json!({"script": "counter", "shards": 50})))
        .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let output = task(&run, "t")["output"].as_array().unwrap();
    assert!(output.iter().all(|count| count == 2), "{output:?}");
}

/// WASI commands: params on stdin, the context in HEDDLE_CONTEXT, the result on stdout, stderr is the log.
#[tokio::test]
async fn commands() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "wasi",
        json!({"tasks": {
            "p1": {"script": "hello-wasi", "params": {"name": "p1"}},
            "p2": {"script": "hello-wasi-p2", "params": {"text": "abca"}},
            "fails": {"script": "hello-wasi-p2", "params": {}},
        }}),
    )
    .await;
    let run = node.run("wasi", json!({})).await;
    assert_eq!(
        task(&run, "p1")["output"],
        json!({"greeting": "Hello, p1!", "group": "wasi", "attempt": 1})
    );
    assert_eq!(task(&run, "p2")["output"], json!({"letters": {"a": 2, "b": 1, "c": 1}}));
    let failed = task(&run, "fails");
    assert_eq!(
        (&failed["state"], &failed["error"]["kind"]),
        (&json!("failed"), &json!("failed")),
        "{failed:#}"
    );
    let id = heddle_tests::id(&run);
    assert_eq!(node.log_lines(&id, "p1").await[0]["message"], "greeted");
    assert_eq!(
        node.log_lines(&id, "fails").await[0]["message"],
        "params: `text` is missing"
    );
}

/// Empty output is null, what is no JSON is `invalid`, an exit code fails retryably.
#[tokio::test]
async fn what_commands_give() {
    let (_world, node) = World::with_node().await;
    let command = |stdout: &str, exit: i32| {
        format!(
            r#"(module
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 64) "{stdout}")
            (func (export "_start")
                (i32.store (i32.const 0) (i32.const 64))
                (i32.store (i32.const 4) (i32.const {}))
                (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))
                (call $exit (i32.const {exit}))))"#,
            stdout.len()
        )
    };
    for (name, stdout, exit, state, kind) in [
        ("empty", "", 0, "succeeded", None),
        ("number", "42", 0, "succeeded", None),
        ("text", "no json", 0, "failed", Some("invalid")),
        ("exit", "1", 3, "failed", Some("failed")),
    ] {
        node.put_bytes(&format!("/v1/scripts/{name}"), "text/plain", command(stdout, exit))
            .await
            .expect_status(201);
        let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
        node.put_group(name, one(json!({"script": name, "retry": retry}))).await;
        let run = node.run(name, json!({})).await;
        let found = task(&run, "t");
        assert_eq!(found["state"], state, "{name}: {found:#}");
        match kind {
            Some(kind) => assert_eq!(found["error"]["kind"], kind, "{name}"),
            None => assert_eq!(
                found["output"],
                serde_json::from_str(stdout).unwrap_or(Value::Null),
                "{name}"
            ),
        }
        let attempts = if name == "exit" { 2 } else { 1 };
        assert_eq!(found["attempt"], attempts, "{name}");
    }
}
