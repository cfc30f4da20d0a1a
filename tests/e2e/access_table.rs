//! Each route, called with each role and without a token. A route that is not in the table fails the test: a new route
//! gets its row here.

use std::collections::BTreeMap;

use heddle_tests::{TOKEN, World};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// `METHOD path  who`; [`roles`] defines the words.
const TABLE: &str = "
GET    /checkstatus                                   open
GET    /docs                                          open
GET    /healthz                                       open
GET    /metrics                                       view
GET    /readyz                                        open
GET    /task-scheduler/task/disableTask               operate
POST   /task-scheduler/task/disableTask               operate
GET    /task-scheduler/task/enableTask                operate
POST   /task-scheduler/task/enableTask                operate
GET    /task-scheduler/task/execTaskImmediately       operate
POST   /task-scheduler/task/execTaskImmediately       operate
POST   /task-scheduler/task/submitTimerTask           operate
GET    /task-scheduler/task/timerTaskDel              operate
POST   /task-scheduler/task/timerTaskDel              operate
GET    /v1/assignments                                view
GET    /v1/assignments/{id}                           view
POST   /v1/assignments/{id}/revoke                    operate
GET    /v1/audiences                                  view
GET    /v1/audiences/{audience}/members               view
PATCH  /v1/audiences/{audience}/members               operate
PUT    /v1/audiences/{audience}/members               operate
GET    /v1/audit                                      view
GET    /v1/backfills                                  view
GET    /v1/backfills/{id}                             view
POST   /v1/backfills/{id}/cancel                      operate
POST   /v1/backfills/{id}/pause                       operate
POST   /v1/backfills/{id}/resume                      operate
GET    /v1/categories                                 view
DELETE /v1/categories/{name}                          operate
GET    /v1/categories/{name}                          view
PUT    /v1/categories/{name}                          operate
GET    /v1/channels                                   view
DELETE /v1/channels/{name}                            admin
GET    /v1/channels/{name}                            view
PUT    /v1/channels/{name}                            admin
POST   /v1/channels/{name}/test                       operate
POST   /v1/claims/complete                            work
POST   /v1/claims/fail                                work
POST   /v1/claims/heartbeat                           work
POST   /v1/claims/release                             work
POST   /v1/claims/{id}/complete                       work
POST   /v1/claims/{id}/fail                           work
POST   /v1/claims/{id}/heartbeat                      work
POST   /v1/claims/{id}/release                        work
GET    /v1/connections                                admin
DELETE /v1/connections/{name}                         admin
GET    /v1/connections/{name}                         admin
PUT    /v1/connections/{name}                         admin
POST   /v1/dispatch/{uid}/complete                    work
POST   /v1/dispatch/{uid}/next                        work
GET    /v1/dispatch/{uid}/peek                        view
GET    /v1/events                                     view
GET    /v1/groups                                     view
DELETE /v1/groups/{name}                              operate
GET    /v1/groups/{name}                              view
PATCH  /v1/groups/{name}                              operate
PUT    /v1/groups/{name}                              operate
POST   /v1/groups/{name}/backfills                    operate
POST   /v1/groups/{name}/disable                      operate
POST   /v1/groups/{name}/enable                       operate
GET    /v1/groups/{name}/graph                        view
GET    /v1/groups/{name}/next                         view
GET    /v1/groups/{name}/revisions                    view
GET    /v1/groups/{name}/revisions/{revision}         view
POST   /v1/groups/{name}/runs                         operate
POST   /v1/groups/{name}/runs/batch                   operate
POST   /v1/groups/{name}/validate                     try
POST   /v1/groups/{name}/schedules/{schedule}/disable operate
POST   /v1/groups/{name}/schedules/{schedule}/enable  operate
GET    /v1/nodes                                      view
GET    /v1/notifications                              view
GET    /v1/notifications/{id}                         view
POST   /v1/notifications/{id}/resend                  operate
GET    /v1/offers                                     view
POST   /v1/offers                                     operate
GET    /v1/offers/occurrences                         view
DELETE /v1/offers/{id}                                operate
GET    /v1/offers/{id}                                view
PUT    /v1/offers/{id}                                operate
GET    /v1/openapi.json                               open
GET    /v1/pools                                      view
DELETE /v1/pools/{name}                               admin
GET    /v1/pools/{name}                               view
PUT    /v1/pools/{name}                               admin
GET    /v1/queues                                     view
GET    /v1/queues/{queue}                             view
PUT    /v1/queues/{queue}                             operate
POST   /v1/queues/{queue}/claims                      work
GET    /v1/queues/{queue}/minutes                     view
POST   /v1/queues/{queue}/pause                       operate
POST   /v1/queues/{queue}/resume                      operate
GET    /v1/queues/{queue}/tasks                       view
GET    /v1/retention                                  view
PUT    /v1/retention                                  admin
POST   /v1/retention/prune                            admin
GET    /v1/runs                                       view
POST   /v1/runs/bulk                                  operate
GET    /v1/runs/latest                                view
DELETE /v1/runs/{id}                                  operate
GET    /v1/runs/{id}                                  view
POST   /v1/runs/{id}/cancel                           operate
GET    /v1/runs/{id}/events                           view
GET    /v1/runs/{id}/logs                             view
POST   /v1/runs/{id}/pause                            operate
POST   /v1/runs/{id}/rerun                            operate
POST   /v1/runs/{id}/restart                          operate
POST   /v1/runs/{id}/resume                           operate
PUT    /v1/runs/{id}/state                            operate
GET    /v1/runs/{id}/tasks/{task}                     view
GET    /v1/runs/{id}/tasks/{task}/logs                view
POST   /v1/runs/{id}/tasks/{task}/clear               operate
POST   /v1/runs/{id}/tasks/{task}/retry               operate
PUT    /v1/runs/{id}/tasks/{task}/state               operate
GET    /v1/runtimes                                   view
POST   /v1/runtimes/{tag}/retire                      admin
GET    /v1/scripts                                    view
DELETE /v1/scripts/{name}                             author
GET    /v1/scripts/{name}                             view
PUT    /v1/scripts/{name}                             author
PUT    /v1/scripts/{name}/active                      author
POST   /v1/scripts/{name}/fetch                       author
POST   /v1/scripts/{name}/invoke                      try
GET    /v1/scripts/{name}/versions                    view
GET    /v1/scripts/{name}/versions/{version}          view
GET    /v1/scripts/{name}/versions/{version}/source   view
GET    /v1/scripts/{name}/versions/{version}/wasm     view
GET    /v1/secrets                                    admin
POST   /v1/secrets-key/reseal                         admin
POST   /v1/secrets-key/rotate                         admin
DELETE /v1/secrets/{name}                             admin
GET    /v1/secrets/{name}                             admin
PUT    /v1/secrets/{name}                             admin
DELETE /v1/session                                    open
GET    /v1/session                                    any
POST   /v1/session                                    open
GET    /v1/sessions                                   admin
DELETE /v1/sessions/{actor}                           admin
GET    /v1/stats                                      view
GET    /v1/templates                                  view
DELETE /v1/templates/{name}                           operate
GET    /v1/templates/{name}                           view
PUT    /v1/templates/{name}                           operate
GET    /v1/tokens                                     admin
POST   /v1/tokens                                     admin
DELETE /v1/tokens/{token}                             admin
GET    /v1/tokens/{token}                             admin
GET    /v1/topics                                     view
DELETE /v1/topics/{topic}                             operate
GET    /v1/topics/{topic}                             view
PUT    /v1/topics/{topic}                             operate
POST   /v1/topics/{topic}/cancel                      operate
GET    /v1/topics/{topic}/days                        view
GET    /v1/topics/{topic}/days/{day}                  view
GET    /v1/topics/{topic}/messages                    view
POST   /v1/topics/{topic}/messages                    operate
DELETE /v1/topics/{topic}/messages/{id}               operate
GET    /v1/topics/{topic}/messages/{id}               view
";

const ROLES: [&str; 5] = ["viewer", "operator", "author", "worker", "admin"];

/// The roles that a word of the table means.
fn roles(who: &str) -> &'static [&'static str] {
    match who {
        "open" | "any" => &ROLES,
        "view" => &["viewer", "operator", "author", "admin"],
        "operate" => &["operator", "admin"],
        "author" => &["author", "admin"],
        "try" => &["operator", "author", "admin"],
        "work" => &["worker", "admin"],
        "admin" => &["admin"],
        other => panic!("`{other}` is no word of the table"),
    }
}

/// A path of something that is not there.
fn filled(path: &str) -> String {
    let part = |part: &str| match part {
        "{id}" => "00000000-0000-7000-8000-000000000000".to_owned(),
        "{version}" | "{revision}" => "1".to_owned(),
        "{audience}" => "gid_nothing".to_owned(),
        _ if part.starts_with('{') => "nothing".to_owned(),
        _ => part.to_owned(),
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_route_and_every_role() {
    let (_world, node) = World::with_node().await;
    let table: BTreeMap<(&str, &str), &str> = TABLE
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            ((words[1], words[0]), words[2])
        })
        .collect();
    let document = node.get("/v1/openapi.json").await.expect_status(200);
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            routes.push((path.clone(), method.to_uppercase()));
        }
    }
    for (path, method) in &routes {
        assert!(
            table.contains_key(&(path.as_str(), method.as_str())),
            "{method} {path} is not in the table: say in tests/e2e/access_table.rs who may call it"
        );
    }
    for (path, method) in table.keys() {
        assert!(
            routes.iter().any(|route| route.0 == *path && route.1 == *method),
            "{method} {path} is in the table, and is no route"
        );
    }
    let mut callers = vec![("nobody", node.with_token(None))];
    for role in ROLES {
        let made = node
            .post("/v1/tokens", json!({"name": role, "role": role}))
            .await
            .expect_status(201);
        callers.push((role, node.with_token(made["token"].as_str())));
    }
    for ((path, method), who) in &table {
        for (role, api) in &callers {
            let request = api
                .request(method.parse::<Method>().unwrap(), &filled(path))
                .json(&json!({}));
            let reply = node.send(request).await;
            // These say it in the body of a 200, as their callers expect.
            let status = match path.starts_with("/task-scheduler/") {
                true => u16::try_from(reply.body["code"].as_u64().unwrap()).unwrap(),
                false => reply.status,
            };
            let case = format!("{method} {path} by {role}: {status}");
            match *role {
                // Signing in with nothing is 422, with a wrong token 401.
                "nobody" if *who == "open" => assert!(status != 401 && status != 403, "{case}"),
                "nobody" => assert_eq!(status, 401, "{case}"),
                role if roles(who).contains(&role) => assert!(status != 401 && status != 403, "{case}"),
                _ => assert_eq!(status, 403, "{case}"),
            }
            assert!(status < 500 || status == 503, "{case}");
        }
    }
}

/// What the document says of the routes: paths, methods, and whether they read a body.
async fn routes(node: &heddle_tests::Node) -> Vec<(String, String, bool)> {
    let document = node.get("/v1/openapi.json").await.expect_status(200);
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let body = operation.get("requestBody").is_some();
            routes.push((path.clone(), method.to_uppercase(), body));
        }
    }
    routes
}

/// The status of a request that announces a body, and sends none of it.
async fn announced(node: &heddle_tests::Node, method: &str, path: &str, bytes: u64) -> u16 {
    let mut stream = TcpStream::connect(node.authority()).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n",
        node.authority()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line).await.unwrap();
    let status = line.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("{method} {path}: {line:?}"))
}

/// Each route that reads a body refuses one that is too large before it comes, unless what the path names is not there.
#[tokio::test]
async fn every_route_bounds_its_body() {
    /// More than any route takes at once.
    const TOO_MANY_BYTES: u64 = 1 << 40;
    let (_world, node) = World::with_node().await;
    node.put_group("nothing", json!({"tasks": {"nothing": {"queue": "nothing"}}}))
        .await;
    let topic = json!({"queue": "nothing", "granularity": "day"});
    node.put("/v1/topics/nothing", topic).await.expect_status(201);
    let (mut refused, mut absent, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (path, method, _) in routes(&node).await.into_iter().filter(|(_, _, body)| *body) {
        let status = announced(&node, &method, &filled(&path), TOO_MANY_BYTES).await;
        match status {
            413 => refused.push(format!("{method} {path}")),
            404 => absent.push(format!("{method} {path}")),
            // These say what is wrong in the body of a 200, as their callers expect.
            200 if path.starts_with("/task-scheduler/") => {}
            _ => wrong.push(format!("{method} {path}: {status}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused.len() >= 32, "{} bounded, absent: {absent:#?}", refused.len());
    assert!(
        absent.iter().all(|route| route.contains('{')),
        "what is not there needs a name: {absent:#?}"
    );
}

/// Each route that wants a token counts how often it is shown, and says when to come again; the others do not.
#[tokio::test]
async fn every_route_has_a_rate() {
    /// One request a second is let in; of so many at once some are too many, if not the first time.
    const AT_ONCE: usize = 8;
    const TIMES_MAX: usize = 50;
    let world = World::new().await;
    let patient = world.node().await;
    let node = world.options().env("HEDDLE_RATE_LIMIT", "1").start().await;
    let open: Vec<(&str, &str)> = TABLE
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() == 3 && words[2] == "open")
        .map(|words| (words[1], words[0]))
        .collect();
    for (path, method, _) in routes(&patient).await {
        if open.contains(&(path.as_str(), method.as_str())) {
            continue;
        }
        let mut retry_after = None;
        for _ in 0..TIMES_MAX {
            let asked = (0..AT_ONCE).map(|_| {
                let request = node.request(method.parse::<Method>().unwrap(), &filled(&path));
                node.send(request.json(&json!({})))
            });
            let replies = futures::future::join_all(asked).await;
            let is_refused = |reply: &heddle_tests::Reply| reply.status == 429 || reply.body["code"] == 429;
            if let Some(refused) = replies.into_iter().find(is_refused) {
                retry_after = refused.headers.get("retry-after").cloned();
                break;
            }
        }
        let retry_after =
            retry_after.unwrap_or_else(|| panic!("{method} {path} is never too much, or does not say until when"));
        let seconds: u64 = retry_after.to_str().unwrap().parse().expect("seconds");
        assert!(seconds >= 1, "{method} {path}: {seconds}");
    }
}
