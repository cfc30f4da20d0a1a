//! Signatures: of webhooks as the Standard Webhooks specification has them, of chats as their makers have.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use heddle_domain::notify::channel::SECRET_PREFIX;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

fn hmac_base64(key: &[u8], message: &[u8]) -> String {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return String::new();
    };
    mac.update(message);
    STANDARD.encode(mac.finalize().into_bytes())
}

/// The value of `webhook-signature`: `v1,` and the HMAC of `id.timestamp.body` under the secret's bytes. `None`: the
/// secret is invalid (which is checked when a channel is put).
///
/// <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>
pub(super) fn webhook(secret: &str, id: &str, timestamp_seconds: i64, body: &str) -> Option<String> {
    let key = secret.strip_prefix(SECRET_PREFIX)?;
    let key = STANDARD_NO_PAD.decode(key.trim_end_matches('=')).ok()?;
    let signed = format!("{id}.{timestamp_seconds}.{body}");
    Some(format!("v1,{}", hmac_base64(&key, signed.as_bytes())))
}

/// Feishu's `sign`: the HMAC of an empty text, with timestamp and secret as the key.
///
/// <https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot>
pub(super) fn feishu(secret: &str, timestamp_seconds: i64) -> String {
    hmac_base64(format!("{timestamp_seconds}\n{secret}").as_bytes(), b"")
}

/// DingTalk's `sign`, before it is encoded for the URL: the HMAC of timestamp and secret, under the secret.
///
/// <https://open.dingtalk.com/document/robots/customize-robot-security-settings>
pub(super) fn dingtalk(secret: &str, timestamp_millis: i64) -> String {
    hmac_base64(secret.as_bytes(), format!("{timestamp_millis}\n{secret}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of the specification's reference libraries.
    #[test]
    fn standard_webhooks() {
        let sign = |secret| {
            webhook(
                secret,
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
            )
        };
        let expect = Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".to_owned());
        assert_eq!(sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), expect);
        assert_eq!(sign("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), None);
    }

    #[test]
    fn padded_and_unpadded_secrets_are_the_same() {
        let sign = |secret| webhook(secret, "id", 1, "{}");
        assert_eq!(sign("whsec_c2VjcmV0IQ=="), sign("whsec_c2VjcmV0IQ"));
        assert!(sign("whsec_c2VjcmV0IQ==").is_some());
    }

    /// The results of the Python code in Feishu's and DingTalk's documentation.
    #[test]
    fn chats() {
        assert_eq!(
            feishu("demo", 1_599_360_473),
            "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8="
        );
        assert_eq!(
            dingtalk("this is secret", 1_577_262_236_757),
            "hmPWwU+7lVdm3ZZz0r9tSfx0L4Q26jWOZr9+Gs6EZQM="
        );
    }
}
