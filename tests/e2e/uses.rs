//! An object is deleted while a group or topic that names it is put: one of the two is refused.

use heddle_tests::{Node, World, eventually};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::with;

/// A kind of things that specs name: its path and table, a thing, how a task or a group names it, and where.
struct Kind {
    path: &'static str,
    thing: Value,
    in_task: Value,
    in_group: Value,
    pointer: &'static str,
}

impl Kind {
    fn spec(&self) -> Value {
        let task = with(json!({"script": "echo"}), self.in_task.clone());
        with(json!({"category": "held", "tasks": {"t": task}}), self.in_group.clone())
    }

    fn thing_path(&self) -> String {
        format!("/v1/{}/it", self.path)
    }

    async fn put(&self, node: &Node) {
        let reply = node.put(&self.thing_path(), self.thing.clone()).await;
        assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
    }
}

fn kinds(world: &World) -> [Kind; 6] {
    let nothing = || json!({});
    [
        Kind {
            path: "pools",
            thing: json!({"slots": 1}),
            in_task: json!({"pools": {"it": 1}}),
            in_group: nothing(),
            pointer: "/tasks/t/pools/it",
        },
        Kind {
            path: "templates",
            thing: json!({"type": "object"}),
            in_task: nothing(),
            in_group: json!({"template": "it"}),
            pointer: "/template",
        },
        Kind {
            path: "secrets",
            thing: json!({"value": "x", "groups": ["*"]}),
            in_task: json!({"secrets": ["it"]}),
            in_group: nothing(),
            pointer: "/tasks/t/secrets/0",
        },
        Kind {
            path: "connections",
            thing: json!({"url": world.url(), "groups": ["*"]}),
            in_task: json!({"sql": ["it"]}),
            in_group: nothing(),
            pointer: "/tasks/t/sql/0",
        },
        Kind {
            path: "channels",
            thing: json!({"kind": "slack", "url": "https://example.com/x"}),
            in_task: json!({"notify": {"on": ["failed"], "channels": ["it"]}}),
            in_group: nothing(),
            pointer: "/tasks/t/notify/channels/0",
        },
        Kind {
            path: "channels",
            thing: json!({"kind": "slack", "url": "https://example.com/x"}),
            in_task: nothing(),
            in_group: json!({"notify": {"on": ["failed"], "channels": ["it"]}}),
            pointer: "/notify/channels/0",
        },
    ]
}

/// Waits until so many statements about a table wait for a lock.
async fn waiting(sql: &Client, table: &str, count: i64) {
    let asked = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'";
    let table = format!("heddle.{table}");
    eventually("wait for a lock", async || {
        let row = sql.query_one(asked, &[&table]).await.unwrap();
        (row.get::<_, i64>(0) >= count).then_some(())
    })
    .await;
}

/// What is being deleted is not there for the group that is put meanwhile.
#[tokio::test]
async fn a_deletion_goes_first() {
    let (world, node) = World::with_node().await;
    let (watcher, mut sql) = (world.sql().await, world.sql().await);
    for kind in kinds(&world) {
        kind.put(&node).await;
        let transaction = sql.transaction().await.unwrap();
        let delete = format!("DELETE FROM heddle.{} WHERE name = 'it'", kind.path);
        transaction.execute(&delete, &[]).await.unwrap();
        let put = node.put("/v1/groups/g", kind.spec());
        let (reply, ()) = tokio::join!(put, async {
            waiting(&watcher, kind.path, 1).await;
            transaction.commit().await.unwrap();
        });
        reply.expect_problem(422, &[kind.pointer]);
        node.get("/v1/groups/g").await.expect_problem(404, &[]);
    }
}

/// What a topic names is not deleted; what is being deleted is not there for the topic that is put meanwhile.
#[tokio::test]
async fn what_topics_name() {
    let (world, node) = World::with_node().await;
    let (watcher, mut sql) = (world.sql().await, world.sql().await);
    let [_, _, secrets, connections, ..] = kinds(&world);
    for (kind, field) in [(secrets, "secrets"), (connections, "sql")] {
        let mut spec = json!({"script": "postbox"});
        spec[field] = json!(["it"]);
        kind.put(&node).await;
        node.put("/v1/topics/post", spec.clone()).await.expect_status(201);
        node.delete(&kind.thing_path())
            .await
            .expect_said(409, "is used by topic `post`");
        node.put("/v1/topics/post", spec.clone()).await.expect_status(200);
        node.delete("/v1/topics/post").await.expect_status(204);
        let transaction = sql.transaction().await.unwrap();
        let delete = format!("DELETE FROM heddle.{} WHERE name = 'it'", kind.path);
        transaction.execute(&delete, &[]).await.unwrap();
        let put = node.put("/v1/topics/post", spec);
        let (reply, ()) = tokio::join!(put, async {
            waiting(&watcher, kind.path, 1).await;
            transaction.commit().await.unwrap();
        });
        let pointer = format!("/{field}");
        reply.expect_problem(422, &[pointer.as_str()]);
        node.get("/v1/topics/post").await.expect_problem(404, &[]);
    }
}

/// What a group names that is being put is not deleted meanwhile.
#[tokio::test]
async fn a_group_goes_first() {
    let (world, node) = World::with_node().await;
    let (watcher, mut sql) = (world.sql().await, world.sql().await);
    node.put("/v1/categories/held", json!({})).await.expect_status(201);
    for kind in kinds(&world) {
        kind.put(&node).await;
        // The group's transaction waits for its category, behind what it has found of the rest.
        let transaction = sql.transaction().await.unwrap();
        transaction
            .execute("SELECT FROM heddle.categories WHERE name = 'held' FOR UPDATE", &[])
            .await
            .unwrap();
        let put = node.put("/v1/groups/g", kind.spec());
        let path = kind.thing_path();
        let delete = async {
            waiting(&watcher, "categories", 1).await;
            node.delete(&path).await
        };
        let (reply, refused, ()) = tokio::join!(put, delete, async {
            waiting(&watcher, kind.path, 1).await;
            transaction.commit().await.unwrap();
        });
        assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
        refused.expect_said(409, "`g`");
        node.delete("/v1/groups/g").await.expect_status(200);
        node.delete(&kind.thing_path()).await.expect_status(204);
    }
}
