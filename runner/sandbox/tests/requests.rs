//! `wasi:http` by the policy. (Requests of real guests are in the end-to-end tests; here, the client that they use.)

use crate::guests::Bench;
use heddle_sandbox::outbound::{read_bounded, refusal};
use heddle_sandbox::{OutboundPolicy, Refused};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn serve(response: &'static str) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1_024];
                let _ = socket.read(&mut buffer).await;
                let _ = socket.write_all(response.as_bytes()).await;
            });
        }
    });
    address
}

pub async fn policy(_: Bench) {
    let address = serve("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").await;
    let listed = OutboundPolicy::new(&["127.0.0.1".into()]).unwrap();
    let client = listed.client().unwrap();
    let get = async |url: String| client.get(url).send().await.unwrap();
    let body = read_bounded(get(format!("http://{address}/")).await, 5).await.unwrap();
    assert_eq!(body.as_deref(), Some(&b"hello"[..]));
    assert_eq!(
        read_bounded(get(format!("http://{address}/")).await, 4).await.unwrap(),
        None
    );
    // By name it is the address that counts.
    let by_name = format!("http://localhost:{}/", address.port());
    let error = OutboundPolicy::default()
        .client()
        .unwrap()
        .get(&by_name)
        .send()
        .await
        .unwrap_err();
    assert!(matches!(refusal(&error), Some(Refused::Private { .. })));
    // A redirect to where the request may not go.
    let redirect = serve("HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n").await;
    let error = listed
        .redirecting_client()
        .unwrap()
        .get(format!("http://{redirect}/"))
        .send()
        .await
        .unwrap_err();
    assert!(matches!(refusal(&error), Some(Refused::Private { .. })), "{error:?}");
    assert_eq!(get(format!("http://{redirect}/")).await.status(), 302);
}
