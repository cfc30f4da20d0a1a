//! The server that commands talk to, and the format of their output.

use anyhow::{Result, bail};
use clap::Args;
use heddle_client::{Client, List, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::document::Kind;
use crate::exit::Hint;
use crate::output::Format;
use crate::terminal::tell;

/// The heading in the help for the options that all commands share. They come after the command's own options.
const HEADING: &str = "Server and output";
const ORDER: usize = 900;

/// The server that commands talk to unless they are told another.
pub(crate) const URL_DEFAULT: &str = "http://127.0.0.1:8080";

/// Options of every command that talks to a server.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    // clap does not read the variables: it would take one for a typed option, answer `heddle` alone with an error instead
    // of the help, and show errors of usage as if `--url` had to be given.
    /// The address of the server [env: HEDDLE_URL] [default: http://127.0.0.1:8080]
    #[arg(long, global = true, help_heading = HEADING, display_order = ORDER, value_name = "URL")]
    pub url: Option<String>,
    /// The token for the server. `heddle dev` needs no token [env: HEDDLE_TOKEN]
    #[arg(long, global = true, help_heading = HEADING, display_order = ORDER, value_name = "TOKEN")]
    pub token: Option<String>,
    /// How answers are printed
    #[arg(
        short,
        long,
        global = true,
        help_heading = HEADING,
        display_order = ORDER,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub output: Format,
}

/// The value that was typed, or else the value of an environment variable. An empty value counts as none.
pub(crate) fn or_variable(typed: Option<String>, variable: &str) -> Option<String> {
    let said = |text: &String| !text.is_empty();
    typed.filter(said).or_else(|| std::env::var(variable).ok().filter(said))
}

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) output: Format,
}

/// An object on the server that a command names.
pub(crate) struct Named {
    /// The word for it: group, ...
    pub(crate) kind: &'static str,
    /// The part of the API's path that lists its kind.
    pub(crate) list: &'static str,
    /// The name, as it was typed.
    pub(crate) name: String,
}

impl Session {
    pub(crate) fn open(connection: &Connection) -> Result<Self> {
        let url = or_variable(connection.url.clone(), "HEDDLE_URL");
        let token = or_variable(connection.token.clone(), "HEDDLE_TOKEN");
        let client = Client::new(url.as_deref().unwrap_or(URL_DEFAULT), token.as_deref())?;
        Ok(Self {
            client,
            output: connection.output,
        })
    }

    /// Adds to an error about an unknown group the name of a similar group.
    pub(crate) async fn with_group_meant(&self, error: anyhow::Error, group: &str) -> anyhow::Error {
        let named = Named {
            kind: "group",
            list: "groups",
            name: group.to_owned(),
        };
        self.with_meant(error, &named).await
    }

    /// Adds to an error about an unknown object a similar name of the same kind.
    pub(crate) async fn with_meant(&self, error: anyhow::Error, named: &Named) -> anyhow::Error {
        let unknown = error
            .downcast_ref::<heddle_client::Error>()
            .and_then(heddle_client::Error::problem)
            .is_some_and(|problem| problem.status == 404);
        // An error with a hint already says what may be meant.
        if !unknown || error.downcast_ref::<Hint>().is_some() {
            return error;
        }
        let request = self.client.get(&["v1", named.list]);
        let Ok(List { items: things, .. }) = request.send_for_all::<Value>(&self.client, MAX_LISTED).await else {
            return error;
        };
        let names = things.iter().filter_map(|thing| thing["name"].as_str());
        if names.clone().any(|name| name == named.name) {
            // The object exists; the error is about a part of it.
            return error;
        }
        match nearest(names, &named.name) {
            Some(name) => error.context(Hint(format!("did you mean the {} `{name}`?", named.kind))),
            None => error,
        }
    }

    /// The address of a page that shows something. A password of the server's address is not for terminals and logs.
    pub(crate) fn page(&self, path: &[&str]) -> String {
        let mut url = self.client.shown_base();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url.into()
    }

    /// Prints the address of a page, for people: on stderr, since programs read stdout.
    pub(crate) fn tell_page(&self, path: &[&str]) {
        if self.output == Format::Table {
            tell!("{}", self.page(path));
        }
    }

    /// Gets and prints one thing of a kind.
    pub(crate) async fn show(&self, kind: &str, path: &[&str]) -> Result<()> {
        let value = self.client.get(path).send_for_object().await?;
        self.output.print_thing(&self.output.with_kind(kind, value))
    }

    /// Gets and prints an object that `apply` puts.
    pub(crate) async fn show_document(&self, kind: Kind, name: &str) -> Result<()> {
        let value = self.client.get_named(kind.path(), name).await?;
        self.output.print_thing(&self.output.with_kind(kind.as_str(), value))
    }

    /// Gets and prints a list, whole or one page of it.
    pub(crate) async fn list(&self, path: &[&str], columns: &[(&str, &str)]) -> Result<()> {
        let page = self.listed(self.client.get(path)).await?;
        self.output.print_list(&serde_json::json!(page), columns)
    }

    /// All things of a list, for what must not miss one: more than [`MAX_LISTED`] are an error.
    pub(crate) async fn all<T: DeserializeOwned>(&self, request: Request) -> Result<Vec<T>> {
        let all = request.send_for_all(&self.client, MAX_LISTED).await?;
        if all.next_cursor.is_some() {
            bail!("the server lists more than {MAX_LISTED} things, and this command reads no more");
        }
        Ok(all.items)
    }

    /// The things of a list that are printed, about [`MAX_LISTED`] of them. If there are more, stderr says so, and JSON has
    /// the cursor of the next page.
    pub(crate) async fn listed(&self, request: Request) -> Result<List<Value>> {
        let mut page: List<Value> = request.send_for_all(&self.client, MAX_LISTED).await?;
        if page.next_cursor.is_some() {
            tell!(
                "warning: there are more; only the first {} are listed",
                page.items.len()
            );
        }
        if self.output == Format::Table {
            // These commands have no `--cursor` that a table could name.
            page.next_cursor = None;
        }
        Ok(page)
    }

    /// Refuses a misspelled name: if a list that is limited to one object is empty, the object must exist. If the list
    /// is not empty, the object may have been deleted.
    pub(crate) async fn has_to_be(&self, found: &[Value], kind: &str, name: Option<&str>) -> Result<()> {
        if let (Some(name), []) = (name, found) {
            let _: Value = self.client.get(&["v1", kind, name]).send().await?;
        }
        Ok(())
    }

    /// Deletes an object, and prints that it did.
    pub(crate) async fn remove(&self, kind: &str, name: &str, path: &[&str], force: bool) -> Result<()> {
        let request = self.client.delete(path);
        let request = if force { request.query("force", true) } else { request };
        let answer: Option<Value> = request.send_for_option().await?;
        let answer = answer.filter(|answer| !answer.is_null());
        self.output.print(&answer.clone().unwrap_or(Value::Null), |_| {
            match answer.as_ref().and_then(that_says_something) {
                Some(answer) => format!("{kind} {name} deleted{}", crate::output::details(&answer)),
                None => format!("{kind} {name} deleted"),
            }
        })
    }
}

/// An answer without its empty lists; `None` if nothing is left.
fn that_says_something(answer: &Value) -> Option<Value> {
    let kept: serde_json::Map<String, Value> = answer
        .as_object()?
        .iter()
        .filter(|(_, value)| value.as_array().is_none_or(|list| !list.is_empty()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    (!kept.is_empty()).then_some(Value::Object(kept))
}

/// The name that differs least from the typed one, if it differs in at most one of three letters.
fn nearest<'a>(names: impl Iterator<Item = &'a str>, typed: &str) -> Option<String> {
    names
        .map(|name| (strsim::damerau_levenshtein(name, typed), name))
        .filter(|(slips, _)| *slips <= typed.chars().count().div_ceil(3))
        .min()
        .map(|(_, name)| name.to_owned())
}

/// The maximum of items of a list that are printed, unless a command has its own paging.
pub(crate) const MAX_LISTED: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_page_has_no_password() {
        let session = Session {
            client: Client::new("https://me:hush@example.com/heddle/", None).expect("an address"),
            output: Format::Table,
        };
        assert_eq!(session.page(&["topics", "t"]), "https://example.com/heddle/topics/t");
    }

    #[test]
    fn a_slip_of_the_hand_is_seen() {
        let of = |typed| nearest(["hello", "seattle-weather", "help"].into_iter(), typed);
        assert_eq!(of("helo").as_deref(), Some("hello"));
        assert_eq!(of("seatle-waether").as_deref(), Some("seattle-weather"));
        assert_eq!(of("report"), None);
        assert_eq!(of(""), None);
    }
}
