//! A mail server that speaks SMTP as far as mails need it: EHLO, STARTTLS with a certificate made for it, AUTH PLAIN, MAIL,
//! RCPT, DATA, QUIT; and that can misbehave.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A mail that was taken.
#[derive(Clone, Debug)]
pub struct Mail {
    pub from: String,
    pub to: Vec<String>,
    /// Head and body, as they came.
    pub data: String,
    /// Whether the connection was encrypted.
    pub encrypted: bool,
    /// Who had logged in.
    pub user: Option<String>,
}

impl Mail {
    /// A header's value, unfolded.
    pub fn header(&self, name: &str) -> Option<String> {
        let head = self.data.split("\r\n\r\n").next()?.replace("\r\n ", " ");
        head.lines()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned))
    }

    /// The body, with quoted-printable and base64 undone.
    pub fn body(&self) -> String {
        let (_, body) = self.data.split_once("\r\n\r\n").unwrap_or_default();
        match self.header("Content-Transfer-Encoding").as_deref() {
            Some("base64") => {
                let joined: String = body.split_whitespace().collect();
                String::from_utf8_lossy(&STANDARD.decode(joined).unwrap_or_default()).into_owned()
            }
            Some("quoted-printable") => unquoted(body),
            _ => body.to_owned(),
        }
    }
}

fn unquoted(text: &str) -> String {
    let text = text.replace("=\r\n", "");
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code
            .filter(|_| byte == b'=')
            .and_then(|code| u8::from_str_radix(code, 16).ok())
        {
            Some(code) => {
                bytes.push(code);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How the server behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manners {
    /// It takes every mail.
    Good,
    /// It says nothing at all.
    Hangs,
    /// It knows nobody of these addresses.
    Refuses(&'static str),
    /// It takes mails for this address later.
    PutsOff(&'static str),
    /// It knows nobody of the first address, and takes mails for the second one later.
    RefusesAndPutsOff(&'static str, &'static str),
    /// It refuses what a mail says, in an encoding of its own.
    Mumbles,
    /// It goes away in the middle of a mail.
    Drops,
    /// It greets with a line that has no end.
    Babbles,
    /// It does so once the connection is encrypted, from the first byte or by STARTTLS.
    BabblesEncrypted,
    /// It greets with an answer of lines without end.
    Rambles,
    /// It greets by a byte a second.
    Drips,
}

#[derive(Clone, Debug)]
pub struct Smtp {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// Its certificate, for `localhost`, in PEM.
    pub ca: String,
    mails: Arc<Mutex<Vec<Mail>>>,
    manners: Arc<Mutex<Manners>>,
    connections: Arc<Mutex<usize>>,
    said: Arc<Mutex<usize>>,
    left: Arc<Mutex<usize>>,
}

impl Smtp {
    /// Starts a server that is encrypted from the first byte, or offers STARTTLS; it ends with the test's runtime.
    pub async fn start(implicit: bool) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("the certificate and its key");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = Self {
            port: listener.local_addr().expect("an address").port(),
            ca: made.cert.pem(),
            mails: Arc::default(),
            manners: Arc::new(Mutex::new(Manners::Good)),
            connections: Arc::default(),
            said: Arc::default(),
            left: Arc::default(),
        };
        let (state, tls) = (server.clone(), TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *state.connections.lock().expect("nobody panics with it") += 1;
                tokio::spawn(state.clone().serve(stream, tls.clone(), implicit));
            }
        });
        server
    }

    /// From now on, behaves so.
    pub fn behaves(&self, manners: Manners) {
        *self.manners.lock().expect("nobody panics with it") = manners;
    }

    /// What it has taken.
    pub fn mails(&self) -> Vec<Mail> {
        self.mails.lock().expect("nobody panics with it").clone()
    }

    /// How often somebody has connected.
    pub fn connections(&self) -> usize {
        *self.connections.lock().expect("nobody panics with it")
    }

    fn manners(&self) -> Manners {
        self.manners.lock().expect("nobody panics with it").clone()
    }

    async fn serve(self, stream: TcpStream, tls: TlsAcceptor, implicit: bool) -> Option<()> {
        let worse = match self.manners() {
            Manners::Hangs => Some(""),
            Manners::Babbles | Manners::BabblesEncrypted => Some("220 mail.test and more "),
            Manners::Rambles => Some("220-mail.test and more\r\n"),
            Manners::Drips => Some("220"),
            _ => None,
        };
        if implicit {
            let stream = tls.accept(stream).await.ok()?;
            if let Some(worse) = worse {
                self.misbehave(stream, worse).await;
                return None;
            }
            return self.converse(BufReader::new(stream), true, true).await.map(drop);
        }
        if let Some(worse) = worse.filter(|_| self.manners() != Manners::BabblesEncrypted) {
            self.misbehave(stream, worse).await;
            return None;
        }
        let stream = self.converse(BufReader::new(stream), false, true).await??;
        let stream = tls.accept(stream).await.ok()?;
        if let Some(worse) = worse {
            self.misbehave(stream, worse).await;
            return None;
        }
        self.converse(BufReader::new(stream), true, false).await.map(drop)
    }

    /// Says the same again and again until the other side has had enough, which is noted; nothing, if that is empty.
    async fn misbehave<S: AsyncRead + AsyncWrite>(&self, stream: S, text: &str) {
        let (reading, mut writing) = tokio::io::split(stream);
        let endless = async {
            let pause = std::time::Duration::from_secs(1);
            let (chunk, pause) = match (text, self.manners()) {
                ("", _) => return std::future::pending().await,
                (text, Manners::Drips) => (text[..1].to_owned(), Some(pause)),
                (text, _) => (text.repeat(1000), None),
            };
            while writing.write_all(chunk.as_bytes()).await.is_ok() {
                *self.said.lock().expect("nobody panics with it") += chunk.len();
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
            }
        };
        let mut lines = BufReader::new(reading).lines();
        let left = async { while let Ok(Some(_)) = lines.next_line().await {} };
        tokio::select! { () = endless => {}, () = left => {} }
        *self.left.lock().expect("nobody panics with it") += 1;
    }

    /// How many bytes it has sent while it misbehaved, and how many callers have gone since.
    pub fn said(&self) -> (usize, usize) {
        let count = |of: &Mutex<usize>| *of.lock().expect("nobody panics with it");
        (count(&self.said), count(&self.left))
    }

    /// One conversation; `Some(Some(stream))` when it goes on encrypted.
    async fn converse<S>(&self, mut stream: BufReader<S>, encrypted: bool, greets: bool) -> Option<Option<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if greets {
            say(&mut stream, "220 mail.test ESMTP").await?;
        }
        let (mut from, mut to, mut user) = (String::new(), Vec::new(), None);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            let answer = match verb.as_str() {
                "EHLO" if encrypted => {
                    "250-mail.test\r\n250-SMTPUTF8\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN".to_owned()
                }
                "EHLO" => "250-mail.test\r\n250-STARTTLS\r\n250 8BITMIME".to_owned(),
                "STARTTLS" => {
                    say(&mut stream, "220 go on").await?;
                    return Some(Some(stream.into_inner()));
                }
                "AUTH" => {
                    let code = line.rsplit(' ').next().unwrap_or_default();
                    let plain = STANDARD.decode(code).unwrap_or_default();
                    let parts: Vec<String> = plain
                        .split(|&byte| byte == 0)
                        .map(|part| String::from_utf8_lossy(part).into_owned())
                        .collect();
                    if parts.len() == 3 && parts[2] == "right" {
                        user = Some(parts[1].clone());
                        "235 welcome".to_owned()
                    } else {
                        "535 5.7.8 who are you?".to_owned()
                    }
                }
                "MAIL" => {
                    from = address(line);
                    "250 ok".to_owned()
                }
                "RCPT" => {
                    let address = address(line);
                    let refused = self.manners().refusal(&address);
                    if refused.is_none() {
                        to.push(address);
                    }
                    refused.unwrap_or("250 ok").to_owned()
                }
                "DATA" => {
                    say(&mut stream, "354 go on").await?;
                    let data = self.data(&mut stream).await?;
                    if self.manners() == Manners::Mumbles {
                        stream.write_all(b"550 5.7.1 \xc0\xac\xbb\xf8 spam\r\n").await.ok()?;
                        stream.flush().await.ok()?;
                        continue;
                    }
                    self.mails.lock().ok()?.push(Mail {
                        from: from.clone(),
                        to: std::mem::take(&mut to),
                        data,
                        encrypted,
                        user: user.clone(),
                    });
                    "250 taken".to_owned()
                }
                "QUIT" => {
                    say(&mut stream, "221 bye").await?;
                    return Some(None);
                }
                _ => "250 ok".to_owned(),
            };
            say(&mut stream, &answer).await?;
        }
    }

    async fn data<S>(&self, stream: &mut BufReader<S>) -> Option<String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut data = String::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 || self.manners() == Manners::Drops {
                return None;
            }
            match line.trim_end_matches(['\r', '\n']) {
                "." => return Some(data),
                _ => data.push_str(line.strip_prefix('.').unwrap_or(&line)),
            }
        }
    }
}

impl Manners {
    /// What the server answers to a recipient that it does not take.
    fn refusal(&self, address: &str) -> Option<&'static str> {
        match self {
            Self::Refuses(whom) if whom.is_empty() || *whom == address => Some("550 5.1.1 nobody of that name here"),
            Self::RefusesAndPutsOff(whom, _) if *whom == address => Some("550 5.1.1 nobody of that name here"),
            Self::PutsOff(whom) | Self::RefusesAndPutsOff(_, whom) if *whom == address => {
                Some("451 4.7.1 come back later")
            }
            _ => None,
        }
    }
}

fn address(line: &str) -> String {
    let inside = line.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    inside.map_or_else(String::new, |(address, _)| address.to_owned())
}

async fn say<S>(stream: &mut BufReader<S>, text: &str) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(format!("{text}\r\n").as_bytes()).await.ok()?;
    stream.flush().await.ok()
}
