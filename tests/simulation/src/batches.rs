//! Batches in a scenario, and the handler that gets them: it works on all messages of a batch at once, answers some of them early,
//! and traps as soon as one of them has its handler trap.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use hostler_config::{Batch, OnTrap};
use hostler_handler::{BatchCall, BatchEnd, Call, Outcome, run_until_stopped};
use tokio::time::{Instant, sleep};

use super::judge::Judge;
use super::scenario::{Behaviour, End, Scenario, between, up_to};
use super::worker::{Worker, name};

const SECOND: Duration = Duration::from_secs(1);

impl Scenario {
    /// Lets the handler get batches, in fewer slots.
    pub(super) fn suit_batches(&mut self, rng: &mut Rng) {
        let wait = match rng.u32(0..3) {
            0 => Duration::ZERO,
            1 => up_to(rng, 3 * SECOND),
            _ => between(rng, 1, 30),
        };
        // A body has two or three bytes.
        let bytes = if rng.u32(0..4) == 0 { 6 } else { 1 << 20 };
        let on_trap = if rng.u32(0..3) == 0 { OnTrap::Fail } else { OnTrap::Singly };
        self.batch = Some(Batch { max: rng.usize(1..=6), wait, bytes, on_trap });
        self.concurrency = rng.usize(1..=3);
        self.window = self.places();
    }

    /// Returns the number of messages that all handler calls together may have.
    pub fn places(&self) -> usize {
        self.concurrency * self.batch.map_or(1, |batch| batch.max)
    }

    /// Returns true if the messages without an answer run again alone after a trap.
    fn runs_singly(&self) -> bool {
        self.batch.is_some_and(|batch| batch.on_trap == OnTrap::Singly)
    }
}

/// A message of a running batch.
struct Member {
    receipt: String,
    name: String,
    /// Plan of its handler.
    end: End,
    /// Set if it is answered as soon as its work is done.
    is_early: bool,
    /// The work; true if it was done, false if the message was lost before. `None`: it is over.
    work: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    /// Ends once the message is lost, also after its work is done. `None`: it is lost, or it is alone.
    loss: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Set once the judge knows its end.
    is_told: bool,
}

/// The messages of a running batch. Dropping this value reports the ends of those that have none.
struct Members<'a> {
    judge: &'a Judge,
    scenario: &'a Scenario,
    batch: &'a BatchCall,
    members: Vec<Member>,
    started_at: Instant,
}

impl Members<'_> {
    fn tell(&mut self, index: usize, end: Option<End>) {
        let member = &mut self.members[index];
        if !std::mem::replace(&mut member.is_told, true) {
            self.judge.ended(&member.receipt, end);
        }
    }

    /// Tells that the messages without an end run again alone.
    fn tell_again(&mut self) {
        for member in &mut self.members {
            if !std::mem::replace(&mut member.is_told, true) {
                self.judge.runs_again(&member.receipt);
            }
        }
    }

    /// Works until all is done, or until a message traps, whose index this returns.
    async fn work(&mut self) -> Option<usize> {
        poll_fn(|context| {
            self.watch_losses(context);
            let mut is_over = true;
            for index in 0..self.members.len() {
                let Some(work) = &mut self.members[index].work else { continue };
                let Poll::Ready(is_done) = work.as_mut().poll(context) else {
                    is_over = false;
                    continue;
                };
                let member = &mut self.members[index];
                member.work = None;
                let end = member.end.clone();
                if !is_done {
                    self.tell(index, None);
                } else if end == End::Trap {
                    return Poll::Ready(Some(index));
                } else if member.is_early && self.batch.answer(index, end.outcome(&member.name)) {
                    self.tell(index, Some(end));
                }
            }
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Tells the ends of messages that are lost while others are worked on.
    fn watch_losses(&mut self, context: &mut Context<'_>) {
        for index in 0..self.members.len() {
            if self.members[index].loss.as_mut().is_some_and(|loss| loss.as_mut().poll(context).is_ready()) {
                self.members[index].loss = None;
                self.tell(index, None);
            }
        }
    }

    fn is_lost(&self, index: usize) -> bool {
        self.batch.calls.len() > 1 && self.batch.is_lost(index)
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        let several = self.members.len() > 1;
        for index in 0..self.members.len() {
            if self.is_lost(index) {
                self.tell(index, None);
            }
        }
        let times_out = Instant::now() >= self.started_at + self.scenario.processing_timeout;
        let receipts: Vec<_> = self.members.iter().map(|member| member.receipt.clone()).collect();
        match self.judge.cancelled_of(&receipts) {
            // One of them is cancelled, so the others run alone.
            Some(cancelled) if !self.judge.is_at_deadline(&receipts) => {
                for index in cancelled {
                    self.tell(index, None);
                }
                self.tell_again();
            }
            None if several && times_out && self.scenario.runs_singly() && !self.judge.is_at_deadline(&receipts) => {
                self.tell_again();
            }
            _ => (0..self.members.len()).for_each(|index| self.tell(index, None)),
        }
    }
}

impl Worker {
    /// Starts to work on a message of a batch. `several`: true if it is not alone.
    fn member(&self, call: &Call, several: bool) -> Member {
        let (judge, name) = (&*self.judge, name(call));
        judge.identify(&name, &call.message.id);
        let receipt = judge.started(self.line.life, &name, call.attempt, self.line.shown().as_ref());
        let Behaviour { work, end, .. } = self.scenario.behaviour(&name, judge.turn(&name, call.attempt));
        let (stop, watched) = (call.bounds.stop.clone(), call.bounds.stop.clone());
        let is_stuck = end == End::Stuck;
        let loss: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let _ = run_until_stopped(&watched, std::future::pending::<()>()).await;
        });
        let work = async move {
            let work = async {
                sleep(work).await;
                if is_stuck {
                    std::future::pending::<()>().await;
                }
            };
            if several {
                run_until_stopped(&stop, work).await.is_some()
            } else {
                work.await;
                true
            }
        };
        let is_early = name.len().is_multiple_of(2) ^ call.attempt.is_multiple_of(2);
        let (work, loss) = (Some(Box::pin(work) as _), several.then_some(loss));
        Member { receipt, name, end, is_early, work, loss, is_told: false }
    }
}

/// Runs the handler on a batch.
pub(super) async fn handle(worker: &Worker, batch: &Arc<BatchCall>) -> BatchEnd {
    let (judge, scenario) = (&*worker.judge, &*worker.scenario);
    let several = batch.calls.len() > 1;
    let mut members = Vec::new();
    for call in &batch.calls {
        members.push(worker.member(call, several));
    }
    let mut members = Members { judge, scenario, batch, members, started_at: Instant::now() };
    if members.work().await.is_some() {
        if several && scenario.runs_singly() {
            members.tell_again();
        } else {
            (0..members.members.len()).for_each(|index| members.tell(index, Some(End::Trap)));
        }
        return BatchEnd::Trapped("as planned".into());
    }
    let ends: Vec<_> = members.members.iter().map(|member| (member.name.clone(), member.end.clone())).collect();
    // A handler with a fault leaves an answer out.
    if several && ends[0].0.ends_with('7') {
        (0..ends.len()).for_each(|index| members.tell(index, Some(End::Fail)));
        return BatchEnd::Answers(vec![Outcome::Ack; ends.len() - 1]);
    }
    for (index, (_, end)) in ends.iter().enumerate() {
        members.tell(index, Some(end.clone()));
    }
    BatchEnd::Answers(ends.iter().map(|(name, end)| end.outcome(name)).collect())
}

impl Judge {
    /// Records that a delivery has run in a batch that gave no answer for it, and is to run again alone.
    pub fn runs_again(&self, receipt: &str) {
        let mut state = self.see(|| format!("{receipt} is to run again alone"));
        let super::record::State { deliveries, lives, .. } = &mut *state;
        let Some(delivery) = deliveries.get_mut(receipt) else { return };
        let life = &mut lives[delivery.life];
        if delivery.ended.is_some() || life.over {
            return;
        }
        life.running -= 1;
        life.changed_at = Some(Instant::now());
        life.probes -= usize::from(std::mem::take(&mut delivery.is_probe));
        delivery.started_at = None;
    }

    /// Returns the places of the cancelled ones among these deliveries. `None`: none of them is cancelled.
    fn cancelled_of(&self, receipts: &[String]) -> Option<Vec<usize>> {
        let state = self.state.lock().unwrap();
        let is_it = |receipt: &str| state.deliveries.get(receipt).is_some_and(|one| one.is_cancelled);
        let found: Vec<_> = (0..receipts.len()).filter(|index| is_it(&receipts[*index])).collect();
        (!found.is_empty()).then_some(found)
    }

    /// Returns true if the process of these deliveries has reached the end of its grace, or is gone.
    fn is_at_deadline(&self, receipts: &[String]) -> bool {
        let state = self.state.lock().unwrap();
        let life = receipts.first().and_then(|receipt| state.deliveries.get(receipt)).map(|one| one.life);
        life.is_some_and(|life| state.lives[life].over || state.lives[life].deadline_at.is_some())
    }
}
