//! Mistakes about queues.

use std::fs;

use super::Page;
use crate::support::hostler::World;

const MAILS: &str = "
    [consumers.mails]
    channel = 'mails'
    handler = 'guests/run-tell.wat'
";

#[test]
fn mistakes_about_queues() {
    let mut page = Page::new("queues.md", "Mistakes about queues");
    let world = World::new(MAILS);
    world.provision();
    let mut run = |mistake: &str, args: &[&str]| page.run(mistake, &world, args);
    run("The queue to count is misspelt", &["queues", "mials"]);
    run("The exchange is unknown", &["queues", "news.mails"]);
    run("The queue to peek into is misspelt", &["peek", "mials"]);
    run("The queue to purge is misspelt", &["purge", "mials", "--yes"]);
    run("The queue to requeue from is misspelt", &["requeue", "--from", "mials-dlq"]);
    run("The queue to requeue to is misspelt", &["requeue", "--from", "mails-dlq", "--to", "mials"]);
    run("No message comes", &["receive", "mails", "--wait", "0s"]);
    run("The dead letter is not there", &["dlq", "show", "mails", "7"]);
    page.compare();
}

#[test]
fn mistakes_about_the_embedded_queue() {
    let mut page = Page::new("embedded.md", "Mistakes about the embedded queue");
    let on = |path: &str| {
        let head = format!("host.health_file = 'health.json'\nqueue.embedded.path = '{path}'\n");
        World::with(&head, Vec::new(), MAILS)
    };
    page.run("The queue is a folder", &on("guests"), &["queues"]);
    page.run("The queue lies where nobody may write", &on("/proc/queue.db"), &["send", "mails", "--body", "x"]);
    let text = on("queue.db");
    fs::write(text.path("queue.db"), "this file is a text, and was never a database of any kind".repeat(100)).unwrap();
    page.run("The queue is another file", &text, &["queues"]);
    let none = on("queue.db");
    page.run("The queue is not there yet", &none, &["queues"]);
    page.run("There is nothing to peek into yet", &none, &["peek", "mails"]);
    page.compare();
}
