//! What an attempt wants to be written to Heddle if it succeeds.

use crate::memory::Held;
use crate::texts::{check_json, json_has_nul, stored_bytes};
use std::collections::HashMap;

/// The maximum number of effects of an attempt.
const MAX_EFFECTS: usize = 1_000;
/// The maximum of their bytes together.
const MAX_EFFECT_BYTES: usize = 8 << 20;
/// The longest key of the state.
const MAX_KEY_BYTES: usize = 256;
/// The largest value of the state.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// The longest unique key of an enqueued run.
const MAX_RUN_KEY_BYTES: usize = 512;
/// The longest subject of a notification.
const MAX_SUBJECT_BYTES: usize = 1 << 10;
/// The longest body of a notification.
const MAX_BODY_BYTES: usize = 64 << 10;

/// One write, committed together with the outcome or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sets a key of the group's state.
    StateSet {
        key: String,
        /// The value as JSON text.
        value: String,
    },
    /// Sets a key, which no effect before this one writes, if it has this version. Otherwise nothing of the attempt is
    /// written, and it fails retryably.
    StateCompareAndSet {
        key: String,
        /// `None`: the key does not exist.
        expected: Option<u64>,
        /// The value as JSON text.
        value: String,
    },
    /// Deletes a key of the group's state.
    StateDelete { key: String },
    /// Creates a run of a group.
    Enqueue {
        group: String,
        /// A JSON object as text.
        params: String,
        /// Unique per group: a repeat creates no second run.
        key: Option<String>,
    },
    Notify {
        channel: String,
        /// What it is about.
        subject: String,
        body: String,
    },
}

impl Effect {
    /// The bytes of all its texts, as they count for the bounds of an attempt.
    pub fn bytes(&self) -> usize {
        match self {
            Self::StateSet { key, value } | Self::StateCompareAndSet { key, value, .. } => key.len() + value.len(),
            Self::StateDelete { key } => key.len(),
            Self::Enqueue { group, params, key } => group.len() + params.len() + key.as_ref().map_or(0, String::len),
            Self::Notify { channel, subject, body } => channel.len() + subject.len() + body.len(),
        }
    }

    /// The value that a key of the state gets, if this sets one.
    fn new_value(&self) -> Option<&str> {
        match self {
            Self::StateSet { value, .. } | Self::StateCompareAndSet { value, .. } => Some(value),
            Self::StateDelete { .. } | Self::Enqueue { .. } | Self::Notify { .. } => None,
        }
    }
}

/// An attempt's view of a key: a value with its version, or that there is none.
pub(crate) type Entry = Option<(String, u64)>;

/// The effects of an attempt so far, and the resulting state.
#[derive(Default)]
pub(crate) struct Effects {
    list: Vec<Effect>,
    bytes: usize,
    overlay: HashMap<String, Overlay>,
    /// Their bytes, as memory that the node holds for the attempt.
    held: Option<Held>,
}

/// The attempt's own changes of a key.
struct Overlay {
    /// The last effect on it, by its place in the list.
    last: usize,
    /// How many writes and deletes came after what is stored.
    changes: u64,
}

impl Effects {
    /// No effects yet; `held` grows with each.
    pub fn held_by(held: Held) -> Self {
        Self {
            held: Some(held),
            ..Self::default()
        }
    }

    /// The attempt's view of a key whose stored entry is `stored`.
    pub fn seen(&self, key: &str, stored: Entry) -> Entry {
        let Some(overlay) = self.overlay.get(key) else {
            return stored;
        };
        let base = stored.map_or(0, |(_, version)| version);
        let value = self.list.get(overlay.last).and_then(Effect::new_value)?;
        Some((value.to_owned(), base + overlay.changes))
    }

    pub fn set(&mut self, key: String, value: String) -> Result<(), String> {
        check_key(&key)?;
        check_value(&value)?;
        self.push(Effect::StateSet {
            key: key.clone(),
            value,
        })?;
        self.changed(key);
        Ok(())
    }

    /// `seen` is the result of [`Self::seen`] for the key.
    pub fn compare_and_set(
        &mut self,
        key: String,
        expected: Option<u64>,
        value: String,
        seen: &Entry,
    ) -> Result<(), String> {
        check_key(&key)?;
        check_value(&value)?;
        let version = seen.as_ref().map(|(_, version)| *version);
        if version != expected {
            let is = version.map_or("does not exist".into(), |version| format!("has version {version}"));
            let wanted = expected.map_or("no value".into(), |version| format!("version {version}"));
            return Err(format!(
                "compare-and-set failed: key `{key}` {is}, expected was {wanted}"
            ));
        }
        // After an effect of this attempt on the key, nobody else's write can come between. The version that this effect
        // makes is known only when it is written.
        if self.overlay.contains_key(&key) {
            return self.set(key, value);
        }
        self.push(Effect::StateCompareAndSet {
            key: key.clone(),
            expected,
            value,
        })?;
        self.changed(key);
        Ok(())
    }

    pub fn delete(&mut self, key: String) -> Result<(), String> {
        check_key(&key)?;
        self.push(Effect::StateDelete { key: key.clone() })?;
        self.changed(key);
        Ok(())
    }

    pub fn enqueue(&mut self, group: String, params: String, key: Option<String>) -> Result<(), String> {
        let group = name_of("group", &group)?;
        if !params.trim_start().starts_with('{') {
            return Err("`params` of an enqueued run must be a JSON object".into());
        }
        // Before anything of it is read.
        if params.len() > MAX_EFFECT_BYTES {
            return Err(too_many_bytes());
        }
        let has_nul =
            json_has_nul(&params).map_err(|error| format!("`params` of an enqueued run must be JSON: {error}"))?;
        // As over HTTP: Postgres cannot store it, and would refuse all that is committed with it.
        if has_nul {
            return Err("`params` of an enqueued run must not contain the character U+0000".into());
        }
        if key
            .as_ref()
            .is_some_and(|key| key.is_empty() || key.len() > MAX_RUN_KEY_BYTES || key.contains('\0'))
        {
            return Err(format!(
                "the key of an enqueued run must have 1 to {MAX_RUN_KEY_BYTES} bytes and no zero byte"
            ));
        }
        self.push(Effect::Enqueue { group, params, key })
    }

    pub fn notify(&mut self, channel: String, subject: String, body: String) -> Result<(), String> {
        let channel = name_of("channel", &channel)?;
        if stored_bytes(&subject) > MAX_SUBJECT_BYTES {
            return Err(format!(
                "the subject of a notification must have at most {MAX_SUBJECT_BYTES} bytes"
            ));
        }
        if stored_bytes(&body) > MAX_BODY_BYTES {
            return Err(format!(
                "the body of a notification must have at most {MAX_BODY_BYTES} bytes"
            ));
        }
        // As in logs: people do not need it, and Postgres would refuse all that is committed with it.
        let (subject, body) = (subject.replace('\0', "\u{fffd}"), body.replace('\0', "\u{fffd}"));
        self.push(Effect::Notify { channel, subject, body })
    }

    pub fn into_list(self) -> Vec<Effect> {
        self.list
    }

    /// Notes that the last effect is one on this key.
    fn changed(&mut self, key: String) {
        let last = self.list.len().saturating_sub(1);
        let overlay = self.overlay.entry(key).or_insert(Overlay { last, changes: 0 });
        overlay.changes += 1;
        overlay.last = last;
    }

    fn push(&mut self, effect: Effect) -> Result<(), String> {
        if self.list.len() >= MAX_EFFECTS {
            return Err(format!(
                "an attempt may write at most {MAX_EFFECTS} times (state, enqueue, notify)"
            ));
        }
        let bytes = self.bytes + effect.bytes();
        if bytes > MAX_EFFECT_BYTES {
            return Err(too_many_bytes());
        }
        if let Some(held) = &mut self.held {
            held.grow(effect.bytes())?;
        }
        self.bytes = bytes;
        self.list.push(effect);
        Ok(())
    }
}

pub(crate) fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES || key.contains('\0') {
        return Err(format!(
            "a state key must have 1 to {MAX_KEY_BYTES} bytes and no zero byte; this one has {}",
            key.len()
        ));
    }
    Ok(())
}

pub(crate) fn check_value(value: &str) -> Result<(), String> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(format!(
            "a state value must have at most {MAX_VALUE_BYTES} bytes; this one has {}",
            value.len()
        ));
    }
    check_json(value).map_err(|error| format!("a state value must be JSON: {error}"))
}

/// A name in its stored form.
fn name_of(what: &str, name: &str) -> Result<String, String> {
    heddle_domain::Name::new(name)
        .map(String::from)
        .map_err(|error| format!("{what} `{name}`: {error}"))
}

fn too_many_bytes() -> String {
    format!("an attempt may write at most {MAX_EFFECT_BYTES} bytes (state, enqueue, notify)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBudget, MemoryGuard, tells_of_memory};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn effects_count_as_memory() {
        let budget = Arc::new(MemoryBudget {
            limit_bytes: u64::MAX,
            used_bytes: AtomicU64::new(0),
        });
        let guard = MemoryGuard::new(100, Arc::default(), Arc::clone(&budget));
        let mut effects = Effects::held_by(guard.hold_nothing());
        let used = || budget.used_bytes.load(Relaxed);
        effects.set("key".into(), "1234567".into()).unwrap();
        assert_eq!(used(), 10);
        let seen = effects.seen("key", None);
        effects
            .compare_and_set("key".into(), Some(1), "12".into(), &seen)
            .unwrap();
        effects.compare_and_set("new".into(), None, "12".into(), &None).unwrap();
        effects.delete("key".into()).unwrap();
        effects.enqueue("g".into(), "{}".into(), Some("k".into())).unwrap();
        effects.notify("c".into(), "s".into(), "b".into()).unwrap();
        assert_eq!(used(), 10 + 5 + 5 + 3 + 4 + 3);
        // What is refused is not kept.
        let refused = effects.set("key".into(), "1".repeat(68)).unwrap_err();
        assert!(tells_of_memory(&refused), "{refused}");
        assert_eq!(used(), 30);
        assert_eq!(effects.seen("key", None), None);
        assert_eq!(effects.into_list().len(), 6);
        assert_eq!(used(), 0);
    }

    #[test]
    fn reads_see_own_writes() {
        let mut effects = Effects::default();
        let stored = Some(("1".to_owned(), 7));
        assert_eq!(effects.seen("k", stored.clone()), stored);
        effects.set("k".into(), "2".into()).unwrap();
        assert_eq!(effects.seen("k", stored.clone()), Some(("2".into(), 8)));
        let seen = effects.seen("k", stored.clone());
        assert!(effects.compare_and_set("k".into(), Some(7), "3".into(), &seen).is_err());
        effects.compare_and_set("k".into(), Some(8), "3".into(), &seen).unwrap();
        effects.delete("k".into()).unwrap();
        assert_eq!(effects.seen("k", stored.clone()), None);
        effects.compare_and_set("k".into(), None, "4".into(), &None).unwrap();
        // Versions do not start again with a delete.
        assert_eq!(effects.seen("k", stored), Some(("4".into(), 11)));
        assert_eq!(effects.into_list().len(), 4);
    }

    #[test]
    fn comparisons_with_own_writes_are_certain() {
        let mut effects = Effects::default();
        effects.compare_and_set("k".into(), None, "1".into(), &None).unwrap();
        let seen = effects.seen("k", None);
        let version = seen.as_ref().map(|(_, version)| *version);
        effects.compare_and_set("k".into(), version, "2".into(), &seen).unwrap();
        effects.delete("other".into()).unwrap();
        effects
            .compare_and_set("other".into(), None, "3".into(), &None)
            .unwrap();
        let (key, other) = ("k".to_owned(), "other".to_owned());
        assert_eq!(
            effects.into_list(),
            [
                Effect::StateCompareAndSet {
                    key: key.clone(),
                    expected: None,
                    value: "1".into(),
                },
                Effect::StateSet { key, value: "2".into() },
                Effect::StateDelete { key: other.clone() },
                Effect::StateSet {
                    key: other,
                    value: "3".into(),
                },
            ]
        );
    }

    #[test]
    fn bounds() {
        let mut effects = Effects::default();
        assert!(effects.set(String::new(), "1".into()).is_err());
        assert!(effects.set("k".repeat(257), "1".into()).is_err());
        assert!(effects.set("k".into(), "nonsense".into()).is_err());
        assert!(effects.enqueue("g".into(), "[]".into(), None).is_err());
        assert!(effects.enqueue("not a name".into(), "{}".into(), None).is_err());
        for (params, key, good) in [
            (r#"{"a": "\u0000"}"#, None, false),
            (r#"{"a": [{"\u0000": 1}]}"#, None, false),
            (r#"{"a": "\\u0000"}"#, None, true),
            ("{}", Some("k\0"), false),
            ("{}", Some("k"), true),
        ] {
            let done = effects.enqueue("g".into(), params.into(), key.map(str::to_owned));
            assert_eq!(done.is_ok(), good, "{params} {key:?} {done:?}");
        }
        // What is too large is not read: this is not JSON either.
        let large = format!("{{{}", " ".repeat(MAX_EFFECT_BYTES));
        let said = effects.enqueue("g".into(), large, None).unwrap_err();
        assert!(said.contains("8388608 bytes"), "{said}");
        effects.notify("c".into(), "a\0".into(), "b\0".into()).unwrap();
        let effects_so_far = effects.list.last().cloned();
        assert!(matches!(effects_so_far, Some(Effect::Notify { subject, body, .. })
            if subject == "a\u{fffd}" && body == "b\u{fffd}"));
        // U+FFFD, which stands for U+0000, is three times as long.
        for (subject, body, good) in [
            ("\0".repeat(341), "\0".repeat(21_845), true),
            ("\0".repeat(342), String::new(), false),
            ("\0".repeat(1_024), String::new(), false),
            (String::new(), "\0".repeat(21_846), false),
            (String::new(), "\0".repeat(65_536), false),
        ] {
            let (subject_bytes, body_bytes) = (subject.len(), body.len());
            let done = effects.notify("c".into(), subject, body);
            assert_eq!(done.is_ok(), good, "{subject_bytes} {body_bytes}");
        }
        let mut effects = Effects::default();
        for _ in 0..MAX_EFFECTS {
            effects.set("k".into(), "1".into()).unwrap();
        }
        assert!(effects.set("k".into(), "1".into()).unwrap_err().contains("1000"));
    }
}
