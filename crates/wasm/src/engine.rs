//! The WASM engine: settings, the pool of sandboxes, and the epoch that interrupts guests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::cache::Cache;
use super::files::MOST_FILES;
use super::functions::Functions;
use super::limits::{CORE_INSTANCES, MEMORIES, TABLE_ELEMENTS, TABLES};

/// Interval between interruptions of running guests. At each interruption, a guest yields to other tasks and can be
/// stopped.
const EPOCH_TICK: Duration = Duration::from_millis(10);

/// Maximum size of a linear memory in bytes: the full address space of 32-bit WASM. The engine reserves an address
/// range of this size for every memory, even if the sandbox's limit is smaller.
const MAX_MEMORY: usize = 4 << 30;

/// Size of the address range of each memory in a sandbox, in bytes: the memory and its guard region.
pub const SANDBOX_ADDRESSES: u64 = MAX_MEMORY as u64 + (64 << 20);

/// Maximum total size of the address ranges of all memories in the pool, in bytes: half of a process's 47-bit address
/// space.
const ADDRESSES: u64 = 1 << 46;

/// Number of bytes at the start of a linear-memory slot that the engine keeps resident. When a guest has ended, the
/// engine zeroes these bytes for the next guest, and returns the rest of the slot to the kernel. A guest whose memory
/// fits in them has fewer page faults.
const KEEP_RESIDENT: usize = 256 * 1024;

/// Number of bytes at the start of a table slot that the engine keeps resident. When a guest has ended, the engine
/// zeroes these bytes for the next guest, and returns the rest of the slot to the kernel.
const KEEP_RESIDENT_OF_TABLE: usize = 64 * 1024;

/// Compiles and runs guests. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: wasmtime::Engine,
    ticker: Arc<Ticker>,
    cache: Option<Arc<Cache>>,
    /// Maximum number of open files in each sandbox.
    files: usize,
}

/// Dimensions of the sandbox pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Maximum number of sandboxes that exist at the same time.
    pub sandboxes: u32,
}

/// The error for an engine that could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the WASM engine: {0}")]
pub struct EngineError(String);

impl Engine {
    /// Creates an engine with a pool of sandboxes. If the address space is too small for a pool, the engine creates
    /// each sandbox on demand instead.
    ///
    /// # Errors
    /// [`EngineError`] if this machine cannot run guests at all.
    pub fn new(pool: Pool) -> Result<Self, EngineError> {
        Self::pooled(pool, &base_config())
    }

    /// Creates an engine like [`Self::new`] that keeps the code of each function that it compiles. A handler that differs
    /// from an earlier one in a few functions compiles in a fraction of the time. The code stays in memory as long as the
    /// engine exists, so this is for compiling many variants of a few handlers.
    ///
    /// # Errors
    /// [`EngineError`] if this machine cannot run guests at all.
    pub fn keeping_functions(pool: Pool) -> Result<Self, EngineError> {
        let mut config = base_config();
        let kept = config.enable_incremental_compilation(Arc::new(Functions::default()));
        kept.map_err(|error| EngineError(format!("{error:#}")))?;
        Self::pooled(pool, &config)
    }

    fn pooled(pool: Pool, base: &Config) -> Result<Self, EngineError> {
        let mut most = memories(pool.sandboxes);
        loop {
            let mut config = base.clone();
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling(pool, most)));
            match wasmtime::Engine::new(&config) {
                Ok(engine) => return Self::start(engine),
                // The process may have a smaller address space than the processor supports (`ulimit -v`). In that case,
                // retry with half as many memories for each sandbox.
                Err(_) if most > 1 => most /= 2,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "cannot pool sandboxes; each is created on demand");
                    return Self::on_demand();
                }
            }
        }
    }

    /// Creates an engine without a pool, for a single handler call or for compiling.
    ///
    /// # Errors
    /// [`EngineError`] if this machine cannot run guests at all.
    pub fn on_demand() -> Result<Self, EngineError> {
        Self::start(wasmtime::Engine::new(&base_config()).map_err(|error| EngineError(format!("{error:#}")))?)
    }

    fn start(inner: wasmtime::Engine) -> Result<Self, EngineError> {
        let ticker = Ticker::start(&inner).map_err(|error| EngineError(error.to_string()))?;
        Ok(Self { inner, ticker: Arc::new(ticker), cache: None, files: MOST_FILES })
    }

    /// Returns the engine with a cache for compiled code. `None`: code is not cached.
    #[must_use]
    pub fn with_cache(self, cache: Option<Arc<Cache>>) -> Self {
        Self { cache, ..self }
    }

    /// Returns the engine with `files` as the maximum number of open files in each sandbox.
    #[must_use]
    pub fn with_files(self, files: usize) -> Self {
        Self { files, ..self }
    }

    pub(super) fn files(&self) -> usize {
        self.files
    }

    pub(super) fn cache(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    pub(super) fn inner(&self) -> &wasmtime::Engine {
        &self.inner
    }

    /// Advances the epoch at regular intervals as long as the returned guard exists.
    pub(super) fn running(&self) -> Running<'_> {
        self.ticker.running()
    }

    pub(super) fn ticker(&self) -> &Arc<Ticker> {
        &self.ticker
    }
}

/// Returns the settings that affect compiled code. They must be the same when a handler is compiled ahead of time and
/// when it runs.
pub(super) fn base_config() -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.wasm_component_model(true);
    config.parallel_compilation(COMPILES_IN_PARALLEL.load(Ordering::Relaxed));
    config
}

/// Set if the engine may compile on several threads.
static COMPILES_IN_PARALLEL: AtomicBool = AtomicBool::new(true);

/// Sets the number of threads for compiling. All engines that are created after this call share the threads. The
/// default is one thread per CPU. Starts the threads during this call, because a failure to start threads during a
/// compilation could not be handled. If the threads cannot be started, each engine compiles on the calling thread only.
pub fn compile_with(threads: usize) {
    let started = threads > 1 && rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().is_ok();
    COMPILES_IN_PARALLEL.store(started, Ordering::Relaxed);
}

/// Returns the settings of a pool with at most `memories` memories for each sandbox. The pool has enough slots for all
/// sandboxes to use their maximum numbers of instances, memories and tables at the same time. A sandbox therefore never
/// lacks a slot because of other sandboxes. A component that exceeds any of these maximum numbers is refused at load
/// time. The pool reserves only address space. The kernel allocates a page when it is first accessed.
fn pooling(pool: Pool, memories: u32) -> PoolingAllocationConfig {
    let all = |most: u32| pool.sandboxes.saturating_mul(most);
    let mut config = PoolingAllocationConfig::new();
    config
        .total_component_instances(pool.sandboxes)
        .total_core_instances(all(CORE_INSTANCES))
        .total_memories(all(memories))
        .total_tables(all(TABLES))
        .total_stacks(pool.sandboxes)
        // The smaller limit of each sandbox is enforced by `limits.rs`.
        .max_memory_size(MAX_MEMORY)
        // Keeps at most as many idle slots warm as there are sandboxes.
        .max_unused_warm_slots(pool.sandboxes)
        .max_memories_per_component(memories)
        .max_tables_per_component(TABLES)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_component_instance_size(1 << 20)
        .max_core_instance_size(1 << 20)
        .table_elements(TABLE_ELEMENTS)
        // Up to wasmtime 49, the scan skips pages that the kernel is moving, or has swapped out, during the scan. The
        // next guest can then read the previous guest's data in these pages (wasmtime pull request 14357).
        // `tests/hostile/fresh.rs` demonstrates the fault.
        .pagemap_scan(Enabled::No)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(KEEP_RESIDENT_OF_TABLE);
    config
}

/// Returns the maximum number of memories for each sandbox: the largest number, up to [`MEMORIES`], for which the pool
/// reserves at most [`ADDRESSES`] bytes of address space for all sandboxes.
fn memories(sandboxes: u32) -> u32 {
    let fit = ADDRESSES / SANDBOX_ADDRESSES / u64::from(sandboxes.max(1));
    u32::try_from(fit).unwrap_or(MEMORIES).clamp(1, MEMORIES)
}

/// Handle to the thread that advances the epoch while any guest is running, and sleeps otherwise.
pub(super) struct Ticker {
    running: Arc<AtomicUsize>,
    thread: Thread,
}

impl Ticker {
    fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let running = Arc::new(AtomicUsize::new(0));
        let engine = engine.weak();
        let seen = Arc::downgrade(&running);
        let handle = thread::Builder::new().name("hostler-epoch".into()).spawn(move || {
            while let Some(running) = seen.upgrade() {
                if running.load(Ordering::Acquire) == 0 {
                    drop(running);
                    thread::park();
                    continue;
                }
                drop(running);
                #[allow(clippy::disallowed_methods, reason = "the tick is the event")]
                thread::sleep(EPOCH_TICK);
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        })?;
        Ok(Self { running, thread: handle.thread().clone() })
    }

    /// Advances the epoch at regular intervals as long as the returned guard exists.
    pub(super) fn running(&self) -> Running<'_> {
        if self.running.fetch_add(1, Ordering::AcqRel) == 0 {
            self.thread.unpark();
        }
        Running(self)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.running = Arc::default();
        self.thread.unpark();
    }
}

/// A guard for a running guest. The epoch advances as long as any guard exists.
pub(super) struct Running<'a>(&'a Ticker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates `sandboxes` sandboxes of a component at the same time, to fill the pool. `text`: text form of the
    /// component.
    fn fill(engine: &Engine, sandboxes: u32, text: &str) -> wasmtime::Result<()> {
        let component = wasmtime::component::Component::new(engine.inner(), text)?;
        let linker = wasmtime::component::Linker::<()>::new(engine.inner());
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut alive = Vec::new();
        for _ in 0..sandboxes {
            let mut store = wasmtime::Store::new(engine.inner(), ());
            store.set_epoch_deadline(1_000);
            runtime.block_on(linker.instantiate_async(&mut store, &component))?;
            alive.push(store);
        }
        Ok(())
    }

    /// Returns the text form of a component with `instances` instances. Each of the first `memories` instances has a
    /// memory. Each of the next `tables` instances has a table.
    fn component(instances: u32, memories: u32, tables: u32) -> String {
        let mut text =
            "(component (core module $plain) (core module $memory (memory 1)) (core module $table (table 1 funcref))"
                .to_owned();
        for number in 0..instances {
            let kind = match number {
                _ if number < memories => "memory",
                _ if number < memories + tables => "table",
                _ => "plain",
            };
            text += &format!("(core instance (instantiate ${kind}))");
        }
        text + ")"
    }

    #[test]
    fn the_pool_holds_every_sandbox_at_its_maximum() {
        let sandboxes = 20;
        let engine = Engine::new(Pool { sandboxes }).unwrap();
        fill(&engine, sandboxes, &component(CORE_INSTANCES, MEMORIES, TABLES)).unwrap();
        let more = [component(CORE_INSTANCES + 1, 0, 0), component(20, MEMORIES + 1, 0), component(80, 0, TABLES + 1)];
        for text in more {
            assert!(
                wasmtime::component::Component::new(engine.inner(), text).is_err(),
                "it is refused when it is loaded"
            );
        }
    }

    #[test]
    fn many_sandboxes_have_fewer_memories_each_rather_than_no_pool() {
        assert_eq!([1, 16, 500, 1_000].map(memories), [MEMORIES; 4]);
        assert_eq!(memories(4_000), 4);
        assert_eq!(memories(u32::MAX), 1);
        let addresses = |sandboxes: u32| SANDBOX_ADDRESSES * u64::from(memories(sandboxes)) * u64::from(sandboxes);
        assert!([1, 100, 1_100, 5_000, 16_000].iter().all(|sandboxes| addresses(*sandboxes) <= ADDRESSES));
        let started = std::time::Instant::now();
        Engine::new(Pool { sandboxes: 1_000 }).unwrap();
        println!("a pool of 1,000 sandboxes takes {:?}", started.elapsed());
    }
}
