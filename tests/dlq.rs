//! `dlq`: dead letters listed, shown and dropped, and requeued by their ids; on the embedded queue and on SQS.

use serde_json::{Value, json};

use crate::support::hostler::{Depth, PATIENCE, Said, World, until};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// A consumer `work` whose handler does what the body says, and dead-letters what it fails at the first time.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    retry = { requeues = 0, delays = 0 }
";

/// With two dead letters that a host has made, and one that was put there.
fn dead_letters() -> World {
    let world = World::new(WORK);
    let mut host = world.start();
    world.send("work", ["x65 first", "x1 second", "ack"]);
    host.settled(3);
    assert_eq!(host.stop(), 0);
    let said = world.output(&["send", "work-dlq", "--body", "third", "--attr", "tenant=7"]);
    assert_eq!(said.code, 0, "{said:?}");
    world
}

fn json(said: &Said) -> Value {
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

fn list(world: &World, more: &[&str]) -> Vec<Value> {
    let said = world.output(&[&["dlq", "ls", "work", "--json"], more].concat());
    let mut letters = json(&said).as_array().unwrap().clone();
    for letter in &mut letters {
        // The one thing that changes from look to look.
        let age = letter.as_object_mut().unwrap().remove("age_seconds").unwrap();
        assert!(age.as_u64().is_some_and(|age| age < 600), "{age}");
    }
    letters
}

fn id(letter: &Value) -> &str {
    letter["id"].as_str().unwrap()
}

#[test]
fn a_list_says_why_each_is_there_and_changes_nothing() {
    let world = dead_letters();
    let letters = list(&world, &[]);
    let told: Vec<_> = letters.iter().map(|letter| (&letter["source"], &letter["attempts"])).collect();
    assert_eq!(told, [(&json!("work"), &json!(1)), (&json!("work"), &json!(1)), (&Value::Null, &Value::Null)]);
    assert!(letters[0]["reason"].as_str().unwrap().contains("bad row"), "{letters:?}");
    assert_eq!(letters[0]["size_bytes"], 9);
    assert_eq!(list(&world, &[]), list(&world, &[]), "and again");
    assert_eq!(list(&world, &["--max", "1"]).len(), 1);
    assert_eq!(list(&world, &["--filter", "attr:tenant=7"]), letters[2..]);
    assert_eq!(list(&world, &["--id", id(&letters[1]), id(&letters[2])]), letters[1..]);
    assert_eq!(world.depth("work-dlq"), Depth { visible: 3, ..Depth::default() });

    let said = world.output(&["dlq", "ls", "work-dlq"]);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!((said.code, lines.len()), (0, 4), "{said:?}");
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("REASON"), "{said:?}");
    assert!(lines[1].starts_with(id(&letters[0])) && lines[1].contains("bad row"), "{said:?}");
    let said = world.output(&["dlq", "ls", "work", "--id", "none"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "no dead letters in work-dlq\n"));
    // What another holds is seen as well, and no look has counted as an attempt: the handler has it for the first time.
    assert_eq!(world.output(&["requeue", "--from", "work-dlq", "--id", id(&letters[2])]).code, 0);
    let host = world.start();
    assert_eq!(host.settled(1)[0]["attempt"], 1);
}

#[test]
fn one_is_shown_with_all_that_it_carries_and_its_body_only_if_asked_for() {
    let world = dead_letters();
    let letters = list(&world, &[]);
    let shown = json(&world.output(&["dlq", "show", "work", id(&letters[2]), "--json"]));
    assert_eq!((&shown["attributes"], shown.get("body")), (&json!({ "tenant": "7" }), None), "{shown}");
    let shown = json(&world.output(&["dlq", "show", "work", id(&letters[2]), "--json", "--body"]));
    assert_eq!(shown["body"], "third");
    let said = world.output(&["dlq", "show", "work", id(&letters[0])]);
    assert!(said.code == 0 && said.stdout.contains("bad row") && !said.stdout.contains("first"), "{said:?}");
    let said = world.output(&["dlq", "show", "work", "4711"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    assert!(said.stderr.contains("work-dlq shows no message 4711"), "{said:?}");
}

#[test]
fn only_what_is_named_is_dropped_and_only_with_yes() {
    let world = dead_letters();
    let letters = list(&world, &[]);
    let drop = |args: &[&str]| world.output(&[&["dlq", "drop", "work"], args].concat());
    for (args, part) in [
        (&["--yes"][..], "by --id or --filter"),
        (&["--id", id(&letters[0])], "then confirm with --yes"),
        (&["--yes", "--filter", "tenant=7"], "is not a valid filter"),
    ] {
        let said = drop(args);
        assert!(said.code == 2 && said.stderr.contains(part), "{args:?}: {said:?}");
    }
    assert_eq!(world.depth("work-dlq").visible, 3);
    let said = drop(&["--yes", "--id", id(&letters[0])]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "1 message dropped from work-dlq, 2 left (did not match)\n"));
    assert_eq!(list(&world, &[]), letters[1..]);
    let said = drop(&["--yes", "--filter", "attr:tenant=7", "--json"]);
    let counts = json!({ "dropped": 1, "failed": 0, "left": 1, "not_looked_at": 0, "stopped": false });
    assert_eq!(json(&said), counts);
    assert_eq!(drop(&["--yes", "--filter", "older:0s"]).code, 0);
    assert_eq!((world.depth("work-dlq"), world.depth("work")), (Depth::default(), Depth::default()));
}

#[test]
fn a_dry_run_of_drop_lists_and_drops_nothing() {
    let world = dead_letters();
    let letters = list(&world, &[]);
    let drop = |args: &[&str]| world.output(&[&["dlq", "drop", "work", "--dry-run"], args].concat());
    let said = drop(&["--filter", "older:0s"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(letters.iter().all(|letter| said.stdout.contains(id(letter))), "{said:?}");
    assert!(said.stdout.ends_with("\n3 messages would be dropped from work-dlq\n"), "{said:?}");
    let said = drop(&["--id", id(&letters[1]), "--json", "--yes"]);
    assert_eq!(json(&said), json!({ "dry_run": true, "dropped": 1 }));
    let said = drop(&["--id", "4711"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, "0 messages would be dropped from work-dlq\n"), "{said:?}");
    assert!(drop(&[]).stderr.contains("by --id or --filter"));
    assert_eq!(list(&world, &[]), letters, "none is gone, and none was received");
    for picked in [&["--id", "4711"][..], &["--filter", "id=4711"], &["--id", "4711", "--max", "5"]] {
        for mode in ["--yes", "--dry-run"] {
            let said = world.output(&[&["dlq", "drop", "work", mode], picked].concat());
            let is_told = said.stderr.contains("no message in work-dlq has the id 4711");
            assert!(said.code == 1 && is_told, "{picked:?} {mode}: {said:?}");
        }
    }
}

/// Of an ordered queue the first of each group is handed out, and what is behind it once it is gone.
#[test]
fn what_is_behind_a_message_of_its_group_is_not_said_to_be_missing() {
    let world = World::new(&format!("{WORK}ordered = true"));
    world.provision();
    for body in ["one", "two", "three"] {
        let said = world.output(&["send", "work-dlq", "--body", body, "--group", "g"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let letters = list(&world, &[]);
    let last = id(&letters[2]);
    let behind = "2 were not inspected: they are delayed, in flight, or behind a message of their group that stays";
    for args in [
        &["dlq", "drop", "work", "--yes"][..],
        &["dlq", "drop", "work", "--dry-run"],
        &["requeue", "--from", "work"],
        &["requeue", "--from", "work", "--dry-run"],
    ] {
        for picked in [&["--id", last][..], &["--filter", "body~three", "--id", last]] {
            let said = world.output(&[args, picked].concat());
            assert!(said.code == 1 && said.stderr.contains(behind), "{args:?}: {said:?}");
            assert!(said.stderr.contains("those before it in its group"), "{args:?}: {said:?}");
        }
    }
    assert_eq!(list(&world, &[]).len(), 3, "all are still there");
    // The cure.
    let ids: Vec<&str> = letters.iter().map(id).collect();
    let said = world.output(&[&["dlq", "drop", "work", "--dry-run", "--id"], &ids[..]].concat());
    assert_eq!(said.code, 0, "{said:?}");
    let said = world.output(&[&["requeue", "--from", "work", "--id"], &ids[..]].concat());
    assert_eq!((said.code, said.stdout.as_str()), (0, "3 messages moved from work-dlq to work\n"), "{said:?}");
}

#[test]
fn what_is_not_there_is_refused() {
    let world = World::new(WORK);
    for args in [&["ls", "jbos"][..], &["show", "jbos", "1"], &["drop", "jbos", "--id", "1", "--yes"]] {
        let said = world.output(&[&["dlq"], args].concat());
        assert!(said.code == 69 && said.stderr.contains("there is no queue `jbos-dlq`"), "{args:?}: {said:?}");
    }
}

/// Twenty-five dead letters of a consumer on SQS, and the ids of those from the third on.
fn on_sqs(kind: Kind) {
    let world = Aws::new(kind, &format!("{WORK}concurrency = 4"));
    let mut host = world.started();
    world.send("work", (0..25).map(|n| format!("x65 {n}")));
    host.settled(25);
    assert_eq!(host.stop(), 0);
    let letters = list(&world, &[]);
    assert_eq!(letters.len(), 25, "paged until it is empty");
    assert!(letters.iter().all(|letter| letter["source"] == "work" && letter["attempts"] == 1), "{letters:?}");
    let back = || until("all is given back", PATIENCE, || (world.counts("work-dlq") == [25, 0, 0]).then_some(()));
    back();
    assert_eq!(list(&world, &["--max", "3"]).len(), 3);
    back();
    let shown = json(&world.output(&["dlq", "show", "work", id(&letters[20]), "--json", "--body"]));
    assert_eq!((id(&shown), &shown["reason"]), (id(&letters[20]), &letters[20]["reason"]));
    assert!(shown["body"].as_str().unwrap().starts_with("x65 "), "{shown}");
    back();
    let [one, two, three] = [0, 1, 2].map(|n| id(&letters[n]));
    let said = world.output(&["dlq", "drop", "work", "--yes", "--id", one, two]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "2 messages dropped from work-dlq, 23 left (did not match)\n"));
    let said = world.output(&["requeue", "--from", "work-dlq", "--id", three]);
    assert_eq!(said.stdout, "1 message moved from work-dlq to work, 22 left (did not match)\n", "{said:?}");
    assert_eq!((world.counts("work-dlq"), world.counts("work")), ([22, 0, 0], [1, 0, 0]));
}

#[test]
fn dead_letters_on_sqs_are_listed_page_by_page_and_given_back() {
    on_sqs(Kind::Ministack);
}

/// Fifteen dead letters of an ordered queue in three groups, of which SQS shows ten of `g` and all of the others.
fn ordered_on_sqs(kind: Kind) {
    let world = Aws::new(kind, &format!("{WORK}ordered = true"));
    world.provision();
    let send = |group: &str, n: usize| {
        let said = world.output(&["send", "work-dlq", "--group", group, "--body", &format!("{group}-{n:02}")]);
        assert_eq!(said.code, 0, "{said:?}");
        said.stdout.trim().to_owned()
    };
    // Groups that share their first batch.
    let mut sent: Vec<String> = (0..3).flat_map(|n| ["g", "h"].map(|group| send(group, n))).collect();
    sent.extend((3..11).map(|n| send("g", n)));
    let last = send("i", 0);
    let back = || until("all is given back", PATIENCE, || (world.counts("work-dlq.fifo") == [15, 0, 0]).then_some(()));
    back();
    let said = world.output(&["dlq", "ls", "work", "--json"]);
    let letters = json(&said);
    let listed: Vec<&str> = letters.as_array().unwrap().iter().map(id).collect();
    assert_eq!(listed.len(), 14, "{said:?}");
    let unseen = "1 of the messages in work-dlq could not be inspected";
    assert!(said.stderr.contains(unseen) && said.stderr.contains("groups `g`, or"), "{said:?}");
    for id in &listed {
        back();
        let said = world.output(&["dlq", "show", "work", id]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let hidden = sent.iter().find(|id| !listed.contains(&id.as_str())).unwrap();
    for args in
        [&["show", "work", hidden][..], &["ls", "work", "--id", hidden], &["ls", "work", "--filter", "body~g-02"]]
    {
        back();
        let said = world.output(&[&["dlq"], args].concat());
        assert_eq!((said.code, said.stdout.is_empty()), (1, args[0] == "show"), "{said:?}");
        assert!(said.stderr.contains(unseen) && said.stderr.contains("groups `g`, or"), "{said:?}");
        assert!(!said.stderr.contains("shows no message"), "{said:?}");
    }
    back();
    let said = world.output(&["dlq", "ls", "work", "--id", listed[0], &last]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "both were found");
    for args in [&["dlq", "drop", "work", "--dry-run"][..], &["requeue", "--from", "work"]] {
        back();
        let said = world.output(&[args, &["--filter", "body~i-"]].concat());
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.stdout.starts_with("1 message ") || said.stdout.contains("\n1 message "), "{said:?}");
        assert!(said.stderr.contains("of the messages in work-dlq were not inspected"), "{said:?}");
    }
}

#[test]
fn of_an_ordered_queue_on_sqs_ten_of_a_group_are_shown_and_the_rest_is_told() {
    ordered_on_sqs(Kind::Ministack);
}

#[test]
fn of_an_ordered_queue_on_another_server_ten_of_a_group_are_shown_too() {
    ordered_on_sqs(Kind::LocalStack);
}

#[test]
fn of_an_ordered_queue_on_a_third_server_ten_of_a_group_are_shown_too() {
    ordered_on_sqs(Kind::Moto);
}

#[test]
fn dead_letters_on_another_server_are_so_too() {
    on_sqs(Kind::LocalStack);
}
