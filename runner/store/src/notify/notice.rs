//! Notices of events for which there is a notification rule, written in the transaction of the event.
//!
//! A notice names the event, and the revision with the rules for recipients; everything else is read when it is turned
//! into notifications ([`crate::outbox`]). Transactions without notices execute no statement of this file.
//!
//! The notice of a callback also holds the end of its run ([`RunEnd`]): the run may be deleted or restarted before it is
//! read.

use std::collections::{HashMap, HashSet};

use heddle_domain::id::RunId;
use heddle_domain::notify::Event;
use heddle_domain::notify::rules::{Announcements, Notice};
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::ErrorKind;
use heddle_domain::{Chain, Time};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::database::{PgSession, column};
use crate::live::Completion;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// The notices about one run, or one schedule.
#[derive(Clone, Debug)]
pub struct NewNotices {
    pub group_id: i64,
    /// The revision whose rules say who is told.
    pub revision_id: i64,
    /// The run; `None` if there is none.
    pub run: Option<RunId>,
    /// The notices to be written, and what has failed now.
    pub announcements: Announcements,
    /// Names of the tasks in `announcements`'s troubles and recoveries; see `NewNotices::task_name`.
    pub names: Vec<(u16, String)>,
    /// The schedule that it is about.
    pub about: Option<String>,
}

impl NewNotices {
    fn task_name(&self, task: Option<u16>) -> String {
        task.and_then(|task| self.names.iter().find(|(index, _)| *index == task))
            .map_or(String::new(), |(_, name)| name.clone())
    }
}

/// A notice as it is read.
#[derive(Clone, Debug)]
pub struct NoticeRow {
    /// In the order of their writing.
    pub id: i64,
    pub at: Time,
    pub event: Event,
    /// Its group; `None`: the group of the run.
    pub group_id: Option<i64>,
    /// The revision whose rules say who is told.
    pub revision_id: Option<i64>,
    pub run: Option<RunId>,
    pub notice: Notice,
    /// The schedule or queue that it is about.
    pub about: Option<String>,
    /// The message of a script: channel, subject and body.
    pub said: Option<(String, String, String)>,
    /// Of a callback: the end of the run. `None`: a node of an older version wrote the notice.
    pub end: Option<RunEnd>,
}

/// The end of a run, as the transaction wrote it that ended the run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RunEnd {
    /// The URL or the channel that is called.
    pub callback: String,
    /// The run as the API shows it, without params, tasks and outputs.
    pub run: Value,
}

impl RunEnd {
    /// The text of a field of the run.
    pub fn field(&self, name: &str) -> Option<String> {
        self.run[name].as_str().map(str::to_owned)
    }
}

/// A notice that this version cannot read.
#[derive(Debug)]
pub struct Unread {
    pub id: i64,
    pub at: Time,
    pub error: StoreError,
}

/// A notice, as a row of the table.
struct Found {
    id: i64,
    at: Time,
    event: String,
    group_id: Option<i64>,
    revision_id: Option<i64>,
    run: Option<Uuid>,
    task: Option<i16>,
    item: Option<i32>,
    attempt: Option<i32>,
    due_at: Option<Time>,
    about: Option<String>,
    with_run: bool,
    covers: Vec<i16>,
    channel: Option<String>,
    subject: Option<String>,
    body: Option<String>,
    ended: Option<Value>,
}

impl Found {
    fn read(self) -> Result<NoticeRow, Unread> {
        let (id, at) = (self.id, self.at);
        let unread = |error| Unread { id, at, error };
        let Some(event) = Event::from_word(&self.event) else {
            let error = StoreError::unreadable("notices", "event", id, self.event);
            return Err(unread(error));
        };
        let named = match event {
            Event::Rule(event) => Some(event),
            _ => None,
        };
        let end = self
            .ended
            .map(|ended| {
                serde_json::from_value(ended)
                    .map_err(|error| unread(StoreError::unreadable("notices", "ended", id, error)))
            })
            .transpose()?;
        Ok(NoticeRow {
            id,
            at,
            event,
            group_id: self.group_id,
            revision_id: self.revision_id,
            run: self.run.map(RunId),
            notice: Notice {
                event: named,
                task: self.task.map(|task| task as u16),
                item: self.item.and_then(|item| u32::try_from(item).ok()),
                attempt: self.attempt.map(|attempt| attempt as u32),
                due: self.due_at,
                with_run: self.with_run,
                covers: self.covers.into_iter().map(|task| task as u16).collect(),
            },
            about: self.about,
            said: self
                .channel
                .map(|channel| (channel, self.subject.unwrap_or_default(), self.body.unwrap_or_default())),
            end,
        })
    }
}

/// Notes what has failed now, if there is a rule for its recovery.
async fn note_troubles(connection: &mut PgSession, all: &[NewNotices], now: Time) -> Result<(), StoreError> {
    let mut troubles: Vec<(i64, String)> = all
        .iter()
        .flat_map(|one| {
            one.announcements
                .troubled
                .iter()
                .map(|&task| (one.group_id, one.task_name(task)))
        })
        .collect();
    if troubles.is_empty() {
        return Ok(());
    }
    // Always in the same order, so that two nodes cannot wait for each other.
    troubles.sort_unstable();
    troubles.dedup();
    let (groups, tasks): (Vec<i64>, Vec<String>) = troubles.into_iter().unzip();
    sqlx::query!(
        "INSERT INTO heddle.troubles (group_id, task, first_at, last_at)
             SELECT group_id, task, $3, $3 FROM UNNEST($1::bigint[], $2::text[]) AS t (group_id, task)
              ORDER BY group_id, task
             ON CONFLICT (group_id, task) DO UPDATE SET last_at = greatest(troubles.last_at, excluded.last_at)",
        &groups,
        &tasks,
        now
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn insert_notices_in(
    connection: &mut PgSession,
    all: &[NewNotices],
    now: Time,
) -> Result<(), StoreError> {
    note_troubles(&mut *connection, all, now).await?;
    let rows: Vec<(&NewNotices, &Notice)> = all
        .iter()
        .flat_map(|one| one.announcements.notices.iter().map(move |notice| (one, notice)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let runs: Vec<Uuid> = rows
        .iter()
        .filter_map(|(one, notice)| Some(called_back(one, notice)?.0))
        .collect();
    let ends = ends_of(&mut *connection, &runs).await?;
    let ended = column(&rows, |(one, notice)| {
        called_back(one, notice).and_then(|run| ends.get(&run.0).cloned())
    });
    // A success is a recovery only if it follows a failure. A task's recovery is included in the run's message only if
    // the run had failed too; not if its failure was allowed.
    sqlx::query!(
        "INSERT INTO heddle.notices (event, group_id, revision_id, run, task, item, attempt, due_at, about, with_run,
             covers, at, ended)
         SELECT n.event, n.group_id, n.revision_id, n.run, n.task, n.item, n.attempt, n.due_at, n.about,
                n.with_run AND (n.event <> 'recovered'
                                OR EXISTS (SELECT FROM heddle.troubles t WHERE t.group_id = n.group_id AND t.task = '')),
                coalesce(string_to_array(n.covers, ',')::smallint[], '{}'), $13, n.ended
           FROM UNNEST($1::text[], $2::bigint[], $3::bigint[], $4::uuid[], $5::smallint[], $6::integer[], $7::integer[],
                       $8::timestamptz[], $9::text[], $10::boolean[], $11::text[], $12::text[], $14::jsonb[])
             AS n (event, group_id, revision_id, run, task, item, attempt, due_at, about, with_run, covers, task_name,
                   ended)
          WHERE n.event <> 'recovered'
             OR EXISTS (SELECT FROM heddle.troubles t WHERE t.group_id = n.group_id AND t.task = n.task_name)",
        &column(&rows, |(_one, notice)| notice.event.map_or(Event::Callback, Event::Rule).as_str()) as &[&str],
        &column(&rows, |(one, _notice)| one.group_id),
        &column(&rows, |(one, _notice)| one.revision_id),
        &column(&rows, |(one, _notice)| one.run.map(|run| run.0)) as &[Option<Uuid>],
        &column(&rows, |(_one, notice)| notice.task.map(|task| task as i16)) as &[Option<i16>],
        &column(&rows, |(_one, notice)| notice.item.map(|item| item as i32)) as &[Option<i32>],
        &column(&rows, |(_one, notice)| notice.attempt.map(|attempt| attempt as i32)) as &[Option<i32>],
        &column(&rows, |(_one, notice)| notice.due) as &[Option<Time>],
        &column(&rows, |(one, _notice)| one.about.as_deref()) as &[Option<&str>],
        &column(&rows, |(_one, notice)| notice.with_run),
        // An array of arrays would have to be rectangular.
        &column(&rows, |(_one, notice)| {
            let tasks: Vec<String> = notice.covers.iter().map(|&task| (task as i16).to_string()).collect();
            (!tasks.is_empty()).then(|| tasks.join(","))
        }) as &[Option<String>],
        &column(&rows, |(one, notice)| one.task_name(notice.task)),
        now,
        &ended as &[Option<Value>]
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The run whose submitter a notice calls back.
fn called_back(one: &NewNotices, notice: &Notice) -> Option<RunId> {
    one.run.filter(|_| notice.event.is_none())
}

/// The ends of runs with callbacks, as their notices hold them: read from the rows that this transaction has just written.
/// Without such runs, no statement is executed.
async fn ends_of(connection: &mut PgSession, runs: &[Uuid]) -> Result<HashMap<Uuid, Value>, StoreError> {
    if runs.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = sqlx::query!(
        r#"SELECT d.id, jsonb_build_object('callback', d.callback, 'run', jsonb_build_object('id', d.id,
                      'group', g.name, 'revision', v.revision, 'logical_time', heddle.moment(d.logical_time),
                      'data_interval', jsonb_build_object('start', heddle.moment(d.interval_start),
                          'end', heddle.moment(d.interval_end)),
                      'trigger', (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[d.trigger + 1],
                      'state', (ARRAY['succeeded', 'failed', 'cancelled'])[d.state - 2],
                      'params', '{}'::jsonb, 'params_error', 'they are left out, as the outputs are',
                      'task_params', '{}'::jsonb, 'key', d.key, 'priority', d.priority,
                      'created_at', heddle.moment(d.created_at), 'started_at', heddle.moment(d.started_at),
                      'finished_at', heddle.moment(d.finished_at),
                      'error', CASE WHEN d.error IS NOT NULL THEN jsonb_build_object(
                          'kind', 'failed', 'message', d.error, 'trace', NULL) END,
                      'skipped', (ARRAY['overlap', 'max_waiting'])[d.skipped],
                      'labels', coalesce(d.labels, '{}'), 'waiting_for', '[]'::jsonb)
                  || jsonb_strip_nulls(jsonb_build_object('source', d.source, 'created_by', d.created_by,
                      'reopened_at', heddle.moment(d.reopened_at)))) AS "ended!"
             FROM heddle.runs_done d JOIN heddle.groups g ON g.id = d.group_id
             JOIN heddle.revisions v ON v.id = d.revision_id
            WHERE d.id = ANY ($1) AND d.callback IS NOT NULL"#,
        runs
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.ended)).collect())
}

impl Completion {
    /// Writes notices; without any, no statement is executed.
    pub async fn insert_notices(&mut self, all: &[NewNotices]) -> Result<(), StoreError> {
        if all.iter().all(|one| one.announcements.is_empty()) {
            return Ok(());
        }
        let now = self.now();
        insert_notices_in(self.connection(), all, now).await
    }
}

impl Store {
    /// Writes the notice that a task begins, once for each task of a run: the transaction that inserts the row of
    /// *told_starts* also writes the notice. Returns whether this call did.
    pub async fn tell_start(&self, run: RunId, task: u16, notices: NewNotices, now: Time) -> Result<bool, StoreError> {
        transaction!(self, pool, "tell_start", |tx| {
            let first = sqlx::query!(
                "INSERT INTO heddle.told_starts (run, task) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                run.0,
                task as i16
            )
            .execute(&mut *tx)
            .await?
            .rows_affected()
                > 0;
            if first {
                insert_notices_in(&mut tx, std::slice::from_ref(&notices), now).await?;
            }
            tx.commit().await?;
            Ok(first)
        })
    }

    /// The first notices, except `not`: those of callbacks, or all others.
    pub async fn notices(
        &self,
        callbacks: bool,
        not: &[i64],
        limit: i64,
    ) -> Result<Vec<Result<NoticeRow, Unread>>, StoreError> {
        // The condition is a constant in each, so that an index finds the others behind very many callbacks.
        let rows = if callbacks {
            sqlx::query_as!(
                Found,
                "SELECT id, at, event, group_id, revision_id, run, task, item, attempt, due_at, about, with_run, covers,
                        channel, subject, body, ended
                   FROM heddle.notices WHERE event = 'callback' AND id <> ALL ($1) ORDER BY id LIMIT $2",
                not,
                limit
            )
            .fetch_all(&self.pool)
            .await?
        } else {
            sqlx::query_as!(
                Found,
                "SELECT id, at, event, group_id, revision_id, run, task, item, attempt, due_at, about, with_run, covers,
                        channel, subject, body, ended
                   FROM heddle.notices WHERE event <> 'callback' AND id <> ALL ($1) ORDER BY id LIMIT $2",
                not,
                limit
            )
            .fetch_all(&self.pool)
            .await?
        };
        Ok(rows.into_iter().map(Found::read).collect())
    }

    /// In groups with a rule for this event: finds queued task runs that nobody has claimed since `before` and that are not
    /// noted yet, and forgets those that do not wait any more. Only runs whose own revision has such a rule count: an older
    /// run without one must not stand for a later one that has it. Returns group, task, queue, and the run of each revision
    /// that has waited longest, the longest of all first; see [`Store::note_stalled`].
    pub async fn stalled(&self, before: Time, limit: i64) -> Result<Vec<Stalled>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH telling AS MATERIALIZED (
                   SELECT v.id, v.group_id FROM heddle.revisions v
                    WHERE jsonb_path_exists(v.spec, '$.**.notify.on[*] ? (@ == "queue_stalled")')),
               subscribed AS MATERIALIZED (
                   SELECT g.id FROM telling t
                    CROSS JOIN LATERAL (SELECT id FROM heddle.groups
                                         WHERE id = t.group_id AND revision_id = t.id AND deleted_at IS NULL
                                        OFFSET 0) AS g),
               waiting AS (
                   SELECT DISTINCT ON (r.group_id, q.task, q.queue, r.revision_id)
                          r.group_id, r.revision_id, q.task, q.queue, q.run, q.item, q.ready_at
                     FROM subscribed t
                    CROSS JOIN LATERAL (SELECT id, group_id, revision_id FROM heddle.runs_live
                                         WHERE group_id = t.id AND revision_id = ANY (ARRAY(SELECT id FROM telling))
                                        OFFSET 0) AS r
                    CROSS JOIN LATERAL (SELECT task, queue, run, item, ready_at FROM heddle.queue_ready
                                         WHERE run = r.id AND ready_at < $1 OFFSET 0) AS q
                    ORDER BY r.group_id, q.task, q.queue, r.revision_id, q.ready_at
                    LIMIT $2),
               over AS (
                   DELETE FROM heddle.stalls s
                    WHERE NOT EXISTS (SELECT FROM waiting w
                                       WHERE w.group_id = s.group_id AND w.task::text = s.task AND w.queue = s.queue))
               SELECT w.group_id AS "group_id!", w.revision_id AS "revision_id!", w.task AS "task!", w.queue AS "queue!",
                      w.run AS "run!", w.item AS "item!"
                 FROM waiting w
                WHERE NOT EXISTS (SELECT FROM heddle.stalls s
                                   WHERE s.group_id = w.group_id AND s.task = w.task::text AND s.queue = w.queue)
                ORDER BY w.ready_at"#,
            before,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Stalled {
                group_id: row.group_id,
                revision_id: row.revision_id,
                run: RunId(row.run),
                task: row.task as u16,
                item: u32::try_from(row.item).ok(),
                queue: row.queue,
            })
            .collect())
    }

    /// Notes stalled tasks, each with its notices, in one transaction: what is noted is announced. Of several with the same
    /// group, task and queue, the first is. What is noted already is left out: if two nodes do this at once, the insert of
    /// the second finds the rows of the first. Returns whether notices were written.
    pub async fn note_stalled(&self, stalled: &[(Stalled, NewNotices)], now: Time) -> Result<bool, StoreError> {
        if stalled.is_empty() {
            return Ok(false);
        }
        let groups = column(stalled, |(one, _)| one.group_id);
        let tasks = column(stalled, |(one, _)| one.task.to_string());
        let queues = column(stalled, |(one, _)| one.queue.clone());
        transaction!(self, pool, "note_stalled", |tx| {
            // Always in the same order, so that two nodes cannot wait for each other.
            let noted = sqlx::query!(
                "INSERT INTO heddle.stalls (group_id, task, queue, since)
                 SELECT s.group_id, s.task, s.queue, $4
                   FROM UNNEST($1::bigint[], $2::text[], $3::text[]) AS s (group_id, task, queue)
                  ORDER BY s.group_id, s.task COLLATE \"C\", s.queue COLLATE \"C\"
                 ON CONFLICT DO NOTHING
                 RETURNING group_id, task, queue",
                &groups,
                &tasks,
                &queues,
                now
            )
            .fetch_all(&mut *tx)
            .await?;
            let mut noted: HashSet<(i64, String, String)> = noted
                .into_iter()
                .map(|row| (row.group_id, row.task, row.queue))
                .collect();
            let notices: Vec<NewNotices> = stalled
                .iter()
                .filter(|(one, _)| noted.remove(&(one.group_id, one.task.to_string(), one.queue.clone())))
                .map(|(_, notices)| notices.clone())
                .collect();
            insert_notices_in(&mut tx, &notices, now).await?;
            tx.commit().await?;
            Ok(!notices.is_empty())
        })
    }
}

/// The last failed attempt of the subject of a notice.
#[derive(Clone, Debug)]
pub struct FailedAttempt {
    pub run: RunId,
    pub at: AttemptKey,
    /// The kind of the error.
    pub kind: Option<ErrorKind>,
    /// The beginning of the error.
    pub message: String,
}

impl Store {
    /// For each notice, by its id: the last failed attempt of its task, or of its run.
    pub async fn last_failures(&self, notices: &[&NoticeRow]) -> Result<HashMap<i64, FailedAttempt>, StoreError> {
        let asked: Vec<(&NoticeRow, RunId)> = notices
            .iter()
            .filter_map(|notice| Some((*notice, notice.run?)))
            .collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<i64> = asked.iter().map(|(notice, _)| notice.id).collect();
        let runs: Vec<Uuid> = asked.iter().map(|(_, run)| run.0).collect();
        let tasks: Vec<Option<i16>> = asked
            .iter()
            .map(|(notice, _)| notice.notice.task.map(|task| task as i16))
            .collect();
        let items: Vec<Option<i32>> = asked
            .iter()
            .map(|(notice, _)| notice.notice.item.map(|item| item as i32))
            .collect();
        let rows = sqlx::query!(
            r#"SELECT n.id AS "id!", a.run AS "run!", a.task AS "task!", a.item AS "item!", a.attempt AS "attempt!",
                      a.error_kind AS "error_kind?", left(a.error_message, 4000) AS message
                 FROM UNNEST($1::bigint[], $2::uuid[], $3::smallint[], $4::integer[]) AS n (id, run, task, item)
                CROSS JOIN LATERAL (
                      SELECT * FROM heddle.attempts a
                       WHERE a.run = n.run AND (n.task IS NULL OR a.task = n.task)
                         AND (n.item IS NULL OR a.item = n.item) AND a.error_message IS NOT NULL
                       ORDER BY a.finished_at DESC, a.attempt DESC LIMIT 1) a"#,
            &ids,
            &runs,
            &tasks as &[Option<i16>],
            &items as &[Option<i32>]
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let of = || format!("{}/{}/{}/{}", row.run, row.task, row.item, row.attempt);
                let known = |kind| StoreError::known(ErrorKind::from_number, kind, ("attempts", "error_kind"), of());
                // A newer node may have written it. The notification of the failure is sent all the same.
                let kind = row.error_kind.map(known).transpose().unwrap_or_else(|error| {
                    tracing::error!(error = %Chain(&error), "notifications do not say of which kind a failure was");
                    None
                });
                let failed = FailedAttempt {
                    run: RunId(row.run),
                    at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                    kind,
                    message: row.message.unwrap_or_default(),
                };
                Ok((row.id, failed))
            })
            .collect()
    }

    /// The last lines of an attempt's log, in their order.
    pub async fn last_lines(&self, run: RunId, at: AttemptKey, limit: i64) -> Result<Vec<String>, StoreError> {
        let mut lines = sqlx::query_scalar!(
            "SELECT left(message, 2000) AS \"message!\" FROM heddle.logs
              WHERE run = $1 AND task = $2 AND item = $3 AND attempt = $4 ORDER BY line DESC LIMIT $5",
            run.0,
            at.key.task as i16,
            at.key.item_number(),
            at.attempt as i32,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        lines.reverse();
        Ok(lines)
    }

    /// When schedules of groups are next due, if they are.
    pub async fn next_instants(&self, groups: &[i64]) -> Result<HashMap<i64, Time>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT group_id AS "group_id!", min(next_fire_at) AS "next!" FROM heddle.schedules
                WHERE group_id = ANY ($1) AND next_fire_at IS NOT NULL GROUP BY group_id"#,
            groups
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|row| (row.group_id, row.next)).collect())
    }
}

/// A queued task that nobody claims.
#[derive(Clone, Debug)]
pub struct Stalled {
    pub group_id: i64,
    pub revision_id: i64,
    /// The run of this revision that has waited longest.
    pub run: RunId,
    pub task: u16,
    /// The item, if the task is mapped.
    pub item: Option<u32>,
    pub queue: String,
}

/// The event of a stalled queue.
pub const STALLED: NotifyEvent = NotifyEvent::QueueStalled;
