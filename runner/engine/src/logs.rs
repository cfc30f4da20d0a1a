//! Writes the log lines of attempts that are under way, so that they can be followed on every node.

use std::sync::Arc;
use std::time::Duration;

use heddle_store::live::LogRow;

use crate::Inner;

/// How long a line may wait before others can see it.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// How many lines one statement writes.
const LINES_MAX: usize = 1_000;

/// How often a statement is tried before its lines are given up: logs must not hold up outcomes for ever.
const TRIES_MAX: u32 = 20;

pub(crate) async fn write(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(FLUSH_EVERY) => {}
        }
        if inner.hands.len() > 0 {
            let lines = inner.hands.drain_logs();
            flush(&inner, lines).await;
        }
    }
}

/// Writes lines; called before the outcome of their attempt is recorded.
pub(crate) async fn flush(inner: &Inner, lines: Vec<LogRow>) {
    for chunk in lines.chunks(LINES_MAX) {
        for attempt in 1..=TRIES_MAX {
            match inner.store.insert_logs(chunk).await {
                Ok(()) => break,
                Err(error) if attempt == TRIES_MAX || inner.stop.is_cancelled() => {
                    tracing::error!(%error, lines = chunk.len(), "log lines are lost");
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, lines = chunk.len(), "cannot write log lines; trying again");
                    tokio::time::sleep(FLUSH_EVERY).await;
                }
            }
        }
    }
}
