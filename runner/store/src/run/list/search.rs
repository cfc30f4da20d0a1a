//! Runs that no index leads to in the order of ids: they are looked at from the newest on, a bounded number for each answer,
//! whose cursor says where it stopped.
//!
//! Labels have an index, but not in that order: all that has them in a span is read and sorted. So the newest runs are
//! looked at first, which finds labels that many have; what is not found among these few have.

use std::collections::BTreeSet;

use heddle_domain::Time;
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::sought::{Sought, Users, resolved_among, users_among};
use super::spans;
use super::statement::{Hot, Part, push_checks, push_part, push_reach, push_span};
use crate::StoreError;
use crate::database::PgSession;
use crate::span::Span;

/// So many runs one answer looks at.
const READ_MAX: i64 = 10_000;

/// And so many where revisions have to be looked at, too.
const READ_WITH_REVISIONS_MAX: i64 = 4_000;

/// So many before those with labels are taken from the index of labels.
const READ_WITH_LABELS_MAX: i64 = 2_000;

/// The first look is at so many for each that is wanted; each later one at four times as many.
const READ_PER_HIT: i64 = 4;

/// What is read of a run to tell whether it is asked for.
const COLUMNS: &str = "l.id, l.revision_id, l.resolution_id, l.group_id, l.trigger, l.labels, l.logical_time";

/// What an answer has found.
pub(super) struct Found {
    /// Newest first, up to as many as were wanted.
    pub(super) runs: Vec<Uuid>,
    /// There were fewer, and it has stopped here: it has looked at nothing that was made before.
    pub(super) stopped: Option<Uuid>,
}

/// A run that may be asked for.
struct Hit {
    id: Uuid,
    revision: i64,
    resolution: Option<i64>,
}

impl Hit {
    fn read(row: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.try_get(0)?,
            revision: row.try_get(1)?,
            resolution: row.try_get(2)?,
        })
    }
}

/// The newest runs that are asked for, up to `wanted`.
pub(super) async fn search(
    session: &mut PgSession,
    sought: &Sought<'_>,
    now: Time,
    wanted: i64,
) -> Result<Found, StoreError> {
    let of_revisions = sought.users.is_some();
    let labelled = !sought.filter.labels.is_empty();
    let most = match (labelled, of_revisions) {
        (true, _) => READ_WITH_LABELS_MAX,
        (false, true) => READ_WITH_REVISIONS_MAX,
        (false, false) => READ_MAX,
    };
    let mut runs: Vec<Uuid> = Vec::new();
    let (mut looked_at, mut next_read, mut by_index) = (0, (wanted * READ_PER_HIT).min(most), false);
    for mut rest in spans(sought.filter, now) {
        loop {
            let at_once = if by_index { wanted } else { next_read };
            let (hits, seen, last) = match by_index {
                true => labelled_of(session, sought, rest, at_once).await?,
                false => newest_of(session, sought, rest, at_once).await?,
            };
            let asked_for = used(session, sought, hits).await?;
            runs.extend(asked_for);
            if runs.len() as i64 >= wanted {
                runs.truncate(usize::try_from(wanted).unwrap_or(0));
                return Ok(Found { runs, stopped: None });
            }
            looked_at += seen;
            next_read = (next_read * 4).min(most - looked_at);
            if !by_index && next_read <= 0 {
                if !labelled {
                    return Ok(Found { runs, stopped: last });
                }
                by_index = true;
                sqlx::query!(
                    r#"SELECT set_config('enable_bitmapscan', 'on', true) AS "scan!",
                              set_config('enable_sort', 'on', true) AS "sort!""#
                )
                .fetch_one(&mut *session)
                .await?;
            }
            if seen < at_once {
                break;
            }
            rest.after = last.unwrap_or(rest.first);
        }
    }
    Ok(Found { runs, stopped: None })
}

/// Of the newest `at_once` runs of a span those that are asked for as far as their rows tell, newest first; how many there
/// were, and the oldest.
async fn newest_of(
    session: &mut PgSession,
    sought: &Sought<'_>,
    span: Span,
    at_once: i64,
) -> Result<(Vec<Hit>, i64, Option<Uuid>), StoreError> {
    let mut query = QueryBuilder::<Postgres>::new("WITH seen AS MATERIALIZED (");
    let part = Part {
        columns: (COLUMNS, COLUMNS),
        hot: &[Hot::Any],
        span: Some(span),
        live: true,
        live_in_span: true,
        bare: true,
        limit: at_once,
    };
    push_part(&mut query, sought, part);
    query.push(
        ") SELECT (SELECT o.id FROM seen o ORDER BY o.id LIMIT 1), (SELECT count(*) FROM seen), NULL::bigint
           UNION ALL
           SELECT l.id, l.revision_id, l.resolution_id FROM seen l WHERE true",
    );
    push_checks(&mut query, sought);
    let rows = query.build().fetch_all(session).await?;
    // What was seen comes first, the rest as it is found.
    let Some((summary, rows)) = rows.split_first() else {
        return Ok((Vec::new(), 0, None));
    };
    let mut hits = rows.iter().map(Hit::read).collect::<Result<Vec<_>, _>>()?;
    hits.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.id));
    Ok((hits, summary.try_get(1)?, summary.try_get(0)?))
}

/// The newest `at_once` runs of a span that have the labels, and what else a row tells, by the index of labels.
async fn labelled_of(
    session: &mut PgSession,
    sought: &Sought<'_>,
    span: Span,
    at_once: i64,
) -> Result<(Vec<Hit>, i64, Option<Uuid>), StoreError> {
    let mut query = QueryBuilder::<Postgres>::new("SELECT id, revision_id, resolution_id FROM (");
    for table in ["heddle.runs_done", "heddle.runs_live"] {
        if table == "heddle.runs_live" {
            query.push(" UNION ALL ");
        }
        // With `OFFSET 0` there is no order to be had from another index by looking at all runs.
        query.push(format!(
            "(SELECT l.id, l.revision_id, l.resolution_id FROM {table} l WHERE true"
        ));
        push_span(&mut query, span);
        if !sought.filter.states.is_empty() {
            query
                .push(" AND l.state = ANY (")
                .push_bind(sought.filter.states.clone())
                .push(")");
        }
        push_reach(&mut query, sought);
        push_checks(&mut query, sought);
        query.push(" OFFSET 0)");
    }
    query.push(") AS labelled ORDER BY id DESC LIMIT ").push_bind(at_once);
    let rows = query.build().fetch_all(session).await?;
    let hits = rows.iter().map(Hit::read).collect::<Result<Vec<_>, _>>()?;
    let (seen, last) = (hits.len() as i64, hits.last().map(|hit| hit.id));
    Ok((hits, seen, last))
}

/// Those of these runs whose revisions use the queues and scripts that are asked for.
async fn used(session: &mut PgSession, sought: &Sought<'_>, hits: Vec<Hit>) -> Result<Vec<Uuid>, StoreError> {
    let Some(Users::Many { written }) = &sought.users else {
        return Ok(hits.into_iter().map(|hit| hit.id).collect());
    };
    let revisions: BTreeSet<i64> = hits.iter().map(|hit| hit.revision).collect();
    let revisions: Vec<i64> = revisions.into_iter().collect();
    let using: BTreeSet<i64> = users_among(session, sought.filter, written, &revisions)
        .await?
        .into_iter()
        .collect();
    let mut resolved = None;
    if sought.is_of_versions() {
        let resolutions: BTreeSet<i64> = hits.iter().filter_map(|hit| hit.resolution).collect();
        let resolutions: Vec<i64> = resolutions.into_iter().collect();
        let found = resolved_among(session, sought.filter, &resolutions).await?;
        resolved = Some(found.into_iter().collect::<BTreeSet<i64>>());
    }
    let is_asked_for = |hit: &Hit| {
        using.contains(&hit.revision)
            && resolved
                .as_ref()
                .is_none_or(|resolved| hit.resolution.is_some_and(|id| resolved.contains(&id)))
    };
    Ok(hits.into_iter().filter(is_asked_for).map(|hit| hit.id).collect())
}
