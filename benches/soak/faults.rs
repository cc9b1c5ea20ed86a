//! Faults and restarts, one after another, at random times determined by a seed.

use std::time::Duration;

use fastrand::Rng;
use rusqlite::Connection;
use rustix::process::Signal;

use crate::Result;
use crate::clock::pause;
use crate::host::send_signal;
use crate::world::{Driver, World, lock};

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SIGTERM, followed by a new host.
    Restart,
    /// SIGKILL, followed by a new host.
    Kill,
    /// SIGSTOP to the host, followed by SIGCONT.
    Stop,
    /// Another process holds the write lock of the queue file.
    Lock,
    /// The proxy closes all connections, including new ones.
    Cut,
    /// SIGSTOP to the server, followed by SIGCONT. Connections are open, but not answered.
    Freeze,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [Self::Restart, Self::Kill, Self::Stop, Self::Lock, Self::Cut, Self::Freeze];

    /// Returns the name in the report and the plot.
    pub fn name(self) -> &'static str {
        match self {
            Self::Restart => "SIGTERM and restart",
            Self::Kill => "kill -9 and restart",
            Self::Stop => "host stopped (SIGSTOP)",
            Self::Lock => "queue file locked",
            Self::Cut => "connections cut",
            Self::Freeze => "server frozen",
        }
    }

    /// Returns true if a new host runs afterwards.
    pub fn restarts(self) -> bool {
        matches!(self, Self::Restart | Self::Kill)
    }
}

/// A fault that occurred, in seconds since the start of the run.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub kind: Kind,
    pub start: f64,
    pub end: f64,
    /// Time at which a message was settled again.
    pub recovered: f64,
    /// Exit code of the host, for a restart.
    pub code: Option<i32>,
}

/// Fraction of the run during which restarts may occur. The last host then lives long enough to judge its memory.
const RESTARTS: f64 = 0.6;

/// Minimum time between the last fault and the end of the run, in seconds.
const QUIET: f64 = 30.0;

/// Maximum time for a host to settle a message after a fault, in seconds.
const RECOVERY: f64 = 90.0;

/// Causes faults until shortly before the end of the run.
pub fn run(world: &World, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed.wrapping_add(1 << 32));
    let length = world.clock.length;
    // Causes about 20 faults in ten minutes, and about 80 in an hour.
    let gap = if length > 1_200.0 { 35.0 } else { 18.0 };
    let mut bag = Vec::new();
    loop {
        pause(gap * (0.5 + rng.f64()));
        let now = world.clock.now();
        if now > length - QUIET || world.is_over() {
            return Ok(());
        }
        let kind = choose(world.driver, now < length * RESTARTS, &mut bag, &mut rng);
        let start = world.clock.now();
        let code = cause(world, kind, &mut rng).map_err(|error| format!("{} at {start:.0} s: {error}", kind.name()))?;
        let end = world.clock.now();
        let recovered = recovery(world, end).map_err(|error| format!("{} at {start:.0} s: {error}", kind.name()))?;
        lock(&world.events)?.push(Event { kind, start, end, recovered, code });
    }
}

/// Returns the next kind from a bag with each kind once. An empty bag is refilled, so that no kind is left out by chance.
fn choose(driver: Driver, may_restart: bool, bag: &mut Vec<Kind>, rng: &mut Rng) -> Kind {
    loop {
        match bag.pop() {
            Some(kind) if may_restart || !kind.restarts() => return kind,
            Some(_) => {}
            None => {
                bag.extend([Kind::Restart, Kind::Kill, Kind::Stop]);
                match driver {
                    Driver::Embedded => bag.push(Kind::Lock),
                    Driver::Sqs => bag.extend([Kind::Cut, Kind::Freeze]),
                }
                rng.shuffle(bag);
            }
        }
    }
}

/// Causes a fault and ends it. Returns the exit code of a host that ended.
fn cause(world: &World, kind: Kind, rng: &mut Rng) -> Result<Option<i32>> {
    let seconds = |longest: f64, rng: &mut Rng| 1.0 + (longest - 1.0) * rng.f64();
    match kind {
        Kind::Restart | Kind::Kill => {
            let code = world.end(if kind == Kind::Kill { Signal::KILL } else { Signal::TERM })?;
            world.start()?;
            return Ok(Some(code));
        }
        Kind::Stop => {
            let pid = world.pid()?.ok_or("no host runs")?;
            // The stopped host may hold the lock of the queue file.
            let _closed = (world.driver == Driver::Embedded).then(|| lock(&world.gate)).transpose()?;
            send_signal(pid, Signal::STOP)?;
            pause(seconds(14.0, rng));
            send_signal(pid, Signal::CONT)?;
        }
        Kind::Lock => {
            let _closed = lock(&world.gate)?;
            let holder = Connection::open(world.path("queue.db"))?;
            holder.busy_timeout(Duration::from_secs(10))?;
            holder.execute_batch("BEGIN IMMEDIATE")?;
            pause(seconds(12.0, rng));
            holder.execute_batch("ROLLBACK")?;
        }
        Kind::Cut => {
            let proxy = world.proxy.as_ref().ok_or("no proxy")?;
            proxy.cut();
            pause(seconds(12.0, rng));
            proxy.restore();
        }
        Kind::Freeze => {
            let server = world.server.as_ref().ok_or("no server")?;
            let _closed = lock(&world.gate)?;
            send_signal(server.pid(), Signal::STOP)?;
            pause(seconds(12.0, rng));
            send_signal(server.pid(), Signal::CONT)?;
        }
    }
    Ok(None)
}

/// Waits until a message is settled again. Returns the time of the settlement.
fn recovery(world: &World, end: f64) -> Result<f64> {
    let settled = || -> Result<u64> { Ok(lock(&world.tally)?.settled) };
    let before = settled()?;
    while settled()? == before {
        if world.clock.now() - end > RECOVERY {
            return Err(format!("nothing was settled for {RECOVERY} s after it").into());
        }
        pause(0.05);
    }
    Ok(world.clock.now())
}
