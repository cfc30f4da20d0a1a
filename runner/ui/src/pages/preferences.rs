//! Language, theme and zone: kept in the browser, so that they are there before anybody signs in.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use maud::html;

use super::answer::{Answer, set_cookie};
use crate::ctx::Theme;
use crate::elements::{fault, fault_id};
use crate::frame::Page;
use crate::home::form_home;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble};

const YEAR: &str = "Path=/; Max-Age=31536000; SameSite=Lax";

/// The zones that are offered; people can write any other.
const ZONES: [&str; 14] = [
    "UTC",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Asia/Singapore",
    "Asia/Kolkata",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Moscow",
    "America/New_York",
    "America/Chicago",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Australia/Sydney",
    "Africa/Nairobi",
];

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    if ctx.posts() {
        return Ok(Answer::Raw(Box::new(change(ctx)?)));
    }
    let title = t!(ctx, "nav-preferences");
    let body = html! {
        div.heading { h1 { (title) } }
        form.panel.fields method="post" action="/preferences" {
            fieldset.field {
                legend { (t!(ctx, "language")) }
                @for lang in Lang::ALL {
                    label { input type="radio" name="lang" value=(lang.code()) checked[lang.code() == ctx.typed("lang").unwrap_or(ctx.lang.code())]; span lang=(lang.tag()) { (lang.own_name()) } }
                }
            }
            fieldset.field {
                legend { (t!(ctx, "theme")) }
                @for theme in Theme::ALL {
                    label { input type="radio" name="theme" value=(theme.code()) checked[theme.code() == ctx.typed("theme").unwrap_or(ctx.theme.code())]; (t!(ctx, &format!("theme-{}", theme.code()))) }
                }
            }
            label.field {
                span { (t!(ctx, "time-zone")) }
                input type="text" name="zone" value=(ctx.typed("zone").unwrap_or(ctx.zone.name())) list="zones" autocomplete="off" aria-invalid=[ctx.fault("zone").map(|_| "true")] aria-describedby=[fault_id(ctx, "zone")];
                (fault(ctx, "zone"))
                datalist #zones { @for zone in ZONES { option value=(zone) {} } }
            }
            div { button.primary type="submit" { (t!(ctx, "save")) } }
        }
    };
    Answer::page(Page::new("preferences", title, body))
}

fn change(ctx: &Ctx) -> Result<Response, Trouble> {
    let mut response = Response::new(Body::empty());
    for (name, value) in ctx.form() {
        match name.as_str() {
            "lang" => {
                if let Some(lang) = Lang::parse(&value) {
                    set_cookie(&mut response, &format!("heddle_lang={}; {YEAR}", lang.code()));
                }
            }
            "theme" => {
                if let Some(theme) = Theme::ALL.into_iter().find(|theme| theme.code() == value) {
                    set_cookie(&mut response, &format!("heddle_theme={}; {YEAR}", theme.code()));
                }
            }
            "zone" => {
                let zone: chrono_tz::Tz = value
                    .parse()
                    .map_err(|_| Trouble::at("/zone", t!(ctx, "zone-unknown", name = &value)))?;
                let name = percent_encoding::utf8_percent_encode(zone.name(), percent_encoding::NON_ALPHANUMERIC);
                set_cookie(&mut response, &format!("heddle_zone={name}; {YEAR}"));
            }
            _ => {}
        }
    }
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(value) = HeaderValue::from_str(&form_home(ctx)) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    Ok(response)
}
