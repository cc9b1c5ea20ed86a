//! The routes about the service itself: health, metrics, the OpenAPI document.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::fault::of_parameters;
use crate::api::metrics::{databases, fanout, sweeps};
use crate::api::problem::Problem;
use crate::api::state::App;

/// The media type of Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Time for which an answer of the database to a readiness check holds.
const READINESS: Duration = Duration::from_secs(1);

/// The answer to a health check.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `degraded`: idle workers learn of items later, or one of several databases is away.
    #[schema(value_type = String)]
    pub status: &'static str,
    /// The faults of the fan-out if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fanout: Option<String>,
    /// The databases that do not answer, if others do: `host:port/name` of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub databases_away: Vec<String>,
}

/// Tells that the process answers. Does not ask the database.
#[utoipa::path(
    get, path = "/healthz", tag = "service",
    responses((status = 200, description = "The process answers.", body = Health)),
    security(()),
)]
pub async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", fanout: None, databases_away: Vec::new() })
}

/// Tells whether the service can work: the database, or one of several, answers and has the schema of this version, and no shutdown is
/// under way.
#[utoipa::path(
    get, path = "/readyz", tag = "service",
    responses((status = 200, description = "The service can work.", body = Health)),
    security(()),
)]
pub async fn readyz(State(app): State<App>) -> Result<Json<Health>, Problem> {
    if app.stopping.is_cancelled() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the service stops").retry_after(1));
    }
    database_answers(&app).await?;
    let faults = app.fanout.counts().faults;
    let databases_away: Vec<String> = app.store.away().into_iter().map(str::to_owned).collect();
    let status = if faults.is_empty() && databases_away.is_empty() { "ok" } else { "degraded" };
    Ok(Json(Health { status, fanout: (!faults.is_empty()).then(|| faults.join("; ")), databases_away }))
}

/// Asks the database whether it can be worked with, once a second at most: nobody needs a token to ask.
async fn database_answers(app: &App) -> Result<(), Problem> {
    let mut last = app.readiness.lock().await;
    if let Some((at, answer)) = &*last
        && at.elapsed() < READINESS
    {
        return answer.clone();
    }
    let answer = app.store.check_schema().await.map_err(of_parameters);
    *last = Some((Instant::now(), answer.clone()));
    answer
}

/// Returns metrics in Prometheus' text format.
#[utoipa::path(
    get, path = "/metrics", tag = "service",
    responses((status = 200, description = "The metrics.", body = String, content_type = "text/plain")),
    security(("token" = ["producer"]), ("token" = ["worker"]), ("token" = ["operator"])),
)]
pub async fn metrics(State(app): State<App>) -> Response {
    let of_databases = databases(&app.store.counts().await);
    let text =
        app.metrics.requests() + &of_databases + &sweeps(&app.store.sweep_lags()) + &fanout(&app.fanout.counts());
    ([(CONTENT_TYPE, PROMETHEUS)], text).into_response()
}

/// Returns this document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "service",
    responses((status = 200, description = "The OpenAPI document.", body = serde_json::Value)),
    security(()),
)]
pub async fn openapi(State(app): State<App>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}
