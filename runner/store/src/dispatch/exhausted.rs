//! Reads which occurrences are exhausted, that is, have no stock left: a bounded number at a time.

use heddle_domain::Time;

use crate::{Store, StoreError};

/// The occurrences of an offer without stock, within some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    pub offer_id: i64,
    /// The occurrences, in no order.
    pub occurrences: Vec<Time>,
    /// The earliest occurrence that was checked, if there may be others that were not.
    pub cut_at: Option<Time>,
}

/// The end of the taken occurrences at which the check begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenEnd {
    Earliest,
    Newest,
}

/// How many taken occurrences of an audience's offers are checked for those without stock.
const TAKEN_MAX: i64 = 50_000;

/// How often the unused part of that number is divided again among the offers that need more.
const TAKEN_PASSES: usize = 3;

impl Store {
    /// The occurrences without stock of an audience's offers, of which `repeating` repeat, from an instant on.
    ///
    /// The number of rows read is bounded, however much has been taken: each offer has its part of that number, and the
    /// unused part of one offer goes to the others.
    pub async fn exhausted(
        &self,
        offers: &[i64],
        repeating: usize,
        from: Time,
        end: TakenEnd,
    ) -> Result<Vec<Exhausted>, StoreError> {
        let mut offers = offers.to_vec();
        let mut each = TAKEN_MAX / (repeating.max(1) as i64).min(TAKEN_MAX);
        let mut left = TAKEN_MAX;
        let mut exhausted = Vec::with_capacity(offers.len());
        for pass in 1..=TAKEN_PASSES {
            if offers.is_empty() {
                break;
            }
            let (whole, cut): (Vec<_>, Vec<_>) = self
                .taken(&offers, from, each, end)
                .await?
                .into_iter()
                .partition(|(_, count)| *count < each);
            left -= whole.iter().map(|(_, count)| count).sum::<i64>();
            exhausted.extend(whole.into_iter().map(|(used, _)| Exhausted { cut_at: None, ..used }));
            let more = left / (cut.len() as i64).max(1);
            if pass == TAKEN_PASSES || more < each * 2 {
                exhausted.extend(cut.into_iter().map(|(used, _)| used));
                break;
            }
            offers = cut.into_iter().map(|(used, _)| used.offer_id).collect();
            each = more;
        }
        Ok(exhausted)
    }

    /// Reads a part of the taken occurrences of each of some offers, and how many these are.
    ///
    /// Only the primary key has this order, from one of its entries on (hence the comparison of rows), and occurrences
    /// with stock count as well: so no more is read than requested.
    async fn taken(
        &self,
        offers: &[i64],
        from: Time,
        each: i64,
        end: TakenEnd,
    ) -> Result<Vec<(Exhausted, i64)>, StoreError> {
        macro_rules! taken {
            ($order:tt) => {
                sqlx::query!(
                    r#"SELECT u.id AS "offer_id!", r.first, r.count AS "count!", r.used
                         FROM UNNEST($1::bigint[]) AS u (id)
                        CROSS JOIN LATERAL (
                              SELECT min(n.occurrence) AS first, count(*) AS count,
                                     array_agg(n.occurrence) FILTER (
                                         WHERE n.taken >= (SELECT stock FROM heddle.offers o WHERE o.id = u.id)) AS used
                                FROM (SELECT c.occurrence, c.taken FROM heddle.occurrences c
                                       WHERE (c.offer_id, c.occurrence) >= (u.id, $2) AND c.offer_id <= u.id
                                       ORDER BY "#
                        + $order
                        + r#" LIMIT $3) AS n) AS r"#,
                    offers,
                    from,
                    each
                )
                .fetch_all(&self.pool)
                .await?
                .into_iter()
                .map(|row| {
                    let exhausted = Exhausted {
                        offer_id: row.offer_id,
                        occurrences: row.used.unwrap_or_default(),
                        cut_at: row.first,
                    };
                    (exhausted, row.count)
                })
                .collect()
            };
        }
        Ok(match end {
            TakenEnd::Earliest => taken!("c.offer_id, c.occurrence"),
            TakenEnd::Newest => taken!("c.offer_id DESC, c.occurrence DESC"),
        })
    }
}
