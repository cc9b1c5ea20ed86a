//! Checks of schedules over a real server: hosts that race, refusals, versions of the schema, rights.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use hostler_queue::{
        Action, Admin, Advance, Advanced, Agreement, Broker, Provisioner, QueueError, Schedules, SendError,
    };
    use hostler_queue_postgres::{MAX_MESSAGE, Options, PERMISSIONS, PostgresBroker};
    use hostler_types::{ScheduleState, Timestamp};

    use super::postgres::Postgres;
    use super::support::{PATIENCE, broker, connect, receive, send, spec, text};

    const NAME: &str = "nightly";

    fn state(definition: &str, handled: u64) -> ScheduleState {
        let handled = Timestamp::from_micros(handled);
        ScheduleState { definition: definition.to_owned(), handled, sent: None, seen: handled }
    }

    /// Returns a step with messages of these bodies to the channel `jobs`.
    fn step(from: Option<ScheduleState>, to: ScheduleState, bodies: &[&str]) -> Advance {
        let messages = bodies.iter().map(|body| (to.handled, text(body))).collect();
        Advance { name: NAME.to_owned(), from, to, channel: "jobs".parse().unwrap(), messages }
    }

    async fn stored(broker: &PostgresBroker) -> Option<ScheduleState> {
        broker.schedules().unwrap().look(&[NAME.to_owned()]).await.unwrap().remove(0)
    }

    async fn waiting(broker: &PostgresBroker) -> u64 {
        broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0].visible
    }

    fn refusal<T>(answer: Result<T, QueueError>) -> String {
        match answer {
            Err(QueueError::Refused(text)) => text,
            Err(error) => panic!("not refused: {error}"),
            Ok(_) => panic!("not refused"),
        }
    }

    /// Takes away what the versions after 1 have added.
    fn to_version_1(server: &Postgres, name: &str) {
        server.psql(name, "DROP TABLE hostler_queue.schedule, hostler_queue.record");
        server.psql(name, "DELETE FROM hostler_queue.migration WHERE version > 1");
    }

    fn version(server: &Postgres, name: &str) -> String {
        server.psql(name, "SELECT max(version) FROM hostler_queue.migration")
    }

    /// Returns the options of a user that has the rights of a worker, but may neither migrate nor use schedules.
    fn worker(server: &Postgres, name: &str) -> Options {
        let role = format!("worker_{name}");
        server.psql(name, &format!("CREATE ROLE {role} LOGIN"));
        let grants: String = PERMISSIONS.lines().filter(|line| !line.contains("schedule")).collect();
        server.psql(name, &grants.replace("USER", &role));
        server.psql(name, &format!("GRANT INSERT ON hostler_queue.queue, hostler_queue.subscription TO {role}"));
        Options { url: server.url(name).replace("postgres@", &format!("{role}@")), ..Options::default() }
    }

    #[tokio::test]
    async fn a_step_is_stored_with_its_messages_and_survives_a_reconnection() {
        let url = Postgres::shared().database();
        let broker = connect(&url).await;
        assert_eq!(broker.agreement(), Agreement::Transaction);
        broker.prepare().await.unwrap();
        let first = ScheduleState { seen: Timestamp::from_micros(u64::MAX), ..state("a", 1) };
        assert_eq!(broker.advance(step(None, first.clone(), &[])).await, Ok(Advanced::Done(Vec::new())));
        assert!(broker.channels().await.unwrap().is_empty(), "without messages, no queue is made");
        assert_eq!(stored(&broker).await, Some(first));
        let queue = broker.open(&spec("jobs")).await.unwrap();
        let next = ScheduleState { sent: Some(Timestamp::from_micros(2)), ..state("b", u64::MAX) };
        let done = broker.advance(step(Some(state("a", 1)), next.clone(), &["1", "2"])).await;
        let Ok(Advanced::Done(sent)) = done else { panic!("{done:?}") };
        let received = receive(&queue, 10, PATIENCE).await;
        let seen: Vec<_> = received.iter().map(|one| (one.message.id.as_str(), &*one.message.body)).collect();
        assert_eq!(seen, [(sent[0].id.as_str(), &b"1"[..]), (&sent[1].id, b"2")]);
        drop((broker, queue));

        let options = Options { url, create_missing: true, ..Options::default() };
        let again = self::broker(options.clone()).await;
        let names = ["other".to_owned(), NAME.to_owned()];
        assert_eq!(again.look(&names).await, Ok(vec![None, Some(next)]));
        let prefixed = self::broker(Options { prefix: "p-".to_owned(), ..options }).await;
        assert_eq!(prefixed.look(&names).await, Ok(vec![None, None]), "the prefix separates schedules too");
        let taken = prefixed.advance(step(None, state("c", 1), &[])).await;
        assert_eq!(taken, Ok(Advanced::Done(Vec::new())));
        assert_eq!(prefixed.look(&names).await, Ok(vec![None, Some(state("c", 1))]));
    }

    #[tokio::test]
    async fn of_two_hosts_that_race_one_sends() {
        let url = Postgres::shared().database();
        let hosts = [connect(&url).await, connect(&url).await];
        let mut from = None;
        for round in 0..40 {
            let to = state("a", round);
            let take = |host: usize| hosts[host].advance(step(from.clone(), to.clone(), &["1"]));
            let (one, other) = tokio::join!(take(0), take(1));
            let mut taken = [one.unwrap(), other.unwrap()];
            taken.sort_by_key(|taken| *taken == Advanced::Changed);
            assert!(matches!(&taken, [Advanced::Done(sent), Advanced::Changed] if sent.len() == 1), "{taken:?}");
            assert_eq!(waiting(&hosts[0]).await, round + 1);
            from = Some(to);
        }
    }

    /// A step waits for another host's transaction, and sees what it has done.
    #[tokio::test]
    async fn a_step_behind_an_open_transaction_depends_on_its_end() {
        let server = Postgres::shared();
        for (begun, ends, is_done) in
            [(false, "COMMIT", false), (false, "ROLLBACK", true), (true, "COMMIT", false), (true, "ROLLBACK", true)]
        {
            let name = server.new_database();
            let host = connect(&server.url(&name)).await;
            let from = begun.then(|| state("a", 1));
            let mut other = "INSERT INTO hostler_queue.schedule VALUES ('nightly', 'a', 2, NULL, 2)";
            if begun {
                host.advance(step(None, state("a", 1), &[])).await.unwrap();
                other = "UPDATE hostler_queue.schedule SET handled = 2";
            }
            let session = tokio::task::spawn_blocking({
                let name = name.clone();
                // The other transaction ends once the step waits for it.
                let sql = format!(
                    "BEGIN; {other}; DO $$ BEGIN
                         FOR n IN 1..3000 LOOP
                             PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
                             IF EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid IS NOT NULL
                                        AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = '{name}')) THEN RETURN; END IF;
                         END LOOP;
                         RAISE 'nobody waits';
                     END $$; {ends}"
                );
                move || server.psql(&name, &sql)
            });
            let sleeps =
                format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = '{name}'");
            while server.psql("postgres", &sleeps) == "0" {
                assert!(!session.is_finished(), "the session has ended");
                tokio::task::yield_now().await;
            }
            let taken = host.advance(step(from, state("a", 3), &["1"])).await.unwrap();
            session.await.unwrap();
            assert_eq!(matches!(taken, Advanced::Done(_)), is_done, "{begun} {ends}: {taken:?}");
            assert_eq!(waiting(&host).await, u64::from(is_done));
            assert_eq!(stored(&host).await.unwrap().handled.micros(), if is_done { 3 } else { 2 });
        }
    }

    #[tokio::test]
    async fn a_step_from_another_state_or_with_an_invalid_message_changes_nothing() {
        let broker = connect(&Postgres::shared().database()).await;
        let first = state("a", 1);
        for found in [None, Some(first.clone())] {
            for from in [None, Some(first.clone()), Some(state("b", 1)), Some(state("a", 0))] {
                if from != found {
                    assert_eq!(broker.advance(step(from, state("a", 2), &["1"])).await, Ok(Advanced::Changed));
                }
            }
            let large = "x".repeat(MAX_MESSAGE + 1);
            let mut nul = step(found.clone(), state("a", 2), &["1", "2"]);
            nul.messages[1].1.group = Some("a\0b".to_owned());
            for invalid in [step(found.clone(), state("a", 2), &["1", &large]), nul] {
                let refused = broker.advance(invalid).await;
                assert!(matches!(refused, Err(SendError::Invalid(_))), "{refused:?}");
            }
            assert_eq!(stored(&broker).await, found);
            assert!(broker.channels().await.unwrap().is_empty());
            if found.is_none() {
                broker.advance(step(None, first.clone(), &[])).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_step_whose_channel_is_missing_is_not_taken() {
        let server = Postgres::shared();
        let url = server.database();
        connect(&url).await;
        let checking = broker(Options { url: url.clone(), ..Options::default() }).await;
        for from in [None, Some(state("a", 1))] {
            let failed = checking.advance(step(from.clone(), state("a", 2), &["1"])).await;
            assert!(
                matches!(&failed, Err(SendError::Queue(QueueError::Refused(text))) if text.contains("`jobs`")),
                "{failed:?}"
            );
            assert_eq!(stored(&checking).await, from);
            if from.is_none() {
                checking.advance(step(None, state("a", 1), &[])).await.unwrap();
            }
        }
        connect(&url).await.open(&spec("jobs")).await.unwrap();
        let taken = checking.advance(step(Some(state("a", 1)), state("a", 2), &["1"])).await;
        assert!(matches!(taken, Ok(Advanced::Done(_))), "{taken:?}");
        assert_eq!(waiting(&checking).await, 1);
    }

    #[tokio::test]
    async fn an_older_schema_serves_queues_and_is_updated_by_its_owner() {
        let server = Postgres::shared();
        let name = server.new_database();
        let owner = connect(&server.url(&name)).await;
        owner.open(&spec("jobs")).await.unwrap();
        to_version_1(server, &name);
        let checking = broker(Options { url: server.url(&name), ..Options::default() }).await;
        let queue = checking.open(&spec("jobs")).await.unwrap();
        assert_eq!(checking.inspect(&spec("jobs")).await, Ok(Vec::new()));
        send(&checking, "jobs", vec![text("1")]).await;
        assert_eq!(receive(&queue, 1, PATIENCE).await.len(), 1);
        assert_eq!(stored(&checking).await, None);
        for answer in [
            checking.prepare().await,
            checking.advance(step(None, state("a", 1), &[])).await.map(drop).map_err(|error| match error {
                SendError::Queue(error) => error,
                SendError::Invalid(error) => panic!("{error}"),
            }),
        ] {
            let text = refusal(answer);
            assert!(text.contains("hostler_queue.schedule") && text.contains("`hostler provision`"), "{text}");
        }
        let plan = checking.plan(&[spec("jobs")]).await.unwrap();
        assert!(plan.len() == 1 && plan[0].action == Action::Update, "{plan:?}");
        assert_eq!(version(server, &name), "1");
        checking.provision(&[spec("jobs")], &mut |_| {}).await.unwrap();
        assert_eq!(checking.plan(&[spec("jobs")]).await, Ok(Vec::new()));
        checking.prepare().await.unwrap();

        to_version_1(server, &name);
        // This broker connected before: a schema of a backup was restored.
        owner.prepare().await.unwrap();
        assert_eq!(version(server, &name), "3");
        to_version_1(server, &name);
        connect(&server.url(&name)).await;
        assert_eq!(version(server, &name), "3");
        // Older hosts know versions up to 1.
        assert_eq!(server.psql(&name, "SELECT max(compatible_from) FROM hostler_queue.migration"), "1");
    }

    #[tokio::test]
    async fn a_user_who_may_not_migrate_works_on_with_an_older_schema() {
        let server = Postgres::shared();
        let name = server.new_database();
        connect(&server.url(&name)).await.open(&spec("jobs")).await.unwrap();
        let options = worker(server, &name);
        to_version_1(server, &name);
        for create_missing in [false, true] {
            let worker = broker(Options { create_missing, ..options.clone() }).await;
            if create_missing {
                worker.declare(&spec("jobs")).await.unwrap();
            } else {
                worker.open(&spec("jobs")).await.unwrap();
                assert_eq!(worker.inspect(&spec("jobs")).await, Ok(Vec::new()));
            }
            send(&worker, "jobs", vec![text("1")]).await;
            assert_eq!(stored(&worker).await, None);
            let text = refusal(worker.prepare().await);
            assert!(text.contains("`hostler provision`"), "{text}");
            let text = refusal(worker.provision(&[spec("jobs")], &mut |_| {}).await);
            assert!(text.contains("brought up to date") && text.contains("its owner"), "{text}");
            assert_eq!(version(server, &name), "1");
        }
    }

    #[tokio::test]
    async fn the_statement_that_grants_the_missing_rights_is_told() {
        let server = Postgres::shared();
        let name = server.new_database();
        connect(&server.url(&name)).await.open(&spec("jobs")).await.unwrap();
        let options = worker(server, &name);
        let worker = broker(options).await;
        worker.open(&spec("jobs")).await.unwrap();
        assert_eq!(worker.inspect(&spec("jobs")).await, Ok(Vec::new()), "consumers need no rights on schedules");
        refusal(worker.look(&[NAME.to_owned()]).await);
        let text = refusal(worker.prepare().await);
        let grant = text.split_once("run: ").unwrap().1;
        assert_eq!(grant, format!("GRANT SELECT, INSERT, UPDATE ON hostler_queue.schedule TO worker_{name}"));
        server.psql(&name, grant);
        worker.prepare().await.unwrap();
        let taken = worker.advance(step(None, state("a", 1), &["1"])).await;
        assert!(matches!(taken, Ok(Advanced::Done(_))), "{taken:?}");
        let taken = worker.advance(step(Some(state("a", 1)), state("a", 2), &["2"])).await;
        assert!(matches!(taken, Ok(Advanced::Done(_))), "{taken:?}");
        assert_eq!(worker.look(&[NAME.to_owned()]).await, Ok(vec![Some(state("a", 2))]));
        server.psql(&name, &format!("REVOKE UPDATE ON hostler_queue.schedule FROM worker_{name}"));
        let text = refusal(worker.prepare().await);
        assert!(text.ends_with(&format!("GRANT UPDATE ON hostler_queue.schedule TO worker_{name}")), "{text}");
    }

    #[tokio::test]
    async fn a_look_at_a_database_without_the_schema_creates_nothing() {
        let server = Postgres::shared();
        let name = server.new_database();
        let checking = broker(Options { url: server.url(&name), ..Options::default() }).await;
        let names = [NAME.to_owned(), "other".to_owned()];
        assert_eq!(checking.look(&names).await, Ok(vec![None, None]));
        let text = refusal(checking.prepare().await);
        assert!(text.contains("`hostler provision`"), "{text}");
        assert_eq!(server.psql(&name, "SELECT count(*) FROM pg_namespace WHERE nspname = 'hostler_queue'"), "0");
        let creating = Options { url: server.url(&name), create_missing: true, ..Options::default() };
        broker(creating).await.prepare().await.unwrap();
        assert_eq!(checking.look(&names).await, Ok(vec![None, None]));
    }

    #[tokio::test]
    async fn the_table_takes_no_state_that_hostler_does_not_write() {
        let server = Postgres::shared();
        let name = server.new_database();
        connect(&server.url(&name)).await;
        let values = [
            "('', 'a', 1, 1, 1)",
            "('n', 'a', -1, 1, 1)",
            "('n', 'a', 1, -1, 1)",
            "('n', 'a', 1, 1, 253402300800000000)",
        ];
        for values in values {
            let insert = format!("INSERT INTO hostler_queue.schedule VALUES {values}");
            let sql = format!("DO $$ BEGIN {insert}; RAISE 'taken'; EXCEPTION WHEN check_violation THEN NULL; END $$");
            server.psql(&name, &sql);
        }
    }

    #[tokio::test]
    async fn a_lost_server_leaves_the_step_to_be_looked_up() {
        let mut server = Postgres::start();
        let broker = connect(&server.url("postgres")).await;
        broker.advance(step(None, state("a", 1), &[])).await.unwrap();
        server.kill();
        let lost = broker.advance(step(Some(state("a", 1)), state("a", 2), &["1"])).await;
        assert!(matches!(lost, Err(SendError::Queue(QueueError::Unavailable(_)))), "{lost:?}");
        server.restart();
        let mut found = broker.look(&[NAME.to_owned()]).await;
        if found.is_err() {
            // The first call may find a connection that died.
            found = broker.look(&[NAME.to_owned()]).await;
        }
        assert_eq!(found, Ok(vec![Some(state("a", 1))]));
    }

    #[tokio::test]
    async fn a_table_that_somebody_removed_is_created_again() {
        let server = Postgres::shared();
        let name = server.new_database();
        let owner = connect(&server.url(&name)).await;
        owner.prepare().await.unwrap();
        for provisions in [true, false] {
            server.psql(&name, "DROP TABLE hostler_queue.schedule");
            let checking = broker(Options { url: server.url(&name), ..Options::default() }).await;
            let text = refusal(checking.prepare().await);
            assert!(text.contains("`hostler provision`"), "{text}");
            let planned = checking.planned_changes().await.unwrap();
            assert!(planned.len() == 1 && planned[0].resource == "table hostler_queue.schedule", "{planned:?}");
            if provisions {
                assert_eq!(checking.make_changes().await, Ok(planned));
            } else {
                owner.prepare().await.unwrap();
            }
            assert_eq!(checking.planned_changes().await, Ok(Vec::new()));
            checking.prepare().await.unwrap();
        }
    }

    /// A step from there finds the row, and changes nothing.
    #[tokio::test]
    async fn a_state_that_hostler_did_not_write_ends_no_host() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        broker.prepare().await.unwrap();
        broker.advance(step(None, state("a", 1), &[])).await.unwrap();
        for damage in [
            "ALTER COLUMN handled DROP NOT NULL; UPDATE hostler_queue.schedule SET handled = NULL",
            "DROP CONSTRAINT schedule_handled_check, ALTER COLUMN handled TYPE text",
        ] {
            server.psql(&name, &format!("ALTER TABLE hostler_queue.schedule {damage}"));
            assert_eq!(stored(&broker).await, None);
        }
        let broken = broker.advance(step(None, state("a", 2), &[])).await;
        assert!(matches!(broken, Ok(Advanced::Changed) | Err(SendError::Queue(_))), "{broken:?}");
    }
}
