//! The demo: Seattle's weather in a warehouse, a group that works on a month of it, and the scripts for that.
//!
//! What is there already is left alone, so that people may change it, and what was put in once and is gone stays away, so
//! that they may delete it: a file in the data directory names what was put in. Only the warehouse's address is set each
//! time, since it depends on the data directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use heddle_client::Client;
use heddle_scripts::{SEATTLE_WEATHER_CSV, WAREHOUSE_SQL};
use serde_json::json;
use tokio_postgres::NoTls;
use url::Url;

/// The scripts that the demo's groups use, and a few to play with.
const SCRIPTS: [&str; 10] = [
    "weather-extract",
    "weather-temperature",
    "weather-precipitation",
    "weather-report",
    "yearly-summary",
    "hello",
    "fib",
    "flaky",
    "sleep",
    "greetings",
];

/// The database that the demo's scripts read and write.
const WAREHOUSE: &str = "warehouse";

/// The groups, each after those that it follows.
const GROUPS: [(&str, &str); 3] = [
    ("seattle-weather", include_str!("../demo/seattle-weather.yaml")),
    ("yearly-summary", include_str!("../demo/yearly-summary.yaml")),
    ("hello", include_str!("../demo/hello.yaml")),
];

/// The topics.
const TOPICS: [(&str, &str); 2] = [
    ("greetings", include_str!("../demo/greetings.yaml")),
    ("greetings-now", include_str!("../demo/greetings-now.yaml")),
];

/// What was put in already, by kind and name, in a file that is written anew after each thing.
struct Known {
    file: PathBuf,
    things: BTreeSet<String>,
}

impl Known {
    fn read(data_dir: &Path) -> Result<Self> {
        let file = data_dir.join("demo.json");
        let things = match std::fs::read(&file) {
            // A file that a crash cut short costs no more than a demo group that comes back.
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        Ok(Self { file, things })
    }

    /// Whether to put a thing in: it is not there, and never was.
    fn lacks(&self, kind: &str, name: &str) -> bool {
        !self.things.contains(&format!("{kind}/{name}"))
    }

    fn add(&mut self, kind: &str, name: &str) -> Result<()> {
        if self.things.insert(format!("{kind}/{name}")) {
            let bytes = serde_json::to_vec_pretty(&self.things)?;
            std::fs::write(&self.file, bytes).with_context(|| format!("cannot write {}", self.file.display()))?;
        }
        Ok(())
    }
}

/// Puts the demo in.
pub(crate) async fn install(url: &str, database_url: &str, data_dir: &Path) -> Result<()> {
    let mut known = Known::read(data_dir)?;
    let warehouse = fill_warehouse(database_url)
        .await
        .context("the warehouse cannot be filled")?;
    let client = Client::new(url, None)?;
    for (category, description) in [("demo", "What `heddle dev` brings along")] {
        if known.lacks("category", category) && client.get_named("categories", category).await.is_err() {
            client
                .put_named("categories", category, &json!({"description": description}))
                .await?;
        }
        known.add("category", category)?;
    }
    for name in SCRIPTS {
        if known.lacks("script", name) && client.script(name).await.is_err() {
            let wasm = heddle_scripts::get(name).with_context(|| format!("script {name} is not in the binary"))?;
            client
                .put_script(name, wasm, true)
                .await
                .with_context(|| format!("script {name}"))?;
        }
        known.add("script", name)?;
    }
    let connection = json!({"url": warehouse, "categories": ["demo"]});
    if known.lacks("connection", WAREHOUSE) || client.get_named("connections", WAREHOUSE).await.is_ok() {
        client
            .put_named("connections", WAREHOUSE, &connection)
            .await
            .context("connection warehouse")?;
    }
    known.add("connection", WAREHOUSE)?;
    for (name, spec) in GROUPS {
        if known.lacks("group", name) && client.group(name).await.is_err() {
            let spec = serde_saphyr::from_str(spec).with_context(|| format!("group {name}"))?;
            client
                .put_group(name, &spec, None)
                .await
                .with_context(|| format!("group {name}"))?;
        }
        known.add("group", name)?;
    }
    for (name, spec) in TOPICS {
        if known.lacks("topic", name) && client.topic(name).await.is_err() {
            let spec = serde_saphyr::from_str(spec).with_context(|| format!("topic {name}"))?;
            client
                .put_topic(name, &spec)
                .await
                .with_context(|| format!("topic {name}"))?;
        }
        known.add("topic", name)?;
    }
    Ok(())
}

/// Makes the database and loads the CSV, unless that has been done; answers its URL.
async fn fill_warehouse(database_url: &str) -> Result<String> {
    let mut url = Url::parse(database_url).context("the database's URL")?;
    let (client, connection) = tokio_postgres::connect(database_url, NoTls).await?;
    let driver = tokio::spawn(connection);
    let exists = client
        .query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&WAREHOUSE])
        .await?;
    if exists.is_none() {
        // A role of its own: what scripts may do in the warehouse must not reach the server's files or Heddle's tables.
        client
            .batch_execute(
                "DO $$ BEGIN
                     IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'warehouse') THEN
                         CREATE ROLE warehouse LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
                     END IF;
                 END $$",
            )
            .await?;
        client
            .batch_execute("CREATE DATABASE warehouse OWNER warehouse")
            .await?;
    }
    let own: String = client
        .query_one("SELECT quote_ident(current_database())", &[])
        .await?
        .get(0);
    client
        .batch_execute(&format!("REVOKE CONNECT ON DATABASE {own} FROM PUBLIC"))
        .await?;
    client
        .batch_execute("REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC")
        .await?;
    drop(client);
    let _ = driver.await;
    url.set_path(&format!("/{WAREHOUSE}"));
    url.set_username(WAREHOUSE)
        .map_err(|()| anyhow::anyhow!("the database's URL takes no user"))?;
    let (mut client, connection) = tokio_postgres::connect(url.as_str(), NoTls).await?;
    let driver = tokio::spawn(connection);
    client.batch_execute(WAREHOUSE_SQL).await?;
    let loaded: bool = client
        .query_one("SELECT EXISTS (SELECT FROM seattle_weather)", &[])
        .await?
        .get(0);
    if !loaded {
        let transaction = client.transaction().await?;
        let sink = transaction
            .copy_in("COPY seattle_weather FROM STDIN (FORMAT csv, HEADER true)")
            .await?;
        let mut sink = std::pin::pin!(sink);
        futures::SinkExt::send(&mut sink, std::io::Cursor::new(SEATTLE_WEATHER_CSV.as_bytes())).await?;
        sink.finish().await?;
        transaction.commit().await?;
    }
    drop(client);
    let _ = driver.await;
    Ok(url.to_string())
}
