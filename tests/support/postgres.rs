//! A PostgreSQL server for tests, and a pgbouncer in front of it. Needs only the standard library, so that any crate can include it.
#![allow(dead_code)]

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for a server to start or stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// User and group `nobody`: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

/// Folder with a folder of programs for each major version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Runs the command `$@`, and ends it when the shell's standard input ends: when this process closes it or dies. A frozen server is
/// woken first. `$0`: a folder, which gets the file `pid`, and the file `output`. `$1`: the signal that ends the command.
const KEEPER: &str = r#"
    signal=$1; shift
    "$@" >>"$0/output" 2>&1 </dev/null &
    pid=$!
    echo $pid >"$0/pid.new" && mv "$0/pid.new" "$0/pid"
    { while read -r _; do :; done; true; }
    kill -CONT $pid $(cat /proc/$pid/task/$pid/children 2>/dev/null) 2>/dev/null
    kill -$signal $pid 2>/dev/null
    wait $pid
    [ -e "$0/keep" ] || rm -rf "$0"
"#;

/// A running server on a port of its own. Users need no password. Dropping this value ends the server. So does the end of this process.
pub struct Postgres {
    keeper: Option<Child>,
    port: u16,
    folder: PathBuf,
}

impl Postgres {
    /// Starts a server. Waits until it answers.
    pub fn start() -> Self {
        Self::with("")
    }

    /// Starts a server with further lines of `postgresql.conf`. Waits until it answers.
    pub fn with(settings: &str) -> Self {
        let folder = new_folder();
        let data = folder.join("data");
        let mut init = program("initdb");
        init.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        succeed(&mut init);
        let port = free_port();
        let own = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 200\nshared_buffers = 64MB\n\
             {settings}\n"
        );
        let conf = data.join("postgresql.conf");
        fs::OpenOptions::new().append(true).open(conf).unwrap().write_all(own.as_bytes()).unwrap();
        let mut server = Self { keeper: None, port, folder };
        server.launch();
        server
    }

    /// Returns the server that all tests of this process share. Each test makes a [`Self::database`] of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| {
            let server = Self::start();
            // A static is never dropped. Without this file, the keeper removes the folder at the end of this process.
            fs::remove_file(server.folder.join("keep")).unwrap();
            server
        })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder with the server's data.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Creates a database with a new name. Returns its URL.
    pub fn database(&self) -> String {
        self.url(&self.new_database())
    }

    /// Creates a database with a new name. Returns the name.
    pub fn new_database(&self) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs SQL as the superuser, which must succeed. Returns the rows, one on each line, with `|` between their columns.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        let mut psql = program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
        psql.args(["-p", &self.port.to_string(), "-d", database, "-c", sql]);
        succeed(&mut psql).trim_end().to_owned()
    }

    /// Ends the server in an orderly way, with its connections.
    pub fn stop(&mut self) {
        self.signal("-INT");
        until("the server ends", || has_ended(&self.folder));
        self.ended();
    }

    /// Kills all processes of the server at once, like a power failure that keeps the disk.
    pub fn kill(&mut self) {
        let ids = self.processes();
        // The first process must not be there to start others.
        for id in &ids {
            send("-STOP", &[*id]);
        }
        let ids = self.processes();
        send("-KILL", &ids);
        self.ended();
        // A server does not start while a process of the last one still has its shared memory.
        until("all processes are gone", || ids.iter().all(|id| is_gone(*id)));
    }

    /// Starts the server again, after [`Self::stop`] or [`Self::kill`]. Waits until it answers.
    pub fn restart(&mut self) {
        assert!(self.keeper.is_none(), "the server still runs");
        self.launch();
    }

    /// Stops all processes of the server, with its connections open, until [`Self::thaw`].
    pub fn freeze(&self) {
        send("-STOP", &self.processes());
    }

    /// Lets all processes of the server go on.
    pub fn thaw(&self) {
        send("-CONT", &self.processes());
    }

    /// Closes all connections of clients to a database.
    pub fn cut(&self, database: &str) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = ";
        self.psql("postgres", &format!("{sql}'{database}'"));
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    fn launch(&mut self) {
        let _ = fs::remove_file(self.folder.join("pid"));
        fs::write(self.folder.join("keep"), "").unwrap();
        let program = bin().join("postgres");
        self.keeper = Some(keeper(&self.folder, "QUIT", &program, &["-D".as_ref(), self.data().as_os_str()]));
        until("the server answers", || {
            assert!(!has_ended(&self.folder), "PostgreSQL did not start:\n{}", self.log());
            self.answers()
        });
    }

    fn answers(&self) -> bool {
        let mut ready = program("pg_isready");
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        ready.status().is_ok_and(|status| status.success())
    }

    /// Returns the ids of the server's processes, the first one first.
    fn processes(&self) -> Vec<u32> {
        let main = self.pid();
        let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap_or_default();
        [main].into_iter().chain(children.split_whitespace().map(|id| id.parse().unwrap())).collect()
    }

    fn pid(&self) -> u32 {
        let file = self.folder.join("pid");
        until("the process begins", || file.exists());
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    fn signal(&self, signal: &str) {
        send(signal, &[self.pid()]);
    }

    /// Waits for the end of the server's first process.
    fn ended(&mut self) {
        let Some(mut keeper) = self.keeper.take() else { return };
        drop(keeper.stdin.take());
        keeper.wait().unwrap();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.folder.join("keep"));
        self.ended();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A running pgbouncer in transaction mode, on a port of its own. Dropping this value ends it. So does the end of this process.
pub struct PgBouncer {
    keeper: Child,
    port: u16,
}

impl PgBouncer {
    /// Starts pgbouncer in front of a server. `connections`: number of connections to each database. Waits until it listens.
    pub fn start(server: &Postgres, connections: usize) -> Self {
        let (folder, port) = (new_folder(), free_port());
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 200\nunix_socket_dir =\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.port
        );
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, settings).unwrap();
        let keeper = keeper(&folder, "KILL", Path::new("/usr/sbin/pgbouncer"), &[file.as_os_str()]);
        until("pgbouncer listens", || {
            let output = || fs::read_to_string(folder.join("output")).unwrap_or_default();
            assert!(!has_ended(&folder), "pgbouncer did not start:\n{}", output());
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        Self { keeper, port }
    }

    /// Returns the URL of a database through pgbouncer.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Starts a program that ends with this process, and writes its output into the folder.
fn keeper(folder: &Path, signal: &str, program: &Path, args: &[&std::ffi::OsStr]) -> Child {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", KEEPER]).arg(folder).arg(signal).arg(program).args(args);
    unprivileged(&mut command).env_remove("PGDATA").current_dir("/");
    // Signals to the group of the tests, such as Ctrl-C's, must not come between.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Returns a command for a program of PostgreSQL.
fn program(name: &str) -> Command {
    let mut command = Command::new(bin().join(name));
    unprivileged(&mut command).current_dir("/").stdin(Stdio::null());
    command
}

/// Lets a command run as `nobody` if this process runs as root.
fn unprivileged(command: &mut Command) -> &mut Command {
    if is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|itself| itself.uid() == 0)
}

/// Returns the folder with the programs of the newest version.
fn bin() -> PathBuf {
    let versions =
        fs::read_dir(VERSIONS).unwrap_or_else(|error| panic!("PostgreSQL is not installed: {VERSIONS}: {error}"));
    let versions = versions.map(|version| version.unwrap().path().join("bin"));
    let number = |bin: &Path| bin.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter(|bin| bin.join("postgres").exists()).max_by_key(|bin| number(bin));
    newest.unwrap_or_else(|| panic!("PostgreSQL is not installed: {VERSIONS} has no bin/postgres"))
}

/// Creates a folder that the server's user owns.
fn new_folder() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let id = std::process::id();
    let folder = std::env::temp_dir().join(format!("hostler-pg-{id}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    folder
}

/// Returns `true` if the process of a keeper has begun and ended.
fn has_ended(folder: &Path) -> bool {
    let Ok(id) = fs::read_to_string(folder.join("pid")) else { return false };
    is_gone(id.trim().parse().unwrap())
}

fn is_gone(process: u32) -> bool {
    !fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Runs a command, which must succeed. Returns its output.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Sends a signal to processes. Ignores those that have ended.
fn send(signal: &str, ids: &[u32]) {
    let script = format!("kill {signal} {} 2>/dev/null", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
}

/// Waits until the condition holds.
fn until(event: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {event}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
