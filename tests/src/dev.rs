//! `heddle dev`, as a process.

use std::ops::Deref;
use std::path::Path;

use crate::api::Api;
use crate::process::Process;

/// A node with its own Postgres.
#[derive(Debug)]
pub struct Dev {
    api: Api,
    process: Process,
}

impl Dev {
    /// Starts it in a data directory, and waits until it is ready.
    pub async fn start(data_dir: &Path, arguments: &[&str]) -> Self {
        // So that it compiles no interpreter beside the test; where no test has made one yet, it does so when it is idle.
        crate::node::give_artefacts(data_dir);
        let data_dir_text = data_dir.to_string_lossy().into_owned();
        let mut all = vec!["dev", "--listen", "127.0.0.1:0", "--data-dir", &data_dir_text];
        all.extend_from_slice(arguments);
        let log = data_dir.with_extension("log");
        let mut process = Process::start(&all, &[], log);
        let address = process.ready().await;
        Self {
            api: Api::new(&address, None),
            process,
        }
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Deref for Dev {
    type Target = Api;
    fn deref(&self) -> &Api {
        &self.api
    }
}
