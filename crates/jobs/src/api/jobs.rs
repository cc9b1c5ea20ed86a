//! The routes of jobs and items, for producers.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::fault::{of_body, of_parameters};
use crate::api::input::{Id, Input, Parameters};
use crate::api::problem::Problem;
use crate::api::state::App;
use crate::callbacks::address;
use crate::types::{
    AddItems, AddedItems, Callback, Created, ItemPage, ItemQuery, ItemState, JobPage, JobQuery, NewJob, Status,
};

/// The answer to `POST /job/{id}/retry`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Retried {
    /// The number of failed items that are pending again.
    pub retried: u64,
}

/// Creates a job and the tree below it.
///
/// Parents, children and their items come into being together or not at all.
#[utoipa::path(
    post, path = "/job", tag = "jobs",
    request_body = NewJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repeated request return the first one's answer.")),
    responses(
        (status = 201, description = "The tree exists.", body = Created),
        (status = 409, description = "The dedupe key or the id is taken; `job_id` names the job.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["producer"]), ("token" = ["operator"])),
)]
pub async fn create(State(app): State<App>, input: Input<NewJob>) -> Result<(StatusCode, Json<Created>), Problem> {
    if let Some(callback) = &input.value.callback {
        check_callback(callback, app.has_channels)?;
    }
    let created = app.store.create(input.value, input.idempotency).await.map_err(of_body)?;
    app.waiting.wake();
    Ok((StatusCode::CREATED, Json(created)))
}

/// Refuses a callback that could never be delivered.
fn check_callback(callback: &Callback, has_channels: bool) -> Result<(), Problem> {
    match callback {
        Callback::Channel(_) if !has_channels => {
            let detail = "the job service has no queue for callbacks; set [queue] in its config, or use a url";
            Err(Problem::invalid("/callback/channel", detail))
        }
        Callback::Channel(_) => Ok(()),
        Callback::Url(url) => {
            address::parse(url).map(drop).map_err(|refused| Problem::invalid("/callback/url", refused.to_string()))
        }
    }
}

/// Lists jobs in the order of their creation.
#[utoipa::path(
    get, path = "/job", tag = "jobs",
    params(JobQuery),
    responses((status = 200, description = "A page of jobs.", body = JobPage)),
    security(("token" = ["producer"]), ("token" = ["operator"])),
)]
pub async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<JobPage>, Problem> {
    let given = Parameters::parse(query.as_deref(), &["type", "root_id", "complete", "limit", "cursor"])?;
    let query = JobQuery {
        kind: given.text("type")?,
        root_id: given.text("root_id")?,
        complete: given.flag("complete")?,
        limit: given.limit()?,
        cursor: given.text("cursor")?,
    };
    app.store.jobs(&query).await.map(Json).map_err(of_parameters)
}

/// Returns the progress of a job and of the jobs below it.
#[utoipa::path(
    get, path = "/job/{id}/status", tag = "jobs",
    params(("id" = String, Path, description = "The id of the job.")),
    responses(
        (status = 200, description = "The progress.", body = Status),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["producer"]), ("token" = ["operator"])),
)]
pub async fn status(State(app): State<App>, Id(id): Id) -> Result<Json<Status>, Problem> {
    app.store.status(&id).await.map(Json).map_err(of_parameters)
}

/// Deletes a job and the tree below it, which cancels its work.
#[utoipa::path(
    delete, path = "/job/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The id of the job.")),
    responses(
        (status = 204, description = "The job and the tree below it are gone."),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["producer"]), ("token" = ["operator"])),
)]
pub async fn delete(State(app): State<App>, Id(id): Id) -> Result<StatusCode, Problem> {
    app.store.delete(&id).await.map_err(of_parameters)?;
    // A deleted item may have been the oldest of its serialize key.
    app.waiting.wake();
    Ok(StatusCode::NO_CONTENT)
}

/// Adds items to a job that is not sealed.
#[utoipa::path(
    post, path = "/job/{id}/items", tag = "jobs",
    request_body = AddItems,
    params(
        ("id" = String, Path, description = "The id of the job."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repeated request return the first one's answer."),
    ),
    responses(
        (status = 201, description = "The items exist.", body = AddedItems),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job is sealed, or the id of an item is taken.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["producer"]), ("token" = ["operator"])),
)]
pub async fn add_items(
    State(app): State<App>,
    Id(id): Id,
    input: Input<AddItems>,
) -> Result<(StatusCode, Json<AddedItems>), Problem> {
    let item_ids = app.store.add_items(&id, input.value.items, input.idempotency).await.map_err(of_body)?;
    app.waiting.wake();
    Ok((StatusCode::CREATED, Json(AddedItems { item_ids })))
}

/// Seals a job: no items can be added. Sealing again changes nothing.
#[utoipa::path(
    post, path = "/job/{id}/seal", tag = "jobs",
    params(("id" = String, Path, description = "The id of the job.")),
    responses(
        (status = 200, description = "The job is sealed.", body = Sealed),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has a feed, and is sealed when its parent is complete; `reason` is `feed`.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["producer"]), ("token" = ["operator"])),
)]
pub async fn seal(State(app): State<App>, Id(id): Id) -> Result<Json<Sealed>, Problem> {
    app.store.seal(&id).await.map_err(of_parameters)?;
    Ok(Json(Sealed { sealed: true }))
}

/// The answer to `POST /job/{id}/seal`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Sealed {
    /// Always true.
    pub sealed: bool,
}

/// Makes the failed items of a job pending again.
#[utoipa::path(
    post, path = "/job/{id}/retry", tag = "jobs",
    params(("id" = String, Path, description = "The id of the job.")),
    responses(
        (status = 200, description = "The failed items are pending again.", body = Retried),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job cannot be opened again.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operator"])),
)]
pub async fn retry(State(app): State<App>, Id(id): Id) -> Result<Json<Retried>, Problem> {
    let retried = app.store.retry(&id).await.map_err(of_parameters)?;
    app.waiting.wake();
    Ok(Json(Retried { retried }))
}

/// Lists items in the order of their creation.
#[utoipa::path(
    get, path = "/job_item", tag = "items",
    params(ItemQuery),
    responses((status = 200, description = "A page of items.", body = ItemPage)),
    security(("token" = ["producer"]), ("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn items(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<ItemPage>, Problem> {
    let known = ["job_id", "root_id", "state", "final_stage", "limit", "cursor"];
    let given = Parameters::parse(query.as_deref(), &known)?;
    let query = ItemQuery {
        job_id: given.text("job_id")?,
        root_id: given.text("root_id")?,
        state: given.value("state", "must be pending, assigned, succeeded or failed", item_state)?,
        final_stage: given.flag("final_stage")?,
        limit: given.limit()?,
        cursor: given.text("cursor")?,
    };
    app.store.items(&query).await.map(Json).map_err(of_parameters)
}

fn item_state(name: &str) -> Option<ItemState> {
    match name {
        "pending" => Some(ItemState::Pending),
        "assigned" => Some(ItemState::Assigned),
        "succeeded" => Some(ItemState::Succeeded),
        "failed" => Some(ItemState::Failed),
        _ => None,
    }
}
