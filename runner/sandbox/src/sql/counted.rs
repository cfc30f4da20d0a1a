//! The databases as one attempt has them: what its statements hold counts as its memory.

use super::{Cut, Databases};
use crate::memory::Holder;
use crate::rehearsal::{SqlAnswer, SqlStatement};
use crate::services::ConnectionTarget;
use std::sync::Arc;

/// The databases of the node, for an attempt.
pub(crate) struct AttemptDatabases {
    databases: Arc<Databases>,
    /// Counts statements. `None`: what the calls of the attempt send is counted already, as for source scripts.
    holder: Option<Holder>,
}

impl AttemptDatabases {
    pub fn new(databases: Arc<Databases>) -> Self {
        Self {
            databases,
            holder: None,
        }
    }

    /// The same, but statements with their parameters count from now on.
    pub fn counted(&self, holder: Holder) -> Self {
        Self {
            databases: Arc::clone(&self.databases),
            holder: Some(holder),
        }
    }

    /// The same as [`Databases::carry_out`]; a statement for which there is no memory is refused.
    pub async fn carry_out(
        &self,
        target: &ConnectionTarget,
        asked: &SqlStatement,
        cut: Cut,
    ) -> Result<SqlAnswer, String> {
        let bytes = asked.statement.len() + asked.params.len();
        let _held = self.holder.as_ref().map(|holder| holder.hold(bytes)).transpose()?;
        self.databases.carry_out(target, asked, cut).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBudget, MemoryGuard};
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    #[tokio::test]
    async fn a_statement_counts_while_it_runs() {
        // A server that never answers.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = ConnectionTarget {
            id: "silent".into(),
            url: format!("postgres://me@{}/db?sslmode=disable", listener.local_addr().unwrap()),
            statement_timeout: Duration::from_secs(600),
            max_rows: 1,
            max_connections: 1,
            read_only: false,
        };
        let asked = SqlStatement {
            connection: "db".into(),
            statement: "select $1".into(),
            params: format!("[\"{}\"]", "x".repeat(87)),
            rows: true,
        };
        let budget = Arc::new(MemoryBudget {
            limit_bytes: 1_000,
            used_bytes: AtomicU64::new(0),
        });
        let guard = MemoryGuard::new(150, Arc::default(), Arc::clone(&budget));
        let cut: Cut = Arc::new(|text| text);
        let plain = AttemptDatabases::new(Arc::default());
        let counted = Arc::new(plain.counted(guard.holder()));
        let carry_out = |databases: &Arc<AttemptDatabases>| {
            let (databases, target, asked) = (Arc::clone(databases), target.clone(), asked.clone());
            let cut = Arc::clone(&cut);
            async move { databases.carry_out(&target, &asked, cut).await }
        };
        let running = tokio::spawn(carry_out(&counted));
        let (_socket, _) = listener.accept().await.unwrap();
        assert_eq!(budget.used_bytes.load(Relaxed), 100);
        // There is no room for another one.
        let refused = carry_out(&counted).await.unwrap_err();
        assert!(refused.contains("the memory limit of 150 bytes"), "{refused}");
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        assert_eq!(budget.used_bytes.load(Relaxed), 0);
        // Without a holder, nothing counts.
        let running = tokio::spawn(carry_out(&Arc::new(plain)));
        let (_socket, _) = listener.accept().await.unwrap();
        assert_eq!(budget.used_bytes.load(Relaxed), 0);
        running.abort();
    }
}
