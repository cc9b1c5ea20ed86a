//! Checks over a real server of acks that record a success and send messages.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hostler_queue::{
        Admin, Begun, Broker, ChannelSpec, Commit, Delivery, Finish, LeaseError, Queue, Receipt, Report, RunEnd,
        Settlement,
    };
    use hostler_queue_postgres::{MAX_MESSAGE, Options, PERMISSIONS, PostgresBroker};
    use hostler_types::message::{Outgoing, TraceContext};

    use super::postgres::Postgres;
    use super::support::{
        LONG, PATIENCE, broker, connect, finish, hold, receive, records, run, send, spec, taking_over, text,
    };

    /// A queue `jobs` with a message for each key, which is received and whose run has begun with the token 1.
    struct Work {
        name: String,
        broker: PostgresBroker,
        queue: Arc<dyn Queue>,
    }

    impl Work {
        async fn new(spec: &ChannelSpec) -> Self {
            let name = Postgres::shared().new_database();
            let broker = connect(&Postgres::shared().url(&name)).await;
            let queue = broker.open(spec).await.unwrap();
            Self { name, broker, queue }
        }

        /// Sends a message for each key, begins its run, and returns its receipt.
        async fn begin(&self, keys: &[&str]) -> Vec<Receipt> {
            send(&self.broker, "jobs", keys.iter().map(|key| text(key)).collect()).await;
            for key in keys {
                assert_eq!(records(&self.broker).begin(run(key, 1)).await, Ok(Begun::Started));
            }
            let received = receive(&self.queue, keys.len(), PATIENCE).await;
            assert_eq!(received.len(), keys.len());
            received.into_iter().map(|delivery| delivery.receipt).collect()
        }

        /// Settles a batch. Returns the results.
        async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), LeaseError>> {
            let results = self.queue.settle(batch).await;
            results.into_iter().map(|result| result.map_err(|unsettled| unsettled.error)).collect()
        }

        /// Returns the bodies that wait in a queue, in their order.
        async fn waiting(&self, queue: &str) -> Vec<String> {
            let sql = format!(
                "SELECT convert_from(c.body, 'UTF8') FROM hostler_queue.entry e JOIN hostler_queue.content c USING (seq)
                 JOIN hostler_queue.queue q ON q.id = e.queue WHERE q.name = '{queue}' ORDER BY e.seq"
            );
            self.psql(&sql).lines().map(str::to_owned).collect()
        }

        fn psql(&self, sql: &str) -> String {
            Postgres::shared().psql(&self.name, sql)
        }

        async fn is_done(&self, key: &str) -> bool {
            matches!(records(&self.broker).begin(run(key, 9)).await, Ok(Begun::Done(_)))
        }

        /// Returns `true` if the run with the token 1 holds the record.
        async fn is_running(&self, key: &str) -> bool {
            records(&self.broker).begin(run(key, 1)).await == Ok(Begun::Started)
        }
    }

    fn ack(receipt: Receipt, finish: Option<Finish>, messages: &[(&str, &str)]) -> Settlement {
        let messages = messages.iter().map(|(channel, body)| (channel.parse().unwrap(), text(body))).collect();
        commit(receipt, Commit { finish, messages })
    }

    fn commit(receipt: Receipt, commit: Commit) -> Settlement {
        Settlement::Ack(receipt.with_report(Report::Commit(Arc::new(commit))))
    }

    fn success(key: &str) -> Option<Finish> {
        Some(finish(key, 1, "reply"))
    }

    fn again(receipt: &Receipt) -> Receipt {
        Receipt::new(receipt.as_str())
    }

    #[tokio::test]
    async fn an_ack_removes_records_and_sends_at_once() {
        let work = Work::new(&spec("jobs")).await;
        for queue in ["events.first", "events.second"] {
            work.broker.open(&spec(queue)).await.unwrap();
        }
        let receipts = work.begin(&["a", "b", "c"]).await;
        let mut batch = Vec::new();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace = Arc::new(TraceContext::parse(parent, None).unwrap());
        let sent = [[("out", "1"), ("events.first", "2"), ("out", "3")], [("out", "4"), ("first", "5"), ("out", "6")]];
        for ((receipt, key), messages) in receipts.into_iter().zip(["a", "b"]).zip(sent) {
            let traced = |body| Outgoing { trace: Some(Arc::clone(&trace)), ..text(body) };
            let messages = messages.iter().map(|(channel, body)| (channel.parse().unwrap(), traced(body))).collect();
            batch.push(commit(receipt, Commit { finish: success(key), messages }));
        }
        assert_eq!(work.settle(batch).await, [Ok(()), Ok(())]);
        assert_eq!(work.waiting("jobs").await, ["c"]);
        assert_eq!(work.waiting("out").await, ["1", "3", "4", "6"]);
        assert_eq!(work.waiting("first").await, ["2", "5"]);
        assert_eq!(work.waiting("second").await, ["2"]);
        assert!(work.is_done("a").await && work.is_done("b").await && work.is_running("c").await);
        let received = receive(&work.broker.open(&spec("out")).await.unwrap(), 1, PATIENCE).await;
        assert_eq!(received[0].message.trace.as_ref(), Some(&trace));
        assert_eq!(work.psql("SELECT count(*) FROM hostler_queue.content"), "8");
    }

    #[tokio::test]
    async fn an_ack_of_a_key_that_was_processed_before_sends_too() {
        let work = Work::new(&spec("jobs")).await;
        let mut receipts = work.begin(&["a", "b"]).await;
        let second = receipts.remove(1);
        let first = receipts.remove(0);
        assert_eq!(records(&work.broker).finish(vec![finish("b", 1, "x")]).await, [Ok(())]);
        let batch = vec![ack(first, None, &[("out", "1")]), ack(second, success("b"), &[("out", "2")])];
        assert_eq!(work.settle(batch).await, [Ok(()), Ok(())], "the own token has finished the record");
        assert_eq!(work.waiting("out").await, ["1", "2"]);
        assert!(work.is_running("a").await && work.is_done("b").await);
    }

    #[tokio::test]
    async fn a_repeated_ack_sends_nothing_again() {
        let work = Work::new(&spec("jobs")).await;
        let receipt = work.begin(&["a"]).await.remove(0);
        let retry = again(&receipt);
        assert_eq!(work.settle(vec![ack(receipt, success("a"), &[("out", "1")])]).await, [Ok(())]);
        let repeated = work.settle(vec![ack(retry, success("a"), &[("out", "1")])]).await;
        assert!(matches!(repeated[..], [Err(LeaseError::Lost(_))]), "{repeated:?}");
        assert_eq!(work.waiting("out").await, ["1"]);
    }

    #[tokio::test]
    async fn an_ack_whose_lease_is_lost_changes_nothing() {
        let work = Work::new(&spec("jobs")).await;
        let receipts = work.begin(&["a", "b", "c"]).await;
        work.psql(
            "UPDATE hostler_queue.entry SET visible_at = now() - interval '1 second' WHERE seq = 1;
             UPDATE hostler_queue.entry SET lease = lease + 1 WHERE seq = 2",
        );
        let batch = receipts.into_iter().zip(["a", "b", "c"]);
        let batch = batch.map(|(receipt, key)| ack(receipt, success(key), &[("out", key)])).collect();
        let results = work.settle(batch).await;
        assert!(matches!(results[..], [Err(LeaseError::Lost(_)), Err(LeaseError::Lost(_)), Ok(())]), "{results:?}");
        assert_eq!(work.waiting("jobs").await, ["a", "b"]);
        assert_eq!(work.waiting("out").await, ["c"]);
        assert!(work.is_running("a").await && work.is_running("b").await && work.is_done("c").await);
    }

    #[tokio::test]
    async fn an_ack_whose_run_does_not_hold_its_record_changes_nothing() {
        let work = Work::new(&spec("jobs")).await;
        let keys = ["taken", "expired", "good", "forgotten", "better"];
        let receipts = work.begin(&keys).await;
        let store = records(&work.broker);
        store.end(&[(hold("taken", 1), RunEnd::Lapse), (hold("forgotten", 1), RunEnd::Forget)]).await.unwrap();
        assert_eq!(store.begin(taking_over("taken", 2)).await, Ok(Begun::TakenOver));
        work.psql("UPDATE hostler_queue.record SET expires_at = now() WHERE label = 'orders expired'");
        let batch = receipts.into_iter().zip(keys);
        let batch = batch.map(|(receipt, key)| ack(receipt, success(key), &[("out", key)])).collect();
        for (result, key) in work.settle(batch).await.into_iter().zip(keys) {
            match key {
                "good" | "better" => assert_eq!(result, Ok(()), "{key}"),
                _ => assert!(matches!(result, Err(LeaseError::Lost(_))), "{key}: {result:?}"),
            }
        }
        assert_eq!(work.waiting("jobs").await, ["taken", "expired", "forgotten"]);
        assert_eq!(work.waiting("out").await, ["good", "better"]);
        assert_eq!(work.broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0].in_flight, Some(3));
    }

    #[tokio::test]
    async fn an_ack_that_can_never_work_leaves_the_others_of_its_batch_alone() {
        let work = Work::new(&spec("jobs")).await;
        let ordered = ChannelSpec { ordered: true, ..spec("ordered") };
        work.broker.open(&ordered).await.unwrap();
        work.broker.open(&spec("out")).await.unwrap();
        let keys = ["good", "channel", "exchange", "invalid", "damaged", "group", "plain", "back", "better"];
        let receipts = work.begin(&keys).await;
        work.psql("ALTER TABLE hostler_queue.record ALTER COLUMN done DROP NOT NULL");
        work.psql("UPDATE hostler_queue.record SET done = NULL WHERE label = 'orders damaged'");
        let options = Options { url: Postgres::shared().url(&work.name), ..Options::default() };
        let work = Work { queue: broker(options).await.open(&spec("jobs")).await.unwrap(), ..work };
        // Random text, which the index cannot store in compressed form.
        let group: String = (0..9000).map(|_| fastrand::alphanumeric()).collect();
        let batch = receipts.into_iter().zip(keys).map(|(receipt, key)| {
            let with = |channel: &str, message: Outgoing| {
                let channel = channel.parse().unwrap();
                Commit { finish: success(key), messages: vec![("out".parse().unwrap(), text(key)), (channel, message)] }
            };
            match key {
                "channel" => commit(receipt, with("absent", text("x"))),
                "exchange" => commit(receipt, with("absent.queue", text("x"))),
                "invalid" => commit(receipt, with("out", text(&"x".repeat(MAX_MESSAGE + 1)))),
                "group" => commit(receipt, with("ordered", Outgoing { group: Some(group.clone()), ..text("x") })),
                "plain" => Settlement::Ack(receipt),
                "back" => Settlement::Release(receipt, LONG),
                _ => ack(receipt, success(key), &[("out", key)]),
            }
        });
        for (result, key) in work.settle(batch.collect()).await.into_iter().zip(keys) {
            let part = match key {
                "channel" | "exchange" => "`absent`",
                "invalid" => "takes at most",
                "damaged" => "`done`",
                "group" => "index row",
                _ => {
                    assert_eq!(result, Ok(()), "{key}");
                    continue;
                }
            };
            assert!(matches!(&result, Err(LeaseError::Unfit(text)) if text.contains(part)), "{key}: {result:?}");
        }
        assert_eq!(work.waiting("out").await, ["good", "better"]);
        assert_eq!(work.waiting("jobs").await, ["channel", "exchange", "invalid", "damaged", "group", "back"]);
        for key in ["channel", "exchange", "invalid", "group", "plain", "back"] {
            assert!(work.is_running(key).await, "{key}");
        }
        assert!(work.is_done("good").await && work.is_done("better").await);
    }

    #[tokio::test]
    async fn an_ack_creates_the_queues_that_its_broker_may_create() {
        let work = Work::new(&spec("jobs")).await;
        let receipt = work.begin(&["a"]).await.remove(0);
        let messages = [("new", "1"), ("exchange.other", "2")];
        assert_eq!(work.settle(vec![ack(receipt, success("a"), &messages)]).await, [Ok(())]);
        assert_eq!(
            (work.waiting("new").await, work.waiting("other").await),
            (vec!["1".to_owned()], vec!["2".to_owned()])
        );
    }

    #[tokio::test]
    async fn an_ack_lets_the_next_message_of_its_group_through() {
        let ordered = ChannelSpec { ordered: true, ..spec("jobs") };
        let work = Work::new(&ordered).await;
        send(&work.broker, "jobs", ["a", "b", "c"].map(text).to_vec()).await;
        for key in ["a", "b"] {
            records(&work.broker).begin(run(key, 1)).await.unwrap();
            let received = receive(&work.queue, 10, PATIENCE).await;
            let [Delivery { message, receipt, .. }] = received.try_into().unwrap();
            assert_eq!(&*message.body, key.as_bytes());
            let lost = work.settle(vec![ack(again(&receipt), Some(finish(key, 2, "x")), &[("jobs", "d")])]).await;
            assert!(matches!(lost[..], [Err(LeaseError::Lost(_))]), "{lost:?}");
            assert!(receive(&work.queue, 10, Duration::ZERO).await.is_empty(), "the group is blocked as before");
            assert_eq!(work.settle(vec![ack(receipt, success(key), &[("jobs", "d")])]).await, [Ok(())]);
        }
        assert_eq!(work.waiting("jobs").await, ["c", "d", "d"]);
        assert_eq!(&*receive(&work.queue, 10, PATIENCE).await[0].message.body, b"c");
    }

    #[tokio::test]
    async fn deduplication_drops_messages_within_a_batch_and_after_it() {
        let work = Work::new(&spec("jobs")).await;
        let receipts = work.begin(&["a", "b", "c"]).await;
        let mut batch = Vec::new();
        for (receipt, key) in receipts.into_iter().zip(["a", "b", "c"]) {
            let once = Outgoing { dedupe: Some("k".to_owned()), ..text(key) };
            let messages = vec![("out".parse().unwrap(), once.clone()), ("other".parse().unwrap(), once)];
            batch.push(commit(receipt, Commit { finish: success(key), messages }));
        }
        let last = batch.pop().unwrap();
        assert_eq!(work.settle(batch).await, [Ok(()), Ok(())]);
        assert_eq!(work.settle(vec![last]).await, [Ok(())]);
        for queue in ["out", "other"] {
            assert_eq!(work.waiting(queue).await, ["a"], "each queue has keys of its own");
        }
    }

    #[tokio::test]
    async fn a_commit_without_an_answer_is_tried_again() {
        let work = Work::new(&spec("jobs")).await;
        let receipts = work.begin(&["a", "b"]).await;
        work.psql(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER die AFTER UPDATE ON hostler_queue.record DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION die()",
        );
        let batch = |receipts: &[Receipt]| {
            let all = receipts.iter().zip(["a", "b"]);
            all.map(|(receipt, key)| ack(again(receipt), success(key), &[("out", key)])).collect::<Vec<_>>()
        };
        let results = work.settle(batch(&receipts)).await;
        let is_retry = |result: &Result<(), LeaseError>| matches!(result, Err(LeaseError::Retry(text)) if text.contains("may have succeeded"));
        assert!(results.iter().all(is_retry), "{results:?}");
        assert_eq!((work.waiting("jobs").await.len(), work.waiting("out").await.len()), (2, 0));
        work.psql("DROP TRIGGER die ON hostler_queue.record");
        assert_eq!(work.settle(batch(&receipts)).await, [Ok(()), Ok(())]);
        assert_eq!(work.waiting("out").await, ["a", "b"]);
    }

    #[tokio::test]
    async fn a_deadlock_is_tried_again() {
        let work = Work::new(&spec("jobs")).await;
        let receipt = work.begin(&["a"]).await.remove(0);
        let name = work.name.clone();
        // The ack waits for the record, and this session then for the message. Only the ack looks for deadlocks.
        let sql = "BEGIN; SET LOCAL deadlock_timeout = '1h'; UPDATE hostler_queue.record SET label = 'x';
             DO $$ BEGIN
                 FOR n IN 1..3000 LOOP
                     PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
                     IF EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid IS NOT NULL AND pid IN (
                         SELECT pid FROM pg_stat_activity WHERE datname = current_database())) THEN RETURN; END IF;
                 END LOOP;
                 RAISE 'nobody waits';
             END $$; UPDATE hostler_queue.entry SET attempts = attempts; COMMIT";
        let session = tokio::task::spawn_blocking({
            let name = name.clone();
            move || Postgres::shared().psql(&name, sql)
        });
        let sleeps =
            format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = '{name}'");
        while Postgres::shared().psql("postgres", &sleeps) == "0" {
            assert!(!session.is_finished(), "the session has ended");
            tokio::task::yield_now().await;
        }
        let results = work.settle(vec![ack(again(&receipt), success("a"), &[("out", "1")])]).await;
        assert!(matches!(&results[..], [Err(LeaseError::Retry(text))] if text.contains("40P01")), "{results:?}");
        session.await.unwrap();
        assert_eq!(work.settle(vec![ack(receipt, success("a"), &[("out", "1")])]).await, [Ok(())]);
        assert_eq!(work.waiting("out").await, ["1"]);
    }

    #[tokio::test]
    async fn an_ack_without_the_table_or_its_rights_waits_for_them() {
        let work = Work::new(&spec("jobs")).await;
        work.broker.open(&spec("out")).await.unwrap();
        let receipts = work.begin(&["a", "b"]).await;
        let role = format!("acker_{}", work.name);
        work.psql(&format!("CREATE ROLE {role} LOGIN"));
        let grants: String = PERMISSIONS.lines().filter(|line| !line.contains("record")).collect();
        work.psql(&grants.replace("USER", &role));
        let url = Postgres::shared().url(&work.name).replace("postgres@", &format!("{role}@"));
        let worker = broker(Options { url, ..Options::default() }).await.open(&spec("jobs")).await.unwrap();
        let work = Work { queue: worker, ..work };
        let batch =
            || vec![ack(again(&receipts[0]), success("a"), &[("out", "1")]), Settlement::Ack(again(&receipts[1]))];
        let results = work.settle(batch()).await;
        assert!(
            matches!(&results[..], [Err(LeaseError::Retry(text)), Ok(())] if text.contains("grant")),
            "{results:?}"
        );
        work.psql("ALTER TABLE hostler_queue.record RENAME TO elsewhere");
        let results = work.settle(batch()).await;
        let table = "no table hostler_queue.record";
        assert!(matches!(&results[0], Err(LeaseError::Retry(text)) if text.contains(table)), "{results:?}");
        work.psql("ALTER TABLE hostler_queue.elsewhere RENAME TO record");
        work.psql(&PERMISSIONS.replace("USER", &role));
        assert_eq!(work.settle(batch()).await[0], Ok(()));
        assert_eq!(work.waiting("out").await, ["1"]);
    }

    #[tokio::test]
    async fn two_hosts_that_commit_to_the_same_queues_send_each_message_once() {
        let work = Work::new(&spec("jobs")).await;
        for channel in ["x", "y"] {
            work.broker.open(&ChannelSpec { ordered: true, ..spec(channel) }).await.unwrap();
        }
        let keys: Vec<String> = (0..60).map(|n| n.to_string()).collect();
        let mut batches = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for (some, part) in keys.chunks(30).enumerate() {
            let receipts = work.begin(&part.iter().map(String::as_str).collect::<Vec<_>>()).await;
            for (n, (receipt, key)) in receipts.into_iter().zip(part).enumerate() {
                // The halves send to the queues in opposite orders.
                let order = if n % 2 == 0 { ["x", "y"] } else { ["y", "x"] };
                batches[some * 2 + n % 2].push((receipt, key.as_str(), order));
            }
        }
        let other = connect(&Postgres::shared().url(&work.name)).await.open(&spec("jobs")).await.unwrap();
        let settling = batches.iter().enumerate().map(async |(n, batch)| {
            let queue = if n % 2 == 0 { &work.queue } else { &other };
            let mut left: Vec<_> = batch.iter().collect();
            while !left.is_empty() {
                let all = left.iter().map(|(receipt, key, order)| {
                    ack(again(receipt), success(key), &order.map(|channel| (channel, *key)))
                });
                let results = queue.settle(all.collect()).await;
                let retry = left.into_iter().zip(results).filter_map(|(one, result)| match result.err()?.error {
                    LeaseError::Retry(_) => Some(one),
                    error => panic!("{error}"),
                });
                left = retry.collect();
            }
        });
        tokio::time::timeout(LONG, futures_util::future::join_all(settling)).await.unwrap();
        let mut expected = keys.clone();
        expected.sort_unstable();
        for queue in ["x", "y"] {
            let mut sent = work.waiting(queue).await;
            sent.sort_unstable();
            assert_eq!(sent, expected, "{queue}");
        }
        assert!(work.waiting("jobs").await.is_empty());
    }

    #[tokio::test]
    async fn the_check_of_a_message_is_that_of_the_send() {
        let work = Work::new(&spec("jobs")).await;
        let channel = "jobs".parse().unwrap();
        let nul = Outgoing { group: Some("a\0b".to_owned()), ..text("x") };
        let large = text(&"x".repeat(MAX_MESSAGE + 1));
        let slow = Outgoing { delay: Duration::MAX, ..text("x") };
        for message in [nul, large, slow, text(&"x".repeat(2 << 20)), text("x")] {
            let checked = work.broker.check(&channel, &message);
            let sent = work.broker.send(&channel, vec![message]).await.remove(0);
            assert_eq!(checked.is_ok(), sent.is_ok(), "{checked:?} {sent:?}");
        }
    }
}
