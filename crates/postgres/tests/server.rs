//! Checks of connections, deadlines, errors and migrations over a real server.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hostler_postgres::{
        Applied, Database, DatabaseError, Fit, MigrateError, Migration, Options, SchemaVersion, Type, migrate,
        schema_version,
    };

    use super::postgres::{PgBouncer, Postgres};

    const DEADLINE: Duration = Duration::from_secs(20);
    /// Deadline of calls to a frozen server.
    const SHORT: Duration = Duration::from_millis(500);

    fn database(url: &str, deadline: Duration) -> Database {
        Database::new(url, Options { application: "test", connections: 4, deadline }).unwrap()
    }

    async fn number(database: &Database, sql: &str) -> i64 {
        database.client().await.unwrap().query(sql, &[]).await.unwrap()[0].get(0)
    }

    #[tokio::test]
    async fn a_transaction_commits_or_rolls_back() {
        let database = database(&Postgres::shared().database(), DEADLINE);
        let mut client = database.client().await.unwrap();
        client.batch("CREATE TABLE t (n bigint PRIMARY KEY)").await.unwrap();

        let transaction = client.transaction().await.unwrap();
        assert_eq!(transaction.execute("INSERT INTO t VALUES ($1)", &[(&1_i64, Type::INT8)]).await, Ok(1));
        transaction.commit().await.unwrap();

        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO t VALUES (2)", &[]).await.unwrap();
        drop(transaction);
        assert_eq!(
            client.query("SELECT n FROM t", &[]).await.unwrap().len(),
            1,
            "a dropped transaction is rolled back"
        );

        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO t VALUES (3)", &[]).await.unwrap();
        let error = transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), (Some("23505"), false));
        assert!(transaction.commit().await.is_err(), "a failed transaction is not committed");
        drop(client);
        assert_eq!(number(&database, "SELECT count(*) FROM t").await, 1);
    }

    #[tokio::test]
    async fn no_call_outlasts_its_deadline() {
        let server = Postgres::start();
        let database = database(&server.url("postgres"), SHORT);
        database.client().await.unwrap().batch("CREATE TABLE t (n int)").await.unwrap();
        let (mut used, other) = (database.client().await.unwrap(), database.client().await.unwrap());
        let committing = used.transaction().await.unwrap();
        committing.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();

        server.freeze();
        let begun = Instant::now();
        assert_eq!(other.query("SELECT 1", &[]).await.map(drop), Err(DatabaseError::Deadline));
        assert!(matches!(other.batch("SELECT 1").await, Err(DatabaseError::Unreachable { .. })), "it was given up");
        assert_eq!(committing.commit().await, Err(DatabaseError::UnknownFate));
        drop((used, other));
        assert_eq!(database.client().await.map(drop), Err(DatabaseError::Deadline), "the old connections are gone");
        assert_eq!(database.direct().await.map(drop), Err(DatabaseError::Deadline));
        assert!(begun.elapsed() < SHORT * 10, "{:?}", begun.elapsed());

        server.thaw();
        let deadline = Instant::now() + DEADLINE;
        while database.client().await.is_err() {
            assert!(Instant::now() < deadline, "the server does not come back");
        }
    }

    #[tokio::test]
    async fn a_dropped_call_ends_its_statement_and_frees_the_pool() {
        let url = Postgres::shared().database();
        let database =
            Database::new(&url, Options { application: "dropped", connections: 1, deadline: DEADLINE }).unwrap();
        let watcher = self::database(&url, DEADLINE);
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dropped' AND state = 'active'";
        let call = tokio::spawn({
            let database = database.clone();
            async move { database.client().await.unwrap().batch("SELECT pg_sleep(60)").await }
        });
        let begun = Instant::now();
        while number(&watcher, sleeping).await == 0 {
            assert!(begun.elapsed() < DEADLINE, "the statement does not begin");
        }
        call.abort();
        assert!(call.await.is_err());
        assert_eq!(number(&database, "SELECT 1::bigint").await, 1, "the only connection of the pool is free");
        while number(&watcher, sleeping).await > 0 {
            assert!(begun.elapsed() < DEADLINE, "the statement runs on");
        }
    }

    #[tokio::test]
    async fn a_server_that_dies_is_unreachable_until_it_is_back() {
        let mut server = Postgres::start();
        let database = database(&server.url("postgres"), DEADLINE);
        let client = database.client().await.unwrap();
        client.batch("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await.unwrap();
        server.kill();
        assert!(matches!(client.query("SELECT 1", &[]).await, Err(DatabaseError::Unreachable { .. })));
        drop(client);
        assert!(matches!(database.client().await, Err(DatabaseError::Unreachable { .. })));
        server.restart();
        assert_eq!(number(&database, "SELECT count(*) FROM t").await, 1, "what was committed is there");
    }

    #[tokio::test]
    async fn errors_tell_the_next_step() {
        let server = Postgres::shared();
        let url = server.database();
        let database = database(&url, DEADLINE);
        let client = database.client().await.unwrap();
        client.batch("CREATE ROLE weak LOGIN; CREATE TABLE t (n int)").await.unwrap();
        let weak = Database::new(
            &url.replace("postgres@", "weak@"),
            Options { application: "test", connections: 1, deadline: DEADLINE },
        );
        let denied = weak.unwrap().client().await.unwrap().query("SELECT * FROM t", &[]).await.unwrap_err();
        assert!(matches!(denied, DatabaseError::Denied { .. }), "{denied}");
        let refused = client.query("SELECT * FROM absent", &[]).await.unwrap_err();
        assert!(matches!(&refused, DatabaseError::Refused { code, .. } if code == "42P01"), "{refused}");
        let absent = super::tests::database(&server.url("absent"), DEADLINE).client().await.unwrap_err();
        assert!(matches!(&absent, DatabaseError::Refused { code, .. } if code == "3D000"), "{absent}");
    }

    const ONE: Migration = step(1, "CREATE TABLE m.a (n int); SELECT pg_sleep(0.1)");
    const TWO: Migration = step(2, "CREATE TABLE m.b (n int)");
    const WRONG: Migration = step(3, "CREATE TABLE m.c (n int); SELECT 1/0");

    const fn step(version: i32, sql: &'static str) -> Migration {
        Migration { version, name: "step", compatible_from: version, sql }
    }

    #[tokio::test]
    async fn several_processes_migrate_at_once() {
        let url = Postgres::shared().database();
        let all: Vec<_> = (0..6).map(|_| database(&url, DEADLINE)).collect();
        let tasks = all
            .iter()
            .cloned()
            .map(|database| tokio::spawn(async move { migrate(&database, "m", &[ONE, TWO]).await.unwrap() }));
        let mut changed = 0;
        for task in tasks.collect::<Vec<_>>() {
            let applied = task.await.unwrap();
            assert_eq!(applied.to, 2);
            changed += usize::from(applied.from == 0);
        }
        assert_eq!(changed, 1, "one of them makes the schema");
        assert_eq!(number(&all[0], "SELECT count(*) FROM m.migration").await, 2);

        assert!(matches!(migrate(&all[0], "m", &[ONE]).await, Err(MigrateError::Newer { found: 2, known: 1, .. })));
        assert!(matches!(
            migrate(&all[0], "m", &[ONE, TWO, WRONG]).await,
            Err(MigrateError::Failed { version: 3, .. })
        ));
        let version = SchemaVersion { version: 2, compatible_from: 2 };
        assert_eq!(schema_version(&all[0], "m").await, Ok(version), "a failed step changes nothing");
        assert_eq!(
            number(&all[0], "SELECT count(*) FROM pg_tables WHERE schemaname = 'm' AND tablename = 'c'").await,
            0
        );
    }

    #[tokio::test]
    async fn an_older_process_works_with_a_newer_schema_that_is_compatible() {
        let database = database(&Postgres::shared().database(), DEADLINE);
        let fit = async |known| schema_version(&database, "m").await.unwrap().fit(known);
        assert_eq!(fit(1).await, Fit::Missing);
        let second = Migration { compatible_from: 1, ..TWO };
        migrate(&database, "m", &[ONE, second]).await.unwrap();
        assert_eq!(migrate(&database, "m", &[ONE]).await, Ok(Applied { from: 2, to: 2 }));
        assert_eq!([fit(1).await, fit(2).await, fit(3).await], [Fit::Usable, Fit::Usable, Fit::Older]);
        // One step that is not compatible counts, whatever comes after it.
        let third = step(3, "CREATE TABLE m.c (n int)");
        let fourth = Migration { compatible_from: 2, ..step(4, "CREATE TABLE m.d (n int)") };
        migrate(&database, "m", &[ONE, second, third, fourth]).await.unwrap();
        assert_eq!([fit(2).await, fit(3).await], [Fit::Newer, Fit::Usable]);
        assert!(matches!(
            migrate(&database, "m", &[ONE, second]).await,
            Err(MigrateError::Newer { found: 4, known: 2, .. })
        ));
    }

    /// At other levels, a statement that waited for the change of another transaction fails.
    #[tokio::test]
    async fn statements_read_what_is_committed_whatever_the_default_is() {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        for level in ["repeatable read", "serializable"] {
            let server = Postgres::shared();
            let name = server.new_database();
            server.psql(&name, "CREATE TABLE t AS SELECT 0 AS n");
            server.psql(&name, &format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"));
            let database = database(&server.url(&name), DEADLINE);
            for n in 0..2 {
                let mut other = database.client().await.unwrap();
                let other = other.transaction().await.unwrap();
                other.execute("UPDATE t SET n = n + 1", &[]).await.unwrap();
                let update = {
                    let database = database.clone();
                    tokio::spawn(async move { database.client().await?.execute("UPDATE t SET n = n + 1", &[]).await })
                };
                while number(&database, waiting).await == 0 {
                    assert!(!update.is_finished(), "{:?}", update.await);
                }
                other.commit().await.unwrap();
                assert_eq!(update.await.unwrap(), Ok(1), "{level}, {n}");
            }
            assert_eq!(number(&database, "SELECT sum(n) FROM t").await, 4);
        }
    }

    #[tokio::test]
    async fn pgbouncer_in_transaction_mode_can_be_between() {
        let server = Postgres::shared();
        let name = server.new_database();
        let bouncer = PgBouncer::start(server, 2);
        let database = database(&bouncer.url(&name), DEADLINE);
        migrate(&database, "m", &[ONE, TWO]).await.unwrap();
        let tasks = (0..8_i32).map(|n| {
            let database = database.clone();
            tokio::spawn(async move {
                let mut client = database.client().await.unwrap();
                for _ in 0..20 {
                    let transaction = client.transaction().await.unwrap();
                    transaction.execute("INSERT INTO m.a VALUES ($1)", &[(&n, Type::INT4)]).await.unwrap();
                    transaction.execute("INSERT INTO m.b VALUES ($1)", &[(&n, Type::INT4)]).await.unwrap();
                    transaction.commit().await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(number(&database, "SELECT count(*) FROM m.a JOIN m.b USING (n)").await, 8 * 20 * 20);
    }

    #[tokio::test]
    async fn notifications_come_on_a_connection_of_their_own() {
        let database = database(&Postgres::shared().database(), DEADLINE);
        let (client, mut notes) = database.direct().await.unwrap();
        client.batch_execute("LISTEN c").await.unwrap();
        database.client().await.unwrap().batch("NOTIFY c, 'x'").await.unwrap();
        let note = tokio::time::timeout(DEADLINE, notes.recv()).await.unwrap().unwrap();
        assert_eq!((note.channel.as_str(), note.payload.as_str()), ("c", "x"));
    }

    #[tokio::test]
    async fn certificates_are_checked_as_libpq_does() {
        let mut server = Postgres::start();
        let data = server.data();
        let script = r#"
            set -e; cd "$0"
            key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
            openssl req -x509 $key -days 2 -subj /CN=authority -addext basicConstraints=critical,CA:TRUE -keyout ca.key -out ca.pem
            openssl req $key -subj /CN=db.example -keyout server.key -out server.csr
            echo subjectAltName=DNS:db.example >server.ext
            openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.crt
            chmod 600 server.key; chown --reference=PG_VERSION server.key server.crt
            echo 'ssl = on' >>postgresql.conf
        "#;
        let made = std::process::Command::new("/bin/sh").args(["-c", script]).arg(&data).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let plain = server.url("postgres");
        assert!(database(&format!("{plain}?sslmode=require"), DEADLINE).client().await.is_err(), "it has no TLS yet");
        server.stop();
        server.restart();

        let ca = data.join("ca.pem");
        let with = |query: &str| format!("{plain}?sslmode={query}").replace("CA", ca.to_str().unwrap());
        let uses_tls = "SELECT ssl::int::bigint FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        for (query, expected) in [
            ("disable", Ok(0)),
            ("prefer", Ok(1)),
            ("require", Ok(1)),
            ("require&sslrootcert=CA", Ok(1)),
            ("verify-ca&sslrootcert=CA", Ok(1)),
            ("verify-full&sslrootcert=CA", Err(())),
        ] {
            let database = database(&with(query), DEADLINE);
            let answer = match database.client().await {
                Ok(client) => Ok(client.query(uses_tls, &[]).await.unwrap()[0].get::<_, i64>(0)),
                Err(DatabaseError::Unreachable { .. }) => Err(()),
                Err(other) => panic!("{query}: {other}"),
            };
            assert_eq!(answer, expected, "{query}");
        }
        let named = with("verify-full&sslrootcert=CA&hostaddr=127.0.0.1").replace("@127.0.0.1", "@db.example");
        assert_eq!(number(&database(&named, DEADLINE), uses_tls).await, 1, "the name is the certificate's");
    }

    /// A host that is stopped, or whose power fails, may hold locks that others wait for. The server's keepalives notice it after hours.
    #[tokio::test]
    async fn a_transaction_of_a_host_that_froze_does_not_hold_its_locks() {
        let url = Postgres::shared().database();
        let frozen = database(&url, SHORT);
        let mut client = frozen.client().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction.query("SELECT pg_advisory_xact_lock(1)", &[]).await.unwrap();
        let waiting = database(&url, DEADLINE).client().await.unwrap();
        waiting.query("SELECT pg_advisory_xact_lock(1)", &[]).await.expect("the lock is free before the deadline");
        let error = transaction.query("SELECT 1", &[]).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        assert!(transaction.commit().await.is_err());
        drop(client);
        assert_eq!(number(&frozen, "SELECT 1::bigint").await, 1);
    }

    #[tokio::test]
    async fn a_server_that_only_answers_reads_counts_as_unreachable() {
        let (mut first, second) = (Postgres::start(), Postgres::start());
        let url = format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
            first.port(),
            second.port()
        );
        let database = database(&url, DEADLINE);
        let port = "SELECT setting::bigint FROM pg_settings WHERE name = 'port'";
        assert_eq!(number(&database, port).await, i64::from(first.port()));
        first.psql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
        first.psql("postgres", "SELECT pg_reload_conf()");
        let made = "SELECT count(*) FROM pg_tables WHERE tablename = 't'";
        let deadline = Instant::now() + DEADLINE;
        loop {
            match database.client().await.unwrap().execute("CREATE TABLE IF NOT EXISTS t (n int)", &[]).await {
                Ok(_) if second.psql("postgres", made) == "1" => break,
                // The first server has not read its settings yet.
                Ok(_) => {}
                Err(error) => assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error:?}"),
            }
            assert!(Instant::now() < deadline, "a connection to the server that answers only reads is used again");
        }

        let one = self::database(&first.url("postgres"), DEADLINE);
        first.stop();
        std::fs::write(first.data().join("standby.signal"), "").unwrap();
        first.restart();
        let mut client = one.client().await.unwrap();
        let error = client.transaction().await.unwrap().execute("CREATE TABLE t (n int)", &[]).await.unwrap_err();
        assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error:?}");
    }
}
