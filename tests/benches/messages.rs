//! How fast messages go in and out, each figure beside its limit measured in the same run:
//! `cargo bench -p heddle-tests --bench messages [ingest] [drain] [instants] [first] [small]`; without a name, all.
//! `HEDDLE_BENCH_MESSAGES` says how many (default 1,000,000).
//!
//! * `ingest`: over HTTP, beside `psql`'s COPY of the same rows into the same table.
//! * `drain`: of the day that `ingest` filled (which is run before it) to a script that does nothing, beside a bare
//!   client's loop of `SELECT ... LIMIT 1000` and a checkpoint.
//! * `instants`: the same for instants that are all due.
//! * `first`: from a look-out to the first message of a day, with next to nothing stored, and with a hundred other days
//!   and a large one.
//! * `small`: a day with three messages in three buckets, from a look-out to its end.
//!
//! A node (`heddle serve`, release build) and a Postgres with `synchronous_commit` and fsync on share this machine with
//! the client that measures. Nothing is asserted but that nothing is missing; `docs/scale.md` keeps what was measured.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use heddle_client::Client;
use heddle_tests::TOKEN;
use heddle_tests::bench::{Fixture, Parts, Program, median, now};
use serde_json::{Value, json};
use tokio_postgres::types::{FromSql, Type};

/// The spread of `heddle topic fill`.
const SPREAD: u64 = 2_654_435_761;

fn row(what: &str, figure: String, wanted: &str, limit: String) {
    println!("| {what:<58} | {figure:>20} | {wanted:>18} | {limit:<44} |");
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

/// Everything that the parts share.
struct Bench {
    client: Client,
    sql: tokio_postgres::Client,
    url: String,
    count: u64,
    node: Program,
}

impl Bench {
    /// How many messages of a topic were sent. Read past the node, whose time is what is measured.
    async fn sent(&self, topic: &str) -> u64 {
        let sent: i64 = self
            .sql
            .query_one(
                "SELECT coalesce(sum(o.sent), 0)::bigint FROM heddle.message_outcomes o
                  WHERE o.topic = (SELECT id FROM heddle.topics WHERE name = $1)",
                &[&topic],
            )
            .await
            .expect("counts")
            .get(0);
        sent.unsigned_abs()
    }

    async fn wait(&self, topic: &str, wanted: u64, step: Duration) {
        while self.sent(topic).await < wanted {
            tokio::time::sleep(step).await;
        }
    }

    async fn day_ahead(&self, days: i32) -> String {
        self.sql
            .query_one("SELECT ((now() AT TIME ZONE 'UTC')::date + $1::int4)::text", &[&days])
            .await
            .expect("a day")
            .get(0)
    }

    /// Makes a day of a topic due. Its look-out finds that within 200 ms, unless something rings ([`Bench::ring`]).
    async fn make_due(&self, topic: &str, day: &str) {
        let changed = self
            .sql
            .execute(
                "UPDATE heddle.message_slices SET due_at = now()
                  WHERE topic = (SELECT id FROM heddle.topics WHERE name = $1) AND day = $2::text::date",
                &[&topic, &day],
            )
            .await
            .expect("due");
        assert_eq!(changed, 1);
    }

    /// Has the node look out now: a message that is due now does.
    async fn ring(&self) {
        self.client
            .send_messages(
                "bell",
                &[json!({"sender": 1, "receiver": 1, "due": "2013-07-01T00:00:00Z"})],
            )
            .await
            .expect("taken");
    }

    async fn fill(&self, topic: &str, count: u64, due: String) {
        let answer = self
            .client
            .send_message_stream(topic, lines(count, due))
            .await
            .expect("taken");
        assert_eq!(answer.accepted, count);
    }

    fn memory(&self) {
        let (resident, most) = self.node.memory();
        row(
            "memory of the node so far",
            format!("{resident:.0} MB, most {most:.0}"),
            "< 150 MB",
            String::new(),
        );
    }
}

#[tokio::main]
async fn main() {
    let count: u64 = std::env::var("HEDDLE_BENCH_MESSAGES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000_000);
    let parts = Parts::asked();
    let fixture = Fixture::new().await;
    let node = fixture.serve();
    let client = Client::new(node.url(), Some(TOKEN)).expect("a client");
    let wasm = heddle_scripts::get("postbox").expect("the script");
    client.put_script("postbox", wasm, true).await.expect("upload");
    put_topic(&client, "bell", json!({"granularity": "instant"})).await;
    let bench = Bench {
        client,
        sql: fixture.sql().await,
        url: fixture.url().to_owned(),
        count,
        node,
    };

    println!("{count} messages");
    if parts.contain("small") {
        small(&bench).await;
    }
    if parts.contain("first") {
        first(&bench).await;
    }
    if parts.contain("ingest") || parts.contain("drain") {
        ingest(&bench).await;
        bench.memory();
    }
    if parts.contain("drain") {
        drain(&bench).await;
        bench.memory();
    }
    if parts.contain("instants") {
        instants(&bench).await;
        bench.memory();
    }
    drop(bench);
    fixture.end().await;
}

/// Ingest over HTTP beside psql's COPY of the very rows that it wrote, into the same table.
async fn ingest(bench: &Bench) {
    put_topic(&bench.client, "day", json!({})).await;
    let day = bench.day_ahead(2).await;
    let began = now();
    bench.fill("day", bench.count, day.clone()).await;
    let over_http = rate(bench.count, began);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let psql = |statement: &str, input: Stdio, output: Stdio| {
        let done = Command::new("psql")
            .args([&bench.url, "-q", "-v", "ON_ERROR_STOP=1", "-c", statement])
            .stdin(input)
            .stdout(output)
            .status()
            .expect("psql");
        assert!(done.success());
    };
    let columns = "sender, receiver, slice, due_at, day, topic, bucket, id, payload";
    let other = bench.day_ahead(3).await;
    bench
        .sql
        .query_one("SELECT heddle.make_message_day($1::text::date)", &[&other])
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
    // What was written before is on disk before the next is measured.
    bench.sql.batch_execute("CHECKPOINT").await.expect("a checkpoint");
    let began = now();
    psql(
        &format!("COPY heddle.messages ({columns}) FROM STDIN"),
        Stdio::from(file.reopen().expect("the file")),
        Stdio::inherit(),
    );
    let by_psql = rate(bench.count, began);
    row(
        "ingest over HTTP, NDJSON, one stream, messages/s",
        format!("{over_http:.0}"),
        ">= 50 % of psql",
        format!("psql COPY: {by_psql:.0}; {:.0} %", 100.0 * over_http / by_psql),
    );
    let bytes = bench
        .sql
        .query_one(
            "SELECT pg_relation_size(c.oid)::float8, pg_indexes_size(c.oid)::float8 FROM pg_class c
              WHERE c.oid = ('heddle.messages_' || to_char($1::text::date, 'YYYYMMDD'))::regclass",
            &[&day],
        )
        .await
        .expect("sizes");
    let (table, indexes): (f64, f64) = (bytes.get(0), bytes.get(1));
    let each = bench.count as f64;
    row(
        "bytes a message: row, indexes",
        format!("{:.0}, {:.0}", table / each, indexes / each),
        "",
        String::new(),
    );
}

/// A day's drain beside a bare loop over the same rows.
async fn drain(bench: &Bench) {
    let day = bench.day_ahead(2).await;
    let bare = bare_loop(bench, &day).await;
    bench.make_due("day", &day).await;
    let began = now();
    bench.ring().await;
    bench.wait("day", bench.count, Duration::from_millis(50)).await;
    let drained = rate(bench.count, began);
    row(
        "drain of a day to a no-op consumer, messages/s",
        format!("{drained:.0}"),
        ">= 60,000 or 50 %",
        format!("bare loop: {bare:.0}; {:.0} %", 100.0 * drained / bare),
    );
}

/// An id as it comes over the wire.
struct Id([u8; 16]);

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// `SELECT ... LIMIT 1000` behind the last, and a checkpoint, one after the other: prepared once, planned once, for this
/// day's partition alone.
async fn bare_loop(bench: &Bench, day: &str) -> f64 {
    let sql = &bench.sql;
    sql.batch_execute(
        "CREATE TABLE IF NOT EXISTS bare_progress (bucket smallint, id uuid);
         INSERT INTO bare_progress VALUES (-1, gen_random_uuid());
         SET enable_sort = off; SET enable_bitmapscan = off; SET enable_seqscan = off",
    )
    .await
    .expect("a table");
    let select = sql
        .prepare(&format!(
            "SELECT m.id, m.bucket, m.sender, m.receiver, m.payload FROM heddle.messages m
              WHERE m.day = '{day}' AND m.topic = (SELECT id FROM heddle.topics WHERE name = 'day')
                AND (m.bucket, m.id) > ($1, $2::text::uuid)
              ORDER BY m.bucket, m.id LIMIT 1000"
        ))
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
        let rows = sql.query(&select, &[&bucket, &id]).await.expect("rows");
        let Some(last) = rows.last() else { break };
        bucket = last.get(1);
        id = uuid::Uuid::from_bytes(last.get::<_, Id>(0).0).to_string();
        seen += rows.len() as u64;
        sql.execute(&update, &[&bucket, &id]).await.expect("checkpoint");
    }
    let rate = rate(bench.count, began);
    assert_eq!(seen, bench.count);
    sql.batch_execute("RESET enable_sort; RESET enable_bitmapscan; RESET enable_seqscan")
        .await
        .expect("as before");
    rate
}

/// Instants that are due at once.
async fn instants(bench: &Bench) {
    let spec = |enabled: bool| json!({"granularity": "instant", "concurrency": 2, "enabled": enabled});
    put_topic(&bench.client, "instants", spec(false)).await;
    bench.fill("instants", bench.count, "2013-07-01T00:00:00Z".into()).await;
    put_topic(&bench.client, "instants", spec(true)).await;
    let began = now();
    bench.wait("instants", bench.count, Duration::from_millis(50)).await;
    row(
        "drain of instants to a no-op consumer, messages/s",
        format!("{:.0}", rate(bench.count, began)),
        ">= 60,000",
        String::new(),
    );
}

/// A topic's first message, of a day of a hundred, from a look-out to its record: the median of so many days.
const FIRST_DAYS: i32 = 21;

/// How many other days there are in the end, and how many messages each has.
const OTHER_DAYS: i32 = 100;
const OTHER_MESSAGES: u64 = 1_000;

async fn first(bench: &Bench) {
    let lonely = first_of_days(bench, "early", 10).await;
    put_topic(&bench.client, "others", json!({})).await;
    for ahead in 0..OTHER_DAYS {
        let day = bench.day_ahead(100 + ahead).await;
        bench.fill("others", OTHER_MESSAGES, day).await;
    }
    put_topic(&bench.client, "large", json!({})).await;
    bench.fill("large", bench.count, bench.day_ahead(60).await).await;
    let crowded = first_of_days(bench, "late", 61).await;
    row(
        "first message of a day, from a look-out to its record, p50",
        format!("{crowded:.1} ms"),
        "as with few",
        format!("with next to nothing stored: {lonely:.1} ms"),
    );
}

async fn first_of_days(bench: &Bench, topic: &str, from: i32) -> f64 {
    put_topic(&bench.client, topic, json!({})).await;
    let mut times = Vec::new();
    for (sent, ahead) in (0..FIRST_DAYS).enumerate() {
        let day = bench.day_ahead(from + ahead).await;
        let sent = sent as u64 * 100;
        bench.fill(topic, 100, day.clone()).await;
        bench.make_due(topic, &day).await;
        let began = now();
        bench.ring().await;
        bench.wait(topic, sent + 1, Duration::from_millis(1)).await;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        bench.wait(topic, sent + 100, Duration::from_millis(5)).await;
    }
    median(times)
}

/// Days with three buckets, from a look-out to drained: the median.
async fn small(bench: &Bench) {
    put_topic(&bench.client, "small", json!({})).await;
    let mut times = Vec::new();
    for ahead in 0..FIRST_DAYS {
        let day = bench.day_ahead(10 + ahead).await;
        let messages: Vec<Value> = [1, 2, 3]
            .iter()
            .map(|sender| json!({"sender": sender, "receiver": 1, "due": day}))
            .collect();
        bench.client.send_messages("small", &messages).await.expect("taken");
        bench.make_due("small", &day).await;
        let began = now();
        bench.ring().await;
        bench
            .wait("small", (ahead as u64 + 1) * 3, Duration::from_millis(1))
            .await;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let most = times.iter().copied().fold(0.0, f64::max);
    row(
        "a day with 3 buckets, from a look-out to drained, p50",
        format!("{:.1} ms, most {most:.1}", median(times)),
        "< 50 ms",
        String::new(),
    );
}
