//! Holds, their ends, and the history: which user is given what.
//!
//! # The story
//!
//! A user who polls is looked up (`user_facts.sql`), and a hold is given again. Otherwise the node proposes an
//! occurrence, and a *take* decides in one transaction: it writes the user's hold, whose primary key is the user
//! (`hold_users.sql`), checks the proposal and takes stock (`give.sql`), and deletes the holds that are refused. The
//! takes of many users share a transaction, so a hot occurrence's row is updated once for all of them. Ends work in the
//! same way (`end_holds.sql`): the hold is deleted, the history inserted, and stock given back where necessary.
//!
//! # Order of locks
//!
//! 1. rows of *holds*, in the order of users;
//! 2. rows of *occurrences*, in the order of (offer, occurrence);
//! 3. offers of task runs, for their settlement, in id order: one statement of a transaction locks all of its offers. A
//!    clear locks offers in this order too, after its run, and nothing of the above (`forgotten.rs`). Two statements lock
//!    offers only where assignments are completed (`end_holds.sql`, then `close_offers.sql`); there, each of them is a
//!    transaction of its own ([`Store::end_holds`]);
//! 4. the log of changes, with the commit, if an operator or the clock gave stock back. Stock that comes back with a
//!    failed assignment is only noted, in *stock_returns*: writers of the log wait for each other, and ends must not.
//!
//! # Invariants
//!
//! * A user has at most one hold; an assignment has a hold or a row in the history, never both.
//! * `taken` counts the holds of an occurrence and those ends that did not give stock back; it never exceeds the stock.
//! * The event of a dispatch or an end is written in the same transaction.
//! * An offer of a task run is given only while its attempt has its row in *running*. So whoever ends the attempt ends the
//!   giving, with the same commit, and locks nothing of dispatch.

use heddle_domain::Time;
use heddle_domain::dispatch::AssignmentState;
use heddle_domain::id::uuid_v7_floor;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::change::{self, By, Noun, PAGE_BYTES_MAX, Page};
use crate::database::{PgSession, column};
use crate::span::ID_SLACK;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// How many users one take, look-up or end handles at most.
pub const BATCH_MAX: usize = 512;

/// How many returns of stock are announced at a time.
const RETURNS_MAX: i64 = 10_000;

/// How a take begins: `give.sql` says why its plans may neither sort nor collect.
const BEGIN_TAKE: &str = "BEGIN; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";

/// An assignment with all that the API shows.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignmentRow {
    pub id: Uuid,
    pub offer: String,
    pub uid: String,
    pub audience: String,
    pub occurrence: Time,
    pub params: Value,
    pub state: AssignmentState,
    pub assigned_at: Time,
    pub finished_at: Option<Time>,
    /// The value as JSON text.
    pub result: Option<String>,
}

/// What is known of a user who polls.
#[derive(Clone, Debug)]
pub struct UserFacts {
    pub uid: String,
    pub held: Option<AssignmentRow>,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The last finished occurrence within the horizon.
    pub last_finished: Option<Time>,
    /// The occurrences in the window that the user has had; the first few hundred.
    pub had: Vec<(i64, Time)>,
}

/// What a node proposes to give to a user.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The id of the assignment, if the user gets it.
    pub id: Uuid,
    pub uid: String,
    pub offer_id: i64,
    pub version: i32,
    pub audience: String,
    pub occurrence: Time,
}

/// The verdict on a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The user gets it.
    Given,
    /// The user already holds an assignment.
    Holds,
    /// The node's knowledge of the offer is old.
    Changed,
    /// The node's knowledge of the members is old.
    NotMember,
    /// It is not due within the horizon, by the database's clock.
    NotDue,
    /// The user has finished a later occurrence.
    MovedOn,
    /// The user has had it already.
    Had,
    /// It has no stock left.
    NoStock,
}

/// A hold to be ended.
#[derive(Clone, Debug)]
pub struct End {
    pub id: Uuid,
    pub uid: String,
    pub state: AssignmentState,
    /// The value as JSON text.
    pub result: Option<String>,
}

/// A hold that was ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub assignment: AssignmentRow,
    pub offer_id: i64,
    /// The current audience of its offer: the offer may have changed since the dispatch.
    pub offered_to: String,
    /// Its stock came back.
    pub returned: bool,
    /// Its offer belongs to a task run.
    pub of_task: bool,
}

/// Which assignments are listed; `None` means all.
#[derive(Clone, Debug, Default)]
pub struct AssignmentFilter {
    pub uid: Option<String>,
    /// Written as `uid_x` or `gid_x`.
    pub audience: Option<String>,
    pub offer: Option<String>,
    /// In one of these states; empty: in any.
    pub states: Vec<AssignmentState>,
    /// Given at or after.
    pub from: Option<Time>,
    /// Given at or before.
    pub to: Option<Time>,
}

/// The ids of assignments that may concern a window that begins at an instant: nothing is given before it is due.
fn id_range(reach: Time, now: Time) -> (Uuid, Uuid) {
    (uuid_v7_floor(reach), uuid_v7_floor(now + chrono::TimeDelta::hours(1)))
}

fn state_of(assignment: Uuid, state: i16) -> Result<AssignmentState, StoreError> {
    StoreError::known(
        AssignmentState::from_number,
        state,
        ("assignments", "state"),
        assignment,
    )
}

impl Store {
    /// Looks up users; `reach` is where the horizon ends.
    pub async fn user_facts(&self, uids: &[String], reach: Time, now: Time) -> Result<Vec<UserFacts>, StoreError> {
        let (floor, ceiling) = id_range(reach, now);
        let rows = sqlx::query_file!("src/sql/user_facts.sql", uids, reach, floor, ceiling)
            .fetch_all(&self.pool)
            .await?;
        let facts = rows.into_iter().map(|row| {
            let held = match (
                row.id,
                row.offer,
                row.audience,
                row.occurrence,
                row.assigned_at,
                row.params,
            ) {
                (Some(id), Some(offer), Some(audience), Some(occurrence), Some(assigned_at), Some(params)) => {
                    Some(AssignmentRow {
                        id,
                        offer,
                        uid: row.uid.clone(),
                        audience,
                        occurrence,
                        params,
                        state: AssignmentState::Assigned,
                        assigned_at,
                        finished_at: None,
                        result: None,
                    })
                }
                _ => None,
            };
            let occurrences = row.had_occurrences.unwrap_or_default();
            let mut had: Vec<(i64, Time)> = row
                .had_offers
                .unwrap_or_default()
                .into_iter()
                .zip(occurrences)
                .collect();
            had.dedup();
            UserFacts {
                uid: row.uid,
                held,
                groups: row.audiences,
                last_finished: row.last_finished,
                had,
            }
        });
        Ok(facts.collect())
    }

    /// Gives what is proposed if that is possible; one verdict for each, in order.
    pub async fn take(
        &self,
        proposals: &[Proposal],
        horizon: heddle_domain::Span,
        now: Time,
    ) -> Result<Vec<Verdict>, StoreError> {
        transaction!(self, pool, "take", once(BEGIN_TAKE), |tx| {
            let verdicts = take_in(&mut tx, proposals, horizon, now).await?;
            tx.commit().await?;
            Ok(verdicts)
        })
    }

    /// The verdicts of a take, by the same statements, which are rolled back.
    pub async fn would_take(
        &self,
        proposal: &Proposal,
        horizon: heddle_domain::Span,
        now: Time,
    ) -> Result<Verdict, StoreError> {
        transaction!(self, pool, "would_take", once(BEGIN_TAKE), |tx| {
            let verdicts = take_in(&mut tx, std::slice::from_ref(proposal), horizon, now).await?;
            tx.rollback().await?;
            Ok(verdicts.first().copied().unwrap_or(Verdict::Changed))
        })
    }

    /// Ends holds; skips those that do not exist (any more). Each pair of user and id must occur only once.
    ///
    /// It is no transaction: each of its statements is one. So the second locks offers while nothing of the first is locked,
    /// and the ends of others are committed that it counts. An offer that it does not reach is found by
    /// [`Store::settle_completed_offers`].
    pub async fn end_holds(&self, ends: &[End], now: Time) -> Result<Vec<Ended>, StoreError> {
        let mut connection = self.pool.acquire().await?;
        end_in(&mut connection, ends, now).await
    }

    /// Ends holds that have lasted too long, and announces that stock came back. Up to `limit`.
    pub async fn expire_holds(&self, now: Time, limit: i64) -> Result<Vec<Ended>, StoreError> {
        let due = sqlx::query!(
            "SELECT id, uid FROM heddle.holds WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1",
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let ends: Vec<End> = due
            .into_iter()
            .map(|row| End {
                id: row.id,
                uid: row.uid,
                state: AssignmentState::Expired,
                result: None,
            })
            .collect();
        transaction!(self, pool, "expire_assignments", |tx| {
            let ended = end_in(&mut tx, &ends, now).await?;
            announce_returned(&mut tx, &ended, now);
            tx.commit().await?;
            Ok(ended)
        })
    }

    /// Takes an assignment back from its user; `None` if it is not held.
    pub async fn revoke_assignment(&self, by: By<'_>, id: Uuid) -> Result<Option<Ended>, StoreError> {
        transaction!(self, pool, "revoke_assignment", |tx| {
            let uid = sqlx::query_scalar!("SELECT uid FROM heddle.holds WHERE id = $1", id)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(uid) = uid else { return Ok(None) };
            let end = End {
                id,
                uid,
                state: AssignmentState::Revoked,
                result: None,
            };
            let mut ended = end_in(&mut tx, std::slice::from_ref(&end), by.at).await?;
            let Some(one) = ended.pop() else { return Ok(None) };
            let (about, name) = (Noun::Assignment.quiet(), id.to_string());
            let before = audited(&one.assignment, AssignmentState::Assigned);
            let after = audited(&one.assignment, one.assignment.state);
            audit::record(&mut tx, by, "revoke", about, &name, Some(&before), Some(&after)).await?;
            announce_returned(&mut tx, std::slice::from_ref(&one), by.at);
            tx.commit().await?;
            Ok(Some(one))
        })
    }

    /// Announces, in the log of changes, the audiences whose stock came back with failed assignments.
    ///
    /// Locking: rows of *stock_returns*, skipping those that another node is announcing: nobody waits for them.
    pub async fn announce_returns(&self, at: Time) -> Result<(), StoreError> {
        transaction!(self, pool, "announce_returns", |tx| {
            let mut audiences = sqlx::query_scalar!(
                "DELETE FROM heddle.stock_returns
              WHERE id IN (SELECT id FROM heddle.stock_returns ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
             RETURNING audience",
                RETURNS_MAX
            )
            .fetch_all(&mut *tx)
            .await?;
            audiences.sort_unstable();
            audiences.dedup();
            for audience in audiences {
                change::announce(&mut tx, at, Noun::Audience, &audience);
            }
            tx.commit().await?;
            Ok(())
        })
    }

    /// An assignment, held or ended.
    pub async fn assignment(&self, id: Uuid) -> Result<Option<AssignmentRow>, StoreError> {
        let found = self.assignments_by_id(&[id]).await?;
        Ok(found.into_iter().next())
    }

    /// Assignments, held or ended.
    pub async fn assignments_by_id(&self, ids: &[Uuid]) -> Result<Vec<AssignmentRow>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT a.id AS "id!", o.name AS "offer!", a.uid AS "uid!", a.audience AS "audience!",
                      a.occurrence AS "occurrence!", v.params AS "params!", a.state AS "state!",
                      a.assigned_at AS "assigned_at!", a.finished_at, a.result
                 FROM (SELECT id, offer_id, version, uid, audience, occurrence, 0::smallint AS state, assigned_at,
                              NULL::timestamptz AS finished_at, NULL::text AS result
                         FROM heddle.holds WHERE id = ANY ($1)
                        UNION ALL
                       SELECT id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at, result
                         FROM heddle.assignments WHERE id = ANY ($1)) a
                 JOIN heddle.offers o ON o.id = a.offer_id
                 JOIN heddle.offer_versions v ON v.offer_id = a.offer_id AND v.version = a.version"#,
            ids
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(AssignmentRow {
                    id: row.id,
                    offer: row.offer,
                    uid: row.uid,
                    audience: row.audience,
                    occurrence: row.occurrence,
                    params: row.params,
                    state: state_of(row.id, row.state)?,
                    assigned_at: row.assigned_at,
                    finished_at: row.finished_at,
                    result: row.result,
                })
            })
            .collect()
    }

    /// How many of these assignments, newest first, fit into a page: those up to the one that goes beyond
    /// [`PAGE_BYTES_MAX`] with its params and its result. The params of many assignments are measured once for each version
    /// of an offer.
    async fn fitting(&self, ids: &[Uuid]) -> Result<usize, StoreError> {
        let count = sqlx::query_scalar!(
            r#"WITH found AS MATERIALIZED (
                   SELECT id, offer_id, version, 0 AS bytes FROM heddle.holds WHERE id = ANY ($1)
                    UNION ALL
                   SELECT id, offer_id, version, coalesce(octet_length(result), 0)
                     FROM heddle.assignments WHERE id = ANY ($1)
               ),
               versions AS MATERIALIZED (
                   SELECT v.offer_id, v.version, octet_length(v.params::text) AS bytes
                     FROM (SELECT DISTINCT offer_id, version FROM found) f
                     JOIN heddle.offer_versions v ON v.offer_id = f.offer_id AND v.version = f.version
               )
               SELECT count(*) AS "count!"
                 FROM (SELECT sum(s.bytes) OVER (ORDER BY s.id DESC ROWS UNBOUNDED PRECEDING) - s.bytes AS before
                         FROM (SELECT f.id, f.bytes + v.bytes AS bytes
                                 FROM found f JOIN versions v ON v.offer_id = f.offer_id AND v.version = f.version) s) w
                WHERE w.before <= $2::bigint"#,
            ids,
            PAGE_BYTES_MAX
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Assignments, newest first, after `cursor`. A page may have fewer than `limit`, and still have a next page: see
    /// `fitting`.
    pub async fn assignments(
        &self,
        filter: &AssignmentFilter,
        cursor: Option<Uuid>,
        limit: i64,
    ) -> Result<Page<AssignmentRow>, StoreError> {
        // Current assignments are in one table, ended ones in the other.
        let held = filter.states.is_empty() || filter.states.contains(&AssignmentState::Assigned);
        let ended: Option<Vec<i16>> =
            (!filter.states.is_empty()).then(|| filter.states.iter().map(|state| state.number()).collect());
        // Ids begin with about the millisecond at which they were given: bounds on them prune partitions.
        let floor = filter.from.map_or(Uuid::nil(), |from| uuid_v7_floor(from - ID_SLACK));
        let ceiling = filter.to.map_or(Uuid::max(), |to| uuid_v7_floor(to + ID_SLACK));
        let below = cursor.map_or(ceiling, |cursor| cursor.min(ceiling));
        // Assignments of one user are found by the user, which has an index.
        let alone = filter
            .audience
            .as_deref()
            .and_then(|audience| audience.strip_prefix("uid_"));
        let uid = filter.uid.as_deref().or(alone);
        // There may have been several offers of that name.
        let offers: Option<Vec<i64>> = match &filter.offer {
            None => None,
            Some(offer) => Some(
                sqlx::query_scalar!("SELECT id FROM heddle.offers WHERE name = $1", offer)
                    .fetch_all(&self.pool)
                    .await?,
            ),
        };
        // One statement for each index by which ended assignments are found: a statement for all would use none of
        // them.
        macro_rules! ids {
            ($by:tt) => {
                sqlx::query_scalar!(
                    r#"(SELECT id AS "id!" FROM heddle.holds
                        WHERE $7 AND id >= $1 AND id < $2 AND ($3::text IS NULL OR uid = $3)
                          AND ($4::bigint[] IS NULL OR offer_id = ANY ($4)) AND ($8::text IS NULL OR audience = $8)
                          AND ($9::timestamptz IS NULL OR assigned_at >= $9)
                          AND ($10::timestamptz IS NULL OR assigned_at <= $10)
                        ORDER BY id DESC LIMIT $6)
                       UNION ALL
                       (SELECT id FROM heddle.assignments
                        WHERE id >= $1 AND id < $2 AND ($4::bigint[] IS NULL OR offer_id = ANY ($4))
                          AND ($5::smallint[] IS NULL OR state = ANY ($5))
                          AND ($9::timestamptz IS NULL OR assigned_at >= $9)
                          AND ($10::timestamptz IS NULL OR assigned_at <= $10) AND "#
                        + $by
                        + " ORDER BY id DESC LIMIT $6)
                       ORDER BY 1 DESC LIMIT $6",
                    floor,
                    below,
                    uid,
                    offers.as_deref(),
                    ended.as_deref(),
                    limit + 1,
                    held,
                    filter.audience.as_deref(),
                    filter.from,
                    filter.to
                )
                .fetch_all(&self.pool)
                .await?
            };
        }
        let mut ids = match (uid, &filter.audience) {
            (Some(_), _) => ids!("uid = $3 AND ($8::text IS NULL OR audience = $8)"),
            (None, Some(_)) => ids!("audience = $8"),
            (None, None) => ids!("true"),
        };
        let fitting = self.fitting(&ids).await?.max(1);
        let is_cut = fitting < ids.len();
        ids.truncate(fitting);
        let mut rows = self.assignments_by_id(&ids).await?;
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        // Each statement has one snapshot, so an assignment is in one of the tables only: this is a safeguard.
        rows.dedup_by_key(|row| row.id);
        let page = Page::of(rows, limit, |row| row.id.to_string());
        let last = ids.last().filter(|_| is_cut).map(Uuid::to_string);
        Ok(Page {
            next: page.next.or(last),
            ..page
        })
    }
}

/// Judges proposals; the given ones are valid when the transaction is committed.
async fn take_in(
    connection: &mut PgSession,
    proposals: &[Proposal],
    horizon: heddle_domain::Span,
    now: Time,
) -> Result<Vec<Verdict>, StoreError> {
    let held = sqlx::query_file_scalar!(
        "src/sql/hold_users.sql",
        &column(proposals, |row| row.uid.as_str()) as &[&str],
        &column(proposals, |row| row.id),
        &column(proposals, |row| row.offer_id),
        &column(proposals, |row| row.version),
        &column(proposals, |row| row.audience.as_str()) as &[&str],
        &column(proposals, |row| row.occurrence),
        now
    )
    .fetch_all(&mut *connection)
    .await?;
    let held: std::collections::HashSet<Uuid> = held.into_iter().collect();
    // In the order of the requests: the earliest request gets the last of the stock.
    let ids: Vec<Uuid> = proposals
        .iter()
        .map(|proposal| proposal.id)
        .filter(|id| held.contains(id))
        .collect();
    let mut verdicts = std::collections::HashMap::with_capacity(ids.len());
    if !ids.is_empty() {
        let (floor, ceiling) = id_range(now - horizon.chrono(), now);
        let rows = sqlx::query_file!("src/sql/give.sql", &ids, horizon.micros() as i64, floor, ceiling)
            .fetch_all(&mut *connection)
            .await?;
        for row in rows {
            let verdict = match row.verdict {
                0 => Verdict::Given,
                2 => Verdict::NotMember,
                3 => Verdict::NotDue,
                4 => Verdict::MovedOn,
                5 => Verdict::Had,
                6 => Verdict::NoStock,
                _ => Verdict::Changed,
            };
            verdicts.insert(row.id, verdict);
        }
        let refused: Vec<Uuid> = ids
            .iter()
            .copied()
            .filter(|id| verdicts.get(id) != Some(&Verdict::Given))
            .collect();
        if !refused.is_empty() {
            sqlx::query!("DELETE FROM heddle.holds WHERE id = ANY ($1)", &refused)
                .execute(&mut *connection)
                .await?;
        }
    }
    let verdict_of = |proposal: &Proposal| match held.contains(&proposal.id) {
        true => verdicts.get(&proposal.id).copied().unwrap_or(Verdict::Changed),
        false => Verdict::Holds,
    };
    Ok(proposals.iter().map(verdict_of).collect())
}

/// Ends holds. Callers within a transaction end none as completed: then the first statement locks all the offers.
pub(crate) async fn end_in(connection: &mut PgSession, ends: &[End], now: Time) -> Result<Vec<Ended>, StoreError> {
    let rows = sqlx::query_file!(
        "src/sql/end_holds.sql",
        &column(ends, |row| row.id),
        &column(ends, |row| row.uid.as_str()) as &[&str],
        &column(ends, |row| row.state.number()),
        &column(ends, |row| row.result.as_deref()) as &[Option<&str>],
        now
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut of_each: Vec<i64> = rows.iter().filter(|row| row.of_each).map(|row| row.offer_id).collect();
    if !of_each.is_empty() {
        of_each.sort_unstable();
        of_each.dedup();
        close_done(connection, &of_each).await?;
    }
    rows.into_iter()
        .map(|row| {
            Ok(Ended {
                assignment: AssignmentRow {
                    id: row.id,
                    offer: row.offer,
                    uid: row.uid,
                    audience: row.audience,
                    occurrence: row.occurrence,
                    params: row.params,
                    state: state_of(row.id, row.state)?,
                    assigned_at: row.assigned_at,
                    finished_at: Some(row.finished_at),
                    result: row.result,
                },
                offer_id: row.offer_id,
                offered_to: row.offered_to,
                returned: row.returned,
                of_task: row.of_task,
            })
        })
        .collect()
}

/// An assignment in a state, for the audit.
fn audited(row: &AssignmentRow, state: AssignmentState) -> Value {
    json!({
        "offer": row.offer, "uid": row.uid, "audience": row.audience, "state": state.as_str(),
    })
}

/// Announces, for the log of changes, which audiences have stock again.
pub(crate) fn announce_returned(connection: &mut PgSession, ended: &[Ended], at: Time) {
    let mut audiences: Vec<&str> = ended
        .iter()
        .filter(|one| one.returned)
        .map(|one| one.offered_to.as_str())
        .collect();
    audiences.sort_unstable();
    audiences.dedup();
    for audience in audiences {
        change::announce(connection, at, Noun::Audience, audience);
    }
}

/// Ends those of the offers of task runs whose stock is completed; returns how many. See `sql/close_offers.sql`.
pub(crate) async fn close_done(connection: &mut PgSession, ids: &[i64]) -> Result<u64, StoreError> {
    let done = sqlx::query_file!("src/sql/close_offers.sql", ids)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}
