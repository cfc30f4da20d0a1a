//! Secrets stay secret, keys can be changed, and what is named is not deleted; all of it is in the audit.

use heddle_tests::{Answer, Node, NodeOptions, Receiver, World, heddle, heddle_succeeds, run_program, task};
use serde_json::{Value, json};

use crate::notifications::{verify, webhook};
use crate::{one, with};

const KEY: &str = "the first key of this test";
const NEXT_KEY: &str = "the second key of this test";

fn signs_in(params: Value) -> Value {
    one(json!({"script": "sign-in", "secrets": ["door"], "params": params}))
}

/// What a script was given is not shown by its log, its errors or its progress.
#[tokio::test]
async fn secrets_are_masked() {
    let (_world, node) = World::with_node().await;
    let value = "open \"sesame\"";
    node.put("/v1/secrets/door", json!({"value": value, "groups": ["good", "bad"]}))
        .await
        .expect_status(201);
    node.put_group("good", signs_in(json!({"secret": "door"}))).await;
    node.put_group("bad", signs_in(json!({"secret": "door", "refused": true})))
        .await;
    let good = node.run("good", json!({})).await;
    assert_eq!(task(&good, "t")["output"], json!({"length": value.len()}), "{good:#}");
    let lines = node.log_lines(good["id"].as_str().unwrap(), "t").await;
    assert_eq!(lines[0]["message"], "signing in with ***");
    assert_eq!(lines[0]["fields"]["password"], "***");
    let bad = node.run("bad", json!({})).await;
    let said = task(&bad, "t")["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains("the password *** is refused"), "{said}");
    let attempts = node.attempts(bad["id"].as_str().unwrap(), "t").await;
    let audit = node.all("/v1/audit").await;
    for text in [
        json!([good, bad, lines, attempts, audit]).to_string(),
        node.log(),
        node.get("/v1/secrets/door").await.body.to_string(),
        node.get("/v1/events").await.body.to_string(),
    ] {
        assert!(!text.contains("sesame"), "{text}");
    }
}

/// A task gets its own grants, and nothing else that its group may use.
#[tokio::test]
async fn secrets_are_granted_to_tasks() {
    let (_world, node) = World::with_node().await;
    for name in ["door", "gate"] {
        node.put(
            &format!("/v1/secrets/{name}"),
            json!({"value": "sesame", "groups": ["g"]}),
        )
        .await
        .expect_status(201);
    }
    node.put_group("g", signs_in(json!({"secret": "gate"}))).await;
    let run = node.run("g", json!({})).await;
    let said = task(&run, "t")["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains("gate"), "{run:#}");
}

/// A secret and a connection that the group `g` may use: where they are put, and what.
fn sealed(world: &World) -> [(&'static str, Value); 2] {
    [
        ("/v1/secrets/door", json!({"value": "sesame", "groups": ["g"]})),
        ("/v1/connections/shop", json!({"url": world.url(), "groups": ["g"]})),
    ]
}

/// Has a node encrypt these and the channel `hook`. Returns whom the channel tells.
async fn seals(world: &World, node: &Node) -> Receiver {
    for (path, body) in sealed(world) {
        node.put(path, body).await.expect_status(201);
    }
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(node, "hook", &receiver.url, json!({})).await;
    receiver
}

fn keyed(world: &World, key: &str, previous: Option<&str>) -> NodeOptions {
    let options = world.options().env("HEDDLE_SECRETS_KEY", key);
    match previous {
        Some(previous) => options.env("HEDDLE_SECRETS_KEY_PREVIOUS", previous),
        None => options,
    }
}

/// A node with a key that does not open the stored secrets does not start, and says why. With the former key configured
/// it does, and after sealing again the former key is not needed any more.
#[tokio::test]
async fn keys_are_changed() {
    let world = World::new().await;
    let first = keyed(&world, KEY, None).start().await;
    let receiver = seals(&world, &first).await;
    let query = json!({"script": "query", "sql": ["shop"],
        "params": {"connection": "shop", "statement": "select 1 as one"}});
    let mut spec = signs_in(json!({"secret": "door"}));
    spec["tasks"]["query"] = query;
    first.put_group("g", spec).await;
    assert_eq!(first.run("g", json!({})).await["state"], "succeeded");
    drop(first);
    let said = refused_with_another_key(&world);
    for words in [
        "HEDDLE_SECRETS_KEY",
        "HEDDLE_SECRETS_KEY_PREVIOUS",
        "secret `door`",
        "connection `shop`",
        "channel `hook`",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains(NEXT_KEY) && !said.contains("sesame"), "{said}");
    let between = keyed(&world, NEXT_KEY, Some(KEY)).start().await;
    assert_eq!(between.run("g", json!({})).await["state"], "succeeded");
    let output = run_program(
        &[
            "secret",
            "rotate",
            "--url",
            between.base(),
            "--token",
            heddle_tests::TOKEN,
        ],
        &[],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("1 secrets, 1 connections and 1 channels"), "{said}");
    // By the older path, too.
    let again = between
        .post("/v1/secrets-key/reseal", json!({}))
        .await
        .expect_status(200);
    for kind in ["secrets", "connections", "channels"] {
        assert_eq!(again[kind], 0, "{again:#}");
    }
    drop(between);
    let last = keyed(&world, NEXT_KEY, None).start().await;
    assert_eq!(last.run("g", json!({})).await["state"], "succeeded");
    let test = last.post("/v1/channels/hook/test", json!({})).await.expect_status(200);
    assert_eq!(test["state"], "sent", "{test:#}");
    verify(receiver.requests().last().expect("the test message"));
    let audit = last.all("/v1/audit?action=reseal").await;
    assert_eq!(audit[1]["after"]["secrets"], 1, "{audit:#?}");
    let older = |entry: &Value| entry["before"]["key_ids"].as_array().map(Vec::len);
    assert_eq!((older(&audit[1]), older(&audit[0])), (Some(1), Some(0)), "{audit:#?}");
    assert_ne!(
        audit[1]["before"]["key_ids"][0], audit[1]["after"]["key_id"],
        "{audit:#?}"
    );
}

/// What a node says that does not start because its key is not the one of what is stored.
fn refused_with_another_key(world: &World) -> String {
    let data_dir = world.directory().join("node").to_string_lossy().into_owned();
    let arguments = [
        "serve",
        "--database-url",
        world.url(),
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        &data_dir,
    ];
    let output = run_program(&arguments, &[("HEDDLE_SECRETS_KEY", NEXT_KEY)]);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Somebody who has lost the key for good lets go of what it has encrypted, without a node; then nodes start with a new one.
#[tokio::test]
async fn what_a_lost_key_has_encrypted_can_be_forgotten() {
    let world = World::new().await;
    let mut first = keyed(&world, KEY, None).start().await;
    seals(&world, &first).await;
    first.put_group("g", signs_in(json!({"secret": "door"}))).await;
    // A node that is alive decrypts all of it: then the keys of the command are wrong.
    let running = ["secret", "forget", "--database-url", world.url(), "--yes"];
    let (code, said) = heddle(&running, &[("HEDDLE_SECRETS_KEY", NEXT_KEY)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is running, and decrypts everything"), "{said}");
    first.get("/v1/secrets/door").await.expect_status(200);
    first.terminate();
    first.end().await;
    assert!(refused_with_another_key(&world).contains("heddle secret forget"));
    // A node with a key of its own names the file.
    let own = world.directory().join("own").to_string_lossy().into_owned();
    let serve = [
        "serve",
        "--database-url",
        world.url(),
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        &own,
    ];
    let (code, said) = heddle(&serve, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains(&format!("the key in {own}/secrets.key is not the key")),
        "{said}"
    );
    // Without a key, nothing is compared with one that was made up.
    let empty = world.directory().join("empty").to_string_lossy().into_owned();
    let list = ["secret", "forget", "--database-url", world.url(), "--data-dir", &empty];
    let yes = [&list[..], &["--yes"]].concat();
    let (code, said) = heddle(&yes, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no key"), "{said}");
    // What a former key decrypts is kept.
    let known = [("HEDDLE_SECRETS_KEY", NEXT_KEY), ("HEDDLE_SECRETS_KEY_PREVIOUS", KEY)];
    assert_eq!(heddle_succeeds(&yes, &known), "");
    let lost = [("HEDDLE_SECRETS_KEY", NEXT_KEY)];
    let listed = heddle_succeeds(&list, &lost);
    let key = listed.split_once("(key ").and_then(|(_, rest)| rest.split_once(')'));
    let key = format!("(key {})", key.expect("the fingerprint of the lost key").0);
    let expect = format!(
        "channel hook cannot be decrypted {key}\nconnection shop cannot be decrypted {key}\n\
         secret door cannot be decrypted {key}; groups that use it: g\n"
    );
    assert_eq!(listed, expect);
    // An empty key is none that somebody meant.
    let (code, said) = heddle(&yes, &[("HEDDLE_SECRETS_KEY", "")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("at least 16 characters"), "{said}");
    assert!(refused_with_another_key(&world).contains("secret `door`"));
    let deleted = heddle_succeeds(&yes, &lost);
    assert_eq!(deleted, expect.replace("cannot be decrypted", "deleted"));
    let next = keyed(&world, NEXT_KEY, None).start().await;
    for path in ["/v1/secrets/door", "/v1/connections/shop", "/v1/channels/hook"] {
        next.get(path).await.expect_status(404);
    }
    let audit = next.all("/v1/audit?action=delete").await;
    assert_eq!(audit.len(), 3, "{audit:#?}");
    for entry in &audit {
        assert_eq!(
            (&entry["actor"], &entry["after"]),
            (&json!("command line"), &Value::Null),
            "{entry:#}"
        );
        assert!(entry["before"]["key_id"].is_string(), "{entry:#}");
    }
    // The group has stayed as it was, and works again with a new value.
    let [(path, body), _] = sealed(&world);
    next.put(path, body).await.expect_status(201);
    assert_eq!(next.run("g", json!({})).await["state"], "succeeded");
}

/// A node with a wrong key says how much it cannot decrypt: some objects by name, the others by their number.
#[tokio::test]
async fn a_wrong_key_is_told_with_all_that_it_does_not_decrypt() {
    let world = World::new().await;
    let first = keyed(&world, KEY, None).start().await;
    for n in 0..7 {
        first
            .put(
                &format!("/v1/secrets/s{n}"),
                json!({"value": "sesame", "groups": ["g"]}),
            )
            .await
            .expect_status(201);
    }
    first
        .put("/v1/connections/shop", json!({"url": world.url(), "groups": ["g"]}))
        .await
        .expect_status(201);
    drop(first);
    let said = refused_with_another_key(&world);
    assert!(
        said.contains("2 more secrets and 1 more connection were encrypted"),
        "{said}"
    );
}

/// Two nodes with different keys: the second one stores nothing that the first one could not read, so that the first one
/// starts again after a crash.
#[tokio::test]
async fn a_node_with_another_key_encrypts_nothing() {
    let world = World::new().await;
    let first = keyed(&world, KEY, None).start().await;
    let directory = world.directory().join("other");
    let other = keyed(&world, NEXT_KEY, None).data_dir(&directory).start().await;
    let [door, shop] = sealed(&world);
    let hook = json!({"kind": "webhook", "url": "http://127.0.0.1:9/"});
    let puts = [door, shop, ("/v1/channels/hook", hook)];
    let (path, body) = &puts[0];
    first.put(path, body.clone()).await.expect_status(201);
    for (path, body) in &puts {
        let refused = other.put(path, body.clone()).await.expect_status(409);
        let detail = refused["detail"].as_str().unwrap();
        assert!(
            detail.contains("secret `door`") && detail.contains("HEDDLE_SECRETS_KEY"),
            "{detail}"
        );
    }
    drop((first, other));
    let first = keyed(&world, KEY, None).start().await;
    for (path, body) in &puts[1..] {
        first.put(path, body.clone()).await.expect_status(201);
    }
}

/// An unchanged PUT seals with the current key, so that nothing is left to be sealed again.
#[tokio::test]
async fn what_is_put_again_is_sealed_with_the_new_key() {
    let world = World::new().await;
    let puts = sealed(&world);
    let first = keyed(&world, KEY, None).start().await;
    for (path, body) in &puts {
        first.put(path, body.clone()).await.expect_status(201);
    }
    drop(first);
    let next = keyed(&world, NEXT_KEY, Some(KEY)).start().await;
    // Without its URL a connection is left alone: there is nothing to be changed.
    next.put("/v1/connections/shop", json!({"groups": ["g"]}))
        .await
        .expect_status(200);
    let sql = world.sql().await;
    let old =
        "SELECT count(*) FROM (SELECT key_id FROM heddle.secrets UNION SELECT key_id FROM heddle.connections) AS k";
    assert_eq!(sql.query_one(old, &[]).await.unwrap().get::<_, i64>(0), 1);
    for (path, body) in &puts {
        next.put(path, body.clone()).await.expect_status(200);
    }
    let sealed = next.post("/v1/secrets-key/rotate", json!({})).await.expect_status(200);
    assert_eq!(
        (&sealed["secrets"], &sealed["connections"]),
        (&json!(0), &json!(0)),
        "{sealed:#}"
    );
}

/// A channel whose secret fields do not open loses none of them to a PUT that leaves them out to keep them.
#[tokio::test]
async fn secrets_of_a_channel_that_do_not_open_are_not_dropped() {
    let (world, node) = World::with_node().await;
    let smtp = json!({"host": "mail.example.com", "username": "u"});
    let with_password = json!({"host": "mail.example.com", "username": "u", "password": "p"});
    let mail = |smtp: &Value| json!({"kind": "email", "from": "a@example.com", "to": ["b@example.com"], "smtp": smtp});
    let hook = json!({"kind": "webhook", "url": "https://example.com"});
    let chat = json!({"kind": "dingtalk", "url": "https://example.com/robot?key=k"});
    let signed = |channel: &Value, secret: &str| {
        let mut channel = channel.clone();
        channel["secret"] = json!(secret);
        channel
    };
    let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    // What is put, what would be put to change something else, and what has to be said for that.
    let shown = json!({"kind": "dingtalk", "secret": "new"});
    let channels = [
        (
            "hook",
            signed(&hook, key),
            hook.clone(),
            vec!["/secret"],
            signed(&hook, ""),
        ),
        ("chat", signed(&chat, "SEC1"), shown, vec!["/url"], signed(&chat, "")),
        (
            "mail",
            mail(&with_password),
            mail(&smtp),
            vec!["/smtp/password"],
            mail(&with_password),
        ),
    ];
    let put = async |name: &str, channel: &Value| node.put(&format!("/v1/channels/{name}"), channel.clone()).await;
    for (name, channel, ..) in &channels {
        put(name, channel).await.expect_status(201);
    }
    let alter = "UPDATE heddle.channels SET ciphertext = set_byte(ciphertext, 0, get_byte(ciphertext, 0) # 1)";
    assert_eq!(world.sql().await.execute(alter, &[]).await.unwrap(), 3);
    for (name, _, without, lost, anew) in &channels {
        put(name, without).await.expect_problem(422, lost);
        put(name, anew).await.expect_status(200);
        put(name, without).await.expect_status(200);
    }
}

/// What a group or an offer names is not deleted: 409 says by whom.
#[tokio::test]
async fn what_is_named_stays() {
    let (world, node) = World::with_node().await;
    node.put("/v1/secrets/door", json!({"value": "sesame", "groups": ["*"]}))
        .await
        .expect_status(201);
    node.put("/v1/connections/shop", json!({"url": world.url(), "groups": ["*"]}))
        .await
        .expect_status(201);
    node.put("/v1/pools/db", json!({"slots": 1})).await.expect_status(201);
    node.put("/v1/categories/bi", json!({})).await.expect_status(201);
    for name in ["shape", "form"] {
        node.put(&format!("/v1/templates/{name}"), json!({"type": "object"}))
            .await
            .expect_status(201);
    }
    let named = json!({"category": "bi", "template": "shape", "tasks": {"t": {
        "script": "query", "secrets": ["door"], "sql": ["shop"], "pools": {"db": 1},
        "params": {"connection": "shop", "statement": "select 1"},
    }}});
    node.put_group("b", named.clone()).await;
    node.put_group("a", named).await;
    let offer = json!({"kind": "once", "audience": "uid_u", "starts_at": "2030-01-01T00:00:00Z", "template": "form",
        "params": {}});
    let put = node.put("/v1/offers/o", offer).await;
    assert!(matches!(put.status, 200 | 201), "{:#}", put.body);
    let things = [
        ("secrets/door", "groups `a`, `b`"),
        ("connections/shop", "groups `a`, `b`"),
        ("pools/db", "groups `a`, `b`"),
        ("categories/bi", "groups `a`, `b`"),
        ("templates/shape", "groups `a`, `b`"),
        ("templates/form", "offer `o`"),
        ("scripts/query", "`a`"),
    ];
    for (thing, by) in things {
        let path = format!("/v1/{thing}");
        node.delete(&path).await.expect_said(409, by);
        node.get(&path).await.expect_status(200);
        node.delete(&format!("{path}-nope")).await.expect_problem(404, &[]);
    }
    for group in ["a", "b"] {
        node.delete(&format!("/v1/groups/{group}")).await.expect_status(200);
    }
    node.delete("/v1/offers/o").await.expect_status(204);
    for (thing, _) in &things[..6] {
        node.delete(&format!("/v1/{thing}")).await.expect_status(204);
    }
}

/// Connections of one node to a named database never are more than `max_connections`.
#[tokio::test]
async fn max_connections() {
    let (world, node) = World::with_node().await;
    let joint = if world.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{joint}application_name=bounded", world.url());
    node.put(
        "/v1/connections/shop",
        json!({"url": url, "groups": ["g"], "max_connections": 2}),
    )
    .await
    .expect_status(201);
    let statement = "select pg_sleep(0.2)::text as s, (select count(*) from pg_stat_activity \
                     where application_name = 'bounded') as n";
    node.put_group(
        "g",
        one(json!({"script": "query", "sql": ["shop"], "shards": 8,
            "params": {"connection": "shop", "statement": statement}})),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let outputs = task(&run, "t")["output"].as_array().cloned().unwrap();
    assert_eq!(outputs.len(), 8);
    for output in outputs {
        let n = output["rows"][0]["n"].as_i64().unwrap();
        assert!((1..=2).contains(&n), "{output}");
    }
}

/// What people change is in the audit: who, what, before and after; and can be found.
#[tokio::test]
async fn audit() {
    let (_world, node) = World::with_node().await;
    let made = node
        .post("/v1/tokens", json!({"name": "ops", "role": "operator"}))
        .await
        .expect_status(201);
    let ops = node.with_token(made["token"].as_str());
    ops.put_group("g", one(crate::sleeps(600.0))).await;
    ops.put_group("g", with(one(crate::sleeps(601.0)), json!({"description": "longer"})))
        .await;
    let run = ops.start("g", json!({})).await;
    ops.post(&format!("/v1/runs/{run}/pause"), json!({}))
        .await
        .expect_status(200);
    ops.post(&format!("/v1/runs/{run}/resume"), json!({}))
        .await
        .expect_status(200);
    ops.put(
        &format!("/v1/runs/{run}/tasks/t/state"),
        json!({"state": "failed", "reason": "seen to"}),
    )
    .await
    .expect_status(200);
    ops.post(&format!("/v1/runs/{run}/tasks/t/retry"), json!({}))
        .await
        .expect_status(200);
    ops.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    ops.ended(&run).await;
    let again = ops.post(&format!("/v1/runs/{run}/rerun"), json!({})).await;
    let again = heddle_tests::id(&again.body);
    ops.put(
        &format!("/v1/runs/{again}/state"),
        json!({"state": "failed", "reason": "enough"}),
    )
    .await
    .expect_status(200);
    ops.delete(&format!("/v1/runs/{run}")).await.expect_status(204);
    // What is refused leaves no trace.
    assert_eq!(
        ops.post(&format!("/v1/runs/{again}/pause"), json!({})).await.status,
        409
    );
    let rows = node.all(&format!("/v1/audit?kind=run&thing={run}")).await;
    let actions: Vec<&str> = rows.iter().rev().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["pause", "resume", "override", "retry", "cancel", "delete"]);
    assert!(rows.iter().all(|row| row["actor"] == "ops"), "{rows:#?}");
    let of = |action: &str| rows.iter().find(|row| row["action"] == action).unwrap();
    assert_eq!(of("pause")["before"]["state"], "running");
    assert_eq!(of("pause")["after"]["state"], "paused");
    assert_eq!(of("override")["after"]["task"]["name"], "t");
    assert_eq!(of("override")["after"]["task"]["state"], "failed");
    assert_eq!(of("override")["after"]["reason"], "seen to");
    assert_eq!(of("delete")["before"]["group"], "g");
    let rows = node.all(&format!("/v1/audit?kind=run&name={again}")).await;
    let actions: Vec<&str> = rows.iter().rev().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["rerun", "override"]);
    let changed = node.all("/v1/audit?kind=group&name=g&action=update").await;
    assert_eq!(changed[0]["after"]["description"], "longer", "{changed:#?}");
    assert_eq!(changed[0]["before"]["tasks"]["t"]["params"]["seconds"], 600.0);
    // Filters, and pages.
    let all = node.all("/v1/audit?actor=ops&limit=2").await;
    assert!(all.len() > 8 && all.iter().all(|row| row["actor"] == "ops"));
    let newest = all[0]["at"].as_str().unwrap();
    assert!(node.all(&format!("/v1/audit?actor=ops&from={newest}")).await.len() < all.len());
    let oldest = all.last().unwrap()["at"].as_str().unwrap();
    assert!(!node.all(&format!("/v1/audit?actor=ops&to={oldest}")).await.is_empty());
    node.get("/v1/audit?from=yesterday").await.expect_problem(400, &[]);
}

/// Where values are never shown, the audit says whether they changed, and to whom a thing was granted that is gone; of an
/// audience, who came and who went.
#[tokio::test]
async fn the_audit_tells_what_changed() {
    let (_world, node) = World::with_node().await;
    let newest = async |kind: &str| node.get(&format!("/v1/audit?kind={kind}&limit=1")).await.body["items"][0].clone();
    let secret = |value: &str| json!({"value": value, "groups": ["g"]});
    node.put("/v1/secrets/s", secret("one")).await.expect_status(201);
    assert_eq!(newest("secret").await["after"]["value_changed"], Value::Null);
    node.put("/v1/secrets/s", secret("two")).await.expect_status(200);
    let row = newest("secret").await;
    assert_eq!(row["after"]["value_changed"], true, "{row:#}");
    assert!(!row.to_string().contains("two"), "{row:#}");
    // Nothing is no value: it would replace one by a slip.
    let refused = node.put("/v1/secrets/s", secret("")).await;
    refused.expect_problem(422, &["/value"]);
    node.put("/v1/secrets/s", json!({"value": "two", "groups": ["h"]}))
        .await
        .expect_status(200);
    let row = newest("secret").await;
    assert_eq!(
        (&row["after"]["value_changed"], &row["before"]["groups"]),
        (&json!(false), &json!(["g"]))
    );
    node.delete("/v1/secrets/s").await.expect_status(204);
    let row = newest("secret").await;
    assert_eq!(
        (&row["before"]["groups"], &row["after"]),
        (&json!(["h"]), &Value::Null),
        "{row:#}"
    );

    let connection = |host: &str| json!({"url": format!("postgres://me@{host}/db"), "groups": ["g"]});
    node.put("/v1/connections/c", connection("one.example"))
        .await
        .expect_status(201);
    node.put("/v1/connections/c", connection("two.example"))
        .await
        .expect_status(200);
    let row = newest("connection").await;
    assert_eq!(row["after"]["url_changed"], true, "{row:#}");
    assert!(!row.to_string().contains("two.example"), "{row:#}");
    node.put("/v1/connections/c", json!({"groups": ["h"]}))
        .await
        .expect_status(200);
    assert_eq!(newest("connection").await["after"]["url_changed"], false);
    node.delete("/v1/connections/c").await.expect_status(204);
    assert_eq!(newest("connection").await["before"]["groups"], json!(["h"]));

    let path = "/v1/audiences/gid_team/members";
    node.put(path, json!({"members": ["ann", "bob"]}))
        .await
        .expect_status(201);
    let request = node.request(reqwest::Method::PATCH, path);
    let request = request.json(&json!({"add": ["ann", "cid"], "remove": ["bob", "dan"]}));
    node.send(request).await.expect_status(200);
    let row = newest("audience").await;
    assert_eq!(
        row["after"],
        json!({"added": 1, "removed": 1, "added_uids": ["cid"], "removed_uids": ["bob"]}),
        "{row:#}"
    );
    node.put(path, json!({"members": ["eve"]})).await.expect_status(200);
    let row = newest("audience").await;
    assert_eq!(
        (&row["after"]["added_uids"], &row["after"]["removed_uids"]),
        (&json!(["eve"]), &json!(["ann", "cid"])),
        "{row:#}"
    );
}
