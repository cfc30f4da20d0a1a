//! The demo: Seattle's weather in a warehouse, a group that works on a month of it, and the scripts for that; and groups of
//! other shapes with schedules in the present: a map, one that fails now and then, a queue, an audience; and one whose
//! script is text.
//!
//! All this is there before the node is ready, except the script that is text and its group: for them, a node that never
//! had a text first compiles the interpreter, which takes longer than the start. Afterwards, the groups of the present get
//! the last 24 hours of their past by ordinary backfills: so a visitor soon finds a day full of runs. As long as the node
//! runs, the demo also works on its queue, and answers for two of its users.
//!
//! Existing objects are not changed, so that people may change them; objects that were added once and are gone are not
//! added again, so that people may delete them: a file in the data directory lists what was added. Only the warehouse's
//! address is set each time, since it depends on the data directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{SecondsFormat, TimeDelta};
use heddle_client::{BackfillRequest, Claim, Client, Completion, CompletionStatus, MembersSpec, Outcome, Worker};
use heddle_domain::{Chain, Time};
use heddle_scripts::{SEATTLE_WEATHER_CSV, WAREHOUSE_SQL};
use serde_json::json;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;
use url::Url;

/// The scripts that the demo's groups use, and a few to play with.
const SCRIPTS: [&str; 11] = [
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
    "sum",
];

/// The database that the demo's scripts read and write.
const WAREHOUSE: &str = "warehouse";

/// The groups, each after its upstream groups.
const GROUPS: [(&str, &str); 3] = [
    ("seattle-weather", include_str!("../demo/seattle-weather.yaml")),
    ("yearly-summary", include_str!("../demo/yearly-summary.yaml")),
    ("hello", include_str!("../demo/hello.yaml")),
];

/// The groups with schedules in the present, which also get runs for the last day.
const LIVELY: [(&str, &str); 5] = [
    ("weather-hourly", include_str!("../demo/weather-hourly.yaml")),
    ("price-import", include_str!("../demo/price-import.yaml")),
    ("stations", include_str!("../demo/stations.yaml")),
    (PRINTS, include_str!("../demo/photo-prints.yaml")),
    (SURVEY, include_str!("../demo/reader-survey.yaml")),
];

/// The group whose tasks a worker executes, and its queue.
const PRINTS: &str = "photo-prints";

/// The group that asks readers, its audience, and the users for whom the demo answers.
const SURVEY: &str = "reader-survey";
const READERS: &str = "gid_readers";
const ALL_READERS: [&str; 3] = ["reader-1", "reader-2", "reader-3"];
const ANSWERING: [&str; 2] = ["reader-1", "reader-2"];

/// The group whose script is text, in TypeScript, and that text. Both have this name.
const TEXT: &str = "what-to-wear";
const TEXT_SOURCE: &str = include_str!("../demo/what-to-wear.ts");
const TEXT_SPEC: &str = include_str!("../demo/what-to-wear.yaml");

/// For how far back the demo creates runs.
const PAST: TimeDelta = TimeDelta::hours(24);

/// The maximum of active backfilled runs, per group: a visitor's own runs must not wait for them.
const PAST_ACTIVE_MAX: u32 = 2;

/// How long the worker takes for a print, and a user for an answer.
const PRINT_FOR: Duration = Duration::from_millis(300);
const ANSWER_AFTER: Duration = Duration::from_millis(700);

/// How long a poll of a user waits, and after how long a failed one is repeated.
const POLL_FOR: Duration = Duration::from_secs(50);
const POLL_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The topics of the demo: name and spec.
const TOPICS: [(&str, &str); 2] = [
    ("greetings", include_str!("../demo/greetings.yaml")),
    ("greetings-now", include_str!("../demo/greetings-now.yaml")),
];

/// What was created already, by kind and name. The file is written again after each object.
struct Known {
    file: PathBuf,
    things: BTreeSet<String>,
}

impl Known {
    fn read(data_dir: &Path) -> Result<Self> {
        let file = data_dir.join("demo.json");
        let things = match std::fs::read(&file) {
            // If a crash has cut the file, a deleted demo group may come back, and nothing worse.
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        Ok(Self { file, things })
    }

    /// Whether to create an object: it does not exist, and was never created by the demo.
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

/// Creates the objects of the demo. One that was created before and that somebody has deleted stays deleted.
pub(crate) async fn install(url: &str, database_url: &str, data_dir: &Path) -> Result<()> {
    let mut known = Known::read(data_dir)?;
    let client = Client::new(url, None)?;
    let warehouse = async {
        let filled = fill_warehouse(database_url).await;
        filled.context("cannot fill the demo database `warehouse`")
    };
    let (warehouse, ()) = tokio::try_join!(warehouse, put_scripts(&client, &mut known))?;
    let connection = json!({"url": warehouse, "categories": ["demo"]});
    if known.lacks("connection", WAREHOUSE) || client.get_named("connections", WAREHOUSE).await.is_ok() {
        client
            .put_named("connections", WAREHOUSE, &connection)
            .await
            .context("connection warehouse")?;
    }
    known.add("connection", WAREHOUSE)?;
    if known.lacks("audience", READERS) {
        let members = ALL_READERS.map(str::to_owned).to_vec();
        client.put_members(READERS, &MembersSpec { members }).await?;
    }
    known.add("audience", READERS)?;
    for (name, spec) in GROUPS.into_iter().chain(LIVELY) {
        put_group(&client, &mut known, name, spec).await?;
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

/// The scripts, and the category of everything.
async fn put_scripts(client: &Client, known: &mut Known) -> Result<()> {
    let (category, description) = ("demo", "The demo of `heddle dev`");
    if known.lacks("category", category) && client.get_named("categories", category).await.is_err() {
        client
            .put_named("categories", category, &json!({"description": description}))
            .await?;
    }
    known.add("category", category)?;
    if SCRIPTS.iter().any(|name| known.lacks("script", name)) {
        tracing::info!("compiling the scripts of the demo; this takes a while the first time");
    }
    for name in SCRIPTS {
        put_script(client, known, name).await?;
    }
    Ok(())
}

/// Gives the groups of the present their past runs, and then does the work of people and workers until the node stops.
/// Nothing waits for it, and its errors are only logged.
pub(crate) async fn live(url: String, data_dir: PathBuf, now: Time, shutdown: CancellationToken) {
    let work = async {
        let client = Client::new(&url, None)?;
        let mut known = Known::read(&data_dir)?;
        make_past(&client, &mut known, now).await?;
        Ok::<_, anyhow::Error>((client, known))
    };
    let warn = |error: &anyhow::Error| {
        tracing::warn!(error = format!("{error:#}"), "cannot create a part of the demo");
    };
    let done = async {
        match work.await {
            Ok((client, mut known)) => {
                let answers = ANSWERING.map(|uid| answer(client.clone(), uid));
                let text = async {
                    if let Err(error) = put_text(&client, &mut known).await {
                        warn(&error);
                    }
                };
                tokio::join!(print(client.clone()), futures::future::join_all(answers), text);
            }
            Err(error) => warn(&error),
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = done => {}
    }
}

/// The script that is text, and its group. They come last, because a node compiles the interpreter for its first such
/// script.
async fn put_text(client: &Client, known: &mut Known) -> Result<()> {
    if known.lacks("script", TEXT) && client.script(TEXT).await.is_err() {
        client
            .put_script_as(TEXT, "text/typescript", TEXT_SOURCE, true)
            .await
            .with_context(|| format!("script {TEXT}"))?;
    }
    known.add("script", TEXT)?;
    put_group(client, known, TEXT, TEXT_SPEC).await
}

/// Backfills the last day of each group, once. So deleted runs do not come back, nor does a night without the node get
/// runs.
async fn make_past(client: &Client, known: &mut Known, now: Time) -> Result<()> {
    let text = |at: Time| at.to_rfc3339_opts(SecondsFormat::Secs, true);
    for (name, _) in LIVELY {
        if known.lacks("past", name) && client.group(name).await.is_ok() {
            // Backwards, so that the overview shows the newest hours first.
            let request: BackfillRequest = serde_json::from_value(json!({
                "from": text(now - PAST), "to": text(now), "order": "desc", "max_active": PAST_ACTIVE_MAX,
            }))?;
            let made = client.backfill_group(name, &request).await;
            made.with_context(|| format!("the past of group {name}"))?;
        }
        known.add("past", name)?;
    }
    Ok(())
}

/// Works on the queue of the demo, while its group is there.
async fn print(client: Client) {
    if client.group(PRINTS).await.is_err() {
        return;
    }
    let worker = Worker::new(client, PRINTS, "demo-printer").concurrency(2);
    let work = async |claim: Claim| -> Outcome {
        tokio::time::sleep(PRINT_FOR).await;
        Outcome::Done(json!({"printed": claim.params["copies"], "of": claim.params["what"]}))
    };
    // It ends with its process. When the leases have expired, another worker gets what it had claimed.
    if let Err(error) = worker.run(std::future::pending(), work).await {
        tracing::warn!(error = %Chain(&error), "the worker of the demo has ended");
    }
}

/// Polls for a user, and completes the assignments, while the group that asks exists.
async fn answer(client: Client, uid: &str) {
    if client.group(SURVEY).await.is_err() {
        return;
    }
    loop {
        let done = async {
            if let Some(assignment) = client.next_assignment(uid, POLL_FOR).await? {
                tokio::time::sleep(ANSWER_AFTER).await;
                let completion = Completion {
                    assignment_id: assignment.assignment_id.to_string(),
                    status: CompletionStatus::Completed,
                    result: json!({"answer": if uid == "reader-1" { "sunny" } else { "it rained" }}),
                };
                client.complete_assignment(uid, &completion).await?;
            }
            Ok::<_, heddle_client::Error>(())
        };
        if done.await.is_err() {
            tokio::time::sleep(POLL_AGAIN_AFTER).await;
        }
    }
}

async fn put_script(client: &Client, known: &mut Known, name: &str) -> Result<()> {
    if known.lacks("script", name) && client.script(name).await.is_err() {
        let wasm = heddle_scripts::get(name).with_context(|| format!("script {name} is not in the binary"))?;
        client
            .put_script(name, wasm, true)
            .await
            .with_context(|| format!("script {name}"))?;
    }
    known.add("script", name)
}

async fn put_group(client: &Client, known: &mut Known, name: &str, spec: &str) -> Result<()> {
    if known.lacks("group", name) && client.group(name).await.is_err() {
        let spec = serde_saphyr::from_str(spec).with_context(|| format!("group {name}"))?;
        client
            .put_group(name, &spec, None)
            .await
            .with_context(|| format!("group {name}"))?;
    }
    known.add("group", name)
}

/// Creates the database and loads the CSV, unless that has been done. Returns its URL.
async fn fill_warehouse(database_url: &str) -> Result<String> {
    let mut url = Url::parse(database_url).context("the database's URL")?;
    let (client, connection) = tokio_postgres::connect(database_url, NoTls).await?;
    let driver = tokio::spawn(connection);
    let exists = client
        .query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&WAREHOUSE])
        .await?;
    if exists.is_none() {
        // The warehouse has its own role, so that scripts cannot reach the server's files or Heddle's tables through
        // it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests build the program with all scripts. Only this test notices that a user's program lacks one.
    #[test]
    fn the_program_carries_every_script_of_the_demo() {
        let groups = GROUPS.iter().chain(&LIVELY);
        let specs = groups.map(|(_, spec)| *spec).chain(TOPICS.map(|(_, spec)| spec));
        let named = specs
            .flat_map(str::lines)
            .filter_map(|line| line.split_once("script: "))
            .map(|(_, rest)| rest.split([',', ' ']).next().expect("a name"));
        let mut count = 0;
        for name in SCRIPTS.into_iter().chain(named) {
            assert!(heddle_scripts::is_carried(name), "{name}");
            count += 1;
        }
        assert!(count > SCRIPTS.len(), "the specs name scripts");
    }
}
