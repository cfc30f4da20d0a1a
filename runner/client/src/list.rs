//! Lists come in pages.

use heddle_api::List;
use serde::de::DeserializeOwned;

use crate::{Client, Error, Request, Result, address};

/// The pages of a list, one after the other.
#[derive(Debug)]
pub struct Pages {
    client: Client,
    /// The request for the next page; `None` after the last one.
    next: Option<Request>,
}

impl Pages {
    /// The next page; `None` after the last one. A page may be empty although more pages follow.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<List<T>>> {
        let Some(request) = self.next.take() else {
            return Ok(None);
        };
        let again = request.page(&self.client, None);
        let sent = request.value_of("cursor");
        let page: List<T> = request.send().await?;
        if page.next_cursor.is_some() && page.next_cursor == sent {
            return Err(Error::Unexpected {
                url: address::shown(again.url()).to_string(),
                detail: "the next page of the list is the same page".into(),
            });
        }
        let cursor = page.next_cursor.as_deref();
        self.next = cursor.map(|cursor| again.page(&self.client, Some(cursor)));
        Ok(Some(page))
    }

    /// Asks for at most so many things on the next page, if the request says how many it wants.
    fn at_most(&mut self, left: usize) {
        let limit = |request: &Request| request.value_of("limit")?.parse::<usize>().ok();
        if let Some(request) = &self.next
            && limit(request).is_some_and(|limit| limit > left)
        {
            self.next = Some(request.with(&self.client, "limit", Some(&left.to_string())));
        }
    }
}

impl Request {
    /// The pages of this GET of a list.
    pub fn pages(self, client: &Client) -> Pages {
        Pages {
            client: client.clone(),
            next: Some(self),
        }
    }

    /// Sends this GET of a list again and again until the last page, or until `max` things are there. If there are more,
    /// `next_cursor` is where they begin. Without a `limit` in the request, the last page is kept whole: there can be more
    /// than `max` things.
    pub async fn send_for_all<T: DeserializeOwned>(self, client: &Client, max: usize) -> Result<List<T>> {
        let mut pages = self.pages(client);
        let mut all = List {
            items: Vec::new(),
            next_cursor: None,
        };
        while all.items.len() < max {
            pages.at_most(max - all.items.len());
            let Some(page) = pages.next::<T>().await? else { break };
            all.items.extend(page.items);
            all.next_cursor = page.next_cursor;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers with these pages, one after the other. Returns the lines of the requests.
    async fn answers(listener: TcpListener, pages: Vec<Value>) -> Vec<String> {
        let mut lines = Vec::new();
        for page in pages {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            let line = String::from_utf8_lossy(&request).lines().next().unwrap().to_owned();
            lines.push(line);
            let (head, body) = (
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json",
                page.to_string(),
            );
            let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        lines
    }

    fn page(items: &[u32], next: Option<&str>) -> Value {
        json!({"items": items, "next_cursor": next})
    }

    async fn listed(pages: Vec<Value>, limit: Option<u32>, max: usize) -> (Result<List<u32>>, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(answers(listener, pages));
        let client = Client::new(&url, None).unwrap();
        let request = client.get(&["l"]).query_if("limit", limit);
        let all = request.send_for_all(&client, max).await;
        (all, server.await.unwrap())
    }

    #[tokio::test]
    async fn an_empty_page_is_not_the_end_of_a_list() {
        let pages = vec![page(&[1], Some("a")), page(&[], Some("b")), page(&[2], None)];
        let (all, asked) = listed(pages, None, 10).await;
        let all = all.unwrap();
        assert_eq!((all.items, all.next_cursor), (vec![1, 2], None));
        assert!(asked[2].starts_with("GET /l?cursor=b "), "{asked:?}");
    }

    #[tokio::test]
    async fn a_list_that_is_cut_says_where_it_goes_on() {
        let pages = vec![page(&[1, 2], Some("a")), page(&[3], Some("b"))];
        let (all, asked) = listed(pages, Some(2), 3).await;
        let all = all.unwrap();
        assert_eq!((all.items, all.next_cursor.as_deref()), (vec![1, 2, 3], Some("b")));
        assert!(
            asked[0].contains("limit=2") && asked[1].contains("limit=1"),
            "{asked:?}"
        );
    }

    #[tokio::test]
    async fn a_list_that_goes_round_is_an_error() {
        let (all, _) = listed(vec![page(&[1], Some("a")), page(&[1], Some("a"))], None, 10).await;
        assert!(matches!(all, Err(Error::Unexpected { .. })), "{all:?}");
    }
}
