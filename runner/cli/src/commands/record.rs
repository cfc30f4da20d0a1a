//! `heddle script record`: runs a case of a script against real hosts and databases, and writes their answers into the
//! case.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use chrono::SubsecRound as _;
use clap::Args;
use heddle_domain::{Chance, Clock, Time, hex};
use heddle_engine::{NodeClock, SystemChance};
use heddle_sandbox::{Exchanges, HostPattern, Outcome, Rehearsal};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::cases::{self, Case};
use super::local::{self, Local, Stage};
use super::recording::{Kept, Recorder};
use super::run::{Params, pair_of};
use crate::document;
use crate::exit::{NO, done, usage};
use crate::output::Format;

/// The minimum length of a secret that is replaced, in bytes: a shorter one would be found in other text.
const SECRET_BYTES_MIN: usize = 4;
/// The maximum of a seed: all JSON readers read such a number exactly.
const SEED_MAX: u64 = 1_000_000_000;

/// The options of `heddle script record`.
#[derive(Args, Debug)]
pub struct Record {
    /// The file of the script. Its test cases are in a file beside it (clean.test.json beside clean.ts)
    pub file: String,
    /// The name of the test case. A new case is added, with its result as the expected result
    pub case: String,
    /// Params of a new case
    #[command(flatten)]
    pub params: Params,
    /// A host to which requests are allowed, as in `allow_hosts` of a task: example.com or *.example.com, with or
    /// without :port. Can be repeated
    #[arg(long = "allow-host", value_name = "HOST")]
    pub allow_hosts: Vec<HostPattern>,
    /// A private host, address or network to which requests are allowed. Can be repeated
    #[arg(long = "allow-private", value_name = "HOST")]
    pub allow_private: Vec<String>,
    /// A connection for SQL statements: NAME=postgres://... or NAME=@FILE. Can be repeated
    #[arg(long, value_name = "NAME=URL")]
    pub sql: Vec<String>,
    /// A secret: NAME=VALUE or NAME=@FILE. The file of test cases gets a replacement value. Can be repeated
    #[arg(long = "secret", value_name = "NAME=VALUE")]
    pub secrets: Vec<String>,
    /// The timeout, for example 10s
    #[arg(long)]
    pub timeout: Option<String>,
}

/// Reads NAME=VALUE, or NAME=@FILE for values that should not be visible in a list of processes.
fn named(pairs: &[String], option: &str) -> Result<BTreeMap<String, String>> {
    let read = |pair: &String| {
        // (The value may be a secret, so an error does not show it.)
        let name = pair.split_once('=').map_or("", |(name, _)| name);
        let (name, value) =
            pair_of(pair, option, "NAME=VALUE").map_err(|_| usage(format!("{option} {name}: write NAME=VALUE")))?;
        let value = match value.strip_prefix('@') {
            Some(file) => {
                let text = String::from_utf8(document::read_bytes(Path::new(file))?);
                let text = text.map_err(|_| usage(format!("{option} {name}: {file} is not UTF-8 text")))?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
            None => value.to_owned(),
        };
        Ok((name.to_owned(), value))
    };
    pairs.iter().map(read).collect()
}

pub(super) async fn run(out: Format, record: &Record) -> Result<ExitCode> {
    let timeout = local::timeout_of(record.timeout.as_deref())?;
    let (secrets, connections) = (named(&record.secrets, "--secret")?, named(&record.sql, "--sql")?);
    let beside = cases::file_beside(&record.file);
    let text = match Path::new(&beside).is_file() {
        true => document::read_bytes(Path::new(&beside))?,
        false => Vec::new(),
    };
    let text = String::from_utf8(text).map_err(|_| usage(format!("{beside} is not UTF-8 text")))?;
    let found = case_of(&text, &beside, &record.case)?;
    let case = match &found {
        Some(_) if record.params.is_given() => {
            return Err(usage(format!(
                "{beside} already has a case `{}` with its own params",
                record.case
            )));
        }
        Some(raw) => cases::one(raw.get(), &beside)?,
        None => cases::one(r#"{"expect": {}}"#, &beside)?,
    };
    let params = match &found {
        Some(_) => case.params.clone(),
        None => record.params.read()?,
    };
    let fakes = Fakes::new(&secrets, &case.secrets)?;
    let now = case.now.unwrap_or_else(|| NodeClock::default().now().trunc_subsecs(0));
    let seed = case
        .seed
        .unwrap_or_else(|| (SystemChance.bits() % u128::from(SEED_MAX)) as u64);
    let recorder = Arc::new(Recorder::default());
    let rehearsal = Rehearsal {
        now: Some(now),
        paced: true,
        seed: Some(seed),
        exchanges: Some(Arc::clone(&recorder) as Arc<dyn Exchanges>),
    };
    let stage = Stage {
        rehearsal,
        allow_hosts: record.allow_hosts.clone(),
        connections,
    };
    let (ended, good) = carried_out(record, case, params.clone(), secrets, stage, timeout).await?;
    let expect = expected(&ended.outcome)?;
    let kept = recorder.take();
    if !kept.refused.is_empty() {
        ended.print(out)?;
        return Err(usage(format!(
            "nothing was written to {beside}: {}; allow it with --allow-host, --allow-private or --sql",
            kept.refused.join("; ")
        )));
    }
    let counted = json!({"file": beside, "case": record.case, "http": kept.http.len(), "sql": kept.sql.len()});
    let mut fields = match &found {
        Some(raw) => serde_json::from_str::<Fields>(raw.get())?,
        None => Fields::default(),
    };
    if found.is_none() {
        fields.set("name", to_raw_value(&record.case)?);
        fields.set("params", to_raw_value(&params)?);
        fields.set("expect", expect);
    }
    fields.add_recording(&kept, now, seed, &fakes)?;
    let case = fakes.put_into(fields.text(), &beside)?;
    write(&beside, &with_case(&text, found, &case))?;
    ended.print(out)?;
    if out == Format::Table {
        let of = |what: &str| counted[what].as_u64().unwrap_or_default();
        crate::output::print(&format!(
            "recorded {} requests and {} statements in {beside}, case {}",
            of("http"),
            of("sql"),
            record.case
        ))?;
    }
    if good { done() } else { Ok(ExitCode::from(NO)) }
}

async fn carried_out(
    record: &Record,
    mut case: Case,
    params: Map<String, Value>,
    secrets: BTreeMap<String, String>,
    stage: Stage,
    timeout: Duration,
) -> Result<(local::Ended, bool)> {
    case.params = params;
    case.secrets.extend(secrets);
    let local = Local::allowing(&record.allow_private)?;
    let script = local.load(&record.file).await?;
    let ended = local.run(&script, case.given(stage, timeout, false)).await?;
    let good = ended.is_good();
    Ok((ended, good))
}

/// The expected results of a new case: the actual ones.
fn expected(outcome: &Outcome) -> Result<Box<RawValue>> {
    Ok(match outcome {
        Outcome::Succeeded(output) => RawValue::from_string(format!("{{\"output\": {}}}", output.trim()))?,
        Outcome::Skipped(reason) => to_raw_value(&json!({"skipped": reason}))?,
        Outcome::Failed { kind, message, .. } => {
            to_raw_value(&json!({"error": {"kind": kind.as_str(), "message": message}}))?
        }
        Outcome::Cancelled => to_raw_value(&json!({}))?,
    })
}

/// The fields of a case, as the file contains them.
#[derive(Default)]
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a case")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

impl Fields {
    /// Replaces the field; if it is new, inserts it before the expected results.
    fn set(&mut self, name: &str, value: Box<RawValue>) {
        if let Some((_, there)) = self.0.iter_mut().find(|(field, _)| field == name) {
            *there = value;
            return;
        }
        let expect = self.0.iter().position(|(field, _)| field == "expect");
        self.0.insert(expect.unwrap_or(self.0.len()), (name.to_owned(), value));
    }

    fn add_recording(&mut self, kept: &Kept, now: Time, seed: u64, fakes: &Fakes) -> Result<()> {
        if !fakes.all.is_empty() {
            self.set("secrets", to_raw_value(&fakes.all)?);
        }
        self.set(
            "now",
            to_raw_value(&now.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true))?,
        );
        self.set("seed", to_raw_value(&seed)?);
        let http = kept.http.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        self.set("http", lines_of(http)?);
        let sql = kept.sql.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        self.set("sql", lines_of(sql)?);
        Ok(())
    }

    fn text(&self) -> String {
        let fields = self.0.iter();
        let fields: Vec<String> = fields
            .map(|(name, value)| format!("{}: {}", json!(name), value.get()))
            .collect();
        format!("{{{}}}", fields.join(",\n   "))
    }
}

/// An array with a line for each entry.
fn lines_of(entries: Vec<String>) -> Result<Box<RawValue>> {
    Ok(RawValue::from_string(match entries.is_empty() {
        true => "[]".into(),
        false => format!("[\n     {}\n   ]", entries.join(",\n     ")),
    })?)
}

#[derive(Deserialize)]
struct Cases<'a> {
    #[serde(borrow)]
    cases: Vec<&'a RawValue>,
}

/// The case with this name, as a part of the file's text.
fn case_of<'a>(text: &'a str, file: &str, name: &str) -> Result<Option<&'a RawValue>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let names = cases::parse(text.as_bytes(), file)?;
    let found: Cases<'a> = serde_json::from_str(text)?;
    let is_it = |(index, case): (usize, &Case)| match &case.name {
        Some(own) => own == name,
        None => name == format!("cases[{index}]"),
    };
    Ok(names
        .iter()
        .enumerate()
        .position(is_it)
        .and_then(|index| found.cases.get(index).copied()))
}

/// The file's text with a case replaced, or with a new case at the end.
fn with_case(text: &str, found: Option<&RawValue>, case: &str) -> String {
    // The case is a slice of the text itself.
    let span = |raw: &RawValue| {
        let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
        (start, start + raw.get().len())
    };
    if let Some(found) = found {
        let (start, end) = span(found);
        return format!("{}{case}{}", &text[..start], &text[end..]);
    }
    let last = serde_json::from_str::<Cases<'_>>(text)
        .ok()
        .and_then(|found| found.cases.last().copied());
    match last {
        Some(last) => {
            let (_, end) = span(last);
            format!("{},\n  {case}{}", &text[..end], &text[end..])
        }
        None => format!("{{\"cases\": [\n  {case}\n]}}\n"),
    }
}

fn write(file: &str, text: &str) -> Result<()> {
    // The file is replaced as a whole, because `script dev` may be reading it.
    let directory = Path::new(file).parent().filter(|parent| !parent.as_os_str().is_empty());
    let next = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))
        .with_context(|| format!("cannot write into the directory of {file}"))?;
    std::fs::write(next.path(), text).with_context(|| format!("cannot write {}", next.path().display()))?;
    if let Ok(there) = std::fs::metadata(file) {
        std::fs::set_permissions(next.path(), there.permissions())?;
    }
    next.persist(file).with_context(|| format!("cannot write {file}"))?;
    Ok(())
}

/// The replacements of secrets in the file.
struct Fakes {
    /// All replacements that the case has from now on.
    all: BTreeMap<String, String>,
    /// The forms of a secret in JSON, and the same forms of its replacement; the longest first.
    forms: Vec<(String, String)>,
    /// Forms that show that a secret is in the text in another way: the name of the secret, and the form.
    traces: Vec<(String, String)>,
}

/// The forms in which JSON may contain a text, in the same order for each text.
const FORMS: [fn(&str) -> String; 6] = [
    quoted,
    |text| quoted(&quoted(text)),
    |text| quoted(text).replace('/', "\\/"),
    |text| quoted(text).chars().map(ascii).collect(),
    encoded,
    |text| encoded(text).replace('+', "%20"),
];

/// The text with the escapes of a JSON string, without the quotes around it.
fn quoted(text: &str) -> String {
    let quoted = json!(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn ascii(char: char) -> String {
    if char.is_ascii() {
        return char.to_string();
    }
    let units = char.encode_utf16(&mut [0; 2]).to_vec();
    units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

impl Fakes {
    /// `there`: the replacements that the case already has.
    fn new(secrets: &BTreeMap<String, String>, there: &BTreeMap<String, String>) -> Result<Self> {
        let mut fakes = Self {
            all: there.clone(),
            forms: Vec::new(),
            traces: Vec::new(),
        };
        for (name, secret) in secrets {
            if secret.len() < SECRET_BYTES_MIN {
                return Err(usage(format!(
                    "--secret {name}: must have at least {SECRET_BYTES_MIN} bytes; a shorter value cannot be replaced \
                    in a recording"
                )));
            }
            let own = there.get(name).filter(|own| *own != secret).cloned();
            let fake = own.unwrap_or_else(|| format!("fake-{name}"));
            if FORMS.iter().any(|form| form(&fake).contains(secret.as_str())) {
                return Err(usage(format!(
                    "--secret {name}: must not be a part of `{fake}`, its replacement in the recording"
                )));
            }
            // The lines of a key with several lines may be sent separately.
            let lines = secret.lines().map(str::trim);
            let lines = lines.filter(|line| line.len() >= SECRET_BYTES_MIN && *line != secret.as_str());
            for (part, fake) in lines
                .map(|line| (line, format!("fake-{name}")))
                .chain([(secret.as_str(), fake.clone())])
            {
                fakes.forms.extend(FORMS.iter().map(|form| (form(part), form(&fake))));
                fakes
                    .traces
                    .extend(traces(part).into_iter().map(|trace| (name.clone(), trace)));
            }
            fakes.all.insert(name.clone(), fake);
        }
        fakes.forms.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
        fakes.forms.dedup();
        Ok(fakes)
    }

    /// The text of a case without secrets. It is an error if the text contains one in a form that cannot be replaced.
    fn put_into(&self, case: String, file: &str) -> Result<String> {
        let case = self
            .forms
            .iter()
            .fold(case, |case, (form, fake)| case.replace(form.as_str(), fake));
        if let Some((name, _)) = self.traces.iter().find(|(_, trace)| case.contains(trace.as_str())) {
            return Err(usage(format!(
                "nothing was written to {file}: the recording contains the secret `{name}` as base64, as hexadecimal \
                or in parts"
            )));
        }
        let read = cases::one(&case, file);
        read.with_context(|| {
            format!("nothing was written to {file}: the recording is not valid JSON after its secrets were replaced")
        })?;
        Ok(case)
    }
}

/// Other forms of a secret: as it is, as hexadecimal, and as base64 for each offset that it may have in the encoded
/// text.
fn traces(secret: &str) -> Vec<String> {
    let hex = hex(secret.as_bytes());
    let mut traces = vec![secret.to_owned(), hex.to_uppercase(), hex];
    for before in 0..3 {
        let text = [&b"\0\0"[..before], secret.as_bytes()].concat();
        // The characters that also depend on neighbouring bytes are left out.
        let whole = text.len() * 8 / 6;
        let first = (before * 8).div_ceil(6);
        for base64 in [STANDARD_NO_PAD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
            traces.extend(base64.get(first..whole).map(str::to_owned));
        }
    }
    // Very short forms would be found everywhere.
    traces.retain(|trace| trace.len() >= SECRET_BYTES_MIN);
    traces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fakes(secrets: &[(&str, &str)], there: &[(&str, &str)]) -> Result<Fakes> {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect()
        };
        Fakes::new(&map(secrets), &map(there))
    }

    #[test]
    fn no_secret_gets_into_a_recording() {
        let secret = "s3/cr \"et\"é";
        let fakes = fakes(&[("token", secret), ("other", "hunter2")], &[("other", "mine")]).unwrap();
        assert_eq!(json!(fakes.all), json!({"token": "fake-token", "other": "mine"}));
        let case = |body: &str| {
            format!(r#"{{"http": [{{"url": "http://a/", "answer": {{"body": {body}}}}}], "expect": {{}}}}"#)
        };
        for (body, left) in [
            (json!(secret).to_string(), r#""fake-token""#),
            (
                json!(json!({"a": secret}).to_string()).to_string(),
                r#""{\"a\":\"fake-token\"}""#,
            ),
            (r#"["s3\/cr \"et\"é"]"#.into(), r#"["fake-token"]"#),
            (r#"["s3/cr \"et\"\u00e9"]"#.into(), r#"["fake-token"]"#),
            (
                r#""?a=s3%2Fcr+%22et%22%C3%A9&hunter2""#.into(),
                r#""?a=fake-token&mine""#,
            ),
            (r#""?a=s3%2Fcr%20%22et%22%C3%A9""#.into(), r#""?a=fake-token""#),
        ] {
            assert_eq!(fakes.put_into(case(&body), "f").unwrap(), case(left), "{body}");
        }
        for body in [
            STANDARD_NO_PAD.encode("me:hunter2"),
            STANDARD_NO_PAD.encode("a:hunter2:b"),
            STANDARD_NO_PAD.encode("abc:hunter2"),
            "68756e74657232".into(),
        ] {
            let error = fakes.put_into(case(&json!(body).to_string()), "f").unwrap_err();
            assert!(error.to_string().contains("the secret `other`"), "{error}");
        }
    }

    #[test]
    fn secrets_that_cannot_be_distinguished_are_refused() {
        for (secret, there) in [("abc", "x"), ("fake", "a-fake-one"), ("oken", "token")] {
            assert!(fakes(&[("n", secret)], &[("n", there)]).is_err(), "{secret}");
        }
    }

    #[test]
    fn the_rest_of_a_file_stays_as_it_is() {
        let text = "{\"cases\": [\n  {\"name\":  \"a\", \"expect\": { }},\n  {\"name\": \"b\",\n    \"params\": {\"z\": 1, \"a\": 2}, \"expect\": {}}\n]}\n";
        let found = case_of(text, "f", "b").unwrap();
        let mut fields: Fields = serde_json::from_str(found.unwrap().get()).unwrap();
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        fields
            .add_recording(&Kept::default(), now, 7, &fakes(&[], &[]).unwrap())
            .unwrap();
        let case = "{\"name\": \"b\",\n   \"params\": {\"z\": 1, \"a\": 2},\n   \"now\": \"2026-01-02T03:04:05Z\",\n   \"seed\": 7,\n   \"http\": [],\n   \"sql\": [],\n   \"expect\": {}}";
        assert_eq!(fields.text(), case);
        let start = "{\"cases\": [\n  {\"name\":  \"a\", \"expect\": { }},\n  ";
        assert_eq!(with_case(text, found, case), format!("{start}{case}\n]}}\n"));
        assert!(case_of(text, "f", "c").unwrap().is_none());
        let more = with_case(text, None, "{\"expect\": {}}");
        assert!(more.starts_with(text.trim_end_matches("\n]}\n")), "{more}");
        assert_eq!(cases::parse(more.as_bytes(), "f").unwrap().len(), 3);
        let first = with_case("", None, "{\"expect\": {}}");
        assert_eq!(cases::parse(first.as_bytes(), "f").unwrap().len(), 1);
    }
}
