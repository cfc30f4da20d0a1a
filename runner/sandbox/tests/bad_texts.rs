//! Texts with errors, in each language: each is refused when it is uploaded, or its run ends with an error that says
//! why.

use crate::guests::{Bench, RealClock, config};
use crate::outcomes::failure;
use crate::texts::{bench, compiled, fault, run, script, shared};
use bytes::Bytes;
use heddle_domain::state::ErrorKind;
use heddle_sandbox::{CompileError, Language, Outcome, Sandbox, World};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use End::{Ends, Gives, Refused};
use Language::{JavaScript, Python, TypeScript};

/// The end of a text.
#[derive(Clone, Copy)]
enum End {
    /// Refused, for a reason with these words; if a line is the cause, with its number, its text, and a column.
    Refused(&'static str, Option<usize>),
    /// Its run fails in this way, with these words.
    Ends(ErrorKind, &'static str),
    /// It has no error: its output.
    Gives(&'static str),
}

const NO_LINE: Option<usize> = None;

/// A text and its end.
type Bad = (&'static str, End);

/// The error; then the text and its end in JavaScript, which is the same in TypeScript, and in Python.
#[rustfmt::skip]
const TABLE: &[(&str, Bad, Bad)] = &[
    ("a syntax error",
        ("let a = 1;\nexport default ( => a;\n", Refused("", Some(2))),
        ("a = 1\ndef run(:\n", Refused("invalid syntax", Some(2)))),
    ("a top level that loops",
        ("for (;;);\nexport default () => 1;", Refused("its top level exceeded the limit of 5s of processor time", NO_LINE)),
        ("while True: pass\n", Refused("its top level exceeded the limit of 5s of processor time", NO_LINE))),
    ("a top level that throws",
        ("const f = () => {\n  throw new Error('at the top');\n};\nf();\nexport default () => 1;", Refused("at the top", Some(2))),
        ("def f():\n    raise OSError('at the top')\nf()\n", Refused("at the top", Some(2)))),
    ("a top level that ends the interpreter",
        ("let a = [];\nfor (let n = 0; n < 100000; n++) a = [a];\nJSON.stringify(a);\nexport default () => 1;", Refused("its top level failed", NO_LINE)),
        ("import os\nos._exit(3)\n", Refused("its top level failed", NO_LINE))),
    ("a top level that allocates a gigabyte",
        ("const a = []; for (let n = 0; n < 1024; n++) a.push(new Uint8Array(1 << 20).fill(1));\nexport default () => 1;", Refused("memory limit of 64 MiB", NO_LINE)),
        ("a = [bytes(1 << 20) for n in range(1024)]\n", Refused("memory limit of 64 MiB", NO_LINE))),
    ("a top level that calls the network",
        ("await fetch('http://127.0.0.1/');\nexport default () => 1;", Refused("call it in `run`", Some(1))),
        ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')\n", Refused("not available at the top level", Some(2)))),
    ("a module without `run`",
        ("export const a = 1;", Refused("does not export `run`", NO_LINE)),
        ("a = 1\n", Refused("does not have `run`", NO_LINE))),
    ("a `run` that is no function",
        ("export default 7;", Refused("does not export `run`", NO_LINE)),
        ("run = 7\n", Refused("does not have `run`", NO_LINE))),
    ("an empty text",
        ("  \n", Refused("empty", NO_LINE)),
        ("  \n", Refused("does not have `run`", NO_LINE))),
    ("an import of what is not there",
        ("\nimport x from 'lodash';\nexport default () => x;", Refused("`lodash` cannot be imported", Some(2))),
        ("\nimport requests\n", Refused("the standard library", Some(2)))),
    ("a schema that is no schema",
        ("export const params = { type: 'nope' };\nexport default () => 1;", Refused("schema for params", NO_LINE)),
        ("params = {'type': 'nope'}\ndef run(): pass\n", Refused("schema for params", NO_LINE))),
    ("a schema that is not even an object",
        ("export const params = 7;\nexport default () => 1;", Refused("`params` must be a JSON Schema", NO_LINE)),
        ("params = 7\ndef run(): pass\n", Refused("`params` must be a JSON Schema", NO_LINE))),
    ("a description that is too long",
        ("export const description = 'x'.repeat(1_000_000);\nexport default () => 1;", Refused("have 1000018 bytes together as JSON, the maximum is 65536", NO_LINE)),
        ("description = 'x' * 1_000_000\ndef run(): return 1\n", Refused("have 1000018 bytes together as JSON, the maximum is 65536", NO_LINE))),
    ("a description that is just short enough",
        ("export const description = 'x'.repeat(65_518);\nexport default () => 1;", Gives("1")),
        ("description = 'x' * 65_518\ndef run(): return 1\n", Gives("1"))),
    ("a schema and defaults that are too long together",
        ("export const params = { description: 'x'.repeat(33_000) };\nexport const defaults = { a: 'x'.repeat(33_000) };\nexport default () => 1;", Refused("the maximum is 65536", NO_LINE)),
        ("params = {'description': 'x' * 33_000}\ndefaults = {'a': 'x' * 33_000}\ndef run(): return 1\n", Refused("the maximum is 65536", NO_LINE))),
    ("the character U+0000 is not allowed",
        ("export default () => 1;\n// \0", Refused("U+0000", Some(2))),
        ("def run(): return 1\n# \0", Refused("U+0000", Some(2)))),
    ("a byte order mark",
        ("\u{feff}export default () => 1;", Gives("1")),
        ("\u{feff}def run(): return 1\n", Gives("1"))),
    ("a thrown string",
        ("export default () => { throw 'a text' };", Ends(ErrorKind::Failed, "a text")),
        ("def run(): raise 'a text'\n", Ends(ErrorKind::Failed, "exceptions must derive from BaseException"))),
    ("a promise that never settles",
        ("export default () => new Promise(() => {});", Ends(ErrorKind::Failed, "never settles")),
        ("import asyncio\nasync def forever(): await asyncio.Event().wait()\ndef run(): asyncio.run(forever())\n", Ends(ErrorKind::Failed, "never comes"))),
    ("an `async` function that awaits what never settles",
        ("export default async () => { await new Promise(() => {}) };", Ends(ErrorKind::Failed, "never settles")),
        ("import asyncio\nasync def run(): await asyncio.Event().wait()\n", Ends(ErrorKind::Failed, "never comes"))),
    ("an `async` generator as the output",
        ("export default async function* run() { yield 1 }", Ends(ErrorKind::Invalid, "a generator")),
        ("async def run(): yield 1\n", Ends(ErrorKind::Invalid, "a generator"))),
    ("a top level that awaits what never settles",
        ("await new Promise(() => {});\nexport default () => 1;", Refused("never settles", NO_LINE)),
        ("import asyncio\nasync def forever(): await asyncio.Event().wait()\nasyncio.run(forever())\n", Refused("never comes", Some(3)))),
    ("a generator as the output",
        ("export default function* run() { yield 1 }", Ends(ErrorKind::Invalid, "a generator")),
        ("def run(): yield 1\n", Ends(ErrorKind::Invalid, "a generator"))),
    ("no number in the output",
        ("export default () => [NaN, Infinity];", Gives("[null,null]")),
        ("def run(): return float('nan')\n", Ends(ErrorKind::Invalid, "cannot be written as JSON"))),
    ("a large integer in the output",
        ("export default () => 2n ** 100n;", Ends(ErrorKind::Invalid, "BigInt")),
        ("def run(): return 2 ** 100\n", Gives("1267650600228229401496703205376"))),
    ("a cycle in the output",
        ("export default () => { const a = {}; a.a = a; return a };", Ends(ErrorKind::Invalid, "circular")),
        ("def run():\n    a = []\n    a.append(a)\n    return a\n", Ends(ErrorKind::Invalid, "Circular reference"))),
    ("an output that nests too deep",
        ("export default () => { let a = []; for (let n = 0; n < 20_000; n++) a = [a]; return a };", Ends(ErrorKind::Invalid, "the output cannot be written as JSON: it nests too deep")),
        ("def run():\n    a = []\n    for n in range(20_000): a = [a]\n    return a\n", Ends(ErrorKind::Invalid, "the output cannot be written as JSON: it nests too deep"))),
    ("what nests too deep, in a text that the script writes itself",
        ("export default () => { let a = []; for (let n = 0; n < 20_000; n++) a = [a]; return JSON.stringify(a) };", Ends(ErrorKind::Failed, "RangeError")),
        ("import json\ndef run():\n    a = []\n    for n in range(20_000): a = [a]\n    return json.dumps(a)\n", Ends(ErrorKind::Failed, "RecursionError"))),
    ("a function in the output",
        ("export default () => () => 1;", Ends(ErrorKind::Invalid, "function")),
        ("def run(): return run\n", Ends(ErrorKind::Invalid, "function is not JSON"))),
    ("half a character in the output",
        ("export default () => '\\ud800';", Ends(ErrorKind::Invalid, "not JSON")),
        ("def run(): return chr(0xd800)\n", Ends(ErrorKind::Invalid, "cannot be written as JSON"))),
    ("recursion",
        ("export default function run() { return 1 + run() }", Ends(ErrorKind::Failed, "RangeError")),
        ("def run(): return 1 + run()\n", Ends(ErrorKind::Failed, "RecursionError"))),
    ("`eval`, which is off in JavaScript alone",
        ("export default () => eval('1 + 1');", Ends(ErrorKind::Failed, "EvalError")),
        ("def run(): return eval('1 + 1')\n", Gives("2"))),
    ("what Heddle writes with, overwritten",
        ("JSON.stringify = JSON.parse = null; Object.prototype.output = Object.prototype.kind = 'no';\nexport default () => 1;", Gives("1")),
        ("import json\ndef run():\n    json.dumps = json.loads = json.JSONEncoder = None\n    return 1\n", Gives("1"))),
    ("what everything stands on, overwritten",
        ("export default () => { globalThis.Promise = globalThis.Error = null; Array.prototype.push = null; return 1 };", Gives("1")),
        ("import builtins\ndef run():\n    builtins.isinstance = builtins.len = None\n    return 1\n", Ends(ErrorKind::Failed, "overwritten"))),
    ("a log that is not there any more",
        ("export default () => { globalThis.console = null; return 1 };", Gives("1")),
        ("import sys\ndef run():\n    print('a', end='')\n    del sys.stdout, sys.stderr\n    return 1\n", Gives("1"))),
    ("setters where arrays have their items",
        ("export default async () => {\n  for (let n = 0; n < 9; n++) Object.defineProperty(Array.prototype, n, { set() { throw new Error('a setter') } });\n  console.log([1], { a: [2] }, new Error('an error'));\n  await new Promise((done) => setTimeout(done, 1));\n  return 1;\n};", Gives("1")),
        ("def run():\n    list.__setitem__ = None\n", Ends(ErrorKind::Failed, "immutable type"))),
    ("setters where arrays have their items, and a failure",
        ("export default async (params, ctx) => {\n  for (const name of [0, 1, 'a']) Object.defineProperty(Array.prototype, name, { set() { throw new Error('a setter') }, enumerable: true });\n  await ctx.state.set('a', 1);\n  throw new Error('its own');\n};", Ends(ErrorKind::Failed, "its own")),
        ("class Own(Exception):\n    args = property(lambda self: 1 / 0)\ndef run(): raise Own('its own')\n", Ends(ErrorKind::Failed, "its own"))),
    ("setters where arrays have their items, and one as the output",
        ("export default () => {\n  Object.defineProperty(Array.prototype, 0, { set() { throw new Error('a setter') } });\n  return [1];\n};", Ends(ErrorKind::Invalid, "a setter")),
        ("class Own(list):\n    def __iter__(self): raise OSError('a way through')\ndef run(): return Own()\n", Ends(ErrorKind::Invalid, "a way through"))),
    ("a top level that puts setters where arrays have their items",
        ("for (let n = 0; n < 9; n++) Object.defineProperty(Array.prototype, n, { set() { throw new Error('a setter') } });\nexport const description = 'It has them.';\nexport default () => 1;", Gives("1")),
        ("dict.__setitem__ = None\ndef run(): return 1\n", Refused("immutable type", Some(1)))),
    ("what Heddle waits with, overwritten",
        ("Map.prototype.get = Map.prototype.set = Map.prototype.delete = null;\nexport default () => new Promise((done) => setTimeout(() => done(1), 1));", Gives("1")),
        ("import asyncio, time\ntime.sleep = time.monotonic = None\nasync def later():\n    await asyncio.sleep(0.001)\n    return 1\ndef run(): return asyncio.run(later())\n", Ends(ErrorKind::Failed, "'NoneType' object is not callable"))),
    ("an error that nobody of the script's can catch",
        ("export default () => new Promise(() => {\n  AbortSignal.timeout(1).addEventListener('abort', () => { throw new Error('in a listener') });\n  setTimeout(() => {}, 100);\n});", Ends(ErrorKind::Failed, "in a listener")),
        ("class Own:\n    def __del__(self): raise OSError('in the end')\ndef run():\n    Own()\n    return 1\n", Gives("1"))),
    ("Heddle's own door, by its name",
        ("export default () => { globalThis.__cqjs = 1; return 1 };", Ends(ErrorKind::Failed, "TypeError")),
        ("def run():\n    import _heddle\n    _heddle.call(99, '')\n", Ends(ErrorKind::Trap, "99"))),
];

pub async fn in_each_language(_: Bench) {
    let bench = bench();
    let mut wrong = Vec::new();
    for (what, of_web, of_python) in TABLE {
        // Concurrently: some take the five seconds of a top level.
        let all = [(JavaScript, of_web), (TypeScript, of_web), (Python, of_python)];
        let checks = all.map(|(language, (text, end))| becomes(&bench, language, text, *end));
        let said = futures::future::join_all(checks).await;
        for ((language, _), said) in all.iter().zip(said) {
            wrong.extend(said.err().map(|why| format!("{what}, {}: {why}", language.as_str())));
        }
    }
    // All differences, so that they are seen at once.
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn becomes(bench: &Bench, language: Language, text: &str, end: End) -> Result<(), String> {
    let script = match (compiled(bench, language, text).await, end) {
        (Err(CompileError::Source(fault)), Refused(words, line)) => {
            let shown = line.map(|line| text.lines().nth(line - 1).unwrap_or_default());
            let is_right = fault.message.contains(words)
                && fault.line.map(|line| line as usize) == line
                && fault.column.is_some() == line.is_some()
                && fault.text.as_deref() == shown;
            return if is_right { Ok(()) } else { Err(format!("{fault:?}")) };
        }
        (Ok(compiled), Ends(..) | Gives(_)) => crate::texts::load(&bench.sandbox, &compiled).await,
        (Ok(_), Refused(..)) => return Err("was accepted".into()),
        (Err(error), _) => return Err(error.to_string()),
    };
    let result = bench.run(&script).await;
    let is_right = match (&result.outcome, end) {
        (Outcome::Succeeded(output), Gives(wanted)) => output == wanted,
        (Outcome::Failed { kind, message, .. }, Ends(wanted, words)) => *kind == wanted && message.contains(words),
        _ => false,
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("{:?}", result.outcome))
    }
}

/// The bounds on the text itself, and bytes that are no text.
pub async fn too_large_or_no_text(_: Bench) {
    let bench = bench();
    for language in Language::ALL {
        let comment = if language == Python { "#" } else { "//" };
        let big = format!("{comment} {}\n", "x".repeat(5 << 20));
        let refused = compiled(&bench, language, &big).await;
        assert!(
            matches!(refused, Err(CompileError::TooLarge(_))),
            "{language:?}: {refused:?}"
        );
        let broken = Bytes::from_static(b"a = 1\nb = '\xff'");
        match bench.sandbox.compile_source(language, broken).await {
            Err(CompileError::Source(fault)) => {
                assert!(
                    fault.message.contains("not UTF-8") && fault.line == Some(2),
                    "{language:?}: {fault:?}"
                );
            }
            other => panic!("{language:?}: {other:?}"),
        }
        // Nested deeper than a parser supports: any error.
        let deep = match language {
            Python => format!("def run(): return {}1\n", "-".repeat(100_000)),
            _ => format!("export default () => {}0{}", "[".repeat(20_000), "]".repeat(20_000)),
        };
        fault(&bench, language, &deep).await;
    }
}

/// Snapshots of two builds' interpreters are in one directory, and each build uses its own.
pub async fn two_versions_of_the_runtime(_: Bench) {
    let bench = bench();
    for language in Language::ALL {
        let text = match language {
            Python => "def run(): return 'both'\n",
            _ => "export default () => 'both'",
        };
        let done = run(&bench, language, text).await;
        assert_eq!(done.outcome, Outcome::Succeeded("\"both\"".into()), "{language:?}");
        let compiled = compiled(&bench, language, text).await.unwrap();
        let key = compiled.key();
        let own = snapshot(shared(), &key).expect("a snapshot");
        let (name, tag) = own
            .to_str()
            .unwrap()
            .rsplit_once('-')
            .expect("the interpreter's version");
        let other = PathBuf::from(format!("{name}-{}", "0".repeat(tag.len())));
        // As from a later build, whose memory this one does not know. A new file: the old one is mapped.
        std::fs::remove_file(&own).unwrap();
        std::fs::write(&other, b"another interpreter's").unwrap();
        let mut settings = config(bench.cache.path());
        settings.cache_dir = shared().to_owned();
        let sandbox = Sandbox::new(settings, Arc::new(RealClock)).unwrap();
        let stored = async { Ok::<_, Infallible>(Bytes::from_static(text.as_bytes())) };
        let loaded = sandbox.load(&key, stored).await.unwrap();
        assert_eq!(loaded.world(), World::Source(language));
        assert!(own.exists(), "it is made again from the text");
        assert_eq!(std::fs::read(&other).unwrap(), b"another interpreter's", "{language:?}");
        std::fs::remove_file(other).unwrap();
    }
}

/// The file of a script's snapshot below a directory.
fn snapshot(directory: &Path, key: &str) -> Option<PathBuf> {
    let begins = format!("{}-", key.trim_start_matches("sha256:"));
    std::fs::read_dir(directory)
        .ok()?
        .flatten()
        .find_map(|entry| match entry.path() {
            path if path.is_dir() => snapshot(&path, key),
            path => entry.file_name().to_string_lossy().starts_with(&begins).then_some(path),
        })
}

/// One after the other, each followed by a check: no run sees what another one did to the interpreter.
pub async fn nothing_is_left_behind(_: Bench) {
    let mut bench = bench();
    bench.limits.memory_bytes = 64 << 20;
    for (language, harm, plain) in [
        (
            JavaScript,
            "export default () => { Object.prototype.x = 1; globalThis.y = 1; delete globalThis.fetch; throw 1 }",
            "export default () => [({}).x ?? 0, typeof y, typeof fetch]",
        ),
        (
            Python,
            "def run():\n    import builtins, sys\n    builtins.y = 1\n    sys.modules.clear()\n    raise KeyError\n",
            "def run():\n    import builtins, sys\n    return [0, 'y' in vars(builtins), 'json' in sys.modules]\n",
        ),
    ] {
        let (harm, plain) = (
            script(&bench, language, harm).await,
            script(&bench, language, plain).await,
        );
        let before = bench.run(&plain).await.outcome;
        assert_eq!(failure(&bench.run(&harm).await).0, ErrorKind::Failed);
        assert_eq!(bench.run(&plain).await.outcome, before, "{language:?}");
        assert!(matches!(before, Outcome::Succeeded(_)), "{before:?}");
    }
}
