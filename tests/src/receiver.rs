//! A receiver of webhooks that answers as it is told.

use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::sink::{Request, read_request};

/// How a request is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    /// With a status and an address to go to.
    Redirect(u16, String),
    /// With a status and `Retry-After`.
    Later(u16, String),
    /// With a status and JSON.
    Json(u16, String),
    /// With a status and a body that does not end before a gigabyte.
    Endless(u16),
    /// With a status and a body of which no more than the beginning comes.
    Drips(u16, String),
    /// No answer at all.
    Silence,
    /// Not before it is told to answer otherwise, and then so.
    Held,
}

#[derive(Clone, Debug)]
pub struct Receiver {
    /// Where it is, `http://127.0.0.1:1234`.
    pub url: String,
    answer: watch::Sender<Answer>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Starts it; it ends with the test's runtime.
    pub async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (answer, answers) = watch::channel(answer);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, seen.clone(), answers.clone()));
            }
        });
        Self { url, answer, requests }
    }

    /// From now on, answers so.
    pub fn answers(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    /// Forgets what has come in so far.
    pub fn forget(&self) {
        self.requests.lock().expect("nobody panics with it").clear();
    }

    /// What has come in so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("nobody panics with it").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<Request>>>,
    mut answers: watch::Receiver<Answer>,
) -> Option<()> {
    let request = read_request(&mut stream).await?;
    seen.lock().ok()?.push(request);
    let found = answers.wait_for(|answer| !matches!(answer, Answer::Held)).await;
    let answer = found.ok()?.clone();
    let (status, headers, body) = match answer {
        Answer::Status(status) => (status, String::new(), String::new()),
        Answer::Redirect(status, to) => (status, format!("location: {to}\r\n"), String::new()),
        Answer::Later(status, when) => (status, format!("retry-after: {when}\r\n"), String::new()),
        Answer::Json(status, body) => (status, String::new(), body),
        Answer::Endless(status) => return endless(stream, status).await,
        Answer::Drips(status, beginning) => {
            let head = format!("HTTP/1.1 {status} As told\r\ncontent-length: 1000000\r\n\r\n{beginning}");
            stream.write_all(head.as_bytes()).await.ok()?;
            let mut rest = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
            return None;
        }
        Answer::Held => return None,
        Answer::Silence => {
            // Until the other side has had enough.
            let mut rest = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
            return None;
        }
    };
    let head = format!(
        "HTTP/1.1 {status} As told\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

async fn endless(mut stream: TcpStream, status: u16) -> Option<()> {
    const GIGABYTE: u64 = 1 << 30;
    let head = format!("HTTP/1.1 {status} As told\r\ncontent-length: {GIGABYTE}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let piece = vec![b'x'; 64 * 1024];
    for _ in 0..GIGABYTE / piece.len() as u64 {
        stream.write_all(&piece).await.ok()?;
    }
    Some(())
}
