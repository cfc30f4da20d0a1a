//! Scripts and their runtimes. There is no compiler here: what is in its place refuses all that it is given, and writes it
//! down. So these tests see what is compiled, and when; that a compiled script runs, the end-to-end tests see.

use std::path::PathBuf;

use futures::FutureExt;
use heddle_domain::hex;
use heddle_sandbox::{Language, RuntimeBundle};
use heddle_store::runtime::RuntimeWrite;
use heddle_store::script::ScriptWrite;
use sha2::{Digest, Sha256};

use super::*;
use crate::node::service::NEVER;
use crate::node::signals::Signal;
use crate::scripts::runtimes::Rechecker;
use crate::scripts::{Preparer, Warmer};

/// Takes the place of the compiler in child processes.
struct Refuses(tempfile::TempDir);

impl Refuses {
    fn new() -> Self {
        let refuses = Self(tempfile::tempdir().expect("a directory"));
        refuses.given();
        refuses
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn sandbox(&self) -> Sandbox {
        // The first line is about limits, the rest is what is to be compiled.
        let program = "read -r limits; [ -p \"$DIRECTORY/gate\" ] && read -r open < \"$DIRECTORY/gate\"
            { cat; echo; } >> \"$DIRECTORY/given\"; echo '{\"refused\": \"on purpose\"}'";
        let compiler = CompilerCommand {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), program.into()],
            env: vec![("DIRECTORY".into(), self.0.path().display().to_string())],
        };
        sandbox_in(&self.file("compiled"), compiler)
    }

    /// What was to be compiled since the last call.
    fn given(&self) -> Vec<u8> {
        let given = std::fs::read(self.file("given")).unwrap_or_default();
        std::fs::write(self.file("given"), "").expect("a file");
        given
    }

    /// It does not go on until the gate is opened.
    fn close_gate(&self) {
        let made = std::process::Command::new("mkfifo").arg(self.file("gate")).status();
        assert!(made.expect("a program").success());
    }

    async fn open_gate(&self) {
        let gate = self.file("gate");
        let opened = tokio::task::spawn_blocking(move || {
            std::fs::write(&gate, "\n")?;
            std::fs::remove_file(&gate)
        });
        opened.await.expect("it does not panic").expect("a gate");
    }
}

impl World {
    async fn script(&self, name: &str, text: &str, world: &str, runtime_tag: Option<&str>) {
        let digest = hex(&Sha256::digest(text)[..]);
        let write = ScriptWrite {
            name,
            digest: &digest,
            bytes: text.as_bytes(),
            world,
            runtime: runtime_tag.map(|_| "an interpreter"),
            runtime_tag,
            exports: &["run"],
            params_schema: None,
            defaults: &json!({}),
            description: "",
            activate: true,
        };
        self.store.put_script(self.by(), write).await.expect("a script");
    }
}

/// Python is prepared when a node was idle at four checks in a row, a second apart, and only once; a check that finds it
/// busy begins the count anew.
#[tokio::test]
async fn python_is_prepared_after_four_idle_seconds() {
    let refuses = Refuses::new();
    let world = World::at("2026-03-01T00:00:00Z").await;
    let sandbox = refuses.sandbox();
    let node = world.node_with(1, sandbox.clone()).await;
    let mut preparer = Preparer::of(node.runs.scripts.clone());
    let second = Duration::from_secs(1);
    assert_eq!(preparer.first_after(), second);
    for _ in 0..3 {
        assert_eq!(node.tick(&mut preparer).await, second);
    }
    refuses.close_gate();
    let compiles = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.compile("a script".into()).await.map(drop) }
    });
    until(async || !sandbox.is_idle()).await;
    assert_eq!(node.tick(&mut preparer).await, second);
    refuses.open_gate().await;
    assert!(compiles.await.expect("it does not panic").is_err());
    assert_eq!(refuses.given(), b"a script\n");
    for _ in 0..3 {
        assert_eq!(node.tick(&mut preparer).await, second);
        assert!(refuses.given().is_empty());
    }
    assert_eq!(node.tick(&mut preparer).await, NEVER);
    assert!(!refuses.given().is_empty());
}

/// A node that starts loads what texts run on. When it hears of new scripts, it loads the active ones, those in use first;
/// one that cannot be compiled does not keep it from the others. Then the node is warm. If this machine is to blame, it tries
/// again after ten seconds.
#[tokio::test]
async fn scripts_are_loaded_before_a_run_needs_them() {
    let refuses = Refuses::new();
    let world = World::at("2026-03-01T00:00:00Z").await;
    for text in ["used", "other"] {
        world.script(text, text, "heddle:task/task", None).await;
        world.pass(TimeDelta::seconds(1)).await;
    }
    world.group("g", json!({"tasks": {"t": {"script": "used"}}})).await;
    let node = world.node_with(1, refuses.sandbox()).await;
    node.node.state.begin_warming();
    let mut warmer = Warmer::of(node.runs.scripts.clone());
    node.node.signals.raise(Signal::Scripts);
    assert!(warmer.woken().now_or_never().is_none(), "first come the runtimes");
    assert_eq!(node.tick(&mut warmer).await, NEVER);
    let runtime = refuses.given();
    assert!(runtime.starts_with(b"\0asm"), "{}", runtime.len());
    soon(warmer.woken()).await;
    assert!(node.node.state.now().warming);
    assert_eq!(node.tick(&mut warmer).await, NEVER);
    assert!(!node.node.state.now().warming);
    assert_eq!(String::from_utf8(refuses.given()).expect("texts"), "used\nother\n");
    // A compiler that cannot be started.
    let node = world.node(2).await;
    node.node.state.begin_warming();
    let mut warmer = Warmer::of(node.runs.scripts.clone());
    assert_eq!(node.tick(&mut warmer).await, NEVER);
    assert!(warmer.tick(world.now()).await.is_err());
    assert!(node.node.state.now().warming);
    assert_eq!(<Warmer as Service>::AGAIN_AFTER, Duration::from_secs(10));
}

/// When a node starts, it writes this program's own runtime again if what is stored of it is damaged and a script needs it,
/// once.
#[tokio::test]
async fn a_damaged_runtime_is_mended_when_a_node_starts() {
    let refuses = Refuses::new();
    let world = World::at("2026-03-01T00:00:00Z").await;
    let own = RuntimeBundle::own(Language::JavaScript).expect("a runtime");
    let (id, bytes) = (own.id(), own.pack());
    let write = RuntimeWrite {
        tag: &id.tag,
        language: id.language.as_str(),
        interpreter: &id.interpreter,
        interface: i32::try_from(id.interface).expect("a small number"),
        bytes: &bytes,
    };
    world.store.put_runtime(world.now(), write).await.expect("a runtime");
    let damage = "UPDATE heddle.runtimes SET bytes = overlay(bytes PLACING 'damaged' FROM 1000)";
    world.execute(damage).await;
    let is_whole = async || {
        let kept = world.store.runtime_bytes(&id.tag).await.expect("an answer");
        kept.expect("a runtime") == bytes
    };
    let node = world.node_with(1, refuses.sandbox()).await;
    let mut rechecker = Rechecker(node.runs.scripts.clone());
    assert_eq!(node.tick(&mut rechecker).await, NEVER);
    assert!(!is_whole().await, "no script needs it");
    world
        .script("s", "export function run() {}", "source/javascript", Some(&id.tag))
        .await;
    assert_eq!(node.tick(&mut rechecker).await, NEVER);
    assert!(is_whole().await);
    assert!(refuses.given().is_empty(), "nothing has to be compiled for that");
    assert_eq!(<Rechecker as Service>::AGAIN_AFTER, Duration::from_secs(60));
}
