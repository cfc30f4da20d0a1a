//! Looks up the names in a filter.

use chrono::TimeDelta;
use heddle_domain::Time;
use uuid::Uuid;

use super::filter::RunFilter;
use crate::database::PgSession;
use crate::labels::Labels;
use crate::span::{self, ID_SLACK, Span};
use crate::{Store, StoreError};

/// Up to this many groups are read each from the index of its runs: each of these reads costs something for every kept
/// day. If there are more groups, their runs are searched among all, from the newest on: of many groups, some have run
/// lately.
pub(super) const GROUPS_EACH: usize = 30;

/// Up to this many revisions that use a script or a queue are looked up before their runs. If there are more, or they
/// belong to many groups, runs are read from the newest on, and their revisions are checked.
const USERS_MAX: i64 = 1_000;

/// How many of them are enough to see that they belong to many groups.
const USERS_FIRST: i64 = 200;

/// How far the clock that dated a revision or a backfill may be ahead of the clocks that dated its runs.
pub(super) const CLOCKS_DIFFER: TimeDelta = TimeDelta::hours(1);

/// A filter, with the ids and revisions that its names mean.
pub(super) struct Sought<'f> {
    pub(super) filter: &'f RunFilter,
    pub(super) labels: Labels,
    /// The groups that it names, or that use its queues and scripts; their runs are read one group after the other.
    pub(super) groups: Option<Vec<i64>>,
    /// The same, but too many groups for that.
    pub(super) many_groups: Option<Vec<i64>>,
    /// The users of its queues and scripts.
    pub(super) users: Option<Users>,
    /// The runs with its key.
    pub(super) keyed: Option<Vec<Uuid>>,
    /// None of its runs was created before: no revision that uses its queues and scripts is older.
    pub(super) since: Option<Time>,
}

/// Revisions that use queues and scripts.
pub(super) enum Users {
    /// There are few; they were looked up.
    Few {
        revisions: Vec<i64>,
        /// If a version is wanted: sets of resolved scripts that contain it.
        resolutions: Option<Vec<i64>>,
    },
    /// There are many: the scripts, as they are written in specs.
    Many { written: Vec<String> },
}

/// A revision that uses them.
struct User {
    id: i64,
    group_id: i64,
    created_at: Time,
}

/// What a filter's queues and scripts mean.
struct Using {
    users: Users,
    /// The groups that use them, if these are few.
    groups: Option<Vec<i64>>,
    /// No revision used them before.
    since: Option<Time>,
}

impl<'f> Sought<'f> {
    /// Whether its runs are adjacent or few: then the past is not read in spans.
    pub(super) fn is_reached(&self) -> bool {
        let filter = self.filter;
        self.keyed.is_some() || filter.id_range.is_some() || !filter.ids.is_empty() || filter.source.is_some()
    }

    /// Whether no index returns its runs in the order of ids, so that runs are read one after the other.
    pub(super) fn is_search(&self) -> bool {
        let filter = self.filter;
        let asks = self.many_groups.is_some()
            || matches!(self.users, Some(Users::Many { .. }))
            || !filter.triggers.is_empty()
            || !filter.labels.is_empty()
            || filter.logical_from.is_some()
            || filter.logical_to.is_some();
        asks && self.groups.is_none() && !self.is_reached()
    }

    /// Whether only the index of each group's runs is useful: there are no other conditions.
    pub(super) fn is_of_groups_only(&self) -> bool {
        let filter = self.filter;
        self.groups.is_some()
            && self.users.is_none()
            && filter.states.is_empty()
            && filter.triggers.is_empty()
            && filter.labels.is_empty()
            && filter.logical_from.is_none()
            && filter.logical_to.is_none()
    }

    /// Whether a version of a script is wanted.
    pub(super) fn is_of_versions(&self) -> bool {
        self.filter.scripts.iter().any(|script| script.contains('@'))
    }
}

/// The part of the past that a filter may mean, from the cursor's day on.
pub(super) fn spans(sought: &Sought<'_>, now: Time) -> Vec<Span> {
    let filter = sought.filter;
    let before = filter.before.and_then(|before| span::made(before.0));
    let newest = [before, filter.to.map(|to| to + ID_SLACK)]
        .into_iter()
        .flatten()
        .fold(now, Time::min);
    span::spans(newest, filter.from.map(|from| from - ID_SLACK).max(sought.since))
}

impl Store {
    /// Looks up the names of a filter; `None`: nothing can match.
    pub(super) async fn sought<'f>(&self, filter: &'f RunFilter) -> Result<Option<Sought<'f>>, StoreError> {
        let Some(labels) = Labels::wanted(&filter.labels) else {
            return Ok(None);
        };
        let mut groups = None;
        if !filter.groups.is_empty() {
            // A group that was deleted and created again has one name and several ids.
            let ids = sqlx::query_scalar!(
                r#"SELECT id AS "id!" FROM heddle.groups WHERE name = ANY ($1) AND deleted_at IS NULL
                   UNION ALL SELECT id FROM heddle.groups WHERE name = ANY ($1) AND deleted_at IS NOT NULL"#,
                &filter.groups
            )
            .fetch_all(&self.reads)
            .await?;
            groups = Some(ids);
        }
        let (mut users, mut since) = (None, None);
        if !filter.queues.is_empty() || !filter.scripts.is_empty() {
            let found = self.users_of(filter, groups.as_deref()).await?;
            users = Some(found.users);
            since = found.since;
            groups = found.groups.or(groups);
        }
        let mut keyed = None;
        if let Some(key) = &filter.key {
            let runs = sqlx::query_scalar!("SELECT run FROM heddle.run_keys WHERE key = $1", key)
                .fetch_all(&self.reads)
                .await?;
            keyed = Some(runs);
        }
        let unresolved = matches!(&users, Some(Users::Few { resolutions: Some(ids), .. }) if ids.is_empty());
        if groups.as_ref().is_some_and(Vec::is_empty) || unresolved || keyed.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let (groups, many_groups) = match groups {
            Some(ids) if ids.len() > GROUPS_EACH => (None, Some(ids)),
            groups => (groups, None),
        };
        Ok(Some(Sought {
            filter,
            labels,
            groups,
            many_groups,
            users,
            keyed,
            since,
        }))
    }

    /// What a filter's queues and scripts mean, among revisions of these groups.
    async fn users_of(&self, filter: &RunFilter, among: Option<&[i64]>) -> Result<Using, StoreError> {
        // `name` means every version; `name@3` the version that a run resolved, whether its spec pins it or not.
        let names: Vec<String> = filter
            .scripts
            .iter()
            .map(|script| script.split('@').next().unwrap_or_default().to_owned())
            .collect();
        // As written in specs: a deleted script keeps its row, and with it its versions.
        let written = if names.is_empty() {
            Vec::new()
        } else {
            sqlx::query_scalar!(
                r#"SELECT s.name AS "written!" FROM heddle.scripts s WHERE s.name = ANY ($1)
                   UNION ALL
                   SELECT s.name || '@' || v.version FROM heddle.scripts s
                    CROSS JOIN LATERAL generate_series(1, s.last_version) AS v (version) WHERE s.name = ANY ($1)"#,
                &names
            )
            .fetch_all(&self.reads)
            .await?
        };
        let groups_of = |used: &[User]| {
            let mut groups: Vec<i64> = used.iter().map(|one| one.group_id).collect();
            groups.sort_unstable();
            groups.dedup();
            groups
        };
        let mut used = self.some_users(filter, &written, among, USERS_FIRST).await?;
        if used.len() as i64 == USERS_FIRST && groups_of(&used).len() <= GROUPS_EACH {
            used = self.some_users(filter, &written, among, USERS_MAX + 1).await?;
        }
        let using = groups_of(&used);
        if used.len() as i64 > USERS_MAX || using.len() > GROUPS_EACH {
            return Ok(Using {
                users: Users::Many { written },
                groups: None,
                since: None,
            });
        }
        let since = used.iter().map(|one| one.created_at).min();
        let revisions: Vec<i64> = used.into_iter().map(|one| one.id).collect();
        let resolutions = match filter.scripts.iter().any(|script| script.contains('@')) {
            true => Some(self.resolved(&revisions, &filter.scripts).await?),
            false => None,
        };
        Ok(Using {
            users: Users::Few { revisions, resolutions },
            groups: Some(using),
            since: since.and_then(|since| since.checked_sub_signed(CLOCKS_DIFFER)),
        })
    }

    /// Revisions that use a filter's queues and these scripts, up to `limit`. The expressions are those
    /// of the indexes of migration 0062.
    async fn some_users(
        &self,
        filter: &RunFilter,
        written: &[String],
        among: Option<&[i64]>,
        limit: i64,
    ) -> Result<Vec<User>, StoreError> {
        let users = match (filter.queues.is_empty(), filter.scripts.is_empty()) {
            (false, true) => {
                let users = sqlx::query_as!(
                    User,
                    "SELECT r.id, r.group_id, r.created_at FROM heddle.revisions r
                      WHERE jsonb_path_query_array(r.spec, '$.tasks.*.queue') ?| $1
                        AND ($2::bigint[] IS NULL OR r.group_id = ANY ($2)) LIMIT $3",
                    &filter.queues,
                    among,
                    limit
                );
                users.fetch_all(&self.reads).await?
            }
            (true, false) => {
                let users = sqlx::query_as!(
                    User,
                    "SELECT r.id, r.group_id, r.created_at FROM heddle.revisions r
                      WHERE jsonb_path_query_array(r.spec, '$.tasks.*.script') ?| $1
                        AND ($2::bigint[] IS NULL OR r.group_id = ANY ($2)) LIMIT $3",
                    written,
                    among,
                    limit
                );
                users.fetch_all(&self.reads).await?
            }
            _ => {
                let users = sqlx::query_as!(
                    User,
                    "SELECT r.id, r.group_id, r.created_at FROM heddle.revisions r
                      WHERE jsonb_path_query_array(r.spec, '$.tasks.*.queue') ?| $1
                        AND jsonb_path_query_array(r.spec, '$.tasks.*.script') ?| $2
                        AND ($3::bigint[] IS NULL OR r.group_id = ANY ($3)) LIMIT $4",
                    &filter.queues,
                    written,
                    among,
                    limit
                );
                users.fetch_all(&self.reads).await?
            }
        };
        Ok(users)
    }

    /// Sets of resolved scripts of these revisions that have one of these scripts, by name or by name and version.
    async fn resolved(&self, revisions: &[i64], scripts: &[String]) -> Result<Vec<i64>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT o.id FROM heddle.resolutions o
                WHERE o.revision_id = ANY ($1)
                  AND EXISTS (SELECT FROM jsonb_each(o.scripts) AS t
                               WHERE t.value->>'script' = ANY ($2)
                                  OR (t.value->>'script') || '@' || (t.value->>'version') = ANY ($2))"#,
            revisions,
            scripts
        )
        .fetch_all(&self.reads)
        .await?)
    }
}

/// Which of these revisions use a filter's queues, and scripts as specs write them.
pub(super) async fn users_among(
    session: &mut PgSession,
    filter: &RunFilter,
    written: &[String],
    revisions: &[i64],
) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT r.id FROM heddle.revisions r
          WHERE r.id = ANY ($1)
            AND (cardinality($2::text[]) = 0 OR jsonb_path_query_array(r.spec, '$.tasks.*.queue') ?| $2)
            AND (cardinality($3::text[]) = 0 OR jsonb_path_query_array(r.spec, '$.tasks.*.script') ?| $3)",
        revisions,
        &filter.queues,
        // A script that never existed is in no spec.
        if filter.scripts.is_empty() { &[] } else { written } as &[String]
    )
    .fetch_all(session)
    .await?)
}

/// Which of these sets of resolved scripts contain one of the filter's scripts in the wanted version.
pub(super) async fn resolved_among(
    session: &mut PgSession,
    filter: &RunFilter,
    resolutions: &[i64],
) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT o.id FROM heddle.resolutions o
          WHERE o.id = ANY ($1)
            AND EXISTS (SELECT FROM jsonb_each(o.scripts) AS t
                         WHERE t.value->>'script' = ANY ($2)
                            OR (t.value->>'script') || '@' || (t.value->>'version') = ANY ($2))",
        resolutions,
        &filter.scripts
    )
    .fetch_all(session)
    .await?)
}
