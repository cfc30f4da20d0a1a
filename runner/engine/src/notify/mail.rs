//! Mails: by SMTP, or into files.
//!
//! Each address gets its own mail: if a server refuses one, the others still get theirs, and nobody sees the other
//! recipients. One connection carries all of them, for as long as it lasts.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heddle_domain::notify::channel::{ChannelSpec, SmtpSpec, SmtpTls, mailbox_parts};
use heddle_domain::notify::message::{Message as Words, bounded};
use heddle_domain::{Chain, Time};
use heddle_store::outbox::Mailed;
use lettre::address::Envelope;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message, SinglePart};
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::Starttls;
use lettre::transport::smtp::extension::{ClientId, Extension};
use lettre::{Address, transport::smtp::Error};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::time::Instant;
use uuid::Uuid;

use super::answers::{Answers, Encrypted, Lent};
use super::ca::trusting;
use super::failure::Failure;

/// How long one mail may take, including the connection if needed.
const MAIL_TIMEOUT: Duration = Duration::from_secs(20);
/// The sender of mails, unless the channel names one.
const FROM_DEFAULT: &str = "Heddle <heddle@localhost>";
/// How Heddle logs in: the ways that the library and most servers know.
const MECHANISMS: [Mechanism; 2] = [Mechanism::Plain, Mechanism::Login];
/// How many bytes of a subject are in one encoded word. With `Subject: ` before it, the line stays below 76 characters
/// (RFC 2047, 2).
const WORD_BYTES_MAX: usize = 36;

/// What is to be mailed.
pub(super) struct Mail<'a> {
    pub(super) id: Uuid,
    pub(super) words: &'a Words,
    pub(super) now: Time,
}

impl Mail<'_> {
    /// The mail for one address.
    fn for_address(&self, channel: &ChannelSpec, address: &str) -> Result<(Envelope, Vec<u8>), Failure> {
        let refused = |what: &str, error: &dyn std::fmt::Display| Failure::Final(format!("{what}: {error}"));
        let (name, from) = mailbox_parts(channel.from.as_deref().unwrap_or(FROM_DEFAULT));
        let from: Address = from.parse().map_err(|error| refused("the sender's address", &error))?;
        let to: Address = address.parse().map_err(|error| refused(address, &error))?;
        let message = Message::builder()
            .from(Mailbox::new(name.map(one_line), from))
            .to(Mailbox::new(None, to))
            .raw_header(subject(one_line(&self.words.subject)))
            .date(SystemTime::from(self.now))
            .message_id(Some(self.message_id(address)))
            .raw_header(HeaderValue::new(
                HeaderName::new_from_ascii_str("X-Heddle-Notification"),
                self.id.to_string(),
            ))
            // RFC 3834: asks for no automatic replies.
            .raw_header(HeaderValue::new(
                HeaderName::new_from_ascii_str("Auto-Submitted"),
                "auto-generated".to_owned(),
            ))
            .singlepart(SinglePart::plain(self.words.text.clone()))
            .map_err(|error| refused("the mail", &error))?;
        Ok((message.envelope().clone(), message.formatted()))
    }

    /// The id of the mail to one address. It is the same in each try, because servers drop a second mail with the same id.
    fn message_id(&self, address: &str) -> String {
        let digest = Sha256::digest(address.as_bytes());
        let of_address: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("<{}.{of_address}@heddle>", self.id)
    }
}

/// The header with the subject. The library leaves text as it is that looks like an encoded word, and readers would decode
/// it. So a subject with such text is encoded as a whole.
fn subject(text: String) -> HeaderValue {
    let name = HeaderName::new_from_ascii_str("Subject");
    if !text.contains("=?") {
        return HeaderValue::new(name, text);
    }
    let mut words = Vec::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let word = bounded(rest, WORD_BYTES_MAX);
        words.push(format!("=?utf-8?b?{}?=", STANDARD.encode(word)));
        rest = &rest[word.len()..];
    }
    // Spaces between two encoded words are not shown.
    let encoded = words.join("\r\n ");
    HeaderValue::dangerous_new_pre_encoded(name, text, encoded)
}

/// Replaces control characters by spaces: the library panics on a name that contains a line end.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Why a mail was not delivered, and whether the server refused this recipient or this mail: not the connection.
struct Undelivered {
    failure: Failure,
    is_refusal: bool,
}

impl From<Failure> for Undelivered {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            is_refusal: false,
        }
    }
}

/// Mails to all `addresses`, and notes in `mailed` who has got theirs, and who was refused for good. It ends at `until` at
/// the latest.
pub(super) async fn send(
    channel: &ChannelSpec,
    mail: &Mail<'_>,
    addresses: &[String],
    mailed: &mut Mailed,
    mail_dir: Option<&Path>,
    until: Instant,
) -> Result<(), Failure> {
    if addresses.is_empty() {
        return Err(Failure::Final("there is no recipient: the channel has no `to`".into()));
    }
    let mut connection = None;
    let mut failure: Option<Failure> = None;
    for (index, address) in addresses.iter().enumerate() {
        let sent: Result<(), Undelivered> = match mail.for_address(channel, address) {
            Err(failure) => Err(failure.into()),
            Ok((envelope, bytes)) => match (&channel.smtp, mail_dir) {
                (Some(smtp), _) => {
                    let limit = until.min(Instant::now() + MAIL_TIMEOUT);
                    match tokio::time::timeout_at(limit, deliver(&mut connection, smtp, &envelope, &bytes)).await {
                        Ok(sent) => sent,
                        Err(_) => {
                            // After a cancel, the state of the conversation with the server is unknown.
                            connection = None;
                            let seconds = MAIL_TIMEOUT.as_secs();
                            Err(Failure::passing(format!("the mail server did not answer within {seconds} s")).into())
                        }
                    }
                }
                (None, Some(directory)) => write(directory, mail, index, &bytes).await.map_err(Undelivered::from),
                (None, None) => {
                    let why = "the channel has no `smtp`; only `heddle dev` writes mails into files";
                    Err(Failure::Final(why.into()).into())
                }
            },
        };
        match sent {
            Ok(()) => mailed.settled.push(address.clone()),
            Err(undelivered) => {
                let hopeless = matches!(undelivered.failure, Failure::Passing(..)) && Instant::now() >= until;
                let error = undelivered.failure.about(address);
                if let (true, Failure::Final(why)) = (undelivered.is_refusal, &error) {
                    mailed.settled.push(address.clone());
                    mailed.refused.push(why.clone());
                }
                failure = Some(worse(failure, error));
                if hopeless {
                    break;
                }
            }
        }
    }
    if let Some(mut connection) = connection {
        let _ = tokio::time::timeout(Duration::from_secs(1), connection.quit()).await;
    }
    failure.map_or(Ok(()), Err)
}

/// If one of the failures may pass, the whole is tried again.
fn worse(one: Option<Failure>, other: Failure) -> Failure {
    match one {
        Some(one @ Failure::Passing(..)) => one,
        Some(one) if matches!(other, Failure::Final(_)) => one,
        _ => other,
    }
}

async fn deliver(
    connection: &mut Option<AsyncSmtpConnection>,
    smtp: &SmtpSpec,
    envelope: &Envelope,
    bytes: &[u8],
) -> Result<(), Undelivered> {
    // A connection that an error has closed is opened again.
    let mut current = match connection.take().filter(|connection| !connection.has_broken()) {
        Some(current) => current,
        None => connect(smtp).await?,
    };
    let mut addresses = envelope.to().iter().chain(envelope.from());
    let is_ascii = addresses.all(|address| address.to_string().is_ascii());
    if !is_ascii && !current.server_info().supports_feature(Extension::SmtpUtfEight) {
        *connection = Some(current);
        let why = "the mail server does not offer SMTPUTF8, which an address that is not ASCII needs";
        return Err(Failure::passing(why).into());
    }
    current.send(envelope, bytes).await.map_err(|error| Undelivered {
        failure: failure(error),
        is_refusal: true,
    })?;
    *connection = Some(current);
    Ok(())
}

async fn connect(smtp: &SmtpSpec) -> Result<AsyncSmtpConnection, Failure> {
    let hello = ClientId::Domain("heddle.local".to_owned());
    let address = (smtp.host.as_str(), smtp.port());
    let mut connection = if smtp.tls == SmtpTls::Implicit {
        let stream = Encrypted::connect(address, tls(smtp).await?).await.map_err(failure)?;
        AsyncSmtpConnection::connect_with_transport(Box::new(Answers::new(stream)), &hello).await
    } else {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| Failure::passing(format!("the mail server cannot be reached: {error}")))?;
        let lent = Lent::new(stream);
        let plain = AsyncSmtpConnection::connect_with_transport(Box::new(Answers::new(lent.clone())), &hello).await;
        match plain {
            Ok(plain) if smtp.tls == SmtpTls::Starttls => {
                let stream = Encrypted::over(ready_for_tls(plain, lent).await?, tls(smtp).await?)
                    .await
                    .map_err(failure)?;
                AsyncSmtpConnection::connect_with_transport(Box::new(Answers::greeted(stream)), &hello).await
            }
            plain => plain,
        }
    }
    .map_err(failure)?;
    if let (Some(username), Some(password)) = (&smtp.username, &smtp.password) {
        if connection.server_info().get_auth_mechanism(&MECHANISMS).is_none() {
            let why = "the mail server offers no login that Heddle can use: neither AUTH PLAIN nor AUTH LOGIN";
            return Err(Failure::passing(why));
        }
        let credentials = Credentials::new(username.clone(), password.clone());
        connection.auth(&MECHANISMS, &credentials).await.map_err(failure)?;
    }
    Ok(connection)
}

/// Ends a plain conversation, and returns its stream, on which the server now expects encryption.
async fn ready_for_tls(mut plain: AsyncSmtpConnection, lent: Lent) -> Result<TcpStream, Failure> {
    if !plain.can_starttls() {
        return Err(Failure::passing("the mail server does not offer STARTTLS".to_owned()));
    }
    plain.command(Starttls).await.map_err(failure)?;
    drop(plain);
    lent.taken_back()
        .ok_or_else(|| Failure::passing("the connection to the mail server is still in use".to_owned()))
}

/// The system's certificates are read from files: not on a thread that serves requests.
async fn tls(smtp: &SmtpSpec) -> Result<TlsParameters, Failure> {
    let (host, ca) = (smtp.host.clone(), smtp.ca.clone());
    let made = tokio::task::spawn_blocking(move || trusting(TlsParameters::builder(host), ca.as_deref()));
    match made.await {
        Ok(Ok(tls)) => Ok(tls),
        Ok(Err(error)) => Err(failure(error)),
        Err(error) => Err(Failure::passing(error.to_string())),
    }
}

/// 5yz is an answer that another try does not change (RFC 5321, 4.2.1). But a server that does not offer what the
/// channel asks for may be repaired.
fn failure(error: Error) -> Failure {
    let text = heddle_domain::notify::message::one_line(&words_for(&error), 500);
    if error.is_permanent() {
        Failure::Final(text)
    } else {
        Failure::passing(text)
    }
}

/// The library's own words are for programmers, except those that repeat the server's answer.
fn words_for(error: &Error) -> String {
    if error.status().is_some() {
        return Chain(error).to_string();
    }
    if has_closed(error) {
        return "the mail server closed the connection".to_owned();
    }
    let cause = error.source().map(|cause| Chain(cause).to_string());
    let cause = cause.unwrap_or_else(|| "the reason is not known".to_owned());
    if let Some(why) = of_certificate(&cause) {
        return why.to_owned();
    }
    let what = if error.is_response() {
        "the answer of the mail server cannot be understood"
    } else if error.is_tls() {
        "the connection to the mail server cannot be encrypted"
    } else {
        "the conversation with the mail server failed"
    };
    format!("{what}: {cause}")
}

/// A certificate that `openssl req -x509` makes is one of a CA, and the library's word for this helps nobody.
fn of_certificate(cause: &str) -> Option<&'static str> {
    cause.contains("CaUsedAsEndEntity").then_some(
        "the mail server's certificate is a CA certificate; it must be issued by a CA, or be self-signed without CA:TRUE",
    )
}

/// Whether the server ended the connection, properly or not, before the conversation was over.
fn has_closed(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(found) = cause {
        if let Some(error) = found.downcast_ref::<io::Error>() {
            return matches!(
                error.kind(),
                ErrorKind::UnexpectedEof
                    | ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::BrokenPipe
            );
        }
        // What the library says if a connection ends before an answer does.
        if error.is_response() && found.to_string() == "incomplete response" {
            return true;
        }
        cause = found.source();
    }
    false
}

/// Writes a mail whole or not at all: a reader of `*.eml` never sees half of one.
async fn write(directory: &Path, mail: &Mail<'_>, index: usize, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::passing(format!("the mail cannot be written: {error}"));
    tokio::fs::create_dir_all(directory).await.map_err(failed)?;
    let name = format!("{}-{}-{index}", mail.now.format("%Y%m%dT%H%M%S%3f"), mail.id);
    let temporary = directory.join(format!("{name}.new"));
    tokio::fs::write(&temporary, bytes).await.map_err(failed)?;
    tokio::fs::rename(&temporary, directory.join(format!("{name}.eml")))
        .await
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(subject: &str, text: &str, from: Option<&str>, to: &str) -> Result<String, Failure> {
        let words = Words {
            subject: subject.into(),
            text: text.into(),
        };
        let mail = Mail {
            id: Uuid::nil(),
            words: &words,
            now: Time::UNIX_EPOCH,
        };
        let channel = ChannelSpec {
            from: from.map(str::to_owned),
            ..ChannelSpec::default()
        };
        mail.for_address(&channel, to)
            .map(|(_, bytes)| String::from_utf8(bytes).unwrap())
    }

    fn head(mail: &str) -> &str {
        mail.split_once("\r\n\r\n").unwrap().0
    }

    /// As rustls writes the reason.
    #[test]
    fn a_server_with_the_certificate_of_a_ca_is_told_so() {
        let said = of_certificate("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))");
        assert!(said.is_some_and(|said| said.contains("without CA:TRUE")), "{said:?}");
        assert_eq!(of_certificate("invalid peer certificate: UnknownIssuer"), None);
    }

    #[test]
    fn a_mail_is_ascii_and_names_its_notification() {
        let mail = made(
            "größer 失敗",
            "日本語\n.\nend",
            Some("Öps <ops@example.com>"),
            "a@example.com",
        )
        .unwrap();
        assert!(mail.is_ascii(), "{mail}");
        for line in [
            "To: a@example.com",
            "X-Heddle-Notification: 00000000-",
            "Auto-Submitted: auto-generated",
        ] {
            assert!(head(&mail).contains(line), "{line} is missing in {mail}");
        }
        assert!(head(&mail).contains("Subject: =?utf-8?"), "{mail}");
    }

    #[test]
    fn what_looks_encoded_is_shown_as_it_is() {
        for text in [
            "=?utf-8?q?hi?=".to_owned(),
            format!("größer =?utf-8?b?aGk=?= {}", "失敗".repeat(60)),
        ] {
            let mail = made(&text, "text", None, "a@example.com").unwrap();
            let (_, from_subject) = head(&mail).split_once("Subject: ").unwrap();
            let mut shown = Vec::new();
            for (index, line) in from_subject.split("\r\n").enumerate() {
                if index > 0 && !line.starts_with(' ') {
                    break;
                }
                assert!(line.len() <= 67, "{line}");
                let word = line
                    .trim()
                    .strip_prefix("=?utf-8?b?")
                    .unwrap()
                    .strip_suffix("?=")
                    .unwrap();
                shown.extend(STANDARD.decode(word).unwrap());
            }
            assert_eq!(String::from_utf8(shown).unwrap(), text);
        }
        let plain = made("1 = 2?", "text", None, "a@example.com").unwrap();
        assert!(head(&plain).contains("Subject: 1 = 2?"), "{plain}");
    }

    #[test]
    fn nothing_gets_into_the_head() {
        for subject in [
            "x\r\nBcc: b@example.com",
            "x\nBcc: b@example.com",
            "x\rBcc: b@example.com",
        ] {
            let mail = made(
                subject,
                "text",
                Some("a\r\nBcc: b@example.com <a@example.com>"),
                "a@example.com",
            )
            .unwrap();
            let lines: Vec<&str> = head(&mail).split(['\r', '\n']).collect();
            assert!(!lines.iter().any(|line| line.starts_with("Bcc")), "{mail}");
        }
        assert!(made("s", "t", None, "a@example.com\r\nRCPT TO:<b@example.com>").is_err());
    }

    #[test]
    fn what_may_yet_arrive_is_tried_again() {
        let passing = || Failure::passing("later");
        let last = || Failure::Final("never".into());
        assert!(matches!(worse(None, last()), Failure::Final(_)));
        assert!(matches!(worse(Some(last()), passing()), Failure::Passing(..)));
        assert!(matches!(worse(Some(passing()), last()), Failure::Passing(..)));
    }
}
