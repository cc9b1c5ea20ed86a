//! The decision what a host does next about a schedule, from the stored state and the time.

use std::time::Duration;

use hostler_types::{ScheduleState, Timestamp};

use crate::schedule::{Missed, Schedule};

/// Time after which a message counts as missed: no host was there to send it.
pub const ON_TIME: Duration = Duration::from_secs(60);

/// Interval of the writes by which hosts show that one of them has the definition.
pub const LIFE_SIGN: Duration = Duration::from_secs(60);

/// Time without a sign of life after which hosts with another definition take a schedule over.
pub const TAKE_OVER: Duration = Duration::from_secs(5 * 60);

/// Time that a stored state may be ahead of this host's clock. Beyond it, a clock was wrong when the state was written.
const AHEAD: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of messages in one step, as each may have 255 KiB.
const BATCH: usize = 20;

/// Maximum number of due times that one step looks at, as steps are decided on the thread that renews leases.
const SEARCH: usize = 1_000;

/// Something that operators should know about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Due times were skipped: at least the one named.
    Skipped(Timestamp),
    /// The state was written by a clock that was far ahead of this host's. The schedule goes on from now.
    Ahead(Timestamp),
    /// Hosts with another definition sent until now. This host takes the schedule over.
    TookOver,
}

/// The next step of a host about a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Store the state, and send a message for each due time, if the state has not changed meanwhile.
    Advance {
        /// The new state.
        to: ScheduleState,
        /// Due times of the messages, oldest first. May be empty.
        due: Vec<Timestamp>,
        /// Logged once the step is taken.
        notice: Option<Notice>,
    },
    /// Nothing. Look at the state again at this time.
    Wait(Timestamp),
    /// Nothing, because hosts with another definition send. Look at the state again at this time.
    Superseded(Timestamp),
}

/// Due times that have come, and what follows.
struct Ready {
    send: Vec<Timestamp>,
    skipped: Option<Timestamp>,
    /// The last due time that is settled by the step. `None`: no due time has come.
    handled: Option<Timestamp>,
    /// Time at which the next message is sent. `None`: there is no further due time.
    next: Option<Timestamp>,
}

impl Schedule {
    /// Returns the next step at `now`. `state`: what is stored. `is_new`: this host has not seen a state with its own definition since it
    /// started, so it brings the definition.
    ///
    /// A schedule without a state begins now, and so does one whose definition this host brings. Due times before are never sent.
    pub fn step(&self, state: Option<&ScheduleState>, is_new: bool, now: Timestamp) -> Step {
        let Some(state) = state else { return self.begin(None, now, None) };
        if state.handled > now.plus(AHEAD) {
            return self.begin(Some(state), now, Some(Notice::Ahead(state.handled)));
        }
        if state.definition != self.definition {
            return self.other_definition(state, is_new, now);
        }
        self.own_definition(state, now)
    }

    fn begin(&self, before: Option<&ScheduleState>, now: Timestamp, notice: Option<Notice>) -> Step {
        Step::Advance { to: self.state(now, before.and_then(|state| state.sent), now), due: Vec::new(), notice }
    }

    fn state(&self, handled: Timestamp, sent: Option<Timestamp>, now: Timestamp) -> ScheduleState {
        ScheduleState { definition: self.definition.clone(), handled, sent, seen: now }
    }

    /// A host that has just started has the newer definition. An older one takes over only once the others are gone, and then knows
    /// what was missed.
    fn other_definition(&self, state: &ScheduleState, is_new: bool, now: Timestamp) -> Step {
        if is_new {
            return self.begin(Some(state), now.max(state.handled), None);
        }
        let take_over = state.seen.plus(TAKE_OVER);
        // A sign of life that is ahead by more was written by a wrong clock.
        if now < take_over && state.seen <= now.plus(TAKE_OVER) {
            return Step::Superseded(take_over.min(now.plus(LIFE_SIGN)));
        }
        let to = self.state(state.handled, state.sent, now);
        Step::Advance { to, due: Vec::new(), notice: Some(Notice::TookOver) }
    }

    fn own_definition(&self, state: &ScheduleState, now: Timestamp) -> Step {
        // A host whose clock was wrong may have put the state back.
        let sent = state.sent.filter(|sent| *sent <= now);
        let ready = self.ready(sent.map_or(state.handled, |sent| sent.max(state.handled)), now);
        if let Some(handled) = ready.handled {
            let sent = ready.send.last().copied().max(state.sent);
            let to = self.state(handled, sent, now);
            return Step::Advance { to, due: ready.send, notice: ready.skipped.map(Notice::Skipped) };
        }
        let life_sign = state.seen.plus(LIFE_SIGN);
        if life_sign <= now || state.seen > now.plus(LIFE_SIGN) {
            return Step::Advance { to: self.state(state.handled, state.sent, now), due: Vec::new(), notice: None };
        }
        Step::Wait(ready.next.map_or(life_sign, |next| next.min(life_sign)))
    }

    /// Returns the time after which a message could still be sent. After a long outage, the search begins there.
    fn search_from(&self, now: Timestamp) -> Timestamp {
        let on_time = now.minus(self.jitter.saturating_add(2 * ON_TIME));
        match self.missed {
            Missed::Skip => on_time,
            Missed::All => on_time.minus(self.catch_up),
            Missed::Last => {
                self.cron.up_to(on_time).map_or(on_time, |last| last.minus(Duration::from_micros(1)).min(on_time))
            }
        }
    }

    /// Finds the due times after `handled` whose time to be sent has come.
    fn ready(&self, handled: Timestamp, now: Timestamp) -> Ready {
        let mut ready = Ready { send: Vec::new(), skipped: None, handled: None, next: None };
        let from = handled.max(self.search_from(now));
        let mut missed = None;
        if from > handled
            && let Some(first) = self.cron.after(handled).filter(|first| *first <= from)
        {
            ready.skipped = Some(first);
            ready.handled = Some(from);
        }
        let mut due = self.cron.after(from);
        let mut searched = 0;
        while let Some(time) = due {
            let at = self.send_time(time);
            if at > now {
                ready.next = Some(at);
                break;
            }
            if ready.send.len() == BATCH {
                break;
            }
            if searched == SEARCH {
                // A later due time has come as well.
                ready.skipped = ready.skipped.or(missed.take());
                break;
            }
            searched += 1;
            ready.handled = Some(time);
            let late = now.since(at);
            if late <= ON_TIME || self.missed == Missed::All && late <= self.catch_up {
                ready.send.push(time);
            } else if let Some(before) = missed.replace(time) {
                ready.skipped.get_or_insert(before);
            }
            due = self.cron.after(time);
        }
        let Some(missed) = missed else { return ready };
        let is_sent_late =
            self.missed == Missed::Last && ready.send.is_empty() && now.since(self.send_time(missed)) <= self.catch_up;
        if is_sent_late {
            ready.send.push(missed);
        } else {
            ready.skipped.get_or_insert(missed);
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cron::Cron;

    const MINUTE: u64 = 60_000_000;

    fn at(minute: u64, second: u64) -> Timestamp {
        Timestamp::from_micros(29_000_000 * MINUTE + minute * MINUTE + second * 1_000_000)
    }

    fn schedule(missed: Missed) -> Schedule {
        Schedule {
            name: "one".to_owned(),
            cron: Cron::parse("* * * * *", "UTC").unwrap(),
            jitter: Duration::ZERO,
            missed,
            catch_up: Duration::from_secs(10 * 60),
            definition: "mine".to_owned(),
        }
    }

    fn state(handled: Timestamp) -> ScheduleState {
        ScheduleState { definition: "mine".to_owned(), handled, sent: None, seen: handled }
    }

    fn sent(step: &Step) -> Vec<Timestamp> {
        let Step::Advance { due, .. } = step else { panic!("{step:?}") };
        due.clone()
    }

    #[test]
    fn a_new_schedule_sends_nothing_of_before() {
        let step = schedule(Missed::All).step(None, false, at(5, 30));
        let Step::Advance { to, due, notice } = step else { panic!("{step:?}") };
        assert_eq!((to.handled, to.sent, to.seen, due, notice), (at(5, 30), None, at(5, 30), vec![], None));
    }

    #[test]
    fn each_due_time_is_sent_once() {
        let schedule = schedule(Missed::Last);
        assert_eq!(schedule.step(Some(&state(at(5, 0))), false, at(5, 30)), Step::Wait(at(6, 0)));
        let step = schedule.step(Some(&state(at(5, 0))), false, at(6, 0));
        let Step::Advance { to, due, notice } = step else { panic!("{step:?}") };
        assert_eq!((due, notice), (vec![at(6, 0)], None));
        assert_eq!((to.handled, to.sent, to.seen), (at(6, 0), Some(at(6, 0)), at(6, 0)));
        assert_eq!(schedule.step(Some(&to), false, at(6, 0)), Step::Wait(at(7, 0)));
    }

    #[test]
    fn missed_times_are_treated_as_the_schedule_says() {
        let step = |missed, minute| schedule(missed).step(Some(&state(at(0, 0))), false, at(minute, 30));
        // The last of the times is on time, within a minute.
        assert_eq!(sent(&step(Missed::Skip, 5)), [at(5, 0)]);
        assert_eq!(sent(&step(Missed::Last, 5)), [at(5, 0)]);
        assert_eq!(sent(&step(Missed::All, 5)), [1, 2, 3, 4, 5].map(|minute| at(minute, 0)));
        let Step::Advance { to, notice, .. } = step(Missed::All, 60) else { panic!() };
        assert_eq!(to.handled, at(60, 0));
        assert!(matches!(notice, Some(Notice::Skipped(first)) if first <= at(49, 0)), "{notice:?}");
        assert_eq!(sent(&step(Missed::All, 60)), (51..=60).map(|minute| at(minute, 0)).collect::<Vec<_>>());

        let hourly = |missed, minute: u64| {
            let hourly = Schedule { cron: Cron::parse("0 * * * *", "UTC").unwrap(), ..schedule(missed) };
            let first = hourly.cron.after(at(0, 0)).unwrap();
            let now = first.plus(Duration::from_secs(minute * 60));
            (first, hourly.step(Some(&state(at(0, 0))), false, now))
        };
        let (first, late) = hourly(Missed::Last, 9);
        assert_eq!(sent(&late), [first]);
        let (_, too_late) = hourly(Missed::Last, 11);
        assert_eq!(sent(&too_late), []);
        let (first, skipped) = hourly(Missed::Skip, 9);
        let Step::Advance { to, due, notice } = skipped else { panic!() };
        assert!(to.handled >= first);
        assert_eq!((due, notice), (vec![], Some(Notice::Skipped(first))));
    }

    #[test]
    fn an_outage_of_years_is_settled_in_few_steps() {
        let schedule = Schedule { cron: Cron::parse("* * * * * *", "UTC").unwrap(), ..schedule(Missed::All) };
        let now = at(0, 0).plus(Duration::from_secs(3 * 365 * 86_400));
        let (mut state, mut steps, mut count) = (state(at(0, 0)), 0, 0);
        while let Step::Advance { to, due, .. } = schedule.step(Some(&state), false, now) {
            (state, steps, count) = (to, steps + 1, count + due.len());
            assert!(due.len() <= BATCH);
        }
        assert_eq!(count, 601, "ten minutes, both ends");
        assert!(steps < 40, "{steps}");
    }

    #[test]
    fn a_step_looks_at_a_bounded_number_of_due_times() {
        let jitter = Duration::from_secs(86_400);
        for missed in [Missed::Last, Missed::Skip] {
            let cron = Cron::parse("* * * * * *", "UTC").unwrap();
            let schedule = Schedule { cron, jitter, ..schedule(missed) };
            let now = at(0, 0).plus(jitter);
            let step = schedule.step(Some(&state(at(0, 0))), false, now);
            let Step::Advance { to, due, .. } = step else { panic!("{step:?}") };
            assert!(due.is_empty() && to.handled < at(60, 0), "{to:?}");
        }
    }

    #[test]
    fn hosts_of_a_newer_definition_win_and_others_wait_until_they_are_gone() {
        let other = ScheduleState { definition: "other".to_owned(), ..state(at(10, 0)) };
        let mine = schedule(Missed::Last);
        let newer = mine.step(Some(&other), true, at(10, 6));
        let Step::Advance { to, due, notice } = newer else { panic!("{newer:?}") };
        assert_eq!((to.definition.as_str(), to.handled, due, notice), ("mine", at(10, 6), vec![], None));
        let older = |minute| mine.step(Some(&other), false, at(minute, 0));
        assert_eq!(older(12), Step::Superseded(at(13, 0)));
        assert_eq!(older(14), Step::Superseded(at(15, 0)));
        let Step::Advance { to, notice, .. } = older(15) else { panic!() };
        assert_eq!((to.definition.as_str(), to.handled, notice), ("mine", at(10, 0), Some(Notice::TookOver)));
    }

    #[test]
    fn a_sign_of_life_of_a_wrong_clock_counts_for_nothing() {
        let mine = schedule(Missed::Last);
        let ahead = ScheduleState { definition: "other".to_owned(), seen: at(60, 0), ..state(at(10, 0)) };
        let Step::Advance { to, .. } = mine.step(Some(&ahead), false, at(11, 0)) else { panic!() };
        assert_eq!((to.definition.as_str(), to.seen), ("mine", at(11, 0)));
        let own = ScheduleState { seen: at(60, 0), ..state(at(11, 0)) };
        let Step::Advance { to, due, .. } = mine.step(Some(&own), false, at(11, 30)) else { panic!() };
        assert_eq!((to.seen, due), (at(11, 30), vec![]));
    }

    #[test]
    fn a_state_that_a_wrong_clock_put_back_sends_nothing_again() {
        let back = ScheduleState { sent: Some(at(30, 0)), ..state(at(5, 0)) };
        let step = schedule(Missed::All).step(Some(&back), false, at(31, 0));
        assert_eq!(sent(&step), [at(31, 0)]);
    }

    #[test]
    fn a_state_of_a_wrong_clock_stops_a_schedule_for_a_day_at_most() {
        let mine = schedule(Missed::Last);
        let near = ScheduleState { seen: at(0, 0), ..state(at(23 * 60, 0)) };
        assert!(matches!(mine.step(Some(&near), false, at(0, 0)), Step::Wait(_)));
        let far = at(25 * 60, 0);
        let step = mine.step(Some(&state(far)), false, at(0, 0));
        let Step::Advance { to, due, notice } = step else { panic!("{step:?}") };
        assert_eq!((to.handled, due, notice), (at(0, 0), vec![], Some(Notice::Ahead(far))));
    }

    #[test]
    fn a_sign_of_life_is_written_each_minute() {
        let daily = Schedule { cron: Cron::parse("0 0 * * *", "UTC").unwrap(), ..schedule(Missed::Last) };
        let before = state(at(0, 0));
        assert_eq!(daily.step(Some(&before), false, at(0, 30)), Step::Wait(at(1, 0)));
        let Step::Advance { to, due, .. } = daily.step(Some(&before), false, at(1, 0)) else { panic!() };
        assert_eq!((to.handled, to.seen, due), (at(0, 0), at(1, 0), vec![]));
    }
}
