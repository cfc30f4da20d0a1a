//! The robots of chats: the body that each expects, and how each says that it accepted a message.
//!
//! | kind | body | signed | accepted |
//! |---|---|---|---|
//! | `slack` | `{text}` | no: the URL is the secret | 200 `ok` |
//! | `feishu` | `{timestamp, sign, msg_type: "text", content: {text}}` | in the body | `{code: 0}` |
//! | `dingtalk` | `{msgtype: "text", text: {content}}` | in the URL | `{errcode: 0}` |
//! | `wecom` | `{msgtype: "text", text: {content}}` | no | `{errcode: 0}` |
//!
//! All except Slack answer 200, even if they refuse a message.

use heddle_domain::Time;
use heddle_domain::notify::channel::ChannelKind;
use heddle_domain::notify::message::{Message, bounded};
use reqwest::Url;
use serde_json::{Value, json};

use super::failure::Failure;
use super::sign;

/// The maximum bytes of text: WeCom documents 2,048, Feishu 20 KB for the whole body, DingTalk 20,000 bytes; Slack cuts
/// at 40,000 characters.
fn text_max_bytes(kind: ChannelKind) -> usize {
    match kind {
        ChannelKind::Wecom => 2_048,
        ChannelKind::Feishu | ChannelKind::Dingtalk => 15_000,
        _ => 30_000,
    }
}

/// The address and the body of a message.
pub(super) fn request(
    kind: ChannelKind,
    url: &Url,
    secret: Option<&str>,
    message: &Message,
    now: Time,
) -> (Url, Value) {
    let max = text_max_bytes(kind);
    let whole = if message.text.starts_with(&message.subject) {
        message.text.clone()
    } else {
        format!("{}\n\n{}", message.subject, message.text)
    };
    let text = bounded(whole.trim_end(), max);
    let mut url = url.clone();
    let body = match kind {
        ChannelKind::Feishu => {
            let mut body = json!({"msg_type": "text", "content": {"text": text}});
            if let Some(secret) = secret {
                let timestamp = now.timestamp();
                body["timestamp"] = json!(timestamp.to_string());
                body["sign"] = json!(sign::feishu(secret, timestamp));
            }
            body
        }
        ChannelKind::Dingtalk => {
            if let Some(secret) = secret {
                let timestamp = now.timestamp_millis();
                url.query_pairs_mut()
                    .append_pair("timestamp", &timestamp.to_string())
                    .append_pair("sign", &sign::dingtalk(secret, timestamp));
            }
            json!({"msgtype": "text", "text": {"content": text}})
        }
        ChannelKind::Wecom => json!({"msgtype": "text", "text": {"content": text}}),
        // `&`, `<` and `>` begin links and mentions: a log line must not call the whole channel.
        _ => {
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            json!({"text": bounded(&text, 2 * max)})
        }
    };
    (url, body)
}

/// Whether the robot accepted the message, from an answer with a 2xx status.
pub(super) fn verdict(kind: ChannelKind, answer: &Value) -> Result<(), Failure> {
    let (code, said) = match kind {
        ChannelKind::Feishu => {
            let code = answer.get("code").or_else(|| answer.get("StatusCode"));
            (code, answer.get("msg").or_else(|| answer.get("StatusMessage")))
        }
        _ => (answer.get("errcode"), answer.get("errmsg")),
    };
    match code.and_then(Value::as_i64) {
        Some(0) => Ok(()),
        Some(code) => {
            let said = said.and_then(Value::as_str).unwrap_or_default();
            Err(Failure::passing(format!(
                "the chat robot refused the message: {code} {said}"
            )))
        }
        None => Err(Failure::passing(
            "the answer is not from a chat robot: it has no code".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: ChannelKind, secret: Option<&str>, text: &str) -> (String, Value) {
        let message = Message {
            subject: "s".into(),
            text: text.into(),
        };
        let url = Url::parse("https://robot.example/send?access_token=a").unwrap();
        let now = Time::from_timestamp_millis(1_577_262_236_757).unwrap();
        let (url, body) = request(kind, &url, secret, &message, now);
        (url.to_string(), body)
    }

    #[test]
    fn bodies() {
        let plain = "https://robot.example/send?access_token=a";
        assert_eq!(
            made(ChannelKind::Slack, None, "<!channel> & co"),
            (plain.into(), json!({"text": "s\n\n&lt;!channel&gt; &amp; co"}),)
        );
        assert_eq!(
            made(ChannelKind::Wecom, None, "t"),
            (plain.into(), json!({"msgtype": "text", "text": {"content": "s\n\nt"}}),)
        );
        assert_eq!(
            made(ChannelKind::Feishu, None, "t").1,
            json!({"msg_type": "text", "content": {"text": "s\n\nt"}})
        );
        let signed = made(ChannelKind::Feishu, Some("demo"), "t").1;
        assert_eq!(signed["timestamp"], "1577262236");
        assert_eq!(signed["sign"], sign::feishu("demo", 1_577_262_236));
        let (url, body) = made(ChannelKind::Dingtalk, Some("this is secret"), "t");
        let sign = sign::dingtalk("this is secret", 1_577_262_236_757);
        let url = Url::parse(&url).unwrap();
        let query: Vec<_> = url
            .query_pairs()
            .map(|(k, v)| (k.into_owned(), v.into_owned()))
            .collect();
        assert_eq!(
            query[1..],
            [("timestamp".into(), "1577262236757".into()), ("sign".into(), sign)]
        );
        assert_eq!(body, json!({"msgtype": "text", "text": {"content": "s\n\nt"}}));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let body = made(ChannelKind::Wecom, None, &"日".repeat(5_000)).1;
        assert!(body["text"]["content"].as_str().unwrap().len() <= 2_048);
    }

    #[test]
    fn verdicts() {
        assert!(verdict(ChannelKind::Feishu, &json!({"code": 0, "msg": "success"})).is_ok());
        assert!(verdict(ChannelKind::Feishu, &json!({"StatusCode": 0})).is_ok());
        assert!(verdict(ChannelKind::Dingtalk, &json!({"errcode": 0, "errmsg": "ok"})).is_ok());
        let refused = verdict(
            ChannelKind::Dingtalk,
            &json!({"errcode": 310000, "errmsg": "sign not match"}),
        );
        assert!(format!("{refused:?}").contains("310000 sign not match"));
        assert!(verdict(ChannelKind::Wecom, &json!("<html>")).is_err());
    }
}
