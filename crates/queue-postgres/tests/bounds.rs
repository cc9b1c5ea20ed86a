//! Checks over a real server that calls are bounded: in time, and in the number of statements.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use hostler_queue::{Admin, Broker, ChannelSpec, Queue, Receive};
    use hostler_queue_postgres::{Options, PostgresBroker};
    use tokio_util::sync::CancellationToken;

    use super::postgres::Postgres;
    use super::support::{LONG, PATIENCE, broker, connect, receive, send, spec, text};

    #[tokio::test]
    async fn a_stop_ends_a_receive_that_moves_dead_letters() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", (0..1000).map(|n| text(&n.to_string())).collect()).await;
        server.psql(&name, "UPDATE hostler_queue.entry SET attempts = 5");
        let stop = CancellationToken::new();
        let receiving = {
            let (queue, stop) = (Arc::clone(&queue), stop.clone());
            let request = Receive { max: 10, wait: Duration::ZERO, lease: LONG };
            tokio::spawn(async move { queue.receive(request, &stop).await })
        };
        let jobs = ["jobs".parse().unwrap()];
        while broker.depths(&jobs).await.unwrap()[0].dead_lettered == 0 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        assert_eq!(receiving.await.unwrap().map(|received| received.len()), Ok(0));
        assert!(broker.depths(&jobs).await.unwrap()[0].visible > 0, "it went on to the end");
    }

    #[tokio::test]
    async fn a_message_that_others_lock_is_not_asked_for_all_the_time() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", vec![text("a")]).await;
        let locking = {
            let name = name.clone();
            let sql = "SELECT 1 FROM hostler_queue.entry FOR UPDATE; SELECT pg_sleep(5)";
            tokio::task::spawn_blocking(move || server.psql(&name, sql))
        };
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = ";
        while server.psql("postgres", &format!("{sleeps}'{name}'")) == "0" {
            tokio::task::yield_now().await;
        }
        assert!(receive(&queue, 1, Duration::from_secs(2)).await.is_empty());
        locking.await.unwrap();
        sessions_end(server, &name, (queue, broker)).await;
        let scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'entry_visible'";
        let scans: u64 = server.psql(&name, scans).parse().unwrap();
        assert!(scans < 60, "{scans} scans in 2 s");
    }

    #[tokio::test]
    async fn making_a_long_queue_ordered_may_take_longer_than_a_call() {
        let server = Postgres::shared();
        let name = server.new_database();
        let deadline = Duration::from_millis(500);
        let options = Options { url: server.url(&name), create_missing: true, ..Options::default() };
        let broker = broker(options.clone()).await;
        broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", vec![text("a")]).await;
        let many = "INSERT INTO hostler_queue.entry (queue, seq, due_at, visible_at)
                    SELECT queue, 1000 + n, due_at, visible_at FROM hostler_queue.entry, generate_series(1, 100000) n";
        server.psql(&name, many);
        let content = "INSERT INTO hostler_queue.content (seq, id, enqueued_at, body)
                       SELECT seq, 'x', due_at, '' FROM hostler_queue.entry WHERE seq > 1000";
        server.psql(&name, content);
        let hurried = PostgresBroker::connect(Options { deadline, ..options }).await.unwrap();
        let queue = hurried.open(&ChannelSpec { ordered: true, ..spec("jobs") }).await.unwrap();
        assert_eq!(receive(&queue, 10, PATIENCE).await.len(), 1, "the others wait for it");
    }

    /// Drops what uses a database, and waits until its sessions have ended: they report their numbers then.
    async fn sessions_end(server: &Postgres, name: &str, users: (Arc<dyn Queue>, PostgresBroker)) {
        drop(users);
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'");
        let deadline = Instant::now() + PATIENCE;
        while server.psql("postgres", &sessions) != "0" {
            assert!(Instant::now() < deadline, "the sessions do not end");
            tokio::task::yield_now().await;
        }
    }
}
