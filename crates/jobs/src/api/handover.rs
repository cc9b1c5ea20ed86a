//! Assignments on their way to a worker. If the worker goes away before the answer, they are given back.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde::Serialize;

use crate::api::problem::Problem;
use crate::api::state::App;
use crate::types::Assigned;

/// Assignments that no worker knows yet. Dropping them gives the items back without a failure.
pub struct Handover {
    app: App,
    assigned: Vec<Assigned>,
    ids: Vec<String>,
}

impl Handover {
    /// Takes responsibility for assignments.
    pub fn new(app: App, assigned: Vec<Assigned>) -> Self {
        let ids = assigned.iter().map(|assigned| assigned.assignment_id.clone()).collect();
        Self { app, assigned, ids }
    }

    /// Returns the number of assignments.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Turns the assignments into an answer, which gives them back if the connection ends before it is sent.
    pub fn answer<T: Serialize>(
        mut self,
        status: StatusCode,
        shape: impl FnOnce(Vec<Assigned>) -> T,
    ) -> Result<Response, Problem> {
        let body = serde_json::to_vec(&shape(std::mem::take(&mut self.assigned)));
        let body = body.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written"))?;
        let mut response = Response::new(Body::new(Parcel { bytes: Some(body.into()), handover: self }));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        if ids.is_empty() {
            return;
        }
        let app = self.app.clone();
        self.app.tasks.spawn(async move {
            match app.store.release(&ids).await {
                Ok(_) => app.waiting.wake(),
                // The items come back after three missed heartbeats.
                Err(error) => tracing::warn!(count = ids.len(), %error, "cannot give back what a worker did not take"),
            }
        });
    }
}

/// The body of an answer with assignments.
struct Parcel {
    bytes: Option<Bytes>,
    handover: Handover,
}

impl HttpBody for Parcel {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.handover.ids.clear();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
