//! What an author does on the command line: templates, cases, recordings, versions.

use heddle_tests::{Sink, Spoken, TOKEN, World, heddle_succeeds};
use serde_json::{Value, json};

use super::{JS, TS};

/// The walk of an author on the command line: a template, a test here, a push, a run there.
#[tokio::test]
async fn by_the_command_line() {
    let (_world, node) = World::with_node().await;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let server = [("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)];
    let heddle = |arguments: &[&str]| heddle_succeeds(arguments, &server);
    for (language, end) in [("typescript", "ts"), ("javascript", "js")] {
        let name = format!("words-{end}");
        let dir = at(&name);
        let printed = heddle(&["script", "new", &name, "--lang", language, &dir]);
        let file = at(&format!("{name}/{name}.{end}"));
        assert!(
            printed.contains(&format!("next: heddle script push {name} {file}")),
            "{printed}"
        );
        let here = heddle(&[
            "-o",
            "json",
            "script",
            "test",
            &file,
            "--params",
            r#"{"text": "to be or not"}"#,
        ]);
        let here: Value = serde_json::from_str(&here).unwrap();
        assert_eq!(
            here["output"],
            json!({"words": 4, "longest": "not", "record": true}),
            "{here:#}"
        );
        // (Both templates have the same cases.)
        if end == "ts" {
            for path in [&file, &dir] {
                let cases = heddle(&["script", "test", path]);
                assert!(cases.contains("3 of 3 cases as expected"), "{path}: {cases}");
            }
            let built = heddle(&["script", "build", &dir]);
            assert!(built.contains("nothing to build"), "{built}");
            let built: Value = serde_json::from_str(&heddle(&["-o", "json", "script", "build", &dir])).unwrap();
            let bytes = std::fs::metadata(&file).unwrap().len();
            assert_eq!(built, json!({"file": file, "bytes": bytes}));
        }
        let pushed = heddle(&["script", "push", &name, &file]);
        assert!(pushed.contains(&format!("{name}@1 (source/{language}")), "{pushed}");
        let there = heddle(&["-o", "json", "script", "test", &name]);
        let there: Value = serde_json::from_str(&there).unwrap();
        assert_eq!(there["output"]["words"], 3, "{there:#}");
        let saved = at(&format!("saved.{end}"));
        heddle(&["script", "download", &name, &saved]);
        assert_eq!(std::fs::read(&saved).unwrap(), std::fs::read(&file).unwrap());
        let broken = at(&format!("broken.{end}"));
        std::fs::write(&broken, "export default () => ;\n").unwrap();
        let (code, said) = heddle_tests::heddle(&["script", "push", &name, &broken], &server);
        assert!(code != Some(0) && said.contains("line 1, column 22"), "{said}");
    }
}

/// The loop of an author: a file runs when it is saved, and its cases tell what is wrong.
#[test]
fn the_loop_of_an_author() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let file = at("sum.js").display().to_string();
    let save = |body: &str| {
        let text = format!("export default ({{ a, b }}) => {{ console.log('adding'); {body} }}\n");
        // As editors do: never half of a file.
        std::fs::write(at("new"), text).unwrap();
        std::fs::rename(at("new"), at("sum.js")).unwrap();
    };
    save("return a + b");
    let mut dev = Spoken::start(&["script", "dev", &file, "--params", r#"{"a": 1, "b": 20}"#]);
    dev.wait_for("21");
    dev.wait_for("succeeded in");
    save("return a * b * 100");
    dev.wait_for("2000");
    save("return a +");
    dev.wait_for("line 1, column");
    save("throw new Error(`no ${a}`)");
    dev.wait_for("Error: no 1");
    dev.wait_for("sum.js:1:");
    // What shells say of a program that Ctrl-C ends; scripts that call it can tell.
    assert_eq!(dev.interrupt(), Some(130));
    save("return a + b");
    let cases = json!({"cases": [
        {"name": "adds", "params": {"a": 1, "b": 2}, "expect": {"output": 3, "log": ["adding"]}},
        {"name": "wrong", "params": {"a": 1, "b": 2}, "expect": {"output": 4}},
    ]});
    std::fs::write(at("sum.test.json"), cases.to_string()).unwrap();
    let (code, said) = heddle_tests::heddle(&["script", "test", &file], &[]);
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "ok   adds",
        "FAIL wrong",
        "the output is 3, not 4",
        "1 of 2 cases as expected",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// What `script record` had of the world, cases give again: to what was asked then and to nothing else, with the clock and
/// the chance of then; and no secret is in it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_is_given_again() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (file, cases) = (at("clean.ts"), at("clean.test.json"));
    let heddle = |arguments: &[&str]| heddle_tests::heddle(arguments, &[]);
    let save = |path: &str| {
        let text = "export default async function run(params: { base: string; id: number }, ctx: any) {
            const key = await ctx.secret('key');
            const [row] = await ctx.sql('w').query('select $1::int as id, 4.50::numeric as price', params.id);
            await new Promise((done) => setTimeout(done, 20));
            const url = `${params.base}/PATH?key=${encodeURIComponent(key)}`;
            const response = await fetch(url, { method: 'POST', headers: { authorization: key }, body: JSON.stringify({ row, key }) });
            return { row, ...(await response.json()), at: new Date().toISOString(), run: ctx.run, chance: [Math.random(), crypto.randomUUID()] };
        }";
        std::fs::write(&file, text.replace("PATH", path)).unwrap();
    };
    save("items");
    std::fs::write(at("key"), "hunter2/key\n").unwrap();
    let params = json!({"base": sink.url, "id": 7}).to_string();
    let (key, sql) = (format!("key=@{}", at("key")), format!("w={}", world.url()));
    let record = [
        "script", "record", &file, "two", "--params", &params, "--secret", &key, "--sql", &sql,
    ];
    let (code, said) = heddle(&record);
    assert!(
        code == Some(2) && said.contains("not in the task's `allow_hosts`"),
        "{code:?} {said}"
    );
    assert!(!std::fs::exists(&cases).unwrap());
    let open = ["--allow-host", "127.0.0.1", "--allow-private", "127.0.0.1"];
    let (code, said) = heddle(&[&record[..], &open].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("recorded 1 requests and 1 statements"), "{said}");
    assert_eq!(sink.requests()[0].header("authorization"), Some("hunter2/key"));
    let recorded = std::fs::read_to_string(&cases).unwrap();
    assert!(
        !recorded.contains("hunter2") && recorded.contains("key=fake-key"),
        "{recorded}"
    );
    assert!(recorded.contains(r#""rows":[{"id":7,"price":4.50}]"#), "{recorded}");
    // Without anybody to ask, now and later.
    let (code, said) = heddle(&["script", "test", &file]);
    assert!(code == Some(0) && said.contains("1 of 1 cases as expected"), "{said}");
    assert_eq!(sink.requests().len(), 1);
    // Another request is an error that names it, and the one that was recorded is missed.
    save("others");
    let (code, said) = heddle(&["script", "test", &file]);
    assert_eq!(code, Some(1), "{said}");
    for part in [
        format!("not recorded: POST {}/others?key=fake-key with the body {{", sink.url),
        format!("recorded but not used: POST {}/items?key=fake-key", sink.url),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    // A case that is there keeps all but its answers.
    let text = recorded.replacen("\"expect\": ", "\"expect\":  {\"log\": []},\n \"item\": ", 1);
    std::fs::write(&cases, text).unwrap();
    let again = ["script", "record", &file, "two", "--secret", &key, "--sql", &sql];
    let (code, said) = heddle(&[&again[..], &open].concat());
    assert_eq!(code, Some(0), "{said}");
    let recorded = std::fs::read_to_string(&cases).unwrap();
    assert!(
        recorded.contains("\"expect\": {\"log\": []}") && recorded.contains("/others?key=fake-key"),
        "{recorded}"
    );
    let (code, said) = heddle(&["script", "test", &file]);
    assert_eq!(code, Some(0), "{said}");

    // Components alike.
    for name in ["fetch", "query", "sleep"] {
        std::fs::write(at(&format!("{name}.wasm")), heddle_scripts::get(name).unwrap()).unwrap();
    }
    let asked = sink.requests().len();
    let params = json!({"url": format!("{}/a", sink.url), "send": {"b": 1}}).to_string();
    let fetch = at("fetch.wasm");
    let (code, said) = heddle(&[&["script", "record", &fetch, "one", "--params", &params][..], &open].concat());
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = heddle(&["script", "test", &fetch]);
    assert!(code == Some(0) && said.contains("1 of 1 cases as expected"), "{said}");
    assert_eq!(sink.requests().len(), asked + 1);
    let params = json!({"connection": "w", "statement": "select 1 as one"}).to_string();
    let query = at("query.wasm");
    let (code, said) = heddle(&["script", "record", &query, "one", "--params", &params, "--sql", &sql]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = heddle(&["script", "test", &query]);
    assert!(code == Some(0) && said.contains("1 of 1 cases as expected"), "{said}");
    // A day takes no time where the clock is the case's.
    let slept = json!({"cases": [{"params": {"seconds": 86_400.0}, "now": "2026-01-01T00:00:00Z", "expect": {"output": {"slept": 86_400.0}}}]});
    std::fs::write(at("sleep.test.json"), slept.to_string()).unwrap();
    let (code, said) = heddle(&["script", "test", &at("sleep.wasm")]);
    assert!(code == Some(0) && said.contains("1 of 1 cases as expected"), "{said}");
}

/// Versions beside one another, and beside what this program makes of them.
#[tokio::test]
async fn versions_are_compared() {
    let (world, node) = World::with_node().await;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let server = [("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)];
    let heddle = |arguments: &[&str]| heddle_tests::heddle(arguments, &server);
    let text = |number: u32| format!("// the text\nexport default (params: {{ n{number}: string }}) => {number};\n");
    for number in 1..=2 {
        node.put_bytes("/v1/scripts/clean", TS, text(number))
            .await
            .expect_status(201);
    }
    let (code, said) = heddle(&["script", "diff", "clean"]);
    assert_eq!(code, Some(1), "{said}");
    for line in [
        "--- clean@1",
        "+++ clean@2",
        " // the text",
        "-export default (params: { n1: string }) => 1;",
        "+export default (params: { n2: string }) => 2;",
    ] {
        assert!(said.lines().any(|printed| printed == line), "{line}: {said}");
    }
    assert_eq!(heddle(&["script", "diff", "clean", "2", "2"]).0, Some(0));
    let file = at("clean.ts");
    std::fs::write(&file, text(2)).unwrap();
    assert_eq!(heddle(&["script", "diff", "clean", &file]), (Some(0), String::new()));
    let (code, said) = heddle(&["script", "diff", "clean", "1", &file]);
    assert!(code == Some(1) && said.contains(&format!("+++ {file}")), "{said}");
    let (code, said) = heddle(&["script", "diff", "clean", "1", "7"]);
    assert!(code == Some(1) && said.contains("`clean` has no version 7"), "{said}");
    assert_eq!(heddle(&["script", "diff", "clean", "7"]).0, Some(1));
    // Of wasm, what is known of it.
    for name in ["hello", "sum"] {
        let wasm = heddle_scripts::get(name).unwrap();
        node.put_bytes("/v1/scripts/wasm", "application/wasm", wasm)
            .await
            .expect_status(201);
    }
    let (code, said) = heddle(&["script", "diff", "wasm"]);
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "--- wasm@1",
        " world: heddle:task/task",
        "-digest: ",
        "+size: ",
        "+    upstream:",
    ] {
        assert!(said.lines().any(|line| line.starts_with(part)), "{part}: {said}");
    }
    std::fs::write(at("hello.wasm"), heddle_scripts::get("hello").unwrap()).unwrap();
    let (code, said) = heddle(&["script", "diff", "wasm", "2", &at("hello.wasm")]);
    assert!(code == Some(1) && said.contains("hello.wasm"), "{said}");

    // What is in use is checked here: the active ones, and what groups name.
    node.put_group(
        "g",
        json!({"tasks": {"old": {"script": "clean@1", "params": {"n1": "a"}}}}),
    )
    .await;
    let (code, said) = heddle(&["-o", "json", "script", "check"]);
    assert_eq!(code, Some(0), "{said}");
    let printed: Value = serde_json::from_str(&said).unwrap();
    let checked: Vec<_> = printed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["name"].as_str().unwrap(),
                one["version"].as_u64().unwrap(),
                one["result"].as_str().unwrap(),
            )
        })
        // The world brings some of its own.
        .filter(|(name, ..)| ["clean", "wasm"].contains(name))
        .collect();
    assert_eq!(
        checked,
        [("clean", 1, "same"), ("clean", 2, "same"), ("wasm", 2, "same")]
    );
    // A run under way keeps to the version that it has taken.
    let versions = || {
        let (code, said) = heddle(&["-o", "json", "script", "check", "slow"]);
        assert_eq!(code, Some(0), "{said}");
        let printed: Value = serde_json::from_str(&said).unwrap();
        let all = printed["items"].as_array().unwrap().iter();
        all.map(|one| one["version"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let slow =
        |number: u32| format!("export default () => new Promise((done) => setTimeout(done, 600_000, {number}));\n");
    for number in 1..=2 {
        node.put_bytes("/v1/scripts/slow", JS, slow(number))
            .await
            .expect_status(201);
        if number == 1 {
            node.put_group("slow", json!({"tasks": {"t": {"script": "slow"}}}))
                .await;
        }
    }
    assert_eq!(versions(), [2]);
    node.put_bytes("/v1/scripts/slow?activate=false", JS, slow(3))
        .await
        .expect_status(201);
    let run = node.start("slow", json!({})).await;
    let activate = json!({"version": 3});
    node.put("/v1/scripts/slow/active", activate).await.expect_status(200);
    assert_eq!(versions(), [2, 3]);
    node.post(&format!("/v1/runs/{run}/cancel"), json!({})).await;
    node.ended(&run).await;
    assert_eq!(versions(), [3]);
    // As if another interpreter had read another schema then, and accepted what this one does not.
    let sql = world.sql().await;
    let changed = "UPDATE heddle.script_versions SET params_schema = '{\"type\": \"object\"}', runtime = 'quickjs 1' WHERE version = 1 AND world = 'source/typescript'";
    assert_eq!(sql.execute(changed, &[]).await.unwrap(), 1);
    let (code, said) = heddle(&["script", "check", "clean"]);
    assert!(
        code == Some(1) && said.contains("changes: params_schema") && said.contains("(was quickjs 1)"),
        "{said}"
    );
    assert!(!said.contains("wasm@2"), "{said}");
    assert_eq!(heddle(&["script", "check", "nobody"]).0, Some(1));
}
