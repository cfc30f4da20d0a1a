//! Files and names on the command line: what was applied is no difference, what no file has is pruned, runs by the
//! beginning of their ids.

use std::collections::BTreeSet;

use heddle_tests::{World, id};
use serde_json::json;

use crate::cli::{DONE, REFUSED, USAGE, ends, json_of};
use crate::{one, with};

/// Things of every kind, with defaults left out and durations written in many ways.
const ALL_KINDS: &str = r#"
kind: category
name: bi
---
kind: category
name: raw
description: As it comes
---
kind: template
name: order
spec: {type: object, properties: {n: {type: integer}}}
---
kind: secret
name: key
value: hush
groups: [full]
---
kind: connection
name: warehouse
url: postgres://u:p@127.0.0.1:1/d
groups: [full]
---
kind: pool
name: db
slots: 2
---
kind: webhook
name: hook
url: https://example.com/hook
secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
---
kind: slack
name: chat
url: https://hooks.slack.com/services/T/B/X
---
kind: email
name: mail
smtp: {host: 127.0.0.1, port: 25, tls: none}
from: a@example.com
to: [b@example.com]
---
kind: group
name: small
tasks: {t: {queue: q}}
---
kind: group
name: full
category: bi
deadline: 7200s
retention: {runs: 720h}
max_waiting: 7
schedules: {s: {every: 90m, initial_delay: 60s}, c: {cron: "0 2 * * *", enabled: false}}
notify: {on: [failed], channels: [hook]}
tasks:
  a: {script: hello, timeout: 3600s, retry: {strategy: fixed, retries: 3, interval: 60s}, sql: [warehouse], secrets: [key], pools: {db: 1}}
  b: {http: {url: "https://example.com"}, depends_on: [a], trigger_rule: none_failed, when: "true"}
  c: {queue: q, queue_timeout: 600s, depends_on: [b], trigger_rule: always, max_log: 1024KiB}
---
kind: topic
name: letters
queue: letters
retention: 168h
---
kind: interval
name: poll
audience: gid_team
every: 60m
template: order
params: {n: 1}
---
kind: daily
name: morning
audience: uid_ann
at: "08:00"
max_hold: 3600s
"#;

/// `diff` is empty after `apply`, for every kind; so it is for what `export` gives.
#[tokio::test]
async fn what_was_applied_is_no_difference() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("all.yaml");
    std::fs::write(&file, ALL_KINDS).unwrap();
    let path = file.to_string_lossy().into_owned();
    for _ in 0..2 {
        ends(&node, DONE, &["apply", "-f", &path]);
        ends(&node, DONE, &["diff", "-f", &path]);
    }
    let said = json_of(&node, &["apply", "-f", &path]);
    for item in said["items"].as_array().unwrap() {
        let expect = match item["kind"].as_str().unwrap() {
            "secret" => "set",
            // What is write only may have changed: it is put, and nobody can tell.
            "channel" | "connection" => continue,
            _ => "unchanged",
        };
        assert_eq!(item["result"], expect, "{item:#}");
    }
    let copy = world.directory().join("copy.yaml");
    let exported = ends(&node, DONE, &["export"]);
    std::fs::write(&copy, &exported).unwrap();
    ends(&node, DONE, &["diff", "-f", &copy.to_string_lossy()]);
    assert_eq!(exported, ends(&node, DONE, &["export", "--all"]));
    let kinds = |arguments: &[&str]| -> BTreeSet<String> {
        let exported = json_of(&node, &[&["export"][..], arguments].concat());
        let items = exported["items"].as_array().unwrap();
        items
            .iter()
            .map(|item| item["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    let known = ["category", "channel", "group", "offer", "pool", "template", "topic"].map(str::to_owned);
    assert_eq!(kinds(&[]), BTreeSet::from(known));
    // Who names groups wants these only.
    for arguments in [&["small"][..], &["--category", "bi"]] {
        assert_eq!(kinds(arguments), BTreeSet::from(["group".to_owned()]), "{arguments:?}");
    }
    assert!(kinds(&["small", "--all"]).contains("topic"));
    // What is shown is read back, too.
    for (kind, name) in [
        ("category", "raw"),
        ("template", "order"),
        ("pool", "db"),
        ("group", "full"),
        ("topic", "letters"),
        ("offer", "poll"),
    ] {
        let shown = ends(&node, DONE, &[kind, "show", name, "-o", "yaml"]);
        std::fs::write(&copy, shown).unwrap();
        let said = ends(&node, DONE, &["apply", "-f", &copy.to_string_lossy()]);
        assert!(said.contains(&format!("{kind} {name} unchanged")), "{said}");
    }
    // And what differs is shown.
    std::fs::write(&file, ALL_KINDS.replace("slots: 2", "slots: 3")).unwrap();
    let differs = ends(&node, REFUSED, &["diff", "-f", &path]);
    assert!(
        differs.contains("+slots: 3") && !differs.contains("warehouse"),
        "{differs}"
    );
}

/// What cannot be applied says so: it is not read as a group.
#[tokio::test]
async fn a_queue_is_no_group() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "s1"}))).await;
    assert_eq!(json_of(&node, &["group", "show", "g"])["kind"], "group");
    let run = node.start("g", json!({})).await;
    let file = world.directory().join("shown.yaml");
    for (kind, name) in [
        ("queue", "s1"),
        ("run", run.as_str()),
        ("script", "hello"),
        ("script", "hello@1"),
    ] {
        let shown = ends(&node, DONE, &[kind, "show", name, "-o", "yaml"]);
        std::fs::write(&file, shown).unwrap();
        let said = ends(&node, USAGE, &["apply", "-f", &file.to_string_lossy()]);
        let expect = format!("/kind: a {kind} cannot be applied; use ");
        assert!(said.contains(&expect), "{said}");
    }
    assert_eq!(node.all("/v1/groups").await.len(), 1);
}

/// A dry run knows the groups that the same files contain. It does not take another error at that place for this.
#[tokio::test]
async fn a_dry_run_knows_the_groups_of_its_files() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("groups.yaml");
    let path = file.to_string_lossy().into_owned();
    let write = |one: &str, two: &str| {
        std::fs::write(
            &file,
            format!("name: one\ntasks: {{t: {one}}}\n---\nname: two\n{two}\n"),
        )
        .unwrap();
    };
    write(
        "{queue: q}",
        "depends_on: [one]\ntasks: {t: {queue: q}, s: {group: one}}",
    );
    let dry = ends(&node, DONE, &["apply", "--dry-run", "-f", &path]);
    assert!(dry.contains("group one valid (dry run)"), "{dry}");
    assert!(
        dry.contains("group two valid together with the other documents"),
        "{dry}"
    );
    assert_eq!(node.all("/v1/groups").await.len(), 0);
    // The place names a group of the files, but it is a cycle.
    write("{queue: q}", "tasks: {s: {group: one}}");
    ends(&node, DONE, &["apply", "-f", &path]);
    write("{group: two}", "tasks: {s: {group: one}}");
    let refused = ends(&node, REFUSED, &["apply", "--dry-run", "-f", &path]);
    assert!(refused.contains("cycle: one -> two -> one"), "{refused}");
}

/// A dry run of all that an empty cluster lacks says what `apply` says, and the same for a set with an error.
#[tokio::test]
async fn a_dry_run_knows_all_that_its_files_bring() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("all.yaml");
    let path = file.to_string_lossy().into_owned();
    let write = |slots: u32| {
        let text = format!(
            "name: g\ncategory: day\ntemplate: form\nnotify: {{on: [failed], channels: [ops]}}\ntasks:\n  \
             t: {{script: hello, pools: {{db: 2}}, secrets: [door], sql: [shop]}}\n  s: {{group: other}}\n---\n\
             name: other\ntasks: {{t: {{queue: q}}}}\n---\n\
             kind: pool\nname: db\nslots: {slots}\n---\nkind: template\nname: form\nspec: {{type: object}}\n---\n\
             kind: webhook\nname: ops\nurl: https://example.com/hook\n---\n\
             kind: secret\nname: door\nvalue: sesame\ncategories: [day]\n---\n\
             kind: connection\nname: shop\nurl: postgres://me@example.com/shop\ngroups: [g]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write(1);
    for dry in [&["--dry-run"][..], &[]] {
        let mut words = vec!["apply", "-f", &path];
        words.extend(dry);
        let refused = ends(&node, REFUSED, &words);
        assert!(refused.contains("/tasks/t/pools/db"), "{refused}");
        let groups = node.all("/v1/groups").await;
        assert!(groups.iter().all(|group| group["name"] != "g"), "{groups:#?}");
    }
    // The pool is there now, and too small: the files change it.
    assert_eq!(node.get("/v1/pools/db").await.expect_status(200)["slots"], 1);
    write(2);
    let dry = ends(&node, DONE, &["apply", "--dry-run", "-f", &path]);
    assert!(dry.contains("group g valid together with the other documents"), "{dry}");
    ends(&node, DONE, &["apply", "-f", &path]);
    // A cluster that has nothing of it.
    let (_world, empty) = World::with_node().await;
    let dry = ends(&empty, DONE, &["apply", "--dry-run", "-f", &path]);
    assert!(dry.contains("group g valid together with the other documents"), "{dry}");
    assert!(empty.all("/v1/pools").await.is_empty());
    ends(&empty, DONE, &["apply", "-f", &path]);
}

/// `apply --prune` deletes what a directory does not have, of the kinds that it has, after it was shown.
#[tokio::test]
async fn pruning() {
    let (world, node) = World::with_node().await;
    let directory = world.directory().join("files");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(
        directory.join("all.yaml"),
        "name: keep\ntasks: {t: {queue: q}}\n---\nkind: pool\nname: kept\nslots: 1\n",
    )
    .unwrap();
    let path = directory.to_string_lossy().into_owned();
    // One follows the other, which has to go first.
    node.put_group("a-old", one(json!({"queue": "q"}))).await;
    node.put_group(
        "a-follows",
        with(one(json!({"queue": "q"})), json!({"depends_on": ["a-old"]})),
    )
    .await;
    node.put("/v1/pools/spare", json!({"slots": 2}))
        .await
        .expect_status(201);
    node.put("/v1/categories/other", json!({})).await.expect_status(201);
    let names = async |path: &str| -> Vec<String> {
        let items = node.all(path).await;
        items
            .iter()
            .map(|item| item["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let dry = ends(&node, DONE, &["apply", "--prune", "--dry-run", "-f", &path]);
    assert!(dry.contains("a-old would be deleted"), "{dry}");
    // Without a terminal nothing is done unasked, not even the rest.
    let refused = ends(&node, USAGE, &["apply", "--prune", "-f", &path]);
    for name in ["- group a-old", "- group a-follows", "- pool spare", "--yes"] {
        assert!(refused.contains(name), "{refused}");
    }
    assert_eq!(names("/v1/groups").await, ["a-follows", "a-old"]);
    ends(
        &node,
        USAGE,
        &[
            "apply",
            "--prune",
            "--yes",
            "-f",
            &directory.join("all.yaml").to_string_lossy(),
        ],
    );
    ends(&node, DONE, &["apply", "--prune", "--yes", "-f", &path]);
    assert_eq!(names("/v1/groups").await, ["keep"]);
    assert_eq!(names("/v1/pools").await, ["kept"]);
    assert_eq!(
        names("/v1/categories").await,
        ["other"],
        "the directory has none of these"
    );
    ends(&node, DONE, &["apply", "--prune", "-f", &path]);
}

/// Runs by the beginning of their ids, and the latest one; clear.
#[tokio::test]
async fn naming_runs() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
    )
    .await;
    let said = ends(&node, REFUSED, &["run", "show", "latest:g"]);
    assert!(said.contains("the group `g` has no run yet"), "{said}");
    let first = id(&node.run("g", json!({})).await);
    let second = id(&node.run("g", json!({})).await);
    for name in ["latest", "latest:g", &second[..35], &second] {
        assert_eq!(json_of(&node, &["run", "show", name])["id"], json!(second), "{name}");
    }
    // Ids begin with the time: both begin alike, and the error lists them.
    if first[..8] == second[..8] {
        let said = ends(&node, USAGE, &["run", "show", &first[..8]]);
        assert!(said.contains(&first) && said.contains(&second), "{said}");
    }
    ends(&node, REFUSED, &["run", "show", "ffffffff"]);
    ends(&node, USAGE, &["run", "show", "0199f5a"]);
    // What nothing is named after is distinguished from what has no runs, and a slip of the hand is seen.
    let said = ends(&node, REFUSED, &["run", "show", "latest:none"]);
    assert!(said.contains("there is no group `none`"), "{said}");
    node.put_group("idle", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let said = ends(&node, REFUSED, &["run", "show", "latest:idle"]);
    assert!(said.contains("the group `idle` has no run yet"), "{said}");
    for (words, meant) in [
        (["run", "show", "latest:idel"], "did you mean the group `idle`?"),
        (["script", "show", "helo"], "did you mean the script `hello`?"),
        (["script", "logs", "helo@1"], "did you mean the script `hello`?"),
    ] {
        let said = ends(&node, REFUSED, &words);
        assert_eq!(said.matches(meant).count(), 1, "{words:?}: {said}");
    }
    ends(
        &node,
        DONE,
        &["run", "clear", &first, "a", "--reason", "again", "--watch"],
    );
    assert_eq!(node.attempts(&first, "b").await.len(), 2);
    ends(
        &node,
        DONE,
        &["run", "clear", &first, "a", "--downstream=false", "--watch"],
    );
    assert_eq!(
        (
            node.attempts(&first, "a").await.len(),
            node.attempts(&first, "b").await.len()
        ),
        (3, 2)
    );
    let report = json_of(
        &node,
        &["run", "bulk", "clear", "--group", "g", "--task", "b", "--dry-run"],
    );
    assert_eq!(report["matched"], 2);
    let set = ["run", "set-state", &second, "failed", "--reason", "wrong data"];
    ends(&node, DONE, &set);
    let shown = ends(&node, DONE, &["run", "show", &second]);
    assert!(shown.contains("wrong data"), "{shown}");
    let dated = json_of(&node, &["run", "start", "g", "--logical-time", "2026-03-01"]);
    assert_eq!(dated["logical_time"], "2026-03-01T00:00:00.000000Z");
}
