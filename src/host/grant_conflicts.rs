//! Refuses dangerous grants at startup: access to the kernel's own files, and write access to files that hostler reads.
//!
//! hostler trusts the files that it reads. Compiled code runs outside the sandbox, and the config defines what guests are allowed
//! to use. A guest that can create files next to the health file can pause a consumer. A guest that can write to any of these
//! files could gain all rights of hostler. Therefore, no setting permits such a grant.

use std::path::{Path, PathBuf};

use super::hard_links::{self, Search};
use super::located::Located;
use super::mounts::Mounts;
use super::mounts::overlays::{self, Which};
use super::records::drivers;
use super::{hardening, kernel_files};
use crate::exit::{Exit, Failure, Result};
use hostler_config::{Config, DirGrant, DirMode, HandlerRef, Loaded, USUAL_PLACES};
use hostler_health::{Pauses, Requests};

/// A file or folder that guests must not be able to replace.
struct Protected {
    /// Config key of the path, or a description if no key exists.
    key: String,
    path: PathBuf,
    /// Set if guests must not write to files or folders inside this path either. In that case, a grant of a folder inside the
    /// path is refused too.
    is_whole: bool,
    /// Consequence of a write by a guest, for the error message.
    harm: &'static str,
}

impl Protected {
    fn new(key: impl Into<String>, path: impl Into<PathBuf>, harm: &'static str) -> Self {
        Self { key: key.into(), path: path.into(), is_whole: false, harm }
    }

    fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }

    /// Returns true if guests with write access to `folder` can replace or change this path, directly or through a layer of an
    /// overlay.
    fn is_reached(&self, at: &Located, folder: &Granted<'_>) -> bool {
        [&folder.at].into_iter().chain(&folder.behind).any(|folder| self.overlaps(at, folder))
    }

    fn overlaps(&self, at: &Located, folder: &Located) -> bool {
        at.passes(folder) || at.is_in(folder) || self.is_whole && folder.is_in(at)
    }
}

/// A folder that a consumer grants to its guests.
struct Granted<'a> {
    consumer: &'a str,
    dir: &'a DirGrant,
    at: Located,
    /// Paths of the same folder in the upper layers of overlays. Writes to the folder change these layers.
    behind: Vec<Located>,
}

/// Refuses a config that gives guests write access to files that hostler reads, or harmful access to the kernel's own files.
///
/// # Errors
/// Exit code 64. The error message names each grant, and the key of each path with which the grant overlaps.
pub fn check_grants(loaded: &Loaded) -> Result<()> {
    let mounts = Mounts::read();
    let protected = protected(&loaded.config, loaded.file.as_deref(), |name| std::env::var_os(name).map(PathBuf::from));
    let protected: Vec<_> = protected
        .into_iter()
        .map(|protected| {
            let at = Located::find(&protected.path, &mounts);
            (in_layers(&at, &mounts, Which::Read), at, protected)
        })
        .collect();
    let grants: Vec<_> = granted(&loaded.config, &mounts).collect();
    let writable = grants.iter().filter(|grant| grant.dir.mode == DirMode::ReadWrite);
    if let (Some(grant), false) = (writable.clone().next(), mounts.are_complete()) {
        return Err(Failure::new(Exit::BadConfig, unknown_root(grant)));
    }
    let mut conflicts: Vec<_> = grants.iter().filter_map(|grant| of_kernel(grant, &mounts)).collect();
    for folder in writable {
        for (layers, at, protected) in &protected {
            let in_layers = || layers.iter().any(|at| protected.is_reached(at, folder));
            conflicts
                .extend(conflict(folder, at, protected).or_else(|| in_layers().then(|| overlap(folder, protected))));
        }
        conflicts.extend(grants_within(&grants, folder));
    }
    if conflicts.is_empty() { Ok(()) } else { Err(Failure::new(Exit::BadConfig, conflicts.join("\nhostler: "))) }
}

/// Refuses a config that lets guests write to the embedded queue. Called by commands that open the queue but start no guests.
/// Without this check, a guest of a running host could replace the queue file with a symbolic link, and the command would then
/// create a queue at the target of the link.
///
/// # Errors
/// Same as for [`check_grants`].
pub fn check_grants_of_queue(config: &Config) -> Result<()> {
    let mounts = Mounts::read();
    let files: Vec<_> =
        queue_files(config).map(|protected| (Located::find(&protected.path, &mounts), protected)).collect();
    if files.is_empty() {
        return Ok(());
    }
    let writable = granted(config, &mounts).filter(|grant| grant.dir.mode == DirMode::ReadWrite);
    let conflict = |folder: Granted<'_>| files.iter().find_map(|(at, protected)| conflict(&folder, at, protected));
    match writable.filter_map(conflict).collect::<Vec<_>>() {
        conflicts if conflicts.is_empty() => Ok(()),
        conflicts => Err(Failure::new(Exit::BadConfig, conflicts.join("\nhostler: "))),
    }
}

/// Locates all granted folders.
fn granted<'a>(config: &'a Config, mounts: &Mounts) -> impl Iterator<Item = Granted<'a>> {
    let grants =
        config.consumers.iter().flat_map(|consumer| consumer.allow.dirs.iter().map(|dir| (&*consumer.name, dir)));
    grants.map(|(consumer, dir)| {
        let at = Located::find(&dir.host, mounts);
        Granted { consumer, dir, behind: in_layers(&at, mounts, Which::Written), at }
    })
}

/// Returns the locations of the file or folder `at` in the layers of overlay file systems. With [`Which::Read`], also
/// returns the locations of the directory entries that lead to the file or folder.
fn in_layers(at: &Located, mounts: &Mounts, which: Which) -> Vec<Located> {
    overlays::others(&at.trail, mounts, which).iter().map(|path| Located::find(path, mounts)).collect()
}

/// Returns the error message for a granted writable folder that hostler cannot check, because the mounts do not show where the
/// root folder of this process is.
fn unknown_root(Granted { consumer, dir, .. }: &Granted<'_>) -> String {
    format!(
        "consumers.{consumer}.allow.dirs lets guests write to `{}`, but the mounts of this process do not say where its root folder \
         lies: a volume may show hostler's own files there\n  cure: start hostler in a container, or make the root folder a mount \
         before chroot (`mount --bind DIR DIR`), with /proc in it",
        dir.host.display()
    )
}

fn of_kernel(Granted { consumer, dir, .. }: &Granted<'_>, mounts: &Mounts) -> Option<String> {
    let refusal = kernel_files::refusal(&dir.host, dir.mode, mounts)?;
    Some(format!(
        "consumers.{consumer}.allow.dirs grants `{}`, which {refusal}\n  cure: grant a folder that holds the guest's files \
         and nothing else; pass what a guest has to know of the machine by allow.env",
        dir.host.display()
    ))
}

fn conflict(folder: &Granted<'_>, at: &Located, protected: &Protected) -> Option<String> {
    if protected.is_reached(at, folder) {
        return Some(overlap(folder, protected));
    }
    let file = hard_links::linked(&at.trail.end)?;
    let another = match hard_links::search(&folder.at.trail.end, file) {
        Search::None => return None,
        Search::Found(path) => format!("another name of it is `{}`", path.display()),
        Search::Unfinished => "another name of it may be among the many files there".to_owned(),
    };
    let (consumer, host, Protected { key, path, harm, .. }) = (folder.consumer, folder.dir.host.display(), protected);
    Some(format!(
        "consumers.{consumer}.allow.dirs lets guests write to `{host}`, and `{}` of {key} has hard links, {another}: {harm}\n  \
         cure: put a copy in its place, which has no other name, or remove the other name",
        path.display()
    ))
}

fn overlap(folder: &Granted<'_>, Protected { key, path, harm, .. }: &Protected) -> String {
    let (consumer, host, path) = (folder.consumer, folder.dir.host.display(), path.display());
    let pin = if key.ends_with(".handler") { ", or pin the handler by sha256" } else { "" };
    format!(
        "consumers.{consumer}.allow.dirs lets guests write to `{host}`, which overlaps with `{path}` of {key}: {harm}\n  \
         cure: grant a folder that holds nothing else, grant it with mode = \"ro\", or move what {key} names elsewhere{pin}"
    )
}

/// Returns an error message for each granted folder inside this writable folder. A guest could replace the inner folder with a
/// symbolic link to any other folder.
fn grants_within(grants: &[Granted<'_>], folder: &Granted<'_>) -> Vec<String> {
    let within = grants.iter().filter(|grant| grant.at.passes(&folder.at));
    let text = |Granted { consumer: name, dir, .. }: &Granted<'_>| {
        let (writer, host, inner) = (folder.consumer, folder.dir.host.display(), dir.host.display());
        format!(
            "consumers.{writer}.allow.dirs lets guests write to `{host}`, which holds `{inner}` of consumers.{name}.allow.dirs: \
             a guest could put a link to any folder in its place\n  cure: grant folders of which none lies within another, or \
             the outer one with mode = \"ro\""
        )
    };
    within.map(text).collect()
}

/// Environment variables that name files with root certificates, which hostler trusts, or with tokens that identify
/// hostler.
const TRUSTED: [&str; 6] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_CA_BUNDLE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
];

const CODE: &str =
    "code that a guest puts there would be loaded at the next start, outside of the sandbox if it is compiled";
const CONFIG: &str = "a guest could grant itself anything for the next start";
const HEALTH: &str = "a guest could forge the health of every consumer, pause it, and cancel its messages";
const QUEUE: &str = "a guest could read, change and remove every message";
const TRUST: &str = "hostler trusts what is written there, and guests could write it";

/// Lists all files and folders that hostler reads and trusts. `variable` looks up an environment variable. `file` is the path of
/// the config.
fn protected(config: &Config, file: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<Protected> {
    let health_file = &config.host.health_file;
    let mut all = vec![
        Protected::new("host.health_file (its folder)", folder_of(health_file), HEALTH),
        Protected::new("host.health_file (the pauses)", Pauses::beside(health_file).folder(), HEALTH).whole(),
        Protected::new("host.health_file (the requests)", Requests::beside(health_file).folder(), HEALTH).whole(),
    ];
    all.extend(config.host.cache_dir.iter().map(|path| Protected::new("host.cache_dir", path, CODE).whole()));
    all.extend(configs(file).into_iter().map(|file| Protected::new("--config", file, CONFIG)));
    all.extend(queue_files(config));
    let trusted = drivers(config).flat_map(|driver| driver.trusted_files(config));
    all.extend(trusted.map(|(key, path)| Protected::new(key, path, TRUST)));
    let authorities = config.consumers.iter().flat_map(|consumer| consumer.allow.ca_files());
    all.extend(authorities.map(|file| Protected::new("allow.tcp (a ca)", file, TRUST)));
    let secrets = config.consumers.iter().flat_map(|consumer| consumer.allow.secret_files());
    all.extend(secrets.map(|file| Protected::new("allow.env (a secret)", file, TRUST)));
    all.extend(job_files(config));
    // With `credential_process`, these files can make the SDK run a program. Therefore, guests must not write to them.
    all.extend(
        aws_files(config, &variable)
            .map(|(name, path)| Protected::new(name, path, "the AWS SDK runs programs named there")),
    );
    all.extend(TRUSTED.iter().filter_map(|name| {
        let path = variable(name).filter(|path| path != Path::new(""))?;
        Some(Protected::new(*name, path, TRUST))
    }));
    all.extend(std::env::current_exe().ok().map(|path| Protected::new("hostler's own program", path, CODE)));
    all.extend(code(config));
    all
}

/// Returns the files that say which database `hostler jobs` trusts. A host of consumers reads none of them, and may have the config
/// of a service beside it.
fn job_files(config: &Config) -> impl Iterator<Item = Protected> {
    let jobs = &config.jobs;
    // With an address, its file is not read.
    let address = jobs.database_file.as_ref().filter(|_| jobs.database.is_none());
    let files = [("jobs.database_file", address), ("jobs.database", jobs.root_certificate.as_ref())];
    files.into_iter().filter_map(|(key, file)| Some(Protected::new(key, file?, TRUST)))
}

/// Returns the file that stores the queue, and its companion files. Empty if the driver stores no file.
fn queue_files(config: &Config) -> impl Iterator<Item = Protected> {
    drivers(config).filter_map(|driver| driver.file(config)).flat_map(|file| {
        [""].iter().chain(file.companions).map(move |end| {
            let mut path = file.path.to_owned().into_os_string();
            path.push(end);
            Protected::new(file.key, PathBuf::from(path), QUEUE)
        })
    })
}

/// Returns the handlers and hooks that hostler reads from files. Leaves out pinned files, because hostler refuses a pinned file
/// whose digest has changed.
fn code(config: &Config) -> impl Iterator<Item = Protected> + '_ {
    config.consumers.iter().flat_map(|consumer| {
        let handler = consumer.sha256.is_none().then_some(&consumer.handler);
        let hooks = consumer.hooks.as_ref().filter(|_| consumer.hooks_sha256.is_none());
        [("handler", handler), ("hooks", hooks)].into_iter().filter_map(|(key, file)| match file {
            Some(HandlerRef::Path(path)) => {
                Some(Protected::new(format!("consumers.{}.{key}", consumer.name), path, CODE))
            }
            _ => None,
        })
    })
}

/// Returns the path of the config. Also returns the usual config paths of higher precedence, because a file there would replace
/// the config at the next start.
fn configs(file: Option<&Path>) -> Vec<&Path> {
    let usual = USUAL_PLACES.map(Path::new);
    let Some(file) = file else { return usual.into() };
    match usual.iter().position(|place| *place == file) {
        Some(place) => usual.into_iter().take(place + 1).collect(),
        None => vec![file],
    }
}

/// Returns the config file and the credentials file of the AWS SDK. If the config uses AWS, also returns files that do
/// not exist yet, because a guest could create them.
fn aws_files(
    config: &Config,
    variable: &impl Fn(&str) -> Option<PathBuf>,
) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let home = variable("HOME");
    let file = |name: &'static str, of_home: &str| {
        let named = variable(name).filter(|path| path != Path::new(""));
        // If the shell did not expand a leading `~`, the SDK itself expands it.
        let named = named.map(|path| match (path.strip_prefix("~"), &home) {
            (Ok(below), Some(home)) => home.join(below),
            _ => path,
        });
        let path = named.or_else(|| Some(home.as_ref()?.join(".aws").join(of_home)))?;
        (hardening::uses_aws(config) || path.exists()).then_some((name, path))
    };
    let files = [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    files.into_iter().flatten()
}

/// Returns the folder that contains a file.
fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the protected paths, each with its key. `more` is appended to the config, and `home` is the home folder.
    fn found(more: &str, file: Option<&str>, home: &Path) -> Vec<(String, PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("hostler.toml");
        std::fs::write(&config, format!("{more}\n[consumers.a]\nchannel = 'a'\nhandler = '/h/a.wasm'")).unwrap();
        let config = hostler_config::load(Some(&config), std::iter::empty::<(String, String)>()).unwrap().config;
        let variable = |name: &str| (name == "HOME").then(|| home.to_owned());
        let all = protected(&config, file.map(Path::new), variable);
        all.into_iter().map(|protected| (protected.key, protected.path)).collect()
    }

    fn of_key(all: &[(String, PathBuf)], key: &str) -> Vec<PathBuf> {
        all.iter().filter(|(name, _)| name == key).map(|(_, path)| path.clone()).collect()
    }

    #[test]
    fn a_config_that_the_next_start_would_find_is_protected() {
        let home = Path::new("/nonexistent");
        let config = |file| of_key(&found("", file, home), "--config");
        let [system, here] = ["/etc/hostler/hostler.toml", "./hostler.toml"].map(PathBuf::from);
        assert_eq!(config(None), [system.clone(), here.clone()]);
        assert_eq!(config(Some("./hostler.toml")), [system.clone(), here]);
        assert_eq!(config(Some("/etc/hostler/hostler.toml")), [system]);
        assert_eq!(config(Some("my.toml")), [PathBuf::from("my.toml")]);
    }

    #[test]
    fn a_queue_s_companions_and_files_that_say_whom_to_trust_are_protected() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        let text = "queue = { driver = 'embedded', embedded.path = '/q/q.db' }\n[consumers.a]\nchannel = 'a'\nhandler = '/h/a.wasm'";
        std::fs::write(&file, text).unwrap();
        let config = hostler_config::load(Some(&file), std::iter::empty::<(String, String)>()).unwrap().config;
        let variable = |name: &str| match name {
            "SSL_CERT_FILE" => Some(PathBuf::from("/trust/roots.pem")),
            "SSL_CERT_DIR" => Some(PathBuf::new()),
            _ => None,
        };
        let all = protected(&config, Some(&file), variable);
        let found = |key: &str| all.iter().filter(|one| one.key == key).map(|one| &*one.path).collect::<Vec<_>>();
        let queue = ["/q/q.db", "/q/q.db-wal", "/q/q.db-shm"].map(Path::new);
        assert_eq!(found("queue.embedded.path"), queue);
        assert_eq!(found("SSL_CERT_FILE"), [Path::new("/trust/roots.pem")]);
        assert!(found("SSL_CERT_DIR").is_empty());
    }

    #[cfg(feature = "rabbitmq")]
    #[test]
    fn files_that_say_which_rabbitmq_to_trust_are_protected() {
        let files = |more: &str| {
            let text = "queue.driver = 'rabbitmq'\n[queue.rabbitmq]\nca = '/r/ca.pem'\nclient_cert = '/r/me.pem'\n";
            let all = found(&format!("{text}{more}"), None, Path::new("/nonexistent"));
            ["url_file", "ca", "client_cert"].map(|key| of_key(&all, &format!("queue.rabbitmq.{key}")))
        };
        let [address, ca, own] = ["/r/url", "/r/ca.pem", "/r/me.pem"].map(|path| vec![PathBuf::from(path)]);
        assert_eq!(files("url_file = '/r/url'"), [address, ca.clone(), own.clone()]);
        let unused = files("url_file = '/r/url'\nurl = 'amqp://localhost'");
        assert_eq!(unused, [Vec::new(), ca, own], "the file of an address is not read beside an address");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn files_that_say_which_nats_to_trust_are_protected() {
        let files = |more: &str| {
            let text = format!("queue.driver = 'nats'\n[queue.nats]\nca = '/n/ca.pem'\n{more}");
            let all = found(&text, None, Path::new("/nonexistent"));
            ["url_file", "ca", "credentials", "nkey"].map(|key| of_key(&all, &format!("queue.nats.{key}")))
        };
        let path = |path: &str| vec![PathBuf::from(path)];
        let (url, ca, creds, nkey) = (path("/n/url"), path("/n/ca.pem"), path("/n/u.creds"), path("/n/u.nk"));
        let file = "url_file = '/n/url'\n";
        assert_eq!(files(&format!("{file}credentials = '/n/u.creds'")), [url.clone(), ca.clone(), creds, Vec::new()]);
        assert_eq!(files(&format!("{file}nkey = '/n/u.nk'")), [url, ca.clone(), Vec::new(), nkey]);
        let unused = files(&format!("{file}url = 'nats://localhost'"));
        assert_eq!(
            unused,
            [Vec::new(), ca, Vec::new(), Vec::new()],
            "the file of an address is not read beside an address"
        );
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn files_that_say_which_postgres_to_trust_are_protected() {
        let files = |keys: &str| {
            let text = format!("queue.driver = 'postgres'\n[queue.postgres]\n{keys}");
            let all = found(&text, None, Path::new("/nonexistent"));
            ["url_file", "url"].map(|key| of_key(&all, &format!("queue.postgres.{key}")))
        };
        let path = |path: &str| vec![PathBuf::from(path)];
        assert_eq!(files("url_file = '/p/url'"), [path("/p/url"), Vec::new()]);
        let both = "url_file = '/p/url'\nurl = 'postgres://pg/db?sslrootcert=%2Fp%2Fca.pem'";
        assert_eq!(
            files(both),
            [Vec::new(), path("/p/ca.pem")],
            "the file of an address is not read beside an address"
        );
    }

    #[test]
    fn files_that_say_which_database_of_jobs_to_trust_are_protected() {
        let files = |keys: &str| {
            let all = found(&format!("[jobs]\n{keys}"), None, Path::new("/nonexistent"));
            ["jobs.database_file", "jobs.database"].map(|key| of_key(&all, key))
        };
        let path = |path: &str| vec![PathBuf::from(path)];
        assert_eq!(files("database_file = '/p/url'"), [path("/p/url"), Vec::new()]);
        let both = "database_file = '/p/url'\ndatabase = 'postgres://pg/db?sslrootcert=%2Fp%2Fca.pem'";
        assert_eq!(
            files(both),
            [Vec::new(), path("/p/ca.pem")],
            "the file of an address is not read beside an address"
        );
    }

    #[test]
    fn files_of_the_aws_sdk_are_protected_before_they_exist() {
        let home = tempfile::tempdir().unwrap();
        let files = |driver: &str| {
            let all = found(&format!("queue.driver = '{driver}'\nqueue.sqs.region = 'eu-west-1'"), None, home.path());
            [of_key(&all, "AWS_CONFIG_FILE"), of_key(&all, "AWS_SHARED_CREDENTIALS_FILE")].concat()
        };
        let [config, credentials] = [".aws/config", ".aws/credentials"].map(|name| home.path().join(name));
        assert_eq!(files("sqs"), [config.clone(), credentials]);
        assert!(files("embedded").is_empty());
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(&config, "").unwrap();
        assert_eq!(files("embedded"), [config]);
    }
}
