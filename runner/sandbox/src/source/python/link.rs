//! Linking: CPython and the C library that it stands on are libraries that know neither where in memory they live nor
//! each other (the `dylink.0` convention of WebAssembly's tools).
//!
//! Here they become one module, together with our *glue*: types, functions and elements one behind the other under new
//! numbers, a call of another library's function a plain call, and what a library takes from globals (where it lives,
//! where others' data and functions are) a constant. That module imports its memory and the host's functions, so it is
//! compiled once, and an instance of it needs no more linking than a script that was compiled by itself. Linking the
//! libraries anew for each run would cost thousands of imports, exports and elements of the table each time.

use super::super::image::PAGE_BYTES;
use super::super::library::Library;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    CodeSection, ConstExpr, ElementSection, Elements, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, ImportSection, Instruction, MemoryType, Module, RefType, TableSection, TableType,
    TypeSection, ValType,
};
use wasmparser::{Element, ElementKind, ExternalKind, FuncType, FunctionBody, Operator, Parser, Payload, TypeRef};

/// The C stack, at the bottom of the memory: one that overflows runs into address 0 and traps.
pub(super) const STACK_BYTES: u32 = 1 << 20;
/// How much of it CPython's functions may recurse by. The stack of WebAssembly, which grows with each call as well, must
/// not end first: that would be a trap.
const RECURSION_BYTES: u32 = 256 << 10;
/// Room for the texts that the glue names things by.
const NAMES_BYTES: u32 = 1 << 10;
/// How often an import may turn out to be another import.
const MAX_HOPS: usize = 8;

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
/// What sets a library up, in a memory where nothing ran yet: in all libraries the first of these, then the second.
const STEPS: [&str; 2] = ["__wasm_apply_data_relocs", "_initialize"];

/// The libraries, linked.
pub(super) struct Linked {
    /// A core module that imports `env.memory` and the host's functions.
    pub code: Vec<u8>,
    /// The memory before anything ran, in whole pages.
    pub memory: Vec<u8>,
    /// Where in it the names of our module's functions are.
    pub load: u32,
    pub begin: u32,
}

/// What of a module is linked.
#[derive(Default)]
struct Part<'a> {
    types: Vec<FuncType>,
    imports: Vec<Import<'a>>,
    /// Its own functions, by their types.
    functions: Vec<u32>,
    bodies: Vec<FunctionBody<'a>>,
    globals: Vec<Global<'a>>,
    elements: Vec<Element<'a>>,
    exports: BTreeMap<&'a str, (ExternalKind, u32)>,
}

/// An imported function.
struct Import<'a> {
    module: &'a str,
    name: &'a str,
    of_type: u32,
}

enum Global<'a> {
    Imported(&'a str, &'a str),
    Own(wasmparser::ConstExpr<'a>),
}

/// Where a part lives.
#[derive(Clone, Copy)]
struct Place {
    memory: u32,
    table: u32,
}

/// Who has what.
struct Names<'a> {
    functions: HashMap<&'a str, (usize, u32)>,
    /// Addresses of data.
    data: HashMap<&'a str, u32>,
    /// Places in the table of functions whose address is taken.
    slots: BTreeMap<&'a str, u32>,
}

impl<'a> Part<'a> {
    fn read(wasm: &'a [u8]) -> Result<Self, String> {
        let told = |error: wasmparser::BinaryReaderError| error.to_string();
        let mut part = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload.map_err(told)? {
                Payload::TypeSection(types) => {
                    for of_type in types.into_iter_err_on_gc_types() {
                        part.types.push(of_type.map_err(told)?);
                    }
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import.map_err(told)?;
                        let (module, name) = (import.module, import.name);
                        match import.ty {
                            TypeRef::Func(of_type) => part.imports.push(Import { module, name, of_type }),
                            TypeRef::Global(_) => part.globals.push(Global::Imported(module, name)),
                            TypeRef::Memory(_) | TypeRef::Table(_) => {}
                            _ => return Err(format!("imports `{name}`, which cannot be linked")),
                        }
                    }
                }
                Payload::FunctionSection(functions) => {
                    for of_type in functions {
                        part.functions.push(of_type.map_err(told)?);
                    }
                }
                Payload::GlobalSection(globals) => {
                    for global in globals {
                        let global = global.map_err(told)?;
                        if global.ty.mutable {
                            return Err("has a variable of its own".into());
                        }
                        part.globals.push(Global::Own(global.init_expr));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export.map_err(told)?;
                        part.exports.insert(export.name, (export.kind, export.index));
                    }
                }
                Payload::ElementSection(elements) => {
                    for element in elements {
                        part.elements.push(element.map_err(told)?);
                    }
                }
                Payload::CodeSectionEntry(body) => part.bodies.push(body),
                _ => {}
            }
        }
        Ok(part)
    }

    fn function(&self, name: &str) -> Option<u32> {
        match self.exports.get(name)? {
            (ExternalKind::Func, index) => Some(*index),
            _ => None,
        }
    }

    /// The values of its globals; the stack's pointer is the one that has none.
    fn values(&self, place: Place, names: &Names<'_>, heap: u32) -> Result<Vec<Option<u32>>, String> {
        let mut values: Vec<Option<u32>> = Vec::with_capacity(self.globals.len());
        for global in &self.globals {
            let value = match global {
                Global::Imported("env", "__stack_pointer") => None,
                Global::Imported("env", "__memory_base") => Some(place.memory),
                Global::Imported("env", "__table_base") => Some(place.table),
                Global::Imported("GOT.mem", "__heap_base") => Some(heap),
                Global::Imported("GOT.mem", "__heap_end") => Some(heap.next_multiple_of(PAGE_BYTES)),
                // Python looks at it, and raises a `RecursionError` while there is still room.
                Global::Imported("GOT.mem", "__stack_low") => Some(STACK_BYTES - RECURSION_BYTES),
                Global::Imported("GOT.mem", "__stack_high") => Some(STACK_BYTES),
                // What nobody has is a weak symbol, whose address is 0.
                Global::Imported("GOT.mem", name) => Some(names.data.get(*name).copied().unwrap_or(0)),
                Global::Imported("GOT.func", name) => Some(names.slots.get(*name).copied().unwrap_or(0)),
                Global::Imported(module, name) => return Err(format!("imports the global `{module}.{name}`")),
                Global::Own(value) => Some(constant(value, &values)?),
            };
            values.push(value);
        }
        Ok(values)
    }
}

/// What a constant expression gives.
fn constant(expression: &wasmparser::ConstExpr<'_>, globals: &[Option<u32>]) -> Result<u32, String> {
    let mut stack = Vec::new();
    for operator in expression.get_operators_reader() {
        match operator.map_err(|error| error.to_string())? {
            Operator::I32Const { value } => stack.push(value.cast_unsigned()),
            Operator::GlobalGet { global_index } => {
                let value = globals.get(global_index as usize).copied().flatten();
                stack.push(value.ok_or("begins with what is no constant")?);
            }
            Operator::I32Add => {
                let two = stack.pop().zip(stack.pop()).ok_or("adds nothing")?;
                stack.push(two.0.wrapping_add(two.1));
            }
            Operator::End => {}
            other => return Err(format!("computes a constant by {other:?}")),
        }
    }
    stack.pop().ok_or_else(|| "has an empty constant".into())
}

/// Gives a part's code its new numbers.
struct Renumbered<'a> {
    first_type: u32,
    functions: &'a [u32],
    globals: &'a [Option<u32>],
}

impl Reencode for Renumbered<'_> {
    type Error = String;

    fn type_index(&mut self, of_type: u32) -> Result<u32, reencode::Error<String>> {
        Ok(self.first_type + of_type)
    }

    fn function_index(&mut self, function: u32) -> Result<u32, reencode::Error<String>> {
        let function = self.functions.get(function as usize);
        function.copied().ok_or_else(|| unknown("function"))
    }

    fn global_index(&mut self, global: u32) -> Result<u32, reencode::Error<String>> {
        match self.globals.get(global as usize) {
            // The one global that is left.
            Some(None) => Ok(0),
            _ => Err(unknown("variable")),
        }
    }

    fn instruction<'b>(&mut self, operator: Operator<'b>) -> Result<Instruction<'b>, reencode::Error<String>> {
        if let Operator::GlobalGet { global_index } = operator
            && let Some(Some(value)) = self.globals.get(global_index as usize)
        {
            return Ok(Instruction::I32Const(value.cast_signed()));
        }
        reencode::utils::instruction(self, operator)
    }
}

fn unknown(what: &str) -> reencode::Error<String> {
    reencode::Error::UserError(format!("uses a {what} that it does not have"))
}

/// Links libraries, each after those that it needs.
pub(super) fn link(libraries: &[Library], glue: &str) -> Result<Linked, String> {
    let mut parts = libraries
        .iter()
        .map(|library| Part::read(&library.code))
        .collect::<Result<Vec<_>, _>>()?;
    // Where everything lives.
    let (mut at, mut elements) = (STACK_BYTES, 1);
    let mut places = Vec::new();
    for library in libraries {
        at = at.next_multiple_of(1 << library.alignment.clamp(4, 16));
        places.push(Place {
            memory: at,
            table: elements,
        });
        at += library.memory_bytes;
        elements += library.table_elements;
    }
    let named = at.next_multiple_of(16);
    let heap = named + NAMES_BYTES;
    // Who has what.
    let mut names = Names {
        functions: HashMap::new(),
        data: HashMap::new(),
        slots: BTreeMap::new(),
    };
    for (index, part) in parts.iter().enumerate() {
        for (name, (kind, number)) in &part.exports {
            match (kind, part.globals.get(*number as usize)) {
                (ExternalKind::Func, _) => drop(names.functions.entry(*name).or_insert((index, *number))),
                // What is exported of data is a place within the library.
                (ExternalKind::Global, Some(Global::Own(offset))) => {
                    let address = places[index].memory + constant(offset, &[])?;
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
    // The glue is one more part, which lives nowhere.
    let (memory, texts) = memory_of(libraries, &places, named, heap, own_slot);
    let glue = glue_of(glue, &parts, &texts, own_slot);
    let glue = wat::parse_str(&glue).map_err(|error| format!("the glue: {error}"))?;
    parts.push(Part::read(&glue)?);
    places.push(Place { memory: 0, table: 0 });
    let code = Merge::new(&parts, &places, &names, heap)?.module(elements)?;
    Ok(Linked {
        code,
        memory,
        load: texts["LOAD"],
        begin: texts["BEGIN"],
    })
}

/// The memory before anything ran, and where in it our texts are.
fn memory_of(
    libraries: &[Library],
    places: &[Place],
    named: u32,
    heap: u32,
    own_slot: u32,
) -> (Vec<u8>, HashMap<&'static str, u32>) {
    let mut memory = vec![0; heap.next_multiple_of(PAGE_BYTES) as usize];
    for (library, place) in libraries.iter().zip(places) {
        memory[place.memory as usize..][..library.data.len()].copy_from_slice(&library.data);
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

/// The glue's text with its numbers, and with what sets the libraries up.
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

/// All parts with their new numbers.
struct Merge<'a> {
    parts: &'a [Part<'a>],
    places: &'a [Place],
    names: &'a Names<'a>,
    heap: u32,
    /// Each part's first type.
    first_types: Vec<u32>,
    /// Each part's first own function.
    first_functions: Vec<u32>,
    /// The host's functions, by module, name and type.
    host: Vec<(&'a str, &'a str, u32)>,
    /// Functions that nobody has: calling one is a trap.
    missing: Vec<(&'a str, u32)>,
}

/// What an import turns out to be.
enum Found<'a> {
    Own(usize, u32),
    Host(&'a str, &'a str),
    Nobody(&'a str),
}

impl<'a> Merge<'a> {
    fn new(parts: &'a [Part<'a>], places: &'a [Place], names: &'a Names<'a>, heap: u32) -> Result<Self, String> {
        let mut merge = Self {
            parts,
            places,
            names,
            heap,
            first_types: Vec::new(),
            first_functions: Vec::new(),
            host: Vec::new(),
            missing: Vec::new(),
        };
        let mut types = 0;
        for part in parts {
            merge.first_types.push(types);
            types += part.types.len() as u32;
        }
        for (index, part) in parts.iter().enumerate() {
            for (number, import) in part.imports.iter().enumerate() {
                let of_type = merge.first_types[index] + import.of_type;
                match merge.find(index, number as u32)? {
                    Found::Host(module, name) if merge.host_index(module, name).is_none() => {
                        merge.host.push((module, name, of_type));
                    }
                    Found::Nobody(name) if merge.missing_index(name).is_none() => merge.missing.push((name, of_type)),
                    _ => {}
                }
            }
        }
        let mut functions = (merge.host.len() + merge.missing.len()) as u32;
        for part in parts {
            merge.first_functions.push(functions);
            functions += part.functions.len() as u32;
        }
        Ok(merge)
    }

    fn host_index(&self, module: &str, name: &str) -> Option<usize> {
        self.host.iter().position(|found| (found.0, found.1) == (module, name))
    }

    fn missing_index(&self, name: &str) -> Option<usize> {
        self.missing.iter().position(|found| found.0 == name)
    }

    /// Where a part's function is: imports may be exported again.
    fn find(&self, mut part: usize, mut function: u32) -> Result<Found<'a>, String> {
        for _ in 0..MAX_HOPS {
            let of_part = &self.parts[part];
            let Some(import) = of_part.imports.get(function as usize) else {
                return Ok(Found::Own(part, function - of_part.imports.len() as u32));
            };
            let (module, name) = (import.module, import.name);
            let library = module
                .strip_prefix("library ")
                .and_then(|index| index.parse::<usize>().ok());
            let found = match (module, library) {
                ("env" | "python", _) => self.names.functions.get(name).copied(),
                (_, Some(index)) => self.parts[index].function(name).map(|function| (index, function)),
                _ => return Ok(Found::Host(module, name)),
            };
            match (found, module) {
                (Some(found), _) => (part, function) = found,
                (None, "env") => return Ok(Found::Nobody(name)),
                (None, _) => return Err(format!("`{name}` is missing")),
            }
        }
        Err("its imports go round in circles".into())
    }

    /// A part's functions by their new numbers.
    fn functions_of(&self, part: usize) -> Result<Vec<u32>, String> {
        let count = self.parts[part].imports.len() + self.parts[part].functions.len();
        let number = |function: usize| {
            let index = match self.find(part, function as u32)? {
                Found::Own(part, function) => Some((self.first_functions[part] + function) as usize),
                Found::Host(module, name) => self.host_index(module, name),
                Found::Nobody(name) => self.missing_index(name).map(|index| self.host.len() + index),
            };
            let index = index.and_then(|index| u32::try_from(index).ok());
            index.ok_or_else(|| "a function was not counted".to_owned())
        };
        (0..count).map(number).collect()
    }

    fn module(&self, table_elements: u32) -> Result<Vec<u8>, String> {
        let told = |error: reencode::Error<String>| error.to_string();
        let numbers = (0..self.parts.len()).map(|part| self.functions_of(part));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let (mut types, mut functions, mut elements) =
            (TypeSection::new(), FunctionSection::new(), ElementSection::new());
        let (mut code, mut exports) = (CodeSection::new(), ExportSection::new());
        for (_, of_type) in &self.missing {
            functions.function(*of_type);
            let mut body = Function::new([]);
            body.instruction(&Instruction::Unreachable)
                .instruction(&Instruction::End);
            code.function(&body);
        }
        for (index, part) in self.parts.iter().enumerate() {
            let globals = part.values(self.places[index], self.names, self.heap)?;
            let mut renumbered = Renumbered {
                first_type: self.first_types[index],
                functions: &numbers[index],
                globals: &globals,
            };
            for of_type in &part.types {
                types
                    .ty()
                    .func_type(&renumbered.func_type(of_type.clone()).map_err(told)?);
            }
            for of_type in &part.functions {
                functions.function(renumbered.type_index(*of_type).map_err(told)?);
            }
            for element in &part.elements {
                let items = renumbered.element_items(element.items.clone()).map_err(told)?;
                match &element.kind {
                    ElementKind::Active { offset_expr, .. } => {
                        let at = ConstExpr::i32_const(constant(offset_expr, &globals)?.cast_signed());
                        elements.active(None, &at, items)
                    }
                    ElementKind::Declared => elements.declared(items),
                    ElementKind::Passive => return Err("has elements that are not active".into()),
                };
            }
            for body in &part.bodies {
                renumbered.parse_function_body(&mut code, body.clone()).map_err(told)?;
            }
        }
        // What the host calls: the glue, and the allocator.
        let allocator = self.names.functions.get(super::ALLOCATOR).copied();
        let allocator = allocator.ok_or_else(|| format!("`{}` is missing", super::ALLOCATOR))?;
        exports.export(
            super::ALLOCATOR,
            ExportKind::Func,
            numbers[allocator.0][allocator.1 as usize],
        );
        let glue = self.parts.len() - 1;
        for (name, (_, number)) in &self.parts[glue].exports {
            exports.export(name, ExportKind::Func, numbers[glue][*number as usize]);
        }
        for (name, slot) in &self.names.slots {
            let (part, function) = self.names.functions[name];
            let number = numbers[part][function as usize];
            let at = ConstExpr::i32_const(slot.cast_signed());
            elements.active(None, &at, Elements::Functions(vec![number].into()));
        }
        let mut module = Module::new();
        module
            .section(&types)
            .section(&self.imports())
            .section(&functions)
            .section(&table(table_elements))
            .section(&stack_pointer())
            .section(&exports)
            .section(&elements)
            .section(&code);
        Ok(module.finish())
    }

    /// The memory, and what the host does.
    fn imports(&self) -> ImportSection {
        let mut imports = ImportSection::new();
        let memory = MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        };
        imports.import("env", "memory", memory);
        for (module, name, of_type) in &self.host {
            imports.import(module, name, EntityType::Function(*of_type));
        }
        imports
    }
}

/// The one table, of this many functions.
fn table(elements: u32) -> TableSection {
    let mut tables = TableSection::new();
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        minimum: elements.into(),
        maximum: Some(elements.into()),
        table64: false,
        shared: false,
    });
    tables
}

/// The one global: where the stack ends.
fn stack_pointer() -> GlobalSection {
    let mut globals = GlobalSection::new();
    let stack_pointer = GlobalType {
        val_type: ValType::I32,
        mutable: true,
        shared: false,
    };
    globals.global(stack_pointer, &ConstExpr::i32_const(STACK_BYTES.cast_signed()));
    globals
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
        let told = |text: &str| {
            let library = Library::take_apart(&wat::parse_str(text).unwrap()).unwrap();
            link(&[library], "(module)").map(drop).unwrap_err()
        };
        let dylink = "(@dylink.0 (mem-info (memory 0 0) (table 0 0)))";
        let variable = told(&format!("(module {dylink} (global (mut i32) (i32.const 0)))"));
        assert!(variable.contains("variable"), "{variable}");
        assert!(told(&format!("(module {dylink})")).contains("cabi_realloc"));
    }
}
