//! The routes, one file per noun.

mod admin;
mod assignments;
mod audiences;
mod backfills;
mod categories;
mod channels;
mod claim_report;
mod compatibility;
mod connections;
mod dispatch;
mod events;
mod grants;
mod group_parts;
mod groups;
mod health;
mod messages;
mod notifications;
mod offers;
mod pools;
mod queues;
mod run_controls;
mod run_filter;
pub(crate) mod runs;
mod runtimes;
mod scripts;
mod secrets;
mod session;
mod tasks;
mod templates;
mod tokens;
mod topics;

use crate::table::Table;

/// The routes of all nouns, in the order of the description.
pub fn table() -> Table {
    Table::new(vec![
        ("scripts", scripts::routes()),
        ("scripts", runtimes::routes()),
        ("categories", categories::routes()),
        ("templates", templates::routes()),
        ("groups", groups::routes()),
        ("groups", group_parts::routes()),
        ("runs", runs::routes()),
        ("runs", run_controls::routes()),
        ("tasks", tasks::routes()),
        ("backfills", backfills::routes()),
        ("queues", queues::routes()),
        ("secrets", secrets::routes()),
        ("connections", connections::routes()),
        ("tokens", tokens::routes()),
        ("session", session::routes()),
        ("pools", pools::routes()),
        ("dispatch", offers::routes()),
        ("dispatch", audiences::routes()),
        ("dispatch", dispatch::routes()),
        ("dispatch", assignments::routes()),
        ("messages", topics::routes()),
        ("messages", messages::routes()),
        ("events", events::routes()),
        ("notifications", channels::routes()),
        ("notifications", notifications::routes()),
        ("admin", admin::routes()),
        ("compatibility", compatibility::routes()),
        ("health", health::routes()),
    ])
}
