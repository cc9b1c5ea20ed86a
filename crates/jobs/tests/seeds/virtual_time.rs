//! The first world: the model, and many clients at once, by virtual time.

use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::call::{Answer, Operation, Time};
use crate::clients::{Worker, carry, finish, observe, produce, serve};
use crate::fault::Fault;
use crate::history::History;
use crate::model::{Model, Periods};
use crate::scenario::{Generator, Scenario};
use crate::site::{Port, Site};

const HEARTBEAT: Time = 60_000;
const PERIODS: Periods = Periods { heartbeat: HEARTBEAT, backoff: 1_000, callback_lease: 2 * HEARTBEAT };

/// A network with the model behind it.
struct Network {
    model: Mutex<Model>,
    rng: Mutex<Rng>,
    start: Instant,
}

impl Network {
    /// Waits as long as a message takes.
    async fn travel(&self) {
        let delay = {
            let mut rng = self.rng.lock().unwrap();
            if rng.u32(..200) == 0 { rng.u64(..90_000) } else { rng.u64(1..700) }
        };
        sleep(Duration::from_millis(delay)).await;
    }
}

impl Port for Network {
    async fn carry_out(&self, operation: &Operation) -> Option<Answer> {
        self.travel().await;
        if self.rng.lock().unwrap().u32(..200) == 0 {
            return None;
        }
        let answer = {
            let mut model = self.model.lock().unwrap();
            model.now = self.start.elapsed().as_millis().try_into().unwrap();
            model.apply(operation)
        };
        self.travel().await;
        Some(answer)
    }
}

/// Runs the scenario of a seed by virtual time.
pub fn run(seed: u64, fault: Option<Fault>) -> History {
    let mut generator = Generator::new(seed);
    let scenario = generator.scenario(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(play(&scenario, generator.rng, fault))
}

async fn play(scenario: &Scenario, mut rng: Rng, fault: Option<Fault>) -> History {
    let network =
        Network { model: Mutex::new(Model::new(PERIODS, fault)), rng: Mutex::new(rng.fork()), start: Instant::now() };
    let site = Site::new(network, HEARTBEAT, scenario.seed);
    let workers = (0..scenario.workers).map(|worker| Worker { site: &site, worker, rng: rng.fork(), clock: 0 });
    let workers = join_all(workers.map(Worker::work).collect::<Vec<_>>());
    let servers = join_all((0..scenario.servers).map(|_| serve(&site, rng.fork())).collect::<Vec<_>>());
    let others = (observe(&site, rng.fork()), carry(&site, rng.fork()));
    let direct = async {
        join_all(scenario.trees.iter().map(|plan| produce(&site, plan))).await;
        site.rest(300).await;
        finish(&site, 80).await;
    };
    tokio::join!(workers, servers, others.0, others.1, direct);
    let end = site.port.model.lock().unwrap().snapshot();
    let (slack, longest_backoff) = (0, PERIODS.backoff << 10);
    History { calls: site.record(), end, heartbeat: HEARTBEAT, slack, longest_backoff, is_strict: true }
}
