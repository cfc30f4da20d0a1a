//! Descriptions of the API, each made and compressed once.

use std::io::Write;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use heddle_api::accepts;

/// A text that is made once, and compressed once.
pub(crate) struct Kept {
    media: &'static str,
    plain: Bytes,
    gzipped: Option<Bytes>,
}

impl Kept {
    pub(crate) fn new(media: &'static str, text: String) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(text.as_bytes());
        Self {
            media,
            gzipped: written.and_then(|()| encoder.finish()).ok().map(Bytes::from),
            plain: text.into(),
        }
    }

    /// The text, compressed for those who accept it.
    pub(crate) fn answer(&self, headers: &HeaderMap) -> Response {
        let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
        let takes_gzip = accepts(accepted.filter_map(|value| value.to_str().ok()), "gzip");
        let about = [(header::CONTENT_TYPE, self.media), (header::VARY, "accept-encoding")];
        match &self.gzipped {
            Some(gzipped) if takes_gzip => {
                (about, [(header::CONTENT_ENCODING, "gzip")], gzipped.clone()).into_response()
            }
            _ => (about, self.plain.clone()).into_response(),
        }
    }
}
