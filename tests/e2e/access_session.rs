//! Signing in and out, for browsers.

use heddle_tests::{Api, Node, Reply, TOKEN, World, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::compatibility::tree;

/// Signs in; answers the cookie's name and value, and what it said.
async fn sign_in(api: &Api, token: &str, headers: &[(&str, &str)]) -> (String, Reply) {
    let mut request = api
        .with_token(None)
        .request(Method::POST, "/v1/session")
        .json(&json!({"token": token}));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let reply = api.send(request).await;
    let cookie = reply
        .headers
        .get("set-cookie")
        .map(|value| value.to_str().unwrap().to_owned())
        .unwrap_or_default();
    (cookie.split(';').next().unwrap_or_default().to_owned(), reply)
}

/// A request that a page of a browser makes.
async fn page(node: &Node, method: Method, path: &str, cookie: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = node
        .with_token(None)
        .request(method.clone(), path)
        .header("cookie", format!("theme=dark; {cookie}"));
    if method != Method::GET {
        request = request.json(&json!({"slots": 1}));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    node.send(request).await
}

/// Somebody has lost a laptop: an admin ends what was begun there, on all nodes.
#[tokio::test]
async fn an_admin_ends_the_sessions_of_somebody() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let make = json!({"name": "ann", "role": "operator"});
    let made = nodes[0].post("/v1/tokens", make).await.expect_status(201);
    let token = made["token"].as_str().unwrap().to_owned();
    let (one, _) = sign_in(&nodes[0], &token, &[]).await;
    let (two, _) = sign_in(&nodes[1], &token, &[]).await;
    let (mine, _) = sign_in(&nodes[0], TOKEN, &[]).await;
    let listed = nodes[0].all("/v1/sessions").await;
    let names: Vec<&str> = listed.iter().map(|one| one["actor"].as_str().unwrap()).collect();
    assert_eq!(names, ["ann", "e2e"], "{listed:#?}");
    assert_eq!(
        (&listed[0]["sessions"], &listed[0]["role"]),
        (&json!(2), &json!("operator"))
    );
    assert!(listed[0]["issuer"].is_null() && listed[0]["expires_at"].is_string());
    // By pages, too.
    let first = nodes[0].get("/v1/sessions?limit=1").await.expect_status(200);
    let next = first["next_cursor"].as_str().expect("a second page");
    let second = nodes[0]
        .get(&format!("/v1/sessions?limit=1&cursor={next}"))
        .await
        .expect_status(200);
    assert_eq!(
        (&second["items"][0]["actor"], &second["next_cursor"]),
        (&json!("e2e"), &Value::Null)
    );
    // Not by anybody.
    let operator = nodes[0].with_token(Some(&token));
    assert_eq!(operator.get("/v1/sessions").await.status, 403);
    assert_eq!(operator.delete("/v1/sessions/e2e").await.status, 403);
    nodes[0].delete("/v1/sessions/nobody").await.expect_problem(404, &[]);
    let ended = nodes[0].delete("/v1/sessions/ann").await.expect_status(200);
    assert_eq!(ended, json!({"ended": 2}));
    assert_eq!(page(&nodes[0], Method::GET, "/v1/session", &one, &[]).await.status, 401);
    for cookie in [&one, &two] {
        eventually("the end of the sessions on the other node", async || {
            let reply = page(&nodes[1], Method::GET, "/v1/session", cookie, &[]).await;
            (reply.status == 401).then_some(())
        })
        .await;
    }
    // Nobody else's, and not the token.
    assert_eq!(
        page(&nodes[0], Method::GET, "/v1/session", &mine, &[]).await.status,
        200
    );
    assert_eq!(operator.get("/v1/session").await.status, 200);
    nodes[0].delete("/v1/sessions/ann").await.expect_problem(404, &[]);
    let audit = nodes[0].all("/v1/audit?kind=token&action=end_sessions").await;
    assert_eq!(
        (
            audit.len(),
            &audit[0]["name"],
            &audit[0]["actor"],
            &audit[0]["before"]["sessions"]
        ),
        (1, &json!("ann"), &json!("e2e"), &json!(2))
    );
}

#[tokio::test]
async fn a_session_is_begun_used_and_ended() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    let origin = node.base().to_owned();
    let (cookie, reply) = sign_in(node, TOKEN, &[("origin", &origin)]).await;
    assert_eq!(reply.status, 201, "{:#}", reply.body);
    assert_eq!(
        (&reply.body["actor"], &reply.body["role"]),
        (&json!("e2e"), &json!("admin"))
    );
    assert!(reply.body["expires_at"].is_string());
    let set = reply.headers["set-cookie"].to_str().unwrap();
    for attribute in ["HttpOnly", "SameSite=Lax", "Path=/", "Max-Age="] {
        assert!(set.contains(attribute), "{set}");
    }
    assert!(!set.contains("Secure") && !set.contains(TOKEN), "{set}");
    assert!(!reply.body.to_string().contains(TOKEN));
    let (_, over_tls) = sign_in(node, TOKEN, &[("x-forwarded-proto", "https")]).await;
    assert!(over_tls.headers["set-cookie"].to_str().unwrap().contains("; Secure"));
    // On any node.
    for node in &nodes {
        let me = page(node, Method::GET, "/v1/session", &cookie, &[]).await;
        assert_eq!(me.expect_status(200)["actor"], "e2e");
        page(node, Method::GET, "/v1/tokens", &cookie, &[])
            .await
            .expect_status(200);
    }
    // What writes comes from our own pages.
    let own = origin.as_str();
    let cases: [(&[(&str, &str)], u16); 8] = [
        (&[], 403),
        (&[("origin", "https://evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("sec-fetch-site", "cross-site"), ("origin", own)], 403),
        (&[("sec-fetch-site", "same-site"), ("origin", own)], 403),
        (&[("sec-fetch-site", "none")], 403),
        (&[("origin", own)], 201),
        (
            &[("sec-fetch-site", "same-origin"), ("origin", "https://behind.a.proxy")],
            200,
        ),
    ];
    for (headers, status) in cases {
        let reply = page(node, Method::PUT, "/v1/pools/p", &cookie, headers).await;
        assert_eq!(reply.status, status, "{headers:?}: {:#}", reply.body);
    }
    // If there is a token and a cookie, the token counts; and a token needs no origin.
    let request = node
        .request(Method::PUT, "/v1/pools/p")
        .header("cookie", &cookie)
        .json(&json!({"slots": 2}));
    node.send(request).await.expect_status(200);
    // Nobody is signed in from elsewhere, nor out.
    let elsewhere = [("origin", "https://evil.example")];
    assert_eq!(sign_in(node, TOKEN, &elsewhere).await.1.status, 403);
    assert_eq!(
        page(node, Method::DELETE, "/v1/session", &cookie, &elsewhere)
            .await
            .status,
        403
    );
    page(node, Method::GET, "/v1/session", &cookie, &[])
        .await
        .expect_status(200);
    let out = page(node, Method::DELETE, "/v1/session", &cookie, &[("origin", &origin)]).await;
    assert_eq!(out.status, 204);
    assert!(out.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(page(node, Method::GET, "/v1/session", &cookie, &[]).await.status, 401);
    eventually("the end of the session on the other node", async || {
        let reply = page(&nodes[1], Method::GET, "/v1/session", &cookie, &[]).await;
        (reply.status == 401).then_some(())
    })
    .await;
    let audit = node.all("/v1/audit?kind=token&actor=e2e").await;
    let session = json!({"role": "admin"});
    for (action, before, after) in [
        ("sign_in", &Value::Null, &session),
        ("sign_out", &session, &Value::Null),
    ] {
        let row = audit.iter().find(|row| row["action"] == action);
        let row = row.unwrap_or_else(|| panic!("{audit:#?}"));
        assert_eq!((&row["before"], &row["after"]), (before, after), "{row:#}");
    }
}

/// A GET that changes something needs a token: a link or a redirect on a page of our own sends the cookie, too.
#[tokio::test]
async fn a_cookie_changes_nothing_by_get() {
    let (_world, node) = World::with_node().await;
    let made = node.post("/task-scheduler/task/submitTimerTask", tree()).await;
    let root = made.expect_status(200)["data"]["taskId"].as_i64().expect("a number");
    let (cookie, _) = sign_in(&node, TOKEN, &[("origin", node.base())]).await;
    let call = |name: &str| format!("/task-scheduler/task/{name}?taskId={root}");
    let same = [("sec-fetch-site", "same-origin")];
    for name in ["timerTaskDel", "disableTask", "execTaskImmediately", "enableTask"] {
        for headers in [&same[..0], &same[..]] {
            let reply = page(&node, Method::GET, &call(name), &cookie, headers).await;
            let answer = reply.expect_status(200);
            assert_eq!(answer["code"], 403, "{name} {headers:?}: {answer:#}");
        }
    }
    let group = format!("/v1/groups/timer-task-{root}");
    assert_eq!(node.get(&group).await.expect_status(200)["enabled"], true);
    assert_eq!(node.all(&format!("/v1/runs?group=timer-task-{root}")).await.len(), 0);
    // By POST from a page of our own, and by GET with a token.
    let disabled = page(&node, Method::POST, &call("disableTask"), &cookie, &same).await;
    assert_eq!(disabled.expect_status(200)["code"], 200);
    let deleted = node.get(&call("timerTaskDel")).await.expect_status(200);
    assert_eq!(deleted["code"], 200, "{deleted:#}");
    node.get(&group).await.expect_problem(404, &[]);
}

/// What signs in: tokens of the table that are in force. And a session ends with its token.
#[tokio::test]
async fn a_session_is_worth_what_its_token_is() {
    let (world, node) = World::with_node().await;
    for wrong in ["hdl_wrong", "", "{}", "a.b.c"] {
        let (cookie, reply) = sign_in(&node, wrong, &[]).await;
        assert_eq!((reply.status, cookie.as_str()), (401, ""), "{wrong}");
    }
    let unread = node
        .with_token(None)
        .request(Method::POST, "/v1/session")
        .json(&json!({"tokn": "x"}));
    node.send(unread).await.expect_problem(422, &["/tokn"]);
    let soon: chrono::DateTime<chrono::Utc> = world
        .sql()
        .await
        .query_one("SELECT extract(epoch FROM now())::bigint + 3600", &[])
        .await
        .map(|row| chrono::DateTime::from_timestamp(row.get(0), 0).unwrap())
        .unwrap();
    let body = json!({"name": "v", "role": "viewer", "expires_at": soon.to_rfc3339()});
    let made = node.post("/v1/tokens", body).await.expect_status(201);
    let (cookie, reply) = sign_in(&node, made["token"].as_str().unwrap(), &[]).await;
    assert_eq!(
        reply.body["expires_at"], made["expires_at"],
        "a token's end is its sessions' end"
    );
    let origin = node.base().to_owned();
    let own = [("origin", origin.as_str())];
    page(&node, Method::GET, "/v1/runs", &cookie, &[])
        .await
        .expect_status(200);
    assert_eq!(page(&node, Method::PUT, "/v1/pools/p", &cookie, &own).await.status, 403);
    // Nothing of the cookie is in the database but its hash.
    let rows = world
        .sql()
        .await
        .query("SELECT encode(hash, 'escape') FROM heddle.sessions", &[])
        .await
        .unwrap();
    let text = cookie.split_once('=').unwrap().1;
    assert!(rows.iter().all(|row| !row.get::<_, String>(0).contains(text)));
    node.delete("/v1/tokens/v").await.expect_status(204);
    assert_eq!(page(&node, Method::GET, "/v1/runs", &cookie, &[]).await.status, 401);
    let left: Value = node.get("/v1/session").await.expect_status(200);
    assert_eq!(left["role"], "admin");
}
