//! Rehearsals: the author's clock and chance, and recorded answers.

use crate::guests::{Bench, Tables, command_with};
use crate::texts::{bench, compiled, load};
use heddle_domain::Time;
use heddle_sandbox::{Exchanges, Language, Outcome, Rehearsal, Script, SqlAnswer, SqlStatement, WebAnswer, WebRequest};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NOW: &str = "2026-02-28T23:59:59.5Z";

/// Answers what it knows, and keeps what it was asked.
#[derive(Default)]
struct Stand {
    asked: Mutex<Vec<String>>,
}

impl Exchanges for Stand {
    fn request(&self, request: &WebRequest) -> Option<Result<WebAnswer, String>> {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let asked = format!("{} {} {body}", request.method, request.url);
        self.asked.lock().unwrap().push(asked.trim().to_owned());
        let answer = |status, headers: &[(&str, &str)], body: &'static str| WebAnswer {
            status,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            body: body.into(),
        };
        Some(match request.url.as_str() {
            "https://a.test/moved" => Ok(answer(302, &[("location", "/there")], "")),
            "https://a.test/there" => Ok(answer(201, &[("x-own", "yes")], "{\"n\": 1}")),
            _ => Err("not recorded".into()),
        })
    }

    fn requested(&self, _: WebRequest, _: &Result<WebAnswer, String>) {}

    fn statement(&self, statement: &SqlStatement) -> Option<Result<SqlAnswer, String>> {
        let SqlStatement {
            connection,
            statement,
            params,
            rows,
        } = statement;
        self.asked
            .lock()
            .unwrap()
            .push(format!("{connection}: {statement} {params}"));
        Some(Ok(match rows {
            true => SqlAnswer::Rows("[{\"a\": 1}]".into()),
            false => SqlAnswer::Count(7),
        }))
    }

    fn stated(&self, _: SqlStatement, _: &Result<SqlAnswer, String>) {}
}

async fn rehearse(bench: &Bench, script: &Script, rehearsal: Rehearsal) -> Outcome {
    let tables = Arc::new(Tables {
        rehearsal: Some(rehearsal),
        ..Tables::default()
    });
    bench.run_with(script, &tables).await.outcome
}

async fn output(bench: &Bench, script: &Script, rehearsal: &Rehearsal) -> Value {
    match rehearse(bench, script, rehearsal.clone()).await {
        Outcome::Succeeded(output) => serde_json::from_str(&output).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn staged() -> (Rehearsal, Arc<Stand>) {
    let stand = Arc::new(Stand::default());
    let rehearsal = Rehearsal {
        now: Some(NOW.parse::<Time>().unwrap()),
        paced: false,
        seed: Some(7),
        exchanges: Some(Arc::clone(&stand) as Arc<dyn Exchanges>),
    };
    (rehearsal, stand)
}

async fn text(bench: &Bench, language: Language, source: &str) -> Script {
    let compiled = compiled(bench, language, source).await;
    load(&bench.sandbox, &compiled.unwrap_or_else(|error| panic!("{error}"))).await
}

/// Random values are the same with one seed, and differ with another.
async fn draws_by_the_seed(bench: &Bench, script: &Script, drawn: impl Fn(&Value) -> Value) {
    let (mut rehearsal, _) = staged();
    let first = drawn(&output(bench, script, &rehearsal).await);
    assert_eq!(first, drawn(&output(bench, script, &rehearsal).await));
    rehearsal.seed = Some(8);
    assert_ne!(first, drawn(&output(bench, script, &rehearsal).await));
    rehearsal.seed = None;
    assert_ne!(first, drawn(&output(bench, script, &rehearsal).await));
}

pub async fn javascript(_: Bench) {
    let bench = bench();
    let source = "export default async function run(params, ctx) {
        const began = [new Date().toISOString(), Date.now(), performance.now()];
        const order = [];
        const wait = (ms) => new Promise((done) => setTimeout(() => { order.push(ms); done(); }, ms));
        const dropped = setTimeout(() => order.push('never'), 1000);
        clearTimeout(dropped);
        // What is asked is answered before any time passes.
        const asked = fetch('https://a.test/moved', { method: 'POST', body: 'x', signal: AbortSignal.timeout(5) })
            .then(async (r) => { order.push('answer'); return [r.status, r.url, r.redirected, r.headers.get('x-own'), await r.json()]; });
        await Promise.all([wait(3_600_000), wait(60_000), asked]);
        let ticks = 0;
        await new Promise((done) => { const every = setInterval(() => { if (++ticks === 3) { clearInterval(every); done(); } }, 1000); });
        const sql = [await ctx.sql('w').query('select $1', 1), await ctx.sql('w').execute('delete')];
        const refused = await fetch('https://b.test/').catch((e) => e.message);
        return { began, order, answer: await asked, sql, refused, ended: [new Date().toISOString(), performance.now()],
            chance: [Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint8Array(4))]] };
    }";
    let script = text(&bench, Language::JavaScript, source).await;
    let (rehearsal, stand) = staged();
    let seen = output(&bench, &script, &rehearsal).await;
    assert_eq!(
        seen["began"],
        json!(["2026-02-28T23:59:59.500Z", 1_772_323_199_500_u64, 0])
    );
    assert_eq!(seen["order"], json!(["answer", 60_000, 3_600_000]));
    assert_eq!(seen["ended"], json!(["2026-03-01T01:00:02.500Z", 3_603_000]));
    assert_eq!(
        seen["answer"],
        json!([201, "https://a.test/there", true, "yes", {"n": 1}])
    );
    assert_eq!(seen["sql"], json!([[{"a": 1}], 7]));
    assert!(
        seen["refused"].as_str().unwrap().contains("fetch failed: not recorded"),
        "{seen:#}"
    );
    let asked = [
        "POST https://a.test/moved x",
        "GET https://a.test/there",
        "w: select $1 [1]",
        "w: delete []",
        "GET https://b.test/",
    ];
    assert_eq!(*stand.asked.lock().unwrap(), asked);
    draws_by_the_seed(&bench, &script, |seen| seen["chance"].clone()).await;
    // Without recorded answers, a rehearsal is granted no more than any attempt.
    let (rehearsal, _) = staged();
    let plain = Rehearsal {
        exchanges: None,
        ..rehearsal
    };
    let refused = output(
        &bench,
        &text(
            &bench,
            Language::JavaScript,
            "export default () => fetch('https://a.test/').catch((e) => e.message)",
        )
        .await,
        &plain,
    )
    .await;
    assert!(refused.as_str().unwrap().contains("`allow_hosts`"), "{refused}");
}

pub async fn python(_: Bench) {
    let bench = bench();
    let source = "
import asyncio, os, random, secrets, time, uuid
from datetime import datetime, timezone

async def both():
    await asyncio.gather(asyncio.sleep(60), asyncio.sleep(30))

def run(params, ctx):
    began = datetime.now(timezone.utc).isoformat()
    since = time.monotonic()
    time.sleep(3600)
    asyncio.run(both())
    answer = ctx.fetch('https://a.test/moved', method='POST', data='x')
    sql = [ctx.sql('w').query('select $1', 1), ctx.sql('w').execute('delete')]
    try:
        ctx.fetch('https://b.test/')
    except Exception as error:
        refused = str(error)
    return {'began': began, 'ended': datetime.now(timezone.utc).isoformat(), 'waited': time.monotonic() - since,
            'answer': [answer.status, answer.json()], 'sql': sql, 'refused': refused,
            'chance': [random.random(), str(uuid.uuid4()), os.urandom(4).hex(), secrets.token_hex(4), random.Random().random()]}
";
    let script = text(&bench, Language::Python, source).await;
    let (rehearsal, stand) = staged();
    let seen = output(&bench, &script, &rehearsal).await;
    assert_eq!(seen["began"], "2026-02-28T23:59:59.500000+00:00", "{seen:#}");
    let waited = seen["waited"].as_f64().unwrap();
    assert!((3_660.0..3_691.0).contains(&waited), "{seen:#}");
    assert!(
        seen["ended"].as_str().unwrap().starts_with("2026-03-01T01:0"),
        "{seen:#}"
    );
    assert_eq!(seen["answer"], json!([201, {"n": 1}]));
    assert_eq!(seen["sql"], json!([[{"a": 1}], 7]));
    assert!(seen["refused"].as_str().unwrap().contains("not recorded"), "{seen:#}");
    assert_eq!(stand.asked.lock().unwrap().len(), 5);
    draws_by_the_seed(&bench, &script, |seen| seen["chance"].clone()).await;
}

/// A command of WASI 0.1 writes the time of its clock, in seconds, and a random number.
pub async fn commands(mut bench: Bench) {
    bench.limits.timeout = Some(Duration::from_secs(10));
    let fields = r#"(func $digits (param $value i64) (param $at i32) (result i32)
      (loop $next
        (local.set $at (i32.sub (local.get $at) (i32.const 1)))
        (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $value) (i64.const 10)))))
        (local.set $value (i64.div_u (local.get $value) (i64.const 10)))
        (br_if $next (i64.ne (local.get $value) (i64.const 0))))
      (local.get $at))"#;
    let body = r#"(local $at i32)
      (drop (call $clock (i32.const 0) (i64.const 1) (i32.const 64)))
      (local.set $at (call $digits (i64.div_u (i64.load (i32.const 64)) (i64.const 1000000000)) (i32.const 300)))
      (i32.store8 (i32.const 300) (i32.const 44))
      (drop (call $random (i32.const 72) (i32.const 8)))
      (i64.store (i32.const 72) (i64.and (i64.load (i32.const 72)) (i64.const 0xffffffff)))
      (i64.store (i32.const 72) (i64.add (i64.load (i32.const 72)) (i64.const 0x100000000)))
      (drop (call $digits (i64.load (i32.const 72)) (i32.const 311)))
      (i32.store8 (i32.sub (local.get $at) (i32.const 1)) (i32.const 91))
      (i32.store8 (i32.const 311) (i32.const 93))
      (call $write (i32.const 1) (i32.sub (local.get $at) (i32.const 1))
        (i32.sub (i32.const 313) (local.get $at)))"#;
    let module = command_with(fields, body).replacen(
        "(memory (export",
        r#"(import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (memory (export"#,
        1,
    );
    let script = bench.script(module).await;
    let (rehearsal, _) = staged();
    let seen = output(&bench, &script, &rehearsal).await;
    // It advances with real time: the machine may be slow.
    let seconds = seen[0].as_u64().unwrap();
    assert!((1_772_323_199..1_772_323_209).contains(&seconds), "{seen}");
    draws_by_the_seed(&bench, &script, |seen| seen[1].clone()).await;
}
