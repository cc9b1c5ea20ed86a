//! Handlers composed of several components, which are stopped late while one of them copies: `run` and `check` name them.

use crate::support::guests::{command, component};
use crate::support::hostler::{PATIENCE, World};

#[test]
fn handlers_that_are_stopped_late_are_named() {
    let composed = command("composed").display().to_string();
    let world = World::new(&format!(
        "[consumers.large]\nchannel = 'large'\nhandler = '{composed}'\nlimits.memory = '17MiB'\n\
         [consumers.small]\nchannel = 'small'\nhandler = '{composed}'\nlimits.memory = '16MiB'\n\
         [consumers.single]\nchannel = 'single'\nhandler = '{}'\nhooks = '{}'\n\
         [consumers.compiled]\nchannel = 'compiled'\nhandler = 'composed.cwasm'\nlimits.memory = '17MiB'\n",
        component("acks").display(),
        component("hook-tells").display(),
    ));
    let said = world.output(&["compile", &composed, "-o", "composed.cwasm"]);
    assert_eq!(said.code, 0, "{said:?}");
    let warning = |file: &str| {
        format!("{file} is composed of several components: what one passes to another is copied in one go")
    };
    let cure = "set limits.memory to 16MiB or less, or build it as one component";

    let said = world.output(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
    for (consumer, file) in [("large", &*composed), ("compiled", "composed.cwasm")] {
        let wanted = format!("hostler: warning: consumers.{consumer}: {}", warning(file));
        assert!(said.stderr.contains(&wanted), "{wanted}: {said:?}");
    }
    assert_eq!(said.stderr.matches("is composed of").count(), 2, "{said:?}");
    assert_eq!(said.stderr.matches(&format!("\n  cure: {cure}\n")).count(), 2, "{said:?}");

    let mut host = world.start();
    let line = host.wait_for(PATIENCE, |line| line["consumer"] == "large" && line["level"] == "WARN");
    assert!(line["message"].as_str().unwrap().starts_with(&warning(&composed)), "{line}");
    assert_eq!(line["cure"], cure);
    world.send("large", ["hello"]);
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
    let named = |line: &serde_json::Value| line["message"].as_str().is_some_and(|text| text.contains("is composed of"));
    assert_eq!(host.lines().iter().filter(|line| named(line)).count(), 2, "each once: {:#?}", host.lines());
}
