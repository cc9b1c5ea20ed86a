//! Runtimes on which guests run. Each consumer with granted folders has its own set of runtimes. All other consumers
//! share one set.
//!
//! A thread that has been restricted to certain files can never access other files again. Therefore, consumers with
//! folders do not share threads. Even a guest that escapes from its sandbox cannot access the folders of another
//! consumer, because the kernel restricts its thread. A file operation that hangs blocks its thread until the process
//! ends. The blocked thread belongs to one consumer, so other consumers lose no thread.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

use super::resources::{Machine, SLOTS, Threads, TooFewProcesses};
use hostler_config::{Config, Consumer};
use hostler_handler::{Beyond, Pools};

/// Number of times that a thread of the fast pool polls guests between two checks of timers and connections. Each poll
/// can last up to one epoch tick, but few polls of the fast pool last that long. Until the next check, deadlines of
/// hooks and timers of guests are delayed. More frequent checks would be expensive, because a check costs a tenth of
/// the work of a small guest.
const FAST_POLLS_PER_LOOK: u32 = 16;

/// Number of times that a thread of the background pool polls guests between two checks of timers and connections. The
/// number is lower than that of the fast pool, because every poll in the background pool lasts a whole epoch tick.
const BACKGROUND_POLLS_PER_LOOK: u32 = 4;

/// Limit on the file threads of each runtime of a consumer with folders. File threads access files for guests. If the
/// consumer has more slots than this limit, one file thread per slot is allowed instead. More threads would not make a
/// disk faster. The limit also bounds the number of threads that hanging file operations can block.
const FILES: usize = 64;

/// All runtimes on which guests run.
pub struct Guests {
    sets: Vec<Set>,
}

/// A set of runtimes, with the consumers that share the set.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Indexes of the consumers in the config.
    pub consumers: Vec<usize>,
    /// Runtimes of the set. They run guests of these consumers only.
    pub runtimes: Vec<Handle>,
    /// Maximum number of file threads per runtime.
    pub files: usize,
}

impl Guests {
    /// Starts the runtimes. If the process limit is too low for a separate set per consumer with folders, all consumers share one
    /// set.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(config: &Config, threads: Threads) -> io::Result<Self> {
        let mut groups = groups(&config.consumers);
        if threads.sets < groups.len() {
            groups = vec![(0..config.consumers.len()).collect()];
        }
        let start = |consumers: Vec<usize>| {
            let all: Vec<_> = consumers.iter().filter_map(|place| config.consumers.get(*place)).collect();
            let threads = match &*all {
                [alone] if has_folders(alone) => of_one(alone, threads),
                _ => threads,
            };
            Set::start(threads, consumers)
        };
        Ok(Self { sets: groups.into_iter().map(start).collect::<io::Result<_>>()? })
    }

    /// Returns the pools of each consumer, in the order of the config.
    pub fn pools(&self) -> Vec<Pools> {
        let mut pools: Vec<_> = self.sets.iter().flat_map(Set::pools).collect();
        pools.sort_by_key(|(place, _)| *place);
        pools.into_iter().map(|(_, pools)| pools).collect()
    }

    /// Returns the sets of runtimes, each with the consumers that share the set.
    pub fn shared(&self) -> Vec<Shared> {
        let of = |set: &Set| Shared {
            consumers: set.consumers.clone(),
            runtimes: set.all().map(|runtime| runtime.handle().clone()).collect(),
            files: set.files,
        };
        self.sets.iter().map(of).collect()
    }

    /// Shuts the runtimes down. Does not wait for blocked host calls, such as a read from a pipe. The guests of these calls have
    /// already ended.
    pub fn shut_down(self) {
        let all = self.sets.into_iter().flat_map(|set| [Some(set.first), set.others, set.background]);
        all.flatten().for_each(Runtime::shutdown_background);
    }
}

/// Returns the number of sets of runtimes that these consumers should have. If the process limit is too low for this
/// number, they share one set instead.
pub fn sets(consumers: &[Consumer]) -> usize {
    groups(consumers).len()
}

/// Returns the shortage if the process limit is too low for a separate set per consumer with folders. All consumers then share
/// one set.
pub fn too_few_processes(config: &Config, machine: &Machine) -> Option<TooFewProcesses> {
    TooFewProcesses::of(machine, sets(&config.consumers))
}

/// Groups the consumers by set of runtimes. Each group contains indexes into `consumers`. Each consumer with folders forms its
/// own group.
fn groups(consumers: &[Consumer]) -> Vec<Vec<usize>> {
    let places = |wanted: bool| {
        let fits = move |(_, consumer): &(usize, &Consumer)| has_folders(consumer) == wanted;
        consumers.iter().enumerate().filter(fits).map(|(place, _)| place)
    };
    let together: Vec<_> = places(false).collect();
    let together = (!together.is_empty()).then_some(together);
    together.into_iter().chain(places(true).map(|place| vec![place])).collect()
}

fn has_folders(consumer: &Consumer) -> bool {
    !consumer.allow.dirs.is_empty()
}

/// Returns the thread counts for the set of a single consumer. The set needs at most one guest thread per slot and one for the
/// `state-changed` hook. Further guest threads would be idle.
fn of_one(consumer: &Consumer, threads: Threads) -> Threads {
    let slots = consumer.concurrency.unwrap_or(SLOTS).saturating_add(1);
    Threads {
        guests: threads.guests.min(slots),
        background: threads.background.min(slots),
        guests_blocking: threads.guests_blocking.min(slots.max(FILES)),
        ..threads
    }
}

/// A set of runtimes.
struct Set {
    /// Indexes of the consumers in the config.
    consumers: Vec<usize>,
    /// First thread of the fast pool.
    first: Runtime,
    /// Remaining threads of the fast pool. `None`: the pool has only one thread. Without a background pool, the fast
    /// pool always has only one thread.
    others: Option<Runtime>,
    /// Background pool. `None`: no threads are available for it.
    background: Option<Runtime>,
    /// Maximum number of file threads per runtime.
    files: usize,
}

impl Set {
    fn start(threads: Threads, consumers: Vec<usize>) -> io::Result<Self> {
        let pool = |name: &str, workers: usize, polls_per_look: u32| {
            let mut builder = Builder::new_multi_thread();
            builder.thread_name(name).worker_threads(workers).max_blocking_threads(threads.guests_blocking);
            builder.event_interval(polls_per_look).enable_all();
            builder
        };
        let fast = |workers| pool("hostler-guest", workers, FAST_POLLS_PER_LOOK).build();
        let others = (threads.background > 0 && threads.guests > 1).then(|| fast(threads.guests - 1));
        let background = (threads.background > 0).then(|| {
            pool("hostler-long", threads.background, BACKGROUND_POLLS_PER_LOOK)
                .on_thread_start(Pools::yield_to_others)
                .build()
        });
        let files = threads.guests_blocking;
        let (first, others, background) = (fast(1)?, others.transpose()?, background.transpose()?);
        Ok(Self { consumers, first, others, background, files })
    }

    fn all(&self) -> impl Iterator<Item = &Runtime> {
        [Some(&self.first), self.others.as_ref(), self.background.as_ref()].into_iter().flatten()
    }

    /// Returns the pools of each consumer of the set, with the consumer's index.
    fn pools(&self) -> impl Iterator<Item = (usize, Pools)> {
        let handle = |runtime: &Runtime| runtime.handle().clone();
        let fast = self.others.as_ref().map(handle);
        let beyond = self.background.as_ref().map(|background| Beyond { fast, background: handle(background) });
        let pools = Pools::new(handle(&self.first), beyond);
        self.consumers.iter().map(move |place| (*place, pools.for_another()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(consumers: &[&str]) -> Config {
        let mut text = "host.health_file = '/run/h/health.json'\nqueue.embedded.path = '/q/queue.db'\n".to_owned();
        for (number, keys) in consumers.iter().enumerate() {
            text += &format!("[consumers.c{number}]\nchannel = 'c{number}'\nhandler = '/h.wasm'\n{keys}\n");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        hostler_config::load(Some(file.path()), std::iter::empty::<(String, String)>()).unwrap().config
    }

    const FOLDER: &str = "concurrency = 2\nallow.dirs = [{ host = '/in', guest = '/in' }]";

    const THREADS: Threads =
        Threads { sets: 3, guests: 4, background: 4, guests_blocking: 512, control_blocking: 1, compiling: 1 };

    #[test]
    fn each_consumer_with_folders_has_threads_of_its_own_and_the_others_share() {
        let config = config(&[FOLDER, "", FOLDER, ""]);
        let guests = Guests::start(&config, THREADS).unwrap();
        let shared = guests.shared();
        assert_eq!(shared.iter().map(|set| &*set.consumers).collect::<Vec<_>>(), [&[1, 3][..], &[0], &[2]]);
        let workers = |set: &Shared| set.runtimes.iter().map(|one| one.metrics().num_workers()).collect::<Vec<_>>();
        // Two slots and the hook.
        assert_eq!(shared.iter().map(workers).collect::<Vec<_>>(), [[1, 3, 4], [1, 2, 3], [1, 2, 3]]);
        assert_eq!(shared.iter().map(|set| set.files).collect::<Vec<_>>(), [512, FILES, FILES]);
        let pools: Vec<_> = guests.pools().iter().map(|pools| pools.fast.id()).collect();
        assert_eq!(pools, [1, 0, 2, 0].map(|set: usize| shared[set].runtimes[0].id()));
        guests.shut_down();
    }

    #[test]
    fn there_is_one_set_where_nobody_has_folders_or_threads_are_few() {
        assert_eq!(
            [&["", ""][..], &[FOLDER], &[FOLDER, FOLDER, ""]].map(|keys| sets(&config(keys).consumers)),
            [1, 1, 3]
        );
        let guests = Guests::start(&config(&[FOLDER, ""]), Threads { sets: 1, ..THREADS }).unwrap();
        assert_eq!(guests.shared().iter().map(|set| &*set.consumers).collect::<Vec<_>>(), [&[0, 1]]);
        guests.shut_down();
    }
}
