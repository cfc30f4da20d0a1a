//! Callers who ask too often, or from the wrong place: thousands of wrong tokens, devices, nodes that would be open to
//! all.

use futures::StreamExt;
use heddle_tests::{TOKEN, World, eventually, run_program};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

const DEVICE_KEY: &str = "the device key of the end-to-end tests";

/// A flood of wrong tokens is refused in memory: after the first few, an address gets 429 until it slows down. Callers
/// with a known token continue.
#[tokio::test]
async fn wrong_tokens_by_the_thousand() {
    let (_world, node) = World::with_node().await;
    node.get("/v1/groups").await.expect_status(200);
    let began = Instant::now();
    let statuses: Vec<(u16, bool)> = futures::stream::iter(0..1_000)
        .map(|n| {
            let api = node.with_token(Some(&format!("hdl_wrong-{n}")));
            async move {
                let reply = api.get("/v1/groups").await;
                (reply.status, reply.headers.contains_key("retry-after"))
            }
        })
        .buffer_unordered(32)
        .collect()
        .await;
    let seconds = began.elapsed().as_secs() as usize + 1;
    let looked_up = statuses.iter().filter(|(status, _)| *status == 401).count();
    assert!(statuses.iter().all(|(status, _)| matches!(status, 401 | 429)));
    assert!(statuses.iter().all(|(status, after)| (*status == 429) == *after));
    assert!(looked_up >= 60, "{looked_up}");
    assert!(looked_up <= 60 + 10 * seconds, "{looked_up} in {seconds} s");
    // The same wrong one again costs nothing: it is remembered.
    node.get("/v1/groups").await.expect_status(200);
    // One that nobody has seen yet is looked up soon.
    let made = node
        .post("/v1/tokens", json!({"name": "new", "role": "viewer"}))
        .await
        .expect_status(201);
    let new = node.with_token(made["token"].as_str());
    eventually("the look-up of a new token", async || {
        (new.get("/v1/groups").await.status == 200).then_some(())
    })
    .await;
    let log = node.log();
    assert!(
        !log.contains("hdl_wrong") && !log.contains(TOKEN),
        "tokens are not logged"
    );
}

/// More connections than a node handles requests, each with the body of a sign-in that comes byte by byte: known
/// callers continue, sign in, and read the node's health; the slow ones get an error within seconds.
#[tokio::test]
async fn slow_bodies_of_nobody() {
    const SLOW: usize = 1_100;
    let (_world, node) = World::with_node().await;
    let head = format!(
        "POST /v1/session HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{",
        node.authority()
    );
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(node.authority()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    node.get("/v1/groups").await.expect_status(200);
    let anybody = node.with_token(None);
    anybody.get("/healthz").await.expect_status(200);
    anybody.get("/readyz").await.expect_status(200);
    anybody
        .post("/v1/session", json!({"token": TOKEN}))
        .await
        .expect_status(201);
    node.put("/v1/pools/p", json!({"slots": 1})).await.expect_status(201);
    let mut statuses = std::collections::BTreeMap::<String, usize>::new();
    for stream in slow {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.unwrap();
        let status = line.split_whitespace().nth(1).unwrap_or("none");
        *statuses.entry(status.to_owned()).or_default() += 1;
    }
    assert_eq!(statuses.values().sum::<usize>(), SLOW);
    assert!(
        statuses.keys().all(|status| status == "408" || status == "429"),
        "{statuses:?}"
    );
    assert!(statuses["408"] >= 1 && statuses["429"] >= SLOW / 2, "{statuses:?}");
    // The same for the pages.
    let form = head
        .replace("/v1/session", "/sign-in")
        .replace("application/json", "application/x-www-form-urlencoded");
    let mut stream = TcpStream::connect(node.authority()).await.unwrap();
    stream
        .write_all(
            form.replace("\r\nContent-Type", "\r\nAccept: text/html\r\nContent-Type")
                .as_bytes(),
        )
        .await
        .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await.unwrap();
    assert!(line.contains(" 408 "), "{line}");
}

/// Who may not report on claims is told so by the head of the request: nothing of the body, which may be large, is read.
#[tokio::test]
async fn a_report_of_somebody_who_may_not_is_not_read() {
    let (_world, node) = World::with_node().await;
    let made = node
        .post("/v1/tokens", json!({"name": "user", "role": "worker", "uids": ["u1"]}))
        .await
        .expect_status(201);
    let token = made["token"].as_str().unwrap();
    for path in [
        "/v1/claims/complete",
        "/v1/claims/00000000-0000-0000-0000-000000000001/complete",
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: 30000000\r\n\r\n{{",
            node.authority()
        );
        let mut stream = TcpStream::connect(node.authority()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.unwrap();
        assert!(line.contains(" 403 "), "{path}: {line}");
    }
}

/// How often one token may ask can be bounded.
#[tokio::test]
async fn a_rate_for_each_token() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_RATE_LIMIT", "1").start().await;
    let statuses: Vec<u16> = futures::stream::iter(0..20)
        .map(|_| async { node.get("/v1/groups").await.status })
        .buffer_unordered(20)
        .collect()
        .await;
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(
        statuses.iter().all(|status| matches!(status, 200 | 429)),
        "{statuses:?}"
    );
    node.with_token(None).get("/healthz").await.expect_status(200);
}

/// The last use of a token is noted, in time.
#[tokio::test]
async fn last_use() {
    let (_world, node) = World::with_node().await;
    let made = node
        .post("/v1/tokens", json!({"name": "v", "role": "viewer"}))
        .await
        .expect_status(201);
    assert!(made["last_used_at"].is_null());
    node.with_token(made["token"].as_str())
        .get("/v1/groups")
        .await
        .expect_status(200);
    eventually("the token's last use", async || {
        let token = node.get("/v1/tokens/v").await.expect_status(200);
        token["last_used_at"].is_string().then_some(())
    })
    .await;
}

/// Tokens that have run out while a node knows them.
#[tokio::test]
async fn expired() {
    let (world, node) = World::with_node().await;
    let made = node
        .post("/v1/tokens", json!({"name": "v", "role": "viewer"}))
        .await
        .expect_status(201);
    let token = made["token"].as_str().unwrap();
    node.with_token(Some(token)).get("/v1/groups").await.expect_status(200);
    for truncated in [&token[..token.len() - 1], &token[..8], &token[1..]] {
        let reply = node.with_token(Some(truncated)).get("/v1/groups").await;
        reply.expect_problem(401, &[]);
    }
    world
        .sql()
        .await
        .execute("UPDATE heddle.tokens SET expires_at = now() WHERE name = 'v'", &[])
        .await
        .unwrap();
    eventually("the end of the token", async || {
        (node.with_token(Some(token)).get("/v1/groups").await.status == 401).then_some(())
    })
    .await;
}

/// A worker's token does its own work only.
#[tokio::test]
async fn workers_are_bound() {
    let (_world, node) = World::with_node().await;
    let make = async |name: &str, bound: serde_json::Value| {
        let mut body = json!({"name": name, "role": "worker"});
        body.as_object_mut().unwrap().extend(bound.as_object().unwrap().clone());
        let made = node.post("/v1/tokens", body).await.expect_status(201);
        node.with_token(made["token"].as_str())
    };
    let queues = make("queues", json!({"queues": ["q"]})).await;
    let users = make("users", json!({"uids": ["u1"]})).await;
    let all = make("all", json!({})).await;
    let claim = json!({"worker": "w", "max": 1});
    for (api, status) in [(&queues, 200), (&users, 403), (&all, 200)] {
        assert_eq!(api.post("/v1/queues/q/claims", claim.clone()).await.status, status);
    }
    assert_eq!(queues.post("/v1/queues/r/claims", claim).await.status, 403);
    for (api, status) in [(&queues, 403), (&users, 204), (&all, 204)] {
        assert_eq!(api.post("/v1/dispatch/u1/next", json!({})).await.status, status);
    }
    assert_eq!(users.post("/v1/dispatch/u2/next", json!({})).await.status, 403);
    for (role, bound) in [("viewer", "queues"), ("admin", "uids")] {
        let pointer = format!("/{bound}");
        node.post("/v1/tokens", json!({"name": "x", "role": role, bound: ["a"]}))
            .await
            .expect_problem(422, &[&pointer]);
    }
}

/// Tokens that are signed for a device, with a key that the nodes have.
#[tokio::test]
async fn devices() {
    let world = World::new().await;
    let node = world
        .options()
        .env("HEDDLE_DEVICE_KEY", DEVICE_KEY)
        .env(
            "HEDDLE_DEVICE_KEY_PREVIOUS",
            "the key before that, which was as long as it",
        )
        .start()
        .await;
    let sign = |key: &str, uid: &str, expires_in: &str| {
        let arguments = ["token", "sign", "--uid", uid, "--expires-in", expires_in];
        let output = run_program(&arguments, &[("HEDDLE_DEVICE_KEY", key)]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    };
    let token = sign(DEVICE_KEY, "u1", "10m").unwrap();
    let device = node.with_token(Some(&token));
    assert_eq!(device.post("/v1/dispatch/u1/next", json!({})).await.status, 204);
    assert_eq!(device.post("/v1/dispatch/u2/next", json!({})).await.status, 403);
    assert_eq!(
        device.post("/v1/queues/q/claims", json!({"worker": "w"})).await.status,
        403
    );
    assert_eq!(device.get("/v1/groups").await.status, 403);
    let me = device.get("/v1/session").await.expect_status(200);
    assert_eq!((&me["actor"], &me["uids"]), (&json!("uid:u1"), &json!(["u1"])));
    let former = sign("the key before that, which was as long as it", "u1", "10m").unwrap();
    assert_eq!(node.with_token(Some(&former)).get("/v1/session").await.status, 200);
    let foreign = sign("a key that this node has never been given", "u1", "10m").unwrap();
    for wrong in [foreign.as_str(), &token[..token.len() - 2], &token[1..], "a.b.c"] {
        assert_eq!(
            node.with_token(Some(wrong)).get("/v1/session").await.status,
            401,
            "{wrong}"
        );
    }
    // The end is printed as it is in the token: in whole seconds.
    let arguments = ["token", "sign", "--uid", "u1", "-o", "json"];
    let output = run_program(&arguments, &[("HEDDLE_DEVICE_KEY", DEVICE_KEY)]);
    let signed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expires_at = signed["expires_at"].as_str().unwrap();
    assert!(expires_at.ends_with(".000000Z"), "{expires_at}");
    assert!(sign("short", "u1", "10m").unwrap_err().contains("32 bytes"));
    assert!(sign(DEVICE_KEY, "u1", "500ms").unwrap_err().contains("--expires-in"));
    assert!(sign(DEVICE_KEY, "u1", "2d").unwrap_err().contains("--expires-in"));
    assert!(sign(DEVICE_KEY, "", "1h").unwrap_err().contains("--uid"));
}

/// What a node refuses to start with: a short device key, an address that others reach while nobody could call.
#[tokio::test]
async fn nodes_that_do_not_start() {
    let world = World::new().await;
    let data_dir = world.directory().join("node").to_string_lossy().into_owned();
    let serve = |listen: &str, environment: &[(&str, &str)]| {
        let arguments = [
            "serve",
            "--database-url",
            world.url(),
            "--listen",
            listen,
            "--data-dir",
            &data_dir,
        ];
        let output = run_program(&arguments, environment);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = serve("127.0.0.1:0", &[("HEDDLE_DEVICE_KEY", "too short")]);
    assert!(said.contains("HEDDLE_DEVICE_KEY") && said.contains("32"), "{said}");
    assert!(!said.contains("too short"), "{said}");
    world
        .sql()
        .await
        .execute("UPDATE heddle.tokens SET revoked_at = now()", &[])
        .await
        .unwrap();
    let said = serve("0.0.0.0:0", &[]);
    assert!(said.contains("heddle token create"), "{said}");
    // On a loopback address it starts, and lets nobody in.
    let node = world.node().await;
    assert_eq!(node.get("/v1/groups").await.status, 401);
    assert!(node.log().contains("there is no token"), "{}", node.log());
}

/// A node that starts gets one valid token from all of its pollers at once, before it knows it: more of them than it
/// would look up unknown tokens. The table answers nobody until they have all come.
#[tokio::test]
async fn a_right_token_shown_by_many_at_once_is_looked_up_once() {
    let (world, node) = World::with_node().await;
    let fresh = node
        .post("/v1/tokens", json!({"name": "many", "role": "viewer"}))
        .await
        .expect_status(201);
    let api = node.with_token(fresh["token"].as_str());
    let mut sql = world.sql().await;
    let lock = sql.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE heddle.tokens IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let asked: Vec<_> = (0..300)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move { api.get("/v1/groups").await.status })
        })
        .collect();
    let watcher = world.sql().await;
    eventually("the look-up, which waits for the table", async || {
        let waiting = watcher
            .query_one(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'heddle.tokens'::regclass",
                &[],
            )
            .await
            .unwrap();
        (waiting.get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    // Requests after these have been answered, so those before have been heard: a refused one has ended.
    for _ in 0..50 {
        node.with_token(None).get("/healthz").await.expect_status(200);
        tokio::task::yield_now().await;
    }
    lock.rollback().await.unwrap();
    for one in asked {
        assert_eq!(one.await.expect("an answer"), 200);
    }
}
