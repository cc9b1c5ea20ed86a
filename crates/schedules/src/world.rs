//! Hosts that share a store in virtual time: they are killed, stand still between look and write, have skewed clocks, and are replaced
//! by hosts with another definition. Whatever happens, no due time is sent twice, and none is lost while a host lives.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use hostler_types::{ScheduleState, Timestamp};

use crate::schedule::{Missed, Schedule};
use crate::turn::{ON_TIME, Step, TAKE_OVER};
use crate::{Cron, LIFE_SIGN};

const SECOND: Duration = Duration::from_secs(1);

/// A step that a host has decided on and not yet written.
struct Pending {
    from: Option<ScheduleState>,
    to: ScheduleState,
    due: Vec<Timestamp>,
}

struct Host {
    schedule: Schedule,
    /// Time by which the host's clock is ahead.
    ahead: Duration,
    /// Set until the host has taken or seen a step with its definition.
    is_new: bool,
    /// Time of the host's next look or write.
    at: Timestamp,
    pending: Option<Pending>,
}

impl Host {
    fn clock(&self, now: Timestamp) -> Timestamp {
        now.plus(self.ahead)
    }
}

/// A message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    due: Timestamp,
    at: Timestamp,
}

struct World {
    rng: Rng,
    now: Timestamp,
    store: Option<ScheduleState>,
    hosts: Vec<Host>,
    sent: Vec<Sent>,
    /// Longest time between a look and the write that follows.
    stall: Duration,
}

impl World {
    fn new(seed: u64, start: Timestamp) -> Self {
        let stall = Duration::from_millis([5, 200, 3_000][seed as usize % 3]);
        Self { rng: Rng::with_seed(seed), now: start, store: None, hosts: Vec::new(), sent: Vec::new(), stall }
    }

    fn start(&mut self, schedule: &Schedule, ahead: Duration) {
        // A host knows its definition some time before its first look.
        let at = self.now.plus(self.random(2 * SECOND));
        self.hosts.push(Host { schedule: schedule.clone(), ahead, is_new: true, at, pending: None });
    }

    fn random(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.rng.u64(0..=longest.as_micros() as u64))
    }

    /// Lets the hosts act for some number of seconds in this range.
    fn run_for(&mut self, seconds: Range<u64>) {
        let seconds = Duration::from_secs(self.rng.u64(seconds));
        self.run(self.now.plus(seconds));
    }

    /// Lets the hosts act until `end`.
    fn run(&mut self, end: Timestamp) {
        loop {
            let next = (0..self.hosts.len()).min_by_key(|host| self.hosts[*host].at);
            let Some(host) = next.filter(|host| self.hosts[*host].at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.hosts[host].at.max(self.now);
            self.act(host);
        }
    }

    fn act(&mut self, host: usize) {
        if let Some(pending) = self.hosts[host].pending.take() {
            let is_taken = self.write(pending);
            self.hosts[host].is_new &= !is_taken;
        }
        // A host looks again after each write, as it does after a refused one.
        let clock = self.hosts[host].clock(self.now);
        let acting = &self.hosts[host];
        let wait = match acting.schedule.step(self.store.as_ref(), acting.is_new, clock) {
            Step::Superseded(at) => at.since(clock),
            Step::Wait(at) => {
                self.hosts[host].is_new = false;
                at.since(clock)
            }
            Step::Advance { to, due, .. } => {
                self.hosts[host].pending = Some(Pending { from: self.store.clone(), to, due });
                self.random(self.stall)
            }
        };
        let late = self.random(Duration::from_millis(20));
        self.hosts[host].at = self.now.plus(wait + late);
    }

    /// Returns `true` if the store still has the state that the step starts from.
    fn write(&mut self, Pending { from, to, due }: Pending) -> bool {
        let is_free = match (&from, &self.store) {
            (None, None) => true,
            (Some(from), Some(found)) => from.is_same_turn(found),
            _ => false,
        };
        if is_free {
            self.store = Some(to);
            self.sent.extend(due.into_iter().map(|due| Sent { due, at: self.now }));
        }
        is_free
    }

    fn assert_in_order(&self) {
        assert!(self.sent.is_sorted_by(|one, next| one.due < next.due), "{:?}", self.sent);
    }
}

fn schedule(cron: &str, zone: &str, missed: Missed) -> Schedule {
    Schedule {
        name: "one".to_owned(),
        cron: Cron::parse(cron, zone).unwrap(),
        jitter: Duration::ZERO,
        missed,
        catch_up: Duration::from_secs(2 * 3600),
        definition: "first".to_owned(),
    }
}

/// All due times after `from`, up to `to`.
fn dues(schedule: &Schedule, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
    let step = |due: &Timestamp| schedule.cron.after(*due);
    std::iter::successors(schedule.cron.after(from), step).take_while(|due| *due <= to).collect()
}

/// 2026-10-24 20:00 in Berlin, the evening before the clocks go back.
const AUTUMN: u64 = 1_792_864_800;
/// 2026-03-28 20:00 in Berlin, the evening before the clocks go forward.
const SPRING: u64 = 1_774_724_400;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

#[test]
fn five_hosts_of_which_three_are_killed_send_each_due_time_once() {
    for seed in 0..60 {
        let night = if seed % 2 == 0 { AUTUMN } else { SPRING };
        let cron = ["* * * * *", "*/7 * * * *", "30 2 * * *", "15 */2 * * *", "*/20 * * * * *"][seed as usize % 5];
        let mut schedule =
            schedule(cron, "Europe/Berlin", [Missed::Last, Missed::Skip, Missed::All][seed as usize / 2 % 3]);
        let mut world = World::new(seed, at(night));
        let span = if cron.starts_with("*/20") { 1_200 } else { 10 * 3600 };
        if seed % 4 == 3 {
            schedule.jitter = Duration::from_secs(40);
        }
        for _ in 0..5 {
            let ahead = world.random(SECOND);
            world.start(&schedule, ahead);
        }
        for _ in 0..3 {
            world.run_for(0..span / 4);
            let host = world.rng.usize(0..world.hosts.len());
            world.hosts.swap_remove(host);
        }
        let end = at(night + span);
        world.run(end);
        world.assert_in_order();
        let sent: Vec<_> = world.sent.iter().map(|sent| sent.due).collect();
        // The first and the last due time may fall into the start and the end.
        let (first, last) = (at(night).plus(10 * SECOND), end.minus(60 * SECOND));
        let expected = dues(&schedule, first, last);
        let missing: Vec<_> = expected.iter().filter(|due| !sent.contains(due)).collect();
        assert!(missing.is_empty(), "seed {seed}, {cron}: {missing:?} of {sent:?}");
        let late = world.sent.iter().filter(|sent| sent.at.since(sent.due) > 45 * SECOND).count();
        assert_eq!(late, 0, "seed {seed}");
    }
}

#[test]
fn after_an_outage_missed_times_are_treated_as_the_schedule_says() {
    for seed in 0..300 {
        let missed = [Missed::Last, Missed::Skip, Missed::All][seed as usize % 3];
        let schedule = schedule("*/10 * * * *", "UTC", missed);
        let mut world = World::new(seed, at(AUTUMN));
        world.start(&schedule, Duration::ZERO);
        let ahead = world.random(3 * SECOND);
        world.start(&schedule, ahead);
        world.run_for(700..3_000);
        world.hosts.clear();
        let down = world.now;
        world.run_for(60..5 * 3600);
        let up = world.now;
        world.start(&schedule, Duration::ZERO);
        world.run(up.plus(1_500 * SECOND));
        world.assert_in_order();
        // A host whose clock is ahead may have sent what was due right after.
        let during = dues(&schedule, down.plus(4 * SECOND), up.minus(ON_TIME + SECOND));
        let sent = |due: &&Timestamp| world.sent.iter().any(|sent| sent.due == **due);
        let caught: Vec<_> = during.iter().filter(sent).copied().collect();
        let kept = |due: &Timestamp| up.since(*due) + 5 * SECOND <= schedule.catch_up;
        match missed {
            Missed::Skip => assert_eq!(caught, [], "seed {seed}"),
            Missed::All => {
                let lost: Vec<_> = during.iter().filter(|due| kept(due) && !caught.contains(due)).collect();
                assert!(lost.is_empty(), "seed {seed}: {lost:?}");
                assert!(caught.iter().all(|due| up.since(*due) <= schedule.catch_up), "seed {seed}");
            }
            Missed::Last => assert!(caught.len() <= 1, "seed {seed}: {caught:?}"),
        }
        // What became due before and after was sent on time, whatever was missed.
        for due in dues(&schedule, at(AUTUMN).plus(10 * SECOND), down.minus(5 * SECOND)).iter().chain(&dues(
            &schedule,
            up,
            world.now.minus(60 * SECOND),
        )) {
            assert!(sent(&due), "seed {seed}: {due}");
        }
    }
}

#[test]
fn hosts_with_another_definition_replace_the_others_and_nothing_is_sent_twice() {
    for seed in 0..300 {
        let first = schedule("* * * * *", "UTC", Missed::Last);
        let second = Schedule { definition: "second".to_owned(), ..first.clone() };
        let mut world = World::new(seed, at(AUTUMN));
        for _ in 0..3 {
            world.start(&first, Duration::ZERO);
        }
        let mut by_definition = BTreeMap::new();
        for _ in 0..3 {
            world.run_for(20..400);
            by_definition.insert(world.now, world.store.clone().map(|state| state.definition));
            let old = world.hosts.iter().position(|host| host.schedule.definition == "first").unwrap();
            world.start(&second, Duration::ZERO);
            world.run_for(1..60);
            world.hosts.swap_remove(old);
        }
        let rolled = world.now;
        world.run(rolled.plus(1_200 * SECOND));
        world.assert_in_order();
        assert_eq!(
            world.store.as_ref().map(|state| state.definition.as_str()),
            Some("second"),
            "seed {seed}: {by_definition:?}"
        );
        let lost: Vec<_> = dues(&second, rolled, world.now.minus(60 * SECOND))
            .into_iter()
            .filter(|due| !world.sent.iter().any(|sent| sent.due == *due))
            .collect();
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
    }
}

#[test]
fn a_clock_that_is_a_day_behind_repeats_nothing() {
    let day = Duration::from_secs(25 * 3600);
    for seed in 0..20 {
        let schedule = schedule("* * * * *", "UTC", Missed::All);
        let mut world = World::new(seed, at(AUTUMN));
        for ahead in [day, day, Duration::ZERO, day] {
            world.start(&schedule, ahead);
        }
        world.run(at(AUTUMN + 3600));
        let mut times: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for sent in &world.sent {
            *times.entry(sent.due).or_default() += 1;
        }
        let repeated: Vec<_> =
            times.iter().filter(|(due, times)| **due > at(AUTUMN).plus(day) && **times > 1).collect();
        assert!(repeated.is_empty(), "seed {seed}: {repeated:?}");
        assert!(times.len() >= 58, "seed {seed}: {}", times.len());
    }
}

#[test]
fn a_rollout_that_fails_leaves_the_schedule_to_the_older_hosts() {
    for seed in 0..100 {
        let first = schedule("* * * * *", "UTC", Missed::All);
        let second = Schedule { definition: "second".to_owned(), ..first.clone() };
        let mut world = World::new(seed, at(AUTUMN));
        world.start(&first, Duration::ZERO);
        world.run(world.now.plus(300 * SECOND));
        world.start(&second, Duration::ZERO);
        world.run_for(90..400);
        world.hosts.retain(|host| host.schedule.definition == "first");
        let failed = world.now;
        world.run(failed.plus(TAKE_OVER + 2 * LIFE_SIGN + 600 * SECOND));
        world.assert_in_order();
        assert_eq!(world.store.as_ref().map(|state| state.definition.as_str()), Some("first"), "seed {seed}");
        let lost: Vec<_> = dues(&first, failed, world.now.minus(60 * SECOND))
            .into_iter()
            .filter(|due| !world.sent.iter().any(|sent| sent.due == *due))
            .collect();
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
    }
}
