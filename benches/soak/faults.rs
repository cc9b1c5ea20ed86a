//! Faults and restarts, one after the other, at seeded random times.

use std::time::Duration;

use fastrand::Rng;
use rusqlite::Connection;
use rustix::process::Signal;

use crate::Result;
use crate::clock::pause;
use crate::host::send_signal;
use crate::world::{Driver, World, lock};

/// What is done to a host or its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SIGTERM, and a new host.
    Restart,
    /// SIGKILL, and a new host.
    Kill,
    /// SIGSTOP to the host, and later SIGCONT.
    Stop,
    /// Another process holds the write lock of the queue's file.
    Lock,
    /// The proxy breaks all connections, and every later one.
    Cut,
    /// SIGSTOP to the server, and later SIGCONT: connections are open, and nothing answers.
    Freeze,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Restart, Self::Kill, Self::Stop, Self::Lock, Self::Cut, Self::Freeze];

    /// What it is called in the report and its plot.
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

    /// Whether the host is another one afterwards.
    pub fn restarts(self) -> bool {
        matches!(self, Self::Restart | Self::Kill)
    }
}

/// What was done, in seconds since the run began.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub kind: Kind,
    pub start: f64,
    pub end: f64,
    /// When a message was settled again.
    pub recovered: f64,
    /// The host's exit code, for a restart.
    pub code: Option<i32>,
}

/// Restarts come in the first part of a run only, so that the last host lives long enough to judge its memory.
const RESTARTS: f64 = 0.6;

/// How long before the end of a run the last fault comes, in seconds.
const QUIET: f64 = 30.0;

/// How long a host may take to settle a message again, in seconds.
const RECOVERY: f64 = 90.0;

/// Makes faults until shortly before the run's time is over.
pub fn run(world: &World, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed.wrapping_add(1 << 32));
    let length = world.clock.length;
    // About twenty in ten minutes, and some eighty in an hour.
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

/// The next out of a bag that holds each kind once, and is filled anew when it is empty: no kind is left out by chance.
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

/// Makes a fault and takes it back; the exit code of a host that ended.
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
            // It may have the queue's file locked.
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

/// Waits until a message is settled again; when that was.
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
