//! Serves connections: settings of hyper against slow or half-open ones. Only HTTP/1.1: for HTTP/2 or TLS, operators
//! put a proxy in front, which uses HTTP/1.1 for its backends anyway.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::access::Peer;
use crate::connection::Crowd;
use crate::limits::ServeLimits;
use crate::progress::Progress;
use crate::starting::starting;

/// How long to wait when the kernel has no file descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often connections to close are searched for, while there is no room.
const ROOM_CHECKED_EVERY: Duration = Duration::from_millis(200);

/// How many bytes of an answer the kernel takes before they can be sent. It wakes a writer when fewer than half of them are
/// left, and a write that waits longer than `unread_timeout` fails. So whoever reads half of these in that time is a slow
/// client, not one that reads nothing: 16 KiB in 30 s, some 550 bytes per second.
const UNSENT_BYTES_MAX: u32 = 32 << 10;

/// Lets writes wait for the client instead of filling the kernel's buffer, which may have megabytes: a slow client would be
/// as one that reads nothing ([`crate::progress`]) for as long as it takes to read a third of them.
fn bound_unsent(stream: &TcpStream) {
    // Elsewhere, or if it fails, the buffer is what bounds them.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, UNSENT_BYTES_MAX);
}

/// Room for another connection.
async fn slot(slots: &Arc<Semaphore>, crowd: &Crowd) -> OwnedSemaphorePermit {
    loop {
        if slots.available_permits() == 0 {
            crowd.make_room();
        }
        let slot = tokio::time::timeout(ROOM_CHECKED_EVERY, Arc::clone(slots).acquire_owned());
        if let Ok(Ok(slot)) = slot.await {
            return slot;
        }
    }
}

/// Serves until `shutdown`; then takes no more connections and lets requests under way end. As long as there is no router,
/// the node is starting, and says so.
pub async fn serve(
    listener: TcpListener,
    routers: watch::Receiver<Option<Router>>,
    limits: ServeLimits,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let starting = starting(routers.clone());
    let crowd = Arc::new(Crowd::default());
    let (closing, closed) = tokio::sync::watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        // Finished connections are reaped as they end, so that the set holds no more than there are slots.
        while connections.try_join_next().is_some() {}
        let slot = tokio::select! {
            slot = slot(&slots, &crowd) => slot,
            () = &mut shutdown => break,
        };
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => (stream, Peer::new(address.ip())),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    crowd.make_room();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        let Some(member) = crowd.enter(peer, &limits) else {
            continue;
        };
        // Answers are written whole; waiting to fill packets only delays them.
        let _ = stream.set_nodelay(true);
        bound_unsent(&stream);
        let router = routers.borrow().clone().unwrap_or_else(|| starting.clone());
        let routes = TowerToHyperService::new(router);
        let noted = Arc::clone(&member.0);
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let connection = Arc::clone(&noted);
            connection.begins();
            request.extensions_mut().insert(Arc::clone(&connection));
            let answer = hyper::service::Service::call(&routes, request);
            async move { answer.await.map(|answer| connection.after(answer)) }
        });
        let mut closed = closed.clone();
        connections.spawn(async move {
            let _slot = slot;
            let mut builder = http1::Builder::new();
            builder.max_buf_size(limits.header_bytes_max);
            let stream = TokioIo::new(Progress::new(stream, limits.unread_timeout));
            let connection = builder.serve_connection(stream, service);
            let mut connection = std::pin::pin!(connection);
            let mut over = std::pin::pin!(member.0.is_over(&limits));
            // An error on a connection concerns only its client: nothing to log.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As the documentation says.
    #[test]
    fn a_client_that_reads_a_kilobyte_each_second_is_not_closed() {
        let seconds = ServeLimits::default().unread_timeout.as_secs();
        assert!(u64::from(UNSENT_BYTES_MAX) / 2 <= 1_000 * seconds);
    }
}
