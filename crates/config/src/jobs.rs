//! `[jobs]`: settings of `hostler jobs`, and of those who use the job service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::applets::Applet;
use super::choice::Fanout;
use super::grants::{AmqpUrl, PostgresUrl, Token, Url};
use super::postgres::root_certificate;
use super::settings::{Mismatch, Settings};
use hostler_types::Rate;

/// `[jobs]`: the job service, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobService {
    /// Address of the database.
    pub database: Option<PostgresUrl>,
    /// File that contains the address. Unused with `database`. Without both, this config cannot serve jobs.
    pub database_file: Option<PathBuf>,
    /// PEM file with certificates of authorities, as `sslrootcert` of `database` names it.
    pub root_certificate: Option<PathBuf>,
    /// IP address and port at which the service answers.
    pub listen: SocketAddr,
    /// Interval of a worker's heartbeats: 1 s to 10 min.
    pub heartbeat: Duration,
    /// Time for which a complete tree is kept: at least 1 s.
    pub retention: Duration,
    /// Way in which idle workers learn of new items.
    pub fanout: Fanout,
    /// Address of RabbitMQ. Set exactly if `fanout` needs it.
    pub rabbitmq: Option<AmqpUrl>,
    /// Tokens that the service accepts.
    pub tokens: JobTokens,
    /// Secret that signs callbacks. `None`: the database keeps a random one.
    pub callback_secret: Option<Token>,
    /// Maximum number of requests of one token. `None`: unlimited.
    pub rate_limit: Option<Rate>,
    /// Applets that feeds may name, sorted by name.
    pub applets: Vec<Applet>,
    /// Address of the service for its users, without a slash at the end.
    pub url: String,
    /// Token that users of the service show. `None`: they show none.
    pub token: Option<Token>,
}

/// `[jobs.tokens]`: the tokens that the job service accepts, each with its role. All differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobTokens {
    /// Token of those who create jobs and read their results.
    pub producer: Option<Token>,
    /// Token of those who process items.
    pub worker: Option<Token>,
    /// Token for all calls.
    pub operator: Option<Token>,
}

impl JobTokens {
    /// Returns `true` if the service asks nobody for a token.
    pub fn is_empty(&self) -> bool {
        self.producer.is_none() && self.worker.is_none() && self.operator.is_none()
    }
}

impl JobService {
    /// Returns `true` if the config says where the database is.
    pub fn has_database(&self) -> bool {
        self.database.is_some() || self.database_file.is_some()
    }

    pub(super) fn read(settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.root();
        let listen = at.need("jobs.listen")?;
        let database: Option<PostgresUrl> = at.maybe("jobs.database")?;
        let url: Option<Url> = at.maybe("jobs.url")?;
        Ok(Self {
            root_certificate: database.as_ref().and_then(|url| root_certificate(url.expose())).map(PathBuf::from),
            database,
            database_file: at.maybe("jobs.database_file")?,
            listen,
            heartbeat: at.need("jobs.heartbeat")?,
            retention: at.need("jobs.retention")?,
            fanout: at.need("jobs.fanout")?,
            rabbitmq: at.maybe("jobs.rabbitmq")?,
            tokens: JobTokens {
                producer: at.maybe("jobs.tokens.producer")?,
                worker: at.maybe("jobs.tokens.worker")?,
                operator: at.maybe("jobs.tokens.operator")?,
            },
            callback_secret: at.maybe("jobs.callback_secret")?,
            rate_limit: at.maybe("jobs.rate_limit")?,
            applets: settings.applets.keys().map(|name| Applet::read(name, settings)).collect::<Result<_, _>>()?,
            url: url.map_or_else(|| url_of(listen), |url| url.0.trim_end_matches('/').to_owned()),
            token: at.maybe("jobs.token")?,
        })
    }
}

/// Returns the URL at which this machine reaches a service that listens on `listen`.
fn url_of(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_on_all_addresses_is_reached_by_loopback() {
        for (listen, url) in [
            ("127.0.0.1:8081", "http://127.0.0.1:8081"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:8081", "http://[::1]:8081"),
            ("10.0.0.7:8081", "http://10.0.0.7:8081"),
        ] {
            assert_eq!(url_of(listen.parse().unwrap()), url);
        }
    }
}
