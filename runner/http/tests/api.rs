//! The control plane's routes over a real Postgres, which the test brings along, and an engine that compiles nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use heddle_domain::{Chance, Clock, Time};
use heddle_engine::heddle_sandbox::{CompilerCommand, Sandbox, SandboxConfig};
use heddle_engine::{DispatchConfig, Engine, EngineConfig, NodeClock, NotifyConfig};
use heddle_http::{App, AppParts, HttpConfig, router};
use heddle_postgres::{TestCluster, TestDatabase};
use heddle_store::Store;
use heddle_store::change::By;
use heddle_store::script::ScriptWrite;
use heddle_store::secret::{SecretKey, SecretKeys};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tower::ServiceExt;
use uuid::Uuid;

#[derive(Debug)]
struct Counting(AtomicU64);

impl Chance for Counting {
    fn bits(&self) -> u128 {
        let n = u128::from(self.0.fetch_add(1, Ordering::Relaxed));
        (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
    }
}

#[derive(Debug)]
struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Time {
        "2026-11-20T08:00:00Z".parse().unwrap()
    }
}

/// An engine as a node has it, but for what compiles scripts: the end-to-end tests upload some.
async fn engine(store: &Store, keys: &SecretKeys, directory: &std::path::Path) -> Engine {
    let compiler = CompilerCommand {
        program: "false".into(),
        args: Vec::new(),
        env: Vec::new(),
    };
    let config = SandboxConfig {
        threads: 1,
        long_threads: 1,
        max_instances: 4,
        max_memory_bytes: 1 << 20,
        ..SandboxConfig::new(directory.to_owned(), compiler)
    };
    let clock = Arc::new(NodeClock::default());
    let sandbox = Sandbox::new(config, clock.clone()).expect("a sandbox");
    let config = EngineConfig {
        node: Uuid::from_u128(1),
        name: "test".into(),
        address: String::new(),
        version: String::new(),
        lease_for: Duration::from_secs(60),
        slots: 10,
        threads: 1,
        data_dir: directory.to_owned(),
        drain_for: Duration::ZERO,
        dispatch: DispatchConfig::default(),
        notify: NotifyConfig {
            public_url: "http://localhost".into(),
            mail_dir: None,
            stalled_after: Duration::from_secs(60),
        },
    };
    let chance = Arc::new(Counting(AtomicU64::new(1 << 32)));
    let engine = Engine::start(config, store.clone(), sandbox, Arc::new(keys.clone()), clock, chance);
    engine.await.expect("an engine")
}

/// The cluster of this process, and the name of a migrated database in it.
static CLUSTER: OnceCell<(TestCluster, String)> = OnceCell::const_new();

async fn cluster() -> (TestCluster, String) {
    let cluster = TestCluster::start().await.expect("a cluster");
    // The migrations are in this very program: it says whether they have changed.
    let facts = std::env::current_exe()
        .and_then(std::fs::metadata)
        .expect("the test's own file");
    let digest = Sha256::digest(format!("{:?} {}", facts.modified().expect("its time"), facts.len()));
    let stamp: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let template = format!("http_{stamp}");
    let migrate = async |url: String| {
        let store = Store::connect(&url, 1).await?;
        store.migrate().await?;
        store.close();
        Ok(())
    };
    cluster.template(&template, migrate).await.expect("a template");
    (cluster, template)
}

/// A database of its own.
struct Fixture {
    router: Router,
    store: Store,
    engine: Engine,
    _directory: TempDir,
    _database: TestDatabase,
}

impl Fixture {
    async fn new(dev: bool) -> Self {
        let (cluster, template) = CLUSTER.get_or_init(cluster).await;
        let database = cluster.database(template).await.expect("a database");
        let store = Store::connect(database.url(), 12).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
        let engine = engine(&store, &keys, directory.path()).await;
        let app = App::new(AppParts {
            store: store.clone(),
            engine: engine.clone(),
            clock: Arc::new(Fixed),
            chance: Arc::new(Counting(AtomicU64::new(0))),
            secret_keys: keys,
            metrics: Arc::new(|_| {}),
            tracer: None,
            config: HttpConfig {
                dev,
                script_bytes_max: 1_000,
                ..HttpConfig::default()
            },
        });
        Self {
            router: router(app),
            store,
            engine,
            _directory: directory,
            _database: database,
        }
    }

    async fn end(self) {
        drop(self.router);
        self.engine.drain().await;
        self.store.close();
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .router
            .clone()
            .oneshot(request.body(body.into()).unwrap())
            .await
            .unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Reply {
            status,
            headers,
            json,
            bytes,
        }
    }

    async fn json(&self, method: &str, path: &str, body: Value) -> Reply {
        self.send(method, path, &[("content-type", "application/json")], body.to_string())
            .await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "").await
    }
}

struct Reply {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    json: Value,
    bytes: Bytes,
}

impl Reply {
    #[track_caller]
    fn is(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        if status >= 400 {
            assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
            assert_eq!(self.json["status"], status);
        }
        self
    }

    #[track_caller]
    fn at(self, pointer: &str) -> Self {
        assert_eq!(self.json["errors"][0]["pointer"], pointer, "{}", self.json);
        self
    }
}

fn group(script: &str) -> Value {
    json!({"category": "bi", "tasks": {"a": {"script": script}}})
}

/// A version of a script, as if it had been compiled.
async fn script(fixture: &Fixture, name: &str, bytes: &[u8], activate: bool) {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let write = ScriptWrite {
        name,
        digest: &digest,
        bytes,
        world: "heddle:task/task",
        runtime: None,
        params_schema: Some(&json!({"type": "object", "properties": {"n": {"type": "integer"}}})),
        defaults: &json!({}),
        description: "small",
        activate,
    };
    let by = By {
        actor: "test",
        at: Fixed.now(),
    };
    assert!(fixture.store.put_script(by, write).await.unwrap().changed);
}

#[tokio::test]
async fn scripts_have_immutable_versions() {
    let fixture = Fixture::new(true).await;
    script(&fixture, "s", b"\0asm1", true).await;
    script(&fixture, "s", b"\0asm2", false).await;
    let second = fixture.get("/v1/scripts/s/versions/2").await.is(200).json;
    assert_eq!((&second["version"], &second["active"]), (&json!(2), &json!(false)));
    assert_eq!(fixture.get("/v1/scripts/s").await.is(200).json["version"], 1);
    let active = fixture
        .json("PUT", "/v1/scripts/s/active", json!({"version": 2}))
        .await
        .is(200)
        .json;
    assert_eq!(active["active_version"], 2);
    fixture
        .json("PUT", "/v1/scripts/s/active", json!({"version": 9}))
        .await
        .is(422)
        .at("/version");
    let versions = fixture.get("/v1/scripts/s/versions").await.is(200).json;
    assert_eq!(versions["items"].as_array().unwrap().len(), 2);
    let bytes = fixture.get("/v1/scripts/s/versions/1/wasm").await.is(200).bytes;
    assert_eq!(&bytes[..], b"\0asm1");
    fixture.get("/v1/scripts/s/versions/3").await.is(404);
    fixture.get("/v1/scripts/s/versions/x").await.is(404);
    fixture.json("PUT", "/v1/groups/g", group("s@1")).await.is(201);
    let refused = fixture.send("DELETE", "/v1/scripts/s", &[], "").await.is(409).json;
    assert!(refused["detail"].as_str().unwrap().contains("`g`"));
    fixture.send("DELETE", "/v1/groups/g", &[], "").await.is(200);
    fixture.send("DELETE", "/v1/scripts/s", &[], "").await.is(204);
    fixture.get("/v1/scripts/s").await.is(404);
    // What was deleted is not numbered anew.
    script(&fixture, "s", b"\0asm2", true).await;
    assert_eq!(fixture.get("/v1/scripts/s").await.is(200).json["version"], 3);
    fixture.end().await;
}

#[tokio::test]
async fn groups_have_revisions_and_links() {
    let fixture = Fixture::new(true).await;
    script(&fixture, "s", b"\0asm1", true).await;
    let made = fixture.json("PUT", "/v1/groups/a", group("s")).await.is(201);
    assert_eq!(made.headers[header::ETAG], "\"1\"");
    assert_eq!(
        (&made.json["revision"], &made.json["enabled"], &made.json["timezone"]),
        (&json!(1), &json!(true), &json!("UTC"))
    );
    assert_eq!(made.json["created_at"], "2026-11-20T08:00:00.000000Z");
    assert_eq!(
        fixture.json("PUT", "/v1/groups/a", group("s")).await.is(200).json["revision"],
        1
    );
    // What was read can be put again, and changes nothing.
    let read = fixture.get("/v1/groups/a").await.is(200).json;
    assert_eq!(
        fixture.json("PUT", "/v1/groups/a", read).await.is(200).json["revision"],
        1
    );
    fixture.get("/v1/categories/bi").await.is(200);
    assert_eq!(
        fixture.get("/v1/groups?category=bi").await.is(200).json["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        fixture.get("/v1/groups?category=x").await.is(200).json["items"],
        json!([])
    );

    let headers = [("content-type", "application/yaml"), ("if-match", "\"1\"")];
    let yaml = "tasks:\n  a: {script: s@1}\n";
    assert_eq!(
        fixture.send("PUT", "/v1/groups/a", &headers, yaml).await.is(200).json["revision"],
        2
    );
    fixture
        .send("PUT", "/v1/groups/a", &headers, "tasks: {a: {script: s}}")
        .await
        .is(412);
    fixture
        .send("PUT", "/v1/groups/new", &[("if-match", "*")], group("s").to_string())
        .await
        .is(412);
    assert_eq!(
        fixture.get("/v1/groups/a/revisions").await.is(200).json["items"][0]["revision"],
        2
    );
    fixture.get("/v1/groups/a/revisions/1").await.is(200);
    fixture.get("/v1/groups/a/revisions/3").await.is(404);

    let follows = |upstream: &str| json!({"depends_on": [upstream], "tasks": {"a": {"script": "s"}}});
    fixture
        .json("PUT", "/v1/groups/b", follows("nobody"))
        .await
        .is(422)
        .at("/depends_on/0");
    fixture.json("PUT", "/v1/groups/b", follows("a")).await.is(201);
    let cycle = fixture.json("PUT", "/v1/groups/a", follows("b")).await.is(422).json;
    assert!(cycle["detail"].as_str().unwrap().contains("a -> b -> a"), "{cycle}");
    fixture.json("PUT", "/v1/groups/a", follows("a")).await.is(422);
    let refused = fixture.send("DELETE", "/v1/groups/b", &[], "").await.is(409).json;
    assert!(refused["detail"].as_str().unwrap().contains("`a`"));
    let gone = fixture.send("DELETE", "/v1/groups/a", &[], "").await.is(200).json;
    assert_eq!(gone, json!({"detached": ["b"]}));
    let detached = fixture.get("/v1/groups/b").await.is(200).json;
    assert_eq!(
        (&detached["depends_on"], &detached["revision"]),
        (&json!([]), &json!(2))
    );
    assert_eq!(
        fixture.json("PUT", "/v1/groups/a", group("s")).await.is(201).json["revision"],
        1
    );

    fixture
        .json("PUT", "/v1/groups/c", group("nothing"))
        .await
        .is(422)
        .at("/tasks/a/script");
    fixture
        .json("POST", "/v1/groups/c/validate", group("nothing"))
        .await
        .is(422)
        .at("/tasks/a/script");
    fixture.json("POST", "/v1/groups/c/validate", group("s")).await.is(200);
    fixture.get("/v1/groups/c").await.is(404);
    assert_eq!(
        fixture
            .json("POST", "/v1/groups/a/disable", json!({"mode": "stop"}))
            .await
            .is(200)
            .json["enabled"],
        false
    );
    assert_eq!(
        fixture.send("POST", "/v1/groups/a/enable", &[], "").await.is(200).json["enabled"],
        true
    );
    assert_eq!(
        fixture.get("/v1/groups/b/graph").await.is(200).json["nodes"][0]["task"],
        "a"
    );
    fixture.send("DELETE", "/v1/categories/bi", &[], "").await.is(409);
    let audit = fixture.get("/v1/audit?kind=group&name=a").await.is(200).json;
    assert_eq!(audit["items"][0]["action"], "enable");
    assert!(fixture.store.changes_position().await.unwrap() > 0);
    fixture.end().await;
}

#[tokio::test]
async fn ten_clients_that_put_one_group_make_one_revision() {
    let fixture = Fixture::new(true).await;
    script(&fixture, "s", b"\0asm1", true).await;
    let puts = (0..10).map(|_| fixture.json("PUT", "/v1/groups/g", group("s")));
    let mut statuses: Vec<u16> = futures::future::join_all(puts)
        .await
        .into_iter()
        .map(|reply| reply.status.as_u16())
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 200, 200, 201]);
    let revisions = fixture.get("/v1/groups/g/revisions").await.is(200).json;
    assert_eq!(revisions["items"].as_array().unwrap().len(), 1);
    // The log's ids were committed in their order, without a gap that could still fill.
    let changes = fixture.store.changes_since(0, 1_000).await.unwrap();
    assert!(changes.windows(2).all(|pair| pair[0].id < pair[1].id));
    fixture.end().await;
}

#[tokio::test]
async fn what_is_wrong_is_a_problem() {
    let fixture = Fixture::new(true).await;
    fixture.get("/nowhere").await.is(404);
    fixture.get("/v1/groups/%ff").await.is(400);
    fixture.get("/v1/groups/no%2Fname").await.is(404);
    fixture.json("PUT", "/v1/groups/no%20name", group("s")).await.is(422);
    fixture
        .json("PUT", &format!("/v1/groups/{}", "x".repeat(64)), group("s"))
        .await
        .is(422);
    fixture.get(&format!("/v1/groups/{}", "x".repeat(64))).await.is(404);
    let refused = fixture.send("POST", "/v1/groups/g", &[], "").await.is(405);
    assert_eq!(refused.headers[header::ALLOW], "DELETE, GET, HEAD, PATCH, PUT");
    fixture.send("PUT", "/v1/groups/g", &[], "{\"tasks\": ").await.is(400);
    fixture.send("PUT", "/v1/groups/g", &[], "[]").await.is(422);
    fixture
        .send(
            "PUT",
            "/v1/groups/g",
            &[],
            r#"{"tasks": {"a": {"queue": "q", "queue": "r"}}}"#,
        )
        .await
        .is(422)
        .at("/tasks/a/queue");
    fixture
        .send("PUT", "/v1/groups/g", &[], r#"{"description": "\u0000"}"#)
        .await
        .is(422)
        .at("/description");
    fixture
        .send("PUT", "/v1/groups/g", &[("content-type", "application/yaml")], "a: [")
        .await
        .is(400);
    fixture
        .send("PUT", "/v1/groups/g", &[("content-type", "image/png")], "{}")
        .await
        .is(415);
    fixture
        .json("PUT", "/v1/groups/g", json!({"taskz": {}}))
        .await
        .is(422)
        .at("/taskz");
    for (query, status) in [
        ("limit=0", 422),
        ("limit=501", 422),
        ("limit=x", 400),
        ("limit=500", 200),
    ] {
        fixture.get(&format!("/v1/groups?{query}")).await.is(status);
    }
    fixture.get("/v1/runs?state=runing").await.is(422).at("/state");
    fixture.get("/v1/runs?from=yesterday").await.is(400);
    fixture.get("/v1/runs/not-an-id").await.is(404);
    fixture
        .json("POST", "/v1/groups/nobody/runs/batch", json!({"runs": []}))
        .await
        .is(404);
    fixture
        .json("POST", "/v1/runs/bulk", json!({"filter": {}, "action": "cancel"}))
        .await
        .is(422)
        .at("/filter");
    let queued = json!({"tasks": {"a": {"queue": "q"}}});
    fixture.json("PUT", "/v1/groups/g", queued).await.is(201);
    let submit = json!({"key": "k"});
    let made = fixture
        .json("POST", "/v1/groups/g/runs", submit.clone())
        .await
        .is(202)
        .json;
    let taken = fixture.json("POST", "/v1/groups/g/runs", submit).await.is(409).json;
    assert_eq!(taken["existing"], made["id"]);
    let ready = fixture.get("/readyz").await.is(503);
    assert!(ready.headers.contains_key(header::RETRY_AFTER));
    fixture.get("/healthz").await.is(200);
    assert_eq!(fixture.get("/v1/openapi.json").await.is(200).json["openapi"], "3.1.0");
    fixture.get("/docs").await.is(200);
    fixture
        .send("GET", "/healthz", &[("host", "evil.example")], "")
        .await
        .is(403);
    fixture
        .send("GET", "/healthz", &[("origin", "http://evil.example")], "")
        .await
        .is(403);
    // Names of all writing systems, composed or not, are one name.
    fixture
        .json("PUT", "/v1/pools/%C3%A9", json!({"slots": 2}))
        .await
        .is(201);
    fixture
        .json("PUT", "/v1/pools/e%CC%81", json!({"slots": 2}))
        .await
        .is(200);
    assert_eq!(fixture.get("/v1/pools").await.is(200).json["items"][0]["name"], "é");
    fixture.end().await;
}

#[tokio::test]
async fn lists_have_cursors() {
    let fixture = Fixture::new(true).await;
    for name in ["a", "b", "c", "d", "e"] {
        fixture
            .json("PUT", &format!("/v1/pools/{name}"), json!({"slots": 1}))
            .await
            .is(201);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/pools?limit=2".to_owned();
    loop {
        let page = fixture.get(&path).await.is(200).json;
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pool| pool["name"].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/pools?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    fixture.end().await;
}

#[tokio::test]
async fn secrets_and_connections_are_write_only() {
    let fixture = Fixture::new(true).await;
    let secret = json!({"value": "hunter2", "groups": ["g"]});
    let made = fixture.json("PUT", "/v1/secrets/pw", secret.clone()).await.is(201);
    assert!(!made.bytes.windows(7).any(|window| window == b"hunter2"));
    fixture.json("PUT", "/v1/secrets/pw", secret).await.is(200);
    assert!(fixture.get("/v1/secrets/pw").await.is(200).json.get("value").is_none());
    let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
    let (value, grant) = fixture.store.secret_value(&keys, "pw").await.unwrap().unwrap();
    assert_eq!(
        (value.as_str(), grant.allows("g", None), grant.allows("h", None)),
        ("hunter2", true, false)
    );
    fixture
        .json("PUT", "/v1/connections/w", json!({"groups": ["*"]}))
        .await
        .is(422)
        .at("/url");
    fixture
        .json("PUT", "/v1/connections/w", json!({"url": "mysql://x"}))
        .await
        .is(422)
        .at("/url");
    let url = "postgres://u:secretpw@db/x";
    fixture
        .json("PUT", "/v1/connections/w", json!({"url": url, "groups": ["*"]}))
        .await
        .is(201);
    let changed = fixture
        .json("PUT", "/v1/connections/w", json!({"groups": ["g"]}))
        .await
        .is(200);
    assert!(!changed.bytes.windows(8).any(|window| window == b"secretpw"));
    assert_eq!(fixture.store.connection_url(&keys, "w").await.unwrap().unwrap().0, url);
    let audit = fixture.get("/v1/audit").await.is(200);
    assert!(!audit.bytes.windows(8).any(|window| window == b"secretpw"));
    // A spec may only name what its group was granted.
    script(&fixture, "s", b"\0asm1", true).await;
    let spec = json!({"tasks": {"a": {"script": "s", "sql": ["w"], "secrets": ["pw"]}}});
    fixture.json("PUT", "/v1/groups/g", spec.clone()).await.is(201);
    fixture.json("PUT", "/v1/groups/h", spec).await.is(422);
    // What a group names stays for as long as it does.
    fixture.send("DELETE", "/v1/secrets/pw", &[], "").await.is(409);
    let without = json!({"tasks": {"a": {"script": "s"}}});
    fixture.json("PUT", "/v1/groups/g", without).await.is(200);
    fixture.send("DELETE", "/v1/secrets/pw", &[], "").await.is(204);
    fixture.send("DELETE", "/v1/secrets/pw", &[], "").await.is(404);
    fixture.end().await;
}

#[tokio::test]
async fn serving_needs_tokens() {
    let fixture = Fixture::new(false).await;
    let refused = fixture.get("/v1/groups").await.is(401);
    assert!(refused.headers.contains_key(header::WWW_AUTHENTICATE));
    fixture
        .send("GET", "/v1/groups", &[("authorization", "Bearer hdl_wrong")], "")
        .await
        .is(401);
    fixture
        .send("GET", "/healthz", &[("host", "heddle.example")], "")
        .await
        .is(200);
    let by = heddle_store::change::By {
        actor: "cli",
        at: Fixed.now(),
    };
    let write = |name: &'static str, role: &'static str, text: &str| heddle_store::token::TokenWrite {
        id: Uuid::from_u128(heddle_http::access::token_hash(text)[0].into()),
        name,
        hash: heddle_http::access::token_hash(text),
        role,
        queues: &[],
        uids: &[],
        expires_at: None,
    };
    fixture
        .store
        .create_token(by, write("root", "admin", "hdl_root"))
        .await
        .unwrap()
        .unwrap();
    let as_root = [
        ("authorization", "Bearer hdl_root"),
        ("content-type", "application/json"),
    ];
    let body = json!({"name": "v", "role": "viewer"}).to_string();
    let made = fixture
        .send("POST", "/v1/tokens", &as_root, body.clone())
        .await
        .is(201)
        .json;
    let id = made["id"].as_str().unwrap();
    assert_eq!(
        fixture.send("POST", "/v1/tokens", &as_root, body).await.is(409).json["existing"],
        id
    );
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let as_viewer = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    fixture.send("GET", "/v1/groups", &as_viewer, "").await.is(200);
    fixture
        .send("PUT", "/v1/pools/p", &as_viewer, "{\"slots\": 1}")
        .await
        .is(403);
    fixture.send("GET", "/v1/tokens", &as_viewer, "").await.is(403);
    let listed = fixture.send("GET", "/v1/tokens", &as_root, "").await.is(200);
    assert!(listed.json["items"][0].get("token").is_none());
    fixture
        .send("DELETE", &format!("/v1/tokens/{id}"), &as_root, "")
        .await
        .is(204);
    fixture.send("GET", "/v1/groups", &as_viewer, "").await.is(401);
    let past = json!({"name": "late", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}).to_string();
    fixture
        .send("POST", "/v1/tokens", &as_root, past)
        .await
        .is(422)
        .at("/expires_at");
    fixture.end().await;
}
