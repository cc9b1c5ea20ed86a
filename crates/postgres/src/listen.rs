//! A connection outside of the pool, which gets notifications.

use std::future::poll_fn;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Config};

use crate::connect::{Connector, may_go_without};
use crate::error::DatabaseError;

/// A notification (`NOTIFY`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Channel of the notification.
    pub channel: String,
    /// Payload. Empty if the sender gave none.
    pub payload: String,
}

/// The notifications of a connection. Dropping this value ends the connection.
#[derive(Debug)]
pub struct Notifications {
    notes: mpsc::UnboundedReceiver<Note>,
    task: JoinHandle<()>,
}

impl Notifications {
    /// Waits for the next notification. `None`: the connection has ended. The future can be dropped at any time without a loss.
    pub async fn recv(&mut self) -> Option<Note> {
        self.notes.recv().await
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Makes a connection, and starts the task that runs it.
pub(crate) async fn connect(
    config: &Config,
    connector: &Connector,
) -> Result<(tokio_postgres::Client, Notifications), DatabaseError> {
    let connected = match config.connect(connector.tls.clone()).await {
        Err(error) if may_go_without(connector.mode, &error) => {
            let mut plain = config.clone();
            plain.ssl_mode(SslMode::Disable);
            plain.connect(connector.tls.clone()).await
        }
        answer => answer,
    };
    let (client, mut connection) = connected?;
    let (send, notes) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message {
                let note = Note { channel: note.channel().to_owned(), payload: note.payload().to_owned() };
                // Without a receiver, the connection still serves its client.
                let _ = send.send(note);
            }
        }
    });
    Ok((client, Notifications { notes, task }))
}
