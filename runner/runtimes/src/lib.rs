//! The interpreters that scripts written as text run on, and what checks such texts, as WebAssembly.
//!
//! They are data here: whoever links and runs them (the sandbox) knows what their functions mean. `build.rs` says where
//! they come from.

include!(concat!(env!("OUT_DIR"), "/runtimes.rs"));

/// An interpreter.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// What it is and which version: stands in a script's version, so that it can be told which scripts an upgrade of
    /// Heddle moves to another one.
    pub id: &'static str,
    /// A core module: a position-independent library (`dylink.0`) with the interface of `wit-dylib`.
    pub wasm: &'static [u8],
}

/// QuickJS-ng 0.15, as it comes with componentize-qjs.
pub const JAVASCRIPT: Runtime = Runtime {
    id: QUICKJS_ID,
    wasm: QUICKJS_WASM,
};

/// Checks texts before they are evaluated: a WASI command (`typescript/src/main.rs` says what it takes and gives).
pub const CHECKER: &[u8] = CHECKER_WASM;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_a_library_with_the_interface_that_is_expected() {
        assert!(JAVASCRIPT.wasm.starts_with(b"\0asm\x01\0\0\0"));
        for part in ["dylink.0", "wit_dylib_export_async_call", "cabi_realloc"] {
            let found = JAVASCRIPT
                .wasm
                .windows(part.len())
                .any(|window| window == part.as_bytes());
            assert!(found, "{part}");
        }
        assert!(JAVASCRIPT.id.starts_with("quickjs-ng"));
    }
}
