//! Components that process batches: the interface `batch-handler`, and the functions of `batch` that they import.

use std::sync::Arc;

use async_trait::async_trait;
use wasmtime::component::Linker;

use super::VERSION;
use super::contract::{GuestOutcome, MessageRef, own};
use super::guest::{Export, Guest};
use super::hooks::HookSet;
use super::load_error::LoadError;
use super::sandbox::{ComponentWasi, Host, Sandbox};
use super::signature::{Function, Interface};
use super::warm::Warm;
use hostler_handler::{BatchCall, BatchEnd, Call, Handler, Mark, Outcome, handle_alone};
use hostler_types::State;

/// The interface that identifies a component as a batch handler.
pub(super) const BATCH_HANDLER: Interface = own("hostler:consumer/batch-handler");

const HANDLE_BATCH: Function = Function { interface: BATCH_HANDLER, name: "handle-batch", alone: false };

/// An answer for one message, as a guest gives it.
type Answer = Result<GuestOutcome, String>;

/// The result of the `handle-batch` function.
type Answers = (Vec<Answer>,);

/// Maximum number of bytes that the host copies for the answers of one call. A guest cannot be stopped meanwhile.
const MAX_ANSWERS: usize = 64 << 20;

/// Handler that runs a component on several messages at a time.
pub(super) struct BatchHandler {
    guest: Guest,
    handle_batch: Export,
    hooks: HookSet,
    warm: Warm,
}

impl BatchHandler {
    /// Fails if the component exports hooks that are called for single messages.
    pub(super) fn new(guest: Guest) -> Result<Self, LoadError> {
        let handle_batch = HANDLE_BATCH.required::<(Vec<MessageRef<'_>>,), Answers>(&guest)?;
        let hooks = HookSet::find(&guest)?;
        hooks.without_messages(guest.source())?;
        Ok(Self { guest: guest.with_transfer(MAX_ANSWERS), handle_batch, hooks, warm: Warm::default() })
    }
}

#[async_trait]
impl Handler for BatchHandler {
    async fn handle(&self, call: &Call) -> Outcome {
        handle_alone(self, call).await
    }

    async fn handle_batch(&self, batch: &Arc<BatchCall>) -> BatchEnd {
        let size = batch.calls.len();
        let scope = self.guest.scope_of_batch(batch);
        let mut live = match self.warm.instance(&self.guest, scope, &batch.output).await {
            Ok(live) => live,
            Err(outcome) => return BatchEnd::of_all(outcome, size),
        };
        let messages: Vec<_> = batch.calls.iter().map(|call| MessageRef::new(call)).collect();
        match live.call::<_, Answers>(&self.handle_batch, (messages,)).await {
            Ok((answers,)) => {
                let answers = live.judge_all(answers.into_iter().map(outcome).collect());
                let answers = live.settled_all(answers).await;
                self.warm.keep(&self.guest, live, u32::try_from(size).unwrap_or(u32::MAX));
                BatchEnd::Answers(answers)
            }
            Err(error) => BatchEnd::of_all(batch.output.explain(live.trapped(&error), Mark::default()), size),
        }
    }

    fn observes_states(&self) -> bool {
        self.hooks.observe_states()
    }

    async fn state_changed(&self, from: State, to: State) {
        self.hooks.state_changed(&self.guest, from, to).await;
    }
}

fn outcome(answer: Answer) -> Outcome {
    answer.map_or_else(Outcome::Failed, Outcome::from)
}

/// Adds the `batch` interface to the linker. For a call with a single message of another contract, its functions return false.
pub(super) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let mut batch = linker.instance(&format!("hostler:consumer/batch@{VERSION}"))?;
    batch.func_wrap_async("done", |mut host: Host<'_>, (index, answer): (u32, Answer)| {
        Box::new(async move {
            let Some(batch) = host.data().scope.batch.clone() else { return Ok((false,)) };
            let outcome = host.data().judge_early(outcome(answer));
            let outcome = host.data_mut().settled(outcome).await;
            Ok((batch.answer(place(index), outcome),))
        })
    })?;
    batch.func_wrap("lost", |host: Host<'_>, (index,): (u32,)| {
        Ok((host.data().scope.batch.as_ref().is_some_and(|batch| batch.is_lost(place(index))),))
    })
}

fn place(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}
