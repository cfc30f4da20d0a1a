//! Links between groups: which follow which, and whose tasks start sub-runs of which.

use heddle_domain::link::LinkKind;
use heddle_domain::spec::Need;

use crate::database::PgSession;
use crate::{Store, StoreError};

/// How many groups the search for a cycle visits at most, which also bounds the length of a chain of groups.
const LINK_DEPTH_MAX: i32 = 1_000;

const TABLE: &str = "group_links";

/// A link that a spec makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupLink {
    pub upstream: String,
    pub kind: LinkKind,
    pub need: Need,
}

/// A current link between two groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRow {
    pub group: String,
    pub upstream: String,
    pub kind: LinkKind,
    pub need: Need,
}

/// The same as the table has it.
struct StoredLink {
    group: String,
    upstream: String,
    kind: String,
    need: String,
}

impl StoredLink {
    fn read(self) -> Result<LinkRow, StoreError> {
        let Self {
            group,
            upstream,
            kind,
            need,
        } = self;
        Ok(LinkRow {
            kind: kind_of(&kind, &group, &upstream)?,
            need: StoreError::word(&need, (TABLE, "need"), named(&group, &upstream))?,
            group,
            upstream,
        })
    }
}

/// How an error names the link between two groups.
fn named(group: &str, upstream: &str) -> String {
    format!("of `{group}` with upstream `{upstream}`")
}

/// The kind of the link between two groups.
pub(crate) fn kind_of(kind: &str, group: &str, upstream: &str) -> Result<LinkKind, StoreError> {
    StoreError::word(kind, (TABLE, "kind"), named(group, upstream))
}

/// The ids of the upstream groups by name, in the order of `links`; `Err` has the names that do not exist.
pub(crate) async fn resolve(
    connection: &mut PgSession,
    links: &[GroupLink],
) -> Result<Result<Vec<i64>, Vec<String>>, StoreError> {
    let names: Vec<String> = links.iter().map(|link| link.upstream.clone()).collect();
    let found = sqlx::query!(
        "SELECT id, name FROM heddle.groups WHERE name = ANY($1) AND deleted_at IS NULL",
        &names,
    )
    .fetch_all(connection)
    .await?;
    let mut ids = Vec::with_capacity(links.len());
    let mut unknown = Vec::new();
    for name in names {
        match found.iter().find(|row| row.name == name) {
            Some(row) => ids.push(row.id),
            None if unknown.contains(&name) => {}
            None => unknown.push(name),
        }
    }
    Ok(if unknown.is_empty() { Ok(ids) } else { Err(unknown) })
}

/// A path from one of `upstreams` back to `group`, written from `group` to `group`.
pub(crate) async fn find_cycle(
    connection: &mut PgSession,
    group: &str,
    group_id: Option<i64>,
    links: &[GroupLink],
    upstreams: &[i64],
) -> Result<Option<Vec<String>>, StoreError> {
    let Some(group_id) = group_id else { return Ok(None) };
    // UNION drops what was reached before, so that the search visits each edge once, however many paths lead there.
    let edges = sqlx::query!(
        r#"WITH RECURSIVE reached (id) AS (
             SELECT id FROM unnest($1::bigint[]) AS start (id)
             UNION
             SELECT l.upstream_id FROM heddle.group_links l JOIN reached r ON l.group_id = r.id
             WHERE r.id <> $2
           )
           SELECT l.group_id, l.upstream_id, g.name AS "group!", u.name AS "upstream!"
           FROM heddle.group_links l
           JOIN reached r ON r.id = l.group_id
           JOIN heddle.groups g ON g.id = l.group_id
           JOIN heddle.groups u ON u.id = l.upstream_id
           WHERE l.group_id <> $2"#,
        upstreams,
        group_id,
    )
    .fetch_all(connection)
    .await?;
    // Breadth first from the group's new upstreams, so that the cycle named is a shortest one.
    let mut came_from: std::collections::BTreeMap<&str, Option<&str>> =
        links.iter().map(|link| (link.upstream.as_str(), None)).collect();
    let mut frontier: Vec<&str> = came_from.keys().copied().collect();
    for _ in 0..LINK_DEPTH_MAX {
        let mut next = Vec::new();
        for at in frontier {
            for edge in edges.iter().filter(|edge| edge.group == at) {
                if edge.upstream == group {
                    let mut path = vec![group.to_owned()];
                    let mut step = Some(at);
                    while let Some(name) = step {
                        path.push(name.to_owned());
                        step = came_from.get(name).copied().flatten();
                    }
                    path.push(group.to_owned());
                    path.reverse();
                    return Ok(Some(path));
                }
                if !came_from.contains_key(edge.upstream.as_str()) {
                    came_from.insert(&edge.upstream, Some(at));
                    next.push(edge.upstream.as_str());
                }
            }
        }
        if next.is_empty() {
            return Ok(None);
        }
        frontier = next;
    }
    Ok(None)
}

/// Replaces the links of the group's current revision.
pub(crate) async fn replace(
    connection: &mut PgSession,
    group_id: i64,
    links: &[GroupLink],
    upstreams: &[i64],
) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM heddle.group_links WHERE group_id = $1", group_id)
        .execute(&mut *connection)
        .await?;
    let kinds: Vec<String> = links.iter().map(|link| link.kind.as_str().to_owned()).collect();
    let needs: Vec<String> = links.iter().map(|link| link.need.as_str().to_owned()).collect();
    sqlx::query!(
        "INSERT INTO heddle.group_links (group_id, upstream_id, kind, need)
         SELECT $1, upstream_id, kind, need
         FROM unnest($2::bigint[], $3::text[], $4::text[]) AS link (upstream_id, kind, need)
         ON CONFLICT DO NOTHING",
        group_id,
        upstreams,
        &kinds,
        &needs,
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

impl Store {
    /// All links between groups that are not deleted: the graph of groups.
    pub async fn group_links(&self) -> Result<Vec<LinkRow>, StoreError> {
        let links = sqlx::query_as!(
            StoredLink,
            r#"SELECT g.name AS "group", u.name AS upstream, l.kind, l.need
               FROM heddle.group_links l
               JOIN heddle.groups g ON g.id = l.group_id
               JOIN heddle.groups u ON u.id = l.upstream_id
               WHERE g.deleted_at IS NULL
               ORDER BY g.name, u.name, l.kind"#,
        )
        .fetch_all(&self.pool)
        .await?;
        links.into_iter().map(StoredLink::read).collect()
    }

    /// The links of one group, upwards and downwards.
    pub async fn links_of(&self, group_id: i64) -> Result<Vec<LinkRow>, StoreError> {
        let links = sqlx::query_as!(
            StoredLink,
            r#"SELECT g.name AS "group", u.name AS upstream, l.kind, l.need
               FROM heddle.group_links l
               JOIN heddle.groups g ON g.id = l.group_id
               JOIN heddle.groups u ON u.id = l.upstream_id
               WHERE l.group_id = $1 OR l.upstream_id = $1
               ORDER BY g.name, u.name, l.kind"#,
            group_id,
        )
        .fetch_all(&self.pool)
        .await?;
        links.into_iter().map(StoredLink::read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_word_is_an_error_that_names_the_link() {
        let link = |kind: &str, need: &str| StoredLink {
            group: "a".into(),
            upstream: "b".into(),
            kind: kind.into(),
            need: need.into(),
        };
        let read = link("sub_run", "latest").read().unwrap();
        assert_eq!((read.kind, read.need), (LinkKind::SubRun, Need::Latest));
        let told = |kind: &str, need: &str| link(kind, need).read().unwrap_err().to_string();
        let row = "cannot read row of `a` with upstream `b` in group_links";
        assert_eq!(told("calls", "latest"), format!("{row}: kind is `calls`"));
        assert_eq!(told("depends_on", "all"), format!("{row}: need is `all`"));
    }
}
