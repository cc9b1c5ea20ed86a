//! What the black-box tests share.

pub mod guests;
pub mod hostler;
pub mod python;
pub mod scripted;
pub mod servers;
