//! A new version starts beside nodes that work.

use heddle_tests::{World, eventually};

use crate::beside;

/// A backup reads a table that a new node has to change. The heartbeats of another node need the table too: they do not wait
/// behind the migration for as long as it waits for the backup.
#[tokio::test]
async fn a_migration_that_waits_for_a_reader_fences_nobody() {
    let _beside = beside().await;
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    // A migration of `heddle.nodes` cannot be undone beside a node that writes there. So each heartbeat reads the table of
    // another migration, which can be applied twice.
    sql.batch_execute(
        "DELETE FROM public._sqlx_migrations WHERE version = 123;
         CREATE FUNCTION public.read_state() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM FROM heddle.script_state LIMIT 1;
             RETURN NEW;
         END
         $$;
         CREATE TRIGGER read_state BEFORE UPDATE ON heddle.nodes FOR EACH ROW EXECUTE FUNCTION public.read_state()",
    )
    .await
    .unwrap();
    let id = node.node_id();
    let lease = async || {
        let row = sql
            .query_one(
                "SELECT lease, expires_at > clock_timestamp() FROM heddle.nodes WHERE id = $1::text::uuid",
                &[&id],
            )
            .await
            .unwrap();
        (row.get::<_, i64>(0), row.get::<_, bool>(1))
    };
    let (before, _) = lease().await;
    let reader = world.sql().await;
    reader
        .batch_execute(
            "SET application_name = 'the nightly backup';
             BEGIN;
             LOCK TABLE heddle.script_state IN ACCESS SHARE MODE",
        )
        .await
        .unwrap();
    let mut starting = world.options().spawn();
    // From the first wait to the end of the third, more time passes than a lease lasts.
    eventually("three tries of the migration", async || {
        let tries = starting.log().matches("the schema cannot be updated yet").count();
        (tries >= 3).then_some(())
    })
    .await;
    assert_eq!(lease().await, (before, true));
    let log = starting.log();
    assert!(
        log.contains("migration 123") && log.contains("the nightly backup"),
        "{log}"
    );
    reader.batch_execute("ROLLBACK").await.unwrap();
    eventually("both nodes", async || {
        let nodes = node.get("/v1/nodes").await.expect_status(200);
        let active = nodes["items"].as_array()?.iter();
        (active.filter(|node| node["state"] == "active").count() == 2).then_some(())
    })
    .await;
    let applied = sql.query_one("SELECT count(*) FROM public._sqlx_migrations WHERE version = 123", &[]);
    assert_eq!(applied.await.unwrap().get::<_, i64>(0), 1);
    assert_eq!(lease().await, (before, true));
    assert!(!node.log().contains("has lost its lease"), "{}", node.log());
    starting.terminate();
    starting.end().await;
}
