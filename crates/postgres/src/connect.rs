//! New connections for the pool. Each has a task of its own, which ends when the pool drops the connection.

use std::future::Future;
use std::pin::Pin;

use deadpool_postgres::Connect;
use tokio::task::JoinHandle;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::debug;

use crate::address::Mode;

/// Makes connections with TLS as the address says.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) tls: MakeRustlsConnect,
    pub(crate) mode: Mode,
}

impl Connect for Connector {
    fn connect(
        &self,
        config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<Connected, tokio_postgres::Error>> + Send + '_>> {
        let config = config.clone();
        Box::pin(async move {
            match self.once(&config).await {
                Err(error) if may_go_without(self.mode, &error) => {
                    let mut plain = config.clone();
                    plain.ssl_mode(SslMode::Disable);
                    self.once(&plain).await
                }
                answer => answer,
            }
        })
    }
}

/// A connection, and the task that runs it.
type Connected = (tokio_postgres::Client, JoinHandle<()>);

impl Connector {
    async fn once(&self, config: &Config) -> Result<Connected, tokio_postgres::Error> {
        let (client, connection) = config.connect(self.tls.clone()).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection to PostgreSQL ended");
            }
        });
        Ok((client, task))
    }
}

/// Returns `true` if libpq would try again without TLS: the server has TLS, but the handshake failed, and TLS is only preferred.
pub(crate) fn may_go_without(mode: Mode, error: &tokio_postgres::Error) -> bool {
    mode == Mode::Prefer && error.as_db_error().is_none() && error.to_string().contains("TLS handshake")
}
