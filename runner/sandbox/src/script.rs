//! A linked script, and its world.

use crate::artefact::Artefact;
use crate::bindings::{consumer::ConsumerPre, task::TaskPre};
use crate::bounds::Kind;
use crate::guest::Guest;
use crate::rehearsal::{HasMonotonic, Monotonic};
use crate::source::Language;
use crate::source::attempt::SourceScript;
use std::sync::Arc;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{self, Component};
use wasmtime::{Engine, ExternType, InstancePre, Module};
use wasmtime_wasi::clocks::WasiClocksCtxView;
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::{WasiCtxView, WasiView};

/// How many names an error lists.
const MAX_NAMES: usize = 20;
/// The longest name that it shows.
const MAX_NAME_BYTES: usize = 200;

/// The kind of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// A component for `heddle:task/task`.
    Task,
    /// A component for `heddle:task/consumer`.
    Consumer,
    /// A WASI command: a core module for WASI 0.1.
    CommandP1,
    /// A WASI command: a component for WASI 0.2.
    CommandP2,
    /// A text in this language.
    Source(Language),
}

impl World {
    /// The name that API and database use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Task => "heddle:task/task",
            Self::Consumer => "heddle:task/consumer",
            Self::CommandP1 => "wasi:cli/command@p1",
            Self::CommandP2 => "wasi:cli/command@p2",
            Self::Source(language) => language.world(),
        }
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for World {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Task, Self::Consumer, Self::CommandP1, Self::CommandP2]
            .into_iter()
            .chain(Language::ALL.map(Self::Source))
            .find(|world| world.as_str() == text)
            .ok_or_else(|| format!("`{text}` is not a valid world"))
    }
}

/// A script that can be started at once. Cheap to clone.
#[derive(Clone)]
pub struct Script {
    pub(crate) inner: Arc<Linked>,
}

impl Script {
    /// The digest of the bytes that were uploaded.
    pub fn digest(&self) -> &str {
        &self.inner.digest
    }

    /// What it is written for.
    pub fn world(&self) -> World {
        self.inner.world()
    }

    /// The imports of a component, by name and sorted: what it may ask of Heddle and of WASI. A command of core wasm
    /// imports only WASI. What a text calls is known only when it runs.
    pub fn imports(&self) -> Option<Vec<String>> {
        let component = match &self.inner.entry {
            Entry::Task(pre) => pre.instance_pre().component(),
            Entry::Consumer(pre) => pre.instance_pre().component(),
            Entry::CommandP2(pre) => pre.instance_pre().component(),
            Entry::CommandP1(_) | Entry::Source(_) => return None,
        };
        let ty = component.component_type();
        let mut names: Vec<String> = ty
            .imports(component.engine())
            .map(|(name, _)| name.to_owned())
            .collect();
        names.sort_unstable();
        Some(names)
    }

    /// The functions that it has and Heddle calls: `run` for tasks, `handle` for batches of messages.
    pub fn exports(&self) -> Vec<&'static str> {
        let (runs, handles) = match &self.inner.entry {
            Entry::Consumer(_) => (false, true),
            Entry::Source(script) => (script.runs, script.handles),
            Entry::Task(_) | Entry::CommandP1(_) | Entry::CommandP2(_) => (true, false),
        };
        let all = [(runs, "run"), (handles, "handle")];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }

    /// Whether it accepts batches of messages.
    pub fn consumes(&self) -> bool {
        match &self.inner.entry {
            Entry::Consumer(_) => true,
            Entry::Source(script) => script.handles,
            Entry::Task(_) | Entry::CommandP1(_) | Entry::CommandP2(_) => false,
        }
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script")
            .field("digest", &self.inner.digest)
            .field("world", &self.world())
            .finish()
    }
}

/// A script with its imports resolved.
pub(crate) struct Linked {
    pub digest: String,
    /// The size of its code, used as the memory that it takes.
    pub code_bytes: u64,
    pub entry: Entry,
}

pub(crate) enum Entry {
    Task(TaskPre<Guest>),
    Consumer(ConsumerPre<Guest>),
    CommandP1(InstancePre<Guest>),
    CommandP2(CommandPre<Guest>),
    Source(SourceScript),
}

impl Linked {
    pub fn world(&self) -> World {
        match &self.entry {
            Entry::Task(_) => World::Task,
            Entry::Consumer(_) => World::Consumer,
            Entry::CommandP1(_) => World::CommandP1,
            Entry::CommandP2(_) => World::CommandP2,
            Entry::Source(script) => World::Source(script.language),
        }
    }
}

pub(crate) struct Linker {
    engine: Engine,
    components: component::Linker<Guest>,
    modules: wasmtime::Linker<Guest>,
}

impl Linker {
    pub fn new(engine: &Engine) -> wasmtime::Result<Self> {
        let mut components = component::Linker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut components)?;
        components.allow_shadowing(true);
        monotonic_clock::add_to_linker::<_, HasMonotonic>(&mut components, |guest: &mut Guest| {
            let stage = guest.host.stage.clone();
            let WasiCtxView { ctx, table } = guest.wasi.ctx();
            let clocks = WasiClocksCtxView {
                ctx: ctx.clocks(),
                table,
            };
            Monotonic { clocks, stage }
        })?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut components)?;
        crate::requests::shadow(&mut components)?;
        components.allow_shadowing(false);
        crate::imports::add_to_linker(&mut components)?;
        let mut modules = wasmtime::Linker::new(engine);
        wasmtime_wasi::p1::add_to_linker_async(&mut modules, |guest: &mut Guest| &mut guest.wasi)?;
        Ok(Self {
            engine: engine.clone(),
            components,
            modules,
        })
    }

    /// Prepares an artefact for instances, or says why the script is refused.
    ///
    /// # Safety
    ///
    /// The artefact must come from our compiler, unchanged: its code will be executed.
    pub unsafe fn link(&self, digest: &str, artefact: &Artefact) -> Result<Script, String> {
        let entry = match artefact.kind {
            Kind::Module => {
                // SAFETY: the caller's promise.
                let module = unsafe { artefact.code.module(&self.engine) };
                self.link_module(&module.map_err(|error| too_large(&error))?)?
            }
            Kind::Component => {
                // SAFETY: the caller's promise.
                let component = unsafe { artefact.code.component(&self.engine) };
                self.link_component(&component.map_err(|error| too_large(&error))?)?
            }
            // The module with which it must be linked is not available here.
            Kind::Image => return Err("is a snapshot of a text".into()),
        };
        let linked = Linked {
            digest: digest.to_owned(),
            code_bytes: artefact.code.bytes(),
            entry,
        };
        Ok(Script {
            inner: Arc::new(linked),
        })
    }

    fn link_module(&self, module: &Module) -> Result<Entry, String> {
        match module.get_export("_start") {
            Some(ExternType::Func(start)) if start.params().len() == 0 && start.results().len() == 0 => {}
            Some(_) => return Err("is a core module whose `_start` is not a function without parameters".into()),
            None => {
                let exports = listed(module.exports().map(|export| export.name().to_owned()));
                return Err(format!(
                    "is a core module that exports [{exports}] and no `_start`, so it is not a WASI command; a script \
                    for heddle:task/task must be a component (`wasm-tools component new` creates one)"
                ));
            }
        }
        let foreign = module
            .imports()
            .filter(|import| import.module() != "wasi_snapshot_preview1")
            .map(|import| format!("{}.{}", import.module(), import.name()));
        let foreign = listed(foreign);
        if !foreign.is_empty() {
            return Err(format!(
                "is a core module that imports [{foreign}], which Heddle does not provide; a WASI command may import \
                only `wasi_snapshot_preview1`"
            ));
        }
        let linked = self.modules.instantiate_pre(module);
        linked
            .map(Entry::CommandP1)
            .map_err(|error| format!("is a core module that cannot be linked: {error:#}"))
    }

    fn link_component(&self, component: &Component) -> Result<Entry, String> {
        let ty = component.component_type();
        let exports: Vec<(String, bool)> = ty
            .exports(&self.engine)
            .map(|(name, export)| (name.to_owned(), matches!(export.ty, ComponentItem::ComponentFunc(_))))
            .collect();
        let has = |function: &str| exports.iter().any(|(name, is_func)| *is_func && name == function);
        let command = exports.iter().any(|(name, _)| name.starts_with("wasi:cli/run@0.2"));
        let (run, handle, describe) = (has("run"), has("handle"), has("describe"));
        let list = || listed(exports.iter().map(|(name, _)| name.clone()));
        if !command && !((run || handle) && describe) {
            let missing = match (run, handle) {
                (true, _) => "heddle:task/task (describe missing)",
                (_, true) => "heddle:task/consumer (describe missing)",
                _ if describe => "heddle:task/task (run missing) nor heddle:task/consumer (handle missing)",
                _ => "heddle:task/task (run, describe missing)",
            };
            return Err(format!(
                "is a component that exports [{}], but neither {missing} nor a WASI command (wasi:cli/run missing)",
                list()
            ));
        }
        let foreign = ty
            .imports(&self.engine)
            .filter(|(name, _)| !provided(name))
            .map(|(name, _)| name.to_owned());
        let foreign = listed(foreign);
        if !foreign.is_empty() {
            return Err(format!(
                "is a component that imports [{foreign}], which Heddle does not provide"
            ));
        }
        let linked = self
            .components
            .instantiate_pre(component)
            .map_err(|error| format!("is a component that cannot be linked: {error:#}"))?;
        let misfit = |world: World| {
            move |error: wasmtime::Error| format!("is a component that does not fit the world {world}: {error:#}")
        };
        if run && describe {
            TaskPre::new(linked).map(Entry::Task).map_err(misfit(World::Task))
        } else if handle && describe {
            ConsumerPre::new(linked)
                .map(Entry::Consumer)
                .map_err(misfit(World::Consumer))
        } else {
            CommandPre::new(linked)
                .map(Entry::CommandP2)
                .map_err(misfit(World::CommandP2))
        }
    }
}

fn too_large(error: &wasmtime::Error) -> String {
    format!("cannot be loaded: {error:#}")
}

/// Whether an import is one of ours or of WASI 0.2; the linker checks each of them exactly.
fn provided(import: &str) -> bool {
    if import.starts_with("heddle:task/") {
        return true;
    }
    let Some((interface, version)) = import.split_once('@') else {
        return false;
    };
    let package = interface.split('/').next().unwrap_or_default();
    version.starts_with("0.2.")
        && matches!(
            package,
            "wasi:io" | "wasi:clocks" | "wasi:random" | "wasi:cli" | "wasi:filesystem" | "wasi:sockets" | "wasi:http"
        )
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names
        .take(MAX_NAMES + 1)
        .map(|name| crate::journal::cut(&name, MAX_NAME_BYTES).to_owned())
        .collect();
    if names.len() > MAX_NAMES {
        names[MAX_NAMES] = "…".into();
    }
    names.join(", ")
}
