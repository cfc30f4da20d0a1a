//! Sends what is due: each notification in its own async task, with a timeout for each try.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use bytes::Bytes;
use futures::FutureExt;
use heddle_domain::Chain;
use heddle_domain::clock::to_micros;
use heddle_domain::id::RunId;
use heddle_domain::notify::channel::{ChannelKind, ChannelSpec, SECRET_PREFIX};
use heddle_domain::notify::message::Message;
use heddle_domain::notify::{Event, retry_after};
use heddle_store::outbox::{Mailed, NewNotification, Outgoing, Recorded, Sent};
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::count::Way;
use super::failure::Failure;
use super::in_hand::Held;
use super::slots::{SLOW_AFTER, Side};
use super::{Notifier, chat, mail, post, sign};
use crate::EngineError;
use crate::node::signals::Signal;
use crate::scripts::redact::Redactor;

/// The timeouts of one try: a POST, and a mail to many addresses.
const POST_TIMEOUT: Duration = Duration::from_secs(20);
const MAILS_TIMEOUT: Duration = Duration::from_secs(60);
/// How often recording the result of a try is repeated; after that, the row is found by this node's lease and sent
/// again.
const RECORD_TRIES_MAX: u32 = 10;
const RECORD_AGAIN_AFTER: Duration = Duration::from_millis(300);

/// The error of a try that was cancelled.
const CUT: &str = "the node that was sending it stopped";

/// The minimum length of a part of a URL that may be secret; shorter parts such as `services` are not.
const URL_SECRET_BYTES_MIN: usize = 9;

impl Notifier {
    /// Takes what is due, as far as there are free slots; returns whether there may be more.
    pub(super) async fn send_due(self: &Arc<Self>) -> Result<bool, EngineError> {
        // A node that stops begins nothing more.
        if !self.node.is_active() {
            return Ok(false);
        }
        let mut more = false;
        for side in Side::ALL {
            more |= self.send_due_of(side).await?;
        }
        Ok(more)
    }

    async fn send_due_of(self: &Arc<Self>, side: Side) -> Result<bool, EngineError> {
        let now = self.node.clock.elapsed();
        let (room, not) = self.in_hand.room(side, now);
        if room.limit == 0 {
            // The next one that ends signals this service.
            return Ok(false);
        }
        let lease = self.node.lease();
        let due = self.node.store.take_outgoing(lease, &room, &not).await?;
        let mut more = false;
        let mut unreadable = Vec::new();
        for outgoing in due {
            let outgoing = match outgoing {
                Ok(outgoing) => outgoing,
                Err((id, error)) => {
                    tracing::error!(error = %Chain(&error), "cannot read a notification; it is left to other nodes, and \
                        read again later");
                    // If there are too many to remember, this take would get them again and again: the next tick is
                    // early enough.
                    more |= self.in_hand.pass_over(id, now);
                    unreadable.push(id);
                    continue;
                }
            };
            more = true;
            let held = self.in_hand.take(outgoing.id, &outgoing.destination);
            let notifier = self.clone();
            self.node.tracker.spawn(async move {
                let (id, destination) = (outgoing.id, outgoing.destination.clone());
                notifier.send_one(outgoing, lease, &held).await;
                tracing::debug!(%id, destination, "tried to send a notification");
                drop(held);
                notifier.node.signals.raise(Signal::Notices);
            });
        }
        if !unreadable.is_empty()
            && let Err(error) = self.node.store.give_outgoing_back(&unreadable, lease).await
        {
            tracing::warn!(error = %Chain(&error), "cannot give back notifications that this node cannot read; trying \
                again later");
        }
        Ok(more)
    }

    async fn send_one(&self, mut outgoing: Outgoing, lease: i64, held: &Held) {
        // It may be large: it is moved into the request, not copied.
        let payload = outgoing.payload.take();
        let channel = if is_url(&outgoing.channel) {
            Ok(None)
        } else {
            match self.node.store.open_channel(&self.keys, &outgoing.channel).await {
                Ok(Some(channel)) => Ok(Some(channel)),
                Ok(None) => Err(Failure::Final(format!("there is no channel `{}`", outgoing.channel))),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), channel = outgoing.channel, "cannot read the channel of a \
                        notification");
                    Err(Failure::passing(format!("the channel cannot be read: {error}")))
                }
            }
        };
        let way = match &channel {
            Ok(channel) => way_of(channel.as_ref()),
            Err(_) => Way::Nowhere,
        };
        let secrets = match &channel {
            Ok(Some(channel)) => secrets_of(channel),
            // What is not the host of a callback's URL may be secret too.
            Ok(None) => {
                let redactor = Redactor::default();
                learn_url(&redactor, &outgoing.channel);
                redactor
            }
            Err(_) => Redactor::default(),
        };
        let mut mailed = Mailed::default();
        let result = match channel {
            Ok(channel) => {
                self.try_once(&outgoing, payload, channel.as_ref(), &mut mailed, held)
                    .await
            }
            Err(failure) => Some(Err(failure)),
        };
        let result = result.map(|result| with_refused(result, &outgoing.refused));
        let now = self.node.now();
        let sent = match result.map(|sent| sent.map_err(|failure| failure.without(&secrets))) {
            Some(Ok(())) => Sent::Done,
            Some(Err(Failure::Final(why))) => Sent::Failed(why),
            // The node that takes it next sends it, but not again to those who have got it.
            None => Sent::Later(CUT.into(), now),
            Some(Err(Failure::Passing(why, asked))) => {
                match retry_after(outgoing.attempts + 1, self.node.chance.bits()) {
                    Some(wait) => {
                        let wait = wait.max(asked.unwrap_or_default());
                        Sent::Later(why, now + chrono::TimeDelta::from_std(wait).unwrap_or_default())
                    }
                    None => Sent::Failed(format!("{why}; gave up after {} tries", outgoing.attempts + 1)),
                }
            }
        };
        self.record_sent(&outgoing, lease, &sent, hidden(mailed, &secrets), way)
            .await;
    }

    /// Sends, and notes whether the destination is slow. `None`: it was cut.
    async fn try_once(
        &self,
        outgoing: &Outgoing,
        payload: Option<String>,
        channel: Option<&ChannelSpec>,
        mailed: &mut Mailed,
        held: &Held,
    ) -> Option<Result<(), Failure>> {
        let began = Instant::now();
        let delivery = self.deliver(outgoing, payload, channel, mailed);
        let result = held.until_cut(whole(delivery)).await?;
        // Mails to many addresses may take long without any fault of the server.
        let mails = channel.is_some_and(|channel| channel.kind == Some(ChannelKind::Email));
        held.was(began.elapsed() >= SLOW_AFTER && (result.is_err() || !mails));
        Some(result)
    }

    async fn record_sent(&self, outgoing: &Outgoing, lease: i64, sent: &Sent, mailed: Mailed, way: Way) {
        let counts = &self.counts;
        match sent {
            Sent::Done => counts.sent(way),
            Sent::Failed(why) => {
                counts.try_failed(way);
                counts.failed(way);
                tracing::warn!(notification = %outgoing.id, channel = shown(&outgoing.channel), why, "a notification failed \
                    and is not retried");
            }
            Sent::Later(why, at) => {
                counts.try_failed(way);
                tracing::info!(notification = %outgoing.id, channel = shown(&outgoing.channel), why, again = %at, "a notification failed \
                    and is retried later");
            }
        }
        for attempt in 1..=RECORD_TRIES_MAX {
            let now = self.node.now();
            match self
                .node
                .store
                .finish_outgoing((outgoing.id, outgoing.due_at), lease, sent, &mailed, now)
                .await
            {
                Ok(Recorded::Kept) => return,
                Ok(Recorded::Resent) => {
                    tracing::info!(notification = %outgoing.id, "a notification was to be sent again during a try; it is \
                        sent again now");
                    return;
                }
                Ok(Recorded::TakenOver) => {
                    tracing::info!(notification = %outgoing.id, "another node has taken over a notification; it may \
                        arrive twice");
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), attempt, notification = %outgoing.id, "cannot record the result \
                        of a notification; trying again");
                    tokio::time::sleep(RECORD_AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Sends a test message: once, and the result is recorded whatever it is.
    pub(super) async fn send_test(&self, row: NewNotification, channel: ChannelSpec) -> Result<(), EngineError> {
        let lease = self.node.lease();
        let outgoing = Outgoing {
            id: row.id,
            channel: row.channel.clone(),
            destination: row.destination.clone(),
            event: row.event,
            run: None,
            facts: row.facts.clone(),
            payload: None,
            recipients: row.recipients.clone(),
            settled: Vec::new(),
            refused: Vec::new(),
            attempts: 0,
            // As the database keeps it.
            due_at: to_micros(row.due_at),
        };
        // It is registered as being sent before its row is visible, so that the loop of this node does not take it too. A
        // loop that has read what is in hand before that does not find it due.
        let held = self.in_hand.take(row.id, &row.destination);
        self.node.store.begin_outgoing(row, lease).await?;
        let mut mailed = Mailed::default();
        let secrets = secrets_of(&channel);
        let result = self.try_once(&outgoing, None, Some(&channel), &mut mailed, &held).await;
        let result = result.unwrap_or_else(|| Err(Failure::passing(CUT)));
        let sent = match result.map_err(|failure| failure.without(&secrets)) {
            Ok(()) => Sent::Done,
            Err(Failure::Final(why) | Failure::Passing(why, _)) => Sent::Failed(why),
        };
        let way = way_of(Some(&channel));
        self.record_sent(&outgoing, lease, &sent, hidden(mailed, &secrets), way)
            .await;
        // If somebody has asked for a resend meanwhile, it is due.
        drop(held);
        self.node.signals.raise(Signal::Notices);
        Ok(())
    }

    async fn deliver(
        &self,
        outgoing: &Outgoing,
        payload: Option<String>,
        channel: Option<&ChannelSpec>,
        mailed: &mut Mailed,
    ) -> Result<(), Failure> {
        let Some(channel) = channel else {
            return within(POST_TIMEOUT, async {
                let url = parse(&outgoing.channel)?;
                let body = match payload {
                    Some(payload) => payload,
                    None => self.body_again(outgoing.run).await?,
                };
                let now = self.node.now();
                let headers = headers(outgoing.id, now.timestamp(), None, &body)?;
                let ways = self.ways(false);
                post::post(ways, &url, &headers, Bytes::from(body), now).await.map(drop)
            })
            .await;
        };
        let words = outgoing
            .facts
            .message(channel.subject.as_deref(), channel.text.as_deref());
        match channel.kind {
            None => Err(Failure::Final("the channel has no kind".into())),
            Some(ChannelKind::Email) => {
                let mail = mail::Mail {
                    id: outgoing.id,
                    words: &words,
                    now: self.node.now(),
                };
                let mail_dir = self.config.mail_dir.as_deref();
                let until = Instant::now() + MAILS_TIMEOUT;
                let waiting = outgoing.waiting(&channel.to);
                if waiting.is_empty() && !outgoing.settled.is_empty() {
                    // Addresses that did not have it yet are not in the channel any more.
                    return Ok(());
                }
                mail::send(channel, &mail, &waiting, mailed, mail_dir, until).await
            }
            Some(kind) => {
                let posted = self.deliver_by_post(kind, outgoing, payload, channel, &words);
                within(POST_TIMEOUT, posted).await
            }
        }
    }

    /// The body of a callback to a URL that has no payload any more: an older node keeps none for what it sends again.
    async fn body_again(&self, run: Option<RunId>) -> Result<String, Failure> {
        let body = match run {
            Some(run) => self.payload_again(run).await,
            None => Ok(None),
        };
        match body {
            Ok(Some(body)) => Ok(body),
            Ok(None) => Err(Failure::Final(
                "its run does not exist any more, or has not ended".to_owned(),
            )),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), ?run, "cannot read the run of a callback");
                Err(Failure::passing(format!("the run cannot be read: {error}")))
            }
        }
    }

    fn ways(&self, allow_private: bool) -> post::Ways<'_> {
        let (private, public) = (&self.private, &self.public);
        post::Ways {
            given: if allow_private { private } else { public },
            elsewhere: public,
        }
    }

    async fn deliver_by_post(
        &self,
        kind: ChannelKind,
        outgoing: &Outgoing,
        payload: Option<String>,
        channel: &ChannelSpec,
        words: &Message,
    ) -> Result<(), Failure> {
        let ways = self.ways(channel.allow_private);
        let url = parse(channel.url.as_deref().unwrap_or_default())?;
        let now = self.node.now();
        if kind == ChannelKind::Webhook {
            let body = match (payload, outgoing.event) {
                (Some(run), Event::Callback) => run,
                _ => webhook_body(outgoing, words)
                    .map_err(|error| Failure::Final(format!("the body cannot be written: {error}")))?
                    .to_string(),
            };
            let headers = headers(outgoing.id, now.timestamp(), channel.secret.as_deref(), &body)?;
            return post::post(ways, &url, &headers, Bytes::from(body), now).await.map(drop);
        }
        let (url, body) = chat::request(kind, &url, channel.secret.as_deref(), words, now);
        let body = body.to_string();
        let headers = headers(outgoing.id, now.timestamp(), None, &body)?;
        let answer = post::post(ways, &url, &headers, Bytes::from(body), now).await?;
        if kind == ChannelKind::Slack {
            return Ok(());
        }
        chat::verdict(kind, &answer.json().await?)
    }
}

/// A channel's secrets that receivers get, in the forms in which they may repeat them.
fn secrets_of(channel: &ChannelSpec) -> Redactor {
    let redactor = Redactor::default();
    let secrets = channel.secrets();
    if let Some(url) = secrets.url {
        learn_url(&redactor, &url);
    }
    if let Some(secret) = secrets.secret {
        learn_key(&redactor, &secret);
    }
    if let Some(password) = secrets.password {
        redactor.learn(&password);
        redactor.learn(&STANDARD.encode(&password));
        let username = channel.smtp.as_ref().and_then(|smtp| smtp.username.as_deref());
        redactor.learn(&STANDARD.encode(format!("\0{}\0{password}", username.unwrap_or_default())));
    }
    redactor
}

/// The URL of a robot or of a callback, and the parts of it that make it secret, such as `key` and `access_token`: as they are written, and what
/// they mean.
fn learn_url(redactor: &Redactor, url: &str) {
    redactor.learn(url);
    let Ok(url) = Url::parse(url) else { return };
    // As it is sent, which can be another text than the one that was given.
    redactor.learn(url.as_str());
    let written = url.query().into_iter().flat_map(|query| query.split('&'));
    let written = written.filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
    let segments = url.path_segments().into_iter().flatten();
    let meant = url.query_pairs().map(|(_, value)| value.into_owned());
    segments
        .chain(written)
        .map(str::to_owned)
        .chain(meant)
        .filter(|part| part.len() >= URL_SECRET_BYTES_MIN)
        .for_each(|part| redactor.learn(&part));
}

/// A secret for signatures. That of a webhook is a key in base64 behind a prefix: so also the key alone, with and without
/// its padding, and its bytes, if they are text.
fn learn_key(redactor: &Redactor, secret: &str) {
    redactor.learn(secret);
    let Some(key) = secret.strip_prefix(SECRET_PREFIX) else {
        return;
    };
    redactor.learn(key);
    let bare = key.trim_end_matches('=');
    redactor.learn(bare);
    let bytes = STANDARD_NO_PAD.decode(bare).ok();
    if let Some(text) = bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
        redactor.learn(&text);
    }
}

/// What became of addresses, without secrets: servers may repeat what they were sent.
fn hidden(mailed: Mailed, secrets: &Redactor) -> Mailed {
    Mailed {
        refused: mailed.refused.into_iter().map(|why| secrets.hide(why)).collect(),
        ..mailed
    }
}

/// The result for all recipients, if some of them were refused for good in earlier tries.
fn with_refused(result: Result<(), Failure>, refused: &[String]) -> Result<(), Failure> {
    let earlier = refused.join("; ");
    match result {
        result if refused.is_empty() => result,
        Ok(()) => Err(Failure::Final(earlier)),
        Err(Failure::Final(why)) => Err(Failure::Final(format!("{earlier}; {why}"))),
        Err(failure) => Err(failure),
    }
}

/// How a notification is counted that goes to this channel, or to a URL.
fn way_of(channel: Option<&ChannelSpec>) -> Way {
    match channel {
        None => Way::Callback,
        Some(channel) => channel.kind.map_or(Way::Nowhere, Way::Channel),
    }
}

/// The body of a webhook: type, timestamp and data, as the Standard Webhooks specification recommends.
fn webhook_body(outgoing: &Outgoing, words: &Message) -> serde_json::Result<Value> {
    let mut data = serde_json::to_value(&outgoing.facts)?;
    data["id"] = json!(outgoing.id);
    data["subject"] = json!(words.subject);
    data["text"] = json!(words.text);
    let about = if outgoing.facts.task.is_some() {
        "task"
    } else if outgoing.facts.run.is_some() {
        "run"
    } else if outgoing.facts.group.is_some() {
        "group"
    } else {
        "channel"
    };
    Ok(json!({
        "type": format!("{about}.{}", outgoing.event.as_str()),
        "timestamp": outgoing.facts.at,
        "data": data,
    }))
}

/// The headers of a POST: the id by which a receiver recognises a repeat, and the signature.
fn headers(id: Uuid, timestamp_seconds: i64, secret: Option<&str>, body: &str) -> Result<HeaderMap, Failure> {
    let id = id.to_string();
    let mut pairs = vec![
        ("webhook-id", id.clone()),
        ("webhook-timestamp", timestamp_seconds.to_string()),
        ("idempotency-key", id.clone()),
        ("user-agent", concat!("heddle/", env!("CARGO_PKG_VERSION")).to_owned()),
    ];
    if let Some(secret) = secret {
        let signature = sign::webhook(secret, &id, timestamp_seconds, body)
            .ok_or_else(|| Failure::Final("the secret of the channel is not valid".into()))?;
        pairs.push(("webhook-signature", signature));
    }
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in pairs {
        let value = HeaderValue::from_str(&value).map_err(|error| Failure::Final(error.to_string()))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

async fn within(limit: Duration, sending: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::time::timeout(limit, sending)
        .await
        .unwrap_or_else(|_| Err(Failure::passing(format!("no answer within {} s", limit.as_secs()))))
}

/// A panic in a library is a failed try like others: otherwise its row would belong to this node for ever, and keep a
/// slot of its destination.
async fn whole(sending: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    std::panic::AssertUnwindSafe(sending)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            Err(Failure::passing(
                "internal error while sending; the log of the node has the cause",
            ))
        })
}

fn parse(url: &str) -> Result<Url, Failure> {
    Url::parse(url).map_err(|error| Failure::Final(format!("this is not a valid URL: {error}")))
}

/// Whether a callback goes to a URL, not to a channel.
pub(super) fn is_url(target: &str) -> bool {
    target.contains("://")
}

/// A target for the log: of a URL, only its host.
fn shown(target: &str) -> String {
    if is_url(target) {
        let destination = heddle_store::notification::destination_of_url(target);
        destination.trim_start_matches("://").to_owned()
    } else {
        target.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_receivers_repeat_is_masked() {
        let channel: ChannelSpec = serde_json::from_value(json!({
            "kind": "slack", "url": "https://hooks.slack.com/services/T000/B000/XXXXXXXXXXXXXXXX"
        }))
        .unwrap();
        let hidden = Failure::Final("404: no such hook: /services/T000/B000/XXXXXXXXXXXXXXXX".into());
        let Failure::Final(said) = hidden.without(&secrets_of(&channel)) else {
            panic!("it stays final")
        };
        assert_eq!(said, "404: no such hook: /services/T000/B000/***");
        let channel: ChannelSpec = serde_json::from_value(json!({
            "kind": "email", "to": ["a@example.com"],
            "smtp": {"host": "mail", "username": "me", "password": "open sesame"}
        }))
        .unwrap();
        let said = format!("535 bad: open sesame, {}", STANDARD.encode("\0me\0open sesame"));
        let hidden = Failure::passing(said).without(&secrets_of(&channel));
        assert_eq!(hidden, Failure::passing("535 bad: ***, ***"));
    }

    #[test]
    fn the_parts_that_make_a_secret_are_masked_alone() {
        let check = |channel: Value, said: &str, shown: &str| {
            let channel: ChannelSpec = serde_json::from_value(channel).unwrap();
            let hidden = Failure::passing(said).without(&secrets_of(&channel));
            assert_eq!(hidden, Failure::passing(shown), "{said}");
        };
        let hook = json!({"kind": "webhook", "url": "https://a.example.com/", "secret": "whsec_b3BlbiBzZXNhbWU="});
        check(
            hook.clone(),
            "not signed with whsec_b3BlbiBzZXNhbWU=",
            "not signed with ***",
        );
        check(hook.clone(), "the key b3BlbiBzZXNhbWU= differs", "the key *** differs");
        check(hook.clone(), "the key b3BlbiBzZXNhbWU differs", "the key *** differs");
        check(hook, "the key is `open sesame`", "the key is `***`");
        // Its bytes are no text.
        let bytes = json!({"kind": "webhook", "url": "https://a.example.com/", "secret": "whsec_//79/P7//v//"});
        check(bytes, "not //79/P7//v//", "not ***");
        let robot = json!({"kind": "wecom", "url": "https://a.example.com/send?key=693axxx6-7aoc&lang=en"});
        check(robot, "no robot 693axxx6-7aoc, lang en", "no robot ***, lang en");
        let robot = json!({"kind": "dingtalk", "url": "https://a.example.com/send?access_token=a%2Bb%2Bc%2Bd%2Be", "secret": "SEC0123"});
        check(
            robot,
            "a+b+c+d+e (access_token=a%2Bb%2Bc%2Bd%2Be) with SEC0123",
            "*** (access_token=***) with ***",
        );
    }

    #[test]
    fn what_was_refused_earlier_is_not_forgotten() {
        let refused = ["a@example.com: 550".to_owned()];
        let last = |why: &str| Err(Failure::Final(why.to_owned()));
        assert_eq!(with_refused(Ok(()), &[]), Ok(()));
        assert_eq!(with_refused(Ok(()), &refused), last("a@example.com: 550"));
        assert_eq!(
            with_refused(last("b: 551"), &refused),
            last("a@example.com: 550; b: 551")
        );
        let later = Err(Failure::passing("c: 451"));
        assert_eq!(with_refused(later.clone(), &refused), later);
    }

    #[test]
    fn logs_name_hosts_only() {
        assert_eq!(
            shown("https://me:secret@Example.com:9/hook?key=secret"),
            "example.com:9"
        );
        assert_eq!(shown("ops"), "ops");
    }

    #[tokio::test]
    async fn a_panic_is_a_failed_try() {
        let panics = async {
            let nobody: Option<()> = None;
            nobody.ok_or("nothing").expect("a panic on purpose");
            Ok(())
        };
        assert!(matches!(whole(panics).await, Err(Failure::Passing(..))));
        assert_eq!(whole(async { Ok(()) }).await, Ok(()));
    }
}
