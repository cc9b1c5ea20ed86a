//! Measures the memory that a look at large messages needs. Alone in its process, whose memory it measures.

#[cfg(test)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[cfg(test)]
mod support;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use hostler_queue::{Admin, Broker};
    use hostler_types::channel::Channel;

    use super::postgres::Postgres;
    use super::support::{connect, spec};

    const SIZE: u64 = 8 << 20;

    /// Returns a value of this process in bytes.
    fn memory(name: &str) -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    #[tokio::test]
    async fn a_look_has_few_large_messages_in_memory_at_once() {
        let server = Postgres::shared();
        let name = server.new_database();
        let broker = connect(&server.url(&name)).await;
        broker.open(&spec("jobs")).await.unwrap();
        let content = format!(
            "INSERT INTO hostler_queue.content (seq, id, enqueued_at, body)
             SELECT n, n, now(), convert_to(repeat(n % 10 || 'x', {SIZE} / 2), 'UTF8') FROM generate_series(1, 20) n"
        );
        server.psql(&name, &content);
        let entries = "INSERT INTO hostler_queue.entry (queue, seq, due_at, visible_at)
                       SELECT q.id, n, now(), now() FROM hostler_queue.queue q, generate_series(1, 20) n WHERE q.name = 'jobs'";
        server.psql(&name, entries);
        // Resets the peak.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = memory("VmRSS");
        let mut sizes = Vec::new();
        let jobs: Channel = "jobs".parse().unwrap();
        let whole = broker
            .peek(&jobs, &mut |message| {
                sizes.push(message.body.len() as u64);
                ControlFlow::Continue(())
            })
            .await;
        assert_eq!(whole, Ok(true));
        assert_eq!(sizes, vec![SIZE; 20]);
        let most = memory("VmHWM") - before;
        assert!(most < 6 * SIZE, "{most} bytes for messages of {SIZE}");
    }
}
