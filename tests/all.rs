//! The one test binary: a module per area.
//!
//! `cfg(test)` on each tells clippy that its helpers are test code as well.

#[cfg(test)]
#[cfg(feature = "messaging")]
mod adapters;
#[cfg(test)]
mod alarms;
#[cfg(test)]
mod batches;
#[cfg(test)]
mod book;
#[cfg(test)]
mod clean;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod compile;
#[cfg(test)]
mod config;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod consumer;
#[cfg(test)]
mod container;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod dev;
#[cfg(test)]
mod dlq;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod ecs;
#[cfg(test)]
mod ecs_task;
#[cfg(test)]
mod embedded;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod exchange;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fetch;
#[cfg(test)]
mod handlers;
#[cfg(test)]
mod health;
#[cfg(test)]
mod help;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod http;
#[cfg(test)]
mod iam;
#[cfg(test)]
#[cfg(feature = "messaging")]
mod idempotency;
#[cfg(test)]
mod inflight;
#[cfg(test)]
mod invoke;
#[cfg(test)]
#[cfg(feature = "jobs")]
mod jobs;
#[cfg(test)]
mod languages;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod nats;
#[cfg(test)]
mod new;
#[cfg(test)]
mod output;
#[cfg(test)]
mod pause;
#[cfg(test)]
mod peek;
#[cfg(test)]
mod porting;
#[cfg(test)]
mod postgres;
#[cfg(test)]
mod provision;
#[cfg(test)]
mod rabbitmq;
#[cfg(test)]
mod requeue;
#[cfg(test)]
mod resources;
#[cfg(test)]
#[cfg(feature = "retry")]
mod retry;
#[cfg(test)]
mod run;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod sdk_python;
#[cfg(test)]
mod sdk_rust;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod send;
#[cfg(test)]
mod send_lines;
#[cfg(test)]
mod sqs;
#[cfg(test)]
mod sqs_wire;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tcp;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod top;
#[cfg(test)]
mod traces;
