//! A proxy between browsers and a node: it forwards requests to the node that is there, or to none. It may fall silent: it
//! keeps all connections open then, and forwards nothing.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy of connections.
pub struct Between {
    /// Where browsers find it.
    pub base: String,
    to: Arc<Mutex<String>>,
    /// Whether it forwards anything.
    forwards: watch::Sender<bool>,
}

impl Between {
    /// In front of a node; `gathers`: it buffers a streamed answer until it has ended.
    pub async fn start(to: &str, gathers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let to = Arc::new(Mutex::new(to.to_owned()));
        let of = to.clone();
        let (forwards, may) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((browser, _)) = listener.accept().await {
                let to = of.lock().unwrap().clone();
                tokio::spawn(forward(browser, to, gathers, may.clone()));
            }
        });
        Self { base, to, forwards }
    }

    /// From now on it leads to another node.
    pub fn leads_to(&self, to: &str) {
        to.clone_into(&mut self.to.lock().unwrap());
    }

    /// From now on it forwards nothing, neither on the connections that it has nor on those that it gets.
    pub fn falls_silent(&self) {
        self.forwards.send_replace(false);
    }

    /// It forwards everything again, also what it has got meanwhile.
    pub fn speaks_again(&self) {
        self.forwards.send_replace(true);
    }
}

/// Waits as long as the proxy is silent.
async fn allowed(may: &mut watch::Receiver<bool>) {
    let _ = may.wait_for(|forwards| *forwards).await;
}

async fn forward(browser: TcpStream, to: String, gathers: bool, mut may: watch::Receiver<bool>) -> std::io::Result<()> {
    let node = TcpStream::connect(to).await?;
    let (asks, mut hears) = browser.into_split();
    let (mut answers, to_node) = node.into_split();
    tokio::spawn(ask(asks, to_node, may.clone()));
    let mut held: Vec<u8> = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = answers.read(&mut piece).await?;
        allowed(&mut may).await;
        held.extend_from_slice(&piece[..read]);
        let stream = held.windows(17).any(|part| part == b"text/event-stream");
        // A stream has ended with its last chunk, which is empty.
        if !gathers || !stream || held.ends_with(b"0\r\n\r\n") || read == 0 {
            hears.write_all(&held).await?;
            held.clear();
        }
        if read == 0 {
            return hears.shutdown().await;
        }
    }
}

/// What the browser asks. If it closes its connection, so does the proxy.
async fn ask(
    mut asks: OwnedReadHalf,
    mut to_node: OwnedWriteHalf,
    mut may: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = asks.read(&mut piece).await?;
        allowed(&mut may).await;
        if read == 0 {
            return to_node.shutdown().await;
        }
        to_node.write_all(&piece[..read]).await?;
    }
}
