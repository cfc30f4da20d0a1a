//! What is accepted, and the errors for the rest.

use crate::guests::{Bench, command, component, config, plain_component};
use bytes::Bytes;
use heddle_sandbox::{CompileError, Sandbox, World};
use std::convert::Infallible;
use std::ffi::CString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

async fn refused(bench: &Bench, wasm: impl Into<Bytes>) -> String {
    match bench.sandbox.compile(wasm.into()).await {
        Err(CompileError::Rejected(why)) => why,
        other => panic!("{other:?}"),
    }
}

pub async fn command_modules(bench: Bench) {
    let text = command("");
    let compiled = bench.sandbox.compile(text.clone().into()).await.unwrap();
    assert_eq!(compiled.world, World::CommandP1);
    assert_eq!(compiled.world.as_str(), "wasi:cli/command@p1");
    assert_eq!(compiled.size, text.len());
    assert!(compiled.digest.starts_with("sha256:") && compiled.digest.len() == 71);
    assert!(compiled.params_schema.is_none() && compiled.defaults.is_empty());
}

pub async fn text_and_binary(bench: Bench) {
    let text = command("");
    let binary = wat::parse_str(&text).unwrap();
    let one = bench.sandbox.compile(text.into()).await.unwrap();
    let two = bench.sandbox.compile(binary.into()).await.unwrap();
    assert_ne!(one.digest, two.digest, "the digest is of what was uploaded");
    let text = plain_component("unreachable");
    let compiled = bench
        .sandbox
        .compile(wat::parse_str(&text).unwrap().into())
        .await
        .unwrap();
    assert_eq!(compiled.world, World::Task);
    assert_eq!(bench.sandbox.compile(text.into()).await.unwrap().world, World::Task);
}

pub async fn refusals(bench: Bench) {
    let cases: &[(&str, &[&str])] = &[
        ("", &["is empty"]),
        ("hello", &["is not WebAssembly"]),
        ("\u{7f}ELF", &["is not WebAssembly"]),
        ("(module", &["not valid WebAssembly text"]),
        ("(module (func (result i32)))", &["not valid WebAssembly"]),
        ("(module)", &["core module", "no `_start`"]),
        (r#"(module (func (export "add")))"#, &["[add]", "no `_start`"]),
        (
            r#"(module (func (export "_start") (param i32)))"#,
            &["`_start` is not a function without parameters"],
        ),
        (
            r#"(module (import "env" "f" (func)) (func (export "_start")))"#,
            &["imports [env.f]", "which Heddle does not provide"],
        ),
        (
            r#"(module (import "wasi_snapshot_preview1" "no_such" (func)) (func (export "_start")))"#,
            &["cannot be linked", "no_such"],
        ),
        (
            "(component)",
            &["a component that exports []", "run, describe missing", "wasi:cli/run"],
        ),
        (
            r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
                 (func (export "run") (canon lift (core func $i "f"))))"#,
            &["exports [run]", "describe missing"],
        ),
        (
            r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
                 (func (export "run") (canon lift (core func $i "f")))
                 (func (export "describe") (canon lift (core func $i "f"))))"#,
            &["does not fit the world heddle:task/task"],
        ),
        (
            r#"(component (import "wasi:keyvalue/store@0.2.0" (instance))
                 (core module $m (func (export "f"))) (core instance $i (instantiate $m))
                 (func (export "run") (canon lift (core func $i "f")))
                 (func (export "describe") (canon lift (core func $i "f"))))"#,
            &["imports [wasi:keyvalue/store@0.2.0]"],
        ),
        (
            r#"(module (memory 1 1 shared) (func (export "_start")))"#,
            &["threads are not supported"],
        ),
        (
            r#"(module (memory 32768) (func (export "_start")))"#,
            &["an initial memory of"],
        ),
        (
            r#"(module (table 10000000 funcref) (func (export "_start")))"#,
            &["a table of"],
        ),
    ];
    for (text, expected) in cases {
        let why = refused(&bench, text.to_string()).await;
        for expect in *expected {
            assert!(why.contains(expect), "{text}\n-> {why}\nlacks {expect}");
        }
    }
    let memories = "(memory 1)".repeat(100);
    let why = refused(&bench, format!(r#"(module {memories} (func (export "_start")))"#)).await;
    assert!(why.contains("memories"), "{why}");
    let large = Bench::with(|config| config.max_wasm_bytes = 10);
    assert!(matches!(
        large.sandbox.compile("(module)    ".into()).await,
        Err(CompileError::TooLarge(10))
    ));
}

pub async fn shapes_that_hurt(_: Bench) {
    let bench = Bench::with(|config| {
        // The test needs the verdict, on a busy machine too, and not a timeout.
        config.compile_timeout = Duration::from_secs(120);
        config.compile_memory_bytes = 1 << 30;
    });
    let loops = format!("(module (func {} {}))", "(loop ".repeat(7_000), ")".repeat(7_000));
    refused(&bench, loops).await;
    let deep = format!("(module {}", "(func (block ".repeat(500_000));
    refused(&bench, deep).await;
    let long = format!("(module (func {}))", "(drop (i32.const 1))".repeat(1_200_000));
    let why = refused(&bench, long).await;
    assert!(why.contains("a function of"), "{why}");
    // The node still works.
    bench.run_command("").await;
}

pub async fn a_component_is_described(bench: Bench) {
    let text = r#"{"description": "Does it.", "params": {"type": "object"}, "defaults": {"a": 1}}"#;
    let compiled = bench
        .sandbox
        .compile(component("", "", "", "", "unreachable", text).into())
        .await
        .unwrap();
    assert_eq!(compiled.world, World::Task);
    assert_eq!(compiled.description.as_deref(), Some("Does it."));
    assert_eq!(compiled.params_schema.unwrap()["type"], "object");
    assert_eq!(compiled.defaults["a"], 1);
}

pub async fn descriptions_that_fail(bench: Bench) {
    let described = |text: &str| component("", "", "", "", "unreachable", text);
    assert!(refused(&bench, described("nonsense")).await.contains("not JSON"));
    assert!(refused(&bench, described("[]")).await.contains("object"));
    assert!(
        refused(&bench, described(r#"{"params": 1}"#))
            .await
            .contains("describe")
    );
    let trap = described("{}").replace("(func (export \"describe\") (result i32)\n", "$&");
    let trap = trap.replace(
        "(i32.const 512)))\n  (core instance $i",
        "unreachable))\n  (core instance $i",
    );
    let why = refused(&bench, trap.replace("$&", "(func (export \"describe\") (result i32)\n")).await;
    assert!(why.contains("`describe`") && why.contains("unreachable"), "{why}");
    let endless = described("{}").replace(
        "(i32.const 512)))\n  (core instance $i",
        "(loop (br 0)) unreachable))\n  (core instance $i",
    );
    let why = refused(&bench, endless).await;
    assert!(why.contains("timeout") && why.contains("5s of processor time"), "{why}");
}

pub async fn artefacts_are_kept_and_checked(bench: Bench) {
    let text = command("");
    let digest = bench.sandbox.compile(text.clone().into()).await.unwrap().digest;
    let fetched = AtomicU32::new(0);
    let load = async |bench: &Bench| {
        let fetch = async {
            fetched.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from(text.clone()))
        };
        let script = bench.sandbox.load(&digest, fetch).await.unwrap();
        assert_eq!(script.world(), World::CommandP1);
    };
    let reopen = |bench: &Bench| Bench {
        sandbox: Sandbox::new(config(bench.cache.path()), Arc::new(crate::guests::RealClock)).unwrap(),
        cache: tempfile::tempdir().unwrap(),
        limits: bench.limits,
        grants: bench.grants.clone(),
        params: String::new(),
    };
    let again = reopen(&bench);
    assert!(!again.sandbox.is_ready(&digest));
    load(&again).await;
    assert!(again.sandbox.is_ready(&digest));
    assert_eq!(fetched.load(Ordering::Relaxed), 0, "it was on the disk");
    let directory = std::fs::read_dir(bench.cache.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let file = directory.join(digest.trim_start_matches("sha256:"));
    let mut content = std::fs::read(&file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    // A new file: the old one is mapped.
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, content).unwrap();
    load(&reopen(&bench)).await;
    assert_eq!(fetched.load(Ordering::Relaxed), 1, "a damaged file is not trusted");
    load(&reopen(&bench)).await;
    assert_eq!(fetched.load(Ordering::Relaxed), 1, "and was replaced");
}

pub async fn loading_is_done_once(bench: Bench) {
    let text = command("");
    let other = Bench::new();
    let digest = other.sandbox.compile(text.clone().into()).await.unwrap().digest;
    let fetched = AtomicU32::new(0);
    let loads = (0..20).map(|_| {
        bench.sandbox.load(&digest, async {
            fetched.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from(text.clone()))
        })
    });
    for loaded in futures::future::join_all(loads).await {
        loaded.unwrap();
    }
    assert_eq!(fetched.load(Ordering::Relaxed), 1);
    let absent = format!("sha256:{}", "0".repeat(64));
    let wrong = bench.sandbox.load(&absent, async { Ok::<_, Infallible>(Bytes::new()) });
    assert!(wrong.await.is_err());
}

/// A compiling child that reports its start by a file, and begins when it gets a byte from a pipe.
pub fn compile_when_told() -> ExitCode {
    let directory = PathBuf::from(std::env::args().nth(2).expect("a directory"));
    // SAFETY: no memory is involved. The child does the same before it compiles.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    std::fs::write(directory.join("here"), "").expect("a file");
    let mut begin = std::fs::File::open(directory.join("begin")).expect("a pipe");
    begin.read_exact(&mut [0]).expect("a byte");
    heddle_sandbox::compile_child_main()
}

pub async fn threads_that_end_take_no_compiler_with_them(_: Bench) {
    let temp = tempfile::tempdir().unwrap();
    let pipe = temp.path().join("begin");
    let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is a C string, which the call only reads.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // Open at both ends, so that no open waits for the other end.
    let mut begin = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let bench = Bench::with(|config| {
        let directory = temp.path().to_str().unwrap().to_owned();
        config.compiler.args = vec!["compile-when-told".into(), directory];
    });
    let sandbox = bench.sandbox.clone();
    let mut compiled = Box::pin(async move { sandbox.compile(command("").into()).await });
    let (runtime, here) = (tokio::runtime::Handle::current(), temp.path().join("here"));
    // Like a worker of tokio's that was blocked for a while.
    let ended = std::thread::spawn(move || {
        runtime.block_on(async {
            while !here.exists() {
                let wait = tokio::time::timeout(Duration::from_millis(5), &mut compiled);
                assert!(wait.await.is_err(), "it waits to be told");
            }
        });
        compiled
    });
    let compiled = tokio::task::spawn_blocking(|| ended.join()).await.unwrap();
    let compiled = compiled.expect("it has ended as it should");
    begin.write_all(b"!").unwrap();
    assert_eq!(compiled.await.unwrap().world, World::CommandP1);
}
