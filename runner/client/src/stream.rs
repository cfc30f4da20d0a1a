//! Answers without an end: server-sent events, and lines of JSON.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use heddle_domain::framed;
use serde::de::DeserializeOwned;
use url::Url;

use crate::error::{Error, Result};
use crate::request::{Request, unreachable};

/// The longest line that is taken in.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Lines of an answer, as they come.
pub struct Lines {
    url: Url,
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    rest: BytesMut,
    ended: bool,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

impl Lines {
    /// The next line without its end; `None` once the answer has ended.
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                return Ok(Some(String::from_utf8_lossy(line).into_owned()));
            }
            if self.ended {
                let line = self.rest.split();
                return Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()));
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) if self.rest.len() + chunk.len() <= MAX_LINE_BYTES => {
                    self.rest.extend_from_slice(&chunk)
                }
                Some(Ok(_)) => {
                    let detail = format!("a line is longer than {MAX_LINE_BYTES} bytes");
                    return Err(Error::Unexpected {
                        url: self.url.to_string(),
                        detail,
                    });
                }
                Some(Err(source)) => return Err(unreachable(&self.url, source)),
                None => self.ended = true,
            }
        }
    }

    /// The next line that is not empty, read as JSON (NDJSON).
    pub async fn next_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        while let Some(line) = self.next().await? {
            if line.trim().is_empty() {
                continue;
            }
            return framed::read(&line).map(Some).map_err(|error| Error::Unexpected {
                url: self.url.to_string(),
                detail: error.to_string(),
            });
        }
        Ok(None)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its kind; `message` if the server gives none.
    pub event: String,
    /// Its data, usually JSON.
    pub data: String,
    /// Where to continue after a break, for the header `Last-Event-ID`.
    pub id: Option<String>,
}

/// Server-sent events, as they come.
#[derive(Debug)]
pub struct ServerEvents {
    lines: Lines,
}

impl ServerEvents {
    /// The next event; `None` once the answer has ended.
    pub async fn next(&mut self) -> Result<Option<ServerEvent>> {
        let mut event = ServerEvent::default();
        let mut data: Vec<String> = Vec::new();
        while let Some(line) = self.lines.next().await? {
            if line.is_empty() {
                if data.is_empty() {
                    event = ServerEvent::default();
                    continue;
                }
                event.data = data.join("\n");
                if event.event.is_empty() {
                    event.event = "message".into();
                }
                return Ok(Some(event));
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "event" => event.event = value,
                "data" => data.push(value),
                "id" => event.id = Some(value),
                _ => {} // comments keep the connection alive
            }
        }
        Ok(None)
    }
}

impl Request {
    /// Sends it and follows the answer's lines, which are of this media type.
    pub async fn send_for_lines(self, media_type: &str) -> Result<Lines> {
        let response = self.send_for_stream(media_type).await?;
        let url = response.url().clone();
        Ok(Lines {
            url,
            chunks: response.bytes_stream().boxed(),
            rest: BytesMut::new(),
            ended: false,
        })
    }

    /// Sends it and follows the server-sent events.
    pub async fn send_for_events(self) -> Result<ServerEvents> {
        const MEDIA_TYPE: &str = "text/event-stream";
        let request = self.header(reqwest::header::ACCEPT, MEDIA_TYPE);
        let lines = request.send_for_lines(MEDIA_TYPE).await?;
        Ok(ServerEvents { lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &'static [&'static str]) -> Lines {
        let chunks = futures::stream::iter(chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes())))).boxed();
        Lines {
            url: Url::parse("http://x/").unwrap(),
            chunks,
            rest: BytesMut::new(),
            ended: false,
        }
    }

    #[tokio::test]
    async fn events_are_put_together_from_any_chunks() {
        let chunks = &[
            "eve",
            "nt: task\nda",
            "ta: {\"a\":\ndata: 1}\nid: 7\n",
            "\n: alive\n\n",
            "data: end\r\n\r\nda",
        ];
        let mut events = ServerEvents { lines: lines(chunks) };
        let first = events.next().await.unwrap().unwrap();
        let wanted = ServerEvent {
            event: "task".into(),
            data: "{\"a\":\n1}".into(),
            id: Some("7".into()),
        };
        assert_eq!(first, wanted);
        assert_eq!(events.next().await.unwrap().unwrap().data, "end");
        assert_eq!(events.next().await.unwrap(), None, "an event that was cut off is none");
    }

    #[tokio::test]
    async fn the_last_line_needs_no_end() {
        let mut lines = lines(&["{\"a\":1}\n\n{\"a\"", ":2}"]);
        let mut read = Vec::new();
        while let Some(value) = lines.next_json::<serde_json::Value>().await.unwrap() {
            read.push(value["a"].as_u64().unwrap());
        }
        assert_eq!(read, [1, 2]);
    }
}
