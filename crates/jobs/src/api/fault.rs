//! The answer to each error of the store.

use std::borrow::Cow;

use axum::http::StatusCode;
use hostler_postgres::DatabaseError;

use crate::api::json_scan::pointer;
use crate::api::problem::Problem;
use crate::store::StoreError;

/// Seconds after which a request may be repeated when the database did not answer.
const RETRY: u32 = 1;

/// Answers an error of a request with a body: a faulty field becomes a JSON pointer.
pub fn of_body(error: StoreError) -> Problem {
    answer(error, |field| {
        let header = field.starts_with(|first: char| first.is_ascii_uppercase());
        if header { field } else { pointer(&field) }
    })
}

/// Answers an error of a request without a body: a faulty field is the name of a parameter.
pub fn of_parameters(error: StoreError) -> Problem {
    answer(error, |field| field)
}

fn answer(error: StoreError, name: impl FnOnce(String) -> String) -> Problem {
    match error {
        StoreError::NotFound { what, .. } => Problem::new(StatusCode::NOT_FOUND, format!("there is no such {what}")),
        StoreError::Conflict { reason, job_id } => {
            let problem = Problem::new(StatusCode::CONFLICT, conflict(reason)).reason(reason);
            match job_id {
                Some(id) => problem.job(id),
                None => problem,
            }
        }
        StoreError::Invalid { field, detail } => Problem::invalid(name(field), detail),
        StoreError::Gone => gone(),
        error @ StoreError::Applet { .. } => {
            tracing::warn!(%error, "results are refused with 503");
            unavailable(error.to_string())
        }
        StoreError::Database(error) => database(&error),
        StoreError::Migrate(error) => {
            tracing::error!(%error, "the schema of the job service is not up to date");
            unavailable("the schema of the database is not up to date")
        }
        StoreError::Schema { .. } => unavailable(error.to_string()),
        StoreError::Unexpected(detail) => {
            tracing::error!(detail, "the database holds an unexpected value");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the database holds an unexpected value")
        }
    }
}

/// The answer to a result, failure or heartbeat under an assignment that has ended.
pub fn gone() -> Problem {
    Problem::new(StatusCode::GONE, "the assignment has ended; cancel its work")
}

fn conflict(reason: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(match reason {
        "dedupe_key" => "a job of this type has the dedupe key already",
        "id" => "the id is taken",
        "sealed" => "the job is sealed",
        "feed" => "the job has a feed, and is sealed when its parent is complete",
        "deleted" => "the job is deleted",
        "assigned" => "another worker has the item",
        "done" => "the item has ended",
        "retry_at" => "the item is not tried again yet",
        "serialize_key" => "an older item with the serialize key is pending",
        other => other,
    })
}

/// Answers a fault of the database. None of them is a fault of the request, so all say when to try again.
fn database(error: &DatabaseError) -> Problem {
    // The text of the database may quote values of the request, so the client gets none of it.
    match error {
        DatabaseError::UnknownFate => {
            unavailable("the connection to the database broke during the commit: the request may have been carried out")
        }
        DatabaseError::Busy { .. } => unavailable("the database is busy"),
        DatabaseError::Deadline => unavailable("the database did not answer in time"),
        DatabaseError::Unreachable { .. } => {
            // The sweeps log it once: a line for each request would say no more.
            tracing::debug!(%error, "the database of the job service cannot be reached");
            unavailable("the database cannot be reached")
        }
        DatabaseError::Denied { code, .. } => {
            // A refused login is logged by the sweeps as well. SQLSTATE 42501 is a refused statement.
            if code == "42501" {
                tracing::error!(%error, "the database of the job service denies a statement");
            }
            unavailable("the database refused the login of the job service")
        }
        DatabaseError::Refused { .. } => {
            tracing::error!(code = error.code(), "the database refused a statement of the job service");
            unavailable("the database refused the statement")
        }
    }
}

fn unavailable(detail: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(problem: &Problem) -> serde_json::Value {
        serde_json::to_value(problem).unwrap()
    }

    #[test]
    fn faulty_fields_are_pointers_in_bodies_and_names_in_queries() {
        let fault = || StoreError::invalid("items[3].payload", "too large");
        assert_eq!(json(&of_body(fault()))["field"], "/items/3/payload");
        assert_eq!(json(&of_parameters(StoreError::invalid("cursor", "bad")))["field"], "cursor");
        assert_eq!(json(&of_body(StoreError::invalid("Idempotency-Key", "reused")))["field"], "Idempotency-Key");
    }

    #[test]
    fn conflicts_name_the_reason_and_the_job() {
        let error = StoreError::Conflict { reason: "dedupe_key", job_id: Some("j".to_owned()) };
        let problem = json(&of_body(error));
        assert_eq!(
            (&problem["status"], &problem["reason"], &problem["job_id"]),
            (&409.into(), &"dedupe_key".into(), &"j".into())
        );
    }

    #[test]
    fn faults_of_the_database_are_503() {
        for error in [DatabaseError::UnknownFate, DatabaseError::Deadline] {
            assert_eq!(of_body(StoreError::Database(error)).status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        let fate = json(&of_body(StoreError::Database(DatabaseError::UnknownFate)));
        assert!(fate["detail"].as_str().unwrap().contains("may have been carried out"));
    }
}
