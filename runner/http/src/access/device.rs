//! Tokens of devices: JWTs (RFC 7519) signed with HMAC-SHA-256 (`HS256`, RFC 7518) under a key of the configuration.
//!
//! Whoever has the key makes them (the backend of a fleet; `heddle token sign` on the command line): `sub` is the uid
//! that may poll, `exp` the end, at most [`DEVICE_TOKEN_MAX`] ahead, `nbf` the beginning if there is one. Nothing is
//! stored and nothing can be revoked, hence the short life. Only `HS256` is accepted, whatever the header says, and
//! signatures are compared in constant time.
//!
//! Tokens of providers are read by `jsonwebtoken`, these are not:
//!
//! * It takes its cryptography from one place for the whole process, and that place knows no algorithm with a shared secret
//!   (`provider/claims.rs`). With `HS256` there, one check less would accept a provider's token that somebody has signed with
//!   the provider's public key, as if that were a secret.
//! * It reads `"crit": null` as if there were no `crit`, and refuses headers with members that concern nobody here, such as
//!   a `kid` that is a number.
//! * It makes the key ready again for each token. A device sends its token with each poll, so the keys here are made ready
//!   once.
//!
//! What else it checks would be left out anyway: its `exp` and `nbf` are whole seconds, by the clock of the process.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_domain::Time;
use heddle_domain::dispatch::is_uid;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::Sha256;

/// The shortest key, in bytes: as long as the hash (RFC 2104 advises no less).
pub const DEVICE_KEY_BYTES_MIN: usize = 32;

/// How far ahead a token may end.
pub const DEVICE_TOKEN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The longest signed token that is read, in bytes.
const JWT_BYTES_MAX: usize = 4_096;

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
struct JwtClaims {
    sub: String,
    exp: NumericDate,
    nbf: Option<NumericDate>,
}

/// Seconds since 1970, perhaps with a fraction (RFC 7519, 2): what clocks of many languages give.
#[derive(Deserialize)]
struct NumericDate(f64);

impl NumericDate {
    /// To the microsecond; `None`: it is too far away to be one.
    fn instant(&self) -> Option<Time> {
        const SECONDS_MAX: f64 = 1e11;
        let known = self.0.is_finite() && self.0.abs() < SECONDS_MAX;
        known.then(|| Time::from_timestamp_micros((self.0 * 1e6).floor() as i64))?
    }
}

/// Whether a header names `HS256`, and no extension that a reader must understand (`crit`, RFC 7515, 4.1.11).
fn is_ours(header: &[u8]) -> bool {
    let header: Result<Map<String, Value>, _> = serde_json::from_slice(header);
    header.is_ok_and(|header| header.get("alg") == Some(&json!("HS256")) && !header.contains_key("crit"))
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
        let claims = json!({"sub": uid, "exp": expires_at.timestamp()});
        let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
        let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
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
        let claims: JwtClaims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        let expires_at = claims.exp.instant()?;
        let begun = claims.nbf.is_none_or(|nbf| nbf.instant().is_some_and(|at| at <= now));
        let in_force = is_ours(&URL_SAFE_NO_PAD.decode(header).ok()?)
            && expires_at > now
            && expires_at <= now + DEVICE_TOKEN_MAX
            && begun;
        (in_force && is_uid(&claims.sub)).then_some((claims.sub, expires_at))
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
        heddle_api::moment::parse_moment("2026-11-20T08:00:00Z").unwrap()
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

    /// Signs any header and claims.
    fn signed(header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let key = <Hmac<Sha256> as KeyInit>::new_from_slice(KEY).unwrap();
        let signature = key.chain_update(signed.as_bytes()).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn claims_are_read_as_the_standard_has_them() {
        const HEADER: &str = r#"{"alg":"HS256"}"#;
        let (signer, now) = (signer(&[KEY]), now());
        let seconds = now.timestamp();
        let check = |header: &str, claims: String, good: bool| {
            let found = signer.verify(&signed(header, &claims), now);
            assert_eq!(found.is_some(), good, "{header} {claims}: {found:?}");
            found
        };
        let fraction = check(HEADER, format!(r#"{{"sub":"u","exp":{seconds}.5}}"#), true);
        assert_eq!(fraction.unwrap().1, now + Duration::from_millis(500));
        check(
            HEADER,
            format!(r#"{{"sub":"u","exp":{}e0,"iat":1.5,"aud":["x"]}}"#, seconds + 9),
            true,
        );
        check(
            HEADER,
            format!(r#"{{"sub":"u","exp":{},"nbf":{seconds}.0}}"#, seconds + 9),
            true,
        );
        check(
            HEADER,
            format!(r#"{{"sub":"u","exp":{},"nbf":{seconds}.1}}"#, seconds + 9),
            false,
        );
        for exp in [
            format!("{seconds}"),
            "1e300".into(),
            "-1e300".into(),
            "null".into(),
            format!("\"{seconds}9\""),
        ] {
            check(HEADER, format!(r#"{{"sub":"u","exp":{exp}}}"#), false);
        }
        let claims = || format!(r#"{{"sub":"u","exp":{}}}"#, seconds + 9);
        check(r#"{"alg":"HS256","typ":"JWT","kid":"1"}"#, claims(), true);
        for crit in [r#"["b64"]"#, "[]", "null"] {
            check(
                &format!(r#"{{"alg":"HS256","crit":{crit},"b64":false}}"#),
                claims(),
                false,
            );
        }
    }

    /// Two of the reasons in the head of this module.
    #[test]
    fn another_reader_takes_other_headers() {
        let read = |header: &str| jsonwebtoken::decode_header(signed(header, "{}"));
        let header = read(r#"{"alg":"HS256","crit":null}"#).expect("it is read");
        assert_eq!(header.crit, None, "as if there were none");
        let number = r#"{"alg":"HS256","kid":1}"#;
        assert!(read(number).is_err());
        let claims = format!(r#"{{"sub":"u","exp":{}}}"#, now().timestamp() + 9);
        assert!(signer(&[KEY]).verify(&signed(number, &claims), now()).is_some());
    }

    #[test]
    fn a_short_key_is_none() {
        assert!(Signer::new(&[b"short".to_vec()]).is_none());
        assert!(Signer::new(&[KEY.to_vec(), b"short".to_vec()]).is_none());
        assert!(Signer::new(&[]).is_none());
    }
}
