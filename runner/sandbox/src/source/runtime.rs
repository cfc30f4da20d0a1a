//! The interpreter, compiled once and linked for each run.
//!
//! Three modules form an instance: the *image* (a memory, a table and the globals with addresses), the interpreter's
//! *code*, which imports them, and our *glue*, a few functions in WebAssembly between the interpreter's interface and
//! the host's.
//!
//! The interface is that of `wit-dylib` (its `wit_dylib.h`, version 3): a structure in memory lists the functions that
//! the interpreter may call (`heddle-host`, which JavaScript sees as `heddleHost`) and those that it exports (`begin`,
//! `event`, `describe`, which `js/main.js` defines). Arguments and results are passed on a stack of values that belongs
//! to a call. `wit_dylib_export_async_call` calls an exported function and then runs all microtasks.

use super::bundle::RuntimeBundle;
use super::calls;
use super::image::{self, Layout, OWN_FUNCTIONS, PAGE_BYTES};
use super::language::Language;
use super::library::Library;
use super::rejected;
use super::state::Modules;
use super::wasi;
use crate::artefact::digest_of;
use crate::guest::Guest;
use bytes::Bytes;
use std::sync::Arc;
use wasmtime::{Engine, Extern, Global, Instance, Linker, Memory, Module, Store, TypedFunc, Val};

/// The exported functions, by their position in the interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exported {
    Begin = 0,
    Event = 1,
    Describe = 2,
}

const EXPORTED: [&str; 3] = ["begin", "event", "describe"];
const IMPORTED: &str = "heddle-host";
/// `wit_type_t` of the interface.
const TYPE_U32: u32 = 2;
const TYPE_STRING: u32 = 12;
const TYPE_NONE: u32 = 0xff;
const INTERFACE_VERSION: u32 = 3;
/// Tables of the interface that we leave empty: resources, records, … aliases.
const EMPTY_TABLES: usize = 14;

/// The names of the parts of a bundle.
const CODE: &str = "code";
const GLUE: &str = "glue";
const CHECKER: &str = "checker";
const MODULE: &str = "module ";

/// The largest table: QuickJS has some thousand functions in it.
const MAX_FUNCTIONS: u32 = 1 << 20;

pub(crate) struct Runtime {
    /// The digest of its bundle.
    pub tag: String,
    /// The command that checks texts, and its digest.
    pub checker: Bytes,
    pub checker_digest: String,
    /// The modules that Heddle adds to the interpreter.
    pub modules: Arc<Modules>,
    pub layout: Layout,
    /// The address of the description of our functions.
    described: u32,
    /// The memory before anything ran.
    pub base: Module,
    code: Module,
    glue: Module,
    linker: Linker<Guest>,
    code_imports: Vec<Source>,
    glue_imports: Vec<Source>,
}

/// The source of a module's import.
enum Source {
    Image(&'static str),
    Code(String),
    Host(String, String),
}

/// The instances of an attempt.
pub(crate) struct Running {
    pub memory: Memory,
    code: Instance,
    send: TypedFunc<(u32, u32, u32), u32>,
    /// How many promises have failed and are awaited by nobody. Runtimes of interface 3 and before do not count them.
    rejected: Option<Global>,
    realloc: TypedFunc<(u32, u32, u32, u32), u32>,
}

impl Layout {
    pub fn of_bundle(bundle: &RuntimeBundle) -> Result<Self, String> {
        let layout = Self {
            stack: bundle.number("stack")?,
            memory_base: bundle.number("memory_base")?,
            table_base: bundle.number("table_base")?,
            own_functions: bundle.number("own_functions")?,
            interface: bundle.number("interface")?,
            heap: bundle.number("heap")?,
            pages: bundle.number("pages")?,
        };
        let pages = bundle.memory()?.len() / PAGE_BYTES as usize;
        match layout.pages as usize == pages && layout.own_functions <= MAX_FUNCTIONS {
            true => Ok(layout),
            false => Err("its numbers do not fit its memory".into()),
        }
    }
}

impl Runtime {
    /// Links a runtime. `code` and `glue` are the compiled results of [`code_of`] and [`glue_of`].
    pub fn link(
        engine: &Engine,
        bundle: &RuntimeBundle,
        tag: String,
        code: Module,
        glue: Module,
    ) -> Result<Self, String> {
        let text = |error: wasmtime::Error| format!("the interpreter: {error:#}");
        let layout = Layout::of_bundle(bundle)?;
        let base = Module::new(engine, image::module(&layout, &bundle.memory()?)).map_err(text)?;
        let mut linker = linker(engine).map_err(text)?;
        linker.define_unknown_imports_as_traps(&code).map_err(text)?;
        let code_imports = code
            .imports()
            .map(|import| match (import.module(), import.name()) {
                ("env", "__stack_pointer") => Source::Image("stack_pointer"),
                ("env", "__memory_base") => Source::Image("memory_base"),
                ("env", "__table_base") => Source::Image("table_base"),
                ("env", "memory") => Source::Image("memory"),
                ("env", "__indirect_function_table") => Source::Image("table"),
                ("GOT.mem", "__heap_base") => Source::Image("heap_base"),
                ("GOT.mem", "__heap_end") => Source::Image("heap_end"),
                ("GOT.func", "cabi_realloc") => Source::Image("realloc"),
                (module, name) => Source::Host(module.to_owned(), name.to_owned()),
            })
            .collect();
        let glue_imports = glue
            .imports()
            .map(|import| match (import.module(), import.name()) {
                ("env", "memory") => Source::Image("memory"),
                ("env", "table") => Source::Image("table"),
                ("env", "stack_pointer") => Source::Image("stack_pointer"),
                ("code", name) => Source::Code(name.to_owned()),
                (module, name) => Source::Host(module.to_owned(), name.to_owned()),
            })
            .collect();
        // (A copy: the bundle's other parts are not needed any more.)
        let checker = Bytes::copy_from_slice(&bundle.part(CHECKER)?);
        Ok(Self {
            tag,
            checker_digest: digest_of(&checker),
            checker,
            modules: Arc::new(Modules::new(bundle.texts(MODULE)?)?),
            described: bundle.number("described")?,
            layout,
            base,
            code,
            glue,
            linker,
            code_imports,
            glue_imports,
        })
    }

    /// An instance with a memory.
    pub async fn instantiate(&self, store: &mut Store<Guest>, image: &Module) -> wasmtime::Result<Running> {
        store.data_mut().source.modules = Some(Arc::clone(&self.modules));
        let image = Instance::new_async(&mut *store, image, &[]).await?;
        let imports = self.resolve(store, &self.code_imports, image, None)?;
        let code = Instance::new_async(&mut *store, &self.code, &imports).await?;
        let imports = self.resolve(store, &self.glue_imports, image, Some(code))?;
        let glue = Instance::new_async(&mut *store, &self.glue, &imports).await?;
        let memory = image
            .get_memory(&mut *store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("the image has no memory"))?;
        store.data_mut().source.memory = Some(memory);
        let realloc = code.get_typed_func(&mut *store, "cabi_realloc")?;
        store.data_mut().source.realloc = Some(realloc.clone());
        Ok(Running {
            memory,
            send: glue.get_typed_func(&mut *store, "send")?,
            rejected: glue.get_global(&mut *store, "rejected"),
            realloc,
            code,
        })
    }

    fn resolve(
        &self,
        store: &mut Store<Guest>,
        imports: &[Source],
        image: Instance,
        code: Option<Instance>,
    ) -> wasmtime::Result<Vec<Extern>> {
        let missing = |name: &str| wasmtime::Error::msg(format!("the interpreter's `{name}` is missing"));
        let mut found = Vec::with_capacity(imports.len());
        for import in imports {
            found.push(match import {
                Source::Image(name) => image.get_export(&mut *store, name).ok_or_else(|| missing(name))?,
                Source::Code(name) => code
                    .and_then(|code| code.get_export(&mut *store, name))
                    .ok_or_else(|| missing(name))?,
                Source::Host(module, name) => self.linker.get(&mut *store, module, name)?,
            });
        }
        Ok(found)
    }
}

impl Running {
    /// Writes a text into the guest's memory; the guest frees it.
    pub async fn put(&self, store: &mut Store<Guest>, text: &str) -> wasmtime::Result<(u32, u32)> {
        let length = u32::try_from(text.len()).map_err(wasmtime::Error::from)?;
        let at = self.realloc.call_async(&mut *store, (0, 0, 1, length)).await?;
        self.memory.write(&mut *store, at as usize, text.as_bytes())?;
        Ok((at, length))
    }

    /// Calls an exported function, and runs the microtasks that follow.
    pub async fn send(&self, store: &mut Store<Guest>, which: Exported, text: &str) -> wasmtime::Result<()> {
        let (at, length) = self.put(store, text).await?;
        self.send.call_async(&mut *store, (which as u32, at, length)).await?;
        Ok(())
    }

    /// Lets the log tell of promises that have failed and that nobody awaits, if there are such.
    pub async fn tell_rejected(&self, store: &mut Store<Guest>) -> wasmtime::Result<()> {
        let Some(rejected) = self.rejected else {
            return Ok(());
        };
        if rejected.get(&mut *store).i32().unwrap_or_default() == 0 {
            return Ok(());
        }
        rejected.set(&mut *store, Val::I32(0))?;
        self.send(store, Exported::Event, "").await
    }

    /// Sets the interpreter up in a memory where nothing ran yet.
    pub async fn initialize(&self, store: &mut Store<Guest>, runtime: &Runtime) -> wasmtime::Result<()> {
        let relocate: TypedFunc<(), ()> = self.code.get_typed_func(&mut *store, "__wasm_apply_data_relocs")?;
        relocate.call_async(&mut *store, ()).await?;
        let initialize: TypedFunc<u32, ()> = self.code.get_typed_func(&mut *store, "wit_dylib_initialize")?;
        initialize.call_async(&mut *store, runtime.described).await
    }

    /// Evaluates a module; the error is what it has thrown.
    pub async fn evaluate(
        &self,
        store: &mut Store<Guest>,
        code: &str,
        name: &str,
    ) -> wasmtime::Result<Result<(), String>> {
        let (shim, code, name) = (
            self.put(store, "").await?,
            self.put(store, code).await?,
            self.put(store, name).await?,
        );
        // (shim, script, entry path: some, no garbage collection: false)
        type Arguments = (u32, u32, u32, u32, u32, u32, u32, u32);
        let init: TypedFunc<Arguments, u32> = self.code.get_typed_func(&mut *store, "init")?;
        let arguments = (shim.0, shim.1, code.0, code.1, 1, name.0, name.1, 0);
        let at = init.call_async(&mut *store, arguments).await? as usize;
        let memory = self.memory.data(&*store);
        let word = |at: usize| {
            let bytes = memory.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
        };
        let result = || match memory.get(at)? {
            0 => Some(Ok(())),
            _ => {
                let text = memory.get(word(at + 4)?..)?.get(..word(at + 8)?)?;
                Some(Err(String::from_utf8_lossy(text).into_owned()))
            }
        };
        result().ok_or_else(|| wasmtime::Error::msg("the interpreter's answer is out of its memory"))
    }
}

/// The host's functions for it.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    wasi::add_to_linker(&mut linker)?;
    calls::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// This program's own runtime.
pub(super) fn bundle() -> Result<RuntimeBundle, String> {
    let interpreter = Library::take_apart(&heddle_runtimes::JAVASCRIPT.wasm());
    let library = interpreter.map_err(|error| format!("the interpreter {error}"))?;
    let layout = Layout::of(&library);
    let mut memory = vec![0; (layout.pages * PAGE_BYTES) as usize];
    memory[layout.memory_base as usize..][..library.data.len()].copy_from_slice(&library.data);
    let mut described = 0;
    let interface = write_interface(&layout, &mut described);
    memory[layout.interface as usize..][..interface.len()].copy_from_slice(&interface);
    let glue = wat::parse_str(glue(&layout)).map_err(|error| format!("the glue: {error}"))?;
    let parts = [
        (CODE.to_owned(), Bytes::from(library.code)),
        (GLUE.to_owned(), Bytes::from(glue)),
        ("memory".to_owned(), Bytes::from(memory)),
        (CHECKER.to_owned(), Bytes::from(heddle_runtimes::checker())),
    ];
    let modules =
        calls::own_modules().map(|(name, text)| (format!("{MODULE}{name}"), Bytes::from_static(text.as_bytes())));
    let numbers = layout.numbers().into_iter().chain([("described", described)]);
    Ok(RuntimeBundle::new(
        Language::JavaScript,
        numbers,
        parts.into_iter().chain(modules),
    ))
}

/// The code of a runtime, which has to be compiled.
pub(super) fn code_of(bundle: &RuntimeBundle) -> Result<Bytes, String> {
    bundle.part(CODE)
}

/// The glue between its interpreter and the host, which has to be compiled too.
pub(super) fn glue_of(bundle: &RuntimeBundle) -> Result<Bytes, String> {
    bundle.part(GLUE)
}

/// `wit_t` and what it points to. `wit` is set to its address.
fn write_interface(layout: &Layout, wit: &mut u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    fn put(bytes: &mut Vec<u8>, base: u32, content: &[u8]) -> u32 {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let at = base + bytes.len() as u32;
        bytes.extend_from_slice(content);
        at
    }
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let base = layout.interface;
    let name = |bytes: &mut Vec<u8>, name: &str| put(bytes, base, format!("{name}\0").as_bytes());
    let call_name = name(&mut bytes, IMPORTED);
    let call_params = put(&mut bytes, base, &words(&[TYPE_U32, TYPE_STRING]));
    let text_param = put(&mut bytes, base, &words(&[TYPE_STRING]));
    let call = [
        0,
        call_name,
        layout.own_functions,
        0,
        0,
        2,
        call_params,
        TYPE_STRING,
        0,
        0,
    ];
    let imports = put(&mut bytes, base, &words(&call));
    let mut exports = Vec::new();
    for export in EXPORTED {
        let export = name(&mut bytes, export);
        exports.extend_from_slice(&[0, export, layout.own_functions + 1, 1, text_param, TYPE_NONE]);
    }
    let exports = put(&mut bytes, base, &words(&exports));
    let mut table = vec![INTERFACE_VERSION, 1, imports, EXPORTED.len() as u32, exports];
    table.resize(table.len() + 2 * EMPTY_TABLES, 0);
    *wit = put(&mut bytes, base, &words(&table));
    debug_assert!(bytes.len() <= image::INTERFACE_BYTES as usize);
    bytes
}

/// The functions between the interpreter's interface and ours.
fn glue(layout: &Layout) -> String {
    let own = layout.own_functions;
    let _: [(); OWN_FUNCTIONS as usize] = [(); 4];
    format!(
        r#"(module
  (import "env" "memory" (memory 1))
  (import "env" "table" (table {elements} funcref))
  (import "env" "stack_pointer" (global $sp (mut i32)))
  (import "code" "wit_dylib_pop_u32" (func $pop_u32 (param i32) (result i32)))
  (import "code" "wit_dylib_pop_string" (func $pop_string (param i32 i32) (result i32)))
  (import "code" "wit_dylib_push_string" (func $push_string (param i32 i32 i32)))
  (import "code" "wit_dylib_export_start" (func $start (param i32) (result i32)))
  (import "code" "wit_dylib_export_async_call" (func $call_export (param i32 i32) (result i32)))
  (import "code" "cabi_realloc" (func $realloc (param i32 i32 i32 i32) (result i32)))
  (import "heddle" "call" (func $call (param i32 i32 i32) (result i32)))
  (import "heddle" "take" (func $take (param i32)))
  ;; The interpreter calls the host: the number of an operation and a text in, a text out.
  (func $host (param $cx i32) (local $op i32) (local $at i32) (local $length i32)
    (global.set $sp (i32.sub (global.get $sp) (i32.const 16)))
    (local.set $op (call $pop_u32 (local.get $cx)))
    (local.set $length (call $pop_string (local.get $cx) (global.get $sp)))
    (local.set $at (i32.load (global.get $sp)))
    (global.set $sp (i32.add (global.get $sp) (i32.const 16)))
    (local.set $length (call $call (local.get $op) (local.get $at) (local.get $length)))
    (local.set $at (call $realloc (i32.const 0) (i32.const 0) (i32.const 1) (local.get $length)))
    (call $take (local.get $at))
    (call $push_string (local.get $cx) (local.get $at) (local.get $length)))
  ;; An exported function has no result that anybody waits for.
  (func $task_return (param $cx i32))
{rejected}
  ;; The host calls the interpreter.
  (func (export "send") (param $which i32) (param $at i32) (param $length i32) (result i32) (local $cx i32)
    (local.set $cx (call $start (local.get $which)))
    (call $push_string (local.get $cx) (local.get $at) (local.get $length))
    (call $call_export (local.get $cx) (local.get $which)))
  (elem (i32.const {own}) func $host $task_return $realloc $rejection))"#,
        elements = own + OWN_FUNCTIONS,
        rejected = rejected::functions(),
    )
}
