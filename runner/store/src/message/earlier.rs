//! Keys of past messages on earlier days.
//!
//! A past message is stored with the present day, and so is its key. Its repeat on a later day finds the key only where it
//! was stored, and nobody knows which day that was. So the days are looked at one after another, until each key is found:
//! first the day on which the message was due, then the newest days. Only days that have keys of the topic are looked at.
//!
//! The look is a transaction of its own, which only reads: it may take a second, and a transaction of ingest would hold
//! its keys and days for as long.

use std::collections::{HashSet, VecDeque};

use chrono::NaiveDate;
use heddle_domain::Time;
use heddle_domain::topic::Topic;

use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A message whose key may be stored with an earlier day than its own: it was due on an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub struct LateKey {
    pub key: String,
    /// The day that was asked for.
    pub due_day: NaiveDate,
    /// The day that the message is to be stored with.
    pub day: NaiveDate,
}

/// How many look-ups one call makes at most: one for each key and day. 5,000 new keys are looked for on 20 days.
const LOOK_UPS_MAX: usize = 100_000;

/// The look-ups of one statement, times its days. Postgres tries the partition of each day for each look-up, which takes
/// 2 µs. And the plan of a statement takes as long as some hundred look-ups.
const AT_ONCE_MAX: usize = 10_000;

impl Store {
    /// Which of the messages are stored under the same keys with earlier days, by their positions. They are the same if they
    /// were due on the same day. From that day on, it looks at the newest `days_max` days that the topic keeps, and makes up
    /// to 100,000 look-ups; with more, keys are not found on the oldest of these days.
    ///
    /// Transactions that are still open are not seen: only on the day of its own, a message waits for them
    /// ([`crate::message::MessageIngest::take_keys`]).
    pub async fn earlier_keys(
        &self,
        topic: i32,
        terms: &Topic,
        late: &[LateKey],
        days_max: i64,
    ) -> Result<HashSet<usize>, StoreError> {
        let from = late.iter().map(|late| late.due_day).min();
        let before = late.iter().map(|late| late.day).max();
        let (Some(from), Some(before)) = (from, before) else {
            return Ok(HashSet::new());
        };
        transaction!(self, pool, "earlier_message_keys", once("BEGIN READ ONLY"), |tx| {
            tx.patiently();
            let days = days_with_keys(&mut tx, topic, (from, before), days_max).await?;
            let mut search = Search::of(late, &days);
            while let Some(look_ups) = search.next() {
                for (index, due_at) in look_up(&mut tx, topic, late, &look_ups).await? {
                    if late.get(index).is_some_and(|late| terms.today(due_at) == late.due_day) {
                        search.found(index);
                    }
                }
            }
            Ok(search.found)
        })
    }
}

/// The newest days that the topic keeps, of those from one day until before another; of these, the ones that have keys of
/// the topic, newest first.
async fn days_with_keys(
    connection: &mut PgSession,
    topic: i32,
    (from, before): (NaiveDate, NaiveDate),
    days_max: i64,
) -> Result<Vec<NaiveDate>, StoreError> {
    // From here on, statements name days.
    let kept = sqlx::query_scalar!(
        r#"SELECT d.day AS "day!"
             FROM (SELECT set_config('plan_cache_mode', 'force_custom_plan', true)) AS planned, heddle.message_days d
            WHERE d.topic = $1 AND d.day >= $2 AND d.day < $3 AND d.dropped_at IS NULL
            ORDER BY d.day DESC LIMIT $4"#,
        topic,
        from,
        before,
        days_max
    )
    .fetch_all(&mut *connection)
    .await?;
    if kept.is_empty() {
        return Ok(kept);
    }
    // The plan has the partitions of `$2` only, and of these, each sub-select reads one.
    let mut days = sqlx::query_scalar!(
        r#"SELECT n.day AS "day!" FROM UNNEST($2::date[]) AS n (day)
            WHERE (SELECT true FROM heddle.message_keys k
                    WHERE k.day = ANY ($2) AND k.day = n.day AND k.topic = $1 LIMIT 1)"#,
        topic,
        &kept
    )
    .fetch_all(connection)
    .await?;
    days.sort_unstable_by(|one, other| other.cmp(one));
    Ok(days)
}

/// The look-ups of one statement.
#[derive(Clone, Debug, Default, PartialEq)]
struct LookUps {
    days: Vec<NaiveDate>,
    /// Each with its day, and the position of its message.
    of: Vec<(NaiveDate, usize)>,
}

/// Makes look-ups: one for each, by the primary keys. Returns the positions of the messages whose keys are stored, and when
/// the stored messages were due.
async fn look_up(
    connection: &mut PgSession,
    topic: i32,
    late: &[LateKey],
    look_ups: &LookUps,
) -> Result<Vec<(usize, Time)>, StoreError> {
    let days: Vec<NaiveDate> = look_ups.of.iter().map(|one| one.0).collect();
    let keys: Vec<String> = look_ups.of.iter().map(|one| late[one.1].key.clone()).collect();
    let positions: Vec<i64> = look_ups.of.iter().map(|one| one.1 as i64).collect();
    let rows = sqlx::query!(
        r#"SELECT n.position AS "position!", f.due_at AS "due_at!"
             FROM UNNEST($3::date[], $4::text[], $5::bigint[]) AS n (day, key, position)
            CROSS JOIN LATERAL (
                SELECT (SELECT m.due_at FROM heddle.messages m
                         WHERE m.day = ANY ($2) AND m.day = n.day AND m.topic = $1
                           AND m.bucket = heddle.message_bucket(k.id) AND m.id = k.id LIMIT 1) AS due_at
                  FROM heddle.message_keys k
                 WHERE k.day = ANY ($2) AND k.day = n.day AND k.topic = $1 AND k.key = n.key
                   AND k.bucket = (('x' || substr(md5(n.key), 1, 7))::bit(28)::integer % 10000)::smallint
                 LIMIT 1) AS f
            WHERE f.due_at IS NOT NULL"#,
        topic,
        &look_ups.days,
        &days,
        &keys,
        &positions
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.position as usize, row.due_at))
        .collect())
}

/// Where a key is looked for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// On the day on which the message was due, if it is this one.
    Due(NaiveDate),
    /// On this day, if it is a later one.
    Later(NaiveDate),
}

impl Step {
    fn day(self) -> NaiveDate {
        match self {
            Self::Due(day) | Self::Later(day) => day,
        }
    }

    fn concerns(self, late: &LateKey) -> bool {
        match self {
            Self::Due(day) => late.due_day == day && day < late.day,
            Self::Later(day) => late.due_day < day && day < late.day,
        }
    }
}

/// A search for the keys of many messages: which look-ups come next.
struct Search<'a> {
    late: &'a [LateKey],
    steps: VecDeque<Step>,
    /// The positions of those that are not found yet.
    open: Vec<usize>,
    found: HashSet<usize>,
    /// How many look-ups may still be made.
    left: usize,
}

impl<'a> Search<'a> {
    /// `days`: those that have keys, newest first.
    fn of(late: &'a [LateKey], days: &[NaiveDate]) -> Self {
        let due = days.iter().copied().map(Step::Due);
        Self {
            late,
            steps: due.chain(days.iter().copied().map(Step::Later)).collect(),
            open: (0..late.len()).collect(),
            found: HashSet::new(),
            left: LOOK_UPS_MAX,
        }
    }

    /// The look-ups of the next statement; `None`: the search is over.
    fn next(&mut self) -> Option<LookUps> {
        let found = &self.found;
        self.open.retain(|index| !found.contains(index));
        let mut next = LookUps::default();
        while let Some(step) = self.steps.front().copied()
            && self.left > 0
        {
            let concerned = self
                .open
                .iter()
                .copied()
                .filter(|&index| step.concerns(&self.late[index]));
            let more: Vec<(NaiveDate, usize)> = concerned.take(self.left).map(|index| (step.day(), index)).collect();
            let cost = (next.days.len() + 1) * (next.of.len() + more.len());
            if !next.of.is_empty() && cost > AT_ONCE_MAX {
                break;
            }
            self.steps.pop_front();
            if more.is_empty() {
                continue;
            }
            self.left -= more.len();
            if !next.days.contains(&step.day()) {
                next.days.push(step.day());
            }
            next.of.extend(more);
        }
        (!next.of.is_empty()).then_some(next)
    }

    fn found(&mut self, index: usize) {
        self.found.insert(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(number: u32) -> NaiveDate {
        NaiveDate::from_num_days_from_ce_opt(700_000 + number as i32).unwrap()
    }

    fn late(due: u32, today: u32) -> LateKey {
        LateKey {
            key: "k".to_owned(),
            due_day: day(due),
            day: day(today),
        }
    }

    /// The statements of a search in which nothing is found.
    fn all(late: &[LateKey], days: &[NaiveDate]) -> Vec<LookUps> {
        let mut search = Search::of(late, days);
        std::iter::from_fn(|| search.next()).collect()
    }

    #[test]
    fn the_day_of_due_comes_first_and_then_the_newest() {
        let days: Vec<NaiveDate> = [9, 8, 7, 5, 3].map(day).to_vec();
        let both = [late(5, 9), late(8, 9)];
        let one = all(&both, &days);
        let of = [(8, 1), (5, 0), (8, 0), (7, 0)].map(|(number, index)| (day(number), index));
        assert_eq!(one.len(), 1, "{one:?}");
        assert_eq!(one[0].of, of);
        assert_eq!(one[0].days, [8, 5, 7].map(day));
        assert!(all(&both, &[]).is_empty());
    }

    #[test]
    fn what_is_found_is_not_looked_for_again() {
        let many = vec![late(1, 9); AT_ONCE_MAX - 1];
        let days: Vec<NaiveDate> = (1..9).rev().map(day).collect();
        let mut search = Search::of(&many, &days);
        let first = search.next().unwrap();
        assert_eq!((first.days, first.of.len()), (vec![day(1)], many.len()));
        (1..many.len()).for_each(|index| search.found(index));
        let second = search.next().unwrap();
        assert_eq!(
            second.of,
            (2..9).rev().map(|number| (day(number), 0)).collect::<Vec<_>>()
        );
        search.found(0);
        assert_eq!(search.next(), None);
    }

    #[test]
    fn a_search_is_bounded() {
        let days: Vec<NaiveDate> = (1..=100).rev().map(day).collect();
        let statements = all(&vec![late(0, 101); 5_000], &days);
        let look_ups: usize = statements.iter().map(|one| one.of.len()).sum();
        assert_eq!((statements.len(), look_ups), (20, LOOK_UPS_MAX));
        assert_eq!(statements[0].days, [day(100)], "the newest");
        // One key, and keys that were due on many days, cost few statements.
        assert_eq!(all(&[late(0, 101)], &days).len(), 1);
        let spread: Vec<LateKey> = (0..5_000).map(|number| late(number % 100 + 1, 101)).collect();
        let statements = all(&spread, &days);
        assert!(
            statements
                .iter()
                .all(|one| one.days.len() * one.of.len() <= AT_ONCE_MAX)
        );
        assert!(
            statements.iter().take(8).all(|one| one.days.len() > 1),
            "{}",
            statements.len()
        );
    }
}
