//! The configuration of a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use heddle_http::access::provider::Provider;
use tokio_util::sync::CancellationToken;

use crate::config::NodeOptions;

/// The configuration of a node.
#[derive(Debug)]
pub struct NodeConfig {
    /// The Postgres that all nodes share.
    pub database_url: String,
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// The directory for compiled scripts and the identity of the node.
    pub data_dir: PathBuf,
    /// Loopback only, without tokens.
    pub dev: bool,
    /// Whether the objects of the demo are created at the start.
    pub demo: bool,
    /// This node's name; `None`: kept in the data directory.
    pub node_id: Option<String>,
    /// The provider with which people sign in; `None`: they sign in with tokens.
    pub provider: Option<Arc<Provider>>,
    pub options: NodeOptions,
    /// Cancelled when the node is to drain and end.
    pub shutdown: CancellationToken,
}
