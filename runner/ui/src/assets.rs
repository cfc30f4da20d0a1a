//! Styles and scripts: embedded, named by the hash of what they are, compressed once, kept by browsers for ever.

use std::io::Write;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use heddle_api::accepts;
use heddle_domain::hex;
use sha2::{Digest, Sha256};

struct Asset {
    name: &'static str,
    media: &'static str,
    /// The name in its address.
    hashed: String,
    plain: &'static [u8],
    gzipped: Bytes,
}

const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

macro_rules! embedded {
    ($($name:literal $media:ident),+ $(,)?) => {
        [$(($name, $media, include_bytes!(concat!("../assets/", $name)).as_slice())),+]
    };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    embedded![
        "tokens.css" CSS,
        "heddle.css" CSS,
        "vendor/htmx-2.0.11.min.js" JS,
        "vendor/idiomorph-ext-0.7.4.min.js" JS,
        "vendor/htmx-ext-sse-2.2.4.min.js" JS,
        "heddle.js" JS,
        "times.js" JS,
        "keys.js" JS,
        "picture.js" JS,
        "vendor/prism-core-1.30.0.min.js" JS,
        "vendor/prism-yaml-1.30.0.min.js" JS,
        "vendor/prism-json-1.30.0.min.js" JS,
        "editor.js" JS,
    ]
    .into_iter()
    .map(|(name, media, plain)| {
        let digest = Sha256::digest(plain);
        let hash = hex(&digest[..6]);
        let file = name.rsplit('/').next().unwrap_or(name);
        let (stem, ending) = file.rsplit_once('.').unwrap_or((file, ""));
        Asset {
            name,
            media,
            hashed: format!("{stem}.{hash}.{ending}"),
            plain,
            gzipped: gzip(plain, Compression::best()),
        }
    })
    .collect()
});

/// The compressed bytes. Writing to memory does not fail; if it did, they would be empty.
pub(crate) fn gzip(bytes: &[u8], level: Compression) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 3), level);
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default().into()
}

/// Whether a browser accepts compressed answers.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    accepts(accepted.filter_map(|value| value.to_str().ok()), "gzip")
}

/// The address of an asset.
pub(crate) fn address(name: &str) -> String {
    let hashed = ASSETS
        .iter()
        .find(|asset| asset.name == name)
        .map_or(name, |asset| asset.hashed.as_str());
    format!("/assets/{hashed}")
}

/// The asset of an address.
pub(crate) fn serve(file: &str, headers: &HeaderMap) -> Option<Response> {
    let asset = ASSETS.iter().find(|asset| asset.hashed == file)?;
    let mut response = Response::builder()
        .status(StatusCode::OK)
        .header(header::CONTENT_TYPE, asset.media)
        .header(header::CACHE_CONTROL, "public, max-age=31536000, immutable")
        .header(header::VARY, "accept-encoding");
    let body = if takes_gzip(headers) {
        response = response.header(header::CONTENT_ENCODING, "gzip");
        asset.gzipped.clone()
    } else {
        Bytes::from_static(asset.plain)
    };
    response.body(Body::from(body)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum compressed size of all scripts together.
    const SCRIPTS_BYTES_MAX: usize = 80_000;

    #[test]
    fn scripts_stay_light() {
        let bytes: usize = ASSETS
            .iter()
            .filter(|asset| asset.media == JS)
            .map(|asset| asset.gzipped.len())
            .sum();
        assert!(bytes <= SCRIPTS_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn an_asset_is_found_by_its_hash_only() {
        let address = address("heddle.css");
        let file = address.strip_prefix("/assets/").unwrap();
        assert!(file.starts_with("heddle.") && file != "heddle.css");
        assert!(serve(file, &HeaderMap::new()).is_some());
        assert!(serve("heddle.css", &HeaderMap::new()).is_none());
    }

    #[test]
    fn what_is_vendored_is_what_was_published() {
        let list = include_str!("../assets/vendor/VENDORED.md");
        for asset in ASSETS.iter().filter(|asset| asset.name.starts_with("vendor/")) {
            let digest = hex(&Sha256::digest(asset.plain)[..]);
            assert!(list.contains(&digest), "{} is not what VENDORED.md says", asset.name);
        }
    }
}
