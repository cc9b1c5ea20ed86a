//! Docker's own registry, which `tests/servers.sh` installs. Starts a registry for a test, and pushes artifacts to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};

use hostler_types::digest::{hex, sha256};
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::hostler::{PATIENCE, until};
use super::servers::{installed, keeper, tail};

/// User of a registry with authentication, with the password `secret`, in htpasswd format.
const USERS: &str = "me:$2b$04$Mr3aDPeoKXmX1fuXzt4BDOixNh4FSfftehgqmW7kzfZcwWJELjIhG\n";

/// Media type of WASM in an artifact.
pub const WASM: &str = "application/wasm";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A running registry. Dropping this value kills the registry. The end of this process also kills it.
pub struct Registry {
    keeper: Child,
    address: SocketAddr,
    _folder: TempDir,
    login: Option<(&'static str, &'static str)>,
}

impl Registry {
    /// Starts a registry without authentication.
    pub fn open() -> Self {
        Self::start(None)
    }

    /// Starts a registry that requires the user `me` with the password `secret`.
    pub fn asking() -> Self {
        Self::start(Some(("me", "secret")))
    }

    fn start(login: Option<(&'static str, &'static str)>) -> Self {
        let program = installed("registry").join("usr/bin/docker-registry");
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let users = folder.path().join("users");
        fs::write(&users, USERS).unwrap();
        let mut config = json!({
            "version": "0.1",
            "log": { "level": "error" },
            "storage": { "filesystem": { "rootdirectory": folder.path().join("storage") } },
            "http": { "addr": address.to_string(), "secret": "of this test" },
        });
        if login.is_some() {
            config["auth"] = json!({ "htpasswd": { "realm": "test", "path": users } });
        }
        let file = folder.path().join("config.yml");
        // JSON is valid YAML.
        fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg(&file).env("HOME", folder.path());
        let mut keeper = keeper(folder.path(), &command);
        until("the registry", PATIENCE, || {
            assert!(keeper.try_wait().unwrap().is_none(), "it did not start:\n{}", tail(folder.path()));
            TcpStream::connect(address).is_ok().then_some(())
        });
        Self { keeper, address, _folder: folder, login }
    }

    /// Returns host and port.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Pushes an artifact with these layers, each a media type and bytes. Returns the digest of the manifest.
    pub fn push(&self, repository: &str, tag: &str, layers: &[(&str, &[u8])]) -> String {
        let blob = |media_type: &str, bytes: &[u8]| json!({ "mediaType": media_type, "digest": self.push_blob(repository, bytes), "size": bytes.len() });
        let layers: Vec<_> = layers.iter().map(|(media_type, bytes)| blob(media_type, bytes)).collect();
        let config = blob("application/vnd.wasm.config.v0+json", b"{}");
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        self.push_manifest(repository, tag, MANIFEST, &manifest)
    }

    /// Pushes an index of these manifests, each an architecture and a digest. Returns the digest of the index.
    pub fn push_index(&self, repository: &str, tag: &str, manifests: &[(&str, &str)]) -> String {
        let entry = |(architecture, digest): &(&str, &str)| {
            let platform = json!({ "architecture": architecture, "os": "wasip1" });
            json!({ "mediaType": MANIFEST, "digest": digest, "size": 1, "platform": platform })
        };
        let manifests: Vec<_> = manifests.iter().map(entry).collect();
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        self.push_manifest(repository, tag, INDEX, &index)
    }

    fn push_blob(&self, repository: &str, bytes: &[u8]) -> String {
        let base = format!("http://{}", self.address);
        let (status, upload) =
            self.call(Method::POST, &format!("{base}/v2/{repository}/blobs/uploads/"), "text/plain", b"");
        assert_eq!(status, StatusCode::ACCEPTED);
        let mut url = Url::parse(&base).unwrap().join(&upload).unwrap();
        url.query_pairs_mut().append_pair("digest", &digest(bytes));
        let (status, _) = self.call(Method::PUT, url.as_str(), "application/octet-stream", bytes);
        assert_eq!(status, StatusCode::CREATED);
        digest(bytes)
    }

    fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, manifest: &Value) -> String {
        let manifest = manifest.to_string();
        let url = format!("http://{}/v2/{repository}/manifests/{tag}", self.address);
        let (status, _) = self.call(Method::PUT, &url, media_type, manifest.as_bytes());
        assert_eq!(status, StatusCode::CREATED);
        digest(manifest.as_bytes())
    }

    /// Sends a request. Returns the status and the location header.
    fn call(&self, method: Method, url: &str, media_type: &str, body: &[u8]) -> (StatusCode, String) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let request = Client::builder().no_proxy().build().unwrap().request(method, url);
            let request = request.header("Content-Type", media_type).body(body.to_vec());
            let request = match self.login {
                Some((user, password)) => request.basic_auth(user, Some(password)),
                None => request,
            };
            let response = request.send().await.unwrap();
            let location = response.headers().get("location").map(|location| location.to_str().unwrap().to_owned());
            (response.status(), location.unwrap_or_default())
        })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}

/// Returns the digest of these bytes, in the form `sha256:…`.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&sha256(bytes)))
}
