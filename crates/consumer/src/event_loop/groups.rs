//! FIFO groups: keeps the order of messages within each group of an ordered queue.

use std::time::Duration;

use super::super::Phase;
use super::super::delivery::Event;
use super::super::effects::Id;
use super::super::in_hand::InHand;
use super::super::policy::Disposition;
use super::EventLoop;
use super::deliveries::Command;
use hostler_queue::DEFAULT_GROUP;

impl EventLoop {
    /// Handles the end of the delivery `id` in `group`. After an ack, the next delivery of the group starts, or goes
    /// back to the queue if it may not start. After any other disposition, all following deliveries of the group go
    /// back to the queue.
    pub(super) fn leave(&mut self, id: Id, group: &str, disposition: &Disposition) {
        match disposition {
            Disposition::Ack => {
                if let Some(next) = self.gate.pass(group, id) {
                    let starts = self.phase == Phase::Running
                        && self.admission.may_start(next)
                        && self.leases.hold(next, self.now);
                    if !starts {
                        self.commands.push(Command::Feed(next, Event::Drain));
                    } else if !self.gathers(next) {
                        self.commands.push(Command::Feed(next, Event::Start));
                    }
                }
            }
            head => self.send_back_followers(id, group, head.delay().unwrap_or_default()),
        }
    }

    /// Sends the messages that follow the delivery `id` in `group` back to the queue unprocessed, because `id` was not
    /// acked and must be processed first. They get the same delay as `id`, because some servers deliver a following
    /// message while the first message of the group is still delayed.
    pub(super) fn send_back_followers(&mut self, id: Id, group: &str, delay: Duration) {
        let followers = self.gate.close(group, id).into_iter().rev();
        self.commands.extend(followers.map(|follower| Command::Feed(follower, Event::Overtaken(delay))));
    }

    /// Returns `true` if the guest of the first delivery in this delivery's group has ended, but that first delivery is
    /// not settled yet.
    pub(super) fn follows_one_that_settles(&self, in_hand: &InHand) -> bool {
        let head = self.group_of(in_hand).and_then(|group| self.gate.head(&group));
        let head = head.and_then(|head| self.in_hand.get(&head));
        head.is_some_and(|head| !head.machine.is_waiting() && !head.machine.is_running())
    }

    /// Returns the group of a delivery. `None`: the queue is not ordered.
    pub(super) fn group_of(&self, in_hand: &InHand) -> Option<String> {
        let group = in_hand.call.message.group.as_deref().unwrap_or(DEFAULT_GROUP);
        self.consumer.spec.ordered.then(|| group.to_owned())
    }
}
