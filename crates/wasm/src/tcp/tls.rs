//! TLS of granted servers: the authorities that the host trusts, and the name that a server's certificate must have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use hostler_types::endpoint::{Endpoint, EndpointHost};
use hostler_types::tcp_grant::{Tls, TlsStart};

/// The way in which a guest's bytes go to a server.
#[derive(Clone)]
pub(super) enum Route {
    /// As they are.
    Plain,
    /// Encrypted by the host.
    Tls(Arc<ServerTls>),
}

impl Route {
    /// Returns this route, or the other one if only that has TLS.
    pub(super) fn or_tls(&self, other: Option<&Self>) -> Self {
        match (self, other) {
            (Self::Plain, Some(other)) => other.clone(),
            _ => self.clone(),
        }
    }
}

/// TLS with one granted server.
pub(super) struct ServerTls {
    /// The server, for the log.
    pub(super) server: Endpoint,
    pub(super) start: TlsStart,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl ServerTls {
    /// Begins a connection, which has sent nothing yet.
    pub(super) fn connection(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
    }
}

/// The reason for which the TLS of a grant cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// The file of authorities in the grant is at fault.
    #[error("the `ca` of {server}, {file}: {reason}", file = .file.display())]
    Authorities { server: Endpoint, file: PathBuf, reason: String },
    /// The system has no authorities that can be trusted.
    #[error("there are no CA certificates to check the certificate of {0} with")]
    NoAuthorities(Endpoint),
    /// TLS does not work with any server.
    #[error("{0}")]
    Other(#[from] rustls::Error),
}

impl TlsError {
    /// Returns the fix.
    pub(crate) fn cure(&self) -> &'static str {
        match self {
            Self::Authorities { .. } => "name a PEM file with the certificates of the server's authorities in `ca`",
            Self::NoAuthorities(_) => {
                "set `ca` in the grant, put CA certificates where OpenSSL looks for them, or name their file in SSL_CERT_FILE"
            }
            Self::Other(_) => "remove `tls` from allow.tcp, and report this fault",
        }
    }
}

/// The settings of TLS, one for each file of authorities. `None`: the authorities of the system.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<Option<PathBuf>, Arc<ClientConfig>>);

impl Settings {
    /// Returns the route to a granted server.
    ///
    /// # Errors
    /// There are no authorities, or their file cannot be read.
    pub(super) fn route(&mut self, to: &Endpoint, tls: Option<&Tls>) -> Result<Route, TlsError> {
        let Some(Tls { start, ca }) = tls else { return Ok(Route::Plain) };
        let config = match self.0.get(ca) {
            Some(config) => Arc::clone(config),
            None => {
                let config = Arc::new(config(roots(to, ca.as_deref())?)?);
                self.0.insert(ca.clone(), Arc::clone(&config));
                config
            }
        };
        let name = match &to.host {
            EndpointHost::Ip(address) => ServerName::from(*address),
            EndpointHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|error| rustls::Error::General(format!("{name} is in no certificate: {error}")))?,
        };
        Ok(Route::Tls(Arc::new(ServerTls { server: to.clone(), start: *start, name, config })))
    }
}

fn config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Servers choose the size of their tickets, up to 64 KiB each. Without them, each connection proves the name anew.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Returns the authorities in a file, or those of the system.
fn roots(server: &Endpoint, file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if roots.is_empty() { Err(TlsError::NoAuthorities(server.clone())) } else { Ok(roots) };
    };
    let fault = |reason: &dyn std::fmt::Display| TlsError::Authorities {
        server: server.clone(),
        file: file.to_owned(),
        reason: reason.to_string(),
    };
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| fault(&error))? {
        roots.add(certificate.map_err(|error| fault(&error))?).map_err(|error| fault(&error))?;
    }
    if roots.is_empty() { Err(fault(&"it holds no certificate")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(settings: &mut Settings, ca: &Path) -> Result<Route, TlsError> {
        let tls = Tls { start: TlsStart::Direct, ca: Some(ca.to_owned()) };
        settings.route(&"my_db.internal:5432".parse().unwrap(), Some(&tls))
    }

    #[test]
    fn a_file_without_authorities_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let broken = folder.path().join("broken.pem");
        std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        for file in [empty, broken, folder.path().join("absent.pem")] {
            let Err(error) = route(&mut Settings::default(), &file) else { panic!("{file:?} is accepted") };
            let text = error.to_string();
            assert!(text.contains("my_db.internal:5432") && text.contains(file.to_str().unwrap()), "{text}");
            assert!(error.cure().contains("`ca`"), "{}", error.cure());
        }
    }

    #[test]
    fn without_tls_no_authority_is_read() {
        let mut settings = Settings::default();
        assert!(matches!(settings.route(&"db:1".parse().unwrap(), None), Ok(Route::Plain)));
        assert!(settings.0.is_empty());
    }
}
