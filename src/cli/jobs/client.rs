//! A client of the job service, for commands.

use std::path::Path;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cli::ConfigArg;
use crate::exit::{Exit, Failure, Result};
use hostler_config::{self as config, Config, ConfigError, Token};
use hostler_jobs::types::Status;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most rows that the service returns at a time.
const PAGE: u64 = 1000;

/// Variable of `jobs.token`, for a command without a config.
const TOKEN: &str = "HOSTLER_JOBS__TOKEN";

/// The location of the job service.
#[derive(Debug, clap::Args)]
pub(super) struct ServiceArg {
    /// The address of the service [default: jobs.url, else jobs.listen]
    #[arg(long, value_name = "URL", value_parser = address)]
    url: Option<Url>,
    #[command(flatten)]
    config: ConfigArg,
}

fn address(text: &str) -> std::result::Result<Url, &'static str> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or("write an address such as http://127.0.0.1:8081")
}

impl ServiceArg {
    /// Returns a client of the service. Connects to nothing yet.
    ///
    /// # Errors
    /// Exit code 64: neither an argument nor the config says where the service is.
    pub(super) fn client(&self) -> Result<Client> {
        let config = self.load()?;
        let token = config.as_ref().and_then(|config| config.jobs.token.clone());
        let base = match (&self.url, &config) {
            (Some(url), _) => url.to_string(),
            (None, Some(config)) => config.jobs.url.clone(),
            (None, None) => return Err(Failure::new(Exit::Internal, "no config was loaded")),
        };
        Client::new(base, token)
    }

    /// Loads the config. `None`: there is none, and the arguments name the service.
    fn load(&self) -> Result<Option<Config>> {
        let is_optional = self.url.is_some() && self.config.config.is_none();
        if is_optional && !is_there(self.config.config.as_deref()) {
            return Ok(None);
        }
        self.config.load().map(|loaded| Some(loaded.config))
    }
}

/// Returns false if there is no config at all.
fn is_there(file: Option<&Path>) -> bool {
    !matches!(config::load(file, std::env::vars_os()), Err(ConfigError::NotFound { .. }))
}

/// Returns the size of the next page, if this many rows are wanted.
pub(super) fn page(wanted: u64) -> u64 {
    wanted.clamp(1, PAGE)
}

/// A client of the job service.
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<Token>,
}

/// A refusal of the service.
#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    detail: String,
}

/// The answer to a retry.
#[derive(Deserialize)]
struct Retried {
    retried: u64,
}

impl Client {
    fn new(base: String, token: Option<Token>) -> Result<Self> {
        // A redirect would carry the token to another server.
        let http = reqwest::Client::builder().timeout(PATIENCE).redirect(Policy::none()).build();
        let http = http.map_err(|error| Failure::new(Exit::Internal, error))?;
        Ok(Self { http, base, token })
    }

    /// Returns the status of a job and of the tree below it.
    pub(super) async fn status(&self, job: &str) -> Result<Status> {
        self.get(&["job", job, "status"], []).await
    }

    /// Tries the failed items of a job again. Returns their number.
    pub(super) async fn retry(&self, job: &str) -> Result<u64> {
        let request = self.request(Method::POST, &["job", job, "retry"])?;
        let Retried { retried } = self.json(request).await?;
        Ok(retried)
    }

    /// Removes a job and the tree below it.
    pub(super) async fn delete(&self, job: &str) -> Result<()> {
        let request = self.request(Method::DELETE, &["job", job])?;
        self.send(request).await.map(drop)
    }

    /// Fetches the answer at a path. Leaves out parameters without a value.
    pub(super) async fn get<T: DeserializeOwned, const N: usize>(
        &self,
        path: &[&str],
        query: [(&'static str, Option<String>); N],
    ) -> Result<T> {
        let mut url = self.url(path)?;
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, &value);
            }
        }
        self.json(self.authorized(self.http.get(url))).await
    }

    fn request(&self, method: Method, path: &[&str]) -> Result<RequestBuilder> {
        Ok(self.authorized(self.http.request(method, self.url(path)?)))
    }

    /// Returns the URL of a path, whose parts may have any characters.
    fn url(&self, path: &[&str]) -> Result<Url> {
        let faulty = || Failure::new(Exit::BadConfig, format!("jobs.url: {:?} is not an address", self.base));
        let mut url = Url::parse(&self.base).map_err(|_| faulty())?;
        url.path_segments_mut().map_err(|()| faulty())?.pop_if_empty().extend(path);
        Ok(url)
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        }
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let body = self.send(request).await?.bytes().await.map_err(|error| self.silent(&error))?;
        serde_json::from_slice(&body).map_err(|error| {
            let text = format!("{} does not answer as a job service of this version does: {error}", self.base);
            Failure::new(Exit::Failed, text)
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.silent(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let problem = response.json::<Problem>().await;
        Err(self.refused(status, &problem.map_or_else(|_| String::new(), |problem| problem.detail)))
    }

    fn silent(&self, error: &reqwest::Error) -> Failure {
        let base = &self.base;
        let why = if error.is_timeout() { "does not answer in time" } else { "cannot be reached" };
        let text = format!(
            "the job service at {base} {why}\n  cure: start `hostler jobs serve`, or name the right address by --url or \
             HOSTLER_JOBS__URL"
        );
        Failure::new(Exit::QueueUnreachable, text)
    }

    fn refused(&self, status: StatusCode, detail: &str) -> Failure {
        let base = &self.base;
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let text = format!(
                    "the job service at {base} denies this: {detail}\n  cure: set {TOKEN} to a token whose role may do it; the \
                     operator's may do all"
                );
                Failure::new(Exit::QueueUnreachable, text)
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                let text =
                    format!("the job service at {base} cannot answer now ({status}): {detail}\n  cure: try again");
                Failure::new(Exit::QueueUnreachable, text)
            }
            _ if detail.is_empty() => {
                Failure::new(Exit::Failed, format!("{base} answers {status}, not as a job service does"))
            }
            _ => Failure::new(Exit::Failed, detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_characters_stay_one_part_of_the_path() {
        let client = Client::new("http://h:1/base/".to_owned(), None).unwrap();
        let url = client.url(&["job", "a/b?c#d e", "status"]).unwrap();
        assert_eq!(url.as_str(), "http://h:1/base/job/a%2Fb%3Fc%23d%20e/status");
    }

    #[test]
    fn refusals_have_the_exit_code_of_their_cure() {
        let client = Client::new("http://h:1".to_owned(), None).unwrap();
        let exit = |status, detail| client.refused(status, detail).exit;
        assert_eq!(exit(StatusCode::FORBIDDEN, "no"), Exit::QueueUnreachable);
        assert_eq!(exit(StatusCode::SERVICE_UNAVAILABLE, ""), Exit::QueueUnreachable);
        assert_eq!(exit(StatusCode::NOT_FOUND, "no job"), Exit::Failed);
        assert!(client.refused(StatusCode::NOT_FOUND, "").message.contains("http://h:1"));
    }
}
