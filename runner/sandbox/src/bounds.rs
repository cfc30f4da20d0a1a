//! Refuses code, before a compiler sees it, whose shape makes compiling slow, or that does not fit into the pool.
//!
//! Runs in the compiling child, on hostile input.

use crate::engine::MAX_TABLE_ELEMENTS;
use wasmparser::{MemoryType, Operator, Parser, Payload, TableType, TypeRef};

/// The longest body of one function: CPython's interpreter loop has some 200 KiB.
const MAX_FUNCTION_BYTES: usize = 2 << 20;
/// How deep blocks may nest; a `switch` of n cases nests n blocks.
const MAX_BLOCK_DEPTH: usize = 5_000;
/// How deep loops may nest: register allocation processes each of them once more.
const MAX_LOOP_DEPTH: usize = 200;
/// How many functions, all modules together.
const MAX_FUNCTIONS: usize = 200_000;
/// How many modules and components, nested or not.
const MAX_MODULES: usize = 500;
const WASM_PAGE_BYTES: u64 = 64 << 10;

/// The kind of a script's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Module,
    Component,
    /// A memory after a script's top level was evaluated, with the script's description.
    Image,
}

/// Returns the kind of the bytes, or why they are refused.
pub(crate) fn check(wasm: &[u8], max_memory_bytes: u64) -> Result<Kind, String> {
    let kind = if Parser::is_component(wasm) {
        Kind::Component
    } else if Parser::is_core_wasm(wasm) {
        Kind::Module
    } else {
        return Err("is not WebAssembly: neither a module nor a component, neither binary nor text".into());
    };
    let (mut functions, mut modules) = (0, 0);
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(|error| invalid(&error))? {
            Payload::Version { .. } => {
                modules += 1;
                if modules > MAX_MODULES {
                    return Err(format!("has more than the maximum of {MAX_MODULES} modules"));
                }
            }
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    match import.map_err(|error| invalid(&error))?.ty {
                        TypeRef::Memory(memory) => check_memory(&memory, max_memory_bytes)?,
                        TypeRef::Table(table) => check_table(&table)?,
                        _ => {}
                    }
                }
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    check_memory(&memory.map_err(|error| invalid(&error))?, max_memory_bytes)?;
                }
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    check_table(&table.map_err(|error| invalid(&error))?.ty)?;
                }
            }
            Payload::CodeSectionEntry(body) => {
                functions += 1;
                if functions > MAX_FUNCTIONS {
                    return Err(format!("has more than the maximum of {MAX_FUNCTIONS} functions"));
                }
                check_function(&body)?;
            }
            _ => {}
        }
    }
    Ok(kind)
}

fn invalid(error: &wasmparser::BinaryReaderError) -> String {
    format!("is not valid WebAssembly: {error}")
}

fn check_memory(memory: &MemoryType, max_memory_bytes: u64) -> Result<(), String> {
    if memory.shared {
        return Err("has a shared memory; threads are not supported".into());
    }
    let page = memory
        .page_size_log2
        .map_or(WASM_PAGE_BYTES, |log2| 1u64.checked_shl(log2).unwrap_or(u64::MAX));
    let bytes = memory.initial.saturating_mul(page);
    if bytes > max_memory_bytes {
        return Err(format!(
            "has an initial memory of {bytes} bytes; the maximum is {max_memory_bytes}"
        ));
    }
    Ok(())
}

fn check_table(table: &TableType) -> Result<(), String> {
    if table.shared {
        return Err("has a shared table; threads are not supported".into());
    }
    if table.initial > MAX_TABLE_ELEMENTS as u64 {
        return Err(format!(
            "has a table of {} elements; the maximum is {MAX_TABLE_ELEMENTS}",
            table.initial
        ));
    }
    Ok(())
}

fn check_function(body: &wasmparser::FunctionBody<'_>) -> Result<(), String> {
    let bytes = body.range().len();
    if bytes > MAX_FUNCTION_BYTES {
        return Err(format!(
            "has a function of {bytes} bytes; the maximum is {MAX_FUNCTION_BYTES}"
        ));
    }
    let mut operators = body.get_operators_reader().map_err(|error| invalid(&error))?;
    let mut blocks: Vec<bool> = Vec::new();
    let mut loops = 0;
    while !operators.eof() {
        let is_loop = match operators.read().map_err(|error| invalid(&error))? {
            Operator::Loop { .. } => true,
            Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => false,
            Operator::End => {
                if blocks.pop() == Some(true) {
                    loops -= 1;
                }
                continue;
            }
            _ => continue,
        };
        blocks.push(is_loop);
        loops += usize::from(is_loop);
        if blocks.len() > MAX_BLOCK_DEPTH {
            return Err(format!(
                "has a function with blocks nested more than {MAX_BLOCK_DEPTH} levels deep"
            ));
        }
        if loops > MAX_LOOP_DEPTH {
            return Err(format!(
                "has a function with loops nested more than {MAX_LOOP_DEPTH} levels deep"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(text: &str) -> Result<Kind, String> {
        check(&wat::parse_str(text).unwrap(), 1 << 30)
    }

    #[test]
    fn shapes() {
        assert_eq!(check_text("(module)"), Ok(Kind::Module));
        assert_eq!(check_text("(component (core module))"), Ok(Kind::Component));
        assert!(
            check_text("(module (memory 1 1 shared))")
                .unwrap_err()
                .contains("threads")
        );
        assert!(check_text("(module (memory 20000))").unwrap_err().contains("memory of"));
        assert!(
            check_text("(component (core module (memory 20000)))")
                .unwrap_err()
                .contains("memory of")
        );
        assert!(
            check_text("(module (table 10000000 funcref))")
                .unwrap_err()
                .contains("table of")
        );
        let nested = |depth: usize| format!("(module (func {} {}))", "(loop ".repeat(depth), ")".repeat(depth));
        assert!(check_text(&nested(100)).is_ok());
        assert!(check_text(&nested(300)).unwrap_err().contains("loops"));
        assert!(check(b"MZ", 1).unwrap_err().contains("not WebAssembly"));
        assert!(check(b"\0asm\x01\0\0\0\xff\xff", 1).unwrap_err().contains("not valid"));
    }
}
