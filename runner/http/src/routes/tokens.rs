//! Tokens. A token's text is shown once, in the answer that makes it.

use axum::http::StatusCode;
use heddle_api::{List, MadeToken, NewToken, Token};
use heddle_domain::Name;
use heddle_store::token::TokenRow;

use crate::access::{Access, TokenSpec, shown_token};
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, list_of, no_content, ok};
use crate::table::{Method, Route};

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/tokens",
            Access::Admin,
            "List tokens, without their values",
            list,
        )
        .list()
        .answers(200, of::<List<Token>>()),
        Route::new(
            Method::Post,
            "/v1/tokens",
            Access::Admin,
            "Create a token; its value is shown only once",
            create,
        )
        .takes(of::<NewToken>())
        .answers(201, of::<MadeToken>())
        .problem(409, "A token with this name exists."),
        Route::new(
            Method::Get,
            "/v1/tokens/{token}",
            Access::Admin,
            "Get a token by its id or name",
            get,
        )
        .answers(200, of::<Token>()),
        Route::new(
            Method::Delete,
            "/v1/tokens/{token}",
            Access::Admin,
            "Revoke a token, by its id or name",
            revoke,
        )
        .answers_empty(204),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.tokens(request.cursor(), request.limit()?).await?;
    list_of(page, shown_token)
}

async fn create(mut request: Request) -> Outcome {
    let spec = TokenSpec::read(&request.json().await?, request.now).map_err(Problem::invalid)?;
    let app = &request.app;
    match spec.create(&app.store, request.by(), &*app.chance).await? {
        Some(made) => answer(StatusCode::CREATED, &made),
        None => {
            let existing = app.store.token(&spec.name).await?;
            let problem = Problem::conflict(format!("a token `{}` already exists", spec.name));
            Err(match existing {
                Some(row) => problem.existing(row.id.to_string()),
                None => problem,
            })
        }
    }
}

async fn find(request: &Request) -> Result<TokenRow, Problem> {
    let given = request.part("token");
    request
        .app
        .store
        .token(&Name::sought(given))
        .await?
        .ok_or_else(|| Problem::not_found("token", given))
}

async fn get(request: Request) -> Outcome {
    ok(&shown_token(find(&request).await?))
}

async fn revoke(request: Request) -> Outcome {
    let row = find(&request).await?;
    if !request.app.store.revoke_token(request.by(), row.id).await? {
        return Err(Problem::not_found("token", &row.name));
    }
    request.app.forget_tokens();
    no_content()
}
