//! Shared code of the black-box tests.

pub mod certificate;
pub mod cgroup;
pub mod collector;
pub mod ecs;
pub mod engine;
pub mod guard;
pub mod guests;
pub mod hostler;
#[cfg(feature = "jobs")]
pub mod jobs;
pub mod mounts;
pub mod nats;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod python;
pub mod rabbitmq;
pub mod registry;
pub mod rotel;
pub mod scripted;
pub mod servers;
pub mod sqs;
pub mod toolchains;
pub mod upkeep;
pub mod web;
pub mod work;
