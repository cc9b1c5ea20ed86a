//! Requests from commands to a running host. Each request is a file in a folder beside the health file.
//!
//! A command writes a request file. The host takes the request by removing the file, carries the request out, and
//! writes an answer file. Each request is therefore carried out at most once. A command that receives no answer removes
//! its request file. If the removal succeeds, the host has not carried the request out.
//!
//! A request is addressed to one run of one host and is valid for [`ANSWER_WAIT`]. If a command is killed, its request
//! file remains, but the host does not carry out a request that is no longer valid.
//!
//! Anyone who can write to the folder can cancel messages. The host therefore requires that its own user or root owns
//! the folder and each request file, and that no one else may write to the folder. The host follows no symbolic link.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::folder::{self, FolderError, failed};
use super::request_file::{self, ANSWER, DRAFT, RequestFile};
use super::verdict::START_TOLERANCE;
use super::{Answer, MAX_BYTES, Question, Report, Timestamp, lock, trust};

/// Maximum time to wait for an answer. A running host checks for requests at least once per [`super::TICK`].
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Age after which the host removes a request or answer file that a command has left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(60);

/// Maximum size of a request file in bytes.
const MAX_REQUEST: u64 = 16 * 1024;

/// Maximum number of requests that one call of [`Requests::take`] examines. If there are more, the call examines the
/// newest. Also the maximum number of files that one call removes. Foreign files do not count.
const MAX_FILES: usize = 64;

/// Interval at which a command checks for an answer.
const LOOK: Duration = Duration::from_millis(10);

/// The contents of a request file: a question, and the identity of the host process to which the question is addressed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Addressed {
    pid: u32,
    pid_namespace: Option<String>,
    started_at: Timestamp,
    question: Question,
}

impl Addressed {
    /// Returns `true` if the request is addressed to the host process that wrote the report `own`.
    fn is_for(&self, own: &Report) -> bool {
        let apart = self.started_at.since(own.started_at).max(own.started_at.since(self.started_at));
        (self.pid, &self.pid_namespace) == (own.pid, &own.pid_namespace) && apart <= START_TOLERANCE
    }
}

/// The requests to a host, stored in the folder `<health file>.requests`. Creating this value does not access the
/// folder.
#[derive(Debug, Clone)]
pub struct Requests {
    folder: PathBuf,
}

/// A request that the host has taken.
#[derive(Debug)]
pub struct Taken {
    /// The question that the command asks.
    pub question: Question,
    answer: PathBuf,
}

/// The error for a request that cannot be made, taken or answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The file system refused an action, or the folder cannot be trusted.
    #[error(transparent)]
    Failed(#[from] FolderError),
    /// The host did not take the request in time. The command has removed the request, so nothing was done.
    #[error("the host (pid {pid}) has taken no request for {}s: it is stopped, or of an earlier version; nothing was done", ANSWER_WAIT.as_secs())]
    NotTaken {
        /// The host's process id.
        pid: u32,
    },
    /// The host never reached the request, because it examines only the newest requests and there were too many newer
    /// ones. The command has removed the request, so nothing was done.
    #[error(
        "`{}` holds {newer} newer requests that no host takes, and a host looks only at the newest {}: remove them, and try \
         again; nothing was done",
        folder.display(),
        MAX_FILES
    )]
    Crowded {
        /// Path of the folder.
        folder: PathBuf,
        /// Number of newer requests.
        newer: usize,
    },
    /// The host took the request but did not answer in time.
    #[error("the host (pid {pid}) has taken the request and not answered within {}s; see its log", ANSWER_WAIT.as_secs())]
    NoAnswer {
        /// The host's process id.
        pid: u32,
    },
}

impl Requests {
    /// Returns the requests to the host that writes the given health file.
    pub fn beside(health_file: &Path) -> Self {
        Self { folder: health_file.with_added_extension("requests") }
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sends a question to the host that wrote the report `host`. Waits up to [`ANSWER_WAIT`] for the answer.
    ///
    /// # Errors
    /// The folder cannot be used, or the host does not answer in time.
    pub fn ask(&self, host: &Report, question: Question) -> Result<Answer, RequestError> {
        let owner = folder::create(&self.folder)?;
        let request = Addressed {
            pid: host.pid,
            pid_namespace: host.pid_namespace.clone(),
            started_at: host.started_at,
            question,
        };
        let file = RequestFile::new(&self.folder);
        let answer = file.path.with_extension(ANSWER);
        write(&file.path, &request, owner).map_err(failed("write", &file.path))?;
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_WAIT {
            if let Some(bytes) = read(&answer, MAX_BYTES).map_err(failed("read", &answer))? {
                // If the removal fails, the host removes the answer later.
                let _ = fs::remove_file(&answer);
                return Ok(serde_json::from_slice(&bytes).map_err(|error| failed("read", &answer)(error.into()))?);
            }
            #[allow(clippy::disallowed_methods, reason = "the creation of a file causes no event")]
            thread::sleep(LOOK);
        }
        match fs::remove_file(&file.path) {
            Ok(()) => Err(self.not_taken(&file, host.pid)),
            Err(_) => Err(RequestError::NoAnswer { pid: host.pid }),
        }
    }

    /// Returns the error for a request that the host has not taken. The host does not examine a request if there are
    /// [`MAX_FILES`] newer ones.
    fn not_taken(&self, file: &RequestFile, pid: u32) -> RequestError {
        let is_newer = |other: &RequestFile| other.is_request() && other.at > file.at;
        let newer = request_file::list(&self.folder).unwrap_or_default().into_iter().filter(is_newer).count();
        if newer < MAX_FILES {
            RequestError::NotTaken { pid }
        } else {
            RequestError::Crowded { folder: self.folder.clone(), newer }
        }
    }

    /// Takes the requests to the host that wrote the report `own`, the oldest first. Removes request and answer files that
    /// commands left behind more than a minute ago. Ignores foreign files.
    ///
    /// # Errors
    /// The folder cannot be trusted, or cannot be read.
    pub fn take(&self, own: &Report) -> Result<Vec<Taken>, FolderError> {
        if !folder::is_there(&self.folder)? {
            return Ok(Vec::new());
        }
        let files = request_file::list(&self.folder).map_err(failed("read", &self.folder))?;
        for file in files.iter().take(MAX_FILES) {
            if age(&file.path).is_some_and(|age| age > LEFT_BEHIND) {
                // If the removal fails, the next call tries again.
                let _ = fs::remove_file(&file.path);
            }
        }
        let requests: Vec<_> = files.iter().filter(|file| file.is_request()).collect();
        let newest = requests.iter().skip(requests.len().saturating_sub(MAX_FILES));
        Ok(newest.filter_map(|file| take_one(&file.path, own)).collect())
    }
}

impl Taken {
    /// Writes the answer for the command that sent the request.
    ///
    /// # Errors
    /// The answer cannot be written.
    pub fn answer(self, answer: &Answer) -> Result<(), FolderError> {
        write(&self.answer, answer, None).map_err(failed("write", &self.answer))
    }
}

/// Returns the time since the last change of a file. `None`: the file is gone, or the change is in the future.
fn age(path: &Path) -> Option<Duration> {
    let modified = fs::symlink_metadata(path).and_then(|found| found.modified()).ok()?;
    SystemTime::now().duration_since(modified).ok()
}

fn take_one(path: &Path, own: &Report) -> Option<Taken> {
    let found = fs::symlink_metadata(path).ok()?;
    // The command that sent an older request no longer waits for an answer.
    let is_current = age(path).is_none_or(|age| age <= ANSWER_WAIT);
    if !is_current || !is_regular(&found) {
        return None;
    }
    let request: Addressed = serde_json::from_slice(&read(path, MAX_REQUEST).ok()??).ok()?;
    if !request.is_for(own) {
        return None;
    }
    // Either the host or the command removes the file. The host may carry out the request only if the host removed the
    // file.
    fs::remove_file(path).ok()?;
    Some(Taken { question: request.question, answer: path.with_extension(ANSWER) })
}

fn is_regular(found: &Metadata) -> bool {
    found.is_file() && trust::is_ours(found.uid())
}

/// Writes a new file with mode 0600. Transfers the file to `owner` (user and group) if set. Renames the file into place
/// only when it is complete.
fn write(path: &Path, content: &impl Serialize, owner: Option<(u32, u32)>) -> io::Result<()> {
    let draft = path.with_added_extension(DRAFT);
    let mut file = lock::no_follow().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = fill(&mut file, content, owner).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

fn fill(file: &mut File, content: &impl Serialize, owner: Option<(u32, u32)>) -> io::Result<()> {
    file.write_all(&serde_json::to_vec(content)?)?;
    owner.map_or(Ok(()), |(user, group)| fchown(&*file, Some(user), Some(group)))
}

/// Reads a regular file of at most `limit` bytes without following a symbolic link. `None`: there is no file.
fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match lock::no_follow().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::Clock;
    use super::*;

    fn place() -> (tempfile::TempDir, Requests, Report) {
        let folder = tempfile::tempdir().unwrap();
        let requests = Requests::beside(&folder.path().join("health.json"));
        (folder, requests, Clock::start().report(|_| Vec::new()))
    }

    /// Writes a request file without waiting for an answer.
    fn put(requests: &Requests, host: &Report, name: &str) -> PathBuf {
        folder::create(requests.folder()).unwrap();
        let (pid, pid_namespace, started_at) = (host.pid, host.pid_namespace.clone(), host.started_at);
        let path = requests.folder().join(name);
        write(&path, &Addressed { pid, pid_namespace, started_at, question: Question::List }, None).unwrap();
        path
    }

    #[test]
    fn a_request_is_taken_once_and_answered() {
        let (_folder, requests, host) = place();
        assert!(requests.take(&host).unwrap().is_empty(), "there is not even a folder");
        let asking = {
            let (requests, host) = (requests.clone(), host.clone());
            let question = Question::Cancel { message_id: "m".into(), consumer: Some("c".into()) };
            thread::spawn(move || requests.ask(&host, question))
        };
        let taken = loop {
            if let Some(taken) = requests.take(&host).unwrap().pop() {
                break taken;
            }
            assert!(!asking.is_finished(), "it waits for an answer");
            thread::yield_now();
        };
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(requests.folder()), 0o700);
        assert!(matches!(&taken.question, Question::Cancel { message_id, .. } if message_id == "m"));
        assert!(requests.take(&host).unwrap().is_empty(), "it is gone");
        taken.answer(&Answer::NotInFlight).unwrap();
        assert_eq!(asking.join().unwrap().unwrap(), Answer::NotInFlight);
        assert_eq!(fs::read_dir(requests.folder()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_request_to_another_run_or_of_long_ago_is_not_taken() {
        let (_folder, requests, host) = place();
        let other = Report { started_at: host.started_at.minus(Duration::from_secs(1)), ..host.clone() };
        put(&requests, &other, "1-1.request");
        put(&requests, &Report { pid: host.pid + 1, ..host.clone() }, "2-2.request");
        put(&requests, &Report { pid_namespace: Some("elsewhere".into()), ..host.clone() }, "3-3.request");
        put(&requests, &host, "4-4.request.draft");
        let aged = |name: &str, age: Duration| {
            let path = put(&requests, &host, name);
            File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let late = aged("5-5.request", ANSWER_WAIT + Duration::from_secs(1));
        let left = [aged("6-6.request", 2 * LEFT_BEHIND), aged("7-7.answer", 2 * LEFT_BEHIND)];
        assert!(requests.take(&host).unwrap().is_empty());
        assert!(late.exists() && left.iter().all(|path| !path.exists()), "what is old is removed");
        assert_eq!(requests.take(&other).unwrap().len(), 1, "the other finds its own");
    }

    #[test]
    fn other_files_do_not_hide_a_request_and_stay() {
        let (_folder, requests, host) = place();
        folder::create(requests.folder()).unwrap();
        let foreign: Vec<_> = (0..200).map(|n| requests.folder().join(format!("note-{n}.request"))).collect();
        for (place, path) in foreign.iter().enumerate() {
            if place % 2 == 0 {
                fs::create_dir(path).unwrap()
            } else {
                fs::write(path, "").unwrap()
            }
            File::open(path).unwrap().set_modified(SystemTime::now() - 2 * LEFT_BEHIND).unwrap();
        }
        // Requests that no host takes, all older than the one to this host.
        let other = Report { pid: host.pid + 1, ..host.clone() };
        for at in 1..=2 * MAX_FILES {
            put(&requests, &other, &format!("1-{at}.request"));
        }
        put(&requests, &host, "1-1000.request");
        assert_eq!(requests.take(&host).unwrap().len(), 1);
        assert!(foreign.iter().all(|path| path.exists()), "they are not hostler's to remove");
    }

    #[test]
    fn a_request_behind_too_many_newer_ones_is_told_apart_from_a_host_that_is_stopped() {
        let (_folder, requests, host) = place();
        folder::create(requests.folder()).unwrap();
        let asked = RequestFile { at: 7, path: requests.folder().join("1-7.request") };
        let error = || requests.not_taken(&asked, host.pid).to_string();
        for at in 1..MAX_FILES + 7 {
            put(&requests, &host, &format!("2-{at}.request"));
        }
        put(&requests, &host, "2-1000.answer");
        assert!(error().contains("it is stopped"), "63 newer ones: {}", error());
        put(&requests, &host, "2-1001.request");
        let expected =
            "health.json.requests` holds 64 newer requests that no host takes, and a host looks only at the newest 64";
        assert!(error().contains(expected), "{}", error());
    }

    #[test]
    fn what_another_may_have_put_there_is_not_taken() {
        let (folder, requests, host) = place();
        let request = put(&requests, &host, "1-1.request");
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&request, &elsewhere).unwrap();
        symlink(&elsewhere, &request).unwrap();
        fs::create_dir(requests.folder().join("2-2.request")).unwrap();
        fs::write(requests.folder().join("3-3.request"), vec![b' '; 1 + usize::try_from(MAX_REQUEST).unwrap()])
            .unwrap();
        fs::write(requests.folder().join("4-4.request"), "{").unwrap();
        assert!(requests.take(&host).unwrap().is_empty());

        fs::set_permissions(requests.folder(), Permissions::from_mode(0o777)).unwrap();
        let error = requests.take(&host).unwrap_err().to_string();
        assert!(error.contains("health.json.requests") && error.contains("others may write to it"), "{error}");
        assert!(requests.ask(&host, Question::List).is_err());
        fs::set_permissions(requests.folder(), Permissions::from_mode(0o700)).unwrap();
        fs::rename(requests.folder(), folder.path().join("moved")).unwrap();
        symlink(folder.path().join("moved"), requests.folder()).unwrap();
        assert!(requests.take(&host).unwrap_err().to_string().contains("it is not a folder"));
        assert!(requests.ask(&host, Question::List).is_err());
    }
}
