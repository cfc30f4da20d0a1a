//! A statement's parameters: JSON values, sent as text, which the server reads as the types that it inferred.
//!
//! The text of all parameters has at most 8 MiB, but as values it could take a hundred times as much. So they are read
//! twice, and never kept as values: once to check and to count them, before anything is sent; and once the server has said
//! their types, to write each in the form of its type. Objects go out as they were written, and so do arrays, unless the
//! type is one.

use bytes::BytesMut;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

/// Parameters with more bytes are read on a thread apart: the host functions of all attempts share one.
const PARAMS_AT_ONCE_BYTES: usize = 64 << 10;
/// How many of these are read at the same time on a node.
const LARGE_PARAMS_MAX: usize = 2;
/// The maximum of dimensions of an array in Postgres. Each is read once more.
const DIMENSIONS_MAX: u8 = 6;
/// The maximum of parameters of a statement, in Postgres' protocol.
const PARAMS_MAX: usize = u16::MAX as usize;

/// Where large parameters are read.
#[derive(Clone)]
pub(super) struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_PARAMS_MAX)))
    }
}

impl Readers {
    /// Reads parameters in this way.
    pub async fn read<T: Send + 'static>(
        &self,
        params: &str,
        way: impl FnOnce(&str) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        if params.len() <= PARAMS_AT_ONCE_BYTES {
            return way(params);
        }
        // If the call is dropped, its thread goes on: so the slot belongs to the thread.
        let slot = Arc::clone(&self.0).acquire_owned().await;
        let params = params.to_owned();
        let reading = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            way(&params)
        });
        reading
            .await
            .unwrap_or_else(|_| Err("the node failed at this call".into()))
    }
}

/// A parameter as it is sent; `None` is NULL.
#[derive(Debug)]
pub(super) struct Text(Option<String>);

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match &self.0 {
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// How many parameters a JSON array has; an empty text is an empty array.
pub(super) fn count(params: &str) -> Result<usize, String> {
    if params.trim().is_empty() {
        return Ok(0);
    }
    let Counted(count) = serde_json::from_str(params).map_err(wrong)?;
    match count > PARAMS_MAX {
        true => Err(format!("`params` has {count} values; the maximum is {PARAMS_MAX}")),
        false => Ok(count),
    }
}

/// The parameters of a statement with these types, as many as [`count`] has found.
pub(super) fn texts(params: &str, types: &[Type]) -> Result<Vec<Text>, String> {
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let values: Vec<&RawValue> = serde_json::from_str(params).map_err(wrong)?;
    let texts = values
        .iter()
        .zip(types)
        .map(|(value, ty)| text(value.get(), ty).map(Text));
    let texts = texts.collect::<Result<_, _>>();
    texts.map_err(|error: serde_json::Error| format!("a value of `params`: {error}"))
}

fn wrong(error: serde_json::Error) -> String {
    format!("`params` must be a JSON array: {error}")
}

/// A value that is read as a [`Value`] would be, with all that is refused then, but is not kept.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self, A::Error> {
        while values.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

/// An array of so many values, each of them checked.
struct Counted(usize);

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self(0))
    }
}

impl<'de> Visitor<'de> for Counted {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<Self, A::Error> {
        while values.next_element::<Checked>()?.is_some() {
            self.0 += 1;
        }
        Ok(self)
    }
}

/// A value in the form that Postgres reads for a type; `None` is NULL.
fn text(json: &str, ty: &Type) -> serde_json::Result<Option<String>> {
    let form = Form { ty, dimensions: 0 };
    let written = form.deserialize(&mut serde_json::Deserializer::from_str(json))?;
    Ok(written.map(|written| match written {
        Written::Plain(text) | Written::Array(text) => text,
    }))
}

/// Writes a value in the form of a type.
#[derive(Clone, Copy)]
struct Form<'a> {
    ty: &'a Type,
    /// In how many arrays the value is, if their elements have the type. An array in such an array is one more dimension.
    dimensions: u8,
}

/// What was written. In an array, a text is quoted, and an array is not.
enum Written {
    Plain(String),
    Array(String),
}

impl<'de> DeserializeSeed<'de> for Form<'_> {
    type Value = Option<Written>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        // A JSON null can be written as 'null'::jsonb.
        if json == "null" {
            return Ok(None);
        }
        let is_array = self.dimensions > 0 || matches!(base(self.ty).kind(), Kind::Array(_));
        let is_raw = match json.as_bytes().first() {
            _ if matches!(*base(self.ty), Type::JSON | Type::JSONB) => true,
            Some(b'{') => true,
            Some(b'[') => !is_array,
            _ => false,
        };
        if is_raw {
            return plain(json.to_owned());
        }
        serde_json::Deserializer::from_str(json)
            .deserialize_any(self)
            .map_err(de::Error::custom)
    }
}

impl<'de> Visitor<'de> for Form<'_> {
    type Value = Option<Written>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        plain(value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        plain(value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        plain(value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        plain(Value::from(value).to_string())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        plain(value.to_owned())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<Self::Value, A::Error> {
        if self.dimensions == DIMENSIONS_MAX {
            return Err(de::Error::custom(format_args!(
                "an array has at most {DIMENSIONS_MAX} dimensions"
            )));
        }
        let element = match base(self.ty).kind() {
            Kind::Array(element) if self.dimensions == 0 => element,
            _ => self.ty,
        };
        let element = Form {
            ty: element,
            dimensions: self.dimensions + 1,
        };
        array(values, element).map(|text| Some(Written::Array(text)))
    }
}

fn plain<E>(text: String) -> Result<Option<Written>, E> {
    Ok(Some(Written::Plain(text)))
}

fn base(ty: &Type) -> &Type {
    match ty.kind() {
        Kind::Domain(inner) => base(inner),
        _ => ty,
    }
}

fn array<'de, A: SeqAccess<'de>>(mut values: A, form: Form<'_>) -> Result<String, A::Error> {
    let mut out = String::from("{");
    while let Some(written) = values.next_element_seed(form)? {
        if out.len() > 1 {
            out.push(',');
        }
        match written {
            Some(Written::Array(text)) => out.push_str(&text),
            Some(Written::Plain(text)) => quote(&mut out, &text),
            None => out.push_str("NULL"),
        }
    }
    out.push('}');
    Ok(out)
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The parameters of a statement whose types are all this one, or why they are refused.
    fn sent(params: &str, ty: &Type) -> Result<Vec<Option<String>>, String> {
        let types = vec![ty.clone(); count(params)?];
        let texts = texts(params, &types)?;
        Ok(texts.into_iter().map(|Text(text)| text).collect())
    }

    #[test]
    fn values() {
        let check = |value: Value, ty: Type, expect: Option<&str>| {
            let text = text(&value.to_string(), &ty).unwrap();
            assert_eq!(text.as_deref(), expect, "{value} as {ty}");
        };
        check(json!(null), Type::INT4, None);
        check(json!(null), Type::JSONB, None);
        check(json!(1), Type::TEXT, Some("1"));
        check(json!("a"), Type::TEXT, Some("a"));
        check(json!("a"), Type::JSONB, Some("\"a\""));
        check(json!([1, null]), Type::JSONB, Some("[1,null]"));
        check(json!([1, null]), Type::INT4_ARRAY, Some("{\"1\",NULL}"));
        check(json!(["a\"b\\", ""]), Type::TEXT_ARRAY, Some(r#"{"a\"b\\",""}"#));
        check(json!([[1], [2]]), Type::INT4_ARRAY, Some("{{\"1\"},{\"2\"}}"));
        check(json!([[], [[]]]), Type::INT4_ARRAY, Some("{{},{{}}}"));
        check(json!([{"a": [1]}]), Type::JSONB_ARRAY, Some(r#"{"{\"a\":[1]}"}"#));
        check(json!([[1], null]), Type::JSONB_ARRAY, Some(r#"{"[1]",NULL}"#));
        check(
            json!({"b": [1, {}], "a": "x"}),
            Type::TEXT,
            Some(r#"{"a":"x","b":[1,{}]}"#),
        );
        check(json!([1, [true]]), Type::TEXT, Some("[1,[true]]"));
        check(json!([{"a": 1}, "b"]), Type::TEXT_ARRAY, Some(r#"{"{\"a\":1}","b"}"#));
        assert!(count("{}").is_err());
        assert_eq!(sent("", &Type::TEXT), Ok(Vec::new()));
    }

    /// Nothing in a parameter becomes a value: what is one text for the server is sent as it was written.
    #[test]
    fn objects_are_sent_as_they_are() {
        let params = r#"[{"b": 1, "a":2}, [ {"b": 1} ], [[{"b": 1}]]]"#;
        let texts = |ty: &Type| sent(params, ty).unwrap().into_iter().flatten().collect::<Vec<_>>();
        let plain = [r#"{"b": 1, "a":2}"#, r#"[ {"b": 1} ]"#, r#"[[{"b": 1}]]"#];
        assert_eq!(texts(&Type::TEXT), plain);
        let array = [plain[0], r#"{"{\"b\": 1}"}"#, r#"{{"{\"b\": 1}"}}"#];
        assert_eq!(texts(&Type::TEXT_ARRAY), array);
    }

    #[test]
    fn arrays_have_few_dimensions() {
        let nested = |depth: usize| format!("[{}1{}]", "[".repeat(depth), "]".repeat(depth));
        let most = usize::from(DIMENSIONS_MAX);
        assert!(sent(&nested(most), &Type::INT4_ARRAY).is_ok());
        let said = sent(&nested(most + 1), &Type::INT4_ARRAY).unwrap_err();
        assert!(said.contains("an array has at most 6 dimensions"), "{said}");
        assert!(sent(&nested(most + 1), &Type::JSONB).is_ok());
    }

    /// What is not JSON for the server has the same form as the value that serde makes of it.
    #[test]
    fn scalars_are_written_as_their_values() {
        for json in [
            "0",
            "-0",
            "1",
            "-7",
            "18446744073709551615",
            "-9223372036854775808",
            "18446744073709551616",
            "1.0",
            "1e3",
            "0.1",
            "1E-7",
            "123456789012345678901234567890",
            "true",
            "false",
            r#""""#,
            r#""\u00e9\n""#,
            r#""\ud83d\ude00""#,
            r#""\u0000""#,
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            let expect = match &value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(
                sent(&format!(" [ {json} ] "), &Type::TEXT),
                Ok(vec![Some(expect)]),
                "{json}"
            );
        }
    }

    #[test]
    fn json_is_sent_as_it_is() {
        let params = "[ {\"b\": 1.50,\n \"a\": 12345678901234567890123} , null,[ ] ]";
        let expect = [
            Some("{\"b\": 1.50,\n \"a\": 12345678901234567890123}"),
            None,
            Some("[ ]"),
        ];
        for ty in [Type::JSON, Type::JSONB] {
            let sent = sent(params, &ty).unwrap();
            assert_eq!(sent.iter().map(Option::as_deref).collect::<Vec<_>>(), expect, "{ty}");
        }
    }

    /// What was refused as values is refused, for all types.
    #[test]
    fn what_is_no_value_is_refused() {
        let deep = format!("[{}{}]", "[".repeat(200), "]".repeat(200));
        for params in [
            "[1e999]",
            "[[{\"a\": -1e999}]]",
            r#"["\ud83d"]"#,
            r#"[{"\udc00": 1}]"#,
            "[1",
            "[1] 2",
            "[01]",
            "1",
            deep.as_str(),
        ] {
            let as_values = serde_json::from_str::<Vec<Value>>(params).unwrap_err();
            let said = count(params).unwrap_err();
            assert!(said.starts_with("`params` must be a JSON array"), "{said}");
            if params != "1" {
                assert!(said.ends_with(&as_values.to_string()), "{said}: {as_values}");
            }
        }
        let many = format!("[{}0]", "0,".repeat(PARAMS_MAX));
        assert!(count(&many).unwrap_err().contains("65536 values"));
    }

    #[tokio::test]
    async fn large_ones_are_read_apart_and_few_at_the_same_time() {
        let readers = Readers::default();
        let here = std::thread::current().id();
        let thread = |_: &str| Ok(std::thread::current().id());
        assert_eq!(readers.read("[]", thread).await, Ok(here));
        let large = " ".repeat(PARAMS_AT_ONCE_BYTES + 1);
        assert!(readers.read(&large, thread).await.is_ok_and(|thread| thread != here));
        // As many as are allowed are being read, until they are told to end.
        let mut ends = Vec::new();
        let mut under_way = Vec::new();
        for _ in 0..LARGE_PARAMS_MAX {
            let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
            let (begin, begun) = tokio::sync::oneshot::channel();
            let (readers, large) = (readers.clone(), large.clone());
            under_way.push(tokio::spawn(async move {
                let way = move |_: &str| {
                    let _ = begin.send(());
                    ended.recv().map_err(|error| error.to_string())
                };
                readers.read(&large, way).await
            }));
            begun.await.unwrap();
            ends.push(end);
        }
        let next = readers.read(&large, thread);
        assert!(futures::FutureExt::now_or_never(next).is_none());
        // Somebody who gives up leaves the thread behind, and the slot with it.
        for reading in &under_way {
            reading.abort();
        }
        for reading in under_way {
            assert!(reading.await.unwrap_err().is_cancelled());
        }
        assert_eq!(readers.0.available_permits(), 0);
        for end in ends {
            end.send(()).unwrap();
        }
        assert!(readers.read(&large, thread).await.is_ok());
    }
}
