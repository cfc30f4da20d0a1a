//! The content of `/metrics`, in the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! Most numbers are read where they are kept anyway, at the moment of asking; what has a distribution is a histogram that
//! lives with what it measures. The library writes them down, with their help, their types and their escaped labels.

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};

/// The `Content-Type` of [`Page::text`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One answer of `/metrics`. A name that is not a metric's, or that is there twice, is a mistake in the program: a debug
/// build panics, another leaves the metric out.
#[derive(Debug, Default)]
pub struct Page(Registry);

impl Page {
    /// Adds a metric that lives elsewhere, such as a histogram.
    pub fn add(&self, metric: Box<dyn Collector>) {
        let added = self.0.register(metric);
        debug_assert!(added.is_ok(), "{added:?}");
    }

    /// A number that only grows.
    pub fn counter(&self, name: &str, help: &str, value: u64) {
        let counter = IntCounter::new(name, help);
        debug_assert!(counter.is_ok(), "{counter:?}");
        if let Ok(counter) = counter {
            counter.inc_by(value);
            self.add(Box::new(counter));
        }
    }

    /// A number that goes up and down.
    pub fn gauge(&self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::new(name, help);
        debug_assert!(gauge.is_ok(), "{gauge:?}");
        if let Ok(gauge) = gauge {
            gauge.set(value);
            self.add(Box::new(gauge));
        }
    }

    /// Numbers that only grow, one for each value of a label.
    pub fn counters<L: AsRef<str>>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) {
        let counters = IntCounterVec::new(Opts::new(name, help), &[label]);
        debug_assert!(counters.is_ok(), "{counters:?}");
        if let Ok(counters) = counters {
            for (of, value) in values {
                counters.with_label_values(&[of.as_ref()]).inc_by(value);
            }
            self.add(Box::new(counters));
        }
    }

    /// Numbers that go up and down, one for each value of a label.
    pub fn gauges<L: AsRef<str>>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) {
        let gauges = GaugeVec::new(Opts::new(name, help), &[label]);
        debug_assert!(gauges.is_ok(), "{gauges:?}");
        if let Ok(gauges) = gauges {
            for (of, value) in values {
                gauges.with_label_values(&[of.as_ref()]).set(value as f64);
            }
            self.add(Box::new(gauges));
        }
    }

    /// All of it as text, in alphabetical order.
    pub fn text(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.0.gather())
            .unwrap_or_else(|error| {
                tracing::error!(%error, "the metrics cannot be written down");
                String::new()
            })
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Histogram, HistogramOpts};

    use super::*;

    #[test]
    fn all_kinds_are_written_down() {
        let page = Page::default();
        page.counter("made_total", "How many were made.", 3);
        page.gauge("level", "How high it stands.", 0.25);
        page.counters("sent_total", "Sent.", "kind", [("email", 2), ("a\"b", 1)]);
        page.gauges("waiting", "Waiting.", "kind", [("email", 7)]);
        let seconds = HistogramOpts::new("took_seconds", "How long it took.").buckets(vec![0.1, 1.0]);
        let seconds = Histogram::with_opts(seconds).unwrap();
        seconds.observe(0.5);
        page.add(Box::new(seconds));
        let text = page.text();
        for line in [
            "# TYPE made_total counter",
            "made_total 3",
            "# HELP level How high it stands.",
            "level 0.25",
            r#"sent_total{kind="email"} 2"#,
            r#"sent_total{kind="a\"b"} 1"#,
            r#"waiting{kind="email"} 7"#,
            "# TYPE took_seconds histogram",
            r#"took_seconds_bucket{le="0.1"} 0"#,
            r#"took_seconds_bucket{le="1"} 1"#,
            r#"took_seconds_bucket{le="+Inf"} 1"#,
            "took_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
