//! The languages, each with a script that does next to nothing, and those that are text with one that works.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heddle_tests::bench::{now, program};

/// How long the building of all languages may take, with the compilers that are not there yet.
const BUILT_WITHIN: Duration = Duration::from_secs(150);

/// A language, with its two scripts.
pub(crate) struct Language {
    pub(crate) title: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) empty: Vec<u8>,
    /// None where there is no such script.
    pub(crate) heavy: Option<&'static str>,
}

pub(crate) const JS_EMPTY: &str = "export default (params) => {
  const greeting = `Hello, ${params.name}!`;
  console.log(greeting);
  return { greeting };
};
";
pub(crate) const JS_HEAVY: &str = "export default (params) => {
  const rows = [];
  for (let n = 0; n < params.rows; n++) rows.push({ id: n, city: `city ${n % 17}`, amount: n * 1.5 });
  const totals = {};
  for (const row of JSON.parse(JSON.stringify(rows))) totals[row.city] = (totals[row.city] ?? 0) + row.amount;
  return totals;
};
";
const TS_EMPTY: &str = "export default (params: { name: string }) => {
  const greeting = `Hello, ${params.name}!`;
  console.log(greeting);
  return { greeting };
};
";
const TS_HEAVY: &str = "interface Row { id: number; city: string; amount: number }
export default (params: { rows: number }) => {
  const rows: Row[] = [];
  for (let n = 0; n < params.rows; n++) rows.push({ id: n, city: `city ${n % 17}`, amount: n * 1.5 });
  const totals: Record<string, number> = {};
  for (const row of JSON.parse(JSON.stringify(rows)) as Row[]) totals[row.city] = (totals[row.city] ?? 0) + row.amount;
  return totals;
};
";
pub(crate) const PY_EMPTY: &str = "def run(params, ctx):
    greeting = f\"Hello, {params['name']}!\"
    print(greeting)
    return {'greeting': greeting}
";
pub(crate) const PY_HEAVY: &str = "import json

def run(params, ctx):
    rows = [{'id': n, 'city': f'city {n % 17}', 'amount': n * 1.5} for n in range(params['rows'])]
    totals = {}
    for row in json.loads(json.dumps(rows)):
        totals[row['city']] = totals.get(row['city'], 0) + row['amount']
    return totals
";

/// The template of a language, written and built by the program. An error says why there is none.
fn built(language: &str, directory: &Path, until: Instant) -> Result<Vec<u8>, String> {
    let name = format!("bench-{language}");
    let directory = directory.join(&name);
    let step = |arguments: &[&str]| {
        let said = directory.with_extension("log");
        let log = std::fs::File::create(&said).expect("a log");
        let mut child = Command::new(program())
            .args(arguments)
            .arg(&directory)
            // Where the tests of languages have theirs: neither installs what the other one has.
            .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/languages"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program");
        loop {
            match child.try_wait().expect("a child") {
                Some(status) if status.success() => return Ok(()),
                Some(_) => {
                    let said = std::fs::read_to_string(&said).unwrap_or_default();
                    return Err(said.lines().last().unwrap_or("it says nothing").to_owned());
                }
                None if now() > until => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("not built within {} s", BUILT_WITHIN.as_secs()));
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    step(&["script", "new", &name, "--lang", language])?;
    step(&["script", "build"])?;
    let wasm = directory.join(format!("{name}.wasm"));
    std::fs::read(&wasm).map_err(|error| format!("{}: {error}", wasm.display()))
}

pub(crate) fn languages(directory: &Path) -> Vec<Language> {
    let text = |title, media_type, empty: &str, heavy| Language {
        title,
        media_type,
        empty: empty.into(),
        heavy: Some(heavy),
    };
    let mut languages = vec![
        Language {
            title: "Rust",
            media_type: "application/wasm",
            empty: heddle_scripts::get("hello").expect("the script").to_vec(),
            heavy: None,
        },
        text("JavaScript", "text/javascript", JS_EMPTY, JS_HEAVY),
        text("TypeScript", "text/typescript", TS_EMPTY, TS_HEAVY),
        text("Python", "text/x-python", PY_EMPTY, PY_HEAVY),
    ];
    let until = now() + BUILT_WITHIN;
    for (title, language) in [
        ("AssemblyScript", "assemblyscript"),
        ("Go", "go"),
        ("Zig", "zig"),
        ("C", "c"),
    ] {
        match built(language, directory, until) {
            Ok(empty) => languages.push(Language {
                title,
                media_type: "application/wasm",
                empty,
                heavy: None,
            }),
            Err(why) => println!("{title} is not measured: {why}\n"),
        }
    }
    languages
}

/// The empty script as a text, or bytes, that no node has seen.
pub(crate) fn changed(language: &Language, number: usize) -> Vec<u8> {
    let mut script = language.empty.clone();
    match language.media_type {
        // A custom section: its id, its length, its name's length, its name.
        "application/wasm" => script.extend_from_slice(&[0, 2, 1, b'0' + number as u8]),
        "text/x-python" => script.extend_from_slice(format!("# {number}\n").as_bytes()),
        _ => script.extend_from_slice(format!("// {number}\n").as_bytes()),
    }
    script
}
