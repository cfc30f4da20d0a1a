//! The limit to which empty polls are compared (`cargo bench -p heddle-tests --bench dispatch`): an axum handler that
//! answers 204 and does nothing else. Prints its address and serves until it is killed.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;

#[tokio::main]
async fn main() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let router = Router::new().route("/v1/dispatch/{uid}/next", post(async || StatusCode::NO_CONTENT));
    axum::serve(listener, router).await.expect("it serves");
}
