//! A proxy between browsers and a node: it forwards requests to the node that is there, or to none.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy of connections.
pub struct Between {
    /// Where browsers find it.
    pub base: String,
    to: Arc<Mutex<String>>,
}

impl Between {
    /// In front of a node; `gathers`: it buffers a streamed answer until it has ended.
    pub async fn start(to: &str, gathers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let to = Arc::new(Mutex::new(to.to_owned()));
        let of = to.clone();
        tokio::spawn(async move {
            while let Ok((browser, _)) = listener.accept().await {
                let to = of.lock().unwrap().clone();
                tokio::spawn(forward(browser, to, gathers));
            }
        });
        Self { base, to }
    }

    /// From now on it leads to another node.
    pub fn leads_to(&self, to: &str) {
        to.clone_into(&mut self.to.lock().unwrap());
    }
}

async fn forward(browser: TcpStream, to: String, gathers: bool) -> std::io::Result<()> {
    let node = TcpStream::connect(to).await?;
    let (mut asks, mut hears) = browser.into_split();
    let (mut answers, mut to_node) = node.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut asks, &mut to_node).await });
    let mut held: Vec<u8> = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = answers.read(&mut piece).await?;
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
