//! Tokens: the first one directly in the database, others by the API.

use std::process::ExitCode;

use anyhow::{Context, Result};
use chrono::SubsecRound;
use clap::{Args, Subcommand};
use heddle_client::{MadeToken, Moment, NewToken};
use heddle_domain::Span;
use heddle_http::access::{DEVICE_KEY_BYTES_MIN, DEVICE_TOKEN_MAX, Signer};
use serde_json::json;

use crate::exit::{done, instant, usage, word};
use crate::output::Format;
use crate::session::Session;

/// What can be done with tokens.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Create a token. Its value is shown only once
    Create(Create),
    /// Sign a short-lived token for one device, without a server
    Sign(Sign),
    /// List tokens
    #[command(alias = "ls")]
    List,
    /// Revoke a token: nobody can use it any more
    #[command(alias = "revoke")]
    Rm {
        /// The name of the token
        name: String,
    },
}

/// The options of `heddle token create`.
#[derive(Args, Debug)]
pub struct Create {
    /// Create the token directly in this database. Needed for the first token
    #[arg(long, env = "HEDDLE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// The name of the token
    #[arg(long)]
    pub name: String,
    /// The role, which says what the token may do
    #[arg(long, value_parser = ["viewer", "operator", "author", "worker", "admin"])]
    pub role: String,
    /// For the role worker: a queue from which it may claim [default: all queues]. Can be repeated
    #[arg(long = "queue", value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// For the role worker: a user for whom it may poll [default: all users]. Can be repeated
    #[arg(long = "uid", value_name = "UID")]
    pub uids: Vec<String>,
    /// When the token expires, RFC 3339, or a date (midnight UTC) [default: never]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub expires_at: Option<String>,
}

/// The options of `heddle token sign`.
#[derive(Args, Debug)]
pub struct Sign {
    /// The device key of the nodes, at least 32 bytes
    #[arg(long, env = "HEDDLE_DEVICE_KEY", hide_env_values = true, value_name = "KEY")]
    pub device_key: String,
    /// The user for whom the device may poll
    #[arg(long, value_name = "UID")]
    pub uid: String,
    /// How long the token is valid, 1s to 1d
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub expires_in: String,
}

/// Signs a token and prints it.
pub(crate) fn sign(sign: &Sign, output: Format) -> Result<ExitCode> {
    let signer = Signer::new(&[sign.device_key.clone().into_bytes()])
        .ok_or_else(|| usage(format!("the key must have at least {DEVICE_KEY_BYTES_MIN} bytes")))?;
    let span: Span = sign
        .expires_in
        .parse()
        .map_err(|error| usage(format!("--expires-in: {error}")))?;
    let (shortest, longest) = (Span::from_secs(1), Span::from_secs(DEVICE_TOKEN_MAX.as_secs()));
    if span < shortest || span > longest {
        return Err(usage(format!(
            "--expires-in must be at least {shortest} and at most {longest}"
        )));
    }
    let now = heddle_engine::NodeClock::default().own();
    // The end in the token is in whole seconds.
    let expires_at = (now + span.chrono()).trunc_subsecs(0);
    let token = signer.sign(&sign.uid, expires_at);
    // A token that nodes would refuse is an error here.
    if signer.verify(&token, now).is_none() {
        return Err(usage("--uid must have 1 to 250 characters and no control characters"));
    }
    let value = json!({ "uid": sign.uid, "expires_at": Moment(expires_at), "token": token });
    output.print(&value, |_| token.clone())?;
    done()
}

impl Create {
    fn token(&self) -> Result<NewToken> {
        let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
        Ok(NewToken {
            name: self.name.clone(),
            role: word(Some(self.role.clone()), "--role")?,
            queues: some(&self.queues),
            uids: some(&self.uids),
            expires_at: self.expires_at.clone(),
        })
    }
}

pub(crate) async fn create_in_database(create: Create, output: Format) -> Result<ExitCode> {
    let url = create.database_url.as_deref().context("a database")?;
    let token = create.token()?;
    let made = crate::node::create_token(url, &token).await?;
    print_made(&made, output)
}

/// Prints a new token. People get its value alone.
fn print_made(made: &MadeToken, output: Format) -> Result<ExitCode> {
    output.print(&serde_json::to_value(made)?, |_| made.token.clone())?;
    done()
}

/// What can be done with the sessions of others.
#[derive(Subcommand, Debug)]
pub enum SessionCommand {
    /// List the people who are signed in, with a token or with an account at a provider
    #[command(alias = "ls")]
    List,
    /// End all sessions of a person or token, on all nodes. Open pages must sign in again
    #[command(alias = "rm")]
    End {
        /// The name in the list: the name of a token, or `person:` and an e-mail address
        name: String,
        /// Only sessions of the person with this id at the provider, if several people have the name
        #[arg(long, value_name = "ID")]
        subject: Option<String>,
    },
}

pub(crate) async fn sessions(session: &Session, command: SessionCommand) -> Result<ExitCode> {
    match command {
        SessionCommand::List => {
            let columns = [
                ("NAME", "/actor"),
                ("ROLE", "/role"),
                ("SUBJECT", "/subject"),
                ("SESSIONS", "/sessions"),
                ("SIGNED IN", "/signed_in_at"),
                ("UNTIL", "/expires_at"),
            ];
            session.list(&["v1", "sessions"], &columns).await?;
        }
        SessionCommand::End { name, subject } => {
            let ended = session.client.end_sessions(&name, subject.as_deref()).await?;
            let value = serde_json::to_value(ended)?;
            session.output.print(&value, |_| {
                let word = if ended.ended == 1 { "session" } else { "sessions" };
                format!("{name}: {} {word} ended", ended.ended)
            })?;
        }
    }
    done()
}

pub(crate) async fn run(session: &Session, command: TokenCommand) -> Result<ExitCode> {
    match command {
        TokenCommand::Create(create) => {
            let made = session.client.create_token(&create.token()?).await?;
            return print_made(&made, session.output);
        }
        TokenCommand::Sign(command) => return sign(&command, session.output),
        TokenCommand::List => {
            let columns = [
                ("NAME", "/name"),
                ("ROLE", "/role"),
                ("QUEUES", "/queues"),
                ("UIDS", "/uids"),
                ("CREATED", "/created_at"),
                ("EXPIRES", "/expires_at"),
            ];
            session.list(&["v1", "tokens"], &columns).await?;
        }
        TokenCommand::Rm { name } => session.remove("token", &name, &["v1", "tokens", &name], false).await?,
    }
    done()
}
