//! The contents of a store: the host side of one attempt.

use crate::attempt::Grants;
use crate::command::Captured;
use crate::context::Context;
use crate::effects::Effects;
use crate::journal::Journal;
use crate::memory::MemoryGuard;
use crate::rehearsal::{Chance, Draws, Exchanges, StageClock, StageTime};
use crate::services::HostServices;
use crate::source::SourceState;
use crate::sql::AttemptDatabases;
use crate::unsent::Kept;
use crate::web::WebHooks;
use heddle_domain::{Clock, Time};
use std::collections::HashMap;
use std::sync::Arc;
use wasmtime::component::HasData;
use wasmtime::{Store, UpdateDeadline};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

/// The maximum bytes that one host call may take from the guest, a component or the interpreter of a source script.
pub(crate) const MAX_CALL_BYTES: usize = 32 << 20;
/// The maximum random bytes of one call.
const MAX_RANDOM_BYTES: u64 = 1 << 20;
/// How many resources (streams, requests, …) an attempt may hold.
pub(crate) const MAX_RESOURCES: usize = 1_024;
/// The largest headers of one request of a component, as wasmtime counts them: its names and values, and what refers to
/// them.
pub(crate) const MAX_HEADERS_BYTES: usize = 16 << 10;

/// The data of host functions.
pub(crate) struct Guest {
    pub wasi: WasiP1Ctx,
    http: WasiHttpCtx,
    hooks: WebHooks,
    /// Of the bodies that a component has not begun to write, by their resource. A number that is free is used again, so
    /// there are no more of them than resources.
    pub unwritten: HashMap<u32, Arc<Kept>>,
    pub guard: MemoryGuard,
    pub host: HostSide,
    pub source: SourceState,
}

/// The data of `heddle:task`'s host functions.
pub(crate) struct HostSide {
    pub context: Arc<Context>,
    pub grants: Arc<Grants>,
    pub services: Arc<dyn HostServices>,
    pub journal: Journal,
    pub effects: Effects,
    pub databases: Arc<AttemptDatabases>,
    /// The clock of the script; it is the node's own, except in a rehearsal.
    pub clock: Arc<dyn Clock>,
    pub chance: Chance,
    /// In a rehearsal: the same clock, and the seed of all chance.
    pub stage: Option<Arc<StageClock>>,
    pub seed: Option<u64>,
    pub exchanges: Option<Arc<dyn Exchanges>>,
    /// The runtime for futures of [`HostServices`].
    pub node: tokio::runtime::Handle,
    /// The runtime for queries of scripts; guests have their own threads.
    pub io: tokio::runtime::Handle,
    pub progress: Progress,
}

/// The last progress; it is passed on at a bounded rate.
#[derive(Default)]
pub(crate) struct Progress {
    pub reported_at: Option<Time>,
    pub unreported: Option<(f64, String)>,
}

/// Marks `heddle:task`'s host functions as working on a [`HostSide`].
pub(crate) struct HasHostSide;

impl HasData for HasHostSide {
    type Data<'a> = &'a mut HostSide;
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi.ctx()
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.hooks,
            table: self.wasi.ctx().table,
            ctx: &mut self.http,
        }
    }
}

/// A WASI command's streams and environment; a component for `heddle:task` has none.
pub(crate) struct CommandIo {
    pub stdin: String,
    pub context: String,
    pub stdout: Captured,
    /// A command of WASI 0.1: only real time can make its clock advance.
    pub keeps_time: bool,
}

impl Guest {
    /// How requests of a text script are sent.
    pub fn web(&self) -> WebHooks {
        self.hooks.clone()
    }

    /// Lets its statements count as its memory. The calls of source scripts count on their own.
    pub fn count_statements(&mut self) {
        let databases = self.host.databases.counted(self.guard.holder());
        self.host.databases = Arc::new(databases);
    }

    /// A store for one attempt.
    pub fn store(
        engine: &wasmtime::Engine,
        host: HostSide,
        hooks: WebHooks,
        guard: MemoryGuard,
        command: Option<CommandIo>,
    ) -> Store<Self> {
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(MAX_RANDOM_BYTES);
        wasi.stderr(crate::command::Logged(host.journal.clone()));
        match command {
            Some(command) => {
                wasi.arg("task").env("HEDDLE_CONTEXT", command.context);
                wasi.stdin(wasmtime_wasi::p2::pipe::MemoryInputPipe::new(command.stdin))
                    .stdout(command.stdout);
            }
            // What a component prints is log too.
            None => {
                wasi.stdout(crate::command::Logged(host.journal.clone()));
            }
        }
        if let Some(stage) = &host.stage {
            wasi.wall_clock(StageTime(Arc::clone(stage)))
                .monotonic_clock(StageTime(Arc::clone(stage)));
        }
        if let Some(seed) = host.seed {
            let mut insecure = [0; 16];
            Draws::new(seed, 3).fill(&mut insecure);
            wasi.secure_random(Draws::new(seed, 1))
                .insecure_random(Draws::new(seed, 2))
                .insecure_random_seed(u128::from_le_bytes(insecure));
        }
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(MAX_HEADERS_BYTES);
        let mut guest = Self {
            wasi: wasi.build_p1(),
            http,
            hooks,
            unwritten: HashMap::new(),
            guard,
            host,
            source: SourceState::default(),
        };
        guest.wasi.ctx().table.set_max_capacity(MAX_RESOURCES);
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| &mut guest.guard);
        store.set_hostcall_fuel(MAX_CALL_BYTES);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        store
    }
}
