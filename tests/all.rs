//! The one test binary: a module per area.
//!
//! `cfg(test)` on each tells clippy that its helpers are test code as well.

#[cfg(test)]
mod config;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod consumer;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod embedded;
#[cfg(test)]
mod health;
