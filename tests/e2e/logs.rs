//! Logs and events, as pages and as streams, on every node.

use heddle_tests::{World, id, time};
use serde_json::{Value, json};

use crate::{one, sleeps, with};

/// Lines with time, level, message and fields; of an item, of an attempt, of the run.
#[tokio::test]
async fn lines() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    node.put_group(
        "g",
        json!({"tasks": {
            "hello": {"script": "hello", "params": {"name": "größe 日本"}},
            "flaky": {"script": "flaky", "retry": retry},
            "map": {"script": "hello", "for_each": ["a", "b"], "params": {"name": "{{ item }}"}},
            "silent": sleeps(0.0),
        }}),
    )
    .await;
    let run = id(&node.run("g", json!({})).await);
    for node in &nodes {
        let lines = node.log_lines(&run, "hello").await;
        assert_eq!(lines.len(), 1, "{lines:#?}");
        let line = &lines[0];
        assert_eq!(
            (&line["message"], &line["level"]),
            (&json!("Hello, größe 日本!"), &json!("info"))
        );
        assert_eq!(
            (&line["task"], &line["attempt"], &line["item"]),
            (&json!("hello"), &json!(1), &Value::Null)
        );
        assert_eq!(line["fields"]["name"], "größe 日本", "{line:#}");
        time(&line["at"]);
        let flaky = node.log_lines(&run, "flaky").await;
        let levels: Vec<(&Value, &Value)> = flaky.iter().map(|line| (&line["level"], &line["attempt"])).collect();
        assert_eq!(levels, [(&json!("warn"), &json!(1)), (&json!("info"), &json!(2))]);
        let second = node.all(&format!("/v1/runs/{run}/tasks/flaky/logs?attempt=2")).await;
        assert_eq!(second.len(), 1);
        let item = node.all(&format!("/v1/runs/{run}/tasks/map/logs?item=1")).await;
        assert_eq!((item.len(), &item[0]["message"]), (1, &json!("Hello, b!")));
        assert_eq!(node.log_lines(&run, "silent").await.len(), 0);
        assert_eq!(node.all(&format!("/v1/runs/{run}/logs")).await.len(), 5);
        // Page by page.
        assert_eq!(
            node.all(&format!("/v1/runs/{run}/logs?limit=2")).await,
            node.all(&format!("/v1/runs/{run}/logs")).await
        );
    }
    node.get(&format!("/v1/runs/{run}/tasks/nope/logs"))
        .await
        .expect_problem(404, &[]);
    node.get("/v1/runs/00000000-0000-7000-8000-000000000000/logs")
        .await
        .expect_problem(404, &[]);
}

/// Followed on another node than the one that works: each line while the run is under way, then the end.
#[tokio::test]
async fn follow_across_nodes() {
    let world = World::new().await;
    let worker = world.node().await;
    worker
        .put_group(
            "g",
            one(json!({
                "script": "flaky", "params": {"fail_times": 1000},
                "retry": {"strategy": "forever", "interval": "300ms"},
            })),
        )
        .await;
    let run = worker.start("g", json!({})).await;
    worker.task_becomes(&run, "t", "retrying").await;
    // The other one has no slot worth speaking of, and comes later.
    let other = world.node().await;
    for path in [format!("/v1/runs/{run}/logs"), format!("/v1/runs/{run}/tasks/t/logs")] {
        let mut stream = other.follow(&path).await;
        for attempt in 1..=3 {
            let (name, line) = stream.next().await.expect("a line");
            assert_eq!((name.as_str(), &line["attempt"]), ("log", &json!(attempt)), "{line:#}");
            assert_eq!(line["message"], format!("attempt {attempt} fails, as asked"));
        }
        let state = other.run_now(&run).await;
        assert_eq!(state["state"], "running", "the lines came while the run was under way");
    }
    let mut stream = other.follow(&format!("/v1/runs/{run}/logs")).await;
    worker
        .post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    loop {
        let (name, _) = stream.next().await.expect("an end");
        if name == "end" {
            break;
        }
        assert_eq!(name, "log");
    }
    assert!(stream.next().await.is_none());
}

/// What happens to a run, as server-sent events.
#[tokio::test]
async fn events() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0]
        .put_group(
            "g",
            json!({"tasks": {
                "first": sleeps(0.7),
                "second": with(json!({"script": "hello"}), json!({"depends_on": ["first"]})),
            }}),
        )
        .await;
    let run = nodes[0].start("g", json!({})).await;
    let mut stream = nodes[1].follow(&format!("/v1/runs/{run}/events")).await;
    let mut names = Vec::new();
    while let Some((name, event)) = stream.next().await {
        if name != "end" {
            assert_eq!(event["run"], *run, "{event:#}");
            assert_eq!(event["kind"], *name);
        }
        names.push(name);
    }
    assert_eq!(names.last().map(String::as_str), Some("end"));
    assert_eq!(names[names.len() - 2], "run.succeeded", "{names:?}");
    let succeeded = names.iter().filter(|name| *name == "task.succeeded").count();
    assert_eq!(succeeded, 2, "{names:?}");
    assert!(names.contains(&"task.running".to_owned()), "{names:?}");
    nodes[0]
        .get("/v1/runs/00000000-0000-7000-8000-000000000000/events")
        .await
        .expect_problem(404, &[]);
}
