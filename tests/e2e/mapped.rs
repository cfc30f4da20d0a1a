//! Mapped tasks.

use heddle_tests::{World, eventually, item, seconds, task};
use serde_json::{Value, json};

use crate::cli::{DONE, ends};
use crate::{one, sleeps, with};

/// One task run per item, in order; the context carries item, index and count.
#[tokio::test]
async fn items_in_order() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "map",
        json!({"tasks": {
            "m": {"script": "echo", "for_each": ["a", {"b": 1}, null, 4], "params": {"it": "{{ item }}"}},
            "after": {"script": "echo", "params": {"all": "{{ upstream.m }}"}, "depends_on": ["m"]},
        }}),
    )
    .await;
    let run = node.run("map", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let items = [json!("a"), json!({"b": 1}), Value::Null, json!(4)];
    let output = task(&run, "m")["output"].as_array().unwrap().clone();
    assert_eq!(output.len(), 4);
    for (index, wanted) in items.iter().enumerate() {
        assert_eq!(&output[index]["params"]["it"], wanted);
        let context = &output[index]["context"];
        assert_eq!(context["item"], json!({"item": wanted, "index": index, "count": 4}));
        assert_eq!((&context["index"], &context["count"]), (&json!(index), &json!(4)));
        let own = item(&run, "m", Some(index as u64));
        assert_eq!((&own["state"], &own["output"]), (&json!("succeeded"), &output[index]));
    }
    let after = task(&run, "after");
    assert_eq!(after["output"]["params"]["all"], Value::Array(output.clone()));
    let keys: std::collections::BTreeSet<&str> = output
        .iter()
        .filter_map(|one| one["context"]["idempotency_key"].as_str())
        .collect();
    assert_eq!(keys.len(), 4, "each item has an idempotency key of its own");
}

/// After a failed item the others continue, and the task fails at the end, with null in that item's position.
#[tokio::test]
async fn failed_items_are_null() {
    let (_world, node) = World::with_node().await;
    let flaky = json!({"script": "flaky", "for_each": [0, 1, 0], "params": {"fail_times": "{{ item }}"}});
    node.put_group(
        "map",
        json!({"tasks": {
            "m": flaky,
            "lenient": with(flaky.clone(), json!({"allow_failure": true})),
            "after": {"script": "hello", "depends_on": ["m"]},
            "after_lenient": {"script": "echo", "params": {"all": "{{ upstream.lenient }}"}, "depends_on": ["lenient"]},
        }}),
    )
    .await;
    let run = node.run("map", json!({})).await;
    assert_eq!(run["state"], "failed");
    let output = json!([{"attempt": 1}, null, {"attempt": 1}]);
    for name in ["m", "lenient"] {
        assert_eq!(
            (&task(&run, name)["state"], &task(&run, name)["output"]),
            (&json!("failed"), &output),
            "{name}"
        );
        assert_eq!(item(&run, name, Some(1))["state"], "failed");
        assert_eq!(item(&run, name, Some(2))["state"], "succeeded");
    }
    assert_eq!(task(&run, "after")["state"], "upstream_failed");
    assert_eq!(task(&run, "after_lenient")["output"]["params"]["all"], output);
}

/// Items are retried each by itself.
#[tokio::test]
async fn items_are_retried() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 2, "interval": "20ms"});
    let map = json!({"script": "flaky", "for_each": [0, 1, 2], "params": {"fail_times": "{{ item }}"}, "retry": retry});
    node.put_group("map", one(map)).await;
    let run = node.run("map", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        task(&run, "t")["output"],
        json!([{"attempt": 1}, {"attempt": 2}, {"attempt": 3}])
    );
    let id = heddle_tests::id(&run);
    let detail = node
        .get(&format!("/v1/runs/{id}/tasks/t?item=2"))
        .await
        .expect_status(200);
    assert_eq!(detail["attempts"].as_array().unwrap().len(), 3, "{detail:#}");
}

/// `fail_fast` cancels the rest: what has not started, and what runs.
#[tokio::test]
async fn fail_fast() {
    let (_world, node) = World::with_node().await;
    let map = json!({"script": "hostile", "params": {"mode": "{{ item }}"}, "fail_fast": true});
    let map =
        |items: Value, concurrency: u32| with(map.clone(), json!({"for_each": items, "concurrency": concurrency}));
    node.put_group("one-by-one", one(map(json!(["trap", "sleep", "sleep"]), 1)))
        .await;
    let run = node.run("one-by-one", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["state"]),
        (&json!("failed"), &json!("failed"))
    );
    for (index, state) in [(0, "failed"), (1, "cancelled"), (2, "cancelled")] {
        assert_eq!(item(&run, "t", Some(index))["state"], state, "item {index}");
    }
    node.put_group("together", one(map(json!(["sleep", "trap", "spin"]), 3)))
        .await;
    let run = node.run("together", json!({})).await;
    for (index, state) in [(0, "cancelled"), (1, "failed"), (2, "cancelled")] {
        assert_eq!(item(&run, "t", Some(index))["state"], state, "item {index}");
    }
}

/// An empty array succeeds with `[]`, written out or from a template.
#[tokio::test]
async fn no_items() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "empty",
        json!({"tasks": {
            "written": {"script": "hello", "for_each": []},
            "first": {"script": "echo", "params": {"list": []}},
            "rendered": {"script": "hello", "for_each": "{{ upstream.first.params.list }}", "depends_on": ["first"]},
            "after": {"script": "hello", "depends_on": ["written", "rendered"]},
        }}),
    )
    .await;
    let run = node.run("empty", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    for name in ["written", "rendered"] {
        assert_eq!(
            (&task(&run, name)["state"], &task(&run, name)["output"]),
            (&json!("succeeded"), &json!([]))
        );
    }
    assert_eq!(task(&run, "after")["state"], "succeeded");
}

/// `shards: n` makes items 0 to n - 1.
#[tokio::test]
async fn shards() {
    let (_world, node) = World::with_node().await;
    node.put_group("sharded", one(json!({"script": "echo", "shards": 3})))
        .await;
    let run = node.run("sharded", json!({})).await;
    let output = task(&run, "t")["output"].as_array().unwrap().clone();
    for (index, one) in output.iter().enumerate() {
        assert_eq!(one["context"]["item"]["index"], index);
        assert_eq!(one["context"]["item"]["count"], 3);
    }
    assert_eq!(output.len(), 3);
}

/// At most `concurrency` items are under way at once, and as many when there is work for them.
#[tokio::test]
async fn concurrency() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "bounded",
        one(with(sleeps(0.3), json!({"shards": 9, "concurrency": 3}))),
    )
    .await;
    let run = node.run("bounded", json!({})).await;
    assert_eq!(run["state"], "succeeded");
    let spans: Vec<(&Value, &Value)> = (0..9)
        .map(|index| item(&run, "t", Some(index)))
        .map(|item| (&item["started_at"], &item["finished_at"]))
        .collect();
    let most = spans
        .iter()
        .map(|(at, _)| {
            let under_way = |(start, end): &&(&Value, &Value)| seconds(start, at) >= 0.0 && seconds(at, end) > 0.0;
            spans.iter().filter(under_way).count()
        })
        .max();
    assert_eq!(most, Some(3));
}

/// 10,000 items are the most; the outputs come back in order. Meanwhile other runs go on.
#[tokio::test]
async fn ten_thousand_items() {
    let (_world, node) = World::with_node().await;
    let map = json!({"script": "sum", "params": {"numbers": ["{{ item }}"]}});
    node.put_group("large", one(with(map.clone(), json!({"shards": 10_000}))))
        .await;
    node.put_group("small", one(json!({"script": "hello"}))).await;
    let large = node.start("large", json!({})).await;
    node.task_becomes(&large, "t", "running").await;
    // "A large map must not starve other runs." (Six to ten of these, one after the other, fit into the time of the map. If they
    // were behind it, the first would end after it.)
    for _ in 0..2 {
        let small = node.run("small", json!({})).await;
        assert_eq!(small["state"], "succeeded");
    }
    let still = node.get("/v1/runs?group=large").await.expect_status(200);
    assert_eq!(
        still["items"][0]["state"], "running",
        "the small runs waited for the large map"
    );
    let run = node.ended(&large).await;
    assert_eq!(run["state"], "succeeded");
    let output = task(&run, "t")["output"].as_array().unwrap().clone();
    assert_eq!(output.len(), 10_000);
    for (index, one) in output.iter().enumerate() {
        assert_eq!(one["sum"], index as f64);
    }
    let items: Vec<u32> = (0..10_001).collect();
    node.refused_group("more", one(json!({"script": "hello", "for_each": items})))
        .await
        .expect_problem(422, &["/tasks/t/for_each"]);
    node.refused_group("shards", one(json!({"script": "hello", "shards": 10_001})))
        .await
        .expect_problem(422, &["/tasks/t/shards"]);
    node.put_group(
        "rendered",
        one(json!({"script": "hello", "for_each": "{{ range(10001) | list }}"})),
    )
    .await;
    let run = node.run("rendered", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["error"]["kind"]),
        (&json!("failed"), &json!("invalid")),
        "{run:#}"
    );
}

/// The joined output has at most 8 MiB: more fails with kind `output`.
#[tokio::test]
async fn joined_output() {
    let (_world, node) = World::with_node().await;
    let map =
        |shards: u32| json!({"script": "hostile", "shards": shards, "params": {"mode": "output", "count": 250_000}});
    node.put_group("fits", one(map(33))).await;
    node.put_group("bursts", one(map(34))).await;
    let run = node.run("fits", json!({})).await;
    assert_eq!(run["state"], "succeeded");
    assert_eq!(task(&run, "t")["output"].as_array().unwrap().len(), 33);
    let run = node.run("bursts", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["error"]["kind"]),
        (&json!("failed"), &json!("output"))
    );
}

/// What items returned beyond that is in no answer about the run. Each item has its own output, and controls work.
#[tokio::test]
async fn outputs_beyond_the_bound() {
    let (_world, node) = World::with_node().await;
    let large = json!({"script": "hostile", "max_output": "1MiB", "params": {"mode": "output", "count": 1_000_000}});
    node.put_group(
        "large",
        json!({"tasks": {"m": with(large, json!({"shards": 9})), "small": {"script": "echo"}}}),
    )
    .await;
    let omits = |run: &Value| {
        assert_eq!(task(run, "m")["error"]["kind"], "output");
        for of in [None, Some(0), Some(8)] {
            let found = item(run, "m", of);
            assert_eq!(
                (&found["output"], &found["output_omitted"]),
                (&Value::Null, &json!(true)),
                "item {of:?}"
            );
        }
        let small = task(run, "small");
        assert!(
            small["output"].is_object() && small["output_omitted"].is_null(),
            "{small:#}"
        );
        assert!(run.to_string().len() < 100_000, "{} bytes", run.to_string().len());
    };
    let run = node.run("large", json!({})).await;
    omits(&run);
    let run = format!("/v1/runs/{}", heddle_tests::id(&run));
    let id = run.rsplit('/').next().unwrap();
    let whole = node.get(&format!("{run}/tasks/m")).await.expect_status(200);
    assert_eq!(
        (&whole["output"], &whole["output_omitted"]),
        (&Value::Null, &json!(true))
    );
    let of_item = format!("{run}/tasks/m?item=3");
    let own = node.get(&of_item).await.expect_status(200);
    assert_eq!(own["output"].as_str().map(str::len), Some(1_000_000));
    assert_eq!(
        (&own["output_omitted"], &own["state"]),
        (&Value::Null, &json!("succeeded"))
    );

    node.post(&format!("{run}/tasks/m/clear?item=3"), json!({"downstream": false}))
        .await
        .expect_status(200);
    omits(&node.ended(id).await);
    let again = node.get(&of_item).await.expect_status(200);
    assert_eq!(again["output"].as_str().map(str::len), Some(1_000_000));
    node.post(&format!("{run}/restart"), json!({})).await.expect_status(200);
    node.ended(id).await;
    // With one output less, they are within the bound: what earlier attempts returned does not count.
    let set = json!({"state": "succeeded", "output": 7, "reason": "too long"});
    let set = node
        .put(&format!("{run}/tasks/m/state?item=3"), set)
        .await
        .expect_status(200);
    assert_eq!(set["output"], 7);
    let within = node.ended(id).await;
    assert_eq!(within["state"], "succeeded");
    let joined = task(&within, "m")["output"].as_array().unwrap().clone();
    assert_eq!((joined.len(), &joined[3]), (9, &json!(7)));
    assert_eq!(joined[8].as_str().map(str::len), Some(1_000_000));
    node.delete(&run).await.expect_status(204);
    node.get(&run).await.expect_status(404);
}

/// Nor does a task that depends on it get what is beyond the bound, when somebody sets the mapped task to succeeded: one
/// that reads the output fails, and says what to do.
#[tokio::test]
async fn a_joined_output_beyond_the_bound_is_not_read() {
    let (_world, node) = World::with_node().await;
    let large = json!({"script": "hostile", "max_output": "1MiB", "params": {"mode": "output", "count": 1_000_000}});
    node.put_group(
        "large",
        json!({"tasks": {
            "m": with(large, json!({"shards": 9})),
            "after": {"script": "hello", "depends_on": ["m"]},
            "template": {"script": "echo", "params": {"count": "{{ upstream.m | length }}"}, "depends_on": ["m"]},
            "script": {"script": "sum", "params": {"upstream": ["m"]}, "depends_on": ["m"]},
        }}),
    )
    .await;
    let run = node.run("large", json!({})).await;
    assert_eq!(task(&run, "m")["error"]["kind"], "output");
    let id = heddle_tests::id(&run);
    let state = format!("/v1/runs/{id}/tasks/m/state");
    let set = json!({"state": "succeeded", "reason": "go on"});
    node.put(&state, set).await.expect_status(200);
    let run = node.ended(&id).await;
    assert_eq!(
        (&task(&run, "m")["state"], &task(&run, "after")["state"]),
        (&json!("succeeded"), &json!("succeeded"))
    );
    assert_eq!(task(&run, "template")["error"]["kind"], "invalid");
    for reader in ["template", "script"] {
        let message = task(&run, reader)["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("override of `m` with an `output`"),
            "{reader}: {message}"
        );
    }
    let set = json!({"state": "succeeded", "output": [1, 2], "reason": "only their sum counts"});
    node.put(&state, set).await.expect_status(200);
    node.post(&format!("/v1/runs/{id}/restart"), json!({}))
        .await
        .expect_status(200);
    let run = node.ended(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "template")["output"]["params"]["count"], 2);
    assert_eq!(task(&run, "script")["output"]["sum"], 3.0);
}

/// Errors beyond a bound are left out of an answer about the run: traces first. Each item has its own error.
#[tokio::test]
async fn errors_beyond_the_bound() {
    let (world, node) = World::with_node().await;
    let failing = json!({"script": "flaky", "for_each": [1, 1, 1], "params": {"fail_times": "{{ item }}"}});
    node.put_group("failing", one(failing)).await;
    let run = node.run("failing", json!({})).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    let run = format!("/v1/runs/{}", heddle_tests::id(&run));
    let changed = "UPDATE heddle.attempts
                      SET error_message = repeat('m', CASE item WHEN 0 THEN 1 << 10 ELSE 9 << 20 END),
                          error_trace = CASE item WHEN 0 THEN repeat('t', 8 << 20) END
                    WHERE error_message IS NOT NULL";
    assert_eq!(world.sql().await.execute(changed, &[]).await.unwrap(), 3);
    let length = |text: &Value| text.as_str().map(str::len);
    let shown = node.get(&run).await.expect_status(200);
    let [first, second, third] = [0, 1, 2].map(|index| item(&shown, "t", Some(index))["error"].clone());
    assert_eq!(
        (length(&first["message"]), &first["trace"]),
        (Some(1 << 10), &Value::Null)
    );
    assert_eq!(
        (length(&second["message"]), &second["omitted"]),
        (Some(9 << 20), &Value::Null)
    );
    let said = third["message"].as_str().unwrap();
    assert!(said.contains("left out"), "{} bytes", said.len());
    assert_eq!((&first["omitted"], &third["omitted"]), (&json!(true), &json!(true)));

    let own = node.get(&format!("{run}/tasks/t?item=0")).await.expect_status(200);
    for error in [&own["error"], &own["attempts"][0]["error"]] {
        assert_eq!(
            (length(&error["trace"]), &error["omitted"]),
            (Some(8 << 20), &Value::Null)
        );
    }
    let own = node.get(&format!("{run}/tasks/t?item=2")).await.expect_status(200);
    assert_eq!(
        (length(&own["error"]["message"]), &own["error"]["omitted"]),
        (Some(9 << 20), &Value::Null)
    );
}

/// What is no array fails its task, fatally.
#[tokio::test]
async fn for_each_needs_an_array() {
    let (_world, node) = World::with_node().await;
    node.refused_group("text", one(json!({"script": "hello", "for_each": "abc"})))
        .await
        .expect_problem(422, &["/tasks/t/for_each"]);
    node.put_group("number", one(json!({"script": "hello", "for_each": "{{ 5 }}"})))
        .await;
    let run = node.run("number", json!({})).await;
    assert_eq!(
        (&run["state"], &task(&run, "t")["error"]["kind"]),
        (&json!("failed"), &json!("invalid"))
    );
}

/// Outputs may be nested as deeply as an answer of a script. Joined to the output of their task they are one level deeper,
/// and templates read them all the same.
#[tokio::test]
async fn joined_outputs_are_nested_deeper() {
    let (_world, node) = World::with_node().await;
    let deep = (1..125).fold(json!([]), |inner, _| json!([inner]));
    let spec = json!({"params": {"it": deep}, "tasks": {
        "m": {"script": "echo", "for_each": [1]},
        "after": {"script": "echo", "params": {"n": "{{ upstream.m | length }}"}, "depends_on": ["m"]},
    }});
    node.put_group("map", spec).await;
    let run = node.run("map", json!({})).await;
    let output = &task(&run, "m")["output"];
    let levels = std::iter::successors(Some(output), |value| match *value {
        Value::Array(items) => items.first(),
        Value::Object(fields) => fields.get("params").or(fields.get("it")),
        _ => None,
    });
    assert_eq!((&run["state"], levels.count()), (&json!("succeeded"), 128));
    assert_eq!(task(&run, "after")["output"]["params"]["n"], 1);
    let id = run["id"].as_str().unwrap();
    let said = ends(&node, DONE, &["run", "show", id, "-o", "json"]);
    assert!(said.matches('[').count() > 122, "{said}");
}

/// The expansion of a map is no attempt, and that of a sub-run is one: the counter and the histogram of attempts agree.
#[tokio::test]
async fn attempts_are_counted_once_by_each_metric() {
    let (_world, node) = World::with_node().await;
    let tasks = json!({"m": {"script": "hello", "for_each": [1, 2, 3]}, "plain": {"script": "hello"}});
    node.put_group("map", json!({"tasks": tasks})).await;
    node.put_group("single", json!({"tasks": {"t": {"script": "hello"}}}))
        .await;
    node.put_group("outer", json!({"tasks": {"sub": {"group": "map"}}}))
        .await;
    for group in ["map", "single", "outer"] {
        assert_eq!(node.run(group, json!({})).await["state"], "succeeded", "{group}");
    }
    // Of the runs of `map`, with and without `outer`, of `single`, and of `outer`.
    let expect = 4 + 4 + 1 + 1;
    eventually(&format!("{expect} attempts in both metrics"), async || {
        let metrics = node.get("/metrics").await.expect_status(200);
        let value = |name: &str| {
            let mut lines = metrics.as_str().expect("text").lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let counted = ["heddle_attempts_ended_total ", "heddle_attempt_seconds_count "].map(value);
        (counted == [Some(expect), Some(expect)]).then_some(())
    })
    .await;
}
