//! Queries, with the tests' own Postgres.

use crate::guests::{Bench, Tables, component};
use crate::outcomes::failure;
use heddle_domain::state::ErrorKind;
use heddle_postgres::TestCluster;
use heddle_sandbox::{ConnectionTarget, Outcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// The cluster of this process.
static CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();

/// Its server accepts any password, so the URL contains one, and the test searches for it in what scripts are told.
fn target(url: &str, statement_timeout: Duration, max_rows: u32) -> ConnectionTarget {
    ConnectionTarget {
        id: format!("{statement_timeout:?}{max_rows}"),
        url: url.replacen('@', ":topsecret@", 1),
        statement_timeout,
        max_rows,
        max_connections: 4,
        read_only: false,
    }
}

/// A script that runs this query on connection `db` with its params, and returns the result: the rows, or the error as
/// its own.
fn querying(statement: &str) -> String {
    let escaped = statement.replace('\\', "\\5c").replace('"', "\\22");
    component(
        r#"(import "heddle:task/sql@1.0.0" (instance $sql (export "query" (func (param "connection" string)
            (param "statement" string) (param "params" string) (result (result string (error string)))))))"#,
        r#"(core func $query (canon lower (func $sql "query") (memory (core memory $libc "memory"))
            (realloc (core func $libc "realloc"))))"#,
        r#"(with "h" (instance (export "query" (func $query))))"#,
        &format!(
            r#"(import "h" "query" (func $query (param i32 i32 i32 i32 i32 i32 i32)))
               (data (i32.const 2048) "db{escaped}")"#
        ),
        &format!(
            "(drop (memory.grow (i32.const 200)))
             (call $query (i32.const 2048) (i32.const 2) (i32.const 2050) (i32.const {}) (local.get 0) (local.get 1)
               (i32.const 256))
             (if (result i32) (i32.eqz (i32.load8_u (i32.const 256)))
               (then (call $ok (i32.load (i32.const 260)) (i32.load (i32.const 264))))
               (else (call $fail (i32.const 2) (i32.load (i32.const 260)) (i32.load (i32.const 264)))))",
            statement.len()
        ),
        "{}",
    )
}

async fn setting(timeout: Duration, max_rows: u32) -> Arc<Tables> {
    let start = async || TestCluster::start().await.expect("a cluster");
    let url = CLUSTER.get_or_init(start).await.postgres().url("postgres");
    Arc::new(Tables {
        connections: [("db".to_owned(), target(&url, timeout, max_rows))].into(),
        ..Tables::default()
    })
}

pub async fn typed_rows(mut bench: Bench) {
    let tables = setting(Duration::from_secs(10), 10_000).await;
    bench.grants.sql = vec!["db".into()];
    bench.limits.output_bytes = 1 << 20;
    let mut check = async |statement: &str, params: &str, expected: serde_json::Value| {
        bench.params = params.into();
        let script = bench.script(querying(statement)).await;
        match bench.run_with(&script, &tables).await.outcome {
            Outcome::Succeeded(rows) => {
                let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
                assert_eq!(rows, expected, "{statement}");
            }
            other => panic!("{statement}: {other:?}"),
        }
    };
    let one = |value: serde_json::Value| serde_json::json!([{ "v": value }]);
    for (expression, expected) in [
        ("true", serde_json::json!(true)),
        ("1::int2", 1.into()),
        ("-5", (-5).into()),
        ("9007199254740993::int8", 9_007_199_254_740_993_i64.into()),
        ("1.5::float8", 1.5.into()),
        ("0.1::float4", 0.1.into()),
        ("'NaN'::float8", "NaN".into()),
        ("'-Infinity'::float4", "-Infinity".into()),
        ("12.50::numeric", 12.5.into()),
        ("-0.0001::numeric", (-0.0001).into()),
        ("100000::numeric", 100_000.into()),
        ("12345678901234567890.12::numeric", "12345678901234567890.12".into()),
        ("'NaN'::numeric", "NaN".into()),
        ("'a\"b'::text", "a\"b".into()),
        ("'{\"a\":[1]}'::jsonb", serde_json::json!({"a": [1]})),
        ("'[1]'::json", serde_json::json!([1])),
        (
            "'00000000-0000-0000-0000-000000000001'::uuid",
            "00000000-0000-0000-0000-000000000001".into(),
        ),
        ("'2013-07-01'::date", "2013-07-01".into()),
        ("'12:34:56.5'::time", "12:34:56.500000".into()),
        ("'2013-07-01 12:00'::timestamp", "2013-07-01T12:00:00.000000".into()),
        (
            "'1950-07-01 12:00+02'::timestamptz",
            "1950-07-01T10:00:00.000000Z".into(),
        ),
        ("'infinity'::timestamptz", "infinity".into()),
        ("'\\x00ff'::bytea", "\\x00ff".into()),
        ("'1 year 2 days 03:04:05.5'::interval", "P1Y2DT3H4M5.5S".into()),
        ("'10.0.0.0/8'::cidr", "10.0.0.0/8".into()),
        ("array[1,null,3]", serde_json::json!([1, null, 3])),
        ("array[[1,2],[3,4]]", serde_json::json!([[1, 2], [3, 4]])),
        ("'{}'::text[]", serde_json::json!([])),
        ("null::int", serde_json::Value::Null),
    ] {
        check(&format!("select {expression} as v"), "[]", one(expected)).await;
    }
    check("select $1::int + 1 as v", "[41]", one(42.into())).await;
    check("select $1::text as v", "[\"x\"]", one("x".into())).await;
    check(
        "select $1::jsonb as v",
        "[{\"a\": null}]",
        one(serde_json::json!({"a": null})),
    )
    .await;
    check("select $1::int[] as v", "[[1, 2]]", one(serde_json::json!([1, 2]))).await;
    check(
        "select sum(x) as v from unnest($1::text[]) with ordinality t(y, x)",
        "[[\"a\", \"b\"]]",
        one(3.into()),
    )
    .await;
    check(
        "select $1::timestamptz as v",
        "[\"2013-07-01T00:00:00Z\"]",
        one("2013-07-01T00:00:00.000000Z".into()),
    )
    .await;
    check("select $1::bool is null as v", "[null]", one(true.into())).await;
    check(
        "select current_setting('statement_timeout') as v",
        "",
        one("10s".into()),
    )
    .await;
    check(
        "select x from generate_series(1, 2) x",
        "[]",
        serde_json::json!([{"x": 1}, {"x": 2}]),
    )
    .await;
    // What a statement left in its session is gone.
    check(
        "select set_config('statement_timeout', '0', false) as v",
        "[]",
        one("0".into()),
    )
    .await;
    check("begin", "[]", serde_json::json!([])).await;
    check(
        "select current_setting('statement_timeout') as v, pg_current_xact_id_if_assigned() is null as n",
        "[]",
        serde_json::json!([{"v": "10s", "n": true}]),
    )
    .await;
}

pub async fn bounds_and_errors(mut bench: Bench) {
    let (tables, hasty) = (
        setting(Duration::from_secs(60), 100).await,
        setting(Duration::from_millis(300), 100).await,
    );
    bench.grants.sql = vec!["db".into()];
    let fails_by = async |bench: &Bench, tables: &Arc<Tables>, statement: &str| {
        let script = bench.script(querying(statement)).await;
        let result = bench.run_with(&script, tables).await;
        let (kind, message) = failure(&result);
        assert_eq!(kind, ErrorKind::Fatal);
        assert!(
            !message.contains("topsecret") && !message.contains("postgres://"),
            "{message}"
        );
        message.to_owned()
    };
    let fails = async |bench: &Bench, statement: &str| fails_by(bench, &tables, statement).await;
    bench.params = "[]".into();
    assert!(fails(&bench, "select * from nowhere").await.contains("SQLSTATE 42P01"));
    assert!(fails(&bench, "select 1; select 2").await.contains("SQLSTATE 42601"));
    assert!(
        fails(&bench, "select generate_series(1, 101)")
            .await
            .contains("100 rows")
    );
    let slow = fails_by(&bench, &hasty, "select pg_sleep(600)").await;
    assert!(slow.contains("SQLSTATE 57014"), "{slow}");
    assert!(fails(&bench, "select repeat('x', 9000000)").await.contains("bytes"));
    assert!(fails(&bench, "select 1 as a, 2 as a").await.contains("the name `a`"));
    assert!(fails(&bench, "select point(1, 2)").await.contains("cast it to text"));
    assert!(fails(&bench, "select $1::int").await.contains("1 parameters"));
    bench.params = "{}".into();
    assert!(fails(&bench, "select 1").await.contains("JSON array"));
    bench.grants.sql.clear();
    assert!(fails(&bench, "select 1").await.contains("not granted"));
    bench.grants.sql = vec!["db".into()];
    let unreachable = ConnectionTarget {
        id: "x".into(),
        url: "postgres://test:topsecret@%2Fnowhere/x".into(),
        statement_timeout: Duration::from_secs(1),
        max_rows: 1,
        max_connections: 1,
        read_only: false,
    };
    let tables = Arc::new(Tables {
        connections: [("db".to_owned(), unreachable)].into(),
        ..Tables::default()
    });
    let script = bench.script(querying("select 1")).await;
    let result = bench.run_with(&script, &tables).await;
    let (_, message) = failure(&result);
    assert!(
        message.contains("cannot connect") && !message.contains("topsecret"),
        "{message}"
    );
}

/// The statement of a component counts as its memory while it runs, as the calls of source scripts do.
pub async fn statements_count_as_memory(_: Bench) {
    // The memory of the script below: two pages, and the 200 that it asks for.
    let linear_bytes = 202 * (64 << 10);
    let statement = "select length($1::text) as v";
    let params = format!("[\"{}\"]", "x".repeat(50_000));
    let outcome = async |more_bytes: usize| {
        let mut bench = Bench::with(|config| config.total_memory_bytes = (linear_bytes + more_bytes) as u64);
        bench.grants.sql = vec!["db".into()];
        bench.params = params.clone();
        let tables = setting(Duration::from_secs(60), 100).await;
        let script = bench.script(querying(statement)).await;
        bench.run_with(&script, &tables).await
    };
    let holds = statement.len() + params.len();
    let refused = outcome(holds - 1).await;
    let (_, message) = failure(&refused);
    assert!(message.contains("the node has no memory left"), "{message}");
    let result = outcome(holds).await;
    assert_eq!(result.outcome, Outcome::Succeeded("[{\"v\":50000}]".into()));
}

/// What a database sends is refused by its length, before it is in memory.
pub async fn messages_that_are_too_large(mut bench: Bench) {
    let tables = setting(Duration::from_secs(60), 100).await;
    bench.grants.sql = vec!["db".into()];
    bench.params = "[]".into();
    let outcome = async |statement: &str| {
        let script = bench.script(querying(statement)).await;
        bench.run_with(&script, &tables).await
    };
    for (statement, said) in [
        (
            "select repeat('x', 100000000)",
            "a row of more than the maximum of 16777216 bytes; select less data",
        ),
        (
            "do $$ begin raise exception '%', repeat('x', 20000000); end $$",
            "a message of more than the maximum of 16777216 bytes",
        ),
    ] {
        let result = outcome(statement).await;
        let (kind, message) = failure(&result);
        assert_eq!(kind, ErrorKind::Fatal);
        assert!(message.contains(said), "{message}");
        // The session of that is not used again.
        let next = outcome("select 1 as v").await.outcome;
        assert_eq!(next, Outcome::Succeeded("[{\"v\":1}]".into()));
    }
    // Nobody reads a notice.
    let noticed = outcome("do $$ begin raise notice '%', repeat('x', 20000000); end $$").await;
    assert_eq!(noticed.outcome, Outcome::Succeeded("[]".into()));
}

pub async fn a_timeout_cancels_the_statement(mut bench: Bench) {
    // Longer than anybody waits here: it does not end by itself.
    let tables = setting(Duration::from_secs(600), 100).await;
    bench.grants.sql = vec!["db".into()];
    bench.params = "[]".into();
    let look = bench
        .script(querying("select count(*) as v from pg_stat_activity where query like '%pg_sleep(500)%' and state = 'active' and pid <> pg_backend_pid()"))
        .await;
    let sleep = bench.script(querying("select pg_sleep(500)")).await;
    let sleeping = async |expected: &str| {
        loop {
            let outcome = bench.run_with(&look, &tables).await.outcome;
            if outcome == Outcome::Succeeded(format!("[{{\"v\":{expected}}}]")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (handle, result) = bench.start(&sleep, &tables);
    sleeping("1").await;
    assert_eq!(bench.sandbox.load_now().parked, 1);
    handle.cancel();
    assert_eq!(result.await.unwrap().outcome, Outcome::Cancelled);
    sleeping("0").await;
}
