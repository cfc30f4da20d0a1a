//! The description of the API is true: bodies and answers are as it says.

use heddle_domain::schema::Schema;
use heddle_tests::{Node, Reply, World};
use serde_json::{Value, json};

use crate::messages::{due_now, put_topic};
use crate::{one, with};

/// What the document says of an operation.
struct Operation<'a> {
    document: &'a Value,
    operation: &'a Value,
    name: String,
}

impl<'a> Operation<'a> {
    #[track_caller]
    fn of(document: &'a Value, method: &str, path: &str) -> Self {
        let operation = &document["paths"][path][method.to_lowercase()];
        let name = format!("{method} {path}");
        assert!(operation.is_object(), "{name} is not described");
        Self {
            document,
            operation,
            name,
        }
    }

    #[track_caller]
    fn check(&self, body: &Value, content: &Value, value: &Value) {
        let schema = with(
            content["schema"].clone(),
            json!({"components": self.document["components"]}),
        );
        assert!(content["schema"].is_object(), "{}: {body} is not described", self.name);
        let faults = Schema::compile(&schema).expect("a schema").check(value);
        assert!(faults.is_empty(), "{}, {body}: {faults}\n{value:#}", self.name);
    }

    #[track_caller]
    fn answers(&self, reply: &Reply) {
        let content = &self.operation["responses"][reply.status.to_string()]["content"]["application/json"];
        self.check(&json!(reply.status), content, &reply.body);
    }

    #[track_caller]
    fn takes(&self, value: &Value) {
        let content = &self.operation["requestBody"]["content"]["application/json"];
        self.check(&json!("its body"), content, value);
    }
}

async fn description(node: &Node) -> Value {
    node.get("/v1/openapi.json").await.expect_status(200)
}

/// Everything that can be read without a name, and scripts by theirs, once there is something to be read.
#[tokio::test]
async fn answers_are_as_described() {
    let (_world, node) = World::with_node().await;
    let document = description(&node).await;
    let schedules = json!({"schedules": {"daily": {"cron": "0 0 2 * * *"}}});
    node.put_group("g", with(one(json!({"script": "hello"})), schedules))
        .await;
    node.run("g", json!({})).await;
    put_topic(&node, "t", json!({"queue": "q", "granularity": "instant"})).await;
    let pool = node.put("/v1/pools/p", json!({"slots": 2})).await;
    Operation::of(&document, "PUT", "/v1/pools/{name}").answers(&pool);
    let mut read = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let json = &methods["get"]["responses"]["200"]["content"]["application/json"];
        if json.is_object() && !path.contains('{') && path.starts_with("/v1/") {
            Operation::of(&document, "GET", path).answers(&node.get(path).await);
            read += 1;
        }
    }
    assert!(read > 20, "{read} are not all there are");
    for (path, of) in [
        ("/v1/scripts/hello", "/v1/scripts/{name}"),
        ("/v1/scripts/hello/versions", "/v1/scripts/{name}/versions"),
        ("/v1/scripts/hello/versions/1", "/v1/scripts/{name}/versions/{version}"),
        ("/v1/groups/g", "/v1/groups/{name}"),
        ("/v1/groups/g/revisions", "/v1/groups/{name}/revisions"),
    ] {
        Operation::of(&document, "GET", of).answers(&node.get(path).await);
    }
}

/// A number of a query is taken up to the described bounds, and not beyond them.
#[tokio::test]
async fn numbers_are_bounded_as_described() {
    let (_world, node) = World::with_node().await;
    let document = description(&node).await;
    let schedules = json!({"schedules": {"daily": {"cron": "0 0 2 * * *"}}});
    node.put_group("g", with(one(json!({"script": "hello"})), schedules))
        .await;
    put_topic(&node, "t", json!({"queue": "q", "granularity": "instant"})).await;
    let run = heddle_tests::id(&node.run("g", json!({})).await);
    let logs = format!("/v1/runs/{run}/logs");
    let mut checked = Vec::new();
    for (path, of) in [
        ("/v1/runs", "/v1/runs"),
        (logs.as_str(), "/v1/runs/{id}/logs"),
        ("/v1/events", "/v1/events"),
        ("/v1/audiences/gid_x/members", "/v1/audiences/{audience}/members"),
        ("/v1/groups/g/next", "/v1/groups/{name}/next"),
        ("/v1/topics/t/messages", "/v1/topics/{topic}/messages"),
    ] {
        let operation = Operation::of(&document, "GET", of).operation;
        for param in operation["parameters"].as_array().unwrap() {
            let (name, schema) = (param["name"].as_str().unwrap(), &param["schema"]);
            let bound = |word: &str| schema[word].as_i64().map(i128::from);
            let (Some(minimum), Some(maximum)) = (bound("minimum"), bound("maximum")) else {
                continue;
            };
            for (value, status) in [(minimum, 200), (maximum, 200), (minimum - 1, 422), (maximum + 1, 422)] {
                let reply = node.get(&format!("{path}?{name}={value}")).await;
                assert_eq!(reply.status, status, "{path}?{name}={value}: {:#}", reply.body);
            }
            checked.push(name.to_owned());
        }
    }
    checked.sort();
    assert_eq!(
        checked,
        [
            "attempt", "bucket", "count", "item", "limit", "limit", "limit", "limit", "limit", "receiver", "sender"
        ]
    );
}

/// What callers were told nothing of, though it was taken and answered.
#[tokio::test]
async fn bodies_are_as_described() {
    let (_world, node) = World::with_node().await;
    let document = description(&node).await;
    let group = Operation::of(&document, "PUT", "/v1/groups/{name}");
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let again = with(
        node.get("/v1/groups/g").await.expect_status(200),
        json!({"enabled": false}),
    );
    group.takes(&again);
    let properties = &document["components"]["schemas"]["GroupPut"]["properties"];
    assert!(properties["enabled"].is_object(), "{properties:#}");
    let put = node.put("/v1/groups/g", again).await;
    assert_eq!(put.body["enabled"], false);
    group.answers(&put);

    let retention = Operation::of(&document, "PUT", "/v1/retention");
    let wanted = json!({"runs": "30d"});
    retention.takes(&wanted);
    retention.answers(&node.put("/v1/retention?dry_run=true", wanted.clone()).await);
    retention.answers(&node.put("/v1/retention", wanted).await);

    put_topic(&node, "t", json!({"queue": "q", "granularity": "instant"})).await;
    let send = Operation::of(&document, "POST", "/v1/topics/{topic}/messages");
    for body in [
        due_now(1, json!({})),
        json!([due_now(1, json!({})), due_now(2, json!({}))]),
    ] {
        send.takes(&body);
        send.answers(&node.post("/v1/topics/t/messages", body).await);
    }
}
