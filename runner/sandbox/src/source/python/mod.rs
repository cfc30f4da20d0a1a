//! Scripts in Python.
//!
//! CPython consists of libraries that are linked into one module ([`link`]), which is compiled once. Its memory was set
//! up once, with our own module (`runtime.py`) evaluated in it, and is kept on disk: it has some 20 MiB. A script's top
//! level changes only a small part of it, so only the change is kept for a script ([`change`]): a run begins with a
//! copy-on-write mapping of the memory that all scripts share, and the script's changes are written into it. Further
//! modules of the standard library that a script imports come from an archive ([`archive`]), which is the only file
//! ([`system`]).

mod archive;
mod change;
mod link;
mod merge;
mod part;
mod state;
mod system;

use super::bundle::{self, RuntimeBundle};
use super::calls;
use super::fault::SourceFault;
use super::image::{PAGE_BYTES, pieces};
use super::language::Language;
use super::library::Library;
use super::snapshot::{Described, NoSnapshot, Snapshot};
use crate::guest::Guest;
use bytes::Bytes;
pub(crate) use change::Change;
use merge::ALLOCATOR;
pub(super) use state::State;
use std::sync::Arc;
use wasm_encoder::{ConstExpr, DataSection, ExportKind, ExportSection, MemorySection, MemoryType};
use wasmtime::{Engine, Instance, Linker, Memory, Module, Store, TypedFunc};

/// Our module in Python.
const RUNTIME: &str = include_str!("runtime.py");
/// Connects CPython's functions with ours.
const GLUE: &str = include_str!("glue.wat");
/// The largest unpacked size of the files in this program.
const MAX_UNPACKED_BYTES: u64 = 256 << 20;
/// The error for a module without a function that Heddle calls.
const NO_FUNCTION: &str = "does not have `run`; write `def run(params, ctx): …` (or `def handle(batch, ctx): …` for a \
    topic)";

/// The names of the parts of a bundle.
const CODE: &str = "code";
const ARCHIVE: &str = "archive";
const MODULE: &str = "runtime.py";

/// This program's own runtime: its files of CPython, unpacked and linked.
pub(super) fn bundle() -> Result<RuntimeBundle, String> {
    let python = &heddle_runtimes::PYTHON;
    let libraries = python.libraries.iter().map(|packed| {
        let wasm = unpacked(packed)?;
        Library::take_apart(&wasm).map_err(|error| format!("the interpreter {error}"))
    });
    let libraries = libraries.collect::<Result<Vec<_>, String>>()?;
    let linked = link::link(&libraries, GLUE).map_err(|error| format!("the interpreter: {error}"))?;
    let archive = archive::of_tar(&unpacked(python.standard_library)?)?;
    let numbers = [
        ("stack", part::STACK_BYTES),
        ("load", linked.load),
        ("begin", linked.begin),
    ];
    let parts = [
        (CODE, Bytes::from(linked.code)),
        ("memory", Bytes::from(linked.memory)),
        (ARCHIVE, Bytes::from(archive)),
        (MODULE, Bytes::from_static(RUNTIME.as_bytes())),
    ];
    let parts = parts.map(|(name, part)| (name.to_owned(), part));
    Ok(RuntimeBundle::new(Language::Python, numbers, parts))
}

/// The host's functions for it.
pub(super) fn linker(engine: &Engine, code: &Module) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    system::add_to_linker(&mut linker, code)?;
    calls::add_take_to_linker(&mut linker)?;
    Ok(linker)
}

/// The operations that it has in addition to JavaScript's, by number.
#[cfg(test)]
pub(super) fn numbers() -> impl Iterator<Item = (&'static str, u32)> {
    system::NUMBERS.into_iter()
}

/// The code of a runtime, which has to be compiled.
pub(super) fn code_of(bundle: &RuntimeBundle) -> Result<Bytes, String> {
    bundle.part(CODE)
}

fn unpacked(packed: &[u8]) -> Result<Vec<u8>, String> {
    bundle::unpacked(packed, MAX_UNPACKED_BYTES).map_err(|error| format!("the interpreter cannot be unpacked: {error}"))
}

pub(crate) struct Python {
    /// The digest of its bundle.
    pub tag: String,
    /// The name of the module that Heddle adds.
    module: Arc<str>,
    stack: u32,
    code: Module,
    /// The sources of its imports: the host, except for the memory.
    imports: Vec<Option<(String, String)>>,
    linker: Linker<Guest>,
    archive: Bytes,
    /// The memory after our module was evaluated, with its digest: changes of scripts are applied to no other.
    base: Module,
    pub base_digest: String,
    /// The address of the names of our module's functions.
    load: u32,
    begin: u32,
}

struct Running {
    memory: Memory,
    stack: u32,
    boot: TypedFunc<(), u32>,
    enter: TypedFunc<u32, u32>,
}

impl Python {
    /// With a memory where nothing ran; it still has to be [booted](boot).
    pub fn new(engine: &Engine, bundle: &RuntimeBundle, tag: String, code: Module) -> Result<Self, String> {
        let text = |error: wasmtime::Error| format!("the interpreter: {error:#}");
        let base = Module::new(engine, image(&bundle.memory()?)).map_err(text)?;
        let mut linker = linker(engine, &code).map_err(text)?;
        linker.define_unknown_imports_as_traps(&code).map_err(text)?;
        let imports = code.imports().map(|import| {
            let is_memory = import.ty().memory().is_some();
            (!is_memory).then(|| (import.module().to_owned(), import.name().to_owned()))
        });
        Ok(Self {
            tag,
            module: bundle.text(MODULE)?.into(),
            stack: bundle.number("stack")?,
            imports: imports.collect(),
            linker,
            // (A copy: the bundle's other parts are not needed any more.)
            archive: Bytes::copy_from_slice(&bundle.part(ARCHIVE)?),
            base,
            base_digest: String::new(),
            load: bundle.number("load")?,
            begin: bundle.number("begin")?,
            code,
        })
    }

    /// The same with the memory that [`boot`] returned.
    pub fn booted(&self, base: Module, base_digest: String) -> Self {
        Self {
            tag: self.tag.clone(),
            module: Arc::clone(&self.module),
            stack: self.stack,
            code: self.code.clone(),
            imports: self.imports.clone(),
            linker: self.linker.clone(),
            archive: self.archive.clone(),
            base,
            base_digest,
            load: self.load,
            begin: self.begin,
        }
    }

    async fn instantiate(&self, store: &mut Store<Guest>) -> wasmtime::Result<Running> {
        store.data_mut().source.python.archive = Some(self.archive.clone());
        let image = Instance::new_async(&mut *store, &self.base, &[]).await?;
        let memory = image
            .get_memory(&mut *store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("the image has no memory"))?;
        store.data_mut().source.memory = Some(memory);
        let mut imports = Vec::with_capacity(self.imports.len());
        for import in &self.imports {
            imports.push(match import {
                Some((module, name)) => self.linker.get(&mut *store, module, name)?,
                None => memory.into(),
            });
        }
        let code = Instance::new_async(&mut *store, &self.code, &imports).await?;
        store.data_mut().source.realloc = Some(code.get_typed_func(&mut *store, ALLOCATOR)?);
        Ok(Running {
            memory,
            stack: self.stack,
            boot: code.get_typed_func(&mut *store, "boot")?,
            enter: code.get_typed_func(&mut *store, "enter")?,
        })
    }
}

impl Running {
    /// Calls a function of our module, which reports its result to the host itself.
    async fn enter(&self, store: &mut Store<Guest>, name: u32) -> wasmtime::Result<()> {
        match self.enter.call_async(&mut *store, name).await? {
            0 => Ok(()),
            _ => Err(wasmtime::Error::msg("the interpreter failed")),
        }
    }

    /// The content of the memory, except for the stack, which is empty between calls.
    fn memory(&self, store: &mut Store<Guest>) -> Vec<u8> {
        let mut memory = self.memory.data(&*store).to_vec();
        memory[..self.stack as usize].fill(0);
        memory
    }
}

/// A memory as a module without anything else. The memory's length is whole pages.
pub(super) fn image(memory: &[u8]) -> Vec<u8> {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: memory.len() as u64 / u64::from(PAGE_BYTES),
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0);
    let mut data = DataSection::new();
    for (start, bytes) in pieces(memory) {
        let at = ConstExpr::i32_const((start as u32).cast_signed());
        data.active(0, &at, bytes.iter().copied());
    }
    let mut module = wasm_encoder::Module::new();
    module.section(&memories).section(&exports).section(&data);
    module.finish()
}

/// Sets CPython up and evaluates our module: the memory with which texts begin.
pub(super) async fn boot(store: &mut Store<Guest>, python: &Python) -> wasmtime::Result<Vec<u8>> {
    let running = python.instantiate(store).await?;
    store.data_mut().source.python.input = Some(python.module.to_string());
    match running.boot.call_async(&mut *store, ()).await? {
        0 => Ok(running.memory(store)),
        _ => Err(wasmtime::Error::msg("the interpreter cannot be set up")),
    }
}

/// Evaluates a text's top level; the snapshot is the resulting [`Change`].
pub(super) async fn evaluate(store: &mut Store<Guest>, python: &Python, text: &str) -> Result<Snapshot, NoSnapshot> {
    store.data_mut().source.loading = Some((Arc::from(text), Language::Python.file()));
    let running = python.instantiate(store).await?;
    let before = running.memory(store);
    store.data_mut().source.python.input = Some(text.to_owned());
    running.enter(store, python.load).await?;
    let said = store.data_mut().source.description.take().unwrap_or_default();
    let described: Described = serde_json::from_str(&said)
        .map_err(|error| SourceFault::new(format!("`params`, `defaults` or `description` is not valid: {error}")))?;
    if let Some(fault) = described.fault(text) {
        return Err(fault.into());
    }
    described.check(NO_FUNCTION).map_err(SourceFault::new)?;
    let memory = change::between(&before, &running.memory(store));
    Ok(Snapshot { memory, described })
}

/// Runs a script; how it ended is JSON. `None`: it ended without reporting how.
pub(super) async fn run(
    store: &mut Store<Guest>,
    python: &Python,
    change: &Change,
    begin: String,
) -> wasmtime::Result<Option<String>> {
    let running = python.instantiate(store).await?;
    change.apply(store, running.memory)?;
    store.data_mut().source.python.input = Some(begin);
    running.enter(store, python.begin).await?;
    Ok(store.data_mut().source.ended.take())
}
