//! `hostler dev`: builds, runs on a throw-away queue, swaps on a change, and leaves nothing behind.

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::fs::symlink;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use rustix::process::{Signal, kill_process};

use crate::support::hostler::{PATIENCE, SECOND, Said, World, pid, until};
use crate::support::toolchains::programs;

/// A session and everything that it and its builds have printed.
struct Session {
    child: Child,
    stdin: ChildStdin,
    printed: Arc<Printed>,
}

#[derive(Default)]
struct Printed {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

impl Printed {
    fn read(self: &Arc<Self>, pipe: impl Read + Send + 'static) {
        let printed = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                printed.lines.lock().unwrap().push(line);
                printed.grown.notify_all();
            }
        });
    }
}

impl Session {
    fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let printed = Arc::<Printed>::default();
        printed.read(child.stdout.take().unwrap());
        printed.read(child.stderr.take().unwrap());
        Self { stdin: child.stdin.take().unwrap(), child, printed }
    }

    /// Waits for a line that fits, from the line at `from` on; returns it and the place after it.
    fn line(&self, from: usize, what: &str, fits: impl Fn(&str) -> bool) -> (String, usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.printed.lines.lock().unwrap();
        loop {
            let found = lines.iter().enumerate().skip(from).find(|(_, line)| fits(line));
            if let Some((place, line)) = found {
                return (line.clone(), place + 1);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} did not come:\n{}", lines.join("\n"));
            lines = self.printed.grown.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Waits until a handler is ready; returns the place after that line.
    fn ready(&self, from: usize) -> usize {
        self.line(from, "a handler that is ready", |line| line.ends_with(" is ready")).1
    }

    /// Types a line; returns its outcome.
    fn outcome(&mut self, body: &str) -> String {
        let from = self.printed.lines.lock().unwrap().len();
        writeln!(self.stdin, "{body}").unwrap();
        self.line(from, "an outcome", |line| line.contains(" ms")).0
    }

    /// The process of the running host.
    fn host(&self) -> u32 {
        let ours = format!("--end-with\0{}\0", self.child.id());
        let of = |entry: fs::DirEntry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).contains(&ours).then_some(id)
        };
        fs::read_dir("/proc").unwrap().flatten().find_map(of).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a process is gone, or waits for its parent to notice.
fn gone(id: u32) {
    until("the host is gone", PATIENCE, || {
        let state = fs::read_to_string(format!("/proc/{id}/stat")).ok();
        state.is_none_or(|state| state.contains(") Z ")).then_some(())
    });
}

/// Sessions that a kill has ended leave their folders; here, that is within the world.
fn temporary(world: &World) -> Vec<String> {
    let entries = fs::read_dir(world.path("tmp")).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn world(config: &str) -> World {
    let world = World::with("", Vec::new(), config);
    fs::create_dir(world.path("tmp")).unwrap();
    world
}

#[test]
fn a_project_is_built_run_and_swapped_on_a_change() {
    let world = world("");
    fs::create_dir(world.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_hostler"), world.path("bin/hostler")).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let first = [world.path("bin"), programs()];
    let path = std::env::join_paths(first.into_iter().chain(std::env::split_paths(&path))).unwrap();
    assert_eq!(world.output(&["new", "greet-all", "--lang", "c"]).code, 0);
    let project = world.path("greet-all");
    let source = project.join("handler.c");
    let mut command = world.command(&["dev"]);
    command.current_dir(&project).env("PATH", &path).env("TMPDIR", world.path("tmp"));
    let mut session = Session::start(command);
    let (other, _) = session.line(0, "the command for another terminal", |line| line.contains("another terminal"));
    session.ready(0);

    let reply = session.outcome(r#"{"name": "Ada"}"#);
    assert!(reply.starts_with("reply ") && reply.ends_with(" ms: Hello, Ada!"), "{reply}");
    let dead = session.outcome("Ada");
    assert!(dead.starts_with("dead-letter ") && dead.contains(" ms: the body is not a JSON object"), "{dead}");

    let (_, other) = other.split_once("another terminal: ").unwrap();
    let from = session.printed.lines.lock().unwrap().len();
    let mut elsewhere = world.program("sh", &["-c", other]);
    let sent = Said::new(elsewhere.env("PATH", &path).output().unwrap());
    assert_eq!(sent.code, 0, "{sent:?}");
    session.line(from, "the outcome of the other terminal's message", |line| line.starts_with("dead-letter "));
    assert!(!project.join("hostler.db").exists(), "the queue of the project is used");

    let text = fs::read_to_string(&source).unwrap();
    let changed = text.replace("Hello, ", "Goodbye, ");
    fs::write(&source, &changed).unwrap();
    let from = session.ready(from);
    let reply = session.outcome(r#"{"name": "Ada"}"#);
    assert!(reply.ends_with(": Goodbye, Ada!"), "{reply}");

    fs::write(&source, format!("{changed}\nint broken(")).unwrap();
    let (_, after) = session.line(from, "the failed build", |line| line.contains("the last good build keeps running"));
    let lines = session.printed.lines.lock().unwrap()[from..after].join("\n");
    assert!(lines.contains("handler.c:") && lines.contains("error:"), "{lines}");
    let reply = session.outcome(r#"{"name": "Ada"}"#);
    assert!(reply.ends_with(": Goodbye, Ada!"), "{reply}");

    let host = session.host();
    session.signal(Signal::INT);
    assert_eq!(session.exit_code(), Some(0));
    gone(host);
    assert_eq!(temporary(&world), Vec::<String>::new());
}

const ECHO: &str = "[consumers.one]\nchannel = 'one'\nhandler = 'echo.wat'\nreply = 'stdout'";

#[test]
fn without_a_build_the_handler_is_watched_and_a_bad_one_not_swapped_in() {
    let world = world(ECHO);
    fs::copy(world.path("guests/main-echoes.wat"), world.path("echo.wat")).unwrap();
    let mut command = world.command(&["dev"]);
    command.env("TMPDIR", world.path("tmp"));
    let mut session = Session::start(command);
    let from = session.ready(0);
    assert!(session.outcome("hello").ends_with(" ms: hello"));
    fs::write(world.path("echo.wat"), "(module)").unwrap();
    let (_, after) = session.line(from, "the refusal", |line| line.contains("the last good build keeps running"));
    let told = session.printed.lines.lock().unwrap()[from..after].join("\n");
    assert!(told.contains("the handlers do not load") && told.contains("echo.wat"), "{told}");
    assert!(session.outcome("again").ends_with(" ms: again"));
    session.signal(Signal::TERM);
    assert_eq!(session.exit_code(), Some(0));
    assert_eq!(temporary(&world), Vec::<String>::new());
}

#[test]
fn a_long_compilation_is_announced_and_only_sources_start_another() {
    let world =
        world("[consumers.one]\nchannel = 'one'\nhandler = 'src/large.wat'\n[dev]\nbuild = 'true'\nwatch = ['src']");
    fs::create_dir(world.path("src")).unwrap();
    let data = "x".repeat(3 << 20);
    let large =
        format!("(module (memory (export \"memory\") 64) (data (i32.const 0) \"{data}\") (func (export \"_start\")))");
    fs::write(world.path("src/large.wat"), &large).unwrap();
    let mut command = world.command(&["dev"]);
    command.env("TMPDIR", world.path("tmp"));
    let mut session = Session::start(command);
    let begins = |line: &str| line.starts_with("hostler: compiling a large handler") && line.contains("large.wat");
    let (_, from) = session.line(0, "the announcement", begins);
    let (_, from) = session.line(from, "its end", |line| line.starts_with("hostler: compiled handler="));
    let from = session.ready(from);

    // Of several changes, the first by name is told. What is no source would come before the handler.
    for name in ["README.md", ".large.wat.swp", "large.wat~", "#large.wat#"] {
        fs::write(world.path("src").join(name), "x").unwrap();
    }
    fs::write(world.path("src/large.wat"), large + "\n").unwrap();
    let (changed, from) = session.line(from, "a change", |line| line.ends_with(" changed"));
    assert_eq!(changed, "hostler: src/large.wat changed");
    session.ready(from);
    session.signal(Signal::INT);
    assert_eq!(session.exit_code(), Some(0));
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    let world = world("[consumers.work]\nchannel = 'work'\nhandler = 'guests/run-word.wat'");
    let mut command = world.command(&["dev"]);
    command.env("TMPDIR", world.path("tmp"));
    let mut session = Session::start(command);
    session.ready(0);
    writeln!(session.stdin, "w50000").unwrap();
    let health_file = world.path("tmp").join(&temporary(&world)[0]).join("health.json");
    until("the message is in flight", PATIENCE, || {
        fs::read_to_string(&health_file).ok()?.contains("\"in_flight\":1,").then_some(())
    });
    let asked = Instant::now();
    session.signal(Signal::INT);
    session.line(0, "the notice", |line| line.contains("press Ctrl-C again to end at once"));
    // A closed terminal may send several of these.
    session.signal(Signal::HUP);
    session.signal(Signal::TERM);
    assert_eq!(session.exit_code(), Some(143));
    assert!(asked.elapsed() < 5 * SECOND, "the grace of the host: {:?}", asked.elapsed());
    assert_eq!(temporary(&world), Vec::<String>::new());
}

#[test]
fn a_session_that_is_killed_takes_its_host_along() {
    let world = world(ECHO);
    fs::copy(world.path("guests/main-echoes.wat"), world.path("echo.wat")).unwrap();
    let mut command = world.command(&["dev"]);
    command.env("TMPDIR", world.path("tmp"));
    let mut session = Session::start(command);
    session.ready(0);
    let host = session.host();
    session.signal(Signal::KILL);
    assert_eq!(session.exit_code(), None);
    gone(host);
    assert_eq!(temporary(&world).len(), 1);
    let mut command = world.command(&["dev"]);
    command.env("TMPDIR", world.path("tmp"));
    let mut next = Session::start(command);
    next.ready(0);
    assert_eq!(temporary(&world).len(), 1, "the next session has removed its folder");
    next.signal(Signal::INT);
    assert_eq!(next.exit_code(), Some(0));
    assert_eq!(temporary(&world), Vec::<String>::new());
}

#[test]
fn a_config_that_is_bad_at_the_start_ends_the_session() {
    let world = world("[consumers.one]\nchannel = 'one'");
    let mut command = world.command(&["dev"]);
    let said = Said::new(command.env("TMPDIR", world.path("tmp")).output().unwrap());
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.stderr.contains("consumers.one.handler"), "{said:?}");
    assert_eq!(temporary(&world), Vec::<String>::new());
}
