//! The health file on a real disk, and the verdict as the exit code of `check-consumer-health`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use fs2::FileExt;
use hostler::cli::check_consumer_health;
use hostler_health::{
    BreakerState, Clock, ConsumerReport, FailureReport, HealthFile, LOCK_WAIT, MAX_BYTES, OtherHost, QueueLink,
    QueueLinkState, ReadError, Report, SettlingFails, State, Timestamp, Why, WriteError, process, read,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::{Map, Value};
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn Error>>;

/// A folder of its own, and the path of a health file in a folder below it that does not exist yet.
fn place() -> Result<(TempDir, PathBuf), std::io::Error> {
    let folder = TempDir::new()?;
    let path = folder.path().join("run").join("health.json");
    Ok((folder, path))
}

fn consumer(name: &str) -> ConsumerReport {
    ConsumerReport {
        name: name.to_owned(),
        state: State::Processing,
        transition_timestamp: Timestamp::now(),
        healthcheck_timeout: Duration::from_secs(90),
        last_poll_at: Some(Timestamp::now()),
        in_flight: 1,
        oldest_started_at: None,
        processed: 812,
        failed: 3,
        paused: false,
        breaker: None,
        settling_fails: None,
        last_failures: Vec::new(),
    }
}

/// A report of this process, with this many consumers.
fn report(consumers: usize) -> Report {
    Clock::start().report(|_| (0..consumers).map(|n| consumer(&format!("c{n}"))).collect())
}

/// The exit code of `check-consumer-health` with these arguments.
fn check(path: &Path, arguments: &[&str]) -> Result<u8, clap::Error> {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        check: check_consumer_health::Args,
    }
    let cli = Cli::try_parse_from([&["check-consumer-health"], arguments].concat())?;
    Ok(check_consumer_health::run(&cli.check, path))
}

/// Arguments that take a missing file for starting, however long ago PID 1 started; and for unhealthy.
const STARTING: [&str; 2] = ["--start-period", "100years"];
const STARTED: [&str; 2] = ["--start-period", "0s"];

fn mode(path: &Path) -> Result<u32, std::io::Error> {
    Ok(fs::symlink_metadata(path)?.permissions().mode() & 0o7777)
}

fn names_in(folder: &Path) -> Result<BTreeSet<String>, std::io::Error> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[test]
fn what_is_written_is_read_and_is_private() -> Outcome {
    let (_folder, path) = place()?;
    let written = report(2);
    HealthFile::new(&path).write(&written)?;

    assert_eq!(read(&path)?, written);
    let folder = path.parent().ok_or("no folder")?;
    assert_eq!((mode(folder)?, mode(&path)?, mode(&folder.join("health.json.lock"))?), (0o700, 0o600, 0o600));
    assert_eq!(names_in(folder)?, BTreeSet::from(["health.json".to_owned(), "health.json.lock".to_owned()]));
    assert_eq!(check(&path, &STARTED)?, 0);
    assert_eq!(
        check(Path::new("/nowhere"), &[&STARTED[..], &["--json", "--file", &path.to_string_lossy()]].concat())?,
        0
    );
    Ok(())
}

#[test]
fn reading_creates_nothing() -> Outcome {
    let (folder, path) = place()?;
    assert!(matches!(read(&path), Err(ReadError::Missing { .. })));
    fs::create_dir(path.parent().ok_or("no folder")?)?;
    assert!(matches!(read(&path), Err(ReadError::Missing { .. })));
    assert_eq!(names_in(&folder.path().join("run"))?, BTreeSet::new());

    assert_eq!(check(&path, &STARTING)?, 0);
    assert_eq!(check(&path, &STARTED)?, 1);
    Ok(())
}

#[test]
fn a_file_without_its_lock_is_read() -> Outcome {
    let (_folder, path) = place()?;
    let written = report(1);
    HealthFile::new(&path).write(&written)?;
    fs::remove_file(path.with_added_extension("lock"))?;
    assert_eq!(read(&path)?, written);
    Ok(())
}

#[test]
fn whatever_is_no_report_is_unhealthy_and_says_why() -> Outcome {
    fn why(path: &Path) -> Result<Why, Box<dyn Error>> {
        assert_eq!(check(path, &STARTING)?, 1, "not even while starting");
        match read(path) {
            Err(ReadError::Unreadable { why, .. }) => Ok(why),
            other => Err(format!("{other:?}").into()),
        }
    }
    let (_folder, path) = place()?;
    HealthFile::new(&path).write(&report(1))?;

    let whole = fs::read(&path)?;
    for length in [0, 1, whole.len() / 2, whole.len() - 2] {
        fs::write(&path, whole.get(..length).ok_or("short")?)?;
        assert!(matches!(why(&path)?, Why::Json(_)), "torn at {length}");
    }
    fs::write(&path, r#"{"schema":2,"hosts":[]}"#)?;
    assert!(matches!(why(&path)?, Why::Schema { found: 2 }));

    let mut large = whole.clone();
    large.resize(usize::try_from(MAX_BYTES)?, b' ');
    fs::write(&path, &large)?;
    assert!(read(&path).is_ok(), "as large as it may be");
    large.push(b' ');
    fs::write(&path, &large)?;
    assert!(matches!(why(&path)?, Why::Oversize));

    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    assert!(matches!(why(&path)?, Why::NotAFile));

    fs::remove_dir(&path)?;
    assert!(Command::new("mkfifo").arg(&path).status()?.success());
    assert!(matches!(why(&path)?, Why::NotAFile), "and the check does not hang on a pipe");
    Ok(())
}

#[test]
fn a_symbolic_link_at_the_file_is_not_followed() -> Outcome {
    let (folder, path) = place()?;
    let victim = folder.path().join("victim");
    let file = HealthFile::new(&path);
    file.write(&report(1))?;
    fs::rename(&path, &victim)?;
    let before = fs::read(&victim)?;
    symlink(&victim, &path)?;

    assert!(matches!(read(&path), Err(ReadError::Unreadable { why: Why::Symlink, .. })));
    assert_eq!(check(&path, &STARTING)?, 1);

    let written = report(2);
    file.write(&written)?;
    assert_eq!(read(&path)?, written);
    assert!(fs::symlink_metadata(&path)?.is_file());
    assert_eq!(fs::read(&victim)?, before);
    Ok(())
}

#[test]
fn a_symbolic_link_at_the_lock_is_an_error() -> Outcome {
    let (folder, path) = place()?;
    let file = HealthFile::new(&path);
    file.write(&report(1))?;
    let before = fs::read(&path)?;
    let lock = path.with_added_extension("lock");
    for target_exists in [true, false] {
        let victim = folder.path().join("victim");
        fs::remove_file(&lock)?;
        symlink(&victim, &lock)?;
        if target_exists {
            fs::write(&victim, "precious")?;
        }

        let Err(error @ WriteError::Failed { .. }) = file.write(&report(2)) else { return Err("written".into()) };
        let text = error.to_string();
        assert!(text.contains("health.json.lock") && text.contains("remove the symbolic link"), "{text}");
        assert!(matches!(read(&path), Err(ReadError::Unreadable { why: Why::Symlink, .. })));
        assert_eq!(check(&path, &STARTING)?, 1);

        assert_eq!(fs::read(&path)?, before, "the old file stands");
        if target_exists {
            assert_eq!(fs::read(&victim)?, b"precious");
            fs::remove_file(&victim)?;
        } else {
            assert!(!victim.exists());
        }
    }
    Ok(())
}

#[test]
fn what_a_crash_left_is_replaced_and_never_written_through() -> Outcome {
    let (folder, path) = place()?;
    let file = HealthFile::new(&path);
    file.write(&report(1))?;
    let temp = path.with_added_extension("tmp");

    fs::write(&temp, "half a rep")?;
    fs::set_permissions(&temp, fs::Permissions::from_mode(0o666))?;
    file.write(&report(2))?;
    assert_eq!((mode(&path)?, temp.exists()), (0o600, false));

    let victim = folder.path().join("victim");
    fs::write(&victim, "precious")?;
    symlink(&victim, &temp)?;
    file.write(&report(3))?;
    assert_eq!(read(&path)?.consumers.len(), 3);
    assert_eq!(fs::read(&victim)?, b"precious");
    Ok(())
}

#[test]
fn a_folder_that_is_removed_or_replaced_is_made_again() -> Outcome {
    let (folder, path) = place()?;
    let run = folder.path().join("run");
    let file = HealthFile::new(&path);
    file.write(&report(1))?;

    fs::remove_dir_all(&run)?;
    file.write(&report(2))?;
    assert_eq!((read(&path)?.consumers.len(), mode(&run)?), (2, 0o700));

    fs::rename(&run, folder.path().join("old"))?;
    fs::create_dir(&run)?;
    file.write(&report(3))?;
    assert_eq!(read(&path)?.consumers.len(), 3);

    fs::remove_dir_all(&run)?;
    fs::write(&run, "in the way")?;
    let Err(error) = file.write(&report(4)) else { return Err("written".into()) };
    assert!(error.to_string().contains("remove what stands in the way"), "{error}");
    Ok(())
}

#[test]
fn a_lock_held_for_five_seconds_is_unhealthy() -> Outcome {
    let (_folder, path) = place()?;
    HealthFile::new(&path).write(&report(1))?;
    // flock(2) locks belong to the open file, so that a second one excludes as another process does.
    let holder = File::open(path.with_added_extension("lock"))?;
    FileExt::lock_exclusive(&holder)?;

    assert!(matches!(HealthFile::new(&path).write(&report(2)), Err(WriteError::Locked { .. })));
    let begin = Instant::now();
    assert_eq!(check(&path, &STARTING)?, 1);
    let waited = begin.elapsed();
    assert!(waited >= LOCK_WAIT && waited < Duration::from_secs(6), "within the HEALTHCHECK's timeout: {waited:?}");

    drop(holder);
    assert_eq!(check(&path, &STARTING)?, 0);
    Ok(())
}

/// Replaces the file 1,000 times, with 1 to 40 consumers, so that a mix of two files would not parse.
fn rewrite(file: &HealthFile) -> Result<(), String> {
    for n in 1..=1000 {
        let report = report(1 + n * 7 % 40);
        loop {
            match file.write(&report) {
                Ok(()) => break,
                // Four others are after the lock without a pause. A host would wait for its next tick.
                Err(WriteError::Locked { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    Ok(())
}

/// Reads until `done`; how many different reports it saw.
fn reread(path: &Path, done: &AtomicBool) -> Result<usize, String> {
    let mut seen = BTreeSet::new();
    while !done.load(Ordering::Relaxed) {
        let report = read(path).map_err(|error| error.to_string())?;
        seen.insert(report.written_at);
        if mode(path).map_err(|error| error.to_string())? != 0o600 {
            return Err("a moment in which others could read it".to_owned());
        }
    }
    Ok(seen.len())
}

#[test]
fn two_writers_and_three_readers_never_tear_the_file() -> Outcome {
    let (_folder, path) = place()?;
    let file = HealthFile::new(&path);
    file.write(&report(0))?;
    let done = AtomicBool::new(false);

    let (written, seen) = thread::scope(|scope| {
        let readers = [(); 3].map(|()| scope.spawn(|| reread(&path, &done)));
        let writers = [(); 2].map(|()| scope.spawn(|| rewrite(&file)));
        let written = writers.map(|writer| writer.join().unwrap_or_else(|_| Err("a writer panicked".to_owned())));
        done.store(true, Ordering::Relaxed);
        (written, readers.map(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".to_owned()))))
    });
    for outcome in written {
        outcome?;
    }
    for reports in seen {
        assert!(reports? > 10, "a reader that saw few writes proves little");
    }
    Ok(())
}

/// A child that lives until its stdin closes.
fn child() -> Result<Child, std::io::Error> {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

#[test]
fn a_process_is_alive_then_a_zombie_then_gone() -> Outcome {
    let before = Timestamp::now();
    let mut cat = child()?;
    let pid = cat.id();
    let started_at = process::info(pid).and_then(|process| process.started_at).ok_or("alive")?;
    let difference = started_at.since(before).max(before.since(started_at));
    assert!(difference < Duration::from_secs(2), "{difference:?}");

    let (_folder, path) = place()?;
    let file = HealthFile::new(&path);
    let of_child = || Report { pid, started_at, ..report(1) };
    file.write(&of_child())?;
    assert_eq!(check(&path, &STARTED)?, 0);

    drop(cat.stdin.take());
    let id = WaitId::Pid(Pid::from_child(&cat));
    waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    assert_eq!(process::info(pid), None, "a zombie");
    file.write(&of_child())?;
    assert_eq!(check(&path, &STARTING)?, 1);

    cat.wait()?;
    assert_eq!(process::info(pid), None, "gone");
    assert_eq!(check(&path, &STARTING)?, 1);
    Ok(())
}

#[test]
fn a_process_id_with_a_new_owner_counts_as_no_file() -> Outcome {
    let (_folder, path) = place()?;
    let mut cat = child()?;
    let earlier = Timestamp::now().minus(Duration::from_secs(3600));
    HealthFile::new(&path).write(&Report { pid: cat.id(), started_at: earlier, ..report(1) })?;
    assert_eq!(check(&path, &STARTED)?, 1);
    assert_eq!(check(&path, &STARTING)?, 0);
    drop(cat.stdin.take());
    cat.wait()?;
    Ok(())
}

#[test]
fn a_host_that_no_longer_writes_is_unhealthy() -> Outcome {
    let (_folder, path) = place()?;
    // The process lives, as a stopped one does; only its pulse is missing.
    let started_at = process::info(1).and_then(|pid1| pid1.started_at).ok_or("no PID 1")?;
    let silent_for = |seconds| Timestamp::now().minus(Duration::from_secs(seconds));
    let file = HealthFile::new(&path);
    file.write(&Report { pid: 1, started_at, written_at: silent_for(1), ..report(1) })?;
    assert_eq!(check(&path, &STARTED)?, 0);
    file.write(&Report { pid: 1, started_at, written_at: silent_for(11), ..report(1) })?;
    assert_eq!(check(&path, &STARTED)?, 1);
    Ok(())
}

#[test]
fn the_schema_describes_the_file_and_nothing_else() -> Outcome {
    fn fields(object: &Value) -> Result<&Map<String, Value>, String> {
        object.as_object().ok_or_else(|| format!("no object: {object}"))
    }
    /// The schema has exactly the object's fields, requires those that are always there, and says what each is.
    fn compare(schema: &Value, object: &Value, least: &Value) -> Outcome {
        let properties = fields(&schema["properties"])?;
        let names: BTreeSet<&str> = fields(object)?.keys().map(String::as_str).collect();
        assert_eq!(names, properties.keys().map(String::as_str).collect());
        let required = schema["required"].as_array().ok_or("required")?;
        let names: BTreeSet<&str> = fields(least)?.keys().map(String::as_str).collect();
        assert_eq!(names, required.iter().filter_map(Value::as_str).collect());
        assert_eq!(schema["additionalProperties"], false);
        for (name, property) in properties {
            assert!(property["description"].is_string(), "{name} is not described");
        }
        Ok(())
    }
    let schema: Value = serde_json::from_str(include_str!("../healthcheck/health.schema.json"))?;
    let other = OtherHost { pid: 2, started_at: Timestamp::now(), written_at: Timestamp::now() };
    let other_written = serde_json::to_value(&other)?;
    compare(&schema["$defs"]["other"], &other_written, &other_written)?;
    let link = QueueLink { state: QueueLinkState::Blocked, reason: String::new() };
    let link_written = serde_json::to_value(&link)?;
    compare(&schema["$defs"]["queue_link"], &link_written, &link_written)?;
    let states = serde_json::to_value([QueueLinkState::Down, QueueLinkState::Blocked])?;
    assert_eq!(schema["$defs"]["queue_link"]["properties"]["state"]["enum"], states);
    let file = serde_json::to_value(Report { others: vec![other], queue_link: Some(link), ..report(1) })?;
    let least = serde_json::to_value(Report { pid_namespace: None, ..report(1) })?;
    compare(&schema, &file, &least)?;
    let failure = FailureReport {
        at: Timestamp::now(),
        message_id: "1".into(),
        outcome: "failed".into(),
        disposition: "release".into(),
        reason: String::new(),
    };
    let failure_written = serde_json::to_value(&failure)?;
    compare(&schema["$defs"]["failure"], &failure_written, &failure_written)?;
    let fails = SettlingFails { since: Timestamp::now(), last: Timestamp::now() };
    let fails_written = serde_json::to_value(fails)?;
    compare(&schema["$defs"]["settling_fails"], &fails_written, &fails_written)?;
    let (breaker, settling_fails, last_failures) = (Some(BreakerState::Open), Some(fails), vec![failure]);
    let all = ConsumerReport { paused: true, breaker, settling_fails, last_failures, ..consumer("c") };
    let described = &schema["$defs"]["consumer"];
    compare(described, &serde_json::to_value(all)?, &file["consumers"][0])?;
    assert_eq!(described["properties"]["last_failures"]["maxItems"], hostler_consumer::MAX_FAILURES);
    let breaker = serde_json::to_value([BreakerState::Open, BreakerState::Probing])?;
    assert_eq!(described["properties"]["breaker"]["enum"], breaker);

    assert_eq!(schema["properties"]["schema"]["const"], file["schema"]);
    let states =
        [State::Initializing, State::Initialized, State::Listening, State::Processing, State::Idle, State::Exiting];
    let names = schema["$defs"]["consumer"]["properties"]["state"]["enum"].clone();
    assert_eq!(names, serde_json::to_value(states)?);
    Ok(())
}

#[test]
fn the_snippets_run_the_check_and_outwait_the_lock() -> Outcome {
    let ecs: Value = serde_json::from_str(include_str!("../healthcheck/ecs-healthcheck.json"))?;
    let ecs = &ecs["healthCheck"];
    let docker = include_str!("../healthcheck/HEALTHCHECK").lines().last().ok_or("empty")?;
    let (options, command) = docker.split_once(" CMD ").ok_or("no command")?;
    let command: Vec<String> = serde_json::from_str(command)?;
    assert_eq!(command, ["/hostler", "check-consumer-health"]);
    assert_eq!(ecs["command"], serde_json::to_value([&["CMD".to_owned()], command.as_slice()].concat())?);
    let expected = format!(
        "HEALTHCHECK --interval={}s --timeout={}s --start-period={}s --retries={}",
        ecs["interval"], ecs["timeout"], ecs["startPeriod"], ecs["retries"]
    );
    assert_eq!(options, expected);
    assert!(ecs["timeout"].as_u64().is_some_and(|seconds| seconds > LOCK_WAIT.as_secs()));
    Ok(())
}
