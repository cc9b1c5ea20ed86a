//! Checks of the table of idempotency records over a real server: older schemas, rights, a database without queues.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use hostler_queue::{
        Action, Advance, Advanced, Begun, Broker, Change, Inventory, Provisioner, Schedules, Settlement,
    };
    use hostler_queue_postgres::{Options, PERMISSIONS};
    use hostler_types::{ScheduleState, Timestamp};

    use super::postgres::Postgres;
    use super::support::{PATIENCE, broker, connect, finish, receive, records, refusal, run, send, spec, text};

    /// Takes away what later versions of the schema have added.
    fn to_version(server: &Postgres, name: &str, version: u32) {
        let tables = ["hostler_queue.schedule", "hostler_queue.record"];
        for (table, added) in tables.into_iter().zip([2, 3]).filter(|(_, added)| *added > version) {
            server.psql(
                name,
                &format!("DROP TABLE {table}; DELETE FROM hostler_queue.migration WHERE version >= {added}"),
            );
        }
    }

    fn version(server: &Postgres, name: &str) -> String {
        server.psql(name, "SELECT max(version) FROM hostler_queue.migration")
    }

    /// Returns the options of a user that may neither migrate nor use the tables that versions after `version` have added.
    fn worker(server: &Postgres, name: &str, version: u32) -> Options {
        let role = format!("worker_{name}");
        server.psql(name, &format!("CREATE ROLE {role} LOGIN"));
        let later = [("schedule", 2), ("record", 3)].into_iter().filter(|(_, added)| *added > version);
        let later: Vec<&str> = later.map(|(table, _)| table).collect();
        let has_table = |line: &&str| !later.iter().any(|table| line.contains(&format!(".{table} ")));
        let grants: String = PERMISSIONS.lines().filter(has_table).collect();
        server.psql(name, &grants.replace("USER", &role));
        server.psql(name, &format!("GRANT INSERT ON hostler_queue.queue, hostler_queue.subscription TO {role}"));
        Options { url: server.url(name).replace("postgres@", &format!("{role}@")), ..Options::default() }
    }

    fn step() -> Advance {
        let time = Timestamp::from_micros(1);
        let to = ScheduleState { definition: "a".to_owned(), handled: time, sent: None, seen: time };
        let messages = vec![(time, text("2"))];
        Advance { name: "nightly".to_owned(), from: None, to, channel: "jobs".parse().unwrap(), messages }
    }

    #[tokio::test]
    async fn a_user_who_may_not_migrate_works_on_with_an_older_schema() {
        let server = Postgres::shared();
        for old in [1, 2] {
            for create_missing in [false, true] {
                let name = server.new_database();
                connect(&server.url(&name)).await.open(&spec("jobs")).await.unwrap();
                let options = worker(server, &name, old);
                to_version(server, &name, old);
                let worker = broker(Options { create_missing, ..options }).await;
                if create_missing {
                    worker.declare(&spec("jobs")).await.unwrap();
                }
                let queue = worker.open(&spec("jobs")).await.unwrap();
                let findings = worker.inspect(&spec("jobs")).await.unwrap();
                assert!(findings.iter().all(|found| !found.fault.contains("record")), "{findings:?}");
                if !create_missing {
                    assert_eq!(findings, []);
                }
                send(&worker, "jobs", vec![text("1")]).await;
                let receipt = receive(&queue, 1, PATIENCE).await.remove(0).receipt;
                queue.settle(vec![Settlement::Ack(receipt)]).await.remove(0).unwrap();
                let schedules = worker.schedules().unwrap();
                if old == 1 {
                    refusal(schedules.prepare().await);
                } else {
                    schedules.prepare().await.unwrap();
                    assert!(matches!(schedules.advance(step()).await, Ok(Advanced::Done(_))));
                    assert_eq!(schedules.planned_changes().await, Ok(Vec::new()));
                }
                let store = records(&worker);
                for answer in [store.prepare().await, store.inspect().await, store.begin(run("a", 1)).await.map(drop)] {
                    let text = refusal(answer);
                    assert!(text.contains("`hostler provision`"), "{text}");
                }
                assert!(store.finish(vec![finish("a", 1, "x")]).await[0].is_err());
                let planned = store.planned_changes().await.unwrap();
                assert!(planned.len() == 1 && planned[0].action == Action::Update, "{planned:?}");
                assert_eq!(version(server, &name), old.to_string());
            }
        }
    }

    #[tokio::test]
    async fn the_owner_brings_an_older_schema_up_to_date() {
        let server = Postgres::shared();
        for old in [1, 2] {
            let name = server.new_database();
            let owner = connect(&server.url(&name)).await;
            owner.open(&spec("jobs")).await.unwrap();
            let checking = broker(Options { url: server.url(&name), ..Options::default() }).await;
            let store = records(&checking);
            store.inspect().await.unwrap();
            to_version(server, &name, old);
            refusal(store.prepare().await);
            let planned = store.planned_changes().await.unwrap();
            assert_eq!(checking.plan(&[spec("jobs")]).await.as_ref(), Ok(&planned), "the change is the same");
            assert_eq!(version(server, &name), old.to_string());
            match old {
                1 => checking.provision(&[spec("jobs")], &mut |_| {}).await.unwrap(),
                // This broker connected before: a schema of a backup was restored.
                _ => records(&owner).prepare().await.unwrap(),
            }
            assert_eq!(version(server, &name), "3");
            assert_eq!(store.planned_changes().await, Ok(Vec::new()));
            store.prepare().await.unwrap();
            assert_eq!(store.begin(run("a", 1)).await, Ok(Begun::Started));
            // Older hosts know versions up to 1.
            assert_eq!(server.psql(&name, "SELECT max(compatible_from) FROM hostler_queue.migration"), "1");
        }
    }

    #[tokio::test]
    async fn a_database_without_queues_can_be_the_store() {
        let server = Postgres::shared();
        let name = server.new_database();
        let checking = broker(Options { url: server.url(&name), ..Options::default() }).await;
        let store = records(&checking);
        for answer in [store.prepare().await, store.inspect().await, store.begin(run("a", 1)).await.map(drop)] {
            let text = refusal(answer);
            assert!(text.contains("`hostler provision`"), "{text}");
        }
        assert_eq!(store.planned_changes().await, Ok(vec![Change::create("schema hostler_queue".to_owned())]));
        assert_eq!(server.psql(&name, "SELECT count(*) FROM pg_namespace WHERE nspname = 'hostler_queue'"), "0");
        let options = Options { url: server.url(&name), create_missing: true, ..Options::default() };
        let creating = records(&broker(options).await);
        creating.prepare().await.unwrap();
        creating.prepare().await.unwrap();
        store.inspect().await.unwrap();

        // A user of the store alone needs rights on nothing else.
        let role = format!("clerk_{name}");
        server.psql(
            &name,
            &format!(
                "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA hostler_queue TO {role};
                      GRANT SELECT ON hostler_queue.migration TO {role}"
            ),
        );
        let url = server.url(&name).replace("postgres@", &format!("{role}@"));
        for create_missing in [false, true] {
            let store = records(&broker(Options { url: url.clone(), create_missing, ..Options::default() }).await);
            for (answer, rights) in [
                (store.prepare().await, "SELECT, INSERT, UPDATE, DELETE"),
                (store.inspect().await, "SELECT, INSERT, UPDATE, DELETE"),
            ] {
                let text = refusal(answer);
                let grant = format!("GRANT {rights} ON hostler_queue.record TO {role}");
                assert!(text.ends_with(&grant), "{text}");
            }
            server.psql(&name, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON hostler_queue.record TO {role}"));
            store.prepare().await.unwrap();
            let key = create_missing.to_string();
            assert_eq!(store.begin(run(&key, 1)).await, Ok(Begun::Started));
            assert_eq!(store.finish(vec![finish(&key, 1, "x")]).await, [Ok(())]);
            assert!(matches!(store.begin(run(&key, 2)).await, Ok(Begun::Done(_))));
            server.psql(&name, &format!("REVOKE DELETE ON hostler_queue.record FROM {role}"));
            let text = refusal(store.prepare().await);
            assert!(text.ends_with(&format!("GRANT DELETE ON hostler_queue.record TO {role}")), "{text}");
            server.psql(&name, &format!("REVOKE ALL ON hostler_queue.record FROM {role}"));
        }
    }

    #[tokio::test]
    async fn a_table_that_somebody_removed_is_created_again() {
        let server = Postgres::shared();
        let name = server.new_database();
        let owner = connect(&server.url(&name)).await;
        let store = records(&broker(Options { url: server.url(&name), ..Options::default() }).await);
        store.prepare().await.unwrap();
        server.psql(&name, "DROP TABLE hostler_queue.record");
        let text = refusal(store.prepare().await);
        assert!(text.contains("hostler_queue.record") && text.contains("`hostler provision`"), "{text}");
        let planned = store.planned_changes().await.unwrap();
        assert_eq!(planned, [Change::create("table hostler_queue.record".to_owned())]);
        owner.prepare().await.unwrap();
        assert_eq!(store.planned_changes().await, Ok(planned), "schedules need their own table alone");
        records(&owner).prepare().await.unwrap();
        store.prepare().await.unwrap();
        assert_eq!(store.planned_changes().await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn consumers_need_no_rights_on_records() {
        let server = Postgres::shared();
        let name = server.new_database();
        connect(&server.url(&name)).await.open(&spec("jobs")).await.unwrap();
        let worker = broker(worker(server, &name, 2)).await;
        worker.open(&spec("jobs")).await.unwrap();
        assert_eq!(Inventory::queues(&worker).await.unwrap().found.len(), 2);
        assert_eq!(worker.inspect(&spec("jobs")).await, Ok(Vec::new()));
        let text = refusal(records(&worker).begin(run("a", 1)).await);
        assert!(text.contains("`hostler provision --permissions`"), "{text}");
    }
}
