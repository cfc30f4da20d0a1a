//! Links CPython and its C library. These are libraries that know neither their position in memory nor each other (the
//! `dylink.0` convention of WebAssembly's tools).
//!
//! Here they become one module, together with our *glue*: types, functions and elements one after the other under new
//! numbers; a call of another library's function becomes a plain call; and what a library takes from globals (its
//! position, the positions of others' data and functions) becomes a constant. That module imports its memory and the
//! host's functions, so it is compiled once, and an instance of it needs no more linking than a script that was
//! compiled alone. Linking the libraries for each run would cost thousands of imports, exports and elements of the
//! table each time.

use super::super::image::PAGE_BYTES;
use super::super::library::Library;
use super::merge::Merge;
use super::part::{Base, Global, Names, Part, STACK_BYTES, constant};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use wasmparser::ExternalKind;
/// Memory for the texts with which the glue names things.
const NAMES_BYTES: u32 = 1 << 10;

/// What the glue has Python evaluate first.
const BOOT: &str = "import sys, types, _heddle
module = types.ModuleType('heddle_runtime')
sys.modules['heddle_runtime'] = module
exec(compile(_heddle.call(8, ''), 'heddle:runtime', 'exec'), module.__dict__)
";
/// The texts that the glue passes on.
const NAMES: [(&str, &str); 6] = [
    ("HEDDLE", "_heddle"),
    ("CALL", "call"),
    ("RUNTIME", "heddle_runtime"),
    ("LOAD", "load"),
    ("BEGIN", "begin"),
    ("BOOT", BOOT),
];
/// Sets a library up, in a memory where nothing ran yet: first the first of these in all libraries, then the second.
const STEPS: [&str; 2] = ["__wasm_apply_data_relocs", "_initialize"];

pub(super) struct Linked {
    /// A core module that imports `env.memory` and the host's functions.
    pub code: Vec<u8>,
    /// The memory before anything ran, in whole pages.
    pub memory: Vec<u8>,
    /// The address of the names of our module's functions.
    pub load: u32,
    pub begin: u32,
}

/// Links libraries; each comes after those that it needs.
pub(super) fn link(libraries: &[Library], glue: &str) -> Result<Linked, String> {
    let mut parts = libraries
        .iter()
        .map(|library| Part::read(&library.code))
        .collect::<Result<Vec<_>, _>>()?;
    // The positions of all parts.
    let (mut at, mut elements) = (STACK_BYTES, 1);
    let mut bases = Vec::new();
    for library in libraries {
        at = at.next_multiple_of(1 << library.alignment.clamp(4, 16));
        bases.push(Base {
            memory: at,
            table: elements,
        });
        at += library.memory_bytes;
        elements += library.table_elements;
    }
    let named = at.next_multiple_of(16);
    let heap = named + NAMES_BYTES;
    // Which part exports what.
    let mut names = Names {
        functions: HashMap::new(),
        data: HashMap::new(),
        slots: BTreeMap::new(),
    };
    for (index, part) in parts.iter().enumerate() {
        for (name, (kind, number)) in &part.exports {
            match (kind, part.globals.get(*number as usize)) {
                (ExternalKind::Func, _) => drop(names.functions.entry(*name).or_insert((index, *number))),
                // An exported datum is an address within the library.
                (ExternalKind::Global, Some(Global::Own(offset))) => {
                    let address = bases[index].memory + constant(offset, &[])?;
                    names.data.entry(*name).or_insert(address);
                }
                _ => {}
            }
        }
    }
    for global in parts.iter().flat_map(|part| &part.globals) {
        if let Global::Imported("GOT.func", name) = global
            && names.functions.contains_key(*name)
            && !names.slots.contains_key(*name)
        {
            names.slots.insert(*name, elements);
            elements += 1;
        }
    }
    let own_slot = elements;
    elements += 1;
    // The glue is one more part, without a position in memory.
    let (memory, texts) = memory_of(libraries, &bases, named, heap, own_slot);
    let glue = glue_of(glue, &parts, &texts, own_slot);
    let glue = wat::parse_str(&glue).map_err(|error| format!("the glue: {error}"))?;
    parts.push(Part::read(&glue)?);
    bases.push(Base { memory: 0, table: 0 });
    let code = Merge::new(&parts, &bases, &names, heap)?.module(elements)?;
    Ok(Linked {
        code,
        memory,
        load: texts["LOAD"],
        begin: texts["BEGIN"],
    })
}

/// The memory before anything ran, and the addresses of our texts in it.
fn memory_of(
    libraries: &[Library],
    bases: &[Base],
    named: u32,
    heap: u32,
    own_slot: u32,
) -> (Vec<u8>, HashMap<&'static str, u32>) {
    let mut memory = vec![0; heap.next_multiple_of(PAGE_BYTES) as usize];
    for (library, base) in libraries.iter().zip(bases) {
        memory[base.memory as usize..][..library.data.len()].copy_from_slice(&library.data);
    }
    let (mut texts, mut at) = (HashMap::new(), named);
    for (name, text) in NAMES {
        texts.insert(name, at);
        memory[at as usize..][..text.len()].copy_from_slice(text.as_bytes());
        at += text.len() as u32 + 1;
    }
    // `PyMethodDef`: name, function, METH_VARARGS, no documentation.
    let definition = at.next_multiple_of(4);
    texts.insert("DEFINITION", definition);
    for (index, word) in [texts["CALL"], own_slot, 1, 0].into_iter().enumerate() {
        memory[definition as usize + index * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    debug_assert!(definition + 16 <= heap);
    (memory, texts)
}

/// The glue's text with its numbers, and with the calls that set the libraries up.
fn glue_of(glue: &str, parts: &[Part<'_>], texts: &HashMap<&'static str, u32>, own_slot: u32) -> String {
    let (mut imports, mut calls) = (String::new(), String::new());
    for step in STEPS {
        for (index, part) in parts.iter().enumerate() {
            if part.function(step).is_some() {
                let _ = writeln!(imports, "(import \"library {index}\" \"{step}\" (func ${step}{index}))");
                let _ = writeln!(calls, "(call ${step}{index})");
            }
        }
    }
    let mut text = glue.replace("{IMPORTS}", &imports).replace("{STEPS}", &calls);
    text = text.replace("{SLOT}", &own_slot.to_string());
    for (name, value) in texts {
        text = text.replace(&format!("{{{name}}}"), &value.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::{Engine, Instance, Memory, Store};

    const FIRST: &str = r#"(module
      (@dylink.0 (mem-info (memory 8 2) (table 1 0)))
      (type $get (func (result i32)))
      (import "env" "memory" (memory 1))
      (import "env" "__indirect_function_table" (table 1 funcref))
      (import "env" "__memory_base" (global $memory i32))
      (import "env" "__table_base" (global $table i32))
      (import "GOT.func" "later" (global $later_at (mut i32)))
      (import "GOT.func" "nobody" (global $nobody_at (mut i32)))
      (import "GOT.mem" "number" (global $number (mut i32)))
      (import "env" "later" (func $later (result i32)))
      (import "env" "nobody" (func $nobody))
      (global $second i32 (i32.add (global.get $memory) (i32.const 4)))
      (func $own (result i32)
        (if (global.get $nobody_at) (then (call $nobody)))
        (i32.const 100))
      (elem (global.get $table) func $own)
      (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0))
      (func (export "_initialize") (i32.store (global.get $second) (i32.const 1000)))
      (func (export "sum") (result i32)
        (call $later)
        (call_indirect (type $get) (global.get $later_at))
        (i32.load (global.get $number))
        (call_indirect (type $get) (global.get $table))
        (i32.load (global.get $second))
        i32.add i32.add i32.add i32.add))"#;
    const SECOND: &str = r#"(module
      (@dylink.0 (mem-info (memory 8 2) (table 0 0)))
      (import "env" "memory" (memory 1))
      (import "env" "__memory_base" (global $memory i32))
      (import "env" "sum" (func $sum (result i32)))
      (global (export "number") i32 (i32.const 4))
      (data (global.get $memory) "\00\00\00\00\05")
      (func (export "later") (result i32) (i32.const 7))
      (func (export "twice") (result i32) (i32.mul (call $sum) (i32.const 2))))"#;
    const SMALL_GLUE: &str = r#"(module
      (import "env" "table" (table 1 funcref))
      (import "python" "twice" (func $twice (result i32)))
      {IMPORTS}
      (func $own (result i32) (i32.const 10000))
      (elem (i32.const {SLOT}) func $own)
      (func (export "all") (result i32)
        {STEPS}
        (i32.add (call $twice) (call_indirect (result i32) (i32.const {SLOT})))))"#;

    #[test]
    fn libraries_find_each_other() {
        let libraries = [FIRST, SECOND].map(|text| Library::take_apart(&wat::parse_str(text).unwrap()).unwrap());
        let linked = link(&libraries, SMALL_GLUE).unwrap();
        assert_eq!(linked.code, link(&libraries, SMALL_GLUE).unwrap().code);
        let engine = Engine::default();
        let module = wasmtime::Module::new(&engine, &linked.code).unwrap();
        let mut store = Store::new(&engine, ());
        let pages = linked.memory.len() as u32 / PAGE_BYTES;
        let memory = Memory::new(&mut store, wasmtime::MemoryType::new(pages, None)).unwrap();
        memory.write(&mut store, 0, &linked.memory).unwrap();
        let instance = Instance::new(&mut store, &module, &[memory.into()]).unwrap();
        let all = instance.get_typed_func::<(), u32>(&mut store, "all").unwrap();
        assert_eq!(
            all.call(&mut store, ()).unwrap(),
            2 * (7 + 7 + 5 + 100 + 1_000) + 10_000
        );
        let load = &linked.memory[linked.load as usize..];
        assert!(load.starts_with(b"load\0"));
    }

    #[test]
    fn what_cannot_be_linked_is_said() {
        let refusal = |text: &str| {
            let library = Library::take_apart(&wat::parse_str(text).unwrap()).unwrap();
            link(&[library], "(module)").map(drop).unwrap_err()
        };
        let dylink = "(@dylink.0 (mem-info (memory 0 0) (table 0 0)))";
        let variable = refusal(&format!("(module {dylink} (global (mut i32) (i32.const 0)))"));
        assert!(variable.contains("variable"), "{variable}");
        assert!(refusal(&format!("(module {dylink})")).contains("cabi_realloc"));
    }
}
