//! How long everything but runs is kept: the audit, events, notifications, offers and their assignments, backfills, tokens.

use heddle_tests::{Answer, Receiver, World, eventually, task};
use serde_json::{Value, json};

use crate::dispatch::{complete, finish, given, members, offer, users};
use crate::notifications::{becomes, webhook};
use crate::retention::{count, ended, hello, hold_still, prune};
use crate::{one, with};

/// The audit, events and so on have their own times.
#[tokio::test]
async fn other_rows() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let run = ended(&node, "g", hello()).await;
    sql.batch_execute(
        "SELECT heddle.make_dispatch_partitions('2020-07-01', 1);
         INSERT INTO heddle.audit (at, actor, action, kind, name) VALUES ('2020-07-01', 'x', 'y', 'z', 'old');
         INSERT INTO heddle.events (kind, at, data) VALUES ('run.succeeded', '2020-07-01 12:00+00', '{}'),
                                                           ('run.succeeded', '2019-07-01 12:00+00', '{}')",
    )
    .await
    .unwrap();
    assert_eq!(node.all("/v1/audit?name=old").await.len(), 1);
    let preview = prune(&node, true).await;
    assert_eq!(
        (preview["audit"].clone(), preview["events"].clone()),
        (json!(1), json!(2))
    );
    let pruned = prune(&node, false).await;
    assert_eq!(
        (pruned["audit"].clone(), pruned["events"].clone()),
        (json!(1), json!(1)),
        "{pruned:#}"
    );
    assert_eq!(node.all("/v1/audit?name=old").await.len(), 0);
    assert_eq!(count(&sql, "events WHERE at < '2021-01-01'").await, 0);
    let asked = node.all("/v1/audit?action=prune").await;
    assert_eq!(asked.len(), 1, "who had it done stands in the audit: {asked:#?}");
    node.run_now(&run).await;
}

/// What people made and what is over: notifications, occurrences, deleted offers, ended backfills, tokens.
#[tokio::test]
async fn what_is_used_up() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    for _ in 0..2 {
        node.post("/v1/channels/hook/test", json!({})).await.expect_status(200);
    }
    for name in ["gone", "kept"] {
        node.put(
            &format!("/v1/offers/{name}"),
            json!({"kind": "once", "audience": format!("uid_{name}"), "starts_at": "2026-01-01T00:00:00Z"}),
        )
        .await
        .expect_status(201);
    }
    node.post("/v1/tokens", json!({"name": "gone", "role": "viewer"}))
        .await
        .expect_status(201);
    node.delete("/v1/tokens/gone").await.expect_status(204);
    node.post("/v1/tokens", json!({"name": "kept", "role": "viewer"}))
        .await
        .expect_status(201);
    node.put_group("past", with(hello(), json!({"history": true}))).await;
    let asked = json!({"from": "2024-01-01", "to": "2024-01-01", "step": "1d"});
    let backfill = node.post("/v1/groups/past/backfills", asked).await.expect_status(202);
    let backfill = format!("/v1/backfills/{}", backfill["id"].as_str().unwrap());
    eventually("the backfill's end", async || {
        (node.get(&backfill).await.body["state"] == "succeeded").then_some(())
    })
    .await;
    node.delete("/v1/offers/gone").await.expect_status(204);
    let nothing = prune(&node, false).await;
    let removed = |pruned: &Value| {
        ["notifications", "occurrences", "offers", "backfills", "tokens"].map(|what| pruned[what].as_u64().unwrap())
    };
    assert_eq!(removed(&nothing), [0; 5], "{nothing:#}");
    // As if it had been long ago. One offer's assignment is of a day that is kept, and keeps the offer.
    let run = heddle_tests::id(&node.all("/v1/runs?group=past&history=true").await[0]);
    sql.batch_execute(
        "UPDATE heddle.notifications SET created_at = '2020-01-01' WHERE id = (SELECT min(id::text)::uuid FROM heddle.notifications);
         UPDATE heddle.offers SET deleted_at = '2020-01-01' WHERE name = 'gone';
         INSERT INTO heddle.occurrences (offer_id, occurrence, taken, granted)
         SELECT o.id, at, 1, 1 FROM heddle.offers o, UNNEST(ARRAY['2020-01-01'::timestamptz, now()]) AS at;
         INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
         SELECT heddle.uuid_floor(now()), id, 1, 'x', audience, starts_at, 1, now(), now()
           FROM heddle.offers WHERE name = 'gone';
         UPDATE heddle.tokens SET revoked_at = '2020-01-01' WHERE name = 'gone';
         UPDATE heddle.backfills SET finished_at = '2020-01-01', created_at = '2020-01-01'",
    )
    .await
    .unwrap();
    assert_eq!(removed(&prune(&node, true).await), [1, 2, 0, 0, 1]);
    assert_eq!(
        node.all("/v1/notifications").await.len(),
        2,
        "a dry run removes nothing"
    );
    assert_eq!(removed(&prune(&node, false).await), [1, 2, 0, 0, 1]);
    assert_eq!(node.all("/v1/notifications").await.len(), 1);
    assert_eq!(count(&sql, "occurrences").await, 2);
    assert_eq!(count(&sql, "tokens WHERE name = 'gone'").await, 0);
    // With the last of what they are kept for, they go.
    sql.execute("DELETE FROM heddle.assignments", &[]).await.unwrap();
    node.delete(&format!("/v1/runs/{run}")).await.expect_status(204);
    assert_eq!(removed(&prune(&node, true).await), [0, 0, 1, 1, 0]);
    assert_eq!(removed(&prune(&node, false).await), [0, 0, 1, 1, 0]);
    node.get(&backfill).await.expect_problem(404, &[]);
    assert_eq!(count(&sql, "offers").await, 1);
    assert_eq!(count(&sql, "offer_versions").await, 1);
    assert_eq!(removed(&prune(&node, false).await), [0; 5]);
    // What waits to be sent stays, however old it is.
    receiver.answers(Answer::Silence);
    let run = node.run("past", json!({"callback": "hook"})).await;
    let pending = becomes(&node, &format!("run={}", heddle_tests::id(&run)), |item| {
        item["state"] == "pending"
    })
    .await;
    sql.batch_execute("UPDATE heddle.notifications SET created_at = '2020-01-01'")
        .await
        .unwrap();
    assert_eq!(removed(&prune(&node, false).await), [1, 0, 0, 0, 0]);
    let left = node.all("/v1/notifications").await;
    assert_eq!(left.len(), 1, "{left:#?}");
    assert_eq!(left[0]["id"], pending["id"]);
}

/// However short assignments are to be kept: nobody is given again what the horizon still reaches, and a task that is
/// open keeps the results that it has.
#[tokio::test]
async fn what_polls_and_tasks_look_back_at() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let kept = node.put("/v1/retention", json!({"assignments": "1h"})).await;
    kept.expect_status(200);
    members(&node, "gid_g", &users(2)).await;
    let due = crate::dispatch::wall_clock() - chrono::TimeDelta::hours(3);
    offer(
        &node,
        "o",
        json!({"audience": "gid_g", "starts_at": due, "dispatch_times": 5}),
    )
    .await;
    let first = given(&node, "u0").await.expect("the offer");
    complete(&node, &first).await;
    // As if it had been given long before it is to be kept, and soon after it was due.
    let now = world.now().await;
    let back = async |offer: &str, at: &str| {
        sql.batch_execute(&format!(
            "UPDATE heddle.assignments a SET id = heddle.uuid_floor('{at}'), assigned_at = '{at}', finished_at = '{at}'
               FROM heddle.offers o WHERE o.id = a.offer_id AND o.name LIKE '{offer}';
             UPDATE heddle.offers SET created_at = least(created_at, '{at}') WHERE name LIKE '{offer}'"
        ))
        .await
        .expect("an assignment of the past");
    };
    back("o", &(now - chrono::TimeDelta::minutes(70)).to_rfc3339()).await;
    assert_eq!(prune(&node, true).await["assignments"], 0);
    assert_eq!(prune(&node, false).await["assignments"], 0);
    members(&node, "gid_g", &users(3)).await;
    assert_eq!(given(&node, "u0").await, None, "what u0 has finished");

    // A task of which one of two has been completed forty days ago.
    let asks = json!({"audience": {"audience": "gid_g", "dispatch_times": 2}});
    node.put_group("asks", one(asks)).await;
    let run = node.start("asks", json!({})).await;
    let result = async |user: &str, result: &str| {
        let asked = eventually("the task's offer", async || {
            given(&node, user).await.filter(|asked| asked["offer"] != "o")
        })
        .await;
        finish(&node, &asked, "completed", json!(result))
            .await
            .expect_status(200);
    };
    // Both have had the other offer: what is left is the task's.
    let other = given(&node, "u1").await.expect("an offer");
    if other["offer"] == "o" {
        complete(&node, &other).await;
    }
    result("u0", "a").await;
    // One instant, and its day.
    let at = now - chrono::TimeDelta::days(40);
    let (at, old) = (at.to_rfc3339(), at.date_naive());
    sql.batch_execute(&format!("SELECT heddle.make_dispatch_partitions('{old}', 1)"))
        .await
        .expect("a day's partition");
    back("run-%", &at).await;
    sql.batch_execute(&format!(
        "INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
         SELECT gen.id, o.id, 1, 'x', o.audience, o.starts_at, 1, now(), now()
           FROM heddle.offers o, (SELECT (left(heddle.uuid_floor('{at}')::text, 35) || '1')::uuid AS id) AS gen
          WHERE o.name = 'o'"
    ))
    .await
    .expect("another's");
    assert_eq!(prune(&node, true).await["assignments"], 1);
    assert_eq!(
        prune(&node, false).await["assignments"],
        1,
        "of that day the other's goes alone"
    );
    result("u1", "b").await;
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    assert_eq!(task(&ended, "t")["output"], json!(["a", "b"]));
    // Nothing of an open task is left in that day: it goes as a whole.
    eventually("the end of the task's offer", async || {
        (count(&sql, "offers WHERE run IS NOT NULL AND deleted_at IS NULL").await == 0).then_some(())
    })
    .await;
    prune(&node, false).await;
    assert_eq!(
        count(
            &sql,
            &format!("partition_days('assignments') AS day WHERE day = '{old}'")
        )
        .await,
        0
    );
}

/// What was completed of a task whose run has failed stays as long as the run: a restart asks only the others, and its output
/// has the former results too.
#[tokio::test]
async fn what_a_restart_goes_on_with() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let kept = node.put("/v1/retention", json!({"assignments": "1h"})).await;
    kept.expect_status(200);
    members(&node, "gid_g", &users(2)).await;
    let asks = json!({"audience": {"audience": "gid_g", "dispatch_times": 2}});
    node.put_group("asks", one(asks)).await;
    let run = node.start("asks", json!({})).await;
    let answers = async |user: &str, status: &str, result: &str| {
        let path = format!("/v1/dispatch/{user}/next");
        let asked = node.post(&path, json!({"wait": "20s"})).await.expect_status(200);
        finish(&node, &asked, status, json!(result)).await.expect_status(200);
    };
    answers("u0", "completed", "a").await;
    answers("u1", "failed", "no").await;
    assert_eq!(node.ended(&run).await["state"], "failed");
    eventually("the end of the task's offer", async || {
        (count(&sql, "offers WHERE deleted_at IS NULL").await == 0).then_some(())
    })
    .await;
    // As if all of it had been forty days ago.
    let at = world.now().await - chrono::TimeDelta::days(40);
    let (at, old) = (at.to_rfc3339(), at.date_naive());
    sql.batch_execute(&format!(
        "SELECT heddle.make_dispatch_partitions('{old}', 1);
         UPDATE heddle.assignments SET occurrence = '{at}', assigned_at = '{at}', finished_at = '{at}',
                id = (left(heddle.uuid_floor('{at}')::text, 35) || right(uid, 1))::uuid;
         UPDATE heddle.occurrences SET occurrence = '{at}';
         UPDATE heddle.offers SET starts_at = '{at}', created_at = '{at}', deleted_at = '{at}',
                spec = jsonb_set(spec, '{{starts_at}}', '\"{at}\"')"
    ))
    .await
    .expect("a task of the past");
    let days = format!("partition_days('assignments') AS day WHERE day = '{old}'");
    for dry_run in [true, false] {
        let pruned = prune(&node, dry_run).await;
        let removed = [&pruned["assignments"], &pruned["occurrences"]].map(Value::as_u64);
        assert_eq!(removed, [Some(0); 2], "{pruned:#}");
    }
    assert_eq!(count(&sql, "assignments").await, 2);
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_status(200);
    // While the run is live, too.
    prune(&node, false).await;
    answers("u1", "completed", "b").await;
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "t")["output"], json!(["a", "b"]), "{ended:#}");
    eventually("the end of the task's offer", async || {
        (count(&sql, "offers WHERE deleted_at IS NULL").await == 0).then_some(())
    })
    .await;
    // A run that has succeeded is not restarted.
    assert_eq!(count(&sql, &days).await, 1);
    assert_eq!(prune(&node, false).await["occurrences"], 1);
    assert_eq!(count(&sql, &days).await, 0);
}
