//! Transactions that have one lock and wait for the next: whoever has that one takes what comes after it unhindered.

use heddle_domain::link::LinkKind;
use heddle_domain::spec::Need;
use heddle_store::group::{GroupDelete, GroupPut, GroupWrite};
use heddle_store::link::GroupLink;
use heddle_store::topic::{TopicDelete, TopicPut, TopicWrite};
use serde_json::json;
use tokio_postgres::Client;

use super::{bare_group, by, close, meanwhile, set_up};

/// The store's numbers of the log of changes, and of the lock of all groups.
const CHANGES: i64 = 0x6865_6464_6c65_0001;
const GROUPS: i64 = 0x6865_6464_6c65_0002;

/// Nobody who waits has the log of changes.
async fn log_is_free(sql: &Client) {
    let tried = sql.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&CHANGES]).await;
    assert!(
        tried.expect("an answer").get::<_, bool>(0),
        "somebody who waits has the log"
    );
}

/// What stands in the log, in its order, besides the scripts that each world begins with.
async fn logged(sql: &Client) -> Vec<String> {
    let rows = sql
        .query(
            "SELECT kind || ' ' || name FROM heddle.changes WHERE kind <> 'script' ORDER BY id",
            &[],
        )
        .await;
    rows.expect("the log").iter().map(|row| row.get(0)).collect()
}

/// A topic with a group waits for the lock of all groups, when it is put and when it is deleted.
#[tokio::test]
async fn topics_beside_changes_of_groups() {
    let (_world, store, sql, mut other) = set_up().await;
    let (spec, tasks) = (json!({"queue": "q"}), json!({"tasks": {}}));
    let topic = TopicWrite {
        name: "t",
        script: None,
        queue: Some("q"),
        spec: &spec,
    };
    let hold = "SELECT pg_advisory_xact_lock($1)";
    let change = other.transaction().await.unwrap();
    change.execute(hold, &[&GROUPS]).await.unwrap();
    let put = store.put_topic(by(), topic, &[], Some(bare_group("", &tasks)));
    let put = meanwhile(&sql, put, async {
        log_is_free(&sql).await;
        close(change, false).await;
    })
    .await;
    assert!(matches!(put.unwrap(), TopicPut::Done(_)));
    let change = other.transaction().await.unwrap();
    change.execute(hold, &[&GROUPS]).await.unwrap();
    let deleted = meanwhile(&sql, store.delete_topic(by(), "t"), async {
        log_is_free(&sql).await;
        close(change, false).await;
    })
    .await;
    assert!(matches!(deleted.unwrap(), TopicDelete::Deleted { group: Some(_) }));
    let kinds: Vec<String> = logged(&sql).await;
    let kinds: Vec<&str> = kinds.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(kinds, ["topic", "group", "topic", "group"]);
}

/// A change of a group waits for a node that is firing its schedules: after it has created a category, and after a follower
/// was detached.
#[tokio::test]
async fn changes_of_groups_beside_a_firing() {
    let (_world, store, sql, mut other) = set_up().await;
    let hourly = |hours: u32| json!({"tasks": {}, "schedules": {"s": {"every": format!("{hours}h")}}});
    let (spec, changed) = (hourly(1), hourly(2));
    store.put_group(by(), bare_group("up", &spec)).await.unwrap();
    let hold = "SELECT FROM heddle.schedules FOR UPDATE";
    let firing = other.transaction().await.unwrap();
    assert_eq!(firing.execute(hold, &[]).await.unwrap(), 1);
    let write = GroupWrite {
        category: Some("c"),
        ..bare_group("up", &changed)
    };
    let put = meanwhile(&sql, store.put_group(by(), write), async {
        log_is_free(&sql).await;
        close(firing, false).await;
    })
    .await;
    assert!(matches!(put.unwrap(), GroupPut::Done(_)));

    let links = [GroupLink {
        upstream: "up".into(),
        kind: LinkKind::DependsOn,
        need: Need::Latest,
    }];
    let follows = json!({"tasks": {}, "depends_on": ["up"]});
    let down = GroupWrite {
        links: &links,
        ..bare_group("down", &follows)
    };
    store.put_group(by(), down).await.unwrap();
    let firing = other.transaction().await.unwrap();
    assert_eq!(firing.execute(hold, &[]).await.unwrap(), 1);
    let deleted = meanwhile(&sql, store.delete_group(by(), "up", false, None), async {
        log_is_free(&sql).await;
        close(firing, false).await;
    })
    .await;
    let deleted = deleted.unwrap();
    assert!(
        matches!(&deleted, GroupDelete::Deleted { detached, .. } if *detached == ["down"]),
        "{deleted:?}"
    );
    let written = [
        "group up",
        "category c",
        "group up",
        "group down",
        "group down",
        "group up",
    ];
    assert_eq!(logged(&sql).await, written);
}

/// Writers of the log wait for each other until they commit: a position that was read has no gap before it.
#[tokio::test]
async fn writers_of_the_log() {
    let (_world, store, sql, mut other) = set_up().await;
    let writer = other.transaction().await.unwrap();
    writer
        .execute("SELECT pg_advisory_xact_lock($1)", &[&CHANGES])
        .await
        .unwrap();
    let writes = "INSERT INTO heddle.changes (kind, name, at) VALUES ('pool', 'p', now())";
    assert_eq!(writer.execute(writes, &[]).await.unwrap(), 1);
    let before = store.changes_position().await.unwrap();
    let put = meanwhile(&sql, store.put_category(by(), "c", ""), async {
        assert_eq!(store.changes_position().await.unwrap(), before);
        close(writer, true).await;
    })
    .await;
    assert!(put.unwrap().created);
    assert_eq!(logged(&sql).await, ["pool p", "category c"]);
}

/// `heddle.keys_first()`, which is called after a restore, gives other numbers only to events of another cluster: not to those
/// that are written while it waits, although their numbers are newer than its begin.
#[tokio::test]
async fn own_events_keep_their_numbers() {
    let (world, _store, sql, mut other) = set_up().await;
    let caller = world.sql().await;
    let writes = other.transaction().await.unwrap();
    writes
        .batch_execute("LOCK TABLE heddle.events IN SHARE ROW EXCLUSIVE MODE")
        .await
        .unwrap();
    let write = async {
        writes
            .batch_execute("INSERT INTO heddle.events (kind, at, data) VALUES ('test', clock_timestamp(), '[]')")
            .await
            .unwrap();
        let own = writes
            .query_one("SELECT pg_current_xact_id()::text", &[])
            .await
            .unwrap();
        close(writes, true).await;
        own.get::<_, String>(0)
    };
    let mut number = String::new();
    let then = async { number = write.await };
    meanwhile(&sql, caller.batch_execute("SELECT heddle.keys_first()"), then)
        .await
        .unwrap();
    let kept = "SELECT xid::text FROM heddle.events WHERE kind = 'test'";
    let kept: String = sql.query_one(kept, &[]).await.unwrap().get(0);
    assert_eq!(kept, number);
}
