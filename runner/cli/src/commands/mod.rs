//! The commands, one noun per file.

pub(crate) mod apply;
pub(crate) mod backfill;
mod build;
mod cases;
pub(crate) mod dispatch;
pub(crate) mod group;
mod local;
pub(crate) mod named;
pub(crate) mod nodes;
pub(crate) mod open;
mod params;
mod patience;
mod prune;
pub(crate) mod queue;
mod record;
mod recording;
pub(crate) mod retention;
pub(crate) mod run;
mod run_control;
mod run_logs;
mod run_options;
pub(crate) mod run_ref;
mod run_show;
pub(crate) mod runtime;
pub(crate) mod script;
mod script_new;
mod script_test;
pub(crate) mod secret_forget;
pub(crate) mod serve;
pub(crate) mod token;
mod tools;
pub(crate) mod topic;
mod topic_send;
mod unread;
mod versions;
mod watch;

use std::process::ExitCode;

use crate::arguments::{Cli, Command};
use crate::document::Kind;
use crate::exit::done;
use crate::session::{Named, Session};
use anyhow::Result;

pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    let Cli { connection, command } = cli;
    match command {
        Command::Dev(dev) => return serve::dev(*dev),
        Command::Serve(options) => return serve::serve(*options),
        Command::Migrate(migrate) => return serve::migrate(migrate, connection.output),
        Command::CompileWasm => return Ok(heddle_sandbox::compile_child_main()),
        Command::BoundedWork => return Ok(heddle_sandbox::bounded_child_main()),
        Command::Completions { shell } => {
            crate::completions::write(shell, &mut std::io::stdout())?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Token(token::TokenCommand::Create(create)) if create.database_url.is_some() => {
            return serve::wait_for(token::create_in_database(create, connection.output));
        }
        Command::Token(token::TokenCommand::Sign(sign)) => return token::sign(&sign, connection.output),
        Command::Secret(named::SecretCommand::Forget(forget)) => {
            return serve::wait_for(secret_forget::run(forget, connection.output));
        }
        Command::Script(script::ScriptCommand::New(new)) => return script_new::write_new(&new, connection.output),
        Command::Script(script::ScriptCommand::Build(build)) => return build::run(&build, connection.output),
        _ => {}
    }
    let session = Session::open(&connection)?;
    let named = named_by(&command);
    serve::wait_for(async move {
        let session = &session;
        let done = match command {
            Command::Apply(apply) => apply::apply(session, &apply).await,
            Command::Diff(diff) => apply::diff(session, &diff).await,
            Command::Export(export) => apply::export(session, &export).await,
            Command::Script(command) => script::run(session, command).await,
            Command::Runtime(command) => runtime::run(session, command).await,
            Command::Invoke(invoke) => script::invoke(session, &invoke).await,
            Command::Group(command) => group::run(session, command).await,
            Command::Run(command) => run::run(session, command).await,
            Command::Backfill(backfill) => backfill::run(session, backfill).await,
            Command::Offer(command) => dispatch::offer(session, command).await,
            Command::Assignment(command) => dispatch::assignment(session, command).await,
            Command::Audience(command) => dispatch::audience(session, command).await,
            Command::Events(events) => dispatch::events(session, &events).await,
            Command::Topic(command) => topic::run(session, command).await,
            Command::Queue(command) => queue::run(session, command).await,
            Command::Category(command) => named::named(session, Kind::Category, command).await,
            Command::Template(command) => named::named(session, Kind::Template, command).await,
            Command::Channel(command) => named::channel(session, command).await,
            Command::Secret(command) => named::secret(session, command).await,
            Command::Connection(command) => named::connection(session, command).await,
            Command::Pool(command) => named::pool(session, command).await,
            Command::Notification(command) => named::notification(session, command).await,
            Command::Token(command) => token::run(session, command).await,
            Command::Session(command) => token::sessions(session, command).await,
            Command::Nodes => nodes::list(session).await,
            Command::Audit(wanted) => nodes::audit(session, wanted).await,
            Command::Retention(command) => retention::run(session, command).await,
            Command::Open(page) => open::run(session, page).await,
            Command::Stats => nodes::stats(session).await,
            Command::Dev(_)
            | Command::Serve(_)
            | Command::Migrate(_)
            | Command::CompileWasm
            | Command::BoundedWork
            | Command::Completions { .. } => done(),
        };
        match (done, named) {
            (Err(error), Some(named)) => Err(session.with_meant(error, &named).await),
            (done, _) => done,
        }
    })
}

/// The object that a command names, if it names one.
fn named_by(command: &Command) -> Option<Named> {
    let of = |kind, list| move |name: String| Named { kind, list, name };
    match command {
        Command::Script(command) => command.script().map(of("script", "scripts")),
        Command::Invoke(invoke) => Some(of("script", "scripts")(script::bare(&invoke.name))),
        Command::Open(open::Open {
            page: Some(open::Page::Script { name }),
            ..
        }) => Some(of("script", "scripts")(name.clone())),
        Command::Queue(command) => command.queue().map(of("queue", "queues")),
        Command::Topic(command) => command.topic().map(of("topic", "topics")),
        _ => group_named(command).map(of("group", "groups")),
    }
}

/// The group that a command is about.
fn group_named(command: &Command) -> Option<String> {
    use group::GroupCommand as Of;
    match command {
        Command::Run(run::RunCommand::Start(start)) => Some(start.group.clone()),
        Command::Run(run::RunCommand::List { filter, .. }) => filter.group.clone(),
        Command::Run(run::RunCommand::Bulk(bulk)) => bulk.filter.group.clone(),
        Command::Run(run::RunCommand::Show {
            id: run_ref::RunRef::Latest(group),
        }) => group.clone(),
        Command::Backfill(backfill) => match &backfill.command {
            Some(backfill::BackfillCommand::List { group }) => group.clone(),
            _ => backfill.start.group.clone(),
        },
        Command::Open(open::Open {
            page: Some(open::Page::Group { name }),
            ..
        }) => Some(name.clone()),
        Command::Notification(named::NotificationCommand::List { group, .. }) => group.clone(),
        Command::Group(command) => match command {
            Of::Show { name }
            | Of::Rm { name, .. }
            | Of::Enable { name }
            | Of::Disable { name, .. }
            | Of::Graph { name }
            | Of::Revisions { name }
            | Of::Next { name, .. } => Some(name.clone()),
            Of::List { .. } | Of::Validate { .. } => None,
        },
        _ => None,
    }
}
