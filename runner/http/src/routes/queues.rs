//! Queues, and what workers do with what they claim from them.

use std::time::Duration;

use heddle_api::{
    ClaimAnswer, ClaimAnswers, ClaimFailure, ClaimOutput, ClaimRequest, ClaimToken, Claims, Heartbeat, Items, List,
    OfClaim, Queue, QueueMinute, QueueSpec, QueueTask, Rate, Worker,
};
use heddle_domain::spec::{EntriesMax, TAG_CHARS_MAX, TAGS_MAX, is_tag, read};
use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, Fault, Faults, Span, Time, storable_text};
use heddle_store::queue::{QueueChange, QueueView, WorkerView};
use serde_json::Value;
use uuid::Uuid;

use super::claim_report;
use crate::access::{Access, Caller};
use crate::adapter;
use crate::adapter::claims::{ClaimAction, ClaimCall};
use crate::describe::{Shape, of};
use crate::problem::{OfParts, Problem};
use crate::request::{Outcome, Request, list_of, ok, put, typed};
use crate::table::{Method, Pace, Route};

/// How many task runs one call claims, and of how many claims one call speaks.
const CLAIMS_MAX: usize = 1_000;

/// A lease that the worker does not name, and its bounds.
const LEASE_DEFAULT: Duration = Duration::from_secs(30);
const LEASE_MIN: Duration = Duration::from_millis(100);
const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The bound of a worker's name.
const WORKER_CHARS_MAX: usize = 200;

/// How far back the minutes of a queue go unless it is said.
const HISTORY_SHOWN: chrono::TimeDelta = chrono::TimeDelta::hours(1);

/// Bounds of a rate limit.
const RATE_COUNT_MAX: i64 = 1_000_000;
const RATE_PER_MAX: Duration = Duration::from_secs(24 * 3600);

/// What each route is called, takes and answers.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes =
        vec![
        Route::new(
            Method::Get,
            "/v1/queues",
            Access::View,
            "List queues with depth, oldest task run and workers",
            list,
        )
        .detail(
            "Contains each queue that a group names, that has task runs, that workers poll, or that was paused or \
            limited. `workers` is the number of workers that polled in the last minute or hold a claim.",
        )
        .list()
        .answers(200, of::<List<Queue>>()),
        Route::new(Method::Get, "/v1/queues/{queue}", Access::View, "Get a queue, with its workers", get)
            .answers(200, of::<Queue>()),
        Route::new(
            Method::Get,
            "/v1/queues/{queue}/tasks",
            Access::View,
            "List the task runs of a queue: claimed and waiting",
            tasks,
        )
        .detail(
            "First the claimed task runs (`state: running`) with the worker, the start and the end of the lease, then \
            the waiting ones (`state: ready`) in the order in which workers get them, without regard to tags. This \
            call does not claim anything.",
        )
        .list()
        .answers(200, of::<List<QueueTask>>()),
        Route::new(
            Method::Get,
            "/v1/queues/{queue}/minutes",
            Access::View,
            "Get the statistics of a queue by minute",
            minutes,
        )
        .detail(
            "Oldest first. A minute can be missing if no task run waited, was claimed or ended in it. The statistics \
            are kept for three hours. They are meant for charts: the numbers of ended task runs are approximate.",
        )
        .time("from", "Only minutes from this time. Default: an hour ago.")
        .answers(200, of::<List<QueueMinute>>()),
        Route::new(
            Method::Put,
            "/v1/queues/{queue}",
            Access::Operate,
            "Pause a queue or limit its rate",
            save,
        )
        .detail(
            "`rate: {count, per}` allows `count` claims per duration `per` (a token bucket that fills evenly). null \
            removes the limit. Omitted fields do not change.",
        )
        .takes_spec(of::<QueueSpec>())
        .optional()
        .answers_put(of::<Queue>()),
        Route::new(
            Method::Post,
            "/v1/queues/{queue}/pause",
            Access::Operate,
            "Pause a queue: workers get no task runs",
            |request| control(request, true),
        )
        .detail("Claimed task runs continue.")
        .answers(200, of::<Queue>()),
        Route::new(
            Method::Post,
            "/v1/queues/{queue}/resume",
            Access::Operate,
            "Resume a paused queue",
            |request| control(request, false),
        )
        .answers(200, of::<Queue>()),
    ];
    routes.push(claiming());
    routes.extend(reports_on_one());
    routes.extend(reports_on_many());
    routes
}

fn claiming() -> Route {
    Route::new(
        Method::Post,
        "/v1/queues/{queue}/claims",
        Access::Work,
        "Claim task runs",
        claim,
    )
    .detail(
        "Waits up to `wait` (at most 60 s) for the first task run. An answer with fewer than `max` claims, or \
         none, is not an error. An answer has at most 4 MiB of params and contexts, so large task runs come in \
         smaller batches; a single task run can be larger. The worker holds a claim until `lease_expires_at`; \
         heartbeats extend it. A task run with tags goes only to workers that have all of them.",
    )
    .pace(Pace::Waits)
    .takes(of::<ClaimRequest>())
    .answers(200, of::<Claims>())
}

/// The reports on one claim.
fn reports_on_one() -> Vec<Route> {
    const OLD: &str = "The token is wrong or no longer valid; `detail` says why. Nothing has changed.";
    let one = |path, summary, takes: Shape, verb| {
        Route::new(Method::Post, path, Access::Work, summary, move |request| {
            on_one(request, verb)
        })
        .takes(takes)
        .answers(200, of::<ClaimAnswer>())
        .answers_little()
        .problem(409, OLD)
    };
    vec![
        one(
            "/v1/claims/{id}/heartbeat",
            "Extend a claim",
            of::<Heartbeat>(),
            Verb::Heartbeat,
        )
        .detail(
            "If the run was cancelled, the answer is 409 with the reason. (A pause leaves claims as they are.) A \
            heartbeat can contain `progress` (0 to 1) and a `note`, which are shown on the task run, and `log`, at \
            most 1,000 lines for the log of the attempt. The task's `max_log` limits the whole log.",
        ),
        one(
            "/v1/claims/{id}/complete",
            "Report success of a claim",
            of::<ClaimOutput>(),
            Verb::Complete,
        )
        .detail(
            "For a batch of messages, the output may be `{failed: [id]}`; all other messages were sent. An ambiguous \
            output (an array, or a `failed` that is not a list of ids of this batch) is refused.",
        )
        .problem(413, "The output has more bytes than the task's `max_output`.")
        .problem(
            422,
            "The output does not say clearly which messages of a batch failed. Nothing has changed.",
        ),
        one(
            "/v1/claims/{id}/fail",
            "Report a failure of a claim",
            of::<ClaimFailure>(),
            Verb::Fail,
        )
        .detail("`error` is a message or `{message}`. With `fatal: true`, the task run is not retried."),
        one(
            "/v1/claims/{id}/release",
            "Release a claim without a result",
            of::<ClaimToken>(),
            Verb::Release,
        )
        .detail("The task run is available again immediately, as a new attempt. This does not use up a retry."),
    ]
}

/// The reports on many claims in one call.
fn reports_on_many() -> Vec<Route> {
    let many = |path, summary, takes: Shape, verb| {
        Route::new(Method::Post, path, Access::Work, summary, move |request| {
            on_many(request, verb)
        })
        .detail(
            "At most 1,000 claims per call. Each has its own answer: `status` is the status of the call for a \
            single claim.",
        )
        .takes(takes)
        .answers(200, of::<ClaimAnswers>())
        .answers_little()
    };
    vec![
        many(
            "/v1/claims/heartbeat",
            "Extend several claims",
            of::<Items<OfClaim<Heartbeat>>>(),
            Verb::Heartbeat,
        ),
        many(
            "/v1/claims/complete",
            "Report success for several claims",
            of::<Items<OfClaim<ClaimOutput>>>(),
            Verb::Complete,
        ),
        many(
            "/v1/claims/fail",
            "Report failures of several claims",
            of::<Items<OfClaim<ClaimFailure>>>(),
            Verb::Fail,
        ),
        many(
            "/v1/claims/release",
            "Release several claims",
            of::<Items<OfClaim<ClaimToken>>>(),
            Verb::Release,
        ),
    ]
}

fn shown(view: QueueView) -> Queue {
    let per = |ms: i64| Span::from_std(Duration::from_millis(ms.unsigned_abs()));
    Queue {
        name: view.name,
        depth: view.depth,
        depth_exact: view.depth_exact,
        oldest: view.oldest.map(Into::into),
        claimed: view.claimed,
        workers: view.workers,
        paused: view.settings.paused,
        rate: view.settings.rate.map(|rate| Rate {
            count: rate.count.into(),
            per: per(rate.per_ms),
        }),
        connected: None,
    }
}

fn shown_worker(view: WorkerView) -> Worker {
    Worker {
        worker: view.worker,
        tags: view.tags,
        seen_at: view.seen_at.map(Into::into),
        claimed: view.claimed,
    }
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.queues(request.cursor(), request.limit()?).await?;
    list_of(page, shown)
}

/// A queue with its workers.
async fn full(request: &Request, name: &str) -> Result<Queue, Problem> {
    let store = &request.app.store;
    let view = store
        .queue(name)
        .await?
        .ok_or_else(|| Problem::not_found("queue", name))?;
    let mut queue = shown(view);
    let workers = store.queue_workers(name).await?;
    queue.connected = Some(workers.into_iter().map(shown_worker).collect());
    Ok(queue)
}

async fn get(request: Request) -> Outcome {
    let name = request.name("queue", "queue")?;
    ok(&full(&request, name.as_str()).await?)
}

async fn tasks(request: Request) -> Outcome {
    let name = request.name("queue", "queue")?;
    if request.app.store.queue(name.as_str()).await?.is_none() {
        return Err(Problem::not_found("queue", name.as_str()));
    }
    let cursor = request.cursor().map(str::to_owned);
    ok(&adapter::queues::tasks(&request.app.engine, name.as_str(), cursor.as_deref(), request.limit()?).await?)
}

async fn minutes(request: Request) -> Outcome {
    let name = request.name("queue", "queue")?;
    if request.app.store.queue(name.as_str()).await?.is_none() {
        return Err(Problem::not_found("queue", name.as_str()));
    }
    let from = request.query_time("from")?.unwrap_or(request.now - HISTORY_SHOWN);
    let minutes = request.app.store.queue_minutes(name.as_str(), from).await?;
    let shown = |minute: heddle_store::queue::minutes::QueueMinute| QueueMinute {
        at: minute.at.into(),
        depth: minute.depth,
        ended: minute.ended,
    };
    ok(&List {
        items: minutes.into_iter().map(shown).collect(),
        next_cursor: None,
    })
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("queue")?;
    let spec: QueueSpec = typed(request.spec().await?, "")?;
    super::grants::same_name(&name, spec.name.as_deref())?;
    let rate = match spec.rate {
        None => None,
        Some(None) => Some(None),
        Some(Some(rate)) => Some(Some(checked(&rate)?)),
    };
    let change = QueueChange {
        paused: spec.paused,
        rate,
    };
    let done = request.app.store.put_queue(request.by(), name.as_str(), change).await?;
    adapter::node::follow(&request.app.engine).await;
    put(done.created, &full(&request, name.as_str()).await?)
}

fn checked(rate: &Rate) -> Result<heddle_store::queue::Rate, Problem> {
    let mut faults = Faults::default();
    if !(1..=RATE_COUNT_MAX).contains(&rate.count) {
        faults.add("/rate/count", format!("must be from 1 to {RATE_COUNT_MAX}"));
    }
    let per = rate.per.std();
    if per < Duration::from_millis(1) || per > RATE_PER_MAX {
        faults.add("/rate/per", "must be from 1ms to 1d");
    }
    faults
        .or(heddle_store::queue::Rate {
            count: rate.count as i32,
            per_ms: per.as_millis() as i64,
        })
        .map_err(Problem::invalid)
}

async fn control(request: Request, paused: bool) -> Outcome {
    let name = request.name("queue", "queue")?;
    if request.app.store.queue(name.as_str()).await?.is_none() {
        return Err(Problem::not_found("queue", name.as_str()));
    }
    let change = QueueChange {
        paused: Some(paused),
        rate: None,
    };
    request.app.store.put_queue(request.by(), name.as_str(), change).await?;
    adapter::node::follow(&request.app.engine).await;
    ok(&full(&request, name.as_str()).await?)
}

async fn claim(mut request: Request) -> Outcome {
    let queue = request.new_name("queue")?;
    if !request.caller.may_claim(queue.as_str()) {
        return Err(Problem::forbidden(format!("this token is not for the queue `{queue}`")));
    }
    let body: ClaimRequest = request.body().await?;
    let mut faults = Faults::default();
    let name = &body.worker;
    if name.is_empty() || name.chars().count() > WORKER_CHARS_MAX || name.chars().any(char::is_control) {
        faults.add(
            "/worker",
            format!("the name of a worker must have 1 to {WORKER_CHARS_MAX} characters and no control characters"),
        );
    }
    let max = body.max.unwrap_or(1);
    if !(1..=CLAIMS_MAX as i64).contains(&max) {
        faults.add("/max", format!("must be from 1 to {CLAIMS_MAX}"));
    }
    let lease = checked_lease(body.lease, "/lease", &mut faults).unwrap_or(LEASE_DEFAULT);
    if body.tags.len() > TAGS_MAX {
        faults.add("/tags", format!("must have at most {TAGS_MAX} entries"));
    }
    for (index, _) in body
        .tags
        .iter()
        .take(TAGS_MAX)
        .enumerate()
        .filter(|(_, tag)| !is_tag(tag))
    {
        faults.add(
            format!("/tags/{index}"),
            format!("a tag must have 1 to {TAG_CHARS_MAX} characters and no control characters"),
        );
    }
    faults.or(()).map_err(Problem::invalid)?;
    let mut tags = body.tags;
    tags.sort();
    tags.dedup();
    let wait = request.bounded_wait(body.wait)?;
    request.forget_body();
    let checked = heddle_engine::ClaimRequest {
        queue: queue.to_string(),
        worker: body.worker,
        tags,
        max: max as usize,
        lease,
        wait,
    };
    let items = adapter::claims::claim(&request.app.engine, &checked).await?;
    ok(&Claims { items })
}

fn checked_lease(lease: Option<Span>, pointer: &str, faults: &mut Faults) -> Option<Duration> {
    let lease = lease?.std();
    if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
        faults.add(pointer, "`lease` must be from 100ms to 1d");
    }
    Some(lease)
}

#[derive(Clone, Copy)]
enum Verb {
    Heartbeat,
    Complete,
    Fail,
    Release,
}

impl Verb {
    /// Reads what a worker says of a claim.
    fn call(self, id: Uuid, body: &Value, now: Time) -> Result<ClaimCall, Faults> {
        let mut faults = Faults::default();
        let (token, action) = match self {
            Self::Heartbeat => {
                let body: Heartbeat = read(body)?;
                let action = ClaimAction::Heartbeat {
                    lease: checked_lease(body.lease, "/lease", &mut faults),
                    report: claim_report::read(body.progress, body.note, body.log, now, &mut faults),
                };
                (body.token, action)
            }
            Self::Complete => {
                let body: ClaimOutput = read(body)?;
                (body.token, ClaimAction::Complete(body.output))
            }
            Self::Release => (read::<ClaimToken>(body)?.token, ClaimAction::Release),
            Self::Fail => {
                let body: ClaimFailure = read(body)?;
                let action = ClaimAction::Fail {
                    message: message_of(body.error, &mut faults),
                    fatal: body.fatal,
                    retry_after: body.retry_after.map(Span::std),
                };
                (body.token, action)
            }
        };
        faults.or(ClaimCall { id, token, action })
    }

    /// What has become of the attempt.
    fn state(self) -> &'static str {
        match self {
            Self::Heartbeat => "running",
            Self::Complete => "succeeded",
            Self::Fail => "failed",
            Self::Release => "released",
        }
    }
}

/// A message, or an object with one.
fn message_of(error: Value, faults: &mut Faults) -> String {
    let text = match error {
        Value::Null => "the worker gave no reason".to_owned(),
        Value::String(text) => text,
        Value::Object(object) => match object.get("message") {
            Some(Value::String(text)) => text.clone(),
            _ => Value::Object(object).to_string(),
        },
        _ => {
            faults.push(Fault::at(
                "/error",
                "`error` must be a message, or an object with a `message`",
            ));
            String::new()
        }
    };
    storable_text(&text, ERROR_MESSAGE_BYTES_MAX)
}

/// The queues that a caller is bound to; none: all. Who is bound to users does no queued work at all.
fn bound(caller: &Caller) -> Result<Vec<String>, Problem> {
    if caller.queues.is_empty() && !caller.uids.is_empty() {
        return Err(Problem::forbidden("this token is only for users, not for queues"));
    }
    Ok(caller.queues.clone())
}

/// Takes the id of the claim out of what is said of it.
fn take_id(body: &mut Value) -> Result<Option<Uuid>, Faults> {
    let given = body.as_object_mut().and_then(|fields| fields.remove("id"));
    serde_json::from_value(given.unwrap_or_default()).map_err(|error| Fault::at("/id", error.to_string()).into())
}

async fn on_one(mut request: Request, verb: Verb) -> Outcome {
    let id: Uuid = request.id("id", "claim")?;
    // Before the body is read, which may be large.
    let queues = bound(&request.caller)?;
    // As much as the call for many: `max_output` may be more than other bodies have.
    let bytes_max = request.app.config.batch_bytes_max;
    let mut body = request.json_up_to(bytes_max, &[]).await?;
    let given = take_id(&mut body).map_err(Problem::invalid)?;
    if given.is_some_and(|given| given != id) {
        return Err(Problem::invalid_at(
            "/id",
            "`id` must be the id of the claim in the path",
        ));
    }
    let call = verb.call(id, &body, request.now).map_err(Problem::invalid)?;
    let mut answers = adapter::claims::on_claims(&request.app.engine, vec![call], queues).await?;
    let until = match answers.pop() {
        Some(answer) => answer?,
        None => return Err(Problem::not_found("claim", &id.to_string())),
    };
    ok(&ClaimAnswer {
        id,
        status: None,
        state: Some(verb.state().to_owned()),
        lease_expires_at: until.map(Into::into),
        detail: None,
    })
}

/// A call on many claims is read up to so many: it may be long.
const ITEMS_MAX: EntriesMax = &[("items", CLAIMS_MAX)];

async fn on_many(mut request: Request, verb: Verb) -> Outcome {
    let queues = bound(&request.caller)?;
    let bytes_max = request.app.config.batch_bytes_max;
    let body: Items<Value> = typed(request.json_up_to(bytes_max, ITEMS_MAX).await?, "")?;
    let mut faults = Faults::default();
    let mut calls = Vec::with_capacity(body.items.len());
    for (index, mut item) in body.items.into_iter().enumerate() {
        let call = take_id(&mut item).and_then(|id| {
            let id = id.ok_or_else(|| Fault::at("/id", "`id` is missing: the id of the claim"))?;
            verb.call(id, &item, request.now)
        });
        match call {
            Ok(call) => calls.push(call),
            Err(wrong) => wrong
                .0
                .into_iter()
                .for_each(|fault| faults.push(fault.below(&format!("/items/{index}")))),
        }
    }
    faults.or(()).map_err(Problem::invalid)?;
    let ids: Vec<Uuid> = calls.iter().map(|call| call.id).collect();
    let answers = adapter::claims::on_claims(&request.app.engine, calls, queues).await?;
    let mut problems = OfParts::default();
    let items: Vec<ClaimAnswer> = ids
        .into_iter()
        .zip(answers)
        .map(|(id, answer)| match answer {
            Ok(until) => ClaimAnswer {
                id,
                status: Some(200),
                state: Some(verb.state().to_owned()),
                lease_expires_at: until.map(Into::into),
                detail: None,
            },
            Err(refusal) => {
                let problem = problems.problem(refusal);
                ClaimAnswer {
                    id,
                    status: Some(problem.status.as_u16()),
                    state: None,
                    lease_expires_at: None,
                    detail: Some(problem.detail),
                }
            }
        })
        .collect();
    ok(&ClaimAnswers { items })
}
