//! Temporary folder of a session, and the environment variables that make a host and other commands use the folder.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::sweep::{LOCK, PREFIX, sweep};
use hostler_config::{Config, Consumer};

/// Maximum time for the old host to drain before the new host starts. After this time, the old host returns unfinished messages
/// to the queue.
const GRACE: &str = "5s";

/// Reply channel for consumers without `reply_channel` in the config.
const REPLIES: &str = "hostler-dev-replies";

/// Maximum number of names to try for the folder.
const NAMES: usize = 100;

/// Name and value of an environment variable.
pub(super) type Variable = (String, String);

/// Folder of a session. Dropping this value removes the folder.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    /// Locked as long as the session runs.
    _lock: File,
}

impl Place {
    /// Creates the folder with a random name. Only this user can access it. Removes the folders of sessions that were killed.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub(super) fn create() -> io::Result<Self> {
        let temporary = std::env::temp_dir();
        sweep(&temporary);
        Self::create_in(&temporary)
    }

    fn create_in(temporary: &Path) -> io::Result<Self> {
        for _ in 0..NAMES {
            let folder = temporary.join(format!("{PREFIX}{:08x}", fastrand::u32(..)));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            let lock = File::create(folder.join(LOCK))?;
            if let Some(place) = Self::claim(folder, lock) {
                return Ok(place);
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Locks a new folder for this session. `lock` is its lock file. Returns `None` if another session has found the folder
    /// before it was locked, and removes it or has removed it.
    fn claim(folder: PathBuf, lock: File) -> Option<Self> {
        let is_ours = match lock.try_lock() {
            Ok(()) => folder.join(LOCK).exists(),
            // Without locks on this file system, the folder stays behind if the session is killed.
            Err(TryLockError::Error(_)) => true,
            Err(TryLockError::WouldBlock) => false,
        };
        is_ours.then(|| Self { folder, _lock: lock })
    }

    /// Returns the path of the shell script that sets the variables.
    pub(super) fn shell_file(&self) -> PathBuf {
        self.folder.join("env")
    }

    /// Writes the shell script that sets the variables.
    ///
    /// # Errors
    /// The script cannot be written.
    pub(super) fn write_shell_file(&self, variables: &[Variable]) -> io::Result<()> {
        fs::write(self.shell_file(), exports(variables))
    }

    /// Returns environment variables that override settings of this config for the session. With these variables, a
    /// host uses the session's own embedded queue and exports no telemetry. Each build has a different digest, so empty
    /// variables also turn off the digests of handlers in the config. `file` is the path of the config, if any.
    pub(super) fn variables(&self, config: &Config, file: Option<&Path>) -> Vec<Variable> {
        let inside = |name: &str| self.folder.join(name).display().to_string();
        let mut variables = vec![
            ("HOSTLER_QUEUE__DRIVER".to_owned(), "embedded".to_owned()),
            ("HOSTLER_QUEUE__EMBEDDED__PATH".to_owned(), inside("queue.db")),
            ("HOSTLER_HOST__HEALTH_FILE".to_owned(), inside("health.json")),
            ("HOSTLER_HOST__SHUTDOWN_GRACE".to_owned(), GRACE.to_owned()),
            ("HOSTLER_TELEMETRY__LOG".to_owned(), "json".to_owned()),
            ("HOSTLER_TELEMETRY__OTLP_ENDPOINT".to_owned(), String::new()),
            ("HOSTLER_TELEMETRY__PROMETHEUS".to_owned(), String::new()),
            ("HOSTLER_TELEMETRY__EMF".to_owned(), "false".to_owned()),
        ];
        if let Some(file) = file {
            variables.push(("HOSTLER_CONFIG".to_owned(), file.display().to_string()));
        }
        if config.host.cache_dir.is_none() {
            // After each build, `hostler check` compiles the handlers. The cache passes the compiled code to the host.
            variables.push(("HOSTLER_HOST__CACHE_DIR".to_owned(), inside("cache")));
        }
        for consumer in &config.consumers {
            variables.extend(of_consumer(consumer));
        }
        variables
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A folder that cannot be removed is left behind.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn of_consumer(consumer: &Consumer) -> Vec<Variable> {
    let variable = |key: &str| format!("HOSTLER_CONSUMERS__{}__{key}", consumer.name.replace('-', "_"));
    let mut variables = Vec::new();
    if consumer.reply_channel.is_none() {
        variables.push((variable("REPLY_CHANNEL"), REPLIES.to_owned()));
    }
    // Each build has a different digest. Therefore, the session ignores the digests in the config.
    if consumer.sha256.is_some() {
        variables.push((variable("SHA256"), String::new()));
    }
    if consumer.hooks_sha256.is_some() {
        variables.push((variable("HOOKS_SHA256"), String::new()));
    }
    variables
}

/// Returns the environment with these variables set. Replaces variables of the same name. Ignores the case of names, because the
/// config does too.
pub(super) fn over(
    environment: impl Iterator<Item = (OsString, OsString)>,
    variables: &[Variable],
) -> Vec<(OsString, OsString)> {
    let stays = |name: &OsString| !variables.iter().any(|(ours, _)| name.eq_ignore_ascii_case(ours));
    let ours = variables.iter().map(|(name, value)| (name.into(), value.into()));
    environment.filter(|(name, _)| stays(name)).chain(ours).collect()
}

/// Returns a shell script that sets the variables.
fn exports(variables: &[Variable]) -> String {
    variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

/// Quotes a string for use in a shell command.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn config(text: &str, variables: &[Variable]) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        fs::write(&file, text).unwrap();
        hostler_config::load(Some(&file), over(std::iter::empty(), variables).into_iter()).unwrap().config
    }

    #[test]
    fn the_variables_lead_a_config_to_the_folder() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Place::create_in(temporary.path()).unwrap();
        let text = "queue = { driver = 'sqs', sqs.region = 'eu-west-1' }\ntelemetry = { emf = true, prometheus = '[::]:9464' }\n\
            [consumers.order-mails]\nchannel = 'orders.mails'\nhandler = 'a.wasm'\nsha256 = '00000000000000000000000000000000\
            00000000000000000000000000000000'\n[consumers.b]\nchannel = 'b'\nhandler = 'b.wasm'\nreply_channel = 'done'";
        let variables = place.variables(&config(text, &[]), None);
        let config = config(text, &variables);
        assert_eq!(config.queue.driver, hostler_config::Driver::Embedded);
        assert_eq!(config.queue.embedded.path.parent(), Some(place.folder.as_path()));
        assert_eq!(config.host.health_file.parent(), Some(place.folder.as_path()));
        assert_eq!((config.telemetry.emf, config.telemetry.prometheus), (false, None));
        let replies = |name: &str| {
            let consumer = config.consumers.iter().find(|consumer| consumer.name == name).unwrap();
            (consumer.reply_channel.as_ref().map(ToString::to_string), consumer.sha256)
        };
        assert_eq!(replies("order-mails"), (Some(REPLIES.to_owned()), None));
        assert_eq!(replies("b"), (Some("done".to_owned()), None));
    }

    #[test]
    fn a_variable_replaces_one_of_the_same_name_in_any_case() {
        let environment = [("hostler_queue__driver", "sqs"), ("PATH", "/bin")];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).into_iter();
        let all = over(environment, &[("HOSTLER_QUEUE__DRIVER".into(), "embedded".into())]);
        assert_eq!(all, [("PATH".into(), "/bin".into()), ("HOSTLER_QUEUE__DRIVER".into(), "embedded".into())]);
    }

    #[test]
    fn a_shell_reads_the_values_as_they_are() {
        let script =
            exports(&[("A".into(), "it's $HOME".into()), ("B".into(), String::new())]) + "printf '%s,%s' \"$A\" \"$B\"";
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "it's $HOME,");
    }

    #[test]
    fn a_folder_that_another_session_removes_is_not_used() {
        let temporary = tempfile::tempdir().unwrap();
        let begun = |name: &str| {
            let folder = temporary.path().join(name);
            DirBuilder::new().mode(0o700).create(&folder).unwrap();
            let lock = File::create(folder.join(LOCK)).unwrap();
            (folder, lock)
        };
        let (folder, lock) = begun("hostler-dev-0000000a");
        sweep(temporary.path());
        assert!(!folder.exists());
        assert!(Place::claim(folder, lock).is_none(), "it is removed");

        let (folder, lock) = begun("hostler-dev-0000000b");
        let other = File::open(folder.join(LOCK)).unwrap();
        other.lock().unwrap();
        assert!(Place::claim(folder.clone(), lock).is_none(), "another one is about to remove it");
        assert!(folder.exists());
    }

    #[test]
    fn the_folder_is_this_users_alone_and_goes_with_the_session() {
        let temporary = tempfile::tempdir().unwrap();
        let place = Place::create_in(temporary.path()).unwrap();
        let folder = place.folder.clone();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        sweep(temporary.path());
        assert!(folder.exists(), "it is in use");
        drop(place);
        assert!(!folder.exists());
    }
}
