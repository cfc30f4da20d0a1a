//! The calls of the older scheduler: trees of timer tasks become groups.

use heddle_tests::{Api, World, eventually};
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
    assert_eq!(code, 200, "{name} {body}");
    data
}

async fn refused(api: &Api, name: &str, body: Value, expect: i64) {
    let (code, data) = call(api, name, body.clone()).await;
    assert_eq!((code, data), (expect, Value::Null), "{name} {body}");
}

/// A tree of four nodes with timers.
pub(crate) fn tree() -> Value {
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
    let (_world, node) = World::with_node().await;
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
    // HEAD changes nothing (RFC 9110, 9.2.1), also where GET does.
    let start = format!("/task-scheduler/task/execTaskImmediately?taskId={root}");
    let reply = node.send(node.request(reqwest::Method::HEAD, &start)).await;
    assert_eq!(
        reply.headers.get("allow").map(|allow| allow.to_str().unwrap()),
        Some("GET, POST")
    );
    assert_eq!(node.all(&format!("/v1/runs?group=timer-task-{root}")).await.len(), 0);
    let task = |index: usize| &group["tasks"][format!("task-{}", ids[index])];
    let after = |index: usize| json!([format!("task-{}", ids[index])]);
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
    // Midnight in Shanghai.
    assert_eq!(schedules["timer-1"]["next"], "2089-12-31T16:00:00.000000Z");
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

/// A group that has the name of a number is not the group of a new tree: the tree takes the next number without a group.
#[tokio::test]
async fn a_new_tree_changes_no_group_that_is_there() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"tasks": {"mine": {"queue": "mine"}}});
    // As after an export that was applied to a new cluster: more than how often one call begins anew.
    for number in 1..=60 {
        let put = node.put(&format!("/v1/groups/timer-task-{number}"), spec.clone()).await;
        put.expect_status(201);
    }
    let made = well(&node, "submitTimerTask", tree()).await;
    let root = made["taskId"].as_i64().expect("a number");
    assert!(root > 60, "{made:#}");
    assert_eq!(made["taskList"].as_array().map(Vec::len), Some(4), "{made:#}");
    for number in 1..=60 {
        let group = node.get(&format!("/v1/groups/timer-task-{number}")).await;
        let group = group.expect_status(200);
        assert_eq!(
            (&group["revision"], &group["tasks"]["mine"]["queue"]),
            (&json!(1), &json!("mine"))
        );
    }
    let group = node
        .get(&format!("/v1/groups/timer-task-{root}"))
        .await
        .expect_status(200);
    assert_eq!(group["description"], "root");
}

#[tokio::test]
async fn tasks_are_switched_started_and_deleted() {
    let (_world, node) = World::with_node().await;
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

/// Changes of one tree at the same time: all stick, and a deleted tree stays deleted.
#[tokio::test]
async fn changes_at_once() {
    let (_world, node) = World::with_node().await;
    let below: Vec<Value> = (0..10).map(|n| json!({"taskName": format!("below {n}")})).collect();
    let tree = json!({"taskName": "root", "appServiceName": "q", "subTaskList": below});
    let made = well(&node, "submitTimerTask", tree).await;
    let path = format!("/v1/groups/timer-task-{}", made["taskId"]);
    let ids: Vec<&Value> = made["taskList"]
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .map(|task| &task["taskId"])
        .collect();
    let all = async |name: &str| {
        let calls = ids.iter().map(|id| call(&node, name, json!({"taskId": id})));
        futures::future::join_all(calls).await
    };
    for (code, _) in all("disableTask").await {
        assert_eq!(code, 200);
    }
    let group = node.get(&path).await.expect_status(200);
    for id in &ids {
        assert_eq!(group["tasks"][format!("task-{id}")]["when"], "false", "{group:#}");
    }
    let root = json!({"taskId": made["taskId"]});
    let (_, codes) = futures::future::join(well(&node, "timerTaskDel", root.clone()), all("enableTask")).await;
    for (code, _) in codes {
        assert!(matches!(code, 200 | 404), "{code}");
    }
    node.get(&path).await.expect_problem(404, &[]);
    refused(&node, "enableTask", root, 404).await;
}

#[tokio::test]
async fn bad_trees_are_refused_and_deep_ones_accepted() {
    let (_world, node) = World::with_node().await;
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

/// What a change does not say stays as it is: who disabled a tree, or a branch, does not find it enabled.
#[tokio::test]
async fn a_change_without_a_status_keeps_it() {
    let (_world, node) = World::with_node().await;
    let body = json!({"taskInfoConf": {"status": 1, "taskName": "a", "appServiceName": "q",
                                       "subTaskList": [{"status": 1, "taskName": "b"}]}});
    let made = well(&node, "submitTimerTask", body).await;
    let (root, below) = (made["taskId"].clone(), made["taskList"][1]["taskId"].clone());
    let path = format!("/v1/groups/timer-task-{root}");
    let state = async || {
        let group = node.get(&path).await.expect_status(200);
        let when = &group["tasks"][format!("task-{below}")]["when"];
        (group["enabled"].clone(), when.clone(), group["description"].clone())
    };
    let change = |name: &str, said: Value| {
        let mut body = json!({"taskInfoConf": {"taskId": root, "taskName": name, "appServiceName": "q",
                                               "subTaskList": [{"taskId": below, "taskName": "b"}]}});
        if !said.is_null() {
            body["taskInfoConf"]["status"] = said.clone();
            body["taskInfoConf"]["subTaskList"][0]["status"] = said;
        }
        body
    };
    well(&node, "disableTask", json!({"taskId": root})).await;
    well(&node, "disableTask", json!({"taskId": below})).await;
    let changed = well(&node, "submitTimerTask", change("c", Value::Null)).await;
    let statuses = (&changed["status"], &changed["taskList"][1]["status"]);
    assert_eq!(statuses, (&json!(-1), &json!(-1)), "{changed:#}");
    assert_eq!(state().await, (json!(false), json!("false"), json!("c")));
    // Also if the group was disabled by itself; and a branch does not enable it.
    well(&node, "submitTimerTask", change("d", json!(1))).await;
    assert_eq!(state().await, (json!(true), Value::Null, json!("d")));
    node.post(&format!("{path}/disable"), json!({}))
        .await
        .expect_status(200);
    well(&node, "submitTimerTask", change("e", Value::Null)).await;
    well(&node, "disableTask", json!({"taskId": below})).await;
    assert_eq!(state().await, (json!(false), json!("false"), json!("e")));
    well(&node, "submitTimerTask", change("f", json!(1))).await;
    assert_eq!(state().await, (json!(true), Value::Null, json!("f")));
}

/// Errors name the places of the body that was sent, also where the group that it means is checked.
#[tokio::test]
async fn errors_name_places_of_the_request() {
    let (_world, node) = World::with_node().await;
    let said = async |path: &str, body: Value| {
        let answer = node.post(&format!("/task-scheduler/task/{path}"), body.clone()).await;
        let answer = answer.expect_status(200);
        assert_eq!(
            (&answer["code"], &answer["data"]),
            (&json!(422), &Value::Null),
            "{body}"
        );
        answer["msg"].as_str().unwrap().to_owned()
    };
    let with = |node: Value, timer: Value| {
        json!({"taskInfoConf": {"taskName": "r", "appServiceName": "ca", "subTaskList": [
                   {"taskName": "a"}, {"taskName": "b", "subTaskList": [node]}]},
               "taskScheduleConf": {"timerList": [timer]}})
    };
    let timer = json!({"timerType": 4, "delay": 3_600_000});
    for (field, value) in [
        ("timeout", json!("abc")),
        ("timeout", json!(-5)),
        ("status", json!(9)),
        ("appServiceName", json!("a b")),
    ] {
        let msg = said("submitTimerTask", with(json!({field: value}), timer.clone())).await;
        let place = format!("/taskInfoConf/subTaskList/1/subTaskList/0/{field}: ");
        assert!(msg.starts_with(&place), "{msg}");
    }
    for (timer, field) in [
        (json!({"timerType": 2, "period": 5}), "period"),
        (json!({"timerType": 3, "delay": 0}), "delay"),
        (json!({"timerType": 3, "delay": 300, "initDelay": -1}), "initDelay"),
        (json!({"timerType": 4, "delay": -1}), "delay"),
        (
            json!({"timerType": 4, "delay": 1, "startDateTime": "soon"}),
            "startDateTime",
        ),
        (
            json!({"timerType": 4, "delay": 1, "startDateTime": "2021-10-01", "endDateTime": "2021-08-09"}),
            "endDateTime",
        ),
    ] {
        let msg = said("submitTimerTask", with(json!({}), timer)).await;
        let place = format!("/taskScheduleConf/timerList/0/{field}: ");
        assert!(msg.starts_with(&place), "{msg}");
    }
    // The number of a task may be in several places.
    let msg = said("disableTask?taskId=x", json!({})).await;
    assert!(msg.starts_with("`taskId` in the query: "), "{msg}");
    let msg = said("disableTask", json!({"taskId": "x"})).await;
    assert!(msg.starts_with("/taskId: "), "{msg}");
    let msg = said("disableTask", json!("x")).await;
    assert!(msg.starts_with("the body: "), "{msg}");
    let msg = said("disableTask", json!({})).await;
    assert!(msg.starts_with("`taskId` is missing"), "{msg}");
    assert_eq!(node.all("/v1/groups").await.len(), 0);
}

/// A `status` means on or off: 1 or -1, of a tree, of a branch, of a timer. Any other value is refused.
#[tokio::test]
async fn a_status_is_one_or_minus_one() {
    let (_world, node) = World::with_node().await;
    let with_status = |pointer: &str, status: Value| {
        let mut body = json!({
            "taskInfoConf": {"status": 1, "taskName": "a", "timeout": -1, "appServiceName": "q",
                             "subTaskList": [{"status": 1, "taskName": "b", "timeout": -1, "appServiceName": "q"}]},
            "taskScheduleConf": {"timerList": [{"timerType": 4, "delay": 3_600_000, "status": 1}]},
        });
        *body.pointer_mut(pointer).expect("a place") = status;
        body
    };
    for pointer in [
        "/taskInfoConf/status",
        "/taskInfoConf/subTaskList/0/status",
        "/taskScheduleConf/timerList/0/status",
    ] {
        for status in [json!(0), json!(2), json!(-2), json!("on"), json!(1.5)] {
            refused(&node, "submitTimerTask", with_status(pointer, status), 422).await;
        }
        for status in [json!(1), json!(-1)] {
            well(&node, "submitTimerTask", with_status(pointer, status)).await;
        }
    }
    // The older shape has it on the top level.
    let older = json!({"appServiceName": "q", "status": 3});
    refused(&node, "submitTimerTask", older, 422).await;
    assert_eq!(node.all("/v1/groups").await.len(), 6, "what was refused made no group");
}

/// The request of the contract, byte for byte as its clients send it.
const SUBMITTED: &str = r#"{"taskInfoConf": {"status": 1, "taskName": "bill", "timeout": 1000, "appServiceName": "billing",
 "apiServiceName": "BillService", "apiMethodName": "settle",
 "subTaskList": [{"status": 1, "taskName": "mail", "timeout": -1, "appServiceName": "mail", "apiServiceName": "MailService", "apiMethodName": "send",
   "subTaskList": [{"taskName": "mail", "appServiceName": "mail", "apiServiceName": "MailService", "apiMethodName": "archive"}]}]},
 "taskScheduleConf": {"timerList": [{"timerType": 1, "cron": "12 12 12 0/2 * *", "startDateTime": "2021-08-09", "endDateTime": "2021-10-01"},
   {"timerType": 1, "cron": "12 12 12 0/2 * *", "startDateTime": "2090-08-09", "endDateTime": "2090-10-01"},
   {"timerType": 4, "delay": 10000000, "startDateTime": "2021-08-09", "endDateTime": "2090-10-01"},
   {"timerType": 2, "initDelay": 3600000, "period": 5000}, {"timerType": 3, "initDelay": 3600000, "delay": 300},
   {"timerType": 4, "delay": 10000, "startDateTime": "2021-08-09", "endDateTime": "2021-10-01"}]}}"#;

#[tokio::test]
async fn the_request_of_the_contract() {
    let (_world, node) = World::with_node().await;
    let submit = async |body: String| {
        let request = node
            .request(reqwest::Method::POST, "/task-scheduler/task/submitTimerTask")
            .header("content-type", "application/json")
            .body(body);
        node.send(request).await
    };
    let send = async |body: String| -> Value { submit(body).await.expect_status(200) };
    let reply = submit(SUBMITTED.into()).await;
    let hint = reply
        .headers
        .get("heddle-hint")
        .map(|hint| hint.to_str().unwrap().to_owned());
    assert!(
        hint.as_deref().is_some_and(|hint| hint.contains("never fires")),
        "{hint:?}"
    );
    let answer = reply.expect_status(200);
    assert_eq!(
        (&answer["code"], &answer["msg"]),
        (&json!(200), &json!("")),
        "{answer:#}"
    );
    let root = answer["data"]["taskId"].as_i64().unwrap();
    let path = format!("/v1/groups/timer-task-{root}");
    let group = node.get(&path).await.expect_status(200);
    let schedules = &group["schedules"];
    assert_eq!(
        (&schedules["timer-1"]["enabled"], &schedules["timer-1"]["next"]),
        (&json!(false), &Value::Null),
        "a window that is over"
    );
    assert_eq!(
        (&schedules["timer-6"]["enabled"], &schedules["timer-6"]["ends_at"]),
        (&json!(false), &json!("2021-10-01")),
        "kept as it was sent, and never fires"
    );
    // From the 1st of the month every other day: the 9th is one of them. In Shanghai it is 12:12:12.
    assert_eq!(schedules["timer-2"]["next"], "2090-08-09T04:12:12.000000Z");
    assert_eq!(schedules["timer-3"]["once"]["delay"], "2h46m40s");
    assert_eq!(
        (
            &schedules["timer-4"]["every"],
            &schedules["timer-4"]["initial_delay"],
            &schedules["timer-5"]["after"]
        ),
        (&json!("5s"), &json!("1h"), &json!("300ms"))
    );
    assert_eq!(
        (&group["overlap"], &group["timezone"]),
        (&json!("skip"), &json!("Asia/Shanghai"))
    );
    let task = &group["tasks"][format!("task-{root}")];
    assert_eq!(
        (&task["queue"], &task["timeout"], &task["params"]),
        (
            &json!("billing"),
            &json!("1s"),
            &json!({"apiServiceName": "BillService", "apiMethodName": "settle", "taskId": root})
        )
    );
    // The same again, as a change of that tree: it is the same, revision and all.
    let ids: Vec<Value> = answer["data"]["taskList"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["taskId"].clone())
        .collect();
    let mut again: Value = serde_json::from_str(SUBMITTED).unwrap();
    again["taskInfoConf"]["taskId"] = ids[0].clone();
    again["taskInfoConf"]["subTaskList"][0]["taskId"] = ids[1].clone();
    again["taskInfoConf"]["subTaskList"][0]["subTaskList"][0]["taskId"] = ids[2].clone();
    let changed = send(again.to_string()).await;
    assert_eq!(
        (&changed["code"], &changed["data"]["taskId"]),
        (&json!(200), &json!(root))
    );
    assert_eq!(node.get(&path).await.expect_status(200)["revision"], 1);
    // A branch under another name is not dropped in silence.
    let refused = send(SUBMITTED.replacen("subTaskList", "taskList", 1)).await;
    assert_eq!((&refused["code"], &refused["data"]), (&json!(422), &Value::Null));
    assert!(refused["msg"].as_str().unwrap().contains("taskList"), "{refused:#}");
}

/// Errors before the call itself are reported in the same way as errors of the call.
#[tokio::test]
async fn the_status_is_200_always() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_RATE_LIMIT", "1").start().await;
    let viewer = world
        .node()
        .await
        .post("/v1/tokens", json!({"name": "v", "role": "viewer"}))
        .await;
    let viewer = node.with_token(viewer.expect_status(201)["token"].as_str());
    let answered = async |api: &Api, method: reqwest::Method, name: &str| {
        let reply = api
            .send(api.request(method, &format!("/task-scheduler/task/{name}")))
            .await;
        assert_eq!(reply.status, 200, "{name}");
        assert_eq!(
            (&reply.body["data"], reply.headers["content-type"].as_bytes()),
            (&Value::Null, &b"application/json"[..])
        );
        assert!(
            reply.body["msg"].as_str().is_some_and(|said| !said.is_empty()),
            "{:#}",
            reply.body
        );
        (reply.body["code"].as_u64().unwrap(), reply.headers)
    };
    for name in [
        "submitTimerTask",
        "timerTaskDel",
        "disableTask",
        "enableTask",
        "execTaskImmediately",
    ] {
        let (code, headers) = answered(&node.with_token(None), reqwest::Method::POST, name).await;
        assert_eq!((code, headers.contains_key("www-authenticate")), (401, true), "{name}");
        assert_eq!(
            answered(&node.with_token(Some("hdl_x")), reqwest::Method::POST, name)
                .await
                .0,
            401,
            "{name}"
        );
        let (code, headers) = answered(&node, reqwest::Method::DELETE, name).await;
        assert_eq!((code, headers.contains_key("allow")), (405, true), "{name}");
    }
    // The first is let in, as far as its role goes; more in that second are not.
    let mut codes = Vec::new();
    while codes.len() < 500 && !(codes.contains(&403) && codes.contains(&429)) {
        let (code, headers) = answered(&viewer, reqwest::Method::POST, "disableTask").await;
        assert_eq!(headers.contains_key("retry-after"), code == 429);
        codes.push(code);
    }
    assert!(codes.iter().all(|code| matches!(code, 403 | 429)), "{codes:?}");
    assert!(codes.contains(&403) && codes.contains(&429), "{codes:?}");
}

/// `taskId` in each way that clients send it.
#[tokio::test]
async fn a_task_is_named_in_many_ways() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_COMPAT_TIMEZONE", "UTC").start().await;
    let made = well(&node, "submitTimerTask", tree()).await;
    let root = made["taskId"].as_i64().unwrap();
    let path = format!("/v1/groups/timer-task-{root}");
    assert_eq!(
        node.get(&path).await.expect_status(200)["schedules"]["timer-1"]["next"],
        "2090-01-01T00:00:00.000000Z"
    );
    let at = |name: &str| format!("/task-scheduler/task/{name}");
    let post = |name: &str| node.request(reqwest::Method::POST, &at(name));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let requests = [
        post("disableTask")
            .header(form.0, form.1)
            .body(format!("taskId={root}")),
        post("disableTask")
            .header(form.0, form.1)
            .body(json!({"taskId": root}).to_string()),
        post("disableTask")
            .header("content-type", "application/json")
            .body(root.to_string()),
        post("disableTask").body(root.to_string()),
        node.request(reqwest::Method::POST, &format!("{}?taskId={root}", at("disableTask"))),
        node.request(reqwest::Method::GET, &format!("{}?taskId={root}", at("disableTask"))),
        post("disableTask")
            .header("content-type", "multipart/form-data; boundary=b1")
            .body(format!(
                "--b1\r\nContent-Disposition: form-data; name=\"taskId\"\r\n\r\n{root}\r\n--b1--\r\n"
            )),
    ];
    for request in requests {
        let answer = node.send(request).await.expect_status(200);
        assert_eq!(answer, json!({"code": 200, "msg": "", "data": {"taskId": root}}));
        assert_eq!(node.get(&path).await.expect_status(200)["enabled"], false);
        well(&node, "enableTask", json!(root)).await;
        assert_eq!(node.get(&path).await.expect_status(200)["enabled"], true);
    }
}

/// The hint of a call that succeeds.
async fn hint(api: &Api, name: &str, body: Value) -> Option<String> {
    let reply = api.post(&format!("/task-scheduler/task/{name}"), body).await;
    let hint = reply.headers.get("heddle-hint");
    let hint = hint.map(|hint| hint.to_str().expect("a text").to_owned());
    assert_eq!(reply.expect_status(200)["code"], 200);
    hint
}

/// A timer with a delay fires once. When its tree is submitted again, it begins anew; when it is only enabled after its
/// instant, the answer says that it never fires.
#[tokio::test]
async fn a_one_shot_begins_anew() {
    let (_world, node) = World::with_node().await;
    let body = |root: i64, status: i32, delay: i64| {
        json!({"taskInfoConf": {"taskId": root, "status": status, "taskName": "t", "appServiceName": "nobody-works-here"},
               "taskScheduleConf": {"timerList": [{"timerType": 4, "delay": delay}]}})
    };
    let fired = async |root: i64, times: usize| {
        let path = format!("/v1/runs?group=timer-task-{root}");
        eventually("the timer's runs", async || {
            // The first one is still active, so the others are left out and say so.
            (node.all(&path).await.len() == times).then_some(())
        })
        .await;
    };
    let made = well(&node, "submitTimerTask", body(0, 1, 0)).await;
    let root = made["taskId"].as_i64().expect("a number");
    for times in 1..=3 {
        fired(root, times).await;
        assert_eq!(hint(&node, "submitTimerTask", body(root, 1, 0)).await, None);
    }
    fired(root, 4).await;
    // One whose instant is still to come keeps it.
    let made = well(&node, "submitTimerTask", body(0, 1, 3_600_000)).await;
    let path = format!("/v1/groups/timer-task-{}", made["taskId"]);
    let next = node.get(&path).await.expect_status(200)["schedules"]["timer-1"]["next"].clone();
    assert!(next.is_string(), "{next}");
    let again = body(made["taskId"].as_i64().expect("a number"), 1, 3_600_000);
    assert_eq!(hint(&node, "submitTimerTask", again).await, None);
    assert_eq!(
        node.get(&path).await.expect_status(200)["schedules"]["timer-1"]["next"],
        next
    );
    // One whose instant passes while the tree is disabled.
    let made = well(&node, "submitTimerTask", body(0, -1, 0)).await;
    let root = made["taskId"].as_i64().expect("a number");
    assert_eq!(hint(&node, "submitTimerTask", body(root, -1, 0)).await, None);
    let said = hint(&node, "enableTask", json!({"taskId": root})).await;
    let said = said.expect("a hint");
    assert!(said.contains("timer 1") && said.contains("never fires"), "{said}");
    assert_eq!(hint(&node, "submitTimerTask", body(root, 1, 0)).await, None);
    fired(root, 1).await;
}

/// What is committed is answered as such, also if the schedules cannot be read afterwards: a call that is repeated after an
/// error would make a second tree.
#[tokio::test]
async fn what_is_saved_never_fails_for_its_hint() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    // The commit of a tree takes from the schedules a column that is read only afterwards.
    sql.batch_execute(
        "CREATE FUNCTION public.hide() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN ALTER TABLE heddle.schedules RENAME fired_at TO hidden; RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER hide AFTER INSERT ON heddle.timer_tasks DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.hide()",
    )
    .await
    .expect("a trigger");
    let show = async || {
        let shown = sql.batch_execute("ALTER TABLE heddle.schedules RENAME hidden TO fired_at");
        shown.await.expect("the commit has hidden it");
    };
    let body = json!({"taskInfoConf": {"taskName": "t", "appServiceName": "nobody-works-here"},
                      "taskScheduleConf": {"timerList": [{"timerType": 4, "delay": 3_600_000}]}});
    let made = well(&node, "submitTimerTask", body).await;
    show().await;
    for name in ["disableTask", "enableTask"] {
        well(&node, name, json!({"taskId": made["taskId"]})).await;
        show().await;
    }
    assert_eq!(node.all("/v1/groups").await.len(), 1);
}

/// A timer never starts what still runs, and what it left out says so.
#[tokio::test]
async fn timers_never_overlap() {
    let (_world, node) = World::with_node().await;
    let body = json!({"taskInfoConf": {"taskName": "t", "appServiceName": "nobody-works-here"},
                      "taskScheduleConf": {"timerList": [{"timerType": 2, "initDelay": 0, "period": 200}]}});
    let made = well(&node, "submitTimerTask", body).await;
    let path = format!("/v1/runs?group=timer-task-{}&limit=500", made["taskId"]);
    let skipped = eventually("skipped instants", async || {
        let runs = node.all(&path).await;
        let active: Vec<&Value> = runs.iter().filter(|run| run["finished_at"].is_null()).collect();
        assert!(
            active.iter().filter(|run| run["state"] == "running").count() <= 1,
            "{active:#?}"
        );
        let skipped: Vec<Value> = runs.into_iter().filter(|run| run["skipped"] == "overlap").collect();
        (skipped.len() >= 5).then_some(skipped)
    })
    .await;
    for run in &skipped {
        assert_eq!(
            (&run["state"], &run["started_at"]),
            (&json!("cancelled"), &Value::Null),
            "{run:#}"
        );
    }
    let metrics = node.get("/metrics").await.expect_status(200);
    let text = metrics.as_str().unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("heddle_runs_skipped_total{reason=\"overlap\"}"))
        .unwrap();
    assert!(line.rsplit(' ').next().unwrap().parse::<u64>().unwrap() >= 5, "{line}");
}
