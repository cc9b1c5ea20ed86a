//! The one test binary: a module per area.
//!
//! `cfg(test)` on each tells clippy that its helpers are test code as well.

#[cfg(feature = "embedded")]
#[cfg(test)]
mod commands;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod compile;
#[cfg(test)]
mod config;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod consumer;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod crash;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod drain;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod embedded;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod handlers;
#[cfg(test)]
mod health;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod invoke;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod readme;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod run;
#[cfg(feature = "embedded")]
#[cfg(test)]
mod support;
