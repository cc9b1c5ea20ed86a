//! Checks of idempotency records over a real server: runs that race, records that expire, damaged rows.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use futures_util::future::join_all;
    use hostler_queue::{Begin, Begun, Done, Finish, LeaseError, QueueError, Records, RunEnd};
    use hostler_queue_postgres::Options;

    use super::postgres::Postgres;
    use super::support::{LONG, PATIENCE, broker, connect, finish, hold, records, refusal, run, taking_over};

    /// Returns a store, and the name of its database.
    async fn store() -> (Arc<dyn Records>, String) {
        let server = Postgres::shared();
        let name = server.new_database();
        (records(&connect(&server.url(&name)).await), name)
    }

    fn is_lost(results: &[Result<(), LeaseError>]) -> bool {
        results.iter().all(|result| matches!(result, Err(LeaseError::Lost(_))))
    }

    async fn done(store: &Arc<dyn Records>, key: &str) -> Done {
        match store.begin(taking_over(key, 99)).await {
            Ok(Begun::Done(done)) => done,
            other => panic!("{key} is not done: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_run_holds_its_record_until_it_has_finished() {
        let (store, _) = store().await;
        assert_eq!(store.begin(run("a", 1)).await, Ok(Begun::Started));
        let busy = store.begin(taking_over("a", 2)).await;
        assert!(matches!(busy, Ok(Begun::Busy(left)) if left > LONG / 2 && left <= LONG), "{busy:?}");
        assert_eq!(store.begin(run("a", 1)).await, Ok(Begun::Started), "the call is repeated");
        let other = |token| Begin { body: [2; 32], ..taking_over("a", token) };
        assert_eq!(store.begin(other(2)).await, Ok(Begun::OtherBody));
        assert!(is_lost(&store.finish(vec![finish("a", 2, "x"), finish("none", 1, "x")]).await));
        assert!(is_lost(&store.extend(&[hold("a", 2), hold("none", 1)], LONG).await));
        store.end(&[(hold("a", 2), RunEnd::Forget)]).await.unwrap();
        assert!(matches!(store.begin(run("a", 2)).await, Ok(Begun::Busy(_))), "others cannot end the run");

        let success = Finish { unsent: Some(b"m".to_vec()), ..finish("a", 1, "yes") };
        assert_eq!(store.finish(vec![success.clone(), success.clone()]).await, [Ok(()), Ok(())]);
        let expected = Done { hold: hold("a", 1), reply: Some(b"yes".to_vec()), unsent: Some(b"m".to_vec()) };
        for token in [1, 2] {
            assert_eq!(store.begin(taking_over("a", token)).await, Ok(Begun::Done(expected.clone())));
        }
        assert_eq!(store.begin(other(2)).await, Ok(Begun::OtherBody));
        store.sent(&[hold("a", 2), hold("none", 1)]).await.unwrap();
        assert_eq!(done(&store, "a").await, expected, "only the run that has finished can have sent");
        store.sent(&[hold("a", 1)]).await.unwrap();
        assert_eq!(store.finish(vec![success]).await, [Ok(())]);
        assert!(is_lost(&store.finish(vec![finish("a", 2, "x")]).await));
        assert!(is_lost(&store.extend(&[hold("a", 1)], Duration::ZERO).await));
        store.end(&[(hold("a", 1), RunEnd::Forget)]).await.unwrap();
        store.end(&[(hold("a", 1), RunEnd::Lapse)]).await.unwrap();
        assert_eq!(done(&store, "a").await, Done { unsent: None, ..expected }, "what is done stays done");
    }

    #[tokio::test]
    async fn a_lapsed_record_is_taken_over_by_those_who_may() {
        let (store, name) = store().await;
        for lapses in [true, false] {
            let key = if lapses { "a" } else { "b" };
            store.begin(run(key, 1)).await.unwrap();
            if lapses {
                store.end(&[(hold(key, 1), RunEnd::Lapse)]).await.unwrap();
            } else {
                let late = "UPDATE hostler_queue.record SET leased_until = now() - interval '1 second' WHERE label = 'orders b'";
                Postgres::shared().psql(&name, late);
            }
            assert_eq!(store.begin(run(key, 2)).await, Ok(Begun::Unknown));
            assert_eq!(store.begin(Begin { body: [2; 32], ..taking_over(key, 2) }).await, Ok(Begun::OtherBody));
            assert_eq!(store.extend(&[hold(key, 1)], LONG).await, [Ok(())], "nobody has taken over");
            assert!(matches!(store.begin(taking_over(key, 2)).await, Ok(Begun::Busy(_))));
            store.end(&[(hold(key, 1), RunEnd::Lapse)]).await.unwrap();
            assert_eq!(store.begin(taking_over(key, 2)).await, Ok(Begun::TakenOver));

            assert!(is_lost(&store.finish(vec![finish(key, 1, "x")]).await));
            assert!(is_lost(&store.extend(&[hold(key, 1)], LONG).await));
            store.end(&[(hold(key, 1), RunEnd::Forget), (hold(key, 1), RunEnd::Lapse)]).await.unwrap();
            assert!(matches!(store.begin(taking_over(key, 1)).await, Ok(Begun::Busy(_))));
            store.end(&[(hold(key, 2), RunEnd::Lapse)]).await.unwrap();
            assert_eq!(store.finish(vec![finish(key, 2, "late")]).await, [Ok(())], "nobody has taken over");
            assert_eq!(done(&store, key).await.reply.as_deref(), Some(&b"late"[..]));
        }
    }

    #[tokio::test]
    async fn a_batch_has_a_result_for_each_entry() {
        let (store, _) = store().await;
        for key in ["a", "b", "c", "d"] {
            store.begin(run(key, 1)).await.unwrap();
        }
        let ends = [("a", RunEnd::Forget), ("b", RunEnd::Lapse), ("none", RunEnd::Forget)];
        store.end(&ends.map(|(key, end)| (hold(key, 1), end))).await.unwrap();
        assert_eq!(store.begin(run("a", 2)).await, Ok(Begun::Started), "a failure is forgotten");
        assert_eq!(store.begin(run("b", 2)).await, Ok(Begun::Unknown));
        let extended = store.extend(&[hold("d", 1), hold("a", 1), hold("c", 1), hold("d", 1)], LONG).await;
        assert!(matches!(&extended[..], [Ok(()), Err(LeaseError::Lost(_)), Ok(()), Ok(())]), "{extended:?}");
        let finished = store
            .finish(vec![finish("d", 1, "D"), finish("a", 1, "x"), finish("c", 1, "C"), finish("d", 1, "x")])
            .await;
        assert!(matches!(&finished[..], [Ok(()), Err(LeaseError::Lost(_)), Ok(()), Ok(())]), "{finished:?}");
        assert_eq!(done(&store, "c").await.reply.as_deref(), Some(&b"C"[..]));
        assert_eq!(done(&store, "d").await.reply.as_deref(), Some(&b"D"[..]), "the first of two counts");
        assert!(store.finish(Vec::new()).await.is_empty() && store.extend(&[], LONG).await.is_empty());
        assert_eq!((store.sent(&[]).await, store.end(&[]).await), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn replies_need_not_fit_into_one_statement() {
        let (store, _) = store().await;
        let large = vec![7; store.max_size()];
        let keys = ["a", "b", "c"];
        for key in keys {
            store.begin(run(key, 1)).await.unwrap();
        }
        let success = |key: &str| Finish { reply: Some(large.clone()), ..finish(key, 1, "") };
        let finished = store.finish(keys.iter().map(|key| success(key)).collect()).await;
        assert_eq!(finished, [Ok(()), Ok(()), Ok(())]);
        for key in keys {
            assert!(done(&store, key).await.reply.is_some_and(|reply| reply == large), "{key}");
        }
    }

    #[tokio::test]
    async fn a_record_lasts_as_long_as_its_time_and_its_lease() {
        let (store, name) = store().await;
        let seconds = |column: &str| -> f64 {
            let sql = format!("SELECT extract(epoch FROM {column} - now()) FROM hostler_queue.record");
            Postgres::shared().psql(&name, &sql).parse().unwrap()
        };
        let day = Duration::from_secs(86_400);
        store.begin(Begin { ttl: day * 400, label: "a\0b".to_owned(), ..run("a", 1) }).await.unwrap();
        assert_eq!(store.extend(&[hold("a", 1)], LONG).await, [Ok(())]);
        assert!((399.0 * 86_400.0..=400.0 * 86_400.0).contains(&seconds("expires_at")));
        store.end(&[(hold("a", 1), RunEnd::Forget)]).await.unwrap();
        store.begin(Begin { ttl: LONG, ..run("a", 1) }).await.unwrap();
        assert_eq!(store.extend(&[hold("a", 1)], day).await, [Ok(())]);
        assert!(seconds("leased_until") > 86_000.0);
        assert!(seconds("expires_at") >= seconds("leased_until") - 1.0, "a record outlasts its lease");
        store.finish(vec![Finish { ttl: LONG, ..finish("a", 1, "x") }]).await.remove(0).unwrap();
        assert!(is_lost(&store.extend(&[hold("a", 1)], day).await));
        assert!((1.0..=60.0).contains(&seconds("expires_at")), "a success ends when it ends");
        assert_eq!(store.begin(Begin { ttl: Duration::MAX, ..run("b", 1) }).await, Ok(Begun::Started));
    }

    #[tokio::test]
    async fn an_expired_record_exists_for_no_call() {
        let (store, name) = store().await;
        for key in ["run", "done", "end", "new"] {
            store.begin(run(key, 1)).await.unwrap();
        }
        assert_eq!(store.finish(vec![finish("done", 1, "x")]).await, [Ok(())]);
        let server = Postgres::shared();
        server.psql(&name, "UPDATE hostler_queue.record SET expires_at = now() - interval '1 second'");
        assert!(is_lost(&store.extend(&[hold("run", 1), hold("done", 1)], LONG).await));
        assert!(is_lost(&store.finish(vec![finish("run", 1, "x"), finish("done", 1, "x")]).await));
        store.end(&[(hold("end", 1), RunEnd::Forget)]).await.unwrap();
        assert_eq!(server.psql(&name, "SELECT count(*) FROM hostler_queue.record"), "4", "begins remove them");
        for key in ["new", "done"] {
            assert_eq!(store.begin(Begin { body: [2; 32], ..run(key, 2) }).await, Ok(Begun::Started));
            assert!(matches!(store.begin(taking_over(key, 3)).await, Ok(Begun::OtherBody)));
        }
        assert_eq!(store.finish(vec![finish("done", 2, "new")]).await, [Ok(())]);
    }

    /// The number of rows that each begin reads depends on neither the live nor the expired records.
    #[tokio::test]
    async fn expired_records_are_removed_as_fast_as_they_come() {
        let (store, name) = store().await;
        let server = Postgres::shared();
        let rows = |from: u32, to: u32, expires: &str| {
            format!(
                "INSERT INTO hostler_queue.record
                 SELECT sha256(n::text::bytea), n, sha256('body'), n, true, now(), now() + interval '{expires}' * n
                 FROM generate_series({from}, {to}) n"
            )
        };
        server.psql(&name, &rows(1, 9, "-1 second"));
        server.psql(&name, &rows(10, 20_000, "1 hour"));
        let expired = "SELECT count(*) FROM hostler_queue.record WHERE expires_at < now()";
        for left in ["5", "1", "0", "0"] {
            store.begin(run(left, 1)).await.unwrap();
            assert_eq!(server.psql(&name, expired), left);
        }
        server.psql(
            &name,
            "UPDATE hostler_queue.record SET expires_at = now() - interval '1 second' WHERE token BETWEEN 10 AND 5009",
        );
        let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
        for key in &keys {
            store.begin(run(key, 1)).await.unwrap();
        }
        let holds: Vec<_> = keys.iter().map(|key| hold(key, 1)).collect();
        assert!(store.extend(&holds, LONG).await.iter().all(Result::is_ok));
        assert!(store.finish(keys.iter().map(|key| finish(key, 1, "x")).collect()).await.iter().all(Result::is_ok));
        store.sent(&holds).await.unwrap();
        assert_eq!(server.psql(&name, expired), "4800");
        // The sessions report their numbers when they end.
        drop(store);
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'");
        let deadline = Instant::now() + PATIENCE;
        while server.psql("postgres", &sessions) != "0" {
            assert!(Instant::now() < deadline, "the sessions do not end");
            tokio::task::yield_now().await;
        }
        // Sessions of psql read all rows six times, to count them and to change them.
        let read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'record'";
        let read: u64 = server.psql(&name, read).parse().unwrap();
        assert!(read < 7 * 21_000, "{read} rows were read");
    }

    #[tokio::test]
    async fn of_many_runs_that_race_one_starts() {
        let server = Postgres::shared();
        let name = server.new_database();
        let url = server.url(&name);
        let stores = [records(&connect(&url).await), records(&connect(&url).await)];
        let before = [
            "SELECT 1",
            "UPDATE hostler_queue.record SET leased_until = now() - interval '1 second'",
            "UPDATE hostler_queue.record SET expires_at = now() - interval '1 second'",
            "DELETE FROM hostler_queue.record",
        ];
        for (round, prepare) in before.into_iter().cycle().take(20).enumerate() {
            server.psql(&name, prepare);
            let first = i64::try_from(round * 100).unwrap();
            let begins = (0..16).map(|n| stores[n % 2].begin(taking_over("a", first + i64::try_from(n).unwrap())));
            let begun: Vec<Begun> = join_all(begins).await.into_iter().map(Result::unwrap).collect();
            let busy = begun.iter().filter(|begun| matches!(begun, Begun::Busy(_))).count();
            let expected = if round % 4 == 1 { Begun::TakenOver } else { Begun::Started };
            let won = begun.iter().filter(|begun| **begun == expected).count();
            assert_eq!((won, busy), if round == 0 || round % 4 != 0 { (1, 15) } else { (0, 16) }, "{round}: {begun:?}");
        }
    }

    /// Each run locks its own record, and removes those of others.
    #[tokio::test]
    async fn runs_that_replace_expired_records_do_not_block_each_other() {
        let server = Postgres::shared();
        let name = server.new_database();
        let url = server.url(&name);
        let stores = [records(&connect(&url).await), records(&connect(&url).await)];
        let keys: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        for round in 0..20 {
            let begins =
                (0..24).map(|n| stores[n % 2].begin(run(&keys[n / 2], i64::try_from(n + round * 100).unwrap())));
            let begun: Vec<Begun> = join_all(begins).await.into_iter().map(Result::unwrap).collect();
            for pair in begun.chunks(2) {
                let started = pair.iter().filter(|begun| **begun == Begun::Started).count();
                assert_eq!(started, 1, "{pair:?}");
            }
            server.psql(&name, "UPDATE hostler_queue.record SET expires_at = now() - interval '1 second'");
        }
    }

    /// A begin waits for another transaction, and decides by what that has done.
    #[tokio::test]
    async fn a_begin_behind_an_open_transaction_depends_on_its_end() {
        let server = Postgres::shared();
        let lapse = "UPDATE hostler_queue.record SET leased_until = now() - interval '1 second'";
        let take = "UPDATE hostler_queue.record SET token = 7, leased_until = now() + interval '1 hour'";
        let copy = "CREATE TABLE c AS TABLE hostler_queue.record; DELETE FROM hostler_queue.record";
        let insert = "INSERT INTO hostler_queue.record TABLE c";
        let busy = Begun::Busy(Duration::ZERO);
        for (before, other, ends, expected) in [
            (lapse, take, "COMMIT", busy.clone()),
            (lapse, take, "ROLLBACK", Begun::TakenOver),
            (copy, insert, "COMMIT", busy.clone()),
            (copy, insert, "ROLLBACK", Begun::Started),
            ("SELECT 1", "DELETE FROM hostler_queue.record", "COMMIT", Begun::Started),
            ("SELECT 1", "DELETE FROM hostler_queue.record", "ROLLBACK", busy),
            ("SELECT 1", lapse, "COMMIT", Begun::TakenOver),
        ] {
            let (store, name) = store().await;
            store.begin(run("a", 1)).await.unwrap();
            server.psql(&name, before);
            let session = tokio::task::spawn_blocking({
                let name = name.clone();
                // The other transaction ends once the begin waits for it.
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
            let begun = store.begin(taking_over("a", 2)).await.unwrap();
            session.await.unwrap();
            let begun = if let Begun::Busy(_) = begun { Begun::Busy(Duration::ZERO) } else { begun };
            assert_eq!(begun, expected, "{before}; {other}; {ends}");
        }
    }

    #[tokio::test]
    async fn a_damaged_row_is_an_error_for_its_key_alone() {
        let server = Postgres::shared();
        for (column, value) in [
            ("token", "NULL"),
            ("done", "NULL"),
            ("leased_until", "NULL"),
            ("leased_until", "'infinity'"),
            ("expires_at", "NULL"),
            ("body", "NULL"),
            ("body", "'short'"),
        ] {
            let (store, name) = store().await;
            for key in ["bad", "good"] {
                store.begin(run(key, 1)).await.unwrap();
            }
            let table = "ALTER TABLE hostler_queue.record DROP CONSTRAINT record_body_check, ALTER COLUMN";
            server.psql(&name, &format!("{table} {column} DROP NOT NULL"));
            server
                .psql(&name, &format!("UPDATE hostler_queue.record SET {column} = {value} WHERE label = 'orders bad'"));
            let text = refusal(store.begin(taking_over("bad", 2)).await);
            assert!(text.contains(&format!("`{column}`")), "{text}");
            let holds = [hold("bad", 1), hold("good", 1)];
            for results in [
                store.extend(&holds, LONG).await,
                store.finish(vec![finish("bad", 1, "x"), finish("good", 1, "x")]).await,
            ] {
                let names = |text: &str| text.contains(&format!("`{column}`"));
                assert!(
                    matches!(&results[..], [Err(LeaseError::Unfit(text)), Ok(())] if names(text)),
                    "{column}: {results:?}"
                );
            }
            refusal(store.sent(&holds).await);
            refusal(store.end(&holds.map(|hold| (hold, RunEnd::Forget))).await);
            assert_eq!(done(&store, "good").await.reply.as_deref(), Some(&b"x"[..]));
        }
    }

    #[tokio::test]
    async fn columns_of_another_type_end_no_host() {
        let server = Postgres::shared();
        for column in ["reply", "unsent"] {
            let (store, name) = store().await;
            store.begin(run("a", 1)).await.unwrap();
            store.finish(vec![finish("a", 1, "x")]).await.remove(0).unwrap();
            server.psql(&name, &format!("ALTER TABLE hostler_queue.record ALTER COLUMN {column} TYPE text USING 'x'"));
            let text = refusal(store.begin(run("a", 2)).await);
            assert!(text.contains(&format!("`{column}`")), "{text}");
            assert_eq!(store.begin(run("b", 2)).await, Ok(Begun::Started));
            store.end(&[(hold("b", 2), RunEnd::Forget)]).await.unwrap();
            assert_eq!(store.begin(run("b", 3)).await, Ok(Begun::Started), "no other key is affected");
        }
        let (store, name) = store().await;
        store.begin(run("a", 1)).await.unwrap();
        server.psql(&name, "ALTER TABLE hostler_queue.record ALTER COLUMN token TYPE text");
        refusal(store.begin(run("a", 1)).await);
        assert!(store.finish(vec![finish("a", 1, "x")]).await[0].is_err());
        assert!(store.end(&[(hold("a", 1), RunEnd::Forget)]).await.is_err());
    }

    #[tokio::test]
    async fn prefixes_separate_records() {
        let server = Postgres::shared();
        let options = Options { url: server.database(), create_missing: true, ..Options::default() };
        let prefixes = ["", "p-", "q-"];
        for prefix in prefixes {
            let store = records(&broker(Options { prefix: prefix.to_owned(), ..options.clone() }).await);
            assert_eq!(store.begin(run("a", 1)).await, Ok(Begun::Started), "{prefix}");
            assert_eq!(store.finish(vec![finish("a", 1, prefix)]).await, [Ok(())]);
        }
        for prefix in prefixes {
            let store = records(&broker(Options { prefix: prefix.to_owned(), ..options.clone() }).await);
            let expected = Done { hold: hold("a", 1), reply: Some(prefix.into()), unsent: None };
            assert_eq!(done(&store, "a").await, expected);
        }
    }

    #[tokio::test]
    async fn a_killed_server_forgets_no_success() {
        let mut server = Postgres::start();
        let store = records(&connect(&server.url("postgres")).await);
        for key in ["a", "b"] {
            store.begin(run(key, 1)).await.unwrap();
        }
        assert_eq!(store.finish(vec![finish("a", 1, "x")]).await, [Ok(())]);
        server.kill();
        let lost = store.begin(run("c", 1)).await;
        assert!(matches!(lost, Err(QueueError::Unavailable(_))), "{lost:?}");
        assert!(matches!(store.finish(vec![finish("b", 1, "x")]).await[..], [Err(LeaseError::Retry(_))]));
        assert!(matches!(store.extend(&[hold("b", 1)], LONG).await[..], [Err(LeaseError::Retry(_))]));
        assert!(
            store.sent(&[hold("a", 1)]).await.is_err() && store.end(&[(hold("b", 1), RunEnd::Lapse)]).await.is_err()
        );
        server.restart();
        // The first calls may find connections that died.
        let deadline = Instant::now() + PATIENCE;
        while store.sent(&[]).await.is_ok() && store.begin(run("b", 1)).await.is_err() {
            assert!(Instant::now() < deadline, "the server does not come back");
        }
        assert!(matches!(store.begin(run("b", 2)).await, Ok(Begun::Busy(_))), "the run was durable");
        assert_eq!(done(&store, "a").await.reply.as_deref(), Some(&b"x"[..]));
        assert_eq!(store.finish(vec![finish("b", 1, "x")]).await, [Ok(())]);
    }
}
