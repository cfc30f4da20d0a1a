//! Topics: what scheduled messages are sent to, and how.
//!
//! A topic counts either in *days* (a message is due on a day, and sent from `send_at` of that day in the topic's zone)
//! or in *instants* (a message is due at one; it is kept with the day that this instant falls on in the topic's zone).

use chrono::{NaiveDate, NaiveTime};
use chrono_tz::Tz;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::retry::Policy;
use crate::schedule::local::{parse_time_of_day, parse_zone, resolve, wall_clock};
use crate::spec::validate::task::{MEMORY, script_reference};
use crate::spec::{ByteSize, RetrySpec};
use crate::{Fault, Faults, Name, Span, Time};

/// The most messages of a batch, which is also the default.
pub const BATCH_MAX: u32 = 1_000;
/// The most batches at once.
pub const CONCURRENCY_MAX: u32 = 1_000;
/// How many batches wait in a queue, or are with its workers, by default.
pub const QUEUE_CONCURRENCY_DEFAULT: u32 = 16;
/// How long a script may work on a batch, by default and at most.
pub const TIMEOUT_DEFAULT: Span = Span::from_secs(300);
pub const TIMEOUT_MAX: Span = Span::from_secs(86_400);
/// How long a drained day is kept, by default and at most.
pub const RETENTION_DEFAULT: Span = Span::from_secs(7 * 86_400);
pub const RETENTION_MAX: Span = Span::from_secs(3_660 * 86_400);
/// The largest payload, by default and at most.
pub const PAYLOAD_BYTES_DEFAULT: u64 = 8 * 1024;
pub const PAYLOAD_BYTES_MAX: u64 = 128 * 1024;
/// The most messages per `rate.per`.
pub const RATE_COUNT_MAX: u32 = 10_000_000;
/// The most names in each of `sql`, `secrets` and `allow_hosts`.
const GRANTS_MAX: usize = 100;

/// The beginning of the names of the groups that Heddle keeps for topics that send to queues. With a number after it, no
/// other group may have such a name.
pub const GROUP_PREFIX: &str = "_topic-";

/// The group whose runs contain the batches of a topic that sends to a queue. Its name is made of the topic's number.
pub fn group_name(topic: i32) -> String {
    format!("{GROUP_PREFIX}{topic}")
}

/// The topic whose batches a group carries, if it does.
pub fn topic_of(group: &str) -> Option<i32> {
    let number = group.strip_prefix(GROUP_PREFIX)?;
    number.parse().ok().filter(|_| !number.starts_with(['+', '-']))
}

/// When messages of a topic are due: on a day or at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// Messages are due on a day.
    #[default]
    Day,
    /// Messages are due at an instant.
    Instant,
}

/// A rate limit: `count` messages per duration `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The number of messages, 1 to 10,000,000.
    pub count: u32,
    /// The duration, 1ms to 1d.
    pub per: Span,
}

/// The spec of a topic; see `docs/messages.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicSpec {
    /// The name, the same as in the path.
    #[serde(default, skip_serializing)]
    pub name: Option<Name>,
    /// A description of its purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The category. Connections and secrets can be granted to the category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Name>,
    /// The script that handles batches, `name` or `name@version`, of the world `heddle:task/consumer`. Either `script`
    /// or `queue` is required.
    #[serde(
        default,
        deserialize_with = "crate::spec::script",
        skip_serializing_if = "Option::is_none"
    )]
    pub script: Option<String>,
    /// The queue into which batches are put. Either `script` or `queue` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Name>,
    /// When messages of a topic are due: on a day or at an instant.
    #[serde(default)]
    pub granularity: Granularity,
    /// The IANA time zone of the days. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// For `granularity: day`: the time of day from which messages are sent, `HH:MM`. Default: 00:00.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_at: Option<String>,
    /// The maximum number of messages in a batch, 1 to 1,000. Default: 1,000.
    #[serde(default = "batch_default", deserialize_with = "batch")]
    #[schemars(range(min = 1, max = BATCH_MAX))]
    pub batch: u32,
    /// The maximum number of batches at the same time in the cluster, 1 to 1,000. Default: one on each node, for a
    /// queue 16.
    #[serde(default, deserialize_with = "concurrency")]
    #[schemars(range(min = 1, max = 1_000))]
    pub concurrency: Option<u32>,
    /// The rate limit. Default: no limit.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// The retry policy for failed messages. Default: no retries.
    #[serde(default)]
    pub retry: Option<RetrySpec>,
    /// How long a drained day is kept, at most 3660d. Default: 7d.
    #[serde(default = "retention_default")]
    pub retention: Span,
    /// The timeout of a batch, 1ms to 1d. Default: 5m.
    #[serde(default = "timeout_default")]
    pub timeout: Span,
    /// The maximum size of a payload, up to 128KiB. Default: 8KiB.
    #[serde(default = "payload_default")]
    pub max_payload: ByteSize,
    /// The maximum memory of the script. Default: 128MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// The names of SQL connections that the script may use, at most 100. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sql: Vec<Name>,
    /// The names of secrets that the script may read, at most 100. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Name>,
    /// Hosts to which the script may send HTTP requests, at most 100: `api.example.com` or `*.example.com`, with or without
    /// `:port`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<String>,
    /// Whether messages are sent. Messages are accepted in any case. Default: true.
    #[serde(default = "enabled_default")]
    pub enabled: bool,
}

fn batch_default() -> u32 {
    BATCH_MAX
}

fn batch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    crate::spec::whole(deserializer, 1..=BATCH_MAX)
}

fn concurrency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    crate::spec::optional(deserializer, 1..=CONCURRENCY_MAX)
}

fn retention_default() -> Span {
    RETENTION_DEFAULT
}

fn timeout_default() -> Span {
    TIMEOUT_DEFAULT
}

fn payload_default() -> ByteSize {
    ByteSize(PAYLOAD_BYTES_DEFAULT)
}

fn enabled_default() -> bool {
    true
}

/// A topic, checked and complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Topic {
    /// As it was written, with zone and `send_at` written out.
    pub spec: TopicSpec,
    pub zone: Tz,
    /// When retries are due; `None`: there are none.
    pub retry: Option<Policy>,
    /// The script's name and version.
    pub script: Option<(Name, Option<u32>)>,
    send_at: NaiveTime,
}

/// Checks that the numbers and durations of a topic lie within their bounds.
fn check_bounds(spec: &TopicSpec, faults: &mut Faults) {
    let mut between = |pointer: &str, value: u64, most: u64| {
        if !(1..=most).contains(&value) {
            faults.add(pointer, format!("must be from 1 to {most}"));
        }
    };
    between("/batch", spec.batch.into(), BATCH_MAX.into());
    between(
        "/concurrency",
        spec.concurrency.unwrap_or(1).into(),
        CONCURRENCY_MAX.into(),
    );
    between("/max_payload", spec.max_payload.0, PAYLOAD_BYTES_MAX);
    if let Some(rate) = &spec.rate {
        between("/rate/count", rate.count.into(), RATE_COUNT_MAX.into());
        if rate.per.millis() == 0 || rate.per > TIMEOUT_MAX {
            faults.add("/rate/per", "must be from 1ms to 1d");
        }
    }
    if spec.timeout.millis() == 0 || spec.timeout > TIMEOUT_MAX {
        faults.add("/timeout", "must be from 1ms to 1d");
    }
    if spec.retention > RETENTION_MAX {
        faults.add("/retention", format!("must be at most {RETENTION_MAX}"));
    }
    for (pointer, count) in [
        ("/sql", spec.sql.len()),
        ("/secrets", spec.secrets.len()),
        ("/allow_hosts", spec.allow_hosts.len()),
    ] {
        if count > GRANTS_MAX {
            faults.add(pointer, format!("must have at most {GRANTS_MAX} entries"));
        }
        if count > 0 && spec.queue.is_some() {
            faults.add(pointer, "only a topic with a `script` can have this field");
        }
    }
}

/// What a topic that is put must not have. Stored ones may: they are older than these rules.
pub fn check_new(spec: &TopicSpec) -> Result<(), Faults> {
    let mut faults = Faults::default();
    if spec.memory.is_some_and(|memory| !MEMORY.contains(&memory.0)) {
        faults.add("/memory", "`memory` must be from 64KiB to 1GiB");
    } else if spec.memory.is_some() && spec.queue.is_some() {
        faults.add("/memory", "only a topic with a `script` can have this field");
    }
    faults.or(())
}

impl Topic {
    pub fn compile(mut spec: TopicSpec) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        let mut script = None;
        match (&spec.script, &spec.queue) {
            (Some(text), None) => match script_reference(text) {
                Ok(reference) => script = Some(reference),
                Err(detail) => faults.add("/script", detail.to_string()),
            },
            (None, Some(_)) => {}
            (None, None) => faults.add("", "a topic needs a `script` or a `queue`"),
            (Some(_), Some(_)) => faults.add("/queue", "a topic must have either a `script` or a `queue`, not both"),
        }
        let zone = match parse_zone(spec.timezone.get_or_insert_with(|| "UTC".into())) {
            Ok(zone) => zone,
            Err(detail) => {
                faults.add("/timezone", detail);
                Tz::UTC
            }
        };
        let mut send_at = NaiveTime::MIN;
        match (spec.granularity, &spec.send_at) {
            (Granularity::Instant, Some(_)) => {
                faults.add("/send_at", "only a topic with `granularity: day` can have `send_at`");
            }
            (Granularity::Instant, None) => {}
            (Granularity::Day, text) => match parse_time_of_day(text.as_deref().unwrap_or("00:00")) {
                Ok(time) => {
                    send_at = time;
                    let whole = chrono::Timelike::second(&time) == 0;
                    spec.send_at = Some(time.format(if whole { "%H:%M" } else { "%H:%M:%S" }).to_string());
                }
                Err(detail) => faults.add("/send_at", detail),
            },
        }
        check_bounds(&spec, &mut faults);
        let retry = match spec.retry.as_ref().map(Policy::compile) {
            None => None,
            Some(Ok(policy)) => Some(policy),
            Some(Err(fault)) => {
                faults.push(fault.below("/retry"));
                None
            }
        };
        faults.or(Self {
            spec,
            zone,
            retry,
            script,
            send_at,
        })
    }

    /// The day that it is in the topic's zone.
    pub fn today(&self, now: Time) -> NaiveDate {
        wall_clock(self.zone, now).date()
    }

    /// From when on a day's messages are sent.
    pub fn sent_from(&self, day: NaiveDate) -> Time {
        resolve(self.zone, day.and_time(self.send_at))
    }

    /// When a day is over.
    pub fn end_of(&self, day: NaiveDate) -> Time {
        let next = day.succ_opt().unwrap_or(day);
        resolve(self.zone, next.and_time(NaiveTime::MIN))
    }

    /// How many batches there may be at once; `None`: one on each node.
    pub fn concurrency(&self) -> Option<u32> {
        match (self.spec.concurrency, &self.spec.queue) {
            (Some(concurrency), _) => Some(concurrency),
            (None, Some(_)) => Some(QUEUE_CONCURRENCY_DEFAULT),
            (None, None) => None,
        }
    }
}

/// Reads a day, `2026-11-21`.
pub fn parse_day(text: &str) -> Result<NaiveDate, Fault> {
    let wrong = || {
        let shown: String = text.chars().take(40).collect();
        Fault::at(
            "",
            format!("`{shown}` is not a valid day; write for example 2026-11-21"),
        )
    };
    // Chrono takes signs, and fewer digits.
    if text.len() != 10 || !text.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(wrong());
    }
    NaiveDate::parse_from_str(text, "%Y-%m-%d").map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn compile(spec: Value) -> Result<Topic, Vec<String>> {
        let spec: TopicSpec = serde_json::from_value(spec).unwrap();
        Topic::compile(spec).map_err(|faults| faults.0.into_iter().map(|fault| fault.pointer).collect())
    }

    #[test]
    fn a_group_tells_its_topic() {
        assert_eq!(topic_of(&group_name(7)), Some(7));
        for other in ["_topic-x", "_topic--7", "_topic-", "_topic-99999999999"] {
            assert_eq!(topic_of(other), None, "{other}");
        }
        assert_eq!(topic_of("other"), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |spec: Value, expect: &[&str]| assert_eq!(compile(spec.clone()).unwrap_err(), expect, "{spec}");
        check(json!({}), &[""]);
        check(json!({"script": "a", "queue": "b"}), &["/queue"]);
        check(json!({"script": "a@b"}), &["/script"]);
        check(
            json!({"script": "a", "batch": 1001, "concurrency": 0}),
            &["/batch", "/concurrency"],
        );
        check(json!({"script": "a", "timezone": "Moon"}), &["/timezone"]);
        check(json!({"script": "a", "send_at": "25:00"}), &["/send_at"]);
        check(
            json!({"script": "a", "granularity": "instant", "send_at": "05:00"}),
            &["/send_at"],
        );
        check(json!({"script": "a", "retry": {"strategy": "fixed"}}), &["/retry"]);
        check(json!({"queue": "a", "sql": ["w"]}), &["/sql"]);
        check(
            json!({"script": "a", "rate": {"count": 0, "per": "0ms"}}),
            &["/rate/count", "/rate/per"],
        );
    }

    #[test]
    fn days_begin_in_the_zone() {
        let topic = compile(json!({"script": "a", "timezone": "Asia/Shanghai", "send_at": "09:30"})).unwrap();
        assert_eq!(topic.spec.send_at.as_deref(), Some("09:30"));
        let now: Time = "2026-11-20T16:30:00Z".parse().unwrap();
        let today = topic.today(now);
        assert_eq!(today.to_string(), "2026-11-21");
        assert_eq!(topic.sent_from(today), "2026-11-21T01:30:00Z".parse::<Time>().unwrap());
        assert_eq!(topic.end_of(today), "2026-11-21T16:00:00Z".parse::<Time>().unwrap());
        let plain = compile(json!({"script": "a"})).unwrap();
        assert_eq!(
            (plain.spec.send_at.as_deref(), plain.concurrency()),
            (Some("00:00"), None)
        );
        assert_eq!(compile(json!({"queue": "a"})).unwrap().concurrency(), Some(16));
    }

    #[test]
    fn a_day_has_ten_characters() {
        assert!(parse_day("2026-11-21").is_ok());
        for text in ["2026-11-31", "21.11.2026", "2026-1-1", "+026-11-21", "today", ""] {
            assert!(parse_day(text).is_err(), "{text}");
        }
    }
}
