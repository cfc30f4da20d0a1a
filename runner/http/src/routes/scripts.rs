//! Scripts: uploading, versions, trying them out.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use heddle_api::{
    ActivateRequest, FetchRequest, INVOKE_TIMEOUT_MAX, Invocation, InvokeRequest, List, Script, ScriptVersion,
};
use heddle_domain::bounded::or_trouble;
use heddle_domain::schema::Schema;
use heddle_domain::spec::validate::task::no_active_version;
use heddle_domain::{Faults, Name, Time};
use heddle_engine::scripts::{Language, MAX_SOURCE_BYTES, digest_of};
use heddle_store::script::{Activate, ScriptDelete, ScriptRow, ScriptVersionRow};
use serde_json::Value;

use crate::access::Access;
use crate::adapter;
use crate::adapter::scripts::InvokeSpec;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, no_content, ok};
use crate::sent::reserved;
use crate::table::{Method, Pace, Route, too_many_uploads, upload_slot};

/// How long an invocation may take, unless it says otherwise.
const INVOKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

fn version_of(row: ScriptVersionRow, active_version: Option<i32>) -> ScriptVersion {
    ScriptVersion {
        active: active_version == Some(row.version),
        name: row.name,
        version: row.version,
        digest: row.digest,
        world: row.world,
        runtime: row.runtime,
        runtime_tag: row.runtime_tag,
        exports: row.exports,
        params_schema: row.params_schema,
        defaults: row.defaults,
        description: row.description,
        size: row.size,
        created_at: row.created_at.into(),
        imports: None,
        compile_ms: None,
    }
}

fn script_of(script: ScriptRow, version: ScriptVersionRow) -> Script {
    Script {
        active_version: script.active_version,
        latest_version: script.last_version,
        updated_at: script.updated_at.into(),
        version: version_of(version, script.active_version),
    }
}

/// What each route is called, takes and answers.
#[expect(clippy::too_many_lines, reason = "a list: an entry for each route")]
pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/scripts", Access::View, "List scripts", list)
            .list()
            .answers(200, of::<List<Script>>()),
        Route::new(
            Method::Put,
            "/v1/scripts/{name}",
            Access::Author,
            "Upload a version",
            upload,
        )
        .detail(
            "The body is a component for the world `heddle:task/task` or `heddle:task/consumer`, or a WASI \
                command, as binary or as WebAssembly text. Or it is source text: with `Content-Type: text/javascript` \
                or `text/typescript` a module that exports `default function run(params, ctx)`, with `text/x-python` \
                a module that has `def run(params, ctx)`. If the source has an error, `errors[0]` has its `line`, its \
                `column` and the line as `source`. If the body is the same as the newest version, no new version is \
                created, unless that version was checked with another runtime.",
        )
        .flag("activate", "`false`: do not activate the new version. Default: `true`.")
        .takes_as("application/wasm", "Wasm")
        .takes_as("text/javascript", "Source")
        .takes_as("text/typescript", "Source")
        .takes_as("text/x-python", "Source")
        .answers_put(of::<ScriptVersion>())
        .problem(
            413,
            "The body has more than 64 MiB of wasm, or more than 1 MiB of source text.",
        )
        .problem(
            422,
            "The body is not a valid script, or source text in another language; `detail` says what is wrong.",
        )
        .pace(Pace::Uploads),
        Route::new(Method::Get, "/v1/scripts/{name}", Access::View, "Get a script", get).answers(200, of::<Script>()),
        Route::new(
            Method::Delete,
            "/v1/scripts/{name}",
            Access::Author,
            "Delete a script",
            delete,
        )
        .detail(
            "If the name is used again, the version numbers continue. So a version number never means other \
                code.",
        )
        .answers_empty(204)
        .problem(409, "Groups or topics use the script; `detail` names them."),
        Route::new(
            Method::Get,
            "/v1/scripts/{name}/versions",
            Access::View,
            "List versions",
            versions,
        )
        .list()
        .answers(200, of::<List<ScriptVersion>>()),
        Route::new(
            Method::Get,
            "/v1/scripts/{name}/versions/{version}",
            Access::View,
            "Get a version",
            version,
        )
        .answers(200, of::<ScriptVersion>()),
        Route::new(
            Method::Get,
            "/v1/scripts/{name}/versions/{version}/wasm",
            Access::View,
            "Download the wasm of a \
            version",
            wasm,
        )
        .detail("The wasm as it was uploaded. 404 for a version that was uploaded as source text.")
        .answers_as(200, "application/wasm", "Wasm")
        .answers_empty(304),
        Route::new(
            Method::Get,
            "/v1/scripts/{name}/versions/{version}/source",
            Access::View,
            "Get the source text of \
            a version",
            source,
        )
        .detail("The text as it was uploaded. 404 for a version that was uploaded as wasm.")
        .answers_as(200, "text/javascript", "Source")
        .answers_as(200, "text/typescript", "Source")
        .answers_as(200, "text/x-python", "Source")
        .answers_empty(304),
        Route::new(
            Method::Post,
            "/v1/scripts/{name}/invoke",
            Access::Try,
            "Run a script once without creating a run",
            invoke,
        )
        .takes(of::<InvokeRequest>())
        .optional()
        .answers(200, of::<Invocation>())
        .problem(409, "The body names no version, and none is active.")
        .problem(422, "The params do not match the script's schema.")
        .pace(Pace::Waits),
        Route::new(
            Method::Put,
            "/v1/scripts/{name}/active",
            Access::Author,
            "Activate a version",
            activate,
        )
        .takes(of::<ActivateRequest>())
        .answers(200, of::<Script>()),
        Route::new(
            Method::Post,
            "/v1/scripts/{name}/fetch",
            Access::Author,
            "Upload a version from a URL",
            fetch,
        )
        .detail(
            "The node downloads the URL itself, if its outbound policy allows it. The `Content-Type` of the answer says \
                which language it is in. If it names none, the end of the URL's path says it: .js, .mjs, .ts, .mts, .py. \
                Everything else has to be wasm.",
        )
        .flag("activate", "`false`: do not activate the new version. Default: `true`.")
        .takes(of::<FetchRequest>())
        .answers(201, of::<ScriptVersion>())
        .answers(200, of::<ScriptVersion>())
        .problem(403, "The outbound policy does not allow the URL.")
        .problem(422, "The content has another digest, or it is not a valid script.")
        .pace(Pace::Uploads),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.scripts(request.cursor(), request.limit()?).await?;
    let items = page
        .items
        .into_iter()
        .map(|(script, version)| script_of(script, version))
        .collect();
    ok(&List {
        items,
        next_cursor: page.next,
    })
}

async fn upload(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let activate = request.flag("activate", true)?;
    // Without a language it has to be wasm, whatever the sender calls it, so the compiler says what else it is.
    let language = Language::of_media_type(&adapter::scripts::media_type(request.headers.get(header::CONTENT_TYPE)));
    let bytes_max = match language {
        Some(_) => MAX_SOURCE_BYTES,
        None => request.app.config.script_bytes_max,
    };
    let bytes = request.bytes(bytes_max).await?;
    store(&mut request, &name, bytes, language, activate).await
}

/// Waits for the interpreter of a text. Compiling it may take minutes, and another upload may not need it: so this upload
/// gives its slot back meanwhile, and only then waits for one again.
async fn interpreter(request: &mut Request, language: Language) -> Result<(), Problem> {
    let app = request.app.clone();
    if app.engine.sandbox().has_interpreter(language) {
        return Ok(());
    }
    let waits = app.interpreter_waits.try_take(&request.caller.actor);
    let _waits = waits.ok_or_else(too_many_uploads)?;
    drop(request.upload_slot.take());
    adapter::scripts::prepare(&app.engine, language).await?;
    request.upload_slot = Some(upload_slot(&app, &request.caller.actor).await?);
    Ok(())
}

async fn store(
    request: &mut Request,
    name: &Name,
    bytes: Bytes,
    language: Option<Language>,
    activate: bool,
) -> Outcome {
    if bytes.is_empty() {
        return Err(Problem::invalid_at("", "the body is empty; a script was expected"));
    }
    if let Some(language) = language {
        interpreter(request, language).await?;
    }
    let actor = request.caller.actor.clone();
    let at = match language {
        Some(_) => first_upload(request, &bytes).await?,
        None => request.now,
    };
    let begun = request.app.clock.now();
    let compiled = adapter::scripts::compile(&request.app.engine, bytes.clone(), at, language, actor).await?;
    let took = request.app.clock.now() - begun;
    let put = adapter::scripts::put(&request.app.engine, request.by(), name, &bytes, compiled, activate).await?;
    let (script, version) = put.row;
    let imports = imports_of(request, &version).await;
    let version = ScriptVersion {
        imports,
        compile_ms: Some(took.num_milliseconds()),
        ..version_of(version, script.active_version)
    };
    crate::request::put(put.created, &version)
}

/// When the bytes of a text were uploaded for the first time. If that is this upload, it is the `created_at` that their
/// version gets.
async fn first_upload(request: &Request, bytes: &[u8]) -> Result<Time, Problem> {
    let digest = digest_of(bytes);
    let known = request
        .app
        .store
        .blob_created_at(digest.trim_start_matches("sha256:"))
        .await?;
    Ok(known.unwrap_or(request.now))
}

async fn find(request: &Request) -> Result<ScriptRow, Problem> {
    let name = request.name("name", "script")?;
    request
        .app
        .store
        .script(&name)
        .await?
        .ok_or_else(|| Problem::not_found("script", &name))
}

async fn find_version(
    request: &Request,
    script: &ScriptRow,
    version: Option<i32>,
) -> Result<ScriptVersionRow, Problem> {
    let missing = || match version {
        Some(version) => Problem::not_found("script version", &format!("{}@{version}", script.name)),
        None => Problem::not_found("script", &script.name),
    };
    request
        .app
        .store
        .script_version(&script.name, version)
        .await?
        .ok_or_else(missing)
}

async fn get(request: Request) -> Outcome {
    let script = find(&request).await?;
    let version = find_version(&request, &script, None).await?;
    ok(&script_of(script, version))
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "script")?;
    match request.app.store.delete_script(request.by(), &name).await? {
        ScriptDelete::Deleted => no_content(),
        ScriptDelete::Missing => Err(Problem::not_found("script", &name)),
        ScriptDelete::UsedBy { groups, topics } => {
            let users = [("group", groups), ("topic", topics)];
            let users: Vec<String> = users
                .iter()
                .filter(|(_, names)| !names.is_empty())
                .map(|(noun, names)| super::grants::quoted(noun, names))
                .collect();
            let users = users.join(" and ");
            Err(Problem::conflict(format!("the script `{name}` is used by {users}")))
        }
    }
}

async fn versions(request: Request) -> Outcome {
    let script = find(&request).await?;
    let page = request
        .app
        .store
        .script_versions(&script.name, request.cursor_as()?, request.limit()?)
        .await?;
    let items = page
        .items
        .into_iter()
        .map(|row| version_of(row, script.active_version))
        .collect();
    ok(&List {
        items,
        next_cursor: page.next,
    })
}

async fn version(request: Request) -> Outcome {
    let script = find(&request).await?;
    let version = request.id("version", "script version")?;
    let row = find_version(&request, &script, Some(version)).await?;
    let imports = imports_of(&request, &row).await;
    ok(&ScriptVersion {
        imports,
        ..version_of(row, script.active_version)
    })
}

/// What a version imports, as far as this node knows.
async fn imports_of(request: &Request, row: &ScriptVersionRow) -> Option<Vec<String>> {
    let digest = format!("sha256:{}", row.digest);
    request.app.engine.sandbox().imports(&digest).await
}

async fn wasm(request: Request) -> Outcome {
    let script = find(&request).await?;
    let version = request.id("version", "script version")?;
    let row = find_version(&request, &script, Some(version)).await?;
    if Language::of_world(&row.world).is_some() {
        let detail = format!(
            "`{}@{version}` was uploaded as source text, so it has no wasm; use `.../source`",
            script.name
        );
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    download(&request, &row, "application/wasm").await
}

async fn source(request: Request) -> Outcome {
    let script = find(&request).await?;
    let version = request.id("version", "script version")?;
    let row = find_version(&request, &script, Some(version)).await?;
    let Some(language) = Language::of_world(&row.world) else {
        let detail = format!(
            "`{}@{version}` was uploaded as wasm, so it has no source text; use `.../wasm`",
            script.name
        );
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    download(&request, &row, language.media_type()).await
}

async fn download(request: &Request, row: &ScriptVersionRow, media_type: &'static str) -> Outcome {
    let missing = || Problem::not_found("script version", &format!("{}@{}", row.name, row.version));
    let etag = format!("\"{}\"", row.digest);
    if request.has_already(&etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    // Before the bytes are read: many that are not sent yet may be more than this node has memory for.
    let memory = request
        .reserve_answer(usize::try_from(row.size).unwrap_or_default())
        .await?;
    let bytes = request.app.store.blob(&row.digest).await?.ok_or_else(missing)?.bytes;
    let headers = [(header::CONTENT_TYPE, media_type.to_owned()), (header::ETAG, etag)];
    Ok(reserved((headers, bytes).into_response(), memory))
}

/// What is wrong with params. The schema was checked when it was uploaded.
fn check_params(schema: &Value, params: &Value) -> Result<Faults, Problem> {
    let found = or_trouble(|| Schema::compile(schema).map(|schema| schema.check(params)))?
        .map_err(|error| Problem::conflict(format!("the schema of the script is not valid: {error}")))?;
    Ok(Faults(
        found.0.into_iter().map(|fault| fault.below("/params")).collect(),
    ))
}

async fn invoke(mut request: Request) -> Outcome {
    let script = find(&request).await?;
    let body: InvokeRequest = request.body().await?;
    let timeout = body.timeout.map_or(INVOKE_TIMEOUT_DEFAULT, |timeout| timeout.std());
    if timeout.is_zero() || timeout > INVOKE_TIMEOUT_MAX {
        let detail = format!(
            "`timeout` must be more than 0 and at most {}s",
            INVOKE_TIMEOUT_MAX.as_secs()
        );
        return Err(Problem::invalid_at("/timeout", detail));
    }
    let version = body
        .version
        .or(script.active_version)
        .ok_or_else(|| Problem::conflict(no_active_version(&script.name)))?;
    let found = request.app.store.script_version(&script.name, Some(version)).await?;
    let row = found.ok_or_else(|| {
        Problem::invalid_at(
            "/version",
            format!("there is no version {version} of `{}`", script.name),
        )
    })?;
    let mut params = row.defaults()?.clone();
    params.extend(body.params);
    let params = Value::Object(params);
    if let Some(schema) = &row.params_schema {
        let faults = check_params(schema, &params)?;
        if !faults.is_empty() {
            return Err(Problem::invalid(faults));
        }
    }
    let spec = InvokeSpec {
        script: row.name,
        version: row.version,
        params,
        timeout,
    };
    ok(&adapter::scripts::invoke(&request.app.engine, spec).await?)
}

async fn activate(mut request: Request) -> Outcome {
    let name = request.name("name", "script")?;
    let body: ActivateRequest = request.body().await?;
    match request
        .app
        .store
        .activate_script(request.by(), &name, body.version)
        .await?
    {
        Activate::MissingScript => Err(Problem::not_found("script", &name)),
        Activate::MissingVersion => Err(Problem::invalid_at(
            "/version",
            format!("there is no version {} of `{name}`", body.version),
        )),
        Activate::Done(script) => {
            let version = find_version(&request, &script, Some(body.version)).await?;
            answer(StatusCode::OK, &script_of(script, version))
        }
    }
}

async fn fetch(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let activate = request.flag("activate", true)?;
    let body: FetchRequest = request.body().await?;
    let sha256 = body.sha256.trim().trim_start_matches("sha256:").to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Problem::invalid_at(
            "/sha256",
            "`sha256` must have 64 hexadecimal digits",
        ));
    }
    let (bytes, language) = adapter::scripts::fetch(&request.app.engine, body.url, sha256).await?;
    store(&mut request, &name, bytes, language, activate).await
}

#[cfg(test)]
mod tests {
    use heddle_engine::scripts::{Language, World};

    #[test]
    fn what_a_script_may_be_is_what_the_sandbox_knows() {
        let known = [
            World::Task.as_str(),
            World::Consumer.as_str(),
            World::CommandP1.as_str(),
            World::CommandP2.as_str(),
            Language::JavaScript.world(),
            Language::TypeScript.world(),
            Language::Python.world(),
        ];
        assert_eq!(heddle_api::WORLDS, known);
    }
}
