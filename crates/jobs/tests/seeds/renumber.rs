//! Numbers of one side, translated into those of the other.

use crate::call::{Answer, Assigned, Operation, Refusal, Status};

/// Returns an operation with other numbers.
pub fn operation(operation: &Operation, number: &impl Fn(usize) -> usize) -> Operation {
    let all = |numbers: &[usize]| numbers.iter().map(|one| number(*one)).collect::<Vec<_>>();
    let mut renumbered = operation.clone();
    match &mut renumbered {
        Operation::Create { .. } | Operation::Claim { .. } | Operation::Callbacks | Operation::Sweep => {}
        Operation::Add { job, .. }
        | Operation::Seal { job }
        | Operation::Delete { job }
        | Operation::Status { job } => *job = number(*job),
        Operation::Assign { item, .. } => *item = number(*item),
        Operation::Succeed { assignment, .. } | Operation::Fail { assignment, .. } => *assignment = number(*assignment),
        Operation::Settle { successes, failures } => {
            successes.iter_mut().for_each(|(assignment, _)| *assignment = number(*assignment));
            *failures = all(failures);
        }
        Operation::Heartbeat { assignments, .. } | Operation::Release { assignments } => {
            *assignments = all(assignments)
        }
        Operation::Delivered { event } => *event = number(*event),
    }
    renumbered
}

/// Returns an answer with other numbers.
pub fn answer(answer: &Answer, number: &impl Fn(usize) -> usize) -> Answer {
    let all = |numbers: &[usize]| numbers.iter().map(|one| number(*one)).collect::<Vec<_>>();
    match answer {
        Answer::Created { jobs, items } => Answer::Created { jobs: all(jobs), items: all(items) },
        Answer::Added(items) => Answer::Added(all(items)),
        Answer::Assigned(assigned) => {
            let renumber = |one: &Assigned| Assigned {
                assignment: number(one.assignment),
                item: number(one.item),
                job: number(one.job),
                payload: one.payload.clone(),
            };
            Answer::Assigned(assigned.iter().map(renumber).collect())
        }
        Answer::Stale(assignments) => Answer::Stale(all(assignments)),
        Answer::Status(one) => Answer::Status(status(one, number)),
        Answer::Callbacks(due) => {
            Answer::Callbacks(due.iter().map(|(event, root)| (number(*event), number(*root))).collect())
        }
        Answer::Refused(Refusal::Duplicate(job)) => Answer::Refused(Refusal::Duplicate(number(*job))),
        Answer::Done | Answer::Settled(_) | Answer::Refused(_) => answer.clone(),
    }
}

/// Returns a status with other numbers.
pub fn status(one: &Status, number: &impl Fn(usize) -> usize) -> Status {
    let children = one.children.iter().map(|child| status(child, number)).collect();
    Status { job: number(one.job), children, ..one.clone() }
}
