//! Delivers notices by HTTP POST to a webhook. The URL is a secret and does not appear in errors.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};

use super::delivery::{Notifier, Undelivered};
use super::notice::{Format, Notice};
use hostler_config::SecretUrl;
use hostler_types::error_chain::with_causes;

const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length in bytes of the receiver's reason, as an error message quotes it.
const SHOWN: usize = 60;

/// A webhook that receives notices.
pub struct Webhook {
    client: Client,
    url: SecretUrl,
    format: Format,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("url", &self.url).field("format", &self.format).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Creates a webhook. Sends nothing yet.
    ///
    /// # Errors
    /// [`Undelivered::Lasting`]: HTTPS cannot be set up.
    pub fn new(url: SecretUrl, format: Format) -> Result<Self, Undelivered> {
        let client = Client::builder()
            .user_agent(concat!("hostler/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(PATIENCE)
            // Following a redirect would send the secret to another address.
            .redirect(Policy::none())
            .build();
        let client = client.map_err(|error| Undelivered::Lasting(format!("no HTTPS: {}", with_causes(&error))))?;
        Ok(Self { client, url, format })
    }
}

#[async_trait]
impl Notifier for Webhook {
    async fn carry(&self, notice: &Notice) -> Result<(), Undelivered> {
        let request = self.client.post(self.url.expose()).json(&notice.payload(self.format));
        match request.send().await {
            Ok(answer) => judge(answer).await,
            Err(error) => {
                let text = format!("the webhook cannot be reached: {}", with_causes(&error.without_url()));
                Err(Undelivered::Passing(text, None))
            }
        }
    }
}

async fn judge(answer: Response) -> Result<(), Undelivered> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let asked = answer.headers().get(RETRY_AFTER).and_then(|value| pause(value.to_str().ok()?, SystemTime::now()));
    let text = format!("the webhook answers {status}{}", said(answer).await);
    let passing = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY);
    Err(if passing { Undelivered::Passing(text, asked) } else { Undelivered::Lasting(text) })
}

/// Returns the reason that the receiver states in its answer, for example Slack's `invalid_payload`, with a colon
/// before it. Returns an empty string unless the answer consists of plain words, because any other text may contain the
/// URL.
async fn said(mut answer: Response) -> String {
    let chunk = answer.chunk().await.ok().flatten().unwrap_or_default();
    reason(&chunk).map_or_else(String::new, |reason| format!(": {reason}"))
}

fn reason(body: &[u8]) -> Option<&str> {
    let text = str::from_utf8(body).ok()?.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_lowercase() || b"_ ".contains(&byte));
    (plain && (1..=SHOWN).contains(&text.len())).then_some(text)
}

/// Parses the value of a `Retry-After` header: seconds, or a date (RFC 9110, 10.2.3). Returns the time to wait from
/// `now`.
fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    match text.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => date(text)?.duration_since(now).ok(),
    }
}

/// Parses an HTTP date, for example `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(text: &str) -> Option<SystemTime> {
    let [_, day, month, year, time, "GMT"] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| *name == month)? + 1;
    humantime::parse_rfc3339(&format!("{year}-{month:02}-{day:0>2}T{time}Z")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_words_of_an_answer_are_shown() {
        assert_eq!(reason(b"invalid_payload\n"), Some("invalid_payload"));
        for hidden in ["", "Cannot POST /services/hunter2", "<html>", "T0001", &"x".repeat(100)] {
            assert_eq!(reason(hidden.as_bytes()), None, "{hidden}");
        }
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        let now = humantime::parse_rfc3339("1994-11-06T08:49:07Z").unwrap();
        assert_eq!(pause("120", now), Some(Duration::from_secs(120)));
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(30)));
        for none in ["", "-1", "soon", "Sun, 06 Nov 1994 08:49:00 GMT", "Sun, 06 Foo 1994 08:49:37 GMT"] {
            assert_eq!(pause(none, now), None, "{none}");
        }
    }
}
