//! Scripts in Python: their environment, the reports of their errors, and what they cannot do.

use crate::guests::{Bench, COUNTED_IN, RealClock, Tables, command, config};
use crate::outcomes::failure;
use crate::texts::{bench, check_reports, compiled, everything, fault, load, run, script, serve, shared, succeeded};
use bytes::Bytes;
use heddle_domain::state::{ErrorKind, LogLevel};
use heddle_sandbox::{Language, Outcome, Sandbox, World};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The output of a `run` with these lines.
async fn output(bench: &Bench, lines: &[&str]) -> Value {
    let text = format!("def run(params, ctx):\n    {}\n", lines.join("\n    "));
    succeeded(&text, &run(bench, PY, &text).await)
}

const PY: Language = Language::Python;

const GREET: &str = r#""""Greets."""
import logging
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, Optional

@dataclass
class Place:
    city: str
    zip: Optional[int] = None

@dataclass
class Params:
    name: str
    n: int = 1
    mode: Literal["a", "b"] = "a"
    at: date | None = field(default=None, metadata={"description": "When."})
    places: list[Place] = field(default_factory=list)

calls = 0

def run(params: Params, ctx):
    global calls
    calls += 1
    print("hello", params.name)
    log = logging.getLogger("x")
    log.debug("little")
    log.warning("odd %s", 1)
    log.error("two\nlines")
    return {"greeting": f"Hello, {params.name}", "calls": calls, "at": params.at, "task": ctx.task,
            "cities": [place.city for place in params.places], "weekday": params.at.weekday()}
"#;

/// CPython is compiled before it is needed: scripts are compiled at the same time, and a text that comes meanwhile
/// waits for that same work.
pub async fn made_ready_in_advance(_: Bench) {
    let broken = Bench::with(|own| own.compiler.program = "/there/is/none".into());
    broken.sandbox.prepare_python().await.unwrap_err();
    assert!(broken.sandbox.is_idle() && !broken.sandbox.has_python());

    let counted = tempfile::NamedTempFile::new().unwrap();
    let bench = Bench::with(|own| {
        own.cache_dir = shared().to_owned();
        let counted_in = counted.path().display().to_string();
        // With all processors, because the following tests wait for it.
        own.compiler.env = vec![
            (COUNTED_IN.into(), counted_in),
            ("RAYON_NUM_THREADS".into(), "4".into()),
        ];
    });
    assert!(!bench.sandbox.has_python(), "this test is the first one in Python");
    let sandbox = bench.sandbox.clone();
    let ahead = tokio::spawn(async move { sandbox.prepare_python().await });
    while bench.sandbox.is_idle() {
        tokio::task::yield_now().await;
    }
    let sandbox = bench.sandbox.clone();
    let text = Bytes::from_static(b"def run(): return 1\n");
    let text = tokio::spawn(async move { sandbox.compile_source(Language::Python, text).await });
    let wasm = Bytes::from(command(""));
    let compiled = bench.sandbox.compile_for(Some("somebody"), wasm).await;
    compiled.unwrap();
    assert!(!bench.sandbox.has_python(), "a script has waited for CPython");
    ahead.await.unwrap().unwrap();
    assert!(bench.sandbox.has_python());
    let text = text.await.unwrap().unwrap();
    assert_eq!(
        bench.run(&load(&bench.sandbox, &text).await).await.outcome,
        Outcome::Succeeded("1".into())
    );
    // The script, and CPython once.
    assert_eq!(std::fs::read(counted.path()).unwrap(), b"11");
}

pub async fn a_module_runs(_: Bench) {
    let mut bench = bench();
    bench.params = r#"{"name": "Ada", "at": "2020-02-29", "places": [{"city": "Bern"}]}"#.into();
    let compiled = compiled(&bench, PY, GREET).await.unwrap();
    assert_eq!(compiled.world, World::Source(Language::Python));
    assert_eq!(compiled.world.as_str(), "source/python");
    assert_eq!(compiled.description.as_deref(), Some("Greets."));
    let schema = compiled.params_schema.unwrap();
    assert_eq!(schema["required"], json!(["name"]));
    let properties = &schema["properties"];
    assert_eq!(properties["mode"], json!({"enum": ["a", "b"], "default": "a"}));
    assert_eq!(properties["at"]["description"], "When.");
    assert_eq!(
        properties["places"]["items"]["properties"]["zip"]["type"],
        json!(["integer", "null"])
    );
    let script = script(&bench, PY, GREET).await;
    for _ in 0..3 {
        let tables = Arc::new(Tables::default());
        let result = bench.run_with(&script, &tables).await;
        // A run does not see what another run did to the module's variables.
        let expect = json!({
            "greeting": "Hello, Ada", "calls": 1, "at": "2020-02-29", "task": "task", "cities": ["Bern"], "weekday": 5,
        });
        assert_eq!(succeeded(GREET, &result), expect);
        let log = tables.log.lock().unwrap();
        let lines: Vec<_> = log.iter().map(|line| (line.level, line.message.as_str())).collect();
        assert_eq!(
            lines,
            [
                (LogLevel::Info, "hello Ada"),
                (LogLevel::Debug, "little"),
                (LogLevel::Warn, "odd 1"),
                (LogLevel::Error, "two\nlines"),
            ]
        );
    }
    bench.params = r#"{"name": "Ada", "at": "yesterday"}"#.into();
    let unfit = bench.run(&script).await;
    let (kind, message) = failure(&unfit);
    assert!(kind == ErrorKind::Invalid && message.contains("no Params"), "{unfit:?}");
}

pub async fn endings(_: Bench) {
    let bench = bench();
    for (line, kind, message) in [
        ("raise Fatal('no')", ErrorKind::Fatal, "no"),
        ("raise Retry('later', '90s')", ErrorKind::Failed, "later"),
        (
            "raise Retry('later', 'soon')",
            ErrorKind::Failed,
            "ValueError: `after` is",
        ),
        ("raise Retry('later', '1h30')", ErrorKind::Failed, "not '1h30'"),
        ("raise Retry('later', -1)", ErrorKind::Failed, "not -1"),
        ("return 1 / 0", ErrorKind::Failed, "ZeroDivisionError: division by zero"),
        ("raise Exception('plain')", ErrorKind::Failed, "plain"),
        ("raise ValueError(chr(0xd800))", ErrorKind::Failed, "ValueError: ?"),
        (
            "return float('nan')",
            ErrorKind::Invalid,
            "the output cannot be written as JSON",
        ),
        (
            "return chr(0xd800)",
            ErrorKind::Invalid,
            "the output cannot be written as JSON",
        ),
        (
            "a = []; a.append(a); return a",
            ErrorKind::Invalid,
            "Circular reference",
        ),
        ("return (i for i in [])", ErrorKind::Invalid, "generator"),
        ("return object()", ErrorKind::Invalid, "object is not JSON"),
        ("import sys; sys.exit(3)", ErrorKind::Failed, "SystemExit: 3"),
        ("return run(params, ctx)", ErrorKind::Failed, "RecursionError"),
        (
            "import json; json.loads('[' * 100000)",
            ErrorKind::Failed,
            "RecursionError",
        ),
        ("import os; os.mkdir('/x')", ErrorKind::Failed, "Read-only file system"),
        ("open('/etc/passwd')", ErrorKind::Failed, "FileNotFoundError"),
        ("open('/x', 'w')", ErrorKind::Failed, "Read-only file system"),
        (
            "import socket; socket.create_connection(('x', 80))",
            ErrorKind::Failed,
            "rror",
        ),
        (
            "import threading; threading.Thread(target=print).start()",
            ErrorKind::Failed,
            "RuntimeError",
        ),
        ("ctx.secret('none')", ErrorKind::Fatal, "not granted"),
        // A name that is no text would be the same text as any other.
        (
            "ctx.enqueue('g', {}, {'a': 1})",
            ErrorKind::Failed,
            "TypeError: `key` is text, not dict",
        ),
        (
            "ctx.state.set(None, 1)",
            ErrorKind::Failed,
            "TypeError: a key of the state is text, not NoneType",
        ),
        (
            "ctx.secret(True)",
            ErrorKind::Failed,
            "TypeError: the name of a secret is text, not bool",
        ),
        (
            "import uuid; ctx.enqueue('g', {}, 7); ctx.state.set(uuid.UUID(int=1), ctx.state.get(7, 1)); ctx.upstream([])",
            ErrorKind::Failed,
            "TypeError: the name of a task is text, not list",
        ),
    ] {
        let result = run(&bench, PY, &format!("def run(params, ctx):\n    {line}\n")).await;
        let (found, said) = failure(&result);
        assert!(found == kind && said.contains(message), "{line}: {result:?}");
        if let (ErrorKind::Failed | ErrorKind::Fatal, Outcome::Failed { trace, .. }) = (kind, &result.outcome) {
            let trace = trace.as_deref().unwrap_or_default();
            assert!(trace.contains("\"script.py\", line 2, in run"), "{line}: {trace}");
            assert!(!trace.contains("heddle:runtime"), "{line}: {trace}");
        }
    }
    for (after, millis) in [
        ("'90s'", 90_000),
        ("'1h30m'", 5_400_000),
        ("'1.5s 29ms'", 1_529),
        ("'90'", 90_000),
        ("0.25", 250),
    ] {
        let retry = run(&bench, PY, &format!("def run():\n    raise Retry('later', {after})\n")).await;
        let expect = Duration::from_millis(millis);
        assert!(
            matches!(&retry.outcome, Outcome::Failed { retry_after: Some(found), .. } if *found == expect),
            "{after}: {retry:?}"
        );
    }
    let skipped = run(&bench, PY, "def run():\n    raise Skip('nothing')\n").await;
    assert!(
        matches!(&skipped.outcome, Outcome::Skipped(why) if why == "nothing"),
        "{skipped:?}"
    );
    // The cause of a cause, each with the source's lines.
    let text = "def f():\n    return {}['k']\n\ndef run():\n    try:\n        f()\n    except KeyError as why:\n        raise ValueError('odd') from why\n";
    let caused = run(&bench, PY, text).await;
    let Outcome::Failed { trace: Some(trace), .. } = &caused.outcome else {
        panic!("{caused:?}")
    };
    for part in [
        "line 2, in f",
        "return {}['k']",
        "KeyError: 'k'",
        "direct cause",
        "line 8, in run",
        "ValueError: odd",
    ] {
        assert!(trace.contains(part), "{part}: {trace}");
    }
}

pub async fn faults_of_texts(_: Bench) {
    let bench = bench();
    for (text, message, position) in [
        ("x = 1\ndef run(:\n", "invalid syntax", Some((2, 9))),
        ("def run():\nreturn 1\n", "expected an indented block", Some((2, 1))),
        ("x = 'ä'; y = (\n", "'(' was never closed", Some((1, 14))),
        ("x = 1/0\n", "ZeroDivisionError", Some((1, 5))),
        ("params = object()\ndef run(): pass\n", "must be JSON", None),
        (
            "import heddle\nheddle.fetch('http://x/')\n",
            "not available at the top level",
            Some((2, 1)),
        ),
        ("x = [0] * 100_000_000\n", "memory limit of 64 MiB", None),
        ("import sys; sys.exit(1)\n", "SystemExit", Some((1, 13))),
    ] {
        let fault = fault(&bench, PY, text).await;
        assert!(fault.message.contains(message), "{text}: {fault:?}");
        assert_eq!(fault.line.zip(fault.column), position, "{text}: {fault:?}");
        let line = position.and_then(|(line, _)| text.lines().nth(line as usize - 1));
        assert_eq!(fault.text.as_deref(), line, "{text}");
    }
}

pub async fn host_functions_of_texts(_: Bench) {
    let mut bench = bench();
    bench.grants.secrets = vec!["key".into()];
    let tables = everything();
    let text = "def run(params, ctx):
    def refused(what, *arguments):
        try:
            return what(*arguments)
        except HeddleError as error:
            return str(error)
    seen = ctx.state.get('n')
    ctx.state.set('n', seen + 2)
    again, version = ctx.state.entry('n')
    ctx.state.compare_and_set('n', version, {'a': 1})
    lost = refused(ctx.state.compare_and_set, 'n', 1, 2)
    ctx.state.delete('gone')
    ctx.enqueue('other', {'a': 1}, 'key')
    ctx.notify('ops', 'subject', 'body')
    ctx.progress(0.5, 'half')
    ctx.log('warn', 'odd', {'a': 1})
    unknown = refused(ctx.log, 'loud', 'odd')
    return {'rows': ctx.upstream('before'), 'seen': seen, 'again': again, 'lost': lost, 'secret': ctx.secret('key'),
            'refused': refused(ctx.secret, 'other'), 'none': refused(ctx.upstream, 'nobody'),
            'unknown': unknown, 'sql': refused(ctx.sql('warehouse').query, 'select 1'), 'missing': ctx.state.get('m', 7),
            'of': [ctx.group, ctx.attempt, ctx.logical_time, ctx.data_interval.start, ctx.idempotency_key]}
";
    let text = format!("from heddle import HeddleError\n{text}");
    let result = bench.run_with(&script(&bench, PY, &text).await, &tables).await;
    let output = succeeded(&text, &result);
    assert_eq!(output["rows"], json!([1, 2]));
    assert_eq!((&output["seen"], &output["again"]), (&json!(40), &json!(42)));
    assert_eq!((&output["secret"], &output["missing"]), (&json!("hidden"), &json!(7)));
    for (field, part) in [
        ("lost", "compare-and-set failed"),
        ("refused", "`secrets`"),
        ("sql", "`sql`"),
        ("none", "not available"),
        ("unknown", "the level"),
    ] {
        assert!(output[field].as_str().unwrap().contains(part), "{field}: {output}");
    }
    let at = "2013-07-01T00:00:00.000000Z";
    assert_eq!(output["of"], json!(["group", 1, at, at, "key"]));
    check_reports(&result, &tables, r#"{"a": 1}"#);
}

pub async fn the_standard_library(_: Bench) {
    let bench = bench();
    for (lines, expect) in [
        (
            &[
                "import csv, io, decimal, hashlib, statistics, itertools, re, textwrap, base64, struct, zlib",
                "rows = list(csv.DictReader(io.StringIO('a,b\\n1,2\\n')))",
                "packed = zlib.decompress(zlib.compress(b'abc' * 100))",
                "return [rows, decimal.Decimal('0.1') + 1, hashlib.sha256(b'').hexdigest()[:8], statistics.mean([1, 2, 6]), len(packed), re.sub('(a|b)+', 'x', 'abba c')]",
            ][..],
            json!([[{"a": "1", "b": "2"}], "1.1", "e3b0c442", 3, 300, "x c"]),
        ),
        (
            &[
                "import datetime, time",
                "began = time.monotonic(); time.sleep(0.02); slept = time.monotonic() - began",
                "at = datetime.datetime.strptime('2020-02-29', '%Y-%m-%d').date()",
                "now = datetime.datetime.now(datetime.timezone.utc).year",
                "return [at, slept >= 0.02, now >= 2026]",
            ],
            json!(["2020-02-29", true, true]),
        ),
        (
            &[
                "from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones",
                "from datetime import datetime",
                "summer = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo('Europe/Zurich'))",
                "winter = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo('Europe/Zurich'))",
                "try: ZoneInfo('Mars/Olympus')",
                "except ZoneInfoNotFoundError as error: wrong = str(error)",
                "return [summer, winter, summer.tzname(), summer.astimezone(ZoneInfo('America/New_York')).hour, 'Mars' in wrong, 'Europe/Zurich' in available_timezones()]",
            ],
            json!([
                "2026-07-01T12:00:00+02:00",
                "2026-01-01T12:00:00+01:00",
                "CEST",
                6,
                true,
                true
            ]),
        ),
        (
            &[
                "import asyncio",
                "async def one(n):",
                "    await asyncio.sleep(0.01 * n)",
                "    return n",
                "async def all():",
                "    return await asyncio.gather(one(2), one(1))",
                "return asyncio.run(all())",
            ],
            json!([2, 1]),
        ),
        (
            &[
                "import uuid, enum, dataclasses, collections",
                "C = enum.Enum('C', 'A B')",
                "P = dataclasses.make_dataclass('P', ['x'])",
                "return [C.B, P({1}), collections.OrderedDict(b=1), uuid.UUID(int=1), (1, None, True)]",
            ],
            json!([2, {"x": [1]}, {"b": 1}, "00000000-0000-0000-0000-000000000001", [1, null, true]]),
        ),
    ] {
        assert_eq!(output(&bench, lines).await, expect, "{lines:?}");
    }
    // Random values differ in each run, though the memory is the same.
    let text = script(
        &bench,
        PY,
        "import random, uuid\ndef run(): return [random.random(), str(uuid.uuid4())]\n",
    )
    .await;
    let (one, two) = (bench.run(&text).await, bench.run(&text).await);
    assert_ne!(one.outcome, two.outcome);
}

const ASYNC: &str = "import asyncio

order = []

async def later(n):
    await asyncio.sleep(0.01 * n)
    order.append(n)
    return n

async def forever():
    try:
        await asyncio.Event().wait()
    finally:
        print('given up')

async def run(params, ctx):
    asyncio.create_task(forever())
    both = await asyncio.gather(later(2), later(1))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        third = group.create_task(later(0))
    queue = asyncio.Queue()
    await queue.put(await asyncio.to_thread(ctx.state.get, 'k', 'none'))
    try:
        await asyncio.to_thread(int, 'x')
    except ValueError as wrong:
        kept = str(wrong)
    return [both, order, third.result(), await queue.get(), 'x' in kept]
";

/// An `async` function is driven by an event loop: it waits for time, and for concurrent tasks.
pub async fn async_functions(_: Bench) {
    let bench = bench();
    let waits = script(&bench, PY, ASYNC).await;
    let tables = Arc::new(Tables::default());
    let result = bench.run_with(&waits, &tables).await;
    assert_eq!(succeeded(ASYNC, &result), json!([[2, 1], [1, 2, 0], 0, "none", true]));
    // Its remaining tasks are cancelled, and not waited for.
    let log = std::mem::take(&mut *tables.log.lock().unwrap());
    let said: Vec<_> = log.iter().map(|line| line.message.as_str()).collect();
    assert_eq!(said, ["given up"]);

    // Without a loop, as before; and awaitables need not be functions.
    let text = "class Own:\n    def __await__(self):\n        yield from ()\n        return 7\n\
                async def run(params, ctx): return [ctx.state.get('k', 1), await Own()]\n";
    assert_eq!(succeeded(text, &run(&bench, PY, text).await), json!([1, 7]));
    let text = "class Own:\n    def __await__(self):\n        yield from ()\n        return 7\n\
                def run(): return Own()\n";
    assert_eq!(succeeded(text, &run(&bench, PY, text).await), json!(7));

    // Errors are the script's own: of its class, at its lines, without the lines of the loop.
    let text = "import asyncio\nasync def one():\n    await asyncio.sleep(0.001)\n    raise Fatal('never')\n\
                async def run():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(one())\n";
    let result = run(&bench, PY, text).await;
    assert_eq!(failure(&result), (ErrorKind::Fatal, "never"));
    let text = "import asyncio\nasync def one():\n    await asyncio.sleep(0.001)\n    raise ValueError('odd')\n\
                async def run():\n    await asyncio.gather(one(), asyncio.sleep(9))\n";
    let result = run(&bench, PY, text).await;
    assert_eq!(failure(&result), (ErrorKind::Failed, "ValueError: odd"));
    let Outcome::Failed { trace: Some(trace), .. } = &result.outcome else {
        panic!("{result:?}");
    };
    assert!(
        trace.contains("File \"script.py\", line 6, in run") && trace.contains("line 4, in one"),
        "{trace}"
    );
    assert!(!trace.contains("asyncio/"), "{trace}");
}

pub async fn requests_of_texts(_: Bench) {
    let mut bench = bench();
    let address = serve().await;
    let text = "import json
import urllib.error
import urllib.request
from heddle import http

def run(params, ctx):
    base = params['base']
    try:
        posted = http.post(base + 'a?b=c', json={'ä': 1})
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    moved = ctx.fetch(base + 'moved', method='POST', data='x')
    stays = ctx.fetch(base + 'moved', redirect='manual').status
    request = urllib.request.Request(base + 'u', data=b'{}', headers={'Content-Type': 'application/json'})
    with urllib.request.urlopen(request) as response:
        plain = [response.status, response.getheader('X-Own'), json.load(response)['request']]
    silent = []
    for ask in [lambda: urllib.request.urlopen(base + 'silent', timeout=0.2), lambda: ctx.fetch(base + 'silent', timeout=0.2)]:
        try:
            ask()
        except Exception as error:
            silent.append(str(error))
    followed = json.load(urllib.request.urlopen(base + 'moved'))['request']
    try:
        urllib.request.urlopen(base + 'away')
        away = None
    except urllib.error.URLError as error:
        away = str(error)
    return {'posted': [posted.status, posted.ok, posted.headers['X-Own'], posted.json()], 'moved': moved.json()['request'],
            'stays': stays, 'plain': plain, 'followed': followed, 'away': away,
            'silent': silent}
";
    let script = script(&bench, PY, text).await;
    bench.params = json!({"base": format!("http://{address}/")}).to_string();
    let refused = bench.run(&script).await;
    let refused = succeeded(text, &refused);
    assert!(refused.as_str().unwrap().contains("`allow_hosts`"), "{refused}");
    bench.grants.allow_hosts = vec!["127.0.0.1".parse().unwrap(), "169.254.169.254".parse().unwrap()];
    let found = succeeded(text, &bench.run(&script).await);
    assert_eq!(found["posted"][0], 200, "{found}");
    assert_eq!(
        (&found["posted"][1], &found["posted"][2]),
        (&json!(true), &json!("yes"))
    );
    assert_eq!(found["posted"][3]["request"], "POST /a?b=c HTTP/1.1");
    assert_eq!(found["moved"], "GET /there HTTP/1.1");
    assert_eq!(found["stays"], 302);
    assert_eq!(found["plain"], json!([200, "yes", "POST /u HTTP/1.1"]));
    assert_eq!(found["followed"], "GET /there HTTP/1.1");
    assert!(found["away"].as_str().unwrap().contains("not public"), "{found}");
    let silent = found["silent"].as_array().unwrap();
    assert!(
        silent.len() == 2
            && silent
                .iter()
                .all(|why| why.as_str().unwrap().contains("no response within 200ms")),
        "{found}"
    );
}

pub async fn params_of_a_typed_dict(_: Bench) {
    let mut bench = bench();
    let text = "import datetime
from typing import TypedDict

class Day(TypedDict):
    date: datetime.date

def run(params: Day):
    return params['date'].weekday()
";
    let script = script(&bench, PY, text).await;
    bench.params = json!({"date": "2026-01-01"}).to_string();
    assert_eq!(succeeded(text, &bench.run(&script).await), json!(3));
}

/// Types without parts, and those of which JSON has one word for several.
pub async fn params_of_odd_types(_: Bench) {
    let mut bench = bench();
    let text = "from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Dict, List, Literal, Optional, Tuple

class Nothing(Enum):
    pass

@dataclass
class Params:
    none: tuple[()]
    any: Tuple
    rest: tuple[int, *tuple[str, ...]]
    both: list | tuple
    three: list | tuple | None
    noted: Annotated[Optional[int], 5] | str
    items: List
    named: Dict
    never: Optional[Nothing] = None
    no_word: Optional[Literal[()]] = None

def run(params: Params):
    return [list(params.none), list(params.any), list(params.rest), params.both, params.three, params.items, params.named]
";
    let compiled = compiled(&bench, PY, text).await.unwrap();
    let schema = compiled.params_schema.unwrap();
    let properties = &schema["properties"];
    assert_eq!(properties["none"], json!({"type": "array", "maxItems": 0}));
    for name in ["any", "rest", "both", "items"] {
        assert_eq!(properties[name], json!({"type": "array"}), "{name}");
    }
    assert_eq!(properties["three"], json!({"type": ["array", "null"]}));
    assert_eq!(
        properties["noted"],
        json!({"anyOf": [{"type": ["integer", "null"]}, {"type": "string"}]})
    );
    let script = script(&bench, PY, text).await;
    bench.params = json!({
        "none": [], "any": [1, "a"], "rest": [1, "a", "b"], "both": [1], "three": [], "noted": "n", "items": [1, "a"],
        "named": {"a": 1},
    })
    .to_string();
    assert_eq!(
        succeeded(text, &bench.run(&script).await),
        json!([[], [1, "a"], [1, "a", "b"], [1], [], [1, "a"], {"a": 1}])
    );
}

pub async fn messages_of_texts(_: Bench) {
    let mut bench = bench();
    let text = "def handle(batch, ctx):
    return [Fatal(f'no {m.id} of {batch.topic}') if m.payload.get('bad') else None for m in batch.messages]
";
    let script = script(&bench, PY, text).await;
    bench.params = json!({"topic": "letters", "messages": [
        {"id": 1, "sender": 2, "receiver": 3, "due": "2013-07-01T00:00:00Z", "payload": {}},
        {"id": 2, "sender": 2, "receiver": 3, "due": "2013-07-01T00:00:00Z", "payload": {"bad": true}},
    ]})
    .to_string();
    let said = bench.run(&script).await;
    let output = succeeded(text, &said).to_string();
    assert!(output.contains("no 2 of letters"), "{said:?}");
}

pub async fn hostile_texts(_: Bench) {
    let mut bench = bench();
    bench.limits.timeout = Some(Duration::from_millis(500));
    let endless = run(&bench, PY, "def run():\n    while True: pass\n").await;
    assert_eq!(failure(&endless).0, ErrorKind::Timeout);
    let asleep = run(&bench, PY, "import time\ndef run():\n    time.sleep(60)\n").await;
    assert_eq!(failure(&asleep).0, ErrorKind::Timeout);
    bench.limits.timeout = Some(Duration::from_secs(60));
    bench.limits.memory_bytes = 32 << 20;
    let bomb = run(
        &bench,
        PY,
        "def run():\n    a = []\n    while True: a.append(bytes(100000))\n",
    )
    .await;
    assert_eq!(failure(&bomb).0, ErrorKind::Memory, "{bomb:?}");
    bench.limits.memory_bytes = 256 << 20;
    // Recursion in C instead of Python is also an error of the script, and never the node's.
    for lines in [
        "a = []\n    for i in range(100000): a = [a]\n    return repr(a)",
        "a = []\n    for i in range(100000): a = [a]\n    return a",
        "class A:\n        def __repr__(self): return repr(self)\n    return repr(A())",
        "import sys; sys.setrecursionlimit(10**6)\n    def g(x): return sorted([1, 2], key=g)\n    return g(1)",
        "return eval('(' * 5000 + ')' * 5000)",
        "import re; return bool(re.compile('(' * 3000 + ')' * 3000))",
    ] {
        let deep = run(&bench, PY, &format!("def run():\n    {lines}\n")).await;
        let (kind, message) = failure(&deep);
        assert!(
            matches!(kind, ErrorKind::Failed | ErrorKind::Invalid | ErrorKind::Memory),
            "{lines}: {message}: {deep:?}"
        );
    }
    let exits = run(&bench, PY, "import os\ndef run():\n    os._exit(3)\n").await;
    assert!(
        matches!(failure(&exits).0, ErrorKind::Trap | ErrorKind::Failed),
        "{exits:?}"
    );
    // A script may overwrite what is between it and Heddle, and harms only itself.
    for trick in [
        "import json; json.dumps = None; json.loads = None",
        "import sys; sys.modules.clear()",
        "import builtins; builtins.len = None; builtins.isinstance = None",
        "import sys; del sys.stdout; del sys.stderr",
        "import _heddle; _heddle.call(99, '')",
    ] {
        let _ = run(&bench, PY, &format!("def run():\n    {trick}\n    return 1\n")).await;
        assert_eq!(output(&bench, &["return 2"]).await, json!(2), "{trick}");
    }
}

/// Another node with the same directory finds the snapshot there; one with another directory makes it again.
pub async fn snapshots_of_python(_: Bench) {
    let bench = bench();
    let text = "def run(): return 'kept'\n";
    let first = compiled(&bench, PY, text).await.unwrap();
    let mut own = config(bench.cache.path());
    own.cache_dir = shared().to_owned();
    let sandbox = Sandbox::new(own, Arc::new(RealClock)).unwrap();
    let key = first.key();
    assert!(!sandbox.is_ready(&key));
    let never = async { unreachable!() as Result<Bytes, Infallible> };
    let script = sandbox.load(&key, never).await.unwrap();
    assert_eq!(script.world(), World::Source(Language::Python));
}
