//! Topics: why their messages failed.

use chrono::NaiveDate;

use crate::{Store, StoreError};

/// An error, and how many messages failed with it.
#[derive(Clone, Debug)]
pub struct MessageErrorRow {
    pub error: String,
    /// How many of those that were read.
    pub count: i64,
}

impl Store {
    /// The `limit` most frequent errors of a topic's messages of these days that failed, for good or until they are tried
    /// again. Reads at most `most` messages.
    pub async fn page_message_errors(
        &self,
        topic: &str,
        days: &[NaiveDate],
        most: i64,
        limit: i64,
    ) -> Result<Vec<MessageErrorRow>, StoreError> {
        Ok(sqlx::query_as!(
            MessageErrorRow,
            r#"SELECT failed.error AS "error!", count(*) AS "count!"
                 FROM (SELECT left(r.error, 500) AS error
                         FROM heddle.topics t JOIN heddle.message_retries r ON r.topic = t.id
                        WHERE t.name = $1 AND r.day = ANY ($2::date[]) LIMIT $3) AS failed
                GROUP BY failed.error ORDER BY count(*) DESC, failed.error LIMIT $4"#,
            topic,
            days,
            most,
            limit
        )
        .fetch_all(&self.reads)
        .await?)
    }
}
