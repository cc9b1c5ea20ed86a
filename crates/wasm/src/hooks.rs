//! Lifecycle hooks. A component handler may export hooks itself. A separate component with hooks can wrap any kind of
//! handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::time::timeout;
use wasmtime::component::{Component, ComponentNamedList, Lift, Lower};

use super::capabilities::Stdin;
use super::contract::{GuestOutcome, GuestState, MessageRef, ReportRef, milliseconds};
use super::contract::{MESSAGE_END, MESSAGE_START, PROCESSING_TIMEOUT, STATE_CHANGED};
use super::guest::{Export, Guest, Live};
use super::load_error::LoadError;
use super::scope::Scope;
use super::source::Source;
use hostler_handler::{BatchCall, BatchEnd, Bounds, Call, Excerpt, HOOK_TIMEOUT, Handler, Mark, Outcome, Output};
use hostler_telemetry::{BY_GUEST, GUEST};
use hostler_types::State;

/// Maximum number of bytes of output to capture from a hook that runs without a message.
const OUTPUT: usize = 4 * 1024;

/// The hooks that a component exports.
pub(super) struct HookSet {
    message_start: Option<Export>,
    message_end: Option<Export>,
    processing_timeout: Option<Export>,
    state_changed: Option<Export>,
}

impl HookSet {
    /// Finds the hooks that the component exports. Fails if the type of a hook does not match the contract.
    pub(super) fn find(guest: &Guest) -> Result<Self, LoadError> {
        Ok(Self {
            message_start: MESSAGE_START.optional::<(MessageRef<'_>,), (Result<(), String>,)>(guest)?,
            message_end: MESSAGE_END.optional::<(ReportRef<'_>,), ()>(guest)?,
            processing_timeout: PROCESSING_TIMEOUT.optional::<(MessageRef<'_>, u64), (GuestOutcome,)>(guest)?,
            state_changed: STATE_CHANGED.optional::<(GuestState, GuestState), ()>(guest)?,
        })
    }

    /// Fails if the component exports a hook that is called for single messages. `source`: location of the component.
    pub(super) fn without_messages(&self, source: &Source) -> Result<(), LoadError> {
        let hooks = [
            (MESSAGE_START.name, &self.message_start),
            (MESSAGE_END.name, &self.message_end),
            (PROCESSING_TIMEOUT.name, &self.processing_timeout),
        ];
        match hooks.into_iter().find(|(_, hook)| hook.is_some()) {
            Some((name, _)) => Err(LoadError::hooks_of_messages(source, name)),
            None => Ok(()),
        }
    }

    /// Returns `true` if the component exports `state-changed`.
    pub(super) fn observe_states(&self) -> bool {
        self.state_changed.is_some()
    }

    /// Calls `message-start`. If the hook fails, the message fails, because the handler relies on the hook.
    pub(super) async fn start(&self, live: &mut Live, call: &Call) -> Result<(), Outcome> {
        let Some(hook) = &self.message_start else { return Ok(()) };
        match live.call::<_, (Result<(), String>,)>(hook, (MessageRef::new(call),)).await {
            Ok((Ok(()),)) => Ok(()),
            Ok((Err(reason),)) => Err(Outcome::Failed(format!("message-start: {reason}"))),
            Err(error) => Err(match call.output.explain(live.trapped(&error), Mark::default()) {
                Outcome::Trapped(reason) => Outcome::Trapped(format!("message-start: {reason}")),
                outcome => outcome,
            }),
        }
    }

    /// Calls `message-end` at the end of a call that began at `started`. `live` is an instance of `guest`. A failure of
    /// the hook is logged, but does not change the outcome. Returns `true` if the instance can be reused.
    pub(super) async fn end(
        &self,
        guest: &Guest,
        live: &mut Live,
        call: &Call,
        outcome: &Outcome,
        started: Instant,
    ) -> bool {
        let Some(hook) = &self.message_end else { return true };
        let report = ReportRef::new(call, outcome, started.elapsed());
        let fault = match timeout(HOOK_TIMEOUT, live.call::<_, ()>(hook, (report,))).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => live.fault(&error),
            Err(_) => too_long(),
        };
        let (consumer, message_id) = (guest.consumer(), &*call.message.id);
        tracing::warn!(target: BY_GUEST, consumer, message_id, hook = "message-end", reason = fault, "hook failed");
        false
    }

    /// Returns `true` if the component exports `processing-timeout`, the hook that decides the outcome of a message
    /// when its processing timeout is reached.
    pub(super) fn decide_timeouts(&self) -> bool {
        self.processing_timeout.is_some()
    }

    /// Calls `processing-timeout` in a fresh instance of `guest`. `None`: the component does not export the hook, or
    /// the hook failed.
    pub(super) async fn processing_timeout(&self, guest: &Guest, call: &Call, elapsed: Duration) -> Option<Outcome> {
        let hook = self.processing_timeout.as_ref()?;
        let scope = Scope { bounds: Bounds::new(HOOK_TIMEOUT), ..guest.scope(call) };
        let params = (MessageRef::new(call), milliseconds(elapsed));
        match in_fresh_instance::<_, (GuestOutcome,)>(guest, scope, &call.output, hook, params).await {
            Ok((outcome,)) => Some(outcome.into()),
            Err(reason) => {
                let (consumer, message_id) = (guest.consumer(), &*call.message.id);
                tracing::warn!(target: BY_GUEST, consumer, message_id, hook = "processing-timeout", reason, "hook failed");
                None
            }
        }
    }

    /// Calls `state-changed` in a fresh instance of `guest`.
    pub(super) async fn state_changed(&self, guest: &Guest, from: State, to: State) {
        let Some(hook) = &self.state_changed else { return };
        let (consumer, output) = (guest.consumer(), Output::new(OUTPUT));
        let scope = guest.scope_without_message(Bounds::new(HOOK_TIMEOUT));
        let params = (GuestState::from(from), GuestState::from(to));
        if let Err(reason) = in_fresh_instance::<_, ()>(guest, scope, &output, hook, params).await {
            tracing::warn!(target: BY_GUEST, consumer, hook = "state-changed", reason, "hook failed");
        }
        let captured = output.take();
        let tell = |(stream, line)| {
            tracing::info!(target: GUEST, consumer, hook = "state-changed", stream, "{line}");
        };
        let Excerpt { first, left_out, last } = captured.excerpt();
        first.into_iter().for_each(tell);
        if left_out > 0 {
            tracing::warn!(target: GUEST, consumer, hook = "state-changed", "{left_out} more lines of output are not logged");
        }
        last.into_iter().for_each(tell);
        if captured.dropped > 0 {
            let (dropped, kept) = (captured.dropped, OUTPUT / 1024);
            tracing::warn!(target: GUEST, consumer, hook = "state-changed", dropped, "output beyond {kept} KiB was dropped");
        }
    }
}

/// Calls a hook in a fresh instance. The error says why the hook did not return.
async fn in_fresh_instance<P, R>(
    guest: &Guest,
    scope: Scope,
    output: &Output,
    hook: &Export,
    params: P,
) -> Result<R, String>
where
    P: ComponentNamedList + Lower,
    R: ComponentNamedList + Lift + 'static,
{
    let called = async {
        let live = guest.instantiate(scope, output, Stdin::default()).await;
        let mut live = live.map_err(|outcome| outcome.reason().unwrap_or_default())?;
        live.call(hook, params).await.map_err(|error| live.fault(&error))
    };
    timeout(HOOK_TIMEOUT, called).await.unwrap_or_else(|_| Err(too_long()))
}

fn too_long() -> String {
    format!("it took longer than {} s", HOOK_TIMEOUT.as_secs())
}

/// Returns `true` if a component exports any hook.
pub(super) fn has_any(component: &Component) -> bool {
    [MESSAGE_START, MESSAGE_END, PROCESSING_TIMEOUT, STATE_CHANGED]
        .iter()
        .any(|hook| hook.interface.of(component).is_some())
}

/// A handler wrapped in the hooks of a separate component.
pub(super) struct Hooked {
    inner: Arc<dyn Handler>,
    guest: Guest,
    hooks: HookSet,
}

impl Hooked {
    /// Wraps `inner` in the hooks of the component `guest`. With batches, fails if one of them is called for single messages.
    pub(super) fn new(guest: Guest, inner: Arc<dyn Handler>) -> Result<Self, LoadError> {
        let hooks = HookSet::find(&guest)?;
        if guest.definition().batches {
            hooks.without_messages(guest.source())?;
        }
        Ok(Self { inner, hooks, guest })
    }
}

#[async_trait]
impl Handler for Hooked {
    async fn handle(&self, call: &Call) -> Outcome {
        let started = Instant::now();
        let mut live = match self.guest.instantiate(self.guest.scope(call), &call.output, Stdin::default()).await {
            Ok(live) => live,
            Err(Outcome::Trapped(reason)) => return Outcome::Trapped(format!("hooks: {reason}")),
            Err(outcome) => return outcome,
        };
        if let Err(outcome) = self.hooks.start(&mut live, call).await {
            return live.judge(outcome);
        }
        let outcome = self.inner.handle(call).await.bounded();
        let _ = call.decided.set(outcome.clone());
        self.hooks.end(&self.guest, &mut live, call, &outcome, started).await;
        outcome
    }

    async fn handle_batch(&self, batch: &Arc<BatchCall>) -> BatchEnd {
        self.inner.handle_batch(batch).await
    }

    fn decides_timeouts(&self) -> bool {
        self.hooks.decide_timeouts() || self.inner.decides_timeouts()
    }

    async fn processing_timeout(&self, call: &Call, elapsed: Duration) -> Option<Outcome> {
        match self.hooks.processing_timeout(&self.guest, call, elapsed).await {
            Some(outcome) => Some(outcome),
            None => self.inner.processing_timeout(call, elapsed).await,
        }
    }

    fn observes_states(&self) -> bool {
        self.hooks.observe_states() || self.inner.observes_states()
    }

    async fn state_changed(&self, from: State, to: State) {
        self.hooks.state_changed(&self.guest, from, to).await;
        self.inner.state_changed(from, to).await;
    }
}
