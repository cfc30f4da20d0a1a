//! Traces by OTLP (HTTP, protobuf): what has ended, in the words of OpenTelemetry, to a collector.
//!
//! # The story
//!
//! Code that ends something gives a span to the SDK's batch processor and continues. The processor's thread takes spans
//! from a queue of [`QUEUE_MAX`] in batches, each when it is full or [`LINGER`] old, and lets the exporter post it,
//! which tries [`TRIES_MAX`] times, with doubling pauses, if a collector does not accept it. Meanwhile spans wait in
//! the queue; when that is full, they are dropped. When the node ends, there are [`FLUSH_MAX`] to send the rest.
//!
//! So a collector that is down, slow or silent only costs a bounded amount of memory. Three things that the SDK does
//! not do are here:
//!
//! * It keeps the number of dropped spans to itself, for one line of its log at the end. So this counts for `/metrics`:
//!   how many are with the SDK ([`Counts::waiting`]: each span adds one, and each batch that the exporter has sent or given
//!   up subtracts its spans). None are given to it beyond [`QUEUE_MAX`], so that its queue, which is as long, never drops
//!   any by itself.
//! * Its thread has no runtime, which the HTTP client needs. The client's futures run on the node's ([`OnRuntime`]); the
//!   thread waits for them.
//! * Its end is waited for by blocking a thread: one that may be blocked.
//!
//! The collector is named by the operator, like the database: the outbound policy is not about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::{AttemptState, RunState};
use heddle_engine::trace::{self, AttemptSpan, BatchSpan, RunSpan, Span, Tracer};
use heddle_http::metrics::Page;
use heddle_http::{Answered, RequestTracer};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanExporter as Export, SpanLinks, SpanProcessor,
};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::config::NodeOptions;
use crate::exit::usage;

/// The maximum number of spans that wait to be sent, including those of the batch that is being sent.
const QUEUE_MAX: usize = 8_192;
/// The maximum number of spans in one request.
const BATCH_MAX: usize = 512;
/// How long a batch waits to be full.
const LINGER: Duration = Duration::from_secs(1);
/// How long a collector may take for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a batch is sent at most, if the collector does not accept it.
const TRIES_MAX: usize = 4;
/// How long after the first failure a batch is sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long all tries of a batch may take together.
const BATCH_TIMEOUT: Duration = Duration::from_secs(27);
/// How long the end of a node waits for what is left.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The minimum time between two warnings that the collector does not accept spans.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Takes the spans of a node, and decides which traces are kept.
pub(crate) struct Traces {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    /// Traces whose lower half, as a number, is below this are kept.
    below: u64,
    chance: Arc<dyn heddle_domain::Chance>,
    counts: Arc<Counts>,
}

/// How many spans are waiting, were sent, and were dropped.
#[derive(Debug, Default)]
struct Counts {
    /// Spans that the SDK has got, and has neither sent nor dropped yet.
    waiting: AtomicUsize,
    sent: AtomicU64,
    dropped: AtomicU64,
}

/// The exporter, with a count of what it has sent and dropped.
#[derive(Debug)]
struct Counting {
    exporter: SpanExporter,
    counts: Arc<Counts>,
    warned: Mutex<Option<tokio::time::Instant>>,
}

impl Export for Counting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let answer = self.exporter.export(batch).await;
        let total = match &answer {
            Ok(()) => &self.counts.sent,
            Err(error) => {
                self.warn(error, spans);
                &self.counts.dropped
            }
        };
        total.fetch_add(spans as u64, Ordering::Relaxed);
        self.counts.waiting.fetch_sub(spans, Ordering::Relaxed);
        answer
    }
}

impl Counting {
    fn warn(&self, error: &opentelemetry_sdk::error::OTelSdkError, spans: usize) {
        let now = tokio::time::Instant::now();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| now - at >= WARN_EVERY) {
            *warned = Some(now);
            tracing::warn!(%error, spans, "the collector does not accept traces");
        }
    }
}

/// The node's HTTP client, for threads without a runtime.
#[derive(Debug)]
struct OnRuntime {
    client: reqwest::Client,
    runtime: tokio::runtime::Handle,
}

#[async_trait::async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime
            .spawn(async move { client.send_bytes(request).await })
            .await?
    }
}

/// Sends the last spans when the node ends.
pub(crate) struct Sender(Arc<Traces>);

impl Sender {
    /// Sends what is left, within bounds.
    pub(crate) async fn end(self) {
        let ended = tokio::task::spawn_blocking(move || self.0.processor.shutdown_with_timeout(FLUSH_MAX));
        // Spans that the collector has not accepted by now are lost.
        let _ = ended.await;
    }
}

/// Refuses options that [`start`] cannot use.
pub(crate) fn check(options: &NodeOptions) -> Result<()> {
    endpoint(options)?;
    below(options.otlp_sample).map(drop)
}

/// The address for traces, if the options name a collector.
fn endpoint(options: &NodeOptions) -> Result<Option<reqwest::Url>> {
    let named = options.otlp_endpoint.as_deref().filter(|text| !text.trim().is_empty());
    named.map(traces_url).transpose()
}

/// Begins to send traces, if the options name a collector.
pub(crate) fn start(
    options: &NodeOptions,
    node: Uuid,
    name: &str,
    chance: Arc<dyn heddle_domain::Chance>,
) -> Result<Option<(Arc<Traces>, Sender)>> {
    let Some(endpoint) = endpoint(options)? else {
        return Ok(None);
    };
    let below = below(options.otlp_sample)?;
    heddle_sandbox::outbound::choose_cryptography();
    let client = reqwest::Client::builder()
        .timeout(EXPORT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .context("cannot create an HTTP client for traces")?;
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(OnRuntime {
            client,
            runtime: tokio::runtime::Handle::current(),
        })
        .with_endpoint(endpoint.as_str())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(BATCH_TIMEOUT)
        .with_retry_policy(
            RetryPolicy::recommended()
                .with_max_retries(TRIES_MAX - 1)
                .with_initial_delay(AGAIN_AFTER)
                .with_max_delay(AGAIN_AFTER * 4),
        )
        .build()
        .map_err(|error| usage(format!("--otlp-endpoint: {error}")))?;
    let version = env!("CARGO_PKG_VERSION");
    exporter.set_resource(
        &Resource::builder_empty()
            .with_service_name("heddle")
            .with_attributes([
                KeyValue::new("service.version", version),
                KeyValue::new("service.instance.id", node.to_string()),
                KeyValue::new("host.name", name.to_owned()),
            ])
            .build(),
    );
    let counts = Arc::new(Counts::default());
    let counting = Counting {
        exporter,
        counts: counts.clone(),
        warned: Mutex::default(),
    };
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(LINGER)
        .build();
    let traces = Arc::new(Traces {
        processor: BatchSpanProcessor::builder(counting).with_batch_config(config).build(),
        scope: InstrumentationScope::builder("heddle").with_version(version).build(),
        below,
        chance,
        counts,
    });
    tracing::info!(endpoint = %endpoint, "sending traces");
    Ok(Some((traces.clone(), Sender(traces))))
}

/// The address for traces: as with other programs, the endpoint is the part before `/v1/traces`.
fn traces_url(text: &str) -> Result<reqwest::Url> {
    let wrong = |why: &str| {
        usage(format!(
            "--otlp-endpoint must be the address of a collector, for example http://127.0.0.1:4318: {why}"
        ))
    };
    let mut url = reqwest::Url::parse(text.trim()).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it must begin with http or https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(
            "it must not contain a user name or password; put credentials into OTEL_EXPORTER_OTLP_HEADERS",
        ));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    if !path.ends_with("/v1/traces") {
        url.set_path(&format!("{path}/v1/traces"));
    }
    Ok(url)
}

/// The fraction of traces that is kept, as an upper bound for the lower half of their ids.
fn below(sample: Option<f64>) -> Result<u64> {
    let part = sample.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&part) {
        return Err(usage(format!(
            "--otlp-sample must be from 0 to 1, not {part}; it is the fraction of runs that are traced"
        )));
    }
    // Saturates at either end.
    Ok((part * u64::MAX as f64) as u64)
}

impl Traces {
    fn put(&self, span: SpanData) {
        if self.counts.waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE_MAX {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.processor.on_end(span);
    }

    fn keeps(&self, trace: u128) -> bool {
        self.below == u64::MAX || (trace as u64) < self.below
    }

    /// The observer of the API's answers.
    pub(crate) fn of_requests(self: &Arc<Self>) -> RequestTracer {
        let traces = self.clone();
        Arc::new(move |answered| traces.answered(answered))
    }

    fn answered(&self, answered: Answered) {
        let bits = self.chance.bits();
        let parent = answered.traceparent.as_deref().and_then(parse_parent);
        let (trace, parent_span) = match parent {
            Some(parent) if !parent.sampled => return,
            Some(parent) => (parent.trace, Some(parent.span)),
            None if !self.keeps(bits) => return,
            None => (bits.max(1), None),
        };
        let mut span = [0; 8];
        span.copy_from_slice(&self.chance.bits().to_be_bytes()[..8]);
        let status = if answered.status >= 500 {
            Status::error(format!("status {}", answered.status))
        } else {
            Status::Unset
        };
        let took = chrono::TimeDelta::from_std(answered.took).unwrap_or_default();
        self.put(SpanData {
            parent_span_is_remote: parent_span.is_some(),
            span_kind: SpanKind::Server,
            status,
            attributes: vec![
                KeyValue::new("http.request.method", answered.method.clone()),
                KeyValue::new("http.route", answered.route.clone()),
                KeyValue::new("http.response.status_code", i64::from(answered.status)),
            ],
            ..self.span(
                trace,
                span,
                parent_span,
                format!("{} {}", answered.method, answered.route),
                (answered.at - took, answered.at),
            )
        });
    }

    fn span(
        &self,
        trace: u128,
        id: trace::SpanBytes,
        parent: Option<trace::SpanBytes>,
        name: String,
        (start, end): (Time, Time),
    ) -> SpanData {
        let context = SpanContext::new(
            TraceId::from_bytes(trace.to_be_bytes()),
            SpanId::from_bytes(id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        );
        SpanData {
            span_context: context,
            parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: SystemTime::from(start),
            end_time: SystemTime::from(end),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn run(&self, run: RunSpan) -> SpanData {
        let mut attributes = vec![
            KeyValue::new("heddle.run", run.run.to_string()),
            KeyValue::new("heddle.group", run.group.clone()),
            KeyValue::new("heddle.trigger", run.trigger.to_string()),
            KeyValue::new("heddle.logical_time", run.logical_time.to_rfc3339()),
            KeyValue::new("heddle.state", run.state.to_string()),
        ];
        if run.state == RunState::Failed {
            attributes.push(KeyValue::new("error.type", "failed"));
        }
        SpanData {
            status: match run.state {
                RunState::Failed => Status::error(run.error.unwrap_or_default()),
                _ => Status::Unset,
            },
            attributes,
            ..self.span(
                run.run.0.as_u128(),
                trace::run_span_id(run.run),
                None,
                run.group,
                (run.created_at, run.finished_at),
            )
        }
    }

    fn attempt(&self, attempt: AttemptSpan) -> SpanData {
        let mut attributes = vec![
            KeyValue::new("heddle.run", attempt.run.to_string()),
            KeyValue::new("heddle.group", attempt.group),
            KeyValue::new("heddle.task", attempt.task.clone()),
            KeyValue::new("heddle.attempt", i64::from(attempt.at.attempt)),
            KeyValue::new("heddle.state", attempt.state.to_string()),
        ];
        let more = [
            attempt
                .at
                .key
                .item
                .map(|item| KeyValue::new("heddle.item", i64::from(item))),
            attempt.node.map(|node| KeyValue::new("heddle.node", node.to_string())),
            attempt
                .memory_bytes
                .map(|bytes| KeyValue::new("heddle.memory_bytes", bytes)),
            attempt
                .cpu_micros
                .map(|micros| KeyValue::new("heddle.cpu_ms", micros as f64 / 1_000.0)),
            attempt
                .error
                .as_ref()
                .map(|(kind, _)| KeyValue::new("error.type", kind.to_string())),
        ];
        attributes.extend(more.into_iter().flatten());
        let status = match attempt.error {
            Some((_, message)) if attempt.state != AttemptState::Cancelled => Status::error(message),
            _ => Status::Unset,
        };
        SpanData {
            status,
            attributes,
            ..self.span(
                attempt.run.0.as_u128(),
                trace::attempt_span_id(attempt.run, attempt.at),
                Some(trace::run_span_id(attempt.run)),
                attempt.task,
                (attempt.started_at, attempt.finished_at),
            )
        }
    }

    fn batch(&self, batch: BatchSpan) -> SpanData {
        let mut attributes = vec![
            KeyValue::new("heddle.batch", batch.batch.to_string()),
            KeyValue::new("heddle.topic", batch.topic.clone()),
            KeyValue::new("heddle.messages.sent", number(batch.sent)),
            KeyValue::new("heddle.messages.failed", number(batch.failed)),
            KeyValue::new("heddle.node", batch.node.to_string()),
        ];
        if batch.error.is_some() {
            attributes.push(KeyValue::new("error.type", "failed"));
        }
        SpanData {
            span_kind: SpanKind::Consumer,
            status: batch.error.map_or(Status::Unset, Status::error),
            attributes,
            ..self.span(
                batch.batch.0.as_u128(),
                trace::run_span_id(batch.batch),
                None,
                batch.topic,
                (batch.started_at, batch.finished_at),
            )
        }
    }

    /// The counts of spans, as text for `/metrics`.
    pub(crate) fn tell(&self, page: &Page) {
        page.counter(
            "heddle_trace_spans_sent_total",
            "Trace spans that the collector accepted.",
            self.counts.sent.load(Ordering::Relaxed),
        );
        page.counter(
            "heddle_trace_spans_dropped_total",
            "Trace spans that were dropped, because there were too many or the collector did not accept them.",
            self.counts.dropped.load(Ordering::Relaxed),
        );
    }
}

impl Tracer for Traces {
    fn wants(&self, run: RunId) -> bool {
        self.keeps(run.0.as_u128())
    }

    fn ended(&self, span: Span) {
        self.put(match span {
            Span::Run(run) => self.run(run),
            Span::Attempt(attempt) => self.attempt(attempt),
            Span::Batch(batch) => self.batch(batch),
        });
    }
}

/// The contents of a caller's `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: trace::SpanBytes,
    sampled: bool,
}

/// Reads version 00 of W3C Trace Context; later versions begin in the same way. An invalid value is ignored.
fn parse_parent(text: &str) -> Option<Parent> {
    let lower_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let lengths = [version, trace, span, flags].map(str::len);
    if lengths != [2, 32, 16, 2] || ![version, trace, span, flags].iter().all(|part| lower_hex(part)) {
        return None;
    }
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
    Some(Parent {
        trace,
        span: span.to_be_bytes(),
        sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
    })
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (given, posted) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            (
                "https://otel.example.com/here/",
                "https://otel.example.com/here/v1/traces",
            ),
            ("http://c/v1/traces", "http://c/v1/traces"),
        ] {
            assert_eq!(traces_url(given).unwrap().as_str(), posted);
        }
        for bad in ["127.0.0.1:4318", "grpc://c:4317", "http://", "http://me:secret@c", "\n"] {
            let said = traces_url(bad).unwrap_err().to_string();
            assert!(said.contains("--otlp-endpoint") && !said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn samples() {
        assert_eq!(below(None).unwrap(), u64::MAX);
        assert_eq!(below(Some(1.0)).unwrap(), u64::MAX);
        assert_eq!(below(Some(0.0)).unwrap(), 0);
        assert_eq!(below(Some(0.5)).unwrap(), 1 << 63);
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(below(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn parents() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = parse_parent(good).unwrap();
        assert_eq!(parent.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert!(parent.sampled);
        assert!(!parse_parent(&good.replace("-01", "-00")).unwrap().sampled);
        assert!(parse_parent(&format!("{}-more", good.replace("00-0a", "01-0a"))).is_some());
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319é-b7ad6b716920333-01",
        ] {
            assert_eq!(parse_parent(bad), None, "{bad}");
        }
    }
}
