//! Checks that the table of queues still has the row under which a queue was opened.
//!
//! A consumer finds its messages by the id of its queue. If somebody renames the row of the queue, changes the id or
//! deletes the row, senders reach another queue of the same name, and the consumer would wait for ever.

use rusqlite::{Connection, OptionalExtension};

/// A row of the table of queues.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Registration {
    pub(super) id: i64,
    pub(super) name: String,
}

/// The change of a row since the queue was opened.
#[derive(Debug, PartialEq, Eq)]
enum Changed {
    /// No row has the id.
    Missing,
    /// The row with the id has this name, with replacement characters for invalid bytes.
    Renamed(String),
}

impl Registration {
    /// Returns what happened to the row, and the cure. `None`: the row is unchanged.
    pub(super) fn fault(&self, db: &Connection) -> rusqlite::Result<Option<String>> {
        let mut query = db.prepare_cached("SELECT name FROM queue WHERE id = ?1")?;
        let changed = query
            .query_row([self.id], |row| {
                let stored = row.get_ref(0)?.as_bytes_or_null()?.unwrap_or_default();
                let is_same = stored == self.name.as_bytes();
                Ok((!is_same).then(|| Changed::Renamed(String::from_utf8_lossy(stored).into_owned())))
            })
            .optional()?
            .unwrap_or(Some(Changed::Missing));
        Ok(changed.map(|changed| self.text(&changed)))
    }

    /// Returns the error text. The text follows the path of the queue's file.
    fn text(&self, changed: &Changed) -> String {
        let Self { id, name } = self;
        let state = match changed {
            Changed::Missing => "is missing".to_owned(),
            Changed::Renamed(other) => format!("is named `{other}`"),
        };
        format!(
            "the row of the queue `{name}` in the table `queue` was changed while a hostler had it open: the row with id {id}, to \
             which its messages belong, {state}; put it back (id {id}, name `{name}`), or restart hostler to go on with what the \
             file has under this name"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hostler_queue::{Broker, ChannelSpec, Delivery, Queue, QueueError, Receive};
    use hostler_types::message::Outgoing;
    use tokio_util::sync::CancellationToken;

    use super::super::EmbeddedBroker;
    use super::*;

    async fn receive(queue: &Arc<dyn Queue>, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        let request = Receive { max: 10, wait, lease: Duration::from_secs(30) };
        queue.receive(request, &CancellationToken::new()).await
    }

    async fn opened(broker: &EmbeddedBroker, channel: &str) -> Arc<dyn Queue> {
        let spec = ChannelSpec { max_receives: Some(9), ..ChannelSpec::new(channel.parse().unwrap()) };
        broker.open(&spec).await.unwrap()
    }

    #[tokio::test]
    async fn a_receive_fails_while_the_row_of_its_queue_is_changed() {
        let renamed = "is named `old`";
        for (change, undo, state) in [
            ("UPDATE queue SET name = 'old' WHERE id = 1", "UPDATE queue SET name = 'jobs' WHERE id = 1", renamed),
            ("UPDATE queue SET id = 9 WHERE id = 1", "UPDATE queue SET id = 1 WHERE id = 9", "is missing"),
            ("DELETE FROM queue WHERE id = 1", "INSERT INTO queue VALUES (1, 'jobs', 0)", "is missing"),
            ("UPDATE queue SET name = 'old' WHERE id = 2", "UPDATE queue SET name = 'jobs-dlq' WHERE id = 2", renamed),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue.db");
            let broker = EmbeddedBroker::open(&path).unwrap();
            let (queue, other) = (opened(&broker, "jobs").await, opened(&broker, "other").await);
            let told = |error: QueueError| {
                let QueueError::Refused(text) = &error else { panic!("{change}: {error}") };
                let name = path.to_str().unwrap();
                assert!(text.contains(state) && text.contains("put it back (id ") && text.contains(name), "{text}");
            };
            let meddler = Connection::open(&path).unwrap();
            let meddle = async { assert_eq!(meddler.execute(change, []).unwrap(), 1) };
            let (waiting, ()) = tokio::join!(receive(&queue, Duration::from_secs(20)), meddle);
            told(waiting.unwrap_err());
            // The next receive fails too, whether or not messages are there.
            told(receive(&queue, Duration::ZERO).await.unwrap_err());
            broker.send(&"other".parse().unwrap(), vec![Outgoing::default()]).await.remove(0).unwrap();
            assert_eq!(receive(&other, Duration::from_secs(20)).await.unwrap().len(), 1, "other queues go on");

            assert_eq!(meddler.execute(undo, []).unwrap(), 1);
            broker.send(&"jobs".parse().unwrap(), vec![Outgoing::default()]).await.remove(0).unwrap();
            assert_eq!(receive(&queue, Duration::from_secs(20)).await.unwrap().len(), 1, "{change}: it is back");
        }
    }
}
