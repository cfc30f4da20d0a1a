//! The `query` executor: one statement as a task.

use heddle_tests::{World, eventually, task};
use serde_json::{Value, json};

use crate::with;

/// A node whose group `g` was granted the connection `shop`, which leads to this world's own database.
async fn shop(world: &World) -> heddle_tests::Node {
    let node = world.node().await;
    node.put("/v1/connections/shop", json!({"url": world.url(), "groups": ["g"]}))
        .await
        .expect_status(201);
    let sql = world.sql().await;
    sql.batch_execute("CREATE TABLE public.orders (id int PRIMARY KEY, region text NOT NULL, total numeric NOT NULL)")
        .await
        .unwrap();
    node
}

fn query(sql: &str, more: Value) -> Value {
    json!({"query": with(json!({"connection": "shop", "sql": sql}), more)})
}

fn group(tasks: Value) -> Value {
    json!({"tasks": tasks})
}

#[tokio::test]
async fn rows_and_counts() {
    let world = World::new().await;
    let node = shop(&world).await;
    let insert = "insert into public.orders select i, $2, i * 1.5 from generate_series(1, $1::int) i";
    let select = "select id, region, total, $1::jsonb as given, null as nothing, timestamptz '2026-01-01Z' as at
                    from public.orders where id <= $2 order by id";
    let spec = with(
        group(json!({
            "fill": with(query(insert, json!({"mode": "execute", "params": ["{{ params.many }}", "{{ params.region }}"]})),
                         json!({"params": {"many": 3}})),
            "read": with(query(select, json!({"params": [{"a": ["{{ upstream.fill.rows_affected }}", null]}, 2]})),
                         json!({"depends_on": ["fill"]})),
            "none": with(query("select 1 as one where false", json!({})), json!({"depends_on": ["read"], "when": "upstream.read | length == 2"})),
        })),
        json!({"params": {"region": "none"}}),
    );
    let put = node.put_group("g", spec.clone()).await;
    assert_eq!(put["tasks"]["read"]["query"]["mode"], "rows");
    // A param is never text of the statement.
    let region = "north'); drop table public.orders; --";
    let run = node.run("g", json!({"params": {"region": region}})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "fill")["output"], json!({"rows_affected": 3}));
    let row = |id: i64, total: f64| {
        json!({"id": id, "region": region, "total": total, "given": {"a": [3, null]}, "nothing": null,
                                           "at": "2026-01-01T00:00:00.000000Z"})
    };
    assert_eq!(task(&run, "read")["output"], json!([row(1, 1.5), row(2, 3.0)]));
    assert_eq!(task(&run, "none")["output"], json!([]));
    // What was read is put again: nothing has changed.
    assert_eq!(node.put_group("g", put).await["revision"], 1);
}

#[tokio::test]
async fn mapped_over_items() {
    let world = World::new().await;
    let node = shop(&world).await;
    let spec = group(json!({
        "each": with(query("select $1::int * 2 as twice", json!({"params": ["{{ item }}"]})),
                     json!({"for_each": [1, 2, 3], "concurrency": 2})),
    }));
    node.put_group("g", spec).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(
        task(&run, "each")["output"],
        json!([[{"twice": 2}], [{"twice": 4}], [{"twice": 6}]]),
        "{run:#}"
    );
}

#[tokio::test]
async fn what_is_refused() {
    let world = World::new().await;
    let node = shop(&world).await;
    for (query, pointer) in [
        (
            json!({"connection": "shop", "sql": "select '{{ params.a }}'"}),
            "/tasks/t/query/sql",
        ),
        (json!({"connection": "shop", "sql": "  "}), "/tasks/t/query/sql"),
        (json!({"connection": "shop"}), "/tasks/t/query"),
        (
            json!({"connection": "nowhere", "sql": "select 1"}),
            "/tasks/t/query/connection",
        ),
        (
            json!({"connection": "shop", "sql": "select 1", "mode": "count"}),
            "/tasks/t/query/mode",
        ),
        (
            json!({"connection": "shop", "sql": "select $1", "params": ["{{ nothing( }}"]}),
            "/tasks/t/query/params/0",
        ),
        (
            json!({"connection": "shop", "sql": "select 1", "parameters": []}),
            "/tasks/t/query/parameters",
        ),
    ] {
        let answer = node.refused_group("g", group(json!({"t": {"query": query}}))).await;
        let problem = answer.expect_status(422);
        assert!(
            problem["errors"]
                .as_array()
                .unwrap()
                .iter()
                .any(|error| error["pointer"].as_str().unwrap().starts_with(pointer)),
            "{query}: {problem:#}"
        );
    }
    // Another group was not granted it; and one executor is enough.
    let spec = group(json!({"t": query("select 1 as one", json!({}))}));
    node.refused_group("h", spec.clone())
        .await
        .expect_problem(422, &["/tasks/t/query/connection"]);
    let two = group(json!({"t": with(query("select 1 as one", json!({})), json!({"queue": "q"}))}));
    node.refused_group("g", two).await.expect_problem(422, &["/tasks/t"]);
    // What a group names stays; what is taken back is refused when the task begins.
    node.put_group("g", spec).await;
    let used = node.delete("/v1/connections/shop").await;
    assert!(used.expect_status(409)["detail"].as_str().unwrap().contains("`g`"));
    node.put("/v1/connections/shop", json!({"groups": ["h"]}))
        .await
        .expect_status(200);
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "failed");
    assert_eq!(task(&run, "t")["error"]["kind"], "fatal", "{run:#}");
}

#[tokio::test]
async fn failures_have_a_kind() {
    let world = World::new().await;
    let node = shop(&world).await;
    let retry = json!({"retry": {"strategy": "fixed", "retries": 2, "interval": "100ms"}, "max_output": "1KiB"});
    for (sql, more, kind, attempts, said) in [
        ("selec 1", json!({}), "fatal", 1, "(SQLSTATE 42601)"),
        (
            "select 1 as a; select 2 as b",
            json!({}),
            "fatal",
            1,
            "(SQLSTATE 42601)",
        ),
        (
            "select 1 / $1::int as x",
            json!({"params": [0]}),
            "fatal",
            1,
            "(SQLSTATE 22012)",
        ),
        (
            "select $1::int as x",
            json!({"params": ["north"]}),
            "fatal",
            1,
            "(SQLSTATE 22P02)",
        ),
        ("select $1::int as x", json!({}), "fatal", 1, "has 1 parameters"),
        (
            "select * from public.nowhere",
            json!({}),
            "fatal",
            1,
            "(SQLSTATE 42P01)",
        ),
        // Whose rows are no result: no attempt can do better.
        (
            "copy (select 1) to stdout",
            json!({}),
            "fatal",
            1,
            "use `select` to read",
        ),
        (
            "copy (select 1) to stdout",
            json!({"mode": "execute"}),
            "fatal",
            1,
            "use `select` to read",
        ),
        (
            "/* all */ COPY public.orders FROM stdin",
            json!({"mode": "execute"}),
            "fatal",
            1,
            "`insert` to write",
        ),
        (
            "do $$ begin raise exception sqlstate '40001'; end $$",
            json!({"mode": "execute"}),
            "failed",
            3,
            "(SQLSTATE 40001)",
        ),
        (
            "select i from generate_series(1, 10000) i",
            json!({}),
            "output",
            3,
            "more than the maximum of 1024 bytes",
        ),
    ] {
        node.put_group("g", group(json!({"t": with(query(sql, more), retry.clone())})))
            .await;
        let run = node.run("g", json!({})).await;
        let task = task(&run, "t");
        assert_eq!(
            (&task["error"]["kind"], &task["attempt"]),
            (&json!(kind), &json!(attempts)),
            "{sql}: {run:#}"
        );
        assert!(
            task["error"]["message"].as_str().unwrap().contains(said),
            "{sql}: {run:#}"
        );
    }
    let rows = "select i from generate_series(1, 10001) i";
    node.put_group(
        "g",
        group(json!({"t": with(query(rows, json!({})), json!({"max_output": "8MiB"}))})),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(task(&run, "t")["error"]["kind"], "output", "{run:#}");
}

/// A statement can raise a text of any length. As for every executor, its beginning is kept, with the SQLSTATE.
#[tokio::test]
async fn a_long_error_is_cut() {
    let world = World::new().await;
    let node = shop(&world).await;
    let raise = |what: &str| {
        let sql = format!("do $$ begin raise exception {what}; end $$");
        query(&sql, json!({"mode": "execute"}))
    };
    let long = "repeat('é', 500000)";
    let tasks = json!({
        "text": raise(&format!("'%', {long}")),
        "all": raise(&format!("using message = 'no', detail = {long}, hint = {long}")),
    });
    node.put_group("g", group(tasks)).await;
    let run = node.run("g", json!({})).await;
    for (name, begins) in [("text", "éé"), ("all", "no (SQLSTATE P0001); é")] {
        let attempts = node.attempts(&heddle_tests::id(&run), name).await;
        for error in [&attempts[0]["error"], &task(&run, name)["error"]] {
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with(begins), "{name}: {message}");
            assert!(message.contains("(SQLSTATE P0001)"), "{name}: {message}");
            assert!((8_000..=8_192).contains(&message.len()), "{name}: {}", message.len());
        }
    }
    let of_run = run["error"]["message"].as_str().unwrap();
    assert!(of_run.len() < 9_000, "{}", of_run.len());
}

/// Statements of this test that the server works on.
async fn at_work(sql: &tokio_postgres::Client, mark: &str) -> i64 {
    let row = sql
        .query_one(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE $1 AND pid <> pg_backend_pid()",
            &[&format!("%{mark}%")],
        )
        .await
        .unwrap();
    row.get(0)
}

/// (How soon: `tests/alone/promises.rs`.)
#[tokio::test]
async fn timeouts_and_cancels_end_it_on_the_server() {
    let world = World::new().await;
    let node = shop(&world).await;
    let sql = world.sql().await;
    let slow = |timeout: &str| {
        group(
            json!({"t": with(query("select pg_sleep(600)::text as slept -- patience", json!({})), json!({"timeout": timeout}))}),
        )
    };
    node.put_group("g", slow("300ms")).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(task(&run, "t")["error"]["kind"], "timeout", "{run:#}");
    eventually("the statement's end", async || {
        (at_work(&sql, "patience").await == 0).then_some(())
    })
    .await;
    node.put_group("g", slow("never")).await;
    let run = node.start("g", json!({})).await;
    eventually("the statement's beginning", async || {
        (at_work(&sql, "patience").await == 1).then_some(())
    })
    .await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    eventually("the statement's end", async || {
        (at_work(&sql, "patience").await == 0).then_some(())
    })
    .await;
    assert_eq!(node.ended(&run).await["state"], "cancelled");
}

/// A statement that never reached its database did not take too long: the error says what did.
#[tokio::test]
async fn timeouts_say_what_took_so_long() {
    let world = World::new().await;
    let node = shop(&world).await;
    let sql = world.sql().await;
    // Nobody answers behind this port.
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://nobody@{}/none", deaf.local_addr().unwrap());
    for (name, url) in [("deaf", url), ("busy", world.url().to_owned())] {
        let spec = json!({"url": url, "groups": ["g"], "max_connections": 1});
        node.put(&format!("/v1/connections/{name}"), spec)
            .await
            .expect_status(201);
    }
    let on = |connection: &str, timeout: &str| {
        let query = json!({"connection": connection, "sql": "select pg_sleep(600)::text as slept -- holds"});
        group(json!({"t": {"query": query, "timeout": timeout}}))
    };
    node.put_group("g", on("busy", "never")).await;
    let holds = node.start("g", json!({})).await;
    eventually("the statement's beginning", async || {
        (at_work(&sql, "-- holds").await == 1).then_some(())
    })
    .await;
    for (connection, timeout, said) in [
        ("deaf", "1s", "cannot connect to `deaf` within 1000 ms"),
        (
            "busy",
            "1s",
            "no connection to `busy` became free within 1000 ms (its `max_connections` is 1 for each node)",
        ),
        ("shop", "3s", "the statement took longer than 3000 ms and was cancelled"),
    ] {
        node.put_group("g", on(connection, timeout)).await;
        let run = node.run("g", json!({})).await;
        let error = &task(&run, "t")["error"];
        assert_eq!(
            (&error["kind"], &error["message"]),
            (&json!("timeout"), &json!(said)),
            "{run:#}"
        );
    }
    node.post(&format!("/v1/runs/{holds}/cancel"), json!({}))
        .await
        .expect_status(200);
    node.ended(&holds).await;
}

/// A connection that breaks off in the middle fails the attempt, and the next one goes on.
#[tokio::test]
async fn a_broken_connection_is_tried_again() {
    let world = World::new().await;
    let node = shop(&world).await;
    let sql = world.sql().await;
    sql.batch_execute("CREATE TABLE public.gate (open boolean NOT NULL); INSERT INTO public.gate VALUES (false)")
        .await
        .unwrap();
    let statement = "select pg_sleep(case when open then 0 else 600 end)::text as slept from public.gate -- broken";
    let retry = json!({"retry": {"strategy": "fixed", "retries": 5, "interval": "100ms"}});
    node.put_group("g", group(json!({"t": with(query(statement, json!({})), retry)})))
        .await;
    let run = node.start("g", json!({})).await;
    eventually("the statement's beginning", async || {
        (at_work(&sql, "-- broken").await == 1).then_some(())
    })
    .await;
    sql.batch_execute("UPDATE public.gate SET open = true").await.unwrap();
    sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%-- broken%' AND pid <> pg_backend_pid()",
        &[],
    )
    .await
    .unwrap();
    let run = node.ended(&run).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let attempts = node.attempts(run["id"].as_str().unwrap(), "t").await;
    assert_eq!(attempts[0]["error"]["kind"], "failed", "{attempts:#?}");
}

/// On a connection that only reads, a statement cannot write.
#[tokio::test]
async fn connections_that_only_read() {
    let world = World::new().await;
    let node = shop(&world).await;
    node.put(
        "/v1/connections/shop",
        json!({"url": world.url(), "groups": ["g"], "read_only": true}),
    )
    .await
    .expect_status(200);
    let write = query(
        "insert into public.orders values (1, 'n', 1)",
        json!({"mode": "execute"}),
    );
    let retry = json!({"retry": {"strategy": "fixed", "retries": 2, "interval": "100ms"}});
    node.put_group("g", group(json!({"t": with(write, retry)}))).await;
    let run = node.run("g", json!({})).await;
    let failed = task(&run, "t");
    assert_eq!(
        (&failed["error"]["kind"], &failed["attempt"]),
        (&json!("fatal"), &json!(1)),
        "{run:#}"
    );
    assert!(
        failed["error"]["message"].as_str().unwrap().contains("25006"),
        "{run:#}"
    );
}

/// Replaces each prepared statement that SQL can see by another one of the same name.
const REPLACES: &str = "do $$ declare n text; begin
    for n in select name from pg_prepared_statements where statement not like 'do %' loop
      execute 'deallocate ' || quote_ident(n);
      execute 'prepare ' || quote_ident(n) || ' as select 666 as one';
    end loop;
    execute 'prepare mine as select 667 as one';
  end $$";

/// Groups `a` and `b` share the one session of a connection.
async fn shared(world: &World, read_only: bool) -> heddle_tests::Node {
    let node = shop(world).await;
    let spec = json!({"url": world.url(), "groups": ["a", "b"], "max_connections": 1, "read_only": read_only});
    node.put("/v1/connections/shop", spec).await.expect_status(200);
    node
}

/// The output of a statement of a group, which must succeed in its first attempt.
async fn output(node: &heddle_tests::Node, name: &str, sql: &str, mode: &str) -> Value {
    let spec = group(json!({"t": query(sql, json!({"mode": mode}))}));
    node.put_group(name, spec).await;
    let run = node.run(name, json!({})).await;
    assert_eq!(run["state"], "succeeded", "{name}: {sql}: {run:#}");
    task(&run, "t")["output"].clone()
}

/// What a statement does to prepared statements reaches no other group: neither its statements, nor those with which
/// the driver looks up types.
#[tokio::test]
async fn prepared_statements_are_not_shared() {
    for read_only in [false, true] {
        let world = World::new().await;
        let node = shared(&world, read_only).await;
        let sql = world.sql().await;
        sql.batch_execute("CREATE TYPE public.mood AS ENUM ('calm'); CREATE TYPE public.taste AS ENUM ('sweet')")
            .await
            .unwrap();
        let moods = async || {
            output(
                &node,
                "b",
                "select 1 as one, 'calm'::public.mood as mood -- of b",
                "rows",
            )
            .await
        };
        let expected = json!([{"one": 1, "mood": "calm"}]);
        assert_eq!(moods().await, expected);
        output(&node, "a", REPLACES, "execute").await;
        assert_eq!(moods().await, expected);
        output(&node, "a", REPLACES, "execute").await;
        // A type that was not looked up before.
        let taste = output(&node, "b", "select 'sweet'::public.taste as taste", "rows").await;
        assert_eq!(taste, json!([{"taste": "sweet"}]));
        output(&node, "a", "deallocate all", "execute").await;
        assert_eq!(moods().await, expected);
        let sees = "select statement from pg_prepared_statements where statement like '%-- of' || ' b%'";
        assert_eq!(output(&node, "a", sees, "rows").await, json!([]));
    }
}

/// If the look at prepared statements fails, only the session is closed: the result of the statement counts.
#[tokio::test]
async fn a_statement_counts_whose_session_is_not_known() {
    let world = World::new().await;
    let node = shop(&world).await;
    let sql = world.sql().await;
    sql.batch_execute(
        "REVOKE SELECT ON pg_catalog.pg_prepared_statements FROM PUBLIC; GRANT INSERT ON public.orders TO pg_monitor",
    )
    .await
    .unwrap();
    let (url, insert) = (world.url(), "insert into public.orders values (1, 'n', 1)");
    let divider = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{divider}options=-c%20role%3Dpg_monitor");
    let spec = json!({"url": url, "groups": ["g"]});
    node.put("/v1/connections/shop", spec).await.expect_status(200);
    let spec = group(json!({"t": query(insert, json!({"mode": "execute"}))}));
    node.put_group("g", spec).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "t")["output"], json!({"rows_affected": 1}));
    // The role could indeed not look.
    let looks = query("select count(*) from pg_catalog.pg_prepared_statements", json!({}));
    node.put_group("g", group(json!({"t": looks}))).await;
    let run = node.run("g", json!({})).await;
    let message = task(&run, "t")["error"]["message"].as_str().unwrap();
    assert!(message.contains("SQLSTATE 42501"), "{message}");
    let rows = sql.query("SELECT 1 FROM public.orders", &[]).await.unwrap();
    assert_eq!(rows.len(), 1);
}

/// No session remembers what a table looked like.
#[tokio::test]
async fn tables_may_change() {
    let world = World::new().await;
    let node = shared(&world, false).await;
    let sql = world.sql().await;
    sql.batch_execute("INSERT INTO public.orders VALUES (1, 'n', 1)")
        .await
        .unwrap();
    let all = async || output(&node, "b", "select * from public.orders", "rows").await;
    assert_eq!(all().await, json!([{"id": 1, "region": "n", "total": 1}]));
    sql.batch_execute("ALTER TABLE public.orders ADD note text")
        .await
        .unwrap();
    assert_eq!(all().await, json!([{"id": 1, "region": "n", "total": 1, "note": null}]));
}

/// What a statement leaves in its session does not reach the next one.
#[tokio::test]
async fn nothing_else_stays_in_a_session() {
    let world = World::new().await;
    let node = shared(&world, false).await;
    let looks = "select coalesce(current_setting('app.who', true), '') as who, 'pg_monitor' not in (current_user, session_user) as own_role,
                        (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks,
                        (select count(*) from pg_cursors where name = 'held') as cursors,
                        (select count(*) from pg_listening_channels()) as channels,
                        to_regclass('pg_temp.left_over') is null as no_table";
    let clean = json!([{"who": "", "own_role": true, "locks": 0, "cursors": 0, "channels": 0, "no_table": true}]);
    for leaves in [
        "do $$ begin perform set_config('app.who', 'a', false), pg_advisory_lock(42); end $$",
        "create temporary table left_over (x int)",
        "declare held cursor with hold for select 1",
        "listen left_over",
        "set role pg_monitor",
        "set session authorization pg_monitor",
    ] {
        output(&node, "a", leaves, "execute").await;
        assert_eq!(output(&node, "b", looks, "rows").await, clean, "{leaves}");
    }
}
