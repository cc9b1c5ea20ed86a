//! Faults of a URL of PostgreSQL.

use std::path::Path;

use super::hosts::host_fault;

/// Parameters of a URL, each with its accepted words. None: any value.
const PARAMETERS: &[(&str, &[&str])] = &[
    ("sslmode", &["disable", "prefer", "require", "verify-ca", "verify-full"]),
    ("sslrootcert", &[]),
    ("sslnegotiation", &["postgres", "direct"]),
    ("channel_binding", &["disable", "prefer", "require"]),
    ("target_session_attrs", &["any", "read-write", "read-only"]),
    ("load_balance_hosts", &["disable", "random"]),
    ("host", &[]),
    ("port", &[]),
    ("user", &[]),
    ("password", &[]),
    ("dbname", &[]),
    ("options", &[]),
    ("application_name", &[]),
    ("connect_timeout", &[]),
    ("tcp_user_timeout", &[]),
    ("keepalives", &[]),
    ("keepalives_idle", &[]),
    ("keepalives_interval", &[]),
    ("keepalives_retries", &[]),
];

/// Returns the fault of a URL of PostgreSQL. `None`: none is found. Several hosts are separated by commas; a host that begins with
/// `%2F` is the folder of a Unix socket.
pub fn postgres_fault(url: &str) -> Option<&'static str> {
    if url.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return Some("has a space or a control character, which is written %20 in a name or a password");
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some("does not begin with postgres:// or postgresql://");
    };
    match scheme {
        "postgres" | "postgresql" => {}
        _ if scheme.eq_ignore_ascii_case("postgres") || scheme.eq_ignore_ascii_case("postgresql") => {
            return Some("begins with capitals instead of postgres:// or postgresql://");
        }
        _ => return Some("does not begin with postgres:// or postgresql://"),
    }
    let (authority, more) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if more.contains('@') {
        return Some("has `/`, `?` or `#` in the name or the password, which are written %2F, %3F and %23");
    }
    let (path, parameters) = more.split_once('?').unwrap_or((more, ""));
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let names_host = parameters.split('&').any(|parameter| parameter.starts_with("host="));
    if hosts.is_empty() && !names_host {
        return Some("lacks the name of a host");
    }
    let of_hosts = if hosts.is_empty() { None } else { hosts.split(',').find_map(host_fault) };
    of_hosts.or_else(|| database_fault(path)).or_else(|| parameters_fault(parameters))
}

/// Returns the path of `sslrootcert` in a URL. `None`: the URL names none, or the system's (`system`).
pub(super) fn root_certificate(url: &str) -> Option<String> {
    let (_, parameters) = url.split_once('?')?;
    let value = parameters.split('&').rev().find_map(|parameter| parameter.strip_prefix("sslrootcert="))?;
    let path = decoded(value)?;
    (path != "system" && Path::new(&path).file_name().is_some()).then_some(path)
}

/// Decodes `%` and two hexadecimal digits. `None`: the text is not valid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' { digit(rest.next()?)? << 4 | digit(rest.next()?)? } else { byte });
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| digit.try_into().ok())
}

/// Returns the fault of the path, which names the database.
fn database_fault(path: &str) -> Option<&'static str> {
    match path.strip_prefix('/').unwrap_or(path) {
        name if name.contains('#') => Some("has a `#`, which is written %23"),
        name if name.contains('/') => Some("has a `/` in the name of the database, which is written %2F"),
        _ => None,
    }
}

fn parameters_fault(parameters: &str) -> Option<&'static str> {
    parameters.split('&').filter(|parameter| !parameter.is_empty()).find_map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (name, PARAMETERS.iter().find(|(known, _)| *known == name)) {
            (_, None) => {
                Some("has a parameter that hostler does not know, unlike sslmode, sslrootcert or target_session_attrs")
            }
            ("sslmode", Some((_, words))) if !words.contains(&value) => {
                Some("has an sslmode other than disable, prefer, require, verify-ca and verify-full")
            }
            (_, Some((_, words))) if !words.is_empty() && !words.contains(&value) => {
                Some("has a parameter with a word that it does not take")
            }
            ("sslrootcert", _) if decoded(value).is_none_or(|path| path.is_empty()) => {
                Some("has an sslrootcert without a path")
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_all_forms_pass() {
        for url in [
            "postgres://h",
            "postgresql://me:p%2Fw@h:1,i:65535/db?target_session_attrs=read-write",
            "postgres://me:a@b@h/",
            "postgres://me:1:2@[2001:db8::1]:5432,[::1]/db",
            "postgres://h/db?sslmode=verify-full&sslrootcert=/etc/ca.pem",
            "postgres://me@%2Fvar%2Frun%2Fpostgresql/db",
            "postgres:///db?host=/var/run/postgresql&user=me",
        ] {
            assert_eq!(postgres_fault(url), None, "{url}");
        }
    }

    #[test]
    fn each_mistake_has_a_text_of_its_own_without_the_password() {
        for (url, part) in [
            (" postgres://me:pw@h", "space"),
            ("postgres://me:pw@h\n", "space"),
            ("Postgres://me:pw@h", "capitals"),
            ("mysql://me:pw@h", "begin with"),
            ("h:5432", "begin with"),
            ("postgres://", "lacks the name"),
            ("postgres:///db", "lacks the name"),
            ("postgres://me:pw@/db", "lacks the name"),
            ("postgres://me:pw@one,,/db", "lacks the name"),
            ("postgres://me:pw@:5432", "lacks the name"),
            ("postgres://me:pw", "a port"),
            ("postgres://me:pw@h:99999", "a port"),
            ("postgres://me:pw@h:0", "a port"),
            ("postgres://me:pw@[::1]5432", "a port"),
            ("postgres://me:pw@2001:db8::1", "brackets"),
            ("postgres://me:pw@[::1", "bracket"),
            ("postgres://me:1/pw@h", "%2F, %3F and %23"),
            ("postgres://me:pw@h/a/x", "name of the database"),
            ("postgres://me:pw@h/a#x", "%23"),
            ("postgres://me:pw@h/db?pw=1", "does not know"),
            ("postgres://me:pw@h/db?sslmode=on", "an sslmode other"),
            ("postgres://me:pw@h/db?target_session_attrs=primary", "a word"),
            ("postgres://me:pw@h/db?sslrootcert=", "without a path"),
        ] {
            let fault = postgres_fault(url).unwrap_or_else(|| panic!("{url} passes"));
            assert!(fault.contains(part) && !fault.contains("pw"), "{url}: {fault}");
        }
    }

    #[test]
    fn the_file_of_an_authority_is_read_from_a_url() {
        let found = |parameters: &str| root_certificate(&format!("postgres://h/db{parameters}"));
        assert_eq!(found("?sslmode=require&sslrootcert=/etc/my%20ca.pem"), Some("/etc/my ca.pem".to_owned()));
        assert_eq!(found("?sslrootcert=%2Fone&sslrootcert=%2Ftwo"), Some("/two".to_owned()));
        for none in ["", "?sslmode=require", "?sslrootcert=", "?sslrootcert=system", "?sslrootcert=%2"] {
            assert_eq!(found(none), None, "{none}");
        }
    }
}
