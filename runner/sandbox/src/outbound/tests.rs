use super::*;

#[test]
fn addresses() {
    let policy = OutboundPolicy::default();
    let check = |text: &str, public: bool| {
        assert_eq!(policy.check(text, text.parse().unwrap()).is_ok(), public, "{text}");
    };
    for private in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.127.255.255",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "2001:0:0:1::",
        "198.18.0.1",
        "192.0.2.1",
    ] {
        check(private, false);
    }
    for public in [
        "1.1.1.1",
        "172.32.0.1",
        "100.128.0.1",
        "8.8.8.8",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
    ] {
        check(public, true);
    }
}

#[test]
fn exceptions() {
    let listed = ["127.0.0.1", "10.1.0.0/16", "db.internal", "fd00::/8"].map(String::from);
    let policy = OutboundPolicy::new(&listed).unwrap();
    assert!(policy.check("x", "127.0.0.1".parse().unwrap()).is_ok());
    assert!(policy.check("x", "127.0.0.2".parse().unwrap()).is_err());
    assert!(policy.check("x", "10.1.255.1".parse().unwrap()).is_ok());
    assert!(policy.check("x", "10.2.0.1".parse().unwrap()).is_err());
    assert!(policy.check("DB.internal", "192.168.1.1".parse().unwrap()).is_ok());
    assert!(policy.check("x", "fd12::1".parse().unwrap()).is_ok());
    assert!(policy.check("x", "::ffff:127.0.0.1".parse().unwrap()).is_ok());
    assert!(
        policy
            .allowing_private()
            .check("x", "192.168.0.1".parse().unwrap())
            .is_ok()
    );
    assert!(OutboundPolicy::new(&["10.0.0.0/33".into()]).is_err());
    for wrong in ["what ever", "!!", "a*.internal", "*.", ""] {
        assert!(OutboundPolicy::new(&[wrong.into()]).is_err(), "{wrong}");
    }
}

/// A channel with `allow_private` does not reach the metadata services of clouds, unless the operator listed them.
#[test]
fn metadata() {
    let private = OutboundPolicy::default().allowing_private();
    let listed = OutboundPolicy::new(&["169.254.0.0/16".into()]).unwrap();
    let check = |policy: &OutboundPolicy, text: &str| policy.check("x", text.parse().unwrap()).is_ok();
    for address in [
        "169.254.169.254",
        "169.254.170.2",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "fe80::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
    ] {
        assert!(!check(&OutboundPolicy::default(), address), "{address}");
        assert!(!check(&private, address), "{address}");
    }
    assert!(check(&listed, "169.254.169.254") && !check(&listed, "10.0.0.1"));
    let named = OutboundPolicy::new(&["*.internal".into()]).unwrap();
    let named = |address: &str| {
        named
            .check("metadata.google.internal", address.parse().unwrap())
            .is_ok()
    };
    assert!(named("10.0.0.1") && !named("169.254.169.254"));
    for address in [
        "10.0.0.1",
        "127.0.0.1",
        "100.64.0.1",
        "192.168.1.1",
        "::1",
        "fd12::1",
        "168.63.129.17",
    ] {
        assert!(check(&private, address), "{address}");
    }
}

#[test]
fn urls() {
    let policy = OutboundPolicy::default();
    let check = |text: &str| policy.check_url(&Url::parse(text).unwrap());
    assert!(check("https://example.com/x").is_ok());
    assert!(check("http://127.0.0.1:80/").is_err());
    assert!(check("http://2130706433/").is_err());
    assert!(check("http://0x7f.1/").is_err());
    assert!(check("http://[::1]/").is_err());
    assert!(check("ftp://example.com/").is_err());
}

/// However a private address is written, nothing is sent to it: neither by its number nor by a name.
#[tokio::test]
async fn spellings() {
    let rebound = |name: &str| match name.trim_end_matches('.') {
        "private.example" => vec!["10.0.0.1".parse().unwrap()],
        "mapped.example" => vec!["::ffff:127.0.0.1".parse().unwrap()],
        "mixed.example" => vec!["1.1.1.1".parse().unwrap(), "127.0.0.1".parse().unwrap()],
        "metadata.example" => vec!["169.254.169.254".parse().unwrap()],
        name if name.ends_with("localhost") => vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        _ => Vec::new(),
    };
    let policy = OutboundPolicy::default().with_names(rebound);
    let client = policy.redirecting_client().unwrap();
    for spelled in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0x7F.0.0.0x1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[ff02::1]",
        "user:password@127.0.0.1",
        "example.com@127.0.0.1",
        "\u{2460}\u{2461}\u{2466}.0.0.1",
        "127\u{3002}0\u{3002}0\u{3002}1",
        "%31%32%37.0.0.1",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "private.example",
        "private.example.",
        "mapped.example",
        "mixed.example",
        "metadata.example",
        "nothing.example",
    ] {
        for scheme in ["http", "https"] {
            let text = format!("{scheme}://{spelled}:1/");
            let url = Url::parse(&text).unwrap();
            if policy.check_url(&url).is_ok() {
                let error = client.get(url).send().await.unwrap_err();
                assert!(refusal(&error).is_some(), "{text}: {error:?}");
            }
        }
    }
    for other in [
        "ftp://1.1.1.1/",
        "file:///etc/passwd",
        "data:,x",
        "gopher://1.1.1.1:70/",
    ] {
        let refused = policy.check_url(&Url::parse(other).unwrap()).unwrap_err();
        assert!(matches!(refused, Refused::NotHttp(_)), "{other}");
    }
}

/// A name has an allowed address at the first look-up, and another one afterwards: it is looked up once for each
/// connection, and the connection goes to the checked address.
#[tokio::test]
async fn answers_are_pinned() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (reached, mut by) = tokio::sync::mpsc::channel(4);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = reached.send(socket.local_addr().unwrap().ip()).await;
            let _ = socket.read(&mut [0; 1_024]).await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = socket.write_all(answer).await;
        }
    });
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let policy = OutboundPolicy::new(&["127.0.0.2".into()])
        .unwrap()
        .with_names(move |_| {
            let first = counter.fetch_add(1, Ordering::SeqCst) == 0;
            vec![if first { "127.0.0.2" } else { "127.0.0.1" }.parse().unwrap()]
        });
    let client = policy.client().unwrap();
    let url = format!("http://rebound.example:{port}/");
    assert!(client.get(&url).send().await.unwrap().status().is_success());
    assert_eq!(by.recv().await, Some("127.0.0.2".parse().unwrap()));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let error = client.get(&url).send().await.unwrap_err();
    assert!(matches!(refusal(&error), Some(Refused::Private { .. })), "{error:?}");
    assert!(by.try_recv().is_err(), "nothing was connected to");
}

#[test]
fn patterns() {
    let check = |pattern: &str, host: &str, port: u16, expect: bool| {
        let pattern: HostPattern = pattern.parse().unwrap();
        assert_eq!(pattern.matches(host, port), expect, "{pattern} {host}:{port}");
    };
    check("example.com", "EXAMPLE.com", 443, true);
    check("example.com", "example.com.", 443, true);
    check("example.com", "a.example.com", 443, false);
    check("*.example.com", "a.b.example.com", 80, true);
    check("*.example.com", "example.com", 80, false);
    check("*.example.com", "badexample.com", 80, false);
    check("example.com:8080", "example.com", 8080, true);
    check("example.com:8080", "example.com", 80, false);
    check("127.0.0.1:9000", "127.0.0.1", 9000, true);
    check("[::1]:9000", "[::1]", 9000, true);
    check("::1", "::1", 1, true);
    for wrong in [
        "",
        "*",
        "*.*.com",
        "a b",
        "example.com:x",
        "*.10.0.0.1",
        "http://example.com",
    ] {
        assert!(wrong.parse::<HostPattern>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn names_are_checked_as_they_are_resolved() {
    let policy = OutboundPolicy::default();
    assert!(matches!(
        policy.resolve("localhost", 80).await,
        Err(Refused::Private { .. })
    ));
    let client = policy.client().unwrap();
    let error = client.get("http://localhost:1/").send().await.unwrap_err();
    assert!(matches!(refusal(&error), Some(Refused::Private { .. })), "{error:?}");
}

/// A host that is listed with a port is reached at that port, by its address and by its name.
#[tokio::test]
async fn listed_ports_count() {
    let listed = ["127.0.0.1:9151", "localhost:9151", "*.internal:443", "[::1]:80"].map(str::to_owned);
    let policy = OutboundPolicy::new(&listed).unwrap();
    let check = |policy: &OutboundPolicy, text: &str| policy.check_url(&Url::parse(text).unwrap()).is_ok();
    for (text, reached) in [
        ("http://127.0.0.1:9151/", true),
        ("http://127.0.0.1:9152/", false),
        ("http://127.0.0.1/", false),
        ("http://[::1]/", true),
        ("https://[::1]/", false),
        ("http://localhost:9151/", true),
        ("http://LOCALHOST.:9152/", false),
        ("https://db.internal/", true),
        ("http://db.internal/", false),
        // These are not listed: public addresses are reached at any port.
        ("http://1.1.1.1:9152/", true),
        ("http://example.com:9152/", true),
    ] {
        assert_eq!(check(&policy, text), reached, "{text}");
    }
    assert!(policy.resolve("localhost", 9151).await.is_ok());
    // A host that is also listed without a port is not restricted; nor is one that a channel's administrator wrote
    // down.
    let both = ["localhost:9151", "localhost"].map(str::to_owned);
    assert!(check(&OutboundPolicy::new(&both).unwrap(), "http://localhost:9152/"));
    assert!(check(&policy.allowing_private(), "http://localhost:9152/"));
}
