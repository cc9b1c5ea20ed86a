//! Batches in every language: a component has a guest of its own for them, and the guest of a command takes both.

use std::collections::BTreeMap;

use super::{Kind, Language};
use crate::support::hostler::World;
use crate::support::toolchains::built;

/// Sends three messages in one batch: the guest acks the first, acks the second early, and dead-letters the third.
pub(super) fn answers_for_each(language: Language) {
    let folder = match language.kind {
        Kind::Component => format!("tests/languages/{}/batch", language.folder),
        Kind::Command => format!("tests/languages/{}", language.folder),
    };
    let guest = built(&folder, language.needs);
    let world = World::new(&format!(
        "host.cache_dir = '{}'
        [consumers.work]
        channel = 'work'
        handler = '{}'
        concurrency = 1
        batch = {{ max = 3, wait = '60s' }}",
        guest.cache.display(),
        guest.wasm.display()
    ));
    let bodies = ["ack", "done", "never"];
    world.send("work", bodies);
    let mut host = world.start();
    let settled = host.settled(bodies.len());
    assert_eq!(host.stop(), 0);
    let mut outcomes = BTreeMap::new();
    for line in &settled {
        assert_eq!((&line["batch"], &line["attempt"]), (&3.into(), &1.into()), "{line}");
        *outcomes.entry(line["outcome"].as_str().unwrap()).or_insert(0) += 1;
    }
    assert_eq!(outcomes, BTreeMap::from([("ack", 2), ("dead-letter", 1)]), "{settled:?}");
    let letter = settled.iter().find(|line| line["outcome"] == "dead-letter").unwrap();
    assert_eq!(letter["reason"], "as told");
}
