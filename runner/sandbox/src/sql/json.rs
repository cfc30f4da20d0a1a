//! Rows as JSON.
//!
//! | Postgres | JSON |
//! |---|---|
//! | bool, int2, int4, int8, oid | boolean, number |
//! | float4, float8 | number; `"NaN"`, `"Infinity"`, `"-Infinity"` |
//! | numeric | number if it has at most 15 significant digits (which every JSON reader keeps), otherwise string |
//! | text and similar types, enums, xml | string |
//! | json, jsonb | unchanged |
//! | uuid, inet, cidr | string |
//! | date, time, timestamp | `2013-07-01`, `12:00:00.000000`, `2013-07-01T12:00:00.000000`; `infinity`, `-infinity` |
//! | timestamptz | `2013-07-01T12:00:00.000000Z` |
//! | interval | ISO 8601: `P1Y2M3DT4H5M6.5S` |
//! | bytea | string of hexadecimal digits after `\x` |
//! | arrays, domains | arrays; as their base type |
//!
//! Anything else is an error that asks for a cast to text.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Kind, Type};
use uuid::Uuid;

/// Microseconds in a day.
const DAY_MICROS: i64 = 86_400_000_000;
/// The deepest that arrays may nest; Postgres' own limit.
const MAX_DIMENSIONS: usize = 6;
/// As many digits as a double always keeps.
const EXACT_DIGITS: usize = 15;

/// A value as it was received.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Why a row has no JSON.
pub(super) enum NotWritten {
    /// All rows together would be too long.
    TooLong,
    /// For the author of the statement: a column's type is unknown.
    Unknown(String),
}

/// The JSON of rows: an array of objects, never longer than its bound. A value that does not fit is not written, and
/// neither is what comes after it.
pub(super) struct Out {
    text: String,
    bytes_max: usize,
    is_full: bool,
}

impl Out {
    /// For so many bytes, with the bracket at its end.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            text: String::from("["),
            bytes_max,
            is_full: false,
        }
    }

    /// Writes a row as an object.
    pub fn row(&mut self, row: &Row) -> Result<(), NotWritten> {
        let begin = if self.text.len() > 1 { ",{" } else { "{" };
        self.push(begin).ok_or(NotWritten::TooLong)?;
        for (index, column) in row.columns().iter().enumerate() {
            let value: Option<Raw<'_>> = row
                .try_get(index)
                .map_err(|error| NotWritten::Unknown(error.to_string()))?;
            let written = self.field(index, column.name(), column.type_(), value.map(|Raw(raw)| raw));
            match written {
                Some(()) => {}
                None if self.is_full => return Err(NotWritten::TooLong),
                None => {
                    return Err(NotWritten::Unknown(format!(
                        "column `{}` has the type {}, which is not supported; cast it to text",
                        column.name(),
                        column.type_().name()
                    )));
                }
            }
        }
        self.push("}").ok_or(NotWritten::TooLong)
    }

    /// Writes a value with its name; `None` is NULL.
    fn field(&mut self, index: usize, name: &str, ty: &Type, value: Option<&[u8]>) -> Option<()> {
        if index > 0 {
            self.push(",")?;
        }
        string(self, name)?;
        self.push(":")?;
        match value {
            Some(raw) => write_value(self, ty, raw),
            None => self.push("null"),
        }
    }

    /// The text of the whole array.
    pub fn complete(mut self) -> String {
        self.text.push(']');
        self.text
    }

    /// Says whether so many bytes more are allowed, before anything is made of them. The last bracket has its place.
    fn has_room(&mut self, bytes: usize) -> Option<()> {
        let left = self.bytes_max.saturating_sub(self.text.len() + 1);
        self.is_full |= bytes > left;
        (!self.is_full).then_some(())
    }

    fn push(&mut self, text: &str) -> Option<()> {
        self.has_room(text.len())?;
        self.text.push_str(text);
        Some(())
    }
}

/// For what writes in small parts: each of them is a text.
impl io::Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.push(text).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a value; `None` if its type is unknown here, or it is not valid for its type, or there is no room for it.
fn write_value(out: &mut Out, ty: &Type, raw: &[u8]) -> Option<()> {
    match ty.kind() {
        Kind::Array(element) => return array(out, element, raw),
        Kind::Domain(inner) => return write_value(out, inner, raw),
        Kind::Enum(_) => return string(out, std::str::from_utf8(raw).ok()?),
        Kind::Simple => {}
        _ => return None,
    }
    match *ty {
        Type::BOOL => out.push(if *raw.first()? == 0 { "false" } else { "true" })?,
        Type::INT2 => write!(out, "{}", i16::from_be_bytes(raw.try_into().ok()?)).ok()?,
        Type::INT4 => write!(out, "{}", int4(raw)?).ok()?,
        Type::INT8 => write!(out, "{}", int8(raw)?).ok()?,
        Type::OID => write!(out, "{}", u32::from_be_bytes(raw.try_into().ok()?)).ok()?,
        Type::FLOAT4 => {
            let value = f32::from_be_bytes(raw.try_into().ok()?);
            float(out, value.into(), &value.to_string())?;
        }
        Type::FLOAT8 => {
            let value = f64::from_be_bytes(raw.try_into().ok()?);
            float(out, value, &format!("{value:?}"))?;
        }
        Type::NUMERIC => numeric(out, raw)?,
        Type::JSON => out.push(std::str::from_utf8(raw).ok()?)?,
        Type::JSONB => out.push(std::str::from_utf8(raw.strip_prefix(&[1])?).ok()?)?,
        Type::UUID => string(out, &Uuid::from_slice(raw).ok()?.to_string())?,
        Type::BYTEA => {
            // Two digits for each byte.
            out.has_room(raw.len().saturating_mul(2))?;
            out.push("\"\\\\x")?;
            for byte in raw {
                write!(out, "{byte:02x}").ok()?;
            }
            out.push("\"")?;
        }
        Type::DATE | Type::TIME | Type::TIMETZ | Type::TIMESTAMP | Type::TIMESTAMPTZ => {
            string(out, &date_or_time(ty, raw)?)?;
        }
        Type::INTERVAL => interval(out, raw)?,
        Type::INET | Type::CIDR => network(out, raw)?,
        Type::VOID => out.push("null")?,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::XML | Type::CHAR => {
            // What is not UTF-8 becomes longer, never shorter.
            out.has_room(raw.len())?;
            string(out, &String::from_utf8_lossy(raw))?;
        }
        _ if matches!(ty.name(), "citext" | "ltree" | "lquery" | "ltxtquery") => {
            // ltree puts a version before its text.
            let text = if ty.name() == "citext" {
                raw
            } else {
                raw.strip_prefix(&[1]).unwrap_or(raw)
            };
            string(out, std::str::from_utf8(text).ok()?)?;
        }
        _ => return None,
    }
    Some(())
}

/// A date or a time of any type, in the form of RFC 3339 where that has one.
fn date_or_time(ty: &Type, raw: &[u8]) -> Option<String> {
    Some(match *ty {
        Type::DATE => match int4(raw)? {
            i32::MAX => "infinity".to_owned(),
            i32::MIN => "-infinity".to_owned(),
            days => moment(i64::from(days).checked_mul(DAY_MICROS)?)?
                .format("%Y-%m-%d")
                .to_string(),
        },
        Type::TIME => time_of_day(int8(raw)?),
        Type::TIMETZ => {
            let (time, west) = raw.split_at_checked(8)?;
            let east = -int4(west)?;
            let sign = if east < 0 { '-' } else { '+' };
            let (hours, minutes) = (east.abs() / 3_600, east.abs() / 60 % 60);
            format!("{}{sign}{hours:02}:{minutes:02}", time_of_day(int8(time)?))
        }
        _ => match int8(raw)? {
            i64::MAX => "infinity".to_owned(),
            i64::MIN => "-infinity".to_owned(),
            micros => {
                let zone = if *ty == Type::TIMESTAMPTZ { "Z" } else { "" };
                format!("{}{zone}", moment(micros)?.format("%Y-%m-%dT%H:%M:%S%.6f"))
            }
        },
    })
}

fn int4(raw: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(raw.try_into().ok()?))
}

fn int8(raw: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(raw.try_into().ok()?))
}

/// Writes a text. Each of its bytes takes one byte or more, beside the quotes.
fn string(out: &mut Out, text: &str) -> Option<()> {
    out.has_room(text.len().saturating_add(2))?;
    serde_json::to_writer(out, text).ok()
}

fn float(out: &mut Out, value: f64, text: &str) -> Option<()> {
    match value {
        value if value.is_nan() => out.push("\"NaN\""),
        f64::INFINITY => out.push("\"Infinity\""),
        f64::NEG_INFINITY => out.push("\"-Infinity\""),
        _ => out.push(text),
    }
}

/// Microseconds since 2000-01-01 as a date and time.
fn moment(micros: i64) -> Option<chrono::NaiveDateTime> {
    let start = chrono::NaiveDate::from_ymd_opt(2000, 1, 1)?.and_hms_opt(0, 0, 0)?;
    start.checked_add_signed(chrono::TimeDelta::microseconds(micros))
}

fn time_of_day(micros: i64) -> String {
    let seconds = micros / 1_000_000;
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60,
        micros % 1_000_000
    )
}

/// Base-10,000 digits with a weight, a sign and the number of decimals to show.
fn numeric(out: &mut Out, raw: &[u8]) -> Option<()> {
    let field = |index: usize| -> Option<[u8; 2]> { raw.get(index * 2..index * 2 + 2)?.try_into().ok() };
    let count = usize::try_from(i16::from_be_bytes(field(0)?)).ok()?;
    let weight = i32::from(i16::from_be_bytes(field(1)?));
    let sign = u16::from_be_bytes(field(2)?);
    let decimals = usize::from(u16::from_be_bytes(field(3)?));
    match sign {
        0xC000 => out.push("\"NaN\""),
        0xD000 => out.push("\"Infinity\""),
        0xF000 => out.push("\"-Infinity\""),
        _ => {
            let digit = |power: i32| -> Option<u16> {
                match usize::try_from(weight - power) {
                    Ok(index) if index < count => Some(u16::from_be_bytes(field(4 + index)?)),
                    _ => Some(0),
                }
            };
            let mut text = String::new();
            if sign == 0x4000 {
                text.push('-');
            }
            if weight < 0 {
                text.push('0');
            }
            for power in (0..=weight).rev() {
                if power == weight {
                    write!(text, "{}", digit(power)?).ok()?;
                } else {
                    write!(text, "{:04}", digit(power)?).ok()?;
                }
            }
            if decimals > 0 {
                text.push('.');
                let mut fraction = String::new();
                let mut power = -1;
                while fraction.len() < decimals {
                    write!(fraction, "{:04}", digit(power)?).ok()?;
                    power -= 1;
                }
                text.push_str(&fraction[..decimals]);
            }
            let plain: String = text.chars().filter(char::is_ascii_digit).collect();
            let significant = plain.trim_start_matches('0').trim_end_matches('0').len();
            if significant <= EXACT_DIGITS && plain.len() <= 300 {
                out.push(&text)
            } else {
                string(out, &text)
            }
        }
    }
}

fn interval(out: &mut Out, raw: &[u8]) -> Option<()> {
    let (micros, rest) = raw.split_at_checked(8)?;
    let (days, months) = rest.split_at_checked(4)?;
    let (micros, days, months) = (int8(micros)?, int4(days)?, int4(months)?);
    let mut text = String::from("P");
    let mut part = |value: i64, unit: char| {
        if value != 0 {
            let _ = write!(text, "{value}{unit}");
        }
    };
    part((months / 12).into(), 'Y');
    part((months % 12).into(), 'M');
    part(days.into(), 'D');
    if micros != 0 {
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        text.push('T');
        let mut part = |value: i64, unit: char| {
            if value != 0 {
                let _ = write!(text, "{value}{unit}");
            }
        };
        part(seconds / 3_600, 'H');
        part(seconds / 60 % 60, 'M');
        if fraction == 0 {
            part(seconds % 60, 'S');
        } else {
            let sign = if micros < 0 { "-" } else { "" };
            let decimals = format!("{:06}", fraction.abs());
            let _ = write!(
                text,
                "{sign}{}.{}S",
                (seconds % 60).abs(),
                decimals.trim_end_matches('0')
            );
        }
    }
    if text == "P" {
        text.push_str("T0S");
    }
    string(out, &text)
}

fn network(out: &mut Out, raw: &[u8]) -> Option<()> {
    let [family, bits, cidr, length] = *raw.first_chunk::<4>()?;
    let address = raw.get(4..)?;
    let (text, full) = match (family, length) {
        (2, 4) => (Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?).to_string(), 32),
        (3, 16) => (Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).to_string(), 128),
        _ => return None,
    };
    string(
        out,
        &if cidr != 0 || bits != full {
            format!("{text}/{bits}")
        } else {
            text
        },
    )
}

fn array(out: &mut Out, element: &Type, raw: &[u8]) -> Option<()> {
    let (dimensions, mut rest) = raw.split_at_checked(4)?;
    let dimensions = usize::try_from(int4(dimensions)?)
        .ok()
        .filter(|count| *count <= MAX_DIMENSIONS)?;
    rest = rest.get(8..)?;
    if dimensions == 0 {
        return out.push("[]");
    }
    let mut lengths = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        lengths.push(usize::try_from(int4(rest.get(..4)?)?).ok()?);
        rest = rest.get(8..)?;
    }
    elements(out, element, &lengths, &mut rest)
}

fn elements(out: &mut Out, element: &Type, lengths: &[usize], rest: &mut &[u8]) -> Option<()> {
    let (length, inner) = lengths.split_first()?;
    out.push("[")?;
    for index in 0..*length {
        if index > 0 {
            out.push(",")?;
        }
        if !inner.is_empty() {
            elements(out, element, inner, rest)?;
            continue;
        }
        let size = int4(rest.get(..4)?)?;
        *rest = rest.get(4..)?;
        match usize::try_from(size) {
            Ok(size) => {
                write_value(out, element, rest.get(..size)?)?;
                *rest = rest.get(size..)?;
            }
            Err(_) => out.push("null")?,
        }
    }
    out.push("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value as the last one that is written within so many bytes; `None` if there is no room for it.
    fn within(bytes_max: usize, ty: &Type, raw: &[u8]) -> Option<String> {
        let mut out = Out::new(bytes_max);
        let written = write_value(&mut out, ty, raw);
        assert_eq!(written.is_none(), out.is_full);
        assert!(out.text.len() < bytes_max, "{}", out.text.len());
        written.map(|()| out.complete())
    }

    #[test]
    fn nothing_is_written_beyond_the_bound() {
        // An array of Postgres: dimensions, flags, the type; a length and a lower bound; the elements.
        let array = |element: &[u8], count: i32| {
            let mut raw = [1_i32, 0, 25, count, 1].map(i32::to_be_bytes).concat();
            for _ in 0..count {
                raw.extend_from_slice(&i32::try_from(element.len()).unwrap().to_be_bytes());
                raw.extend_from_slice(element);
            }
            raw
        };
        // Zero with 9,000 decimals: it has no digits.
        let zero = [0_u16, 0, 0, 9_000].map(u16::to_be_bytes).concat();
        for (ty, raw, expect) in [
            (Type::TEXT, b"a\"\x01".to_vec(), r#"["a\"\u0001"]"#.to_owned()),
            (Type::BYTEA, vec![255; 3], r#"["\\xffffff"]"#.to_owned()),
            (Type::JSONB, b"\x01{\"a\":1}".to_vec(), r#"[{"a":1}]"#.to_owned()),
            (Type::INT4, 12_i32.to_be_bytes().to_vec(), "[12]".to_owned()),
            (Type::TEXT_ARRAY, array(b"x", 3), r#"[["x","x","x"]]"#.to_owned()),
            (
                Type::NUMERIC_ARRAY,
                array(&zero, 2),
                format!("[[\"0.{0}\",\"0.{0}\"]]", "0".repeat(9_000)),
            ),
        ] {
            assert_eq!(within(expect.len(), &ty, &raw), Some(expect.clone()), "{ty}");
            for less in 1..(expect.len() - 2).min(20) {
                assert_eq!(within(expect.len() - less, &ty, &raw), None, "{ty}");
            }
        }
        // Long before it has written this.
        assert_eq!(within(1_000, &Type::NUMERIC_ARRAY, &array(&zero, 100_000)), None);
        assert_eq!(within(1_000, &Type::TEXT, &[1; 999]), None);
    }
}
