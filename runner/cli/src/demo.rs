//! The demo: Seattle's weather in a warehouse, a group that works on a month of it, and the scripts for that.
//!
//! What is there already is left alone, so that people may change it; only the warehouse's address is set each time,
//! since it depends on the data directory.

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

/// Puts the demo in.
pub(crate) async fn install(url: &str, database_url: &str) -> Result<()> {
    let warehouse = fill_warehouse(database_url)
        .await
        .context("the warehouse cannot be filled")?;
    let client = Client::new(url, None)?;
    for (category, description) in [("demo", "What `heddle dev` brings along")] {
        if client.get_named("categories", category).await.is_err() {
            client
                .put_named("categories", category, &json!({"description": description}))
                .await?;
        }
    }
    for name in SCRIPTS {
        if client.script(name).await.is_err() {
            let wasm = heddle_scripts::get(name).with_context(|| format!("script {name} is not in the binary"))?;
            client
                .put_script(name, wasm, true)
                .await
                .with_context(|| format!("script {name}"))?;
        }
    }
    let connection = json!({"url": warehouse, "categories": ["demo"]});
    client
        .put_named("connections", WAREHOUSE, &connection)
        .await
        .context("connection warehouse")?;
    for (name, spec) in GROUPS {
        if client.group(name).await.is_err() {
            let spec = serde_saphyr::from_str(spec).with_context(|| format!("group {name}"))?;
            client
                .put_group(name, &spec, None)
                .await
                .with_context(|| format!("group {name}"))?;
        }
    }
    for (name, spec) in TOPICS {
        if client.topic(name).await.is_err() {
            let spec = serde_saphyr::from_str(spec).with_context(|| format!("topic {name}"))?;
            client
                .put_topic(name, &spec)
                .await
                .with_context(|| format!("topic {name}"))?;
        }
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
