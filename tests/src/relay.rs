//! A way from programs to a node, as a load balancer is one: it leads to the node that it is told, or to none.

use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};

/// A TCP port that leads to a node.
#[derive(Debug)]
pub struct Relay {
    base: String,
    to: Arc<Mutex<Option<String>>>,
}

impl Relay {
    /// To the node at this authority, such as `127.0.0.1:1234`. It ends with the test's runtime.
    pub async fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let to = Arc::new(Mutex::new(Some(to.to_owned())));
        let of = to.clone();
        tokio::spawn(async move {
            while let Ok((program, _)) = listener.accept().await {
                let to = of.lock().expect("nobody panics with it").clone();
                tokio::spawn(join(program, to));
            }
        });
        Self { base, to }
    }

    /// Where programs find it.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// From now on, new connections lead to this node. Those that there are stay as they are.
    pub fn leads_to(&self, to: &str) {
        *self.to.lock().expect("nobody panics with it") = Some(to.to_owned());
    }

    /// From now on, new connections are closed at once. Those that there are stay as they are.
    pub fn leads_nowhere(&self) {
        *self.to.lock().expect("nobody panics with it") = None;
    }
}

async fn join(mut program: TcpStream, to: Option<String>) {
    let Some(to) = to else { return };
    if let Ok(mut node) = TcpStream::connect(to).await {
        // A connection that breaks is what these tests are about.
        let _ = tokio::io::copy_bidirectional(&mut program, &mut node).await;
    }
}
