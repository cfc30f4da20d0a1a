//! Maintains days: partitions ahead of time, drained days, and days older than their retention.

use std::sync::Arc;
use std::time::Duration;

use chrono::{NaiveDate, TimeDelta};
use heddle_domain::topic::{Granularity, Topic};
use heddle_domain::{Chain, Time};
use heddle_store::StoreError;
use heddle_store::topic::TopicRow;

use super::compiled;
use crate::EngineError;
use crate::node::Node;
use crate::node::group_commit::Met;
use crate::node::service::{Every, Needs, Service};

/// How often days are checked.
const TEND_EVERY: Duration = Duration::from_secs(2);

/// How often partitions are checked.
const PARTITIONS_EVERY: TimeDelta = TimeDelta::minutes(10);

/// For how many days ahead partitions exist before anybody needs them.
const AHEAD_DAYS: u64 = 9;

/// How many days of a topic, and how many deleted topics, one tick releases.
const RELEASED_MAX: i64 = 100;

pub(crate) struct Days {
    node: Arc<Node>,
    partitions: Every,
    /// After which topic the next tick begins: one tends only so many.
    after: i32,
}

impl Service for Days {
    const FAILED: &'static str = "cannot maintain the days of messages; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = TEND_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        if self.partitions.is_due(now) && self.make_partitions(now).await? {
            self.partitions.done(now);
        }
        self.tend_days(now).await?;
        self.drop_days(now).await?;
        Ok(TEND_EVERY)
    }
}

impl Days {
    pub(crate) fn of(node: Arc<Node>) -> Self {
        Self {
            partitions: Every::at_once(PARTITIONS_EVERY, &node.clock),
            node,
            after: 0,
        }
    }

    /// Notes which days are drained, and releases those whose retention is over.
    async fn tend_days(&mut self, now: Time) -> Result<(), EngineError> {
        // In some time zones it is already tomorrow.
        let until = tomorrow(now.date_naive());
        let (rows, after) = self.node.store.topics_with_open_days(until, self.after).await?;
        // The topics that an error leaves out have their turn with the next round.
        self.after = after;
        for row in rows {
            let Some(topic) = compiled(&row) else { continue };
            match self.tend_days_of(&row, &topic, now).await {
                // The days of other topics do not wait for this one's.
                Err(error) if Met::of(&error) != Met::NoDatabase => tracing::warn!(error = %Chain(&error),
                    topic = row.name, "cannot maintain the days of a topic; trying again"),
                tended => tended?,
            }
        }
        for _ in 0..RELEASED_MAX {
            if !self.node.store.forget_deleted_topic().await? {
                break;
            }
        }
        Ok(())
    }

    async fn tend_days_of(&self, row: &TopicRow, topic: &Topic, now: Time) -> Result<(), EngineError> {
        let today = topic.today(now);
        // With instants, messages may come until the day is over. With days, none come once the day has begun.
        let before = match topic.spec.granularity {
            Granularity::Instant => today,
            Granularity::Day => tomorrow(today),
        };
        self.node.store.close_days(row.id, before).await?;
        let retention_ms = i64::try_from(topic.spec.retention.millis()).unwrap_or(i64::MAX);
        let released = self.node.store.release_days(row.id, retention_ms, RELEASED_MAX).await?;
        if released > 0 {
            tracing::info!(topic = row.name, days = released, "marked days of messages as drained");
        }
        Ok(())
    }

    /// Creates partitions ahead of time; returns whether all exist.
    async fn make_partitions(&self, now: Time) -> Result<bool, EngineError> {
        let today = now.date_naive();
        let days = (0..=AHEAD_DAYS).filter_map(|ahead| today.checked_add_days(chrono::Days::new(ahead)));
        let mut complete = true;
        for day in days {
            let made = self.node.store.make_message_days(&[day]).await;
            complete &= of_one_day(made, day, "cannot prepare a day for messages; trying again")?.is_some();
        }
        Ok(complete)
    }

    /// Drops partitions that nobody needs any more.
    async fn drop_days(&self, now: Time) -> Result<(), EngineError> {
        // In some time zones it is still yesterday.
        let Some(before) = now.date_naive().checked_sub_days(chrono::Days::new(1)) else {
            return Ok(());
        };
        for day in self.node.store.unneeded_days(before).await? {
            let dropped = self.node.store.drop_message_day(day).await;
            if of_one_day(dropped, day, "cannot remove the messages of a day; trying again")? == Some(true) {
                tracing::info!(%day, "removed the messages of a day after its retention");
            }
        }
        Ok(())
    }
}

/// What was done for one day; `None`: it failed, which is logged, and other days do not wait for this one. Returns only an
/// error that they would meet as well.
fn of_one_day<T>(done: Result<T, StoreError>, day: NaiveDate, failed: &'static str) -> Result<Option<T>, EngineError> {
    let error = match done {
        Ok(done) => return Ok(Some(done)),
        Err(error) => EngineError::from(error),
    };
    if Met::of(&error) == Met::NoDatabase {
        return Err(error);
    }
    tracing::warn!(error = %Chain(&error), %day, "{failed}");
    Ok(None)
}

fn tomorrow(today: NaiveDate) -> NaiveDate {
    today.succ_opt().unwrap_or(today)
}
