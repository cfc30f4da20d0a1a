//! A topic that sends to a queue has a group, and so has a tree of timer tasks. Both are written together, or deleted
//! together. In these tests, a table refuses writes when the other has been written. A node that dies at this moment leaves
//! the same.

use heddle_tests::{Api, World};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::messages::put_topic;

/// Each write to a table fails until [`mend`].
async fn break_table(sql: &Client, table: &str) {
    sql.batch_execute(&format!(
        "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'this table takes no writes'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON heddle.{table}
         FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()"
    ))
    .await
    .unwrap();
}

async fn mend(sql: &Client, table: &str) {
    sql.batch_execute(&format!("DROP TRIGGER refuse ON heddle.{table}"))
        .await
        .unwrap();
}

async fn groups(api: &Api) -> Vec<String> {
    let groups = api.all("/v1/groups").await;
    groups
        .iter()
        .map(|group| group["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_topic_and_its_group() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    let spec = |timeout: &str| json!({"queue": "q", "timeout": timeout});
    break_table(&sql, "groups").await;
    node.put("/v1/topics/t", spec("1m")).await.expect_status(500);
    node.get("/v1/topics/t").await.expect_problem(404, &[]);
    mend(&sql, "groups").await;
    put_topic(&node, "t", spec("1m")).await;
    let made = groups(&node).await;
    assert_eq!(made.len(), 1, "{made:?}");
    let group = format!("/v1/groups/{}", made[0]);

    break_table(&sql, "revisions").await;
    node.put("/v1/topics/t", spec("2m")).await.expect_status(500);
    assert_eq!(node.get("/v1/topics/t").await.expect_status(200)["timeout"], "1m");
    mend(&sql, "revisions").await;
    put_topic(&node, "t", spec("2m")).await;
    let found = node.get(&group).await.expect_status(200);
    assert_eq!(found["tasks"]["batch"]["timeout"], "2m", "{found:#}");

    break_table(&sql, "groups").await;
    node.delete("/v1/topics/t").await.expect_status(500);
    node.get("/v1/topics/t").await.expect_status(200);
    mend(&sql, "groups").await;
    // If the group cannot be deleted, the topic stays too.
    node.put_group("user", json!({"tasks": {"t": {"group": made[0]}}}))
        .await;
    node.delete("/v1/topics/t").await.expect_said(409, "`user`");
    node.get("/v1/topics/t").await.expect_status(200);
    node.delete("/v1/groups/user").await.expect_status(200);
    node.delete("/v1/topics/t").await.expect_status(204);
    assert_eq!(groups(&node).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_tree_and_its_group() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    let call = async |name: &str, body: Value| {
        let path = format!("/task-scheduler/task/{name}");
        let answer = node.post(&path, body).await.expect_status(200);
        (answer["code"].as_i64().unwrap(), answer["data"].clone())
    };
    let kept = async || {
        let row = sql
            .query_one(
                "SELECT (SELECT count(*) FROM heddle.groups WHERE deleted_at IS NULL),
                        (SELECT count(*) FROM heddle.timer_tasks),
                        (SELECT count(*) FROM heddle.groups WHERE enabled AND deleted_at IS NULL),
                        (SELECT count(*) FROM heddle.timer_tasks WHERE definition ->> 'status' = '-1')",
                &[],
            )
            .await
            .unwrap();
        [0, 1, 2, 3].map(|column| row.get::<_, i64>(column))
    };
    let tree = json!({"taskName": "root", "appServiceName": "q", "subTaskList": [{"taskName": "below"}]});
    for table in ["groups", "timer_tasks"] {
        break_table(&sql, table).await;
        assert_eq!(call("submitTimerTask", tree.clone()).await.0, 500, "{table}");
        assert_eq!(kept().await, [0, 0, 0, 0], "{table}");
        mend(&sql, table).await;
    }
    let (code, made) = call("submitTimerTask", tree).await;
    assert_eq!((code, kept().await), (200, [1, 2, 1, 0]));
    let root = &made["taskId"];
    for table in ["groups", "timer_tasks"] {
        break_table(&sql, table).await;
        assert_eq!(call("disableTask", root.clone()).await.0, 500, "{table}");
        assert_eq!(call("timerTaskDel", root.clone()).await.0, 500, "{table}");
        assert_eq!(kept().await, [1, 2, 1, 0], "{table}");
        mend(&sql, table).await;
    }
    assert_eq!(call("disableTask", root.clone()).await.0, 200);
    assert_eq!(kept().await, [1, 2, 0, 1]);
    assert_eq!(call("timerTaskDel", root.clone()).await.0, 200);
    assert_eq!(kept().await, [0, 0, 0, 0]);
}
