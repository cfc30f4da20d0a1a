//! The calls of the older scheduler: trees of timer tasks become groups.

use heddle_tests::{Api, World};
use serde_json::{Value, json};

async fn call(api: &Api, name: &str, body: Value) -> (i64, Value) {
    let answer = api
        .post(&format!("/task-scheduler/task/{name}"), body)
        .await
        .expect_status(200);
    let fields: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["code", "data", "msg"], "{answer}");
    (answer["code"].as_i64().unwrap(), answer["data"].clone())
}

async fn well(api: &Api, name: &str, body: Value) -> Value {
    let (code, data) = call(api, name, body.clone()).await;
    assert_eq!(code, 0, "{name} {body}");
    data
}

async fn refused(api: &Api, name: &str, body: Value, expect: i64) {
    let (code, data) = call(api, name, body.clone()).await;
    assert_eq!((code, data), (expect, Value::Null), "{name} {body}");
}

fn tree() -> Value {
    json!({
        "taskName": "root", "appServiceName": "bill", "apiServiceName": "S", "apiMethodName": "m", "timeout": -1,
        "taskScheduleConf": {"timerList": [
            {"type": 1, "cron": "0/5 * * * * * ?", "startDateTime": "2090-01-01 00:00:00", "endDateTime": "2091-01-01 00:00:00"},
            {"type": 2, "initDelay": 3_600_000, "period": 5_000},
            {"type": 3, "initDelay": 3_600_000, "delay": 300, "status": -1},
            {"type": 4, "delay": 3_600_000}]},
        "subTaskList": [
            {"taskName": "same", "appServiceName": "bill", "timeout": 2_000, "status": -1,
             "subTaskList": [{"taskName": "same", "appServiceName": "mail", "subTaskList": []}]},
            {"taskName": "same", "appServiceName": "mail"}],
    })
}

#[tokio::test]
async fn a_tree_becomes_a_group() {
    let world = World::new().await;
    let node = world.node().await;
    assert_eq!(node.get("/checkstatus").await.expect_status(200), json!("success"));
    let made = well(&node, "submitTimerTask", tree()).await;
    let root = made["taskId"].as_i64().unwrap();
    let ids: Vec<i64> = made["taskList"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["taskId"].as_i64().unwrap())
        .collect();
    assert_eq!((ids.len(), ids[0]), (4, root));
    let path = format!("/v1/groups/timer-task-{root}");
    let group = node.get(&path).await.expect_status(200);
    let task = |place: usize| &group["tasks"][format!("task-{}", ids[place])];
    let after = |place: usize| json!([format!("task-{}", ids[place])]);
    assert_eq!(
        (&task(0)["queue"], &task(0)["timeout"], &task(0)["params"]),
        (
            &json!("bill"),
            &json!("never"),
            &json!({"apiServiceName": "S", "apiMethodName": "m", "taskId": root})
        )
    );
    assert_eq!(
        (&task(1)["depends_on"], &task(2)["depends_on"], &task(3)["depends_on"]),
        (&after(0), &after(0), &after(1))
    );
    assert_eq!((&task(1)["timeout"], &task(1)["when"]), (&json!("2s"), &json!("false")));
    assert!(task(1)["retry"]["retries"].as_i64() > Some(0), "a timeout is retried");
    let schedules = &group["schedules"];
    assert_eq!(schedules["timer-1"]["next"], "2090-01-01T00:00:00.000000Z");
    assert_eq!(
        (&schedules["timer-2"]["every"], &schedules["timer-3"]["enabled"]),
        (&json!("5s"), &json!(false))
    );
    // Changed: what is known keeps its number, what is left out goes.
    let changed = json!({
        "taskId": root.to_string(), "taskName": "renamed", "appServiceName": "bill",
        "subTaskList": [{"taskId": ids[2], "apiMethodName": "z"}],
    });
    let changed = well(&node, "submitTimerTask", changed).await;
    assert_eq!(changed["taskList"].as_array().unwrap().len(), 2);
    let group = node.get(&path).await.expect_status(200);
    assert_eq!(
        (&group["revision"], &group["description"]),
        (&json!(2), &json!("renamed"))
    );
    assert_eq!(group["tasks"][format!("task-{}", ids[2])]["queue"], "bill");
}

#[tokio::test]
async fn tasks_are_switched_started_and_deleted() {
    let world = World::new().await;
    let node = world.node().await;
    let made = well(&node, "submitTimerTask", tree()).await;
    let (root, below) = (made["taskId"].clone(), made["taskList"][1]["taskId"].clone());
    let path = format!("/v1/groups/timer-task-{root}");
    let one = json!({"taskId": root});
    well(&node, "disableTask", one.clone()).await;
    assert_eq!(node.get(&path).await.expect_status(200)["enabled"], false);
    refused(&node, "execTaskImmediately", one.clone(), 409).await;
    well(&node, "enableTask", one.clone()).await;
    assert_eq!(node.get(&path).await.expect_status(200)["enabled"], true);
    well(&node, "enableTask", json!({"taskId": below})).await;
    assert_eq!(
        node.get(&path).await.expect_status(200)["tasks"][format!("task-{below}")]["when"],
        Value::Null
    );
    let started = well(&node, "execTaskImmediately", one.clone()).await;
    let run = node.run_now(started["run"].as_str().unwrap()).await;
    assert_eq!(
        (&run["trigger"], &run["group"]),
        (&json!("manual"), &json!(format!("timer-task-{root}")))
    );
    refused(&node, "timerTaskDel", json!({"taskId": below}), 409).await;
    well(&node, "timerTaskDel", one.clone()).await;
    node.get(&path).await.expect_problem(404, &[]);
    for name in ["timerTaskDel", "disableTask", "enableTask", "execTaskImmediately"] {
        refused(&node, name, one.clone(), 404).await;
        refused(&node, name, json!({}), 422).await;
        refused(&node, name, json!({"taskId": "x"}), 422).await;
    }
}

#[tokio::test]
async fn bad_trees_are_told_and_deep_ones_taken() {
    let world = World::new().await;
    let node = world.node().await;
    for (body, code) in [
        (json!([]), 422),
        (json!({}), 422),
        (json!({"appServiceName": "has space"}), 422),
        (json!({"appServiceName": "q", "taskId": 77}), 404),
        (
            json!({"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 1, "cron": "bad"}]}}),
            422,
        ),
        (
            json!({"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 9}]}}),
            422,
        ),
    ] {
        refused(&node, "submitTimerTask", body, code).await;
    }
    let mut deep = r#"{"appServiceName": "q""#.to_owned();
    for _ in 0..500 {
        deep.push_str(r#","subTaskList":[{"taskName":"same""#);
    }
    deep.push('}');
    deep.push_str(&"]}".repeat(500));
    let request = node
        .request(reqwest::Method::POST, "/task-scheduler/task/submitTimerTask")
        .body(deep);
    let answer = node.send(request).await.expect_status(200);
    assert_eq!(
        answer["data"]["taskList"].as_array().unwrap().len(),
        501,
        "{}",
        answer["msg"]
    );
    assert_eq!(
        node.get("/v1/groups").await.expect_status(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}
