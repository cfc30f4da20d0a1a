//! Signing in with an account at a provider. The provider is a fake that runs in the test (`heddle_tests::FakeProvider`):
//! strict in what it takes, and told in what to lie.

use heddle_tests::{CLIENT, CLIENT_SECRET, FakeProvider, Lie, Node, NodeOptions, World, eventually};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use serde_json::{Value, json};

use crate::{Page, Visitor, hear};

const ROLES: &str = "heddle-chiefs=admin, heddle-ops=operator, everybody=viewer";

fn options(world: &World, provider: &FakeProvider) -> NodeOptions {
    world
        .options()
        .env("HEDDLE_OIDC_ISSUER", &provider.issuer)
        .env("HEDDLE_OIDC_CLIENT_ID", CLIENT)
        .env("HEDDLE_OIDC_CLIENT_SECRET", CLIENT_SECRET)
        .env("HEDDLE_OIDC_ROLES", ROLES)
        .env("HEDDLE_OIDC_NAME", "Example")
}

/// The cookies that an answer sets and does not end.
fn cookies(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(SET_COOKIE)
        .iter()
        .filter_map(|value| value.to_str().unwrap().split(';').next())
        .filter(|pair| !pair.ends_with('='))
        .map(str::to_owned)
        .collect()
}

/// A browser that has been to the provider and is about to come back: with what it keeps, to this address.
async fn been_there(base: &str, to: &str) -> (Visitor, String) {
    let mut visitor = Visitor::new(base);
    let asked = visitor.get(to).await.fine();
    let link = asked
        .split("href=\"/sign-in/provider")
        .nth(1)
        .expect("a link to the provider");
    let link = format!("/sign-in/provider{}", link.split('"').next().unwrap());
    let sent = visitor.get(&link).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    visitor.cookie = cookies(&sent.headers).join("; ");
    let shown = visitor.client.get(sent.leads_to()).send().await.unwrap();
    let status = shown.status();
    let back = shown.headers().get(LOCATION).map(|to| to.to_str().unwrap().to_owned());
    let back = match back {
        Some(back) if status == 302 => back,
        _ => panic!("{status}: {}", shown.text().await.unwrap()),
    };
    (
        visitor,
        back.strip_prefix(base).expect("back to where one was").to_owned(),
    )
}

async fn come_back(base: &str, to: &str) -> Page {
    let (visitor, back) = been_there(base, to).await;
    visitor.get(&back).await
}

/// Signs in; answers the browser with its session.
async fn signed_in(base: &str, to: &str) -> Visitor {
    let (mut visitor, back) = been_there(base, to).await;
    let page = visitor.get(&back).await;
    assert_eq!(
        (page.status, page.leads_to()),
        (StatusCode::SEE_OTHER, to),
        "{}",
        page.text
    );
    let all = cookies(&page.headers);
    assert!(
        matches!(all.as_slice(), [session] if session.starts_with("heddle_session=hds_")),
        "{all:?}"
    );
    visitor.cookie = all.join("; ");
    visitor
}

async fn who(visitor: &Visitor) -> Option<Value> {
    let page = visitor.get("/v1/session").await;
    (page.status == 200).then(|| serde_json::from_str(&page.text).unwrap())
}

async fn audited(node: &Node, action: &str) -> Vec<Value> {
    node.all(&format!("/v1/audit?kind=token&action={action}")).await
}

#[tokio::test]
async fn people_sign_in_with_the_account_that_they_have() {
    let world = World::new().await;
    let provider = FakeProvider::start().await;
    let (node, other) = tokio::join!(async { options(&world, &provider).start().await }, async {
        options(&world, &provider).start().await
    });
    provider.knows(json!({
        "sub": "u-1", "email": "ann@example.com", "email_verified": true, "groups": ["everybody", "heddle-ops"],
    }));
    // To where one wanted to go, on whichever node.
    let ann = signed_in(node.base(), "/groups?q=a").await;
    let mut there = Visitor::new(other.base());
    there.cookie = ann.cookie.clone();
    for visitor in [&ann, &there] {
        let session = who(visitor).await.expect("a session");
        assert_eq!(
            (&session["actor"], &session["role"]),
            (&json!("person:ann@example.com"), &json!("operator"))
        );
        assert!(session["expires_at"].is_string(), "it ends");
        assert!(visitor.get("/groups").await.fine().contains("ann@example.com"));
    }
    assert_eq!(there.get("/v1/tokens").await.status, StatusCode::FORBIDDEN);
    // Who did what says the audit; who came in, with the id at the provider.
    assert_eq!(
        ann.post("/system/pools", &[("name", "p"), ("slots", "3")]).await.status,
        303
    );
    let rows = node.all("/v1/audit?actor=person:ann@example.com").await;
    let has = |kind: &str| {
        rows.iter()
            .find(|row| row["kind"] == kind)
            .unwrap_or_else(|| panic!("{rows:#?}"))
    };
    assert_eq!(has("token")["after"]["subject"], "u-1");
    assert_eq!(has("token")["after"]["issuer"], json!(provider.issuer));
    // Signing out ends it everywhere, and the page that is open elsewhere with it.
    let mut stream = there.opens(&there.get("/runs").await.fine()).await;
    hear(&mut stream, &["event: here"]).await;
    assert_eq!(ann.post("/sign-out", &[]).await.leads_to(), "/sign-in");
    assert_eq!(
        audited(&node, "sign_out").await[0]["before"],
        json!({"issuer": provider.issuer, "subject": "u-1", "role": "operator"})
    );
    hear(&mut stream, &["event: over", "data: signed-out"]).await;
    assert!(who(&ann).await.is_none());
    eventually("the end of the session on the other node", async || {
        who(&there).await.is_none().then_some(())
    })
    .await;
    // A role that has changed: what was begun with the old one ends when the person signs in again.
    let before = signed_in(node.base(), "/runs").await;
    provider.knows(json!({"sub": "u-1", "email": "ann@example.com", "groups": ["everybody"]}));
    let after = signed_in(other.base(), "/runs").await;
    assert_eq!(who(&after).await.unwrap()["role"], "viewer");
    eventually("the end of the session with the old role", async || {
        who(&before).await.is_none().then_some(())
    })
    .await;
    // And one that is gone: the person is told so, and everything of theirs ends.
    provider.knows(json!({"sub": "u-1", "email": "ann@example.com", "groups": ["elsewhere"]}));
    let page = come_back(node.base(), "/runs").await;
    assert_eq!(page.status, StatusCode::FORBIDDEN);
    assert!(
        page.text.contains("ann@example.com") && page.text.contains("has no role here"),
        "{}",
        page.text
    );
    eventually("the end of all sessions of somebody without a role", async || {
        who(&after).await.is_none().then_some(())
    })
    .await;
    assert_eq!(audited(&node, "refuse").await[0]["actor"], "person:ann@example.com");
    // A node that does not know the provider takes none of its sessions.
    provider.knows(json!({"sub": "u-2", "groups": "heddle-chiefs"}));
    let chief = signed_in(node.base(), "/").await;
    assert_eq!(
        who(&chief).await.unwrap()["actor"],
        "person:u-2",
        "without an address the id will do"
    );
    let plain = world.node().await;
    let mut elsewhere = Visitor::new(plain.base());
    elsewhere.cookie = chief.cookie.clone();
    assert!(who(&elsewhere).await.is_none());
    assert!(!elsewhere.get("/").await.fine().contains("/sign-in/provider"));
}

#[tokio::test]
async fn what_a_provider_says_is_not_believed_without_reason() {
    let world = World::new().await;
    let provider = FakeProvider::start().await;
    provider.knows(json!({"sub": "u-1", "groups": ["heddle-ops"]}));
    let node = options(&world, &provider).start().await;
    let base = node.base();
    for (lie, status, words) in [
        (Lie::Nonce, 401_u16, "belongs to another sign-in"),
        (Lie::Audience, 401, "issued for another application"),
        (Lie::Expired, 401, "has expired"),
        (Lie::Signature, 401, "signature is not valid"),
        (Lie::Issuer, 401, "another provider issued it"),
        (Lie::None, 303, ""),
    ] {
        provider.lies(lie);
        let page = come_back(base, "/runs").await;
        assert_eq!(page.status, status, "{lie:?}: {}", page.text);
        assert!(page.text.contains(words), "{lie:?}: {}", page.text);
        assert_eq!(cookies(&page.headers).is_empty(), lie != Lie::None, "{lie:?}");
    }
    // Another's state, no cookie, another browser's cookie.
    let (mut visitor, back) = been_there(base, "/runs").await;
    let wrong = visitor.get(&back.replace("state=", "state=x")).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.text.contains("Start again here"), "{}", wrong.text);
    assert_eq!(Visitor::new(base).get(&back).await.status, StatusCode::BAD_REQUEST);
    let (stranger, _) = been_there(base, "/runs").await;
    assert_eq!(stranger.get(&back).await.status, StatusCode::BAD_REQUEST);
    // In the other language, too.
    visitor.cookie.push_str("; heddle_lang=zh");
    let wrong = visitor.get("/sign-in/callback?state=x&code=y").await;
    assert!(wrong.text.contains("请在这里重新开始"), "{}", wrong.text);
    // A code is good for once.
    assert_eq!(visitor.get(&back).await.status, StatusCode::SEE_OTHER);
    let again = visitor.get(&back).await;
    assert_eq!(again.status, StatusCode::UNAUTHORIZED, "{}", again.text);
    assert!(cookies(&again.headers).is_empty());
    // The provider says no; what it says is a word, not markup.
    let (visitor, back) = been_there(base, "/runs").await;
    let state = back.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let denied = visitor
        .get(&format!("/sign-in/callback?error=%3Cb%3Eaccess_denied&state={state}"))
        .await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    assert!(denied.text.contains("baccess_denied"), "{}", denied.text);
    // Back to our own pages only.
    let away = Visitor::new(base).get("/sign-in/provider?to=//evil.example").await;
    assert!(cookies(&away.headers)[0].ends_with(".%2F"), "{:?}", away.headers);
    // The provider changes its key: it is asked for once more.
    let asked = provider.keys_asked();
    provider.changes_its_key();
    eventually("sign-in with the new key", async || {
        (come_back(base, "/runs").await.status == 303).then_some(())
    })
    .await;
    assert_eq!(provider.keys_asked(), asked + 1);
    // No claim at all.
    provider.knows(json!({"sub": "u-1"}));
    assert_eq!(come_back(base, "/runs").await.status, StatusCode::FORBIDDEN);
    // The provider is away, when it is to take a code and when it has never said what it is.
    let (visitor, back) = been_there(base, "/runs").await;
    provider.lies(Lie::Away);
    let page = visitor.get(&back).await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        page.text.contains("Example does not answer") && page.text.contains("name=\"token\""),
        "{}",
        page.text
    );
    let fresh = options(&world, &provider).start().await;
    let page = Visitor::new(fresh.base()).get("/sign-in/provider?to=/runs").await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE, "{}", page.text);
    // It comes back by itself.
    provider.lies(Lie::None);
    provider.knows(json!({"sub": "u-1", "groups": ["heddle-ops"]}));
    eventually("a way to the provider", async || {
        let page = Visitor::new(fresh.base()).get("/sign-in/provider").await;
        (page.status == 303).then_some(())
    })
    .await;
    signed_in(fresh.base(), "/runs").await;
}

/// A name with characters that nobody sees would be taken for the name of somebody else.
#[tokio::test]
async fn names_with_control_characters_are_refused() {
    let world = World::new().await;
    let provider = FakeProvider::start().await;
    let node = options(&world, &provider).start().await;
    let base = node.base();
    let hidden = "a\u{0}dmin@example.com";
    let refused = async |case: &str| {
        let page = come_back(base, "/runs").await;
        assert_eq!(page.status, StatusCode::UNAUTHORIZED, "{case}: {}", page.text);
        assert!(
            page.text.contains("contains control characters"),
            "{case}: {}",
            page.text
        );
        assert!(cookies(&page.headers).is_empty(), "{case}");
    };
    for (sub, email, verified) in [
        ("u-1", hidden, true),
        ("u-1", hidden, false),
        ("u-1", "admin@example.com\n", true),
        ("u-1", "\u{7f}admin@example.com", true),
        ("admin\u{0}", "ann@example.com", true),
        ("ad\u{7}min", "ann@example.com", true),
    ] {
        provider.knows(json!({"sub": sub, "email": email, "email_verified": verified, "groups": ["heddle-chiefs"]}));
        refused(&format!("{sub:?} {email:?} {verified}")).await;
    }
    // A group is not another one with something in it. Other claims do not matter.
    provider.knows(json!({"sub": "u-1", "name": "a\u{0}", "groups": ["heddle-\u{0}chiefs"]}));
    assert_eq!(come_back(base, "/runs").await.status, StatusCode::FORBIDDEN);
    // The address may come from userinfo, too.
    let told = options(&world, &provider);
    provider.tells(json!({"groups": ["heddle-chiefs"], "email": hidden}));
    provider.knows(json!({"sub": "u-1"}));
    let node = told.start().await;
    let page = come_back(node.base(), "/runs").await;
    assert_eq!(page.status, StatusCode::UNAUTHORIZED, "{}", page.text);
    assert!(page.text.contains("contains control characters"), "{}", page.text);
    assert!(audited(&node, "sign_in").await.is_empty());
}

/// Two accounts with one address, and a third whose id looks like it, are three people: an admin sees each with its own
/// role, and ends the sessions of one of them.
#[tokio::test]
async fn people_of_one_name_are_told_apart() {
    let world = World::new().await;
    let provider = FakeProvider::start().await;
    let node = options(&world, &provider).start().await;
    let base = node.base();
    let mail = "ann@example.com";
    let mut visitors = Vec::new();
    for (subject, email, group) in [
        ("a", Some(mail), "heddle-chiefs"),
        ("b", Some(mail), "everybody"),
        (mail, None, "heddle-ops"),
    ] {
        provider.knows(json!({"sub": subject, "email": email, "groups": [group]}));
        visitors.push(signed_in(base, "/runs").await);
    }
    // Renamed meanwhile, but still the same person.
    provider.knows(json!({"sub": "b", "email": "ann-b@example.com", "groups": ["everybody"]}));
    visitors.push(signed_in(base, "/runs").await);
    let listed = async || {
        let mut found = Vec::new();
        for one in node.all("/v1/sessions?limit=500").await {
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            if one["issuer"] == json!(provider.issuer) {
                found.push((text("actor"), text("role"), text("subject"), one["sessions"].clone()));
            }
        }
        found
    };
    let one = |actor: &str, role: &str, subject: &str, sessions: u64| {
        (
            format!("person:{actor}"),
            role.to_owned(),
            subject.to_owned(),
            json!(sessions),
        )
    };
    let mut expected = vec![
        one("ann-b@example.com", "viewer", "b", 2),
        one(mail, "admin", "a", 1),
        one(mail, "operator", mail, 1),
    ];
    let mut found = listed().await;
    let order = |one: &(String, String, String, Value)| one.2.clone();
    found.sort_by_key(order);
    expected.sort_by_key(order);
    assert_eq!(found, expected);
    // A page of one person each: none is passed over, and none comes twice.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = node
            .get(&format!("/v1/sessions?limit=1{cursor}"))
            .await
            .expect_status(200);
        paged.extend(page["items"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        let query = reqwest::Url::parse_with_params("http://h/", [("cursor", next)]).unwrap();
        cursor = format!("&{}", query.query().unwrap());
    }
    assert_eq!(paged, node.all("/v1/sessions?limit=500").await);
    // The page ends those of one of them.
    let admin = Visitor::signed_in(base, heddle_tests::TOKEN).await;
    let page = admin.get("/system/tokens").await.fine();
    assert!(
        page.contains("value=\"a\"") && page.contains(&format!("value=\"{mail}\"")),
        "{page}"
    );
    let end = "/system/sessions/person%3Aann@example.com/end";
    let form = [("issuer", provider.issuer.as_str()), ("subject", mail)];
    assert_eq!(admin.post(end, &form).await.status, 303);
    assert!(who(&visitors[2]).await.is_none());
    assert_eq!(listed().await.len(), 2);
    // By the name alone: all who have it, with all of their sessions.
    let path = "/v1/sessions/person:ann@example.com";
    node.delete(&format!("{path}?subject=other"))
        .await
        .expect_problem(404, &[]);
    let ended = node.delete(path).await.expect_status(200);
    assert_eq!(ended, json!({"ended": 3}));
    for visitor in &visitors {
        assert!(who(visitor).await.is_none());
    }
    let audit = audited(&node, "end_sessions").await;
    assert_eq!(
        audit[1]["before"],
        json!({"sessions": 1, "issuer": provider.issuer, "subject": mail})
    );
    assert_eq!(audit[0]["before"], json!({"sessions": 3}));
}

/// Providers keep ID tokens short: what groups somebody is in may have to be asked for.
#[tokio::test]
async fn roles_may_come_from_userinfo() {
    let world = World::new().await;
    let provider = FakeProvider::start().await;
    provider.tells(json!({"groups": ["heddle-ops"], "email": "ann@example.com"}));
    provider.knows(json!({"sub": "u-1", "groups": ["everybody"]}));
    let node = options(&world, &provider).start().await;
    let base = node.base();
    // A token that has the claim is not made up for.
    let viewer = signed_in(base, "/runs").await;
    assert_eq!(who(&viewer).await.unwrap()["role"], "viewer");
    assert_eq!(provider.userinfo_asked(), 0);
    provider.knows(json!({"sub": "u-1"}));
    let ann = signed_in(base, "/runs").await;
    let session = who(&ann).await.unwrap();
    assert_eq!(
        (&session["actor"], &session["role"]),
        (&json!("person:ann@example.com"), &json!("operator"))
    );
    assert_eq!(provider.userinfo_asked(), 1);
    // About somebody else, or missing: nobody signs in, and nobody gets another role.
    for (lie, status, words) in [
        (Lie::Person, 401_u16, "another person"),
        (Lie::Silent, 503, "does not answer"),
    ] {
        provider.lies(lie);
        let page = come_back(base, "/runs").await;
        assert_eq!(page.status, status, "{lie:?}: {}", page.text);
        assert!(
            page.text.contains(words) && cookies(&page.headers).is_empty(),
            "{lie:?}: {}",
            page.text
        );
    }
    assert_eq!(who(&ann).await.unwrap()["role"], "operator");
    // An admin signs her out, by the page.
    let admin = Visitor::signed_in(base, heddle_tests::TOKEN).await;
    let page = admin.get("/system/tokens").await.fine();
    let end = "/system/sessions/person%3Aann@example.com/end";
    assert!(page.contains(end) && page.contains("ann@example.com"), "{page}");
    let mut stream = ann.opens(&ann.get("/runs").await.fine()).await;
    hear(&mut stream, &["event: here"]).await;
    assert_eq!(
        ann.post(end, &[]).await.status,
        303,
        "what an operator may not do leads back"
    );
    assert!(who(&ann).await.is_some());
    assert_eq!(admin.post(end, &[]).await.status, 303);
    hear(&mut stream, &["event: over", "data: signed-out"]).await;
    assert!(who(&ann).await.is_none());
    assert!(!admin.get("/system/tokens").await.fine().contains(end));
}
