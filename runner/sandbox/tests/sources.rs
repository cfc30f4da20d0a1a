//! Scripts in JavaScript and TypeScript: their environment, the reports of their errors, and what they cannot do.

use crate::guests::{Bench, RealClock, Tables, config};
use crate::outcomes::failure;
use crate::texts::{bench, check_reports, compiled, everything, fault, run, script, serve, succeeded};
use bytes::Bytes;
use heddle_domain::state::{ErrorKind, LogLevel};
use heddle_sandbox::{AttemptResult, Language, Outcome, Sandbox, World};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

async fn js(bench: &Bench, source: &str) -> AttemptResult {
    run(bench, Language::JavaScript, source).await
}

/// The output of a `run` with this body.
async fn output(bench: &Bench, body: &str) -> Value {
    let text = format!("export default async function run(params, ctx) {{ {body} }}");
    succeeded(&text, &js(bench, &text).await)
}

pub async fn a_module_runs(_: Bench) {
    let mut bench = bench();
    bench.params = r#"{"name": "Ada", "n": 3}"#.into();
    let source = "export const description = 'Greets.';
        export const params = { type: 'object', properties: { n: { type: 'integer' } } };
        export const defaults = { n: 1 };
        let calls = 0;
        export default async function run(params, ctx) {
            calls += 1;
            console.debug('hello', params.name, { a: [1, { b: 2 }] }, new Error('e').message);
            console.warn(`two\\nlines`);
            await null;
            return { greeting: `Hello, ${params.name}`, calls, task: ctx.task, at: ctx.logicalTime, attempt: ctx.attempt };
        }";
    let compiled = compiled(&bench, Language::JavaScript, source).await.unwrap();
    assert_eq!(compiled.world, World::Source(Language::JavaScript));
    assert_eq!(compiled.world.as_str(), "source/javascript");
    assert_eq!(compiled.description.as_deref(), Some("Greets."));
    assert_eq!(compiled.params_schema.unwrap()["properties"]["n"]["type"], "integer");
    assert_eq!(compiled.defaults["n"], 1);
    let script = script(&bench, Language::JavaScript, source).await;
    for _ in 0..3 {
        let tables = Arc::new(Tables::default());
        let result = bench.run_with(&script, &tables).await;
        let Outcome::Succeeded(output) = &result.outcome else {
            panic!("{result:?}")
        };
        let output: Value = serde_json::from_str(output).unwrap();
        // A run does not see what another run did to the module's variables.
        let expect = json!({"greeting": "Hello, Ada", "calls": 1, "task": "task", "at": "2013-07-01T00:00:00.000000Z", "attempt": 1});
        assert_eq!(output, expect);
        assert!(
            result.memory_bytes > 1 << 20 && result.memory_bytes < 4 << 20,
            "{}",
            result.memory_bytes
        );
        let log = tables.log.lock().unwrap();
        let lines: Vec<_> = log.iter().map(|line| (line.level, line.message.as_str())).collect();
        assert_eq!(
            lines,
            [
                (LogLevel::Debug, "hello Ada { a: [1, { b: 2 }] } e"),
                (LogLevel::Warn, "two\nlines")
            ]
        );
    }
    for (source, expect) in [
        ("export default () => undefined", "null"),
        (
            "export default function run() { return [NaN, 1.5, 'ä', null] }",
            "[null,1.5,\"ä\",null]",
        ),
        ("export const run = () => 7; ", "7"),
        ("export default { run: (params) => params.n }", "3"),
    ] {
        assert_eq!(
            js(&bench, source).await.outcome,
            Outcome::Succeeded(expect.into()),
            "{source}"
        );
    }
}

pub async fn typescript(_: Bench) {
    let bench = bench();
    let source = "
        import { Fatal, type Context } from 'heddle:task';
        interface Params { /** How many. */ n: number; mode?: 'a' | 'b' }
        type Answer = { n: number };
        export default async function run(params: Params, ctx: Context): Promise<Answer> {
            const double = <T extends number>(x: T): number => (x as number) * 2;
            if ((params as any).n === undefined)
                throw new Fatal(`no n in ${ctx!.task}`);
            return { n: double(params.n) } satisfies Answer;
        }";
    let compiled = compiled(&bench, Language::TypeScript, source).await.unwrap();
    let schema = compiled.params_schema.unwrap();
    assert_eq!(
        schema["properties"]["n"],
        json!({"type": "number", "description": "How many."})
    );
    assert_eq!(schema["properties"]["mode"], json!({"enum": ["a", "b"]}));
    assert_eq!(schema["required"], json!(["n"]));
    let script = script(&bench, Language::TypeScript, source).await;
    let result = bench.run(&script).await;
    let Outcome::Failed {
        kind, message, trace, ..
    } = result.outcome
    else {
        panic!()
    };
    assert_eq!((kind, message.as_str()), (ErrorKind::Fatal, "no n in task"));
    // The line and the column of the source, with its types.
    let trace = trace.unwrap();
    assert!(trace.contains("run (script.ts:8:"), "{trace}");
    let fault = fault(&bench, Language::TypeScript, "enum A { B }\nexport default () => A.B").await;
    assert!(fault.message.contains("an enum") && fault.line == Some(1), "{fault}");
}

pub async fn endings(_: Bench) {
    let bench = bench();
    let source = |throw: &str| format!("const f = () => {{\n  throw {throw};\n}};\nexport default async () => f();");
    let ends = async |throw: &str| js(&bench, &source(throw)).await.outcome;
    let Outcome::Failed {
        kind, message, trace, ..
    } = ends("new TypeError('odd')").await
    else {
        panic!()
    };
    assert_eq!((kind, message.as_str()), (ErrorKind::Failed, "TypeError: odd"));
    let trace = trace.unwrap();
    assert!(
        trace.starts_with("TypeError: odd\n") && trace.contains("f (script.js:2:"),
        "{trace}"
    );
    assert!(!trace.contains("heddle:"), "{trace}");
    // What the host refuses later also has the line of the call.
    for call in [
        "fetch('https://example.com/')",
        "ctx.secret('none')",
        "ctx.sql('none').query('select 1')",
    ] {
        let text = format!("export default async (params, ctx) => {{\n  await null;\n  await {call};\n}};");
        let Outcome::Failed { trace: Some(trace), .. } = js(&bench, &text).await.outcome else {
            panic!("{call}")
        };
        assert!(
            trace.contains("script.js:3:") && !trace.contains("heddle:"),
            "{call}: {trace}"
        );
    }
    for (throw, kind, message) in [
        ("new Error('plain')", ErrorKind::Failed, "plain"),
        ("'a text'", ErrorKind::Failed, "a text"),
        ("{ a: 1 }", ErrorKind::Failed, "threw { a: 1 }"),
        ("null", ErrorKind::Failed, "threw null"),
        ("new Fatal('no')", ErrorKind::Fatal, "no"),
        ("new (class extends Fatal {})('sub')", ErrorKind::Fatal, "sub"),
        ("{ get message() { throw 1 } }", ErrorKind::Failed, "threw [unreadable]"),
        ("new Error('lone \\ud800')", ErrorKind::Failed, "lone \u{fffd}"),
    ] {
        match ends(throw).await {
            Outcome::Failed {
                kind: own,
                message: text,
                ..
            } => {
                assert!(own == kind && text.starts_with(message), "{throw}: {own:?} {text}");
            }
            other => panic!("{throw}: {other:?}"),
        }
    }
    assert_eq!(ends("new Skip('nothing')").await, Outcome::Skipped("nothing".into()));
    for (after, expect) in [("1500", 1_500), ("'1m30s'", 90_000)] {
        let Outcome::Failed { retry_after, kind, .. } = ends(&format!("new Retry('later', {after})")).await else {
            panic!()
        };
        assert_eq!(
            (kind, retry_after),
            (ErrorKind::Failed, Some(Duration::from_millis(expect)))
        );
    }
    for (output, part) in [
        ("10n", "BigInt"),
        ("(() => { const a = {}; a.a = a; return a })()", "circular"),
        ("() => 1", "function"),
        ("Symbol('a')", "symbol"),
        ("(function* () { yield 1 })()", "generator"),
        ("({ toJSON() { return undefined } })", "toJSON"),
        ("'\\ud800'", ""),
    ] {
        let result = js(&bench, &format!("export default () => {output}")).await;
        let (kind, message) = failure(&result);
        assert!(
            kind == ErrorKind::Invalid && message.contains(part),
            "{output}: {kind:?} {message}"
        );
    }
    let result = js(&bench, "export default function* run() { yield 1 }").await;
    assert_eq!(failure(&result).0, ErrorKind::Invalid);
}

pub async fn host_functions_of_texts(_: Bench) {
    let mut bench = bench();
    bench.grants.secrets = vec!["key".into()];
    let source = "export default async function run(params, ctx) {
        const rows = await ctx.upstream('before');
        const seen = await ctx.state.get('n');
        await ctx.state.set('n', seen + rows.length);
        const again = await ctx.state.entry('n');
        await ctx.state.compareAndSet('n', again.version, { a: 1 });
        const lost = await ctx.state.compareAndSet('n', 1, 2).catch((e) => e.message);
        await ctx.state.delete('gone');
        await ctx.enqueue('other', { a: 1 }, 'key');
        await ctx.notify('ops', 'subject', 'body');
        ctx.progress(0.5, 'half');
        ctx.log('warn', 'odd', { a: 1 });
        const refused = await ctx.secret('other').catch((e) => e.message);
        const none = await ctx.upstream('nobody').catch((e) => e.message);
        const sql = await ctx.sql('warehouse').query('select 1').catch((e) => e.message);
        return { rows, seen, again, lost, secret: await ctx.secret('key'), refused, none, sql, missing: await ctx.state.get('m') };
    }";
    let script = script(&bench, Language::JavaScript, source).await;
    let tables = everything();
    let result = bench.run_with(&script, &tables).await;
    let Outcome::Succeeded(output) = &result.outcome else {
        panic!("{result:?}")
    };
    let output: Value = serde_json::from_str(output).unwrap();
    assert_eq!(output["rows"], json!([1, 2]));
    assert_eq!(
        (&output["seen"], &output["again"]),
        (&json!(40), &json!({"value": 42, "version": 7}))
    );
    assert!(
        output["lost"].as_str().unwrap().contains("compare-and-set failed"),
        "{output}"
    );
    assert_eq!(
        (&output["secret"], &output["missing"]),
        (&json!("hidden"), &Value::Null)
    );
    assert!(output["refused"].as_str().unwrap().contains("`secrets`"), "{output}");
    assert!(output["sql"].as_str().unwrap().contains("`sql`"), "{output}");
    assert_eq!(output["none"], "not available");
    check_reports(&result, &tables, r#"{"a":1}"#);
}

pub async fn what_the_web_has(_: Bench) {
    let bench = bench();
    for (body, expect) in [
        (
            "return new TextDecoder().decode(new TextEncoder().encode('aä€😀'))",
            json!("aä€😀"),
        ),
        (
            "return [...new TextEncoder().encode('é\\ud800')]",
            json!([195, 169, 239, 191, 189]),
        ),
        (
            "const u = new URL('../b?x=1#h', 'https://ä.example:8443/a/c'); u.searchParams.append('y', 'ü &'); u.port = ''; return [u.href, u.host, u.searchParams.get('y')]",
            json!(["https://xn--4ca.example/b?x=1&y=%C3%BC+%26#h", "xn--4ca.example", "ü &"]),
        ),
        (
            "try { new URL('nope') } catch (e) { return [e.name, URL.canParse('a:b')] }",
            json!(["TypeError", true]),
        ),
        (
            "return new URLSearchParams({ a: '1 2', b: 'ä' }).toString()",
            json!("a=1+2&b=%C3%A4"),
        ),
        (
            "const o = { d: new Date(0), m: new Map([['a', new Set([1])]]), b: new Uint8Array([1, 2]) }; o.o = o; const c = structuredClone(o); return [c !== o, c.o === c, c.d.getTime(), c.m.get('a').has(1), c.b[1]]",
            json!([true, true, 0, true, 2]),
        ),
        (
            "try { structuredClone(() => 1) } catch (e) { return e.name }",
            json!("DataCloneError"),
        ),
        ("return atob(btoa('heddle'))", json!("heddle")),
        (
            "const r = []; for (const v of [undefined, 'x', NaN, {}, [], true, -1, 1.5]) { try { await ctx.state.compareAndSet('k', v, 1); r.push(v) } catch (e) { r.push(e.name) } } return r",
            json!(vec!["TypeError"; 8]),
        ),
        // A name that is no text would be the same text as any other.
        (
            "const r = []; for (const v of [{ a: 1 }, [], true, undefined, Symbol('s'), () => 1]) for (const f of [() => ctx.state.get(v), () => ctx.state.entry(v), () => ctx.state.set(v, 1), () => ctx.state.delete(v), () => ctx.state.compareAndSet(v, null, 1), () => ctx.secret(v), () => ctx.upstream(v), () => ctx.enqueue(v), () => ctx.notify(v, 's'), async () => ctx.sql(v), () => ctx.sql('w').query(v), async () => ctx.log(v, 'x')]) await f().catch((e) => r.push(e.name)); return r",
            json!(vec!["TypeError"; 72]),
        ),
        (
            "const r = []; for (const v of [{ a: 1 }, [], true, Symbol('s')]) await ctx.enqueue('g', {}, v).catch((e) => r.push(e.message)); return r",
            json!([
                "`key` is text, not { a: 1 }",
                "`key` is text, not []",
                "`key` is text, not true",
                "`key` is text, not Symbol(s)"
            ]),
        ),
        (
            "await ctx.enqueue('g', {}, 7); await ctx.enqueue('g', {}, 7n); await ctx.enqueue('g', {}, null); await ctx.enqueue('g'); await ctx.state.set(1, 'one'); await ctx.notify('ops', new Error('e'), 1); return await ctx.notify('ops', { a: 1 }).catch((e) => [e.name, e.message])",
            json!(["TypeError", "`subject` is text, not { a: 1 }"]),
        ),
        (
            "try { ctx.log('loud', 'x') } catch (e) { return e.message.slice(0, 9) }",
            json!("the level"),
        ),
        (
            "try { ctx.log('info', 'x', [1]) } catch (e) { return e.message }",
            json!("the fields of a log line are an object"),
        ),
        (
            "const r = []; setTimeout((x) => r.push(x), 20, 'c'); const i = setTimeout(() => r.push('never'), 10); clearTimeout(i); queueMicrotask(() => r.push('a')); setTimeout(() => r.push('b'), 1); await new Promise((f) => setTimeout(f, 40)); return r",
            json!(["a", "b", "c"]),
        ),
        (
            "let n = 0; return await new Promise((f) => { const i = setInterval(() => { n += 1; if (n === 3) { clearInterval(i); f(n) } }, 1) })",
            json!(3),
        ),
        (
            "const t = performance.now(); await new Promise((f) => setTimeout(f, 15)); const d = performance.now() - t; return d > 10 && d < 5000",
            json!(true),
        ),
        (
            "return Math.abs(Date.now() - new Date().getTime()) < 1000 && new Date().getFullYear() >= 2026",
            json!(true),
        ),
        (
            "const a = crypto.getRandomValues(new Uint8Array(16)); return [a.some((x) => x !== 0), /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID())]",
            json!([true, true]),
        ),
        (
            "const h = new Headers({ 'X-A': '1' }); h.append('x-a', '2'); return [h.get('X-a'), [...h]]",
            json!(["1, 2", [["x-a", "1, 2"]]]),
        ),
        (
            "return [await new Response('{\"a\":1}').json(), (await Response.json({ b: 2 }).text())]",
            json!([{"a": 1}, "{\"b\":2}"]),
        ),
        (
            "const c = new AbortController(); c.abort(); return await fetch('http://127.0.0.1:1/', { signal: c.signal }).catch((e) => e.name)",
            json!("AbortError"),
        ),
        (
            "const s = AbortSignal.timeout(5); return await new Promise((r) => s.addEventListener('abort', () => r([s.aborted, s.reason.name])))",
            json!([true, "TimeoutError"]),
        ),
        (
            "AbortSignal.timeout(3_600_000); return 'not delayed'",
            json!("not delayed"),
        ),
        (
            "const r = []; for (const f of [() => new TextDecoder('sjis'), () => new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255])), () => new TextDecoder('utf-16le', { fatal: true }).decode(new Uint8Array([0, 216]))]) try { r.push(f()) } catch (e) { r.push([e.name, e instanceof Error, e.message.slice(0, 16)]) } return r",
            json!([
                ["RangeError", true, "unknown encoding"],
                ["TypeError", true, "the bytes are no"],
                ["TypeError", true, "the bytes are no"]
            ]),
        ),
        (
            "return [typeof globalThis.heddleHost, Object.keys(globalThis)]",
            json!(["undefined", []]),
        ),
    ] {
        assert_eq!(output(&bench, body).await, expect, "{body}");
    }
    // Random values differ from run to run, although all begin with the same memory.
    let source =
        "const top = Math.random; export default () => [top(), Math.random(), crypto.randomUUID(), Date.now()]";
    let script = script(&bench, Language::JavaScript, source).await;
    let (one, other) = (bench.run(&script).await.outcome, bench.run(&script).await.outcome);
    let (Outcome::Succeeded(one), Outcome::Succeeded(other)) = (one, other) else {
        panic!()
    };
    let (one, other): (Value, Value) = (
        serde_json::from_str(&one).unwrap(),
        serde_json::from_str(&other).unwrap(),
    );
    for at in 0..3 {
        assert_ne!(one[at], other[at]);
    }
}

pub async fn fetching(_: Bench) {
    let mut bench = bench();
    let address = serve().await;
    let source = "export default async function run({ base, url, init }) {
        try {
            const r = await fetch(new URL(url, base), init);
            const copy = r.clone();
            return { status: r.status, ok: r.ok, type: r.headers.get('content-type'), own: r.headers.get('x-own'), url: r.url, redirected: r.redirected,
                     body: await r.json().catch((e) => e.name), bytes: (await copy.arrayBuffer()).byteLength > 0, used: r.bodyUsed };
        } catch (e) { return `${e.name}: ${e.message}` }
    }";
    let script = script(&bench, Language::JavaScript, source).await;
    let ask = async |bench: &mut Bench, url: &str, init: Value| {
        bench.params = json!({"base": format!("http://{address}/"), "url": url, "init": init}).to_string();
        match bench.run(&script).await.outcome {
            Outcome::Succeeded(output) => serde_json::from_str::<Value>(&output).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let refused = ask(&mut bench, "a", json!({})).await;
    assert!(refused.as_str().unwrap().contains("`allow_hosts`"), "{refused}");
    bench.grants.allow_hosts = vec!["127.0.0.1".parse().unwrap(), "169.254.169.254".parse().unwrap()];
    let init = json!({"method": "post", "headers": {"content-type": "application/json"}, "body": "{\"ä\":1}"});
    let answer = ask(&mut bench, "a?b=c", init).await;
    assert_eq!(
        answer["body"],
        json!({"request": "POST /a?b=c HTTP/1.1", "body": "{\"ä\":1}", "kind": true})
    );
    assert_eq!(
        (&answer["status"], &answer["ok"], &answer["own"]),
        (&json!(200), &json!(true), &json!("yes"))
    );
    assert_eq!((&answer["bytes"], &answer["used"]), (&json!(true), &json!(true)));
    let moved = ask(&mut bench, "moved", json!({"method": "POST", "body": "x"})).await;
    assert_eq!(moved["body"]["request"], "GET /there HTTP/1.1", "{moved}");
    assert_eq!(moved["redirected"], true);
    assert_eq!(
        ask(&mut bench, "moved", json!({"redirect": "manual"})).await["status"],
        302
    );
    let error = ask(&mut bench, "moved", json!({"redirect": "error"})).await;
    assert!(error.as_str().unwrap().contains("redirect"), "{error}");
    let away = ask(&mut bench, "away", json!({})).await;
    assert!(away.as_str().unwrap().contains("not public"), "{away}");
    // Several at once.
    bench.params = json!({"base": format!("http://{address}/")}).to_string();
    let many = "export default async ({ base }) => (await Promise.all([1, 2, 3].map((n) => fetch(`${base}${n}`).then((r) => r.json())))).map((r) => r.request)";
    let many = crate::texts::script(&bench, Language::JavaScript, many).await;
    let Outcome::Succeeded(output) = bench.run(&many).await.outcome else {
        panic!()
    };
    assert_eq!(output, r#"["GET /1 HTTP/1.1","GET /2 HTTP/1.1","GET /3 HTTP/1.1"]"#);
}

pub async fn faults_of_texts(_: Bench) {
    let bench = bench();
    for (source, part, line) in [
        ("let a;\nlet a;\nexport default () => a", "", Some(2)),
        (
            "import { Nothing } from 'heddle:task';\nexport default () => 1",
            "Nothing",
            None,
        ),
        (
            "setTimeout(() => 1, 1);\nexport default () => 1",
            "call it in `run`",
            Some(1),
        ),
        (
            "crypto.randomUUID();\nexport default () => 1",
            "call it in `run`",
            Some(1),
        ),
        ("throw 'a text'", "a text", None),
        (
            "export const params = () => 1; export const defaults = [1]; export default () => 1",
            "`defaults`",
            None,
        ),
        (
            "export const defaults = { a: 1n }; export default () => 1",
            "JSON",
            None,
        ),
    ] {
        let fault = fault(&bench, Language::JavaScript, source).await;
        assert!(fault.message.contains(part), "{source}: {fault}");
        if line.is_some() {
            assert_eq!(fault.line, line, "{source}: {fault}");
            let shown = source.lines().nth(fault.line.unwrap() as usize - 1);
            assert_eq!(
                fault.text.as_deref().map(str::trim_end),
                shown.map(str::trim_end),
                "{source}"
            );
        }
    }
}

pub async fn hostile_texts(_: Bench) {
    let mut bench = bench();
    bench.limits.timeout = Some(Duration::from_millis(300));
    for endless in [
        "for (;;);",
        "await (async () => { for (;;) await null })()",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
    ] {
        let source = format!("export default async function run() {{ {endless} }}");
        let script = script(&bench, Language::JavaScript, &source).await;
        let result = bench.run(&script).await;
        assert_eq!(failure(&result).0, ErrorKind::Timeout, "{endless}");
        // Its processor time, however long it had to wait for a processor on a busy machine.
        assert!(result.cpu < Duration::from_secs(1), "{endless}: {:?}", result.cpu);
    }
    bench.limits.timeout = Some(Duration::from_secs(20));
    bench.limits.memory_bytes = 16 << 20;
    for bomb in [
        "const a = []; for (;;) a.push(new Array(10000).fill(7));",
        "let s = 'x'.repeat(1000); const a = []; for (let i = 0;; i++) a.push(s + i);",
        "new Uint8Array(1 << 29);",
    ] {
        let result = js(&bench, &format!("export default function run() {{ {bomb} }}")).await;
        assert_eq!(failure(&result).0, ErrorKind::Memory, "{bomb}: {result:?}");
    }
    bench.limits.memory_bytes = 128 << 20;
    let deep = js(&bench, "export default () => JSON.parse('['.repeat(100000))").await;
    let (kind, message) = failure(&deep);
    assert_eq!(kind, ErrorKind::Failed, "{deep:?}");
    assert!(message.starts_with("RangeError: JSON may nest 2000 deep"), "{message}");
    let Outcome::Failed { trace: Some(trace), .. } = &deep.outcome else {
        panic!("{deep:?}")
    };
    assert!(trace.contains("script.js:1:"), "{trace}");
    let nested = "const text = (n) => '['.repeat(n) + ']'.repeat(n); const deepest = (v) => { let n = 0; for (; v; v = v[0]) n++; return n };";
    let body = format!(
        "{nested} const caught = (n) => {{ try {{ JSON.parse(text(n)) }} catch (e) {{ return e.name }} }};
        return [deepest(JSON.parse(text(2000))), caught(2001), JSON.parse('[\"' + '['.repeat(9000) + '\"]')[0].length]"
    );
    assert_eq!(output(&bench, &body).await, json!([2000, "RangeError", 9000]));
    // Other recursions of the interpreter on the sandbox's stack also fail with an error.
    let built = "let a = []; for (let i = 0; i < 100000; i++) a = [a];";
    for (wanted, ending) in [
        (ErrorKind::Failed, "return JSON.stringify(a)"),
        (ErrorKind::Failed, "await ctx.state.set('a', a)"),
        (ErrorKind::Invalid, "return a"),
    ] {
        let result = js(
            &bench,
            &format!("export default async (params, ctx) => {{ {built} {ending} }}"),
        )
        .await;
        let (kind, message) = failure(&result);
        assert!(kind == wanted && !message.contains("trap"), "{ending}: {result:?}");
    }
    for (body, expect) in [
        (
            "const f = (n) => 1 + f(n + 1); try { f(0) } catch (e) { return e.name }",
            json!("RangeError"),
        ),
        ("try { eval('1') } catch (e) { return e.name }", json!("EvalError")),
        ("try { (0, eval)('1') } catch (e) { return e.name }", json!("EvalError")),
        (
            "try { new Function('return 1')() } catch (e) { return e.name }",
            json!("EvalError"),
        ),
        (
            "try { (async () => {}).constructor('return 1')() } catch (e) { return e.name }",
            json!("EvalError"),
        ),
        (
            "try { (function* () {}).constructor('yield 1') } catch (e) { return e.name }",
            json!("EvalError"),
        ),
        (
            "return await import('node:' + 'fs').catch((e) => e.message.includes('heddle:task'))",
            json!(true),
        ),
        (
            "return await import('heddle:' + 'runtime').catch((e) => e.message.includes('heddle:task'))",
            json!(true),
        ),
        ("return typeof (await import('heddle:task')).Fatal", json!("function")),
        (
            "try { globalThis.__cqjs = 1 } catch (e) { return e.name }",
            json!("TypeError"),
        ),
    ] {
        assert_eq!(output(&bench, body).await, expect, "{body}");
    }
    // Our own modules keep working, whatever a script does to the built-ins that they use.
    for trick in [
        "Object.prototype.toJSON = () => 'no'; Array.prototype.toJSON = () => 'no'; String.prototype.toJSON = () => 'no'",
        "JSON.stringify = () => 'no'; JSON.parse = () => 'no'",
        "Array.prototype.push = () => { throw 1 }; Array.prototype[Symbol.iterator] = () => { throw 1 }; Array.prototype.map = null",
        "Map.prototype.get = Map.prototype.set = Map.prototype.delete = () => { throw 1 }",
        "Object.defineProperty(Object.prototype, 'error', { get() { throw 1 }, set() { throw 1 } })",
        "Object.prototype.output = 'no'; Object.prototype.kind = 'fatal'; Object.prototype.then = undefined",
        "Function.prototype.call = Function.prototype.apply = Function.prototype.bind = () => { throw 1 }",
        "globalThis.Promise = null; globalThis.Error = null; globalThis.Map = null; globalThis.JSON = null",
        "String.prototype.toWellFormed = () => { throw 1 }; Object.create = Object.defineProperty = () => { throw 1 }",
    ] {
        let source = format!(
            "{trick};\nexport default async function run(params, ctx) {{ {trick}; await ctx.state.set('k', 1); console.log('still'); return {{ n: await ctx.state.get('k') }} }}"
        );
        let script = script(&bench, Language::JavaScript, &source).await;
        let tables = Arc::new(Tables::default());
        let result = bench.run_with(&script, &tables).await;
        match &result.outcome {
            Outcome::Succeeded(output) => {
                // Their own `toJSON` is their own output.
                assert!(output == r#"{"n":1}"# || output == r#""no""#, "{trick}: {output}");
                assert_eq!(tables.messages(), ["still"], "{trick}");
            }
            Outcome::Failed {
                kind: ErrorKind::Failed | ErrorKind::Invalid,
                ..
            } => {}
            other => panic!("{trick}: {other:?}"),
        }
        // And the next run is not affected.
        assert_eq!(output(&bench, "return [1, { a: 'b' }]").await, json!([1, {"a": "b"}]));
    }
}

pub async fn snapshots_are_kept(_: Bench) {
    let bench = bench();
    let source = "export default () => 'kept'";
    let first = compiled(&bench, Language::JavaScript, source).await.unwrap();
    let typed = compiled(&bench, Language::TypeScript, source).await.unwrap();
    assert_eq!(first.digest, typed.digest, "the digest is the text's");
    // Another node with the same directory finds it there; one with another directory makes it again.
    for cache in [bench.cache.path().to_owned(), config(bench.cache.path()).cache_dir] {
        let mut own = config(&cache);
        own.max_loaded_bytes = 1;
        let sandbox = Sandbox::new(own, Arc::new(RealClock)).unwrap();
        let key = first.key();
        assert!(!sandbox.is_ready(&key));
        let bytes = async { Ok::<_, Infallible>(Bytes::from_static(b"export default () => 'kept'")) };
        let script = sandbox.load(&key, bytes).await.unwrap();
        assert_eq!(script.world(), World::Source(Language::JavaScript));
    }
}
