//! Authentication challenges of registries, and logins from Docker's config.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// A user name and a password. Has no `Debug`, so the password cannot be logged.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// The authentication that a registry requires. The registry states it in its response to an unauthenticated request
/// (RFC 9110, WWW-Authenticate).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// The registry requires a user name and a password in each request.
    Basic,
    /// The registry requires a token from a token service.
    Bearer {
        /// The address of the token service.
        realm: String,
        /// The name of the registry's service, which is passed to the token service.
        service: Option<String>,
    },
}

impl Challenge {
    /// Parses the challenge in the `WWW-Authenticate` header. `None`: hostler does not support the challenge.
    pub fn read(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        match scheme.to_ascii_lowercase().as_str() {
            "basic" => Some(Self::Basic),
            "bearer" => {
                let parameters = parameters(rest);
                let get = |name: &str| {
                    let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.clone())
                };
                Some(Self::Bearer { realm: get("realm")?, service: get("service") })
            }
            _ => None,
        }
    }
}

/// Parses a list of parameters of the form `name="value"` or `name=value`. The separator is a comma outside quotes.
fn parameters(text: &str) -> Vec<(String, String)> {
    let (mut parts, mut quoted) = (vec![String::new()], false);
    for char in text.chars() {
        match (char, parts.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => parts.push(String::new()),
            (char, Some(part)) => part.push(char),
            (_, None) => {}
        }
    }
    let pair = |part: &String| part.trim().split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    parts.iter().filter_map(pair).collect()
}

/// Returns the login for a registry from `auths` in Docker's config. The config is `$DOCKER_CONFIG/config.json`, or
/// `~/.docker/config.json` if that variable is not set. Does not support credential helpers, because hostler does not
/// run external programs.
pub(super) fn docker_login(registry: &str) -> Option<Login> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".docker")))?;
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).ok()?;
    match serde_json::from_str(&text) {
        Ok(config) => login_of(&config, registry),
        Err(error) => {
            tracing::warn!(file = %path.display(), reason = %error, "Docker's config is not used: it is not valid JSON");
            None
        }
    }
}

fn login_of(config: &Value, registry: &str) -> Option<Login> {
    let auths = config.get("auths")?.as_object()?;
    let names = [registry.to_owned(), format!("https://{registry}"), format!("https://{registry}/v2/")];
    let entry = names.iter().find_map(|name| auths.get(name))?;
    let text = |name: &str| entry.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let (Some(user), Some(password)) = (text("username"), text("password")) {
        return Some(Login { user: user.to_owned(), password: password.to_owned() });
    }
    let decoded = String::from_utf8(STANDARD.decode(text("auth")?).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(Login { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(Into::into) })
        };
        for (header, challenge) in [
            ("Basic realm=\"Registry Realm\"", Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            ("Bearer realm=\"https://a/token\",service=\"a, b\",scope=\"x\"", bearer("https://a/token", Some("a, b"))),
            ("bearer service=a, Realm=https://a/token?x=y", bearer("https://a/token?x=y", Some("a"))),
            ("Bearer service=\"a\"", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::read(header), challenge, "{header}");
        }
    }

    #[test]
    fn logins_are_found_as_docker_writes_them() {
        let config = json!({ "credsStore": "pass", "auths": {
            "r.example:5000": { "auth": STANDARD.encode("me:se:cret") },
            "https://named.example/v2/": { "username": "you", "password": "secret" },
            "helped.example": {},
            "broken.example": { "auth": "?" },
        } });
        let found = |registry: &str| login_of(&config, registry).map(|login| (login.user, login.password));
        let of = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(found("r.example:5000"), of("me", "se:cret"));
        assert_eq!(found("named.example"), of("you", "secret"));
        for unknown in ["r.example", "helped.example", "broken.example"] {
            assert_eq!(found(unknown), None);
        }
    }
}
