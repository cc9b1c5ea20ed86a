//! The URL of a database: the settings of the connection, and the use of TLS as libpq defines it.

use std::path::PathBuf;
use std::str::FromStr as _;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// A URL that names no database, or a file of the URL that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct AddressError {
    /// The fault, without the URL.
    pub(crate) fault: String,
}

impl AddressError {
    pub(crate) fn new(fault: impl Into<String>) -> Self {
        Self { fault: fault.into() }
    }
}

/// A parsed URL.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// Settings of the connection.
    pub(crate) config: Config,
    /// Use of TLS.
    pub(crate) mode: Mode,
    /// File with the certificates that the server's certificate must lead to. `None`: those of the system.
    pub(crate) root: Option<PathBuf>,
    /// Hosts and database, without user and password.
    pub(crate) place: String,
}

/// Value of `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Never TLS.
    Disable,
    /// TLS if the server has it, with any certificate.
    Prefer,
    /// Always TLS, with any certificate.
    Require,
    /// Always TLS, with a certificate of a trusted authority for any name.
    VerifyCa,
    /// Always TLS, with a certificate of a trusted authority for the host.
    VerifyFull,
}

/// Parses a URL.
pub(crate) fn parse(url: &str) -> Result<Address, AddressError> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(AddressError::new("is not a URL such as postgres://user:password@host/database"));
    }
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut mode, mut root, mut rest) = (None, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => mode = Some(mode_of(value)?),
            Some(("sslrootcert", value)) => root = Some(decoded(value)?),
            Some((name @ ("sslcert" | "sslkey" | "sslpassword" | "sslcrl"), _)) => {
                return Err(AddressError::new(format!("has the parameter {name}, which hostler does not support")));
            }
            _ => rest.push(pair),
        }
    }
    let rest = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    let mut config = Config::from_str(&rest).map_err(|error| AddressError::new(text_of(&error)))?;
    let root = root.filter(|root| root != "system").map(PathBuf::from);
    let mode = effective(mode.unwrap_or(Mode::Prefer), root.is_some());
    config.ssl_mode(match mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    });
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(AddressError::new("has no host"));
    }
    let place = place_of(&config);
    Ok(Address { config, mode, root, place })
}

/// Returns the mode that libpq uses: with a file of authorities, `require` checks the certificate.
fn effective(mode: Mode, has_root: bool) -> Mode {
    if mode == Mode::Require && has_root { Mode::VerifyCa } else { mode }
}

fn mode_of(value: &str) -> Result<Mode, AddressError> {
    match value {
        "disable" => Ok(Mode::Disable),
        "prefer" => Ok(Mode::Prefer),
        "require" => Ok(Mode::Require),
        "verify-ca" => Ok(Mode::VerifyCa),
        "verify-full" => Ok(Mode::VerifyFull),
        _ => Err(AddressError::new("has an sslmode other than disable, prefer, require, verify-ca and verify-full")),
    }
}

/// Decodes `%41`.
fn decoded(text: &str) -> Result<String, AddressError> {
    let wrong = || AddressError::new("has an sslrootcert that is not validly encoded");
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2).ok_or_else(wrong)?;
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// Returns the library's text for a fault of the URL. It names the parameter, and not its value.
fn text_of(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("is not a valid URL of a database: {cause}")
}

/// Returns `host:port/database`, with all hosts.
fn place_of(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |n: usize| ports.get(n).or(ports.first()).copied().unwrap_or(5432);
    let named = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    });
    let mut hosts: Vec<_> = named.collect();
    if hosts.is_empty() {
        hosts = config.get_hostaddrs().iter().map(ToString::to_string).collect();
    }
    let hosts: Vec<_> = hosts.iter().enumerate().map(|(n, host)| format!("{host}:{}", port(n))).collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{}/{database}", hosts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_no_user_and_no_password() {
        for (url, expected) in [
            ("postgres://u:secret@db/shop", "db:5432/shop"),
            ("postgresql://u:secret@a:1,b:2/shop?target_session_attrs=read-write", "a:1,b:2/shop"),
            ("postgres://u@db", "db:5432/u"),
        ] {
            assert_eq!(parse(url).unwrap().place, expected, "{url}");
        }
    }

    #[test]
    fn modes_are_those_of_libpq() {
        let mode = |query: &str| parse(&format!("postgres://u@db/x{query}")).unwrap().mode;
        assert_eq!(mode(""), Mode::Prefer);
        assert_eq!(mode("?sslmode=disable"), Mode::Disable);
        assert_eq!(mode("?sslmode=require"), Mode::Require);
        assert_eq!(mode("?sslmode=require&sslrootcert=/ca.pem"), Mode::VerifyCa);
        assert_eq!(mode("?sslmode=verify-full&connect_timeout=3"), Mode::VerifyFull);
        let address = parse("postgres://u@db/x?sslrootcert=%2fa%20b.pem&sslmode=verify-ca").unwrap();
        assert_eq!(address.root, Some(PathBuf::from("/a b.pem")));
    }

    #[test]
    fn faults_do_not_show_the_url() {
        for url in [
            "mysql://u:secret@db/x",
            "postgres://u:secret@db/x?sslmode=secret",
            "postgres://u:secret@db/x?sslcert=secret",
            "postgres://u:secret@db:secret/x",
            "postgres://u:secret@db/x?secret=1",
            "postgres://u:secret@db/x?sslrootcert=%zz",
        ] {
            let fault = parse(url).unwrap_err().to_string();
            assert!(!fault.contains("secret@") && !fault.contains("u:"), "{url}: {fault}");
        }
    }
}
