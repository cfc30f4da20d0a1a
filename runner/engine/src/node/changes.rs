//! The log of changes: each node follows it and drops what it remembers of what was changed elsewhere; and the ear of a
//! node, which hears that the log has grown, and what other nodes tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_store::change::CHANGES_CHANNEL;
use parking_lot::Mutex;

use super::Node;
use super::news::{CHANNEL, News, decode};
use super::part::Parts;
use super::signals::Signal;
use crate::EngineError;

/// How often changes are looked for without being told.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// How many changes one statement reads.
const PAGE: i64 = 500;

/// Hears of changes: kind and name.
type Listener = Box<dyn Fn(&str, &str) + Send + Sync>;

/// How far a node has followed the log, and who else hears of it.
#[derive(Default)]
pub(crate) struct Changes {
    position: AtomicI64,
    listeners: Mutex<Vec<Listener>>,
}

impl Changes {
    /// Up to which entry the node has followed.
    pub(super) fn position(&self) -> i64 {
        self.position.load(Ordering::Acquire)
    }

    /// Calls `listener` for each change, behind the services.
    pub(crate) fn listen(&self, listener: impl Fn(&str, &str) + Send + Sync + 'static) {
        self.listeners.lock().push(Box::new(listener));
    }
}

/// Drops from memory what was changed since this was called last.
pub(crate) async fn follow_changes(node: &Node, parts: &Parts) -> Result<(), EngineError> {
    let changes = &node.changes;
    loop {
        let page = node.store.changes_since(changes.position(), PAGE).await?;
        for change in &page {
            node.catalog.forget(&change.kind, &change.name);
            parts.changed(change).await?;
            for listener in changes.listeners.lock().iter() {
                listener(&change.kind, &change.name);
            }
            changes.position.store(change.id, Ordering::Release);
        }
        if (page.len() as i64) < PAGE {
            return Ok(());
        }
    }
}

/// Listens to other nodes and follows the log of changes, until the node stops.
pub(crate) async fn follow(node: Arc<Node>, parts: Parts) {
    let mut listener = None;
    loop {
        if listener.is_none() {
            listener = match node.store.listen(&[CHANNEL, CHANGES_CHANNEL]).await {
                Ok(listener) => Some(listener),
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "cannot listen; polling goes on");
                    None
                }
            };
        }
        if let Err(error) = follow_changes(&node, &parts).await {
            tracing::warn!(error = %Chain(&error), "cannot follow changes");
        }
        let heard = async {
            match &mut listener {
                Some(listener) => listener.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(FOLLOW_EVERY) => {}
            heard = heard => match heard {
                Ok((channel, payload)) if channel == CHANNEL => hear(&node, &parts, &payload),
                Ok(_) => {}
                Err(_) => listener = None,
            },
        }
    }
}

fn hear(node: &Node, parts: &Parts, payload: &str) {
    for news in decode(payload) {
        match news {
            News::Work => node.signals.raise(Signal::Work),
            News::Stopped => node.signals.raise(Signal::Orphans),
            News::Ended(_) | News::ManyEnded | News::Reopened(_) | News::Filled(_) => parts.heard(&news),
        }
    }
}
