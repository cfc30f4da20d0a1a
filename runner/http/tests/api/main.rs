//! The control plane's routes over a real Postgres, which the test brings along, and an engine that compiles nothing.

#![allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")]

mod groups;
mod memory;
mod pages;
mod problems;
mod scripts;
mod secrets;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use heddle_domain::{Chance, Clock, Time, hex};
use heddle_engine::{DispatchConfig, Engine, EngineConfig, NodeClock, NotifyConfig, ShortWays};
use heddle_http::{App, AppParts, HttpConfig, router};
use heddle_postgres::{TestCluster, TestDatabase, stamp};
use heddle_sandbox::{CompilerCommand, Sandbox, SandboxConfig};
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
async fn engine(store: &Store, keys: &SecretKeys, directory: &std::path::Path, compiler: &[&str]) -> Engine {
    let compiler = CompilerCommand {
        program: compiler[0].into(),
        args: compiler[1..].iter().map(|&arg| arg.into()).collect(),
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
        short_ways: ShortWays::ALL,
        warms: false,
    };
    let chance = Arc::new(Counting(AtomicU64::new(1 << 32)));
    let engine = Engine::start(config, store.clone(), sandbox, Arc::new(keys.clone()), clock, chance);
    engine.await.expect("an engine")
}

/// The cluster of this process, and the name of a migrated database in it.
static CLUSTER: OnceCell<(TestCluster, String)> = OnceCell::const_new();

async fn cluster() -> (TestCluster, String) {
    let cluster = TestCluster::start().await.expect("a cluster");
    let program = std::env::current_exe().expect("the test's own file");
    let template = format!("http_{}", stamp(&program).expect("its stamp"));
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
    app: App,
    router: Router,
    store: Store,
    engine: Engine,
    _directory: TempDir,
    _database: TestDatabase,
}

impl Fixture {
    async fn new(dev: bool) -> Self {
        Self::with_compiler(dev, &["false"]).await
    }

    /// The same with another program as the compiler.
    async fn with_compiler(dev: bool, compiler: &[&str]) -> Self {
        let config = HttpConfig {
            dev,
            script_bytes_max: 1_000,
            ..HttpConfig::default()
        };
        Self::with_config(config, compiler).await
    }

    /// The same with other bounds.
    async fn with_config(config: HttpConfig, compiler: &[&str]) -> Self {
        let (cluster, template) = CLUSTER.get_or_init(cluster).await;
        let database = cluster.database(template).await.expect("a database");
        let store = Store::connect(database.url(), 12).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
        let engine = engine(&store, &keys, directory.path(), compiler).await;
        let app = App::new(AppParts {
            store: store.clone(),
            engine: engine.clone(),
            clock: Arc::new(Fixed),
            chance: Arc::new(Counting(AtomicU64::new(0))),
            secret_keys: keys,
            metrics: Arc::new(|_| {}),
            tracer: None,
            config,
        });
        Self {
            router: router(app.clone()),
            app,
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
    let digest = hex(&Sha256::digest(bytes)[..]);
    let write = ScriptWrite {
        name,
        digest: &digest,
        bytes,
        world: "heddle:task/task",
        runtime: None,
        runtime_tag: None,
        exports: &["run"],
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
