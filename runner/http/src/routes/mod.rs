//! The routes, one file per noun.

mod admin;
mod backfills;
mod categories;
mod compatibility;
mod connections;
mod grants;
mod groups;
mod health;
mod pools;
mod run_controls;
mod runs;
mod scripts;
mod secrets;
mod spec_check;
mod tasks;
mod templates;
mod tokens;

use crate::table::Table;

/// All of them.
pub fn table() -> Table {
    Table::new(vec![
        ("scripts", scripts::routes()),
        ("categories", categories::routes()),
        ("templates", templates::routes()),
        ("groups", groups::routes()),
        ("runs", runs::routes()),
        ("runs", run_controls::routes()),
        ("tasks", tasks::routes()),
        ("backfills", backfills::routes()),
        ("secrets", secrets::routes()),
        ("connections", connections::routes()),
        ("tokens", tokens::routes()),
        ("pools", pools::routes()),
        ("admin", admin::routes()),
        ("compatibility", compatibility::routes()),
        ("health", health::routes()),
    ])
}
