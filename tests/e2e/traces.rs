//! Traces by OTLP, as a collector gets them; and collectors that take nothing.

use std::collections::BTreeMap;

use heddle_domain::hex;
use heddle_tests::{Answer, Receiver, Sink, World, eventually, id, run_program, task};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use prost::Message;
use serde_json::json;

use crate::{fails, one};

/// All spans that a collector has got.
fn spans(collector: &Receiver) -> Vec<Span> {
    collector
        .requests()
        .iter()
        .flat_map(|request| {
            ExportTraceServiceRequest::decode(request.raw.as_slice())
                .expect("what the specification calls a request")
                .resource_spans
        })
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect()
}

/// The spans of a run, when there are so many.
async fn spans_of(collector: &Receiver, run: &str, count: usize) -> Vec<Span> {
    let trace = run.replace('-', "");
    eventually(&format!("{count} spans of {run}"), async || {
        let all: Vec<Span> = spans(collector)
            .into_iter()
            .filter(|span| hex(&span.trace_id) == trace)
            .collect();
        (all.len() >= count).then_some(all)
    })
    .await
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    span.attributes
        .iter()
        .map(|pair| {
            let text = match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(Attribute::StringValue(text)) => text.clone(),
                Some(Attribute::IntValue(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            (pair.key.clone(), text)
        })
        .collect()
}

/// A run is a trace with the run's id, and its attempts are spans below it. The server that an `http` task calls gets the
/// task's position in the trace.
#[tokio::test]
async fn a_run_is_a_trace() {
    let world = World::new().await;
    let collector = Receiver::start(Answer::Status(200)).await;
    let sink = Sink::start().await;
    let node = world
        .options()
        .env("HEDDLE_OTLP_ENDPOINT", &collector.url)
        .env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20collector")
        .start()
        .await;
    node.put_group(
        "chain",
        json!({"tasks": {"greet": {"script": "hello"},
                         "call": {"http": {"method": "POST", "url": format!("{}/here", sink.url)}, "depends_on": ["greet"]}}}),
    )
    .await;
    let run = id(&node.run("chain", json!({})).await);
    let all = spans_of(&collector, &run, 3).await;
    assert_eq!(all.len(), 3, "{all:#?}");
    let named = |name: &str| all.iter().find(|span| span.name == name).expect(name);
    let (root, greet, call) = (named("chain"), named("greet"), named("call"));
    assert!(root.parent_span_id.is_empty());
    assert_eq!(greet.parent_span_id, root.span_id);
    assert_eq!(call.parent_span_id, root.span_id);
    assert!(root.start_time_unix_nano <= greet.start_time_unix_nano, "{all:#?}");
    assert!(greet.end_time_unix_nano >= greet.start_time_unix_nano);
    assert!(root.end_time_unix_nano >= call.end_time_unix_nano, "{all:#?}");
    let values = attributes(call);
    assert_eq!(values["heddle.run"], run);
    assert_eq!(
        (values["heddle.group"].as_str(), values["heddle.task"].as_str()),
        ("chain", "call")
    );
    assert_eq!(
        (values["heddle.attempt"].as_str(), values["heddle.state"].as_str()),
        ("1", "succeeded")
    );
    assert_eq!(values["heddle.node"], node.node_id());
    assert_eq!(attributes(root)["heddle.trigger"], "manual");
    let parent = sink.requests()[0].header("traceparent").map(str::to_owned);
    let expected = format!("00-{}-{}-01", run.replace('-', ""), hex(&call.span_id));
    assert_eq!(parent.as_deref(), Some(expected.as_str()));
    let request = &collector.requests()[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/traces"));
    assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(request.header("authorization"), Some("Bearer collector"));
    let export = ExportTraceServiceRequest::decode(request.raw.as_slice()).unwrap();
    let resource = export.resource_spans[0].resource.as_ref().unwrap();
    assert!(
        resource.attributes.iter().any(|pair| pair.key == "service.name"),
        "{resource:#?}"
    );

    // A run of one task takes the short way to its end; a failure is one in the trace as well.
    node.put_group("sole", one(fails())).await;
    let run = id(&node.run("sole", json!({})).await);
    let all = spans_of(&collector, &run, 2).await;
    assert_eq!(all.len(), 2, "{all:#?}");
    for span in &all {
        let status = span.status.as_ref().expect("a status");
        assert_eq!(status.code, StatusCode::Error as i32, "{span:#?}");
    }
}

/// What a cancel interrupts has its span as well: of a run of one task, and of one of several.
#[tokio::test]
async fn what_is_cancelled_is_traced() {
    let world = World::new().await;
    let collector = Receiver::start(Answer::Status(200)).await;
    let node = world
        .options()
        .env("HEDDLE_OTLP_ENDPOINT", &collector.url)
        .start()
        .await;
    node.put_group("sole", one(crate::sleeps(600.0))).await;
    let several = json!({"tasks": {"t": crate::sleeps(600.0), "u": {"queue": "nobody", "depends_on": ["t"]}}});
    node.put_group("several", several).await;
    for group in ["sole", "several"] {
        let run = node.start(group, json!({})).await;
        eventually("the attempt", async || {
            let found = node.get(&format!("/v1/runs/{run}")).await.body;
            (task(&found, "t")["state"] == "running").then_some(())
        })
        .await;
        node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await
            .expect_status(200);
        let all = spans_of(&collector, &run, 2).await;
        assert_eq!(all.len(), 2, "{all:#?}");
        let root = all.iter().find(|span| span.name == group).expect("the run's");
        let attempt = all.iter().find(|span| span.name == "t").expect("the attempt's");
        assert_eq!(attempt.parent_span_id, root.span_id);
        let values = attributes(attempt);
        assert_eq!(values["heddle.state"], "cancelled", "{values:#?}");
        assert_eq!(values["heddle.node"], node.node_id());
        assert_eq!(attributes(root)["heddle.state"], "cancelled");
        assert!(attempt.end_time_unix_nano >= attempt.start_time_unix_nano);
    }
}

/// A batch of scheduled messages is a trace with the batch's id.
#[tokio::test]
async fn batches_of_messages_are_traced() {
    let world = World::new().await;
    let collector = Receiver::start(Answer::Status(200)).await;
    let node = world
        .options()
        .env("HEDDLE_OTLP_ENDPOINT", &collector.url)
        .start()
        .await;
    node.put(
        "/v1/topics/post",
        json!({"script": "postbox", "granularity": "instant"}),
    )
    .await
    .expect_status(201);
    let message = |sender: u64, payload: serde_json::Value| json!({"sender": sender, "receiver": 1, "due": "2026-01-01T00:00:00Z", "payload": payload});
    node.post(
        "/v1/topics/post/messages",
        json!([
            message(1, json!({})),
            message(2, json!({})),
            message(3, json!({"do": "fatal"}))
        ]),
    )
    .await
    .expect_status(200);
    let values = eventually("spans of all messages", async || {
        let values: Vec<(Span, BTreeMap<String, String>)> = spans(&collector)
            .into_iter()
            .filter(|span| span.name == "post")
            .map(|span| (span.clone(), attributes(&span)))
            .collect();
        let count: u64 = values
            .iter()
            .flat_map(|(_, values)| [&values["heddle.messages.sent"], &values["heddle.messages.failed"]])
            .map(|count| count.parse::<u64>().expect("a number"))
            .sum();
        (count >= 3).then_some(values)
    })
    .await;
    let sum = |name: &str| {
        values
            .iter()
            .map(|(_, values)| values[name].parse::<u64>().expect("a number"))
            .sum::<u64>()
    };
    assert_eq!(
        (sum("heddle.messages.sent"), sum("heddle.messages.failed")),
        (2, 1),
        "{values:#?}"
    );
    for (span, values) in &values {
        assert_eq!(hex(&span.trace_id), values["heddle.batch"].replace('-', ""));
        assert_eq!(values["heddle.topic"], "post");
        let failed = values["heddle.messages.failed"] != "0";
        let code = span.status.as_ref().map_or(0, |status| status.code);
        assert_eq!(code == StatusCode::Error as i32, failed, "{span:#?}");
    }
}

/// Answers of the API are spans too, of the caller's trace if it names one.
#[tokio::test]
async fn answers_are_spans() {
    let world = World::new().await;
    let collector = Receiver::start(Answer::Status(200)).await;
    let node = world
        .options()
        .env("HEDDLE_OTLP_ENDPOINT", &format!("{}/v1/traces", collector.url))
        .start()
        .await;
    let request = node
        .request(reqwest::Method::GET, "/v1/groups/nowhere")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    node.send(request).await.expect_status(404);
    let span = eventually("the answer's span", async || {
        spans(&collector)
            .into_iter()
            .find(|span| span.name == "GET /v1/groups/{name}")
    })
    .await;
    assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
    assert_eq!(attributes(&span)["http.response.status_code"], "404");
    node.get("/healthz").await.expect_status(200);
    // What was asked for after it has come, so the other would have come before.
    node.get("/v1/nodes").await.expect_status(200);
    eventually("the last answer's span", async || {
        spans(&collector).into_iter().find(|span| span.name == "GET /v1/nodes")
    })
    .await;
    assert!(!spans(&collector).iter().any(|span| span.name.contains("healthz")));
}

/// A collector that never answers, one that refuses, one that is not there: runs go on, the node ends when told to, and
/// says how much was dropped.
#[tokio::test]
async fn a_bad_collector_hurts_nobody() {
    let world = World::new().await;
    let silent = Receiver::start(Answer::Silence).await;
    let refusing = Receiver::start(Answer::Status(503)).await;
    let runs: Vec<_> = (0..200).map(|_| json!({})).collect();
    for (index, url) in [silent.url.as_str(), refusing.url.as_str(), "http://127.0.0.1:9"]
        .into_iter()
        .enumerate()
    {
        let mut node = world.options().env("HEDDLE_OTLP_ENDPOINT", url).start().await;
        let group = format!("g{index}");
        node.put_group(&group, one(json!({"script": "hello"}))).await;
        node.post(&format!("/v1/groups/{group}/runs/batch"), json!({"runs": runs}))
            .await;
        eventually("all runs", async || {
            let ended = node
                .all(&format!("/v1/runs?group={group}&state=succeeded&limit=500"))
                .await;
            (ended.len() == 200).then_some(())
        })
        .await;
        let text = node.get("/metrics").await;
        let text = text.body.as_str().unwrap_or_default().to_owned();
        assert!(text.contains("heddle_trace_spans_sent_total 0\n"), "{text}");
        node.terminate();
        assert!(node.end().await.success(), "{}", node.log());
    }
    assert!(!refusing.requests().is_empty());
}

/// What is no collector's address is said at the start.
#[tokio::test]
async fn bad_endpoints_are_refused() {
    let world = World::new().await;
    for (endpoint, sample, words) in [
        ("collector:4318", "1", "--otlp-endpoint"),
        ("http://me:hush@collector:4318", "1", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector:4318", "2", "--otlp-sample"),
    ] {
        let directory = world.directory().to_string_lossy().into_owned();
        let output = run_program(
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--database-url",
                world.url(),
                "--data-dir",
                &directory,
            ],
            &[("HEDDLE_OTLP_ENDPOINT", endpoint), ("HEDDLE_OTLP_SAMPLE", sample)],
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && !said.contains("hush"), "{said}");
    }
}
