//! Effects of commands on the embedded queue's file.

use crate::support::hostler::{Depth, Said, World};

const JOBS: &str = "[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/main-echoes.wat'";

/// A consumer of those messages of an exchange whose routing key begins so.
fn thumbnails(prefix: &str, ordered: bool) -> String {
    format!(
        "[consumers.thumbnails]
         channel = 'uploads.thumbnails'
         handler = 'guests/main-echoes.wat'
         ordered = {ordered}
         filter = {{ type = 'prefix', values = ['{prefix}'] }}"
    )
}

#[test]
fn only_run_and_provision_change_an_embedded_queue_that_is_there() {
    let world = World::new(&thumbnails("MOBILE.", false));
    let said = |args: &[&str]| {
        let said = world.output(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
        said
    };
    let created = "+ queue thumbnails-dlq\n+ queue thumbnails\n\
                   + subscription of thumbnails to uploads: filter prefix [MOBILE.]\n";
    assert_eq!(said(&["provision"]).stdout, created);
    said(&["send", "thumbnails-dlq", "--body", "dead"]);

    // The config that will be deployed next.
    world.config(&thumbnails("DESK.", true));
    let differing = [
        "queue thumbnails-dlq: ordered is false, not true",
        "queue thumbnails: ordered is false, not true",
        "subscription of thumbnails to uploads: filter is prefix [MOBILE.], not prefix [DESK.]",
    ];
    for _ in 0..2 {
        let checked = said(&["check"]);
        assert_eq!(checked.stderr.lines().count(), differing.len(), "{checked:?}");
        for (line, part) in checked.stderr.lines().zip(differing) {
            assert!(line.starts_with(&format!("queue     !!  thumbnails: {part} (")), "{checked:?}");
            assert!(line.ends_with("): `hostler run` or `hostler provision` sets it"), "{checked:?}");
        }
        assert!(checked.stdout.contains("queue     ok  thumbnails: uploads.thumbnails"), "{checked:?}");
        said(&["send", "uploads", "--body", "x", "--routing-key", "MOBILE.new"]);
        said(&["send", "uploads.thumbnails", "--body", "x", "--routing-key", "DESK.new"]);
        said(&["requeue", "--from", "thumbnails-dlq", "--to", "uploads.thumbnails"]);
    }
    assert_eq!(world.depth("thumbnails"), Depth { visible: 3, ..Depth::default() }, "by the filter that is there");

    let changes = "~ queue thumbnails-dlq: ordered: false → true\n~ queue thumbnails: ordered: false → true\n\
                   ~ subscription of thumbnails to uploads: filter: prefix [MOBILE.] → prefix [DESK.]\n";
    let plan = said(&["provision", "--plan"]).stdout;
    assert_eq!(plan, format!("{changes}3 changes; run `hostler provision` to make them\n"));
    assert_eq!(said(&["provision"]).stdout, changes);
    assert_eq!(said(&["provision"]).stdout, "no change\n");
    assert_eq!(said(&["check"]).stderr, "");
}

#[test]
fn run_brings_an_embedded_queue_to_what_its_config_says() {
    let world = World::new(&thumbnails("MOBILE.", false));
    assert_eq!(world.output(&["provision"]).code, 0);
    world.config(&thumbnails("DESK.", true));
    assert_eq!(world.started().stop(), 0);
    assert_eq!(world.output(&["provision", "--plan"]).stdout, "no change\n");
}

#[test]
fn who_only_looks_creates_nothing() {
    let head = "host.health_file = 'health.json'\nqueue.embedded.path = 'data/queue.db'\n";
    let world = World::with(head, Vec::new(), JOBS);
    let looks: [(&[&str], i32); 5] = [
        (&["queues", "--json"], 0),
        (&["alarms"], 0),
        (&["provision", "--plan"], 0),
        (&["dlq", "ls", "jobs"], 69),
        (&["dlq", "show", "jobs", "1"], 69),
    ];
    for (args, code) in looks {
        let said = world.output(args);
        assert_eq!(said.code, code, "{args:?}: {said:?}");
        assert!(!world.path("data").exists(), "{args:?} has created it");
        if let "queues" | "alarms" = args[0] {
            let text = "data/queue.db does not exist yet; `hostler send` creates it\n";
            assert!(said.stderr.starts_with("hostler: note: the queue /") && said.stderr.ends_with(text), "{said:?}");
        }
    }
    assert_eq!(world.depth("jobs"), Depth::default());
    world.send("jobs", ["x"]);
    let said = world.output(&["queues"]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    assert_eq!(world.depth("jobs"), Depth { visible: 1, ..Depth::default() });
}

#[test]
fn an_exchange_of_the_config_gets_what_is_sent_to_its_name() {
    let consumer = |name: &str, channel: &str| {
        format!("[consumers.{name}]\nchannel = '{channel}'\nhandler = 'guests/main-echoes.wat'\n")
    };
    let world = World::new(JOBS);
    // Nobody had said yet that there is an exchange of this name.
    world.queue("news");
    world.send("news", ["early"]);
    world.config(&[consumer("mobile", "news.mobile"), consumer("desk", "news.desk")].concat());
    world.send("news", ["x"]);
    let visible = |channel: &str| world.depth(channel).visible;
    assert_eq!([visible("news"), visible("mobile"), visible("desk")], [1, 1, 1]);
    // A consumer's own queue comes first.
    world.config(&[consumer("mobile", "news.mobile"), consumer("news", "news.news")].concat());
    world.send("news", ["x"]);
    assert_eq!([visible("news"), visible("mobile"), visible("desk")], [2, 1, 1]);
}

#[test]
fn a_limit_of_the_size_of_files_is_named_as_a_possible_cause() {
    let world = World::new(JOBS);
    let args = ["--fsize=4096", env!("CARGO_BIN_EXE_hostler"), "send", "jobs", "--body", "x"];
    let said = Said::new(world.program("prlimit", &args).output().unwrap());
    assert!(
        said.code == 69 && said.stderr.contains("limit of its size (4096 bytes), raise that (`ulimit -f`)"),
        "{said:?}"
    );
    world.send("jobs", ["x"]);
    assert_eq!(world.depth("jobs").visible, 1);
}
