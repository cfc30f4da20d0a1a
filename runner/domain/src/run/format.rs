//! How a run's progress is written as bytes, so that nodes of different builds read each other's.
//!
//! # The forms
//!
//! ```text
//! form 1   base                          what the first build wrote: no version in front
//! form 2   base, then sections           what is written today where there is something to add
//! form n   0x80 0x00 n, then a body      nothing yet; refused by name
//! ```
//!
//! `base` is [`Base`] in postcard, which is not self-describing: its fields never change. Additions follow it in
//! sections, each of them a tag and its bytes. A build that does not know sections stops reading at the end of `base`,
//! and one that does not know a section's tag skips it. So nodes of the previous and of the current version work on the
//! same runs, in any order of upgrades and downgrades, and no row has to be rewritten. A row that an older node writes
//! has no sections; each section says what that means.
//!
//! `0x80 0x00` is zero in a longer form than postcard's encoder ever chooses, and a `base` begins with a length: no row
//! of form 1 or 2 begins like this, whatever its content. A change that cannot be an addition gets the next number
//! there. As with the schema, the release that first reads a form precedes the one that first writes it.
//!
//! `golden/` holds bytes of each form as the build wrote them that introduced it. Never change one of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Detail, Failure, MapProgress, Progress, TaskStateByte};
use crate::plan::TaskIndex;
use crate::state::{ErrorKind, TaskState};

/// The beginning of a form with a number.
const NUMBERED: [u8; 2] = [0x80, 0x00];

/// The section with the failure in the run's error. If it is missing, the failure is read from the text of the error:
/// see [`failure_in_text`].
const FAILURE: u8 = 1;

/// What the text of an error has in place of a kind if somebody set the task to failed.
pub(super) const BY_HAND: &str = "set to failed by hand";

/// Why bytes are no progress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// From a newer build.
    #[error("the run's progress has format {0}, which this version of Heddle does not support")]
    Unknown(u8),
    /// A state that only newer builds know, of a task or an item.
    #[error("the run's progress has the task state {0}, which this version of Heddle does not support")]
    UnknownState(TaskStateByte),
    /// The kind of an error that only newer builds know.
    #[error("the run's progress has the error kind {0}, which this version of Heddle does not support")]
    UnknownKind(i16),
    /// No version of Heddle has written an error of this text without the failure.
    #[error("the run's progress has the error `{0}`, but not which task failed")]
    NoFailure(String),
    /// No version of Heddle has written such bytes.
    #[error("the bytes are not the progress of a run")]
    Broken(#[source] postcard::Error),
    /// A value that has no bytes.
    #[error("the run's progress cannot be serialized")]
    Unwritable(#[source] postcard::Error),
}

impl FormatError {
    /// Whether newer builds may be able to read the bytes.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::UnknownState(_) | Self::UnknownKind(_))
    }
}

/// The format of the first build. Fields are neither added nor changed: postcard has no names and no ends of structs.
#[derive(Serialize)]
struct Base<'a> {
    states: &'a [TaskStateByte],
    details: &'a BTreeMap<TaskIndex, Detail>,
    maps: &'a BTreeMap<TaskIndex, MapProgress>,
    stopping: bool,
    error: &'a Option<String>,
}

#[derive(Deserialize)]
struct BaseRead {
    states: Vec<TaskStateByte>,
    details: BTreeMap<TaskIndex, Detail>,
    maps: BTreeMap<TaskIndex, MapProgress>,
    stopping: bool,
    error: Option<String>,
}

/// The section [`FAILURE`]. Like `Base`, it never changes; additions go into another section.
#[derive(Serialize, Deserialize)]
struct FailureSection {
    task: TaskIndex,
    item: Option<u32>,
    kind: i16,
}

impl Progress {
    /// As bytes, for the database.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let base = Base {
            states: &self.states,
            details: &self.details,
            maps: &self.maps,
            stopping: self.stopping,
            error: &self.error,
        };
        let mut bytes = postcard::to_stdvec(&base).map_err(FormatError::Unwritable)?;
        if let Some(failure) = self.failure {
            let section = FailureSection {
                task: failure.task,
                item: failure.item,
                kind: failure.kind.number(),
            };
            let section = postcard::to_stdvec(&section).map_err(FormatError::Unwritable)?;
            bytes = postcard::to_extend(&(FAILURE, section), bytes).map_err(FormatError::Unwritable)?;
        }
        Ok(bytes)
    }

    /// From the database's bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        if let Some(rest) = bytes.strip_prefix(&NUMBERED) {
            return Err(FormatError::Unknown(rest.first().copied().unwrap_or_default()));
        }
        let (base, mut rest) = postcard::take_from_bytes::<BaseRead>(bytes).map_err(FormatError::Broken)?;
        let of_items = base.maps.values().flat_map(|map| &map.states);
        let mut states = base.states.iter().chain(of_items);
        if let Some(&unknown) = states.find(|&&byte| TaskState::from_number(byte.into()).is_none()) {
            return Err(FormatError::UnknownState(unknown));
        }
        let mut failure = None;
        while !rest.is_empty() {
            let ((tag, section), behind) =
                postcard::take_from_bytes::<(u8, &[u8])>(rest).map_err(FormatError::Broken)?;
            rest = behind;
            if tag == FAILURE {
                let section: FailureSection = postcard::from_bytes(section).map_err(FormatError::Broken)?;
                let kind = ErrorKind::from_number(section.kind);
                failure = Some(Failure {
                    task: section.task,
                    item: section.item,
                    kind: kind.ok_or(FormatError::UnknownKind(section.kind))?,
                });
            }
        }
        if let (Some(error), None) = (&base.error, failure)
            && failure_in_text(error).is_none()
        {
            return Err(FormatError::NoFailure(error.clone()));
        }
        Ok(Self {
            states: base.states,
            details: base.details,
            maps: base.maps,
            stopping: base.stopping,
            failure: failure.filter(|_| base.error.is_some()),
            error: base.error,
        })
    }
}

/// The failure in the text of a run's error: the name of the task, and the kind. `task extract: trap: ...`, or `task
/// extract item 3: trap: ...`, or [`BY_HAND`] in place of the kind; names have neither spaces nor colons.
///
/// Only for rows of form 1 with an error: the first build (0.1.0) stored nothing else of a failure. It can go when no
/// row is kept that a node of that build was the last to write. `None`: no build has written such a text.
pub(super) fn failure_in_text(error: &str) -> Option<(&str, ErrorKind)> {
    let (whose, what) = error.strip_prefix("task ")?.split_once(": ")?;
    let name = whose.split(' ').next()?;
    let kind = match what {
        BY_HAND => ErrorKind::Failed,
        _ => what.split(':').next()?.parse().ok()?,
    };
    Some((name, kind))
}
