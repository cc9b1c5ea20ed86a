//! A guest that has broken out of its sandbox: native code, loaded into a process that has hardened itself as `run` does.

use std::ffi::{CString, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

use hostler::host::Guests;
use hostler::host::hardening::Hardening;
use hostler::host::resources::{Machine, Threads};
use hostler_config as config;

use crate::support::guests::command;
use crate::support::hostler::{Host, PATIENCE, Said, World, announce};

/// Names the world of the process that is to be hardened.
const CHILD: &str = "HOSTLER_TEST_HARDENED";

/// The attempts of `escape.c`, in the order of its bits.
const DEEDS: [&str; 14] = [
    "read a granted folder",
    "write to a granted folder",
    "read the queue",
    "read another consumer's granted folder",
    "read /etc/passwd",
    "read /etc/passwd by /proc",
    "fork",
    "ptrace",
    "process_vm_readv",
    "unshare",
    "mount",
    "chroot",
    "fork by x32",
    "execve by an unexpected error",
];

/// Those that Landlock keeps from native code, rather than seccomp.
const FILES: std::ops::Range<usize> = 1..6;

fn world(hardening: &str) -> World {
    World::with(
        &format!(
            "host.health_file = 'run/health.json'\nhost.hardening = '{hardening}'\nqueue.embedded.path = 'queue/q.db'\n"
        ),
        Vec::new(),
        &format!(
            "[consumers.work]\nchannel = 'work'\nhandler = '{0}'\nallow.dirs = [{{ host = 'mine', guest = '/mine' }}]\n\
             [consumers.other]\nchannel = 'other'\nhandler = '{1}'\nallow.dirs = [{{ host = 'other', guest = '/other' }}]\n\
             [consumers.third]\nchannel = 'third'\nhandler = '{0}'",
            command("main-exits").display(),
            command("main-reads-file").display()
        ),
    )
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Loads the library and lets it do its worst; what it achieved.
#[allow(unsafe_code, reason = "native code is what this is about")]
fn escape(root: &Path) -> Vec<&'static str> {
    let paths = ["mine/file", "queue/q.db", "other/file"].map(|name| text(&root.join(name)));
    // A thread that may not read it finds it by its name, as it stays loaded.
    let library = text(&root.join("mine/escape.so"));
    let achieved = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "it cannot be loaded");
        let symbol: *mut c_void = libc::dlsym(library, c"escape".as_ptr());
        assert!(!symbol.is_null());
        let escape: extern "C" fn(*const c_char, *const c_char, *const c_char) -> c_uint = std::mem::transmute(symbol);
        escape(paths[0].as_ptr(), paths[1].as_ptr(), paths[2].as_ptr())
    };
    DEEDS.into_iter().enumerate().filter(|(bit, _)| achieved & (1 << bit) != 0).map(|(_, deed)| deed).collect()
}

/// The process that is hardened; nothing unless the test below has started it.
#[test]
fn hardened_child() {
    let Some(root) = env::var_os(CHILD).map(PathBuf::from) else { return };
    env::set_current_dir(&root).unwrap();
    let config = config::load(Some(&root.join("hostler.toml")), std::iter::empty::<(String, String)>()).unwrap().config;
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let early = {
        let root = root.clone();
        thread::spawn(move || {
            gate.recv().unwrap();
            escape(&root)
        })
    };
    let hardening = Hardening::enforce(&config, &Machine::measure()).unwrap().unwrap();
    // One after the other: a thread that traces would keep the next from it.
    go.send(()).unwrap();
    let early = early.join().unwrap();
    let process = thread::scope(|scope| scope.spawn(|| escape(&root)).join()).unwrap();
    let mut result = serde_json::json!({ "files": hardening.files, "early": early, "process": process });
    // The threads that `run` has for guests.
    let guests = Guests::start(&config, Threads::of(&Machine::measure(), config.consumers.len())).unwrap();
    let control = tokio::runtime::Builder::new_current_thread().build().unwrap();
    control.block_on(hardening.restrict_guests(&guests.shared())).unwrap();
    for (consumer, pools) in config.consumers.iter().zip(guests.pools()) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let root = root.clone();
        pools.spawn(async move {
            let here = escape(&root);
            // A thread that reads and writes guests' files.
            let files = tokio::task::spawn_blocking(move || escape(&root)).await.unwrap();
            sender.send((here, files)).unwrap();
        });
        let (here, files) = receiver.recv().unwrap();
        assert_eq!(here, files, "{}", consumer.name);
        result[&consumer.name] = serde_json::json!(here);
    }
    guests.shut_down();
    println!("RESULT {result}");
}

/// SQLite keeps its other files beside the one that the link leads to.
#[test]
fn a_queue_file_that_is_a_link_works_in_a_hardened_process() {
    let world = world("auto");
    for folder in ["queue", "real", "mine", "other"] {
        fs::create_dir(world.path(folder)).unwrap();
    }
    symlink("../real/q.db", world.path("queue/q.db")).unwrap();
    world.send("third", ["0"]);
    let host = world.start();
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert!(world.path("real/q.db").exists());
}

#[test]
fn native_code_in_a_hardened_process_finds_nothing() {
    let world = world("auto");
    for folder in ["mine", "other", "queue", "run"] {
        fs::create_dir(world.path(folder)).unwrap();
    }
    for file in ["mine/file", "other/file", "queue/q.db"] {
        fs::write(world.path(file), "secret").unwrap();
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/escape.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(world.path("mine/escape.so")).arg(source);
    assert!(compiler.status().unwrap().success(), "cc does not compile {source}");

    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "hostile::hardening::hardened_child", "--nocapture", "--test-threads=1"]);
    let output = child.env(CHILD, world.path("")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = printed.lines().find_map(|line| line.split_once("RESULT ")).map(|(_, result)| result);
    let result: serde_json::Value =
        serde_json::from_str(result.unwrap_or_else(|| panic!("the process has not told: {output:?}"))).unwrap();
    let achieved = |threads: &str| -> Vec<String> { serde_json::from_value(result[threads].clone()).unwrap() };
    let is_call = |deed: &String| !DEEDS[FILES].contains(&deed.as_str()) && deed != DEEDS[0];
    for threads in ["early", "process", "work", "other", "third"] {
        assert!(!achieved(threads).iter().any(is_call), "{threads}: {result}");
    }
    if result["files"].as_str().unwrap().contains("no Landlock") {
        announce("NOT RUN, limits on files of native code: THIS KERNEL HAS NO LANDLOCK");
        return;
    }
    let granted = ["read a granted folder", "read another consumer's granted folder"];
    assert_eq!(achieved("process"), [granted[0], "read the queue", granted[1]], "{result}");
    assert_eq!(achieved("work"), [granted[0]], "{result}");
    assert_eq!(achieved("other"), [granted[1]], "{result}");
    assert_eq!(achieved("third"), Vec::<String>::new(), "{result}");
}

#[test]
fn consumers_with_different_folders_both_work_in_a_hardened_host() {
    let world = world("auto");
    let read = command("main-reads-file").display().to_string();
    let consumer = |name: &str| {
        format!(
            "[consumers.{name}]\nchannel = '{name}'\nhandler = '{read}'\nretry = {{ requeues = 0, delays = 0 }}\n\
             allow.dirs = [{{ host = '{name}', guest = '/' }}]\n"
        )
    };
    world.config(&format!("{}{}", consumer("mine"), consumer("other")));
    for folder in ["mine", "other"] {
        fs::create_dir(world.path(folder)).unwrap();
        fs::write(world.path(&format!("{folder}/{folder}.txt")), "secret").unwrap();
    }
    let mut host = world.started();
    for name in ["mine", "other"] {
        world.send(name, ["mine.txt", "other.txt"]);
    }
    let lines = host.settled(4);
    for name in ["mine", "other"] {
        let of = lines.iter().filter(|line| line["consumer"] == name);
        let mut outcomes: Vec<_> = of.map(|line| line["outcome"].as_str().unwrap()).collect();
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["ack", "failed"], "each reads its own file, and not the other's: {lines:#?}");
    }
    assert_eq!(host.stop(), 0);
}

/// The fields of every thread of a host, as `/proc` has them.
fn threads(host: &Host, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", host.pid)).unwrap();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |status: String| status.lines().find_map(|line| Some(line.strip_prefix(field)?.trim().to_owned()));
    statuses.filter_map(value).collect()
}

#[test]
fn every_thread_of_a_host_is_hardened() {
    for (hardening, filtered) in [("auto", "2"), ("off", "0")] {
        let world = world(hardening);
        for folder in ["mine", "other"] {
            fs::create_dir(world.path(folder)).unwrap();
        }
        let mut host = world.start();
        host.wait_for(PATIENCE, |line| line["message"] == "consuming");
        let said = host.lines().into_iter().filter(|line| line["message"] == "hardening").count();
        assert_eq!(said, usize::from(hardening == "auto"), "one line says what is in force");
        for (field, wanted) in [("Seccomp:", filtered), ("NoNewPrivs:", if hardening == "auto" { "1" } else { "0" })] {
            let threads = threads(&host, field);
            assert!(threads.len() > 4 && threads.iter().all(|value| value == wanted), "{field} {threads:?}");
        }
        world.send("work", ["0"]);
        assert_eq!(host.settled(1)[0]["outcome"], "ack");
        assert_eq!(host.stop(), 0);
    }
}

/// The command as a user that is not root, with so few processes. `None`, said loudly, where this user cannot become another.
fn with_processes(world: &World, limit: u32, args: &[&str]) -> Option<Command> {
    // The kernel counts all processes of a user, so it is one of this test process's own. It reads what only root may.
    let user = (100_000 + std::process::id()).to_string();
    let other = ["--reuid", &user, "--clear-groups", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"];
    if !world.program("setpriv", &[&other[..], &["true"]].concat()).status().is_ok_and(|status| status.success()) {
        announce("NOT RUN: setpriv cannot become another user here; run the tests as root");
        return None;
    }
    let limit = format!("--nproc={limit}");
    let limited = ["prlimit", &limit, env!("CARGO_BIN_EXE_hostler")];
    Some(world.program("setpriv", &[&other[..], &limited, args].concat()))
}

#[test]
fn run_and_check_say_that_too_few_processes_make_consumers_share_threads() {
    let shared = "consumers with folders share threads: for threads of their own they need a limit of 32 processes, and it is 30";
    let cure = "raise the limit of processes to 32 or more";
    let world = world("auto");
    for folder in ["mine", "other"] {
        fs::create_dir(world.path(folder)).unwrap();
    }
    let Some(mut check) = with_processes(&world, 30, &["check"]) else { return };
    let said = Said::new(check.output().unwrap());
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains(&format!("hostler: warning: {shared}\n  cure: {cure}")), "{said:?}");
    let mut host = Host::start(with_processes(&world, 30, &["run"]).unwrap());
    let warning = host.wait_for(PATIENCE, |line| line["message"] == shared);
    assert_eq!(warning["level"], "WARN");
    assert!(warning["cure"].as_str().unwrap().starts_with(cure), "{warning}");
    world.send("work", ["0"]);
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);

    let said = Said::new(with_processes(&world, 32, &["check"]).unwrap().output().unwrap());
    assert!(said.code == 0 && !said.stderr.contains("share threads"), "{said:?}");

    let text = fs::read_to_string(world.path("hostler.toml")).unwrap();
    fs::write(world.path("hostler.toml"), text.replace("'auto'", "'require'")).unwrap();
    let said = Said::new(with_processes(&world, 30, &["check"]).unwrap().output().unwrap());
    assert_eq!(said.code, 70, "{said:?}");
    let mut host = Host::start(with_processes(&world, 30, &["run"]).unwrap());
    assert_eq!(host.wait_exit(PATIENCE), 70);
    let lines = host.lines();
    let refusal = lines.iter().find(|line| line["level"] == "ERROR").unwrap()["message"].as_str().unwrap();
    assert!(refusal.contains(shared) && refusal.contains(cure), "{refusal}");
    assert!(said.stderr.contains(refusal), "check says the same: {said:?}");
}
