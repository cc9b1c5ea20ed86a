#![cfg_attr(feature = "json", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "json"), doc = "Message handlers for hostler in Rust.")]

mod answer;
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod arena;
pub mod batch;
pub mod context;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod contract;
mod export;
mod failure;
mod hooks;
pub mod job;
mod message;
mod producer;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use answer::{Answer, Outcome};
#[doc(hidden)]
pub use export::__private;
pub use failure::{Failure, Malformed};
pub use hooks::{Report, Started, State};
pub use hostler_guest_macros::{batch_handler, handler, message_end, message_start, processing_timeout, state_changed};
pub use message::{Attribute, Message, Value};
pub use producer::{Outgoing, SendError};

/// Examples of functions that the attributes refuse. Only the examples without a note compile. Without their attribute, the others would
/// compile too.
///
/// ```
/// #[hostler_guest::handler]
/// pub(crate) fn handle(_: hostler_guest::Message) {}
/// ```
/// ```compile_fail,E0277
/// # fn main() {}
/// #[hostler_guest::handler]
/// fn handle(_: hostler_guest::Message) -> u8 { 0 }
/// ```
/// ```compile_fail
/// #[hostler_guest::handler]
/// async fn handle(_: hostler_guest::Message) {}
/// ```
/// ```compile_fail
/// #[hostler_guest::handler]
/// fn handle<T>(_: T) {}
/// ```
/// ```compile_fail
/// #[hostler_guest::handler]
/// struct Handler;
/// ```
/// ```compile_fail
/// #[hostler_guest::handler(now)]
/// fn handle(_: hostler_guest::Message) {}
/// ```
/// ```
/// #[hostler_guest::batch_handler]
/// fn handle(_: Vec<hostler_guest::Message>) -> Vec<Result<(), hostler_guest::Failure>> { Vec::new() }
/// ```
/// ```compile_fail,E0308
/// # fn main() {}
/// #[hostler_guest::batch_handler]
/// fn handle(_: Vec<hostler_guest::Message>) {}
/// ```
/// ```compile_fail
/// #[hostler_guest::message_end]
/// fn end(_: hostler_guest::Message) {}
/// ```
#[cfg(doctest)]
pub struct Refusals;
