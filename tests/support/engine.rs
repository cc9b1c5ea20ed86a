//! A container engine for tests, and containers of the image that the Dockerfile builds.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::hostler::{Depth, PATIENCE, Said, announce, until};

/// Image that `tests/image.sh` builds.
pub const IMAGE: &str = "hostler:test";

/// Builds the image in a shell that ends with its standard input, and thus never outlives the test process.
const LIVE: &str = "bash tests/image.sh >/dev/null && printf '%s\\n' \"$DOCKER_HOST\" && read -r _";

/// A running engine that has built [`IMAGE`].
pub struct Engine {
    /// Address of the engine, in the format of `DOCKER_HOST`.
    pub host: String,
    _shell: Child,
    _alive: ChildStdin,
}

impl Engine {
    /// Returns the engine that all tests of this process share. `None`: no engine can start, which is announced on standard
    /// error.
    pub fn get() -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Engine, String>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(engine) => Some(engine),
            Err(why) => {
                announce(&format!("NOT RUN, a test in a container: {why}"));
                None
            }
        }
    }

    fn start() -> Result<Self, String> {
        let mut shell = Command::new("bash");
        shell.args(["tests/engine.sh", "bash", "-c", LIVE]).current_dir(env!("CARGO_MANIFEST_DIR"));
        shell.env("HOSTLER_BIN", env!("CARGO_BIN_EXE_hostler"));
        let shell = shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = shell.spawn().map_err(|error| error.to_string())?;
        let (alive, stdout) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let stderr = BufReader::new(shell.stderr.take().unwrap());
        // Standard error is read to its end, so that the build never blocks on a full pipe.
        let said = std::thread::spawn(move || stderr.lines().map_while(Result::ok).collect::<Vec<_>>().join("\n"));
        let mut host = String::new();
        BufReader::new(stdout).read_line(&mut host).unwrap();
        if host.trim().is_empty() {
            drop(alive);
            let code = shell.wait().unwrap().code();
            let said = said.join().unwrap();
            assert_eq!(code, Some(77), "the image could not be built:\n{said}");
            return Err(said);
        }
        Ok(Self { host: host.trim().into(), _shell: shell, _alive: alive })
    }

    /// Creates a command of the engine's client.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/docker");
        command.args(args).env("DOCKER_HOST", &self.host).stdin(Stdio::null());
        command
    }

    /// Runs a client command to its end.
    pub fn said(&self, args: &[&str]) -> Said {
        Said::new(self.command(args).output().unwrap())
    }

    /// Runs a client command that must succeed. Returns its standard output.
    pub fn docker(&self, args: &[&str]) -> String {
        let said = self.said(args);
        assert_eq!(said.code, 0, "docker {args:?}: {said:?}");
        said.stdout.trim().to_owned()
    }
}

/// A container of the image, with its own config and this repository's guests under `/guests`. Dropping this value removes the
/// container.
pub struct Container {
    engine: &'static Engine,
    /// Id of the container.
    pub id: String,
    folder: TempDir,
}

impl Container {
    /// Runs a container of [`IMAGE`] with `docker run`. `options` precede the image.
    pub fn run(engine: &'static Engine, options: &[&str], config: &str) -> Self {
        Self::of(engine, IMAGE, options, config)
    }

    /// Runs a container of another image.
    pub fn of(engine: &'static Engine, image: &str, options: &[&str], config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        fs::write(&file, config).unwrap();
        let guests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests");
        let (file, guests) =
            (format!("{}:/etc/hostler/hostler.toml:ro", file.display()), format!("{guests}:/guests:ro"));
        let mounts = ["run", "--detach", "--volume", &file, "--volume", &guests];
        let id = engine.docker(&[&mounts[..], options, &[image]].concat());
        Self { engine, id, folder }
    }

    /// Waits until the host in the container consumes.
    pub fn consuming(self) -> Self {
        self.wait_for("consuming", |line| line["message"] == "consuming");
        self
    }

    /// Runs a program in the container.
    pub fn exec(&self, program: &[&str]) -> Said {
        self.engine.said(&[&["exec", &self.id], program].concat())
    }

    /// Sends messages from inside the container.
    pub fn send<B: AsRef<str>>(&self, channel: &str, bodies: impl IntoIterator<Item = B>) {
        let lines: String = bodies.into_iter().map(|body| format!("{}\n", body.as_ref())).collect();
        let mut send = self.engine.command(&["exec", "-i", &self.id, "/hostler", "send", channel, "--lines", "-"]);
        let mut send = send.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        send.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let said = Said::new(send.wait_with_output().unwrap());
        assert_eq!(said.code, 0, "{said:?}");
    }

    /// Returns the depth of a channel.
    pub fn depth(&self, channel: &str) -> Depth {
        let said = self.exec(&["/hostler", "queues", "--json", channel]);
        assert_eq!(said.code, 0, "{said:?}");
        Depth::of(&serde_json::from_str::<Value>(&said.stdout).unwrap()[0])
    }

    /// Waits until `count` messages of a channel are in flight.
    pub fn in_flight(&self, channel: &str, count: u64) {
        until("they are in flight", PATIENCE, || (self.depth(channel).in_flight == count).then_some(()));
    }

    /// Waits until the health file shows this state.
    pub fn health_file(&self, state: &str) {
        until(&format!("it is {state}"), PATIENCE, || {
            let said = self.exec(&["/hostler", "check-consumer-health", "--json"]).stdout;
            let verdict: Value = serde_json::from_str(&said).ok()?;
            (verdict["report"]["consumers"][0]["state"] == state).then_some(())
        });
    }

    /// Returns the `.State` of the container, as the engine reports it.
    pub fn state(&self) -> Value {
        serde_json::from_str(&self.engine.docker(&["inspect", "--format", "{{json .State}}", &self.id])).unwrap()
    }

    /// Waits until `.State.Health` has this status. Returns the elapsed time.
    pub fn health(&self, status: &str) -> Duration {
        let begun = Instant::now();
        let mut last = Value::Null;
        until(&format!("health is {status}"), PATIENCE, || {
            last = self.state();
            assert_eq!(last["Running"], true, "{last} {:?}", self.lines());
            (last["Health"]["Status"] == status).then_some(())
        });
        begun.elapsed()
    }

    /// Returns the log lines so far. A line that is not JSON becomes a string.
    pub fn lines(&self) -> Vec<Value> {
        let lines = self.engine.said(&["logs", &self.id]).stderr;
        lines.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::String(line.into()))).collect()
    }

    /// Waits for the first log line that fits, and returns it.
    pub fn wait_for(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(what, PATIENCE, || {
            let lines = self.lines();
            let found = lines.iter().find(|line| fits(line)).cloned();
            assert!(found.is_some() || self.state()["Running"] == true, "{what}: it has ended: {lines:#?}");
            found
        })
    }

    /// Waits until `count` messages are settled in total. Returns the log lines of all settled messages.
    pub fn settled(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} are settled"), PATIENCE, || {
            let mut lines = self.lines();
            lines.retain(|line| line.get("outcome").is_some());
            (lines.len() >= count).then_some(lines)
        })
    }

    /// Sends a signal to the first process of the container.
    pub fn signal(&self, signal: &str) {
        self.engine.docker(&["kill", "--signal", signal, &self.id]);
    }

    /// Starts the stopped container again.
    pub fn restart(&self) {
        self.engine.docker(&["start", &self.id]);
    }

    /// Waits for the end of the container. Returns the exit code.
    pub fn exit_code(&self) -> i64 {
        self.engine.docker(&["wait", &self.id]).parse().unwrap()
    }

    /// Stops the container with `docker stop`. Returns the exit code and the elapsed time.
    pub fn stop(&self) -> (i64, Duration) {
        let begun = Instant::now();
        self.engine.docker(&["stop", "--time", "30", &self.id]);
        let took = begun.elapsed();
        (self.exit_code(), took)
    }

    /// Returns the folder on the machine that contains the config.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.engine.said(&["rm", "--force", "--volumes", &self.id]);
    }
}
