//! Tests of the state machine of one delivery.

use super::*;
use hostler_config::{OnProcessingTimeout, Retry};
use hostler_handler::Limit;

const SECOND: Duration = Duration::from_secs(1);

fn policy() -> Policy {
    let retry = Retry { requeues: 1, requeue_delay: SECOND, delays: 0, delay: SECOND, max_delay: SECOND };
    Policy { retry, on_processing_timeout: OnProcessingTimeout::DeadLetter, dead_letter: true }
}

fn play(events: impl IntoIterator<Item = Event>) -> (Machine, Vec<Action>) {
    play_with(Replies::Channel, events)
}

fn play_with(replies: Replies, events: impl IntoIterator<Item = Event>) -> (Machine, Vec<Action>) {
    let mut machine = Machine::new(1, 0, replies, 1.0);
    let actions = events.into_iter().map(|event| machine.handle(event, &policy())).collect();
    (machine, actions)
}

#[test]
fn success_is_settled_after_the_heartbeat_has_stopped() {
    let (machine, actions) =
        play([Event::Start, Event::Ended(Some(Outcome::Ack)), Event::HeartbeatStopped, Event::Settled(true)]);
    assert_eq!(actions, [Action::Run, Action::StopHeartbeat, Action::Settle(Disposition::Ack), Action::Finish]);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::Ack, &Disposition::Ack));
}

#[test]
fn a_lost_lease_settles_nothing_and_waits_for_the_guest() {
    let (machine, actions) = play([Event::Start, Event::LeaseLost, Event::Ended(Some(Outcome::Ack))]);
    assert_eq!(actions, [Action::Run, Action::Stop, Action::Finish]);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::LeaseLost, &Disposition::None));
}

#[test]
fn a_lease_lost_before_or_during_settling_is_in_the_log_with_what_the_handler_did() {
    let ended = || Event::Ended(Some(Outcome::Ack));
    for last in [vec![Event::LeaseLost], vec![Event::HeartbeatStopped, Event::Settled(false)]] {
        let (machine, actions) = play([Event::Start, ended()].into_iter().chain(last));
        assert_eq!(actions.last(), Some(&Action::Finish));
        assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::Ack, &Disposition::None));
    }
}

#[test]
fn a_timeout_asks_the_hook_once_the_guest_is_gone() {
    let timed_out = [Event::Start, Event::Deadline(SECOND), Event::Ended(None)];
    let (mut machine, actions) = play(timed_out);
    assert_eq!(actions, [Action::Run, Action::Stop, Action::Decide(SECOND)]);
    assert!(machine.is_running());
    assert_eq!(machine.handle(Event::Decided(Some(Outcome::Ack)), &policy()), Action::StopHeartbeat);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::TimedOut(SECOND), &Disposition::Ack));
}

#[test]
fn the_hook_s_reply_is_sent_before_the_ack() {
    let timed_out = [Event::Start, Event::Deadline(SECOND), Event::Ended(None)];
    let (mut machine, _) = play(timed_out);
    assert!(machine.timed_out_undecided());
    let reply = Event::Decided(Some(Outcome::Reply(vec![7])));
    assert_eq!(machine.handle(reply, &policy()), Action::Reply(vec![7]));
    assert_eq!(machine.handle(Event::Replied(Ok(())), &policy()), Action::StopHeartbeat);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::TimedOut(SECOND), &Disposition::Ack));
    assert!(!machine.timed_out_undecided());
}

#[test]
fn without_a_hook_a_timeout_leads_to_what_is_configured() {
    let timed_out = [Event::Start, Event::Deadline(SECOND), Event::Ended(None), Event::Decided(None)];
    let (machine, _) = play(timed_out);
    assert!(machine.timed_out_undecided());
    assert!(matches!(machine.disposition(), Disposition::DeadLetter(_)));
}

#[test]
fn a_cancelled_message_fails_once_its_guest_is_gone_and_no_hook_is_asked() {
    let cancelled = [Event::Start, Event::Cancel, Event::Deadline(SECOND), Event::Ended(None)];
    let (machine, actions) = play(cancelled);
    assert_eq!(actions, [Action::Run, Action::Stop, Action::Nothing, Action::StopHeartbeat]);
    let failed = Outcome::Failed("cancelled by an operator".into());
    assert_eq!((machine.outcome(), machine.disposition()), (&failed, &Disposition::Release(SECOND)));
}

#[test]
fn a_cancel_changes_nothing_about_what_is_decided_or_stopped_or_not_started() {
    let (machine, _) = play([Event::Start, Event::Cancel, Event::Ended(Some(Outcome::Ack))]);
    assert_eq!(machine.disposition(), &Disposition::Ack, "it had decided when it was stopped");
    let (machine, actions) = play([Event::Start, Event::Ended(Some(Outcome::Ack)), Event::Cancel]);
    assert_eq!((actions.last(), machine.disposition()), (Some(&Action::Nothing), &Disposition::Ack));
    let (machine, _) = play([Event::Start, Event::Cancel, Event::LeaseLost, Event::Ended(None)]);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::LeaseLost, &Disposition::None));
    let (machine, _) = play([Event::Start, Event::DrainDeadline, Event::Cancel, Event::Ended(None)]);
    assert_eq!(machine.outcome(), &Outcome::Shutdown);
    let (mut machine, actions) = play([Event::Start, Event::Deadline(SECOND), Event::Ended(None), Event::Cancel]);
    assert_eq!((actions.last(), machine.stage()), (Some(&Action::Nothing), Some(Stage::Deciding)));
    assert_eq!(machine.handle(Event::Decided(Some(Outcome::Ack)), &policy()), Action::StopHeartbeat);
    assert_eq!(play([Event::Cancel]).1, [Action::Nothing]);
}

#[test]
fn a_decision_reached_before_the_timeout_stands() {
    let (machine, _) = play([Event::Start, Event::Deadline(SECOND), Event::Ended(Some(Outcome::Ack))]);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::Ack, &Disposition::Ack));
}

#[test]
fn draining_gives_back_what_has_not_started_and_asks_the_rest() {
    let (machine, actions) = play([Event::Drain, Event::HeartbeatStopped]);
    let untouched = Disposition::GiveBack(Duration::ZERO);
    assert_eq!(actions, [Action::StopHeartbeat, Action::Settle(untouched.clone())]);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::Shutdown, &untouched));

    let (machine, actions) = play([Event::Start, Event::Drain, Event::DrainDeadline, Event::Ended(None)]);
    assert_eq!(actions, [Action::Run, Action::AskToStop, Action::Stop, Action::StopHeartbeat]);
    let release = Disposition::Release(Duration::ZERO);
    assert_eq!((machine.outcome(), machine.disposition()), (&Outcome::Shutdown, &release), "this attempt counts");
}

#[test]
fn what_never_ran_spends_no_attempt() {
    let not_due = Event::NotDue(9 * SECOND);
    for (event, delay) in
        [(Event::Drain, 0), (Event::DrainDeadline, 0), (Event::Overtaken(7 * SECOND), 7), (not_due, 9)]
    {
        let (machine, _) = play([event]);
        assert_eq!(machine.disposition(), &Disposition::GiveBack(delay * SECOND));
    }
}

#[test]
fn a_reply_is_sent_before_the_ack_and_its_failure_is_the_message_s() {
    let replied = |result| play([Event::Start, Event::Ended(Some(Outcome::Reply(vec![7]))), Event::Replied(result)]);
    let (machine, actions) = replied(Ok(()));
    assert_eq!(actions, [Action::Run, Action::Reply(vec![7]), Action::StopHeartbeat]);
    assert_eq!(machine.disposition(), &Disposition::Ack);
    let (machine, _) = replied(Err(Outcome::Failed("full".into())));
    assert_eq!(machine.disposition(), &Disposition::Release(SECOND));
    let (machine, _) = replied(Err(Outcome::HostLimit(Limit::Descriptors, "no socket".into())));
    assert!(matches!(machine.disposition(), Disposition::GiveBack(_)), "{machine:?}");
}

#[test]
fn a_large_reply_keeps_its_slot_until_it_is_sent() {
    for (size, is_kept) in [(LARGE_REPLY, false), (LARGE_REPLY + 1, true)] {
        let (mut machine, _) = play([Event::Start, Event::Ended(Some(Outcome::Reply(vec![7; size])))]);
        assert_eq!((machine.holds_slot(), machine.is_running()), (is_kept, false));
        assert_eq!(machine.handle(Event::Replied(Ok(())), &policy()), Action::StopHeartbeat);
        assert!(!machine.holds_slot());
    }
}

#[test]
fn a_copy_that_is_given_up_leaves_a_release() {
    let outcome = Outcome::DeadLetter("why".into());
    let (mut machine, _) = play([Event::Start, Event::Ended(Some(outcome.clone())), Event::HeartbeatStopped]);
    assert!(matches!(machine.disposition(), Disposition::DeadLetter(_)));
    assert_eq!(machine.handle(Event::CopyGivenUp, &policy()), Action::Nothing);
    assert_eq!(machine.handle(Event::Settled(true), &policy()), Action::Finish);
    assert_eq!((machine.outcome(), machine.disposition()), (&outcome, &Disposition::Release(Duration::ZERO)));
}

#[test]
fn nothing_is_settled_twice_whatever_comes_after() {
    let (mut machine, _) =
        play([Event::Start, Event::Ended(Some(Outcome::Ack)), Event::HeartbeatStopped, Event::Settled(true)]);
    for event in [Event::HeartbeatStopped, Event::Settled(true), Event::LeaseLost, Event::Start, Event::Drain] {
        assert_eq!(machine.handle(event, &policy()), Action::Nothing);
    }
}

#[test]
fn a_reply_is_the_result_for_a_service_that_decides() {
    let (mut machine, actions) =
        play_with(Replies::Service, [Event::Start, Event::Ended(Some(Outcome::Reply(vec![7])))]);
    assert_eq!(actions, [Action::Run, Action::StopHeartbeat], "no reply is sent");
    assert_eq!(machine.handle(Event::HeartbeatStopped, &policy()), Action::Settle(Disposition::Ack));
    assert_eq!((machine.take_result(), machine.take_result()), (Some(vec![7]), None));
    assert_eq!(machine.outcome(), &Outcome::Reply(Vec::new()));
}

#[test]
fn a_failure_is_reported_to_a_service_that_decides() {
    let ended = |outcome| play_with(Replies::Service, [Event::Start, Event::Ended(Some(outcome))]).0;
    let failed = ended(Outcome::Failed("boom".into()));
    assert_eq!(failed.disposition(), &Disposition::Fail { reason: "boom".into(), retry_in: None });
    let timed_out = [Event::Start, Event::Deadline(SECOND), Event::Ended(None), Event::Decided(None)];
    let (machine, _) = play_with(Replies::Service, timed_out);
    let reason = "processing timeout after 1.000 s".into();
    assert_eq!(machine.disposition(), &Disposition::Fail { reason, retry_in: None });
    assert!(machine.timed_out_undecided());
    let stopped = [Event::Start, Event::DrainDeadline, Event::Ended(None)];
    let (machine, _) = play_with(Replies::Service, stopped);
    assert_eq!(machine.disposition(), &Disposition::GiveBack(Duration::ZERO), "the host is at fault");
}

#[test]
fn the_hook_s_decision_is_reported_to_a_service_that_decides() {
    let decided = |outcome| {
        let timed_out = [Event::Start, Event::Deadline(SECOND), Event::Ended(None)];
        play_with(Replies::Service, timed_out.into_iter().chain([Event::Decided(Some(outcome))])).0
    };
    let mut replied = decided(Outcome::Reply(vec![7]));
    assert_eq!((replied.take_result(), replied.disposition()), (Some(vec![7]), &Disposition::Ack));
    let later = decided(Outcome::Delay(5 * SECOND));
    let reason = "the handler asked for a delay".into();
    assert_eq!(later.disposition(), &Disposition::Fail { reason, retry_in: Some(5 * SECOND) });
}

#[test]
fn a_large_result_keeps_its_slot_until_it_is_settled() {
    for (size, is_kept) in [(LARGE_REPLY, false), (LARGE_REPLY + 1, true)] {
        let reply = Event::Ended(Some(Outcome::Reply(vec![7; size])));
        let (mut machine, _) = play_with(Replies::Service, [Event::Start, reply]);
        assert_eq!((machine.holds_slot(), machine.is_running()), (is_kept, false));
        assert_eq!(machine.handle(Event::HeartbeatStopped, &policy()), Action::Settle(Disposition::Ack));
        assert!(machine.take_result().is_some());
        assert_eq!(machine.holds_slot(), is_kept);
        assert_eq!(machine.handle(Event::Settled(true), &policy()), Action::Finish);
        assert!(!machine.holds_slot());
    }
}
