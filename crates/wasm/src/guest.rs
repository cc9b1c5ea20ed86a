//! A linked component and its instances.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{ComponentExportIndex, ComponentNamedList, Instance, InstancePre, Lift, Lower};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder};

use super::Definition;
use super::capabilities::Stdin;
use super::denial::Denials;
use super::engine::{Engine, Ticker};
use super::host_limit;
use super::http::Web;
use super::limits::Limits;
use super::load_error::LoadError;
use super::output::Sink;
use super::sandbox::{self, ComponentStore, ComponentWasi, LazyWasi, Sandbox};
use super::scope::Scope;
use super::source::Source;
use super::tcp::{Check, Connections, Tcp};
use hostler_handler::{BatchCall, Bounds, Call, Outcome, Output};

/// A linked component that can be instantiated repeatedly.
pub(super) struct Guest {
    engine: Engine,
    pre: InstancePre<Sandbox<ComponentWasi>>,
    definition: Arc<Definition>,
    limits: Limits,
    web: Arc<Web>,
    /// The servers to which the guest may connect. `None`: there are none.
    tcp: Option<Arc<Tcp>>,
}

/// An instance of a component in its sandbox.
pub(super) struct Live {
    ticker: Arc<Ticker>,
    store: ComponentStore,
    instance: Instance,
    sink: Sink,
    /// Number of messages that the instance has processed.
    pub(super) used: u32,
}

/// An exported function, looked up once when the component is loaded.
pub(super) type Export = ComponentExportIndex;

impl Guest {
    /// Creates a guest from a linked component. Each instance may use up to `memory` bytes of linear memory.
    pub(super) fn new(
        engine: &Engine,
        pre: InstancePre<Sandbox<ComponentWasi>>,
        definition: &Arc<Definition>,
        memory: u64,
    ) -> Result<Self, LoadError> {
        let grants = &definition.grants;
        let web =
            Web::new(&grants.http, &grants.networks).map_err(|error| LoadError::web(&definition.source, &error))?;
        let web = web.traced(grants.producer.as_ref().and_then(|producer| producer.traces().cloned()));
        let tcp = Tcp::new(&grants.tcp, &grants.networks, grants.connections)
            .map_err(|error| LoadError::tls(&definition.source, &error))?;
        let limits = Limits::component(memory).of(engine.files(), definition);
        Ok(Self { engine: engine.clone(), pre, definition: Arc::clone(definition), limits, web: Arc::new(web), tcp })
    }

    /// Returns the linked component.
    pub(super) fn pre(&self) -> &InstancePre<Sandbox<ComponentWasi>> {
        &self.pre
    }

    /// Returns the definition of the handler.
    pub(super) fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// Returns the location of the handler's bytes.
    pub(super) fn source(&self) -> &Source {
        &self.definition.source
    }

    /// Returns the name of the consumer that runs the handler.
    pub(super) fn consumer(&self) -> &str {
        &self.definition.consumer
    }

    /// Returns the scope for a sandbox that processes the message of `call`.
    pub(super) fn scope(&self, call: &Call) -> Scope {
        Scope::of(call, &self.definition)
    }

    /// Returns the scope for a sandbox that processes the messages of `batch`.
    pub(super) fn scope_of_batch(&self, batch: &Arc<BatchCall>) -> Scope {
        Scope::of_batch(batch, &self.definition)
    }

    /// Lowers the number of bytes that the host may copy from the guest during one call.
    pub(super) fn with_transfer(mut self, most: usize) -> Self {
        self.limits.transfer = self.limits.transfer.min(most);
        self
    }

    /// Returns the scope for a sandbox that runs a hook without a message.
    pub(super) fn scope_without_message(&self, bounds: Bounds) -> Scope {
        Scope::new(bounds, Denials::new(Arc::clone(&self.definition.consumer), None))
    }

    /// Creates a sandbox, and an instance of the component in it. If this fails, the error is the outcome of the call.
    pub(super) async fn instantiate(&self, scope: Scope, output: &Output, stdin: Stdin<'_>) -> Result<Live, Outcome> {
        let begun = self.definition.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let _running = self.engine.running();
        let (sink, scope) = (Sink::new(output), Arc::new(scope));
        let connections = self.tcp.as_ref().map(Connections::new);
        let wasi = self.wasi(stdin, &sink, connections.as_ref().map(Connections::check))?;
        let wasi = ComponentWasi::new(wasi, &self.limits, &self.web, &scope, connections);
        let mut store = sandbox::store(&self.engine, wasi, &self.limits, scope);
        match self.pre.instantiate_async(&mut store).await {
            Ok(instance) => {
                if let Some((metrics, begun)) = begun {
                    metrics.instantiated(begun.elapsed());
                }
                Ok(Live { ticker: Arc::clone(self.engine.ticker()), store, instance, sink, used: 0 })
            }
            Err(error) => Err(store.data_mut().trapped(&error)),
        }
    }

    /// Returns the WASI context for a sandbox. Without granted folders and without input from the message, the context
    /// is created only when it is first used. Otherwise, it is created at once. Then a missing folder fails the message
    /// before the guest starts, and the sandbox need not store the input, which is only borrowed.
    fn wasi(&self, stdin: Stdin<'_>, sink: &Sink, check: Option<Check>) -> Result<LazyWasi, Outcome> {
        if self.definition.grants.dirs.is_empty() && stdin.env.is_empty() && stdin.body.is_empty() {
            let (definition, sink, limits) = (Arc::clone(&self.definition), sink.clone(), self.limits.clone());
            let make = move || {
                let wasi = definition.grants.wasi_without_folders(Stdin::default(), &sink, &limits);
                built(wasi, check)
            };
            return Ok(LazyWasi::new(Box::new(make)));
        }
        let wasi = self.definition.grants.wasi(stdin, sink, &self.limits);
        let wasi = built(wasi.map_err(|error| no_folder(&error))?, check);
        Ok(LazyWasi::new(Box::new(move || wasi)))
    }
}

/// Builds a WASI context. `check`: decides to which addresses the guest may connect; `None`: the guest has no sockets.
fn built(mut wasi: WasiCtxBuilder, check: Option<Check>) -> WasiCtx {
    if let Some(check) = check {
        wasi.allow_tcp(true).socket_addr_check(check);
    }
    wasi.build()
}

/// Returns the outcome of a call whose sandbox needs a granted folder that cannot be opened.
pub(super) fn no_folder(error: &wasmtime::Error) -> Outcome {
    let reason = format!("a granted folder cannot be opened: {error:#}");
    match host_limit::of(error.as_ref()) {
        Some(limit) => Outcome::HostLimit(limit, reason),
        None => Outcome::Trapped(reason),
    }
}

impl Live {
    /// Calls an exported function. The error says why the guest did not return.
    pub(super) async fn call<P, R>(&mut self, export: &Export, params: P) -> Result<R, wasmtime::Error>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift + 'static,
    {
        let _running = self.ticker.running();
        let function = self.instance.get_typed_func::<P, R>(&mut self.store, export)?;
        function.call_async(&mut self.store, params).await
    }

    /// Returns, for the log, the reason why a call to an exported function did not return.
    pub(super) fn fault(&self, error: &wasmtime::Error) -> String {
        sandbox::fault(error, &self.store.data().limits)
    }

    /// Returns the outcome of a call that did not return.
    pub(super) fn trapped(&mut self, error: &wasmtime::Error) -> Outcome {
        self.store.data_mut().trapped(error)
    }

    /// Returns the final outcome of a call that ended with `outcome`. If the call reached a host limit, a failure or a
    /// retry becomes [`Outcome::HostLimit`].
    pub(super) fn judge(&mut self, outcome: Outcome) -> Outcome {
        self.store.data_mut().judge(outcome)
    }

    /// Waits, after a call that processed its message, until the kernel has all that the guest wrote to its TCP connections,
    /// and returns the final outcome. If a part was lost, the message has failed. The caller limits the wait.
    pub(super) async fn settled(&mut self, outcome: Outcome) -> Outcome {
        self.store.data_mut().settled(outcome).await
    }

    /// Returns the final outcomes of the messages of a call, as [`Self::settled`] does for one.
    pub(super) async fn settled_all(&mut self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let mut settled = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            settled.push(self.settled(outcome).await);
        }
        settled
    }

    /// Returns the final outcomes of the messages of a call, as [`Self::judge`] does for one.
    pub(super) fn judge_all(&mut self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        self.store.data_mut().judge_all(outcomes)
    }

    /// Returns the data of the instance's sandbox.
    #[cfg(feature = "messaging")]
    pub(super) fn sandbox(&mut self) -> &mut Sandbox<ComponentWasi> {
        self.store.data_mut()
    }

    /// Prepares the instance for another call, whose output goes to `output`.
    pub(super) fn reuse_for(&mut self, scope: Scope, output: &Output) {
        self.sink.redirect(output);
        self.store.data_mut().enter(Arc::new(scope));
    }
}

/// A contract that defines how components of one kind are called.
pub(super) trait Contract: Sized + Send + Sync + 'static {
    /// Finds the exported functions of a component.
    fn find(guest: &Guest) -> Result<Self, LoadError>;

    /// Calls the component with one message. The error says why the guest did not return from the call.
    fn handle(&self, live: &mut Live, call: &Call) -> impl Future<Output = Result<Outcome, wasmtime::Error>> + Send;
}
