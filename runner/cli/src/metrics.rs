//! The metrics of a node. `heddle_http` adds those of the API and of the whole cluster.

use std::sync::Arc;

use heddle_engine::{Counters, Engine, MessageCounters, NotificationCount};
use heddle_http::app::NodeMetrics;
use heddle_http::metrics::Page;

use crate::traces::Traces;

/// The metrics of this node, as text for `/metrics`.
pub(crate) fn of(engine: Engine, traces: Option<Arc<Traces>>) -> NodeMetrics {
    Arc::new(move |page| {
        runs(page, &engine.counters());
        page.gauge(
            "heddle_database_full_seconds",
            "Seconds for which the database has been refusing writes of this node because its disk is full.",
            engine.store().full_for().as_secs_f64(),
        );
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
        "Runs that ended on this node.",
        counters.runs_ended,
    );
    page.counters(
        "heddle_runs_skipped_total",
        "Runs that were due but skipped, by reason. `heddle_runs_ended_total` includes them.",
        "reason",
        ["overlap", "max_waiting"].into_iter().zip(counters.runs_skipped),
    );
    page.counter(
        "heddle_attempts_ended_total",
        "Attempts whose outcome this node recorded.",
        counters.attempts_ended,
    );
    page.gauge(
        "heddle_attempts_in_hand",
        "Attempts that are running on this node.",
        counters.in_hand as f64,
    );
    page.counter(
        "heddle_runs_given_up_total",
        "Runs that failed because an outcome could not be recorded.",
        counters.given_up,
    );
    page.gauge(
        "heddle_outcomes_set_aside",
        "Attempts whose outcome cannot be recorded and whose run cannot be set to failed.",
        counters.set_aside as f64,
    );
    page.gauges(
        "heddle_rows_set_aside",
        "Runs with a row that this node cannot process (timers, results of sub-runs, starts from SQL, turns, timeouts \
        in queues, ends of offers), by table.",
        "table",
        counters.rows_set_aside.map(|(table, runs)| (table, runs as u64)),
    );
    page.gauge(
        "heddle_lease_held",
        "1 if this node holds its lease, 0 if it has lost the lease and is requesting a new one.",
        f64::from(u8::from(counters.lease_held)),
    );
    page.counter(
        "heddle_leases_lost_total",
        "Leases that this node lost.",
        counters.leases_lost,
    );
    page.gauge(
        "heddle_database_stalled_seconds",
        "Seconds since the database last answered a statement of this node, while statements wait for an answer.",
        counters.stalled_for.as_secs_f64(),
    );
    page.counters(
        "heddle_short_ways_total",
        "How often this node took a short way to do something common, by way.",
        "way",
        counters.short_ways,
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
        "Size of the compiled code of loaded scripts, in bytes.",
        bytes as f64,
    );
}

fn messages(page: &Page, counters: &MessageCounters) {
    page.counter(
        "heddle_messages_ingested_total",
        "Messages that this node accepted.",
        counters.ingested,
    );
    page.counter(
        "heddle_messages_sent_total",
        "Messages that this node sent.",
        counters.sent,
    );
    page.counter(
        "heddle_messages_failed_total",
        "Attempts to send a message that failed on this node.",
        counters.failed,
    );
    page.counter(
        "heddle_message_batches_total",
        "Batches of messages that ended on this node.",
        counters.batches,
    );
    page.gauge(
        "heddle_message_batches_in_hand",
        "Batches of messages that are running on this node.",
        counters.in_hand as f64,
    );
}

fn notifications(page: &Page, counts: &[NotificationCount]) {
    type Read = fn(&NotificationCount) -> u64;
    let metrics: [(&str, &str, Read); 3] = [
        (
            "heddle_notifications_sent_total",
            "Notifications that this node sent, by kind of channel.",
            |count| count.sent,
        ),
        (
            "heddle_notifications_failed_total",
            "Notifications that failed finally on this node, by kind of channel.",
            |count| count.failed,
        ),
        (
            "heddle_notification_tries_failed_total",
            "Failed tries of this node to send a notification, by kind of channel.",
            |count| count.tries_failed,
        ),
    ];
    for (name, help, read) in metrics {
        let values = counts.iter().map(|count| (count.kind, read(count)));
        page.counters(name, help, "kind", values);
    }
}
