//! Checks of the driver over a real server: failures of the server, other processes, pgbouncer, bloat.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use hostler_queue::{
        Action, Admin, Broker, ChannelSpec, Delivery, Inventory, LeaseError, Link, Provisioner, Queue, QueueError,
        Receive, Settlement, tag,
    };
    use hostler_queue_postgres::{Options, PERMISSIONS, PostgresBroker};
    use hostler_types::channel::{Channel, Filter};
    use hostler_types::message::Outgoing;
    use tokio_util::sync::CancellationToken;

    use super::postgres::{PgBouncer, Postgres};
    use super::support::{LONG, PATIENCE, broker, connect, receive, send, spec, text};

    async fn ack(queue: &Arc<dyn Queue>, deliveries: Vec<Delivery>) {
        let batch = deliveries.into_iter().map(|delivery| Settlement::Ack(delivery.receipt)).collect();
        for settled in queue.settle(batch).await {
            settled.unwrap();
        }
    }

    #[tokio::test]
    async fn two_claimers_never_get_one_message() {
        let url = Postgres::shared().database();
        let sender = connect(&url).await;
        sender.open(&spec("jobs")).await.unwrap();
        for batch in 0..10 {
            send(&sender, "jobs", (0..100).map(|n| text(&format!("{batch}-{n}"))).collect()).await;
        }
        let workers: Vec<_> = (0..6)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move {
                    let broker = connect(&url).await;
                    let queue = broker.open(&spec("jobs")).await.unwrap();
                    let mut ids = Vec::new();
                    loop {
                        let received = receive(&queue, 7, Duration::from_millis(300)).await;
                        if received.is_empty() {
                            return ids;
                        }
                        ids.extend(received.iter().map(|delivery| delivery.message.id.clone()));
                        ack(&queue, received).await;
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.await.unwrap());
        }
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (1000, 1000));
        assert_eq!(sender.depths(&["jobs".parse().unwrap()]).await.unwrap()[0].total(), 0);
    }

    #[tokio::test]
    async fn groups_keep_their_order_under_load() {
        let url = Postgres::shared().database();
        let ordered = ChannelSpec { ordered: true, ..spec("jobs") };
        let sender = connect(&url).await;
        sender.open(&ordered).await.unwrap();
        let sending = async {
            for n in 0..40 {
                let batch = (0..5).map(|group| Outgoing { group: Some(group.to_string()), ..text(&n.to_string()) });
                send(&sender, "jobs", batch.collect()).await;
            }
        };
        let seen = Arc::new(std::sync::Mutex::new(vec![Vec::new(); 5]));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (url, seen, ordered) = (url.clone(), Arc::clone(&seen), ordered.clone());
                tokio::spawn(async move {
                    let queue = connect(&url).await.open(&ordered).await.unwrap();
                    while seen.lock().unwrap().iter().map(Vec::len).sum::<usize>() < 200 {
                        let received = receive(&queue, 3, Duration::from_millis(200)).await;
                        for delivery in &received {
                            let group: usize = delivery.message.group.as_deref().unwrap().parse().unwrap();
                            let n: u32 = std::str::from_utf8(&delivery.message.body).unwrap().parse().unwrap();
                            seen.lock().unwrap()[group].push(n);
                        }
                        ack(&queue, received).await;
                    }
                })
            })
            .collect();
        let all = async {
            sending.await;
            for worker in workers {
                worker.await.unwrap();
            }
        };
        tokio::time::timeout(LONG, all).await.expect("a group is stuck");
        let expected: Vec<u32> = (0..40).collect();
        assert!(seen.lock().unwrap().iter().all(|group| *group == expected), "{seen:?}");
    }

    #[tokio::test]
    async fn a_frozen_server_holds_up_no_call() {
        let server = Postgres::start();
        let deadline = Duration::from_millis(500);
        let url = server.url("postgres");
        let broker = broker(Options { url, create_missing: true, deadline, ..Options::default() }).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", vec![text("a")]).await;
        let mut received = receive(&queue, 1, PATIENCE).await;
        let receipt = received.remove(0).receipt;
        server.freeze();
        let begun = Instant::now();
        let request = Receive { max: 1, wait: Duration::from_secs(20), lease: LONG };
        let frozen = queue.receive(request, &CancellationToken::new()).await;
        assert!(matches!(frozen, Err(QueueError::Unavailable(_))), "{frozen:?}");
        assert!(matches!(queue.extend(&[receipt.lease()], LONG).await[..], [Err(LeaseError::Retry(_))]));
        let mut link = broker.link();
        assert!(matches!(*link.borrow(), Link::Down { .. }));
        assert!(broker.send(&"jobs".parse().unwrap(), vec![text("b")]).await[0].is_err());
        let settled = queue.settle(vec![Settlement::Ack(receipt)]).await.remove(0).unwrap_err();
        assert!(matches!(settled.error, LeaseError::Retry(_)), "{settled:?}");
        assert!(begun.elapsed() < deadline * 12, "{:?}", begun.elapsed());

        server.thaw();
        tokio::time::timeout(PATIENCE, link.wait_for(|link| *link == Link::Up)).await.unwrap().unwrap();
        let again = queue.settle(vec![settled.settlement]).await.remove(0);
        // The first attempt may have arrived after all.
        assert!(matches!(again.map_err(|unsettled| unsettled.error), Ok(()) | Err(LeaseError::Lost(_))));
    }

    #[tokio::test]
    async fn a_killed_server_loses_nothing() {
        let mut server = Postgres::start();
        let broker = Arc::new(connect(&server.url("postgres")).await);
        let queue = broker.open(&spec("jobs")).await.unwrap();
        let waiting = {
            let queue = Arc::clone(&queue);
            let request = Receive { max: 10, wait: Duration::from_secs(20), lease: Duration::from_secs(2) };
            tokio::spawn(async move { queue.receive(request, &CancellationToken::new()).await })
        };
        send(&broker, "jobs", vec![text("a")]).await;
        let first = waiting.await.unwrap().unwrap();
        assert_eq!(first.len(), 1);
        send(&broker, "jobs", vec![text("b"), text("c")]).await;
        let taken = receive(&queue, 1, PATIENCE).await;
        ack(&queue, taken).await;

        let waiting = {
            let queue = Arc::clone(&queue);
            let request = Receive { max: 1, wait: Duration::from_secs(20), lease: LONG };
            tokio::spawn(async move {
                let mut answers = vec![queue.receive(request, &CancellationToken::new()).await];
                while matches!(answers.last(), Some(Ok(received)) if !received.is_empty()) {
                    answers.push(queue.receive(request, &CancellationToken::new()).await);
                }
                answers
            })
        };
        // The receive has taken the last message, and waits for another.
        while broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0].visible > 0 {
            tokio::task::yield_now().await;
        }
        server.kill();
        let answers = waiting.await.unwrap();
        assert!(answers.iter().any(|answer| matches!(answer, Err(QueueError::Unavailable(_)))), "{answers:?}");
        server.restart();

        let depth = broker.depths(&["jobs".parse().unwrap()]).await;
        // The first call may find a connection that died.
        let depth = if depth.is_err() { broker.depths(&["jobs".parse().unwrap()]).await } else { depth };
        assert_eq!(depth.unwrap()[0].total(), 2, "the first, whose lease ends, and the third; the second was acked");
        let again = receive(&queue, 1, PATIENCE).await;
        assert_eq!((&*again[0].message.body, again[0].attempt), (&b"a"[..], 2), "receives are durable too");
    }

    #[tokio::test]
    async fn pgbouncer_in_transaction_mode_can_be_between() {
        let server = Postgres::shared();
        let bouncer = PgBouncer::start(server, 3);
        let url = bouncer.url(&server.new_database());
        let (sender, receiver) = (connect(&url).await, connect(&url).await);
        let queue = receiver.open(&ChannelSpec { ordered: true, ..spec("shop.jobs") }).await.unwrap();
        for n in 0..20 {
            let message = Outgoing { dedupe: Some(n.to_string()), ..text(&n.to_string()) };
            send(&sender, "shop.jobs", vec![message.clone(), message]).await;
        }
        for n in 0..20 {
            let received = receive(&queue, 10, PATIENCE).await;
            assert_eq!(received.len(), 1);
            assert_eq!(&*received[0].message.body, n.to_string().as_bytes());
            let leases = [received[0].receipt.lease()];
            assert_eq!(queue.extend(&leases, LONG).await, [Ok(())]);
            ack(&queue, received).await;
        }
        assert!(receive(&queue, 1, Duration::from_secs(1)).await.is_empty());
    }

    #[tokio::test]
    async fn messages_of_other_processes_wake_a_receive() {
        let url = Postgres::shared().database();
        let (sender, receiver) = (connect(&url).await, connect(&url).await);
        let queue = receiver.open(&spec("jobs")).await.unwrap();
        let mut fastest = LONG;
        for _ in 0..5 {
            let waiting = {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { receive(&queue, 1, Duration::from_secs(20)).await })
            };
            // Long enough for the longest pause between two polls.
            tokio::time::sleep(Duration::from_millis(2500)).await;
            let sent = Instant::now();
            send(&sender, "jobs", vec![text("a")]).await;
            let received = waiting.await.unwrap();
            fastest = fastest.min(sent.elapsed());
            ack(&queue, received).await;
        }
        assert!(fastest < Duration::from_millis(300), "the fastest took {fastest:?}");
    }

    #[tokio::test]
    async fn a_queue_that_is_made_again_works_without_a_restart() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", vec![text("a"), text("b")]).await;
        let held = receive(&queue, 1, PATIENCE).await.remove(0);
        server.psql(&name, "DELETE FROM hostler_queue.queue");
        let content = server.psql(&name, "SELECT count(*) FROM hostler_queue.content");
        assert_eq!(content, "0", "its messages are gone with it");
        let request = Receive { max: 1, wait: Duration::ZERO, lease: LONG };
        let gone = queue.receive(request, &CancellationToken::new()).await;
        assert!(matches!(gone, Err(QueueError::Refused(_))), "{gone:?}");
        broker.provision(&[spec("jobs")], &mut |_| {}).await.unwrap();
        send(&broker, "jobs", vec![text("c")]).await;
        let received = receive(&queue, 1, PATIENCE).await;
        assert_eq!(&*received[0].message.body, b"c");
        let settled = queue.settle(vec![Settlement::Ack(held.receipt)]).await.remove(0);
        assert!(matches!(settled.unwrap_err().error, LeaseError::Lost(_)));
        ack(&queue, received).await;
    }

    #[tokio::test]
    async fn a_user_with_few_rights_can_send_and_receive() {
        let server = Postgres::shared();
        let name = server.new_database();
        let url = server.url(&name);
        connect(&url).await.open(&spec("shop.jobs")).await.unwrap();
        server.psql(&name, "CREATE ROLE clerk LOGIN");
        let clerk = Options { url: url.replace("postgres@", "clerk@"), ..Options::default() };
        let denied = PostgresBroker::connect(clerk.clone()).await.err();
        assert!(matches!(&denied, Some(QueueError::Refused(text)) if text.contains("grant")), "{denied:?}");
        server.psql(&name, &PERMISSIONS.replace("USER", "clerk"));
        let clerk = broker(clerk).await;
        let queue = clerk.open(&spec("shop.jobs")).await.unwrap();
        send(&clerk, "shop.jobs", vec![Outgoing { dedupe: Some("k".to_owned()), ..text("a") }, text("b")]).await;
        let mut received = receive(&queue, 1, PATIENCE).await;
        ack(&queue, received).await;
        received = receive(&queue, 1, PATIENCE).await;
        let Delivery { message, receipt, .. } = received.remove(0);
        let settled = queue.settle(vec![Settlement::DeadLetter { receipt, message, reason: "why".to_owned() }]).await;
        assert!(settled[0].is_ok(), "{settled:?}");
    }

    #[tokio::test]
    async fn a_check_finds_the_rights_that_a_user_lacks() {
        let server = Postgres::shared();
        let name = server.new_database();
        let url = server.url(&name);
        let owner = connect(&url).await;
        owner.open(&spec("shop.jobs")).await.unwrap();
        assert_eq!(owner.inspect(&spec("shop.jobs")).await, Ok(Vec::new()));
        server.psql(&name, "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA hostler_queue TO reader");
        server.psql(&name, "GRANT SELECT ON ALL TABLES IN SCHEMA hostler_queue TO reader");
        let reader = Options { url: url.replace("postgres@", "reader@"), ..Options::default() };
        let checking = broker(reader.clone()).await;
        let findings = checking.inspect(&spec("shop.jobs")).await.unwrap();
        assert!(findings.len() == 1 && findings[0].fatal, "{findings:?}");
        for right in ["INSERT on hostler_queue.entry", "DELETE on hostler_queue.dedupe", "USAGE on hostler_queue.seq"] {
            assert!(findings[0].fault.contains(right), "{findings:?}");
        }
        assert!(!findings[0].fault.contains("SELECT"), "{findings:?}");
        assert!(findings[0].cure.contains("hostler provision --permissions"), "{findings:?}");

        server.psql(&name, &PERMISSIONS.replace("USER", "reader"));
        assert_eq!(checking.inspect(&spec("shop.jobs")).await, Ok(Vec::new()));
        let creating = broker(Options { create_missing: true, ..reader }).await;
        let findings = creating.inspect(&spec("shop.jobs")).await.unwrap();
        assert!(findings[0].fault.contains("INSERT on hostler_queue.queue"), "{findings:?}");
        assert!(findings[0].cure.contains("provision = \"check\""), "{findings:?}");
    }

    #[tokio::test]
    async fn provisioning_finds_what_differs() {
        let server = Postgres::shared();
        let url = server.database();
        let checking = Options { url, prefix: "p-".to_owned(), ..Options::default() };
        let checking = broker(checking).await;
        let mut wanted = spec("shop.jobs");
        wanted.tags.insert(tag::OWNER.to_owned(), "media".to_owned());
        let refused = checking.open(&wanted).await.err();
        assert!(
            matches!(&refused, Some(QueueError::Refused(text)) if text.contains("hostler provision")),
            "{refused:?}"
        );
        assert!(checking.inspect(&wanted).await.unwrap()[0].fatal, "there is no schema");
        let plan = checking.plan(std::slice::from_ref(&wanted)).await.unwrap();
        assert!(plan.iter().all(|change| change.action == Action::Create), "{plan:?}");
        assert_eq!(plan.len(), 4, "schema, queue, dead-letter queue, subscription: {plan:?}");
        checking.provision(std::slice::from_ref(&wanted), &mut |_| {}).await.unwrap();
        assert_eq!(checking.plan(std::slice::from_ref(&wanted)).await, Ok(Vec::new()));
        assert_eq!(checking.inspect(&wanted).await, Ok(Vec::new()));
        checking.open(&wanted).await.unwrap();
        let missing = checking.send(&"absent".parse().unwrap(), vec![text("a")]).await.remove(0);
        assert!(missing.is_err(), "it creates nothing: {missing:?}");

        wanted.filter = Filter::Exact(vec!["a".to_owned()]);
        wanted.ordered = true;
        let findings = checking.inspect(&wanted).await.unwrap();
        assert_eq!(findings.len(), 3, "{findings:?}");
        let fatal: Vec<_> = findings.iter().map(|finding| finding.fatal).collect();
        assert_eq!(fatal, [true, true, false], "nobody sets the order of the queues at the start: {findings:?}");
        assert!(matches!(checking.open(&wanted).await.err(), Some(QueueError::Refused(_))));
        let listing = checking.queues().await.unwrap();
        let names: Vec<_> = listing.found.iter().map(|queue| (queue.name.as_str(), queue.queue.as_str())).collect();
        assert_eq!(names, [("p-jobs", "jobs"), ("p-jobs-dlq", "jobs-dlq")]);
        assert_eq!(listing.found[0].tags.get(tag::OWNER).map(String::as_str), Some("media"));
    }

    #[tokio::test]
    async fn a_look_shows_all_and_changes_nothing() {
        let broker = connect(&Postgres::shared().database()).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        let jobs: Channel = "jobs".parse().unwrap();
        let all: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        send(&broker, "jobs", all.iter().map(|body| text(body)).collect()).await;
        send(&broker, "jobs", vec![Outgoing { delay: LONG, ..text("late") }]).await;
        let leased = receive(&queue, 1, PATIENCE).await;
        let mut seen = Vec::new();
        let looked = broker
            .peek(&jobs, &mut |message| {
                seen.push(String::from_utf8_lossy(&message.body).into_owned());
                ControlFlow::Continue(())
            })
            .await;
        assert_eq!(looked, Ok(true));
        assert_eq!((seen.len(), &seen[..40], seen[40].as_str()), (41, &all[..], "late"));
        let mut first = 0;
        let until = broker
            .peek(&jobs, &mut |_| {
                first += 1;
                ControlFlow::Break(())
            })
            .await;
        assert_eq!((until, first), (Ok(true), 1));
        let depth = broker.depths(std::slice::from_ref(&jobs)).await.unwrap()[0];
        assert_eq!((depth.visible, depth.delayed, depth.in_flight), (39, Some(1), Some(1)));
        assert!(depth.oldest_age.is_some());
        let next = receive(&queue, 1, PATIENCE).await;
        assert_eq!((&*next[0].message.body, next[0].attempt), (&b"1"[..], 1), "a look counts as no attempt");
        ack(&queue, leased).await;
        let absent = broker.peek(&"absent".parse().unwrap(), &mut |_| ControlFlow::Continue(())).await;
        assert!(matches!(absent, Err(QueueError::Refused(_))), "{absent:?}");
    }

    #[tokio::test]
    async fn tables_do_not_grow_with_the_messages_that_pass() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        let size = || -> u64 {
            server.psql(&name, "VACUUM hostler_queue.entry; ");
            server.psql(&name, "VACUUM hostler_queue.content");
            let sql = "SELECT pg_total_relation_size('hostler_queue.entry') + pg_total_relation_size('hostler_queue.content')";
            server.psql(&name, sql).parse().unwrap()
        };
        let pass = async || {
            for _ in 0..10 {
                send(&broker, "jobs", (0..100).map(|_| text("x")).collect()).await;
                loop {
                    let received = receive(&queue, 32, Duration::ZERO).await;
                    if received.is_empty() {
                        break;
                    }
                    ack(&queue, received).await;
                }
            }
        };
        // Pages of indexes are free for others only after the second vacuum.
        let mut sizes = Vec::new();
        for _ in 0..6 {
            pass().await;
            sizes.push(size());
        }
        assert!(sizes[5] < sizes[1] * 3 / 2, "bytes after each pass: {sizes:?}");
    }

    /// The index must not be read for all messages that wait behind the one that is settled.
    #[tokio::test]
    async fn an_ack_costs_the_same_however_many_messages_of_its_group_wait() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        let queue = broker.open(&ChannelSpec { ordered: true, ..spec("jobs") }).await.unwrap();
        send(&broker, "jobs", (0..3).map(|n| text(&n.to_string())).collect()).await;
        let waiting = "INSERT INTO hostler_queue.entry (queue, seq, grp, due_at)
                       SELECT queue, 1000 + n, grp, due_at FROM hostler_queue.entry, generate_series(1, 20000) n
                       WHERE seq = (SELECT min(seq) FROM hostler_queue.entry)";
        server.psql(&name, waiting);
        for expected in ["0", "1"] {
            let received = receive(&queue, 1, PATIENCE).await;
            assert_eq!(&*received[0].message.body, expected.as_bytes());
            ack(&queue, received).await;
        }
        let received = receive(&queue, 1, PATIENCE).await.remove(0);
        let Delivery { message, receipt, .. } = received;
        let dead = Settlement::DeadLetter { receipt, message, reason: "why".to_owned() };
        assert!(queue.settle(vec![dead]).await.remove(0).is_ok());
        // The sessions report their numbers when they end.
        drop((queue, broker));
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'");
        let deadline = Instant::now() + PATIENCE;
        while server.psql("postgres", &sessions) != "0" {
            assert!(Instant::now() < deadline, "the sessions do not end");
            tokio::task::yield_now().await;
        }
        let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'entry_group'";
        let read: u64 = server.psql(&name, read).parse().unwrap();
        assert!(read < 1000, "{read} entries of the index were read");
    }

    #[tokio::test]
    async fn a_receive_takes_few_large_messages_at_once() {
        let broker = connect(&Postgres::shared().database()).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        for _ in 0..3 {
            let large = Outgoing { body: vec![b'x'; 15 << 20], ..Outgoing::default() };
            send(&broker, "jobs", vec![large.clone(), large]).await;
        }
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 6 {
            let received = receive(&queue, 32, PATIENCE).await;
            assert!(received.iter().all(|delivery| delivery.attempt == 1));
            sizes.push(received.len());
            ack(&queue, received).await;
        }
        assert_eq!(sizes, [2, 2, 2], "no answer has more than 32 MiB");
    }

    #[tokio::test]
    async fn old_deduplication_keys_are_removed_as_fast_as_they_come() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        broker.open(&spec("jobs")).await.unwrap();
        let old = "INSERT INTO hostler_queue.dedupe (scope, hash, id, sent_at)
                   SELECT 'queue jobs', sha256(n::text::bytea), n, now() - interval '1 day' FROM generate_series(1, 25000) n";
        server.psql(&name, old);
        for n in 0..3 {
            send(&broker, "jobs", vec![Outgoing { dedupe: Some(format!("new {n}")), ..text("a") }]).await;
        }
        assert_eq!(server.psql(&name, "SELECT count(*) FROM hostler_queue.dedupe"), "3");
    }

    /// The numbers of queues are 32 bits wide, and a dead letter makes sure that its queue exists.
    #[tokio::test]
    async fn dead_letters_use_up_no_numbers_of_queues() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", (0..5).map(|n| text(&n.to_string())).collect()).await;
        let dead =
            |Delivery { message, receipt, .. }| Settlement::DeadLetter { receipt, message, reason: "why".to_owned() };
        let received = receive(&queue, 5, PATIENCE).await;
        assert!(queue.settle(received.into_iter().map(dead).collect()).await.iter().all(Result::is_ok));
        broker.open(&spec("jobs")).await.unwrap();
        broker.open(&spec("more")).await.unwrap();
        assert_eq!(server.psql(&name, "SELECT max(id) FROM hostler_queue.queue"), "4");
    }
}
