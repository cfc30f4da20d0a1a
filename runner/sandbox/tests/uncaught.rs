//! What fails in JavaScript without being caught by anybody: the log tells of it.

use crate::guests::Bench;
use crate::told::told;
use heddle_domain::state::{ErrorKind, LogLevel};
use heddle_sandbox::{Language, Outcome};

/// What a callback throws is a line in the log, and ends nothing.
pub async fn in_callbacks(_: Bench) {
    let source = "queueMicrotask(() => { throw new Fatal('while it is loaded') });
        export default async function run() {
            queueMicrotask(() => { throw new Fatal('one') });
            queueMicrotask(async () => { throw new Fatal('two') });
            setTimeout(async () => { throw new Fatal('three') });
            const registry = new FinalizationRegistry(() => { throw new Fatal('four') });
            registry.register({}, 1);
            await new Promise((done) => setTimeout(done, 5));
            return registry instanceof FinalizationRegistry;
        }";
    let (outcome, lines) = told(Language::JavaScript, source).await;
    assert_eq!(outcome, Outcome::Succeeded("true".into()));
    for (what, thrown) in [
        ("microtask", "one"),
        ("microtask", "two"),
        ("timer", "three"),
        ("finalizer", "four"),
    ] {
        let begin = format!("uncaught in a {what}: Fatal: {thrown}");
        assert!(lines.iter().any(|(_, line, _)| line.starts_with(&begin)), "{lines:?}");
    }
}

/// So is a promise that fails and that nobody awaits, with the place in the script. Others are not.
pub async fn in_promises(_: Bench) {
    let source = "interface Params {}
        async function fails(why: string): Promise<void> {
            throw new TypeError(why);
        }
        const atTheTop = fails('before the run');
        export default async function run(params: Params, ctx) {
            fails('forgotten');
            ctx.state.set('k', () => 1);
            Promise.reject('a text');
            fails('in a chain').then(() => 1);
            setTimeout(() => { fails('later') }, 1);
            atTheTop.catch(() => 1);
            const soon = fails('caught soon');
            for (let n = 0; n < 200; n++) fails('caught at once').catch(() => 1);
            try { await fails('caught') } catch {}
            await Promise.allSettled([fails('settled'), fails('settled')]);
            await soon.catch(() => 1);
            await new Promise((done) => setTimeout(done, 5));
            fails('at the end');
            return 7;
        }";
    let (outcome, lines) = told(Language::TypeScript, source).await;
    assert_eq!(outcome, Outcome::Succeeded("7".into()));
    assert!(lines.iter().all(|(level, ..)| *level == LogLevel::Error), "{lines:?}");
    let begins = [
        "TypeError: forgotten",
        "TypeError: a state value is not JSON",
        "a text",
        "TypeError: in a chain",
        "TypeError: later",
        "TypeError: at the end",
    ];
    assert_eq!(lines.len(), begins.len(), "{lines:?}");
    for ((_, line, _), begin) in lines.iter().zip(begins) {
        assert!(
            line.starts_with(&format!("uncaught in a promise: {begin}")),
            "{lines:?}"
        );
    }
    assert!(lines[0].1.contains("(script.ts:7:"), "{lines:?}");
    assert!(!lines[1].1.contains("heddle:"), "{lines:?}");
}

/// They end nothing, and what they are made of is of no harm: more than there is room for, reasons that cannot be read or
/// fail further promises, a failed run.
pub async fn hostile_promises(_: Bench) {
    let source = "async function fails(why) { throw Object.assign(new Error(why), { own: {} }) }
        export default async function run() {
            for (let round = 0; round < 30; round++) {
                for (let n = 0; n < 500; n++) {
                    const error = new Error('cycle');
                    error.own = Promise.reject(error);
                    fails('many');
                }
                await new Promise((done) => setTimeout(done));
            }
            Promise.reject({ get message() { fails('while it is read'); throw 1 }, toString: null });
            await new Promise((done) => setTimeout(done));
            Array.prototype.push = Promise.prototype.then = console.error = null;
            Object.defineProperty(Array.prototype, 1, { set() { throw new Error('a setter') } });
            fails('with other builtins');
            throw new Error('the run');
        }";
    let (outcome, lines) = told(Language::JavaScript, source).await;
    let Outcome::Failed { kind, message, .. } = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((*kind, message.as_str()), (ErrorKind::Failed, "the run"));
    let count = |begin: &str| lines.iter().filter(|(_, line, _)| line.starts_with(begin)).count();
    assert_eq!(
        count("uncaught in a promise: Error: cycle") + count("uncaught in a promise: Error: many"),
        30 * 64
    );
    assert_eq!(count("uncaught in a promise: Error: while it is read"), 1);
    assert_eq!(count("uncaught in a promise: Error: with other builtins"), 1);
}
