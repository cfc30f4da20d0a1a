//! What becomes of the runs of a backfill, and of their dependants, after it: reruns, and the end of its group.

use heddle_tests::{Node, World, eventually, id, runs};
use serde_json::{Value, json};

use crate::{one, with};

/// Uploads a script that fails, or succeeds.
async fn upload(node: &Node, name: &str, fails: bool) {
    let source = match fails {
        true => "export default () => { throw new Fatal('broken'); };",
        false => "export default () => 'mended';",
    };
    let path = format!("/v1/scripts/{name}");
    node.put_bytes(&path, "text/javascript", source)
        .await
        .expect_status(201);
}

/// A daily or monthly group that keeps history. Its schedule is over: no instant comes during a test.
fn past(task: Value, cron: &str) -> Value {
    let schedule = json!({"cron": cron, "starts_at": "2012-01-01", "ends_at": "2016-01-01"});
    with(one(task), json!({"history": true, "schedules": {"s": schedule}}))
}

async fn backfill(node: &Node, group: &str, asked: Value) -> String {
    let made = node.post(&format!("/v1/groups/{group}/backfills"), asked).await;
    id(&made.expect_status(202))
}

/// A backfill at its end.
async fn ended(node: &Node, backfill: &str) -> Value {
    eventually("end of the backfill", async || {
        let backfill = node.get(&format!("/v1/backfills/{backfill}")).await.expect_status(200);
        backfill["finished_at"].is_string().then_some(backfill)
    })
    .await
}

/// A rerun at its end.
async fn rerun(node: &Node, run: &Value, asked: Value) -> Value {
    let again = node.post(&format!("/v1/runs/{}/rerun", id(run)), asked).await;
    node.ended(&id(&again.expect_status(202))).await
}

/// Waits until no event between groups is left to be worked off.
async fn settled(world: &World) {
    let sql = world.sql().await;
    eventually("end of events", async || {
        let left = sql.query_one("SELECT count(*) FROM heddle.link_events", &[]).await;
        (left.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
}

/// The success of a rerun calls dependants if that of the run would have: only if the backfill includes them. So does the
/// rerun of a rerun.
#[tokio::test]
async fn reruns_call_dependants_as_the_backfill_says() {
    let (world, node) = World::with_node().await;
    for (included, up, down) in [(false, "up", "down"), (true, "up-and-down", "down-as-well")] {
        upload(&node, up, true).await;
        node.put_group(up, past(json!({"script": up}), "0 0 * * *")).await;
        node.put_group(down, with(one(json!({"script": "hello"})), json!({"depends_on": [up]})))
            .await;
        let asked = json!({"from": "2012-01-01", "to": "2012-01-02", "include_downstream": included});
        let source = backfill(&node, up, asked).await;
        assert_eq!(ended(&node, &source).await["state"], "failed");
        let [first, second] = &runs(&node, up).await[..] else {
            panic!("two runs")
        };
        let again = rerun(&node, second, json!({})).await;
        assert_eq!(again["state"], "failed", "{again:#}");
        upload(&node, up, false).await;
        for failed in [first, &again] {
            let mended = rerun(&node, failed, json!({"scripts": "active"})).await;
            assert_eq!(mended["state"], "succeeded", "{mended:#}");
        }
        settled(&world).await;
        let followed = runs(&node, down).await;
        let expect = if included { 2 } else { 0 };
        assert_eq!(followed.len(), expect, "{followed:#?}");
        for run in &followed {
            assert_eq!((&run["trigger"], &run["source"]), (&json!("upstream"), &json!(source)));
        }
    }
    // What no backfill has made calls with its first success, and its rerun calls nobody.
    let run = node.run("up", json!({"logical_time": "2013-01-01T00:00:00Z"})).await;
    rerun(&node, &run, json!({})).await;
    settled(&world).await;
    assert_eq!(runs(&node, "down").await.len(), 1);
}

/// A success by rerun counts for an interval, although nobody followed the group then.
#[tokio::test]
async fn reruns_before_the_first_follower_count_for_intervals() {
    let (_world, node) = World::with_node().await;
    upload(&node, "months", true).await;
    node.put_group("months", past(json!({"script": "months"}), "0 0 1 * *"))
        .await;
    let failed = backfill(&node, "months", json!({"from": "2013-01-01", "to": "2013-02-01"})).await;
    assert_eq!(ended(&node, &failed).await["state"], "failed");
    upload(&node, "months", false).await;
    for run in &runs(&node, "months").await {
        let mended = rerun(&node, run, json!({"scripts": "active"})).await;
        assert_eq!(mended["state"], "succeeded", "{mended:#}");
    }
    let interval = json!({"depends_on": [{"group": "months", "need": "interval"}]});
    let quarters = past(json!({"script": "hello"}), "0 0 1 1,4,7,10 *");
    node.put_group("quarters", with(quarters, interval)).await;
    let asked = json!({"from": "2013-03-01", "to": "2013-03-01", "include_downstream": true});
    ended(&node, &backfill(&node, "months", asked).await).await;
    let quarter = eventually("a quarter", async || runs(&node, "quarters").await.pop()).await;
    assert_eq!(quarter["logical_time"], "2013-04-01T00:00:00.000000Z");
    assert_eq!(node.ended(&id(&quarter)).await["state"], "succeeded");
}

/// A backfill ends with its group, also a paused one, and cancels the runs of dependants that followed.
#[tokio::test]
async fn a_deleted_group_ends_its_backfills() {
    let (_world, node) = World::with_node().await;
    for (paused, up, down) in [(false, "up", "down"), (true, "paused", "down-as-well")] {
        node.put_group(up, past(json!({"script": "hello"}), "0 0 * * *")).await;
        node.put_group(down, with(one(json!({"queue": "q"})), json!({"depends_on": [up]})))
            .await;
        let asked = json!({"from": "2012-01-01", "to": "2015-12-31", "include_downstream": true});
        let made = backfill(&node, up, asked).await;
        eventually("a run of the dependant", async || runs(&node, down).await.pop()).await;
        if paused {
            node.post(&format!("/v1/backfills/{made}/pause"), json!({}))
                .await
                .expect_status(200);
        }
        node.delete(&format!("/v1/groups/{up}?force=true"))
            .await
            .expect_status(200);
        let end = ended(&node, &made).await;
        assert_eq!(
            (&end["state"], &end["note"]),
            (&json!("cancelled"), &json!("the group was deleted"))
        );
        let followed = runs(&node, down).await;
        assert!(followed.iter().all(|run| run["state"] == "cancelled"), "{followed:#?}");
    }
}
