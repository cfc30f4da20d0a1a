//! The system of the interpreter's C library: the time, and an output for its last words.
//!
//! These are imports of a core module, so they have the canonical ABI's flat signatures. All other imports (files,
//! terminals, streams to read from) trap when they are called, which never happens.

use crate::guest::Guest;
use wasmtime::{Caller, Linker, Result};

/// How many bytes a stream accepts.
const WRITE_BYTES: u64 = 64 << 10;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;

pub(super) fn put(caller: &mut Caller<'_, Guest>, at: u32, bytes: &[u8]) -> Result<()> {
    let memory = super::calls::memory(caller)?;
    memory.write(caller, at as usize, bytes)?;
    Ok(())
}

pub(super) fn add_to_linker(linker: &mut Linker<Guest>) -> Result<()> {
    for version in ["0.2.0", "0.2.9"] {
        add_version(linker, version)?;
    }
    linker.func_wrap("wasi_snapshot_preview1", "reset_adapter_state", || {})?;
    Ok(())
}

fn add_version(linker: &mut Linker<Guest>, version: &str) -> Result<()> {
    let name = |interface: &str| format!("wasi:{interface}@{version}");
    linker.func_wrap(
        &name("clocks/wall-clock"),
        "now",
        |mut caller: Caller<'_, Guest>, at: u32| {
            let now = caller.data().host.clock.now();
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&now.timestamp().max(0).to_le_bytes());
            bytes[8..12].copy_from_slice(&now.timestamp_subsec_nanos().min(999_999_999).to_le_bytes());
            put(&mut caller, at, &bytes)
        },
    )?;
    linker.func_wrap(
        &name("clocks/monotonic-clock"),
        "now",
        |mut caller: Caller<'_, Guest>| caller.data_mut().monotonic_nanos(),
    )?;
    // The seed of the interpreter's hash tables; the host makes what a script calls random.
    linker.func_wrap(
        &name("random/insecure-seed"),
        "insecure-seed",
        |mut caller: Caller<'_, Guest>, at: u32| put(&mut caller, at, &[7; 16]),
    )?;
    linker.func_wrap(
        &name("cli/environment"),
        "get-environment",
        |mut caller: Caller<'_, Guest>, at: u32| put(&mut caller, at, &[0; 8]),
    )?;
    linker.func_wrap(
        &name("filesystem/preopens"),
        "get-directories",
        |mut caller: Caller<'_, Guest>, at: u32| put(&mut caller, at, &[0; 8]),
    )?;
    linker.func_wrap(&name("cli/stdout"), "get-stdout", || STDOUT)?;
    linker.func_wrap(&name("cli/stderr"), "get-stderr", || STDERR)?;
    for terminal in ["stdin", "stdout", "stderr"] {
        linker.func_wrap(
            &name(&format!("cli/terminal-{terminal}")),
            &format!("get-terminal-{terminal}"),
            |mut caller: Caller<'_, Guest>, at: u32| put(&mut caller, at, &[0; 8]),
        )?;
    }
    let streams = name("io/streams");
    linker.func_wrap(&streams, "[resource-drop]output-stream", |_: u32| {})?;
    linker.func_wrap(&streams, "[resource-drop]input-stream", |_: u32| {})?;
    linker.func_wrap(
        &streams,
        "[method]output-stream.check-write",
        |mut caller: Caller<'_, Guest>, _: u32, at: u32| {
            let mut bytes = [0; 16];
            bytes[8..].copy_from_slice(&WRITE_BYTES.to_le_bytes());
            put(&mut caller, at, &bytes)
        },
    )?;
    linker.func_wrap(
        &streams,
        "[method]output-stream.write",
        |mut caller: Caller<'_, Guest>, _: u32, from: u32, length: u32, at: u32| {
            let memory = super::calls::memory(&caller)?;
            let bytes = memory
                .data(&caller)
                .get(from as usize..)
                .and_then(|rest| rest.get(..length as usize));
            let bytes = bytes.map(<[u8]>::to_vec).unwrap_or_default();
            caller.data().host.journal.write_stream(&bytes);
            put(&mut caller, at, &[0; 12])
        },
    )?;
    linker.func_wrap(
        &streams,
        "[method]output-stream.blocking-flush",
        |mut caller: Caller<'_, Guest>, _: u32, at: u32| put(&mut caller, at, &[0; 12]),
    )?;
    Ok(())
}
