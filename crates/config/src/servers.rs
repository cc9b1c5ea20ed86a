//! Syntax of granted TCP servers: `"host:port"`, or a table with TLS.

use figment::value::Value;

use super::read::{Read, quoted, shown, text};
use hostler_types::endpoint::Endpoint;
use hostler_types::tcp_grant::{TcpGrant, Tls, TlsStart};

/// Granted servers. Each server has at most one kind of TLS.
pub(super) struct Servers(pub Vec<TcpGrant>);

impl Read for Servers {
    fn read(value: &Value) -> Result<Self, String> {
        let grants = Vec::<TcpGrant>::read(value)?;
        let contradicts = |(index, grant): (usize, &TcpGrant)| {
            grants[..index].iter().any(|other| other.to == grant.to && other.tls != grant.tls).then_some(index)
        };
        match grants.iter().enumerate().find_map(contradicts) {
            Some(index) => Err(format!(
                "item {}: \"{}\" is granted before with another `tls` or `ca`",
                index + 1,
                grants[index].to
            )),
            None => Ok(Self(grants)),
        }
    }
}

impl Read for TcpGrant {
    fn read(value: &Value) -> Result<Self, String> {
        let table = match value {
            Value::String(..) => return Endpoint::read(value).map(Self::from),
            Value::Dict(_, table) => table,
            _ => return Err(format!("{} is neither text nor a table", shown(value))),
        };
        if let Some(unknown) = table.keys().find(|key| !["to", "tls", "ca"].contains(&key.as_str())) {
            return Err(format!("unknown key `{unknown}`"));
        }
        let to = Endpoint::read(table.get("to").ok_or("`to` is missing")?).map_err(|fault| format!("`to`: {fault}"))?;
        let start = table.get("tls").map(TlsStart::read).transpose().map_err(|fault| format!("`tls`: {fault}"))?;
        let ca = table.get("ca").map(Read::read).transpose().map_err(|fault| format!("`ca`: {fault}"))?;
        match (start, ca) {
            (Some(start), ca) => Ok(Self { to, tls: Some(Tls { start, ca }) }),
            (None, None) => Ok(Self::from(to)),
            (None, Some(_)) => Err("`ca` is set, but `tls` is missing".to_owned()),
        }
    }
}

impl Read for Endpoint {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        text.parse().map_err(|fault| format!("{} {fault}", quoted(text)))
    }
}

impl Read for TlsStart {
    fn read(value: &Value) -> Result<Self, String> {
        match text(value)? {
            "direct" => Ok(Self::Direct),
            "postgres" => Ok(Self::Postgres),
            other => Err(format!("{} is neither `direct` nor `postgres`", quoted(other))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(text: &str) -> Result<Vec<TcpGrant>, String> {
        Servers::read(&text.parse().unwrap()).map(|servers| servers.0)
    }

    fn fault(text: &str) -> String {
        servers(text).expect_err(text)
    }

    #[test]
    fn servers_are_read_with_their_port() {
        let endpoint = |text: &str| Endpoint::read(&Value::from(text)).map(|endpoint| endpoint.to_string());
        assert_eq!(endpoint("DB.internal:5432").unwrap(), "db.internal:5432");
        assert_eq!(endpoint("db.internal").unwrap_err(), "\"db.internal\" names no port");
        assert!(!endpoint("postgres://u:hunter2@db:5432").unwrap_err().contains("hunter2"));
        assert!(endpoint("169.254.169.254:80").unwrap_err().contains("guests never reach"));
    }

    #[test]
    fn a_server_has_the_tls_of_its_table() {
        let text =
            "[\"a:1\", {to=\"b:1\"}, {to=\"B:2\",tls=\"direct\"}, {to=\"[::1]:3\",tls=\"postgres\",ca=\"/ca.pem\"}]";
        let found = servers(text).unwrap();
        let tls = |start, ca: Option<&str>| Some(Tls { start, ca: ca.map(Into::into) });
        let kinds = [None, None, tls(TlsStart::Direct, None), tls(TlsStart::Postgres, Some("/ca.pem"))];
        assert_eq!(found.iter().map(|grant| grant.tls.clone()).collect::<Vec<_>>(), kinds);
        let to: Vec<_> = found.iter().map(|grant| grant.to.to_string()).collect();
        assert_eq!(to, ["a:1", "b:1", "b:2", "[::1]:3"]);
    }

    #[test]
    fn a_table_has_its_own_faults() {
        for (text, expected) in [
            ("[1]", "item 1: 1 is neither text nor a table"),
            ("[{tls=\"direct\"}]", "item 1: `to` is missing"),
            ("[\"a:1\",{to=\"b\"}]", "item 2: `to`: \"b\" names no port"),
            ("[{to=\"a:1\",tls=\"on\"}]", "item 1: `tls`: \"on\" is neither `direct` nor `postgres`"),
            ("[{to=\"a:1\",ca=\"/ca.pem\"}]", "item 1: `ca` is set, but `tls` is missing"),
            ("[{to=\"a:1\",tls=\"direct\",ca=\"\"}]", "item 1: `ca`: \"\" is not a path"),
            ("[{to=\"a:1\",tsl=\"direct\"}]", "item 1: unknown key `tsl`"),
        ] {
            assert_eq!(fault(text), expected);
        }
    }

    #[test]
    fn a_server_is_granted_with_one_kind_of_tls() {
        let again = "item 2: \"a:1\" is granted before with another `tls` or `ca`";
        for second in
            ["{to=\"A:1\"}", "{to=\"a:1\",tls=\"postgres\"}", "{to=\"a:1\",tls=\"direct\",ca=\"/ca.pem\"}", "\"a:1\""]
        {
            assert_eq!(fault(&format!("[{{to=\"a:1\",tls=\"direct\"}},{second}]")), again, "{second}");
        }
        assert_eq!(servers("[\"a:1\",\"A:1\",{to=\"a:2\",tls=\"direct\"}]").unwrap().len(), 3);
    }
}
