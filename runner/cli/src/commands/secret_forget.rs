//! `secret forget`: what is left to do when the key for secrets is lost. Nodes do not start beside what they cannot decrypt, so
//! it works directly on the database.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use heddle_store::forget::LostSeal;
use serde_json::{Value, json};

use crate::config::{self, NodeOptions, ServeOptions};
use crate::exit::{done, usage};
use crate::node;
use crate::output::{self, Format, plain};
use crate::terminal::tell;

/// The options of `heddle secret forget`.
#[derive(Args, Debug)]
pub struct Forget {
    /// The Postgres of the cluster: postgres://user:password@host/database
    #[arg(long, env = "HEDDLE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// The key that the nodes have [default: the file secrets.key in the data directory]
    #[arg(long, env = "HEDDLE_SECRETS_KEY", hide_env_values = true, value_name = "KEY")]
    pub secrets_key: Option<String>,
    /// Previous keys, separated by commas; what they decrypt is kept
    #[arg(
        long,
        env = "HEDDLE_SECRETS_KEY_PREVIOUS",
        hide_env_values = true,
        value_name = "KEYS"
    )]
    pub secrets_key_previous: Option<String>,
    /// The data directory of a node [default: .heddle]
    #[arg(long, env = "HEDDLE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The configuration file of a node
    #[arg(long, env = "HEDDLE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Delete what is listed
    #[arg(long)]
    pub yes: bool,
}

pub(crate) async fn run(forget: Forget, format: Format) -> Result<ExitCode> {
    let (node_file, serve_file) = config::read_file::<ServeOptions>(forget.config.as_deref())?;
    let typed = NodeOptions {
        secrets_key: forget.secrets_key,
        secrets_key_previous: forget.secrets_key_previous,
        data_dir: forget.data_dir,
        ..NodeOptions::default()
    };
    let Some(url) = forget.database_url.or(serve_file.database_url) else {
        return Err(usage(
            "give the URL of the database with --database-url or HEDDLE_DATABASE_URL",
        ));
    };
    let found = node::lost_secrets(&url, &typed.or(node_file), forget.yes).await?;
    let (listed, result) = match forget.yes {
        true => (&found.deleted, "deleted"),
        false => (&found.lost, "cannot be decrypted"),
    };
    let items: Vec<Value> = listed.iter().map(|one| shown(one, result)).collect();
    format.print(&json!({ "items": items }), |list| {
        output::items(list).map(|item| line(item) + "\n").collect()
    })?;
    tell!("compared with the keys {}", found.keys.join(", "));
    if let Some(failed) = found.failed {
        return Err(failed);
    }
    if found.lost.is_empty() {
        tell!("everything can be decrypted with these keys");
    } else if !forget.yes {
        tell!("nothing was deleted; --yes deletes what is listed");
    } else if found.is_full {
        tell!("there may be more; repeat the command");
    }
    done()
}

fn shown(lost: &LostSeal, result: &str) -> Value {
    json!({
        "kind": lost.seal.kind, "name": lost.seal.name, "key_id": lost.seal.key_id, "result": result,
        "groups": lost.users.groups, "topics": lost.users.topics,
    })
}

/// The line of an object: what it is, what became of it, and what uses it.
fn line(item: &Value) -> String {
    let mut line = format!(
        "{} {} {} (key {})",
        plain(&item["kind"]),
        plain(&item["name"]),
        plain(&item["result"]),
        plain(&item["key_id"])
    );
    for users in ["groups", "topics"] {
        let names: Vec<String> = output::items(&item[users]).map(plain).collect();
        if !names.is_empty() {
            line.push_str(&format!("; {users} that use it: {}", names.join(", ")));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_what_uses_the_object() {
        let used = json!({"kind": "secret", "name": "door", "key_id": "5eed", "result": "deleted", "groups": ["a", "b"], "topics": ["t"]});
        let expect = "secret door deleted (key 5eed); groups that use it: a, b; topics that use it: t";
        assert_eq!(line(&used), expect);
        let unused = json!({"kind": "channel", "name": "ops", "key_id": "5eed", "result": "deleted", "groups": [], "topics": []});
        assert_eq!(line(&unused), "channel ops deleted (key 5eed)");
    }
}
