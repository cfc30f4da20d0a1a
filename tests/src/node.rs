//! A node that serves, as a process.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::api::Api;
use crate::process::{Process, program};
use crate::world::{TOKEN, artefacts};

/// How a node is started.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    url: String,
    program: PathBuf,
    data_dir: Option<PathBuf>,
    environment: Vec<(String, String)>,
    unheard: bool,
}

impl NodeOptions {
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            program: program(),
            data_dir: None,
            // Nodes that share a database share the key that secrets are sealed with.
            environment: vec![(
                "HEDDLE_SECRETS_KEY".into(),
                "the secrets of the end-to-end tests".into(),
            )],
            unheard: false,
        }
    }

    /// In a data directory that outlives it: who starts there is the same node.
    pub fn data_dir(mut self, directory: &Path) -> Self {
        self.data_dir = Some(directory.to_owned());
        self
    }

    /// From another file than the program's own.
    pub fn program(mut self, file: &Path) -> Self {
        self.program = file.to_owned();
        self
    }

    /// With a log that cannot be written.
    pub fn unheard(mut self) -> Self {
        self.unheard = true;
        self
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Where it may reach what the test itself listens on.
    pub fn at_home(self) -> Self {
        self.env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1")
    }

    /// Starts it, and waits until it is ready.
    pub async fn start(&self) -> Node {
        let mut starting = self.spawn();
        let address = starting.process.ready().await;
        Node {
            api: Api::new(&address, Some(TOKEN)),
            process: starting.process,
            data_dir: starting.data_dir,
            _own: starting.own,
        }
    }

    /// Starts it, whether it becomes ready or not.
    pub fn spawn(&self) -> Starting {
        let own = tempfile::Builder::new()
            .prefix("heddle-node-")
            .tempdir()
            .expect("a directory");
        let data_dir = self.data_dir.clone().unwrap_or_else(|| own.path().to_owned());
        give_artefacts(&data_dir);
        let data_dir_text = data_dir.to_string_lossy().into_owned();
        let arguments = [
            "serve",
            "--database-url",
            &self.url,
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            &data_dir_text,
        ];
        let environment: Vec<(&str, &str)> = self
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let start = if self.unheard {
            Process::start_unheard
        } else {
            Process::start_from
        };
        Starting {
            process: start(&self.program, &arguments, &environment, own.path().join("log")),
            data_dir,
            own,
        }
    }
}

/// A node that has been started.
#[derive(Debug)]
pub struct Starting {
    process: Process,
    data_dir: PathBuf,
    own: TempDir,
}

impl Starting {
    /// Sends SIGTERM, as an operator does to stop it.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> std::process::ExitStatus {
        self.process.end().await
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// A node: its process and its API.
#[derive(Debug)]
pub struct Node {
    api: Api,
    process: Process,
    data_dir: PathBuf,
    _own: TempDir,
}

impl Node {
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The id that it has among nodes.
    pub fn node_id(&self) -> String {
        std::fs::read_to_string(self.data_dir.join("node-id"))
            .expect("its identity")
            .trim()
            .to_owned()
    }
}

impl Deref for Node {
    type Target = Api;
    fn deref(&self) -> &Api {
        &self.api
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Api {
        &mut self.api
    }
}

/// The process's controls, without a detour.
impl Node {
    /// Sends SIGKILL: it can tidy nothing up.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM, as an operator does to stop it.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Sends SIGSTOP: it stands still.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Sends SIGCONT: it goes on.
    pub fn thaw(&self) {
        self.process.thaw();
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> std::process::ExitStatus {
        self.process.end().await
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Puts what the template's node has compiled into a data directory that has nothing compiled yet.
pub(crate) fn give_artefacts(data_dir: &Path) {
    let (kept, own) = (artefacts(), data_dir.join("artefacts"));
    if !own.exists() && kept.exists() {
        std::fs::create_dir_all(data_dir).expect("the data directory");
        link_tree(&kept, &own).expect("links to artefacts");
    }
}

/// The same files at another place.
pub(crate) fn link_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_tree(&entry.path(), &target)?;
        } else if std::fs::hard_link(entry.path(), &target).is_err() {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
