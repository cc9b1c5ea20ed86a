//! Checks over a real server that a broker copes with what others have changed: the config of earlier hosts, settings of the database.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostler_queue::{Action, Broker, ChannelSpec, Provisioner, Settlement};
    use hostler_queue_postgres::Options;

    use super::postgres::Postgres;
    use super::support::{broker, connect, receive, send, spec, text};

    #[tokio::test]
    async fn a_subscription_to_an_earlier_exchange_is_reported_and_stays() {
        let server = Postgres::shared();
        let name = server.new_database();
        let plain = Options { url: server.url(&name), create_missing: true, ..Options::default() };
        let mine = broker(Options { prefix: "a-".to_owned(), ..plain.clone() }).await;
        let others = broker(Options { prefix: "b-".to_owned(), ..plain }).await;
        for one in [&mine, &others] {
            one.open(&spec("old.jobs")).await.unwrap();
        }
        mine.open(&spec("new.jobs")).await.unwrap();
        let wanted = spec("new.jobs");
        let plan = mine.plan(std::slice::from_ref(&wanted)).await.unwrap();
        assert_eq!(plan.len(), 1, "{plan:?}");
        assert_eq!((plan[0].action, plan[0].resource.as_str()), (Action::Leave, "subscription of a-jobs to a-old"));
        mine.provision(std::slice::from_ref(&wanted), &mut |_| {}).await.unwrap();
        send(&mine, "old.jobs", vec![text("1")]).await;
        let findings = mine.inspect(&wanted).await.unwrap();
        assert!(findings.len() == 1 && !findings[0].fatal, "{findings:?}");
        // The cure works.
        let cure = findings[0].cure.split_once(": ").unwrap().1;
        server.psql(&name, cure);
        assert_eq!(mine.inspect(&wanted).await, Ok(Vec::new()));
        assert_eq!(mine.plan(&[wanted]).await, Ok(Vec::new()));
        // A channel that names only the queue has whatever feeds it.
        let bare: ChannelSpec = spec("jobs");
        assert_eq!(mine.inspect(&bare).await, Ok(Vec::new()));
        assert_eq!(others.inspect(&spec("old.jobs")).await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn another_isolation_level_of_the_database_changes_nothing() {
        let server = Postgres::shared();
        for level in ["repeatable read", "serializable"] {
            let name = server.new_database();
            server.psql(&name, &format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"));
            let sender = connect(&server.url(&name)).await;
            sender.open(&spec("jobs")).await.unwrap();
            for batch in 0..5 {
                send(&sender, "jobs", (0..100).map(|n| text(&format!("{batch}-{n}"))).collect()).await;
            }
            let workers: Vec<_> = (0..6)
                .map(|_| {
                    let url = server.url(&name);
                    tokio::spawn(async move {
                        let broker = connect(&url).await;
                        let queue = broker.open(&spec("jobs")).await.unwrap();
                        let mut count = 0;
                        loop {
                            let received = receive(&queue, 7, Duration::from_millis(300)).await;
                            if received.is_empty() {
                                return count;
                            }
                            count += received.len();
                            let acks = received.into_iter().map(|one| Settlement::Ack(one.receipt)).collect();
                            for settled in queue.settle(acks).await {
                                settled.unwrap();
                            }
                        }
                    })
                })
                .collect();
            let mut all = 0;
            for worker in workers {
                all += worker.await.unwrap();
            }
            assert_eq!(all, 500, "{level}");
        }
    }
}
