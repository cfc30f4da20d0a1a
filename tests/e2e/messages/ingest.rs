//! Ingest of messages: objects, arrays, streams, and their errors.

use heddle_tests::{Node, World, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{day_ahead, ended, only_day, put_topic, send};

pub(super) async fn send_lines(node: &Node, topic: &str, lines: impl Into<reqwest::Body>) -> heddle_tests::Reply {
    let request = node
        .request(Method::POST, &format!("/v1/topics/{topic}/messages"))
        .header("content-type", "application/x-ndjson")
        .body(lines);
    node.send(request).await
}

/// One object, an array, and lines; each lands in the bucket of its sender, and is found again.
#[tokio::test]
async fn what_comes_in_is_found_again() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "birthdays", json!({"script": "postbox"})).await;
    let day = day_ahead(&world, 2).await;
    let path = "/v1/topics/birthdays/messages";
    let message = |sender: u64| json!({"sender": sender, "receiver": 9, "due": day, "payload": {"text": "日"}});
    let answer = node.post(path, message(123)).await.expect_status(200);
    assert_eq!((&answer["accepted"], &answer["rejected"]), (&json!(1), &json!([])));
    let id = answer["ids"][0].as_str().unwrap().to_owned();
    send(
        &node,
        "birthdays",
        &[message(4_294_967_295), message(9_223_372_036_854_775_807)],
    )
    .await;
    let lines = format!("{}\n\n{}", message(0), message(10_123));
    let answer = send_lines(&node, "birthdays", lines).await.expect_status(200);
    assert_eq!(answer["accepted"], 2, "{answer:#}");

    let (_, found) = only_day(&node, "birthdays").await;
    assert_eq!(
        (&found["total"], &found["sent"], &found["state"]),
        (&json!(5), &json!(0), &json!("scheduled"))
    );
    let buckets: Vec<(i64, i64)> = found["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| (bucket["bucket"].as_i64().unwrap(), bucket["total"].as_i64().unwrap()))
        .collect();
    assert_eq!(buckets, [(0, 1), (123, 2), (5_807, 1), (7_295, 1)]);

    let one = node.get(&format!("{path}/{id}")).await.expect_status(200);
    assert_eq!(
        (
            &one["sender"],
            &one["bucket"],
            &one["due"],
            &one["payload"],
            &one["state"]
        ),
        (
            &json!(123),
            &json!(123),
            &json!(day),
            &json!({"text": "日"}),
            &json!("scheduled")
        )
    );
    let of_sender = node.all(&format!("{path}?sender=4294967295")).await;
    assert_eq!((of_sender.len(), &of_sender[0]["bucket"]), (1, &json!(7_295)));
    assert_eq!(node.all(&format!("{path}?receiver=9&day={day}")).await.len(), 5);
    // Pages go on where the last ended.
    let pages = node.all(&format!("{path}?limit=2")).await;
    let senders: Vec<u64> = pages.iter().map(|found| found["sender"].as_u64().unwrap()).collect();
    assert_eq!(senders, [0, 123, 10_123, 9_223_372_036_854_775_807, 4_294_967_295]);
    node.get(&format!("{path}?day=tomorrow")).await.expect_problem(400, &[]);
    node.get(&format!("{path}?sender=one")).await.expect_problem(400, &[]);
    node.get(&format!("{path}?sender=-1"))
        .await
        .expect_problem(422, &["/sender"]);
    node.get(&format!("{path}?bucket=10000"))
        .await
        .expect_problem(422, &["/bucket"]);
    node.get(&format!("{path}/{}", uuid::Uuid::nil()))
        .await
        .expect_problem(404, &[]);
}

/// Each thing that is wrong with a message is said, at its place or with its line.
#[tokio::test]
async fn what_is_wrong_is_said() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "days", json!({"script": "postbox", "max_payload": 32})).await;
    put_topic(
        &node,
        "instants",
        json!({"script": "postbox", "granularity": "instant"}),
    )
    .await;
    let path = "/v1/topics/days/messages";
    let day = day_ahead(&world, 2).await;
    let (today, yesterday) = (day_ahead(&world, 0).await, day_ahead(&world, -1).await);
    let good = json!({"sender": 1, "receiver": 2, "due": day, "payload": null});
    let check = async |field: &str, value: Value| {
        let mut message = good.clone();
        message[field] = value;
        node.post(path, message)
            .await
            .expect_problem(422, &[&format!("/{field}")]);
    };
    for due in [
        json!(today),
        json!(yesterday),
        json!("2026-02-30"),
        json!("21.11.2036"),
        json!(""),
        json!(7),
    ] {
        check("due", due).await;
    }
    check("due", json!("2999-01-01")).await;
    check("due", json!(format!("{day}T00:00:00Z"))).await;
    check("sender", json!(-1)).await;
    check("receiver", json!(9_223_372_036_854_775_808u64)).await;
    check("sender", json!(1.5)).await;
    check("sender", json!("1")).await;
    check("payload", json!("x".repeat(40))).await;
    check("payload", json!("\0")).await;
    check("key", json!("")).await;
    check("sendr", json!(1)).await;
    node.post(path, json!({"sender": 1}))
        .await
        .expect_problem(422, &["/receiver", "/due"]);
    node.post(path, json!("text")).await.expect_problem(422, &[""]);
    node.post("/v1/topics/instants/messages", good.clone())
        .await
        .expect_problem(422, &["/due"]);
    node.post("/v1/topics/none/messages", good.clone())
        .await
        .expect_problem(404, &[]);
    let body = |text: &'static str| node.request(Method::POST, path).body(text);
    node.send(body("")).await.expect_problem(400, &[]);
    node.send(body("{\"sender\": 1,")).await.expect_problem(400, &[]);

    // In an array and in a stream the good ones are taken, and the others named by their lines.
    let answer = node
        .post(path, json!([good, {"sender": -1, "receiver": 2, "due": day}, good]))
        .await
        .expect_status(200);
    assert_eq!(
        (&answer["accepted"], &answer["rejected"][0]["line"]),
        (&json!(2), &json!(2))
    );
    let long = format!("{{\"pad\":\"{}\"}}", "x".repeat(20_000));
    let lines = format!("{good}\nnonsense\n\n{long}\n{good}\n{{\"sender\":1}}");
    let answer = send_lines(&node, "days", lines).await.expect_status(200);
    let rejected: Vec<i64> = answer["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["line"].as_i64().unwrap())
        .collect();
    let mut sorted = rejected.clone();
    sorted.sort_unstable();
    assert_eq!((&answer["accepted"], sorted), (&json!(2), vec![2, 4, 6]), "{answer:#}");
    assert_eq!(answer["rejected_total"], 3);
    let said = answer["rejected"].to_string();
    assert!(!said.contains("at line"), "a parser counts otherwise: {said}");
    let answer = send_lines(&node, "days", "{\"sender\":-1,\"receiver\":\"x\"}".to_owned()).await;
    let said = answer.expect_status(200)["rejected"].to_string();
    for field in ["`sender`", "`receiver`", "`due`"] {
        assert!(said.contains(field), "{said}");
    }
    // Very many wrong lines are counted, and not all named.
    let answer = send_lines(&node, "days", "[]\n".repeat(1_500)).await.expect_status(200);
    assert_eq!(
        (&answer["accepted"], &answer["rejected_total"]),
        (&json!(0), &json!(1_500))
    );
    assert_eq!(answer["rejected"].as_array().unwrap().len(), 1_000);
    assert_eq!(only_day(&node, "days").await.1["total"], 4);
}

/// A whole number may be written with a decimal point, as in all other bodies.
#[tokio::test]
async fn whole_numbers_with_a_decimal_point() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "days", json!({"script": "postbox"})).await;
    let path = "/v1/topics/days/messages";
    let day = day_ahead(&world, 2).await;
    let message = json!({"sender": 1.0, "receiver": 2.0, "due": day, "payload": 1.0});
    assert_eq!(node.post(path, message.clone()).await.expect_status(200)["accepted"], 1);
    assert_eq!(
        node.post(path, json!([message])).await.expect_status(200)["accepted"],
        1
    );
    let answer = send_lines(&node, "days", message.to_string()).await.expect_status(200);
    assert_eq!(answer["accepted"], 1, "{answer:#}");
    let found = node.all(&format!("{path}?sender=1")).await;
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|found| found["receiver"] == json!(2)), "{found:#?}");
}

/// Variants of lines by editors and shells are accepted: a byte order mark, carriage returns, a last line without an
/// end. Compressed bodies are refused as such; a past instant is due now, however long ago.
#[tokio::test]
async fn how_bodies_are_written() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "days", json!({"script": "postbox"})).await;
    put_topic(
        &node,
        "instants",
        json!({"script": "postbox", "granularity": "instant"}),
    )
    .await;
    let day = day_ahead(&world, 2).await;
    let good = json!({"sender": 1, "receiver": 2, "due": day});
    let answer = send_lines(
        &node,
        "days",
        format!("\u{feff}{good}\r\n\r\n{good}\r\n\u{feff}{good}\r\n{good}"),
    )
    .await
    .expect_status(200);
    assert_eq!(
        (&answer["accepted"], &answer["rejected_total"]),
        (&json!(3), &json!(1)),
        "{answer:#}"
    );
    assert_eq!(answer["rejected"][0]["line"], 4, "{answer:#}");
    let path = "/v1/topics/days/messages";
    let marked = node.request(Method::POST, path).body(format!("\u{feff}{good}"));
    assert_eq!(node.send(marked).await.expect_status(200)["accepted"], 1);
    for media_type in ["application/json", "application/x-ndjson"] {
        let packed = node.request(Method::POST, path).header("content-type", media_type);
        let packed = packed.header("content-encoding", "gzip").body(vec![0x1f, 0x8b, 8, 0]);
        let refused = node.send(packed).await.expect_problem(415, &[]);
        assert!(
            refused["detail"].as_str().unwrap_or_default().contains("gzip"),
            "{refused:#}"
        );
    }
    let table = node.request(Method::POST, path).header("content-type", "text/csv");
    node.send(table.body("1,2"))
        .await
        .expect_said(415, "application/x-ndjson");
    let past = ["0001-01-01T00:00:00Z", "1815-06-18T11:00:00Z", "1969-07-20T20:17:40Z"];
    let messages: Vec<Value> = past
        .iter()
        .map(|due| json!({"sender": 1, "receiver": 2, "due": due}))
        .collect();
    send(&node, "instants", &messages).await;
    ended(&node, "instants", 3).await;
    let dues = node.all("/v1/topics/instants/messages").await;
    let dues: Vec<&str> = dues.iter().filter_map(|message| message["due"].as_str()).collect();
    assert_eq!(dues, past.map(|due| due.replace('Z', ".000000Z")));
}

/// A key means one message within its day, whoever sends it, and however often.
#[tokio::test]
async fn keys_stand_once_a_day() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    put_topic(&nodes[0], "keyed", json!({"script": "postbox"})).await;
    let (day, next) = (day_ahead(&world, 2).await, day_ahead(&world, 3).await);
    let message = |sender: u64, due: &str, key: &str| json!({"sender": sender, "receiver": 1, "due": due, "key": key});
    let answer = nodes[0]
        .post(
            "/v1/topics/keyed/messages",
            json!([
                message(1, &day, "a"),
                message(2, &day, "a"),
                message(3, &day, "b"),
                message(1, &next, "a")
            ]),
        )
        .await
        .expect_status(200);
    assert_eq!(
        (&answer["accepted"], &answer["repeated"]),
        (&json!(4), &json!(1)),
        "{answer:#}"
    );
    // Again, by several at once, in whatever order.
    let many = |order: &[u64]| -> Vec<Value> { order.iter().map(|n| message(*n, &day, &format!("k{n}"))).collect() };
    let forth: Vec<u64> = (0..300).collect();
    let back: Vec<u64> = (0..300).rev().collect();
    let path = "/v1/topics/keyed/messages";
    let (one, other, third) = tokio::join!(
        nodes[0].post(path, json!(many(&forth))),
        nodes[1].post(path, json!(many(&back))),
        nodes[0].post(path, json!(many(&back))),
    );
    let mut repeated = 0;
    for answer in [one, other, third] {
        let answer = answer.expect_status(200);
        assert_eq!(answer["accepted"], 300, "{answer:#}");
        repeated += answer["repeated"].as_i64().unwrap();
    }
    assert_eq!(repeated, 600);
    let found = nodes[0]
        .get(&format!("/v1/topics/keyed/days/{day}"))
        .await
        .expect_status(200);
    assert_eq!(found["total"], 302);
}

/// Of a stream that is cut in the middle, whole lines that came before a pause are there, and half a line is not.
#[tokio::test]
async fn a_stream_is_cut() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "cut", json!({"script": "postbox"})).await;
    let day = day_ahead(&world, 2).await;
    let line = json!({"sender": 1, "receiver": 2, "due": day}).to_string();
    let mut stream = TcpStream::connect(node.authority()).await.unwrap();
    let head = format!(
        "POST /v1/topics/cut/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n",
        heddle_tests::TOKEN
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let text = format!("{line}\n{line}\n{line}\n{}", &line[..10]);
    stream
        .write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
        .await
        .unwrap();
    let total = async || super::count(&node, "cut", "total").await;
    eventually("what came before the pause", async || {
        (total().await == 3).then_some(())
    })
    .await;
    drop(stream);
    // The next stream begins with its own first line.
    let answer = send_lines(&node, "cut", line).await.expect_status(200);
    assert_eq!(answer["accepted"], 1);
    assert_eq!(total().await, 4);
}

/// A long stream is taken with an answer that counts all of it; several at once do not lose any.
#[tokio::test]
async fn streams_at_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    put_topic(&nodes[0], "many", json!({"script": "postbox"})).await;
    let (day, next) = (day_ahead(&world, 2).await, day_ahead(&world, 400).await);
    let text = |from: u64| -> String {
        (from..from + 12_000)
            .map(|n| {
                let due = if n % 2 == 0 { &day } else { &next };
                format!("{{\"sender\":{n},\"receiver\":1,\"due\":\"{due}\",\"payload\":{{\"n\":{n}}}}}\n")
            })
            .collect()
    };
    let (one, other) = tokio::join!(
        send_lines(&nodes[0], "many", text(0)),
        send_lines(&nodes[1], "many", text(6_000)),
    );
    assert_eq!(one.expect_status(200)["accepted"], 12_000);
    assert_eq!(other.expect_status(200)["accepted"], 12_000);
    let found = nodes[1]
        .get(&format!("/v1/topics/many/days/{next}"))
        .await
        .expect_status(200);
    assert_eq!(found["total"], 12_000, "the far day");
    let sql = world.sql().await;
    let ids: i64 = sql
        .query_one("SELECT count(DISTINCT id) FROM heddle.messages", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(ids, 24_000);
}

/// A stream that trickles without a pause is committed all the same, and not kept in an idle transaction: the server
/// would end it after 6 s, and all before would be lost.
#[tokio::test]
async fn a_stream_that_trickles() {
    const BLOCK: usize = 6_000;
    const DROPS: usize = 150;
    let (world, node) = World::with_node().await;
    put_topic(&node, "trickle", json!({"script": "postbox"})).await;
    let day = day_ahead(&world, 2).await;
    let line = format!("{}\n", json!({"sender": 1, "receiver": 2, "due": day}));
    // The last line comes in drops: no whole line follows the block for longer than the server waits.
    let (whole, drop) = (line.repeat(BLOCK), " ");
    let body = futures::stream::unfold(0, move |step| {
        let text = match step {
            0 => whole.clone(),
            1..=DROPS => drop.to_owned(),
            _ => line.clone(),
        };
        async move {
            if step > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            (step <= DROPS + 1).then(|| (Ok::<_, std::io::Error>(text), step + 1))
        }
    });
    let answer = send_lines(&node, "trickle", reqwest::Body::wrap_stream(body))
        .await
        .expect_status(200);
    assert_eq!(answer["accepted"], BLOCK + 1, "{answer:#}");
}

/// One stream may name every day that messages are taken for: as many partitions, and locks on all of them.
#[tokio::test]
async fn many_days_at_once() {
    const DAYS: u64 = 450;
    let (world, node) = World::with_node().await;
    put_topic(&node, "years", json!({"script": "postbox"})).await;
    let mut messages = Vec::new();
    let today: chrono::NaiveDate = day_ahead(&world, 0).await.parse().unwrap();
    for ahead in (2..DAYS + 2).rev() {
        let due = today + chrono::Days::new(ahead);
        messages.push(json!({"sender": ahead, "receiver": 1, "due": due}));
    }
    let answer = send(&node, "years", &messages).await;
    let ids = answer["ids"].as_array().unwrap();
    assert_eq!(ids.len(), DAYS as usize);
    for index in [0, 225, 449] {
        let id = ids[index].as_str().unwrap();
        let found = node
            .get(&format!("/v1/topics/years/messages/{id}"))
            .await
            .expect_status(200);
        assert_eq!(
            found["sender"], messages[index]["sender"],
            "ids are in the order of the lines"
        );
    }
    // More days than one transaction may write to: with a lock for each partition and index of all, the server has none
    // left for others.
    let sql = world.sql().await;
    let transactions: i64 = sql
        .query_one("SELECT count(DISTINCT xmin::text) FROM heddle.messages", &[])
        .await
        .unwrap()
        .get(0);
    assert!(transactions >= 3, "{transactions} transactions");
}
