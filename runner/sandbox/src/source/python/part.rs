//! A library as it is read: the parts of a module that are linked, and the values of its globals.

use super::super::image::PAGE_BYTES;
use std::collections::{BTreeMap, HashMap};
use wasmparser::{Element, ExternalKind, FuncType, FunctionBody, Operator, Parser, Payload, TypeRef};

/// The C stack, at the bottom of the memory: one that overflows reaches address 0 and traps.
pub(super) const STACK_BYTES: u32 = 1 << 20;

/// How much of the C stack CPython's functions may use for recursion. The stack of WebAssembly, which grows with each
/// call too, must not end first: that would be a trap.
const RECURSION_BYTES: u32 = 256 << 10;

/// The parts of a module that are linked.
#[derive(Default)]
pub(super) struct Part<'a> {
    pub types: Vec<FuncType>,
    pub imports: Vec<Import<'a>>,
    /// Its own functions, by their types.
    pub functions: Vec<u32>,
    pub bodies: Vec<FunctionBody<'a>>,
    pub globals: Vec<Global<'a>>,
    pub elements: Vec<Element<'a>>,
    pub exports: BTreeMap<&'a str, (ExternalKind, u32)>,
}

pub(super) struct Import<'a> {
    pub module: &'a str,
    pub name: &'a str,
    pub of_type: u32,
}

pub(super) enum Global<'a> {
    Imported(&'a str, &'a str),
    Own(wasmparser::ConstExpr<'a>),
}

/// Where a part begins in the memory and in the table.
#[derive(Clone, Copy)]
pub(super) struct Base {
    pub memory: u32,
    pub table: u32,
}

pub(super) struct Names<'a> {
    pub functions: HashMap<&'a str, (usize, u32)>,
    /// The addresses of data, by name.
    pub data: HashMap<&'a str, u32>,
    /// Positions, in the table, of functions whose address is taken.
    pub slots: BTreeMap<&'a str, u32>,
}

impl<'a> Part<'a> {
    pub fn read(wasm: &'a [u8]) -> Result<Self, String> {
        let text = |error: wasmparser::BinaryReaderError| error.to_string();
        let mut part = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload.map_err(text)? {
                Payload::TypeSection(types) => {
                    for of_type in types.into_iter_err_on_gc_types() {
                        part.types.push(of_type.map_err(text)?);
                    }
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import.map_err(text)?;
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
                        part.functions.push(of_type.map_err(text)?);
                    }
                }
                Payload::GlobalSection(globals) => {
                    for global in globals {
                        let global = global.map_err(text)?;
                        if global.ty.mutable {
                            return Err("has a variable of its own".into());
                        }
                        part.globals.push(Global::Own(global.init_expr));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export.map_err(text)?;
                        part.exports.insert(export.name, (export.kind, export.index));
                    }
                }
                Payload::ElementSection(elements) => {
                    for element in elements {
                        part.elements.push(element.map_err(text)?);
                    }
                }
                Payload::CodeSectionEntry(body) => part.bodies.push(body),
                _ => {}
            }
        }
        Ok(part)
    }

    pub fn function(&self, name: &str) -> Option<u32> {
        match self.exports.get(name)? {
            (ExternalKind::Func, index) => Some(*index),
            _ => None,
        }
    }

    /// The values of its globals; the pointer to the stack is the one without a value.
    pub fn values(&self, base: Base, names: &Names<'_>, heap: u32) -> Result<Vec<Option<u32>>, String> {
        let mut values: Vec<Option<u32>> = Vec::with_capacity(self.globals.len());
        for global in &self.globals {
            let value = match global {
                Global::Imported("env", "__stack_pointer") => None,
                Global::Imported("env", "__memory_base") => Some(base.memory),
                Global::Imported("env", "__table_base") => Some(base.table),
                Global::Imported("GOT.mem", "__heap_base") => Some(heap),
                Global::Imported("GOT.mem", "__heap_end") => Some(heap.next_multiple_of(PAGE_BYTES)),
                // Python checks it, and raises a `RecursionError` while there is still room.
                Global::Imported("GOT.mem", "__stack_low") => Some(STACK_BYTES - RECURSION_BYTES),
                Global::Imported("GOT.mem", "__stack_high") => Some(STACK_BYTES),
                // A symbol that no part has is weak; its address is 0.
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

/// The value of a constant expression.
pub(super) fn constant(expression: &wasmparser::ConstExpr<'_>, globals: &[Option<u32>]) -> Result<u32, String> {
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
