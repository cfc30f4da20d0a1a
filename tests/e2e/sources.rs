//! Scripts as text: JavaScript, TypeScript and Python, uploaded as they are.

use heddle_tests::{Sink, Spoken, TOKEN, World, eventually, run_program, task};
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
    let hello = heddle_scripts::get("hello").unwrap().to_vec();
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

/// What is wrong with a text is told with line, column and the line itself; what no runtime is for, too.
#[tokio::test]
async fn faults() {
    let world = World::new().await;
    let node = world.node().await;
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
        .expect_problem(415, &[]);
    let said = ruby["detail"].as_str().unwrap();
    assert!(
        said.contains("text/javascript") && said.contains("text/x-python"),
        "{ruby:#}"
    );
    node.get("/v1/scripts/bad").await.expect_problem(404, &[]);
}

/// The error kinds, with a trace that names the script's own line, in a run as in an invocation.
#[tokio::test]
async fn errors_tell_the_line() {
    let world = World::new().await;
    let node = world.node().await;
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
    let world = World::new().await;
    let mut node = world.node().await;
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

/// The walk of an author on the command line: a template, a test here, a push, a run there.
#[tokio::test]
async fn by_the_command_line() {
    let world = World::new().await;
    let node = world.node().await;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let server = [("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)];
    let heddle = |arguments: &[&str]| {
        let output = run_program(arguments, &server);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    };
    for (language, end) in [("typescript", "ts"), ("javascript", "js")] {
        let name = format!("words-{end}");
        let dir = at(&name);
        let told = heddle(&["script", "new", &name, "--lang", language, &dir]);
        let file = at(&format!("{name}/{name}.{end}"));
        assert!(
            told.contains(&format!("next: heddle script push {name} {file}")),
            "{told}"
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
            let cases = heddle(&["script", "test", &file]);
            assert!(cases.contains("3 of 3 cases as expected"), "{cases}");
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
        let output = run_program(&["script", "push", &name, &broken], &server);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("line 1, column 22"), "{said}");
    }
}

/// Python from the template to a run: what is told of a fault, the params' schema, the log's levels, the trace.
#[tokio::test]
async fn python() {
    let world = World::new().await;
    let node = world.node().await;
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
    let heddle = |arguments: &[&str]| {
        let output = run_program(arguments, &server);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{said}");
        text
    };
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
    let told = test(&case);
    let faults = told["faults"].to_string();
    assert!(
        faults.contains("not recorded: POST https://a.example/ with the body"),
        "{told:#}"
    );
    assert!(
        faults.contains("recorded but not used: POST https://a.example/"),
        "{told:#}"
    );
    let pushed = heddle(&["script", "push", "words", &file]);
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
    let world = World::new().await;
    let node = world.node().await;
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
    drop(dev);
    save("return a + b");
    let cases = json!({"cases": [
        {"name": "adds", "params": {"a": 1, "b": 2}, "expect": {"output": 3, "log": ["adding"]}},
        {"name": "wrong", "params": {"a": 1, "b": 2}, "expect": {"output": 4}},
    ]});
    std::fs::write(at("sum.test.json"), cases.to_string()).unwrap();
    let output = run_program(&["script", "test", &file], &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
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
    let heddle = |arguments: &[&str]| {
        let output = run_program(arguments, &[]);
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code(), said.concat())
    };
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
    let world = World::new().await;
    let node = world.node().await;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let server = [("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)];
    let heddle = |arguments: &[&str]| {
        let output = run_program(arguments, &server);
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code(), said.concat())
    };
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
        assert!(said.lines().any(|told| told == line), "{line}: {said}");
    }
    assert_eq!(heddle(&["script", "diff", "clean", "2", "2"]).0, Some(0));
    let file = at("clean.ts");
    std::fs::write(&file, text(2)).unwrap();
    assert_eq!(heddle(&["script", "diff", "clean", &file]), (Some(0), String::new()));
    let (code, said) = heddle(&["script", "diff", "clean", "1", &file]);
    assert!(code == Some(1) && said.contains(&format!("+++ {file}")), "{said}");
    assert_eq!(heddle(&["script", "diff", "clean", "7"]).0, Some(2));
    // Of wasm, what is known of it.
    for name in ["hello", "sum"] {
        let wasm = heddle_scripts::get(name).unwrap().to_vec();
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
    let told: Value = serde_json::from_str(&said).unwrap();
    let checked: Vec<_> = told["items"]
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
        let told: Value = serde_json::from_str(&said).unwrap();
        let all = told["items"].as_array().unwrap().iter();
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
    assert_eq!(heddle(&["script", "check", "nobody"]).0, Some(2));
}
