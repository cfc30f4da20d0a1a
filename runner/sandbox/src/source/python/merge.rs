//! All parts as one module: types, functions and elements one after the other, under new numbers.

use super::part::{Base, Names, Part, STACK_BYTES, constant};
use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    CodeSection, ConstExpr, ElementSection, Elements, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, ImportSection, Instruction, MemoryType, Module, RefType, TableSection, TableType,
    TypeSection, ValType,
};
use wasmparser::{ElementKind, Operator};

/// The function with which the host allocates a guest's memory.
pub(super) const ALLOCATOR: &str = "cabi_realloc";
/// How often an import may lead to another import.
const MAX_HOPS: usize = 8;

/// Gives the code of a part its new numbers.
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
            // The only global that is left.
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

/// All parts with their new numbers.
pub(super) struct Merge<'a> {
    parts: &'a [Part<'a>],
    bases: &'a [Base],
    names: &'a Names<'a>,
    heap: u32,
    /// Each part's first type.
    first_types: Vec<u32>,
    /// Each part's first own function.
    first_functions: Vec<u32>,
    /// The host's functions, by module, name and type.
    host: Vec<(&'a str, &'a str, u32)>,
    /// Functions that no part has: a call of one is a trap.
    missing: Vec<(&'a str, u32)>,
}

/// The target of an import.
enum Found<'a> {
    Own(usize, u32),
    Host(&'a str, &'a str),
    Nobody(&'a str),
}

impl<'a> Merge<'a> {
    pub fn new(parts: &'a [Part<'a>], bases: &'a [Base], names: &'a Names<'a>, heap: u32) -> Result<Self, String> {
        let mut merge = Self {
            parts,
            bases,
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

    /// The target of a part's function: imports may be exported again.
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

    pub fn module(&self, table_elements: u32) -> Result<Vec<u8>, String> {
        let text = |error: reencode::Error<String>| error.to_string();
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
            let globals = part.values(self.bases[index], self.names, self.heap)?;
            let mut renumbered = Renumbered {
                first_type: self.first_types[index],
                functions: &numbers[index],
                globals: &globals,
            };
            for of_type in &part.types {
                types
                    .ty()
                    .func_type(&renumbered.func_type(of_type.clone()).map_err(text)?);
            }
            for of_type in &part.functions {
                functions.function(renumbered.type_index(*of_type).map_err(text)?);
            }
            for element in &part.elements {
                let items = renumbered.element_items(element.items.clone()).map_err(text)?;
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
                renumbered.parse_function_body(&mut code, body.clone()).map_err(text)?;
            }
        }
        // Exported for the host: the glue, and the allocator.
        let allocator = self.names.functions.get(ALLOCATOR).copied();
        let allocator = allocator.ok_or_else(|| format!("`{ALLOCATOR}` is missing"))?;
        exports.export(ALLOCATOR, ExportKind::Func, numbers[allocator.0][allocator.1 as usize]);
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

    /// The memory, and the host's functions.
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
