//! Offers: what audiences are offered, and when.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use heddle_api::{List, Occurrence, Offer, OfferSpec, OfferTerms};
use heddle_domain::bounded::or_trouble;
use heddle_domain::dispatch::{Offer as Compiled, check_audience, check_params, check_user};
use heddle_domain::schema::Schema;
use heddle_domain::spec::bounds::check_priority;
use heddle_domain::{Fault, Faults, Name, Time};
use heddle_store::Store;
use heddle_store::offer::{OccurrenceCounts, OfferDelete, OfferPut, OfferRow};
use serde::Deserialize;
use serde_json::Value;

use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, no_content, ok, put, typed};
use crate::table::{Method, Route};

/// How far back occurrences are listed unless it is said.
const LISTED: chrono::TimeDelta = chrono::TimeDelta::days(7);

/// How many offers a list of occurrences reads, altogether and with one statement.
const OFFERS_MAX: usize = 100_000;
const OFFERS_PAGE: i64 = 1_000;

/// The longest stretch of time of one list.
const STRETCH_MAX: chrono::TimeDelta = chrono::TimeDelta::days(366);

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/offers", Access::View, "List offers", list)
            .detail(
                "A page ends with the offer with which it has more than 4 MiB. Then it has fewer offers than `limit`, and \
                a `next_cursor`.",
            )
            .list()
            .query("audience", "Only offers to this audience.")
            .answers(200, of::<List<Offer>>()),
        Route::new(Method::Post, "/v1/offers", Access::Operate, "Create an offer", create)
            .detail("Without `id`, Heddle generates one.")
            .takes_spec(of::<OfferSpec>())
            .answers(201, of::<Offer>())
            .problem(
                409,
                "An offer with this id exists, or the audience has too many repeating offers.",
            )
            .problem(422, "The offer is not valid; `errors` has each error with its place."),
        Route::new(
            Method::Get,
            "/v1/offers/occurrences",
            Access::View,
            "List occurrences: the instants at which offers are due",
            occurrences,
        )
        .detail(
            "A repeating offer gives one item for each instant. The range is at most 366 days, and at most \
            100,000 offers may be due in it.",
        )
        .list()
        .query("audience", "Only occurrences of offers to this audience.")
        .query("offer", "Only occurrences of this offer.")
        .time(
            "from",
            "Only occurrences at or after this time. Default: seven days ago.",
        )
        .time("to", "Only occurrences at or before this time. Default: now.")
        .answers(200, of::<List<Occurrence>>()),
        Route::new(
            Method::Put,
            "/v1/offers/{id}",
            Access::Operate,
            "Create or change an offer",
            save,
        )
        .detail("Existing assignments of the offer do not change.")
        .takes_spec(of::<OfferSpec>())
        .answers_put(of::<Offer>())
        .problem(
            409,
            "The audience has too many repeating offers, or the offer belongs to a task.",
        )
        .problem(422, "The offer is not valid; `errors` has each error with its place."),
        Route::new(Method::Get, "/v1/offers/{id}", Access::View, "Get an offer", get).answers(200, of::<Offer>()),
        Route::new(
            Method::Delete,
            "/v1/offers/{id}",
            Access::Operate,
            "Delete an offer",
            delete,
        )
        .detail("Existing assignments of the offer stay, and users can complete them.")
        .answers_empty(204)
        .problem(409, "The offer belongs to a task."),
    ]
}

/// An offer as the API shows it: what is kept of it, its name and its times.
fn view(row: &OfferRow) -> Result<Offer, Problem> {
    Ok(Offer {
        id: row.name.clone(),
        terms: OfferTerms::deserialize(&row.spec).map_err(|error| Problem::internal(&error))?,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
        run: row.run,
    })
}

async fn list(request: Request) -> Outcome {
    let page = request
        .app
        .store
        .offers(request.query("audience"), request.cursor(), request.limit()?)
        .await?;
    ok(&List {
        items: page.items.iter().map(view).collect::<Result<_, _>>()?,
        next_cursor: page.next,
    })
}

async fn create(mut request: Request) -> Outcome {
    let body = request.spec().await?;
    let id = match body.get("id").and_then(Value::as_str) {
        // Its path would be that of the list, so nobody could read or delete it.
        Some("occurrences") => return Err(Problem::invalid_at("/id", "an offer cannot have the id `occurrences`")),
        Some(id) => Name::new(id).map_err(|error| Problem::invalid_at("/id", error.to_string()))?,
        None => {
            let made = heddle_domain::id::uuid_v7(request.now, request.app.chance.bits()).to_string();
            Name::new(&made).map_err(|error| Problem::internal(&error))?
        }
    };
    let done = write(&request, &id, body, true).await?;
    answer(StatusCode::CREATED, &view(&done.0)?)
}

async fn save(mut request: Request) -> Outcome {
    let id = request.new_name("id")?;
    let body = request.spec().await?;
    let (row, created) = write(&request, &id, body, false).await?;
    put(created, &view(&row)?)
}

/// What only a new spec is refused for: stored offers may be so, and can be read.
fn check_new(spec: &OfferSpec) -> Faults {
    let mut faults = Faults::default();
    // One error for an audience is enough.
    let user = check_audience(&spec.audience).map_or(Ok(()), |()| check_user(&spec.audience));
    for (pointer, checked) in [
        ("/audience", user),
        ("/priority", check_priority(spec.priority)),
        ("/params", check_params(&spec.params)),
    ] {
        if let Err(detail) = checked {
            faults.add(pointer, detail);
        }
    }
    faults
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
    super::grants::same_name_at("/id", id, spec.id.as_ref().map(Name::as_str))?;
    let store = &request.app.store;
    // A start that is left out is the time of creation, and keeps that value.
    let before = store.offer(id).await?;
    let created_at = before.as_ref().map_or(request.now, |row| row.created_at);
    let template = spec.template.clone();
    let new = check_new(&spec);
    let compiled = Compiled::compile(spec, created_at);
    let mut faults = Faults::default();
    if let Err(found) = &compiled {
        found.0.iter().for_each(|fault| faults.push(fault.clone()));
    }
    new.0.into_iter().for_each(|fault| faults.push(fault));
    if let Some(template) = template {
        match store.template(&template).await? {
            None => faults.add("/template", format!("there is no template `{template}`")),
            Some(row) => {
                let params = compiled.as_ref().ok().map(|offer| Value::Object(offer.params.clone()));
                let check = |schema: Schema| params.map(|params| schema.check(&params));
                let found = or_trouble(|| Schema::compile(&row.schema).map(check))?
                    .map_err(|fault| Problem::invalid_at("/template", fault.to_string()))?;
                for fault in found.unwrap_or_default().0 {
                    faults.push(fault.below("/params"));
                }
            }
        }
    }
    let offer = match compiled {
        Ok(offer) if faults.is_empty() => offer,
        _ => return Err(Problem::invalid(faults)),
    };
    let offers_max = request.app.dispatcher.config().offers_max;
    match store
        .put_offer(request.by(), id, &offer, only_new, i64::from(offers_max))
        .await?
    {
        OfferPut::Done(done) => Ok((done.row, done.created)),
        OfferPut::Exists => Err(Problem::conflict(format!("an offer `{id}` already exists")).existing(id.as_str())),
        OfferPut::OfTask => Err(of_task(id)),
        OfferPut::NoTemplate => Err(Problem::invalid(Fault::at(
            "/template",
            "the template was deleted in the meantime",
        ))),
        OfferPut::TooMany(count) => Err(Problem::conflict(format!(
            "`{}` already has {count} repeating offers; the maximum is {offers_max}",
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
    ok(&view(&row)?)
}

async fn delete(request: Request) -> Outcome {
    let id = request.name("id", "offer")?;
    match request.app.store.delete_offer(request.by(), &id).await? {
        OfferDelete::Deleted => no_content(),
        OfferDelete::Missing => Err(Problem::not_found("offer", &id)),
        OfferDelete::OfTask => Err(of_task(&id)),
    }
}

/// A cursor is the last occurrence in microseconds and its offer's number.
fn parse_cursor(request: &Request) -> Result<Option<(Time, i64)>, Problem> {
    let wrong = || Problem::malformed("`cursor` must be the `next_cursor` of an earlier answer");
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

/// From when to when occurrences are listed.
fn stretch(request: &Request) -> Result<(Time, Time), Problem> {
    let to = request.query_time("to")?.unwrap_or(request.now);
    let from = request.query_time("from")?.unwrap_or(to - LISTED);
    if to < from {
        return Err(Problem::invalid(Fault::at("/to", "`to` must not be before `from`")));
    }
    if to - from > STRETCH_MAX {
        return Err(Problem::invalid(Fault::at(
            "/from",
            "the range must be at most 366 days",
        )));
    }
    Ok((from, to))
}

/// An occurrence of an offer, with what became of it.
fn occurrence_of(offer: &Compiled, row: &OfferRow, at: Time, counts: OccurrenceCounts) -> Occurrence {
    Occurrence {
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
}

/// The first occurrences of many offers, one more than are listed: each offer that is read narrows the time in which those
/// of others are of interest.
struct FirstOccurrences {
    /// The last one of the page before: its instant, and its offer.
    after: Option<(Time, i64)>,
    from: Time,
    to: Time,
    limit: usize,
    first: BTreeMap<(Time, i64), Arc<(Compiled, OfferRow)>>,
}

impl FirstOccurrences {
    /// Adds an offer's; answers up to which instant occurrences are still of interest.
    fn add(&mut self, row: OfferRow) -> Result<Time, Problem> {
        let spec: OfferSpec = typed(row.spec.clone(), "")?;
        let id = row.id;
        let shown = Arc::new((Compiled::compile(spec, row.starts_at).map_err(Problem::invalid)?, row));
        let mut next = shown.0.first_from(self.from);
        while let Some(at) = next.filter(|at| *at <= self.to) {
            let listed = self.after.is_some_and(|last| (at, id) <= last);
            if !listed {
                if self.is_full() && self.first.last_key_value().is_some_and(|(last, _)| (at, id) > *last) {
                    break;
                }
                self.first.insert((at, id), shown.clone());
                if self.first.len() > self.limit + 1 {
                    self.first.pop_last();
                }
            }
            next = shown.0.next_after(at);
        }
        let last = self.first.last_key_value().filter(|_| self.is_full());
        Ok(last.map_or(self.to, |(last, _)| last.0))
    }

    fn is_full(&self) -> bool {
        self.first.len() > self.limit
    }

    /// Adds those of all offers, or of an audience's.
    async fn add_all(&mut self, store: &Store, audience: Option<&str>) -> Result<(), Problem> {
        let (mut behind, mut until, mut seen) = (0, self.to, 0);
        loop {
            let rows = store
                .offers_due(audience, (self.from, until), behind, OFFERS_PAGE)
                .await?;
            let full = rows.len() as i64 == OFFERS_PAGE;
            seen += rows.len();
            for row in rows {
                behind = row.id;
                until = self.add(row)?;
            }
            if !full {
                return Ok(());
            }
            if seen >= OFFERS_MAX {
                return Err(Problem::invalid(Fault::at(
                    "/audience",
                    format!(
                        "more than {OFFERS_MAX} offers can be due in this range; add `audience`, or use a shorter \
                        range"
                    ),
                )));
            }
        }
    }
}

async fn occurrences(request: Request) -> Outcome {
    let limit = request.limit()? as usize;
    let (from, to) = stretch(&request)?;
    let audience = request.query("audience");
    if let Some(audience) = audience {
        check_audience(audience).map_err(|detail| Problem::invalid(Fault::at("/audience", detail)))?;
    }
    let after = parse_cursor(&request)?;
    let store = &request.app.store;
    let start = after.map_or(from, |(at, _)| at.max(from));
    let mut occurrences = FirstOccurrences {
        after,
        from: start,
        to,
        limit,
        first: BTreeMap::new(),
    };
    match request.query_name("offer") {
        Some(id) => {
            let row = store.offer(&id).await?;
            if let Some(row) = row.filter(|row| audience.is_none_or(|audience| audience == row.audience)) {
                occurrences.add(row)?;
            }
        }
        None => occurrences.add_all(store, audience).await?,
    }
    let mut found: Vec<_> = occurrences.first.into_iter().collect();
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = match found.last() {
        Some(((at, id), _)) if more => Some(format!("{}-{id}", at.timestamp_micros())),
        _ => None,
    };
    let mut ids: Vec<i64> = found.iter().map(|((_, id), _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let until = found.last().map_or(to, |((at, _), _)| *at);
    let counts = store.occurrence_counts(&ids, start, until).await?;
    let items = found
        .into_iter()
        .map(|((at, id), shown)| {
            let (offer, row) = &*shown;
            occurrence_of(offer, row, at, counts.get(&(id, at)).copied().unwrap_or_default())
        })
        .collect::<Vec<_>>();
    ok(&List { items, next_cursor })
}
