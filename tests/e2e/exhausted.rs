//! Audiences with very many used-up occurrences: the cost of a poll does not grow with them, and open ones are found.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use futures::future::join_all;
use heddle_tests::{Node, NodeOptions, Wire, World, time};
use serde_json::{Value, json};

use crate::dispatch::{complete, given, members, offer, poll, users, wall_clock};
use crate::ways::counts;

/// How many takes one poll may need: a few refusals for each read of what is used up.
const TAKES_MAX: i64 = 100;

/// A world in which every proposal that a node makes is counted, refused or not.
async fn counted(world: &World) -> tokio_postgres::Client {
    let sql = world.sql().await;
    sql.batch_execute(
        "CREATE SEQUENCE heddle.proposed MINVALUE 0;
         SELECT nextval('heddle.proposed');
         CREATE FUNCTION heddle.count_proposal() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM nextval('heddle.proposed'); RETURN NEW; END $$;
         CREATE TRIGGER proposed BEFORE INSERT ON heddle.holds
             FOR EACH ROW EXECUTE FUNCTION heddle.count_proposal()",
    )
    .await
    .expect("a count of proposals");
    sql
}

async fn proposed(sql: &tokio_postgres::Client) -> i64 {
    sql.query_one("SELECT last_value FROM heddle.proposed", &[])
        .await
        .expect("a count")
        .get(0)
}

/// Two offers, every second from so many hours ago until now.
async fn two_offers(node: &Node, group: &str, hours: i64) -> DateTime<Utc> {
    let now = wall_clock().duration_trunc(TimeDelta::seconds(1)).expect("a second");
    for nth in 0..2 {
        let spec = json!({"audience": group, "anchor": now - TimeDelta::hours(hours), "every": "1s", "ends_at": now});
        offer(node, &format!("{group}-{nth}"), spec).await;
    }
    now
}

/// All occurrences of a time are used up, as other nodes would have written it; but for those at an instant.
async fn use_up(sql: &tokio_postgres::Client, group: &str, from: DateTime<Utc>, to: DateTime<Utc>, but: DateTime<Utc>) {
    sql.execute(
        "INSERT INTO heddle.occurrences (offer_id, occurrence, taken, granted, completed)
         SELECT o.id, at, 1, 0, 1 FROM heddle.offers o,
                generate_series($2::timestamptz, $3::timestamptz, interval '1 second') AS at
          WHERE o.audience = $1 AND at <> $4
         ON CONFLICT DO NOTHING",
        &[&group, &from, &to, &but],
    )
    .await
    .expect("what others had");
}

/// What a poll gives that goes on as long as it has to.
async fn patient(node: &Node, user: &str) -> Option<Value> {
    let reply = node
        .post(&format!("/v1/dispatch/{user}/next"), json!({"wait": "60s"}))
        .await;
    (reply.status == 200).then_some(reply.body)
}

/// 93,600 used-up occurrences, more than a node reads at a time: users with a full horizon get the open ones among the
/// newest and among the oldest, the earliest first, or nothing; each poll after a few takes.
#[tokio::test]
async fn much_is_used_up() {
    let (world, node) = World::with_node().await;
    let sql = counted(&world).await;
    members(&node, "gid_g", &users(4)).await;
    let now = two_offers(&node, "gid_g", 13).await;
    let late = now - TimeDelta::hours(1);
    use_up(&sql, "gid_g", now - TimeDelta::hours(13), now, late).await;
    let before = proposed(&sql).await;
    let newer = patient(&node, "u0").await.expect("what is open an hour ago");
    assert_eq!(time(&newer["occurrence"]), late);
    let taken = proposed(&sql).await - before;
    assert!(taken < TAKES_MAX, "{taken} takes for one poll");
    // Among the oldest, which were not read at first, an earlier one.
    let early = now - TimeDelta::hours(11);
    sql.execute("DELETE FROM heddle.occurrences WHERE occurrence = $1", &[&early])
        .await
        .expect("open ones");
    // As with any change of the audience, the node begins anew.
    offer(
        &node,
        "far",
        json!({"audience": "gid_g", "starts_at": now + TimeDelta::days(1)}),
    )
    .await;
    for user in ["u1", "u2"] {
        let older = patient(&node, user).await.expect("what is open eleven hours ago");
        assert_eq!(time(&older["occurrence"]), early, "{user}");
    }
    // Who has finished something is given what comes after it.
    complete(&node, &newer).await;
    let last = patient(&node, "u0").await.expect("the other offer's");
    assert_eq!(time(&last["occurrence"]), late);
    assert_ne!(last["offer"], newer["offer"]);
    // Now there is nothing left, at the first poll and at later ones.
    for _ in 0..2 {
        assert_eq!(poll(&node, "u3").await.status, 204);
    }
    let taken = proposed(&sql).await - before;
    assert!(taken < 5 * TAKES_MAX, "{taken} takes for a few polls");
}

/// Nothing is granted, and nothing is seen to be used up either.
const GRANT_NOTHING: &str =
    "CREATE FUNCTION heddle.grant_nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
     CREATE TRIGGER nothing BEFORE INSERT ON heddle.occurrences
         FOR EACH ROW EXECUTE FUNCTION heddle.grant_nothing()";

/// A peek accepts fewer refusals than a poll, whatever the stock.
#[tokio::test]
async fn a_peek_asks_for_little() {
    let (world, node) = World::with_node().await;
    let sql = counted(&world).await;
    members(&node, "gid_g", &users(1)).await;
    two_offers(&node, "gid_g", 1).await;
    sql.batch_execute(GRANT_NOTHING).await.expect("no stock");
    let before = proposed(&sql).await;
    let peek = node.get("/v1/dispatch/u0/peek").await.expect_status(200);
    assert!(peek["gives"].is_null(), "{peek:#}");
    let asked = proposed(&sql).await - before;
    assert!((1..=TAKES_MAX).contains(&asked), "{asked} takes for one peek");
}

/// What other nodes have given since this one last read is also learned by a few reads, not one by one.
#[tokio::test]
async fn others_have_used_it_up() {
    let (world, node) = World::with_node().await;
    let sql = counted(&world).await;
    members(&node, "gid_g", &users(3)).await;
    let now = two_offers(&node, "gid_g", 2).await;
    let first = patient(&node, "u0").await.expect("the first");
    assert_eq!(time(&first["occurrence"]), now - TimeDelta::hours(2));
    let open = now - TimeDelta::minutes(1);
    use_up(&sql, "gid_g", now - TimeDelta::hours(2), now, open).await;
    let before = proposed(&sql).await;
    let given = patient(&node, "u1").await.expect("what is open");
    assert_eq!(time(&given["occurrence"]), open);
    let taken = proposed(&sql).await - before;
    assert!(taken < TAKES_MAX, "{taken} takes for one poll");
}

/// A world with a node that is 80 ms away from its database as soon as the wire has its delay.
async fn far_away() -> (World, Wire, Node) {
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let node = NodeOptions::new(wire.url()).start().await;
    (world, wire, node)
}

/// How far away it is, in each direction.
const FAR: Duration = Duration::from_millis(40);

/// Many users want occurrences with a stock of one each, at the same moment. They are given different ones by a few
/// transactions: not by one for each user, which would take a minute far from the database.
#[tokio::test]
async fn a_crowd_is_served_together() {
    let (_world, wire, node) = far_away().await;
    let crowd = users(40);
    members(&node, "gid_g", &crowd).await;
    let now = wall_clock();
    for nth in 0..crowd.len() {
        let starts_at = now - TimeDelta::seconds(nth as i64);
        offer(
            &node,
            &format!("o{nth}"),
            json!({"audience": "gid_g", "starts_at": starts_at}),
        )
        .await;
    }
    let takes = async || counts(&node, "heddle_transaction_seconds_count", "transaction").await["take"];
    // The node has read what is offered.
    let first = given(&node, "u0").await.expect("one");
    let before = takes().await;
    wire.delay(FAR);
    let polls = crowd.iter().map(async |user| {
        let reply = node
            .post(&format!("/v1/dispatch/{user}/next"), json!({"wait": "60s"}))
            .await;
        reply.expect_status(200)["offer"].to_string()
    });
    let offers: BTreeSet<String> = join_all(polls).await.into_iter().collect();
    assert!(offers.contains(&first["offer"].to_string()));
    assert_eq!(offers.len(), crowd.len());
    let taken = takes().await - before;
    assert!(taken <= 20, "{taken} transactions for {} users", crowd.len());
}

/// A poll that is refused again and again ends with its `wait`, however far the database is.
#[tokio::test]
async fn a_poll_ends_in_time() {
    let (world, wire, node) = far_away().await;
    let sql = counted(&world).await;
    members(&node, "gid_g", &users(1)).await;
    two_offers(&node, "gid_g", 1).await;
    sql.batch_execute(GRANT_NOTHING).await.expect("no stock");
    wire.delay(FAR);
    let before = proposed(&sql).await;
    let reply = poll(&node, "u0").await;
    assert_eq!(
        (reply.status, &reply.headers["retry-after"]),
        (204, &"1".parse().unwrap())
    );
    let asked = proposed(&sql).await - before;
    // Each takes 160 ms or more, and the poll goes on for two seconds.
    assert!((2..=16).contains(&asked), "{asked} takes for one poll");
}
