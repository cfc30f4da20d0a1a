//! What a node counts. What the API counts, and what the whole cluster has, `heddle_http` adds.

use std::sync::Arc;

use heddle_engine::{Counters, Engine, MessageCounters, NotificationCount};
use heddle_http::app::NodeMetrics;
use heddle_http::metrics::Page;

use crate::traces::Traces;

/// What `/metrics` says of this node.
pub(crate) fn of(engine: Engine, traces: Option<Arc<Traces>>) -> NodeMetrics {
    Arc::new(move |page| {
        runs(page, &engine.counters());
        for histogram in engine.histograms() {
            page.add(Box::new(histogram.clone()));
        }
        for metric in engine.store().transaction_metrics() {
            page.add(metric);
        }
        scripts(page, engine.sandbox().in_memory());
        messages(page, &engine.message_counters());
        notifications(page, &engine.notification_counts());
        if let Some(traces) = &traces {
            traces.tell(page);
        }
    })
}

fn runs(page: &Page, counters: &Counters) {
    page.counter(
        "heddle_runs_ended_total",
        "Runs that this node has ended.",
        counters.runs_ended,
    );
    page.counters(
        "heddle_runs_skipped_total",
        "Of these, runs that were due and never begun, by the reason.",
        "reason",
        ["overlap", "max_waiting"].into_iter().zip(counters.runs_skipped),
    );
    page.counter(
        "heddle_attempts_ended_total",
        "Attempts whose outcome this node has recorded.",
        counters.attempts_ended,
    );
    page.gauge(
        "heddle_attempts_in_hand",
        "Attempts that this node is working on.",
        counters.in_hand as f64,
    );
    page.counter(
        "heddle_runs_given_up_total",
        "Runs that failed because an outcome could not be recorded.",
        counters.given_up,
    );
    page.gauge(
        "heddle_outcomes_set_aside",
        "Attempts whose outcome cannot be recorded and whose run cannot be ended.",
        counters.set_aside as f64,
    );
    page.gauges(
        "heddle_rows_set_aside",
        "Runs whose timers, ends of sub-runs, start from SQL or turn this node cannot handle, by table.",
        "table",
        counters.rows_set_aside.map(|(table, runs)| (table, runs as u64)),
    );
    page.gauge(
        "heddle_lease_held",
        "Whether this node holds its lease (1) or has lost it and asks for a new one (0).",
        f64::from(u8::from(counters.lease_held)),
    );
    page.counter(
        "heddle_leases_lost_total",
        "Leases that this node has lost.",
        counters.leases_lost,
    );
    page.gauge(
        "heddle_database_stalled_seconds",
        "For how long the database has left this node's work without any answer.",
        counters.stalled_for.as_secs_f64(),
    );
}

fn scripts(page: &Page, (scripts, bytes): (usize, u64)) {
    page.gauge(
        "heddle_scripts_in_memory",
        "Script versions that this node keeps ready to run.",
        scripts as f64,
    );
    page.gauge(
        "heddle_scripts_in_memory_bytes",
        "The bytes of their compiled code.",
        bytes as f64,
    );
}

fn messages(page: &Page, counters: &MessageCounters) {
    page.counter(
        "heddle_messages_ingested_total",
        "Messages that this node has taken in.",
        counters.ingested,
    );
    page.counter(
        "heddle_messages_sent_total",
        "Messages that this node has handed over.",
        counters.sent,
    );
    page.counter(
        "heddle_messages_failed_total",
        "Attempts of messages that failed here.",
        counters.failed,
    );
    page.counter(
        "heddle_message_batches_total",
        "Batches that this node has ended.",
        counters.batches,
    );
    page.gauge(
        "heddle_message_batches_in_hand",
        "Batches that this node is working on.",
        counters.in_hand as f64,
    );
}

fn notifications(page: &Page, counts: &[NotificationCount]) {
    type Read = fn(&NotificationCount) -> u64;
    let metrics: [(&str, &str, Read); 3] = [
        (
            "heddle_notifications_sent_total",
            "Notifications that this node has sent, by kind of channel.",
            |count| count.sent,
        ),
        (
            "heddle_notifications_failed_total",
            "Notifications that this node has given up.",
            |count| count.failed,
        ),
        (
            "heddle_notification_tries_failed_total",
            "Tries of this node to send a notification that failed.",
            |count| count.tries_failed,
        ),
    ];
    for (name, help, read) in metrics {
        let values = counts.iter().map(|count| (count.kind, read(count)));
        page.counters(name, help, "kind", values);
    }
}
