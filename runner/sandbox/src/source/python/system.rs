//! The C library's system, by the canonical ABI's flat signatures of WASI 0.2: one readable file (the standard
//! library), the log for output, clocks, chance. Everything else is refused with an error that Python raises, or is
//! never called.

use super::super::calls;
use super::super::{pending, wasi};
use crate::guest::{Guest, HostSide, MAX_CALL_BYTES};
use crate::imports::elsewhere;
use std::time::Duration;
use wasmtime::{Caller, ExternType, Linker, Module, Result, Val};

/// The operations in addition to those of `calls.rs`, with the numbers of `runtime.py`.
const WAIT: u32 = 7;
const INPUT: u32 = 8;
#[cfg(test)]
pub(super) const NUMBERS: [(&str, u32); 2] = [("wait", WAIT), ("input", INPUT)];

/// The interpreter's environment variables.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("PYTHONHOME", "/"),
    ("PYTHONPATH", ARCHIVE_PATH),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONUTF8", "1"),
    // A memory is made once and copied for each run, so the seed of hash tables cannot differ between runs.
    ("PYTHONHASHSEED", "0"),
    ("TZ", "UTC"),
];
const ARCHIVE_PATH: &str = "/python.zip";

/// The resources of the guest, by their numbers.
const ROOT: u32 = 3;
const ARCHIVE: u32 = 4;
const NETWORK: u32 = 5;
const ALWAYS_READY: u32 = 6;
const FIRST_STREAM: u32 = 16;
const FIRST_TIMER: u32 = 1 << 16;
/// How many streams, and how many timers, may be open at once.
const MAX_OPEN: usize = 256;
/// How many bytes are read at once.
const MAX_READ_BYTES: u64 = 1 << 20;
const MAX_RANDOM_BYTES: u64 = 1 << 20;
/// The number of the stream of standard input.
const STDIN: u32 = 0;

/// `error-code` of `wasi:filesystem` and `wasi:sockets`.
const NO_ENTRY: u8 = 20;
const READ_ONLY: u8 = 33;
const NOT_SUPPORTED: u8 = 2;
/// Values of `descriptor-type` in `wasi:filesystem`.
const DIRECTORY: u8 = 3;
const REGULAR_FILE: u8 = 6;
/// Its size, and that of a `descriptor-stat` after a result's tag.
const STAT_BYTES: usize = 8 + 96;

/// Puts something into the first free position.
fn open<T>(table: &mut Vec<Option<T>>, what: T, first: u32) -> Result<u32> {
    let index = match table.iter().position(Option::is_none) {
        Some(index) => index,
        None if table.len() < MAX_OPEN => {
            table.push(None);
            table.len() - 1
        }
        None => return Err(wasmtime::Error::msg("too many files are open")),
    };
    table[index] = Some(what);
    Ok(first + index as u32)
}

fn close<T>(table: &mut [Option<T>], handle: u32, first: u32) {
    let entry = handle
        .checked_sub(first)
        .and_then(|index| table.get_mut(index as usize));
    if let Some(entry) = entry {
        *entry = None;
    }
}

/// Allocates the guest's memory, which the guest frees.
async fn allocate(caller: &mut Caller<'_, Guest>, align: u32, bytes: usize) -> Result<u32> {
    let bytes = u32::try_from(bytes)?;
    let realloc = caller.data().source.realloc.clone();
    let realloc = realloc.ok_or_else(|| wasmtime::Error::msg("the interpreter is not linked yet"))?;
    realloc.call_async(&mut *caller, (0, 0, align, bytes)).await
}

async fn give_bytes(caller: &mut Caller<'_, Guest>, bytes: &[u8]) -> Result<[u32; 2]> {
    let at = allocate(caller, 1, bytes.len()).await?;
    wasi::put(caller, at, bytes)?;
    Ok([at, u32::try_from(bytes.len())?])
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn stat(caller: &mut Caller<'_, Guest>, at: u32, found: Option<u8>) -> Result<()> {
    let mut bytes = [0; STAT_BYTES];
    match found {
        Some(kind) => {
            let size = match kind {
                REGULAR_FILE => caller.data().source.python.archive().len() as u64,
                _ => 0,
            };
            bytes[8] = kind;
            // One link to it.
            bytes[16] = 1;
            bytes[24..32].copy_from_slice(&size.to_le_bytes());
        }
        None => (bytes[0], bytes[8]) = (1, NO_ENTRY),
    }
    wasi::put(caller, at, &bytes)
}

/// What a path below the root names.
fn look_up(caller: &Caller<'_, Guest>, at: u32, length: u32) -> Result<Option<u8>> {
    let path = calls::text(caller, at, length)?;
    Ok(match path.trim_matches('/') {
        "" | "." => Some(DIRECTORY),
        path if path == ARCHIVE_PATH.trim_matches('/') => Some(REGULAR_FILE),
        _ => None,
    })
}

pub(super) fn add_to_linker(linker: &mut Linker<Guest>, code: &Module) -> Result<()> {
    wasi::add_to_linker(linker)?;
    linker.allow_shadowing(true);
    refuse_the_rest(linker, code)?;
    add_host(linker)?;
    add_environment(linker)?;
    add_files(linker)?;
    add_streams(linker)?;
    add_time(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Functions of files and sockets that return an error. Its position in the result depends on what else the result may
/// be.
fn refuse_the_rest(linker: &mut Linker<Guest>, code: &Module) -> Result<()> {
    const ONE: &[&str] = &[
        "create-directory-at",
        "remove-directory-at",
        "rename-at",
        "symlink-at",
        "unlink-file-at",
        "link-at",
        "set-size",
        "set-times",
        "set-times-at",
        "advise",
        "sync",
        "sync-data",
    ];
    const EIGHT: &[&str] = &["write"];
    for import in code.imports() {
        let (module, name) = (import.module(), import.name());
        let method = name.rsplit('.').next().unwrap_or_default();
        let error = match (module, name) {
            (module, name) if module.starts_with("wasi:filesystem/types@") && name.starts_with("[method]") => READ_ONLY,
            (module, "create-tcp-socket" | "create-udp-socket" | "resolve-addresses")
                if module.starts_with("wasi:sockets/") =>
            {
                NOT_SUPPORTED
            }
            _ => continue,
        };
        let offset = match method {
            method if ONE.contains(&method) => 1,
            method if EIGHT.contains(&method) => 8,
            _ => 4,
        };
        let ExternType::Func(signature) = import.ty() else {
            continue;
        };
        linker.func_new(module, name, signature, move |mut caller, arguments, _| {
            let Some(Val::I32(at)) = arguments.last() else {
                return Err(wasmtime::Error::msg("a result has nowhere to go"));
            };
            let at = at.cast_unsigned();
            wasi::put(&mut caller, at, &[1])?;
            wasi::put(&mut caller, at.saturating_add(offset), &[error])
        })?;
    }
    Ok(())
}

/// `heddle.call`: as for JavaScript, but operations that take time are waited for.
fn add_host(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap_async(
        "heddle",
        "call",
        |mut caller: Caller<'_, Guest>, (operation, at, length): (u32, u32, u32)| {
            Box::new(async move {
                let text = calls::text(&caller, at, length)?;
                let answer = match operation {
                    INPUT => caller.data_mut().source.python.input.take().unwrap_or_default(),
                    WAIT => pending::wait(&mut caller, &text).await,
                    _ => calls::call(caller.data_mut(), operation, text)?,
                };
                calls::keep_answer(caller.data_mut(), answer)
            })
        },
    )?;
    Ok(())
}

fn add_environment(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap_async(
        "wasi:cli/environment@0.2.0",
        "get-environment",
        |mut caller: Caller<'_, Guest>, (at,): (u32,)| {
            Box::new(async move {
                let mut list = Vec::new();
                for (name, value) in ENVIRONMENT {
                    list.extend(give_bytes(&mut caller, name.as_bytes()).await?);
                    list.extend(give_bytes(&mut caller, value.as_bytes()).await?);
                }
                let address = allocate(&mut caller, 4, list.len() * 4).await?;
                wasi::put(&mut caller, address, &words(&list))?;
                wasi::put(&mut caller, at, &words(&[address, ENVIRONMENT.len() as u32]))
            })
        },
    )?;
    linker.func_wrap(
        "wasi:cli/environment@0.2.0",
        "get-arguments",
        |mut caller: Caller<'_, Guest>, at: u32| wasi::put(&mut caller, at, &[0; 8]),
    )?;
    linker.func_wrap("wasi:cli/exit@0.2.0", "exit", |_: u32| -> Result<()> {
        Err(wasmtime::Error::msg("the script ended the interpreter"))
    })?;
    linker.func_wrap_async(
        "wasi:random/random@0.2.0",
        "get-random-bytes",
        |mut caller: Caller<'_, Guest>, (count, at): (u64, u32)| {
            Box::new(async move {
                if count > MAX_RANDOM_BYTES {
                    return Err(wasmtime::Error::msg(format!(
                        "at most {MAX_RANDOM_BYTES} random bytes are allowed in one call"
                    )));
                }
                let mut bytes = vec![0; usize::try_from(count)?];
                let chance = &mut caller.data_mut().host.chance;
                chance.fill(&mut bytes).map_err(wasmtime::Error::msg)?;
                let list = give_bytes(&mut caller, &bytes).await?;
                wasi::put(&mut caller, at, &words(&list))
            })
        },
    )?;
    linker.func_wrap("wasi:sockets/instance-network@0.2.0", "instance-network", || NETWORK)?;
    Ok(())
}

/// The interface of the functions of files.
const FILES: &str = "wasi:filesystem/types@0.2.0";

/// Finding the only file, the archive, in the only directory.
fn add_files(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap_async(
        "wasi:filesystem/preopens@0.2.0",
        "get-directories",
        |mut caller: Caller<'_, Guest>, (at,): (u32,)| {
            Box::new(async move {
                let [path, length] = give_bytes(&mut caller, b"/").await?;
                let address = allocate(&mut caller, 4, 12).await?;
                wasi::put(&mut caller, address, &words(&[ROOT, path, length]))?;
                wasi::put(&mut caller, at, &words(&[address, 1]))
            })
        },
    )?;
    linker.func_wrap(FILES, "[resource-drop]descriptor", |_: u32| {})?;
    linker.func_wrap(FILES, "[resource-drop]directory-entry-stream", |_: u32| {})?;
    linker.func_wrap(
        FILES,
        "[method]descriptor.get-flags",
        |mut caller: Caller<'_, Guest>, _: u32, at: u32| wasi::put(&mut caller, at, &[0, 1]),
    )?;
    linker.func_wrap(
        FILES,
        "[method]descriptor.stat",
        |mut caller: Caller<'_, Guest>, handle: u32, at: u32| {
            let kind = if handle == ARCHIVE { REGULAR_FILE } else { DIRECTORY };
            stat(&mut caller, at, Some(kind))
        },
    )?;
    linker.func_wrap(
        FILES,
        "[method]descriptor.stat-at",
        |mut caller: Caller<'_, Guest>, _: u32, _: u32, path: u32, length: u32, at: u32| {
            let found = look_up(&caller, path, length)?;
            stat(&mut caller, at, found)
        },
    )?;
    linker.func_wrap(
        FILES,
        "[method]descriptor.open-at",
        |mut caller: Caller<'_, Guest>, _: u32, _: u32, path: u32, length: u32, create: u32, mode: u32, at: u32| {
            // `open-flags` (create, …) and `descriptor-flags` (read: 1, write: 2, …).
            let answer = match look_up(&caller, path, length)? {
                Some(_) if create & !2 != 0 || mode & 2 != 0 => [1, u32::from(READ_ONLY)],
                None if create & 1 != 0 => [1, u32::from(READ_ONLY)],
                Some(REGULAR_FILE) => [0, ARCHIVE],
                Some(_) => [0, ROOT],
                None => [1, u32::from(NO_ENTRY)],
            };
            wasi::put(&mut caller, at, &words(&answer))
        },
    )?;
    add_contents(linker)
}

/// Comparing and reading it.
fn add_contents(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap(
        FILES,
        "[method]descriptor.metadata-hash",
        |mut caller: Caller<'_, Guest>, handle: u32, at: u32| give_hash(&mut caller, handle, at),
    )?;
    linker.func_wrap(
        FILES,
        "[method]descriptor.metadata-hash-at",
        |mut caller: Caller<'_, Guest>, _: u32, _: u32, path: u32, length: u32, at: u32| {
            let kind = look_up(&caller, path, length)?;
            let file = if kind == Some(REGULAR_FILE) { ARCHIVE } else { ROOT };
            give_hash(&mut caller, file, at)
        },
    )?;
    linker.func_wrap(
        FILES,
        "[method]descriptor.read-via-stream",
        |mut caller: Caller<'_, Guest>, _: u32, offset: u64, at: u32| {
            let stream = open(&mut caller.data_mut().source.python.streams, offset, FIRST_STREAM)?;
            wasi::put(&mut caller, at, &words(&[0, stream]))
        },
    )?;
    linker.func_wrap_async(
        FILES,
        "[method]descriptor.read",
        |mut caller: Caller<'_, Guest>, (_, length, offset, at): (u32, u64, u64, u32)| {
            Box::new(async move {
                let (bytes, ended) = part(&caller, offset, length);
                let [address, length] = give_bytes(&mut caller, &bytes).await?;
                wasi::put(&mut caller, at, &words(&[0, address, length, u32::from(ended)]))
            })
        },
    )?;
    Ok(())
}

/// The hash by which files are distinguished.
fn give_hash(caller: &mut Caller<'_, Guest>, file: u32, at: u32) -> Result<()> {
    let mut bytes = [0; 24];
    bytes[8..12].copy_from_slice(&file.to_le_bytes());
    wasi::put(caller, at, &bytes)
}

/// Bytes of the archive, and whether they reach its end.
fn part(caller: &Caller<'_, Guest>, offset: u64, length: u64) -> (Vec<u8>, bool) {
    let archive = caller.data().source.python.archive();
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(archive.len());
    let length = usize::try_from(length.min(MAX_READ_BYTES)).unwrap_or_default();
    let to = from.saturating_add(length).min(archive.len());
    (archive[from..to].to_vec(), to == archive.len())
}

fn add_streams(linker: &mut Linker<Guest>) -> Result<()> {
    let streams = "wasi:io/streams@0.2.0";
    linker.func_wrap("wasi:cli/stdin@0.2.0", "get-stdin", || STDIN)?;
    linker.func_wrap(
        streams,
        "[resource-drop]input-stream",
        |mut caller: Caller<'_, Guest>, handle: u32| {
            close(&mut caller.data_mut().source.python.streams, handle, FIRST_STREAM);
        },
    )?;
    linker.func_wrap_async(
        streams,
        "[method]input-stream.read",
        |mut caller: Caller<'_, Guest>, (handle, length, at): (u32, u64, u32)| {
            Box::new(async move {
                let index = handle.checked_sub(FIRST_STREAM).map(|index| index as usize);
                let streams = &caller.data().source.python.streams;
                let offset = index.and_then(|index| streams.get(index).copied().flatten());
                // A stream that is not of the archive is at its end (`stream-error::closed`).
                let bytes = offset.map_or(Vec::new(), |offset| part(&caller, offset, length).0);
                if bytes.is_empty() {
                    return wasi::put(&mut caller, at, &words(&[1, 1]));
                }
                if let (Some(index), Some(offset)) = (index, offset) {
                    caller.data_mut().source.python.streams[index] = Some(offset + bytes.len() as u64);
                }
                let [address, length] = give_bytes(&mut caller, &bytes).await?;
                wasi::put(&mut caller, at, &words(&[0, address, length]))
            })
        },
    )?;
    for method in ["[method]input-stream.subscribe", "[method]output-stream.subscribe"] {
        linker.func_wrap(streams, method, |_: u32| ALWAYS_READY)?;
    }
    linker.func_wrap("wasi:io/error@0.2.0", "[resource-drop]error", |_: u32| {})?;
    Ok(())
}

fn add_time(linker: &mut Linker<Guest>) -> Result<()> {
    let clock = "wasi:clocks/monotonic-clock@0.2.0";
    linker.func_wrap(clock, "resolution", || 1_000_u64)?;
    linker.func_wrap(
        "wasi:clocks/wall-clock@0.2.0",
        "resolution",
        |mut caller: Caller<'_, Guest>, at: u32| wasi::put(&mut caller, at, &[0; 16]),
    )?;
    linker.func_wrap(
        clock,
        "subscribe-duration",
        |mut caller: Caller<'_, Guest>, nanos: u64| {
            open(&mut caller.data_mut().source.python.timers, nanos, FIRST_TIMER)
        },
    )?;
    linker.func_wrap(clock, "subscribe-instant", |mut caller: Caller<'_, Guest>, at: u64| {
        let guest = caller.data_mut();
        let nanos = at.saturating_sub(guest.monotonic_nanos());
        open(&mut guest.source.python.timers, nanos, FIRST_TIMER)
    })?;
    let poll = "wasi:io/poll@0.2.0";
    linker.func_wrap(
        poll,
        "[resource-drop]pollable",
        |mut caller: Caller<'_, Guest>, handle: u32| {
            close(&mut caller.data_mut().source.python.timers, handle, FIRST_TIMER);
        },
    )?;
    linker.func_wrap_async(
        poll,
        "[method]pollable.block",
        |caller: Caller<'_, Guest>, (handle,): (u32,)| {
            Box::new(async move {
                let nanos = nanos_of(&caller, handle);
                sleep(&caller.data().host, nanos).await;
                Ok(())
            })
        },
    )?;
    linker.func_wrap_async(
        poll,
        "poll",
        |mut caller: Caller<'_, Guest>, (list, count, at): (u32, u32, u32)| {
            Box::new(async move {
                let bytes = count as usize * 4;
                if bytes > MAX_CALL_BYTES {
                    return Err(wasmtime::Error::msg("too many operations are pending"));
                }
                let mut handles = vec![0; bytes];
                calls::memory(&caller)?.read(&caller, list as usize, &mut handles)?;
                let handles = handles.chunks_exact(4);
                let handles = handles.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                let waits: Vec<u64> = handles.map(|handle| nanos_of(&caller, handle)).collect();
                let first = waits.iter().copied().min().unwrap_or_default();
                sleep(&caller.data().host, first).await;
                let ready = waits.iter().zip(0u32..).filter(|(wait, _)| **wait <= first);
                let ready: Vec<u32> = ready.map(|(_, index)| index).collect();
                let address = allocate(&mut caller, 4, ready.len() * 4).await?;
                wasi::put(&mut caller, address, &words(&ready))?;
                wasi::put(&mut caller, at, &words(&[address, ready.len() as u32]))
            })
        },
    )?;
    Ok(())
}

/// How long until something is ready.
fn nanos_of(caller: &Caller<'_, Guest>, handle: u32) -> u64 {
    let index = handle.checked_sub(FIRST_TIMER).map(|index| index as usize);
    let timers = &caller.data().source.python.timers;
    index
        .and_then(|index| timers.get(index).copied().flatten())
        .unwrap_or_default()
}

/// Waits without blocking a thread.
fn sleep(host: &HostSide, nanos: u64) -> impl Future<Output = ()> + Send + use<> {
    let (io, wait) = (host.io.clone(), pending::wait_for(host, Duration::from_nanos(nanos)));
    async move {
        if nanos > 0 {
            let _ = elsewhere(&io, async move {
                wait.await;
                Ok::<(), String>(())
            })
            .await;
        }
    }
}
