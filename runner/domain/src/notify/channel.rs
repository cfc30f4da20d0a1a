//! A channel as people write it: its target, its secret parts, and its checks.
//!
//! Secret parts are never returned: the API answers with [`ChannelSpec::shown`], and [`ChannelSpec::complete`] takes
//! parts that were left out, or given as they were shown, from the stored channel.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::message;
use super::rules::Reach;
use super::storm::{BURST_DEFAULT, BURST_MAX, EVERY, EVERY_DEFAULT, Pace, SCRIPT_BURST_DEFAULT};
use crate::fault::one_of;
use crate::{Faults, Span};

/// How many addresses a channel, and how many channels and addresses a rule may have.
pub const RECIPIENTS_MAX: usize = 100;
/// How many bytes a secret, a password, a URL or a certificate of a channel may have.
pub const VALUE_MAX_BYTES: usize = 16 * 1024;
/// How many bytes a template of a channel may have.
pub const TEMPLATE_MAX_BYTES: usize = 16 * 1024;
/// Replaces the secret part of a chat robot's address.
const HIDDEN: &str = "/…";
/// The beginning of a Standard Webhooks secret.
pub const SECRET_PREFIX: &str = "whsec_";

/// The kind of a channel: how its messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChannelKind {
    /// E-mail, sent by SMTP.
    Email,
    /// A POST request with JSON, signed according to the Standard Webhooks specification.
    Webhook,
    /// A Slack incoming webhook.
    Slack,
    /// A Feishu (Lark) custom bot.
    Feishu,
    /// A DingTalk custom robot.
    Dingtalk,
    /// A WeCom group robot.
    Wecom,
}

impl ChannelKind {
    /// All kinds, in the order in which an error lists them.
    pub const ALL: [Self; 6] = [
        Self::Email,
        Self::Webhook,
        Self::Slack,
        Self::Feishu,
        Self::Dingtalk,
        Self::Wecom,
    ];

    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Webhook => "webhook",
            Self::Slack => "slack",
            Self::Feishu => "feishu",
            Self::Dingtalk => "dingtalk",
            Self::Wecom => "wecom",
        }
    }

    /// The kind with this name in the API.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Whether it is a chat's robot: anybody who knows its URL can send through it.
    pub fn is_chat(self) -> bool {
        !matches!(self, Self::Email | Self::Webhook)
    }
}

/// How the connection to the mail server is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SmtpTls {
    /// The connection is not encrypted.
    None,
    /// STARTTLS. If the server does not offer it, no mail is sent.
    #[default]
    Starttls,
    /// TLS from the first byte.
    Implicit,
}

/// The mail server of an email channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SmtpSpec {
    /// The host name or IP address, without a port.
    pub host: String,
    /// The port, 1 to 65535. Default: 25 for `none`, 587 for `starttls`, 465 for `implicit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// The encryption. Default: `starttls`.
    pub tls: SmtpTls,
    /// The user name, together with `password`. Default: no login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password. Write-only: it is never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// One or more certificates in PEM format that are trusted in addition to those of the system, for a private mail
    /// server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

impl SmtpSpec {
    /// The port that is set, or the default port of `tls`.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            SmtpTls::None => 25,
            SmtpTls::Starttls => 587,
            SmtpTls::Implicit => 465,
        })
    }
}

/// The spec of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelSpec {
    /// The kind of channel. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ChannelKind>,
    /// For `email`: the mail server. Required, except in `heddle dev`, which then writes mails into files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smtp: Option<SmtpSpec>,
    /// For `email`: the sender, `name@example.com` or `Name <name@example.com>`. Required, except in `heddle dev`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// For `email`: the recipients of notifications that name the channel, at most 100. Required, except in `heddle dev`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// For all other kinds: the URL, http or https. For chat robots, only its host is shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The secret with which messages are signed. Write-only: it is never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Whether `url` may have a private address. Default: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_private: bool,
    /// A template for the subject. Default: Heddle's own text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// A template for the text. Default: Heddle's own text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The number of events of a group that are sent one by one before they are combined, at most 1,000,000. Default:
    /// 5; for messages of scripts 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// How often a combined notification is sent, 1s to 1d. Default: 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest_every: Option<Span>,
}

/// The secret parts of a channel; stored encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelSecrets {
    /// The URL of a chat robot: anybody who knows it can send messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The key with which messages are signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The password for the mail server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

impl ChannelSecrets {
    /// Which of these parts are not those of the stored channel. Only the parts that one of the two kinds has are named.
    /// `kept`: those of the stored channel; `None`: they cannot be decrypted, so all of them count as changed.
    pub fn changed(&self, kinds: [Option<ChannelKind>; 2], kept: Option<&Self>) -> Vec<(&'static str, bool)> {
        let known = |has: fn(ChannelKind) -> bool| kinds.into_iter().flatten().any(has);
        let differs = |part: fn(&Self) -> Option<&str>| kept.is_none_or(|kept| part(kept) != part(self));
        [
            ("url", known(ChannelKind::is_chat), differs(|all| all.url.as_deref())),
            (
                "secret",
                known(|kind| kind != ChannelKind::Email),
                differs(|all| all.secret.as_deref()),
            ),
            (
                "password",
                known(|kind| kind == ChannelKind::Email),
                differs(|all| all.password.as_deref()),
            ),
        ]
        .into_iter()
        .filter_map(|(part, known, differs)| known.then_some((part, differs)))
        .collect()
    }
}

impl ChannelSpec {
    /// How many messages it accepts from an event's rules, or from scripts.
    pub fn pace(&self, by_script: bool) -> Pace {
        let default = if by_script { SCRIPT_BURST_DEFAULT } else { BURST_DEFAULT };
        Pace {
            burst: self.burst.unwrap_or(default),
            every: self.digest_every.map_or(EVERY_DEFAULT, |span| span.std()),
        }
    }

    pub fn reach(&self) -> Reach {
        match self.kind {
            Some(ChannelKind::Email) => Reach::Mail(self.to.clone()),
            _ => Reach::Channel,
        }
    }

    /// The spec without its secret parts.
    pub fn shown(&self) -> Self {
        let mut shown = self.clone();
        shown.secret = None;
        if let Some(smtp) = &mut shown.smtp {
            smtp.password = None;
        }
        if self.kind.is_some_and(ChannelKind::is_chat) {
            shown.url = self.url.as_deref().map(host_only);
        }
        shown
    }

    /// The parts that are stored encrypted, and never shown: the URL of a chat, the secret for signatures, the
    /// password of SMTP.
    pub fn secrets(&self) -> ChannelSecrets {
        ChannelSecrets {
            url: self.url.clone().filter(|_| self.kind.is_some_and(ChannelKind::is_chat)),
            secret: self.secret.clone(),
            password: self.smtp.as_ref().and_then(|smtp| smtp.password.clone()),
        }
    }

    /// The shown spec, with its secret parts restored.
    pub fn with_secrets(mut self, secrets: ChannelSecrets) -> Self {
        if secrets.url.is_some() {
            self.url = secrets.url;
        }
        self.secret = secrets.secret;
        if let Some(smtp) = &mut self.smtp {
            smtp.password = secrets.password;
        }
        self
    }

    /// Takes parts that were left out, or given as they are shown, from the stored channel. A password is sent to no
    /// other server than the one for which it was given; an empty secret means none.
    pub fn complete(mut self, kept: Option<&Self>) -> Self {
        if let Some(kept) = kept {
            let takes = self.takes_of(kept);
            if takes.url {
                self.url.clone_from(&kept.url);
            }
            if takes.secret {
                self.secret.clone_from(&kept.secret);
            }
            if let (true, Some(smtp), Some(kept)) = (takes.password, &mut self.smtp, &kept.smtp) {
                smtp.password.clone_from(&kept.password);
            }
        }
        self.secret = self.secret.filter(|secret| !secret.is_empty());
        if let Some(smtp) = &mut self.smtp {
            smtp.password = smtp.password.take().filter(|password| !password.is_empty());
        }
        self
    }

    /// The secret parts that it would [take](Self::complete) from the stored channel. If only the shown parts of that
    /// can be read, these secret parts have to be given again.
    pub fn lost(&self, shown: &Self) -> Result<(), Faults> {
        let takes = self.takes_of(shown);
        let is_email = self.kind == Some(ChannelKind::Email);
        let mut faults = Faults::default();
        for (pointer, lost, or) in [
            ("/url", takes.url && self.kind.is_some_and(ChannelKind::is_chat), ""),
            ("/secret", takes.secret && !is_email, ", or \"\" for none"),
            ("/smtp/password", takes.password, ", or \"\" for none"),
        ] {
            if lost {
                faults.add(pointer, format!("the kept value cannot be decrypted; give a value{or}"));
            }
        }
        faults.or(())
    }

    /// The parts that are left out, or given as they are shown, and can be taken from the stored channel.
    fn takes_of(&self, kept: &Self) -> Takes {
        if self.kind != kept.kind {
            return Takes::default();
        }
        let password = match (&self.smtp, &kept.smtp) {
            (Some(smtp), Some(kept)) => {
                smtp.password.is_none()
                    && (&smtp.host, smtp.port(), smtp.tls, &smtp.username)
                        == (&kept.host, kept.port(), kept.tls, &kept.username)
            }
            _ => false,
        };
        Takes {
            url: self.url.is_none() || self.url == kept.shown().url,
            secret: self.secret.is_none(),
            password,
        }
    }

    /// Checks that mails can be sent through it: the sender, the recipients and the server. Reports what is missing,
    /// and all other errors.
    pub fn check_mail_server(&self) -> Result<(), Faults> {
        if self.kind != Some(ChannelKind::Email) {
            return Ok(());
        }
        let mut faults = Faults::default();
        for (pointer, missing) in [
            ("/smtp", self.smtp.is_none()),
            ("/from", self.from.is_none()),
            ("/to", self.to.is_empty()),
        ] {
            if missing {
                let detail = format!("an email channel needs `{}`", pointer.trim_start_matches('/'));
                faults.add(pointer, detail);
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        if let Err(more) = self.check() {
            faults.0.extend(more.0);
        }
        Err(faults)
    }

    /// Its errors, when it is complete. The certificates in `smtp.ca` are read by those who send mails.
    pub fn check(&self) -> Result<(), Faults> {
        let mut faults = Faults::default();
        let Some(kind) = self.kind else {
            let kinds = one_of(&ChannelKind::ALL.map(ChannelKind::as_str));
            faults.add("/kind", format!("a channel needs a `kind`: {kinds}"));
            return Err(faults);
        };
        if kind == ChannelKind::Email {
            self.check_email(&mut faults);
        } else {
            self.check_url(kind, &mut faults);
        }
        if self.burst.is_some_and(|burst| burst > BURST_MAX) {
            faults.add("/burst", format!("must be at most {BURST_MAX}"));
        }
        if self.digest_every.is_some_and(|every| !EVERY.contains(&every.std())) {
            faults.add("/digest_every", "must be from 1s to 1d");
        }
        for (pointer, template) in [("/subject", &self.subject), ("/text", &self.text)] {
            let Some(template) = template else { continue };
            if template.len() > TEMPLATE_MAX_BYTES {
                faults.add(
                    pointer,
                    format!("a template must have at most {TEMPLATE_MAX_BYTES} bytes"),
                );
            } else if let Err(error) = message::check_template(template) {
                faults.add(pointer, format!("invalid template: {error}"));
            }
        }
        faults.or(())
    }

    fn check_email(&self, faults: &mut Faults) {
        let refused = [
            ("/url", self.url.is_some()),
            ("/secret", self.secret.is_some()),
            ("/allow_private", self.allow_private),
        ];
        for (pointer, _) in refused.into_iter().filter(|(_, given)| *given) {
            faults.add(
                pointer,
                "an email channel cannot have this field; it has `smtp`, `from` and `to`",
            );
        }
        if let Some(from) = &self.from
            && !is_mailbox(from)
        {
            faults.add(
                "/from",
                "this is not a valid e-mail address; write for example `a@example.com` or `Name <a@example.com>`",
            );
        }
        if self.to.len() > RECIPIENTS_MAX {
            faults.add("/to", format!("there must be at most {RECIPIENTS_MAX} addresses"));
        }
        let mut known = BTreeSet::new();
        for (index, address) in self.to.iter().enumerate() {
            if !known.insert(address.to_lowercase()) {
                let detail = "this address is in the list twice; each address gets one mail";
                faults.add(format!("/to/{index}"), detail);
            } else if !is_address(address) {
                let shown: String = address.chars().filter(|c| !c.is_control()).take(100).collect();
                faults.add(
                    format!("/to/{index}"),
                    format!("`{shown}` is not a valid e-mail address"),
                );
            }
        }
        let Some(smtp) = &self.smtp else { return };
        if smtp.host.len() > 253 || Host::parse(&smtp.host).is_err() {
            faults.add(
                "/smtp/host",
                "this is not a valid host; write a host name or an IP address, without a port",
            );
        }
        if smtp.port == Some(0) {
            faults.add("/smtp/port", "a port must be from 1 to 65535");
        }
        if smtp.username.is_some() != smtp.password.is_some() {
            faults.add(
                "/smtp/password",
                "give both `username` and `password`, or neither; after a change of the server, give the password \
                again",
            );
        }
        for (pointer, value) in [
            ("/smtp/username", &smtp.username),
            ("/smtp/password", &smtp.password),
            ("/smtp/ca", &smtp.ca),
        ] {
            if value.as_ref().is_some_and(|value| value.len() > VALUE_MAX_BYTES) {
                faults.add(pointer, format!("must have at most {VALUE_MAX_BYTES} bytes"));
            }
        }
    }

    fn check_url(&self, kind: ChannelKind, faults: &mut Faults) {
        let refused = [
            ("/smtp", self.smtp.is_some()),
            ("/from", self.from.is_some()),
            ("/to", !self.to.is_empty()),
        ];
        for (pointer, _) in refused.into_iter().filter(|(_, given)| *given) {
            faults.add(
                pointer,
                format!("a {} channel cannot have this field; it has a `url`", kind.as_str()),
            );
        }
        match self.url.as_deref() {
            None => faults.add("/url", format!("a {} channel needs a `url`", kind.as_str())),
            Some(url) => {
                if url.ends_with(HIDDEN) {
                    // A masked URL of the same kind and host was replaced by the stored one.
                    faults.add(
                        "/url",
                        "this URL is masked; it stands only for the stored URL of the same kind and host, so give the \
                        whole URL",
                    );
                } else if let Err(detail) = check_http_url(url) {
                    faults.add("/url", detail);
                }
            }
        }
        let Some(secret) = &self.secret else { return };
        if secret.len() > VALUE_MAX_BYTES {
            faults.add("/secret", format!("must have at most {VALUE_MAX_BYTES} bytes"));
        } else if kind == ChannelKind::Webhook && !is_webhook_secret(secret) {
            faults.add(
                "/secret",
                format!(
                    "the secret of a webhook must be `{SECRET_PREFIX}` followed by base64, see the Standard Webhooks \
                    specification"
                ),
            );
        } else if secret.chars().any(char::is_control) {
            faults.add("/secret", "a secret must not contain control characters");
        }
    }
}

/// Whether messages may be posted to this URL, as far as its text shows that.
pub fn check_http_url(text: &str) -> Result<Url, String> {
    if text.len() > VALUE_MAX_BYTES {
        return Err(format!("a URL must have at most {VALUE_MAX_BYTES} bytes"));
    }
    // The parser removes line breaks and tabs, but the text is stored and shown.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("a URL must not contain spaces, line breaks or other control characters".into());
    }
    let url = Url::parse(text).map_err(|error| format!("this is not a valid URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err("a URL must begin with http:// or https:// and contain a host".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL must not contain a user name or password, because it is shown and written to logs".into());
    }
    Ok(url)
}

fn is_webhook_secret(secret: &str) -> bool {
    let Some(key) = secret.strip_prefix(SECRET_PREFIX) else {
        return false;
    };
    let digits = key.trim_end_matches('=');
    let padding = key.len() - digits.len();
    !digits.is_empty()
        && digits.len() % 4 != 1
        && (padding == 0 || key.len().is_multiple_of(4))
        && padding <= 2
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

/// The parts of a channel that are taken from the stored one.
#[derive(Default)]
struct Takes {
    url: bool,
    secret: bool,
    password: bool,
}

fn host_only(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => format!("{}{HIDDEN}", url.origin().ascii_serialization()),
        Err(_) => HIDDEN.to_owned(),
    }
}

/// The target of a notification as people see it: the name of a channel, or of a URL only its host. The rest of a URL may
/// be secret, as that of a chat robot.
pub fn shown_target(target: &str) -> String {
    match target.contains("://") {
        true => host_only(target),
        false => target.to_owned(),
    }
}

/// An error about a target, with the target as people see it.
pub fn shown_error(error: &str, target: &str) -> String {
    match target.contains("://") {
        true => error.replace(target, &host_only(target)),
        false => error.to_owned(),
    }
}

/// Whether this is a plain e-mail address: nothing that could mean something in a header, no quoting, no comments, no IP
/// address instead of a domain.
pub fn is_address(address: &str) -> bool {
    let Some((local, host)) = address.rsplit_once('@') else {
        return false;
    };
    let plain = |text: &str| {
        !text.is_empty()
            && !text
                .chars()
                .any(|c| c.is_whitespace() || c.is_control() || "<>()[]\\,;:\"@".contains(c))
    };
    address.len() <= 254
        && local.len() <= 64
        && plain(local)
        && !local.starts_with('.')
        && !local.ends_with('.')
        && !local.contains("..")
        && plain(host)
        && host.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.chars().all(|c| c.is_alphanumeric() || c == '-')
        })
}

/// Whether this is an address, with or without a name before it.
pub fn is_mailbox(text: &str) -> bool {
    if text.chars().any(char::is_control) || text.len() > 1_000 {
        return false;
    }
    is_address(mailbox_parts(text).1)
}

/// The name, if there is one, and the address of `Name <a@example.com>` or `a@example.com`.
pub fn mailbox_parts(text: &str) -> (Option<&str>, &str) {
    match text.trim().strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => (
            Some(name.trim().trim_matches('"')).filter(|name| !name.is_empty()),
            address,
        ),
        None => (None, text.trim()),
    }
}

#[cfg(test)]
mod tests;
