//! Nodes and their leases.

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::state::ReportedState;
use uuid::Uuid;

use crate::{Store, StoreError};

/// A node as `/v1/nodes` shows it.
#[derive(Clone, Debug)]
pub struct NodeRow {
    /// The node's id; the same after a restart.
    pub id: Uuid,
    /// The number of its lease, which all rows of its work have; a new one after a restart.
    pub lease: i64,
    /// Shown to people; nothing is decided by it.
    pub name: String,
    /// The address at which it listens, for other nodes and people.
    pub address: String,
    /// The version of the program.
    pub version: String,
    /// What it has last said of itself; `alive` tells whether that still counts.
    pub state: ReportedState,
    /// Since when it has this lease.
    pub started_at: Time,
    /// The time of the last heartbeat.
    pub heartbeat_at: Time,
    /// When its lease expires.
    pub expires_at: Time,
    /// Whether its lease is valid, by the database's clock.
    pub alive: bool,
    /// Whether so little of its lease is left that the node has stopped its work; it continues with a new one.
    pub fenced: bool,
    /// The last change that it has read.
    pub position: i64,
    /// How many attempts it may hold at once.
    pub slots: i32,
    /// How many attempts it holds.
    pub in_hand: i32,
    /// Whether it still compiles scripts, and leaves task runs to other nodes.
    pub warming: bool,
}

/// A node that registers, with the values of its row.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    pub id: Uuid,
    pub name: &'a str,
    pub address: &'a str,
    pub version: &'a str,
    pub slots: i32,
    /// How long its lease is valid.
    pub lease_for: TimeDelta,
    /// Whether it still compiles scripts, and leaves task runs to other nodes.
    pub warming: bool,
}

/// The answer to a node that registers.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// The number of its new lease.
    pub lease: i64,
    /// The time by the clock of the database.
    pub now: Time,
    /// Other nodes that are alive and can do its work: they are neither warming nor draining. A node that is fenced at this
    /// moment counts too; the next heartbeat leaves it out.
    pub warm: i64,
}

/// What a node says of itself with a heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct NodeReport {
    /// `Active` or `Draining`; a node that stops says so with [`Store::release_node`].
    pub state: ReportedState,
    /// Whether it still compiles scripts, and leaves task runs to other nodes.
    pub warming: bool,
    /// The last change that it has read.
    pub position: i64,
    /// The highest position in *ready* that it knows to be claimed.
    pub claimed_to: i64,
    /// How many attempts it holds.
    pub in_hand: i32,
    /// How long its lease is valid from now on.
    pub lease_for: TimeDelta,
    /// How much of its lease must be left.
    pub margin: TimeDelta,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    /// The time by the clock of the database.
    pub now: Time,
    /// Other nodes that are alive.
    pub others: i64,
    /// Those of them that can do this node's work: they are neither warming nor draining nor fenced.
    pub warm: i64,
    /// The highest position in *ready* that any node has said to be claimed.
    pub claimed_to: i64,
}

impl Store {
    /// Whether the server accepts writes: a standby does not, nor a database that somebody made read-only.
    pub async fn takes_writes(&self) -> Result<bool, StoreError> {
        let read_only: String = sqlx::query_scalar("SELECT current_setting('transaction_read_only')")
            .fetch_one(&self.pool)
            .await?;
        Ok(read_only == "off")
    }

    /// Connects for the lease, if it is not connected: times that are counted from the sending of a statement begin
    /// after this.
    pub async fn reach_lease(&self) -> Result<(), StoreError> {
        self.lease.get().await?;
        Ok(())
    }

    /// How often the connection of the lease was opened. When it is opened again, the server may be another one than before,
    /// which may lack the last commits of the former one: what a node has cached may not be there.
    pub fn lease_connections(&self) -> u64 {
        self.lease.opened()
    }

    /// Registers a node: it gets a new lease, and its former lease ends at once, so that other nodes take over the work of
    /// that lease. A starting node replaces any lease of its identity (`former` is `None`). A fenced node replaces only
    /// the lease that it knows. So a statement that gave no answer, and is executed late, cannot end a newer lease.
    /// `None`: the lease that the node knows is not the newest ([`Store::lease_of`] returns that).
    pub async fn register_node(
        &self,
        node: NewNode<'_>,
        former: Option<i64>,
    ) -> Result<Option<Registered>, StoreError> {
        let mut session = self.lease.get().await?;
        let row = sqlx::query!(
            r#"INSERT INTO heddle.nodes (id, lease, name, address, version, state, expires_at, slots, warming)
               VALUES ($1, nextval('heddle.lease_numbers'), $2, $3, $4, 0,
                       clock_timestamp() + $5::bigint * interval '1 microsecond', $6, $8)
               ON CONFLICT (id) DO UPDATE
                  SET lease = excluded.lease, name = excluded.name, address = excluded.address,
                      version = excluded.version, state = 0,
                      started_at = CASE WHEN $7::bigint IS NULL THEN clock_timestamp() ELSE nodes.started_at END,
                      heartbeat_at = clock_timestamp(), expires_at = excluded.expires_at, slots = excluded.slots,
                      warming = excluded.warming, in_hand = 0,
                      position = CASE WHEN $7::bigint IS NULL THEN 0 ELSE nodes.position END
                WHERE $7::bigint IS NULL OR nodes.lease = $7
               RETURNING lease, clock_timestamp() AS "now!",
                         (SELECT count(*) FROM heddle.nodes n
                           WHERE n.id <> $1 AND n.state = 0 AND NOT n.warming AND n.expires_at > clock_timestamp())
                             AS "warm!""#,
            node.id,
            node.name,
            node.address,
            node.version,
            node.lease_for.num_microseconds().unwrap_or(i64::MAX),
            node.slots,
            former,
            node.warming
        )
        .fetch_optional(&mut *session)
        .await?;
        Ok(row.map(|row| Registered {
            lease: row.lease,
            now: row.now,
            warm: row.warm,
        }))
    }

    /// The newest lease of a node.
    pub async fn lease_of(&self, id: Uuid) -> Result<Option<i64>, StoreError> {
        let mut session = self.lease.get().await?;
        Ok(sqlx::query_scalar!("SELECT lease FROM heddle.nodes WHERE id = $1", id)
            .fetch_optional(&mut *session)
            .await?)
    }

    /// Extends a lease. `None`: the lease does not belong to this process any more, or no more than the margin is left of
    /// it. In both cases it is lost: a node stops its work when only the margin is left, counted from before it sent its
    /// last heartbeat. So a heartbeat that is executed later than that comes from a node that has given up the lease.
    ///
    /// `id`: the node's own. A server that has lost its last commits gives out the numbers of leases again, so another node
    /// may have this one.
    pub async fn heartbeat(&self, id: Uuid, lease: i64, report: NodeReport) -> Result<Option<Heartbeat>, StoreError> {
        let mut session = self.lease.get().await?;
        let row = sqlx::query!(
            r#"UPDATE heddle.nodes
                  SET heartbeat_at = clock_timestamp(), state = $2, position = $3, in_hand = $4, warming = $7,
                      claimed_to = greatest(claimed_to, $8),
                      expires_at = clock_timestamp() + $5::bigint * interval '1 microsecond'
                WHERE lease = $1 AND id = $9
                  AND expires_at > clock_timestamp() + $6::bigint * interval '1 microsecond'
               RETURNING clock_timestamp() AS "now!",
                         (SELECT count(*) FROM heddle.nodes n WHERE n.lease <> $1 AND n.expires_at > clock_timestamp())
                             AS "others!",
                         (SELECT count(*) FROM heddle.nodes n
                           WHERE n.lease <> $1 AND n.state = 0 AND NOT n.warming
                             AND n.expires_at > clock_timestamp() + $6::bigint * interval '1 microsecond')
                             AS "warm!",
                         (SELECT coalesce(max(n.claimed_to), 0) FROM heddle.nodes n) AS "claimed_to!""#,
            lease,
            report.state.number(),
            report.position,
            report.in_hand,
            report.lease_for.num_microseconds().unwrap_or(i64::MAX),
            report.margin.num_microseconds().unwrap_or(0),
            report.warming,
            report.claimed_to,
            id
        )
        .fetch_optional(&mut *session)
        .await?;
        Ok(row.map(|row| Heartbeat {
            now: row.now,
            others: row.others,
            warm: row.warm,
            claimed_to: row.claimed_to,
        }))
    }

    /// A node that stops gives its lease back.
    pub async fn release_node(&self, id: Uuid, lease: i64) -> Result<(), StoreError> {
        let mut session = self.lease.get().await?;
        sqlx::query!(
            "UPDATE heddle.nodes SET state = 2, expires_at = clock_timestamp() WHERE lease = $1 AND id = $2",
            lease,
            id
        )
        .execute(&mut *session)
        .await?;
        Ok(())
    }

    /// All nodes that were seen within the last day. They stop their work when `margin` is left of their lease.
    pub async fn nodes(&self, margin: TimeDelta) -> Result<Vec<NodeRow>, StoreError> {
        sqlx::query!(
            r#"SELECT id, lease, name, address, version, state, started_at, heartbeat_at, expires_at,
                      expires_at > clock_timestamp() AS "alive!",
                      expires_at <= clock_timestamp() + $1::bigint * interval '1 microsecond' AS "fenced!",
                      position, slots, in_hand, warming
                 FROM heddle.nodes WHERE heartbeat_at > clock_timestamp() - interval '1 day' ORDER BY started_at, id"#,
            margin.num_microseconds().unwrap_or(0)
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(|row| {
            Ok(NodeRow {
                id: row.id,
                lease: row.lease,
                name: row.name,
                address: row.address,
                version: row.version,
                state: StoreError::known(ReportedState::from_number, row.state, ("nodes", "state"), row.id)?,
                started_at: row.started_at,
                heartbeat_at: row.heartbeat_at,
                expires_at: row.expires_at,
                alive: row.alive,
                fenced: row.fenced,
                position: row.position,
                slots: row.slots,
                in_hand: row.in_hand,
                warming: row.warming,
            })
        })
        .collect()
    }

    /// The time by the clock of the database.
    pub async fn now(&self) -> Result<Time, StoreError> {
        Ok(sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#)
            .fetch_one(&self.pool)
            .await?)
    }

    /// Wakes other nodes; no decision depends on it.
    pub async fn notify(&self, channel: &str, payload: &str) -> Result<(), StoreError> {
        sqlx::query!("SELECT pg_notify($1, $2)", channel, payload)
            .fetch_one(&self.pool)
            .await?;
        Ok(())
    }
}
