//! Divides the interpreter's module into its code and the initial content of its memory.
//!
//! It is a position-independent library (the `dylink.0` convention): it imports its memory and table, and its position
//! in them. At each instance, its data would be copied into the memory, over a snapshot of that memory, and its start
//! function would fill memory without data (`.bss`) with zeros. So both are removed. The data becomes part of the first
//! memory, whose rest is zero anyway.

use wasmparser::{DataKind, Dylink0Subsection, KnownCustom, Operator, Parser, Payload};

/// The sections with data and with the count of data.
const DATA_SECTION: u8 = 11;
const DATA_COUNT_SECTION: u8 = 12;
const START_SECTION: u8 = 8;
const CUSTOM_SECTION: u8 = 0;

/// A library without its data.
pub(crate) struct Library {
    pub code: Vec<u8>,
    /// The content of memory from the library's base on.
    pub data: Vec<u8>,
    /// How many bytes of memory it needs.
    pub memory_bytes: u32,
    /// The alignment of that memory, as a power of two.
    pub alignment: u32,
    /// How many elements of the table.
    pub table_elements: u32,
}

impl Library {
    pub fn take_apart(wasm: &[u8]) -> Result<Self, String> {
        let text = |error: wasmparser::BinaryReaderError| error.to_string();
        let (mut code, mut data) = (wasm.get(..8).ok_or("is too short")?.to_vec(), Vec::new());
        let mut needs = None;
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload.map_err(text)?;
            match &payload {
                Payload::CustomSection(custom) => {
                    if let KnownCustom::Dylink0(parts) = custom.as_known() {
                        for part in parts {
                            if let Dylink0Subsection::MemInfo(info) = part.map_err(text)? {
                                needs = Some((info.memory_size, info.memory_alignment, info.table_size));
                            }
                        }
                    }
                }
                Payload::DataSection(segments) => {
                    for segment in segments.clone() {
                        let segment = segment.map_err(text)?;
                        let DataKind::Active { offset_expr, .. } = segment.kind else {
                            return Err("has data that is not active".into());
                        };
                        let mut offset = 0;
                        for operator in offset_expr.get_operators_reader() {
                            match operator.map_err(text)? {
                                // The library's base.
                                Operator::GlobalGet { .. } | Operator::I32Add | Operator::End => {}
                                Operator::I32Const { value } => offset = value.cast_unsigned() as usize,
                                other => return Err(format!("has data at {other:?}")),
                            }
                        }
                        let end = offset + segment.data.len();
                        if data.len() < end {
                            data.resize(end, 0);
                        }
                        data[offset..end].copy_from_slice(segment.data);
                    }
                }
                _ => {}
            }
            if let Some((id, range)) = payload.as_section()
                && !matches!(id, START_SECTION | DATA_SECTION | DATA_COUNT_SECTION | CUSTOM_SECTION)
            {
                code.push(id);
                write_length(&mut code, range.len());
                code.extend_from_slice(&wasm[range]);
            }
        }
        let (memory_bytes, alignment, table_elements) = needs.ok_or("is no library: `dylink.0` is missing")?;
        if data.len() > memory_bytes as usize {
            return Err("has more data than memory".into());
        }
        Ok(Self {
            code,
            data,
            memory_bytes,
            alignment,
            table_elements,
        })
    }
}

/// Writes a length in the encoding LEB128.
fn write_length(into: &mut Vec<u8>, mut length: usize) {
    loop {
        let byte = (length & 0x7f) as u8;
        length >>= 7;
        into.push(if length == 0 { byte } else { byte | 0x80 });
        if length == 0 {
            return;
        }
    }
}
