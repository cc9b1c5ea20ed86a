//! Code that wit-bindgen generates from the contract, and conversions between its types and the types of this crate.
//!
//! A component must export everything that its world exports. Therefore, this module defines one world for the imports of guests,
//! and one world for each possible export. The linker joins the worlds that a guest uses.
#![allow(missing_docs, reason = "generated code, public for the macros only")]

use std::time::{Duration, UNIX_EPOCH};

use crate::answer::seconds;
use crate::job::{Item, Job, JobError};
use crate::{Attribute, Failure, Message, Outcome, Outgoing, Report, SendError, State, Value};

pub mod imports {
    wit_bindgen::generate!({
        inline: "package hostler:guest;
            world imports {
                import hostler:consumer/context@0.1.0;
                import hostler:consumer/producer@0.1.0;
                import hostler:consumer/jobs@0.1.0;
                import hostler:consumer/batch@0.1.0;
            }",
        path: "wit",
        generate_all,
        generate_unused_types: true,
    });
}

pub use imports::hostler::consumer::{batch, context, jobs, producer, types};

pub mod handler {
    wit_bindgen::generate!({
        inline: "package hostler:guest; world handler { export hostler:consumer/handler@0.1.0; }",
        path: "wit",
        generate_all,
        with: { "hostler:consumer/types@0.1.0": crate::contract::types },
        pub_export_macro: true,
        export_macro_name: "export_handler",
        default_bindings_module: "::hostler_guest::contract::handler",
    });
    pub use exports::hostler::consumer::handler::Guest;
}

pub mod batch_handler {
    wit_bindgen::generate!({
        inline: "package hostler:guest; world batch-handler { export hostler:consumer/batch-handler@0.1.0; }",
        path: "wit",
        generate_all,
        with: { "hostler:consumer/types@0.1.0": crate::contract::types },
        pub_export_macro: true,
        export_macro_name: "export_batch_handler",
        default_bindings_module: "::hostler_guest::contract::batch_handler",
    });
    pub use exports::hostler::consumer::batch_handler::Guest;
}

pub mod message_start {
    wit_bindgen::generate!({
        inline: "package hostler:guest; world message-start { export hostler:consumer/message-start@0.1.0; }",
        path: "wit",
        generate_all,
        with: { "hostler:consumer/types@0.1.0": crate::contract::types },
        pub_export_macro: true,
        export_macro_name: "export_message_start",
        default_bindings_module: "::hostler_guest::contract::message_start",
    });
    pub use exports::hostler::consumer::message_start::Guest;
}

pub mod message_end {
    wit_bindgen::generate!({
        inline: "package hostler:guest; world message-end { export hostler:consumer/message-end@0.1.0; }",
        path: "wit",
        generate_all,
        with: { "hostler:consumer/types@0.1.0": crate::contract::types },
        pub_export_macro: true,
        export_macro_name: "export_message_end",
        default_bindings_module: "::hostler_guest::contract::message_end",
    });
    pub use exports::hostler::consumer::message_end::Guest;
}

pub mod processing_timeout {
    wit_bindgen::generate!({
        inline: "package hostler:guest; world processing-timeout { export hostler:consumer/processing-timeout@0.1.0; }",
        path: "wit",
        generate_all,
        with: { "hostler:consumer/types@0.1.0": crate::contract::types },
        pub_export_macro: true,
        export_macro_name: "export_processing_timeout",
        default_bindings_module: "::hostler_guest::contract::processing_timeout",
    });
    pub use exports::hostler::consumer::processing_timeout::Guest;
}

pub mod state_changed {
    wit_bindgen::generate!({
        inline: "package hostler:guest; world state-changed { export hostler:consumer/state-changed@0.1.0; }",
        path: "wit",
        generate_all,
        with: { "hostler:consumer/types@0.1.0": crate::contract::types },
        pub_export_macro: true,
        export_macro_name: "export_state_changed",
        default_bindings_module: "::hostler_guest::contract::state_changed",
    });
    pub use exports::hostler::consumer::state_changed::Guest;
}

pub(crate) fn send(message: Outgoing) -> Result<String, SendError> {
    let options = producer::Options {
        attributes: message.attributes.into_iter().map(Into::into).collect(),
        routing_key: message.routing_key,
        delay: message.delay.map(seconds),
        group_id: message.group,
        dedupe_key: message.dedupe_key,
    };
    producer::send(&message.channel, &message.body, &options).map_err(|error| match error {
        producer::SendError::Denied(text) => SendError::Denied(text),
        producer::SendError::Invalid(text) => SendError::Invalid(text),
        producer::SendError::Unavailable(text) => SendError::Unavailable(text),
    })
}

pub(crate) fn done(index: usize, answer: Result<Outcome, Failure>) -> bool {
    u32::try_from(index).is_ok_and(|index| match outcome(answer) {
        Ok(outcome) => batch::done(index, Ok(&outcome)),
        Err(reason) => batch::done(index, Err(&reason)),
    })
}

pub(crate) fn lost(index: usize) -> bool {
    u32::try_from(index).is_ok_and(batch::lost)
}

pub(crate) fn current_job() -> Option<Job> {
    let jobs::JobInfo { job_id, root_id, job_type, item_id, attempt } = jobs::current()?;
    Some(Job { id: job_id, root_id, kind: job_type, item_id, attempt })
}

pub(crate) fn add_items(target: &str, items: Vec<Item>) -> Result<(), JobError> {
    let items = items.into_iter().map(|item| {
        let Item { payload, dedupe_key, serialize_key, priority } = item;
        jobs::NewItem { payload, dedupe_key, serialize_key, priority }
    });
    jobs::add_items(target, &items.collect::<Vec<_>>()).map_err(Into::into)
}

pub(crate) fn seal(job: &str) -> Result<(), JobError> {
    jobs::seal(job).map_err(Into::into)
}

pub(crate) fn progress(fraction: f64, text: &str) -> Result<(), JobError> {
    jobs::progress(fraction, text).map_err(Into::into)
}

impl From<jobs::JobError> for JobError {
    fn from(error: jobs::JobError) -> Self {
        match error {
            jobs::JobError::NoJob(text) => Self::NoJob(text),
            jobs::JobError::Invalid(text) => Self::Invalid(text),
            jobs::JobError::Full(text) => Self::Full(text),
        }
    }
}

/// Converts the result of a handler to the value that `handle` returns to the host.
pub fn outcome(answer: Result<Outcome, Failure>) -> Result<types::Outcome, String> {
    match answer {
        Ok(outcome) => Ok(outcome.into()),
        Err(Failure::Error(reason)) => Err(reason),
        Err(Failure::Retry) => Ok(types::Outcome::Retry),
        Err(Failure::Delay(time)) => Ok(types::Outcome::Delay(seconds(time))),
        Err(Failure::DeadLetter(reason)) => Ok(types::Outcome::DeadLetter(reason)),
    }
}

impl From<types::Message> for Message {
    fn from(message: types::Message) -> Self {
        Self {
            id: message.id,
            channel: message.channel,
            body: message.body,
            content_type: message.content_type,
            attributes: message.attributes.into_iter().map(Into::into).collect(),
            attempt: message.attempt,
            enqueued_at: UNIX_EPOCH + Duration::from_millis(message.enqueued_at),
            group: message.group_id,
            routing_key: message.routing_key,
        }
    }
}

impl From<types::Attribute> for Attribute {
    fn from(attribute: types::Attribute) -> Self {
        let value = match attribute.value {
            types::AttributeValue::Text(text) => Value::Text(text),
            types::AttributeValue::Binary(bytes) => Value::Binary(bytes),
        };
        Self { name: attribute.name, value }
    }
}

impl From<Attribute> for types::Attribute {
    fn from(attribute: Attribute) -> Self {
        let value = match attribute.value {
            Value::Text(text) => types::AttributeValue::Text(text),
            Value::Binary(bytes) => types::AttributeValue::Binary(bytes),
        };
        Self { name: attribute.name, value }
    }
}

impl From<Outcome> for types::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Ack => Self::Ack,
            Outcome::Reply(body) => Self::Reply(body),
            Outcome::Retry => Self::Retry,
            Outcome::Delay(time) => Self::Delay(seconds(time)),
            Outcome::DeadLetter(reason) => Self::DeadLetter(reason),
        }
    }
}

impl From<types::Report> for Report {
    fn from(report: types::Report) -> Self {
        Self {
            message_id: report.message_id,
            attempt: report.attempt,
            outcome: report.outcome,
            reason: report.reason,
            duration: Duration::from_millis(report.duration_ms),
        }
    }
}

impl From<types::State> for State {
    fn from(state: types::State) -> Self {
        match state {
            types::State::Initializing => Self::Initializing,
            types::State::Initialized => Self::Initialized,
            types::State::Listening => Self::Listening,
            types::State::Processing => Self::Processing,
            types::State::Idle => Self::Idle,
            types::State::Exiting => Self::Exiting,
        }
    }
}
