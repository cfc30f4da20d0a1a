//! What the command line understands.

use std::any::TypeId;
use std::ffi::OsString;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    apply, backfill, dispatch, group, named, nodes, open, queue, retention, run, runtime, script, serve, token, topic,
};
use crate::session::Connection;

/// Workflows of WebAssembly scripts on one binary and one Postgres.
#[derive(Parser, Debug)]
#[command(name = "heddle", version, after_help = crate::exit::HELP)]
pub struct Cli {
    /// The server and the output.
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub command: Command,
}

/// Arguments that name something. An empty name would be left out of an address, which then names a whole list.
const NAMES: [&str; 11] = [
    "name", "id", "group", "groups", "category", "audience", "members", "offer", "channel", "task", "uid",
];

impl Cli {
    /// Reads a command line.
    pub fn read(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let matches = strict(Self::command()).try_get_matches_from(words)?;
        Self::from_arg_matches(&matches)
    }
}

/// The same command line, which takes no empty names, and no empty variables of the environment.
fn strict(command: clap::Command) -> clap::Command {
    let is_name = |arg: &Arg| {
        NAMES.contains(&arg.get_id().as_str())
            && arg.get_possible_values().is_empty()
            && arg.get_value_parser().type_id() == TypeId::of::<String>()
    };
    // An empty variable is how some supervisors write one that is not set. But who gives an empty key did not mean another
    // one, which the node would make up: that is refused as too short.
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        arg.get_id() != "secrets_key" && value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| match is_empty(&arg) {
            true => arg.env(None::<&'static str>),
            false => arg,
        })
        .mut_args(|arg| match is_name(&arg) {
            true => arg.value_parser(NonEmptyStringValueParser::new()),
            false => arg,
        })
        .mut_subcommands(strict)
}

/// Everything that can be done.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node with an embedded Postgres and a demo, without any configuration
    Dev(Box<serve::Dev>),
    /// Run a node on a shared Postgres
    Serve(Box<serve::Serve>),
    /// Update the schema of a database
    Migrate(serve::Migrate),
    /// Create or change groups, channels, topics, offers and more from YAML files
    Apply(apply::Apply),
    /// Show what `apply` would change. Exit code 1 if there are changes
    Diff(apply::Diff),
    /// Print groups and other objects as YAML that `apply` accepts
    Export(apply::Export),
    /// Create, build, upload and test scripts
    #[command(subcommand)]
    Script(script::ScriptCommand),
    /// List the runtimes of source scripts, and retire one after an upgrade
    #[command(subcommand, alias = "runtimes")]
    Runtime(runtime::RuntimeCommand),
    /// List, show, enable and disable groups
    #[command(subcommand, alias = "groups")]
    Group(group::GroupCommand),
    /// Start, watch and control runs
    #[command(subcommand, alias = "runs")]
    Run(run::RunCommand),
    /// Create runs for instants in the past
    Backfill(backfill::Backfill),
    /// Run a script on the server without creating a run
    #[command(mut_arg("name", |arg| arg.help("`name` or `name@version`")))]
    Invoke(script::Invoke),
    /// Manage offers: work that users poll for
    #[command(subcommand, alias = "offers")]
    Offer(dispatch::OfferCommand),
    /// List and revoke assignments: which user has which offer
    #[command(subcommand, alias = "assignments")]
    Assignment(dispatch::AssignmentCommand),
    /// Manage the members of audiences
    #[command(subcommand, alias = "audiences")]
    Audience(dispatch::AudienceCommand),
    /// Print the events of assignments and runs
    Events(dispatch::Events),
    /// Manage topics and their scheduled messages
    #[command(subcommand, alias = "topics")]
    Topic(topic::TopicCommand),
    /// List, pause and limit queues, from which workers claim task runs
    #[command(subcommand, alias = "queues")]
    Queue(queue::QueueCommand),
    /// Manage categories of groups
    #[command(subcommand, alias = "categories")]
    Category(named::NamedCommand),
    /// Manage templates: JSON Schemas for params
    #[command(subcommand, alias = "templates")]
    Template(named::NamedCommand),
    /// Manage channels: where notifications are sent
    #[command(subcommand, alias = "channels")]
    Channel(named::ChannelCommand),
    /// Manage secrets for scripts. Their values are write-only
    #[command(subcommand, alias = "secrets")]
    Secret(named::SecretCommand),
    /// Manage connections: SQL databases for scripts. Their URLs are write-only
    #[command(subcommand, alias = "connections")]
    Connection(named::ConnectionCommand),
    /// Manage pools: limits on concurrent tasks across the cluster
    #[command(subcommand, alias = "pools")]
    Pool(named::PoolCommand),
    /// List notifications and send them again
    #[command(subcommand, alias = "notifications")]
    Notification(named::NotificationCommand),
    /// Create, list and revoke tokens
    #[command(subcommand, alias = "tokens")]
    Token(token::TokenCommand),
    /// List and end the sessions of people who are signed in
    #[command(subcommand, alias = "sessions")]
    Session(token::SessionCommand),
    /// List the nodes of the cluster
    #[command(alias = "node")]
    Nodes,
    /// List the audit: who changed what
    Audit(nodes::Audit),
    /// Show and change how long runs, logs and other data are kept
    #[command(subcommand)]
    Retention(retention::RetentionCommand),
    /// Open the web pages of the server in a browser, and print the address
    Open(open::Open),
    /// Show counts for the whole cluster
    Stats,
    /// Print shell completions for commands and for names on the server
    #[command(after_help = "bash: source <(heddle completions bash)      in ~/.bashrc
zsh:  source <(heddle completions zsh)       in ~/.zshrc
fish: heddle completions fish | source       in ~/.config/fish/config.fish")]
    Completions {
        /// The shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Compile wasm from stdin (internal)
    #[command(hide = true, name = "compile-wasm")]
    CompileWasm,
    /// Do bounded work from stdin (internal)
    #[command(hide = true, name = "bounded-work")]
    BoundedWork,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_line_of_help() {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} says nothing about itself");
                check(sub, &path);
            }
        }
        check(&Cli::command(), "heddle");
    }

    #[test]
    fn what_the_contract_writes_is_understood() {
        for line in [
            "heddle dev",
            "heddle dev --listen 127.0.0.1:8080 --data-dir /tmp/x --no-demo",
            "heddle serve --database-url postgres://x --listen 0.0.0.0:80 --config f.toml --node-id a",
            "heddle migrate --database-url postgres://x",
            "heddle apply -f a.yaml -f b -f -",
            "heddle diff -f a.yaml",
            "heddle export",
            "heddle script new hello --lang python dir",
            "heddle script build dir",
            "heddle script push hello a.wasm --no-activate",
            "heddle script test hello --params {}",
            "heddle script dev clean.ts --params @p.json --timeout 5s",
            "heddle script record clean.ts two --params {} --allow-host a.example.com --sql w=postgres://x --secret t=@f",
            "heddle script diff clean 1 clean.ts",
            "heddle script check clean other",
            "heddle script rm hello",
            "heddle script activate hello 3",
            "heddle group list -o json",
            "heddle group disable x --mode stop",
            "heddle run start g --params {} --param a=1 --key k --label a=b --logical-time 2026-01-01T00:00:00Z --watch",
            "heddle run watch 0199f5a0-0000-7000-8000-000000000000",
            "heddle run logs 0199f5a0-0000-7000-8000-000000000000 task --follow",
            "heddle run bulk cancel --group g --state running --dry-run",
            "heddle backfill g --from 2026-01-01 --to 2026-01-02 --watch",
            "heddle token create --database-url postgres://x --name a --role admin",
            "heddle token sign --device-key k --uid u --expires-in 1h",
            "heddle secret set a",
            "heddle secret rotate",
            "heddle secret reseal",
            "heddle secret forget --database-url postgres://x --data-dir /tmp/x --yes",
            "heddle session list",
            "heddle session end person:ann@example.com",
            "heddle audit --actor a --kind run --from 2026-01-01T00:00:00Z",
            "heddle retention set -f r.yaml --dry-run",
            "heddle retention prune",
            "heddle nodes -o yaml --url http://x --token t",
            "heddle open",
            "heddle open run latest --print",
            "heddle completions bash",
            "heddle compile-wasm",
        ] {
            Cli::read(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "heddle",
            "heddle run watch x",
            "heddle run list --limit 0",
            "heddle run list --from yesterday",
            "heddle run list --group ",
            "heddle group show ",
            "heddle group next g --count 0",
            "heddle notification show 7",
            "heddle assignment revoke latest:g",
            "heddle group disable g --mode perhaps",
            "heddle nodes -o xml",
        ] {
            assert!(Cli::read(line.split(' ')).is_err(), "{line}");
        }
    }

    /// Nothing but a name of the program, or of a noun, is a question about what there is.
    #[test]
    fn a_command_alone_shows_the_help() {
        for line in ["heddle", "heddle run", "heddle topic"] {
            let said = Cli::read(line.split(' ')).unwrap_err();
            let kind = clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            assert_eq!(said.kind(), kind, "{said}");
            assert!(!said.to_string().contains("compile-wasm"), "{said}");
        }
    }

    #[test]
    fn the_help_of_files_fits_into_eighty_columns() {
        for name in ["apply", "diff"] {
            let mut command = Cli::command();
            let command = command.find_subcommand_mut(name).expect("a command");
            let help = command.clone().term_width(80).render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            assert!(help.contains("from_env"), "{help}");
        }
    }
}
