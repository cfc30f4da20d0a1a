//! A PUT of something that has a name: said here once, for all nouns.
//!
//! Whoever puts takes turns with the others who put the same name ([`change::lock_name`]), reads and locks what is kept
//! of it, compares, writes, records the change with how it stood and how it stands, and commits. What differs is a noun's
//! own: the statements, what counts as the same, what may refuse it ([`Named`]).
//!
//! The lock comes first, also for nouns whose row could simply be inserted: several need what is kept to know what is
//! put (a channel's secrets, a connection's URL, what of a topic is fixed), and two who make one thing at once would
//! both find none, so that one of them failed, or its change was recorded as if nothing had stood there.
//!
//! Scripts, groups, tokens and members are no such things: a script gets versions and a group revisions, a token is made
//! once, and of members only those are told who come and go.

use std::borrow::Borrow;

use heddle_domain::Time;
use serde_json::Value;

use crate::change::{self, By, Noun, Put};
use crate::database::{PgSession, Pool};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// What is put under a name.
pub(crate) trait Named {
    /// The name of the transaction.
    const PUT: &'static str;
    const NOUN: Noun;
    /// What is kept, as it is read.
    type Kept: Borrow<Self::Row> + Into<Self::Row>;
    /// What is answered of it.
    type Row;
    /// What comes of it all: that it was done, or what refused it.
    type Answer: From<Put<Self::Row>>;

    /// Whose connections write it.
    fn pool(store: &Store) -> &Pool {
        &store.control
    }

    fn name(&self) -> &str;

    /// Reads what is kept, and locks its row.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<Self::Kept>, StoreError>;

    /// Refuses what may not be put, whether it changes something or not.
    async fn check(&self, _tx: &mut PgSession, _kept: Option<&Self::Kept>) -> Result<(), Stop<Self::Answer>> {
        Ok(())
    }

    /// Whether what is kept says so already.
    fn is_same(&self, kept: &Self::Kept) -> bool;

    /// Makes it, or changes what is kept; answers how it stands then.
    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        kept: Option<&Self::Kept>,
    ) -> Result<Self::Row, Stop<Self::Answer>>;

    /// How it stands, for the audit: never a secret.
    fn shown(row: &Self::Row) -> Result<Value, StoreError>;

    /// The same of what was just written; more, if there is something to be said of the change.
    fn after(&self, row: &Self::Row, _kept: Option<&Self::Kept>) -> Result<Value, StoreError> {
        Self::shown(row)
    }

    /// Writes down what was done, for people and for nodes.
    async fn record(&self, tx: &mut PgSession, by: By<'_>, told: PutAudit<'_>) -> Result<(), StoreError> {
        let PutAudit { action, before, after } = told;
        change::record(tx, by, action, Self::NOUN, self.name(), before, Some(after)).await
    }
}

/// What a PUT did, as the audit tells it.
pub(crate) struct PutAudit<'a> {
    pub action: &'static str,
    pub before: Option<&'a Value>,
    pub after: &'a Value,
}

/// Why a PUT goes no further.
pub(crate) enum Stop<A> {
    /// It may not be put: this is the answer.
    Refused(A),
    Failed(StoreError),
}

impl<A> From<StoreError> for Stop<A> {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl<A> From<sqlx::Error> for Stop<A> {
    // What is shown of a statement that failed is where it stands.
    #[track_caller]
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Store {
    /// Makes or changes something; what stands so already is left alone.
    pub(crate) async fn put<N: Named>(&self, by: By<'_>, named: &N) -> Result<N::Answer, StoreError> {
        transaction!(self, N::pool(self), N::PUT, |tx| {
            match put_in(&mut tx, by, named).await {
                Ok(put) => {
                    if put.changed {
                        tx.commit().await?;
                    }
                    Ok(put.into())
                }
                Err(Stop::Refused(answer)) => Ok(answer),
                Err(Stop::Failed(error)) => Err(error),
            }
        })
    }
}

async fn put_in<N: Named>(tx: &mut PgSession, by: By<'_>, named: &N) -> Result<Put<N::Row>, Stop<N::Answer>> {
    change::lock_name(tx, N::NOUN, named.name()).await?;
    let kept = named.locked(tx).await?;
    named.check(tx, kept.as_ref()).await?;
    let kept = match kept {
        Some(kept) if named.is_same(&kept) => {
            return Ok(Put {
                row: kept.into(),
                created: false,
                changed: false,
            });
        }
        kept => kept,
    };
    let row = named.write(tx, by.at, kept.as_ref()).await?;
    let before = kept.as_ref().map(|kept| N::shown(kept.borrow())).transpose()?;
    let after = named.after(&row, kept.as_ref())?;
    let told = PutAudit {
        action: if kept.is_none() { "create" } else { "update" },
        before: before.as_ref(),
        after: &after,
    };
    named.record(tx, by, told).await?;
    Ok(Put {
        row,
        created: kept.is_none(),
        changed: true,
    })
}
