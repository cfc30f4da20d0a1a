//! Keys of attempts, column by column, as arguments of statements.

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use uuid::Uuid;

use crate::database::column;

/// For `UNNEST` of `uuid[]`, `smallint[]` and two `integer[]`.
pub(super) struct Keys {
    pub(super) runs: Vec<Uuid>,
    pub(super) tasks: Vec<i16>,
    pub(super) items: Vec<i32>,
    pub(super) attempts: Vec<i32>,
}

impl Keys {
    pub(super) fn of<Row>(rows: &[Row], key_of: impl Fn(&Row) -> (RunId, AttemptKey)) -> Self {
        Self {
            runs: column(rows, |row| key_of(row).0.0),
            tasks: column(rows, |row| key_of(row).1.key.task as i16),
            items: column(rows, |row| key_of(row).1.key.item_number()),
            attempts: column(rows, |row| key_of(row).1.attempt as i32),
        }
    }
}
