//! Filters of runs as people write them, and what the store makes of them. The type of the wire is the same in the query of a
//! list and in the body of a control of many runs; only errors differ ([`Place`]).

use std::fmt;
use std::str::FromStr;

use heddle_api::moment::parse_moment;
use heddle_api::{ID_CHARS_MIN, RunFilter as Given, Words};
use heddle_domain::{Name, Time};
use heddle_store::run::RunFilter;
use uuid::Uuid;

use crate::adapter::params::Wanted;
use crate::problem::Problem;
use crate::request::{Request, moment_in};

/// Where a filter is written.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the query. The pointer of an error is the parameter. A name that no object can have is no error: it must not mean
    /// all objects, and the list is empty.
    Query,
    /// In the field `filter` of a body. Each word that says nothing is an error: a filter that finds nothing stops no
    /// bleeding, and one that says nothing means everything.
    Body,
}

/// The words of a field, each of which may be several with commas.
fn each(words: &Words) -> impl Iterator<Item = &str> {
    words.0.iter().flat_map(|words| words.split(',')).map(str::trim)
}

impl Place {
    fn pointer(self, key: &str) -> String {
        match self {
            Self::Query => format!("/{key}"),
            Self::Body => format!("/filter/{key}"),
        }
    }

    fn words<T: FromStr<Err: fmt::Display>>(self, given: &Words, key: &str) -> Result<Vec<T>, Problem> {
        each(given)
            .map(|word| {
                word.parse::<T>()
                    .map_err(|error| Problem::invalid_at(self.pointer(key), error.to_string()))
            })
            .collect()
    }

    fn names(self, given: &Words, key: &str) -> Result<Vec<String>, Problem> {
        match self {
            Self::Query => Ok(each(given).map(Name::sought).collect()),
            Self::Body => Ok(self.words::<Name>(given, key)?.into_iter().map(String::from).collect()),
        }
    }

    fn time(self, given: Option<&str>, key: &str) -> Result<Option<Time>, Problem> {
        given
            .map(|text| match self {
                Self::Query => moment_in(key, text),
                Self::Body => parse_moment(text).map_err(|error| Problem::invalid_at(self.pointer(key), error)),
            })
            .transpose()
    }
}

/// A filter of the wire, checked.
fn checked(given: Given, place: Place) -> Result<RunFilter, Problem> {
    // By name, so that no new field is forgotten.
    let Given {
        group,
        state,
        trigger,
        label,
        labels,
        key,
        from,
        to,
        logical_from,
        logical_to,
        ids,
        queue,
        script,
        backfill,
    } = given;
    let written = label.0.iter().map(|label| parse_label(label));
    let valued = labels.into_iter().map(|(name, value)| (name, Some(value)));
    Ok(RunFilter {
        groups: place.names(&group, "group")?,
        states: place.words(&state, "state")?,
        triggers: place.words(&trigger, "trigger")?,
        labels: written.chain(valued).collect(),
        key,
        from: place.time(from.as_deref(), "from")?,
        to: place.time(to.as_deref(), "to")?,
        logical_from: place.time(logical_from.as_deref(), "logical_from")?,
        logical_to: place.time(logical_to.as_deref(), "logical_to")?,
        ids,
        queues: place.names(&queue, "queue")?,
        scripts: each(&script).map(script_sought).collect(),
        source: backfill,
        before: None,
        id_range: None,
        ended_since: None,
    })
}

/// The filter in the body of a control. It must say something.
pub(super) fn of_body(given: Given) -> Result<RunFilter, Problem> {
    let filter = checked(given, Place::Body)?;
    if filter == RunFilter::default() {
        return Err(Problem::invalid_at(
            "/filter",
            "the filter must not be empty, because it would match all runs",
        ));
    }
    Ok(filter)
}

/// The filter in the query of a list, without [`params_of_query`].
pub(super) fn of_query(request: &Request) -> Result<RunFilter, Problem> {
    let words = |key: &str| -> Words { request.query_all(key).into_iter().collect() };
    let text = |key: &str| request.query(key).map(str::to_owned);
    let given = Given {
        group: words("group"),
        state: words("state"),
        trigger: words("trigger"),
        label: values(request, "label").collect(),
        key: text("key"),
        from: text("from"),
        to: text("to"),
        logical_from: text("logical_from"),
        logical_to: text("logical_to"),
        queue: words("queue"),
        script: words("script"),
        ..Given::default()
    };
    let mut filter = checked(given, Place::Query)?;
    filter.id_range = request.query("id").map(id_range).transpose()?;
    filter.source = request.query_as("backfill", "the id of a backfill, a UUID")?;
    Ok(filter)
}

/// The params in the query of a list. A control of many runs has no such filter, because one call looks for params only among
/// a limited number of runs.
pub(super) fn params_of_query(request: &Request) -> Wanted {
    values(request, "param").map(parse_param).collect()
}

/// All values of a query parameter that is given several times. A comma is a part of the value.
fn values<'r>(request: &'r Request, key: &'static str) -> impl Iterator<Item = &'r str> {
    let given = request.query.iter();
    given
        .filter(move |(name, value)| name == key && !value.is_empty())
        .map(|(_, value)| value.as_str())
}

/// `name=value`, `name:value` or `name`.
pub(super) fn parse_label(text: &str) -> (String, Option<String>) {
    match text.split_once('=').or_else(|| text.split_once(':')) {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    }
}

fn parse_param(text: &str) -> (String, Option<String>) {
    match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    }
}

/// `name` or `name@version`, with the name in its stored form.
fn script_sought(text: &str) -> String {
    match text.split_once('@') {
        Some((name, version)) => format!("{}@{version}", Name::sought(name)),
        None => Name::sought(text),
    }
}

/// The first and the last id that begin with these characters.
fn id_range(prefix: &str) -> Result<(Uuid, Uuid), Problem> {
    let digits: String = prefix.chars().filter(|letter| *letter != '-').collect();
    let whole = digits.len() <= 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !whole || digits.len() < ID_CHARS_MIN {
        let detail = format!("`id` must be at least the first {ID_CHARS_MIN} characters of a UUID");
        return Err(Problem::invalid_at("/id", detail));
    }
    let filled = |with: &str| Uuid::parse_str(&format!("{digits}{}", with.repeat(32 - digits.len())));
    match (filled("0"), filled("f")) {
        (Ok(first), Ok(last)) => Ok((first, last)),
        _ => Err(Problem::invalid_at("/id", "`id` must be the beginning of a UUID")),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use heddle_domain::state::{RunState, Trigger};
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<RunFilter, Problem> {
        of_body(crate::request::typed(value, "/filter")?)
    }

    #[test]
    fn a_bulk_filter_says_which() {
        assert_eq!(read(json!({})).unwrap_err().errors[0].pointer, "/filter");
        let filter = read(json!({"group": "g", "state": ["running", "paused"], "label": "a=b"})).unwrap();
        assert_eq!(filter.groups, ["g"]);
        assert_eq!(filter.states, [RunState::Running, RunState::Paused]);
        assert_eq!(filter.labels, [("a".to_owned(), Some("b".to_owned()))]);
        let filter = read(json!({"group": ["g, e\u{301}", "h"], "state": "running,failed"})).unwrap();
        assert_eq!(filter.groups, ["g", "\u{e9}", "h"]);
        assert_eq!(filter.states, [RunState::Running, RunState::Failed]);
        let filter = read(json!({"script": ["e\u{301}@1, b"]})).unwrap();
        assert_eq!(filter.scripts, ["\u{e9}@1", "b"]);
        for nobody in ["", ",", "g,", "a b", "a/b"] {
            let problem = read(json!({"group": nobody, "state": "running"})).unwrap_err();
            assert_eq!(problem.errors[0].pointer, "/filter/group", "{nobody}");
        }
        assert_eq!(
            read(json!({"state": "runing"})).unwrap_err().errors[0].pointer,
            "/filter/state"
        );
        assert_eq!(
            read(json!({"stat": "x"})).unwrap_err().errors[0].pointer,
            "/filter/stat"
        );
    }

    /// Each field of the wire, in both places.
    #[test]
    fn a_filter_means_the_same_in_a_query_and_in_a_body() {
        let (instant, id) = ("2026-11-20T08:00:00.000000Z", "0199f5a0-0000-7000-8000-000000000000");
        let given: Given = serde_json::from_value(json!({
            "group": "g", "state": "failed", "trigger": "manual", "label": ["a=b", "c"], "labels": {"d": "e"}, "key": "k",
            "from": instant, "to": instant, "logical_from": instant, "logical_to": instant, "ids": [id], "queue": "q",
            "script": "s@1", "backfill": id,
        }))
        .unwrap();
        let (at, id): (Time, Uuid) = (instant.parse().unwrap(), id.parse().unwrap());
        let expect = RunFilter {
            groups: vec!["g".into()],
            states: vec![RunState::Failed],
            triggers: vec![Trigger::Manual],
            labels: vec![
                ("a".into(), Some("b".into())),
                ("c".into(), None),
                ("d".into(), Some("e".into())),
            ],
            from: Some(at),
            to: Some(at),
            logical_from: Some(at),
            logical_to: Some(at),
            before: None,
            ids: vec![id],
            id_range: None,
            queues: vec!["q".into()],
            scripts: vec!["s@1".into()],
            source: Some(id),
            key: Some("k".into()),
            ended_since: None,
        };
        for place in [Place::Query, Place::Body] {
            assert_eq!(checked(given.clone(), place).unwrap(), expect);
        }
    }

    #[test]
    fn an_error_has_the_place_of_the_filter() {
        let of = |field: &str, text: &str, place: Place| {
            let given: Given = serde_json::from_value(json!({ field: text })).unwrap();
            checked(given, place)
        };
        for field in ["state", "trigger"] {
            let (query, body) = (of(field, "x", Place::Query), of(field, "x", Place::Body));
            let (query, body) = (query.unwrap_err(), body.unwrap_err());
            assert_eq!(query.errors[0].pointer, format!("/{field}"));
            assert_eq!(body.errors[0].pointer, format!("/filter/{field}"));
            assert_eq!(query.status, StatusCode::UNPROCESSABLE_ENTITY);
            assert_eq!(query.errors[0].detail, body.errors[0].detail);
        }
        for field in ["from", "to", "logical_from", "logical_to"] {
            let query = of(field, "noon", Place::Query).unwrap_err();
            assert_eq!((query.status, query.errors.len()), (StatusCode::BAD_REQUEST, 0));
            assert!(query.detail.starts_with(&format!("`{field}`: `noon`")), "{query:?}");
            let body = of(field, "noon", Place::Body).unwrap_err();
            assert_eq!(body.errors[0].pointer, format!("/filter/{field}"));
        }
        for field in ["group", "queue"] {
            assert!(of(field, "a b", Place::Query).is_ok(), "nothing has that name");
            let body = of(field, "a b", Place::Body).unwrap_err();
            assert_eq!(body.errors[0].pointer, format!("/filter/{field}"));
        }
        for place in [Place::Query, Place::Body] {
            assert_eq!(of("script", "a b", place).unwrap().scripts, ["a b"]);
        }
    }

    #[test]
    fn labels_are_read_in_three_ways() {
        assert_eq!(parse_label("a=b=c"), ("a".into(), Some("b=c".into())));
        assert_eq!(parse_label("a:b"), ("a".into(), Some("b".into())));
        assert_eq!(parse_label("a"), ("a".into(), None));
    }
}
