//! Where a page of a list of runs begins.

use heddle_domain::id::RunId;

use super::Refusal;

/// The run of a cursor: the next page begins before it.
pub(super) fn before(cursor: &str) -> Result<RunId, Refusal> {
    let id = cursor.parse().map_err(|_| {
        Refusal::Invalid(
            heddle_domain::Fault::at("/cursor", "`cursor` must be the `next_cursor` of an earlier answer").into(),
        )
    })?;
    Ok(RunId(id))
}
