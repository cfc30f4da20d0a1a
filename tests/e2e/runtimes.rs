//! Runtimes of text scripts: what a script was checked with stays with it, whatever program runs it, until it is retired.
//!
//! There is only one program here. The data of another build is simulated: bytes of its own runtimes in the database,
//! in which a script can tell them from this program's, and versions that name them.

use std::time::Duration;

use heddle_domain::hex;
use heddle_sandbox::{Language, RuntimeBundle};
use heddle_tests::{Answer, Node, Receiver, TOKEN, World, eventually, task, within};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_postgres::Client;

const JS: &str = "text/javascript";
const PYTHON: &str = "text/x-python";

/// Which runtime a script runs on, as the script sees it.
const TELLS_JS: &str = "export default () => globalThis.heddleBuild ?? 'own'";
const TELLS_PYTHON: &str = "import builtins\ndef run():\n    return getattr(builtins, 'heddle_build', 'own')\n";
/// By which it sees that.
const MORE_JS: &str = "\nglobalThis.heddleBuild = 'older';\n";
const MORE_PYTHON: &str = "\nimport builtins\nbuiltins.heddle_build = 'older'\n";

/// How soon after a change all nodes keep to it.
const SOON: Duration = Duration::from_secs(2);

async fn uploaded(node: &Node, name: &str, media_type: &str, text: &str) -> Value {
    node.put_bytes(&format!("/v1/scripts/{name}"), media_type, text.to_owned())
        .await
        .expect_status(201)
}

/// What a script says when it is called, in a version or the active one.
async fn says(node: &Node, name: &str, version: Option<i32>) -> Value {
    let body = match version {
        Some(version) => json!({"version": version}),
        None => json!({}),
    };
    let path = format!("/v1/scripts/{name}/invoke");
    node.post(&path, body).await.expect_status(200)["output"].clone()
}

async fn runtimes(node: &Node) -> Vec<Value> {
    node.all("/v1/runtimes").await
}

async fn runtime(node: &Node, tag: &str) -> Value {
    let all = runtimes(node).await;
    let found = all.iter().find(|runtime| runtime["tag"] == tag);
    found.unwrap_or_else(|| panic!("{tag} in {all:#?}")).clone()
}

/// The runtime of this program for a language, as it is kept.
async fn own(sql: &Client, language: Language) -> (String, RuntimeBundle) {
    let query = "SELECT v.runtime_tag, r.bytes FROM heddle.script_versions v JOIN heddle.runtimes r ON r.tag = v.runtime_tag \
                 WHERE r.language = $1 ORDER BY v.created_at LIMIT 1";
    let row = sql.query_one(query, &[&language.as_str()]).await.unwrap();
    let tag: String = row.get(0);
    let bundle = RuntimeBundle::unpack(row.get(1), &tag).unwrap();
    (tag, bundle)
}

/// Keeps a bundle as another build would have, and has all versions of this program's name it.
async fn keep(sql: &Client, own: &str, other: &RuntimeBundle) -> String {
    let (id, packed) = (other.id(), other.pack());
    sql.execute(
        "INSERT INTO heddle.runtimes (tag, language, interpreter, interface, bytes, created_at)
         VALUES ($1, $2, 'an older one', $3, $4, now())",
        &[&id.tag, &id.language.as_str(), &(id.interface as i32), &packed],
    )
    .await
    .unwrap();
    let moved = "UPDATE heddle.script_versions SET runtime_tag = $1, runtime = 'an older one' WHERE runtime_tag = $2";
    assert!(sql.execute(moved, &[&id.tag, &own]).await.unwrap() > 0);
    sql.execute("DELETE FROM heddle.runtimes WHERE tag = $1", &[&own])
        .await
        .unwrap();
    changed(sql, &id.tag).await;
    id.tag
}

/// Nodes that are up hear of it.
async fn changed(sql: &Client, tag: &str) {
    let change = "INSERT INTO heddle.changes (kind, name, at) VALUES ('runtime', $1, now())";
    sql.execute(change, &[&tag]).await.unwrap();
}

/// What another build of JavaScript's runtime leaves behind: its tag.
async fn older_javascript(sql: &Client) -> String {
    let (own, bundle) = own(sql, Language::JavaScript).await;
    keep(sql, &own, &bundle.with_more("module heddle:web", MORE_JS)).await
}

async fn older_python(sql: &Client) -> String {
    let (own, bundle) = own(sql, Language::Python).await;
    keep(sql, &own, &bundle.with_more("runtime.py", MORE_PYTHON)).await
}

/// The command line against a node. Beside the test: a check may take longer than a connection that nobody looks at lives.
async fn heddle(node: &Node, arguments: &[&str]) -> (Option<i32>, String) {
    let url = node.base().to_owned();
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        heddle_tests::heddle(&arguments, &[("HEDDLE_URL", &url), ("HEDDLE_TOKEN", TOKEN)])
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// A node's log, once these words are in it.
async fn logged(node: &Node, words: &str) -> String {
    eventually(&format!("`{words}` in the log"), async || {
        Some(node.log()).filter(|log| log.contains(words))
    })
    .await
}

/// Becomes true on a node that is up, soon.
async fn soon(node: &Node, name: &str, version: i32, expected: &str) {
    within(SOON, &format!("{name}@{version} says {expected}"), async || {
        (says(node, name, Some(version)).await == expected).then_some(())
    })
    .await;
}

/// After an upgrade, scripts keep the runtime with which they were checked, and new ones get that of the program, both
/// on one node; and when the old one is retired they move, on all nodes and without a restart.
#[tokio::test]
async fn a_script_keeps_its_runtime() {
    let world = World::new().await;
    let before = world.node().await;
    let made = uploaded(&before, "js", JS, TELLS_JS).await;
    uploaded(&before, "py", PYTHON, TELLS_PYTHON).await;
    assert_eq!(
        made["runtime_tag"],
        runtimes(&before)
            .await
            .iter()
            .find(|one| one["language"] == "javascript")
            .unwrap()["tag"]
    );
    for runtime in runtimes(&before).await {
        let facts = (
            &runtime["current"],
            &runtime["state"],
            &runtime["versions"],
            &runtime["scripts"],
        );
        assert_eq!(
            facts,
            (&json!(true), &json!("kept"), &json!(1), &json!(1)),
            "{runtime:#}"
        );
    }
    before
        .put_group(
            "g",
            json!({"tasks": {"js": {"script": "js@1"}, "py": {"script": "py@1"}}}),
        )
        .await;
    let sql = world.sql().await;
    let (js, py) = (older_javascript(&sql).await, older_python(&sql).await);

    let upgraded = world.node().await;
    for node in [&before, &upgraded] {
        soon(node, "js", 1, "older").await;
        eventually("python's runtime", async || {
            (says(node, "py", Some(1)).await == "older").then_some(())
        })
        .await;
    }
    eventually("what the upgraded node says of both", async || {
        let log = upgraded.log();
        let lines = log.lines().filter(|line| line.contains("run on an older runtime"));
        let named = lines
            .filter(|line| line.contains("js@1") || line.contains("py@1"))
            .count();
        (named == 2 && log.matches("none of these scripts would change").count() == 2).then_some(())
    })
    .await;
    // The same text, checked with this program's, is another version.
    let mut own = Value::Null;
    for (name, media_type, text) in [("js", JS, TELLS_JS), ("py", PYTHON, TELLS_PYTHON)] {
        let again = uploaded(&upgraded, name, media_type, text).await;
        assert_eq!(again["version"], 2);
        own = again["runtime_tag"].clone();
        let path = format!("/v1/scripts/{name}");
        upgraded.put_bytes(&path, media_type, text).await.expect_status(200);
        assert_eq!(says(&upgraded, name, None).await, "own");
        assert_eq!(says(&upgraded, name, Some(1)).await, "older");
    }
    let run = upgraded.run("g", json!({})).await;
    assert_eq!(
        (&task(&run, "js")["output"], &task(&run, "py")["output"]),
        (&json!("older"), &json!("older"))
    );
    let older = runtime(&upgraded, &js).await;
    assert_eq!(
        (&older["current"], &older["versions"], &older["interpreter"]),
        (&json!(false), &json!(1), &json!("an older one"))
    );

    // A program's own stays, and so does what is not known.
    let own = own.as_str().unwrap();
    upgraded
        .post(&format!("/v1/runtimes/{own}/retire"), json!({}))
        .await
        .expect_status(409);
    upgraded
        .post("/v1/runtimes/0123456789abcdef/retire", json!({}))
        .await
        .expect_status(404);
    for (tag, name) in [(&js, "js"), (&py, "py")] {
        let retired = upgraded
            .post(&format!("/v1/runtimes/{tag}/retire"), json!({}))
            .await
            .expect_status(200);
        assert_eq!(retired["versions"], 1, "{retired:#}");
        assert_eq!(retired["scripts"][0]["result"], "same", "{retired:#}");
        for node in [&upgraded, &before] {
            soon(node, name, 1, "own").await;
        }
        let now = runtime(&upgraded, tag).await;
        assert_eq!(
            (&now["state"], &now["versions"]),
            (&json!("retired"), &json!(0)),
            "{now:#}"
        );
        let audited = upgraded.all(&format!("/v1/audit?kind=runtime&name={tag}")).await;
        assert_eq!(
            (audited.len(), &audited[0]["action"]),
            (1, &json!("retire")),
            "{audited:#?}"
        );
    }
    let run = before.run("g", json!({})).await;
    assert_eq!(
        (&task(&run, "js")["output"], &task(&run, "py")["output"]),
        (&json!("own"), &json!("own"))
    );
    let version = upgraded.get("/v1/scripts/py/versions/1").await.expect_status(200);
    assert_eq!(version["runtime_tag"], own, "{version:#}");
}

/// What would change, or be refused, is reported by the node at its start, by the API and on the command line; and is
/// done only by force.
#[tokio::test]
async fn what_would_change_is_refused() {
    let (world, node) = World::with_node().await;
    let described = "export const description = `on ${globalThis.heddleBuild ?? 'own'}`; export default () => 1";
    uploaded(&node, "described", JS, described).await;
    uploaded(&node, "fails", JS, "export default () => 2").await;
    uploaded(&node, "same", JS, TELLS_JS).await;
    // Old, and named by nobody: it does not count.
    uploaded(&node, "unused", JS, described).await;
    uploaded(&node, "unused", JS, "export default () => 3").await;
    let sql = world.sql().await;
    let older = older_javascript(&sql).await;
    sql.execute(
        "UPDATE heddle.script_versions SET description = 'on older' WHERE description <> ''",
        &[],
    )
    .await
    .unwrap();
    let text = "if (!globalThis.heddleBuild) throw new Error('too new'); export default () => 2";
    let digest = hex(&Sha256::digest(text)[..]);
    sql.execute(
        "INSERT INTO heddle.blobs (digest, bytes, created_at) VALUES ($1, $2, now())",
        &[&digest, &text.as_bytes()],
    )
    .await
    .unwrap();
    sql.execute(
        "UPDATE heddle.script_versions v SET digest = $1 FROM heddle.scripts s WHERE s.id = v.script_id AND s.name = 'fails'",
        &[&digest],
    )
    .await
    .unwrap();
    drop(node);

    let node = world.node().await;
    let log = logged(&node, "some of these scripts would change").await;
    assert!(
        log.contains("described@1: changes: description") && log.contains("too new"),
        "{log}"
    );
    assert_eq!(says(&node, "fails", None).await, 2);
    let retire = format!("/v1/runtimes/{older}/retire");
    let refused = node.post(&retire, json!({})).await.expect_status(409);
    let said: Vec<&str> = refused["errors"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|error| error["detail"].as_str())
        .collect();
    assert_eq!(said.len(), 2, "{refused:#}");
    assert!(
        said[0] == "described@1: changes: description" && said[1].starts_with("fails@1: fails: "),
        "{said:?}"
    );
    assert_eq!(says(&node, "same", None).await, "older", "nothing has changed");

    let (code, said) = heddle(&node, &["script", "check"]).await;
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "changes: description",
        "too new",
        "(stays on an older one until that is retired)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, said) = heddle(&node, &["-o", "json", "script", "check", "same"]).await;
    let printed: Value = serde_json::from_str(&said).unwrap();
    let same = &printed["items"][0];
    assert_eq!(
        (code, &same["result"], &same["keeps"]),
        (Some(0), &json!("same"), &json!(true)),
        "{said}"
    );
    assert_eq!(
        (&same["runtime_tag"], same["own_tag"] == older.as_str()),
        (&json!(older), false)
    );
    let (code, said) = heddle(&node, &["runtime", "list"]).await;
    assert!(
        code == Some(0) && said.contains(&older) && said.contains("an older one"),
        "{said}"
    );
    let (code, said) = heddle(&node, &["runtime", "retire", &older]).await;
    assert!(
        code != Some(0) && said.contains("described@1: changes: description"),
        "{said}"
    );
    let (code, said) = heddle(&node, &["runtime", "retire", &older, "--force"]).await;
    assert!(code == Some(0) && said.contains("5 versions now run on"), "{said}");
    soon(&node, "same", 1, "own").await;
    // What is not accepted any more says so, and is nobody's silent failure.
    node.post("/v1/scripts/fails/invoke", json!({}))
        .await
        .expect_said(422, "too new");
    let again = node.post(&retire, json!({})).await.expect_status(200);
    assert_eq!(again["versions"], 0, "{again:#}");
    let (_, said) = heddle(&node, &["-o", "json", "runtime", "list"]).await;
    let printed: Value = serde_json::from_str(&said).unwrap();
    let states: Vec<&str> = printed["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["state"].as_str())
        .collect();
    assert!(states.contains(&"retired") && states.contains(&"kept"), "{said}");
}

/// What is under way when a runtime is retired ends on it; what begins behind it runs on the other.
#[tokio::test]
async fn attempts_under_way_end_on_what_they_began_with() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    let text = "export default async ({ url }) => { await fetch(url); return globalThis.heddleBuild ?? 'own'; }";
    uploaded(&node, "waits", JS, text).await;
    let older = older_javascript(&world.sql().await).await;
    let wait = json!({"script": "waits", "params": {"url": gate.url}, "allow_hosts": ["127.0.0.1"]});
    let mut then = wait.clone();
    then["depends_on"] = json!(["first"]);
    node.put_group("g", json!({"tasks": {"first": wait, "then": then}}))
        .await;
    eventually("the older runtime", async || {
        let version = node.get("/v1/scripts/waits/versions/1").await.expect_status(200);
        (version["runtime_tag"] == older.as_str()).then_some(())
    })
    .await;
    changed_everywhere(&node).await;
    let run = node.start("g", json!({})).await;
    eventually("the request", async || (!gate.requests().is_empty()).then_some(())).await;
    node.post(&format!("/v1/runtimes/{older}/retire"), json!({}))
        .await
        .expect_status(200);
    changed_everywhere(&node).await;
    gate.answers(Answer::Status(200));
    let run = node.ended(&run).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "first")["output"], "older");
    assert_eq!(task(&run, "then")["output"], "own");
}

/// A node has followed the log of changes to its end.
async fn changed_everywhere(node: &Node) {
    eventually("the log of changes followed", async || {
        let nodes = node.all("/v1/nodes").await;
        let is_up = |node: &&Value| node["state"] == "active";
        nodes
            .iter()
            .filter(is_up)
            .all(|node| node["position"] == node["position_newest"])
            .then_some(())
    })
    .await;
}

/// A runtime that this program cannot load: its scripts use the program's own, which is reported once, and no run
/// fails.
#[tokio::test]
async fn what_cannot_be_loaded_is_said_and_does_without() {
    let (world, node) = World::with_node().await;
    uploaded(&node, "js", JS, TELLS_JS).await;
    let sql = world.sql().await;
    let (own_tag, bundle) = own(&sql, Language::JavaScript).await;
    drop(node);
    // Of a later build, which asks for more than this program's host does.
    let later = keep(&sql, &own_tag, &bundle.clone().with_interface(1_000)).await;
    // A node notes missing exports after it has looked at all kept runtimes.
    let forgotten = "UPDATE heddle.script_versions SET exports = NULL WHERE world LIKE 'source/%'";
    assert_eq!(sql.execute(forgotten, &[]).await.unwrap(), 1);
    let node = world.node().await;
    for _ in 0..3 {
        assert_eq!(says(&node, "js", None).await, "own");
    }
    node.put_group("g", json!({"tasks": {"t": {"script": "js"}}})).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["output"]),
        (&json!("succeeded"), &json!("own"))
    );
    let log = logged(&node, "a kept runtime cannot be used on this node").await;
    assert!(
        log.contains("version 1000 of the host interface, but this version of Heddle has 1")
            && log.contains("A newer version of Heddle stored it: replace this node"),
        "{log}"
    );
    eventually("the end of the look at kept runtimes", async || {
        let noted = "SELECT bool_and(exports IS NOT NULL) FROM heddle.script_versions WHERE world LIKE 'source/%'";
        let noted: bool = sql.query_one(noted, &[]).await.unwrap().get(0);
        noted.then_some(())
    })
    .await;
    for wrong in ["run on an older runtime", "would change", "heddle runtime retire"] {
        assert!(!node.log().contains(wrong), "{wrong}: {}", node.log());
    }
    assert_eq!(node.log().matches("cannot be used").count(), 1, "{}", node.log());
    let (_, said) = heddle(&node, &["-o", "json", "script", "check"]).await;
    let printed: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(printed["items"][0]["keeps"], false, "{printed:#}");
    // Retired here, it would move the scripts of the newer version back, on all nodes.
    let retire = format!("/v1/runtimes/{later}/retire");
    node.post(&retire, json!({}))
        .await
        .expect_said(409, "replace this node by that version");
    assert_eq!(runtime(&node, &later).await["state"], "kept");
    // Whoever returns to this version for good says so.
    node.post(&format!("{retire}?force=true"), json!({}))
        .await
        .expect_status(200);

    // Bytes that were damaged.
    let older = keep(&sql, &own_tag, &bundle.with_more("module heddle:web", MORE_JS)).await;
    sql.execute(
        "UPDATE heddle.runtimes SET bytes = set_byte(bytes, 5000, get_byte(bytes, 5000) # 255) WHERE tag = $1",
        &[&older],
    )
    .await
    .unwrap();
    drop(node);
    let node = world.node().await;
    assert_eq!(says(&node, "js", None).await, "own");
    let run = node.run("g", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["output"]),
        (&json!("succeeded"), &json!("own"))
    );
    let log = logged(&node, "a kept runtime cannot be used on this node").await;
    assert!(log.contains("its data is damaged") && log.contains(&older), "{log}");
    assert!(log.contains("Trying again in 10 minutes"), "{log}");
}

/// Of a damaged runtime, a program that has the same one writes it again when it starts.
#[tokio::test]
async fn what_is_damaged_is_written_again() {
    let (world, node) = World::with_node().await;
    uploaded(&node, "js", JS, TELLS_JS).await;
    uploaded(&node, "py", PYTHON, TELLS_PYTHON).await;
    drop(node);
    let sql = world.sql().await;
    let damaged = "UPDATE heddle.runtimes SET bytes = set_byte(bytes, 5000, get_byte(bytes, 5000) # 255)";
    assert_eq!(sql.execute(damaged, &[]).await.unwrap(), 2);
    let kept = async || {
        let rows = sql.query("SELECT tag, bytes FROM heddle.runtimes", &[]).await.unwrap();
        let whole = rows
            .iter()
            .filter(|row| RuntimeBundle::unpack(row.get(1), row.get(0)).is_ok());
        whole.count()
    };
    assert_eq!(kept().await, 0);
    let node = world.node().await;
    eventually("both are whole", async || (kept().await == 2).then_some(())).await;
    logged(&node, "a kept runtime was damaged").await;
    assert_eq!(says(&node, "js", None).await, "own");
}

/// Versions of a time before there were runtimes run on that of the program, and so does a text that is uploaded anew.
#[tokio::test]
async fn old_versions_run_on_what_there_is() {
    let (world, node) = World::with_node().await;
    uploaded(&node, "js", JS, TELLS_JS).await;
    let sql = world.sql().await;
    older_javascript(&sql).await;
    sql.execute(
        "UPDATE heddle.script_versions SET runtime_tag = NULL WHERE runtime_tag IS NOT NULL",
        &[],
    )
    .await
    .unwrap();
    drop(node);
    let node = world.node().await;
    assert_eq!(says(&node, "js", Some(1)).await, "own");
    let version = node.get("/v1/scripts/js/versions/1").await.expect_status(200);
    assert_eq!(version["runtime_tag"], Value::Null);
    let again = uploaded(&node, "js", JS, TELLS_JS).await;
    assert_eq!((&again["version"], again["runtime_tag"].is_string()), (&json!(2), true));
}

/// A node that dies while it writes a runtime, or reads one, leaves nothing behind that disturbs others; and nodes that
/// write the same at once have written one.
#[tokio::test]
async fn kills_and_two_at_once() {
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    let (mut sql, looks) = (world.sql().await, world.sql().await);
    let waiting = async |count: i64| {
        eventually("statements that wait", async || {
            let query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                         AND query LIKE '%heddle.runtimes%'";
            let found: i64 = looks.query_one(query, &[]).await.unwrap().get(0);
            (found == count).then_some(())
        })
        .await;
    };
    let lock = sql.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE heddle.runtimes IN EXCLUSIVE MODE")
        .await
        .unwrap();
    let mut uploads = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let api = node.api().with_token(Some(TOKEN));
        uploads.push(tokio::spawn(async move {
            let request = api
                .request(reqwest::Method::PUT, &format!("/v1/scripts/js{number}"))
                .header("content-type", JS)
                .body(TELLS_JS);
            api.try_send(request).await
        }));
    }
    waiting(3).await;
    nodes[2].kill();
    lock.rollback().await.unwrap();
    let mut made = 0;
    for upload in uploads {
        made += usize::from(upload.await.unwrap().is_ok_and(|reply| reply.status == 201));
    }
    assert_eq!(made, 2);
    let rows: i64 = looks
        .query_one("SELECT count(*) FROM heddle.runtimes", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(rows, 1);

    // The same while one is taken up.
    older_javascript(&looks).await;
    let lock = sql.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE heddle.runtimes IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let data = world.directory().join("data");
    let taking = world.options().data_dir(&data).spawn();
    eventually("a node that reads it", async || {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                     AND query LIKE 'SELECT bytes FROM heddle.runtimes%'";
        let found: i64 = looks.query_one(query, &[]).await.unwrap().get(0);
        (found > 0).then_some(())
    })
    .await;
    // By SIGKILL.
    drop(taking);
    lock.rollback().await.unwrap();
    let again = world.options().data_dir(&data).start().await;
    assert_eq!(says(&again, "js0", None).await, "older");
}

/// What no version names goes a while after it was retired; what one names does not.
#[tokio::test]
async fn what_is_in_use_is_never_removed() {
    let (world, node) = World::with_node().await;
    uploaded(&node, "js", JS, TELLS_JS).await;
    let sql = world.sql().await;
    let older = older_javascript(&sql).await;
    changed_everywhere(&node).await;
    uploaded(&node, "js", JS, TELLS_JS).await;
    node.post(&format!("/v1/runtimes/{older}/retire"), json!({}))
        .await
        .expect_status(200);
    let prune = async || {
        node.post("/v1/retention/prune", json!({"dry_run": false}))
            .await
            .expect_status(200);
        let mut tags: Vec<String> = Vec::new();
        tags.extend(
            runtimes(&node)
                .await
                .iter()
                .filter_map(|one| one["tag"].as_str().map(str::to_owned)),
        );
        tags
    };
    assert!(prune().await.contains(&older), "it was retired just now");
    // As if all of it had been long ago; also of the one that versions name, which nobody has retired.
    sql.execute(
        "UPDATE heddle.runtimes SET retired_at = now() - interval '31 days'",
        &[],
    )
    .await
    .unwrap();
    let left = prune().await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(!left.contains(&older));
    assert_eq!(says(&node, "js", Some(1)).await, "own");
    // Who checks a script with it again has it kept again.
    uploaded(&node, "fresh", JS, TELLS_JS).await;
    assert_eq!(runtime(&node, &left[0]).await["state"], "kept");
}
