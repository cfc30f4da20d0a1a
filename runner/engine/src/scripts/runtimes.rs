//! Runtimes of text scripts.
//!
//! A program has one runtime of its own for each language. It is stored before the first script that is checked with
//! it, and the script's version names it: other programs load it from there ([`super::Scripts::load`]), so that a script
//! keeps the runtime with which it was checked, whatever program runs it. A program with another runtime can retire it:
//! its versions are checked with that runtime, and name it from then on. Nobody knows which programs exist, so nothing is
//! retired automatically.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::{Chain, Time};
use heddle_sandbox::{CompileError, Compiled, Language, RuntimeBundle, RuntimeId, needs_newer_program};
use heddle_store::StoreError;
use heddle_store::change::By;
use heddle_store::runtime::{Retired, RuntimeRow, RuntimeWrite, VersionInUse};

use super::{Scripts, uploaded};
use crate::EngineError;
use crate::node::Node;
use crate::node::service::{NEVER, Needs, Service};

/// How many versions are read at once.
const PAGE: i64 = 200;

/// How many runtimes a node checks when it starts. There is one for each language and build with which scripts were
/// checked, unless it was retired.
const RUNTIMES_MAX: i64 = 1_000;

/// How often versions are checked again because they were uploaded or activated meanwhile.
const ROUNDS_MAX: u32 = 5;

/// How many scripts a line of the log names.
const NAMED_MAX: usize = 20;

/// How long a node is up before it looks at kept runtimes: reading one back takes a core some 20 ms, in which nobody
/// should wait for the start.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// The pause before a node tries again to report which scripts use kept runtimes.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A version that was checked with another runtime, as this program's own runtime sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recheck {
    pub name: String,
    pub version: i32,
    /// What would be different: `description`, `defaults`, `params_schema`, `exports`.
    pub changed: Vec<&'static str>,
    /// Why it would be refused.
    pub error: Option<String>,
}

impl Recheck {
    /// Whether nothing would change.
    pub fn is_same(&self) -> bool {
        self.changed.is_empty() && self.error.is_none()
    }
}

impl std::fmt::Display for Recheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}: ", self.name, self.version)?;
        match &self.error {
            Some(error) => write!(f, "fails: {error}"),
            None if self.changed.is_empty() => f.write_str("same"),
            None => write!(f, "changes: {}", self.changed.join(", ")),
        }
    }
}

/// The result of retiring a runtime.
#[derive(Clone, Debug)]
pub enum Retirement {
    /// There is no runtime with this tag.
    Missing,
    /// It is this program's own runtime.
    Current,
    /// It is of a newer program, and cannot be used here, for this reason. Without force, it stays: its scripts and new
    /// uploads would get an older interpreter on all nodes.
    Newer(String),
    /// These would change, or be refused.
    Refused(Vec<Recheck>),
    /// Versions are uploaded or activated with it faster than they can be checked.
    Contended,
    /// No version names it any more.
    Done {
        /// How many versions were moved.
        versions: u64,
        /// The runtime that their scripts have now.
        onto: RuntimeId,
        /// The results of the checks of those scripts that are in use.
        scripts: Vec<Recheck>,
    },
}

/// The language of a runtime. A newer program may have stored one of a language that this one does not know.
fn language_of(row: &RuntimeRow) -> Result<Language, StoreError> {
    let named = Language::ALL
        .into_iter()
        .find(|language| language.as_str() == row.language);
    named.ok_or_else(|| StoreError::unreadable("runtimes", "language", &row.tag, format_args!("`{}`", row.language)))
}

/// Why a runtime needs a newer program than this one; `None`: it does not.
fn newer(row: &RuntimeRow) -> Option<String> {
    u32::try_from(row.interface).ok().and_then(needs_newer_program)
}

/// What is different in a version.
fn changes(version: &VersionInUse, compiled: &Compiled) -> Vec<&'static str> {
    let same = [
        (
            "description",
            version.description == compiled.description.as_deref().unwrap_or_default(),
        ),
        ("defaults", version.defaults.as_object() == Some(&compiled.defaults)),
        ("params_schema", version.params_schema == compiled.params_schema),
        (
            "exports",
            version
                .exports
                .as_ref()
                .is_none_or(|exports| *exports == compiled.exports),
        ),
    ];
    same.into_iter()
        .filter(|(_, same)| !same)
        .map(|(what, _)| what)
        .collect()
}

/// This program's own runtime, in its stored form.
async fn packed(language: Language) -> Result<Vec<u8>, EngineError> {
    let packed = tokio::task::spawn_blocking(move || RuntimeBundle::own(language).map(|bundle| bundle.pack()));
    let packed = packed.await.map_err(EngineError::unreadable)?;
    packed.map_err(EngineError::unreadable)
}

fn written<'a>(own: &'a RuntimeId, packed: &'a [u8]) -> RuntimeWrite<'a> {
    RuntimeWrite {
        tag: &own.tag,
        language: own.language.as_str(),
        interpreter: &own.interpreter,
        interface: i32::try_from(own.interface).unwrap_or(i32::MAX),
        bytes: packed,
    }
}

impl Scripts {
    /// This program's runtime for a language.
    pub(crate) async fn own_runtime(&self, language: Language) -> Result<&'static RuntimeId, EngineError> {
        let own = self.sandbox.own_runtime(language).await;
        own.map_err(EngineError::unreadable)
    }

    /// Stores this program's own runtime for other programs: before a script is stored that was checked with it.
    pub(crate) async fn keep_runtime(&self, language: Language) -> Result<&'static RuntimeId, EngineError> {
        let own = self.own_runtime(language).await?;
        if self.node.store.keeps_runtime(&own.tag).await? {
            return Ok(own);
        }
        let packed = packed(language).await?;
        self.node
            .store
            .put_runtime(self.node.now(), written(own, &packed))
            .await?;
        tracing::info!(
            runtime = own.tag,
            language = own.language.as_str(),
            bytes = packed.len(),
            "stored a runtime of source scripts in the database"
        );
        Ok(own)
    }

    /// Repairs the stored form of this program's own runtime: other programs load it, and it may be damaged.
    async fn mend_runtime(&self, own: &'static RuntimeId) -> Result<(), EngineError> {
        let Some(kept) = self.node.store.runtime_bytes(&own.tag).await? else {
            return Ok(());
        };
        let whole = tokio::task::spawn_blocking(move || RuntimeBundle::unpack(&kept, &own.tag).map(drop));
        let Err(why) = whole.await.map_err(EngineError::unreadable)? else {
            return Ok(());
        };
        let packed = packed(own.language).await?;
        self.node.store.mend_runtime(written(own, &packed)).await?;
        tracing::warn!(
            runtime = own.tag,
            why,
            "a kept runtime was damaged; this program has the same one, and has written it again"
        );
        Ok(())
    }

    /// Stores what texts export that were uploaded by builds which did not store it.
    async fn note_exports(&self) -> Result<(), EngineError> {
        let mut behind = (0, 0);
        loop {
            let page = self.node.store.versions_without_exports(behind, PAGE).await?;
            for version in &page {
                behind = (version.script_id, version.version);
                let text = self.node.store.blob(&version.digest).await?;
                let Some((language, text)) = Language::of_world(&version.world).zip(text) else {
                    continue;
                };
                match self.sandbox.check_source(language, uploaded(text)).await {
                    Ok(compiled) => {
                        let noted = self.node.store.note_exports(behind.0, behind.1, &compiled.exports);
                        noted.await?;
                    }
                    // If it has a `run`, that will report the error.
                    Err(error) => {
                        tracing::debug!(script = version.name, version = version.version, %error, "a text cannot be checked")
                    }
                }
            }
            if (page.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }

    /// Checks a version with this program's own runtime.
    async fn recheck(&self, version: &VersionInUse) -> Result<Recheck, EngineError> {
        let recheck = |changed, error| Recheck {
            name: version.name.clone(),
            version: version.version,
            changed,
            error,
        };
        let Some(language) = Language::of_world(&version.world) else {
            return Ok(recheck(Vec::new(), None));
        };
        let text = self.node.store.blob(&version.digest).await?;
        let text = text.ok_or_else(|| {
            EngineError::unreadable(format!(
                "the source text of {}@{} was deleted",
                version.name, version.version
            ))
        })?;
        match self.sandbox.check_source(language, uploaded(text)).await {
            Ok(compiled) => Ok(recheck(changes(version, &compiled), None)),
            Err(CompileError::NotNow(stopped)) => Err(stopped.into()),
            // An error of this machine is not the script's.
            Err(error @ CompileError::Internal(_)) => Err(EngineError::unreadable(error)),
            Err(error) => Ok(recheck(Vec::new(), Some(error.to_string()))),
        }
    }

    /// The same for all versions in use that name a runtime and were not checked before.
    async fn recheck_all(
        &self,
        tag: &str,
        looked_at: &mut HashSet<(i64, i32)>,
        found: &mut Vec<Recheck>,
    ) -> Result<(), EngineError> {
        let mut behind = (0, 0);
        loop {
            let page = self.node.store.versions_in_use(tag, behind, PAGE).await?;
            for version in &page {
                behind = (version.script_id, version.version);
                if looked_at.insert(behind) {
                    found.push(self.recheck(version).await?);
                }
            }
            if (page.len() as i64) < PAGE {
                return Ok(());
            }
        }
    }

    /// Moves the scripts of another runtime to this program's own.
    pub(crate) async fn retire_runtime(&self, by: By<'_>, tag: &str, force: bool) -> Result<Retirement, EngineError> {
        let Some(row) = self.node.store.runtime(tag).await? else {
            return Ok(Retirement::Missing);
        };
        let language = language_of(&row)?;
        if self.own_runtime(language).await?.tag == tag {
            return Ok(Retirement::Current);
        }
        if !force && let Some(why) = newer(&row) {
            return Ok(Retirement::Newer(why));
        }
        let own = self.keep_runtime(language).await?;
        let (mut looked_at, mut scripts) = (HashSet::new(), Vec::new());
        for _ in 0..ROUNDS_MAX {
            self.recheck_all(tag, &mut looked_at, &mut scripts).await?;
            if !force && !scripts.iter().all(Recheck::is_same) {
                scripts.retain(|script| !script.is_same());
                return Ok(Retirement::Refused(scripts));
            }
            let known: Vec<(i64, i32)> = looked_at.iter().copied().collect();
            let onto = (own.tag.as_str(), own.to_string());
            match self
                .node
                .store
                .retire_runtime(by, tag, (onto.0, &onto.1), &known)
                .await?
            {
                Retired::Missing => return Ok(Retirement::Missing),
                Retired::Others => {}
                Retired::Done { versions } => {
                    return Ok(Retirement::Done {
                        versions,
                        onto: own.clone(),
                        scripts,
                    });
                }
            }
        }
        Ok(Retirement::Contended)
    }
}

/// After the start of a node, logs which scripts use runtimes that are not this program's own, and what would change
/// with this one: the remaining work of an upgrade. Also repairs this program's own stored runtime if it is damaged.
pub(crate) struct Rechecker(pub(crate) Arc<Scripts>);

impl Service for Rechecker {
    const FAILED: &'static str = "cannot check scripts of older runtimes with the runtime of this version";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = AGAIN_AFTER;

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    fn first_after(&self) -> Duration {
        LOOK_AFTER
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let stop = self.0.node.stop.clone();
        tokio::select! {
            // A stopping node does not wait for checks.
            () = stop.cancelled() => {}
            done = self.look() => done?,
        }
        Ok(NEVER)
    }
}

impl Rechecker {
    async fn look(&self) -> Result<(), EngineError> {
        let all = self.0.node.store.runtimes(None, RUNTIMES_MAX).await?.items;
        for row in all.iter().filter(|row| row.versions > 0) {
            let language = match language_of(row) {
                Ok(language) => language,
                Err(error) => {
                    // An error with one runtime; the others are still reported.
                    tracing::warn!(runtime = row.tag, error = %Chain(&error), "{}", Self::FAILED);
                    continue;
                }
            };
            let own = self.0.own_runtime(language).await?;
            match own.tag == row.tag {
                true => self.0.mend_runtime(own).await?,
                false => self.tell(row, language).await?,
            }
        }
        self.0.note_exports().await
    }

    async fn tell(&self, row: &RuntimeRow, language: Language) -> Result<(), EngineError> {
        // It is compiled now, so that no run has to wait for that.
        let kept = self.0.node.store.runtime_bytes(&row.tag);
        let sandbox = &self.0.sandbox;
        match sandbox.prepare_kept(&row.tag, language, kept).await {
            Ok(true) => {}
            // Its scripts do not run on it here. This and the reason are in the log already.
            Ok(false) => return Ok(()),
            Err(error) => {
                tracing::warn!(runtime = row.tag, error = %Chain(&error), "cannot prepare a kept runtime; its \
                scripts compile when a run needs them")
            }
        }
        let own = self.0.own_runtime(language).await?;
        let mut scripts = Vec::new();
        let checked = self.0.recheck_all(&row.tag, &mut HashSet::new(), &mut scripts).await;
        if let Err(error) = checked {
            // An error with one runtime; the others are still reported.
            tracing::warn!(runtime = row.tag, error = %Chain(&error), "{}", Self::FAILED);
            return Ok(());
        }
        if scripts.is_empty() {
            return Ok(());
        }
        let named = |scripts: Vec<String>| match scripts.len().checked_sub(NAMED_MAX) {
            None | Some(0) => scripts.join(", "),
            Some(more) => format!("{} and {more} more", scripts[..NAMED_MAX].join(", ")),
        };
        let names = scripts
            .iter()
            .map(|script| format!("{}@{}", script.name, script.version));
        tracing::info!(
            runtime = row.tag,
            interpreter = row.interpreter,
            own = own.tag,
            scripts = named(names.collect()),
            "source scripts run on an older runtime, not on the one of this version"
        );
        let others: Vec<String> = scripts
            .iter()
            .filter(|script| !script.is_same())
            .map(ToString::to_string)
            .collect();
        match others.is_empty() {
            true => tracing::info!(
                runtime = row.tag,
                "none of these scripts would change if the older runtime were \
                retired: `heddle runtime retire`"
            ),
            false => tracing::warn!(
                runtime = row.tag,
                scripts = named(others),
                "some of these scripts would change if the older runtime were retired; check them before `heddle \
                runtime retire`"
            ),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_language_is_not_taken_for_another_one() {
        let row = |language: &str| RuntimeRow {
            tag: "0".repeat(64),
            language: language.to_owned(),
            interpreter: "1".to_owned(),
            interface: 1,
            size: 0,
            created_at: Time::default(),
            retired_at: None,
            versions: 0,
            scripts: 0,
        };
        for language in Language::ALL {
            assert_eq!(language_of(&row(language.as_str())).unwrap(), language);
        }
        assert!(language_of(&row("ruby")).is_err());
    }
}
