//! Tokens of devices: JWTs (RFC 7519) signed with HMAC-SHA-256 (`HS256`, RFC 7518) under a key of the configuration.
//!
//! Whoever has the key makes them (the backend of a fleet; `heddle token sign` by hand): `sub` is the uid that may poll,
//! `exp` the end, at most [`DEVICE_TOKEN_MAX`] ahead, `nbf` the beginning if there is one. Nothing is stored and nothing
//! can be revoked, hence the short life. Only `HS256` is taken, whatever a header says, and signatures are compared in
//! a time that does not depend on where they differ.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_domain::Time;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The shortest key, in bytes: as long as the hash (RFC 2104 advises no less).
pub const DEVICE_KEY_BYTES_MIN: usize = 32;

/// How far ahead a token may end.
pub const DEVICE_TOKEN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The longest signed token that is looked at, in bytes.
const JWT_BYTES_MAX: usize = 4_096;

/// The longest uid, in characters; as in audiences.
const UID_CHARS_MAX: usize = 250;

/// Makes and checks tokens that are signed for one uid.
pub struct Signer {
    /// The first one signs; all of them check, so that a fleet can be moved from one key to the next.
    keys: Vec<Hmac<Sha256>>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct JwtHeader {
    alg: String,
}

#[derive(Serialize, Deserialize)]
struct JwtClaims {
    sub: String,
    exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
}

impl Signer {
    /// Signs with the first key and checks with all of them; `None`: there is no key, or one has fewer than
    /// [`DEVICE_KEY_BYTES_MIN`] bytes.
    pub fn new(keys: &[Vec<u8>]) -> Option<Self> {
        let keys = keys
            .iter()
            .map(|key| {
                (key.len() >= DEVICE_KEY_BYTES_MIN)
                    .then(|| <Hmac<Sha256> as KeyInit>::new_from_slice(key).ok())
                    .flatten()
            })
            .collect::<Option<Vec<_>>>()?;
        (!keys.is_empty()).then_some(Self { keys })
    }

    /// A token for one uid.
    pub fn sign(&self, uid: &str, expires_at: Time) -> String {
        let claims = JwtClaims {
            sub: uid.into(),
            exp: expires_at.timestamp(),
            nbf: None,
        };
        let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap_or_default());
        let signed = format!("{header}.{claims}");
        let signature = self.keys[0].clone().chain_update(signed.as_bytes()).finalize();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.into_bytes()))
    }

    /// The uid of a token that is in force, and until when it is.
    pub fn verify(&self, token: &str, now: Time) -> Option<(String, Time)> {
        if token.len() > JWT_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        // `verify_slice` takes the same time wherever the two differ.
        let genuine = self.keys.iter().any(|key| {
            key.clone()
                .chain_update(signed.as_bytes())
                .verify_slice(&signature)
                .is_ok()
        });
        if !genuine {
            return None;
        }
        let header: JwtHeader = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        let claims: JwtClaims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        let expires_at = Time::from_timestamp(claims.exp, 0)?;
        let in_force = header.alg == "HS256"
            && expires_at > now
            && expires_at <= now + DEVICE_TOKEN_MAX
            && claims.nbf.is_none_or(|nbf| nbf <= now.timestamp());
        let named = !claims.sub.is_empty()
            && claims.sub.chars().count() <= UID_CHARS_MAX
            && !claims.sub.chars().any(char::is_control);
        (in_force && named).then_some((claims.sub, expires_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
    const OTHER: &[u8] = b"another key, which is long enough";

    fn signer(keys: &[&[u8]]) -> Signer {
        Signer::new(&keys.iter().map(|key| key.to_vec()).collect::<Vec<_>>()).unwrap()
    }

    fn now() -> Time {
        crate::moment::parse_moment("2026-11-20T08:00:00Z").unwrap()
    }

    #[test]
    fn tokens_hold_for_one_uid_and_a_while() {
        let signer = signer(&[KEY]);
        let now = now();
        let until = now + Duration::from_secs(60);
        let token = signer.sign("u1", until);
        assert_eq!(signer.verify(&token, now), Some(("u1".to_owned(), until)));
        assert_eq!(signer.verify(&token, until), None);
        assert_eq!(self::signer(&[OTHER]).verify(&token, now), None);
        assert!(self::signer(&[OTHER, KEY]).verify(&token, now).is_some());
        assert_eq!(signer.verify(&signer.sign("u1", now + 2 * DEVICE_TOKEN_MAX), now), None);
        assert_eq!(signer.verify(&signer.sign("", until), now), None);
        assert_eq!(signer.verify(&signer.sign("a\nb", until), now), None);
    }

    #[test]
    fn forged_and_mangled_tokens_are_refused() {
        let signer = signer(&[KEY]);
        let token = signer.sign("u1", now() + Duration::from_secs(60));
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let claims = signed.split_once('.').unwrap().1;
        for header in [r#"{"alg":"none"}"#, r#"{"alg":"HS512"}"#, "{}"] {
            let header = URL_SAFE_NO_PAD.encode(header);
            for signature in ["", signature] {
                assert_eq!(signer.verify(&format!("{header}.{claims}.{signature}"), now()), None);
            }
        }
        for wrong in [
            format!("{signed}."),
            format!("{signed}.{}", &signature[1..]),
            token[..token.len() - 1].to_owned(),
            "x.y.z".into(),
            "...".into(),
            String::new(),
            "a".repeat(JWT_BYTES_MAX + 1),
        ] {
            assert_eq!(signer.verify(&wrong, now()), None, "{wrong}");
        }
    }

    #[test]
    fn a_short_key_is_none() {
        assert!(Signer::new(&[b"short".to_vec()]).is_none());
        assert!(Signer::new(&[KEY.to_vec(), b"short".to_vec()]).is_none());
        assert!(Signer::new(&[]).is_none());
    }
}
