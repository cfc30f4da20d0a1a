//! Bounds that several of the things that people write have in common.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::Faults;
use crate::fault::pointer_token;

/// The bounds of `priority`: of runs, groups, backfills and offers.
pub const PRIORITY: RangeInclusive<i16> = -1000..=1000;

/// The largest `params` of a run or an offer, and the largest `task_params` of a run, in bytes of JSON text.
pub const PARAMS_BYTES_MAX: usize = 256 * 1024;

/// How many labels there may be: of a group, or of a run besides those of its group.
pub const LABELS_MAX: usize = 64;

/// How many characters the key of a label may have, and its value.
pub const LABEL_CHARS_MAX: usize = 256;

/// Refuses a priority out of [`PRIORITY`].
pub fn check_priority(priority: i16) -> Result<(), String> {
    match PRIORITY.contains(&priority) {
        true => Ok(()),
        false => Err(format!(
            "`priority` must be from {} to {}",
            PRIORITY.start(),
            PRIORITY.end()
        )),
    }
}

/// Judges labels, which are at `pointer`.
pub fn check_labels(labels: &BTreeMap<String, String>, pointer: &str, faults: &mut Faults) {
    if labels.len() > LABELS_MAX {
        faults.add(pointer, format!("there must be at most {LABELS_MAX} labels"));
    }
    let is_wrong = |text: &str| text.chars().nth(LABEL_CHARS_MAX).is_some() || text.chars().any(char::is_control);
    for (key, value) in labels.iter().take(LABELS_MAX) {
        if key.is_empty() || is_wrong(key) {
            faults.add(
                pointer,
                format!("the key of a label must have 1 to {LABEL_CHARS_MAX} characters and no control characters"),
            );
        } else if is_wrong(value) {
            faults.add(
                format!("{pointer}/{}", pointer_token(key)),
                format!(
                    "the value of a label must have at most {LABEL_CHARS_MAX} characters and no control characters"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_bounds() {
        let judged = |key: &str, value: &str| {
            let mut faults = Faults::default();
            check_labels(&BTreeMap::from([(key.into(), value.into())]), "/labels", &mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        let long = "\u{e9}".repeat(LABEL_CHARS_MAX);
        assert_eq!(judged(&long, &long), [""; 0]);
        assert_eq!(judged("k", ""), [""; 0]);
        for wrong in ["", "a\nb", "\0", &format!("{long}x")] {
            assert_eq!(judged(wrong, "v"), ["/labels"], "{wrong:?}");
        }
        for wrong in ["a\tb", &format!("{long}x")] {
            assert_eq!(judged("k/1", wrong), ["/labels/k~11"], "{wrong:?}");
        }
        let mut faults = Faults::default();
        let many = (0..=LABELS_MAX).map(|number| (number.to_string(), String::new()));
        check_labels(&many.collect(), "/labels", &mut faults);
        assert_eq!(faults.0.len(), 1, "{faults}");
    }
}
