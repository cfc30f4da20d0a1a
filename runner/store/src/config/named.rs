//! A PUT of a named object, and its deletion: the same for all nouns.
//!
//! A PUT locks the name ([`change::lock_name`]), so that others who put the same name wait. Then it reads and locks the
//! stored object, compares, writes, records the change with the object before and after, and commits. Each noun has its
//! own statements, its own comparison, and its own reasons to refuse ([`Named`]).
//!
//! The lock comes first, also for nouns whose row could simply be inserted. Several nouns need the stored object to
//! complete the new one (a channel's secrets, a connection's URL, the fixed fields of a topic). And without it, two
//! callers who create one object at once would both find none: one of them would fail, or its change would be recorded
//! as a creation.
//!
//! A deletion ([`Deleted`]) takes the same lock first. Without it, it would not find an object that somebody is just
//! putting, and report that there is none.
//!
//! Scripts, groups, tokens and members do not use this: a script gets versions and a group revisions, a token is
//! created once, and of members only the differences are recorded.

use std::borrow::Borrow;

use heddle_domain::Time;
use serde_json::Value;

use crate::change::{self, By, Noun, Put};
use crate::database::{PgSession, Pool};
use crate::transaction::transaction;
use crate::usage::{self, Removal};
use crate::{Store, StoreError, audit};

/// An object that is put under a name.
pub(crate) trait Named {
    /// The name of the transaction.
    const PUT: &'static str;
    const NOUN: Noun;
    /// The stored object, as it is read.
    type Kept: Borrow<Self::Row>;
    /// The object, as it is returned.
    type Row: Clone;
    /// The result: the PUT was done, or why it was refused.
    type Answer: From<Put<Self::Row>>;

    /// The pool whose connections write it.
    fn pool(store: &Store) -> &Pool {
        &store.control
    }

    fn name(&self) -> &str;

    /// Reads the stored object, and locks its row.
    ///
    /// Locking: the one row of this name, under the lock of the name. It keeps the object from being deleted meanwhile.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<Self::Kept>, StoreError>;

    /// Refuses an object that may not be put, even if it changes nothing.
    async fn check(&self, _tx: &mut PgSession, _kept: Option<&Self::Kept>) -> Result<(), Stop<Self::Answer>> {
        Ok(())
    }

    /// Whether the stored object is the same already.
    fn is_same(&self, kept: &Self::Kept) -> bool;

    /// Creates or changes the stored object; returns it.
    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        kept: Option<&Self::Kept>,
    ) -> Result<Self::Row, Stop<Self::Answer>>;

    /// Its present value, for the audit: never a secret.
    fn shown(row: &Self::Row) -> Result<Value, StoreError>;

    /// The value that was just written, for the audit; with more details if the change needs them.
    fn after(&self, row: &Self::Row, _kept: Option<&Self::Kept>) -> Result<Value, StoreError> {
        Self::shown(row)
    }

    /// Records the PUT, for people and for nodes.
    async fn record(&self, tx: &mut PgSession, by: By<'_>, entry: PutAudit<'_>) -> Result<(), StoreError> {
        let PutAudit { action, before, after } = entry;
        audit::record(tx, by, action, Self::NOUN, self.name(), before, Some(after)).await
    }
}

/// An object that is deleted by its name, unless a current spec names it.
pub(crate) trait Deleted: Named {
    /// The name of the transaction.
    const DELETE: &'static str;
    /// Where specs may name it.
    const KIND: usage::Kind;

    /// Deletes its row; returns its last value, for the audit. `None`: there is no such object.
    async fn delete_row(tx: &mut PgSession, name: &str) -> Result<Option<Value>, StoreError>;
}

/// A PUT as the audit shows it.
pub(crate) struct PutAudit<'a> {
    pub action: &'static str,
    pub before: Option<&'a Value>,
    pub after: &'a Value,
}

/// Why a PUT stops.
pub(crate) enum Stop<A> {
    /// The PUT is refused, with this answer.
    Refused(A),
    Failed(StoreError),
}

impl<A> From<StoreError> for Stop<A> {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl<A> From<sqlx::Error> for Stop<A> {
    // The location of the failed statement is shown.
    #[track_caller]
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Store {
    /// Creates or changes an object; does nothing if it is the same already.
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

impl Store {
    /// Deletes an object that no current spec names.
    ///
    /// Locking: first the name, as a PUT does, then the row of that name.
    pub(crate) async fn delete<D: Deleted>(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        transaction!(self, D::pool(self), D::DELETE, |tx| {
            change::lock_name(&mut tx, D::NOUN, name).await?;
            let gone = D::delete_row(&mut tx, name).await?;
            usage::removed(tx, by, D::KIND, name, gone).await
        })
    }
}

/// The same PUT within a transaction, which the caller ends: with a commit if something was changed.
pub(crate) async fn put_in<N: Named>(
    tx: &mut PgSession,
    by: By<'_>,
    named: &N,
) -> Result<Put<N::Row>, Stop<N::Answer>> {
    change::lock_name(tx, N::NOUN, named.name()).await?;
    let kept = named.locked(tx).await?;
    named.check(tx, kept.as_ref()).await?;
    let kept = match kept {
        Some(kept) if named.is_same(&kept) => {
            return Ok(Put {
                row: <N::Kept as Borrow<N::Row>>::borrow(&kept).clone(),
                created: false,
                changed: false,
            });
        }
        kept => kept,
    };
    let row = named.write(tx, by.at, kept.as_ref()).await?;
    let before = kept.as_ref().map(|kept| N::shown(kept.borrow())).transpose()?;
    let after = named.after(&row, kept.as_ref())?;
    let entry = PutAudit {
        action: if kept.is_none() { "create" } else { "update" },
        before: before.as_ref(),
        after: &after,
    };
    named.record(tx, by, entry).await?;
    Ok(Put {
        row,
        created: kept.is_none(),
        changed: true,
    })
}
