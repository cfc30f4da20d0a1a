//! The answers of handlers: a status, and a body of JSON.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use heddle_api::List;
use heddle_store::change::Page;
use serde::Serialize;

use super::Outcome;
use crate::problem::Problem;

/// An answer with a JSON body.
pub fn answer(status: StatusCode, body: &impl Serialize) -> Outcome {
    let body = serde_json::to_vec(body).map_err(|error| Problem::internal(&error))?;
    Ok(answer_bytes(status, body.into()))
}

/// An answer with a body that is JSON.
pub fn answer_bytes(status: StatusCode, body: bytes::Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// 200 with a JSON body.
pub fn ok(body: &impl Serialize) -> Outcome {
    answer(StatusCode::OK, body)
}

/// 200 with a named object as the API shows it, or 404.
pub fn found<R, T: Serialize>(row: Option<R>, what: &str, name: &str, shown: impl FnOnce(R) -> T) -> Outcome {
    match row {
        Some(row) => ok(&shown(row)),
        None => Err(Problem::not_found(what, name)),
    }
}

/// 200 with a page of a list, each item as the API shows it.
pub fn list_of<R, T: Serialize>(page: Page<R>, shown: impl FnMut(R) -> T) -> Outcome {
    ok(&List {
        items: page.items.into_iter().map(shown).collect(),
        next_cursor: page.next,
    })
}

/// 201 if something was created, otherwise 200.
pub fn put(created: bool, body: &impl Serialize) -> Outcome {
    answer(if created { StatusCode::CREATED } else { StatusCode::OK }, body)
}

pub fn no_content() -> Outcome {
    Ok(StatusCode::NO_CONTENT.into_response())
}
