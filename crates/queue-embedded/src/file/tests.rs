//! Tests of damage to the queue's file while it is open.

use super::*;
use crate::SystemClock;

/// Creates a queue with three rows that are only in the `-wal`.
fn filled(path: &Path) -> Opened {
    let opened = opened(path);
    insert(&opened, 3);
    opened
}

fn opened(path: &Path) -> Opened {
    open(path, Arc::new(SystemClock), Worker::Thread, Sharing::Processes).unwrap()
}

fn insert(opened: &Opened, rows: usize) {
    for _ in 0..rows {
        opened.db.execute("INSERT INTO content (id, body) VALUES ('x', x'')", []).unwrap();
    }
}

fn rows(opened: &Opened) -> i64 {
    opened.db.query_row("SELECT count(*) FROM content", [], |row| row.get(0)).unwrap()
}

fn told(opened: &Opened, what: &str) {
    let Err(QueueError::Refused(text)) = opened.still_there() else { panic!("{what}: not noticed") };
    assert!(text.contains(what) && text.contains("queue.db-wal`"), "{what}: {text}");
}

#[test]
fn a_removed_or_replaced_log_is_noticed_and_its_messages_are_saved() {
    for replacement in [None, Some("")] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let queue = filled(&path("queue.db"));
        queue.still_there().unwrap();
        fs::remove_file(path("queue.db-wal")).unwrap();
        if let Some(content) = replacement {
            fs::write(path("queue.db-wal"), content).unwrap();
        }
        told(&queue, "was removed or replaced while a hostler has it open");
        // Copies the file in the state in which a killed process would leave it.
        fs::copy(path("queue.db"), path("killed.db")).unwrap();
        assert_eq!(rows(&opened(&path("killed.db"))), 3, "{replacement:?}");
        insert(&queue, 1);
        drop(queue);
        assert_eq!(rows(&opened(&path("queue.db"))), 4, "{replacement:?}");
    }
}

#[test]
fn a_path_that_is_not_a_file_is_refused_with_the_cure() {
    for path in ["/dev/null", "/dev/full"] {
        let error =
            open(Path::new(path), Arc::new(SystemClock), Worker::Thread, Sharing::Processes).err().unwrap().to_string();
        assert!(error.contains("it is a pipe or a device; name another path"), "{error}");
    }
}

/// Opens the queue as a process does whose check of the companions came before the removal. Checks are skipped here,
/// because this process has the file open already.
#[test]
fn an_open_refuses_a_log_that_is_created_beside_the_index_of_a_removed_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let host = filled(&path);
    for is_saved in [false, true] {
        fs::remove_file(folder.path().join("queue.db-wal")).unwrap();
        if is_saved {
            told(&host, "was removed or replaced while a hostler has it open");
        }
        let late = open(&path, Arc::new(SystemClock), Worker::Thread, Sharing::Processes);
        if let Ok(late) = &late {
            insert(late, 1);
        }
        assert!(matches!(late, Err(QueueError::Refused(_))), "{is_saved}");
    }
    drop(host);
    assert_eq!(rows(&opened(&path)), 3);
}

#[test]
fn an_emptied_log_is_noticed_and_damages_nothing() {
    for writes_on in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let queue = filled(&path);
        // Any program may run a checkpoint, which moves the messages into the file first.
        queue.checkpoint("TRUNCATE").unwrap();
        queue.still_there().unwrap();
        insert(&queue, 1);
        queue.still_there().unwrap();
        fs::write(folder.path().join("queue.db-wal"), "").unwrap();
        if writes_on {
            insert(&queue, 1);
        }
        told(&queue, "was emptied while a hostler had it open");
        if !writes_on {
            let error =
                open(&path, Arc::new(SystemClock), Worker::Thread, Sharing::Processes).err().unwrap().to_string();
            assert!(error.contains("was emptied while a hostler had it open"), "{error}");
        }
        drop(queue);
        let again = opened(&path);
        assert_eq!(rows(&again), 3, "what the file has is left, {writes_on}");
        insert(&again, 1);
        again.still_there().unwrap();
    }
}

/// The `-wal` must fit the file at the queue's path, or wait for the operator if there is none.
#[test]
fn the_log_of_a_deleted_file_is_kept_for_its_exact_copy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    drop(filled(&path("other.db")));
    for (replacement, left) in [(None, None), (Some("copy.db"), Some(4)), (Some("other.db"), Some(3))] {
        let _ = fs::remove_file(path("queue.db-wal"));
        let _ = fs::remove_file(path("queue.db"));
        let queue = opened(&path("queue.db"));
        insert(&queue, 4);
        fs::copy(path("queue.db"), path("copy.db")).unwrap();
        fs::remove_file(path("queue.db")).unwrap();
        if let Some(replacement) = replacement {
            fs::rename(path(replacement), path("queue.db")).unwrap();
        }
        drop(queue);
        match left {
            Some(left) => assert_eq!(rows(&opened(&path("queue.db"))), left, "{replacement:?}"),
            None => {
                let error =
                    open(&path("queue.db"), Arc::new(SystemClock), Worker::Thread, Sharing::Processes).err().unwrap();
                assert!(error.to_string().contains("move that file back"), "{error}");
            }
        }
    }
}

/// Runs the same query on two connections, as two hosts do, and lets both restore the index that the query lacks.
#[test]
fn work_is_tried_again_if_another_process_restored_the_index_first() {
    for damage in ["", "CREATE INDEX entry_group ON entry (seq) WHERE attempts > 9"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let hosts = [opened(&path), opened(&path)];
        hosts[0].db.execute_batch(&format!("DROP INDEX entry_group; {damage}")).unwrap();
        let query = "SELECT 1 FROM entry INDEXED BY entry_group WHERE queue = 1 AND group_name = 'g'";
        let run = |host: &Opened| host.db.prepare(query).and_then(|mut query| query.exists([]));
        let errors = hosts.each_ref().map(|host| run(host).unwrap_err());
        for (host, error) in hosts.iter().zip(&errors) {
            assert!(host.restore_indexes(error), "{error}");
            run(host).unwrap();
        }
    }
}
