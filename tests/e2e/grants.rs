//! What a script may reach: SQL connections, secrets and hosts, each by name and by grant.

use heddle_tests::{Sink, World, task};
use serde_json::{Value, json};

use crate::{one, with};

/// Rows come back typed, changes are counted, errors are the script's.
#[tokio::test]
async fn sql() {
    let (world, node) = World::with_node().await;
    world
        .sql()
        .await
        .batch_execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, price float8, label text, at timestamptz)")
        .await
        .unwrap();
    let connection = json!({"url": world.url(), "groups": ["g"]});
    let shown = node.put("/v1/connections/shop", connection).await.expect_status(201);
    assert!(
        !shown.to_string().contains("postgres://"),
        "a connection's URL is write only: {shown}"
    );
    let query = |params: Value| json!({"script": "query", "params": params, "sql": ["shop"]});
    let insert = "insert into shop.orders values ($1, $2, $3, '2013-07-01T00:00:00Z'), (2, null, null, null)";
    node.put_group(
        "g",
        json!({"tasks": {
            "insert": query(json!({"connection": "shop", "statement": insert, "params": [1, 2.5, "größer"], "execute": true})),
            "select": with(
                query(json!({"connection": "shop", "statement": "select id, price, label, at from shop.orders order by id"})),
                json!({"depends_on": ["insert"]}),
            ),
            "typed": query(json!({
                "connection": "shop",
                "statement": "select 1::int8 as big, true as yes, '{\"a\": [1]}'::jsonb as json, array[1, 2] as list, 1.10::numeric as money",
            })),
            "wrong": query(json!({"connection": "shop", "statement": "select nope from shop.orders"})),
            "ungranted": query(json!({"connection": "other", "statement": "select 1"})),
            "many": query(json!({"connection": "shop", "statement": "select generate_series(1, 1000000) as n"})),
        }}),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(task(&run, "insert")["output"], json!({"changed": 2}), "{run:#}");
    let rows = &task(&run, "select")["output"]["rows"];
    assert_eq!(
        (&rows[0]["id"], &rows[0]["price"], &rows[0]["label"]),
        (&json!(1), &json!(2.5), &json!("größer"))
    );
    assert!(
        rows[0]["at"].as_str().unwrap().starts_with("2013-07-01T00:00:00"),
        "{rows}"
    );
    assert_eq!(rows[1], json!({"id": 2, "price": null, "label": null, "at": null}));
    let typed = &task(&run, "typed")["output"]["rows"][0];
    assert_eq!((&typed["big"], &typed["yes"]), (&json!(1), &json!(true)));
    assert_eq!((&typed["json"], &typed["list"]), (&json!({"a": [1]}), &json!([1, 2])));
    assert!(typed["money"] == "1.10" || typed["money"] == 1.1, "{typed}");
    let wrong = task(&run, "wrong");
    assert!(
        wrong["error"]["message"].as_str().unwrap().contains("nope"),
        "{wrong:#}"
    );
    for name in ["ungranted", "many"] {
        assert_eq!(task(&run, name)["state"], "failed", "{name}");
    }
    assert!(
        task(&run, "ungranted")["error"]["message"]
            .as_str()
            .unwrap()
            .contains("other")
    );
}

/// Whatever was not granted, by the task or to its group, ends an attempt in one way, and is not tried again.
#[tokio::test]
async fn what_is_not_granted_is_one_kind() {
    const SCRIPT: &str = r#"export default async function run({ what }, ctx) {
        if (what === "host") await fetch("https://example.com/");
        if (what === "secret") await ctx.secret("key");
        if (what === "sql") await ctx.sql("shop").query("select 1");
        return what;
    }"#;
    let (world, node) = World::with_node().await;
    node.put_bytes("/v1/scripts/reaches", "text/javascript", SCRIPT)
        .await
        .expect_status(201);
    let grant = async |groups: Value| {
        for (path, mut body) in [
            ("/v1/connections/shop", json!({"url": world.url()})),
            ("/v1/secrets/key", json!({"value": "s3cret"})),
        ] {
            body["groups"] = groups.clone();
            let status = node.put(path, body).await.status;
            assert!([200, 201].contains(&status), "{status}");
        }
    };
    grant(json!(["g"])).await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "1ms"});
    let reaches = |what: &str, more: Value| {
        let task = json!({"script": "reaches", "params": {"what": what}, "retry": retry});
        with(task, more)
    };
    let query = json!({"query": {"connection": "shop", "sql": "select 1 as one"}, "retry": retry});
    let spec = json!({"tasks": {
        "host": reaches("host", json!({"allow_hosts": ["api.example.com"]})),
        // By the interfaces of wasm components.
        "rust_host": {"script": "fetch", "params": {"url": "https://example.com/"}, "retry": retry},
        "rust_sql": {"script": "query", "params": {"connection": "shop", "statement": "select 1"}, "retry": retry},
        "secret": reaches("secret", json!({})),
        "sql": reaches("sql", json!({})),
        "group_secret": reaches("secret", json!({"secrets": ["key"]})),
        "group_sql": reaches("sql", json!({"sql": ["shop"]})),
        "group_query": query,
    }});
    node.put_group("g", spec).await;
    let check = |run: &Value, name: &str, what: &str| {
        let task = task(run, name);
        let error = &task["error"];
        assert_eq!(
            (&task["state"], &task["attempt"], &error["kind"]),
            (&json!("failed"), &json!(1), &json!("fatal")),
            "{name}: {task:#}"
        );
        let said = format!("not granted: {what}");
        assert!(error["message"].as_str().unwrap().contains(&said), "{name}: {error:#}");
    };
    let run = node.run("g", json!({})).await;
    check(&run, "host", "host example.com:443");
    check(&run, "secret", "secret `key`");
    check(&run, "sql", "connection `shop`");
    check(&run, "rust_host", "");
    check(&run, "rust_sql", "connection `shop`");
    for name in ["group_secret", "group_sql", "group_query"] {
        assert_eq!(task(&run, name)["state"], "succeeded", "{run:#}");
    }
    // Grants that are taken back.
    grant(json!(["others"])).await;
    let run = node.run("g", json!({})).await;
    check(&run, "group_secret", "secret `key`");
    check(&run, "group_sql", "connection `shop`");
    check(&run, "group_query", "connection `shop`");
}

/// A connection or a secret that a group was not granted is refused at PUT, naming it.
#[tokio::test]
async fn grants_are_checked_at_put() {
    let (world, node) = World::with_node().await;
    node.put(
        "/v1/connections/shop",
        json!({"url": world.url(), "groups": ["friend"], "categories": ["bi"]}),
    )
    .await
    .expect_status(201);
    node.put("/v1/secrets/key", json!({"value": "s3cret", "groups": ["friend"]}))
        .await
        .expect_status(201);
    let spec = |sql: &[&str], secrets: &[&str]| {
        one(json!({"script": "query", "sql": sql, "secrets": secrets,
        "params": {"connection": "shop", "statement": "select 1"}}))
    };
    let refused = node.refused_group("stranger", spec(&["shop"], &["key"])).await;
    refused.expect_problem(422, &["/tasks/t/sql/0", "/tasks/t/secrets/0"]);
    node.refused_group("friend", spec(&["nope"], &["nope"]))
        .await
        .expect_problem(422, &["/tasks/t/sql/0", "/tasks/t/secrets/0"]);
    node.put_group("friend", spec(&["shop"], &["key"])).await;
    // By category, too.
    node.put_group("analyst", with(spec(&["shop"], &[]), json!({"category": "bi"})))
        .await;
    assert_eq!(node.run("analyst", json!({})).await["state"], "succeeded");
    // A grant that is taken back is followed.
    node.put("/v1/connections/shop", json!({"groups": ["friend"]}))
        .await
        .expect_status(200);
    let run = node.run("analyst", json!({})).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    let secrets = node.get("/v1/secrets").await.expect_status(200);
    assert!(!secrets.to_string().contains("s3cret"), "secrets are write only");
    node.get("/v1/secrets/key").await.expect_status(200);
}

/// A connection that is read only stays so whatever the statement says.
#[tokio::test]
async fn read_only_connections() {
    let (world, node) = World::with_node().await;
    world
        .sql()
        .await
        .batch_execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)")
        .await
        .unwrap();
    node.put(
        "/v1/connections/shop",
        json!({"url": world.url(), "groups": ["*"], "read_only": true}),
    )
    .await
    .expect_status(201);
    for statement in [
        "insert into shop.orders values (1)",
        "set transaction read write; insert into shop.orders values (1)",
        "do $$ begin set transaction read write; insert into shop.orders values (1); end $$",
        "do $$ begin commit; set transaction read write; insert into shop.orders values (1); end $$",
        "with x as (select set_config('transaction_read_only', 'off', false)) insert into shop.orders select 1 from x",
    ] {
        node.put_group(
            "g",
            one(json!({"script": "query", "sql": ["shop"],
                "params": {"connection": "shop", "statement": statement, "execute": true}})),
        )
        .await;
        assert_eq!(node.run("g", json!({})).await["state"], "failed", "{statement}");
    }
    let rows = world.sql().await.query("SELECT FROM shop.orders", &[]).await.unwrap();
    assert_eq!(rows.len(), 0);

    // The options of its URL are kept, and do not change that.
    let divider = if world.url().contains('?') { '&' } else { '?' };
    let options = "-c%20search_path%3Dshop%20-c%20default_transaction_read_only%3Doff";
    let url = format!("{}{divider}options={options}", world.url());
    node.put(
        "/v1/connections/shop",
        json!({"url": url, "groups": ["*"], "read_only": true}),
    )
    .await
    .expect_status(200);
    for (statement, execute, state) in [
        ("select count(*) from orders", false, "succeeded"),
        ("insert into orders values (1)", true, "failed"),
    ] {
        node.put_group(
            "g",
            one(json!({"script": "query", "sql": ["shop"],
                "params": {"connection": "shop", "statement": statement, "execute": execute}})),
        )
        .await;
        let run = node.run("g", json!({})).await;
        assert_eq!(run["state"], state, "{statement}: {run:#}");
    }
    let rows = world.sql().await.query("SELECT FROM shop.orders", &[]).await.unwrap();
    assert_eq!(rows.len(), 0);
}

/// No network unless granted; private addresses only where the operator lists them.
#[tokio::test]
async fn hosts() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let fetch = |allow: &[&str]| {
        one(json!({"script": "fetch", "params": {"url": format!("{}/a", sink.url)}, "allow_hosts": allow}))
    };
    let guarded = world.node().await;
    guarded.put_group("ungranted", fetch(&[])).await;
    guarded.put_group("other", fetch(&["example.com"])).await;
    guarded.put_group("granted", fetch(&["127.0.0.1"])).await;
    for name in ["ungranted", "other", "granted"] {
        let run = guarded.run(name, json!({})).await;
        assert_eq!(run["state"], "failed", "{name}: {run:#}");
    }
    assert!(sink.requests().is_empty(), "nothing went out: {:?}", sink.requests());
    drop(guarded);
    let open = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    assert_eq!(open.run("ungranted", json!({})).await["state"], "failed");
    assert_eq!(open.run("other", json!({})).await["state"], "failed");
    assert!(sink.requests().is_empty());
    let run = open.run("granted", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "t")["output"]["status"], 200);
    assert_eq!(sink.requests().len(), 1);
}
