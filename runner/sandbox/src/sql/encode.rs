//! A statement's parameters: JSON values, sent as text, which the server reads as the types that it inferred.

use bytes::BytesMut;
use serde_json::Value;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

#[derive(Debug)]
pub(super) struct Text(Value);

/// A JSON array of parameters; an empty text is an empty array.
pub(super) fn parse(params: &str) -> Result<Vec<Text>, String> {
    if params.trim().is_empty() {
        return Ok(Vec::new());
    }
    let values: Vec<Value> =
        serde_json::from_str(params).map_err(|error| format!("`params` must be a JSON array: {error}"))?;
    Ok(values.into_iter().map(Text).collect())
}

impl ToSql for Text {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match text(&self.0, ty) {
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

/// A value in the form that Postgres reads for a type; `None` is NULL.
fn text(value: &Value, ty: &Type) -> Option<String> {
    let base = base(ty);
    if *base == Type::JSON || *base == Type::JSONB {
        // `null` stays NULL: a JSON null can be written as 'null'::jsonb.
        return (!value.is_null()).then(|| value.to_string());
    }
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => value.clone(),
        Value::Array(values) => match base.kind() {
            Kind::Array(element) => array(values, element),
            _ => value.to_string(),
        },
        Value::Object(_) => value.to_string(),
    })
}

fn base(ty: &Type) -> &Type {
    match ty.kind() {
        Kind::Domain(inner) => base(inner),
        _ => ty,
    }
}

fn array(values: &[Value], element: &Type) -> String {
    let json = matches!(*base(element), Type::JSON | Type::JSONB);
    let mut out = String::from("{");
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match value {
            Value::Array(inner) if !json => out.push_str(&array(inner, element)),
            _ => match text(value, element) {
                Some(text) => quote(&mut out, &text),
                None => out.push_str("NULL"),
            },
        }
    }
    out.push('}');
    out
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

    #[test]
    fn values() {
        let check = |value: Value, ty: Type, expect: Option<&str>| {
            assert_eq!(text(&value, &ty).as_deref(), expect, "{value} as {ty}");
        };
        check(json!(null), Type::INT4, None);
        check(json!(1), Type::TEXT, Some("1"));
        check(json!("a"), Type::TEXT, Some("a"));
        check(json!("a"), Type::JSONB, Some("\"a\""));
        check(json!([1, null]), Type::JSONB, Some("[1,null]"));
        check(json!([1, null]), Type::INT4_ARRAY, Some("{\"1\",NULL}"));
        check(json!(["a\"b\\", ""]), Type::TEXT_ARRAY, Some(r#"{"a\"b\\",""}"#));
        check(json!([[1], [2]]), Type::INT4_ARRAY, Some("{{\"1\"},{\"2\"}}"));
        check(json!([{"a": [1]}]), Type::JSONB_ARRAY, Some(r#"{"{\"a\":[1]}"}"#));
        assert!(parse("{}").is_err());
        assert_eq!(parse("").unwrap().len(), 0);
    }
}
