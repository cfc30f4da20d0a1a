//! Routes of groups: specs, revisions, the graph of links, next instants, enabling and disabling.

mod revisions;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use heddle_api::{
    Detached, DisableMode, DisableRequest, Graph, Group, List, Moment, NextInstant, Revision, Validation,
};
use heddle_domain::Name;
use heddle_domain::state::RunState;
use heddle_domain::topic::topic_of;
use heddle_engine::put_group::{Checked, GroupRefused, PutGroup, check_group, put_group, read_group};
use heddle_store::group::{GroupDelete, GroupFilter, GroupRow, GroupSwitch, IfMatch};
use serde_json::{Map, Value, json};

use self::revisions::{graph, revision, revisions};
use super::grants::quoted;
use super::run_filter::parse_label;
use crate::access::Access;
use crate::adapter;
use crate::adapter::next::NextInstants;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Route};

/// How many next instants may be asked for.
const NEXT_MAX: usize = 1_000;

/// How many next instants there are, unless it is asked for another number.
const NEXT_DEFAULT: usize = 5;

/// What each route is called, takes and answers.
#[expect(clippy::too_many_lines, reason = "a list: an entry for each route")]
pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/groups", Access::View, "List groups", list)
            .list()
            .query("category", "Only groups in this category.")
            .query(
                "q",
                "Only groups with this text in the name or description. Upper and lower case are the same.",
            )
            .query(
                "label",
                "Only groups with this label: `name=value`, or `name` for any value. Several labels must \
                all match.",
            )
            .query(
                "last_state",
                "Only groups whose latest run is in one of these states; `none`: groups without a \
                run. One answer examines 250 groups. So a page may have fewer groups than `limit`, or none, although \
                `next_cursor` continues.",
            )
            .flag(
                "enabled",
                "`true`: only enabled groups. `false`: only disabled groups. Default: all.",
            )
            .answers(200, of::<List<Group>>()),
        Route::new(
            Method::Put,
            "/v1/groups/{name}",
            Access::Operate,
            "Create or change a group",
            save,
        )
        .detail(
            "The body is the whole spec. Each change creates a new revision; the same spec creates none. Send \
                `If-Match` with the revision to refuse the change if somebody has changed the group since, or \
                `If-None-Match: *` to change no group that exists. Fields that only answers have (revision, times, \
                `next`) are ignored, so you can send a group as you have read it.",
        )
        .takes_spec(of::<heddle_api::GroupPut>())
        .answers_put(of::<Group>())
        .problem(409, "The group is internal to a topic.")
        .problem(
            412,
            "`If-Match` names another revision, or `If-None-Match` is `*` and the group exists.",
        )
        .problem(422, "The spec is not valid; `errors` has each error with its place."),
        Route::new(Method::Get, "/v1/groups/{name}", Access::View, "Get a group", get).answers(200, of::<Group>()),
        Route::new(
            Method::Delete,
            "/v1/groups/{name}",
            Access::Operate,
            "Delete a group",
            delete,
        )
        .detail("Groups that depend on this group are detached: they get a new revision without this dependency.")
        .flag(
            "force",
            "`true`: delete the group even if runs are active, and cancel these runs. Default: \
                `false`.",
        )
        .answers(200, of::<Detached>())
        .problem(
            409,
            "The group depends on other groups, tasks of other groups start it, runs are active, or the group is internal \
            to a topic.",
        )
        .problem(412, "`If-Match` names another revision."),
        Route::new(
            Method::Post,
            "/v1/groups/{name}/validate",
            Access::Try,
            "Check a spec without saving it",
            validate,
        )
        .takes_spec(of::<heddle_api::GroupPut>())
        .answers(200, of::<Validation>())
        .problem(409, "The group is internal to a topic.")
        .problem(
            422,
            "The spec is not valid; `errors` has each error with its place, as with PUT.",
        ),
        Route::new(
            Method::Get,
            "/v1/groups/{name}/revisions",
            Access::View,
            "List revisions, newest first",
            revisions,
        )
        .list()
        .answers(200, of::<List<Revision>>()),
        Route::new(
            Method::Get,
            "/v1/groups/{name}/revisions/{revision}",
            Access::View,
            "Get a revision",
            revision,
        )
        .answers(200, of::<Revision>()),
        Route::new(
            Method::Get,
            "/v1/groups/{name}/graph",
            Access::View,
            "Get the graph of tasks, and the groups \
            upstream and downstream",
            graph,
        )
        .answers(200, of::<Graph>()),
        Route::new(
            Method::Post,
            "/v1/groups/{name}/enable",
            Access::Operate,
            "Enable a group",
            enable,
        )
        .answers(200, of::<Group>())
        .problem(409, "The group is internal to a topic.")
        .problem(412, "`If-Match` names another revision."),
        Route::new(
            Method::Post,
            "/v1/groups/{name}/disable",
            Access::Operate,
            "Disable a group",
            disable,
        )
        .detail("`mode`: `drain` (default) lets active runs end, `stop` cancels them.")
        .takes(of::<DisableRequest>())
        .optional()
        .answers(200, of::<Group>())
        .problem(409, "The group is internal to a topic.")
        .problem(412, "`If-Match` names another revision."),
        Route::new(
            Method::Get,
            "/v1/groups/{name}/next",
            Access::View,
            "Get the next instants of the group's \
            schedules",
            next,
        )
        .number(
            "count",
            1..=NEXT_MAX as i64,
            Some(NEXT_DEFAULT as i64),
            "The number of instants, 1 to 1000. Default: 5.",
        )
        .answers(200, of::<heddle_api::NextInstants>()),
    ]
}

/// A group as it is shown: its spec with what Heddle knows of it.
fn view(row: &GroupRow, next: &NextInstants) -> Group {
    let mut spec = Map::new();
    spec.insert("category".into(), json!(row.category));
    spec.insert("timezone".into(), json!("UTC"));
    spec.insert("max_active_runs".into(), Value::Null);
    if let Value::Object(written) = &row.spec {
        spec.extend(written.clone());
    }
    if let Some(Value::Object(schedules)) = spec.get_mut("schedules") {
        for (name, schedule) in schedules {
            if let Value::Object(schedule) = schedule {
                schedule.entry("enabled").or_insert(Value::Bool(true));
                schedule.insert(
                    "next".into(),
                    json!(next.by_schedule.get(name).copied().flatten().map(Moment)),
                );
                if let Some(fired_at) = next.fired.get(name) {
                    // `once` has disabled itself.
                    schedule.insert("enabled".into(), Value::Bool(false));
                    schedule.insert("fired_at".into(), json!(Moment(*fired_at)));
                }
            }
        }
    }
    Group {
        name: row.name.clone(),
        revision: row.revision,
        enabled: row.enabled,
        spec,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
        warnings: Vec::new(),
    }
}

/// Removes the fields that only answers have from a spec; returns `enabled`.
fn strip(value: &mut Value, name: &Name) -> Result<Option<bool>, Problem> {
    let Value::Object(fields) = value else {
        return Err(Problem::invalid_at("", "a group must be an object"));
    };
    let given = match fields.remove("name") {
        None | Some(Value::Null) => None,
        Some(Value::String(given)) => Some(given),
        Some(_) => return Err(Problem::invalid_at("/name", "a name must be a string")),
    };
    super::grants::same_name(name, given.as_deref())?;
    for field in ["revision", "created_at", "updated_at", "warnings"] {
        fields.remove(field);
    }
    let enabled = match fields.remove("enabled") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(enabled)) => Some(enabled),
        Some(_) => return Err(Problem::invalid_at("/enabled", "must be `true` or `false`")),
    };
    if let Some(Value::Object(schedules)) = fields.get_mut("schedules") {
        for schedule in schedules.values_mut().filter_map(Value::as_object_mut) {
            schedule.remove("next");
            if schedule.remove("fired_at").is_some_and(|fired_at| !fired_at.is_null()) {
                // That it has disabled itself is not part of what was written.
                schedule.remove("enabled");
            }
        }
    }
    Ok(enabled)
}

pub(crate) async fn next_of(request: &Request, row: &GroupRow, count: usize) -> Result<NextInstants, Problem> {
    let scheduled = row
        .spec
        .get("schedules")
        .and_then(Value::as_object)
        .is_some_and(|all| !all.is_empty());
    if !scheduled {
        return Ok(NextInstants::default());
    }
    Ok(adapter::next::next(&request.app.engine, row.clone(), count).await?)
}

async fn shown(request: &Request, row: &GroupRow) -> Result<Group, Problem> {
    let next = next_of(request, row, 0).await?;
    Ok(view(row, &next))
}

/// The group as an answer, with its revision as `ETag`.
pub(super) async fn answer(request: &Request, row: &GroupRow) -> Outcome {
    Ok(with_etag(ok(&shown(request, row).await?)?, row.revision))
}

fn with_etag(mut response: Response, revision: i32) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

pub(crate) async fn find(request: &Request) -> Result<GroupRow, Problem> {
    let name = request.name("name", "group")?;
    request
        .app
        .store
        .group_by_name(&name)
        .await?
        .ok_or_else(|| Problem::not_found("group", &name))
}

/// `last_state`: states of runs, or `none`.
fn last_states(request: &Request) -> Result<Vec<Option<RunState>>, Problem> {
    let words = request.query_all("last_state").into_iter();
    words
        .map(|word| match word {
            "none" => Ok(None),
            word => word
                .parse()
                .map(Some)
                .map_err(|error: String| Problem::invalid_at("/last_state", format!("{error}, or `none`"))),
        })
        .collect()
}

async fn list(request: Request) -> Outcome {
    let labels = request
        .query
        .iter()
        .filter(|(name, value)| name == "label" && !value.is_empty());
    let enabled = match request.query("enabled") {
        Some(_) => Some(request.flag("enabled", true)?),
        None => None,
    };
    let filter = GroupFilter {
        category: request.query_name("category"),
        text: request.query("q").map(str::to_owned),
        labels: labels.map(|(_, label)| parse_label(label)).collect(),
        last_states: last_states(&request)?,
        enabled,
    };
    let page = request
        .app
        .store
        .groups(&filter, request.cursor(), request.limit()?)
        .await?;
    let mut items = Vec::with_capacity(page.items.len());
    for row in &page.items {
        items.push(shown(&request, row).await?);
    }
    ok(&List {
        items,
        next_cursor: page.next,
    })
}

async fn get(request: Request) -> Outcome {
    let row = find(&request).await?;
    answer(&request, &row).await
}

impl From<GroupRefused> for Problem {
    fn from(refused: GroupRefused) -> Self {
        match refused {
            GroupRefused::Invalid(faults) => Self::invalid(faults),
            GroupRefused::Missing(_) | GroupRefused::Stale { .. } => Self::precondition(refused.to_string()),
            GroupRefused::Outdated => Self::unavailable(refused.to_string(), 1),
            GroupRefused::NotComputed(stopped) => stopped.into(),
            GroupRefused::Store(error) => error.into(),
            GroupRefused::Internal(error) => Self::internal(&*error),
        }
    }
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let if_match = request.put_condition()?;
    let value = request.spec().await?;
    put_spec(&request, &name, value, if_match).await
}

/// Refuses names that only Heddle gives: of the internal group of a topic, and those that it may give to later ones.
async fn not_reserved(request: &Request, name: &Name) -> Result<(), Problem> {
    adapter::not_of_topic(&request.app.engine, name).await?;
    match topic_of(name) {
        None => Ok(()),
        Some(_) => Err(Problem::invalid_at(
            "",
            format!("the name `{name}` is reserved: Heddle gives such names to the internal groups of topics"),
        )),
    }
}

/// Checks and stores a group's spec.
pub(crate) async fn put_spec(request: &Request, name: &Name, mut value: Value, if_match: Option<IfMatch>) -> Outcome {
    not_reserved(request, name).await?;
    let enabled = strip(&mut value, name)?;
    let store = &request.app.store;
    let spec = read_group(store, name, &value, request.now).await?;
    let put = PutGroup {
        name,
        spec,
        enabled,
        if_match,
        tree: None,
    };
    let (done, checked) = put_group(store, request.by(), put).await?;
    let row = done.row;
    let mut shown = shown(request, &row).await?;
    shown.warnings = checked.warnings;
    let response = crate::request::put(done.created, &shown)?;
    Ok(with_etag(response, row.revision))
}

async fn validate(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let mut value = request.spec().await?;
    not_reserved(&request, &name).await?;
    strip(&mut value, &name)?;
    let store = &request.app.store;
    let spec = read_group(store, &name, &value, request.now).await?;
    let checked = check_group(store, &name, spec, request.now).await?;
    let row = request.app.store.group_by_name(&name).await?;
    let changed = row.is_none_or(|row| row.spec != checked.canonical);
    let Checked {
        canonical, warnings, ..
    } = checked;
    ok(&Validation {
        valid: true,
        errors: Vec::new(),
        warnings,
        changed,
        spec: canonical,
    })
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "group")?;
    let force = request.flag("force", false)?;
    let if_match = request.if_match()?;
    adapter::not_of_topic(&request.app.engine, &name).await?;
    match request
        .app
        .store
        .delete_group(request.by(), &name, force, if_match)
        .await?
    {
        GroupDelete::Deleted { id, detached } => {
            if force {
                adapter::runs::cancel_group(&request.app.engine, id, request.caller.actor.clone()).await?;
            }
            ok(&Detached { detached })
        }
        kept => Err(not_deleted(&name, kept)),
    }
}

/// The caller knows another revision of the group than the current one.
pub(super) fn stale(name: &str, revision: i32) -> Problem {
    Problem::precondition(format!("the current revision of the group `{name}` is {revision}"))
}

/// Why a group was not deleted.
pub(super) fn not_deleted(name: &str, kept: GroupDelete) -> Problem {
    match kept {
        GroupDelete::Missing | GroupDelete::Deleted { .. } => Problem::not_found("group", name),
        GroupDelete::Stale(revision) => stale(name, revision),
        GroupDelete::Upstreams(groups) => Problem::conflict(format!(
            "the group `{name}` depends on {}; remove them from `depends_on` in its spec first",
            quoted("group", &groups)
        )),
        GroupDelete::UsedBy(groups) => Problem::conflict(format!(
            "tasks of {} start runs of the group `{name}`; change these tasks first",
            quoted("group", &groups)
        )),
        GroupDelete::Active(runs) => Problem::conflict(format!(
            "{runs} run{} of the group `{name}` {} active; wait until they end, or use `force=true` to cancel them",
            if runs == 1 { "" } else { "s" },
            if runs == 1 { "is" } else { "are" },
        )),
    }
}

async fn set_enabled(request: &Request, enabled: bool) -> Result<GroupRow, Problem> {
    let name = request.name("name", "group")?;
    let if_match = request.if_match()?;
    adapter::not_of_topic(&request.app.engine, &name).await?;
    let store = &request.app.store;
    match store.set_group_enabled(request.by(), &name, enabled, if_match).await? {
        GroupSwitch::Done(row) => Ok(row),
        GroupSwitch::Missing => Err(Problem::not_found("group", &name)),
        GroupSwitch::Stale(revision) => Err(stale(&name, revision)),
    }
}

async fn enable(request: Request) -> Outcome {
    let row = set_enabled(&request, true).await?;
    answer(&request, &row).await
}

async fn disable(mut request: Request) -> Outcome {
    let body: DisableRequest = request.body().await?;
    let row = set_enabled(&request, false).await?;
    if body.mode == DisableMode::Stop {
        adapter::runs::cancel_group(&request.app.engine, row.id, request.caller.actor.clone()).await?;
    }
    answer(&request, &row).await
}

async fn next(request: Request) -> Outcome {
    let row = find(&request).await?;
    let count = request.query_number("count", 1..=NEXT_MAX)?.unwrap_or(NEXT_DEFAULT);
    let next = next_of(&request, &row, count).await?;
    ok(&heddle_api::NextInstants {
        instants: next.instants.iter().map(|(at, _)| Moment(*at)).collect(),
        items: next
            .instants
            .into_iter()
            .map(|(at, schedules)| NextInstant {
                at: at.into(),
                schedules,
            })
            .collect(),
        schedules: next
            .by_schedule
            .into_iter()
            .map(|(name, at)| (name, at.map(Moment)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_was_read_can_be_put_again() {
        let name = Name::new("g").unwrap();
        let mut value = json!({
            "name": "g", "revision": 3, "enabled": false, "created_at": "x", "updated_at": "y",
            "schedules": {"s": {"every": "1m", "next": "z"}}, "tasks": {},
        });
        assert_eq!(strip(&mut value, &name).unwrap(), Some(false));
        assert_eq!(value, json!({"schedules": {"s": {"every": "1m"}}, "tasks": {}}));
        assert_eq!(
            strip(&mut json!({"name": "h"}), &name).unwrap_err().errors[0].pointer,
            "/name"
        );
        assert!(strip(&mut json!([]), &name).is_err());
    }
}
