//! The labels that a filter wants, of runs and of groups.

use serde_json::{Map, Value};

/// Labels that a row must have, all of them, as statements compare them.
pub(crate) struct Labels {
    /// Those that must have a certain value.
    pub(crate) valued: Map<String, Value>,
    /// Those that may have any value.
    pub(crate) named: Vec<String>,
}

impl Labels {
    /// `None`: different values of one label are wanted, so nothing has all of them.
    pub(crate) fn wanted(labels: &[(String, Option<String>)]) -> Option<Self> {
        let (mut valued, mut named) = (Map::new(), Vec::new());
        for (name, value) in labels {
            let Some(value) = value else {
                named.push(name.clone());
                continue;
            };
            let before = valued.insert(name.clone(), Value::from(value.as_str()));
            if before.is_some_and(|before| before != *value) {
                return None;
            }
        }
        Some(Self { valued, named })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_two_values_of_one_label() {
        let wanted = |labels: &[(&str, Option<&str>)]| {
            let labels: Vec<_> = labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
                .collect();
            Labels::wanted(&labels).map(|labels| (Value::Object(labels.valued).to_string(), labels.named))
        };
        let both = (r#"{"a":"1","b":"2"}"#.to_owned(), vec!["a".to_owned()]);
        let labels = [("a", Some("1")), ("b", Some("2")), ("a", None), ("a", Some("1"))];
        assert_eq!(wanted(&labels), Some(both));
        assert_eq!(wanted(&[("a", Some("1")), ("a", Some("2"))]), None);
        assert_eq!(wanted(&[]), Some(("{}".to_owned(), Vec::new())));
    }
}
