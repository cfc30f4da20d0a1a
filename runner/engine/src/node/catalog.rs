//! What nodes know of groups, revisions and scripts without asking the database each time.
//!
//! Revisions, script versions and resolutions are immutable, and are cached while there is room; only the runtimes of
//! versions can change. The meaning of a *name* changes too. Both kinds of entries are dropped when the change log says
//! so, at once on the node that made the change.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heddle_domain::Chain;
use heddle_domain::Name;
use heddle_domain::executor::Executor;
use heddle_domain::params::Layers;
use heddle_domain::schema::Schema;
use heddle_store::change::{Change, Noun};
use heddle_store::group::RevisionRow;
use heddle_store::{Store, StoreError};
use quick_cache::sync::Cache;
use serde_json::{Map, Value, json};

pub use super::revision::Revision;
pub(crate) use super::revision::is_timed;
use crate::EngineError;

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

    /// Forgets what all names mean: the log of changes could not be read after a change.
    pub(crate) fn forget_names(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.groups.clear();
        self.current.clear();
        self.active.clear();
        self.channels.clear();
    }

    /// Forgets everything: the server may be another one, which has lost the last commits of the former one. Then revisions
    /// and resolutions that are cached here may not exist, and their numbers may be given to others.
    pub(crate) fn forget_all(&self) {
        self.forget_names();
        self.revisions.clear();
        self.resolutions.clear();
        self.versions.clear();
    }

    /// Takes note of the error of a transaction that creates runs: if the database does not have what these need, everything
    /// is forgotten, and the next try reads it again.
    pub(crate) fn heed(&self, error: StoreError) -> StoreError {
        if matches!(error, StoreError::Outdated) {
            tracing::warn!(
                "the database does not have a revision or a resolution that this node knows; it reads all of them \
                again"
            );
            self.forget_all();
        }
        error
    }

    /// The present generation: to be asked before something is read that is to be kept ([`Self::keep`]).
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Caches what was read in a generation, unless something has changed since. A change between the look and the insertion
    /// would not remove it: so the look is after the insertion. The cache may be one of another service, which is cleared
    /// after this one ([`super::part::Part::forget`]).
    pub(crate) fn keep<K: Clone + Eq + Hash, V: Clone>(&self, cache: &Cache<K, V>, generation: u64, key: K, value: V) {
        cache.insert(key.clone(), value);
        if self.generation.load(Ordering::Acquire) != generation {
            cache.remove(&key);
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
        self.keep(&self.groups, generation, row.name, group.clone());
        Ok(Some(group))
    }

    /// Whether there is a channel of that name.
    pub(crate) async fn channel(&self, name: &str) -> Result<bool, EngineError> {
        if let Some(known) = self.channels.get(name) {
            return Ok(known);
        }
        let generation = self.generation.load(Ordering::Acquire);
        let known = !self.store.known_channels(&[name.to_owned()]).await?.is_empty();
        if known {
            self.keep(&self.channels, generation, name.to_owned(), known);
        }
        Ok(known)
    }

    /// A revision; it never changes.
    pub async fn revision(&self, id: i64) -> Result<Arc<Revision>, EngineError> {
        if let Some(revision) = self.revisions.get(&id) {
            return Ok(revision);
        }
        let generation = self.generation.load(Ordering::Acquire);
        let row = self
            .store
            .revision(id)
            .await?
            .ok_or_else(|| EngineError::unreadable(format!("there is no revision {id}")))?;
        let group_name = match self.store.group_by_id(row.group_id).await? {
            Some(group) => group.name,
            None => String::new(),
        };
        self.keep_revision(generation, row, group_name)
    }

    fn keep_revision(
        &self,
        generation: u64,
        row: RevisionRow,
        group_name: String,
    ) -> Result<Arc<Revision>, EngineError> {
        let revision = Arc::new(Revision::of_row(row, group_name)?);
        self.keep(&self.revisions, generation, revision.id, revision.clone());
        Ok(revision)
    }

    /// Revisions; they never change. One statement reads all that are not cached. Unreadable ones are left out and
    /// logged.
    pub(crate) async fn revisions(&self, ids: &[i64]) -> Result<HashMap<i64, Arc<Revision>>, EngineError> {
        let mut revisions = HashMap::with_capacity(ids.len());
        let mut missing = Vec::new();
        let generation = self.generation.load(Ordering::Acquire);
        for &id in ids {
            match self.revisions.get(&id) {
                Some(revision) => drop(revisions.insert(id, revision)),
                None => missing.push(id),
            }
        }
        if !missing.is_empty() {
            for (row, name) in self.store.revisions_by_id(&missing).await? {
                let id = row.id;
                match self.keep_revision(generation, row, name) {
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
                self.keep(&self.current, generation, revision.id, resolution.clone());
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
        self.keep(&self.resolutions, generation, id, resolution.clone());
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
        self.keep(&self.active, generation, name.to_owned(), version);
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
        self.keep(&self.versions, generation, key, facts.clone());
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
