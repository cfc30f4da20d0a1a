//! Scripts as text: JavaScript, TypeScript and Python, uploaded as they are.

mod author;

use heddle_tests::{TOKEN, World, eventually, heddle_succeeds, run_program, task, time};
use serde_json::{Value, json};

const JS: &str = "text/javascript";
const TS: &str = "text/typescript";

const GREET: &str = "export const description = 'Greets.';
export const params = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
export default async function run({ name }, ctx) {
  console.warn('greeting', name);
  return { greeting: `Hello, ${name}`, task: ctx.task, attempt: ctx.attempt };
}
";

/// A source is a script like any other: versions, digests, schema, invoke, activate, delete; and its text comes back.
#[tokio::test]
async fn a_text_is_a_script() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    let put =
        async |media_type: &str, text: &str| node.put_bytes("/v1/scripts/greet", media_type, text.to_owned()).await;
    let first = put(JS, GREET).await.expect_status(201);
    assert_eq!(
        (&first["version"], &first["world"]),
        (&json!(1), &json!("source/javascript"))
    );
    assert_eq!(first["params_schema"]["required"], json!(["name"]));
    assert_eq!(first["description"], "Greets.");
    assert!(
        first["runtime"].as_str().unwrap().starts_with("quickjs-ng"),
        "{first:#}"
    );
    assert_eq!(
        put("application/javascript; charset=utf-8", GREET)
            .await
            .expect_status(200)["version"],
        1
    );
    // The same text in another language is another script.
    let second = put(TS, GREET).await.expect_status(201);
    assert_eq!(
        (&second["version"], &second["world"]),
        (&json!(2), &json!("source/typescript"))
    );
    assert_eq!(first["digest"], second["digest"]);

    for node in &nodes {
        let done = node.invoke("greet", json!({"name": "Ada"})).await;
        assert_eq!(done["output"]["greeting"], "Hello, Ada", "{done:#}");
        assert_eq!(done["logs"], json!([{"level": "warn", "message": "greeting Ada"}]));
    }
    node.post("/v1/scripts/greet/invoke", json!({"params": {}}))
        .await
        .expect_status(422);

    let text = |version: u32, part: &str| {
        let request = node.request(
            reqwest::Method::GET,
            &format!("/v1/scripts/greet/versions/{version}/{part}"),
        );
        async { request.send().await.unwrap() }
    };
    let source = text(2, "source").await;
    assert_eq!(source.headers()["content-type"], "text/typescript; charset=utf-8");
    assert_eq!(source.text().await.unwrap(), GREET);
    let wasm = text(1, "wasm").await;
    assert_eq!(wasm.status(), 404);
    assert!(wasm.text().await.unwrap().contains("was uploaded as source text"));
    let hello = heddle_scripts::get("hello").unwrap();
    node.put_bytes("/v1/scripts/greet", "application/wasm", hello)
        .await
        .expect_status(201);
    let none = text(3, "source").await;
    assert_eq!(none.status(), 404);
    assert!(none.text().await.unwrap().contains("was uploaded as wasm"));

    node.put("/v1/scripts/greet/active", json!({"version": 1}))
        .await
        .expect_status(200);
    node.put_group(
        "g",
        json!({"tasks": {"t": {"script": "greet", "params": {"name": "Bob"}}}}),
    )
    .await;
    let run = nodes[1].run("g", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["output"]["greeting"]),
        (&json!("succeeded"), &json!("Hello, Bob"))
    );
    assert_eq!(node.delete("/v1/scripts/greet").await.status, 409);
    node.delete("/v1/groups/g").await.expect_status(200);
    node.delete("/v1/scripts/greet").await.expect_status(204);
}

/// A top level sees the time of the first upload of its text: on each node, whatever the name and the language, and also
/// if a node has to evaluate it again.
#[tokio::test]
async fn a_top_level_has_one_time() {
    let world = World::new().await;
    let data = world.directory().join("second");
    let options = world.options().data_dir(&data);
    let (first, mut second) = (world.node().await, options.start().await);
    let js = "const at = Date.now();\nexport default () => at;\n";
    let python = "import time\nat = time.time_ns() // 1_000_000\ndef run():\n    return at\n";
    let mut expected = Vec::new();
    for (name, media_type, text) in [("js", JS, js), ("python", "text/x-python", python)] {
        let path = format!("/v1/scripts/{name}");
        let version = first.put_bytes(&path, media_type, text).await.expect_status(201);
        expected.push((name, json!(time(&version["created_at"]).timestamp_millis())));
    }
    // Later, the same bytes at another node.
    second.put_bytes("/v1/scripts/again", TS, js).await.expect_status(201);
    expected.push(("again", expected[0].1.clone()));
    for round in ["uploaded", "evaluated again"] {
        for (name, at) in &expected {
            for node in [&first, &second] {
                let done = node.invoke(name, json!({})).await;
                assert_eq!(&done["output"], at, "{name}, {round}: {done:#}");
            }
        }
        second.terminate();
        assert!(second.end().await.success());
        std::fs::remove_dir_all(data.join("artefacts")).unwrap();
        second = options.start().await;
    }
}

/// What is wrong with a text is told with line, column and the line itself. Of a language without a runtime, it is said what
/// is accepted.
#[tokio::test]
async fn faults() {
    let (_world, node) = World::with_node().await;
    let put = async |media_type: &str, text: &str| node.put_bytes("/v1/scripts/bad", media_type, text.to_owned()).await;
    let problem = put(TS, "const a: number = 1;\nexport default () => ;\n")
        .await
        .expect_problem(422, &[""]);
    let error = &problem["errors"][0];
    assert_eq!(
        (&error["line"], &error["column"]),
        (&json!(2), &json!(22)),
        "{problem:#}"
    );
    assert_eq!(error["source"], "export default () => ;");
    assert!(
        error["detail"].as_str().unwrap().contains("line 2, column 22"),
        "{problem:#}"
    );
    for (text, said) in [
        (
            "import _ from 'lodash'; export default () => _",
            "`lodash` cannot be imported",
        ),
        ("export const a = 1", "does not export `run`"),
        ("for (;;); export default () => 1", "limit of 5s of processor time"),
        (
            "export const params = { type: 'nope' }; export default () => 1",
            "schema for params",
        ),
        ("throw new Error('no'); export default () => 1", "no"),
        ("", "empty"),
    ] {
        let problem = put(JS, text).await.expect_problem(422, &[""]);
        assert!(
            problem["detail"].as_str().unwrap().contains(said),
            "{text}: {problem:#}"
        );
    }
    put(JS, &format!("// {}", "x".repeat(5 << 20)))
        .await
        .expect_problem(413, &[]);
    let ruby = put("text/x-ruby", "def run(params, ctx) end")
        .await
        .expect_problem(422, &[""]);
    let said = ruby["detail"].as_str().unwrap();
    assert!(
        said.contains("text/javascript") && said.contains("text/x-python"),
        "{ruby:#}"
    );
    node.get("/v1/scripts/bad").await.expect_problem(404, &[]);
    // The text of wasm is accepted where wasm is, by what it is and not by what it is called.
    let wat = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
    for (name, media_type) in [("a", "text/x-wat"), ("b", "text/plain"), ("c", "application/wasm")] {
        let made = node.put_bytes(&format!("/v1/scripts/{name}"), media_type, wat).await;
        assert_eq!(made.expect_status(201)["world"], "wasi:cli/command@p1", "{media_type}");
    }
}

/// The error kinds, with a trace that names the script's own line, in a run as in an invocation.
#[tokio::test]
async fn errors_tell_the_line() {
    let (_world, node) = World::with_node().await;
    let source = "type P = { how: string };\nexport default async function run(params: P, ctx: any) {\n  \
        if (params.how === 'fatal') throw new Fatal('never');\n  if (params.how === 'skip') throw new Skip('nothing');\n  \
        if (ctx.attempt < 2) throw new Retry('again', 10);\n  \
        if (params.how === 'bad') throw new RangeError('beyond');\n  await ctx.state.set('n', ctx.attempt);\n  return { attempt: ctx.attempt };\n}\n";
    node.put_bytes("/v1/scripts/how", TS, source).await.expect_status(201);
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    let tasks = ["fatal", "skip", "bad", "good"].map(|how| {
        let spec = json!({"script": "how", "params": {"how": how}, "retry": retry});
        (how.to_owned(), spec)
    });
    let tasks: serde_json::Map<String, Value> = tasks.into_iter().collect();
    node.put_group("g", json!({"tasks": tasks})).await;
    let run = node.run("g", json!({})).await;
    let of = |name: &str| task(&run, name).clone();
    assert_eq!(
        (
            &of("fatal")["error"]["kind"],
            &of("fatal")["error"]["message"],
            &of("fatal")["attempt"]
        ),
        (&json!("fatal"), &json!("never"), &json!(1))
    );
    assert_eq!(of("skip")["state"], "skipped");
    assert_eq!(of("bad")["error"]["message"], "RangeError: beyond");
    assert_eq!(
        (&of("good")["output"]["attempt"], &of("good")["state"]),
        (&json!(2), &json!("succeeded"))
    );
    let id = heddle_tests::id(&run);
    let trace = node.attempts(&id, "bad").await[1]["error"]["trace"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        trace.contains("run (how.ts:6:") && !trace.contains("heddle:"),
        "{trace}"
    );
    let invoked = node.invoke("how", json!({"how": "fatal"})).await;
    assert!(
        invoked["error"]["trace"].as_str().unwrap().contains("how.ts:3:"),
        "{invoked:#}"
    );
}

/// A node that starts with an empty cache makes the snapshots again, and runs go on.
#[tokio::test]
async fn another_node_makes_its_own_snapshot() {
    let (world, mut node) = World::with_node().await;
    node.put_bytes("/v1/scripts/greet", JS, GREET).await.expect_status(201);
    node.put_group(
        "g",
        json!({"tasks": {"t": {"script": "greet", "params": {"name": "Ada"}}}}),
    )
    .await;
    node.kill();
    let other = world.node().await;
    let run = other.run("g", json!({})).await;
    assert_eq!(task(&run, "t")["output"]["greeting"], "Hello, Ada");
    // In time it is there before it is asked for.
    eventually("a run is quick", async || {
        let run = other.run("g", json!({})).await;
        (run["state"] == "succeeded").then_some(())
    })
    .await;
}

/// Python from the template to a run: what is told of a fault, the params' schema, the log's levels, the trace.
#[tokio::test]
async fn python() {
    let (_world, node) = World::with_node().await;
    let put = async |text: &str| {
        node.put_bytes("/v1/scripts/greet", "text/x-python", text.to_owned())
            .await
    };
    let source = "import logging\nfrom dataclasses import dataclass\n\n@dataclass\nclass Params:\n    name: str\n\n\
        def run(params: Params, ctx):\n    logging.warning('greeting %s', params.name)\n    if params.name == 'nobody':\n        \
        raise KeyError(params.name)\n    return {'greeting': f'Hello, {params.name}', 'task': ctx.task}\n";
    let made = put(source).await.expect_status(201);
    assert_eq!(made["world"], "source/python");
    assert_eq!(made["params_schema"]["required"], json!(["name"]));
    assert!(
        made["runtime"].as_str().unwrap().starts_with("cpython 3.14"),
        "{made:#}"
    );
    let problem = put("x = 1\ndef run(:\n").await.expect_problem(422, &[""]);
    let error = &problem["errors"][0];
    assert_eq!(
        (&error["line"], &error["column"]),
        (&json!(2), &json!(9)),
        "{problem:#}"
    );
    assert_eq!(error["source"], "def run(:");
    let done = node.invoke("greet", json!({"name": "Ada"})).await;
    assert_eq!(done["output"]["greeting"], "Hello, Ada", "{done:#}");
    assert_eq!(done["logs"], json!([{"level": "warn", "message": "greeting Ada"}]));
    node.post("/v1/scripts/greet/invoke", json!({"params": {}}))
        .await
        .expect_status(422);
    let tasks = json!({
        "good": {"script": "greet", "params": {"name": "Bob"}},
        "bad": {"script": "greet", "params": {"name": "nobody"}},
    });
    node.put_group("g", json!({"tasks": tasks})).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(
        task(&run, "good")["output"],
        json!({"greeting": "Hello, Bob", "task": "good"})
    );
    let bad = &task(&run, "bad")["error"];
    assert_eq!(
        (&bad["kind"], &bad["message"]),
        (&json!("failed"), &json!("KeyError: 'nobody'"))
    );
    let attempts = node.attempts(&heddle_tests::id(&run), "bad").await;
    let trace = attempts[0]["error"]["trace"].as_str().unwrap();
    assert!(trace.contains("File \"greet.py\", line 11, in run"), "{trace}");

    // The command line finds the interpreter that the node has compiled.
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(at("heddle")).unwrap();
    std::os::unix::fs::symlink(node.data_dir().join("artefacts"), at("heddle/interpreters")).unwrap();
    let cache = at("");
    let server = [
        ("HEDDLE_URL", node.base()),
        ("HEDDLE_TOKEN", TOKEN),
        ("XDG_CACHE_HOME", &cache),
    ];
    let heddle = |arguments: &[&str]| heddle_succeeds(arguments, &server);
    let logs = heddle(&["script", "logs", "greet"]);
    assert!(
        logs.contains("greeting Bob") && logs.contains("greeting nobody"),
        "{logs}"
    );
    heddle(&["script", "new", "words", "--lang", "python", &at("words")]);
    let file = at("words/words.py");
    let cases = heddle(&["script", "test", &file]);
    assert!(cases.contains("3 of 3 cases as expected"), "{cases}");
    // With answers, a clock and chance of the author's.
    let source = "import random, time\nfrom datetime import datetime, timezone\n\ndef run(params, ctx):\n    [row] = ctx.sql('w').query('select $1', params['n'])\n    \
        time.sleep(3600)\n    answer = ctx.fetch('https://a.example/', method='POST', json=row)\n    \
        return [answer.status, answer.json(), datetime.now(timezone.utc).isoformat(), random.random()]\n";
    std::fs::write(at("asks.py"), source).unwrap();
    let mut case = json!({
        "params": {"n": 1}, "now": "2026-01-01T00:00:00Z", "seed": 3,
        "sql": [{"connection": "w", "statement": "select $1", "params": [1], "rows": [{"a": 1}]}],
        "http": [{"method": "POST", "url": "https://a.example/", "body": {"a": 1}, "answer": {"status": 201, "body": {"b": 2}}}],
        "expect": {},
    });
    let test = |case: &Value| {
        std::fs::write(at("asks.test.json"), json!({"cases": [case]}).to_string()).unwrap();
        let output = run_program(&["-o", "json", "script", "test", &at("asks.py")], &server);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["cases"][0].clone()
    };
    assert_eq!(test(&case)["ok"], true, "{case:#}");
    case["expect"]["output"] = json!([201, {"b": 2}, "2026-01-01T01:00:00+00:00", 0]);
    case["http"][0]["body"] = json!({"a": 2});
    let result = test(&case);
    let faults = result["faults"].to_string();
    assert!(
        faults.contains("not recorded: POST https://a.example/ with the body"),
        "{result:#}"
    );
    assert!(
        faults.contains("recorded but not used: POST https://a.example/"),
        "{result:#}"
    );
    let pushed = heddle(&["script", "push", "words", &file]);
    assert!(pushed.contains("words@1 (source/python"), "{pushed}");
    // By its directory, it is the same.
    let directory = std::path::Path::new(&file).parent().unwrap().display().to_string();
    let pushed = heddle(&["script", "push", "words", &directory]);
    assert!(pushed.contains("words@1 (source/python"), "{pushed}");
    let there = heddle(&["-o", "json", "script", "test", "words"]);
    let there: Value = serde_json::from_str(&there).unwrap();
    assert_eq!(there["output"]["words"], 3, "{there:#}");
    let saved = at("saved.py");
    heddle(&["script", "download", "words", &saved]);
    assert_eq!(std::fs::read(&saved).unwrap(), std::fs::read(&file).unwrap());
}

/// A text that exports `handle` consumes a topic's messages, with an outcome for each.
#[tokio::test]
async fn a_text_consumes_messages() {
    let (_world, node) = World::with_node().await;
    let source = "export function handle(batch, ctx) {
        return batch.messages.map((m) => (m.payload.bad ? new Fatal(`no ${m.id} of ${batch.topic}`) : undefined));
    }";
    let put = node.put_bytes("/v1/scripts/post", JS, source).await;
    assert_eq!(put.expect_status(201)["world"], "source/javascript");
    // One that does not is refused where it is named.
    let plain = "export default () => 1";
    node.put_bytes("/v1/scripts/plain", JS, plain).await.expect_status(201);
    let wrong = json!({"script": "plain", "granularity": "instant"});
    let refused = node.put("/v1/topics/letters", wrong).await.expect_status(422);
    assert_eq!(refused["errors"][0]["pointer"], "/script", "{refused:#}");
    let said = refused["errors"][0]["detail"].as_str().unwrap();
    assert!(said.contains("`plain@1` does not export `handle`"), "{said}");
    let spec = json!({"script": "post", "granularity": "instant", "batch": 10});
    node.put("/v1/topics/letters", spec).await.expect_status(201);
    let message = |receiver: u64, bad: bool| json!({"sender": 1, "receiver": receiver, "due": "2020-01-01T00:00:00Z", "payload": {"bad": bad}});
    let sent = json!([message(1, false), message(u64::MAX / 2, true), message(3, false)]);
    let reply = node.post("/v1/topics/letters/messages", sent).await.expect_status(200);
    assert_eq!(reply["accepted"], 3, "{reply:#}");
    eventually("all three have an outcome", async || {
        let all = node.all("/v1/topics/letters/messages?limit=10").await;
        let count = |state: &str| all.iter().filter(|message| message["state"] == state).count();
        (count("sent") == 2 && count("failed") == 1).then_some(())
    })
    .await;
}

/// A text that has only `handle` is no script for tasks: refused where one is named, and where a run would need it.
#[tokio::test]
async fn texts_for_messages_are_no_tasks() {
    let (world, mut node) = World::with_node().await;
    let handles = [
        (JS, "export const handle = () => {};", "export default () => 1"),
        ("text/x-python", "def handle(batch): pass\n", "def run(): return 1\n"),
    ];
    for (number, (media_type, only, runs)) in handles.into_iter().enumerate() {
        let (script, group) = (format!("s{number}"), format!("g{number}"));
        let path = format!("/v1/scripts/{script}");
        let both = format!("{runs}{}{only}", if media_type == JS { ";\n" } else { "\n" });
        for (text, exports) in [
            (only, json!(["handle"])),
            (runs, json!(["run"])),
            (both.as_str(), json!(["run", "handle"])),
        ] {
            let made = node
                .put_bytes(&path, media_type, text.to_owned())
                .await
                .expect_status(201);
            assert_eq!(made["exports"], exports, "{text}");
        }
        let spec = |script: String| json!({"history": true, "tasks": {"t": {"script": script}}});
        // By a version, and by the name while that is the active one.
        let refused = node.refused_group(&group, spec(format!("{script}@1"))).await;
        let refused = refused.expect_problem(422, &["/tasks/t/script"]);
        assert!(refused.to_string().contains("exports only `handle`"), "{refused:#}");
        let path = format!("/v1/groups/{group}/validate");
        let answer = node.post(&path, spec(format!("{script}@1"))).await;
        answer.expect_problem(422, &["/tasks/t/script"]);
        let activate = format!("/v1/scripts/{script}/active");
        node.put(&activate, json!({"version": 1})).await.expect_status(200);
        let answer = node.refused_group(&group, spec(script.clone())).await;
        answer.expect_problem(422, &["/tasks/t/script"]);
        // The name comes to mean it behind the group's back.
        node.put(&activate, json!({"version": 3})).await.expect_status(200);
        node.put_group(&group, spec(script.clone())).await;
        assert_eq!(node.run(&group, json!({})).await["state"], "succeeded");
        node.put(&activate, json!({"version": 1})).await.expect_status(200);
        let runs = format!("/v1/groups/{group}/runs");
        let said = node.post(&runs, json!({})).await.expect_status(422).to_string();
        assert!(
            said.contains(&format!("the task `t` cannot run `{script}@1`")),
            "{said}"
        );
        let backfill = json!({"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z", "step": "1d"});
        let backfills = format!("/v1/groups/{group}/backfills");
        let said = node.post(&backfills, backfill).await.expect_status(422).to_string();
        assert!(said.contains("cannot run"), "{said}");
    }
    // What a build uploaded that did not write it down is found out when a node starts.
    let sql = world.sql().await;
    sql.execute(
        "UPDATE heddle.script_versions SET exports = NULL WHERE world LIKE 'source/%'",
        &[],
    )
    .await
    .unwrap();
    node.kill();
    let node = world.node().await;
    eventually("what each version exports", async || {
        let all = node.all("/v1/scripts/s1/versions").await;
        let mut exports: Vec<String> = all.iter().map(|version| version["exports"].to_string()).collect();
        exports.sort();
        (exports == [r#"["handle"]"#, r#"["run","handle"]"#, r#"["run"]"#]).then_some(())
    })
    .await;
    let spec = json!({"tasks": {"t": {"script": "s1@1"}}});
    node.refused_group("h", spec)
        .await
        .expect_problem(422, &["/tasks/t/script"]);
}

/// An upload has room of its own to run the text's top level: also when a node has one slot, or all of them are taken.
#[tokio::test]
async fn uploads_while_all_slots_are_taken() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_SLOTS", "1").start().await;
    let put = async |name: &str, media_type: &str, text: &str| {
        node.put_bytes(&format!("/v1/scripts/{name}"), media_type, text.to_owned())
            .await
            .expect_status(201)
    };
    put("idle", JS, GREET).await;
    node.put_group("long", crate::one(crate::sleeps(600.0))).await;
    let run = node.start("long", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    for (name, media_type) in [("script", JS), ("typed", TS)] {
        put(name, media_type, &format!("{GREET}// while it sleeps\n")).await;
    }
    assert_eq!(task(&node.run_now(&run).await, "t")["state"], "running");
}
