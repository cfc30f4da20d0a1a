//! One sign-in: the browser's way to the provider, and back with a code.

use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_store::session::Person;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::{CALLBACK, Provider, Redirect, SignInFailed, Wrong, claims, error_code};
use crate::access::session::{self, Cookie, SESSION_FOR};
use crate::access::{Peer, tokens};
use crate::app::App;
use crate::problem::Problem;

/// The cookie that keeps what a sign-in began with.
const COOKIE: Cookie = Cookie {
    name: "heddle_sign_in",
    host_name: "__Host-heddle_sign_in",
    path: "/sign-in",
};

/// How long somebody may take at the provider.
const SIGN_IN_FOR: Duration = Duration::from_secs(600);

/// The longest address that is returned to.
const TO_BYTES_MAX: usize = 2_000;

/// The longest authorization code that is accepted from the provider, in bytes.
const CODE_BYTES_MAX: usize = 8 * 1024;

impl Provider {
    /// The address to which the provider sends this browser back: as configured, or where it comes from.
    fn redirect_url(&self, headers: &HeaderMap, authority: Option<&str>) -> Result<String, Problem> {
        if let Some(url) = &self.config.redirect_url {
            return Ok(url.clone());
        }
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = host.or(authority).unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(Problem::malformed("the header `Host` is missing or not valid"));
        }
        let scheme = if session::is_https(headers) { "https" } else { "http" };
        Ok(format!("{scheme}://{host}{CALLBACK}"))
    }

    /// Sends a browser to the provider; after that it is to come `to` a page of ours.
    pub async fn begin(&self, app: &App, parts: &Parts, to: &str) -> Result<Redirect, SignInFailed> {
        let described = self.remote.described(&app.clock).await?;
        let redirect = self.redirect_url(&parts.headers, parts.uri.authority().map(|one| one.as_str()))?;
        let flow = Flow(tokens::new_session(&*app.chance));
        let mut url = described.authorization.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", &redirect)
            .append_pair("scope", &self.config.scopes)
            .append_pair("state", &flow.state())
            .append_pair("nonce", &flow.nonce())
            .append_pair("code_challenge", &hash(&[&flow.verifier()]))
            .append_pair("code_challenge_method", "S256");
        let to = if to.len() > TO_BYTES_MAX { "/" } else { to };
        let kept = format!("{}.{}", flow.0, utf8_percent_encode(to, NON_ALPHANUMERIC));
        let cookie = set_cookie(&kept, SIGN_IN_FOR.as_secs(), redirect.starts_with("https:"))?;
        Ok(Redirect {
            to: url.into(),
            cookies: vec![cookie],
        })
    }

    /// A browser returns from the provider: checks its parameters, and begins a session.
    pub async fn finish(&self, app: &App, parts: &Parts) -> Result<Redirect, SignInFailed> {
        let now = app.clock.now();
        let query: Vec<(String, String)> =
            url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let said = |name: &str| {
            query
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        let redirect = self.redirect_url(&parts.headers, parts.uri.authority().map(|one| one.as_str()))?;
        let https = redirect.starts_with("https:");
        let (flow, to) = kept(&parts.headers, https).ok_or(SignInFailed::NotBegun)?;
        if said("state") != Some(&flow.state()) {
            return Err(SignInFailed::NotBegun);
        }
        if said("iss").is_some_and(|issuer| issuer != self.config.issuer) {
            return Err(SignInFailed::Wrong(Wrong::Issuer));
        }
        if let Some(error) = said("error") {
            return Err(SignInFailed::Denied(error_code(error)));
        }
        let code = said("code").filter(|code| !code.is_empty() && code.len() <= CODE_BYTES_MAX);
        let code = code.ok_or(SignInFailed::NotBegun)?;
        // As with wrong tokens: invented codes may cause only a bounded number of requests to the provider.
        let peer = Peer::of(parts);
        app.rates.of_unknown(peer)?;
        let tokens = self
            .remote
            .exchange(code, &flow.verifier(), &redirect, &app.clock)
            .await?;
        let key = self.remote.key_of(&tokens.id, &app.clock).await?;
        let mut claims =
            claims::verify(&tokens.id, &key, &self.config, &flow.nonce(), now).map_err(SignInFailed::Wrong)?;
        if !claims.has(&self.config.claim)
            && let Some(userinfo) = self.remote.userinfo(&tokens, &app.clock).await?
        {
            claims.add(userinfo).map_err(SignInFailed::Wrong)?;
        }
        let actor = claims.actor();
        let person = Person {
            issuer: &self.config.issuer,
            subject: &claims.subject,
            actor: &actor,
        };
        let Some(role) = claims.role(&self.config) else {
            if app.store.end_sessions_of(now, person).await? {
                app.forget_tokens();
            }
            return Err(SignInFailed::NoRole(claims.shown()));
        };
        let (text, hash) = session::new(&*app.chance);
        let ends = now + SESSION_FOR;
        let begun = app.store.begin_session_of(now, &hash, person, role.as_str(), ends);
        if begun.await? {
            app.forget_tokens();
        }
        app.rates.was_known(peer);
        let secure = https || session::is_https(&parts.headers);
        let session = session::set_cookie(secure, Some((&text, now, ends)));
        let session = session.ok_or_else(|| Problem::malformed("the cookie cannot be written"))?;
        Ok(Redirect {
            to,
            cookies: vec![session, set_cookie("", 0, https)?],
        })
    }
}

/// A random text per sign-in; all values that are compared later are made from it.
struct Flow(String);

impl Flow {
    fn state(&self) -> String {
        hash(&["state", &self.0])
    }

    fn nonce(&self) -> String {
        hash(&["nonce", &self.0])
    }

    fn verifier(&self) -> String {
        hash(&["verifier", &self.0])
    }
}

fn hash(parts: &[&str]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(parts.join(" ")))
}

fn set_cookie(value: &str, seconds: u64, secure: bool) -> Result<HeaderValue, Problem> {
    let cookie = COOKIE.set(value, seconds as i64, secure);
    cookie.ok_or_else(|| Problem::malformed("the cookie cannot be written"))
}

/// The sign-in that this browser began, from its cookie, and the address that it wanted.
fn kept(headers: &HeaderMap, https: bool) -> Option<(Flow, String)> {
    let (secret, to) = COOKIE.read(headers, https)?.split_once('.')?;
    let to = percent_decode_str(to).decode_utf8().ok()?.into_owned();
    Some((Flow(secret.to_owned()), to))
}

#[cfg(test)]
mod tests {
    use super::super::ProviderConfig;
    use super::super::tests::config;
    use super::*;

    #[test]
    fn people_come_back_to_where_they_were() {
        let headers = |of: &[(&'static str, &str)]| -> HeaderMap {
            of.iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
                .collect()
        };
        let provider = Provider::new(config()).unwrap();
        let of = |of: &[(&'static str, &str)]| provider.redirect_url(&headers(of), None);
        assert_eq!(of(&[("host", "h:8080")]).unwrap(), "http://h:8080/sign-in/callback");
        assert_eq!(
            of(&[("host", "h.example"), ("x-forwarded-proto", "https")]).unwrap(),
            "https://h.example/sign-in/callback"
        );
        for wrong in ["", "a/b", "a b", "u@h"] {
            assert!(of(&[("host", wrong)]).is_err(), "{wrong}");
        }
        let fixed = Provider::new(ProviderConfig {
            redirect_url: Some("https://heddle.example/sign-in/callback".into()),
            ..config()
        })
        .unwrap();
        assert_eq!(
            fixed.redirect_url(&headers(&[("host", "10.0.0.1")]), None).unwrap(),
            "https://heddle.example/sign-in/callback"
        );
        let kept_over = |https, value: &str| kept(&headers(&[("cookie", value)]), https).map(|(flow, to)| (flow.0, to));
        let kept_by = |value: &str| kept_over(false, value);
        assert_eq!(
            kept_by("a=b; heddle_sign_in=hds_x.%2Fruns%3Fa%3D1"),
            Some(("hds_x".into(), "/runs?a=1".into()))
        );
        assert_eq!(kept_by("heddle_sign_in=hds_x"), None);
        // A cookie that a page of a sibling domain may have set is not accepted.
        assert_eq!(kept_over(true, "heddle_sign_in=hds_evil.%2F"), None);
        let both = "heddle_sign_in=hds_evil.%2F; __Host-heddle_sign_in=hds_x.%2F";
        assert_eq!(kept_over(true, both), Some(("hds_x".into(), "/".into())));
        assert_eq!(
            set_cookie("hds_x.%2F", 600, true).unwrap(),
            "__Host-heddle_sign_in=hds_x.%2F; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"
        );
        assert_eq!(
            set_cookie("hds_x.%2F", 600, false).unwrap(),
            "heddle_sign_in=hds_x.%2F; Path=/sign-in; Max-Age=600; HttpOnly; SameSite=Lax"
        );
    }

    #[test]
    fn what_is_sent_tells_nothing_of_what_is_kept() {
        let (one, other) = (Flow("hds_a".into()), Flow("hds_b".into()));
        let all = [one.state(), one.nonce(), one.verifier(), other.state(), other.nonce()];
        for (at, text) in all.iter().enumerate() {
            assert!(text.len() == 43 && !text.contains("hds_"));
            assert!(!all[at + 1..].contains(text));
        }
    }
}
