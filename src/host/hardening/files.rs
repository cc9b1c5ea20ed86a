//! Decides which files the process and the threads of guests may access. Performs no I/O. The decision depends only on the
//! config, the environment, the AWS profile, and the targets of symbolic links.

use std::path::{Path, PathBuf};

use super::Environment;
use super::aws::Profile;
use crate::host::driver;
use crate::host::drivers::QueueFile;
use crate::host::records::drivers;
use hostler_config::{Config, Consumer, DirMode, HandlerRef};

/// Permission to access a file, or a folder with all its contents. A rule for a missing file has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Path of the file or folder. Symbolic links are followed.
    pub path: PathBuf,
    /// Set if writes are allowed.
    pub writable: bool,
}

/// File access that remains allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Rules for the whole process. `None`: access is unrestricted, because the AWS SDK runs a program that may need any file.
    pub process: Option<Vec<Rule>>,
    /// For each consumer, the rules for the threads that run its guests and for the threads that read and write files for its
    /// guests.
    pub guests: Vec<Vec<Rule>>,
    /// Folders to create before the process is restricted, each with its mode. The restricted process could not create them.
    pub folders: Vec<(PathBuf, u32)>,
}

/// Files about the machine that the runtimes read.
const MACHINE: [&str; 3] = ["/proc", "/sys/fs/cgroup", "/sys/devices/system"];

/// Sources of random numbers. A static build needs them because it does not find the C library's `getrandom`.
const RANDOM: [&str; 2] = ["/dev/urandom", "/dev/random"];

/// Files for name resolution.
const NAMES: [&str; 11] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
];

/// Folders in which a dynamically linked C library finds its plugins for name resolution.
#[cfg(target_env = "gnu")]
const LIBRARIES: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
#[cfg(not(target_env = "gnu"))]
const LIBRARIES: [&str; 0] = [];

/// Locations of root certificates in Linux distributions.
const AUTHORITIES: [&str; 9] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// Environment variables that name files with certificates or keys.
const CERTIFICATES: [&str; 6] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_CA_BUNDLE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];

/// Environment variables that name files of the AWS SDK. Other programs renew these files by replacing them.
const AWS_FILES: [&str; 4] = [
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// Folders that also contain files of other programs. A permission to access a file in one of these folders never covers the
/// whole folder.
const SHARED: [&str; 8] = ["/", "/etc", "/tmp", "/var/tmp", "/run", "/var/run", "/root", "/home"];

/// A function that resolves the symbolic links of a path.
pub type Real<'a> = &'a dyn Fn(&Path) -> PathBuf;

/// Decides which files the process and the threads of guests may access.
pub fn decide(config: &Config, environment: Environment<'_>, profile: &Profile, real: Real<'_>) -> Decision {
    let runs_program = uses_aws(config) && profile.runs_program;
    let process = (!runs_program).then(|| {
        let mut rules: Vec<_> = folders(config).into_iter().map(|(folder, _)| write(folder)).collect();
        // A driver such as SQLite stores companion files in the folder of the real file. If `file.path` is a symbolic link, that
        // is the folder of its target.
        rules.extend(queue_files(config).map(|file| write(folder_of(&real(file.path)))));
        let trusted = drivers(config).flat_map(|driver| driver.trusted_files(config));
        rules.extend(trusted.map(|(_, file)| read(file)));
        rules.extend(handlers(config));
        rules.extend(config.consumers.iter().flat_map(|consumer| consumer.allow.ca_files()).map(read));
        rules.extend(secrets(config, environment, real));
        rules.extend(config.consumers.iter().flat_map(granted));
        rules
            .extend(reading(MACHINE).chain(reading(RANDOM)).chain(network(environment)).chain(registries(environment)));
        rules.push(write("/dev/null"));
        if uses_aws(config) {
            rules.extend(aws(environment, profile, real));
        }
        rules
    });
    let guests = |consumer: &Consumer| {
        let mut rules: Vec<_> = granted(consumer).chain(reading(RANDOM)).collect();
        if !consumer.allow.http.is_empty() || !consumer.allow.tcp.is_empty() {
            rules.extend(network(environment));
        }
        rules
    };
    let guests = config.consumers.iter().map(guests).collect();
    Decision { process, guests, folders: folders(config) }
}

/// Returns true if the queue, any handler or any secret is on AWS.
pub fn uses_aws(config: &Config) -> bool {
    let has_secret = |consumer: &Consumer| consumer.allow.secrets.values().any(|secret| secret.managed().is_some());
    let is_secret = config.consumers.iter().any(has_secret);
    is_secret
        || driver(config).uses_aws()
        || references(config).any(|reference| matches!(reference, HandlerRef::S3 { .. }))
}

fn references(config: &Config) -> impl Iterator<Item = &HandlerRef> {
    config.consumers.iter().flat_map(|consumer| std::iter::once(&consumer.handler).chain(&consumer.hooks))
}

fn read(path: impl Into<PathBuf>) -> Rule {
    Rule { path: path.into(), writable: false }
}

fn write(path: impl Into<PathBuf>) -> Rule {
    Rule { path: path.into(), writable: true }
}

fn reading<const N: usize>(paths: [&'static str; N]) -> impl Iterator<Item = Rule> {
    paths.into_iter().map(read)
}

/// Returns the folders that the process must be able to write to, each with the mode for its creation. These are the folders of
/// the health file, the cache and the queue, and the granted folders that are writable.
fn folders(config: &Config) -> Vec<(PathBuf, u32)> {
    let mut folders = vec![(folder_of(&config.host.health_file), 0o700)];
    folders.extend(config.host.cache_dir.iter().map(|folder| (folder.clone(), 0o700)));
    folders.extend(queue_files(config).map(|file| (folder_of(file.path), 0o777)));
    let granted = config.consumers.iter().flat_map(|consumer| &consumer.allow.dirs);
    folders.extend(granted.filter(|dir| dir.mode == DirMode::ReadWrite).map(|dir| (dir.host.clone(), 0o777)));
    folders
}

/// Returns the files that store the queue and the records of idempotency.
fn queue_files(config: &Config) -> impl Iterator<Item = QueueFile<'_>> {
    drivers(config).filter_map(|driver| driver.file(config))
}

fn granted(consumer: &Consumer) -> impl Iterator<Item = Rule> {
    let dirs = consumer.allow.dirs.iter();
    dirs.map(|dir| Rule { path: dir.host.clone(), writable: dir.mode == DirMode::ReadWrite })
}

fn handlers(config: &Config) -> impl Iterator<Item = Rule> {
    references(config).filter_map(|reference| match reference {
        HandlerRef::Path(path) => Some(read(path)),
        _ => None,
    })
}

/// Returns rules for the files with secrets, which other programs renew by replacing them.
fn secrets(config: &Config, environment: Environment<'_>, real: Real<'_>) -> Vec<Rule> {
    let home = environment("HOME");
    let files = config.consumers.iter().flat_map(|consumer| consumer.allow.secret_files());
    let files = files.flat_map(|file| [real(file), file.to_owned()]);
    files.map(|file| read(renewed(&file, home.as_deref()))).collect()
}

/// Returns rules for the files that name resolution and certificate checks need.
fn network(environment: Environment<'_>) -> impl Iterator<Item = Rule> {
    let certificates = CERTIFICATES.into_iter().filter_map(environment).map(read);
    reading(NAMES).chain(reading(LIBRARIES)).chain(reading(AUTHORITIES)).chain(certificates)
}

/// Returns a rule for the file with credentials for OCI registries.
fn registries(environment: Environment<'_>) -> Option<Rule> {
    let folder = environment("DOCKER_CONFIG").or_else(|| Some(environment("HOME")?.join(".docker")))?;
    Some(read(folder.join("config.json")))
}

/// Returns rules for the files of the AWS SDK. If a file is a symbolic link, also returns a rule for its target. Where possible,
/// a rule covers the file's folder, because other programs renew the file by replacing it.
fn aws(environment: Environment<'_>, profile: &Profile, real: Real<'_>) -> Vec<Rule> {
    let home = environment("HOME");
    let of_home = home.iter().flat_map(|home| ["config", "credentials"].map(|name| home.join(".aws").join(name)));
    let named = AWS_FILES.into_iter().filter_map(environment).chain(profile.token_files.iter().cloned());
    let files = named.chain(of_home).flat_map(|file| [real(&file), file]);
    let mut rules: Vec<_> = files.map(|file| read(renewed(&file, home.as_deref()))).collect();
    if let Some(home) = home {
        rules.push(read(home.join(".aws")));
        // The SDK stores renewed tokens there.
        rules.push(write(home.join(".aws/sso/cache")));
    }
    rules
}

/// Returns the folder of a file that other programs renew by replacing it. If the folder is in [`SHARED`], is the home folder, or
/// is the working directory, returns the file itself.
fn renewed(file: &Path, home: Option<&Path>) -> PathBuf {
    let folder = folder_of(file);
    let is_shared = SHARED.iter().any(|shared| folder == Path::new(shared)) || Some(folder.as_path()) == home;
    if is_shared || folder == Path::new(".") { file.to_owned() } else { folder }
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

    fn config(driver: &str, more: &str) -> Config {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "host.health_file = '/run/h/health.json'\nqueue.driver = '{driver}'\nqueue.embedded.path = '/var/lib/q/queue.db'\n\
             [consumers.one]\nchannel = 'one'\nhandler = '/handlers/one.wasm'\n{more}"
        );
        std::fs::write(file.path(), text).unwrap();
        hostler_config::load(Some(file.path()), std::iter::empty::<(String, String)>()).unwrap().config
    }

    fn paths(rules: &[Rule], writable: bool) -> Vec<String> {
        rules.iter().filter(|rule| rule.writable == writable).map(|rule| rule.path.display().to_string()).collect()
    }

    fn decide(config: &Config, environment: Environment<'_>, profile: &Profile) -> Decision {
        super::decide(config, environment, profile, &|path| path.to_owned())
    }

    #[test]
    fn a_file_that_is_a_link_is_reached_where_it_is() {
        let real = |path: &Path| match path.to_str() {
            Some("/var/lib/q/queue.db") => "/mnt/volume/real.db".into(),
            Some("/home/me/.aws/credentials") => "/secrets/aws/now".into(),
            Some("/etc/aws.conf") => "/etc/real.conf".into(),
            _ => path.to_owned(),
        };
        let rules = |driver| super::decide(&config(driver, ""), &variable, &Profile::default(), &real).process.unwrap();
        assert!(paths(&rules("embedded"), true).contains(&"/mnt/volume".to_owned()));
        let read = paths(&rules("sqs"), false);
        for path in ["/secrets/aws", "/home/me/.aws", "/etc/aws.conf", "/etc/real.conf"] {
            assert!(read.contains(&path.to_owned()), "{path} of {read:?}");
        }
        assert!(!read.iter().any(|path| path == "/etc" || path == "/"), "{read:?}");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn files_of_the_driver_can_be_read() {
        let keys = "[queue.nats]\nurl = 'tls://nats'\nca = '/n/ca.pem'\nclient_cert = '/n/me.pem'\ncredentials = '/n/me.creds'";
        let read = |driver| {
            let rules = decide(&config(driver, keys), &variable, &Profile::default()).process.unwrap();
            paths(&rules, false).into_iter().filter(|path| path.starts_with("/n/")).collect::<Vec<_>>()
        };
        assert_eq!(read("nats"), ["/n/me.creds", "/n/ca.pem", "/n/me.pem"]);
        assert!(read("embedded").is_empty());
    }

    const DIRS: &str = "allow.dirs = [{ host = '/in', guest = '/in' }, { host = '/out', guest = '/out', mode = 'rw' }]";

    fn variable(name: &str) -> Option<PathBuf> {
        match name {
            "HOME" => Some("/home/me".into()),
            "AWS_WEB_IDENTITY_TOKEN_FILE" => Some("/var/run/secrets/eks/token".into()),
            "AWS_CONFIG_FILE" => Some("/etc/aws.conf".into()),
            _ => None,
        }
    }

    #[test]
    fn the_embedded_queue_gets_its_folder_and_guests_get_their_grants() {
        let decision = decide(&config("embedded", DIRS), &variable, &Profile::default());
        let process = decision.process.unwrap();
        assert_eq!(paths(&process, true), ["/run/h", "/var/lib/q", "/out", "/var/lib/q", "/out", "/dev/null"]);
        let read = paths(&process, false);
        assert!(read.contains(&"/handlers/one.wasm".to_owned()) && read.contains(&"/etc/hosts".to_owned()));
        assert!(!read.iter().any(|path| path.contains("aws") || path == "/etc" || path == "/etc/passwd"), "{read:?}");
        assert_eq!(
            (paths(&decision.guests[0], false), paths(&decision.guests[0], true)),
            (["/in", "/dev/urandom", "/dev/random"].map(String::from).to_vec(), vec!["/out".into()])
        );
    }

    #[test]
    fn sqs_gets_the_files_of_the_sdk_and_no_queue() {
        let decision = decide(&config("sqs", ""), &variable, &Profile::default());
        let process = decision.process.unwrap();
        assert_eq!(paths(&process, true), ["/run/h", "/dev/null", "/home/me/.aws/sso/cache"]);
        let read = paths(&process, false);
        for path in ["/var/run/secrets/eks", "/etc/aws.conf", "/home/me/.aws"] {
            assert!(read.contains(&path.to_owned()), "{path} of {read:?}");
        }
        assert_eq!(paths(&decision.guests[0], false), RANDOM);
        assert_eq!(paths(&decision.guests[0], true), Vec::<String>::new());
    }

    #[test]
    fn a_program_of_the_sdk_may_need_any_file_but_guests_do_not() {
        let profile = Profile { runs_program: true, token_files: Vec::new() };
        let decision = decide(&config("sqs", DIRS), &variable, &profile);
        assert_eq!(decision.process, None);
        assert_eq!(decision.guests[0].len(), 4);
        assert!(decide(&config("embedded", ""), &variable, &profile).process.is_some(), "the SDK is not used");
    }

    #[test]
    fn a_guest_that_may_send_requests_or_connect_can_look_names_up() {
        for grant in ["allow.http = ['https://example.com']", "allow.tcp = ['db.internal:5432']"] {
            let guests = decide(&config("embedded", grant), &variable, &Profile::default()).guests;
            assert!(paths(&guests[0], false).contains(&"/etc/resolv.conf".to_owned()), "{grant}");
        }
    }

    #[test]
    fn authorities_of_a_granted_server_are_read_by_the_process() {
        let grant = "allow.tcp = [{ to = 'db.internal:5432', tls = 'postgres', ca = '/tls/ca.pem' }]";
        let decision = decide(&config("embedded", grant), &variable, &Profile::default());
        assert!(paths(&decision.process.unwrap(), false).contains(&"/tls/ca.pem".to_owned()));
    }

    #[test]
    fn a_secret_is_read_by_the_process_and_its_folder_too_if_it_is_not_shared() {
        let env = "allow.env = { A = { secret = 'file:/secrets/a' }, B = { secret = 'file:/run/b' } }";
        let real = |path: &Path| if path.ends_with("a") { "/mnt/v1/a".into() } else { path.to_owned() };
        let decision = super::decide(&config("embedded", env), &variable, &Profile::default(), &real);
        let read = paths(&decision.process.unwrap(), false);
        for path in ["/secrets", "/mnt/v1", "/run/b"] {
            assert!(read.contains(&path.to_owned()), "{path} of {read:?}");
        }
        assert!(!read.iter().any(|path| path == "/run" || path.contains("aws")), "{read:?}");
        assert_eq!(paths(&decision.guests[0], false), RANDOM);
        let arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbC123";
        assert!(uses_aws(&config("embedded", &format!("allow.env = {{ A = {{ secret = '{arn}' }} }}"))));
    }

    #[test]
    fn a_guest_gets_nothing_of_what_another_consumer_grants() {
        let other = format!("{DIRS}\nallow.http = ['https://example.com']");
        let two = format!("[consumers.two]\nchannel = 'two'\nhandler = '/handlers/two.wasm'\n{other}");
        let guests = decide(&config("embedded", &two), &variable, &Profile::default()).guests;
        assert_eq!((paths(&guests[0], false), paths(&guests[0], true)), (RANDOM.map(String::from).to_vec(), vec![]));
        assert_eq!(paths(&guests[1], true), ["/out"]);
    }
}
