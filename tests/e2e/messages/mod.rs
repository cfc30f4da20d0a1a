//! Scheduled messages: how they come in, are sent, fail, are cancelled, and survive what happens to nodes.

mod cancel;
mod drain;
mod ingest;
mod nodes;
mod queue;
mod topics;

use heddle_tests::{Api, Node, World, eventually};
use serde_json::{Value, json};

/// A day some days ahead, by the database's clock.
async fn day_ahead(world: &World, days: i32) -> String {
    let sql = world.sql().await;
    let row = sql
        .query_one("SELECT ((now() AT TIME ZONE 'UTC')::date + $1::int4)::text", &[&days])
        .await
        .unwrap();
    row.get(0)
}

/// Makes the table and the connection that the script `postbox` writes to, on topics named `kept…`.
pub(crate) async fn postbox(world: &World, node: &Node) {
    world
        .sql()
        .await
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS public.postbox (place bigserial, id text NOT NULL, sender bigint NOT NULL,
                 receiver bigint NOT NULL, due text NOT NULL, attempt int NOT NULL, batch text NOT NULL)",
        )
        .await
        .unwrap();
    let connection = json!({"url": world.url(), "groups": ["*"]});
    let reply = node.put("/v1/connections/postbox", connection).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

/// A topic of instants that `postbox` takes.
pub(crate) fn kept(more: Value) -> Value {
    crate::with(
        json!({"script": "postbox", "granularity": "instant", "sql": ["postbox"]}),
        more,
    )
}

pub(crate) async fn put_topic(api: &Api, name: &str, spec: Value) -> Value {
    let reply = api.put(&format!("/v1/topics/{name}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
    reply.body
}

/// A message that is due now, on a topic of instants.
pub(crate) fn due_now(sender: u64, payload: Value) -> Value {
    json!({"sender": sender, "receiver": sender + 1, "due": "2013-07-01T00:00:00Z", "payload": payload})
}

/// Sends messages that all have to be taken.
pub(crate) async fn send(api: &Api, topic: &str, messages: &[Value]) -> Value {
    let answer = api
        .post(&format!("/v1/topics/{topic}/messages"), json!(messages))
        .await
        .expect_status(200);
    assert_eq!(answer["accepted"], messages.len(), "{answer:#}");
    answer
}

/// The days that a topic has messages for, as names and with their counts: what is sent near midnight may have two.
async fn days(api: &Api, topic: &str) -> Vec<(String, Value)> {
    let mut days = Vec::new();
    for day in api.all(&format!("/v1/topics/{topic}/days")).await {
        let day = day["day"].as_str().expect("a day").to_owned();
        let found = api
            .get(&format!("/v1/topics/{topic}/days/{day}"))
            .await
            .expect_status(200);
        days.push((day, found));
    }
    days
}

/// The only day that a topic has messages for.
async fn only_day(api: &Api, topic: &str) -> (String, Value) {
    let mut days = days(api, topic).await;
    assert_eq!(days.len(), 1, "{days:#?}");
    days.remove(0)
}

/// The sum of a field over a topic's days: what is sent near midnight may have two.
async fn count(api: &Api, topic: &str, field: &str) -> i64 {
    let days = api.all(&format!("/v1/topics/{topic}/days")).await;
    days.iter().map(|day| day[field].as_i64().unwrap_or(0)).sum()
}

/// Waits until so many of a topic's messages have ended.
pub(crate) async fn ended(api: &Api, topic: &str, messages: i64) {
    eventually(&format!("end of {messages} messages of {topic}"), async || {
        let days = api.all(&format!("/v1/topics/{topic}/days")).await;
        let of = |field: &str| days.iter().map(|day| day[field].as_i64().unwrap_or(0)).sum::<i64>();
        (of("sent") + of("failed") + of("cancelled") == messages && of("in_hand") + of("retrying") == 0).then_some(())
    })
    .await;
}

/// What the postbox holds: ids in the order in which they came.
async fn delivered(world: &World) -> Vec<String> {
    let sql = world.sql().await;
    let rows = sql
        .query("SELECT id FROM public.postbox ORDER BY place", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
