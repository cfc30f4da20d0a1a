//! Short ways and general ways: a node that takes no short way leaves the same tables.
//!
//! One list of operations is executed in two worlds. Then every table of the one is compared with that of the other,
//! row by row, after values that cannot be equal were replaced: ids by what they mean, times of today by a word.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use heddle_tests::{Node, PATIENCE, World, eventually};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::messages::{due_now, ended as messages_ended, kept, postbox, put_topic, send};
use crate::{dispatch, fails, one, sleeps, with};

/// Columns about the machine, not about what happened: measurements, `turn`s in a queue, positions in a sequence.
const LEFT_OUT: [&str; 11] = [
    "allowance",
    "batch",
    "cpu_micros",
    "id",
    "memory_bytes",
    "place",
    "resolution_id",
    "sealed",
    "slice",
    "turn",
    "xid",
];

/// Tables that tell of nodes, what the template brought, where a world's own database is, and what depends on where a
/// minute ended: `queue_minutes`.
const NOT_COMPARED: [&str; 10] = [
    "blobs",
    "changes",
    "connections",
    "leases",
    "nodes",
    "queue_minutes",
    "script_versions",
    "sessions",
    "tokens",
    "upkeep",
];

/// Instants of the past, which the test names, stay as they are: everything from here on is of today.
const TODAY: &str = "2020";

#[tokio::test]
async fn short_and_general_ways_leave_the_same_tables() {
    let (short, general) = (World::new().await, World::new().await);
    let (by_short, by_general) = (
        short.options(),
        general.options().env("HEDDLE_WITHOUT_SHORT_WAYS", "all"),
    );
    let (one, other) = tokio::join!(by_short.start(), by_general.start());
    tokio::join!(everything(&short, &one), everything(&general, &other));
    // Some consequences of the operations may still be under way: in the end they are the same.
    let until = Instant::now() + PATIENCE;
    loop {
        let (left, right) = tokio::join!(tables(&short, &one), tables(&general, &other));
        if left == right {
            assert!(
                left.values().filter(|rows| !rows.is_empty()).count() >= 25,
                "{:?}",
                left.keys()
            );
            break;
        }
        assert!(Instant::now() < until, "{}", differences(&left, &right));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // The one has been there by each of the short ways, the other by none of them.
    let short_ways = async |node: &Node| counts(node, "heddle_short_ways_total", "way").await;
    let (taken, left_out) = tokio::join!(short_ways(&one), short_ways(&other));
    assert!(taken.len() >= 8 && taken.values().all(|&count| count > 0), "{taken:?}");
    assert!(left_out.keys().eq(taken.keys()), "{left_out:?}");
    assert!(left_out.values().all(|&count| count == 0), "{left_out:?}");
    // Whoever records outcomes does so by a name of its own.
    let transactions = counts(&other, "heddle_transaction_seconds_count", "transaction").await;
    for name in ["record", "control", "settle_claims", "gates"] {
        assert!(transactions.get(name).is_some_and(|&count| count > 0), "{name}");
    }
}

/// What a node has counted, by a label.
pub(crate) async fn counts(node: &Node, metric: &str, label: &str) -> BTreeMap<String, u64> {
    let text = node.get("/metrics").await.body;
    let text = text.as_str().expect("text");
    let start = format!("{metric}{{{label}=\"");
    let counts = text
        .lines()
        .filter_map(|line| line.strip_prefix(&start)?.split_once("\"} "));
    counts
        .map(|(of, count)| (of.to_owned(), count.parse().expect("a number")))
        .collect()
}

/// The list of operations.
async fn everything(world: &World, node: &Node) {
    single_tasks(node).await;
    graphs(node).await;
    several_attempts(node).await;
    queues(node).await;
    past(node).await;
    schedules(node).await;
    by_hand(node).await;
    effects(world, node).await;
    audiences(node).await;
    messages(world, node).await;
}

/// Runs of one task, in all ways in which they can be asked for and can end.
async fn single_tasks(node: &Node) {
    node.put_group(
        "hello",
        one(json!({"script": "hello", "params": {"name": "{{ params.who }}"}})),
    )
    .await;
    node.put_group("plain", one(json!({"script": "hello"}))).await;
    node.put_group("fails", one(fails())).await;
    for kind in ["skip", "trap", "exit"] {
        let flaky = json!({"script": "flaky", "params": {"kind": kind}});
        node.put_group(kind, one(flaky)).await;
        node.run(kind, json!({})).await;
    }
    node.run("fails", json!({})).await;
    node.run("hello", json!({"params": {"who": "Ada"}})).await;
    node.run("hello", json!({})).await;
    let submission = json!({
        "params": {"name": "Grace"}, "labels": {"a": "b"}, "priority": 7, "logical_time": "2003-01-01T00:00:00Z",
    });
    node.run("plain", submission).await;
    node.run("plain", json!({"task_params": {"t": {"name": "Joan"}}})).await;
    node.run("plain", json!({"key": "once"})).await;
    let again = node.post("/v1/groups/plain/runs", json!({"key": "once"})).await;
    assert_eq!(again.status, 409, "{:#}", again.body);
    node.run("plain", json!({"dedupe": "params_kept", "params": {"name": "one"}}))
        .await;
    // Params that the script's schema refuses, which a group may say and a submission may not.
    node.put_group(
        "refused",
        one(json!({"script": "sleep", "params": {"seconds": "{{ params.n }}"}})),
    )
    .await;
    node.run("refused", json!({"params": {"n": "long"}})).await;
    // Many at once: some with something to settle, most without.
    let all = (0..40).map(|n| async move {
        let labels = json!({"n": n.to_string()});
        let key = (n % 4 == 0).then(|| format!("key {n}"));
        let run = node
            .run("plain", json!({"labels": labels, "key": key, "priority": n % 3}))
            .await;
        assert_eq!(run["state"], "succeeded");
    });
    futures::future::join_all(all).await;
}

/// Chains, branches that are left out, maps, sub-runs, pools.
async fn graphs(node: &Node) {
    node.put_group(
        "chain",
        json!({"on_failure": "continue", "tasks": {
            "a": {"script": "sum", "params": {"numbers": [1, 2]}},
            "b": {"script": "sum", "depends_on": ["a"], "params": {"numbers": ["{{ upstream.a.sum }}"]}},
            "left": {"script": "hello", "depends_on": ["a"], "when": "1 > 2"},
            "after": {"script": "hello", "depends_on": ["left"]},
            "bad": with(fails(), json!({"depends_on": ["b"]})),
            "never": {"script": "hello", "depends_on": ["bad"]},
            "always": {"script": "hello", "depends_on": ["bad"], "trigger_rule": "all_done"},
        }}),
    )
    .await;
    node.run("chain", json!({})).await;
    node.put_group(
        "map",
        json!({"tasks": {
            "m": {"script": "sum", "for_each": [1, 2, 3], "params": {"numbers": ["{{ item }}", 10]}},
            "n": {"script": "sum", "depends_on": ["m"], "params": {"upstream": ["m"]}},
        }}),
    )
    .await;
    node.run("map", json!({})).await;
    node.put_group(
        "parent",
        json!({"tasks": {"sub": {"group": "plain", "params": {"name": "sub-run"}}, "bad": {"group": "fails"}}}),
    )
    .await;
    node.run("parent", json!({})).await;
    let pool = node.put("/v1/pools/narrow", json!({"slots": 1})).await;
    assert_eq!(pool.status, 201, "{:#}", pool.body);
    node.put_group("pooled", one(json!({"script": "hello", "pools": {"narrow": 1}})))
        .await;
    // One after the other: which of several at once holds the slot last is chance.
    for _ in 0..3 {
        node.run("pooled", json!({})).await;
    }
}

async fn several_attempts(node: &Node) {
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "20ms"});
    let flaky = json!({"script": "flaky", "params": {"fail_times": 2}, "retry": retry});
    node.put_group("retried", one(flaky)).await;
    node.run("retried", json!({})).await;
    let spent = json!({"script": "flaky", "params": {"fail_times": 9}, "retry": retry});
    node.put_group("spent", one(spent)).await;
    node.run("spent", json!({})).await;
    node.put_group("timeout", one(with(sleeps(600.0), json!({"timeout": "200ms"}))))
        .await;
    node.run("timeout", json!({})).await;
    node.put_group(
        "deadline",
        with(
            one(sleeps(600.0)),
            json!({"deadline": "300ms", "deadline_action": "cancel"}),
        ),
    )
    .await;
    node.run("deadline", json!({})).await;
}

async fn claim(node: &Node, queue: &str, max: usize) -> Vec<Value> {
    let body = json!({"worker": "w", "max": max, "lease": "10m", "wait": "20s", "tags": ["big"]});
    let path = format!("/v1/queues/{queue}/claims");
    let answer = node.post(&path, body).await.expect_status(200);
    answer["items"].as_array().cloned().expect("items")
}

async fn say(node: &Node, claim: &Value, verb: &str, more: Value) {
    let body = with(json!({"token": claim["token"]}), more);
    let id = claim["id"].as_str().expect("an id");
    node.post(&format!("/v1/claims/{id}/{verb}"), body)
        .await
        .expect_status(200);
}

/// Claims that end in each way, of task runs whose params stand and of those that are rendered.
async fn queues(node: &Node) {
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "20ms"});
    node.put_group(
        "work",
        one(json!({"queue": "work", "params": {"a": 1}, "retry": retry})),
    )
    .await;
    let output = json!({"output": {"done": true}});
    for verb in ["complete", "fail", "release", "heartbeat"] {
        let run = node.start("work", json!({"params": {"b": 2}})).await;
        let first = claim(node, "work", 1).await.remove(0);
        assert_eq!(first["params"], json!({"a": 1, "b": 2}));
        match verb {
            "complete" => say(node, &first, verb, output.clone()).await,
            "fail" => say(node, &first, verb, json!({"error": "not yet"})).await,
            "release" => say(node, &first, verb, json!({})).await,
            _ => {
                let beat = json!({"progress": 0.5, "log": [{"message": "half of it", "level": "info"}]});
                say(node, &first, verb, beat).await;
                say(node, &first, "fail", json!({"error": "never", "fatal": true})).await;
            }
        }
        if matches!(verb, "fail" | "release") {
            let second = claim(node, "work", 1).await.remove(0);
            say(node, &second, "complete", output.clone()).await;
        }
        node.ended(&run).await;
    }
    node.put_group(
        "workers",
        json!({"tasks": {
            "first": {"script": "sum", "params": {"numbers": [5]}},
            "each": {"queue": "work", "depends_on": ["first"], "shards": 3, "tags": ["big"],
                     "params": {"from": "{{ upstream.first.sum }}"}},
            "last": {"queue": "work", "depends_on": ["each"]},
        }}),
    )
    .await;
    let run = node.start("workers", json!({})).await;
    let mut ended = 0;
    while ended < 4 {
        for claim in claim(node, "work", 3).await {
            say(node, &claim, "complete", output.clone()).await;
            ended += 1;
        }
    }
    node.ended(&run).await;
    node.put_group("nobody", one(json!({"queue": "nobody", "queue_timeout": "200ms"})))
        .await;
    node.run("nobody", json!({})).await;
    // What is taken back from a worker.
    let run = node.start("work", json!({})).await;
    claim(node, "work", 1).await;
    control(node, &run, "cancel").await;
}

/// Backfills, each of its runs after the one before and many at once; who follows whom.
async fn past(node: &Node) {
    // Its schedule is over: a midnight makes no run in the one world that the other has not.
    let daily = json!({"history": true, "schedules": {"daily": {"cron": "0 0 * * *", "ends_at": "2004-01-01"}}});
    node.put_group("daily", with(one(json!({"script": "hello"})), daily.clone()))
        .await;
    node.put_group("broken", with(one(fails()), daily)).await;
    let window = json!({"from": "2003-02-01T00:00:00Z", "to": "2003-02-20T00:00:00Z"});
    let asked = [
        ("daily", json!({"max_active": 1})),
        ("daily", json!({"max_active": 5, "on_existing": "all", "order": "desc"})),
        ("broken", json!({"max_active": 1})),
        ("broken", json!({"max_active": 3, "on_existing": "failed"})),
    ];
    for (group, more) in asked {
        let path = format!("/v1/groups/{group}/backfills");
        let begun = node.post(&path, with(window.clone(), more)).await.expect_status(202);
        let path = format!("/v1/backfills/{}", begun["id"].as_str().expect("an id"));
        eventually("end of the backfill", async || {
            let found = node.get(&path).await.expect_status(200);
            (!found["finished_at"].is_null()).then_some(())
        })
        .await;
    }
    let follows = with(one(json!({"script": "hello"})), json!({"depends_on": ["plain"]}));
    node.put_group("follower", follows).await;
    node.run("plain", json!({"logical_time": "2003-03-01T00:00:00Z"})).await;
    let made = eventually("run of the follower", async || {
        node.all("/v1/runs?group=follower").await.pop()
    })
    .await;
    node.ended(made["id"].as_str().expect("an id")).await;
}

/// What is due once, by each overlap; runs that a gate keeps apart.
async fn schedules(node: &Node) {
    for overlap in ["queue", "skip", "allow"] {
        let schedules = json!({"one": {"once": {"delay": "1ms"}}});
        let spec = with(
            one(json!({"script": "hello"})),
            json!({"overlap": overlap, "schedules": schedules}),
        );
        node.put_group(&format!("due-{overlap}"), spec).await;
        eventually("end of the run that was due", async || {
            let runs = node.all(&format!("/v1/runs?group=due-{overlap}")).await;
            let ended = runs.iter().filter(|run| run["state"] == "succeeded").count();
            (ended == 1).then_some(())
        })
        .await;
    }
    let narrow = json!({"max_active_runs": 1});
    node.put_group("narrow", with(one(json!({"script": "hello"})), narrow))
        .await;
    let runs = (0..3).map(|n| node.run("narrow", json!({"key": n.to_string()})));
    futures::future::join_all(runs).await;
}

async fn control(node: &Node, run: &str, action: &str) {
    let answer = node.post(&format!("/v1/runs/{run}/{action}"), json!({})).await;
    answer.expect_status(200);
}

/// Cancels, pauses, restarts, overrides.
async fn by_hand(node: &Node) {
    node.put_group("slow", one(sleeps(600.0))).await;
    let run = node.start("slow", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    control(node, &run, "cancel").await;
    node.put_group(
        "held",
        json!({"tasks": {"a": {"queue": "held"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
    )
    .await;
    let run = node.start("held", json!({})).await;
    let held = claim(node, "held", 1).await.remove(0);
    control(node, &run, "pause").await;
    let path = format!("/v1/claims/{}/complete", held["id"].as_str().expect("an id"));
    let said = node.post(&path, json!({"token": held["token"], "output": 1})).await;
    control(node, &run, "resume").await;
    if said.status != 200 {
        let again = claim(node, "held", 1).await.remove(0);
        say(node, &again, "complete", json!({"output": 1})).await;
    }
    node.ended(&run).await;
    let run = heddle_tests::id(&node.run("fails", json!({"key": "restarted"})).await);
    control(node, &run, "restart").await;
    node.ended(&run).await;
    let run = heddle_tests::id(&node.run("chain", json!({"key": "overridden"})).await);
    let said = json!({"state": "succeeded", "reason": "by hand"});
    node.put(&format!("/v1/runs/{run}/tasks/bad/state"), said)
        .await
        .expect_status(200);
    node.ended(&run).await;
    let set = node.run("plain", json!({"key": "set"})).await;
    // Its success calls for a run of the follower, unless it is undone before that is noticed.
    let followed = eventually("run of the follower", async || {
        let runs = node.all("/v1/runs?group=follower&limit=500").await;
        runs.into_iter().find(|run| run["logical_time"] == set["logical_time"])
    })
    .await;
    node.ended(followed["id"].as_str().expect("an id")).await;
    let run = heddle_tests::id(&set);
    let said = json!({"state": "failed", "reason": "by hand"});
    node.put(&format!("/v1/runs/{run}/tasks/t/state"), said)
        .await
        .expect_status(200);
}

/// What scripts write to Heddle, and what SQL submits.
async fn effects(world: &World, node: &Node) {
    node.put_group("stateful", one(json!({"script": "stateful"}))).await;
    let enqueue = json!({"group": "plain", "params": {"name": "enqueued"}, "key": "by a script"});
    let params = json!({"enqueue": enqueue, "notify": {"channel": "ops", "subject": "hello"}});
    for fail in [true, false, false] {
        let params = with(params.clone(), json!({"fail": fail}));
        node.run("stateful", json!({"params": params})).await;
    }
    let sql = world.sql().await;
    let submitted = "SELECT heddle.submit('plain', '{\"name\": \"by SQL\"}', 'by SQL')::text";
    let run: String = sql.query_one(submitted, &[]).await.expect("a run").get(0);
    node.ended(&run).await;
    let made = eventually("run that a script asked for", async || {
        let runs = node.all("/v1/runs?group=plain&limit=500").await;
        runs.into_iter().find(|run| run["key"] == "by a script")
    })
    .await;
    node.ended(made["id"].as_str().expect("an id")).await;
}

/// Offers: taken, ended, and asked for again when there is nothing.
async fn audiences(node: &Node) {
    dispatch::members(node, "gid_team", &dispatch::users(3)).await;
    let spec = json!({"audience": "gid_team", "dispatch_times": 2, "params": {"n": 1}});
    dispatch::offer(node, "two", spec).await;
    for uid in dispatch::users(3) {
        for status in ["completed", "failed"] {
            if let Some(assignment) = dispatch::given(node, &uid).await {
                dispatch::finish(node, &assignment, status, json!(1))
                    .await
                    .expect_status(200);
            }
        }
    }
    node.put_group("asks", one(json!({"audience": "uid_u0"}))).await;
    let run = node.start("asks", json!({})).await;
    let assignment = eventually("offer of the task", async || dispatch::given(node, "u0").await).await;
    dispatch::complete(node, &assignment).await;
    node.ended(&run).await;
    // The first of these polls asks the database. The others do not, unless the news of a change comes in between.
    for _ in 0..5 {
        assert!(dispatch::given(node, "u0").await.is_none());
    }
}

/// Messages: sent, tried again, given up; with runs that they ask for.
async fn messages(world: &World, node: &Node) {
    postbox(world, node).await;
    node.put_group("posted", one(json!({"script": "hello"}))).await;
    put_topic(
        node,
        "kept-ways",
        kept(json!({"batch": 20, "retry": {"strategy": "fixed", "retries": 1, "interval": "10ms"}})),
    )
    .await;
    let wishes = |n: u64| match n {
        7 => json!({"do": "fail", "until": 2}),
        8 => json!({"do": "fatal"}),
        9 => json!({"do": "fail"}),
        10 => json!({"do": "enqueue", "key": "posted"}),
        _ => json!({"n": n}),
    };
    let all: Vec<Value> = (0..300).map(|n| due_now(n, wishes(n))).collect();
    send(node, "kept-ways", &all).await;
    messages_ended(node, "kept-ways", 300).await;
    let made = eventually("run that a message asked for", async || {
        node.all("/v1/runs?group=posted").await.pop()
    })
    .await;
    node.ended(made["id"].as_str().expect("an id")).await;
}

/// Rows by table, as texts, in an order of their own.
type Tables = BTreeMap<String, Vec<String>>;

async fn tables(world: &World, node: &Node) -> Tables {
    let sql = world.sql().await;
    let names = "SELECT relname::text FROM pg_class
                  WHERE relnamespace = 'heddle'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
                  ORDER BY 1";
    let names = sql.query(names, &[]).await.expect("tables");
    let ids = names_of_runs(&sql).await;
    let mut tables = Tables::new();
    for name in names {
        let name: String = name.get(0);
        if NOT_COMPARED.contains(&name.as_str()) {
            continue;
        }
        let rows = sql
            .query(&format!("SELECT to_jsonb(t)::text FROM heddle.{name} t"), &[])
            .await
            .expect("rows");
        let mut rows: Vec<String> = rows
            .iter()
            .flat_map(|row| single(serde_json::from_str(row.get(0)).expect("JSON")))
            .map(|mut row| {
                let columns = row.as_object_mut().expect("a row");
                columns.retain(|column, _| {
                    // The version of a key comes from the clock.
                    !LEFT_OUT.contains(&column.as_str())
                        && (name.as_str(), column.as_str()) != ("script_state", "version")
                });
                columns.values_mut().for_each(readable);
                normal(&row.to_string().replace(node.base(), "<node>"), &ids)
            })
            .collect();
        rows.sort();
        tables.insert(name, rows);
    }
    tables
}

/// A row that stands for several things, which were written together, as several.
fn single(row: Value) -> Vec<Value> {
    match row["data"].as_array() {
        Some(all) => all
            .iter()
            .map(|data| with(row.clone(), json!({"data": data})))
            .collect(),
        None => vec![row],
    }
}

/// Bytes, which Postgres shows as digits, as characters: texts within them can be read.
fn readable(value: &mut Value) {
    let digits = value.as_str().and_then(|text| text.strip_prefix("\\x"));
    let bytes = digits.map(|digits| {
        let pairs = (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16));
        pairs.map(|byte| char::from(byte.expect("a byte"))).collect::<String>()
    });
    if let Some(bytes) = bytes {
        *value = bytes.into();
    }
}

/// What each run is called, in the one world as in the other: by what it was made for.
async fn names_of_runs(sql: &tokio_postgres::Client) -> HashMap<String, String> {
    let runs = "SELECT r.id::text, g.name || ' ' || r.trigger || ' ' || coalesce(r.key, '') || ' ' || r.params
                       || coalesce(r.labels::text, '')
                       || CASE WHEN r.logical_time < '2020-01-01' THEN r.logical_time::text ELSE '' END
                  FROM (SELECT id, group_id, trigger, key, params, labels, logical_time FROM heddle.runs_live
                        UNION ALL
                        SELECT id, group_id, trigger, key, params, labels, logical_time FROM heddle.runs_done) AS r
                  JOIN heddle.groups g ON g.id = r.group_id
                 ORDER BY r.id";
    let mut seen: HashMap<String, usize> = HashMap::new();
    let rows = sql.query(runs, &[]).await.expect("runs");
    rows.iter()
        .map(|row| {
            let (id, name): (String, String) = (row.get(0), row.get(1));
            let nth = seen.entry(name.clone()).or_default();
            *nth += 1;
            let name = format!("<run {} {nth}>", name.replace(['"', '\\'], "'"));
            (id, name)
        })
        .collect()
}

/// A row without what is of this world only.
fn normal(text: &str, ids: &HashMap<String, String>) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if let Some(id) = id_at(rest) {
            normal.push_str(ids.get(id).map_or("<id>", String::as_str));
            id.len()
        } else if let Some(length) = time_at(rest) {
            normal.push_str("<time>");
            length
        } else {
            normal.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    normal
}

/// The UUID that a text begins with.
fn id_at(text: &str) -> Option<&str> {
    let id = text.get(..36)?;
    let fits = id.bytes().enumerate().all(|(index, byte)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    });
    fits.then_some(id)
}

/// How long the day or the instant of today is that a text begins with.
fn time_at(text: &str) -> Option<usize> {
    let day = text.get(..10)?;
    let is_day = day.bytes().enumerate().all(|(index, byte)| match index {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    if !is_day || day < TODAY {
        return None;
    }
    let more = text[10..]
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || matches!(byte, b'T' | b':' | b'.' | b'+' | b'Z'));
    Some(10 + more.count())
}

/// What the one has and the other has not.
fn differences(short: &Tables, general: &Tables) -> String {
    let mut text = String::from("the tables differ\n");
    let none = Vec::new();
    let names: BTreeSet<&String> = short.keys().chain(general.keys()).collect();
    for name in names {
        let (short, general) = (short.get(name).unwrap_or(&none), general.get(name).unwrap_or(&none));
        if short == general {
            continue;
        }
        text.push_str(&format!("{name}: {} and {} rows\n", short.len(), general.len()));
        for (sign, of, without) in [("short", short, general), ("general", general, short)] {
            let mut left: HashMap<&String, usize> = HashMap::new();
            for row in without {
                *left.entry(row).or_default() += 1;
            }
            let only = of.iter().filter(|row| match left.get_mut(row) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    false
                }
                _ => true,
            });
            for row in only.take(5) {
                text.push_str(&format!("  {sign}: {row}\n"));
            }
        }
    }
    text
}

/// Ids and times go, what is beside them and what is long past stays.
#[test]
fn rows_are_compared_without_ids_and_times() {
    let known = HashMap::from([("019ab5e0-0000-7000-8000-000000000001".to_owned(), "<run a>".to_owned())]);
    let text = r#"{"run": "019ab5e0-0000-7000-8000-000000000001", "of": "of 019ab5e0-0000-7000-8000-000000000002",
        "at": "2026-11-22T20:00:00.1+00:00", "day": "2026-11-22", "then": "2003-01-01T00:00:00+00:00", "n": 2026}"#;
    let expected = r#"{"run": "<run a>", "of": "of <id>",
        "at": "<time>", "day": "<time>", "then": "2003-01-01T00:00:00+00:00", "n": 2026}"#;
    assert_eq!(normal(text, &known), expected);
}
