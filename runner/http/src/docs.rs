//! The description of the API as a page: one HTML document that needs nothing else, with the same content as the
//! OpenAPI description.

use std::collections::BTreeSet;
use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::openapi;
use crate::table::{Route, Table};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--dim:light-dark(#666,#9a9a9a);background:light-dark(#fff,#121212);color:light-dark(#111,#eee)}\
a{color:light-dark(#1d4fc0,#8db4ff)}\
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem}\
nav{display:flex;flex-wrap:wrap;gap:.2rem .8rem}h2{border-bottom:1px solid var(--line);margin-top:2.5rem}\
details{border:1px solid var(--line);border-radius:6px;margin:.4rem 0;padding:.4rem .7rem}\
summary{cursor:pointer}code,pre{font:13px/1.45 ui-monospace,monospace}\
pre{overflow-x:auto;padding:.6rem;background:#8881;border-radius:6px;scroll-margin-top:4rem}\
.method{display:inline-block;min-width:4.2rem;font-weight:600}.dim{color:var(--dim)}\
table{border-collapse:collapse;width:100%}td{border-top:1px solid var(--line);padding:.2rem .6rem .2rem 0;vertical-align:top}\
code,td{overflow-wrap:anywhere}td:first-child{white-space:nowrap}";

/// The Content-Security-Policy of the page: nothing but its own style, by the hash of that, and its empty icon.
pub fn policy() -> String {
    let style = STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; img-src data:; form-action 'none'; base-uri 'none'; \
         frame-ancestors 'none'"
    )
}

pub fn page(table: &Table) -> String {
    let document = openapi::document(table);
    let mut html = String::with_capacity(256 * 1024);
    html.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.push_str("<link rel=\"icon\" href=\"data:,\"><title>Heddle API</title><style>");
    html.push_str(STYLE);
    html.push_str("</style></head><body><header><p><a href=\"/\">← Heddle</a></p><h1>Heddle API</h1><p>JSON under <code>/v1</code>. Every error is a problem body (RFC 9457). As OpenAPI 3.1: <a href=\"/v1/openapi.json\">/v1/openapi.json</a>.</p></header><nav>");
    let mut tags: Vec<&str> = Vec::new();
    for route in table.routes() {
        if !tags.contains(&route.tag) {
            tags.push(route.tag);
        }
    }
    for tag in tags.iter().chain(&["schemas", "examples"]) {
        let _ = write!(html, "<a href=\"#{tag}\">{tag}</a>");
    }
    html.push_str("</nav><main>");
    for tag in tags {
        let _ = write!(html, "<h2 id=\"{tag}\">{tag}</h2>");
        for route in table.routes().iter().filter(|route| route.tag == tag) {
            let method = route.method.as_str().to_lowercase();
            operation(&mut html, route, &document["paths"][route.path][method]);
        }
    }
    let components = &document["components"];
    html.push_str("<h2 id=\"schemas\">schemas</h2>");
    for (name, schema) in components["schemas"].as_object().into_iter().flatten() {
        component(&mut html, "schema", name, schema);
    }
    html.push_str("<h2 id=\"examples\">examples</h2>");
    for (name, example) in components["examples"].as_object().into_iter().flatten() {
        component(&mut html, "example", name, &example["value"]);
    }
    html.push_str("</main></body></html>");
    html
}

/// A schema or an example, under the name by which operations refer to it. The name is inside: a browser opens what holds
/// the target of a link, not what is the target.
fn component(html: &mut String, kind: &str, name: &str, shown: &Value) {
    let _ = write!(
        html,
        "<details><summary><code>{name}</code></summary><pre id=\"{kind}-{name}\">"
    );
    escape(html, &pretty(shown));
    html.push_str("</pre></details>");
}

/// An operation; `described` is what the OpenAPI description says of it.
fn operation(html: &mut String, route: &Route, described: &Value) {
    let _ = write!(
        html,
        "<details><summary><span class=\"method\">{}</span><code>",
        route.method.as_str()
    );
    escape(html, route.path);
    html.push_str("</code> <span class=\"dim\">");
    escape(html, route.summary);
    html.push_str("</span></summary>");
    for text in [route.detail, route.access.described()]
        .into_iter()
        .filter(|text| !text.is_empty())
    {
        html.push_str("<p>");
        escape(html, text);
        html.push_str("</p>");
    }
    html.push_str("<table>");
    for param in &route.query {
        let _ = write!(html, "<tr><td><code>?{}</code></td><td>", param.name);
        escape(html, param.detail);
        html.push_str("</td></tr>");
    }
    bodies(html, "body", &described["requestBody"]);
    let mut shown = BTreeSet::new();
    for (status, media, _) in route.answers.iter().filter(|(status, ..)| shown.insert(*status)) {
        match media {
            Some(_) => bodies(html, status, &described["responses"][status.to_string()]),
            None => {
                let _ = write!(html, "<tr><td>{status}</td><td></td></tr>");
            }
        }
    }
    for (status, when) in &route.problems {
        let _ = write!(html, "<tr><td>{status}</td><td>");
        escape(html, when);
        html.push_str("</td></tr>");
    }
    html.push_str("</table></details>");
}

/// A row for each media type.
fn bodies(html: &mut String, title: impl std::fmt::Display, described: &Value) {
    for (media_type, body) in described["content"].as_object().into_iter().flatten() {
        let schema = body["schema"]["$ref"]
            .as_str()
            .and_then(|target| target.rsplit('/').next());
        let _ = write!(html, "<tr><td>{title}</td><td>");
        if let Some(schema) = schema {
            let _ = write!(html, "<a href=\"#schema-{schema}\">{schema}</a> ");
        }
        let _ = write!(html, "<span class=\"dim\">{media_type}</span>");
        for name in body["examples"].as_object().into_iter().flat_map(Map::keys) {
            let _ = write!(html, " <a href=\"#example-{name}\">example</a>");
        }
        html.push_str("</td></tr>");
    }
}

fn pretty(shown: &Value) -> String {
    serde_json::to_string_pretty(shown).unwrap_or_default()
}

fn escape(html: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            '"' => html.push_str("&quot;"),
            _ => html.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_needs_nothing_else() {
        let page = super::page(&crate::routes::table());
        assert!(page.contains("/v1/groups/{name}"));
        assert!(page.contains("<a href=\"/\">"), "there is a way back to the pages");
        // All text is within a landmark, and each theme has colours of its own, not those of the browser.
        assert!(page.contains("<body><header>") && page.contains("</header><nav>") && page.contains("</nav><main>"));
        assert!(page.contains("background:light-dark("));
        // The policy lets through this style alone.
        assert_eq!(page.matches("<style>").count(), 1);
        assert!(page.contains(&format!("<style>{}</style>", super::STYLE)));
        assert!(!page.contains(" style=\""));
        for outside in ["<script", "src=", "https://", "http://", "@import"] {
            assert!(
                !page.split("<h2 id=\"schemas\"").next().unwrap().contains(outside),
                "{outside}"
            );
        }
    }
}
