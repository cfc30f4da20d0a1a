//! A server to talk to and a way to print.

use anyhow::{Context, Result};
use clap::Args;
use heddle_client::Client;
use serde_json::Value;

use crate::output::Format;

/// Options of every command that talks to a server.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// The server's address.
    #[arg(
        long,
        global = true,
        env = "HEDDLE_URL",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    pub url: String,
    /// A token; `heddle dev` needs none.
    #[arg(
        long,
        global = true,
        env = "HEDDLE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub token: Option<String>,
    /// How to print.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) output: Format,
}

impl Session {
    pub(crate) fn open(connection: &Connection) -> Result<Self> {
        let token = connection.token.as_deref().filter(|token| !token.is_empty());
        let client = Client::new(&connection.url, token)?;
        Ok(Self {
            client,
            output: connection.output,
        })
    }

    /// Gets and prints one thing.
    pub(crate) async fn show(&self, path: &[&str]) -> Result<()> {
        let value: Value = self.client.get(path).send().await?;
        self.output.print_thing(&value)
    }

    /// Gets and prints a list, whole or one page of it.
    pub(crate) async fn list(&self, path: &[&str], columns: &[(&str, &str)]) -> Result<()> {
        let items: Vec<Value> = self.client.get(path).send_for_all(&self.client, MAX_LISTED).await?;
        self.output.print_list(&serde_json::json!({ "items": items }), columns)
    }

    /// Sends a POST and prints the answer.
    pub(crate) async fn act(&self, path: &[&str], body: &Value) -> Result<()> {
        let answer: Option<Value> = self.client.post(path).json(body).send_for_option().await?;
        match answer {
            Some(answer) => self.output.print_thing(&answer),
            None => Ok(()),
        }
    }

    /// Deletes a thing and says so.
    pub(crate) async fn remove(&self, kind: &str, name: &str, path: &[&str], force: bool) -> Result<()> {
        let request = self.client.delete(path);
        let request = if force { request.query("force", true) } else { request };
        let answer: Option<Value> = request
            .send_for_option()
            .await
            .with_context(|| format!("{kind} {name}"))?;
        self.output
            .print(&answer.clone().unwrap_or(Value::Null), |_| match &answer {
                Some(answer) => format!("{kind} {name} deleted ({})", crate::output::plain(answer)),
                None => format!("{kind} {name} deleted"),
            })
    }
}

/// How many things of a list are printed at most, unless a command has its own paging.
pub(crate) const MAX_LISTED: usize = 100_000;
