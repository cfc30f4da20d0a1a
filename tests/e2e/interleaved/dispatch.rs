//! Pull dispatch: look-ups, takes, ends; and notifications that are being sent.

use heddle_domain::dispatch::AssignmentState;
use heddle_domain::{Clock, Span};
use heddle_store::Store;
use heddle_store::assignment::{BATCH_MAX, End, Proposal, Verdict};
use heddle_store::live::Take;
use heddle_store::notification::Resend;
use heddle_store::outbox::{Mailed, Recorded, Room, Sent};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{HOUR, NODE, Wall, begin, by, close, count, lease, meanwhile, run, set_up, unhindered, waiting};

const OCCURRENCE: &str = "2026-01-01T00:00:00Z";

/// An offer for two users, of which there is one, or as many as there are members.
pub(super) async fn offer(sql: &Client, stock: Option<i32>, of_task: bool) -> i64 {
    let task = match of_task {
        true => format!("'{}', 0, -1, 1", run(1)),
        false => "NULL, NULL, NULL, NULL".into(),
    };
    let made = sql
        .query_one(
            &format!(
                "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed, enabled,
                     spec, run, task, item, attempt, created_at, updated_at)
                 VALUES ('o', 'gid_g', 1, 0, '{OCCURRENCE}', $1, false, false, true, '{{}}', {task}, now(), now())
                 RETURNING id"
            ),
            &[&stock],
        )
        .await
        .expect("an offer");
    let id: i64 = made.get(0);
    sql.batch_execute(&format!(
        "INSERT INTO heddle.offer_versions (offer_id, version, params) VALUES ({id}, 1, '{{}}');
         INSERT INTO heddle.audiences (name, created_at, updated_at) VALUES ('gid_g', now(), now());
         INSERT INTO heddle.members (audience, uid) VALUES ('gid_g', 'a'), ('gid_g', 'b')"
    ))
    .await
    .expect("an audience");
    if of_task {
        // The attempt is running, and no node has it.
        sql.batch_execute(&format!(
            "INSERT INTO heddle.running VALUES ('{}', 0, -1, 1, 0, now())",
            run(1)
        ))
        .await
        .expect("its attempt");
    }
    id
}

/// The id of a user's hold.
fn hold_of(uid: &str) -> Uuid {
    Uuid::from_u128(u128::from(uid.as_bytes()[0]))
}

/// A statement that gives users something of the offer.
pub(super) fn holds(offer: i64, uids: &[&str]) -> String {
    let rows: Vec<String> = uids
        .iter()
        .map(|uid| {
            let id = hold_of(uid);
            format!("('{uid}', '{id}', {offer}, 1, 'gid_g', '{OCCURRENCE}', now())")
        })
        .collect();
    format!(
        "INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at) VALUES {}",
        rows.join(", ")
    )
}

/// A horizon that reaches back to the occurrence.
const HORIZON: Span = Span::from_micros(20 * 365 * 86_400 * 1_000_000);

fn take(store: &Store, offer_id: i64, uids: &'static [&'static str]) -> JoinHandle<Vec<Verdict>> {
    let store = store.clone();
    tokio::spawn(async move {
        let proposals: Vec<Proposal> = uids
            .iter()
            .map(|uid| Proposal {
                id: hold_of(uid),
                uid: (*uid).into(),
                offer_id,
                version: 1,
                audience: "gid_g".into(),
                occurrence: OCCURRENCE.parse().expect("an instant"),
            })
            .collect();
        store.take(&proposals, HORIZON, Wall.now()).await.expect("verdicts")
    })
}

/// Users have completed what they hold; how many of them did.
pub(super) fn end(store: &Store, uids: &'static [&'static str]) -> JoinHandle<usize> {
    let store = store.clone();
    tokio::spawn(async move {
        let ends: Vec<End> = uids
            .iter()
            .map(|uid| End {
                id: hold_of(uid),
                uid: (*uid).into(),
                state: AssignmentState::Completed,
                result: Some("1".into()),
            })
            .collect();
        store.end_holds(&ends, Wall.now()).await.expect("ends").len()
    })
}

/// `user_facts`: returns a user's hold as last committed, even if somebody is ending it, and waits for nobody.
#[tokio::test]
async fn looks() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(2), false).await;
    sql.batch_execute(&holds(offer, &["a"])).await.unwrap();
    let ender = other.transaction().await.unwrap();
    assert_eq!(ender.execute("DELETE FROM heddle.holds", &[]).await.unwrap(), 1);
    let held = async || {
        let now = Wall.now();
        let facts = store.user_facts(&["a".into()], now - HOUR, now).await.expect("facts");
        facts[0].held.as_ref().map(|held| held.id)
    };
    assert_eq!(unhindered(held()).await, Some(hold_of("a")));
    ender.commit().await.unwrap();
    assert_eq!(held().await, None);
}

/// `hold_users`: of two takes for one user, the later waits, and gets nothing if the user then holds something. Users
/// are locked in order, so that nobody is blocked by a user who is waited for.
#[tokio::test]
async fn takes_of_one_user() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(9), false).await;
    for (commits, verdict) in [(false, Verdict::Given), (true, Verdict::Holds)] {
        sql.batch_execute("DELETE FROM heddle.holds").await.unwrap();
        let first = other.transaction().await.unwrap();
        first.batch_execute(&holds(offer, &["a"])).await.unwrap();
        let second = take(&store, offer, &["b", "a"]);
        waiting(&sql, 1).await;
        // The later one waits for `a` before it has taken `b`: otherwise this would wait for it.
        let third = unhindered(take(&store, offer, &["b"])).await.unwrap();
        assert_eq!(third, [Verdict::Given]);
        match commits {
            true => first.commit().await.unwrap(),
            false => first.rollback().await.unwrap(),
        }
        assert_eq!(second.await.unwrap(), [Verdict::Holds, verdict]);
    }
}

/// `give`: of two that take the last of the stock the later waits, and there is none left for it unless the earlier gave it up.
#[tokio::test]
async fn the_last_of_the_stock() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(1), false).await;
    sql.execute(
        &format!(
            "INSERT INTO heddle.occurrences (offer_id, occurrence, taken, granted) VALUES ($1, '{OCCURRENCE}', 0, 0)"
        ),
        &[&offer],
    )
    .await
    .unwrap();
    for (commits, verdict) in [(true, Verdict::NoStock), (false, Verdict::Given)] {
        sql.batch_execute("DELETE FROM heddle.holds; UPDATE heddle.occurrences SET taken = 0")
            .await
            .unwrap();
        let first = other.transaction().await.unwrap();
        first.batch_execute(&holds(offer, &["a"])).await.unwrap();
        let take_last = "UPDATE heddle.occurrences SET taken = taken + 1, granted = 1";
        assert_eq!(first.execute(take_last, &[]).await.unwrap(), 1);
        let second = take(&store, offer, &["b"]);
        waiting(&sql, 1).await;
        match commits {
            true => first.commit().await.unwrap(),
            false => first.rollback().await.unwrap(),
        }
        assert_eq!(second.await.unwrap(), [verdict]);
        assert_eq!(
            (
                count(&sql, "holds").await,
                count(&sql, "occurrences WHERE taken = 1").await
            ),
            (1, 1)
        );
    }
}

/// `end_holds`: holds are locked in the order of their users before any of them is ended; of two that end one hold the later
/// waits, and finds it gone if the earlier has ended it.
#[tokio::test]
async fn ends_of_holds() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(9), false).await;
    sql.batch_execute(&format!(
        "{}; INSERT INTO heddle.occurrences (offer_id, occurrence, taken, granted) VALUES ({offer}, '{OCCURRENCE}', 2, 2)",
        holds(offer, &["a", "b"])
    ))
    .await
    .unwrap();
    let holder = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.holds WHERE uid = 'a' FOR UPDATE";
    holder.execute(hold, &[]).await.unwrap();
    let both = end(&store, &["b", "a"]);
    waiting(&sql, 1).await;
    sql.batch_execute("BEGIN; SELECT FROM heddle.holds WHERE uid = 'b' FOR UPDATE NOWAIT; ROLLBACK")
        .await
        .expect("nothing else is locked");
    let again = end(&store, &["a"]);
    waiting(&sql, 2).await;
    holder.rollback().await.unwrap();
    let ended = both.await.unwrap() + again.await.unwrap();
    assert_eq!(ended, 2, "each once");
    assert_eq!((count(&sql, "assignments").await, count(&sql, "holds").await), (2, 0));
    assert_eq!(count(&sql, "occurrences WHERE completed = 2").await, 1);
}

/// What is held of a task run's offer is revoked a few at a time, but all of it is locked before: a user who ends a hold has
/// that, and takes the occurrence, which the first end locks.
#[tokio::test]
async fn revocations_of_many() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, None, true).await;
    let many = BATCH_MAX + 1;
    sql.batch_execute(&format!(
        "INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at)
              SELECT 'u' || lpad(n::text, 4, '0'), gen_random_uuid(), {offer}, 1, 'gid_g', '{OCCURRENCE}', now()
                FROM generate_series(1, {many}) AS n;
         INSERT INTO heddle.occurrences (offer_id, occurrence, taken, granted) VALUES ({offer}, '{OCCURRENCE}', {many}, 0)"
    ))
    .await
    .unwrap();
    let ending = other.transaction().await.unwrap();
    let ends = format!("DELETE FROM heddle.holds WHERE uid = 'u{many:04}'");
    assert_eq!(ending.execute(&ends, &[]).await.unwrap(), 1);
    meanwhile(&sql, store.revoke_held(offer, 1, Wall.now()), async {
        let next = "SELECT FROM heddle.occurrences FOR UPDATE NOWAIT";
        assert_eq!(
            ending.execute(next, &[]).await.expect("it is locked after all holds"),
            1
        );
        ending.commit().await.unwrap();
    })
    .await
    .unwrap();
    let revoked = count(&sql, "assignments WHERE state = 3").await;
    assert_eq!((revoked, count(&sql, "holds").await), (many as i64 - 1, 0));
}

/// What another node is settling, or announcing, is passed over.
#[tokio::test]
async fn news_that_somebody_has() {
    let (_world, store, sql, mut other) = set_up().await;
    let first = offer(&sql, None, true).await;
    sql.batch_execute(&format!(
        "UPDATE heddle.offers SET overdue_at = now() - interval '1 hour';
         INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt)
              SELECT {first}, '{run}', 0, -1, n FROM generate_series(1, 2) AS n;
         INSERT INTO heddle.stock_returns (audience) VALUES ('gid_g'), ('gid_h')",
        run = run(1)
    ))
    .await
    .unwrap();
    let taker = other.transaction().await.unwrap();
    for held in [
        "SELECT FROM heddle.offers FOR UPDATE",
        "SELECT FROM heddle.offer_settlements WHERE attempt = 1 FOR UPDATE",
        "SELECT FROM heddle.stock_returns WHERE audience = 'gid_g' FOR UPDATE",
    ] {
        assert_eq!(taker.execute(held, &[]).await.unwrap(), 1, "{held}");
    }
    assert_eq!(unhindered(store.settle_overdue_offers()).await.unwrap(), 0);
    let mut completion = begin(&store, 7).await;
    let settled = unhindered(completion.take_offer_settlements(Take::AllBut(&[]))).await;
    let attempts = settled
        .unwrap()
        .into_iter()
        .map(|(_, one)| one.unwrap().ended.at.attempt);
    assert_eq!(attempts.collect::<Vec<_>>(), [2]);
    drop(completion);
    unhindered(store.announce_returns(Wall.now())).await.unwrap();
    assert_eq!(count(&sql, "changes WHERE name = 'gid_h'").await, 1);
    assert_eq!(count(&sql, "stock_returns WHERE audience = 'gid_g'").await, 1);
    taker.rollback().await.unwrap();
    assert_eq!(store.settle_overdue_offers().await.unwrap(), 1);
}

/// `close_offers`: whoever completes the last part of a task run's offer sees the parts that were completed before. Of
/// two who close it at once, the later waits, and finds it closed.
#[tokio::test]
async fn ends_of_offers() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, None, true).await;
    sql.batch_execute(&format!(
        "{}; INSERT INTO heddle.occurrences (offer_id, occurrence, taken, granted) VALUES ({offer}, '{OCCURRENCE}', 2, 2)",
        holds(offer, &["a", "b"])
    ))
    .await
    .unwrap();
    // Both run at once: they wait for the occurrence's row. The later one sees both parts.
    let holder = other.transaction().await.unwrap();
    holder
        .batch_execute("SELECT FROM heddle.occurrences FOR UPDATE")
        .await
        .unwrap();
    let (one, two) = (end(&store, &["a"]), end(&store, &["b"]));
    waiting(&sql, 2).await;
    holder.rollback().await.unwrap();
    assert_eq!((one.await.unwrap(), two.await.unwrap()), (1, 1));
    let settled = async || {
        (
            count(&sql, "offer_settlements").await,
            count(&sql, "offers WHERE enabled").await,
        )
    };
    assert_eq!(settled().await, (1, 0));

    sql.batch_execute("DELETE FROM heddle.offer_settlements; UPDATE heddle.offers SET enabled = true")
        .await
        .unwrap();
    let holder = other.transaction().await.unwrap();
    holder
        .batch_execute("SELECT FROM heddle.offers FOR UPDATE")
        .await
        .unwrap();
    let sweep = || {
        let store = store.clone();
        tokio::spawn(async move { store.settle_completed_offers().await.expect("an answer") })
    };
    let (one, two) = (sweep(), sweep());
    waiting(&sql, 2).await;
    holder.rollback().await.unwrap();
    assert_eq!(one.await.unwrap() + two.await.unwrap(), 1);
    assert_eq!(settled().await, (1, 0));
}

/// A notification that is to be sent again waits for whoever removes it, and is kept from removal until it is sent.
#[tokio::test]
async fn notifications_that_are_sent_again() {
    let (_world, store, sql, mut other) = set_up().await;
    sql.batch_execute(
        "INSERT INTO heddle.notifications (id, channel, event, subject, facts, state, created_at)
         SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'c', 'failed', 's', '{}', 2, now()
           FROM generate_series(1, 2) AS n",
    )
    .await
    .unwrap();
    let removal = other.transaction().await.unwrap();
    let removes = "DELETE FROM heddle.notifications WHERE id = '00000000-0000-0000-0000-000000000001'";
    assert_eq!(removal.execute(removes, &[]).await.unwrap(), 1);
    let resent = meanwhile(&sql, store.resend(by(), Uuid::from_u128(1), None), close(removal, true)).await;
    assert_eq!(resent.unwrap(), Resend::NotFound);
    let resend = other.transaction().await.unwrap();
    resend
        .batch_execute(
            "SELECT FROM heddle.notifications FOR KEY SHARE;
             UPDATE heddle.notifications SET state = 0",
        )
        .await
        .unwrap();
    let pruned = store.prune_notifications(Wall.now() + HOUR, 10);
    let pruned = meanwhile(&sql, pruned, close(resend, true)).await;
    assert_eq!(pruned.unwrap(), 0, "it has to be sent");
}

/// `finish_outgoing` and a resend are wholly one after the other: the result of a try that began before the resend does not
/// end the notification, and a resend after the result makes it due again.
#[tokio::test]
async fn notifications_that_are_sent_again_during_a_try() {
    let (_world, store, sql, mut other) = set_up().await;
    let lease = lease(&store, NODE, None).await.expect("a lease");
    sql.batch_execute(
        "INSERT INTO heddle.notifications (id, channel, event, subject, facts, recipients, state, created_at)
              VALUES ('00000000-0000-0000-0000-000000000001', 'c', 'failed', 's',
                      '{\"event\": \"failed\", \"at\": \"\", \"logs\": [], \"count\": 1, \"entries\": []}', '{a}', 0, now());
         INSERT INTO heddle.outgoing (notification, lane, due_at)
              SELECT id, 'c', now() - interval '1 minute' FROM heddle.notifications",
    )
    .await
    .unwrap();
    let room = Room {
        limit: 10,
        of_destination: 10,
        of_owner: 10,
        ..Room::default()
    };
    let take = async || {
        let taken = store.take_outgoing(lease, &room, &[]).await.expect("an answer");
        let taken = taken.first().expect("it is due").as_ref().expect("it is readable");
        assert_eq!((taken.attempts, taken.waiting(&[])), (0, vec!["a".to_owned()]));
        (taken.id, taken.due_at)
    };
    let got_it = Mailed {
        settled: vec!["a".to_owned()],
        ..Mailed::default()
    };
    let finish = async |taken| {
        store
            .finish_outgoing(taken, lease, &Sent::Done, &got_it, Wall.now())
            .await
            .expect("an answer")
    };
    let now = async || {
        let row = sql
            .query_one(
                "SELECT n.state, n.attempts, cardinality(n.delivered), count(o.lease)::integer, coalesce(sum(o.lease), 0)::bigint
                   FROM heddle.notifications n LEFT JOIN heddle.outgoing o ON o.notification = n.id GROUP BY n.id",
                &[],
            )
            .await
            .unwrap();
        let (state, lease): (i16, i64) = (row.get(0), row.get(4));
        let (attempts, delivered, outgoing): (i32, i32, i32) = (row.get(1), row.get(2), row.get(3));
        (state, attempts, delivered, outgoing, lease)
    };
    // The resend is first: the recording waits for it.
    let taken = take().await;
    let resend = other.transaction().await.unwrap();
    let resends = "UPDATE heddle.outgoing SET due_at = now()";
    assert_eq!(resend.execute(resends, &[]).await.unwrap(), 1);
    let recorded = meanwhile(&sql, finish(taken), close(resend, true)).await;
    assert_eq!(recorded, Recorded::Resent);
    assert_eq!(now().await, (0, 0, 0, 1, 0));
    assert_eq!(finish(taken).await, Recorded::TakenOver);
    // The whole resend.
    let taken = take().await;
    let id = taken.0;
    assert_eq!(store.resend(by(), id, None).await.unwrap(), Resend::Done);
    assert_eq!(finish(taken).await, Recorded::Resent);
    let taken = take().await;
    assert_eq!(finish(taken).await, Recorded::Kept);
    assert_eq!(now().await, (1, 1, 1, 0, 0));
    // The recording is first: the resend waits for it.
    assert_eq!(store.resend(by(), id, None).await.unwrap(), Resend::Done);
    take().await;
    let recording = other.transaction().await.unwrap();
    recording
        .batch_execute(
            "DELETE FROM heddle.outgoing;
             UPDATE heddle.notifications SET state = 1, attempts = 1, sent_at = now(), delivered = recipients",
        )
        .await
        .unwrap();
    let resent = meanwhile(&sql, store.resend(by(), id, None), close(recording, true)).await;
    assert_eq!(resent.unwrap(), Resend::Done);
    assert_eq!(now().await, (0, 0, 0, 1, 0));
}

/// `take_outgoing`: what another node is taking, or has under a lease that holds, is passed over; a digest that somebody adds
/// to at this moment is not taken yet, and one that is taken does not grow.
#[tokio::test]
async fn notifications() {
    let (_world, store, sql, mut other) = set_up().await;
    let lease = lease(&store, NODE, None).await.expect("a lease");
    sql.batch_execute(&format!(
        "INSERT INTO heddle.notifications (id, channel, event, subject, facts, state, created_at)
              SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'c', 'failed', 's', '{{\"event\": \"failed\", \"at\": \"\", \"logs\": [], \"count\": 1, \"entries\": []}}', 0, now()
                FROM generate_series(1, 4) AS n;
         INSERT INTO heddle.outgoing (notification, lane, due_at, lease, digest)
              SELECT id, 'c', now(), CASE WHEN id::text LIKE '%3' THEN {lease} ELSE 0 END, id::text LIKE '%4'
                FROM heddle.notifications"
    ))
    .await
    .unwrap();
    let take = async |lease: i64| {
        let room = Room {
            limit: 10,
            of_destination: 10,
            of_owner: 10,
            ..Room::default()
        };
        let taken = store.take_outgoing(lease, &room, &[]).await.expect("an answer");
        let readable = taken.iter().map(|one| one.as_ref().expect("it is readable"));
        let mut taken: Vec<u128> = readable.map(|one| one.id.as_u128()).collect();
        taken.sort_unstable();
        taken
    };
    let taker = other.transaction().await.unwrap();
    let first = "SELECT FROM heddle.outgoing WHERE notification = '00000000-0000-0000-0000-000000000001' FOR UPDATE";
    taker.execute(first, &[]).await.unwrap();
    let digest = Uuid::from_u128(4);
    let mut adds = store.fan_out().await.unwrap().expect("the lock of the fan-out");
    let past = Wall.now() - HOUR;
    assert_eq!(adds.open_digests(&[digest], past).await.unwrap().len(), 1);
    // That of a node that lives is its own.
    assert_eq!(unhindered(take(lease + 1)).await, [2]);
    adds.commit().await.unwrap();
    assert_eq!(take(lease + 1).await, [2, 4]);
    let mut adds = store.fan_out().await.unwrap().expect("the lock of the fan-out");
    assert_eq!(
        adds.open_digests(&[digest], past).await.unwrap().len(),
        0,
        "it is on its way"
    );
    // It could not be sent, and is tried again in an hour: as it was.
    let again_at = async |due: &str| {
        let sets = format!("UPDATE heddle.outgoing SET lease = 0, due_at = {due} WHERE notification = '{digest}'");
        assert_eq!(sql.execute(&sets, &[]).await.unwrap(), 1);
    };
    again_at("now() + interval '1 hour'").await;
    assert_eq!(
        adds.open_digests(&[digest], past).await.unwrap().len(),
        0,
        "it was taken once"
    );
    again_at("now()").await;
    drop(adds);
    taker.rollback().await.unwrap();
    store.release_node(NODE, lease).await.unwrap();
    assert_eq!(take(lease + 2).await, [1, 2, 3, 4], "nobody's lease holds");
}
