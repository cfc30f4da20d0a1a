//! Timer tasks: the trees of the compatibility calls, with the numbers by which their callers know them.
//!
//! A tree is stored next to its group, as it was sent, so that a part of it can be changed by its number. One transaction
//! writes both, or deletes both.

use serde_json::Value;

use crate::change::By;
use crate::database::PgSession;
use crate::group::{GroupDelete, GroupPut, GroupWrite, delete_in, put_in};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A node of a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerTaskRow {
    pub task_id: i64,
    /// The parent; `None`: it is the root.
    pub parent: Option<i64>,
    /// As it was sent, without its children.
    pub definition: Value,
}

/// A tree of timer tasks, to be written as a whole.
#[derive(Clone, Copy, Debug)]
pub struct TimerTree<'a> {
    /// The number of its root.
    pub root: i64,
    /// Parents come before their children, so the root is first.
    pub rows: &'a [TimerTaskRow],
    /// The rows that it replaces, as they were read; none: it is a new tree.
    pub before: &'a [TimerTaskRow],
    /// It was submitted: its timers with a delay that have fired begin anew.
    pub begins_anew: bool,
}

async fn tree_of(connection: &mut PgSession, task_id: i64) -> Result<(i64, Vec<TimerTaskRow>), StoreError> {
    let rows = sqlx::query!(
        "SELECT t.task_id, t.parent, t.definition, t.root FROM heddle.timer_tasks t
              WHERE t.root = (SELECT root FROM heddle.timer_tasks WHERE task_id = $1) ORDER BY t.place",
        task_id
    )
    .fetch_all(connection)
    .await?;
    let root = rows.first().map_or(task_id, |row| row.root);
    let rows = rows
        .into_iter()
        .map(|row| TimerTaskRow {
            task_id: row.task_id,
            parent: row.parent,
            definition: row.definition,
        })
        .collect();
    Ok((root, rows))
}

impl Store {
    /// New numbers for timer tasks.
    pub async fn new_timer_task_ids(&self, count: usize) -> Result<Vec<i64>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT nextval('heddle.timer_task_ids') AS "id!" FROM generate_series(1, $1)"#,
            count as i64
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Replaces a tree and puts its group. All changes of groups wait for each other, and so do changes of one tree. If
    /// another change of the tree has come first, nothing is written, and the answer is [`GroupPut::Stale`].
    pub async fn put_timer_tree(
        &self,
        by: By<'_>,
        tree: TimerTree<'_>,
        group: GroupWrite<'_>,
    ) -> Result<GroupPut, StoreError> {
        let TimerTree { root, rows, before, .. } = tree;
        let ids: Vec<i64> = rows.iter().map(|row| row.task_id).collect();
        let parents: Vec<Option<i64>> = rows.iter().map(|row| row.parent).collect();
        let definitions: Vec<Value> = rows.iter().map(|row| row.definition.clone()).collect();
        transaction!(self, pool, "put_timer_tree", |tx| {
            let put = put_in(&mut tx, by, &group).await?;
            if !matches!(put, GroupPut::Done(_)) {
                return Ok(put);
            }
            if tree_of(&mut tx, root).await?.1 != before {
                return Ok(GroupPut::Stale(None));
            }
            sqlx::query!("DELETE FROM heddle.timer_tasks WHERE root = $1", root)
                .execute(&mut *tx)
                .await?;
            sqlx::query!(
                "INSERT INTO heddle.timer_tasks (task_id, root, place, parent, definition)
             SELECT task_id, $1, ordinal - 1, parent, definition
               FROM UNNEST($2::bigint[], $3::bigint[], $4::jsonb[]) WITH ORDINALITY
                 AS t (task_id, parent, definition, ordinal)",
                root,
                &ids,
                &parents as &[Option<i64>],
                &definitions
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(put)
        })
    }

    /// The tree of a node, with the number of its root; empty: there is no such node.
    pub async fn timer_tree_of(&self, task_id: i64) -> Result<(i64, Vec<TimerTaskRow>), StoreError> {
        let mut connection = self.pool.acquire().await?;
        tree_of(&mut connection, task_id).await
    }

    /// Deletes a tree with its group; the caller then cancels the active runs. If the group cannot be deleted, the tree
    /// stays too.
    pub async fn delete_timer_tree(&self, by: By<'_>, root: i64, group: &str) -> Result<GroupDelete, StoreError> {
        transaction!(self, pool, "delete_timer_tree", |tx| {
            let deleted = delete_in(&mut tx, by, group, true, None).await?;
            if matches!(deleted, GroupDelete::Deleted { .. }) {
                sqlx::query!("DELETE FROM heddle.timer_tasks WHERE root = $1", root)
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
            }
            Ok(deleted)
        })
    }
}
