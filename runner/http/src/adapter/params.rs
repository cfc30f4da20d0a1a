//! Runs by their params.
//!
//! Params have no index, so the newest runs that match the other filters are searched, a bounded number at a time. If
//! the history is long, the answer has fewer runs than requested, and a cursor with which the next call searches
//! further back. Params are compared here, not in the database: they are stored as text, and a number must equal the
//! same number in another spelling.

use heddle_domain::framed;
use heddle_domain::id::RunId;
use heddle_engine::Engine;
use heddle_store::run::{RunFilter, RunRow};
use serde_json::Value;

use super::Refusal;
use super::cursor::before;

/// How many runs one call reads, and how many of them one statement reads.
pub(crate) const READ_MAX: usize = 2_000;
const PIECE: usize = 250;

/// The wanted value of a param; `None`: any, but it has to be given.
pub(crate) type Wanted = Vec<(String, Option<String>)>;

/// Runs with these params, newest first, up to `limit`, and where to continue.
pub(crate) async fn runs(
    engine: &Engine,
    wanted: &Wanted,
    filter: &mut RunFilter,
    limit: usize,
) -> Result<(Vec<RunRow>, Option<String>), Refusal> {
    let wanted = readings(wanted);
    let mut found = Vec::new();
    for _ in 0..READ_MAX.div_ceil(PIECE) {
        let page = engine.store().runs(filter, PIECE as i64).await?;
        for row in page.items {
            filter.before = Some(RunId(row.id));
            let Ok(params) = framed::read_params(&row.terms.params) else {
                continue;
            };
            if has(&Value::Object(params), &wanted) {
                found.push(row);
                if found.len() >= limit {
                    return Ok((found, filter.before.map(|before| before.to_string())));
                }
            }
        }
        // A page may be short, or empty, and be followed by another: it says itself where to look further.
        let Some(next) = page.next else {
            return Ok((found, None));
        };
        filter.before = Some(before(&next)?);
    }
    Ok((found, filter.before.map(|before| before.to_string())))
}

/// The possible meanings of a text: itself, and as JSON.
fn readings(wanted: &Wanted) -> Vec<(&str, Option<[Value; 2]>)> {
    let both = |text: &String| {
        let itself = Value::from(text.as_str());
        let read = serde_json::from_str(text).unwrap_or_else(|_| itself.clone());
        [itself, read]
    };
    wanted
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_ref().map(both)))
        .collect()
}

fn has(params: &Value, wanted: &[(&str, Option<[Value; 2]>)]) -> bool {
    wanted.iter().all(|(name, values)| {
        let given = params.get(name);
        match (given, values) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(given), Some(values)) => values.iter().any(|value| contains(given, value)),
        }
    })
}

/// Whether the given value contains all that is wanted: of objects the fields, of lists some element for each,
/// otherwise the same value.
fn contains(given: &Value, wanted: &Value) -> bool {
    match (given, wanted) {
        (Value::Object(given), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, value)| given.get(name).is_some_and(|given| contains(given, value))),
        (Value::Array(given), Value::Array(wanted)) => wanted
            .iter()
            .all(|value| given.iter().any(|given| contains(given, value))),
        // 5 and 5.0 are one number.
        (Value::Number(given), Value::Number(wanted)) => given == wanted || given.as_f64() == wanted.as_f64(),
        _ => given == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_means_itself_or_what_it_is_as_json() {
        let params = json!({"region": "eu", "days": 5, "zip": "5", "window": {"from": 1, "to": [1, 2]}, "off": null, "nul": "\u{0}"});
        let fits = |texts: &[&str]| {
            let wanted: Wanted = texts
                .iter()
                .map(|text| match text.split_once('=') {
                    Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                    None => ((*text).to_owned(), None),
                })
                .collect();
            has(&params, &readings(&wanted))
        };
        for texts in [
            &["region=eu"][..],
            &["region=\"eu\""],
            &["days=5"],
            &["days=5.0"],
            &["zip=5"],
            &["off"],
            &["off=null"],
            &["window={\"from\":1}"],
            &["window={\"to\":[2]}"],
            &["region=eu", "days=5"],
            &["window={\"to\":[1]}", "window={\"to\":[2]}"],
            &["nul=\u{0}"],
        ] {
            assert!(fits(texts), "{texts:?}");
        }
        for texts in [
            &["region=us"][..],
            &["Region=eu"],
            &["days=6"],
            &["days="],
            &["none"],
            &["window={\"from\":2}"],
            &["window={\"to\":[3]}"],
            &["region=eu", "days=6"],
            &["region=eu", "region=us"],
            &["region=us", "region=eu"],
        ] {
            assert!(!fits(texts), "{texts:?}");
        }
    }
}
