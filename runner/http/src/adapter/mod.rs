//! What routes need from the engine, in the types of the API: converts requests to what the engine takes, and answers
//! and rows to what people read. One file for each noun; a route that needs no conversion calls the engine or the store
//! itself.

pub(crate) mod backfills;
pub(crate) mod claims;
pub(crate) mod cursor;
mod log_place;
pub(crate) mod next;
pub(crate) mod node;
pub(crate) mod params;
pub(crate) mod queues;
mod refusal;
pub(crate) mod runs;
pub(crate) mod scripts;
pub(crate) mod streams;
mod views;

use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::Name;
use heddle_domain::id::RunId;
use heddle_engine::{Engine, EngineError};

pub use refusal::Refusal;
use refusal::not_found;

/// How runs are shown to those who are called back: as the API shows them.
pub fn shown_runs(engine: &Engine) -> heddle_engine::RunObject {
    let engine = engine.clone();
    std::sync::Arc::new(
        move |id: RunId| -> BoxFuture<'static, Result<Option<String>, EngineError>> {
            let engine = engine.clone();
            Box::pin(async move {
                match runs::get(&engine, id, Duration::ZERO).await {
                    Ok(run) => serde_json::to_string(&run).map(Some).map_err(EngineError::unreadable),
                    Err(Refusal::NotFound { .. }) => Ok(None),
                    Err(Refusal::Store(error)) => Err(error.into()),
                    Err(refused) => Err(EngineError::unreadable(format!("run {id}: {}", refused.causes()))),
                }
            })
        },
    )
}

/// Refuses to change a group that Heddle keeps for a topic, and to submit runs to it: workers would send their messages.
pub(crate) async fn not_of_topic(engine: &Engine, group: &Name) -> Result<(), Refusal> {
    match engine.store().topic_of_group(group).await? {
        None => Ok(()),
        Some(topic) => Err(Refusal::Conflict {
            detail: format!(
                "the group `{group}` is internal to the topic `{topic}`; change the topic, or send messages to it, instead"
            ),
            existing: None,
        }),
    }
}
