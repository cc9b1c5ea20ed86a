//! The management API of RabbitMQ: what AMQP does not tell. It is optional.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_queue::QueueError;
use hostler_types::error_chain::with_causes;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Maximum time of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of queues per request.
const PAGE: usize = 500;

/// A client of the management API.
pub(super) struct Management {
    client: Client,
    /// URL of the queues of the virtual host.
    url: String,
    user: String,
    password: String,
}

/// A page of queues.
#[derive(Deserialize)]
struct Page {
    items: Vec<Item>,
    page_count: usize,
}

#[derive(Deserialize)]
struct Item {
    name: String,
    /// Missing until the server has counted for the first time.
    messages_unacknowledged: Option<u64>,
}

/// A binding of a queue.
#[derive(Deserialize)]
struct Binding {
    /// Name of the exchange. Empty: the default exchange.
    source: String,
}

impl Management {
    /// Creates a client. `url`: address of the API, for example `http://rabbit.example.com:15672`.
    ///
    /// # Errors
    /// The client cannot be created.
    pub(super) fn new(url: &str, vhost: &str, user: &str, password: &str) -> Result<Self, QueueError> {
        let client = Client::builder().timeout(PATIENCE).redirect(Policy::none()).build();
        let client = client.map_err(|error| QueueError::Refused(format!("queue.rabbitmq.management_url: {error}")))?;
        let url = format!("{}/api/queues/{}", url.trim_end_matches('/'), encoded(vhost));
        Ok(Self { client, url, user: user.to_owned(), password: password.to_owned() })
    }

    /// Returns all queues of the virtual host, each with the number of unacked messages as the server last counted it.
    ///
    /// # Errors
    /// The API cannot be reached, or refuses the user.
    pub(super) async fn queues(&self) -> Result<BTreeMap<String, Option<u64>>, QueueError> {
        let (mut queues, mut page, mut pages) = (BTreeMap::new(), 0, 1);
        while page < pages {
            page += 1;
            let Page { items, page_count } = self.page(page).await?;
            pages = page_count;
            queues.extend(items.into_iter().map(|item| (item.name, item.messages_unacknowledged)));
        }
        Ok(queues)
    }

    /// Returns the exchanges that a queue is bound to. Empty: there is none, or the queue does not exist.
    ///
    /// # Errors
    /// The API cannot be reached, or refuses the user.
    pub(super) async fn exchanges_of(&self, queue: &str) -> Result<Vec<String>, QueueError> {
        let url = format!("{}/{}/bindings?columns=source", self.url, encoded(queue));
        let bindings: Option<Vec<Binding>> = self.get(url).await?;
        Ok(bindings.into_iter().flatten().map(|binding| binding.source).collect())
    }

    async fn page(&self, page: usize) -> Result<Page, QueueError> {
        let url = format!("{}?page={page}&page_size={PAGE}&columns=name,messages_unacknowledged", self.url);
        let found = self.get(url).await?;
        found.ok_or_else(|| failed("there is no such API, or no such virtual host"))
    }

    /// Returns the answer to a request. `None`: what is asked for does not exist.
    async fn get<T: DeserializeOwned>(&self, url: String) -> Result<Option<T>, QueueError> {
        let fault = |error: reqwest::Error| failed(&with_causes(&error.without_url()));
        let answer = self.client.get(url).basic_auth(&self.user, Some(&self.password)).send().await.map_err(fault)?;
        match answer.status() {
            StatusCode::OK => answer.json().await.map(Some).map_err(fault),
            StatusCode::NOT_FOUND => Ok(None),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(QueueError::Refused(format!(
                "queue.rabbitmq.management_url: {status}: give the user of queue.rabbitmq.url the tag `monitoring`, or leave \
                 the key out"
            ))),
            status => Err(failed(&status.to_string())),
        }
    }
}

fn failed(why: &str) -> QueueError {
    QueueError::Unavailable(format!("queue.rabbitmq.management_url: {why}"))
}

/// Encodes a segment of a path.
fn encoded(segment: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    segment.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_host_is_one_segment_of_the_path() {
        let url = |vhost| Management::new("http://localhost:15672/", vhost, "guest", "guest").map(|client| client.url);
        assert_eq!(url("/"), Ok("http://localhost:15672/api/queues/%2F".to_owned()));
        assert_eq!(url("a b/ć"), Ok("http://localhost:15672/api/queues/a%20b%2F%C4%87".to_owned()));
    }
}
