//! A node: what it is given, and its run from the first connection to the last task drained.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::NodeOptions;

/// What a node is given.
#[derive(Debug)]
pub struct NodeConfig {
    /// The Postgres that all nodes share.
    pub database_url: String,
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// The same, bound already.
    pub listener: TcpListener,
    /// For compiled scripts and the node's identity.
    pub data_dir: PathBuf,
    /// Loopback only, without tokens.
    pub dev: bool,
    /// Puts the demo in.
    pub demo: bool,
    /// This node's name; `None`: kept in the data directory.
    pub node_id: Option<String>,
    /// The rest of what can be configured.
    pub options: NodeOptions,
    /// Cancelled when the node is to drain and end.
    pub shutdown: CancellationToken,
}

/// Runs a node until `shutdown` is cancelled; tells `ready` the address once migrations and the demo are in.
pub async fn run_node(config: NodeConfig, ready: oneshot::Sender<SocketAddr>) -> Result<()> {
    let address = config.listener.local_addr().context("the listener has no address")?;
    let _ = ready.send(address);
    config.shutdown.cancelled().await;
    Ok(())
}

/// Brings a database's schema up to date.
pub async fn migrate(database_url: &str) -> Result<()> {
    let _ = database_url;
    anyhow::bail!("this binary was built without a store")
}

/// Makes a token directly in the database; how the first one comes to be. Answers the token.
pub async fn create_token(database_url: &str, token: &heddle_client::NewToken) -> Result<String> {
    let _ = (database_url, token);
    anyhow::bail!("this binary was built without a store")
}
