//! A memory as a module: the contents of an interpreter's memory, and the interpreter's addresses in it.
//!
//! Such a module has no code. Wasmtime maps its memory copy-on-write, so that an instance only costs the pages that it
//! writes to.

use super::library::Library;
use wasm_encoder::{
    ConstExpr, DataSection, ExportKind, ExportSection, GlobalSection, GlobalType, MemorySection, MemoryType, Module,
    RefType, TableSection, TableType, ValType,
};

pub(crate) const PAGE_BYTES: u32 = 64 << 10;
/// The minimum length of a run of zeros that is left out.
const BLOCK_BYTES: usize = 4 << 10;
/// The interpreter's own stack, at the bottom of the memory: one that overflows reaches address 0 and traps.
const STACK_BYTES: u32 = 1 << 20;
/// Memory for the description of our functions to the interpreter.
pub(crate) const INTERFACE_BYTES: u32 = 4 << 10;
/// Our functions that the interpreter calls through the table.
pub(crate) const OWN_FUNCTIONS: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The top of the interpreter's stack, where it begins.
    pub stack: u32,
    /// Where the interpreter's data begins.
    pub memory_base: u32,
    /// Where its functions begin in the table.
    pub table_base: u32,
    pub own_functions: u32,
    /// The address at which [`super::runtime`] describes them.
    pub interface: u32,
    /// Where the heap begins.
    pub heap: u32,
    /// The number of pages of the memory before anything ran.
    pub pages: u32,
}

impl Layout {
    pub fn of(library: &Library) -> Self {
        let memory_base = STACK_BYTES;
        let interface = (memory_base + library.memory_bytes).next_multiple_of(16);
        let heap = interface + INTERFACE_BYTES;
        let table_base = 1;
        Self {
            stack: STACK_BYTES,
            memory_base,
            table_base,
            own_functions: table_base + library.table_elements,
            interface,
            heap,
            pages: heap.div_ceil(PAGE_BYTES),
        }
    }

    /// By name, as in a bundle.
    pub fn numbers(&self) -> [(&'static str, u32); 7] {
        [
            ("stack", self.stack),
            ("memory_base", self.memory_base),
            ("table_base", self.table_base),
            ("own_functions", self.own_functions),
            ("interface", self.interface),
            ("heap", self.heap),
            ("pages", self.pages),
        ]
    }
}

/// The module of a memory. `memory` is its content; its length is whole pages.
pub(crate) fn module(layout: &Layout, memory: &[u8]) -> Vec<u8> {
    let mut tables = TableSection::new();
    let elements = u64::from(layout.own_functions + OWN_FUNCTIONS);
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        minimum: elements,
        maximum: Some(elements),
        table64: false,
        shared: false,
    });
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
    exports.export("table", ExportKind::Table, 0);
    let mut globals = GlobalSection::new();
    for (index, (name, mutable, value)) in [
        ("stack_pointer", true, layout.stack),
        ("memory_base", false, layout.memory_base),
        ("table_base", false, layout.table_base),
        ("heap_base", true, layout.heap),
        ("heap_end", true, layout.pages * PAGE_BYTES),
        ("realloc", true, layout.own_functions + 2),
    ]
    .into_iter()
    .enumerate()
    {
        globals.global(
            GlobalType {
                val_type: ValType::I32,
                mutable,
                shared: false,
            },
            &ConstExpr::i32_const(value.cast_signed()),
        );
        exports.export(name, ExportKind::Global, index as u32);
    }
    let mut data = DataSection::new();
    for (start, bytes) in pieces(memory) {
        data.active(
            0,
            &ConstExpr::i32_const((start as u32).cast_signed()),
            bytes.iter().copied(),
        );
    }
    let mut module = Module::new();
    module
        .section(&tables)
        .section(&memories)
        .section(&globals)
        .section(&exports)
        .section(&data);
    module.finish()
}

/// The parts of a memory that are not zero, in whole blocks.
pub(super) fn pieces(memory: &[u8]) -> Vec<(usize, &[u8])> {
    let mut pieces = Vec::new();
    let mut start = None;
    for (index, block) in memory.chunks(BLOCK_BYTES).enumerate() {
        let at = index * BLOCK_BYTES;
        match (block.iter().any(|byte| *byte != 0), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                pieces.push((from, &memory[from..at]));
                start = None;
            }
            _ => {}
        }
    }
    if let Some(from) = start {
        pieces.push((from, &memory[from..]));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out() {
        let mut memory = vec![0; 6 * BLOCK_BYTES];
        memory[BLOCK_BYTES] = 1;
        memory[2 * BLOCK_BYTES + 5] = 2;
        memory[5 * BLOCK_BYTES] = 3;
        let found: Vec<(usize, usize)> = pieces(&memory)
            .into_iter()
            .map(|(at, bytes)| (at, bytes.len()))
            .collect();
        assert_eq!(found, [(BLOCK_BYTES, 2 * BLOCK_BYTES), (5 * BLOCK_BYTES, BLOCK_BYTES)]);
    }
}
