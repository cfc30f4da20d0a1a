//! The failed runs of the overview.

use std::collections::{BTreeMap, BTreeSet};

use heddle_domain::Time;
use uuid::Uuid;

use super::timeline::{Window, groups_failed};
use crate::database::PgSession;
use crate::span::{self, BEGIN_BY_SPANS};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A run that failed.
#[derive(Clone, Debug)]
pub struct FailureRow {
    pub id: Uuid,
    pub group_id: i64,
    pub group_name: String,
    pub error: Option<String>,
    pub finished_at: Time,
}

/// The failed runs that the overview knows of.
#[derive(Clone, Debug)]
pub struct Failures {
    /// The newest one comes first.
    pub rows: Vec<FailureRow>,
    /// There may be more, of any of these groups.
    pub more: bool,
}

/// What is read of them at most.
#[derive(Clone, Copy, Debug)]
pub struct FailuresMax {
    /// How many of the newest ones.
    pub newest: i64,
    /// If there are more, of how many groups more are read.
    pub groups: i64,
    /// How many runs of each of these groups are read.
    pub each: i64,
}

impl Store {
    /// Runs that failed since then: the newest ones. If there are more, also the newest ones of each group, so that a group
    /// that fails often does not hide the others.
    pub async fn page_failures(&self, since: Time, max: FailuresMax) -> Result<Failures, StoreError> {
        let mut rows = sqlx::query_as!(
            FailureRow,
            r#"SELECT l.id AS "id!", l.group_id AS "group_id!", g.name AS group_name, l.error,
                      l.finished_at AS "finished_at!"
                 FROM heddle.runs_done l JOIN heddle.groups g ON g.id = l.group_id
                WHERE l.state = 4 AND l.id >= heddle.uuid_floor($1) AND g.deleted_at IS NULL
                ORDER BY l.id DESC LIMIT $2"#,
            since,
            max.newest
        )
        .fetch_all(&self.reads)
        .await?;
        let more = usize::try_from(max.newest).is_ok_and(|newest| rows.len() >= newest);
        if more {
            let known: BTreeSet<Uuid> = rows.iter().map(|row| row.id).collect();
            let of_groups = self.page_failures_of_groups(since, max).await?;
            rows.extend(of_groups.into_iter().filter(|row| !known.contains(&row.id)));
            rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.id));
        }
        Ok(Failures { rows, more })
    }

    async fn page_failures_of_groups(&self, since: Time, max: FailuresMax) -> Result<Vec<FailureRow>, StoreError> {
        transaction!(self, reads, "page_failures_of_groups", once(BEGIN_BY_SPANS), |tx| {
            let window = Window::new(since, span::now(&mut tx).await?);
            let groups = groups_failed(&mut tx, window, max.groups).await?;
            let names: BTreeMap<i64, String> = groups.into_iter().map(|group| (group.id, group.name)).collect();
            let rows = newest_failed(&mut tx, &names, window, max.each).await?;
            tx.commit().await?;
            Ok(rows)
        })
    }
}

/// The newest runs of each of these groups that failed, by the index of runs that failed or were cancelled
/// (`runs_done_group_ill`).
async fn newest_failed(
    session: &mut PgSession,
    names: &BTreeMap<i64, String>,
    window: Window,
    each: i64,
) -> Result<Vec<FailureRow>, StoreError> {
    let groups: Vec<i64> = names.keys().copied().collect();
    let rows = sqlx::query!(
        r#"SELECT l.id AS "id!", l.group_id AS "group_id!", l.error, l.finished_at AS "finished_at!"
             FROM UNNEST($1::bigint[]) AS n (id)
            CROSS JOIN LATERAL (
                 SELECT d.group_id, d.id, d.error, d.finished_at
                   FROM heddle.runs_done d
                  WHERE d.group_id = ANY (ARRAY[n.id]) AND d.state = 4 AND d.state > 3 AND d.id >= $2 AND d.id < $3
                  ORDER BY d.group_id DESC, d.id DESC LIMIT $4) AS l"#,
        &groups,
        window.first,
        window.after,
        each
    )
    .fetch_all(session)
    .await?;
    let named = rows.into_iter().filter_map(|row| {
        Some(FailureRow {
            id: row.id,
            group_name: names.get(&row.group_id)?.clone(),
            group_id: row.group_id,
            error: row.error,
            finished_at: row.finished_at,
        })
    });
    Ok(named.collect())
}
