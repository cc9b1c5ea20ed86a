//! The retry service: keeps messages of NATS, and requests them again until they are delivered, expire or are given up.
//!
//! Producers send a message to the service if its receiver does not acknowledge it. The service stores the message in an
//! embedded queue before it replies. When the message is due, the service requests it on its own subject, until a
//! receiver acknowledges it.
//!
//! | file | job |
//! |---|---|
//! | `settings.rs` | the headers of a message, over the defaults |
//! | `accept.rs` | decides on the requests of producers |
//! | `targets.rs` | the subjects to which messages may be delivered |
//! | `answer.rs` | reads the replies of receivers |
//! | `envelope.rs` | the stored form of a message |
//! | `scheduler/` | decides which message is delivered when; no I/O |
//! | `requests.rs` | the requests that wait for a reply |
//! | `engine/` | the event loop over a store |
//! | `nats.rs` | the connections to NATS |
//! | `micro.rs` | the service's answers to discovery by NATS micro |
//! | `room.rs` | decides if the store has room for further messages |
//! | `stores.rs` | the stores of all instances in one folder, and the adoption of those of dead instances |

pub mod accept;
pub mod answer;
pub mod engine;
pub mod envelope;
mod micro;
pub mod nats;
pub mod requests;
pub mod room;
pub mod scheduler;
pub mod settings;
pub mod stores;
pub mod targets;
