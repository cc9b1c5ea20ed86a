//! State machine that decides what `hostler dev` does next. Performs no I/O.

/// Event in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A watched file changed.
    Changed,
    /// The build and the check of its result have ended.
    Built {
        /// Set if the build succeeded and its handlers load.
        ok: bool,
    },
    /// The host ended.
    HostEnded,
    /// A signal requests the end of the session.
    Interrupted,
}

/// Action that the session must perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a build, followed by a check of its result.
    Build,
    /// Stop the build. [`Event::Built`] follows.
    StopBuild,
    /// Start a host.
    Start,
    /// Make the host drain and end. [`Event::HostEnded`] follows.
    Stop,
    /// Kill the build and the host.
    Kill,
    /// End the session.
    End,
    /// Print that the build failed and that the last good build keeps running.
    TellOldRuns,
    /// Print that no host runs until a file changes.
    TellNothingRuns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Absent,
    Running,
    Stopping,
}

/// State of a session.
#[derive(Debug)]
pub(super) struct Plan {
    /// Set while a build is running.
    building: bool,
    /// Set if a file changed during the build. In that case, the result of the build is outdated.
    stale: bool,
    host: Host,
    /// Set if a good build is ready, and its host starts when the old host has ended.
    fresh: bool,
    ending: bool,
}

impl Plan {
    /// Returns the initial state and the first action.
    pub(super) fn begin() -> (Self, Action) {
        (Self { building: true, stale: false, host: Host::Absent, fresh: false, ending: false }, Action::Build)
    }

    /// Handles an event. Returns the actions to perform, in order.
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

    /// Returns [`Action::End`] if neither a build nor a host is running.
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

    /// Asserts the actions after each event of a session.
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
