//! Where pages and streams begin: cursors that earlier answers gave.

use heddle_domain::id::RunId;

use super::Refusal;

/// Where a reader continues, and where its request says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    text: String,
    /// Whether it is the value of the header `Last-Event-ID`, and not of `cursor`.
    in_header: bool,
}

impl Given {
    /// From the header and the query parameter: if both are there, the header counts.
    pub(crate) fn of(last_event_id: Option<&str>, cursor: Option<&str>) -> Option<Self> {
        let given = |text: &str, in_header| Self {
            text: text.to_owned(),
            in_header,
        };
        let by_header = last_event_id.map(|text| given(text, true));
        by_header.or_else(|| cursor.map(|text| given(text, false)))
    }

    pub(super) fn read<T>(&self, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Refusal> {
        if !self.in_header {
            return read(&self.text, parse);
        }
        let wrong = || {
            let text = &self.text;
            Refusal::Malformed(format!(
                "the header `Last-Event-ID` must be the id of an earlier event, not `{text}`"
            ))
        };
        parse(&self.text).ok_or_else(wrong)
    }
}

/// Reads a cursor. Without a position in it, it is none that an answer gave.
pub(super) fn read<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Refusal> {
    parse(text).ok_or_else(|| Refusal::Malformed(format!("`cursor` must come from an earlier answer, not `{text}`")))
}

/// The run of a cursor: the next page begins before it.
pub(super) fn before(cursor: &str) -> Result<RunId, Refusal> {
    read(cursor, |text| text.parse().ok().map(RunId))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_where_the_cursor_was() {
        let read = |header: Option<&str>, query: Option<&str>| {
            let given = Given::of(header, query)?;
            Some(match given.read(|text| text.parse::<u32>().ok()) {
                Ok(number) => number.to_string(),
                Err(Refusal::Malformed(detail)) => detail,
                Err(other) => format!("{other:?}"),
            })
        };
        let by_header = "the header `Last-Event-ID` must be the id of an earlier event, not `x`";
        let by_query = "`cursor` must come from an earlier answer, not `x`";
        for (header, query, expect) in [
            (None, None, None),
            (Some("1"), Some("2"), Some("1")),
            (None, Some("2"), Some("2")),
            (Some("x"), Some("2"), Some(by_header)),
            (Some("x"), None, Some(by_header)),
            (None, Some("x"), Some(by_query)),
        ] {
            assert_eq!(read(header, query).as_deref(), expect);
        }
    }
}
