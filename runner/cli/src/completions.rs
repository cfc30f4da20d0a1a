//! Completions in a shell: commands and options, which clap knows, and names of objects, which the server knows. A
//! shell executes a few lines ([`write`]) that call this program with the text so far ([`answer`]). It asks the server
//! that the typed command would talk to. If that server cannot be reached or refuses, there are no names and no
//! message, because the person is in the middle of a line.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use heddle_client::Client;
use serde_json::Value;

use crate::arguments::Cli;
use crate::commands::run_ref::RunRef;
use crate::session::{URL_DEFAULT, or_variable};

/// The environment variable that the lines for shells set.
const VARIABLE: &str = "HEDDLE_COMPLETE";

/// How long to wait for the server. Nobody waits longer for a name in the middle of a line.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// How many names are searched, and how many runs are offered.
const NAMES_MAX: u32 = 500;
const RUNS_MAX: u32 = 20;

/// A list of the API, and the field with the names of its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    list: &'static str,
    field: &'static str,
}

const fn by(list: &'static str, field: &'static str) -> Named {
    Named { list, field }
}

/// Which objects the commands of a noun name.
const NOUNS: [(&str, Named); 19] = [
    ("group", by("groups", "name")),
    ("script", by("scripts", "name")),
    ("runtime", by("runtimes", "tag")),
    ("invoke", by("scripts", "name")),
    ("queue", by("queues", "name")),
    ("topic", by("topics", "name")),
    ("category", by("categories", "name")),
    ("template", by("templates", "name")),
    ("channel", by("channels", "name")),
    ("secret", by("secrets", "name")),
    ("connection", by("connections", "name")),
    ("pool", by("pools", "name")),
    ("token", by("tokens", "name")),
    ("session", by("sessions", "actor")),
    ("offer", by("offers", "id")),
    ("assignment", by("assignments", "assignment_id")),
    ("audience", by("audiences", "audience")),
    ("backfill", by("backfills", "id")),
    ("notification", by("notifications", "id")),
];

/// The tasks of the run that was typed before.
const TASKS: Named = by("tasks", "task");

/// Which names an argument takes; `nouns`: the commands that lead to it.
fn named(nouns: &[&str], arg: &Arg) -> Option<Named> {
    let id = arg.get_id().as_str();
    match id {
        "group" => return Some(by("groups", "name")),
        "groups" if nouns == ["export"] => return Some(by("groups", "name")),
        _ if arg.get_value_parser().type_id() == std::any::TypeId::of::<RunRef>() => return Some(by("runs", "id")),
        "task" if arg.is_positional() && nouns.first() == Some(&"run") => return Some(TASKS),
        "name" | "id" | "audience" if arg.is_positional() => {}
        _ => return None,
    }
    // `script new NAME` makes one; `open group NAME` opens one of the groups.
    let noun = match nouns {
        [_, "new"] => return None,
        ["open", noun, ..] | [noun, ..] => noun,
        [] => return None,
    };
    NOUNS.iter().find(|(known, _)| known == noun).map(|(_, named)| *named)
}

/// The command line, with completers for arguments that are names.
fn command() -> Command {
    fn dressed(mut command: Command, nouns: &[&str]) -> Command {
        // All arguments are set again in their order: a changed argument becomes the last one, and the order of
        // positional arguments matters.
        let all: Vec<(clap::Id, Option<Named>)> = command
            .get_arguments()
            .map(|arg| (arg.get_id().clone(), named(nouns, arg)))
            .collect();
        for (id, named) in all {
            command = command.mut_arg(id, |arg| match named {
                Some(named) => arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(named, typed))),
                None => arg,
            });
        }
        let below: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
        for name in below {
            command = command.mut_subcommand(&name, |sub| {
                let mut nouns = nouns.to_vec();
                nouns.push(&name);
                dressed(sub, &nouns)
            });
        }
        command
    }
    dressed(Cli::command(), &[])
}

/// If a shell asks how a word may be completed, answers it and ends the program.
pub(crate) fn answer() {
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .bin("heddle")
        .completer("heddle")
        .complete();
}

/// The lines that a shell has to execute so that it asks for completions.
pub(crate) fn write(shell: Shell, out: &mut dyn std::io::Write) -> std::io::Result<()> {
    let shells = Shells::builtins();
    let known = shells.completer(&shell.to_string());
    let known = known.ok_or_else(|| std::io::Error::other(format!("completions for {shell} are not available")))?;
    known.write_registration(VARIABLE, "heddle", "heddle", "heddle", out)
}

/// The value of an option in the typed text.
fn typed_option(words: &[OsString], option: &str) -> Option<String> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let apart = words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1]);
    let joined = words
        .iter()
        .find_map(|word| word.strip_prefix(option).and_then(|rest| rest.strip_prefix('=')));
    joined.or(apart).map(str::to_owned)
}

fn candidates(named: Named, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else {
        return Vec::new();
    };
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let of = |option: &str, variable: &str| or_variable(typed_option(&words, option), variable);
    let url = of("--url", "HEDDLE_URL").unwrap_or_else(|| URL_DEFAULT.to_owned());
    let token = of("--token", "HEDDLE_TOKEN");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    // After `latest:` comes the name of a group.
    let latest_of = typed.strip_prefix(LATEST_OF).filter(|_| has_latest(named));
    let asked = match latest_of {
        Some(_) => by("groups", "name"),
        None => named,
    };
    let found = runtime.ok().and_then(|runtime| {
        let answer = async { tokio::time::timeout(PATIENCE, ask(&url, token.as_deref(), asked, &words)).await };
        runtime.block_on(answer).ok().flatten()
    });
    let found = found.unwrap_or_default();
    match latest_of {
        Some(group) => latest_offered(found, group),
        None => offered(named, found, typed),
    }
}

async fn ask(url: &str, token: Option<&str>, named: Named, words: &[OsString]) -> Option<Vec<Value>> {
    let client = Client::new(url, token).ok()?;
    if named == TASKS {
        return tasks(&client, typed_run(words)?).await;
    }
    let most = if named.list == "runs" { RUNS_MAX } else { NAMES_MAX };
    let request = client.get(&["v1", named.list]).query("limit", most);
    let page: Value = request.send().await.ok()?;
    page["items"].as_array().cloned()
}

/// The run that was typed after `run` and what is to be done with it.
fn typed_run(words: &[OsString]) -> Option<RunRef> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let noun = words.iter().position(|word| *word == "run" || *word == "runs")?;
    words.get(noun + 2..)?.iter().find_map(|word| word.parse().ok())
}

/// The tasks of a run, each once.
async fn tasks(client: &Client, run: RunRef) -> Option<Vec<Value>> {
    let request = match run {
        RunRef::Id(id) => client.get(&["v1", "runs", &id.to_string()]),
        RunRef::Latest(group) => client.get(&["v1", "runs", "latest"]).query_if("group", group),
        RunRef::Prefix(prefix) => client.get(&["v1", "runs", "latest"]).query("id", prefix),
    };
    let run: Value = request.send().await.ok()?;
    let mut tasks = run["tasks"].as_array().cloned()?;
    let mut seen = std::collections::BTreeSet::new();
    tasks.retain(|task| seen.insert(task["task"].to_string()));
    Some(tasks)
}

/// The prefix before a group's name that means the group's newest run, backfill or notification.
const LATEST_OF: &str = "latest:";

fn has_latest(named: Named) -> bool {
    ["runs", "backfills", "notifications"].contains(&named.list)
}

/// The newest one of each group whose name goes on with what was typed.
fn latest_offered(groups: Vec<Value>, typed: &str) -> Vec<CompletionCandidate> {
    let names = groups.iter().filter_map(|group| group["name"].as_str());
    names
        .filter(|name| name.starts_with(typed))
        .map(|name| CompletionCandidate::new(format!("{LATEST_OF}{name}")))
        .collect()
}

/// What goes on with what was typed, and a few words to each.
fn offered(named: Named, found: Vec<Value>, typed: &str) -> Vec<CompletionCandidate> {
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    let latest = match named.list {
        "runs" => Some(("latest".to_owned(), "the newest run".to_owned())),
        "backfills" => Some(("latest".to_owned(), "the newest backfill".to_owned())),
        "notifications" => Some(("latest".to_owned(), "the newest notification".to_owned())),
        "assignments" => Some(("latest".to_owned(), "the newest assignment".to_owned())),
        _ => None,
    };
    let all = found.iter().map(|one| {
        let words = match named.list {
            "runs" | "backfills" => {
                let words = [text(one, "group"), text(one, "state"), text(one, "created_at")];
                words.join(" ").trim().to_owned()
            }
            "notifications" => text(one, "subject"),
            "assignments" => [text(one, "uid"), text(one, "offer"), text(one, "state")].join(" "),
            "tasks" => text(one, "state"),
            _ => text(one, "description").lines().next().unwrap_or_default().to_owned(),
        };
        (text(one, named.field), words)
    });
    latest
        .into_iter()
        .chain(all)
        .filter(|(name, _)| !name.is_empty() && name.starts_with(typed))
        .enumerate()
        .map(|(index, (name, words))| {
            CompletionCandidate::new(name)
                .help((!words.is_empty()).then(|| words.into()))
                .display_order(Some(index))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn completed<'a>(command: &'a Command, path: &[&str], arg: &str) -> Option<&'a ArgValueCompleter> {
        let found = path
            .iter()
            .fold(command, |at, name| at.find_subcommand(name).expect("a command"));
        let arg = found
            .get_arguments()
            .find(|one| one.get_id() == arg)
            .expect("an argument");
        arg.get::<ArgValueCompleter>()
    }

    #[test]
    fn names_are_offered_wherever_one_stands() {
        let command = command();
        for (path, arg) in [
            (&["group", "show"][..], "name"),
            (&["run", "start"], "group"),
            (&["run", "list"], "group"),
            (&["run", "watch"], "id"),
            (&["run", "restart"], "id"),
            (&["backfill"], "group"),
            (&["backfill", "cancel"], "id"),
            (&["script", "show"], "name"),
            (&["invoke"], "name"),
            (&["open", "group"], "name"),
            (&["open", "run"], "id"),
            (&["queue", "pause"], "name"),
            (&["audience", "members"], "audience"),
            (&["offer", "rm"], "id"),
            (&["secret", "rm"], "name"),
            (&["session", "end"], "name"),
            (&["export"], "groups"),
            (&["run", "logs"], "task"),
            (&["run", "override"], "task"),
            (&["notification", "show"], "id"),
            (&["assignment", "revoke"], "id"),
        ] {
            assert!(completed(&command, path, arg).is_some(), "{path:?} {arg}");
        }
        for (path, arg) in [
            (&["script", "new"][..], "name"),
            (&["token", "create"], "name"),
            (&["run", "start"], "key"),
            (&["offer", "peek"], "uid"),
        ] {
            assert!(completed(&command, path, arg).is_none(), "{path:?} {arg}");
        }
        command.debug_assert();
    }

    #[test]
    fn what_is_offered_goes_on_with_what_was_typed() {
        let names = |named: Named, found: Value, typed: &str| -> Vec<String> {
            let Value::Array(found) = found else { panic!() };
            let offered = offered(named, found, typed);
            offered
                .iter()
                .map(|one| one.get_value().to_string_lossy().into_owned())
                .collect()
        };
        let groups = json!([{"name": "hello", "description": "a\nb"}, {"name": "nightly"}, {"other": 1}]);
        assert_eq!(names(NOUNS[0].1, groups.clone(), ""), ["hello", "nightly"]);
        assert_eq!(names(NOUNS[0].1, groups, "ni"), ["nightly"]);
        let runs = json!([{"id": "0199f5a0", "group": "g", "state": "failed", "created_at": "2026"}]);
        assert_eq!(names(by("runs", "id"), runs.clone(), ""), ["latest", "0199f5a0"]);
        assert_eq!(names(by("runs", "id"), runs, "019"), ["0199f5a0"]);
        assert_eq!(names(by("backfills", "id"), json!([]), "la"), ["latest"]);
    }

    #[test]
    fn the_run_of_a_task_and_the_group_of_the_latest_are_typed_before() {
        let run = |line: &str| typed_run(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(
            run("heddle run logs latest:etl ex"),
            Some(RunRef::Latest(Some("etl".into())))
        );
        assert_eq!(
            run("heddle --url http://a run task --item 1 0199f5a0 "),
            Some(RunRef::Prefix("0199f5a0".into()))
        );
        assert_eq!(run("heddle run logs"), None);
        let groups = vec![json!({"name": "etl"}), json!({"name": "hello"})];
        let offered = latest_offered(groups, "e");
        let names: Vec<_> = offered.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(names, ["latest:etl"]);
    }

    #[test]
    fn the_server_is_the_one_of_the_line() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let url = |line: &str| typed_option(&words(line), "--url");
        assert_eq!(url("heddle run start --url http://a h").as_deref(), Some("http://a"));
        assert_eq!(url("heddle --url=http://b run").as_deref(), Some("http://b"));
        assert_eq!(url("heddle run --urls x"), None);
    }

    #[test]
    fn what_a_shell_is_given_is_short() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let mut text = Vec::new();
            write(shell, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(VARIABLE) && text.len() < 4_000, "{shell}: {text}");
        }
    }
}
