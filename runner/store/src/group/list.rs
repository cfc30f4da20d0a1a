//! Lists of groups, with the filters of people.
//!
//! The values of a filter are in the groups' own rows (migration 0080), which are read by name. Only the state of a
//! group's latest run is not: one answer looks it up for a bounded number of groups, and its cursor says where it
//! stopped.

use std::collections::BTreeMap;

use heddle_domain::name::composed;
use heddle_domain::state::RunState;
use serde_json::Value;

use super::row::GroupRow;
use crate::change::Page;
use crate::database::PgSession;
use crate::labels::Labels;
use crate::pages::overview::last_ends;
use crate::span::{self, BEGIN_BY_SPANS};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// For how many groups one answer looks up the latest run.
const READ_MAX: i64 = 250;

/// Which groups; empty and `None` mean any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupFilter {
    pub category: Option<String>,
    /// With this text in the name or the description, in any case.
    pub text: Option<String>,
    /// With all of these labels; a value of `None` means any.
    pub labels: Vec<(String, Option<String>)>,
    /// Only groups whose latest run is in one of these states; `None` in the list stands for groups without a run.
    pub last_states: Vec<Option<RunState>>,
    /// Only enabled groups (`true`), or only disabled ones.
    pub enabled: Option<bool>,
}

/// A filter in the form of the parameters of statements.
struct Asked {
    /// Patterns for name or description, one of which must match; empty: all match.
    texts: Vec<String>,
    /// Labels that must have these values.
    valued: Value,
    /// Labels that must exist, with any value.
    named: Vec<String>,
}

impl Asked {
    /// `None`: nothing can match.
    fn of(filter: &GroupFilter) -> Option<Self> {
        let Labels { valued, named } = Labels::wanted(&filter.labels)?;
        Some(Self {
            texts: filter.text.as_deref().map(patterns).unwrap_or_default(),
            valued: Value::Object(valued),
            named,
        })
    }
}

/// The patterns for a text: as it is in descriptions, which are kept as they were written, and as it is in names.
fn patterns(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let composed = composed(&text);
    let mut patterns = vec![contains(&text)];
    if composed != text {
        patterns.push(contains(&composed));
    }
    patterns
}

/// The pattern that matches texts with this part.
fn contains(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

impl Store {
    /// Groups by name, after `cursor`, that match a filter. If it asks for latest runs, a page may have fewer than
    /// there are, and a cursor after which there are others.
    pub async fn groups(
        &self,
        filter: &GroupFilter,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<GroupRow>, StoreError> {
        let Some(asked) = Asked::of(filter) else {
            return Ok(Page::of(Vec::new(), limit, |row: &GroupRow| row.name.clone()));
        };
        if !filter.last_states.is_empty() {
            return self.groups_by_last_state(filter, &asked, cursor, limit).await;
        }
        let mut connection = self.reads.acquire().await?;
        let found = ids(&mut connection, filter, &asked, cursor, limit + 1).await?;
        let ids: Vec<i64> = found.iter().map(|(id, _)| *id).collect();
        let rows = rows(&mut connection, &ids).await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    async fn groups_by_last_state(
        &self,
        filter: &GroupFilter,
        asked: &Asked,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<GroupRow>, StoreError> {
        transaction!(self, reads, "groups", once(BEGIN_BY_SPANS), |tx| {
            let now = span::now(&mut tx).await?;
            let mut found = Vec::new();
            let mut next = cursor.map(str::to_owned);
            // For a common state, the first pass finds enough; for a rare one, a second pass would be needed anyway.
            let common = [None, Some(RunState::Succeeded)];
            let first = match filter.last_states.iter().any(|state| common.contains(state)) {
                true => limit.min(READ_MAX),
                false => READ_MAX,
            };
            for to_read in [first, READ_MAX - first] {
                if to_read == 0 {
                    break;
                }
                let groups = ids(&mut tx, filter, asked, next.as_deref(), to_read + 1).await?;
                let read = &groups[..groups.len().min(usize::try_from(to_read).unwrap_or(0))];
                let these: Vec<i64> = read.iter().map(|(id, _)| *id).collect();
                let states = last_states(&mut tx, &these, now).await?;
                next = None;
                let mut last = read.len();
                for (index, (id, _)) in read.iter().enumerate() {
                    if filter.last_states.contains(&states.get(id).copied()) {
                        found.push(*id);
                    }
                    if found.len() as i64 == limit {
                        last = index + 1;
                        break;
                    }
                }
                if last == groups.len() {
                    break;
                }
                next = read[..last].last().map(|(_, name)| name.clone());
                if found.len() as i64 == limit {
                    break;
                }
            }
            let items = rows(&mut tx, &found).await?;
            tx.commit().await?;
            Ok(Page { items, next })
        })
    }
}

/// Groups by name, after `cursor`: their ids and names.
async fn ids(
    session: &mut PgSession,
    filter: &GroupFilter,
    asked: &Asked,
    cursor: Option<&str>,
    limit: i64,
) -> Result<Vec<(i64, String)>, StoreError> {
    let rows = sqlx::query!(
        "SELECT g.id, g.name FROM heddle.groups g
          WHERE g.deleted_at IS NULL AND ($1::text IS NULL OR g.category = $1)
            AND g.name > $2
            AND (cardinality($4::text[]) = 0 OR g.sought LIKE ANY ($4))
            AND ($5::jsonb = '{}' OR g.labels @> $5)
            AND (cardinality($6::text[]) = 0 OR g.labels ?& $6)
            AND ($7::boolean IS NULL OR g.enabled = $7)
          ORDER BY g.name LIMIT $3",
        filter.category,
        cursor.unwrap_or_default(),
        limit,
        &asked.texts,
        asked.valued,
        &asked.named,
        filter.enabled,
    )
    .fetch_all(session)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.name)).collect())
}

/// Groups with their current revisions, by name.
async fn rows(session: &mut PgSession, ids: &[i64]) -> Result<Vec<GroupRow>, StoreError> {
    let mut rows = sqlx::query_as!(
        GroupRow,
        "SELECT g.id, g.name, g.enabled, g.revision, g.revision_id, g.category, r.spec, r.schedule_anchors,
                g.created_at, g.updated_at, g.deleted_at
           FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
          WHERE g.id = ANY ($1)",
        ids,
    )
    .fetch_all(session)
    .await?;
    rows.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

/// The state of each group's latest run; of those that have one.
async fn last_states(
    session: &mut PgSession,
    groups: &[i64],
    now: heddle_domain::Time,
) -> Result<BTreeMap<i64, RunState>, StoreError> {
    let live = sqlx::query!(
        r#"SELECT n.id AS "group!", l.id AS "run!", l.state AS "state!" FROM UNNEST($1::bigint[]) AS n (id)
            CROSS JOIN LATERAL (SELECT v.id, v.state FROM heddle.runs_live v
                                 WHERE v.group_id = ANY (ARRAY[n.id]) ORDER BY v.group_id DESC, v.id DESC LIMIT 1) AS l"#,
        groups
    )
    .fetch_all(&mut *session)
    .await?;
    let mut newest = BTreeMap::new();
    for row in live {
        let state = StoreError::known(RunState::from_number, row.state, ("runs_live", "state"), row.run)?;
        newest.insert(row.group, (row.run, state));
    }
    for (group, run, state) in last_ends(session, groups, now).await? {
        match newest.get(&group) {
            Some((other, _)) if *other > run => {}
            _ => drop(newest.insert(group, (run, state))),
        }
    }
    Ok(newest.into_iter().map(|(group, (_, state))| (group, state)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_is_no_pattern() {
        assert_eq!(contains("50% of a_b\\"), "%50\\% of a\\_b\\\\%");
    }

    #[test]
    fn a_decomposed_text_is_looked_for_in_names_too() {
        assert_eq!(patterns("Caf"), ["%caf%"]);
        assert_eq!(patterns("CAFE\u{301}"), ["%cafe\u{301}%", "%caf\u{e9}%"]);
    }
}
