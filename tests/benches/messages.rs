//! How fast messages go in and out, each figure beside its limit measured in the same run:
//! `cargo bench -p heddle-tests --bench messages`. `HEDDLE_BENCH_MESSAGES` says how many (default 1,000,000).
//!
//! A node (`heddle serve`, release build) and a Postgres with `synchronous_commit` and fsync on share this machine with
//! the client that measures. Limits: `psql`'s COPY of the same rows into the same table, and a bare client's loop of
//! `SELECT ... LIMIT 1000` plus one checkpoint. Nothing is asserted; `docs/scale.md` keeps what was measured.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use heddle_cli::postgres::{EmbeddedPostgres, Options};
use heddle_client::{Client, NewToken};
use serde_json::{Value, json};
use tokio_postgres::NoTls;

const PROGRAM: &str = env!("CARGO_BIN_EXE_heddle-under-test");

/// The spread of `heddle topic fill`.
const SPREAD: u64 = 2_654_435_761;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn row(what: &str, figure: String, wanted: &str, limit: String) {
    println!("| {what:<58} | {figure:>20} | {wanted:>18} | {limit:<44} |");
}

/// A started program; killed when dropped.
struct Node {
    child: Child,
    url: String,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.next().expect("a line").expect("text");
        let url = line.rsplit(' ').next().expect("an address").to_owned();
        Self { child, url }
    }

    /// Resident megabytes: now, and at most so far.
    fn memory(&self) -> (f64, f64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("status");
        let field = |name: &str| -> f64 {
            let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
            line.split_whitespace()
                .nth(1)
                .expect("a number")
                .parse::<f64>()
                .expect("a number")
                / 1e3
        };
        (field("VmRSS"), field("VmHWM"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(count: u64, due: String) -> impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    stream::iter((0..count).step_by(1_000)).map(move |from| {
        let mut text = String::with_capacity(120_000);
        for number in from..count.min(from + 1_000) {
            let sender = number.wrapping_mul(SPREAD) & 0xffff_ffff;
            text.push_str(&format!(
                "{{\"sender\":{sender},\"receiver\":{},\"due\":\"{due}\",\"payload\":{{\"text\":\"Greetings!\"}}}}\n",
                sender ^ 1
            ));
        }
        Ok(Bytes::from(text))
    })
}

async fn put_topic(client: &Client, name: &str, more: Value) {
    let mut spec = json!({"script": "postbox"});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    client.put_topic(name, &spec).await.expect("a topic");
}

fn rate(count: u64, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

async fn total(client: &Client, topic: &str, field: &str) -> u64 {
    let days = client.topic_days(topic, None).await.expect("days");
    days.items.iter().filter_map(|day| day[field].as_u64()).sum()
}

async fn sent(client: &Client, topic: &str, wanted: u64) {
    while total(client, topic, "sent").await < wanted {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::main]
async fn main() {
    let count: u64 = std::env::var("HEDDLE_BENCH_MESSAGES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000_000);
    let directory = tempfile::tempdir().expect("a directory");
    let postgres = EmbeddedPostgres::start(Options::new(directory.path().join("serve")))
        .await
        .expect("Postgres");
    postgres.create_database("heddle").await.expect("a database");
    let url = postgres.url("heddle");
    let token = NewToken {
        name: "bench".into(),
        role: "admin".into(),
        ..NewToken::default()
    };
    let token = heddle_cli::node::create_token(&url, &token).await.expect("a token");
    let data = directory.path().join("node");
    let node = Node::start(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--database-url",
        &url,
        "--data-dir",
        data.to_str().expect("a path"),
    ]);
    let client = Client::new(&node.url, Some(&token)).expect("a client");
    let wasm = heddle_scripts::get("postbox").expect("the script");
    client.put_script("postbox", wasm, true).await.expect("upload");
    let (sql, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
    tokio::spawn(connection);

    println!("{count} messages");
    ingest(&client, &sql, &url, count).await;
    drain_day(&client, &sql, count).await;
    drain_instants(&client, count).await;
    small_day(&client, &sql).await;
    let (resident, most) = node.memory();
    row(
        "memory of the node after all that",
        format!("{resident:.0} MB, most {most:.0}"),
        "< 150 MB",
        String::new(),
    );
    drop(node);
    drop(sql);
    postgres.stop().await.expect("stopped");
}

async fn day_ahead(sql: &tokio_postgres::Client, days: i32) -> String {
    sql.query_one("SELECT ((now() AT TIME ZONE 'UTC')::date + $1::int4)::text", &[&days])
        .await
        .expect("a day")
        .get(0)
}

/// Ingest over HTTP beside psql's COPY of the very rows that it wrote, into the same table.
async fn ingest(client: &Client, sql: &tokio_postgres::Client, url: &str, count: u64) {
    put_topic(client, "day", json!({"concurrency": 2})).await;
    let day = day_ahead(sql, 2).await;
    let began = now();
    let answer = client
        .send_message_stream("day", lines(count, day.clone()))
        .await
        .expect("taken");
    assert_eq!(answer.accepted, count);
    let over_http = rate(count, began);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let psql = |statement: &str, input: Stdio, output: Stdio| {
        let done = Command::new("psql")
            .args([url, "-q", "-v", "ON_ERROR_STOP=1", "-c", statement])
            .stdin(input)
            .stdout(output)
            .status()
            .expect("psql");
        assert!(done.success());
    };
    let columns = "sender, receiver, slice, due_at, day, topic, bucket, id, payload";
    let other = day_ahead(sql, 3).await;
    sql.query_one("SELECT heddle.make_message_day($1::text::date)", &[&other])
        .await
        .expect("a partition");
    // The same rows in the order in which they came, on another day.
    psql(
        &format!(
            "COPY (SELECT sender, receiver, slice, due_at, '{other}'::date, topic, bucket, id, payload
                     FROM heddle.messages WHERE day = '{day}') TO STDOUT"
        ),
        Stdio::null(),
        Stdio::from(file.reopen().expect("the file")),
    );
    file.as_file().flush().expect("flushed");
    let began = now();
    psql(
        &format!("COPY heddle.messages ({columns}) FROM STDIN"),
        Stdio::from(file.reopen().expect("the file")),
        Stdio::inherit(),
    );
    let by_psql = rate(count, began);
    row(
        "ingest over HTTP, NDJSON, one stream, messages/s",
        format!("{over_http:.0}"),
        ">= 50 % of psql",
        format!("psql COPY: {by_psql:.0}; {:.0} %", 100.0 * over_http / by_psql),
    );
}

/// A day's drain beside a bare loop over the same rows.
async fn drain_day(client: &Client, sql: &tokio_postgres::Client, count: u64) {
    let day = day_ahead(sql, 2).await;
    let bare = bare_loop(sql, &day, count).await;
    sql.execute(
        "UPDATE heddle.message_slices SET due_at = now() WHERE day = $1::text::date",
        &[&day],
    )
    .await
    .expect("due");
    let began = now();
    sent(client, "day", 1).await;
    let first = began.elapsed();
    sent(client, "day", count).await;
    let drained = rate(count, began);
    row(
        "drain of a day to a no-op consumer, messages/s",
        format!("{drained:.0}"),
        ">= 60,000 or 50 %",
        format!("bare loop: {bare:.0}; {:.0} %", 100.0 * drained / bare),
    );
    row(
        "from due to the first batch recorded",
        format!("{:.0} ms", first.as_secs_f64() * 1e3),
        "",
        "with another day of the same size stored".into(),
    );
}

/// `SELECT ... LIMIT 1000` behind the last, and a checkpoint, one after the other.
async fn bare_loop(sql: &tokio_postgres::Client, day: &str, count: u64) -> f64 {
    sql.batch_execute("CREATE TABLE IF NOT EXISTS bare_progress (bucket smallint, id uuid); INSERT INTO bare_progress VALUES (-1, gen_random_uuid());
        SET enable_sort = off; SET enable_bitmapscan = off; SET enable_seqscan = off; SET plan_cache_mode = force_custom_plan")
        .await
        .expect("a table");
    let select = sql
        .prepare(
            "SELECT m.id::text, m.bucket, m.sender, m.receiver, m.payload FROM heddle.messages m
              WHERE m.day = $1::text::date AND m.topic = 1 AND (m.bucket, m.id) > ($2, $3::text::uuid)
              ORDER BY m.bucket, m.id LIMIT 1000",
        )
        .await
        .expect("prepared");
    let update = sql
        .prepare("UPDATE bare_progress SET bucket = $1, id = $2::text::uuid")
        .await
        .expect("prepared");
    let (mut bucket, mut id) = (-1i16, uuid::Uuid::nil().to_string());
    let mut seen = 0;
    let began = now();
    loop {
        let rows = sql.query(&select, &[&day, &bucket, &id]).await.expect("rows");
        let Some(last) = rows.last() else { break };
        bucket = last.get(1);
        id = last.get(0);
        seen += rows.len() as u64;
        sql.execute(&update, &[&bucket, &id]).await.expect("checkpoint");
    }
    assert_eq!(seen, count);
    rate(count, began)
}

/// Instants that are due at once: taken and sent at the same time.
async fn drain_instants(client: &Client, count: u64) {
    put_topic(
        client,
        "instants",
        json!({"granularity": "instant", "concurrency": 2, "enabled": false}),
    )
    .await;
    client
        .send_message_stream("instants", lines(count, "2013-07-01T00:00:00Z".into()))
        .await
        .expect("taken");
    put_topic(client, "instants", json!({"granularity": "instant", "concurrency": 2})).await;
    let began = now();
    sent(client, "instants", count).await;
    row(
        "drain of instants to a no-op consumer, messages/s",
        format!("{:.0}", rate(count, began)),
        ">= 60,000",
        String::new(),
    );
}

/// A day with three buckets, from due to drained.
async fn small_day(client: &Client, sql: &tokio_postgres::Client) {
    put_topic(client, "small", json!({})).await;
    let day = day_ahead(sql, 4).await;
    let messages: Vec<Value> = [1, 2, 3]
        .iter()
        .map(|sender| json!({"sender": sender, "receiver": 1, "due": day}))
        .collect();
    client.send_messages("small", &messages).await.expect("taken");
    // What a look-out finds by itself may take 200 ms; a message of instants rings at once.
    sql.execute(
        "UPDATE heddle.message_slices SET due_at = now()
          WHERE topic = (SELECT id FROM heddle.topics WHERE name = 'small')",
        &[],
    )
    .await
    .expect("due");
    put_topic(client, "bell", json!({"granularity": "instant"})).await;
    let began = now();
    client
        .send_messages(
            "bell",
            &[json!({"sender": 1, "receiver": 1, "due": "2013-07-01T00:00:00Z"})],
        )
        .await
        .expect("taken");
    sent(client, "small", 3).await;
    row(
        "a day with 3 buckets, from a look-out to drained",
        format!("{:.1} ms", began.elapsed().as_secs_f64() * 1e3),
        "< 50 ms",
        String::new(),
    );
}
