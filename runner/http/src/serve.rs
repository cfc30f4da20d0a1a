//! Serving connections: what hyper is told so that slow or half-open ones cannot pile up. HTTP/1.1 only: whoever wants
//! HTTP/2 or TLS puts a proxy in front, which speaks HTTP/1.1 to its backends anyway.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::access::Peer;
use crate::idle::Idle;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Connections open at once; further ones wait in the kernel's queue.
    pub connections_max: usize,
    /// How long the head of a request may take (an idle connection, too, is closed after it).
    pub header_timeout: Duration,
    /// Bytes of a request's head.
    pub header_bytes_max: usize,
    /// How long requests under way may go on once the node shuts down.
    pub drain_timeout: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            header_timeout: Duration::from_secs(30),
            header_bytes_max: 64 * 1024,
            drain_timeout: Duration::from_secs(25),
        }
    }
}

/// How long to wait when the kernel has no file descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown`; then takes no more connections and lets requests under way end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServeLimits,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let slots = std::sync::Arc::new(Semaphore::new(limits.connections_max));
    let (closing, closed) = tokio::sync::watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        // Finished connections are reaped as they end, so that the set holds no more than there are slots.
        while connections.try_join_next().is_some() {}
        let Ok(slot) = (tokio::select! {
            slot = slots.clone().acquire_owned() => slot,
            () = &mut shutdown => break,
        }) else {
            break;
        };
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => (stream, Peer::new(address.ip())),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        // Answers are written whole; waiting to fill packets only delays them.
        let _ = stream.set_nodelay(true);
        let routes = TowerToHyperService::new(router.clone());
        let idle = Idle::new();
        let noted = idle.clone();
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            noted.ends();
            let idle = noted.clone();
            let answer = hyper::service::Service::call(&routes, request);
            async move { answer.await.map(|answer| idle.after(answer)) }
        });
        let mut closed = closed.clone();
        connections.spawn(async move {
            let _slot = slot;
            let mut builder = http1::Builder::new();
            builder.max_buf_size(limits.header_bytes_max);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let mut over = std::pin::pin!(idle.is_over(limits.header_timeout));
            // What goes wrong on a connection is its client's business: nothing to log.
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = over.as_mut() => return,
                _ = closed.wait_for(|closing| *closing) => {}
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                _ = connection => {}
                () = over => {}
            }
        });
    }
    drop(listener);
    let _ = closing.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain_timeout, drained).await.is_err() {
        connections.shutdown().await;
    }
}
