//! The HTTP API: the routes with their documentation, and the state behind them.

pub mod document;
pub mod fault;
pub mod guard;
pub mod handover;
pub mod input;
pub mod jobs;
pub mod json_scan;
pub mod metrics;
pub mod problem;
pub mod rate;
pub mod roles;
pub mod service;
pub mod state;
pub mod waiting;
pub mod work;

use axum::Router;
use axum::middleware::from_fn_with_state;
use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::state::{App, Limits};
use crate::shards::Shards;

/// Returns all routes. A route without documentation cannot be added.
fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(jobs::create, jobs::list))
        .routes(routes!(jobs::status))
        .routes(routes!(jobs::delete))
        .routes(routes!(jobs::add_items))
        .routes(routes!(jobs::seal))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::items))
        .routes(routes!(work::claim))
        .routes(routes!(work::assign))
        .routes(routes!(work::succeed))
        .routes(routes!(work::fail))
        .routes(routes!(work::beat))
        .routes(routes!(work::settle))
        .routes(routes!(work::heartbeat))
        .routes(routes!(work::release))
        .routes(routes!(service::healthz))
        .routes(routes!(service::readyz))
        .routes(routes!(service::metrics))
        .routes(routes!(service::openapi))
}

/// Returns the OpenAPI document.
pub fn openapi() -> Value {
    document::complete(serde_json::to_value(documented().into_openapi()).unwrap_or_default())
}

/// Creates the router of a server and its state. `has_channels`: callbacks to channels can be sent.
pub fn router(store: Shards, limits: Limits, has_channels: bool, stopping: CancellationToken) -> (Router, App) {
    let (routes, document) = documented().split_for_parts();
    let document = document::complete(serde_json::to_value(document).unwrap_or_default());
    let access = document::access(&document);
    let app = App::new(store, limits, has_channels, access, Bytes::from(document.to_string()), stopping);
    let router = routes
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::no_method)
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .with_state(app.clone());
    (router, app)
}
