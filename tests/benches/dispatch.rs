//! The speed of pull dispatch, each figure next to its limit in the same run: `cargo bench -p heddle-tests --bench
//! dispatch`.
//!
//! A node (`heddle serve`, release build), a Postgres with `synchronous_commit` and fsync, and the client that measures
//! share this machine. The client speaks HTTP over plain sockets: it takes processor time from what it measures, and a
//! full client library takes several times as much. An argument chooses what is measured: `polls`, `hot`, `queue`,
//! `growth`; without one it is all of these. Nothing is asserted; `docs/benchmarks.md` keeps what was measured.

#![allow(clippy::too_many_lines, reason = "a benchmark tells its story from begin to end")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use heddle_tests::TOKEN;
use heddle_tests::bench::{Fixture, Parts, Program, now, program};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Connections that poll at once.
const POLLERS: usize = 256;
/// Users who are polled for in turn.
const USERS: usize = 10_000;
/// Offers of each of the two user groups that all of them are in.
const OFFERS_PER_GROUP: usize = 100;
/// Stock of the hot occurrence, and how many users more than that ask for it.
const HOT_STOCK: usize = 100_000;
const HOT_TOO_MANY: usize = 1_000;
/// How long polls are counted.
const MEASURED: Duration = Duration::from_secs(5);
/// Task runs that wait in a queue, and how many one request claims or completes.
const QUEUED: usize = 100_000;
const QUEUE_BATCH: usize = 100;
/// Runs per submission, and items per mapped task.
const SUBMITTED: usize = 5_000;
const ITEMS: usize = 10_000;

fn row(what: &str, figure: String, wanted: &str, limit: String) {
    println!("| {what:<66} | {figure:>22} | {wanted:>16} | {limit:<50} |");
}

/// A connection that is kept.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    head: String,
}

impl Connection {
    async fn open(address: &str, token: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("nodelay");
        Self {
            stream,
            buffer: Vec::with_capacity(64 * 1024),
            head: format!(" HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n"),
        }
    }

    /// Sends a request; the status and the body.
    async fn send(&mut self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let request = format!(
            "{method} {path}{}{kind}Content-Length: {}\r\n\r\n{body}",
            self.head,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.expect("sent");
        self.buffer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await.expect("an answer");
            assert!(read > 0, "the node hung up");
            let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") else {
                continue;
            };
            let head = std::str::from_utf8(&self.buffer[..end]).expect("a head");
            let status: u16 = head[9..12].parse().expect("a status");
            let length: usize = head
                .lines()
                .find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().parse().expect("a length"))
                })
                .unwrap_or(0);
            while self.buffer.len() < end + 4 + length {
                let read = self.stream.read_buf(&mut self.buffer).await.expect("an answer");
                assert!(read > 0, "the node hung up");
            }
            return (status, self.buffer[end + 4..].to_vec());
        }
    }

    /// Sends a request that has to succeed; its answer.
    async fn made(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send(method, path, &body.to_string()).await;
        let said = String::from_utf8_lossy(&answer);
        assert!(status < 300, "{method} {path}: {status} {said}");
        serde_json::from_slice(&answer).unwrap_or_default()
    }
}

/// A node, its database, and who asks.
#[derive(Clone)]
struct Bench {
    address: Arc<str>,
    token: Arc<str>,
    database: Arc<str>,
}

impl Bench {
    async fn connection(&self) -> Connection {
        Connection::open(&self.address, &self.token).await
    }

    async fn sql(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.database, NoTls).await.expect("Postgres");
        tokio::spawn(connection);
        client
    }

    async fn members(&self, group: &str, prefix: &str, count: usize) {
        const PIECE: usize = 50_000;
        let mut connection = self.connection().await;
        for from in (0..count).step_by(PIECE) {
            let users: Vec<String> = (from..(from + PIECE).min(count))
                .map(|user| format!("{prefix}{user}"))
                .collect();
            let path = format!("/v1/audiences/{group}/members");
            connection.made("PATCH", &path, &json!({"add": users})).await;
        }
    }
}

fn main() {
    let parts = Parts::asked();
    println!(
        "| {:<66} | {:>22} | {:>16} | {:<50} |",
        "what", "measured", "wanted", "limit in the same run"
    );
    println!("|{:-<68}|{:-<24}|{:-<18}|{:-<52}|", "", "", "", "");
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let fixture = Fixture::new().await;
        let node = fixture.serve();
        let bench = Bench {
            address: node.address().into(),
            token: TOKEN.into(),
            database: fixture.url().into(),
        };
        if parts.contain("queue") {
            queue(&bench).await;
        }
        if parts.contain("polls") {
            empty_polls(&bench).await;
        }
        if parts.contain("hot") {
            hot(&bench).await;
        }
        if parts.contain("growth") {
            growth(&bench).await;
        }
        drop(node);
        fixture.end().await;
    });
}

// Empty polls ---------------------------------------------------------------------------------------------------------

/// Polls for users in turn, by all pollers; polls a second, and how many were not 204.
async fn polls(address: &str, token: &str, measured: Duration) -> (f64, u64) {
    let began = now();
    let stop = began + measured;
    let (count, other) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..POLLERS)
        .map(|poller| {
            let (count, other) = (count.clone(), other.clone());
            let (address, token) = (address.to_owned(), token.to_owned());
            tokio::spawn(async move {
                let mut connection = Connection::open(&address, &token).await;
                let mut user = poller;
                while now() < stop {
                    let (status, _) = connection.send("POST", &format!("/v1/dispatch/u{user}/next"), "").await;
                    count.fetch_add(1, Ordering::Relaxed);
                    other.fetch_add(u64::from(status != 204), Ordering::Relaxed);
                    user = (user + POLLERS) % USERS;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a poller");
    }
    let rate = count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    (rate, other.load(Ordering::Relaxed))
}

async fn empty_polls(bench: &Bench) {
    let mut connection = bench.connection().await;
    for group in ["gid_a", "gid_b"] {
        bench.members(group, "u", USERS).await;
        for offer in 0..OFFERS_PER_GROUP {
            let body = json!({"audience": group, "anchor": "2100-01-01T00:00:00Z", "every": "5m"});
            connection
                .made("PUT", &format!("/v1/offers/{group}-{offer}"), &body)
                .await;
        }
    }
    let bare = bare_handler();
    for round in 1..=3 {
        let (limit, _) = polls(bare.address(), "none", MEASURED).await;
        let (rate, other) = polls(&bench.address, &bench.token, MEASURED).await;
        assert_eq!(other, 0, "polls that were not empty");
        row(
            &format!("empty polls, 200 offers for the user's groups, round {round}"),
            format!("{rate:.0}/s, {:.0} %", 100.0 * rate / limit),
            ">= 70 %",
            format!("{limit:.0}/s: a bare axum handler that answers 204"),
        );
    }
}

/// The program of `runner/http/examples/bare_handler.rs`, built like the node: made now unless it is there.
fn bare_handler() -> Program {
    let program = program().with_file_name("examples").join("bare_handler");
    if !program.exists() {
        let example = [
            "build",
            "--release",
            "-q",
            "-p",
            "heddle-http",
            "--example",
            "bare_handler",
        ];
        let built = Command::new(env!("CARGO")).args(example).status();
        assert!(built.expect("cargo").success(), "the bare handler cannot be built");
    }
    Program::start(&mut Command::new(program))
}

// One hot occurrence --------------------------------------------------------------------------------------------------

async fn hot(bench: &Bench) {
    bench.members("gid_hot", "h", HOT_STOCK + HOT_TOO_MANY).await;
    let offer = json!({"audience": "gid_hot", "dispatch_times": HOT_STOCK, "params": {"n": 1}});
    let mut connection = bench.connection().await;
    connection.made("PUT", "/v1/offers/hot", &offer).await;
    let (user, given) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let began = now();
    let tasks: Vec<_> = (0..POLLERS)
        .map(|_| {
            let (user, given, bench) = (user.clone(), given.clone(), bench.clone());
            tokio::spawn(async move {
                let mut connection = bench.connection().await;
                loop {
                    let user = user.fetch_add(1, Ordering::Relaxed);
                    if user >= HOT_STOCK + HOT_TOO_MANY {
                        return;
                    }
                    let (status, answer) = connection.send("POST", &format!("/v1/dispatch/h{user}/next"), "").await;
                    if status != 200 {
                        assert_eq!(status, 204, "{}", String::from_utf8_lossy(&answer));
                        continue;
                    }
                    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
                    let done = json!({"assignment_id": answer["assignment_id"], "status": "completed",
                                      "result": {"ok": true}});
                    connection
                        .made("POST", &format!("/v1/dispatch/h{user}/complete"), &done)
                        .await;
                    given.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a poller");
    }
    let given = given.load(Ordering::Relaxed);
    assert_eq!(given, HOT_STOCK, "stock that was given");
    row(
        &format!("one occurrence, stock {HOT_STOCK}, {POLLERS} pollers, given and completed"),
        format!("{:.0}/s", given as f64 / began.elapsed().as_secs_f64()),
        ">= 5,000/s",
        String::new(),
    );
}

// Queues --------------------------------------------------------------------------------------------------------------

/// A worker's loop: claims a batch, completes it, until nothing is left; how many it did.
async fn pull(bench: Bench, queue: &'static str, worker: usize) -> usize {
    let mut connection = bench.connection().await;
    let ask = json!({"worker": format!("w{worker}"), "max": QUEUE_BATCH, "lease": "60s"});
    let mut done = 0;
    loop {
        let claims = connection
            .made("POST", &format!("/v1/queues/{queue}/claims"), &ask)
            .await;
        let Some(items) = claims["items"].as_array().filter(|items| !items.is_empty()) else {
            return done;
        };
        let items: Vec<Value> = items
            .iter()
            .map(|claim| json!({"id": claim["id"], "token": claim["token"], "output": {"ok": true}}))
            .collect();
        let answers = connection
            .made("POST", "/v1/claims/complete", &json!({"items": items}))
            .await;
        let answers = answers["items"].as_array().expect("answers");
        assert!(answers.iter().all(|answer| answer["status"] == 200), "{answers:?}");
        done += answers.len();
    }
}

async fn depth(connection: &mut Connection, queue: &str) -> usize {
    let (status, answer) = connection.send("GET", &format!("/v1/queues/{queue}"), "").await;
    let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    if status == 200 {
        answer["depth"].as_u64().unwrap_or(0) as usize
    } else {
        0
    }
}

async fn queue(bench: &Bench) {
    let mut connection = bench.connection().await;
    for queue in ["q", "bare"] {
        let one = json!({"tasks": {"t": {"queue": queue, "params": {"n": 1}}}});
        connection
            .made("PUT", &format!("/v1/groups/pulled-{queue}"), &one)
            .await;
    }
    let map = json!({"tasks": {"t": {"queue": "m", "shards": ITEMS}}});
    connection.made("PUT", "/v1/groups/pulled-map", &map).await;
    for loops in [1, 2, 4] {
        let limit = bare_queue(bench, loops).await;
        submit(bench, "q").await;
        let what = format!("a run of one task each, claimed and completed, worker with {loops} loops");
        drain(bench, "q", loops, &what, &limit).await;
    }
    connection = bench.connection().await;
    for _ in 0..QUEUED / ITEMS {
        connection.made("POST", "/v1/groups/pulled-map/runs", &json!({})).await;
    }
    while depth(&mut connection, "m").await < QUEUED {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let what = format!("items of tasks mapped {ITEMS} times, worker with 4 loops");
    drain(bench, "m", 4, &what, "").await;
}

/// Puts runs of one task into a queue.
async fn submit(bench: &Bench, queue: &str) {
    // A connection that is idle for long is closed.
    let mut connection = bench.connection().await;
    let runs = json!({"runs": vec![json!({}); SUBMITTED]});
    for _ in 0..QUEUED / SUBMITTED {
        let path = format!("/v1/groups/pulled-{queue}/runs/batch");
        connection.made("POST", &path, &runs).await;
    }
}

async fn drain(bench: &Bench, queue: &'static str, loops: usize, what: &str, limit: &str) {
    let mut connection = bench.connection().await;
    let waiting = depth(&mut connection, queue).await;
    let began = now();
    let pulling: Vec<_> = (0..loops)
        .map(|worker| tokio::spawn(pull(bench.clone(), queue, worker)))
        .collect();
    let mut done = 0;
    for one in pulling {
        done += one.await.expect("a worker");
    }
    let took = began.elapsed().as_secs_f64();
    assert_eq!(done, waiting, "what was claimed and completed");
    row(
        what,
        format!("{:.0}/s", done as f64 / took),
        ">= 10,000/s",
        limit.to_owned(),
    );
}

/// The limit: the statements of claims and ends for as many task runs, each connection waiting for its answers, and
/// nothing else.
async fn bare_queue(bench: &Bench, connections: usize) -> String {
    submit(bench, "bare").await;
    let began = now();
    let pulling: Vec<_> = (0..connections)
        .map(|worker| tokio::spawn(pull_bare(bench.clone(), worker)))
        .collect();
    let mut done = 0;
    for one in pulling {
        done += one.await.expect("a client");
    }
    let rate = done as f64 / began.elapsed().as_secs_f64();
    format!("{rate:.0}/s: the same SQL from {connections} bare clients")
}

async fn pull_bare(bench: Bench, worker: usize) -> usize {
    let sql = bench.sql().await;
    sql.batch_execute(&format!(
        "SET search_path = public; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
         PREPARE claim (text, text[], bigint, uuid[], bigint[], text, bigint, boolean, bigint) AS {};
         PREPARE lock AS {};
         PREPARE finish AS {}",
        include_str!("../../runner/store/src/sql/queue_claim.sql"),
        include_str!("../../runner/store/src/sql/queue_lock_claims.sql"),
        heddle_tests::checked_statement("finish_runs"),
    ))
    .await
    .expect("the statements");
    let mut done = 0;
    loop {
        let numbers = (done..done + QUEUE_BATCH).map(|number| (worker + 1) * 1_000_000_000 + number);
        let ids: Vec<String> = numbers
            .clone()
            .map(|number| format!("00000000-0000-7000-8000-{number:012x}"))
            .collect();
        let leases: Vec<String> = numbers.map(|number| format!("-{number}")).collect();
        let claimed = sql
            .simple_query(&format!(
                "EXECUTE claim ('bare', '{{}}', {QUEUE_BATCH}, '{{{}}}', '{{{}}}', 'w{worker}', 60000, false, 4194304)",
                ids.join(","),
                leases.join(",")
            ))
            .await
            .expect("claims");
        let mut columns: [Vec<&str>; 4] = Default::default();
        for message in &claimed {
            if let SimpleQueryMessage::Row(row) = message {
                for (column, name) in columns.iter_mut().zip(["run!", "attempt!", "lease!", "id!"]) {
                    column.push(row.get(name).expect("a value"));
                }
            }
        }
        let count = columns[0].len();
        if count == 0 {
            return done;
        }
        let [runs, attempts, leases, claims] = columns.map(|column| column.join(","));
        let all = |value: &str| format!("array_fill({value}, ARRAY[{count}])");
        // One transaction, since they are sent together.
        sql.simple_query(&format!(
            "EXECUTE lock ('{{{runs}}}', {task}, {item}, '{{{attempts}}}', '{{{leases}}}', '{{{claims}}}', false);
             INSERT INTO heddle.attempts (run, task, item, attempt, state, skipped, started_at, finished_at, output, worker)
             SELECT run, 0, -1, 1, 1, false, now(), now(), 'true', 'w{worker}' FROM UNNEST('{{{runs}}}'::uuid[]) AS run;
             EXECUTE finish ('{{{runs}}}', {succeeded}, {progress}, {none}, now(), {not}, {not_skipped}, {not})",
            task = all("0::smallint"),
            item = all("-1"),
            succeeded = all("3::smallint"),
            progress = all(r"'\x00'::bytea"),
            none = all("NULL::text"),
            not = all("false"),
            not_skipped = all("NULL::smallint"),
        ))
        .await
        .expect("ends");
        done += count;
    }
}

// Growth --------------------------------------------------------------------------------------------------------------

/// The statements of a poll that gives something, with the arguments of one user.
const STATEMENTS: [(&str, &str, &str); 4] = [
    (
        "user_facts",
        include_str!("../../runner/store/src/sql/user_facts.sql"),
        "ARRAY['g5'], now() - interval '12 hours', heddle.uuid_floor(now() - interval '12 hours'),
         heddle.uuid_floor(now() + interval '1 hour')",
    ),
    (
        "hold_users",
        include_str!("../../runner/store/src/sql/hold_users.sql"),
        "ARRAY['g5'], ARRAY['01999999-0000-7000-8000-000000000001'::uuid],
         ARRAY[<offer>], ARRAY[1], ARRAY['gid_grown'],
         ARRAY[date_trunc('minute', now())], now()",
    ),
    (
        "give",
        include_str!("../../runner/store/src/sql/give.sql"),
        "ARRAY['01999999-0000-7000-8000-000000000001'::uuid], 43200000000,
         heddle.uuid_floor(now() - interval '12 hours'), heddle.uuid_floor(now() + interval '1 hour')",
    ),
    (
        "end_holds",
        include_str!("../../runner/store/src/sql/end_holds.sql"),
        "ARRAY['01999999-0000-7000-8000-000000000001'::uuid], ARRAY['g5'], ARRAY[1::smallint], ARRAY['1'], now()",
    ),
];

/// What each statement of a poll reads, with few and with ten times as many users and past occurrences.
async fn growth(bench: &Bench) {
    let sql = bench.sql().await;
    let offer =
        json!({"audience": "gid_grown", "anchor": "2020-01-01T00:00:00Z", "every": "1m", "dispatch_times": "each"});
    let mut buffers: Vec<Vec<u64>> = vec![Vec::new(); STATEMENTS.len()];
    let mut rates = Vec::new();
    let sizes = [(1_000_usize, 20_i32), (10_000, 60)];
    for (users, occurrences) in sizes {
        let mut connection = bench.connection().await;
        bench.members("gid_grown", "g", users).await;
        connection.made("PUT", "/v1/offers/grown", &offer).await;
        // What these users did at earlier instants of the offer, a minute each, newest within the horizon.
        sql.execute(
            "INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
             SELECT (left(heddle.uuid_floor(at)::text, 19) || substr(gen_random_uuid()::text, 20))::uuid, o.id, o.version,
                    'g' || u, 'gid_grown', at, 1, at, at
               FROM heddle.offers o, generate_series(0, $1::int - 1) u, generate_series(1, $2::int) k,
                    LATERAL (SELECT date_trunc('minute', now()) - k * interval '10 minutes' AS at) t
              WHERE o.name = 'grown' AND o.deleted_at IS NULL
                AND NOT EXISTS (SELECT FROM heddle.assignments a WHERE a.uid = 'g' || u AND a.occurrence = at)",
            &[&(users as i32), &occurrences],
        )
        .await
        .expect("a history");
        sql.batch_execute(
            "ANALYZE heddle.assignments, heddle.members, heddle.holds, heddle.occurrences, heddle.offers",
        )
        .await
        .expect("statistics");
        let id: i64 = sql
            .query_one(
                "SELECT id FROM heddle.offers WHERE name = 'grown' AND deleted_at IS NULL",
                &[],
            )
            .await
            .expect("the offer")
            .get(0);
        for generic in ["force_custom_plan", "force_generic_plan"] {
            sql.batch_execute(&format!("BEGIN; SET LOCAL plan_cache_mode = {generic}"))
                .await
                .expect("a transaction");
            for (index, (name, text, arguments)) in STATEMENTS.iter().enumerate() {
                sql.batch_execute(&format!("PREPARE {name} AS {text}"))
                    .await
                    .expect("a statement");
                let arguments = arguments.replace("<offer>", &id.to_string());
                let explain = format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {name} ({arguments})");
                let plan: Vec<String> = sql
                    .query(&explain, &[])
                    .await
                    .expect("a plan")
                    .iter()
                    .map(|line| line.get(0))
                    .collect();
                buffers[index].push(buffers_of(&plan));
            }
            sql.batch_execute("ROLLBACK; DEALLOCATE ALL").await.expect("undone");
        }
        rates.push(give_each(bench, users).await);
    }
    let texts: Vec<String> = sizes
        .iter()
        .map(|(users, occurrences)| format!("{users} users x {occurrences} occurrences"))
        .collect();
    for ((name, ..), buffers) in STATEMENTS.iter().zip(&buffers) {
        let figure: Vec<String> = buffers
            .chunks(2)
            .map(|pair| format!("{} ({})", pair[0], pair[1]))
            .collect();
        row(
            &format!("`{name}` for one user: buffers (generic plan)"),
            figure.join(" -> "),
            "does not grow",
            texts.join(" -> "),
        );
    }
    let figure: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}/s")).collect();
    row(
        "users in turn: polled, given, completed",
        figure.join(" -> "),
        "does not grow",
        texts.join(" -> "),
    );
}

/// The blocks that the plan's top node, with all below it, has read: from memory and from disk.
fn buffers_of(plan: &[String]) -> u64 {
    let line = plan
        .iter()
        .find_map(|line| line.trim().strip_prefix("Buffers: shared"))
        .expect("buffers");
    line.split([' ', ','])
        .filter_map(|part| part.strip_prefix("hit=").or_else(|| part.strip_prefix("read=")))
        .map(|count| count.parse::<u64>().expect("a count"))
        .sum()
}

/// Each user gets one thing and completes it; how many a second.
async fn give_each(bench: &Bench, users: usize) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let began = now();
    let tasks: Vec<_> = (0..POLLERS)
        .map(|_| {
            let (next, bench) = (next.clone(), bench.clone());
            tokio::spawn(async move {
                let mut connection = bench.connection().await;
                loop {
                    let user = next.fetch_add(1, Ordering::Relaxed);
                    if user >= users {
                        return;
                    }
                    let (status, answer) = connection.send("POST", &format!("/v1/dispatch/g{user}/next"), "").await;
                    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
                    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
                    let done = json!({"assignment_id": answer["assignment_id"], "status": "completed"});
                    connection
                        .made("POST", &format!("/v1/dispatch/g{user}/complete"), &done)
                        .await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a poller");
    }
    users as f64 / began.elapsed().as_secs_f64()
}
