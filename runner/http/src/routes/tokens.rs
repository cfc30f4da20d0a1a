//! Tokens. A token's text is shown once, in the answer that makes it.

use axum::http::StatusCode;
use heddle_api::{List, MadeToken, NewToken, Token};
use heddle_domain::{Name, id};
use heddle_store::token::{TokenRow, TokenWrite};

use crate::access::{Access, TokenSpec, new_token, token_hash};
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, list_of, no_content, ok};
use crate::table::{Method, Route};

fn shown(row: TokenRow) -> Token {
    Token {
        id: row.id,
        name: row.name,
        role: row.role,
        queues: row.queues,
        uids: row.uids,
        expires_at: row.expires_at.map(Into::into),
        created_at: row.created_at.into(),
        last_used_at: row.last_used_at.map(Into::into),
    }
}

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
    list_of(page, shown)
}

async fn create(mut request: Request) -> Outcome {
    let spec = TokenSpec::read(&request.json().await?, request.now).map_err(Problem::invalid)?;
    let app = &request.app;
    let token = new_token(&*app.chance);
    let write = TokenWrite {
        id: id::uuid_v7(request.now, app.chance.bits()),
        name: &spec.name,
        hash: token_hash(&token),
        role: spec.role.as_str(),
        queues: &spec.queues,
        uids: &spec.uids,
        expires_at: spec.expires_at,
    };
    match app.store.create_token(request.by(), write).await? {
        Some(row) => answer(
            StatusCode::CREATED,
            &MadeToken {
                made: shown(row),
                token,
            },
        ),
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
    if given.contains('\0') {
        return Err(Problem::not_found("token", "with U+0000"));
    }
    request
        .app
        .store
        .token(&Name::sought(given))
        .await?
        .ok_or_else(|| Problem::not_found("token", given))
}

async fn get(request: Request) -> Outcome {
    ok(&shown(find(&request).await?))
}

async fn revoke(request: Request) -> Outcome {
    let row = find(&request).await?;
    if !request.app.store.revoke_token(request.by(), row.id).await? {
        return Err(Problem::not_found("token", &row.name));
    }
    request.app.forget_tokens();
    no_content()
}
