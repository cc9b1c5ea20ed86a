//! Redaction of URLs in spans: removes everything that may be a secret.

use reqwest::Url;

/// Maximum length of a URL in a span, in bytes.
const MAX: usize = 1024;

/// Replacement for a secret (OpenTelemetry semantic conventions for HTTP, `url.full`).
const REDACTED: &str = "REDACTED";

/// Parts of the names of secret query parameters. A parameter counts as secret if its name contains any of these
/// strings. They cover all parameters that the semantic conventions list (AWS, Azure and Google signatures).
const SECRETS: [&str; 12] =
    ["sig", "token", "key", "secret", "passw", "pwd", "auth", "cred", "session", "code", "jwt", "otp"];

/// Webhooks with secrets in their paths: the domain, and the part of the path before the secret.
const WEBHOOKS: [(&str, &str); 4] = [
    ("hooks.slack.com", "/"),
    ("discord.com", "/api/webhooks/"),
    ("discordapp.com", "/api/webhooks/"),
    ("webhook.office.com", "/"),
];

/// Returns the URL without its fragment. Redacts the user, the password, the values of secret parameters, and the paths
/// of webhooks.
pub(super) fn redacted(url: &Url) -> String {
    let mut text = url.scheme().to_owned() + "://";
    if !url.username().is_empty() || url.password().is_some() {
        text += &format!("{REDACTED}:{REDACTED}@");
    }
    let host = url.host_str().unwrap_or_default();
    text += host;
    text += &url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let webhook = WEBHOOKS.iter().find(|(end, path)| is_within(host, end) && url.path().starts_with(path));
    match webhook {
        Some((_, path)) => text += &format!("{path}{REDACTED}"),
        None => text += url.path(),
    }
    if let Some(query) = url.query() {
        let pairs: Vec<_> = query.split('&').map(shown).collect();
        text += &format!("?{}", pairs.join("&"));
    }
    text.truncate(text.floor_char_boundary(MAX));
    text
}

fn is_within(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns a query parameter as shown in a span. Redacts its value if its name indicates a secret.
fn shown(pair: &str) -> String {
    let Some((name, _)) = pair.split_once('=') else { return pair.to_owned() };
    let lower = name.to_ascii_lowercase();
    // Also redacts the value if the name is percent-encoded, because the decoded name may be the name of a secret.
    if lower.contains('%') || SECRETS.iter().any(|secret| lower.contains(secret)) {
        format!("{name}={REDACTED}")
    } else {
        pair.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for (url, shown) in [
            ("https://a/b/c?d=e&f", "https://a/b/c?d=e&f"),
            ("http://u@a:81/#part", "http://REDACTED:REDACTED@a:81/"),
            ("https://:p@a", "https://REDACTED:REDACTED@a/"),
            (
                "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Credential=c&X-Amz-Signature=s&X-Amz-Security-Token=t",
                "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Credential=REDACTED&X-Amz-Signature=REDACTED&X-Amz-Security-Token=REDACTED",
            ),
            ("https://a/?sig=1&AWSAccessKeyId=2", "https://a/?sig=REDACTED&AWSAccessKeyId=REDACTED"),
            ("https://a/?Signature=1&api_key=2&q=key", "https://a/?Signature=REDACTED&api_key=REDACTED&q=key"),
            ("https://a/?X-Goog-Signature=1&%73ig=2", "https://a/?X-Goog-Signature=REDACTED&%73ig=REDACTED"),
            ("https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/REDACTED"),
            ("https://nothooks.slack.com/services", "https://nothooks.slack.com/services"),
            ("https://discord.com/api/webhooks/1/x", "https://discord.com/api/webhooks/REDACTED"),
            ("https://discord.com/api/users", "https://discord.com/api/users"),
            ("https://t.webhook.office.com/webhookb2/x", "https://t.webhook.office.com/REDACTED"),
        ] {
            assert_eq!(redacted(&Url::parse(url).unwrap()), shown);
        }
    }

    #[test]
    fn a_url_is_as_long_as_is_of_use() {
        let long = Url::parse(&format!("https://a/?q={}", "ü".repeat(2000))).unwrap();
        assert_eq!(redacted(&long).len(), MAX);
    }
}
