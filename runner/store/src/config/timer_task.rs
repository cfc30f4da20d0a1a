//! Timer tasks: the trees of the compatibility calls, with the numbers by which their callers know them.
//!
//! A tree is stored next to its group, as it was sent, so that a part of it can be changed by its number. The rows are
//! written before the group: a tree whose group was never created is found by nobody.

use serde_json::Value;

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

    /// Replaces a tree; parents come before their children, so the root is first.
    pub async fn put_timer_tree(&self, root: i64, rows: &[TimerTaskRow]) -> Result<(), StoreError> {
        let ids: Vec<i64> = rows.iter().map(|row| row.task_id).collect();
        let parents: Vec<Option<i64>> = rows.iter().map(|row| row.parent).collect();
        let definitions: Vec<Value> = rows.iter().map(|row| row.definition.clone()).collect();
        transaction!(self, pool, "put_timer_tree", |tx| {
            // Concurrent changes of one tree wait for each other.
            sqlx::query!(
                "SELECT pg_advisory_xact_lock(hashtextextended('heddle/timer_tree', $1))",
                root
            )
            .fetch_one(&mut *tx)
            .await?;
            sqlx::query!("DELETE FROM heddle.timer_tasks WHERE root = $1", root)
                .execute(&mut *tx)
                .await?;
            sqlx::query!(
                "INSERT INTO heddle.timer_tasks (task_id, root, place, parent, definition)
             SELECT task_id, $1, place - 1, parent, definition
               FROM UNNEST($2::bigint[], $3::bigint[], $4::jsonb[]) WITH ORDINALITY
                 AS t (task_id, parent, definition, place)",
                root,
                &ids,
                &parents as &[Option<i64>],
                &definitions
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(())
        })
    }

    /// The tree of a node, with the number of its root; empty: there is no such node.
    pub async fn timer_tree_of(&self, task_id: i64) -> Result<(i64, Vec<TimerTaskRow>), StoreError> {
        let rows = sqlx::query!(
            "SELECT t.task_id, t.parent, t.definition, t.root FROM heddle.timer_tasks t
              WHERE t.root = (SELECT root FROM heddle.timer_tasks WHERE task_id = $1) ORDER BY t.place",
            task_id
        )
        .fetch_all(&self.pool)
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

    pub async fn delete_timer_tree(&self, root: i64) -> Result<(), StoreError> {
        sqlx::query!("DELETE FROM heddle.timer_tasks WHERE root = $1", root)
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}
