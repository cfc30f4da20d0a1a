//! Channels and notifications.

use super::{Schemas, array, duration, flag, integer, list_of, named, nullable, object, one_of, text, time, uuid};

pub(super) fn notify(all: &mut Schemas) {
    let kind = || one_of(&["email", "webhook", "slack", "feishu", "dingtalk", "wecom"]);
    let smtp = |secret: bool| {
        let mut fields = vec![
            ("host", text()),
            ("port?", integer()),
            ("tls?", one_of(&["none", "starttls", "implicit"])),
            ("username?", text()),
            ("ca?", text()),
        ];
        if secret {
            fields.push(("password?", text()));
        }
        object(&fields)
    };
    let fields = |secret: bool| {
        let mut fields = vec![
            ("kind", kind()),
            ("smtp?", smtp(secret)),
            ("from?", text()),
            ("to?", array(text())),
            ("url?", text()),
            ("allow_private?", flag()),
            ("subject?", text()),
            ("text?", text()),
            ("burst?", integer()),
            ("digest_every?", duration()),
        ];
        if secret {
            fields.push(("secret?", text()));
        }
        fields
    };
    all.insert("ChannelSpec", object(&fields(true)));
    all.insert("Channel", named(fields(false)));
    all.insert("ChannelList", list_of(super::to("Channel")));
    let entry = object(&[
        ("at", text()),
        ("run", nullable(text())),
        ("task", nullable(text())),
        ("error", nullable(text())),
    ]);
    let notification = object(&[
        ("id", uuid()),
        ("channel", text()),
        ("event", text()),
        ("group", nullable(text())),
        ("run", nullable(uuid())),
        ("task", nullable(text())),
        ("subject", text()),
        ("to", array(text())),
        ("count", integer()),
        ("state", one_of(&["pending", "sent", "failed"])),
        ("attempts", integer()),
        ("last_error", nullable(text())),
        ("created_at", time()),
        ("sent_at", nullable(time())),
        ("next_attempt_at", nullable(time())),
        ("text?", text()),
        ("entries?", array(entry)),
    ]);
    all.insert("Notification", notification);
    all.insert("NotificationList", list_of(super::to("Notification")));
}
