//! A database for each test, made from a template in which all of `heddle_scripts` have been uploaded.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use heddle_postgres::{TestCluster, TestDatabase};
use reqwest::Method;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio_postgres::NoTls;

use crate::node::{Node, NodeOptions};
use crate::process::program;

/// The token of an admin, in every database.
pub const TOKEN: &str = "hdl_the-admin-of-the-end-to-end-tests";

/// Set to anything, all tests of a process run on a server with Debian's settings.
const STOCK: &str = "TESTS_ON_STOCK_POSTGRES";

static CLUSTER: OnceCell<(TestCluster, String)> = OnceCell::const_new();
static STOCK_CLUSTER: OnceCell<(TestCluster, String)> = OnceCell::const_new();

/// What one test has to itself.
#[derive(Debug)]
pub struct World {
    // In this order they are dropped: the directory may hold what the database's processes still write.
    database: TestDatabase,
    directory: TempDir,
}

impl World {
    /// A migrated database with all scripts in it.
    pub async fn new() -> Self {
        let (cluster, template) = CLUSTER.get_or_init(|| cluster(std::env::var_os(STOCK).is_some())).await;
        Self::of(cluster, template).await
    }

    /// The same on a server with the settings that Debian ships.
    pub async fn stock() -> Self {
        let (cluster, template) = STOCK_CLUSTER.get_or_init(|| cluster(true)).await;
        Self::of(cluster, template).await
    }

    async fn of(cluster: &TestCluster, template: &str) -> Self {
        let database = cluster.database(template).await.expect("a database");
        // Of a template that is some days old, today's partitions are missing; where no node runs, nobody makes them.
        let sql = connect(database.url()).await;
        sql.batch_execute(
            "SELECT heddle.make_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, 9);
             SELECT heddle.make_dispatch_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, 9)",
        )
        .await
        .expect("partitions");
        Self {
            database,
            directory: directory(),
        }
    }

    /// What most tests begin with: a world, and a node of it. The database goes with the world, so a test keeps it until its end.
    pub async fn with_node() -> (Self, Node) {
        let world = Self::new().await;
        let node = world.node().await;
        (world, node)
    }

    /// The same with one run, of the group `old`, that was made and has succeeded at these times (SQL expressions). Nobody
    /// removes it: in a database that is some minutes old, that would be due at once.
    pub async fn with_old_run(made: &str, ended: &str) -> (Self, Node) {
        let world = Self::new().await;
        let sql = world.sql().await;
        sql.batch_execute("UPDATE heddle.upkeep SET due_at = 'infinity'")
            .await
            .expect("retention can be put off");
        let node = world.node().await;
        node.put_group("old", json!({"tasks": {"a": {"script": "hello"}}}))
            .await;
        let run = node.run("old", json!({})).await;
        let run = run["id"].as_str().expect("a run has an id");
        // A run lies where its id says.
        let aged = format!(
            "UPDATE heddle.runs_done
                SET id = heddle.uuid_floor({made}), created_at = {made}, started_at = {made}, finished_at = {ended}
              WHERE id = $1::text::uuid"
        );
        let count = sql.execute(&aged, &[&run]).await;
        assert_eq!(count.expect("the run can be made old"), 1);
        (world, node)
    }

    /// A node of this world, with a data directory of its own.
    pub async fn node(&self) -> Node {
        NodeOptions::new(self.url()).start().await
    }

    /// Several nodes that share the database.
    pub async fn nodes(&self, count: usize) -> Vec<Node> {
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            nodes.push(self.node().await);
        }
        nodes
    }

    /// How nodes of this world are started, to be changed.
    pub fn options(&self) -> NodeOptions {
        NodeOptions::new(self.url())
    }

    pub fn url(&self) -> &str {
        self.database.url()
    }

    pub fn database(&self) -> &str {
        self.database.name()
    }

    /// A directory that goes with the test.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// A connection to the database.
    pub async fn sql(&self) -> tokio_postgres::Client {
        connect(self.url()).await
    }

    /// The time by the clock of the database, which schedules follow.
    pub async fn now(&self) -> DateTime<Utc> {
        let row = self.sql().await.query_one("SELECT clock_timestamp()", &[]).await;
        row.expect("the time").get(0)
    }

    /// A connection to another database of the same cluster.
    pub async fn sql_as_owner(&self) -> tokio_postgres::Client {
        let (cluster, _) = CLUSTER.get().expect("there is a world, so there is a cluster");
        connect(&cluster.postgres().url("postgres")).await
    }
}

pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("heddle-test-")
        .tempdir()
        .expect("a directory")
}

/// Starts the cluster of this process, with the template in it.
async fn cluster(stock: bool) -> (TestCluster, String) {
    let cluster = match stock {
        true => TestCluster::start_stock().await,
        false => TestCluster::start().await,
    };
    let cluster = cluster.expect("a cluster");
    let template = format!("e2e_{}", stamp());
    cluster
        .template(&template, async |url| fill(&url).await)
        .await
        .expect("a template");
    (cluster, template)
}

/// What the template and the artefacts depend on: the program holds the migrations and the scripts.
fn stamp() -> String {
    heddle_postgres::stamp(&program()).expect("the program")
}

/// Where compiled scripts of the template are kept for the nodes of tests.
pub(crate) fn artefacts() -> PathBuf {
    std::env::temp_dir().join(format!("heddle-tests-artefacts-{}", stamp()))
}

/// Gives a database the schema, and [`TOKEN`], unless it has them; a connection to it.
pub(crate) async fn migrate(url: &str) -> Result<tokio_postgres::Client> {
    // The token has to be there before the first request, and the table before the token.
    heddle_cli::node::migrate(url).await?;
    let client = connect(url).await;
    let hash = Sha256::digest(TOKEN).to_vec();
    client
        .execute(
            "INSERT INTO heddle.tokens (id, name, hash, role, created_at)
             VALUES (gen_random_uuid(), 'e2e', $1, 'admin', now()) ON CONFLICT DO NOTHING",
            &[&hash],
        )
        .await
        .context("the token")?;
    Ok(client)
}

/// Has a node take all scripts; keeps what it compiled.
async fn fill(url: &str) -> Result<()> {
    let data_dir = directory();
    let client = migrate(url).await?;
    let mut node = NodeOptions::new(url).data_dir(data_dir.path()).start().await;
    for name in heddle_scripts::names() {
        let wasm = heddle_scripts::get(name).expect("it is embedded");
        node.put_bytes(&format!("/v1/scripts/{name}"), "application/wasm", wasm)
            .await
            .expect_status(201);
    }
    // Refused, but only after the interpreter of texts was compiled; nothing of it stays in the database.
    node.put_bytes("/v1/scripts/nothing", "text/javascript", "export const run = 1;")
        .await
        .expect_status(422);
    // CPython takes a minute where it is compiled without optimisation, on a machine that compiles other things as well.
    let python = node
        .request(Method::PUT, "/v1/scripts/nothing")
        .timeout(Duration::from_secs(600));
    let python = python.header("content-type", "text/x-python").body("run = 1");
    node.send(python).await.expect_status(422);
    node.terminate();
    anyhow::ensure!(node.end().await.success(), "the node that fills the template fails");
    client
        .execute("DELETE FROM heddle.nodes", &[])
        .await
        .context("the node that has gone")?;
    let kept = artefacts();
    if !kept.exists() {
        let made = kept.with_extension(format!("{}", std::process::id()));
        crate::node::link_tree(&data_dir.path().join("artefacts"), &made)?;
        // Of two processes that do this at once one is later; what it has is the same.
        if std::fs::rename(&made, &kept).is_err() {
            std::fs::remove_dir_all(&made)?;
        }
    }
    Ok(())
}
