//! What workers report of their claims besides heartbeats: progress, and lines for the log.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::plan::log_lines_max;
use heddle_domain::state::LogLevel;
use uuid::Uuid;

use super::queue::ClaimKey;
use super::{LogRow, insert_logs_in};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// What a worker reports of one claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimReport {
    /// 0 to 1; `None` keeps the last value.
    pub progress: Option<f64>,
    /// A text; `None` keeps the last value.
    pub note: Option<String>,
    /// For the log, in order.
    pub lines: Vec<ReportLine>,
    /// The maximum bytes of the attempt's log; beyond that it is cut, and a line says so.
    pub log_bytes_max: i64,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportLine {
    /// When it was written.
    pub at: Time,
    pub level: LogLevel,
    pub message: String,
    /// A JSON object as text.
    pub fields: Option<String>,
}

/// The size of a log so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    lines: i32,
    bytes: i64,
}

/// Which of the lines go into the log, and its size afterwards.
fn bounded(report: &ClaimReport, mut written: Written, now: Time) -> (Vec<ReportLine>, Written) {
    let mut kept = Vec::with_capacity(report.lines.len());
    let bytes_max = report.log_bytes_max;
    let lines_max = log_lines_max(bytes_max.unsigned_abs());
    // As in the log of a script.
    let limit = |written: &Written| match (written.bytes > bytes_max, i64::from(written.lines) > lines_max as i64) {
        (true, _) => Some(format!("{bytes_max} bytes")),
        (false, true) => Some(format!("{lines_max} lines")),
        (false, false) => None,
    };
    for line in &report.lines {
        if limit(&written).is_some() {
            break;
        }
        written.bytes += line.message.len() as i64 + line.fields.as_ref().map_or(0, String::len) as i64;
        written.lines += 1;
        kept.push(match limit(&written) {
            Some(limit) => ReportLine {
                at: now,
                level: LogLevel::Warn,
                message: format!("log truncated: it reached its limit of {limit}"),
                fields: None,
            },
            None => line.clone(),
        });
    }
    (kept, written)
}

impl Store {
    /// Extends claims as [`Store::heartbeat_claims`] does; stores, in the same transaction, what workers report of
    /// those that were extended.
    pub async fn report_claims(
        &self,
        keys: &[ClaimKey],
        lease_ms: &[Option<i64>],
        reports: &[ClaimReport],
        now: Time,
    ) -> Result<Vec<(Uuid, Time)>, StoreError> {
        transaction!(self, pool, "report_claims", |tx| {
            let extended = super::queue::heartbeat_in(&mut tx, keys, lease_ms).await?;
            let held: HashMap<Uuid, Time> = extended.iter().copied().collect();
            let reported: Vec<(&ClaimKey, &ClaimReport)> = keys
                .iter()
                .zip(reports)
                .filter(|(key, _)| held.contains_key(&key.id))
                .collect();
            let runs: Vec<Uuid> = reported.iter().map(|(key, _)| key.run.0).collect();
            let tasks: Vec<i16> = reported.iter().map(|(key, _)| key.at.key.task as i16).collect();
            let items: Vec<i32> = reported.iter().map(|(key, _)| key.at.key.item_number()).collect();
            // This transaction has locked the rows by extending them.
            let written: HashMap<Uuid, Written> = sqlx::query!(
                "SELECT c.id, c.log_lines, c.log_bytes
               FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS r (run, task, item)
               JOIN heddle.queue_claims c ON c.run = ANY (ARRAY[r.run]) AND c.task = r.task AND c.item = r.item",
                &runs,
                &tasks,
                &items
            )
            .fetch_all(&mut *tx)
            .await?
            .into_iter()
            .map(|row| {
                let written = Written {
                    lines: row.log_lines,
                    bytes: row.log_bytes,
                };
                (row.id, written)
            })
            .collect();
            let (mut rows, mut lines, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
            for (key, report) in &reported {
                let before = written.get(&key.id).copied().unwrap_or_default();
                let (kept, after) = bounded(report, before, now);
                lines.push(after.lines);
                bytes.push(after.bytes);
                rows.extend(kept.into_iter().enumerate().map(|(index, line)| LogRow {
                    run: key.run,
                    at: key.at,
                    line: before.lines + index as i32,
                    time: line.at,
                    level: line.level,
                    message: line.message,
                    fields: line.fields,
                }));
            }
            sqlx::query!(
            "UPDATE heddle.queue_claims c
                SET progress = coalesce(r.progress, c.progress), note = coalesce(r.note, c.note),
                    log_lines = r.lines, log_bytes = r.bytes
               FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::float8[], $5::text[], $6::integer[], $7::bigint[])
                 AS r (run, task, item, progress, note, lines, bytes)
              WHERE c.run = ANY (ARRAY[r.run]) AND c.task = r.task AND c.item = r.item",
            &runs,
            &tasks,
            &items,
            &reported.iter().map(|(_, report)| report.progress).collect::<Vec<_>>() as &[Option<f64>],
            &reported.iter().map(|(_, report)| report.note.clone()).collect::<Vec<_>>() as &[Option<String>],
            &lines,
            &bytes
        )
        .execute(&mut *tx)
        .await?;
            if !rows.is_empty() {
                insert_logs_in(&mut tx, &rows).await?;
            }
            tx.commit().await?;
            Ok(extended)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_once_and_says_so() {
        let now: Time = "2026-11-20T10:00:00Z".parse().unwrap();
        let line = |message: &str| ReportLine {
            at: now,
            level: LogLevel::Info,
            message: message.into(),
            fields: None,
        };
        let report = ClaimReport {
            lines: vec![line("first"), line("second")],
            log_bytes_max: 11,
            ..ClaimReport::default()
        };
        let (kept, written) = bounded(&report, Written::default(), now);
        let said: Vec<&str> = kept.iter().map(|line| line.message.as_str()).collect();
        // 5 + 6 bytes fit exactly.
        assert_eq!(said, ["first", "second"]);
        assert_eq!(written.lines, 2);
        // The next line would exceed the maximum, so a line that says so replaces it; further lines are dropped.
        let (kept, written) = bounded(&report, written, now);
        assert_eq!(kept.len(), 1);
        assert!(kept[0].message.starts_with("log truncated"));
        assert_eq!(bounded(&report, written, now), (Vec::new(), written));
        // Empty lines are bounded too.
        let report = ClaimReport {
            lines: vec![line(""); 70_000],
            ..report
        };
        let (kept, written) = bounded(&report, Written::default(), now);
        assert_eq!(kept.len(), 65_537);
        assert_eq!(
            kept[65_536].message,
            "log truncated: it reached its limit of 65536 lines"
        );
        assert_eq!(bounded(&report, written, now), (Vec::new(), written));
    }
}
