//! Futures behind a pointer.

use std::pin::Pin;

/// A future behind a pointer, which may be sent to another thread.
///
/// The compiler translates the body of an `async fn` in each crate that awaits it. Large ones that other crates await are functions
/// that return this type instead, and are translated once, where they are written.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
