//! The interpreters that scripts written as text run on, and what checks such texts, as WebAssembly.
//!
//! They are data here, and statics, of which a program has one copy: the sandbox, which links and runs them, knows
//! their functions. `build.rs` says where they come from.

use flate2::read::ZlibDecoder;
use std::io::Read as _;

include!(concat!(env!("OUT_DIR"), "/runtimes.rs"));

#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// Its name and version: stored in a script's version, to tell which scripts an upgrade of Heddle moves to another
    /// one.
    pub id: &'static str,
    packed: &'static [u8],
}

impl Runtime {
    /// A core module: a position-independent library (`dylink.0`) with the interface of `wit-dylib`.
    pub fn wasm(&self) -> Vec<u8> {
        unpack(self.packed)
    }
}

/// QuickJS-ng 0.15, as it comes with componentize-qjs.
pub static JAVASCRIPT: Runtime = Runtime {
    id: QUICKJS_ID,
    packed: QUICKJS_WASM,
};

/// CPython, as it comes with componentize-py: libraries for WebAssembly (`dylink.0`), packed with zstd.
#[derive(Clone, Copy, Debug)]
pub struct Python {
    /// Its name and version.
    pub id: &'static str,
    /// The C library, its parts, and the interpreter, each after those that it needs.
    pub libraries: &'static [&'static [u8]],
    /// The standard library: a tar file.
    pub standard_library: &'static [u8],
    /// Another one for other libraries. With it, nobody has to read them to tell them apart.
    pub digest: &'static str,
}

pub static PYTHON: Python = Python {
    id: CPYTHON_ID,
    libraries: CPYTHON_LIBRARIES,
    standard_library: CPYTHON_STANDARD_LIBRARY,
    digest: CPYTHON_DIGEST,
};

/// Checks texts before they are evaluated: a WASI command (`typescript/src/main.rs` says what it takes and gives).
pub fn checker() -> Vec<u8> {
    unpack(CHECKER_WASM)
}

/// Unpacks what `build.rs` packed with zlib.
fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut wasm = Vec::new();
    ZlibDecoder::new(packed)
        .read_to_end(&mut wasm)
        .expect("build.rs packed it");
    wasm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_a_library_with_the_interface_that_is_expected() {
        let wasm = JAVASCRIPT.wasm();
        assert!(wasm.starts_with(b"\0asm\x01\0\0\0"));
        for part in ["dylink.0", "wit_dylib_export_async_call", "cabi_realloc"] {
            let found = wasm.windows(part.len()).any(|window| window == part.as_bytes());
            assert!(found, "{part}");
        }
        assert!(JAVASCRIPT.id.starts_with("quickjs-ng"));
    }

    #[test]
    fn python_comes_packed() {
        let magic = 0xfd2f_b528_u32.to_le_bytes();
        assert_eq!(PYTHON.libraries.len(), 5);
        for packed in PYTHON.libraries.iter().chain([&PYTHON.standard_library]) {
            assert!(packed.starts_with(&magic));
        }
        assert!(PYTHON.id.starts_with("cpython 3.14"));
    }
}
