//! What the log and the errors of source scripts tell their authors.

use crate::guests::{Bench, Tables};
use crate::texts::{bench, run, script};
use heddle_domain::state::{ErrorKind, LogLevel};
use heddle_sandbox::{Language, Outcome};
use std::sync::Arc;

/// How a script ends, and its log.
pub async fn told(language: Language, source: &str) -> (Outcome, Vec<(LogLevel, String, Option<String>)>) {
    let bench = bench();
    let script = script(&bench, language, source).await;
    let tables = Arc::new(Tables::default());
    let result = bench.run_with(&script, &tables).await;
    let log = tables.log.lock().unwrap();
    let lines = log
        .iter()
        .map(|line| (line.level, line.message.clone(), line.fields.clone()));
    (result.outcome, lines.collect())
}

/// The message and the trace of a script that fails.
async fn failed(language: Language, source: &str) -> (ErrorKind, String, String) {
    match run(&bench(), language, source).await.outcome {
        Outcome::Failed {
            kind, message, trace, ..
        } => (kind, message, trace.unwrap_or_default()),
        other => panic!("{source}: {other:?}"),
    }
}

/// `%s` and the like stand for the next values, as in browsers and Node.js.
pub async fn formats_of_the_console(_: Bench) {
    let source = r#"export default () => {
        console.log("%s is %d, %i, %f, %j, %o%c %% %x", "a", 3, "4.7px", "1.5", { a: 1 }, [1, "x"], "color: red", "and", 2);
        console.log("%d %i %d", Symbol("x"), 10n, {});
        console.log("100%", 5);
        console.log("%s %s", "one");
        console.log("%%");
        console.log("%j", 1n);
        console.log("%s", { get a() { throw 1 } });
        console.log();
    }"#;
    let (_, lines) = told(Language::JavaScript, source).await;
    let lines: Vec<&str> = lines.iter().map(|(_, message, _)| message.as_str()).collect();
    assert_eq!(
        lines,
        [
            r#"a is 3, 4, 1.5, {"a":1}, [1, "x"] % %x and 2"#,
            "NaN 10n NaN",
            "100% 5",
            "one %s",
            "%%",
            "[unreadable]",
            "[unreadable]",
            ""
        ]
    );
}

/// An `AggregateError` has no message, but errors.
pub async fn errors_of_an_error(_: Bench) {
    let source = "export default () =>
        Promise.any([Promise.reject(new Error('one')), Promise.reject(new TypeError('two')), Promise.reject(7)]);";
    let (kind, message, trace) = failed(Language::JavaScript, source).await;
    assert_eq!(
        (kind, message.as_str()),
        (ErrorKind::Failed, "AggregateError: the first error is Error: one")
    );
    for part in [
        "Error 1: Error: one\n    at default (script.js:2:",
        "Error 2: TypeError: two\n",
        "Error 3: 7",
    ] {
        assert!(trace.contains(part), "{trace}");
    }
    for odd in [
        "const odd = new AggregateError([]); odd.errors[0] = odd;",
        "const odd = new Error(); const { proxy, revoke } = Proxy.revocable([], {}); revoke(); odd.errors = proxy;",
        "const odd = new Error(); Object.defineProperty(odd, 'errors', { get() { throw odd } });",
    ] {
        let source = format!("export default () => {{ {odd} throw odd }}");
        let (kind, message, _) = failed(Language::JavaScript, &source).await;
        assert_eq!(kind, ErrorKind::Failed, "{odd}");
        assert!(message.contains("Error"), "{odd}: {message}");
    }
}

/// Half of a surrogate pair, which texts of both languages may have, is replaced where people read it, and refused where
/// it is data.
pub async fn halves_of_characters(_: Bench) {
    let javascript = r#"export default async (params, ctx) => {
        ctx.log("info", "m \ud800", { "k\ud800": "\udc00 😀" });
        ctx.progress(0.5, "\ud800");
        const said = [];
        for (const work of [
          () => ctx.state.set("k", "\ud800"),
          () => ctx.enqueue("g", { a: "\ud800" }),
        ]) await work().catch((error) => said.push(error.message));
        console.log(said.join("|"));
        return "\ud800";
      }"#;
    let python = r#"
def run(params, ctx):
    ctx.log("info", "m \ud800", {"k\ud800": "\udc00 😀"})
    ctx.progress(0.5, "\ud800")
"#;
    let half = "a text has half of a surrogate pair";
    let (outcome, lines) = told(Language::JavaScript, javascript).await;
    let Outcome::Failed { kind, message, .. } = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(*kind, ErrorKind::Invalid);
    assert!(
        message.starts_with(&format!("the output is not JSON: {half}")),
        "{message}"
    );
    assert_eq!(lines[1].1.matches(half).count(), 2, "{lines:?}");
    let (ended, of_python) = told(Language::Python, python).await;
    assert_eq!(ended, Outcome::Succeeded("null".into()));
    for line in [&lines[0], &of_python[0]] {
        let fields: serde_json::Value = serde_json::from_str(line.2.as_deref().unwrap()).unwrap();
        assert_eq!(line.0, LogLevel::Info);
        assert_eq!(fields, serde_json::json!({"k\u{fffd}": "\u{fffd} 😀"}), "{line:?}");
    }
    let deep = "export default () => { let all = []; for (let n = 0; n < 200; n++) all = [all]; return all }";
    let (kind, message, _) = failed(Language::JavaScript, deep).await;
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.contains("nested more than 127 levels deep"), "{message}");
}

/// A level may have the name that Python's `logging` gives it. What is not HTTP is not a question of grants.
pub async fn names_of_levels_and_schemes(_: Bench) {
    let python =
        "def run(params, ctx):\n    for level in ['WARNING', 'critical', 'Debug']:\n        ctx.log(level, level)\n";
    let (outcome, lines) = told(Language::Python, python).await;
    assert_eq!(outcome, Outcome::Succeeded("null".into()));
    let levels: Vec<LogLevel> = lines.iter().map(|(level, ..)| *level).collect();
    assert_eq!(levels, [LogLevel::Warn, LogLevel::Error, LogLevel::Debug]);
    let (_, message, _) = failed(Language::JavaScript, "export default () => fetch('file:///etc/passwd')").await;
    assert!(message.contains("not an http or https address"), "{message}");
}

/// The text of an answer is read by its charset, in Python. (`fetch` of JavaScript reads UTF-8 by its standard.)
pub async fn charsets_of_answers(_: Bench) {
    let python = r#"
import base64
import json
from heddle import Response

def text(kind, content):
    answer = {"status": 200, "status_text": "", "url": "", "headers": json.dumps([["content-type", kind]])}
    return Response({**answer, "text": None, "base64": base64.b64encode(content).decode()}).text

def run(params, ctx):
    return [
        text("text/plain; charset=ISO-8859-1", b"\xe9"),
        text('text/html;a=b; Charset="gbk"', "日本".encode("gbk")),
        text("text/plain", "é".encode()),
        text("text/plain; charset=no-such", "é".encode()),
        text("text/plain; charset=hex", b"41"),
        text("text/plain; charset=undefined", b"41"),
        text("text/plain; charset", b"\xe9"),
    ]
"#;
    let (outcome, _) = told(Language::Python, python).await;
    let expect = serde_json::json!(["é", "日本", "é", "é", "41", "41", "\u{fffd}"]);
    let Outcome::Succeeded(output) = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(serde_json::from_str::<serde_json::Value>(output).unwrap(), expect);
}

/// A promise within data is a forgotten `await`.
pub async fn forgotten_awaits(_: Bench) {
    let words = "a promise is not JSON: `await` it first";
    let javascript = "export default async (params, ctx) => {
        const later = Promise.resolve(1);
        const said = [JSON.stringify([later])];
        for (const work of [() => ctx.state.set('k', { later }), () => ctx.enqueue('g', { later })]) {
            await work().catch((error) => said.push(error.message));
        }
        console.log(said.join('|'));
        ctx.log('info', 'it goes on', { later });
        return { later };
    }";
    let (outcome, lines) = told(Language::JavaScript, javascript).await;
    let Outcome::Failed { kind, message, .. } = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(*kind, ErrorKind::Invalid);
    assert!(message.contains(words), "{message}");
    assert_eq!(lines[0].1, format!("[{{}}]|{words}|{words}"));
    assert_eq!(lines[1].2.as_deref(), Some(r#"{"later":{}}"#));
    let python = "async def later():\n    return 1\n\nasync def run(params, ctx):\n    return {'later': later()}\n";
    let (kind, message, _) = failed(Language::Python, python).await;
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(message.contains("coroutine is not JSON: `await` it first"), "{message}");
}
