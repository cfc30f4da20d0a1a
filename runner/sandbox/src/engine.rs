//! Wasmtime's configuration, and the ticker that makes guests yield.
//!
//! In measurements, a pool whose slots keep some memory resident is three times as fast as mapping on demand, if the
//! kernel can tell which pages were written (`PAGEMAP_SCAN`). Without it, resetting a large resident part costs more
//! than it saves. Epochs cost a loop 0 to 20%, fuel 70%.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, WasmBacktraceDetails,
};

/// How often running guests yield.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// How many ticks without a guest until the ticker sleeps.
const IDLE_TICKS: u32 = 100;

/// The maximum stack of wasm code.
const MAX_WASM_STACK_BYTES: usize = 2 << 20;
/// A guest's stack: for wasm and for the host functions that it calls.
const STACK_BYTES: usize = 3 << 20;
/// How much of a slot's memory stays resident where the kernel has `PAGEMAP_SCAN`, and where not.
const KEEP_RESIDENT_BYTES: usize = 1 << 20;
const KEEP_RESIDENT_BYTES_WITHOUT_SCAN: usize = 64 << 10;

/// The largest table, in elements.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 200_000;
/// Core instances in one component: Python has some thirty.
pub(crate) const MAX_CORE_INSTANCES: u32 = 100;
/// Memories in one component.
pub(crate) const MAX_MEMORIES: u32 = 8;
/// Tables in one component.
pub(crate) const MAX_TABLES: u32 = 20;
/// What wasmtime may allocate for one instance's own structures.
const MAX_INSTANCE_BYTES: usize = 4 << 20;

/// Instances in addition to those of runs: an uploaded text is checked by running its top level, even if all slots are
/// taken.
pub(crate) const CHECKS_MAX: u32 = 16;

/// The settings that affect compiled code: the compiling child and the node must have the same.
pub(crate) fn code_config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(MAX_WASM_STACK_BYTES)
        .async_stack_size(STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        // Names in a trap's trace come from the name section; with DWARF, the node would parse hostile input.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_component_model(true)
        .concurrency_support(false)
        .wasm_threads(false)
        // The attempt's memory limit does not count garbage-collected heaps.
        .wasm_exceptions(false)
        .wasm_gc(false);
    config
}

/// The node's engine: with a pool of slots.
pub(crate) fn pooled_engine(slots: u32, max_memory_bytes: u64) -> wasmtime::Result<Engine> {
    let scan = PoolingAllocationConfig::is_pagemap_scan_available();
    let mut pool = PoolingAllocationConfig::new();
    let slots = slots.saturating_add(CHECKS_MAX);
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(10).max(MAX_CORE_INSTANCES))
        .total_memories(slots.saturating_mul(2).max(MAX_MEMORIES))
        .total_tables(slots.saturating_mul(4).max(MAX_TABLES))
        .total_stacks(slots)
        .max_core_instances_per_component(MAX_CORE_INSTANCES)
        .max_memories_per_component(MAX_MEMORIES)
        .max_tables_per_component(MAX_TABLES)
        .max_memories_per_module(MAX_MEMORIES)
        .max_tables_per_module(MAX_TABLES)
        .max_core_instance_size(MAX_INSTANCE_BYTES)
        .max_component_instance_size(MAX_INSTANCE_BYTES)
        .table_elements(MAX_TABLE_ELEMENTS)
        .max_memory_size(usize::try_from(max_memory_bytes).unwrap_or(usize::MAX))
        .max_unused_warm_slots(slots)
        .pagemap_scan(if scan { Enabled::Yes } else { Enabled::No })
        .linear_memory_keep_resident(if scan {
            KEEP_RESIDENT_BYTES
        } else {
            KEEP_RESIDENT_BYTES_WITHOUT_SCAN
        })
        .table_keep_resident(KEEP_RESIDENT_BYTES_WITHOUT_SCAN)
        .async_stack_keep_resident(KEEP_RESIDENT_BYTES_WITHOUT_SCAN);
    let mut config = code_config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// The engine of a node, without a sandbox around it.
pub fn bare_engine() -> wasmtime::Result<Engine> {
    pooled_engine(1_000, 1 << 30)
}

/// Advances the engine's epoch while any guest runs, and sleeps while none does.
pub(crate) struct Ticker {
    state: Arc<TickerState>,
}

#[derive(Default)]
struct TickerState {
    running: AtomicU32,
    asleep: AtomicBool,
    stopped: AtomicBool,
    ticks: AtomicU64,
    gate: Mutex<()>,
    wake: Condvar,
}

impl Ticker {
    pub fn start(engine: Engine) -> std::io::Result<Self> {
        let state = Arc::new(TickerState::default());
        let ticking = Arc::clone(&state);
        std::thread::Builder::new().name("guest-ticker".into()).spawn(move || {
            let mut idle = 0;
            while !ticking.stopped.load(SeqCst) {
                std::thread::sleep(TICK);
                engine.increment_epoch();
                ticking.ticks.fetch_add(1, SeqCst);
                idle = if ticking.running.load(SeqCst) == 0 { idle + 1 } else { 0 };
                if idle > IDLE_TICKS {
                    ticking.sleep();
                    idle = 0;
                }
            }
        })?;
        Ok(Self { state })
    }

    /// Ticks so far. While no guest runs, there are none.
    pub fn ticks(&self) -> u64 {
        self.state.ticks.load(SeqCst)
    }

    /// A guest begins to run on this thread.
    pub fn enter(&self) {
        self.state.running.fetch_add(1, SeqCst);
        if self.state.asleep.load(SeqCst) {
            self.state.rouse();
        }
    }

    /// The guest stops running on this thread.
    pub fn leave(&self) {
        self.state.running.fetch_sub(1, SeqCst);
    }

    pub fn stop(&self) {
        self.state.stopped.store(true, SeqCst);
        self.state.rouse();
    }
}

impl TickerState {
    fn sleep(&self) {
        let mut gate = self.gate.lock();
        self.asleep.store(true, SeqCst);
        // A guest that enters after this check sees `asleep`.
        while self.running.load(SeqCst) == 0 && self.asleep.load(SeqCst) && !self.stopped.load(SeqCst) {
            self.wake.wait(&mut gate);
        }
        self.asleep.store(false, SeqCst);
    }

    fn rouse(&self) {
        let _gate = self.gate.lock();
        self.asleep.store(false, SeqCst);
        self.wake.notify_one();
    }
}
