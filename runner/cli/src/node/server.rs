//! The HTTP server of a node, from before it has a database to its end.

use axum::Router;
use heddle_domain::Chain;
use heddle_http::ServeLimits;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A server on a bound address. It ends when this is dropped.
pub(super) struct Server {
    routers: watch::Sender<Option<Router>>,
    /// Cancelled when the server is to take no more connections.
    pub(super) closing: CancellationToken,
    task: JoinHandle<()>,
    _end: DropGuard,
}

impl Server {
    /// Serves, and says that the node is still starting.
    pub(super) fn start(listener: TcpListener) -> Self {
        let (routers, served) = watch::channel(None);
        let closing = CancellationToken::new();
        let closed = closing.clone().cancelled_owned();
        let task = tokio::spawn(heddle_http::serve(listener, served, serve_limits(), closed));
        Self {
            routers,
            task,
            _end: closing.clone().drop_guard(),
            closing,
        }
    }

    /// The node has started: from now on, this answers.
    pub(super) fn open(&self, router: Router) {
        self.routers.send_replace(Some(router));
    }

    /// Takes no more connections, and returns when the requests under way have ended.
    pub(super) async fn close(self) {
        self.closing.cancel();
        let _ = self.task.await;
    }
}

/// Raises the limit of file descriptors to the maximum. Many systems allow a process 1,024 unless it asks for more, and
/// thousands of polls may wait on a node, each with a connection.
pub(super) fn allow_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(error = %Chain(&error), "cannot increase the limit on open files; the node accepts fewer \
                connections");
        }
    }
}

/// The maximum of connections, from the number of files that this process may open.
fn serve_limits() -> ServeLimits {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile)
        .current
        .map_or_else(ServeLimits::default, ServeLimits::of_files)
}
