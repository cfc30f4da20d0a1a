//! Topics, and the days of their messages.

use heddle_api::{Bucket, Cancelled, Day, List, MessageFilter, Moment, TopicSpec};
use heddle_domain::id::RunId;
use heddle_domain::message::BUCKETS;
use heddle_domain::spec::validate::task::{no_active_version, script_reference};
use heddle_domain::state::NOT_GRANTED;
use heddle_domain::topic::{Topic, check_new, parse_day};
use heddle_domain::{Fault, Faults, Name};
use heddle_engine::put_group::{Checked, check_group};
use heddle_engine::scripts::{HostPattern, Language};
use heddle_engine::topic_group;
use heddle_store::message::{BucketRow, CancelFilter, DayCounts, DayRow};
use heddle_store::script::CONSUMER_WORLD;
use heddle_store::topic::{TopicDelete, TopicPut, TopicRow, TopicWrite};
use serde::Deserialize;
use uuid::Uuid;

use crate::access::Access;
use crate::adapter;
use crate::adapter::runs::Control;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, no_content, ok, put, typed};
use crate::table::{Method, Route};

/// Fields that say which day a message belongs to, and when that is sent.
const FIXED: [&str; 3] = ["granularity", "timezone", "send_at"];

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/topics", Access::View, "List topics", list)
            .list()
            .answers(200, of::<List<heddle_api::Topic>>()),
        Route::new(
            Method::Put,
            "/v1/topics/{topic}",
            Access::Operate,
            "Create or change a topic",
            save,
        )
        .detail("A topic sends its messages to a script of the world `heddle:task/consumer`, or to a queue.")
        .takes_spec(of::<TopicSpec>())
        .answers_put(of::<heddle_api::Topic>())
        .problem(
            409,
            "The topic has messages, so `granularity`, `timezone` and `send_at` cannot change; or another group has the \
            name of the topic's internal group.",
        )
        .problem(422, "The topic is not valid; `errors` has each error with its place."),
        Route::new(Method::Get, "/v1/topics/{topic}", Access::View, "Get a topic", get)
            .detail("If messages cannot be sent, `problem` says why.")
            .answers(200, of::<heddle_api::Topic>()),
        Route::new(
            Method::Delete,
            "/v1/topics/{topic}",
            Access::Operate,
            "Delete a topic with all its messages",
            delete,
        )
        .detail("Batches that wait in the topic's queue, or that its workers have, are cancelled.")
        .answers_empty(204)
        .problem(
            409,
            "Other groups use the internal group of the topic; `detail` names them.",
        ),
        Route::new(
            Method::Post,
            "/v1/topics/{topic}/cancel",
            Access::Operate,
            "Cancel messages",
            cancel,
        )
        .detail(
            "Cancels all messages that match the filter and are neither sent nor being sent. When the answer arrives, \
            none of them is sent any more, except those in batches that are being sent. A batch that waits in a queue \
            without a claim is cancelled too.",
        )
        .takes(of::<MessageFilter>())
        .answers(200, of::<Cancelled>())
        .problem(422, "The filter is empty, or a value is not valid."),
        Route::new(
            Method::Get,
            "/v1/topics/{topic}/days",
            Access::View,
            "List the days that have or had messages",
            days,
        )
        .list()
        .answers(200, of::<List<Day>>()),
        Route::new(
            Method::Get,
            "/v1/topics/{topic}/days/{day}",
            Access::View,
            "Get the progress of a day, by bucket",
            day,
        )
        .detail("Only buckets that have or had messages are listed.")
        .answers(200, of::<Day>())
        .problem(422, "`day` is not a valid day."),
    ]
}

/// A topic as the API shows it: what is kept of it, its name and its times.
fn view(row: &TopicRow) -> Result<heddle_api::Topic, Problem> {
    Ok(heddle_api::Topic {
        name: row.name.clone(),
        spec: TopicSpec::deserialize(&row.spec).map_err(|error| Problem::internal(&error))?,
        problem: row.problem.clone(),
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    })
}

/// The topic that the path names.
pub(super) async fn find(request: &Request) -> Result<TopicRow, Problem> {
    let name = request.name("topic", "topic")?;
    request
        .app
        .store
        .topic(&name)
        .await?
        .ok_or_else(|| Problem::not_found("topic", &name))
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.topics(request.cursor(), request.limit()?).await?;
    ok(&List {
        items: page.items.iter().map(view).collect::<Result<_, _>>()?,
        next_cursor: page.next,
    })
}

async fn get(request: Request) -> Outcome {
    ok(&view(&find(&request).await?)?)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("topic")?;
    let mut body = request.spec().await?;
    if let Some(fields) = body.as_object_mut() {
        // What an answer says besides, so that an answer can be sent back.
        for field in ["created_at", "updated_at", "problem"] {
            fields.remove(field);
        }
        fields.retain(|_, value| !value.is_null());
    }
    let spec: TopicSpec = typed(body, "")?;
    super::grants::same_name(&name, spec.name.as_ref().map(Name::as_str))?;
    let mut found = look_up(&request, &name, &spec).await?;
    if let Err(faults) = check_new(&spec) {
        found.0.extend(faults.0);
    }
    let topic = match Topic::compile(spec) {
        Ok(topic) if found.is_empty() => topic,
        Ok(_) => return Err(Problem::invalid(found)),
        Err(mut faults) => {
            let known: Vec<String> = faults.0.iter().map(|fault| fault.pointer.clone()).collect();
            let more = found.0.into_iter().filter(|fault| !known.contains(&fault.pointer));
            faults.0.extend(more);
            return Err(Problem::invalid(faults));
        }
    };
    let canonical = serde_json::to_value(&topic.spec).map_err(|error| Problem::internal(&error))?;
    let write = TopicWrite {
        name: &name,
        script: topic.script.as_ref().map(|(script, _)| script.as_str()),
        queue: topic.spec.queue.as_ref().map(Name::as_str),
        spec: &canonical,
    };
    let group = match topic.spec.queue {
        Some(_) => Some(group_of(&request, &name, &topic).await?),
        None => None,
    };
    // The store gives it its name.
    let group = group.as_ref().map(|group| group.write(""));
    let done = match request.app.store.put_topic(request.by(), write, &FIXED, group).await? {
        TopicPut::Done(done) => done,
        TopicPut::Gone(field) => {
            let detail = format!("`{field}` names something that was deleted in the meantime");
            return Err(Problem::invalid_at(format!("/{field}"), detail));
        }
        TopicPut::Taken(group) => {
            return Err(Problem::conflict(format!(
                "the topic `{name}` needs the group `{group}` for its batches, and there is another group of this name; \
                delete that group first"
            )));
        }
        TopicPut::Fixed(field) => {
            return Err(Problem::conflict(format!(
                "the topic `{name}` has messages, so its `{field}` cannot change; cancel the messages and wait until \
                their retention has passed, or create another topic"
            )));
        }
    };
    put(done.created, &view(&done.row)?)
}

/// The group whose runs contain the batches of a topic that sends to a queue.
async fn group_of(request: &Request, name: &Name, topic: &Topic) -> Result<Checked, Problem> {
    let spec = heddle_domain::spec::parse_group(&topic_group(name, topic))?;
    // The name of the group is known only when the topic has its number. Nothing in the spec depends on it.
    Ok(check_group(&request.app.store, name, spec, request.now).await?)
}

/// What the spec names: scripts, connections, secrets, hosts.
async fn look_up(request: &Request, name: &Name, spec: &TopicSpec) -> Result<Faults, Problem> {
    let store = &request.app.store;
    let category = spec.category.as_ref().map(Name::as_str);
    let mut faults = Faults::default();
    if let Some(Ok((script, version))) = spec.script.as_deref().map(script_reference) {
        let wanted = match (store.script(&script).await?, version) {
            (None, _) => Err(format!("unknown script: there is no script `{script}`")),
            (Some(row), None) => row.active_version.ok_or_else(|| no_active_version(&script)),
            (Some(_), Some(version)) => {
                i32::try_from(version).map_err(|_| format!("there is no version `{script}@{version}`"))
            }
        };
        match wanted {
            Err(detail) => faults.add("/script", detail),
            Ok(version) => match store.script_version(&script, Some(version)).await? {
                None => faults.add(
                    "/script",
                    format!("unknown script: there is no version `{script}@{version}`"),
                ),
                Some(row) if Language::of_world(&row.world).is_some() => {
                    let consumes = match row.has("handle") {
                        Some(consumes) => consumes,
                        None => adapter::scripts::consumes(&request.app.engine, &row.name, row.version).await?,
                    };
                    if !consumes {
                        faults.add(
                            "/script",
                            format!(
                                "`{script}@{version}` does not export `handle`; a topic needs a function \
                                `handle(batch, ctx)`"
                            ),
                        );
                    }
                }
                Some(row) if row.world != CONSUMER_WORLD => faults.add(
                    "/script",
                    format!(
                        "`{script}@{version}` has the world {}; a topic needs {CONSUMER_WORLD}",
                        row.world
                    ),
                ),
                Some(_) => {}
            },
        }
    }
    for (index, connection) in spec.sql.iter().enumerate() {
        match store.connection(connection).await? {
            None => faults.add(
                format!("/sql/{index}"),
                format!("there is no connection `{connection}`"),
            ),
            Some(row) if !row.options.grant.allows(name, category) => faults.add(
                format!("/sql/{index}"),
                format!("{NOT_GRANTED}connection `{connection}`: this topic may not use it; grant it to `{name}`, or to its category"),
            ),
            Some(_) => {}
        }
    }
    for (index, secret) in spec.secrets.iter().enumerate() {
        match store.secret(secret).await? {
            None => faults.add(format!("/secrets/{index}"), format!("there is no secret `{secret}`")),
            Some(row) if !row.grant.allows(name, category) => faults.add(
                format!("/secrets/{index}"),
                format!("{NOT_GRANTED}secret `{secret}`: this topic may not use it; grant it to `{name}`, or to its category"),
            ),
            Some(_) => {}
        }
    }
    for (index, host) in spec.allow_hosts.iter().enumerate() {
        if host.parse::<HostPattern>().is_err() {
            faults.add(
                format!("/allow_hosts/{index}"),
                format!("`{host}` is not a valid host; write for example api.example.com or *.example.com"),
            );
        }
    }
    Ok(faults)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("topic", "topic")?;
    match request.app.store.delete_topic(request.by(), &name).await? {
        TopicDelete::Deleted { group } => {
            // Batches that wait in its queue, or that workers have.
            if let Some(group) = group {
                adapter::runs::cancel_group(&request.app.engine, group, request.caller.actor.clone()).await?;
            }
            no_content()
        }
        TopicDelete::Missing => Err(Problem::not_found("topic", &name)),
        TopicDelete::GroupKept(group, kept) => Err(super::groups::not_deleted(&group, kept)),
    }
}

async fn cancel(mut request: Request) -> Outcome {
    let row = find(&request).await?;
    let body: MessageFilter = request.body().await?;
    let mut faults = Faults::default();
    let mut filter = CancelFilter::default();
    if let Some(text) = &body.day {
        match parse_day(text) {
            Ok(day) => filter.day = Some(day),
            Err(fault) => faults.push(fault.below("/day")),
        }
    }
    if let Some(bucket) = body.bucket {
        match (0..BUCKETS).contains(&bucket) {
            true => filter.bucket = Some(bucket as i16),
            false => faults.add("/bucket", format!("must be from 0 to {}", BUCKETS - 1)),
        }
    }
    for (pointer, given) in [("/sender", body.sender), ("/receiver", body.receiver)] {
        if given.is_some_and(|id| id < 0) {
            faults.add(pointer, "must be from 0 to 9223372036854775807");
        }
    }
    (filter.sender, filter.receiver) = (body.sender, body.receiver);
    if faults.is_empty() && filter == CancelFilter::default() {
        faults.add("", "give at least one of `day`, `bucket`, `sender`, `receiver`");
    }
    faults.or(()).map_err(Problem::invalid)?;
    let report = request
        .app
        .store
        .cancel_messages(request.by(), row.id, &row.name, filter)
        .await?;
    end_empty(&request, report.emptied).await;
    ok(&Cancelled {
        cancelled: report.cancelled,
    })
}

/// Ends the runs of batches that a cancel has emptied, so that their day does not wait for a worker. If this fails, a
/// worker ends them: it gets no messages of them.
pub(super) async fn end_empty(request: &Request, runs: impl IntoIterator<Item = Uuid>) {
    for run in runs {
        let actor = request.caller.actor.clone();
        if let Err(refusal) = adapter::runs::control(&request.app.engine, RunId(run), Control::Cancel, actor).await {
            tracing::debug!(%run, ?refusal, "the run of an empty batch could not be cancelled");
        }
    }
}

/// How far something has come; of a bucket that nobody has begun, and of one that is through, that is certain. To
/// cancel some of it is not to begin it.
fn state_of(total: i64, ended: i64, begun: bool) -> &'static str {
    match (ended >= total, begun) {
        (true, _) => "drained",
        (false, true) => "draining",
        (false, false) => "scheduled",
    }
}

fn bucket_view(row: BucketRow) -> Bucket {
    let ended = row.sent + row.failed + row.cancelled;
    Bucket {
        bucket: row.bucket,
        total: row.total,
        sent: row.sent,
        failed: row.failed,
        cancelled: row.cancelled,
        state: state_of(row.total, ended, row.sent + row.failed > 0).to_owned(),
    }
}

fn day_view(row: &DayRow) -> Day {
    let counts = row.counts;
    let ended = counts.sent + counts.failed + counts.cancelled;
    let begun = counts.sent + counts.failed + counts.in_hand + counts.retrying > 0;
    let state = match row.dropped_at {
        Some(_) => "dropped",
        None => state_of(counts.total, ended, begun),
    };
    let is_drained = counts.total > 0 && matches!(state, "drained" | "dropped");
    Day {
        day: row.day,
        state: state.to_owned(),
        total: counts.total,
        sent: counts.sent,
        failed: counts.failed,
        cancelled: counts.cancelled,
        in_hand: counts.in_hand,
        retrying: counts.retrying,
        drained_at: row.drained_at.filter(|_| is_drained).map(Moment),
        dropped_at: row.dropped_at.map(Moment),
        buckets: None,
    }
}

async fn days(request: Request) -> Outcome {
    let row = find(&request).await?;
    let limit = request.limit()?;
    let from = match request.cursor() {
        Some(text) => Some(parse_day(text).map_err(|_| {
            Problem::malformed(
                "`cursor` must be the `next_cursor` of an \
            earlier answer",
            )
        })?),
        None => None,
    };
    let mut rows = request.app.store.message_days(row.id, from, limit + 1).await?;
    let next_cursor = match rows.len() as i64 > limit {
        true => rows.pop().map(|row| row.day.to_string()),
        false => None,
    };
    ok(&List {
        items: rows.iter().map(day_view).collect(),
        next_cursor,
    })
}

async fn day(request: Request) -> Outcome {
    let row = find(&request).await?;
    let day = parse_day(request.part("day")).map_err(|fault| Problem::invalid(Fault::at("/day", fault.detail)))?;
    let store = &request.app.store;
    let found = store.message_day(row.id, day).await?.unwrap_or(DayRow {
        day,
        counts: DayCounts::default(),
        drained_at: None,
        dropped_at: None,
    });
    let mut view = day_view(&found);
    if found.counts == DayCounts::default() {
        view.state = "scheduled".to_owned();
    }
    let buckets = store.day_buckets(row.id, day).await?;
    view.buckets = Some(buckets.into_iter().map(bucket_view).collect());
    ok(&view)
}
