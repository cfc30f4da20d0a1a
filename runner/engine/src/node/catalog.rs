//! What nodes know of groups, revisions and scripts without asking the database each time.
//!
//! Revisions, script versions and resolutions are immutable, and are cached while there is room; only the runtimes of
//! versions can change. The meaning of a *name* changes too. Both kinds of entries are dropped when the change log says
//! so, at once on the node that made the change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_domain::Name;
use heddle_domain::executor::Executor;
use heddle_domain::notify::rules::Subscriptions;
use heddle_domain::params::Layers;
use heddle_domain::plan::Plan;
use heddle_domain::pool::PoolNeed;
use heddle_domain::run::{AttemptKey, Event, FormatError, Progress, decide};
use heddle_domain::schedule::{Calendar, Schedule};
use heddle_domain::schema::Schema;
use heddle_domain::spec::{GroupSpec, Overlap};
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::template;
use heddle_store::change::{Change, Noun};
use heddle_store::group::RevisionRow;
use heddle_store::{Store, schedule};
use quick_cache::sync::Cache;
use serde_json::{Map, Value, json};

use super::templates::is_heavy;
use crate::EngineError;

/// How many attempts of one revision with a long preparation are prepared at once.
const PREPARATIONS_MAX: usize = 4;

/// The maximum number of entries of each cache.
const CACHE_ENTRIES_MAX: usize = 10_000;

/// A script version as tasks use it.
#[derive(Debug)]
pub struct ScriptFacts {
    pub name: String,
    pub version: i32,
    /// `sha256:` and the SHA-256 of the bytes in hex.
    pub digest: String,
    /// The name of its code in the sandbox.
    pub code: String,
    /// The tag of its runtime, if it is source text that names one.
    pub runtime: Option<String>,
    /// Whether it is for tasks, if that is known.
    pub runs: bool,
    /// The name of its module in traces, if it is source text.
    pub file: Option<&'static str>,
    /// What params must satisfy.
    pub schema: Option<Schema>,
    /// Params with default values.
    pub defaults: Map<String, Value>,
}

impl ScriptFacts {
    /// A trace with the script's own name: the sandbox knows scripts by their code only, and uses the same name for
    /// each text.
    pub fn trace(&self, trace: String) -> String {
        match self.names() {
            Some((module, shown)) => heddle_sandbox::trace_of_file(&trace, module, &shown),
            None => trace,
        }
    }

    /// The same for a message of its log, which may contain an error with its trace.
    pub fn logged(&self, message: String) -> String {
        if self.file.is_none_or(|module| !message.contains(module)) {
            return message;
        }
        match self.names() {
            Some((module, shown)) => heddle_sandbox::log_of_file(&message, module, &shown),
            None => message,
        }
    }

    /// The name of its module, and the name that people see instead, if the script is source text.
    fn names(&self) -> Option<(&'static str, String)> {
        let module = self.file?;
        let end = module.rsplit('.').next().unwrap_or_default();
        Some((module, format!("{}.{end}", self.name)))
    }
}

/// The script versions that the tasks of a revision use; by task number.
#[derive(Debug)]
pub struct Resolution {
    pub id: i64,
    /// By task number; `None` for tasks that are no scripts.
    pub scripts: Vec<Option<Arc<ScriptFacts>>>,
    /// By task number: whether the params satisfy the script's schema if a run adds none. Values of templates are not
    /// known yet, and are not checked.
    pub fits: Vec<bool>,
}

impl Resolution {
    fn new(id: i64, revision: &Revision, scripts: Vec<Option<Arc<ScriptFacts>>>) -> Arc<Self> {
        let fits = fits(revision, &scripts);
        Arc::new(Self { id, scripts, fits })
    }
}

/// A revision with what is computed from it once.
#[derive(Debug)]
pub struct Revision {
    pub id: i64,
    /// Its number within the group.
    pub number: i32,
    pub group_id: i64,
    pub group_name: String,
    pub plan: Plan,
    /// Its schedules by name, disabled ones included.
    pub schedules: BTreeMap<String, Schedule>,
    /// Its enabled schedules as one sequence of instants.
    pub calendar: Calendar,
    /// The instants of a backfill without a step: of the enabled schedules, or of all if no enabled one has past instants.
    pub past: Calendar,
    /// The progress, as bytes, of one of its runs that has not begun.
    pub(crate) waiting: Vec<u8>,
    /// The state in which one of its runs begins: progress, and the task runs that are ready at once.
    pub(crate) start: (Vec<u8>, Progress, Vec<AttemptKey>),
    /// Per task: the slots of pools that its attempts take.
    pools: Vec<Option<Arc<PoolNeed>>>,
    /// At least one task takes slots of pools.
    pub(crate) pooled: bool,
    /// Per task: whether its params contain templates.
    pub(crate) templated: Vec<bool>,
    /// Per task: whether its templates may have to be rendered in a child process, with bounds.
    pub(crate) heavy: Vec<bool>,
    /// Permits for its attempts that are prepared in a child process: each holds in memory what it renders.
    pub(crate) preparations: tokio::sync::Semaphore,
    /// The notification rules for its runs: which events, and for whom.
    pub(crate) subscriptions: Subscriptions,
}

impl Revision {
    /// The slots of pools that an attempt takes. (Finding out a mapped task's items takes none; the items do.)
    pub(crate) fn need_of(&self, at: AttemptKey) -> Option<Arc<PoolNeed>> {
        let need = self.pools.get(at.key.task as usize)?.as_ref()?;
        let expands = at.key.item.is_none() && self.plan.task(at.key.task)?.mapped;
        (!expands).then(|| need.clone())
    }

    /// How soon an attempt must be claimed after it has become ready.
    pub(crate) fn claim_within(&self, at: AttemptKey) -> Option<TimeDelta> {
        Some(self.plan.task(at.key.task)?.spec.queue_timeout?.chrono())
    }

    /// Whether runs with this trigger have to wait at the group's gate: for runs before them, or for upstreams. `sourced`
    /// runs were created by a backfill or another run: no overlap applies to them.
    pub fn is_gated(&self, trigger: Trigger, sourced: bool) -> bool {
        let overlaps = is_timed(trigger, sourced) && self.plan.spec.overlap != Overlap::Allow;
        overlaps || self.is_bounded(trigger) || self.follows(trigger)
    }

    /// Whether `max_active_runs` holds for runs made by this trigger.
    pub fn is_bounded(&self, trigger: Trigger) -> bool {
        self.plan.spec.max_active_runs.is_some() && trigger != Trigger::Backfill
    }

    /// Whether runs with this trigger wait for upstream groups. A schedule creates its runs on time, whether the
    /// upstreams have succeeded or not. (Without a schedule, no run is created before they have.)
    pub fn follows(&self, trigger: Trigger) -> bool {
        let spec = &self.plan.spec;
        !spec.depends_on.is_empty()
            && match trigger {
                Trigger::Schedule => true,
                Trigger::Upstream => !spec.schedules.is_empty(),
                _ => false,
            }
    }
}

/// Whether the overlap of its group applies to a run.
pub(crate) fn is_timed(trigger: Trigger, sourced: bool) -> bool {
    match trigger {
        Trigger::Schedule => true,
        Trigger::Upstream => !sourced,
        _ => false,
    }
}

/// The current meaning of a group's name.
#[derive(Clone, Debug)]
pub struct Group {
    pub id: i64,
    /// Whether it accepts runs.
    pub enabled: bool,
    pub category: Option<String>,
    pub revision: Arc<Revision>,
    /// The current versions of its scripts.
    pub resolution: Arc<Resolution>,
    /// A named template that run params must satisfy.
    pub template: Option<Schema>,
    /// Whether a run needs no params of its own, and all scripts are for tasks.
    pub complete: bool,
}

#[derive(Debug)]
pub struct Catalog {
    store: Store,
    groups: Cache<String, Arc<Group>>,
    revisions: Cache<i64, Arc<Revision>>,
    resolutions: Cache<i64, Arc<Resolution>>,
    versions: Cache<(String, i32), Arc<ScriptFacts>>,
    /// The current resolution of each revision.
    current: Cache<i64, Arc<Resolution>>,
    /// Active versions of scripts.
    active: Cache<String, Option<i32>>,
    /// Whether there is any channel.
    channels: Cache<String, bool>,
    /// Grows with each change, so that a result that was read before a change is not cached after it.
    generation: AtomicU64,
}

impl Catalog {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            groups: Cache::new(CACHE_ENTRIES_MAX),
            revisions: Cache::new(CACHE_ENTRIES_MAX),
            resolutions: Cache::new(CACHE_ENTRIES_MAX),
            versions: Cache::new(CACHE_ENTRIES_MAX),
            current: Cache::new(CACHE_ENTRIES_MAX),
            active: Cache::new(CACHE_ENTRIES_MAX),
            channels: Cache::new(CACHE_ENTRIES_MAX),
            generation: AtomicU64::new(0),
        }
    }

    /// Forgets the meaning of a name.
    pub(crate) fn forget(&self, change: &Change) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        match change.noun {
            Some(Noun::Group) => drop(self.groups.remove(&change.name)),
            // All groups are dropped from the cache, because any of them may use this script or template.
            Some(Noun::Script) => {
                self.groups.clear();
                self.current.clear();
                self.active.clear();
            }
            // All scripts are dropped from the cache, because any of them may have got another runtime.
            Some(Noun::Runtime) => {
                self.groups.clear();
                self.current.clear();
                self.resolutions.clear();
                self.versions.clear();
            }
            Some(Noun::Template) => self.groups.clear(),
            Some(Noun::Channel) => drop(self.channels.remove(&change.name)),
            _ => {}
        }
    }

    /// The current meaning of a group's name; `None`: there is no such group.
    pub async fn group(&self, name: &str) -> Result<Option<Arc<Group>>, EngineError> {
        if let Some(group) = self.groups.get(name) {
            return Ok(Some(group));
        }
        let generation = self.generation.load(Ordering::Acquire);
        // Callers may spell a name differently from its stored form; the change log knows only the stored one.
        let Some(row) = self.store.group_by_name(&Name::sought(name)).await? else {
            return Ok(None);
        };
        let revision = self.revision(row.revision_id).await?;
        let resolution = self.resolve(&revision).await?;
        let template = match &revision.plan.spec.template {
            Some(template) => match self.store.template(template.as_ref()).await? {
                Some(row) => Some(Schema::of_kept(&row.schema, &format!("template `{}`", row.name))),
                None => None,
            },
            None => None,
        };
        let runs = resolution.scripts.iter().flatten().all(|script| script.runs);
        let complete = runs && resolution.fits.iter().all(|fits| *fits);
        let group = Arc::new(Group {
            id: row.id,
            enabled: row.enabled,
            category: row.category,
            revision,
            resolution,
            template,
            complete,
        });
        if self.generation.load(Ordering::Acquire) == generation {
            self.groups.insert(row.name, group.clone());
        }
        Ok(Some(group))
    }

    /// Whether there is a channel of that name.
    pub(crate) async fn channel(&self, name: &str) -> Result<bool, EngineError> {
        if let Some(known) = self.channels.get(name) {
            return Ok(known);
        }
        let generation = self.generation.load(Ordering::Acquire);
        let known = !self.store.known_channels(&[name.to_owned()]).await?.is_empty();
        if known && self.generation.load(Ordering::Acquire) == generation {
            self.channels.insert(name.to_owned(), known);
        }
        Ok(known)
    }

    /// A revision; it never changes.
    pub async fn revision(&self, id: i64) -> Result<Arc<Revision>, EngineError> {
        if let Some(revision) = self.revisions.get(&id) {
            return Ok(revision);
        }
        let row = self
            .store
            .revision(id)
            .await?
            .ok_or_else(|| EngineError::unreadable(format!("there is no revision {id}")))?;
        let group_name = match self.store.group_by_id(row.group_id).await? {
            Some(group) => group.name,
            None => String::new(),
        };
        self.keep_revision(row, group_name)
    }

    fn keep_revision(&self, row: RevisionRow, group_name: String) -> Result<Arc<Revision>, EngineError> {
        let id = row.id;
        let schedule::Compiled {
            schedules,
            calendar,
            past,
        } = schedule::compile(id, &row.spec, &row.schedule_anchors, row.created_at)?;
        let revision = || format!("revision {id}");
        let spec: GroupSpec =
            serde_json::from_value(row.spec).map_err(|error| EngineError::unreadable_in(revision(), error))?;
        let plan = Plan::compile(spec).map_err(|faults| EngineError::unreadable_in(revision(), faults))?;
        let mut state = RunState::Waiting;
        let mut progress = Progress::new(&plan);
        let unwritable = |error: FormatError| EngineError::unreadable_in(revision(), error);
        let waiting = progress.to_bytes().map_err(unwritable)?;
        let epoch = heddle_domain::Time::UNIX_EPOCH;
        let actions = decide(&plan, &mut state, &mut progress, &[Event::Start], epoch, &mut || 0)
            .map_err(|refused| EngineError::unreadable_in(revision(), refused))?;
        let pools: Vec<Option<Arc<PoolNeed>>> = plan
            .tasks
            .iter()
            .map(|task| PoolNeed::of(&task.spec.pools).map(Arc::new))
            .collect();
        let templated = plan
            .tasks
            .iter()
            .map(|task| {
                let holds = |params: &Map<String, Value>| params.values().any(template::contains_template);
                holds(&plan.spec.params) || holds(&task.spec.params)
            })
            .collect();
        let revision = Arc::new(Revision {
            id,
            number: row.revision,
            group_id: row.group_id,
            group_name,
            waiting,
            start: (progress.to_bytes().map_err(unwritable)?, progress, actions.ready),
            pooled: pools.iter().any(Option::is_some),
            pools,
            templated,
            heavy: plan.tasks.iter().map(|task| is_heavy(&plan, task)).collect(),
            preparations: tokio::sync::Semaphore::new(PREPARATIONS_MAX),
            subscriptions: Subscriptions::of(&plan),
            plan,
            schedules,
            calendar,
            past,
        });
        self.revisions.insert(id, revision.clone());
        Ok(revision)
    }

    /// Revisions; they never change. One statement reads all that are not cached. Unreadable ones are left out and
    /// logged.
    pub(crate) async fn revisions(&self, ids: &[i64]) -> Result<HashMap<i64, Arc<Revision>>, EngineError> {
        let mut revisions = HashMap::with_capacity(ids.len());
        let mut missing = Vec::new();
        for &id in ids {
            match self.revisions.get(&id) {
                Some(revision) => drop(revisions.insert(id, revision)),
                None => missing.push(id),
            }
        }
        if !missing.is_empty() {
            for (row, name) in self.store.revisions_by_id(&missing).await? {
                let id = row.id;
                match self.keep_revision(row, name) {
                    Ok(revision) => drop(revisions.insert(id, revision)),
                    Err(error) => tracing::error!(error = %Chain(&error), revision = id, "cannot read a revision"),
                }
            }
        }
        Ok(revisions)
    }

    /// Revisions with the current versions of their scripts, in a few statements for any number. Unreadable ones are
    /// left out and logged.
    pub(crate) async fn current(
        &self,
        ids: &[i64],
    ) -> Result<HashMap<i64, (Arc<Revision>, Arc<Resolution>)>, EngineError> {
        let generation = self.generation.load(Ordering::Acquire);
        let revisions = self.revisions(ids).await?;
        let mut found = HashMap::with_capacity(revisions.len());
        let (mut unresolved, mut named, mut scripts) = (Vec::new(), Vec::new(), Vec::new());
        for (id, revision) in revisions {
            if let Some(resolution) = self.current.get(&id) {
                found.insert(id, (revision, resolution));
                continue;
            }
            let (names, facts) = self.name_scripts(&revision, &Value::Null).await?;
            unresolved.push(revision);
            named.push(names);
            scripts.push(facts);
        }
        if !unresolved.is_empty() {
            let rows: Vec<i64> = unresolved.iter().map(|revision| revision.id).collect();
            let ids = self.store.resolutions(&rows, &named).await?;
            for ((revision, id), scripts) in unresolved.into_iter().zip(ids).zip(scripts) {
                let resolution = self.keep_resolution(generation, id, &revision, scripts);
                if self.generation.load(Ordering::Acquire) == generation {
                    self.current.insert(revision.id, resolution.clone());
                }
                found.insert(revision.id, (revision, resolution));
            }
        }
        Ok(found)
    }

    /// The current versions of a revision's script names, except those for which `kept` has a version: as a row for the
    /// database, and by task number.
    async fn name_scripts(
        &self,
        revision: &Revision,
        kept: &Value,
    ) -> Result<(Value, Vec<Option<Arc<ScriptFacts>>>), EngineError> {
        let mut scripts = Vec::with_capacity(revision.plan.tasks.len());
        let mut named = Map::new();
        for task in &revision.plan.tasks {
            let Executor::Script(text) = &task.executor else {
                scripts.push(None);
                continue;
            };
            let (name, version) = split_version(text);
            let version = version.or_else(|| kept_version(&kept[task.name.as_str()], name));
            let facts = self.script(name, version).await?;
            if let Some(facts) = &facts {
                named.insert(
                    task.name.as_str().to_owned(),
                    json!({"script": facts.name, "version": facts.version, "digest": facts.digest}),
                );
            }
            scripts.push(facts);
        }
        Ok((Value::Object(named), scripts))
    }

    /// The current versions of a revision's scripts, as a stored resolution.
    pub async fn resolve(&self, revision: &Revision) -> Result<Arc<Resolution>, EngineError> {
        self.resolve_with(revision, &Value::Null).await
    }

    /// The same, but a task keeps its version from another resolution if it names the same script there.
    pub async fn resolve_like(&self, revision: &Revision, other: i64) -> Result<Arc<Resolution>, EngineError> {
        let kept = self.resolved(other).await?;
        self.resolve_with(revision, &kept).await
    }

    async fn resolve_with(&self, revision: &Revision, kept: &Value) -> Result<Arc<Resolution>, EngineError> {
        let generation = self.generation.load(Ordering::Acquire);
        let (named, scripts) = self.name_scripts(revision, kept).await?;
        let id = self.store.resolution(revision.id, &named).await?;
        Ok(self.keep_resolution(generation, id, revision, scripts))
    }

    /// Which script versions a resolution names.
    async fn resolved(&self, id: i64) -> Result<Value, EngineError> {
        let named = self.store.resolved_scripts(id).await?;
        named.ok_or_else(|| EngineError::unreadable(format!("there is no resolution {id}")))
    }

    /// A resolution of scripts as they were in a generation.
    fn keep_resolution(
        &self,
        generation: u64,
        id: i64,
        revision: &Revision,
        scripts: Vec<Option<Arc<ScriptFacts>>>,
    ) -> Arc<Resolution> {
        let resolution = Resolution::new(id, revision, scripts);
        if self.generation.load(Ordering::Acquire) == generation {
            self.resolutions.insert(id, resolution.clone());
        }
        resolution
    }

    /// A resolution; only the runtimes of its scripts can change.
    pub async fn resolution(&self, id: i64, revision: &Revision) -> Result<Arc<Resolution>, EngineError> {
        if let Some(resolution) = self.resolutions.get(&id) {
            return Ok(resolution);
        }
        let generation = self.generation.load(Ordering::Acquire);
        let named = self.resolved(id).await?;
        let mut scripts = Vec::with_capacity(revision.plan.tasks.len());
        for task in &revision.plan.tasks {
            let entry = &named[task.name.as_str()];
            let facts = match (entry["script"].as_str(), entry["version"].as_i64()) {
                (Some(name), Some(version)) => self.version(name, version as i32).await?,
                _ => None,
            };
            scripts.push(facts);
        }
        Ok(self.keep_resolution(generation, id, revision, scripts))
    }

    /// A script by its name: the given version, or the active one.
    pub async fn script(&self, name: &str, version: Option<i32>) -> Result<Option<Arc<ScriptFacts>>, EngineError> {
        let version = match version {
            Some(version) => version,
            None => match self.active_version(name).await? {
                Some(version) => version,
                None => return Ok(None),
            },
        };
        self.version(name, version).await
    }

    async fn active_version(&self, name: &str) -> Result<Option<i32>, EngineError> {
        if let Some(version) = self.active.get(name) {
            return Ok(version);
        }
        let generation = self.generation.load(Ordering::Acquire);
        let version = self.store.script(name).await?.and_then(|row| row.active_version);
        if self.generation.load(Ordering::Acquire) == generation {
            self.active.insert(name.to_owned(), version);
        }
        Ok(version)
    }

    async fn version(&self, name: &str, version: i32) -> Result<Option<Arc<ScriptFacts>>, EngineError> {
        let key = (name.to_owned(), version);
        if let Some(facts) = self.versions.get(&key) {
            return Ok(Some(facts));
        }
        let generation = self.generation.load(Ordering::Acquire);
        let Some(row) = self.store.recorded_script_version(name, version).await? else {
            return Ok(None);
        };
        // An unusable schema is no error here: only values that are checked against it fail.
        let schema = row
            .params_schema
            .as_ref()
            .map(|schema| Schema::of_kept(schema, &format!("script `{}@{}`", row.name, row.version)));
        let defaults = row.defaults()?.clone();
        let facts = Arc::new(ScriptFacts {
            code: heddle_sandbox::code_key(&row.digest, &row.world, row.runtime_tag.as_deref()),
            runs: row.has("run").unwrap_or(true),
            runtime: row.runtime_tag,
            name: row.name,
            version: row.version,
            digest: format!("sha256:{}", row.digest),
            file: heddle_sandbox::Language::of_world(&row.world).map(heddle_sandbox::Language::file),
            schema,
            defaults,
        });
        if self.generation.load(Ordering::Acquire) == generation {
            self.versions.insert(key, facts.clone());
        }
        Ok(Some(facts))
    }
}

/// The version that a task had, if it has the same script.
fn kept_version(task: &Value, script: &str) -> Option<i32> {
    if task["script"].as_str()? == script {
        i32::try_from(task["version"].as_i64()?).ok()
    } else {
        None
    }
}

/// Per task: whether its params satisfy the script's schema without a run's params.
fn fits(revision: &Revision, scripts: &[Option<Arc<ScriptFacts>>]) -> Vec<bool> {
    let none = Map::new();
    let plan = &revision.plan;
    let mut fits = vec![true; plan.tasks.len()];
    for ((task, script), fits) in plan.tasks.iter().zip(scripts).zip(&mut fits) {
        let Some(script) = script else { continue };
        let Some(schema) = &script.schema else { continue };
        let layers = Layers {
            defaults: &script.defaults,
            group: &plan.spec.params,
            task: &task.spec.params,
            run: &none,
            task_run: &none,
        };
        let (value, unknown) = layers.constant();
        *fits = schema.check_except(&Value::Object(value), &unknown).is_empty();
    }
    fits
}

/// `name@3` is version 3 of `name`; `name` alone means the active one.
pub fn split_version(text: &str) -> (&str, Option<i32>) {
    match text.rsplit_once('@') {
        Some((name, version)) => match version.parse() {
            Ok(version) => (name, Some(version)),
            Err(_) => (text, None),
        },
        None => (text, None),
    }
}
