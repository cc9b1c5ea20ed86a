//! Faults that can be planted in the model, to prove that the checker finds them.

/// A rule that the model breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An assigned item is available.
    TwoAssignments,
    /// A succeeded item is available.
    RunsAfterSuccess,
    /// A result is accepted under an assignment that has ended.
    StaleResult,
    /// A failure is accepted under an assignment that has ended.
    StaleFailure,
    /// A failure is accepted under an assignment that succeeded.
    SecondEnd,
    /// A repeated result is refused.
    RepeatRefused,
    /// A result under a live assignment is refused if its item failed before.
    LiveResultRefused,
    /// An item fails at one failure more than the rule says.
    OneAttemptMore,
    /// An item fails at one failure fewer than the rule says.
    OneAttemptLess,
    /// Only the last failure is kept.
    FailuresOverwritten,
    /// Missed heartbeats do not count as a failure.
    ExpiryForgiven,
    /// One missed heartbeat ends an assignment.
    ExpiryEarly,
    /// Missed heartbeats never end an assignment.
    ExpiryNever,
    /// A heartbeat is accepted and not recorded.
    HeartbeatForgotten,
    /// A heartbeat is accepted under an assignment that has ended.
    StaleHeartbeat,
    /// A heartbeat counts by the worker's clock.
    HeartbeatByWorkersClock,
    /// The time of the next attempt counts by the worker's clock.
    RetryByWorkersClock,
    /// An item is available before `retry_at`.
    RetryAtIgnored,
    /// `retry_in_seconds` is ignored.
    RetryInIgnored,
    /// Serialize keys are ignored.
    KeyIgnored,
    /// The item of the highest priority is the head of its key.
    KeyByPriority,
    /// Serialize keys order the items of one job only.
    KeyPerJob,
    /// Serialize keys order the items of one tree only.
    KeyPerTree,
    /// Serialize keys order the items of one type only.
    KeyPerType,
    /// A head that waits for its next attempt does not hold its key.
    KeyFreeInBackoff,
    /// A head that is assigned does not hold its key.
    KeyFreeWhenAssigned,
    /// The assignment of a succeeded item holds its key for ever.
    KeyKeptBySuccess,
    /// The final failure of an item holds its key for ever.
    KeyKeptByFailure,
    /// A deleted item holds its key for ever.
    KeyKeptByDelete,
    /// A sealed job takes items.
    SealLetsIn,
    /// The seal is not checked by requests that arrive shortly after it.
    SealRace,
    /// A job completes without a seal.
    CompleteUnsealed,
    /// Assigned items do not count as pending.
    CompleteEarly,
    /// Items that failed before do not count as pending.
    CompleteInBackoff,
    /// Two last items that end at nearly the same time each see the other pending.
    LastTwoTogether,
    /// A sealed job without items is never complete.
    EmptyNeverComplete,
    /// The children of a complete job stay open.
    ChildrenStayOpen,
    /// Only the children of a root are sealed.
    ChildrenOneLevel,
    /// Children are sealed with their parent.
    ChildrenSealedEarly,
    /// A repeated result feeds the children again.
    FeedTwice,
    /// A result under an assignment that has ended feeds the children, although it is refused.
    FeedStale,
    /// Only the first child is fed.
    FeedFirstOnly,
    /// A final failure feeds the children.
    FeedOnFailure,
    /// The children are fed with the payload in place of the result.
    FeedWrongPart,
    /// A JSON `null` is not a result.
    NullIsNoResult,
    /// A tree's callback is due once the root is complete.
    CallbackEarly,
    /// A callback is dropped once it was leased.
    CallbackLost,
    /// A callback that is leased again has another event id.
    CallbackTwice,
    /// The assignments of a deleted job live on.
    DeleteKeepsAssignments,
    /// The jobs below a deleted job live on.
    DeleteKeepsTree,
    /// The results of all jobs are results of the tree.
    FinalStageIgnored,
    /// A tree has the results of the root only.
    FinalStageRootOnly,
    /// Dedupe keys of items are ignored.
    ItemDedupeIgnored,
    /// Dedupe keys of jobs are ignored.
    JobDedupeIgnored,
    /// Dedupe keys of items are compared across jobs.
    ItemDedupeAcrossJobs,
    /// A repeated request under the same idempotency key is carried out again.
    RepeatedRequest,
    /// A release counts as a failure.
    ReleaseCounts,
    /// A failure changes the payload.
    PayloadChanges,
    /// An item is lost once its third neighbour was added.
    ItemLost,
}

impl Fault {
    /// All faults.
    pub const ALL: &[Fault] = {
        use Fault::*;
        &[
            TwoAssignments,
            RunsAfterSuccess,
            StaleResult,
            StaleFailure,
            SecondEnd,
            RepeatRefused,
            LiveResultRefused,
            OneAttemptMore,
            OneAttemptLess,
            FailuresOverwritten,
            ExpiryForgiven,
            ExpiryEarly,
            ExpiryNever,
            HeartbeatForgotten,
            StaleHeartbeat,
            HeartbeatByWorkersClock,
            RetryByWorkersClock,
            RetryAtIgnored,
            RetryInIgnored,
            KeyIgnored,
            KeyByPriority,
            KeyPerJob,
            KeyPerTree,
            KeyPerType,
            KeyFreeInBackoff,
            KeyFreeWhenAssigned,
            KeyKeptBySuccess,
            KeyKeptByFailure,
            KeyKeptByDelete,
            SealLetsIn,
            SealRace,
            CompleteUnsealed,
            CompleteEarly,
            CompleteInBackoff,
            LastTwoTogether,
            EmptyNeverComplete,
            ChildrenStayOpen,
            ChildrenOneLevel,
            ChildrenSealedEarly,
            FeedTwice,
            FeedStale,
            FeedFirstOnly,
            FeedOnFailure,
            FeedWrongPart,
            NullIsNoResult,
            CallbackEarly,
            CallbackLost,
            CallbackTwice,
            DeleteKeepsAssignments,
            DeleteKeepsTree,
            FinalStageIgnored,
            FinalStageRootOnly,
            ItemDedupeIgnored,
            JobDedupeIgnored,
            ItemDedupeAcrossJobs,
            RepeatedRequest,
            ReleaseCounts,
            PayloadChanges,
            ItemLost,
        ]
    };
}
