//! The command line against a node: what people type, what they see, and exit codes for scripts of theirs.

use std::process::Output;

use heddle_tests::{Node, TOKEN, World, eventually, run_program};
use serde_json::{Value, json};

use crate::{fails, one, sleeps};

/// What commands end with.
pub(crate) const DONE: i32 = 0;
pub(crate) const REFUSED: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const UNREACHABLE: i32 = 3;

fn heddle(node: &Node, arguments: &[&str]) -> Output {
    run_program(arguments, &[("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)])
}

/// A command that ends with this code; its stdout, and stderr if it fails.
#[track_caller]
pub(crate) fn ends(node: &Node, code: i32, arguments: &[&str]) -> String {
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
pub(crate) fn json_of(node: &Node, arguments: &[&str]) -> Value {
    let said = ends(node, DONE, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?} gives no JSON ({error}): {said}"))
}

#[tokio::test]
async fn scripts() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("hello.wasm");
    std::fs::write(&file, heddle_scripts::get("hello").unwrap()).unwrap();
    let file = file.to_string_lossy().into_owned();
    let pushed = json_of(&node, &["script", "push", "mine", &file]);
    assert_eq!((&pushed["name"], &pushed["version"]), (&json!("mine"), &json!(1)));
    // People are told the address of the page, separately from the output for programs.
    let again = heddle(&node, &["script", "push", "mine", &file]);
    let [said, beside] = [&again.stdout, &again.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(said.starts_with("mine@1 (") && !said.contains("http"), "{said}");
    assert_eq!(beside.trim_end(), format!("{}/scripts/mine", node.base()));
    let page = node
        .request(reqwest::Method::GET, "/scripts/mine")
        .header("accept", "text/html");
    assert!(page.send().await.unwrap().status().is_success());
    assert!(ends(&node, DONE, &["script", "list"]).contains("mine"));
    assert!(
        ends(&node, DONE, &["script", "show", "mine"]).contains(pushed["digest"].as_str().unwrap().get(..8).unwrap())
    );
    assert_eq!(json_of(&node, &["script", "show", "mine@1"])["version"], 1);
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
    let said = ends(&node, REFUSED, &["script", "show", "helo"]);
    assert!(said.contains("did you mean the script `hello`?"), "{said}");
    let said = ends(&node, REFUSED, &["script", "test", "hello@99"]);
    assert!(!said.contains("did you mean"), "{said}");
}

#[tokio::test]
async fn specs() {
    let (world, node) = World::with_node().await;
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
    export_is_complete(&node, &world).await;
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

/// Every field of a spec comes back from `export`, in both formats, also when a schedule has disabled itself.
async fn export_is_complete(node: &Node, world: &World) {
    let full = world.directory().join("full.yaml");
    let text = r#"
name: full
description: "all of it: yes"
category: bi
history: true
timezone: Asia/Shanghai
depends_on: [one, {group: two, need: interval}]
overlap: skip
max_active_runs: 3
on_failure: stop
deadline: 2h
deadline_action: cancel
priority: 5
labels: {team: "a b", n: "1"}
params: {n: 1, f: 1.50, z: null, s: "007", d: "2026-01-01", multi: "a\nb\n"}
retention: {runs: 30d, states: {failed: 90d}, logs: 7d}
notify: {on: [failed, recovered], to: [a@example.com]}
schedules:
  nightly: {cron: "0 0 2 * * *", timezone: Asia/Tokyo, misfire: all, grace: 5m, starts_at: 2026-01-01, enabled: false}
  every: {every: 1h30m, anchor: "2026-01-01T00:00:00Z", initial_delay: 10s}
  once: {once: {delay: 0s}}
  daily: {daily: {every_days: 3, at: "08:00"}}
tasks:
  a: {script: hello@1, timeout: 5m, retry: {strategy: exponential, retries: 3, interval: 10s, jitter: 0.2}, memory: 64MiB, max_lost: 0}
  b: {script: hello, depends_on: [a], for_each: [x, y], concurrency: 2, fail_fast: true, when: "params.n == 1", allow_failure: true}
  c: {queue: approvals, tags: [a100], depends_on: [a], timeout: never, shards: workers}
  d: {http: {url: "https://example.com/done", headers: {x-a: b}, body: {a: 1}}, depends_on: [c], trigger_rule: all_done}
  e: {audience: {audience: gid_team, dispatch_times: each, max_hold: 1h}}
  f: {group: one}
"#;
    std::fs::write(&full, text).unwrap();
    let path = full.to_string_lossy().into_owned();
    ends(node, DONE, &["apply", "-f", &path]);
    eventually("the schedule that disables itself", async || {
        let group = node.get("/v1/groups/full").await.expect_status(200);
        group["schedules"]["once"]["fired_at"].is_string().then_some(())
    })
    .await;
    ends(node, DONE, &["diff", "-f", &path]);
    for (format, name) in [("yaml", "all.yaml"), ("json", "all.json")] {
        let copy = world.directory().join(name);
        std::fs::write(&copy, ends(node, DONE, &["export", "-o", format])).unwrap();
        let copy = copy.to_string_lossy().into_owned();
        ends(node, DONE, &["diff", "-f", &copy]);
        let said = ends(node, DONE, &["apply", "-f", &copy]);
        assert!(said.contains("group full unchanged"), "{said}");
    }
    // What was read may be put again, and is no difference; `enabled` is one, if it has another value.
    for format in ["yaml", "json"] {
        let shown = world.directory().join(format!("shown.{format}"));
        std::fs::write(&shown, ends(node, DONE, &["group", "show", "full", "-o", format])).unwrap();
        let shown = shown.to_string_lossy().into_owned();
        ends(node, DONE, &["diff", "-f", &shown]);
        let said = ends(node, DONE, &["apply", "-f", &shown]);
        assert!(said.contains("group full unchanged"), "{said}");
        ends(node, DONE, &["group", "disable", "full"]);
        assert!(ends(node, REFUSED, &["diff", "-f", &shown]).contains("enabled"));
        let said = ends(node, DONE, &["apply", "-f", &shown]);
        assert!(said.contains("group full changed"), "{said}");
        ends(node, DONE, &["diff", "-f", &shown]);
    }
    let group = node.get("/v1/groups/full").await.expect_status(200);
    assert_eq!(
        (&group["revision"], &group["retention"]["runs"]),
        (&json!(1), &json!("30d"))
    );
    // What a group answers can be put again.
    let again = node.put("/v1/groups/full", group).await.expect_status(200);
    assert_eq!(again["revision"], 1, "{again:#}");
    let reply = node.delete("/v1/groups/full").await;
    reply.expect_said(409, "depends on");
    node.put_group("full", json!({"tasks": {"t": {"script": "hello"}}}))
        .await;
    node.delete("/v1/groups/full?force=true").await.expect_status(200);
}

#[tokio::test]
async fn runs() {
    let (_world, node) = World::with_node().await;
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
    // For programs a log is one document, except while it grows.
    for arguments in [&["run", "logs", &id][..], &["run", "logs", &id, "--last", "1"]] {
        let log = json_of(&node, arguments);
        assert_eq!(log["items"].as_array().map(Vec::len), Some(1), "{log:#}");
        assert_eq!(log["items"][0]["message"], "Hello, you!");
        assert!(log.get("next_cursor").is_some_and(Value::is_null), "{log:#}");
    }
    assert!(ends(&node, DONE, &["run", "logs", &id, "-o", "yaml"]).starts_with("items:"));
    assert_eq!(
        json_of(&node, &["run", "logs", &id, "--follow"])["message"],
        "Hello, you!"
    );
    let log = json_of(&node, &["script", "logs", "hello"]);
    assert_eq!(
        (&log["items"][0]["run"], &log["items"][0]["message"]),
        (&json!(id), &json!("Hello, you!"))
    );
    let listed = ends(&node, DONE, &["run", "list", "-g", "good"]);
    assert!(listed.contains(&id));
    // A column contains what its title says.
    let (titles, first) = listed.split_once('\n').expect("titles and runs");
    for (title, beginning) in [("CREATED", "20"), ("LOGICAL TIME", "20"), ("TRIGGER", "manual")] {
        let below = titles
            .find(title)
            .and_then(|column| first.get(column..))
            .unwrap_or_default();
        assert!(below.starts_with(beginning), "{title}:\n{listed}");
    }
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

/// What is put by name is shown by name; JSON is asked for everywhere and comes alone.
#[tokio::test]
async fn things_with_names() {
    let (world, node) = World::with_node().await;
    ends(&node, DONE, &["pool", "set", "p", "3"]);
    assert_eq!(json_of(&node, &["pool", "show", "p"])["slots"], 3);
    ends(&node, REFUSED, &["pool", "show", "nope"]);
    let secret = json!({"value": "hush", "groups": ["g"]});
    node.put("/v1/secrets/s", secret).await.expect_status(201);
    let shown = ends(&node, DONE, &["secret", "show", "s"]);
    assert!(shown.contains('g') && !shown.contains("hush"), "{shown}");
    // A connection keeps the options that are not given: another URL must not let scripts write.
    let set = ["connection", "set", "c", "postgres://me@one.example/db", "--group", "*"];
    let shown = || {
        let shown = json_of(&node, &["connection", "show", "c"]);
        (shown["read_only"].clone(), shown["max_connections"].clone())
    };
    ends(&node, DONE, &set);
    assert_eq!(shown(), (json!(false), json!(4)));
    ends(
        &node,
        DONE,
        &[&set[..], &["--read-only", "--max-connections", "2"]].concat(),
    );
    assert_eq!(shown(), (json!(true), json!(2)));
    ends(&node, DONE, &set);
    assert_eq!(shown(), (json!(true), json!(2)));
    ends(&node, DONE, &[&set[..], &["--read-only=false"]].concat());
    assert_eq!(shown(), (json!(false), json!(2)));
    let file = world.directory().join("hello.wasm");
    let printed = json_of(&node, &["script", "download", "hello@1", &file.to_string_lossy()]);
    assert_eq!(printed["bytes"], std::fs::metadata(&file).unwrap().len());
    // A file that exists is somebody's work.
    std::fs::write(&file, "mine").unwrap();
    let again = ["script", "download", "hello", &file.to_string_lossy()];
    let said = ends(&node, USAGE, &again);
    assert!(said.contains("already exists") && said.contains("--force"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    ends(&node, DONE, &[&again[..], &["--force"]].concat());
    let whole = std::fs::read(&file).unwrap();
    assert_eq!(heddle(&node, &["script", "download", "hello", "-"]).stdout, whole);
    // The name alone is the active version, also while there is a newer one.
    let newer = world.directory().join("newer.wasm");
    std::fs::write(&newer, heddle_scripts::get("fib").unwrap()).unwrap();
    let newer = newer.to_string_lossy();
    let pushed = json_of(&node, &["script", "push", "hello", &newer, "--no-activate"]);
    assert_eq!(pushed["version"], 2);
    assert_eq!(heddle(&node, &["script", "download", "hello", "-"]).stdout, whole);
    assert_ne!(heddle(&node, &["script", "download", "hello@2", "-"]).stdout, whole);
    json_of(&node, &["script", "push", "idle", &newer, "--no-activate"]);
    for command in [&["script", "download", "idle", "-"][..], &["invoke", "idle"]] {
        let said = ends(&node, REFUSED, command);
        assert!(said.contains("`idle` has no active version"), "{said}");
    }
    ends(&node, DONE, &["script", "download", "idle@1", "-"]);
    let sources = world.directory().join("sources");
    let printed = json_of(
        &node,
        &["script", "new", "fresh", "--lang", "c", &sources.to_string_lossy()],
    );
    assert!(
        printed["files"].as_array().is_some_and(|files| files.len() > 1),
        "{printed:#}"
    );
    let spec = json!({"history": true, "tasks": {"t": {"script": "hello"}}});
    node.put_group("g", spec).await;
    let day = [
        "backfill",
        "g",
        "--from",
        "2024-01-01",
        "--to",
        "2024-01-03",
        "--step",
        "1d",
    ];
    let watched = json_of(&node, &[&day[..], &["--watch"]].concat());
    assert_eq!(
        (&watched["state"], &watched["counts"]["succeeded"]),
        (&json!("succeeded"), &json!(3))
    );
    let listed = json_of(&node, &["backfill", "list", "--group", "g"]);
    assert_eq!(listed["items"][0]["id"], watched["id"]);
    let whole = watched["id"].as_str().expect("an id");
    for name in ["latest", "latest:g", &whole[..13], whole] {
        assert_eq!(
            json_of(&node, &["backfill", "show", name])["id"],
            watched["id"],
            "{name}"
        );
    }
    let said = ends(&node, REFUSED, &["backfill", "show", "latest:gg"]);
    assert!(
        said.contains("there is no group `gg`") && said.contains("did you mean the group `g`?"),
        "{said}"
    );
    let said = ends(&node, REFUSED, &["backfill", "show", "ffffffff"]);
    assert!(
        said.contains("no backfill has an id that begins with ffffffff"),
        "{said}"
    );
    let said = ends(&node, USAGE, &["backfill", "show", "7"]);
    assert!(said.contains("a UUID"), "{said}");
    ends(&node, DONE, &["group", "disable", "g"]);
    let again = [&day[..], &["--on-existing", "all"]].concat();
    ends(&node, REFUSED, &again);
    ends(&node, DONE, &[&again[..], &["--force", "--watch"]].concat());
}

/// Lists in JSON say whether there is more, as the server does: `next_cursor` is there always, and null at the end.
#[tokio::test]
async fn lists_in_json() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    for _ in 0..2 {
        node.run("g", json!({})).await;
    }
    for noun in [
        "run",
        "group",
        "script",
        "backfill",
        "offer",
        "assignment",
        "topic",
        "queue",
        "category",
        "template",
        "channel",
        "secret",
        "connection",
        "pool",
        "notification",
        "token",
        "session",
    ] {
        let page = json_of(&node, &[noun, "list"]);
        assert!(page["items"].is_array(), "{noun}: {page:#}");
        assert_eq!(page.get("next_cursor"), Some(&Value::Null), "{noun}: {page:#}");
    }
    let first = json_of(&node, &["run", "list", "--limit", "1"]);
    let cursor = first["next_cursor"].as_str().expect("there is more");
    let rest = json_of(&node, &["run", "list", "--limit", "1", "--cursor", cursor]);
    assert_eq!(rest.get("next_cursor"), Some(&Value::Null));
    assert_ne!(first["items"][0]["id"], rest["items"][0]["id"]);
    // More than the server gives at once is read page by page.
    let all = json_of(&node, &["run", "list", "--limit", "501"]);
    assert_eq!(
        (all["items"].as_array().map(Vec::len), &all["next_cursor"]),
        (Some(2), &Value::Null)
    );
    for wrong in [
        ["run", "list", "--limit", "0"],
        ["run", "list", "--from", "yesterday"],
        ["run", "list", "-g", ""],
    ] {
        ends(&node, USAGE, &wrong);
    }
    ends(&node, USAGE, &["group", "next", "g", "--count", "0"]);
    ends(&node, USAGE, &["group", "show", ""]);
    let of_today = json_of(&node, &["run", "list", "--from", "2026-01-01"]);
    assert_eq!(of_today["items"].as_array().map(Vec::len), Some(2));
}

/// What was done is a sentence on stdout; pages and what changes nothing are notices beside it.
#[tokio::test]
async fn answers_are_sentences() {
    let (_world, node) = World::with_node().await;
    let both = |arguments: &[&str]| -> (String, String) {
        let output = heddle(&node, arguments);
        let [said, beside] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert_eq!(output.status.code(), Some(DONE), "{arguments:?}\n{said}\n{beside}");
        (said, beside)
    };
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put_group(
        "follows",
        json!({"depends_on": ["g"], "tasks": {"t": {"script": "hello"}}}),
    )
    .await;
    node.put_group("q", one(json!({"queue": "q"}))).await;
    let base = node.base();
    for (arguments, wanted, page) in [
        (&["queue", "pause", "q"][..], "queue q paused\n", "queues/q"),
        (&["queue", "resume", "q"], "queue q resumed\n", "queues/q"),
        (
            &["queue", "limit", "q", "10", "1m"],
            "queue q limited to 10 claims in 1m\n",
            "queues/q",
        ),
        (&["queue", "limit", "q"], "queue q has no limit\n", "queues/q"),
        (&["group", "disable", "g"], "group g disabled (drain)\n", "groups/g"),
        (&["group", "enable", "g"], "group g enabled\n", "groups/g"),
        (
            &["audience", "set", "gid_team", "ann"],
            "gid_team has 1 member\n",
            "dispatch/audiences/gid_team",
        ),
        (
            &["audience", "add", "gid_team", "bob"],
            "1 added; gid_team has 2 members\n",
            "dispatch/audiences/gid_team",
        ),
        (
            &["audience", "remove", "gid_team", "bob"],
            "1 removed; gid_team has 1 member\n",
            "dispatch/audiences/gid_team",
        ),
    ] {
        let (said, beside) = both(arguments);
        assert_eq!(
            (said.as_str(), beside.trim_end()),
            (wanted, format!("{base}/{page}").as_str())
        );
    }
    let (said, beside) = both(&["audience", "remove", "gid_team", "cas"]);
    assert_eq!(said, "gid_team has 1 member\n");
    assert!(beside.contains("cas is no member of gid_team"), "{beside}");
    node.run("g", json!({})).await;
    let (said, _) = both(&["run", "bulk", "delete", "-g", "g", "--dry-run"]);
    assert_eq!(said, "1 run matches, and would be deleted\n");
    let (said, beside) = both(&["run", "bulk", "cancel", "-g", "g"]);
    assert_eq!(said, "1 run matches, 0 cancelled\n");
    assert!(beside.starts_with("run "), "the reason: {beside}");
    // Scripts are not asked.
    let (said, _) = both(&["run", "bulk", "delete", "-g", "g"]);
    assert_eq!(said, "1 run matches, 1 deleted\n");
    let run = heddle_tests::id(&node.run("g", json!({})).await);
    assert_eq!(both(&["run", "rm", "latest:g"]).0, format!("run {run} deleted\n"));
    assert!(both(&["group", "rm", "g"]).0.contains("detached: follows"));
    let pruned = both(&["retention", "prune", "--dry-run"]).0;
    assert_eq!(pruned, "nothing would be removed\n");
    // What a group may not have yet is worth a word.
    let output = node.put("/v1/secrets/s", json!({"value": "hush"})).await;
    output.expect_status(201);
    let set = [
        "connection",
        "set",
        "c",
        "postgres://u:p@127.0.0.1:1/d",
        "--group",
        "nope",
        "--group",
        "follows",
    ];
    let (_, beside) = both(&set);
    assert_eq!(beside, "warning: there is no group `nope` yet\n");
}

#[tokio::test]
async fn a_date_is_a_time() {
    let (_world, node) = World::with_node().await;
    let token = ["token", "create", "--name", "t", "--role", "viewer", "--expires-at"];
    let said = ends(&node, USAGE, &[&token[..], &["soon"]].concat());
    assert!(said.contains("or a date such as"), "{said}");
    json_of(&node, &[&token[..], &["2099-12-31"]].concat());
}
