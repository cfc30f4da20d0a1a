//! Runs that no index returns in the order of ids: they are read from the newest on, a bounded number for each answer,
//! and the cursor says where it stopped.
//!
//! Labels have an index, but not in that order. So the newest runs are read first, which finds frequent labels. Rare
//! labels are found by the index, at any time: up to a thousand runs are read and sorted. Labels of some thousand runs
//! are between these: they are read by the index, one span after the other.

use std::collections::BTreeSet;

use chrono::{NaiveTime, TimeDelta};
use heddle_domain::Time;
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::sought::{Sought, Users, resolved_among, spans, users_among};
use super::statement::{Hot, Part, push_checks, push_labels, push_part, push_reach, push_span, push_states};
use crate::StoreError;
use crate::database::PgSession;
use crate::span::{self, Span};

/// How many runs one answer reads.
const READ_MAX: i64 = 10_000;

/// How many runs one answer reads, if it has to read their revisions, too.
const READ_WITH_REVISIONS_MAX: i64 = 4_000;

/// How many runs are read before those with the wanted labels are looked up in the index of labels.
const READ_WITH_LABELS_MAX: i64 = 2_000;

/// How many runs with labels are read from a span, and sorted; if there are more, the newest part of the span is read
/// first.
const LABELLED_MAX: i64 = 1_000;

/// The number of parts into which such a span is divided. Parts that are still too large are divided again; with only two
/// parts at a time, this would happen more often, and the same runs would be read each time.
const PARTS: i64 = 7;

/// In a day with more of them, how many of its newest runs are read, one step after the other.
const READ_OF_DAY: [i64; 2] = [4_000, 16_000];

/// The first step reads this many runs for each wanted one; each later step reads four times as many.
const READ_PER_HIT: i64 = 4;

/// The columns by which a run is matched.
const COLUMNS: &str = "l.id, l.revision_id, l.resolution_id, l.group_id, l.trigger, l.labels, l.logical_time";

/// The result of a search.
pub(super) struct Found {
    /// Newest first, up to as many as were wanted.
    pub(super) runs: Vec<Uuid>,
    /// Set if the search stopped before it found as many as were wanted: it has read no run that was created before
    /// this one.
    pub(super) stopped: Option<Uuid>,
}

/// A run that may match.
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

/// The newest matching runs, up to `wanted`.
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
    let limit = usize::try_from(wanted).unwrap_or(0);
    let (mut looked_at, mut next_read, mut by_index) = (0, (wanted * READ_PER_HIT).min(most), false);
    for mut rest in spans(sought, now) {
        loop {
            let at_once = if by_index { wanted } else { next_read };
            let (hits, seen, last) = match by_index {
                true => labelled_of(session, sought, rest, at_once).await?,
                false => newest_of(session, sought, rest, at_once).await?,
            };
            let asked_for = used(session, sought, hits).await?;
            runs.extend(asked_for);
            if runs.len() as i64 >= wanted {
                runs.truncate(limit);
                return Ok(Found { runs, stopped: None });
            }
            looked_at += seen;
            // So few of the runs have the labels that reading as many again would not find enough: the index of labels is
            // faster then.
            let few = labelled && (runs.len() as i64).saturating_mul(most) < wanted.saturating_mul(looked_at);
            next_read = if few { 0 } else { (next_read * 4).min(most - looked_at) };
            if !by_index && next_read <= 0 {
                if !labelled {
                    return Ok(Found { runs, stopped: last });
                }
                by_index = true;
                let before = last.unwrap_or(rest.first);
                if let Some(hits) = few_labelled(session, sought, before).await? {
                    runs.extend(used(session, sought, hits).await?);
                    runs.truncate(limit);
                    return Ok(Found { runs, stopped: None });
                }
            }
            if seen < at_once {
                break;
            }
            rest.after = last.unwrap_or(rest.first);
        }
    }
    Ok(Found { runs, stopped: None })
}

/// Of the newest `at_once` runs of a span, those whose rows match the filter, newest first; how many runs were read,
/// and the oldest of them.
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
    // The first row is the summary; the others are the matches.
    let Some((summary, rows)) = rows.split_first() else {
        return Ok((Vec::new(), 0, None));
    };
    let mut hits = rows.iter().map(Hit::read).collect::<Result<Vec<_>, _>>()?;
    hits.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.id));
    Ok((hits, summary.try_get(1)?, summary.try_get(0)?))
}

/// All runs before this one whose rows match the filter, newest first, by the index of labels; `None`: more than
/// [`LABELLED_MAX`] runs have the labels, whatever the other conditions.
///
/// The session keeps the plan: making one for all days costs more than the search itself. The statement leaves the
/// planner no other index: the other conditions are checked outside of it.
async fn few_labelled(
    session: &mut PgSession,
    sought: &Sought<'_>,
    before: Uuid,
) -> Result<Option<Vec<Hit>>, StoreError> {
    plan_by_labels(session, "force_generic_plan").await?;
    let mut query = QueryBuilder::<Postgres>::new("WITH labelled AS MATERIALIZED (");
    for (index, table) in ["runs_done", "runs_live"].into_iter().enumerate() {
        if index > 0 {
            query.push(" UNION ALL ");
        }
        query.push(format!(
            "(SELECT {COLUMNS}, l.state, l.created_at FROM heddle.{table} l WHERE true"
        ));
        push_labels(&mut query, sought);
        query.push(" LIMIT ").push_bind(LABELLED_MAX + 1).push(")");
    }
    query
        .push(
            ") SELECT NULL::uuid, count(*), NULL::bigint FROM labelled
               UNION ALL
               SELECT l.id, l.revision_id, l.resolution_id FROM labelled l WHERE l.id < ",
        )
        .push_bind(before);
    push_states(&mut query, sought);
    push_reach(&mut query, sought);
    push_checks(&mut query, sought);
    let rows = query.build().fetch_all(&mut *session).await?;
    let counted: Option<i64> = rows.first().map(|row| row.try_get(1)).transpose()?;
    if counted.is_none_or(|count| count > LABELLED_MAX) {
        plan_by_labels(session, "force_custom_plan").await?;
        return Ok(None);
    }
    let mut hits = rows.iter().skip(1).map(Hit::read).collect::<Result<Vec<_>, _>>()?;
    hits.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.id));
    Ok(Some(hits))
}

/// Makes statements use the index of labels, and sets whether plans are kept or made each time.
async fn plan_by_labels(session: &mut PgSession, mode: &str) -> Result<(), StoreError> {
    sqlx::query!(
        r#"SELECT set_config('enable_bitmapscan', 'on', true) AS "scan!",
                  set_config('enable_sort', 'on', true) AS "sort!",
                  set_config('plan_cache_mode', $1, true) AS "mode!""#,
        mode
    )
    .fetch_one(session)
    .await?;
    Ok(())
}

/// The newest `at_once` runs of a span with the labels and the other conditions on rows, by the index of labels. It
/// returns them in no order: if very many have the labels, the span is first made smaller.
async fn labelled_of(
    session: &mut PgSession,
    sought: &Sought<'_>,
    span: Span,
    at_once: i64,
) -> Result<(Vec<Hit>, i64, Option<Uuid>), StoreError> {
    let mut hits: Vec<Hit> = Vec::new();
    // The newest part is last.
    let mut left = vec![span];
    while let Some(part) = left.pop() {
        let wanted = at_once - hits.len() as i64;
        if wanted <= 0 {
            break;
        }
        let mut some = labelled(session, sought, part, Order::Any, LABELLED_MAX + 1).await?;
        if some.len() as i64 <= LABELLED_MAX {
            some.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.id));
            some.truncate(usize::try_from(wanted).unwrap_or(0));
            hits.extend(some);
            continue;
        }
        let parts = parts_of(part);
        if parts.is_empty() {
            hits.extend(labelled_of_day(session, sought, part, wanted).await?);
        }
        left.extend(parts);
    }
    let (seen, last) = (hits.len() as i64, hits.last().map(|hit| hit.id));
    Ok((hits, seen, last))
}

/// The newest of very many runs of a day with the labels: they are probably among the day's newest; otherwise all are
/// sorted.
async fn labelled_of_day(
    session: &mut PgSession,
    sought: &Sought<'_>,
    day: Span,
    wanted: i64,
) -> Result<Vec<Hit>, StoreError> {
    for looked_at in READ_OF_DAY {
        let (mut hits, seen, _) = newest_of(session, sought, day, looked_at).await?;
        if hits.len() as i64 >= wanted || seen < looked_at {
            hits.truncate(usize::try_from(wanted).unwrap_or(0));
            return Ok(hits);
        }
    }
    labelled(session, sought, day, Order::NewestFirst, wanted).await
}

/// The parts of a span of more than a day, the newest last: whole days, each part at most a month, and the rest.
fn parts_of(span: Span) -> Vec<Span> {
    let (Some(from), Some(to)) = (span::made(span.first), span::made(span.after)) else {
        return Vec::new();
    };
    let day = TimeDelta::days(1);
    // The newest span has no end at which its parts could be counted; it is read as a whole.
    if span.after == Uuid::max() || to - from <= day {
        return Vec::new();
    }
    let each = TimeDelta::days((to - from).num_days() / PARTS).clamp(day, day * 30);
    let mut parts = Vec::new();
    let mut after = to;
    for _ in 1..PARTS {
        let first = (after - each).date_naive().and_time(NaiveTime::MIN).and_utc();
        if first <= from {
            break;
        }
        parts.push(Span {
            first: span::floor(first),
            after: span::floor(after),
        });
        after = first;
    }
    // The span is only a little longer than a day: it is not divided.
    if parts.is_empty() {
        return parts;
    }
    parts.push(Span {
        first: span.first,
        after: span::floor(after),
    });
    parts.reverse();
    parts
}

/// The order in which runs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Any,
    NewestFirst,
}

/// Runs of a span with the labels and the other conditions on rows, up to `limit`, by the index of labels.
async fn labelled(
    session: &mut PgSession,
    sought: &Sought<'_>,
    span: Span,
    order: Order,
    limit: i64,
) -> Result<Vec<Hit>, StoreError> {
    let mut query = QueryBuilder::<Postgres>::new("SELECT id, revision_id, resolution_id FROM (");
    for table in ["heddle.runs_done", "heddle.runs_live"] {
        if table == "heddle.runs_live" {
            query.push(" UNION ALL ");
        }
        // With `OFFSET 0`, the planner cannot get the order from another index by reading all runs.
        query.push(format!(
            "(SELECT l.id, l.revision_id, l.resolution_id FROM {table} l WHERE true"
        ));
        push_span(&mut query, span);
        push_states(&mut query, sought);
        push_reach(&mut query, sought);
        push_checks(&mut query, sought);
        query.push(" OFFSET 0)");
    }
    query.push(match order {
        Order::Any => ") AS labelled LIMIT ",
        Order::NewestFirst => ") AS labelled ORDER BY id DESC LIMIT ",
    });
    let rows = query.push_bind(limit).build().fetch_all(session).await?;
    rows.iter().map(Hit::read).collect()
}

/// Those of these runs whose revisions use the queues and scripts of the filter.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_days_has_parts() {
        let id = |text: &str| span::floor(text.parse().unwrap());
        let of = |first, after| parts_of(Span { first, after });
        let (first, after) = (id("2026-10-08T00:00:00Z"), id("2026-10-11T00:00:00Z"));
        let days: Vec<Uuid> = of(first, after).into_iter().map(|part| part.first).collect();
        assert_eq!(days, [first, id("2026-10-09T00:00:00Z"), id("2026-10-10T00:00:00Z")]);
        // Not smaller than days; today has no end.
        assert!(of(first, id("2026-10-09T00:00:00Z")).is_empty());
        assert!(of(id("2026-10-08T07:00:00Z"), id("2026-10-08T09:00:00Z")).is_empty());
        assert!(of(first, Uuid::max()).is_empty());
        assert!(of(id("2026-10-08T12:00:00Z"), id("2026-10-09T13:00:00Z")).is_empty());
        // The rest is months, and what is left.
        let rest = of(Uuid::nil(), after);
        assert_eq!(
            (rest[0].first, rest[0].after),
            (Uuid::nil(), id("2026-04-14T00:00:00Z"))
        );
        // Nothing is left out, and each part is smaller than the whole.
        for days in 2..90 {
            let after = span::floor("2026-10-08T12:00:00Z".parse::<Time>().unwrap() + TimeDelta::days(days));
            let parts = of(first, after);
            assert!(parts.len() > 1 && parts.len() <= PARTS as usize, "{days}: {parts:?}");
            assert_eq!((parts[0].first, parts[parts.len() - 1].after), (first, after), "{days}");
            assert!(
                parts.windows(2).all(|two| two[0].after == two[1].first),
                "{days}: {parts:?}"
            );
        }
    }
}
