//! A script's calls of the host.
//!
//! There is one import, `heddle.call(operation, text) -> text`. Most operations are a message in JSON, answered at once
//! (`{"error": null, "ok": …}`). Those that take time begin here, and [`super::pending`] reports their end.

use super::answer::Answer;
use super::pending;
use super::search_params;
use super::state::{MAIN, SourceState, TASK};
use crate::bindings::task::heddle::task as wit;
use crate::guest::{Guest, HostSide, MAX_CALL_BYTES};
use crate::journal::are_fields;
use crate::memory::Held;
use crate::texts::well_formed;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heddle_domain::plan::LOG_LINE_BYTES_MAX;
use heddle_domain::state::LogLevel;
use serde::Deserialize;
use serde_json::{Value, json};
use wasmtime::{Caller, Linker, Memory, Result};

/// The operations, with the numbers of `js/runtime.js`.
const LOG: u32 = 0;
const RESULT: u32 = 1;
const SYNC: u32 = 2;
const START: u32 = 3;
const CANCEL: u32 = 4;
const DESCRIPTION: u32 = 5;
const NESTING: u32 = 6;

/// The maximum random bytes of one call.
const MAX_RANDOM_BYTES: usize = 1 << 16;

/// Our own modules: they may import each other; a script may import only `heddle:task`.
const MODULES: [(&str, &str); 6] = [
    (MAIN, include_str!("js/main.js")),
    ("heddle:runtime", include_str!("js/runtime.js")),
    ("heddle:console", include_str!("js/console.js")),
    ("heddle:rejected", include_str!("js/rejected.js")),
    ("heddle:web", include_str!("js/web.js")),
    (TASK, include_str!("js/task.js")),
];
/// The name that the main module has for the script.
const SCRIPT: &str = "heddle:script";

/// Our own modules, as this program has them.
pub(super) fn own_modules() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODULES.into_iter()
}

impl Guest {
    /// Nanoseconds that never go back, whatever the clock does.
    pub(super) fn monotonic_nanos(&mut self) -> u64 {
        let now = self.host.clock.now().timestamp_nanos_opt().unwrap_or_default();
        self.source.last_nanos = self.source.last_nanos.max(now.max(0).cast_unsigned());
        self.source.last_nanos
    }
}

pub(super) fn memory(caller: &Caller<'_, Guest>) -> Result<Memory> {
    let memory = caller.data().source.memory;
    memory.ok_or_else(|| wasmtime::Error::msg("the interpreter has no memory yet"))
}

/// A text in the guest's memory.
pub(super) fn text(caller: &Caller<'_, Guest>, at: u32, length: u32) -> Result<String> {
    let length = length as usize;
    if length > MAX_CALL_BYTES {
        return Err(wasmtime::Error::msg(format!(
            "the call has more than the maximum of {MAX_CALL_BYTES} bytes"
        )));
    }
    let memory = memory(caller)?;
    let bytes = memory
        .data(caller)
        .get(at as usize..)
        .and_then(|rest| rest.get(..length));
    let bytes = bytes.ok_or_else(|| wasmtime::Error::msg("the text is outside the memory"))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

pub(super) fn add_to_linker(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap(
        "heddle",
        "call",
        |mut caller: Caller<'_, Guest>, operation: u32, at: u32, length: u32| {
            let text = text(&caller, at, length)?;
            let guest = caller.data_mut();
            let answer = call(guest, operation, text)?;
            keep_answer(guest, answer)
        },
    )?;
    add_take_to_linker(linker)?;
    let loader = "local:init/module-loader";
    linker.func_wrap_async(
        loader,
        "resolve",
        |mut caller: Caller<'_, Guest>, (from, from_length, name, name_length, at): (u32, u32, u32, u32, u32)| {
            Box::new(async move {
                let (from, name) = (text(&caller, from, from_length)?, text(&caller, name, name_length)?);
                let found = resolve(&caller.data().source, &from, &name);
                give(&mut caller, at, found).await
            })
        },
    )?;
    linker.func_wrap_async(
        loader,
        "load",
        |mut caller: Caller<'_, Guest>, (name, name_length, at): (u32, u32, u32)| {
            Box::new(async move {
                let name = text(&caller, name, name_length)?;
                let found = load(&caller.data().source, &name);
                give(&mut caller, at, found).await
            })
        },
    )?;
    Ok(())
}

/// Keeps an answer until the guest has allocated memory for it; returns its size in bytes.
pub(super) fn keep_answer(guest: &mut Guest, answer: String) -> Result<u32> {
    guest.source.answer = answer.into_bytes();
    Ok(u32::try_from(guest.source.answer.len())?)
}

/// `heddle.take`: copies the answer to the guest's memory.
pub(super) fn add_take_to_linker(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap("heddle", "take", |mut caller: Caller<'_, Guest>, at: u32| {
        let memory = memory(&caller)?;
        let answer = std::mem::take(&mut caller.data_mut().source.answer);
        memory.write(&mut caller, at as usize, &answer)?;
        Ok(())
    })?;
    Ok(())
}

/// A `result<string, string>` by the canonical ABI.
async fn give(caller: &mut Caller<'_, Guest>, at: u32, result: Result<String, String>) -> Result<()> {
    let (tag, text) = match result {
        Ok(text) => (0u32, text),
        Err(text) => (1, text),
    };
    let length = u32::try_from(text.len())?;
    let realloc = caller.data().source.realloc.clone();
    let realloc = realloc.ok_or_else(|| wasmtime::Error::msg("the interpreter is not linked yet"))?;
    let copy = realloc.call_async(&mut *caller, (0, 0, 1, length)).await?;
    let memory = memory(caller)?;
    memory.write(&mut *caller, copy as usize, text.as_bytes())?;
    let mut answer = [0; 12];
    for (index, word) in [tag, copy, length].into_iter().enumerate() {
        answer[index * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    memory.write(&mut *caller, at as usize, &answer)?;
    Ok(())
}

/// The module of a name. Our own modules are only for our own modules, except for `heddle:task`.
fn resolve(state: &SourceState, from: &str, name: &str) -> Result<String, String> {
    let is_own = |name: &str| state.modules.as_ref().is_some_and(|own| own.get(name).is_some());
    match (&state.loading, name) {
        (Some((_, module)), SCRIPT) if from == MAIN => Ok((*module).to_owned()),
        (_, TASK) => Ok(name.to_owned()),
        (_, name) if name != MAIN && is_own(from) && is_own(name) => Ok(name.to_owned()),
        _ => Err("a source script may import only `heddle:task`".to_owned()),
    }
}

fn load(state: &SourceState, name: &str) -> Result<String, String> {
    if let Some(text) = state.modules.as_ref().and_then(|own| own.get(name)) {
        return Ok(text.to_owned());
    }
    match &state.loading {
        Some((text, module)) if *module == name => Ok(text.to_string()),
        _ => Err("the module does not exist".to_owned()),
    }
}

pub(super) fn call(guest: &mut Guest, operation: u32, text: String) -> Result<String> {
    match operation {
        LOG => {
            let level = match text.as_bytes().first() {
                Some(b'0') => LogLevel::Trace,
                Some(b'1') => LogLevel::Debug,
                Some(b'3') => LogLevel::Warn,
                Some(b'4') => LogLevel::Error,
                _ => LogLevel::Info,
            };
            guest.host.journal.write(level, text.get(1..).unwrap_or_default(), None);
        }
        RESULT => {
            guest.source.writes_output = false;
            guest.source.ended.get_or_insert(text);
        }
        DESCRIPTION => drop(guest.source.description.get_or_insert(text)),
        SYNC => {
            // What the call makes is held until the answer is complete.
            let mut held = guest.guard.hold_nothing();
            return Ok(Answer::of(answer(guest, &text, &mut held)));
        }
        START => return Ok(pending::start(guest, &text).err().unwrap_or_default()),
        NESTING => {
            // An empty text announces what has no text yet: the output.
            guest.source.writes_output |= text.is_empty() && guest.source.loading.is_none();
            return Ok(nesting(&text).to_string());
        }
        CANCEL => guest.source.pending.cancel(text.parse().unwrap_or_default()),
        other => return Err(wasmtime::Error::msg(format!("there is no operation {other}"))),
    }
    Ok(String::new())
}

/// How deep a text nests as JSON.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[derive(Deserialize)]
#[serde(tag = "op")]
enum Call {
    #[serde(rename = "state.set")]
    StateSet { key: String, value: String },
    #[serde(rename = "state.delete")]
    StateDelete { key: String },
    #[serde(rename = "enqueue")]
    Enqueue {
        group: String,
        params: String,
        key: Option<String>,
    },
    #[serde(rename = "notify")]
    Notify {
        channel: String,
        subject: String,
        body: String,
    },
    /// NaN has no JSON and arrives as null.
    #[serde(rename = "progress")]
    Progress { fraction: Option<f64>, note: String },
    #[serde(rename = "random")]
    Random { count: usize },
    #[serde(rename = "url.parse")]
    UrlParse { text: String, base: Option<String> },
    #[serde(rename = "url.set")]
    UrlSet { href: String, part: String, value: String },
    #[serde(rename = "query.parse")]
    QueryParse { text: String },
    /// `pairs` is JSON: an array of names with their values.
    #[serde(rename = "query.write")]
    QueryWrite { pairs: String },
    #[serde(rename = "text.label")]
    TextLabel { label: String },
    #[serde(rename = "text.decode")]
    TextDecode {
        label: String,
        fatal: bool,
        bom: bool,
        base64: String,
    },
    #[serde(rename = "zone")]
    Zone { name: String },
    #[serde(rename = "zones")]
    Zones {},
    #[serde(rename = "log")]
    Log {
        level: String,
        message: String,
        fields: Option<String>,
    },
}

fn answer(guest: &mut Guest, message: &str, held: &mut Held) -> Result<Value, String> {
    let call: Call =
        serde_json::from_str(&well_formed(message)).map_err(|error| format!("the value cannot be sent: {error}"))?;
    let host = &mut guest.host;
    let nothing = |()| Value::Null;
    match call {
        Call::StateSet { key, value } => host.effects.set(key, value).map(nothing),
        Call::StateDelete { key } => host.effects.delete(key).map(nothing),
        Call::Enqueue { group, params, key } => host.effects.enqueue(group, params, key).map(nothing),
        Call::Notify { channel, subject, body } => host.effects.notify(channel, subject, body).map(nothing),
        Call::Progress { fraction, note } => {
            wit::progress::Host::report(host, fraction.unwrap_or_default(), note);
            Ok(Value::Null)
        }
        Call::Log { level, message, fields } => log(host, &level, &message, fields).map(nothing),
        Call::Random { count } if count > MAX_RANDOM_BYTES => Err(format!(
            "at most {MAX_RANDOM_BYTES} random bytes \
            are allowed in one call"
        )),
        Call::Random { count } => {
            let mut bytes = vec![0; count];
            host.chance.fill(&mut bytes)?;
            Ok(json!(STANDARD.encode(bytes)))
        }
        Call::UrlParse { text, base } => {
            let base = match base {
                Some(base) => match url::Url::parse(&base) {
                    Ok(base) => Some(base),
                    Err(_) => return Ok(Value::Null),
                },
                None => None,
            };
            let parsed = url::Url::options().base_url(base.as_ref()).parse(&text);
            Ok(parsed.map_or(Value::Null, |url| parts(&url)))
        }
        Call::UrlSet { href, part, value } => {
            let mut url = url::Url::parse(&href).map_err(|error| error.to_string())?;
            Ok(set_part(&mut url, &part, &value).map_or(Value::Null, |()| parts(&url)))
        }
        Call::QueryParse { text } => search_params::read(&text, held).map(Value::String),
        Call::QueryWrite { pairs } => search_params::write(&pairs, held).map(Value::String),
        Call::TextLabel { label } => label_of(&label).map(|label| json!(label)),
        Call::TextDecode {
            label,
            fatal,
            bom,
            base64,
        } => {
            let bytes = STANDARD.decode(base64).map_err(|error| error.to_string())?;
            decode(&label, fatal, bom, &bytes).map(|text| json!(text))
        }
        Call::Zones {} => Ok(json!(super::zones::names())),
        Call::Zone { name } => Ok(super::zones::file(&name).map_or(Value::Null, |file| json!(STANDARD.encode(&*file)))),
    }
}

fn log(host: &HostSide, level: &str, message: &str, fields: Option<String>) -> Result<(), String> {
    let level = level_of(level).ok_or("the level of a log line is `trace`, `debug`, `info`, `warn` or `error`")?;
    let fields = match fields {
        Some(fields) if fields.len() <= LOG_LINE_BYTES_MAX => Some(well_formed(&fields).into_owned()),
        other => other,
    };
    if fields.as_deref().is_some_and(|fields| !are_fields(fields)) {
        return Err("the fields of a log line are an object".into());
    }
    host.journal.write(level, message, fields);
    Ok(())
}

/// The level of this name, in capitals too, and by the names of Python.
fn level_of(name: &str) -> Option<LogLevel> {
    match name.to_ascii_lowercase().as_str() {
        "warning" => Some(LogLevel::Warn),
        "critical" => Some(LogLevel::Error),
        name => name.parse().ok(),
    }
}

/// The parts of a `URL`, by the URL Standard.
fn parts(url: &url::Url) -> Value {
    use url::quirks;
    json!({
        "href": quirks::href(url),
        "origin": quirks::origin(url),
        "protocol": quirks::protocol(url),
        "username": quirks::username(url),
        "password": quirks::password(url),
        "host": quirks::host(url),
        "hostname": quirks::hostname(url),
        "port": quirks::port(url),
        "pathname": quirks::pathname(url),
        "search": quirks::search(url),
        "hash": quirks::hash(url),
    })
}

/// `None`: the part cannot have this value, and nothing changes.
fn set_part(url: &mut url::Url, part: &str, value: &str) -> Option<()> {
    use url::quirks;
    match part {
        "href" => quirks::set_href(url, value).ok(),
        "protocol" => quirks::set_protocol(url, value).ok(),
        "username" => quirks::set_username(url, value).ok(),
        "password" => quirks::set_password(url, value).ok(),
        "host" => quirks::set_host(url, value).ok(),
        "hostname" => quirks::set_hostname(url, value).ok(),
        "port" => quirks::set_port(url, value).ok(),
        "pathname" => {
            quirks::set_pathname(url, value);
            Some(())
        }
        "search" => {
            quirks::set_search(url, value);
            Some(())
        }
        "hash" => {
            quirks::set_hash(url, value);
            Some(())
        }
        _ => None,
    }
}

fn label_of(label: &str) -> Result<&'static str, String> {
    match label.trim().to_ascii_lowercase().as_str() {
        "utf-8" | "utf8" | "unicode-1-1-utf-8" => Ok("utf-8"),
        "utf-16le" | "utf-16" | "ucs-2" => Ok("utf-16le"),
        "latin1" | "iso-8859-1" | "iso8859-1" | "ascii" | "us-ascii" => Ok("iso-8859-1"),
        _ => Err(format!(
            "unknown encoding `{label}`; the encodings are utf-8, utf-16le and iso-8859-1"
        )),
    }
}

fn decode(label: &str, fatal: bool, keep_bom: bool, bytes: &[u8]) -> Result<String, String> {
    let broken = || Err("the bytes are not valid in this encoding".to_owned());
    let text = match label {
        "utf-8" => match String::from_utf8(bytes.to_vec()) {
            Ok(text) => text,
            Err(_) if fatal => return broken(),
            Err(_) => String::from_utf8_lossy(bytes).into_owned(),
        },
        "utf-16le" => {
            let units: Vec<u16> = bytes
                .chunks_exact(2)
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
                .collect();
            match String::from_utf16(&units) {
                Ok(text) if bytes.len().is_multiple_of(2) || !fatal => text,
                _ if fatal => return broken(),
                _ => String::from_utf16_lossy(&units),
            }
        }
        _ => bytes.iter().map(|byte| char::from(*byte)).collect(),
    };
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) if !keep_bom => rest.to_owned(),
        _ => text,
    })
}

/// The operations by number.
#[cfg(test)]
pub(super) fn numbers() -> impl Iterator<Item = (&'static str, u32)> {
    let numbers = [LOG, RESULT, SYNC, START, CANCEL, DESCRIPTION, NESTING];
    let names = ["log", "result", "sync", "start", "cancel", "description", "nesting"];
    names.into_iter().zip(numbers)
}

/// The operations that are messages.
#[cfg(test)]
pub(super) fn operations() -> Vec<String> {
    pending::named::<Call>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_names_of_both_languages() {
        for (name, level) in [
            ("info", Some(LogLevel::Info)),
            ("INFO", Some(LogLevel::Info)),
            ("WARNING", Some(LogLevel::Warn)),
            ("critical", Some(LogLevel::Error)),
            ("loud", None),
            ("", None),
        ] {
            assert_eq!(level_of(name), level, "{name}");
        }
    }

    #[test]
    fn only_what_is_not_quoted_nests() {
        for (text, depth) in [
            ("1", 0),
            (r#"[{"a": []}, [1]]"#, 3),
            (r#"["[[[", "\\\"[[", "\\\\"]"#, 1),
            ("]]]][[", 2),
        ] {
            assert_eq!(nesting(text), depth, "{text}");
        }
    }
}
