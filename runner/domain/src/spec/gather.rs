//! All errors of an unreadable input: each unreadable part is removed, and the rest is read again.
//!
//! Serde stops at the first error. The author of a spec wants all errors at once, and also those of the readable part.
//! Errors next to a removed part may only be consequences of the removal: they are not reported.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::plain::{MistakeKind, Plain};
use super::unread::could_mean;
use crate::fault::pointer_token;
use crate::{Fault, Faults};

/// How many unreadable parts are searched for: each costs reading the whole input again.
const ROUNDS_MAX: usize = 20;

/// The longest detail of a fault.
const DETAIL_MAX_CHARS: usize = 600;

/// The readable part of an input, and the errors of the rest.
#[derive(Debug)]
pub struct Gathered<T> {
    /// The readable part; `None`: the input is unreadable as a whole, or in too many places.
    pub rest: Option<T>,
    /// The errors; empty: none.
    pub faults: Faults,
    /// Where a part was removed: the nearest task, schedule or top-level field.
    damaged: Vec<String>,
    /// The pointers of unknown fields.
    unknown: HashSet<String>,
}

impl<T: DeserializeOwned> Gathered<T> {
    /// Reads as much of a value as can be read.
    pub fn read(value: &Value) -> Self {
        let mut gathered = Self {
            rest: None,
            faults: Faults::default(),
            damaged: Vec::new(),
            unknown: HashSet::new(),
        };
        let mut repaired = None;
        for _ in 0..ROUNDS_MAX {
            let unreadable = match read_once(repaired.as_ref().unwrap_or(value)) {
                Ok(rest) => {
                    gathered.rest = Some(rest);
                    break;
                }
                Err(unreadable) => unreadable,
            };
            let left = repaired.get_or_insert_with(|| value.clone());
            let taken = take_out(left, &unreadable);
            match gathered.cause_of(&unreadable) {
                Some(cause) => add_what_is_meant(cause, &unreadable.fault),
                None => gathered.push(unreadable),
            }
            match taken {
                Some(pointer) => gathered.damaged.push(neighbourhood(&pointer)),
                None => break,
            }
        }
        gathered
    }

    /// The known fault of which this one is a consequence. A wrong value is removed, and then it is missing: that is no
    /// second fault. A misspelt field is also missing, under its right name.
    fn cause_of(&mut self, unreadable: &Unreadable) -> Option<&mut Fault> {
        let Unreadable { fault, kind } = unreadable;
        let is_missing = matches!(kind, MistakeKind::Missing(_));
        let unknown = &self.unknown;
        let is_misspelt = |known: &str| is_missing && unknown.contains(known) && is_meant(known, &fault.pointer);
        // A list with a wrong item was removed as a whole.
        let is_above = |known: &str| is_missing && is_below(known, &fault.pointer);
        let mut faults = self.faults.0.iter_mut();
        faults.find(|known| known.pointer == fault.pointer || is_above(&known.pointer) || is_misspelt(&known.pointer))
    }

    fn push(&mut self, unreadable: Unreadable) {
        let Unreadable { fault, kind } = unreadable;
        if matches!(kind, MistakeKind::Unknown(_)) {
            self.unknown.insert(fault.pointer.clone());
        }
        self.faults.push(fault);
    }
}

/// Why something cannot be read.
struct Unreadable {
    fault: Fault,
    kind: MistakeKind,
}

/// Reads a value, up to the first thing that cannot be read.
fn read_once<T: DeserializeOwned>(value: &Value) -> Result<T, Unreadable> {
    // Serde would read an array as the fields in their order.
    if !value.is_object() {
        return Err(Unreadable {
            fault: Fault::at("", "invalid type: expected an object"),
            kind: MistakeKind::Other,
        });
    }
    serde_path_to_error::deserialize(Plain(value)).map_err(|error| {
        use serde_path_to_error::Segment;
        let mut pointer = String::new();
        for segment in error.path() {
            match segment {
                Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
                Segment::Map { key } => pointer.push_str(&format!("/{}", pointer_token(key))),
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        let mistake = error.into_inner();
        match &mistake.kind {
            // Serde stops at the key of an unknown field; the pointer is the field's.
            MistakeKind::Unknown(field) => {
                let below = format!("/{}", pointer_token(field));
                if !pointer.ends_with(&below) {
                    pointer.push_str(&below);
                }
            }
            // And at the end of an object that lacks a field; the pointer is that of the missing field.
            MistakeKind::Missing(field) => pointer.push_str(&format!("/{}", pointer_token(field))),
            MistakeKind::Other => {}
        }
        let detail: String = mistake.to_string().chars().take(DETAIL_MAX_CHARS).collect();
        Unreadable {
            fault: Fault::at(pointer, detail),
            kind: mistake.kind,
        }
    })
}

/// Adds to the error of an unknown field which field was meant, if that is known by now.
fn add_what_is_meant(fault: &mut Fault, missing: &Fault) {
    if fault.pointer != missing.pointer
        && !is_below(&fault.pointer, &missing.pointer)
        && let Some((_, meant)) = missing.pointer.rsplit_once('/')
    {
        fault.detail.push_str(&format!("; did you mean `{meant}`?"));
    }
}

/// Whether a pointer names something inside of what another one names.
fn is_below(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether an unknown field may have been written for a missing one next to it.
fn is_meant(written: &str, missing: &str) -> bool {
    match (written.rsplit_once('/'), missing.rsplit_once('/')) {
        (Some((above, written)), Some((beside, meant))) => above == beside && could_mean(written, meant),
        _ => false,
    }
}

impl<T> Gathered<T> {
    /// Adds the errors of the readable part, except those that may be consequences of the removed parts.
    pub fn add(&mut self, found: Faults) {
        for fault in found.0 {
            let concerned = |pointer: &String| {
                let below = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer}/"));
                below(&fault.pointer, pointer) || below(pointer, &fault.pointer)
            };
            if !self.damaged.iter().any(concerned) {
                self.faults.push(fault);
            }
        }
    }
}

/// What a fault damages: `/tasks/a` for `/tasks/a/retry/interval`, `/labels` for `/labels/x`.
fn neighbourhood(pointer: &str) -> String {
    let mut parts = pointer.split('/').skip(1);
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("tasks" | "schedules", Some(name)) => format!("/{first}/{name}"),
        _ => format!("/{first}"),
    }
}

/// Removes the unreadable part of a value; returns its pointer. An unreadable element is removed together with its
/// array, so that no indexes change. An unreadable task is replaced by a valid one, because other tasks may depend on
/// it.
fn take_out(value: &mut Value, unreadable: &Unreadable) -> Option<String> {
    let mut pointer = unreadable.fault.pointer.as_str();
    if matches!(unreadable.kind, MistakeKind::Missing(_)) {
        pointer = pointer.rsplit_once('/')?.0;
    }
    loop {
        let (above, token) = pointer.rsplit_once('/')?;
        match value.pointer_mut(above)? {
            Value::Object(fields) => {
                let name = token.replace("~1", "/").replace("~0", "~");
                let is_task = above == "/tasks";
                let found = fields.contains_key(&name);
                let (name, pointer) = match found {
                    true => (name, pointer.to_owned()),
                    // The key itself is wrong, and the error names it in another form than the input.
                    false => {
                        let name = fields.keys().find(|key| pointer_token(key) == token)?.clone();
                        (name, pointer.to_owned())
                    }
                };
                if is_task && fields.get(&name) != Some(&json!({"queue": "q"})) && crate::Name::new(&name).is_ok() {
                    fields.insert(name, json!({"queue": "q"}));
                } else {
                    fields.remove(&name);
                }
                return Some(pointer);
            }
            Value::Array(_) => pointer = above,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::GroupSpec;

    fn pointers(spec: Value) -> (Vec<String>, bool) {
        let gathered = Gathered::<GroupSpec>::read(&spec);
        let pointers = gathered.faults.0.iter().map(|fault| fault.pointer.clone()).collect();
        (pointers, gathered.rest.is_some())
    }

    #[test]
    fn all_that_cannot_be_read_is_named() {
        let (found, rest) = pointers(json!({
            "histroy": true, "labels": {"a": 1}, "depends_on": [{"group": "x", "need": "never"}, 7],
            "schedules": {"s": {"cron": 5}, "t": {"every": "soon"}},
            "tasks": {
                "a": {"script": 1, "timeout": "soon", "scirpt": "x"},
                "b": {"http": {"method": "GET"}},
                "c": 5,
                "d": {"script": "x", "depends_on": ["a", "c"], "trigger_rule": "sometimes"},
            },
        }));
        assert!(rest);
        let mut found = found;
        found.sort_unstable();
        let expect = [
            "/depends_on/0/need",
            "/depends_on/1",
            "/histroy",
            "/labels/a",
            "/schedules/s/cron",
            "/schedules/t/every",
            "/tasks/a/scirpt",
            "/tasks/a/script",
            "/tasks/a/timeout",
            "/tasks/b/http/url",
            "/tasks/c",
            "/tasks/d/trigger_rule",
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn one_fault_is_one_fault() {
        for (spec, pointer) in [
            (json!({"tasks": {"t": {"script": 5}}}), "/tasks/t/script"),
            (json!({"tasks": 5}), "/tasks"),
            (json!({"tasks": {"t": {"queue": "q"}}, "x": 1}), "/x"),
        ] {
            let mut gathered = Gathered::<GroupSpec>::read(&spec);
            // Errors of the rest of a task, or of the whole, could be consequences.
            let mut more = Faults::default();
            more.add(pointer, "a consequence");
            more.add(neighbourhood(pointer), "another");
            more.add(format!("{}/deep/er", neighbourhood(pointer)), "a third");
            gathered.add(more);
            assert_eq!(gathered.faults.0.len(), 1, "{spec} {:?}", gathered.faults);
            assert_eq!(gathered.faults.0[0].pointer, pointer);
            let mut more = Faults::default();
            more.add("/other", "of its own");
            gathered.add(more);
            assert_eq!(gathered.faults.0.len(), 2);
        }
    }

    #[test]
    fn what_is_misspelt_is_not_missing_besides() {
        let http = |http: Value| {
            let spec = json!({"tasks": {"t": {"http": http}}});
            let faults = Gathered::<GroupSpec>::read(&spec).faults.0;
            faults
                .into_iter()
                .map(|fault| (fault.pointer, fault.detail))
                .collect::<Vec<_>>()
        };
        let faults = http(json!({"ulr": "https://example.com"}));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].0, "/tasks/t/http/ulr");
        assert!(faults[0].1.ends_with("did you mean `url`?"), "{faults:?}");
        // A field that resembles none of the missing ones is a separate error.
        let faults = http(json!({"addresses": []}));
        assert_eq!(faults.len(), 2, "{faults:?}");
        // A field that is missing elsewhere is a separate error too.
        let faults = http(json!({"url": "https://example.com", "ulr": 1}));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(!faults[0].1.contains("meant"), "{faults:?}");
    }

    #[test]
    fn there_is_an_end() {
        let mut spec = json!({"tasks": {"t": {"queue": "q"}}});
        for number in 0..500 {
            spec[format!("x{number}")] = json!(1);
        }
        let gathered = Gathered::<GroupSpec>::read(&spec);
        assert_eq!((gathered.faults.0.len(), gathered.rest.is_some()), (ROUNDS_MAX, false));
        assert!(Gathered::<GroupSpec>::read(&json!([])).rest.is_none());
    }
}
