//! What putting a group does, for every caller. The objects that the spec names are looked up first, so that the checks
//! (in the domain) need no database. The store checks again, under its lock, what may have changed meanwhile. If the
//! store finds an error whose JSON pointer only the whole check can give, the check is repeated.
//!
//! It needs only the store, and nothing else of the engine, so that every program with a database can put groups.

use std::collections::{BTreeMap, BTreeSet};

use heddle_domain::bounded::{Stopped, or_trouble};
use heddle_domain::fault::pointer_token;
use heddle_domain::link::LinkKind;
use heddle_domain::spec::unread::{ScriptParams, unread};
use heddle_domain::spec::validate::task::script_reference;
use heddle_domain::spec::validate::{self, Catalog, Grant, GroupLinks, ScriptFacts, ScriptLookup};
use heddle_domain::spec::{GroupSpec, Need, ScheduleSpec, TaskSpec, gather_group, write_as_jsonb};
use heddle_domain::{Fault, Faults, Name, Time};
use heddle_store::change::{By, Put};
use heddle_store::group::{GroupPut, GroupRow, GroupWrite, IfMatch, ScriptUse};
use heddle_store::link::{GroupLink, LinkRow};
use heddle_store::script::CONSUMER_WORLD;
use heddle_store::timer_task::TimerTree;
use heddle_store::{Store, StoreError};
use serde_json::Value;

/// A spec that passed the checks.
#[derive(Clone, Debug)]
pub struct Checked {
    pub spec: GroupSpec,
    /// The stored form: all defaults written out, names in NFC.
    pub canonical: Value,
    /// The groups that it depends on, or starts runs of.
    pub links: Vec<GroupLink>,
    /// The scripts that its tasks run.
    pub scripts: Vec<ScriptUse>,
    /// Warnings: probable mistakes, which do not prevent the PUT.
    pub warnings: Vec<Fault>,
}

impl Checked {
    /// The write of this spec under a name.
    pub fn write<'a>(&'a self, name: &'a str) -> GroupWrite<'a> {
        GroupWrite {
            name,
            spec: &self.canonical,
            category: self.spec.category.as_deref(),
            links: &self.links,
            scripts: &self.scripts,
            enabled: None,
            if_match: None,
            begins_anew: false,
        }
    }
}

/// Why a group was not put.
#[derive(Debug, thiserror::Error)]
pub enum GroupRefused {
    /// The spec is wrong, or names objects that do not exist.
    #[error("{0}")]
    Invalid(Faults),
    /// `If-Match` was given, and there is no such group.
    #[error("there is no group `{0}`")]
    Missing(Name),
    /// `If-Match` names another revision.
    #[error("the current revision of the group `{name}` is {revision}")]
    Stale { name: Name, revision: i32 },
    /// An object that the group names was deleted and created again after each of [`TRIES_MAX`] checks.
    #[error("objects that this group names are being changed at the same time; try again")]
    Outdated,
    /// The child process for schemas and templates failed: another try may succeed.
    #[error("{0}")]
    NotComputed(Stopped),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Heddle itself failed, not the spec.
    #[error("the group could not be checked")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<Faults> for GroupRefused {
    fn from(faults: Faults) -> Self {
        Self::Invalid(faults)
    }
}

impl From<Stopped> for GroupRefused {
    fn from(stopped: Stopped) -> Self {
        Self::NotComputed(stopped)
    }
}

/// How often a spec is checked again when an object that it names is deleted and created again after the check.
pub const TRIES_MAX: u32 = 3;

/// A group's spec that somebody wants to write.
pub struct PutGroup<'a> {
    pub name: &'a Name,
    pub spec: GroupSpec,
    /// `None`: it remains as it is.
    pub enabled: Option<bool>,
    pub if_match: Option<IfMatch>,
    /// The tree of timer tasks to which the group belongs; the same transaction writes it.
    pub tree: Option<TimerTree<'a>>,
}

/// Checks and writes a group's spec.
pub async fn put_group(store: &Store, by: By<'_>, put: PutGroup<'_>) -> Result<(Put<GroupRow>, Checked), GroupRefused> {
    let PutGroup {
        name,
        spec,
        enabled,
        if_match,
        tree,
    } = put;
    let mut tries = 0;
    let (checked, put) = loop {
        let checked = check_group(store, name, spec.clone(), by.at).await?;
        let write = GroupWrite {
            enabled,
            if_match: if_match.clone(),
            begins_anew: tree.is_some_and(|tree| tree.begins_anew),
            ..checked.write(name)
        };
        let put = match tree {
            None => store.put_group(by, write).await?,
            Some(tree) => store.put_timer_tree(by, tree, write).await?,
        };
        tries += 1;
        // The next check reports what was deleted in between, with its JSON pointer.
        if put != GroupPut::Outdated || tries == TRIES_MAX {
            break (checked, put);
        }
    };
    match put {
        GroupPut::Done(done) => Ok((done, checked)),
        GroupPut::Outdated => Err(GroupRefused::Outdated),
        GroupPut::Stale(None) => Err(GroupRefused::Missing(name.clone())),
        GroupPut::Stale(Some(revision)) => Err(GroupRefused::Stale {
            name: name.clone(),
            revision,
        }),
        GroupPut::UnknownGroups(groups) => Err(unknown_groups(&checked.spec, &groups).into()),
        GroupPut::UnknownScripts(scripts) => Err(unknown_scripts(&checked.spec, &scripts).into()),
        GroupPut::Cycle(groups) => Err(Faults::from(validate::circle(&checked.spec, &groups)).into()),
    }
}

/// Reads a group's spec. All errors are reported at once: the unreadable parts, and the errors of the rest.
pub async fn read_group(store: &Store, name: &Name, value: &Value, now: Time) -> Result<GroupSpec, GroupRefused> {
    let mut gathered = gather_group(value);
    let rest = gathered.rest.take();
    if gathered.faults.is_empty()
        && let Some(spec) = rest
    {
        return Ok(spec);
    }
    if let Some(spec) = rest {
        // If the rest cannot be checked at the moment, the unreadable parts are reported all the same.
        if let Err(GroupRefused::Invalid(faults)) = check_group(store, name, spec, now).await {
            gathered.add(faults);
        }
    }
    Err(GroupRefused::Invalid(gathered.faults))
}

/// The existing objects of those that a spec names.
#[derive(Default)]
struct Snapshot {
    scripts: BTreeMap<(Name, Option<u32>), ScriptLookup>,
    groups: BTreeMap<Name, GroupLinks>,
    templates: BTreeMap<Name, Value>,
    connections: BTreeMap<Name, heddle_store::secret::Grant>,
    secrets: BTreeMap<Name, heddle_store::secret::Grant>,
    pools: BTreeMap<Name, u32>,
    /// The group's current spec, if what it has already matters.
    stored: Value,
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

    /// A category comes into existence when a spec names it.
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
        let kept = self.stored["schedules"].get(name.as_str());
        kept.is_some_and(|kept| serde_json::to_value(schedule).is_ok_and(|schedule| schedule == *kept))
    }

    fn has_value(&self, pointer: &str, value: &Value) -> bool {
        self.stored.pointer(pointer) == Some(value)
    }
}

/// Looks up what a spec names.
async fn snapshot(store: &Store, group: &Name, spec: &GroupSpec) -> Result<Snapshot, StoreError> {
    let mut snapshot = Snapshot::default();
    if (!spec.schedules.is_empty() || spec.tasks.values().any(has_of_script))
        && let Some(row) = store.group_by_name(group).await?
    {
        snapshot.stored = row.spec;
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
    let channels: BTreeSet<String> = rules.flat_map(|rules| &rules.channels).map(Name::to_string).collect();
    for task in spec.tasks.values() {
        scripts.extend(task.script.as_deref().and_then(|script| script_reference(script).ok()));
        templates.extend(task.audience.as_ref().and_then(|audience| audience.template.as_ref()));
        connections.extend(&task.sql);
        connections.extend(task.query.as_ref().map(|query| &query.connection));
        secrets.extend(&task.secrets);
        pools.extend(task.pools.keys());
    }
    for (name, version) in scripts {
        let found = find_script(store, &name, version).await?;
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
            snapshot.pools.insert(name.clone(), slots_of(name, row.slots)?);
        }
    }
    if !channels.is_empty() {
        let channels: Vec<String> = channels.into_iter().collect();
        snapshot.channels = store.known_channels(&channels).await?.into_iter().collect();
    }
    let own = GroupLinks::of(spec);
    let named: Vec<String> = own
        .depends_on
        .iter()
        .chain(&own.sub_runs)
        .map(Name::to_string)
        .collect();
    if !named.is_empty() {
        snapshot.groups = graph_of(&store.existing_groups(&named).await?, &store.group_links().await?)?;
    }
    Ok(snapshot)
}

/// Whether a task has what only scripts have, and no script.
fn has_of_script(task: &TaskSpec) -> bool {
    let is_given =
        task.memory.is_some() || !task.allow_hosts.is_empty() || !task.sql.is_empty() || !task.secrets.is_empty();
    is_given && task.script.is_none()
}

/// The slots of a pool.
fn slots_of(pool: &Name, slots: i32) -> Result<u32, StoreError> {
    u32::try_from(slots).map_err(|_| StoreError::unreadable("pools", "slots", pool, slots))
}

async fn find_script(store: &Store, name: &Name, version: Option<u32>) -> Result<ScriptLookup, StoreError> {
    let Some(script) = store.script(name).await? else {
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
    let Some(row) = store.script_version(name, Some(wanted)).await? else {
        return Ok(ScriptLookup::NoVersion);
    };
    // If it is not known yet whether the text has the function, the error comes when it runs.
    if row.has("run") == Some(false) {
        return Ok(match row.world == CONSUMER_WORLD {
            true => ScriptLookup::OtherWorld(row.world),
            false => ScriptLookup::OnlyHandles,
        });
    }
    Ok(ScriptLookup::Found(ScriptFacts {
        defaults: row.defaults()?.clone(),
        params_schema: row.params_schema,
    }))
}

/// The groups of these names, and all groups with links. An unreadable name is an error: without its links, a cycle could
/// be missed.
fn graph_of(existing: &[String], links: &[LinkRow]) -> Result<BTreeMap<Name, GroupLinks>, StoreError> {
    let named = |text: &str| StoreError::word::<Name>(text, ("groups", "name"), format_args!("of group `{text}`"));
    let mut groups: BTreeMap<Name, GroupLinks> = BTreeMap::new();
    for name in existing {
        groups.entry(named(name)?).or_default();
    }
    for link in links {
        let upstream = named(&link.upstream)?;
        groups.entry(upstream.clone()).or_default();
        let links = groups.entry(named(&link.group)?).or_default();
        match link.kind {
            LinkKind::DependsOn => links.depends_on.push(upstream),
            LinkKind::SubRun => links.sub_runs.push(upstream),
        }
    }
    Ok(groups)
}

/// Checks a spec. Schemas and templates need processor time, so this does not happen on the threads that serve
/// requests.
pub async fn check_group(store: &Store, name: &Name, mut spec: GroupSpec, now: Time) -> Result<Checked, GroupRefused> {
    // Written out, so that a group that was read and is put again does not change.
    spec.timezone.get_or_insert_with(|| "UTC".into());
    let snapshot = snapshot(store, name, &spec).await?;
    let name = name.clone();
    let checked = tokio::task::spawn_blocking(move || {
        or_trouble(|| validate::validate(&name, &spec, &snapshot, now))??;
        let warnings = unread(&spec, None, |script| params_of(&snapshot, script));
        Ok::<_, GroupRefused>((spec, warnings))
    });
    let (spec, warnings) = checked.await.map_err(|error| GroupRefused::Internal(error.into()))??;
    let mut canonical = serde_json::to_value(&spec).map_err(|error| GroupRefused::Internal(error.into()))?;
    write_as_jsonb(&mut canonical);
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
        need: dependency.need(),
    });
    let called = spec
        .tasks
        .values()
        .filter_map(|task| task.group.as_ref())
        .map(|group| GroupLink {
            upstream: group.to_string(),
            kind: LinkKind::SubRun,
            need: Need::Latest,
        });
    followed.chain(called).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Where a spec names groups that are gone.
fn unknown_groups(spec: &GroupSpec, unknown: &[String]) -> Faults {
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
fn unknown_scripts(spec: &GroupSpec, unknown: &[ScriptUse]) -> Faults {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn link(group: &str, upstream: &str, kind: LinkKind) -> LinkRow {
        LinkRow {
            group: group.into(),
            upstream: upstream.into(),
            kind,
            need: Need::Latest,
        }
    }

    #[test]
    fn no_link_is_left_out_of_the_graph() {
        let name = |text: &str| Name::new(text).unwrap();
        let links = [link("a", "b", LinkKind::DependsOn), link("a", "c", LinkKind::SubRun)];
        let graph = graph_of(&["d".to_owned()], &links).unwrap();
        let names: Vec<&str> = graph.keys().map(Name::as_str).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        let of_a = GroupLinks {
            depends_on: vec![name("b")],
            sub_runs: vec![name("c")],
        };
        assert_eq!(graph[&name("a")], of_a);
        for (existing, link) in [
            ("no name", link("a", "b", LinkKind::DependsOn)),
            ("d", link("no name", "b", LinkKind::DependsOn)),
            ("d", link("a", "no name", LinkKind::SubRun)),
        ] {
            let error = graph_of(&[existing.to_owned()], &[link]).unwrap_err();
            let told = "cannot read row of group `no name` in groups: name is `no name`";
            assert_eq!(error.to_string(), told);
        }
    }

    #[test]
    fn slots_that_cannot_be_are_no_zero() {
        let pool = Name::new("small").unwrap();
        assert_eq!(slots_of(&pool, 7).unwrap(), 7);
        let error = slots_of(&pool, -1).unwrap_err();
        assert_eq!(error.to_string(), "cannot read row small in pools: slots is -1");
    }
}
