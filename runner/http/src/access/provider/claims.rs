//! The claims of a valid ID token: from whom, for whom, when, and which of them determines the role.
//!
//! Reading and checking tokens is `jsonwebtoken`'s; the arithmetic of signatures is that of *ring*, which TLS has here
//! already. Algorithms with a shared secret are none of ours: who knows it could sign.

use heddle_domain::Time;
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Header, Validation, decode};
use ring::signature as keys;
use serde_json::{Map, Value};

use super::{ACTOR_CHARS_MAX, ProviderConfig, Wrong};
use crate::access::Role;

/// By how much a provider's clock may differ from ours.
const SKEW_SECONDS: f64 = 60.0;

/// The longest id that a provider may give a person.
const SUBJECT_CHARS_MAX: usize = 255;

/// If a person's groups give several roles, the first of these counts.
const RANKS: [Role; 4] = [Role::Admin, Role::Operator, Role::Author, Role::Viewer];

/// The accepted algorithms of a token's signature.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// `jsonwebtoken` asks the process for its cryptography.
static BY_RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

struct ByRing(Algorithm, DecodingKey);

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if !ALGORITHMS.contains(algorithm) || algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(ByRing(*algorithm, key.clone())))
}

impl JwtVerifier for ByRing {
    fn algorithm(&self) -> Algorithm {
        self.0
    }
}

impl Verifier<Vec<u8>> for ByRing {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> Result<(), signature::Error> {
        let Self(algorithm, key) = self;
        let by_components = |by| match key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                keys::RsaPublicKeyComponents { n, e }.verify(by, message, given)
            }
            DecodingKeyKind::SecretOrDer(_) => Err(ring::error::Unspecified),
        };
        let by_point = |by: &'static dyn keys::VerificationAlgorithm| match key.kind() {
            DecodingKeyKind::SecretOrDer(point) => keys::UnparsedPublicKey::new(by, point).verify(message, given),
            DecodingKeyKind::RsaModulusExponent { .. } => Err(ring::error::Unspecified),
        };
        match algorithm {
            Algorithm::RS256 => by_components(&keys::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => by_components(&keys::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => by_components(&keys::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => by_components(&keys::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => by_components(&keys::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => by_components(&keys::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => by_point(&keys::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => by_point(&keys::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => by_point(&keys::ED25519),
            _ => Err(ring::error::Unspecified),
        }
        .map_err(|_| signature::Error::new())
    }
}

/// The header of a token, if its signature has an accepted algorithm, and if it names no extension that a reader must
/// understand (`crit`, RFC 7515, 4.1.11): none is understood here.
pub(super) fn header_of(token: &str) -> Result<Header, Wrong> {
    let header = jsonwebtoken::decode_header(token).map_err(|_| Wrong::Form)?;
    if header.crit.is_some() {
        return Err(Wrong::Form);
    }
    if ALGORITHMS.contains(&header.alg) {
        Ok(header)
    } else {
        Err(Wrong::Key)
    }
}

/// The key that a token names. A token that names none is valid only if there is one single key of its type.
pub(super) fn key_of<'a>(header: &Header, all: &'a [Jwk]) -> Option<&'a Jwk> {
    let fits = |key: &&Jwk| {
        let signs = matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature));
        let alike = key.common.key_algorithm.is_none_or(|known| known == header.alg.into());
        let family = DecodingKey::from_jwk(key).is_ok_and(|key| key.family() == header.alg.family());
        signs && alike && family
    };
    let mut fitting = all.iter().filter(fits);
    match &header.kid {
        Some(id) => fitting.find(|key| key.common.key_id.as_ref() == Some(id)),
        None => fitting.next().filter(|_| fitting.next().is_none()),
    }
}

/// The provider's data about a person.
#[derive(Debug)]
pub(super) struct Claims {
    /// The person's id there.
    pub(super) subject: String,
    all: Map<String, Value>,
}

/// Checks a token: returns its claims, or why it is refused.
pub(super) fn verify(token: &str, key: &Jwk, config: &ProviderConfig, nonce: &str, now: Time) -> Result<Claims, Wrong> {
    // The second time it is installed already, by us: nobody else here reads tokens.
    let _ = BY_RING.install_default();
    let header = header_of(token)?;
    let key = DecodingKey::from_jwk(key).map_err(|_| Wrong::Key)?;
    let mut validation = Validation::new(header.alg);
    validation.set_required_spec_claims(&["iss", "sub", "aud", "exp"]);
    validation.set_issuer(&[&config.issuer]);
    validation.set_audience(&[&config.client_id]);
    // Time is checked below, by the node's own clock.
    validation.validate_exp = false;
    let all: Map<String, Value> = decode(token, &key, &validation)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature => Wrong::Signature,
            ErrorKind::InvalidIssuer => Wrong::Issuer,
            ErrorKind::InvalidAudience => Wrong::Audience,
            ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => Wrong::Key,
            _ => Wrong::Form,
        })?
        .claims;
    checked(all, config, nonce, now)
}

/// Checks the claims of a token whose signature, issuer and audience are right.
fn checked(all: Map<String, Value>, config: &ProviderConfig, nonce: &str, now: Time) -> Result<Claims, Wrong> {
    let text = |name: &str| all.get(name).and_then(Value::as_str);
    if text("iss") != Some(&config.issuer) {
        return Err(Wrong::Issuer);
    }
    // A token with several audiences must say for which client it was made (`azp`). If a token says so, it must be for
    // us.
    let audience = all.get("aud").and_then(Value::as_array);
    let several = audience.is_some_and(|all| all.len() > 1);
    match all.get("azp") {
        Some(party) if party != config.client_id.as_str() => return Err(Wrong::Audience),
        None if several => return Err(Wrong::Audience),
        _ => {}
    }
    let now = now.timestamp_micros() as f64 / 1e6;
    let seconds = |name: &str| match all.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(Wrong::Form),
    };
    if seconds("exp")?.ok_or(Wrong::Form)? + SKEW_SECONDS <= now {
        return Err(Wrong::Expired);
    }
    // An ID token says when it was made (OpenID Connect Core, 2); `nbf` may be missing.
    let made = seconds("iat")?.ok_or(Wrong::Form)?;
    for begins in seconds("nbf")?.into_iter().chain([made]) {
        if begins - SKEW_SECONDS > now {
            return Err(Wrong::Expired);
        }
    }
    if text("nonce") != Some(nonce) {
        return Err(Wrong::Nonce);
    }
    let subject = text("sub").unwrap_or_default().to_owned();
    if subject.is_empty() || subject.chars().count() > SUBJECT_CHARS_MAX {
        return Err(Wrong::Form);
    }
    let claims = Claims { subject, all };
    claims.check_names()?;
    Ok(claims)
}

impl Claims {
    /// The e-mail address, as the provider writes it.
    fn email(&self) -> Option<&str> {
        self.all.get("email").and_then(Value::as_str)
    }

    /// Refuses control characters in the id and in the address. They cannot be seen, so a name with them looks like the
    /// name of somebody else. Without them, it would be the name of somebody else.
    fn check_names(&self) -> Result<(), Wrong> {
        let hidden = |text: &str| text.chars().any(char::is_control);
        if hidden(&self.subject) || self.email().is_some_and(hidden) {
            return Err(Wrong::Control);
        }
        Ok(())
    }

    /// The name by which people know the person: the e-mail address, unless the provider calls it unverified, otherwise
    /// the id. Some providers write `"true"` as a text. Everything else that a provider says of the address, such as
    /// `"false"` or 0, means that it is not verified.
    pub(super) fn shown(&self) -> String {
        let verified = match self.all.get("email_verified") {
            None => true,
            Some(said) => *said == Value::Bool(true) || *said == "true",
        };
        let email = self.email().filter(|_| verified);
        let text = email.filter(|text| text.contains('@')).unwrap_or(&self.subject);
        text.chars().take(ACTOR_CHARS_MAX).collect()
    }

    /// The name of the person in the audit. No token can have such a name.
    pub(super) fn actor(&self) -> String {
        format!("person:{}", self.shown())
    }

    /// The value of a claim, by its name or by a JSON pointer.
    fn claim(&self, claim: &str) -> Option<&Value> {
        let Some(pointer) = claim.strip_prefix('/') else {
            return self.all.get(claim);
        };
        let mut steps = pointer.split('/').map(unescaped);
        let first = self.all.get(&steps.next()?);
        steps.fold(first, |at, step| at.and_then(|value| value.get(step)))
    }

    /// Whether there is such a claim.
    pub(super) fn has(&self, claim: &str) -> bool {
        self.claim(claim).is_some_and(|value| !value.is_null())
    }

    /// Adds the provider's further claims about the person; the token's own claims are kept. Both must be about the
    /// same person (OpenID Connect Core, 5.3.2).
    pub(super) fn add(&mut self, userinfo: Map<String, Value>) -> Result<(), Wrong> {
        if userinfo.get("sub").and_then(Value::as_str) != Some(&self.subject) {
            return Err(Wrong::Person);
        }
        for (name, value) in userinfo {
            merge(self.all.entry(name).or_insert(Value::Null), value);
        }
        self.check_names()
    }

    /// The role of the person.
    pub(super) fn role(&self, config: &ProviderConfig) -> Option<Role> {
        let found = self.claim(&config.claim);
        let has = |wanted: &Role| {
            let gives = |value: &Value| {
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                config.roles.get(&text) == Some(wanted)
            };
            match found {
                Some(Value::Array(values)) => values.iter().any(gives),
                Some(Value::Null) | None => false,
                Some(value) => gives(value),
            }
        };
        RANKS.into_iter().find(has).or(config.default_role)
    }
}

/// Fills in missing claims; a claim may be a part of an object of which the token has another part.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (into @ Value::Null, from) => *into = from,
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        _ => {}
    }
}

/// A step of a JSON pointer.
fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jsonwebtoken::AlgorithmFamily;
    use serde_json::json;

    use super::*;

    /// Made by OpenSSL, whose private key is kept by nobody.
    const KEY: &str = r#"{"kty": "RSA", "kid": "rsa", "use": "sig", "n": "xo7Z0r8c84LivvNgeSJ1aZ6niLe_kgBH5xCFug0wTiuNa0lN_7mTW_3IYHLcDtO44X99za35dLJPqCkBHuIGVP8gQH6JML-11kSmxqzZdhq1oi-7JDfX7Ct6ZzhP_vOAGpoy8gzb7hEmMrbocymIaOuf_rBMm0DivtnTDrDFoHh9zsTNVT3E5lCSLUzjIDSLaaKm8gpIAlZ-2VbpdjfCaixvwXhuSrD3B4P9nZdDwctrRVbD5cRIZsBvtKRWylA-iVxxAnZubzbRR0D34jdVHHsBs1HYUpV3pwTetzDWFAjKv3MA1rGOI9pCC_rFMDpMT1PQ5i6o-aCGSfpmYU9dFw", "e": "AQAB"}"#;
    const TOKEN_RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJzdWIiOiJ1MSIsImF1ZCI6ImhlZGRsZSIsImV4cCI6MTcwMDAwMDMwMCwiaWF0IjoxNzAwMDAwMDAwLCJub25jZSI6Im4iLCJncm91cHMiOlsib3BzIl19.pWm0pTUjlScLV1UJqUYmW4p5HGxdUYPw1UPhtRb5kLVZWFsbMubwIfk_UkXpbWXQliHqTupqZTItmSGQNPajAupXFTgVEyEF7490o0Gt6lgep7-vaSK_HX7o1fWI87BBRlv3HCby6jqtpJFX5Bwx73r7yORW3qryPfy8DzD3qpD7f48UP-fM5tx04vzMMPYGqRzoUCJAD4H51e2_gHndH5WAGeC5khrEUk3By4eVOA3EHb46Z774uI1-_UPDz2tpvhAvQ75KpPM22hgr0b_1OtcXb6HaUV8_G58TPNR3tuiSKcsH-JTZpnTTg2oCssyLgSDuEwLX04oJMQYHneOtmg";
    const TOKEN_PS256: &str = "eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJzdWIiOiJ1MSIsImF1ZCI6ImhlZGRsZSIsImV4cCI6MTcwMDAwMDMwMCwiaWF0IjoxNzAwMDAwMDAwLCJub25jZSI6Im4iLCJncm91cHMiOlsib3BzIl19.GPQb6c1M4q3fuOjdLBbdvQCcoAmL2tdGY8U1yZmJZ7daUsOppbd9Mdm5CaKv8KJCAFn5e1mTEc493BVTCgTCxxOGqjUDFVqZfn_uIyb-UW3Au3gCp5EWdB-C-KAXbfqszY8f-WxuTZqKGb832eoyYj0t1R_DiYEISafy-UcjnEoqlkavxD4VbevZJIVAy2IRSJihWPkb7JO7bxbwAf4GSwtE8vKRl1g3hMarNFgirQtFRJIYPORf-rT6zRZ7qJiBJKpVbjPLca9JdKuEREYcTZWvYZuaGAZqZWIvsElRUGxl3BATOYNe0BT8yXUwp5KR2HxKZFI81PjahJVi1YBEqA";

    fn config() -> ProviderConfig {
        ProviderConfig {
            issuer: "https://id.example".into(),
            client_id: "heddle".into(),
            client_secret: None,
            scopes: "openid".into(),
            claim: "groups".into(),
            roles: BTreeMap::from([
                ("ops".to_owned(), Role::Operator),
                ("chiefs".to_owned(), Role::Admin),
                ("all".to_owned(), Role::Viewer),
            ]),
            default_role: None,
            redirect_url: None,
            name: "id".into(),
        }
    }

    fn at(seconds: i64) -> Time {
        Time::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn a_token_is_believed_or_not_for_a_reason() {
        let key: Jwk = serde_json::from_str(KEY).unwrap();
        let now = at(1_700_000_100);
        for token in [TOKEN_RS256, TOKEN_PS256] {
            assert!(key_of(&header_of(token).unwrap(), std::slice::from_ref(&key)).is_some());
            let claims = verify(token, &key, &config(), "n", now).unwrap();
            assert_eq!(
                (claims.subject.as_str(), claims.role(&config())),
                ("u1", Some(Role::Operator))
            );
            assert_eq!(claims.actor(), "person:u1");
            let because = |config: &ProviderConfig, nonce: &str, now| verify(token, &key, config, nonce, now).map(drop);
            assert_eq!(because(&config(), "other", now), Err(Wrong::Nonce));
            // A minute of skew is borne, no more.
            assert_eq!(because(&config(), "n", at(1_700_000_359)), Ok(()));
            assert_eq!(because(&config(), "n", at(1_700_000_360)), Err(Wrong::Expired));
            assert_eq!(because(&config(), "n", at(1_699_999_940)), Ok(()));
            assert_eq!(because(&config(), "n", at(1_699_999_939)), Err(Wrong::Expired));
            let mut other = config();
            other.client_id = "another".into();
            assert_eq!(because(&other, "n", now), Err(Wrong::Audience));
            other = config();
            other.issuer = "https://id.example/".into();
            assert_eq!(because(&other, "n", now), Err(Wrong::Issuer));
            // One letter of the claims, or of the signature, is another.
            for index in [token.find('.').unwrap() + 20, token.rfind('.').unwrap() + 20] {
                let mut bytes = token.as_bytes().to_vec();
                bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
                let forged = String::from_utf8(bytes).unwrap();
                assert_eq!(
                    verify(&forged, &key, &config(), "n", now).map(drop),
                    Err(Wrong::Signature)
                );
            }
        }
    }

    /// A token that is signed with the provider's public key as if it were a shared secret, or not at all.
    #[test]
    fn only_keys_of_the_provider_sign() {
        use base64::Engine;
        let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let claims = TOKEN_RS256.split('.').nth(1).unwrap();
        for algorithm in ["HS256", "none", "ES256K"] {
            let head = engine.encode(json!({"alg": algorithm, "kid": "rsa"}).to_string());
            let token = format!("{head}.{claims}.");
            assert!(
                matches!(header_of(&token), Err(Wrong::Key | Wrong::Form)),
                "{algorithm}"
            );
        }
        assert_eq!(header_of("a.b").map(drop), Err(Wrong::Form));
        // An extension that must be understood. Other members of a header are passed over.
        for (header, expected) in [
            (
                json!({"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": false}),
                Err(Wrong::Form),
            ),
            (json!({"alg": "RS256", "kid": "rsa", "crit": []}), Err(Wrong::Form)),
            (json!({"alg": "RS256", "kid": "rsa", "crit": "b64"}), Err(Wrong::Form)),
            (json!({"alg": "RS256", "kid": "rsa"}), Ok(())),
        ] {
            let token = format!("{}.{claims}.", engine.encode(header.to_string()));
            assert_eq!(header_of(&token).map(drop), expected, "{header}");
        }
        let key: Jwk = serde_json::from_str(KEY).unwrap();
        let head = |algorithm: &str, id: Option<&str>| -> Header {
            let mut head = json!({"alg": algorithm});
            if let Some(id) = id {
                head["kid"] = json!(id);
            }
            serde_json::from_value(head).unwrap()
        };
        let keys = [key.clone()];
        assert!(key_of(&head("RS256", None), &keys).is_some(), "the only one");
        assert!(key_of(&head("RS256", Some("other")), &keys).is_none());
        assert!(key_of(&head("ES256", Some("rsa")), &keys).is_none(), "of another kind");
        assert!(
            key_of(&head("RS256", None), &[key.clone(), key.clone()]).is_none(),
            "which?"
        );
        let mut for_encryption = key;
        for_encryption.common.public_key_use = Some(PublicKeyUse::Encryption);
        assert!(key_of(&head("RS256", None), &[for_encryption]).is_none());
    }

    #[test]
    fn claims_that_a_token_must_have() {
        let all = json!({
            "iss": "https://id.example", "sub": "u1", "aud": "heddle", "nonce": "n",
            "iat": 1_700_000_000, "exp": 1_700_000_300,
        });
        let because = |change: Value| {
            let (Value::Object(mut all), Value::Object(change)) = (all.clone(), change) else {
                panic!()
            };
            all.extend(change);
            all.retain(|_, value| *value != "none");
            checked(all, &config(), "n", at(1_700_000_100)).map(|claims| claims.subject)
        };
        assert_eq!(because(json!({})), Ok("u1".into()));
        for missing in ["iat", "exp", "sub"] {
            for none in [json!("none"), Value::Null] {
                assert_eq!(because(json!({ missing: none })), Err(Wrong::Form), "{missing}");
            }
        }
        assert_eq!(because(json!({"iat": "1700000000"})), Err(Wrong::Form));
        // They would not be seen in a name.
        for hidden in ["a\u{0}dmin@x", "a\ndmin@x", "\u{7f}admin@x", "admin@x\u{85}"] {
            for claim in ["sub", "email"] {
                assert_eq!(
                    because(json!({ claim: hidden })),
                    Err(Wrong::Control),
                    "{claim} {hidden:?}"
                );
            }
            let unverified = json!({"email": hidden, "email_verified": false});
            assert_eq!(because(unverified), Err(Wrong::Control), "{hidden:?}");
        }
        // Nobody is known by these.
        assert_eq!(
            because(json!({"name": "a\u{0}", "preferred_username": "a\n"})),
            Ok("u1".into())
        );
        assert_eq!(because(json!({"iat": 1_700_000_161})), Err(Wrong::Expired));
        assert_eq!(because(json!({"nbf": 1_700_000_161})), Err(Wrong::Expired));
        assert_eq!(
            because(json!({"nbf": 1_700_000_160, "iat": 1_700_000_160.0})),
            Ok("u1".into())
        );
    }

    #[test]
    fn what_the_token_lacks_may_come_from_userinfo() {
        let object = |value: Value| match value {
            Value::Object(all) => all,
            _ => panic!("{value}"),
        };
        let claims = |all: Value| Claims {
            subject: "u1".into(),
            all: object(all),
        };
        let add = |claims: &mut Claims, value: Value| claims.add(object(value));
        let mut one = claims(json!({"email": "a@x", "groups": null}));
        assert!(!one.has("groups") && one.has("email"));
        add(&mut one, json!({"sub": "u1", "groups": ["ops"], "email": "b@x"})).unwrap();
        assert_eq!(
            (one.role(&config()), one.shown().as_str()),
            (Some(Role::Operator), "a@x")
        );
        // A part of an object, of which the token has another.
        let mut config = config();
        config.claim = "/realm/roles".into();
        let mut one = claims(json!({"realm": {"name": "r"}}));
        assert!(!one.has(&config.claim));
        add(&mut one, json!({"sub": "u1", "realm": {"name": "s", "roles": ["all"]}})).unwrap();
        assert_eq!(
            (one.role(&config), &one.all["realm"]["name"]),
            (Some(Role::Viewer), &json!("r"))
        );
        // An empty list is an answer.
        assert!(claims(json!({"groups": []})).has("groups"));
        for other in [
            json!({"sub": "u2", "groups": ["chiefs"]}),
            json!({"groups": ["chiefs"]}),
        ] {
            assert_eq!(add(&mut claims(json!({})), other), Err(Wrong::Person));
        }
        let hidden = json!({"sub": "u1", "email": "a\u{0}@x"});
        assert_eq!(add(&mut claims(json!({})), hidden.clone()), Err(Wrong::Control));
        // The token's own address counts.
        assert_eq!(add(&mut claims(json!({"email": "a@x"})), hidden), Ok(()));
    }

    #[test]
    fn claims_become_roles() {
        let role = |claims: Value, change: &dyn Fn(&mut ProviderConfig)| {
            let mut config = config();
            change(&mut config);
            let Value::Object(all) = claims else { panic!() };
            Claims {
                subject: "u1".into(),
                all,
            }
            .role(&config)
        };
        let as_is = |_: &mut ProviderConfig| {};
        assert_eq!(role(json!({"groups": ["all", "ops"]}), &as_is), Some(Role::Operator));
        assert_eq!(
            role(json!({"groups": ["all", "ops", "chiefs"]}), &as_is),
            Some(Role::Admin)
        );
        assert_eq!(role(json!({"groups": "all"}), &as_is), Some(Role::Viewer));
        for nothing in [
            json!({}),
            json!({"groups": null}),
            json!({"groups": []}),
            json!({"groups": ["x", 1]}),
            // Values are compared as they are.
            json!({"groups": ["ops\u{0}", "o\u{0}ps", " ops"]}),
        ] {
            assert_eq!(role(nothing.clone(), &as_is), None);
            let default = |config: &mut ProviderConfig| config.default_role = Some(Role::Viewer);
            assert_eq!(role(nothing, &default), Some(Role::Viewer));
        }
        let nested = |config: &mut ProviderConfig| config.claim = "/realm_access/roles".into();
        assert_eq!(
            role(json!({"realm_access": {"roles": ["chiefs"]}}), &nested),
            Some(Role::Admin)
        );
        assert_eq!(role(json!({"realm_access": "chiefs"}), &nested), None);
        let named = |config: &mut ProviderConfig| config.claim = "https://heddle.example/roles".into();
        assert_eq!(
            role(json!({"https://heddle.example/roles": ["ops"]}), &named),
            Some(Role::Operator)
        );
        let actor = |claims: Value| {
            let Value::Object(all) = claims else { panic!() };
            Claims {
                subject: "u1".into(),
                all,
            }
            .actor()
        };
        assert_eq!(actor(json!({"email": "a@b.example"})), "person:a@b.example");
        for verified in [json!(true), json!("true")] {
            let claims = json!({"email": "a@b.example", "email_verified": verified});
            assert_eq!(actor(claims), "person:a@b.example", "{verified}");
        }
        for unverified in [
            json!(false),
            json!("false"),
            json!("False"),
            json!("True"),
            json!("no"),
            json!(""),
            json!(0),
            json!(1),
            json!([]),
            Value::Null,
        ] {
            let claims = json!({"email": "a@b.example", "email_verified": unverified});
            assert_eq!(actor(claims), "person:u1", "{unverified}");
        }
    }

    #[test]
    fn families_have_their_keys() {
        let key: Jwk = serde_json::from_str(KEY).unwrap();
        let key = DecodingKey::from_jwk(&key).unwrap();
        assert!(verifier(&Algorithm::ES256, &key).is_err() && verifier(&Algorithm::HS256, &key).is_err());
        assert_eq!(key.family(), AlgorithmFamily::Rsa);
    }
}
