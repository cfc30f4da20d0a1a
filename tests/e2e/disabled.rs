//! Groups that are put disabled: they fire nothing from the very first moment, however many are put at once, so that
//! changes of groups wait for each other.

use futures::{StreamExt, stream};
use heddle_tests::{Api, World, eventually};
use serde_json::{Value, json};

use crate::{one, with};

/// How many are put, and how many of them at the same time.
const GROUPS: usize = 48;
const AT_ONCE: usize = 12;

async fn together(puts: impl Iterator<Item = impl Future<Output = ()>>) {
    stream::iter(puts).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// A group that is due at every moment.
fn always_due() -> Value {
    let schedules = json!({"now": {"once": {"delay": "0s"}}, "often": {"every": "100ms", "initial_delay": "0s"}});
    with(
        one(json!({"script": "hello"})),
        json!({"schedules": schedules, "overlap": "allow"}),
    )
}

async fn put(api: &Api, name: String, spec: Value) {
    let reply = api.put(&format!("/v1/groups/{name}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{name}: {:#}", reply.body);
    assert_eq!(reply.body["enabled"], false, "{name}");
}

/// Waits until both nodes' schedulers have ticked several times since, and then that these groups have no runs.
async fn fired_nothing(world: &World, api: &Api, like: &str) {
    let count = async || api.all("/v1/runs?group=witness").await.len();
    let before = count().await;
    eventually("several firings of another group", async || {
        (count().await >= before + 5).then_some(())
    })
    .await;
    let row = world
        .sql()
        .await
        .query_one(
            "SELECT count(DISTINCT g.id), count(DISTINCT g.id) FILTER (WHERE g.enabled),
                    count(s.group_id) FILTER (WHERE s.next_fire_at IS NOT NULL),
                    (SELECT count(*) FROM heddle.run_instants i JOIN heddle.groups g ON g.id = i.group_id
                      WHERE g.name LIKE $1)
               FROM heddle.groups g LEFT JOIN heddle.schedules s ON s.group_id = g.id WHERE g.name LIKE $1",
            &[&like],
        )
        .await
        .unwrap();
    let counts: [i64; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
    let [groups, rest @ ..] = counts;
    assert_eq!(groups, GROUPS as i64, "{like}");
    assert_eq!(rest, [0, 0, 0], "{like}: enabled, schedules that are due, runs");
}

#[tokio::test]
async fn a_group_that_is_put_disabled_fires_nothing() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let witness = json!({"schedules": {"s": {"every": "100ms"}}, "overlap": "allow"});
    nodes[0]
        .put_group("witness", with(one(json!({"script": "hello"})), witness))
        .await;
    let disabled = || with(always_due(), json!({"enabled": false}));
    let api = |n: usize| nodes[n % 2].api();
    // New ones.
    let new = (0..GROUPS).map(|n| put(api(n), format!("new-{n}"), disabled()));
    together(new).await;
    fired_nothing(&world, api(0), "new-%").await;
    // Those that change: their schedules come with the very change that disables them.
    for n in 0..GROUPS {
        api(n)
            .put_group(&format!("old-{n}"), one(json!({"script": "hello"})))
            .await;
    }
    let changes = (0..GROUPS).map(|n| put(api(n), format!("old-{n}"), disabled()));
    together(changes).await;
    fired_nothing(&world, api(1), "old-%").await;
    // Timer tasks of the older scheduler, switched off as they are made.
    let trees = (0..GROUPS).map(|n| {
        let timers = json!([{"type": 2, "initDelay": 0, "period": 100}, {"type": 4, "delay": 0}]);
        let tree = json!({
            "taskName": format!("t{n}"), "appServiceName": "bill", "status": -1,
            "taskScheduleConf": {"timerList": timers},
        });
        async move {
            let answer = api(n).post("/task-scheduler/task/submitTimerTask", tree).await;
            assert!(answer.body["data"].is_object(), "{:#}", answer.body);
        }
    });
    together(trees).await;
    fired_nothing(&world, api(0), "timer-task-%").await;
    // It is the word that keeps them quiet, not the schedules.
    put_enabled_fires(api(1), "new-0").await;
}

/// The same spec again, enabled: no new revision, and it fires.
async fn put_enabled_fires(api: &Api, name: &str) {
    let spec = with(always_due(), json!({"enabled": true}));
    let group = api.put(&format!("/v1/groups/{name}"), spec).await.expect_status(200);
    assert_eq!((&group["enabled"], &group["revision"]), (&json!(true), &json!(1)));
    eventually("runs of a group that was put enabled", async || {
        (!api.all(&format!("/v1/runs?group={name}")).await.is_empty()).then_some(())
    })
    .await;
    // Each switch is recorded once, whoever requested it.
    let audit = api.all("/v1/audit?kind=group").await;
    let of = |action: &str| {
        let is = |entry: &&Value| entry["name"] == name && entry["action"] == action;
        audit.iter().filter(is).count()
    };
    assert_eq!((of("create"), of("disable"), of("enable")), (1, 1, 1));
    // Left out, it stays as it is.
    let kept = api
        .put(&format!("/v1/groups/{name}"), always_due())
        .await
        .expect_status(200);
    assert_eq!((&kept["enabled"], &kept["revision"]), (&json!(true), &json!(1)));
}
