//! Scheduled messages: where they are kept, how their ids are made, and how a line becomes a message.
//!
//! A message is addressed by (day, bucket, id), and its id contains the first two, so that a message is found by its id
//! without a search.

use std::borrow::Cow;

use chrono::{NaiveDate, TimeDelta};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::fault::pointer_token;
use crate::spec::whole_of;
use crate::topic::{Granularity, Topic, parse_day};
use crate::{Fault, Faults, Time};

/// How many buckets a day has.
pub const BUCKETS: i64 = 10_000;

/// How far ahead messages are taken, in days: each day that has messages has partitions.
pub const DAYS_AHEAD_MAX: i64 = 3_660;

/// The longest key of a message or of a run, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// How deep a payload may be nested: readers of JSON usually stop at 128, and it is sent within other JSON.
const PAYLOAD_DEPTH_MAX: usize = 100;

/// How many bytes a line may have besides its payload.
pub const LINE_EXTRA_BYTES_MAX: usize = 4 * 1024;

/// The size of a message in the params of a queue's batch, without its payload, in bytes: `{"id":"36 characters",
/// "sender":19,"receiver":19,"due":"27","payload":},`.
const QUEUED_FRAME_BYTES: usize = 153;

/// How many bytes a message takes in the params of the run that brings it to a queue. The payload is written anew
/// there, and may become several times as long: `1e15` is written out.
pub fn queued_bytes(payload: &str) -> usize {
    let written = serde_json::from_str::<serde_json::Value>(payload).map_or(0, |value| value.to_string().len());
    QUEUED_FRAME_BYTES + written.max(payload.len())
}

/// The bucket of a sender.
pub fn bucket_of(sender: i64) -> i16 {
    (sender % BUCKETS) as i16
}

/// Makes an id: a UUIDv7 of `at` whose random bits hold the message's day and bucket, and 40 bits of `sequence`, which
/// keep the order of ids of one bucket and millisecond.
pub fn message_id(at: Time, sequence: u64, day: NaiveDate, bucket: i16) -> Uuid {
    let millis = at.timestamp_millis().max(0) as u128 & ((1 << 48) - 1);
    let high = u128::from(sequence >> 28 & 0xfff);
    let low = u128::from(sequence & 0xfff_ffff);
    let day = (days_of(day) as u128) & 0xf_ffff;
    let bucket = bucket as u128 & 0x3fff;
    Uuid::from_u128(millis << 80 | 7 << 76 | high << 64 | 2 << 62 | bucket << 48 | day << 28 | low)
}

/// The day and the bucket in an id; `None` for an id that is no message's.
pub fn address_of(id: Uuid) -> Option<(NaiveDate, i16)> {
    let bits = id.as_u128();
    if id.get_version_num() != 7 || bits >> 62 & 3 != 2 {
        return None;
    }
    let bucket = bucket_in(id);
    let day = epoch().checked_add_signed(TimeDelta::days((bits >> 28 & 0xf_ffff) as i64))?;
    (i64::from(bucket) < BUCKETS).then_some((day, bucket))
}

/// The bucket in a message's id.
pub fn bucket_in(id: Uuid) -> i16 {
    (id.as_u128() >> 48 & 0x3fff) as i16
}

fn epoch() -> NaiveDate {
    NaiveDate::default()
}

fn days_of(day: NaiveDate) -> i64 {
    day.signed_duration_since(epoch()).num_days().max(0)
}

/// A message as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming<'a> {
    /// Whose it is: 0 to 2^63-1.
    pub sender: i64,
    /// The receiver: 0 to 2^63-1.
    pub receiver: i64,
    /// The day that it is kept with.
    pub day: NaiveDate,
    /// For topics of instants: when it is due; it may be past.
    pub due_at: Option<Time>,
    /// The payload as the JSON text that was sent.
    pub payload: &'a str,
    /// The key, which is unique within its day.
    pub key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    sender: Option<&'a RawValue>,
    #[serde(borrow)]
    receiver: Option<&'a RawValue>,
    #[serde(borrow)]
    due: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
}

/// Where the fields of a message are.
const DUE: &str = "/due";
const PAYLOAD: &str = "/payload";
const KEY: &str = "/key";

/// Reads a message from a JSON text. An error of a field has a text and the pointer of the field; all fields are checked.
/// The text names the field too, because the answer for many messages contains only the texts.
pub fn read<'a>(topic: &Topic, text: &'a str, now: Time) -> Result<Incoming<'a>, Faults> {
    // A derived reader would also accept an array of the fields' values.
    if !text.trim_start().starts_with('{') {
        return Err(Fault::at("", "a message must be a JSON object").into());
    }
    let line: Line<'a> = serde_json::from_str(text).map_err(|error| unfit(&error))?;
    let payload = line.payload.map_or("null", RawValue::get);
    let mut faults = Faults::default();
    let sender = user("sender", line.sender).map_err(|fault| faults.push(fault));
    let receiver = user("receiver", line.receiver).map_err(|fault| faults.push(fault));
    let due = due_of(topic, line.due, now).map_err(|fault| faults.push(fault));
    let checked = check_payload(topic, payload).map_err(|fault| faults.push(fault));
    let key = key_of(line.key).map_err(|fault| faults.push(fault));
    match (sender, receiver, due, checked, key) {
        (Ok(sender), Ok(receiver), Ok((day, due_at)), Ok(()), Ok(key)) => Ok(Incoming {
            sender,
            receiver,
            day,
            due_at,
            payload,
            key,
        }),
        _ => Err(faults),
    }
}

fn due_of(topic: &Topic, value: Option<&RawValue>, now: Time) -> Result<(NaiveDate, Option<Time>), Fault> {
    let text = value.ok_or_else(|| Fault::at(DUE, "`due` is missing"))?.get();
    let due: String = serde_json::from_str(text).map_err(|_| Fault::at(DUE, "`due` must be a string"))?;
    match topic.spec.granularity {
        Granularity::Day => Ok((due_day(topic, &due, now)?, None)),
        Granularity::Instant => {
            let (day, at) = due_instant(topic, &due, now)?;
            Ok((day, Some(at)))
        }
    }
}

fn check_payload(topic: &Topic, payload: &str) -> Result<(), Fault> {
    let bytes_max = topic.spec.max_payload.0;
    if payload.len() as u64 > bytes_max {
        let detail = format!("the payload has {} bytes; the maximum is {bytes_max}", payload.len());
        return Err(Fault::at(PAYLOAD, detail));
    }
    if let Err(error) = Readable::check(payload) {
        let detail = format!("the payload is not valid JSON: {}", words_of(&error));
        return Err(Fault::at(PAYLOAD, shortened(&detail)));
    }
    Ok(())
}

fn key_of(value: Option<&RawValue>) -> Result<Option<String>, Fault> {
    let text = match value.map(RawValue::get) {
        None | Some("null") => return Ok(None),
        Some(text) => text,
    };
    let key: String = serde_json::from_str(text).map_err(|_| Fault::at(KEY, "`key` must be a string"))?;
    check_key(&key).map_err(|detail| Fault::at(KEY, detail))?;
    Ok(Some(key))
}

/// Judges the key of a message or of a run.
pub fn check_key(key: &str) -> Result<(), String> {
    check_key_within(key, KEY_BYTES_MAX)
}

/// The bounds of a key that is the beginning of others, which have at most [`KEY_BYTES_MAX`] bytes.
pub fn check_key_within(key: &str, bytes_max: usize) -> Result<(), String> {
    match key.is_empty() || key.len() > bytes_max || key.contains('\0') {
        true => Err(format!("`key` must have 1 to {bytes_max} bytes and no zero byte")),
        false => Ok(()),
    }
}

/// Reads a JSON text to its end. Without this check, an unreadable value (numbers out of range, lone surrogates, too
/// deep nesting) would be found only when it is sent, and would block its whole batch. A text that is refused in every
/// other body (a duplicate key, U+0000) would arrive changed. The number is how many levels deeper the value may be
/// nested.
#[derive(Clone, Copy)]
struct Readable(usize);

impl Readable {
    fn check(text: &str) -> Result<(), serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        Self(PAYLOAD_DEPTH_MAX).deserialize(&mut deserializer)?;
        deserializer.end()
    }

    fn deeper<E: Error>(self) -> Result<Self, E> {
        let left = self.0.checked_sub(1);
        left.map(Self)
            .ok_or_else(|| E::custom(format!("it is nested more than {PAYLOAD_DEPTH_MAX} levels deep")))
    }
}

impl<'de> DeserializeSeed<'de> for Readable {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        without_nul(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut keys: Vec<Cow<'de, str>> = Vec::new();
        while let Some((key, ())) = members.next_entry_seed(Key, inner)? {
            keys.push(key);
        }
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => Err(A::Error::custom(format!(
                "the key `{}` occurs twice in one object",
                pair[0]
            ))),
        }
    }
}

/// Reads the key of an object's member.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        without_nul(text).map(|()| Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        without_nul(text).map(|()| Cow::Owned(text.to_owned()))
    }
}

fn without_nul<E: Error>(text: &str) -> Result<(), E> {
    match text.contains('\0') {
        true => Err(E::custom("the character U+0000 is not allowed")),
        false => Ok(()),
    }
}

/// The text of a JSON error without its position, which is relative to the start of the parser: the payload, or the
/// line of a stream.
fn words_of(error: &serde_json::Error) -> String {
    let mut words = error.to_string();
    if let Some(end) = words.rfind(" at line ") {
        words.truncate(end);
    }
    words
}

/// The error of a line. An error of `serde_json` names the field only in its text. A line that is not JSON at all has
/// no pointer; the caller adds the number of the line.
fn unfit(error: &serde_json::Error) -> Fault {
    let detail = match error.is_data() {
        true => words_of(error),
        false => format!("{} at column {}", words_of(error), error.column()),
    };
    let named = ["unknown field `", "duplicate field `"]
        .iter()
        .find_map(|words| detail.strip_prefix(words)?.split_once('`'));
    let pointer = named.map_or(String::new(), |(field, _)| format!("/{}", pointer_token(field)));
    Fault::at(pointer, shortened(&detail))
}

fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

fn user(field: &str, value: Option<&RawValue>) -> Result<i64, Fault> {
    let wrong = |detail: String| Fault::at(format!("/{field}"), detail);
    let text = value.ok_or_else(|| wrong(format!("`{field}` is missing")))?.get();
    // A whole number may be written with a decimal point, as in all other bodies. The text is that of a JSON value.
    text.parse::<i64>()
        .ok()
        .or_else(|| whole_of(text.parse().ok()?))
        .filter(|id| *id >= 0 && !text.starts_with('-'))
        .ok_or_else(|| {
            wrong(format!(
                "`{field}` must be a whole number from 0 to 9223372036854775807, not {}",
                text.chars().take(40).collect::<String>()
            ))
        })
}

fn due_day(topic: &Topic, text: &str, now: Time) -> Result<NaiveDate, Fault> {
    let day = parse_day(text).map_err(|fault| Fault::at(DUE, format!("`due`: {}", fault.detail)))?;
    let today = topic.today(now);
    if day <= today {
        let detail = format!("`due` must be a day after today ({today} in {}), not {day}", topic.zone);
        return Err(Fault::at(DUE, detail));
    }
    not_too_far(day, today)?;
    Ok(day)
}

fn due_instant(topic: &Topic, text: &str, now: Time) -> Result<(NaiveDate, Time), Fault> {
    let at = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        let detail = format!("`due`: `{shown}` is not a valid RFC 3339 time; write for example 2026-11-21T08:00:00Z");
        Fault::at(DUE, detail)
    })?;
    // The first year that is written with four digits and no sign; further back nobody could read it.
    const EARLIEST: Time = match NaiveDate::from_ymd_opt(1, 1, 1) {
        Some(day) => day.and_time(chrono::NaiveTime::MIN).and_utc(),
        None => Time::UNIX_EPOCH,
    };
    let at = crate::clock::to_micros(at.to_utc()).max(EARLIEST);
    // A past instant is due now, and is stored with today.
    let day = topic.today(at.max(now));
    not_too_far(day, topic.today(now))?;
    Ok((day, at))
}

fn not_too_far(day: NaiveDate, today: NaiveDate) -> Result<(), Fault> {
    if day.signed_duration_since(today).num_days() > DAYS_AHEAD_MAX {
        let detail = format!("`due` must be at most {DAYS_AHEAD_MAX} days ahead, not {day}");
        return Err(Fault::at(DUE, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads a message that has one fault at most.
    fn read<'a>(topic: &Topic, text: &'a str, now: Time) -> Result<Incoming<'a>, Fault> {
        super::read(topic, text, now).map_err(|faults| {
            assert_eq!(faults.0.len(), 1, "{text}: {faults}");
            faults.0[0].clone()
        })
    }

    fn topic(spec: serde_json::Value) -> Topic {
        Topic::compile(serde_json::from_value(spec).unwrap()).unwrap()
    }

    fn now() -> Time {
        "2026-11-20T16:30:00Z".parse().unwrap()
    }

    #[test]
    fn buckets() {
        for (sender, bucket) in [(123, 123), (4_294_967_295, 7_295), (0, 0), (i64::MAX, 5_807)] {
            assert_eq!(bucket_of(sender), bucket);
        }
    }

    #[test]
    fn messages_are_weighed_as_queues_get_them() {
        let id = Uuid::max();
        let due = "2026-11-21T08:00:00.000000Z";
        let framed = json!({"id": id, "sender": i64::MAX, "receiver": i64::MAX, "due": due, "payload": [1e15, "a"]});
        assert_eq!(queued_bytes("[1e15,\"a\"]"), framed.to_string().len() + 1);
        assert_eq!(queued_bytes("{\"a\":  1}"), 153 + 9);
    }

    #[test]
    fn an_id_tells_its_address_and_keeps_the_order() {
        let day: NaiveDate = "2026-11-21".parse().unwrap();
        let id = message_id(now(), 0xab_cdef_0123, day, 9_999);
        assert_eq!(address_of(id), Some((day, 9_999)));
        assert_eq!(crate::id::uuid_v7_time(id), Some(now()));
        let next = message_id(now(), 0xab_cdef_0124, day, 9_999);
        let carried = message_id(now(), 0xab_d000_0000, day, 9_999);
        assert!(id < next && next < carried);
        assert_eq!(address_of(Uuid::nil()), None);
    }

    #[test]
    fn days_are_checked_in_the_zone() {
        let shanghai = topic(json!({"script": "a", "timezone": "Asia/Shanghai"}));
        let line = |due: &str| json!({"sender": 1, "receiver": 2, "due": due, "payload": {}}).to_string();
        let check = |due: &str, expect: Result<&str, &str>| {
            let text = line(due);
            match (read(&shanghai, &text, now()), expect) {
                (Ok(read), Ok(day)) => assert_eq!(read.day.to_string(), day),
                (Err(fault), Err(part)) => {
                    assert!(fault.detail.contains(part), "{fault}");
                    assert_eq!(fault.pointer, "/due");
                }
                (got, _) => panic!("{due}: {got:?}"),
            }
        };
        check("2026-11-22", Ok("2026-11-22"));
        // In Shanghai it is the 21st already.
        check("2026-11-21", Err("a day after today"));
        check("2026-11-19", Err("a day after today"));
        check("2036-12-31", Err("3660 days"));
        check("2026-11-22T00:00:00Z", Err("is not a valid day"));
        check("2026-13-01", Err("is not a valid day"));
        let instants = topic(json!({"script": "a", "granularity": "instant"}));
        let past = line("2013-01-01T00:00:00+01:00");
        let read_past = read(&instants, &past, now()).unwrap();
        assert_eq!(read_past.day.to_string(), "2026-11-20", "what is past is due now");
        for (long_ago, kept) in [
            ("1066-10-14T09:00:00Z", "1066-10-14T09:00:00Z"),
            ("0000-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z"),
        ] {
            let text = line(long_ago);
            let read = read(&instants, &text, now()).unwrap();
            assert_eq!(
                (read.day.to_string().as_str(), read.due_at),
                ("2026-11-20", kept.parse().ok())
            );
        }
        for never in ["2999-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
            let fault = read(&instants, &line(never), now()).unwrap_err();
            assert!(fault.detail.contains("days ahead"), "{fault}");
        }
        assert!(read(&instants, &line("2026-11-22"), now()).is_err());
    }

    #[test]
    fn payloads_that_nobody_can_read_are_not_taken() {
        let topic = topic(json!({"script": "a"}));
        let check = |payload: &str, good: bool| {
            let line = format!("{{\"sender\":1,\"receiver\":2,\"due\":\"2026-11-22\",\"payload\":{payload}}}");
            let read = read(&topic, &line, now());
            assert_eq!(read.is_ok(), good, "{payload}: {read:?}");
        };
        for good in [
            "null",
            "\"\\ud83d\\ude00\"",
            "[1,-1,1.5e300,18446744073709551615,true,{\"a\":[{}]}]",
            "[{\"a\":1,\"b\":1},{\"a\":{\"a\":1}}]",
            "\"日\"",
        ] {
            check(good, true);
        }
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&nested(PAYLOAD_DEPTH_MAX), true);
        let deep = nested(PAYLOAD_DEPTH_MAX + 1);
        for bad in [
            "\"\\ud800\"",
            "{\"\\udc00\":1}",
            "1e999",
            "[\"\\u0000\"]",
            "{\"\\u0000\":1}",
            "{\"a\":1,\"b\":2,\"a\":1}",
            "[{\"a\":1,\"\\u0061\":1}]",
            &deep,
        ] {
            check(bad, false);
        }
    }

    #[test]
    fn lines_that_are_wrong_say_why() {
        let topic = topic(json!({"script": "a", "granularity": "instant", "max_payload": 10}));
        let check = |text: &str, pointer: &str, part: &str| {
            let fault = read(&topic, text, now()).unwrap_err();
            assert!(fault.detail.contains(part), "{text}: {fault}");
            assert_eq!(fault.pointer, pointer, "{text}");
        };
        let due = "\"due\":\"2026-11-22T00:00:00Z\"";
        check("{", "", "EOF while parsing an object at column 1");
        check("[]", "", "object");
        check(&format!("{{\"receiver\":1,{due}}}"), "/sender", "`sender` is missing");
        let user = |sender: &str| format!("{{\"sender\":{sender},\"receiver\":1,{due}}}");
        check(&user("-1"), "/sender", "not -1");
        check(&user("9223372036854775808"), "/sender", "9223372036854775807");
        check(&user("1.5"), "/sender", "1.5");
        check(&user("\"1\""), "/sender", "whole number");
        check("{\"sender\":1,\"receiver\":1}", "/due", "`due` is missing");
        check("{\"sender\":1,\"receiver\":1,\"due\":5}", "/due", "string");
        let more = |more: &str| format!("{{\"sender\":1,\"receiver\":1,{due},{more}}}");
        check(&more("\"payload\":\"123456789\""), "/payload", "11 bytes");
        check(&more("\"payload\":1e999"), "/payload", "not valid JSON");
        check(&more("\"key\":\"\""), "/key", "1 to 512");
        check(&more("\"key\":1"), "/key", "string");
        check(&more("\"sender\":1"), "/sender", "duplicate");
        check(&more("\"send/r\":1"), "/send~1r", "unknown field");
        let text = format!("{{\"sender\":1,\"receiver\":2,{due}}}");
        assert_eq!(read(&topic, &text, now()).unwrap().payload, "null");
    }

    #[test]
    fn each_field_that_is_wrong_is_named() {
        let topic = topic(json!({"script": "a", "max_payload": 10}));
        let pointers = |text: &str| -> Vec<String> {
            let faults = super::read(&topic, text, now()).unwrap_err();
            faults.0.into_iter().map(|fault| fault.pointer).collect()
        };
        assert_eq!(
            pointers(r#"{"sender":1,"receiver":"x","due":"z"}"#),
            ["/receiver", "/due"]
        );
        assert_eq!(pointers("{}"), ["/sender", "/receiver", "/due"]);
        assert_eq!(
            pointers(r#"{"sender":-1,"receiver":1.5,"due":1,"payload":"123456789","key":""}"#),
            ["/sender", "/receiver", "/due", "/payload", "/key"]
        );
    }

    #[test]
    fn whole_numbers_may_have_a_decimal_point() {
        let topic = topic(json!({"script": "a"}));
        let check = |number: &str, expected: Option<i64>| {
            let text = format!(r#"{{"sender":{number},"receiver":2.0,"due":"2026-11-22"}}"#);
            let read = read(&topic, &text, now()).map(|message| (message.sender, message.receiver));
            assert_eq!(read.ok(), expected.map(|sender| (sender, 2)), "{number}");
        };
        check("0", Some(0));
        check("1.0", Some(1));
        check("1e3", Some(1_000));
        check("9007199254740992.0", Some(9_007_199_254_740_992));
        check("9223372036854775807", Some(i64::MAX));
        // A number with a decimal point is exact only up to here.
        check("9007199254740994.0", None);
        for wrong in [
            "1.5",
            "-1.0",
            "-0.0",
            "1e400",
            "9223372036854775808",
            "\"1.0\"",
            "true",
            "null",
            "[1]",
        ] {
            check(wrong, None);
        }
    }
}
