//! What a node counts, as Prometheus reads it. What the API counts, and what the whole cluster has, `heddle_http` adds.

use std::sync::Arc;

use heddle_engine::{Counters, Engine, MessageCounters, NotificationCount};
use heddle_http::app::MetricsText;
use heddle_store::transaction::{BUCKETS, Durations};

use crate::traces::Traces;

/// What `/metrics` says of this node.
pub(crate) fn text_of(engine: Engine, traces: Option<Arc<Traces>>) -> MetricsText {
    Arc::new(move || {
        let mut text = run_metrics(engine.counters());
        text.push_str(&transaction_metrics(&engine.store().transactions()));
        text.push_str(&script_metrics(engine.sandbox().in_memory()));
        text.push_str(&message_metrics(engine.message_counters()));
        text.push_str(&notification_metrics(&engine.notification_counts()));
        text.push_str(&traces.as_ref().map(|traces| traces.metrics()).unwrap_or_default());
        text
    })
}

/// Prometheus text about runs.
fn run_metrics(counters: Counters) -> String {
    let rows_set_aside: String = (counters.rows_set_aside.iter())
        .map(|(table, runs)| format!("heddle_rows_set_aside{{table=\"{table}\"}} {runs}\n"))
        .collect();
    format!(
        "# HELP heddle_runs_ended_total Runs that this node has ended.\n\
         # TYPE heddle_runs_ended_total counter\n\
         heddle_runs_ended_total {}\n\
         # HELP heddle_runs_skipped_total Of these, runs that were due and never begun, by the reason.\n\
         # TYPE heddle_runs_skipped_total counter\n\
         heddle_runs_skipped_total{{reason=\"overlap\"}} {}\n\
         heddle_runs_skipped_total{{reason=\"max_waiting\"}} {}\n\
         # HELP heddle_attempts_ended_total Attempts whose outcome this node has recorded.\n\
         # TYPE heddle_attempts_ended_total counter\n\
         heddle_attempts_ended_total {}\n\
         # HELP heddle_attempts_in_hand Attempts that this node is working on.\n\
         # TYPE heddle_attempts_in_hand gauge\n\
         heddle_attempts_in_hand {}\n\
         # HELP heddle_runs_given_up_total Runs that failed because an outcome could not be recorded.\n\
         # TYPE heddle_runs_given_up_total counter\n\
         heddle_runs_given_up_total {}\n\
         # HELP heddle_outcomes_set_aside Attempts whose outcome cannot be recorded and whose run cannot be ended.\n\
         # TYPE heddle_outcomes_set_aside gauge\n\
         heddle_outcomes_set_aside {}\n\
         # HELP heddle_rows_set_aside Runs whose timers, ends of sub-runs, start from SQL or turn this node cannot handle, by table.\n\
         # TYPE heddle_rows_set_aside gauge\n\
         {rows_set_aside}\
         # HELP heddle_lease_held Whether this node holds its lease (1) or has lost it and asks for a new one (0).\n\
         # TYPE heddle_lease_held gauge\n\
         heddle_lease_held {}\n\
         # HELP heddle_leases_lost_total Leases that this node has lost.\n\
         # TYPE heddle_leases_lost_total counter\n\
         heddle_leases_lost_total {}\n\
         # HELP heddle_database_stalled_seconds For how long the database has left this node's work without any answer.\n\
         # TYPE heddle_database_stalled_seconds gauge\n\
         heddle_database_stalled_seconds {:.3}\n",
        counters.runs_ended,
        counters.runs_skipped[0],
        counters.runs_skipped[1],
        counters.attempts_ended,
        counters.in_hand,
        counters.given_up,
        counters.set_aside,
        u8::from(counters.lease_held),
        counters.leases_lost,
        counters.stalled_for.as_secs_f64(),
    )
}

/// Prometheus text about transactions by which people change things.
fn transaction_metrics(all: &[(&'static str, Durations)]) -> String {
    let mut text = String::from(
        "# HELP heddle_transaction_seconds How long transactions took by which people change things, each try by itself.\n\
         # TYPE heddle_transaction_seconds histogram\n",
    );
    for (name, durations) in all {
        let buckets = BUCKETS.iter().zip(durations.buckets);
        for (bound, count) in buckets
            .map(|(bound, count)| (bound.to_string(), count))
            .chain([("+Inf".into(), durations.count)])
        {
            text.push_str(&format!(
                "heddle_transaction_seconds_bucket{{transaction=\"{name}\",le=\"{bound}\"}} {count}\n"
            ));
        }
        text.push_str(&format!(
            "heddle_transaction_seconds_sum{{transaction=\"{name}\"}} {:.6}\n\
             heddle_transaction_seconds_count{{transaction=\"{name}\"}} {}\n",
            durations.seconds, durations.count
        ));
    }
    text.push_str(
        "# HELP heddle_transactions_repeated_total Of these, those that met another transaction and were tried again.\n\
         # TYPE heddle_transactions_repeated_total counter\n",
    );
    for (name, durations) in all {
        text.push_str(&format!(
            "heddle_transactions_repeated_total{{transaction=\"{name}\"}} {}\n",
            durations.repeated
        ));
    }
    text
}

/// Prometheus text about compiled scripts.
fn script_metrics((scripts, bytes): (usize, u64)) -> String {
    format!(
        "# HELP heddle_scripts_in_memory Script versions that this node keeps ready to run.\n\
         # TYPE heddle_scripts_in_memory gauge\n\
         heddle_scripts_in_memory {scripts}\n\
         # HELP heddle_scripts_in_memory_bytes The bytes of their compiled code.\n\
         # TYPE heddle_scripts_in_memory_bytes gauge\n\
         heddle_scripts_in_memory_bytes {bytes}\n"
    )
}

/// Prometheus text about scheduled messages.
fn message_metrics(counters: MessageCounters) -> String {
    format!(
        "# HELP heddle_messages_ingested_total Messages that this node has taken in.\n\
         # TYPE heddle_messages_ingested_total counter\n\
         heddle_messages_ingested_total {}\n\
         # HELP heddle_messages_sent_total Messages that this node has handed over.\n\
         # TYPE heddle_messages_sent_total counter\n\
         heddle_messages_sent_total {}\n\
         # HELP heddle_messages_failed_total Attempts of messages that failed here.\n\
         # TYPE heddle_messages_failed_total counter\n\
         heddle_messages_failed_total {}\n\
         # HELP heddle_message_batches_total Batches that this node has ended.\n\
         # TYPE heddle_message_batches_total counter\n\
         heddle_message_batches_total {}\n\
         # HELP heddle_message_batches_in_hand Batches that this node is working on.\n\
         # TYPE heddle_message_batches_in_hand gauge\n\
         heddle_message_batches_in_hand {}\n",
        counters.ingested, counters.sent, counters.failed, counters.batches, counters.in_hand
    )
}

/// Prometheus text about people told.
fn notification_metrics(counts: &[NotificationCount]) -> String {
    let mut text = String::new();
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
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n"));
        for count in counts {
            text.push_str(&format!("{name}{{kind=\"{}\"}} {}\n", count.kind, read(count)));
        }
    }
    text
}
