//! The columns that a run's row keeps when the run ends, and when somebody continues it afterwards.

/// Adds the list of these columns to the arguments of another macro: `with_kept_columns!(statement!(a))` is
/// `statement!("id, ..., created_by"; a)`. Its purpose is a list that stands in one place: the macros of sqlx accept
/// literals and sums of literals, no constants.
macro_rules! with_kept_columns {
    ($then:ident!($($given:tt)*)) => {
        $then!(
            "id, group_id, revision_id, resolution_id, trigger, priority, logical_time, interval_start, interval_end, \
             params, task_params, labels, key, dedupe, callback, created_at, started_at, source, created_by";
            $($given)*
        )
    };
}

/// Expands to the list of the columns, without a statement around it.
macro_rules! kept_columns {
    ($kept:literal;) => {
        $kept
    };
}

/// The names of these columns, with `, ` between them.
pub(super) const KEPT: &str = with_kept_columns!(kept_columns!());

pub(super) use with_kept_columns;
