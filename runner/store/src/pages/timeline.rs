//! The timeline of the overview: which groups have something there, and the bars of those that have many runs.
//!
//! A group that is busy must not hide the others, so nothing here reads the newest runs of all groups together. The
//! statements go from one group to the next in an index that begins with the group: they read a few rows for each group,
//! however many runs it has.

use heddle_domain::Time;
use heddle_domain::spec::validate::SCHEDULES_MAX;
use uuid::Uuid;

use super::overview::{BarNumbers, BarRow};
use crate::database::PgSession;
use crate::span::{self, BEGIN_BY_SPANS};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A group on the overview's timeline.
#[derive(Clone, Debug)]
pub struct TimelineRow {
    pub id: i64,
    pub name: String,
}

/// Why a group is on the timeline, in the order in which groups get their places.
#[derive(Clone, Copy, Debug)]
enum Place {
    Failed,
    Live,
    Due,
    Ended,
}

impl Place {
    const ALL: [Self; 4] = [Self::Failed, Self::Live, Self::Due, Self::Ended];
}

/// The ids of runs that were created in the timeline's past.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The first id of the day of the window's beginning. The statements below look for the next group among whole days: so
    /// the first row that a look into an index finds is one that counts, and no run of a busy group is skipped one by one.
    day: Uuid,
    pub(super) first: Uuid,
    pub(super) after: Uuid,
}

impl Window {
    pub(super) fn new(since: Time, now: Time) -> Self {
        let day = since.date_naive().and_time(chrono::NaiveTime::MIN).and_utc();
        // Days that are to come have partitions too. A clock is not further ahead than this.
        let ahead = now.checked_add_signed(span::AHEAD);
        Self {
            day: span::floor(day),
            first: span::floor(since),
            after: ahead.map_or(Uuid::max(), span::floor),
        }
    }
}

impl Store {
    /// Groups that have something between these times, at most `limit`: first those with a run that failed, then those
    /// with one that goes on, then those that are due, then all others that ran. However many runs one group has, the others
    /// are found.
    pub async fn page_timeline(&self, since: Time, until: Time, limit: i64) -> Result<Vec<TimelineRow>, StoreError> {
        transaction!(self, reads, "page_timeline", once(BEGIN_BY_SPANS), |tx| {
            let window = Window::new(since, span::now(&mut tx).await?);
            let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
            let mut rows: Vec<TimelineRow> = Vec::new();
            for place in Place::ALL {
                let found = match place {
                    Place::Failed => groups_failed(&mut tx, window, limit).await?,
                    Place::Live => groups_live(&mut tx, limit).await?,
                    Place::Due => groups_due(&mut tx, until, limit).await?,
                    Place::Ended => groups_ended(&mut tx, window, limit).await?,
                };
                for row in found {
                    if rows.len() < wanted && rows.iter().all(|one| one.id != row.id) {
                        rows.push(row);
                    }
                }
                if rows.len() >= wanted {
                    break;
                }
            }
            tx.commit().await?;
            Ok(rows)
        })
    }

    /// Bars of groups that have more runs than are drawn, spread over the time since `since`: of each hour and each of these
    /// groups, the newest `each` runs that have ended, and the newest `each` that failed. Newest first.
    pub async fn page_spread_bars(&self, groups: &[i64], since: Time, each: i64) -> Result<Vec<BarRow>, StoreError> {
        transaction!(self, reads, "page_spread_bars", once(BEGIN_BY_SPANS), |tx| {
            let hours = hours(since, span::now(&mut tx).await?);
            let (first, after): (Vec<Uuid>, Vec<Uuid>) = hours.into_iter().unzip();
            let mut bars = spread(&mut tx, groups, &first, &after, each).await?;
            bars.extend(spread_failed(&mut tx, groups, &first, &after, each).await?);
            tx.commit().await?;
            bars.sort_unstable_by_key(|bar| (bar.group_id, std::cmp::Reverse(bar.id)));
            bars.dedup_by_key(|bar| bar.id);
            bars.into_iter().map(BarNumbers::known).collect()
        })
    }
}

/// The hours since then as ids, each with its first id and the first one after it. They are whole hours, so that the runs of
/// an hour that is over stay the same; the first one begins with `since`.
fn hours(since: Time, now: Time) -> Vec<(Uuid, Uuid)> {
    let ahead = now.checked_add_signed(span::AHEAD).unwrap_or(now);
    let mut hours = Vec::new();
    let mut from = since;
    while from <= ahead {
        let whole = from
            .timestamp()
            .div_euclid(3_600)
            .saturating_add(1)
            .saturating_mul(3_600);
        let Some(to) = Time::from_timestamp(whole, 0) else {
            break;
        };
        hours.push((span::floor(from), span::floor(to)));
        from = to;
    }
    hours
}

/// The newest ended runs of each of these groups in each of these periods.
async fn spread(
    session: &mut PgSession,
    groups: &[i64],
    first: &[Uuid],
    after: &[Uuid],
    each: i64,
) -> Result<Vec<BarNumbers>, StoreError> {
    let (oldest, newest) = (first.first().copied(), after.last().copied());
    Ok(sqlx::query_as!(
        BarNumbers,
        r#"SELECT l.group_id AS "group_id!", l.id AS "id!", l.state AS "state!", l.trigger AS "trigger!",
                  l.created_at AS "created_at!", l.started_at, l.reopened_at, l.finished_at, l.logical_time AS "logical_time!"
             FROM UNNEST($1::bigint[]) AS n (id)
            CROSS JOIN UNNEST($2::uuid[], $3::uuid[]) AS h (first, after)
            CROSS JOIN LATERAL (
                 SELECT d.group_id, d.id, d.state, d.trigger, d.created_at, d.started_at, d.reopened_at, d.finished_at,
                        d.logical_time
                   FROM heddle.runs_done d
                  WHERE d.group_id = ANY (ARRAY[n.id]) AND d.id >= h.first AND d.id < h.after
                    AND d.id >= $4 AND d.id < $5
                  ORDER BY d.group_id DESC, d.id DESC LIMIT $6) AS l"#,
        groups,
        first,
        after,
        oldest,
        newest,
        each
    )
    .fetch_all(session)
    .await?)
}

/// The same of those that failed. A statement of its own: only with the state in its text is it planned by the index of runs
/// that failed or were cancelled (`runs_done_group_ill`).
async fn spread_failed(
    session: &mut PgSession,
    groups: &[i64],
    first: &[Uuid],
    after: &[Uuid],
    each: i64,
) -> Result<Vec<BarNumbers>, StoreError> {
    let (oldest, newest) = (first.first().copied(), after.last().copied());
    Ok(sqlx::query_as!(
        BarNumbers,
        r#"SELECT l.group_id AS "group_id!", l.id AS "id!", l.state AS "state!", l.trigger AS "trigger!",
                  l.created_at AS "created_at!", l.started_at, l.reopened_at, l.finished_at, l.logical_time AS "logical_time!"
             FROM UNNEST($1::bigint[]) AS n (id)
            CROSS JOIN UNNEST($2::uuid[], $3::uuid[]) AS h (first, after)
            CROSS JOIN LATERAL (
                 SELECT d.group_id, d.id, d.state, d.trigger, d.created_at, d.started_at, d.reopened_at, d.finished_at,
                        d.logical_time
                   FROM heddle.runs_done d
                  WHERE d.group_id = ANY (ARRAY[n.id]) AND d.state = 4 AND d.state > 3
                    AND d.id >= h.first AND d.id < h.after AND d.id >= $4 AND d.id < $5
                  ORDER BY d.group_id DESC, d.id DESC LIMIT $6) AS l"#,
        groups,
        first,
        after,
        oldest,
        newest,
        each
    )
    .fetch_all(session)
    .await?)
}

/// Groups with a run of the window that failed, at most `limit`. It goes from one group to the next in the index of runs that
/// failed or were cancelled (`runs_done_group_ill`), so it reads a few rows for each group.
pub(super) async fn groups_failed(
    session: &mut PgSession,
    window: Window,
    limit: i64,
) -> Result<Vec<TimelineRow>, StoreError> {
    Ok(sqlx::query_as!(
        TimelineRow,
        r#"WITH RECURSIVE found AS (
               (SELECT d.group_id FROM heddle.runs_done d
                 WHERE d.state > 3 AND d.id >= $1 AND d.id < $3
                 ORDER BY d.group_id DESC, d.state DESC, d.id DESC LIMIT 1)
                UNION ALL
               SELECT (SELECT d.group_id FROM heddle.runs_done d
                        WHERE d.state > 3 AND d.id >= $1 AND d.id < $3 AND d.group_id < f.group_id
                        ORDER BY d.group_id DESC, d.state DESC, d.id DESC LIMIT 1)
                 FROM found f WHERE f.group_id IS NOT NULL)
           SELECT g.id AS "id!", g.name AS "name!" FROM found f
            CROSS JOIN LATERAL (SELECT id, name FROM heddle.groups
                                 WHERE id = f.group_id AND deleted_at IS NULL OFFSET 0) AS g
            CROSS JOIN LATERAL (SELECT d.id FROM heddle.runs_done d
                                 WHERE d.group_id = ANY (ARRAY[f.group_id]) AND d.state = 4 AND d.state > 3
                                   AND d.id >= $2 AND d.id < $3
                                 ORDER BY d.group_id DESC, d.id DESC LIMIT 1) AS r
            LIMIT $4"#,
        window.day,
        window.first,
        window.after,
        limit
    )
    .fetch_all(session)
    .await?)
}

/// Groups with a run that has not ended, at most `limit`, from one to the next as above.
async fn groups_live(session: &mut PgSession, limit: i64) -> Result<Vec<TimelineRow>, StoreError> {
    Ok(sqlx::query_as!(
        TimelineRow,
        r#"WITH RECURSIVE found AS (
               (SELECT v.group_id FROM heddle.runs_live v ORDER BY v.group_id DESC, v.id DESC LIMIT 1)
                UNION ALL
               SELECT (SELECT v.group_id FROM heddle.runs_live v WHERE v.group_id < f.group_id
                        ORDER BY v.group_id DESC, v.id DESC LIMIT 1)
                 FROM found f WHERE f.group_id IS NOT NULL)
           SELECT g.id AS "id!", g.name AS "name!" FROM found f
            CROSS JOIN LATERAL (SELECT id, name FROM heddle.groups
                                 WHERE id = f.group_id AND deleted_at IS NULL OFFSET 0) AS g
            LIMIT $1"#,
        limit
    )
    .fetch_all(session)
    .await?)
}

/// Groups that are due before `until`, those that are due first before the others, at most `limit`: each once for each of its
/// schedules.
async fn groups_due(session: &mut PgSession, until: Time, limit: i64) -> Result<Vec<TimelineRow>, StoreError> {
    Ok(sqlx::query_as!(
        TimelineRow,
        r#"SELECT g.id AS "id!", g.name AS "name!"
             FROM (SELECT group_id FROM heddle.schedules WHERE next_fire_at < $1 ORDER BY next_fire_at LIMIT $2) AS s
            CROSS JOIN LATERAL (SELECT id, name FROM heddle.groups
                                 WHERE id = s.group_id AND deleted_at IS NULL OFFSET 0) AS g"#,
        until,
        limit.saturating_mul(SCHEDULES_MAX as i64)
    )
    .fetch_all(session)
    .await?)
}

/// Groups with a run of the window that has ended, at most `limit`, from one to the next as above.
async fn groups_ended(session: &mut PgSession, window: Window, limit: i64) -> Result<Vec<TimelineRow>, StoreError> {
    Ok(sqlx::query_as!(
        TimelineRow,
        r#"WITH RECURSIVE found AS (
               (SELECT d.group_id FROM heddle.runs_done d
                 WHERE d.id >= $1 AND d.id < $3
                 ORDER BY d.group_id DESC, d.id DESC LIMIT 1)
                UNION ALL
               SELECT (SELECT d.group_id FROM heddle.runs_done d
                        WHERE d.id >= $1 AND d.id < $3 AND d.group_id < f.group_id
                        ORDER BY d.group_id DESC, d.id DESC LIMIT 1)
                 FROM found f WHERE f.group_id IS NOT NULL)
           SELECT g.id AS "id!", g.name AS "name!" FROM found f
            CROSS JOIN LATERAL (SELECT id, name FROM heddle.groups
                                 WHERE id = f.group_id AND deleted_at IS NULL OFFSET 0) AS g
            CROSS JOIN LATERAL (SELECT d.id FROM heddle.runs_done d
                                 WHERE d.group_id = ANY (ARRAY[f.group_id]) AND d.id >= $2 AND d.id < $3
                                 ORDER BY d.group_id DESC, d.id DESC LIMIT 1) AS r
            LIMIT $4"#,
        window.day,
        window.first,
        window.after,
        limit
    )
    .fetch_all(session)
    .await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_leave_nothing_out() {
        let at = |text: &str| text.parse::<Time>().unwrap();
        let since = at("2026-11-26T07:40:00.5Z");
        let hours = hours(since, at("2026-11-27T07:40:00.5Z"));
        assert_eq!(hours.len(), 26);
        assert_eq!(hours[0].0, span::floor(since));
        assert_eq!(hours[0].1, span::floor(at("2026-11-26T08:00:00Z")));
        assert_eq!(hours[25].1, span::floor(at("2026-11-27T09:00:00Z")));
        assert!(hours.windows(2).all(|two| two[0].1 == two[1].0), "{hours:?}");
    }

    #[test]
    fn groups_are_sought_in_whole_days() {
        let at = |text: &str| text.parse::<Time>().unwrap();
        let window = Window::new(at("2026-11-26T07:40:00Z"), at("2026-11-27T07:40:00Z"));
        assert_eq!(window.day, span::floor(at("2026-11-26T00:00:00Z")));
        assert_eq!(window.first, span::floor(at("2026-11-26T07:40:00Z")));
        assert_eq!(window.after, span::floor(at("2026-11-27T08:40:00Z")));
    }
}
