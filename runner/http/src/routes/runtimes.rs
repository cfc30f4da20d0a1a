//! Runtimes of scripts that are text: which are kept, and retiring one.

use axum::http::StatusCode;
use heddle_api::{List, RecheckedScript, RetiredRuntime, Runtime, RuntimeState};
use heddle_domain::Fault;
use heddle_engine::scripts::Language;
use heddle_engine::{Recheck, Retirement};
use heddle_store::runtime::RuntimeRow;

use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, ok};
use crate::table::{Method, Pace, Route};

/// How many scripts a refusal names.
const NAMED_MAX: usize = 100;

fn shown(row: RuntimeRow, current: bool) -> Runtime {
    Runtime {
        current,
        state: match row.retired_at {
            None => RuntimeState::Kept,
            Some(_) => RuntimeState::Retired,
        },
        tag: row.tag,
        language: row.language,
        interpreter: row.interpreter,
        versions: row.versions,
        scripts: row.scripts,
        interface: row.interface,
        size: row.size,
        created_at: row.created_at.into(),
        retired_at: row.retired_at.map(Into::into),
    }
}

fn rechecked(script: Recheck) -> RecheckedScript {
    let result = match (&script.error, script.is_same()) {
        (Some(_), _) => "fails",
        (None, true) => "same",
        (None, false) => "changes",
    };
    RecheckedScript {
        name: script.name,
        version: script.version,
        result: result.to_owned(),
        changed: script.changed.into_iter().map(str::to_owned).collect(),
        error: script.error,
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/runtimes",
            Access::View,
            "List the runtimes of scripts that are source text",
            list,
        )
        .detail("The runtimes with which scripts were checked, by tag.")
        .list()
        .answers(200, of::<List<Runtime>>()),
        Route::new(
            Method::Post,
            "/v1/runtimes/{tag}/retire",
            Access::Admin,
            "Retire a runtime",
            retire,
        )
        .detail(
            "From then on, the scripts of this runtime run on the current runtime (that of the node that \
                answers), on all nodes and without a restart. First, the script versions in use (active versions, \
                versions that groups and topics name, versions that active runs resolved) are checked with the \
                current runtime.",
        )
        .flag(
            "force",
            "`true`: retire it even if scripts would change or would no longer be accepted, or if it is of a newer \
                version of Heddle. Default: `false`.",
        )
        .answers(200, of::<RetiredRuntime>())
        .problem(
            409,
            "It is the current runtime; or it is of a newer version of Heddle, and this node cannot use it; or \
                scripts would change or would no longer be accepted, and `errors` names them.",
        )
        .pace(Pace::Waits),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.runtimes(request.cursor(), request.limit()?).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for row in page.items {
        let language = Language::ALL
            .into_iter()
            .find(|language| language.as_str() == row.language);
        let current = match language {
            Some(language) => request.app.engine.own_runtime(language).await?.tag == row.tag,
            None => false,
        };
        items.push(shown(row, current));
    }
    ok(&List {
        items,
        next_cursor: page.next,
    })
}

async fn retire(request: Request) -> Outcome {
    let tag = request.name("tag", "runtime")?;
    let force = request.flag("force", false)?;
    let retired = request.app.engine.retire_runtime(request.by(), &tag, force).await?;
    match retired {
        Retirement::Done {
            versions,
            onto,
            scripts,
        } => answer(
            StatusCode::OK,
            &RetiredRuntime {
                tag: tag.to_string(),
                moved_to: onto.tag,
                versions,
                scripts: scripts.into_iter().map(rechecked).collect(),
            },
        ),
        Retirement::Missing => Err(Problem::not_found("runtime", &tag)),
        Retirement::Current => Err(Problem::conflict(format!(
            "`{tag}` is the runtime of this version of Heddle; it can be retired only by a version with a newer \
            runtime"
        ))),
        Retirement::Newer(why) => Err(Problem::conflict(format!(
            "this node cannot use the runtime `{tag}`: {why}. Retired here, it would move its scripts to the older \
            runtime of this node, on all nodes (`force` retires it anyway, after a return to this version for good)"
        ))),
        Retirement::Contended => Err(Problem::conflict(format!(
            "scripts on the runtime `{tag}` were uploaded or activated during the check; try again"
        ))),
        Retirement::Refused(scripts) => Err(refused(&tag, &scripts)),
    }
}

fn refused(tag: &str, scripts: &[Recheck]) -> Problem {
    let named: Vec<String> = scripts.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = match scripts.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let detail = format!(
        "without the runtime `{tag}`, these scripts would change or would no longer be accepted (`force` retires it \
        anyway): {}{more}",
        named.join("; ")
    );
    let mut problem = Problem::conflict(detail);
    problem.errors = named.into_iter().map(|script| Fault::at("", script)).collect();
    problem
}
