//! Checks that the worker repeats, because other programs may have changed the file.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Core;
use crate::clock::Session;
use crate::stranded::Free;
use hostler_queue::QueueError;

/// Interval at which the worker checks that the file is still at its path. Also the minimum interval between searches for
/// stranded messages in a queue.
pub(super) const CHECK: Duration = Duration::from_secs(1);

impl Core {
    /// Checks that the file is still at its path, at most once per [`CHECK`]. Also answers the receives whose queues lost
    /// their rows in the table of queues. Returns `true` if stranded messages were made due. Fails if the file was
    /// removed or replaced.
    pub(super) fn check(&mut self) -> Result<bool, QueueError> {
        let now = self.file.time.monotonic();
        if now >= self.next_check {
            self.file.still_there()?;
            self.next_check = now + CHECK;
        }
        self.refuse_unregistered();
        Ok(self.free_stranded(now))
    }

    /// Answers the receives whose queues lost their rows in the table of queues. Reads the rows of a queue only if other
    /// connections changed the file since they were last read, because this connection never changes them.
    fn refuse_unregistered(&mut self) {
        if self.waiting.iter().all(|waiting| waiting.is_registered(&self.registered)) {
            return;
        }
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting.registration_fault(&self.file.db, &mut self.registered) {
                Ok(None) => self.waiting.push(waiting),
                Ok(Some(fault)) => waiting.answer(Err(self.file.refusal(&fault))),
                Err(error) => waiting.answer(Err(self.file.fault(&error))),
            }
        }
    }

    /// Makes stranded messages due in every queue with a waiting receive, at most once per [`CHECK`], and only if the file
    /// was changed. Returns `true` if a message was made due. Ignores errors, because the receives return the same errors.
    fn free_stranded(&mut self, now: Duration) -> bool {
        let queues = self.waiting.iter().map(|waiting| (waiting.queue(), waiting.lease()));
        let due = queues.filter(|((queue, _), _)| self.stranded.is_due(*queue, now, CHECK, self.changes));
        let queues: BTreeMap<i64, (String, Duration)> =
            due.map(|((queue, channel), lease)| (queue, (channel.to_owned(), lease))).collect();
        let mut has_freed = false;
        for (queue, (channel, lease)) in queues {
            let session = Session { db: &self.file.db, time: &self.file.time };
            let mut found = self.stranded.look(&session, queue);
            // The receives do not use every index, so they may not restore one that was dropped.
            if found.as_ref().is_err_and(|error| self.file.restore_indexes(error)) {
                found = self.stranded.look(&session, queue);
            }
            let Ok(found) = found else {
                self.stranded.repeat(queue);
                continue;
            };
            if found.is_empty() {
                continue;
            }
            let mut job = Free::new(queue, found, lease);
            if self.transact(false, std::slice::from_mut(&mut job)).iter().all(Result::is_ok) {
                has_freed |= job.tell(&channel);
            } else {
                self.stranded.repeat(queue);
            }
        }
        has_freed
    }
}
