//! Offers: what audiences are offered, and when.

use std::collections::BinaryHeap;

use axum::http::StatusCode;
use heddle_domain::dispatch::{Offer, OfferKind, OfferSpec, check_audience};
use heddle_domain::schema::Schema;
use heddle_domain::{Fault, Faults, Name, Time};
use heddle_store::offer::{OfferDelete, OfferPut, OfferRow};
use serde::Serialize;
use serde_json::{Value, json};

use crate::access::Access;
use crate::moment::Moment;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, no_content, ok, put, typed};
use crate::shapes::List;
use crate::table::{Method, Route};

/// How far back occurrences are listed unless it is said.
const LISTED: chrono::TimeDelta = chrono::TimeDelta::days(7);

/// How many offers one list of occurrences is about.
const OFFERS_MAX: i64 = 1_000;

/// The longest stretch of time of one list.
const STRETCH_MAX: chrono::TimeDelta = chrono::TimeDelta::days(366);

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/offers", Access::View, "List offers", list)
            .list()
            .query("audience", "Only those to this audience.")
            .answers(200, "OfferList"),
        Route::new(Method::Post, "/v1/offers", Access::Operate, "Create an offer", create)
            .detail("Without `id` one is made up.")
            .takes_spec("OfferSpec")
            .answers(201, "Offer")
            .problem(
                409,
                "there is one of this id, or the audience has too many repeating offers",
            )
            .problem(422, "what is wrong, with pointers"),
        Route::new(
            Method::Get,
            "/v1/offers/occurrences",
            Access::View,
            "List due instants",
            occurrences,
        )
        .detail("Repeating offers are expanded. At most a year, and a thousand offers, at a time.")
        .list()
        .query("audience", "Only of offers to this audience.")
        .query("offer", "Only of this offer.")
        .query("from", "At or after; default seven days ago.")
        .query("to", "At or before; default now.")
        .answers(200, "OccurrenceList"),
        Route::new(
            Method::Put,
            "/v1/offers/{id}",
            Access::Operate,
            "Create or change an offer",
            save,
        )
        .detail("What is held of it stays as it was given.")
        .takes_spec("OfferSpec")
        .answers_put("Offer")
        .problem(
            409,
            "the audience has too many repeating offers, or the offer belongs to a task",
        )
        .problem(422, "what is wrong, with pointers"),
        Route::new(Method::Get, "/v1/offers/{id}", Access::View, "Get an offer", get).answers(200, "Offer"),
        Route::new(
            Method::Delete,
            "/v1/offers/{id}",
            Access::Operate,
            "Delete an offer",
            delete,
        )
        .detail("What is held of it stays, and may be completed.")
        .answers_empty(204)
        .problem(409, "it belongs to a task"),
    ]
}

/// An offer as the API shows it.
fn view(row: &OfferRow) -> Value {
    let mut view = json!({ "id": row.name });
    if let (Some(view), Value::Object(spec)) = (view.as_object_mut(), &row.spec) {
        view.extend(spec.iter().map(|(key, value)| (key.clone(), value.clone())));
        view.insert("created_at".into(), json!(Moment(row.created_at)));
        view.insert("updated_at".into(), json!(Moment(row.updated_at)));
        if let Some(run) = row.run {
            view.insert("run".into(), json!(run));
        }
    }
    view
}

async fn list(request: Request) -> Outcome {
    let page = request
        .app
        .store
        .offers(request.query("audience"), request.cursor(), request.limit()?)
        .await?;
    ok(&List {
        items: page.items.iter().map(view).collect::<Vec<_>>(),
        next_cursor: page.next,
    })
}

async fn create(mut request: Request) -> Outcome {
    let body = request.spec().await?;
    let id = match body.get("id").and_then(Value::as_str) {
        // Its path is the list's, so nobody could look at it again, or delete it.
        Some("occurrences") => return Err(Problem::invalid_at("/id", "no offer is called `occurrences`")),
        Some(id) => Name::new(id).map_err(|error| Problem::invalid_at("/id", error.to_string()))?,
        None => {
            let made = heddle_domain::id::uuid_v7(request.now, request.app.chance.bits()).to_string();
            Name::new(&made).map_err(|error| Problem::internal(&error))?
        }
    };
    let done = write(&request, &id, body, true).await?;
    answer(StatusCode::CREATED, &view(&done.0))
}

async fn save(mut request: Request) -> Outcome {
    let id = request.new_name("id")?;
    let body = request.spec().await?;
    let (row, created) = write(&request, &id, body, false).await?;
    put(created, &view(&row))
}

async fn write(request: &Request, id: &Name, mut body: Value, only_new: bool) -> Result<(OfferRow, bool), Problem> {
    if let Some(fields) = body.as_object_mut() {
        // What an answer says besides, so that an answer can be sent back.
        for field in ["created_at", "updated_at"] {
            fields.remove(field);
        }
        fields.retain(|_, value| !value.is_null());
    }
    let spec: OfferSpec = typed(body, "")?;
    super::grants::same_name(id, spec.id.as_ref().map(Name::as_str))?;
    let store = &request.app.store;
    // An instant that is left out stands for the creation, and goes on doing so.
    let before = store.offer(id).await?;
    let created_at = before.as_ref().map_or(request.now, |row| row.created_at);
    let template = spec.template.clone();
    let compiled = Offer::compile(spec, created_at);
    let mut faults = Faults::default();
    if let Err(found) = &compiled {
        found.0.iter().for_each(|fault| faults.push(fault.clone()));
    }
    if let Some(template) = template {
        match store.template(&template).await? {
            None => faults.add("/template", format!("there is no template `{template}`")),
            Some(row) => {
                let schema = Schema::compile(&row.schema).map_err(|error| Problem::invalid_at("/template", error))?;
                if let Ok(offer) = &compiled {
                    let params = schema.check(&Value::Object(offer.params.clone()));
                    params
                        .0
                        .into_iter()
                        .for_each(|fault| faults.push(fault.below("/params")));
                }
            }
        }
    }
    let offer = match compiled {
        Ok(offer) if faults.is_empty() => offer,
        _ => return Err(Problem::invalid(faults)),
    };
    let offers_max = request
        .app
        .dispatcher
        .as_ref()
        .map_or(0, |dispatcher| dispatcher.config().offers_max);
    match store
        .put_offer(request.by(), id, &offer, only_new, i64::from(offers_max))
        .await?
    {
        OfferPut::Done(done) => Ok((done.row, done.created)),
        OfferPut::Exists => Err(Problem::conflict(format!("there is an offer `{id}` already")).existing(id.as_str())),
        OfferPut::OfTask => Err(of_task(id)),
        OfferPut::NoTemplate => Err(Problem::invalid(Fault::at(
            "/template",
            "the template has been deleted meanwhile",
        ))),
        OfferPut::TooMany(count) => Err(Problem::conflict(format!(
            "`{}` has {count} repeating offers already, and may have {offers_max}",
            offer.audience
        ))),
    }
}

fn of_task(id: &str) -> Problem {
    Problem::conflict(format!(
        "the offer `{id}` belongs to a task of a run; control the run instead"
    ))
}

async fn get(request: Request) -> Outcome {
    let id = request.name("id", "offer")?;
    let row = request
        .app
        .store
        .offer(&id)
        .await?
        .ok_or_else(|| Problem::not_found("offer", &id))?;
    ok(&view(&row))
}

async fn delete(request: Request) -> Outcome {
    let id = request.name("id", "offer")?;
    match request.app.store.delete_offer(request.by(), &id).await? {
        OfferDelete::Deleted => no_content(),
        OfferDelete::Missing => Err(Problem::not_found("offer", &id)),
        OfferDelete::OfTask => Err(of_task(&id)),
    }
}

#[derive(Serialize)]
struct OccurrenceView {
    offer: String,
    kind: OfferKind,
    audience: String,
    occurrence: Moment,
    /// As in the offer: a number or `each`.
    dispatch_times: Value,
    taken: i32,
    completed: i32,
    failed: i32,
    left: Option<i32>,
    enabled: bool,
}

/// A cursor is the last occurrence in microseconds and its offer's number.
fn parse_cursor(request: &Request) -> Result<Option<(Time, i64)>, Problem> {
    let wrong = || Problem::malformed("`cursor` is what `next_cursor` said");
    let Some(text) = request.cursor() else { return Ok(None) };
    // From the end: what was due before 1970 has a sign.
    let (at, offer) = text.rsplit_once('-').ok_or_else(wrong)?;
    let at = at
        .parse()
        .ok()
        .and_then(chrono::DateTime::from_timestamp_micros)
        .ok_or_else(wrong)?;
    Ok(Some((at, offer.parse().map_err(|_| wrong())?)))
}

async fn occurrences(request: Request) -> Outcome {
    let limit = request.limit()? as usize;
    let to = request.query_time("to")?.unwrap_or(request.now);
    let from = request.query_time("from")?.unwrap_or(to - LISTED);
    if to < from {
        return Err(Problem::invalid(Fault::at("/to", "`to` is before `from`")));
    }
    if to - from > STRETCH_MAX {
        return Err(Problem::invalid(Fault::at(
            "/from",
            "at most 366 days are listed at a time",
        )));
    }
    let audience = request.query("audience");
    if let Some(audience) = audience {
        check_audience(audience).map_err(|detail| Problem::invalid(Fault::at("/audience", detail)))?;
    }
    let cursor = parse_cursor(&request)?;
    let store = &request.app.store;
    let rows = match request.query_name("offer") {
        Some(id) => store
            .offer(&id)
            .await?
            .into_iter()
            .filter(|row| audience.is_none_or(|a| a == row.audience))
            .collect(),
        None => store.offers(audience, None, OFFERS_MAX).await?.items,
    };
    let mut offers = Vec::with_capacity(rows.len());
    for row in rows {
        let spec: OfferSpec = typed(row.spec.clone(), "")?;
        offers.push((Offer::compile(spec, row.starts_at).map_err(Problem::invalid)?, row));
    }
    // The heads of all offers in one heap: as many are reckoned as are listed.
    let start = cursor.map_or(from, |(at, _)| at.max(from));
    let mut heads = BinaryHeap::new();
    for (index, (offer, row)) in offers.iter().enumerate() {
        let mut first = offer.first_from(start);
        if cursor.is_some_and(|(at, id)| first == Some(at) && row.id <= id) {
            first = first.and_then(|first| offer.next_after(first));
        }
        if let Some(first) = first.filter(|first| *first <= to) {
            heads.push(std::cmp::Reverse((first, row.id, index)));
        }
    }
    let mut found = Vec::new();
    while let Some(std::cmp::Reverse((at, id, index))) = heads.pop() {
        if found.len() > limit {
            break;
        }
        found.push((at, id, index));
        if let Some(next) = offers[index].0.next_after(at).filter(|next| *next <= to) {
            heads.push(std::cmp::Reverse((next, id, index)));
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = match found.last() {
        Some((at, id, _)) if more => Some(format!("{}-{id}", at.timestamp_micros())),
        _ => None,
    };
    let ids: Vec<i64> = offers.iter().map(|(_, row)| row.id).collect();
    let until = found.last().map_or(to, |last| last.0);
    let counts = store.occurrence_counts(&ids, start, until).await?;
    let items = found
        .into_iter()
        .map(|(at, id, index)| {
            let (offer, row) = &offers[index];
            let counts = counts.get(&(id, at)).copied().unwrap_or_default();
            OccurrenceView {
                offer: row.name.clone(),
                kind: offer.kind,
                audience: row.audience.clone(),
                occurrence: at.into(),
                dispatch_times: offer.stock.map_or("each".into(), Value::from),
                taken: counts.taken,
                completed: counts.completed,
                failed: counts.failed,
                left: offer.stock.map(|stock| (stock - counts.taken).max(0)),
                enabled: offer.enabled,
            }
        })
        .collect();
    ok(&List::<OccurrenceView> { items, next_cursor })
}
