//! Runtimes that other programs have kept, next to this program's own.

use crate::guests::{Bench, RealClock, config};
use crate::texts::{bench, compiled, load, shared};
use bytes::Bytes;
use chrono::TimeDelta;
use heddle_domain::{Clock, Time};
use heddle_sandbox::{
    CompileError, Compiled, Language, LoadError, Outcome, RuntimeBundle, Sandbox, Script, Uploaded, code_key,
};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};

/// Texts that tell on which runtime they are, and what another one has in addition to this program's own.
fn distinct_texts(language: Language) -> (&'static str, &'static str, &'static str) {
    match language {
        Language::Python => (
            "import builtins\ndef run():\n    return getattr(builtins, 'heddle_build', 'own')\n",
            "runtime.py",
            "\nimport builtins\nbuiltins.heddle_build = 'older'\n",
        ),
        _ => (
            "export default () => globalThis.heddleBuild ?? 'own'",
            "module heddle:web",
            "\nglobalThis.heddleBuild = 'older';\n",
        ),
    }
}

fn older(language: Language) -> RuntimeBundle {
    let (_, part, more) = distinct_texts(language);
    RuntimeBundle::own(language).unwrap().with_more(part, more)
}

fn key_on(compiled: &Compiled, tag: &str) -> String {
    code_key(&compiled.digest, compiled.world.as_str(), Some(tag))
}

fn uploaded(text: &'static str) -> Uploaded {
    Uploaded {
        bytes: Bytes::from_static(text.as_bytes()),
        at: RealClock.now(),
    }
}

async fn says(bench: &Bench, script: &Script) -> String {
    match bench.run(script).await.outcome {
        Outcome::Succeeded(said) => said,
        other => panic!("{other:?}"),
    }
}

/// Loads a text on a kept runtime, whose bytes may be requested.
async fn load_kept(sandbox: &Sandbox, key: &str, packed: &[u8], text: &'static str) -> Script {
    let kept = async { Ok::<_, Infallible>(Some(packed.to_vec())) };
    let text = async { Ok(uploaded(text)) };
    sandbox.load_kept(key, kept, text).await.unwrap()
}

/// A script keeps the runtime that its key names, next to one with this program's own; its files are found on the disk.
pub async fn both_at_once(_: Bench) {
    let bench = bench();
    for language in Language::ALL {
        let (text, ..) = distinct_texts(language);
        let (older, compiled) = (older(language), compiled(&bench, language, text).await.unwrap());
        let own = load(&bench.sandbox, &compiled).await;
        assert_eq!(own.runtime(), Some(compiled.runtime.as_ref().unwrap().tag.as_str()));
        let (tag, packed) = (older.id().tag, older.pack());
        let key = key_on(&compiled, &tag);
        let script = load_kept(&bench.sandbox, &key, &packed, text).await;
        assert_eq!(script.runtime(), Some(tag.as_str()));
        for _ in 0..2 {
            assert_eq!(says(&bench, &script).await, "\"older\"", "{language:?}");
            assert_eq!(says(&bench, &own).await, "\"own\"", "{language:?}");
        }
        // The next start has to read the runtime's bytes, and to evaluate nothing.
        let mut settings = config(bench.cache.path());
        settings.cache_dir = shared().to_owned();
        let sandbox = Sandbox::new(settings, Arc::new(RealClock)).unwrap();
        let kept = async { Ok::<_, Infallible>(Some(packed.clone())) };
        let script = sandbox.load_kept(&key, kept, async { unreachable!() }).await.unwrap();
        assert_eq!(script.runtime(), Some(tag.as_str()));
        // While one of its scripts is in memory, its bytes are not requested again.
        let other = match language {
            Language::Python => "def run(): return 1\n",
            _ => "export default () => 1",
        };
        let other_key = key_on(&self::compiled(&bench, language, other).await.unwrap(), &tag);
        let kept = async { unreachable!() as Result<Option<Vec<u8>>, Infallible> };
        let text = async { Ok(uploaded(other)) };
        assert_eq!(
            sandbox.load_kept(&other_key, kept, text).await.unwrap().runtime(),
            Some(tag.as_str())
        );
    }
}

/// A clock that the test sets.
#[derive(Debug)]
struct Moved(AtomicI64);

impl Clock for Moved {
    fn now(&self) -> Time {
        RealClock.now() + TimeDelta::minutes(self.0.load(SeqCst))
    }
}

/// A script whose runtime cannot be loaded uses the program's own, and after ten minutes it is tried again.
pub async fn tried_again_after_a_while(_: Bench) {
    let bench = bench();
    let language = Language::JavaScript;
    let (text, ..) = distinct_texts(language);
    let compiled = compiled(&bench, language, text).await.unwrap();
    let (older, clock) = (older(language), Arc::new(Moved(AtomicI64::new(0))));
    let (tag, packed) = (older.id().tag, older.pack());
    let own = compiled.runtime.as_ref().unwrap().tag.as_str();
    let key = key_on(&compiled, &tag);
    let mut settings = config(bench.cache.path());
    settings.cache_dir = shared().to_owned();
    let sandbox = Sandbox::new(settings, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    let asked = AtomicU32::new(0);
    let loaded = async |packed: Option<&[u8]>| {
        let kept = async {
            asked.fetch_add(1, SeqCst);
            Ok::<_, Infallible>(packed.map(<[u8]>::to_vec))
        };
        let text = async { Ok(uploaded(text)) };
        let script = sandbox.load_kept(&key, kept, text).await.unwrap();
        script.runtime().unwrap().to_owned()
    };
    let mut damaged = packed.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    assert_eq!(loaded(Some(&damaged)).await, own);
    assert_eq!(asked.load(SeqCst), 1);
    clock.0.store(9, SeqCst);
    assert_eq!(loaded(Some(&packed)).await, own, "it is not asked for again yet");
    assert_eq!(asked.load(SeqCst), 1);
    clock.0.store(11, SeqCst);
    assert_eq!(loaded(None).await, own, "it is gone by then");
    clock.0.store(22, SeqCst);
    assert_eq!(loaded(Some(&packed)).await, tag);
    assert_eq!(asked.load(SeqCst), 3);
    // If the database is away, no script is moved.
    let key = key_on(&compiled, "0123456789abcdef");
    let away = async { Err::<Option<Vec<u8>>, _>("away") };
    let script = sandbox.load_kept(&key, away, async { unreachable!() }).await;
    assert!(matches!(script, Err(LoadError::Fetch("away"))), "{script:?}");
}

/// Bundles that are intact, but cannot run: of another language, without their parts, with invalid code.
pub async fn nonsense(_: Bench) {
    let bench = bench();
    let (text, ..) = distinct_texts(Language::JavaScript);
    let compiled = compiled(&bench, Language::JavaScript, text).await.unwrap();
    let own = compiled.runtime.as_ref().unwrap().tag.as_str();
    let javascript = || RuntimeBundle::own(Language::JavaScript).unwrap();
    for (what, bundle) in [
        ("another language", RuntimeBundle::own(Language::Python).unwrap()),
        ("code that is none", javascript().with_more("code", "more")),
        ("glue that is none", javascript().with_more("glue", "more")),
        ("a memory with an odd length", javascript().with_more("memory", "more")),
    ] {
        let tag = bundle.id().tag;
        let script = load_kept(&bench.sandbox, &key_on(&compiled, &tag), &bundle.pack(), text).await;
        assert_eq!(script.runtime(), Some(own), "{what}");
        assert_eq!(says(&bench, &script).await, "\"own\"", "{what}");
    }
    // A script that the program's own runtime does not accept either is refused with an error.
    let text = "throw new Error('too new'); export default () => 1";
    let digest = heddle_sandbox::digest_of(text.as_bytes());
    let key = code_key(&digest, "source/javascript", Some("0123456789abcdef"));
    let kept = async { Ok::<_, Infallible>(None) };
    let refused = bench.sandbox.load_kept(&key, kept, async { Ok(uploaded(text)) }).await;
    assert!(
        matches!(&refused, Err(LoadError::Compile(CompileError::Source(fault))) if fault.message.contains("too new")),
        "{refused:?}"
    );
}
