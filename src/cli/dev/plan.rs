//! Decides what `hostler dev` does next. Without I/O.

/// An event in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A watched file changed.
    Changed,
    /// The build ended; `ok` if its handlers load.
    Built {
        /// True if a host may run the result.
        ok: bool,
    },
    /// The host ended.
    HostEnded,
    /// A person or the system asks the session to end.
    Interrupted,
}

/// An action of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Starts a build, and a check of its result.
    Build,
    /// Asks the build to end; [`Event::Built`] follows.
    StopBuild,
    /// Starts a host.
    Start,
    /// Lets the host drain; [`Event::HostEnded`] follows.
    Stop,
    /// Ends the build and the host at once.
    Kill,
    /// Ends the session.
    End,
    /// Tells that the build failed while a host runs the last good one.
    TellOldRuns,
    /// Tells that nothing runs until a file changes.
    TellNothingRuns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Absent,
    Running,
    Stopping,
}

/// The state of a session.
#[derive(Debug)]
pub(super) struct Plan {
    /// True while a build is under way.
    building: bool,
    /// True if a file changed during the build, so that its result is out of date.
    stale: bool,
    host: Host,
    /// True if a good build waits for the old host to end.
    fresh: bool,
    ending: bool,
}

impl Plan {
    /// Returns the state at the start, and the first action.
    pub(super) fn begin() -> (Self, Action) {
        (Self { building: true, stale: false, host: Host::Absent, fresh: false, ending: false }, Action::Build)
    }

    /// Returns the actions that follow from an event, in order.
    pub(super) fn on(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Changed => self.changed(),
            Event::Built { ok } => self.built(ok),
            Event::HostEnded => self.host_ended(),
            Event::Interrupted => self.interrupted(),
        }
    }

    fn changed(&mut self) -> Vec<Action> {
        if self.ending {
            return Vec::new();
        }
        if self.building {
            self.stale = true;
            return Vec::new();
        }
        self.build()
    }

    fn build(&mut self) -> Vec<Action> {
        (self.building, self.stale) = (true, false);
        vec![Action::Build]
    }

    fn built(&mut self, ok: bool) -> Vec<Action> {
        self.building = false;
        if self.ending {
            return self.end();
        }
        if self.stale {
            return self.build();
        }
        match (ok, self.host) {
            (true, Host::Absent) => self.start(),
            (true, Host::Running) => {
                (self.host, self.fresh) = (Host::Stopping, true);
                vec![Action::Stop]
            }
            (true, Host::Stopping) => {
                self.fresh = true;
                Vec::new()
            }
            (false, Host::Absent) => vec![Action::TellNothingRuns],
            (false, _) => vec![Action::TellOldRuns],
        }
    }

    fn start(&mut self) -> Vec<Action> {
        (self.host, self.fresh) = (Host::Running, false);
        vec![Action::Start]
    }

    fn host_ended(&mut self) -> Vec<Action> {
        self.host = Host::Absent;
        if self.ending {
            return self.end();
        }
        if self.fresh {
            return self.start();
        }
        if self.building { Vec::new() } else { vec![Action::TellNothingRuns] }
    }

    fn interrupted(&mut self) -> Vec<Action> {
        if self.ending {
            return vec![Action::Kill];
        }
        self.ending = true;
        let mut actions = Vec::new();
        if self.building {
            actions.push(Action::StopBuild);
        }
        if self.host == Host::Running {
            self.host = Host::Stopping;
            actions.push(Action::Stop);
        }
        actions.extend(self.end());
        actions
    }

    /// Ends the session once nothing runs.
    fn end(&self) -> Vec<Action> {
        if self.building || self.host != Host::Absent { Vec::new() } else { vec![Action::End] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Build, End, Kill, Start, Stop, StopBuild, TellNothingRuns, TellOldRuns};
    use Event::{Built, Changed, HostEnded, Interrupted};

    const GOOD: Event = Built { ok: true };
    const BAD: Event = Built { ok: false };

    /// Asserts the actions that follow from each event of a session.
    fn session(steps: &[(Event, &[Action])]) {
        let (mut plan, first) = Plan::begin();
        assert_eq!(first, Build);
        for (place, (event, actions)) in steps.iter().enumerate() {
            assert_eq!(plan.on(*event), *actions, "step {place}, {event:?}");
        }
    }

    #[test]
    fn a_change_swaps_the_host_once_the_old_one_has_drained() {
        session(&[(GOOD, &[Start]), (Changed, &[Build]), (GOOD, &[Stop]), (HostEnded, &[Start])]);
    }

    #[test]
    fn a_failed_build_leaves_the_old_host_running() {
        session(&[(GOOD, &[Start]), (Changed, &[Build]), (BAD, &[TellOldRuns]), (Changed, &[Build]), (GOOD, &[Stop])]);
    }

    #[test]
    fn a_first_build_that_fails_waits_for_a_change() {
        session(&[(BAD, &[TellNothingRuns]), (Changed, &[Build]), (GOOD, &[Start])]);
    }

    #[test]
    fn a_change_during_a_build_starts_another_one() {
        session(&[(Changed, &[]), (Changed, &[]), (GOOD, &[Build]), (GOOD, &[Start])]);
        session(&[(Changed, &[]), (BAD, &[Build]), (BAD, &[TellNothingRuns])]);
    }

    #[test]
    fn a_build_during_a_swap_starts_one_host() {
        session(&[
            (GOOD, &[Start]),
            (Changed, &[Build]),
            (GOOD, &[Stop]),
            (Changed, &[Build]),
            (GOOD, &[]),
            (HostEnded, &[Start]),
        ]);
    }

    #[test]
    fn a_host_that_ends_by_itself_is_started_after_the_next_good_build() {
        session(&[(GOOD, &[Start]), (HostEnded, &[TellNothingRuns]), (Changed, &[Build]), (GOOD, &[Start])]);
        session(&[(GOOD, &[Start]), (Changed, &[Build]), (HostEnded, &[]), (BAD, &[TellNothingRuns])]);
    }

    #[test]
    fn an_interrupt_ends_everything_first() {
        session(&[(GOOD, &[Start]), (Interrupted, &[Stop]), (Changed, &[]), (HostEnded, &[End])]);
        session(&[(Interrupted, &[StopBuild]), (BAD, &[End])]);
        session(&[
            (GOOD, &[Start]),
            (Changed, &[Build]),
            (Interrupted, &[StopBuild, Stop]),
            (HostEnded, &[]),
            (BAD, &[End]),
        ]);
        session(&[(BAD, &[TellNothingRuns]), (Interrupted, &[End])]);
        session(&[(GOOD, &[Start]), (Changed, &[Build]), (GOOD, &[Stop]), (Interrupted, &[]), (HostEnded, &[End])]);
    }

    #[test]
    fn a_second_interrupt_kills() {
        session(&[(GOOD, &[Start]), (Interrupted, &[Stop]), (Interrupted, &[Kill]), (HostEnded, &[End])]);
    }
}
