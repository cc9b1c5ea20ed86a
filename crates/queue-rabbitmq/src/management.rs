//! The management API of RabbitMQ: what AMQP does not tell. It is optional.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_queue::QueueError;
use hostler_types::error_chain::with_causes;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Options;
use super::drift::SINGLE;

/// Maximum time of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of queues per request.
const PAGE: usize = 500;

/// Maximum number of requests for all queues.
const MOST_PAGES: usize = 1000;

/// Maximum size of an answer in bytes. A page of queues with long names has about 200 KiB.
const LARGEST: usize = 8 * 1024 * 1024;

/// A client of the management API.
pub(super) struct Management {
    client: Client,
    /// Address of the API, for people.
    address: String,
    /// URL of the queues of the virtual host.
    url: String,
    /// URL of its exchanges.
    exchanges: String,
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
    routing_key: String,
    arguments: Arguments,
}

/// An exchange.
#[derive(Deserialize)]
struct Exchange {
    #[serde(rename = "type")]
    kind: String,
}

/// A binding of a queue as the management API lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) exchange: String,
    pub(super) pattern: String,
    /// Set if the binding has arguments. hostler's bindings have none.
    pub(super) has_arguments: bool,
}

/// Arguments of a queue or a binding.
pub(super) type Arguments = serde_json::Map<String, serde_json::Value>;

/// The form of a queue.
#[derive(Deserialize)]
struct Form {
    arguments: Arguments,
}

impl Management {
    /// Creates a client. `url`: address of the API, for example `http://rabbit.example.com:15672`.
    ///
    /// # Errors
    /// The client cannot be created, or a certificate is not valid.
    pub(super) fn new(
        url: &str,
        (vhost, user, password): (&str, &str, &str),
        options: &Options,
    ) -> Result<Self, QueueError> {
        let client = client(options);
        let client = client
            .map_err(|error| QueueError::Refused(format!("queue.rabbitmq.management_url: {}", with_causes(&error))))?;
        let of = |kind: &str| format!("{}/api/{kind}/{}", url.trim_end_matches('/'), encoded(vhost));
        let (user, password) = (user.to_owned(), password.to_owned());
        Ok(Self {
            client,
            address: without_account(url),
            url: of("queues"),
            exchanges: of("exchanges"),
            user,
            password,
        })
    }

    /// Returns all queues of the virtual host, each with the number of unacked messages as the server last counted it.
    ///
    /// # Errors
    /// The API cannot be reached, or refuses the user.
    pub(super) async fn queues(&self) -> Result<BTreeMap<String, Option<u64>>, QueueError> {
        let mut queues = BTreeMap::new();
        for page in 1..=MOST_PAGES {
            let Page { items, page_count } = self.page(page).await?;
            let is_last = items.is_empty() || page >= page_count;
            queues.extend(items.into_iter().map(|item| (item.name, item.messages_unacknowledged)));
            if is_last {
                return Ok(queues);
            }
        }
        Err(self.failed(&format!("there are more than {} queues", MOST_PAGES * PAGE)))
    }

    /// Returns the exchanges that a queue is bound to. Empty: there is none, or the queue does not exist.
    ///
    /// # Errors
    /// The API cannot be reached, or refuses the user.
    pub(super) async fn exchanges_of(&self, queue: &str) -> Result<Vec<String>, QueueError> {
        Ok(self.bindings_of(queue).await?.into_iter().map(|bound| bound.exchange).collect())
    }

    /// Returns the bindings of a queue.
    ///
    /// # Errors
    /// As [`Self::exchanges_of`].
    pub(super) async fn bindings_of(&self, queue: &str) -> Result<Vec<Bound>, QueueError> {
        let url = format!("{}/{}/bindings?columns=source,routing_key,arguments", self.url, encoded(queue));
        let bindings: Option<Vec<Binding>> = self.get(url).await?;
        let bound = |Binding { source, routing_key, arguments }| Bound {
            exchange: source,
            pattern: routing_key,
            has_arguments: !arguments.is_empty(),
        };
        Ok(bindings.into_iter().flatten().map(bound).collect())
    }

    /// Returns `true` if the exchange compares routing keys with patterns.
    ///
    /// # Errors
    /// As [`Self::exchanges_of`].
    pub(super) async fn is_topic(&self, exchange: &str) -> Result<bool, QueueError> {
        let found: Option<Exchange> =
            self.get(format!("{}/{}?columns=type", self.exchanges, encoded(exchange))).await?;
        Ok(found.is_some_and(|exchange| exchange.kind == "topic"))
    }

    /// Returns `true` if one consumer at a time receives from a queue. `None`: the queue does not exist.
    ///
    /// # Errors
    /// As [`Self::exchanges_of`].
    pub(super) async fn has_single_consumer(&self, queue: &str) -> Result<Option<bool>, QueueError> {
        let arguments = self.arguments_of(queue).await?;
        Ok(arguments.map(|arguments| arguments.get(SINGLE) == Some(&true.into())))
    }

    /// Returns the arguments of a queue. `None`: the queue does not exist.
    ///
    /// # Errors
    /// As [`Self::exchanges_of`].
    pub(super) async fn arguments_of(&self, queue: &str) -> Result<Option<Arguments>, QueueError> {
        let url = format!("{}/{}?columns=arguments", self.url, encoded(queue));
        let form: Option<Form> = self.get(url).await?;
        Ok(form.map(|form| form.arguments))
    }

    async fn page(&self, page: usize) -> Result<Page, QueueError> {
        let url = format!("{}?page={page}&page_size={PAGE}&columns=name,messages_unacknowledged", self.url);
        let found = self.get(url).await?;
        found.ok_or_else(|| self.failed("there is no such API, or no such virtual host"))
    }

    /// Returns the answer to a request. `None`: what is asked for does not exist.
    async fn get<T: DeserializeOwned>(&self, url: String) -> Result<Option<T>, QueueError> {
        let fault = |error: reqwest::Error| self.failed(&with_causes(&error.without_url()));
        let answer = self.client.get(url).basic_auth(&self.user, Some(&self.password)).send().await.map_err(fault)?;
        match answer.status() {
            StatusCode::OK => {
                let body = body(answer).await.map_err(|why| self.failed(&why))?;
                let read = serde_json::from_slice(&body).map(Some);
                read.map_err(|error| self.failed(&format!("the answer is not that of RabbitMQ's API: {error}")))
            }
            StatusCode::NOT_FOUND => Ok(None),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(QueueError::Refused(format!(
                "queue.rabbitmq.management_url: {status} from {}: give the user of queue.rabbitmq.url the tag `monitoring`, or leave \
                 the key out",
                self.address
            ))),
            status => Err(self.failed(&status.to_string())),
        }
    }

    fn failed(&self, why: &str) -> QueueError {
        QueueError::Unavailable(format!(
            "queue.rabbitmq.management_url: the management API at {} cannot be used: {why}: check the address, which has port 15672 by \
             default, or leave the key out",
            self.address
        ))
    }
}

/// Returns a URL without a user and a password.
fn without_account(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => url.to_owned(),
    }
}

/// Creates the HTTP client. It trusts the authorities of the connections, and shows the same certificate. A proxy of the
/// environment would see the password.
fn client(options: &Options) -> reqwest::Result<Client> {
    let mut client = Client::builder().timeout(PATIENCE).redirect(Policy::none()).no_proxy();
    if let Some(ca) = &options.ca {
        client = client.tls_certs_merge(Certificate::from_pem_bundle(ca.as_bytes())?);
    }
    if let Some((certificate, key)) = &options.client_identity {
        let both = if certificate == key { certificate.clone() } else { [&certificate[..], key].concat() };
        client = client.identity(Identity::from_pem(&both)?);
    }
    client.build()
}

/// Reads the body of an answer, up to a limit.
async fn body(mut answer: Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|error| with_causes(&error.without_url()))? {
        if body.len() + part.len() > LARGEST {
            return Err(format!("the answer has more than {LARGEST} bytes"));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// Encodes a segment of a path.
fn encoded(segment: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    segment.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_is_shown_without_an_account() {
        assert_eq!(without_account("https://me:secret@host:15671/x"), "https://host:15671/x");
        assert_eq!(without_account("http://host:15672"), "http://host:15672");
    }

    #[test]
    fn a_virtual_host_is_one_segment_of_the_path() {
        let url = |vhost| {
            let account = (vhost, "guest", "guest");
            Management::new("http://localhost:15672/", account, &Options::default()).map(|client| client.url)
        };
        assert_eq!(url("/"), Ok("http://localhost:15672/api/queues/%2F".to_owned()));
        assert_eq!(url("a b/ć"), Ok("http://localhost:15672/api/queues/a%20b%2F%C4%87".to_owned()));
    }

    /// Answers each request with this body. Returns the client, and the number of requests up to now.
    async fn answering(body: String) -> (Management, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(client.read_u8().await.unwrap());
                }
                count.fetch_add(1, Ordering::SeqCst);
                let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                // The client may not read to the end.
                let _ = client.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        (Management::new(&url, ("/", "guest", "guest"), &Options::default()).unwrap(), asked)
    }

    #[tokio::test]
    async fn an_api_that_answers_without_end_is_given_up() {
        let (endless, asked) = answering(r#"{"items": [], "page_count": 1000000000}"#.to_owned()).await;
        assert_eq!((endless.queues().await, asked.load(Ordering::SeqCst)), (Ok(BTreeMap::new()), 1));
        let (repeating, asked) = answering(r#"{"items": [{"name": "q"}], "page_count": 1000000000}"#.to_owned()).await;
        assert!(repeating.queues().await.is_err_and(|error| error.to_string().contains("more than")));
        assert_eq!(asked.load(Ordering::SeqCst), MOST_PAGES);
        let (other, _) = answering("<html>".to_owned()).await;
        let told = other.queues().await.unwrap_err().to_string();
        assert!(told.contains(&other.address) && told.contains("not that of RabbitMQ's API"), "{told}");
        let (large, _) = answering(" ".repeat(LARGEST + 1)).await;
        assert!(large.queues().await.is_err_and(|error| error.to_string().contains("bytes")));
    }

    #[test]
    fn the_certificates_of_the_connections_are_used() {
        let refused = |options: Options| {
            let error = Management::new("https://localhost:15671", ("/", "guest", "guest"), &options).map(drop);
            matches!(&error, Err(QueueError::Refused(text)) if text.starts_with("queue.rabbitmq.management_url"))
        };
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(!refused(Options::default()));
        assert!(refused(Options { ca: Some(pem.to_owned()), ..Options::default() }));
        let identity = Some((pem.into(), pem.into()));
        assert!(refused(Options { client_identity: identity, ..Options::default() }), "there is no key");
    }
}
