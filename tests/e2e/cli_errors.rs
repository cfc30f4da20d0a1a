//! What the command line says when something is wrong: the words, the exit codes, and where they go.

use std::io::{BufRead, BufReader, Write};

use heddle_tests::{Answer, NodeOptions, Receiver, TOKEN, World, run_program, run_unheard};
use serde_json::json;

use crate::cli::{DONE, REFUSED, UNREACHABLE, USAGE, ends};
use crate::{one, sleeps};

/// A list of nothing, because nothing is called so, is an error.
#[tokio::test]
async fn names_that_nothing_has() {
    let (_world, node) = World::with_node().await;
    node.put_group("nightly", one(json!({"script": "hello"}))).await;
    for (arguments, wanted) in [
        (
            &["backfill", "list", "--group", "nightli"][..],
            "did you mean the group `nightly`?",
        ),
        (&["notification", "list", "--group", "none"], "there is no group `none`"),
        (
            &["notification", "list", "--channel", "none"],
            "there is no channel `none`",
        ),
        (&["assignment", "list", "--offer", "none"], "there is no offer `none`"),
        (&["offer", "occurrences", "--offer", "none"], "there is no offer `none`"),
        (&["export", "--category", "none"], "there is no category `none`"),
        (&["group", "list", "--category", "none"], "there is no category `none`"),
        (&["run", "bulk", "delete", "-g", "none"], "there is no group `none`"),
        (&["run", "show", "latest:none"], "there is no group `none`"),
        (&["open", "group", "none", "--print"], "there is no group `none`"),
        (
            &["notification", "show", "ffffffff"],
            "no notification has an id that begins with ffffffff",
        ),
    ] {
        let said = ends(&node, REFUSED, arguments);
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
    let said = ends(&node, USAGE, &["audit", "--kind", "none"]);
    assert!(said.contains("the kinds are backfill, "), "{said}");
    let said = ends(&node, USAGE, &["script", "test", "none.ts"]);
    assert!(said.contains("no such file"), "{said}");
    let said = ends(&node, USAGE, &["category", "set", "c"]);
    assert!(said.contains("stdin is empty"), "{said}");
    ends(&node, DONE, &["open", "group", "nightly", "--print"]);
    // The variables are no typed options.
    let said = ends(&node, USAGE, &["run"]);
    assert!(
        said.contains("Start, watch and control runs") && !said.contains("compile-wasm"),
        "{said}"
    );
    let said = ends(&node, USAGE, &["group", "show"]);
    assert!(!said.contains("--url"), "{said}");
}

/// A file that cannot be read on is no server that is away. (A directory can be opened, and not read.)
#[tokio::test]
async fn a_file_that_cannot_be_read() {
    let (world, node) = World::with_node().await;
    let topic = json!({"queue": "q", "granularity": "instant"});
    node.put("/v1/topics/letters", topic).await.expect_status(201);
    let directory = world.directory().to_string_lossy().into_owned();
    for file in [&directory, &format!("{directory}/none")] {
        let said = ends(&node, USAGE, &["topic", "send", "letters", "-f", file]);
        assert!(said.contains(&format!("cannot read {file}: ")), "{said}");
        assert!(!said.contains("is the server running"), "{said}");
    }
}

/// A name must reach the server as it was typed, or not at all: `vic\ntim` must not delete `victim`.
#[tokio::test]
async fn names_that_cannot_be_sent() {
    let (_world, node) = World::with_node().await;
    node.put_group("victim", one(json!({"script": "hello"}))).await;
    for name in ["vic\ntim", "victim\r", "vic\ttim", ".", ".."] {
        let said = ends(&node, USAGE, &["group", "rm", name]);
        assert!(said.contains(&format!("{name:?} cannot be a name")), "{said}");
    }
    for command in ["rm", "show"] {
        let said = ends(&node, USAGE, &["group", command, &"x".repeat(100_000)]);
        assert!(said.contains("100000 bytes") && said.len() < 1_000, "{said}");
    }
    let said = ends(&node, USAGE, &["open", "group", "vic\ntim", "--print"]);
    assert!(!said.contains("/groups/victim"), "{said}");
    ends(&node, DONE, &["group", "show", "victim"]);
}

/// A queue is not made by taking its limit away.
#[tokio::test]
async fn a_limit_of_no_queue() {
    let (_world, node) = World::with_node().await;
    for _ in 0..2 {
        let said = ends(&node, REFUSED, &["queue", "limit", "none"]);
        assert!(said.contains("there is no queue `none`"), "{said}");
    }
    ends(&node, DONE, &["queue", "limit", "some", "10", "1m"]);
    ends(&node, DONE, &["queue", "limit", "some"]);
}

/// Helpful errors and their exit codes.
#[tokio::test]
async fn errors() {
    let (world, node) = World::with_node().await;
    ends(&node, REFUSED, &["run", "start", "nope"]);
    node.put_group("g", one(json!({"script": "hello"}))).await;
    for (time, wanted) in [
        (
            "3000-01-01",
            "`3000-01-01` is out of range; the year must be from 1900 to 2999",
        ),
        ("yesterday", "or a date such as 2026-11-20"),
    ] {
        let said = ends(&node, REFUSED, &["run", "start", "g", "--logical-time", time]);
        assert!(said.contains(wanted), "{said}");
    }
    ends(&node, USAGE, &["run", "start"]);
    ends(&node, USAGE, &["no-such-command"]);
    ends(&node, USAGE, &["run", "start", "g", "-p", "{"]);
    let away = run_program(
        &["run", "list"],
        &[("HEDDLE_URL", "http://127.0.0.1:1"), ("HEDDLE_TOKEN", TOKEN)],
    );
    assert_eq!(away.status.code(), Some(UNREACHABLE));
    assert!(String::from_utf8_lossy(&away.stderr).contains("127.0.0.1:1"));
    let stranger = run_program(&["run", "list"], &[("HEDDLE_URL", node.base())]);
    assert_eq!(stranger.status.code(), Some(REFUSED));
    assert!(
        String::from_utf8_lossy(&stranger.stderr)
            .to_lowercase()
            .contains("token")
    );
    let nowhere = run_program(&["serve", "--listen", "127.0.0.1:0"], &[]);
    assert_eq!(nowhere.status.code(), Some(USAGE));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("--database-url"));
    let help = ends(&node, DONE, &["script", "dev", "--help"]);
    assert!(help.contains(".py"), "{help}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(ends(&node, DONE, &["completions", shell]).contains("heddle"));
    }
    // What a shell asks in the middle of a line: names come from the server of that line.
    node.put_group("nightly-report", one(sleeps(0.0))).await;
    let completed = |words: &[&str]| -> String {
        let at = (words.len() - 1).to_string();
        let asked = [&["--"], words].concat();
        let environment = [
            ("HEDDLE_COMPLETE", "bash"),
            ("_CLAP_COMPLETE_INDEX", &at),
            ("HEDDLE_TOKEN", TOKEN),
        ];
        let output = run_program(&asked, &environment);
        assert_eq!(output.status.code(), Some(DONE));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let url = format!("--url={}", node.base());
    assert_eq!(
        completed(&["heddle", &url, "run", "start", "night"]).trim(),
        "nightly-report"
    );
    assert!(completed(&["heddle", &url, "group", "show", ""]).contains("nightly-report"));
    assert!(completed(&["heddle", &url, "run", "watch", "la"]).contains("latest"));
    assert_eq!(
        completed(&["heddle", &url, "run", "watch", "latest:ni"]).trim(),
        "latest:nightly-report"
    );
    assert!(completed(&["heddle", &url, "export", "ni"]).contains("nightly-report"));
    assert!(completed(&["heddle", "gr"]).contains("group"));
    assert_eq!(
        completed(&["heddle", "--url=http://127.0.0.1:1", "run", "start", "night"]).trim(),
        ""
    );
    // To migrate what is up to date changes nothing.
    let migrated = run_program(&["migrate", "--database-url", world.url()], &[]);
    assert_eq!(
        migrated.status.code(),
        Some(DONE),
        "{}",
        String::from_utf8_lossy(&migrated.stderr)
    );
}

/// A program that is older than the schema of its database says so, and what to do.
#[tokio::test]
async fn a_schema_that_is_too_new() {
    let world = World::new().await;
    let newer =
        "INSERT INTO public._sqlx_migrations (version, description, installed_on, success, checksum, execution_time)
                 VALUES (9999, 'of a newer version', now(), true, '\\x00', 1)";
    world.sql().await.execute(newer, &[]).await.unwrap();
    let says_why = |said: &str| {
        for part in [
            "the schema of the database is newer than this version of Heddle",
            "migration 9999",
            "Run the newer version",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    let migrated = run_program(&["migrate", "--database-url", world.url()], &[]);
    assert!(!migrated.status.success());
    says_why(&String::from_utf8_lossy(&migrated.stderr));
    let mut served = world.options().spawn();
    assert!(!served.end().await.success());
    says_why(&served.log());
}

/// What is said on stderr is lost if it cannot be written. Nothing else changes.
#[tokio::test]
async fn stderr_that_cannot_be_written() {
    let world = World::new().await;
    let mut node = world.options().unheard().start().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    let environment = [("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)];
    assert_eq!(run_unheard(&["run", "start", "g"], &environment), Some(DONE));
    assert_eq!(run_unheard(&["group", "show", "none"], &environment), Some(REFUSED));
    assert_eq!(
        run_unheard(&["apply", "-f", "/no/such/file"], &environment),
        Some(USAGE)
    );
    let nowhere = [("HEDDLE_URL", "http://127.0.0.1:1")];
    assert_eq!(run_unheard(&["run", "list"], &nowhere), Some(UNREACHABLE));
    node.terminate();
    assert!(node.end().await.success());
}

/// Something else may answer at the address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_heddle() {
    let page = "<!doctype html><title>Welcome</title>";
    let other = Receiver::start(Answer::Json(200, page.into())).await;
    let environment = [("HEDDLE_URL", other.url.as_str())];
    for body in [page, r#"{"hello": 1}"#] {
        other.answers(Answer::Json(200, body.into()));
        for arguments in [
            &["events"][..],
            &["run", "list"],
            &["group", "show", "g"],
            &["pool", "set", "p", "1"],
            &["topic", "messages", "t"],
        ] {
            let (code, said) = heddle_tests::heddle(arguments, &environment);
            assert_eq!(code, Some(REFUSED), "{arguments:?}: {said}");
            let is_told = said.contains("did not answer as a Heddle server") && !said.contains("doctype");
            assert!(is_told, "{arguments:?}: {said}");
        }
    }
    other.answers(Answer::Json(502, page.into()));
    let (code, said) = heddle_tests::heddle(&["run", "list"], &environment);
    assert_eq!(code, Some(REFUSED), "{said}");
    assert!(said.contains("502") && !said.contains("doctype"), "{said}");
}

#[test]
fn what_is_no_address_of_a_database_is_wrong_usage() {
    for url in ["mysql://host/database", "postgres://host:port/database"] {
        let (code, said) = heddle_tests::heddle(&["migrate", "--database-url", url], &[]);
        assert_eq!(code, Some(USAGE), "{said}");
        assert!(said.contains("the URL of the database is not valid"), "{said}");
    }
}

/// A role without rights on the schema is named, with what it needs; a line of the server's own source helps nobody.
#[tokio::test]
async fn a_role_without_rights_is_told_what_it_needs() {
    let world = World::new().await;
    let (sql, database) = (world.sql().await, world.database().to_owned());
    let role = format!("poor_{database}");
    sql.batch_execute(&format!("CREATE ROLE \"{role}\" LOGIN"))
        .await
        .unwrap();
    let (_, address) = world.url().split_once('@').expect("a role in the URL");
    let url = format!("postgres://{role}@{address}");
    for command in [
        &["migrate", "--database-url", &url][..],
        &[
            "token",
            "create",
            "--database-url",
            &url,
            "--name",
            "a",
            "--role",
            "admin",
        ],
    ] {
        let (code, said) = heddle_tests::heddle(command, &[]);
        assert_eq!(code, Some(REFUSED), "{said}");
        let wanted = [
            format!("the role `{role}`"),
            format!("database `{database}`"),
            "must own the database".into(),
        ];
        for words in wanted {
            assert!(said.contains(&words), "{words}: {said}");
        }
        assert!(!said.contains("at line"), "{said}");
    }
    sql.batch_execute(&format!("DROP ROLE \"{role}\"")).await.unwrap();
}

/// A database that cannot keep every text is refused, before anything is in it.
#[tokio::test]
async fn a_database_that_is_not_unicode() {
    let world = World::new().await;
    let sql = world.sql().await;
    let database = format!("latin1_{}", world.database());
    let create = format!("CREATE DATABASE \"{database}\" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    sql.batch_execute(&create).await.unwrap();
    let (address, _) = world.url().rsplit_once('/').expect("a database in the URL");
    let url = format!("{address}/{database}");
    let says_why = |said: &str| {
        for words in [
            format!("`{database}` is LATIN1"),
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0".into(),
        ] {
            assert!(said.contains(&words), "{words}: {said}");
        }
    };
    let (code, said) = heddle_tests::heddle(&["migrate", "--database-url", &url], &[]);
    assert_eq!(code, Some(REFUSED), "{said}");
    says_why(&said);
    let mut served = NodeOptions::new(&url).spawn();
    assert!(!served.end().await.success());
    says_why(&served.log());
    sql.batch_execute(&format!("DROP DATABASE \"{database}\" WITH (FORCE)"))
        .await
        .unwrap();
}

/// Through a pooler that changes the session after each transaction, nothing is migrated; what is up to date needs nothing.
#[tokio::test]
async fn a_pooler_that_shares_sessions_takes_no_migrations() {
    let world = World::new().await;
    let sql = world.sql().await;
    // All connections say that they have the same session, as behind such a pooler.
    sql.batch_execute(
        "ALTER FUNCTION pg_catalog.pg_backend_pid() RENAME TO real_backend_pid;
         CREATE FUNCTION pg_catalog.pg_backend_pid() RETURNS integer LANGUAGE sql STABLE AS 'SELECT 1'",
    )
    .await
    .unwrap();
    let migrate = || heddle_tests::heddle(&["migrate", "--database-url", world.url()], &[]);
    let (code, said) = migrate();
    assert_eq!(code, Some(DONE), "{said}");
    // Migration 123 can be applied twice.
    let applied = "SELECT count(*) FROM public._sqlx_migrations WHERE version = 123";
    sql.batch_execute("DELETE FROM public._sqlx_migrations WHERE version = 123")
        .await
        .unwrap();
    let says_why = |said: &str| assert!(said.contains("connection pooler in transaction mode"), "{said}");
    let (code, said) = migrate();
    assert_eq!(code, Some(REFUSED), "{said}");
    says_why(&said);
    let mut served = world.options().spawn();
    assert!(!served.end().await.success());
    says_why(&served.log());
    let count: i64 = sql.query_one(applied, &[]).await.unwrap().get(0);
    assert_eq!(count, 0, "nothing was applied");
    sql.batch_execute(
        "DROP FUNCTION pg_catalog.pg_backend_pid();
         ALTER FUNCTION pg_catalog.real_backend_pid() RENAME TO pg_backend_pid",
    )
    .await
    .unwrap();
    let (code, said) = migrate();
    assert_eq!(code, Some(DONE), "{said}");
    let count: i64 = sql.query_one(applied, &[]).await.unwrap().get(0);
    assert_eq!(count, 1);
}

/// A server that answers each GET with what is made of its path and of how many came before. It ends with the program.
fn served(answer: impl Fn(&str, usize) -> (u16, String) + Send + 'static) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap())
                .lines()
                .map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let (status, body) = answer(first.split(' ').nth(1).unwrap_or_default(), count);
            let length = body.len();
            let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    url
}

/// An export that lacks something must not look like one that has all.
#[test]
fn an_export_that_is_not_whole_is_an_error() {
    let none = json!({"items": [], "next_cursor": null}).to_string();
    // One object cannot be read.
    let nothing_else = none.clone();
    let url = served(move |path, _| match path {
        "/v1/categories" => (200, json!({"items": [{"name": "c"}], "next_cursor": null}).to_string()),
        "/v1/categories/c" => (500, json!({"title": "broken", "status": 500}).to_string()),
        _ => (200, nothing_else.clone()),
    });
    let (code, said) = heddle_tests::heddle(&["export", "--url", &url], &[]);
    assert_eq!(code, Some(REFUSED), "{said}");
    assert!(said.contains("category c"), "{said}");
    // It was deleted in between.
    let nothing_else = none.clone();
    let url = served(move |path, _| match path {
        "/v1/categories" => (200, json!({"items": [{"name": "c"}], "next_cursor": null}).to_string()),
        "/v1/categories/c" => (404, json!({"title": "gone", "status": 404}).to_string()),
        _ => (200, nothing_else.clone()),
    });
    let (code, said) = heddle_tests::heddle(&["export", "--url", &url], &[]);
    assert_eq!(code, Some(DONE), "{said}");
    // There is more than a command reads.
    let url = served(move |path, count| match path.starts_with("/v1/categories") {
        true => {
            let items = vec![json!({}); 10_000];
            (
                200,
                json!({"items": items, "next_cursor": count.to_string()}).to_string(),
            )
        }
        false => (200, none.clone()),
    });
    let (code, said) = heddle_tests::heddle(&["export", "--url", &url], &[]);
    assert_eq!(code, Some(REFUSED), "{said}");
    assert!(said.contains("more than 100000"), "{said}");
    // A list says that it is cut, and where it goes on.
    let (code, said) = heddle_tests::heddle(&["category", "list", "--url", &url, "-o", "json"], &[]);
    assert_eq!(code, Some(DONE), "{said}");
    assert!(said.contains("only the first 100000 are listed"), "{said}");
    assert!(said.contains("\"next_cursor\": \""), "{said}");
}

/// An empty variable of the environment is none, whatever the type of its option.
#[test]
fn an_empty_variable_counts_as_not_set() {
    let empty = [
        "HEDDLE_DATABASE_URL",
        "HEDDLE_SLOTS",
        "HEDDLE_NO_UI",
        "HEDDLE_LOG_FORMAT",
        "HEDDLE_CONFIG",
    ];
    let (code, said) = heddle_tests::heddle(&["serve"], &empty.map(|name| (name, "")));
    assert_eq!(code, Some(USAGE), "{said}");
    assert!(said.contains("the database is missing"), "{said}");
}
