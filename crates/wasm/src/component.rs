//! Handlers that are components, for any contract. Also runs the lifecycle hooks that the handler's component exports.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::guest::{Contract, Guest, Live};
use super::hooks::HookSet;
use super::load_error::LoadError;
use super::warm::Warm;
use hostler_handler::{Call, Handler, Mark, Outcome};
use hostler_types::State;

/// Handler that runs a component. `C` is the contract that the component implements.
pub(super) struct ComponentHandler<C> {
    guest: Guest,
    contract: C,
    hooks: HookSet,
    warm: Warm,
}

impl<C: Contract> ComponentHandler<C> {
    pub(super) fn new(guest: Guest) -> Result<Self, LoadError> {
        Ok(Self { contract: C::find(&guest)?, hooks: HookSet::find(&guest)?, guest, warm: Warm::default() })
    }

    async fn process(&self, live: &mut Live, call: &Call) -> (Outcome, bool) {
        if let Err(outcome) = self.hooks.start(live, call).await {
            return (live.judge(outcome), false);
        }
        match self.contract.handle(live, call).await {
            Ok(outcome) => {
                let outcome = live.judge(outcome);
                (live.settled(outcome).await, true)
            }
            // Searches all output of the call for the reason, including the output of a separate hook.
            Err(error) => (call.output.explain(live.trapped(&error), Mark::default()), false),
        }
    }
}

#[async_trait]
impl<C: Contract> Handler for ComponentHandler<C> {
    async fn handle(&self, call: &Call) -> Outcome {
        let started = Instant::now();
        let mut live = match self.warm.instance(&self.guest, self.guest.scope(call), &call.output).await {
            Ok(live) => live,
            Err(outcome) => return outcome,
        };
        let (outcome, sound) = self.process(&mut live, call).await;
        let outcome = outcome.bounded();
        if sound {
            let _ = call.decided.set(outcome.clone());
            if self.hooks.end(&self.guest, &mut live, call, &outcome, started).await {
                self.warm.keep(&self.guest, live, 1);
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
