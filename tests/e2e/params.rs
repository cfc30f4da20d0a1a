//! Params: whence they come, what templates make of them, what is checked when.

use heddle_tests::{World, task};
use serde_json::{Value, json};

use crate::{one, with};

/// Script defaults <- group <- task <- run, merged by top-level key; `task_params` last.
#[tokio::test]
async fn layers() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "layers",
        json!({
            "params": {"a": 1, "b": 1, "c": 1, "deep": {"x": 1}},
            "tasks": {
                "t": {"script": "echo", "params": {"b": 2, "c": 2, "e": 2}},
                "u": {"script": "echo"},
            },
        }),
    )
    .await;
    let submission = json!({
        "params": {"c": 3, "e": 3, "deep": {"y": 3}, "f": null},
        "task_params": {"t": {"e": 4}},
    });
    let run = node.run("layers", submission.clone()).await;
    assert_eq!(run["state"], "succeeded");
    let expect = json!({"a": 1, "b": 2, "c": 3, "deep": {"y": 3}, "e": 4, "f": null});
    assert_eq!(task(&run, "t")["output"]["params"], expect);
    let expect = json!({"a": 1, "b": 1, "c": 3, "deep": {"y": 3}, "e": 3, "f": null});
    assert_eq!(task(&run, "u")["output"]["params"], expect);
    assert_eq!(
        (&run["params"], &run["task_params"]),
        (&submission["params"], &submission["task_params"])
    );
}

/// A string that is one expression keeps its type; what stands around it makes text.
#[tokio::test]
async fn templates_keep_types() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "types",
        json!({
            "params": {"n": 5, "doubled": "{{ params.n * 2 }}"},
            "tasks": {
                "first-task": {"script": "sum", "params": {"numbers": [1, 2]}},
                "t": {"script": "echo", "depends_on": ["first-task"], "params": {
                    "number": "{{ params.n }}",
                    "text": "n={{ params.n }}",
                    "object": "{{ upstream[\"first-task\"] }}",
                    "nested": {"list": ["{{ upstream['first-task'].sum }}", "x"]},
                    "array": "{{ [1, 'a', none] }}",
                    "truth": "{{ params.n > 3 }}",
                    "json": "{{ upstream['first-task'] | tojson }}!",
                    "day": "{{ logical_time | date }}",
                    "moment": "{{ logical_time | datetime }}",
                    "end": "{{ data_interval.end | date }}",
                    "run": "{{ run.id }}",
                    "group": "{{ run.group }}",
                    "plain": "{ not } a template",
                }},
            },
        }),
    )
    .await;
    let run = node
        .run("types", json!({"logical_time": "2013-07-01T22:30:00+00:00"}))
        .await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let params = &task(&run, "t")["output"]["params"];
    let sum = json!({"sum": 3.0, "count": 2, "min": 1.0, "max": 2.0});
    for (key, value) in [
        ("n", json!(5)),
        ("doubled", json!(10)),
        ("number", json!(5)),
        ("text", json!("n=5")),
        ("object", sum.clone()),
        ("nested", json!({"list": [3.0, "x"]})),
        ("array", json!([1, "a", null])),
        ("truth", json!(true)),
        ("day", json!("2013-07-01")),
        ("end", json!("2013-07-01")),
        ("run", run["id"].clone()),
        ("group", json!("types")),
        ("plain", json!("{ not } a template")),
    ] {
        assert_eq!(params[key], value, "{key}");
    }
    let text = params["json"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(text.strip_suffix('!').unwrap()).unwrap(),
        sum
    );
    assert!(
        params["moment"].as_str().unwrap().starts_with("2013-07-01"),
        "{params:#}"
    );
    assert_eq!(run["logical_time"], "2013-07-01T22:30:00.000000Z");
}

/// Run params are data, never rendered.
#[tokio::test]
async fn run_params_are_data() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "data",
        one(json!({"script": "echo", "params": {"copy": "{{ params.given }}", "n": 2, "seen": "{{ params.n }} {{ params.z }}"}})),
    )
    .await;
    let given = json!({"given": "{{ 1 + 1 }}", "own": "{% for x in y %}"});
    let run = node
        .run("data", json!({"params": given, "task_params": {"t": {"z": "{{ nope"}}}))
        .await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let params = &task(&run, "t")["output"]["params"];
    assert_eq!(
        params,
        &json!({"given": "{{ 1 + 1 }}", "own": "{% for x in y %}", "z": "{{ nope", "copy": "{{ 1 + 1 }}", "n": 2, "seen": "2 {{ nope"})
    );
}

/// What is constant is checked at PUT, with a pointer for each error.
#[tokio::test]
async fn constants_are_checked_at_put() {
    let (_world, node) = World::with_node().await;
    let fib = |params: Value| one(json!({"script": "fib", "params": params}));
    node.refused_group("g", fib(json!({"n": "x"})))
        .await
        .expect_problem(422, &["/tasks/t/params/n"]);
    node.refused_group("g", fib(json!({"n": -1})))
        .await
        .expect_problem(422, &["/tasks/t/params/n"]);
    node.refused_group("g", fib(json!({"n": 94, "recursion": "yes"})))
        .await
        .expect_problem(422, &["/tasks/t/params/n", "/tasks/t/params/recursion"]);
    // What is missing may come with the run.
    node.put_group("g", fib(json!({}))).await;
    // A template may give anything.
    node.put_group("h", fib(json!({"n": "{{ 5 }}"}))).await;
    let run = node.run("h", json!({})).await;
    assert_eq!(task(&run, "t")["output"], 5);
}

#[tokio::test]
async fn constants_are_checked_at_submission() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"t": {"script": "fib"}, "u": {"script": "fib", "params": {"n": 1}}}}),
    )
    .await;
    let submit = async |submission: Value| node.post("/v1/groups/g/runs", submission).await;
    submit(json!({"params": {"n": 100}}))
        .await
        .expect_said(422, "/params/n");
    submit(json!({"task_params": {"t": {"n": []}}}))
        .await
        .expect_said(422, "/task_params/t/n");
    submit(json!({"params": {"n": 1}, "task_params": {"nope": {"n": 1}}}))
        .await
        .expect_problem(422, &["/task_params/nope"]);
    submit(json!({})).await.expect_said(422, "n");
    let run = node.run("g", json!({"params": {"n": 10}})).await;
    assert_eq!(run["state"], "succeeded");
    assert_eq!(
        (&task(&run, "t")["output"], &task(&run, "u")["output"]),
        (&json!(55), &json!(55))
    );
    let runs = node.all("/v1/runs?group=g").await;
    assert_eq!(runs.len(), 1, "what was refused left no run");
}

/// What is rendered when the task starts is checked then: kind `invalid`, and never tried again.
#[tokio::test]
async fn rendered_params_are_checked_at_the_start() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 5, "interval": "10ms"});
    let fib = json!({"script": "fib", "depends_on": ["first"], "retry": retry});
    node.put_group(
        "g",
        json!({"tasks": {
            "first": {"script": "hello"},
            "wrong": with(fib.clone(), json!({"params": {"n": "{{ upstream.first.greeting }}"}})),
            "unknown": with(fib.clone(), json!({"params": {"n": "{{ upstream.first.nope.deeper }}"}})),
            "breaks": with(fib, json!({"params": {"n": "{{ 1 / 0 }}"}})),
        }}),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "failed");
    for name in ["wrong", "unknown", "breaks"] {
        let found = task(&run, name);
        assert_eq!(
            (&found["state"], &found["error"]["kind"]),
            (&json!("failed"), &json!("invalid")),
            "{found:#}"
        );
        assert_eq!(node.attempts(&heddle_tests::id(&run), name).await.len(), 1, "{name}");
    }
}

/// Templates are bounded in time and size.
#[tokio::test]
async fn templates_are_bounded() {
    let (_world, node) = World::with_node().await;
    let long = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}x";
    let large = "{% for a in range(10000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}";
    let power = "{{ 'x' * 1000000000 }}";
    let mut tasks = json!({"light": {"script": "hello"}});
    for (name, template) in [("long", long), ("large", large), ("power", power)] {
        tasks[name] = json!({"script": "echo", "params": {"x": template}});
    }
    node.put_group("g", json!({"tasks": tasks})).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(task(&run, "light")["state"], "succeeded");
    for name in ["long", "large", "power"] {
        assert_eq!(task(&run, name)["error"]["kind"], "invalid", "{:#}", task(&run, name));
    }
}

/// A bad template is refused at PUT, with its place.
#[tokio::test]
async fn bad_templates_are_refused() {
    let (_world, node) = World::with_node().await;
    for bad in [
        "{{ nope",
        "{% if %}",
        "{{ 1 + }}",
        "{% for x in %}{% endfor %}",
        "{{ x | no_such_filter }}",
    ] {
        node.refused_group("g", one(json!({"script": "echo", "params": {"a": {"b": ["ok", bad]}}})))
            .await
            .expect_problem(422, &["/tasks/t/params/a/b/1"]);
        node.refused_group("g", with(one(json!({"script": "echo"})), json!({"params": {"p": bad}})))
            .await
            .expect_problem(422, &["/params/p"]);
    }
    node.refused_group("g", one(json!({"script": "echo", "when": "1 +"})))
        .await
        .expect_problem(422, &["/tasks/t/when"]);
    node.refused_group("g", one(json!({"script": "echo", "for_each": "{{ ["})))
        .await
        .expect_problem(422, &["/tasks/t/for_each"]);
}

/// A named template (a JSON Schema) binds the run's params.
#[tokio::test]
async fn a_group_may_name_a_template() {
    let (_world, node) = World::with_node().await;
    let schema = json!({"type": "object", "required": ["who"], "properties": {"who": {"type": "string"}}});
    node.put("/v1/templates/strict", schema).await.expect_status(201);
    node.put_group("g", with(one(json!({"script": "echo"})), json!({"template": "strict"})))
        .await;
    node.post("/v1/groups/g/runs", json!({"params": {"who": 5}}))
        .await
        .expect_problem(422, &["/params/who"]);
    let lacks = node
        .post("/v1/groups/g/runs", json!({"params": {}}))
        .await
        .expect_problem(422, &["/params"]);
    assert_eq!(lacks["errors"][0]["missing"], "who", "{lacks:#}");
    let run = node.run("g", json!({"params": {"who": "me"}})).await;
    assert_eq!(run["state"], "succeeded");
    node.refused_group("h", with(one(json!({"script": "echo"})), json!({"template": "nope"})))
        .await
        .expect_problem(422, &["/template"]);
}

/// Params that nobody could check beforehand are checked when the task starts: what SQL submits, what time makes, what
/// another version of the script asks for.
#[tokio::test]
async fn what_was_not_checked_is_when_the_task_starts() {
    let (world, node) = World::with_node().await;
    // `n` may still come with a run; with these it does not.
    let spec = json!({"schedules": {"s": {"every": "1s"}}, "tasks": {"t": {"script": "fib"}}});
    node.put_group("g", spec).await;
    world
        .sql()
        .await
        .execute("SELECT heddle.submit('g', '{}', 'by-sql')", &[])
        .await
        .expect("a submission");
    for trigger in ["manual", "schedule"] {
        let path = format!("/v1/runs?group=g&trigger={trigger}&state=failed&limit=1");
        let run = heddle_tests::eventually(trigger, async || {
            let found = node.get(&path).await.expect_status(200)["items"][0].clone();
            found["id"].is_string().then_some(found)
        })
        .await;
        let run = node.run_now(run["id"].as_str().expect("an id")).await;
        let error = &task(&run, "t")["error"];
        assert_eq!(error["kind"], "invalid", "{run:#}");
        assert!(
            error["message"].as_str().expect("a message").contains("required"),
            "{run:#}"
        );
    }
    let run = node.run("g", json!({"params": {"n": 5}})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
}

/// What JSON Schema takes for an integer reaches the script as one, wherever it comes from; what else it says stays.
#[tokio::test]
async fn whole_numbers_are_integers() {
    let (_world, node) = World::with_node().await;
    let fib = |params: Value| one(json!({"script": "fib", "params": params}));
    node.put_group("given", fib(json!({}))).await;
    node.put_group("constant", fib(json!({"n": 10.0}))).await;
    node.put_group("rendered", fib(json!({"n": "{{ 20 / 2 }}"}))).await;
    node.put_group("sub", one(json!({"group": "given", "params": {"n": "{{ 20 / 2 }}"}})))
        .await;
    let yaml = "tasks: {t: {script: fib, params: {n: 010}}}";
    node.put_bytes("/v1/groups/written", "application/yaml", yaml)
        .await
        .expect_status(201);
    for (group, submission) in [
        ("given", json!({"params": {"n": 10.0}})),
        ("given", json!({"task_params": {"t": {"n": 1e1}}})),
        ("constant", json!({})),
        ("rendered", json!({})),
        ("written", json!({})),
    ] {
        let run = node.run(group, submission).await;
        assert_eq!(task(&run, "t")["output"], 55, "{group}: {run:#}");
    }
    assert_eq!(node.run("sub", json!({})).await["state"], "succeeded");
    assert_eq!(node.invoke("fib", json!({"n": 10.0})).await["output"], 55);
    // Where nobody asks for an integer, a number stays as it was written.
    node.put_group("free", one(json!({"script": "echo"}))).await;
    let run = node.run("free", json!({"params": {"n": 5.0, "list": [1.0, 2]}})).await;
    assert_eq!(
        task(&run, "t")["output"]["params"].to_string(),
        r#"{"list":[1.0,2],"n":5.0}"#
    );
    node.post("/v1/groups/given/runs", json!({"params": {"n": 5.5}}))
        .await
        .expect_problem(422, &["/params/n"]);
}
