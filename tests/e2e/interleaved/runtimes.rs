//! Runtimes that are retired while versions are put into use: either comes first, and knows of the other.

use std::pin::Pin;

use heddle_store::group::{GroupPut, GroupWrite, ScriptUse};
use heddle_store::runtime::Retired;
use heddle_store::script::{Activate, ScriptWrite};
use heddle_store::topic::{TopicPut, TopicWrite};
use heddle_tests::World;
use serde_json::json;
use tokio_postgres::Client;

use super::{bare_group, by, store, unhindered, waiting};

const OLD: &str = "0000000000000001";
const NEW: &str = "0000000000000002";

/// Two runtimes, and a script with three versions on the old one, of which the first is active.
pub(super) async fn three_versions(sql: &Client) -> i64 {
    sql.batch_execute(&format!(
        "INSERT INTO heddle.runtimes (tag, language, interpreter, interface, bytes, created_at)
         SELECT tag, 'javascript', 'an interpreter', 1, '', now() FROM unnest(ARRAY['{OLD}', '{NEW}']) tag;
         INSERT INTO heddle.scripts (name, created_at, updated_at) VALUES ('s', now(), now());
         INSERT INTO heddle.blobs (digest, bytes, created_at) SELECT repeat(n::text, 64), '', now() FROM generate_series(1, 3) n;
         INSERT INTO heddle.script_versions (script_id, version, digest, world, runtime_tag, exports, defaults, description, size, created_at)
         SELECT s.id, n, repeat(n::text, 64), 'source/javascript', '{OLD}', '{{run}}', '{{}}', '', 0, now()
           FROM heddle.scripts s, generate_series(1, 3) n WHERE s.name = 's';
         UPDATE heddle.scripts SET active_version = 1, last_version = 3 WHERE name = 's'"
    ))
    .await
    .expect("a script");
    let found = sql
        .query_one("SELECT id FROM heddle.scripts WHERE name = 's'", &[])
        .await;
    found.expect("it").get(0)
}

/// Putting a version into use waits for a retirement of its runtime that has begun.
#[tokio::test]
async fn uses_beside_a_retirement() {
    let world = World::new().await;
    let (store, mut other, sql) = (store(&world).await, world.sql().await, world.sql().await);
    three_versions(&sql).await;
    let spec = json!({"tasks": {"t": {"script": "s@2"}}});
    let scripts = [ScriptUse {
        script: "s".into(),
        version: Some(2),
    }];
    let group = GroupWrite {
        scripts: &scripts,
        ..bare_group("g", &spec)
    };
    let spec = json!({"script": "s@2"});
    let topic = TopicWrite {
        name: "t",
        script: Some("s"),
        queue: None,
        spec: &spec,
    };
    let digest = "3".repeat(64);
    let again = ScriptWrite {
        name: "s",
        digest: &digest,
        bytes: b"",
        world: "source/javascript",
        runtime: None,
        runtime_tag: Some(OLD),
        exports: &["run"],
        params_schema: None,
        defaults: &json!({}),
        description: "",
        activate: true,
    };
    type Use<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;
    let uses: [(&str, Use<'_>); 4] = [
        (
            "a group that names it",
            Box::pin(async { matches!(store.put_group(by(), group).await, Ok(GroupPut::Done(_))) }),
        ),
        (
            "a topic that names it",
            Box::pin(async { matches!(store.put_topic(by(), topic, &[], None).await, Ok(TopicPut::Done(_))) }),
        ),
        (
            "an activation",
            Box::pin(async { matches!(store.activate_script(by(), "s", 2).await, Ok(Activate::Done(_))) }),
        ),
        (
            "an upload of the same text",
            Box::pin(async {
                store
                    .put_script(by(), again)
                    .await
                    .is_ok_and(|put| !put.created && put.changed)
            }),
        ),
    ];
    for (what, put_into_use) in uses {
        let retires = other.transaction().await.unwrap();
        let lock = "SELECT FROM heddle.runtimes WHERE tag = $1 FOR UPDATE";
        retires.execute(lock, &[&OLD]).await.unwrap();
        let ends = async {
            waiting(&sql, 1).await;
            retires.commit().await.unwrap();
        };
        let (done, ()) = unhindered(async { tokio::join!(put_into_use, ends) }).await;
        assert!(done, "{what}");
    }
}

/// A retirement waits for an activation that has begun, and then finds the version in use.
#[tokio::test]
async fn a_retirement_beside_an_activation() {
    let world = World::new().await;
    let (store, mut other, sql) = (store(&world).await, world.sql().await, world.sql().await);
    let script = three_versions(&sql).await;
    // As `activate_script` does.
    let activates = other.transaction().await.unwrap();
    for statement in [
        "SELECT FROM heddle.scripts WHERE name = 's' FOR UPDATE",
        "SELECT FROM heddle.runtimes WHERE tag = '0000000000000001' FOR SHARE",
        "UPDATE heddle.scripts SET active_version = 2 WHERE name = 's'",
    ] {
        activates.execute(statement, &[]).await.unwrap();
    }
    let looked_at = [(script, 1)];
    let (retired, ()) = unhindered(async {
        tokio::join!(store.retire_runtime(by(), OLD, (NEW, "newer"), &looked_at), async {
            waiting(&sql, 1).await;
            activates.commit().await.unwrap();
        })
    })
    .await;
    assert_eq!(retired.unwrap(), Retired::Others);
    let looked_at = [(script, 1), (script, 2)];
    let retired = store.retire_runtime(by(), OLD, (NEW, "newer"), &looked_at).await;
    assert_eq!(retired.unwrap(), Retired::Done { versions: 3 });
}
