//! Checking a group's spec against what exists. What the spec names is looked up first, so that the checks themselves
//! (the domain's) need no database; the store checks again, under its lock, what may have changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use heddle_domain::bounded::or_trouble;
use heddle_domain::fault::pointer_token;
use heddle_domain::schema::Schema;
use heddle_domain::spec::unread::{ScriptParams, unread};
use heddle_domain::spec::validate::task::script_reference;
use heddle_domain::spec::validate::{self, Catalog, Grant, GroupLinks, ScriptFacts, ScriptLookup};
use heddle_domain::spec::{GroupSpec, Need, ScheduleSpec};
use heddle_domain::{Fault, Faults, Name, Time};
use heddle_store::group::ScriptUse;
use heddle_store::link::{GroupLink, LinkKind};
use serde_json::Value;

use crate::app::App;
use crate::problem::Problem;

/// A spec that has passed.
pub(crate) struct Checked {
    pub(crate) spec: GroupSpec,
    /// As it is kept: every default written out, names in NFC.
    pub(crate) canonical: Value,
    pub(crate) links: Vec<GroupLink>,
    pub(crate) scripts: Vec<ScriptUse>,
    /// What is no mistake for certain, but may well be one.
    pub(crate) warnings: Vec<Fault>,
}

/// What exists of what one spec names.
#[derive(Default)]
struct Snapshot {
    scripts: BTreeMap<(Name, Option<u32>), ScriptLookup>,
    groups: BTreeMap<Name, GroupLinks>,
    templates: BTreeMap<Name, Value>,
    connections: BTreeMap<Name, heddle_store::secret::Grant>,
    secrets: BTreeMap<Name, heddle_store::secret::Grant>,
    pools: BTreeMap<Name, u32>,
    /// The group's own, as they stand.
    schedules: serde_json::Map<String, Value>,
    channels: BTreeSet<String>,
}

fn granted(grant: Option<&heddle_store::secret::Grant>, group: &Name, category: Option<&Name>) -> Grant {
    match grant {
        None => Grant::Unknown,
        Some(grant) if grant.allows(group, category.map(Name::as_str)) => Grant::Granted,
        Some(_) => Grant::Refused,
    }
}

impl Catalog for Snapshot {
    fn script(&self, name: &Name, version: Option<u32>) -> ScriptLookup {
        self.scripts
            .get(&(name.clone(), version))
            .cloned()
            .unwrap_or(ScriptLookup::NoScript)
    }

    fn group(&self, name: &Name) -> Option<GroupLinks> {
        self.groups.get(name).cloned()
    }

    fn template(&self, name: &Name) -> Option<Value> {
        self.templates.get(name).cloned()
    }

    /// A category that a spec names exists from then on.
    fn category(&self, _name: &Name) -> bool {
        true
    }

    fn channel(&self, name: &Name) -> bool {
        self.channels.contains(name.as_str())
    }

    fn connection(&self, name: &Name, group: &Name, category: Option<&Name>) -> Grant {
        granted(self.connections.get(name), group, category)
    }

    fn secret(&self, name: &Name, group: &Name, category: Option<&Name>) -> Grant {
        granted(self.secrets.get(name), group, category)
    }

    fn pool(&self, name: &Name) -> Option<u32> {
        self.pools.get(name).copied()
    }

    fn has_schedule(&self, name: &Name, schedule: &ScheduleSpec) -> bool {
        let kept = self.schedules.get(name.as_str());
        kept.is_some_and(|kept| serde_json::to_value(schedule).is_ok_and(|schedule| schedule == *kept))
    }
}

/// Looks up what a spec names.
async fn snapshot(app: &App, group: &Name, spec: &GroupSpec) -> Result<Snapshot, Problem> {
    let store = &app.store;
    let mut snapshot = Snapshot::default();
    if !spec.schedules.is_empty()
        && let Some(mut row) = store.group_by_name(group).await?
        && let Value::Object(schedules) = row.spec["schedules"].take()
    {
        snapshot.schedules = schedules;
    }
    let mut scripts = BTreeSet::new();
    let mut templates: BTreeSet<&Name> = spec.template.iter().collect();
    let mut connections = BTreeSet::new();
    let mut secrets = BTreeSet::new();
    let mut pools = BTreeSet::new();
    let rules = spec
        .notify
        .iter()
        .chain(spec.tasks.values().filter_map(|task| task.notify.as_ref()));
    let told: BTreeSet<String> = rules.flat_map(|rules| &rules.channels).map(Name::to_string).collect();
    for task in spec.tasks.values() {
        scripts.extend(task.script.as_deref().and_then(|script| script_reference(script).ok()));
        templates.extend(task.audience.as_ref().and_then(|audience| audience.template.as_ref()));
        connections.extend(&task.sql);
        connections.extend(task.query.as_ref().map(|query| &query.connection));
        secrets.extend(&task.secrets);
        pools.extend(task.pools.keys());
    }
    for (name, version) in scripts {
        let found = find_script(app, &name, version).await?;
        snapshot.scripts.insert((name, version), found);
    }
    for name in templates {
        if let Some(row) = store.template(name).await? {
            snapshot.templates.insert(name.clone(), row.schema);
        }
    }
    for name in connections {
        if let Some(row) = store.connection(name).await? {
            snapshot.connections.insert(name.clone(), row.options.grant);
        }
    }
    for name in secrets {
        if let Some(row) = store.secret(name).await? {
            snapshot.secrets.insert(name.clone(), row.grant);
        }
    }
    for name in pools {
        if let Some(row) = store.pool_by_name(name).await? {
            snapshot
                .pools
                .insert(name.clone(), u32::try_from(row.slots).unwrap_or(0));
        }
    }
    if !told.is_empty() {
        let told: Vec<String> = told.into_iter().collect();
        snapshot.channels = store.known_channels(&told).await?.into_iter().collect();
    }
    let own = GroupLinks::of(spec);
    let named: Vec<String> = own
        .depends_on
        .iter()
        .chain(&own.sub_runs)
        .map(Name::to_string)
        .collect();
    if !named.is_empty() {
        snapshot.groups = find_groups(app, &named).await?;
    }
    Ok(snapshot)
}

async fn find_script(app: &App, name: &Name, version: Option<u32>) -> Result<ScriptLookup, Problem> {
    let Some(script) = app.store.script(name).await? else {
        return Ok(ScriptLookup::NoScript);
    };
    let wanted = match version {
        Some(version) => i32::try_from(version).ok(),
        None => script.active_version,
    };
    let Some(wanted) = wanted else {
        return Ok(if version.is_none() {
            ScriptLookup::NoActiveVersion
        } else {
            ScriptLookup::NoVersion
        });
    };
    let Some(row) = app.store.script_version(name, Some(wanted)).await? else {
        return Ok(ScriptLookup::NoVersion);
    };
    if row.world == CONSUMER_WORLD {
        return Ok(ScriptLookup::OtherWorld(row.world));
    }
    Ok(ScriptLookup::Found(ScriptFacts {
        version: u32::try_from(row.version).unwrap_or(0),
        params_schema: row.params_schema,
        defaults: row.defaults.as_object().cloned().unwrap_or_default(),
    }))
}

/// The world of scripts that take batches of messages, which no task can run.
pub(super) const CONSUMER_WORLD: &str = "heddle:task/consumer";

/// The named groups and all that they are linked to.
async fn find_groups(app: &App, named: &[String]) -> Result<BTreeMap<Name, GroupLinks>, Problem> {
    let mut groups: BTreeMap<Name, GroupLinks> = BTreeMap::new();
    let known = |text: &str| Name::new(text).ok();
    for name in app.store.existing_groups(named).await? {
        groups.extend(known(&name).map(|name| (name, GroupLinks::default())));
    }
    for link in app.store.group_links().await? {
        let (Some(group), Some(upstream)) = (known(&link.group), known(&link.upstream)) else {
            continue;
        };
        groups.entry(upstream.clone()).or_default();
        let links = groups.entry(group).or_default();
        if link.kind == LinkKind::DependsOn.as_str() {
            links.depends_on.push(upstream);
        } else {
            links.sub_runs.push(upstream);
        }
    }
    Ok(groups)
}

/// Checks a spec. Schemas and templates take a processor, so that happens away from the threads that serve.
pub(crate) async fn check_group(app: &App, name: &Name, mut spec: GroupSpec, now: Time) -> Result<Checked, Problem> {
    // Written out, so that a group that was read and is put again is the same.
    spec.timezone.get_or_insert_with(|| "UTC".into());
    let snapshot = snapshot(app, name, &spec).await?;
    let name = name.clone();
    let checked = tokio::task::spawn_blocking(move || {
        or_trouble(|| validate::validate(&name, &spec, &snapshot, now))??;
        let warnings = unread(&spec, None, |script| params_of(&snapshot, script));
        Ok::<_, Problem>((spec, warnings))
    });
    let (spec, warnings) = checked.await.map_err(|error| Problem::internal(&error))??;
    let canonical = serde_json::to_value(&spec).map_err(|error| Problem::internal(&error))?;
    let links = links_of(&spec);
    let scripts: BTreeSet<ScriptUse> = spec
        .tasks
        .values()
        .filter_map(|task| script_reference(task.script.as_deref()?).ok())
        .map(|(script, version)| ScriptUse {
            script: script.to_string(),
            version: version.map(|version| i32::try_from(version).unwrap_or(i32::MAX)),
        })
        .collect();
    Ok(Checked {
        spec,
        canonical,
        links,
        scripts: scripts.into_iter().collect(),
        warnings,
    })
}

/// What is known of the params of a script.
fn params_of(snapshot: &Snapshot, script: &str) -> Option<ScriptParams> {
    let (name, version) = script_reference(script).ok()?;
    match snapshot.script(&name, version) {
        ScriptLookup::Found(facts) => Some(ScriptParams {
            schema: facts.params_schema,
            defaults: facts.defaults,
        }),
        _ => None,
    }
}

fn links_of(spec: &GroupSpec) -> Vec<GroupLink> {
    let followed = spec.depends_on.iter().map(|dependency| GroupLink {
        upstream: dependency.group().to_string(),
        kind: LinkKind::DependsOn,
        need: match dependency.need() {
            Need::Latest => "latest",
            Need::Interval => "interval",
        },
    });
    let called = spec
        .tasks
        .values()
        .filter_map(|task| task.group.as_ref())
        .map(|group| GroupLink {
            upstream: group.to_string(),
            kind: LinkKind::SubRun,
            need: "latest",
        });
    followed.chain(called).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What is wrong with params, below a place. The schema was checked when it was uploaded.
pub(crate) fn check_schema(schema: &Value, params: &Value, below: &str) -> Result<Faults, Problem> {
    let found = or_trouble(|| Schema::compile(schema).map(|schema| schema.check(params)))?
        .map_err(|error| Problem::conflict(format!("the script's own schema cannot be used: {error}")))?;
    Ok(Faults(found.0.into_iter().map(|fault| fault.below(below)).collect()))
}

/// Where a spec names groups that are gone.
pub(crate) fn unknown_groups(spec: &GroupSpec, unknown: &[String]) -> Faults {
    let mut faults = Faults::default();
    for (index, dependency) in spec.depends_on.iter().enumerate() {
        if unknown.iter().any(|name| name == dependency.group().as_str()) {
            let detail = format!("unknown dependency: there is no group `{}`", dependency.group());
            faults.push(Fault::at(format!("/depends_on/{index}"), detail));
        }
    }
    for (task, written) in &spec.tasks {
        if let Some(group) = &written.group
            && unknown.iter().any(|name| name == group.as_str())
        {
            faults.add(
                format!("/tasks/{}/group", pointer_token(task)),
                format!("there is no group `{group}`"),
            );
        }
    }
    faults
}

/// Where a spec names scripts that are gone.
pub(crate) fn unknown_scripts(spec: &GroupSpec, unknown: &[ScriptUse]) -> Faults {
    let mut faults = Faults::default();
    for (task, written) in &spec.tasks {
        let Some(text) = &written.script else { continue };
        let Ok((script, version)) = script_reference(text) else {
            continue;
        };
        let version = version.and_then(|version| i32::try_from(version).ok());
        if unknown
            .iter()
            .any(|used| used.script == script.as_str() && used.version == version)
        {
            faults.add(
                format!("/tasks/{}/script", pointer_token(task)),
                format!("there is no script `{text}`"),
            );
        }
    }
    faults
}
