//! Which connections of scripts' requests are kept for later ones.
//!
//! A kept connection takes an open file for as long as [`IDLE_TIMEOUT`], although its request has given its slot back
//! ([`crate::outgoing`]). So connections are kept only to as many hosts as the slots of a node allow; those to others are closed
//! with the end of their request. A script that asks thousands of hosts, or ports of one, costs others at most that their
//! requests connect anew.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use crate::outbound::{IDLE_TIMEOUT, MAX_IDLE_PER_HOST, OutboundPolicy};
use crate::outgoing::MAX_WAIT;

/// How long a host counts after a request to it began: its connection can be in use, and then be kept.
const KEPT: Duration = MAX_WAIT.saturating_add(IDLE_TIMEOUT);

/// The maximum of hosts, however many files a process may open.
const HOSTS_MAX: usize = 4_096;

/// The clients of scripts.
pub(crate) struct Clients {
    keeping: reqwest::Client,
    closing: reqwest::Client,
    /// The hosts, with scheme and port, to which connections may be kept, and when the last request to each began. They are
    /// known by their hash: scripts choose how long a name is.
    hosts: Mutex<HashMap<u64, Instant>>,
    hasher: RandomState,
    hosts_max: usize,
}

impl Clients {
    /// For a node with so many slots for requests: the kept connections are at most as many.
    pub fn new(policy: &OutboundPolicy, requests_max: usize) -> reqwest::Result<Self> {
        Ok(Self {
            keeping: policy.client()?,
            closing: policy.closing_client()?,
            hosts: Mutex::default(),
            hasher: RandomState::new(),
            hosts_max: (requests_max / MAX_IDLE_PER_HOST).min(HOSTS_MAX),
        })
    }

    /// The client for a request to this address.
    pub fn of(&self, url: &Url) -> &reqwest::Client {
        match self.keeps(url, Instant::now()) {
            true => &self.keeping,
            false => &self.closing,
        }
    }

    fn keeps(&self, url: &Url, now: Instant) -> bool {
        let host = (url.scheme(), url.host_str(), url.port_or_known_default());
        let host = self.hasher.hash_one(host);
        let mut hosts = self.hosts.lock();
        if let Some(began) = hosts.get_mut(&host) {
            *began = now;
            return true;
        }
        if hosts.len() >= self.hosts_max {
            hosts.retain(|_, began| now.duration_since(*began) < KEPT);
        }
        let has_room = hosts.len() < self.hosts_max;
        if has_room {
            hosts.insert(host, now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_to_a_bounded_number_of_hosts_are_kept() {
        let policy = OutboundPolicy::new(&[]).unwrap();
        let clients = Clients::new(&policy, 2 * MAX_IDLE_PER_HOST + 1).unwrap();
        let now = Instant::now();
        let keeps = |url: &str, now: Instant| clients.keeps(&url.parse().unwrap(), now);
        assert!(keeps("http://a", now));
        assert!(keeps("http://a:81", now + KEPT / 2));
        assert!(!keeps("https://a", now + KEPT / 2), "there are two");
        assert!(
            keeps("http://user:password@a:81/other?path", now + KEPT),
            "the same host"
        );
        assert!(keeps("https://a", now + KEPT), "the first was not asked any more");
        assert!(!keeps("http://a", now + KEPT));
    }

    /// The connection of a request is open after it only if its host is among them.
    #[tokio::test]
    async fn other_connections_end_with_their_request() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let policy = OutboundPolicy::new(&["127.0.0.1".into()]).unwrap();
        let clients = Clients::new(&policy, MAX_IDLE_PER_HOST).unwrap();
        for (ordinal, is_kept) in [(0, true), (1, false)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
            let sending = clients.of(&url).get(url.clone()).send();
            let answering = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut head).await.unwrap();
                }
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .await
                    .unwrap();
                stream
            };
            let (response, mut stream) = tokio::join!(sending, answering);
            assert_eq!(response.unwrap().bytes().await.unwrap(), "ok");
            // A second request uses the connection that is kept; otherwise there is none.
            if is_kept {
                let again = tokio::spawn(clients.of(&url).get(url).send());
                let mut head = [0; 3];
                stream.read_exact(&mut head).await.unwrap();
                assert_eq!(&head, b"GET", "{ordinal}");
                again.abort();
            } else {
                assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "{ordinal}");
            }
        }
    }
}
