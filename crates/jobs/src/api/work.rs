//! The routes of workers: claim, assign, settle, heartbeat, release.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::api::fault::{gone, of_body, of_parameters};
use crate::api::handover::Handover;
use crate::api::input::{Id, Input, WorkerId};
use crate::api::problem::Problem;
use crate::api::state::App;
use crate::limits::{self, Fault, MAX_ASSIGNMENTS, MAX_CLAIM, MAX_DELAY};
use crate::store::{Settlement, StoreError};
use crate::types::{
    Assigned, Claim, Claimed, Failure, FailureAnswer, FailureBody, Heartbeat, Release, ResultBody, SettleAnswer,
    SettleRequest, StaleAssignments, Success,
};

/// Maximum number of types in a claim.
pub const TYPES: usize = 100;

/// Maximum time of a long poll in seconds.
pub const WAIT: f64 = 60.0;

/// An answer that says only that the request was carried out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Accepted {
    /// Always `ok`.
    #[schema(value_type = String)]
    pub status: &'static str,
}

const ACCEPTED: Json<Accepted> = Json(Accepted { status: "ok" });

/// Assigns available items of the types to a worker, and waits for a first one if asked to.
#[utoipa::path(
    post, path = "/claim", tag = "work",
    request_body = Claim,
    responses((status = 200, description = "The assignments; none if nothing was available in time.", body = Claimed)),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn claim(State(app): State<App>, input: Input<Claim>) -> Result<Response, Problem> {
    let claim = input.value;
    check_claim(&claim)?;
    let max = usize::try_from(claim.max).unwrap_or(usize::MAX);
    let deadline = Instant::now() + Duration::from_secs_f64(claim.wait_seconds.clamp(0.0, WAIT));
    let place = app.waiting.join(&claim.types);
    loop {
        let (types, worker) = (claim.types.clone(), claim.worker_id.clone());
        let given = take(&app, move |app| async move { app.store.claim(&types, &worker, max).await }).await;
        let given = given.map_err(of_body)?;
        if given.count() == max {
            place.found_some();
        }
        if given.count() > 0 {
            return given.answer(StatusCode::OK, |assignments| Claimed { assignments });
        }
        place.found_nothing();
        if Instant::now() >= deadline || app.stopping.is_cancelled() {
            return given.answer(StatusCode::OK, |assignments| Claimed { assignments });
        }
        tokio::select! {
            () = place.turn(deadline) => {}
            () = app.stopping.cancelled() => {}
        }
    }
}

/// Takes assignments in a task of its own, so that they are known and given back if the worker goes away meanwhile.
async fn take<F>(app: &App, work: impl FnOnce(App) -> F) -> Result<Handover, StoreError>
where
    F: Future<Output = Result<Vec<Assigned>, StoreError>> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let (owned, work) = (app.clone(), work(app.clone()));
    app.tasks.spawn(async move {
        let assigned = work.await;
        let _ = answer.send(assigned.map(|assigned| Handover::new(owned, assigned)));
    });
    answered.await.unwrap_or_else(|_| Err(StoreError::Unexpected("the claim ended early".to_owned())))
}

/// Checks a claim against its limits.
fn check_claim(claim: &Claim) -> Result<(), Problem> {
    if !(1..=TYPES).contains(&claim.types.len()) {
        return Err(Problem::invalid("/types", "must have 1 to 100 entries"));
    }
    for (index, kind) in claim.types.iter().enumerate() {
        limits::kind(&format!("types[{index}]"), kind).map_err(faulty)?;
    }
    limits::key("worker_id", &claim.worker_id).map_err(faulty)?;
    if !(1..=MAX_CLAIM).contains(&usize::try_from(claim.max).unwrap_or(usize::MAX)) {
        return Err(Problem::invalid("/max", "must be from 1 to 1000"));
    }
    if !(0.0..=WAIT).contains(&claim.wait_seconds) {
        return Err(Problem::invalid("/wait_seconds", "must be from 0 to 60"));
    }
    Ok(())
}

fn faulty(fault: Fault) -> Problem {
    of_body(StoreError::from(fault))
}

/// Assigns one item to a worker.
#[utoipa::path(
    post, path = "/job_item/{id}/worker/{worker_id}", tag = "work",
    params(
        ("id" = String, Path, description = "The id of the item."),
        ("worker_id" = String, Path, description = "The name of the worker."),
    ),
    responses(
        (status = 201, description = "The assignment.", body = Assigned),
        (status = 404, description = "There is no such item.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The item is not available; `reason` is `assigned`, `done`, `retry_at` or `serialize_key`.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn assign(State(app): State<App>, Id(id): Id, WorkerId(worker): WorkerId) -> Result<Response, Problem> {
    let given = take(&app, move |app| async move { Ok(vec![app.store.assign(&id, &worker).await?]) }).await;
    let one = |mut assigned: Vec<Assigned>| assigned.pop();
    given.map_err(of_parameters)?.answer(StatusCode::CREATED, one)
}

/// Ends an assignment by a result, which may add items to other jobs of the tree and seal some. Repeating the request changes nothing.
#[utoipa::path(
    post, path = "/assignment/{id}/result", tag = "work",
    request_body = ResultBody,
    params(("id" = String, Path, description = "The id of the assignment.")),
    responses(
        (status = 200, description = "The result was accepted, now or before.", body = Accepted),
        (status = 404, description = "There is no such assignment.", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "The assignment has ended in another way.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn succeed(State(app): State<App>, Id(id): Id, input: Input<ResultBody>) -> Result<Json<Accepted>, Problem> {
    let ResultBody { result, add_items, seal } = input.value;
    match app.store.end_by_result(Success { assignment_id: id, result, add_items, seal }).await.map_err(of_body)? {
        Settlement::Ok { .. } => {
            app.waiting.wake();
            Ok(ACCEPTED)
        }
        Settlement::Stale => Err(gone()),
    }
}

/// Ends an assignment by a failure.
#[utoipa::path(
    post, path = "/assignment/{id}/failure", tag = "work",
    request_body = FailureBody,
    params(("id" = String, Path, description = "The id of the assignment.")),
    responses(
        (status = 200, description = "The failure was accepted, now or before.", body = FailureAnswer),
        (status = 404, description = "There is no such assignment.", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "The assignment has ended in another way.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn fail(
    State(app): State<App>,
    Id(id): Id,
    input: Input<FailureBody>,
) -> Result<Json<FailureAnswer>, Problem> {
    let FailureBody { error, retry_in_seconds, is_final } = input.value;
    let failure = Failure { assignment_id: id, error, retry_in_seconds, is_final };
    match app.store.end_by_failure(failure).await.map_err(of_body)? {
        Settlement::Ok { retry_at } => {
            app.waiting.wake();
            Ok(Json(FailureAnswer { retry_at }))
        }
        Settlement::Stale => Err(gone()),
    }
}

/// Extends one assignment.
#[utoipa::path(
    post, path = "/assignment/{id}/heartbeat", tag = "work",
    params(("id" = String, Path, description = "The id of the assignment.")),
    responses(
        (status = 200, description = "The assignment goes on.", body = Accepted),
        (status = 404, description = "There is no such assignment.", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "The assignment has ended.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn beat(State(app): State<App>, Id(id): Id) -> Result<Json<Accepted>, Problem> {
    let stale = app.store.heartbeat(&[id]).await.map_err(of_parameters)?;
    if stale.is_empty() { Ok(ACCEPTED) } else { Err(gone()) }
}

/// Ends assignments by results and failures, in one transaction.
#[utoipa::path(
    post, path = "/settle", tag = "work",
    request_body = SettleRequest,
    responses((status = 200, description = "One entry for each result, then one for each failure.", body = SettleAnswer)),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn settle(State(app): State<App>, input: Input<SettleRequest>) -> Result<Json<SettleAnswer>, Problem> {
    let SettleRequest { results, failures } = input.value;
    if results.len() + failures.len() > MAX_ASSIGNMENTS {
        let field = if results.len() > MAX_ASSIGNMENTS { "/results" } else { "/failures" };
        return Err(Problem::invalid(field, "results and failures must be 10000 at most"));
    }
    // In a task of its own: if the worker gives up while applets run, it finds the results settled when it asks again.
    let (answer, answered) = oneshot::channel();
    let owned = app.clone();
    app.tasks.spawn(async move {
        let settled = owned.store.settle(results, failures).await;
        owned.waiting.wake();
        let _ = answer.send(settled);
    });
    let early = || StoreError::Unexpected("the settlement ended early".to_owned());
    let settled = answered.await.unwrap_or_else(|_| Err(early())).map_err(of_body)?;
    Ok(Json(SettleAnswer { settled }))
}

/// Extends assignments, and notes the progress of their work.
#[utoipa::path(
    post, path = "/heartbeat", tag = "work",
    request_body = Heartbeat,
    responses((status = 200, description = "The assignments that have ended: cancel their work.", body = StaleAssignments)),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn heartbeat(State(app): State<App>, input: Input<Heartbeat>) -> Result<Json<StaleAssignments>, Problem> {
    let Heartbeat { assignment_ids, progress } = input.value;
    check_ids(&assignment_ids)?;
    let stale = app.store.heartbeat_with(&assignment_ids, &progress).await.map_err(of_body)?;
    Ok(Json(StaleAssignments { stale }))
}

/// Gives items back without a failure, at once or after a delay.
#[utoipa::path(
    post, path = "/release", tag = "work",
    request_body = Release,
    responses((status = 200, description = "The assignments that had ended already.", body = StaleAssignments)),
    security(("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn release(State(app): State<App>, input: Input<Release>) -> Result<Json<StaleAssignments>, Problem> {
    let Release { assignment_ids, delay_seconds } = input.value;
    check_ids(&assignment_ids)?;
    limits::delay("delay_seconds", delay_seconds).map_err(faulty)?;
    let delay = Duration::from_secs_f64(delay_seconds.unwrap_or_default().clamp(0.0, MAX_DELAY));
    let stale = app.store.release_after(&assignment_ids, delay).await.map_err(of_body)?;
    app.waiting.wake();
    Ok(Json(StaleAssignments { stale }))
}

fn check_ids(ids: &[String]) -> Result<(), Problem> {
    if ids.len() > MAX_ASSIGNMENTS {
        return Err(Problem::invalid("/assignment_ids", "must have 10000 entries at most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim { types: vec!["a".to_owned()], worker_id: "w".to_owned(), max: 1, wait_seconds: 0.0 }
    }

    #[test]
    fn claims_are_checked_against_their_limits() {
        assert!(check_claim(&claim()).is_ok());
        let faulty = [
            Claim { types: vec![], ..claim() },
            Claim { types: vec!["a".to_owned(), "a b".to_owned()], ..claim() },
            Claim { types: vec!["a".repeat(101)], ..claim() },
            Claim { worker_id: String::new(), ..claim() },
            Claim { worker_id: "w".repeat(201), ..claim() },
            Claim { max: 0, ..claim() },
            Claim { max: 1001, ..claim() },
            Claim { wait_seconds: -0.1, ..claim() },
            Claim { wait_seconds: 60.5, ..claim() },
            Claim { wait_seconds: f64::NAN, ..claim() },
        ];
        let fields = ["/types", "/types/1", "/types/0", "/worker_id", "/worker_id", "/max", "/max"];
        let fields = fields.into_iter().chain(["/wait_seconds"; 3]);
        for (claim, field) in faulty.iter().zip(fields) {
            let problem = serde_json::to_value(check_claim(claim).unwrap_err()).unwrap();
            assert_eq!(problem["field"], field);
        }
    }
}
