//! A sandbox: one store, with its limits, its capabilities, and the call that runs in the sandbox.

use std::cell::LazyCell;
use std::sync::Arc;

use wasmtime::component::ResourceTable;
use wasmtime::{Store, StoreContextMut};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::engine::Engine;
use super::host_limit;
use super::http::{Hooks, Uploads, Web};
use super::limits::{GUEST_HANDLES, HELD_PER_HANDLE, Limits};
use super::scope::Scope;
use super::tcp::Connections;
use hostler_handler::{Limit, Outcome};
use hostler_types::message::Message;

/// The data of a sandbox, for any kind of guest. `W` is the type of the WASI context.
pub(super) struct Sandbox<W> {
    pub(super) wasi: W,
    pub(super) limits: Limits,
    /// The current call. The call changes when the instance is reused.
    pub(super) scope: Arc<Scope>,
    /// The current message, if the guest can reply to it by sending a message. `None`: under the guest's contract, sent
    /// messages are never replies.
    pub(super) answering: Option<Answering>,
}

/// A message to which the guest may reply.
#[cfg_attr(not(feature = "messaging"), allow(dead_code, reason = "no other contract replies by sending"))]
pub(super) struct Answering {
    pub(super) message: Arc<Message>,
    /// The channel from which the message was received.
    pub(super) from: Arc<str>,
    /// Number of replies that the guest has sent.
    pub(super) replies: u32,
}

/// The WASI context of a guest. Created when it is first used, because many guests never use WASI.
pub(super) type LazyWasi = LazyCell<WasiCtx, Box<dyn FnOnce() -> WasiCtx + Send>>;

/// The WASI context of a component, including outgoing HTTP.
pub(super) struct ComponentWasi {
    ctx: LazyWasi,
    table: ResourceTable,
    http: WasiHttpCtx,
    http_hooks: Hooks,
    /// The guest's TCP connections. `None`: no server is granted.
    pub(super) connections: Option<Connections>,
}

impl ComponentWasi {
    pub(super) fn new(
        ctx: LazyWasi,
        limits: &Limits,
        web: &Arc<Web>,
        scope: &Arc<Scope>,
        connections: Option<Connections>,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(HELD_PER_HANDLE / 2);
        Self { ctx, table, http, http_hooks: Hooks::new(web, Arc::clone(scope)), connections }
    }

    /// Returns the table of the guest's resources, and the guest's TCP connections.
    pub(super) fn connections(&mut self) -> (&mut ResourceTable, Option<&mut Connections>) {
        (&mut self.table, self.connections.as_mut())
    }

    /// Returns the table of the guest's resources, and the bodies of the guest's HTTP requests.
    pub(super) fn uploads(&mut self) -> (&mut ResourceTable, &mut Uploads) {
        (&mut self.table, &mut self.http_hooks.uploads)
    }
}

impl<W> Sandbox<W> {
    /// Returns the final outcome of a call that ended with `outcome`. If the call reached a host limit, a failure or a
    /// retry becomes [`Outcome::HostLimit`], because the handler is not at fault.
    pub(super) fn judge(&mut self, outcome: Outcome) -> Outcome {
        let outcome = self.limited(outcome);
        self.scope.denials.ended(&outcome);
        outcome
    }

    /// Returns the final outcomes of the messages of a call. The log of denied operations gets the first error, if any.
    pub(super) fn judge_all(&mut self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let limit = self.limit();
        let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| spared(limit, outcome)).collect();
        let error = outcomes.iter().find(|outcome| outcome.kind().is_error());
        self.scope.denials.ended(error.unwrap_or(&Outcome::Ack));
        outcomes
    }

    /// Returns the final outcome of a message that the guest answers before its call ends. The limit counts for the others too.
    pub(super) fn judge_early(&self, outcome: Outcome) -> Outcome {
        let limit = self.limits.reached.or_else(|| self.scope.reached.get().copied());
        spared(limit, outcome)
    }

    fn limited(&mut self, outcome: Outcome) -> Outcome {
        let limit = self.limit();
        spared(limit, outcome)
    }

    /// Returns the host limit that the call has reached.
    fn limit(&mut self) -> Option<Limit> {
        self.limits.reached.take().or_else(|| self.scope.reached.get().copied())
    }

    /// Returns the outcome of a call that did not return.
    pub(super) fn trapped(&mut self, error: &wasmtime::Error) -> Outcome {
        if let Some(limit) = host_limit::of(error.as_ref()) {
            self.scope.reach(limit);
        }
        let reason = fault(error, &self.limits);
        self.judge(Outcome::Trapped(reason))
    }
}

/// Returns the outcome of a call that has reached this limit, if any. The handler is not at fault.
fn spared(limit: Option<Limit>, outcome: Outcome) -> Outcome {
    let Some(limit) = limit else { return outcome };
    match outcome {
        Outcome::Failed(reason) | Outcome::Trapped(reason) => Outcome::HostLimit(limit, reason),
        Outcome::Retry(reason) => Outcome::HostLimit(limit, reason.unwrap_or_default()),
        outcome => outcome,
    }
}

impl Sandbox<ComponentWasi> {
    /// Prepares the sandbox for the next call. Removes the message of the previous call.
    pub(super) fn enter(&mut self, scope: Arc<Scope>) {
        scope.denials.looked_as(&self.scope.denials);
        self.wasi.http_hooks.scope = Arc::clone(&scope);
        self.scope = scope;
        self.answering = None;
    }

    /// Waits, before a message counts as processed, until the kernel has all that the guest wrote to its TCP connections.
    /// Returns the final outcome: if a part was lost during the call, the message has failed. The caller limits the wait.
    pub(super) async fn settled(&mut self, outcome: Outcome) -> Outcome {
        if !matches!(outcome, Outcome::Ack | Outcome::Reply(_)) {
            return outcome;
        }
        let Some(connections) = &mut self.wasi.connections else { return outcome };
        if !connections.settle().await {
            self.scope.lose_output();
        }
        if !self.scope.has_lost_output() {
            return outcome;
        }
        Outcome::Failed("a TCP connection broke before all that the handler had written to it was sent".into())
    }
}

impl WasiView for Sandbox<ComponentWasi> {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi.ctx, table: &mut self.wasi.table }
    }
}

impl WasiHttpView for Sandbox<ComponentWasi> {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        let wasi = &mut self.wasi;
        WasiHttpCtxView { hooks: &mut wasi.http_hooks, table: &mut wasi.table, ctx: &mut wasi.http }
    }
}

/// The context of a call to a host function: gives access to the calling component's store and sandbox.
pub(super) type Host<'a> = StoreContextMut<'a, Sandbox<ComponentWasi>>;

/// The store of a component.
pub(super) type ComponentStore = Store<Sandbox<ComponentWasi>>;

/// Creates a store for a sandbox with these limits. The guest yields at every epoch tick.
pub(super) fn store<W: Send + 'static>(
    engine: &Engine,
    wasi: W,
    limits: &Limits,
    scope: Arc<Scope>,
) -> Store<Sandbox<W>> {
    let sandbox = Sandbox { wasi, limits: limits.clone(), scope, answering: None };
    let mut store = Store::new(engine.inner(), sandbox);
    store.limiter(|sandbox| &mut sandbox.limits);
    store.set_hostcall_fuel(limits.transfer);
    store.set_max_component_handles(GUEST_HANDLES);
    store.set_epoch_deadline(1);
    // If a guest must stop, the host drops it while it yields. A trap could not be distinguished from a trap that the
    // guest caused itself.
    store.epoch_deadline_async_yield_and_update(1);
    store
}

/// Returns a message that says why a guest did not return, without a backtrace. It contains the innermost cause of the
/// error and, if a limit was the probable cause, that limit.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wasmtime_wasi::WasiCtxBuilder;

    use super::super::denial::Denials;
    use super::*;
    use hostler_handler::Bounds;

    fn scope() -> Arc<Scope> {
        Arc::new(Scope::new(Bounds::new(Duration::from_secs(1)), Denials::new("one".into(), None)))
    }

    #[test]
    fn the_next_message_of_an_instance_answers_nothing_of_the_last() {
        let (web, limits) = (Arc::new(Web::new(&[], &[]).unwrap()), Limits::component(1 << 20));
        let wasi = LazyWasi::new(Box::new(|| WasiCtxBuilder::new().build()));
        let wasi = ComponentWasi::new(wasi, &limits, &web, &scope(), None);
        let answering = Some(Answering { message: Arc::new(Message::new("a", "")), from: "work".into(), replies: 1 });
        let mut sandbox = Sandbox { wasi, limits, scope: scope(), answering };
        sandbox.enter(scope());
        assert!(sandbox.answering.is_none());
    }
}
