//! Handlers that are components, whatever their contract, with the lifecycle hooks that the same component exports.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use wasmtime::component::{Component, ComponentNamedList, Instance, InstancePre, Lift, Linker, Lower};

use super::artifact::LoadError;
use super::capabilities::Stdin;
use super::engine::{Engine, Ticker};
use super::hooks::HookSet;
use super::host_limit;
use super::http::Web;
use super::limits::Limits;
use super::output::Sink;
use super::sandbox::{self, ComponentStore, ComponentWasi, LazyWasi, Sandbox, Scope};
use super::{Definition, imports, stubs};
use hostler_handler::Handler;
use hostler_handler::{Bounds, Call, Outcome};
use hostler_handler::{Mark, Output};
use hostler_types::State;

/// A component that can be instantiated again and again.
pub(super) struct Guest {
    engine: Engine,
    pre: InstancePre<Sandbox<ComponentWasi>>,
    definition: Arc<Definition>,
    limits: Limits,
    web: Arc<Web>,
}

/// An instance, in its sandbox.
pub(super) struct Live {
    ticker: Arc<Ticker>,
    store: ComponentStore,
    instance: Instance,
    sink: Sink,
    /// How many messages it has processed.
    used: u32,
}

/// Names an exported function, found once when the component is loaded.
pub(super) type Export = wasmtime::component::ComponentExportIndex;

impl Guest {
    /// Links a component, whose instances get `memory` bytes each.
    pub(super) fn new(
        engine: &Engine,
        component: &Component,
        definition: &Arc<Definition>,
        memory: u64,
    ) -> Result<Self, LoadError> {
        let mut linker = Linker::new(engine.inner());
        let pre = imports::add(&mut linker, &definition.grants)
            .and_then(|()| stubs::add(&mut linker, component))
            .and_then(|()| linker.instantiate_pre(component))
            .map_err(|error| LoadError::link(&definition.source, &error))?;
        let grants = &definition.grants;
        let web =
            Web::new(&grants.http, &grants.networks).map_err(|error| LoadError::web(&definition.source, &error))?;
        let web = web.traced(grants.producer.as_ref().and_then(|producer| producer.traces().cloned()));
        let (engine, definition, limits) = (engine.clone(), Arc::clone(definition), Limits::component(memory));
        let limits = limits.measured(definition.metrics.as_ref()).with_files(engine.files());
        Ok(Self { engine, pre, definition, limits, web: Arc::new(web) })
    }

    /// The consumer that it works for, for the log.
    pub(super) fn consumer(&self) -> &str {
        &self.definition.consumer
    }

    /// What a sandbox for this call knows of it.
    pub(super) fn scope(&self, call: &Call) -> Scope {
        Scope::of(call, &self.definition)
    }

    /// The same for a hook which has no message.
    pub(super) fn scope_without_message(&self, bounds: Bounds) -> Scope {
        Scope::without_message(bounds, &self.definition)
    }

    /// A fresh sandbox with an instance in it, or the outcome of a call that has none.
    pub(super) async fn instantiate(&self, scope: Scope, output: &Output, stdin: Stdin<'_>) -> Result<Live, Outcome> {
        let begun = self.definition.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let _running = self.engine.running();
        let (sink, scope) = (Sink::new(output), Arc::new(scope));
        let wasi = ComponentWasi::new(self.wasi(stdin, &sink)?, &self.limits, &self.web, &scope);
        let mut store = sandbox::store(&self.engine, wasi, &self.limits, scope);
        match self.pre.instantiate_async(&mut store).await {
            Ok(instance) => {
                begun.into_iter().for_each(|(metrics, begun)| metrics.instantiated(begun.elapsed()));
                Ok(Live { ticker: Arc::clone(self.engine.ticker()), store, instance, sink, used: 0 })
            }
            Err(error) => Err(store.data_mut().trapped(&error)),
        }
    }
}

impl Guest {
    /// WASI for one sandbox. Folders are opened at once, so that a message fails for one that is gone before its guest starts;
    /// what comes from the message cannot be kept for later.
    fn wasi(&self, stdin: Stdin<'_>, sink: &Sink) -> Result<LazyWasi, Outcome> {
        if self.definition.grants.dirs.is_empty() && stdin.env.is_empty() && stdin.body.is_empty() {
            let (definition, sink, limits) = (Arc::clone(&self.definition), sink.clone(), self.limits.clone());
            let make = move || definition.grants.wasi_without_folders(Stdin::default(), &sink, &limits).build();
            return Ok(LazyWasi::new(Box::new(make)));
        }
        let wasi = self.definition.grants.wasi(stdin, sink, &self.limits);
        let wasi = wasi.map_err(|error| no_folder(&error))?.build();
        Ok(LazyWasi::new(Box::new(move || wasi)))
    }
}

/// The outcome of a call whose folders cannot be opened.
pub(super) fn no_folder(error: &wasmtime::Error) -> Outcome {
    let reason = format!("a granted folder cannot be opened: {error:#}");
    match host_limit::of(error.as_ref()) {
        Some(limit) => Outcome::HostLimit(limit, reason),
        None => Outcome::Trapped(reason),
    }
}

impl Live {
    /// Calls an export; an error says why the guest did not return.
    pub(super) async fn call<P, R>(&mut self, export: &Export, params: P) -> Result<R, wasmtime::Error>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift + 'static,
    {
        let _running = self.ticker.running();
        let function = self.instance.get_typed_func::<P, R>(&mut self.store, export)?;
        function.call_async(&mut self.store, params).await
    }

    /// Why a call did not return, for people.
    pub(super) fn fault(&self, error: &wasmtime::Error) -> String {
        sandbox::fault(error, &self.store.data().limits)
    }

    /// The outcome of a call that did not return.
    pub(super) fn trapped(&mut self, error: &wasmtime::Error) -> Outcome {
        self.store.data_mut().trapped(error)
    }

    /// The outcome of a call that returned this.
    pub(super) fn judge(&mut self, outcome: Outcome) -> Outcome {
        self.store.data_mut().judge(outcome)
    }

    /// The sandbox that it lives in.
    pub(super) fn sandbox(&mut self) -> &mut Sandbox<ComponentWasi> {
        self.store.data_mut()
    }

    fn reuse_for(&mut self, scope: Scope, output: &Output) {
        self.sink.redirect(output);
        self.store.data_mut().enter(Arc::new(scope));
    }
}

/// How components of one kind are called.
pub(super) trait Contract: Sized + Send + Sync + 'static {
    /// Finds what such a component exports.
    fn find(engine: &Engine, component: &Component, definition: &Definition) -> Result<Self, LoadError>;

    /// Calls it on one message; an error says why the guest did not return.
    fn handle(&self, live: &mut Live, call: &Call) -> impl Future<Output = Result<Outcome, wasmtime::Error>> + Send;
}

/// Runs components of one contract.
pub(super) struct ComponentHandler<C> {
    guest: Guest,
    contract: C,
    hooks: HookSet,
    /// Instances that may process another message.
    warm: Mutex<Vec<Live>>,
}

impl<C: Contract> ComponentHandler<C> {
    pub(super) fn new(
        engine: &Engine,
        component: &Component,
        definition: &Arc<Definition>,
        memory: u64,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            contract: C::find(engine, component, definition)?,
            guest: Guest::new(engine, component, definition, memory)?,
            hooks: HookSet::find(engine, component, &definition.source)?,
            warm: Mutex::default(),
        })
    }

    async fn instance(&self, call: &Call) -> Result<Live, Outcome> {
        let scope = self.guest.scope(call);
        let warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match warm {
            Some(mut live) => {
                live.reuse_for(scope, &call.output);
                Ok(live)
            }
            None => self.guest.instantiate(scope, &call.output, Stdin::default()).await,
        }
    }

    /// Keeps an instance that has messages left, and lets go of any other.
    fn keep(&self, mut live: Live) {
        live.used += 1;
        if live.used < self.guest.definition.messages_per_instance {
            self.warm.lock().unwrap_or_else(PoisonError::into_inner).push(live);
        }
    }

    async fn process(&self, live: &mut Live, call: &Call) -> (Outcome, bool) {
        if let Err(outcome) = self.hooks.start(live, call).await {
            return (live.judge(outcome), false);
        }
        match self.contract.handle(live, call).await {
            Ok(outcome) => (live.judge(outcome), true),
            // A hook apart may have written before, but only what is last is taken for its reason.
            Err(error) => (call.output.explain(live.trapped(&error), Mark::default()), false),
        }
    }
}

#[async_trait]
impl<C: Contract> Handler for ComponentHandler<C> {
    async fn handle(&self, call: &Call) -> Outcome {
        let started = Instant::now();
        let mut live = match self.instance(call).await {
            Ok(live) => live,
            Err(outcome) => return outcome,
        };
        let (outcome, sound) = self.process(&mut live, call).await;
        let outcome = outcome.bounded();
        if sound {
            let _ = call.decided.set(outcome.clone());
            if self.hooks.end(&self.guest, &mut live, call, &outcome, started).await {
                self.keep(live);
            }
        }
        outcome
    }

    fn decides_timeouts(&self) -> bool {
        self.hooks.decide_timeouts()
    }

    async fn processing_timeout(&self, call: &Call, elapsed: Duration) -> Option<Outcome> {
        self.hooks.processing_timeout(&self.guest, call, elapsed).await
    }

    fn observes_states(&self) -> bool {
        self.hooks.observe_states()
    }

    async fn state_changed(&self, from: State, to: State) {
        self.hooks.state_changed(&self.guest, from, to).await;
    }
}
