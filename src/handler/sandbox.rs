//! A sandbox: one store, with its limits, its capabilities and the call that runs in it.

use std::sync::Arc;

use wasmtime::Store;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::Definition;
use super::call::Bounds;
use super::engine::Engine;
use super::limits::{GUEST_HANDLES, Limits};
use crate::message::Message;

/// What a sandbox of any kind of guest knows.
pub(super) struct Sandbox<W> {
    pub(super) wasi: W,
    pub(super) limits: Limits,
    /// The consumer that it works for, for the log.
    pub(super) consumer: Arc<str>,
    /// How long the call that runs in it may take; replaced when an instance is used again.
    pub(super) bounds: Bounds,
    /// What it processes, where its contract lets it reply by sending.
    pub(super) answering: Option<Answering>,
}

/// A message that a guest may reply to.
pub(super) struct Answering {
    pub(super) message: Arc<Message>,
    /// How many replies it has sent.
    pub(super) replies: u32,
}

/// WASI as components see it.
pub(super) struct ComponentWasi {
    ctx: WasiCtx,
    table: ResourceTable,
}

impl ComponentWasi {
    pub(super) fn new(ctx: WasiCtx, limits: &Limits) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles);
        Self { ctx, table }
    }
}

impl WasiView for Sandbox<ComponentWasi> {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi.ctx, table: &mut self.wasi.table }
    }
}

/// The store of a component.
pub(super) type ComponentStore = Store<Sandbox<ComponentWasi>>;

/// A fresh store with these limits; its guest yields at every epoch tick.
pub(super) fn store<W: Send + 'static>(
    engine: &Engine,
    wasi: W,
    definition: &Definition,
    limits: &Limits,
    bounds: &Bounds,
) -> Store<Sandbox<W>> {
    let (consumer, bounds) = (Arc::clone(&definition.consumer), bounds.clone());
    let sandbox = Sandbox { wasi, limits: limits.clone(), consumer, bounds, answering: None };
    let mut store = Store::new(engine.inner(), sandbox);
    store.limiter(|sandbox| &mut sandbox.limits);
    store.set_hostcall_fuel(limits.transfer);
    store.set_max_component_handles(GUEST_HANDLES);
    store.set_epoch_deadline(1);
    // A guest that is to stop is dropped when it yields, rather than trapped: a trap would look like its own.
    store.epoch_deadline_async_yield_and_update(1);
    store
}

/// Why a guest did not finish, for people: what its limits know of it and the innermost cause, without a backtrace.
pub(super) fn fault(error: &wasmtime::Error, limits: &Limits) -> String {
    let cause = match error.downcast_ref::<wasmtime::Trap>() {
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    };
    match limits.hint() {
        Some(hint) => format!("{hint} ({cause})"),
        None => cause,
    }
}
