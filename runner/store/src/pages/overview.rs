//! The overview: which groups ran lately, what is late.

use std::collections::{BTreeMap, BTreeSet};

use heddle_domain::Time;
use heddle_domain::notify::channel::{shown_error, shown_target};
use heddle_domain::state::{RunState, Trigger};
use uuid::Uuid;

use crate::database::PgSession;
use crate::span::{self, BEGIN_BY_SPANS, Planning, Span};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A run as a bar.
#[derive(Clone, Debug)]
pub struct BarRow<S = RunState, T = Trigger> {
    pub group_id: i64,
    pub id: Uuid,
    pub state: S,
    pub trigger: T,
    /// When it was made.
    pub created_at: Time,
    pub started_at: Option<Time>,
    /// When somebody last continued it after it had ended.
    pub reopened_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub logical_time: Time,
}

/// The same, with the state and the trigger as numbers, as in the table.
pub(super) type BarNumbers = BarRow<i16, i16>;

impl BarRow {
    /// Since when it has been at work: since its start, or since somebody continued it after its end.
    pub fn at_work_since(&self) -> Time {
        self.started_at.max(self.reopened_at).unwrap_or(self.created_at)
    }
}

impl BarNumbers {
    pub(super) fn known(self) -> Result<BarRow, StoreError> {
        Ok(BarRow {
            state: StoreError::known(RunState::from_number, self.state, ("runs", "state"), self.id)?,
            trigger: StoreError::known(Trigger::from_number, self.trigger, ("runs", "trigger"), self.id)?,
            group_id: self.group_id,
            id: self.id,
            created_at: self.created_at,
            started_at: self.started_at,
            reopened_at: self.reopened_at,
            finished_at: self.finished_at,
            logical_time: self.logical_time,
        })
    }
}

/// A minute's runs; a number that is the cap means so many at least.
#[derive(Clone, Debug)]
pub struct MinuteRow {
    pub at: Time,
    /// Runs that were created in it and have ended.
    pub ended: i64,
    /// Of these, failed ones.
    pub failed: i64,
}

/// The numbers of now; each is capped.
#[derive(Clone, Copy, Debug)]
pub struct NowRow {
    pub running: i64,
    /// Task runs that nodes may claim, or that wait for slots of pools.
    pub ready: i64,
    /// Task runs that workers may claim.
    pub queued: i64,
    /// Runs that have not ended.
    pub live: i64,
    /// Retries that are not due yet.
    pub retrying: i64,
    pub groups: i64,
}

/// A schedule that should have fired.
#[derive(Clone, Debug)]
pub struct LateRow {
    pub group_name: String,
    pub name: String,
    /// When it was due.
    pub due_at: Time,
}

/// A queue in which work has waited for long.
#[derive(Clone, Debug)]
pub struct StalledRow {
    pub queue: String,
    /// Since when its first task run waits.
    pub since: Time,
    /// How many wait; capped.
    pub waiting: i64,
    /// How many workers hold; capped.
    pub claimed: i64,
    /// Workers get none of it.
    pub paused: bool,
    /// Since when, as long as the audit knows.
    pub paused_at: Option<Time>,
}

/// A channel through which a notification could not be sent.
#[derive(Clone, Debug)]
pub struct UnsentRow {
    /// Its name, or of a URL the host.
    pub channel: String,
    /// How many notifications were given up; capped.
    pub count: i64,
    pub last_error: Option<String>,
}

/// An attempt that timed out.
#[derive(Clone, Debug)]
pub struct TimedOutRow {
    pub run: Uuid,
    pub task: i16,
    /// When it was stopped.
    pub finished_at: Time,
    /// The revision of the run.
    pub revision_id: i64,
}

impl Store {
    /// Timed-out attempts of runs that were created since then, those of the newest runs first.
    pub async fn page_timed_out(&self, since: Time, limit: i64) -> Result<Vec<TimedOutRow>, StoreError> {
        Ok(sqlx::query_as!(
            TimedOutRow,
            r#"SELECT a.run, a.task, a.finished_at, r.revision_id AS "revision_id!"
                 FROM (SELECT run, task, finished_at FROM heddle.attempts
                        WHERE state = 3 AND run >= heddle.uuid_floor($1) ORDER BY run DESC LIMIT $2) AS a
                CROSS JOIN LATERAL (
                    SELECT l.revision_id FROM heddle.runs_live l WHERE l.id = ANY (ARRAY[a.run])
                     UNION ALL
                    SELECT d.revision_id FROM heddle.runs_done d
                     WHERE d.id = ANY (ARRAY[a.run]) AND d.id >= heddle.uuid_floor($1)) AS r
                ORDER BY a.run DESC"#,
            since,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// How the newest run of each group that has ended ended.
    pub async fn page_last_ends(&self, groups: &[i64]) -> Result<Vec<(i64, RunState)>, StoreError> {
        transaction!(self, reads, "page_last_ends", once(BEGIN_BY_SPANS), |tx| {
            let now = span::now(&mut tx).await?;
            let ends = last_ends(&mut tx, groups, now).await?;
            tx.commit().await?;
            Ok(ends.into_iter().map(|(group, _, state)| (group, state)).collect())
        })
    }

    /// The newest runs of each of these groups, newest first: at most `each` ended ones, and as many others.
    pub async fn page_bars(&self, groups: &[i64], since: Time, each: i64) -> Result<Vec<BarRow>, StoreError> {
        transaction!(self, reads, "page_bars", once(BEGIN_BY_SPANS), |tx| {
            let mut bars = sqlx::query_as!(
                BarNumbers,
                r#"SELECT l.group_id AS "group_id!", l.id AS "id!", l.state AS "state!", l.trigger AS "trigger!",
                          l.created_at AS "created_at!", l.started_at, l.reopened_at, NULL::timestamptz AS finished_at,
                          l.logical_time AS "logical_time!"
                     FROM UNNEST($1::bigint[]) AS n (id)
                    CROSS JOIN LATERAL (
                         SELECT v.group_id, v.id, v.state, v.trigger, v.created_at, v.started_at, v.reopened_at, v.logical_time
                           FROM heddle.runs_live v WHERE v.group_id = ANY (ARRAY[n.id])
                          ORDER BY v.group_id DESC, v.id DESC LIMIT $2) AS l"#,
                groups,
                each
            )
            .fetch_all(&mut *tx)
            .await?;
            // How many of each group are still to be found.
            let mut left: BTreeMap<i64, i64> = groups.iter().map(|group| (*group, each)).collect();
            for span in span::spans_of_groups(span::now(&mut tx).await?, Some(since)) {
                left.retain(|_, left| *left > 0);
                if left.is_empty() {
                    break;
                }
                let found = ended_bars(&mut tx, &left, span, since).await?;
                for bar in &found {
                    left.entry(bar.group_id).and_modify(|left| *left -= 1);
                }
                bars.extend(found);
            }
            tx.commit().await?;
            bars.sort_unstable_by_key(|bar| (bar.group_id, std::cmp::Reverse(bar.id)));
            bars.into_iter().map(BarNumbers::known).collect()
        })
    }

    /// How many runs were created in each of the last minutes and have ended; counts at most `cap` in each.
    pub async fn page_minutes(&self, now: Time, minutes: i32, cap: i64) -> Result<Vec<MinuteRow>, StoreError> {
        Ok(sqlx::query_as!(
            MinuteRow,
            r#"SELECT m.at AS "at!",
                      (SELECT count(*) FROM (SELECT FROM heddle.runs_done d
                                              WHERE d.id >= heddle.uuid_floor(m.at)
                                                AND d.id < heddle.uuid_floor(m.at + interval '1 minute')
                                                AND d.id >= heddle.uuid_floor($4)
                                              LIMIT $3) AS ended) AS "ended!",
                      (SELECT count(*) FROM (SELECT FROM heddle.runs_done d
                                              WHERE d.state = 4 AND d.id >= heddle.uuid_floor(m.at)
                                                AND d.id < heddle.uuid_floor(m.at + interval '1 minute')
                                                AND d.id >= heddle.uuid_floor($4)
                                              LIMIT $3) AS failed) AS "failed!"
                 FROM (SELECT date_trunc('minute', $1::timestamptz) - make_interval(mins => n) AS at
                         FROM generate_series(0, $2::integer - 1) AS n) AS m
                ORDER BY m.at"#,
            now,
            minutes,
            cap,
            // With this bound, the plan leaves out the partitions of earlier days.
            now - chrono::TimeDelta::minutes(i64::from(minutes))
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// The numbers of now; counts at most `cap` of each.
    pub async fn page_now(&self, cap: i64) -> Result<NowRow, StoreError> {
        Ok(sqlx::query_as!(
            NowRow,
            r#"SELECT (SELECT count(*) FROM (SELECT FROM heddle.running LIMIT $1) AS c) AS "running!",
                      (SELECT count(*) FROM (SELECT FROM heddle.ready UNION ALL SELECT FROM heddle.ready_pooled
                                              LIMIT $1) AS c) AS "ready!",
                      (SELECT count(*) FROM (SELECT FROM heddle.queue_ready LIMIT $1) AS c) AS "queued!",
                      (SELECT count(*) FROM (SELECT FROM heddle.runs_live LIMIT $1) AS c) AS "live!",
                      (SELECT count(*) FROM (SELECT FROM heddle.timers WHERE kind = 0 LIMIT $1) AS c) AS "retrying!",
                      (SELECT count(*) FROM (SELECT FROM heddle.groups WHERE deleted_at IS NULL LIMIT $1) AS c) AS "groups!""#,
            cap
        )
        .fetch_one(&self.reads)
        .await?)
    }

    /// Schedules that were due before `before` and have not fired.
    pub async fn page_late(&self, before: Time, limit: i64) -> Result<Vec<LateRow>, StoreError> {
        Ok(sqlx::query_as!(
            LateRow,
            r#"SELECT g.name AS group_name, s.name, s.next_fire_at AS "due_at!"
                 FROM heddle.schedules s JOIN heddle.groups g ON g.id = s.group_id
                WHERE s.next_fire_at < $1 ORDER BY s.next_fire_at LIMIT $2"#,
            before,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// Queues whose first task run has waited since before `before`. Reads only the first of each queue.
    pub async fn page_stalled(&self, before: Time, cap: i64) -> Result<Vec<StalledRow>, StoreError> {
        Ok(sqlx::query_as!(
            StalledRow,
            r#"WITH RECURSIVE names AS (
                   (SELECT queue FROM heddle.queue_ready ORDER BY queue LIMIT 1)
                    UNION ALL
                   SELECT (SELECT r.queue FROM heddle.queue_ready r WHERE r.queue > n.queue ORDER BY r.queue LIMIT 1)
                     FROM names n WHERE n.queue IS NOT NULL)
               SELECT n.queue AS "queue!", f.ready_at AS "since!",
                      (SELECT count(*) FROM (SELECT FROM heddle.queue_ready c WHERE c.queue = n.queue LIMIT $2) AS c)
                          AS "waiting!",
                      (SELECT count(*) FROM (SELECT FROM heddle.queue_claims c WHERE c.queue = n.queue LIMIT $2) AS c)
                          AS "claimed!",
                      coalesce(q.paused, false) AS "paused!",
                      CASE WHEN q.paused THEN (
                          SELECT a.at FROM (SELECT d.id, d.at, d.before, d.after FROM heddle.audit d
                                             WHERE d.kind = 'queue' AND d.name = n.queue ORDER BY d.id DESC LIMIT 100) AS a
                           WHERE (a.after ->> 'paused')::boolean AND NOT coalesce((a.before ->> 'paused')::boolean, false)
                           ORDER BY a.id DESC LIMIT 1) END AS paused_at
                 FROM (SELECT queue FROM names WHERE queue IS NOT NULL LIMIT 100) AS n
                CROSS JOIN LATERAL (SELECT r.ready_at FROM heddle.queue_ready r WHERE r.queue = n.queue
                                     ORDER BY r.priority DESC, r.turn, r.run LIMIT 1) AS f
                 LEFT JOIN heddle.queues q ON q.name = n.queue
                WHERE f.ready_at < $1 ORDER BY f.ready_at"#,
            before,
            cap
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// Channels through which notifications of that time were given up; reads the newest `cap` notifications.
    pub async fn page_unsent(&self, since: Time, cap: i64) -> Result<Vec<UnsentRow>, StoreError> {
        let rows = sqlx::query_as!(
            UnsentRow,
            r#"SELECT channel, count(*) AS "count!", max(last_error) AS last_error
                 FROM (SELECT channel, state, last_error FROM heddle.notifications WHERE created_at >= $1
                        ORDER BY created_at DESC LIMIT $2) AS newest
                WHERE state = 2 GROUP BY channel ORDER BY channel LIMIT 20"#,
            since,
            cap
        )
        .fetch_all(&self.reads)
        .await?;
        let shown = |row: UnsentRow| UnsentRow {
            last_error: row.last_error.map(|error| shown_error(&error, &row.channel)),
            channel: shown_target(&row.channel),
            count: row.count,
        };
        Ok(rows.into_iter().map(shown).collect())
    }
}

/// The newest ended runs in a span, created at `since` or later, of each of these groups; of each group as many as its
/// number says.
async fn ended_bars(
    session: &mut PgSession,
    groups: &BTreeMap<i64, i64>,
    span: Span,
    since: Time,
) -> Result<Vec<BarNumbers>, StoreError> {
    let (ids, each): (Vec<i64>, Vec<i64>) = groups.iter().unzip();
    Ok(sqlx::query_as!(
        BarNumbers,
        r#"SELECT l.group_id AS "group_id!", l.id AS "id!", l.state AS "state!", l.trigger AS "trigger!",
                  l.created_at AS "created_at!", l.started_at, l.reopened_at, l.finished_at, l.logical_time AS "logical_time!"
             FROM UNNEST($1::bigint[], $2::bigint[]) AS n (id, each)
            CROSS JOIN LATERAL (
                 SELECT d.group_id, d.id, d.state, d.trigger, d.created_at, d.started_at, d.reopened_at, d.finished_at,
                        d.logical_time
                   FROM heddle.runs_done d
                  WHERE d.group_id = ANY (ARRAY[n.id]) AND d.id >= $3 AND d.id < $4 AND d.id >= heddle.uuid_floor($5)
                  ORDER BY d.group_id DESC, d.id DESC LIMIT n.each) AS l"#,
        &ids,
        &each,
        span.first,
        span.after,
        since
    )
    .fetch_all(session)
    .await?)
}

/// The newest run of each of these groups that has ended, with its state; of groups that have one.
pub(crate) async fn last_ends(
    session: &mut PgSession,
    groups: &[i64],
    now: Time,
) -> Result<Vec<(i64, Uuid, RunState)>, StoreError> {
    let mut left: BTreeSet<i64> = groups.iter().copied().collect();
    let mut ends = Vec::with_capacity(left.len());
    let mut planning = Planning::default();
    for span in span::spans_of_groups(now, None) {
        if left.is_empty() {
            break;
        }
        planning.of(session, span).await?;
        let ids: Vec<i64> = left.iter().copied().collect();
        let found = sqlx::query!(
            r#"SELECT n.id AS "group!", l.id AS "run!", l.state AS "state!" FROM UNNEST($1::bigint[]) AS n (id)
                CROSS JOIN LATERAL (
                     SELECT d.id, d.state FROM heddle.runs_done d
                      WHERE d.group_id = ANY (ARRAY[n.id]) AND d.id >= $2 AND d.id < $3
                      ORDER BY d.group_id DESC, d.id DESC LIMIT 1) AS l"#,
            &ids,
            span.first,
            span.after
        )
        .fetch_all(&mut *session)
        .await?;
        for end in found {
            left.remove(&end.group);
            let state = StoreError::known(RunState::from_number, end.state, ("runs_done", "state"), end.run)?;
            ends.push((end.group, end.run, state));
        }
    }
    Ok(ends)
}
