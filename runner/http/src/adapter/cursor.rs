//! Where pages and streams begin: cursors that earlier answers gave.

use heddle_domain::id::RunId;

use super::Refusal;

/// Reads a cursor. Without a position in it, it is none that an answer gave.
pub(super) fn read<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Refusal> {
    parse(text).ok_or_else(|| Refusal::Malformed(format!("`cursor` must come from an earlier answer, not `{text}`")))
}

/// The run of a cursor: the next page begins before it.
pub(super) fn before(cursor: &str) -> Result<RunId, Refusal> {
    read(cursor, |text| text.parse().ok().map(RunId))
}
