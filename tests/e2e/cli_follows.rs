//! Commands that follow something while nodes stop and connections break.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_client::{Claim, ClaimRequest, Client, Report, ReportLine};
use heddle_tests::{Relay, Spoken, TOKEN, World, eventually, heddle};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::cli::{DONE, REFUSED};
use crate::one;

const WAIT: Duration = Duration::from_secs(10);

/// Writes a line into the log of a claimed task run.
async fn say(client: &Client, claim: &Claim, message: &str) {
    let line = ReportLine {
        message: message.to_owned(),
        level: None,
        fields: None,
        at: None,
    };
    let report = Report {
        log: vec![line],
        ..Report::default()
    };
    client.report(claim, &report).await.unwrap();
}

/// A node is stopped in an orderly way, and for a while there is none: commands go on at the next one, and miss nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_go_on_at_the_next_node() {
    let (world, mut first) = World::with_node().await;
    let second = world.node().await;
    second.put_group("g", one(json!({"queue": "q"}))).await;
    let run = second.start("g", json!({})).await;
    let client = Client::new(second.base(), Some(TOKEN)).unwrap();
    let request: ClaimRequest = serde_json::from_value(json!({"worker": "w", "lease": "10m"})).unwrap();
    let claim = eventually("a claim", async || {
        client.claim("q", &request, WAIT).await.unwrap().pop()
    })
    .await;

    let relay = Relay::start(first.authority()).await;
    let server = ["--url", relay.base(), "--token", TOKEN];
    let follow = |arguments: &[&str]| Spoken::start(&[arguments, &server].concat());
    let mut log = follow(&["run", "logs", &run, "--follow"]);
    let mut events = follow(&["events", "--follow", "--kind", "run.*"]);
    let mut watch = follow(&["run", "watch", &run]);
    say(&client, &claim, "line one").await;
    log.wait_for("line one");
    events.wait_for("run.started");
    watch.wait_for("task t: running");

    relay.leads_nowhere();
    first.terminate();
    for command in [&mut log, &mut events, &mut watch] {
        command.wait_for("trying again");
    }
    say(&client, &claim, "line two").await;
    relay.leads_to(second.authority());
    log.wait_for("line two");
    say(&client, &claim, "line three").await;
    log.wait_for("line three");
    client.complete(&claim, &json!("done")).await.unwrap();
    events.wait_for("run.succeeded");

    let (code, said) = log.end();
    assert_eq!(code, Some(DONE), "{said}");
    for words in ["line one", "line two", "line three", "trying again"] {
        assert_eq!(said.matches(words).count(), 1, "{words}: {said}");
    }
    let (code, said) = watch.end();
    assert_eq!(code, Some(DONE), "{said}");
    for words in ["task t: running", "task t: succeeded", "trying again"] {
        assert_eq!(said.matches(words).count(), 1, "{words}: {said}");
    }
    for words in ["run.started", "run.succeeded", "trying again"] {
        assert_eq!(events.said().matches(words).count(), 1, "{words}: {}", events.said());
    }
    assert!(first.end().await.success());
}

/// A server that gives each connection the next of these answers, as it is, and then closes the connection: its address, and
/// the paths that it was asked for.
async fn gives(answers: Vec<String>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut lines = BufReader::new(&mut stream).lines();
            let first = lines.next_line().await.unwrap().unwrap_or_default();
            // The rest of the head, up to the empty line behind it.
            while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
            drop(lines);
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            seen.lock().unwrap().push(path);
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    (url, asked)
}

/// An answer that ends when the connection does.
fn streams(media_type: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\nconnection: close\r\n\r\n{body}")
}

fn refuses(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

fn log_line(number: u32) -> String {
    let line = json!({"cursor": format!("c{number}"), "at": format!("2026-11-20T08:00:0{number}.000000Z"), "task": "t",
                      "item": null, "attempt": 1, "level": "info", "message": format!("m{number}")});
    format!("id: c{number}\nevent: log\ndata: {line}\n\n")
}

/// Each line once, also one that becomes visible after a later one, while the connection was gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_goes_on_where_it_broke_off() {
    let stream = "text/event-stream";
    let begin = [log_line(1), log_line(3), "event: log\ndata: {\"mess".to_owned()].concat();
    let rest = [1, 2, 3, 4].map(log_line).concat() + "event: end\ndata: {}\n\n";
    let answers = vec![
        streams(stream, &begin),
        refuses("503 Service Unavailable"),
        streams(stream, &rest),
    ];
    let (url, asked) = gives(answers).await;
    let run = "0199f5a0-0000-7000-8000-000000000000";
    let arguments = ["run", "logs", run, "--follow", "-o", "json"];
    let (code, said) = heddle(&arguments, &[("HEDDLE_URL", url.as_str())]);
    assert_eq!(code, Some(DONE), "{said}");
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let messages: Vec<Value> = lines
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["message"].clone())
        .collect();
    assert_eq!(messages, ["m1", "m3", "m2", "m4"], "{said}");
    assert_eq!(said.matches("trying again").count(), 1, "{said}");
    assert_eq!(asked.lock().unwrap().len(), 3);
}

/// Events go on behind the last whole line, until the server refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_on_behind_the_last_whole_line() {
    let stream = "application/x-ndjson";
    let answers = vec![
        streams(stream, "{\"cursor\":\"6\",\"kind\":\"a\"}\n{\"cursor\":\"7\",\"ki"),
        streams(stream, "{\"cursor\":\"7\",\"kind\":\"b\"}\n"),
        refuses("401 Unauthorized"),
    ];
    let (url, asked) = gives(answers).await;
    let (code, said) = heddle(&["events", "--follow", "--after", "5"], &[("HEDDLE_URL", url.as_str())]);
    assert_eq!(code, Some(REFUSED), "{said}");
    let printed: Vec<&str> = said.lines().take_while(|line| line.starts_with('{')).collect();
    let wanted = [r#"{"cursor":"6","kind":"a"}"#, r#"{"cursor":"7","kind":"b"}"#];
    assert_eq!(printed, wanted, "{said}");
    let asked = asked.lock().unwrap().clone();
    let wanted = [5, 6, 7].map(|after| format!("/v1/events?after={after}&follow=true"));
    assert_eq!(asked, wanted);
}

/// Whoever begins to follow hears at once that the server is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_answer_has_to_come() {
    for arguments in [
        &["events", "--follow"][..],
        &["run", "logs", "0199f5a0-0000-7000-8000-000000000000", "--follow"],
        &["run", "watch", "0199f5a0-0000-7000-8000-000000000000"],
    ] {
        let (url, asked) = gives(vec![refuses("503 Service Unavailable")]).await;
        let (code, said) = heddle(arguments, &[("HEDDLE_URL", url.as_str())]);
        assert_eq!(code, Some(REFUSED), "{said}");
        assert!(!said.contains("trying again"), "{said}");
        assert_eq!(asked.lock().unwrap().len(), 1);
    }
}
