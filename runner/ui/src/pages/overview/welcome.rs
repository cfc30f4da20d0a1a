//! The greeting of an empty database.

use maud::{Markup, html};

use crate::Ctx;
use crate::words::t;

/// The first steps: a script that is one file needs no compiler.
const STEPS: [(&str, &str); 3] = [
    (
        "welcome-script",
        "heddle script new hello --lang javascript\nheddle script push hello hello/hello.js",
    ),
    (
        "welcome-group",
        "cat > hello.yaml <<'END'\nkind: group\nname: hello\ntasks:\n  greet: { script: hello }\nEND\nheddle apply -f hello.yaml",
    ),
    ("welcome-run", "heddle run start hello --watch"),
];

/// The node that commands use by default.
const USUAL_HOST: &str = "127.0.0.1:8080";

/// What a shell needs before the commands reach this node: its address, unless it is the usual one, and a token.
fn reaching(ctx: &Ctx) -> String {
    let plain = |host: &&str| {
        host.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter))
    };
    let host = ctx.header("host").filter(plain).unwrap_or(USUAL_HOST);
    let scheme = match ctx.header("x-forwarded-proto") {
        Some("https") => "https",
        _ => "http",
    };
    let mut lines = String::new();
    if host != USUAL_HOST || scheme == "https" {
        lines.push_str(&format!("export HEDDLE_URL={scheme}://{host}\n"));
    }
    if !ctx.viewer.dev {
        lines.push_str("export HEDDLE_TOKEN=...\n");
    }
    lines
}

/// The greeting of an empty database, with the first steps.
pub(super) fn inside(ctx: &Ctx) -> Markup {
    let reaching = reaching(ctx);
    html! {
        section.panel {
            h2 { (t!(ctx, "welcome")) }
            ol.steps {
                @for (index, (word, commands)) in STEPS.into_iter().enumerate() {
                    @let commands = if index == 0 { format!("{reaching}{commands}") } else { commands.to_owned() };
                    li {
                        div.row { h3.grow { (t!(ctx, word)) } button.small type="button" data-copy=(commands) { (t!(ctx, "copy")) } }
                        pre { (commands) }
                    }
                }
            }
        }
    }
}
