//! Schedules: real hosts that share a queue, and the commands.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::nats;
use crate::postgres;
use crate::support::hostler::{Host, PATIENCE, Said, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::postgres::Postgres;
use crate::support::servers::Kind;
use crate::support::sqs::Aws;
use crate::support::work::json;

/// Variable with the path of the health file, for further hosts in a folder.
const HEALTH_FILE: &str = "HOSTLER_HOST__HEALTH_FILE";

/// A consumer, and a schedule that sends to another queue each second. Further keys of the schedule follow.
const TICK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    [schedules.tick]
    cron = '* * * * * *'
    channel = 'ticks'
    body = 'tick'
    missed = 'all'
";

fn postgres(config: &str) -> World {
    postgres::on(Postgres::shared().database(), config)
}

/// Starts a host with a health file of its own.
fn host(world: &World, number: usize) -> Host {
    let mut command = world.command(&["run"]);
    command.env(HEALTH_FILE, format!("health-{number}.json"));
    let host = Host::start(command);
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    host
}

/// Due times of messages, in seconds, sorted.
fn dues<'a>(messages: impl IntoIterator<Item = &'a Value>) -> Vec<u64> {
    let due = |message: &Value| {
        assert_eq!((&message["attributes"]["hostler-schedule"], &message["body"]), (&"tick".into(), &"tick".into()));
        let due = humantime::parse_rfc3339(message["attributes"]["hostler-due"].as_str().unwrap()).unwrap();
        due.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    };
    let mut dues: Vec<_> = messages.into_iter().map(due).collect();
    dues.sort_unstable();
    dues
}

/// Due times of the messages in a queue.
fn sent(world: &World, queue: &str) -> Vec<u64> {
    dues(&json(&world.output(&["peek", queue, "--json", "--max", "1000"])))
}

/// Waits until this host has sent, or an earlier one.
fn has_sent(world: &World, queue: &str, count: u64) {
    until("messages are due", PATIENCE, || {
        let said = world.output(&["queues", queue, "--json"]);
        (said.code == 0 && json(&said)[0]["visible"].as_u64() >= Some(count)).then_some(())
    });
}

/// Each second has one message.
fn assert_each_second(dues: &[u64]) {
    let expected: Vec<_> = (dues[0]..=*dues.last().unwrap()).collect();
    assert_eq!(dues, expected);
}

fn survive(world: &World) {
    let mut running: Vec<Host> = (0..5).map(|number| host(world, number)).collect();
    has_sent(world, "ticks", 3);
    for killed in 1..=3 {
        drop(running.remove(killed % running.len()).kill());
        has_sent(world, "ticks", 3 + 2 * killed as u64);
    }
    for host in &mut running {
        assert_eq!(host.stop(), 0);
        let errors: Vec<_> = host.lines().into_iter().filter(|line| line["level"] == "ERROR").collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
    let dues = sent(world, "ticks");
    assert!(dues.len() >= 9, "{dues:?}");
    assert_each_second(&dues);
}

#[test]
fn five_hosts_of_which_three_are_killed_send_each_due_time_once() {
    survive(&World::new(TICK));
}

#[test]
fn five_hosts_of_which_three_are_killed_send_each_due_time_once_on_postgresql() {
    survive(&postgres(TICK));
}

#[test]
fn five_hosts_of_which_three_are_killed_send_each_due_time_once_on_nats() {
    for version in Version::ALL {
        survive(&nats::world(Nats::shared(version), TICK));
    }
}

/// On SQS, each host sends, and the FIFO queue drops the duplicates.
#[test]
fn hosts_on_a_fifo_queue_send_each_due_time_once() {
    let config = "
        [consumers.work]
        channel = 'work'
        handler = 'guests/run-word.wat'
        ordered = true
        [schedules.tick]
        cron = '* * * * * *'
        channel = 'work'
        body = 'ack'
        ";
    let world = Aws::new(Kind::Fauxqs, config);
    let mut running: Vec<Host> = (0..2).map(|number| host(&world, number)).collect();
    let logged = |hosts: &[Host], fits: &dyn Fn(&Value) -> bool| -> usize {
        hosts.iter().map(|host| host.lines().iter().filter(|line| fits(line)).count()).sum()
    };
    let is_settled = |line: &Value| line.get("outcome").is_some();
    until("messages are processed", PATIENCE, || (logged(&running, &is_settled) >= 5).then_some(()));
    for host in &mut running {
        assert_eq!(host.stop(), 0);
    }
    let lines: Vec<Value> = running.iter().flat_map(Host::lines).collect();
    let of = |field: &str| -> Vec<String> {
        lines.iter().filter_map(|line| line.get(field)?.as_str().map(str::to_owned)).collect()
    };
    let told = of("due");
    let due: BTreeSet<_> = told.iter().collect();
    assert!(told.len() > due.len(), "both hosts sent: {told:?}");
    // A message that the first host gave back at its end is there twice.
    let settled = lines.iter().filter(|line| is_settled(line));
    let processed: BTreeSet<_> = settled.map(|line| line["message_id"].to_string()).collect();
    assert!(processed.len() <= due.len(), "{processed:?} for {due:?}");
}

#[test]
fn what_was_missed_is_sent_after_a_restart() {
    let world = World::new(TICK);
    world.started().kill();
    let mut host = world.started();
    has_sent(&world, "ticks", 1);
    assert_eq!(host.stop(), 0);
    let before = sent(&world, "ticks").len() as u64;
    let stopped = SystemTime::now();
    until("seconds pass", PATIENCE, || (stopped.elapsed().unwrap() > Duration::from_secs(3)).then_some(()));
    let mut host = world.started();
    has_sent(&world, "ticks", before + 3);
    assert_eq!(host.stop(), 0);
    assert_each_second(&sent(&world, "ticks"));
}

#[test]
fn a_changed_schedule_sends_nothing_of_before() {
    let world = World::new(TICK);
    let mut host = world.started();
    has_sent(&world, "ticks", 1);
    assert_eq!(host.stop(), 0);
    let stopped = SystemTime::now();
    until("seconds pass", PATIENCE, || (stopped.elapsed().unwrap() > Duration::from_secs(2)).then_some(()));
    let restarted = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    world.config(&TICK.replace("'ticks'", "'tocks'"));
    let mut host = world.started();
    has_sent(&world, "tocks", 1);
    assert_eq!(host.stop(), 0);
    let dues = sent(&world, "tocks");
    assert!(dues[0] > restarted, "{dues:?}, restarted at {restarted}");
}

/// An older host waits while hosts with a newer definition live.
#[test]
fn an_older_host_leaves_the_schedule_to_a_newer_one() {
    let world = World::new(TICK);
    let older = host(&world, 1);
    has_sent(&world, "ticks", 2);
    world.config(&TICK.replace("'ticks'", "'tocks'"));
    let mut newer = host(&world, 2);
    older.wait_for(PATIENCE, |line| {
        line["message"] == "hosts with another definition of the schedule send its messages"
    });
    let before = sent(&world, "ticks");
    has_sent(&world, "tocks", 3);
    assert_eq!(newer.stop(), 0);
    assert_eq!(sent(&world, "ticks"), before);
    assert!(sent(&world, "tocks")[0] > *before.last().unwrap());
}

#[test]
fn a_schedule_feeds_a_consumer() {
    let config = TICK.replace("'ticks'", "'work'").replace("'tick'\n    missed", "'ack'\n    missed");
    let world = World::new(&config);
    let mut host = world.started();
    let lines = host.settled(2);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    let told = host.wait_for(PATIENCE, |line| line["message"] == "scheduled message sent");
    assert_eq!((&told["schedule"], &told["channel"]), (&"tick".into(), &"work".into()));
    assert_eq!(host.stop(), 0);
}

const NIGHTLY: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    [schedules.month-end]
    cron = '0 18 31 * *'
    channel = 'work'
    [schedules.nightly]
    cron = '30 2 * * *'
    timezone = 'Europe/Berlin'
    channel = 'work'
";

#[test]
fn the_command_lists_what_is_due() {
    let world = World::new(NIGHTLY);
    let said = world.output(&["schedules", "nightly", "--next", "3", "--json"]);
    let rows = json(&said);
    let next: Vec<_> = rows[0]["next"].as_array().unwrap().iter().map(|due| due.as_str().unwrap()).collect();
    assert_eq!((rows.len(), next.len()), (1, 3));
    // A night in which the clocks change may have another time.
    assert!(next.iter().filter(|due| due.contains("T02:30:00+0")).count() >= 2, "{next:?}");
    assert_eq!((&rows[0]["timezone"], &rows[0]["last_sent"]), (&"Europe/Berlin".into(), &Value::Null));
    assert_eq!((&rows[0]["cron"], &rows[0]["current"]), (&"30 2 * * *".into(), &false.into()));
    assert!(!world.path("queue.db").exists(), "listing creates nothing");

    let Said { code, stdout, .. } = world.output(&["schedules"]);
    let lines: Vec<_> = stdout.lines().collect();
    assert!(code == 0 && lines.len() == 3 && lines[0].starts_with("SCHEDULE"), "{stdout}");
    assert!(lines[1].starts_with("month-end") && lines[2].starts_with("nightly"), "{stdout}");

    let unknown = world.output(&["schedules", "nightlly"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("did you mean `nightly`?"), "{unknown:?}");

    let mut host = world.started();
    until("the schedule is known", PATIENCE, || {
        (json(&world.output(&["schedules", "nightly", "--json"]))[0]["current"] == true).then_some(())
    });
    let warning = host.wait_for(PATIENCE, |line| line["schedule"] == "month-end" && line["level"] == "WARN");
    assert!(warning["message"].as_str().unwrap().contains("month 2 has no day 31"), "{warning}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_check_names_the_next_due_time() {
    let world = World::new(NIGHTLY);
    let said = world.output(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.contains("schedule  ok  nightly: 30 2 * * * to work, next 20"), "{said:?}");
    assert!(said.stderr.contains("warning: schedules.month-end.cron: it is not due in each month"), "{said:?}");
}

#[test]
fn a_host_that_may_create_nothing_names_the_missing_store() {
    let mut strict = nats::world(Nats::shared(Version::ALL[0]), TICK);
    strict.set("HOSTLER_QUEUE__NATS__PROVISION", "check".to_owned());
    let check = strict.output(&["check"]);
    assert!(check.code == 69 && check.stderr.contains("hostler provision"), "{check:?}");
    let plan = strict.output(&["provision", "--plan"]);
    assert!(plan.code == 0 && plan.stdout.contains("schedules"), "{plan:?}");
    assert_eq!(strict.output(&["provision"]).code, 0);
    assert_eq!(strict.output(&["provision"]).stdout, "no change\n");
    assert_eq!(strict.output(&["check"]).code, 0);
    let mut host = strict.started();
    has_sent(&strict, "ticks", 1);
    assert_eq!(host.stop(), 0);
}
