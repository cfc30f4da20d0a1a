//! A fake OpenID Connect provider: strict in what it accepts; tests tell it in what to lie.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::sink::{Request, read_request};

/// What it knows its client by.
pub const CLIENT: &str = "heddle";
/// With letters that a header has to escape.
pub const CLIENT_SECRET: &str = "a secret: 100% +/=";

/// In what it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It does not lie.
    None,
    /// Tokens have another nonce.
    Nonce,
    /// Tokens are for another client.
    Audience,
    /// The tokens that it gives have expired.
    Expired,
    /// Tokens are signed with a key of somebody else.
    Signature,
    /// Tokens are another issuer's.
    Issuer,
    /// What it tells of people beside tokens is of somebody else.
    Person,
    /// It tells nothing of people beside tokens: 500.
    Silent,
    /// It answers nothing: connections are closed.
    Away,
}

/// A code that was given out, and what has to be shown for it.
struct Code {
    redirect: String,
    challenge: String,
    nonce: String,
}

struct State {
    lie: Lie,
    claims: Value,
    /// What it tells of the person beside the token, if it is asked.
    userinfo: Option<Value>,
    /// Access tokens, and of whom they may ask.
    access: HashMap<String, Value>,
    userinfo_asked: u64,
    key: (String, EcdsaKeyPair),
    codes: HashMap<String, Code>,
    used: HashSet<String>,
    made: u64,
    keys_asked: u64,
}

#[derive(Clone)]
pub struct FakeProvider {
    pub issuer: String,
    state: Arc<Mutex<State>>,
}

fn key() -> EcdsaKeyPair {
    let chance = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &chance).expect("a key");
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &chance).expect("a key")
}

fn sign(key: &EcdsaKeyPair, id: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = json!({"alg": "ES256", "typ": "JWT", "kid": id});
    let message = format!("{}.{}", part(&head), part(claims));
    let signature = key.sign(&SystemRandom::new(), message.as_bytes()).expect("a signature");
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Seconds since 1970, by the same clock as the node's.
#[allow(clippy::disallowed_methods)]
fn now() -> i64 {
    chrono::Utc::now().timestamp()
}

/// An answer: status, `Location`, JSON.
type Answer = (u16, Option<String>, Value);

impl FakeProvider {
    /// Starts it; it ends with the test's runtime.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let provider = Self {
            issuer: format!("http://{}", listener.local_addr().expect("an address")),
            state: Arc::new(Mutex::new(State {
                lie: Lie::None,
                claims: json!({}),
                userinfo: None,
                access: HashMap::new(),
                userinfo_asked: 0,
                key: ("key-0".into(), key()),
                codes: HashMap::new(),
                used: HashSet::new(),
                made: 0,
                keys_asked: 0,
            })),
        };
        let serving = provider.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        provider
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// From now on, lies so.
    pub fn lies(&self, lie: Lie) {
        self.state().lie = lie;
    }

    /// Who signs in from now on: `sub` and whatever else it says of them.
    pub fn knows(&self, claims: Value) {
        self.state().claims = claims;
    }

    /// What the userinfo endpoint says beside `sub`; without this there is none.
    pub fn tells(&self, userinfo: Value) {
        self.state().userinfo = Some(userinfo);
    }

    /// How often the userinfo endpoint was asked.
    pub fn userinfo_asked(&self) -> u64 {
        self.state().userinfo_asked
    }

    /// Signs with another key from now on, and tells of no other.
    pub fn changes_its_key(&self) {
        let mut state = self.state();
        state.made += 1;
        state.key = (format!("key-{}", state.made), key());
    }

    /// How often its keys were asked for.
    pub fn keys_asked(&self) -> u64 {
        self.state().keys_asked
    }

    async fn serve(self, mut stream: TcpStream) -> Option<()> {
        let request = read_request(&mut stream).await?;
        if self.state().lie == Lie::Away {
            return None;
        }
        let url = Url::parse(&format!("{}{}", self.issuer, request.path)).ok()?;
        let (status, to, body) = match (request.method.as_str(), url.path()) {
            ("GET", "/.well-known/openid-configuration") => self.described(),
            ("GET", "/authorize") => self.authorize(&url),
            ("POST", "/token") => self.token(&request),
            ("GET", "/keys") => self.keys(),
            ("GET", "/userinfo") => self.userinfo(&request),
            _ => (404, None, json!({})),
        };
        let to = to.map(|to| format!("location: {to}\r\n")).unwrap_or_default();
        let body = body.to_string();
        let answer = format!(
            "HTTP/1.1 {status} So\r\n{to}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.ok()?;
        stream.shutdown().await.ok()
    }

    fn described(&self) -> Answer {
        let issuer = &self.issuer;
        let mut body = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/keys"),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        });
        if self.state().userinfo.is_some() {
            body["userinfo_endpoint"] = json!(format!("{issuer}/userinfo"));
        }
        (200, None, body)
    }

    /// Somebody is at the sign-in page, and is who they say.
    fn authorize(&self, url: &Url) -> Answer {
        let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
        let said = |name: &str| query.get(name).map_or("", String::as_str);
        let long = |name: &str| said(name).len() >= 43;
        let fine = said("response_type") == "code"
            && said("client_id") == CLIENT
            && said("scope").split(' ').any(|scope| scope == "openid")
            && said("code_challenge_method") == "S256"
            && said("redirect_uri").ends_with("/sign-in/callback")
            && ["state", "nonce", "code_challenge"].into_iter().all(long);
        if !fine {
            return (400, None, json!({"error": "invalid_request", "query": query}));
        }
        let mut state = self.state();
        state.made += 1;
        let code = format!("code-{}", state.made);
        state.codes.insert(
            code.clone(),
            Code {
                redirect: said("redirect_uri").to_owned(),
                challenge: said("code_challenge").to_owned(),
                nonce: said("nonce").to_owned(),
            },
        );
        let mut to = Url::parse(said("redirect_uri")).expect("a URL");
        to.query_pairs_mut()
            .append_pair("code", &code)
            .append_pair("state", said("state"))
            .append_pair("iss", &self.issuer);
        (302, Some(to.into()), json!({}))
    }

    fn token(&self, request: &Request) -> Answer {
        let written = |text: &str| {
            let pair = Url::parse_with_params("http://x", [("a", text)]).expect("a URL");
            pair.query().unwrap_or_default()[2..].to_owned()
        };
        let basic = STANDARD.encode(format!("{}:{}", written(CLIENT), written(CLIENT_SECRET)));
        let wanted = format!("Basic {basic}");
        if request.header("authorization") != Some(wanted.as_str()) {
            return (401, None, json!({"error": "invalid_client"}));
        }
        let form = String::from_utf8_lossy(&request.raw).into_owned();
        let form = Url::parse(&format!("http://x/?{form}")).expect("a form");
        let form: HashMap<String, String> = form.query_pairs().into_owned().collect();
        let said = |name: &str| form.get(name).map_or("", String::as_str);
        if said("grant_type") != "authorization_code" {
            return (400, None, json!({"error": "unsupported_grant_type"}));
        }
        let mut state = self.state();
        let again = !state.used.insert(said("code").to_owned());
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(said("code_verifier")));
        let code = state.codes.remove(said("code"));
        let code = code.filter(|code| !again && code.redirect == said("redirect_uri") && code.challenge == challenge);
        let Some(code) = code else {
            return (400, None, json!({"error": "invalid_grant"}));
        };
        let now = now();
        let lie = state.lie;
        let mut claims = state.claims.clone();
        claims["iss"] = json!(if lie == Lie::Issuer {
            "https://other.example"
        } else {
            self.issuer.as_str()
        });
        claims["aud"] = json!(if lie == Lie::Audience { "another" } else { CLIENT });
        claims["nonce"] = json!(if lie == Lie::Nonce {
            "another"
        } else {
            code.nonce.as_str()
        });
        claims["iat"] = json!(now - 300);
        claims["exp"] = json!(if lie == Lie::Expired { now - 120 } else { now + 300 });
        let (id, own) = &state.key;
        let token = match lie {
            Lie::Signature => sign(&key(), id, &claims),
            _ => sign(own, id, &claims),
        };
        let access = format!("access to {}", said("code"));
        state.access.insert(access.clone(), claims["sub"].clone());
        let body = json!({"access_token": access, "token_type": "Bearer", "expires_in": 300, "id_token": token});
        (200, None, body)
    }

    /// What it tells of the person whose sign-in an access token is of.
    fn userinfo(&self, request: &Request) -> Answer {
        let mut state = self.state();
        state.userinfo_asked += 1;
        let access = request
            .header("authorization")
            .and_then(|text| text.strip_prefix("Bearer "));
        let subject = access.and_then(|access| state.access.get(access)).cloned();
        match (subject, &state.userinfo, state.lie) {
            (_, _, Lie::Silent) => (500, None, json!({})),
            (Some(subject), Some(userinfo), lie) => {
                let mut userinfo = userinfo.clone();
                userinfo["sub"] = if lie == Lie::Person { json!("another") } else { subject };
                (200, None, userinfo)
            }
            _ => (401, None, json!({"error": "invalid_token"})),
        }
    }

    fn keys(&self) -> Answer {
        let mut state = self.state();
        state.keys_asked += 1;
        let (id, key) = &state.key;
        let point = key.public_key().as_ref();
        let part = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&point[range]);
        // Beside one of a kind that nobody knows.
        let keys = json!({"keys": [
            {"kty": "of another kind", "kid": "x"},
            {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id, "x": part(1..33), "y": part(33..65)},
        ]});
        (200, None, keys)
    }
}
