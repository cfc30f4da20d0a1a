//! Warns of params that nobody reads: a typing error passes every schema that does not forbid unknown fields.

use std::collections::BTreeMap;

use heddle_client::Submission;
use heddle_domain::spec::GroupSpec;
use heddle_domain::spec::unread::{ScriptParams, unread};
use serde_json::Value;

use crate::session::Session;
use crate::terminal::tell;

/// Fields of a group's answer that are not in its spec.
const NOT_OF_SPEC: [&str; 5] = ["name", "revision", "enabled", "created_at", "updated_at"];

/// Reports on stderr which of these params no script of the group knows. If something cannot be looked up, nothing is
/// reported about it.
pub(super) async fn warn(session: &Session, group: &str, submission: &Submission) {
    if submission.params.is_empty() && submission.task_params.is_empty() {
        return;
    }
    let Some((spec, scripts)) = look_up(session, group).await else {
        return;
    };
    for warning in unread(&spec, Some(submission), |script| scripts.get(script).cloned()) {
        tell!("warning: {warning}");
    }
}

async fn look_up(session: &Session, group: &str) -> Option<(GroupSpec, BTreeMap<String, ScriptParams>)> {
    let mut found: Value = session.client.get(&["v1", "groups", group]).send().await.ok()?;
    let fields = found.as_object_mut()?;
    for field in NOT_OF_SPEC {
        fields.remove(field);
    }
    for schedule in fields.get_mut("schedules")?.as_object_mut()?.values_mut() {
        let schedule = schedule.as_object_mut()?;
        schedule.remove("next");
        schedule.remove("fired_at");
    }
    let spec: GroupSpec = serde_json::from_value(found).ok()?;
    let mut scripts = BTreeMap::new();
    for script in spec.tasks.values().filter_map(|task| task.script.as_deref()) {
        if scripts.contains_key(script) {
            continue;
        }
        let path: Vec<&str> = match script.split_once('@') {
            Some((name, version)) => vec!["v1", "scripts", name, "versions", version],
            None => vec!["v1", "scripts", script],
        };
        let known: Value = session.client.get(&path).send().await.ok()?;
        let params = ScriptParams {
            schema: Some(known["params_schema"].clone()).filter(Value::is_object),
            defaults: known["defaults"].as_object().cloned().unwrap_or_default(),
        };
        scripts.insert(script.to_owned(), params);
    }
    Some((spec, scripts))
}
