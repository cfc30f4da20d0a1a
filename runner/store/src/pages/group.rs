//! Lists of groups, and a group's newest runs.

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::state::{AttemptState, RunState, Trigger};
use heddle_domain::wait::RunWait;
use serde_json::Value;
use uuid::Uuid;

use crate::database::PgSession;
use crate::span::{self, BEGIN_BY_SPANS, BEGIN_KEPT_IN_ORDER, Planning, Span};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A group in a list.
#[derive(Clone, Debug)]
pub struct GroupLine {
    pub id: i64,
    pub name: String,
    pub category: Option<String>,
    /// Whether it is enabled.
    pub enabled: bool,
    pub revision: i32,
    /// Names of the groups that it follows.
    pub depends_on: Vec<String>,
    /// When one of its schedules is due next.
    pub next_at: Option<Time>,
}

/// A run of a group, with its progress.
#[derive(Clone, Debug)]
pub struct GroupRunRow<S = RunState, T = Trigger, W = Vec<RunWait>> {
    pub id: Uuid,
    pub revision_id: i64,
    pub state: S,
    pub trigger: T,
    /// What time it is about.
    pub logical_time: Time,
    /// When it was created.
    pub created_at: Time,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub error: Option<String>,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// When somebody last continued it after it had ended.
    pub reopened_at: Option<Time>,
    /// While it waits: for what.
    pub waiting_for: W,
}

/// The same as in the table: the state and the trigger are numbers, and what it waits for is JSON.
type GroupRunNumbers = GroupRunRow<i16, i16, Option<Value>>;

impl GroupRunNumbers {
    fn known(self) -> Result<GroupRunRow, StoreError> {
        Ok(GroupRunRow {
            state: StoreError::known(RunState::from_number, self.state, ("runs", "state"), self.id)?,
            trigger: StoreError::known(Trigger::from_number, self.trigger, ("runs", "trigger"), self.id)?,
            id: self.id,
            revision_id: self.revision_id,
            logical_time: self.logical_time,
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            error: self.error,
            progress: self.progress,
            reopened_at: self.reopened_at,
            waiting_for: RunWait::from_stored(self.waiting_for),
        })
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd {
    pub run: Uuid,
    /// Of which task, by its number.
    pub task: i16,
    pub state: AttemptState,
    pub started_at: Time,
    pub finished_at: Time,
}

/// Which groups to list.
#[derive(Clone, Debug, Default)]
pub struct GroupsAsked {
    /// Only groups whose name contains this text.
    pub text: Option<String>,
    /// Only groups of this category, or of one below it.
    pub category: Option<String>,
    /// Only enabled groups (`true`), or only disabled ones.
    pub enabled: Option<bool>,
    /// Where the page begins: behind this name, in the order of names.
    pub after: Option<String>,
}

/// How the runs of a group went, interval by interval.
#[derive(Clone, Debug, Default)]
pub struct GroupEnds {
    /// The number of an interval, a state, and how many runs of the interval are in it.
    pub counts: Vec<(i32, RunState, i64)>,
    /// There may be more runs than were read.
    pub cut: bool,
}

/// A value that a script has stored for its group.
#[derive(Clone, Debug)]
pub struct StateLine {
    pub key: String,
    /// The value as JSON, cut if it is long.
    pub value: String,
    /// How many bytes the whole value has.
    pub bytes: i32,
    /// How often it has been written.
    pub version: i64,
    /// When it was last written.
    pub updated_at: Time,
}

/// A group that follows another, or starts runs of it.
#[derive(Clone, Debug)]
pub struct LinkLine {
    /// The group that is followed or started.
    pub upstream: String,
    /// Whether that group is enabled.
    pub upstream_enabled: bool,
    pub upstream_id: i64,
    /// The group that follows, or starts runs.
    pub group: String,
    /// Whether it is enabled.
    pub enabled: bool,
    pub group_id: i64,
    /// `depends_on`: it follows; `sub_run`: it starts runs.
    pub kind: String,
}

/// An object with a name and a page.
#[derive(Clone, Debug)]
pub struct FoundLine {
    /// `group`, `script`, `queue` or `topic`.
    pub kind: String,
    pub name: String,
}

impl Store {
    pub async fn page_groups(&self, asked: &GroupsAsked, limit: i64) -> Result<Vec<GroupLine>, StoreError> {
        Ok(sqlx::query_as!(
            GroupLine,
            r#"SELECT g.id, g.name, g.category, g.enabled, g.revision,
                      ARRAY(SELECT u.name FROM heddle.group_links k JOIN heddle.groups u ON u.id = k.upstream_id
                             WHERE k.group_id = g.id AND k.kind = 'depends_on' ORDER BY u.name LIMIT 20) AS "depends_on!",
                      (SELECT min(s.next_fire_at) FROM heddle.schedules s WHERE s.group_id = g.id) AS next_at
                 FROM heddle.groups g
                WHERE g.deleted_at IS NULL AND g.name > $1
                  AND ($2::text IS NULL OR strpos(lower(g.name), lower($2)) > 0)
                  AND ($3::text IS NULL OR g.category = $3 OR starts_with(g.category, $3 || '/'))
                  AND ($4::boolean IS NULL OR g.enabled = $4)
                ORDER BY g.name LIMIT $5"#,
            asked.after.clone().unwrap_or_default(),
            asked.text,
            asked.category,
            asked.enabled,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// The categories that groups are in, by name, with how many are in each.
    pub async fn page_categories(&self, limit: i64) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT g.category AS "name!", count(*) AS "count!" FROM heddle.groups g
                WHERE g.deleted_at IS NULL AND g.category IS NOT NULL
                GROUP BY g.category ORDER BY g.category LIMIT $1"#,
            limit
        )
        .fetch_all(&self.reads)
        .await?;
        Ok(rows.into_iter().map(|row| (row.name, row.count)).collect())
    }

    /// The newest runs of a group, newest first: those that have not ended, and those that have.
    pub async fn page_group_runs(
        &self,
        group_id: i64,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<GroupRunRow>, StoreError> {
        let before = before.unwrap_or(Uuid::max());
        transaction!(self, reads, "page_group_runs", once(BEGIN_BY_SPANS), |tx| {
            let mut runs = sqlx::query_as!(
                GroupRunNumbers,
                r#"SELECT v.id, v.revision_id, v.state, v.trigger, v.logical_time, v.created_at, v.started_at,
                          NULL::timestamptz AS finished_at, NULL::text AS error, v.progress,
                          v.reopened_at, v.waiting_for
                     FROM heddle.runs_live v WHERE v.group_id = ANY (ARRAY[$1::bigint]) AND v.id < $2
                    ORDER BY v.group_id DESC, v.id DESC LIMIT $3"#,
                group_id,
                before,
                limit
            )
            .fetch_all(&mut *tx)
            .await?;
            let mut left = limit;
            let now = span::now(&mut tx).await?;
            let newest = span::made(before).map_or(now, |made| made.min(now));
            let mut planning = Planning::default();
            for span in span::spans_of_groups(newest, None) {
                planning.of(&mut tx, span).await?;
                let found = ended_runs(&mut tx, group_id, span, before, left).await?;
                left -= found.len() as i64;
                runs.extend(found);
                if left <= 0 {
                    break;
                }
            }
            tx.commit().await?;
            runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.id));
            runs.truncate(usize::try_from(limit).unwrap_or(0));
            runs.into_iter().map(GroupRunNumbers::known).collect()
        })
    }

    /// Which task runs of these runs have a running attempt: run and task's number.
    pub async fn page_running(&self, runs: &[Uuid], limit: i64) -> Result<Vec<(Uuid, i16)>, StoreError> {
        let rows = sqlx::query!(
            "SELECT r.run, r.task FROM heddle.running r WHERE r.run = ANY ($1) LIMIT $2",
            runs,
            limit
        )
        .fetch_all(&self.reads)
        .await?;
        Ok(rows.into_iter().map(|row| (row.run, row.task)).collect())
    }

    /// Names that contain a text: of groups, scripts, queues, topics, pools and channels; and those of offers that people
    /// made, of audiences and of their members, of which there may be millions, that begin with it. So many of each.
    pub async fn page_find(&self, text: &str, limit: i64) -> Result<Vec<FoundLine>, StoreError> {
        Ok(sqlx::query_as!(
            FoundLine,
            r#"SELECT f.kind AS "kind!", f.name AS "name!" FROM (
                   (SELECT 1 AS ordinal, 'group' AS kind, name FROM heddle.groups
                     WHERE deleted_at IS NULL AND strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 2, 'script', name FROM heddle.scripts
                     WHERE deleted_at IS NULL AND strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 3, 'queue', name FROM heddle.queues WHERE strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 4, 'topic', name FROM heddle.topics WHERE strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 5, 'pool', name FROM heddle.pools WHERE strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 6, 'channel', name FROM heddle.channels WHERE strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 7, 'offer', o.name
                      FROM (SELECT name, run FROM heddle.offers
                             WHERE deleted_at IS NULL AND name >= $1 AND name < $1 || chr(1114111)
                             ORDER BY name LIMIT 200) AS o
                     WHERE o.run IS NULL ORDER BY o.name LIMIT $2)
                   UNION ALL
                   (SELECT 8, 'audience', name FROM heddle.audiences
                     WHERE name >= $1 AND name < $1 || chr(1114111) ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT 8, 'audience', name FROM heddle.audiences
                     WHERE name >= 'gid_' || $1 AND name < 'gid_' || $1 || chr(1114111) ORDER BY name LIMIT $2)
                   UNION ALL
                   (SELECT DISTINCT 9, 'user', m.uid
                      FROM (SELECT uid FROM heddle.members
                             WHERE uid >= $1 AND uid < $1 || chr(1114111) ORDER BY uid LIMIT 200) AS m
                     ORDER BY m.uid LIMIT $2)
               ) AS f ORDER BY f.ordinal, f.name"#,
            text,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// The runs with a key, in any group.
    pub async fn page_run_of_key(&self, key: &str) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT k.run FROM heddle.run_keys k JOIN heddle.groups g ON g.id = k.group_id AND g.deleted_at IS NULL
              WHERE k.key = $1 LIMIT 10",
            key
        )
        .fetch_all(&self.reads)
        .await?)
    }
}

impl Store {
    /// Groups whose current revision names a script.
    pub async fn page_script_uses(&self, script: &str, limit: i64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT DISTINCT g.name FROM heddle.scripts s
               JOIN heddle.script_uses u ON u.script_id = s.id
               JOIN heddle.groups g ON g.id = u.group_id AND g.deleted_at IS NULL
              WHERE s.name = $1 ORDER BY g.name LIMIT $2",
            script,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// Topics whose messages a script handles.
    pub async fn page_script_topics(&self, script: &str, limit: i64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT name FROM heddle.topics WHERE script = $1 ORDER BY name LIMIT $2",
            script,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// The newest ended runs of these groups, `each` per group, with their revisions.
    pub async fn page_newest_runs(&self, groups: &[i64], each: i64) -> Result<Vec<(Uuid, i64)>, StoreError> {
        transaction!(self, reads, "page_newest_runs", once(BEGIN_BY_SPANS), |tx| {
            let mut found = Vec::new();
            let mut left: BTreeMap<i64, i64> = groups.iter().map(|group| (*group, each)).collect();
            let mut planning = Planning::default();
            for span in span::spans_of_groups(span::now(&mut tx).await?, None) {
                left.retain(|_, left| *left > 0);
                if left.is_empty() {
                    break;
                }
                planning.of(&mut tx, span).await?;
                let (ids, most): (Vec<i64>, Vec<i64>) = left.iter().unzip();
                let rows = sqlx::query!(
                    r#"SELECT n.id AS "group!", l.id AS "run!", l.revision_id AS "revision!"
                         FROM UNNEST($1::bigint[], $2::bigint[]) AS n (id, most)
                        CROSS JOIN LATERAL (
                             SELECT d.id, d.revision_id FROM heddle.runs_done d
                              WHERE d.group_id = ANY (ARRAY[n.id]) AND d.id >= $3 AND d.id < $4
                              ORDER BY d.group_id DESC, d.id DESC LIMIT n.most) AS l"#,
                    &ids,
                    &most,
                    span.first,
                    span.after
                )
                .fetch_all(&mut *tx)
                .await?;
                for row in rows {
                    left.entry(row.group).and_modify(|left| *left -= 1);
                    found.push((row.run, row.revision));
                }
            }
            tx.commit().await?;
            Ok(found)
        })
    }

    /// Ended attempts of these runs, those of the newest runs first. (Each run is searched for in its own day; `= ANY`
    /// would search for all of them in each day.)
    pub async fn page_attempts(&self, runs: &[Uuid], limit: i64) -> Result<Vec<AttemptEnd>, StoreError> {
        let rows = sqlx::query!(
            "SELECT a.run, a.task, a.state, a.started_at, a.finished_at
               FROM (SELECT id FROM UNNEST($1::uuid[]) AS given (id) ORDER BY id DESC) AS n
              CROSS JOIN LATERAL (SELECT e.run, e.task, e.state, e.started_at, e.finished_at FROM heddle.attempts e
                                   WHERE e.run = n.id OFFSET 0) AS a
              LIMIT $2",
            runs,
            limit
        )
        .fetch_all(&self.reads)
        .await?;
        rows.into_iter()
            .map(|row| {
                let of = format!("of run {}", row.run);
                Ok(AttemptEnd {
                    run: row.run,
                    task: row.task,
                    state: StoreError::known(AttemptState::from_number, row.state, ("attempts", "state"), of)?,
                    started_at: row.started_at,
                    finished_at: row.finished_at,
                })
            })
            .collect()
    }

    /// The states of a group's runs with a logical time between the first and the last of these instants: for each
    /// interval between two of them, numbered from 1, and each state, how many.
    ///
    /// Reads the newest `of_instants` runs of an instant, found by their logical time, and the newest `made` runs of all
    /// kinds, of which those count whose logical time is their creation.
    pub async fn page_group_ends(
        &self,
        group_id: i64,
        instants: &[Time],
        (of_instants, made): (i64, i64),
    ) -> Result<GroupEnds, StoreError> {
        let (Some(from), Some(to)) = (instants.first(), instants.last()) else {
            return Ok(GroupEnds::default());
        };
        let rows = transaction!(self, reads, "page_group_ends", once(BEGIN_KEPT_IN_ORDER), |tx| {
            // Group and id are compared together: the order is then that of one index alone, however few runs are live.
            let rows = sqlx::query!(
                r#"SELECT made AS "made!", CASE WHEN counts THEN width_bucket(logical_time, $6::timestamptz[]) END AS stretch,
                     state AS "state!", count(*) AS "count!"
                 FROM ((SELECT false AS made, true AS counts, d.logical_time, d.state FROM heddle.runs_done d
                         WHERE d.group_id = $1 AND d.logical_time >= $2 AND d.logical_time < $3
                           AND d.logical_time <> d.created_at AND d.trigger <> 4
                         ORDER BY d.logical_time DESC LIMIT $4)
                       UNION ALL
                       (SELECT false, true, v.logical_time, v.state FROM heddle.runs_live v
                         WHERE v.group_id = $1 AND v.logical_time >= $2 AND v.logical_time < $3
                           AND v.logical_time <> v.created_at AND v.trigger <> 4
                         ORDER BY v.logical_time DESC LIMIT $4)
                       UNION ALL
                       (SELECT true, d.logical_time = d.created_at OR d.trigger = 4, d.logical_time, d.state
                          FROM heddle.runs_done d
                         WHERE d.group_id = $1 AND d.id >= heddle.uuid_floor($2) AND d.id < heddle.uuid_floor($3)
                         ORDER BY d.id DESC LIMIT $5)
                       UNION ALL
                       (SELECT true, v.logical_time = v.created_at OR v.trigger = 4, v.logical_time, v.state
                          FROM heddle.runs_live v
                         WHERE (v.group_id, v.id) >= ($1, heddle.uuid_floor($2))
                           AND (v.group_id, v.id) < ($1, heddle.uuid_floor($3))
                         ORDER BY v.group_id DESC, v.id DESC LIMIT $5)) AS l
                GROUP BY 1, 2, 3"#,
                group_id,
                from,
                to,
                of_instants,
                made,
                instants
            )
            .fetch_all(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(rows)
        })?;
        let mut ends = GroupEnds::default();
        let mut read = (0, 0);
        for row in rows {
            let of = format!("of group {group_id}");
            let state = StoreError::known(RunState::from_number, row.state, ("runs", "state"), of)?;
            if row.made {
                read.1 += row.count;
            } else {
                read.0 += row.count;
            }
            ends.counts
                .extend(row.stretch.map(|stretch| (stretch, state, row.count)));
        }
        ends.cut = read.0 >= of_instants || read.1 >= made;
        Ok(ends)
    }

    /// What scripts have stored for a group, by key, after a key; of each value the first `chars` characters.
    pub async fn page_state(
        &self,
        group_id: i64,
        after: &str,
        chars: i32,
        limit: i64,
    ) -> Result<Vec<StateLine>, StoreError> {
        Ok(sqlx::query_as!(
            StateLine,
            r#"SELECT key, left(value, $3) AS "value!", octet_length(value) AS "bytes!", version, updated_at
                 FROM heddle.script_state WHERE group_id = $1 AND key > $2 ORDER BY key LIMIT $4"#,
            group_id,
            after,
            chars,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }

    /// Which groups follow which, or start runs of which.
    pub async fn page_links(&self, limit: i64) -> Result<Vec<LinkLine>, StoreError> {
        Ok(sqlx::query_as!(
            LinkLine,
            r#"SELECT u.name AS upstream, u.enabled AS upstream_enabled, u.id AS upstream_id,
                      g.name AS "group", g.enabled, g.id AS group_id, k.kind
                 FROM heddle.group_links k
                 JOIN heddle.groups g ON g.id = k.group_id AND g.deleted_at IS NULL
                 JOIN heddle.groups u ON u.id = k.upstream_id AND u.deleted_at IS NULL
                ORDER BY k.group_id, k.upstream_id, k.kind LIMIT $1"#,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }
}

/// The newest ended runs of a group in a span.
async fn ended_runs(
    session: &mut PgSession,
    group_id: i64,
    span: Span,
    before: Uuid,
    limit: i64,
) -> Result<Vec<GroupRunNumbers>, StoreError> {
    Ok(sqlx::query_as!(
        GroupRunNumbers,
        "SELECT d.id, d.revision_id, d.state, d.trigger, d.logical_time, d.created_at, d.started_at, d.finished_at, d.error,
                d.progress, d.reopened_at, NULL::jsonb AS waiting_for
           FROM heddle.runs_done d
          WHERE d.group_id = ANY (ARRAY[$1::bigint]) AND d.id >= $2 AND d.id < $3 AND d.id < $4
          ORDER BY d.group_id DESC, d.id DESC LIMIT $5",
        group_id,
        span.first,
        span.after,
        before,
        limit
    )
    .fetch_all(session)
    .await?)
}
